/* histogram.c against sorted values kept beside it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/histogram.h"
#include "core/rng.h"

enum { VALUES = 20000 };

static uint64_t draw(uint32_t i, uint32_t stream) {
    return rng_draw(21, stream, i, RNG_TEST, 0);
}

/* Log-uniform from 10 ns to 1,000 s. */
static uint64_t draw_ns(uint32_t i, uint32_t stream) {
    const double u = (double)(draw(i, stream) >> 11) * 0x1p-53;
    return (uint64_t)pow(10.0, 1.0 + 11.0 * u);
}

static int compare_u64(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void test_edges(void **state) {
    (void)state;
    for (size_t i = 1; i < HISTOGRAM_BUCKETS; i++) {
        const uint64_t low = histogram_edge_ns(i - 1), high = histogram_edge_ns(i);
        assert_true(high > low);
        if (i < HISTOGRAM_BUCKETS - 1) assert_true((high - low) * 10 <= low);
        /* Both ends of (low, high] land in bucket i, by the counts of a fresh histogram. */
        struct histogram h;
        histogram_init(&h);
        histogram_add(&h, low + 1);
        histogram_add(&h, high);
        assert_int_equal(h.buckets[i], 2);
    }
    struct histogram h;
    histogram_init(&h);
    histogram_add(&h, 0);
    histogram_add(&h, 1000);
    assert_int_equal(h.buckets[0], 2);
    assert_true(histogram_edge_ns(HISTOGRAM_BUCKETS - 2) == UINT64_C(100000000000));
}

static void test_bounds_are_exact(void **state) {
    (void)state;
    static struct histogram h;
    histogram_init(&h);
    uint64_t want[HISTOGRAM_BOUNDS] = {0}, sum = 0;
    for (uint32_t i = 0; i < VALUES; i++) {
        uint64_t ns = draw_ns(i, 1);
        /* Every fourth value sits on or beside a bound. */
        if (i % 4 == 0) ns = histogram_bound_ns(i / 4 % HISTOGRAM_BOUNDS) + i / 80 % 3 - 1;
        histogram_add(&h, ns);
        sum += ns;
        for (size_t b = 0; b < HISTOGRAM_BOUNDS; b++) want[b] += ns <= histogram_bound_ns(b);
    }
    uint64_t got[HISTOGRAM_BOUNDS];
    histogram_cumulative(&h, got);
    assert_memory_equal(got, want, sizeof got);
    assert_true(h.sum_ns == sum);
    assert_int_equal(h.count, VALUES);
    assert_true(histogram_bound_ns(0) == 100000);
    assert_true(histogram_bound_ns(HISTOGRAM_BOUNDS - 1) == UINT64_C(60000000000));
}

static void test_quantiles(void **state) {
    (void)state;
    static uint64_t values[VALUES];
    static const double qs[] = {0.0, 0.01, 0.5, 0.95, 0.99, 0.999, 1.0};
    struct histogram h;
    histogram_init(&h);
    for (uint32_t i = 0; i < VALUES; i++) {
        /* From 1 us, where the relative width is promised, to 100 s. */
        values[i] = 1000 + draw_ns(i, 2) % UINT64_C(99999999000);
        histogram_add(&h, values[i]);
    }
    qsort(values, VALUES, sizeof values[0], compare_u64);
    for (size_t i = 0; i < sizeof qs / sizeof qs[0]; i++) {
        size_t rank = (size_t)ceil(qs[i] * VALUES);
        if (rank == 0) rank = 1;
        const double want = (double)values[rank - 1];
        const double got = (double)histogram_quantile_ns(&h, qs[i]);
        if (fabs(got - want) > 0.1 * want) fail_msg("q %g: %g, want %g", qs[i], got, want);
    }
    assert_true(histogram_quantile_ns(&h, 0.0) == values[0]);
    assert_true(histogram_quantile_ns(&h, 1.0) == values[VALUES - 1]);
}

static void test_few_values(void **state) {
    (void)state;
    struct histogram h;
    histogram_init(&h);
    assert_true(histogram_quantile_ns(&h, 0.5) == 0);
    histogram_add(&h, 12345678);
    assert_true(histogram_quantile_ns(&h, 0.5) == 12345678);
    assert_true(histogram_quantile_ns(&h, 0.999) == 12345678);
    histogram_init(&h);
    histogram_add(&h, UINT64_MAX);
    assert_true(histogram_quantile_ns(&h, 0.5) == UINT64_MAX);
    assert_true(histogram_quantile_ns(&h, (double)NAN) == UINT64_MAX);
}

static void test_merge(void **state) {
    (void)state;
    struct histogram parts[3], all;
    histogram_init(&all);
    for (uint32_t p = 0; p < 3; p++) {
        histogram_init(&parts[p]);
        for (uint32_t i = 0; i < 500; i++) {
            const uint64_t ns = draw_ns(i, 10 + p);
            histogram_add(&parts[p], ns);
            histogram_add(&all, ns);
        }
    }
    struct histogram merged;
    histogram_init(&merged);
    histogram_merge(&merged, &merged); /* empty into empty */
    for (int p = 0; p < 3; p++) histogram_merge(&merged, &parts[p]);
    assert_memory_equal(&merged, &all, sizeof all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_edges),     cmocka_unit_test(test_bounds_are_exact),
        cmocka_unit_test(test_quantiles), cmocka_unit_test(test_few_values),
        cmocka_unit_test(test_merge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
