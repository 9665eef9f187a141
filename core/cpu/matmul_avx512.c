#include "core/cpu/layout.h"

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>

enum { LANES = 16 };
typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint8_t vb __attribute__((vector_size(64)));
typedef uint16_t vh __attribute__((vector_size(64)));

#define SIGNED_BYTES(format) false
#define ROWS_AT_ONCE(n)      8u
#define PASSES_TOGETHER(n)   true

static inline vb v_load(const uint8_t *p) {
    return (vb)_mm512_loadu_si512(p);
}
static inline vf v_fma(vf a, vf b, vf c) {
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
static inline vf v_f16(const uint8_t *p) {
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline vf v_bf16(const uint8_t *p) {
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return (vf)_mm512_slli_epi32(bits, 16);
}
static inline vi v_u8(const uint8_t *p) {
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}
static inline vb v_table(const uint8_t *table, vb index) {
    const __m512i t = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table));
    return (vb)_mm512_shuffle_epi8(t, (__m512i)index);
}
static inline vf v_to_float(vi v) {
    return (vf)_mm512_cvtepi32_ps((__m512i)v);
}
static inline vf v_broadcast_f(const uint8_t *p) {
    float f;
    __builtin_memcpy(&f, p, sizeof f);
    return (vf)_mm512_set1_ps(f);
}
static inline vi v_broadcast_i(const uint8_t *p) {
    int32_t i;
    __builtin_memcpy(&i, p, sizeof i);
    return (vi)_mm512_set1_epi32(i);
}

struct wide {
    vb v[8];
};
static inline void wide_set(struct wide *w, enum activation_format format, int t, vb u) {
    (void)format;
    w->v[t] = u;
}

/* Written out because gcc 12 does not fold the broadcast of four activations into the instruction.
 */
static inline vi dot4(vi acc, vb w, const uint8_t *x) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const int32_t *)x));
    return acc;
}

#define DOT_PASSES(format) ((format) == ACTIVATION_INT16 ? 2 : 1)
static inline vi v_dot_quad(enum activation_format format, bool is_signed, const struct wide *w,
                            int t, int pass, const uint8_t *x, vi v) {
    (void)format;
    (void)is_signed;
    return dot4(v, w->v[t], x + 32 * pass + 4 * t);
}

/* v_dot_row with the address spelt out: left to itself, gcc 12 computes most of the 128 addresses
 * of a block of 8 rows one by one, and the kernel is bound by those instructions. */
#define DOT_AT(index, scale)                                                                       \
    __asm__("vpdpbusd %c[at](%[x],%[i]," #scale ")%{1to16%}, %[w], %[v]"                           \
            : [v] "+v"(v)                                                                          \
            : [w] "v"(w), [x] "r"(x), [i] "r"(index), [at] "i"(at), "m"(*(const uint8_t(*)[64])x))
static inline __attribute__((always_inline)) vi dot4_row(vi v, vb w, const uint8_t *x,
                                                         size_t stride, size_t stride3,
                                                         size_t stride5, size_t stride7,
                                                         const uint32_t r, const int at) {
    if (r == 0) {
        __asm__("vpdpbusd %c[at](%[x])%{1to16%}, %[w], %[v]"
                : [v] "+v"(v)
                : [w] "v"(w), [x] "r"(x), [at] "i"(at), "m"(*(const uint8_t(*)[64])x));
    }
    if (r == 1) DOT_AT(stride, 1);
    if (r == 2) DOT_AT(stride, 2);
    if (r == 3) DOT_AT(stride3, 1);
    if (r == 4) DOT_AT(stride, 4);
    if (r == 5) DOT_AT(stride5, 1);
    if (r == 6) DOT_AT(stride3, 2);
    if (r == 7) DOT_AT(stride7, 1);
    return v;
}
#define v_dot_row(format, is_signed, w, t, pass, rows, r, acc)                                     \
    ((void)(format), (void)(is_signed),                                                            \
     dot4_row(acc, (w)->v[t], (rows)->x, (rows)->stride, (rows)->stride3, (rows)->stride5,         \
              (rows)->stride7, r, 32 * (pass) + 4 * (t)))

static inline __attribute__((always_inline)) void
kernels_quantise_row(enum activation_format format, const float *x, uint32_t n_blocks,
                     uint8_t *dst) {
    const bool wide = format == ACTIVATION_INT16;
    const float limit = wide ? ACTIVATION_INT16_MAX : ACTIVATION_INT8_MAX;
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    for (uint32_t b = 0; b < n_blocks; b++, x += 32, dst += activation_block_bytes(format)) {
        const __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
        const __m512i m = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(x0), magnitude),
                                           _mm512_and_si512(_mm512_castps_si512(x1), magnitude));
        const uint32_t bits = _mm512_reduce_max_epu32(m);
        const float amax = _mm512_cvtss_f32(_mm512_castsi512_ps(_mm512_set1_epi32((int)bits)));
        struct activation_sums sums = {0};
        __m512i q0 = _mm512_setzero_si512(), q1 = q0;
        if (bits >= 0x7f800000u) {
            sums.scale = sums.scaled_sum = NAN;
        } else if (amax >= ACTIVATION_TINY) {
            const __m512 inverse = _mm512_set1_ps(limit / amax);
            q0 = _mm512_cvtps_epi32(_mm512_mul_ps(x0, inverse));
            q1 = _mm512_cvtps_epi32(_mm512_mul_ps(x1, inverse));
            const int32_t low = _mm512_reduce_add_epi32(q0);
            const int32_t sum = low + _mm512_reduce_add_epi32(q1);
            sums.scale = amax / limit;
            sums.scaled_sum = sums.scale * (float)sum;
            sums.offset = -128 * sum;
            sums.offset_low = -128 * low;
        }
        if (wide) {
            const __m512i half = _mm512_set1_epi32(128);
            /* The low byte of q is its low part already: q - 256 hi keeps the bits. */
            _mm_storeu_si128((__m128i *)(dst + 32), _mm512_cvtepi32_epi8(q0));
            _mm_storeu_si128((__m128i *)(dst + 48), _mm512_cvtepi32_epi8(q1));
            q0 = _mm512_srai_epi32(_mm512_add_epi32(q0, half), 8);
            q1 = _mm512_srai_epi32(_mm512_add_epi32(q1, half), 8);
        }
        _mm_storeu_si128((__m128i *)dst, _mm512_cvtepi32_epi8(q0));
        _mm_storeu_si128((__m128i *)(dst + 16), _mm512_cvtepi32_epi8(q1));
        __builtin_memcpy(dst + (wide ? 64 : 32), &sums, sizeof sums);
    }
}

#define KERNELS      matmul_avx512
#define KERNELS_NAME "avx512"
#include "core/cpu/matmul_simd.h"
#include "core/cpu/matmul_tiles.h"
