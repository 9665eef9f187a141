#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "io/ring_backend.h"

/* In epoll's data: what, then the number. */
enum what { WHAT_LISTENER, WHAT_WATCH, WHAT_SOCKET };
enum { EVENTS_AT_ONCE = 64, ACCEPTS_AT_ONCE = 16 };
/* Bits of ring_socket.armed: which interests epoll holds. */
enum { ARMED_IN = 1, ARMED_OUT = 2, ARMED_ADDED = 4 };

struct epoll {
    int fd;
    uint32_t *free_buffers; /* a stack */
    uint32_t n_free;
    uint64_t paused_listeners; /* bit per listener */
};

static uint64_t tag(enum what what, uint32_t id) {
    return (uint64_t)what << 32 | id;
}

static enum status epoll_open(struct ring *r, struct error *e) {
    struct epoll *p = calloc(1, sizeof *p);
    uint32_t *stack = calloc(r->cfg.n_buffers, sizeof *stack);
    const int fd = epoll_create1(EPOLL_CLOEXEC);
    if (p == NULL || stack == NULL || fd < 0) {
        free(p);
        free(stack);
        if (fd >= 0) close(fd);
        return error_set(e, STATUS_NO_MEMORY, NULL, "cannot set up epoll");
    }
    p->fd = fd;
    p->free_buffers = stack;
    for (uint32_t i = 0; i < r->cfg.n_buffers; i++) stack[p->n_free++] = i;
    r->backend = p;
    return STATUS_OK;
}

static void epoll_close(struct ring *r) {
    struct epoll *p = r->backend;
    close(p->fd);
    free(p->free_buffers);
    free(p);
}

static enum status add(struct ring *r, int fd, uint64_t data, struct error *e) {
    struct epoll *p = r->backend;
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = data};
    const int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
        epoll_ctl(p->fd, EPOLL_CTL_ADD, fd, &ev) != 0)
        return error_set(e, STATUS_IO, NULL, "cannot watch a descriptor: %s", strerror(errno));
    return STATUS_OK;
}

static enum status epoll_listen(struct ring *r, uint32_t listener, struct error *e) {
    return add(r, r->listeners[listener], tag(WHAT_LISTENER, listener), e);
}

static void epoll_unlisten(struct ring *r, uint32_t listener) {
    struct epoll *p = r->backend;
    p->paused_listeners &= ~(UINT64_C(1) << listener);
    (void)epoll_ctl(p->fd, EPOLL_CTL_DEL, r->listeners[listener], NULL);
}

static enum status epoll_watch(struct ring *r, uint32_t watch, struct error *e) {
    return add(r, r->watches[watch], tag(WHAT_WATCH, watch), e);
}

/* Tells epoll what this socket waits for, if that has changed. */
static void set_interest(struct ring *r, uint32_t socket, bool want_out) {
    struct epoll *p = r->backend;
    struct ring_socket *s = &r->sockets[socket];
    uint8_t want = ARMED_ADDED;
    if (s->receiving && !s->gone && !s->starved) want |= ARMED_IN;
    if (want_out) want |= ARMED_OUT;
    if (want == s->armed) return;
    /* A closed peer is reported again and again until nobody asks. */
    struct epoll_event ev = {.events = s->gone ? 0 : EPOLLRDHUP,
                             .data.u64 = tag(WHAT_SOCKET, socket)};
    if (want & ARMED_IN) ev.events |= EPOLLIN;
    if (want & ARMED_OUT) ev.events |= EPOLLOUT;
    const int op = s->armed & ARMED_ADDED ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(p->fd, op, s->fd, &ev) == 0)
        s->armed = want;
    else if (!s->gone)
        ring_push_received(r, socket, -errno, RING_NONE);
}

static void epoll_attach(struct ring *r, uint32_t socket) {
    const int fd = r->sockets[socket].fd;
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    set_interest(r, socket, false);
}

static void epoll_detach(struct ring *r, uint32_t socket) {
    ring_finish_close(r, socket);
}

static void epoll_set_receiving(struct ring *r, uint32_t socket) {
    set_interest(r, socket, r->sockets[socket].armed & ARMED_OUT);
}

static void try_send(struct ring *r, uint32_t socket) {
    struct ring_socket *s = &r->sockets[socket];
    const ssize_t n = send(s->fd, s->send_data, s->send_n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        if (!(s->armed & ARMED_OUT) && s->send_timeout_ns != 0)
            deadline_heap_set(&r->deadlines, 2 * socket + 1, clock_now_ns() + s->send_timeout_ns);
        set_interest(r, socket, true);
        return;
    }
    const int32_t result = n < 0 ? -errno : (int32_t)n;
    deadline_heap_set(&r->deadlines, 2 * socket + 1, 0);
    set_interest(r, socket, false);
    ring_push_sent(r, socket, result);
}

