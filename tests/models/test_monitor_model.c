/* What the monitor needs of models/: its sections, the logistic regression, the user's tokens. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "core/rng.h"
#include "models/logistic_fit.h"
#include "models/monitor_model.h"
#include "models/user_tokens.h"
#include "tests/models/tiny_vocab.h"

static uint64_t counter;
static float uniform(void) {
    return (float)(rng_draw(3, 0, (uint32_t)counter++, RNG_TEST, 0) >> 40) / 0x1p24f;
}

enum { D = 48, LAYERS = 30 };
static const uint64_t MODEL[2] = {1, 2};

static struct monitor_model some_model(float *mean) {
    for (uint32_t i = 0; i < D; i++) mean[i] = uniform() - 0.5f;
    return (struct monitor_model){.layer = 18,
                                  .d_model = D,
                                  .mean = mean,
                                  .report = "{\"a\":1}",
                                  .report_bytes = 7,
                                  .rule = {.weights = {1, 2, 3, 4, 5, 6},
                                           .threshold = 3,
                                           .threshold_hot = 4,
                                           .hold = 1,
                                           .surprise = 4,
                                           .entropy_mean = 1.5f,
                                           .entropy_deviation = 1,
                                           .cosine_mean = 0.3f,
                                           .cosine_deviation = 0.2f,
                                           .clear_tokens = 12}};
}

/* Writes the sections as they are given, reads them back. */
static enum status through_file(const struct sidecar_section *sections, uint32_t n, uint32_t layers,
                                uint32_t d, struct monitor_model *m) {
    char path[] = "/tmp/lac-monitor-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    struct error e;
    struct sidecar *s;
    assert_int_equal(sidecar_write(path, MODEL, sections, n, &e), STATUS_OK);
    assert_int_equal(sidecar_open(path, MODEL, &s, &e), STATUS_OK);
    const enum status st = monitor_model_view(m, s, layers, d, &e);
    if (st == STATUS_OK && m->mean != NULL) {
        static float kept[D];
        memcpy(kept, m->mean, sizeof kept);
        m->mean = kept;
    }
    sidecar_close(s);
    unlink(path);
    return st;
}

static void test_sections(void **state) {
    (void)state;
    float mean[D];
    struct error e;
    struct sidecar_section out[2];
    struct monitor_model m = some_model(mean), got;
    assert_int_equal(monitor_model_write(&m, 99, out, &e), STATUS_OK);
    assert_int_equal(through_file(out, 2, LAYERS, D, &got), STATUS_OK);
    assert_true(got.calibrated && got.layer == 18);
    assert_memory_equal(got.mean, mean, sizeof mean);
    assert_memory_equal(&got.rule, &m.rule, sizeof m.rule);
    /* Another model's; only the rule, only the means; too few layers. */
    assert_int_equal(through_file(out, 2, LAYERS, D + 16, &got), STATUS_INVALID);
    assert_int_equal(through_file(out + 1, 1, LAYERS, D, &got), STATUS_OK);
    assert_true(!got.calibrated && got.mean == NULL && got.layer == 18);
    assert_int_equal(through_file(out, 1, LAYERS, D, &got), STATUS_OK);
    assert_true(!got.calibrated && got.mean != NULL);
    assert_int_equal(through_file(out, 2, 17, D, &got), STATUS_CORRUPT);
    assert_true(!got.calibrated && got.mean == NULL);
    /* A lie in every word of both heads: refused, or a rule in range. */
    for (int k = 0; k < 2; k++) {
        uint8_t *bytes = (uint8_t *)(uintptr_t)out[k].data;
        for (size_t at = 0; at < 64; at += 4) {
            uint32_t kept;
            memcpy(&kept, bytes + at, 4);
            const uint32_t lies[] = {0, 0x7FC00000, 0x7F800000, 0xFFFFFFFF, 1, 0x42000000};
            for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
                memcpy(bytes + at, &lies[i], 4);
                const enum status st = through_file(out, 2, LAYERS, D, &got);
                if (st != STATUS_OK) continue;
                assert_true(isfinite(got.rule.threshold) && got.rule.hold <= got.rule.threshold);
                assert_true(got.rule.clear_tokens >= 1 && got.rule.clear_tokens <= 32);
                assert_true(got.layer >= 1 && got.layer <= LAYERS);
            }
            memcpy(bytes + at, &kept, 4);
        }
        for (size_t n = 0; n < out[k].bytes; n += 13) {
            struct sidecar_section cut[2] = {out[0], out[1]};
            cut[k].bytes = n;
            (void)through_file(cut, 2, LAYERS, D, &got);
        }
    }
    for (int k = 0; k < 2; k++) free((void *)(uintptr_t)out[k].data);
}

