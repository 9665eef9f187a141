/* cuda_backend.c: opening, and the life of a step. */
#include "jit/cuda_backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/page_pool.h"
#include "core/check.h"
#include "core/clock.h"
#include "jit/cuda_backend_state.h"

struct kernel_device cuda_kernel_device(const struct cuda_device *d) {
    return (struct kernel_device){
        .cc = d->cc,
        .n_sms = d->n_sms,
        .shared_per_block = d->shared_bytes_per_block_optin,
        .shared_per_sm = d->shared_bytes_per_sm,
        .registers_per_sm = d->registers_per_sm,
        .threads_per_sm = d->threads_per_sm,
        .blocks_per_sm = d->blocks_per_sm,
        .l2_bytes = d->l2_bytes,
        .dependent_launch = d->cc >= 90,
    };
}

/* Steps. */

static enum status lose(struct cuda_backend *b, struct step *s) {
    b->lost = true;
    s->status = STATUS_DEVICE;
    return STATUS_DEVICE;
}

static enum status cuda_submit(struct backend *backend, struct step *s) {
    struct cuda_backend *b = (struct cuda_backend *)backend;
    CHECK(b->step == NULL && b->finished == NULL);
    if (b->lost) return lose(b, s);
    enum cuda_phase phase;
    enum cuda_gates gates;
    bool extras;
    const uint64_t submit_ns = clock_now_ns();
    const enum status fits = cuda_block_fill(b, s, &phase, &extras, &gates);
    if (fits != STATUS_OK) return fits;
    s->submit_ns = submit_ns;
    atomic_store(&b->done, false);
    nvtx_push(&b->nvtx, phase == CUDA_DECODE ? "decode" : "prefill", b->bucket->bytes[phase],
              b->bucket->flops[phase]);
    struct error e = {0};
    const enum status launched = b->options.no_graphs
                                     ? cuda_launch_step(b, phase, extras, gates, &e)
                                     : CUDA_CALL(&b->cuda, &e, graph_launch,
                                                 b->bucket->graph[phase][extras][gates], b->stream);
    nvtx_pop(&b->nvtx);
    if (launched != STATUS_OK) {
        log_write(b->options.log, LOG_ERROR, "cuda: a step was not launched: %s", e.message);
        return lose(b, s);
    }
    b->step = s;
    return STATUS_OK;
}

static void settle(struct cuda_backend *b, enum cu_result r) {
    struct step *s = b->step;
    b->step = NULL;
    b->finished = s;
    if (r == CUDA_SUCCESS) {
        cuda_block_read(b, s);
        s->status = STATUS_OK;
        s->done_ns = atomic_load(&b->done_ns);
        return;
    }
    log_write(b->options.log, LOG_ERROR,
              "cuda: %s failed during a step (%s); the device takes no more work before a restart",
              b->device.name, cuda_result_name(&b->cuda, r));
    (void)lose(b, s);
    s->done_ns = clock_now_ns();
}

static void cuda_drain(struct backend *backend) {
    struct cuda_backend *b = (struct cuda_backend *)backend;
    if (b->step == NULL) return;
    settle(b, b->cuda.stream_synchronize(b->stream));
}

static struct step *cuda_poll(struct backend *backend) {
    struct cuda_backend *b = (struct cuda_backend *)backend;
    if (b->step != NULL && b->cfg.event_fd < 0) cuda_drain(backend);
    if (b->step != NULL) {
        /* The host function is the last to run, and a step that failed never gets there: then the
         * stream knows. It may still be "not ready" when the function has returned. */
        const enum cu_result r =
            atomic_load(&b->done) ? CUDA_SUCCESS : b->cuda.stream_query(b->stream);
        if (r != CUDA_ERROR_NOT_READY) settle(b, r);
    }
    struct step *s = b->finished;
    b->finished = NULL;
    return s;
}

