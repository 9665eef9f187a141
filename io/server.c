#include "io/server.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/check.h"
#include "core/clock.h"
#include "io/listen.h"
#include "io/server_state.h"

enum {
    DISPATCH_NS = 300 * 1000, /* of one turn, before the scheduler has its own */
    JOBS_NS = 200 * 1000,
    REAP_NS = 20 * 1000,
    N_BUFFERS = 128,
    LISTENER_TCP = 0,
    LISTENER_UNIX = 1,
    WATCH_WAKE = 0,
    WATCH_OTHER = 1,
};

struct connection_limits server_default_limits(void) {
    const uint64_t second = 1000 * 1000 * 1000;
    return (struct connection_limits){
        .max_connections = 1024,
        .max_head_bytes = 64 * 1024,
        .max_body_bytes = BODY_MAX_BYTES,
        .all_bodies_bytes = 256 * 1024 * 1024,
        .output_bytes = 64 * 1024 * 1024,
        .head_ns = 10 * second,
        .body_ns = 30 * second,
        .idle_ns = 75 * second,
        .write_ns = 30 * second,
        .linger_ns = 2 * second,
    };
}

void server_visit(struct server *s) {
    const uint64_t now = clock_now_ns();
    if (s->last_visit_ns != 0 && s->cfg.metrics != NULL)
        metric_time(s->cfg.metrics, METRIC_LOOP_GAP, 0, now - s->last_visit_ns);
    s->last_visit_ns = now;
}

void server_count_reply(struct server *s, int http_status) {
    if (s->cfg.metrics != NULL)
        metric_add(s->cfg.metrics, METRIC_HTTP_RESPONSE, metric_code_of(http_status), 1);
}

void server_reply_error(struct server *s, struct connection *c, int http_status,
                        const struct error *e, uint32_t retry_after_s) {
    char extra[320];
    int n = 0;
    if (http_status == 503)
        n = snprintf(extra, sizeof extra, "Retry-After: %u\r\n",
                     retry_after_s != 0 ? retry_after_s : 1);
    snprintf(extra + n, sizeof extra - (size_t)n, "%s", s->cors_headers);
    buffer_clear(&s->scratch);
    openai_write_error(&s->scratch, http_status, e);
    server_count_reply(s, http_status);
    connection_reply_bytes(c, http_status, "application/json", s->scratch.data, s->scratch.len,
                           extra);
}

/* ---- opening ---- */

static enum status plan_memory(struct server *s, struct error *e) {
    const size_t bytes = SERVER_SCRATCH_BYTES + 4 * (size_t)SERVER_LIST_BYTES;
    char *mem = malloc(bytes);
    s->scratch_mem = mem;
    if (mem == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the server");
    buffer_init_fixed(&s->scratch, mem, SERVER_SCRATCH_BYTES);
    for (int i = 0; i < 4; i++)
        buffer_init_fixed(&s->lists[i], mem + SERVER_SCRATCH_BYTES + i * SERVER_LIST_BYTES,
                          SERVER_LIST_BYTES);
    for (int i = 0; i < SERVER_CHORES; i++) {
        s->chores[i].mem = aligned_alloc(64, (chore_footprint() + 63) / 64 * 64);
        if (s->chores[i].mem == NULL)
            return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the server");
    }
    return STATUS_OK;
}

static enum status copy_names(struct server *s, struct error *e) {
    const struct server_config *cfg = &s->cfg;
    if (strlen(cfg->model_name) > 256 || strlen(cfg->fingerprint) > 128)
        return error_set(e, STATUS_INVALID, NULL, "the model's name or fingerprint is too long");
    s->model_name = strdup(cfg->model_name);
    s->fingerprint = strdup(cfg->fingerprint);
    if (cfg->uds != NULL) s->uds = strdup(cfg->uds);
    if (cfg->encoder_name != NULL) s->encoder_name = strdup(cfg->encoder_name);
    if (s->model_name == NULL || s->fingerprint == NULL || (cfg->uds != NULL && s->uds == NULL) ||
        (cfg->encoder_name != NULL && s->encoder_name == NULL))
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the server");
    s->who = (struct openai_identity){s->model_name, s->fingerprint};
    if (cfg->cors_origin != NULL) {
        if (strlen(cfg->cors_origin) > 128 || strpbrk(cfg->cors_origin, "\r\n") != NULL)
            return error_set(e, STATUS_INVALID, "cors", "not an origin");
        snprintf(s->cors_headers, sizeof s->cors_headers,
                 "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\n", cfg->cors_origin);
    }
    return STATUS_OK;
}

static enum status listen_all(struct server *s, struct error *e) {
    const struct server_config *cfg = &s->cfg;
    enum status st = STATUS_OK;
    if (cfg->host != NULL) {
        st =
            listen_tcp(cfg->host, cfg->port, &s->listeners[LISTENER_TCP], s->url, sizeof s->url, e);
        if (st == STATUS_OK) st = ring_listen(s->ring, s->listeners[LISTENER_TCP], LISTENER_TCP, e);
    }
    if (st == STATUS_OK && s->uds != NULL) {
        st = listen_unix(s->uds, cfg->uds_mode, &s->listeners[LISTENER_UNIX], e);
        if (st == STATUS_OK)
            st = ring_listen(s->ring, s->listeners[LISTENER_UNIX], LISTENER_UNIX, e);
        if (s->url[0] == '\0') snprintf(s->url, sizeof s->url, "unix:%s", s->uds);
    }
    return st;
}

static enum status open_parts(struct server *s, struct error *e) {
    enum status st = copy_names(s, e);
    if (st == STATUS_OK) st = plan_memory(s, e);
    if (st != STATUS_OK) return st;
    if (getrandom(&s->id_salt, sizeof s->id_salt, 0) != (ssize_t)sizeof s->id_salt)
        return error_set(e, STATUS_IO, NULL, "no random numbers from the system");
    const struct ring_config ring = {
        .kind = s->cfg.io,
        .max_sockets = s->cfg.limits.max_connections,
        .n_buffers = N_BUFFERS,
    };
    st = ring_open(&ring, &s->ring, e);
    if (st != STATUS_OK) return st;
    const struct connection_app app = {
        .arg = s,
        .head = route_head,
        .request = route_request,
        .malformed = route_malformed,
        .gone = route_gone,
    };
    st = connections_open(&s->connections, s->ring, &s->cfg.limits, &app, e);
    if (st != STATUS_OK) return st;
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->wake_fd < 0) return error_set(e, STATUS_IO, NULL, "no eventfd: %s", strerror(errno));
    st = ring_watch(s->ring, s->wake_fd, WATCH_WAKE, e);
    return st == STATUS_OK ? listen_all(s, e) : st;
}

