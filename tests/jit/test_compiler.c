/* compiler.c, compiler_make.c: where kernels come from, what the driver makes of them, the queue,
 * the idle thread. The driver is a table of this test's own. */
#include "jit_test.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>

#include "core/clock.h"
#include "core/worker_pool.h"
#include "jit/compiler.h"
#include "jit/nvrtc.h"
#include "tests/softgpu/with_softgpu.h"

static const char OPTIONS[] = "--std=c++17 -lineinfo -fmad=false";
static const char BUILD[] = "0.1.0";
static bool have_nvrtc;

/* --- a driver ------------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    enum cu_result to_cubin, to_ptx, to_function;
    int n_refusals; /* of to_cubin, -1: always */
    int n_loaded, n_unloaded, n_cubins, n_ptx;
    struct cu_context *current;
} driver = {.lock = PTHREAD_MUTEX_INITIALIZER};

static enum cu_result driver_set_current(struct cu_context *c) {
    pthread_mutex_lock(&driver.lock);
    driver.current = c;
    pthread_mutex_unlock(&driver.lock);
    return CUDA_SUCCESS;
}

static enum cu_result driver_load(struct cu_module **out, const void *image, unsigned n,
                                  enum cu_jit_option *options, void **values) {
    (void)n, (void)options, (void)values;
    pthread_mutex_lock(&driver.lock);
    enum cu_result r = CUDA_SUCCESS;
    if (memcmp(image, "\177ELF", 4) == 0) {
        driver.n_cubins++;
        if (driver.n_refusals != 0) r = driver.to_cubin;
        if (driver.n_refusals > 0) driver.n_refusals--;
    } else {
        driver.n_ptx++;
        r = driver.to_ptx;
    }
    if (driver.current == NULL) r = CUDA_ERROR_INVALID_CONTEXT;
    driver.n_loaded += r == CUDA_SUCCESS;
    pthread_mutex_unlock(&driver.lock);
    *out = r == CUDA_SUCCESS ? malloc(1) : NULL;
    return r;
}

static enum cu_result driver_unload(struct cu_module *m) {
    pthread_mutex_lock(&driver.lock);
    driver.n_unloaded++;
    pthread_mutex_unlock(&driver.lock);
    free(m);
    return CUDA_SUCCESS;
}

static enum cu_result driver_function(struct cu_function **out, struct cu_module *m,
                                      const char *name) {
    assert_true(strncmp(name, "lac_", 4) == 0);
    *out = (struct cu_function *)m;
    return driver.to_function;
}

static void driver_reset(struct cuda *cu) {
    driver.to_cubin = driver.to_ptx = driver.to_function = CUDA_SUCCESS;
    driver.n_refusals = -1;
    driver.n_loaded = driver.n_unloaded = driver.n_cubins = driver.n_ptx = 0;
    memset(cu, 0, sizeof *cu);
    cu->ctx_set_current = driver_set_current;
    cu->module_load_data_ex = driver_load;
    cu->module_unload = driver_unload;
    cu->module_get_function = driver_function;
}

/* --- kernels -------------------------------------------------------------------------------- */

static const char *kernel_text(int i) {
    static char text[4][256];
    static int turn;
    char *t = text[turn++ % 4];
    snprintf(t, sizeof text[0],
             "extern \"C\" __global__ void lac_k%d(int *x) { x[threadIdx.x] += %d; }\n", i, i);
    return t;
}

static struct compiler_request request_of(int i) {
    static char names[4][32], specs[4][64];
    static int turn;
    turn++;
    char *name = names[turn % 4], *spec = specs[turn % 4];
    snprintf(name, sizeof names[0], "lac_k%d", i);
    snprintf(spec, sizeof specs[0], "add format=I32 n=%d", i);
    return (struct compiler_request){.name = name,
                                     .spec = spec,
                                     .source = kernel_text(i),
                                     .options = OPTIONS,
                                     .arch = 90,
                                     .sm_count = 132,
                                     .hash = 1000 + (uint64_t)i * 0x100000001};
}

