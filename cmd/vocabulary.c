#include "cmd/vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/cpu/vector.h"

enum status vocabulary_open(struct vocabulary *v, const struct engine *engine, uint32_t max_rows,
                            struct error *e) {
    const uint32_t d = engine->plan->d_model;
    *v = (struct vocabulary){.engine = engine, .max_rows = max_rows};
    v->logits = malloc((size_t)max_rows * VOCABULARY_TILE * sizeof *v->logits);
    v->head = malloc((size_t)VOCABULARY_TILE * d * sizeof *v->head);
    enum status st = v->logits != NULL && v->head != NULL
                         ? gemm_open(&v->gemm, engine->isa, engine->workers, d, e)
                         : error_set(e, STATUS_NO_MEMORY, NULL, "no memory for logits");
    if (st != STATUS_OK) vocabulary_close(v);
    return st;
}

void vocabulary_close(struct vocabulary *v) {
    if (v->gemm.kernels != NULL) gemm_close(&v->gemm);
    free(v->logits);
    free(v->head);
    memset(v, 0, sizeof *v);
}

static void read_head(const struct plan *p, uint32_t id, float *out) {
    const struct tensor *t = p->head.t;
    const size_t bytes = tensor_row_bytes(tensor_format(t->type), p->d_model);
    tensor_dequantise(t->type, (const uint8_t *)t->data + (p->head.row0 + id) * bytes, out,
                      p->d_model);
}

void vocabulary_walk(struct vocabulary *v, const float *states, uint32_t rows,
                     vocabulary_tile *tile, void *arg) {
    const struct plan *p = v->engine->plan;
    const struct vector_kernels *vec = vector_kernels(v->engine->isa);
    const uint32_t d = p->d_model;
    CHECK(rows <= v->max_rows);
    for (uint32_t first = 0, n; first < p->n_vocab; first += n) {
        n = p->n_vocab - first < VOCABULARY_TILE ? p->n_vocab - first : VOCABULARY_TILE;
        for (uint32_t i = 0; i < n; i++) read_head(p, first + i, v->head + (size_t)i * d);
        gemm_run(&v->gemm, &(struct gemm){.m = rows,
                                          .n = n,
                                          .k = d,
                                          .a = states,
                                          .b = v->head,
                                          .c = v->logits,
                                          .a_stride = d,
                                          .b_stride = d,
                                          .c_stride = VOCABULARY_TILE,
                                          .b_transposed = true});
        for (uint32_t r = 0; r < rows; r++) {
            float *z = v->logits + (size_t)r * VOCABULARY_TILE;
            if (p->logit_scale != 1) vec->scale(z, p->logit_scale, n);
            if (p->logit_softcap > 0) vec->softcap(z, p->logit_softcap, n);
        }
        tile(arg, v->logits, first, n);
    }
}
