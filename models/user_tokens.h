/* user_tokens.h: which tokens of a rendered prompt say what the request is about.
 *
 * They are the tokens of the request's own text (text_span.h): its last messages, taken whole from
 * the end until they hold USER_TOKENS_LEAST tokens, so that "and why?" is read with what it
 * follows. The beginning of an answer that the request continues is not one of them. The range is
 * contiguous; what the template writes between two such messages is in it.
 *
 * A token belongs where its first byte stands. Pieces are laid end to end to find that byte: a
 * tokenizer that drops white space beside a control token shifts the range by as much. Any input is
 * fine; a text without spans, or of the template's own words only, has an empty range.
 */
#ifndef LAC_MODELS_USER_TOKENS_H
#define LAC_MODELS_USER_TOKENS_H

#include <stddef.h>
#include <stdint.h>

#include "models/text_span.h"
#include "models/tokenizer.h"

enum { USER_TOKENS_LEAST = 16 };

struct token_range {
    uint32_t first, end;
};

/* ids[n] are the text's tokens (tokenizer_encode_spans, no bos added). */
struct token_range user_tokens(const struct tokenizer *t, const uint32_t *ids, size_t n,
                               size_t text_bytes, const struct text_span *spans, size_t n_spans);

#endif
