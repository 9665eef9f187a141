/* logistic_fit.h: weights of a logistic regression, by Newton's method (iteratively reweighted
 * least squares) in double, with a small ridge. For a few features and up to millions of rows.
 *
 * rows [n, k] F32, row-major; labels [n]: true is the class whose log-odds are wanted. out [k + 1]:
 * bias, then weights, of the log-odds at equal class weights (each class counts as much as the
 * other, however many rows it has). Deterministic. k <= LOGISTIC_FIT_MAX. STATUS_INVALID when a
 * class is empty or the rows are not finite.
 */
#ifndef LAC_MODELS_LOGISTIC_FIT_H
#define LAC_MODELS_LOGISTIC_FIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

enum { LOGISTIC_FIT_MAX = 15 };

enum status logistic_fit(const float *rows, const bool *labels, size_t n, uint32_t k, float *out,
                         struct error *e) LAC_MUST_USE;

#endif