static void id_of(int i, struct artefact_id *id) {
    const struct compiler_request r = request_of(i);
    const struct artefact_key key = {r.name,    BUILD,  r.source,  r.spec,
                                     r.options, r.arch, r.sm_count};
    artefact_identify(&key, id);
}

static struct compiler *open_compiler(const struct compiler_config *cfg) {
    struct compiler *c;
    struct error e = {0};
    struct compiler_config full = *cfg;
    full.build = BUILD;
    if (full.nvrtc_path == NULL) full.nvrtc_path = nvrtc_path();
    assert_int_equal(compiler_open(&full, &c, &e), STATUS_OK);
    return c;
}

static void request(struct compiler *c, int i) {
    struct error e = {0};
    const struct compiler_request r = request_of(i);
    if (compiler_request(c, &r, &e) != STATUS_OK) fail_msg("%s", e.message);
}

static struct store *open_store(const char *folder) {
    struct store *s;
    const struct store_config cfg = {.folder = folder};
    assert_int_equal(store_open(&cfg, &s, NULL), STATUS_OK);
    return s;
}

static void put_in_store(struct store *s, int i) {
    struct artefact_id id;
    struct artefact a;
    id_of(i, &id);
    make_artefact(&a, "nvrtc 13.0", (unsigned)i, 200, 50);
    assert_int_equal(store_write(s, &id, &a, NULL), STATUS_OK);
    artefact_free(&a);
}

static struct pack *make_pack(const char *folder, int first, int n) {
    char path[128];
    snprintf(path, sizeof path, "%s/test.lacp", folder);
    struct pack_writer *w;
    assert_int_equal(pack_writer_open(&w, NULL), STATUS_OK);
    for (int i = first; i < first + n; i++) {
        struct artefact_id id;
        struct artefact a;
        id_of(i, &id);
        make_artefact(&a, "nvrtc 13.0", (unsigned)i, 200, 50);
        assert_int_equal(pack_writer_add(w, &id, &a, NULL), STATUS_OK);
        artefact_free(&a);
    }
    assert_int_equal(pack_writer_save(w, path, NULL), STATUS_OK);
    pack_writer_close(w);
    struct pack *p;
    assert_int_equal(pack_open(path, &p, NULL), STATUS_OK);
    return p;
}

static int look_for_nvrtc(void **state) {
    (void)state;
    struct nvrtc *n;
    struct error e = {0};
    have_nvrtc = nvrtc_open(nvrtc_path(), &n, &e) == STATUS_OK;
    if (!have_nvrtc) printf("skip: kernels are not compiled: %s\n", e.message);
    nvrtc_close(n);
    return 0;
}

/* --- tests ---------------------------------------------------------------------------------- */

static void test_sources(void **state) {
    (void)state;
    char folder[64], cache[128];
    folder_make(folder);
    snprintf(cache, sizeof cache, "%s/cache", folder);
    struct cuda cu;
    driver_reset(&cu);
    int context;
    struct pack *p = make_pack(folder, 0, 3);
    struct store *s = open_store(cache);
    put_in_store(s, 2); /* in both: the pack comes first */
    put_in_store(s, 3);
    struct compiler *c = open_compiler(&(struct compiler_config){
        .pack = p, .store = s, .cuda = &cu, .context = (struct cu_context *)&context});
    for (int i = 0; i < 4; i++) request(c, i);
    for (int i = 0; i < 4; i++) request(c, i); /* again: free */
    assert_null(compiler_find(c, request_of(0).hash));
    struct error e = {0};
    assert_int_equal(compiler_run(c, NULL, &e), STATUS_OK);
    for (int i = 0; i < 4; i++) {
        const struct compiled *k = compiler_find(c, request_of(i).hash);
        assert_non_null(k);
        assert_ptr_equal(k, compiler_at(c, (uint32_t)i));
        assert_int_equal(k->origin, i < 3 ? COMPILER_FROM_PACK : COMPILER_FROM_STORE);
        assert_non_null(k->function);
        assert_false(k->from_ptx);
        assert_null(k->artefact.cubin); /* the driver has it now */
        assert_string_equal(k->id.name, request_of(i).name);
    }
    assert_null(compiler_at(c, 4));
    assert_null(compiler_find(c, 1));
    assert_int_equal(driver.n_loaded, 4);
    compiler_close(c);
    compiler_close(NULL);
    assert_int_equal(driver.n_unloaded, 4);
    store_close(s);
    pack_close(p);
    folder_remove(folder);
}

