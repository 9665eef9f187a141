/* Each misuse of the driver API that the software device knows is planted, and must be found; the
 * right use beside it must not. */
#include <pthread.h>

#include "tests/softgpu/with_softgpu.h"

enum { N = 256, BYTES = 4 * N };

struct bench {
    struct softgpu g;
    const struct cuda *cu;
    struct error e;
    struct cu_module *module;
    struct cu_function *add;
    struct cu_stream *stream, *other;
    uint64_t a, b, c;
    uint32_t n;
    void *params[4];
    struct cuda_launch shape;
    float *host; /* pinned */
};

#define OK(call)    assert_int_equal((call), CUDA_SUCCESS)
#define IS(r, call) assert_int_equal((call), (r))

static void bench_open(struct bench *x, const char *device) {
    memset(x, 0, sizeof *x);
    softgpu_open(&x->g, device);
    const struct cuda *cu = x->cu = &x->g.cuda;
    void *host = NULL;
    if (cuda_module_load(cu, SOFTGPU_ADD_PTX, NULL, 0, &x->module, &x->e) != STATUS_OK) {
        fail_msg("%s", x->e.message);
    }
    OK(cu->module_get_function(&x->add, x->module, "add"));
    OK(cu->stream_create_with_priority(&x->stream, CU_STREAM_NON_BLOCKING, 0));
    OK(cu->stream_create_with_priority(&x->other, CU_STREAM_NON_BLOCKING, 0));
    OK(cu->mem_alloc(&x->a, BYTES));
    OK(cu->mem_alloc(&x->b, BYTES));
    OK(cu->mem_alloc(&x->c, BYTES));
    OK(cu->mem_host_alloc(&host, BYTES, 0));
    x->host = host;
    for (int i = 0; i < N; i++) x->host[i] = (float)i;
    x->n = N;
    x->params[0] = &x->a;
    x->params[1] = &x->b;
    x->params[2] = &x->c;
    x->params[3] = &x->n;
    x->shape = (struct cuda_launch){.grid = {2, 1, 1}, .block = {128, 1, 1}};
    OK(cu->memset_d32_async(x->a, 0x3f800000, N, x->stream));
    OK(cu->memset_d32_async(x->b, 0x3f800000, N, x->stream));
    OK(cu->memset_d32_async(x->c, 0, N, x->stream));
    OK(cu->stream_synchronize(x->stream));
    assert_int_equal(x->g.findings_count(-1), 0);
}

static void bench_close(struct bench *x) {
    (void)x->cu->ctx_synchronize();
    x->g.findings_clear();
    softgpu_close(&x->g);
}

/* Exactly this rule was broken, `n` times. */
static void only(struct bench *x, enum host_rule rule, uint64_t n) {
    if (x->g.rule_count(rule) != n || x->g.findings_count(-1) != n) softgpu_print(&x->g);
    assert_int_equal(x->g.rule_count(rule), n);
    assert_int_equal(x->g.findings_count(-1), n);
    x->g.findings_clear();
}

static enum status launch(struct bench *x, struct cu_stream *s) {
    return cuda_launch(x->cu, x->add, &x->shape, x->params, s, &x->e);
}

