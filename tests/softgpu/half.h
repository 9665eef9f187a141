/* half.h: the small floating-point formats, to and from binary32 and binary64. Every conversion is
 * exact or rounded once as asked (IEEE 754-2019; OCP 8-bit formats: E4M3 has no infinity and one
 * NaN, E5M2 is IEEE-like). NaN becomes the format's canonical one (0x7fff).
 */
#ifndef LAC_TESTS_SOFTGPU_HALF_H
#define LAC_TESTS_SOFTGPU_HALF_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "tests/softgpu/op.h"

enum small_format { SMALL_F16, SMALL_BF16, SMALL_E4M3, SMALL_E5M2, SMALL_TF32 };

static inline uint32_t float_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
static inline float bits_float(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline uint64_t double_bits(double f) {
    uint64_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
static inline double bits_double(uint64_t u) {
    double f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Branch-free, so that loops over lanes vectorise. */
static inline float f16_to_f32(uint32_t h) {
    const uint32_t sign = (h & 0x8000u) << 16, rest = (h & 0x7fffu) << 13;
    const float scaled = bits_float(rest) * 0x1p112f; /* exact: subnormals become normal */
    const uint32_t special = rest >= 0x0f800000u ? rest | 0x7f800000u : float_bits(scaled);
    return bits_float(special | sign);
}
static inline float bf16_to_f32(uint32_t h) {
    return bits_float(h << 16);
}

/* Round to nearest even. */
static inline uint32_t f32_to_f16(float f) {
    const uint32_t u = float_bits(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    /* below 2^-14 the sum's unit in the last place is that of a subnormal half */
    const uint32_t small = float_bits(bits_float(a) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (a + 0xc8000fffu + (a >> 13 & 1)) >> 13;
    uint32_t r = a < 0x38800000u ? small : normal;
    r = a >= 0x477ff000u ? 0x7c00u : r;
    r = a > 0x7f800000u ? 0x7fffu : r;
    return a > 0x7f800000u ? r : r | sign;
}
static inline uint32_t f32_to_bf16(float f) {
    const uint32_t u = float_bits(f);
    const uint32_t r = (u + 0x7fffu + (u >> 16 & 1)) >> 16;
    return (u & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : r;
}

/* half.c */
/* Any rounding; overflow becomes infinity (or the largest value when rounding is toward zero, or
 * `finite`). TF32 is returned as binary32 bits with the low 13 zero. */
uint32_t small_encode(enum small_format format, double x, enum op_round round, bool finite);
double small_decode(enum small_format format, uint32_t bits);

#endif
