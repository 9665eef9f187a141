/* Encoding with made-up vocabularies against the definition done naively (look at every pair, merge
 * the best, again), special tokens, WordPiece, time on long texts, and pauses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "core/chore.h"
#include "models/pretokenize.h"
#include "models/tokenizer.h"
#include "models/unicode.h"
#include "tests/models/tiny_vocab.h"

static struct tiny_vocab vocab;

static struct tokenizer *build(enum tokenizer_kind kind, const char *pre) {
    struct tokenizer_spec spec = tiny_spec(&vocab, kind, pre);
    if (kind == TOKENIZER_SPM) spec.unk = 0, spec.bos = 1, spec.eos = 2;
    struct tokenizer *t;
    struct error e = {0};
    if (tokenizer_build(&spec, &t, &e) != STATUS_OK) fail_msg("%s", e.message);
    return t;
}

static void encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
                   struct token_list *out) {
    struct error e = {0};
    out->n = 0;
    assert_int_equal(tokenizer_encode(t, NULL, text, len, flags, out, &e), STATUS_OK);
}

static void expect_ids(const struct tokenizer *t, const char *text, unsigned flags, size_t n,
                       const uint32_t *ids) {
    struct token_list out = {0};
    encode(t, text, strlen(text), flags, &out);
    if (out.n != n || (n && memcmp(out.ids, ids, n * sizeof *ids) != 0)) {
        for (size_t i = 0; i < out.n; i++) printf("%u ", out.ids[i]);
        fail_msg("for \"%s\"", text);
    }
    token_list_free(&out);
}
#define EXPECT(t, text, flags, ...)                                                                \
    expect_ids(t, text, flags, sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t),               \
               (uint32_t[]){__VA_ARGS__})

static uint64_t draw(uint64_t seed, uint32_t *at, uint64_t n) {
    return rng_draw(seed, 1, (*at)++, RNG_TEST, 0) % n;
}

/* --- byte pair merges --- */

static bool same(struct gguf_string a, const char *text, size_t len) {
    return a.len == len && memcmp(a.data, text, len) == 0;
}

/* Rank of the pair, SIZE_MAX if it does not merge: the rules read as text. */
static size_t naive_rank(struct gguf_string a, struct gguf_string b) {
    char text[256];
    memcpy(text, a.data, a.len);
    text[a.len] = ' ';
    memcpy(text + a.len + 1, b.data, b.len);
    for (size_t r = 0; r < vocab.n_merges; r++)
        if (same(vocab.merge[r], text, a.len + 1 + b.len)) return r;
    return SIZE_MAX;
}

