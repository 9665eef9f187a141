#include "sched/slot.h"

#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "sched/slot_impl.h"

static size_t aligned(size_t n) {
    return (n + 63) & ~(size_t)63;
}

enum status slots_open(struct slots *t, const struct slots_config *cfg, struct error *e) {
    memset(t, 0, sizeof *t);
    t->cfg = *cfg;
    const uint32_t n = cfg->max_batch, groups = cfg->kv->n_groups;
    const size_t sequence_bytes = aligned(sequence_footprint(cfg->n_ctx, groups));
    const size_t draw_bytes = aligned(draw_footprint(cfg->n_ctx, cfg->n_vocab));
    const size_t emit_bytes = aligned(emit_footprint());
    const size_t encode_bytes = aligned(encode_footprint(cfg->d_model));
    const size_t gate_bytes = aligned(gate_footprint(cfg->n_ctx));
    const size_t monitor_bytes = aligned(monitor_footprint(cfg->d_model));
    t->slots = calloc(n, sizeof *t->slots);
    t->total = calloc(cfg->d_model, sizeof *t->total);
    t->choices = calloc(n, sizeof *t->choices);
    t->memory = calloc(n, sequence_bytes + draw_bytes + emit_bytes + encode_bytes + gate_bytes +
                              monitor_bytes);
    enum status st = emit_scratch_open(&t->scratch, cfg->tokenizer, e);
    if (t->slots == NULL || t->total == NULL || t->choices == NULL || t->memory == NULL)
        st = error_set(e, STATUS_NO_MEMORY, NULL, "out of memory for %u slots", n);
    if (st != STATUS_OK) {
        slots_close(t);
        return st;
    }
    char *at = t->memory;
    for (uint32_t i = 0; i < n; i++) {
        sequence_init(&t->choices[i].sequence, at, cfg->n_ctx);
        draw_init(&t->choices[i].draw, at + sequence_bytes, cfg->n_ctx, cfg->n_vocab);
        emit_init(&t->choices[i].emit, at + sequence_bytes + draw_bytes);
        at += sequence_bytes + draw_bytes + emit_bytes;
        encode_init(&t->slots[i].encode, at, cfg->d_model);
        at += encode_bytes;
        gate_init(&t->slots[i].gate, at);
        at += gate_bytes;
        monitor_init(&t->choices[i].monitor, at, cfg->d_model);
        at += monitor_bytes;
        t->slots[i].index = i;
    }
    t->n_choices_free = n;
    return STATUS_OK;
}

void slots_close(struct slots *t) {
    CHECK(t->n_running == 0);
    emit_scratch_close(&t->scratch);
    free(t->slots);
    free(t->choices);
    free(t->total);
    free(t->memory);
    memset(t, 0, sizeof *t);
}

struct choice *slot_choice(struct slots *t, const struct slot *s, uint32_t c) {
    return &t->choices[s->choices[c]];
}

void slot_unreserve(const struct kv_store *kv, uint32_t n) {
    for (uint32_t g = 0; g < kv->n_groups; g++) page_pool_unreserve(kv->pool, g, n);
}

bool slot_reserve(const struct kv_store *kv, uint32_t n) {
    if (kv->cache != NULL && !prefix_cache_make_room(kv->cache, n)) return false;
    for (uint32_t g = 0; g < kv->n_groups; g++) {
        if (page_pool_reserve(kv->pool, g, n)) continue;
        while (g-- > 0) page_pool_unreserve(kv->pool, g, n);
        return false;
    }
    return true;
}

void slot_take_choices(struct slots *t, struct slot *s, uint32_t n) {
    CHECK(n <= t->n_choices_free && n <= REQUEST_MAX_CHOICES);
    s->n_choices = 0;
    for (uint32_t i = 0; s->n_choices < n; i++) {
        CHECK(i < t->cfg.max_batch);
        if (t->choices[i].taken) continue;
        t->choices[i].taken = true;
        t->choices[i].finished = false;
        t->choices[i].n_generated = 0;
        s->choices[s->n_choices++] = i;
    }
    t->n_choices_free -= n;
}

static void give_choices(struct slots *t, struct slot *s, bool suspect) {
    for (uint32_t c = 0; c < s->n_choices; c++) {
        struct choice *k = slot_choice(t, s, c);
        sequence_release(&k->sequence, t->cfg.kv, suspect);
        k->taken = false;
    }
    t->n_choices_free += s->n_choices;
    s->n_choices = s->n_unfinished = 0;
    slot_unreserve(t->cfg.kv, s->n_reserved);
    s->n_reserved = 0;
}

void slot_record(struct slots *t, const struct slot *s, uint64_t now, enum flight_kind kind,
                 uint32_t a, uint32_t b, uint64_t c) {
    flight_record(t->cfg.flight, s->index, now, kind, (uint16_t)a, b, c);
}

