/* train_block_impl.h: the inside of a training block, shared by train_block.c (layers, loss,
 * optimiser) and train_attention.c. */
#ifndef LAC_MODELS_TRAIN_BLOCK_IMPL_H
#define LAC_MODELS_TRAIN_BLOCK_IMPL_H

#include "models/train_block.h"

struct train_block {
    struct train_shape shape;
    struct gemm_context gemm;
    const float *head; /* [n_shortlist, d], not owned */
    uint32_t max_rows, max_targets;
    size_t n_weights;
    uint64_t n_steps;
    float *weights, *gradient, *moment1, *moment2; /* [n_weights] */
    /* activations of the last run, [rows, ...] */
    float *x0, *a, *r1, *q, *k, *v, *o, *x1, *f, *r2, *gate, *up, *act, *x2, *y, *r3;
    float *logits, *normed; /* [targets, n_shortlist], [targets, d] */
    /* gradients of activations */
    float *dx, *da, *dq, *dk, *dv, *dwide, *dup, *dnormed;
    float *sines, *cosines;   /* [rows, n_dims / 2] of the positions */
    float *attention_scratch; /* per worker */
    size_t attention_floats;
};

/* q [rows, heads * head_dim], k, v [rows, kv_heads * head_dim], turned already -> o. */
void train_attention_forward(struct train_block *b, const struct train_batch *batch);
/* do (in b->da, [rows, heads * head_dim]) -> dq, dk, dv. */
void train_attention_backward(struct train_block *b, const struct train_batch *batch);
/* Floats of scratch per worker for sequences of at most n rows. */
size_t train_attention_floats(const struct train_shape *s, uint32_t n);
/* Turns every head of x [rows, heads * head_dim] by its position; back: by the negative angle. */
void train_rope(const struct train_block *b, uint32_t n_rows, float *x, uint32_t heads, bool back);

#endif
