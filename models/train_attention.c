/* Attention of a training block: one task per sequence and KV head, every product by gemm_serial.
 */
#include <math.h>
#include <string.h>

#include "core/check.h"
#include "core/math.h"
#include "models/encoder_kernels.h"
#include "models/train_block_impl.h"

static uint32_t padded(uint32_t n) {
    return (n + ENCODER_LANES - 1) / ENCODER_LANES * ENCODER_LANES;
}

size_t train_attention_floats(const struct train_shape *s, uint32_t n) {
    (void)s;
    return (size_t)n * padded(n) * 2;
}

void train_rope(const struct train_block *b, uint32_t n_rows, float *x, uint32_t heads, bool back) {
    const struct train_shape *s = &b->shape;
    const uint32_t half = s->rope.n_dims / 2;
    const bool adjacent = s->rope.style == ROPE_ADJACENT;
    for (uint32_t r = 0; r < n_rows; r++) {
        const float *sine = b->sines + (size_t)r * half, *cosine = b->cosines + (size_t)r * half;
        for (uint32_t h = 0; h < heads; h++) {
            float *v = x + ((size_t)r * heads + h) * s->head_dim;
            for (uint32_t i = 0; i < half; i++) {
                float *p = &v[adjacent ? 2 * i : i], *q = &v[adjacent ? 2 * i + 1 : i + half];
                const float si = back ? -sine[i] : sine[i], a = *p, c = *q;
                *p = a * cosine[i] - c * si;
                *q = a * si + c * cosine[i];
            }
        }
    }
}

struct job {
    struct train_block *b;
    const struct train_batch *batch;
};

struct place {
    uint32_t row0, n, stride; /* rows of the sequence; floats of a row of scores */
    size_t q_stride, kv_stride, kv_at;
    float *p, *dp;
};

static struct place find_place(const struct job *j, uint32_t task, uint32_t worker) {
    const struct train_shape *s = &j->b->shape;
    const uint32_t seq = task / s->n_kv_heads, head = task % s->n_kv_heads;
    struct place x = {.row0 = j->batch->first_row[seq],
                      .n = j->batch->first_row[seq + 1] - j->batch->first_row[seq],
                      .q_stride = (size_t)s->n_heads * s->head_dim,
                      .kv_stride = (size_t)s->n_kv_heads * s->head_dim};
    x.stride = padded(x.n);
    x.kv_at = x.row0 * x.kv_stride + (size_t)head * s->head_dim;
    x.p = j->b->attention_scratch + worker * j->b->attention_floats;
    x.dp = x.p + (size_t)x.n * x.stride;
    return x;
}

/* The probabilities [n, n] of one query head; 0 where a row may not look. */
static void probabilities(const struct job *j, const struct place *x, size_t q_at,
                          uint32_t worker) {
    const struct train_block *b = j->b;
    const struct gemm scores = {.m = x->n,
                                .n = x->n,
                                .k = b->shape.head_dim,
                                .a = b->q + q_at,
                                .b = b->k + x->kv_at,
                                .c = x->p,
                                .a_stride = x->q_stride,
                                .b_stride = x->kv_stride,
                                .c_stride = x->stride,
                                .b_transposed = true};
    gemm_serial(&b->gemm, &scores, worker);
    for (uint32_t i = 0; i < x->n; i++) {
        float *row = x->p + (size_t)i * x->stride;
        b->gemm.kernels->softmax(row, i + 1, b->shape.attn_scale);
        memset(row + i + 1, 0, (x->stride - i - 1) * sizeof *row);
    }
}

static void forward_task(void *arg, uint32_t task, uint32_t worker) {
    const struct job *j = arg;
    struct train_block *b = j->b;
    const struct train_shape *s = &b->shape;
    const struct place x = find_place(j, task, worker);
    const uint32_t group = s->n_heads / s->n_kv_heads, first = task % s->n_kv_heads * group;
    for (uint32_t h = first; h < first + group; h++) {
        const size_t q_at = x.row0 * x.q_stride + (size_t)h * s->head_dim;
        probabilities(j, &x, q_at, worker);
        const struct gemm out = {.m = x.n,
                                 .n = s->head_dim,
                                 .k = x.n,
                                 .a = x.p,
                                 .b = b->v + x.kv_at,
                                 .c = b->o + q_at,
                                 .a_stride = x.stride,
                                 .b_stride = x.kv_stride,
                                 .c_stride = x.q_stride};
        gemm_serial(&b->gemm, &out, worker);
    }
}

/* dS = P * (dP - sum of dP * P over the row) * scale, into dP. */
static void softmax_backward(const struct place *x, float scale) {
    for (uint32_t i = 0; i < x->n; i++) {
        const float *p = x->p + (size_t)i * x->stride;
        float *dp = x->dp + (size_t)i * x->stride, sum = 0;
        for (uint32_t k = 0; k <= i; k++) sum = fmaf(p[k], dp[k], sum);
        for (uint32_t k = 0; k <= i; k++) dp[k] = p[k] * (dp[k] - sum) * scale;
        for (uint32_t k = i + 1; k < x->n; k++) dp[k] = 0;
    }
}

static void backward_task(void *arg, uint32_t task, uint32_t worker) {
    const struct job *j = arg;
    struct train_block *b = j->b;
    const struct train_shape *s = &b->shape;
    const struct place x = find_place(j, task, worker);
    const uint32_t group = s->n_heads / s->n_kv_heads, first = task % s->n_kv_heads * group;
    for (uint32_t h = first; h < first + group; h++) {
        const size_t q_at = x.row0 * x.q_stride + (size_t)h * s->head_dim;
        const bool accumulate = h > first;
        probabilities(j, &x, q_at, worker);
        const struct gemm products[] = {
            /* dV += P^T dO */
            {x.n, s->head_dim, x.n, x.p, b->da + q_at, b->dv + x.kv_at, x.stride, x.q_stride,
             x.kv_stride, true, false, accumulate},
            /* dP = dO V^T */
            {x.n, x.n, s->head_dim, b->da + q_at, b->v + x.kv_at, x.dp, x.q_stride, x.kv_stride,
             x.stride, false, true, false},
            /* dQ = dS K */
            {x.n, s->head_dim, x.n, x.dp, b->k + x.kv_at, b->dq + q_at, x.stride, x.kv_stride,
             x.q_stride, false, false, false},
            /* dK += dS^T Q */
            {x.n, s->head_dim, x.n, x.dp, b->q + q_at, b->dk + x.kv_at, x.stride, x.q_stride,
             x.kv_stride, true, false, accumulate},
        };
        gemm_serial(&b->gemm, &products[0], worker);
        gemm_serial(&b->gemm, &products[1], worker);
        softmax_backward(&x, s->attn_scale);
        gemm_serial(&b->gemm, &products[2], worker);
        gemm_serial(&b->gemm, &products[3], worker);
    }
}

static void each_head(struct train_block *b, const struct train_batch *batch, worker_fn *fn) {
    struct job j = {b, batch};
    const uint32_t n = batch->n_sequences * b->shape.n_kv_heads;
    if (b->gemm.pool != NULL) {
        worker_pool_run(b->gemm.pool, fn, &j, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++) fn(&j, i, 0);
}

void train_attention_forward(struct train_block *b, const struct train_batch *batch) {
    each_head(b, batch, forward_task);
}

void train_attention_backward(struct train_block *b, const struct train_batch *batch) {
    each_head(b, batch, backward_task);
}
