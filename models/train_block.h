/* train_block.h: one transformer block with a shortlist head, forward and backward in FP32: what
 * draft blocks and exit blocks are trained as.
 *
 * For rows of packed sequences (each attends to itself, causally):
 *   x = in                                    one input: in [rows, d]
 *   x = in W_in^T                             two inputs: in [rows, 2 d], W_in [d, 2 d]
 *   x = x + O attention(rope(Q n1(x)), rope(K n1(x)), V n1(x));  x = x + D (silu(G n2(x)) * U
 * n2(x)) y = n3(x);  logits = y H^T                H [n_shortlist, d] is given and does not learn
 * n1, n2, n3 are RMS norms (Zhang and Sennrich, arXiv:1910.07467), attention has grouped KV heads.
 * Loss of a row with a target: cross-entropy with the target's distribution over some shortlist
 * ranks, plus feature_weight / 2 * |y - feature|^2 / d; the mean over the targets.
 *
 * All weights are one array in the order of `enum train_tensor`, each row-major [out, in]; the
 * gradient and the optimiser's moments have the same shape. Optimiser: AdamW (Loshchilov and
 * Hutter, arXiv:1711.05101), gradients clipped to a global norm.
 *
 * Bits: a function of weights, rows and targets; not of threads or instruction set.
 * Memory: everything is taken at open, for at most max_rows rows (about 4 x (12 d + 4 d_ff +
 * n_shortlist) bytes a row). Threads: the caller's; the pool's workers compute.
 */
#ifndef LAC_MODELS_TRAIN_BLOCK_H
#define LAC_MODELS_TRAIN_BLOCK_H

#include "core/plan.h"
#include "models/train_gemm.h"

enum train_tensor {
    TRAIN_IN, /* [d, 2 d]; empty when there is one input */
    TRAIN_NORM1,
    TRAIN_Q,
    TRAIN_K,
    TRAIN_V,
    TRAIN_O,
    TRAIN_NORM2,
    TRAIN_GATE,
    TRAIN_UP,
    TRAIN_DOWN,
    TRAIN_NORM3,
    TRAIN_TENSORS
};

struct train_shape {
    uint32_t n_inputs; /* 1 or 2 */
    uint32_t d, n_heads, n_kv_heads, head_dim, d_ff, n_shortlist;
    float norm_epsilon, attn_scale;
    struct rope_plan rope; /* n_dims 0: none */
};

/* Rows and columns of a tensor (norms are [1, d]; an empty one has 0 rows). */
void train_tensor_shape(const struct train_shape *s, enum train_tensor t, uint32_t *rows,
                        uint32_t *columns);
/* First element of a tensor among the weights; TRAIN_TENSORS: how many there are. */
size_t train_tensor_offset(const struct train_shape *s, enum train_tensor t);

enum { TRAIN_TARGET_IDS = 20 };
struct train_target {
    uint32_t row;
    uint32_t n; /* at most TRAIN_TARGET_IDS; 0: no cross-entropy */
    uint32_t rank[TRAIN_TARGET_IDS];
    float probability[TRAIN_TARGET_IDS]; /* sum to 1 */
    const float *feature;                /* [d], or NULL: no feature loss */
};

struct train_batch {
    const float *in; /* [n_rows, n_inputs * d] */
    uint32_t n_rows;
    uint32_t n_sequences;
    const uint32_t *first_row; /* [n_sequences + 1] */
    const uint32_t *position;  /* [n_rows] */
    const struct train_target *targets;
    uint32_t n_targets; /* rows ascending */
};

struct train_loss {
    double cross_entropy, feature; /* sums over the targets */
    uint32_t n, agreed;            /* targets with ids; whose likeliest rank is the block's */
};

struct train_block;
enum status train_block_open(const struct train_shape *shape, const float *head, enum cpu_isa isa,
                             struct worker_pool *pool, uint32_t max_rows, uint32_t max_targets,
                             struct train_block **out, struct error *e);
void train_block_close(struct train_block *b);
float *train_block_weights(struct train_block *b);
const float *train_block_gradient(const struct train_block *b);

/* Sums the batch's loss into *loss. gradient: also sets the gradient of the mean loss. */
void train_block_run(struct train_block *b, const struct train_batch *batch, float feature_weight,
                     bool gradient, struct train_loss *loss);
/* y of the last run, [n_rows, d]. */
const float *train_block_output(const struct train_block *b);

struct train_adam {
    float rate, beta1, beta2, epsilon, decay, clip_norm;
};
/* One step by the gradient of the last run. */
void train_block_step(struct train_block *b, const struct train_adam *a);

/* Weights, moments and step count, to go on to the same bytes: train_block_state_bytes. */
size_t train_block_state_bytes(const struct train_block *b);
void train_block_save(const struct train_block *b, void *state);
void train_block_load(struct train_block *b, const void *state);

#endif
