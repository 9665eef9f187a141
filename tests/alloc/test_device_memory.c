/* Device memory: reserve, grow, take, freeze, give back; what is counted and what is refused;
 * pinned memory; uploads through staging. On the software device. */
#include "alloc/device_memory.h"
#include "core/rng.h"
#include "tests/softgpu/with_softgpu.h"

static const uint64_t mib = (uint64_t)1 << 20;

static uint64_t free_bytes(const struct cuda *cu) {
    size_t free = 0, total = 0;
    struct error e = {0};
    assert_int_equal(CUDA_CALL(cu, &e, mem_get_info, &free, &total), STATUS_OK);
    return free;
}

static void test_growth(void **state) {
    (void)state;
    struct softgpu g;
    softgpu_open(&g, "L4");
    const struct cuda *cu = &g.cuda;
    struct error e = {0};
    struct device_memory m;
    const uint64_t before = free_bytes(cu);
    assert_int_equal(device_memory_open(&m, cu, &g.device, "KV pages", 100 * mib + 1, &e),
                     STATUS_OK);
    assert_true(m.granularity_bytes == 2 * mib);
    assert_true(m.reserved_bytes == 102 * mib);
    assert_true(m.mapped_bytes == 0 && free_bytes(cu) == before); /* addresses only */
    assert_int_equal(device_memory_grow(&m, 5 * mib, &e), STATUS_OK);
    assert_true(m.mapped_bytes == 6 * mib && free_bytes(cu) == before - 6 * mib);
    assert_int_equal(device_memory_grow(&m, 6 * mib, &e), STATUS_OK);
    assert_int_equal(m.n_steps, 1);

    /* Blocks do not overlap, are aligned, and old ones keep their contents over growth. */
    uint64_t at[400], size[400], end = m.base;
    uint32_t n = 0;
    for (; n < 400; n++) {
        size[n] = 1 + rng_draw(1, 0, n, RNG_TEST, 0) % mib;
        const uint64_t align = (uint64_t)1 << rng_draw(1, 1, n, RNG_TEST, 0) % 13;
        if (device_memory_take(&m, size[n], align, &at[n], &e) != STATUS_OK) break;
        assert_true(at[n] >= end && at[n] % align == 0);
        end = at[n] + size[n];
        assert_true(end <= m.base + m.mapped_bytes);
        assert_int_equal(CUDA_CALL(cu, &e, memset_d8_async, at[n], (unsigned char)n, size[n], NULL),
                         STATUS_OK);
    }
    assert_in_range(n, 100, 399);
    assert_int_equal(e.status, STATUS_NO_MEMORY);
    assert_non_null(strstr(e.message, "KV pages"));
    assert_true(m.used_bytes <= m.mapped_bytes && m.mapped_bytes <= m.reserved_bytes);
    uint8_t *host = malloc(mib);
    assert_non_null(host);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(CUDA_CALL(cu, &e, memcpy_dtoh_async, host, at[i], size[i], NULL),
                         STATUS_OK);
        assert_int_equal(CUDA_CALL(cu, &e, stream_synchronize, NULL), STATUS_OK);
        for (uint64_t k = 0; k < size[i]; k++) assert_int_equal(host[k], (uint8_t)i);
    }
    free(host);
    device_memory_freeze(&m);
    device_memory_close(&m);
    assert_true(m.base == 0 && free_bytes(cu) == before);
    device_memory_close(&m);
    softgpu_close(&g);
}

static void never_called(void *arg) {
    (void)arg;
    abort();
}