/* Each way of having no code says its own thing and names the kernel. */
static void test_nothing_has_it(void **state) {
    (void)state;
    char folder[64];
    folder_make(folder);
    struct pack *p = make_pack(folder, 0, 1);
    struct store *s = open_store(folder);
    const struct {
        struct compiler_config cfg;
        int i;
        const char *words[3];
    } cases[] = {
        {{.store = s}, 7, {"--jit off", "lac_k7", "add format=I32 n=7"}},
        {{0}, 7, {"--jit off", "lac_k7 for sm_90 with 132 SMs", "lac_k7"}},
        {{.may_compile = true, .nvrtc_path = "/nowhere"},
         7,
         {"cannot compile lac_k7", "/nowhere", "pack"}},
        {{.pack = p}, 7, {"the pack has no lac_k7", "sm_90 with 132", "another model"}},
        {{.pack = p, .may_compile = true, .nvrtc_path = "/nowhere"},
         7,
         {"pack", "lac_k7", "sm_90"}},
    };
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        struct compiler *c = open_compiler(&cases[n].cfg);
        struct error e = {0};
        request(c, cases[n].i);
        assert_int_equal(compiler_run(c, NULL, &e), STATUS_NOT_FOUND);
        for (int w = 0; w < 3; w++) {
            if (strstr(e.message, cases[n].words[w]) == NULL)
                fail_msg("%zu: '%s' lacks '%s'", n, e.message, cases[n].words[w]);
        }
        assert_null(compiler_find(c, request_of(cases[n].i).hash));
        assert_int_equal(compiler_at(c, 0)->status, STATUS_NOT_FOUND);
        /* It may turn up later. */
        if (cases[n].cfg.store != NULL) {
            put_in_store(s, 7);
            request(c, 7);
            assert_int_equal(compiler_run(c, NULL, &e), STATUS_OK);
            assert_non_null(compiler_find(c, request_of(7).hash));
        }
        compiler_close(c);
    }
    store_close(s);
    pack_close(p);
    folder_remove(folder);
}