static enum status cuda_publish(struct backend *backend, uint64_t epoch, const struct heads *heads,
                                struct error *e) {
    (void)backend;
    (void)epoch;
    (void)heads;
    return error_set(e, STATUS_UNSUPPORTED, "heads", "the CUDA backend runs no heads");
}

static void cuda_retire(struct backend *backend, uint64_t epoch) {
    (void)backend;
    (void)epoch;
}

/* Results of giving back are of no use: after a lost device each of them is an error. */
static void cuda_destroy(struct backend *backend) {
    struct cuda_backend *b = (struct cuda_backend *)backend;
    if (b->stream != NULL) (void)b->cuda.stream_synchronize(b->stream);
    for (uint32_t i = 0; i < b->n_buckets; i++)
        for (int phase = 0; phase < CUDA_PHASES; phase++)
            for (int extras = 0; extras < 2; extras++)
                for (int gates = 0; gates < CUDA_GATES; gates++)
                    if (b->buckets[i].graph[phase][extras][gates] != NULL)
                        (void)b->cuda.graph_exec_destroy(b->buckets[i].graph[phase][extras][gates]);
    device_memory_close(&b->scratch_memory);
    device_memory_close(&b->gate_memory);
    device_memory_close(&b->kv_memory);
    device_memory_close(&b->weights_memory);
    pinned_memory_close(&b->pinned);
    compiler_close(b->compiler);
    store_close(b->store);
    pack_close(b->pack);
    if (b->stream != NULL) (void)b->cuda.stream_destroy(b->stream);
    if (b->context != NULL) cuda_context_close(&b->cuda, &b->device);
    cuda_close(&b->cuda);
    nvtx_close(&b->nvtx);
    free(b->layers);
    free(b->hashes);
    free(b->host_norm);
    free(b->row_span);
    free(b->needed);
    free(b->last_layer);
    free(b->n_run_layers);
    free(b->gate_of.entries);
    free(b->gate_of.anchors);
    free(b);
}

static const struct backend_ops cuda_ops = {
    .name = "cuda",
    .publish = cuda_publish,
    .retire = cuda_retire,
    .submit = cuda_submit,
    .poll = cuda_poll,
    .drain = cuda_drain,
    .destroy = cuda_destroy,
};

/* Opening. */

static enum status check_class(const struct backend_config *cfg, struct error *e) {
    if (cfg->activations == ACTIVATION_F32)
        return error_set(e, STATUS_UNSUPPORTED, "exact", "the CUDA backend has no FP32 path");
    if (cfg->kv != KV_F16)
        return error_set(e, STATUS_UNSUPPORTED, "kv", "the CUDA backend keeps KV as f16 only");
    return STATUS_OK;
}

static enum status open_driver(const struct cuda_backend_options *o, struct cuda *cu,
                               struct cuda_device *d, struct error *e) {
    enum status s = cuda_open(cu, o->driver, e);
    if (s != STATUS_OK) return s;
    s = cuda_device_read(cu, o->device, d, e);
    if (s == STATUS_OK && !d->virtual_memory)
        s = error_set(e, STATUS_UNSUPPORTED, "backend", "%.100s has no virtual memory management",
                      d->name);
    if (s != STATUS_OK) cuda_close(cu);
    return s;
}

/* The kernels' own list says what of a plan they do not take. */
static enum status check_plan(const struct backend_config *cfg, const struct kernel_device *chip,
                              struct error *e) {
    struct kernel_set set = {0};
    const struct kernel_set_options options = {.activation_bits =
                                                   cfg->activations == ACTIVATION_INT8 ? 8 : 16,
                                               .max_rows = KERNEL_SET_MAX_ROWS};
    const enum status s = kernel_set_build(cfg->plan, chip, &options, &set, e);
    kernel_set_free(&set);
    return s;
}

enum status cuda_backend_probe(const struct backend_config *cfg,
                               const struct cuda_backend_options *o, struct error *e) {
    struct cuda cu = {0};
    struct cuda_device d;
    enum status s = open_driver(o, &cu, &d, e);
    if (s != STATUS_OK) return s;
    const struct kernel_device chip = cuda_kernel_device(&d);
    s = check_class(cfg, e);
    if (s == STATUS_OK) s = check_plan(cfg, &chip, e);
    cuda_close(&cu);
    return s;
}

