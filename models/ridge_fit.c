#include "models/ridge_fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"

enum status ridge_fit_open(struct ridge_fit *f, uint32_t n_inputs, uint32_t n_outputs,
                           uint32_t max_rows, enum cpu_isa isa, struct worker_pool *pool,
                           struct error *e) {
    CHECK(n_inputs > 0 && n_outputs > 0 && max_rows > 0);
    *f = (struct ridge_fit){.n_inputs = n_inputs, .n_outputs = n_outputs, .max_rows = max_rows};
    f->gram = calloc((size_t)n_inputs * n_inputs, sizeof *f->gram);
    f->cross = calloc((size_t)n_inputs * n_outputs, sizeof *f->cross);
    enum status st = STATUS_OK;
    if (f->gram == NULL || f->cross == NULL)
        st = error_set(e, STATUS_NO_MEMORY, NULL, "no memory for a linear fit");
    else
        st = gemm_open(&f->gemm, isa, pool, max_rows, e);
    if (st != STATUS_OK) ridge_fit_close(f);
    return st;
}

void ridge_fit_close(struct ridge_fit *f) {
    gemm_close(&f->gemm);
    free(f->gram);
    free(f->cross);
    memset(f, 0, sizeof *f);
}

void ridge_fit_add(struct ridge_fit *f, const float *x, const float *y, uint32_t n) {
    CHECK(n <= f->max_rows);
    if (n == 0) return;
    const uint32_t in = f->n_inputs, out = f->n_outputs;
    const struct gemm gram = {in, in, n, x, x, f->gram, in, in, in, true, false, true};
    const struct gemm cross = {in, out, n, x, y, f->cross, in, out, out, true, false, true};
    gemm_run(&f->gemm, &gram);
    gemm_run(&f->gemm, &cross);
    f->n_rows += n;
}

/* row -= by * other, over n elements. */
static void take_away(double *row, const double *other, double by, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) row[i] -= by * other[i];
}

/* a = U^T U; U over the upper triangle of a. */
static bool factor(double *a, uint32_t n) {
    for (uint32_t k = 0; k < n; k++) {
        double *top = a + (size_t)k * n;
        if (!(top[k] > 0) || !isfinite(top[k])) return false;
        const double by = 1 / sqrt(top[k]);
        for (uint32_t j = k; j < n; j++) top[j] *= by;
        for (uint32_t i = k + 1; i < n; i++)
            take_away(a + (size_t)i * n + i, top + i, top[i], n - i);
    }
    return true;
}

/* U^T U x = b, for the m columns of b [n, m] at once. */
static void solve(const double *u, uint32_t n, double *b, uint32_t m) {
    for (uint32_t k = 0; k < n; k++) {
        double *row = b + (size_t)k * m;
        for (uint32_t j = 0; j < m; j++) row[j] /= u[(size_t)k * n + k];
        for (uint32_t i = k + 1; i < n; i++)
            take_away(b + (size_t)i * m, row, u[(size_t)k * n + i], m);
    }
    for (uint32_t k = n; k-- > 0;) {
        double *row = b + (size_t)k * m;
        for (uint32_t j = 0; j < m; j++) row[j] /= u[(size_t)k * n + k];
        for (uint32_t i = 0; i < k; i++) take_away(b + (size_t)i * m, row, u[(size_t)i * n + k], m);
    }
}

enum status ridge_fit_solve(struct ridge_fit *f, double share, float *w, struct error *e) {
    CHECK(share > 0);
    const uint32_t n = f->n_inputs, m = f->n_outputs;
    if (f->n_rows == 0) return error_set(e, STATUS_INVALID, NULL, "no rows for a linear fit");
    double *a = malloc((size_t)n * n * sizeof *a), *b = malloc((size_t)n * m * sizeof *b);
    enum status st = STATUS_OK;
    if (a == NULL || b == NULL)
        st = error_set(e, STATUS_NO_MEMORY, NULL, "no memory for a linear fit");
    if (st == STATUS_OK) {
        double trace = 0;
        for (size_t i = 0; i < (size_t)n * n; i++) a[i] = (double)f->gram[i];
        for (size_t i = 0; i < (size_t)n * m; i++) b[i] = (double)f->cross[i];
        for (uint32_t i = 0; i < n; i++) trace += a[(size_t)i * n + i];
        for (uint32_t i = 0; i < n; i++) a[(size_t)i * n + i] += share * trace / n;
        if (!factor(a, n)) st = error_set(e, STATUS_INVALID, NULL, "a linear fit has no solution");
    }
    if (st == STATUS_OK) {
        solve(a, n, b, m);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t j = 0; j < m; j++) w[(size_t)j * n + i] = (float)b[(size_t)i * m + j];
    }
    free(a);
    free(b);
    return st;
}
