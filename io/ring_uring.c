#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/check.h"
#include "core/clock.h"
#include "io/ring_backend.h"

/* In user_data: operation in bits 56-63, then the socket, listener or watch number. A socket's
 * number is used again only when all its completions have come, so no generation is needed here. */
enum op { OP_IGNORE, OP_ACCEPT, OP_RECV, OP_POLL, OP_SEND, OP_WATCH };

enum { ARMED_RECV = 1, ARMED_POLL = 2 };

enum {
    SQ_ENTRIES = 1024,
    CQ_ENTRIES = 4096,
    BUFFER_GROUP = 0,
    /* Below this, pinning the pages costs more than the copy it saves. */
    ZERO_COPY_MIN_BYTES = 16 * 1024,
};

struct uring {
    struct io_uring ring;
    struct io_uring_buf_ring *buffer_ring;
    struct __kernel_timespec *send_timeouts; /* [max_sockets]; read by the kernel at submission */
    uint64_t accept_armed, watch_armed;      /* bit per listener, per watch */
    bool zero_copy;
};

static uint64_t tag(enum op op, uint32_t id) {
    return (uint64_t)op << 56 | id;
}

static struct io_uring_sqe *sqe_get(struct uring *u, unsigned room) {
    if (io_uring_sq_space_left(&u->ring) < room) (void)io_uring_submit(&u->ring);
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    CHECK(sqe != NULL);
    return sqe;
}

static void arm_accept(struct ring *r, uint32_t listener) {
    struct uring *u = r->backend;
    struct io_uring_sqe *sqe = sqe_get(u, 1);
    io_uring_prep_multishot_accept(sqe, r->listeners[listener], NULL, NULL, SOCK_CLOEXEC);
    io_uring_sqe_set_data64(sqe, tag(OP_ACCEPT, listener));
    u->accept_armed |= UINT64_C(1) << listener;
}

static void arm_watch(struct ring *r, uint32_t watch) {
    struct uring *u = r->backend;
    struct io_uring_sqe *sqe = sqe_get(u, 1);
    io_uring_prep_poll_multishot(sqe, r->watches[watch], POLLIN);
    io_uring_sqe_set_data64(sqe, tag(OP_WATCH, watch));
    u->watch_armed |= UINT64_C(1) << watch;
}

static void cancel(struct uring *u, uint64_t user_data) {
    struct io_uring_sqe *sqe = sqe_get(u, 1);
    io_uring_prep_cancel64(sqe, user_data, 0);
    io_uring_sqe_set_data64(sqe, tag(OP_IGNORE, 0));
}

/* What should be in flight for this socket and is not. */
static void arm_socket(struct ring *r, uint32_t socket) {
    struct ring_socket *s = &r->sockets[socket];
    struct uring *u = r->backend;
    if (s->detached || s->gone) return;
    if (s->receiving && !(s->armed & ARMED_RECV) && !s->starved) {
        struct io_uring_sqe *sqe = sqe_get(u, 1);
        io_uring_prep_recv_multishot(sqe, s->fd, NULL, 0, 0);
        sqe->flags |= IOSQE_BUFFER_SELECT;
        sqe->buf_group = BUFFER_GROUP;
        io_uring_sqe_set_data64(sqe, tag(OP_RECV, socket));
        s->armed |= ARMED_RECV;
        s->in_flight++;
    }
    if (!s->receiving && !(s->armed & ARMED_POLL)) {
        struct io_uring_sqe *sqe = sqe_get(u, 1);
        io_uring_prep_poll_add(sqe, s->fd, POLLRDHUP);
        io_uring_sqe_set_data64(sqe, tag(OP_POLL, socket));
        s->armed |= ARMED_POLL;
        s->in_flight++;
    }
}

static void give_buffer(struct ring *r, uint32_t buffer) {
    struct uring *u = r->backend;
    io_uring_buf_ring_add(u->buffer_ring, r->buffers + (size_t)buffer * RING_BUFFER_BYTES,
                          RING_BUFFER_BYTES, (unsigned short)buffer,
                          io_uring_buf_ring_mask(r->cfg.n_buffers), 0);
    io_uring_buf_ring_advance(u->buffer_ring, 1);
}

static void release(struct ring *r, uint32_t buffer) {
    give_buffer(r, buffer);
    for (uint32_t i = ring_unstarve(r); i != RING_NONE; i = ring_unstarve(r)) arm_socket(r, i);
}

/* liburing 2.3 declares the two calls below and does not export them. */
static int register_op(struct io_uring *ring, unsigned op, void *arg, unsigned n) {
    return (int)syscall(__NR_io_uring_register, ring->ring_fd, op, arg, n);
}

