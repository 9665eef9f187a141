#include "models/logistic_fit.h"

#include <math.h>
#include <string.h>

#include "core/check.h"
#include "core/math.h"

enum { MAX_STEPS = 50, N = LOGISTIC_FIT_MAX + 1 };
static const double RIDGE = 1e-4, SMALL_STEP = 1e-9;

/* a x = b by Cholesky; a [n, n], symmetric and positive definite (the ridge sees to it). */
static void solve(double a[N][N], double *b, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j <= i; j++) {
            double sum = a[i][j];
            for (uint32_t k = 0; k < j; k++) sum -= a[i][k] * a[j][k];
            a[i][j] = i == j ? sqrt(sum > 1e-300 ? sum : 1e-300) : sum / a[j][j];
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < i; k++) b[i] -= a[i][k] * b[k];
        b[i] /= a[i][i];
    }
    for (uint32_t i = n; i-- > 0;) {
        for (uint32_t k = i + 1; k < n; k++) b[i] -= a[k][i] * b[k];
        b[i] /= a[i][i];
    }
}

enum status logistic_fit(const float *rows, const bool *labels, size_t n, uint32_t k, float *out,
                         struct error *e) {
    CHECK(k >= 1 && k <= LOGISTIC_FIT_MAX);
    size_t n_true = 0;
    memset(out, 0, (k + 1) * sizeof *out);
    for (size_t i = 0; i < n; i++) {
        n_true += labels[i];
        for (uint32_t j = 0; j < k; j++)
            if (!isfinite(rows[i * k + j]))
                return error_set(e, STATUS_INVALID, NULL, "a feature is not finite");
    }
    if (n_true == 0 || n_true == n)
        return error_set(e, STATUS_INVALID, NULL, "one of the two classes has no rows");
    const double weight[2] = {0.5 / (double)(n - n_true), 0.5 / (double)n_true};
    double w[N] = {0};
    for (uint32_t step = 0; step < MAX_STEPS; step++) {
        double hessian[N][N] = {{0}}, gradient[N] = {0};
        for (size_t i = 0; i < n; i++) {
            double x[N] = {1}, s = w[0];
            for (uint32_t j = 0; j < k; j++) {
                x[j + 1] = (double)rows[i * k + j];
                s += w[j + 1] * x[j + 1];
            }
            const double p = 1 / (1 + math_exp(-s)), c = weight[labels[i]];
            for (uint32_t a = 0; a <= k; a++) {
                gradient[a] += c * (labels[i] - p) * x[a];
                for (uint32_t b = 0; b <= a; b++) hessian[a][b] += c * p * (1 - p) * x[a] * x[b];
            }
        }
        for (uint32_t a = 0; a <= k; a++) {
            gradient[a] -= RIDGE * w[a];
            hessian[a][a] += RIDGE;
        }
        solve(hessian, gradient, k + 1);
        double largest = 0;
        for (uint32_t a = 0; a <= k; a++) {
            w[a] += gradient[a];
            if (fabs(gradient[a]) > largest) largest = fabs(gradient[a]);
        }
        if (largest < SMALL_STEP) break;
    }
    for (uint32_t a = 0; a <= k; a++) {
        out[a] = (float)w[a];
        if (!isfinite(out[a])) return error_set(e, STATUS_INVALID, NULL, "the fit diverged");
    }
    return STATUS_OK;
}
