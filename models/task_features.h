/* task_features.h: what the task model sees of a prompt.
 *
 * Input: the last user message; its first TASK_MAX_CHARS code points are read, the rest is not.
 * Output: `dense` measures in [0, 1] (task_dense_name says which: length, question marks, digits,
 * shares of the word lists, code marks, ...) and hashed features in blocks, each block of L2 norm 1
 * (or empty): words (1 to 3 tokens, and pairs around a gap), characters (3 to 5 letters of a word),
 * places (how the text, its last sentence and its lines begin and end), shapes (the text with each
 * token replaced by its word list or its kind). Inside a block a feature's weight is 1 + ln(count).
 * A feature's index is 16 bits of a hash.
 *
 * `terms` are hashes of words and of pairs of Han characters, for telling how much of a text was
 * never seen in training; `norm` is the L2 norm of all counts' weights before the blocks are
 * normalised.
 *
 * The same text gives the same bits on every machine: one order of every sum, no libm.
 * Any bytes are fine. Memory: a workspace of about 1 MB, made once; extraction takes no heap.
 * Threads: a workspace serves one thread at a time; the word lists are only read.
 */
#ifndef LAC_MODELS_TASK_FEATURES_H
#define LAC_MODELS_TASK_FEATURES_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "models/task_words.h"

enum {
    TASK_MAX_CHARS = 2000,
    TASK_HASH_BITS = 16,
    TASK_N_BUCKETS = 1 << TASK_HASH_BITS,
    TASK_MAX_DENSE = 24 + 2 * TASK_MAX_CATEGORIES,
    TASK_MAX_FEATURES = 20 * TASK_MAX_CHARS,
};

enum task_block { TASK_WORDS, TASK_CHARACTERS, TASK_PLACES, TASK_SHAPES, TASK_N_BLOCKS };

struct task_features {
    float dense[TASK_MAX_DENSE];
    uint32_t n;                              /* hashed features */
    uint32_t block_start[TASK_N_BLOCKS + 1]; /* block b is [block_start[b], block_start[b + 1]) */
    const uint16_t *index;                   /* [n], in the workspace */
    const float *value;                      /* [n] */
    uint32_t n_terms;
    const uint64_t *terms; /* [n_terms] */
    uint32_t n_chars;      /* code points read */
    float norm;
    float han; /* share of Han characters among letters */
};

struct task_workspace;

LAC_MUST_USE enum status task_workspace_new(struct task_workspace **out, struct error *e);
void task_workspace_free(struct task_workspace *w); /* NULL is fine */

/* What is found lives in the workspace until the next call. */
void task_features_extract(struct task_workspace *w, const struct task_words *words,
                           const char *text, size_t len, struct task_features *out);

uint32_t task_n_dense(void);
const char *task_dense_name(uint32_t i); /* NULL beyond the last */
const char *task_block_name(enum task_block b);

#endif
