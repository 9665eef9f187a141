/* page_pool.h: KV pages. One pool; per layer group, pages of one size named by u32.
 *
 * Memory: one address range is reserved at init; slabs are taken from a jemalloc arena (no tcache)
 * whose extent hooks hand out that range, so that jemalloc's statistics see them, and become
 * resident as they are first used (at once under mlock). A page's address, 64-byte aligned, never
 * changes. Its bytes are not cleared between users. Capacity is fixed at init.
 * Errors: only page_pool_open can fail (STATUS_INVALID: sizes that make no sense or overflow;
 * STATUS_NO_MEMORY). Misuse (a group or page that is not there, a reference too many or too few)
 * is a programmer's error and aborts.
 * References: page_pool_take gives a page with one reference; retain and release count; at zero it
 * is free at once. A page with more than one reference must not be written: copy it first (the
 * scheduler lists the copy in a step; page_pool only counts).
 * Reservation: admission reserves pages before it starts a request, so that take never fails for a
 * request that kept its promise: page_pool_reserve(n) moves n from unreserved to reserved,
 * take_reserved uses one up, unreserve gives back. Under ASan free pages and red zones between
 * pages are poisoned by hand. Threads: the loop thread only; backends read and write page bytes.
 */
#ifndef LAC_ALLOC_PAGE_POOL_H
#define LAC_ALLOC_PAGE_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#define PAGE_NONE UINT32_MAX
enum { PAGE_POOL_MAX_GROUPS = 4 };

struct page_pool;

struct page_pool_config {
    uint32_t n_groups;
    size_t page_bytes[PAGE_POOL_MAX_GROUPS];
    uint32_t n_pages[PAGE_POOL_MAX_GROUPS]; /* capacity */
    bool huge_pages, mlock;
};

/* By page, kept by the pool's users; zeroed by take. */
struct page_meta {
    uint32_t references;
    uint16_t fill;   /* positions written */
    uint8_t sealed;  /* filled, paid, committed: may be shared through the prefix cache */
    uint8_t summed;  /* which positions the monitor's sum covers (sched/page_sums.h); 0: none */
    uint64_t domain; /* KV domain (DESIGN.md 4.6), 0 before it is known */
};

enum status page_pool_open(const struct page_pool_config *cfg, struct page_pool **out,
                           struct error *e);
void page_pool_close(struct page_pool *p); /* NULL: nothing */
/* Bytes that the pool will take when every page is in use, its records included; for the memory
 * plan. SIZE_MAX when the configuration cannot be made. */
size_t page_pool_footprint(const struct page_pool_config *cfg);

/* All groups at once: positions are the same in each, so are page counts. A sequence of t tokens
 * uses ceil(t / 16) pages of every group. */
bool page_pool_reserve(struct page_pool *p, uint32_t group, uint32_t n);
void page_pool_unreserve(struct page_pool *p, uint32_t group, uint32_t n);
/* From the caller's reservation: never fails (CHECK). */
uint32_t page_pool_take_reserved(struct page_pool *p, uint32_t group);
/* From what nobody reserved: PAGE_NONE if there is none. */
uint32_t page_pool_take(struct page_pool *p, uint32_t group);
void page_pool_retain(struct page_pool *p, uint32_t group, uint32_t page);
void page_pool_release(struct page_pool *p, uint32_t group, uint32_t page);

void *page_pool_data(const struct page_pool *p, uint32_t group, uint32_t page);
struct page_meta *page_pool_meta(struct page_pool *p, uint32_t group, uint32_t page);

struct page_pool_counts {
    uint32_t capacity, free, used, reserved; /* free + used = capacity; reserved <= free */
    uint32_t shared;                         /* pages with more than one reference */
};
struct page_pool_counts page_pool_counts(const struct page_pool *p, uint32_t group);

#endif
