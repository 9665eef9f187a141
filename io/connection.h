/* connection.h: the client connections of a server: bytes in, HTTP requests out to the application,
 * answers back in order, with limits and timeouts.
 *
 * One request at a time per connection; what a client pipelines waits (held, up to 64 KiB, then the
 * kernel holds it). Answers are appended to a chain of chunks and leave at the next flush. After an
 * error that makes the stream unusable, and after `Connection: close`, the answer is sent, the
 * sending side shut down, and what still arrives is dropped for a short time, so that the answer is
 * not lost to a reset.
 *
 * A client that closes its sending side while it waits for an answer counts as gone: it cannot be
 * told from one that left.
 *
 * Time: a head must be complete within head_ns of its first byte; a body must move by 16 KiB (or
 * end) within body_ns; a kept connection may idle idle_ns; a send must move within write_ns.
 * Ownership: `connections` owns everything here; the application may hang its own state on
 * `exchange`, which is NULL between requests.
 */
#ifndef LAC_IO_CONNECTION_H
#define LAC_IO_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buffer.h"
#include "core/status.h"
#include "io/body.h"
#include "io/chain.h"
#include "io/http.h"
#include "io/ring.h"

enum {
    CONNECTION_HIGH_WATER_BYTES = 256 * 1024,
    CONNECTION_HELD_BYTES = 64 * 1024,
    CONNECTION_DISCARD_BYTES =
        64 * 1024, /* a refused request's body up to this is read and dropped */
};

struct connection_limits {
    uint32_t max_connections;
    size_t max_head_bytes;
    size_t max_body_bytes;   /* <= BODY_MAX_BYTES */
    size_t all_bodies_bytes; /* of all connections together */
    size_t output_bytes;     /* chunk pool: answers not yet sent, of all connections */
    uint64_t head_ns, body_ns, idle_ns, write_ns, linger_ns;
};

struct connection;
struct connection_app {
    void *arg;
    /* A head has come. Either returns true (the body may come), or answers and returns false. */
    bool (*head)(void *arg, struct connection *c);
    /* The request is whole; its body is c->body. The application answers now or later. */
    void (*request)(void *arg, struct connection *c);
    /* No request can be read here: answer with this error; the connection then closes. */
    void (*malformed)(void *arg, struct connection *c, int status, const char *text);
    /* The client went away before the answer was complete; c->exchange must be let go of. */
    void (*gone)(void *arg, struct connection *c);
};

enum connection_state { CONNECTION_FREE, CONNECTION_OPEN, CONNECTION_LINGER, CONNECTION_CLOSING };

struct connections;
struct connection {
    struct connections *set;
    uint32_t socket;
    bool local; /* over a Unix socket */
    enum connection_state state;
    struct http http;
    struct body body;
    uint64_t received_ns; /* first byte of the current request */
    void *exchange;
    /* private */
    struct chain out, held;
    uint64_t deadline_ns;
    size_t body_mark; /* the body deadline moves when this many bytes have come */
    bool busy;        /* a request is with the application */
    bool refused;     /* answered at its head; the body is dropped as it comes */
    bool parsing;     /* inside feed() */
    bool sending;
    bool close_after; /* close when everything is sent */
    bool end_of_input;
    bool framed;  /* the answer being sent is chunked */
    bool no_body; /* it answers HEAD */
    bool keep;
    bool in_dirty, in_ready;
};

struct connections {
    struct ring *ring;
    struct connection_limits limits;
    struct connection_app app;
    struct connection *all; /* [max_connections], by socket number */
    struct chunk_pool chunks;
    size_t bodies_bytes;
    uint32_t n_open;
    bool draining;
    uint32_t *dirty, n_dirty; /* have output to start sending */
    uint32_t *ready, n_ready; /* may have held input to go on with */
};

enum status connections_open(struct connections *set, struct ring *ring,
                             const struct connection_limits *limits,
                             const struct connection_app *app, struct error *e);
/* After the ring is closed. No exchange may be left. */
void connections_close(struct connections *set);

/* A new socket. Takes over fd; beyond the limit it is told 503 and closed. */
void connections_accept(struct connections *set, int fd);
void connections_event(struct connections *set, const struct ring_event *event);
/* Goes on with input that waited for an answer. Returns true if some is still waiting. */
bool connections_advance(struct connections *set);
/* Starts sending whatever waits. */
void connections_flush(struct connections *set);
/* From now on each answer closes its connection; idle ones close at once. */
void connections_drain(struct connections *set);
/* Nobody is in the middle of a request or an answer. */
bool connections_quiet(const struct connections *set);

/* The body becomes the caller's, until it is dropped. */
void connection_take_body(struct connection *c, struct body *out);
void connections_drop_body(struct connections *set, struct body *body);

/* Whole answer. The chain is taken over; it may be NULL. `extra`: header lines or "". */
void connection_reply(struct connection *c, int status, const char *content_type,
                      struct chain *content, const char *extra);
void connection_reply_bytes(struct connection *c, int status, const char *content_type,
                            const void *bytes, size_t n, const char *extra);
/* An answer in pieces: begin, write*, end. */
void connection_begin(struct connection *c, const char *content_type, const char *extra);
void connection_write(struct connection *c, const void *bytes, size_t n);
void connection_end(struct connection *c);
/* Cuts the connection: what is queued is dropped. gone() is not called. */
void connection_abort(struct connection *c);
/* Below the high-water mark, and somebody is still there. */
bool connection_writable(const struct connection *c);

#endif