static void test_driver(void **state) {
    (void)state;
    char folder[64];
    folder_make(folder);
    struct cuda cu;
    int context;
    struct error e = {0};
    struct log_capture l;
    log_capture_open(&l);
    struct store *s;
    const struct store_config store_cfg = {.folder = folder, .log = &l.log};
    assert_int_equal(store_open(&store_cfg, &s, NULL), STATUS_OK);
    const struct compiler_config cfg = {
        .store = s, .cuda = &cu, .context = (struct cu_context *)&context};

    /* No code for this chip in the cubin: the PTX. */
    driver_reset(&cu);
    driver.to_cubin = CUDA_ERROR_NO_BINARY_FOR_GPU;
    put_in_store(s, 1);
    struct compiler *c = open_compiler(&cfg);
    request(c, 1);
    assert_int_equal(compiler_run(c, NULL, &e), STATUS_OK);
    assert_true(compiler_at(c, 0)->from_ptx);
    assert_int_equal(driver.n_cubins, 1);
    assert_int_equal(driver.n_ptx, 1);
    compiler_close(c);
    assert_int_equal(driver.n_unloaded, driver.n_loaded);

    /* Neither. */
    driver_reset(&cu);
    driver.to_cubin = CUDA_ERROR_NO_BINARY_FOR_GPU;
    driver.to_ptx = CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    c = open_compiler(&cfg);
    request(c, 1);
    assert_int_equal(compiler_run(c, NULL, &e), STATUS_UNSUPPORTED);
    assert_non_null(strstr(e.message, "UNSUPPORTED_PTX_VERSION"));
    compiler_close(c);

    /* The device is gone. */
    driver_reset(&cu);
    driver.to_cubin = CUDA_ERROR_LAUNCH_FAILED;
    c = open_compiler(&cfg);
    request(c, 1);
    assert_int_equal(compiler_run(c, NULL, &e), STATUS_DEVICE);
    assert_null(compiler_find(c, request_of(1).hash));
    compiler_close(c);
    assert_int_equal(folder_count(folder, ".bad", NULL), 0);

    /* Whole bytes, but no image: aside, and compiled again where that is possible. */
    driver_reset(&cu);
    driver.to_cubin = CUDA_ERROR_INVALID_IMAGE;
    driver.n_refusals = 1;
    struct compiler_config able = cfg;
    able.may_compile = have_nvrtc;
    c = open_compiler(&able);
    put_in_store(s, 2);
    request(c, 2);
    const enum status again = compiler_run(c, NULL, &e);
    assert_int_equal(folder_count(folder, ".bad", NULL), 1);
    assert_int_equal(log_capture_count(&l, "the driver refuses it"), 1);
    if (have_nvrtc) {
        assert_int_equal(again, STATUS_OK);
        assert_int_equal(compiler_at(c, 0)->origin, COMPILER_FROM_SOURCE);
    } else {
        assert_int_equal(again, STATUS_NOT_FOUND);
    }
    compiler_close(c);

    /* Another kernel's module, from a pack: nothing to heal. */
    driver_reset(&cu);
    driver.to_function = CUDA_ERROR_NOT_FOUND;
    struct pack *p = make_pack(folder, 5, 1);
    struct compiler_config packed = cfg;
    packed.pack = p;
    c = open_compiler(&packed);
    request(c, 5);
    assert_int_equal(compiler_run(c, NULL, &e), STATUS_CORRUPT);
    assert_non_null(strstr(e.message, "lac_k5"));
    assert_non_null(strstr(e.message, "pack"));
    compiler_close(c);
    assert_int_equal(driver.n_unloaded, driver.n_loaded);
    pack_close(p);
    store_close(s);
    log_capture_close(&l);
    folder_remove(folder);
}

static void test_requests(void **state) {
    (void)state;
    struct compiler *c = open_compiler(&(struct compiler_config){0});
    struct error e = {0};
    request(c, 0);
    struct compiler_request r = request_of(1);
    r.hash = request_of(0).hash;
    assert_int_equal(compiler_request(c, &r, &e), STATUS_INVALID);
    assert_non_null(strstr(e.message, "hash"));
    r = request_of(0);
    r.hash = 5; /* of one name with another, that is allowed */
    r.spec = "something else";
    assert_int_equal(compiler_request(c, &r, &e), STATUS_OK);
    for (int i = 1; i < COMPILER_MAX_KERNELS - 1; i++) request(c, i);
    r = request_of(COMPILER_MAX_KERNELS);
    assert_int_equal(compiler_request(c, &r, &e), STATUS_FULL);
    /* The first in the order of requests, however they were run. */
    assert_int_equal(compiler_run(c, NULL, &e), STATUS_NOT_FOUND);
    assert_non_null(strstr(e.message, "lac_k0 "));
    assert_int_equal(compiler_run(c, NULL, &e), STATUS_OK); /* nothing was asked for */
    compiler_close(c);
}

struct seen {
    int n, n_compiled;
    uint32_t last_done, last_total;
    int policy;
};

static void on_progress(void *arg, const struct compiler_progress *p) {
    struct seen *s = arg;
    s->n++;
    s->n_compiled += p->kernel->status == STATUS_OK && p->kernel->origin == COMPILER_FROM_SOURCE;
    assert_int_equal(p->n_done, s->last_done + 1);
    s->last_done = p->n_done;
    s->last_total = p->n_total;
    struct sched_param param;
    pthread_getschedparam(pthread_self(), &s->policy, &param);
}

static void corrupt_one(const char *folder) {
    char path[512];
    size_t bytes;
    assert_true(folder_count(folder, ".lack", path) > 0);
    uint8_t *data = file_read(path, &bytes);
    data[bytes / 2] ^= 4;
    file_write(path, data, bytes);
    free(data);
}

