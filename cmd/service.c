#include "cmd/service.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "alloc/heap.h"
#include "cmd/usage.h"
#include "core/clock.h"
#include "core/flight.h"
#include "models/gate_section.h"
#include "models/task_default.h"

enum {
    STEP_ROWS = 512, /* most rows of a step: a prefill chunk beside all decodes */
    FLIGHT_EVENTS = 256,
    AUTO_KV_MIB = 1024,
    CHORE_SLICE_NS = 150000,
    PREFILL_BUDGET_NS = 10000000,
};

/* The path's last part without ".gguf". */
static void served_name(const char *path, char *name, size_t cap) {
    const char *slash = strrchr(path, '/');
    snprintf(name, cap, "%s", slash != NULL ? slash + 1 : path);
    const size_t n = strlen(name);
    if (n > 5 && strcmp(name + n - 5, ".gguf") == 0) name[n - 5] = '\0';
}

struct step_limits service_limits(uint32_t max_batch) {
    return (struct step_limits){
        .max_spans = max_batch,
        .max_rows = STEP_ROWS + max_batch,
        .max_outputs = max_batch * 2 + 256,
        .max_copies = max_batch * PLAN_MAX_GROUPS,
        .max_profiles = max_batch + 1,
        .max_taps = max_batch,
        .max_exits = max_batch,
        .max_looks = max_batch,
        .max_guesses = (max_batch < STEP_CHAINS ? max_batch : STEP_CHAINS) * STEP_GUESSES,
    };
}

