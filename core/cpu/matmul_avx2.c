/* AVX2 has no 8-bit dot product that cannot saturate, so 16-bit rows are kept as words and meet the
 * weights in vpmaddwd: the even bytes of a quad in one word vector, the odd ones in another. 8-bit
 * rows use vpmaddubsw, which is exact as long as one side stays below 128: 8-bit weights go in as
 * magnitudes, their signs moved to the activations. */
#include "core/cpu/simd_256.h"

#define SIGNED_BYTES(format) ((format) == ACTIVATION_INT8)
#define ROWS_AT_ONCE(n)      4u
#define PASSES_TOGETHER(n)   true

struct wide {
    vb v[16];
};
static inline void wide_set(struct wide *w, enum activation_format format, int t, vb u) {
    if (format == ACTIVATION_INT16) {
        w->v[2 * t] = (vb)((vh)u & 255);
        w->v[2 * t + 1] = (vb)((vh)u >> 8);
    } else {
        w->v[t] = u;
    }
}

/* gcc 12 would put off the additions of a whole block and spill the products meanwhile. */
static inline vi add_now(vi acc, __m256i products) {
    acc = acc + (vi)products;
    __asm__("" : "+x"(acc));
    return acc;
}

static inline vi dot_words(vi acc, vb w, const uint8_t *x) {
    return add_now(acc, _mm256_madd_epi16((__m256i)w, (__m256i)v_broadcast_i(x)));
}

static inline vi dot_bytes(vi acc, vb w, bool is_signed, const uint8_t *x) {
    const __m256i q = (__m256i)v_broadcast_i(x);
    const __m256i pairs = is_signed ? _mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)w),
                                                           _mm256_sign_epi8(q, (__m256i)w))
                                    : _mm256_maddubs_epi16((__m256i)w, q);
    return add_now(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

#define DOT_PASSES(format) 1
static inline vi v_dot_quad(enum activation_format format, bool is_signed, const struct wide *w,
                            int t, int pass, const uint8_t *x, vi v) {
    (void)pass;
    if (format == ACTIVATION_INT8) return dot_bytes(v, w->v[t], is_signed, x + 4 * t);
    v = dot_words(v, w->v[2 * t], x + 8 * t);
    return dot_words(v, w->v[2 * t + 1], x + 8 * t + 4);
}

static inline __attribute__((always_inline)) void
kernels_quantise_row(enum activation_format format, const float *x, uint32_t n_blocks,
                     uint8_t *dst) {
    const bool wide = format == ACTIVATION_INT16;
    const float limit = wide ? ACTIVATION_INT16_MAX : ACTIVATION_INT8_MAX;
    for (uint32_t b = 0; b < n_blocks; b++, x += 32, dst += activation_block_bytes(format)) {
        __m256i q[4], words[2];
        struct activation_sums sums;
        quantise_block(x, limit, q, &sums);
        narrow_words(q, words);
        if (wide) {
            /* The words of a quad in the order 0, 2, 1, 3: the even pair, then the odd one. */
#pragma GCC unroll 2
            for (int i = 0; i < 2; i++) {
                words[i] = _mm256_shufflelo_epi16(words[i], 0xd8);
                words[i] = _mm256_shufflehi_epi16(words[i], 0xd8);
                _mm256_storeu_si256((__m256i *)(dst + 32 * i), words[i]);
            }
        } else {
            _mm256_storeu_si256((__m256i *)dst, narrow_bytes(words[0], words[1]));
        }
        __builtin_memcpy(dst + (wide ? 64 : 32), &sums, sizeof sums);
    }
}

#define KERNELS      matmul_avx2
#define KERNELS_NAME "avx2"
#include "core/cpu/matmul_simd.h"
