/* label_text.h: how a text that is to be classified is put before the model: the label template.
 *
 * For label heads (models/label_heads.h) it is short, since they read the text's own states: the
 * model's begin token (its end token where it has none), then the text, cut at a number of tokens.
 * For zero-shot scoring it is a question: the labels, sorted bytewise, one a line, then the text;
 * as the only message of a user in the model's chat template, with the answer to come; a model
 * without one reads it as it stands. The labels come first, so that requests with the same labels
 * share their KV. The answer to a label is its text and the token that ends a turn (without a chat
 * template: a space, its text, a line feed), so that no label is likelier for being another's
 * beginning.
 *
 * The template is part of what a head was trained for: LABEL_TEMPLATE changes with any of it.
 * What the user or the labels say never becomes a control token. Errors: those of the tokenizer and
 * the chat template. The chore may be NULL.
 */
#ifndef LAC_MODELS_LABEL_TEXT_H
#define LAC_MODELS_LABEL_TEXT_H

#include "core/chore.h"
#include "core/request.h"
#include "models/tokenizer.h"

struct chat_template;

enum { LABEL_TEMPLATE = 1 };

/* order[n]: the labels' indices, sorted bytewise. Returns false if two are equal. */
bool label_sort(const struct text *labels, uint32_t n, uint32_t *order);

/* Appends what a head reads, at most max_tokens >= 2; the text's tokens are [*first, out->n). */
LAC_MUST_USE enum status label_head_tokens(const struct tokenizer *t, struct chore *c,
                                           const char *text, size_t len, uint32_t max_tokens,
                                           struct token_list *out, uint32_t *first,
                                           struct error *e);
/* Appends the question about the text. */
LAC_MUST_USE enum status label_question_tokens(const struct tokenizer *t,
                                               const struct chat_template *chat, struct chore *c,
                                               const struct text *labels, const uint32_t *order,
                                               uint32_t n, const struct text *text,
                                               struct token_list *out, struct error *e);
/* Appends the answer that says this label; at least one token. */
LAC_MUST_USE enum status label_answer_tokens(const struct tokenizer *t,
                                             const struct chat_template *chat,
                                             const struct text *label, struct token_list *out,
                                             struct error *e);

#endif
