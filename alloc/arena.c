#include "alloc/arena.h"

#include <errno.h>
#include <jemalloc/jemalloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/check.h"

/* jemalloc takes its bookkeeping through the same hooks in blocks of one huge page that grow by
 * steps; four of them describe some tens of thousands of extents. */
enum { BOOKKEEPING_BYTES = 8 * ARENA_HUGE_PAGE_BYTES };

struct arena {
    extent_hooks_t hooks; /* first: the hooks find the arena by it */
    const char *name;
    unsigned index; /* jemalloc's */
    size_t page_bytes, align;
    uint8_t *base;
    size_t range_bytes, used_bytes;
    size_t committed_bytes, taken_bytes;
    size_t largest_extent_bytes; /* while a take is running: the extent it needs */
    bool huge_pages, mlock, huge_refused;
};

static size_t round_up(size_t n, size_t align) {
    return (n + align - 1) & ~(align - 1);
}

static void *hook_alloc(extent_hooks_t *hooks, void *new_addr, size_t size, size_t alignment,
                        bool *zero, bool *commit, unsigned index) {
    (void)index;
    struct arena *a = (struct arena *)hooks;
    /* jemalloc first asks for more than it needs (it grows its reserve geometrically) and for
     * exactly what it needs when that is refused. Refusing keeps the range as small as was planned.
     * Bookkeeping is told apart by its alignment. */
    if (size > a->largest_extent_bytes && alignment < ARENA_HUGE_PAGE_BYTES) return NULL;
    const uintptr_t at = round_up((uintptr_t)a->base + a->used_bytes, alignment);
    const size_t offset = at - (uintptr_t)a->base;
    if (offset > a->range_bytes || size > a->range_bytes - offset) return NULL;
    uint8_t *p = a->base + offset;
    if (new_addr != NULL && new_addr != p) return NULL;
    if (mprotect(p, size, PROT_READ | PROT_WRITE) != 0) return NULL;
    a->used_bytes = offset + size;
    a->committed_bytes += size;
    *zero = true; /* never handed out before */
    *commit = true;
    return p;
}

/* Extents stay with jemalloc until the arena ends; arena_close unmaps the range. */
static bool hook_dalloc(extent_hooks_t *hooks, void *addr, size_t size, bool committed,
                        unsigned index) {
    (void)hooks, (void)addr, (void)size, (void)committed, (void)index;
    return true;
}

static void hook_destroy(extent_hooks_t *hooks, void *addr, size_t size, bool committed,
                         unsigned index) {
    (void)hooks, (void)addr, (void)size, (void)committed, (void)index;
}

static bool hook_split(extent_hooks_t *hooks, void *addr, size_t size, size_t size_a, size_t size_b,
                       bool committed, unsigned index) {
    (void)hooks, (void)addr, (void)size, (void)size_a, (void)size_b, (void)committed, (void)index;
    return false;
}

static bool hook_merge(extent_hooks_t *hooks, void *addr_a, size_t size_a, void *addr_b,
                       size_t size_b, bool committed, unsigned index) {
    (void)hooks, (void)addr_a, (void)size_a, (void)addr_b, (void)size_b, (void)committed,
        (void)index;
    return false;
}

/* Addresses that n takes of `bytes` in all can use, whatever their sizes: jemalloc's size classes
 * are a quarter of a power of two apart, and each extent has one page of padding. */
static bool plan_range(const struct arena_config *cfg, size_t page, size_t align, size_t *out) {
    size_t per_take, total;
    if (__builtin_mul_overflow((size_t)cfg->max_takes, align + 4 * page, &per_take)) return false;
    if (__builtin_add_overflow(cfg->bytes, cfg->bytes / 4 + per_take, &total)) return false;
    if (__builtin_add_overflow(total, (size_t)BOOKKEEPING_BYTES, &total)) return false;
    if (total > SIZE_MAX / 2) return false;
    *out = round_up(total, ARENA_HUGE_PAGE_BYTES);
    return true;
}

enum status arena_open(const struct arena_config *cfg, struct arena **out, struct error *e) {
    *out = NULL;
    CHECK(cfg->bytes > 0 && cfg->max_takes > 0);
    CHECK(cfg->align > 0 && (cfg->align & (cfg->align - 1)) == 0);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t align = cfg->align > page ? cfg->align : page;
    if (cfg->huge_pages && align < ARENA_HUGE_PAGE_BYTES) align = ARENA_HUGE_PAGE_BYTES;