enum metric_task slot_task(const struct slot *s) {
    return s->epoch != NULL ? s->decision->task : METRIC_TASK_NONE;
}

static uint16_t thousandths(double v) {
    return (uint16_t)(v * 1000 + 0.5);
}

static void record_regulation(struct slots *t, const struct slot *s, uint64_t now) {
    const struct regulated *r = &s->regulated;
    if (r->n == 0) return;
    const uint16_t v[] = {thousandths(r->temperature / r->n), thousandths(r->least_temperature),
                          thousandths(r->most_temperature), thousandths(r->top_p / r->n)};
    uint64_t c = 0;
    for (int i = 0; i < 4; i++) c |= (uint64_t)v[i] << (16 * i);
    slot_record(t, s, now, FLIGHT_REGULATED, 0,
                (uint32_t)thousandths(r->least_top_p) << 16 | thousandths(r->most_top_p), c);
}

static void end(struct slots *t, struct slot *s, enum metric_outcome outcome, bool suspect,
                uint64_t now) {
    give_choices(t, s, suspect);
    s->phase = SLOT_ENDED;
    record_regulation(t, s, now);
    t->n_running--;
    metric_add(t->cfg.metrics, METRIC_REQUEST, metric_outcome_task(outcome, slot_task(s)), 1);
    if (t->cfg.explain != NULL && s->epoch != NULL) {
        const struct explain_what what = slot_explanation(s);
        explain_keep(t->cfg.explain, t->cfg.flight, s->index, &what, outcome);
    }
    metric_time(t->cfg.metrics, METRIC_REQUEST_TIME, 0, now - s->request->received_ns);
    if (s->deadline_missed) metric_add(t->cfg.metrics, METRIC_DEADLINE_MISSED, 0, 1);
}

static void end_aborted(struct slots *t, struct slot *s, uint64_t now) {
    slot_record(t, s, now, FLIGHT_ABORT, 0, 0, 0);
    end(t, s, METRIC_ABORTED, false, now);
}

/* label: the answer of a request that has labels. */
static void tell_done(struct slot *s, uint32_t label, uint64_t now) {
    const struct request_usage usage = {
        .prompt_tokens = s->n_prompt,
        .completion_tokens = s->n_generated,
        .cached_tokens = s->n_cached,
    };
    const uint64_t first = s->first_token_ns != 0 ? s->first_token_ns : now;
    struct request_report report = {
        .seed = s->seed,
        .deadline_missed = s->deadline_missed,
        .drafted = s->n_proposed,
        .accepted = s->n_accepted,
        .gate_attended = s->gate.n_attended,
        .gate_there = s->gate.n_there,
        .n_anchors = s->gate.n_anchors,
        .n_rollbacks = s->n_rollbacks,
        .n_withdrawn = s->n_withdrawn,
        .n_breakers = s->n_breakers,
        .n_regulated = s->regulated.n,
        .queue_ns = s->admitted_ns - s->request->received_ns,
        .prefill_ns = first - s->admitted_ns,
        .decode_ns = now - first,
        .task = slot_task(s),
        .lint = s->lint,
    };
    if (s->label != NULL) {
        report.label_probability = s->label->told;
        report.label = label;
        report.exit_layer = s->exit_layer;
    }
    if (s->regulated.n > 0) {
        report.temperature = (float)(s->regulated.temperature / s->regulated.n);
        report.top_p = (float)(s->regulated.top_p / s->regulated.n);
    }
    memcpy(report.rollbacks, s->rollbacks, sizeof report.rollbacks);
    answer_done(s->answer, &usage, &report);
}

static void finish_choice(struct slots *t, struct slot *s, uint32_t c, enum finish_reason reason,
                          uint64_t now) {
    struct choice *k = slot_choice(t, s, c);
    CHECK(!k->finished && s->n_unfinished > 0);
    k->finished = true;
    slot_record(t, s, now, FLIGHT_CHOICE_END, c, (uint32_t)reason, k->n_generated);
    answer_finish(s->answer, c, reason);
    sequence_release(&k->sequence, t->cfg.kv, false);
    if (--s->n_unfinished > 0) return;
    if (s->answer->silent) {
        end_aborted(t, s, now);
        return;
    }
    slot_record(t, s, now, FLIGHT_FINISH, 0, s->n_generated, 0);
    if (t->cfg.heap_bytes != NULL && s->first_token_ns != 0)
        metric_add(t->cfg.metrics, METRIC_DECODE_HEAP, 0, *t->cfg.heap_bytes - s->heap_mark);
    tell_done(s, 0, now);
    end(t, s, METRIC_FINISHED, false, now);
}

void slot_finish_labelled(struct slots *t, struct slot *s, uint32_t label, uint64_t now) {
    tell_done(s, label, now);
    end(t, s, METRIC_FINISHED, false, now);
}

