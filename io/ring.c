#include "io/ring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/check.h"
#include "core/clock.h"
#include "io/ring_backend.h"

static void free_ring(struct ring *r) {
    free(r->mem);
    free(r);
}

/* Memory for everything that is common, in one block. */
static enum status plan_memory(struct ring *r, struct error *e) {
    const size_t n = r->cfg.max_sockets;
    /* Per socket at most a receive end, a sent, an expiry and a close; the rest are buffers. */
    r->pending_cap = r->cfg.n_buffers + 4 * r->cfg.max_sockets + 256;
    const size_t sockets = n * sizeof(struct ring_socket);
    const size_t pending = r->pending_cap * sizeof(struct ring_event);
    const size_t deadlines = deadline_heap_footprint(2 * r->cfg.max_sockets);
    const size_t page = 4096;
    const size_t buffers = (size_t)r->cfg.n_buffers * RING_BUFFER_BYTES;
    const size_t head = (sockets + pending + deadlines + page - 1) / page * page;
    r->mem = aligned_alloc(page, head + buffers);
    if (r->mem == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the I/O ring");
    memset(r->mem, 0, head);
    r->pending = r->mem;
    r->sockets = (struct ring_socket *)((char *)r->mem + pending);
    deadline_heap_init(&r->deadlines, (char *)r->mem + pending + sockets, 2 * r->cfg.max_sockets);
    r->buffers = (char *)r->mem + head;
    r->starved = RING_NONE;
    r->free_socket = RING_NONE;
    for (uint32_t i = r->cfg.max_sockets; i-- > 0;) {
        r->sockets[i].fd = -1;
        r->sockets[i].next_free = r->free_socket;
        r->free_socket = i;
    }
    for (int i = 0; i < RING_MAX_LISTENERS; i++) r->listeners[i] = -1;
    for (int i = 0; i < RING_MAX_WATCHES; i++) r->watches[i] = -1;
    return STATUS_OK;
}

enum status ring_open(const struct ring_config *cfg, struct ring **out, struct error *e) {
    *out = NULL;
    CHECK(cfg->max_sockets > 0 && cfg->max_sockets < 1u << 20);
    CHECK(cfg->n_buffers >= 2 && cfg->n_buffers <= 32768 &&
          (cfg->n_buffers & (cfg->n_buffers - 1)) == 0);
    struct ring *r = calloc(1, sizeof *r);
    if (r == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the I/O ring");
    r->cfg = *cfg;
    enum status s = plan_memory(r, e);
    if (s != STATUS_OK) {
        free_ring(r);
        return s;
    }
    struct error why = {0};
    r->ops = cfg->kind == RING_EPOLL ? &ring_epoll_ops : &ring_uring_ops;
    s = r->ops->open(r, &why);
    if (s == STATUS_UNSUPPORTED && cfg->kind == RING_AUTO) {
        memcpy(r->note, why.message, sizeof r->note - 1);
        r->ops = &ring_epoll_ops;
        s = r->ops->open(r, &why);
    }
    if (s != STATUS_OK) {
        free_ring(r);
        return error_set(e, s, "io", "%s", why.message);
    }
    *out = r;
    return STATUS_OK;
}

void ring_close(struct ring *r) {
    if (r == NULL) return;
    struct ring_event ev;
    while (ring_next(r, &ev)) {
        if (ev.kind == RING_ACCEPTED) close(ev.result);
        ring_release(r, &ev);
    }
    r->ops->close(r);
    for (uint32_t i = 0; i < r->cfg.max_sockets; i++)
        if (r->sockets[i].fd >= 0) close(r->sockets[i].fd);
    free_ring(r);
}

const char *ring_name(const struct ring *r) {
    return r->ops->name;
}
const char *ring_note(const struct ring *r) {
    return r->note;
}

enum status ring_listen(struct ring *r, int fd, uint32_t listener, struct error *e) {
    CHECK(listener < RING_MAX_LISTENERS && r->listeners[listener] < 0);
    r->listeners[listener] = fd;
    const enum status s = r->ops->listen(r, listener, e);
    if (s != STATUS_OK) r->listeners[listener] = -1;
    return s;
}

void ring_unlisten(struct ring *r, uint32_t listener) {
    CHECK(listener < RING_MAX_LISTENERS);
    if (r->listeners[listener] < 0) return;
    r->ops->unlisten(r, listener);
    r->listeners[listener] = -1;
}

enum status ring_watch(struct ring *r, int event_fd, uint32_t watch, struct error *e) {
    CHECK(watch < RING_MAX_WATCHES && r->watches[watch] < 0);
    r->watches[watch] = event_fd;
    const enum status s = r->ops->watch(r, watch, e);
    if (s != STATUS_OK) r->watches[watch] = -1;
    return s;
}

uint32_t ring_attach(struct ring *r, int fd) {
    const uint32_t i = r->free_socket;
    if (i == RING_NONE) return RING_NONE;
    struct ring_socket *s = &r->sockets[i];
    r->free_socket = s->next_free;
    const uint32_t generation = s->generation;
    int domain = 0;
    socklen_t len = sizeof domain;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) != 0) domain = AF_UNSPEC;
    memset(s, 0, sizeof *s);
    s->fd = fd;
    s->generation = generation;
    s->receiving = true;
    s->is_tcp = domain == AF_INET || domain == AF_INET6;
    r->ops->attach(r, i);
    return i;
}

