/* vector.h: everything a layer does besides its matrix products, one table per instruction set.
 *
 * THE BITS. Every table computes the same bits; scalar is the oracle. All tables are compiled from
 * core/cpu/vector_kernels.h over sixteen virtual lanes:
 *   element i of a vector belongs to lane i mod 16; a reduction accumulates each lane in ascending
 *   order, then adds lanes i and i + 8, i + 4, i + 2, i + 1. A short last group is filled with
 * zeros. exp is math_expf; max(a, b) is a > b ? a : b. No operation is contracted that is not
 * written fmaf. Arrays are F32, need no alignment and no multiple of 16, and do not overlap unless
 * it says so. Nothing here allocates or fails; NaN and infinity pass through.
 */
#ifndef LAC_CORE_CPU_VECTOR_H
#define LAC_CORE_CPU_VECTOR_H

#include <stddef.h>
#include <stdint.h>

#include "core/backend.h"
#include "core/sample.h"

enum {
    ATTENTION_ROWS = 4,  /* query rows of one attention_block call */
    ATTENTION_AHEAD = 4, /* pages that are asked for before they are read */
};

/* One key block for up to ATTENTION_ROWS consecutive query rows and all the query heads (`n_group`)
 * of one KV head. Per row and head, over the visible positions [lo, hi) of the block:
 *   s_p = softcap(sum over d of q_d k_pd)           fmaf, d ascending; Q8: times the key's scale,
 * after m = max s_p;  e_p = exp(s_p - m);  l = sum e_p  16 lanes by position acc_d = sum over p of
 * e_p v_pd                  fmaf, p ascending; Q8: e_p times the value's scale q already carries
 * the attention scale. Positions outside [lo, hi) take no part at all: their bytes may be anything.
 */
struct attention_block {
    /* Page i holds the block's positions [16 i, 16 i + 16): its layer. Under `prefetch` there are
     * ATTENTION_AHEAD more, whose keys will be wanted next: any addresses, which are not read. */
    const uint8_t *const *pages;
    uint32_t n_pages; /* without those; used under `prefetch` only */
    bool prefetch;
    size_t k_bytes, v_bytes, k_scale_bytes,
        v_scale_bytes; /* offsets of this KV head in the layer */
    enum kv_format kv;
    uint32_t head_dim, n_group, n_rows;
    float softcap;                                   /* 0: none */
    const float *q[ATTENTION_ROWS];                  /* [head_dim][n_group] */
    uint32_t lo[ATTENTION_ROWS], hi[ATTENTION_ROWS]; /* lo < hi <= 256 */
    float *m[ATTENTION_ROWS];                        /* [n_group] */
    float *l[ATTENTION_ROWS];                        /* [n_group] */
    float *acc[ATTENTION_ROWS];                      /* [n_group][head_dim] */
    float *scratch; /* [ATTENTION_ROWS * n_group * KV_BLOCK_TOKENS] */
};

struct vector_kernels {
    const char *name;
    /* out_i = (x_i / sqrt(sum x^2 / n + epsilon)) * w_i, as a product with 1 / sqrtf. out may be x.
     */
    void (*rms_norm)(const float *x, const float *w, uint32_t n, float epsilon, float *out);
    /* x_i = fmaf(scale, y_i, x_i) */
    void (*add_scaled)(float *x, const float *y, float scale, uint32_t n);
    /* x_i = x_i * scale */
    void (*scale)(float *x, float scale, uint32_t n);
    /* x_i = cap * tanh(x_i / cap) */
    void (*softcap)(float *x, float cap, uint32_t n);
    /* gate_i = act(gate_i) * up_i; SiLU, or GELU by tanh (Hendrycks and Gimpel 2016). */
    void (*gated)(float *gate, const float *up, uint32_t n, enum plan_activation act);
    /* x_i = fmaf(x_i, c_i, partner_i * s_i) over the first n_dims of one head; the partner of i is
     * i ^ 1 (adjacent), or i +- n_dims / 2 (halves); the sine of the first partner is negated in s.
     */
    void (*rope)(float *x, const float *c, const float *s, uint32_t n_dims, enum rope_style style);
    /* One position's K and V of all KV heads ([n_kv_heads * head_dim]) into its page's layer. `at`
     * is position mod 16. */
    void (*kv_write)(const float *k, const float *v, uint32_t n_kv_heads, uint32_t head_dim,
                     enum kv_format kv, uint32_t at, uint8_t *layer);
    void (*attention_block)(const struct attention_block *t);
    /* Merges block b into the state (m, l, acc) of a query head: m' = max(m, m_b), a = exp(m - m'),
     * b = exp(m_b - m'), l = fmaf(l, a, l_b * b), acc likewise. */
    void (*attention_merge)(float *m, float *l, float *acc, float m_b, float l_b,
                            const float *acc_b, uint32_t head_dim);
    /* Of one page and KV head (k and its scales as attention_block finds them): per channel the
     * mean of the 16 keys less, then plus half their standard deviation (sums over the keys as over
     * 16 lanes), F16 (nearest): out[head_dim], then out[head_dim]. */
    void (*page_bounds)(const uint8_t *k, const uint8_t *k_scale, enum kv_format kv,
                        uint32_t head_dim, uint16_t *out);
    /* The largest over heads h of sum over d of max(q_hd low_d, q_hd high_d), 16 lanes by
     * channel; q [n_group, head_dim]. */
    float (*page_score)(const float *q, uint32_t n_group, uint32_t head_dim,
                        const uint16_t *bounds);
    /* sum over i of a_i b_i, by fmaf: core/heads.h's. */
    float (*dot)(const float *a, const float *b, uint32_t n);
    struct sample_kernels sample;
};

/* NULL when the set is not built for this processor family. AVX-VNNI uses AVX2's, AMX AVX-512's. */
const struct vector_kernels *vector_kernels(enum cpu_isa isa);

/* Where things lie in one layer of a KV page (core/backend.h): bytes, and offsets of KV head h. */
struct kv_layout {
    size_t layer_bytes;
    size_t k0, k_stride, v0, v_stride;
    size_t k_scale0, v_scale0, scale_stride; /* Q8 only */
};
struct kv_layout kv_layout(uint32_t n_kv_heads, uint32_t head_dim, enum kv_format kv);

#endif
