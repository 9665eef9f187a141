/* Specs, keys, names, texts and the cost model: no device, no compiler. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/jit/kernel_cases.h"

static struct kernel_case cases[KERNEL_CASES_MAX];
static uint32_t n_cases;

static const struct kernel_device *device(const char *name) {
    const struct kernel_device *d = kernel_device_find(name);
    assert_non_null(d);
    return d;
}

static void key_is_stable(void **state) {
    (void)state;
    struct kernel_spec spec = {.family = KERNEL_NORM};
    spec.norm = (struct norm_spec){
        .k = 576, .norm = 1, .activation_bits = 16, .epsilon = 1e-5f, .scale = 1};
    struct kernel_config c;
    char key[KERNEL_KEY_BYTES], name[KERNEL_NAME_BYTES];
    assert_int_equal(kernel_config_choose(&spec, device("H100"), 1, false, NULL, &c, NULL), 0);
    kernel_key(&spec, &c, device("H100"), key);
    /* What lies in users' stores: a change here needs a new version there, so it must be meant. */
    assert_string_equal(key, "norm k=576 add=0 post_norm=0 norm=1 activation_bits=16 "
                             "epsilon=0x3727c5ac scale=0x3f800000 | variant=0 tile_rows=0 "
                             "tile_panels=0 warps=8 blocks_per_sm=2 grid=0 shared_bytes=0 | sm=90 "
                             "sms=132 dependent_launch=1");
    kernel_name(&spec, &c, device("H100"), name);
    assert_string_equal(name, "lac_norm_f32_576_576_sm90");
}

/* Every field of every family reaches the key, the hash and the text. */
static void every_field_counts(void **state) {
    (void)state;
    const struct kernel_device *d = device("A100");
    bool seen[KERNEL_FAMILY_COUNT] = {false};
    for (uint32_t i = 0; i < n_cases; i++) {
        struct kernel_spec spec = cases[i].spec;
        /* Each family once; products by a case whose epilogue has a neighbour in its list. */
        if (seen[spec.family] ||
            (spec.family == KERNEL_MATMUL && spec.matmul.epilogue == KERNEL_OUT_QKV))
            continue;
        seen[spec.family] = true;
        struct kernel_config c;
        assert_int_equal(
            kernel_config_choose(&spec, d, cases[i].n_rows, cases[i].walk, NULL, &c, NULL),
            STATUS_OK);
        char key[KERNEL_KEY_BYTES], other[KERNEL_KEY_BYTES];
        struct buffer text, changed;
        buffer_init(&text, 0);
        buffer_init(&changed, 0);
        kernel_key(&spec, &c, d, key);
        kernel_render(&spec, &c, d, &text);
        const uint64_t hash = kernel_hash(&spec, &c, d);
        size_t n_fields = 0;
        for (const char *p = key; *p != '|'; p++) n_fields += *p == '=';
        for (size_t f = 0; f < n_fields + sizeof c / 4; f++) {
            struct kernel_spec s = spec;
            struct kernel_config k = c;
            char *word = f < n_fields ? (char *)&s.matmul + 4 * f : (char *)&k + 4 * (f - n_fields);
            /* The lowest bit keeps tensor types, variants and epilogues inside their lists. */
            word[0] ^= 1;
            kernel_key(&s, &k, d, other);
            assert_string_not_equal(key, other);
            assert_true(kernel_hash(&s, &k, d) != hash);
            buffer_clear(&changed);
            kernel_render(&s, &k, d, &changed);
            assert_false(changed.full);
            const char *a = strstr(buffer_cstr(&text), "#define"),
                       *b = strstr(buffer_cstr(&changed), "#define");
            assert_string_not_equal(a, b);
        }
        buffer_free(&text);
        buffer_free(&changed);
    }
    for (uint32_t f = 0; f < KERNEL_FAMILY_COUNT; f++) assert_true(seen[f]);
}

