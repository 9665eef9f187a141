/* Random records against a list that forgets nothing. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/flight.h"

enum { N_SLOTS = 5, N_EVENTS = 16, MAX_RECORDS = 4000 };

struct history {
    struct flight_event events[MAX_RECORDS];
    uint32_t n;
};

/* Decisions are kept, however many other events come after. */
static void compare_kept(const struct flight *f, uint32_t slot, const struct history *h) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < h->n && n < FLIGHT_MAX_KEPT; i++) {
        const uint16_t kind = h->events[i].kind;
        if (kind != FLIGHT_TASK && kind != FLIGHT_ROLLBACK && kind != FLIGHT_DEADLINE &&
            kind != FLIGHT_GATE_POLICY && kind != FLIGHT_LABEL && kind != FLIGHT_BREAKER &&
            kind != FLIGHT_REGULATED && kind != FLIGHT_CHOICE_END)
            continue;
        assert_true(n < flight_kept(f, slot));
        assert_memory_equal(flight_kept_at(f, slot, n++), &h->events[i],
                            sizeof(struct flight_event));
    }
    assert_int_equal(flight_kept(f, slot), n);
}

static void compare(const struct flight *f, uint32_t slot, const struct history *h) {
    compare_kept(f, slot, h);
    const uint32_t held = h->n < N_EVENTS ? h->n : N_EVENTS;
    assert_int_equal(flight_count(f, slot), held);
    assert_int_equal(flight_dropped(f, slot), h->n - held);
    for (uint32_t i = 0; i < held; i++) {
        assert_memory_equal(flight_at(f, slot, i), &h->events[h->n - held + i],
                            sizeof(struct flight_event));
    }
    for (int kind = 0; kind < FLIGHT_KIND_COUNT; kind++) {
        struct flight_total want = {0};
        for (uint32_t i = 0; i < h->n; i++) {
            const struct flight_event *e = &h->events[i];
            if (e->kind != kind) continue;
            if (want.n++ == 0) want.first_ns = e->t_ns;
            want.last_ns = e->t_ns;
            want.sum_b += e->b;
            want.sum_c += e->c;
        }
        const struct flight_total got = flight_total(f, slot, (enum flight_kind)kind);
        assert_memory_equal(&got, &want, sizeof got);
    }
}

static void test_random(void **state) {
    (void)state;
    srand(3);
    const size_t bytes = flight_footprint(N_SLOTS, N_EVENTS);
    uint8_t *mem = aligned_alloc(64, (bytes + 63) / 64 * 64);
    memset(mem, 0xa5, bytes);
    struct flight *f = flight_init(mem, N_SLOTS, N_EVENTS);
    struct history *h = calloc(N_SLOTS, sizeof *h);
    uint64_t t = 1;
    for (int i = 0; i < 3000; i++) {
        const uint32_t slot = (uint32_t)rand() % N_SLOTS;
        if (rand() % 100 == 0) {
            flight_clear(f, slot);
            h[slot].n = 0;
        } else {
            t += (uint64_t)rand() % 1000;
            const struct flight_event e = {.t_ns = t,
                                           .kind = (uint16_t)(rand() % FLIGHT_KIND_COUNT),
                                           .a = (uint16_t)rand(),
                                           .b = (uint32_t)rand(),
                                           .c = (uint64_t)rand() << 20};
            flight_record(f, slot, e.t_ns, (enum flight_kind)e.kind, e.a, e.b, e.c);
            h[slot].events[h[slot].n++] = e;
        }
        if (i % 7 == 0) compare(f, slot, &h[slot]);
    }
    for (uint32_t s = 0; s < N_SLOTS; s++) compare(f, s, &h[s]);
    free(h);
    free(mem);
}

static void test_rollback(void **state) {
    (void)state;
    srand(5);
    for (int i = 0; i < 2000; i++) {
        const struct flight_rollback in = {
            .position = (uint32_t)rand() * 2u + (uint32_t)(rand() % 2),
            .entropy = (float)(rand() % 65000) / 1000,
            .similarity = i % 5 == 0 ? NAN : (float)(rand() % 2001 - 1000) / 1000};
        const struct flight_rollback out = flight_rollback_of(flight_rollback_pack(in));
        assert_int_equal(out.position, in.position);
        assert_true(fabsf(out.entropy - in.entropy) < 0.0006f);
        if (isnan(in.similarity))
            assert_true(isnan(out.similarity));
        else
            assert_true(fabsf(out.similarity - in.similarity) < 0.0006f);
    }
    const struct flight_rollback wild =
        flight_rollback_of(flight_rollback_pack((struct flight_rollback){7, INFINITY, -3}));
    assert_true(wild.position == 7 && wild.entropy == 65 && wild.similarity == -1);
}

static void test_timings(void **state) {
    (void)state;
    const size_t bytes = flight_footprint(1, 4);
    void *mem = aligned_alloc(64, (bytes + 63) / 64 * 64);
    struct flight *f = flight_init(mem, 1, 4);
    const struct flight_timings none = flight_timings(f, 0), zero = {0};
    assert_memory_equal(&none, &zero, sizeof none);

    flight_record(f, 0, 1000, FLIGHT_RECEIVED, 0, 0, 0);
    flight_record(f, 0, 1100, FLIGHT_QUEUED, 0, 0, 0);
    flight_record(f, 0, 1500, FLIGHT_TOKENISED, 0, 90, 300);
    flight_record(f, 0, 2500, FLIGHT_ADMITTED, 0, 7, 1);
    struct flight_timings t = flight_timings(f, 0);
    assert_int_equal(t.tokenise_ns, 400);
    assert_int_equal(t.queue_ns, 1100);
    assert_int_equal(t.ttft_ns, 0);
    assert_int_equal(t.decode_ns, 0);
    assert_int_equal(t.total_ns, 1500);

    flight_record(f, 0, 2500, FLIGHT_PREFIX_HIT, 0, 32, 0);
    flight_record(f, 0, 9000, FLIGHT_FIRST_TOKEN, 0, 11, 0);
    for (uint64_t i = 0; i < 1000; i++) { /* far more than the ring holds */
        flight_record(f, 0, 9000 + i * 10, FLIGHT_STEP_DECODE, 1, 1, 10);
        flight_record(f, 0, 9001 + i * 10, FLIGHT_TOKEN, 0, 5, i);
    }
    t = flight_timings(f, 0);
    assert_int_equal(t.decode_ns, 9991);
    flight_record(f, 0, 20000, FLIGHT_FINISH, 0, 1000, 0);
    flight_record(f, 0, 30000, FLIGHT_STEP_DECODE, 1, 1, 10);
    t = flight_timings(f, 0);
    assert_int_equal(t.tokenise_ns, 400);
    assert_int_equal(t.queue_ns, 1100);
    assert_int_equal(t.prefill_ns, 6500);
    assert_int_equal(t.ttft_ns, 8000);
    assert_int_equal(t.decode_ns, 11000);
    assert_int_equal(t.total_ns, 19000);
    assert_int_equal(t.n_steps, 1001);
    assert_int_equal(t.tokens, 1000);
    assert_int_equal(t.prompt_tokens, 90);
    assert_int_equal(t.prefix_hit_tokens, 32);
    free(mem);
}

static void test_names(void **state) {
    (void)state;
    assert_string_equal(flight_kind_name(FLIGHT_RECEIVED), "received");
    for (int i = 0; i < FLIGHT_KIND_COUNT; i++) {
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(flight_kind_name((enum flight_kind)i),
                                    flight_kind_name((enum flight_kind)k));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_rollback),
        cmocka_unit_test(test_timings),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
