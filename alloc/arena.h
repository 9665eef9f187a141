/* arena.h: a jemalloc arena of our own over one reserved range of addresses.
 *
 * arena_open reserves the range (no memory yet); jemalloc's extent hooks hand out pieces of it, so
 * jemalloc's statistics see every byte and nothing of it mixes with the general heap. No thread
 * cache. Memory becomes resident when it is first touched, or at once under `mlock`. The arena's
 * own bookkeeping (a few MiB of addresses, some 100 KiB resident) lies in the same range.
 * What is taken is never given back alone: arena_close ends everything at once.
 * Errors: STATUS_NO_MEMORY when addresses, commit charge or the lock limit run out; the arena stays
 * usable after a failed take.
 * Huge pages are a wish (MADV_HUGEPAGE; the kernel may say no); mlock is a demand.
 * Threads: one at a time; the memory itself belongs to whoever took it.
 */
#ifndef LAC_ALLOC_ARENA_H
#define LAC_ALLOC_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

enum { ARENA_HUGE_PAGE_BYTES = 2 * 1024 * 1024 };

struct arena;

struct arena_config {
    const char *name;   /* for messages; outlives the arena */
    size_t bytes;       /* sum of all takes */
    uint32_t max_takes; /* how many there will be */
    size_t align;       /* largest alignment asked for, a power of two */
    bool huge_pages, mlock;
};

enum status arena_open(const struct arena_config *cfg, struct arena **out, struct error *e);
void arena_close(struct arena *a); /* NULL: nothing */

/* Zero-filled memory. align: a power of two, at most the configured one (raised to the OS page). */
enum status arena_take(struct arena *a, size_t bytes, size_t align, void **out, struct error *e);

struct arena_counts {
    size_t range_bytes;     /* addresses reserved */
    size_t committed_bytes; /* made accessible for jemalloc so far, bookkeeping included */
    size_t taken_bytes;     /* sum of arena_take, as asked */
    size_t allocated_bytes; /* what jemalloc's statistics say was allocated (rounded up to its size
                             * classes); 0 where the library keeps none */
    bool huge_pages;        /* every wish for huge pages was accepted */
};
struct arena_counts arena_counts(const struct arena *a);

/* True when `p` lies in the arena's range. */
bool arena_owns(const struct arena *a, const void *p);

#endif
