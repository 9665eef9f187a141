/* AVX2, FMA, F16C: sixteen lanes are two registers. */
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/tensor.h"

typedef struct {
    __m256 a, b;
} v16;

enum { QUERIES = 6, SUMS = 6 }; /* twelve of the sixteen registers */

static inline v16 v_load(const float *p) {
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
static inline void v_store(float *p, v16 x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
static inline v16 v_load_n(const float *p, uint32_t n) {
    float x[16] = {0};
    for (uint32_t i = 0; i < n; i++) x[i] = p[i];
    return v_load(x);
}
static inline void v_store_n(float *p, v16 v, uint32_t n) {
    float x[16];
    v_store(x, v);
    for (uint32_t i = 0; i < n; i++) p[i] = x[i];
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
static inline v16 v_swap_pairs(v16 x) {
    return (v16){_mm256_permute_ps(x.a, 0xb1), _mm256_permute_ps(x.b, 0xb1)};
}
static inline v16 v_down(v16 x, int n) {
    return (v16){n == 8   ? x.b
                 : n == 4 ? _mm256_permute2f128_ps(x.a, x.a, 0x11)
                 : n == 2 ? _mm256_permute_ps(x.a, 0xee)
                          : _mm256_permute_ps(x.a, 0x55),
                 x.b};
}
static inline float v_first(v16 x) {
    return _mm256_cvtss_f32(x.a);
}
static inline __m256 select_half(uint32_t mask, __m256 x, __m256 y) {
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i on = _mm256_and_si256(_mm256_set1_epi32((int)mask), bit);
    return _mm256_blendv_ps(y, x, _mm256_castsi256_ps(_mm256_cmpeq_epi32(on, bit)));
}
static inline v16 v_select(uint32_t mask, v16 x, v16 y) {
    return (v16){select_half(mask & 0xff, x.a, y.a), select_half(mask >> 8, x.b, y.b)};
}
static inline v16 v_load_f16(const uint16_t *p) {
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 8)))};
}
static inline void v_store_f16(uint16_t *p, v16 x) {
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(void *)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
static inline v16 v_load_i8(const int8_t *p) {
    const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))};
}
static inline uint32_t v_ge_mask(v16 x, v16 y) {
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_GE_OQ)) |
           (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_GE_OQ)) << 8;
}
/* A double holds e * 2^40 exactly; adding 2^52 to its floor puts the integer into the low bits. */
static inline __m256i mass_quarter(__m128 e, uint64_t *mass) {
    const __m256d scaled = _mm256_mul_pd(_mm256_cvtps_pd(e), _mm256_set1_pd(0x1p40));
    const __m256d shifted = _mm256_add_pd(_mm256_floor_pd(scaled), _mm256_set1_pd(0x1p52));
    const __m256i m =
        _mm256_and_si256(_mm256_castpd_si256(shifted), _mm256_set1_epi64x(0x000fffffffffffff));
    _mm256_storeu_si256((__m256i *)(void *)mass, m);
    return m;
}
static inline uint64_t v_mass(v16 e, uint64_t *mass) {
    const __m256i s0 = mass_quarter(_mm256_castps256_ps128(e.a), mass);
    const __m256i s1 = mass_quarter(_mm256_extractf128_ps(e.a, 1), mass + 4);
    const __m256i s2 = mass_quarter(_mm256_castps256_ps128(e.b), mass + 8);
    const __m256i s3 = mass_quarter(_mm256_extractf128_ps(e.b, 1), mass + 12);
    const __m256i s = _mm256_add_epi64(_mm256_add_epi64(s0, s1), _mm256_add_epi64(s2, s3));
    uint64_t lane[4];
    _mm256_storeu_si256((__m256i *)(void *)lane, s);
    return lane[0] + lane[1] + lane[2] + lane[3];
}

#include "core/cpu/vector_kernels.h"

const struct vector_kernels vector_kernels_avx2 = VECTOR_KERNELS("avx2");