static void test_dead_handles(void **state) {
    (void)state;
    struct bench x;
    bench_open(&x, "H100");
    const struct cuda *cu = x.cu;
    struct cu_event *event = NULL;
    struct cu_graph *graph = NULL;
    struct cu_graph_exec *exec = NULL;
    struct cu_stream *stream = NULL;
    OK(cu->stream_create_with_priority(&stream, 0, 0));
    OK(cu->stream_destroy(stream));
    IS(CUDA_ERROR_INVALID_HANDLE, cu->stream_synchronize(stream));
    only(&x, RULE_DEAD_HANDLE, 1);
    IS(CUDA_ERROR_INVALID_HANDLE, cu->memset_d8_async(x.a, 0, 1, stream));
    only(&x, RULE_DEAD_HANDLE, 1);
    IS(CUDA_ERROR_INVALID_HANDLE, cu->stream_destroy(stream));
    only(&x, RULE_DEAD_HANDLE, 1);
    assert_int_equal(launch(&x, stream), STATUS_DEVICE);
    only(&x, RULE_DEAD_HANDLE, 1);
    IS(CUDA_ERROR_INVALID_HANDLE, cu->stream_query((struct cu_stream *)&x)); /* no handle at all */
    only(&x, RULE_DEAD_HANDLE, 1);

    OK(cu->event_create(&event, 0));
    OK(cu->event_query(event)); /* never recorded: done */
    IS(CUDA_ERROR_INVALID_HANDLE, cu->stream_query((struct cu_stream *)event)); /* other kind */
    only(&x, RULE_DEAD_HANDLE, 1);
    OK(cu->event_destroy(event));
    IS(CUDA_ERROR_INVALID_HANDLE, cu->event_record(event, x.stream));
    only(&x, RULE_DEAD_HANDLE, 1);
    IS(CUDA_ERROR_INVALID_HANDLE, cu->stream_wait_event(x.stream, event, 0));
    only(&x, RULE_DEAD_HANDLE, 1);

    OK(cu->graph_create(&graph, 0));
    OK(cu->graph_instantiate(&exec, graph, 0));
    OK(cu->graph_destroy(graph));
    OK(cu->graph_launch(exec, x.stream)); /* an exec lives on its own */
    OK(cu->graph_exec_destroy(exec));
    IS(CUDA_ERROR_INVALID_HANDLE, cu->graph_launch(exec, x.stream));
    only(&x, RULE_DEAD_HANDLE, 1);
    IS(CUDA_ERROR_INVALID_HANDLE, cu->graph_instantiate(&exec, graph, 0));
    only(&x, RULE_DEAD_HANDLE, 1);

    OK(cu->stream_synchronize(x.stream));
    OK(cu->module_unload(x.module));
    assert_int_equal(launch(&x, x.stream), STATUS_DEVICE);
    only(&x, RULE_DEAD_HANDLE, 1);
    bench_close(&x);
}

static void *without_context(void *arg) {
    struct bench *x = arg;
    uint64_t p;
    IS(CUDA_ERROR_INVALID_CONTEXT, x->cu->mem_alloc(&p, 4));
    OK(x->cu->ctx_set_current(x->g.context));
    OK(x->cu->mem_alloc(&p, 4));
    OK(x->cu->mem_free(p));
    return NULL;
}

static void test_no_context(void **state) {
    (void)state;
    struct bench x;
    bench_open(&x, "H100");
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, without_context, &x), 0);
    pthread_join(thread, NULL);
    only(&x, RULE_NO_CONTEXT, 1);
    OK(x.cu->ctx_set_current(NULL));
    IS(CUDA_ERROR_INVALID_CONTEXT, x.cu->stream_synchronize(x.stream));
    only(&x, RULE_NO_CONTEXT, 1);
    OK(x.cu->ctx_set_current(x.g.context));
    bench_close(&x);
}

