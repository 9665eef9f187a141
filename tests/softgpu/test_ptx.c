/* The parser: what it understands, what it refuses with a line number, and text cut or garbled at
 * any place, which it must survive. */
#include "tests/softgpu/harness.h"

static const char sample[] =
    "//\n// Generated\n//\n.version 9.0\n.target sm_90a, debug\n.address_size 64\n"
    ".extern .shared .align 16 .b8 dyn[];\n"
    ".global .align 8 .u64 links[2] = {generic(table)+4, 7};\n"
    ".visible .global .align 4 .f32 pi = 0f40490FDB;\n"
    ".const .align 2 .u16 two[2][2] = {{1, -2}, {3}};\n"
    ".func (.param .b32 ret) twice(.param .b32 x)\n{\n.reg .b32 %r<3>;\n"
    "ld.param.u32 %r1, [x];\nadd.s32 %r2, %r1, %r1;\nst.param.b32 [ret+0], %r2;\nret;\n}\n"
    "\t.file\t1 \"a file.cu\", 0, 12\n"
    ".visible .entry k(.param .u8 a, .param .align 8 .b8 s[24], .param .u32 n,\n"
    ".param .u64 .ptr .global .align 4 out)\n.maxntid 128, 2\n.minnctapersm 3\n{\n"
    ".reg .pred %p<2>;\n.reg .b32 %r<8>;\n.reg .b64 %rd<4>;\n.reg .f32 %f1;\n"
    ".shared .align 4 .b8 buf[100];\n.local .align 8 .b8 depot[40];\n"
    ".loc 1 12 3\nmov.u32 %r1, %tid.x;\n"
    ".loc 1 20 1, function_name $L__info_string0, inlined_at 1 12 3\n"
    "{ .reg .b32 %r1; mov.u32 %r1, WARP_SZ; L: add.u32 %r2, %r1, -3; }\n"
    "{ L: .reg .pred q; setp.ne.and.s32 %p1|q, %r1, 0x1F, !%p0; @!q bra L; }\n"
    "{\n.param .b32 param0;\nst.param.b32 [param0+0], %r1;\n.param .b32 retval0;\n"
    "call.uni (retval0), twice, (param0);\nld.param.b32 %r3, [retval0+0];\n}\n"
    "ld.param.u64 %rd1, [out];\nmov.b64 {%r4, _}, %rd1;\nst.global.v2.u32 [%rd1+-8], {%r3, %r4};\n"
    "TABLE: .branchtargets A, B;\nbrx.idx %r1, TABLE;\nA: mov.f32 %f1, 1.5;\nB: ret;\n}\n"
    ".section .debug_str\n{\n$L__info_string0:\n.b8 95,0\n}\n";

static void test_module(void **state) {
    (void)state;
    struct error e;
    struct ptx_module *m;
    const char *text = sample;
    /* the table is used before it is there in `sample`: put it first */
    static char fixed[sizeof sample + 100];
    const char *at = strstr(text, ".global .align 8");
    snprintf(fixed, sizeof fixed, "%.*s.global .align 4 .b8 table[16];\n%s", (int)(at - text), text,
             at);
    assert_int_equal(ptx_parse(fixed, strlen(fixed), &m, &e), STATUS_OK);
    assert_int_equal(m->version_major, 9);
    assert_int_equal(m->version_minor, 0);
    assert_int_equal(m->target, 90);
    assert_int_equal(m->target_suffix, 'a');
    assert_int_equal(m->n_variables, 5);
    assert_int_equal(m->variables[0].size_bytes, 0);
    assert_int_equal(m->variables[2].n_fixups, 1);
    assert_int_equal(m->variables[2].fixups[0].variable, 1);
    assert_int_equal(m->variables[2].initial[0], 4);
    assert_int_equal(m->variables[4].size_bytes, 8);
    assert_memory_equal(m->variables[4].initial, "\1\0\376\377\3\0\0\0", 8);
    assert_null(ptx_find_kernel(m, "twice"));
    const struct ptx_function *k = ptx_find_kernel(m, "k");
    assert_non_null(k);
    assert_int_equal(k->n_params, 4);
    assert_int_equal(k->params[1].offset_bytes, 8);
    assert_int_equal(k->params[2].offset_bytes, 32);
    assert_int_equal(k->params[3].offset_bytes, 40);
    assert_int_equal(k->params_bytes, 48);
    assert_int_equal(k->maxntid[0] * k->maxntid[1] * k->maxntid[2], 256);
    assert_int_equal(k->minnctapersm, 3);
    assert_string_equal(m->files[1], "a file.cu");
    const struct ptx_instruction *in = k->instructions;
    assert_int_equal(in[0].source_line, 12);
    assert_int_equal(in[1].source_line, 20);
    /* the inner %r1 is another register */
    assert_int_not_equal(in[0].operand[0].reg, in[1].operand[0].reg);
    assert_int_equal(in[1].operand[1].bits, 32);
    assert_int_equal((int64_t)in[2].operand[2].bits, -3);
    assert_int_equal(in[3].operand[2].bits, 31);
    assert_true(in[3].operand[3].negated);
    assert_int_equal(in[4].operand[0].index, 3); /* the L of its own scope */
    assert_true(in[4].guard_negated);
    assert_int_equal(k->n_targets, 1);
    assert_int_equal(k->targets[0].n, 2);
    ptx_free(m);
}

