/* cuda_rig.h: the CUDA backend on the software device, in the rig of tests/core/backend_bits.h, so
 * that what is asked of the CPU backend is asked of it. Compiled kernels are kept in
 * BUILD/test-kernels between runs.
 */
#ifndef LAC_TESTS_JIT_CUDA_RIG_H
#define LAC_TESTS_JIT_CUDA_RIG_H

#include "jit/cuda_backend.h"
#include "jit/nvrtc.h"
#include "tests/core/backend_bits.h"
#include "tests/core/toy_model.h"
#include "tests/softgpu/with_softgpu.h"

struct cuda_rig {
    struct bits_rig bits;
    struct softgpu gpu;
    char cache[512];
    struct log log;
};

struct cuda_rig_options {
    const char *device; /* as softgpu.h names it */
    uint32_t n_sms, seed;
    uint32_t n_ctx, max_rows, max_spans;
    enum activation_format activations;
    int event_fd; /* 0: none */
    const struct gate_policy *gate;
    bool no_graphs;
    const char *nvtx;
};

/* Whether kernels can be compiled here; says so if not. */
static inline bool cuda_rig_possible(void) {
    struct nvrtc *n;
    struct error e = {0};
    if (nvrtc_open(getenv("LAC_NVRTC"), &n, &e) != STATUS_OK) {
        print_message("skip: the CUDA backend is not run: %s\n", e.message);
        return false;
    }
    nvrtc_close(n);
    return true;
}

static inline struct cuda_backend_options cuda_rig_backend(struct cuda_rig *r) {
    const char *build = getenv("BUILD");
    snprintf(r->cache, sizeof r->cache, "%s/test-kernels", build != NULL ? build : "build");
    r->log = (struct log){.out = stderr, .level = LOG_WARN};
    return (struct cuda_backend_options){.driver = softgpu_path(),
                                         .nvrtc = getenv("LAC_NVRTC"),
                                         .may_compile = true,
                                         .cache_dir = r->cache,
                                         .build = "test",
                                         .log = &r->log};
}

/* Everything but the backend. */
static inline void cuda_rig_prepare(struct cuda_rig *r, const struct plan *plan,
                                    const struct cuda_rig_options *o, struct backend_config *cfg) {
    char text[16];
    struct bits_rig *b = &r->bits;
    memset(r, 0, sizeof *r);
    snprintf(text, sizeof text, "%u", o->n_sms);
    setenv("SOFTGPU_SMS", text, 1);
    snprintf(text, sizeof text, "%u", o->seed);
    setenv("SOFTGPU_SEED", text, 1);
    softgpu_open(&r->gpu, o->device);
    b->plan = plan;
    b->n_ctx = o->n_ctx;
    const uint32_t full = (o->n_ctx + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    b->limits = (struct step_limits){.max_spans = o->max_spans,
                                     .max_rows = o->max_rows,
                                     .max_outputs = o->max_rows,
                                     .max_pages = o->max_spans * full * plan->n_groups,
                                     .max_copies = 8,
                                     .max_taps = 4,
                                     .max_gates = 1,
                                     .max_gate_pages = 2,
                                     .max_slot_copies = 1,
                                     .max_profiles = 2};
    b->gate = o->gate;
    struct page_pool_config pool = {.n_groups = plan->n_groups};
    for (uint32_t g = 0; g < plan->n_groups; g++) {
        pool.page_bytes[g] = kv_page_bytes(&plan->groups[g], KV_F16);
        pool.n_pages[g] = 3 * full + BITS_MAX_SEQS * 4;
    }
    struct error e = {0};
    assert_int_equal(page_pool_open(&pool, &b->pages, &e), STATUS_OK);
    /* On a GPU kernels are compiled by all cores; the interpreter has none to spare. */
    const struct worker_pool_config workers = {.n_workers = softgpu_on_hardware() ? 8 : 2};
    assert_int_equal(worker_pool_start(&workers, &b->workers, &e), STATUS_OK);
    *cfg = (struct backend_config){.plan = plan,
                                   .pages = b->pages,
                                   .workers = b->workers,
                                   .limits = b->limits,
                                   .n_slots = BITS_MAX_SEQS,
                                   .n_ctx = o->n_ctx,
                                   .activations = o->activations,
                                   .kv = KV_F16,
                                   .gates = o->gate != NULL,
                                   .event_fd = o->event_fd > 0 ? o->event_fd : -1};
    b->step_mem = aligned_alloc(64, (step_footprint(&b->limits) + 63) & ~(size_t)63);
    b->step = step_init(b->step_mem, &b->limits);
    for (int s = 0; s < BITS_MAX_SEQS; s++)
        for (uint32_t g = 0; g < plan->n_groups; g++) {
            b->table[s][g] = malloc(full * sizeof(uint32_t));
            for (uint32_t p = 0; p < full; p++) b->table[s][g][p] = PAGE_NONE;
        }
}

static inline void cuda_rig_open(struct cuda_rig *r, const struct plan *plan,
                                 const struct cuda_rig_options *o) {
    struct backend_config cfg;
    struct error e = {0};
    cuda_rig_prepare(r, plan, o, &cfg);
    struct cuda_backend_options options = cuda_rig_backend(r);
    options.no_graphs = o->no_graphs;
    options.nvtx = o->nvtx;
    if (cuda_backend_open(&cfg, &options, &r->bits.backend, &e) != STATUS_OK) {
        softgpu_print(&r->gpu);
        fail_msg("%s", e.message);
    }
}

/* Whatever the checker found is a failure. */
static inline void cuda_rig_close(struct cuda_rig *r) {
    struct bits_rig *b = &r->bits;
    if (b->backend != NULL) b->backend->ops->destroy(b->backend);
    worker_pool_stop(b->workers);
    page_pool_close(b->pages);
    for (int s = 0; s < BITS_MAX_SEQS; s++)
        for (int g = 0; g < PLAN_MAX_GROUPS; g++) free(b->table[s][g]);
    free(b->step_mem);
    softgpu_close(&r->gpu);
}

#endif
