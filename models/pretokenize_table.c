/* The rows: each split is written beside the published expression it behaves as. */
#include <string.h>

#include "models/pretokenize_split.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* Sets that the expressions spell out as ranges of code points. */
static const uint32_t range_newline[][2] = {{'\n', '\n'}, {'\r', '\r'}};
static const uint32_t range_line_feed[][2] = {{'\n', '\n'}};
static const uint32_t range_ascii_digit[][2] = {{'0', '9'}};
static const uint32_t range_ascii_mark[][2] = {{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}};
static const uint32_t range_metaspace[][2] = {{0x2581, 0x2581}};
/* $ + < = > ^ | ~ and, for falcon, the backtick: symbols that count as punctuation */
static const uint32_t range_falcon[][2] = {{'$', '$'}, {'+', '+'}, {'<', '>'}, {'^', '^'},
                                           {'`', '`'}, {'|', '|'}, {'~', '~'}};
static const uint32_t range_default[][2] = {{'$', '$'}, {'+', '+'}, {'<', '>'},
                                            {'^', '^'}, {'|', '|'}, {'~', '~'}};
/* ( ) | . , ! ? and their Arabic, Devanagari and CJK relatives */
static const uint32_t range_bloom[][2] = {
    {'!', '!'},     {'(', ')'},       {',', ','},       {'.', '.'},
    {'?', '?'},     {'|', '|'},       {0x60C, 0x60C},   {0x6D4, 0x6D4},
    {0x964, 0x964}, {0x2026, 0x2026}, {0x3001, 0x3002}, {0xFF0C, 0xFF0C},
};
static const uint32_t range_deepseek_cjk[][2] = {{0x800, 0x9FA5}, {0xAC00, 0xD7FF}};
static const uint32_t range_deepseek3_cjk[][2] = {{0x3040, 0x30FF}, {0x4E00, 0x9FA5}};
static const uint32_t range_deepseek_mark[][2] = {
    {'!', '/'}, {':', '~'}, {0x2018, 0x201F}, {0x3000, 0x3002}, {0xFF01, 0xFF0F}, {0xFF1A, 0xFF5E}};
static const uint32_t range_deepseek_letter[][2] = {
    {0x41, 0x5A},       {0x61, 0x7A},       {0xB5, 0xB5},       {0xC0, 0xD6},
    {0xD8, 0xF6},       {0xF8, 0x1BA},      {0x1BC, 0x1BF},     {0x1C4, 0x293},
    {0x295, 0x2AF},     {0x370, 0x373},     {0x376, 0x377},     {0x37B, 0x37D},
    {0x37F, 0x37F},     {0x386, 0x386},     {0x388, 0x38A},     {0x38C, 0x38C},
    {0x38E, 0x3A1},     {0x3A3, 0x3F5},     {0x3F7, 0x481},     {0x48A, 0x52F},
    {0x531, 0x556},     {0x10A0, 0x10C5},   {0x13A0, 0x13F5},   {0x13F8, 0x13FD},
    {0x1C90, 0x1CBA},   {0x1CBD, 0x1CBF},   {0x1D00, 0x1D2B},   {0x1D6B, 0x1D77},
    {0x1D79, 0x1D9A},   {0x1E00, 0x1F15},   {0x1F18, 0x1F1D},   {0x1F20, 0x1F45},
    {0x1F48, 0x1F4D},   {0x1F50, 0x1F57},   {0x1F59, 0x1F59},   {0x1F5B, 0x1F5B},
    {0x1F5D, 0x1F5D},   {0x1F5F, 0x1F7D},   {0x1F80, 0x1FB4},   {0x1FB6, 0x1FBC},
    {0x1FBE, 0x1FBE},   {0x1FC2, 0x1FC4},   {0x1FC6, 0x1FCC},   {0x1FD0, 0x1FD3},
    {0x1FD6, 0x1FDB},   {0x1FE0, 0x1FEC},   {0x1FF2, 0x1FF4},   {0x1FF6, 0x1FFC},
    {0x2102, 0x2102},   {0x2107, 0x2107},   {0x210A, 0x2113},   {0x2115, 0x2115},
    {0x2119, 0x211D},   {0x2124, 0x2124},   {0x2126, 0x2126},   {0x2128, 0x2128},
    {0x212A, 0x212D},   {0x212F, 0x2134},   {0x2139, 0x2139},   {0x213C, 0x213F},
    {0x2145, 0x2149},   {0x214E, 0x214E},   {0x2183, 0x2184},   {0x2C00, 0x2C7B},
    {0x2C7E, 0x2CE4},   {0x2CEB, 0x2CEE},   {0x2CF2, 0x2CF3},   {0xA640, 0xA66D},
    {0xA680, 0xA69B},   {0xA722, 0xA76F},   {0xA771, 0xA787},   {0xA78B, 0xA78E},
    {0xAB70, 0xABBF},   {0xFB00, 0xFB06},   {0xFB13, 0xFB17},   {0xFF21, 0xFF3A},
    {0xFF41, 0xFF5A},   {0x10400, 0x1044F}, {0x104B0, 0x104D3}, {0x104D8, 0x104FB},
    {0x10C80, 0x10CB2}, {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF}, {0x1E900, 0x1E943},
};
static const uint32_t range_hangul[][2] = {{0x3131, 0x318E}, {0xAC00, 0xD7A3}};
static const uint32_t range_cjk_mark[][2] = {{0x2014, 0x2014}, {0x2018, 0x2019}, {0x201C, 0x201D},
                                             {0x2026, 0x2026}, {0x3001, 0x303F}, {0xFE30, 0xFE4F},
                                             {0xFF01, 0xFF01}, {0xFF0C, 0xFF0C}, {0xFF1A, 0xFF1B}};
