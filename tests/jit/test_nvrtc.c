/* nvrtc.c: finding the library, compiling, refusing. Without NVRTC only the refusals are tested. */
#include "jit_test.h"

#include <pthread.h>

#include "core/clock.h"
#include "jit/nvrtc.h"

static const char OPTIONS[] = "--std=c++17 -lineinfo -fmad=false";
static const char GOOD[] = "extern \"C\" __global__ void lac_good(float *x, int n) {\n"
                           "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
                           "    if (i < n) x[i] = x[i] * 2.5f + 1.0f;\n"
                           "}\n";

static struct nvrtc *library; /* NULL: none here */

static int open_library(void **state) {
    (void)state;
    struct error e = {0};
    if (nvrtc_open(nvrtc_path(), &library, &e) != STATUS_OK) {
        printf("skip: kernels are not compiled: %s\n", e.message);
    }
    return 0;
}

static int close_library(void **state) {
    (void)state;
    nvrtc_close(library);
    return 0;
}

static void test_missing(void **state) {
    (void)state;
    char folder[64], path[128];
    folder_make(folder);
    struct nvrtc *n;
    struct error e = {0};
    assert_int_equal(nvrtc_open("/nowhere/libnvrtc.so.13", &n, &e), STATUS_NOT_FOUND);
    assert_null(n);
    assert_non_null(strstr(e.message, "/nowhere/libnvrtc.so.13"));
    assert_string_equal(e.field, "nvrtc");
    assert_int_equal(nvrtc_open(folder, &n, &e), STATUS_NOT_FOUND);
    assert_non_null(strstr(e.message, "libnvrtc.so.13"));
    assert_non_null(strstr(e.message, folder));
    /* Not a library; a library that is not NVRTC. */
    snprintf(path, sizeof path, "%s/libnvrtc.so.13", folder);
    file_write(path, "x", 1);
    assert_int_equal(nvrtc_open(folder, &n, &e), STATUS_NOT_FOUND);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/proc/self/exe", path), 0);
    assert_int_not_equal(nvrtc_open(path, &n, &e), STATUS_OK);
    assert_null(n);
    nvrtc_close(NULL);
    folder_remove(folder);
}

static void test_compile(void **state) {
    (void)state;
    if (library == NULL) skip();
    assert_non_null(strstr(nvrtc_version(library), "nvrtc 1"));
    static const uint32_t archs[] = {75, 80, 90, 120};
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++) {
        if (!nvrtc_knows_arch(library, archs[i])) continue;
        struct nvrtc_output out;
        struct error e = {0};
        const struct nvrtc_job job = {GOOD, "lac_good", NULL, OPTIONS, archs[i], NULL};
        if (nvrtc_compile(library, &job, &out, &e) != STATUS_OK) fail_msg("%s", e.message);
        assert_true(artefact_plausible(out.cubin, out.cubin_bytes, out.ptx, out.ptx_bytes));
        char target[32];
        snprintf(target, sizeof target, ".target sm_%u", archs[i]);
        assert_non_null(strstr(out.ptx, target));
        assert_non_null(strstr(out.ptx, ".entry lac_good"));
        /* Lines for a profiler, and not where this process happens to stand. */
        assert_non_null(strstr(out.ptx, "\"/laconic/lac_good.cu\""));
        /* -fmad=false: two roundings. */
        assert_non_null(strstr(out.ptx, "mul.rn.f32"));
        assert_null(strstr(out.ptx, "fma.rn.f32"));
        assert_true(out.compile_ns > 0);
        assert_string_equal(out.log, "");
        nvrtc_output_free(&out);
        assert_null(out.cubin);
    }
}

/* The same text gives the same bytes: packs can be compared. */
static void test_repeatable(void **state) {
    (void)state;
    if (library == NULL) skip();
    struct nvrtc_output a, b;
    struct error e = {0};
    const struct nvrtc_job job = {GOOD, "lac_good", NULL, OPTIONS, 90, NULL};
    assert_int_equal(nvrtc_compile(library, &job, &a, &e), STATUS_OK);
    char where[512];
    assert_non_null(getcwd(where, sizeof where));
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(nvrtc_compile(library, &job, &b, &e), STATUS_OK);
    assert_int_equal(chdir(where), 0);
    assert_int_equal(a.cubin_bytes, b.cubin_bytes);
    assert_memory_equal(a.cubin, b.cubin, a.cubin_bytes);
    assert_string_equal(a.ptx, b.ptx);
    nvrtc_output_free(&a);
    nvrtc_output_free(&b);
}

