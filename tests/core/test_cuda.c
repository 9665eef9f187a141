/* The driver table: what it refuses and what it says, the nine devices' figures, modules, launches
 * and graphs through its helpers, against the software device. */
#include "tests/softgpu/with_softgpu.h"

static void test_no_driver(void **state) {
    (void)state;
    struct cuda cu;
    struct error e = {0};
    assert_int_equal(cuda_open(&cu, "/nonexistent/libcuda.so.1", &e), STATUS_NOT_FOUND);
    assert_non_null(strstr(e.message, "/nonexistent/libcuda.so.1"));
    assert_null(cu.library);
    assert_null(cu.init);
    /* A library, but not a driver. */
    assert_int_equal(cuda_open(&cu, "libm.so.6", &e), STATUS_UNSUPPORTED);
    assert_non_null(strstr(e.message, "cuGetProcAddress"));
    cuda_close(&cu);
}

static void test_old_driver(void **state) {
    (void)state;
    struct softgpu g;
    softgpu_open(&g, "H100");
    softgpu_close(&g);
    struct cuda cu;
    struct error e = {0};
    setenv("SOFTGPU_DRIVER", "12020", 1);
    g.reset();
    assert_int_equal(cuda_open(&cu, softgpu_path(), &e), STATUS_UNSUPPORTED);
    assert_non_null(strstr(e.message, "(12.2) has no cuGraphAddNode of CUDA 12.3"));
    assert_null(cu.library);
    setenv("SOFTGPU_DRIVER", "12030", 1);
    g.reset();
    assert_int_equal(cuda_open(&cu, softgpu_path(), &e), STATUS_OK);
    assert_int_equal(cu.driver_version, 12030);
#define X(field, symbol, version, args) assert_non_null(cu.field);
    CUDA_ENTRY_LIST(X)
#undef X
    cuda_close(&cu);
    unsetenv("SOFTGPU_DRIVER");
}

static void test_devices(void **state) {
    (void)state;
    static const struct {
        const char *key;
        uint32_t cc, n_sms, optin_kib;
        double gb_per_s;
        uint64_t gb;
    } published[] = {
        {"T4", 75, 40, 64, 320, 16},        {"A100", 80, 108, 163, 1555, 40},
        {"L4", 89, 58, 99, 300, 24},        {"L40S", 89, 142, 99, 864, 48},
        {"RTX4090", 89, 128, 99, 1008, 24}, {"RTX5090", 120, 170, 99, 1792, 32},
        {"H100", 90, 132, 227, 3350, 80},   {"H200", 90, 132, 227, 4800, 141},
        {"B200", 100, 148, 227, 8000, 180},
    };
    for (size_t i = 0; i < sizeof published / sizeof published[0]; i++) {
        struct softgpu g;
        softgpu_open(&g, published[i].key);
        const struct cuda_device *d = &g.device;
        assert_int_equal(d->cc, published[i].cc);
        assert_int_equal(d->n_sms, published[i].n_sms);
        assert_int_equal(d->shared_bytes_per_block_optin, published[i].optin_kib << 10);
        assert_int_equal(d->registers_per_sm, 65536);
        const double bandwidth = 2e3 * d->memory_clock_khz * (d->memory_bus_bits / 8) / 1e9;
        assert_true(bandwidth > 0.99 * published[i].gb_per_s);
        assert_true(bandwidth < 1.01 * published[i].gb_per_s);
        assert_true(d->total_bytes / 1000000000 == published[i].gb);
        assert_true(d->virtual_memory);
        assert_int_equal(d->cluster_launch, d->cc >= 90);
        assert_true(d->shared_bytes_per_sm >=
                    d->shared_bytes_per_block_optin + d->reserved_shared_bytes_per_block);
        assert_non_null(strstr(d->name, "(software)"));
        struct cuda_device none;
        struct error e = {0};
        assert_int_equal(cuda_device_read(&g.cuda, 1, &none, &e), STATUS_INVALID);
        assert_int_equal(cuda_device_read(&g.cuda, -1, &none, &e), STATUS_INVALID);
        softgpu_close(&g);
    }
    /* A slice counts as itself. */
    struct softgpu g;
    setenv("SOFTGPU_SMS", "16", 1);
    softgpu_open(&g, "A100");
    assert_int_equal(g.device.n_sms, 16);
    softgpu_close(&g);
    unsetenv("SOFTGPU_SMS");
}

