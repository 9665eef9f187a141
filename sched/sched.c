#include "sched/sched.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "alloc/page_pool.h"
#include "core/check.h"
#include "sched/batch.h"
#include "sched/chores.h"
#include "models/label_heads.h"
#include "sched/embed.h"
#include "sched/explain.h"
#include "sched/explain_request.h"
#include "sched/feedback.h"
#include "sched/label_audit.h"
#include "sched/policy.h"
#include "sched/prepare.h"
#include "sched/queue.h"
#include "sched/slot.h"

enum {
    CHORE_SLICE_NS = 200 * 1000,
    PREFILL_BUDGET_NS = 10 * 1000 * 1000,
    RETRY_AFTER_S = 1,
};

enum entry_state {
    ENTRY_FREE,
    ENTRY_WAITING,   /* in to_prepare or to_embed */
    ENTRY_PREPARING, /* a chore has it; EMBEDDING: one or more */
    ENTRY_READY,     /* in to_start */
    ENTRY_RUNNING,   /* a slot has it, or its answer is being given */
    ENTRY_ENDED,     /* in `ended`, until release is called */
};

/* A request from submit to release. */
struct entry {
    enum entry_state state;
    uint32_t generation;
    struct queue_key key;
    struct request request;
    struct answer answer;
    struct prepared prepared;
    const struct policy_epoch *epoch; /* pinned; NULL without a policy */
    struct policy_decision decision;
    struct buffer lint;
    struct embed_job *embed;
    uint32_t n_embed_chores;
    uint64_t queued_ns, tokenised_ns;
};

struct sched {
    struct sched_config cfg;
    struct kv_store kv;
    struct slots slots;
    struct batch batch;
    struct drafts drafts;
    struct explain *explain;   /* NULL without a policy */
    struct feedback *feedback; /* as well */
    struct label_audits audits;
    struct monitor_model monitor;
    struct page_sums sums;
    struct prepare_model model;
    struct chores chores;
    struct queue to_prepare, to_embed, to_start;
    uint32_t n_embed_chores; /* of all requests; half of the chores at most */
    struct entry *entries;   /* [n_entries] */
    uint32_t n_entries, n_waiting;
    uint32_t *free_names, n_free; /* a stack */
    uint32_t *ended, n_ended;     /* names to release */
    void *queue_mem;
    uint64_t arrivals, seeds, seed_base, submit_ns;
    uint32_t
        refused; /* the first in to_start found no room; QUEUE_NONE when that may have changed */
    bool in_flight, draining;
};

static uint64_t now_of(const struct sched *s) {
    return s->cfg.now_ns(s->cfg.now_arg);
}

/* ---- open and close ---- */

static bool take_tables(struct sched *s) {
    const struct sched_config *cfg = &s->cfg;
    s->n_entries = cfg->max_queue + cfg->max_batch + CHORES_MAX;
    const size_t queue_bytes = (queue_footprint(s->n_entries) + 63) & ~(size_t)63;
    s->entries = calloc(s->n_entries, sizeof *s->entries);
    s->free_names = calloc(s->n_entries, sizeof *s->free_names);
    s->ended = calloc(s->n_entries, sizeof *s->ended);
    s->queue_mem = aligned_alloc(64, 3 * queue_bytes);
    if (s->entries == NULL || s->free_names == NULL || s->ended == NULL || s->queue_mem == NULL)
        return false;
    queue_init(&s->to_prepare, s->queue_mem, s->n_entries);
    queue_init(&s->to_start, (char *)s->queue_mem + queue_bytes, s->n_entries);
    queue_init(&s->to_embed, (char *)s->queue_mem + 2 * queue_bytes, s->n_entries);
    for (uint32_t i = s->n_entries; i-- > 0;) s->free_names[s->n_free++] = i;
    return true;
}

