#include "sched/embed.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "models/encoder.h"

struct embed_job {
    const struct encoder *encoder;
    const struct request *request;
    uint32_t dim;
    _Atomic uint32_t next; /* the first text that nobody has taken */
    _Atomic uint32_t n_tokens;
    atomic_bool failed;
    float vectors[]; /* [n_inputs, dim] */
};

enum status embed_make(const struct encoder *enc, const struct request *r, struct embed_job **out,
                       struct error *e) {
    *out = NULL;
    if (enc == NULL)
        return error_set(e, STATUS_UNSUPPORTED, "model", "this server has no encoder (--encoder)");
    const uint32_t dim = encoder_dim(enc);
    if (r->dimensions != 0 && r->dimensions != dim)
        return error_set(e, STATUS_INVALID, "dimensions", "this encoder's vectors have %u", dim);
    struct embed_job *j = calloc(1, sizeof *j + (size_t)r->n_inputs * dim * sizeof *j->vectors);
    if (j == NULL)
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for %u vectors", r->n_inputs);
    j->encoder = enc;
    j->request = r;
    j->dim = dim;
    *out = j;
    return STATUS_OK;
}

void embed_free(struct embed_job *j) {
    free(j);
}

enum status embed_run(struct chore *c, struct embed_job *j, struct error *e) {
    const struct request *r = j->request;
    while (!atomic_load_explicit(&j->failed, memory_order_relaxed)) {
        const uint32_t i = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        if (i >= r->n_inputs) break;
        uint32_t n_tokens;
        const enum status st = encoder_encode(j->encoder, c, r->inputs[i].data, r->inputs[i].len,
                                              j->vectors + (size_t)i * j->dim, &n_tokens, e);
        if (st != STATUS_OK) {
            atomic_store_explicit(&j->failed, true, memory_order_relaxed);
            return st;
        }
        atomic_fetch_add_explicit(&j->n_tokens, n_tokens, memory_order_relaxed);
    }
    return STATUS_OK;
}

void embed_answer(const struct embed_job *j, struct answer *a) {
    for (uint32_t i = 0; i < j->request->n_inputs && !a->silent; i++)
        a->sink.embedding(a->user, i, j->vectors + (size_t)i * j->dim, j->dim);
    const struct request_usage usage = {.prompt_tokens = atomic_load(&j->n_tokens)};
    const struct request_report report = {.seed = j->request->seed};
    answer_done(a, &usage, &report);
}
