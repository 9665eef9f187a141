/* Every row of the pre-tokenizer table against PCRE2 running the published expressions, on random
 * text made of what the expressions tell apart; and what they say nothing of: bytes that are not
 * UTF-8, and time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/clock.h"
#include "core/rng.h"
#include "models/pretokenize.h"
#include "models/unicode.h"

#define GPT2        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES      "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLAMA3(digits)                                                                             \
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(u, l, suffix)                                                                        \
    "[^\\r\\n\\p{L}\\p{N}]?" u "*" l "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" u "+" l "*" suffix
#define GPT4O(digits)                                                                              \
    CASED(UPPER, LOWER, CONTRACTION "?") "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES
#define ASCII_WORD "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
#define DEEPSEEK3                                                                                  \
    ASCII_WORD "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES
#define BLOOM        " ?[^(\\s|.,!?…。，、।۔،)]+"
#define NOT_HAN(set) "(?:(?!\\p{sc:Han})" set ")"
#define LINES        "[^\\n]+|[\\n]+"
#define CJK          "[一-龥ࠀ-一가-\\x{D7FF}]+"
/* deepseek-llm's list of the letters of cased scripts, in code points */
#define DEEPSEEK_LETTERS                                                                           \
    "[A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}"                \
    "\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}"         \
    "\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}"                  \
    "\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}"                       \
    "\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}"                 \
    "\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}"                 \
    "\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}"        \
    "\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}"         \
    "\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}"                 \
    "\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}"                  \
    "\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}"                   \
    "\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}"        \
    "\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}"         \
    "\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}"                  \
    "\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}"                 \
    "\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}"               \
    "\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}"         \
    "\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}]+"

struct published {
    const char *name;
    const char *expr[PRETOKENIZER_MAX_SPLITS];
};

