#include "sched/batch.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"

enum { DRAFT_FOLLOW_TOKENS = 1024 };
/* A guess must be worth this much more than it costs: estimates err. */
static const double BATCH_GAIN = 1.1;

static enum status check_limits(const struct slots *t, const struct step_limits *l, bool looks,
                                struct error *e) {
    const uint64_t n = t->cfg.max_batch, groups = t->cfg.kv->n_groups;
    const struct {
        const char *name;
        uint64_t have, need;
    } rules[] = {
        {"max_spans", l->max_spans, n},
        {"max_rows", l->max_rows, n},
        {"max_outputs", l->max_outputs, n},
        {"max_copies", l->max_copies, n * groups},
        {"max_pages", l->max_pages, n * groups * pages_for(t->cfg.n_ctx)},
        {"max_profiles", l->max_profiles, looks ? n + 1 : 1},
        {"max_taps", l->max_taps, n},
        {"max_gates", l->max_gates, t->cfg.gate->bounds ? n : 0},
        {"max_gate_pages", l->max_gate_pages,
         t->cfg.gate->bounds ? n * pages_for(t->cfg.n_ctx) : 0},
        {"max_exits", l->max_exits, looks ? n : 0},
        {"max_looks", l->max_looks, looks ? n : 0},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].have < rules[i].need)
            return error_set(e, STATUS_INVALID, rules[i].name,
                             "step limit %s is %llu, but %u choices need %llu", rules[i].name,
                             (unsigned long long)rules[i].have, t->cfg.max_batch,
                             (unsigned long long)rules[i].need);
    return STATUS_OK;
}

enum status batch_open(struct batch *b, const struct slots *t, const struct step_limits *limits,
                       const struct plan *plan, uint64_t epoch, struct error *e) {
    memset(b, 0, sizeof *b);
    const enum status st = check_limits(t, limits, epoch != 0, e);
    if (st != STATUS_OK) return st;
    void *mem = aligned_alloc(64, (step_footprint(limits) + 63) & ~(size_t)63);
    b->items = calloc(limits->max_spans, sizeof *b->items);
    b->order = calloc(t->cfg.max_batch, sizeof *b->order);
    /* A span touches at most one page more at each end than its rows fill. */
    const size_t sums = limits->max_rows / KV_PAGE_TOKENS + 2 * (size_t)t->cfg.max_batch;
    b->sums = calloc(sums * plan->d_model, sizeof *b->sums);
    b->states = calloc((size_t)limits->max_rows * plan->d_model, sizeof *b->states);
    b->monitor_layer = t->cfg.monitor->layer - 1;
    b->decodes = calloc(t->cfg.max_batch, sizeof *b->decodes);
    b->ahead_memory = malloc(draw_footprint(t->cfg.n_ctx, t->cfg.n_vocab));
    b->biases = malloc(BATCH_BIASES * sizeof *b->biases);
    if (mem == NULL || b->items == NULL || b->order == NULL || b->sums == NULL ||
        b->states == NULL || b->decodes == NULL || b->ahead_memory == NULL || b->biases == NULL) {
        free(mem);
        batch_close(b);
        return error_set(e, STATUS_NO_MEMORY, NULL, "out of memory for a step");
    }
    b->step = step_init(mem, limits);
    draw_init(&b->ahead, b->ahead_memory, t->cfg.n_ctx, t->cfg.n_vocab);
    b->n_layers = plan->n_layers;
    b->d_model = plan->d_model;
    b->epoch = epoch;
    for (int k = 0; k < BLOCK_KIND_COUNT; k++)
        if (plan->blocks[k].n_ids > 0 && plan->blocks[k].layer.window > b->block_window)
            b->block_window = plan->blocks[k].layer.window;
    cost_init(&b->cost);
    return STATUS_OK;
}

void batch_close(struct batch *b) {
    free(b->step);
    free(b->items);
    free(b->order);
    free(b->sums);
    free(b->states);
    free(b->decodes);
    free(b->ahead_memory);
    free(b->biases);
    memset(b, 0, sizeof *b);
}

/* By a row of a decode. */
static uint64_t positions_read(const struct slot *s, uint32_t position) {
    if (!s->gate.on || position < s->gate.policy.first_position) return position;
    return (uint64_t)gate_attended(&s->gate, position) * KV_PAGE_TOKENS;
}

