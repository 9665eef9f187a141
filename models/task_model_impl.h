/* task_model_impl.h: the parts of a task model, for its file format, its trainer and itself. */
#ifndef LAC_MODELS_TASK_MODEL_IMPL_H
#define LAC_MODELS_TASK_MODEL_IMPL_H

#include "models/task_model.h"

enum {
    TASK_SCALE_BUCKETS = 256, /* buckets that share a scale */
    TASK_N_SCALES = TASK_N_BUCKETS / TASK_SCALE_BUCKETS,
    TASK_SEEN_BITS = 18,
    TASK_SEEN_BYTES = (1 << TASK_SEEN_BITS) / 8,
};

struct task_head {
    uint32_t dim;      /* 0: none */
    uint32_t layer;    /* after this many layers */
    uint64_t model[2]; /* gguf_digest of the model whose states it reads */
    float temperature;
    float bias[TASK_MAX_CLASSES];
    float *weight; /* [dim][n_classes] */
};

struct task_model {
    uint32_t n_classes;
    char label[TASK_MAX_CLASSES][TASK_MAX_LABEL_BYTES + 1];
    float temperature, abstain_below;
    float bias[TASK_MAX_CLASSES];
    float dense[TASK_MAX_DENSE][TASK_MAX_CLASSES];
    float scale[TASK_N_SCALES][TASK_MAX_CLASSES];
    int8_t *weight; /* [TASK_N_BUCKETS][n_classes] */
    uint8_t *seen;  /* [TASK_SEEN_BYTES], a bit per hash of a term */
    struct task_words *words;
    struct task_head head;
    char notes[TASK_MAX_NOTES_BYTES + 1];
};

/* All zero but for the counts, with room for the weights. */
enum status task_model_new(uint32_t n_classes, struct task_model **out, struct error *e);
enum status task_head_new(struct task_model *m, uint32_t dim, struct error *e);

static inline uint32_t task_seen_bit(uint64_t term) {
    return (uint32_t)(term >> (64 - TASK_SEEN_BITS));
}

/* p = softmax(logit / temperature) over n classes; returns the arg-max, ties to the lower.
 * p may be logit. */
uint32_t task_softmax(const float *logit, uint32_t n, float temperature, float *p);

#endif
