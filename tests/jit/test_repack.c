/* Repacked weights come back as they were, in every format, at odd shapes and in every order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/rng.h"
#include "jit/kernel.h"
#include "jit/repack.h"

static const enum tensor_type formats[] = {TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q8_0, TENSOR_Q4_K,
                                           TENSOR_Q6_K, TENSOR_F16,  TENSOR_BF16};
enum { N_FORMATS = sizeof formats / sizeof *formats };

static uint64_t draw(uint32_t *at) {
    return rng_draw(7, 0, (*at)++, RNG_TEST, 0);
}

/* Random blocks; scales are kept finite so that rows can be compared as numbers. */
static uint8_t *random_rows(enum tensor_type type, uint32_t n, uint32_t k, uint32_t *at) {
    const struct tensor_format *f = tensor_format(type);
    const size_t bytes = tensor_row_bytes(f, k) * n;
    uint8_t *rows = malloc(bytes);
    assert_non_null(rows);
    for (size_t i = 0; i < bytes; i++) rows[i] = (uint8_t)draw(at);
    for (size_t b = 0; f->block_weights > 1 && b < bytes; b += f->block_bytes) {
        const uint16_t d = (uint16_t)(0x2000 | (draw(at) & 0x93ff));
        memcpy(rows + b + (type == TENSOR_Q6_K ? 208 : 0), &d, 2);
        if (type == TENSOR_Q4_1 || type == TENSOR_Q4_K) memcpy(rows + b + 2, &d, 2);
    }
    return rows;
}

static void round_trip(enum tensor_type type, uint32_t n, uint32_t k, uint32_t *at) {
    const size_t row_bytes = tensor_row_bytes(tensor_format(type), k);
    uint8_t *rows = random_rows(type, n, k, at);
    const uint8_t **sources = malloc(n * sizeof *sources);
    const size_t bytes = repack_bytes(type, n, k);
    assert_int_equal(bytes, (n + 15) / 16 * repack_panel_bytes(type, k));
    assert_int_equal(repack_panel_bytes(type, k) % 32, 0);
    uint8_t *packed = malloc(bytes);
    float *got = malloc(k * sizeof *got), *expected = malloc(k * sizeof *expected);
    memset(packed, 0xa5, bytes);
    /* A shuffled order with one output of zeros. */
    for (uint32_t i = 0; i < n; i++) sources[i] = rows + (uint64_t)(i * 7 % n) * row_bytes;
    if (n > 3) sources[3] = NULL;
    const uint32_t n_panels = (n + 15) / 16, middle = n_panels / 2;
    repack_panels(type, n, k, sources, middle, n_panels, packed);
    repack_panels(type, n, k, sources, 0, middle, packed);
    for (uint32_t i = 0; i < n; i++) {
        repack_row(type, k, packed, i, got);
        if (sources[i] == NULL) {
            for (uint32_t j = 0; j < k; j++) assert_true(got[j] == 0);
            continue;
        }
        tensor_dequantise(type, sources[i], expected, k);
        assert_memory_equal(got, expected, k * sizeof *got);
    }
    free(rows);
    free(sources);
    free(packed);
    free(got);
    free(expected);
}

static void rows_come_back(void **state) {
    (void)state;
    uint32_t at = 0;
    for (unsigned f = 0; f < N_FORMATS; f++) {
        const uint32_t weights = tensor_format(formats[f])->block_weights;
        const uint32_t unit = weights > 1 ? weights : 32;
        static const uint32_t ns[] = {1, 3, 16, 17, 40, 95};
        for (unsigned i = 0; i < sizeof ns / sizeof *ns; i++)
            for (uint32_t blocks = 1; blocks <= 5; blocks++)
                round_trip(formats[f], ns[i], unit * blocks, &at);
    }
}

/* The bytes move, none is added: what a launch must read is what GGUF holds. */
static void nothing_is_added(void **state) {
    (void)state;
    for (unsigned f = 0; f < N_FORMATS; f++)
        assert_int_equal(repack_bytes(formats[f], 4096, 4096),
                         4096 * tensor_row_bytes(tensor_format(formats[f]), 4096));
    assert_false(repack_supported(TENSOR_Q4_K, 128));
    assert_false(repack_supported(TENSOR_Q4_1, 48));
    assert_false(repack_supported(TENSOR_Q4_1, 0));
    assert_false(repack_supported(TENSOR_IQ4_XS, 256));
    assert_int_equal(repack_bytes(TENSOR_IQ4_XS, 16, 256), 0);
}

static void check_permutation(const uint32_t *order, uint32_t n) {
    uint8_t *seen = calloc(n, 1);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(order[i] < n && !seen[order[i]]);
        seen[order[i]] = 1;
    }
    free(seen);
}

static void orders_pair_partners(void **state) {
    (void)state;
    enum { HEADS = 9, KV = 3, DIM = 64, N = (HEADS + 2 * KV) * DIM };
    static uint32_t order[N];
    static const uint32_t dims[] = {0, 16, 32, 64};
    for (uint32_t rope = KERNEL_ROPE_NONE; rope <= KERNEL_ROPE_HALVES; rope++)
        for (unsigned j = 0; j < 4; j++) {
            const uint32_t rd = dims[j];
            repack_order_qkv(HEADS, KV, DIM, rope, rd, order);
            check_permutation(order, N);
            for (uint32_t i = 0; i < N; i++) {
                const uint32_t head = i / DIM, o = i % DIM;
                assert_int_equal(order[i] / DIM, head);
                if (rope == KERNEL_ROPE_NONE || head >= HEADS + KV || o >= rd) {
                    assert_int_equal(order[i], i);
                } else if (o % 16 < 8) {
                    const uint32_t apart = rope == KERNEL_ROPE_HALVES ? rd / 2 : 1;
                    assert_int_equal(order[i + 8], order[i] + apart);
                }
            }
        }
    static uint32_t gated[2 * 96];
    repack_order_gated(96, gated);
    check_permutation(gated, 2 * 96);
    for (uint32_t i = 0; i < 2 * 96; i++)
        if (i % 16 < 8) assert_int_equal(gated[i + 8], gated[i] + 96);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_back),
        cmocka_unit_test(nothing_is_added),
        cmocka_unit_test(orders_pair_partners),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