static const uint32_t range_bopomofo[][2] = {{0x3105, 0x312F}};
static const uint32_t range_afmoe_script[][2] = {
    {0xE40, 0xE7F},   {0xE80, 0xEFF},   {0x1000, 0x109F}, {0x1100, 0x11FF}, {0x1780, 0x17FF},
    {0x2F00, 0x2FDF}, {0x3040, 0x30FF}, {0x3400, 0x4DBF}, {0x4E00, 0x9FFF}, {0xA9E0, 0xA9FF},
    {0xAA60, 0xAA7F}, {0xAC00, 0xD7AF}, {0xF900, 0xFAFF}, {0xFF65, 0xFF9F}};

#define KINDS(k)                                                                                   \
    { .kinds = (k) }
#define RANGES(r)                                                                                  \
    { .range = (r), .n_ranges = COUNT(r) }
#define ALL_BUT(r)                                                                                 \
    { .exclude = true, .range = (r), .n_ranges = COUNT(r) }
#define RUN(...)                                                                                   \
    {                                                                                              \
        .kind = SPLIT_RUN, .class = {__VA_ARGS__},                                                 \
        .n_classes = sizeof((struct char_class[]){__VA_ARGS__}) / sizeof(struct char_class),       \
        .max = SIZE_MAX                                                                            \
    }
#define RUN_OF(n, c)                                                                               \
    { .kind = SPLIT_RUN, .class = {c}, .n_classes = 1, .max = (n) }
#define EXACT(n, c)                                                                                \
    { .kind = SPLIT_EXACT, .class = {c}, .n_classes = 1, .max = (n) }
#define SPACED_RUN(c)                                                                              \
    { .kind = SPLIT_SPACED_RUN, .class = {c}, .n_classes = 1 }
#define GROUPS(mode, c)                                                                            \
    { .kind = (mode), .class = {c}, .n_classes = 1 }
#define SPECIAL(k)                                                                                 \
    { .kind = (k) }
#define WORDS(w)                                                                                   \
    { .kind = SPLIT_WORDS, .words = &(w) }

#define NOT_SPACE_LETTER_NUMBER (KIND_MARK | KIND_PUNCT | KIND_SYMBOL | KIND_REST)

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static const struct words words_gpt2 = {.contraction = CONTRACTION_EXACT,
                                        .letters_kinds = KIND_LETTER,
                                        .max_digits = SIZE_MAX,
                                        .digits_space = true,
                                        .punct = NOT_SPACE_LETTER_NUMBER};
static const struct pretokenizer_split split_gpt2[] = {WORDS(words_gpt2)};
/* \p{N}, then gpt2 */
static const struct pretokenizer_split split_starcoder[] = {RUN_OF(1, KINDS(KIND_NUMBER)),
                                                            WORDS(words_gpt2)};
