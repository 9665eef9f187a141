/* with_softgpu.h: for tests that run against the software CUDA device: opens it through core/cuda.h
 * with a context on the calling thread, fresh each time. Failures end the test (cmocka's asserts).
 */
#ifndef LAC_TESTS_SOFTGPU_WITH_SOFTGPU_H
#define LAC_TESTS_SOFTGPU_WITH_SOFTGPU_H

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/cuda.h"
#include "tests/softgpu/softgpu.h"

struct softgpu {
    struct cuda cuda;
    struct cuda_device device;
    struct cu_context *context;
    softgpu_findings_count_fn *findings_count;
    softgpu_rule_count_fn *rule_count;
    softgpu_finding_fn *finding;
    softgpu_findings_clear_fn *findings_clear;
    softgpu_pending_fn *pending;
    softgpu_fail_fn *faults;
    softgpu_report_fn *report;
    softgpu_counter_fn *counter;
    softgpu_reset_fn *reset;
};

/* LAC_CUDA=device: tests run on the machine's own GPU (tests/gpu_check.sh). What only the software
 * device knows is then nothing: no findings, counters 0, no faults. */
static inline bool softgpu_on_hardware(void) {
    const char *which = getenv("LAC_CUDA");
    return which != NULL && strcmp(which, "device") == 0;
}
static inline uint64_t hardware_count(int kind) {
    (void)kind;
    return 0;
}
static inline uint64_t hardware_rule(enum host_rule rule) {
    (void)rule;
    return 0;
}
static inline int hardware_finding(uint32_t i, struct finding *out) {
    (void)i, (void)out;
    return 0;
}
static inline uint64_t hardware_pending(void) {
    return 0;
}
static inline int hardware_text(const char *text) {
    (void)text;
    return 0;
}
static inline uint64_t hardware_counter(const char *kernel, const char *counter) {
    (void)kernel, (void)counter;
    return 0;
}
static inline void hardware_nothing(void) {}

static inline const char *softgpu_path(void) {
    static char path[512];
    if (softgpu_on_hardware()) return "libcuda.so.1";
    const char *build = getenv("BUILD");
    snprintf(path, sizeof path, "%s/tests/softgpu/libcuda.so.1", build != NULL ? build : "build");
    return path;
}

static inline void softgpu_symbol(void *library, const char *name, void *function) {
    void *p = dlsym(library, name);
    if (p == NULL) fail_msg("%s: %s", name, dlerror());
    memcpy(function, &p, sizeof p);
}

static inline void softgpu_attach(struct softgpu *g) {
    if (softgpu_on_hardware()) {
        g->findings_count = hardware_count;
        g->rule_count = hardware_rule;
        g->finding = hardware_finding;
        g->findings_clear = g->reset = hardware_nothing;
        g->pending = hardware_pending;
        g->faults = g->report = hardware_text;
        g->counter = hardware_counter;
        return;
    }
    void *library = dlopen(softgpu_path(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) fail_msg("%s", dlerror());
    softgpu_symbol(library, "softgpu_findings_count", &g->findings_count);
    softgpu_symbol(library, "softgpu_rule_count", &g->rule_count);
    softgpu_symbol(library, "softgpu_finding", &g->finding);
    softgpu_symbol(library, "softgpu_findings_clear", &g->findings_clear);
    softgpu_symbol(library, "softgpu_pending", &g->pending);
    softgpu_symbol(library, "softgpu_fail", &g->faults);
    softgpu_symbol(library, "softgpu_report", &g->report);
    softgpu_symbol(library, "softgpu_counter", &g->counter);
    softgpu_symbol(library, "softgpu_reset", &g->reset);
    dlclose(library);
}

/* device NULL: what the environment says. */
static inline void softgpu_open(struct softgpu *g, const char *device) {
    memset(g, 0, sizeof *g);
    softgpu_attach(g);
    if (device != NULL) setenv("SOFTGPU_DEVICE", device, 1);
    g->reset();
    struct error e = {0};
    if (cuda_open(&g->cuda, softgpu_path(), &e) != STATUS_OK ||
        cuda_device_read(&g->cuda, 0, &g->device, &e) != STATUS_OK ||
        cuda_context_open(&g->cuda, &g->device, &g->context, &e) != STATUS_OK) {
        fail_msg("%s", e.message);
    }
}

static inline void softgpu_print(const struct softgpu *g) {
    struct finding f;
    for (uint32_t i = 0; g->finding(i, &f); i++) {
        print_message("finding: %s: %s (%llu times)\n", f.kernel, f.text,
                      (unsigned long long)f.count);
    }
}

/* Whatever was found is a failure. */
static inline void softgpu_close(struct softgpu *g) {
    cuda_context_close(&g->cuda, &g->device);
    const uint64_t n = g->findings_count(-1);
    if (n != 0) softgpu_print(g);
    assert_int_equal(n, 0);
    cuda_close(&g->cuda);
}

/* c[i] = a[i] + b[i], floats; as a compiler would write it. */
#define SOFTGPU_ADD_PTX                                                                            \
    ".version 7.5\n.target sm_75\n.address_size 64\n"                                              \
    ".visible .entry add(.param .u64 p_a, .param .u64 p_b, .param .u64 p_c, .param .u32 p_n)\n"    \
    "{\n"                                                                                          \
    ".reg .pred %p<2>;\n.reg .b32 %r<6>;\n.reg .f32 %f<4>;\n.reg .b64 %rd<11>;\n"                  \
    "ld.param.u64 %rd1, [p_a];\nld.param.u64 %rd2, [p_b];\nld.param.u64 %rd3, [p_c];\n"            \
    "ld.param.u32 %r1, [p_n];\n"                                                                   \
    "mov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %ntid.x;\nmov.u32 %r4, %tid.x;\n"                        \
    "mad.lo.s32 %r5, %r2, %r3, %r4;\n"                                                             \
    "setp.ge.u32 %p1, %r5, %r1;\n@%p1 bra $DONE;\n"                                                \
    "cvta.to.global.u64 %rd4, %rd1;\nmul.wide.u32 %rd5, %r5, 4;\nadd.s64 %rd6, %rd4, %rd5;\n"      \
    "cvta.to.global.u64 %rd7, %rd2;\nadd.s64 %rd8, %rd7, %rd5;\n"                                  \
    "ld.global.f32 %f1, [%rd6];\nld.global.f32 %f2, [%rd8];\nadd.f32 %f3, %f1, %f2;\n"             \
    "cvta.to.global.u64 %rd9, %rd3;\nadd.s64 %rd10, %rd9, %rd5;\n"                                 \
    "st.global.f32 [%rd10], %f3;\n"                                                                \
    "$DONE:\nret;\n}\n"

#endif