/* Ends a choice that no stop string and no end token ended. */
static void finish_at_length(struct slots *t, struct slot *s, uint32_t c, uint64_t now) {
    const bool stopped = emit_end(&slot_choice(t, s, c)->emit, &t->scratch, s->answer);
    finish_choice(t, s, c, stopped ? FINISH_STOP : FINISH_LENGTH, now);
}

static void finish_all(struct slots *t, struct slot *s, uint64_t now) {
    for (uint32_t c = 0, n = s->n_choices; c < n; c++)
        if (!slot_choice(t, s, c)->finished) finish_at_length(t, s, c, now);
}

static void echo_token(struct slots *t, struct slot *s, uint32_t id, const struct output *o) {
    for (uint32_t c = 0; c < s->n_choices; c++)
        emit_prompt(&slot_choice(t, s, c)->emit, &t->scratch, s->answer, id, o);
}

/* The prompt itself, as far as it needs no scores. */
static void echo(struct slots *t, struct slot *s, uint64_t now) {
    const struct sequence *q = &slot_choice(t, s, 0)->sequence;
    const uint32_t n = s->score_prompt ? 1 : s->n_prompt;
    for (uint32_t done = 0; s->n_echoed < n; done += s->n_choices) {
        if (done >= SLOT_ECHO_TOKENS) return;
        echo_token(t, s, q->tokens[s->n_echoed++], NULL);
    }
    s->phase = SLOT_PREFILL;
    if (s->n_prefill == 0) finish_all(t, s, now);
}

void slots_echo(struct slots *t, uint64_t now) {
    for (uint32_t i = 0; i < t->cfg.max_batch; i++)
        if (t->slots[i].phase == SLOT_ECHO && !t->slots[i].paused) echo(t, &t->slots[i], now);
}

static struct slot *find_free(struct slots *t) {
    for (uint32_t i = 0; i < t->cfg.max_batch; i++)
        if (t->slots[i].phase == SLOT_FREE) return &t->slots[i];
    return NULL;
}

/* What happened before there was a slot to record it in. */
static void record_start(struct slots *t, const struct slot *s, const struct slot_start *w,
                         uint64_t now) {
    flight_clear(t->cfg.flight, s->index);
    slot_record(t, s, w->request->received_ns, FLIGHT_RECEIVED, 0, 0, 0);
    slot_record(t, s, w->queued_ns, FLIGHT_QUEUED, 0, 0, 0);
    slot_record(t, s, w->tokenised_ns, FLIGHT_TOKENISED, 0, s->n_prompt,
                w->request->kind == REQUEST_CHAT ? w->request->chat_json.len
                                                 : w->request->prompt.len);
    slot_record(t, s, now, FLIGHT_ADMITTED, 0, s->n_reserved,
                s->epoch != NULL ? s->epoch->number : 0);
    if (s->epoch != NULL) {
        const double p = s->decision->classified ? (double)s->decision->verdict.confidence : 0;
        slot_record(t, s, now, FLIGHT_TASK, s->decision->task, (uint32_t)(p * 1e6),
                    s->decision->set);
    }
    if (s->n_cached > 0) slot_record(t, s, now, FLIGHT_PREFIX_HIT, 0, s->n_cached, 0);
    if (s->gate.on)
        slot_record(t, s, now, FLIGHT_GATE_POLICY, s->gate.policy.budget_least > 0,
                    gate_budget(&s->gate.policy, s->n_prompt), s->gate.policy.first_position);
    metric_add(t->cfg.metrics, METRIC_REQUEST_STARTED, 0, 1);
    metric_add(t->cfg.metrics, METRIC_PROMPT_TOKENS, 0, s->n_prompt);
    metric_add(t->cfg.metrics, METRIC_PREFIX_HIT_TOKENS, 0, s->n_cached);
}

/* The user's positions on page i of the prompt: [*first, *end) of its 16; false: none. */
static bool user_part(const struct slot *s, uint32_t i, uint32_t *first, uint32_t *end) {
    const uint32_t page0 = i * KV_PAGE_TOKENS;
    if (s->user.end <= page0 || s->user.first >= page0 + KV_PAGE_TOKENS ||
        s->user.first >= s->user.end)
        return false;
    *first = s->user.first > page0 ? s->user.first - page0 : 0;
    *end = s->user.end - page0 < KV_PAGE_TOKENS ? s->user.end - page0 : KV_PAGE_TOKENS;
    return true;
}

/* Leading pages whose sum, where the monitor needs one, is there. */
static uint32_t summed_pages(const struct slots *t, const struct slot *s,
                             const struct sequence *q) {
    uint32_t i = 0, first, end;
    for (; i < q->n_pages; i++) {
        if (!user_part(s, i, &first, &end)) continue;
        const uint32_t page = q->pages[(size_t)i * t->cfg.kv->n_groups];
        if (page_pool_meta(t->cfg.kv->pool, 0, page)->summed != page_sums_tag(first, end)) break;
    }
    return i;
}

