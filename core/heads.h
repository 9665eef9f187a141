/* heads.h: the heads of one policy epoch, as data, and their reference arithmetic.
 *
 * A label head reads one vector, the mean over a message's tokens of the state after its layer,
 * each state divided by its root mean square (the plan's epsilon, no weights), and gives every
 * label a score. The heads of one set of labels are consecutive, their layers ascending; a set adds
 * its scores up from head to head:
 *   S_c = S_c + (bias_c + w_c . mean)             S = 0 before the first
 *   z_c = scale * S_c + prior_scale * prior_c     prior: what the text itself says, or 0
 *   p   = softmax(z);  confidence = max p
 * Shapes: weight [n_labels, d_model] row-major, bias, prior, S and p [n_labels].
 *
 * THE BITS. Every backend gives those of this file: the dot product runs in 16 virtual lanes
 * (element i belongs to lane i mod 16, ascending, fmaf; then lanes i and i + 8, i + 4, i + 2,
 * i + 1), z is one fmaf, the sum of the softmax ascends, exp is math_expf. The mean adds rows
 * ascending and is multiplied by 1 / n; of no rows it is 0.
 *
 * A regulation head reads the state that the model's own head reads (after the output norm) and
 * says with which temperature and top_p the row's token is drawn:
 *   v_k = least_k + (most_k - least_k) / (1 + exp(-u_k)),  u_k = bias_k + w_k . state,
 * k = 0: temperature, 1: top_p; u within +-30. weight [2, d_model].
 *
 * Ownership: all pointers are the caller's and stay until the epoch is retired (core/backend.h).
 * Nothing here allocates or fails; what is not finite shows in the result.
 */
#ifndef LAC_CORE_HEADS_H
#define LAC_CORE_HEADS_H

#include <stdint.h>

enum { HEADS_MAX_LABELS = 256 };

struct label_head {
    uint32_t layer; /* it reads the state after this many layers, >= 1 */
    uint32_t n_labels;
    float scale, prior_scale;
    const float *weight, *bias;
};

struct regulation_head {
    float bias[2], least[2], most[2];
    const float *weight;
};

struct heads {
    const struct label_head *labels; /* [n_labels] heads, set after set */
    uint32_t n_labels;
    const struct regulation_head *regulation; /* NULL: none */
    uint32_t d_model;
};

/* sum over i of a_i b_i, as above. */
typedef float heads_dot_fn(const float *a, const float *b, uint32_t n);
float heads_dot(const float *a, const float *b, uint32_t n);

/* One row into a mean in the making: sum_i += row_i. */
void heads_mean_add(float *sum, const float *row, uint32_t d);
void heads_mean_finish(float *sum, uint32_t n_rows, uint32_t d);

/* Adds the head's scores to S. dot NULL: heads_dot. */
void label_head_add(const struct label_head *h, const float *mean, uint32_t d, heads_dot_fn *dot,
                    float *S);
/* p of S (prior NULL: 0); returns the confidence, or NaN, when a z is not finite: p is then not to
 * be used. */
float label_head_probabilities(const struct label_head *h, const float *S, const float *prior,
                               float *p);

/* out[2]: temperature and top_p. A state that is not finite gives the middle of both ranges. */
void regulation_head_run(const struct regulation_head *h, const float *state, uint32_t d,
                         float out[2]);

#endif
