#include "io/connection.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <netinet/in.h>
#include <netinet/tcp.h>

#include "core/check.h"
#include "core/clock.h"

enum { BODY_STEP_BYTES = 16 * 1024 };

static void set_deadline(struct connection *c, uint64_t in_ns) {
    c->deadline_ns = in_ns != 0 ? clock_now_ns() + in_ns : 0;
    ring_set_deadline(c->set->ring, c->socket, c->deadline_ns);
}

static void mark_dirty(struct connection *c) {
    if (c->in_dirty || c->state != CONNECTION_OPEN) return;
    c->in_dirty = true;
    c->set->dirty[c->set->n_dirty++] = c->socket;
}

static void mark_ready(struct connection *c) {
    if (c->in_ready || c->state != CONNECTION_OPEN) return;
    c->in_ready = true;
    c->set->ready[c->set->n_ready++] = c->socket;
}

void connections_drop_body(struct connections *set, struct body *body) {
    set->bodies_bytes -= body->bytes;
    body_clear(body);
}

void connection_take_body(struct connection *c, struct body *out) {
    *out = c->body;
    memset(&c->body, 0, sizeof c->body);
}

static void drop_body(struct connection *c) {
    connections_drop_body(c->set, &c->body);
}

/* The last thing done with a connection: its memory is let go of, and the ring closes it. The chunk
 * being sent must stay until then, so `out` is cleared when the ring says so. */
static void close_now(struct connection *c) {
    CHECK(c->exchange == NULL);
    drop_body(c);
    chain_clear(&c->held, &c->set->chunks);
    c->state = CONNECTION_CLOSING;
    c->busy = false;
    ring_detach(c->set->ring, c->socket);
}

static void go_away(struct connection *c) {
    if (c->busy) {
        c->busy = false;
        c->set->app.gone(c->set->app.arg, c);
    }
    close_now(c);
}

void connection_abort(struct connection *c) {
    c->exchange = NULL;
    if (c->state == CONNECTION_OPEN || c->state == CONNECTION_LINGER) close_now(c);
}

/* ---- input ---- */

static bool take_body(void *arg, const char *bytes, size_t n) {
    struct connection *c = arg;
    struct connections *set = c->set;
    if (c->refused) return true;
    if (c->body.bytes + n > set->limits.max_body_bytes) return false;
    if (set->bodies_bytes + n > set->limits.all_bodies_bytes || !body_append(&c->body, bytes, n)) {
        c->http.error_status = 503;
        c->http.error_text = "too many large requests at once";
        return false;
    }
    set->bodies_bytes += n;
    if (c->body.bytes >= c->body_mark) {
        c->body_mark = c->body.bytes + BODY_STEP_BYTES;
        set_deadline(c, set->limits.body_ns);
    }
    return true;
}

static bool may_parse(const struct connection *c) {
    return c->state == CONNECTION_OPEN && !c->busy && !c->close_after &&
           c->out.bytes < CONNECTION_HIGH_WATER_BYTES;
}

static void on_head(struct connection *c) {
    struct connections *set = c->set;
    const struct http_head *head = &c->http.head;
    c->keep = head->keep_alive && !set->draining;
    c->no_body = head->verb == HTTP_VERB_HEAD;
    c->refused = true; /* what is answered before the body has come is a refusal */
    if (head->content_bytes > set->limits.max_body_bytes) {
        c->keep = false;
        set->app.malformed(set->app.arg, c, 413, "the body is too large");
        return;
    }
    /* Nobody knows whether the body of a refused expectation comes; a long one is not waited for.
     */
    const bool keep = c->keep;
    if (head->expect_continue || head->chunked || head->content_bytes > CONNECTION_DISCARD_BYTES)
        c->keep = keep && !head->has_body;
    if (!set->app.head(set->app.arg, c)) {
        if (head->has_body && c->state == CONNECTION_OPEN) set_deadline(c, set->limits.body_ns);
        return;
    }
    c->keep = keep;
    c->refused = false;
    if (!head->has_body) return;
    if (head->expect_continue) {
        static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
        if (!chain_append(&c->out, &set->chunks, go_on, sizeof go_on - 1)) c->close_after = true;
        mark_dirty(c);
    }
    c->body_mark = BODY_STEP_BYTES;
    set_deadline(c, set->limits.body_ns);
}

static void next_request(struct connection *c) {
    set_deadline(c, c->set->limits.idle_ns);
    c->refused = false;
    c->no_body = false;
    c->received_ns = 0;
}