/* At least the last row is computed, for its logits; a scored prompt needs all of them. */
static uint32_t adopt_prefix(struct slots *t, const struct slot *s, struct sequence *q,
                             const struct prepared *p) {
    const uint32_t n = sequence_adopt_prefix(q, t->cfg.kv, s->n_prefill - 1);
    const uint32_t summed = summed_pages(t, s, q);
    if (summed == q->n_pages) return n;
    /* The others were computed for requests that nobody monitored. */
    sequence_release(q, t->cfg.kv, false);
    sequence_start(q, p->tokens.ids, s->n_prompt);
    return sequence_adopt_prefix(q, t->cfg.kv, summed * KV_PAGE_TOKENS);
}

/* Choices, the prefix that is cached, and a reservation for the rest. */
static bool take_memory(struct slots *t, struct slot *s, const struct slot_start *w) {
    const struct request *r = w->request;
    const struct prepared *p = w->prepared;
    s->n_prompt = (uint32_t)p->tokens.n;
    s->max_tokens = p->max_tokens;
    s->n_prefill = prepare_prefill(r, s->n_prompt, s->max_tokens);
    s->score_prompt = r->echo && r->logprobs;
    s->n_reserved = s->n_cached = 0;
    s->user = (struct token_range){0};
    if (r->rollback.rule != ROLLBACK_OFF) s->user = p->user;
    slot_take_choices(t, s, r->n);
    struct sequence *q = &slot_choice(t, s, 0)->sequence;
    sequence_start(q, p->tokens.ids, s->n_prompt);
    gate_start(&s->gate, t->cfg.gate, r, &p->gate, s->n_prompt);
    if (s->gate.on) q->n_plain = s->gate.policy.first_position;
    if (s->n_prefill == 0) return true;
    if (!s->score_prompt) s->n_cached = adopt_prefix(t, s, q, p);
    const uint64_t pages =
        prepare_pages(s->n_prompt, s->max_tokens, r->n) - s->n_cached / KV_PAGE_TOKENS;
    if (pages <= UINT32_MAX && slot_reserve(t->cfg.kv, (uint32_t)pages)) {
        s->n_reserved = (uint32_t)pages;
        return true;
    }
    give_choices(t, s, false);
    return false;
}

/* An embedding: one sequence, with pages for the longest text, into which no cached page goes. */
static bool take_encode_memory(struct slots *t, struct slot *s, const struct slot_start *w) {
    const struct prepared *p = w->prepared;
    uint32_t longest = 0;
    for (uint32_t i = 0; i < w->request->n_inputs; i++) {
        const uint32_t n = p->ends[i] - (i > 0 ? p->ends[i - 1] : 0);
        if (n > longest) longest = n;
    }
    s->n_prompt = (uint32_t)p->tokens.n;
    s->max_tokens = s->n_cached = 0;
    s->score_prompt = false;
    s->user = (struct token_range){0};
    s->n_reserved = 0;
    if (!slot_reserve(t->cfg.kv, pages_for(longest))) return false;
    s->n_reserved = pages_for(longest);
    slot_take_choices(t, s, 1);
    encode_start(&s->encode, p->tokens.ids, p->ends, w->request->n_inputs);
    const uint32_t *ids = encode_text(&s->encode, &s->n_prefill);
    sequence_start(&slot_choice(t, s, 0)->sequence, ids, s->n_prefill);
    return true;
}

enum status slot_admit(struct slots *t, const struct slot_start *w, uint64_t now) {
    const struct request *r = w->request;
    struct slot *s = find_free(t);
    const bool encode = r->kind == REQUEST_EMBEDDING;
    if (s == NULL || r->n > t->n_choices_free) return STATUS_AGAIN;
    s->label = NULL;
    s->exit_layer = 0;
    gate_init(&s->gate, s->gate.pages);
    if (!(encode            ? take_encode_memory(t, s, w)
          : r->n_labels > 0 ? slot_take_label_memory(t, s, w)
                            : take_memory(t, s, w)))
        return STATUS_AGAIN;
    s->phase = encode                                      ? SLOT_ENCODE
               : s->label != NULL && s->label->set != NULL ? SLOT_LOOK
               : r->echo                                   ? SLOT_ECHO
                                                           : SLOT_PREFILL;
    if (s->label != NULL) s->label_last_token = w->prepared->tokens.ids[s->n_prompt - 1];
    s->name = w->name;
    s->request = r;
    s->answer = w->answer;
    s->epoch = w->epoch;
    s->decision = w->decision;
    s->lint = w->lint;
    s->seed = w->seed;
    s->deadline_ns = w->deadline_ns;
    s->admitted_ns = now;
    s->first_token_ns = 0;
    s->n_unfinished = s->n_choices;
    s->n_generated = s->n_echoed = s->n_proposed = s->n_accepted = 0;
    s->n_rollbacks = s->n_withdrawn = s->n_breakers = 0;
    s->regulated = (struct regulated){0};
    s->served = w->step;
    s->deadline_missed = s->paused = false;
    stop_set_init(&s->stops, r->stops, r->n_stops);
    for (uint32_t c = 0; c < s->n_choices && !encode; c++) {
        struct choice *k = slot_choice(t, s, c);
        const struct prepared *p = w->prepared;
        draw_start(&k->draw, r, s->seed, c, p->tokens.ids, s->n_prompt, p->distinct, p->n_distinct);
        emit_start(&k->emit, t->cfg.tokenizer, r, c, &s->stops);
        monitor_start(&k->monitor, t->cfg.monitor, &r->rollback, s->n_prompt);
        k->n_drafted = 0;
        if (t->cfg.drafts != NULL) draft_start(t->cfg.drafts, s->choices[c], 0, s->n_prompt);
    }
    t->n_running++;
    record_start(t, s, w, now);
    if (encode) return STATUS_OK;
    answer_started(w->answer, s->seed);
    if (s->phase == SLOT_PREFILL && s->n_prefill == 0) finish_all(t, s, now);
    return STATUS_OK;
}

