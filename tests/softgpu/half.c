#include "tests/softgpu/half.h"

#include <math.h>

static const struct {
    int mantissa_bits, bias;
    uint32_t infinity, nan, largest, sign;
} formats[] = {
    [SMALL_F16] = {10, 15, 0x7c00, 0x7fff, 0x7bff, 0x8000},
    [SMALL_BF16] = {7, 127, 0x7f80, 0x7fff, 0x7f7f, 0x8000},
    [SMALL_E4M3] = {3, 7, 0x7f, 0x7f, 0x7e, 0x80},
    [SMALL_E5M2] = {2, 15, 0x7c, 0x7f, 0x7b, 0x80},
    [SMALL_TF32] = {10, 127, 0x7f800000, 0x7fffffff, 0x7f7fe000, 0x80000000},
};

uint32_t small_encode(enum small_format format, double x, enum op_round round, bool finite) {
    const int bits = formats[format].mantissa_bits, bias = formats[format].bias;
    const int shift = format == SMALL_TF32 ? 13 : 0;
    if (isnan(x)) return formats[format].nan;
    const bool negative = signbit(x);
    const uint32_t sign = negative ? formats[format].sign : 0;
    const double a = fabs(x);
    const bool outward = round == ROUND_UP ? !negative : round == ROUND_DOWN ? negative : false;
    uint32_t r;
    if (isinf(x)) {
        r = finite ? formats[format].largest : formats[format].infinity;
    } else if (a == 0) {
        r = 0;
    } else {
        int e;
        frexp(a, &e);
        e -= 1; /* a = 1.f * 2^e */
        if (e < 1 - bias) e = 1 - bias;
        const double scaled = ldexp(a, bits - e); /* the kept part is its integer part */
        double whole = floor(scaled);
        const double rest = scaled - whole;
        if (round == ROUND_NEAREST)
            whole += rest > 0.5 || (rest == 0.5 && fmod(whole, 2) != 0);
        else if (round == ROUND_AWAY)
            whole += rest >= 0.5;
        else
            whole += outward && rest > 0;
        /* a carry out of the mantissa moves into the exponent by itself */
        const int64_t code =
            (int64_t)whole + ((int64_t)(e + bias - 1) << bits); /* subnormals: e + bias - 1 = 0 */
        r = (uint32_t)code << shift;
        if (code > (int64_t)(formats[format].largest >> shift)) {
            const bool clip = finite || round == ROUND_ZERO ||
                              ((round == ROUND_UP || round == ROUND_DOWN) && !outward);
            r = clip ? formats[format].largest : formats[format].infinity;
        }
    }
    return r | sign;
}

double small_decode(enum small_format format, uint32_t v) {
    const int bits = formats[format].mantissa_bits, bias = formats[format].bias;
    if (format == SMALL_TF32) return (double)bits_float(v & 0xffffe000u);
    const bool negative = v & formats[format].sign;
    const uint32_t a = v & (formats[format].sign - 1);
    double r;
    if (format == SMALL_E4M3 ? a == 0x7f : a > formats[format].infinity) return (double)NAN;
    if (format != SMALL_E4M3 && a == formats[format].infinity) {
        r = (double)INFINITY;
    } else {
        const int e = (int)(a >> bits);
        const double m = (double)(a & ((1u << bits) - 1));
        r = e ? ldexp(m + ldexp(1, bits), e - bias - bits) : ldexp(m, 1 - bias - bits);
    }
    return negative ? -r : r;
}
