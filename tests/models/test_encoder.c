/* encoder.c: a tiny model of random weights against a float64 reference; the instruction sets
 * against each other; slices against a whole run; and folders that lie. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "models/encoder.h"
#include "models/encoder_kernels.h"
#include "tests/models/tiny_encoder.h"

/* n words; upper case and accents where the tokenizer must take them away. Returns its length. */
static size_t make_text(uint64_t seed, uint32_t n, char *text, uint32_t *ids) {
    size_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t r = rng_draw(seed, 1, i, RNG_SEED, 0);
        const uint32_t word = (uint32_t)(r % (TINY_VOCAB - TINY_WORD));
        ids[i] = TINY_WORD + word;
        if (i > 0) text[at++] = ' ';
        text[at++] = (char)((r >> 40 & 1 ? 'a' : 'A') + (int)word);
        if (r >> 41 & 1) at += (size_t)sprintf(text + at, "\xCC\x81"); /* combining acute */
    }
    return at;
}

static struct encoder *open_or_fail(const struct tiny_encoder *m) {
    struct encoder *enc;
    struct error e = {0};
    if (encoder_open(m->dir, &enc, &e) != STATUS_OK) fail_msg("%s: %s", e.field, e.message);
    return enc;
}

static void compare(const struct tiny_encoder *m, const struct encoder *enc, uint64_t seed,
                    bool first_token, bool normalise) {
    for (uint32_t n = 0; n < 60; n = n < 6 ? n + 1 : n + 7) {
        char text[512];
        uint32_t words[64], ids[64] = {TINY_CLS}, n_tokens;
        float got[TINY_D];
        double want[TINY_D], length = 0;
        struct error e = {0};
        const size_t len = make_text(seed + n, n, text, words);
        const uint32_t kept = n < TINY_MOST - 2 ? n : TINY_MOST - 2;
        memcpy(ids + 1, words, kept * sizeof *ids);
        ids[1 + kept] = TINY_SEP;
        ref_encode(m, ids, kept + 2, first_token, normalise, want);
        assert_int_equal(encoder_encode(enc, NULL, text, len, got, &n_tokens, &e), STATUS_OK);
        assert_int_equal(n_tokens, kept + 2);
        for (int i = 0; i < TINY_D; i++) length += want[i] * want[i];
        for (int i = 0; i < TINY_D; i++)
            if (!(fabs((double)got[i] - want[i]) < 2e-6 * sqrt(length)))
                fail_msg("seed %llu, %u words, [%d]: %.9g, not %.9g", (unsigned long long)seed, n,
                         i, (double)got[i], want[i]);
    }
}

static void test_reference(void **state) {
    (void)state;
    static const char *const types[] = {"F32", "F16", "BF16", "F32"};
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct tiny_encoder m;
        tiny_make(&m, seed);
        tiny_folder(&m);
        tiny_weights(&m, types[seed], seed == 3 ? "bert." : "");
        struct encoder *enc = open_or_fail(&m);
        assert_int_equal(encoder_dim(enc), TINY_D);
        assert_int_equal(encoder_max_tokens(enc), TINY_MOST);
        assert_true(encoder_memory_bytes(enc) > 100000);
        assert_string_equal(encoder_name(enc), strrchr(m.dir, '/') + 1);
        compare(&m, enc, 100 * seed, false, true);
        encoder_close(enc);
        tiny_free(&m);
    }
}

static void test_pooling(void **state) {
    (void)state;
    struct tiny_encoder m;
    tiny_make(&m, 9);
    tiny_folder(&m);
    tiny_weights(&m, "F32", "");
    tiny_text(&m, "1_Pooling/config.json",
              "{\"pooling_mode_cls_token\":true,\"pooling_mode_mean_tokens\":false}");
    struct encoder *enc = open_or_fail(&m);
    compare(&m, enc, 5, true, true);
    encoder_close(enc);
    tiny_text(&m, "modules.json",
              "[{\"path\":\"\",\"type\":\"sentence_transformers.models.Transformer\"},"
              "{\"path\":\"1_Pooling\",\"type\":\"sentence_transformers.models.Pooling\"}]");
    tiny_text(&m, "1_Pooling/config.json", TINY_POOLING);
    enc = open_or_fail(&m);
    compare(&m, enc, 6, false, false);
    encoder_close(enc);
    tiny_free(&m);
}

