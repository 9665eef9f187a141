#include "sched/queue.h"

#include "core/check.h"

bool queue_key_before(const struct queue_key *a, const struct queue_key *b) {
    if (a->deadline_ns != b->deadline_ns) return a->deadline_ns < b->deadline_ns;
    if (a->priority != b->priority) return a->priority > b->priority;
    return a->arrival < b->arrival;
}

size_t queue_footprint(uint32_t capacity) {
    return capacity * (sizeof(struct queue_key) + 2 * sizeof(uint32_t));
}

void queue_init(struct queue *q, void *mem, uint32_t capacity) {
    q->n = 0;
    q->capacity = capacity;
    q->keys = mem;
    q->heap = (uint32_t *)(void *)(q->keys + capacity);
    q->place = q->heap + capacity;
    for (uint32_t i = 0; i < capacity; i++) q->place[i] = QUEUE_NONE;
}

static bool before(const struct queue *q, uint32_t a, uint32_t b) {
    return queue_key_before(&q->keys[a], &q->keys[b]);
}

static void put(struct queue *q, uint32_t at, uint32_t name) {
    q->heap[at] = name;
    q->place[name] = at;
}

static void sift_up(struct queue *q, uint32_t at, uint32_t name) {
    while (at > 0 && before(q, name, q->heap[(at - 1) / 2])) {
        put(q, at, q->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    put(q, at, name);
}

static void sift_down(struct queue *q, uint32_t at, uint32_t name) {
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= q->n) break;
        if (child + 1 < q->n && before(q, q->heap[child + 1], q->heap[child])) child++;
        if (!before(q, q->heap[child], name)) break;
        put(q, at, q->heap[child]);
        at = child;
    }
    put(q, at, name);
}

void queue_push(struct queue *q, uint32_t name, const struct queue_key *key) {
    CHECK(name < q->capacity && q->n < q->capacity && q->place[name] == QUEUE_NONE);
    q->keys[name] = *key;
    sift_up(q, q->n++, name);
}

uint32_t queue_first(const struct queue *q) {
    return q->n > 0 ? q->heap[0] : QUEUE_NONE;
}

bool queue_remove(struct queue *q, uint32_t name) {
    CHECK(name < q->capacity);
    const uint32_t at = q->place[name];
    if (at == QUEUE_NONE) return false;
    q->place[name] = QUEUE_NONE;
    const uint32_t last = q->heap[--q->n];
    if (last == name) return true;
    if (at > 0 && before(q, last, q->heap[(at - 1) / 2]))
        sift_up(q, at, last);
    else
        sift_down(q, at, last);
    return true;
}

uint64_t queue_next_deadline_ns(const struct queue *q) {
    return q->n > 0 ? q->keys[q->heap[0]].deadline_ns : UINT64_MAX;
}
