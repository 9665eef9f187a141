#include "sched/sequence.h"

#include <string.h>

#include "core/check.h"

size_t sequence_footprint(uint32_t n_ctx, uint32_t n_groups) {
    return ((size_t)n_ctx + (size_t)pages_for(n_ctx) * n_groups) * sizeof(uint32_t);
}

void sequence_init(struct sequence *q, void *mem, uint32_t n_ctx) {
    memset(q, 0, sizeof *q);
    q->n_ctx = n_ctx;
    q->tail = PREFIX_ROOT;
    q->tokens = mem;
    q->pages = q->tokens + n_ctx;
}

void sequence_start(struct sequence *q, const uint32_t *tokens, uint32_t n) {
    CHECK(n <= q->n_ctx && q->n_pages == 0);
    memcpy(q->tokens, tokens, n * sizeof *tokens);
    q->n_tokens = q->n_settled = q->n_committed = n;
    q->n_computed = q->n_sealed = q->n_hit = 0;
    q->n_plain = UINT32_MAX;
    q->holds = false;
    q->tail = PREFIX_ROOT;
}

void sequence_restart(struct sequence *q, const uint32_t *tokens, uint32_t n) {
    CHECK(n <= q->n_ctx && q->n_sealed == 0 && q->n_hit == 0);
    memcpy(q->tokens, tokens, n * sizeof *tokens);
    q->n_tokens = q->n_settled = q->n_committed = n;
    q->n_computed = 0;
}

static uint32_t *page_row(const struct sequence *q, const struct kv_store *kv, uint32_t i) {
    return q->pages + (size_t)i * kv->n_groups;
}

uint32_t sequence_adopt_prefix(struct sequence *q, const struct kv_store *kv, uint32_t max_tokens) {
    CHECK(q->n_pages == 0 && max_tokens <= q->n_tokens);
    if (kv->cache == NULL) return 0;
    while ((q->n_pages + 1) * KV_PAGE_TOKENS <= max_tokens) {
        const uint32_t entry = prefix_cache_acquire(kv->cache, q->tail, kv->domain,
                                                    q->tokens + q->n_pages * KV_PAGE_TOKENS,
                                                    page_row(q, kv, q->n_pages));
        if (entry == PREFIX_ROOT) break;
        q->tail = entry;
        q->n_pages++;
    }
    q->n_hit = q->n_sealed = q->n_pages;
    q->n_computed = q->n_pages * KV_PAGE_TOKENS;
    return q->n_computed;
}

void sequence_fork(struct sequence *q, const struct sequence *from, const struct kv_store *kv) {
    CHECK(q->n_pages == 0 && q->n_ctx == from->n_ctx);
    memcpy(q->tokens, from->tokens, from->n_tokens * sizeof *q->tokens);
    memcpy(q->pages, from->pages, (size_t)from->n_pages * kv->n_groups * sizeof *q->pages);
    for (uint32_t i = 0; i < from->n_pages; i++)
        for (uint32_t g = 0; g < kv->n_groups; g++)
            page_pool_retain(kv->pool, g, page_row(q, kv, i)[g]);
    q->n_tokens = from->n_tokens;
    q->n_settled = from->n_settled;
    q->holds = from->holds;
    q->n_committed = from->n_committed;
    q->n_computed = from->n_computed;
    q->n_sealed = from->n_sealed;
    q->n_pages = from->n_pages;
    q->n_hit = from->n_hit;
    q->n_plain = from->n_plain;
    q->tail = from->tail;
}

void sequence_append(struct sequence *q, uint32_t token) {
    CHECK(q->n_tokens < q->n_ctx);
    q->tokens[q->n_tokens++] = token;
}

void sequence_commit(struct sequence *q, uint32_t n) {
    CHECK(n >= q->n_committed && n <= q->n_settled);
    q->n_committed = n;
}

void sequence_cut(struct sequence *q, uint32_t n) {
    CHECK(n >= q->n_committed && n <= q->n_tokens);
    q->n_tokens = n;
    if (q->n_settled > n) q->n_settled = n;
    if (q->n_computed > n) q->n_computed = n;
}

bool sequence_settle(struct sequence *q, uint32_t token) {
    const bool right = q->n_settled < q->n_tokens && q->tokens[q->n_settled] == token;
    if (!right) {
        sequence_cut(q, q->n_settled);
        sequence_append(q, token);
    }
    q->n_settled++;
    if (!q->holds) q->n_committed = q->n_settled;
    return right;
}

static bool shared(const struct sequence *q, const struct kv_store *kv, uint32_t i) {
    return page_pool_meta(kv->pool, 0, page_row(q, kv, i)[0])->references > 1;
}

bool sequence_span_room(const struct sequence *q, const struct kv_store *kv, const struct step *s,
                        uint32_t n, uint32_t ahead) {
    const uint32_t first = q->n_computed / KV_PAGE_TOKENS;
    const uint32_t end = pages_for(q->n_computed + n + ahead);
    uint32_t copies = 0;
    for (uint32_t i = first; i < end && i < q->n_pages; i++) copies += shared(q, kv, i);
    return s->n_spans < s->limits.max_spans && n <= s->limits.max_rows - s->n_rows &&
           (uint64_t)end * kv->n_groups <= s->limits.max_pages - s->n_pages &&
           (uint64_t)copies * kv->n_groups <= s->limits.max_copies - s->n_copies;
}