static enum status check_config(const struct sched_config *cfg, struct error *e) {
    if (cfg->max_batch == 0) return error_set(e, STATUS_INVALID, "max-batch", "must be at least 1");
    if (cfg->max_queue == 0) return error_set(e, STATUS_INVALID, "max-queue", "must be at least 1");
    if (tokenizer_n_vocab(cfg->tokenizer) > cfg->plan->n_vocab)
        return error_set(e, STATUS_INVALID, "tokenizer.ggml.tokens",
                         "the tokenizer has %u tokens, the model only %u rows for them",
                         tokenizer_n_vocab(cfg->tokenizer), cfg->plan->n_vocab);
    if (cfg->n_ctx < 2) return error_set(e, STATUS_INVALID, "ctx", "must be at least 2 tokens");
    for (uint32_t i = 0; cfg->labels != NULL && i < cfg->labels->n; i++)
        if (cfg->labels->sets[i].heads.max_tokens > cfg->limits.max_rows - cfg->max_batch)
            return error_set(e, STATUS_INVALID, "max_rows",
                             "step limit max_rows is %u, but label heads read %u tokens at once",
                             cfg->limits.max_rows, cfg->labels->sets[i].heads.max_tokens);
    return STATUS_OK;
}

/* What every step has room for, rows and outputs, beside all decodes. */
static uint32_t label_tokens(const struct sched_config *cfg) {
    const uint32_t rows = cfg->limits.max_rows - cfg->max_batch;
    const uint32_t outputs = cfg->limits.max_outputs - cfg->max_batch;
    return rows < outputs ? rows : outputs;
}

static enum status open_policy(struct sched *s, struct error *e) {
    const struct sched_config *cfg = &s->cfg;
    if (cfg->policy == NULL) return STATUS_OK;
    const enum status st = explain_open(EXPLAIN_RECORDS, &s->explain, e);
    if (st != STATUS_OK) return st;
    const struct feedback_config feedback = {
        .policy = cfg->policy,
        .explain = s->explain,
        .metrics = cfg->metrics,
        .log = cfg->log,
        .drift_reference = cfg->adapt.drift_reference,
        .drift_window = cfg->adapt.drift_window,
        .adapt_rows = cfg->adapt.rows,
        .replay_path = cfg->adapt.replay_path,
        .validation_path = cfg->adapt.validation_path,
        .auto_promote = cfg->adapt.auto_promote,
    };
    return feedback_open(&feedback, &s->feedback, e);
}

/* Blocks that the plan does not have cannot be asked. */
static uint32_t draft_sources(const struct sched_config *cfg) {
    uint32_t sources = cfg->drafts;
    if (cfg->plan->blocks[BLOCK_DRAFT].n_ids == 0) sources &= ~DRAFT_BIT(BLOCK);
    if (cfg->plan->blocks[BLOCK_EXIT].n_ids == 0) sources &= ~DRAFT_BIT(EXIT);
    return sources;
}

static enum status open_parts(struct sched *s, struct error *e) {
    const struct sched_config *cfg = &s->cfg;
    s->kv = (struct kv_store){
        .pool = cfg->pages, .n_groups = cfg->plan->n_groups, .domain = cfg->kv_domain};
    enum status st = STATUS_OK;
    s->monitor = monitor_model_plain(cfg->plan->n_layers, cfg->plan->d_model);
    if (cfg->monitor != NULL) s->monitor = *cfg->monitor;
    st = page_sums_open(&s->sums, cfg->pages, cfg->plan->d_model, e);
    s->kv.sums = &s->sums;
    if (st == STATUS_OK && cfg->prefix_cache)
        st = prefix_cache_open(cfg->pages, cfg->plan->n_groups, &s->kv.cache, e);
    const struct drafts_config drafts = {
        .sources = draft_sources(cfg),
        .deployment = cfg->ngrams,
        .n_ctx = cfg->n_ctx,
        .n_vocab = cfg->plan->n_vocab,
        .n_choices = cfg->max_batch,
        .metrics = cfg->metrics,
    };
    const bool drafting = drafts.sources != 0;
    if (st == STATUS_OK) st = open_policy(s, e);
    if (st == STATUS_OK) st = label_audits_open(&s->audits, cfg->labels, cfg->policy, e);
    if (st == STATUS_OK && drafting) st = drafts_open(&s->drafts, &drafts, e);
    const struct slots_config slots = {
        .tokenizer = cfg->tokenizer,
        .kv = &s->kv,
        .metrics = cfg->metrics,
        .flight = cfg->flight,
        .drafts = drafting ? &s->drafts : NULL,
        .gate = cfg->gate,
        .explain = s->explain,
        .audits = &s->audits,
        .monitor = &s->monitor,
        .heap_bytes = cfg->heap_bytes,
        .n_ctx = cfg->n_ctx,
        .n_vocab = cfg->plan->n_vocab,
        .max_batch = cfg->max_batch,
        .d_model = cfg->plan->d_model,
    };
    if (st == STATUS_OK) st = slots_open(&s->slots, &slots, e);
    if (st == STATUS_OK)
        st = batch_open(&s->batch, &s->slots, &cfg->limits, cfg->plan, cfg->epoch, e);
    const struct chores_config chores = {
        .workers = cfg->workers,
        .model = &s->model,
        .n = cfg->max_queue < CHORES_MAX ? cfg->max_queue : CHORES_MAX,
        .slice_ns = cfg->chore_slice_ns,
    };
    if (st == STATUS_OK) st = chores_open(&s->chores, &chores, e);
    if (st == STATUS_OK && !take_tables(s))
        st = error_set(e, STATUS_NO_MEMORY, NULL, "out of memory for the queue");
    return st;
}

