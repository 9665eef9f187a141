/* NEON: sixteen lanes are four registers. */
#include <arm_neon.h>

typedef struct {
    float32x4_t q[4];
} v16;

enum { ROWS = 6 }; /* twenty-four of the thirty-two registers */

#define QUARTERS(i) for (int i = 0; i < 4; i++)

static inline v16 v_load(const float *p) {
    v16 r;
    QUARTERS(i) r.q[i] = vld1q_f32(p + 4 * i);
    return r;
}
static inline void v_store(float *p, v16 x) {
    QUARTERS(i) vst1q_f32(p + 4 * i, x.q[i]);
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
/* The instructions of that name treat NaN and signed zeros otherwise than a > b ? a : b. */
static inline float32x4_t max4(float32x4_t x, float32x4_t y) {
    return vbslq_f32(vcgtq_f32(x, y), x, y);
}
static inline float32x4_t min4(float32x4_t x, float32x4_t y) {
    return vbslq_f32(vcltq_f32(x, y), x, y);
}
BINARY(v_add, vaddq_f32)
BINARY(v_sub, vsubq_f32)
BINARY(v_mul, vmulq_f32)
BINARY(v_div, vdivq_f32)
BINARY(v_max, max4)
BINARY(v_min, min4)
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

#include "models/encoder_kernels_text.h"

const struct encoder_kernels encoder_kernels_neon = ENCODER_KERNELS("neon");
