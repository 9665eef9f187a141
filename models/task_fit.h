/* task_fit.h: the optimiser of the task model: weighted multinomial logistic regression with an L2
 * penalty, by stochastic gradient descent with a decaying rate (Bottou, "Stochastic Gradient
 * Descent Tricks", 2012) whose last half of epochs is averaged.
 *
 * Minimises (1/n) sum w_i CE(offset_i + W x_i + b, y_i) + l2/2 |W|^2. The penalty is kept as a
 * scale beside the weights, so that a step touches only a row's own features. Rows come in an order
 * drawn from the seed; every sum has one order: the same input gives the same weights on every
 * machine.
 */
#ifndef LAC_MODELS_TASK_FIT_H
#define LAC_MODELS_TASK_FIT_H

#include <stdint.h>

#include "core/status.h"
#include "models/task_set.h"

struct task_fit_input {
    const struct task_matrix *x; /* dense part alone if index is NULL */
    float dense_gain;            /* the measures are multiplied by it */
    uint32_t n_classes;
    uint32_t n;            /* rows taken */
    const uint32_t *row;   /* [n] rows of x */
    const uint32_t *label; /* [n] */
    const float *weight;   /* [n], mean 1 */
    const float *offset;   /* [n][n_classes] fixed logits, or NULL */
};

struct task_fit_options {
    uint32_t epochs;
    float rate, l2;
    uint64_t seed;
};

struct task_weights {
    uint32_t n_classes, n_dense;
    float bias[TASK_MAX_CLASSES];
    float *dense;  /* [n_dense][n_classes], for measures without the gain */
    float *hashed; /* [TASK_N_BUCKETS][n_classes], NULL without a hashed part */
};

/* On failure *out is zeroed. */
LAC_MUST_USE enum status task_fit(const struct task_fit_input *in,
                                  const struct task_fit_options *options, struct task_weights *out,
                                  struct error *e);
void task_weights_free(struct task_weights *w);

/* The divisor of the logits [n][n_classes] that makes the labels likeliest (Guo et al.). */
float task_fit_temperature(const float *logits, const uint32_t *label, const float *weight,
                           uint32_t n, uint32_t n_classes);

#endif
