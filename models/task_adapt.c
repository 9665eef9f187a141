/* Models made from other models: the correction for traffic that has moved, and the head of the
 * second look. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "models/task_fit.h"
#include "models/task_model_impl.h"
#include "models/task_train.h"
#include "models/task_weights.h"

/* ---- adaptation ---- */

static enum status copy_model(const struct task_model *m, struct task_model **out,
                              struct error *e) {
    struct buffer b;
    buffer_init(&b, 2 * TASK_MODEL_MAX_BYTES);
    enum status st = task_model_write(m, &b, e);
    if (st == STATUS_OK) st = task_model_read(b.data, b.len, out, e);
    buffer_free(&b);
    return st;
}

static enum status add_rows(struct task_set *to, const struct task_set *from, const char *source,
                            struct error *e) {
    for (uint32_t r = 0; from != NULL && r < from->n; r++) {
        const struct task_row *row = &from->rows[r];
        const enum status st = task_set_add(to, row->text, row->len, from->label[row->label],
                                            source ? source : from->source[row->source],
                                            from->lang[row->lang], true, e);
        if (st != STATUS_OK) return st;
    }
    return STATUS_OK;
}

static void old_logits(const struct task_model *old, const struct task_matrix *x, float *offset) {
    for (uint32_t r = 0; r < x->n; r++) {
        struct task_features f;
        struct task_verdict v;
        task_matrix_row(x, r, &f);
        task_model_classify_features(old, &f, false, &v);
        memcpy(offset + (size_t)r * old->n_classes, v.logit, old->n_classes * sizeof *offset);
    }
}

static enum status fit_correction(const struct task_model *old, const struct task_set *rows,
                                  const struct task_matrix *x, const struct task_train_options *o,
                                  struct task_weights *out, struct error *e) {
    const uint32_t n = rows->n, k = old->n_classes;
    float *offset = malloc((size_t)n * k * sizeof *offset), *weight = malloc(n * sizeof *weight);
    uint32_t *row = malloc(n * sizeof *row), *label = malloc(n * sizeof *label);
    enum status st = offset && weight && row && label
                         ? STATUS_OK
                         : error_set(e, STATUS_NO_MEMORY, NULL, "no memory to adapt");
    if (st == STATUS_OK) {
        for (uint32_t r = 0; r < n; r++) {
            row[r] = r;
            label[r] = rows->rows[r].label;
            /* No balance of labels here: fresh rows may all have one. */
            weight[r] = 1;
        }
        old_logits(old, x, offset);
        const struct task_fit_input in = {.x = x,
                                          .dense_gain = o->dense_gain,
                                          .n_classes = k,
                                          .n = n,
                                          .row = row,
                                          .label = label,
                                          .weight = weight,
                                          .offset = offset};
        const struct task_fit_options fit = {
            .epochs = o->epochs, .rate = o->rate, .l2 = 1 / (o->cost * (float)n), .seed = o->seed};
        st = task_fit(&in, &fit, out, e);
    }
    free(offset);
    free(weight);
    free(row);
    free(label);
    return st;
}

static enum status apply_correction(const struct task_weights *by, const struct task_matrix *x,
                                    struct task_model *m, struct error *e) {
    struct task_weights w;
    const enum status st = task_model_weights(m, &w, e);
    if (st != STATUS_OK) return st;
    for (uint32_t c = 0; c < w.n_classes; c++) w.bias[c] += by->bias[c];
    for (size_t i = 0; i < (size_t)w.n_dense * w.n_classes; i++) w.dense[i] += by->dense[i];
    for (size_t i = 0; i < (size_t)TASK_N_BUCKETS * w.n_classes; i++) w.hashed[i] += by->hashed[i];
    task_model_quantise(m, &w);
    task_weights_free(&w);
    for (size_t i = 0; i < TASK_SEEN_BYTES; i++) m->seen[i] |= x->seen[i];
    return STATUS_OK;
}

