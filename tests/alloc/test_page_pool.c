/* Random operations on a page pool against a model that keeps every page's owner count and pattern;
 * after each operation the counts must reconcile. Then the limits, and a planted overflow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "alloc/page_pool.h"
#include "alloc/poison.h"

enum { MAX_PAGES = 200, N_OPS = 60000, VERIFY_EVERY = 500 };

struct model_page {
    uint32_t references;
    uint8_t *address; /* NULL before its first use */
    uint64_t pattern;
};

struct model {
    struct page_pool *pool;
    uint32_t n_groups, n_pages[PAGE_POOL_MAX_GROUPS], reserved[PAGE_POOL_MAX_GROUPS];
    size_t page_bytes[PAGE_POOL_MAX_GROUPS];
    struct model_page pages[PAGE_POOL_MAX_GROUPS][MAX_PAGES];
    uint64_t state;
};

static uint64_t next(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint32_t below(uint64_t *state, uint32_t n) {
    return (uint32_t)(next(state) % n);
}

static void fill(uint8_t *p, size_t bytes, uint64_t pattern) {
    for (size_t i = 0; i < bytes; i++) p[i] = (uint8_t)next(&pattern);
}

static void verify(const uint8_t *p, size_t bytes, uint64_t pattern) {
    for (size_t i = 0; i < bytes; i++) {
        if (p[i] != (uint8_t)next(&pattern)) fail_msg("byte %zu of a page was changed", i);
    }
}

static void check_counts(struct model *m) {
    for (uint32_t g = 0; g < m->n_groups; g++) {
        uint32_t used = 0, shared = 0;
        for (uint32_t i = 0; i < m->n_pages[g]; i++) {
            used += m->pages[g][i].references > 0;
            shared += m->pages[g][i].references > 1;
        }
        const struct page_pool_counts c = page_pool_counts(m->pool, g);
        assert_int_equal(c.capacity, m->n_pages[g]);
        assert_int_equal(c.used, used);
        assert_int_equal(c.free, m->n_pages[g] - used);
        assert_int_equal(c.shared, shared);
        assert_int_equal(c.reserved, m->reserved[g]);
        assert_true(c.reserved <= c.free);
    }
}

static void check_contents(struct model *m) {
    for (uint32_t g = 0; g < m->n_groups; g++) {
        for (uint32_t i = 0; i < m->n_pages[g]; i++) {
            const struct model_page *page = &m->pages[g][i];
            if (page->references == 0) continue;
            assert_ptr_equal(page_pool_data(m->pool, g, i), page->address);
            assert_int_equal(page_pool_meta(m->pool, g, i)->references, page->references);
            verify(page->address, m->page_bytes[g], page->pattern);
        }
    }
}

static void taken(struct model *m, uint32_t g, uint32_t id) {
    assert_true(id < m->n_pages[g]);
    struct model_page *page = &m->pages[g][id];
    assert_int_equal(page->references, 0);
    uint8_t *data = page_pool_data(m->pool, g, id);
    assert_int_equal((uintptr_t)data % 64, 0);
    if (page->address != NULL) assert_ptr_equal(data, page->address);
    struct page_meta *meta = page_pool_meta(m->pool, g, id);
    assert_int_equal(meta->references, 1);
    assert_int_equal(meta->fill, 0);
    assert_int_equal(meta->sealed, 0);
    assert_int_equal(meta->domain, 0);
    meta->fill = 16;
    meta->sealed = 1;
    meta->domain = 77;
    *page = (struct model_page){.references = 1, .address = data, .pattern = next(&m->state)};
    fill(data, m->page_bytes[g], page->pattern);
}

/* A used page of the group, or PAGE_NONE. */
static uint32_t pick_used(struct model *m, uint32_t g) {
    const uint32_t start = below(&m->state, m->n_pages[g]);
    for (uint32_t i = 0; i < m->n_pages[g]; i++) {
        const uint32_t id = (start + i) % m->n_pages[g];
        if (m->pages[g][id].references > 0) return id;
    }
    return PAGE_NONE;
}

static void operate(struct model *m) {
    const uint32_t g = below(&m->state, m->n_groups);
    const struct page_pool_counts before = page_pool_counts(m->pool, g);
    switch (below(&m->state, 8)) {
    case 0: {
        const uint32_t n = below(&m->state, 12);
        const bool fits = n <= before.free - before.reserved;
        assert_int_equal(page_pool_reserve(m->pool, g, n), fits);
        if (fits) m->reserved[g] += n;
        break;
    }
    case 1: {
        const uint32_t n = m->reserved[g] != 0 ? below(&m->state, m->reserved[g] + 1) : 0;
        page_pool_unreserve(m->pool, g, n);
        m->reserved[g] -= n;
        break;
    }
    case 2:
    case 3: {
        const uint32_t id = page_pool_take(m->pool, g);
        if (before.free > before.reserved)
            taken(m, g, id);
        else
            assert_int_equal(id, PAGE_NONE);
        break;
    }
    case 4:
        if (m->reserved[g] > 0) {
            m->reserved[g]--;
            taken(m, g, page_pool_take_reserved(m->pool, g));
        }
        break;
    case 5: {
        const uint32_t id = pick_used(m, g);
        if (id == PAGE_NONE) break;
        page_pool_retain(m->pool, g, id);
        m->pages[g][id].references++;
        break;
    }
    default: {
        const uint32_t id = pick_used(m, g);
        if (id == PAGE_NONE) break;
        verify(m->pages[g][id].address, m->page_bytes[g], m->pages[g][id].pattern);
        page_pool_release(m->pool, g, id);
        m->pages[g][id].references--;
        break;
    }
    }
}

/* Different pages never overlap. */
static void check_overlap(struct model *m) {
    for (uint32_t g = 0; g < m->n_groups; g++) {
        for (uint32_t i = 0; i < m->n_pages[g]; i++) {
            const uint8_t *a = page_pool_data(m->pool, g, i);
            for (uint32_t h = 0; h < m->n_groups; h++) {
                for (uint32_t k = 0; k < m->n_pages[h]; k++) {
                    if (g == h && i == k) continue;
                    const uint8_t *b = page_pool_data(m->pool, h, k);
                    assert_true(a + m->page_bytes[g] <= b || b + m->page_bytes[h] <= a);
                }
            }
        }
    }
}

static void run_model(uint64_t seed, bool huge) {
    struct model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    m->state = seed;
    struct page_pool_config cfg = {.n_groups = 1 + below(&m->state, PAGE_POOL_MAX_GROUPS),
                                   .huge_pages = huge};
    m->n_groups = cfg.n_groups;
    for (uint32_t g = 0; g < cfg.n_groups; g++) {
        /* Odd sizes too, and one group with pages so large that it needs several slabs. */
        cfg.page_bytes[g] = m->page_bytes[g] = 1 + below(&m->state, 3000);
        cfg.n_pages[g] = m->n_pages[g] = 1 + below(&m->state, MAX_PAGES);
    }
    struct error e;
    assert_int_equal(page_pool_open(&cfg, &m->pool, &e), STATUS_OK);
    check_overlap(m);
    for (int i = 0; i < N_OPS / 10; i++) {
        operate(m);
        check_counts(m);
        if (i % VERIFY_EVERY == 0) check_contents(m);
    }
    check_contents(m);
    page_pool_close(m->pool);
    free(m);
}

static void test_random(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) run_model(seed * 7919, seed % 2 == 0);
}

