/* kernel_rig.h: for tests that run the kernels on the software CUDA device: buffers, compiled
 * kernels, launches with red zones of the driver around them. Failures end the test.
 */
#ifndef LAC_TESTS_JIT_KERNEL_RIG_H
#define LAC_TESTS_JIT_KERNEL_RIG_H

#include "core/rng.h"
#include "jit/nvrtc.h"
#include "tests/jit/kernel_cases.h"
#include "tests/softgpu/with_softgpu.h"

#define RIG_CU(call)                                                                               \
    do {                                                                                           \
        const enum cu_result result_ = (call);                                                     \
        if (result_ != CUDA_SUCCESS)                                                               \
            fail_msg("%s: %s", #call, cuda_result_name(&rig->g.cuda, result_));                    \
    } while (0)

struct rig {
    struct softgpu g;
    struct nvrtc *nvrtc;
    struct kernel_device device;
    struct cu_stream *stream;
    uint32_t at; /* of the random numbers */
};

/* device as softgpu.h names it; a slice of n_sms multiprocessors. False: no compiler, skip. */
static inline bool rig_open(struct rig *rig, const char *device, uint32_t n_sms, uint32_t seed) {
    char text[16];
    struct error e = {0};
    memset(rig, 0, sizeof *rig);
    if (nvrtc_open(getenv("LAC_NVRTC"), &rig->nvrtc, &e) != STATUS_OK) {
        print_message("skip: kernels are not run: %s\n", e.message);
        return false;
    }
    snprintf(text, sizeof text, "%u", n_sms);
    setenv("SOFTGPU_SMS", text, 1);
    snprintf(text, sizeof text, "%u", seed);
    setenv("SOFTGPU_SEED", text, 1);
    softgpu_open(&rig->g, device);
    const struct cuda_device *d = &rig->g.device;
    rig->device = (struct kernel_device){.cc = d->cc,
                                         .n_sms = d->n_sms,
                                         .shared_per_block = d->shared_bytes_per_block_optin,
                                         .shared_per_sm = d->shared_bytes_per_sm,
                                         .registers_per_sm = d->registers_per_sm,
                                         .threads_per_sm = d->threads_per_sm,
                                         .blocks_per_sm = d->blocks_per_sm,
                                         .l2_bytes = d->l2_bytes,
                                         .dependent_launch = d->cc >= 90};
    RIG_CU(rig->g.cuda.stream_create_with_priority(&rig->stream, CU_STREAM_NON_BLOCKING, 0));
    return true;
}

static inline void rig_close(struct rig *rig) {
    RIG_CU(rig->g.cuda.stream_destroy(rig->stream));
    softgpu_close(&rig->g);
    nvrtc_close(rig->nvrtc);
}

static inline uint64_t rig_alloc(struct rig *rig, size_t bytes) {
    uint64_t address = 0;
    RIG_CU(rig->g.cuda.mem_alloc(&address, bytes > 0 ? bytes : 4));
    return address;
}

static inline void rig_free(struct rig *rig, uint64_t address) {
    RIG_CU(rig->g.cuda.mem_free(address));
}

static inline void rig_write(struct rig *rig, uint64_t to, const void *from, size_t bytes) {
    if (bytes == 0) return;
    RIG_CU(rig->g.cuda.memcpy_htod_async(to, from, bytes, rig->stream));
    RIG_CU(rig->g.cuda.stream_synchronize(rig->stream));
}

static inline uint64_t rig_put(struct rig *rig, const void *from, size_t bytes) {
    const uint64_t address = rig_alloc(rig, bytes);
    rig_write(rig, address, from, bytes);
    return address;
}

static inline uint64_t rig_zeros(struct rig *rig, size_t bytes) {
    const uint64_t address = rig_alloc(rig, bytes);
    RIG_CU(rig->g.cuda.memset_d8_async(address, 0, bytes, rig->stream));
    RIG_CU(rig->g.cuda.stream_synchronize(rig->stream));
    return address;
}

static inline void rig_read(struct rig *rig, void *to, uint64_t from, size_t bytes) {
    RIG_CU(rig->g.cuda.memcpy_dtoh_async(to, from, bytes, rig->stream));
    RIG_CU(rig->g.cuda.stream_synchronize(rig->stream));
}

struct rig_kernel {
    struct cu_module *module;
    struct cu_function *function;
    char name[KERNEL_NAME_BYTES];
    struct kernel_config config;
    struct kernel_geometry geometry;
};

static inline void rig_compile(struct rig *rig, const struct kernel_spec *spec,
                               const struct kernel_config *config, uint32_t n_rows,
                               struct rig_kernel *k) {
    struct error e = {0};
    struct buffer text;
    struct nvrtc_output out;
    char log[1024];
    k->config = *config;
    kernel_name(spec, config, &rig->device, k->name);
    buffer_init(&text, 0);
    kernel_render(spec, config, &rig->device, &text);
    const struct nvrtc_job job = {.source = buffer_cstr(&text),
                                  .name = k->name,
                                  .options = KERNEL_OPTIONS,
                                  .arch = rig->device.cc};
    if (nvrtc_compile(rig->nvrtc, &job, &out, &e) != STATUS_OK)
        fail_msg("%s: %s\n%s", k->name, e.message, out.log);
    /* The software device executes PTX, a GPU what a server loads there. */
    const void *image = softgpu_on_hardware() ? (const void *)out.cubin : out.ptx;
    if (cuda_module_load(&rig->g.cuda, image, log, sizeof log, &k->module, &e) != STATUS_OK)
        fail_msg("%s: %s\n%s", k->name, e.message, log);
    RIG_CU(rig->g.cuda.module_get_function(&k->function, k->module, k->name));
    RIG_CU(rig->g.cuda.func_set_attribute(k->function, CU_FUNCTION_MAX_DYNAMIC_SHARED_BYTES,
                                          (int)config->shared_bytes));
    int registers = 0, shared = 0;
    RIG_CU(rig->g.cuda.func_get_attribute(&registers, CU_FUNCTION_REGISTERS, k->function));
    RIG_CU(rig->g.cuda.func_get_attribute(&shared, CU_FUNCTION_SHARED_BYTES, k->function));
    const struct kernel_usage usage = {(uint32_t)registers, (uint32_t)shared};
    kernel_launch(spec, config, &rig->device, &usage, n_rows, &k->geometry);
    nvrtc_output_free(&out);
    buffer_free(&text);
}

/* The kernel that the cost model chooses. */
static inline void rig_choose(struct rig *rig, const struct kernel_spec *spec, uint32_t n_rows,
                              bool walk, struct rig_kernel *k) {
    struct error e = {0};
    struct kernel_config config;
    if (kernel_config_choose(spec, &rig->device, n_rows, walk, NULL, &config, &e) != STATUS_OK)
        fail_msg("%s", e.message);
    rig_compile(rig, spec, &config, n_rows, k);
}

static inline void rig_unload(struct rig *rig, struct rig_kernel *k) {
    RIG_CU(rig->g.cuda.module_unload(k->module));
}

/* Launches and waits; whatever the checker found fails the test here, by the kernel's name. */
static inline void rig_launch(struct rig *rig, const struct rig_kernel *k, void *params) {
    struct error e = {0};
    const struct kernel_geometry *g = &k->geometry;
    const struct cuda_launch launch = {.grid = {g->grid[0], g->grid[1], g->grid[2]},
                                       .block = {g->block, 1, 1},
                                       .shared_bytes = g->shared_bytes,
                                       .dependent = rig->device.dependent_launch != 0};
    void *all[] = {params};
    if (cuda_launch(&rig->g.cuda, k->function, &launch, all, rig->stream, &e) != STATUS_OK)
        fail_msg("%s: %s", k->name, e.message);
    const enum cu_result r = rig->g.cuda.stream_synchronize(rig->stream);
    if (rig->g.findings_count(-1) != 0) softgpu_print(&rig->g);
    if (r != CUDA_SUCCESS || rig->g.findings_count(-1) != 0)
        fail_msg("%s: %s", k->name, cuda_result_name(&rig->g.cuda, r));
}

static inline uint64_t rig_random(struct rig *rig) {
    return rng_draw(11, 0, rig->at++, RNG_TEST, 0);
}
/* Bell-shaped, about -4 .. 4. */
static inline float rig_normal(struct rig *rig) {
    const uint64_t r = rig_random(rig);
    float s = 0;
    for (int i = 0; i < 4; i++) s += (float)(r >> (16 * i) & 0xffff) * 0x1p-16f - 0.5f;
    return s * 1.7f;
}
static inline void rig_normals(struct rig *rig, float *x, size_t n, float scale) {
    for (size_t i = 0; i < n; i++) x[i] = rig_normal(rig) * scale;
}

#endif