/* Parses what may be parsed; returns the bytes used. */
static size_t feed(struct connection *c, const char *bytes, size_t n) {
    struct connections *set = c->set;
    size_t used = 0;
    bool after_head = false;
    c->parsing = true;
    while ((used < n || after_head) && may_parse(c)) {
        if (c->received_ns == 0) {
            c->received_ns = clock_now_ns();
            set_deadline(c, set->limits.head_ns);
        }
        size_t took = 0;
        const enum http_result r = http_feed(&c->http, bytes + used, n - used, &took);
        used += took;
        after_head = r == HTTP_HEAD_DONE;
        if (r == HTTP_HEAD_DONE) {
            on_head(c);
        } else if (r == HTTP_MESSAGE_DONE) {
            if (c->refused) {
                next_request(c);
                continue;
            }
            c->busy = true;
            set_deadline(c, 0);
            set->app.request(set->app.arg, c);
        } else if (r == HTTP_BAD) {
            c->keep = false;
            if (c->refused)
                c->close_after = true; /* it has its answer */
            else
                set->app.malformed(set->app.arg, c, c->http.error_status, c->http.error_text);
            mark_dirty(c);
        }
    }
    c->parsing = false;
    return used;
}

/* Bytes in. Where TLS comes, it stands here: ciphertext in, and what it decrypts goes on below. */
static void receive(struct connection *c, const char *bytes, size_t n) {
    struct connections *set = c->set;
    if (c->state == CONNECTION_LINGER || c->close_after) return;
    size_t used = 0;
    if (c->held.bytes == 0) used = feed(c, bytes, n);
    if (used == n || c->state != CONNECTION_OPEN || c->close_after) return;
    if (!chain_append_spare(&c->held, &set->chunks, bytes + used, n - used)) {
        go_away(c);
        return;
    }
    if (c->held.bytes > CONNECTION_HELD_BYTES) ring_set_receiving(set->ring, c->socket, false);
}

/* Held bytes, in the order they came. */
static void feed_held(struct connection *c) {
    struct connections *set = c->set;
    const char *bytes;
    while (c->held.bytes > 0 && may_parse(c)) {
        const size_t n = chain_front(&c->held, &bytes);
        const size_t used = feed(c, bytes, n);
        if (c->state != CONNECTION_OPEN) return;
        chain_consume(&c->held, &set->chunks, used);
    }
    if (c->close_after) chain_clear(&c->held, &set->chunks);
    if (c->held.bytes <= CONNECTION_HELD_BYTES / 2) ring_set_receiving(set->ring, c->socket, true);
}

bool connections_advance(struct connections *set) {
    const uint32_t n = set->n_ready;
    for (uint32_t i = 0; i < n; i++) {
        struct connection *c = &set->all[set->ready[i]];
        c->in_ready = false;
        if (c->state == CONNECTION_OPEN) feed_held(c);
    }
    /* Those that became ready meanwhile stand behind. */
    memmove(set->ready, set->ready + n, (set->n_ready - n) * sizeof *set->ready);
    set->n_ready -= n;
    return set->n_ready != 0;
}

/* ---- output ---- */

static void finish(struct connection *c) {
    struct connections *set = c->set;
    /* Busy: its answer was cut for want of memory, so nobody waits for the rest. */
    if (c->end_of_input || c->busy) {
        go_away(c);
        return;
    }
    ring_shutdown(set->ring, c->socket);
    c->state = CONNECTION_LINGER;
    chain_clear(&c->held, &set->chunks);
    ring_set_receiving(set->ring, c->socket, true);
    set_deadline(c, set->limits.linger_ns);
}

/* Bytes out. Where TLS comes, it stands here: plaintext from `out`, ciphertext to the ring. */
static void start_sending(struct connection *c) {
    const char *bytes;
    if (c->sending || c->state != CONNECTION_OPEN) return;
    const size_t n = chain_front(&c->out, &bytes);
    if (n == 0) {
        if (c->close_after) finish(c);
        return;
    }
    c->sending = true;
    ring_send(c->set->ring, c->socket, bytes, n, c->set->limits.write_ns);
}

void connections_flush(struct connections *set) {
    for (uint32_t i = 0; i < set->n_dirty; i++) {
        struct connection *c = &set->all[set->dirty[i]];
        c->in_dirty = false;
        start_sending(c);
    }
    set->n_dirty = 0;
}