static const struct pretokenizer_split split_falcon[] = {
    RUN({.kinds = KIND_PUNCT, .range = range_falcon, .n_ranges = COUNT(range_falcon)}),
    WORDS(words_gpt2), EXACT(3, RANGES(range_ascii_digit))};
static const struct pretokenizer_split split_default[] = {
    RUN({.kinds = KIND_PUNCT, .range = range_default, .n_ranges = COUNT(range_default)}),
    WORDS(words_gpt2), RUN(KINDS(KIND_NUMBER)), EXACT(3, RANGES(range_ascii_digit))};
/* The last of its splits is gpt2; before it, what the names say, digits one by one, punctuation. */
static const struct pretokenizer_split split_chameleon[] = {
    SPECIAL(SPLIT_SENTINEL),
    SPECIAL(SPLIT_IMAGE_TOKEN),
    SPECIAL(SPLIT_INDENT),
    RUN_OF(1, KINDS(KIND_NUMBER)),
    {.kind = SPLIT_RUN,
     .class = {{.kinds = KIND_PUNCT,
                .range = range_ascii_mark,
                .n_ranges = COUNT(range_ascii_mark)}},
     .n_classes = 1,
     .max = 1},
    WORDS(words_gpt2)};

#define NO_LETTER_NUMBER (KIND_NEWLINE | KIND_LETTER | KIND_NUMBER)
/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|
 * \s*[\r\n]+|\s+(?!\S)|\s+ */
#define LLAMA3_WORDS                                                                               \
    .contraction = CONTRACTION_ANY_CASE, .prefix = NO_LETTER_NUMBER, .letters_kinds = KIND_LETTER, \
    .punct = NOT_SPACE_LETTER_NUMBER, .newlines = true
static const struct words words_llama3 = {LLAMA3_WORDS, .max_digits = 3,
                                          .tail = PUNCT_TAIL_NEWLINES};
static const struct pretokenizer_split split_llama3[] = {WORDS(words_llama3)};
/* \s{512}(?!\S)|\s{256}(?!\S)|…|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1} in the place of the last two */
static const struct words words_jais2 = {LLAMA3_WORDS, .max_digits = 3, .tail = PUNCT_TAIL_NEWLINES,
                                         .space_cascade = true};
static const struct pretokenizer_split split_jais2[] = {WORDS(words_jais2)};
/* \p{N} in the place of \p{N}{1,3} */
static const struct words words_qwen2 = {LLAMA3_WORDS, .max_digits = 1,
                                         .tail = PUNCT_TAIL_NEWLINES};
static const struct pretokenizer_split split_qwen2[] = {WORDS(words_qwen2)};
static const struct pretokenizer_split split_laguna[] = {
    RUN(ALL_BUT(range_line_feed), RANGES(range_line_feed)), WORDS(words_qwen2)};
/* qwen2 without the contractions */
static const struct words words_ufakzeka = {.prefix = NO_LETTER_NUMBER,
                                            .letters_kinds = KIND_LETTER,
                                            .max_digits = 1,
                                            .punct = NOT_SPACE_LETTER_NUMBER,
                                            .tail = PUNCT_TAIL_NEWLINES,
                                            .newlines = true};
static const struct pretokenizer_split split_ufakzeka[] = {WORDS(words_ufakzeka)};
/* [^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+ and  ?[^\s\p{L}\p{M}\p{N}]+[\r\n]* in qwen2 */
static const struct words words_qwen35 = {.contraction = CONTRACTION_ANY_CASE,
                                          .prefix = NO_LETTER_NUMBER,
                                          .letters_kinds = KIND_LETTER | KIND_MARK,
                                          .max_digits = 1,
                                          .punct = KIND_PUNCT | KIND_SYMBOL | KIND_REST,
                                          .tail = PUNCT_TAIL_NEWLINES,
                                          .newlines = true};
static const struct pretokenizer_split split_qwen35[] = {WORDS(words_qwen35)};
/* no newlines behind punctuation */
static const struct words words_seed_coder = {LLAMA3_WORDS, .max_digits = 1};
static const struct pretokenizer_split split_seed_coder[] = {WORDS(words_seed_coder)};
/* \p{N}{1,3}, then llama3 with \p{N}+ */
static const struct words words_minicpm5 = {LLAMA3_WORDS, .max_digits = SIZE_MAX,
                                            .tail = PUNCT_TAIL_NEWLINES};
