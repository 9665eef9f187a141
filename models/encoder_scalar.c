/* Plain C: the oracle that the other instruction sets are compared with. */
#include <stdint.h>
#include <string.h>

typedef struct {
    float x[16];
} v16;

enum { ROWS = 4 };

#define LANES(i) for (int i = 0; i < 16; i++)

static inline v16 v_load(const float *p) {
    v16 r;
    LANES(i) r.x[i] = p[i];
    return r;
}
static inline void v_store(float *p, v16 a) {
    LANES(i) p[i] = a.x[i];
}
static inline v16 v_set1(float f) {
    v16 r;
    LANES(i) r.x[i] = f;
    return r;
}
#define BINARY(name, value)                                                                        \
    static inline v16 name(v16 a, v16 b) {                                                         \
        LANES(i) a.x[i] = (value);                                                                 \
        return a;                                                                                  \
    }
BINARY(v_add, a.x[i] + b.x[i])
BINARY(v_sub, a.x[i] - b.x[i])
BINARY(v_mul, a.x[i] * b.x[i])
BINARY(v_div, a.x[i] / b.x[i])
BINARY(v_max, a.x[i] > b.x[i] ? a.x[i] : b.x[i])
BINARY(v_min, a.x[i] < b.x[i] ? a.x[i] : b.x[i])
static inline v16 v_fma(v16 a, v16 b, v16 c) {
    LANES(i) c.x[i] = __builtin_fmaf(a.x[i], b.x[i], c.x[i]);
    return c;
}
static inline v16 v_pow2(v16 p, v16 t) {
    LANES(i) {
        uint32_t bits;
        memcpy(&bits, &t.x[i], sizeof bits);
        const int32_t e = (int32_t)(bits - 0x4b400000u), half = e >> 1;
        const uint32_t b0 = (uint32_t)(half + 127) << 23, b1 = (uint32_t)(e - half + 127) << 23;
        float f0, f1;
        memcpy(&f0, &b0, sizeof f0);
        memcpy(&f1, &b1, sizeof f1);
        p.x[i] = p.x[i] * f0 * f1;
    }
    return p;
}

#include "models/encoder_kernels_text.h"

const struct encoder_kernels encoder_kernels_scalar = ENCODER_KERNELS("scalar");