static enum status open_device(struct cuda_backend *b, struct error *e) {
    struct error ignored;
    enum status s = open_driver(&b->options, &b->cuda, &b->device, e);
    if (s != STATUS_OK) return s;
    b->chip = cuda_kernel_device(&b->device);
    /* Without a profiler ranges do nothing. */
    (void)!nvtx_open(&b->nvtx, b->options.nvtx, "laconic", &ignored);
    s = check_plan(&b->cfg, &b->chip, e);
    if (s == STATUS_OK) s = cuda_context_open(&b->cuda, &b->device, &b->context, e);
    if (s == STATUS_OK)
        s = CUDA_CALL(&b->cuda, e, stream_create_with_priority, &b->stream, CU_STREAM_NON_BLOCKING,
                      0);
    return s;
}

static enum status open_compiler(struct cuda_backend *b, struct error *e) {
    const struct cuda_backend_options *o = &b->options;
    const struct store_config store = {.folder = o->cache_dir, .log = o->log};
    enum status s = store_open(&store, &b->store, e);
    if (s == STATUS_OK && o->pack_path != NULL) s = pack_open(o->pack_path, &b->pack, e);
    if (s != STATUS_OK) return s;
    const struct compiler_config cfg = {.pack = b->pack,
                                        .store = b->store,
                                        .may_compile = o->may_compile,
                                        .nvrtc_path = o->nvrtc,
                                        .build = o->build,
                                        .dump_folder = o->dump_folder,
                                        .log = o->log,
                                        .cuda = &b->cuda,
                                        .context = b->context,
                                        .progress = o->compiled,
                                        .progress_arg = o->compiled_arg};
    return compiler_open(&cfg, &b->compiler, e);
}

static enum status take_host_memory(struct cuda_backend *b, struct error *e) {
    const struct plan *p = b->cfg.plan;
    const uint32_t profiles = b->cfg.limits.max_profiles > 0 ? b->cfg.limits.max_profiles : 1;
    b->layers = calloc(p->n_layers, sizeof *b->layers);
    b->row_span = calloc(b->max_rows, sizeof *b->row_span);
    b->needed = calloc(b->max_rows, 1);
    b->last_layer = calloc(profiles, sizeof *b->last_layer);
    b->n_run_layers = calloc(profiles, sizeof *b->n_run_layers);
    bool all = b->layers != NULL && b->row_span != NULL && b->needed != NULL &&
               b->last_layer != NULL && b->n_run_layers != NULL;
    if (b->cfg.gates) {
        b->gate_of.entries = calloc((size_t)b->cfg.n_slots * GATE_RING, sizeof *b->gate_of.entries);
        b->gate_of.anchors = calloc(b->cfg.n_ctx / KV_PAGE_TOKENS / 64 + 1, sizeof(uint64_t));
        all = all && b->gate_of.entries != NULL && b->gate_of.anchors != NULL;
    }
    if (p->out_norm != NULL) {
        b->host_norm = malloc(p->d_model * sizeof *b->host_norm);
        all = all && b->host_norm != NULL;
        if (b->host_norm != NULL)
            tensor_dequantise(p->out_norm->type, p->out_norm->data, b->host_norm, p->d_model);
    }
    if (all) return STATUS_OK;
    return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for a backend");
}

/* Rows of a prefill tile that the attention kernel of every layer takes. */
static enum status choose_tiles(struct cuda_backend *b, struct error *e) {
    b->tile_rows = UINT32_MAX;
    for (uint32_t i = 0; i < b->cfg.plan->n_layers; i++) {
        struct kernel_config config;
        const enum status s = kernel_config_choose(&b->layers[i].attention, &b->chip, b->max_rows,
                                                   true, NULL, &config, e);
        if (s != STATUS_OK) return s;
        if (config.tile_rows < b->tile_rows) b->tile_rows = config.tile_rows;
    }
    return STATUS_OK;
}

