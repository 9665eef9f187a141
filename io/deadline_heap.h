/* deadline_heap.h: the earliest of a fixed number of deadlines.
 *
 * Keys are 0 .. n_keys-1, each with at most one deadline (nanoseconds of core/clock.h). Setting,
 * clearing and popping cost O(log n); nothing is allocated after init.
 * The caller owns the memory (deadline_heap_footprint bytes, 8-aligned).
 */
#ifndef LAC_IO_DEADLINE_HEAP_H
#define LAC_IO_DEADLINE_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct deadline_heap {
    uint64_t *at;   /* [n_keys] */
    uint32_t *heap; /* [n_keys] keys, a binary heap by `at` */
    uint32_t *pos;  /* [n_keys] index in heap + 1, 0 = none */
    uint32_t n_keys, n;
};

size_t deadline_heap_footprint(uint32_t n_keys);
void deadline_heap_init(struct deadline_heap *h, void *mem, uint32_t n_keys);

/* at_ns = 0 clears. */
void deadline_heap_set(struct deadline_heap *h, uint32_t key, uint64_t at_ns);

/* UINT64_MAX when empty. */
uint64_t deadline_heap_next(const struct deadline_heap *h);

/* Takes the earliest deadline out if it is <= now_ns. */
bool deadline_heap_pop(struct deadline_heap *h, uint64_t now_ns, uint32_t *key);

#endif