/* A cold start, a warm one, one after damage, and one more. */
static void test_runs(void **state) {
    (void)state;
    if (!have_nvrtc) skip();
    char folder[64];
    folder_make(folder);
    enum { N = 5 };
    struct worker_pool *workers;
    const struct worker_pool_config pool = {.n_workers = 2};
    assert_int_equal(worker_pool_start(&pool, &workers, NULL), STATUS_OK);
    static const int expected[] = {N, 0, 1, 0};
    for (int run = 0; run < 4; run++) {
        if (run == 2) corrupt_one(folder);
        struct store *s = open_store(folder);
        struct seen seen = {0};
        struct error e = {0};
        struct compiler *c = open_compiler(&(struct compiler_config){
            .store = s, .may_compile = true, .progress = on_progress, .progress_arg = &seen});
        for (int i = 0; i < N; i++) request(c, i);
        if (compiler_run(c, workers, &e) != STATUS_OK) fail_msg("%s", e.message);
        assert_int_equal(seen.n, N);
        assert_int_equal(seen.last_total, N);
        assert_int_equal(seen.n_compiled, expected[run]);
        for (int i = 0; i < N; i++) {
            const struct compiled *k = compiler_find(c, request_of(i).hash);
            char entry[64];
            snprintf(entry, sizeof entry, ".entry lac_k%d(", i);
            assert_non_null(strstr(k->artefact.ptx, entry)); /* kept: there is no device */
            assert_true(k->took_ns > 0);
        }
        compiler_close(c);
        store_close(s);
    }
    assert_int_equal(folder_count(folder, ".bad", NULL), 1);
    assert_int_equal(folder_count(folder, ".lack", NULL), N);
    worker_pool_stop(workers);
    folder_remove(folder);
}

/* --jit off reads what a run with the compiler left, whichever compiler that was. */
static void test_jit_off(void **state) {
    (void)state;
    char folder[64];
    folder_make(folder);
    struct store *s = open_store(folder);
    put_in_store(s, 1);
    struct compiler *c = open_compiler(&(struct compiler_config){.store = s});
    struct error e = {0};
    request(c, 1);
    request(c, 2);
    assert_int_equal(compiler_run(c, NULL, &e), STATUS_NOT_FOUND);
    assert_non_null(strstr(e.message, "lac_k2"));
    assert_int_equal(compiler_find(c, request_of(1).hash)->origin, COMPILER_FROM_STORE);
    compiler_close(c);
    store_close(s);
    folder_remove(folder);
}

static bool readable(int fd, int timeout_ms) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, timeout_ms) == 1;
}

static void test_idle_thread(void **state) {
    (void)state;
    if (!have_nvrtc) skip();
    struct seen seen = {0};
    struct error e = {0};
    struct compiler *c = open_compiler(&(struct compiler_config){
        .may_compile = true, .progress = on_progress, .progress_arg = &seen});
    request(c, 0);
    assert_int_equal(compiler_start(c, &e), STATUS_OK);
    request(c, 1);
    struct compiler_request bad = request_of(2);
    bad.source = "__global__ void f() { frobnicate(); }\n";
    assert_int_equal(compiler_request(c, &bad, &e), STATUS_OK);
    request(c, 3);
    int n = 0;
    while (n < 4) {
        assert_true(readable(compiler_event_fd(c), 60000));
        const struct compiled *k = compiler_poll(c); /* one at a time: the rest is announced anew */
        if (k == NULL) continue;
        n++;
        if (k->hash == bad.hash) {
            assert_int_equal(k->status, STATUS_INVALID);
            if (strstr(k->error.message, "frobnicate") == NULL) fail_msg("%s", k->error.message);
            assert_null(compiler_find(c, k->hash));
        } else {
            assert_int_equal(k->status, STATUS_OK);
            assert_ptr_equal(compiler_find(c, k->hash), k);
        }
    }
    assert_null(compiler_poll(c));
    assert_false(readable(compiler_event_fd(c), 0));
    assert_int_equal(seen.n, 4);
    assert_int_equal(seen.policy, SCHED_IDLE);
    compiler_close(c);
}