enum status sched_open(const struct sched_config *cfg, struct sched **out, struct error *e) {
    *out = NULL;
    enum status st = check_config(cfg, e);
    if (st != STATUS_OK) return st;
    struct sched *s = calloc(1, sizeof *s);
    if (s == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "out of memory");
    s->cfg = *cfg;
    static const struct gate_config no_gate;
    if (s->cfg.gate == NULL) s->cfg.gate = &no_gate;
    if (s->cfg.prefill_budget_ns == 0) s->cfg.prefill_budget_ns = PREFILL_BUDGET_NS;
    if (s->cfg.chore_slice_ns == 0) s->cfg.chore_slice_ns = CHORE_SLICE_NS;
    s->refused = QUEUE_NONE;
    st = open_parts(s, e);
    if (st == STATUS_OK && getrandom(&s->seed_base, sizeof s->seed_base, 0) < 0)
        st = error_set(e, STATUS_IO, NULL, "no random numbers from the kernel");
    if (st != STATUS_OK) {
        sched_close(s);
        return st;
    }
    s->model = (struct prepare_model){
        .tokenizer = cfg->tokenizer,
        .chat_template = cfg->chat_template,
        .n_vocab = cfg->plan->n_vocab,
        .n_ctx = cfg->n_ctx,
        .max_choices = cfg->max_batch,
        .d_model = cfg->plan->d_model,
        .n_pages = UINT32_MAX,
        .gate = s->cfg.gate,
        .labels = cfg->labels,
        .max_label_tokens = label_tokens(cfg),
        .policy = cfg->policy,
        .encoder = cfg->encoder,
        .regulates = cfg->regulates,
        .calibrated = s->monitor.calibrated,
    };
    for (uint32_t g = 0; g < s->kv.n_groups; g++) {
        const uint32_t n = page_pool_counts(cfg->pages, g).capacity;
        if (n < s->model.n_pages) s->model.n_pages = n;
    }
    *out = s;
    return STATUS_OK;
}

/* ---- entries ---- */

static request_handle handle_of(const struct sched *s, uint32_t name) {
    return (uint64_t)s->entries[name].generation << 32 | name;
}

static bool waits(const struct entry *x) {
    return x->state == ENTRY_WAITING || x->state == ENTRY_PREPARING || x->state == ENTRY_READY;
}

static void set_ended(struct sched *s, uint32_t name) {
    struct entry *x = &s->entries[name];
    if (waits(x)) s->n_waiting--;
    x->state = ENTRY_ENDED;
    x->answer.silent = true;
    s->ended[s->n_ended++] = name;
    if (s->refused == name) s->refused = QUEUE_NONE;
}

/* Calls release for everything that ended. The sink may submit from inside it. */
static void release_ended(struct sched *s) {
    while (s->n_ended > 0) {
        const uint32_t name = s->ended[--s->n_ended];
        struct entry *x = &s->entries[name];
        prepared_free(&x->prepared);
        embed_free(x->embed);
        x->embed = NULL;
        if (x->lint.data != NULL) buffer_free(&x->lint);
        if (x->epoch != NULL) policy_unpin(s->cfg.policy, x->epoch);
        x->epoch = NULL;
        x->answer.sink.release(x->answer.user);
        x->state = ENTRY_FREE;
        s->free_names[s->n_free++] = name;
    }
}

static void take_out(struct sched *s, uint32_t name) {
    queue_remove(&s->to_prepare, name);
    queue_remove(&s->to_embed, name);
    queue_remove(&s->to_start, name);
}

