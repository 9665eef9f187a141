/* Kernels through the driver: what the checker finds arrives as findings and as the error a device
 * would give; dependent launches, in streams and graphs, are ordered by their waits only; seeds and
 * modes do not change a bit. */
#include "tests/softgpu/with_softgpu.h"

#define OK(call)    assert_int_equal((call), CUDA_SUCCESS)
#define IS(r, call) assert_int_equal((call), (r))

enum { N = 64, BYTES = 4 * N };

/* in, out: u64. A thread an element. */
#define HEAD(name)                                                                                 \
    ".visible .entry " name "(.param .u64 p_in, .param .u64 p_out)\n{\n"                           \
    ".reg .b32 %r<8>;\n.reg .b64 %rd<8>;\n"                                                        \
    "ld.param.u64 %rd1, [p_in];\nld.param.u64 %rd2, [p_out];\n"                                    \
    "cvta.to.global.u64 %rd1, %rd1;\ncvta.to.global.u64 %rd2, %rd2;\n"                             \
    "mov.u32 %r1, %tid.x;\nmul.wide.u32 %rd3, %r1, 4;\n"                                           \
    "add.s64 %rd4, %rd1, %rd3;\nadd.s64 %rd5, %rd2, %rd3;\n"
#define LOAD    "ld.global.u32 %r2, [%rd4];\n"
#define STORE   "add.u32 %r2, %r2, 1;\nst.global.u32 [%rd5], %r2;\n"
#define WAIT    "griddepcontrol.wait;\n"
#define TRIGGER "griddepcontrol.launch_dependents;\n"
#define TAIL    "ret;\n}\n"

static const char ptx[] = ".version 8.0\n.target sm_90\n.address_size 64\n"
    /* out = in + 1 in all of them */
    HEAD("plain") LOAD STORE TAIL HEAD("early")
        TRIGGER LOAD STORE TAIL                  /* lets the next one start before it writes */
            HEAD("late") LOAD STORE TRIGGER TAIL /* ... after */
                HEAD("patient") WAIT LOAD STORE TRIGGER TAIL /* as it should be */
                    HEAD("hasty") LOAD WAIT STORE TAIL       /* reads before it waits */
                        HEAD("pushy")
                            TRIGGER WAIT LOAD STORE TAIL /* triggers before it has waited itself */
                                HEAD("careless") LOAD STORE TAIL /* never waits */
                                    HEAD("wild") "st.global.u32 [%rd5+1048576], %r1;\n" TAIL
                                        HEAD("crooked") "st.global.u32 [%rd5+2], %r1;\n" TAIL HEAD(
                                            "dead") "trap;\n" TAIL;

struct bench {
    struct softgpu g;
    const struct cuda *cu;
    struct cu_module *module;
    struct cu_stream *stream, *other;
    uint64_t buffer[5];
    uint32_t *host;
};

static void bench_open(struct bench *x, uint64_t seed, const char *check) {
    memset(x, 0, sizeof *x);
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
    setenv("SOFTGPU_SEED", text, 1);
    setenv("SOFTGPU_CHECK", check, 1);
    softgpu_open(&x->g, "H100");
    unsetenv("SOFTGPU_SEED");
    unsetenv("SOFTGPU_CHECK");
    x->cu = &x->g.cuda;
    struct error e = {0};
    if (cuda_module_load(x->cu, ptx, NULL, 0, &x->module, &e) != STATUS_OK) {
        fail_msg("%s", e.message);
    }
    OK(x->cu->stream_create_with_priority(&x->stream, CU_STREAM_NON_BLOCKING, 0));
    OK(x->cu->stream_create_with_priority(&x->other, CU_STREAM_NON_BLOCKING, 0));
    for (int i = 0; i < 5; i++) {
        OK(x->cu->mem_alloc(&x->buffer[i], BYTES));
        OK(x->cu->memset_d32_async(x->buffer[i], 100 * (unsigned)i, N, NULL));
    }
    void *host;
    OK(x->cu->mem_host_alloc(&host, BYTES, 0));
    x->host = host;
    OK(x->cu->ctx_synchronize());
}

