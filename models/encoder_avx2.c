/* AVX2 and FMA: sixteen lanes are two registers. */
#include <immintrin.h>

typedef struct {
    __m256 a, b;
} v16;

enum { ROWS = 6 }; /* twelve of the sixteen registers */

static inline v16 v_load(const float *p) {
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
static inline void v_store(float *p, v16 x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
static inline v16 v_set1(float f) {
    return (v16){_mm256_set1_ps(f), _mm256_set1_ps(f)};
}
#define BINARY(name, op)                                                                           \
    static inline v16 name(v16 x, v16 y) {                                                         \
        return (v16){op(x.a, y.a), op(x.b, y.b)};                                                  \
    }
BINARY(v_add, _mm256_add_ps)
BINARY(v_sub, _mm256_sub_ps)
BINARY(v_mul, _mm256_mul_ps)
BINARY(v_div, _mm256_div_ps)
BINARY(v_max, _mm256_max_ps)
BINARY(v_min, _mm256_min_ps)
static inline v16 v_fma(v16 x, v16 y, v16 z) {
    return (v16){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
static inline __m256 pow2_half(__m256 p, __m256 t) {
    const __m256i e = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(0x4b400000));
    const __m256i half = _mm256_srai_epi32(e, 1), bias = _mm256_set1_epi32(127);
    const __m256i b0 = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    const __m256i b1 = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(e, half), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(b0)), _mm256_castsi256_ps(b1));
}
static inline v16 v_pow2(v16 p, v16 t) {
    return (v16){pow2_half(p.a, t.a), pow2_half(p.b, t.b)};
}

#include "models/encoder_kernels_text.h"

const struct encoder_kernels encoder_kernels_avx2 = ENCODER_KERNELS("avx2");