static void test_launch_limits(void **state) {
    (void)state;
    struct bench x;
    bench_open(&x, "T4");
    const struct cuda *cu = x.cu;
    const uint32_t bad_blocks[][3] = {{1025, 1, 1}, {33, 32, 1}, {1, 1, 65}, {0, 1, 1}};
    for (int i = 0; i < 4; i++) {
        memcpy(x.shape.block, bad_blocks[i], sizeof x.shape.block);
        assert_int_equal(launch(&x, x.stream), STATUS_DEVICE);
        only(&x, RULE_LAUNCH_BOUNDS, 1);
    }
    memcpy(x.shape.block, (uint32_t[]){128, 1, 1}, sizeof x.shape.block);
    const uint32_t bad_grids[][3] = {{1u << 31, 1, 1}, {1, 65536, 1}, {1, 1, 0}};
    for (int i = 0; i < 3; i++) {
        memcpy(x.shape.grid, bad_grids[i], sizeof x.shape.grid);
        assert_int_equal(launch(&x, x.stream), STATUS_DEVICE);
        only(&x, RULE_LAUNCH_BOUNDS, 1);
    }
    memcpy(x.shape.grid, (uint32_t[]){2, 1, 1}, sizeof x.shape.grid);

    /* 48 KiB without a word, 64 KiB with one, no more on this chip. */
    x.shape.shared_bytes = 48 << 10;
    assert_int_equal(launch(&x, x.stream), STATUS_OK);
    x.shape.shared_bytes = (48 << 10) + 1;
    assert_int_equal(launch(&x, x.stream), STATUS_DEVICE);
    only(&x, RULE_SHARED_MEMORY, 1);
    OK(cu->func_set_attribute(x.add, CU_FUNCTION_MAX_DYNAMIC_SHARED_BYTES, 64 << 10));
    x.shape.shared_bytes = 64 << 10;
    assert_int_equal(launch(&x, x.stream), STATUS_OK);
    IS(CUDA_ERROR_INVALID_VALUE,
       cu->func_set_attribute(x.add, CU_FUNCTION_MAX_DYNAMIC_SHARED_BYTES, (64 << 10) + 1));
    only(&x, RULE_SHARED_MEMORY, 1);
    x.shape.shared_bytes = 0;

    /* Turing has neither clusters nor dependent launches. */
    x.shape.cluster[0] = 2;
    x.shape.cluster[1] = x.shape.cluster[2] = 1;
    assert_int_equal(launch(&x, x.stream), STATUS_DEVICE);
    only(&x, RULE_LAUNCH_BOUNDS, 1);
    x.shape.cluster[0] = 0;
    x.shape.dependent = true;
    assert_int_equal(launch(&x, x.stream), STATUS_UNSUPPORTED);
    only(&x, RULE_DEPENDENT_LAUNCH, 1);
    x.shape.dependent = false;
    /* A cooperative grid must fit: 40 SMs x 8 blocks. */
    x.shape.cooperative = true;
    x.shape.grid[0] = 320;
    assert_int_equal(launch(&x, x.stream), STATUS_OK);
    x.shape.grid[0] = 321;
    assert_int_equal(launch(&x, x.stream), STATUS_DEVICE);
    only(&x, RULE_LAUNCH_BOUNDS, 1);
    OK(cu->stream_synchronize(x.stream));
    bench_close(&x);
}

static void test_parameters(void **state) {
    (void)state;
    struct bench x;
    bench_open(&x, "H100");
    const struct cuda *cu = x.cu;
    x.params[2] = NULL;
    assert_int_equal(launch(&x, x.stream), STATUS_DEVICE);
    only(&x, RULE_PARAMETERS, 1);
    x.params[2] = (void *)8; /* nothing is there */
    assert_int_equal(launch(&x, x.stream), STATUS_DEVICE);
    only(&x, RULE_PARAMETERS, 1);
    struct cu_launch_config config = {.grid_x = 2,
                                      .grid_y = 1,
                                      .grid_z = 1,
                                      .block_x = 128,
                                      .block_y = 1,
                                      .block_z = 1,
                                      .stream = x.stream};
    IS(CUDA_ERROR_INVALID_VALUE, cu->launch_kernel_ex(&config, x.add, NULL, NULL));
    only(&x, RULE_PARAMETERS, 1);
    /* As one buffer, whose size must be the kernel's: 28 bytes. */
    struct {
        uint64_t p[3];
        uint32_t n, more;
    } buffer = {{x.a, x.b, x.c}, N, 0};
    size_t bytes = 28;
    void *extra[] = {(void *)1, &buffer, (void *)2, &bytes, NULL};
    OK(cu->launch_kernel_ex(&config, x.add, NULL, extra));
    bytes = 32;
    IS(CUDA_ERROR_INVALID_VALUE, cu->launch_kernel_ex(&config, x.add, NULL, extra));
    only(&x, RULE_PARAMETERS, 1);
    bytes = 24;
    IS(CUDA_ERROR_INVALID_VALUE, cu->launch_kernel_ex(&config, x.add, NULL, extra));
    only(&x, RULE_PARAMETERS, 1);
    OK(cu->stream_synchronize(x.stream));
    bench_close(&x);
}

