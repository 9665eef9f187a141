/* prefix_cache.h: sealed KV pages, found again by what they hold.
 *
 * An entry is one sealed page of every layer group for the same 16 positions. It is found by its
 * parent entry, its 16 tokens and its KV domain, which are compared, not only hashed: the hash is
 * the chained XXH3-128 of (parent's hash, tokens, domain). Equal content is kept once. The cache
 * holds one reference on each of its pages. An entry that nobody else holds is idle; idle entries
 * are evicted, least recently used first, when pages are needed. A sequence holds its whole chain,
 * so no entry goes before its children.
 *
 * Bound: at most as many entries as the smallest group has pages, so it can never hold more than
 * the pool; everything is allocated at open. Errors: open may return STATUS_NO_MEMORY; after that
 * nothing fails. Threads: the loop thread.
 */
#ifndef LAC_SCHED_PREFIX_CACHE_H
#define LAC_SCHED_PREFIX_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/page_pool.h"
#include "core/plan.h"
#include "core/status.h"

#define PREFIX_ROOT UINT32_MAX /* parent of a sequence's first page; also "no entry" */

struct prefix_cache;

enum status prefix_cache_open(struct page_pool *pages, uint32_t n_groups, struct prefix_cache **out,
                              struct error *e);
/* Releases the cached pages; no sequence may hold one any more. */
void prefix_cache_close(struct prefix_cache *c);

/* The entry behind `parent` with these 16 tokens, or PREFIX_ROOT. When found, the caller gets one
 * reference on each of its pages, named in pages[n_groups]. */
uint32_t prefix_cache_acquire(struct prefix_cache *c, uint32_t parent, uint64_t domain,
                              const uint32_t tokens[KV_PAGE_TOKENS], uint32_t *pages);

/* Caches pages[n_groups], which are full and of which the caller holds one reference each. The
 * caller must hold `parent`. If the same content is cached already, the caller's references move to
 * the cached pages and pages[] is rewritten: the bits are the same. Returns the entry; PREFIX_ROOT
 * if there was no room (never when all pages come from the same pool). */
uint32_t prefix_cache_insert(struct prefix_cache *c, uint32_t parent, uint64_t domain,
                             const uint32_t tokens[KV_PAGE_TOKENS], uint32_t *pages);

/* Gives back one reference on each of pages[n_groups], cached or not. */
void prefix_cache_release(struct prefix_cache *c, const uint32_t *pages);

/* The pages are suspect: they are not found any more. Whoever holds them keeps them. */
void prefix_cache_forget(struct prefix_cache *c, const uint32_t *pages);

/* Evicts until every group has `n` pages that are neither used nor reserved. Evicts nothing and
 * returns false if that cannot be reached. */
bool prefix_cache_make_room(struct prefix_cache *c, uint32_t n);

struct prefix_cache_counts {
    uint32_t entries, idle;
};
struct prefix_cache_counts prefix_cache_counts(const struct prefix_cache *c);

#endif