static size_t naive_bpe(const char *text, size_t len, uint32_t *ids) {
    size_t n = len;
    for (size_t i = 0; i < len; i++) ids[i] = (unsigned char)text[i];
    for (;;) {
        size_t best = SIZE_MAX, at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            size_t r = naive_rank(vocab.token[ids[i]], vocab.token[ids[i + 1]]);
            if (r < best) best = r, at = i;
        }
        if (best == SIZE_MAX) return n;
        ids[at] = 256 + (uint32_t)best;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

static void test_bpe_merges(void **state) {
    (void)state;
    struct token_list out = {0};
    for (uint64_t seed = 0; seed < 60; seed++) {
        tiny_bpe(&vocab, seed, 60);
        struct tokenizer *t = build(TOKENIZER_BPE, "gpt-2");
        const struct pretokenizer *pre = pretokenizer_find("gpt-2", 5);
        for (uint32_t k = 0; k < 12; k++) {
            uint32_t at = k * 1000, want[400];
            char text[200];
            size_t len = 1 + draw(seed, &at, k < 6 ? 60 : sizeof text - 1), n_want = 0;
            uint64_t kinds = 2 + draw(seed, &at, 5);
            for (size_t i = 0; i < len; i++) text[i] = "abcd .é"[draw(seed, &at, kinds)];
            struct pretoken_walk w;
            size_t start, end;
            pretoken_walk_init(&w, pre, NULL, text, len);
            while (pretoken_walk_next(&w, &start, &end))
                n_want += naive_bpe(text + start, end - start, want + n_want);
            encode(t, text, len, 0, &out);
            if (out.n != n_want || memcmp(out.ids, want, n_want * sizeof *want) != 0)
                fail_msg("seed %llu, text %u: \"%.*s\"", (unsigned long long)seed, k, (int)len,
                         text);
        }
        tokenizer_free(t);
    }
    token_list_free(&out);
}

/* A byte without a token is left out and its neighbours merge, in short pieces and long ones. */
static void test_missing_bytes(void **state) {
    (void)state;
    tiny_bpe(&vocab, 7, 0);
    tiny_merge(&vocab, vocab.token['a'], vocab.token['b']);
    vocab.token['x'] = tiny_text(&vocab, "gone", 4);
    struct tokenizer *t = build(TOKENIZER_BPE, "gpt-2");
    EXPECT(t, "axb", 0, 256);
    char text[300];
    memset(text, 'x', sizeof text);
    struct token_list out = {0};
    encode(t, text, sizeof text, 0, &out);
    assert_int_equal(out.n, 0);
    text[0] = 'a';
    text[299] = 'b';
    encode(t, text, sizeof text, 0, &out);
    assert_int_equal(out.n, 1);
    assert_int_equal(out.ids[0], 256);
    token_list_free(&out);
    tokenizer_free(t);
}

static void test_whole_word_first(void **state) {
    (void)state;
    tiny_bpe(&vocab, 7, 0);
    tiny_merge(&vocab, vocab.token['a'], vocab.token['b']);
    uint32_t word = tiny_add(&vocab, "abc", 3, TOKEN_NORMAL, 0); /* no merge leads to it */
    struct tokenizer *plain = build(TOKENIZER_BPE, "gpt-2");
    struct tokenizer *whole = build(TOKENIZER_BPE, "llama-bpe");
    EXPECT(plain, "abc", 0, 256, 'c');
    EXPECT(whole, "abc", 0, word);
    EXPECT(whole, "abcd", 0, 256, 'c', 'd');
    tokenizer_free(plain);
    tokenizer_free(whole);
}

/* --- SentencePiece --- */

static uint32_t naive_find(const char *text, size_t len) {
    for (uint32_t i = 0; i < vocab.n; i++)
        if (vocab.type[i] == TOKEN_NORMAL && same(vocab.token[i], text, len)) return i;
    return TOKEN_NONE;
}

/* `text` is as SentencePiece sees it, with U+2581 for every space. */
static size_t naive_spm(const char *text, size_t len, uint32_t *ids) {
    static size_t start[2048];
    size_t n = 0, n_ids = 0;
    for (size_t pos = 0; pos < len;) {
        uint32_t cp;
        start[n++] = pos;
        pos += utf8_decode(text + pos, len - pos, &cp);
    }
    start[n] = len;
    for (;;) {
        size_t at = SIZE_MAX;
        float best = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            uint32_t id = naive_find(text + start[i], start[i + 2] - start[i]);
            if (id == TOKEN_NONE || (at != SIZE_MAX && vocab.score[id] <= best)) continue;
            best = vocab.score[id];
            at = i;
        }
        if (at == SIZE_MAX) break;
        memmove(start + at + 1, start + at + 2, (n - at - 1) * sizeof *start);
        n--;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t id = naive_find(text + start[i], start[i + 1] - start[i]);
        if (id != TOKEN_NONE) {
            ids[n_ids++] = id;
        } else {
            for (size_t k = start[i]; k < start[i + 1]; k++)
                ids[n_ids++] = 3 + (unsigned char)text[k];
        }
    }
    return n_ids;
}

