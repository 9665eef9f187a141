#include "io/http.h"

#include <string.h>
#include <strings.h>

#include "core/check.h"

enum {
    /* Framing allowed per body byte, and once: one-byte chunks carry five. */
    EXTRA_PER_BODY_BYTE = 16,
    EXTRA_BYTES = 64 * 1024,
};

static struct http *self(llhttp_t *p) {
    return p->data;
}

static int refuse(struct http *h, int status, const char *text) {
    if (h->error_status == 0) {
        h->error_status = status;
        h->error_text = text;
    }
    return HPE_USER;
}

static int on_message_begin(llhttp_t *p) {
    struct http *h = self(p);
    memset(&h->head, 0, sizeof h->head);
    h->target_n = h->name_n = h->value_n = 0;
    h->n_hosts = 0;
    h->body_bytes = 0;
    h->in_head = true;
    return 0;
}

static int on_url(llhttp_t *p, const char *at, size_t n) {
    struct http *h = self(p);
    if (n > sizeof h->target - h->target_n) return refuse(h, 414, "the request target is too long");
    memcpy(h->target + h->target_n, at, n);
    h->target_n += n;
    return 0;
}

static int on_field(llhttp_t *p, const char *at, size_t n) {
    struct http *h = self(p);
    if (!h->in_head) return 0; /* a trailer */
    for (size_t i = 0; i < n; i++) {
        const char c = at[i];
        if (h->name_n < sizeof h->name) h->name[h->name_n] = c >= 'A' && c <= 'Z' ? c + 32 : c;
        h->name_n++;
    }
    return 0;
}

static int on_value(llhttp_t *p, const char *at, size_t n) {
    struct http *h = self(p);
    if (!h->in_head) return 0;
    for (size_t i = 0; i < n; i++) {
        if (h->value_n < sizeof h->value) h->value[h->value_n] = at[i];
        h->value_n++;
    }
    return 0;
}

static bool name_is(const struct http *h, const char *name) {
    return h->name_n == strlen(name) && memcmp(h->name, name, h->name_n) == 0;
}

static bool value_is(const struct http *h, const char *value) {
    size_t n = h->value_n;
    while (n > 0 && n <= sizeof h->value && (h->value[n - 1] == ' ' || h->value[n - 1] == '\t'))
        n--;
    return n == strlen(value) && strncasecmp(h->value, value, n) == 0;
}

static int on_header_done(llhttp_t *p) {
    struct http *h = self(p);
    if (!h->in_head) return 0;
    int rc = 0;
    if (name_is(h, "host")) {
        h->n_hosts++;
    } else if (name_is(h, "expect")) {
        if (value_is(h, "100-continue"))
            h->head.expect_continue = true;
        else if (!value_is(h, ""))
            rc = refuse(h, 417, "only 100-continue can be expected");
    } else if (name_is(h, "transfer-encoding")) {
        if (!value_is(h, "chunked"))
            rc = refuse(h, 501, "only the chunked transfer coding is known");
    } else if (name_is(h, "content-encoding")) {
        if (!value_is(h, "identity") && h->value_n != 0)
            rc = refuse(h, 415, "compressed bodies are not taken");
    }
    h->name_n = h->value_n = 0;
    return rc;
}

/* "http://host/path?query" and "/path?query" both become "/path". */
static int split_target(struct http *h) {
    const char *t = h->target;
    size_t n = h->target_n;
    if (n >= 7 && strncasecmp(t, "http://", 7) == 0) {
        size_t host_end = 7; /* a path may be missing, with or without a query behind it */
        while (host_end < n && strchr("/?#", t[host_end]) == NULL) host_end++;
        if (host_end == 7) return refuse(h, 400, "the request target names no host");
        t += host_end;
        n -= host_end;
    }
    const char *query = memchr(t, '?', n);
    if (query != NULL) n = (size_t)(query - t);
    const char *fragment = memchr(t, '#', n);
    if (fragment != NULL) n = (size_t)(fragment - t);
    if (n == 0) {
        strcpy(h->head.path, "/");
        return 0;
    }
    if (n >= sizeof h->head.path) return refuse(h, 414, "the request target is too long");
    memcpy(h->head.path, t, n);
    h->head.path[n] = '\0';
    return 0;
}

static int on_headers_complete(llhttp_t *p) {
    struct http *h = self(p);
    h->in_head = false;
    h->head_done = true;
    h->extra_bytes = 0;
    struct http_head *d = &h->head;
    if (p->http_major != 1) return refuse(h, 505, "HTTP/1.1 and HTTP/1.0 are spoken here");
    d->http_1_0 = p->http_minor == 0;
    if (d->http_1_0) d->expect_continue = false; /* RFC 9110, 10.1.1: to be ignored */
    if (h->n_hosts > 1 || (h->n_hosts == 0 && !d->http_1_0))
        return refuse(h, 400, "exactly one Host header is needed");
    switch (p->method) {
    case HTTP_GET:
        d->verb = HTTP_VERB_GET;
        break;
    case HTTP_HEAD:
        d->verb = HTTP_VERB_HEAD;
        break;
    case HTTP_POST:
        d->verb = HTTP_VERB_POST;
        break;
    case HTTP_OPTIONS:
        d->verb = HTTP_VERB_OPTIONS;
        break;
    default:
        d->verb = HTTP_VERB_OTHER;
        break;
    }
    d->chunked = (p->flags & F_CHUNKED) != 0;
    d->content_bytes = !d->chunked && (p->flags & F_CONTENT_LENGTH) ? p->content_length : 0;
    d->has_body = d->chunked || d->content_bytes > 0;
    d->keep_alive = llhttp_should_keep_alive(p) != 0;
    /* No other protocol is offered: an Upgrade is ignored (RFC 9110, 7.8). */
    p->upgrade = 0;
    if (split_target(h) != 0) return HPE_USER;
    return HPE_PAUSED;
}

