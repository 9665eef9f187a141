/* Late execution: work runs when somebody waits, and no earlier; any order that the API allows is
 * taken by some seed and gives the same bits; a missing wait shows. Host functions, faults, the
 * report. */
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include "core/rng.h"
#include "tests/softgpu/with_softgpu.h"

#define OK(call)    assert_int_equal((call), CUDA_SUCCESS)
#define IS(r, call) assert_int_equal((call), (r))

enum { N = 64, BYTES = 4 * N };

struct bench {
    struct softgpu g;
    const struct cuda *cu;
    struct cu_function *add;
    struct cu_stream *stream, *other;
    uint64_t a, b, c;
    float *host; /* pinned, [2 x N] */
};

static void bench_open(struct bench *x, uint64_t seed) {
    memset(x, 0, sizeof *x);
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
    setenv("SOFTGPU_SEED", text, 1);
    softgpu_open(&x->g, "H100");
    unsetenv("SOFTGPU_SEED");
    const struct cuda *cu = x->cu = &x->g.cuda;
    struct error e = {0};
    struct cu_module *module;
    void *host = NULL;
    if (cuda_module_load(cu, SOFTGPU_ADD_PTX, NULL, 0, &module, &e) != STATUS_OK) {
        fail_msg("%s", e.message);
    }
    OK(cu->module_get_function(&x->add, module, "add"));
    OK(cu->stream_create_with_priority(&x->stream, CU_STREAM_NON_BLOCKING, 0));
    OK(cu->stream_create_with_priority(&x->other, CU_STREAM_NON_BLOCKING, 0));
    OK(cu->mem_alloc(&x->a, BYTES));
    OK(cu->mem_alloc(&x->b, BYTES));
    OK(cu->mem_alloc(&x->c, BYTES));
    OK(cu->mem_host_alloc(&host, 2 * BYTES, 0));
    x->host = host;
    for (int i = 0; i < N; i++) x->host[i] = (float)i;
    memset(x->host + N, 0, BYTES);
}

static void add_async(struct bench *x, uint64_t a, uint64_t b, uint64_t c, struct cu_stream *s) {
    uint32_t n = N;
    void *params[] = {&a, &b, &c, &n};
    const struct cuda_launch l = {.grid = {1, 1, 1}, .block = {N, 1, 1}};
    struct error e = {0};
    if (cuda_launch(x->cu, x->add, &l, params, s, &e) != STATUS_OK) fail_msg("%s", e.message);
}

/* a = host; b = a + a; host behind = b */
static void chain(struct bench *x) {
    OK(x->cu->memcpy_htod_async(x->a, x->host, BYTES, x->stream));
    add_async(x, x->a, x->a, x->b, x->stream);
    OK(x->cu->memcpy_dtoh_async(x->host + N, x->b, BYTES, x->stream));
}

static void check_chain(const struct bench *x) {
    for (int i = 0; i < N; i++) assert_true(x->host[N + i] == (float)(2 * i));
}

static void test_waits_show(void **state) {
    (void)state;
    struct bench x;
    bench_open(&x, 0);
    chain(&x);
    /* Nothing has run, and whoever looks without waiting sees what cannot be mistaken. */
    assert_int_equal(x.g.pending(), 3);
    const uint8_t *bytes = (const uint8_t *)(x.host + N);
    for (int i = 0; i < BYTES; i++) assert_int_equal(bytes[i], 0xdb);
    /* Waiting for something else does not help. */
    OK(x.cu->stream_synchronize(x.other));
    OK(x.cu->stream_synchronize(NULL)); /* the streams are not blocking ones */
    assert_int_equal(x.g.pending(), 3);
    assert_int_equal(bytes[0], 0xdb);
    OK(x.cu->stream_synchronize(x.stream));
    assert_int_equal(x.g.pending(), 0);
    check_chain(&x);
    softgpu_close(&x.g);
}