/* Two specs of the list never share a key, a hash or a symbol on one device. */
static void keys_are_distinct(void **state) {
    (void)state;
    const struct kernel_device *d = device("L4");
    static char keys[KERNEL_CASES_MAX][KERNEL_KEY_BYTES];
    static uint64_t hashes[KERNEL_CASES_MAX];
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_cases; i++) {
        struct kernel_config c;
        if (kernel_config_choose(&cases[i].spec, d, cases[i].n_rows, cases[i].walk, NULL, &c,
                                 NULL) != STATUS_OK)
            continue;
        kernel_key(&cases[i].spec, &c, d, keys[n]);
        hashes[n] = kernel_hash(&cases[i].spec, &c, d);
        for (uint32_t j = 0; j < n; j++) {
            if (strcmp(keys[j], keys[n]) == 0) continue;
            assert_true(hashes[j] != hashes[n]);
        }
        n++;
    }
    assert_true(n > 60);
}

/* Whatever the chip, a choice fits it, and choices that must not depend on it do not. */
static void choices_fit_every_device(void **state) {
    (void)state;
    const char *name;
    uint32_t n_refused = 0;
    for (uint32_t i = 0; kernel_device_at(i, &name) != NULL; i++) {
        const struct kernel_device *d = kernel_device_at(i, &name);
        for (uint32_t j = 0; j < n_cases; j++) {
            struct kernel_config c;
            struct error e;
            const enum status s = kernel_config_choose(&cases[j].spec, d, cases[j].n_rows,
                                                       cases[j].walk, NULL, &c, &e);
            if (s != STATUS_OK) {
                /* Only what needs much shared memory, and only on the small chips. */
                assert_int_equal(s, STATUS_UNSUPPORTED);
                assert_true(d->shared_per_block <= 64 << 10);
                n_refused++;
                continue;
            }
            assert_true(c.shared_bytes <= d->shared_per_block);
            assert_true(c.warps * 32 <= 1024 && c.blocks_per_sm >= 1);
            assert_true(c.blocks_per_sm * c.warps * 32 <= d->threads_per_sm);
            assert_true(c.blocks_per_sm * (c.shared_bytes + 1024) <= d->shared_per_sm);
            struct kernel_geometry g;
            kernel_launch(&cases[j].spec, &c, d, NULL, cases[j].n_rows, &g);
            assert_true(g.grid[0] > 0 && g.block == c.warps * 32);
            if (cases[j].spec.family == KERNEL_MATMUL) {
                /* One wave, and tiles enough for every CTA of it. */
                const uint32_t panels = (cases[j].spec.matmul.n + 15) / 16;
                assert_true(g.grid[0] <= d->n_sms * c.blocks_per_sm);
                assert_true(g.grid[0] * c.tile_panels < panels + c.tile_panels);
                assert_true(g.grid[1] * c.tile_rows >= cases[j].n_rows);
            }
            /* A grid that meets at a barrier must be resident. */
            if (cases[j].spec.family == KERNEL_FFN)
                assert_true(g.grid[0] <= d->n_sms * c.blocks_per_sm);
        }
    }
    assert_true(n_refused < 8);
}

/* What the compiler found narrows the grid; a kernel that does not fit is refused. */
static void usage_narrows_the_grid(void **state) {
    (void)state;
    const struct kernel_device *d = device("H200");
    struct kernel_spec spec = {.family = KERNEL_MATMUL};
    spec.matmul = (struct matmul_spec){
        .format = TENSOR_Q4_K, .n = 128256, .k = 4096, .activation_bits = 16, .scale = 1};
    uint32_t last = UINT32_MAX;
    for (uint32_t registers = 32; registers <= 255; registers += 31) {
        struct kernel_usage usage = {registers, 4096};
        struct kernel_config c;
        assert_int_equal(kernel_config_choose(&spec, d, 1, false, &usage, &c, NULL), STATUS_OK);
        const uint32_t fit = kernel_occupancy(d, &c, &usage);
        assert_true(fit >= 1 && fit * ((registers + 7) / 8 * 8) * c.warps * 32 <= 65536);
        assert_true(c.grid <= fit * d->n_sms && c.grid <= last);
        last = c.grid;
    }
    assert_true(last <= d->n_sms);
    spec = (struct kernel_spec){.family = KERNEL_FFN};
    spec.ffn = (struct ffn_spec){.format = TENSOR_Q4_K,
                                 .n = 14336,
                                 .k = 4096,
                                 .down_format = TENSOR_Q6_K,
                                 .activation_bits = 16,
                                 .scale = 1};
    struct kernel_usage usage = {255, 40 << 10};
    struct kernel_config c;
    assert_int_equal(kernel_config_choose(&spec, d, 1, false, &usage, &c, NULL), STATUS_OK);
    assert_true(c.grid <= d->n_sms);
    usage.shared_static_bytes = 230 << 10;
    assert_int_equal(kernel_config_choose(&spec, d, 1, false, &usage, &c, NULL),
                     STATUS_UNSUPPORTED);
}

