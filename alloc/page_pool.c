#include "alloc/page_pool.h"

#include <stdlib.h>

#include "alloc/arena.h"
#include "alloc/poison.h"
#include "core/check.h"

/* Large enough that a slab's unused tail and alignment gap are small beside it. */
enum { SLAB_TARGET_BYTES = 16 * 1024 * 1024, PAGE_ALIGN = 64 };

struct page_group {
    size_t page_bytes, stride_bytes; /* stride: page, rounded up, and red zone */
    uint32_t n_pages;
    uint32_t slab_shift; /* a slab holds 1 << slab_shift pages */
    uint32_t n_slabs;
    uint8_t **slabs;         /* [n_slabs] */
    struct page_meta *metas; /* [n_pages] */
    uint32_t *free_pages; /* [n_pages], a stack: the page freed last is taken first, being warm */
    uint32_t n_free, n_reserved, n_shared;
};

struct page_pool {
    struct arena *arena;
    uint32_t n_groups;
    struct page_group groups[PAGE_POOL_MAX_GROUPS];
};

static struct page_group *group_of(const struct page_pool *p, uint32_t group) {
    CHECK(group < p->n_groups);
    return (struct page_group *)&p->groups[group];
}

static struct page_meta *meta_of(const struct page_group *g, uint32_t page) {
    CHECK(page < g->n_pages);
    return &g->metas[page];
}

static uint8_t *data_of(const struct page_group *g, uint32_t page) {
    const uint32_t in_slab = page & ((1u << g->slab_shift) - 1);
    return g->slabs[page >> g->slab_shift] + in_slab * g->stride_bytes;
}

/* False when the sizes make no sense or overflow. */
static bool plan_group(struct page_group *g, size_t page_bytes, uint32_t n_pages) {
    if (page_bytes == 0 || n_pages == 0 || n_pages == PAGE_NONE) return false;
    if (page_bytes > SIZE_MAX / 4) return false;
    g->page_bytes = page_bytes;
    g->stride_bytes = (page_bytes + PAGE_ALIGN - 1) / PAGE_ALIGN * PAGE_ALIGN;
    g->stride_bytes += POISON_RED_ZONE_BYTES;
    g->n_pages = n_pages;
    while (g->stride_bytes << (g->slab_shift + 1) <= SLAB_TARGET_BYTES) g->slab_shift++;
    g->n_slabs = (uint32_t)(((uint64_t)n_pages + (1u << g->slab_shift) - 1) >> g->slab_shift);
    size_t all;
    return !__builtin_mul_overflow(g->stride_bytes, (size_t)n_pages, &all);
}

/* One red zone in front of the first page. */
static size_t slab_bytes(const struct page_group *g, uint32_t slab) {
    const uint32_t first = slab << g->slab_shift;
    const uint32_t left = g->n_pages - first;
    const uint32_t n = left < (1u << g->slab_shift) ? left : 1u << g->slab_shift;
    return n * g->stride_bytes + POISON_RED_ZONE_BYTES;
}

static bool plan_pool(struct page_pool *p, const struct page_pool_config *cfg, size_t *bytes,
                      size_t *n_slabs) {
    *bytes = 0;
    *n_slabs = 0;
    if (cfg->n_groups == 0 || cfg->n_groups > PAGE_POOL_MAX_GROUPS) return false;
    p->n_groups = cfg->n_groups;
    for (uint32_t i = 0; i < cfg->n_groups; i++) {
        struct page_group *g = &p->groups[i];
        if (!plan_group(g, cfg->page_bytes[i], cfg->n_pages[i])) return false;
        const size_t group_bytes =
            g->stride_bytes * g->n_pages + (size_t)g->n_slabs * POISON_RED_ZONE_BYTES;
        if (__builtin_add_overflow(*bytes, group_bytes, bytes)) return false;
        *n_slabs += g->n_slabs;
    }
    return *n_slabs < UINT32_MAX;
}

static enum status open_group(struct page_pool *p, struct page_group *g, struct error *e) {
    g->slabs = calloc(g->n_slabs, sizeof(*g->slabs));
    g->metas = calloc(g->n_pages, sizeof(*g->metas));
    g->free_pages = calloc(g->n_pages, sizeof(*g->free_pages));
    if (g->slabs == NULL || g->metas == NULL || g->free_pages == NULL) {
        return error_set(e, STATUS_NO_MEMORY, NULL, "KV pages: out of memory for %u page records",
                         g->n_pages);
    }
    for (uint32_t i = 0; i < g->n_slabs; i++) {
        const size_t bytes = slab_bytes(g, i);
        void *slab;
        const enum status s = arena_take(p->arena, bytes, PAGE_ALIGN, &slab, e);
        if (s != STATUS_OK) return s;
        poison(slab, bytes);
        g->slabs[i] = (uint8_t *)slab + POISON_RED_ZONE_BYTES;
    }
    for (uint32_t i = 0; i < g->n_pages; i++) g->free_pages[i] = g->n_pages - 1 - i;
    g->n_free = g->n_pages;
    return STATUS_OK;
}