static void test_copy_ranges(void **state) {
    (void)state;
    struct bench x;
    bench_open(&x, "H100");
    const struct cuda *cu = x.cu;
    IS(CUDA_ERROR_INVALID_VALUE, cu->memcpy_htod_async(x.a + 4, x.host, BYTES, x.stream));
    only(&x, RULE_COPY_RANGE, 1);
    IS(CUDA_ERROR_INVALID_VALUE, cu->memcpy_dtoh_async(x.host, x.a + BYTES, 1, x.stream));
    only(&x, RULE_COPY_RANGE, 1);
    IS(CUDA_ERROR_INVALID_VALUE, cu->memcpy_dtod_async(x.a, 0x1234, 4, x.stream));
    only(&x, RULE_COPY_RANGE, 1);
    IS(CUDA_ERROR_INVALID_VALUE, cu->memset_d32_async(x.a + 2, 0, 1, x.stream));
    only(&x, RULE_COPY_RANGE, 1);
    IS(CUDA_ERROR_INVALID_VALUE, cu->memset_d8_async(x.a, 0, BYTES + 1, x.stream));
    only(&x, RULE_COPY_RANGE, 1);
    IS(CUDA_ERROR_INVALID_VALUE, cu->memcpy_htod_async(x.a, (void *)64, 4, x.stream));
    only(&x, RULE_COPY_RANGE, 1);
    OK(cu->memcpy_htod_async(x.a, x.host, 0, x.stream));

    /* Bytes that nobody wrote. */
    uint64_t fresh;
    OK(cu->mem_alloc(&fresh, BYTES));
    OK(cu->memset_d8_async(fresh, 0, BYTES - 3, x.stream));
    OK(cu->memcpy_dtoh_async(x.host, fresh, BYTES - 3, x.stream));
    OK(cu->stream_synchronize(x.stream));
    assert_int_equal(x.g.findings_count(-1), 0);
    OK(cu->memcpy_dtoh_async(x.host, fresh, BYTES, x.stream));
    OK(cu->stream_synchronize(x.stream));
    struct finding f;
    assert_true(x.g.finding(0, &f));
    assert_int_equal(f.kind, FINDING_UNDEFINED);
    assert_non_null(strstr(f.text, "read 3 bytes that nobody wrote"));
    only(&x, RULE_UNDEFINED_COPY, 1);
    bench_close(&x);
}

static void test_source_changed(void **state) {
    (void)state;
    struct bench x;
    bench_open(&x, "H100");
    const struct cuda *cu = x.cu;
    OK(cu->memcpy_htod_async(x.a, x.host, BYTES, x.stream));
    OK(cu->stream_synchronize(x.stream));
    x.host[7] = 70; /* it was waited for */
    assert_int_equal(x.g.findings_count(-1), 0);
    OK(cu->memcpy_htod_async(x.a, x.host, BYTES, x.stream));
    x.host[7] = 71;
    OK(cu->stream_synchronize(x.stream));
    /* The copy came late and took the new value. */
    float got = 0;
    OK(cu->memcpy_dtoh_async(&got, x.a + 28, 4, x.stream));
    OK(cu->stream_synchronize(x.stream));
    assert_true(got == 71);
    assert_true(x.g.rule_count(RULE_SOURCE_CHANGED) >= 1);
    x.g.findings_clear();

    /* The copy has run, but the host has not heard of it: a query ran it and said "not ready". */
    struct cu_event *event;
    OK(cu->event_create(&event, CU_EVENT_DISABLE_TIMING));
    OK(cu->memcpy_htod_async(x.a, x.host, BYTES, x.stream));
    OK(cu->event_record(event, x.stream));
    IS(CUDA_ERROR_NOT_READY, cu->event_query(event));
    assert_int_equal(x.g.pending(), 1);
    x.host[7] = 72;
    OK(cu->event_query(event));
    struct finding f;
    assert_true(x.g.finding(0, &f));
    assert_non_null(strstr(f.text, "between its copy and the wait"));
    only(&x, RULE_SOURCE_CHANGED, 1);
    /* Changed, copied so, and put back. */
    OK(cu->memcpy_htod_async(x.a, x.host, BYTES, x.stream));
    OK(cu->event_record(event, x.stream));
    x.host[7] = 1;
    IS(CUDA_ERROR_NOT_READY, cu->event_query(event));
    x.host[7] = 72;
    OK(cu->event_synchronize(event));
    only(&x, RULE_SOURCE_CHANGED, 1);
    x.host[7] = 73; /* now it has heard */
    OK(cu->stream_synchronize(x.stream));
    assert_int_equal(x.g.findings_count(-1), 0);

    /* Pageable memory, and gone before the copy. */
    float *pageable = malloc(BYTES);
    assert_non_null(pageable);
    memset(pageable, 0, BYTES);
    OK(cu->memcpy_htod_async(x.a, pageable, BYTES, x.stream));
    pageable[0] = 1;
    OK(cu->stream_synchronize(x.stream));
    assert_true(x.g.rule_count(RULE_SOURCE_CHANGED) >= 1);
    free(pageable);
    bench_close(&x);
}

