/* The task model and its file: the built-in one, round trips, damage of every kind, verdicts, the
 * second look, and the optimiser against gradient descent in double precision. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <xxhash.h>

#include "core/rng.h"
#include "models/task_default.h"
#include "models/task_fit.h"
#include "models/task_model_impl.h"
#include "models/task_train.h"

static struct task_model *model;
static struct task_workspace *workspace;

static int setup(void **state) {
    (void)state;
    struct error e = {0};
    const enum status st = task_model_default(&model, &e);
    if (st != STATUS_OK) print_message("%s\n", e.message);
    assert_int_equal(st, STATUS_OK);
    assert_int_equal(task_workspace_new(&workspace, &e), STATUS_OK);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    task_model_free(model);
    task_workspace_free(workspace);
    return 0;
}

static uint64_t draw(uint32_t a, uint32_t b) {
    return rng_draw(21, a, b, RNG_TEST, 0);
}

static double uniform(uint32_t a, uint32_t b) {
    return ((double)(draw(a, b) >> 11) + 0.5) / 9007199254740992.0;
}

static void test_default_model(void **state) {
    (void)state;
    static const struct {
        const char *text, *label;
    } cases[] = {
        {"Write a Python function that checks whether a number is prime.", "code"},
        {"SELECT name FROM users WHERE age > 30;\nWhy is this query slow?", "code"},
        {"请用Java实现一个单例模式。", "code"},
        {"What is the capital of Portugal?", "deterministic"},
        {"My card was charged twice, can I get a refund?", "deterministic"},
        {"北京到上海有多远？", "deterministic"},
        {"Write a short poem about the moon.", "open"},
        {"Any ideas for a birthday party?", "open"},
        {"写一篇关于春天的散文。", "open"},
        {"If 3 pens cost $4.50, how much do 7 pens cost?", "reasoning"},
        {"Solve x^2 - 5x + 6 = 0.", "reasoning"},
        {"甲乙两地相距120千米，汽车每小时行60千米，几小时到达？", "reasoning"},
    };
    size_t bytes;
    task_model_default_bytes(&bytes);
    assert_true(bytes <= TASK_MODEL_MAX_BYTES);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct task_verdict v;
        task_model_classify(model, workspace, cases[i].text, strlen(cases[i].text), &v);
        if (strcmp(task_model_label(model, v.class), cases[i].label) != 0)
            print_message("%s: %s\n", cases[i].text, task_model_label(model, v.class));
        assert_string_equal(task_model_label(model, v.class), cases[i].label);
        float sum = 0;
        for (uint32_t c = 0; c < task_model_n_classes(model); c++) sum += v.probability[c];
        assert_true(fabsf(sum - 1) < 1e-5f);
        assert_true(v.confidence == v.probability[v.class]);
    }
    assert_true(strstr(task_model_notes(model), "unseen_sources") != NULL);
    assert_null(task_model_label(model, 4));
    assert_int_equal(task_model_class(model, "poetry"), -1);
}

static void test_verdict(void **state) {
    (void)state;
    const char *text = "Write a Python function that sorts a list.";
    struct task_features f;
    struct task_verdict v, plain;
    task_features_extract(workspace, task_model_words(model), text, strlen(text), &f);
    task_model_classify_features(model, &f, true, &v);
    assert_non_null(v.reasons[0].feature);
    for (int i = 1; i < TASK_N_REASONS && v.reasons[i].feature; i++)
        assert_true(v.reasons[i - 1].score >= v.reasons[i].score);
    task_model_classify(model, workspace, text, strlen(text), &plain);
    assert_memory_equal(v.probability, plain.probability, sizeof v.probability);
    assert_true(v.unseen < 0.5f);
    task_model_classify(model, workspace, "zxqv wqzzj kkqvx", 16, &v);
    assert_true(v.unseen > 0.5f);
    task_model_classify(model, workspace, "", 0, &v);
    assert_true(v.confidence > 0 && v.unseen == 0);
}

static void test_abstention(void **state) {
    (void)state;
    const float before = model->abstain_below;
    struct task_verdict v;
    model->abstain_below = 1;
    task_model_classify(model, workspace, "hm", 2, &v);
    assert_true(v.abstained);
    model->abstain_below = 0;
    task_model_classify(model, workspace, "hm", 2, &v);
    assert_false(v.abstained);
    model->abstain_below = before;
}

static void test_round_trip(void **state) {
    (void)state;
    struct error e;
    struct buffer b;
    struct task_model *again;
    size_t bytes;
    const void *embedded = task_model_default_bytes(&bytes);
    buffer_init(&b, 0);
    assert_int_equal(task_model_write(model, &b, &e), STATUS_OK);
    assert_int_equal(b.len, bytes);
    assert_memory_equal(b.data, embedded, bytes);
    char path[] = "/tmp/lac_task_XXXXXX";
    close(mkstemp(path));
    assert_int_equal(task_model_save(model, path, &e), STATUS_OK);
    assert_int_equal(task_model_open(path, &again, &e), STATUS_OK);
    struct task_verdict v, w;
    task_model_classify(model, workspace, "why not?", 8, &v);
    task_model_classify(again, workspace, "why not?", 8, &w);
    assert_memory_equal(v.logit, w.logit, sizeof v.logit);
    task_model_free(again);
    unlink(path);
    assert_true(task_model_open(path, &again, &e) != STATUS_OK);
    assert_null(again);
    buffer_free(&b);
}

static void refused(const uint8_t *bytes, size_t n) {
    struct error e = {0};
    struct task_model *m;
    const enum status st = task_model_read(bytes, n, &m, &e);
    assert_true(st == STATUS_CORRUPT || st == STATUS_UNSUPPORTED || st == STATUS_TOO_LARGE);
    assert_null(m);
    assert_true(e.message[0] != '\0' && strchr(e.message, '\n') == NULL);
}

/* The checksum that a forger would write. */
static void seal(uint8_t *bytes, size_t n) {
    XXH128_canonical_t c;
    const uint64_t size = n;
    memcpy(bytes + 8, &size, 8);
    XXH128_canonicalFromHash(&c, XXH3_128bits(bytes + 64, n - 64));
    memcpy(bytes + 16, c.digest, 16);
}

