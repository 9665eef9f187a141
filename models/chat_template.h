/* chat_template.h: a model's chat template, compiled once, and what it makes of a request.
 *
 * Rendering follows the practice of Hugging Face transformers: the template sees `messages`,
 * `tools`, `documents` (none when absent), `add_generation_prompt`, `bos_token`, `eos_token`, and
 * the request's `chat_template_kwargs` as variables.
 *
 * Provenance: text from the request is marked (text_span.h), wherever the template moved it; the
 * template's literals and the bos and eos texts are not. The `role` of a message is not marked when
 * it is one of system, developer, user, assistant, tool, function: templates build control tokens
 * from it ('<|' + role + '|>'), and such a value chooses from a list instead of carrying text.
 *
 * Two shapes differ among templates and are found out at compile time by rendering small probes:
 * whether message content may be a list of parts (a template that takes only text gets the text
 * parts joined by newlines; one that takes only parts gets text as one part), and whether the
 * arguments of a tool call are wanted as an object (clients send JSON text, which is then parsed)
 * or as that text.
 *
 * Threads: a compiled template is read-only.
 */
#ifndef LAC_MODELS_CHAT_TEMPLATE_H
#define LAC_MODELS_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/chore.h"
#include "core/status.h"
#include "models/text_span.h"

struct chat_template;
struct gguf;
struct jinja_limits;

/* `text`: the template (tokenizer.chat_template), not kept. bos, eos: NUL-terminated texts of the
 * model's tokens, copied; NULL: undefined in the template. */
enum status chat_template_compile(const char *text, size_t len, const char *bos, const char *eos,
                                  struct chat_template **out, struct error *e) LAC_MUST_USE;
/* The same from a model file: tokenizer.chat_template and the texts of its bos and eos tokens.
 * STATUS_NOT_FOUND when the file has no template. g may be closed afterwards. */
enum status chat_template_load(const struct gguf *g, struct chat_template **out,
                               struct error *e) LAC_MUST_USE;
void chat_template_free(struct chat_template *t);

struct chat_input {
    /* A JSON object. With `variables` false: {messages, tools, documents, add_generation_prompt,
     * continue_final_message, chat_template_kwargs}, other keys are ignored; add_generation_prompt
     * is true when absent, unless the final message is continued. With `variables` true every key
     * is a variable of the template and nothing is adapted (for `laconic template`); a bos_token or
     * eos_token among them replaces the model's. */
    const char *json;
    size_t len;
    bool variables;
    int64_t now_s;                     /* for strftime_now: seconds since 1970, shown as UTC */
    const struct jinja_limits *limits; /* NULL: jinja_default_limits() */
};

struct rendered {
    char *text; /* UTF-8, with a NUL behind it */
    size_t len;
    struct text_span *spans; /* cover the text; none when it is empty */
    size_t n_spans;
};

/* STATUS_TEMPLATE: the template's own exception (message is its text) or an error in it;
 * STATUS_INVALID: not such an object; STATUS_TOO_LARGE: a limit; STATUS_GONE: the chore was
 * cancelled. chore may be NULL. The stack need is jinja_render's.
 * continue_final_message ends the text right behind the last message's own text (an assistant's
 * prefill); STATUS_INVALID when the template does not print it. */
enum status chat_template_render(const struct chat_template *t, const struct chat_input *in,
                                 struct chore *chore, struct rendered *out,
                                 struct error *e) LAC_MUST_USE;
void rendered_free(struct rendered *r);

#endif
