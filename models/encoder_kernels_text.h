/* encoder_kernels_text.h: the one text of the encoder's kernels. Each models/encoder_<isa>.c
 * defines a type of sixteen F32 lanes, `v16`, and these operations on it, then includes this file:
 *   v_load, v_store, v_set1, v_add, v_sub, v_mul, v_div
 *   v_max (as a > b ? a : b), v_min, v_fma (a b + c, one rounding)
 *   v_pow2 (p, t): p * 2^i, i the integer that MATH_EXPF_MAGIC put in the low bits of t
 * and ROWS, the rows whose sums it keeps in registers. The kernels are compiled once per set, so
 * that they cannot differ but by these operations, each of which is exact or one IEEE rounding.
 */
#include <math.h>

#include "core/math.h"
#include "models/encoder_kernels.h"

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
    float a[ENCODER_LANES];
    v_store(a, x);
    for (int half = ENCODER_LANES / 2; half >= 1; half /= 2)
        for (int i = 0; i < half; i++) a[i] = a[i] + a[i + half];
    return a[0];
}

INLINE float v_hmax(v16 x) {
    float a[ENCODER_LANES];
    v_store(a, x);
    for (int half = ENCODER_LANES / 2; half >= 1; half /= 2)
        for (int i = 0; i < half; i++) a[i] = a[i] > a[i + half] ? a[i] : a[i + half];
    return a[0];
}

/* `n` is a constant where this is inlined, so that the sums stay in registers. */
INLINE void some_rows(const float *x, size_t x_stride, const float *panel, size_t panel_stride,
                      v16 bias, float *y, size_t y_stride, uint32_t n, uint32_t n_k) {
    v16 sum[ROWS];
#pragma GCC unroll 12
    for (uint32_t r = 0; r < n; r++) sum[r] = bias;
    for (uint32_t k = 0; k < n_k; k++) {
        const v16 w = v_load(panel + k * panel_stride);
#pragma GCC unroll 12
        for (uint32_t r = 0; r < n; r++) sum[r] = v_fma(v_set1(x[r * x_stride + k]), w, sum[r]);
    }
#pragma GCC unroll 12
    for (uint32_t r = 0; r < n; r++) v_store(y + r * y_stride, sum[r]);
}

static void matmul(const float *x, size_t x_stride, const float *panel, size_t panel_stride,
                   const float *bias, float *y, size_t y_stride, uint32_t n_rows, uint32_t n_k) {
    const v16 b = bias != NULL ? v_load(bias) : v_set1(0);
    uint32_t r = 0;
    for (; n_rows - r >= ROWS; r += ROWS)
        some_rows(x + r * x_stride, x_stride, panel, panel_stride, b, y + r * y_stride, y_stride,
                  ROWS, n_k);
    for (; n_rows - r >= 4 && ROWS > 4; r += 4)
        some_rows(x + r * x_stride, x_stride, panel, panel_stride, b, y + r * y_stride, y_stride, 4,
                  n_k);
    for (; r < n_rows; r++)
        some_rows(x + r * x_stride, x_stride, panel, panel_stride, b, y + r * y_stride, y_stride, 1,
                  n_k);
}

/* With e = 1 - erf |x| / sqrt 2, both signs are max(x, 0) - |x| e / 2. */
static void gelu(float *x, size_t n) {
    const v16 zero = v_set1(0), one = v_set1(1);
    for (size_t i = 0; i < n; i += ENCODER_LANES) {
        const v16 a = v_load(x + i), magnitude = v_max(a, v_sub(zero, a));
        const v16 z = v_mul(magnitude, v_set1(0.70710678118654752f));
        const v16 t = v_div(one, v_fma(z, v_set1(0.3275911f), one));
        v16 p = v_fma(v_set1(1.061405429f), t, v_set1(-1.453152027f));
        p = v_fma(p, t, v_set1(1.421413741f));
        p = v_fma(p, t, v_set1(-0.284496736f));
        p = v_fma(p, t, v_set1(0.254829592f));
        const v16 e = v_mul(v_mul(p, t), v_exp(v_mul(v_sub(zero, z), z)));
        const v16 half = v_mul(magnitude, v_set1(0.5f));
        v_store(x + i, v_sub(v_max(a, zero), v_mul(half, e)));
    }
}

static void add_norm(float *x, const float *add, const float *weight, const float *bias, uint32_t n,
                     float epsilon) {
    v16 sum = v_set1(0);
    for (uint32_t i = 0; i < n; i += ENCODER_LANES) {
        const v16 a = v_add(v_load(x + i), v_load(add + i));
        v_store(x + i, a);
        sum = v_add(sum, a);
    }
    const v16 mean = v_set1(v_sum(sum) / (float)n);
    v16 squares = v_set1(0);
    for (uint32_t i = 0; i < n; i += ENCODER_LANES) {
        const v16 d = v_sub(v_load(x + i), mean);
        squares = v_fma(d, d, squares);
    }
    const v16 r = v_set1(1.0f / __builtin_sqrtf(v_sum(squares) / (float)n + epsilon));
    for (uint32_t i = 0; i < n; i += ENCODER_LANES) {
        const v16 d = v_mul(v_sub(v_load(x + i), mean), r);
        v_store(x + i, v_fma(d, v_load(weight + i), v_load(bias + i)));
    }
}

static void softmax(float *x, uint32_t n, float scale) {
    v16 most = v_set1(-INFINITY);
    for (uint32_t i = n; i % ENCODER_LANES != 0; i++) x[i] = -INFINITY;
    for (uint32_t i = 0; i < n; i += ENCODER_LANES) {
        const v16 a = v_mul(v_load(x + i), v_set1(scale));
        v_store(x + i, a);
        most = v_max(most, a);
    }
    const v16 top = v_set1(v_hmax(most));
    v16 sum = v_set1(0);
    for (uint32_t i = 0; i < n; i += ENCODER_LANES) {
        const v16 e = v_exp(v_sub(v_load(x + i), top));
        v_store(x + i, e);
        sum = v_add(sum, e);
    }
    const v16 all = v_set1(v_sum(sum));
    for (uint32_t i = 0; i < n; i += ENCODER_LANES) v_store(x + i, v_div(v_load(x + i), all));
}

#define ENCODER_KERNELS(name_)                                                                     \
    {                                                                                              \
        .name = name_, .rows_at_once = ROWS, .matmul = matmul, .gelu = gelu, .add_norm = add_norm, \
        .softmax = softmax                                                                         \
    }