static void append(struct connection *c, const void *bytes, size_t n) {
    if (c->state != CONNECTION_OPEN || n == 0) return;
    /* No memory for the rest of an answer: the client must see that it is cut, so nothing follows.
     */
    if (!c->close_after && !chain_append(&c->out, &c->set->chunks, bytes, n)) {
        c->keep = false;
        c->framed = false;
        c->close_after = true;
    }
    mark_dirty(c);
}

static void answered(struct connection *c) {
    if (!c->keep) c->close_after = true;
    const bool was_busy = c->busy;
    c->busy = false;
    c->framed = false;
    drop_body(c);
    if (was_busy) next_request(c);
    if (!c->parsing) mark_ready(c);
    mark_dirty(c);
}

static void write_head(struct connection *c, int status, const char *type, int64_t content_bytes,
                       const char *extra) {
    char mem[1024];
    struct buffer b;
    buffer_init_fixed(&b, mem, sizeof mem);
    http_write_head(&b, status, type, content_bytes, c->keep, extra);
    CHECK(!b.full);
    append(c, b.data, b.len);
}

void connection_reply(struct connection *c, int status, const char *content_type,
                      struct chain *content, const char *extra) {
    struct chunk_pool *pool = &c->set->chunks;
    const size_t n = content != NULL ? content->bytes : 0;
    if (c->state == CONNECTION_OPEN) {
        const bool bodiless = status == 204;
        write_head(c, status, content_type, bodiless ? HTTP_UNFRAMED : (int64_t)n, extra);
        if (content != NULL && !c->no_body && !bodiless && !c->close_after)
            chain_join(&c->out, content);
        answered(c);
    }
    if (content != NULL) chain_clear(content, pool);
}

void connection_reply_bytes(struct connection *c, int status, const char *content_type,
                            const void *bytes, size_t n, const char *extra) {
    if (c->state != CONNECTION_OPEN) return;
    write_head(c, status, content_type, status == 204 ? HTTP_UNFRAMED : (int64_t)n, extra);
    if (!c->no_body && status != 204) append(c, bytes, n);
    answered(c);
}

void connection_begin(struct connection *c, const char *content_type, const char *extra) {
    c->framed = !c->http.head.http_1_0;
    if (!c->framed) c->keep = false;
    write_head(c, 200, content_type, c->framed ? HTTP_CHUNKED : HTTP_UNFRAMED, extra);
}

void connection_write(struct connection *c, const void *bytes, size_t n) {
    if (n == 0) return;
    if (!c->framed) {
        append(c, bytes, n);
        return;
    }
    char size[20];
    const int len = snprintf(size, sizeof size, "%zx\r\n", n);
    append(c, size, (size_t)len);
    append(c, bytes, n);
    append(c, "\r\n", 2);
}

void connection_end(struct connection *c) {
    if (c->state != CONNECTION_OPEN) return;
    if (c->framed) append(c, "0\r\n\r\n", 5);
    answered(c);
}

bool connection_writable(const struct connection *c) {
    return c->state == CONNECTION_OPEN && c->out.bytes < CONNECTION_HIGH_WATER_BYTES &&
           !ring_gone(c->set->ring, c->socket);
}

/* ---- events ---- */

static void on_received(struct connection *c, const struct ring_event *ev) {
    if (ev->n > 0) {
        receive(c, ev->data, ev->n);
        return;
    }
    c->end_of_input = true;
    /* Half a close cannot be told from a whole one: who ends its side while it waits is gone, but
     * answers that are ready still go out. */
    if (ev->result < 0 || c->busy || c->state == CONNECTION_LINGER ||
        (c->out.bytes == 0 && !c->sending)) {
        go_away(c);
        return;
    }
    c->close_after = true;
    mark_dirty(c);
}

static void on_sent(struct connection *c, int32_t result) {
    c->sending = false;
    if (result < 0) {
        go_away(c);
        return;
    }
    const bool was_full = c->out.bytes >= CONNECTION_HIGH_WATER_BYTES;
    chain_consume(&c->out, &c->set->chunks, (size_t)result);
    start_sending(c);
    if (was_full && c->out.bytes < CONNECTION_HIGH_WATER_BYTES) mark_ready(c);
}