static void test_stale(void **state) {
    (void)state;
    struct bench x;
    bench_open(&x, 0);
    struct cu_event *event;
    OK(x.cu->event_create(&event, CU_EVENT_DISABLE_TIMING));
    OK(x.cu->memset_d32_async(x.a, 0x3f800000, N, x.stream)); /* 1.0f */
    OK(x.cu->stream_synchronize(x.stream));
    for (int with_event = 0; with_event < 2; with_event++) {
        /* One stream writes 2.0f, another adds: with the event 4, without it the stale 2. */
        OK(x.cu->memset_d32_async(x.a, 0x3f800000, N, x.other));
        OK(x.cu->stream_synchronize(x.other));
        OK(x.cu->memset_d32_async(x.a, 0x40000000, N, x.stream));
        OK(x.cu->event_record(event, x.stream));
        if (with_event) OK(x.cu->stream_wait_event(x.other, event, 0));
        add_async(&x, x.a, x.a, x.b, x.other);
        OK(x.cu->memcpy_dtoh_async(x.host, x.b, BYTES, x.other));
        OK(x.cu->stream_synchronize(x.other));
        assert_true(x.host[5] == (with_event ? 4.0f : 2.0f));
        OK(x.cu->stream_synchronize(x.stream));
        /* And the checker says so: the fill may run at any time, the sums are of nothing. */
        assert_int_equal(x.g.findings_count(FINDING_UNDEFINED) > 0, !with_event);
        x.g.findings_clear();
    }
    softgpu_close(&x.g);
}

static void test_polling_ends(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 10; seed++) {
        struct bench x;
        bench_open(&x, seed);
        struct cu_event *event;
        OK(x.cu->event_create(&event, 0));
        chain(&x);
        OK(x.cu->event_record(event, x.stream));
        enum cu_result r;
        int n = 0;
        while ((r = x.cu->event_query(event)) == CUDA_ERROR_NOT_READY && n++ < 1000) {
        }
        OK(r);
        assert_true(n > 0 || seed != 0);
        check_chain(&x);
        OK(x.cu->stream_query(x.stream));
        float ms = -1;
        OK(x.cu->event_elapsed_time(&ms, event, event));
        assert_true(ms == 0);
        softgpu_close(&x.g);
    }
}

struct signal {
    int fd;
    const float *seen;
    float value;
};

static void on_done(void *arg) {
    struct signal *s = arg;
    s->value = *s->seen;
    assert_int_equal(eventfd_write(s->fd, 1), 0);
}

/* As the server waits: no call of the driver, an eventfd. Twice as calls, then in a graph. */
static void test_host_function(void **state) {
    (void)state;
    struct bench x;
    bench_open(&x, 0);
    struct signal done = {.fd = eventfd(0, EFD_CLOEXEC), .seen = x.host + N + 3};
    assert_true(done.fd >= 0);
    struct cu_graph *graph;
    struct cu_graph_exec *exec;
    struct cu_graph_node *back, *host;
    struct error e = {0};
    const struct cuda_copy out = {.dst_host = x.host + N, .src_device = x.b, .bytes = BYTES};
    OK(x.cu->graph_create(&graph, 0));
    assert_int_equal(cuda_graph_add_copy(x.cu, graph, x.g.context, &out, NULL, 0, &back, &e),
                     STATUS_OK);
    const struct cuda_after after = {back, false};
    assert_int_equal(cuda_graph_add_host(x.cu, graph, on_done, &done, &after, 1, &host, &e),
                     STATUS_OK);
    OK(x.cu->graph_instantiate(&exec, graph, 0));
    for (int turn = 0; turn < 3; turn++) {
        chain(&x);
        if (turn < 2)
            OK(x.cu->launch_host_func(x.stream, on_done, &done));
        else
            OK(x.cu->graph_launch(exec, x.stream));
        /* Behind it: stays where it is. */
        OK(x.cu->memset_d32_async(x.c, 0, N, x.other));
        struct pollfd p = {.fd = done.fd, .events = POLLIN};
        assert_int_equal(poll(&p, 1, 10000), 1);
        eventfd_t count = 0;
        assert_int_equal(eventfd_read(done.fd, &count), 0);
        assert_int_equal(count, 1);
        assert_true(done.value == 6);
        check_chain(&x);
        x.host[0] = 0; /* the source may be written: the function has told us */
        OK(x.cu->stream_synchronize(x.stream));
        assert_int_equal(x.g.pending(), 1);
        OK(x.cu->stream_synchronize(x.other));
    }
    close(done.fd);
    softgpu_close(&x.g);
}

