/* Label heads as a section: what is written is read back; damaged ones are refused, and none is
 * read out of bounds; keys; the template's tokens are cut as the header says; training on made-up
 * rows finds what is there, the same with any number of threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/rng.h"
#include "models/label_heads.h"
#include "models/label_train.h"
#include "models/sidecar.h"

enum { D = 20, LABELS = 5, HEADS = 3, BUCKETS = 64 };

static uint32_t counter;
static double uniform(void) {
    return (double)(rng_draw(77, 0, counter++, RNG_TEST, 0) >> 11) * 0x1p-53;
}
static float draw(double size) {
    return (float)((2 * uniform() - 1) * size);
}

struct sample {
    struct label_heads h;
    struct text labels[LABELS];
    uint32_t end[LABELS];
    char text[64], key[LABEL_KEY_BYTES];
    float text_bias[LABELS], text_scale[LABELS], bias[HEADS][LABELS], weight[HEADS][LABELS * D];
    int8_t text_weight[BUCKETS * LABELS];
};

static const struct plan plan = {.n_layers = 12, .d_model = D};

static void make(struct sample *s) {
    static const char *const names[LABELS] = {"a", "ab", "b", "label four", "\xC3\xA9"};
    memset(s, 0, sizeof *s);
    uint32_t at = 0;
    for (uint32_t i = 0; i < LABELS; i++) {
        s->labels[i] = (struct text){names[i], strlen(names[i])};
        memcpy(s->text + at, names[i], strlen(names[i]));
        s->end[i] = at += (uint32_t)strlen(names[i]);
        s->text_bias[i] = draw(1), s->text_scale[i] = draw(1);
    }
    for (uint32_t i = 0; i < BUCKETS * LABELS; i++) s->text_weight[i] = (int8_t)(i * 37);
    s->h = (struct label_heads){.n_labels = LABELS,
                                .n_heads = HEADS,
                                .d_model = D,
                                .max_tokens = 99,
                                .label_end = s->end,
                                .label_text = s->text,
                                .n_buckets = BUCKETS,
                                .text_bias = s->text_bias,
                                .text_scale = s->text_scale,
                                .text_weight = s->text_weight,
                                .figures = {100, 0.9f, 0.8f, 2.5f, 0.5f, 0.7f, 0.6f, 0.5f}};
    for (uint32_t i = 0; i < HEADS; i++) {
        for (uint32_t j = 0; j < LABELS * D; j++) s->weight[i][j] = draw(1);
        for (uint32_t j = 0; j < LABELS; j++) s->bias[i][j] = draw(1);
        s->h.heads[i] = (struct label_head){
            .layer = 1 + 4 * i, .n_labels = LABELS, .scale = draw(1), .prior_scale = draw(1)};
        s->h.heads[i].weight = s->weight[i];
        s->h.heads[i].bias = s->bias[i];
        s->h.threshold[i] = 0.5f + 0.1f * (float)i;
    }
    label_heads_key(s->labels, LABELS, s->key);
}

static void round_trip(void **state) {
    (void)state;
    struct sample s;
    struct error e = {0};
    struct label_heads h;
    void *bytes, *again;
    size_t n, n_again;
    make(&s);
    assert_int_equal(label_heads_write(&s.h, 12, &bytes, &n, &e), STATUS_OK);
    assert_int_equal(label_heads_view(&h, bytes, n, &plan, s.key, &e), STATUS_OK);
    assert_int_equal(h.n_labels, LABELS);
    assert_int_equal(h.n_heads, HEADS);
    assert_int_equal(h.max_tokens, 99);
    assert_memory_equal(&h.figures, &s.h.figures, sizeof h.figures);
    for (uint32_t i = 0; i < LABELS; i++) {
        const struct text t = label_heads_label(&h, i);
        assert_int_equal(t.len, s.labels[i].len);
        assert_memory_equal(t.data, s.labels[i].data, t.len);
    }
    for (uint32_t i = 0; i < HEADS; i++) {
        assert_int_equal(h.heads[i].layer, s.h.heads[i].layer);
        assert_true(h.heads[i].scale == s.h.heads[i].scale && h.threshold[i] == s.h.threshold[i]);
        assert_memory_equal(h.heads[i].weight, s.weight[i], sizeof s.weight[i]);
        assert_memory_equal(h.heads[i].bias, s.bias[i], sizeof s.bias[i]);
    }
    assert_memory_equal(h.text_weight, s.text_weight, sizeof s.text_weight);
    assert_int_equal(label_heads_write(&h, 12, &again, &n_again, &e), STATUS_OK);
    assert_true(n == n_again && memcmp(bytes, again, n) == 0);
    free(again);
    free(bytes);
}

/* Every prefix, another model, another key, and random damage: refused or harmless. */
static void hostile(void **state) {
    (void)state;
    struct sample s;
    struct error e = {0};
    struct label_heads h;
    void *bytes, *copy;
    size_t n;
    make(&s);
    assert_int_equal(label_heads_write(&s.h, 12, &bytes, &n, &e), STATUS_OK);
    for (size_t cut = 0; cut < n; cut += cut < 512 ? 1 : 61) {
        /* Flush against the end of its block, for the sanitizer. */
        assert_int_equal(posix_memalign(&copy, 64, cut > 0 ? cut : 1), 0);
        memcpy(copy, bytes, cut);
        assert_int_equal(label_heads_view(&h, copy, cut, &plan, s.key, &e), STATUS_CORRUPT);
        free(copy);
    }
    struct plan other = plan;
    other.d_model = D + 1;
    assert_int_equal(label_heads_view(&h, bytes, n, &other, s.key, &e), STATUS_INVALID);
    other = plan;
    other.n_layers = 13;
    assert_int_equal(label_heads_view(&h, bytes, n, &other, s.key, &e), STATUS_INVALID);
    assert_int_equal(label_heads_view(&h, bytes, n, &plan, "0123", &e), STATUS_CORRUPT);
    assert_int_equal(posix_memalign(&copy, 64, n), 0);
    uint32_t refused = 0;
    const uint32_t bad_words[] = {0, 1, 0x7fffffff, 0x80000000, UINT32_MAX, 0x7fc00000, 0x7f800000};
    for (uint32_t round = 0; round < 20000; round++) {
        memcpy(copy, bytes, n);
        const size_t words = round % 2 ? 40 : n / 4, at = (size_t)(uniform() * (double)words);
        const uint32_t word = bad_words[round % 7];
        memcpy((uint8_t *)copy + 4 * at, &word, sizeof word);
        const enum status st = label_heads_view(&h, copy, n, &plan, s.key, &e);
        refused += st != STATUS_OK;
        if (st != STATUS_OK) continue;
        /* What is accepted can be used. */
        struct task_features f = {.n = 0};
        float prior[LABELS];
        label_heads_prior(&h, &f, prior);
        assert_true(h.heads[h.n_heads - 1].layer <= plan.n_layers);
    }
    assert_true(refused > 5000);
    free(copy);
    free(bytes);
}

