/* Compares core/math.c with the C library's long double functions at random points. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>

#include "core/math.h"
#include "core/rng.h"

static double uniform(uint32_t i, uint32_t stream) {
    return (double)(rng_draw(20240611, stream, i, RNG_TEST, 0) >> 11) * 0x1p-53;
}

/* |got - want| in units of the last place of a float (24 bits) or double (53 bits) near `want`. */
static double ulps(long double got, long double want, int bits, int min_exponent) {
    if (got == want) return 0;
    int e;
    frexpl(want, &e);
    if (e < min_exponent) e = min_exponent;
    return (double)(fabsl(got - want) / ldexpl(1, e - bits));
}

static void expf_is_within_one_ulp(void **state) {
    (void)state;
    double worst = 0;
    for (uint32_t i = 0; i < 1000000; i++) {
        const float x = (float)(uniform(i, 1) * 192.7 - 104);
        const double u = ulps(math_expf(x), expl(x), 24, -125);
        if (u > worst) worst = u;
    }
    printf("expf: %.3f ulp\n", worst);
    assert_true(worst <= 1.0);
    assert_true(math_expf(0) == 1.0f);
    assert_true(math_expf(-INFINITY) == 0.0f && math_expf(-200) == 0.0f);
    assert_true(isinf(math_expf(INFINITY)) && isinf(math_expf(89.5f)));
    assert_true(isnan(math_expf(NAN)));
}

static void double_functions_are_within_two_ulp(void **state) {
    (void)state;
    double worst_exp = 0, worst_log = 0, worst_sin = 0, worst_cos = 0, worst_logf = 0;
    for (uint32_t i = 0; i < 300000; i++) {
        const double x = uniform(i, 2) * 1400 - 700;
        double u = ulps(math_exp(x), expl(x), 53, -1021);
        if (u > worst_exp) worst_exp = u;
        const double y = i % 2 ? exp(x) : 0.5 + uniform(i, 3);
        u = ulps(math_log(y), logl(y), 53, -1021);
        if (u > worst_log) worst_log = u;
        u = ulps(math_logf((float)y), logl((float)y), 24, -125);
        if ((float)y > 0 && !isinf((float)y) && u > worst_logf) worst_logf = u;
        const double a = (uniform(i, 4) - 0.5) * (i % 3 == 0 ? 3 : i % 3 == 1 ? 20000 : 4e6);
        double s, c;
        math_sincos(a, &s, &c);
        /* Near a zero of sin the reduction's absolute error is what is promised. */
        u = (double)(fabsl(s - sinl(a)) / 0x1p-53L);
        if (u > worst_sin) worst_sin = u;
        u = (double)(fabsl(c - cosl(a)) / 0x1p-53L);
        if (u > worst_cos) worst_cos = u;
    }
    printf("exp %.2f, log %.2f, logf %.2f, sin %.2f, cos %.2f ulp\n", worst_exp, worst_log,
           worst_logf, worst_sin, worst_cos);
    assert_true(worst_exp <= 2 && worst_log <= 2 && worst_logf <= 1);
    assert_true(worst_sin <= 2 && worst_cos <= 2);
    assert_true(math_exp(0) == 1 && math_log(1) == 0);
    assert_true(isinf(math_log(0)) && isnan(math_log(-1)) && isinf(math_exp(800)));
    assert_true(math_exp(-800) == 0 && isnan(math_exp(NAN)));
    assert_true(ulps(math_log(0x1p-1070), logl(0x1p-1070), 53, -1021) <= 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expf_is_within_one_ulp),
        cmocka_unit_test(double_functions_are_within_two_ulp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
