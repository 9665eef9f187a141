/* ngram_table.c and ngram_build.c: the built table against counting by hand, learning in service,
 * proposals, tenants, and a lie in every field of a section. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/rng.h"
#include "models/ngram_table.h"

enum { VOCAB = 500 };

static void *take(size_t bytes) {
    void *mem = NULL;
    assert_int_equal(posix_memalign(&mem, 64, bytes), 0);
    memset(mem, 0xa5, bytes);
    return mem;
}

/* Text with the habits of language: a token depends on the two before it, mostly. */
static void write_text(uint64_t seed, uint32_t *ids, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t r = rng_draw(seed, 0, i, RNG_TEST, 0);
        const uint32_t a = i > 0 ? ids[i - 1] : 0, b = i > 1 ? ids[i - 2] : 0;
        ids[i] = r % 10 < 8 ? (a * 31 + b * 17 + (uint32_t)(r % 10 < 2)) % VOCAB
                            : (uint32_t)(r >> 32) % VOCAB;
    }
}

/* The most frequent follower of the last `order` tokens of context in the lists; 0 when unseen. */
static uint32_t follower(const struct ngram_list *lists, uint32_t n_lists, const uint32_t *context,
                         uint32_t n, uint32_t order, uint32_t *token, uint32_t *total) {
    uint32_t counts[VOCAB] = {0};
    *total = 0;
    for (uint32_t l = 0; l < n_lists; l++) {
        for (uint32_t i = lists[l].first > order ? lists[l].first : order; i < lists[l].n; i++) {
            if (memcmp(lists[l].ids + i - order, context + n - order, order * 4) != 0) continue;
            counts[lists[l].ids[i]]++;
            ++*total;
        }
    }
    uint32_t best = 0;
    for (uint32_t t = 1; t < VOCAB; t++)
        if (counts[t] > counts[best]) best = t;
    *token = best;
    return counts[best];
}

enum { N_LISTS = 12, LIST_TOKENS = 150 };

static void make_lists(uint32_t ids[N_LISTS][LIST_TOKENS], struct ngram_list lists[N_LISTS]) {
    for (uint32_t l = 0; l < N_LISTS; l++) {
        write_text(l % 9, ids[l], LIST_TOKENS); /* some answers come twice */
        lists[l] = (struct ngram_list){ids[l], l % 4 * 10, LIST_TOKENS};
    }
}

static void test_build_is_exact(void **state) {
    (void)state;
    uint32_t ids[N_LISTS][LIST_TOKENS];
    struct ngram_list lists[N_LISTS];
    make_lists(ids, lists);
    void *bytes, *again;
    size_t n, n_again;
    struct error e = {0};
    assert_int_equal(ngram_table_build(lists, N_LISTS, 1 << 20, NULL, &bytes, &n, &e), STATUS_OK);
    assert_int_equal(ngram_table_build(lists, N_LISTS, 1 << 20, NULL, &again, &n_again, &e),
                     STATUS_OK);
    assert_int_equal(n, n_again);
    assert_memory_equal(bytes, again, n);
    struct ngram_table t;
    assert_int_equal(ngram_table_view(&t, bytes, n, &e), STATUS_OK);

    uint32_t text[400], hits = 0, same = 0, known = 0, exact_counts = 0, own = 0;
    write_text(3, text, 200); /* a text it knows, then one it does not */
    write_text(77, text + 200, 200);
    for (uint32_t i = 1; i < 400; i++) {
        const struct ngram_hit h = ngram_table_find(&t, text, i, NGRAM_ORDERS);
        uint32_t token = 0, total = 0, count = 0, order = i < NGRAM_ORDERS ? i : NGRAM_ORDERS;
        while (order > 0) {
            count = follower(lists, N_LISTS, text, i, order, &token, &total);
            if (count > 0) break;
            order--;
        }
        known += order > 0;
        hits += h.order > 0;
        same += h.order > 0 && order > 0 && h.token == token;
        if (h.order > 0 && h.order == order) {
            own++;
            exact_counts += h.count == count && h.total == total;
        }
        if (h.order > 0) assert_true(h.order <= order || order == 0);
        if (h.order > 0) assert_true(h.confidence > 0 && h.confidence < 1);
    }
    /* Full lines lose a few entries. */
    assert_true(known > 300 && hits >= known * 95 / 100);
    assert_true(same >= known * 93 / 100);
    assert_true(own > 100 && exact_counts == own);
    free(bytes);
    free(again);
}

