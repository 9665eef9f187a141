#include "core/tensor.h"

#include <string.h>

#include "core/check.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "block formats are little endian");

/* Block layouts: ggml's public type list (ggml-common.h), restated at each function. Every product
 * and sum below is one rounding in F32, in the order the gguf Python package uses; the build
 * forbids contraction, so the bits agree. */

static const struct tensor_format formats[TENSOR_TYPE_COUNT] = {
#define X(code, name, number, weights, bytes) [code] = {name, number, weights, bytes},
    TENSOR_TYPE_LIST(X)
#undef X
};

const struct tensor_format *tensor_format(enum tensor_type type) {
    CHECK((unsigned)type < TENSOR_TYPE_COUNT);
    return &formats[type];
}

bool tensor_type_from_gguf(uint32_t number, enum tensor_type *out) {
    for (unsigned t = 0; t < TENSOR_TYPE_COUNT; t++) {
        if (formats[t].gguf_number == number) {
            *out = (enum tensor_type)t;
            return true;
        }
    }
    *out = TENSOR_F32;
    return false;
}

static float float_of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t bits_of_float(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

float f16_to_f32(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t exponent = (h >> 10) & 0x1fu;
    const uint32_t fraction = h & 0x3ffu;

    if (exponent == 0) {
        /* A subnormal half is fraction * 2^-24, which F32 holds exactly. */
        return float_of_bits(sign | bits_of_float((float)fraction * 0x1p-24f));
    }
    if (exponent == 0x1f) return float_of_bits(sign | 0x7f800000u | fraction << 13);
    return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t f32_to_f16(float f) {
    const uint32_t bits = bits_of_float(f);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;

    if (magnitude > 0x7f800000u) {
        /* Keep the payload's head and make it quiet, so that a NaN never becomes infinity. */
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    }
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds above 65504 */
    if (magnitude < 0x38800000u) {
        /* Below 2^-14: adding 0.5 leaves the rounded multiple of 2^-24 in the low fraction bits. */
        const float shifted = float_of_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (bits_of_float(shifted) - 0x3f000000u));
    }
    const uint32_t odd = magnitude >> 13 & 1u;
    return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

float bf16_to_f32(uint16_t b) {
    return float_of_bits((uint32_t)b << 16);
}

static uint16_t load_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint32_t load_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static float load_f16(const uint8_t *p) {
    return f16_to_f32(load_u16(p));
}

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
/* OCP MX E2M1, doubled so that they are whole. */
static const int8_t mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* d, 16 bytes: weight i in the low nibble of byte i, weight i + 16 in the high nibble. */
static void block_q4_0(const uint8_t *b, float *y) {
    const float d = load_f16(b);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)((b[2 + i] & 15) - 8);
        y[i + 16] = d * (float)((b[2 + i] >> 4) - 8);
    }
}

/* d, m, nibbles as Q4_0. */
static void block_q4_1(const uint8_t *b, float *y) {
    const float d = load_f16(b);
    const float m = load_f16(b + 2);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)(b[4 + i] & 15) + m;
        y[i + 16] = d * (float)(b[4 + i] >> 4) + m;
    }
}

/* d, 32 fifth bits, nibbles as Q4_0. */
static void block_q5_0(const uint8_t *b, float *y) {
    const float d = load_f16(b);
    const uint32_t high = load_u32(b + 2);
    for (int i = 0; i < 16; i++) {
        const int lo = (b[6 + i] & 15) | (int)(high >> i & 1u) << 4;
        const int hi = (b[6 + i] >> 4) | (int)(high >> (i + 16) & 1u) << 4;
        y[i] = d * (float)(lo - 16);
        y[i + 16] = d * (float)(hi - 16);
    }
}

/* d, m, 32 fifth bits, nibbles as Q4_0. */
static void block_q5_1(const uint8_t *b, float *y) {
    const float d = load_f16(b);
    const float m = load_f16(b + 2);
    const uint32_t high = load_u32(b + 4);
    for (int i = 0; i < 16; i++) {
        const int lo = (b[8 + i] & 15) | (int)(high >> i & 1u) << 4;
        const int hi = (b[8 + i] >> 4) | (int)(high >> (i + 16) & 1u) << 4;
        y[i] = d * (float)lo + m;
        y[i + 16] = d * (float)hi + m;
    }
}

