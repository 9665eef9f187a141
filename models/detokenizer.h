/* detokenizer.h: token ids to text as they come, cut only between characters.
 *
 * A token's bytes may end inside a UTF-8 sequence; they are held until the sequence is complete.
 * Bytes that can no longer become one are released as U+FFFD, one for each maximal part of a
 * sequence (Unicode 14, section 3.9, the practice of the W3C's decoders), so what is released is
 * always UTF-8. What the pushes and the flush release, one behind the other, does not depend on how
 * the ids were spread over the calls.
 *
 * A vocabulary that puts a space in front of a text (SentencePiece with add_space_prefix,
 * WordPiece) has it taken off the first token that has bytes, unless DETOKENIZE_CONTINUES.
 *
 * Fixed size, no allocation of its own; any number per tokenizer, one thread each.
 */
#ifndef LAC_MODELS_DETOKENIZER_H
#define LAC_MODELS_DETOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buffer.h"
#include "models/tokenizer.h"

enum detokenize_flags {
    DETOKENIZE_SPECIAL = 1,   /* control tokens are shown as their text */
    DETOKENIZE_CONTINUES = 2, /* the ids go on behind others: the first keeps its space */
    DETOKENIZE_RAW = 4,       /* the tokens' own bytes, held back and replaced nowhere */
};

struct detokenizer {
    const struct tokenizer *t;
    unsigned flags;
    bool strip_space;
    uint8_t n_held;
    uint8_t held[4];
};

void detokenizer_init(struct detokenizer *d, const struct tokenizer *t, unsigned flags);
/* Appends to `out` (which may be a fixed one; see buffer.h for what is full) what is complete after
 * this token: at most 3 bytes for each byte of the token, and 3 more. Ids out of range add nothing.
 */
void detokenizer_push(struct detokenizer *d, uint32_t id, struct buffer *out);
/* The end: an incomplete sequence becomes U+FFFD. The detokenizer is then as after init, except
 * that it keeps a leading space. */
void detokenizer_flush(struct detokenizer *d, struct buffer *out);
/* All of a list at once. */
void detokenize(const struct tokenizer *t, const uint32_t *ids, size_t n, unsigned flags,
                struct buffer *out);

#endif
