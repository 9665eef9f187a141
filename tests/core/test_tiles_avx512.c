/* The AMX kernel on tiles emulated here, so that a machine without AMX tests its arithmetic: the
 * kernel's text is included with other tile instructions. What this cannot see: the encodings of
 * the real ones, which matmul_tiles_work tries where they exist. Needs AVX-512, as the kernel does.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)

#include <stdbool.h>

#include "core/check.h"

/* The tile unit, as the manual describes it; a use that would fault or read an undefined row fails
 * a CHECK. */
static struct {
    bool configured, lies;
    uint16_t row_bytes[8];
    uint8_t rows[8];
    uint8_t data[8][16][64];
} tile_unit;

static void unit_configure(const void *config) {
    const uint8_t *c = config;
    CHECK(c[0] == 1);
    for (int i = 1; i < 16; i++) CHECK(c[i] == 0);
    for (int t = 0; t < 8; t++) {
        memcpy(&tile_unit.row_bytes[t], c + 16 + 2 * t, 2);
        tile_unit.rows[t] = c[48 + t];
        CHECK(tile_unit.rows[t] <= 16 && tile_unit.row_bytes[t] <= 64);
        CHECK((tile_unit.rows[t] == 0) == (tile_unit.row_bytes[t] == 0));
    }
    for (int t = 8; t < 16; t++) CHECK(c[48 + t] == 0 && c[16 + 2 * t] == 0 && c[17 + 2 * t] == 0);
    memset(tile_unit.data, 0, sizeof tile_unit.data);
    tile_unit.configured = true;
}

static void unit_load(int t, const void *p, size_t stride) {
    CHECK(tile_unit.configured && tile_unit.rows[t] > 0);
    memset(tile_unit.data[t], 0, sizeof tile_unit.data[t]);
    for (int r = 0; r < tile_unit.rows[t]; r++)
        memcpy(tile_unit.data[t][r], (const uint8_t *)p + (size_t)r * stride,
               tile_unit.row_bytes[t]);
}

static void unit_store(int t, void *p, size_t stride) {
    CHECK(tile_unit.configured && tile_unit.rows[t] > 0);
    for (int r = 0; r < tile_unit.rows[t]; r++)
        memcpy((uint8_t *)p + (size_t)r * stride, tile_unit.data[t][r], tile_unit.row_bytes[t]);
}

static void unit_dot(int c, int a, int b) {
    CHECK(tile_unit.configured && a != b && b != c && a != c);
    CHECK(tile_unit.rows[c] == tile_unit.rows[a] &&
          tile_unit.row_bytes[c] == tile_unit.row_bytes[b]);
    CHECK(tile_unit.row_bytes[a] == 4 * tile_unit.rows[b]);
    for (int m = 0; m < tile_unit.rows[c]; m++)
        for (int n = 0; n < tile_unit.row_bytes[c] / 4; n++) {
            int32_t sum;
            memcpy(&sum, tile_unit.data[c][m] + 4 * n, 4);
            for (int k = 0; k < tile_unit.rows[b]; k++)
                for (int i = 0; i < 4; i++)
                    sum +=
                        (int8_t)tile_unit.data[a][m][4 * k + i] * tile_unit.data[b][k][4 * n + i];
            if (tile_unit.lies && m == 3 && n == 5) sum++;
            memcpy(tile_unit.data[c][m] + 4 * n, &sum, 4);
        }
}

#define TILE_CONFIGURE(config)   unit_configure(config)
#define TILE_RELEASE()           (tile_unit.configured = false)
#define TILE_ZERO(t)             memset(tile_unit.data[t], 0, sizeof tile_unit.data[t])
#define TILE_LOAD(t, p, stride)  unit_load(t, p, stride)
#define TILE_STORE(t, p, stride) unit_store(t, p, stride)
#define TILE_DOT(c, a, b)        unit_dot(c, a, b)
#include "core/cpu/matmul_avx512.c"

#pragma GCC diagnostic ignored "-Wunused-function" /* its checks go through matmul_kernels */
#include "tests/core/matmul_cases.h"

static void test_equals_scalar(void **state) {
    (void)state;
    static const uint32_t rows[] = {1, 15, 16, 33, 83};
    for (int type = 0; type < TENSOR_TYPE_COUNT; type++) {
        const enum tensor_type t = (enum tensor_type)type;
        const bool super = tensor_format(t)->block_weights == 256;
        for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            /* A cut last panel; more blocks than a segment holds. */
            struct matmul_case c =
                case_make(t, 37, type_k(t, super ? 3 : 19), rows[i], BLOCKS_RANDOM, 40 + i);
            for (int f = 0; f < 3; f++) {
                const enum activation_format format = (enum activation_format)f;
                if (matmul_activation_format(t, format) != format) continue;
                const float *bias = (i + (unsigned)f) % 2 ? c.bias : NULL;
                float *want = case_run(&c, CPU_ISA_SCALAR, format, bias, UINT32_MAX, UINT32_MAX);
                float *got = case_run_by(&matmul_amx, &c, format, bias, UINT32_MAX, UINT32_MAX);
                float *cut = case_run_by(&matmul_amx, &c, format, bias, 1, 24);
                assert_true(case_same(&c, got, want, "emulated tiles"));
                assert_true(case_same(&c, cut, want, "emulated tiles, cut into tasks"));
                assert_false(tile_unit.configured);
                free(want);
                free(got);
                free(cut);
            }
            case_free(&c);
        }
    }
}

static void test_largest_and_hostile(void **state) {
    (void)state;
    for (int round = 2; round < 2 * BLOCKS_KINDS; round++) {
        const enum blocks kind = (enum blocks)(round / 2);
        struct matmul_case c =
            case_make(round % 2 ? TENSOR_MXFP4 : TENSOR_Q8_0, 16, 96, 32, kind, 7);
        for (uint32_t i = 0; i < c.k; i++) c.x[3 * c.k + i] = i % 2 ? -0x1p100f : 0x1p100f;
        c.x[5 * c.k + 40] = __builtin_nanf("");
        c.x[6 * c.k + 1] = __builtin_inff();
        for (int f = 0; f < 2; f++) {
            const enum activation_format format = (enum activation_format)f;
            float *want = case_run(&c, CPU_ISA_SCALAR, format, c.bias, UINT32_MAX, UINT32_MAX);
            float *got = case_run_by(&matmul_amx, &c, format, c.bias, UINT32_MAX, UINT32_MAX);
            assert_true(case_same(&c, got, want, "emulated tiles"));
            free(want);
            free(got);
        }
        case_free(&c);
    }
}

/* The trial before use: passes on a unit that works, sees one wrong sum. */
static void test_trial(void **state) {
    (void)state;
    assert_true(matmul_tiles_work());
    tile_unit.lies = true;
    assert_false(matmul_tiles_work());
    tile_unit.lies = false;
    assert_true(matmul_tiles_work());
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_scalar),
        cmocka_unit_test(test_largest_and_hostile),
        cmocka_unit_test(test_trial),
    };
    if (!isa_runs(CPU_ISA_AVX512)) {
        printf("skip: emulated tiles: this processor lacks AVX-512, which scales their sums\n");
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void) {
    printf("skip: emulated tiles: not for this processor family\n");
    return 0;
}

#endif