static void test_spm_merges(void **state) {
    (void)state;
    static const char *const item[] = {"a", "b", "c", "d", "e", "é", "中", " ", " ", "x", "😀"};
    struct token_list out = {0};
    for (uint64_t seed = 0; seed < 80; seed++) {
        tiny_spm(&vocab, seed, 150, seed % 2);
        struct tokenizer *t = build(TOKENIZER_SPM, "");
        for (uint32_t k = 0; k < 12; k++) {
            uint32_t at = k * 1000, want[1024];
            char text[600], spaced[1200];
            size_t len = 0, n_spaced = 3, items = 1 + draw(seed, &at, 120);
            uint64_t kinds = 2 + draw(seed, &at, 10);
            memcpy(spaced, "▁", 3);
            for (size_t i = 0; i < items; i++) {
                const char *s = item[draw(seed, &at, kinds)];
                memcpy(text + len, s, strlen(s));
                len += strlen(s);
                if (*s == ' ') s = "▁";
                memcpy(spaced + n_spaced, s, strlen(s));
                n_spaced += strlen(s);
            }
            size_t n_want = naive_spm(spaced, n_spaced, want);
            encode(t, text, len, 0, &out);
            if (out.n != n_want || memcmp(out.ids, want, n_want * sizeof *want) != 0)
                fail_msg("seed %llu, text %u: \"%.*s\"", (unsigned long long)seed, k, (int)len,
                         text);
        }
        tokenizer_free(t);
    }
    token_list_free(&out);
}

static void test_spm_rules(void **state) {
    (void)state;
    tiny_spm(&vocab, 1, 0, false);
    uint32_t a = naive_find("a", 1), space = naive_find("▁", 3);
    uint32_t user = tiny_special(&vocab, "[x]", TOKEN_USER_DEFINED, 0);
    struct tokenizer *t = build(TOKENIZER_SPM, "");
    EXPECT(t, "a", 0, space, a);
    EXPECT(t, "a", TOKENIZE_BOS, 1, space, a);
    EXPECT(t, "a", TOKENIZE_BOS | TOKENIZE_EOS, 1, space, a);
    EXPECT(t, " a", 0, space, space, a);
    EXPECT(t, "▁a", 0, space, space, a);
    EXPECT(t, "a[x]a", 0, space, a, user, space, a);
    EXPECT(t, "\xFF", 0, space, 3 + 0xFF);
    EXPECT(t, "<s>", 0, space, 3 + '<', 3 + 's', 3 + '>');
    EXPECT(t, "<s>a", TOKENIZE_SPECIAL, 1, space, a);
    EXPECT(t, "<0x41>", TOKENIZE_SPECIAL, space, 3 + '<', 3 + '0', 3 + 'x', 3 + '4', 3 + '1',
           3 + '>');
    struct token_list out = {0};
    encode(t, "", 0, 0, &out);
    assert_int_equal(out.n, 0);
    token_list_free(&out);
    tokenizer_free(t);

    struct tokenizer_spec spec = tiny_spec(&vocab, TOKENIZER_SPM, "");
    spec.add_space_prefix = 0;
    spec.add_bos = 0;
    spec.add_eos = 1;
    spec.eos = 2;
    assert_int_equal(tokenizer_build(&spec, &t, NULL), STATUS_OK);
    EXPECT(t, "a", TOKENIZE_BOS | TOKENIZE_EOS, a, 2);
    tokenizer_free(t);
}

/* --- special tokens --- */