static void add(struct batch *b, struct slots *t, struct slot *s, uint32_t c, enum span_kind kind,
                uint32_t n_rows, uint32_t ahead) {
    struct sequence *q = &t->choices[s->choices[c]].sequence;
    const uint32_t first = q->n_computed;
    b->items[b->n_items++] = (struct batch_item){
        .slot = s,
        .choice = c,
        .first_row = b->step->n_rows,
        .n_rows = n_rows,
        .first_output = b->step->n_outputs,
        .look = STEP_NONE,
    };
    const uint32_t copies = b->step->n_copies;
    struct span *span = sequence_add_span(q, t->cfg.kv, &s->n_reserved, b->step, kind,
                                          s->choices[c], n_rows, ahead);
    if (s->phase == SLOT_DECODE) gate_span(&s->gate, b->step, span);
    b->items[b->n_items - 1].n_copies = b->step->n_copies - copies;
    b->work.rows += n_rows;
    b->work.positions += s->phase == SLOT_DECODE
                             ? (uint64_t)n_rows * positions_read(s, first)
                             : (uint64_t)n_rows * first + (uint64_t)n_rows * (n_rows - 1) / 2;
}

static void add_draw(struct batch *b, const struct sample_spec *spec, uint32_t row) {
    step_add_output(b->step, row)->sample = *spec;
    b->items[b->n_items - 1].n_outputs++;
    b->work.outputs++;
}

/* ---- drafts ---- */

static void collect_decodes(struct batch *b, struct slots *t) {
    for (uint32_t i = 0; i < t->cfg.max_batch; i++) {
        struct slot *s = &t->slots[i];
        if (s->phase != SLOT_DECODE || s->paused) continue;
        for (uint32_t c = 0; c < s->n_choices; c++)
            if (!t->choices[s->choices[c]].finished)
                b->decodes[b->n_decodes++] = (struct batch_decode){.slot = s, .choice = c};
    }
}

static struct choice *choice_of(struct slots *t, const struct batch_decode *d) {
    return &t->choices[d->slot->choices[d->choice]];
}

static void guess(struct batch *b, struct slots *t) {
    for (uint32_t i = 0; i < b->n_decodes; i++) {
        const struct batch_decode *d = &b->decodes[i];
        struct choice *k = choice_of(t, d);
        const uint32_t name = d->slot->choices[d->choice];
        const struct sequence *q = &k->sequence;
        /* While tokens are held nothing is guessed: what may be withdrawn is not learnt from. */
        draft_follow(t->cfg.drafts, name, q->tokens, q->n_committed, DRAFT_FOLLOW_TOKENS);
        /* The last token of the answer needs no row of its own. */
        const uint32_t left = d->slot->max_tokens - (q->n_tokens - d->slot->n_prompt) - 1;
        draft_guess(t->cfg.drafts, name, q->tokens, q->n_tokens, left, &k->guess);
    }
}

/* The decode whose next draft is the likeliest to be reached and right; NULL: none is left. */
static struct batch_decode *likeliest(struct batch *b, struct slots *t, float *reach) {
    struct batch_decode *best = NULL;
    *reach = 0;
    for (uint32_t i = 0; i < b->n_decodes; i++) {
        const struct draft_guess *g = &choice_of(t, &b->decodes[i])->guess;
        const uint32_t n = b->decodes[i].n_drafted;
        if (n >= g->n || g->reach[n] <= *reach) continue;
        *reach = g->reach[n];
        best = &b->decodes[i];
    }
    return best;
}

/* What the largest text or label that waits must find in one step: no draft may take it. */
static void keep_room(const struct slots *t, uint32_t *rows, uint32_t *outputs) {
    uint32_t text = 0, label = 0;
    for (uint32_t i = 0; i < t->cfg.max_batch; i++) {
        const struct slot *s = &t->slots[i];
        if (s->paused) continue;
        if (s->phase == SLOT_LOOK && s->n_prompt > text) text = s->n_prompt;
        if (s->phase == SLOT_SCORE && slot_score_rows(s) > label) label = slot_score_rows(s);
    }
    *rows -= text > label ? text : label;
    *outputs -= label;
}