static void keys(void **state) {
    (void)state;
    struct text a[3] = {{"a", 1}, {"bc", 2}, {"d", 1}}, b[3] = {{"ab", 2}, {"c", 1}, {"d", 1}};
    char x[LABEL_KEY_BYTES], y[LABEL_KEY_BYTES];
    uint32_t order[3];
    label_heads_key(a, 3, x);
    label_heads_key(a, 3, y);
    assert_string_equal(x, y);
    label_heads_key(b, 3, y);
    assert_string_not_equal(x, y);
    label_heads_key(a, 2, y);
    assert_string_not_equal(x, y);
    const struct text mixed[3] = {{"b", 1}, {"a", 1}, {"ab", 2}};
    assert_true(label_sort(mixed, 3, order));
    assert_true(order[0] == 1 && order[1] == 2 && order[2] == 0);
    const struct text twice[3] = {{"b", 1}, {"a", 1}, {"b", 1}};
    assert_false(label_sort(twice, 3, order));
}

/* Sets of a side-car: found by exactly their labels; one that is damaged refuses all. */
static void sets(void **state) {
    (void)state;
    struct sample s;
    struct error e = {0};
    struct sidecar_section sections[2] = {{.kind = SIDECAR_LABEL_HEADS, .version = 1},
                                          {.kind = SIDECAR_LABEL_HEADS, .version = 1}};
    const uint64_t model[2] = {1, 2};
    char path[64];
    void *bytes[2];
    make(&s);
    snprintf(path, sizeof path, "label-heads-%d.lacs", (int)getpid());
    for (uint32_t i = 0; i < 2; i++) {
        s.h.n_labels = LABELS - i;
        for (uint32_t k = 0; k < HEADS; k++) s.h.heads[k].n_labels = LABELS - i;
        label_heads_key(s.labels, LABELS - i, sections[i].key);
        assert_int_equal(label_heads_write(&s.h, 12, &bytes[i], &sections[i].bytes, &e), STATUS_OK);
        sections[i].data = bytes[i];
    }
    struct sidecar *car;
    struct label_sets sets;
    assert_int_equal(sidecar_write(path, model, sections, 2, &e), STATUS_OK);
    assert_int_equal(sidecar_open(path, model, &car, &e), STATUS_OK);
    assert_int_equal(label_sets_open(car, &plan, &sets, &e), STATUS_OK);
    assert_int_equal(sets.n, 2);
    assert_int_equal(sets.heads.n_labels, 2 * HEADS);
    for (uint32_t n = 1; n <= LABELS; n++) {
        const struct label_set *found = label_sets_find(&sets, s.labels, n);
        assert_true((found != NULL) == (n >= LABELS - 1));
        if (found == NULL) continue;
        assert_int_equal(found->heads.n_labels, n);
        for (uint32_t h = 0; h < HEADS; h++)
            assert_int_equal(sets.heads.labels[found->first_head + h].layer,
                             found->heads.heads[h].layer);
    }
    const uint64_t digest = sets.digest;
    label_sets_close(&sets);
    sidecar_close(car);
    ((float *)bytes[1])[sections[1].bytes / 4 - 17] += 1; /* a weight: another answer */
    assert_int_equal(sidecar_write(path, model, sections, 2, &e), STATUS_OK);
    assert_int_equal(sidecar_open(path, model, &car, &e), STATUS_OK);
    assert_int_equal(label_sets_open(car, &plan, &sets, &e), STATUS_OK);
    assert_true(sets.digest != digest);
    label_sets_close(&sets);
    sidecar_close(car);
    ((uint32_t *)bytes[0])[3] = 0; /* no labels */
    assert_int_equal(sidecar_write(path, model, sections, 2, &e), STATUS_OK);
    assert_int_equal(sidecar_open(path, model, &car, &e), STATUS_OK);
    assert_int_equal(label_sets_open(car, &plan, &sets, &e), STATUS_CORRUPT);
    assert_true(sets.n == 0 && sets.sets == NULL);
    assert_non_null(strstr(e.message, "label heads"));
    sidecar_close(car);
    unlink(path);
    free(bytes[0]);
    free(bytes[1]);
}