/* A graph does not run beside itself, and each launch reads its sources anew. */
static void test_graph_again(void **state) {
    (void)state;
    struct bench x;
    bench_open(&x, 0);
    struct cu_graph *graph;
    struct cu_graph_exec *exec;
    struct cu_graph_node *in, *out;
    struct error e = {0};
    const struct cuda_copy c1 = {.dst_device = x.a, .src_host = x.host, .bytes = 4};
    const struct cuda_copy c2 = {.dst_host = x.host + N, .src_device = x.a, .bytes = 4};
    OK(x.cu->graph_create(&graph, 0));
    assert_int_equal(cuda_graph_add_copy(x.cu, graph, x.g.context, &c1, NULL, 0, &in, &e),
                     STATUS_OK);
    const struct cuda_after after = {in, false};
    assert_int_equal(cuda_graph_add_copy(x.cu, graph, x.g.context, &c2, &after, 1, &out, &e),
                     STATUS_OK);
    OK(x.cu->graph_instantiate(&exec, graph, 0));
    OK(x.cu->graph_launch(exec, x.stream));
    OK(x.cu->graph_launch(exec, x.other));
    OK(x.cu->stream_synchronize(x.other));
    assert_int_equal(x.g.pending(), 0); /* the first was ahead of the second */
    assert_int_equal(x.g.findings_count(-1), 0);
    x.host[0] = 42;
    OK(x.cu->graph_launch(exec, x.stream));
    OK(x.cu->stream_synchronize(x.stream));
    assert_true(x.host[N] == 42);
    /* Between launch and wait the source is the device's. */
    OK(x.cu->graph_launch(exec, x.stream));
    x.host[0] = 43;
    OK(x.cu->stream_synchronize(x.stream));
    assert_true(x.g.rule_count(RULE_SOURCE_CHANGED) > 0);
    x.g.findings_clear();
    softgpu_close(&x.g);
}

enum { STREAMS = 3, BUFFERS = 4, STEPS = 60 };

struct step {
    int kind; /* 0 fill, 1 copy, 2 to the host */
    uint32_t stream, from, to;
    uint32_t value;
};

/* Random fills, copies and reads on three streams. With `ordered`, each waits for the events of
 * what it conflicts with; the results are then those of running one after another. Without, the
 * first conflict between streams must be reported. */
