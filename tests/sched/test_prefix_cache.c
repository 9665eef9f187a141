/* The prefix cache: what is found is what was stored, LRU order of eviction, bounds, and no page
 * lost. It is compiled here with a hash of two bits: nothing but speed may depend on the hash. */
#include <xxhash.h>

static XXH128_hash_t weak_hash(const void *data, size_t n) {
    return (XXH128_hash_t){.low64 = XXH3_128bits(data, n).low64 & 3};
}
#define XXH3_128bits weak_hash
#include "sched/prefix_cache.c"
#undef NONE

#include "tests/sched/fake.h"

enum { GROUPS = 2, PAGES = 40, DEPTH = 4, WORDS = 3 };

static struct page_pool *open_pool(void) {
    struct page_pool *pool;
    struct error e = {0};
    const struct page_pool_config cfg = {
        .n_groups = GROUPS, .page_bytes = {256, 256}, .n_pages = {PAGES, PAGES + 5}};
    must(page_pool_open(&cfg, &pool, &e), &e);
    return pool;
}

static void take(struct page_pool *pool, uint32_t *pages) {
    for (uint32_t g = 0; g < GROUPS; g++) {
        pages[g] = page_pool_take(pool, g);
        assert_true(pages[g] != PAGE_NONE);
    }
}

/* Few contents, so that chains meet: word w at any depth is 16 tokens w, w + 1, ... */
static void fill_tokens(uint32_t *tokens, uint32_t word) {
    for (uint32_t i = 0; i < KV_PAGE_TOKENS; i++) tokens[i] = word + i;
}

/* What a page holds is written into it; the oracle reads it back on a hit. */
struct content {
    uint32_t domain, depth, words[DEPTH];
};

static struct content *content_of(struct page_pool *pool, uint32_t g, uint32_t page) {
    return page_pool_data(pool, g, page);
}

static void test_random(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 150; seed++) {
        uint64_t x = mix64(seed), hits = 0;
        struct page_pool *pool = open_pool();
        struct prefix_cache *c;
        struct error e;
        must(prefix_cache_open(pool, GROUPS, &c, &e), &e);
        /* Some chains are held at any time, like running sequences. */
        struct {
            uint32_t n, pages[DEPTH][GROUPS];
        } held[3] = {0};
        for (int turn = 0; turn < 400; turn++) {
            const uint32_t h = below(&x, 3);
            for (uint32_t d = held[h].n; d-- > 0;) {
                if (below(&x, 30) == 0) prefix_cache_forget(c, held[h].pages[d]);
                prefix_cache_release(c, held[h].pages[d]);
            }
            held[h].n = 0;
            struct content now = {.domain = below(&x, 2)};
            uint32_t parent = PREFIX_ROOT, tokens[KV_PAGE_TOKENS];
            bool missed = false;
            for (uint32_t d = 0; d < 1 + below(&x, DEPTH); d++) {
                uint32_t *pages = held[h].pages[d];
                now.words[d] = below(&x, WORDS);
                now.depth = d;
                fill_tokens(tokens, now.words[d]);
                uint32_t entry = PREFIX_ROOT;
                if (!missed) entry = prefix_cache_acquire(c, parent, now.domain, tokens, pages);
                if (entry == PREFIX_ROOT) {
                    missed = true;
                    if (!prefix_cache_make_room(c, 1)) break;
                    take(pool, pages);
                    for (uint32_t g = 0; g < GROUPS; g++) *content_of(pool, g, pages[g]) = now;
                    entry = prefix_cache_insert(c, parent, now.domain, tokens, pages);
                    assert_true(entry != PREFIX_ROOT);
                } else {
                    hits++;
                }
                for (uint32_t g = 0; g < GROUPS; g++) {
                    assert_memory_equal(content_of(pool, g, pages[g]), &now, sizeof now);
                    assert_true(page_pool_meta(pool, g, pages[g])->references >= 2);
                }
                parent = entry;
                held[h].n++;
            }
            const struct prefix_cache_counts k = prefix_cache_counts(c);
            assert_true(k.idle <= k.entries && k.entries <= PAGES);
            assert_int_equal(page_pool_counts(pool, 0).used, k.entries);
        }
        assert_true(hits > 50);
        for (uint32_t h = 0; h < 3; h++)
            for (uint32_t d = held[h].n; d-- > 0;) prefix_cache_release(c, held[h].pages[d]);
        const struct prefix_cache_counts k = prefix_cache_counts(c);
        assert_int_equal(k.idle, k.entries);
        assert_false(prefix_cache_make_room(c, PAGES + 1));
        assert_int_equal(prefix_cache_counts(c).entries, k.entries); /* nothing evicted in vain */
        assert_true(prefix_cache_make_room(c, PAGES));
        assert_int_equal(prefix_cache_counts(c).entries, 0);
        prefix_cache_close(c);
        for (uint32_t g = 0; g < GROUPS; g++) assert_int_equal(page_pool_counts(pool, g).used, 0);
        page_pool_close(pool);
    }
}

