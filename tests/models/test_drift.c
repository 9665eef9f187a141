/* Drift: distances against a direct computation, p-values against tables, the stated rate of false
 * alarms against simulation, and the streams of the shared data. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/rng.h"
#include "models/drift.h"
#include "models/task_default.h"
#include "models/task_train.h"

static double uniform(uint32_t a, uint32_t b) {
    return ((double)(rng_draw(11, a, b, RNG_TEST, 0) >> 11) + 0.5) / 9007199254740992.0;
}

static int by_value(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void test_ks_distance(void **state) {
    (void)state;
    for (uint32_t round = 0; round < 300; round++) {
        float a[60], b[60];
        const uint32_t n = 1 + (uint32_t)(uniform(round, 0) * 59),
                       m = 1 + (uint32_t)(uniform(round, 1) * 59);
        /* Few different values in every other round: ties. */
        const double levels = round % 2 ? 5 : 1e6;
        for (uint32_t i = 0; i < n; i++) a[i] = (float)floor(uniform(round, 10 + i) * levels);
        for (uint32_t i = 0; i < m; i++) b[i] = (float)floor(uniform(round, 100 + i) * levels);
        double most = 0;
        for (uint32_t k = 0; k < n + m; k++) {
            const float x = k < n ? a[k] : b[k - n];
            double below_a = 0, below_b = 0;
            for (uint32_t i = 0; i < n; i++) below_a += a[i] <= x;
            for (uint32_t i = 0; i < m; i++) below_b += b[i] <= x;
            most = fmax(most, fabs(below_a / n - below_b / m));
        }
        qsort(a, n, sizeof a[0], by_value);
        qsort(b, m, sizeof b[0], by_value);
        double distance;
        drift_ks(a, n, b, m, &distance);
        assert_true(fabs(distance - most) < 1e-12);
    }
}

static void test_p_values(void **state) {
    (void)state;
    /* Upper 5 % and 1 % points of chi-squared, from the usual tables. */
    static const double five[] = {3.841, 5.991, 7.815, 9.488, 11.070, 12.592};
    static const double one[] = {6.635, 9.210, 11.345, 13.277, 15.086, 16.812};
    for (uint32_t d = 1; d <= 6; d++) {
        assert_true(fabs(drift_chi_squared(five[d - 1], d) - 0.05) < 1e-4);
        assert_true(fabs(drift_chi_squared(one[d - 1], d) - 0.01) < 3e-5);
    }
    assert_true(drift_chi_squared(0, 3) == 1);
    /* Large samples: Kolmogorov's 5 % point is 1.3581 / root. */
    enum { N = 20000 };
    float *a = malloc(N * sizeof *a), *b = malloc(N * sizeof *b);
    const double d = 1.3581 / sqrt(N / 2.0);
    for (int i = 0; i < N; i++) {
        a[i] = (float)i;
        b[i] = (float)i + (float)(d * N);
    }
    double distance;
    assert_true(fabs(drift_ks(a, N, b, N, &distance) - 0.05) < 0.002);
    free(a);
    free(b);
    const uint32_t before[3] = {50, 30, 20}, now[3] = {20, 30, 50};
    double psi;
    assert_true(drift_psi(before, now, 3, &psi) < 0.001);
    const double share = 50.5 / 101.5, other = 20.5 / 101.5;
    assert_true(fabs(psi - 2 * (share - other) * log(share / other)) < 1e-9);
}

/* The first alarm of a stream whose series move by `shift` at row 600, or 0. */
static uint64_t simulate(uint32_t stream, uint32_t rows, double shift, double class_shift) {
    struct error e;
    struct drift_options o = drift_defaults(3, 4);
    struct drift_monitor *m;
    uint64_t first = 0;
    assert_int_equal(drift_new(&o, &m, &e), STATUS_OK);
    for (uint32_t r = 0; r < rows && first == 0; r++) {
        const bool moved = r >= 600;
        struct drift_row row = {.right = DRIFT_UNKNOWN};
        for (uint32_t s = 0; s < 3; s++)
            row.value[s] = (float)(uniform(stream, 8 * r + s) + (moved ? shift : 0));
        row.class = uniform(stream, 8 * r + 5) < 0.2 + (moved ? class_shift : 0);
        struct drift_result result;
        if (drift_add(m, &row, &result) && result.alarm) first = r;
    }
    drift_free(m);
    return first;
}

