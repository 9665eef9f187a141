#include "models/task_weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models/task_model_impl.h"

static void quantise_group(struct task_model *m, const float *w, uint32_t group, uint32_t c) {
    const uint32_t k = m->n_classes;
    const size_t first = (size_t)group * TASK_SCALE_BUCKETS;
    float most = 0;
    for (size_t i = first; i < first + TASK_SCALE_BUCKETS; i++)
        if (fabsf(w[i * k + c]) > most) most = fabsf(w[i * k + c]);
    const float scale = most / 127;
    m->scale[group][c] = scale;
    for (size_t i = first; i < first + TASK_SCALE_BUCKETS; i++) {
        const float q = scale > 0 ? w[i * k + c] / scale : 0;
        m->weight[i * k + c] = (int8_t)(q < 0 ? q - 0.5f : q + 0.5f);
    }
}

void task_model_quantise(struct task_model *m, const struct task_weights *w) {
    const uint32_t k = m->n_classes;
    memcpy(m->bias, w->bias, sizeof m->bias);
    for (uint32_t i = 0; i < w->n_dense; i++)
        memcpy(m->dense[i], w->dense + (size_t)i * k, k * sizeof m->dense[i][0]);
    for (uint32_t g = 0; g < TASK_N_SCALES; g++)
        for (uint32_t c = 0; c < k; c++) quantise_group(m, w->hashed, g, c);
}

enum status task_model_weights(const struct task_model *m, struct task_weights *out,
                               struct error *e) {
    const uint32_t k = m->n_classes;
    *out = (struct task_weights){.n_classes = k, .n_dense = task_n_dense()};
    out->dense = malloc((size_t)out->n_dense * k * sizeof *out->dense);
    out->hashed = malloc((size_t)TASK_N_BUCKETS * k * sizeof *out->hashed);
    if (out->dense == NULL || out->hashed == NULL) {
        task_weights_free(out);
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the weights");
    }
    memcpy(out->bias, m->bias, sizeof out->bias);
    for (uint32_t i = 0; i < out->n_dense; i++)
        memcpy(out->dense + (size_t)i * k, m->dense[i], k * sizeof *out->dense);
    for (size_t i = 0; i < TASK_N_BUCKETS; i++)
        for (uint32_t c = 0; c < k; c++)
            out->hashed[i * k + c] =
                m->scale[i / TASK_SCALE_BUCKETS][c] * (float)m->weight[i * k + c];
    return STATUS_OK;
}

void task_matrix_row(const struct task_matrix *x, uint32_t row, struct task_features *f) {
    memset(f, 0, sizeof *f);
    memcpy(f->dense, x->dense + (size_t)row * x->n_dense, x->n_dense * sizeof f->dense[0]);
    f->n = (uint32_t)(x->row_start[row + 1] - x->row_start[row]);
    f->index = x->index + x->row_start[row];
    f->value = x->value + x->row_start[row];
    for (uint32_t b = 0; b < TASK_N_BLOCKS; b++)
        f->block_start[b + 1] = x->block_end[(size_t)row * TASK_N_BLOCKS + b];
}
