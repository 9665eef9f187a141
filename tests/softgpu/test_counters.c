/* Counters of kernels whose traffic can be worked out by hand; occupancy; what a launch refuses;
 * bit-equal results under every schedule and number of host threads. */
#include "tests/softgpu/harness.h"

enum { THREADS = 128 };

/* Each thread loads from in + thread * stride + offset (bytes), and stores to out + thread * 4. */
static void global_access(struct harness *h, const char *load, uint32_t stride, uint32_t offset) {
    static char text[4096];
    static uint8_t zeros[1 << 16];
    snprintf(text, sizeof text,
             ".version 9.0\n.target sm_80\n.address_size 64\n"
             ".entry k(.param .u64 in, .param .u64 out)\n{\n.reg .b32 %%r<8>; .reg .b64 %%rd<8>;\n"
             "ld.param.u64 %%rd1, [in]; ld.param.u64 %%rd2, [out]; mov.u32 %%r0, %%tid.x;\n"
             "mad.wide.u32 %%rd3, %%r0, %u, %%rd1; mad.wide.u32 %%rd4, %%r0, 4, %%rd2; mov.u32 "
             "%%r1, 0;\n"
             "%s\nst.global.u32 [%%rd4], %%r1; ret;\n}\n",
             stride, load);
    harness_start(h, true, 0);
    harness_load(h, text);
    const uint64_t in = harness_buffer(h, sizeof zeros, zeros) + offset;
    const uint64_t out = harness_buffer(h, THREADS * 4, NULL);
    harness_arg(h, in);
    harness_arg(h, out);
    harness_launch(h, "k", 1, THREADS);
    harness_expect_clean(h);
}