static void choose_drafts(struct batch *b, struct slots *t) {
    const struct step_limits *most = &b->step->limits;
    uint32_t room = most->max_rows - b->n_decodes, outputs = most->max_outputs - t->cfg.max_batch;
    keep_room(t, &room, &outputs);
    struct cost_work work = {.rows = b->n_decodes, .outputs = b->n_decodes};
    double tokens = b->n_decodes;
    if (room > outputs) room = outputs;
    for (uint32_t i = 0; i < b->n_decodes; i++)
        work.positions +=
            positions_read(b->decodes[i].slot, choice_of(t, &b->decodes[i])->sequence.n_computed);
    double ns = cost_ns(&b->cost, work);
    for (; room > 0; room--) {
        float reach;
        struct batch_decode *d = likeliest(b, t, &reach);
        if (d == NULL) return;
        struct cost_work with = work;
        with.rows++;
        with.outputs++;
        with.positions +=
            positions_read(d->slot, choice_of(t, d)->sequence.n_tokens + d->n_drafted);
        const double with_ns = cost_ns(&b->cost, with);
        if ((double)reach * ns < BATCH_GAIN * tokens * (with_ns - ns)) return;
        d->n_drafted++;
        tokens += (double)reach;
        work = with;
        ns = with_ns;
    }
}

/* The spec of the row behind drafts[0 .. n); false without room for its list. */
static bool spec_ahead(struct batch *b, const struct choice *k, uint32_t n,
                       struct sample_spec *spec) {
    *spec = draw_spec(&k->draw);
    monitor_spec(&k->monitor, spec);
    if (!k->draw.penalised || n == 0) return true;
    if (n == 1) draw_copy(&b->ahead, &k->draw);
    draw_accept(&b->ahead, k->guess.ids[n - 1]);
    if (b->ahead.n > BATCH_BIASES - b->n_biases) return false;
    struct sample_bias *list = b->biases + b->n_biases;
    memcpy(list, b->ahead.biases, b->ahead.n * sizeof *list);
    b->n_biases += b->ahead.n;
    spec->biases = list;
    spec->n_biases = b->ahead.n;
    return true;
}

static void add_tap(struct batch *b, const struct tap *tap) {
    CHECK(b->step->n_taps < b->step->limits.max_taps);
    b->step->taps[b->step->n_taps++] = *tap;
}

/* Ids that were withdrawn at the position that is drawn next join the list, which is ascending. */
static void exclude(struct batch *b, const struct choice *k, struct sample_spec *spec) {
    const uint32_t *ids, n = monitor_excluded(&k->monitor, k->sequence.n_settled, &ids);
    if (n == 0) return;
    struct sample_bias *list = b->biases + b->n_biases;
    CHECK(spec->n_biases + n <= BATCH_BIASES - b->n_biases);
    uint32_t i = 0, at = 0;
    for (uint32_t x = 0; x < n || i < spec->n_biases;) {
        const uint32_t id = i < spec->n_biases ? spec->biases[i].id : UINT32_MAX;
        if (x < n && ids[x] <= id) {
            i += ids[x] == id;
            list[at++] = (struct sample_bias){.id = ids[x++], .divisor = 1, .delta = -FLT_MAX};
        } else {
            list[at++] = spec->biases[i++];
        }
    }
    b->n_biases += at;
    spec->biases = list;
    spec->n_biases = at;
}

/* A token, a row, a guess at what they cost in the steps of late. */
static void set_prices(struct batch *b, struct slots *t) {
    struct cost_work work = {.rows = b->n_decodes, .outputs = b->n_decodes};
    for (uint32_t i = 0; i < b->n_decodes; i++)
        work.positions +=
            positions_read(b->decodes[i].slot, choice_of(t, &b->decodes[i])->sequence.n_computed);
    const double n = b->n_decodes, ns = cost_ns(&b->cost, work);
    struct cost_work row = work, guess = work;
    row.rows++, row.outputs++;
    guess.passes++, guess.guesses += b->n_decodes;
    b->prices = (struct draft_prices){
        .token_ns = ns / (n * t->cfg.drafts->tokens_per_step),
        .row_ns = cost_ns(&b->cost, row) - ns,
        .guess_ns = (cost_ns(&b->cost, guess) - ns) / n,
    };
}

/* How many guesses the span of n rows shall ask for: as many as the answer may still need, and as
 * have pages. */
static uint32_t guesses_wanted(struct batch *b, struct slots *t, const struct batch_decode *d,
                               uint32_t n, enum block_kind *block, float *least_reach) {
    const struct choice *k = choice_of(t, d);
    const uint32_t left = d->slot->max_tokens - (k->sequence.n_settled - d->slot->n_prompt);
    if (t->cfg.drafts == NULL || left <= n || b->n_decodes > STEP_CHAINS) return 0;
    if (b->step->limits.max_guesses - b->n_guesses < STEP_GUESSES) return 0;
    if (!draft_ask(t->cfg.drafts, d->slot->choices[d->choice], &b->prices, block, least_reach))
        return 0;
    return left - n < STEP_GUESSES ? left - n : STEP_GUESSES;
}

