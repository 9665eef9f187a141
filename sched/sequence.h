/* sequence.h: the tokens of one choice and the KV pages that hold them.
 *
 * Indexes, always n_sealed * 16 <= n_committed <= n_settled <= n_tokens, n_computed <= n_tokens:
 *   n_tokens     known tokens (prompt, drawn, then drafts)
 *   n_settled    of them given or drawn by the model; what follows are drafts
 *   n_committed  the commit index: nothing past it is sent, nothing before it changes. It is
 *                n_settled, unless the sequence holds: then its owner commits, and may cut back
 *   n_computed   positions whose KV is in the pages
 *   n_sealed     leading pages that are full, committed, and behind an output that was a number;
 * they may be shared through the prefix cache. Pages are shared by reference count and copied
 * before they are written (copy on write). New pages come from a reservation: a count of pages per
 * group, equal in all groups, that admission took from the pool; taking more is a CHECK.
 *
 * Memory: the caller's, sequence_footprint() bytes, 8-aligned; nothing allocates.
 * Threads: the loop thread, while no step that names the sequence is in flight.
 */
#ifndef LAC_SCHED_SEQUENCE_H
#define LAC_SCHED_SEQUENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/page_pool.h"
#include "core/step.h"
#include "sched/page_sums.h"
#include "sched/prefix_cache.h"

/* Where sequences keep their pages. */
struct kv_store {
    struct page_pool *pool;
    struct prefix_cache *cache; /* NULL: off */
    struct page_sums *sums;     /* NULL: no request is monitored */
    uint32_t n_groups;
    uint64_t domain;
};

struct sequence {
    uint32_t n_tokens, n_settled, n_committed, n_computed, n_sealed;
    bool holds;       /* drawn tokens are not committed by themselves (sched/monitor.h) */
    uint32_t n_pages; /* entries of each block table in use */
    uint32_t n_hit;   /* leading pages that came from the cache */
    uint32_t n_plain; /* leading positions whose KV depends on the tokens alone: others never go
                         into the cache (UINT32_MAX: all) */
    uint32_t n_ctx;
    uint32_t tail;    /* prefix entry of the last sealed page, or PREFIX_ROOT */
    uint32_t *tokens; /* [n_ctx] */
    uint32_t *pages;  /* [pages of n_ctx][n_groups] */
};

static inline uint32_t pages_for(uint32_t n_tokens) {
    return n_tokens / KV_PAGE_TOKENS + (n_tokens % KV_PAGE_TOKENS != 0);
}

size_t sequence_footprint(uint32_t n_ctx, uint32_t n_groups);
void sequence_init(struct sequence *q, void *mem, uint32_t n_ctx);

/* Empty, with these committed tokens. n <= n_ctx. */
void sequence_start(struct sequence *q, const uint32_t *tokens, uint32_t n);
/* Other tokens in the same pages, of which none may be sealed or shared. n <= n_ctx. */
void sequence_restart(struct sequence *q, const uint32_t *tokens, uint32_t n);
/* Takes leading whole pages from the prefix cache, at most `max_tokens` tokens of them, and returns
 * the number of tokens whose KV is now there. */
uint32_t sequence_adopt_prefix(struct sequence *q, const struct kv_store *kv, uint32_t max_tokens);
/* Pages and tokens of `from`; no page is copied yet. */
void sequence_fork(struct sequence *q, const struct sequence *from, const struct kv_store *kv);
void sequence_append(struct sequence *q, uint32_t token);
/* The model draws `token` at n_settled: it is settled and, unless the sequence holds, committed.
 * Where a draft stood there that equals it, returns true, and what follows the draft stays; else
 * everything that is not settled is cut. */
bool sequence_settle(struct sequence *q, uint32_t token);
/* Everything up to n is final. n <= n_settled. */
void sequence_commit(struct sequence *q, uint32_t n);
/* Forgets tokens from n on. n >= n_committed. Pages stay, to be written again. Where the row of
 * token n - 1 is to be run once more (its logits were not kept) the caller lowers n_computed: a
 * sequence that holds has no sealed page there. */
void sequence_cut(struct sequence *q, uint32_t n);

/* Appends a span of the next n positions to be computed, with pages to write them to, and `ahead`
 * positions behind them, which guesses may write; shared pages are copied first (listed in the
 * step). The step must have room: see sequence_span_room. */
struct span *sequence_add_span(struct sequence *q, const struct kv_store *kv, uint32_t *reserved,
                               struct step *s, enum span_kind kind, uint32_t slot, uint32_t n,
                               uint32_t ahead);
/* Whether the step has room for such a span: spans, rows, block tables, copies. */
bool sequence_span_room(const struct sequence *q, const struct kv_store *kv, const struct step *s,
                        uint32_t n, uint32_t ahead);
/* The step ran: n more positions are there. */
void sequence_computed(struct sequence *q, const struct kv_store *kv, uint32_t n);
/* An output of the last computed position was a number: seals and caches what is complete. */
void sequence_seal(struct sequence *q, const struct kv_store *kv);

/* Gives all pages back. With `suspect`, pages that this sequence sealed are forgotten by the cache.
 */
void sequence_release(struct sequence *q, const struct kv_store *kv, bool suspect);

#endif
