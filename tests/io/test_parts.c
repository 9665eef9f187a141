/* The small parts of io/: deadline heap, chains, bodies, arena, SSE framing; random operations
 * against plain models of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "io/bump.h"
#include "io/body.h"
#include "io/chain.h"
#include "io/deadline_heap.h"
#include "io/sse.h"

static uint32_t seed = 12345;
static uint32_t draw(uint32_t n) {
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

enum { KEYS = 37 };

static void test_deadline_heap(void **state) {
    (void)state;
    uint64_t model[KEYS] = {0};
    struct deadline_heap h;
    void *mem = malloc(deadline_heap_footprint(KEYS));
    deadline_heap_init(&h, mem, KEYS);
    for (int round = 0; round < 20000; round++) {
        const uint32_t key = draw(KEYS);
        const uint64_t at = draw(4) == 0 ? 0 : 1 + draw(1000);
        if (draw(3) != 0) {
            deadline_heap_set(&h, key, at);
            model[key] = at;
        } else {
            const uint64_t now = draw(400);
            uint32_t got;
            uint64_t first = UINT64_MAX;
            for (int i = 0; i < KEYS; i++)
                if (model[i] != 0 && model[i] < first) first = model[i];
            assert_int_equal(deadline_heap_next(&h), first);
            const bool popped = deadline_heap_pop(&h, now, &got);
            assert_int_equal(popped, first <= now);
            if (popped) {
                assert_int_equal(model[got], first);
                model[got] = 0;
            }
        }
    }
    free(mem);
}

static void test_chain(void **state) {
    (void)state;
    struct chunk_pool pool;
    assert_int_equal(chunk_pool_init(&pool, 40 * sizeof(struct chunk), NULL), STATUS_OK);
    static char source[1 << 20];
    for (size_t i = 0; i < sizeof source; i++) source[i] = (char)draw(256);
    struct chain c = {0}, other = {0};
    size_t in = 0, out = 0; /* c holds source[out, in) */
    for (int round = 0; round < 5000; round++) {
        const size_t n = draw(3) == 0 ? draw(40000) : draw(300);
        if (draw(2) == 0 && in + n <= sizeof source) {
            struct chain *to = draw(2) == 0 ? &c : &other;
            const size_t before = to->bytes;
            if (chain_append(to, &pool, source + in, n))
                in += n;
            else
                assert_int_equal(to->bytes, before);
            chain_join(&c, &other);
            assert_int_equal(other.bytes, 0);
        } else if (c.bytes > 0) {
            const char *p = NULL;
            size_t run = chain_front(&c, &p);
            if (run > n + 1) run = n + 1;
            assert_memory_equal(p, source + out, run);
            chain_consume(&c, &pool, run);
            out += run;
        }
        assert_int_equal(c.bytes, in - out);
        if (in + 50000 > sizeof source && c.bytes == 0) in = out = 0;
    }
    chain_clear(&c, &pool);
    assert_int_equal(pool.n_used, 0);
    /* Full: refused, and nothing is taken. */
    static char big[40 * CHUNK_BYTES + 1];
    assert_false(chain_append(&c, &pool, big, sizeof big));
    assert_true(chain_append(&c, &pool, big, sizeof big - 1));
    assert_false(chain_append(&c, &pool, big, 1));
    assert_int_equal(c.bytes, sizeof big - 1);
    chain_clear(&c, &pool);
    chunk_pool_free(&pool);
}

static void test_body(void **state) {
    (void)state;
    static struct body b;
    static char piece[100000];
    size_t total = 0;
    while (total + sizeof piece <= BODY_MAX_BYTES) {
        for (size_t i = 0; i < sizeof piece; i++) piece[i] = (char)((total + i) * 7 >> 3);
        assert_true(body_append(&b, piece, sizeof piece));
        total += sizeof piece;
    }
    assert_true(body_append(&b, piece, BODY_MAX_BYTES - total));
    assert_false(body_append(&b, piece, 1));
    assert_int_equal(b.bytes, BODY_MAX_BYTES);
    size_t at = 0, n;
    const char *p;
    while ((n = body_at(&b, at, &p)) != 0) {
        for (size_t i = 0; i < n && at + i < total; i++)
            if (p[i] != (char)((at + i) * 7 >> 3)) fail();
        at += n;
    }
    assert_int_equal(at, BODY_MAX_BYTES);
    body_clear(&b);
    assert_int_equal(b.bytes, 0);
}

static void test_arena(void **state) {
    (void)state;
    struct bump a = {0};
    char *all[500];
    size_t sizes[500];
    for (int i = 0; i < 500; i++) {
        sizes[i] = draw(20) == 0 ? draw(100000) : draw(200);
        all[i] = bump_take(&a, sizes[i]);
        assert_non_null(all[i]);
        assert_int_equal((uintptr_t)all[i] % 16, 0);
        memset(all[i], i & 0x7F, sizes[i]);
    }
    for (int i = 0; i < 500; i++)
        for (size_t k = 0; k < sizes[i]; k++)
            if (all[i][k] != (i & 0x7F)) fail();
    assert_null(bump_take(&a, SIZE_MAX));
    bump_free(&a);
}

static void expect_sse(const char *in, const char *want) {
    char mem[256];
    struct buffer b;
    buffer_init_fixed(&b, mem, sizeof mem);
    sse_data(&b, in, strlen(in));
    assert_string_equal(buffer_cstr(&b), want);
}

static void test_sse(void **state) {
    (void)state;
    expect_sse("", "data: \n\n");
    expect_sse("[DONE]", "data: [DONE]\n\n");
    expect_sse("a\nb", "data: a\ndata: b\n\n");
    expect_sse("a\r\nb\rc\n", "data: a\ndata: b\ndata: c\ndata: \n\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deadline_heap), cmocka_unit_test(test_chain),
        cmocka_unit_test(test_body),          cmocka_unit_test(test_arena),
        cmocka_unit_test(test_sse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
