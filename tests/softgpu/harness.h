/* harness.h: what the tests of the software device have in common: a device, a program from PTX
 * text, buffers, launches. Everything fails the test (cmocka) when it can not be done.
 */
#ifndef LAC_TESTS_SOFTGPU_HARNESS_H
#define LAC_TESTS_SOFTGPU_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/softgpu/exec.h"

static const struct exec_device harness_a100 = {
    .compute_capability = 120, /* takes any PTX */
    .sm_count = 8,
    .max_threads_per_block = 1024,
    .max_threads_per_sm = 2048,
    .max_blocks_per_sm = 32,
    .registers_per_sm = 65536,
    .shared_per_sm_bytes = 167936,
    .shared_per_block_bytes = 49152,
    .shared_per_block_optin_bytes = 166912,
    .shared_reserved_bytes = 1024,
};

struct harness {
    struct memory *memory;
    struct program *program;
    struct finding_list findings;
    struct exec_result result;
    struct exec_device device;
    enum exec_check check;
    uint64_t seed;
    uint32_t threads;
    uint32_t shared_bytes;
    uint64_t max_instructions;
    enum status status; /* of the last launch */
    uint32_t n_args;
    uint64_t args[16]; /* each 8 bytes wide, as harness kernels declare their parameters */
    struct error error;
};

static inline void harness_start(struct harness *h, bool track, uint64_t seed) {
    memset(h, 0, sizeof *h);
    h->device = harness_a100;
    h->check = track ? EXEC_CHECK_FULL : EXEC_CHECK_BOUNDS;
    h->seed = seed;
    finding_list_init(&h->findings);
    const struct memory_config cfg = {
        .size_bytes = UINT64_C(1) << 32, .track = track, .seed = seed};
    assert_int_equal(memory_create(&cfg, &h->memory, &h->error), STATUS_OK);
}

static inline void harness_load(struct harness *h, const char *text) {
    struct ptx_module *m;
    enum status s = ptx_parse(text, strlen(text), &m, &h->error);
    if (s != STATUS_OK) fail_msg("%s", h->error.message);
    s = program_create(m, h->memory, h->device.compute_capability, &h->program, &h->error);
    ptx_free(m);
    if (s != STATUS_OK) fail_msg("%s", h->error.message);
}

/* The file of that name in tests/softgpu/kernels. */
static inline void harness_load_file(struct harness *h, const char *name) {
    char path[256];
    snprintf(path, sizeof path, "tests/softgpu/kernels/%s", name);
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s is not here; tests run in the repository's root", path);
    static char text[1 << 18];
    const size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    harness_load(h, text);
}

static inline uint64_t harness_buffer(struct harness *h, uint64_t bytes, const void *contents) {
    uint64_t address;
    assert_int_equal(memory_allocate(h->memory, bytes, "buffer", &address, &h->error), STATUS_OK);
    if (contents)
        assert_int_equal(memory_write(h->memory, address, contents, bytes, &h->error), STATUS_OK);
    return address;
}

static inline void harness_read(struct harness *h, uint64_t address, void *out, uint64_t bytes) {
    assert_int_equal(memory_read(h->memory, out, address, bytes, NULL, &h->error), STATUS_OK);
}

static inline void harness_arg(struct harness *h, uint64_t v) {
    h->args[h->n_args++] = v;
}

/* Launches with the arguments given since the last launch; h->status says how it went. */
static inline void harness_launch(struct harness *h, const char *name, uint32_t blocks,
                                  uint32_t threads) {
    const struct program_function *f = program_find(h->program, name);
    if (!f) fail_msg("no kernel %s", name);
    struct program_info info;
    program_describe(f, &info);
    exec_result_free(&h->result);
    const struct exec_launch l = {.function = f,
                                  .grid = {blocks, 1, 1},
                                  .block = {threads, 1, 1},
                                  .params = h->args,
                                  .params_bytes = info.params_bytes,
                                  .dynamic_shared_bytes = h->shared_bytes,
                                  .check = h->check,
                                  .seed = h->seed,
                                  .threads = h->threads,
                                  .max_instructions = h->max_instructions,
                                  .count_memory = true};
    assert_int_equal(info.params_bytes, 8 * h->n_args);
    h->status = exec_launch(&h->device, h->memory, &l, &h->findings, &h->result, &h->error);
    h->n_args = 0;
}

static inline void harness_stop(struct harness *h) {
    exec_result_free(&h->result);
    program_destroy(h->program);
    memory_destroy(h->memory);
    finding_list_free(&h->findings);
}

/* Fails unless all findings are of that kind and there is at least one. */
static inline void harness_expect(struct harness *h, enum finding_kind kind) {
    if (finding_count(&h->findings, kind) == 0 ||
        finding_total(&h->findings) != finding_count(&h->findings, kind)) {
        finding_print(&h->findings, stderr);
        fail_msg("expected findings '%s' and no others (status %d)", finding_kind_name(kind),
                 (int)h->status);
    }
}

static inline void harness_expect_clean(struct harness *h) {
    if (finding_total(&h->findings) == 0 && h->status == STATUS_OK) return;
    finding_print(&h->findings, stderr);
    fail_msg("expected no finding (status %d: %s)", (int)h->status, h->error.message);
}

#endif