static void test_damaged_files(void **state) {
    (void)state;
    size_t n;
    const void *embedded = task_model_default_bytes(&n);
    uint8_t *bytes = malloc(n);
    for (uint32_t round = 0; round < 300; round++) {
        memcpy(bytes, embedded, n);
        /* The last words of the header are spare. */
        const size_t at = round < 48 ? round : 64 + draw(round, 0) % (n - 64);
        bytes[at] ^= (uint8_t)(1 + draw(round, 1) % 255);
        refused(bytes, n);
    }
    memcpy(bytes, embedded, n);
    for (uint32_t round = 0; round < 50; round++) refused(bytes, draw(round, 2) % n);
    uint8_t *large = calloc(1, TASK_MODEL_MAX_BYTES + 1);
    memcpy(large, embedded, n);
    refused(large, TASK_MODEL_MAX_BYTES + 1);
    free(large);
    free(bytes);
}

/* Damage under a right checksum: refused, or a model that still computes numbers. */
static void test_forged_files(void **state) {
    (void)state;
    size_t n;
    const void *embedded = task_model_default_bytes(&n);
    uint8_t *bytes = malloc(n);
    uint32_t refusals = 0;
    for (uint32_t round = 0; round < 600; round++) {
        memcpy(bytes, embedded, n);
        for (uint32_t k = 0; k < 1 + round % 3; k++) {
            /* Header, section table and the small sections behind it, or anywhere. */
            const size_t at = 32 + draw(round, 10 + k) % (round % 4 ? 2000 : n - 32);
            bytes[at] = (uint8_t)draw(round, 20 + k);
        }
        const size_t kept = round % 7 == 0 ? 64 + draw(round, 30) % (n - 64) : n;
        seal(bytes, kept);
        struct error e = {0};
        struct task_model *m;
        if (task_model_read(bytes, kept, &m, &e) != STATUS_OK) {
            assert_null(m);
            assert_true(e.message[0] != '\0');
            refusals++;
            continue;
        }
        struct task_verdict v;
        task_model_classify(m, workspace, "What is 2 + 2?", 14, &v);
        assert_true(v.class < task_model_n_classes(m));
        for (uint32_t c = 0; c < task_model_n_classes(m); c++) {
            assert_true(isfinite(v.logit[c]));
            assert_true(v.probability[c] >= 0 && v.probability[c] <= 1);
        }
        task_model_free(m);
    }
    assert_true(refusals > 100 && refusals < 600);
    free(bytes);
}

/* ---- the optimiser ---- */

enum { ROWS = 300, DIM = 8, CLASSES = 3 };

struct problem {
    struct task_matrix x;
    uint32_t row[ROWS], label[ROWS];
    float weight[ROWS], offset[ROWS * CLASSES];
};