static void test_many_slabs(void **state) {
    (void)state;
    /* 7 MB pages: two a slab, 21 slabs; a second group of the default model's page size. */
    const struct page_pool_config cfg = {
        .n_groups = 2, .page_bytes = {7000000, 368640}, .n_pages = {41, 100}, .huge_pages = true};
    struct page_pool *p;
    struct error e;
    assert_int_equal(page_pool_open(&cfg, &p, &e), STATUS_OK);
    for (uint32_t g = 0; g < 2; g++) {
        for (uint32_t i = 0; i < cfg.n_pages[g]; i++) {
            const uint32_t id = page_pool_take(p, g);
            assert_int_equal(id, i);
            uint8_t *data = page_pool_data(p, g, id);
            memcpy(data, &id, sizeof id);
            memcpy(data + cfg.page_bytes[g] - sizeof id, &id, sizeof id);
        }
        assert_int_equal(page_pool_take(p, g), PAGE_NONE);
        assert_false(page_pool_reserve(p, g, 1));
    }
    for (uint32_t g = 0; g < 2; g++) {
        for (uint32_t i = 0; i < cfg.n_pages[g]; i++) {
            const uint8_t *data = page_pool_data(p, g, i);
            assert_memory_equal(data, &i, sizeof i);
            assert_memory_equal(data + cfg.page_bytes[g] - sizeof i, &i, sizeof i);
        }
    }
    page_pool_close(p);
}

