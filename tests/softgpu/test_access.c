/* Loads and stores of every width and kind of register, in every state space and through generic
 * addresses; module variables; parameters. */
#include "tests/softgpu/harness.h"

#define HEAD ".version 9.0\n.target sm_100\n.address_size 64\n"

enum { THREADS = 40 };

/* Each thread has 32 bytes at rd5 in and at rd6 out; smem and depot are its own 32 bytes in shared
 * and local memory (space addresses r10, rd11). */
static void run(const char *body, const uint8_t *in, uint8_t *out, bool track) {
    static char text[8192];
    const int n =
        snprintf(text, sizeof text,
                 "%s.const .align 8 .b8 fixed[8] = {1, 2, 3, 4, 250, 251, 252, 253};\n"
                 ".global .align 8 .u64 link = fixed;\n"
                 ".entry k(.param .u64 in, .param .u64 out, .param .align 8 .b8 s[8])\n{\n.reg "
                 ".b16 %%h<8>; .reg .b32 %%r<16>; "
                 ".reg .b64 %%rd<16>; .reg .f32 %%f<8>; .reg .b128 %%q<2>; .reg .pred %%p<2>;\n"
                 ".shared .align 32 .b8 smem[1280]; .local .align 32 .b8 depot[32];\n"
                 "ld.param.u64 %%rd1, [in]; ld.param.u64 %%rd2, [out]; mov.u32 %%r0, %%tid.x;\n"
                 "mad.wide.u32 %%rd5, %%r0, 32, %%rd1; mad.wide.u32 %%rd6, %%r0, 32, %%rd2;\n"
                 "mov.u32 %%r10, smem; mad.lo.u32 %%r10, %%r0, 32, %%r10; mov.u64 %%rd11, "
                 "depot;\n%s\nret;\n}\n",
                 HEAD, body);
    assert_true(n > 0 && n < (int)sizeof text);
    struct harness h;
    harness_start(&h, track, 0);
    harness_load(&h, text);
    static uint8_t zero[THREADS * 32];
    const uint64_t a = harness_buffer(&h, sizeof zero, in),
                   b = harness_buffer(&h, sizeof zero, zero);
    harness_arg(&h, a);
    harness_arg(&h, b);
    harness_arg(&h, 0x1122334455667788u);
    harness_launch(&h, "k", 1, THREADS);
    harness_expect_clean(&h);
    harness_read(&h, b, out, sizeof zero);
    harness_stop(&h);
}

/* load TEXT leaves its value in rd8; what it has to be, of the thread's bytes b. */
struct load {
    const char *text;
    uint32_t offset, bytes;
    bool is_signed;
    uint32_t register_bytes;
};