static void test_special_tokens(void **state) {
    (void)state;
    tiny_bpe(&vocab, 3, 0);
    uint32_t end = tiny_special(&vocab, "<|im_end|>", TOKEN_CONTROL, 0);
    uint32_t one = tiny_special(&vocab, "<a>", TOKEN_USER_DEFINED, 0);
    uint32_t two = tiny_special(&vocab, "<a><a>", TOKEN_USER_DEFINED, 0);
    uint32_t both =
        tiny_special(&vocab, "[m]", TOKEN_CONTROL, TOKEN_STRIP_LEFT | TOKEN_STRIP_RIGHT);
    uint32_t left = tiny_special(&vocab, "[l]", TOKEN_USER_DEFINED, TOKEN_STRIP_LEFT);
    uint32_t longer = tiny_special(&vocab, "<a>!", TOKEN_CONTROL, 0);
    struct tokenizer *t = build(TOKENIZER_BPE, "gpt-2");
    EXPECT(t, "<|im_end|>", TOKENIZE_SPECIAL, end);
    EXPECT(t, "<|im_end|>", 0, '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>');
    EXPECT(t, "x<|im_end", TOKENIZE_SPECIAL, 'x', '<', '|', 'i', 'm', '_', 'e', 'n', 'd');
    EXPECT(t, "<a>", 0, one);
    EXPECT(t, "<a><a><a>", 0, two, one);
    EXPECT(t, "<<a>", 0, '<', one);
    EXPECT(t, "<a>!", 0, one, '!');
    EXPECT(t, "<a>!", TOKENIZE_SPECIAL, longer);
    EXPECT(t, "x \t[m] \n y", TOKENIZE_SPECIAL, 'x', both, 'y');
    EXPECT(t, " [m]\xE3\x80\x80", TOKENIZE_SPECIAL, both);
    EXPECT(t, "[m] [m]", TOKENIZE_SPECIAL, both, both);
    EXPECT(t, " [m]", 0, ' ', '[', 'm', ']');
    EXPECT(t, "x\xC2\xA0[l] y", 0, 'x', left, ' ', 'y');
    EXPECT(t, "\x80[l]", 0, 0x80, left);
    assert_true(tokenizer_is_eog(t, end));
    assert_true(tokenizer_is_control(t, end));
    assert_false(tokenizer_is_control(t, one));
    assert_false(tokenizer_is_eog(t, one));
    assert_false(tokenizer_is_eog(t, UINT32_MAX));
    assert_false(tokenizer_is_control(t, tokenizer_n_vocab(t)));
    assert_int_equal(tokenizer_eot(t), end);
    assert_int_equal(tokenizer_find(t, "<a>", 3), one);
    assert_int_equal(tokenizer_find(t, "x", 1), 'x');
    assert_int_equal(tokenizer_find(t, "nope", 4), TOKEN_NONE);
    char buf[4] = "....";
    assert_int_equal(tokenizer_piece(t, end, false, buf, sizeof buf), 0);
    assert_int_equal(tokenizer_piece(t, end, true, buf, sizeof buf), 10);
    assert_memory_equal(buf, "<|im", 4);
    assert_int_equal(tokenizer_piece(t, 99999, true, buf, sizeof buf), 0);
    assert_true(tokenizer_memory_bytes(t) > 4096);
    tokenizer_free(t);
}

/* No text without TOKENIZE_SPECIAL leads to a control token, whatever merges there are. */
static void test_no_way_to_a_control_token(void **state) {
    (void)state;
    tiny_spm(&vocab, 1, 0, false);
    for (const char *const *s = (const char *const[]){"<", "s", ">", "s>", "/", "</", NULL}; *s;
         s++)
        tiny_add(&vocab, *s, strlen(*s), TOKEN_NORMAL, -1);
    struct tokenizer *t = build(TOKENIZER_SPM, "");
    struct token_list out = {0};
    encode(t, "<s></s><unk>", 12, 0, &out);
    for (size_t i = 0; i < out.n; i++) assert_false(tokenizer_is_control(t, out.ids[i]));
    token_list_free(&out);
    tokenizer_free(t);
}

/* --- WordPiece --- */