static void add_decode(struct batch *b, struct slots *t, struct batch_decode *d) {
    struct choice *k = choice_of(t, d);
    struct sample_spec specs[1 + DRAFT_MAX_TOKENS];
    uint32_t n = 0;
    CHECK(k->sequence.n_tokens - k->sequence.n_computed == 1);
    while (n <= d->n_drafted && spec_ahead(b, k, n, &specs[n])) n++;
    k->n_drafted = n - 1;
    for (uint32_t i = 0; i < k->n_drafted; i++) sequence_append(&k->sequence, k->guess.ids[i]);
    exclude(b, k, &specs[0]);
    const uint32_t first_row = b->step->n_rows;
    enum block_kind block = BLOCK_DRAFT;
    float least_reach = 0;
    const uint32_t guesses = guesses_wanted(b, t, d, n, &block, &least_reach);
    add(b, t, d->slot, d->choice, n > 1 ? SPAN_VERIFY : SPAN_DECODE, n, guesses);
    struct span *span = &b->step->spans[b->step->n_spans - 1];
    span->block = block;
    span->max_guesses = guesses;
    span->least_reach = least_reach;
    b->n_guesses += guesses;
    for (uint32_t i = 0; i < n; i++) add_draw(b, &specs[i], first_row + i);
    if (!k->monitor.on) return;
    float *states = b->states + (size_t)first_row * b->d_model;
    add_tap(b, &(struct tap){.layer = b->monitor_layer,
                             .first_row = first_row,
                             .n_rows = n,
                             .mode = TAP_KEEP,
                             .normalised = true,
                             .out = states});
    b->items[b->n_items - 1].sums = states;
}

static void add_decodes(struct batch *b, struct slots *t) {
    collect_decodes(b, t);
    if (t->cfg.drafts != NULL && b->n_decodes > 0) {
        guess(b, t);
        choose_drafts(b, t);
        set_prices(b, t);
    }
    for (uint32_t i = 0; i < b->n_decodes; i++) add_decode(b, t, &b->decodes[i]);
}

/* ---- prefill ---- */

/* Least recently served first; the sort is stable and the list short. */
static uint32_t prefills_in_order(struct batch *b, struct slots *t) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->cfg.max_batch; i++) {
        struct slot *s = &t->slots[i];
        const bool prefills = s->phase == SLOT_PREFILL || s->phase == SLOT_ENCODE ||
                              s->phase == SLOT_LOOK || s->phase == SLOT_SCORE;
        if (!prefills || s->paused) continue;
        uint32_t at = n++;
        for (; at > 0 && b->order[at - 1]->served > s->served; at--)
            b->order[at] = b->order[at - 1];
        b->order[at] = s;
    }
    return n;
}

/* Rows that the step's outputs allow: a scored row needs one, the last row one per choice. */
static uint32_t rows_with_outputs(const struct batch *b, const struct slot *s, uint32_t rows,
                                  uint32_t left) {
    const uint32_t room = b->step->limits.max_outputs - b->step->n_outputs;
    if (s->phase == SLOT_ENCODE) return rows;
    const uint32_t last = s->max_tokens > 0 ? s->n_choices : s->score_prompt ? 1 : 0;
    if (s->score_prompt && rows > room) rows = room;
    const uint32_t before = s->score_prompt && rows > 0 ? rows - 1 : 0;
    return rows == left && before + last > room ? rows - 1 : rows;
}

/* ---- labels ---- */

/* The layers with a head decide, and the last of them is the last that runs. */
static uint32_t look_policy(struct batch *b, const struct label_set *set, bool full_depth) {
    struct step *step = b->step;
    uint32_t i = 0;
    while (i < step->n_exits && (step->exits[i].head != set->first_head ||
                                 (step->exits[i].threshold[0] == INFINITY) != full_depth))
        i++;
    if (i < step->n_exits) return i;
    CHECK(i < step->limits.max_exits && step->n_profiles < step->limits.max_profiles);
    struct depth_profile *profile = &step->profiles[step->n_profiles++];
    *profile = (struct depth_profile){0};
    step->exits[i] = (struct exit_policy){.head = set->first_head};
    step->n_exits++;
    const struct label_heads *heads = &set->heads;
    for (uint32_t l = 0; l < heads->heads[heads->n_heads - 1].layer; l++)
        profile->layers[l / 64] |= UINT64_C(1) << l % 64;
    for (uint32_t h = 0; h < heads->n_heads; h++) {
        const uint32_t l = heads->heads[h].layer - 1;
        profile->decision_points[l / 64] |= UINT64_C(1) << l % 64;
        step->exits[i].threshold[h] = full_depth ? INFINITY : heads->threshold[h];
    }
    return i;
}

