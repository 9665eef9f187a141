/* tensor.c against an oracle that reads every field bit by bit and computes in F64, rounding to F32
 * where the format's arithmetic rounds (for products and sums of two F32 values, rounding through
 * F64 gives the same bits: Figueroa, "When is double rounding innocuous?", 1995). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/rng.h"
#include "core/tensor.h"

static uint64_t draw(uint32_t i, uint32_t stream) {
    return rng_draw(20, stream, i, RNG_TEST, 0);
}

static uint32_t bits_of(float f) {
    uint32_t b;
    memcpy(&b, &f, sizeof b);
    return b;
}

static float float_of(uint32_t b) {
    float f;
    memcpy(&f, &b, sizeof f);
    return f;
}

/* n bits from bit `at` of the block, lowest first. */
static int field(const uint8_t *b, int at, int n) {
    int v = 0;
    for (int i = 0; i < n; i++) v |= (b[(at + i) / 8] >> ((at + i) % 8) & 1) << i;
    return v;
}

static int sign_extend(int v, int n) {
    return v >= 1 << (n - 1) ? v - (1 << n) : v;
}

static double half(const uint8_t *b, int byte) {
    const int sign = field(b, 8 * byte + 15, 1);
    const int exponent = field(b, 8 * byte + 10, 5);
    const int fraction = field(b, 8 * byte, 10);
    double v;
    if (exponent == 31) {
        v = fraction ? (double)NAN : (double)INFINITY;
    } else if (exponent == 0) {
        v = ldexp(fraction, -24);
    } else {
        v = ldexp(1024 + fraction, exponent - 25);
    }
    return sign ? -v : v;
}

static float mul(double a, double b) {
    return (float)(a * b);
}
static float add(float a, float b) {
    return (float)((double)a + (double)b);
}

static const int iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                            1,    13,   25,  38,  53,  69,  89,  113};
static const double e2m1[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6};

/* The 6-bit scale (which = 0) or min (1) of group g in the 12 bytes from `byte` on. */
static int k_scale(const uint8_t *b, int byte, int g, int which) {
    const int base = 8 * byte;
    if (g < 4) return field(b, base + 8 * (4 * which + g), 6);
    return field(b, base + 8 * (8 + g - 4) + 4 * which, 4) +
           16 * field(b, base + 8 * (4 * which + g - 4) + 6, 2);
}

static float oracle(enum tensor_type type, const uint8_t *b, int w) {
    const int nibble = 8 * (w % 16) + 4 * (w / 16);
    int q, s, m;
    switch (type) {
    case TENSOR_F32:
        return float_of((uint32_t)field(b, 0, 16) | (uint32_t)field(b, 16, 16) << 16);
    case TENSOR_F16:
        return (float)half(b, 0);
    case TENSOR_BF16:
        return float_of((uint32_t)field(b, 0, 16) << 16);
    case TENSOR_Q4_0:
        return mul(half(b, 0), field(b, 16 + nibble, 4) - 8);
    case TENSOR_Q4_1:
        return add(mul(half(b, 0), field(b, 32 + nibble, 4)), (float)half(b, 2));
    case TENSOR_Q5_0:
        return mul(half(b, 0), field(b, 48 + nibble, 4) + 16 * field(b, 16 + w, 1) - 16);
    case TENSOR_Q5_1:
        return add(mul(half(b, 0), field(b, 64 + nibble, 4) + 16 * field(b, 32 + w, 1)),
                   (float)half(b, 2));
    case TENSOR_Q8_0:
        return mul(half(b, 0), sign_extend(field(b, 16 + 8 * w, 8), 8));
    case TENSOR_Q2_K:
        q = field(b, 8 * (16 + 32 * (w / 128) + w % 32) + 2 * (w % 128 / 32), 2);
        return add(mul(mul(half(b, 80), field(b, 8 * (w / 16), 4)), q),
                   -mul(half(b, 82), field(b, 8 * (w / 16) + 4, 4)));
    case TENSOR_Q3_K:
        q = field(b, 8 * (32 + 32 * (w / 128) + w % 32) + 2 * (w % 128 / 32), 2) - 4 +
            4 * field(b, 8 * (w % 32) + w / 32, 1);
        s = field(b, 8 * (96 + w / 16 % 8) + 4 * (w / 128), 4) +
            16 * field(b, 8 * (104 + w / 16 % 4) + 2 * (w / 64), 2) - 32;
        return mul(mul(half(b, 108), s), q);
    case TENSOR_Q4_K:
        q = field(b, 8 * (16 + 32 * (w / 64) + w % 32) + 4 * (w / 32 % 2), 4);
        s = k_scale(b, 4, w / 32, 0);
        m = k_scale(b, 4, w / 32, 1);
        return add(mul(mul(half(b, 0), s), q), -mul(half(b, 2), m));
    case TENSOR_Q5_K:
        q = field(b, 8 * (48 + 32 * (w / 64) + w % 32) + 4 * (w / 32 % 2), 4) +
            16 * field(b, 8 * (16 + w % 32) + w / 32, 1);
        s = k_scale(b, 4, w / 32, 0);
        m = k_scale(b, 4, w / 32, 1);
        return add(mul(mul(half(b, 0), s), q), -mul(half(b, 2), m));
    case TENSOR_Q6_K:
        q = field(b, 8 * (64 * (w / 128) + w % 64) + 4 * (w / 64 % 2), 4) +
            16 * field(b, 8 * (128 + 32 * (w / 128) + w % 32) + 2 * (w / 32 % 4), 2) - 32;
        s = sign_extend(field(b, 8 * (192 + w / 16), 8), 8);
        return mul(mul(half(b, 208), s), q);
    case TENSOR_IQ4_NL:
        return mul(half(b, 0), iq4[field(b, 16 + nibble, 4)]);
    case TENSOR_IQ4_XS:
        s = field(b, 32 + 4 * (w / 32), 4) + 16 * field(b, 16 + 2 * (w / 32), 2) - 32;
        q = iq4[field(b, 8 * (8 + 16 * (w / 32) + w % 16) + 4 * (w % 32 / 16), 4)];
        return mul(mul(half(b, 0), s), q);
    case TENSOR_MXFP4:
        return (float)ldexp(e2m1[field(b, 8 + nibble, 4)], b[0] - 127);
    case TENSOR_TYPE_COUNT:
        break;
    }
    fail_msg("no oracle");
    return 0;
}

