/* page_sums.h: per KV page, the sum of hidden states after the monitor's layer over some of the
 * page's positions, beside the page's meta (page_meta.summed says which), so that a prompt whose
 * pages come from the prefix cache has the same sum, bit for bit, as one that was computed.
 *
 * A page is named as in layer group 0. A sum covers the positions [first, end) of its page, in
 * ascending order from zero. It is valid as long as the page is not taken anew.
 *
 * Memory: page_sums_open takes [pages of group 0][d_model] F32, touched as pages are summed.
 * Threads: the loop thread.
 */
#ifndef LAC_SCHED_PAGE_SUMS_H
#define LAC_SCHED_PAGE_SUMS_H

#include <stdint.h>

#include "alloc/page_pool.h"

struct page_sums {
    struct page_pool *pool;
    uint32_t d_model;
    float *sums; /* [pages][d_model] */
};

enum status page_sums_open(struct page_sums *s, struct page_pool *pool, uint32_t d_model,
                           struct error *e);
void page_sums_close(struct page_sums *s);

/* The tag of positions [first, end), first < end <= 16; never 0. */
static inline uint8_t page_sums_tag(uint32_t first, uint32_t end) {
    return (uint8_t)(1 + end * (end - 1) / 2 + first);
}
static inline float *page_sums_of(const struct page_sums *s, uint32_t page) {
    return s->sums + (size_t)page * s->d_model;
}
/* What page `from` was summed to (its tag then: `tag`) holds for page `to` of the same content,
 * unless that has a sum already. `from` may have been given back, but not taken again. */
void page_sums_move(struct page_sums *s, uint32_t from, uint8_t tag, uint32_t to);

#endif