static enum status check_memory(struct cuda_backend *b, struct error *e) {
    struct memory_limit limit;
    const enum status s = device_memory_limit(&b->cuda, &limit, e);
    return s != STATUS_OK ? s : budget_check(&b->budget, &limit, e);
}

/* As far as sizes are known: the device is open, nothing is allocated on it. */
static enum status open_for_planning(struct cuda_backend *b, uint64_t *granularity_bytes,
                                     struct error *e) {
    enum status s = check_class(&b->cfg, e);
    if (s != STATUS_OK) return s;
    cuda_plan_buckets(b);
    s = take_host_memory(b, e);
    if (s == STATUS_OK) s = open_device(b, e);
    if (s == STATUS_OK) s = device_memory_granularity(&b->cuda, &b->device, granularity_bytes, e);
    if (s == STATUS_OK) cuda_describe(b);
    return s;
}

/* What the device has less of than at the last call: what the driver took meanwhile. */
static uint64_t taken_since(const struct cuda_backend *b, uint64_t *free_before) {
    size_t free_bytes = 0, total = 0;
    if (b->cuda.mem_get_info(&free_bytes, &total) != CUDA_SUCCESS) return 0;
    const uint64_t taken = *free_before > free_bytes ? *free_before - free_bytes : 0;
    *free_before = free_bytes;
    return taken;
}

static enum status open_all(struct cuda_backend *b, struct error *e) {
    uint64_t granularity_bytes = 0, free_bytes = 0;
    enum status s = open_for_planning(b, &granularity_bytes, e);
    if (s != STATUS_OK) return s;
    for (uint32_t g = 0; g < b->cfg.plan->n_groups; g++)
        b->n_pages[g] = page_pool_counts(b->cfg.pages, g).capacity;
    cuda_plan_memory(b, granularity_bytes);
    s = choose_tiles(b, e);
    if (s == STATUS_OK) s = check_memory(b, e);
    if (s == STATUS_OK) s = open_compiler(b, e);
    (void)taken_since(b, &free_bytes);
    if (s == STATUS_OK) s = cuda_request_kernels(b, e);
    if (s == STATUS_OK) s = compiler_run(b->compiler, b->cfg.workers, e);
    b->kernel_bytes = taken_since(b, &free_bytes);
    if (s == STATUS_OK) s = cuda_load(b, e);
    (void)taken_since(b, &free_bytes);
    if (s == STATUS_OK && !b->options.no_graphs) s = cuda_build_graphs(b, e);
    if (s == STATUS_OK) s = CUDA_CALL(&b->cuda, e, stream_synchronize, b->stream);
    b->graph_bytes = taken_since(b, &free_bytes);
    return s;
}

static uint32_t count_graphs(const struct cuda_backend *b) {
    const uint32_t extras = b->max_copies > 0 || b->max_taps > 0 ? 2 : 1;
    return b->options.no_graphs
               ? 0
               : b->n_buckets * CUDA_PHASES * extras * (b->cfg.gates ? CUDA_GATES : 1);
}