static void test_special_tokens_are_text(void **state) {
    (void)state;
    struct tiny_encoder m;
    tiny_make(&m, 3);
    tiny_folder(&m);
    tiny_weights(&m, "F32", "");
    struct encoder *enc = open_or_fail(&m);
    float out[TINY_D];
    uint32_t n;
    struct error e = {0};
    /* [ sep ] are three words that the vocabulary does not have, not one token. */
    assert_int_equal(encoder_encode(enc, NULL, "[SEP]", 5, out, &n, &e), STATUS_OK);
    assert_int_equal(n, 5);
    assert_int_equal(encoder_encode(enc, NULL, "\xff\xfe", 2, out, &n, &e), STATUS_OK);
    assert_int_equal(n, 2);
    encoder_close(enc);
    tiny_free(&m);
}

/* ---- instruction sets ---- */

static void fill(float *x, uint32_t n, uint32_t stream, float spread) {
    for (uint32_t i = 0; i < n; i++) x[i] = spread * tiny_uniform(77, stream, i);
}

static void compare_kernels(const struct encoder_kernels *f, uint32_t stream) {
    const struct encoder_kernels *o = &encoder_kernels_scalar;
    enum { ROWS = 29, K = 83, WIDTH = 96 };
    static float x[ROWS * K], panel[K * 16], bias[16], y[2][ROWS * 20], a[2][WIDTH], b[WIDTH],
        c[WIDTH], d[WIDTH];
    fill(x, ROWS * K, stream, 2);
    fill(panel, K * 16, stream + 1, 2);
    fill(bias, 16, stream + 2, 2);
    const uint32_t rows = 1 + stream % ROWS, k = 1 + stream * 7 % K;
    memset(y, 0, sizeof y);
    o->matmul(x, K, panel, 16, stream % 2 ? bias : NULL, y[0], 20, rows, k);
    f->matmul(x, K, panel, 16, stream % 2 ? bias : NULL, y[1], 20, rows, k);
    assert_memory_equal(y[0], y[1], sizeof y[0]);
    assert_true(y[0][0] != 0 && y[0][16] == 0 && y[0][rows * 20 - 20] != 0);

    fill(a[0], WIDTH, stream, stream % 3 == 0 ? 30 : 4);
    memcpy(a[1], a[0], sizeof a[0]);
    o->gelu(a[0], WIDTH);
    f->gelu(a[1], WIDTH);
    assert_memory_equal(a[0], a[1], sizeof a[0]);
    fill(b, WIDTH, stream + 3, 2);
    fill(c, WIDTH, stream + 4, 2);
    fill(d, WIDTH, stream + 5, 2);
    o->add_norm(a[0], b, c, d, WIDTH, 1e-12f);
    f->add_norm(a[1], b, c, d, WIDTH, 1e-12f);
    assert_memory_equal(a[0], a[1], sizeof a[0]);
    const uint32_t n = 1 + stream % (WIDTH - 16);
    o->softmax(a[0], n, 10);
    f->softmax(a[1], n, 10);
    assert_memory_equal(a[0], a[1], sizeof a[0]);
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)a[0][i];
    assert_true(fabs(sum - 1) < 1e-5);
    for (uint32_t i = n; i % 16 != 0; i++) assert_true(a[0][i] == 0);
}

static void test_isa_equal(void **state) {
    (void)state;
    struct cpu_features features;
    cpu_features_detect(&features);
    int n_sets = 0;
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        const struct encoder_kernels *f = encoder_kernels_for((enum cpu_isa)isa);
        if (!cpu_isa_supported(&features, (enum cpu_isa)isa) || f == &encoder_kernels_scalar)
            continue;
        n_sets++;
        for (uint32_t stream = 0; stream < 300; stream++) compare_kernels(f, stream);
    }
    if (n_sets == 0) print_message("skip: only the scalar kernels run here\n");
}

static void test_gelu(void **state) {
    (void)state;
    float x[16];
    for (int i = -1600; i < 1600; i++) {
        const double v = i / 100.0;
        for (int k = 0; k < 16; k++) x[k] = (float)v;
        encoder_kernels_scalar.gelu(x, 16);
        const double want = (double)(float)v * 0.5 * erfc(-(double)(float)v / sqrt(2));
        assert_true(fabs((double)x[7] - want) <= 3e-7 * (1 + fabs(v)));
    }
}

/* ---- slices ---- */

struct slice {
    const struct encoder *enc;
    const char *text;
    size_t len;
    float out[TINY_D];
    uint32_t n_tokens;
    enum status status;
};

static void encode_slice(struct chore *c, void *arg) {
    struct slice *s = arg;
    struct error e = {0};
    s->status = encoder_encode(s->enc, c, s->text, s->len, s->out, &s->n_tokens, &e);
}

