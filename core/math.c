#include "core/math.h"

#include <string.h>

#include "core/check.h"

static float float_of(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static double double_of(uint64_t bits) {
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

/* 2^n for a normal exponent. */
static double power_of_two(int n) {
    return double_of((uint64_t)(n + 1023) << 52);
}

float math_expf(float x) {
    /* a > b ? a : b keeps a NaN in b, as the vector instructions do. */
    x = MATH_EXPF_MIN > x ? MATH_EXPF_MIN : x;
    x = MATH_EXPF_MAX < x ? MATH_EXPF_MAX : x;
    const float t = __builtin_fmaf(x, MATH_EXPF_LOG2E, MATH_EXPF_MAGIC);
    const float n = t - MATH_EXPF_MAGIC;
    float r = __builtin_fmaf(n, -MATH_EXPF_LN2_HI, x);
    r = __builtin_fmaf(n, -MATH_EXPF_LN2_LO, r);
    float p = __builtin_fmaf(MATH_EXPF_C6, r, MATH_EXPF_C5);
    p = __builtin_fmaf(p, r, MATH_EXPF_C4);
    p = __builtin_fmaf(p, r, MATH_EXPF_C3);
    p = __builtin_fmaf(p, r, MATH_EXPF_C2);
    p = __builtin_fmaf(p, r, 1.0f);
    p = __builtin_fmaf(p, r, 1.0f);
    /* Two factors, because 2^n alone may be below the smallest or above the largest normal. */
    uint32_t bits;
    memcpy(&bits, &t, sizeof bits);
    const int32_t i = (int32_t)(bits - 0x4b400000u);
    const int32_t half = i >> 1;
    return p * float_of((uint32_t)(half + 127) << 23) * float_of((uint32_t)(i - half + 127) << 23);
}

float math_logf(float x) {
    return (float)math_log((double)x);
}

double math_exp(double x) {
    if (x != x) return x;
    if (x < -746.0) return 0.0;
    if (x > 710.0) return double_of(UINT64_C(0x7ff0000000000000));
    const double t = __builtin_fma(x, 0x1.71547652b82fep+0, 0x1.8p+52);
    const double n = t - 0x1.8p+52;
    double r = __builtin_fma(n, -0x1.62e42fefa39efp-1, x);
    r = __builtin_fma(n, -0x1.abc9e3b39803fp-56, r);
    static const double inverse_factorial[] = {
        1.0 / 6227020800,
        1.0 / 479001600,
        1.0 / 39916800,
        1.0 / 3628800,
        1.0 / 362880,
        1.0 / 40320,
        1.0 / 5040,
        1.0 / 720,
        1.0 / 120,
        1.0 / 24,
        1.0 / 6,
        1.0 / 2,
        1.0,
        1.0,
    };
    double p = inverse_factorial[0];
    for (unsigned i = 1; i < sizeof inverse_factorial / sizeof *inverse_factorial; i++)
        p = __builtin_fma(p, r, inverse_factorial[i]);
    const int i = (int)n, half = i >> 1;
    return p * power_of_two(half) * power_of_two(i - half);
}

double math_log(double x) {
    const double infinity = double_of(UINT64_C(0x7ff0000000000000));
    if (!(x > 0)) return x == 0 ? -infinity : double_of(UINT64_C(0x7ff8000000000000));
    if (x == infinity) return x;
    int k = 0;
    if (x < 0x1p-1022) {
        x *= 0x1p+54;
        k = -54;
    }
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    k += (int)(bits >> 52) - 1023;
    double m = double_of((bits & UINT64_C(0x000fffffffffffff)) | UINT64_C(0x3ff0000000000000));
    if (m > 0x1.6a09e667f3bcdp+0) {
        m *= 0.5;
        k += 1;
    }
    /* log m = 2 atanh(s), s = f / (2 + f). Written as f - s (f - 2 z (1/3 + z/5 + ...)), z = s^2,
     * so that the leading term is exact. */
    const double f = m - 1, s = f / (2 + f), z = s * s;
    double p = 1.0 / 23;
    for (int d = 21; d >= 3; d -= 2) p = __builtin_fma(p, z, 1.0 / d);
    const double tail = -s * __builtin_fma(-2 * z, p, f);
    const double n = k;
    const double low = __builtin_fma(n, 0x1.abc9e3b39803fp-56, tail);
    return __builtin_fma(n, 0x1.62e42fefa39efp-1, f + low);
}

void math_sincos(double x, double *sine, double *cosine) {
    CHECK(x <= 0x1p30 && x >= -0x1p30);
    const double t = __builtin_fma(x, 0x1.45f306dc9c883p-1, 0x1.8p+52);
    const double n = t - 0x1.8p+52;
    double r = __builtin_fma(n, -0x1.921fb54442d18p+0, x);
    r = __builtin_fma(n, -0x1.1a62633145c07p-54, r);
    const double z = r * r;
    /* Taylor to r^17 and r^18: the next terms are below 1e-19 at pi/4. */
    double s = 1.0 / 355687428096000.0;
    static const double sine_terms[] = {
        -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0,
        -1.0 / 5040.0,          1.0 / 120.0,        -1.0 / 6.0};
    for (unsigned i = 0; i < 7; i++) s = __builtin_fma(s, z, sine_terms[i]);
    s = __builtin_fma(s * z, r, r);
    double c = -1.0 / 6402373705728000.0;
    static const double cosine_terms[] = {
        1.0 / 20922789888000.0, -1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0,
        1.0 / 40320.0,          -1.0 / 720.0,         1.0 / 24.0,        -1.0 / 2.0};
    for (unsigned i = 0; i < 8; i++) c = __builtin_fma(c, z, cosine_terms[i]);
    c = __builtin_fma(c, z, 1.0);
    switch ((int64_t)n & 3) {
    case 0:
        *sine = s, *cosine = c;
        break;
    case 1:
        *sine = c, *cosine = -s;
        break;
    case 2:
        *sine = -s, *cosine = -c;
        break;
    default:
        *sine = -c, *cosine = s;
        break;
    }
}