static void make_problem(struct problem *p, bool offsets) {
    memset(p, 0, sizeof *p);
    p->x = (struct task_matrix){.n = ROWS, .n_dense = DIM};
    p->x.dense = malloc(ROWS * DIM * sizeof(float));
    for (uint32_t r = 0; r < ROWS; r++) {
        p->row[r] = r;
        p->label[r] = (uint32_t)draw(r, 40) % CLASSES;
        p->weight[r] = (float)(0.5 + uniform(r, 41));
        for (uint32_t d = 0; d < DIM; d++)
            p->x.dense[r * DIM + d] =
                (float)(uniform(r, 50 + d) - 0.5 + (d == p->label[r] ? 0.5 : 0));
        for (uint32_t c = 0; offsets && c < CLASSES; c++)
            p->offset[r * CLASSES + c] = (float)(uniform(r, 70 + c) - 0.5);
    }
}

/* The objective at W [DIM][CLASSES], b; its gradient into g if that is not NULL. */
static double objective(const struct problem *p, double l2, const double *w, double *g) {
    double sum = 0;
    if (g != NULL) memset(g, 0, (DIM + 1) * CLASSES * sizeof *g);
    for (uint32_t r = 0; r < ROWS; r++) {
        double z[CLASSES], mass = 0;
        for (uint32_t c = 0; c < CLASSES; c++) {
            z[c] = w[DIM * CLASSES + c] + (double)p->offset[r * CLASSES + c];
            for (uint32_t d = 0; d < DIM; d++)
                z[c] += (double)p->x.dense[r * DIM + d] * w[d * CLASSES + c];
            mass += exp(z[c]);
        }
        sum += (double)p->weight[r] * (log(mass) - z[p->label[r]]) / ROWS;
        for (uint32_t c = 0; g != NULL && c < CLASSES; c++) {
            const double s = (double)p->weight[r] * (exp(z[c]) / mass - (c == p->label[r])) / ROWS;
            g[DIM * CLASSES + c] += s;
            for (uint32_t d = 0; d < DIM; d++)
                g[d * CLASSES + c] += s * (double)p->x.dense[r * DIM + d];
        }
    }
    for (int i = 0; i < DIM * CLASSES; i++) {
        sum += l2 / 2 * w[i] * w[i];
        if (g != NULL) g[i] += l2 * w[i];
    }
    return sum;
}

static void test_optimum(void **state) {
    (void)state;
    for (int offsets = 0; offsets < 2; offsets++) {
        struct problem p;
        struct error e;
        make_problem(&p, offsets);
        const struct task_fit_input in = {.x = &p.x,
                                          .dense_gain = 1,
                                          .n_classes = CLASSES,
                                          .n = ROWS,
                                          .row = p.row,
                                          .label = p.label,
                                          .weight = p.weight,
                                          .offset = offsets ? p.offset : NULL};
        const struct task_fit_options o = {.epochs = 400, .rate = 0.1f, .l2 = 0.02f, .seed = 3};
        struct task_weights w;
        assert_int_equal(task_fit(&in, &o, &w, &e), STATUS_OK);
        double best[(DIM + 1) * CLASSES] = {0}, g[(DIM + 1) * CLASSES], ours[(DIM + 1) * CLASSES];
        for (int step = 0; step < 8000; step++) {
            objective(&p, 0.02, best, g);
            for (int i = 0; i < (DIM + 1) * CLASSES; i++) best[i] -= 0.5 * g[i];
        }
        for (int i = 0; i < DIM * CLASSES; i++) ours[i] = (double)w.dense[i];
        for (uint32_t c = 0; c < CLASSES; c++) ours[DIM * CLASSES + c] = (double)w.bias[c];
        const double least = objective(&p, 0.02, best, NULL), got = objective(&p, 0.02, ours, NULL);
        const double start = log(CLASSES);
        assert_true(got >= least - 1e-9 && got - least < 0.002 * (start - least) + 1e-4);
        task_weights_free(&w);
        free(p.x.dense);
    }
}

static void test_temperature(void **state) {
    (void)state;
    enum { N = 4000 };
    float *z = malloc(N * 3 * sizeof *z), *weight = malloc(N * sizeof *weight);
    uint32_t *label = malloc(N * sizeof *label);
    /* Labels drawn from softmax(z / 2.5). */
    for (uint32_t i = 0; i < N; i++) {
        float p[3];
        for (uint32_t c = 0; c < 3; c++) z[3 * i + c] = (float)(8 * uniform(i, 80 + c));
        task_softmax(z + 3 * i, 3, 2.5f, p);
        const double u = uniform(i, 90);
        label[i] = u < (double)p[0] ? 0 : u < (double)p[0] + (double)p[1] ? 1 : 2;
        weight[i] = 1;
    }
    const float t = task_fit_temperature(z, label, weight, N, 3);
    assert_true(t > 2.3f && t < 2.7f);
    free(z);
    free(weight);
    free(label);
}