void slots_pause_and_resume(struct slots *t, uint64_t now) {
    for (uint32_t i = 0; i < t->cfg.max_batch; i++) {
        struct slot *s = &t->slots[i];
        if (!slot_running(s)) continue;
        const struct answer *a = s->answer;
        const bool paused = a->silent || !a->sink.writable(a->user);
        if (paused != s->paused)
            slot_record(t, s, now, paused ? FLIGHT_PAUSED : FLIGHT_RESUMED, 0, 0,
                        paused ? 0 : now - s->paused_ns);
        if (paused && !s->paused) s->paused_ns = now;
        s->paused = paused;
    }
}

static void count_regulated(struct slot *s, const struct sample_spec *spec) {
    if (spec->regulate == 0) return;
    struct regulated *r = &s->regulated;
    const float t = spec->temperature, p = spec->top_p;
    if (r->n == 0 || t < r->least_temperature) r->least_temperature = t;
    if (r->n == 0 || t > r->most_temperature) r->most_temperature = t;
    if (r->n == 0 || p < r->least_top_p) r->least_top_p = p;
    if (r->n == 0 || p > r->most_top_p) r->most_top_p = p;
    r->temperature += (double)t;
    r->top_p += (double)p;
    r->n++;
}

/* One more token is final: the client sees it. */
static void commit_token(struct slots *t, struct slot *s, uint32_t c, const struct output *o,
                         uint32_t position, uint64_t now) {
    struct choice *k = slot_choice(t, s, c);
    slot_record(t, s, now, FLIGHT_TOKEN, c, o->token, position);
    count_regulated(s, &o->sample);
    metric_add(t->cfg.metrics, METRIC_COMPLETION_TOKENS, 0, 1);
    if (k->n_generated > 0)
        metric_time(t->cfg.metrics, METRIC_INTER_TOKEN, 0, now - k->last_token_ns);
    k->n_generated++;
    s->n_generated++;
    k->last_token_ns = now;
    if (!s->request->ignore_eos && tokenizer_is_eog(t->cfg.tokenizer, o->token)) {
        emit_end(&k->emit, &t->scratch, s->answer);
        finish_choice(t, s, c, FINISH_STOP, now);
    } else if (emit_token(&k->emit, &t->scratch, s->answer, o)) {
        finish_choice(t, s, c, FINISH_STOP, now);
    } else if (k->n_generated == s->max_tokens) {
        finish_at_length(t, s, c, now);
    }
}

/* Held tokens before `n` are final. */
static void commit_held(struct slots *t, struct slot *s, uint32_t c, uint32_t n, uint64_t now) {
    struct choice *k = slot_choice(t, s, c);
    while (!k->finished && k->sequence.n_committed < n) {
        const uint32_t at = k->sequence.n_committed;
        sequence_commit(&k->sequence, at + 1);
        commit_token(t, s, c, monitor_held(&k->monitor, at), at, now);
    }
}

