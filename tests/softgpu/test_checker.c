/* Each defect that the checker knows is planted in a small kernel and must be found; its twin
 * without the defect must give no finding, under any schedule. The kernels are in
 * tests/softgpu/kernels. */
#include "tests/softgpu/harness.h"

enum { CLEAN = FINDING_KIND_COUNT, WORDS = 1024, THREADS = 64, SEEDS = 4 };

struct planted {
    const char *kernel;
    int expect; /* a finding_kind, or CLEAN */
    uint32_t blocks;
    bool bounds; /* EXEC_CHECK_BOUNDS finds it as well */
};

static void arguments(struct harness *h, uint64_t *out, uint64_t *flags) {
    static uint32_t in[WORDS], zero[64];
    for (uint32_t i = 0; i < WORDS; i++) in[i] = i * 3;
    const uint64_t a = harness_buffer(h, sizeof in, in);
    *out = harness_buffer(h, sizeof in, NULL);
    *flags = harness_buffer(h, sizeof zero, zero);
    const uint64_t freed = harness_buffer(h, 4096, in);
    assert_int_equal(memory_free(h->memory, freed, &h->error), STATUS_OK);
    harness_arg(h, a);
    harness_arg(h, *out);
    harness_arg(h, *flags);
    harness_arg(h, freed);
}

static void run(const char *file, const struct planted *p, bool full, uint64_t seed) {
    struct harness h;
    uint64_t out, flags;
    harness_start(&h, full, seed);
    h.threads = full ? 1 : 2;
    h.max_instructions = 300000;
    harness_load_file(&h, file);
    arguments(&h, &out, &flags);
    harness_launch(&h, p->kernel, p->blocks, THREADS);
    print_message("  %s %s seed %llu\n", p->kernel, full ? "full" : "bounds",
                  (unsigned long long)seed);
    if (p->expect == CLEAN || (!full && !p->bounds))
        harness_expect_clean(&h);
    else
        harness_expect(&h, (enum finding_kind)p->expect);
    for (uint32_t i = 0; i < h.findings.n; i++) {
        const struct finding *f = &h.findings.items[i];
        assert_string_equal(f->kernel, p->kernel);
        assert_true(f->ptx_line > 6);
        assert_true(f->text[0] != 0);
    }
    harness_stop(&h);
}

static void run_all(const char *file, const struct planted *list, size_t n) {
    for (size_t i = 0; i < n; i++) {
        for (uint64_t seed = 0; seed < SEEDS; seed++) run(file, &list[i], true, seed);
        run(file, &list[i], false, 0);
        run(file, &list[i], false, 7);
    }
}
#define RUN_ALL(file, list) run_all(file, list, sizeof(list) / sizeof *(list))

static void test_bounds(void **state) {
    (void)state;
    static const struct planted list[] = {
        {"good_read", CLEAN, 1, true},
        {"bad_read", FINDING_OUT_OF_BOUNDS, 1, true},
        {"bad_write", FINDING_OUT_OF_BOUNDS, 1, true},
        {"bad_generic", FINDING_OUT_OF_BOUNDS, 1, true},
        {"bad_freed", FINDING_FREED, 1, true},
        {"bad_wild", FINDING_UNMAPPED, 1, true},
        {"good_shared", CLEAN, 1, true},
        {"bad_shared", FINDING_OUT_OF_BOUNDS, 1, true},
        {"good_local", CLEAN, 1, true},
        {"bad_local", FINDING_OUT_OF_BOUNDS, 1, true},
        {"bad_param", FINDING_OUT_OF_BOUNDS, 1, true},
        {"good_vector", CLEAN, 1, true},
        {"bad_vector", FINDING_MISALIGNED, 1, true},
        {"bad_half", FINDING_MISALIGNED, 1, true},
    };
    RUN_ALL("bounds.ptx", list);
}

static void test_undefined(void **state) {
    (void)state;
    static const struct planted list[] = {
        {"good_store", CLEAN, 1, false},
        {"bad_store", FINDING_UNDEFINED, 1, false},
        {"bad_arithmetic", FINDING_UNDEFINED, 1, false},
        {"good_masked", CLEAN, 1, false},
        {"bad_masked", FINDING_UNDEFINED, 1, false},
        {"good_byte", CLEAN, 1, false},
        {"bad_byte", FINDING_UNDEFINED, 1, false},
        {"good_shift", CLEAN, 1, false},
        {"bad_branch", FINDING_UNDEFINED, 1, false},
        {"good_branch", CLEAN, 1, false},
        {"bad_address", FINDING_UNDEFINED, 1, false},
        {"bad_shared", FINDING_UNDEFINED, 1, false},
        {"good_shared", CLEAN, 1, false},
        {"bad_local", FINDING_UNDEFINED, 1, false},
        {"bad_global", FINDING_UNDEFINED, 1, false},
        {"bad_shuffle", FINDING_UNDEFINED, 1, false},
        {"good_shuffle", CLEAN, 1, false},
        {"bad_select", FINDING_UNDEFINED, 1, false},
        {"good_select", CLEAN, 1, false},
        {"good_pack", CLEAN, 1, false},
        {"bad_pack", FINDING_UNDEFINED, 1, false},
    };
    RUN_ALL("undefined.ptx", list);
}