static void test_refusals(void **state) {
    (void)state;
    struct softgpu g;
    softgpu_open(&g, "L4");
    const struct cuda *cu = &g.cuda;
    struct error e = {0};
    struct device_memory m;
    uint64_t address = 1;
    assert_int_equal(device_memory_open(&m, cu, &g.device, "weights", 0, &e), STATUS_INVALID);
    assert_int_equal(device_memory_open(&m, cu, &g.device, "weights", UINT64_MAX - 5, &e),
                     STATUS_INVALID);
    struct cuda_device old = g.device;
    old.virtual_memory = false;
    assert_int_equal(device_memory_open(&m, cu, &old, "weights", mib, &e), STATUS_UNSUPPORTED);
    assert_true(m.base == 0);

    /* The device runs out in the middle: what was there stays. */
    assert_int_equal(device_memory_open(&m, cu, &g.device, "weights", 64 * mib, &e), STATUS_OK);
    assert_int_equal(device_memory_grow(&m, 8 * mib, &e), STATUS_OK);
    assert_true(g.faults("memory=12582912"));
    assert_int_equal(device_memory_grow(&m, 16 * mib, &e), STATUS_NO_MEMORY);
    assert_non_null(strstr(e.message, "weights cannot grow from 8.0 MiB to 16.0 MiB"));
    assert_non_null(strstr(e.message, "CUDA_ERROR_OUT_OF_MEMORY"));
    assert_true(m.mapped_bytes == 8 * mib && m.n_steps == 1);
    assert_int_equal(device_memory_take(&m, 20 * mib, 0, &address, &e), STATUS_NO_MEMORY);
    assert_true(address == 0 && m.used_bytes == 0);
    assert_int_equal(device_memory_grow(&m, 12 * mib, &e), STATUS_OK);
    assert_int_equal(device_memory_take(&m, 12 * mib, 0, &address, &e), STATUS_OK);
    assert_true(g.faults(""));
    assert_int_equal(device_memory_grow(&m, 64 * mib + 1, &e), STATUS_NO_MEMORY);
    device_memory_close(&m);

    /* A device that is lost is said to be so. */
    assert_int_equal(device_memory_open(&m, cu, &g.device, "weights", 64 * mib, &e), STATUS_OK);
    assert_true(g.faults("lost-file=/proc/self/exe"));
    assert_int_equal(CUDA_CALL(cu, &e, launch_host_func, NULL, never_called, NULL), STATUS_OK);
    assert_int_equal(CUDA_CALL(cu, &e, stream_synchronize, NULL), STATUS_DEVICE);
    assert_int_equal(device_memory_grow(&m, 8 * mib, &e), STATUS_DEVICE);
    device_memory_close(&m);
    softgpu_close(&g);
}

static void test_plan(void **state) {
    (void)state;
    struct softgpu g;
    softgpu_open(&g, "T4");
    struct error e = {0};
    struct memory_limit limit;
    struct budget b;
    uint64_t unit = 0;
    assert_int_equal(device_memory_granularity(&g.cuda, &g.device, &unit, &e), STATUS_OK);
    assert_int_equal(device_memory_limit(&g.cuda, &limit, &e), STATUS_OK);
    assert_true(limit.physical_bytes == g.device.total_bytes);
    assert_true(limit.limit_bytes < limit.available_bytes);
    budget_init(&b);
    device_memory_plan(&b, "device: weights", 3 * mib, unit);
    assert_true(b.total_bytes == 4 * mib);
    assert_int_equal(budget_check(&b, &limit, &e), STATUS_OK);
    device_memory_plan(&b, "device: KV pages", limit.limit_bytes, unit);
    assert_int_equal(budget_check(&b, &limit, &e), STATUS_NO_MEMORY);
    assert_non_null(strstr(e.message, "device: KV pages"));
    device_memory_plan(&b, "device: too much", UINT64_MAX, unit);
    assert_true(b.total_bytes == UINT64_MAX);
    softgpu_close(&g);
}