static void on_expired(struct connection *c) {
    struct connections *set = c->set;
    if (c->deadline_ns == 0 || clock_now_ns() < c->deadline_ns) return; /* it has moved since */
    if (c->state == CONNECTION_OPEN && !c->busy && !c->close_after && http_begun(&c->http) &&
        !c->refused) {
        c->keep = false;
        set->app.malformed(set->app.arg, c, 408, "the request took too long to arrive");
        return;
    }
    if (c->busy) return;
    if (c->sending) { /* a slow reader: the send has its own limit */
        set_deadline(c, set->limits.idle_ns);
        return;
    }
    go_away(c);
}

void connections_event(struct connections *set, const struct ring_event *ev) {
    CHECK(ev->id < set->limits.max_connections);
    struct connection *c = &set->all[ev->id];
    switch (ev->kind) {
    case RING_RECEIVED:
        on_received(c, ev);
        break;
    case RING_SENT:
        on_sent(c, ev->result);
        break;
    case RING_EXPIRED:
        on_expired(c);
        break;
    case RING_CLOSED:
        chain_clear(&c->out, &set->chunks);
        c->state = CONNECTION_FREE;
        set->n_open--;
        break;
    case RING_ACCEPTED:
    case RING_WOKEN:
        break;
    }
}

void connections_accept(struct connections *set, int fd) {
    const uint32_t socket = ring_attach(set->ring, fd);
    if (socket == RING_NONE) {
        static const char busy[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n"
                                   "Content-Length: 0\r\nConnection: close\r\n\r\n";
        (void)!send(fd, busy, sizeof busy - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        (void)shutdown(fd, SHUT_WR);
        close(fd);
        return;
    }
    int domain = 0;
    socklen_t domain_bytes = sizeof domain;
    (void)getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &domain_bytes);
    const int on = 1;
    /* Fails on Unix sockets, which do not wait for more anyway. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct connection *c = &set->all[socket];
    const bool in_dirty = c->in_dirty, in_ready = c->in_ready;
    memset(c, 0, sizeof *c);
    c->in_dirty = in_dirty;
    c->in_ready = in_ready;
    c->set = set;
    c->socket = socket;
    c->local = domain == AF_UNIX;
    c->state = CONNECTION_OPEN;
    http_init(&c->http, set->limits.max_head_bytes, take_body, c);
    set->n_open++;
    set_deadline(c, set->limits.head_ns);
}

void connections_drain(struct connections *set) {
    set->draining = true;
    for (uint32_t i = 0; i < set->limits.max_connections; i++) {
        struct connection *c = &set->all[i];
        if (c->state != CONNECTION_OPEN) continue;
        c->keep = false;
        if (!c->busy && !http_begun(&c->http)) {
            c->close_after = true;
            mark_dirty(c);
        }
    }
}

bool connections_quiet(const struct connections *set) {
    uint32_t left = set->n_open;
    for (uint32_t i = 0; i < set->limits.max_connections && left > 0; i++) {
        const struct connection *c = &set->all[i];
        if (c->state == CONNECTION_FREE) continue;
        left--;
        if (c->state != CONNECTION_OPEN || c->busy || c->sending || c->out.bytes != 0 ||
            http_begun(&c->http))
            return false;
    }
    return true;
}

enum status connections_open(struct connections *set, struct ring *ring,
                             const struct connection_limits *limits,
                             const struct connection_app *app, struct error *e) {
    memset(set, 0, sizeof *set);
    set->ring = ring;
    set->limits = *limits;
    set->app = *app;
    const size_t n = limits->max_connections;
    set->all = calloc(n, sizeof *set->all);
    set->dirty = calloc(3 * n, sizeof *set->dirty);
    if (set->all == NULL || set->dirty == NULL) {
        free(set->all);
        free(set->dirty);
        memset(set, 0, sizeof *set);
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for %zu connections", n);
    }
    /* Twice: while connections_advance walks the list, each may come onto it again. */
    set->ready = set->dirty + n;
    const enum status s = chunk_pool_init(&set->chunks, limits->output_bytes, e);
    if (s != STATUS_OK) {
        free(set->all);
        free(set->dirty);
        memset(set, 0, sizeof *set);
    }
    return s;
}

void connections_close(struct connections *set) {
    if (set->all == NULL) return;
    for (uint32_t i = 0; i < set->limits.max_connections; i++) {
        struct connection *c = &set->all[i];
        if (c->state == CONNECTION_FREE) continue;
        body_clear(&c->body);
        chain_clear(&c->out, &set->chunks);
        chain_clear(&c->held, &set->chunks);
    }
    chunk_pool_free(&set->chunks);
    free(set->all);
    free(set->dirty);
    memset(set, 0, sizeof *set);
}