static void test_loads(void **state) {
    (void)state;
    static const struct load list[] = {
        {"ld.SPACE.u8 %r1, ADDRESS; cvt.u64.u32 %rd8, %r1;", 1, 1, false, 4},
        {"ld.SPACE.s8 %r1, ADDRESS; cvt.u64.u32 %rd8, %r1;", 3, 1, true, 4},
        {"ld.SPACE.u16 %r1, ADDRESS; cvt.u64.u32 %rd8, %r1;", 2, 2, false, 4},
        {"ld.SPACE.s16 %r1, ADDRESS; cvt.u64.u32 %rd8, %r1;", 6, 2, true, 4},
        {"ld.SPACE.s8 %h1, ADDRESS; cvt.u64.u16 %rd8, %h1;", 5, 1, true, 2},
        {"ld.SPACE.u8 %h1, ADDRESS; cvt.u64.u16 %rd8, %h1;", 7, 1, false, 2},
        {"ld.SPACE.b16 %h1, ADDRESS; cvt.u64.u16 %rd8, %h1;", 4, 2, false, 2},
        {"ld.SPACE.s32 %rd8, ADDRESS;", 8, 4, true, 8},
        {"ld.SPACE.u32 %rd8, ADDRESS;", 12, 4, false, 8},
        {"ld.SPACE.s8 %rd8, ADDRESS;", 9, 1, true, 8},
        {"ld.SPACE.f32 %f1, ADDRESS; mov.b32 %r1, %f1; cvt.u64.u32 %rd8, %r1;", 4, 4, false, 4},
        {"ld.SPACE.b64 %rd8, ADDRESS;", 16, 8, false, 8},
        {"ld.SPACE.v2.u16 {%h1, %h2}, ADDRESS; cvt.u64.u16 %rd8, %h2;", 14, 2, false, 2},
        {"ld.SPACE.v4.u8 {%r1, %r2, %r3, %r4}, ADDRESS; cvt.u64.u32 %rd8, %r4;", 11, 1, false, 4},
        {"ld.SPACE.v2.b32 {_, %r2}, ADDRESS; cvt.u64.u32 %rd8, %r2;", 20, 4, false, 4},
        {"ld.SPACE.v4.s32 {%r1, %r2, %r3, %r4}, ADDRESS; cvt.u64.u32 %rd8, %r3;", 24, 4, false, 4},
        {"ld.SPACE.v2.u64 {%rd7, %rd8}, ADDRESS;", 24, 8, false, 8},
        {"ld.SPACE.b128 %q1, ADDRESS; mov.b128 {%rd7, %rd8}, %q1;", 24, 8, false, 8},
        {"ld.SPACE.v8.b32 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, ADDRESS; cvt.u64.u32 %rd8, "
         "%r7;",
         24, 4, false, 4},
        {"ld.volatile.SPACE.u32 %r1, ADDRESS; cvt.u64.u32 %rd8, %r1;", 4, 4, false, 4},
        {"ld.relaxed.gpu.SPACE.u16 %h1, ADDRESS; cvt.u64.u16 %rd8, %h1;", 4, 2, false, 2},
        {"ld.acquire.sys.SPACE.b64 %rd8, ADDRESS;", 8, 8, false, 8},
    };
    static const char *const spaces[] = {"global", "shared", "local", "", "", ""};
    static const char *const set_up[] = {
        "mov.u64 %rd9, %rd5;",
        "cvt.u64.u32 %rd9, %r10;",
        "mov.u64 %rd9, %rd11;",
        "mov.u64 %rd9, %rd5;",
        "cvt.u64.u32 %rd9, %r10; cvta.shared.u64 %rd9, %rd9;",
        "cvta.local.u64 %rd9, %rd11;",
    };
    static uint8_t in[THREADS * 32], out[THREADS * 32];
    for (size_t i = 0; i < sizeof in; i++) in[i] = (uint8_t)(i * 167 + i / 7 * 13 + 128);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        for (size_t s = 0; s < 6; s++) {
            const struct load *l = &list[i];
            if (strstr(l->text, "relaxed") || strstr(l->text, "acquire") ||
                strstr(l->text, "volatile"))
                if (s == 2 || s == 5) continue;
            if ((strstr(l->text, "v8") || strstr(l->text, "b128")) && (s == 1 || s == 2)) continue;
            const uint32_t total =
                strstr(l->text, ".v8") ? 32
                : strstr(l->text, ".v4.s32") || strstr(l->text, "v2.u64") || strstr(l->text, "b128")
                    ? 16
                : strstr(l->text, "v2.b32")                          ? 8
                : strstr(l->text, ".v2.") || strstr(l->text, ".v4.") ? 4
                                                                     : l->bytes;
            const uint32_t base = l->offset / total * total;
            char body[2048] = "";
            size_t n = 0;
            /* the thread's bytes into shared and local memory */
            n += (size_t)snprintf(
                body + n, sizeof body - n,
                "ld.global.v4.u32 {%%r1, %%r2, %%r3, %%r4}, [%%rd5]; st.shared.v4.u32 [%%r10], "
                "{%%r1, %%r2, %%r3, %%r4}; st.local.v4.u32 [%%rd11], {%%r1, %%r2, %%r3, %%r4};"
                "ld.global.v4.u32 {%%r1, %%r2, %%r3, %%r4}, [%%rd5+16]; st.shared.v4.u32 "
                "[%%r10+16], {%%r1, %%r2, %%r3, %%r4}; st.local.v4.u32 [%%rd11+16], {%%r1, %%r2, "
                "%%r3, %%r4};%s\n",
                set_up[s]);
            for (const char *p = l->text; *p;) {
                if (!strncmp(p, "SPACE.", 6)) {
                    n += (size_t)snprintf(body + n, sizeof body - n, "%s%s", spaces[s],
                                          *spaces[s] ? "." : "");
                    p += 6;
                } else if (!strncmp(p, "ADDRESS", 7)) {
                    n += (size_t)snprintf(body + n, sizeof body - n, "[%%rd9+%u]", base);
                    p += 7;
                } else {
                    body[n++] = *p++;
                }
            }
            body[n] = 0;
            snprintf(body + n, sizeof body - n, "\nst.global.u64 [%%rd6], %%rd8;");
            run(body, in, out, i % 2);
            for (int t = 0; t < THREADS; t++) {
                uint64_t want = 0, got;
                memcpy(&want, in + 32 * t + l->offset, l->bytes);
                if (l->is_signed && want >> (8 * l->bytes - 1)) want |= ~0ull << 8 * l->bytes;
                if (l->register_bytes < 8) want &= (1ull << 8 * l->register_bytes) - 1;
                memcpy(&got, out + 32 * t, 8);
                if (got != want)
                    fail_msg("%s in space %zu, thread %d: %llx, not %llx", l->text, s, t,
                             (unsigned long long)got, (unsigned long long)want);
            }
        }
    }
}

