/* cost.h: how long a step will take, learned from the steps that ran. It decides how many rows of
 * prefill and of drafts go beside the running decodes, and nothing else: never what they compute.
 *
 * Model: time = a + b * rows + c * (sum over rows of their position) / 1024 + d * outputs +
 * e * passes + f * guesses, all >= 0 (passes: of a learnt block, over all that guess), fitted by
 * least squares over steps, with weights that halve every 64 steps, and pulled to a prior so that
 * it is defined from the first step.
 */
#ifndef LAC_SCHED_COST_H
#define LAC_SCHED_COST_H

#include <stdint.h>

enum { COST_TERMS = 6 };

struct cost_model {
    /* Decayed sums of x x^T and x t, x = (1, rows, positions / 1024, outputs, passes,
     * guesses). */
    double gram[COST_TERMS][COST_TERMS], moment[COST_TERMS];
    double fit[COST_TERMS]; /* nanoseconds */
};

struct cost_work {
    uint32_t rows;
    uint64_t positions; /* sum of the rows' absolute positions */
    uint32_t outputs;
    uint32_t passes, guesses;
};

void cost_init(struct cost_model *m);
void cost_learn(struct cost_model *m, struct cost_work w, uint64_t ns);
double cost_ns(const struct cost_model *m, struct cost_work w);

/* The most rows, from position `first` on and not over `max`, that may be added to `w` without
 * passing budget_ns; 0 if there are none. */
uint32_t cost_rows_within(const struct cost_model *m, struct cost_work w, uint32_t first,
                          uint32_t max, double budget_ns);

#endif
