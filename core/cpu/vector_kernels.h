/* vector_kernels.h: the one text of the vector kernels. Each core/cpu/vector_<isa>.c defines a type
 * of sixteen F32 lanes, `v16`, and these operations on it, then includes this file and names the
 * table: v_load, v_load_n (first n, others 0), v_store, v_store_n, v_set1 v_add, v_sub, v_mul,
 * v_div, v_fma (a b + c, one rounding), v_max, v_min (as a > b ? a : b) v_pow2 (p, t): p * 2^i, i
 * the integer that MATH_EXPF_MAGIC put in the low bits of t v_swap_pairs: lanes 1 0 3 2 ...
 *   v_down (x, n), n 8, 4, 2 or 1: lane i < n is lane i + n; the others are anything. v_first: lane
 * 0 v_select (mask, a, b): lane i of a where bit i is set v_load_f16, v_store_f16 (nearest even),
 * v_load_i8 v_ge_mask, v_gt_mask (a, b): bit i where a_i >= b_i, a_i > b_i and QUERIES, the queries
 * of attention whose sums it keeps in registers, and SUMS, how many such sums (a broadcast of a
 * query's element serves SUMS / QUERIES of them). The kernels are compiled once per set, so that
 * they cannot differ but by these operations, each of which is exact or one IEEE rounding.
 */
#include <string.h>

#include "core/cpu/vector.h"
#include "core/math.h"

#define INLINE static inline __attribute__((always_inline))

INLINE v16 v_exp(v16 x) {
    x = v_max(v_set1(MATH_EXPF_MIN), x);
    x = v_min(v_set1(MATH_EXPF_MAX), x);
    const v16 t = v_fma(x, v_set1(MATH_EXPF_LOG2E), v_set1(MATH_EXPF_MAGIC));
    const v16 n = v_sub(t, v_set1(MATH_EXPF_MAGIC));
    v16 r = v_fma(n, v_set1(-MATH_EXPF_LN2_HI), x);
    r = v_fma(n, v_set1(-MATH_EXPF_LN2_LO), r);
    v16 p = v_fma(v_set1(MATH_EXPF_C6), r, v_set1(MATH_EXPF_C5));
    p = v_fma(p, r, v_set1(MATH_EXPF_C4));
    p = v_fma(p, r, v_set1(MATH_EXPF_C3));
    p = v_fma(p, r, v_set1(MATH_EXPF_C2));
    p = v_fma(p, r, v_set1(1.0f));
    p = v_fma(p, r, v_set1(1.0f));
    return v_pow2(p, t);
}

INLINE float v_sum(v16 x) {
    x = v_add(x, v_down(x, 8));
    x = v_add(x, v_down(x, 4));
    x = v_add(x, v_down(x, 2));
    return v_first(v_add(x, v_down(x, 1)));
}

INLINE float v_hmax(v16 x) {
    x = v_max(x, v_down(x, 8));
    x = v_max(x, v_down(x, 4));
    x = v_max(x, v_down(x, 2));
    return v_first(v_max(x, v_down(x, 1)));
}

/* Lanes [lo, hi) of a group, both relative to its first lane and perhaps outside it. */
INLINE uint32_t lane_mask(int32_t lo, int32_t hi) {
    const uint32_t below_hi = hi >= 16 ? 0xffffu : hi <= 0 ? 0u : (1u << hi) - 1u;
    const uint32_t below_lo = lo >= 16 ? 0xffffu : lo <= 0 ? 0u : (1u << lo) - 1u;
    return below_hi & ~below_lo;
}

/* for_lanes: `i` runs over groups of sixteen, `n_` holds how many of the group exist. */
#define FOR_LANES(i, n) for (uint32_t i = 0, n_ = 0; n_ = (n)-i < 16 ? (n)-i : 16, i < (n); i += 16)
#define LOAD(p, i)      (n_ == 16 ? v_load((p) + (i)) : v_load_n((p) + (i), n_))
#define STORE(p, i, x)                                                                             \
    do {                                                                                           \
        if (n_ == 16)                                                                              \
            v_store((p) + (i), x);                                                                 \
        else                                                                                       \
            v_store_n((p) + (i), x, n_);                                                           \
    } while (0)

