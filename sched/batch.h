/* batch.h: builds one step from the running slots: every decode that may run, and beside them
 * chunks of prefill, sized in time by the cost model. What is chosen here never changes an output.
 *
 * All decodes go into every step. Prefill gets `budget_ns` beside decodes, five times that alone,
 * shared equally among the prompts that wait, least recently served first; what one does not need
 * goes to the next. A chunk is at least 16 rows (or the rest), and ends on a page's edge when it
 * can. A text that label heads look at is one span, in the first step that has room for it; labels
 * that are scored take rows like prefill, as many at once as the slot has choices.
 *
 * Drafts (sched/draft.h) take rows behind a decode's own as long as each is worth its time: with N
 * tokens expected from a step of T ns, a row that comes true with probability p and costs dT ns is
 * added while (N + p) / (T + dT) is clearly more than N / T, the likeliest row of all choices
 * first. A block is asked for guesses at the end of a decode's span when draft_ask says that it
 * pays.
 *
 * Memory: allocated at open, with the step. The limits must hold one span, row, output, tap,
 * and copy per group for every choice, and all block tables: batch_open says which does not
 * (STATUS_INVALID).
 */
#ifndef LAC_SCHED_BATCH_H
#define LAC_SCHED_BATCH_H

#include "sched/cost.h"
#include "sched/slot.h"

enum { BATCH_CHUNK_TOKENS = 16, BATCH_ALONE = 5, BATCH_BIASES = 1 << 16 };

struct batch_item {
    struct slot *slot;
    uint32_t choice; /* index among the slot's choices */
    uint32_t first_row, n_rows, first_output, n_outputs, n_copies;
    uint32_t look; /* SLOT_LOOK: index into the step's looks, else STEP_NONE */
    float *sums;   /* where the span's states are summed or kept, else NULL */
};

/* A decode of the step that is being built. */
struct batch_decode {
    struct slot *slot;
    uint32_t choice; /* index among the slot's choices */
    uint32_t n_drafted;
};

struct batch {
    struct step *step;
    struct batch_item *items;     /* one per span, in order */
    struct slot **order;          /* [max_batch] scratch */
    struct batch_decode *decodes; /* [max_batch] scratch */
    struct draw ahead;            /* scratch: penalties after some drafts */
    void *ahead_memory;
    struct sample_bias *biases; /* [BATCH_BIASES]: the lists of draft rows */
    uint32_t n_biases, n_guesses;
    struct draft_prices prices;
    uint32_t n_items, n_decodes;
    uint64_t epoch; /* whose heads looks name */
    struct cost_work work;
    struct cost_model cost;
    uint64_t n_steps;
    uint32_t n_layers, d_model;
    uint32_t block_window; /* how far the plan's blocks look back */
    float *sums;           /* [pages that a step's rows can touch, d_model] */
    uint32_t n_sums;
    float *states; /* [max_rows, d_model]: of monitored decodes, by row */
    uint32_t monitor_layer;
};

/* epoch: of the label heads; 0: there are none, and no slot will want to be looked at. */
enum status batch_open(struct batch *b, const struct slots *t, const struct step_limits *limits,
                       const struct plan *plan, uint64_t epoch, struct error *e);
void batch_close(struct batch *b);

/* Fills the step; false if there is nothing to do. */
bool batch_build(struct batch *b, struct slots *t, uint64_t budget_ns);
/* The step took so long. */
void batch_learn(struct batch *b, const struct step *done, uint64_t ns);
/* What the blocks guessed at the end of an item's span; after slot_step_done. */
void batch_guessed(struct batch *b, struct slots *t, uint32_t item);

#endif