static void epoll_release(struct ring *r, uint32_t buffer) {
    struct epoll *p = r->backend;
    p->free_buffers[p->n_free++] = buffer;
    for (uint32_t i = ring_unstarve(r); i != RING_NONE; i = ring_unstarve(r))
        if (r->sockets[i].fd >= 0) set_interest(r, i, r->sockets[i].armed & ARMED_OUT);
}

static void on_readable(struct ring *r, uint32_t socket) {
    struct epoll *p = r->backend;
    struct ring_socket *s = &r->sockets[socket];
    if (p->n_free == 0) {
        ring_starve(r, socket);
        set_interest(r, socket, s->armed & ARMED_OUT);
        return;
    }
    const uint32_t buffer = p->free_buffers[p->n_free - 1];
    char *to = r->buffers + (size_t)buffer * RING_BUFFER_BYTES;
    const ssize_t n = recv(s->fd, to, RING_BUFFER_BYTES, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n > 0) p->n_free--;
    ring_push_received(r, socket, n < 0 ? -errno : (int32_t)n, buffer);
    if (n <= 0) set_interest(r, socket, s->armed & ARMED_OUT);
}

static void on_socket(struct ring *r, uint32_t socket, uint32_t events) {
    struct epoll *p = r->backend;
    struct ring_socket *s = &r->sockets[socket];
    if (s->fd < 0) return; /* closed earlier in this batch */
    if (s->sending && (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)))
        try_send(r, socket);
    else if (events & EPOLLOUT)
        set_interest(r, socket, false);
    if (s->gone) {
        /* Errors and hang-ups cannot be turned off; a send learns of them by itself. */
        if (!s->sending && (events & (EPOLLHUP | EPOLLERR))) {
            (void)epoll_ctl(p->fd, EPOLL_CTL_DEL, s->fd, NULL);
            s->armed = 0;
        }
        return;
    }
    if (s->receiving) {
        if (s->starved) return; /* the bytes before the end are not read yet */
        if (events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP)) on_readable(r, socket);
    } else if (events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) {
        ring_push_received(r, socket, 0, RING_NONE);
        set_interest(r, socket, s->armed & ARMED_OUT);
    }
}

static void on_listener(struct ring *r, uint32_t listener) {
    struct epoll *p = r->backend;
    for (int i = 0; i < ACCEPTS_AT_ONCE && ring_has_room(r); i++) {
        const int fd = accept4(r->listeners[listener], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            ring_push_accepted(r, listener, fd);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            struct epoll_event ev = {.events = 0, .data.u64 = tag(WHAT_LISTENER, listener)};
            (void)epoll_ctl(p->fd, EPOLL_CTL_MOD, r->listeners[listener], &ev);
            p->paused_listeners |= UINT64_C(1) << listener;
            r->listen_again_ns = clock_now_ns() + RING_ACCEPT_PAUSE_NS;
        }
        return;
    }
}

static void resume_listeners(struct ring *r) {
    struct epoll *p = r->backend;
    r->listen_again_ns = 0;
    for (uint32_t i = 0; i < RING_MAX_LISTENERS; i++) {
        if (!(p->paused_listeners >> i & 1)) continue;
        struct epoll_event ev = {.events = EPOLLIN, .data.u64 = tag(WHAT_LISTENER, i)};
        (void)epoll_ctl(p->fd, EPOLL_CTL_MOD, r->listeners[i], &ev);
    }
    p->paused_listeners = 0;
}

static void epoll_collect(struct ring *r, uint64_t timeout_ns, uint64_t budget_ns) {
    struct epoll *p = r->backend;
    if (r->listen_again_ns != 0 && clock_now_ns() >= r->listen_again_ns) resume_listeners(r);
    struct epoll_event events[EVENTS_AT_ONCE];
    /* Rounded up: waking before the deadline would spin. */
    const uint64_t ms = timeout_ns / 1000000u + (timeout_ns % 1000000u != 0);
    const int wait_ms = ms > 3600000u ? 3600000 : (int)ms;
    const int n = epoll_wait(p->fd, events, EVENTS_AT_ONCE, wait_ms);
    const uint64_t start = clock_now_ns();
    for (int i = 0; i < n && ring_has_room(r); i++) {
        const uint32_t id = (uint32_t)events[i].data.u64;
        switch ((enum what)(events[i].data.u64 >> 32)) {
        case WHAT_LISTENER:
            on_listener(r, id);
            break;
        case WHAT_WATCH:
            ring_push_woken(r, id);
            break;
        case WHAT_SOCKET:
            on_socket(r, id, events[i].events);
            break;
        }
        /* Level-triggered: what is left now is reported again. */
        if (clock_now_ns() - start > budget_ns) break;
    }
}

const struct ring_ops ring_epoll_ops = {
    .name = "epoll",
    .open = epoll_open,
    .close = epoll_close,
    .listen = epoll_listen,
    .unlisten = epoll_unlisten,
    .watch = epoll_watch,
    .attach = epoll_attach,
    .detach = epoll_detach,
    .set_receiving = epoll_set_receiving,
    .send = try_send,
    .release = epoll_release,
    .collect = epoll_collect,
};
