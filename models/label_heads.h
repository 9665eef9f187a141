/* label_heads.h: what was trained to tell one set of labels apart, as a side-car section: a look at
 * the text (a linear score of hashed words and letters, models/task_features.h: its blocks of words
 * and characters), and label heads behind early layers (core/heads.h), calibrated together; at the
 * first head whose confidence reaches its threshold the answer is given.
 *
 * The section's key is label_heads_key of the labels: a digest of template and sorted labels.
 *
 * Format, little endian, every part 64-byte aligned, zeros between: header of 128 bytes {magic u32
 * "LABL", version u32, template u32, n_labels, n_heads, d_model, n_layers, n_buckets, max_tokens,
 * n_rows u32; then f32: accuracy, accuracy_low, mean_layer, layer_1_share, text_accuracy,
 * state_accuracy, full_depth_accuracy, early_differs; zeros}; heads, 32 bytes each {layer u32,
 * scale f32, prior_scale f32, threshold f32, zeros}; label ends u32[n_labels], then the labels'
 * bytes, sorted; the look: bias f32[n_labels], scale f32[n_labels], weights int8[n_buckets,
 * n_labels]; heads' bias f32[n_heads, n_labels], weights f32[n_heads, n_labels, d_model].
 *
 * Hostile input: label_heads_view checks sizes, order, ranges and every number. Ownership: a view
 * points into the section; a written section is malloc'ed, 64-byte aligned. Threads: read-only.
 */
#ifndef LAC_MODELS_LABEL_HEADS_H
#define LAC_MODELS_LABEL_HEADS_H

#include "core/heads.h"
#include "core/plan.h"
#include "core/request.h"
#include "core/status.h"
#include "models/label_text.h"
#include "models/task_features.h"

enum {
    LABEL_MAX_HEADS = 32,
    LABEL_MAX_TOKENS = 256, /* of a text that heads read */
    LABEL_MAX_BUCKETS = TASK_N_BUCKETS,
    LABEL_KEY_BYTES = 33,
};

/* Measured on rows that were kept apart, all shares in [0, 1]. */
struct label_figures {
    uint32_t n_rows;
    float accuracy, accuracy_low; /* of the answers given; its one-sided 95 % bound */
    float mean_layer;             /* layers run per text */
    float first_share;            /* answered by the first head */
    float text_accuracy;          /* the look at the text alone */
    float state_accuracy;         /* the best head alone */
    float full_accuracy;          /* the head behind the last layer alone */
    /* Of texts answered before the last head, the share to which that would have given another
     * label: its one-sided 95 % upper bound. Audits hold the set to it; 0: not measured. */
    float early_differs;
};

struct label_heads {
    uint32_t n_labels, n_heads, d_model, max_tokens;
    struct label_head heads[LABEL_MAX_HEADS]; /* layers ascending */
    float threshold[LABEL_MAX_HEADS];
    const uint32_t *label_end; /* [n_labels] */
    const char *label_text;
    uint32_t n_buckets; /* a power of two */
    const float *text_bias, *text_scale;
    const int8_t *text_weight; /* [n_buckets, n_labels] */
    struct label_figures figures;
};

/* labels sorted. The same labels and template have the same key. */
void label_heads_key(const struct text *labels, uint32_t n, char key[LABEL_KEY_BYTES]);
struct text label_heads_label(const struct label_heads *h, uint32_t i);

/* STATUS_CORRUPT, STATUS_UNSUPPORTED (version, template, too many labels), STATUS_INVALID: another
 * model's. bytes: 64-byte aligned. */
LAC_MUST_USE enum status label_heads_view(struct label_heads *h, const void *bytes, size_t n,
                                          const struct plan *p, const char *key, struct error *e);
/* *h as a section: what it points to is copied. */
LAC_MUST_USE enum status label_heads_write(const struct label_heads *h, uint32_t n_layers,
                                           void **out, size_t *n_bytes, struct error *e);

/* Every set of a side-car, ready to be published: heads are the sets' heads, set after set. */
struct label_set {
    char key[LABEL_KEY_BYTES];
    uint32_t first_head;
    struct label_heads heads;
};
struct label_sets {
    struct label_set *sets;
    uint32_t n;
    struct heads heads;
    struct label_head *list;
    struct task_words *words; /* of the looks */
    uint64_t digest;          /* of all sections: what they decide is part of an answer */
};
struct sidecar;
/* The side-car outlives the sets. One bad section is a refusal of all. */
LAC_MUST_USE enum status label_sets_open(const struct sidecar *s, const struct plan *p,
                                         struct label_sets *out, struct error *e);
void label_sets_close(struct label_sets *l); /* of zeros: nothing */
/* The set of exactly these labels, sorted; NULL if there is none. */
const struct label_set *label_sets_find(const struct label_sets *l, const struct text *labels,
                                        uint32_t n);

/* prior[n_labels]: the look at the text, to be weighed by the heads. */
void label_heads_prior(const struct label_heads *h, const struct task_features *f, float *prior);
/* The bucket of a feature. */
static inline uint32_t label_bucket(uint32_t n_buckets, uint16_t index) {
    return (uint32_t)(((uint64_t)index * n_buckets) >> TASK_HASH_BITS);
}

#endif