static void test_race(void **state) {
    (void)state;
    static const struct planted list[] = {
        {"good_barrier", CLEAN, 1, false},
        {"bad_barrier", FINDING_RACE, 1, false},
        {"bad_overwrite", FINDING_RACE, 1, false},
        {"good_overwrite", CLEAN, 1, false},
        {"bad_warp", FINDING_RACE, 1, false},
        {"bad_warp_shuffle", FINDING_RACE, 1, false},
        {"good_warp", CLEAN, 1, false},
        {"bad_same", FINDING_RACE, 1, false},
        {"good_same", CLEAN, 1, false},
        {"bad_blocks", FINDING_RACE, 2, false},
        {"good_blocks", CLEAN, 4, false},
        {"good_bytes", CLEAN, 1, false},
        {"good_halves", CLEAN, 1, false},
        {"bad_halves", FINDING_RACE, 1, false},
        {"good_flag", CLEAN, 2, false},
        {"bad_flag_relaxed", FINDING_RACE, 2, false},
        {"bad_flag_reader", FINDING_RACE, 2, false},
        {"bad_flag_scope", FINDING_RACE, 2, false},
        {"good_fences", CLEAN, 2, false},
        {"bad_fence_writer", FINDING_RACE, 2, false},
        {"bad_fence_reader", FINDING_RACE, 2, false},
        {"good_named", CLEAN, 1, false},
        {"bad_named", FINDING_RACE, 1, false},
        {"last_block", CLEAN, 8, false},
    };
    RUN_ALL("race.ptx", list);
}

static void test_async(void **state) {
    (void)state;
    static const struct planted list[] = {
        {"good_copy", CLEAN, 1, false},
        {"bad_copy", FINDING_ASYNC_COPY, 1, false},
        {"bad_group", FINDING_ASYNC_COPY, 1, false},
        {"good_group", CLEAN, 1, false},
        {"good_barrier", CLEAN, 1, false},
        {"good_zero_fill", CLEAN, 1, false},
        {"good_bulk", CLEAN, 1, false},
        {"bad_bulk", FINDING_ASYNC_COPY, 1, false},
        {"bad_mbarrier", FINDING_MBARRIER, 1, false},
    };
    RUN_ALL("async.ptx", list);
}

/* Which of the two the schedule shows depends on who comes first. */
static void test_async_without_barrier(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct harness h;
        uint64_t out, flags;
        harness_start(&h, true, seed);
        harness_load_file(&h, "async.ptx");
        arguments(&h, &out, &flags);
        harness_launch(&h, "bad_barrier", 1, THREADS);
        assert_true(finding_count(&h.findings, FINDING_RACE) +
                        finding_count(&h.findings, FINDING_ASYNC_COPY) +
                        finding_count(&h.findings, FINDING_UNDEFINED) >
                    0);
        harness_stop(&h);
    }
}

/* A copy that has not landed leaves what was there before, also when nothing is tracked. */
static void test_async_values(void **state) {
    (void)state;
    static const char *const kernels[] = {"good_copy", "good_zero_fill", "good_barrier",
                                          "good_bulk"};
    for (size_t k = 0; k < 4; k++) {
        struct harness h;
        uint64_t out, flags;
        uint32_t got[THREADS];
        harness_start(&h, false, 0);
        harness_load_file(&h, "async.ptx");
        arguments(&h, &out, &flags);
        harness_launch(&h, kernels[k], 1, THREADS);
        harness_expect_clean(&h);
        harness_read(&h, out, got, sizeof got);
        for (uint32_t i = 0; i < THREADS; i++) {
            uint32_t want = 3 * i;
            if (k == 1 && i % 2 == 0) want = 0;
            if (k == 2) want = 3 * ((i + 32) % 64);
            assert_int_equal(got[i], want);
        }
        harness_stop(&h);
    }
}