static void refuse(const char *text, uint32_t line) {
    struct error e;
    struct ptx_module *m;
    char want[32];
    snprintf(want, sizeof want, "PTX line %u:", line);
    assert_int_not_equal(ptx_parse(text, strlen(text), &m, &e), STATUS_OK);
    assert_null(m);
    if (strncmp(e.message, want, strlen(want)) != 0) fail_msg("%s (line %u?)", e.message, line);
}

#define HEAD  ".version 9.0\n.target sm_80\n.address_size 64\n"
#define ENTRY HEAD ".entry k()\n{\n.reg .b32 %r<4>;\n.reg .pred %p<2>;\n"

static void test_refusals(void **state) {
    (void)state;
    refuse(".target sm_80\n", 2);
    refuse(HEAD ".entry k(\n", 5);
    refuse(HEAD ".nonsense x;\n", 4);
    refuse(ENTRY "add.s32 %r1, %r2, %r9;\nret;\n}\n", 8);
    refuse(ENTRY "bra NOWHERE;\n}\n", 8);
    refuse(ENTRY "ld.global.u32 %r1, [%rx];\n}\n", 8);
    refuse(ENTRY "mov.u32 %r1, %tid.q;\n}\n", 8);
    refuse(ENTRY "mov.u32 %r1, 08;\n}\n", 8);
    refuse(ENTRY "mov.f32 %r1, 0f3F80;\n}\n", 8);
    refuse(ENTRY "mov.u32 %r1 0;\n}\n", 8);
    refuse(ENTRY "/* no end", 8);
    refuse(HEAD ".global .align 3 .b8 x[4];\n", 4);
    refuse(HEAD ".global .b8 x[2] = {1, 2, 3};\n", 4);
    refuse(HEAD ".global .b8 x[99999999999999999999];\n", 4);
}

/* What parses but means nothing. */
static void refuse_program(const char *body, enum status want) {
    static char text[4096];
    struct error e = {0};
    struct ptx_module *m;
    struct memory *memory;
    struct program *p;
    const struct memory_config cfg = {.size_bytes = 1 << 20};
    snprintf(text, sizeof text, "%s%s\nret;\n}\n", ENTRY ".reg .b64 %rd<4>; .reg .b16 %h<4>;\n",
             body);
    assert_int_equal(ptx_parse(text, strlen(text), &m, &e), STATUS_OK);
    assert_int_equal(memory_create(&cfg, &memory, &e), STATUS_OK);
    assert_int_equal(program_create(m, memory, 80, &p, &e), want);
    if (want != STATUS_OK) {
        assert_null(p);
        assert_non_null(strstr(e.message, "PTX line 9"));
    }
    program_destroy(p);
    assert_int_equal(memory_used_bytes(memory), 0);
    memory_destroy(memory);
    ptx_free(m);
}

static void test_meaningless(void **state) {
    (void)state;
    refuse_program("add.s32 %r1, %r2, %r3;", STATUS_OK);
    refuse_program("add.s32 %r1, %r2;", STATUS_UNSUPPORTED);
    refuse_program("add.s64 %r1, %r2, %r3;", STATUS_UNSUPPORTED);
    refuse_program("add.q32 %r1, %r2, %r3;", STATUS_UNSUPPORTED);
    refuse_program("add.wide.s32 %r1, %r2, %r3;", STATUS_UNSUPPORTED);
    refuse_program("frobnicate.b32 %r1, %r2;", STATUS_UNSUPPORTED);
    refuse_program("ld.global.v4.u32 {%r1, %r2}, [%rd1];", STATUS_UNSUPPORTED);
    refuse_program("ld.global.u32 %h1, [%rd1];", STATUS_UNSUPPORTED);
    refuse_program("setp.eq.s32 %r1, %r2, %r3;", STATUS_UNSUPPORTED);
    refuse_program("elect.sync %r1|%p1, -1;", STATUS_INVALID); /* needs sm_90 */
    refuse_program("mma.sync.aligned.m16n8k7.row.col.s32.s8.s8.s32 {%r1}, {%r1}, {%r1}, {%r1};",
                   STATUS_UNSUPPORTED);
    refuse_program("st.const.u32 [%rd1], %r1;", STATUS_UNSUPPORTED);
}