/* Random bytes are NaN or infinite scales now and then; those halves are made finite. */
static void make_finite(enum tensor_type type, uint8_t *b) {
    static const int halves[TENSOR_TYPE_COUNT][2] = {
        [TENSOR_F16] = {0, -1},    [TENSOR_Q4_0] = {0, -1},   [TENSOR_Q4_1] = {0, 2},
        [TENSOR_Q5_0] = {0, -1},   [TENSOR_Q5_1] = {0, 2},    [TENSOR_Q8_0] = {0, -1},
        [TENSOR_Q2_K] = {80, 82},  [TENSOR_Q3_K] = {108, -1}, [TENSOR_Q4_K] = {0, 2},
        [TENSOR_Q5_K] = {0, 2},    [TENSOR_Q6_K] = {208, -1}, [TENSOR_IQ4_NL] = {0, -1},
        [TENSOR_IQ4_XS] = {0, -1}, [TENSOR_MXFP4] = {-1, -1}, [TENSOR_F32] = {-1, -1},
        [TENSOR_BF16] = {-1, -1},
    };
    if (type == TENSOR_F32) b[3] &= 0xbf;
    if (type == TENSOR_BF16) b[1] &= 0xbf;
    for (int i = 0; i < 2; i++) {
        const int at = halves[type][i];
        if (at >= 0 && (b[at + 1] & 0x7c) == 0x7c) b[at + 1] &= (uint8_t)~0x04;
    }
}

static void check_block(enum tensor_type type, const uint8_t *block) {
    const struct tensor_format *f = tensor_format(type);
    float got[256];
    tensor_dequantise(type, block, got, f->block_weights);
    for (uint32_t w = 0; w < f->block_weights; w++) {
        const float want = oracle(type, block, (int)w);
        if (bits_of(got[w]) != bits_of(want)) {
            fail_msg("%s weight %u: %.9g, want %.9g", f->name, w, (double)got[w], (double)want);
        }
    }
}

static void test_random_blocks(void **state) {
    (void)state;
    for (unsigned t = 0; t < TENSOR_TYPE_COUNT; t++) {
        const struct tensor_format *f = tensor_format((enum tensor_type)t);
        for (uint32_t n = 0; n < 400; n++) {
            uint8_t block[256];
            for (uint32_t i = 0; i < f->block_bytes; i++) block[i] = (uint8_t)draw(n * 256 + i, t);
            make_finite((enum tensor_type)t, block);
            check_block((enum tensor_type)t, block);
        }
    }
}

/* Every byte the same: zeros, all bits set, denormal and greatest scales, signs. */
static void test_adversarial_blocks(void **state) {
    (void)state;
    for (unsigned t = 0; t < TENSOR_TYPE_COUNT; t++) {
        const struct tensor_format *f = tensor_format((enum tensor_type)t);
        for (unsigned v = 0; v < 256; v++) {
            uint8_t block[256];
            memset(block, (int)v, sizeof block);
            make_finite((enum tensor_type)t, block);
            check_block((enum tensor_type)t, block);
            for (uint32_t i = 0; i < f->block_bytes; i += 2) block[i] = (uint8_t)~v;
            make_finite((enum tensor_type)t, block);
            check_block((enum tensor_type)t, block);
        }
    }
}

