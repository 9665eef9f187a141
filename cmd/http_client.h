/* http_client.h: one HTTP request to a running server, for the commands that ask one. Blocking,
 * HTTP/1.1, plain; "http://HOST[:PORT]" (port 80 if none) or "unix:PATH".
 *
 * Errors: STATUS_INVALID (the URL), STATUS_IO (nobody there, a broken answer, silence for
 * HTTP_CLIENT_SECONDS), STATUS_TOO_LARGE. The reply is whatever stands behind the head.
 */
#ifndef LAC_CMD_HTTP_CLIENT_H
#define LAC_CMD_HTTP_CLIENT_H

#include <jansson.h>

#include "core/buffer.h"
#include "core/status.h"

enum { HTTP_CLIENT_SECONDS = 30, HTTP_CLIENT_MAX_BYTES = 16 << 20 };

/* What to ask a server, and the reply read as JSON. A reply of another status than 200 is an error:
 * the message is the server's own. *out is the caller's (json_decref), NULL on failure. */
LAC_MUST_USE enum status http_client_json(const char *url, const char *method, const char *path,
                                          json_t **out, struct error *e);

/* `out` is a growing buffer. */
LAC_MUST_USE enum status http_client_call(const char *url, const char *method, const char *path,
                                          int *http_status, struct buffer *out, struct error *e);

#endif