static void bench_close(struct bench *x) {
    x->g.findings_clear();
    softgpu_close(&x->g);
}

static struct cu_function *function(const struct bench *x, const char *name) {
    struct cu_function *f;
    OK(x->cu->module_get_function(&f, x->module, name));
    return f;
}

static void run(struct bench *x, const char *kernel, int in, int out, bool dependent,
                struct cu_stream *s) {
    void *params[] = {&x->buffer[in], &x->buffer[out]};
    const struct cuda_launch l = {.grid = {1, 1, 1}, .block = {N, 1, 1}, .dependent = dependent};
    struct error e = {0};
    if (cuda_launch(x->cu, function(x, kernel), &l, params, s, &e) != STATUS_OK) {
        fail_msg("%s: %s", kernel, e.message);
    }
}

static void finish(struct bench *x, bool race) {
    OK(x->cu->ctx_synchronize());
    const uint64_t races = x->g.findings_count(FINDING_RACE);
    if ((races > 0) != race || x->g.findings_count(-1) != races) softgpu_print(&x->g);
    assert_int_equal(races > 0, race);
    assert_int_equal(x->g.findings_count(-1), races);
    x->g.findings_clear();
}

static void test_streams(void **state) {
    (void)state;
    struct bench x;
    bench_open(&x, 0, "full");
    struct cu_event *event;
    OK(x.cu->event_create(&event, CU_EVENT_DISABLE_TIMING));
    /* One stream: in order. */
    run(&x, "plain", 0, 1, false, x.stream);
    run(&x, "plain", 1, 2, false, x.stream);
    finish(&x, false);
    /* Two, with an event, and without. */
    run(&x, "plain", 0, 1, false, x.stream);
    OK(x.cu->event_record(event, x.stream));
    OK(x.cu->stream_wait_event(x.other, event, 0));
    run(&x, "plain", 1, 2, false, x.other);
    finish(&x, false);
    run(&x, "plain", 0, 1, false, x.stream);
    run(&x, "plain", 1, 2, false, x.other);
    finish(&x, true);
    /* The host stood between them. */
    run(&x, "plain", 0, 1, false, x.stream);
    OK(x.cu->stream_synchronize(x.stream));
    run(&x, "plain", 1, 2, false, x.other);
    finish(&x, false);
    /* Both write; both only read. */
    run(&x, "plain", 0, 1, false, x.stream);
    run(&x, "plain", 2, 1, false, x.other);
    finish(&x, true);
    run(&x, "plain", 0, 1, false, x.stream);
    run(&x, "plain", 0, 2, false, x.other);
    finish(&x, false);
    bench_close(&x);
}

/* A kernel and copies on another stream: the one reads what the other writes, both write, or the
 * one writes what the other reads; with and without an event between them, run in either order. */
static void test_copies(void **state) {
    (void)state;
    for (int which = 0; which < 16; which++) {
        const int kind = which & 3;
        const bool ordered = (which & 4) != 0, kernel_first = (which & 8) != 0;
        struct bench x;
        bench_open(&x, 0, "full");
        struct cu_event *event;
        OK(x.cu->event_create(&event, CU_EVENT_DISABLE_TIMING));
        for (int turn = 0; turn < 2; turn++) {
            const bool kernel = (turn == 0) == kernel_first;
            struct cu_stream *s = kernel ? x.stream : x.other;
            if (turn == 1 && ordered) OK(x.cu->stream_wait_event(s, event, 0));
            if (kernel)
                run(&x, "plain", 0, 1, false, s);
            else if (kind == 0)
                OK(x.cu->memset_d32_async(x.buffer[0], 5, N, s));
            else if (kind == 1)
                OK(x.cu->memcpy_dtod_async(x.buffer[1], x.buffer[2], BYTES, s));
            else if (kind == 2)
                OK(x.cu->memcpy_dtod_async(x.buffer[2], x.buffer[1], BYTES, s));
            else
                OK(x.cu->memcpy_dtod_async(x.buffer[2], x.buffer[0], BYTES, s)); /* both read */
            OK(x.cu->event_record(event, s));
        }
        OK(x.cu->stream_synchronize(which % 3 == 0 ? x.stream : x.other));
        OK(x.cu->ctx_synchronize());
        const uint64_t found = x.g.findings_count(-1);
        const bool expected = !ordered && kind != 3;
        if ((found > 0) != expected) print_message("case %d\n", which);
        if ((found > 0) != expected) softgpu_print(&x.g);
        assert_int_equal(found > 0, expected);
        x.g.findings_clear();
        /* What was hidden meanwhile is there again (what was made of it is not). */
        for (int i = 0; i < 3; i++) {
            if (i == 1 && kind == 0 && expected) continue;
            OK(x.cu->memcpy_dtoh_async(x.host, x.buffer[i], BYTES, x.stream));
            OK(x.cu->stream_synchronize(x.stream));
        }
        assert_int_equal(x.g.findings_count(-1), 0);
        bench_close(&x);
    }
}