static const struct pretokenizer_split split_minicpm5[] = {RUN_OF(3, KINDS(KIND_NUMBER)),
                                                           WORDS(words_minicpm5)};
/* [^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+ and [\r\n/]? behind punctuation in qwen2 */
static const struct words words_exaone_moe = {LLAMA3_WORDS, .letters = LETTERS_SPACED,
                                              .max_digits = 1, .tail = PUNCT_TAIL_ONE};
static const struct pretokenizer_split split_exaone_moe[] = {WORDS(words_exaone_moe)};

/* [^\r\n\p{L}\p{N}]?U*L+(?i:'s|…)?|[^\r\n\p{L}\p{N}]?U+L*(?i:'s|…)?|\p{N}{1,3}|
 *  ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * with U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}], L = [\p{Ll}\p{Lm}\p{Lo}\p{M}] */
#define CASED_WORDS                                                                                \
    .prefix = NO_LETTER_NUMBER, .letters_kinds = KIND_LETTER | KIND_MARK,                          \
    .letters = LETTERS_CASED, .punct = NOT_SPACE_LETTER_NUMBER, .newlines = true
static const struct words words_gpt4o = {CASED_WORDS, .contraction = CONTRACTION_SUFFIX,
                                         .max_digits = 3, .tail = PUNCT_TAIL_NEWLINES_SLASH};
static const struct pretokenizer_split split_gpt4o[] = {WORDS(words_gpt4o)};
/* \d{1,3}(?=(?:\d{3})*\b), then gpt-4o */
static const struct pretokenizer_split split_tiny_aya[] = {
    {.kind = SPLIT_DIGIT_GROUPS, .class = {KINDS(KIND_DIGIT)}, .n_classes = 1, .boundary = true},
    WORDS(words_gpt4o)};
/* without contractions, \p{N} */
static const struct words words_tekken = {CASED_WORDS, .max_digits = 1,
                                          .tail = PUNCT_TAIL_NEWLINES_SLASH};
static const struct pretokenizer_split split_tekken[] = {WORDS(words_tekken)};
/* four scripts apart, then gpt-4o with \p{N} */
static const struct words words_youtu = {CASED_WORDS, .contraction = CONTRACTION_SUFFIX,
                                         .max_digits = 1, .tail = PUNCT_TAIL_NEWLINES_SLASH};
static const struct pretokenizer_split split_youtu[] = {
    RUN(RANGES(range_hangul), RANGES(range_cjk_mark), RANGES(range_bopomofo),
        RANGES(range_deepseek3_cjk)),
    WORDS(words_youtu)};
/* \p{Han}+ first, no Han in U and L, [\r\n]* behind punctuation */
static const struct words words_kimi = {CASED_WORDS, .han_first = true,
                                        .contraction = CONTRACTION_SUFFIX, .max_digits = 3,
                                        .tail = PUNCT_TAIL_NEWLINES};
static const struct pretokenizer_split split_kimi[] = {WORDS(words_kimi)};

/* [\r\n] | \s?[letters of cased scripts]+ | \s?[ASCII, full-width and CJK marks]+ | \s+$ |
 * [CJK]+ | \p{N}+, each a split of its own */
static const struct pretokenizer_split split_deepseek_llm[] = {
    RUN_OF(1, RANGES(range_newline)),        SPACED_RUN(RANGES(range_deepseek_letter)),
    SPACED_RUN(RANGES(range_deepseek_mark)), SPECIAL(SPLIT_TRAILING_SPACE),
    RUN(RANGES(range_deepseek_cjk)),         RUN(KINDS(KIND_NUMBER))};
/* [\r\n] | \s?\p{L}+ | \s?\p{P}+ | [CJK]+ | \p{N} */
static const struct pretokenizer_split split_deepseek_coder[] = {
    RUN_OF(1, RANGES(range_newline)), SPACED_RUN(KINDS(KIND_LETTER)), SPACED_RUN(KINDS(KIND_PUNCT)),
    RUN(RANGES(range_deepseek_cjk)), RUN_OF(1, KINDS(KIND_NUMBER))};
/* [!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|
 * \s*[\r\n]+|\s+(?!\S)|\s+ */
