/* All builds of the lane operations (scalar, AVX2, AVX-512) give the same bits, for whole warps and
 * for parts of one. What the bits have to be is test_instructions.c's business. */
#include "tests/softgpu/harness.h"

#include "tests/softgpu/lanes.h"
#include "tests/softgpu/run.h"

enum { FILE_BYTES = 4096, ROUNDS = 40 };

static uint64_t random_state = 5;

static void fill(uint8_t *regs) {
    static const uint32_t awkward[] = {0, 0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc00001u,
                                       1, 0x007fffffu, 0x3f800000u, 31,          64};
    for (uint32_t i = 0; i < FILE_BYTES / 4; i++) {
        uint32_t v = (uint32_t)next_random(&random_state);
        if (v % 4 == 0) v = awkward[v / 4 % 10];
        if (v % 4 == 1) v = 0x3f000000u + v % 0x01000000u;
        memcpy(regs + 4 * i, &v, 4);
    }
}

static bool usable(const char *name) {
    /* these read further operands, or need a launch around them */
    static const char *const skip[] = {"PACK", "UNPACK", "MMA", "SELP_128", "CVT_PACK_INT"};
    for (size_t i = 0; i < sizeof skip / sizeof *skip; i++)
        if (!strcmp(name, skip[i])) return false;
    return true;
}

static void compare(op_fn *const *other, const char *build) {
    static const char *const names[] = {
#define X(name) #name,
        LANE_LIST(X)
#undef X
    };
    static _Alignas(64) uint8_t before[FILE_BYTES], a[FILE_BYTES], b[FILE_BYTES];
    uint32_t compared = 0;
    for (uint32_t i = 0; i < LANE_OPS; i++) {
        if (!usable(names[i])) continue;
        for (uint32_t round = 0; round < ROUNDS; round++) {
            struct warp w;
            memset(&w, 0, sizeof w);
            fill(before);
            memcpy(a, before, sizeof a);
            memcpy(b, before, sizeof b);
            struct op op = {.d = 0, .a = 512, .b = 1024, .c = 1536, .e = 2048, .guard = NO_PLACE};
            op.kind = (uint8_t)(round % 6);
            op.round = (uint8_t)(round / 2 % 4);
            op.type = op.type_a = PTX_F16;
            op.n = (uint8_t)(round % 4);
            op.sets_wide = 4;
            op.flags = round % 3 == 0 ? OP_FTZ : 0;
            w.active = w.exec = round % 2 ? (uint32_t)next_random(&random_state) | 1 : ~0u;
            w.regs = w.watch_regs = a;
            w.carry = 0x55555555u;
            (void)lanes_scalar[i](&w, &op);
            const uint32_t carry = w.carry;
            w.regs = b;
            w.carry = 0x55555555u;
            (void)other[i](&w, &op);
            if (memcmp(a, b, sizeof a) || carry != w.carry)
                fail_msg("%s differs between scalar and %s (round %u)", names[i], build, round);
            compared++;
        }
    }
    print_message("%s: %u comparisons\n", build, compared);
}

static void test_builds(void **state) {
    (void)state;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        compare(lanes_avx2, "avx2");
    else
        print_message("skip: no AVX2 here\n");
    if (lane_ops() == lanes_avx512)
        compare(lanes_avx512, "avx512");
    else
        print_message("skip: no AVX-512 here\n");
#else
    print_message("skip: one build only\n");
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_builds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
