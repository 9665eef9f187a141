/* jinja_json.h: JSON into template values.
 *
 * Everything made here is marked as coming from the request when `from_user` is set (keys too).
 * Objects keep the order of the text. Nesting is limited to JINJA_MAX_NESTING, integers to 64 bits.
 * Values are copied into c; the JSON may be freed. Failures are recorded in c (jinja_value.h).
 */
#ifndef LAC_MODELS_JINJA_JSON_H
#define LAC_MODELS_JINJA_JSON_H

#include <jansson.h>

#include "models/jinja_value.h"

bool jinja_from_json(struct jinja_ctx *c, const json_t *j, bool from_user, struct jinja_value *out);
/* JSON text that may come from anywhere: NULL with e filled also when it is nested deeper than
 * JINJA_MAX_NESTING, because the library recurses with the text and a chore's stack is small. The
 * chore (may be NULL) pauses as it reads; cancelled, the text is cut there. */
json_t *jinja_json_load(struct chore *chore, const char *text, size_t len, json_error_t *e);
/* Any JSON value as text: STATUS_INVALID when it is not JSON. */
bool jinja_from_json_text(struct jinja_ctx *c, const char *text, size_t len, bool from_user,
                          struct jinja_value *out);

#endif
