/* cpu_features.c against what the kernel lists in /proc/cpuinfo. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/cpu_features.h"

/* The value of the first line of /proc/cpuinfo that starts with `key`, padded with spaces. */
static bool cpuinfo(const char *key, char *value, size_t cap) {
    FILE *file = fopen("/proc/cpuinfo", "re");
    bool found = false;
    while (file && !found && fgets(value + 1, (int)cap - 2, file)) {
        char *colon = strchr(value + 1, ':');
        if (!colon || strncmp(value + 1, key, strlen(key)) != 0) continue;
        memmove(value + 1, colon + 1, strlen(colon + 1) + 1);
        value[0] = ' ';
        char *newline = strchr(value, '\n');
        if (newline) memcpy(newline, " ", 2);
        found = true;
    }
    if (file) fclose(file);
    return found;
}

static bool has(const char *flags, const char *flag) {
    char padded[32];
    snprintf(padded, sizeof padded, " %s ", flag);
    return strstr(flags, padded) != NULL;
}

static void test_flags_agree_with_the_kernel(void **state) {
    (void)state;
    static char flags[16384];
    struct cpu_features f;
    cpu_features_detect(&f);
#if defined(__x86_64__)
    if (!cpuinfo("flags", flags, sizeof flags)) skip();
    const struct {
        const char *flag;
        bool got;
    } want[] = {
        {"avx2", f.avx2},         {"fma", f.fma},           {"f16c", f.f16c},
        {"avx_vnni", f.avx_vnni}, {"avx512f", f.avx512f},   {"avx512bw", f.avx512bw},
        {"avx512vl", f.avx512vl}, {"avx512dq", f.avx512dq}, {"avx512_vnni", f.avx512_vnni},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        if (want[i].got != has(flags, want[i].flag)) fail_msg("%s differs", want[i].flag);
    }
    /* The kernel may refuse the permission, so a listed amx_tile need not be usable. */
    if (f.amx_tile) assert_true(has(flags, "amx_tile"));
    assert_false(f.neon);
#else
    if (!cpuinfo("Features", flags, sizeof flags)) skip();
    assert_int_equal(f.neon_dotprod, has(flags, "asimddp"));
    assert_int_equal(f.neon_i8mm, has(flags, "i8mm"));
    assert_false(f.avx2);
#endif
}

static void test_brand_and_caches(void **state) {
    (void)state;
    static char name[1024];
    struct cpu_features f;
    cpu_features_detect(&f);
    assert_true(f.brand[0] != '\0' && f.brand[0] != ' ');
#if defined(__x86_64__)
    if (cpuinfo("model name", name, sizeof name)) assert_non_null(strstr(name, f.brand));
#endif
    /* Plausible, or said to be unknown. */
    assert_true(f.l2_bytes == 0 || (f.l2_bytes >= 65536 && f.l2_bytes < (UINT64_C(1) << 30)));
    assert_true(f.l3_bytes == 0 || (f.l3_bytes >= 262144 && f.l3_bytes < (UINT64_C(1) << 36)));
}

static void test_names(void **state) {
    (void)state;
    enum cpu_isa isa;
    for (unsigned i = 0; i < CPU_ISA_COUNT; i++) {
        assert_true(cpu_isa_parse(cpu_isa_name((enum cpu_isa)i), &isa));
        assert_int_equal(isa, i);
    }
    assert_false(cpu_isa_parse("auto", &isa));
    assert_false(cpu_isa_parse("AVX2", &isa));
    assert_false(cpu_isa_parse("", &isa));
    assert_int_equal(isa, CPU_ISA_SCALAR);
}

static void test_best(void **state) {
    (void)state;
    struct cpu_features f = {0};
    assert_int_equal(cpu_isa_best(&f), CPU_ISA_SCALAR);
    f.avx2 = true;
    assert_int_equal(cpu_isa_best(&f), CPU_ISA_SCALAR); /* not without FMA and F16C */
    f.fma = f.f16c = true;
    assert_int_equal(cpu_isa_best(&f), CPU_ISA_AVX2);
    f.avx_vnni = true;
    assert_int_equal(cpu_isa_best(&f), CPU_ISA_AVXVNNI);
    f.avx512f = f.avx512bw = f.avx512vl = f.avx512dq = true;
    assert_int_equal(cpu_isa_best(&f), CPU_ISA_AVXVNNI); /* AVX-512 without VNNI does not count */
    f.avx512_vnni = true;
    assert_int_equal(cpu_isa_best(&f), CPU_ISA_AVX512);
    f.amx_tile = true;
    assert_int_equal(cpu_isa_best(&f), CPU_ISA_AVX512);
    f.amx_int8 = true;
    assert_int_equal(cpu_isa_best(&f), CPU_ISA_AMX);
    assert_false(cpu_isa_supported(&f, CPU_ISA_NEON));

    struct cpu_features here;
    cpu_features_detect(&here);
    assert_true(cpu_isa_supported(&here, cpu_isa_best(&here)));
    assert_true(cpu_isa_supported(&here, CPU_ISA_SCALAR));
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static int sum_avx2(void) {
    typedef int v8 __attribute__((vector_size(32)));
    volatile v8 a = {1, 2, 3, 4, 5, 6, 7, 8};
    const v8 b = a + a;
    return b[0] + b[7];
}

__attribute__((target("avx512f"))) static int sum_avx512(void) {
    typedef int v16 __attribute__((vector_size(64)));
    volatile v16 a = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    const v16 b = a + a;
    return b[0] + b[15];
}
#endif

/* What is reported as usable must not fault. */
static void test_registers_work(void **state) {
    (void)state;
#if defined(__x86_64__)
    struct cpu_features f;
    cpu_features_detect(&f);
    if (f.avx2) assert_int_equal(sum_avx2(), 18);
    if (f.avx512f) assert_int_equal(sum_avx512(), 34);
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flags_agree_with_the_kernel),
        cmocka_unit_test(test_brand_and_caches),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_best),
        cmocka_unit_test(test_registers_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
