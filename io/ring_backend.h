/* ring_backend.h: what the two backends of ring.h share. Private to io/ring*.c. */
#ifndef LAC_IO_RING_BACKEND_H
#define LAC_IO_RING_BACKEND_H

#include "io/deadline_heap.h"
#include "io/ring.h"

struct ring_socket {
    int fd; /* -1: the number is free */
    uint32_t generation;
    uint32_t next_free;
    uint32_t next_starved; /* list of sockets waiting for a buffer; RING_NONE ends it */
    bool starved;
    bool receiving; /* wanted */
    bool detached;  /* RING_CLOSED comes when no operation is left */
    bool gone;      /* the peer closed or broke the connection */
    bool sending;
    bool is_tcp;
    uint8_t armed;      /* backend's own: operations or interests in flight */
    uint32_t in_flight; /* io_uring: completions still to come */
    const char *send_data;
    size_t send_n;
    uint64_t send_timeout_ns;
    int32_t send_result; /* io_uring, zero copy: kept until the kernel lets go of the bytes */
};

struct ring_ops {
    const char *name;
    enum status (*open)(struct ring *r, struct error *e);
    void (*close)(struct ring *r);
    enum status (*listen)(struct ring *r, uint32_t listener, struct error *e);
    void (*unlisten)(struct ring *r, uint32_t listener);
    enum status (*watch)(struct ring *r, uint32_t watch, struct error *e);
    void (*attach)(struct ring *r, uint32_t socket);
    void (*detach)(struct ring *r, uint32_t socket);
    void (*set_receiving)(struct ring *r, uint32_t socket);
    void (*send)(struct ring *r, uint32_t socket);
    /* A buffer is free again. */
    void (*release)(struct ring *r, uint32_t buffer);
    /* Submit and collect; wait at most timeout_ns; stop collecting after about budget_ns. */
    void (*collect)(struct ring *r, uint64_t timeout_ns, uint64_t budget_ns);
};

struct ring {
    const struct ring_ops *ops;
    struct ring_config cfg;
    void *backend;
    char note[160];
    struct ring_socket *sockets; /* [max_sockets] */
    uint32_t free_socket;
    uint32_t starved;                  /* first socket that waits for a buffer */
    char *buffers;                     /* [n_buffers][RING_BUFFER_BYTES] */
    int listeners[RING_MAX_LISTENERS]; /* -1: none */
    uint64_t listen_again_ns;          /* accept failed for want of descriptors: try again then */
    int watches[RING_MAX_WATCHES];
    /* Keys: 2 * socket = ring_set_deadline, 2 * socket + 1 = its send (epoll). */
    struct deadline_heap deadlines;
    struct ring_event *pending; /* circular */
    uint32_t pending_cap, pending_first, n_pending;
    void *mem;
};

extern const struct ring_ops ring_uring_ops;
extern const struct ring_ops ring_epoll_ops;

enum { RING_ACCEPT_PAUSE_NS = 100 * 1000 * 1000 };

/* Room for at least one more event of every kind that an operation in flight may bring? */
bool ring_has_room(const struct ring *r);
/* All of these note the event as pending. */
void ring_push_accepted(struct ring *r, uint32_t listener, int fd);
void ring_push_received(struct ring *r, uint32_t socket, int32_t result, uint32_t buffer);
void ring_push_sent(struct ring *r, uint32_t socket, int32_t result);
void ring_push_woken(struct ring *r, uint32_t watch);
/* Closes the descriptor and notes RING_CLOSED. */
void ring_finish_close(struct ring *r, uint32_t socket);
void ring_starve(struct ring *r, uint32_t socket);
/* The next socket that waits for a buffer, taken off the list, or RING_NONE. */
uint32_t ring_unstarve(struct ring *r);

#endif