static void rms_norm(const float *x, const float *w, uint32_t n, float epsilon, float *out) {
    v16 sum = v_set1(0);
    FOR_LANES(i, n) {
        const v16 a = LOAD(x, i);
        sum = v_fma(a, a, sum);
    }
    const float r = 1.0f / __builtin_sqrtf(v_sum(sum) / (float)n + epsilon);
    FOR_LANES(i, n) STORE(out, i, v_mul(v_mul(LOAD(x, i), v_set1(r)), LOAD(w, i)));
}

static void add_scaled(float *x, const float *y, float scale, uint32_t n) {
    FOR_LANES(i, n) STORE(x, i, v_fma(v_set1(scale), LOAD(y, i), LOAD(x, i)));
}

static void scale_by(float *x, float scale, uint32_t n) {
    FOR_LANES(i, n) STORE(x, i, v_mul(LOAD(x, i), v_set1(scale)));
}

/* cap * tanh(x / cap) with tanh y = (e - 1) / (e + 1), e = exp(2 y). Beyond |y| = 20 tanh is 1 in
 * F32 and e may overflow. */
INLINE v16 v_softcap(v16 x, float cap) {
    v16 y = v_div(x, v_set1(cap));
    y = v_max(v_set1(-20), y);
    y = v_min(v_set1(20), y);
    const v16 e = v_exp(v_add(y, y));
    return v_mul(v_set1(cap), v_div(v_sub(e, v_set1(1)), v_add(e, v_set1(1))));
}

static void softcap(float *x, float cap, uint32_t n) {
    FOR_LANES(i, n) STORE(x, i, v_softcap(LOAD(x, i), cap));
}

static void gated(float *gate, const float *up, uint32_t n, enum plan_activation act) {
    const v16 one = v_set1(1), zero = v_set1(0);
    if (act == PLAN_SILU) {
        FOR_LANES(i, n) {
            const v16 g = LOAD(gate, i);
            const v16 a = v_div(g, v_add(one, v_exp(v_sub(zero, g))));
            STORE(gate, i, v_mul(a, LOAD(up, i)));
        }
        return;
    }
    /* 0.5 g (1 + tanh u) = g / (1 + exp(-2 u)), u = sqrt(2/pi) (g + 0.044715 g^3). */
    FOR_LANES(i, n) {
        const v16 g = LOAD(gate, i);
        const v16 cubic = v_fma(v_mul(v_mul(g, g), v_set1(0.044715f)), g, g);
        const v16 a = v_div(g, v_add(one, v_exp(v_mul(cubic, v_set1(-1.5957691216057308f)))));
        STORE(gate, i, v_mul(a, LOAD(up, i)));
    }
}

static void rope(float *x, const float *c, const float *s, uint32_t n_dims, enum rope_style style) {
    if (style == ROPE_ADJACENT) {
        FOR_LANES(i, n_dims) {
            const v16 a = LOAD(x, i);
            STORE(x, i, v_fma(a, LOAD(c, i), v_mul(v_swap_pairs(a), LOAD(s, i))));
        }
        return;
    }
    const uint32_t half = n_dims / 2;
    FOR_LANES(i, half) {
        const v16 a = LOAD(x, i), b = LOAD(x + half, i);
        STORE(x, i, v_fma(a, LOAD(c, i), v_mul(b, LOAD(s, i))));
        STORE(x + half, i, v_fma(b, LOAD(c + half, i), v_mul(a, LOAD(s + half, i))));
    }
}

