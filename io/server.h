/* server.h: the HTTP side of the process, whole: sockets, connections, routes, answers. The loop is
 * the caller's:
 *
 *     for (;;) {
 *         server_turn(server, work ? 0 : time until the scheduler's next deadline);
 *         work = tick(scheduler);
 *     }
 *
 * server_turn flushes what the last tick produced, waits, and dispatches: it parses, submits
 * requests and cancels those whose clients left. Reading bodies of more than SERVER_CHORE_BYTES and
 * writing long token lists is cut in slices, of which one turn runs at most about 200 us.
 * server_reap may be called between two layers of a step: it only collects (io/ring.h) and never
 * calls back.
 *
 * The service is how requests reach the scheduler; cmd/ fills it. Its functions are called from
 * server_turn, never from inside a sink call, and the sink's functions may be called from anywhere
 * but inside `submit`.
 * Threads: everything from the thread that opened the server.
 */
#ifndef LAC_IO_SERVER_H
#define LAC_IO_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buffer.h"
#include "core/request.h"
#include "core/status.h"
#include "io/connection.h"
#include "io/ring.h"

struct metrics; /* core/metric.h */

enum { SERVER_CHORE_BYTES = 16 * 1024 };

enum io_policy_action { IO_POLICY_SHOW, IO_POLICY_PROMOTE, IO_POLICY_REVERT };

struct io_service {
    void *arg;
    enum status (*submit)(void *arg, const struct request *r, const struct request_sink *sink,
                          void *user, request_handle *out, struct error *e);
    void (*cancel)(void *arg, request_handle h);
    bool (*ready)(void *arg);   /* can serve now: warm, and not draining */
    void (*refresh)(void *arg); /* bring the gauges up to date, before /metrics; may be NULL */
    /* The side doors below may be NULL: their addresses then do not exist. They append JSON to
     * `out`; STATUS_NOT_FOUND is a 404, an input error a 400. */
    /* The fingerprint of an answer whose request is submitted now, up to 128 bytes; good until the
     * loop's next turn. NULL: server_config's. */
    const char *(*fingerprint)(void *arg);
    enum status (*explain)(void *arg, struct text id, struct buffer *out, struct error *e);
    enum status (*feedback)(void *arg, const struct request_feedback *f, struct buffer *out,
                            struct error *e);
    enum status (*policy)(void *arg, enum io_policy_action action, struct buffer *out,
                          struct error *e);
};

struct server_config {
    const char *host;  /* name or address of a TCP listener; NULL: none */
    uint16_t port;     /* 0: the system picks one */
    const char *uds;   /* path of a Unix socket; NULL: none. A stale one is replaced */
    uint32_t uds_mode; /* permission bits, 0: 0600 */
    enum ring_kind io;
    struct connection_limits limits; /* see server_default_limits */
    const char *model_name;          /* served name; copied */
    const char *encoder_name;        /* that embeddings are asked from; NULL: none. Copied */
    const char *fingerprint;         /* system_fingerprint; copied */
    const char
        *cors_origin; /* "*" or an origin that browsers may call from; NULL: no CORS. Copied */
    struct metrics *metrics;
    struct io_service service;
};

struct connection_limits server_default_limits(void);

struct server;
/* Listens from here on; requests are taken in the first server_turn. */
enum status server_open(const struct server_config *cfg, struct server **out, struct error *e);
/* Cuts what is left. All requests that were submitted must have been released (server_idle, or
 * server_abort and a tick). Removes the Unix socket. */
void server_close(struct server *s);

/* Returns true if there is more to do now. */
bool server_turn(struct server *s, uint64_t timeout_ns);
void server_reap(struct server *s);
/* Wakes a server_turn that waits; signal- and thread-safe. */
void server_wake(struct server *s);
/* An eventfd of the caller's that wakes it too (and is reset): a device's, say. Once. */
enum status server_watch(struct server *s, int event_fd, struct error *e);

/* Each answer is its connection's last; /ready says 503, and so does the scheduler to new work. New
 * connections are still taken, so that a balancer hears it. */
void server_drain(struct server *s);
/* Cuts every connection and cancels what was submitted; the scheduler then releases it in its next
 * ticks. */
void server_abort(struct server *s);
/* Nothing is being answered and everything is sent. */
bool server_idle(const struct server *s);

const char *server_url(const struct server *s); /* http://host:port, or unix:PATH */
const char *server_io_name(const struct server *s);
const char *server_io_note(const struct server *s); /* ring_note */

#endif
