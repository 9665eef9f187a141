#include "cmd/engine.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cmd/service.h"
#include "cmd/side_car.h"
#include "core/check.h"
#include "core/cpu/cpu_backend.h"
#include "jit/cuda_backend.h"

enum { COMMAND_ROWS = 256, NAME_ONLY_PAGE_BYTES = 64 };

struct engine_options engine_defaults(const struct config *c) {
    return (struct engine_options){
        .path = c->model,
        .threads = c->threads,
        .n_ctx = c->n_ctx,
        .activations = c->activations,
        .kv = c->kv,
        .isa_auto = c->isa_auto,
        .isa = c->isa,
        .pin = c->pin.n > 0 ? &c->pin : NULL,
        .huge_pages = c->huge_pages,
        .mlock = c->mlock,
        .config = c,
        .n_slots = 1,
        .limits = {.max_spans = 1,
                   .max_rows = COMMAND_ROWS,
                   .max_outputs = COMMAND_ROWS,
                   .max_profiles = 1},
        .progress = engine_show_progress,
    };
}

void engine_show_progress(void *arg, double done) {
    (void)arg;
    if (!isatty(STDERR_FILENO)) return;
    fprintf(stderr, done < 1 ? "\rloading %3.0f %%" : "\r             \r", done * 100);
    fflush(stderr);
}

static uint32_t usable_cpus(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    const int n = CPU_COUNT(&set);
    return n > 0 ? (uint32_t)n : 1;
}

static enum status choose_isa(struct engine *g, const struct engine_options *o, struct error *e) {
    cpu_features_detect(&g->features);
    g->isa = o->isa_auto ? cpu_isa_best(&g->features) : o->isa;
    if (!cpu_isa_supported(&g->features, g->isa))
        return error_set(e, STATUS_UNSUPPORTED, "isa", "this machine cannot run %s",
                         cpu_isa_name(g->isa));
    return STATUS_OK;
}

static void on_compiled(void *arg, const struct compiler_progress *p) {
    (void)arg;
    if (!isatty(STDERR_FILENO)) return;
    fprintf(stderr, "\r\033[Kkernel %u/%u  %s %.0f ms", p->n_done, p->n_total, p->kernel->id.name,
            (double)p->kernel->took_ns * 1e-6);
    if (p->n_done == p->n_total) fputs("\r\033[K", stderr);
    fflush(stderr);
}

static struct cuda_backend_options cuda_options(struct engine *g, const struct config *c) {
    g->log = (struct log){.out = stderr, .level = LOG_WARN};
    return (struct cuda_backend_options){
        .nvrtc = c->nvrtc,
        .may_compile = c->jit,
        .cache_dir = config_cache_dir(c, g->cache_dir, sizeof g->cache_dir) ? g->cache_dir : NULL,
        .dump_folder = c->jit_dump,
        .pack_path = c->pack,
        .build = LACONIC_VERSION,
        .nvtx = c->nvtx_injection,
        .no_graphs = config_given(c, "--graphs") && !c->graphs,
        .log = &g->log,
        .compiled = on_compiled,
    };
}

static struct backend_config backend_config(const struct engine *g,
                                            const struct engine_options *o) {
    return (struct backend_config){
        .plan = g->plan,
        .pages = g->pages,
        .workers = g->workers,
        .limits = g->limits,
        .n_slots = o->n_slots,
        .gates = o->gates && !(g->on_cuda && o->gates_on_cpu),
        .n_ctx = g->n_ctx,
        .isa = g->isa,
        .activations = g->activations,
        .kv = g->kv,
        .between = o->between,
        .between_arg = o->between_arg,
        .progress = o->progress,
        .progress_arg = o->progress_arg,
        .event_fd = g->event_fd,
    };
}

/* Every slot's full context, or what the device holds beside weights and the rest. */
static enum status fit_device_pages(struct engine *g, const struct engine_options *o,
                                    struct error *e) {
    const struct backend_config cfg = backend_config(g, o);
    const struct cuda_backend_options options = cuda_options(g, o->config);
    const uint32_t full = g->n_pages + 1;
    const uint64_t most = (uint64_t)full * o->n_slots;
    struct cuda_backend_plan plan;
    const enum status s = cuda_backend_plan(
        &cfg, &options, 0, most < UINT32_MAX / 2 ? (uint32_t)most : UINT32_MAX / 2, &plan, e);
    if (s != STATUS_OK) return s;
    if (plan.n_pages < full)
        return error_set(e, STATUS_NO_MEMORY, "ctx",
                         "%.60s has room for %u positions beside the weights; --ctx is %u",
                         plan.device, plan.n_pages * KV_PAGE_TOKENS, g->n_ctx);
    g->n_pages = plan.n_pages;
    return STATUS_OK;
}