uint32_t service_auto_pages(const struct engine_options *o, const struct plan *p, uint32_t n_ctx) {
    uint64_t page_bytes = 0;
    for (uint32_t g = 0; g < p->n_groups; g++) page_bytes += kv_page_bytes(&p->groups[g], o->kv);
    const uint64_t full = (n_ctx + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS + 1;
    const uint64_t ram = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t bytes = (uint64_t)AUTO_KV_MIB << 20;
    if (bytes > ram / 4) bytes = ram / 4;
    uint64_t n = bytes / page_bytes;
    if (n > full * o->n_slots) n = full * o->n_slots;
    return (uint32_t)(n > full ? n : full);
}

/* What two sequences must share to share KV pages, and what the bytes of an answer depend on. */
static uint64_t identity(struct service *s) {
    uint64_t parts[6] = {0};
    gguf_digest(model_gguf(s->engine->model), parts);
    parts[2] = (uint64_t)s->engine->activations;
    parts[3] = (uint64_t)s->engine->kv;
    parts[4] = s->engine->n_ctx; /* decides between short and long rotary factors */
    parts[5] = XXH3_64bits(LACONIC_VERSION, strlen(LACONIC_VERSION));
    /* Each backend has bits of its own. */
    const char *backend = s->engine->backend->ops->name;
    if (s->engine->on_cuda) parts[5] ^= XXH3_64bits(backend, strlen(backend));
    return XXH3_64bits(parts, sizeof parts);
}

/* Heads for labels and regulation. A backend that runs none leaves labels to be scored as the
 * model's own words, and refuses regulation. */
static enum status open_heads(struct service *s, struct error *e) {
    enum { EPOCH = 1 };
    const struct plan *p = s->engine->plan;
    enum status st = label_sets_open(s->engine->side_car, p, &s->labels, e);
    if (st == STATUS_OK) st = regulation_view(&s->regulation, s->engine->side_car, p->d_model, e);
    if (st != STATUS_OK || (s->labels.n == 0 && !s->regulation.present)) return st;
    s->labels.heads.d_model = p->d_model;
    if (s->regulation.present) s->labels.heads.regulation = &s->regulation.head;
    st = s->engine->backend->ops->publish(s->engine->backend, EPOCH, &s->labels.heads, e);
    if (st == STATUS_OK) {
        s->epoch = EPOCH;
    } else if (st == STATUS_UNSUPPORTED) {
        const struct log log = {.out = stderr, .level = LOG_WARN};
        log_write(&log, LOG_WARN,
                  "%s: labels are scored as the model's own words, without the side-car's heads, "
                  "and nothing is regulated",
                  e->message);
        st = STATUS_OK;
    }
    return st;
}

/* What a rollback depends on; 0 where nothing was learnt. */
static uint64_t monitor_identity(const struct monitor_model *m) {
    if (m->mean == NULL) return 0;
    const uint64_t parts[] = {m->layer, XXH3_64bits(m->mean, m->d_model * sizeof *m->mean),
                              XXH3_64bits(&m->rule, sizeof m->rule)};
    return XXH3_64bits(parts, sizeof parts);
}

/* The side-car's table of answers, if it has one, what the monitor knows, and its label heads. */
static enum status view_side_car(struct service *s, struct error *e) {
    const struct plan *p = s->engine->plan;
    s->monitor = monitor_model_plain(p->n_layers, p->d_model);
    if (s->engine->side_car == NULL) return STATUS_OK;
    enum status st =
        monitor_model_view(&s->monitor, s->engine->side_car, p->n_layers, p->d_model, e);
    const struct sidecar_section *n = sidecar_find(s->engine->side_car, SIDECAR_NGRAM, NULL);
    if (st == STATUS_OK && n != NULL) st = ngram_table_view(&s->ngrams, n->data, n->bytes, e);
    return st == STATUS_OK ? open_heads(s, e) : st;
}

/* What answers attend to: the options, and what was calibrated. It is part of the fingerprint,
 * since it decides about bytes. */
static enum status open_gate(struct service *s, const struct config *c, struct error *e) {
    s->gate = (struct gate_config){.bounds = s->engine->gates,
                                   .unasked = c->policy == CONFIG_POLICY_ADAPTIVE,
                                   .least_context = GATE_LEAST_CONTEXT,
                                   .safe_share = GATE_SAFE_SHARE};
    const struct sidecar_section *x =
        s->engine->side_car != NULL ? sidecar_find(s->engine->side_car, SIDECAR_GATE, NULL) : NULL;
    if (x != NULL) {
        struct gate_section g;
        const enum status st = gate_section_read(&g, x->data, x->bytes, e);
        if (st != STATUS_OK) return st;
        s->gate.least_context = g.least_context;
        s->gate.safe_pages = g.safe_pages;
        s->gate.safe_share = g.safe_share;
    }
    if (c->gate_words == NULL) return gate_words_default(&s->gate.words, e);
    FILE *f = fopen(c->gate_words, "r");
    if (f == NULL)
        return error_set(e, STATUS_NOT_FOUND, "gate-words", "%s cannot be opened", c->gate_words);
    char *text;
    size_t len;
    enum status st = usage_read_all(f, GATE_MAX_WORDS_BYTES, &text, &len, e);
    fclose(f);
    if (st != STATUS_OK) return st;
    st = gate_words_parse(&s->gate.words, text, len, e);
    free(text);
    return st;
}

static uint64_t gate_identity(const struct gate_config *g) {
    const uint64_t parts[] = {
        g->bounds,        g->unasked,
        g->least_context, g->safe_pages,
        g->safe_share,    XXH3_64bits(g->words.words, g->words.n * sizeof *g->words.words)};
    return XXH3_64bits(parts, sizeof parts);
}

/* The task model, presets and word lists that serving begins with. */
static enum status open_policy(struct service *s, const struct config *c, uint64_t id,
                               struct error *e) {
    struct task_model *m;
    enum status st =
        c->task_model != NULL ? task_model_open(c->task_model, &m, e) : task_model_default(&m, e);
    if (st != STATUS_OK) return st;
    if (s->policy_file.words != NULL) {
        task_model_set_words(m, s->policy_file.words);
        s->policy_file.words = NULL;
    }
    const uint32_t workers = worker_pool_size(s->engine->workers);
    const struct policy_config cfg = {
        .kind = c->policy == CONFIG_POLICY_ADAPTIVE ? POLICY_ADAPTIVE : POLICY_EXACT,
        .presets = s->policy_file.presets,
        .identity = id,
        .n_workspaces = workers < SCHED_POLICY_WORKSPACES ? workers : SCHED_POLICY_WORKSPACES,
    };
    return policy_open(&cfg, m, &s->policy, e);
}

static uint64_t monotonic(void *arg) {
    (void)arg;
    return clock_now_ns();
}

static enum status open_sched(struct service *s, const struct service_options *o, struct error *e) {
    const struct config *c = o->config;
    s->metrics = malloc(sizeof *s->metrics);
    if (s->metrics == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for metrics");
    metric_init(s->metrics);
    enum status st = region_take(&s->flight_region, "flight records",
                                 flight_footprint(o->max_batch, FLIGHT_EVENTS), 0, false, false, e);
    if (st != STATUS_OK) return st;
    s->flight = flight_init(s->flight_region.data, o->max_batch, FLIGHT_EVENTS);
    const uint64_t id = identity(s);
    /* All that decides about bytes. */
    const uint64_t decides[] = {id, gate_identity(&s->gate), s->epoch != 0 ? s->labels.digest : 0,
                                monitor_identity(&s->monitor),
                                s->epoch != 0 ? s->regulation.digest : 0};
    st = open_policy(s, c, XXH3_64bits(decides, sizeof decides), e);
    if (st != STATUS_OK) return st;
    s->log = (struct log){.out = stderr, .level = LOG_INFO};
    const struct sched_config cfg = {
        .plan = s->engine->plan,
        .tokenizer = s->tokenizer,
        .chat_template = s->chat_template,
        .encoder = s->encoder,
        .backend = s->engine->backend,
        .pages = s->engine->pages,
        .workers = s->engine->workers,
        .metrics = s->metrics,
        .flight = s->flight,
        .limits = s->engine->limits,
        .n_ctx = s->engine->n_ctx,
        .max_batch = o->max_batch,
        .max_queue = o->max_queue,
        .prefix_cache = true,
        .drafts = c->drafts,
        .ngrams = s->ngrams.n_lines > 0 ? &s->ngrams : NULL,
        .gate = &s->gate,
        .policy = s->policy,
        .adapt = {.rows = s->policy_file.adapt_rows,
                  .drift_reference = s->policy_file.drift_reference,
                  .drift_window = s->policy_file.drift_window,
                  .replay_path = s->policy_file.replay_path,
                  .validation_path = s->policy_file.validation_path,
                  .auto_promote = c->auto_promote},
        .log = &s->log,
        .monitor = &s->monitor,
        .regulates = s->epoch != 0 && s->regulation.present,
        .prefill_budget_ns = PREFILL_BUDGET_NS,
        .chore_slice_ns = CHORE_SLICE_NS,
        .heap_bytes = heap_allocated_bytes(),
        .labels = s->epoch != 0 ? &s->labels : NULL,
        .epoch = s->epoch,
        .kv_domain = id,
        .now_ns = monotonic,
    };
    return sched_open(&cfg, &s->sched, e);
}

enum status service_open(const struct service_options *o, struct service **out, struct error *e) {
    *out = NULL;
    struct service *s = calloc(1, sizeof *s);
    if (s == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
    const struct config *c = o->config;
    served_name(c->model, s->name, sizeof s->name);
    enum status st = policy_file_read(c->policy_file, &s->policy_file, e);
    if (st != STATUS_OK) {
        free(s);
        return st;
    }

    struct engine_options g = engine_defaults(c);
    g.n_slots = o->max_batch;
    g.gates = c->gates;
    /* On a device they want kernels of their own: only where somebody asks for them. */
    g.gates_on_cpu = !config_given(c, "--gates");
    g.limits = service_limits(o->max_batch);
    g.asynchronous = o->asynchronous;
    g.between = o->between;
    g.between_arg = o->between_arg;
    g.kv_mib = c->kv_mib;
    g.auto_kv = true;
    g.drafts = true;
    st = engine_open(&g, &s->engine, e);
    if (st == STATUS_OK) st = tokenizer_load(model_gguf(s->engine->model), &s->tokenizer, e);
    if (st == STATUS_OK) {
        st = chat_template_load(model_gguf(s->engine->model), &s->chat_template, e);
        if (st == STATUS_NOT_FOUND) st = STATUS_OK; /* a base model: completions only */
    }
    if (st == STATUS_OK && c->encoder != NULL) st = encoder_open(c->encoder, &s->encoder, e);
    if (st == STATUS_OK) st = view_side_car(s, e);
    if (st == STATUS_OK) st = open_gate(s, c, e);
    if (st == STATUS_OK) st = open_sched(s, o, e);
    if (st != STATUS_OK) {
        service_close(s);
        return st;
    }
    *out = s;
    return STATUS_OK;
}

void service_close(struct service *s) {
    if (s == NULL) return;
    if (s->sched != NULL) sched_close(s->sched);
    if (s->epoch != 0) s->engine->backend->ops->retire(s->engine->backend, s->epoch);
    label_sets_close(&s->labels);
    policy_close(s->policy);
    policy_file_free(&s->policy_file);
    chat_template_free(s->chat_template);
    tokenizer_free(s->tokenizer);
    encoder_close(s->encoder);
    gate_words_free(&s->gate.words);
    engine_close(s->engine);
    region_free(&s->flight_region);
    free(s->metrics);
    free(s);
}

void service_refresh(struct service *s) {
    metric_read_process(s->metrics);
}