static void add_look(struct batch *b, struct slots *t, struct slot *s) {
    struct step *step = b->step;
    const struct label_job *j = s->label;
    const uint32_t first_row = step->n_rows, n = s->n_prompt;
    add(b, t, s, 0, SPAN_ENCODE, n, 0);
    struct span *p = &step->spans[step->n_spans - 1];
    p->exit = look_policy(b, j->set, slot_look_full_depth(t, s));
    p->profile = 1 + p->exit;
    b->items[b->n_items - 1].look = step->n_looks;
    CHECK(step->n_looks < step->limits.max_looks);
    step->looks[step->n_looks++] = (struct label_look){
        .span = step->n_spans - 1,
        .first_row = first_row + j->first_token,
        .n_rows = n - j->first_token,
        .prior = j->prior,
        .probability = j->probability,
        .audit = slot_look_audited(t, s),
    };
    s->served = b->n_steps;
}

/* One label per choice, as many as the time allows, and at least one. */
static void add_scores(struct batch *b, struct slots *t, struct slot *s, double share_ns) {
    struct step *step = b->step;
    const double until = cost_ns(&b->cost, b->work) + share_ns;
    for (uint32_t c = 0; c < s->n_choices; c++) {
        const uint32_t n = slot_score_rows(s);
        const uint32_t *targets;
        if (n == 0 || n > step->limits.max_rows - step->n_rows ||
            n > step->limits.max_outputs - step->n_outputs)
            return;
        if (c > 0 && cost_ns(&b->cost, b->work) >= until) return;
        const uint32_t first_row = step->n_rows;
        slot_score_begin(t, s, c, &targets);
        add(b, t, s, c, SPAN_VERIFY, n, 0);
        for (uint32_t i = 0; i < n; i++) {
            step_add_output(step, first_row + i)->sample.target = targets[i];
            b->items[b->n_items - 1].n_outputs++;
            b->work.outputs++;
        }
        s->served = b->n_steps;
    }
}

/* ---- prefill, and what is like it ---- */

static uint32_t chunk_rows(const struct batch *b, const struct slots *t, const struct slot *s,
                           double share_ns) {
    const struct sequence *q = &t->choices[s->choices[0]].sequence;
    const uint32_t left = s->n_prefill - q->n_computed;
    const uint32_t room = b->step->limits.max_rows - b->step->n_rows;
    if (s->phase == SLOT_LOOK) return left <= room ? left : 0;
    const uint32_t max = left < room ? left : room;
    uint32_t rows = cost_rows_within(&b->cost, b->work, q->n_computed, max,
                                     cost_ns(&b->cost, b->work) + share_ns);
    if (rows < BATCH_CHUNK_TOKENS) rows = max < BATCH_CHUNK_TOKENS ? max : BATCH_CHUNK_TOKENS;
    rows = rows_with_outputs(b, s, rows, left);
    const uint32_t past_edge = (q->n_computed + rows) % KV_PAGE_TOKENS;
    if (rows < left && rows > past_edge) rows -= past_edge;
    return rows;
}