/* Ends a request that has not started. A chore that has it is left to unwind first. */
static void end_waiting(struct sched *s, uint32_t name) {
    struct entry *x = &s->entries[name];
    x->answer.silent = true;
    if (x->state == ENTRY_PREPARING) {
        chores_cancel(&s->chores, name);
        return;
    }
    take_out(s, name);
    set_ended(s, name);
}

static uint64_t deadline_of(const struct request *r) {
    uint64_t ns;
    if (r->deadline_ms == 0 || __builtin_mul_overflow(r->deadline_ms, UINT64_C(1000000), &ns) ||
        __builtin_add_overflow(r->received_ns, ns, &ns))
        return UINT64_MAX;
    return ns;
}

enum status sched_submit(struct sched *s, const struct request *r, const struct request_sink *sink,
                         void *user, request_handle *out, struct error *e) {
    *out = REQUEST_HANDLE_NONE;
    if (s->draining) {
        metric_add(s->cfg.metrics, METRIC_SHED, METRIC_SHED_DRAINING, 1);
        return error_set(e, STATUS_FULL, NULL, "the server is shutting down");
    }
    if (s->n_waiting == s->cfg.max_queue || s->n_free == 0) {
        metric_add(s->cfg.metrics, METRIC_SHED, METRIC_SHED_FULL, 1);
        return error_set(e, STATUS_FULL, NULL, "%u requests are waiting already", s->n_waiting);
    }
    const uint32_t name = s->free_names[s->n_free - 1];
    struct entry *x = &s->entries[name];
    x->request = *r;
    if (r->kind == REQUEST_EMBEDDING && !r->by_model) {
        const enum status st = embed_make(s->cfg.encoder, &x->request, &x->embed, e);
        if (st != STATUS_OK) return st;
    }
    s->n_free--;
    if (s->cfg.policy != NULL) {
        x->epoch = policy_pin(s->cfg.policy);
        policy_watch(x->epoch, s->monitor.calibrated, &x->request);
    }
    x->decision = (struct policy_decision){.task = METRIC_TASK_NONE};
    x->state = ENTRY_WAITING;
    x->generation++;
    if (x->generation == 0) x->generation = 1;
    x->answer = (struct answer){.sink = *sink, .user = user};
    x->key = (struct queue_key){
        .deadline_ns = deadline_of(r), .priority = r->priority, .arrival = s->arrivals++};
    x->queued_ns = now_of(s);
    s->n_waiting++;
    queue_push(x->embed != NULL ? &s->to_embed : &s->to_prepare, name, &x->key);
    *out = handle_of(s, name);
    return STATUS_OK;
}

void sched_cancel(struct sched *s, request_handle h) {
    const uint32_t name = (uint32_t)h;
    if (h == REQUEST_HANDLE_NONE || name >= s->n_entries) return;
    struct entry *x = &s->entries[name];
    if (x->generation != h >> 32 || x->state == ENTRY_FREE || x->answer.silent) return;
    x->answer.silent = true;
    if (!waits(x)) return; /* running: the next tick finds it */
    metric_add(s->cfg.metrics, METRIC_SHED, METRIC_SHED_GONE, 1);
    end_waiting(s, name);
}

/* ---- chores: render, tokenise, validate ---- */

/* As many chores for one request as there are workers, and never so many that prompts find no room.
 */
static void start_embeds(struct sched *s) {
    const uint32_t most = s->chores.cfg.n > 1 ? s->chores.cfg.n / 2 : 1;
    while (s->to_embed.n > 0 && s->n_embed_chores < most && chores_room(&s->chores)) {
        const uint32_t name = queue_first(&s->to_embed);
        struct entry *x = &s->entries[name];
        uint32_t wanted = worker_pool_size(s->cfg.workers);
        if (wanted > x->request.n_inputs) wanted = x->request.n_inputs;
        queue_remove(&s->to_embed, name);
        x->state = ENTRY_PREPARING;
        for (; wanted > 0 && s->n_embed_chores < most && chores_room(&s->chores); wanted--) {
            chores_start(&s->chores, name, &x->request, x->epoch, x->embed);
            x->n_embed_chores++;
            s->n_embed_chores++;
        }
    }
}

/* One of its chores is done. Returns whether it was the last. */
static bool embed_chore_done(struct sched *s, struct entry *x, const struct prepared *p) {
    x->n_embed_chores--;
    s->n_embed_chores--;
    if (x->prepared.status == STATUS_OK) x->prepared = *p;
    return x->n_embed_chores == 0;
}