static void test_stores(void **state) {
    (void)state;
    static uint8_t in[THREADS * 32], out[THREADS * 32];
    for (size_t i = 0; i < sizeof in; i++) in[i] = (uint8_t)(i * 59 + 3);
    for (int track = 0; track < 2; track++) {
        run("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd5]; ld.global.u64 %rd8, [%rd5+16]; "
            "cvt.u16.u32 %h1, %r1; cvt.u16.u32 %h2, %r2;\n"
            "st.global.u8 [%rd6], %r1; st.global.u8 [%rd6+1], %h2; st.global.u8 [%rd6+2], %rd8; "
            "st.global.u16 [%rd6+4], %r3; st.global.b16 [%rd6+6], %h1;\n"
            "st.global.u32 [%rd6+8], %rd8; st.global.v2.u16 [%rd6+12], {%h2, %h1}; "
            "st.relaxed.gpu.global.u64 [%rd6+16], %rd8; st.v2.u32 [%rd6+24], {%r4, 77};",
            in, out, track);
        for (int t = 0; t < THREADS; t++) {
            const uint8_t *a = in + 32 * t, *b = out + 32 * t;
            const uint8_t want[32] = {a[0],  a[4],  a[16], 0,     a[8],  a[9],  a[0],  a[1],
                                      a[16], a[17], a[18], a[19], a[4],  a[5],  a[0],  a[1],
                                      a[16], a[17], a[18], a[19], a[20], a[21], a[22], a[23],
                                      a[12], a[13], a[14], a[15], 77,    0,     0,     0};
            assert_memory_equal(b, want, 32);
        }
    }
}

static void test_variables(void **state) {
    (void)state;
    static uint8_t in[THREADS * 32], out[THREADS * 32];
    run("mov.u64 %rd7, link; ld.global.u64 %rd8, [%rd7]; ld.const.u8 %r1, [fixed+5]; ld.u8 %r2, "
        "[%rd8+6]; ld.param.u64 %rd9, [s];\n"
        "mov.b64 %rd10, s; ld.param.u32 %r3, [%rd10+4]; cvta.param.u64 %rd12, %rd10; ld.u16 %r4, "
        "[%rd12+2]; isspacep.param %p1, %rd12; selp.b32 %r5, 1, 0, %p1;\n"
        "st.global.u32 [%rd6], %r1; st.global.u32 [%rd6+4], %r2; st.global.u64 [%rd6+8], %rd9; "
        "st.global.v4.u32 [%rd6+16], {%r3, %r4, %r5, 9};",
        in, out, true);
    for (int t = 0; t < THREADS; t++) {
        uint32_t got[8];
        memcpy(got, out + 32 * t, 32);
        assert_int_equal(got[0], 251);
        assert_int_equal(got[1], 252);
        assert_int_equal(got[2], 0x55667788);
        assert_int_equal(got[3], 0x11223344);
        assert_int_equal(got[4], 0x11223344);
        assert_int_equal(got[5], 0x5566);
        assert_int_equal(got[6], 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_loads), cmocka_unit_test(test_stores),
                                       cmocka_unit_test(test_variables)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
