#include "core/cpu/layout.h"

#include <arm_neon.h>
#include <math.h>

enum { LANES = 4 };
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef uint8_t vb __attribute__((vector_size(16)));
typedef uint16_t vh __attribute__((vector_size(16)));

/* sdot multiplies signed bytes by signed bytes. */
#define SIGNED_BYTES(format) true
#define ROWS_AT_ONCE(n)      8u
#define PASSES_TOGETHER(n)   true

static inline vb v_load(const uint8_t *p) {
    return (vb)vld1q_u8(p);
}
static inline vf v_fma(vf a, vf b, vf c) {
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
static inline vf v_f16(const uint8_t *p) {
    return (vf)vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}
static inline vf v_bf16(const uint8_t *p) {
    return (vf)vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16);
}
static inline vi v_u8(const uint8_t *p) {
    uint32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    const uint16x8_t words = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)));
    return (vi)vmovl_u16(vget_low_u16(words));
}
static inline vb v_table(const uint8_t *table, vb index) {
    return (vb)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)index);
}
static inline vf v_to_float(vi v) {
    return (vf)vcvtq_f32_s32((int32x4_t)v);
}
static inline vf v_broadcast_f(const uint8_t *p) {
    float f;
    __builtin_memcpy(&f, p, sizeof f);
    return (vf)vdupq_n_f32(f);
}
static inline vi v_broadcast_i(const uint8_t *p) {
    int32_t i;
    __builtin_memcpy(&i, p, sizeof i);
    return (vi)vdupq_n_s32(i);
}

struct wide {
    vb v[8];
};
static inline void wide_set(struct wide *w, enum activation_format format, int t, vb u) {
    (void)format;
    w->v[t] = u;
}

#define DOT_PASSES(format) ((format) == ACTIVATION_INT16 ? 2 : 1)
static inline vi v_dot_quad(enum activation_format format, bool is_signed, const struct wide *w,
                            int t, int pass, const uint8_t *x, vi v) {
    (void)format;
    (void)is_signed;
    const int8x16_t q = vreinterpretq_s8_s32((int32x4_t)v_broadcast_i(x + 32 * pass + 4 * t));
    return (vi)vdotq_s32((int32x4_t)v, (int8x16_t)w->v[t], q);
}

/* 32 values as eight vectors of integers, and their sums; all zero for a zero block. */
static inline __attribute__((always_inline)) void
quantise_block(const float *x, float limit, int32x4_t q[8], struct activation_sums *sums) {
    const uint32x4_t magnitude = vdupq_n_u32(0x7fffffff);
    float32x4_t v[8];
    uint32x4_t m = vdupq_n_u32(0);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        v[i] = vld1q_f32(x + 4 * i);
        m = vmaxq_u32(m, vandq_u32(vreinterpretq_u32_f32(v[i]), magnitude));
        q[i] = vdupq_n_s32(0);
    }
    const uint32_t bits = vmaxvq_u32(m);
    float amax;
    __builtin_memcpy(&amax, &bits, sizeof amax);
    *sums = (struct activation_sums){0};
    if (bits >= 0x7f800000u) {
        sums->scale = sums->scaled_sum = NAN;
        return;
    }
    if (amax < ACTIVATION_TINY) return;
    const float inverse = limit / amax;
    int32x4_t low = vdupq_n_s32(0), high = low;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        q[i] = vcvtnq_s32_f32(vmulq_n_f32(v[i], inverse));
        q[i + 4] = vcvtnq_s32_f32(vmulq_n_f32(v[i + 4], inverse));
        low = vaddq_s32(low, q[i]);
        high = vaddq_s32(high, q[i + 4]);
    }
    const int32_t sum_low = vaddvq_s32(low);
    const int32_t sum = sum_low + vaddvq_s32(high);
    sums->scale = amax / limit;
    sums->scaled_sum = sums->scale * (float)sum;
    sums->offset = -128 * sum;
    sums->offset_low = -128 * sum_low;
}

static inline __attribute__((always_inline)) void
kernels_quantise_row(enum activation_format format, const float *x, uint32_t n_blocks,
                     uint8_t *dst) {
    const bool wide = format == ACTIVATION_INT16;
    const float limit = wide ? ACTIVATION_INT16_MAX : ACTIVATION_INT8_MAX;
    for (uint32_t b = 0; b < n_blocks; b++, x += 32, dst += activation_block_bytes(format)) {
        int32x4_t q[8];
        struct activation_sums sums;
        quantise_block(x, limit, q, &sums);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const int16x8_t words = vcombine_s16(vmovn_s32(q[2 * i]), vmovn_s32(q[2 * i + 1]));
            if (wide) {
                /* |q| <= 32512, so q + 128 stays a word; the low byte of q is its low part. */
                const int16x8_t half = vdupq_n_s16(128);
                vst1_s8((int8_t *)dst + 8 * i, vshrn_n_s16(vaddq_s16(words, half), 8));
                vst1_s8((int8_t *)dst + 32 + 8 * i, vmovn_s16(words));
            } else {
                vst1_s8((int8_t *)dst + 8 * i, vmovn_s16(words));
            }
        }
        __builtin_memcpy(dst + (wide ? 64 : 32), &sums, sizeof sums);
    }
}

#define KERNELS      matmul_neon
#define KERNELS_NAME "neon"
#include "core/cpu/matmul_simd.h"