static void start_chores(struct sched *s) {
    while (s->to_prepare.n > 0 && chores_room(&s->chores)) {
        const uint32_t name = queue_first(&s->to_prepare);
        queue_remove(&s->to_prepare, name);
        struct entry *x = &s->entries[name];
        x->state = ENTRY_PREPARING;
        chores_start(&s->chores, name, &x->request, x->epoch, NULL);
    }
    start_embeds(s);
}

/* Answers that need no slot. */
static void answer_text(struct entry *x) {
    static const struct request_usage no_usage;
    const struct request_report report = {.seed = x->request.seed};
    const struct prepared *p = &x->prepared;
    if (x->embed != NULL) {
        embed_answer(x->embed, &x->answer);
        return;
    }
    if (x->request.kind == REQUEST_TOKENIZE)
        answer_tokens(&x->answer, p->tokens.ids, p->tokens.n);
    else
        answer_delta(&x->answer, 0, p->text.data, p->text.len, NULL, 0);
    answer_done(&x->answer, &no_usage, &report);
}

/* The presets of its task, once and for all of the request's life. */
static void settle_task(struct sched *s, struct entry *x) {
    x->lint = x->prepared.lint;
    x->prepared.lint = (struct buffer){0};
    if (x->epoch == NULL || x->request.kind == REQUEST_EMBEDDING) return;
    x->decision = x->prepared.decision;
    policy_apply(x->epoch, &x->decision, &x->request);
    if (!x->decision.classified) return;
    metric_time(s->cfg.metrics, METRIC_TASK_TIME, 0, x->decision.classify_ns);
    feedback_served(s->feedback, x->epoch, &x->decision.verdict);
}

static void finish_chore(struct sched *s, uint32_t name, const struct prepared *p) {
    struct entry *x = &s->entries[name];
    if (x->embed == NULL)
        x->prepared = *p;
    else if (!embed_chore_done(s, x, p))
        return;
    x->tokenised_ns = now_of(s);
    const bool runs = x->request.kind == REQUEST_CHAT || x->request.kind == REQUEST_COMPLETION ||
                      (x->request.kind == REQUEST_EMBEDDING && x->request.by_model);
    if (!x->answer.silent && x->prepared.status == STATUS_OK && runs) {
        settle_task(s, x);
        x->state = ENTRY_READY;
        queue_push(&s->to_start, name, &x->key);
        return;
    }
    /* It waits no more, should the client cancel inside a call. */
    x->state = ENTRY_RUNNING;
    s->n_waiting--;
    if (!x->answer.silent && x->prepared.status == STATUS_OK) {
        answer_text(x);
    } else if (!x->answer.silent) {
        if (status_class_of(x->prepared.status) == STATUS_CLASS_INPUT)
            metric_add(s->cfg.metrics, METRIC_REJECTED, 0, 1);
        else
            metric_add(s->cfg.metrics, METRIC_SHED, METRIC_SHED_FULL, 1);
        answer_failed(&x->answer, &x->prepared.error, RETRY_AFTER_S);
    }
    set_ended(s, name);
}

/* Chores use the time that prefill would; returns what they took. */
static uint64_t run_chores(struct sched *s) {
    const uint64_t start = now_of(s);
    const uint64_t rounds = s->cfg.prefill_budget_ns / s->cfg.chore_slice_ns;
    start_chores(s);
    for (uint64_t i = 0; s->chores.n_active > 0 && (i == 0 || i < rounds); i++) {
        if (i > 0 && now_of(s) - start >= s->cfg.prefill_budget_ns) break;
        uint32_t name;
        struct prepared out;
        chores_round(&s->chores);
        while (chores_take(&s->chores, &name, &out)) finish_chore(s, name, &out);
        start_chores(s);
    }
    return now_of(s) - start;
}

/* ---- deadlines, cancelled requests ---- */

static void shed_late(struct sched *s, uint32_t name) {
    struct error e;
    (void)error_set(&e, STATUS_DEADLINE, "laconic.deadline_ms",
                    "the deadline passed before the request could start");
    metric_add(s->cfg.metrics, METRIC_SHED, METRIC_SHED_DEADLINE, 1);
    answer_failed(&s->entries[name].answer, &e, RETRY_AFTER_S);
    end_waiting(s, name);
}

