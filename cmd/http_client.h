/* http_client.h: one HTTP request to a running server, for the commands that ask one. Blocking,
 * HTTP/1.1, plain, a connection each; "http://HOST[:PORT]" (port 80 if none) or "unix:PATH".
 *
 * Errors: STATUS_INVALID (the URL), STATUS_IO (nobody there, a broken answer, silence),
 * STATUS_TOO_LARGE. Threads: any, each its own request.
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

struct http_client_request {
    const char *url, *method, *path;
    const char *body; /* JSON, or NULL */
    uint32_t seconds; /* of silence before it fails; 0: HTTP_CLIENT_SECONDS */
};

/* A piece of the reply's content, as it comes in. */
typedef void http_client_piece(void *user, int http_status, const char *bytes, size_t n);

LAC_MUST_USE enum status http_client_stream(const struct http_client_request *q,
                                            http_client_piece *piece, void *user, int *http_status,
                                            struct error *e);

/* Why a server refuses, from its reply (NULL: not JSON); lives as long as that. */
const char *http_client_reason(const json_t *reply);

#endif
