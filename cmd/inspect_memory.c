#include "cmd/inspect_memory.h"

#include <unistd.h>

#include "cmd/engine.h"
#include "cmd/service.h"
#include "core/cpu/cpu_backend.h"

/* As engine.c sizes it: --kv-mib, or every slot's full context as far as the device has room. */
static void inspect_device(const struct config *c, struct backend_config *cfg, uint64_t page_bytes,
                           struct inspect_memory *out) {
    const struct cuda_backend_options options = {.build = LACONIC_VERSION};
    const uint64_t full = (cfg->n_ctx + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS + 1;
    uint64_t most = full * c->max_batch, pages = ((uint64_t)c->kv_mib << 20) / page_bytes;
    if (most > UINT32_MAX / 2) most = UINT32_MAX / 2;
    if (pages > UINT32_MAX / 2) pages = UINT32_MAX / 2;
    const enum status s =
        cuda_backend_plan(cfg, &options, (uint32_t)pages, (uint32_t)most, &out->device, &out->why);
    out->on_device =
        s == STATUS_OK && out->device.budget.total_bytes <= out->device.limit.limit_bytes;
    out->has_device = s != STATUS_NOT_FOUND;
    if (s == STATUS_OK && !out->on_device)
        (void)!budget_check(&out->device.budget, &out->device.limit, &out->why);
}

enum status inspect_memory(const struct config *c, const struct plan *p, struct inspect_memory *out,
                           struct error *e) {
    *out = (struct inspect_memory){0};
    struct engine_options o = engine_defaults(c);
    const uint32_t n_ctx = engine_context(c->n_ctx, p);
    const uint64_t full = (n_ctx + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    o.n_slots = c->max_batch;
    o.limits = service_limits(c->max_batch);
    const uint64_t most_pages = o.limits.max_spans * full * p->n_groups;
    if (most_pages > UINT32_MAX)
        return error_set(e, STATUS_TOO_LARGE, "ctx", "%u contexts of %u tokens are too many",
                         c->max_batch, n_ctx);
    o.limits.max_pages = (uint32_t)most_pages;
    struct cpu_features features;
    cpu_features_detect(&features);
    struct backend_config cfg = {.plan = p,
                                 .limits = o.limits,
                                 .n_slots = o.n_slots,
                                 .n_ctx = n_ctx,
                                 .isa = cpu_isa_best(&features),
                                 .activations = o.activations,
                                 .kv = o.kv};
    enum status s = cpu_backend_check(&cfg, e);
    if (s != STATUS_OK) return s;
    const long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
    const struct worker_pool_config workers = {.n_workers = n_cpus > 0 ? (uint32_t)n_cpus : 1};
    s = worker_pool_start(&workers, &cfg.workers, e);
    if (s != STATUS_OK) return s;
    uint64_t page_bytes = 0, bounds_bytes = 0;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        const struct kv_group *group = &p->groups[g];
        page_bytes += kv_page_bytes(group, o.kv);
        /* What serve --gates on keeps of a page: mean and deviation of the keys per channel, F16.
         */
        bounds_bytes +=
            (uint64_t)group->n_layers * group->n_kv_heads * group->head_dim * 2 * sizeof(uint16_t);
    }
    out->n_ctx = n_ctx;
    out->batch = c->max_batch;
    out->backend_bytes = cpu_backend_footprint(&cfg);
    out->step_bytes = step_footprint(&o.limits);
    out->kv_sequence_bytes = full * page_bytes;
    out->kv_batch_bytes = out->kv_sequence_bytes * c->max_batch;
    out->serve_kv_bytes =
        c->kv_mib != 0 ? (uint64_t)c->kv_mib << 20 : service_auto_pages(&o, p, n_ctx) * page_bytes;
    out->serve_bytes = out->backend_bytes + out->step_bytes + out->serve_kv_bytes +
                       out->serve_kv_bytes / page_bytes * bounds_bytes;
    worker_pool_stop(cfg.workers);
    inspect_device(c, &cfg, page_bytes, out);
    return STATUS_OK;
}
