/* task_model.h: what kind of task a prompt is, decided at admission from its text alone.
 *
 * A softmax over linear scores of the task features (models/task_features.h): FP32 weights of the
 * measures, int8 weights of the hashed features with one FP32 scale per 256 buckets and class.
 * Probabilities are calibrated by a temperature; below `abstain_below` the model abstains, and the
 * caller takes its middle preset. A model may hold a head for a second look (task_model_refine): a
 * linear score of the mean hidden state of the prompt after one layer, averaged with the first.
 *
 * File `NAME.lact`, little endian: header {magic "LACT", version, file bytes, XXH3-128 of all that
 * follows it, counts}, a section table {kind, version, offset, bytes}, sections 64-byte aligned;
 * unknown kinds are skipped. At most TASK_MODEL_MAX_BYTES. Wrong magic, version, size, checksum,
 * count or number (not finite, out of range) is STATUS_CORRUPT or STATUS_UNSUPPORTED with one line;
 * the checksum is no defence, so every field is checked besides.
 *
 * The same text and file give the same bits on every machine: one order of every sum, no libm.
 * Threads: read-only once made; each thread brings its own workspace.
 */
#ifndef LAC_MODELS_TASK_MODEL_H
#define LAC_MODELS_TASK_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buffer.h"
#include "core/status.h"
#include "models/task_features.h"

enum {
    TASK_MODEL_VERSION = 1,
    TASK_MODEL_MAX_BYTES = 500 * 1000,
    TASK_MAX_CLASSES = 6,
    TASK_MAX_LABEL_BYTES = 31,
    TASK_MAX_HEAD_DIM = 8192,
    TASK_MAX_NOTES_BYTES = 16 << 10,
    TASK_N_REASONS = 4,
};

struct task_model;

struct task_reason {
    const char *feature; /* a measure's or a block's name */
    float score;         /* what it adds to the winner's score over the mean of the others' */
};

struct task_verdict {
    uint32_t class; /* the likeliest, also when abstaining */
    bool abstained;
    float confidence; /* probability[class] */
    float probability[TASK_MAX_CLASSES];
    float logit[TASK_MAX_CLASSES]; /* before the temperature */
    float unseen;                  /* share of the terms that training never saw; 0 if no terms */
    float norm;                    /* of the hashed features before normalisation */
    float han;                     /* share of Han characters among letters */
    struct task_reason reasons[TASK_N_REASONS]; /* largest first; feature NULL: fewer */
};

/* A model in a file or in memory (copied). On failure *out is NULL. */
LAC_MUST_USE enum status task_model_open(const char *path, struct task_model **out,
                                         struct error *e);
LAC_MUST_USE enum status task_model_read(const void *bytes, size_t n, struct task_model **out,
                                         struct error *e);
void task_model_free(struct task_model *m); /* NULL is fine */

/* Into `out` (cleared first), or to a file through a temporary one and a rename. */
LAC_MUST_USE enum status task_model_write(const struct task_model *m, struct buffer *out,
                                          struct error *e);
LAC_MUST_USE enum status task_model_save(const struct task_model *m, const char *path,
                                         struct error *e);

uint32_t task_model_n_classes(const struct task_model *m);
const char *task_model_label(const struct task_model *m, uint32_t class); /* NULL beyond the last */
/* -1 if there is none of that name. */
int task_model_class(const struct task_model *m, const char *label);
float task_model_abstain_below(const struct task_model *m);
/* What the trainer wrote about the model, as JSON; "" if nothing. */
const char *task_model_notes(const struct task_model *m);
/* Cut at TASK_MAX_NOTES_BYTES. */
void task_model_set_notes(struct task_model *m, const char *json);
const struct task_words *task_model_words(const struct task_model *m);
/* Other word lists than those of training; the model takes ownership. */
void task_model_set_words(struct task_model *m, struct task_words *words);

/* p99 well under 1 ms for 2,000 characters; no heap. */
void task_model_classify(const struct task_model *m, struct task_workspace *w, const char *text,
                         size_t len, struct task_verdict *out);
/* The same for features at hand; `reasons` may be left out, they cost as much as the rest. */
void task_model_classify_features(const struct task_model *m, const struct task_features *f,
                                  bool reasons, struct task_verdict *out);

/* The second look. The head's width: 0 if there is none, or if it was trained on another model than
 * that of `digest` (gguf_digest). Its states are those after this many layers. */
uint32_t task_model_head_dim(const struct task_model *m, const uint64_t digest[2]);
uint32_t task_model_head_layer(const struct task_model *m);
/* `hidden` [head_dim]: the mean over the tokens of the user's text, in the model's chat template
 * and position 0 left out, of the RMS-normalised state after the head's layers. *v is the first
 * look's verdict and becomes the refined one (class, probabilities, confidence, abstention); its
 * logits stay. Not finite input leaves it unchanged and returns false. */
bool task_model_refine(const struct task_model *m, const float *hidden, struct task_verdict *v);

#endif