static void test_wordpiece(void **state) {
    (void)state;
    memset(&vocab, 0, sizeof vocab);
    static const char *const token[] = {"[UNK]",  "[CLS]", "[SEP]", "un", "##aff",
                                        "##able", "the",   "##x",   ",",  "中",
                                        "cafe",   "a",     "'",     "##s"};
    for (size_t i = 0; i < sizeof token / sizeof token[0]; i++)
        tiny_special(&vocab, token[i], i < 3 ? TOKEN_CONTROL : TOKEN_NORMAL, 0);
    struct tokenizer_spec spec = tiny_spec(&vocab, TOKENIZER_WORDPIECE, "");
    spec.unk = 0, spec.bos = 1, spec.sep = 2;
    struct tokenizer *t;
    assert_int_equal(tokenizer_build(&spec, &t, NULL), STATUS_OK);
    EXPECT(t, "unaffable", 0, 3, 4, 5);
    EXPECT(t, "Unaffable THE", TOKENIZE_BOS | TOKENIZE_EOS, 1, 3, 4, 5, 6, 2);
    EXPECT(t, "unaffableq the", 0, 0, 6);
    EXPECT(t, "the,thex a's", 0, 6, 8, 6, 7, 11, 12, 0);
    EXPECT(t, "the中中the", 0, 6, 9, 9, 6);
    EXPECT(t, "Café CAFE\xCC\x81", 0, 10, 10);
    EXPECT(t,
           "th\xFF"
           "e t\xE2\x80\x8Bhe\x01",
           0, 6, 6);
    EXPECT(t,
           "un\x0C"
           "aff\rthe\xE2\x80\xA8"
           "a",
           0, 3, 4, 6, 11);
    EXPECT(t, "[UNK] a", TOKENIZE_SPECIAL, 0, 11);
    /* 100 characters are a word, 101 are unknown */
    char text[128] = "the";
    memset(text + 3, 'x', 98);
    struct token_list out = {0};
    encode(t, text, 100, 0, &out);
    assert_int_equal(out.n, 98);
    encode(t, text, 101, 0, &out);
    assert_int_equal(out.n, 1);
    assert_int_equal(out.ids[0], 0);
    tokenizer_free(t);

    /* the form GGUF files use: U+2581 starts a word, continuations stand plainly */
    memset(&vocab, 0, sizeof vocab);
    static const char *const gguf[] = {"[UNK]", "[CLS]", "[SEP]", "▁un", "aff", "able", "▁The"};
    for (size_t i = 0; i < sizeof gguf / sizeof gguf[0]; i++)
        tiny_special(&vocab, gguf[i], i < 3 ? TOKEN_CONTROL : TOKEN_NORMAL, 0);
    spec = tiny_spec(&vocab, TOKENIZER_WORDPIECE, "");
    spec.unk = 0;
    assert_int_equal(tokenizer_build(&spec, &t, NULL), STATUS_OK);
    EXPECT(t, "unaffable The the", 0, 3, 4, 5, 6, 0); /* cased: a capital is in the vocabulary */
    tokenizer_free(t);
    token_list_free(&out);
}

/* --- long texts --- */

/* Of this thread alone, so that a busy machine does not look like a slow tokenizer. */
static uint64_t cpu_ns(void) {
    struct timespec ts;
    assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts), 0);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static uint64_t time_encode(const struct tokenizer *t, const char *unit, size_t bytes) {
    char *text = malloc(bytes + 8);
    assert_non_null(text);
    size_t len = 0, n = strlen(unit);
    for (; len < bytes; len += n) memcpy(text + len, unit, n);
    struct token_list out = {0};
    uint64_t t0 = cpu_ns();
    encode(t, text, len, 0, &out);
    uint64_t took = cpu_ns() - t0;
    assert_true(out.n > 0);
    token_list_free(&out);
    free(text);
    return took;
}