static void test_status(void **state) {
    (void)state;
    struct softgpu g;
    softgpu_open(&g, "H100");
    static const struct {
        enum cu_result r;
        enum status s;
        bool lost;
    } cases[] = {
        {CUDA_ERROR_OUT_OF_MEMORY, STATUS_NO_MEMORY, false},
        {CUDA_ERROR_NOT_READY, STATUS_AGAIN, false},
        {CUDA_ERROR_NO_BINARY_FOR_GPU, STATUS_UNSUPPORTED, false},
        {CUDA_ERROR_UNSUPPORTED_PTX_VERSION, STATUS_UNSUPPORTED, false},
        {CUDA_ERROR_INVALID_PTX, STATUS_CORRUPT, false},
        {CUDA_ERROR_NOT_FOUND, STATUS_NOT_FOUND, false},
        {CUDA_ERROR_NO_DEVICE, STATUS_NOT_FOUND, false},
        {CUDA_ERROR_INVALID_VALUE, STATUS_DEVICE, false},
        {CUDA_ERROR_ILLEGAL_ADDRESS, STATUS_DEVICE, true},
        {CUDA_ERROR_ECC_UNCORRECTABLE, STATUS_DEVICE, true},
        {CUDA_ERROR_LAUNCH_FAILED, STATUS_DEVICE, true},
        {(enum cu_result)12345, STATUS_DEVICE, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error e = {0};
        assert_int_equal(cuda_status(&g.cuda, cases[i].r, "call", &e), cases[i].s);
        assert_int_equal(cuda_is_lost(cases[i].r), cases[i].lost);
        assert_non_null(strstr(e.message, "CUDA call: "));
        assert_non_null(strstr(e.message, cuda_result_name(&g.cuda, cases[i].r)));
    }
    assert_string_equal(cuda_result_name(&g.cuda, CUDA_ERROR_ILLEGAL_ADDRESS),
                        "CUDA_ERROR_ILLEGAL_ADDRESS");
    /* Without a driver the names are our own. */
    const struct cuda none = {0};
    assert_string_equal(cuda_result_name(&none, CUDA_ERROR_NO_DEVICE), "CUDA_ERROR_NO_DEVICE");
    assert_int_equal(cuda_status(&none, CUDA_SUCCESS, "call", NULL), STATUS_OK);
    softgpu_close(&g);
}

static void test_modules(void **state) {
    (void)state;
    struct softgpu g;
    softgpu_open(&g, "H100");
    const struct cuda *cu = &g.cuda;
    struct error e = {0};
    struct cu_module *m = NULL;
    char log[256];
    assert_int_equal(cuda_module_load(cu,
                                      "\x7f"
                                      "ELF and so on",
                                      log, sizeof log, &m, &e),
                     STATUS_UNSUPPORTED);
    assert_null(m);
    assert_non_null(strstr(e.message, "CUDA_ERROR_NO_BINARY_FOR_GPU"));
    assert_int_equal(cuda_module_load(cu, "this is no PTX", log, sizeof log, &m, &e),
                     STATUS_CORRUPT);
    assert_true(log[0] != '\0');
    assert_non_null(strstr(e.message, "CUDA_ERROR_INVALID_PTX"));
    assert_int_equal(
        cuda_module_load(cu, ".version 9.9\n.target sm_75\n.address_size 64\n", NULL, 0, &m, &e),
        STATUS_UNSUPPORTED);
    assert_non_null(strstr(e.message, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"));
    assert_int_equal(
        cuda_module_load(cu, ".version 8.8\n.target sm_120\n.address_size 64\n", NULL, 0, &m, &e),
        STATUS_UNSUPPORTED);
    assert_non_null(strstr(e.message, "CUDA_ERROR_NO_BINARY_FOR_GPU"));

    assert_int_equal(cuda_module_load(cu, SOFTGPU_ADD_PTX, log, sizeof log, &m, &e), STATUS_OK);
    assert_string_equal(log, "");
    struct cu_function *f = NULL, *f2 = NULL;
    assert_int_equal(CUDA_CALL(cu, &e, module_get_function, &f, m, "sub"), STATUS_NOT_FOUND);
    assert_null(f);
    assert_int_equal(CUDA_CALL(cu, &e, module_get_function, &f, m, "add"), STATUS_OK);
    assert_int_equal(CUDA_CALL(cu, &e, module_get_function, &f2, m, "add"), STATUS_OK);
    assert_ptr_equal(f, f2);
    int registers = 0, local = -1, shared = -1, blocks = 0;
    assert_int_equal(CUDA_CALL(cu, &e, func_get_attribute, &registers, CU_FUNCTION_REGISTERS, f),
                     STATUS_OK);
    assert_in_range(registers, 16, 64);
    assert_int_equal(CUDA_CALL(cu, &e, func_get_attribute, &local, CU_FUNCTION_LOCAL_BYTES, f),
                     STATUS_OK);
    assert_int_equal(CUDA_CALL(cu, &e, func_get_attribute, &shared, CU_FUNCTION_SHARED_BYTES, f),
                     STATUS_OK);
    assert_int_equal(local, 0);
    assert_int_equal(shared, 0);
    assert_int_equal(
        CUDA_CALL(cu, &e, occupancy_max_active_blocks_per_multiprocessor, &blocks, f, 256, 0),
        STATUS_OK);
    assert_int_equal(blocks, 8); /* 2,048 threads */
    assert_int_equal(
        CUDA_CALL(cu, &e, func_set_attribute, f, CU_FUNCTION_MAX_DYNAMIC_SHARED_BYTES, 100 << 10),
        STATUS_OK);
    assert_int_equal(CUDA_CALL(cu, &e, occupancy_max_active_blocks_per_multiprocessor, &blocks, f,
                               256, 100 << 10),
                     STATUS_OK);
    assert_int_equal(blocks, 2); /* 228 KiB */
    assert_int_equal(CUDA_CALL(cu, &e, module_unload, m), STATUS_OK);
    softgpu_close(&g);
}

enum { N = 1000, BYTES = N * 4 };

struct buffers {
    uint64_t a, b, c;
    float *host; /* pinned: [3 x N] */
    struct cu_module *module;
    struct cu_function *add;
    struct cu_stream *stream;
};

static void make_buffers(const struct cuda *cu, struct buffers *x) {
    struct error e = {0};
    void *host = NULL;
    assert_int_equal(CUDA_CALL(cu, &e, mem_alloc, &x->a, BYTES), STATUS_OK);
    assert_int_equal(CUDA_CALL(cu, &e, mem_alloc, &x->b, BYTES), STATUS_OK);
    assert_int_equal(CUDA_CALL(cu, &e, mem_alloc, &x->c, BYTES), STATUS_OK);
    assert_int_equal(CUDA_CALL(cu, &e, mem_host_alloc, &host, 3 * BYTES, 0), STATUS_OK);
    x->host = host;
    assert_int_equal(cuda_module_load(cu, SOFTGPU_ADD_PTX, NULL, 0, &x->module, &e), STATUS_OK);
    assert_int_equal(CUDA_CALL(cu, &e, module_get_function, &x->add, x->module, "add"), STATUS_OK);
    int least = 1, greatest = 1;
    assert_int_equal(CUDA_CALL(cu, &e, ctx_get_stream_priority_range, &least, &greatest),
                     STATUS_OK);
    assert_true(greatest <= least);
    assert_int_equal(CUDA_CALL(cu, &e, stream_create_with_priority, &x->stream,
                               CU_STREAM_NON_BLOCKING, greatest),
                     STATUS_OK);
    for (int i = 0; i < 2 * N; i++) x->host[i] = (float)i * 0.5f;
}

static void free_buffers(const struct cuda *cu, struct buffers *x) {
    struct error e = {0};
    assert_int_equal(CUDA_CALL(cu, &e, stream_destroy, x->stream), STATUS_OK);
    assert_int_equal(CUDA_CALL(cu, &e, module_unload, x->module), STATUS_OK);
    assert_int_equal(CUDA_CALL(cu, &e, mem_free_host, x->host), STATUS_OK);
    assert_int_equal(CUDA_CALL(cu, &e, mem_free, x->a), STATUS_OK);
    assert_int_equal(CUDA_CALL(cu, &e, mem_free, x->b), STATUS_OK);
    assert_int_equal(CUDA_CALL(cu, &e, mem_free, x->c), STATUS_OK);
}

static void test_launch(void **state) {
    (void)state;
    struct softgpu g;
    softgpu_open(&g, "H100");
    const struct cuda *cu = &g.cuda;
    struct error e = {0};
    struct buffers x;
    make_buffers(cu, &x);
    uint32_t n = N;
    void *params[] = {&x.a, &x.b, &x.c, &n};
    struct cuda_launch l = {.grid = {(N + 127) / 128, 1, 1}, .block = {128, 1, 1}};
    assert_int_equal(CUDA_CALL(cu, &e, memcpy_htod_async, x.a, x.host, BYTES, x.stream), STATUS_OK);
    assert_int_equal(CUDA_CALL(cu, &e, memcpy_htod_async, x.b, x.host + N, BYTES, x.stream),
                     STATUS_OK);
    assert_int_equal(cuda_launch(cu, x.add, &l, params, x.stream, &e), STATUS_OK);
    n = 0; /* parameters were copied */
    assert_int_equal(CUDA_CALL(cu, &e, memcpy_dtoh_async, x.host + 2 * N, x.c, BYTES, x.stream),
                     STATUS_OK);
    assert_int_equal(CUDA_CALL(cu, &e, stream_synchronize, x.stream), STATUS_OK);
    for (int i = 0; i < N; i++) {
        assert_true(x.host[2 * N + i] == x.host[i] + x.host[N + i]);
    }
    l.dependent = true; /* known on this chip */
    n = N;
    assert_int_equal(cuda_launch(cu, x.add, &l, params, x.stream, &e), STATUS_OK);
    l.dependent = false;
    l.cluster[0] = 2;
    l.cluster[1] = l.cluster[2] = 1;
    assert_int_equal(cuda_launch(cu, x.add, &l, params, x.stream, &e), STATUS_OK);
    assert_int_equal(CUDA_CALL(cu, &e, ctx_synchronize), STATUS_OK);
    assert_int_equal(g.counter("add", "launches"), 3);
    free_buffers(cu, &x);
    softgpu_close(&g);
}

static void count_call(void *arg) {
    int *calls = arg;
    (*calls)++;
}

static void test_graph(void **state) {
    (void)state;
    struct softgpu g;
    softgpu_open(&g, "H100");
    const struct cuda *cu = &g.cuda;
    struct error e = {0};
    struct buffers x;
    make_buffers(cu, &x);
    int calls = 0;
    uint32_t n = N;
    void *params[] = {&x.a, &x.b, &x.c, &n};
    void *again[] = {&x.c, &x.c, &x.a, &n};
    const struct cuda_launch l = {.grid = {(N + 127) / 128, 1, 1}, .block = {128, 1, 1}};
    struct cu_graph *graph = NULL;
    struct cu_graph_exec *exec = NULL;
    struct cu_graph_node *to_a, *fill, *first, *second, *back, *last;
    const struct cuda_copy in = {.dst_device = x.a, .src_host = x.host, .bytes = BYTES};
    const struct cuda_copy out = {.dst_host = x.host + 2 * N, .src_device = x.a, .bytes = BYTES};
    assert_int_equal(CUDA_CALL(cu, &e, graph_create, &graph, 0), STATUS_OK);
    assert_int_equal(cuda_graph_add_copy(cu, graph, g.context, &in, NULL, 0, &to_a, &e), STATUS_OK);
    /* 1.0f everywhere */
    assert_int_equal(
        cuda_graph_add_fill(cu, graph, g.context, x.b, 0x3f800000, BYTES, NULL, 0, &fill, &e),
        STATUS_OK);
    const struct cuda_after both[] = {{to_a, false}, {fill, false}};
    assert_int_equal(cuda_graph_add_kernel(cu, graph, x.add, &l, params, both, 2, &first, &e),
                     STATUS_OK);
    const struct cuda_after one[] = {{first, false}};
    assert_int_equal(cuda_graph_add_kernel(cu, graph, x.add, &l, again, one, 1, &second, &e),
                     STATUS_OK);
    const struct cuda_after two[] = {{second, false}};
    assert_int_equal(cuda_graph_add_copy(cu, graph, g.context, &out, two, 1, &back, &e), STATUS_OK);
    const struct cuda_after three[] = {{back, false}};
    assert_int_equal(cuda_graph_add_host(cu, graph, count_call, &calls, three, 1, &last, &e),
                     STATUS_OK);
    /* A programmatic edge from a copy cannot be. */
    const struct cuda_after wrong[] = {{back, true}};
    struct cu_graph_node *none;
    assert_int_equal(cuda_graph_add_kernel(cu, graph, x.add, &l, params, wrong, 1, &none, &e),
                     STATUS_DEVICE);
    assert_null(none);
    g.findings_clear();
    assert_int_equal(CUDA_CALL(cu, &e, graph_instantiate, &exec, graph, 0), STATUS_OK);
    assert_int_equal(CUDA_CALL(cu, &e, graph_upload, exec, x.stream), STATUS_OK);
    for (int turn = 1; turn <= 2; turn++) {
        assert_int_equal(CUDA_CALL(cu, &e, graph_launch, exec, x.stream), STATUS_OK);
        assert_int_equal(CUDA_CALL(cu, &e, stream_synchronize, x.stream), STATUS_OK);
        for (int i = 0; i < N; i++) {
            assert_true(x.host[2 * N + i] == 2 * (x.host[i] + 1));
        }
        assert_int_equal(calls, turn);
    }
    /* Half of it only, and from other places. */
    n = N / 2;
    void *other[] = {&x.c, &x.b, &x.a, &n};
    assert_int_equal(cuda_graph_set_kernel(cu, exec, second, x.add, &l, other, &e), STATUS_OK);
    assert_int_equal(CUDA_CALL(cu, &e, graph_launch, exec, x.stream), STATUS_OK);
    assert_int_equal(CUDA_CALL(cu, &e, stream_synchronize, x.stream), STATUS_OK);
    for (int i = 0; i < N; i++) {
        assert_true(x.host[2 * N + i] == (i < N / 2 ? x.host[i] + 2 : x.host[i]));
    }
    assert_int_equal(CUDA_CALL(cu, &e, graph_exec_destroy, exec), STATUS_OK);
    assert_int_equal(CUDA_CALL(cu, &e, graph_destroy, graph), STATUS_OK);
    free_buffers(cu, &x);
    softgpu_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_driver), cmocka_unit_test(test_old_driver),
        cmocka_unit_test(test_devices),   cmocka_unit_test(test_status),
        cmocka_unit_test(test_modules),   cmocka_unit_test(test_launch),
        cmocka_unit_test(test_graph),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