/* The chain first -> second -> third with dependent launches, the third reading buffer `reads`. */
struct chain {
    const char *first, *second, *third;
    int reads; /* 1: what the first wrote, 2: what the second wrote */
    bool race;
};
static const struct chain chains[] = {
    {"late", "patient", "patient", 2, false},
    {"early", "patient", "patient", 2, false},
    {"early", "patient", "patient", 1, false},
    {"plain", "patient", "plain", 2, true},    /* starts when the second has triggered: after its
                                                  store, but nothing says that it is visible */
    {"early", "hasty", "patient", 2, true},    /* the second reads before it waits */
    {"early", "careless", "patient", 2, true}, /* the second never waits */
    {"early", "pushy", "hasty", 1, true},      /* third's early read: second had not waited */
    {"early", "patient", "hasty", 1, false},   /* it had, before it triggered */
};

static void test_dependent_launches(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof chains / sizeof chains[0]; i++) {
        const struct chain *c = &chains[i];
        struct bench x;
        bench_open(&x, 0, "full");
        run(&x, c->first, 0, 1, false, x.stream);
        run(&x, c->second, 1, 2, true, x.stream);
        run(&x, c->third, c->reads, 3, true, x.stream);
        finish(&x, c->race);
        /* An ordinary launch waits for all of it. */
        run(&x, "plain", 3, 4, false, x.stream);
        OK(x.cu->memcpy_dtoh_async(x.host, x.buffer[4], BYTES, x.stream));
        OK(x.cu->stream_synchronize(x.stream));
        for (uint32_t k = 0; k < N; k++) {
            assert_int_equal(x.host[k], c->reads == 2 ? 4 : 3);
        }
        bench_close(&x);
    }
    /* Z -> A -> B: A never waits, so B's wait says nothing of Z. */
    struct bench x;
    bench_open(&x, 0, "full");
    run(&x, "early", 0, 1, false, x.stream);
    run(&x, "careless", 2, 3, true, x.stream);
    run(&x, "patient", 1, 4, true, x.stream);
    finish(&x, true);
    run(&x, "early", 0, 1, false, x.stream);
    run(&x, "patient", 2, 3, true, x.stream);
    run(&x, "patient", 1, 4, true, x.stream);
    finish(&x, false);
    /* Work between them that is no kernel makes the dependence a full one. */
    run(&x, "early", 0, 1, false, x.stream);
    OK(x.cu->memset_d32_async(x.buffer[4], 0, N, x.stream));
    run(&x, "careless", 1, 2, true, x.stream);
    finish(&x, false);
    bench_close(&x);
}

