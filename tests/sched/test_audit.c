/* The sequential test of audits: how soon it switches off what breaks its promise, and that it
 * leaves alone what keeps it; who is audited. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/rng.h"
#include "sched/audit.h"

enum { RUNS = 50, NEVER = 1 << 30 };

static double uniform(uint64_t seed, uint32_t run, uint32_t i) {
    return (double)(rng_draw(seed, run, i, RNG_TEST, 0) >> 11) * 0x1p-53;
}

/* The audit that switches off a profile whose share goes from `share` to `later` after `turn`. */
static uint32_t off_at(double epsilon, double share, uint32_t turn, double later, uint32_t most,
                       uint64_t seed, uint32_t run) {
    struct audit a;
    audit_init(&a, epsilon);
    for (uint32_t i = 0; i < most; i++)
        if (audit_add(&a, uniform(seed, run, i) < (i < turn ? share : later))) return i + 1;
    assert_false(a.off);
    return NEVER;
}

static uint32_t n_off_within(double epsilon, double share, uint32_t most, uint32_t runs,
                             uint64_t seed) {
    uint32_t n = 0;
    for (uint32_t r = 0; r < runs; r++)
        n += off_at(epsilon, share, most, share, most, seed, r) <= most;
    return n;
}

static void bad_is_found(void **state) {
    (void)state;
    static const double epsilons[] = {0.02, 0.05, 0.1};
    for (uint32_t i = 0; i < 3; i++) {
        const double epsilon = epsilons[i];
        const uint32_t off = n_off_within(epsilon, 3 * epsilon, 500, RUNS, 1 + i);
        print_message("# epsilon %.2f, 3 epsilon: %u of %u within 500\n", epsilon, off, RUNS);
        assert_true(off * 100 >= 95 * RUNS);
    }
    /* Half wrong, as a profile of another model would be. */
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t off = n_off_within(epsilons[i], 0.5, 20, RUNS, 11 + i);
        print_message("# epsilon %.2f, share 0.5: %u of %u within 20\n", epsilons[i], off, RUNS);
        assert_true(off * 100 >= 95 * RUNS);
    }
}

static void good_is_left_alone(void **state) {
    (void)state;
    static const double epsilons[] = {0.01, 0.02, 0.05, 0.1};
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(n_off_within(epsilons[i], epsilons[i] / 2, 5000, RUNS, 21 + i), 0);
}

/* At the promise itself Ville's bound holds: 1/32, over 400 runs at most 12.5 expected; 25 would
 * come by chance less than once in a thousand tries. */
static void promise_is_held(void **state) {
    (void)state;
    const uint32_t off = n_off_within(0.05, 0.05, 5000, 400, 31);
    print_message("# at epsilon: %u of 400 off\n", off);
    assert_true(off < 25);
}

/* What was good for 2,000 audits is found about as soon. */
static void late_change_is_found(void **state) {
    (void)state;
    uint32_t found = 0;
    for (uint32_t r = 0; r < RUNS; r++) {
        const uint32_t at = off_at(0.05, 0.025, 2000, 0.15, 2500, 41, r);
        assert_true(at > 2000);
        found += at <= 2500;
    }
    print_message("# turned bad after 2,000 audits: %u of %u within 500 more\n", found, RUNS);
    assert_true(found * 100 >= 95 * RUNS);
}

static void who_is_audited(void **state) {
    (void)state;
    struct audit a, none;
    audit_init(&a, 0.05);
    audit_init(&none, 0);
    assert_false(audit_wanted(&none, 1, 1));
    for (uint32_t i = 0; i < AUDIT_PASSED; i++) {
        assert_true(audit_wanted(&a, i, 0));
        assert_false(audit_add(&a, false));
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < 50000; i++) n += audit_wanted(&a, i, 7);
    assert_true(abs((int)n - 1000) < 100); /* 2 %, three deviations */
    assert_true(audit_wanted(&a, 3, 9) == audit_wanted(&a, 3, 9));
    while (!audit_add(&a, true)) {
    }
    assert_true(a.off && !audit_wanted(&a, 3, 9) && !audit_add(&a, true));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_is_found),    cmocka_unit_test(good_is_left_alone),
        cmocka_unit_test(promise_is_held), cmocka_unit_test(late_change_is_found),
        cmocka_unit_test(who_is_audited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
