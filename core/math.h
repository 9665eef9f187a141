/* math.h: exp, log and sin/cos of our own, so that a result has the same bits on every machine.
 *
 * What: math_expf is what the vector kernels compute lane by lane (core/cpu/vector_kernels.h holds
 * the same sequence of fmaf over the constants below); the double functions serve tables and
 * reports. Every operation is one IEEE 754 rounding in the order written: no libm, no contraction.
 * Accuracy: math_expf <= 1 ulp; math_exp, math_log, math_sincos <= 2 ulp; math_logf <= 1 ulp.
 * Range: math_expf is 0 below -104 and infinite above 89, through denormals; NaN stays NaN.
 * math_exp likewise below -746 and above 710. math_log of 0 is -inf, of a negative NaN.
 * math_sincos: |x| <= 2^30 (angles of RoPE: position x frequency); CHECKed.
 * Methods: argument reduction after Cody and Waite, "Software Manual for the Elementary Functions"
 * (1980); math_expf's polynomial is our own Remez fit of (e^r - 1 - r) / r^2 on |r| <= ln(2)/2 with
 * relative weight (error 3.1e-9); the double ones are Taylor series, long enough for their
 * interval.
 */
#ifndef LAC_CORE_MATH_H
#define LAC_CORE_MATH_H

#include <stdint.h>

/* e^x = 2^n e^r, n = round(x log2 e), r = x - n ln 2; e^r = 1 + r + r^2 (C2 + C3 r + ... + C6 r^4).
 */
#define MATH_EXPF_MIN    (-104.0f)
#define MATH_EXPF_MAX    89.0f
#define MATH_EXPF_LOG2E  0x1.715476p+0f
#define MATH_EXPF_MAGIC  0x1.8p+23f /* adding it rounds to an integer in the low bits */
#define MATH_EXPF_LN2_HI 0x1.62e430p-1f
#define MATH_EXPF_LN2_LO (-0x1.05c610p-29f)
#define MATH_EXPF_C2     0x1.fffffcp-2f
#define MATH_EXPF_C3     0x1.555492p-3f
#define MATH_EXPF_C4     0x1.5558f2p-5f
#define MATH_EXPF_C5     0x1.123a20p-7f
#define MATH_EXPF_C6     0x1.6a23d0p-10f

float math_expf(float x);
float math_logf(float x);
double math_exp(double x);
double math_log(double x);
void math_sincos(double x, double *sine, double *cosine);

#endif
