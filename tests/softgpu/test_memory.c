/* The device's address space: accounting, bounds, freed ranges, mappings, defined bits. */
#include "tests/softgpu/harness.h"

#define GRANULE MEMORY_GRANULE

static struct memory *start(uint64_t bytes, bool track) {
    struct memory *m;
    struct error e;
    const struct memory_config cfg = {.size_bytes = bytes, .track = track, .seed = 3};
    assert_int_equal(memory_create(&cfg, &m, &e), STATUS_OK);
    return m;
}

static void test_allocations(void **state) {
    (void)state;
    struct error e;
    struct memory *m = start(1 << 20, true);
    uint64_t a, b, c;
    assert_int_equal(memory_allocate(m, 1000, "first", &a, &e), STATUS_OK);
    assert_int_equal(memory_allocate(m, 5000, NULL, &b, &e), STATUS_OK);
    assert_int_equal(memory_used_bytes(m), 6000);
    assert_int_equal(a % 256, 0);
    assert_int_not_equal(a % 512, 0); /* no more than promised */
    assert_int_equal(memory_allocate(m, 1 << 20, NULL, &c, &e), STATUS_NO_MEMORY);
    assert_int_equal(c, 0);
    assert_int_equal(memory_allocate(m, 0, NULL, &c, &e), STATUS_INVALID);
    assert_non_null(memory_find(m, a));
    assert_non_null(memory_find(m, a + 999));
    assert_null(memory_find(m, a + 1000));
    assert_null(memory_find(m, a - 1));
    assert_string_equal(memory_near(m, a + 2000)->label, "first");
    assert_int_equal(memory_free(m, a + 256, &e), STATUS_NOT_FOUND);
    assert_int_equal(memory_free(m, a, &e), STATUS_OK);
    assert_int_equal(memory_free(m, a, &e), STATUS_NOT_FOUND);
    assert_null(memory_find(m, a));
    assert_int_equal(memory_near(m, a)->state, MEMORY_FREED);
    assert_int_equal(memory_used_bytes(m), 5000);
    for (int i = 0; i < 50; i++) { /* addresses do not come back */
        assert_int_equal(memory_allocate(m, 16, NULL, &c, &e), STATUS_OK);
        assert_true(c > b);
        assert_int_equal(memory_free(m, c, &e), STATUS_OK);
    }
    memory_destroy(m);
}

static void test_copies(void **state) {
    (void)state;
    struct error e;
    struct memory *m = start(1 << 20, true);
    uint64_t a, b, undefined;
    uint8_t in[100], out[100];
    for (int i = 0; i < 100; i++) in[i] = (uint8_t)i;
    assert_int_equal(memory_allocate(m, 100, NULL, &a, &e), STATUS_OK);
    assert_int_equal(memory_allocate(m, 100, NULL, &b, &e), STATUS_OK);
    assert_int_equal(memory_read(m, out, a, 100, &undefined, &e), STATUS_OK);
    assert_int_equal(undefined, 100);
    assert_int_equal(memory_write(m, a + 3, in, 50, &e), STATUS_OK);
    assert_int_equal(memory_read(m, out, a, 100, &undefined, &e), STATUS_OK);
    assert_int_equal(undefined, 50);
    assert_memory_equal(out + 3, in, 50);
    assert_int_equal(memory_copy(m, b, a, 10, &e), STATUS_OK);
    assert_int_equal(memory_read(m, out, b, 10, &undefined, &e), STATUS_OK);
    assert_int_equal(undefined, 3);
    assert_int_equal(memory_fill(m, b, 0x01020304, 4, 25, &e), STATUS_OK);
    assert_int_equal(memory_read(m, out, b, 100, &undefined, &e), STATUS_OK);
    assert_int_equal(undefined, 0);
    assert_int_equal(out[96], 4);
    assert_int_equal(out[99], 1);
    assert_int_equal(memory_set_defined(m, b + 7, 9, false, &e), STATUS_OK);
    assert_int_equal(memory_read(m, out, b, 100, &undefined, &e), STATUS_OK);
    assert_int_equal(undefined, 9);
    assert_int_equal(memory_write(m, a + 60, in, 41, &e), STATUS_NOT_FOUND);
    assert_int_equal(memory_read(m, out, a - 1, 2, NULL, &e), STATUS_NOT_FOUND);
    assert_int_equal(memory_copy(m, a, b, 101, &e), STATUS_NOT_FOUND);
    assert_int_equal(memory_fill(m, a + 1, 0, 2, 1, &e), STATUS_INVALID);
    memory_destroy(m);
}