/* A page of its own in place of page i, in every group. */
static void copy_page(struct sequence *q, const struct kv_store *kv, uint32_t *reserved,
                      struct step *s, uint32_t i) {
    uint32_t *row = page_row(q, kv, i);
    CHECK(*reserved > 0 && i >= q->n_sealed);
    --*reserved;
    for (uint32_t g = 0; g < kv->n_groups; g++) {
        const uint32_t page = page_pool_take_reserved(kv->pool, g);
        s->copies[s->n_copies++] = (struct page_copy){.group = g, .from = row[g], .to = page};
        /* Another holder is left (references were > 1), so the source outlives the copy. */
        page_pool_release(kv->pool, g, row[g]);
        row[g] = page;
    }
}

struct span *sequence_add_span(struct sequence *q, const struct kv_store *kv, uint32_t *reserved,
                               struct step *s, enum span_kind kind, uint32_t slot, uint32_t n,
                               uint32_t ahead) {
    CHECK(n >= 1 && q->n_computed + n <= q->n_tokens);
    CHECK(q->n_computed + n + ahead <= q->n_ctx && sequence_span_room(q, kv, s, n, ahead));
    const uint32_t end = pages_for(q->n_computed + n + ahead);
    for (uint32_t i = q->n_computed / KV_PAGE_TOKENS; i < end && i < q->n_pages; i++)
        if (shared(q, kv, i)) copy_page(q, kv, reserved, s, i);
    for (; q->n_pages < end; q->n_pages++) {
        CHECK(*reserved > 0);
        --*reserved;
        for (uint32_t g = 0; g < kv->n_groups; g++)
            page_row(q, kv, q->n_pages)[g] = page_pool_take_reserved(kv->pool, g);
    }
    struct span *p = step_add_span(s, kind, slot, q->n_computed, q->tokens + q->n_computed, n);
    p->n_pages = end;
    if (q->n_computed + n < q->n_tokens) p->next_id = q->tokens[q->n_computed + n];
    for (uint32_t g = 0; g < kv->n_groups; g++) {
        p->block_table[g] = s->n_pages;
        for (uint32_t i = 0; i < end; i++) s->pages[s->n_pages++] = page_row(q, kv, i)[g];
    }
    return p;
}

void sequence_computed(struct sequence *q, const struct kv_store *kv, uint32_t n) {
    for (uint32_t i = q->n_computed / KV_PAGE_TOKENS; i < pages_for(q->n_computed + n); i++) {
        const uint32_t end = q->n_computed + n - i * KV_PAGE_TOKENS;
        for (uint32_t g = 0; g < kv->n_groups; g++)
            page_pool_meta(kv->pool, g, page_row(q, kv, i)[g])->fill =
                (uint16_t)(end < KV_PAGE_TOKENS ? end : KV_PAGE_TOKENS);
    }
    q->n_computed += n;
    CHECK(q->n_computed <= q->n_tokens);
}

void sequence_seal(struct sequence *q, const struct kv_store *kv) {
    uint32_t n = q->n_computed < q->n_committed ? q->n_computed : q->n_committed;
    if (n > q->n_plain) n = q->n_plain;
    /* The row before the commit index may be run again. */
    if (q->holds && n == q->n_committed && n > 0) n--;
    while ((q->n_sealed + 1) * KV_PAGE_TOKENS <= n) {
        uint32_t *row = page_row(q, kv, q->n_sealed);
        if (kv->cache != NULL) {
            const uint32_t own = row[0];
            const uint8_t summed = page_pool_meta(kv->pool, 0, own)->summed;
            const uint32_t entry = prefix_cache_insert(
                kv->cache, q->tail, kv->domain, q->tokens + q->n_sealed * KV_PAGE_TOKENS, row);
            if (entry == PREFIX_ROOT) return;
            if (row[0] != own && summed != 0) page_sums_move(kv->sums, own, summed, row[0]);
            q->tail = entry;
        }
        for (uint32_t g = 0; g < kv->n_groups; g++) {
            struct page_meta *meta = page_pool_meta(kv->pool, g, row[g]);
            meta->sealed = 1;
            meta->domain = kv->domain;
        }
        q->n_sealed++;
    }
}

void sequence_release(struct sequence *q, const struct kv_store *kv, bool suspect) {
    /* Last page first, so that the cache's oldest idle entries are leaves. */
    for (uint32_t i = q->n_pages; i-- > 0;) {
        const uint32_t *row = page_row(q, kv, i);
        if (kv->cache != NULL) {
            if (suspect && i >= q->n_hit) prefix_cache_forget(kv->cache, row);
            prefix_cache_release(kv->cache, row);
        } else {
            for (uint32_t g = 0; g < kv->n_groups; g++) page_pool_release(kv->pool, g, row[g]);
        }
    }
    q->n_pages = q->n_tokens = q->n_settled = q->n_committed = q->n_computed = q->n_sealed =
        q->n_hit = 0;
    q->tail = PREFIX_ROOT;
}