static int on_body(llhttp_t *p, const char *at, size_t n) {
    struct http *h = self(p);
    h->body_bytes += n;
    if (!h->on_body(h->arg, at, n)) return refuse(h, 413, "the body is too large");
    return 0;
}

static int on_message_complete(llhttp_t *p) {
    struct http *h = self(p);
    h->message_done = true;
    return HPE_PAUSED;
}

static const llhttp_settings_t settings = {
    .on_message_begin = on_message_begin,
    .on_url = on_url,
    .on_header_field = on_field,
    .on_header_value = on_value,
    .on_header_value_complete = on_header_done,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

void http_init(struct http *h, size_t max_head_bytes, http_body_fn *on_body_fn, void *arg) {
    memset(h, 0, sizeof *h);
    llhttp_init(&h->parser, HTTP_REQUEST, &settings);
    h->parser.data = h;
    h->max_head_bytes = max_head_bytes;
    h->on_body = on_body_fn;
    h->arg = arg;
    h->in_head = true;
}

bool http_begun(const struct http *h) {
    return h->begun;
}

/* At most as many bytes as the head may still have, so that a huge one is never walked through. */
static size_t clip_to_head(const struct http *h, size_t n) {
    if (!h->in_head) return n;
    const size_t left = h->max_head_bytes + 1 - h->head_bytes;
    return n < left ? n : left;
}

enum http_result http_feed(struct http *h, const char *bytes, size_t n, size_t *consumed) {
    *consumed = 0;
    if (h->error_status != 0) return HTTP_BAD;
    if (llhttp_get_errno(&h->parser) == HPE_PAUSED) llhttp_resume(&h->parser);
    h->head_done = h->message_done = false;
    if (n > 0) h->begun = true;
    /* Once also without bytes: a message without body ends with its head. */
    do {
        const bool was_head = h->in_head;
        const char *at = bytes + *consumed;
        const size_t part = clip_to_head(h, n - *consumed);
        const size_t body_before = h->body_bytes;
        const llhttp_errno_t err = llhttp_execute(&h->parser, at, part);
        size_t used = part;
        if (err != HPE_OK) {
            const char *pos = llhttp_get_error_pos(&h->parser);
            used = pos != NULL ? (size_t)(pos - at) : 0;
        }
        *consumed += used;
        if (was_head) {
            h->head_bytes += used;
            if (h->head_bytes > h->max_head_bytes) {
                refuse(h, 431, "the request head is too large");
                return HTTP_BAD;
            }
        } else {
            h->extra_bytes += used - (h->body_bytes - body_before);
            if (h->extra_bytes > EXTRA_BYTES + EXTRA_PER_BODY_BYTE * h->body_bytes) {
                refuse(h, 400, "too much chunk framing");
                return HTTP_BAD;
            }
        }
        if (err == HPE_PAUSED) {
            if (h->head_done) return HTTP_HEAD_DONE;
            CHECK(h->message_done);
            h->head_bytes = 0;
            h->in_head = true;
            h->begun = false;
            return HTTP_MESSAGE_DONE;
        }
        if (err != HPE_OK) {
            refuse(h, 400, "the request is not HTTP/1.1");
            return HTTP_BAD;
        }
    } while (*consumed < n);
    return HTTP_MORE;
}

const char *http_reason(int status) {
    switch (status) {
    case 100:
        return "Continue";
    case 200:
        return "OK";
    case 204:
        return "No Content";
    case 400:
        return "Bad Request";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 408:
        return "Request Timeout";
    case 413:
        return "Content Too Large";
    case 414:
        return "URI Too Long";
    case 415:
        return "Unsupported Media Type";
    case 417:
        return "Expectation Failed";
    case 431:
        return "Request Header Fields Too Large";
    case 500:
        return "Internal Server Error";
    case 501:
        return "Not Implemented";
    case 503:
        return "Service Unavailable";
    case 504:
        return "Gateway Timeout";
    case 505:
        return "HTTP Version Not Supported";
    default:
        return "Unknown";
    }
}

void http_write_head(struct buffer *out, int status, const char *content_type,
                     int64_t content_bytes, bool keep_alive, const char *extra) {
    buffer_printf(out, "HTTP/1.1 %d %s\r\n", status, http_reason(status));
    if (content_type != NULL) buffer_printf(out, "Content-Type: %s\r\n", content_type);
    if (content_bytes >= 0)
        buffer_printf(out, "Content-Length: %lld\r\n", (long long)content_bytes);
    else if (content_bytes == HTTP_CHUNKED)
        buffer_puts(out, "Transfer-Encoding: chunked\r\n");
    buffer_printf(out, "Connection: %s\r\n%s\r\n", keep_alive ? "keep-alive" : "close", extra);
}