/* int8 with one F16 scale: scale = f16(amax / 127), q = rint(x / scale) in [-127, 127]. */
INLINE uint16_t quantise_head(const float *x, uint32_t n, int8_t *q) {
    float amax = 0;
    for (uint32_t i = 0; i < n; i++) {
        const float a = x[i] < 0 ? -x[i] : x[i];
        amax = amax > a ? amax : a;
    }
    const uint16_t scale = f32_to_f16(amax / 127.0f);
    const float s = f16_to_f32(scale);
    for (uint32_t i = 0; i < n; i++) {
        const float y = s > 0 ? x[i] / s : 0;
        const float bounded = y > 127 ? 127 : y < -127 ? -127 : y == y ? y : 0;
        /* Adding and subtracting 1.5 * 2^23 rounds to nearest even. */
        q[i] = (int8_t)(bounded + MATH_EXPF_MAGIC - MATH_EXPF_MAGIC);
    }
    return scale;
}

static void kv_write(const float *k, const float *v, uint32_t n_kv_heads, uint32_t head_dim,
                     enum kv_format kv, uint32_t at, uint8_t *layer) {
    const struct kv_layout l = kv_layout(n_kv_heads, head_dim, kv);
    for (uint32_t h = 0; h < n_kv_heads; h++, k += head_dim, v += head_dim) {
        uint8_t *kp = layer + l.k0 + h * l.k_stride, *vp = layer + l.v0 + h * l.v_stride;
        if (kv == KV_F32) {
            for (uint32_t d = 0; d < head_dim; d++) ((float *)(void *)kp)[d * 16 + at] = k[d];
            memcpy(vp + (size_t)at * head_dim * 4, v, head_dim * sizeof *v);
        } else if (kv == KV_F16) {
            uint16_t *kh = (uint16_t *)(void *)kp, *vh = (uint16_t *)(void *)vp + at * head_dim;
            FOR_LANES(i, head_dim) {
                uint16_t half[16];
                v_store_f16(half, LOAD(k, i));
                for (uint32_t j = 0; j < n_; j++) kh[(i + j) * 16 + at] = half[j];
                v_store_f16(half, LOAD(v, i));
                memcpy(vh + i, half, n_ * sizeof *half);
            }
        } else {
            int8_t q[16 * 64];
            uint16_t *ks = (uint16_t *)(void *)(layer + l.k_scale0 + h * l.scale_stride);
            uint16_t *vs = (uint16_t *)(void *)(layer + l.v_scale0 + h * l.scale_stride);
            ks[at] = quantise_head(k, head_dim, q);
            for (uint32_t d = 0; d < head_dim; d++) ((int8_t *)kp)[d * 16 + at] = q[d];
            vs[at] = quantise_head(v, head_dim, (int8_t *)vp + (size_t)at * head_dim);
        }
    }
}

INLINE v16 load_kv(const uint8_t *p, size_t element, enum kv_format kv) {
    if (kv == KV_F16) return v_load_f16((const uint16_t *)(const void *)p + element);
    if (kv == KV_Q8) return v_load_i8((const int8_t *)p + element);
    return v_load((const float *)(const void *)p + element);
}

/* The sums of a tile live in registers only if every loop over R, G, P and D is written out. */
#define UNROLL _Pragma("GCC unroll 24")

/* Pages lie far apart, where no hardware prefetcher follows: what comes ATTENTION_AHEAD pages later
 * is asked for while a page is read. The keys of a block are followed by its values, those by the
 * keys of the next block. */
INLINE const uint8_t *behind_keys(const struct attention_block *t, uint32_t page, uint32_t page1) {
    const uint32_t next = page + ATTENTION_AHEAD;
    if (next < page1) return t->pages[next] + t->k_bytes;
    const uint32_t value = t->lo[0] / 16 + next - page1;
    return t->pages[value < page1 ? value : page1 - 1] + t->v_bytes;
}
INLINE const uint8_t *behind_values(const struct attention_block *t, uint32_t page,
                                    uint32_t page1) {
    const uint32_t next = page + ATTENTION_AHEAD;
    if (next < page1) return t->pages[next] + t->v_bytes;
    return t->pages[t->n_pages + next - page1] + t->k_bytes;
}

/* Where the scores of query (row r, head g) lie in the scratch: distances that are constants, so
 * that one address serves all queries of a tile. */
