#include "sched/page_sums.h"

#include <stdlib.h>
#include <string.h>

enum status page_sums_open(struct page_sums *s, struct page_pool *pool, uint32_t d_model,
                           struct error *e) {
    const size_t n = page_pool_counts(pool, 0).capacity;
    *s = (struct page_sums){.pool = pool, .d_model = d_model};
    /* calloc: a page that no request sums costs no memory. */
    s->sums = calloc(n * d_model, sizeof *s->sums);
    if (s->sums != NULL) return STATUS_OK;
    return error_set(e, STATUS_NO_MEMORY, NULL, "out of memory for the monitor's sums");
}

void page_sums_close(struct page_sums *s) {
    free(s->sums);
    memset(s, 0, sizeof *s);
}

void page_sums_move(struct page_sums *s, uint32_t from, uint8_t tag, uint32_t to) {
    struct page_meta *meta = page_pool_meta(s->pool, 0, to);
    if (meta->summed == tag) return;
    memcpy(page_sums_of(s, to), page_sums_of(s, from), s->d_model * sizeof(float));
    meta->summed = tag;
}