static void random_program(uint64_t program, uint64_t seed, bool ordered) {
    struct bench x;
    bench_open(&x, seed);
    const struct cuda *cu = x.cu;
    struct cu_stream *streams[STREAMS];
    struct cu_event *events[STEPS];
    uint64_t buffers[BUFFERS];
    struct step steps[STEPS];
    void *pinned;
    uint32_t model[BUFFERS][N] = {{0}};
    uint32_t expected[STEPS][N];
    bool conflict = false;
    OK(cu->mem_host_alloc(&pinned, STEPS * BYTES, 0));
    uint32_t(*host)[N] = pinned;
    for (int i = 0; i < STREAMS; i++) {
        OK(cu->stream_create_with_priority(&streams[i], CU_STREAM_NON_BLOCKING, 0));
    }
    for (uint32_t i = 0; i < BUFFERS; i++) {
        OK(cu->mem_alloc(&buffers[i], BYTES));
        OK(cu->memset_d32_async(buffers[i], 0, N, NULL));
    }
    OK(cu->ctx_synchronize());
    for (uint32_t i = 0; i < STEPS; i++) {
        const uint64_t r = rng_draw(program, 0, i, RNG_TEST, 0);
        struct step *s = &steps[i];
        *s = (struct step){.kind = (int)(r % 3),
                           .stream = (uint32_t)(r >> 8) % STREAMS,
                           .from = (uint32_t)(r >> 16) % BUFFERS,
                           .to = (uint32_t)(r >> 24) % BUFFERS,
                           .value = (uint32_t)(r >> 32)};
        for (uint32_t k = 0; k < i; k++) {
            const struct step *o = &steps[k];
            const bool s_writes = s->kind != 2, o_writes = o->kind != 2;
            const bool s_reads = s->kind != 0, o_reads = o->kind != 0;
            const bool clash = (s_writes && o_writes && s->to == o->to) ||
                               (s_writes && o_reads && s->to == o->from) ||
                               (s_reads && o_writes && s->from == o->to);
            if (!clash || s->stream == o->stream) continue;
            conflict = true;
            if (ordered) OK(cu->stream_wait_event(streams[s->stream], events[k], 0));
        }
        struct cu_stream *stream = streams[s->stream];
        if (s->kind == 0) {
            OK(cu->memset_d32_async(buffers[s->to], s->value, N, stream));
            for (int w = 0; w < N; w++) model[s->to][w] = s->value;
        } else if (s->kind == 1) {
            OK(cu->memcpy_dtod_async(buffers[s->to], buffers[s->from], BYTES, stream));
            memmove(model[s->to], model[s->from], BYTES);
        } else {
            OK(cu->memcpy_dtoh_async(host[i], buffers[s->from], BYTES, stream));
            memcpy(expected[i], model[s->from], BYTES);
        }
        OK(cu->event_create(&events[i], CU_EVENT_DISABLE_TIMING));
        OK(cu->event_record(events[i], stream));
    }
    /* Waited for in any order. */
    for (uint32_t i = 0; i < STREAMS; i++) {
        OK(cu->stream_synchronize(streams[(i + (uint32_t)seed) % STREAMS]));
    }
    assert_int_equal(x.g.pending(), 0);
    if (ordered) {
        for (uint32_t i = 0; i < STEPS; i++) {
            if (steps[i].kind == 2) assert_memory_equal(host[i], expected[i], BYTES);
        }
    } else {
        assert_true(conflict);
        assert_true(x.g.rule_count(RULE_OVERLAP) > 0);
        x.g.findings_clear();
    }
    softgpu_close(&x.g);
}

static void test_random_programs(void **state) {
    (void)state;
    for (uint64_t program = 0; program < 5; program++) {
        for (uint64_t seed = 0; seed < 12; seed++) random_program(program, seed, true);
        random_program(program, program, false);
    }
}