INLINE size_t query_at(uint32_t r, uint32_t g) {
    return ((size_t)g * ATTENTION_ROWS + r) * KV_BLOCK_TOKENS;
}

/* Scores of rows [r0, r0 + R) and heads [g0, g0 + G) with P pages from page0, into the scratch,
 * lanes = positions. R, G, P are constants. */
INLINE void scores_tile(const struct attention_block *t, enum kv_format kv, const uint32_t R,
                        const uint32_t G, const uint32_t P, uint32_t r0, uint32_t g0,
                        uint32_t page0, uint32_t page1) {
    const uint32_t bytes = kv == KV_F32 ? 64 : kv == KV_F16 ? 32 : 16;
    const bool prefetch = t->prefetch && r0 == 0 && g0 == 0;
    const uint8_t *ahead[4];
    v16 sum[24];
    const uint8_t *k[4];
    const float *q[4];
    UNROLL for (uint32_t i = 0; i < R * G * P; i++) sum[i] = v_set1(0);
    UNROLL for (uint32_t p = 0; p < P; p++) k[p] = t->pages[page0 + p] + t->k_bytes;
    if (prefetch)
        UNROLL for (uint32_t p = 0; p < P; p++) ahead[p] = behind_keys(t, page0 + p, page1);
    UNROLL for (uint32_t r = 0; r < R; r++) q[r] = t->q[r0 + r] + g0;
    const uint32_t stride = t->n_group;
    for (uint32_t d = 0; d < t->head_dim; d++) {
        v16 key[4];
        UNROLL for (uint32_t p = 0; p < P; p++) key[p] = load_kv(k[p], (size_t)d * 16, kv);
        if (prefetch && d * bytes % 64 == 0)
            UNROLL for (uint32_t p = 0; p < P; p++)
                __builtin_prefetch(ahead[p] + (size_t)d * bytes);
        UNROLL for (uint32_t r = 0; r < R; r++) {
            UNROLL for (uint32_t g = 0; g < G; g++) {
                const v16 b = v_set1(q[r][d * stride + g]);
                UNROLL for (uint32_t p = 0; p < P; p++) sum[(r * G + g) * P + p] =
                    v_fma(b, key[p], sum[(r * G + g) * P + p]);
            }
        }
    }
    UNROLL for (uint32_t r = 0; r < R; r++) UNROLL for (uint32_t g = 0; g < G; g++)
        UNROLL for (uint32_t p = 0; p < P; p++)
            v_store(t->scratch + query_at(r0, g0) + query_at(r, g) + (size_t)page0 * 16 + p * 16,
                    sum[(r * G + g) * P + p]);
}

INLINE void scores_pages(const struct attention_block *t, enum kv_format kv, const uint32_t R,
                         const uint32_t G, uint32_t r0, uint32_t g0, uint32_t page0,
                         uint32_t page1) {
    const uint32_t fit = SUMS / (R * G);
    const uint32_t P = fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
    while (page0 + P <= page1) {
        scores_tile(t, kv, R, G, P, r0, g0, page0, page1);
        page0 += P;
    }
    while (page0 < page1) {
        scores_tile(t, kv, R, G, 1, r0, g0, page0, page1);
        page0++;
    }
}