/* d, 32 signed bytes. */
static void block_q8_0(const uint8_t *b, float *y) {
    const float d = load_f16(b);
    for (int i = 0; i < 32; i++) y[i] = (float)(int8_t)b[2 + i] * d;
}

/* 16 bytes {scale low nibble, min high nibble}, 64 bytes of 2-bit weights, d, dmin. Weight w sits
 * in byte (w / 128) * 32 + w % 32, bits 2 * (w / 32 % 4). */
static void block_q2_k(const uint8_t *b, float *y) {
    const uint8_t *scales = b;
    const uint8_t *qs = b + 16;
    const float d = load_f16(b + 80);
    const float dmin = load_f16(b + 82);
    for (int g = 0; g < 16; g++) {
        const float scale = d * (float)(scales[g] & 15);
        const float min = dmin * (float)(scales[g] >> 4);
        for (int i = 0; i < 16; i++) {
            const int w = g * 16 + i;
            const int q = qs[w / 128 * 32 + w % 32] >> (2 * (w / 32 % 4)) & 3;
            y[w] = scale * (float)q - min;
        }
    }
}

/* 32 bytes of third bits (byte w % 32, bit w / 32; clear means minus 4), 64 bytes of 2-bit weights
 * as Q2_K, 12 bytes of 6-bit scales (8 bytes of low nibbles, 4 bytes of 2-bit heads), d. */
static void block_q3_k(const uint8_t *b, float *y) {
    const uint8_t *high = b;
    const uint8_t *qs = b + 32;
    const uint8_t *scales = b + 96;
    const float d = load_f16(b + 108);
    for (int g = 0; g < 16; g++) {
        const int low4 = scales[g % 8] >> (4 * (g / 8)) & 15;
        const int top2 = scales[8 + g % 4] >> (2 * (g / 4)) & 3;
        const float scale = d * (float)((low4 | top2 << 4) - 32);
        for (int i = 0; i < 16; i++) {
            const int w = g * 16 + i;
            const int q = qs[w / 128 * 32 + w % 32] >> (2 * (w / 32 % 4)) & 3;
            const int third = high[w % 32] >> (w / 32) & 1;
            y[w] = scale * (float)(third ? q : q - 4);
        }
    }
}

/* Q4_K and Q5_K keep 8 scales and 8 mins of 6 bits in 12 bytes: groups 0-3 whole in bytes 0-3 and
 * 4-7, groups 4-7 as nibbles in bytes 8-11 with their top two bits above the first eight. */
static void scale_and_min(const uint8_t *s, int g, int *scale, int *min) {
    if (g < 4) {
        *scale = s[g] & 63;
        *min = s[g + 4] & 63;
    } else {
        *scale = (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
        *min = s[g + 4] >> 4 | (s[g] >> 6) << 4;
    }
}

/* d, dmin, scales and mins, 128 bytes: weight w in byte (w / 64) * 32 + w % 32, nibble w / 32 % 2.
 */
static void block_q4_k(const uint8_t *b, float *y) {
    const float d = load_f16(b);
    const float dmin = load_f16(b + 2);
    const uint8_t *qs = b + 16;
    for (int g = 0; g < 8; g++) {
        int s, m;
        scale_and_min(b + 4, g, &s, &m);
        const float scale = d * (float)s;
        const float min = dmin * (float)m;
        for (int i = 0; i < 32; i++) {
            const int q = qs[g / 2 * 32 + i] >> (4 * (g % 2)) & 15;
            y[g * 32 + i] = scale * (float)q - min;
        }
    }
}

/* As Q4_K with 32 bytes of fifth bits (byte w % 32, bit w / 32) before the nibbles. */
static void block_q5_k(const uint8_t *b, float *y) {
    const float d = load_f16(b);
    const float dmin = load_f16(b + 2);
    const uint8_t *high = b + 16;
    const uint8_t *qs = b + 48;
    for (int g = 0; g < 8; g++) {
        int s, m;
        scale_and_min(b + 4, g, &s, &m);
        const float scale = d * (float)s;
        const float min = dmin * (float)m;
        for (int i = 0; i < 32; i++) {
            const int low4 = qs[g / 2 * 32 + i] >> (4 * (g % 2)) & 15;
            const int q = low4 | (high[i] >> g & 1) << 4;
            y[g * 32 + i] = scale * (float)q - min;
        }
    }
}

/* 128 bytes of low nibbles (byte (w / 128) * 64 + w % 64, nibble w / 64 % 2), 64 bytes of 2-bit
 * heads (byte (w / 128) * 32 + w % 32, bits 2 * (w / 32 % 4)), 16 signed scales, d. */
static void block_q6_k(const uint8_t *b, float *y) {
    const uint8_t *low = b;
    const uint8_t *high = b + 128;
    const uint8_t *scales = b + 192;
    const float d = load_f16(b + 208);
    for (int g = 0; g < 16; g++) {
        const float scale = d * (float)(int8_t)scales[g];
        for (int i = 0; i < 16; i++) {
            const int w = g * 16 + i;
            const int low4 = low[w / 128 * 64 + w % 64] >> (4 * (w / 64 % 2)) & 15;
            const int top2 = high[w / 128 * 32 + w % 32] >> (2 * (w / 32 % 4)) & 3;
            y[w] = scale * (float)((low4 | top2 << 4) - 32);
        }
    }
}

/* d, nibbles as Q4_0 that index a table. */
static void block_iq4_nl(const uint8_t *b, float *y) {
    const float d = load_f16(b);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)iq4_values[b[2 + i] & 15];
        y[i + 16] = d * (float)iq4_values[b[2 + i] >> 4];
    }
}

