#include "sched/cost.h"

#include <string.h>

static const double prior[COST_TERMS] = {500e3, 500e3, 50e3, 100e3, 150e3, 30e3};
/* Weight of the prior, in squares of a term's usual size: a handful of steps outweigh it. */
static const double prior_weight[COST_TERMS] = {1, 16, 16, 16, 16, 16};
static const double decay = 0.98922; /* 2^(-1/64) */

static void features(struct cost_work w, double x[COST_TERMS]) {
    x[0] = 1;
    x[1] = w.rows;
    x[2] = (double)w.positions / 1024;
    x[3] = w.outputs;
    x[4] = w.passes;
    x[5] = w.guesses;
}

/* Gaussian elimination without pivoting; the matrix is positive definite by its prior. */
static void solve(double a[COST_TERMS][COST_TERMS], double b[COST_TERMS],
                  const double fixed[COST_TERMS], double out[COST_TERMS]) {
    for (int k = 0; k < COST_TERMS; k++) {
        for (int i = k + 1; i < COST_TERMS; i++) {
            const double f = a[i][k] / a[k][k];
            for (int j = k; j < COST_TERMS; j++) a[i][j] -= f * a[k][j];
            b[i] -= f * b[k];
        }
    }
    for (int k = COST_TERMS; k-- > 0;) {
        double s = b[k];
        for (int j = k + 1; j < COST_TERMS; j++) s -= a[k][j] * out[j];
        out[k] = s / a[k][k];
        /* A negative term would make more work look cheaper. */
        if (!(out[k] >= fixed[k] * 1e-4)) out[k] = fixed[k] * 1e-4;
    }
}

static void refit(struct cost_model *m) {
    double a[COST_TERMS][COST_TERMS], b[COST_TERMS];
    memcpy(a, m->gram, sizeof a);
    memcpy(b, m->moment, sizeof b);
    for (int k = 0; k < COST_TERMS; k++) {
        a[k][k] += prior_weight[k];
        b[k] += prior_weight[k] * prior[k];
    }
    solve(a, b, prior, m->fit);
}

void cost_init(struct cost_model *m) {
    memset(m, 0, sizeof *m);
    memcpy(m->fit, prior, sizeof m->fit);
}

void cost_learn(struct cost_model *m, struct cost_work w, uint64_t ns) {
    double x[COST_TERMS];
    features(w, x);
    /* A step that was held up (a stopped process, a busy neighbour) must not teach its delay whole.
     */
    const double most = 4 * cost_ns(m, w);
    const double time = (double)ns < most ? (double)ns : most;
    for (int i = 0; i < COST_TERMS; i++) {
        for (int j = 0; j < COST_TERMS; j++) m->gram[i][j] = m->gram[i][j] * decay + x[i] * x[j];
        m->moment[i] = m->moment[i] * decay + x[i] * time;
    }
    refit(m);
}

double cost_ns(const struct cost_model *m, struct cost_work w) {
    double x[COST_TERMS], ns = 0;
    features(w, x);
    for (int i = 0; i < COST_TERMS; i++) ns += m->fit[i] * x[i];
    return ns;
}

uint32_t cost_rows_within(const struct cost_model *m, struct cost_work w, uint32_t first,
                          uint32_t max, double budget_ns) {
    uint32_t lo = 0, hi = max;
    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo + 1) / 2;
        struct cost_work with = w;
        with.rows += mid;
        with.positions += (uint64_t)mid * first + (uint64_t)mid * (mid - 1) / 2;
        if (cost_ns(m, with) <= budget_ns)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}