/* acc += e v over positions [j0, j1) for rows x heads, D groups of sixteen dimensions at once. */
INLINE void values_tile(const struct attention_block *t, enum kv_format kv, const uint32_t R,
                        const uint32_t G, const uint32_t D, uint32_t r0, uint32_t g0, uint32_t d0,
                        uint32_t j0, uint32_t j1) {
    v16 sum[24];
    float *out[4];
    const float *e = t->scratch + query_at(r0, g0);
    const uint32_t hd = t->head_dim;
    UNROLL for (uint32_t r = 0; r < R; r++) {
        out[r] = t->acc[r0 + r] + (size_t)g0 * hd + d0;
        UNROLL for (uint32_t g = 0; g < G; g++) UNROLL for (uint32_t d = 0; d < D; d++)
            sum[(r * G + g) * D + d] = v_load(out[r] + (size_t)g * hd + d * 16);
    }
    for (uint32_t page = j0 / 16; page * 16 < j1; page++) {
        const uint8_t *v = t->pages[page] + t->v_bytes;
        const uint32_t row_bytes = hd * (kv == KV_F32 ? 4 : kv == KV_F16 ? 2 : 1);
        const uint8_t *ahead = t->prefetch && r0 == 0 && g0 == 0 && d0 == 0
                                   ? behind_values(t, page, (j1 + 15) / 16)
                                   : NULL;
        const uint32_t first = page * 16 > j0 ? page * 16 : j0;
        const uint32_t last = page * 16 + 16 < j1 ? page * 16 + 16 : j1;
        for (uint32_t j = first; j < last; j++) {
            v16 value[4];
            if (ahead != NULL)
                for (uint32_t at = 0; at < row_bytes; at += 64)
                    __builtin_prefetch(ahead + (size_t)(j % 16) * row_bytes + at);
            UNROLL for (uint32_t d = 0; d < D; d++) value[d] =
                load_kv(v, (size_t)(j % 16) * hd + d0 + d * 16, kv);
            UNROLL for (uint32_t r = 0; r < R; r++) {
                UNROLL for (uint32_t g = 0; g < G; g++) {
                    const v16 b = v_set1(e[query_at(r, g) + j]);
                    UNROLL for (uint32_t d = 0; d < D; d++) sum[(r * G + g) * D + d] =
                        v_fma(b, value[d], sum[(r * G + g) * D + d]);
                }
            }
        }
    }
    UNROLL for (uint32_t r = 0; r < R; r++) UNROLL for (uint32_t g = 0; g < G; g++)
        UNROLL for (uint32_t d = 0; d < D; d++)
            v_store(out[r] + (size_t)g * hd + d * 16, sum[(r * G + g) * D + d]);
}

INLINE void values_dims(const struct attention_block *t, enum kv_format kv, const uint32_t R,
                        const uint32_t G, uint32_t r0, uint32_t g0, uint32_t j0, uint32_t j1) {
    const uint32_t fit = SUMS / (R * G);
    const uint32_t D = fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
    uint32_t d = 0;
    if (j0 >= j1) return;
    for (; d + D * 16 <= t->head_dim; d += D * 16) values_tile(t, kv, R, G, D, r0, g0, d, j0, j1);
    for (; d + 16 <= t->head_dim; d += 16) values_tile(t, kv, R, G, 1, r0, g0, d, j0, j1);
}

/* Calls f(t, kv, R, G, r0, g0, from, to) with constant R and G over all rows [r0, r1) and heads. */
#define TILE_HEADS(f, kv, R, r0, from, to)                                                         \
    do {                                                                                           \
        uint32_t g_ = 0;                                                                           \
        const uint32_t n_ = t->n_group;                                                            \
        while (QUERIES >= (R)*4 && n_ - g_ >= 4 && n_ - g_ != 6 && n_ - g_ != 5)                   \
            f(t, kv, R, QUERIES >= (R)*4 ? 4 : 1, r0, g_, from, to), g_ += 4;                      \
        while (QUERIES >= (R)*3 && n_ - g_ >= 3)                                                   \
            f(t, kv, R, QUERIES >= (R)*3 ? 3 : 1, r0, g_, from, to), g_ += 3;                      \
        while (QUERIES >= (R)*2 && n_ - g_ >= 2)                                                   \
            f(t, kv, R, QUERIES >= (R)*2 ? 2 : 1, r0, g_, from, to), g_ += 2;                      \
        while (n_ - g_ >= 1) f(t, kv, R, 1, r0, g_, from, to), g_ += 1;                            \
    } while (0)

/* The keys' or values' scales of the page of positions [i, i + 16). */
INLINE v16 page_scales(const struct attention_block *t, int32_t i, size_t bytes) {
    return v_load_f16((const uint16_t *)(const void *)(t->pages[i / 16] + bytes));
}