static enum status plan_pages(struct cuda_backend *b, uint32_t n_pages, uint32_t most_pages,
                              struct cuda_backend_plan *out, struct error *e) {
    const struct plan *p = b->cfg.plan;
    uint64_t granularity_bytes = 0, page_bytes = 0;
    enum status s = open_for_planning(b, &granularity_bytes, e);
    if (s == STATUS_OK) s = device_memory_limit(&b->cuda, &out->limit, e);
    if (s != STATUS_OK) return s;
    cuda_plan_memory(b, granularity_bytes);
    for (uint32_t g = 0; g < p->n_groups; g++)
        page_bytes += b->page_bytes[g] + b->gate_of.bounds_bytes[g];
    /* Of every line up to a step of the granularity is lost. */
    const uint64_t rest = b->budget.total_bytes + 2 * granularity_bytes;
    const uint64_t room = out->limit.limit_bytes > rest ? out->limit.limit_bytes - rest : 0;
    const uint64_t fit = room / page_bytes;
    if (n_pages == 0 && fit == 0) return budget_check(&b->budget, &(struct memory_limit){0}, e);
    out->n_pages = n_pages > 0 ? n_pages : fit < most_pages ? (uint32_t)fit : most_pages;
    for (uint32_t g = 0; g < p->n_groups; g++) b->n_pages[g] = out->n_pages;
    cuda_plan_memory(b, granularity_bytes);
    s = cuda_count_work(b, e);
    if (s != STATUS_OK) return s;
    out->budget = b->budget;
    out->pinned_bytes = cuda_pinned_bytes(b);
    out->n_graphs = count_graphs(b);
    out->decode_layer_kernels = b->layer_kernels[CUDA_DECODE];
    out->prefill_layer_kernels = b->layer_kernels[CUDA_PREFILL];
    out->cc = b->device.cc;
    out->n_sms = b->device.n_sms;
    snprintf(out->device, sizeof out->device, "%s", b->device.name);
    return STATUS_OK;
}

enum status cuda_backend_plan(const struct backend_config *cfg,
                              const struct cuda_backend_options *o, uint32_t n_pages,
                              uint32_t most_pages, struct cuda_backend_plan *out, struct error *e) {
    *out = (struct cuda_backend_plan){0};
    struct cuda_backend *b = calloc(1, sizeof *b);
    if (b == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for a plan");
    b->base.ops = &cuda_ops;
    b->cfg = *cfg;
    b->options = *o;
    b->options.nvtx = NULL;
    b->bits = cfg->activations == ACTIVATION_INT8 ? 8 : 16;
    const enum status s = plan_pages(b, n_pages, most_pages, out, e);
    cuda_destroy(&b->base);
    if (s != STATUS_OK) *out = (struct cuda_backend_plan){0};
    return s;
}

enum status cuda_backend_open(const struct backend_config *cfg,
                              const struct cuda_backend_options *o, struct backend **out,
                              struct error *e) {
    *out = NULL;
    struct cuda_backend *b = calloc(1, sizeof *b);
    if (b == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for a backend");
    b->base.ops = &cuda_ops;
    b->cfg = *cfg;
    b->options = *o;
    b->bits = cfg->activations == ACTIVATION_INT8 ? 8 : 16;
    const enum status s = open_all(b, e);
    if (s != STATUS_OK) {
        cuda_destroy(&b->base);
        return s;
    }
    *out = &b->base;
    return STATUS_OK;
}

void cuda_backend_info(const struct backend *backend, struct cuda_backend_info *out) {
    const struct cuda_backend *b = (const struct cuda_backend *)backend;
    *out = (struct cuda_backend_info){.device = b->device.name,
                                      .cc = b->device.cc,
                                      .n_sms = b->device.n_sms,
                                      .n_graphs = b->n_graphs,
                                      .budget = b->budget,
                                      .pinned_bytes = b->pinned.bytes,
                                      .kernel_bytes = b->kernel_bytes,
                                      .graph_bytes = b->graph_bytes,
                                      .decode_layer_kernels = b->layer_kernels[CUDA_DECODE],
                                      .prefill_layer_kernels = b->layer_kernels[CUDA_PREFILL],
                                      .lost = b->lost};
    const struct compiled *k;
    for (uint32_t i = 0; (k = compiler_at(b->compiler, i)) != NULL; i++) {
        out->n_kernels++;
        out->n_compiled += k->origin == COMPILER_FROM_SOURCE;
    }
}

bool cuda_backend_kernel(const struct backend *backend, uint32_t i, uint64_t *hash) {
    const struct cuda_backend *b = (const struct cuda_backend *)backend;
    if (i >= b->n_hashes) return false;
    *hash = b->hashes[i];
    return true;
}
