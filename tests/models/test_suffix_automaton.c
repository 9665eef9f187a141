/* suffix_automaton.c against brute force over random texts of small alphabets, with cuts; and the
 * proposals against a reading of the text itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/rng.h"
#include "models/suffix_automaton.h"

enum { MAX_TOKENS = 160 };

static uint32_t random_below(uint64_t seed, uint32_t i, uint32_t n) {
    return (uint32_t)(rng_draw(seed, 0, i, RNG_TEST, 0) % n);
}

static void *take(size_t bytes) {
    void *mem = NULL;
    assert_int_equal(posix_memalign(&mem, 64, bytes), 0);
    memset(mem, 0xa5, bytes);
    return mem;
}

/* Longest suffix of text[0, n) that ends before n as well, and where it ends first. */
static uint32_t longest(const uint32_t *text, uint32_t n, uint32_t *end) {
    uint32_t best = 0;
    *end = 0;
    for (uint32_t e = 1; e < n; e++) {
        uint32_t len = 0;
        while (len < e && text[e - 1 - len] == text[n - 1 - len]) len++;
        if (len > best) best = len, *end = e;
    }
    return best;
}

static void expect_equal_proposals(const struct suffix_automaton *a,
                                   const struct suffix_automaton *b) {
    struct draft_proposal x, y;
    suffix_automaton_propose(a, DRAFT_MAX_TOKENS, &x);
    suffix_automaton_propose(b, DRAFT_MAX_TOKENS, &y);
    assert_memory_equal(&x, &y, sizeof x);
}

static void test_against_brute_force(void **state) {
    (void)state;
    void *mem = take(suffix_automaton_footprint(MAX_TOKENS));
    void *fresh_mem = take(suffix_automaton_footprint(MAX_TOKENS));
    struct suffix_automaton *a = suffix_automaton_init(mem, MAX_TOKENS);
    struct suffix_automaton *fresh = suffix_automaton_init(fresh_mem, MAX_TOKENS);
    uint32_t n_proposed = 0;
    for (uint64_t seed = 0; seed < 150; seed++) {
        uint32_t text[MAX_TOKENS], n = 0, draw = 0;
        const uint32_t alphabet = 1 + (uint32_t)(seed % 6);
        suffix_automaton_clear(a);
        while (n < MAX_TOKENS && draw < 1000) {
            if (n > 0 && random_below(seed, draw++, 12) == 0) {
                n -= random_below(seed, draw++, n < 20 ? n + 1 : 20);
                suffix_automaton_cut(a, n);
            } else {
                text[n] = 0xfffffff0u + random_below(seed, draw++, alphabet);
                suffix_automaton_append(a, &text[n], 1);
                n++;
            }
            uint32_t end, want_end;
            const uint32_t want = longest(text, n, &want_end);
            assert_int_equal(suffix_automaton_length(a), n);
            assert_int_equal(suffix_automaton_match(a, &end), want);
            assert_int_equal(want > 0 ? end : 0, want_end);

            struct draft_proposal p;
            suffix_automaton_propose(a, 5, &p);
            assert_true(p.n == (want > 0 ? 5 : 0));
            n_proposed += p.n;
            /* The first token follows an earlier occurrence of the longest match. */
            int followed = p.n == 0;
            for (uint32_t e = want; e < n && !followed; e++)
                followed = memcmp(text + e - want, text + n - want, want * sizeof *text) == 0 &&
                           text[e] == p.ids[0];
            assert_true(followed);
            for (uint32_t i = 0; i < p.n; i++)
                assert_true(p.confidence[i] > 0 && p.confidence[i] <= 1);
        }
        /* After all the cuts it is the automaton of the text, to the last preference of a walk. */
        suffix_automaton_clear(fresh);
        suffix_automaton_append(fresh, text, n);
        expect_equal_proposals(a, fresh);
        while (n > 0) {
            suffix_automaton_cut(a, --n);
            suffix_automaton_cut(fresh, n);
            expect_equal_proposals(a, fresh);
        }
    }
    assert_true(n_proposed > 10000);
    free(mem);
    free(fresh_mem);
}