static void test_overlap(void **state) {
    (void)state;
    struct bench x;
    bench_open(&x, "H100");
    const struct cuda *cu = x.cu;
    struct cu_event *event;
    OK(cu->event_create(&event, CU_EVENT_DISABLE_TIMING));
    /* Ordered by an event: well. */
    OK(cu->memset_d32_async(x.a, 1, N, x.stream));
    OK(cu->event_record(event, x.stream));
    OK(cu->stream_wait_event(x.other, event, 0));
    OK(cu->memcpy_dtod_async(x.b, x.a, BYTES, x.other));
    OK(cu->ctx_synchronize());
    assert_int_equal(x.g.findings_count(-1), 0);
    /* Also when what the event stands for has run, but not all that the host asked about. */
    OK(cu->memset_d32_async(x.a, 1, N, x.stream));
    OK(cu->event_record(event, x.stream));
    OK(cu->memset_d32_async(x.c, 1, N, x.stream));
    IS(CUDA_ERROR_NOT_READY, cu->stream_query(x.stream));
    IS(CUDA_ERROR_NOT_READY, cu->stream_query(x.stream));
    assert_int_equal(x.g.pending(), 1);
    OK(cu->stream_wait_event(x.other, event, 0));
    OK(cu->memcpy_dtod_async(x.b, x.a, BYTES, x.other));
    OK(cu->ctx_synchronize());
    assert_int_equal(x.g.findings_count(-1), 0);
    /* The wait is missing. */
    OK(cu->memset_d32_async(x.a, 2, N, x.stream));
    OK(cu->memcpy_dtod_async(x.b, x.a, BYTES, x.other));
    OK(cu->ctx_synchronize());
    only(&x, RULE_OVERLAP, 1);
    /* Two readers do not mind; neither do neighbours. */
    OK(cu->memcpy_dtod_async(x.b, x.a, BYTES, x.stream));
    OK(cu->memcpy_dtod_async(x.c, x.a, BYTES, x.other));
    OK(cu->ctx_synchronize());
    OK(cu->memset_d32_async(x.a, 1, N / 2, x.stream));
    OK(cu->memset_d32_async(x.a + BYTES / 2, 1, N / 2, x.other));
    OK(cu->ctx_synchronize());
    assert_int_equal(x.g.findings_count(-1), 0);
    /* The event was recorded before the work it should cover. */
    OK(cu->event_record(event, x.stream));
    OK(cu->memset_d32_async(x.a, 3, N, x.stream));
    OK(cu->stream_wait_event(x.other, event, 0));
    OK(cu->memset_d32_async(x.a, 4, N, x.other));
    OK(cu->ctx_synchronize());
    only(&x, RULE_OVERLAP, 1);
    /* The default stream orders itself with blocking streams, not with others. */
    struct cu_stream *blocking;
    OK(cu->stream_create_with_priority(&blocking, 0, 0));
    OK(cu->memset_d32_async(x.a, 5, N, blocking));
    OK(cu->memset_d32_async(x.a, 6, N, NULL));
    OK(cu->memset_d32_async(x.a, 7, N, blocking));
    OK(cu->ctx_synchronize());
    assert_int_equal(x.g.findings_count(-1), 0);
    OK(cu->memset_d32_async(x.a, 5, N, x.stream));
    OK(cu->memset_d32_async(x.a, 6, N, NULL));
    OK(cu->ctx_synchronize());
    only(&x, RULE_OVERLAP, 1);
    /* Two copies to the same host buffer. */
    OK(cu->memcpy_dtoh_async(x.host, x.a, BYTES, x.stream));
    OK(cu->memcpy_dtoh_async(x.host, x.c, 4, x.other));
    OK(cu->ctx_synchronize());
    only(&x, RULE_OVERLAP, 1);
    bench_close(&x);
}

