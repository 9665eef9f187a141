/* task_set.h: labelled texts for training and testing a task model.
 *
 * JSON lines: {"text": string (or "prompt"), "label": string, "lang": string, "source": string}.
 * `lang` and `source` may be missing; a source's key is its part before the first ':' or '+'. The
 * text is kept to its first TASK_MAX_CHARS characters, as the model reads it. Blank lines are
 * skipped. At most TASK_SET_MAX_ROWS rows, TASK_MAX_CLASSES labels, TASK_SET_MAX_SOURCES sources.
 *
 * Errors name the file and line: STATUS_INVALID, STATUS_TOO_LARGE, STATUS_NO_MEMORY, STATUS_IO. A
 * failed add leaves the set as it was before that row; it can still be freed.
 */
#ifndef LAC_MODELS_TASK_SET_H
#define LAC_MODELS_TASK_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "models/task_features.h"
#include "models/task_model.h"

enum {
    TASK_SET_MAX_ROWS = 1 << 18,
    TASK_SET_MAX_SOURCES = 256,
    TASK_MAX_SOURCE_BYTES = 47,
    TASK_MAX_LINE_BYTES = 4 << 20,
    TASK_MAX_LANGS = 4, /* en, zh, two others; more count as the last */
};

struct task_row {
    char *text; /* len bytes and a NUL */
    uint32_t len;
    uint32_t label, source, lang;
};

struct task_set {
    struct task_row *rows;
    uint32_t n, room;
    uint32_t n_labels, n_sources, n_langs;
    char label[TASK_MAX_CLASSES][TASK_MAX_LABEL_BYTES + 1];
    char source[TASK_SET_MAX_SOURCES][TASK_MAX_SOURCE_BYTES + 1];
    char lang[TASK_MAX_LANGS][12];
};

void task_set_init(struct task_set *s);
void task_set_free(struct task_set *s);

/* Labels in the order of a model's classes; then rows with other labels are refused. Before the
 * first row. */
void task_set_use_labels(struct task_set *s, const struct task_model *m);

/* `source` and `lang` may be NULL. `fixed`: no new label may come up. */
LAC_MUST_USE enum status task_set_add(struct task_set *s, const char *text, size_t len,
                                      const char *label, const char *source, const char *lang,
                                      bool fixed, struct error *e);
LAC_MUST_USE enum status task_set_load(struct task_set *s, const char *path, bool fixed,
                                       struct error *e);

/* The features of a set's rows, as one sparse matrix. Features of a row lie in order of blocks. */
struct task_matrix {
    uint32_t n, n_dense;
    float *dense;        /* [n][n_dense] */
    uint64_t *row_start; /* [n + 1] */
    uint32_t *block_end; /* [n][TASK_N_BLOCKS], from the row's start */
    uint16_t *index;
    float *value;
    uint64_t room;
    uint8_t *seen; /* [TASK_SEEN_BYTES]: terms of all rows */
};

/* On failure *m is zeroed. */
LAC_MUST_USE enum status task_matrix_build(const struct task_set *s, const struct task_words *words,
                                           struct task_matrix *m, struct error *e);
void task_matrix_free(struct task_matrix *m);

#endif
