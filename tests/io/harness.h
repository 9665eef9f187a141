/* harness.h: a server with the echoing scheduler in a thread of its own, and a plain HTTP client on
 * blocking sockets.
 */
#ifndef LAC_TESTS_IO_HARNESS_H
#define LAC_TESTS_IO_HARNESS_H

#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/metric.h"
#include "io/server.h"
#include "tests/io/fake_sched.h"

struct harness {
    struct fake_sched sched;
    struct metrics metrics;
    struct server_config cfg;
    struct server *server;
    pthread_t thread;
    pthread_barrier_t opened;
    atomic_bool stop, drain, idle;
    enum status status;
    struct error error;
    char url[128];
    uint16_t port;
    char uds[108];
    uint32_t tick_us; /* a tick takes at least this long */
};

static inline void *harness_thread(void *arg) {
    struct harness *h = arg;
    h->status = server_open(&h->cfg, &h->server, &h->error);
    if (h->status == STATUS_OK) {
        const char *colon = strrchr(server_url(h->server), ':');
        h->port = (uint16_t)atoi(colon + 1);
    }
    pthread_barrier_wait(&h->opened);
    if (h->status != STATUS_OK) return NULL;
    bool work = false, drained = false;
    while (!h->stop) {
        server_turn(h->server, work ? 0 : 20 * 1000 * 1000);
        if (h->tick_us != 0 && work) {
            struct timespec ts = {.tv_nsec = (long)h->tick_us * 1000};
            nanosleep(&ts, NULL);
        }
        work = fake_tick(&h->sched);
        server_reap(h->server);
        if (h->drain && !drained) server_drain(h->server);
        drained = h->drain;
        h->idle = server_idle(h->server);
    }
    server_abort(h->server);
    fake_tick(&h->sched);
    server_close(h->server);
    return NULL;
}

static inline struct harness *harness_start(enum ring_kind io,
                                            void (*adjust)(struct server_config *)) {
    struct harness *h = calloc(1, sizeof *h);
    metric_init(&h->metrics);
    h->sched.max_live = FAKE_MAX;
    h->sched.ready = true;
    snprintf(h->uds, sizeof h->uds, "/tmp/laconic-test-%d-%llx.sock", (int)getpid(),
             (unsigned long long)clock_now_ns());
    h->cfg = (struct server_config){
        .host = "127.0.0.1",
        .uds = h->uds,
        .io = io,
        .limits = server_default_limits(),
        .model_name = "test-model",
        .fingerprint = "fp_test",
        .metrics = &h->metrics,
        .service = {.arg = &h->sched,
                    .submit = fake_submit,
                    .cancel = fake_cancel,
                    .ready = fake_ready},
    };
    if (adjust != NULL) adjust(&h->cfg);
    pthread_barrier_init(&h->opened, NULL, 2);
    pthread_create(&h->thread, NULL, harness_thread, h);
    pthread_barrier_wait(&h->opened);
    if (h->status != STATUS_OK) fprintf(stderr, "server_open: %s\n", h->error.message);
    assert_int_equal(h->status, STATUS_OK);
    return h;
}

static inline void harness_stop(struct harness *h) {
    h->stop = true;
    server_wake(h->server);
    pthread_join(h->thread, NULL);
    pthread_barrier_destroy(&h->opened);
    assert_int_equal(h->sched.live, 0);
    assert_int_equal(h->sched.submitted, h->sched.released);
    free(h);
}

/* ---- client ---- */

