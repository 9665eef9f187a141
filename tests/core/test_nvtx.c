/* Ranges with and without a profiler (tests/core/nvtx_tool.c stands in for one). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/nvtx.h"
#include "tests/core/nvtx_tool.h"

static void test_nobody(void **state) {
    (void)state;
    struct nvtx n;
    struct error e = {0};
    assert_int_equal(nvtx_open(&n, NULL, "laconic", &e), STATUS_OK);
    nvtx_push(&n, "step", 1, 2);
    nvtx_pop(&n);
    nvtx_close(&n);

    assert_int_equal(nvtx_open(&n, "/nonexistent/tool.so", "laconic", &e), STATUS_NOT_FOUND);
    assert_non_null(strstr(e.message, "/nonexistent/tool.so"));
    nvtx_push(&n, "step", 1, 2);
    nvtx_pop(&n);
    assert_int_equal(nvtx_open(&n, "libm.so.6", "laconic", &e), STATUS_INVALID);
    assert_null(n.library);
    struct tool_log *log = nvtx_tool(TOOL_REFUSES);
    assert_int_equal(nvtx_open(&n, nvtx_tool_path(), "laconic", &e), STATUS_INVALID);
    nvtx_push(&n, "step", 1, 2);
    nvtx_pop(&n);
    assert_int_equal(log->n, 0);
    log = nvtx_tool(TOOL_DEAF);
    assert_int_equal(nvtx_open(&n, nvtx_tool_path(), "laconic", &e), STATUS_OK);
    nvtx_push(&n, "step", 1, 2);
    nvtx_pop(&n);
    assert_int_equal(log->n, 0);
    nvtx_close(&n);
}

static void test_structures(void **state) {
    (void)state;
    struct tool_log *log = nvtx_tool(TOOL_STRUCTURES);
    struct nvtx n, second;
    struct error e = {0};
    assert_int_equal(nvtx_open(&n, nvtx_tool_path(), "laconic", &e), STATUS_OK);
    assert_string_equal(log->domain, "laconic");
    assert_int_equal(log->version, 3);
    assert_int_equal(nvtx_open(&second, nvtx_tool_path(), "laconic", &e), STATUS_FULL);
    nvtx_push(&n, "decode", 0, 0);
    nvtx_push(&n, "lac_gemv_q4_1_1536_576_sm90", 552960, 1769472);
    nvtx_pop(&n);
    nvtx_pop(&n);
    assert_int_equal(log->n, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(log->events[i].push, i < 2);
        assert_true(log->events[i].domain_matches);
    }
    assert_string_equal(log->events[0].name, "decode");
    const struct tool_event *k = &log->events[1];
    assert_string_equal(k->name, "lac_gemv_q4_1_1536_576_sm90");
    assert_true(k->structured && k->bytes == 552960 && k->flops == 1769472);
    char longer[2 * NVTX_NAME_BYTES];
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    nvtx_push(&n, longer, UINT64_MAX, UINT64_MAX);
    assert_int_equal(strlen(log->events[4].name), NVTX_NAME_BYTES - 1);
    assert_true(log->events[4].bytes == UINT64_MAX);
    nvtx_close(&n);
    assert_true(log->domain_destroyed);
    /* Closed: another may attach. */
    assert_int_equal(nvtx_open(&second, nvtx_tool_path(), "laconic", &e), STATUS_OK);
    nvtx_close(&second);
}

static void test_plain(void **state) {
    (void)state;
    struct tool_log *log = nvtx_tool(TOOL_PLAIN);
    struct nvtx n;
    struct error e = {0};
    assert_int_equal(nvtx_open(&n, nvtx_tool_path(), "laconic", &e), STATUS_OK);
    nvtx_push(&n, "attention", 4096, 123);
    nvtx_pop(&n);
    nvtx_push(&n, "copy", 77, 0);
    nvtx_pop(&n);
    assert_int_equal(log->n, 4);
    assert_false(log->events[0].structured);
    assert_true(log->events[0].payload == 4096);
    assert_string_equal(log->events[0].name, "attention (123 flops)");
    assert_string_equal(log->events[2].name, "copy");
    assert_true(log->events[2].payload == 77);
    nvtx_close(&n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nobody),
        cmocka_unit_test(test_structures),
        cmocka_unit_test(test_plain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