/* Several blocks, from an odd address: rows of a mapped file are not aligned to their blocks. */
static void test_rows_unaligned(void **state) {
    (void)state;
    for (unsigned t = 0; t < TENSOR_TYPE_COUNT; t++) {
        const struct tensor_format *f = tensor_format((enum tensor_type)t);
        enum { BLOCKS = 5 };
        const size_t bytes = (size_t)BLOCKS * f->block_bytes;
        const size_t weights = (size_t)BLOCKS * f->block_weights;
        assert_int_equal(tensor_row_bytes(f, weights), bytes);
        uint8_t *row = malloc(bytes + 1);
        float *got = malloc((weights + 1) * sizeof *got);
        for (uint32_t i = 0; i < bytes; i++) row[i + 1] = (uint8_t)draw(i, 100 + t);
        for (uint32_t i = 0; i < BLOCKS; i++) {
            make_finite((enum tensor_type)t, row + 1 + i * f->block_bytes);
        }
        got[weights] = 12345.0f;
        tensor_dequantise((enum tensor_type)t, row + 1, got, weights);
        for (size_t w = 0; w < weights; w++) {
            const uint8_t *block = row + 1 + w / f->block_weights * f->block_bytes;
            const float want = oracle((enum tensor_type)t, block, (int)(w % f->block_weights));
            assert_int_equal(bits_of(got[w]), bits_of(want));
        }
        assert_true(got[weights] == 12345.0f);
        free(row);
        free(got);
    }
}

static void test_types(void **state) {
    (void)state;
    unsigned known = 0;
    for (uint32_t n = 0; n < 1000; n++) {
        enum tensor_type type;
        if (!tensor_type_from_gguf(n, &type)) continue;
        known++;
        assert_int_equal(tensor_format(type)->gguf_number, n);
    }
    assert_int_equal(known, TENSOR_TYPE_COUNT);
    enum tensor_type type;
    assert_false(tensor_type_from_gguf(4, &type)); /* Q4_2, withdrawn */
    assert_false(tensor_type_from_gguf(UINT32_MAX, &type));
}

static void test_f16_to_f32_all(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const uint8_t b[2] = {(uint8_t)h, (uint8_t)(h >> 8)};
        const double want = half(b, 0);
        const float got = f16_to_f32((uint16_t)h);
        if (isnan(want)) {
            assert_true(isnan(got));
            assert_true(isnan(f16_to_f32(f32_to_f16(got))));
        } else {
            assert_int_equal(bits_of(got), bits_of((float)want));
            assert_int_equal(f32_to_f16(got), h);
        }
    }
}

/* Rounds to the format's grid at x's own exponent with rint, which rounds to nearest even. */
static uint16_t half_oracle(float x) {
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    const double a = fabs((double)x);
    if (isnan(x)) return 0x7e00;
    int e = 0;
    (void)frexp(a, &e);
    if (e - 1 < -14 || a == 0) e = -13;
    const double grid = ldexp(1, e - 11);
    const double r = rint(a / grid) * grid;
    if (r > 65504.0) return sign | 0x7c00;
    if (r < 0x1p-14) return (uint16_t)(sign | (int)(r * 0x1p24));
    (void)frexp(r, &e);
    return (uint16_t)(sign | (e + 14) << 10 | ((int)ldexp(r, 11 - e) & 0x3ff));
}

static void check_half(float x) {
    const uint16_t got = f32_to_f16(x), want = half_oracle(x);
    if (isnan(x)) {
        assert_int_equal(got & 0x7c00, 0x7c00);
        assert_int_not_equal(got & 0x3ff, 0);
    } else if (got != want) {
        fail_msg("%.9g (%08x): %04x, want %04x", (double)x, bits_of(x), got, want);
    }
}

static void test_f32_to_f16(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 300000; i++) {
        const uint64_t r = draw(i, 300);
        check_half(float_of((uint32_t)r));
        /* Exponents where halves live, subnormals and overflow included. */
        const uint32_t exponent = 100 + (uint32_t)(r >> 32) % 46;
        check_half(float_of(((uint32_t)r & 0x807fffffu) | exponent << 23));
    }
    /* Half way between neighbours, and one F32 step to either side. */
    for (uint32_t h = 0; h < 0x7c00; h++) {
        const float low = f16_to_f32((uint16_t)h);
        const float next = h == 0x7bff ? 65536.0f : f16_to_f32((uint16_t)(h + 1));
        const float middle = low + (next - low) / 2;
        for (int step = -1; step <= 1; step++) {
            const float x = float_of(bits_of(middle) + (uint32_t)step);
            check_half(x);
            check_half(-x);
        }
    }
    check_half(0.0f);
    check_half(-0.0f);
    check_half(INFINITY);
    check_half(-INFINITY);
    check_half(float_of(1)); /* least subnormal */
    check_half(float_of(0x7f800001u));
    check_half(float_of(0xffc00000u));
}

static void test_bf16(void **state) {
    (void)state;
    for (uint32_t b = 0; b < 65536; b++) {
        assert_int_equal(bits_of(bf16_to_f32((uint16_t)b)), b << 16);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_blocks),  cmocka_unit_test(test_adversarial_blocks),
        cmocka_unit_test(test_rows_unaligned), cmocka_unit_test(test_types),
        cmocka_unit_test(test_f16_to_f32_all), cmocka_unit_test(test_f32_to_f16),
        cmocka_unit_test(test_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
