#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/core/matmul_cases.h"

static void test_isas_equal_scalar(void **state) {
    (void)state;
    for (unsigned i = 1; i < N_CASE_ISAS; i++) {
        if (!isa_runs(case_isas[i])) {
            printf("skip: %s kernels: %s\n", cpu_isa_name(case_isas[i]),
                   matmul_kernels(case_isas[i]) ? "this processor lacks the instructions"
                                                : "not built for this processor family");
            continue;
        }
        for (int type = 0; type < TENSOR_TYPE_COUNT; type++) {
            assert_true(check_isa(case_isas[i], (enum tensor_type)type));
        }
    }
}

static void test_accuracy_against_float64(void **state) {
    (void)state;
    for (int type = 0; type < TENSOR_TYPE_COUNT; type++) {
        for (int kind = 0; kind < BLOCKS_KINDS; kind++) {
            assert_true(check_accuracy((enum tensor_type)type, (enum blocks)kind));
        }
    }
}

static void test_rows_equal_dequantise(void **state) {
    (void)state;
    for (int type = 0; type < TENSOR_TYPE_COUNT; type++) {
        assert_true(check_rows((enum tensor_type)type));
    }
}

static void for_each_isa(bool (*check)(enum cpu_isa, enum tensor_type, enum activation_format)) {
    for (unsigned i = 0; i < N_CASE_ISAS; i++) {
        if (!isa_runs(case_isas[i])) continue;
        for (int type = 0; type < TENSOR_TYPE_COUNT; type++) {
            for (int format = 0; format < 3; format++) {
                const enum tensor_type t = (enum tensor_type)type;
                const enum activation_format f = (enum activation_format)format;
                if (matmul_activation_format(t, f) == f) assert_true(check(case_isas[i], t, f));
            }
        }
    }
}

static void test_tasks_do_not_change_bits(void **state) {
    (void)state;
    for_each_isa(check_split);
}

static void test_hostile_rows(void **state) {
    (void)state;
    for_each_isa(check_hostile_rows);
}

static void test_size(void **state) {
    (void)state;
    for (int type = 0; type < TENSOR_TYPE_COUNT; type++) {
        assert_true(check_size((enum tensor_type)type));
    }
    assert_false(packed_supported(TENSOR_Q4_1, 0));
    assert_false(packed_supported(TENSOR_Q4_1, 48));
    assert_false(packed_supported(TENSOR_Q4_K, 128));
    assert_int_equal(packed_matrix_bytes(TENSOR_Q4_K, 16, 128), 0);
    assert_true(packed_supported(TENSOR_F32, 5));
}

/* A flipped weight bit, one wrong scale: the comparison above must see them. */
static void test_comparison_can_fail(void **state) {
    (void)state;
    for (int type = 0; type < TENSOR_TYPE_COUNT; type++) {
        struct matmul_case c = case_make((enum tensor_type)type, 16,
                                         type_k((enum tensor_type)type, 2), 2, BLOCKS_RANDOM, 3);
        float *before = case_run(&c, CPU_ISA_SCALAR, ACTIVATION_F32, NULL, 9, 9);
        for (uint32_t i = 0; i < c.packed.panel_bytes; i += 97) c.packed.data[i] ^= 0x11;
        float *after = case_run(&c, CPU_ISA_SCALAR, ACTIVATION_F32, NULL, 9, 9);
        bool same = true;
        for (uint32_t i = 0; i < 16; i++) same = same && same_float(before[i], after[i]);
        assert_false(same);
        free(before);
        free(after);
        case_free(&c);
    }
}

static void test_task_size(void **state) {
    (void)state;
    static const uint32_t ks[] = {32, 576, 1536, 4096, 28672};
    static const uint32_t rows[] = {1, 2, 8, 31, 512, 100000};
    for (unsigned i = 0; i < sizeof ks / sizeof ks[0]; i++) {
        for (unsigned j = 0; j < sizeof rows / sizeof rows[0]; j++) {
            struct packed_matrix m;
            uint8_t *mem = case_alloc(64);
            packed_matrix_init(&m, TENSOR_Q8_0, 49152, ks[i], mem);
            for (int f = 0; f < 3; f++) {
                const struct matmul_task t =
                    matmul_task_size(&m, (enum activation_format)f, rows[j]);
                assert_true(t.panels >= 1 && t.panels <= m.n_panels);
                assert_true(t.rows >= 8 && t.rows % 8 == 0 && t.rows < rows[j] + 8);
            }
            free(mem);
        }
    }
}

/* The roofline loop does what it says it did: more rounds, more work, in proportion. */
static void test_dots(void **state) {
    (void)state;
    for (unsigned i = 0; i < N_CASE_ISAS; i++) {
        if (!isa_runs(case_isas[i]) || matmul_kernels(case_isas[i])->dots == NULL) continue;
        for (int f = 0; f < 2; f++) {
            const enum activation_format format = (enum activation_format)f;
            const uint64_t one = matmul_kernels(case_isas[i])->dots(format, 1);
            assert_true(one > 0);
            assert_int_equal(matmul_kernels(case_isas[i])->dots(format, 1000), 1000 * one);
            assert_true(matmul_dot_rate(case_isas[i], format) > 0);
        }
    }
    assert_true(matmul_dot_rate(CPU_ISA_SCALAR, ACTIVATION_INT8) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_isas_equal_scalar),
        cmocka_unit_test(test_accuracy_against_float64),
        cmocka_unit_test(test_rows_equal_dequantise),
        cmocka_unit_test(test_tasks_do_not_change_bits),
        cmocka_unit_test(test_hostile_rows),
        cmocka_unit_test(test_size),
        cmocka_unit_test(test_comparison_can_fail),
        cmocka_unit_test(test_task_size),
        cmocka_unit_test(test_dots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
