/* simd_256.h: what the AVX2 and AVX-VNNI kernels share. Included by their files only, before
 * matmul_simd.h. */
#include "core/cpu/layout.h"

#include <immintrin.h>
#include <math.h>

enum { LANES = 8 };
typedef float vf __attribute__((vector_size(32)));
typedef int32_t vi __attribute__((vector_size(32)));
typedef uint8_t vb __attribute__((vector_size(32)));
typedef uint16_t vh __attribute__((vector_size(32)));

static inline vb v_load(const uint8_t *p) {
    return (vb)_mm256_loadu_si256((const __m256i *)p);
}
static inline vf v_fma(vf a, vf b, vf c) {
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
static inline vf v_f16(const uint8_t *p) {
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
static inline vf v_bf16(const uint8_t *p) {
    const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return (vf)_mm256_slli_epi32(bits, 16);
}
static inline vi v_u8(const uint8_t *p) {
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}
static inline vb v_table(const uint8_t *table, vb index) {
    const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    return (vb)_mm256_shuffle_epi8(t, (__m256i)index);
}
static inline vf v_to_float(vi v) {
    return (vf)_mm256_cvtepi32_ps((__m256i)v);
}
static inline vf v_broadcast_f(const uint8_t *p) {
    float f;
    __builtin_memcpy(&f, p, sizeof f);
    return (vf)_mm256_set1_ps(f);
}
static inline vi v_broadcast_i(const uint8_t *p) {
    int32_t i;
    __builtin_memcpy(&i, p, sizeof i);
    return (vi)_mm256_set1_epi32(i);
}

static inline uint32_t reduce_max(__m256i v) {
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

static inline int32_t reduce_add(__m256i v) {
    __m128i m = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_add_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_add_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtsi128_si32(m);
}

/* 32 values as 32-bit integers, eight to a vector, and their sums; all zero for a zero block. */
static inline __attribute__((always_inline)) void
quantise_block(const float *x, float limit, __m256i q[4], struct activation_sums *sums) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256 v[4];
    __m256i m = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        m = _mm256_max_epu32(m, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
        q[i] = _mm256_setzero_si256();
    }
    const uint32_t bits = reduce_max(m);
    float amax;
    __builtin_memcpy(&amax, &bits, sizeof amax);
    *sums = (struct activation_sums){0};
    if (bits >= 0x7f800000u) {
        sums->scale = sums->scaled_sum = NAN;
        return;
    }
    if (amax < ACTIVATION_TINY) return;
    const __m256 inverse = _mm256_set1_ps(limit / amax);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    const int32_t low = reduce_add(_mm256_add_epi32(q[0], q[1]));
    const int32_t sum = low + reduce_add(_mm256_add_epi32(q[2], q[3]));
    sums->scale = amax / limit;
    sums->scaled_sum = sums->scale * (float)sum;
    sums->offset = -128 * sum;
    sums->offset_low = -128 * low;
}

/* Four vectors of integers that fit in 16 bits, as 32 words in order. */
static inline __attribute__((always_inline)) void narrow_words(const __m256i q[4],
                                                               __m256i words[2]) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        words[i] = _mm256_permute4x64_epi64(_mm256_packs_epi32(q[2 * i], q[2 * i + 1]), 0xd8);
    }
}

/* Sixteen words each, as 32 bytes in order; the words fit in 8 bits. */
static inline __m256i narrow_bytes(__m256i a, __m256i b) {
    return _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0xd8);
}
