#include "core/cpu/simd_256.h"

#define SIGNED_BYTES(format) false
/* Sixteen registers: two rows with both sums spill nothing, but unpack each weight for every two
 * rows. Measured on a Zen 5 (perf/cpu/kernels, Q4_1 576 x 576, multiply-adds per ns): tiles of 8,
 * 98 against 90 of the int16 class, 163 against 154 of int8; tiles of 4, 76 against 87. */
#define ROWS_AT_ONCE(n)    ((n) == 8 ? 2u : 4u)
#define PASSES_TOGETHER(n) ((n) == 8)

struct wide {
    vb v[8];
};
static inline void wide_set(struct wide *w, enum activation_format format, int t, vb u) {
    (void)format;
    w->v[t] = u;
}

static inline vi dot4(vi acc, vb w, const uint8_t *x) {
    return (vi)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)w, (__m256i)v_broadcast_i(x));
}

#define DOT_PASSES(format) ((format) == ACTIVATION_INT16 ? 2 : 1)
static inline vi v_dot_quad(enum activation_format format, bool is_signed, const struct wide *w,
                            int t, int pass, const uint8_t *x, vi v) {
    (void)format;
    (void)is_signed;
    return dot4(v, w->v[t], x + 32 * pass + 4 * t);
}

static inline __attribute__((always_inline)) void
kernels_quantise_row(enum activation_format format, const float *x, uint32_t n_blocks,
                     uint8_t *dst) {
    const bool wide = format == ACTIVATION_INT16;
    const float limit = wide ? ACTIVATION_INT16_MAX : ACTIVATION_INT8_MAX;
    const __m256i half = _mm256_set1_epi16(128);
    for (uint32_t b = 0; b < n_blocks; b++, x += 32, dst += activation_block_bytes(format)) {
        __m256i q[4], words[2];
        struct activation_sums sums;
        quantise_block(x, limit, q, &sums);
        narrow_words(q, words);
        if (wide) {
            /* |q| <= 32512, so q + 128 stays a word. */
            __m256i hi[2], lo[2];
#pragma GCC unroll 2
            for (int i = 0; i < 2; i++) {
                hi[i] = _mm256_srai_epi16(_mm256_add_epi16(words[i], half), 8);
                lo[i] = _mm256_sub_epi16(words[i], _mm256_slli_epi16(hi[i], 8));
            }
            _mm256_storeu_si256((__m256i *)dst, narrow_bytes(hi[0], hi[1]));
            _mm256_storeu_si256((__m256i *)(dst + 32), narrow_bytes(lo[0], lo[1]));
        } else {
            _mm256_storeu_si256((__m256i *)dst, narrow_bytes(words[0], words[1]));
        }
        __builtin_memcpy(dst + (wide ? 64 : 32), &sums, sizeof sums);
    }
}

#define KERNELS      matmul_avxvnni
#define KERNELS_NAME "avxvnni"
#include "core/cpu/matmul_simd.h"