/* Closing stops a compilation half-way. */
static void test_close_stops_the_compiler(void **state) {
    (void)state;
    if (!have_nvrtc) skip();
    struct nvrtc *n;
    assert_int_equal(nvrtc_open(nvrtc_path(), &n, NULL), STATUS_OK);
    const bool stops = strcmp(nvrtc_version(n), "nvrtc 12.8") >= 0;
    nvrtc_close(n);
    if (!stops) skip();
    struct buffer text;
    buffer_init(&text, 0);
    buffer_puts(&text, "extern \"C\" __global__ void lac_k0(float *a, int n) { float s = 0;\n");
    for (int i = 0; i < 2000; i++)
        buffer_printf(&text, "for (int i = 0; i < n; i++) s = s * a[i + %d] + __expf(s * %d.f);\n",
                      i, i + 1);
    buffer_puts(&text, "a[0] = s; }\n");
    struct compiler_request r = request_of(0);
    r.source = buffer_cstr(&text);
    struct error e = {0};
    struct seen seen = {0};
    struct compiler *c = open_compiler(&(struct compiler_config){
        .may_compile = true, .progress = on_progress, .progress_arg = &seen});
    assert_int_equal(compiler_request(c, &r, &e), STATUS_OK);
    assert_int_equal(compiler_start(c, &e), STATUS_OK);
    usleep(200000);
    assert_null(compiler_poll(c));
    /* Early, while it reads the text: there it asks often whether to go on. Once it generates code
     * it may go on for half a minute with a text like this one. */
    compiler_close(c);
    assert_int_equal(seen.n_compiled, 0);
    buffer_free(&text);
}

static void test_dump(void **state) {
    (void)state;
    char folder[64], dump[128], path[512];
    folder_make(folder);
    snprintf(dump, sizeof dump, "%s/dump", folder);
    struct store *s = open_store(folder);
    put_in_store(s, 4);
    struct error e = {0};
    struct compiler *c = open_compiler(&(struct compiler_config){.store = s, .dump_folder = dump});
    request(c, 4);
    assert_int_equal(compiler_run(c, NULL, &e), STATUS_OK);
    const struct compiled *k = compiler_at(c, 0);
    assert_int_equal(folder_count(dump, "", NULL), 3);
    size_t bytes;
    char name[64];
    snprintf(name, sizeof name, "lac_k4-%08x", (uint32_t)(k->id.digest[1] >> 32));
    snprintf(path, sizeof path, "%s/%s.cu", dump, name);
    uint8_t *data = file_read(path, &bytes);
    assert_string_equal((char *)data, kernel_text(4));
    free(data);
    snprintf(path, sizeof path, "%s/%s.ptx", dump, name);
    data = file_read(path, &bytes);
    assert_string_equal((char *)data, k->artefact.ptx);
    free(data);
    snprintf(path, sizeof path, "%s/%s.cubin", dump, name);
    data = file_read(path, &bytes);
    assert_int_equal(bytes, k->artefact.cubin_bytes);
    assert_memory_equal(data, k->artefact.cubin, bytes);
    free(data);
    compiler_close(c);

    /* A folder that cannot be made is refused at once; one that goes away is said once. */
    const struct compiler_config bad = {.build = BUILD, .dump_folder = "/nowhere/at/all"};
    assert_int_equal(compiler_open(&bad, &c, &e), STATUS_IO);
    assert_string_equal(e.field, "jit-dump");
    assert_null(c);
    struct log_capture l;
    log_capture_open(&l);
    c = open_compiler(&(struct compiler_config){.store = s, .dump_folder = dump, .log = &l.log});
    folder_remove(dump);
    request(c, 4);
    assert_int_equal(compiler_run(c, NULL, &e), STATUS_OK);
    assert_int_equal(log_capture_count(&l, "--jit-dump"), 1);
    compiler_close(c);
    log_capture_close(&l);
    store_close(s);
    folder_remove(folder);
}

/* From text to a function that runs, on the software device: it takes no cubin, so the PTX is what
 * runs; the first start compiles, the second reads the cache. */
