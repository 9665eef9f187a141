/* embeddings.h: OpenAI's /v1/embeddings: what the body may say, and how the answer is written.
 *
 * `input` is a text or a list of 1 to REQUEST_MAX_INPUTS texts, none empty; token ids are refused,
 * because the encoder's are not the language model's. `model` must be given: the encoder's name, or
 * the served model's name or `default` for mean-pooled states of the language model.
 * `encoding_format` is "float" (the default) or "base64" (of little-endian F32).
 * Ownership and errors as in io/openai.h.
 */
#ifndef LAC_IO_EMBEDDINGS_H
#define LAC_IO_EMBEDDINGS_H

#include <stdbool.h>

#include "core/chore.h"
#include "core/status.h"
#include "io/body.h"
#include "io/openai.h"

struct exchange; /* io/server_state.h */

/* encoder_name NULL: there is none. */
enum status embeddings_parse(struct openai_request *r, const struct body *body,
                             const char *model_name, const char *encoder_name, struct chore *chore,
                             struct error *e);

/* Keeps one vector until all are there; false without memory. */
bool embeddings_keep(struct exchange *x, uint32_t index, const float *v, uint32_t dim);
/* The whole answer into x->content; false without room, or cancelled. */
bool embeddings_write(struct exchange *x, struct chore *chore);

#endif