static void shed_all_late(struct sched *s, uint64_t now) {
    while (queue_next_deadline_ns(&s->to_prepare) <= now) shed_late(s, queue_first(&s->to_prepare));
    while (queue_next_deadline_ns(&s->to_embed) <= now) shed_late(s, queue_first(&s->to_embed));
    while (queue_next_deadline_ns(&s->to_start) <= now) shed_late(s, queue_first(&s->to_start));
    for (uint32_t i = 0; i < CHORES_MAX; i++) {
        const uint32_t name = chores_name(&s->chores, i);
        if (name == CHORES_NONE || s->entries[name].answer.silent) continue;
        if (s->entries[name].key.deadline_ns <= now) shed_late(s, name);
    }
}

/* Slots that ended give their requests back. */
static void reap(struct sched *s) {
    for (uint32_t i = 0; i < s->cfg.max_batch; i++) {
        struct slot *p = &s->slots.slots[i];
        if (p->phase != SLOT_ENDED) continue;
        set_ended(s, p->name);
        slot_free(p);
        s->refused = QUEUE_NONE;
    }
}

static void sweep_running(struct sched *s, uint64_t now) {
    for (uint32_t i = 0; i < s->cfg.max_batch; i++) {
        struct slot *p = &s->slots.slots[i];
        if (!slot_running(p)) continue;
        if (p->answer->silent)
            slot_abort(&s->slots, p, now);
        else if (p->deadline_ns <= now)
            slot_deadline(&s->slots, p, now);
    }
    reap(s);
}

/* ---- admission ---- */

static uint64_t seed_for(struct sched *s, const struct request *r) {
    if (r->set & REQUEST_SET_SEED) return r->seed;
    const uint64_t n = s->seeds++;
    /* 53 bits: a client that reads it as a double gets it back whole. */
    return rng_draw(s->seed_base, (uint32_t)(n >> 32), (uint32_t)n, RNG_SEED, 0) >> 11;
}

static void admit(struct sched *s, uint64_t now) {
    while (s->to_start.n > 0) {
        /* Strictly in order: the first is never overtaken, so it cannot starve. */
        const uint32_t name = queue_first(&s->to_start);
        if (name == s->refused) return;
        struct entry *x = &s->entries[name];
        const struct slot_start w = {
            .name = name,
            .request = &x->request,
            .answer = &x->answer,
            .prepared = &x->prepared,
            .epoch = x->request.kind != REQUEST_EMBEDDING ? x->epoch : NULL,
            .decision = &x->decision,
            .lint = {x->lint.data, x->lint.len},
            .seed = seed_for(s, &x->request),
            .deadline_ns = x->key.deadline_ns,
            .queued_ns = x->queued_ns,
            .tokenised_ns = x->tokenised_ns,
            .step = s->batch.n_steps,
        };
        /* Before the client is told, since it may cancel inside the call. */
        x->state = ENTRY_RUNNING;
        s->n_waiting--;
        if (slot_admit(&s->slots, &w, now) != STATUS_OK) {
            /* Prepared requests fit into an empty server. */
            CHECK(s->slots.n_running > 0);
            x->state = ENTRY_READY;
            s->n_waiting++;
            s->refused = name;
            return;
        }
        queue_remove(&s->to_start, name);
        if (x->request.kind != REQUEST_EMBEDDING && x->request.n_labels == 0)
            prepared_free(&x->prepared);
        reap(s);
    }
}

/* ---- steps ---- */

static enum metric_step step_kind(const struct batch *b) {
    if (b->n_decodes == 0) return METRIC_STEP_PREFILL;
    return b->n_decodes == b->n_items ? METRIC_STEP_DECODE : METRIC_STEP_MIXED;
}

static void fail_step(struct sched *s, uint64_t now) {
    struct error e;
    (void)error_set(&e, STATUS_DEVICE, NULL, "the device failed while it computed this answer");
    for (uint32_t i = 0; i < s->batch.n_items; i++)
        if (slot_running(s->batch.items[i].slot))
            slot_fail(&s->slots, s->batch.items[i].slot, &e, now);
}

static enum flight_kind step_event(enum span_kind kind) {
    return kind == SPAN_VERIFY   ? FLIGHT_STEP_VERIFY
           : kind == SPAN_DECODE ? FLIGHT_STEP_DECODE
                                 : FLIGHT_STEP_PREFILL;
}