static void test_refusals(void **state) {
    (void)state;
    if (library == NULL) skip();
    struct nvrtc_output out;
    struct error e = {0};
    struct nvrtc_job job = {
        "#define A 1\n#warning careful\n__global__ void f() { frobnicate(A); }\n",
        "lac_bad",
        NULL,
        OPTIONS,
        90,
        NULL};
    assert_int_equal(nvrtc_compile(library, &job, &out, &e), STATUS_INVALID);
    assert_null(out.cubin);
    assert_null(out.ptx);
    assert_int_equal(out.cubin_bytes, 0);
    /* The error line, not the warning's before it; the log has both. */
    assert_non_null(strstr(e.message, "lac_bad"));
    assert_non_null(strstr(e.message, "frobnicate"));
    assert_null(strchr(e.message, '\n'));
    assert_non_null(strstr(out.log, "careful"));
    nvrtc_output_free(&out);

    job = (struct nvrtc_job){GOOD, "lac_good", NULL, "--no-such-option", 90, NULL};
    assert_int_equal(nvrtc_compile(library, &job, &out, &e), STATUS_INVALID);
    nvrtc_output_free(&out);
    job = (struct nvrtc_job){GOOD, "lac_good", NULL, "", 42, NULL};
    assert_int_equal(nvrtc_compile(library, &job, &out, &e), STATUS_UNSUPPORTED);
    assert_non_null(strstr(e.message, "sm_42"));
    nvrtc_output_free(&out);
    assert_false(nvrtc_knows_arch(library, 0));
    assert_int_equal(nvrtc_compile(library, &job, &out, NULL), STATUS_UNSUPPORTED);
    nvrtc_output_free(&out);
}

struct compiling {
    pthread_t thread;
    unsigned number;
    bool good;
};

static void *compile_some(void *arg) {
    struct compiling *c = arg;
    for (unsigned i = 0; i < 3; i++) {
        char name[32], text[256], word[32];
        snprintf(name, sizeof name, "lac_t%u_%u", c->number, i);
        snprintf(text, sizeof text, "extern \"C\" __global__ void %s(int *x) { *x = %u; }", name,
                 c->number * 1000 + i);
        snprintf(word, sizeof word, "%u;", c->number * 1000 + i);
        const struct nvrtc_job job = {text, name, NULL, OPTIONS, 80, NULL};
        struct nvrtc_output out;
        if (nvrtc_compile(library, &job, &out, NULL) != STATUS_OK) return NULL;
        const bool mine = strstr(out.ptx, name) != NULL && strstr(out.ptx, word) != NULL;
        nvrtc_output_free(&out);
        if (!mine) return NULL;
    }
    c->good = true;
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    if (library == NULL) skip();
    struct compiling c[4] = {0};
    for (unsigned i = 0; i < 4; i++) {
        c[i].number = i + 1;
        assert_int_equal(pthread_create(&c[i].thread, NULL, compile_some, &c[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(c[i].thread, NULL);
        assert_true(c[i].good);
    }
}

static void test_cancel(void **state) {
    (void)state;
    if (library == NULL) skip();
    atomic_bool cancel = true;
    struct nvrtc_output out;
    struct error e = {0};
    const struct nvrtc_job job = {GOOD, "lac_good", NULL, OPTIONS, 90, &cancel};
    const enum status s = nvrtc_compile(library, &job, &out, &e);
    /* Before 12.8 it cannot be stopped. */
    assert_true(s == STATUS_GONE || strcmp(nvrtc_version(library), "nvrtc 12.8") < 0);
    nvrtc_output_free(&out);
    atomic_store(&cancel, false);
    assert_int_equal(nvrtc_compile(library, &job, &out, &e), STATUS_OK);
    nvrtc_output_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing),    cmocka_unit_test(test_compile),
        cmocka_unit_test(test_repeatable), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_threads),    cmocka_unit_test(test_cancel),
    };
    return cmocka_run_group_tests(tests, open_library, close_library);
}
