#include "io/deadline_heap.h"

#include <string.h>

#include "core/check.h"

size_t deadline_heap_footprint(uint32_t n_keys) {
    return (size_t)n_keys * (sizeof(uint64_t) + 2 * sizeof(uint32_t));
}

void deadline_heap_init(struct deadline_heap *h, void *mem, uint32_t n_keys) {
    memset(mem, 0, deadline_heap_footprint(n_keys));
    h->at = mem;
    h->heap = (uint32_t *)(h->at + n_keys);
    h->pos = h->heap + n_keys;
    h->n_keys = n_keys;
    h->n = 0;
}

static void place(struct deadline_heap *h, uint32_t i, uint32_t key) {
    h->heap[i] = key;
    h->pos[key] = i + 1;
}

static void sift_up(struct deadline_heap *h, uint32_t i, uint32_t key) {
    while (i > 0) {
        const uint32_t up = (i - 1) / 2;
        if (h->at[h->heap[up]] <= h->at[key]) break;
        place(h, i, h->heap[up]);
        i = up;
    }
    place(h, i, key);
}

static void sift_down(struct deadline_heap *h, uint32_t i, uint32_t key) {
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= h->n) break;
        if (child + 1 < h->n && h->at[h->heap[child + 1]] < h->at[h->heap[child]]) child++;
        if (h->at[h->heap[child]] >= h->at[key]) break;
        place(h, i, h->heap[child]);
        i = child;
    }
    place(h, i, key);
}

static void take_out(struct deadline_heap *h, uint32_t key) {
    const uint32_t i = h->pos[key] - 1;
    h->pos[key] = 0;
    const uint32_t last = h->heap[--h->n];
    if (last == key) return;
    /* The key that fills the hole may belong above or below it. */
    if (i > 0 && h->at[last] < h->at[h->heap[(i - 1) / 2]])
        sift_up(h, i, last);
    else
        sift_down(h, i, last);
}

void deadline_heap_set(struct deadline_heap *h, uint32_t key, uint64_t at_ns) {
    CHECK(key < h->n_keys);
    if (h->pos[key] != 0) {
        if (h->at[key] == at_ns) return;
        take_out(h, key);
    }
    if (at_ns == 0) return;
    h->at[key] = at_ns;
    h->n++;
    sift_up(h, h->n - 1, key);
}

uint64_t deadline_heap_next(const struct deadline_heap *h) {
    return h->n != 0 ? h->at[h->heap[0]] : UINT64_MAX;
}

bool deadline_heap_pop(struct deadline_heap *h, uint64_t now_ns, uint32_t *key) {
    if (h->n == 0 || h->at[h->heap[0]] > now_ns) return false;
    *key = h->heap[0];
    take_out(h, *key);
    return true;
}