static void test_slices(void **state) {
    (void)state;
    struct tiny_encoder m;
    tiny_make(&m, 4);
    tiny_folder(&m);
    tiny_weights(&m, "F32", "");
    struct encoder *enc = open_or_fail(&m);
    void *mem = aligned_alloc(64, (chore_footprint() + 63) / 64 * 64);
    assert_non_null(mem);
    char text[512];
    uint32_t ids[64];
    struct slice whole = {.enc = enc, .text = text, .len = make_text(8, 50, text, ids)},
                 cut = whole;
    encode_slice(NULL, &whole);
    assert_int_equal(whole.status, STATUS_OK);
    struct chore *c = chore_init(mem, encode_slice, &cut);
    int n_slices = 1;
    while (!chore_run(c, 1)) n_slices++;
    assert_int_equal(cut.status, STATUS_OK);
    assert_true(n_slices > 50);
    assert_memory_equal(cut.out, whole.out, sizeof whole.out);
    /* Cancelled at every place where it can be, it gives its memory back (LeakSanitizer). */
    for (int stop = 1; stop < n_slices; stop += 1 + stop / 3) {
        cut.out[0] = 1;
        c = chore_init(mem, encode_slice, &cut);
        int left = stop;
        while (left-- > 0) assert_false(chore_run(c, 1));
        chore_cancel(c);
        assert_true(chore_run(c, 1));
        assert_int_equal(cut.status, STATUS_GONE);
        assert_true(cut.out[0] == 0 && cut.n_tokens == 0);
    }
    free(mem);
    encoder_close(enc);
    tiny_free(&m);
}

/* ---- lies ---- */

static void expect_refused(const struct tiny_encoder *m, const char *what, enum status status,
                           const char *field) {
    struct encoder *enc = (struct encoder *)(uintptr_t)1;
    struct error e = {0};
    const enum status st = encoder_open(m->dir, &enc, &e);
    if (st != status || strcmp(e.field, field) != 0)
        fail_msg("%.100s: %s, field \"%s\" (%s)", what, status_name(st), e.field, e.message);
    assert_null(enc);
    assert_true(e.message[0] != '\0' && strchr(e.message, '\n') == NULL);
}