/* Masked softmax of one row's scores in place, G heads side by side: their sums and maxima are
 * chains that do not wait for each other. */
INLINE void softmax_heads(const struct attention_block *t, enum kv_format kv, const uint32_t R,
                          const uint32_t G, uint32_t r, uint32_t g0, uint32_t lo, uint32_t hi) {
    const bool q8 = kv == KV_Q8, softcap = t->softcap > 0;
    const int32_t first = (int32_t)(lo & ~15u), last = (int32_t)hi;
    float *s = t->scratch + query_at(r, g0);
    v16 top[4], sum[4];
    float m[4];
    (void)R;
    UNROLL for (uint32_t g = 0; g < G; g++) top[g] = v_set1(-__builtin_inff());
    for (int32_t i = first; i < last; i += 16) {
        const uint32_t mask = lane_mask((int32_t)lo - i, last - i);
        const v16 scale = q8 ? page_scales(t, i, t->k_scale_bytes) : v_set1(0);
        UNROLL for (uint32_t g = 0; g < G; g++) {
            float *at = s + query_at(0, g) + i;
            v16 x = v_load(at);
            if (q8) x = v_mul(x, scale);
            if (softcap) x = v_softcap(x, t->softcap);
            if (mask != 0xffff) x = v_select(mask, x, v_set1(-__builtin_inff()));
            if (q8 || softcap || mask != 0xffff) v_store(at, x);
            top[g] = v_max(top[g], x);
        }
    }
    UNROLL for (uint32_t g = 0; g < G; g++) {
        t->m[r][g0 + g] = m[g] = v_hmax(top[g]);
        sum[g] = v_set1(0);
    }
    for (int32_t i = first; i < last; i += 16) {
        const uint32_t mask = lane_mask((int32_t)lo - i, last - i);
        const v16 scale = q8 ? page_scales(t, i, t->v_scale_bytes) : v_set1(0);
        UNROLL for (uint32_t g = 0; g < G; g++) {
            float *at = s + query_at(0, g) + i;
            v16 e = v_exp(v_sub(v_load(at), v_set1(m[g])));
            if (mask != 0xffff) e = v_select(mask, e, v_set1(0));
            sum[g] = v_add(sum[g], e);
            if (q8) e = v_mul(e, scale);
            v_store(at, e);
        }
    }
    UNROLL for (uint32_t g = 0; g < G; g++) t->l[r][g0 + g] = v_sum(sum[g]);
}

INLINE void attention_block_in(const struct attention_block *t, enum kv_format kv) {
    const uint32_t n_rows = t->n_rows;
    uint32_t lo_min = t->lo[0], hi_max = t->hi[0], lo_max = t->lo[0], hi_min = t->hi[0];
    for (uint32_t r = 1; r < n_rows; r++) {
        lo_min = t->lo[r] < lo_min ? t->lo[r] : lo_min;
        lo_max = t->lo[r] > lo_max ? t->lo[r] : lo_max;
        hi_min = t->hi[r] < hi_min ? t->hi[r] : hi_min;
        hi_max = t->hi[r] > hi_max ? t->hi[r] : hi_max;
    }
    const uint32_t page0 = lo_min / 16, page1 = (hi_max + 15) / 16;
    uint32_t r = 0;
    if (QUERIES >= 12)
        for (; r + 4 <= n_rows; r += 4) TILE_HEADS(scores_pages, kv, 4, r, page0, page1);
    for (; r + 2 <= n_rows; r += 2) TILE_HEADS(scores_pages, kv, 2, r, page0, page1);
    for (; r < n_rows; r++) TILE_HEADS(scores_pages, kv, 1, r, page0, page1);

    for (r = 0; r < n_rows; r++) {
        TILE_HEADS(softmax_heads, kv, 1, r, t->lo[r], t->hi[r]);
        memset(t->acc[r], 0, (size_t)t->n_group * t->head_dim * sizeof(float));
    }

    /* Rows that see the same positions share the loads; each row's own ends are added alone, before
     * and after, so that a masked position is not even multiplied by zero. */
    const uint32_t j0 = lo_max < hi_min ? lo_max : hi_max, j1 = lo_max < hi_min ? hi_min : hi_max;
    for (r = 0; r < n_rows; r++) {
        const uint32_t end = t->hi[r] < j0 ? t->hi[r] : j0;
        if (t->lo[r] < end) TILE_HEADS(values_dims, kv, 1, r, t->lo[r], end);
    }
    r = 0;
    if (j0 < j1) {
        for (; r + 2 <= n_rows; r += 2) TILE_HEADS(values_dims, kv, 2, r, j0, j1);
        for (; r < n_rows; r++) TILE_HEADS(values_dims, kv, 1, r, j0, j1);
    }
    for (r = 0; r < n_rows; r++)
        if (j1 < t->hi[r]) TILE_HEADS(values_dims, kv, 1, r, j1, t->hi[r]);
}