/* Tokens from `cut` on never were. The row before them runs again: its logits were not kept. */
static void withdraw(struct slots *t, struct slot *s, uint32_t c, uint32_t cut,
                     const struct output *o, uint64_t now) {
    struct choice *k = slot_choice(t, s, c);
    struct sequence *q = &k->sequence;
    const uint32_t n = q->n_settled - cut;
    for (uint32_t at = q->n_settled; at-- > cut;)
        draw_withdraw(&k->draw, q->tokens[at],
                      at >= DRAW_WINDOW_TOKENS ? q->tokens[at - DRAW_WINDOW_TOKENS] : TOKEN_NONE);
    sequence_cut(q, cut);
    q->n_computed = cut - 1;
    if (s->n_rollbacks < REQUEST_REPORT_ROLLBACKS)
        s->rollbacks[s->n_rollbacks] = (struct rollback_event){.choice = c,
                                                               .at = cut - s->n_prompt,
                                                               .withdrawn = n,
                                                               .entropy = o->entropy,
                                                               .similarity = o->cosine};
    s->n_rollbacks++;
    s->n_withdrawn += n;
    metric_add(t->cfg.metrics, METRIC_ROLLBACK_COUNT, slot_task(s), 1);
    slot_record(t, s, now, FLIGHT_ROLLBACK, c, n,
                flight_rollback_pack((struct flight_rollback){cut, o->entropy, o->cosine}));
}

/* What the monitor says to a token that was drawn. After a cut or a tripped breaker the rows behind
 * it, which were drawn as if it stood and nothing changed, do not count. */
static void obey(struct slots *t, struct slot *s, uint32_t c, const struct output *o,
                 struct monitor_verdict v, uint64_t now) {
    struct choice *k = slot_choice(t, s, c);
    struct sequence *q = &k->sequence;
    const uint32_t n = q->n_settled;
    if (v.cut > 0) {
        withdraw(t, s, c, v.cut, o, now);
        return;
    }
    if (v.tripped) {
        q->holds = false;
        s->n_breakers++;
        slot_record(t, s, now, FLIGHT_BREAKER, c, k->monitor.n_rollbacks, n - 1);
        sequence_cut(q, n);
        q->n_computed = n - 1;
    }
    /* Nothing more is drawn that could speak against what is held. */
    const bool ends = (!s->request->ignore_eos && tokenizer_is_eog(t->cfg.tokenizer, o->token)) ||
                      n - s->n_prompt == s->max_tokens;
    commit_held(t, s, c, ends ? n : v.commit, now);
}

/* One more token of a choice: committed at once, unless a monitor may withdraw it. Returns whether
 * a draft foretold it, so that the next row's output is one too. */
static bool accept(struct slots *t, struct slot *s, uint32_t c, struct output *o, uint64_t now) {
    struct choice *k = slot_choice(t, s, c);
    bool foretold = sequence_settle(&k->sequence, o->token);
    const bool watched = k->monitor.on;
    struct monitor_verdict v = {0};
    /* While the lists that it was drawn with are as they were. */
    if (watched) v = monitor_draw(&k->monitor, k->sequence.n_settled - 1, o);
    draw_accept(&k->draw, o->token);
    if (v.cut > 0 || v.tripped) foretold = false;
    /* Before the answer can end and tell of it. */
    s->n_accepted += foretold;
    if (watched)
        obey(t, s, c, o, v, now);
    else
        commit_token(t, s, c, o, k->sequence.n_committed - 1, now);
    return foretold;
}

/* What the row at `position` attended to. */
static void count_gated(struct slots *t, struct slot *s, uint32_t c, uint32_t position,
                        uint64_t now) {
    if (!s->gate.on || position < s->gate.policy.first_position) return;
    const struct gate before = s->gate;
    gate_count(&s->gate, position);
    t->n_gated++;
    t->n_kept += s->gate.n_kept - before.n_kept;
    metric_set(t->cfg.metrics, METRIC_MASK_HIT_RATE, 0, (double)t->n_kept / (double)t->n_gated);
    slot_record(t, s, now, FLIGHT_GATE, c, (uint32_t)(s->gate.n_attended - before.n_attended),
                s->gate.n_there - before.n_there);
}

static bool is_bad(struct slots *t, struct slot *s, const struct output *o, uint64_t now) {
    if (!o->bad) return false;
    struct error e;
    (void)error_set(&e, STATUS_BAD_NUMBER, NULL, "the model's output is not a number");
    slot_fail(t, s, &e, now);
    return true;
}

/* Row 0 is the last token's, the others are drafts': each output counts as long as the drafts
 * before it were what was drawn. The others are as if they had never been computed. */
static void decode_done(struct slots *t, struct slot *s, uint32_t c, struct output *outputs,
                        uint32_t n_outputs, const float *states, uint64_t now) {
    struct choice *k = slot_choice(t, s, c);
    const uint32_t drafted = k->n_drafted, name = s->choices[c];
    uint32_t accepted = 0, n_drawn = 0;
    CHECK(n_outputs == 1 + drafted);
    k->n_drafted = 0;
    s->n_proposed += drafted;
    if (drafted > 0) {
        /* Before the answer can end. */
        uint32_t right = 0;
        while (right < drafted && outputs[right].token == k->guess.ids[right]) right++;
        slot_record(t, s, now, FLIGHT_DRAFTED, k->guess.source[0], drafted, right);
    }
    for (uint32_t i = 0; i < n_outputs; i++) {
        if (is_bad(t, s, &outputs[i], now)) return;
        if (i == 0) sequence_seal(&k->sequence, t->cfg.kv);
        count_gated(t, s, c, k->sequence.n_settled - 1, now);
        if (k->monitor.on)
            monitor_state(&k->monitor, k->sequence.n_settled - 1,
                          states + (size_t)i * t->cfg.d_model);
        const bool foretold = accept(t, s, c, &outputs[i], now);
        accepted += foretold;
        n_drawn++;
        if (!foretold || k->finished || !slot_running(s)) break;
    }
    if (t->cfg.drafts != NULL)
        draft_settled(t->cfg.drafts, name, &k->guess, drafted, accepted, outputs, n_drawn);
}