static void test_logistic(void **state) {
    (void)state;
    enum { N = 6000, K = 3 };
    static float rows[N * K];
    static bool labels[N];
    static const float truth[K + 1] = {-0.7f, 1.5f, -2, 0};
    struct error e;
    float w[K + 1];
    size_t n_true = 0;
    for (size_t i = 0; i < N; i++) {
        double s = (double)truth[0];
        for (uint32_t j = 0; j < K; j++) {
            rows[i * K + j] = 4 * uniform() - 2;
            s += (double)truth[j + 1] * (double)rows[i * K + j];
        }
        labels[i] = (double)uniform() < 1 / (1 + exp(-s));
        n_true += labels[i];
    }
    assert_int_equal(logistic_fit(rows, labels, N, K, w, &e), STATUS_OK);
    for (uint32_t j = 1; j <= K; j++) assert_true(fabsf(w[j] - truth[j]) < 0.2f);
    /* The bias is that of classes of equal weight. */
    const double odds = log((double)(N - n_true) / (double)n_true);
    assert_true(fabs((double)w[0] - ((double)truth[0] + odds)) < 0.25);
    /* Separable rows stay finite; one class, and a NaN, are refused. */
    for (size_t i = 0; i < N; i++) labels[i] = rows[i * K] > 0;
    assert_int_equal(logistic_fit(rows, labels, N, K, w, &e), STATUS_OK);
    memset(labels, 0, sizeof labels);
    assert_int_equal(logistic_fit(rows, labels, N, K, w, &e), STATUS_INVALID);
    labels[0] = true;
    rows[5] = NAN;
    assert_int_equal(logistic_fit(rows, labels, N, K, w, &e), STATUS_INVALID);
}

/* Each byte a token: the range in tokens is the range in bytes. */
static void test_user_tokens(void **state) {
    (void)state;
    static struct tiny_vocab v;
    for (char c = 'a'; c <= 'z'; c++) tiny_add(&v, &c, 1, TOKEN_NORMAL, 0);
    struct tokenizer_spec spec = tokenizer_spec_default(TOKENIZER_BPE);
    spec.pre = (struct gguf_string){"gpt-2", 5};
    spec.tokens = v.token, spec.types = v.type, spec.n_tokens = v.n;
    struct tokenizer *t;
    struct error e;
    assert_int_equal(tokenizer_build(&spec, &t, &e), STATUS_OK);
    uint32_t ids[100];
    for (uint32_t i = 0; i < 100; i++) ids[i] = i % 26;
    const struct {
        struct text_span spans[6];
        size_t n;
        uint32_t first, end;
    } cases[] = {
        {{{0, 10, false}, {10, 40, true}, {40, 100, false}}, 3, 10, 40},
        {{{0, 10, false}, {10, 90, true}, {90, 95, false}, {95, 97, true}, {97, 100, false}},
         5,
         10,
         97}, /* "why?" is read with what it follows */
        {{{0, 10, false}, {10, 30, true}, {30, 35, false}, {35, 60, true}, {60, 100, false}},
         5,
         35,
         60},
        {{{0, 10, false}, {10, 40, true}, {40, 50, false}, {50, 100, true}}, 4, 10, 40},
        {{{0, 100, true}}, 1, 100, 100}, /* nothing but a beginning of the answer */
        {{{0, 100, false}}, 1, 100, 100},
        {{{0, 5, true}, {5, 100, false}}, 2, 0, 5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct token_range r = user_tokens(t, ids, 100, 100, cases[i].spans, cases[i].n);
        assert_true(r.first <= r.end && r.end <= 100);
        assert_int_equal(r.end - r.first, cases[i].end - cases[i].first);
        if (r.first < r.end) assert_int_equal(r.first, cases[i].first);
    }
    assert_int_equal(user_tokens(t, ids, 0, 0, NULL, 0).end, 0);
    tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sections),
                                       cmocka_unit_test(test_logistic),
                                       cmocka_unit_test(test_user_tokens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
