/* monitor_model.h: what the rollback monitor knows about a model: which layer's states it reads,
 * their mean, and the calibrated rule; as side-car sections.
 *
 * Section `monitor`, key "monitor": {layer u32, d_model u32, rows u64 that the mean is of, zeros to
 * 64 bytes, mean F32[d_model]}. Section `calibration`, key "monitor": {weights
 * F32[MONITOR_WEIGHTS], then struct monitor_rule's others in order, F32, clear_tokens u32, zeros to
 * 128 bytes}, then a report (JSON) of what was measured. Little endian.
 *
 * Hostile input: view checks sizes, ranges and that every number is finite (STATUS_CORRUPT);
 * another model's width is STATUS_INVALID. The view points into the sections.
 */
#ifndef LAC_MODELS_MONITOR_MODEL_H
#define LAC_MODELS_MONITOR_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "models/sidecar.h"

#define MONITOR_KEY "monitor"

enum { MONITOR_WEIGHTS = 6 };

/* How rule `auto` scores a draw (sched/monitor.h says what the features are). */
struct monitor_rule {
    float weights[MONITOR_WEIGHTS]; /* bias, then one a feature */
    float threshold;                /* of the score: withdraw */
    float threshold_hot;            /* the same at temperature 1 and over; >= threshold */
    float hold;                     /* of the score: hold back; <= threshold */
    float surprise;                 /* nats: a token drawn against odds is held back */
    /* What an answer's entropies (nats) and cosines are, before it has shown its own. */
    float entropy_mean, entropy_deviation, cosine_mean, cosine_deviation;
    uint32_t clear_tokens; /* a held token is free so many quiet draws later */
};

struct monitor_model {
    uint32_t layer; /* states after so many layers, 1 .. */
    uint32_t d_model;
    const float *mean; /* [d_model]; NULL: zero */
    bool calibrated;   /* the rule is there */
    struct monitor_rule rule;
    const char *report; /* [report_bytes], of the calibration */
    size_t report_bytes;
};

/* Without sections: floor(0.6 n_layers), no mean, not calibrated. */
struct monitor_model monitor_model_plain(uint32_t n_layers, uint32_t d_model);
/* The sections of a side-car, if it has them, over the plain one. */
enum status monitor_model_view(struct monitor_model *m, const struct sidecar *s, uint32_t n_layers,
                               uint32_t d_model, struct error *e) LAC_MUST_USE;

/* The bytes of the two sections, malloc'ed. */
enum status monitor_model_write(const struct monitor_model *m, uint64_t n_rows,
                                struct sidecar_section out[2], struct error *e) LAC_MUST_USE;

#endif