static void test_copies_and_repeats(void **state) {
    (void)state;
    void *mem = take(suffix_automaton_footprint(64));
    struct suffix_automaton *a = suffix_automaton_init(mem, 64);
    struct draft_source *s = suffix_automaton_source(a);
    const uint32_t text[] = {1, 2, 3, 4, 5, 6, 7, 9, 2, 3};
    draft_append(s, text, 10);
    struct draft_proposal p;
    draft_propose(s, text, 10, 4, &p);
    assert_int_equal(p.n, 4);
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(p.ids[i], 4 + i);
    assert_true(p.confidence[3] > p.confidence[0]);

    /* What followed last is proposed, and two continuations are less sure than one. */
    const uint32_t more[] = {8, 2, 3};
    draft_append(s, more, 3);
    struct draft_proposal q;
    draft_propose(s, text, 13, 1, &q);
    assert_int_equal(q.ids[0], 8);
    assert_true(q.confidence[0] < p.confidence[0]);
    draft_cut(s, 10);
    struct draft_proposal again;
    draft_propose(s, text, 10, 4, &again);
    assert_memory_equal(&again, &p, sizeof p);

    /* A period goes on beyond the end of the text. */
    suffix_automaton_clear(a);
    const uint32_t period[] = {5, 6, 5, 6, 5, 6};
    suffix_automaton_append(a, period, 6);
    suffix_automaton_propose(a, 8, &p);
    assert_int_equal(p.n, 8);
    for (uint32_t i = 0; i < 8; i++) assert_int_equal(p.ids[i], period[i % 2]);
    free(mem);
}

static void test_beyond_its_room(void **state) {
    (void)state;
    void *mem = take(suffix_automaton_footprint(8));
    struct suffix_automaton *a = suffix_automaton_init(mem, 8);
    const uint32_t text[] = {1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2};
    struct draft_proposal p;
    uint32_t end;
    suffix_automaton_append(a, text, 12);
    assert_int_equal(suffix_automaton_length(a), 12);
    assert_int_equal(suffix_automaton_match(a, &end), 0);
    suffix_automaton_propose(a, 4, &p);
    assert_int_equal(p.n, 0);
    suffix_automaton_cut(a, 9);
    suffix_automaton_propose(a, 4, &p);
    assert_int_equal(p.n, 0);
    suffix_automaton_cut(a, 8);
    assert_int_equal(suffix_automaton_match(a, &end), 6);
    suffix_automaton_propose(a, 4, &p);
    assert_int_equal(p.n, 4);
    suffix_automaton_cut(a, 0);
    assert_int_equal(suffix_automaton_length(a), 0);
    free(mem);
}

/* The worst texts for the bounds on states, transitions and redirections: CHECKs in the code. */
static void test_bounds(void **state) {
    (void)state;
    enum { N = 4096 };
    void *mem = take(suffix_automaton_footprint(N));
    struct suffix_automaton *a = suffix_automaton_init(mem, N);
    uint32_t *text = calloc(N, sizeof *text);
    assert_non_null(text);
    for (int kind = 0; kind < 5; kind++) {
        for (uint32_t i = 0; i < N; i++) {
            const uint32_t fibonacci = (uint32_t)((uint64_t)(i + 1) * 2654435769u >> 32) -
                                       (uint32_t)((uint64_t)i * 2654435769u >> 32);
            text[i] = kind == 0   ? i > 0                       /* a b b b ... */
                      : kind == 1 ? i % 2                       /* a b a b ... */
                      : kind == 2 ? (i < N / 2 ? i % 7 : i % 5) /* a change of period */
                      : kind == 3 ? fibonacci
                                  : (i == N / 2   ? 2
                                     : i == N - 1 ? 3
                                                  : 1); /* a..a c a..a d */
        }
        suffix_automaton_clear(a);
        suffix_automaton_append(a, text, N);
        suffix_automaton_cut(a, N / 2);
        suffix_automaton_append(a, text + N / 2, N - N / 2);
        assert_int_equal(suffix_automaton_length(a), N);
    }
    const uint64_t t0 = clock_now_ns();
    suffix_automaton_clear(a);
    for (uint32_t i = 0; i < N; i++) text[i] = random_below(9, i, 300);
    suffix_automaton_append(a, text, N);
    print_message("%.0f ns per token appended\n", (double)(clock_now_ns() - t0) / N);
    free(text);
    free(mem);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_brute_force),
        cmocka_unit_test(test_copies_and_repeats),
        cmocka_unit_test(test_beyond_its_room),
        cmocka_unit_test(test_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
