/* train_gemm.h: matrix products for training, FP32, row-major.
 *
 * THE BITS. Every element is one fmaf chain over rising k, begun at 0 (then added to C once where
 * the call accumulates), on every instruction set and with any number of threads: the kernels are
 * the encoder's (models/encoder_kernels.h). Shapes are free; multiples of 16 columns are fastest.
 *
 * One product runs on one pool or, without a pool, in the caller's thread. Scratch belongs to the
 * context, one part per worker; a context serves one product at a time, gemm_serial one per worker.
 */
#ifndef LAC_MODELS_TRAIN_GEMM_H
#define LAC_MODELS_TRAIN_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/cpu_features.h"
#include "core/status.h"
#include "core/worker_pool.h"

struct encoder_kernels;

struct gemm_context {
    const struct encoder_kernels *kernels;
    struct worker_pool *pool; /* NULL: the calling thread */
    uint32_t max_k;           /* longest sum */
    float *scratch;           /* per worker */
    size_t scratch_floats;
};

/* C [m, n] (+)= A [m, k] * B [k, n]. A transposed is stored [k, m], B transposed [n, k]. Strides
 * are of the stored rows, in floats. */
struct gemm {
    uint32_t m, n, k;
    const float *a, *b;
    float *c;
    size_t a_stride, b_stride, c_stride;
    bool a_transposed, b_transposed, accumulate;
};

enum status gemm_open(struct gemm_context *g, enum cpu_isa isa, struct worker_pool *pool,
                      uint32_t max_k, struct error *e);
void gemm_close(struct gemm_context *g);
void gemm_run(const struct gemm_context *g, const struct gemm *x);
/* In the calling thread, with that worker's scratch: inside a task of the pool. */
void gemm_serial(const struct gemm_context *g, const struct gemm *x, uint32_t worker);

#endif