static void prefill_done(struct slots *t, struct slot *s, struct output *outputs, uint64_t now) {
    struct sequence *q = &slot_choice(t, s, 0)->sequence;
    if (s->label != NULL) {
        slot_question_done(t, s);
        return;
    }
    if (s->max_tokens == 0) {
        finish_all(t, s, now);
        return;
    }
    const uint32_t n = s->n_choices;
    q->holds = s->request->rollback.rule != ROLLBACK_OFF;
    for (uint32_t c = 1; c < n; c++) {
        sequence_fork(&slot_choice(t, s, c)->sequence, q, t->cfg.kv);
        if (q->holds)
            monitor_copy_prompt(&slot_choice(t, s, c)->monitor, &slot_choice(t, s, 0)->monitor);
    }
    s->phase = SLOT_DECODE;
    s->first_token_ns = now;
    if (t->cfg.heap_bytes != NULL) s->heap_mark = *t->cfg.heap_bytes;
    slot_record(t, s, now, FLIGHT_FIRST_TOKEN, 0, outputs[0].token, 0);
    metric_time(t->cfg.metrics, METRIC_TIME_TO_FIRST_TOKEN, 0, now - s->request->received_ns);
    for (uint32_t c = 0; c < n; c++) (void)accept(t, s, c, &outputs[c], now);
}

/* ---- a monitored prompt ---- */

uint32_t slot_prompt_rows(const struct slots *t, const struct slot *s, uint32_t n,
                          uint32_t *first) {
    const uint32_t at = t->choices[s->choices[0]].sequence.n_computed;
    const uint32_t from = s->user.first > at ? s->user.first : at;
    const uint32_t to = s->user.end < at + n ? s->user.end : at + n;
    *first = from - at;
    return from < to ? to - from : 0;
}

static float *prompt_sum(const struct slots *t, const struct slot *s, uint32_t page) {
    const struct sequence *q = &t->choices[s->choices[0]].sequence;
    return page_sums_of(t->cfg.kv->sums, q->pages[(size_t)page * t->cfg.kv->n_groups]);
}

void slot_prompt_before(const struct slots *t, const struct slot *s, uint32_t first, uint32_t n,
                        float *sums) {
    const struct sequence *q = &t->choices[s->choices[0]].sequence;
    const uint32_t at = q->n_computed + first, d = t->cfg.d_model;
    memset(sums, 0, (size_t)encode_pages(at, n) * d * sizeof *sums);
    /* Begun by an earlier chunk. */
    if (at > s->user.first && at % KV_PAGE_TOKENS != 0)
        memcpy(sums, prompt_sum(t, s, at / KV_PAGE_TOKENS), d * sizeof *sums);
}

/* Before the sequence knows that the rows were computed. */
static void prompt_after(struct slots *t, struct slot *s, uint32_t n_rows, const float *sums) {
    const struct sequence *q = &slot_choice(t, s, 0)->sequence;
    const uint32_t d = t->cfg.d_model;
    uint32_t first;
    const uint32_t n = slot_prompt_rows(t, s, n_rows, &first);
    const uint32_t at = q->n_computed + first, page0 = at / KV_PAGE_TOKENS;
    for (uint32_t i = 0; i < encode_pages(at, n); i++) {
        const uint32_t page = q->pages[(size_t)(page0 + i) * t->cfg.kv->n_groups];
        uint32_t a, b;
        memcpy(page_sums_of(t->cfg.kv->sums, page), sums + (size_t)i * d, d * sizeof *sums);
        if (user_part(s, page0 + i, &a, &b) && at + n >= (page0 + i) * KV_PAGE_TOKENS + b)
            page_pool_meta(t->cfg.kv->pool, 0, page)->summed = page_sums_tag(a, b);
    }
}

/* Page by page, wherever each page's sum comes from. */
static void embed_prompt(struct slots *t, struct slot *s) {
    struct choice *k = slot_choice(t, s, 0);
    float *total = t->total;
    uint32_t a, b;
    memset(total, 0, t->cfg.d_model * sizeof *total);
    for (uint32_t i = s->user.first / KV_PAGE_TOKENS; user_part(s, i, &a, &b); i++) {
        const float *sum = prompt_sum(t, s, i);
        for (uint32_t d = 0; d < t->cfg.d_model; d++) total[d] = total[d] + sum[d];
    }
    monitor_prompt(&k->monitor, total, s->user.end - s->user.first);
}

