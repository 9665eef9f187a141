/* The figures of `laconic diagnose` against cases worked out by hand, and its pictures as files. */
#include "cmd/diagnose_stats.h"

#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "cmd/plot.h"
#include "cmd/png.h"

static void near(double a, double b) {
    if (fabs(a - b) > 1e-9) fail_msg("%.12g is not %.12g", a, b);
}

static void quantiles(void **state) {
    (void)state;
    const double v[] = {5, 1, NAN, 3, 2, 4};
    const struct distribution d = distribution_of(v, 6);
    assert_int_equal(d.n, 5);
    near(d.p50, 3), near(d.p90, 4.6), near(d.p95, 4.8), near(d.mean, 3);
    near(d.least, 1), near(d.most, 5), near(d.tail.value, 1.6);
    assert_true(d.tail.low <= 1.6 && d.tail.high >= 1.6);
    const double one[] = {7};
    near(distribution_of(one, 1).p95, 7);
    assert_int_equal(distribution_of(one, 0).n, 0);
}

/* The interval must hold the truth where it is known, and be narrow where nothing varies. */
static void intervals(void **state) {
    (void)state;
    double a[100], b[100];
    for (int i = 0; i < 100; i++) {
        a[i] = 1 + i * 0.01;
        b[i] = 1.5 * a[i];
    }
    struct interval v = compare_paired(PAIRED_MEDIAN_RATIO, a, b, 100);
    near(v.value, 1.5), near(v.low, 1.5), near(v.high, 1.5);
    v = compare_paired(PAIRED_P95_RATIO, a, b, 100);
    near(v.value, 1.5), near(v.low, 1.5), near(v.high, 1.5);
    v = compare_paired(PAIRED_MEAN_DIFFERENCE, a, b, 100);
    near(v.value, 0.5 * 1.495);
    /* Of the mean, +- 1.96 deviations of the mean: 0.2887 * 0.5 / 10. */
    assert_true(v.low > v.value - 0.034 && v.low < v.value - 0.024);
    assert_true(v.high < v.value + 0.034 && v.high > v.value + 0.024);
    const struct interval again = compare_paired(PAIRED_MEAN_DIFFERENCE, a, b, 100);
    assert_memory_equal(&again, &v, sizeof v);
}

static double agree(const char *a, const char *b) {
    const double v = agreement(a, strlen(a), b, strlen(b));
    near(v, agreement(b, strlen(b), a, strlen(a)));
    return v;
}

static void agreements(void **state) {
    (void)state;
    near(agree("The cat sat.", "the CAT, sat"), 1);
    near(agree("one two three four", "one three four five"), 0.75);
    near(agree("a b c", "x y z"), 0);
    near(agree("", ""), 1);
    near(agree("...", ""), 0);
    near(agree("word", ""), 0);
    near(agree("今天天气好", "今天很好"), 2.0 * 3 / 9);
    near(agree("abc今", "abc 今"), 1);
    near(agree("\xFF\xFE bad", "bad"), 1);
    static char long_text[20000];
    for (int i = 0; i < 19999; i++) long_text[i] = (char)(i % 5 == 4 ? ' ' : 'a' + i % 5);
    near(agree(long_text, long_text), 1);
}

static void stretches(void **state) {
    (void)state;
    double entropy[40], similarity[40];
    struct stretch s[4];
    for (int i = 0; i < 40; i++) entropy[i] = 1, similarity[i] = i < 4 ? NAN : 0.6;
    assert_int_equal(find_stretches(entropy, similarity, 40, s, 4), 0);
    for (int i = 10; i < 22; i++) entropy[i] = 3, similarity[i] = 0.1;
    assert_int_equal(find_stretches(entropy, similarity, 40, s, 4), 1);
    /* Windows of 8 with a mean over 2.5: at most one of the others' tokens. */
    assert_int_equal(s[0].from, 9), assert_int_equal(s[0].to, 23);
    /* Sure of itself, or on its topic: no stretch. */
    for (int i = 10; i < 22; i++) similarity[i] = 0.5;
    assert_int_equal(find_stretches(entropy, similarity, 40, s, 4), 0);
    for (int i = 0; i < 40; i++) similarity[i] = NAN;
    assert_int_equal(find_stretches(entropy, similarity, 40, s, 4), 1);
    for (int i = 0; i < 40; i++) entropy[i] = i % 20 < 10 ? 5 : 0;
    assert_int_equal(find_stretches(entropy, similarity, 40, s, 1), 2);
    assert_int_equal(find_stretches(entropy, similarity, 7, s, 4), 0);
    assert_int_equal(find_stretches(entropy, similarity, 0, s, 4), 0);
}

static void ticks(void **state) {
    (void)state;
    near(plot_tick(10, 6), 2), near(plot_tick(6, 6), 1), near(plot_tick(100, 6), 20);
    near(plot_tick(0.3, 6), 0.05), near(plot_tick(2300, 6), 500);
}

/* What is drawn out of the frame or is no number leaves no mark and does no harm. */
static void pictures(void **state) {
    (void)state;
    char path[] = "/tmp/diagnose-XXXXXX";
    struct error e = {0};
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    struct plot *p = plot_open(300, 200);
    const struct plot_axes a =
        plot_axes(p, 40, 20, 280, 160, 0, 10, -1, 1, "title \xE4\xBB\x8A", "x");
    const double x[] = {-1e30, 0, 5, NAN, 20, 1e300}, y[] = {0, -5, 0.5, 1, INFINITY, -1e300};
    plot_curve(&a, PLOT_BLUE, x, y, 6);
    plot_dots(&a, PLOT_ORANGE, x, y, 6);
    plot_band(&a, PLOT_ROSE, -100, 100);
    plot_band(&a, PLOT_ROSE, 200, 300);
    plot_legend(&a, PLOT_GREY, 0, "name");
    plot_text(p, -50, -50, PLOT_BLACK, "outside");
    plot_text(p, 298, 198, PLOT_BLACK, "outside");
    assert_int_equal(plot_save(p, path, &e), STATUS_OK);
    assert_int_equal(plot_save(p, "/nowhere/at/all.png", &e), STATUS_IO);
    assert_int_equal(plot_save(NULL, path, &e), STATUS_NO_MEMORY);
    plot_close(p);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles), cmocka_unit_test(intervals), cmocka_unit_test(agreements),
        cmocka_unit_test(stretches), cmocka_unit_test(ticks),     cmocka_unit_test(pictures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