static void test_pinned(void **state) {
    (void)state;
    struct softgpu g;
    softgpu_open(&g, "A100");
    const struct cuda *cu = &g.cuda;
    struct error e = {0};
    struct pinned_memory p;
    void *a = NULL, *b = NULL, *c = NULL;
    uint64_t da = 0, db = 0;
    assert_int_equal(pinned_memory_open(&p, cu, "staging", 10000, false, &e), STATUS_OK);
    assert_int_equal(pinned_memory_take(&p, 100, 0, &a, &da, &e), STATUS_OK);
    assert_int_equal(pinned_memory_take(&p, 5000, 4096, &b, &db, &e), STATUS_OK);
    assert_true((uintptr_t)b % 4096 == 0 && (uint8_t *)b >= (uint8_t *)a + 100);
    assert_true(db - da == (uint64_t)((uint8_t *)b - (uint8_t *)a));
    assert_int_equal(pinned_memory_take(&p, 5000, 0, &c, NULL, &e), STATUS_NO_MEMORY);
    assert_null(c);
    assert_non_null(strstr(e.message, "staging"));
    assert_int_equal(pinned_memory_take(&p, UINT64_MAX, 0, &c, NULL, &e), STATUS_NO_MEMORY);
    pinned_memory_freeze(&p);

    /* The device writes there by its own name for it. */
    memset(b, 0, 5000);
    assert_int_equal(CUDA_CALL(cu, &e, memset_d32_async, db, 0x01020304, 1250, NULL), STATUS_OK);
    assert_int_equal(((uint8_t *)b)[0], 0);
    assert_int_equal(CUDA_CALL(cu, &e, stream_synchronize, NULL), STATUS_OK);
    for (int i = 0; i < 1250; i++) assert_int_equal(((uint32_t *)b)[i], 0x01020304);
    pinned_memory_close(&p);
    pinned_memory_close(&p);
    softgpu_close(&g);
}

static void test_upload(void **state) {
    (void)state;
    struct softgpu g;
    softgpu_open(&g, "A100");
    const struct cuda *cu = &g.cuda;
    struct error e = {0};
    struct device_memory m;
    struct pinned_memory p;
    struct cu_stream *stream = NULL;
    enum { BYTES = 1000003 };
    uint8_t *from = malloc(BYTES), *back = malloc(BYTES);
    assert_true(from != NULL && back != NULL);
    for (uint32_t i = 0; i < BYTES; i++) from[i] = (uint8_t)rng_draw(3, 0, i, RNG_TEST, 0);
    uint64_t at = 0;
    void *staging = NULL;
    assert_int_equal(device_memory_open(&m, cu, &g.device, "weights", BYTES, &e), STATUS_OK);
    assert_int_equal(device_memory_take(&m, BYTES, 0, &at, &e), STATUS_OK);
    assert_int_equal(pinned_memory_open(&p, cu, "staging", 1 << 16, true, &e), STATUS_OK);
    assert_int_equal(pinned_memory_take(&p, 1 << 16, 0, &staging, NULL, &e), STATUS_OK);
    assert_int_equal(
        CUDA_CALL(cu, &e, stream_create_with_priority, &stream, CU_STREAM_NON_BLOCKING, 0),
        STATUS_OK);
    static const uint64_t staging_bytes[] = {1 << 16, 12345, 60000};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(
            device_memory_upload(cu, at, from, BYTES, staging, staging_bytes[i], stream, &e),
            STATUS_OK);
        assert_int_equal(g.pending(), 0);
        assert_int_equal(CUDA_CALL(cu, &e, memcpy_dtoh_async, back, at, BYTES, stream), STATUS_OK);
        assert_int_equal(CUDA_CALL(cu, &e, stream_synchronize, stream), STATUS_OK);
        assert_memory_equal(from, back, BYTES);
        assert_int_equal(CUDA_CALL(cu, &e, memset_d8_async, at, 0, BYTES, stream), STATUS_OK);
        assert_int_equal(CUDA_CALL(cu, &e, stream_synchronize, stream), STATUS_OK);
    }
    assert_int_equal(device_memory_upload(cu, at, from, 0, staging, 64, stream, &e), STATUS_OK);
    assert_int_equal(CUDA_CALL(cu, &e, stream_destroy, stream), STATUS_OK);
    pinned_memory_close(&p);
    device_memory_close(&m);
    free(from);
    free(back);
    softgpu_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_growth), cmocka_unit_test(test_refusals), cmocka_unit_test(test_plan),
        cmocka_unit_test(test_pinned), cmocka_unit_test(test_upload),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