/* Hands out what the step computed. */
static void settle(struct sched *s, struct step *done, uint64_t now) {
    struct batch *b = &s->batch;
    const uint64_t ns =
        done->done_ns > done->submit_ns ? done->done_ns - done->submit_ns : now - s->submit_ns;
    metric_time(s->cfg.metrics, METRIC_STEP_TIME, (uint32_t)step_kind(b), ns);
    batch_learn(b, done, ns);
    for (uint32_t i = 0; i < b->n_items; i++) {
        const struct batch_item *k = &b->items[i];
        /* An earlier span of the same request may have ended it; a client may have gone. */
        if (!slot_running(k->slot) || k->slot->answer->silent) continue;
        /* A request's choices stand one behind the other; the step is told once. */
        if (i == 0 || b->items[i - 1].slot != k->slot)
            flight_record(s->cfg.flight, k->slot->index, now, step_event(done->spans[i].kind),
                          (uint16_t)done->n_spans, done->n_rows, ns);
        if (k->n_copies > 0)
            flight_record(s->cfg.flight, k->slot->index, now, FLIGHT_COPY, 0,
                          done->pages[done->spans[i].block_table[0] + done->spans[i].n_pages - 1],
                          0);
        slot_step_done(&s->slots, k->slot, k->choice, k->first_row, k->n_rows,
                       done->outputs + k->first_output, k->n_outputs, k->sums,
                       k->look != STEP_NONE ? &done->looks[k->look] : NULL, now);
        batch_guessed(b, &s->slots, i);
    }
    label_audits_settle(&s->audits, s->cfg.policy, s->feedback, s->cfg.metrics, s->cfg.log);
}

/* Takes the step in flight, if it is done. */
static void collect(struct sched *s) {
    if (!s->in_flight) return;
    struct step *done = backend_poll(s->cfg.backend);
    if (done == NULL) return;
    CHECK(done == s->batch.step);
    s->in_flight = false;
    const uint64_t now = now_of(s);
    if (done->status != STATUS_OK)
        fail_step(s, now);
    else
        settle(s, done, now);
    reap(s);
}

static void submit_step(struct sched *s, uint64_t chores_ns) {
    const uint64_t budget = s->cfg.prefill_budget_ns;
    if (!batch_build(&s->batch, &s->slots, chores_ns < budget ? budget - chores_ns : 0)) return;
    s->submit_ns = now_of(s);
    s->in_flight = backend_submit(s->cfg.backend, s->batch.step) == STATUS_OK;
    if (s->in_flight) return;
    fail_step(s, now_of(s));
    reap(s);
}

/* ---- the turn ---- */

static void show_gauges(const struct sched *s) {
    struct metrics *m = s->cfg.metrics;
    const struct page_pool_counts pages = page_pool_counts(s->cfg.pages, 0);
    const uint32_t cached = s->kv.cache != NULL ? prefix_cache_counts(s->kv.cache).idle : 0;
    metric_set(m, METRIC_QUEUE_DEPTH, 0, s->n_waiting);
    metric_set(m, METRIC_RUNNING, 0, s->slots.n_running);
    metric_set(m, METRIC_KV_PAGES, METRIC_PAGES_FREE, pages.free);
    metric_set(m, METRIC_KV_PAGES, METRIC_PAGES_USED, pages.used - cached);
    metric_set(m, METRIC_KV_PAGES, METRIC_PAGES_CACHED, cached);
    metric_set(m, METRIC_KV_PAGES, METRIC_PAGES_RESERVED, pages.reserved);
}

static bool more_to_do(const struct sched *s) {
    if (s->chores.n_active > 0 || s->n_ended > 0 || s->to_prepare.n > 0 || s->to_embed.n > 0)
        return true;
    if (s->in_flight) return false;
    if (s->to_start.n > 0 && queue_first(&s->to_start) != s->refused) return true;
    for (uint32_t i = 0; i < s->cfg.max_batch; i++) {
        const struct slot *p = &s->slots.slots[i];
        if (slot_running(p) && (p->answer->silent || !p->paused)) return true;
    }
    return false;
}

bool sched_tick(struct sched *s) {
    collect(s);
    release_ended(s);
    shed_all_late(s, now_of(s));
    const uint64_t chores_ns = run_chores(s);
    if (s->feedback != NULL) feedback_tick(s->feedback);
    if (!s->in_flight) {
        sweep_running(s, now_of(s));
        admit(s, now_of(s));
        slots_pause_and_resume(&s->slots, now_of(s));
        slots_echo(&s->slots, now_of(s));
        reap(s);
        submit_step(s, chores_ns);
        collect(s);
    }
    release_ended(s);
    show_gauges(s);
    return more_to_do(s);
}

