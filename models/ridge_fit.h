/* ridge_fit.h: the linear map W that takes x to y with the least squares, W [n_outputs, n_inputs]:
 * sum |W x - y|^2 + lambda |W|^2, lambda a share of the mean square of an input (Hoerl and Kennard
 * 1970). `tune` begins a draft block's training with it.
 *
 * Rows come in pieces; only X^T X and X^T Y are kept, summed in FP32 in the order of the pieces and
 * solved in FP64 (Cholesky). Bits: a function of the pieces, not of threads or instruction set.
 * Memory: 4 (n_inputs + n_outputs) n_inputs bytes while rows come, twice as much again to solve.
 */
#ifndef LAC_MODELS_RIDGE_FIT_H
#define LAC_MODELS_RIDGE_FIT_H

#include "models/train_gemm.h"

struct ridge_fit {
    uint32_t n_inputs, n_outputs, max_rows;
    uint64_t n_rows; /* that came */
    float *gram;     /* [n_inputs, n_inputs] */
    float *cross;    /* [n_inputs, n_outputs] */
    struct gemm_context gemm;
};

enum status ridge_fit_open(struct ridge_fit *f, uint32_t n_inputs, uint32_t n_outputs,
                           uint32_t max_rows, enum cpu_isa isa, struct worker_pool *pool,
                           struct error *e);
void ridge_fit_close(struct ridge_fit *f);
/* x [n, n_inputs], y [n, n_outputs]; n at most max_rows. */
void ridge_fit_add(struct ridge_fit *f, const float *x, const float *y, uint32_t n);
/* Into w [n_outputs, n_inputs]. share > 0. STATUS_INVALID where no rows came or their products are
 * not positive definite in spite of the ridge (numbers that are not finite). */
enum status ridge_fit_solve(struct ridge_fit *f, double share, float *w, struct error *e);

#endif
