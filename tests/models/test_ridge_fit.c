/* ridge_fit.c: a planted map is found again; the normal equations hold; the same bits however the
 * threads and the instruction set; refusals. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/cpu_features.h"
#include "core/rng.h"
#include "models/ridge_fit.h"

enum { IN = 37, OUT = 19, ROWS = 200, PIECE = 48 };
static float x[ROWS * IN], y[ROWS * OUT], planted[OUT * IN];

static float uniform(uint64_t seed, uint32_t i) {
    return (float)((double)(rng_draw(seed, 0, i, RNG_TEST, 0) >> 11) * 0x1p-53 * 2 - 1);
}

/* y = planted x + noise */
static void make_rows(float noise) {
    for (uint32_t i = 0; i < ROWS * IN; i++) x[i] = uniform(1, i);
    for (uint32_t i = 0; i < OUT * IN; i++) planted[i] = uniform(2, i);
    for (uint32_t r = 0; r < ROWS; r++) {
        for (uint32_t o = 0; o < OUT; o++) {
            float sum = noise * uniform(3, r * OUT + o);
            for (uint32_t i = 0; i < IN; i++) sum += planted[o * IN + i] * x[r * IN + i];
            y[r * OUT + o] = sum;
        }
    }
}

static enum status fit(enum cpu_isa isa, struct worker_pool *pool, double share, float *w) {
    struct error e = {0};
    struct ridge_fit f;
    assert_int_equal(ridge_fit_open(&f, IN, OUT, PIECE, isa, pool, &e), STATUS_OK);
    for (uint32_t r = 0; r < ROWS; r += PIECE)
        ridge_fit_add(&f, x + r * IN, y + r * OUT, ROWS - r < PIECE ? ROWS - r : PIECE);
    const enum status st = ridge_fit_solve(&f, share, w, &e);
    ridge_fit_close(&f);
    return st;
}

static void test_planted_map(void **state) {
    (void)state;
    float w[OUT * IN];
    make_rows(0);
    assert_int_equal(fit(CPU_ISA_SCALAR, NULL, 1e-9, w), STATUS_OK);
    for (uint32_t i = 0; i < OUT * IN; i++) assert_true(fabsf(w[i] - planted[i]) < 1e-4f);
}

/* X^T (Y - X W^T) = lambda W^T, here in float64. */
static void test_normal_equations(void **state) {
    (void)state;
    const double share = 0.3;
    float w[OUT * IN];
    make_rows(0.5f);
    assert_int_equal(fit(CPU_ISA_SCALAR, NULL, share, w), STATUS_OK);
    double trace = 0;
    for (uint32_t i = 0; i < ROWS * IN; i++) trace += (double)x[i] * (double)x[i];
    for (uint32_t o = 0; o < OUT; o++) {
        double left[IN] = {0};
        for (uint32_t r = 0; r < ROWS; r++) {
            double off = (double)y[r * OUT + o];
            for (uint32_t i = 0; i < IN; i++) off -= (double)w[o * IN + i] * (double)x[r * IN + i];
            for (uint32_t i = 0; i < IN; i++) left[i] += off * (double)x[r * IN + i];
        }
        for (uint32_t i = 0; i < IN; i++)
            assert_true(fabs(left[i] - share * trace / IN * (double)w[o * IN + i]) < 1e-3);
    }
}

static void test_same_bits(void **state) {
    (void)state;
    float first[OUT * IN], w[OUT * IN];
    struct error e = {0};
    struct worker_pool *pool;
    struct cpu_features features;
    cpu_features_detect(&features);
    const struct worker_pool_config cfg = {.n_workers = 3};
    make_rows(0.5f);
    assert_int_equal(fit(CPU_ISA_SCALAR, NULL, 1e-3, first), STATUS_OK);
    assert_int_equal(worker_pool_start(&cfg, &pool, &e), STATUS_OK);
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!cpu_isa_supported(&features, (enum cpu_isa)isa)) continue;
        assert_int_equal(fit((enum cpu_isa)isa, pool, 1e-3, w), STATUS_OK);
        assert_memory_equal(w, first, sizeof w);
    }
    worker_pool_stop(pool);
}

static void test_refusals(void **state) {
    (void)state;
    float w[OUT * IN];
    make_rows(0.5f);
    x[7] = NAN;
    assert_int_equal(fit(CPU_ISA_SCALAR, NULL, 1e-3, w), STATUS_INVALID);
    x[7] = 0;
    struct error e = {0};
    struct ridge_fit f;
    assert_int_equal(ridge_fit_open(&f, IN, OUT, PIECE, CPU_ISA_SCALAR, NULL, &e), STATUS_OK);
    assert_int_equal(ridge_fit_solve(&f, 1e-3, w, &e), STATUS_INVALID);
    ridge_fit_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planted_map),
        cmocka_unit_test(test_normal_equations),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