static void test_build_within_bounds(void **state) {
    (void)state;
    uint32_t ids[N_LISTS][LIST_TOKENS];
    struct ngram_list lists[N_LISTS];
    make_lists(ids, lists);
    struct error e = {0};
    uint32_t right[3] = {0};
    const size_t sizes[3] = {128, 8192, 1 << 20};
    for (int s = 0; s < 3; s++) {
        void *bytes;
        size_t n;
        assert_int_equal(ngram_table_build(lists, N_LISTS, sizes[s], NULL, &bytes, &n, &e),
                         STATUS_OK);
        assert_true(n <= sizes[s] && n % 64 == 0);
        struct ngram_table t;
        assert_int_equal(ngram_table_view(&t, bytes, n, &e), STATUS_OK);
        for (uint32_t i = 1; i < LIST_TOKENS; i++)
            right[s] += ngram_table_find(&t, ids[5], i, NGRAM_ORDERS).token == ids[5][i];
        free(bytes);
    }
    assert_true(right[0] < right[1] && right[1] < right[2]);
    assert_true(right[2] > LIST_TOKENS / 2);

    /* Nothing learnt is a table too. */
    void *bytes;
    size_t n;
    assert_int_equal(ngram_table_build(lists, 0, 128, NULL, &bytes, &n, &e), STATUS_OK);
    struct ngram_table t;
    assert_int_equal(ngram_table_view(&t, bytes, n, &e), STATUS_OK);
    assert_int_equal(ngram_table_find(&t, ids[0], 9, NGRAM_ORDERS).order, 0);
    free(bytes);
}

static void test_learns_in_service(void **state) {
    (void)state;
    void *mem = take(ngram_table_bytes(1024));
    struct ngram_table t;
    ngram_table_init(&t, mem, 1024);
    const uint32_t ids[] = {7, 8, 9, 10, 7, 8, 9, 11, 7, 8, 9, 11};
    ngram_table_learn(&t, ids, 0, 4);
    struct ngram_hit h = ngram_table_find(&t, ids, 3, NGRAM_ORDERS);
    assert_true(h.token == 10 && h.order == 3 && h.count == 1 && h.total == 1);
    const float once = h.confidence;
    ngram_table_learn(&t, ids, 4, 12);
    /* "7 8 9": 10, 11, 11: the majority took over. */
    h = ngram_table_find(&t, ids, 3, 3);
    assert_true(h.token == 11 && h.order == 3 && h.total == 3);
    h = ngram_table_find(&t, ids, 8, NGRAM_ORDERS); /* "10 7 8 9 11 | 7" context of 6 seen once */
    assert_true(h.token == 7 && h.order == 6);
    assert_true(once > 0.3f);
    assert_int_equal(t.n_learned_tokens, 12);
    for (int i = 0; i < 70000; i++) ngram_table_learn(&t, ids, 3, 4);
    h = ngram_table_find(&t, ids, 3, 3);
    assert_true(h.token == 10 && h.total > 30000 && h.count <= h.total);

    /* It forgets instead of filling up. */
    uint32_t *text = calloc(50000, sizeof *text);
    assert_non_null(text);
    write_text(5, text, 50000);
    ngram_table_learn(&t, text, 0, 50000);
    assert_true(ngram_table_find(&t, text, 49999, NGRAM_ORDERS).order > 0);

    const uint64_t t0 = clock_now_ns();
    uint32_t sum = 0;
    for (uint32_t i = 10; i < 50000; i++) sum += ngram_table_find(&t, text, i, NGRAM_ORDERS).token;
    print_message("%.0f ns per look-up (%u)\n", (double)(clock_now_ns() - t0) / 49990, sum);
    free(text);
    free(mem);
}

static void test_proposes(void **state) {
    (void)state;
    void *a_mem = take(ngram_table_bytes(64)), *b_mem = take(ngram_table_bytes(64));
    struct ngram_table a, b;
    ngram_table_init(&a, a_mem, 64);
    ngram_table_init(&b, b_mem, 64);
    const uint32_t shared[] = {1, 2, 3, 4, 5, 6}, own[] = {2, 3, 40, 41, 999};
    ngram_table_learn(&a, shared, 0, 6);
    ngram_table_learn(&b, own, 0, 5);
    struct ngram_source s;
    struct draft_proposal p;
    ngram_source_init(&s, &a, NULL, 100);
    draft_propose(&s.source, shared, 2, 3, &p);
    assert_int_equal(p.n, 3);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(p.ids[i], 3 + i);
    draft_propose(&s.source, shared, 0, 3, &p);
    assert_int_equal(p.n, 0);

    /* The tenant's word counts first where the match is as long; 999 is no token. */
    ngram_source_init(&s, &a, &b, 100);
    const uint32_t context[] = {9, 2, 3};
    draft_propose(&s.source, context, 3, DRAFT_MAX_TOKENS, &p);
    assert_int_equal(p.n, 2);
    assert_true(p.ids[0] == 40 && p.ids[1] == 41);
    const uint32_t longer[] = {1, 2, 3};
    draft_propose(&s.source, longer, 3, 1, &p);
    assert_true(p.n == 1 && p.ids[0] == 4);
    ngram_source_init(&s, NULL, NULL, 100);
    draft_propose(&s.source, longer, 3, 1, &p);
    assert_int_equal(p.n, 0);
    draft_append(&s.source, longer, 3); /* follows nothing */
    draft_cut(&s.source, 0);
    free(a_mem);
    free(b_mem);
}