uint64_t sched_next_deadline_ns(const struct sched *s) {
    if (s->n_ended > 0) return 0;
    uint64_t first = queue_next_deadline_ns(&s->to_prepare);
    const uint64_t ready = queue_next_deadline_ns(&s->to_start);
    const uint64_t embed = queue_next_deadline_ns(&s->to_embed);
    if (ready < first) first = ready;
    if (embed < first) first = embed;
    for (uint32_t i = 0; i < CHORES_MAX; i++) {
        const uint32_t name = chores_name(&s->chores, i);
        if (name == CHORES_NONE || s->entries[name].answer.silent) continue;
        if (s->entries[name].key.deadline_ns < first) first = s->entries[name].key.deadline_ns;
    }
    /* While a step is in flight its end is what brings the next turn. */
    for (uint32_t i = 0; i < s->cfg.max_batch && !s->in_flight; i++) {
        const struct slot *p = &s->slots.slots[i];
        if (!slot_running(p)) continue;
        if (p->answer->silent) return 0;
        if (p->deadline_ns < first) first = p->deadline_ns;
    }
    return first;
}

/* ---- the policy's side doors ---- */

static enum status no_policy(struct error *e) {
    return error_set(e, STATUS_UNSUPPORTED, NULL, "there is no task policy here");
}

const char *sched_fingerprint(const struct sched *s) {
    return s->cfg.policy != NULL ? policy_newest(s->cfg.policy)->fingerprint : NULL;
}

enum status sched_explain(struct sched *s, struct text id, struct buffer *out, struct error *e) {
    if (s->explain == NULL) return no_policy(e);
    return explain_request(s->explain, &s->slots, id, out, e);
}

enum status sched_feedback(struct sched *s, const struct request_feedback *f, struct buffer *out,
                           struct error *e) {
    if (s->feedback == NULL) return no_policy(e);
    struct json_writer j;
    json_write_begin(&j, out);
    return feedback_take(s->feedback, f, &j, e);
}

enum status sched_policy(struct sched *s, enum sched_policy_action action, struct buffer *out,
                         struct error *e) {
    if (s->feedback == NULL) return no_policy(e);
    enum status st = STATUS_OK;
    if (action == SCHED_POLICY_PROMOTE) st = feedback_promote(s->feedback, e);
    if (action == SCHED_POLICY_REVERT) st = feedback_revert(s->feedback, e);
    if (st != STATUS_OK) return st;
    struct json_writer j;
    json_write_begin(&j, out);
    feedback_write(s->feedback, &j);
    return STATUS_OK;
}

void sched_drain(struct sched *s) {
    s->draining = true;
}

bool sched_idle(const struct sched *s) {
    return s->n_free == s->n_entries && !s->in_flight;
}

struct sched_stats sched_stats(const struct sched *s) {
    return (struct sched_stats){
        .running = s->slots.n_running,
        .queued = s->n_waiting,
        .prefix_pages = s->kv.cache != NULL ? prefix_cache_counts(s->kv.cache).entries : 0,
    };
}

static void end_everything(struct sched *s) {
    if (s->in_flight) {
        s->cfg.backend->ops->drain(s->cfg.backend);
        collect(s);
        CHECK(!s->in_flight);
    }
    for (uint32_t i = 0; i < s->n_entries; i++)
        if (s->entries[i].state != ENTRY_FREE) sched_cancel(s, handle_of(s, i));
    uint32_t name;
    struct prepared out;
    while (s->chores.n_active > 0) {
        chores_round(&s->chores);
        while (chores_take(&s->chores, &name, &out)) finish_chore(s, name, &out);
    }
    sweep_running(s, now_of(s));
    release_ended(s);
}

void sched_close(struct sched *s) {
    if (s == NULL) return;
    if (s->queue_mem != NULL) end_everything(s);
    free(s->entries);
    free(s->free_names);
    free(s->ended);
    chores_close(&s->chores);
    free(s->queue_mem);
    batch_close(&s->batch);
    slots_close(&s->slots);
    drafts_close(&s->drafts);
    feedback_close(s->feedback);
    label_audits_close(&s->audits);
    explain_close(s->explain);
    prefix_cache_close(s->kv.cache);
    page_sums_close(&s->sums);
    free(s);
}