/* Only what this file submits, and no registering, from the moment the ring is enabled. */
static int restrict_ring(struct io_uring *ring, bool zero_copy) {
    static const uint8_t ops[] = {
        IORING_OP_ACCEPT,       IORING_OP_RECV,         IORING_OP_SEND,   IORING_OP_POLL_ADD,
        IORING_OP_ASYNC_CANCEL, IORING_OP_LINK_TIMEOUT, IORING_OP_SEND_ZC};
    struct io_uring_restriction res[sizeof ops + 1];
    memset(res, 0, sizeof res);
    unsigned n = 0;
    for (size_t i = 0; i < sizeof ops; i++) {
        if (ops[i] == IORING_OP_SEND_ZC && !zero_copy) continue;
        res[n].opcode = IORING_RESTRICTION_SQE_OP;
        res[n++].sqe_op = ops[i];
    }
    res[n].opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED;
    res[n++].sqe_flags = IOSQE_IO_LINK | IOSQE_BUFFER_SELECT;
    return register_op(ring, IORING_REGISTER_RESTRICTIONS, res, n);
}

static int set_up(struct io_uring *ring) {
    static const unsigned tries[] = {
        IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
        IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
        0,
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        struct io_uring_params p = {0};
        p.flags = tries[i] | IORING_SETUP_R_DISABLED | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
        p.cq_entries = CQ_ENTRIES;
        rc = io_uring_queue_init_params(SQ_ENTRIES, ring, &p);
        if (rc != -EINVAL) break;
    }
    return rc;
}