enum status task_adapt(const struct task_model *old, const struct task_set *fresh,
                       const struct task_set *replay, const struct task_train_options *o,
                       struct task_model **out, struct error *e) {
    *out = NULL;
    if (fresh->n == 0) return error_set(e, STATUS_INVALID, NULL, "there are no rows to adapt to");
    struct task_set rows;
    struct task_matrix x = {0};
    struct task_weights correction = {0};
    struct task_model *m = NULL;
    task_set_init(&rows);
    task_set_use_labels(&rows, old);
    enum status st = add_rows(&rows, fresh, NULL, e);
    if (st == STATUS_OK) st = add_rows(&rows, replay, NULL, e);
    if (st == STATUS_OK) st = task_matrix_build(&rows, old->words, &x, e);
    if (st == STATUS_OK) st = fit_correction(old, &rows, &x, o, &correction, e);
    if (st == STATUS_OK) st = copy_model(old, &m, e);
    if (st == STATUS_OK) st = apply_correction(&correction, &x, m, e);
    if (st == STATUS_OK)
        *out = m;
    else
        task_model_free(m);
    task_weights_free(&correction);
    task_matrix_free(&x);
    task_set_free(&rows);
    return st;
}

/* ---- the head of the second look ---- */

struct head_fit {
    const struct task_head_input *in;
    const struct task_train_options *o;
    uint32_t k;
    struct task_matrix x; /* hidden states, each channel of mean 0 and variance 1 / dim */
    float *mean, *gain;   /* [dim] */
    uint32_t *row, *label;
    float *weight, *held; /* held: [n][k] leave-sources-out logits */
};

static void standardise(struct head_fit *h) {
    const struct task_head_input *in = h->in;
    for (uint32_t d = 0; d < in->dim; d++) {
        double sum = 0, squares = 0;
        for (uint32_t r = 0; r < in->n; r++) sum += (double)in->hidden[(size_t)r * in->dim + d];
        const double mean = sum / in->n;
        for (uint32_t r = 0; r < in->n; r++) {
            const double x = (double)in->hidden[(size_t)r * in->dim + d] - mean;
            squares += x * x;
        }
        const double variance = squares / in->n;
        h->mean[d] = (float)mean;
        h->gain[d] = variance > 1e-12 ? (float)(2 / sqrt(variance * in->dim)) : 0;
        for (uint32_t r = 0; r < in->n; r++)
            h->x.dense[(size_t)r * in->dim + d] =
                (in->hidden[(size_t)r * in->dim + d] - h->mean[d]) * h->gain[d];
    }
}

static void weigh_labels(const struct head_fit *h, uint32_t n) {
    uint32_t count[TASK_MAX_CLASSES] = {0}, present = 0;
    for (uint32_t i = 0; i < n; i++) count[h->label[i]]++;
    for (uint32_t c = 0; c < h->k; c++) present += count[c] > 0;
    for (uint32_t i = 0; i < n; i++)
        h->weight[i] = (float)n / ((float)present * (float)count[h->label[i]]);
}

static enum status fit_head(struct head_fit *h, uint32_t left_out, struct task_weights *w,
                            struct error *e) {
    uint32_t n = 0;
    for (uint32_t r = 0; r < h->in->n; r++) {
        if (h->in->source[r] == left_out) continue;
        h->row[n] = r;
        h->label[n++] = h->in->label[r];
    }
    if (n == 0) return error_set(e, STATUS_INVALID, NULL, "a head needs rows of two sources");
    weigh_labels(h, n);
    const struct task_fit_input in = {.x = &h->x,
                                      .dense_gain = 1,
                                      .n_classes = h->k,
                                      .n = n,
                                      .row = h->row,
                                      .label = h->label,
                                      .weight = h->weight};
    const struct task_fit_options fit = {.epochs = h->o->epochs,
                                         .rate = h->o->rate,
                                         .l2 = 1 / (h->o->cost * (float)n),
                                         .seed = h->o->seed};
    return task_fit(&in, &fit, w, e);
}

static enum status hold_out_sources(struct head_fit *h, struct error *e) {
    for (uint32_t s = 0; s < h->in->n_sources; s++) {
        struct task_weights w;
        const enum status st = fit_head(h, s, &w, e);
        if (st != STATUS_OK) return st;
        for (uint32_t r = 0; r < h->in->n; r++) {
            if (h->in->source[r] != s) continue;
            const float *x = h->x.dense + (size_t)r * h->in->dim;
            float *z = h->held + (size_t)r * h->k;
            for (uint32_t c = 0; c < h->k; c++) z[c] = w.bias[c];
            for (uint32_t d = 0; d < h->in->dim; d++)
                for (uint32_t c = 0; c < h->k; c++) z[c] += x[d] * w.dense[d * h->k + c];
        }
        task_weights_free(&w);
    }
    return STATUS_OK;
}

