/* Plain C: the oracle of the others. */
#include "core/tensor.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    float x[16];
} v16;

enum { QUERIES = 2, SUMS = 2 }; /* few: the compiler writes out every lane */

#define LANES(i) for (int i = 0; i < 16; i++)

static inline v16 v_load(const float *p) {
    v16 r;
    memcpy(r.x, p, sizeof r.x);
    return r;
}
static inline v16 v_load_n(const float *p, uint32_t n) {
    v16 r = {{0}};
    memcpy(r.x, p, n * sizeof *p);
    return r;
}
static inline void v_store(float *p, v16 a) {
    memcpy(p, a.x, sizeof a.x);
}
static inline void v_store_n(float *p, v16 a, uint32_t n) {
    memcpy(p, a.x, n * sizeof *p);
}
static inline v16 v_set1(float f) {
    v16 r;
    LANES(i) r.x[i] = f;
    return r;
}
static inline v16 v_add(v16 a, v16 b) {
    LANES(i) a.x[i] = a.x[i] + b.x[i];
    return a;
}
static inline v16 v_sub(v16 a, v16 b) {
    LANES(i) a.x[i] = a.x[i] - b.x[i];
    return a;
}
static inline v16 v_mul(v16 a, v16 b) {
    LANES(i) a.x[i] = a.x[i] * b.x[i];
    return a;
}
static inline v16 v_div(v16 a, v16 b) {
    LANES(i) a.x[i] = a.x[i] / b.x[i];
    return a;
}
static inline v16 v_fma(v16 a, v16 b, v16 c) {
    LANES(i) a.x[i] = __builtin_fmaf(a.x[i], b.x[i], c.x[i]);
    return a;
}
static inline v16 v_max(v16 a, v16 b) {
    LANES(i) a.x[i] = a.x[i] > b.x[i] ? a.x[i] : b.x[i];
    return a;
}
static inline v16 v_min(v16 a, v16 b) {
    LANES(i) a.x[i] = a.x[i] < b.x[i] ? a.x[i] : b.x[i];
    return a;
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
static inline v16 v_swap_pairs(v16 a) {
    v16 r;
    LANES(i) r.x[i] = a.x[i ^ 1];
    return r;
}
static inline v16 v_down(v16 a, int n) {
    v16 r = a;
    for (int i = 0; i < n; i++) r.x[i] = a.x[i + n];
    return r;
}
static inline float v_first(v16 a) {
    return a.x[0];
}
static inline v16 v_select(uint32_t mask, v16 a, v16 b) {
    LANES(i) a.x[i] = mask >> i & 1 ? a.x[i] : b.x[i];
    return a;
}
static inline v16 v_load_f16(const uint16_t *p) {
    v16 r;
    LANES(i) r.x[i] = f16_to_f32(p[i]);
    return r;
}
static inline void v_store_f16(uint16_t *p, v16 a) {
    LANES(i) p[i] = f32_to_f16(a.x[i]);
}
static inline v16 v_load_i8(const int8_t *p) {
    v16 r;
    LANES(i) r.x[i] = p[i];
    return r;
}
static inline uint32_t v_ge_mask(v16 a, v16 b) {
    uint32_t m = 0;
    LANES(i) m |= (uint32_t)(a.x[i] >= b.x[i]) << i;
    return m;
}
/* floor(e * 2^40) of sixteen e in [0, 1]; returns their sum. */
static inline uint64_t v_mass(v16 e, uint64_t *mass) {
    uint64_t sum = 0;
    LANES(i) sum += mass[i] = (uint64_t)(e.x[i] * 0x1p40f);
    return sum;
}

#include "core/cpu/vector_kernels.h"

const struct vector_kernels vector_kernels_scalar = VECTOR_KERNELS("scalar");