static enum status uring_open(struct ring *r, struct error *e) {
    struct uring *u = calloc(1, sizeof *u);
    if (u == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the I/O ring");
    int rc = set_up(&u->ring);
    if (rc < 0) {
        free(u);
        return error_set(e, STATUS_UNSUPPORTED, NULL, "io_uring is refused here: %s",
                         strerror(-rc));
    }
    const char *what = "io_uring lacks multishot receive (kernel 6.0 has it)";
    struct io_uring_probe *probe = io_uring_get_probe_ring(&u->ring);
    /* The probe lists operations, not their flags; sending without copies came with multishot
     * receive, so it stands for it. */
    u->zero_copy = probe != NULL && io_uring_opcode_supported(probe, IORING_OP_SEND_ZC);
    io_uring_free_probe(probe);
    if (!u->zero_copy || !(u->ring.features & IORING_FEAT_EXT_ARG)) goto refused;

    const size_t ring_bytes = r->cfg.n_buffers * sizeof(struct io_uring_buf);
    u->buffer_ring = aligned_alloc(4096, (ring_bytes + 4095) / 4096 * 4096);
    u->send_timeouts = calloc(r->cfg.max_sockets, sizeof *u->send_timeouts);
    if (u->buffer_ring == NULL || u->send_timeouts == NULL) {
        what = "no memory for io_uring";
        goto refused;
    }
    memset(u->buffer_ring, 0, ring_bytes);
    struct io_uring_buf_reg reg = {
        .ring_addr = (uint64_t)(uintptr_t)u->buffer_ring,
        .ring_entries = r->cfg.n_buffers,
        .bgid = BUFFER_GROUP,
    };
    what = "io_uring refuses provided buffers, restrictions or enabling";
    if (io_uring_register_buf_ring(&u->ring, &reg, 0) < 0) goto refused;
    if (restrict_ring(&u->ring, u->zero_copy) < 0) goto refused;
    if (register_op(&u->ring, IORING_REGISTER_ENABLE_RINGS, NULL, 0) < 0) goto refused;
    u->ring.flags &= ~(unsigned)IORING_SETUP_R_DISABLED;
    io_uring_buf_ring_init(u->buffer_ring);
    r->backend = u;
    for (uint32_t i = 0; i < r->cfg.n_buffers; i++) give_buffer(r, i);
    return STATUS_OK;

refused:
    io_uring_queue_exit(&u->ring);
    free(u->buffer_ring);
    free(u->send_timeouts);
    free(u);
    return error_set(e, STATUS_UNSUPPORTED, NULL, "%s", what);
}

static enum status uring_listen(struct ring *r, uint32_t listener, struct error *e) {
    (void)e;
    arm_accept(r, listener);
    return STATUS_OK;
}

static void uring_unlisten(struct ring *r, uint32_t listener) {
    struct uring *u = r->backend;
    if (u->accept_armed >> listener & 1) {
        cancel(u, tag(OP_ACCEPT, listener));
        (void)io_uring_submit(&u->ring);
    }
}

static enum status uring_watch(struct ring *r, uint32_t watch, struct error *e) {
    (void)e;
    arm_watch(r, watch);
    return STATUS_OK;
}

static void uring_detach(struct ring *r, uint32_t socket) {
    struct ring_socket *s = &r->sockets[socket];
    struct uring *u = r->backend;
    if (s->in_flight == 0) {
        ring_finish_close(r, socket);
        return;
    }
    struct io_uring_sqe *sqe = sqe_get(u, 1);
    io_uring_prep_cancel_fd(sqe, s->fd, IORING_ASYNC_CANCEL_ALL);
    io_uring_sqe_set_data64(sqe, tag(OP_IGNORE, 0));
}

static void uring_set_receiving(struct ring *r, uint32_t socket) {
    struct ring_socket *s = &r->sockets[socket];
    struct uring *u = r->backend;
    if (!s->receiving && (s->armed & ARMED_RECV)) cancel(u, tag(OP_RECV, socket));
    if (s->receiving && (s->armed & ARMED_POLL)) cancel(u, tag(OP_POLL, socket));
    arm_socket(r, socket);
}

static void uring_send(struct ring *r, uint32_t socket) {
    struct ring_socket *s = &r->sockets[socket];
    struct uring *u = r->backend;
    const bool zero_copy = u->zero_copy && s->is_tcp && s->send_n >= ZERO_COPY_MIN_BYTES;
    struct io_uring_sqe *sqe = sqe_get(u, 2);
    if (zero_copy)
        io_uring_prep_send_zc(sqe, s->fd, s->send_data, s->send_n, MSG_NOSIGNAL, 0);
    else
        io_uring_prep_send(sqe, s->fd, s->send_data, s->send_n, MSG_NOSIGNAL);
    io_uring_sqe_set_data64(sqe, tag(OP_SEND, socket));
    s->in_flight++;
    if (s->send_timeout_ns == 0) return;
    sqe->flags |= IOSQE_IO_LINK;
    struct __kernel_timespec *ts = &u->send_timeouts[socket];
    ts->tv_sec = (int64_t)(s->send_timeout_ns / 1000000000u);
    ts->tv_nsec = (long long)(s->send_timeout_ns % 1000000000u);
    sqe = sqe_get(u, 1);
    io_uring_prep_link_timeout(sqe, ts, 0);
    io_uring_sqe_set_data64(sqe, tag(OP_IGNORE, 0));
}

static void on_accept(struct ring *r, uint32_t listener, const struct io_uring_cqe *cqe) {
    struct uring *u = r->backend;
    if (cqe->res >= 0) ring_push_accepted(r, listener, cqe->res);
    if (cqe->flags & IORING_CQE_F_MORE) return;
    u->accept_armed &= ~(UINT64_C(1) << listener);
    if (r->listeners[listener] < 0 || cqe->res == -ECANCELED) return;
    /* Out of descriptors: trying again at once would spin. */
    if (cqe->res == -EMFILE || cqe->res == -ENFILE || cqe->res == -ENOBUFS || cqe->res == -ENOMEM)
        r->listen_again_ns = clock_now_ns() + RING_ACCEPT_PAUSE_NS;
    else
        arm_accept(r, listener);
}

static void on_recv(struct ring *r, uint32_t socket, const struct io_uring_cqe *cqe) {
    struct ring_socket *s = &r->sockets[socket];
    const uint32_t buffer =
        cqe->flags & IORING_CQE_F_BUFFER ? cqe->flags >> IORING_CQE_BUFFER_SHIFT : RING_NONE;
    if (!(cqe->flags & IORING_CQE_F_MORE)) {
        s->armed &= (uint8_t)~ARMED_RECV;
        s->in_flight--;
    }
    const bool used = cqe->res > 0 && !s->detached;
    if (buffer != RING_NONE && !used) release(r, buffer);
    if (used)
        ring_push_received(r, socket, cqe->res, buffer);
    else if (s->detached || s->gone || cqe->res == -ECANCELED)
        return;
    else if (cqe->res == -ENOBUFS)
        ring_starve(r, socket);
    else
        ring_push_received(r, socket, cqe->res, RING_NONE);
}

static void on_send(struct ring *r, uint32_t socket, const struct io_uring_cqe *cqe) {
    struct ring_socket *s = &r->sockets[socket];
    struct uring *u = r->backend;
    if (cqe->flags & IORING_CQE_F_NOTIF) {
        s->in_flight--;
        if (!s->detached) ring_push_sent(r, socket, s->send_result);
        return;
    }
    int32_t result = cqe->res;
    if (result == -ECANCELED || result == -EINTR) result = -ETIMEDOUT;
    if (cqe->flags & IORING_CQE_F_MORE) {
        s->send_result = result;
        return;
    }
    s->in_flight--;
    if (s->detached) return;
    /* Zero copy needs pages to be pinned, which limits and some sockets forbid: copy from now on.
     */
    if (u->zero_copy && s->is_tcp && s->send_n >= ZERO_COPY_MIN_BYTES &&
        (result == -EOPNOTSUPP || result == -ENOMEM || result == -EINVAL || result == -ENOBUFS)) {
        u->zero_copy = false;
        uring_send(r, socket);
        return;
    }
    ring_push_sent(r, socket, result);
}

static void on_poll(struct ring *r, uint32_t socket, const struct io_uring_cqe *cqe) {
    struct ring_socket *s = &r->sockets[socket];
    s->armed &= (uint8_t)~ARMED_POLL;
    s->in_flight--;
    if (!s->detached && !s->gone && cqe->res > 0) ring_push_received(r, socket, 0, RING_NONE);
}

static void on_completion(struct ring *r, const struct io_uring_cqe *cqe) {
    struct uring *u = r->backend;
    const uint64_t data = io_uring_cqe_get_data64(cqe);
    const enum op op = (enum op)(data >> 56);
    const uint32_t id = (uint32_t)data;
    switch (op) {
    case OP_IGNORE:
        return;
    case OP_ACCEPT:
        on_accept(r, id, cqe);
        return;
    case OP_WATCH:
        if (!(cqe->flags & IORING_CQE_F_MORE)) u->watch_armed &= ~(UINT64_C(1) << id);
        if (cqe->res > 0) ring_push_woken(r, id);
        if (!(u->watch_armed >> id & 1) && cqe->res != -ECANCELED) arm_watch(r, id);
        return;
    case OP_RECV:
        on_recv(r, id, cqe);
        break;
    case OP_SEND:
        on_send(r, id, cqe);
        break;
    case OP_POLL:
        on_poll(r, id, cqe);
        break;
    }
    struct ring_socket *s = &r->sockets[id];
    if (s->detached && s->in_flight == 0)
        ring_finish_close(r, id);
    else
        arm_socket(r, id);
}

static void uring_collect(struct ring *r, uint64_t timeout_ns, uint64_t budget_ns) {
    struct uring *u = r->backend;
    if (r->listen_again_ns != 0 && clock_now_ns() >= r->listen_again_ns) {
        r->listen_again_ns = 0;
        for (uint32_t i = 0; i < RING_MAX_LISTENERS; i++)
            if (r->listeners[i] >= 0 && !(u->accept_armed >> i & 1)) arm_accept(r, i);
    }
    struct io_uring_cqe *cqe = NULL;
    /* Errors here (interrupted, busy, timed out) leave the completions that have come; those that
     * could not be submitted stay queued for the next turn. */
    if (timeout_ns == 0) {
        (void)io_uring_submit_and_get_events(&u->ring);
    } else {
        struct __kernel_timespec ts = {.tv_sec = (int64_t)(timeout_ns / 1000000000u),
                                       .tv_nsec = (long long)(timeout_ns % 1000000000u)};
        if (timeout_ns == UINT64_MAX) ts.tv_sec = 3600, ts.tv_nsec = 0;
        (void)io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, &ts, NULL);
    }
    const uint64_t start = clock_now_ns();
    uint32_t n = 0;
    while (ring_has_room(r) && io_uring_peek_cqe(&u->ring, &cqe) == 0 && cqe != NULL) {
        on_completion(r, cqe);
        io_uring_cqe_seen(&u->ring, cqe);
        if ((++n & 7) == 0 && clock_now_ns() - start > budget_ns) break;
    }
}