static void test_barrier(void **state) {
    (void)state;
    static const struct planted list[] = {
        {"good_all", CLEAN, 1, true},
        {"bad_lane", FINDING_BARRIER, 1, true},
        {"bad_place", FINDING_BARRIER, 1, true},
        {"bad_number", FINDING_DEADLOCK, 1, true},
        {"bad_count", FINDING_DEADLOCK, 1, true},
        {"good_count", CLEAN, 1, true},
        {"good_exit", CLEAN, 1, true},
        {"bad_mask", FINDING_WARP_SYNC, 1, true},
        {"good_warp_wait", CLEAN, 1, true},
        {"bad_spin", FINDING_DEADLOCK, 1, true},
        {"bad_count_up", FINDING_HANG, 1, true},
        {"good_lane_lock", CLEAN, 1, true},
        {"bad_trap", FINDING_TRAP, 1, true},
    };
    RUN_ALL("barrier.ptx", list);
}

static void test_warp_wait(void **state) {
    (void)state;
    struct harness h;
    uint64_t out, flags;
    harness_start(&h, true, 0);
    harness_load_file(&h, "barrier.ptx");
    arguments(&h, &out, &flags);
    harness_launch(&h, "bad_warp_wait", 1, THREADS);
    assert_int_equal(h.status, STATUS_DEVICE);
    assert_true(finding_count(&h.findings, FINDING_BARRIER) > 0);
    assert_true(finding_count(&h.findings, FINDING_DEADLOCK) > 0);
    harness_stop(&h);
}

/* A barrier of the grid works as long as all blocks fit, and is reported when they do not. */
static void test_co_residency(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        for (int full = 0; full < 2; full++) {
            struct harness h;
            uint64_t out, flags;
            harness_start(&h, full, seed);
            h.device.sm_count = 2;
            h.device.max_threads_per_sm = 2 * THREADS; /* two blocks each */
            h.threads = 2;
            harness_load_file(&h, "barrier.ptx");
            arguments(&h, &out, &flags);
            harness_launch(&h, "grid_barrier", 4, THREADS);
            harness_expect_clean(&h);
            assert_int_equal(h.result.counters.occupancy, 2);
            assert_int_equal(h.result.counters.resident_limit, 4);
            arguments(&h, &out, &flags);
            harness_launch(&h, "grid_barrier", 5, THREADS);
            assert_int_equal(h.status, STATUS_DEVICE);
            harness_expect(&h, FINDING_CO_RESIDENCY);
            harness_stop(&h);
        }
    }
}

/* Programmatic dependence: what an overlapping launch may touch before griddepcontrol.wait. */
static void test_overlap(void **state) {
    (void)state;
    static const struct {
        const char *kernel;
        bool overlaps;
        int expect;
    } cases[] = {{"read_waiting", true, CLEAN},
                 {"read_early", true, FINDING_RACE},
                 {"read_early", false, CLEAN}};
    for (size_t i = 0; i < 3; i++) {
        struct harness h;
        uint64_t out, flags;
        harness_start(&h, true, 0);
        harness_load_file(&h, "race.ptx");
        arguments(&h, &out, &flags);
        uint64_t args[4];
        memcpy(args, h.args, sizeof args);
        harness_launch(&h, "write_early", 1, THREADS);
        harness_expect_clean(&h);
        assert_false(h.result.waited);
        struct exec_launch l = {.function = program_find(h.program, cases[i].kernel),
                                .grid = {1, 1, 1},
                                .block = {THREADS, 1, 1},
                                .params = args,
                                .params_bytes = sizeof args,
                                .check = EXEC_CHECK_FULL};
        if (cases[i].overlaps)
            l.unordered_before_wait[l.n_unordered_before_wait++] = h.result.interval;
        exec_result_free(&h.result);
        h.status = exec_launch(&h.device, h.memory, &l, &h.findings, &h.result, &h.error);
        assert_true(h.result.waited);
        if (cases[i].expect == CLEAN)
            harness_expect_clean(&h);
        else
            harness_expect(&h, FINDING_RACE);
        harness_stop(&h);
    }
}

/* The last block adds up what all have written: the same under every schedule. */
static void test_last_block_sum(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 8; seed++) {
        struct harness h;
        uint64_t out, flags;
        uint32_t got[THREADS];
        harness_start(&h, seed % 2, seed);
        h.threads = 2;
        harness_load_file(&h, "race.ptx");
        arguments(&h, &out, &flags);
        harness_launch(&h, "last_block", 8, THREADS);
        harness_expect_clean(&h);
        harness_read(&h, out, got, sizeof got);
        for (uint32_t i = 0; i < THREADS; i++) assert_int_equal(got[i], 8 * i);
        harness_stop(&h);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds),         cmocka_unit_test(test_undefined),
        cmocka_unit_test(test_race),           cmocka_unit_test(test_async),
        cmocka_unit_test(test_async_values),   cmocka_unit_test(test_async_without_barrier),
        cmocka_unit_test(test_barrier),        cmocka_unit_test(test_warp_wait),
        cmocka_unit_test(test_co_residency),   cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_last_block_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