/* One name for each behaviour; test_every_name_is_covered sees to it that all are here. */
static const struct published published[] = {
    {"gpt-2", {GPT2}},
    {"starcoder", {"\\p{N}", GPT2}},
    {"falcon", {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {"default", {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {"chameleon",
     {"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )", "\\p{N}",
      "[\\p{P}!-/:-@\\[-`{-~]", GPT2}},
    {"llama-bpe", {LLAMA3("\\p{N}{1,3}")}},
    {"jais-2",
     {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                  "\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)|"
                  "\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|"
                  "\\s{1}"}},
    {"qwen2", {LLAMA3("\\p{N}")}},
    {"laguna", {LINES, LLAMA3("\\p{N}")}},
    {"minicpm5", {"\\p{N}{1,3}", LLAMA3("\\p{N}+")}},
    {"ufakzeka", {"[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES}},
    {"qwen35",
     {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
                  " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES}},
    {"seed-coder",
     {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" SPACES}},
    {"bailingmoe",
     {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|"
      "\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    {"exaone-moe",
     {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}|"
                  " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    {"gpt-4o", {GPT4O("\\p{N}{1,3}")}},
    /* \b spelt out: this PCRE2's \w leaves out marks and connectors */
    {"tiny_aya",
     {"\\d{1,3}(?=(?:\\d{3})*+(?![\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}]))", GPT4O("\\p{N}{1,3}")}},
    {"tekken", {CASED(UPPER, LOWER, "") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES}},
    {"youtu",
     {"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\\x{3040}-ゟ゠-"
      "ヿ]"
      "+",
      GPT4O("\\p{N}")}},
    {"kimi-k2",
     {"[\\p{sc:Han}]+|" CASED(NOT_HAN(UPPER), NOT_HAN(LOWER),
                              CONTRACTION
                              "?") "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES}},
    {"deepseek-llm",
     {"[\r\n]", "\\s?" DEEPSEEK_LETTERS, "\\s?[!-/:-~！-／：-～‘-‟\\x{3000}-。]+", "\\s+$", CJK,
      "\\p{N}+"}},
    {"deepseek-coder", {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CJK, "\\p{N}"}},
    {"deepseek-v3", {"\\p{N}{1,3}", "[一-龥\\x{3040}-ゟ゠-ヿ]+", DEEPSEEK3}},
    {"spark2_5",
     {"\\p{N}{1,3}", "[一-龥\\x{3040}-ゟ゠-ヿ]+",
      ASCII_WORD "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+|[\\r\\n]|"
                 "\\s+(?!\\S)|\\s+",
      "\\p{N}"}},
    {"afmoe",
     {"\\p{N}{1,3}(?=(?:\\p{N}{3})*+(?!\\p{N}))",
      "[一-\\x{9FFF}㐀-\\x{4DBF}\\x{F900}-\\x{FAFF}\\x{3040}-ゟ゠-ヿ･-ﾟ⼀-\\x{2FDF}เ-\\x{E7F}"
      "\\x{E80}-\\x{EFF}ក-\\x{17FF}က-႟ꩠ-ꩿꧠ-\\x{A9FF}가-\\x{D7AF}ᄀ-ᇿ]+",
      DEEPSEEK3}},
    {"superbpe", {"\\p{N}+", "(?=(\\d{3})+(?!\\d))"}},
    {"bloom", {BLOOM}},
    {"viking", {BLOOM, "\\p{N}"}},
    {"gemma4", {LINES}},
    {"mmbert", {LINES, "(?=▁)"}},
    {"whitespace", {"\\S+"}},
};
enum { N_PUBLISHED = sizeof published / sizeof published[0] };

/* What the expressions tell apart, and neighbours of range ends. */
static const char *const pool[] = {"a",
                                   "b",
                                   "s",
                                   "t",
                                   "d",
                                   "m",
                                   "re",
                                   "ve",
                                   "ll",
                                   "S",
                                   "LL",
                                   "Ve",
                                   "A",
                                   "B",
                                   "Z",
                                   "É",
                                   "é",
                                   "ß",
                                   "Ǆ",
                                   "ǅ",
                                   "ʰ",
                                   "ª",
                                   "ſ",
                                   "µ",
                                   "Ω",
                                   "ж",
                                   "Ж",
                                   "ა",
                                   "Ა",
                                   "א",
                                   "ا",
                                   "ह",
                                   "ि",
                                   "्",
                                   "가",
                                   "힣",
                                   "ㄱ",
                                   "ㄅ",
                                   "中",
                                   "文",
                                   "々",
                                   "〇",
                                   "〡",
                                   "龥",
                                   "龦",
                                   "豈",
                                   "⺀",
                                   "ひ",
                                   "カ",
                                   "ｶ",
                                   "ー",
                                   "゠",
                                   "ย",
                                   "ກ",
                                   "က",
                                   "ក",
                                   "ᄀ",
                                   "𠀀",
                                   "𐐀",
                                   "𐒰",
                                   "ﬀ",
                                   "Ａ",
                                   "ａ",
                                   "ⅷ",
                                   "²",
                                   "½",
                                   "٣",
                                   "１",
                                   "0",
                                   "1",
                                   "2",
                                   "3",
                                   "45",
                                   "678",
                                   "9012",
                                   "\xCC\x81",
                                   "\xE2\x83\x9D",
                                   "'",
                                   "'",
                                   "'",
                                   "\"",
                                   ".",
                                   ",",
                                   "!",
                                   "?",
                                   "(",
                                   ")",
                                   "|",
                                   "/",
                                   "/",
                                   "-",
                                   "_",
                                   "<",
                                   ">",
                                   "=",
                                   "+",
                                   "^",
                                   "~",
                                   "`",
                                   "$",
                                   "€",
                                   "…",
                                   "。",
                                   "，",
                                   "、",
                                   "।",
                                   "۔",
                                   "،",
                                   "‘",
                                   "“",
                                   "‿",
                                   "！",
                                   "：",
                                   "～",
                                   "︰",
                                   "™",
                                   "😀",
                                   "👩‍💻",
                                   "▁",
                                   "▁",
                                   " ",
                                   " ",
                                   " ",
                                   " ",
                                   "  ",
                                   "    ",
                                   "\t",
                                   "\n",
                                   "\n",
                                   "\r",
                                   "\r\n",
                                   "\v",
                                   "\xC2\x85",
                                   "\xC2\xA0",
                                   "\xE2\x80\x83",
                                   "\xE2\x80\xA8",
                                   "\xE3\x80\x80",
                                   "\x01",
                                   "\x7F",
                                   "\xE2\x80\x8B",
                                   "\xEE\x80\x80",
                                   "<sentinel:12>",
                                   "<sentinel:>",
                                   "IMGIMGABZ",
                                   "IMGIMGZ",
                                   "IMGIMGAAAAAZ"};
enum { N_POOL = sizeof pool / sizeof pool[0], MAX_TEXT = 4096 };

static uint64_t draw(uint64_t seed, uint32_t *at, uint64_t n) {
    return rng_draw(seed, 0, (*at)++, RNG_TEST, 0) % n;
}

static size_t random_text(uint64_t seed, char *out) {
    uint32_t at = 0;
    size_t len = 0, items = 1 + draw(seed, &at, 40);
    for (size_t i = 0; i < items; i++) {
        const char *item = pool[draw(seed, &at, N_POOL)];
        size_t repeat = draw(seed, &at, 8) == 0 ? 1 + draw(seed, &at, 12) : 1;
        for (; repeat > 0 && len + strlen(item) < MAX_TEXT; repeat--) {
            memcpy(out + len, item, strlen(item));
            len += strlen(item);
        }
    }
    return len;
}

struct cuts {
    size_t end[MAX_TEXT];
    size_t n;
};

static void cut(struct cuts *c, size_t end) {
    if (c->n == 0 || c->end[c->n - 1] != end) c->end[c->n++] = end;
}

/* The isolated split: matches and the text between them are pieces; an empty match only cuts. */
static void split_by_expr(const pcre2_code *re, const char *text, size_t len, size_t base,
                          struct cuts *out) {
    pcre2_match_data *m = pcre2_match_data_create_from_pattern(re, NULL);
    size_t pos = 0, done = 0;
    while (pos < len) {
        if (pcre2_match(re, (PCRE2_SPTR)text, len, pos, 0, m, NULL) < 1) break;
        const size_t *v = pcre2_get_ovector_pointer(m);
        if (v[0] > done) cut(out, base + v[0]);
        if (v[1] > v[0]) cut(out, base + v[1]);
        done = v[1];
        pos = v[1];
        if (v[1] == v[0]) {
            uint32_t cp;
            pos += utf8_decode(text + pos, len - pos, &cp);
        }
    }
    if (done < len) cut(out, base + len);
    pcre2_match_data_free(m);
}

static pcre2_code *compile(const char *expr) {
    int why;
    size_t where;
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)expr, PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &why, &where, NULL);
    if (re == NULL) {
        char text[120];
        pcre2_get_error_message(why, (PCRE2_UCHAR *)text, sizeof text);
        fail_msg("%s at %zu of %s", text, where, expr);
    }
    return re;
}

static void walk_all(const struct pretokenizer *p, const char *text, size_t len, struct cuts *out) {
    struct pretoken_walk w;
    pretoken_walk_init(&w, p, NULL, text, len);
    size_t start, end, expect = 0;
    while (pretoken_walk_next(&w, &start, &end)) {
        assert_int_equal(start, expect);
        assert_true(end > start && end <= len);
        out->end[out->n++] = end;
        expect = end;
    }
    assert_int_equal(expect, len);
}

static void test_against_published(void **state) {
    (void)state;
    static struct cuts want[2], got;
    static char text[MAX_TEXT];
    const uint64_t n_texts = 4000;
    for (size_t k = 0; k < N_PUBLISHED; k++) {
        const struct pretokenizer *p =
            pretokenizer_find(published[k].name, strlen(published[k].name));
        assert_non_null(p);
        pcre2_code *re[PRETOKENIZER_MAX_SPLITS] = {0};
        size_t n_re = 0;
        while (n_re < PRETOKENIZER_MAX_SPLITS && published[k].expr[n_re] != NULL) {
            re[n_re] = compile(published[k].expr[n_re]);
            n_re++;
        }
        for (uint64_t i = 0; i < n_texts; i++) {
            uint64_t seed = k * 1000000 + i;
            size_t len = random_text(seed, text);
            struct cuts *now = &want[0], *next = &want[1];
            now->n = 0;
            cut(now, len);
            for (size_t r = 0; r < n_re; r++) {
                next->n = 0;
                for (size_t j = 0, start = 0; j < now->n; start = now->end[j++])
                    split_by_expr(re[r], text + start, now->end[j] - start, start, next);
                struct cuts *swap = now;
                now = next;
                next = swap;
            }
            got.n = 0;
            walk_all(p, text, len, &got);
            if (got.n != now->n || memcmp(got.end, now->end, got.n * sizeof got.end[0]) != 0) {
                size_t j = 0;
                while (j < got.n && j < now->n && got.end[j] == now->end[j]) j++;
                size_t from = j ? got.end[j - 1] : 0;
                fail_msg("%s, seed %llu: piece %zu from byte %zu ends at %zu, not %zu, in \"%.*s\"",
                         p->name, (unsigned long long)seed, j, from, j < got.n ? got.end[j] : 0,
                         j < now->n ? now->end[j] : 0, (int)(len - from), text + from);
            }
        }
        for (size_t r = 0; r < n_re; r++) pcre2_code_free(re[r]);
    }
    printf("%d behaviours, %llu texts each, seeds k * 1000000 + i\n", (int)N_PUBLISHED,
           (unsigned long long)n_texts);
}

static void test_every_name_is_covered(void **state) {
    (void)state;
    for (size_t i = 0; pretokenizer_row(i) != NULL; i++) {
        const struct pretokenizer *p = pretokenizer_row(i);
        bool covered = false;
        for (size_t k = 0; k < N_PUBLISHED; k++)
            covered |=
                pretokenizer_find(published[k].name, strlen(published[k].name))->split == p->split;
        if (!covered) fail_msg("no expression for %s", p->name);
        for (size_t j = 0; j < i; j++) assert_string_not_equal(pretokenizer_row(j)->name, p->name);
    }
    assert_null(pretokenizer_find("no-such-name", 12));
    assert_null(pretokenizer_find("gpt-2x", 6));
    assert_ptr_equal(pretokenizer_find("gpt-2x", 5), pretokenizer_find("gpt-2", 5));
}

/* A byte that is not UTF-8 is cut like a U+FFFD in its place. */
static void test_bytes_that_are_not_utf8(void **state) {
    (void)state;
    static struct cuts as_bytes, as_text;
    static char text[MAX_TEXT], bytes[MAX_TEXT];
    static size_t place[MAX_TEXT * 3 + 1];
    for (uint64_t seed = 0; seed < 400; seed++) {
        uint32_t at = 1000;
        size_t n = 0, m = 0;
        static char base[MAX_TEXT];
        size_t len = random_text(seed, base) % 600;
        while (len > 0 && ((unsigned char)base[len] & 0xC0) == 0x80) len--;
        for (size_t pos = 0; pos < len;) {
            uint32_t cp;
            size_t step = utf8_decode(base + pos, len - pos, &cp);
            memcpy(text + n, base + pos, step);
            memcpy(bytes + m, base + pos, step);
            for (size_t k = 0; k <= step; k++) place[n + k] = m + k;
            n += step;
            m += step;
            pos += step;
            if (draw(seed, &at, 4) != 0) continue;
            static const char bad[] = {'\xFF', '\xC0', '\xFE', '\xF8'};
            memcpy(text + n, "\xEF\xBF\xBD", 3);
            bytes[m++] = bad[draw(seed, &at, sizeof bad)];
            n += 3;
            place[n] = m;
        }
        for (size_t i = 0; pretokenizer_row(i) != NULL; i++) {
            as_bytes.n = as_text.n = 0;
            walk_all(pretokenizer_row(i), bytes, m, &as_bytes);
            walk_all(pretokenizer_row(i), text, n, &as_text);
            assert_int_equal(as_bytes.n, as_text.n);
            for (size_t j = 0; j < as_text.n; j++)
                assert_int_equal(as_bytes.end[j], place[as_text.end[j]]);
        }
    }
}

/* Runs that make a backtracking matcher quadratic: time for 8 times the text stays near 8 times. */
static void test_time_is_linear(void **state) {
    (void)state;
    static const char *const unit[] = {" ",      "a",           "A",  "1",  "12 ", "\n", " \n",
                                       "'",      "中",          "́",   "Aʰ", "😀",   "٣",  "1½",
                                       "IMGIMG", "<sentinel:1", " .", "▁"};
    static const char *const tail[] = {"", "x", "_", "\n"};
    const size_t small = 1 << 15, large = 1 << 18;
    char *text = malloc(large + 64);
    assert_non_null(text);
    for (size_t i = 0; pretokenizer_row(i) != NULL; i++) {
        const struct pretokenizer *p = pretokenizer_row(i);
        bool same = false; /* rows that share a split are measured once */
        for (size_t j = 0; j < i; j++) same |= pretokenizer_row(j)->split == p->split;
        if (same) continue;
        for (size_t u = 0; u < sizeof unit / sizeof unit[0]; u++) {
            size_t tail_at = (i + u) % (sizeof tail / sizeof tail[0]);
            uint64_t took[2];
            for (int big = 0; big < 2; big++) {
                size_t len = 0, limit = big ? large : small;
                while (len < limit) {
                    memcpy(text + len, unit[u], strlen(unit[u]));
                    len += strlen(unit[u]);
                }
                memcpy(text + len, tail[tail_at], strlen(tail[tail_at]));
                len += strlen(tail[tail_at]);
                uint64_t t0 = clock_now_ns();
                struct pretoken_walk w;
                size_t start, end = 0;
                pretoken_walk_init(&w, p, NULL, text, len);
                while (pretoken_walk_next(&w, &start, &end)) {
                }
                took[big] = clock_now_ns() - t0;
                assert_int_equal(end, len);
            }
            /* 8 is linear, 64 quadratic; the constant absorbs a busy machine. */
            if (took[1] > 24 * took[0] + 50000000)
                fail_msg("%s on \"%s\": %llu ns for %zu bytes, %llu ns for %zu", p->name, unit[u],
                         (unsigned long long)took[0], small, (unsigned long long)took[1], large);
        }
    }
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_published),
        cmocka_unit_test(test_every_name_is_covered),
        cmocka_unit_test(test_bytes_that_are_not_utf8),
        cmocka_unit_test(test_time_is_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