static void test_graph_edges(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof chains / sizeof chains[0]; i++) {
        const struct chain *c = &chains[i];
        struct bench x;
        bench_open(&x, 0, "full");
        struct cu_graph *graph;
        struct cu_graph_exec *exec;
        struct error e = {0};
        const struct cuda_launch l = {.grid = {1, 1, 1}, .block = {N, 1, 1}};
        const char *kernels[] = {c->first, c->second, c->third};
        const int in[] = {0, 1, c->reads};
        struct cuda_after after = {NULL, true};
        OK(x.cu->graph_create(&graph, 0));
        for (int k = 0; k < 3; k++) {
            void *params[] = {&x.buffer[in[k]], &x.buffer[k + 1]};
            struct cu_graph_node *node;
            if (cuda_graph_add_kernel(x.cu, graph, function(&x, kernels[k]), &l, params, &after,
                                      k > 0, &node, &e) != STATUS_OK) {
                fail_msg("%s", e.message);
            }
            after.node = node;
        }
        OK(x.cu->graph_instantiate(&exec, graph, 0));
        OK(x.cu->graph_launch(exec, x.stream));
        finish(&x, c->race);
        bench_close(&x);
    }
}

static void expect_fault(const char *kernel, enum finding_kind kind, enum cu_result r) {
    struct bench x;
    bench_open(&x, 0, "full");
    run(&x, kernel, 0, 1, false, x.stream);
    IS(r, x.cu->stream_synchronize(x.stream));
    assert_true(x.g.findings_count(kind) > 0);
    struct finding f;
    assert_true(x.g.finding(0, &f));
    assert_string_equal(f.kernel, kernel);
    assert_true(f.ptx_line > 0);
    bench_close(&x);
}

static void test_faults(void **state) {
    (void)state;
    expect_fault("wild", FINDING_OUT_OF_BOUNDS, CUDA_ERROR_ILLEGAL_ADDRESS);
    expect_fault("dead", FINDING_TRAP, CUDA_ERROR_LAUNCH_FAILED);
    /* Undefined memory is read: a finding, and the kernel goes on. */
    struct bench x;
    bench_open(&x, 0, "full");
    OK(x.cu->mem_free(x.buffer[0]));
    OK(x.cu->mem_alloc(&x.buffer[0], BYTES));
    run(&x, "plain", 0, 1, false, x.stream);
    OK(x.cu->memcpy_dtoh_async(x.host, x.buffer[1], BYTES, x.stream));
    OK(x.cu->stream_synchronize(x.stream));
    assert_true(x.g.findings_count(FINDING_UNDEFINED) > 0);
    bench_close(&x);
    bench_open(&x, 0, "full");
    run(&x, "crooked", 0, 1, false, x.stream);
    (void)x.cu->stream_synchronize(x.stream);
    assert_true(x.g.findings_count(FINDING_MISALIGNED) > 0);
    bench_close(&x);
}

/* A kernel that reads pinned host memory by its device address. */
static void test_host_memory(void **state) {
    (void)state;
    struct bench x;
    bench_open(&x, 0, "full");
    OK(x.cu->mem_host_get_device_pointer(&x.buffer[0], x.host, 0));
    for (uint32_t i = 0; i < N; i++) x.host[i] = 7 * i;
    run(&x, "plain", 0, 1, false, x.stream);
    run(&x, "plain", 1, 0, false, x.stream);
    OK(x.cu->stream_synchronize(x.stream));
    for (uint32_t i = 0; i < N; i++) assert_int_equal(x.host[i], 7 * i + 2);
    softgpu_close(&x.g);
}

static void test_seeds(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 8; seed++) {
        struct bench x;
        bench_open(&x, seed, seed % 2 == 0 ? "full" : "bounds");
        run(&x, "early", 0, 1, false, x.stream);
        run(&x, "patient", 1, 2, true, x.stream);
        run(&x, "patient", 2, 3, true, x.stream);
        OK(x.cu->memcpy_dtoh_async(x.host, x.buffer[3], BYTES, x.stream));
        OK(x.cu->stream_synchronize(x.stream));
        for (uint32_t i = 0; i < N; i++) assert_int_equal(x.host[i], 3);
        softgpu_close(&x.g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_dependent_launches),
        cmocka_unit_test(test_graph_edges),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_host_memory),
        cmocka_unit_test(test_seeds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
