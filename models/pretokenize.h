/* pretokenize.h: cuts text into the pieces inside which byte pair merges happen.
 *
 * A pre-tokenizer is named by `tokenizer.ggml.pre` and is a list of splits; each split cuts the
 * pieces of the one before it, and text that a split does not match is a piece of its own (the
 * "isolated" behaviour). The splits behave as the regular expressions that the models' authors
 * published (tokenizer.json, tiktoken definitions); the test compares them with PCRE2 running those
 * expressions. The list of names is that of llama.cpp.
 *
 * Text is any bytes. A byte that is not well-formed UTF-8 takes part as one U+FFFD (a symbol), and
 * keeps its own value in the piece. Every piece is at least one byte; together they are the text.
 * Time is linear in the text for any text; nothing allocates and nothing fails.
 */
#ifndef LAC_MODELS_PRETOKENIZE_H
#define LAC_MODELS_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/chore.h"

enum { PRETOKENIZER_MAX_SPLITS = 6 };

struct pretokenizer_split;

/* One name's row. Read-only, static. */
struct pretokenizer {
    const char *name;
    const struct pretokenizer_split *split; /* [n_splits] */
    size_t n_splits;
    bool whole_word_first; /* a piece that is itself a token is not merged (HF: ignore_merges) */
    bool add_bos;          /* when the file has no tokenizer.ggml.add_bos_token */
    bool metaspace;   /* merges run over UTF-8 with U+2581 for a space, not over mapped bytes */
    bool word_prefix; /* metaspace: each line starts with U+2581 */
    bool drop_space;  /* merges run over UTF-8; white space separates and is dropped */
};

/* The row of a name, or NULL if it is not known. `name` need not be NUL-terminated. */
const struct pretokenizer *pretokenizer_find(const char *name, size_t len);
/* Row i in table order, NULL past the end. */
const struct pretokenizer *pretokenizer_row(size_t i);

/* A walk over the pieces of text[0..len). The text must outlive it. */
struct pretoken_walk {
    const struct pretokenizer *p;
    const char *text;
    struct chore *chore; /* NULL, or offered a pause every few thousand characters looked at */
    unsigned looked_at;
    bool gone; /* the chore was cancelled: there are no more pieces */
    struct {
        size_t pos, end;              /* what is left of the piece of the split before */
        size_t run_pos, run_end, run; /* what the last look-ahead over a run found */
    } level[PRETOKENIZER_MAX_SPLITS];
};

void pretoken_walk_init(struct pretoken_walk *w, const struct pretokenizer *p, struct chore *c,
                        const char *text, size_t len);
/* The next piece as [*start, *end); false when there is none. */
bool pretoken_walk_next(struct pretoken_walk *w, size_t *start, size_t *end);

#endif