/* The text with `from`, which must be there, replaced. */
static void replaced(const char *text, const char *from, const char *to, char out[2048]) {
    const char *at = strstr(text, from);
    assert_non_null(at);
    snprintf(out, 2048, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

static void test_config_lies(void **state) {
    (void)state;
    static const struct {
        const char *file, *text, *from, *to;
        enum status status;
    } lies[] = {
        {"config.json", TINY_CONFIG, "\"bert\"", "\"roberta\"", STATUS_UNSUPPORTED},
        {"config.json", TINY_CONFIG, "\"gelu\"", "\"relu\"", STATUS_UNSUPPORTED},
        {"config.json", TINY_CONFIG, "layers\":2", "layers\":0", STATUS_CORRUPT},
        {"config.json", TINY_CONFIG, "layers\":2", "layers\":4000000000", STATUS_CORRUPT},
        {"config.json", TINY_CONFIG, "heads\":2", "heads\":3", STATUS_UNSUPPORTED},
        {"config.json", TINY_CONFIG, "heads\":2", "heads\":-2", STATUS_CORRUPT},
        {"config.json", TINY_CONFIG, "heads\":2", "heads\":true", STATUS_CORRUPT},
        {"config.json", TINY_CONFIG, ":64", ":63", STATUS_UNSUPPORTED},
        {"config.json", TINY_CONFIG, ":64", ":9223372036854775807", STATUS_CORRUPT},
        {"config.json", TINY_CONFIG, ":112", ":110", STATUS_UNSUPPORTED},
        {"config.json", TINY_CONFIG, ":30", ":0", STATUS_CORRUPT},
        {"config.json", TINY_CONFIG, ":48", ":1e3", STATUS_CORRUPT},
        {"config.json", TINY_CONFIG, "1e-12", "-1", STATUS_CORRUPT},
        {"config.json", TINY_CONFIG, "1e-12", "\"x\"", STATUS_CORRUPT},
        {"config.json", TINY_CONFIG, "}", "", STATUS_CORRUPT},
        {"config.json", TINY_CONFIG, TINY_CONFIG, "[]", STATUS_CORRUPT},
        {"config.json", TINY_CONFIG, TINY_CONFIG, "", STATUS_CORRUPT},
        {"modules.json", TINY_MODULES, "Normalize\"}", "Dense\"}", STATUS_UNSUPPORTED},
        {"modules.json", TINY_MODULES, "1_Pooling", "../../etc", STATUS_UNSUPPORTED},
        {"modules.json", TINY_MODULES, TINY_MODULES, "[]", STATUS_UNSUPPORTED},
        {"modules.json", TINY_MODULES, TINY_MODULES, "[1,2]", STATUS_UNSUPPORTED},
        {"modules.json", TINY_MODULES, TINY_MODULES, "{}", STATUS_CORRUPT},
        {"1_Pooling/config.json", TINY_POOLING, "mean_tokens", "max_tokens", STATUS_UNSUPPORTED},
        {"1_Pooling/config.json", TINY_POOLING, "true", "false", STATUS_UNSUPPORTED},
        {"1_Pooling/config.json", TINY_POOLING, "true", "1", STATUS_CORRUPT},
        {"1_Pooling/config.json", TINY_POOLING, ":64", ":32", STATUS_CORRUPT},
        {"sentence_bert_config.json", "{\"max_seq_length\":40}", ":40", ":2", STATUS_CORRUPT},
        {"tokenizer_config.json", "{\"do_lower_case\":true}", "true", "\"yes\"", STATUS_CORRUPT},
        {"tokenizer_config.json", "{\"tokenize_chinese_chars\":true}", "true", "false",
         STATUS_UNSUPPORTED},
        {"tokenizer_config.json", "{\"cls_token\":\"[CLS]\"}", "\"[CLS]\"", "\"\"", STATUS_CORRUPT},
        {"tokenizer_config.json", "{\"cls_token\":\"[CLS]\"}", "\"[CLS]\"", "{\"content\":7}",
         STATUS_CORRUPT},
        {"vocab.txt", "x", "x", "", STATUS_CORRUPT},
        {"vocab.txt", "x", "x", "a\nb\n", STATUS_CORRUPT}, /* no [CLS] */
        {"vocab.txt", "x", "x", "\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n",
         STATUS_CORRUPT}, /* 31 lines for 30 rows */
    };
    struct tiny_encoder m;
    tiny_make(&m, 5);
    tiny_weights(&m, "F32", "");
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        char text[2048];
        tiny_folder(&m);
        encoder_close(open_or_fail(&m)); /* so that only the lie can be what is refused */
        replaced(lies[i].text, lies[i].from, lies[i].to, text);
        tiny_text(&m, lies[i].file, text);
        expect_refused(&m, text, lies[i].status, lies[i].file);
    }
    tiny_free(&m);
}

static void test_weight_lies(void **state) {
    (void)state;
    struct tiny_encoder m;
    struct error e = {0};
    struct encoder *enc;
    tiny_make(&m, 6);
    tiny_folder(&m);
    const uint32_t all = m.n;
    for (uint32_t i = 0; i < all; i++) {
        const struct tiny_tensor was = m.t[i];
        strcpy(m.t[i].name, "elsewhere");
        tiny_weights(&m, "F32", "");
        expect_refused(&m, was.name, STATUS_CORRUPT, was.name);
        m.t[i] = was;
        if (was.rows > 0) { /* the same bytes in another shape */
            m.t[i].rows = was.rows * 2;
            m.t[i].columns = was.columns / 2;
            tiny_weights(&m, "F32", "");
            expect_refused(&m, was.name, STATUS_CORRUPT, was.name);
            m.t[i] = was;
        }
    }
    /* Numbers that ask for more than the file holds take no memory. */
    tiny_weights(&m, "F32", "");
    char text[2048];
    replaced(TINY_CONFIG, ":112", ":32768", text);
    tiny_text(&m, "config.json", text);
    expect_refused(&m, text, STATUS_CORRUPT, "model.safetensors");
    tiny_text(&m, "config.json", TINY_CONFIG);
    /* A weight that is not a number is found in the vector. */
    for (uint32_t i = 0; i < m.n; i++)
        if (strcmp(m.t[i].name, "encoder.layer.1.output.dense.bias") == 0) m.t[i].w[3] = NAN;
    tiny_weights(&m, "F32", "");
    enc = open_or_fail(&m);
    float out[TINY_D];
    uint32_t n_tokens;
    assert_int_equal(encoder_encode(enc, NULL, "a", 1, out, &n_tokens, &e), STATUS_BAD_NUMBER);
    assert_true(out[0] == 0 && out[3] == 0 && n_tokens == 0);
    encoder_close(enc);
    tiny_free(&m);
    assert_int_equal(encoder_open("/nonexistent", &enc, &e), STATUS_NOT_FOUND);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_pooling),
        cmocka_unit_test(test_special_tokens_are_text),
        cmocka_unit_test(test_isa_equal),
        cmocka_unit_test(test_gelu),
        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_config_lies),
        cmocka_unit_test(test_weight_lies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
