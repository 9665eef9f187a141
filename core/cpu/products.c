/* products.c: phases of matrix products. */
#include "core/check.h"
#include "core/cpu/cpu_state.h"

void products_begin(struct cpu_backend *b) {
    b->n_jobs = 0;
}

bool reads_quantised(const struct cpu_backend *b, enum cpu_input in,
                     const struct packed_matrix *m) {
    return matmul_activation_format(m->type, b->format[in]) != ACTIVATION_F32;
}

size_t input_row_bytes(const struct cpu_backend *b, enum cpu_input in, uint32_t k) {
    return activation_row_bytes(b->format[in], k);
}

void quantise_row(struct cpu_backend *b, enum cpu_input in, const float *x, uint32_t k,
                  uint32_t i) {
    b->mul->quantise(x, k, b->format[in], b->quantised + i * input_row_bytes(b, in, k));
}

void products_add(struct cpu_backend *b, enum cpu_input in, const struct packed_matrix *m,
                  const float *f32, const uint8_t *quantised, uint32_t n_rows, const float *bias,
                  float *out, size_t out_stride) {
    if (n_rows == 0) return;
    const enum activation_format f = matmul_activation_format(m->type, b->format[in]);
    struct matmul_job *j = &b->jobs[b->n_jobs++];
    *j = (struct matmul_job){
        .matrix = m,
        .x = {.format = f,
              .n_rows = n_rows,
              .row_bytes = activation_row_bytes(f, m->k),
              .data = f == ACTIVATION_F32 ? (const void *)f32 : quantised},
        .bias = bias,
        .out = out,
        .out_stride = out_stride,
    };
    /* F32 rows are the caller's own: exactly k floats apart. */
    if (f == ACTIVATION_F32) j->x.row_bytes = (size_t)m->k * sizeof(float);
}

static uint32_t parts(uint32_t n, uint32_t size) {
    return (n + size - 1) / size;
}

uint32_t products_even(const struct cpu_backend *b, uint32_t n_jobs, uint32_t want) {
    uint32_t best = want;
    uint64_t least = UINT64_MAX;
    for (uint32_t size = want + want / 2; size >= 1 && 2 * size >= want; size--) {
        uint64_t n_tasks = 0;
        for (uint32_t i = 0; i < n_jobs; i++) {
            const struct matmul_job *j = &b->jobs[i];
            n_tasks +=
                (uint64_t)parts(j->matrix->n_panels, size) * parts(j->x.n_rows, j->rows_per_task);
        }
        const uint64_t busiest = (n_tasks + b->n_workers - 1) / b->n_workers * size;
        if (busiest < least) {
            least = busiest;
            best = size;
        }
    }
    return best;
}

uint32_t products_cut(struct cpu_backend *b, uint32_t n_jobs) {
    uint32_t panels = 0, n_tasks = 0;
    for (uint32_t i = 0; i < n_jobs; i++) panels += b->jobs[i].matrix->n_panels;
    /* Few rows: the whole phase may be shorter than one task's wish, so cut it for the workers, but
     * not so fine that handing out shows. */
    uint32_t fair = panels / (4 * b->n_workers);
    if (fair < 3) fair = 3;
    bool alike = true;
    for (uint32_t i = 0; i < n_jobs; i++) {
        struct matmul_job *j = &b->jobs[i];
        const struct matmul_task t = matmul_task_size(j->matrix, j->x.format, j->x.n_rows);
        j->rows_per_task = t.rows;
        const uint32_t n_row_tasks = parts(j->x.n_rows, t.rows);
        const uint32_t most = n_row_tasks > 1 ? fair * n_row_tasks : fair;
        j->panels_per_task = t.panels < most ? t.panels : most;
        if (b->n_workers == 1) j->panels_per_task = t.panels;
        alike = alike && j->matrix->k == b->jobs[0].matrix->k &&
                j->rows_per_task == b->jobs[0].rows_per_task;
    }
    /* Tasks of one duration: as many for each worker, else all wait for the one with one more. */
    if (alike && b->n_workers > 1) {
        uint32_t want = b->jobs[0].panels_per_task;
        for (uint32_t i = 1; i < n_jobs; i++)
            if (b->jobs[i].panels_per_task > want) want = b->jobs[i].panels_per_task;
        const uint32_t size = products_even(b, n_jobs, want);
        for (uint32_t i = 0; i < n_jobs; i++) b->jobs[i].panels_per_task = size;
    }
    for (uint32_t i = 0; i < n_jobs; i++) {
        struct matmul_job *j = &b->jobs[i];
        j->n_panel_tasks = parts(j->matrix->n_panels, j->panels_per_task);
        j->first_task = n_tasks;
        n_tasks += j->n_panel_tasks * parts(j->x.n_rows, j->rows_per_task);
    }
    return n_tasks;
}

struct job_range job_range(const struct matmul_job *j, uint32_t task) {
    const uint32_t t = task - j->first_task;
    struct job_range r;
    r.row0 = t / j->n_panel_tasks * j->rows_per_task;
    r.row1 = j->x.n_rows - r.row0 < j->rows_per_task ? j->x.n_rows : r.row0 + j->rows_per_task;
    r.panel0 = t % j->n_panel_tasks * j->panels_per_task;
    const uint32_t left = j->matrix->n_panels - r.panel0;
    r.panel1 = r.panel0 + (left < j->panels_per_task ? left : j->panels_per_task);
    return r;
}

void job_compute(const struct cpu_backend *b, const struct matmul_job *j, struct job_range r) {
    struct activations x = j->x;
    x.n_rows = r.row1 - r.row0;
    x.data = (const uint8_t *)j->x.data + r.row0 * j->x.row_bytes;
    b->mul->matmul(j->matrix, &x, j->bias, r.panel0, r.panel1, j->out + r.row0 * j->out_stride,
                   j->out_stride);
}

static void products_task(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    const struct cpu_backend *b = arg;
    uint32_t i = b->n_jobs - 1;
    while (task < b->jobs[i].first_task) i--;
    job_compute(b, &b->jobs[i], job_range(&b->jobs[i], task));
}

/* What the products of a phase are called in a benchmark's report. */
static const char *products_name(const struct cpu_backend *b) {
    const struct packed_matrix *m = b->jobs[0].matrix;
    const struct cpu_layer *l = b->layer;
    return m == &l->q || m == &l->k ? "q k v"
           : m == &l->o             ? "o"
           : m == &l->down          ? "down"
                                    : "experts";
}

void products_count(struct cpu_backend *b, const char *name) {
    struct cpu_phase *count = phase_count(b, name);
    for (uint32_t i = 0; count != NULL && i < b->n_jobs; i++) {
        const struct packed_matrix *m = b->jobs[i].matrix;
        count->weight_bytes += (double)m->panel_bytes * m->n_panels;
        count->multiply_adds += (double)m->n * m->k * b->jobs[i].x.n_rows;
    }
}

void products_run(struct cpu_backend *b) {
    if (b->n_jobs == 0) return;
    const char *name = products_name(b);
    products_count(b, name);
    phase_named(b, name, products_task, products_cut(b, b->n_jobs));
}