static void test_refused(void **state) {
    (void)state;
    const struct page_pool_config bad[] = {
        {.n_groups = 0},
        {.n_groups = PAGE_POOL_MAX_GROUPS + 1},
        {.n_groups = 1, .page_bytes = {0}, .n_pages = {1}},
        {.n_groups = 1, .page_bytes = {64}, .n_pages = {0}},
        {.n_groups = 1, .page_bytes = {SIZE_MAX}, .n_pages = {2}},
        {.n_groups = 1, .page_bytes = {SIZE_MAX / 8}, .n_pages = {4000000000u}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct page_pool *p = (void *)&p;
        struct error e;
        assert_int_equal(page_pool_open(&bad[i], &p, &e), STATUS_INVALID);
        assert_null(p);
        assert_true(page_pool_footprint(&bad[i]) == SIZE_MAX);
    }
    const struct page_pool_config huge = {
        .n_groups = 1, .page_bytes = {(size_t)1 << 50}, .n_pages = {64}};
    struct page_pool *p;
    struct error e;
    assert_int_equal(page_pool_open(&huge, &p, &e), STATUS_NO_MEMORY);
    assert_non_null(strstr(e.message, "KV pages"));
    page_pool_close(NULL);
}

static void test_mlock(void **state) {
    (void)state;
    const struct page_pool_config cfg = {
        .n_groups = 1, .page_bytes = {65536}, .n_pages = {32}, .mlock = true};
    struct page_pool *p;
    struct error e;
    assert_int_equal(page_pool_open(&cfg, &p, &e), STATUS_OK);
    page_pool_close(p);
    if (geteuid() == 0) return; /* the superuser has no lock limit */
    const struct rlimit none = {0, 0};
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &none), 0);
    assert_int_equal(page_pool_open(&cfg, &p, &e), STATUS_NO_MEMORY);
    assert_non_null(strstr(e.message, "RLIMIT_MEMLOCK"));
}

/* Runs fn in a child; true when the child died of it. */
static bool dies(void (*fn)(struct page_pool *)) {
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL) _exit(0);
        const struct page_pool_config cfg = {.n_groups = 1, .page_bytes = {1000}, .n_pages = {8}};
        struct page_pool *p;
        if (page_pool_open(&cfg, &p, NULL) != STATUS_OK) _exit(0);
        fn(p);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void well_behaved(struct page_pool *p) {
    const uint32_t a = page_pool_take(p, 0);
    memset(page_pool_data(p, 0, a), 1, 1000);
    page_pool_release(p, 0, a);
}
static void one_past_the_end(struct page_pool *p) {
    volatile uint8_t *data = page_pool_data(p, 0, page_pool_take(p, 0));
    data[1000] = 1;
}
static void one_before_the_start(struct page_pool *p) {
    volatile uint8_t *data = page_pool_data(p, 0, page_pool_take(p, 0));
    data[-1] = 1;
}
static void after_release(struct page_pool *p) {
    const uint32_t a = page_pool_take(p, 0);
    volatile uint8_t *data = page_pool_data(p, 0, a);
    page_pool_release(p, 0, a);
    data[500] = 1;
}
static void release_twice(struct page_pool *p) {
    const uint32_t a = page_pool_take(p, 0);
    page_pool_release(p, 0, a);
    page_pool_release(p, 0, a);
}
static void retain_free(struct page_pool *p) {
    page_pool_retain(p, 0, 3);
}
static void no_such_page(struct page_pool *p) {
    (void)page_pool_data(p, 0, 8);
}
static void take_unreserved(struct page_pool *p) {
    (void)page_pool_take_reserved(p, 0);
}
static void unreserve_too_much(struct page_pool *p) {
    page_pool_unreserve(p, 0, 1);
}

static void test_misuse_aborts(void **state) {
    (void)state;
    assert_false(dies(well_behaved));
    assert_true(dies(release_twice));
    assert_true(dies(retain_free));
    assert_true(dies(no_such_page));
    assert_true(dies(take_unreserved));
    assert_true(dies(unreserve_too_much));
}

static void test_planted_overflow(void **state) {
    (void)state;
    if (POISON_RED_ZONE_BYTES == 0) {
        print_message("skip: planted overflows are found in the ASan build only\n");
        return;
    }
    assert_false(dies(well_behaved));
    assert_true(dies(one_past_the_end));
    assert_true(dies(one_before_the_start));
    assert_true(dies(after_release));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),           cmocka_unit_test(test_many_slabs),
        cmocka_unit_test(test_refused),          cmocka_unit_test(test_misuse_aborts),
        cmocka_unit_test(test_planted_overflow), cmocka_unit_test(test_mlock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
