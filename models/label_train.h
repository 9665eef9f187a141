/* label_train.h: fits what models/label_heads.h keeps: a look at the text, label heads behind
 * layers, their calibration, and where an answer may be given.
 *
 * Learners: multinomial logistic regression, for the text on hashed features by stochastic gradient
 * descent (models/task_fit.h says how), for each layer on the standardised mean state by Adam
 * (Kingma and Ba, arXiv:1412.6980) with an L2 penalty and a falling rate. Each learner is fitted on
 * every fold's other rows and on all rows. Held-out scores then fit the
 * scale of each head's summed scores and of the look (two numbers a head, by Newton's method on the
 * likelihood: temperature scaling of Guo et al., arXiv:1706.04599, for two looks at once), and
 * choose the last head and the threshold: the fewest layers whose accuracy is within
 * LABEL_TOLERANCE of the best. Done on one half of the rows and measured on the other, twice, it
 * gives struct label_figures; done on all of them, what is kept.
 *
 * Deterministic: a function of rows, options and seed, not of threads or instruction set.
 * Memory: about 4 n (2 n_taps n_labels + features) bytes beside the states.
 */
#ifndef LAC_MODELS_LABEL_TRAIN_H
#define LAC_MODELS_LABEL_TRAIN_H

#include <stdbool.h>

#include "core/cpu_features.h"
#include "core/worker_pool.h"
#include "models/label_heads.h"

#define LABEL_TOLERANCE 0.001

struct label_input {
    /* Every label has at least two rows; n_labels <= HEADS_MAX_LABELS, n_taps <= LABEL_MAX_HEADS.
     */
    uint32_t n, n_labels, d, n_taps;
    const uint32_t *layers; /* [n_taps] ascending: states after so many layers */
    const float *states;    /* [n_taps][n, d] */
    const uint32_t *label;  /* [n] */
    /* features of the text, in buckets: row i has [row_start[i], row_start[i + 1]) */
    const uint64_t *row_start;
    const uint16_t *index;
    const float *value;
};

struct label_options {
    uint32_t folds, epochs; /* folds >= 2 */
    uint32_t n_buckets;
    uint64_t seed;
    enum cpu_isa isa;
    struct worker_pool *workers;
    void (*progress)(uint32_t done, uint32_t all); /* from the calling thread; may be NULL */
};

/* What each learner reached on held-out rows, alone. */
struct label_scores {
    float text;
    float state[LABEL_MAX_HEADS];    /* the head alone */
    float combined[LABEL_MAX_HEADS]; /* heads so far and the look */
};

/* heads: n_labels, d_model, heads, thresholds, look and figures; label texts and max_tokens are the
 * caller's to set. What it points to is in *memory, for the caller to free. */
LAC_MUST_USE enum status label_train(const struct label_input *in, const struct label_options *o,
                                     struct label_heads *heads, struct label_scores *scores,
                                     void **memory, struct error *e);

#endif