static struct ring_socket *live(struct ring *r, uint32_t socket) {
    CHECK(socket < r->cfg.max_sockets && r->sockets[socket].fd >= 0);
    CHECK(!r->sockets[socket].detached);
    return &r->sockets[socket];
}

void ring_detach(struct ring *r, uint32_t socket) {
    struct ring_socket *s = live(r, socket);
    s->detached = true;
    s->receiving = false;
    deadline_heap_set(&r->deadlines, 2 * socket, 0);
    deadline_heap_set(&r->deadlines, 2 * socket + 1, 0);
    r->ops->detach(r, socket);
}

void ring_shutdown(struct ring *r, uint32_t socket) {
    struct ring_socket *s = live(r, socket);
    CHECK(!s->sending);
    /* Fails only when the connection is already broken, which its own event says. */
    (void)shutdown(s->fd, SHUT_WR);
}

void ring_set_receiving(struct ring *r, uint32_t socket, bool on) {
    struct ring_socket *s = live(r, socket);
    if (s->receiving == on) return;
    s->receiving = on;
    r->ops->set_receiving(r, socket);
}

void ring_send(struct ring *r, uint32_t socket, const void *data, size_t n, uint64_t timeout_ns) {
    struct ring_socket *s = live(r, socket);
    CHECK(!s->sending && n > 0);
    s->sending = true;
    s->send_data = data;
    s->send_n = n;
    s->send_timeout_ns = timeout_ns;
    r->ops->send(r, socket);
}

void ring_set_deadline(struct ring *r, uint32_t socket, uint64_t at_ns) {
    (void)live(r, socket);
    deadline_heap_set(&r->deadlines, 2 * socket, at_ns);
}

bool ring_gone(const struct ring *r, uint32_t socket) {
    CHECK(socket < r->cfg.max_sockets);
    return r->sockets[socket].gone;
}

bool ring_has_room(const struct ring *r) {
    return r->n_pending + 8 <= r->pending_cap;
}

static struct ring_event *push(struct ring *r, enum ring_event_kind kind, uint32_t id) {
    CHECK(r->n_pending < r->pending_cap);
    uint32_t i = r->pending_first + r->n_pending++;
    if (i >= r->pending_cap) i -= r->pending_cap;
    struct ring_event *ev = &r->pending[i];
    memset(ev, 0, sizeof *ev);
    ev->kind = kind;
    ev->id = id;
    ev->buffer = RING_NONE;
    return ev;
}

static struct ring_event *push_socket(struct ring *r, enum ring_event_kind kind, uint32_t socket) {
    struct ring_event *ev = push(r, kind, socket);
    ev->generation = r->sockets[socket].generation;
    return ev;
}