static enum status open_pages(struct engine *g, const struct engine_options *o, struct error *e) {
    const struct plan *p = g->plan;
    struct page_pool_config cfg = {
        .n_groups = p->n_groups, .huge_pages = o->huge_pages, .mlock = o->mlock};
    size_t all_bytes = 0;
    for (uint32_t i = 0; i < p->n_groups; i++) {
        all_bytes += cfg.page_bytes[i] = kv_page_bytes(&p->groups[i], g->kv);
        /* What is in the pages is on the device: here they only need a name. */
        if (g->on_cuda) cfg.page_bytes[i] = NAME_ONLY_PAGE_BYTES;
    }
    const uint64_t fit = ((uint64_t)o->kv_mib << 20) / (all_bytes > 0 ? all_bytes : 1);
    g->n_pages = (g->n_ctx + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    if (o->n_pages > 0) {
        g->n_pages = o->n_pages;
    } else if (o->kv_mib > 0) {
        g->n_pages = (uint32_t)(fit < UINT32_MAX / 2 ? fit : UINT32_MAX / 2);
    } else if (o->auto_kv && !g->on_cuda) {
        g->n_pages = service_auto_pages(o, p, g->n_ctx);
    } else if (o->auto_kv) {
        const enum status s = fit_device_pages(g, o, e);
        if (s != STATUS_OK && o->config->backend == CONFIG_BACKEND_CUDA) return s;
        if (s != STATUS_OK) {
            log_write(&g->log, LOG_WARN, "the CUDA device is not used: %s", e->message);
            g->on_cuda = false;
            return open_pages(g, o, e);
        }
    }
    if (g->n_pages == 0)
        return error_set(e, STATUS_INVALID, "kv-mib", "%u MiB hold no KV page of %zu bytes",
                         o->kv_mib, all_bytes);
    for (uint32_t i = 0; i < p->n_groups; i++) cfg.n_pages[i] = g->n_pages;
    return page_pool_open(&cfg, &g->pages, e);
}

/* The device if it is asked for, or if there is one that takes the model as it shall run. */
static enum status choose_backend(struct engine *g, const struct engine_options *o,
                                  struct error *e) {
    g->on_cuda = false;
    if (o->config == NULL || o->config->backend == CONFIG_BACKEND_CPU) return STATUS_OK;
    struct backend_config cfg = backend_config(g, o);
    cfg.gates = o->gates && !o->gates_on_cpu;
    const struct cuda_backend_options options = cuda_options(g, o->config);
    struct error why = {0};
    const enum status s = cuda_backend_probe(&cfg, &options, &why);
    g->on_cuda = s == STATUS_OK;
    if (s != STATUS_OK && o->config->backend == CONFIG_BACKEND_CUDA)
        return error_set(e, s, "backend", "--backend cuda: %s", why.message);
    if (s != STATUS_OK && s != STATUS_NOT_FOUND)
        log_write(&g->log, LOG_WARN, "the CUDA device is not used: %s", why.message);
    return STATUS_OK;
}

static enum status open_cpu(struct engine *g, const struct engine_options *o, struct error *e) {
    const struct backend_config cfg = backend_config(g, o);
    g->gates = cfg.gates;
    const enum status s = region_take(&g->backend_region, "backend", cpu_backend_footprint(&cfg), 0,
                                      o->huge_pages, o->mlock, e);
    if (s != STATUS_OK) return s;
    return cpu_backend_init(g->backend_region.data, &cfg, &g->backend, e);
}

static enum status open_backend(struct engine *g, const struct engine_options *o, struct error *e) {
    if (!g->on_cuda) return open_cpu(g, o, e);
    if (o->asynchronous) g->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (o->asynchronous && g->event_fd < 0)
        return error_set(e, STATUS_IO, NULL, "no eventfd: %s", strerror(errno));
    const struct backend_config cfg = backend_config(g, o);
    g->gates = cfg.gates;
    const struct cuda_backend_options options = cuda_options(g, o->config);
    const enum status s = cuda_backend_open(&cfg, &options, &g->backend, e);
    if (s == STATUS_OK || o->config->backend == CONFIG_BACKEND_CUDA) return s;
    log_write(&g->log, LOG_WARN, "the CUDA device is not used: %s", e->message);
    g->on_cuda = false;
    if (g->event_fd >= 0) close(g->event_fd);
    g->event_fd = -1;
    page_pool_close(g->pages);
    g->pages = NULL;
    const enum status pages = open_pages(g, o, e);
    return pages == STATUS_OK ? open_cpu(g, o, e) : pages;
}

void engine_describe(const struct engine *g, char *text, size_t text_bytes) {
    if (!g->on_cuda) {
        snprintf(text, text_bytes, "cpu, isa %s, %u threads", cpu_isa_name(g->isa), g->n_threads);
        return;
    }
    struct cuda_backend_info info;
    cuda_backend_info(g->backend, &info);
    snprintf(text, text_bytes, "cuda, %s, %u SMs of compute capability %u.%u", info.device,
             info.n_sms, info.cc / 10, info.cc % 10);
}

void engine_print_memory(const struct engine *g, FILE *out) {
    struct cuda_backend_info info;
    char text[BUDGET_TEXT_BYTES];
    if (!g->on_cuda) return;
    cuda_backend_info(g->backend, &info);
    fprintf(out, "memory of %s:\n", info.device);
    budget_print(&info.budget, NULL, out);
    fprintf(out, "  %-40s %12s\n", "kernels (device, measured)",
            budget_format(info.kernel_bytes, text));
    fprintf(out, "  graphs (%u, device, measured)%*s %12s\n", info.n_graphs,
            info.n_graphs < 10    ? 12
            : info.n_graphs < 100 ? 11
                                  : 10,
            "", budget_format(info.graph_bytes, text));
    fprintf(out, "  %-40s %12s\n", "steps (host, pinned)", budget_format(info.pinned_bytes, text));
}

bool engine_lost(const struct engine *g) {
    if (!g->on_cuda) return false;
    struct cuda_backend_info info;
    cuda_backend_info(g->backend, &info);
    return info.lost;
}

static void set_limits(struct engine *g, const struct engine_options *o) {
    g->limits = o->limits;
    const uint32_t full = (g->n_ctx + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    if (g->limits.max_pages == 0)
        g->limits.max_pages = g->limits.max_spans * full * g->plan->n_groups;
    if (o->gates && g->limits.max_gates == 0) {
        g->limits.max_gates = g->limits.max_spans;
        g->limits.max_gate_pages = g->limits.max_spans * full;
    }
}

/* The plan, and where it runs: on a device it runs without the side-car's blocks. */
static enum status make_plan(struct engine *g, const struct engine_options *o, struct error *e) {
    g->plan = model_plan(g->model);
    g->n_ctx = engine_context(o->n_ctx, g->plan);
    if (g->n_ctx > g->plan->n_ctx_train)
        fprintf(stderr, "note: the model was made for %u tokens of context, not %u\n",
                g->plan->n_ctx_train, g->n_ctx);
    set_limits(g, o);
    enum status s = STATUS_OK;
    if (o->drafts) s = side_car_open(o->config, model_gguf(g->model), &g->side_car, e);
    if (s == STATUS_OK) s = choose_backend(g, o, e);
    uint32_t kinds = 0;
    if (s == STATUS_OK && o->drafts)
        s = side_car_block_kinds(o->config, g->side_car, g->plan, &kinds, e);
    if (s == STATUS_OK && g->on_cuda && kinds != 0)
        log_write(&g->log, LOG_WARN, "the side-car's blocks are not run on a CUDA device");
    if (s != STATUS_OK || g->on_cuda || kinds == 0) return s;
    g->plan_of_blocks = *g->plan;
    s = block_plan_add(&g->plan_of_blocks, g->side_car, kinds, &g->blocks, e);
    g->plan = &g->plan_of_blocks;
    set_limits(g, o);
    return s;
}

enum status engine_open(const struct engine_options *o, struct engine **out, struct error *e) {
    *out = NULL;
    struct engine *g = calloc(1, sizeof *g);
    if (g == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
    g->event_fd = -1;
    g->activations = o->activations;
    g->kv = o->kv;
    g->n_threads = o->threads > 0 ? o->threads : usable_cpus();
    enum status s = choose_isa(g, o, e);
    if (s == STATUS_OK) s = model_open(o->path, o->n_ctx, &g->model, e);
    if (s == STATUS_OK) s = make_plan(g, o, e);
    if (s == STATUS_OK) s = open_pages(g, o, e);
    if (s == STATUS_OK) {
        const struct worker_pool_config cfg = {
            .n_workers = g->n_threads,
            .pin_cpus = o->pin != NULL ? o->pin->values : NULL,
            .n_pin = o->pin != NULL ? o->pin->n : 0,
        };
        s = worker_pool_start(&cfg, &g->workers, e);
    }
    if (s == STATUS_OK) s = open_backend(g, o, e);
    if (s != STATUS_OK) {
        engine_close(g);
        return s;
    }
    *out = g;
    return STATUS_OK;
}

void engine_close(struct engine *g) {
    if (g == NULL) return;
    if (g->backend != NULL) g->backend->ops->destroy(g->backend);
    if (g->event_fd >= 0) close(g->event_fd);
    worker_pool_stop(g->workers);
    region_free(&g->backend_region);
    if (g->pages != NULL) page_pool_close(g->pages);
    block_plan_free(&g->blocks);
    sidecar_close(g->side_car);
    model_close(g->model);
    free(g);
}

enum status engine_sequence_open(struct engine *g, uint32_t n_tokens, struct engine_sequence *s,
                                 struct error *e) {
    memset(s, 0, sizeof *s);
    s->n_pages = (n_tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    for (uint32_t i = 0; i < g->plan->n_groups; i++) {
        s->pages[i] = malloc((s->n_pages > 0 ? s->n_pages : 1) * sizeof *s->pages[i]);
        if (s->pages[i] == NULL) {
            engine_sequence_close(g, s);
            return error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
        }
        for (uint32_t j = 0; j < s->n_pages; j++) s->pages[i][j] = PAGE_NONE;
    }
    for (uint32_t i = 0; i < g->plan->n_groups; i++) {
        for (uint32_t j = 0; j < s->n_pages; j++) {
            s->pages[i][j] = page_pool_take(g->pages, i);
            if (s->pages[i][j] == PAGE_NONE) {
                engine_sequence_close(g, s);
                return error_set(e, STATUS_FULL, "ctx", "no KV pages for %u tokens", n_tokens);
            }
        }
    }
    return STATUS_OK;
}

void engine_sequence_close(struct engine *g, struct engine_sequence *s) {
    for (uint32_t i = 0; i < g->plan->n_groups; i++) {
        for (uint32_t j = 0; s->pages[i] != NULL && j < s->n_pages; j++)
            if (s->pages[i][j] != PAGE_NONE) page_pool_release(g->pages, i, s->pages[i][j]);
        free(s->pages[i]);
    }
    memset(s, 0, sizeof *s);
}

struct span *engine_add_span(const struct engine *g, struct step *step, enum span_kind kind,
                             const struct engine_sequence *s, uint32_t first_position,
                             const uint32_t *ids, uint32_t n) {
    struct span *span = step_add_span(step, kind, 0, first_position, ids, n);
    span->n_pages = (first_position + n + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    CHECK(span->n_pages <= s->n_pages);
    for (uint32_t i = 0; i < g->plan->n_groups; i++) {
        CHECK(span->n_pages <= step->limits.max_pages - step->n_pages);
        span->block_table[i] = step->n_pages;
        memcpy(step->pages + step->n_pages, s->pages[i], span->n_pages * sizeof *step->pages);
        step->n_pages += span->n_pages;
    }
    return span;
}

enum status engine_run(struct engine *g, struct step *step, struct error *e) {
    const enum status s = backend_submit(g->backend, step);
    if (s != STATUS_OK) return error_set(e, s, NULL, "the backend refused a step");
    CHECK(backend_poll(g->backend) == step);
    if (step->status != STATUS_OK) return error_set(e, step->status, NULL, "a step failed");
    return STATUS_OK;
}