static void test_freed(void **state) {
    (void)state;
    struct bench x;
    bench_open(&x, "H100");
    const struct cuda *cu = x.cu;
    /* While a copy is in flight. */
    OK(cu->memset_d32_async(x.c, 0, N, x.stream));
    OK(cu->mem_free(x.c));
    only(&x, RULE_IN_FLIGHT, 1);
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cu->stream_synchronize(x.stream));
    /* And the device stays lost. */
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cu->mem_free(x.a));
    assert_true(x.g.findings_count(-1) >= 1);
    bench_close(&x);

    bench_open(&x, "H100");
    IS(CUDA_ERROR_INVALID_VALUE, x.cu->mem_free(x.a + 16));
    only(&x, RULE_BAD_FREE, 1);
    OK(x.cu->mem_free(x.a));
    IS(CUDA_ERROR_INVALID_VALUE, x.cu->mem_free(x.a));
    only(&x, RULE_BAD_FREE, 1);
    OK(x.cu->mem_free(0));
    int here = 0;
    IS(CUDA_ERROR_INVALID_VALUE, x.cu->mem_free_host(&here));
    only(&x, RULE_BAD_FREE, 1);
    IS(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, x.cu->mem_host_unregister(x.host));
    only(&x, RULE_BAD_FREE, 1);
    OK(x.cu->mem_host_register(&here, sizeof here, 0));
    IS(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, x.cu->mem_host_register(&here, sizeof here, 0));
    OK(x.cu->mem_host_unregister(&here));
    /* A kernel that comes to memory freed before it ran. */
    OK(x.cu->mem_alloc(&x.a, BYTES));
    OK(x.cu->memset_d32_async(x.a, 0, N, x.stream));
    OK(x.cu->stream_synchronize(x.stream));
    assert_int_equal(launch(&x, x.stream), STATUS_OK);
    OK(x.cu->mem_free(x.a));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, x.cu->stream_synchronize(x.stream));
    assert_true(x.g.findings_count(FINDING_FREED) >= 1);
    bench_close(&x);

    bench_open(&x, "H100");
    assert_int_equal(launch(&x, x.stream), STATUS_OK);
    OK(x.cu->module_unload(x.module));
    only(&x, RULE_IN_FLIGHT, 1);
    OK(x.cu->memcpy_dtoh_async(x.host, x.c, BYTES, x.stream));
    OK(x.cu->mem_free_host(x.host));
    only(&x, RULE_IN_FLIGHT, 1);
    bench_close(&x);
}

