/* Queue order against a sorted array; stop strings against a naive search. */
#include "sched/queue.h"
#include "sched/stop.h"
#include "tests/sched/fake.h"

/* ---- queue ---- */

static int by_key(const void *a, const void *b) {
    const struct queue_key *x = a, *y = b;
    if (x->deadline_ns != y->deadline_ns) return x->deadline_ns < y->deadline_ns ? -1 : 1;
    if (x->priority != y->priority) return x->priority > y->priority ? -1 : 1;
    return x->arrival < y->arrival ? -1 : 1;
}

static void test_order(void **state) {
    (void)state;
    enum { CAP = 50 };
    for (uint64_t seed = 1; seed <= 300; seed++) {
        uint64_t x = mix64(seed), arrivals = 0;
        void *mem = malloc(queue_footprint(CAP));
        struct queue q;
        struct queue_key in[CAP];
        bool queued[CAP] = {false};
        queue_init(&q, mem, CAP);
        for (int step = 0; step < 300; step++) {
            const uint32_t name = below(&x, CAP);
            if (below(&x, 3) > 0 && !queued[name]) {
                in[name] =
                    (struct queue_key){.deadline_ns = below(&x, 3) ? below(&x, 6) : UINT64_MAX,
                                       .priority = (int32_t)below(&x, 3) - 1,
                                       .arrival = arrivals++};
                queue_push(&q, name, &in[name]);
                queued[name] = true;
            } else {
                assert_int_equal(queue_remove(&q, name), queued[name]);
                queued[name] = false;
            }
            struct queue_key sorted[CAP];
            uint32_t n = 0;
            for (uint32_t i = 0; i < CAP; i++)
                if (queued[i]) sorted[n++] = in[i];
            assert_int_equal(n, q.n);
            if (n == 0) {
                assert_int_equal(queue_first(&q), QUEUE_NONE);
                assert_true(queue_next_deadline_ns(&q) == UINT64_MAX);
                continue;
            }
            qsort(sorted, n, sizeof *sorted, by_key);
            assert_int_equal(in[queue_first(&q)].arrival, sorted[0].arrival);
            assert_true(queue_next_deadline_ns(&q) == sorted[0].deadline_ns);
        }
        free(mem);
    }
}

/* ---- stop strings ---- */

static void test_stops(void **state) {
    (void)state;
    static struct stop_set set;
    for (uint64_t seed = 1; seed <= 20000; seed++) {
        uint64_t x = mix64(seed);
        char stops[4][12], text[80];
        struct text texts[4];
        const uint32_t n = below(&x, 5), letters = 1 + below(&x, 3), len = below(&x, sizeof text);
        for (uint32_t s = 0; s < n; s++) {
            texts[s] = (struct text){stops[s], below(&x, sizeof stops[s])};
            for (size_t i = 0; i < texts[s].len; i++)
                stops[s][i] = (char)('a' + below(&x, letters));
        }
        for (uint32_t i = 0; i < len; i++) text[i] = (char)('a' + below(&x, letters));
        stop_set_init(&set, texts, n);
        struct stop_state st;
        stop_start(&st);
        for (uint32_t end = 1; end <= len; end++) {
            size_t complete = 0, held = 0;
            for (uint32_t s = 0; s < n; s++) {
                for (size_t k = 1; k <= texts[s].len && k <= end; k++) {
                    if (memcmp(text + end - k, stops[s], k) != 0) continue;
                    if (k == texts[s].len && k > complete) complete = k;
                    if (k < texts[s].len && k > held) held = k;
                }
            }
            uint32_t got_held;
            const uint32_t got = stop_push(&set, &st, text[end - 1], &got_held);
            assert_int_equal(got, complete);
            if (got > 0) break;
            assert_int_equal(got_held, held);
        }
    }
}

static void test_longest_stop(void **state) {
    (void)state;
    static struct stop_set set;
    char one[REQUEST_MAX_STOP_BYTES];
    memset(one, 'x', sizeof one);
    struct text texts[REQUEST_MAX_STOPS];
    for (uint32_t i = 0; i < REQUEST_MAX_STOPS; i++) texts[i] = (struct text){one, sizeof one - i};
    stop_set_init(&set, texts, REQUEST_MAX_STOPS);
    struct stop_state st;
    uint32_t held = 0, got = 0, pushed = 0;
    stop_start(&st);
    while (got == 0) got = stop_push(&set, &st, 'x', &held), pushed++;
    assert_int_equal(pushed, REQUEST_MAX_STOP_BYTES - REQUEST_MAX_STOPS + 1);
    assert_int_equal(got, pushed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_longest_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
