/* ring.h: the completion interface of the loop: sockets, deadlines and eventfds, over io_uring or
 * over epoll, with the same behaviour.
 *
 * Two halves, kept apart on purpose:
 *  - collecting (ring_wait, ring_reap) moves completions from the kernel to a pending list and
 * notes which peers are gone; it parses nothing and calls nobody, so it may run between two layers
 * of a step;
 *  - dispatching (ring_next) hands the pending events out one by one, in the order they came.
 *
 * Sockets are small numbers 0 .. max_sockets-1, given by ring_attach and free again after
 * RING_CLOSED. Receiving is on from the start; each RING_RECEIVED carries a buffer of the ring,
 * which must be given back with ring_release. One send at a time per socket; its bytes stay
 * unchanged until RING_SENT. After ring_detach only RING_CLOSED comes for that socket (its other
 * events are dropped).
 *
 * Limits: memory, buffers and events are planned at ring_open; when all buffers are out, receiving
 * stalls (the kernel holds the data) until one is released.
 * Threads: everything from the thread that opened the ring.
 */
#ifndef LAC_IO_RING_H
#define LAC_IO_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

struct ring;

enum ring_kind { RING_AUTO, RING_URING, RING_EPOLL };

enum { RING_MAX_LISTENERS = 4, RING_MAX_WATCHES = 4, RING_BUFFER_BYTES = 16 * 1024 };
#define RING_NONE UINT32_MAX

struct ring_config {
    enum ring_kind kind;
    uint32_t max_sockets;
    uint32_t n_buffers; /* a power of two; receive buffers of RING_BUFFER_BYTES */
};

enum ring_event_kind {
    RING_ACCEPTED, /* id = listener, result = a file descriptor, now the caller's */
    RING_RECEIVED, /* id = socket; data, n; n = 0: end of file; result < 0: broken, -errno */
    RING_SENT,     /* id = socket; result = bytes sent (may be fewer than asked), or -errno:
                    * -ETIMEDOUT when nothing could be sent in time */
    RING_EXPIRED,  /* id = socket: its deadline passed (and is cleared) */
    RING_CLOSED,   /* id = socket: closed, the number is free */
    RING_WOKEN,    /* id = watch: the eventfd was signalled (and is reset) */
};

struct ring_event {
    enum ring_event_kind kind;
    uint32_t id;
    int32_t result;
    uint32_t n;
    const char *data;
    uint32_t buffer; /* RING_NONE: nothing to release */
    uint32_t generation;
};

/* RING_AUTO takes io_uring where the kernel has it (6.0 or later: multishot receive) and lets us,
 * and epoll otherwise. RING_URING fails with STATUS_UNSUPPORTED where it is refused. */
enum status ring_open(const struct ring_config *cfg, struct ring **out, struct error *e);
/* Closes all sockets that are attached (not listeners, not watches); pending events are dropped. */
void ring_close(struct ring *r);

const char *ring_name(const struct ring *r); /* "io_uring" or "epoll" */
/* Why io_uring is not used, one line; "" if it is, or was not tried. */
const char *ring_note(const struct ring *r);

/* The descriptor stays the caller's. */
enum status ring_listen(struct ring *r, int fd, uint32_t listener, struct error *e);
void ring_unlisten(struct ring *r, uint32_t listener);
enum status ring_watch(struct ring *r, int event_fd, uint32_t watch, struct error *e);

/* Takes over a connected stream socket. RING_NONE when all numbers are in use (fd stays open). */
uint32_t ring_attach(struct ring *r, int fd);
void ring_detach(struct ring *r, uint32_t socket);
/* No more bytes will be sent; receiving goes on. No send may be in flight. */
void ring_shutdown(struct ring *r, uint32_t socket);

/* While off, the kernel holds arriving bytes; the end of the connection is still seen, as
 * RING_RECEIVED with n = 0. A few events already on their way may still come. */
void ring_set_receiving(struct ring *r, uint32_t socket, bool on);
void ring_send(struct ring *r, uint32_t socket, const void *data, size_t n, uint64_t timeout_ns);
void ring_set_deadline(struct ring *r, uint32_t socket, uint64_t at_ns); /* 0: none */

/* Has the peer closed or broken the connection, as far as collected? True before its event is
 * dispatched. */
bool ring_gone(const struct ring *r, uint32_t socket);

/* Submits what was asked, waits up to timeout_ns for at least one event unless some are pending. */
void ring_wait(struct ring *r, uint64_t timeout_ns);
/* Submits and collects without waiting, for about budget_ns. Returns the number of pending events.
 */
uint32_t ring_reap(struct ring *r, uint64_t budget_ns);

bool ring_next(struct ring *r, struct ring_event *out);
void ring_release(struct ring *r, const struct ring_event *event);

#endif