    size_t range = 0;
    if (!plan_range(cfg, page, align, &range)) {
        return error_set(e, STATUS_NO_MEMORY, NULL, "%s: %zu bytes are more than can be addressed",
                         cfg->name, cfg->bytes);
    }
    struct arena *a = calloc(1, sizeof *a);
    if (a == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "%s: out of memory", cfg->name);
    a->name = cfg->name;
    a->page_bytes = page;
    a->align = align;
    a->huge_pages = cfg->huge_pages;
    a->mlock = cfg->mlock;
    a->range_bytes = range;
    a->base = mmap(NULL, range, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (a->base == MAP_FAILED) {
        const int err = errno;
        free(a);
        return error_set(e, STATUS_NO_MEMORY, NULL, "%s: cannot reserve %zu MiB of addresses: %s",
                         cfg->name, range >> 20, strerror(err));
    }
    a->hooks = (extent_hooks_t){
        .alloc = hook_alloc,
        .dalloc = hook_dalloc,
        .destroy = hook_destroy,
        .split = hook_split,
        .merge = hook_merge,
    };
    extent_hooks_t *hooks = &a->hooks;
    size_t index_bytes = sizeof a->index;
    const int rc = mallctl("arenas.create", &a->index, &index_bytes, &hooks, sizeof(hooks));
    if (rc != 0) {
        munmap(a->base, range);
        free(a);
        return error_set(e, STATUS_NO_MEMORY, NULL, "%s: jemalloc cannot make an arena: %s",
                         cfg->name, strerror(rc));
    }
    *out = a;
    return STATUS_OK;
}

void arena_close(struct arena *a) {
    if (a == NULL) return;
    char name[64];
    snprintf(name, sizeof name, "arena.%u.destroy", a->index);
    const int rc = mallctl(name, NULL, NULL, NULL, 0);
    CHECK(rc == 0);
    const int unmapped = munmap(a->base, a->range_bytes);
    CHECK(unmapped == 0);
    free(a);
}

enum status arena_take(struct arena *a, size_t bytes, size_t align, void **out, struct error *e) {
    *out = NULL;
    CHECK(bytes > 0);
    CHECK(align > 0 && (align & (align - 1)) == 0 && align <= a->align);
    if (align < a->page_bytes) align = a->page_bytes;
    const bool huge = a->huge_pages && bytes >= ARENA_HUGE_PAGE_BYTES;
    if (huge && align < ARENA_HUGE_PAGE_BYTES) align = ARENA_HUGE_PAGE_BYTES;

    const int flags =
        MALLOCX_ALIGN(align) | MALLOCX_ARENA(a->index) | MALLOCX_TCACHE_NONE | MALLOCX_ZERO;
    const size_t usable = bytes <= SIZE_MAX / 4 ? nallocx(bytes, flags) : 0;
    a->largest_extent_bytes = usable + a->page_bytes;
    void *p = usable != 0 ? mallocx(bytes, flags) : NULL;
    a->largest_extent_bytes = 0;
    if (p == NULL) {
        return error_set(e, STATUS_NO_MEMORY, NULL,
                         "%s: cannot take %zu MiB (%zu of %zu MiB of addresses are used)", a->name,
                         bytes >> 20, a->used_bytes >> 20, a->range_bytes >> 20);
    }
    CHECK(arena_owns(a, p));
    const size_t whole = round_up(bytes, a->page_bytes);
    if (huge && madvise(p, whole, MADV_HUGEPAGE) != 0) a->huge_refused = true;
    if (a->mlock && mlock(p, whole) != 0) {
        const int err = errno;
        dallocx(p, MALLOCX_TCACHE_NONE);
        return error_set(e, STATUS_NO_MEMORY, "--mlock",
                         "%s: cannot lock %zu KiB in memory: %s (the limit is RLIMIT_MEMLOCK: "
                         "ulimit -l, LimitMEMLOCK=)",
                         a->name, whole >> 10, strerror(err));
    }
    a->taken_bytes += bytes;
    *out = p;
    return STATUS_OK;
}

static size_t jemalloc_allocated_bytes(unsigned index) {
    uint64_t epoch = 1;
    size_t n = sizeof epoch;
    if (mallctl("epoch", &epoch, &n, &epoch, sizeof epoch) != 0) return 0;
    char name[64];
    snprintf(name, sizeof name, "stats.arenas.%u.large.allocated", index);
    size_t large = 0;
    n = sizeof large;
    if (mallctl(name, &large, &n, NULL, 0) != 0) return 0;
    snprintf(name, sizeof name, "stats.arenas.%u.small.allocated", index);
    size_t small = 0;
    n = sizeof small;
    if (mallctl(name, &small, &n, NULL, 0) != 0) return 0;
    return large + small;
}

struct arena_counts arena_counts(const struct arena *a) {
    return (struct arena_counts){
        .range_bytes = a->range_bytes,
        .committed_bytes = a->committed_bytes,
        .taken_bytes = a->taken_bytes,
        .allocated_bytes = jemalloc_allocated_bytes(a->index),
        .huge_pages = a->huge_pages && !a->huge_refused,
    };
}

bool arena_owns(const struct arena *a, const void *p) {
    return (uintptr_t)p >= (uintptr_t)a->base && (uintptr_t)p - (uintptr_t)a->base < a->range_bytes;
}