static void attention_block_f16(const struct attention_block *t) {
    attention_block_in(t, KV_F16);
}
static void attention_block_q8(const struct attention_block *t) {
    attention_block_in(t, KV_Q8);
}
static void attention_block_f32(const struct attention_block *t) {
    attention_block_in(t, KV_F32);
}

static void attention_block(const struct attention_block *t) {
    if (t->kv == KV_F16)
        attention_block_f16(t);
    else if (t->kv == KV_Q8)
        attention_block_q8(t);
    else
        attention_block_f32(t);
}

static void attention_merge(float *m, float *l, float *acc, float m_b, float l_b,
                            const float *acc_b, uint32_t head_dim) {
    const float top = *m > m_b ? *m : m_b;
    /* Both at once, and inline: a call of math_expf has no FMA of its own. */
    float scales[16];
    v_store(scales, v_exp(v_load_n((const float[2]){*m - top, m_b - top}, 2)));
    const float a = scales[0], b = scales[1];
    FOR_LANES(i, head_dim)
    STORE(acc, i, v_fma(LOAD(acc, i), v_set1(a), v_mul(LOAD(acc_b, i), v_set1(b))));
    *l = __builtin_fmaf(*l, a, l_b * b);
    *m = top;
}

static bool sample_maxima(const float *z, uint32_t n, uint32_t chunk, float *maxima) {
    v16 zeros = v_set1(0);
    for (uint32_t c = 0; c < SAMPLE_CHUNKS; c++) {
        const uint32_t first = c * chunk < n ? c * chunk : n;
        const uint32_t count = n - first < chunk ? n - first : chunk;
        v16 top = v_set1(-__builtin_inff());
        FOR_LANES(i, count) {
            const v16 x = LOAD(z + first, i);
            /* 0 unless an element is infinite or NaN. */
            zeros = v_fma(x, v_set1(0), zeros);
            top = v_max(n_ == 16 ? x : v_select((1u << n_) - 1, x, top), top);
        }
        maxima[c] = v_hmax(top);
    }
    return v_sum(zeros) == 0;
}

static void sample_sums(const float *z, uint32_t n, float max, float *sum, float *weighted) {
    v16 s = v_set1(0), w = v_set1(0);
    FOR_LANES(i, n) {
        const v16 d = v_sub(LOAD(z, i), v_set1(max));
        v16 e = v_exp(d);
        if (n_ != 16) e = v_select((1u << n_) - 1, e, v_set1(0));
        s = v_add(s, e);
        w = v_fma(e, d, w);
    }
    *sum = v_sum(s);
    *weighted = v_sum(w);
}

static uint32_t sample_at_least(const float *z, uint32_t first, uint32_t last, float bound,
                                uint32_t *ids) {
    uint32_t count = 0;
    FOR_LANES(i, last - first) {
        uint32_t hit = v_ge_mask(LOAD(z + first, i), v_set1(bound));
        if (n_ != 16) hit &= (1u << n_) - 1;
        for (; hit != 0; hit &= hit - 1) ids[count++] = first + i + (uint32_t)__builtin_ctz(hit);
    }
    return count;
}