#define DEEPSEEK3_WORDS                                                                            \
    .ascii_punct_word = true, .prefix = KIND_NEWLINE | KIND_LETTER | KIND_PUNCT | KIND_SYMBOL,     \
    .letters_kinds = KIND_LETTER | KIND_MARK, .punct = KIND_PUNCT | KIND_SYMBOL
static const struct words words_deepseek3 = {DEEPSEEK3_WORDS, .tail = PUNCT_TAIL_NEWLINES,
                                             .newlines = true};
static const struct pretokenizer_split split_deepseek3[] = {
    RUN_OF(3, KINDS(KIND_NUMBER)), RUN(RANGES(range_deepseek3_cjk)), WORDS(words_deepseek3)};
/* single newlines, no tail, at last \p{N} */
static const struct words words_spark = {DEEPSEEK3_WORDS, .single_newline = true};
static const struct pretokenizer_split split_spark[] = {
    RUN_OF(3, KINDS(KIND_NUMBER)), RUN(RANGES(range_deepseek3_cjk)), WORDS(words_spark),
    RUN_OF(1, KINDS(KIND_NUMBER))};
/* numbers in threes from the right, eight scripts apart, then deepseek-v3's words */
static const struct pretokenizer_split split_afmoe[] = {
    GROUPS(SPLIT_DIGIT_GROUPS, KINDS(KIND_NUMBER)), RUN(RANGES(range_afmoe_script)),
    WORDS(words_deepseek3)};
/* \p{N}+ | (?=(\d{3})+(?!\d)) */
static const struct pretokenizer_split split_superbpe[] = {
    RUN(KINDS(KIND_NUMBER)), GROUPS(SPLIT_BEFORE_DIGIT_GROUPS, KINDS(KIND_DIGIT))};

/*  ?[^(\s|.,!?…。，、।۔،)]+ */
#define BLOOM_SPLIT                                                                                \
    {                                                                                              \
        .kind = SPLIT_SPACED_RUN, .plain_space = true, .n_classes = 1, .class = {                  \
            {.exclude = true,                                                                      \
             .kinds = KIND_SPACE,                                                                  \
             .range = range_bloom,                                                                 \
             .n_ranges = COUNT(range_bloom)}                                                       \
        }                                                                                          \
    }
static const struct pretokenizer_split split_bloom[] = {BLOOM_SPLIT};
static const struct pretokenizer_split split_viking[] = {BLOOM_SPLIT,
                                                         RUN_OF(1, KINDS(KIND_NUMBER))};

/* [^\n]+|\n+ */
static const struct pretokenizer_split split_lines[] = {
    RUN(ALL_BUT(range_line_feed), RANGES(range_line_feed))};
static const struct pretokenizer_split split_mmbert[] = {
    RUN(ALL_BUT(range_line_feed), RANGES(range_line_feed)),
    GROUPS(SPLIT_BEFORE, RANGES(range_metaspace))};
/* \S+ */
static const struct pretokenizer_split split_whitespace[] = {
    RUN({.exclude = true, .kinds = KIND_SPACE})};

#define ROW(n, s, ...)                                                                             \
    { .name = (n), .split = (s), .n_splits = COUNT(s) __VA_OPT__(, ) __VA_ARGS__ }
#define WHOLE .whole_word_first = true
#define BOS   .add_bos = true