/* One chain of `n` pages, given back. */
static void store(struct page_pool *pool, struct prefix_cache *c, uint32_t first, uint32_t n) {
    uint32_t pages[DEPTH][GROUPS], tokens[KV_PAGE_TOKENS], parent = PREFIX_ROOT;
    for (uint32_t d = 0; d < n; d++) {
        fill_tokens(tokens, first + d);
        take(pool, pages[d]);
        parent = prefix_cache_insert(c, parent, 1, tokens, pages[d]);
    }
    while (n-- > 0) prefix_cache_release(c, pages[n]);
}

static uint32_t found(struct prefix_cache *c, uint32_t first, uint32_t n) {
    uint32_t pages[DEPTH][GROUPS], tokens[KV_PAGE_TOKENS], parent = PREFIX_ROOT, d = 0;
    for (; d < n; d++) {
        fill_tokens(tokens, first + d);
        parent = prefix_cache_acquire(c, parent, 1, tokens, pages[d]);
        if (parent == PREFIX_ROOT) break;
    }
    for (uint32_t i = d; i-- > 0;) prefix_cache_release(c, pages[i]);
    return d;
}

static void test_least_recently_used(void **state) {
    (void)state;
    struct page_pool *pool = open_pool();
    struct prefix_cache *c;
    struct error e;
    must(prefix_cache_open(pool, GROUPS, &c, &e), &e);
    store(pool, c, 100, 3);
    store(pool, c, 200, 3);
    store(pool, c, 300, 3);
    assert_int_equal(found(c, 100, 3), 3);             /* now the most recent */
    assert_true(prefix_cache_make_room(c, PAGES - 7)); /* 2 of 9 go: the end of chain 200 */
    assert_int_equal(found(c, 200, 3), 1);
    assert_int_equal(found(c, 300, 3), 3);
    assert_int_equal(found(c, 100, 3), 3);
    prefix_cache_close(c);
    page_pool_close(pool);
}

static void test_forgotten(void **state) {
    (void)state;
    struct page_pool *pool = open_pool();
    struct prefix_cache *c;
    struct error e;
    must(prefix_cache_open(pool, GROUPS, &c, &e), &e);
    uint32_t a[GROUPS], tokens[KV_PAGE_TOKENS];
    fill_tokens(tokens, 9);
    take(pool, a);
    prefix_cache_insert(c, PREFIX_ROOT, 1, tokens, a);
    assert_int_equal(found(c, 9, 1), 1);
    prefix_cache_forget(c, a);
    assert_int_equal(found(c, 9, 1), 0);
    prefix_cache_release(c, a);
    store(pool, c, 9, 1); /* the same content, good this time */
    assert_int_equal(found(c, 9, 1), 1);
    assert_int_equal(prefix_cache_counts(c).entries, 2);
    prefix_cache_close(c);
    assert_int_equal(page_pool_counts(pool, 0).used, 0);
    page_pool_close(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_least_recently_used),
        cmocka_unit_test(test_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
