/* openai_parse.h: a request body in the reading: what io/openai_parse.c and io/openai_chat.c share.
 * Private to them.
 */
#ifndef LAC_IO_OPENAI_PARSE_H
#define LAC_IO_OPENAI_PARSE_H

#include "io/json_doc.h"
#include "io/openai.h"

/* One body being read. The first failure is kept; what follows it does nothing. */
struct parse {
    struct json_doc doc;
    struct openai_request *out;
    struct request *r;
    struct error *e;
    enum status status;
};

/* All return false and keep the first failure. */
bool parse_fail(struct parse *p, enum status s, const char *field, const char *message);
bool parse_invalid(struct parse *p, const char *field, const char *what); /* "FIELD WHAT" */
bool parse_unsupported(struct parse *p, const char *field);
bool parse_no_memory(struct parse *p);

/* The top-level member; NULL if absent, null or after a failure. */
json_t *parse_get(struct parse *p, const char *field);
/* True if it was given; a failure if it is no boolean. */
bool parse_get_bool(struct parse *p, const char *field, bool *out);

/* The user's text is over REQUEST_LINT_BYTES. */
extern const char parse_lint_limit[];

/* The fields of a chat request that no other has; fills chat_json. */
void parse_chat(struct parse *p);

#endif