static void test_mappings(void **state) {
    (void)state;
    struct error e;
    struct memory *m = start(16 * GRANULE, false);
    uint64_t base, aligned;
    struct memory_block *one, *two;
    uint8_t in[64], out[64];
    memset(in, 7, sizeof in);
    assert_int_equal(memory_reserve(m, 8 * GRANULE, 0, &base, &e), STATUS_OK);
    assert_int_equal(memory_reserve(m, GRANULE, 64 * GRANULE, &aligned, &e), STATUS_OK);
    assert_int_equal(aligned % (64 * GRANULE), 0);
    assert_int_equal(memory_reserve(m, 100, 0, &aligned, &e), STATUS_INVALID);
    assert_null(memory_find(m, base));
    assert_int_equal(memory_block_create(m, 2 * GRANULE, &one, &e), STATUS_OK);
    assert_int_equal(memory_block_create(m, GRANULE, &two, &e), STATUS_OK);
    assert_int_equal(memory_used_bytes(m), 3 * GRANULE);
    assert_int_equal(memory_map(m, base, one, &e), STATUS_OK);
    assert_int_equal(memory_map(m, base + GRANULE, two, &e), STATUS_INVALID); /* taken */
    assert_int_equal(memory_map(m, base + 2 * GRANULE, two, &e), STATUS_OK);
    assert_int_equal(memory_map(m, base + 8 * GRANULE, two, &e), STATUS_INVALID); /* outside */
    assert_false(memory_find(m, base)->writable);
    assert_int_equal(memory_set_access(m, base, 3 * GRANULE, true, true, &e), STATUS_OK);
    assert_int_equal(memory_set_access(m, base, GRANULE, true, true, &e), STATUS_NOT_FOUND);
    assert_true(memory_find(m, base)->writable);
    /* across both */
    assert_int_equal(memory_write(m, base + 2 * GRANULE - 32, in, 64, &e), STATUS_OK);
    assert_int_equal(memory_read(m, out, base + 2 * GRANULE - 32, 64, NULL, &e), STATUS_OK);
    assert_memory_equal(in, out, 64);
    /* the same memory a second time, at another address */
    assert_int_equal(memory_map(m, base + 4 * GRANULE, two, &e), STATUS_OK);
    assert_int_equal(memory_read(m, out, base + 4 * GRANULE, 32, NULL, &e), STATUS_OK);
    assert_memory_equal(in, out, 32);
    memory_block_release(m, two);
    assert_int_equal(memory_used_bytes(m), 3 * GRANULE); /* still mapped */
    assert_int_equal(memory_unreserve(m, base, 8 * GRANULE, &e), STATUS_INVALID);
    assert_int_equal(memory_unmap(m, base + 2 * GRANULE, GRANULE, &e), STATUS_OK);
    assert_int_equal(memory_unmap(m, base + 4 * GRANULE, GRANULE, &e), STATUS_OK);
    assert_int_equal(memory_used_bytes(m), 2 * GRANULE);
    assert_null(memory_find(m, base + 2 * GRANULE));
    assert_int_equal(memory_unmap(m, base, 2 * GRANULE, &e), STATUS_OK);
    memory_block_release(m, one);
    assert_int_equal(memory_used_bytes(m), 0);
    assert_int_equal(memory_unreserve(m, base, 8 * GRANULE, &e), STATUS_OK);
    assert_int_equal(memory_unreserve(m, base, 8 * GRANULE, &e), STATUS_NOT_FOUND);
    memory_destroy(m);
}

static void count(void *arg, const struct memory_range *r) {
    (void)r;
    ++*(int *)arg;
}

static void test_host(void **state) {
    (void)state;
    struct error e;
    struct memory *m = start(1 << 20, true);
    static uint8_t host[4096];
    assert_int_equal(memory_host_register(m, host, sizeof host, &e), STATUS_OK);
    assert_int_equal(memory_host_register(m, host + 10, 10, &e), STATUS_INVALID);
    const struct memory_range *r = memory_find(m, (uintptr_t)host + 4095);
    assert_non_null(r);
    assert_ptr_equal(r->host, host);
    assert_null(memory_find(m, (uintptr_t)host + 4096));
    int n = 0;
    memory_each(m, count, &n);
    assert_int_equal(n, 1);
    const uint32_t v = 5;
    assert_int_equal(memory_write(m, (uintptr_t)host + 8, &v, 4, &e), STATUS_OK);
    assert_int_equal(host[8], 5);
    assert_int_equal(memory_host_unregister(m, host, &e), STATUS_OK);
    assert_int_equal(memory_host_unregister(m, host, &e), STATUS_NOT_FOUND);
    assert_null(memory_find(m, (uintptr_t)host));
    memory_destroy(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allocations), cmocka_unit_test(test_copies),
        cmocka_unit_test(test_mappings), cmocka_unit_test(test_host)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
