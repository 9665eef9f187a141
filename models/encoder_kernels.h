/* encoder_kernels.h: the arithmetic of the sentence encoder, one table per instruction set.
 *
 * All tables give the same bits: every output is one fmaf chain in rising k, sums over a row use
 * sixteen lanes and one fixed tree, exp is core/math.h's. Scalar is the oracle.
 * Rows are padded to ENCODER_LANES floats where a kernel says so. Weights lie in panels of sixteen
 * outputs: panel[k][16]. Threads: kernels keep nothing.
 */
#ifndef LAC_MODELS_ENCODER_KERNELS_H
#define LAC_MODELS_ENCODER_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "core/cpu_features.h"

enum { ENCODER_LANES = 16 };

struct encoder_kernels {
    const char *name;
    uint32_t rows_at_once; /* a multiple of it is the best number of rows for `matmul` */
    /* y[r][0..16) = bias[0..16) + sum over k of x[r][k] panel[k][0..16), for one panel; strides in
     * floats. bias NULL: 0. */
    void (*matmul)(const float *x, size_t x_stride, const float *panel, size_t panel_stride,
                   const float *bias, float *y, size_t y_stride, uint32_t n_rows, uint32_t n_k);
    /* x / 2 (1 + erf(x / sqrt 2)), n a multiple of 16. erf is within 2e-7: formula 7.1.26 of
     * Abramowitz and Stegun, "Handbook of Mathematical Functions". */
    void (*gelu)(float *x, size_t n);
    /* x = norm(x + add) * weight + bias, over n, a multiple of 16 (Ba et al., arXiv:1607.06450). */
    void (*add_norm)(float *x, const float *add, const float *weight, const float *bias, uint32_t n,
                     float epsilon);
    /* x = softmax(scale x) over n; x has room for n rounded up to 16, and 0 there afterwards. */
    void (*softmax)(float *x, uint32_t n, float scale);
};

/* The table for that instruction set, or the best one below it on this architecture. */
const struct encoder_kernels *encoder_kernels_for(enum cpu_isa isa);

extern const struct encoder_kernels encoder_kernels_scalar;
#if defined(__x86_64__)
extern const struct encoder_kernels encoder_kernels_avx2, encoder_kernels_avx512;
#elif defined(__aarch64__)
extern const struct encoder_kernels encoder_kernels_neon;
#endif

#endif