static void score_head(const struct head_fit *h, float temperature, float abstain_below,
                       struct task_scores *alone, struct task_scores *both) {
    task_scores_init(alone, h->k);
    task_scores_init(both, h->k);
    for (uint32_t r = 0; r < h->in->n; r++) {
        float z[TASK_MAX_CLASSES], p[TASK_MAX_CLASSES];
        if (h->in->source[r] == TASK_HEAD_ALWAYS) continue;
        for (uint32_t c = 0; c < h->k; c++) z[c] = h->held[(size_t)r * h->k + c] / temperature;
        task_softmax(z, h->k, 1, p);
        task_scores_add(alone, h->in->label[r], p, abstain_below);
        const float *first = h->in->first ? h->in->first + (size_t)r * h->k : NULL;
        if (first == NULL || !isfinite(first[0])) continue;
        for (uint32_t c = 0; c < h->k; c++) z[c] = 0.5f * (z[c] + first[c]);
        task_softmax(z, h->k, 1, p);
        task_scores_add(both, h->in->label[r], p, abstain_below);
    }
}

/* The standardisation goes into the weights. */
static void put_head(const struct head_fit *h, const struct task_weights *w, float temperature,
                     struct task_model *m) {
    m->head.layer = h->in->layer;
    memcpy(m->head.model, h->in->model, sizeof m->head.model);
    m->head.temperature = temperature;
    memcpy(m->head.bias, w->bias, sizeof m->head.bias);
    for (uint32_t d = 0; d < h->in->dim; d++)
        for (uint32_t c = 0; c < h->k; c++) {
            const float weight = w->dense[d * h->k + c] * h->gain[d];
            m->head.weight[d * h->k + c] = weight;
            m->head.bias[c] -= weight * h->mean[d];
        }
}

static enum status head_memory(struct head_fit *h, struct error *e) {
    const size_t n = h->in->n, dim = h->in->dim;
    h->x = (struct task_matrix){.n = h->in->n, .n_dense = h->in->dim};
    h->x.dense = malloc(n * dim * sizeof *h->x.dense);
    h->mean = malloc(dim * sizeof *h->mean);
    h->gain = malloc(dim * sizeof *h->gain);
    h->row = malloc(n * sizeof *h->row);
    h->label = malloc(n * sizeof *h->label);
    h->weight = malloc(n * sizeof *h->weight);
    h->held = calloc(n * h->k, sizeof *h->held);
    if (h->x.dense && h->mean && h->gain && h->row && h->label && h->weight && h->held)
        return STATUS_OK;
    return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the head");
}

enum status task_train_head(struct task_model *m, const struct task_head_input *in,
                            const struct task_train_options *o, struct task_scores *alone,
                            struct task_scores *both, struct error *e) {
    CHECK(in->n > 0 && in->dim > 0 && in->dim <= TASK_MAX_HEAD_DIM);
    struct head_fit h = {.in = in, .o = o, .k = m->n_classes};
    struct task_weights w = {0};
    for (size_t i = 0; i < (size_t)in->n * in->dim; i++)
        if (!isfinite(in->hidden[i]))
            return error_set(e, STATUS_BAD_NUMBER, NULL, "a hidden state is not finite");
    enum status st = head_memory(&h, e);
    if (st == STATUS_OK) {
        standardise(&h);
        st = hold_out_sources(&h, e);
    }
    if (st == STATUS_OK) {
        for (uint32_t r = 0; r < in->n; r++) h.weight[r] = in->source[r] != TASK_HEAD_ALWAYS;
        const float temperature = task_fit_temperature(h.held, in->label, h.weight, in->n, h.k);
        score_head(&h, temperature, m->abstain_below, alone, both);
        st = fit_head(&h, UINT32_MAX, &w, e);
        if (st == STATUS_OK) st = task_head_new(m, in->dim, e);
        if (st == STATUS_OK) put_head(&h, &w, temperature, m);
    }
    task_weights_free(&w);
    task_matrix_free(&h.x);
    free(h.mean);
    free(h.gain);
    free(h.row);
    free(h.label);
    free(h.weight);
    free(h.held);
    return st;
}