static void test_sectors(void **state) {
    (void)state;
    static const struct {
        const char *load;
        uint32_t stride, offset;
        uint32_t sectors, needed; /* per warp */
    } cases[] = {
        {"ld.global.u32 %r1, [%rd3];", 4, 0, 4, 4},
        {"ld.global.u32 %r1, [%rd3];", 4, 16, 5, 4},
        {"ld.global.u32 %r1, [%rd3];", 8, 0, 8, 4},
        {"ld.global.u32 %r1, [%rd3];", 32, 0, 32, 4},
        {"ld.global.u32 %r1, [%rd3];", 0, 0, 1, 1},
        {"ld.global.u8 %r1, [%rd3];", 1, 0, 1, 1},
        {"ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd3];", 16, 0, 16, 16},
        {"ld.global.v2.u32 {%r1, %r2}, [%rd3];", 64, 0, 32, 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct harness h;
        global_access(&h, cases[i].load, cases[i].stride, cases[i].offset);
        const struct exec_counters *c = &h.result.counters;
        assert_int_equal(c->global_load_requests, 4);
        assert_int_equal(c->global_load_sectors, 4 * cases[i].sectors);
        assert_int_equal(c->global_load_needed, 4 * cases[i].needed);
        assert_int_equal(c->global_store_requests, 4);
        assert_int_equal(c->global_store_sectors, 16);
        assert_int_equal(c->global_store_needed, 16);
        assert_int_equal(c->n_bytes, 2);
        assert_int_equal(c->bytes[1].stored_bytes, THREADS * 4);
        assert_int_equal(c->bytes[0].stored_bytes, 0);
        const uint32_t bytes = strstr(cases[i].load, "v4")   ? 16
                               : strstr(cases[i].load, "v2") ? 8
                               : strstr(cases[i].load, "u8") ? 1
                                                             : 4;
        assert_int_equal(c->bytes[0].loaded_bytes, THREADS * bytes);
        assert_int_equal(c->warp_instructions[EXEC_CLASS_LOAD_GLOBAL], 4);
        assert_int_equal(c->lane_instructions[EXEC_CLASS_LOAD_GLOBAL], THREADS);
        assert_int_equal(c->warp_instructions[EXEC_CLASS_INTEGER], 8);
        assert_int_equal(c->blocks, 1);
        assert_int_equal(c->warps, 4);
        harness_stop(&h);
    }
}

static void test_banks(void **state) {
    (void)state;
    static const struct {
        const char *access;
        uint32_t stride; /* bytes between lanes */
        uint32_t degree, passes, ideal;
    } cases[] = {
        {"st.shared.u32 [%r1], %r0;", 4, 1, 1, 1},
        {"st.shared.u32 [%r1], %r0;", 8, 2, 2, 1},
        {"st.shared.u32 [%r1], %r0;", 16, 4, 4, 1},
        {"st.shared.u32 [%r1], %r0;", 128, 32, 32, 1},
        {"st.shared.u32 [%r1], %r0;", 132, 1, 1, 1},
        {"st.shared.v4.u32 [%r1], {%r0, %r0, %r0, %r0};", 16, 1, 4, 4},
        {"st.shared.v4.u32 [%r1], {%r0, %r0, %r0, %r0};", 128, 8, 32, 4},
        {"st.shared.v2.u32 [%r1], {%r0, %r0};", 8, 1, 2, 2},
        {"st.shared.v2.u32 [%r1], {%r0, %r0};", 16, 2, 4, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct harness h;
        static char text[4096];
        snprintf(text, sizeof text,
                 ".version 9.0\n.target sm_80\n.address_size 64\n"
                 ".entry k()\n{\n.reg .b32 %%r<8>;\n.shared .align 16 .b8 smem[8192];\n"
                 "mov.u32 %%r0, %%tid.x; mov.u32 %%r1, smem; mad.lo.u32 %%r1, %%r0, %u, "
                 "%%r1;\n%s\nret;\n}\n",
                 cases[i].stride, cases[i].access);
        harness_start(&h, false, 0);
        harness_load(&h, text);
        harness_launch(&h, "k", 1, 32);
        const struct exec_counters *c = &h.result.counters;
        harness_expect_clean(&h);
        assert_int_equal(c->shared_requests, 1);
        assert_int_equal(c->shared_wavefronts, cases[i].passes);
        assert_int_equal(c->shared_ideal, cases[i].ideal);
        assert_int_equal(c->shared_degree[cases[i].degree], 1);
        assert_int_equal(c->live_registers > 0, 1);
        harness_stop(&h);
    }
}

static enum status launch(struct harness *h, const struct exec_launch *l) {
    exec_result_free(&h->result);
    return exec_launch(&h->device, h->memory, l, &h->findings, &h->result, &h->error);
}

static void test_occupancy(void **state) {
    (void)state;
    struct harness h;
    harness_start(&h, false, 0);
    harness_load(&h, ".version 9.0\n.target sm_80\n.address_size 64\n.extern .shared .b8 dyn[];\n"
                     ".entry k()\n.maxntid 256\n{\n.reg .b32 %r<4>;\n.shared .b8 s[4000];\nmov.u32 "
                     "%r1, s;\nmov.u32 %r1, dyn;\nret;\n}\n");
    const struct program_function *f = program_find(h.program, "k");
    struct program_info info;
    program_describe(f, &info);
    assert_int_equal(info.static_shared_bytes, 4000);
    assert_int_equal(info.max_threads, 256);
    const struct exec_device *d = &h.device;
    assert_int_equal(exec_occupancy(d, f, 256, 0, 32), 8);     /* threads: 2048 / 256 */
    assert_int_equal(exec_occupancy(d, f, 32, 0, 16), 32);     /* blocks */
    assert_int_equal(exec_occupancy(d, f, 256, 0, 128), 2);    /* registers: 65536 / (256 * 128) */
    assert_int_equal(exec_occupancy(d, f, 256, 50000, 32), 3); /* shared: 167936 / 55040 */
    assert_int_equal(exec_occupancy(d, f, 256, 200000, 32), 0);
    struct exec_launch l = {.function = f, .grid = {1, 1, 1}, .block = {256, 1, 1}};
    assert_int_equal(launch(&h, &l), STATUS_OK);
    l.dynamic_shared_bytes = 46000; /* with the static part over 48 KiB, and not asked for */
    assert_int_equal(launch(&h, &l), STATUS_INVALID);
    l.max_dynamic_shared_bytes = 46000;
    assert_int_equal(launch(&h, &l), STATUS_OK);
    l.block[0] = 257;
    assert_int_equal(launch(&h, &l), STATUS_INVALID);
    l.block[0] = 0;
    assert_int_equal(launch(&h, &l), STATUS_INVALID);
    l.block[0] = 32;
    l.params_bytes = 8;
    l.params = &l;
    assert_int_equal(launch(&h, &l), STATUS_INVALID);
    assert_int_equal(finding_total(&h.findings), 0);
    harness_stop(&h);
}

/* Blocks that share nothing: any schedule and any number of threads gives the same bits. */
static void test_schedules(void **state) {
    (void)state;
    static const char text[] =
        ".version 9.0\n.target sm_80\n.address_size 64\n"
        ".entry k(.param .u64 in, .param .u64 out)\n{\n.reg .b32 %r<16>; .reg .b64 %rd<8>; .reg "
        ".f32 %f<8>; .reg .pred %p<4>;\n"
        ".shared .align 4 .b8 s[512];\n"
        "ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out]; mov.u32 %r0, %tid.x; mov.u32 %r1, "
        "%ctaid.x;\n"
        "mad.lo.u32 %r2, %r1, 128, %r0; mad.wide.u32 %rd3, %r2, 4, %rd1; mad.wide.u32 %rd4, %r2, "
        "4, %rd2;\n"
        "ld.global.f32 %f1, [%rd3]; mov.u32 %r3, s; mad.lo.u32 %r4, %r0, 4, %r3; mov.u32 %r5, 0;\n"
        "LOOP: st.shared.f32 [%r4], %f1; bar.sync 0; xor.b32 %r6, %r0, 37; mad.lo.u32 %r6, %r6, 4, "
        "%r3; ld.shared.f32 %f2, [%r6];\n"
        "bar.sync 0; and.b32 %r7, %r0, 3; setp.gt.u32 %p1, %r7, %r5; @%p1 bra ODD; fma.rn.f32 %f1, "
        "%f1, 0f3F7F0000, %f2; bra NEXT;\n"
        "ODD: sub.f32 %f1, %f2, %f1;\nNEXT: add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 20; @%p2 "
        "bra LOOP;\n"
        "st.global.f32 [%rd4], %f1; ret;\n}\n";
    enum { BLOCKS = 12 };
    static float in[BLOCKS * 128];
    static uint32_t first[BLOCKS * 128], got[BLOCKS * 128];
    for (int i = 0; i < BLOCKS * 128; i++) in[i] = (float)(i * 7 % 1000) / 16;
    for (uint64_t seed = 0; seed < 8; seed++) {
        struct harness h;
        harness_start(&h, seed % 2, seed);
        h.threads = seed % 3 ? 3 : 1;
        harness_load(&h, text);
        const uint64_t di = harness_buffer(&h, sizeof in, in),
                       out = harness_buffer(&h, sizeof in, NULL);
        harness_arg(&h, di);
        harness_arg(&h, out);
        harness_launch(&h, "k", BLOCKS, THREADS);
        harness_expect_clean(&h);
        assert_int_equal(h.result.counters.barriers, BLOCKS * 40);
        assert_true(h.result.counters.divergent_branches > 0);
        harness_read(&h, out, got, sizeof got);
        if (seed == 0) memcpy(first, got, sizeof got);
        assert_memory_equal(first, got, sizeof got);
        harness_stop(&h);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sectors), cmocka_unit_test(test_banks),
                                       cmocka_unit_test(test_occupancy),
                                       cmocka_unit_test(test_schedules)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