static const struct pretokenizer table[] = {
    ROW("default", split_default),
    ROW("llama3", split_llama3, WHOLE, BOS),
    ROW("llama-v3", split_llama3, WHOLE, BOS),
    ROW("llama-bpe", split_llama3, WHOLE, BOS),
    ROW("falcon3", split_llama3, WHOLE, BOS),
    ROW("falcon-h1", split_llama3, WHOLE, BOS),
    ROW("pixtral", split_llama3, WHOLE, BOS),
    ROW("midm-2.0", split_llama3, WHOLE, BOS),
    ROW("lfm2", split_llama3, WHOLE, BOS),
    ROW("jina-v5-nano", split_llama3, WHOLE, BOS),
    ROW("dbrx", split_llama3),
    ROW("smaug-bpe", split_llama3),
    ROW("chatglm-bpe", split_llama3),
    ROW("glm4", split_llama3, WHOLE),
    ROW("glm5", split_llama3, WHOLE),
    ROW("jais-2", split_jais2),
    ROW("minicpm5", split_minicpm5, WHOLE),
    ROW("deepseek-llm", split_deepseek_llm),
    ROW("deepseek-coder", split_deepseek_coder),
    ROW("deepseek-v3", split_deepseek3),
    ROW("hunyuan-dense", split_deepseek3),
    ROW("hy_v4", split_deepseek3),
    ROW("joyai-llm", split_deepseek3),
    ROW("spark2_5", split_spark),
    ROW("afmoe", split_afmoe),
    ROW("youtu", split_youtu, WHOLE),
    ROW("falcon", split_falcon),
    ROW("starcoder", split_starcoder),
    ROW("refact", split_starcoder),
    ROW("command-r", split_starcoder),
    ROW("smollm", split_starcoder),
    ROW("codeshell", split_starcoder),
    ROW("exaone", split_starcoder),
    ROW("minerva-7b", split_starcoder),
    ROW("mellum2", split_starcoder),
    ROW("gpt-2", split_gpt2),
    ROW("phi-2", split_gpt2),
    ROW("jina-es", split_gpt2),
    ROW("jina-de", split_gpt2),
    ROW("jina-v1-en", split_gpt2),
    ROW("jina-v2-es", split_gpt2),
    ROW("jina-v2-de", split_gpt2),
    ROW("jina-v2-code", split_gpt2),
    ROW("roberta-bpe", split_gpt2),
    ROW("gigachat", split_gpt2),
    ROW("a.x-4.0", split_gpt2),
    ROW("mellum", split_gpt2),
    ROW("modern-bert", split_gpt2),
    ROW("mpt", split_gpt2),
    ROW("olmo", split_gpt2),
    ROW("jais", split_gpt2),
    ROW("trillion", split_gpt2),
    ROW("granite-docling", split_gpt2),
    ROW("exaone4", split_gpt2),
    ROW("exaone-moe", split_exaone_moe),
    ROW("qwen2", split_qwen2),
    ROW("deepseek-r1-qwen", split_qwen2),
    ROW("kormo", split_qwen2),
    ROW("f2llmv2", split_qwen2),
    ROW("megrez", split_qwen2),
    ROW("stablelm2", split_qwen2),
    ROW("hunyuan", split_qwen2),
    ROW("solar-open", split_qwen2),
    ROW("grok-2", split_qwen2),
    ROW("bailingmoe", split_qwen2),
    ROW("bailingmoe2", split_qwen2),
    ROW("llada-moe", split_qwen2),
    ROW("qwen35", split_qwen35),
    ROW("ufakzeka", split_ufakzeka),
    ROW("seed-coder", split_seed_coder),
    ROW("laguna", split_laguna),
    ROW("poro-chat", split_bloom),
    ROW("bloom", split_bloom),
    ROW("gpt3-finnish", split_bloom),
    ROW("viking", split_viking),
    ROW("tekken", split_tekken, WHOLE, BOS),
    ROW("chameleon", split_chameleon, BOS),
    ROW("gpt-4o", split_gpt4o),
    ROW("llama4", split_gpt4o),
    ROW("kanana2", split_gpt4o),
    ROW("talkie", split_gpt4o),
    ROW("minimax-m2", split_gpt4o),
    ROW("granite-embed-multi-97m", split_gpt4o, WHOLE),
    ROW("tiny_aya", split_tiny_aya),
    ROW("cohere2moe", split_tiny_aya),
    ROW("kimi-k2", split_kimi),
    ROW("superbpe", split_superbpe),
    ROW("gemma4", split_lines, .metaspace = true, BOS),
    ROW("granite-embed-multi-311m", split_lines, .metaspace = true),
    ROW("sarvam-moe", split_lines, .metaspace = true),
    ROW("mmbert", split_mmbert, .metaspace = true, .word_prefix = true),
    ROW("whitespace", split_whitespace, .drop_space = true),
};

const struct pretokenizer *pretokenizer_find(const char *name, size_t len) {
    for (size_t i = 0; i < COUNT(table); i++) {
        if (strlen(table[i].name) == len && memcmp(table[i].name, name, len) == 0) return &table[i];
    }
    return NULL;
}

const struct pretokenizer *pretokenizer_row(size_t i) {
    return i < COUNT(table) ? &table[i] : NULL;
}