static inline int client_connect(const struct harness *h, bool uds) {
    const int fd = socket(uds ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    int rc;
    if (uds) {
        struct sockaddr_un at = {.sun_family = AF_UNIX};
        strcpy(at.sun_path, h->uds);
        rc = connect(fd, (struct sockaddr *)&at, sizeof at);
    } else {
        struct sockaddr_in at = {.sin_family = AF_INET,
                                 .sin_port = htons(h->port),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        rc = connect(fd, (struct sockaddr *)&at, sizeof at);
    }
    assert_int_equal(rc, 0);
    struct timeval tv = {.tv_sec = 10};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
    return fd;
}

static inline bool client_send(int fd, const void *bytes, size_t n) {
    const char *p = bytes;
    while (n > 0) {
        const ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

struct reply {
    int status; /* 0: none came; -1: no HTTP */
    bool keep_alive, closed;
    char head[4096];
    char *body; /* dechunked, NUL-terminated */
    size_t n;
};

struct client {
    int fd;
    char *buf;
    size_t n, cap;
    bool closed;
};

static inline struct client client_open(const struct harness *h, bool uds) {
    return (struct client){.fd = client_connect(h, uds)};
}

static inline void client_close(struct client *c) {
    close(c->fd);
    free(c->buf);
    memset(c, 0, sizeof *c);
}

static inline bool client_more(struct client *c) {
    if (c->cap - c->n < 65536) {
        c->cap = c->cap * 2 + 131072;
        c->buf = realloc(c->buf, c->cap);
    }
    ssize_t k;
    /* Closing an io_uring interrupts the thread that opened it, once, a little later. */
    do k = recv(c->fd, c->buf + c->n, c->cap - c->n - 1, 0);
    while (k < 0 && errno == EINTR);
    if (k <= 0) {
        c->closed = k == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
        return false;
    }
    c->n += (size_t)k;
    c->buf[c->n] = '\0';
    return true;
}

static inline void client_drop(struct client *c, size_t n) {
    memmove(c->buf, c->buf + n, c->n - n + 1);
    c->n -= n;
}

static inline void reply_free(struct reply *r) {
    free(r->body);
    memset(r, 0, sizeof *r);
}

/* The next final response (100 Continue is skipped but counted). `head`: it answers HEAD. */
static inline struct reply client_reply(struct client *c, bool head, int *n_continue) {
    struct reply r = {0};
    char *end;
    for (;;) {
        while (c->buf == NULL || (end = strstr(c->buf, "\r\n\r\n")) == NULL) {
            if (!client_more(c)) {
                r.closed = c->closed;
                r.body = calloc(1, 1);
                return r;
            }
        }
        if (sscanf(c->buf, "HTTP/1.1 %d", &r.status) != 1) r.status = -1;
        const size_t n = (size_t)(end - c->buf) + 4;
        if (r.status != 100) {
            const size_t keep = n < sizeof r.head - 1 ? n : sizeof r.head - 1;
            memcpy(r.head, c->buf, keep);
            client_drop(c, n);
            break;
        }
        if (n_continue != NULL) (*n_continue)++;
        client_drop(c, n);
    }
    r.keep_alive = strstr(r.head, "Connection: keep-alive") != NULL;
    const char *length = strstr(r.head, "Content-Length: ");
    r.body = calloc(1, 1);
    if (head || r.status == 204) return r;
    if (length != NULL) {
        r.n = strtoul(length + 16, NULL, 10);
        while (c->n < r.n && client_more(c)) {
        }
        if (c->n < r.n) r.n = c->n, r.closed = true;
        r.body = realloc(r.body, r.n + 1);
        if (r.n > 0) memcpy(r.body, c->buf, r.n);
        r.body[r.n] = '\0';
        if (c->buf != NULL) client_drop(c, r.n);
        return r;
    }
    const bool chunked = strstr(r.head, "Transfer-Encoding: chunked") != NULL;
    for (;;) {
        if (!chunked) {
            while (client_more(c)) {
            }
            r.n = c->n;
            r.body = realloc(r.body, r.n + 1);
            memcpy(r.body, c->buf, r.n);
            r.body[r.n] = '\0';
            c->n = 0;
            r.closed = true;
            return r;
        }
        while (c->buf == NULL || c->n == 0 || (end = strstr(c->buf, "\r\n")) == NULL)
            if (!client_more(c)) {
                r.closed = true;
                return r;
            }
        const size_t n = strtoul(c->buf, NULL, 16);
        const size_t line = (size_t)(end - c->buf) + 2;
        while (c->n < line + n + 2)
            if (!client_more(c)) {
                r.closed = true;
                return r;
            }
        r.body = realloc(r.body, r.n + n + 1);
        memcpy(r.body + r.n, c->buf + line, n);
        r.n += n;
        r.body[r.n] = '\0';
        client_drop(c, line + n + 2);
        if (n == 0) return r;
    }
}

static inline bool client_post(struct client *c, const char *path, const char *body, size_t n) {
    char head[512];
    const int k = snprintf(head, sizeof head,
                           "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                           "Content-Length: %zu\r\n\r\n",
                           path, n);
    return client_send(c->fd, head, (size_t)k) && client_send(c->fd, body, n);
}

/* One request on a fresh connection. */
static inline struct reply call_n(const struct harness *h, const char *path, const char *body,
                                  size_t n) {
    struct client c = client_open(h, false);
    if (body != NULL) {
        client_post(&c, path, body, n);
    } else {
        char get[512];
        const int k = snprintf(get, sizeof get, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path);
        client_send(c.fd, get, (size_t)k);
    }
    struct reply r = client_reply(&c, false, NULL);
    client_close(&c);
    return r;
}

static inline struct reply call(const struct harness *h, const char *path, const char *body) {
    return call_n(h, path, body, body != NULL ? strlen(body) : 0);
}

static inline void wait_ms(unsigned n) {
    struct timespec ts = {.tv_sec = n / 1000, .tv_nsec = (long)(n % 1000) * 1000000};
    nanosleep(&ts, NULL);
}

/* Until no request is with the scheduler, at most 5 s. */
static inline bool wait_quiet(const struct harness *h) {
    for (int i = 0; i < 500 && h->sched.live != 0; i++) wait_ms(10);
    return h->sched.live == 0;
}

static inline bool alive(const struct harness *h) {
    struct reply r = call(h, "/health", NULL);
    const bool ok = r.status == 200;
    reply_free(&r);
    return ok;
}

#endif