static void sample_masses(const float *z, uint32_t n, uint32_t chunk, float max, float temperature,
                          uint64_t *mass, uint64_t *chunk_mass) {
    for (uint32_t c = 0; c < SAMPLE_CHUNKS; c++) {
        const uint32_t first = c * chunk < n ? c * chunk : n;
        const uint32_t count = n - first < chunk ? n - first : chunk;
        uint64_t sum = 0;
        FOR_LANES(i, count) {
            v16 e = v_exp(v_div(v_sub(LOAD(z + first, i), v_set1(max)), v_set1(temperature)));
            if (n_ == 16) {
                sum += v_mass(e, mass + first + i);
            } else {
                uint64_t last[16];
                sum += v_mass(v_select((1u << n_) - 1, e, v_set1(0)), last);
                memcpy(mass + first + i, last, n_ * sizeof *last);
            }
        }
        chunk_mass[c] = sum;
    }
}

static void page_bounds(const uint8_t *k, const uint8_t *k_scale, enum kv_format kv,
                        uint32_t head_dim, uint16_t *out) {
    v16 scale = v_set1(1);
    if (kv == KV_Q8) scale = v_load_f16((const uint16_t *)(const void *)k_scale);
    for (uint32_t d = 0; d < head_dim; d += 16) {
        float low[16], high[16];
        for (uint32_t j = 0; j < 16; j++) {
            const v16 x = v_mul(load_kv(k, (size_t)(d + j) * 16, kv), scale);
            const float mean = v_sum(x) * 0.0625f;
            const v16 off = v_sub(x, v_set1(mean));
            const float half = 0.5f * __builtin_sqrtf(v_sum(v_mul(off, off)) * 0.0625f);
            low[j] = mean - half;
            high[j] = mean + half;
        }
        v_store_f16(out + d, v_load(low));
        v_store_f16(out + head_dim + d, v_load(high));
    }
}

static float page_score(const float *q, uint32_t n_group, uint32_t head_dim,
                        const uint16_t *bounds) {
    enum { HEADS = 4 }; /* that share the loads */
    float best = -__builtin_inff();
    for (uint32_t first = 0; first < n_group; first += HEADS) {
        const uint32_t n = n_group - first < HEADS ? n_group - first : HEADS;
        v16 sum[HEADS];
        UNROLL for (uint32_t h = 0; h < HEADS; h++) sum[h] = v_set1(0);
        for (uint32_t d = 0; d < head_dim; d += 16) {
            const v16 low = v_load_f16(bounds + d), high = v_load_f16(bounds + head_dim + d);
            UNROLL for (uint32_t h = 0; h < HEADS; h++) {
                if (h >= n) break;
                const v16 x = v_load(q + (size_t)(first + h) * head_dim + d);
                sum[h] = v_add(sum[h], v_max(v_mul(x, low), v_mul(x, high)));
            }
        }
        for (uint32_t h = 0; h < n; h++) {
            const float s = v_sum(sum[h]);
            best = s > best ? s : best;
        }
    }
    return best;
}

static float dot(const float *a, const float *b, uint32_t n) {
    v16 sum = v_set1(0);
    FOR_LANES(i, n) sum = v_fma(LOAD(a, i), LOAD(b, i), sum);
    return v_sum(sum);
}

#define VECTOR_KERNELS(isa)                                                                        \
    {                                                                                              \
        .name = (isa), .rms_norm = rms_norm, .add_scaled = add_scaled, .scale = scale_by,          \
        .softcap = softcap, .gated = gated, .rope = rope, .kv_write = kv_write,                    \
        .attention_block = attention_block, .attention_merge = attention_merge,                    \
        .page_bounds = page_bounds, .page_score = page_score, .dot = dot, .sample = {              \
            sample_maxima,                                                                         \
            sample_sums,                                                                           \
            sample_at_least,                                                                       \
            sample_masses                                                                          \
        }                                                                                          \
    }