enum { CLOSE_WAIT_NS = 1000 * 1000 * 1000 };

static void uring_close(struct ring *r) {
    struct uring *u = r->backend;
    const uint64_t start = clock_now_ns();
    bool left;
    do { /* the kernel must be done with our buffers before they are freed */
        left = false;
        for (uint32_t i = 0; i < r->cfg.max_sockets; i++) {
            struct ring_socket *s = &r->sockets[i];
            if (s->fd < 0) continue;
            if (!s->detached) {
                s->detached = true;
                uring_detach(r, i);
            }
            left |= s->fd >= 0;
        }
        uring_collect(r, left ? 1000000 : 0, UINT64_MAX);
        struct ring_event ev;
        while (ring_next(r, &ev)) {
            if (ev.kind == RING_ACCEPTED) close(ev.result);
            ring_release(r, &ev);
        }
    } while (left && clock_now_ns() - start < CLOSE_WAIT_NS);
    io_uring_queue_exit(&u->ring);
    free(u->buffer_ring);
    free(u->send_timeouts);
    free(u);
}

const struct ring_ops ring_uring_ops = {
    .name = "io_uring",
    .open = uring_open,
    .close = uring_close,
    .listen = uring_listen,
    .unlisten = uring_unlisten,
    .watch = uring_watch,
    .attach = arm_socket,
    .detach = uring_detach,
    .set_receiving = uring_set_receiving,
    .send = uring_send,
    .release = release,
    .collect = uring_collect,
};