/* ---- training ---- */

enum { ROWS = 400, TAPS = 3 };

/* The first layer tells labels 0 and 1 apart, the second 2 and 3 as well, the text has its own say;
 * the third is noise. */
static void train(uint32_t threads, struct label_heads *h, struct label_scores *scores,
                  void **mem) {
    static float states[TAPS][ROWS * D];
    static uint32_t label[ROWS];
    static uint64_t row_start[ROWS + 1];
    static uint16_t index[2 * ROWS];
    static float value[2 * ROWS];
    static const uint32_t layers[TAPS] = {1, 2, 5};
    struct error e = {0};
    counter = 1000;
    for (uint32_t i = 0; i < ROWS; i++) {
        label[i] = i % 4;
        for (uint32_t t = 0; t < TAPS; t++)
            for (uint32_t j = 0; j < D; j++) states[t][i * D + j] = draw(1);
        if (label[i] < 2) states[0][i * D + label[i]] += 2;
        states[1][i * D + label[i]] += 2;
        row_start[i] = 2 * i;
        index[2 * i] = (uint16_t)(uniform() < 0.8 ? label[i] << 12 : 0xF000);
        index[2 * i + 1] = 0x8000;
        value[2 * i] = value[2 * i + 1] = 0.7f;
    }
    row_start[ROWS] = 2 * ROWS;
    struct worker_pool *workers;
    const struct worker_pool_config cfg = {.n_workers = threads};
    assert_int_equal(worker_pool_start(&cfg, &workers, &e), STATUS_OK);
    const struct label_input in = {.n = ROWS,
                                   .n_labels = 4,
                                   .d = D,
                                   .n_taps = TAPS,
                                   .layers = layers,
                                   .states = states[0],
                                   .label = label,
                                   .row_start = row_start,
                                   .index = index,
                                   .value = value};
    const struct label_options o = {.folds = 4,
                                    .epochs = 20,
                                    .n_buckets = 1024,
                                    .seed = 3,
                                    .isa = CPU_ISA_SCALAR,
                                    .workers = workers};
    assert_int_equal(label_train(&in, &o, h, scores, mem, &e), STATUS_OK);
    worker_pool_stop(workers);
}

static void training(void **state) {
    (void)state;
    struct label_heads a, b;
    struct label_scores x, y;
    void *mem_a, *mem_b;
    train(1, &a, &x, &mem_a);
    train(3, &b, &y, &mem_b);
    assert_memory_equal(&x, &y, sizeof x);
    assert_int_equal(a.n_heads, b.n_heads);
    assert_memory_equal(a.heads[0].weight, b.heads[0].weight, 4 * D * sizeof(float));
    assert_memory_equal(a.text_weight, b.text_weight, 1024 * 4);
    assert_memory_equal(&a.figures, &b.figures, sizeof a.figures);
    assert_true(x.text > 0.7f && x.state[1] > 0.7f && x.state[2] < 0.4f);
    assert_true(x.combined[1] > x.text && x.combined[1] > x.state[1]);
    assert_true(a.n_heads >= 2); /* the first alone cannot tell 2 and 3 apart */
    assert_true(a.figures.accuracy > x.text && a.figures.accuracy > x.state[1]);
    assert_true(a.figures.accuracy_low < a.figures.accuracy && a.figures.accuracy_low > 0.8f);
    assert_true(a.figures.mean_layer >= 1 && a.figures.mean_layer < 3);
    assert_int_equal(a.figures.n_rows, ROWS);
    free(mem_a);
    free(mem_b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip), cmocka_unit_test(hostile),  cmocka_unit_test(keys),
        cmocka_unit_test(sets),       cmocka_unit_test(training),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
