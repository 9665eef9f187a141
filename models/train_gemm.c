#include "models/train_gemm.h"

#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "models/encoder_kernels.h"

enum {
    LANES = ENCODER_LANES,
    A_ROWS = 48, /* rows of C per block: a multiple of what the kernels keep in registers */
};

enum status gemm_open(struct gemm_context *g, enum cpu_isa isa, struct worker_pool *pool,
                      uint32_t max_k, struct error *e) {
    const uint32_t workers = pool != NULL ? worker_pool_size(pool) : 1;
    const size_t each = (size_t)max_k * (LANES + A_ROWS) + A_ROWS * LANES;
    *g = (struct gemm_context){
        .kernels = encoder_kernels_for(isa), .pool = pool, .max_k = max_k, .scratch_floats = each};
    void *mem = NULL;
    if (posix_memalign(&mem, 64, each * workers * sizeof(float)) != 0) {
        memset(g, 0, sizeof *g);
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for training");
    }
    g->scratch = mem;
    return STATUS_OK;
}

void gemm_close(struct gemm_context *g) {
    free(g->scratch);
    memset(g, 0, sizeof *g);
}

/* Columns [n0, n0 + 16) of B as [k][16], zeros beyond n. */
static void pack_panel(const struct gemm *x, uint32_t n0, float *panel) {
    const uint32_t n = x->n - n0 < LANES ? x->n - n0 : LANES;
    if (n < LANES) memset(panel, 0, (size_t)x->k * LANES * sizeof *panel);
    if (x->b_transposed) {
        for (uint32_t j = 0; j < n; j++) {
            const float *row = x->b + (n0 + j) * x->b_stride;
            for (uint32_t k = 0; k < x->k; k++) panel[(size_t)k * LANES + j] = row[k];
        }
    } else {
        for (uint32_t k = 0; k < x->k; k++)
            memcpy(panel + (size_t)k * LANES, x->b + k * x->b_stride + n0, n * sizeof *panel);
    }
}

static void store_tile(const struct gemm *x, uint32_t m0, uint32_t m1, uint32_t n0,
                       const float *tile) {
    const uint32_t n = x->n - n0 < LANES ? x->n - n0 : LANES;
    for (uint32_t i = m0; i < m1; i++) {
        float *c = x->c + i * x->c_stride + n0;
        const float *t = tile + (size_t)(i - m0) * LANES;
        if (x->accumulate)
            for (uint32_t j = 0; j < n; j++) c[j] += t[j];
        else
            memcpy(c, t, n * sizeof *c);
    }
}

/* Rows [m0, m1), at most A_ROWS of them when A is transposed, columns [n0, n1). */
static void part(const struct gemm_context *g, const struct gemm *x, uint32_t m0, uint32_t m1,
                 uint32_t n0, uint32_t n1, uint32_t worker) {
    float *panel = g->scratch + worker * g->scratch_floats;
    float *turned = panel + (size_t)g->max_k * LANES, *tile = turned + (size_t)g->max_k * A_ROWS;
    const float *a = x->a + (x->a_transposed ? m0 : m0 * x->a_stride);
    size_t a_stride = x->a_stride;
    if (x->a_transposed) {
        for (uint32_t k = 0; k < x->k; k++)
            for (uint32_t i = 0; i < m1 - m0; i++)
                turned[(size_t)i * x->k + k] = a[k * x->a_stride + i];
        a = turned;
        a_stride = x->k;
    }
    for (uint32_t n = n0; n < n1; n += LANES) {
        pack_panel(x, n, panel);
        for (uint32_t m = m0; m < m1; m += A_ROWS) {
            const uint32_t rows = m1 - m < A_ROWS ? m1 - m : A_ROWS;
            const float *from = a + (m - m0) * a_stride;
            if (!x->accumulate && x->n - n >= LANES) {
                g->kernels->matmul(from, a_stride, panel, LANES, NULL, x->c + m * x->c_stride + n,
                                   x->c_stride, rows, x->k);
            } else {
                g->kernels->matmul(from, a_stride, panel, LANES, NULL, tile, LANES, rows, x->k);
                store_tile(x, m, m + rows, n, tile);
            }
        }
    }
}

struct job {
    const struct gemm_context *g;
    const struct gemm *x;
};

static void row_task(void *arg, uint32_t task, uint32_t worker) {
    const struct job *j = arg;
    const uint32_t m0 = task * A_ROWS, m1 = m0 + A_ROWS;
    part(j->g, j->x, m0, m1 < j->x->m ? m1 : j->x->m, 0, j->x->n, worker);
}

static void column_task(void *arg, uint32_t task, uint32_t worker) {
    const struct job *j = arg;
    const uint32_t n0 = task * LANES, n1 = n0 + LANES;
    part(j->g, j->x, 0, j->x->m, n0, n1 < j->x->n ? n1 : j->x->n, worker);
}

static uint32_t n_tasks(const struct gemm *x) {
    return x->a_transposed ? (x->m + A_ROWS - 1) / A_ROWS : (x->n + LANES - 1) / LANES;
}

void gemm_run(const struct gemm_context *g, const struct gemm *x) {
    CHECK(x->k <= g->max_k);
    struct job j = {g, x};
    worker_fn *fn = x->a_transposed ? row_task : column_task;
    if (g->pool != NULL) {
        worker_pool_run(g->pool, fn, &j, n_tasks(x));
        return;
    }
    for (uint32_t i = 0; i < n_tasks(x); i++) fn(&j, i, 0);
}

void gemm_serial(const struct gemm_context *g, const struct gemm *x, uint32_t worker) {
    CHECK(x->k <= g->max_k);
    struct job j = {g, x};
    for (uint32_t i = 0; i < n_tasks(x); i++)
        (x->a_transposed ? row_task : column_task)(&j, i, worker);
}
