#include "models/task_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/math.h"
#include "models/task_model_impl.h"
#include "models/task_weights.h"

enum status task_model_new(uint32_t n_classes, struct task_model **out, struct error *e) {
    CHECK(n_classes >= 2 && n_classes <= TASK_MAX_CLASSES);
    *out = NULL;
    struct task_model *m = calloc(1, sizeof *m);
    if (m != NULL) {
        m->n_classes = n_classes;
        m->temperature = 1;
        m->weight = calloc(TASK_N_BUCKETS, n_classes);
        m->seen = calloc(1, TASK_SEEN_BYTES);
    }
    if (m == NULL || m->weight == NULL || m->seen == NULL) {
        task_model_free(m);
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for a task model");
    }
    *out = m;
    return STATUS_OK;
}

enum status task_head_new(struct task_model *m, uint32_t dim, struct error *e) {
    CHECK(dim > 0 && dim <= TASK_MAX_HEAD_DIM);
    float *weight = calloc((size_t)dim * m->n_classes, sizeof *weight);
    if (weight == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for a task head");
    free(m->head.weight);
    m->head = (struct task_head){.dim = dim, .temperature = 1, .weight = weight};
    return STATUS_OK;
}

void task_model_free(struct task_model *m) {
    if (m == NULL) return;
    task_words_free(m->words);
    free(m->head.weight);
    free(m->weight);
    free(m->seen);
    free(m);
}

uint32_t task_model_n_classes(const struct task_model *m) {
    return m->n_classes;
}

const char *task_model_label(const struct task_model *m, uint32_t class) {
    return class < m->n_classes ? m->label[class] : NULL;
}

int task_model_class(const struct task_model *m, const char *label) {
    for (uint32_t c = 0; c < m->n_classes; c++)
        if (strcmp(m->label[c], label) == 0) return (int)c;
    return -1;
}

float task_model_abstain_below(const struct task_model *m) {
    return m->abstain_below;
}

const char *task_model_notes(const struct task_model *m) {
    return m->notes;
}

void task_model_set_notes(struct task_model *m, const char *json) {
    snprintf(m->notes, sizeof m->notes, "%s", json);
}

const struct task_words *task_model_words(const struct task_model *m) {
    return m->words;
}

void task_model_set_words(struct task_model *m, struct task_words *words) {
    task_words_free(m->words);
    m->words = words;
}

uint32_t task_softmax(const float *logit, uint32_t n, float temperature, float *p) {
    uint32_t best = 0;
    for (uint32_t c = 1; c < n; c++)
        if (logit[c] > logit[best]) best = c;
    const float most = logit[best]; /* p may be logit */
    float sum = 0;
    for (uint32_t c = 0; c < n; c++) {
        p[c] = math_expf((logit[c] - most) / temperature);
        sum += p[c];
    }
    for (uint32_t c = 0; c < n; c++) p[c] /= sum;
    return best;
}

void task_add_block(const struct task_model *m, const struct task_features *f, uint32_t b,
                    float *logit) {
    const uint32_t n = m->n_classes;
    for (uint32_t k = f->block_start[b]; k < f->block_start[b + 1]; k++) {
        const uint32_t i = f->index[k];
        const int8_t *weight = m->weight + (size_t)i * n;
        const float *scale = m->scale[i / TASK_SCALE_BUCKETS];
        for (uint32_t c = 0; c < n; c++) logit[c] += f->value[k] * (scale[c] * (float)weight[c]);
    }
}

static float unseen_share(const struct task_model *m, const struct task_features *f) {
    uint32_t unseen = 0;
    for (uint32_t i = 0; i < f->n_terms; i++) {
        const uint32_t bit = task_seen_bit(f->terms[i]);
        unseen += (m->seen[bit / 8] >> (bit % 8) & 1) == 0;
    }
    return f->n_terms > 0 ? (float)unseen / (float)f->n_terms : 0.0f;
}

/* Keeps the largest. */
static void note_reason(const struct task_model *m, struct task_verdict *v, const char *feature,
                        const float *part) {
    float others = 0;
    for (uint32_t c = 0; c < m->n_classes; c++)
        if (c != v->class) others += part[c];
    struct task_reason r = {feature, part[v->class] - others / (float)(m->n_classes - 1)};
    if (!(r.score > 0)) return;
    for (uint32_t i = 0; i < TASK_N_REASONS; i++) {
        if (v->reasons[i].feature != NULL && v->reasons[i].score >= r.score) continue;
        const struct task_reason moved = v->reasons[i];
        v->reasons[i] = r;
        r = moved;
        if (r.feature == NULL) return;
    }
}

static void find_reasons(const struct task_model *m, const struct task_features *f,
                         struct task_verdict *v) {
    for (uint32_t i = 0; i < task_n_dense(); i++) {
        float part[TASK_MAX_CLASSES];
        for (uint32_t c = 0; c < m->n_classes; c++) part[c] = f->dense[i] * m->dense[i][c];
        note_reason(m, v, task_dense_name(i), part);
    }
    for (uint32_t b = 0; b < TASK_N_BLOCKS; b++) {
        float part[TASK_MAX_CLASSES] = {0};
        task_add_block(m, f, b, part);
        note_reason(m, v, task_block_name(b), part);
    }
}

void task_model_classify_features(const struct task_model *m, const struct task_features *f,
                                  bool reasons, struct task_verdict *v) {
    memset(v, 0, sizeof *v);
    for (uint32_t c = 0; c < m->n_classes; c++) v->logit[c] = m->bias[c];
    for (uint32_t i = 0; i < task_n_dense(); i++)
        for (uint32_t c = 0; c < m->n_classes; c++) v->logit[c] += f->dense[i] * m->dense[i][c];
    for (uint32_t b = 0; b < TASK_N_BLOCKS; b++) task_add_block(m, f, b, v->logit);
    v->class = task_softmax(v->logit, m->n_classes, m->temperature, v->probability);
    v->confidence = v->probability[v->class];
    v->abstained = v->confidence < m->abstain_below;
    v->unseen = unseen_share(m, f);
    v->norm = f->norm;
    v->han = f->han;
    if (reasons) find_reasons(m, f, v);
}

void task_model_classify(const struct task_model *m, struct task_workspace *w, const char *text,
                         size_t len, struct task_verdict *out) {
    struct task_features f;
    task_features_extract(w, m->words, text, len, &f);
    task_model_classify_features(m, &f, false, out);
}

uint32_t task_model_head_dim(const struct task_model *m, const uint64_t digest[2]) {
    const bool fits = m->head.model[0] == digest[0] && m->head.model[1] == digest[1];
    return fits ? m->head.dim : 0;
}

uint32_t task_model_head_layer(const struct task_model *m) {
    return m->head.layer;
}

bool task_model_refine(const struct task_model *m, const float *hidden, struct task_verdict *v) {
    const struct task_head *h = &m->head;
    const uint32_t n = m->n_classes;
    CHECK(h->dim > 0);
    float score[TASK_MAX_CLASSES];
    for (uint32_t c = 0; c < n; c++) score[c] = h->bias[c];
    for (uint32_t i = 0; i < h->dim; i++)
        for (uint32_t c = 0; c < n; c++) score[c] += hidden[i] * h->weight[(size_t)i * n + c];
    for (uint32_t c = 0; c < n; c++) {
        score[c] = 0.5f * (score[c] / h->temperature + v->logit[c] / m->temperature);
        if (!(score[c] - score[c] == 0)) return false;
    }
    v->class = task_softmax(score, n, 1, v->probability);
    v->confidence = v->probability[v->class];
    v->abstained = v->confidence < m->abstain_below;
    return true;
}
