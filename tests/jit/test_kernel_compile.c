/* Every kernel compiles without spills, local memory, float64 and division, and how many of its
 * CTAs share an SM on each chip. Quick: the default model on three architectures; LONG=1: all on
 * all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "jit/nvrtc.h"
#include "tests/jit/kernel_cases.h"

enum { N_WORKERS = 2, N_CCS = 10 };
static const uint32_t all_ccs[N_CCS] = {75, 80, 86, 87, 89, 90, 100, 110, 120, 121};

struct result {
    const struct kernel_case *c;
    uint32_t cc;
    struct kernel_device device;
    struct kernel_config config;
    char name[KERNEL_NAME_BYTES], failure[512];
    bool refused;
    uint32_t registers, shared_static_bytes;
    uint64_t compile_ns;
};

static struct kernel_case cases[KERNEL_CASES_MAX];
static struct result results[KERNEL_CASES_MAX * N_CCS];
static uint32_t n_results;
static atomic_uint next;
static struct nvrtc *nvrtc;

/* ptxas's own report: "Used 64 registers, ... 1280 bytes smem". */
static void read_log(const char *log, struct result *r) {
    const char *used = strstr(log, "Used "), *smem = strstr(log, " bytes smem");
    if (used == NULL || strstr(log, " 0 bytes spill stores, 0 bytes spill loads") == NULL ||
        strstr(log, " 0 bytes stack frame") == NULL)
        snprintf(r->failure, sizeof r->failure, "spills or local memory: %.400s", log);
    if (used != NULL) r->registers = (uint32_t)atoi(used + 5);
    if (smem != NULL) {
        while (smem > log && smem[-1] >= '0' && smem[-1] <= '9') smem--;
        r->shared_static_bytes = (uint32_t)atoi(smem);
    }
}

static void compile(struct result *r) {
    struct error e = {0};
    if (kernel_config_choose(&r->c->spec, &r->device, r->c->n_rows, r->c->walk, NULL, &r->config,
                             &e) != STATUS_OK) {
        r->refused = true;
        return;
    }
    kernel_name(&r->c->spec, &r->config, &r->device, r->name);
    struct buffer text;
    buffer_init(&text, 0);
    kernel_render(&r->c->spec, &r->config, &r->device, &text);
    const struct nvrtc_job job = {.source = buffer_cstr(&text),
                                  .name = r->name,
                                  .options = KERNEL_OPTIONS " --ptxas-options=-v",
                                  .arch = r->cc};
    struct nvrtc_output out;
    if (nvrtc_compile(nvrtc, &job, &out, &e) != STATUS_OK) {
        snprintf(r->failure, sizeof r->failure, "%s", e.message);
    } else {
        read_log(out.log, r);
        r->compile_ns = out.compile_ns;
        /* Whole words of the PTX: types and operations that a hot kernel must not have. */
        static const char *const banned[] = {".f64", "div.", ".local", "rem."};
        for (unsigned i = 0; i < sizeof banned / sizeof *banned; i++)
            if (strstr(out.ptx, banned[i]) != NULL)
                snprintf(r->failure, sizeof r->failure, "%s in the PTX", banned[i]);
        if (strstr(out.ptx, r->name) == NULL)
            snprintf(r->failure, sizeof r->failure, "the symbol is not there");
    }
    nvrtc_output_free(&out);
    buffer_free(&text);
}

static void *work(void *arg) {
    (void)arg;
    for (uint32_t i; (i = atomic_fetch_add(&next, 1)) < n_results;) compile(&results[i]);
    return NULL;
}

static void every_kernel_compiles(void **state) {
    (void)state;
    if (nvrtc == NULL) skip();
    const char *setting = getenv("LONG");
    const bool all = setting != NULL && strcmp(setting, "1") == 0;
    const uint32_t n_cases = kernel_cases(cases);
    for (uint32_t a = 0; a < N_CCS; a++) {
        const uint32_t cc = all_ccs[a];
        const char *name;
        const struct kernel_device *device = NULL;
        for (uint32_t i = 0; device == NULL && kernel_device_at(i, &name) != NULL; i++)
            if (kernel_device_at(i, &name)->cc == cc) device = kernel_device_at(i, &name);
        assert_non_null(device);
        if (!nvrtc_knows_arch(nvrtc, cc)) continue;
        for (uint32_t i = 0; i < n_cases; i++) {
            /* Quick: everything of the default model for 8.0, its ends for 7.5 and 12.0. */
            const bool ends = cases[i].n_rows == 1 || cases[i].n_rows == 64;
            const bool quick = cases[i].main && (cc == 80 || ((cc == 75 || cc == 120) && ends));
            if (!all && !quick) continue;
            results[n_results++] = (struct result){.c = &cases[i], .cc = cc, .device = *device};
        }
    }
    pthread_t threads[N_WORKERS];
    for (int i = 0; i < N_WORKERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, NULL), 0);
    for (int i = 0; i < N_WORKERS; i++) pthread_join(threads[i], NULL);
    uint32_t n_failed = 0, n_refused = 0;
    print_message("%-64s %4s %6s %7s  CTAs an SM\n", "kernel", "regs", "static", "dynamic");
    for (uint32_t i = 0; i < n_results; i++) {
        struct result *r = &results[i];
        n_refused += r->refused;
        if (r->refused) continue;
        print_message("%-64s %4u %6u %7u ", r->name, r->registers, r->shared_static_bytes,
                      r->config.shared_bytes);
        const struct kernel_usage usage = {r->registers, r->shared_static_bytes};
        const char *name;
        for (uint32_t d = 0; kernel_device_at(d, &name) != NULL; d++) {
            const struct kernel_device *device = kernel_device_at(d, &name);
            if (device->cc == r->cc)
                print_message(" %s %u", name, kernel_occupancy(device, &r->config, &usage));
        }
        print_message("\n");
        /* As many as the cost model counted on must be resident. */
        if (r->failure[0] == '\0' &&
            kernel_occupancy(&r->device, &r->config, &usage) < r->config.blocks_per_sm)
            snprintf(r->failure, sizeof r->failure, "fewer CTAs than the %u planned",
                     r->config.blocks_per_sm);
        if (r->failure[0] != '\0') {
            print_message("FAILED %s: %s\n", r->name, r->failure);
            n_failed++;
        }
    }
    print_message("%u kernels, %u refused by their configuration\n", n_results, n_refused);
    assert_int_equal(n_failed, 0);
    assert_true(n_refused * 8 < n_results);
}

static int setup(void **state) {
    (void)state;
    struct error e = {0};
    if (nvrtc_open(getenv("LAC_NVRTC"), &nvrtc, &e) != STATUS_OK)
        print_message("skip: kernels are not compiled: %s\n", e.message);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_kernel_compiles)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