/* The choices themselves, for the chips of issue 6: few rows by dp4a, more by mma, prefill wide. */
static void choices_of_named_devices(void **state) {
    (void)state;
    static const struct {
        const char *device;
        uint32_t n_rows, variant, tile_rows, grid_most;
    } expected[] = {
        {"T4", 1, KERNEL_DP4A, 1, 40 * 3},       {"T4", 8, KERNEL_MMA, 8, 40 * 3},
        {"A100", 1, KERNEL_DP4A, 1, 108 * 3},    {"A100", 2, KERNEL_DP4A, 2, 108 * 3},
        {"A100", 3, KERNEL_MMA, 8, 108 * 3},     {"L4", 16, KERNEL_MMA, 16, 58 * 2},
        {"L40S", 32, KERNEL_MMA, 32, 142},       {"RTX 4090", 64, KERNEL_WIDE, 64, 128},
        {"RTX 5090", 512, KERNEL_WIDE, 64, 170}, {"H100", 1, KERNEL_DP4A, 1, 132 * 3},
        {"H200", 5, KERNEL_MMA, 8, 132 * 3},     {"B200", 33, KERNEL_WIDE, 64, 148},
    };
    for (unsigned i = 0; i < sizeof expected / sizeof *expected; i++) {
        struct kernel_spec spec = {.family = KERNEL_MATMUL};
        spec.matmul = (struct matmul_spec){.format = TENSOR_Q4_1,
                                           .n = 4096,
                                           .k = 4096,
                                           .activation_bits = 16,
                                           .epilogue = KERNEL_OUT_RESIDUAL,
                                           .scale = 1};
        struct kernel_config c;
        assert_int_equal(kernel_config_choose(&spec, device(expected[i].device), expected[i].n_rows,
                                              false, NULL, &c, NULL),
                         STATUS_OK);
        assert_int_equal(c.variant, expected[i].variant);
        assert_int_equal(c.tile_rows, expected[i].tile_rows);
        assert_true(c.grid <= expected[i].grid_most);
        /* All SMs have work while there are tiles for them. */
        const uint32_t tiles = (256 + c.tile_panels - 1) / c.tile_panels;
        const uint32_t n_sms = device(expected[i].device)->n_sms;
        assert_true(c.grid >= (tiles < n_sms ? tiles : n_sms) / 2);
    }
}

static void splits_come_from_the_shape(void **state) {
    (void)state;
    for (uint32_t k = 32; k <= 32768; k += 32) {
        const uint32_t pairs = (k + 63) / 64, p = kernel_split_pairs(TENSOR_Q4_1, k);
        assert_true(p >= 1 && (pairs + p - 1) / p <= 8);
        if (k % 256 == 0) assert_int_equal(kernel_split_pairs(TENSOR_Q4_K, k) % 4, 0);
        assert_true(kernel_planes_bytes(k, 16) % 16 == 0);
    }
}

int main(void) {
    n_cases = kernel_cases(cases);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(key_is_stable),
        cmocka_unit_test(every_field_counts),
        cmocka_unit_test(keys_are_distinct),
        cmocka_unit_test(choices_fit_every_device),
        cmocka_unit_test(usage_narrows_the_grid),
        cmocka_unit_test(choices_of_named_devices),
        cmocka_unit_test(splits_come_from_the_shape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