static void add_prefill(struct batch *b, struct slots *t, struct slot *s, uint32_t rows) {
    const struct sequence *q = &t->choices[s->choices[0]].sequence;
    const uint32_t first_row = b->step->n_rows;
    const bool last = q->n_computed + rows == s->n_prefill;
    float *sums = NULL;
    uint32_t first;
    const uint32_t n_user = slot_prompt_rows(t, s, rows, &first);
    if (n_user > 0) {
        sums = b->sums + (size_t)b->n_sums * b->d_model;
        slot_prompt_before(t, s, first, n_user, sums);
        b->n_sums += encode_pages(q->n_computed + first, n_user);
        add_tap(b, &(struct tap){.layer = b->monitor_layer,
                                 .first_row = first_row + first,
                                 .n_rows = n_user,
                                 .mode = TAP_SUM,
                                 .normalised = true,
                                 .out = sums});
    }
    add(b, t, s, 0, SPAN_PREFILL, rows, 0);
    b->items[b->n_items - 1].sums = sums;
    /* What follows the prompt looks back into its end only. */
    if (b->block_window > 0 && s->n_prefill > q->n_computed + b->block_window) {
        const uint32_t skipped = s->n_prefill - q->n_computed - b->block_window;
        b->step->spans[b->step->n_spans - 1].block_from = skipped < rows ? skipped : rows;
    }
    if (s->score_prompt) {
        const uint32_t n = last && s->max_tokens > 0 ? rows - 1 : rows;
        for (uint32_t i = 0; i < n; i++) {
            step_add_output(b->step, first_row + i)->sample.target =
                q->tokens[q->n_computed + i + 1];
            b->items[b->n_items - 1].n_outputs++;
            b->work.outputs++;
        }
    }
    const uint32_t drawn = s->label != NULL ? 1 : s->n_choices;
    for (uint32_t c = 0; last && s->max_tokens > 0 && c < drawn; c++) {
        const struct sample_spec spec = draw_spec(&t->choices[s->choices[c]].draw);
        add_draw(b, &spec, b->step->n_rows - 1);
    }
    s->served = b->n_steps;
}

static void add_encode(struct batch *b, struct slots *t, struct slot *s, uint32_t rows) {
    const uint32_t first = t->choices[s->choices[0]].sequence.n_computed;
    float *sums = b->sums + (size_t)b->n_sums * b->d_model;
    encode_before(&s->encode, first, rows, sums);
    b->n_sums += encode_pages(first, rows);
    add_tap(b, &(struct tap){.layer = b->n_layers,
                             .first_row = b->step->n_rows,
                             .n_rows = rows,
                             .mode = TAP_SUM,
                             .out = sums});
    add(b, t, s, 0, SPAN_ENCODE, rows, 0);
    b->items[b->n_items - 1].sums = sums;
    s->served = b->n_steps;
}

bool batch_build(struct batch *b, struct slots *t, uint64_t budget_ns) {
    step_clear(b->step, b->n_layers);
    b->step->epoch = b->epoch;
    b->n_items = b->n_decodes = b->n_sums = b->n_biases = b->n_guesses = 0;
    b->work = (struct cost_work){0};
    b->n_steps++;
    add_decodes(b, t);
    double left_ns = (double)budget_ns * (b->n_decodes > 0 ? 1 : BATCH_ALONE);
    const uint32_t n = prefills_in_order(b, t);
    for (uint32_t i = 0; i < n && (i == 0 || left_ns > 0); i++) {
        const double before = cost_ns(&b->cost, b->work);
        if (b->order[i]->phase == SLOT_SCORE) {
            add_scores(b, t, b->order[i], left_ns / (n - i));
            left_ns -= cost_ns(&b->cost, b->work) - before;
            continue;
        }
        const uint32_t rows = chunk_rows(b, t, b->order[i], left_ns / (n - i));
        if (rows == 0) continue;
        if (b->order[i]->phase == SLOT_LOOK)
            add_look(b, t, b->order[i]);
        else if (b->order[i]->phase == SLOT_ENCODE)
            add_encode(b, t, b->order[i], rows);
        else
            add_prefill(b, t, b->order[i], rows);
        left_ns -= cost_ns(&b->cost, b->work) - before;
    }
    return b->n_items > 0;
}

void batch_learn(struct batch *b, const struct step *done, uint64_t ns) {
    if (b->step->n_looks > 0) return; /* their rows run a few layers: no example for others */
    for (uint32_t i = 0; i < done->n_spans; i++) {
        const uint32_t n = done->spans[i].n_guesses;
        b->work.guesses += n;
        if (n > b->work.passes) b->work.passes = n;
    }
    cost_learn(&b->cost, b->work, ns);
}

void batch_guessed(struct batch *b, struct slots *t, uint32_t item) {
    const struct batch_item *x = &b->items[item];
    const struct span *span = &b->step->spans[item];
    if (span->n_guesses == 0 || !slot_running(x->slot) || x->slot->phase != SLOT_DECODE) return;
    const uint32_t name = x->slot->choices[x->choice];
    const struct choice *k = &t->choices[name];
    if (!k->finished)
        draft_answered(t->cfg.drafts, name, span->block, k->sequence.n_tokens,
                       b->step->guesses + span->first_guess, span->n_guesses);
}
