/* AVX-512: sixteen lanes are one register. */
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/tensor.h"

typedef __m512 v16;

enum { QUERIES = 12, SUMS = 24 }; /* of thirty-two registers */

static inline __mmask16 first_lanes(uint32_t n) {
    return (__mmask16)((1u << n) - 1u);
}
static inline v16 v_load(const float *p) {
    return _mm512_loadu_ps(p);
}
static inline void v_store(float *p, v16 x) {
    _mm512_storeu_ps(p, x);
}
static inline v16 v_load_n(const float *p, uint32_t n) {
    return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
static inline void v_store_n(float *p, v16 x, uint32_t n) {
    _mm512_mask_storeu_ps(p, first_lanes(n), x);
}
static inline v16 v_set1(float f) {
    return _mm512_set1_ps(f);
}
static inline v16 v_add(v16 x, v16 y) {
    return _mm512_add_ps(x, y);
}
static inline v16 v_sub(v16 x, v16 y) {
    return _mm512_sub_ps(x, y);
}
static inline v16 v_mul(v16 x, v16 y) {
    return _mm512_mul_ps(x, y);
}
static inline v16 v_div(v16 x, v16 y) {
    return _mm512_div_ps(x, y);
}
static inline v16 v_max(v16 x, v16 y) {
    return _mm512_max_ps(x, y);
}
static inline v16 v_min(v16 x, v16 y) {
    return _mm512_min_ps(x, y);
}
static inline v16 v_fma(v16 x, v16 y, v16 z) {
    return _mm512_fmadd_ps(x, y, z);
}
/* One rounding, as the two exact-then-rounded factors of the others. */
static inline v16 v_pow2(v16 p, v16 t) {
    return _mm512_scalef_ps(p, _mm512_sub_ps(t, _mm512_set1_ps(0x1.8p+23f)));
}
static inline v16 v_swap_pairs(v16 x) {
    return _mm512_permute_ps(x, 0xb1);
}
static inline v16 v_down(v16 x, int n) {
    return n == 8   ? _mm512_shuffle_f32x4(x, x, 0xee)
           : n == 4 ? _mm512_shuffle_f32x4(x, x, 0x55)
           : n == 2 ? _mm512_permute_ps(x, 0xee)
                    : _mm512_permute_ps(x, 0x55);
}
static inline float v_first(v16 x) {
    return _mm512_cvtss_f32(x);
}
static inline v16 v_select(uint32_t mask, v16 x, v16 y) {
    return _mm512_mask_blend_ps((__mmask16)mask, y, x);
}
static inline v16 v_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
static inline void v_store_f16(uint16_t *p, v16 x) {
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
static inline v16 v_load_i8(const int8_t *p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}
static inline uint32_t v_ge_mask(v16 x, v16 y) {
    return _mm512_cmp_ps_mask(x, y, _CMP_GE_OQ);
}
static inline uint64_t v_mass(v16 e, uint64_t *mass) {
    const __m512 scaled = _mm512_mul_ps(e, _mm512_set1_ps(0x1p40f));
    const __m512i lo = _mm512_cvttps_epu64(_mm512_castps512_ps256(scaled));
    const __m512i hi = _mm512_cvttps_epu64(_mm512_extractf32x8_ps(scaled, 1));
    _mm512_storeu_si512(mass, lo);
    _mm512_storeu_si512(mass + 8, hi);
    return (uint64_t)_mm512_reduce_add_epi64(_mm512_add_epi64(lo, hi));
}

#include "core/cpu/vector_kernels.h"

const struct vector_kernels vector_kernels_avx512 = VECTOR_KERNELS("avx512");