static void test_mappings(void **state) {
    (void)state;
    struct bench x;
    bench_open(&x, "H100");
    const struct cuda *cu = x.cu;
    const size_t granule = 2 << 20;
    const struct cu_allocation a = {.type = CU_ALLOCATION_PINNED,
                                    .location = {.type = CU_LOCATION_DEVICE}};
    const struct cu_access access = {.location = a.location, .flags = CU_ACCESS_READ_WRITE};
    uint64_t base, block, small;
    OK(cu->mem_address_reserve(&base, 2 * granule, 0, 0, 0));
    OK(cu->mem_create(&block, granule, &a, 0));
    IS(CUDA_ERROR_INVALID_VALUE, cu->mem_create(&small, 4096, &a, 0));
    IS(CUDA_ERROR_INVALID_VALUE, cu->mem_map(base, 2 * granule, 0, block, 0));
    IS(CUDA_ERROR_INVALID_VALUE, cu->mem_map(base + 4096, granule, 0, block, 0));
    OK(cu->mem_map(base, granule, 0, block, 0));
    IS(CUDA_ERROR_INVALID_VALUE, cu->mem_map(base, granule, 0, block, 0)); /* there already */
    OK(cu->mem_release(block));
    IS(CUDA_ERROR_INVALID_VALUE, cu->mem_release(block));
    only(&x, RULE_DEAD_HANDLE, 1);
    IS(CUDA_ERROR_INVALID_VALUE, cu->mem_address_free(base, 2 * granule)); /* still mapped */
    only(&x, RULE_BAD_FREE, 1);
    OK(cu->mem_set_access(base, granule, &access, 1));
    OK(cu->memset_d8_async(base, 1, granule, x.stream));
    IS(CUDA_ERROR_INVALID_VALUE, cu->memset_d8_async(base, 1, granule + 1, x.stream));
    only(&x, RULE_COPY_RANGE, 1);
    IS(CUDA_ERROR_INVALID_VALUE, cu->mem_unmap(base, granule / 2));
    assert_true(x.g.rule_count(RULE_BAD_FREE) == 1 && x.g.rule_count(RULE_IN_FLIGHT) == 1);
    x.g.findings_clear();
    OK(cu->stream_synchronize(x.stream));
    OK(cu->mem_unmap(base, granule));
    OK(cu->mem_address_free(base, 2 * granule));
    assert_int_equal(x.g.findings_count(-1), 0);
    /* Mapped, but nobody was given access: a kernel may not come in. */
    OK(cu->mem_address_reserve(&base, granule, 0, 0, 0));
    OK(cu->mem_create(&block, granule, &a, 0));
    OK(cu->mem_map(base, granule, 0, block, 0));
    x.c = base;
    assert_int_equal(launch(&x, x.stream), STATUS_OK);
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cu->stream_synchronize(x.stream));
    assert_true(x.g.findings_count(FINDING_ACCESS_RIGHTS) >= 1);
    bench_close(&x);
}

static void calls_driver(void *arg) {
    struct bench *x = arg;
    uint64_t p;
    IS(CUDA_ERROR_NOT_PERMITTED, x->cu->mem_alloc(&p, 4));
}

static void test_callback(void **state) {
    (void)state;
    struct bench x;
    bench_open(&x, "H100");
    OK(x.cu->launch_host_func(x.stream, calls_driver, &x));
    OK(x.cu->stream_synchronize(x.stream));
    only(&x, RULE_CALLBACK, 1);
    bench_close(&x);
}

static void test_left_behind(void **state) {
    (void)state;
    struct bench x;
    bench_open(&x, "H100");
    OK(x.cu->memset_d32_async(x.a, 0, N, x.stream));
    OK(x.cu->device_primary_ctx_release(0));
    only(&x, RULE_IN_FLIGHT, 1);
    IS(CUDA_ERROR_INVALID_CONTEXT, x.cu->stream_synchronize(x.stream));
    IS(CUDA_ERROR_INVALID_CONTEXT, x.cu->device_primary_ctx_release(0));
    /* A new one starts afresh: old handles are dead. */
    OK(x.cu->device_primary_ctx_retain(&x.g.context, 0));
    OK(x.cu->ctx_set_current(x.g.context));
    x.g.findings_clear();
    IS(CUDA_ERROR_INVALID_HANDLE, x.cu->stream_synchronize(x.stream));
    only(&x, RULE_DEAD_HANDLE, 1);
    bench_close(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dead_handles),  cmocka_unit_test(test_no_context),
        cmocka_unit_test(test_launch_limits), cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_copy_ranges),   cmocka_unit_test(test_source_changed),
        cmocka_unit_test(test_overlap),       cmocka_unit_test(test_freed),
        cmocka_unit_test(test_mappings),      cmocka_unit_test(test_callback),
        cmocka_unit_test(test_left_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
