/* task_words.h: the word lists that tell kinds of tasks apart (step words, code words, product
 * words, ...), as configuration with a built-in default.
 *
 * A list has a name and words or phrases; a phrase has at most TASK_PHRASE_TOKENS tokens, where a
 * token is a word, a number, a sign or one Han character (models/task_features.h). Letters compare
 * without case. At most TASK_MAX_CATEGORIES lists of together TASK_MAX_PHRASES phrases.
 *
 * As JSON: {"NAME": ["word", "two words", ...], ...}. Names must be those of the built-in table:
 * the model has a weight for each list; a list that is not named keeps its default, an empty one is
 * off.
 *
 * Errors: STATUS_INVALID (JSON, an unknown list, a phrase that is too long), STATUS_TOO_LARGE,
 * STATUS_NO_MEMORY. On failure *out is NULL. Threads: read-only once made.
 */
#ifndef LAC_MODELS_TASK_WORDS_H
#define LAC_MODELS_TASK_WORDS_H

#include <stddef.h>
#include <stdint.h>

#include "core/buffer.h"
#include "core/status.h"

enum {
    TASK_MAX_CATEGORIES = 24,
    TASK_PHRASE_TOKENS = 6,
    TASK_MAX_PHRASES = 4096,
    TASK_MAX_WORDS_BYTES = 256 << 10, /* of JSON */
};

struct task_words;

LAC_MUST_USE enum status task_words_default(struct task_words **out, struct error *e);
LAC_MUST_USE enum status task_words_parse(const char *json, size_t bytes, struct task_words **out,
                                          struct error *e);
void task_words_free(struct task_words *w); /* NULL is fine */

/* The lists as JSON that task_words_parse reads back to equal ones. */
void task_words_write(const struct task_words *w, struct buffer *out);

uint32_t task_words_n_categories(void);
const char *task_words_category(uint32_t i);

/* The set of lists (bit i: list i) that hold the phrase whose tokens hash to `hash`; 0: none. */
uint32_t task_words_find(const struct task_words *w, uint64_t hash);

#endif
