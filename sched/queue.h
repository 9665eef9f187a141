/* queue.h: the order in which waiting requests are served: earliest deadline first, then higher
 * priority, then arrival. A bounded indexed heap of u32 names; the caller keeps what they name.
 *
 * Memory: the caller's, queue_footprint(capacity) bytes, 8-aligned; nothing allocates afterwards.
 * Cost: push, pop and remove are O(log n); the first is O(1).
 * Errors: pushing into a full queue, or a name that is queued already or >= capacity, is a CHECK.
 */
#ifndef LAC_SCHED_QUEUE_H
#define LAC_SCHED_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QUEUE_NONE UINT32_MAX

struct queue_key {
    uint64_t deadline_ns; /* UINT64_MAX: none */
    int32_t priority;     /* higher first */
    uint64_t arrival;     /* unique */
};

struct queue {
    uint32_t n, capacity;
    uint32_t *heap;         /* [n] names, a binary heap by key */
    uint32_t *place;        /* [capacity] index in heap, or QUEUE_NONE */
    struct queue_key *keys; /* [capacity] */
};

bool queue_key_before(const struct queue_key *a, const struct queue_key *b);

size_t queue_footprint(uint32_t capacity);
void queue_init(struct queue *q, void *mem, uint32_t capacity);
void queue_push(struct queue *q, uint32_t name, const struct queue_key *key);
/* The next in order, or QUEUE_NONE. */
uint32_t queue_first(const struct queue *q);
/* True if `name` was queued and is not any more. */
bool queue_remove(struct queue *q, uint32_t name);
/* Deadline of the first: the earliest of all. UINT64_MAX if empty or none has one. */
uint64_t queue_next_deadline_ns(const struct queue *q);

#endif