static void test_tenants(void **state) {
    (void)state;
    void *mem = take(ngram_tenants_footprint(2, 16));
    struct ngram_tenants *t = ngram_tenants_init(mem, 2, 16);
    const uint32_t ids[] = {1, 2, 3};
    assert_null(ngram_tenants_find(t, 0, false));
    ngram_table_learn(ngram_tenants_find(t, 0, true), ids, 0, 3);
    struct ngram_table *other = ngram_tenants_find(t, 5, true);
    assert_int_equal(ngram_table_find(other, ids, 1, 6).order, 0);
    assert_int_equal(ngram_table_find(ngram_tenants_find(t, 0, true), ids, 1, 6).token, 2);
    /* A third takes the place of the one that learnt longest ago, and finds it empty. */
    struct ngram_table *third = ngram_tenants_find(t, 6, true);
    assert_ptr_equal(third, other);
    assert_null(ngram_tenants_find(t, 5, false));
    assert_non_null(ngram_tenants_find(t, 0, false));
    free(mem);
}

static void test_fits_doubt(void **state) {
    (void)state;
    uint32_t ids[N_LISTS][LIST_TOKENS];
    struct ngram_list lists[N_LISTS];
    make_lists(ids, lists);
    void *bytes;
    size_t n;
    struct error e = {0};
    assert_int_equal(ngram_table_build(lists, 9, 1 << 20, NULL, &bytes, &n, &e), STATUS_OK);
    struct ngram_table t;
    assert_int_equal(ngram_table_view(&t, bytes, n, &e), STATUS_OK);
    uint32_t unseen[4000];
    write_text(1234, unseen, 4000);
    const struct ngram_list test = {unseen, 0, 4000};
    float doubt[NGRAM_ORDERS];
    ngram_table_fit_doubt(&t, &test, 1, doubt);
    memcpy(t.doubt, doubt, sizeof doubt);
    double expected = 0, right = 0;
    uint32_t n_hits = 0;
    for (uint32_t i = 1; i < 4000; i++) {
        const struct ngram_hit h = ngram_table_find(&t, unseen, i, NGRAM_ORDERS);
        if (h.order != 1 && h.order != 2) continue;
        n_hits++;
        expected += (double)h.confidence;
        right += h.token == unseen[i];
    }
    assert_true(n_hits > 500);
    assert_true(expected > right * 0.8 && expected < right * 1.25 + 5);
    free(bytes);
}

static void test_lies(void **state) {
    (void)state;
    struct ngram_table t;
    struct error e = {0};
    uint8_t *bytes = take(ngram_table_bytes(4));
    ngram_table_init(&t, bytes, 4);
    const size_t n = ngram_table_bytes(4);
    assert_int_equal(ngram_table_view(&t, bytes, n, &e), STATUS_OK);
    assert_null(t.writable);
    for (size_t cut = 0; cut < n; cut++)
        assert_int_equal(ngram_table_view(&t, bytes, cut, &e), STATUS_CORRUPT);
    static const struct {
        size_t at;
        uint8_t value;
        enum status want;
    } LIES[] = {{0, 0, STATUS_CORRUPT},        {4, 2, STATUS_UNSUPPORTED},
                {8, 5, STATUS_CORRUPT},        {8, 0, STATUS_CORRUPT},
                {11, 255, STATUS_CORRUPT},     {12, 7, STATUS_UNSUPPORTED},
                {24 + 3, 200, STATUS_CORRUPT}, {24 + 3, 0x7f, STATUS_CORRUPT}};
    for (size_t i = 0; i < sizeof LIES / sizeof *LIES; i++) {
        const uint8_t was = bytes[LIES[i].at];
        bytes[LIES[i].at] = LIES[i].value;
        assert_int_equal(ngram_table_view(&t, bytes, n, &e), LIES[i].want);
        assert_true(e.message[0] != '\0' && t.lines == NULL);
        bytes[LIES[i].at] = was;
    }
    /* Any bytes in the lines: hits stay in range. */
    for (size_t i = 64; i < n; i++) bytes[i] = (uint8_t)rng_draw(4, 0, (uint32_t)i, RNG_TEST, 0);
    assert_int_equal(ngram_table_view(&t, bytes, n, &e), STATUS_OK);
    for (uint32_t i = 0; i < 200000; i++) {
        const uint32_t context[] = {i};
        const struct ngram_hit h = ngram_table_find(&t, context, 1, NGRAM_ORDERS);
        if (h.order != 0) assert_true(h.count >= 1 && h.count <= h.total && h.confidence <= 1);
    }
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_build_is_exact),
        cmocka_unit_test(test_build_within_bounds),
        cmocka_unit_test(test_learns_in_service),
        cmocka_unit_test(test_proposes),
        cmocka_unit_test(test_tenants),
        cmocka_unit_test(test_fits_doubt),
        cmocka_unit_test(test_lies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