static void test_long_texts(void **state) {
    (void)state;
    static const char *const unit[] = {"a", "abcd", "dcba", "😀", " ", "é", "\n", "a ", "\xFF"};
    for (int kind = 0; kind < 3; kind++) {
        if (kind == 0) tiny_bpe(&vocab, 5, 200);
        if (kind == 1) tiny_spm(&vocab, 5, 300, true);
        if (kind == 2) {
            memset(&vocab, 0, sizeof vocab);
            static const char *const token[] = {"a", "##a", "##b", "b", "[UNK]"};
            for (size_t i = 0; i < 5; i++) tiny_special(&vocab, token[i], TOKEN_NORMAL, 0);
        }
        struct tokenizer_spec spec = tiny_spec(
            &vocab,
            (enum tokenizer_kind[]){TOKENIZER_BPE, TOKENIZER_SPM, TOKENIZER_WORDPIECE}[kind],
            kind == 0 ? "gpt-2" : "");
        spec.unk = kind == 2 ? 4 : 0;
        struct tokenizer *t;
        assert_int_equal(tokenizer_build(&spec, &t, NULL), STATUS_OK);
        for (size_t u = 0; u < sizeof unit / sizeof unit[0]; u++) {
            if (kind == 2 && (u == 4 || u == 6 || u == 8)) continue; /* no words in these */
            uint64_t small = time_encode(t, unit[u], 1 << 15);
            uint64_t large = time_encode(t, unit[u], 1 << 19);
            /* 16 is linear, 256 quadratic */
            if (large > 60 * small + 100000000)
                fail_msg("kind %d, \"%s\": %llu ns for 32 KiB, %llu ns for 512 KiB", kind, unit[u],
                         (unsigned long long)small, (unsigned long long)large);
        }
        tokenizer_free(t);
    }
}

/* --- pauses --- */

struct paused {
    const struct tokenizer *t;
    const char *text;
    size_t len;
    struct token_list out;
    enum status st;
};

static void encode_in_chore(struct chore *c, void *arg) {
    struct paused *p = arg;
    p->st = tokenizer_encode(p->t, c, p->text, p->len, 0, &p->out, NULL);
}

static void test_pauses(void **state) {
    (void)state;
    const size_t len = 1 << 17;
    char *text = malloc(len);
    void *mem = aligned_alloc(64, (chore_footprint() + 63) / 64 * 64);
    assert_non_null(text);
    assert_non_null(mem);
    memset(text, 'a', len);
    for (int kind = 0; kind < 2; kind++) {
        if (kind == 0)
            tiny_bpe(&vocab, 9, 100);
        else
            tiny_spm(&vocab, 9, 100, true);
        struct tokenizer *t = build(kind == 0 ? TOKENIZER_BPE : TOKENIZER_SPM, "gpt-2");
        struct token_list whole = {0};
        encode(t, text, len, 0, &whole);
        struct paused p = {.t = t, .text = text, .len = len};
        struct chore *c = chore_init(mem, encode_in_chore, &p);
        size_t slices = 1;
        while (!chore_run(c, 1)) slices++;
        assert_int_equal(p.st, STATUS_OK);
        assert_true(slices > 2 * len / 4096); /* of every pass over the text */
        assert_int_equal(p.out.n, whole.n);
        assert_memory_equal(p.out.ids, whole.ids, whole.n * sizeof *whole.ids);

        c = chore_init(mem, encode_in_chore, &p);
        size_t before = p.out.n;
        for (size_t i = 0; i < 3; i++) assert_false(chore_run(c, 1));
        chore_cancel(c);
        assert_true(chore_run(c, 1));
        assert_int_equal(p.st, STATUS_GONE);
        assert_int_equal(p.out.n, before);
        /* wherever it is cancelled */
        for (size_t stop = 1; stop < slices; stop += 1 + slices / 40) {
            c = chore_init(mem, encode_in_chore, &p);
            for (size_t i = 0; i < stop; i++) assert_false(chore_run(c, 1));
            chore_cancel(c);
            assert_true(chore_run(c, 1));
            assert_int_equal(p.st, STATUS_GONE);
            assert_int_equal(p.out.n, before);
        }
        token_list_free(&p.out);
        token_list_free(&whole);
        tokenizer_free(t);
    }
    free(text);
    free(mem);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bpe_merges),
        cmocka_unit_test(test_missing_bytes),
        cmocka_unit_test(test_whole_word_first),
        cmocka_unit_test(test_spm_merges),
        cmocka_unit_test(test_spm_rules),
        cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_no_way_to_a_control_token),
        cmocka_unit_test(test_wordpiece),
        cmocka_unit_test(test_long_texts),
        cmocka_unit_test(test_pauses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