/* ---- the second look ---- */

static void test_head(void **state) {
    (void)state;
    enum { N = 600, D = 40, SOURCES = 5 };
    struct error e;
    struct task_model *m;
    size_t bytes;
    const void *embedded = task_model_default_bytes(&bytes);
    assert_int_equal(task_model_read(embedded, bytes, &m, &e), STATUS_OK);
    float *hidden = malloc(N * D * sizeof *hidden), *first = malloc(N * 4 * sizeof *first);
    uint32_t *label = malloc(N * sizeof *label), *source = malloc(N * sizeof *source);
    for (uint32_t r = 0; r < N; r++) {
        label[r] = (uint32_t)draw(r, 100) % 4;
        source[r] = r % SOURCES;
        for (uint32_t d = 0; d < D; d++)
            hidden[r * D + d] =
                (float)(3 * d + 5 * (uniform(r, 110 + d) - 0.5) + (d % 4 == label[r] ? 1.2 : 0));
        for (uint32_t c = 0; c < 4; c++)
            first[r * 4 + c] = (float)(2 * uniform(r, 200 + c) + (c == label[r] ? 0.8 : 0));
    }
    struct task_train_options o = task_train_defaults();
    const struct task_head_input in = {hidden, label, source, first, N, D, 6, SOURCES, {7, 8}};
    const uint64_t other[2] = {7, 9};
    struct task_scores alone, both;
    assert_int_equal(task_train_head(m, &in, &o, &alone, &both, &e), STATUS_OK);
    print_message("head alone %.3f, with the first look %.3f\n", task_scores_accuracy(&alone),
                  task_scores_accuracy(&both));
    assert_true(task_scores_accuracy(&alone) > 0.7);
    assert_true(task_scores_accuracy(&both) > task_scores_accuracy(&alone));
    assert_int_equal(task_model_head_dim(m, in.model), D);
    assert_int_equal(task_model_head_dim(m, other), 0);
    assert_int_equal(task_model_head_layer(m), 6);

    /* Written, read, and used: an ambiguous first look yields to the head. */
    struct buffer b;
    struct task_model *again;
    buffer_init(&b, 0);
    assert_int_equal(task_model_write(m, &b, &e), STATUS_OK);
    assert_int_equal(task_model_read(b.data, b.len, &again, &e), STATUS_OK);
    uint32_t right = 0;
    for (uint32_t r = 0; r < N; r++) {
        struct task_verdict v = {0}, w;
        assert_true(task_model_refine(m, hidden + r * D, &v));
        w = (struct task_verdict){0};
        assert_true(task_model_refine(again, hidden + r * D, &w));
        assert_memory_equal(v.probability, w.probability, sizeof v.probability);
        right += v.class == label[r];
    }
    assert_true(right > N * 0.7);
    struct task_verdict v = {.class = 2, .confidence = 0.5f};
    hidden[0] = NAN;
    assert_false(task_model_refine(m, hidden, &v));
    assert_true(v.class == 2 && v.confidence == 0.5f);
    assert_int_equal(task_train_head(m, &in, &o, &alone, &both, &e), STATUS_BAD_NUMBER);
    buffer_free(&b);
    task_model_free(again);
    task_model_free(m);
    free(hidden);
    free(first);
    free(label);
    free(source);
}

/* Of this thread alone: what others do on the machine does not count. */
static uint64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_ns(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void test_fast_enough(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#endif
    enum { RUNS = 1000 };
    char text[2001];
    for (uint32_t i = 0; i < 2000; i++) text[i] = "etaoin shrdlu.?{}(;=3 "[draw(i, 300) % 22];
    uint64_t ns[RUNS];
    for (int i = 0; i < RUNS; i++) {
        struct task_verdict v;
        const uint64_t start = cpu_ns();
        task_model_classify(model, workspace, text, 2000, &v);
        ns[i] = cpu_ns() - start;
    }
    qsort(ns, RUNS, sizeof ns[0], by_ns);
    print_message("2,000 random characters: median %.0f us, p99 %.0f us\n",
                  (double)ns[RUNS / 2] / 1e3, (double)ns[RUNS * 99 / 100] / 1e3);
    assert_true(ns[RUNS * 99 / 100] < 1000000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_default_model), cmocka_unit_test(test_verdict),
        cmocka_unit_test(test_abstention),    cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_damaged_files), cmocka_unit_test(test_forged_files),
        cmocka_unit_test(test_optimum),       cmocka_unit_test(test_temperature),
        cmocka_unit_test(test_head),          cmocka_unit_test(test_fast_enough),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
