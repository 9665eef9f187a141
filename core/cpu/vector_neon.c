/* NEON: sixteen lanes are four registers. */
#include <arm_neon.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/tensor.h"

typedef struct {
    float32x4_t q[4];
} v16;

enum { QUERIES = 6, SUMS = 6 }; /* twenty-four of the thirty-two registers */

#define QUARTERS(i) for (int i = 0; i < 4; i++)

static inline v16 v_load(const float *p) {
    v16 r;
    QUARTERS(i) r.q[i] = vld1q_f32(p + 4 * i);
    return r;
}
static inline void v_store(float *p, v16 x) {
    QUARTERS(i) vst1q_f32(p + 4 * i, x.q[i]);
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
    v16 r;
    QUARTERS(i) r.q[i] = vdupq_n_f32(f);
    return r;
}
#define BINARY(name, op)                                                                           \
    static inline v16 name(v16 x, v16 y) {                                                         \
        QUARTERS(i) x.q[i] = op(x.q[i], y.q[i]);                                                   \
        return x;                                                                                  \
    }
BINARY(v_add, vaddq_f32)
BINARY(v_sub, vsubq_f32)
BINARY(v_mul, vmulq_f32)
BINARY(v_div, vdivq_f32)
/* The instructions of that name treat NaN and signed zeros otherwise than a > b ? a : b. */
static inline float32x4_t max4(float32x4_t x, float32x4_t y) {
    return vbslq_f32(vcgtq_f32(x, y), x, y);
}
static inline float32x4_t min4(float32x4_t x, float32x4_t y) {
    return vbslq_f32(vcltq_f32(x, y), x, y);
}
BINARY(v_max, max4)
BINARY(v_min, min4)
static inline v16 v_down(v16 x, int n) {
    if (n == 8) x.q[0] = x.q[2], x.q[1] = x.q[3];
    if (n == 4) x.q[0] = x.q[1];
    if (n == 2) x.q[0] = vextq_f32(x.q[0], x.q[0], 2);
    if (n == 1) x.q[0] = vextq_f32(x.q[0], x.q[0], 1);
    return x;
}
static inline float v_first(v16 x) {
    return vgetq_lane_f32(x.q[0], 0);
}
static inline v16 v_fma(v16 x, v16 y, v16 z) {
    QUARTERS(i) z.q[i] = vfmaq_f32(z.q[i], x.q[i], y.q[i]);
    return z;
}
static inline v16 v_pow2(v16 p, v16 t) {
    QUARTERS(i) {
        const int32x4_t e = vsubq_s32(vreinterpretq_s32_f32(t.q[i]), vdupq_n_s32(0x4b400000));
        const int32x4_t half = vshrq_n_s32(e, 1), bias = vdupq_n_s32(127);
        const int32x4_t b0 = vshlq_n_s32(vaddq_s32(half, bias), 23);
        const int32x4_t b1 = vshlq_n_s32(vaddq_s32(vsubq_s32(e, half), bias), 23);
        p.q[i] = vmulq_f32(vmulq_f32(p.q[i], vreinterpretq_f32_s32(b0)), vreinterpretq_f32_s32(b1));
    }
    return p;
}
static inline v16 v_swap_pairs(v16 x) {
    QUARTERS(i) x.q[i] = vrev64q_f32(x.q[i]);
    return x;
}
static inline v16 v_select(uint32_t mask, v16 x, v16 y) {
    static const uint32_t bits[4] = {1, 2, 4, 8};
    const uint32x4_t bit = vld1q_u32(bits);
    QUARTERS(i)
    x.q[i] = vbslq_f32(vtstq_u32(vdupq_n_u32(mask >> 4 * i), bit), x.q[i], y.q[i]);
    return x;
}
static inline v16 v_load_f16(const uint16_t *p) {
    v16 r;
    QUARTERS(i) r.q[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
    return r;
}
static inline void v_store_f16(uint16_t *p, v16 x) {
    QUARTERS(i) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.q[i])));
}
static inline v16 v_load_i8(const int8_t *p) {
    v16 r;
    const int8x16_t x = vld1q_s8(p);
    const int16x8_t lo = vmovl_s8(vget_low_s8(x)), hi = vmovl_s8(vget_high_s8(x));
    r.q[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo)));
    r.q[1] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(lo)));
    r.q[2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi)));
    r.q[3] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(hi)));
    return r;
}
static inline uint32_t v_ge_mask(v16 x, v16 y) {
    static const uint32_t bits[4] = {1, 2, 4, 8};
    const uint32x4_t bit = vld1q_u32(bits);
    uint32_t m = 0;
    QUARTERS(i) m |= vaddvq_u32(vandq_u32(vcgeq_f32(x.q[i], y.q[i]), bit)) << 4 * i;
    return m;
}
static inline uint64_t v_mass(v16 e, uint64_t *mass) {
    uint64x2_t sum = vdupq_n_u64(0);
    QUARTERS(i) {
        const float32x4_t scaled = vmulq_f32(e.q[i], vdupq_n_f32(0x1p40f));
        const uint64x2_t lo = vcvtq_u64_f64(vcvt_f64_f32(vget_low_f32(scaled)));
        const uint64x2_t hi = vcvtq_u64_f64(vcvt_high_f64_f32(scaled));
        vst1q_u64(mass + 4 * i, lo);
        vst1q_u64(mass + 4 * i + 2, hi);
        sum = vaddq_u64(sum, vaddq_u64(lo, hi));
    }
    return vaddvq_u64(sum);
}

#include "core/cpu/vector_kernels.h"

const struct vector_kernels vector_kernels_neon = VECTOR_KERNELS("neon");
