/* json_doc.h: a request body read as JSON (RFC 8259): json_scan, then jansson over the condensed
 * text.
 *
 * Rules: one object; nesting at most 64; no key twice in one object; numbers that fit (integers
 * int64, reals double); UTF-8 without lone surrogates; U+0000 is allowed in strings, not in keys;
 * numbers of values and members bounded (json_scan.h). All else is STATUS_INVALID, with the
 * top-level field at fault where it is known.
 * Every function that takes a chore yields in it (core/chore.h) and may be given NULL. When the
 * chore is cancelled they return STATUS_GONE. Strings: a json_t string may be a reference to the
 * source; read strings only through here. Ownership: the body must stay unchanged while the
 * document is in use.
 */
#ifndef LAC_IO_JSON_DOC_H
#define LAC_IO_JSON_DOC_H

#include <jansson.h>

#include "core/chore.h"
#include "core/request.h"
#include "core/status.h"
#include "io/bump.h"
#include "io/body.h"
#include "io/json_scan.h"

struct json_doc {
    const struct body *body;
    struct chore *chore;
    struct buffer condensed;
    struct json_scan scan;
    json_t *root;
};

enum status json_doc_read(struct json_doc *d, const struct body *body, struct chore *chore,
                          struct error *e);
/* Also after a failed read. Yields as it frees. */
void json_doc_free(struct json_doc *d);

/* Is the string equal to this text? (A long string never is.) */
bool json_doc_equals(const struct json_doc *d, const json_t *string, const char *text);
/* An upper bound of the text's bytes. */
size_t json_doc_text_bytes(const struct json_doc *d, const json_t *string);
/* The text, unescaped, copied into the arena. */
enum status json_doc_text(struct json_doc *d, const json_t *string, struct bump *arena,
                          struct text *out, struct error *e);
/* Its beginning: at most `most` bytes, whole characters. */
enum status json_doc_text_head(struct json_doc *d, const json_t *string, struct bump *arena,
                               size_t most, struct text *out, struct error *e);
/* Appends what stands between the quotes of the string, escaped. */
enum status json_doc_write_inner(struct json_doc *d, const json_t *string, struct buffer *out);
/* Appends the value as JSON text. Yields. */
enum status json_doc_write(struct json_doc *d, const json_t *value, struct buffer *out);
/* Checkpoint of the document's chore. */
enum status json_doc_yield(struct json_doc *d);

#endif