static void test_garbled(void **state) {
    (void)state;
    struct error e;
    struct ptx_module *m;
    static char text[sizeof sample];
    uint64_t seed = 12345;
    for (size_t n = 0; n < sizeof sample; n++) {
        if (ptx_parse(sample, n, &m, &e) == STATUS_OK)
            ptx_free(m);
        else
            assert_null(m);
    }
    for (int round = 0; round < 3000; round++) {
        memcpy(text, sample, sizeof sample);
        for (int k = 0; k < 1 + round % 4; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            const size_t at = (seed >> 33) % (sizeof sample - 1),
                         from = (seed >> 13) % (sizeof sample - 1);
            text[at] = seed >> 20 & 1 ? sample[from] : (char)(seed >> 40);
        }
        if (ptx_parse(text, sizeof sample - 1, &m, &e) != STATUS_OK) continue;
        /* what still parses must decode or be refused */
        struct memory *memory;
        struct program *p;
        const struct memory_config cfg = {.size_bytes = 1 << 20};
        assert_int_equal(memory_create(&cfg, &memory, &e), STATUS_OK);
        if (program_create(m, memory, 0, &p, &e) == STATUS_OK) program_destroy(p);
        memory_destroy(memory);
        ptx_free(m);
    }
}

static void test_nesting(void **state) {
    (void)state;
    static char deep[1000];
    size_t n = (size_t)snprintf(deep, sizeof deep, "%s", ENTRY);
    for (int i = 0; i < 100; i++) deep[n++] = '{';
    refuse(deep, 8);
}

/* A device function with a loop in it, called by lanes that have parted. */
static void test_call(void **state) {
    (void)state;
    static const char text[] =
        HEAD ".func (.param .b32 ret) power(.param .b32 x, .param .b32 n)\n{\n.reg .b32 %r<8>; "
             ".reg .pred %p<2>;\n"
             "ld.param.u32 %r1, [x]; ld.param.u32 %r2, [n]; mov.u32 %r3, 1;\n"
             "LOOP: setp.eq.u32 %p1, %r2, 0; @%p1 bra DONE; mul.lo.u32 %r3, %r3, %r1; sub.u32 %r2, "
             "%r2, 1; bra LOOP;\n"
             "DONE: st.param.b32 [ret], %r3; ret;\n}\n"
             ".entry k(.param .u64 out)\n{\n.reg .b32 %r<8>; .reg .b64 %rd<4>; .reg .pred %p<4>;\n"
             "ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.u64 "
             "%rd1, %rd1, %rd2;\n"
             "and.b32 %r2, %r1, 3; setp.eq.u32 %p1, %r2, 0; mov.u32 %r4, 9; @%p1 bra SKIP;\n"
             "{ .param .b32 a; .param .b32 b; .param .b32 r; st.param.b32 [a], %r2; st.param.b32 "
             "[b], %r1;\n"
             "call (r), power, (a, b); ld.param.b32 %r4, [r]; }\nSKIP: st.global.u32 [%rd1], %r4; "
             "ret;\n}\n";
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct harness h;
        uint32_t got[64];
        harness_start(&h, true, seed);
        harness_load(&h, text);
        const uint64_t out = harness_buffer(&h, sizeof got, NULL);
        harness_arg(&h, out);
        harness_launch(&h, "k", 1, 64);
        harness_expect_clean(&h);
        harness_read(&h, out, got, sizeof got);
        for (uint32_t t = 0; t < 64; t++) {
            uint32_t want = 9;
            if (t % 4) {
                want = 1;
                for (uint32_t i = 0; i < t; i++) want *= t % 4;
            }
            assert_int_equal(got[t], want);
        }
        harness_stop(&h);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_module),      cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_meaningless), cmocka_unit_test(test_garbled),
        cmocka_unit_test(test_nesting),     cmocka_unit_test(test_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