static void test_false_alarms(void **state) {
    (void)state;
    uint32_t alarms = 0;
    for (uint32_t stream = 0; stream < 300; stream++)
        alarms += simulate(1000 + stream, 1000 + 400, 0, 0) != 0;
    print_message("%u of 300 streams without drift raised an alarm (stated: at most 3)\n", alarms);
    assert_true(alarms <= 3);
}

static void test_shifts_are_found(void **state) {
    (void)state;
    for (uint32_t stream = 0; stream < 20; stream++) {
        const uint64_t values = simulate(stream, 1000, 0.35, 0);
        const uint64_t classes = simulate(100 + stream, 1000, 0, 0.4);
        assert_true(values >= 600 && values <= 720);
        assert_true(classes >= 600 && classes <= 720);
    }
}

static void test_accuracy_and_hostile_values(void **state) {
    (void)state;
    struct error e;
    struct drift_options o = drift_defaults(1, 2);
    struct drift_monitor *m;
    o.window_rows = 10;
    assert_int_equal(drift_new(&o, &m, &e), STATUS_INVALID);
    assert_null(m);
    o.window_rows = 50;
    o.reference_rows = 50;
    assert_int_equal(drift_new(&o, &m, &e), STATUS_OK);
    struct drift_result r = {0};
    for (uint32_t i = 0; i < 100; i++) {
        const struct drift_row row = {.value = {i % 2 ? NAN : INFINITY},
                                      .right = i < 50 || i % 3 ? DRIFT_RIGHT : DRIFT_WRONG};
        assert_false(drift_add(m, &row, &r) && i < 99);
    }
    assert_true(r.ks[0] == 0 && !r.alarm);
    assert_true(r.accuracy_before == 1 && fabs(r.accuracy_now - 0.66) < 0.02 && r.falling);
    drift_free(m);
}

/* ---- shared data ---- */

static const char *shared(char *path, size_t n, const char *name) {
    const char *root = getenv("LAC_SHARED");
    snprintf(path, n, "%s/data/%s", root ? root : "../shared", name);
    FILE *f = fopen(path, "rb");
    if (f == NULL) return NULL;
    fclose(f);
    return path;
}

static void load(struct task_set *s, const struct task_model *m, const char *path) {
    struct error e;
    task_set_init(s);
    task_set_use_labels(s, m);
    assert_int_equal(task_set_load(s, path, true, &e), STATUS_OK);
}

struct stream_alarm {
    uint64_t all, length; /* row of the first alarm; 0: none */
};

/* The monitor's series, and one of the length alone beside it. */
static struct stream_alarm watch(const struct task_model *m, const struct task_set *s) {
    struct error e;
    struct task_workspace *w;
    struct drift_monitor *all, *length;
    struct drift_options o = drift_defaults(3, 4), just_one = drift_defaults(1, 4);
    struct stream_alarm first = {0};
    assert_int_equal(task_workspace_new(&w, &e), STATUS_OK);
    assert_int_equal(drift_new(&o, &all, &e), STATUS_OK);
    assert_int_equal(drift_new(&just_one, &length, &e), STATUS_OK);
    for (uint32_t i = 0; i < s->n; i++) {
        struct task_verdict v;
        struct drift_result r;
        task_model_classify(m, w, s->rows[i].text, s->rows[i].len, &v);
        const struct drift_row row = {
            .class = v.class, .value = {v.confidence, v.norm, v.unseen}, .right = DRIFT_UNKNOWN};
        const struct drift_row len = {.value = {(float)s->rows[i].len}, .right = DRIFT_UNKNOWN};
        if (drift_add(all, &row, &r) && r.alarm && first.all == 0) first.all = i;
        if (drift_add(length, &len, &r) && r.alarm && first.length == 0) first.length = i;
    }
    drift_free(all);
    drift_free(length);
    task_workspace_free(w);
    return first;
}

