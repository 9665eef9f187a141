#include "sched/prefix_cache.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/check.h"

#define NONE UINT32_MAX

struct entry {
    uint64_t hash[2], domain;
    uint32_t tokens[KV_PAGE_TOKENS];
    uint32_t pages[PLAN_MAX_GROUPS];
    uint32_t parent;
    uint32_t n_children;
    uint32_t next;                 /* in its bucket, or in the free list */
    uint32_t idle_prev, idle_next; /* in the idle list */
    bool found;                    /* in a bucket */
    bool idle;
};

struct prefix_cache {
    struct page_pool *pages;
    uint32_t n_groups;
    uint32_t n_entries, n_idle, capacity;
    uint32_t idle_oldest, idle_newest;
    uint32_t free_list;
    uint32_t bucket_mask;
    struct entry *entries;   /* [capacity] */
    uint32_t *buckets;       /* [bucket_mask + 1] */
    uint32_t *entry_of_page; /* by page of group 0 */
    uint32_t n_pages;        /* of group 0 */
};

enum status prefix_cache_open(struct page_pool *pages, uint32_t n_groups, struct prefix_cache **out,
                              struct error *e) {
    *out = NULL;
    CHECK(n_groups >= 1 && n_groups <= PLAN_MAX_GROUPS);
    struct prefix_cache *c = calloc(1, sizeof *c);
    if (c == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "prefix cache: out of memory");
    c->pages = pages;
    c->n_groups = n_groups;
    c->n_pages = page_pool_counts(pages, 0).capacity;
    c->capacity = c->n_pages;
    for (uint32_t g = 1; g < n_groups; g++) {
        const uint32_t n = page_pool_counts(pages, g).capacity;
        if (n < c->capacity) c->capacity = n;
    }
    uint32_t buckets = 16;
    while (buckets < c->capacity && buckets < UINT32_C(1) << 30) buckets *= 2;
    c->bucket_mask = buckets - 1;
    c->entries = calloc(c->capacity, sizeof *c->entries);
    c->buckets = malloc(buckets * sizeof *c->buckets);
    c->entry_of_page = malloc(c->n_pages * sizeof *c->entry_of_page);
    if (c->entries == NULL || c->buckets == NULL || c->entry_of_page == NULL) {
        free(c->entries);
        free(c->buckets);
        free(c->entry_of_page);
        free(c);
        return error_set(e, STATUS_NO_MEMORY, NULL, "prefix cache: out of memory");
    }
    for (uint32_t i = 0; i < buckets; i++) c->buckets[i] = NONE;
    for (uint32_t i = 0; i < c->n_pages; i++) c->entry_of_page[i] = NONE;
    for (uint32_t i = 0; i < c->capacity; i++)
        c->entries[i].next = i + 1 < c->capacity ? i + 1 : NONE;
    c->free_list = 0;
    c->idle_oldest = c->idle_newest = NONE;
    *out = c;
    return STATUS_OK;
}

static void hash_of(const struct prefix_cache *c, uint32_t parent, uint64_t domain,
                    const uint32_t *tokens, uint64_t hash[2]) {
    struct {
        uint64_t parent[2], domain;
        uint32_t tokens[KV_PAGE_TOKENS];
    } in = {.domain = domain};
    if (parent != PREFIX_ROOT) memcpy(in.parent, c->entries[parent].hash, sizeof in.parent);
    memcpy(in.tokens, tokens, sizeof in.tokens);
    const XXH128_hash_t h = XXH3_128bits(&in, sizeof in);
    hash[0] = h.low64;
    hash[1] = h.high64;
}

static uint32_t find(const struct prefix_cache *c, uint32_t parent, uint64_t domain,
                     const uint32_t *tokens, const uint64_t hash[2]) {
    for (uint32_t i = c->buckets[hash[0] & c->bucket_mask]; i != NONE; i = c->entries[i].next) {
        const struct entry *x = &c->entries[i];
        if (x->hash[0] == hash[0] && x->hash[1] == hash[1] && x->parent == parent &&
            x->domain == domain && memcmp(x->tokens, tokens, sizeof x->tokens) == 0)
            return i;
    }
    return NONE;
}

static void idle_unlink(struct prefix_cache *c, uint32_t i) {
    struct entry *x = &c->entries[i];
    if (x->idle_prev != NONE)
        c->entries[x->idle_prev].idle_next = x->idle_next;
    else
        c->idle_oldest = x->idle_next;
    if (x->idle_next != NONE)
        c->entries[x->idle_next].idle_prev = x->idle_prev;
    else
        c->idle_newest = x->idle_prev;
    x->idle = false;
    c->n_idle--;
}

static void idle_append(struct prefix_cache *c, uint32_t i) {
    struct entry *x = &c->entries[i];
    x->idle_prev = c->idle_newest;
    x->idle_next = NONE;
    if (c->idle_newest != NONE)
        c->entries[c->idle_newest].idle_next = i;
    else
        c->idle_oldest = i;
    c->idle_newest = i;
    x->idle = true;
    c->n_idle++;
}

static void bucket_unlink(struct prefix_cache *c, uint32_t i) {
    struct entry *x = &c->entries[i];
    uint32_t *at = &c->buckets[x->hash[0] & c->bucket_mask];
    while (*at != i) {
        CHECK(*at != NONE);
        at = &c->entries[*at].next;
    }
    *at = x->next;
    x->found = false;
}

