/* http.h: HTTP/1.1 and 1.0 requests read from a byte stream (RFC 9112, through llhttp in strict
 * mode), and the heads of responses.
 *
 * http_feed takes bytes as they come and stops at two places: after a head (HTTP_HEAD_DONE: the
 * caller looks at `head`, decides, and calls again, with no bytes if there are none) and after a
 * message (HTTP_MESSAGE_DONE: the next byte is the next request's). Hostile input: heads are
 * bounded by max_head_bytes, targets by HTTP_TARGET_BYTES, chunk framing and trailers in proportion
 * to the body; HTTP_BAD is final, with the status to answer in `error_status` and a line in
 * `error_text`; the stream cannot be used after it.
 */
#ifndef LAC_IO_HTTP_H
#define LAC_IO_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buffer.h"
#include <llhttp.h>

enum { HTTP_TARGET_BYTES = 2048 };

enum http_verb {
    HTTP_VERB_GET,
    HTTP_VERB_HEAD,
    HTTP_VERB_POST,
    HTTP_VERB_OPTIONS,
    HTTP_VERB_OTHER
};

enum http_result { HTTP_MORE, HTTP_HEAD_DONE, HTTP_MESSAGE_DONE, HTTP_BAD };

struct http_head {
    enum http_verb verb;
    char path[HTTP_TARGET_BYTES]; /* as sent, without query, NUL-terminated */
    bool http_1_0;
    bool keep_alive;
    bool expect_continue;
    bool chunked;
    bool has_body;          /* chunked, or content_bytes > 0 */
    uint64_t content_bytes; /* 0 when chunked */
};

typedef bool http_body_fn(void *arg, const char *bytes, size_t n); /* false: stop, HTTP_BAD 413 */

struct http {
    llhttp_t parser;
    http_body_fn *on_body;
    void *arg;
    size_t max_head_bytes;
    struct http_head head;
    int error_status;       /* 400, 413, 414, 417, 431, 501, 505 */
    const char *error_text; /* static */
    /* private */
    size_t target_n;
    char target[HTTP_TARGET_BYTES];
    char name[32], value[32];
    size_t name_n, value_n;
    uint32_t n_hosts;
    size_t head_bytes;  /* of this message, so far */
    size_t extra_bytes; /* chunk framing and trailers */
    size_t body_bytes;
    bool in_head, head_done, message_done, begun;
};

void http_init(struct http *h, size_t max_head_bytes, http_body_fn *on_body, void *arg);
enum http_result http_feed(struct http *h, const char *bytes, size_t n, size_t *consumed);
/* Has any byte of a request come since the last one was complete? */
bool http_begun(const struct http *h);

const char *http_reason(int status);
enum { HTTP_CHUNKED = -1, HTTP_UNFRAMED = -2 };
/* Status line, headers and the blank line. content_bytes: the length, or HTTP_CHUNKED, or
 * HTTP_UNFRAMED (no body, or one that the end of the connection ends).
 * `extra` is whole header lines, each ending in CRLF, or "". */
void http_write_head(struct buffer *out, int status, const char *content_type,
                     int64_t content_bytes, bool keep_alive, const char *extra);

#endif