static void test_shared_streams(void **state) {
    (void)state;
    char a[512], b[512];
    if (!shared(a, sizeof a, "drift/abrupt.jsonl") ||
        !shared(b, sizeof b, "drift/control_nodrift.jsonl")) {
        print_message("skip: ../shared/data/drift is not here\n");
        return;
    }
    struct error e;
    struct task_model *m;
    struct task_set abrupt, control;
    assert_int_equal(task_model_default(&m, &e), STATUS_OK);
    load(&abrupt, m, a);
    load(&control, m, b);
    const struct stream_alarm drifted = watch(m, &abrupt), still = watch(m, &control);
    print_message("abrupt: alarm at row %llu (length alone: %llu); control: %llu (%llu)\n",
                  (unsigned long long)drifted.all, (unsigned long long)drifted.length,
                  (unsigned long long)still.all, (unsigned long long)still.length);
    assert_true(drifted.all >= 600 && drifted.all < 750);
    assert_int_equal(still.all, 0);
    task_set_free(&abrupt);
    task_set_free(&control);
    task_model_free(m);
}

static struct task_set part(const struct task_set *s, uint32_t from, uint32_t to) {
    struct task_set p = *s;
    p.rows += from;
    p.n = to - from;
    return p;
}

static double f1(const struct task_model *m, const struct task_set *a, const struct task_set *b,
                 double *baseline) {
    struct error e;
    struct task_scores x, y, constant;
    assert_int_equal(task_test(m, a, &x, NULL, &e), STATUS_OK);
    assert_int_equal(task_test(m, b, &y, NULL, &e), STATUS_OK);
    task_scores_merge(&x, &y);
    task_scores_init(&constant, x.n_classes);
    const uint32_t answer = (uint32_t)task_model_class(m, "deterministic");
    for (uint32_t t = 0; t < x.n_classes; t++) {
        for (uint32_t k = 0; k < x.n_classes; k++)
            constant.confusion[t][answer] += x.confusion[t][k];
    }
    if (baseline != NULL) *baseline = task_scores_macro_f1(&constant);
    return task_scores_macro_f1(&x);
}

/* 200 labelled rows after the shift, the old rows replayed. Drift rows are mixed one to three with
 * rows of four classes. */
static void test_shared_retraining(void **state) {
    (void)state;
    char a[512], b[512], c[512];
    if (!shared(a, sizeof a, "drift/abrupt.jsonl") ||
        !shared(b, sizeof b, "prompts/calibration.jsonl") ||
        !shared(c, sizeof c, "tasks/train.jsonl")) {
        print_message("skip: ../shared/data is not here\n");
        return;
    }
    struct error e;
    struct task_model *old, *new;
    struct task_set stream, four, replay;
    assert_int_equal(task_model_default(&old, &e), STATUS_OK);
    load(&stream, old, a);
    load(&four, old, b);
    load(&replay, old, c);
    const struct task_set before = part(&stream, 300, 600), fresh = part(&stream, 600, 800),
                          after = part(&stream, 800, stream.n),
                          mix_before = part(&four, 0, 3 * before.n),
                          mix_after = part(&four, 0, 3 * after.n), none = part(&four, 0, 0);
    struct task_train_options o = task_train_defaults();
    o.cost = TASK_ADAPT_COST;
    assert_int_equal(task_adapt(old, &fresh, &replay, &o, &new, &e), STATUS_OK);
    double constant;
    const double f_before = f1(old, &before, &mix_before, &constant);
    const double f_after = f1(old, &after, &mix_after, NULL);
    const double f_new = f1(new, &after, &mix_after, NULL);
    const double f_old_domain = f1(old, &four, &none, NULL), f_kept = f1(new, &four, &none, NULL);
    print_message("macro-F1: before %.4f, after the shift %.4f, retrained %.4f; old domain %.4f -> "
                  "%.4f; always deterministic %.4f\n",
                  f_before, f_after, f_new, f_old_domain, f_kept, constant);
    assert_true(f_new >= f_before - 0.02);
    assert_true(f_kept >= f_old_domain - 0.01);
    assert_true(f_new > f_after);
    assert_true(constant < 0.3);
    task_set_free(&stream);
    task_set_free(&four);
    task_set_free(&replay);
    task_model_free(old);
    task_model_free(new);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ks_distance),
        cmocka_unit_test(test_p_values),
        cmocka_unit_test(test_false_alarms),
        cmocka_unit_test(test_shifts_are_found),
        cmocka_unit_test(test_accuracy_and_hostile_values),
        cmocka_unit_test(test_shared_streams),
        cmocka_unit_test(test_shared_retraining),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