/* d, 8 two-bit scale heads, 8 scale nibbles, then eight groups of 16 bytes as IQ4_NL. */
static void block_iq4_xs(const uint8_t *b, float *y) {
    const float d = load_f16(b);
    const unsigned heads = load_u16(b + 2);
    for (int g = 0; g < 8; g++) {
        const int low4 = b[4 + g / 2] >> (4 * (g % 2)) & 15;
        const int top2 = (int)(heads >> (2 * g) & 3u);
        const float scale = d * (float)((low4 | top2 << 4) - 32);
        const uint8_t *qs = b + 8 + g * 16;
        for (int i = 0; i < 16; i++) {
            y[g * 32 + i] = scale * (float)iq4_values[qs[i] & 15];
            y[g * 32 + i + 16] = scale * (float)iq4_values[qs[i] >> 4];
        }
    }
}

/* An E8M0 exponent e standing for 2^(e - 127), halved because the table is doubled; then nibbles as
 * Q4_0 (OCP Microscaling Formats v1.0). */
static void block_mxfp4(const uint8_t *b, float *y) {
    const uint32_t e = b[0];
    const float d = float_of_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)mxfp4_values[b[1 + i] & 15];
        y[i + 16] = d * (float)mxfp4_values[b[1 + i] >> 4];
    }
}

static void dequantise_plain(enum tensor_type type, const uint8_t *src, float *dst, size_t n) {
    if (type == TENSOR_F32) {
        memcpy(dst, src, n * sizeof *dst);
    } else if (type == TENSOR_F16) {
        for (size_t i = 0; i < n; i++) dst[i] = load_f16(src + 2 * i);
    } else {
        for (size_t i = 0; i < n; i++) dst[i] = bf16_to_f32(load_u16(src + 2 * i));
    }
}

typedef void block_fn(const uint8_t *block, float *y);

static block_fn *const block_fns[TENSOR_TYPE_COUNT] = {
    [TENSOR_Q4_0] = block_q4_0,   [TENSOR_Q4_1] = block_q4_1,     [TENSOR_Q5_0] = block_q5_0,
    [TENSOR_Q5_1] = block_q5_1,   [TENSOR_Q8_0] = block_q8_0,     [TENSOR_Q2_K] = block_q2_k,
    [TENSOR_Q3_K] = block_q3_k,   [TENSOR_Q4_K] = block_q4_k,     [TENSOR_Q5_K] = block_q5_k,
    [TENSOR_Q6_K] = block_q6_k,   [TENSOR_IQ4_NL] = block_iq4_nl, [TENSOR_IQ4_XS] = block_iq4_xs,
    [TENSOR_MXFP4] = block_mxfp4,
};

void tensor_dequantise(enum tensor_type type, const void *src, float *dst, size_t n) {
    const struct tensor_format *f = tensor_format(type);
    CHECK(n % f->block_weights == 0);
    if (n == 0) return;
    block_fn *fn = block_fns[type];
    if (!fn) {
        dequantise_plain(type, src, dst, n);
        return;
    }
    const uint8_t *block = src;
    for (size_t i = 0; i < n; i += f->block_weights, block += f->block_bytes) fn(block, dst + i);
}
