#include "models/monitor_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD_BYTES = 64, RULE_BYTES = 128, MAX_CLEAR_TOKENS = 32 };

struct means_head {
    uint32_t layer, d_model;
    uint64_t n_rows;
    uint8_t zero[HEAD_BYTES - 16];
};
struct rule_head {
    struct monitor_rule rule;
    uint8_t zero[RULE_BYTES - sizeof(struct monitor_rule)];
};
_Static_assert(sizeof(struct means_head) == HEAD_BYTES, "as written");
_Static_assert(sizeof(struct rule_head) == RULE_BYTES, "as written");

struct monitor_model monitor_model_plain(uint32_t n_layers, uint32_t d_model) {
    const uint32_t layer = n_layers * 3 / 5;
    return (struct monitor_model){.layer = layer > 0 ? layer : 1, .d_model = d_model};
}

static bool all_zero(const uint8_t *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i] != 0) return false;
    return true;
}

static bool all_finite(const float *v, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!isfinite(v[i])) return false;
    return true;
}

static enum status corrupt(struct error *e, const char *what) {
    return error_set(e, STATUS_CORRUPT, "side-car", "the monitor's section %s", what);
}

static enum status view_means(struct monitor_model *m, const struct sidecar_section *s,
                              uint32_t n_layers, uint32_t d_model, struct error *e) {
    struct means_head h;
    if (s->bytes < sizeof h) return corrupt(e, "is too short");
    memcpy(&h, s->data, sizeof h);
    if (h.d_model != d_model)
        return error_set(e, STATUS_INVALID, "side-car",
                         "the monitor's means have %u numbers, the model's states %u", h.d_model,
                         d_model);
    if (s->bytes != sizeof h + (size_t)d_model * sizeof(float))
        return corrupt(e, "has another size");
    if (h.layer == 0 || h.layer > n_layers || !all_zero(h.zero, sizeof h.zero))
        return corrupt(e, "names a layer that is not there");
    const float *mean = (const float *)(const void *)((const uint8_t *)s->data + sizeof h);
    if (!all_finite(mean, d_model)) return corrupt(e, "holds numbers that are not finite");
    m->layer = h.layer;
    m->mean = mean;
    return STATUS_OK;
}

static enum status view_rule(struct monitor_model *m, const struct sidecar_section *s,
                             struct error *e) {
    struct rule_head h;
    if (s->bytes < sizeof h) return corrupt(e, "of the calibration is too short");
    memcpy(&h, s->data, sizeof h);
    const struct monitor_rule *r = &h.rule;
    const float numbers[] = {r->threshold,   r->threshold_hot,   r->hold,
                             r->surprise,    r->entropy_mean,    r->entropy_deviation,
                             r->cosine_mean, r->cosine_deviation};
    if (!all_finite(r->weights, MONITOR_WEIGHTS) || !all_finite(numbers, 8) ||
        r->hold > r->threshold || r->threshold > r->threshold_hot || !(r->entropy_deviation > 0) ||
        !(r->cosine_deviation > 0) || !(r->surprise > 0) || r->clear_tokens == 0 ||
        r->clear_tokens > MAX_CLEAR_TOKENS || !all_zero(h.zero, sizeof h.zero))
        return corrupt(e, "of the calibration is out of range");
    m->rule = *r;
    m->calibrated = true;
    m->report = (const char *)s->data + sizeof h;
    m->report_bytes = s->bytes - sizeof h;
    return STATUS_OK;
}

enum status monitor_model_view(struct monitor_model *m, const struct sidecar *s, uint32_t n_layers,
                               uint32_t d_model, struct error *e) {
    *m = monitor_model_plain(n_layers, d_model);
    const struct sidecar_section *means = sidecar_find(s, SIDECAR_MONITOR, MONITOR_KEY);
    const struct sidecar_section *rule = sidecar_find(s, SIDECAR_CALIBRATION, MONITOR_KEY);
    enum status st = STATUS_OK;
    if (means != NULL) st = view_means(m, means, n_layers, d_model, e);
    /* A rule is calibrated on the means that it was made with. */
    if (st == STATUS_OK && rule != NULL && means != NULL) st = view_rule(m, rule, e);
    if (st != STATUS_OK) *m = monitor_model_plain(n_layers, d_model);
    return st;
}

static enum status no_memory(struct error *e) {
    return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the monitor's sections");
}

enum status monitor_model_write(const struct monitor_model *m, uint64_t n_rows,
                                struct sidecar_section out[2], struct error *e) {
    memset(out, 0, 2 * sizeof *out);
    const struct means_head means = {.layer = m->layer, .d_model = m->d_model, .n_rows = n_rows};
    const struct rule_head rule = {.rule = m->rule};
    const size_t mean_bytes = m->d_model * sizeof(float);
    uint8_t *a = malloc(sizeof means + mean_bytes), *b = malloc(sizeof rule + m->report_bytes);
    if (a == NULL || b == NULL) {
        free(a);
        free(b);
        return no_memory(e);
    }
    memcpy(a, &means, sizeof means);
    memcpy(a + sizeof means, m->mean, mean_bytes);
    memcpy(b, &rule, sizeof rule);
    if (m->report_bytes > 0) memcpy(b + sizeof rule, m->report, m->report_bytes);
    const struct sidecar_section sections[2] = {
        {.kind = SIDECAR_MONITOR, .data = a, .bytes = sizeof means + mean_bytes},
        {.kind = SIDECAR_CALIBRATION, .data = b, .bytes = sizeof rule + m->report_bytes}};
    for (int i = 0; i < 2; i++) {
        out[i] = sections[i];
        out[i].version = sidecar_kind_version(out[i].kind);
        snprintf(out[i].key, sizeof out[i].key, "%s", MONITOR_KEY);
    }
    return STATUS_OK;
}