static void test_software_device(void **state) {
    (void)state;
    if (access(softgpu_path(), R_OK) != 0) {
        printf("skip: %s is not built\n", softgpu_path());
        skip();
    }
    if (!have_nvrtc) skip();
    char folder[64];
    folder_make(folder);
    struct softgpu g;
    softgpu_open(&g, "H100");
    struct worker_pool *workers;
    const struct worker_pool_config pool = {.n_workers = 2};
    assert_int_equal(worker_pool_start(&pool, &workers, NULL), STATUS_OK);
    for (int run = 0; run < 2; run++) {
        struct error e = {0};
        struct store *s = open_store(folder);
        struct compiler *c = open_compiler(&(struct compiler_config){
            .store = s, .may_compile = true, .cuda = &g.cuda, .context = g.context});
        for (int i = 1; i < 4; i++) request(c, i);
        if (compiler_run(c, workers, &e) != STATUS_OK) fail_msg("%s", e.message);
        for (int i = 1; i < 4; i++) {
            const struct compiled *k = compiler_find(c, request_of(i).hash);
            assert_int_equal(k->origin, run == 0 ? COMPILER_FROM_SOURCE : COMPILER_FROM_STORE);
            assert_true(k->from_ptx);
            int numbers[64], answers[64];
            uint64_t address = 0;
            for (int n = 0; n < 64; n++) numbers[n] = 1000 * n;
            assert_int_equal(g.cuda.mem_alloc(&address, sizeof numbers), CUDA_SUCCESS);
            assert_int_equal(g.cuda.memcpy_htod_async(address, numbers, sizeof numbers, NULL),
                             CUDA_SUCCESS);
            const struct cuda_launch launch = {.grid = {1, 1, 1}, .block = {64, 1, 1}};
            void *params[] = {&address};
            if (cuda_launch(&g.cuda, k->function, &launch, params, NULL, &e) != STATUS_OK) {
                fail_msg("%s", e.message);
            }
            assert_int_equal(g.cuda.memcpy_dtoh_async(answers, address, sizeof answers, NULL),
                             CUDA_SUCCESS);
            assert_int_equal(g.cuda.ctx_synchronize(), CUDA_SUCCESS);
            for (int n = 0; n < 64; n++) assert_int_equal(answers[n], 1000 * n + i);
            assert_int_equal(g.cuda.mem_free(address), CUDA_SUCCESS);
        }
        compiler_close(c);
        store_close(s);
    }
    worker_pool_stop(workers);
    softgpu_close(&g);
    folder_remove(folder);
}

/* A full or read-only cache costs nothing but the keeping. */
static void test_store_refuses(void **state) {
    (void)state;
    if (!have_nvrtc) skip();
    char folder[64];
    folder_make(folder);
    struct log_capture l;
    log_capture_open(&l);
    struct store *s;
    const struct store_config cfg = {.folder = folder, .log = &l.log};
    assert_int_equal(store_open(&cfg, &s, NULL), STATUS_OK);
    folder_remove(folder); /* nothing can be written into it any more */
    struct error e = {0};
    struct compiler *c = open_compiler(&(struct compiler_config){.store = s, .may_compile = true});
    for (int i = 0; i < 3; i++) request(c, i);
    assert_int_equal(compiler_run(c, NULL, &e), STATUS_OK);
    for (int i = 0; i < 3; i++) assert_non_null(compiler_find(c, request_of(i).hash));
    assert_int_equal(log_capture_count(&l, "in memory only"), 1);
    compiler_close(c);
    store_close(s);
    log_capture_close(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sources),
        cmocka_unit_test(test_nothing_has_it),
        cmocka_unit_test(test_driver),
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_runs),
        cmocka_unit_test(test_jit_off),
        cmocka_unit_test(test_idle_thread),
        cmocka_unit_test(test_close_stops_the_compiler),
        cmocka_unit_test(test_dump),
        cmocka_unit_test(test_store_refuses),
        cmocka_unit_test(test_software_device),
    };
    return cmocka_run_group_tests(tests, look_for_nvrtc, NULL);
}