enum status page_pool_open(const struct page_pool_config *cfg, struct page_pool **out,
                           struct error *e) {
    *out = NULL;
    struct page_pool *p = calloc(1, sizeof *p);
    if (p == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "KV pages: out of memory");
    size_t bytes, n_slabs;
    if (!plan_pool(p, cfg, &bytes, &n_slabs)) {
        free(p);
        return error_set(e, STATUS_INVALID, NULL,
                         "KV pages: %u groups of such sizes cannot be made", cfg->n_groups);
    }
    const struct arena_config arena_cfg = {.name = "KV pages",
                                           .bytes = bytes,
                                           .max_takes = (uint32_t)n_slabs,
                                           .align = PAGE_ALIGN,
                                           .huge_pages = cfg->huge_pages,
                                           .mlock = cfg->mlock};
    enum status s = arena_open(&arena_cfg, &p->arena, e);
    for (uint32_t i = 0; i < p->n_groups && s == STATUS_OK; i++) {
        s = open_group(p, &p->groups[i], e);
    }
    if (s != STATUS_OK) {
        page_pool_close(p);
        return s;
    }
    *out = p;
    return STATUS_OK;
}

void page_pool_close(struct page_pool *p) {
    if (p == NULL) return;
    for (uint32_t i = 0; i < p->n_groups; i++) {
        struct page_group *g = &p->groups[i];
        /* The addresses may be mapped again by somebody else. */
        for (uint32_t k = 0; k < g->n_slabs && g->slabs != NULL && g->slabs[k] != NULL; k++) {
            unpoison(g->slabs[k] - POISON_RED_ZONE_BYTES, slab_bytes(g, k));
        }
        free(g->slabs);
        free(g->metas);
        free(g->free_pages);
    }
    arena_close(p->arena);
    free(p);
}

size_t page_pool_footprint(const struct page_pool_config *cfg) {
    struct page_pool plan = {0};
    size_t bytes, n_slabs;
    if (!plan_pool(&plan, cfg, &bytes, &n_slabs)) return SIZE_MAX;
    for (uint32_t i = 0; i < plan.n_groups; i++) {
        const struct page_group *g = &plan.groups[i];
        bytes += (sizeof(*g->metas) + sizeof(*g->free_pages)) * g->n_pages;
    }
    return bytes;
}

bool page_pool_reserve(struct page_pool *p, uint32_t group, uint32_t n) {
    struct page_group *g = group_of(p, group);
    if (n > g->n_free - g->n_reserved) return false;
    g->n_reserved += n;
    return true;
}

void page_pool_unreserve(struct page_pool *p, uint32_t group, uint32_t n) {
    struct page_group *g = group_of(p, group);
    CHECK(n <= g->n_reserved);
    g->n_reserved -= n;
}

static uint32_t take(struct page_group *g) {
    CHECK(g->n_free > 0);
    const uint32_t page = g->free_pages[--g->n_free];
    struct page_meta *meta = meta_of(g, page);
    CHECK(meta->references == 0);
    *meta = (struct page_meta){.references = 1};
    unpoison(data_of(g, page), g->page_bytes);
    return page;
}

uint32_t page_pool_take_reserved(struct page_pool *p, uint32_t group) {
    struct page_group *g = group_of(p, group);
    CHECK(g->n_reserved > 0);
    g->n_reserved--;
    return take(g);
}

uint32_t page_pool_take(struct page_pool *p, uint32_t group) {
    struct page_group *g = group_of(p, group);
    return g->n_free > g->n_reserved ? take(g) : PAGE_NONE;
}

void page_pool_retain(struct page_pool *p, uint32_t group, uint32_t page) {
    struct page_group *g = group_of(p, group);
    struct page_meta *meta = meta_of(g, page);
    CHECK(meta->references > 0 && meta->references < UINT32_MAX);
    if (++meta->references == 2) g->n_shared++;
}

void page_pool_release(struct page_pool *p, uint32_t group, uint32_t page) {
    struct page_group *g = group_of(p, group);
    struct page_meta *meta = meta_of(g, page);
    CHECK(meta->references > 0);
    meta->references--;
    if (meta->references == 1) g->n_shared--;
    if (meta->references > 0) return;
    CHECK(g->n_free < g->n_pages);
    g->free_pages[g->n_free++] = page;
    poison(data_of(g, page), g->stride_bytes);
}

void *page_pool_data(const struct page_pool *p, uint32_t group, uint32_t page) {
    const struct page_group *g = group_of(p, group);
    CHECK(page < g->n_pages);
    return data_of(g, page);
}

struct page_meta *page_pool_meta(struct page_pool *p, uint32_t group, uint32_t page) {
    return meta_of(group_of(p, group), page);
}

struct page_pool_counts page_pool_counts(const struct page_pool *p, uint32_t group) {
    const struct page_group *g = group_of(p, group);
    return (struct page_pool_counts){.capacity = g->n_pages,
                                     .free = g->n_free,
                                     .used = g->n_pages - g->n_free,
                                     .reserved = g->n_reserved,
                                     .shared = g->n_shared};
}
