/* gate_marks.h: what a prompt itself says about which of its pages to attend to.
 *
 *   <ANCHOR:NAME>...</ANCHOR>  the text between is always attended to. NAME: 1 to 64 bytes without
 *                              '<', '>' and control characters. Anchors may nest.
 *   <RECALL>                   the whole request has full attention.
 *   trigger words              the answer leans on what was said long ago: a larger budget
 *
 * Only text of the request is looked at, never the template's. Markers are taken out of the prompt.
 * What is no marker stays as it is, plain text: a name that is none, an end without a beginning, a
 * beginning without an end, a pair that ends in another stretch of text (message) than it began in.
 * Time is linear in the text, times the longest list of trigger words with one first byte.
 *
 * Trigger words compare without case of ASCII letters and are whole words where they begin or end
 * with an ASCII letter or digit. As a file: UTF-8, one word or phrase a line; empty lines are
 * nothing.
 *
 * Memory: malloc; freed by the _free functions, which take zeroed structs as well. Errors:
 * STATUS_NO_MEMORY, STATUS_GONE (the chore was cancelled), STATUS_INVALID and STATUS_TOO_LARGE for
 * word files. Threads: read-only after gate_words_*.
 */
#ifndef LAC_SCHED_GATE_MARKS_H
#define LAC_SCHED_GATE_MARKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/chore.h"
#include "core/status.h"
#include "models/text_span.h"
#include "models/tokenizer.h"

enum {
    GATE_NAME_BYTES = 64,
    GATE_MAX_WORDS = 1024,
    GATE_MAX_WORD_BYTES = 128,
    GATE_MAX_WORDS_BYTES = 64 << 10, /* of a file */
    GATE_MAX_ANCHORS = 5,            /* more than these are worth a warning */
};

struct gate_words {
    uint32_t n;
    char (*words)[GATE_MAX_WORD_BYTES]; /* ASCII letters in lower case, NUL-terminated */
    uint64_t first[4];                  /* bit b: a word begins with the byte b */
};
enum status gate_words_default(struct gate_words *w, struct error *e) LAC_MUST_USE;
enum status gate_words_parse(struct gate_words *w, const char *text, size_t len,
                             struct error *e) LAC_MUST_USE;
void gate_words_free(struct gate_words *w);

/* Bytes of the prompt without its markers. */
struct gate_range {
    uint32_t start, end;
};
struct gate_marks {
    bool recall, trigger;
    uint32_t n_anchors;         /* pairs */
    struct gate_range *anchors; /* [n_anchors], in order of their beginnings */
};
void gate_marks_free(struct gate_marks *m);

/* Takes the markers out of text[0 .. *len). spans[*n_spans] cover it (text_span.h) and are changed
 * with it; spans NULL: all of it is the request's. On failure text and spans are not to be used. */
enum status gate_marks_take(char *text, size_t *len, struct text_span *spans, size_t *n_spans,
                            const struct gate_words *words, struct chore *c, struct gate_marks *out,
                            struct error *e) LAC_MUST_USE;

/* The pages (of KV_PAGE_TOKENS tokens) that hold a byte of an anchor, ascending, into pages[at
 * least n / KV_PAGE_TOKENS + 1]. ids[n] are the tokens of the text of `len` bytes; what stands in
 * front of it (a bos token, a space that the tokenizer adds) may have none. */
enum status gate_marks_pages(const struct gate_marks *m, const struct tokenizer *t,
                             const uint32_t *ids, uint32_t n, size_t len, struct chore *c,
                             uint32_t *pages, uint32_t *n_pages) LAC_MUST_USE;

#endif