static void test_faults(void **state) {
    (void)state;
    struct bench x;
    bench_open(&x, 0);
    struct error e = {0};
    uint32_t n = N;
    void *params[] = {&x.a, &x.a, &x.b, &n};
    const struct cuda_launch l = {.grid = {1, 1, 1}, .block = {N, 1, 1}};
    assert_false(x.g.faults("launch"));
    assert_false(x.g.faults("nothing=1"));
    assert_false(x.g.faults("launch=x"));
    assert_true(x.g.faults("launch=2,corrupt=2"));
    chain(&x); /* first launch, first copy to the host */
    assert_int_equal(cuda_launch(x.cu, x.add, &l, params, x.stream, &e), STATUS_DEVICE);
    assert_non_null(strstr(e.message, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"));
    OK(x.cu->stream_synchronize(x.stream)); /* the device goes on */
    check_chain(&x);
    chain(&x);
    OK(x.cu->stream_synchronize(x.stream));
    for (int i = 0; i < N; i++) assert_true(x.host[N + i] != x.host[N + i]); /* NaN */
    chain(&x);
    OK(x.cu->stream_synchronize(x.stream));
    check_chain(&x);

    uint64_t p;
    char limit[64];
    snprintf(limit, sizeof limit, "memory=%d", 1000000);
    assert_true(x.g.faults(limit));
    IS(CUDA_ERROR_OUT_OF_MEMORY, x.cu->mem_alloc(&p, 1000000));
    OK(x.cu->mem_alloc(&p, 900000));

    assert_true(x.g.faults("lost=2"));
    chain(&x);
    OK(x.cu->stream_synchronize(x.stream));
    check_chain(&x);
    chain(&x);
    const enum cu_result r = x.cu->stream_synchronize(x.stream);
    IS(CUDA_ERROR_LAUNCH_FAILED, r);
    assert_true(cuda_is_lost(r));
    assert_int_equal(((uint8_t *)(x.host + N))[0], 0xdb); /* never arrived */
    IS(r, x.cu->mem_alloc(&p, 4));
    IS(r, x.cu->stream_query(x.stream));
    softgpu_close(&x.g);

    /* A host function is not called by a lost device. */
    char path[] = "/tmp/lac-lost-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    bench_open(&x, 0);
    struct signal done = {.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .seen = x.host};
    char text[64];
    snprintf(text, sizeof text, "lost-file=%s", path);
    assert_true(x.g.faults(text));
    OK(x.cu->launch_host_func(x.stream, on_done, &done));
    IS(CUDA_ERROR_LAUNCH_FAILED, x.cu->stream_synchronize(x.stream));
    eventfd_t count;
    assert_int_equal(eventfd_read(done.fd, &count), -1);
    assert_int_equal(errno, EAGAIN);
    close(done.fd);
    unlink(path);
    softgpu_close(&x.g);
}

static uint64_t number(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    assert_true(json_is_integer(v));
    return (uint64_t)json_integer_value(v);
}

static void test_report(void **state) {
    (void)state;
    struct bench x;
    bench_open(&x, 0);
    chain(&x);
    chain(&x);
    OK(x.cu->stream_synchronize(x.stream));
    OK(x.cu->memset_d32_async(x.c, 0, N, x.stream));
    IS(CUDA_ERROR_INVALID_VALUE, x.cu->mem_free(x.a + 1));
    char path[] = "/tmp/lac-report-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_false(x.g.report("/nonexistent/report.json"));
    assert_true(x.g.report(path));
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error);
    if (root == NULL) fail_msg("%s", error.text);
    assert_int_equal(number(root, "findings"), 1);
    assert_int_equal(number(root, "sm_count"), 132);
    const json_t *finding = json_array_get(json_object_get(root, "finding"), 0);
    assert_string_equal(json_string_value(json_object_get(finding, "where")),
                        "free of what is not allocated");
    const json_t *executed = json_object_get(root, "executed");
    assert_int_equal(number(executed, "kernels"), 2);
    assert_int_equal(number(executed, "copies"), 4);
    assert_int_equal(number(executed, "never_waited_for"), 1);
    const json_t *kernel = json_array_get(json_object_get(root, "kernels"), 0);
    assert_string_equal(json_string_value(json_object_get(kernel, "kernel")), "add");
    assert_int_equal(number(kernel, "launches"), 2);
    assert_int_equal(number(kernel, "blocks"), 2);
    /* Two warps read two arrays of 128 bytes each, and write one: 4 sectors a request. */
    assert_int_equal(number(kernel, "global_load_sectors"), 2 * 2 * 2 * 4);
    assert_int_equal(number(kernel, "global_store_sectors"), 2 * 2 * 4);
    assert_int_equal(x.g.counter("add", "global_load_sectors"), 32);
    assert_int_equal(x.g.counter("", "launches"), 2);
    json_decref(root);
    unlink(path);
    OK(x.cu->stream_synchronize(x.stream));
    x.g.findings_clear();
    softgpu_close(&x.g);
}

/* SOFTGPU_REPORT: written when the process ends. */
static void test_report_at_exit(void **state) {
    (void)state;
    struct bench x;
    char path[] = "/tmp/lac-report-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    setenv("SOFTGPU_REPORT", path, 1);
    bench_open(&x, 0);
    unsetenv("SOFTGPU_REPORT");
    chain(&x);
    OK(x.cu->stream_synchronize(x.stream));
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) exit(0);
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    assert_int_equal(number(json_object_get(root, "executed"), "kernels"), 1);
    json_decref(root);
    unlink(path);
    softgpu_close(&x.g);
    x.g.reset(); /* this process writes none */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waits_show),     cmocka_unit_test(test_stale),
        cmocka_unit_test(test_polling_ends),   cmocka_unit_test(test_host_function),
        cmocka_unit_test(test_graph_again),    cmocka_unit_test(test_random_programs),
        cmocka_unit_test(test_faults),         cmocka_unit_test(test_report),
        cmocka_unit_test(test_report_at_exit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
