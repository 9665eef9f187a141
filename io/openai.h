/* openai.h: OpenAI's wire format: what the request bodies may say, and how answers are written.
 *
 * Parsing checks types and fixed ranges; what depends on the model is the scheduler's. A field that
 * is null counts as absent. Unknown top-level fields are ignored; unknown ones inside `laconic`,
 * and known ones whose feature this build does not have, are refused by name (STATUS_UNSUPPORTED).
 * Decisions where OpenAI's reference is silent:
 *  - max_tokens 0 is accepted: an empty answer, finish_reason "length".
 *  - max_tokens and max_completion_tokens may both be given only if they are equal.
 *  - an empty stop string is refused; stop strings have at most REQUEST_MAX_STOP_BYTES bytes.
 *  - a list of text parts becomes one text, the parts joined by a line feed.
 *  - a negative seed is its two's complement; without a seed several prompts share one drawn here.
 *  - prompts x n is at most OPENAI_MAX_CHOICES.
 *  - with laconic.labels the answer is one of them and nothing is sampled: temperature, top_p,
 *    top_k, min_p, penalties, logit_bias, stop and max_tokens have no effect, and n > 1, logprobs,
 *    echo, several prompts and prompts of token ids are refused. Its tokens are not counted.
 */
#ifndef LAC_IO_OPENAI_H
#define LAC_IO_OPENAI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buffer.h"
#include "core/chore.h"
#include "core/request.h"
#include "core/status.h"
#include "io/bump.h"
#include "io/body.h"

struct json_writer; /* core/json_writer.h */

enum { OPENAI_MAX_CHOICES = 128, OPENAI_PREFIX_BYTES = 1024 };

struct openai_prompt {
    struct text text;
    const uint32_t *ids;
    size_t n_ids;
};

/* A body, read. All memory is the arena's and `chat`'s. */
struct openai_request {
    struct request base; /* the prompt fields are set per prompt, from below */
    struct openai_prompt *prompts;
    uint32_t n_prompts;
    bool stream, include_usage;
    bool base64;              /* EMBEDDING: the vectors' encoding */
    float *label_probability; /* [base.n_labels]: room for the answer's; NULL without labels */
    struct bump arena;
    struct buffer chat; /* base.chat_json */
};

/* `kind` says which body it is; `model_name` is the served name. The error's status is one of
 * INVALID, UNSUPPORTED, TOO_LARGE, NOT_FOUND (another model), NO_MEMORY, GONE (chore cancelled).
 * Free the request in either case. */
enum status openai_parse(struct openai_request *r, enum request_kind kind, const struct body *body,
                         const char *model_name, struct chore *chore, struct error *e);
void openai_request_free(struct openai_request *r);

/* ---- answers ---- */

/* HTTP status for an error, before anything of the answer was sent. */
int openai_http_status(const struct error *e);
/* {"error":{...}} */
void openai_write_error(struct buffer *out, int http_status, const struct error *e);

/* Who answers what, in every piece of an answer. */
struct openai_identity {
    const char *model;
    const char *fingerprint;
};
/* What is the same in all pieces of one answer, up to and with `"choices":`. */
struct openai_prefix {
    char text[OPENAI_PREFIX_BYTES];
    size_t n;
};
void openai_prefix(struct openai_prefix *p, enum request_kind kind, bool stream, const char *id,
                   uint64_t created_s, const struct openai_identity *who);

/* The tokens of one piece, as OpenAI's logprobs: the inside of the `content` list (chat), or of the
 * four lists (completions). Each starts with a comma unless `first`. */
struct openai_lists {
    struct buffer *tokens, *logprobs, *tops, *offsets; /* completions; chat uses `tokens` only */
};
void openai_write_logprobs(const struct openai_lists *to, bool chat, bool first, uint32_t n_top,
                           const struct token_logprob *lps, uint32_t n, uint64_t *text_offset);

const char *openai_finish_reason(enum finish_reason reason);
void openai_write_usage(struct json_writer *j, const struct request_usage *usage);
/* The object `laconic`. */
void openai_write_report(struct json_writer *j, const struct request_report *report,
                         const struct request *r);

#endif
