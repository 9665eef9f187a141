#include "sched/batch.h"

#include <stdlib.h>
#include <string.h>

#include "core/check.h"

static enum status check_limits(const struct slots *t, const struct step_limits *l,
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
        {"max_profiles", l->max_profiles, 1},
        {"max_taps", l->max_taps, n},
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
                       const struct plan *plan, struct error *e) {
    memset(b, 0, sizeof *b);
    const enum status st = check_limits(t, limits, e);
    if (st != STATUS_OK) return st;
    void *mem = aligned_alloc(64, (step_footprint(limits) + 63) & ~(size_t)63);
    b->items = calloc(limits->max_spans, sizeof *b->items);
    b->order = calloc(t->cfg.max_batch, sizeof *b->order);
    /* A span touches at most one page more at each end than its rows fill. */
    const size_t sums = limits->max_rows / KV_PAGE_TOKENS + 2 * (size_t)t->cfg.max_batch;
    b->sums = calloc(sums * plan->d_model, sizeof *b->sums);
    if (mem == NULL || b->items == NULL || b->order == NULL || b->sums == NULL) {
        free(mem);
        batch_close(b);
        return error_set(e, STATUS_NO_MEMORY, NULL, "out of memory for a step");
    }
    b->step = step_init(mem, limits);
    b->n_layers = plan->n_layers;
    b->d_model = plan->d_model;
    cost_init(&b->cost);
    return STATUS_OK;
}

void batch_close(struct batch *b) {
    free(b->step);
    free(b->items);
    free(b->order);
    free(b->sums);
    memset(b, 0, sizeof *b);
}

static void add(struct batch *b, struct slots *t, struct slot *s, uint32_t c, enum span_kind kind,
                uint32_t n_rows) {
    struct sequence *q = &t->choices[s->choices[c]].sequence;
    const uint32_t first = q->n_computed;
    b->items[b->n_items++] = (struct batch_item){
        .slot = s,
        .choice = c,
        .first_row = b->step->n_rows,
        .n_rows = n_rows,
        .first_output = b->step->n_outputs,
    };
    const uint32_t copies = b->step->n_copies;
    sequence_add_span(q, t->cfg.kv, &s->n_reserved, b->step, kind, s->choices[c], n_rows);
    b->items[b->n_items - 1].n_copies = b->step->n_copies - copies;
    b->work.rows += n_rows;
    b->work.positions += (uint64_t)n_rows * first + (uint64_t)n_rows * (n_rows - 1) / 2;
}

static void add_draw(struct batch *b, const struct choice *k, uint32_t row) {
    step_add_output(b->step, row)->sample = draw_spec(&k->draw);
    b->items[b->n_items - 1].n_outputs++;
}

static void add_decodes(struct batch *b, struct slots *t, struct slot *s) {
    for (uint32_t c = 0; c < s->n_choices; c++) {
        const struct choice *k = &t->choices[s->choices[c]];
        if (k->finished) continue;
        CHECK(k->sequence.n_tokens - k->sequence.n_computed == 1);
        add(b, t, s, c, SPAN_DECODE, 1);
        add_draw(b, k, b->step->n_rows - 1);
        b->n_decodes++;
    }
}

/* Least recently served first; the sort is stable and the list short. */
static uint32_t prefills_in_order(struct batch *b, struct slots *t) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->cfg.max_batch; i++) {
        struct slot *s = &t->slots[i];
        const bool prefills = s->phase == SLOT_PREFILL || s->phase == SLOT_ENCODE;
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

static uint32_t chunk_rows(const struct batch *b, const struct slots *t, const struct slot *s,
                           double share_ns) {
    const struct sequence *q = &t->choices[s->choices[0]].sequence;
    const uint32_t left = s->n_prefill - q->n_computed;
    const uint32_t room = b->step->limits.max_rows - b->step->n_rows;
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
    add(b, t, s, 0, SPAN_PREFILL, rows);
    if (s->score_prompt) {
        const uint32_t n = last && s->max_tokens > 0 ? rows - 1 : rows;
        for (uint32_t i = 0; i < n; i++) {
            step_add_output(b->step, first_row + i)->sample.target =
                q->tokens[q->n_computed + i + 1];
            b->items[b->n_items - 1].n_outputs++;
        }
    }
    if (last && s->max_tokens > 0)
        for (uint32_t c = 0; c < s->n_choices; c++)
            add_draw(b, &t->choices[s->choices[c]], b->step->n_rows - 1);
    s->served = b->n_steps;
}

static void add_encode(struct batch *b, struct slots *t, struct slot *s, uint32_t rows) {
    const uint32_t first = t->choices[s->choices[0]].sequence.n_computed;
    float *sums = b->sums + (size_t)b->n_sums * b->d_model;
    struct step *step = b->step;
    encode_before(&s->encode, first, rows, sums);
    b->n_sums += encode_pages(first, rows);
    CHECK(step->n_taps < step->limits.max_taps);
    step->taps[step->n_taps++] = (struct tap){
        .layer = b->n_layers,
        .first_row = step->n_rows,
        .n_rows = rows,
        .mode = TAP_SUM,
        .out = sums,
    };
    add(b, t, s, 0, SPAN_ENCODE, rows);
    b->items[b->n_items - 1].sums = sums;
    s->served = b->n_steps;
}

bool batch_build(struct batch *b, struct slots *t, uint64_t budget_ns) {
    step_clear(b->step, b->n_layers);
    b->n_items = b->n_decodes = b->n_sums = 0;
    b->work = (struct cost_work){0};
    b->n_steps++;
    for (uint32_t i = 0; i < t->cfg.max_batch; i++)
        if (t->slots[i].phase == SLOT_DECODE && !t->slots[i].paused)
            add_decodes(b, t, &t->slots[i]);
    double left_ns = (double)budget_ns * (b->n_decodes > 0 ? 1 : BATCH_ALONE);
    const uint32_t n = prefills_in_order(b, t);
    for (uint32_t i = 0; i < n && (i == 0 || left_ns > 0); i++) {
        const double before = cost_ns(&b->cost, b->work);
        const uint32_t rows = chunk_rows(b, t, b->order[i], left_ns / (n - i));
        if (rows == 0) continue;
        if (b->order[i]->phase == SLOT_ENCODE)
            add_encode(b, t, b->order[i], rows);
        else
            add_prefill(b, t, b->order[i], rows);
        left_ns -= cost_ns(&b->cost, b->work) - before;
    }
    return b->n_items > 0;
}

void batch_learn(struct batch *b, uint64_t ns) {
    cost_learn(&b->cost, b->work, ns);
}
