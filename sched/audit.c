#include "sched/audit.h"

#include "core/check.h"
#include "core/rng.h"

void audit_init(struct audit *a, double epsilon) {
    CHECK(epsilon >= 0 && epsilon < 1);
    *a = (struct audit){.epsilon = epsilon, .to_come = 1};
}

bool audit_wanted(const struct audit *a, uint64_t seed, uint32_t position) {
    if (a->epsilon <= 0 || a->off) return false;
    if (a->n - a->n_differed < AUDIT_PASSED) return true;
    return rng_draw(seed, 0, position, RNG_AUDIT, 0) < UINT64_MAX / AUDIT_EVERY;
}

/* Three times as often; where that is too much to be a share, a third as seldom right. */
static double too_often(double epsilon) {
    return epsilon < 0.25 ? 3 * epsilon : 1 - (1 - epsilon) / 3;
}

static void begin_hypothesis(struct audit *a) {
    const double j = (double)(a->n / AUDIT_RESTART);
    const double weight = a->n == 0 ? 0.5 : 0.5 / (j * (j + 1));
    a->evidence += weight;
    a->to_come -= weight;
}

bool audit_add(struct audit *a, bool differed) {
    CHECK(a->epsilon > 0);
    const double bad = too_often(a->epsilon);
    if (a->n % AUDIT_RESTART == 0) begin_hypothesis(a);
    a->n++;
    a->n_differed += differed;
    a->evidence *= differed ? bad / a->epsilon : (1 - bad) / (1 - a->epsilon);
    if (a->off || a->evidence + a->to_come < AUDIT_EVIDENCE) return false;
    return a->off = true;
}