/* The states of one more stretch of the text at hand are summed. */
static void encode_done(struct slots *t, struct slot *s, uint32_t first, uint32_t n,
                        const float *sums, uint64_t now) {
    struct sequence *q = &slot_choice(t, s, 0)->sequence;
    encode_after(&s->encode, first, n, sums);
    if (q->n_computed < s->n_prefill) return;
    if (!encode_finish(&s->encode)) {
        struct error e;
        (void)error_set(&e, STATUS_BAD_NUMBER, NULL, "the model's output is not a number");
        slot_fail(t, s, &e, now);
        return;
    }
    if (!s->answer->silent)
        s->answer->sink.embedding(s->answer->user, s->encode.text, s->encode.total,
                                  s->encode.d_model);
    if (encode_next(&s->encode)) {
        const uint32_t *ids = encode_text(&s->encode, &s->n_prefill);
        sequence_restart(q, ids, s->n_prefill);
        return;
    }
    if (s->answer->silent) {
        end_aborted(t, s, now);
        return;
    }
    slot_record(t, s, now, FLIGHT_FINISH, 0, 0, 0);
    tell_done(s, 0, now);
    end(t, s, METRIC_FINISHED, false, now);
}

void slot_step_done(struct slots *t, struct slot *s, uint32_t c, uint32_t first_row,
                    uint32_t n_rows, struct output *outputs, uint32_t n_outputs, const float *sums,
                    const struct label_look *look, uint64_t now) {
    struct sequence *q = &slot_choice(t, s, c)->sequence;
    const uint32_t first_position = q->n_computed;
    if (s->phase == SLOT_PREFILL && sums != NULL) prompt_after(t, s, n_rows, sums);
    sequence_computed(q, t->cfg.kv, n_rows);
    if (s->phase == SLOT_DECODE) {
        decode_done(t, s, c, outputs, n_outputs, sums, now);
        return;
    }
    if (s->phase == SLOT_SCORE) {
        slot_score_done(t, s, c, outputs, n_outputs, now);
        return;
    }
    if (q->n_computed == s->n_prompt && s->request->rollback.rule != ROLLBACK_OFF)
        embed_prompt(t, s);
    for (uint32_t i = 0; i < n_outputs; i++)
        if (is_bad(t, s, &outputs[i], now)) return;
    if (n_outputs > 0) sequence_seal(q, t->cfg.kv);
    slot_record(t, s, now, FLIGHT_PREFILL_CHUNK, c, n_rows, first_position);
    if (s->phase == SLOT_LOOK) {
        slot_look_done(t, s, look, now);
        return;
    }
    if (s->phase == SLOT_ENCODE) {
        encode_done(t, s, first_position, n_rows, sums, now);
        return;
    }
    CHECK(s->phase == SLOT_PREFILL && c == 0);
    uint32_t i = 0;
    for (; i < n_outputs && outputs[i].sample.target != STEP_NONE; i++) {
        const uint32_t position = first_position + (outputs[i].row - first_row) + 1;
        echo_token(t, s, q->tokens[position], &outputs[i]);
    }
    if (q->n_computed < s->n_prefill) return;
    const uint32_t drawn = s->label != NULL ? 1 : s->n_choices;
    CHECK(n_outputs - i == (s->max_tokens > 0 ? drawn : 0));
    prefill_done(t, s, outputs + i, now);
}

void slot_fail(struct slots *t, struct slot *s, const struct error *e, uint64_t now) {
    slot_record(t, s, now, FLIGHT_FAIL, 0, (uint32_t)e->status, 0);
    answer_failed(s->answer, e, 1);
    /* A missed deadline says nothing against the KV. */
    end(t, s, METRIC_FAILED, e->status != STATUS_DEADLINE, now);
}

void slot_abort(struct slots *t, struct slot *s, uint64_t now) {
    end_aborted(t, s, now);
}

void slot_deadline(struct slots *t, struct slot *s, uint64_t now) {
    s->deadline_missed = true;
    slot_record(t, s, now, FLIGHT_DEADLINE, 0, 0, 0);
    /* There is no half of an embedding, nor of a label. */
    if (s->request->on_deadline == ON_DEADLINE_TRUNCATE && s->phase != SLOT_ENCODE &&
        s->label == NULL) {
        finish_all(t, s, now);
        return;
    }
    struct error e;
    (void)error_set(&e, STATUS_DEADLINE, "laconic.deadline_ms", "the deadline passed");
    slot_fail(t, s, &e, now);
}

void slot_free(struct slot *s) {
    CHECK(s->phase == SLOT_ENDED && s->n_choices == 0);
    s->phase = SLOT_FREE;
}