static void hold(struct prefix_cache *c, uint32_t i, uint32_t *pages) {
    struct entry *x = &c->entries[i];
    if (x->idle) idle_unlink(c, i);
    for (uint32_t g = 0; g < c->n_groups; g++) {
        pages[g] = x->pages[g];
        page_pool_retain(c->pages, g, pages[g]);
    }
}

uint32_t prefix_cache_acquire(struct prefix_cache *c, uint32_t parent, uint64_t domain,
                              const uint32_t tokens[KV_PAGE_TOKENS], uint32_t *pages) {
    uint64_t hash[2];
    hash_of(c, parent, domain, tokens, hash);
    const uint32_t i = find(c, parent, domain, tokens, hash);
    if (i == NONE) return PREFIX_ROOT;
    hold(c, i, pages);
    return i;
}

static void evict(struct prefix_cache *c, uint32_t i) {
    struct entry *x = &c->entries[i];
    CHECK(x->idle && x->n_children == 0);
    idle_unlink(c, i);
    if (x->found) bucket_unlink(c, i);
    if (x->parent != PREFIX_ROOT) c->entries[x->parent].n_children--;
    c->entry_of_page[x->pages[0]] = NONE;
    for (uint32_t g = 0; g < c->n_groups; g++) page_pool_release(c->pages, g, x->pages[g]);
    x->next = c->free_list;
    c->free_list = i;
    c->n_entries--;
}

/* The oldest idle entry that has no children. A sequence gives its pages back last page first, so
 * children stand before their parents and the first look almost always suffices. */
static bool evict_oldest(struct prefix_cache *c) {
    for (uint32_t i = c->idle_oldest; i != NONE; i = c->entries[i].idle_next) {
        if (c->entries[i].n_children > 0) continue;
        evict(c, i);
        return true;
    }
    return false;
}

uint32_t prefix_cache_insert(struct prefix_cache *c, uint32_t parent, uint64_t domain,
                             const uint32_t tokens[KV_PAGE_TOKENS], uint32_t *pages) {
    uint64_t hash[2];
    hash_of(c, parent, domain, tokens, hash);
    uint32_t i = find(c, parent, domain, tokens, hash);
    if (i != NONE) {
        if (c->entries[i].pages[0] == pages[0]) return i;
        uint32_t cached[PLAN_MAX_GROUPS];
        hold(c, i, cached);
        prefix_cache_release(c, pages);
        memcpy(pages, cached, c->n_groups * sizeof *pages);
        return i;
    }
    CHECK(c->entry_of_page[pages[0]] == NONE);
    if (c->free_list == NONE && !evict_oldest(c)) return PREFIX_ROOT;
    i = c->free_list;
    struct entry *x = &c->entries[i];
    c->free_list = x->next;
    *x = (struct entry){.hash = {hash[0], hash[1]},
                        .domain = domain,
                        .parent = parent,
                        .idle_prev = NONE,
                        .idle_next = NONE,
                        .found = true};
    memcpy(x->tokens, tokens, sizeof x->tokens);
    for (uint32_t g = 0; g < c->n_groups; g++) {
        x->pages[g] = pages[g];
        page_pool_retain(c->pages, g, pages[g]);
    }
    if (parent != PREFIX_ROOT) c->entries[parent].n_children++;
    x->next = c->buckets[hash[0] & c->bucket_mask];
    c->buckets[hash[0] & c->bucket_mask] = i;
    c->entry_of_page[pages[0]] = i;
    c->n_entries++;
    return i;
}

void prefix_cache_release(struct prefix_cache *c, const uint32_t *pages) {
    const uint32_t i = c->entry_of_page[pages[0]];
    for (uint32_t g = 0; g < c->n_groups; g++) page_pool_release(c->pages, g, pages[g]);
    if (i != NONE && page_pool_meta(c->pages, 0, pages[0])->references == 1) idle_append(c, i);
}

void prefix_cache_forget(struct prefix_cache *c, const uint32_t *pages) {
    const uint32_t i = c->entry_of_page[pages[0]];
    if (i != NONE && c->entries[i].found) bucket_unlink(c, i);
}

static bool has_room(const struct prefix_cache *c, uint32_t n, uint32_t plus) {
    for (uint32_t g = 0; g < c->n_groups; g++) {
        const struct page_pool_counts k = page_pool_counts(c->pages, g);
        if (k.free - k.reserved + plus < n) return false;
    }
    return true;
}

bool prefix_cache_make_room(struct prefix_cache *c, uint32_t n) {
    if (!has_room(c, n, c->n_idle)) return false;
    while (!has_room(c, n, 0)) CHECK(evict_oldest(c));
    return true;
}

struct prefix_cache_counts prefix_cache_counts(const struct prefix_cache *c) {
    return (struct prefix_cache_counts){.entries = c->n_entries, .idle = c->n_idle};
}

void prefix_cache_close(struct prefix_cache *c) {
    if (c == NULL) return;
    while (evict_oldest(c)) {
    }
    CHECK(c->n_entries == 0);
    free(c->entries);
    free(c->buckets);
    free(c->entry_of_page);
    free(c);
}