void ring_push_accepted(struct ring *r, uint32_t listener, int fd) {
    push(r, RING_ACCEPTED, listener)->result = fd;
}

void ring_push_received(struct ring *r, uint32_t socket, int32_t result, uint32_t buffer) {
    struct ring_event *ev = push_socket(r, RING_RECEIVED, socket);
    if (result > 0) {
        ev->n = (uint32_t)result;
        ev->buffer = buffer;
        ev->data = r->buffers + (size_t)buffer * RING_BUFFER_BYTES;
    } else {
        ev->result = result;
        r->sockets[socket].gone = true;
    }
}

void ring_push_sent(struct ring *r, uint32_t socket, int32_t result) {
    r->sockets[socket].sending = false;
    push_socket(r, RING_SENT, socket)->result = result;
}

void ring_push_woken(struct ring *r, uint32_t watch) {
    uint64_t count;
    /* Resets the eventfd; a failed read means that somebody else has done so. */
    if (read(r->watches[watch], &count, sizeof count) < 0 && errno == EAGAIN) return;
    push(r, RING_WOKEN, watch);
}

void ring_finish_close(struct ring *r, uint32_t socket) {
    struct ring_socket *s = &r->sockets[socket];
    close(s->fd);
    s->fd = -1;
    s->sending = false;
    s->generation++;
    push_socket(r, RING_CLOSED, socket);
}

void ring_starve(struct ring *r, uint32_t socket) {
    struct ring_socket *s = &r->sockets[socket];
    if (s->starved) return;
    s->starved = true;
    s->next_starved = r->starved;
    r->starved = socket;
}

uint32_t ring_unstarve(struct ring *r) {
    const uint32_t i = r->starved;
    if (i == RING_NONE) return RING_NONE;
    r->starved = r->sockets[i].next_starved;
    r->sockets[i].starved = false;
    return i;
}

static void expire(struct ring *r) {
    if (deadline_heap_next(&r->deadlines) == UINT64_MAX) return;
    const uint64_t now = clock_now_ns();
    uint32_t key;
    while (ring_has_room(r) && deadline_heap_pop(&r->deadlines, now, &key)) {
        if (key % 2 == 0)
            push_socket(r, RING_EXPIRED, key / 2);
        else
            ring_push_sent(r, key / 2, -ETIMEDOUT);
    }
}

enum { COLLECT_NS = 100 * 1000 };

void ring_wait(struct ring *r, uint64_t timeout_ns) {
    if (r->n_pending != 0) timeout_ns = 0;
    if (timeout_ns != 0) {
        uint64_t next = deadline_heap_next(&r->deadlines);
        if (r->listen_again_ns != 0 && r->listen_again_ns < next) next = r->listen_again_ns;
        if (next != UINT64_MAX) {
            const uint64_t now = clock_now_ns();
            const uint64_t left = next > now ? next - now : 0;
            if (left < timeout_ns) timeout_ns = left;
        }
    }
    r->ops->collect(r, timeout_ns, COLLECT_NS);
    expire(r);
}

uint32_t ring_reap(struct ring *r, uint64_t budget_ns) {
    r->ops->collect(r, 0, budget_ns);
    expire(r);
    return r->n_pending;
}

bool ring_next(struct ring *r, struct ring_event *out) {
    while (r->n_pending != 0) {
        *out = r->pending[r->pending_first];
        if (++r->pending_first == r->pending_cap) r->pending_first = 0;
        r->n_pending--;
        if (out->kind == RING_ACCEPTED || out->kind == RING_WOKEN) return true;
        struct ring_socket *s = &r->sockets[out->id];
        if (out->kind == RING_CLOSED) {
            s->next_free = r->free_socket;
            r->free_socket = out->id;
            return true;
        }
        if (out->generation == s->generation && !s->detached) return true;
        ring_release(r, out);
    }
    return false;
}

void ring_release(struct ring *r, const struct ring_event *event) {
    if (event->kind == RING_RECEIVED && event->buffer != RING_NONE)
        r->ops->release(r, event->buffer);
}
