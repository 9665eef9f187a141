/* Arenas and regions: zero-filled, aligned, apart from each other, counted by jemalloc, resident
 * only once touched, gone after close. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "alloc/arena.h"
#include "alloc/poison.h"
#include "alloc/region.h"

static size_t resident_pages(const void *p, size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t n = (bytes + page - 1) / page;
    unsigned char *in = calloc(n, 1);
    assert_non_null(in);
    assert_int_equal(mincore((void *)(uintptr_t)p, n * page, in), 0);
    size_t resident = 0;
    for (size_t i = 0; i < n; i++) resident += in[i] & 1;
    free(in);
    return resident;
}

static bool all_zero(const uint8_t *p, size_t bytes) {
    return p[0] == 0 && memcmp(p, p + 1, bytes - 1) == 0;
}

static void test_takes(void **state) {
    (void)state;
    srand(20);
    for (int round = 0; round < 12; round++) {
        enum { N = 24 };
        size_t bytes[N], align[N], sum = 0;
        for (int i = 0; i < N; i++) {
            /* From bytes to several MiB, size classes' edges included. */
            bytes[i] = ((size_t)rand() % 1000 + 1) << (rand() % 14);
            align[i] = (size_t)1 << (rand() % 22);
            sum += bytes[i];
        }
        const struct arena_config cfg = {.name = "test",
                                         .bytes = sum,
                                         .max_takes = N,
                                         .align = (size_t)1 << 21,
                                         .huge_pages = round % 2 == 1};
        struct arena *a;
        struct error e = {0};
        assert_int_equal(arena_open(&cfg, &a, &e), STATUS_OK);
        uint8_t *p[N];
        for (int i = 0; i < N; i++) {
            void *v;
            const enum status s = arena_take(a, bytes[i], align[i], &v, &e);
            if (s != STATUS_OK) fail_msg("round %d take %d: %s", round, i, e.message);
            p[i] = v;
            assert_true(arena_owns(a, p[i]));
            assert_int_equal((uintptr_t)p[i] % align[i], 0);
            for (int k = 0; k < i; k++) {
                assert_true(p[i] + bytes[i] <= p[k] || p[k] + bytes[k] <= p[i]);
            }
            assert_true(all_zero(p[i], bytes[i]));
            memset(p[i], i + 1, bytes[i]);
        }
        for (int i = 0; i < N; i++) assert_int_equal(p[i][bytes[i] / 2], i + 1);
        const struct arena_counts c = arena_counts(a);
        assert_int_equal(c.taken_bytes, sum);
        assert_true(c.committed_bytes >= sum && c.committed_bytes <= c.range_bytes);
        if (c.allocated_bytes == 0) {
            print_message("skip: this jemalloc keeps no statistics\n");
        } else {
            assert_true(c.allocated_bytes >= sum);
            assert_true(c.allocated_bytes <= sum + sum / 4 + N * 16384u);
        }
        arena_close(a);
    }
}

/* Opening and closing must not use up jemalloc's arena numbers (4094) or leave memory. */
static void test_open_close_many(void **state) {
    (void)state;
    for (int i = 0; i < 6000; i++) {
        struct region r;
        assert_int_equal(region_take(&r, "test", 100000, 0, false, false, NULL), STATUS_OK);
        ((uint8_t *)r.data)[99999] = 1;
        region_free(&r);
    }
}

static void test_region(void **state) {
    (void)state;
    const size_t sizes[] = {1, 63, 4096, 1000001, 37 * 1024 * 1024 + 5};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int huge = 0; huge < 2; huge++) {
            struct region r;
            struct error e;
            assert_int_equal(region_take(&r, "test", sizes[i], 4096, huge != 0, false, &e),
                             STATUS_OK);
            assert_int_equal(r.bytes, sizes[i]);
            assert_int_equal((uintptr_t)r.data % 4096, 0);
            if (POISON_RED_ZONE_BYTES == 0 && sizes[i] > 100 * 4096u) {
                assert_int_equal(resident_pages(r.data, sizes[i]), 0);
            }
            uint8_t *p = r.data;
            assert_true(sizes[i] == 1 ? p[0] == 0 : all_zero(p, sizes[i]));
            memset(p, 255, sizes[i]);
            region_free(&r);
            assert_null(r.data);
            region_free(&r);
        }
    }
    struct region locked;
    assert_int_equal(region_take(&locked, "test", 2000000, 0, false, true, NULL), STATUS_OK);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("skip: sanitizers make mlock do nothing\n");
#else
    assert_int_equal(resident_pages(locked.data, 2000000), (2000000 + 4095) / 4096);
#endif
    region_free(&locked);
}

static void test_too_large(void **state) {
    (void)state;
    struct region r;
    struct error e;
    assert_int_equal(region_take(&r, "step memory", SIZE_MAX - 5, 0, false, false, &e),
                     STATUS_NO_MEMORY);
    assert_non_null(strstr(e.message, "step memory"));
    assert_null(r.data);
    assert_int_equal(region_take(&r, "step memory", (size_t)1 << 55, 0, false, false, &e),
                     STATUS_NO_MEMORY);
    assert_null(r.data);
}

/* A take beyond the plan fails, and the arena still serves what was planned. */
static void test_over_plan(void **state) {
    (void)state;
    const struct arena_config cfg = {.name = "test", .bytes = 1 << 20, .max_takes = 2, .align = 64};
    struct arena *a;
    struct error e;
    assert_int_equal(arena_open(&cfg, &a, &e), STATUS_OK);
    void *p;
    assert_int_equal(arena_take(a, (size_t)1 << 30, 64, &p, &e), STATUS_NO_MEMORY);
    assert_null(p);
    assert_int_equal(arena_take(a, 1 << 19, 64, &p, &e), STATUS_OK);
    assert_int_equal(arena_take(a, 1 << 19, 64, &p, &e), STATUS_OK);
    arena_close(a);
    arena_close(NULL);
}

static void test_region_red_zone(void **state) {
    (void)state;
    if (POISON_RED_ZONE_BYTES == 0) {
        print_message("skip: planted overflows are found in the ASan build only\n");
        return;
    }
    for (int past = 0; past < 2; past++) {
        fflush(NULL);
        const pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            if (freopen("/dev/null", "w", stderr) == NULL) _exit(9);
            struct region r;
            if (region_take(&r, "test", 8000, 0, false, false, NULL) != STATUS_OK) _exit(9);
            ((volatile uint8_t *)r.data)[7999 + past] = 1;
            _exit(0);
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        const bool died = !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        assert_int_equal(died, past);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_takes),     cmocka_unit_test(test_open_close_many),
        cmocka_unit_test(test_region),    cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_over_plan), cmocka_unit_test(test_region_red_zone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