/* Room for every connection's descriptor, as far as the system lets us. */
static void raise_descriptor_limit(uint32_t n_connections) {
    struct rlimit r;
    const rlim_t want = (rlim_t)n_connections + 64;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur >= want) return;
    r.rlim_cur = r.rlim_max < want ? r.rlim_max : want;
    (void)setrlimit(RLIMIT_NOFILE, &r); /* short of them, accepting pauses (io/ring.c) */
}

enum status server_open(const struct server_config *cfg, struct server **out, struct error *e) {
    *out = NULL;
    struct server *s = calloc(1, sizeof *s);
    if (s == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the server");
    s->cfg = *cfg;
    s->listeners[0] = s->listeners[1] = s->wake_fd = -1;
    s->queue_end = &s->queue;
    s->started_s = clock_wall_s();
    raise_descriptor_limit(cfg->limits.max_connections);
    json_object_seed(0); /* jansson's hash keys, from the system, before any client can time them */
    const enum status st = open_parts(s, e);
    if (st != STATUS_OK) {
        server_close(s);
        return st;
    }
    *out = s;
    return STATUS_OK;
}

void server_abort(struct server *s) {
    for (uint32_t i = 0; s->connections.all != NULL && i < s->cfg.limits.max_connections; i++) {
        struct connection *c = &s->connections.all[i];
        if (c->exchange != NULL) exchange_gone(c->exchange);
        connection_abort(c);
    }
    exchange_run_cancels(s);
    while (exchange_has_jobs(s)) exchange_run_jobs(s, JOBS_NS);
}

void server_close(struct server *s) {
    if (s == NULL) return;
    server_abort(s);
    CHECK(s->n_exchanges == 0);
    for (uint32_t i = 0; i < 2; i++) {
        if (s->listeners[i] < 0) continue;
        if (s->ring != NULL) ring_unlisten(s->ring, i);
        close(s->listeners[i]);
        if (i == LISTENER_UNIX) (void)unlink(s->uds);
    }
    ring_close(s->ring);
    connections_close(&s->connections);
    if (s->wake_fd >= 0) close(s->wake_fd);
    for (int i = 0; i < SERVER_CHORES; i++) free(s->chores[i].mem);
    free(s->scratch_mem);
    free(s->model_name);
    free(s->encoder_name);
    free(s->fingerprint);
    free(s->uds);
    free(s);
}

/* ---- the loop's part ---- */

static bool dispatch(struct server *s) {
    const uint64_t start = clock_now_ns();
    struct ring_event ev;
    while (ring_next(s->ring, &ev)) {
        if (ev.kind == RING_ACCEPTED) {
            connections_accept(&s->connections, ev.result);
        } else if (ev.kind != RING_WOKEN) {
            connections_event(&s->connections, &ev);
        }
        ring_release(s->ring, &ev);
        if (clock_now_ns() - start > DISPATCH_NS) return true;
    }
    return false;
}

bool server_turn(struct server *s, uint64_t timeout_ns) {
    server_visit(s);
    exchange_run_cancels(s);
    bool more = connections_advance(&s->connections);
    connections_flush(&s->connections);
    if (more || exchange_has_jobs(s)) timeout_ns = 0;
    if (timeout_ns != 0) s->last_visit_ns = 0; /* what it sleeps is no gap */
    ring_wait(s->ring, timeout_ns);
    server_visit(s);
    more = dispatch(s);
    if (exchange_has_jobs(s)) exchange_run_jobs(s, JOBS_NS);
    exchange_run_cancels(s);
    connections_flush(&s->connections);
    return more || s->connections.n_ready != 0 || exchange_has_jobs(s);
}

void server_reap(struct server *s) {
    (void)ring_reap(s->ring, REAP_NS);
    server_visit(s);
}

void server_wake(struct server *s) {
    const uint64_t one = 1;
    /* Full means that it is awake already. */
    (void)!write(s->wake_fd, &one, sizeof one);
}

enum status server_watch(struct server *s, int event_fd, struct error *e) {
    return ring_watch(s->ring, event_fd, WATCH_OTHER, e);
}

void server_drain(struct server *s) {
    if (s->draining) return;
    s->draining = true;
    connections_drain(&s->connections);
}

bool server_idle(const struct server *s) {
    return s->n_exchanges == 0 && connections_quiet(&s->connections);
}

const char *server_url(const struct server *s) {
    return s->url;
}
const char *server_io_name(const struct server *s) {
    return ring_name(s->ring);
}
const char *server_io_note(const struct server *s) {
    return ring_note(s->ring);
}
