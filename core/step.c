#include "core/step.h"

#include <string.h>

/* Carves `n` items out of *at, 64-byte aligned; with base == NULL only counts. */
static void *carve(char *base, size_t *at, size_t n, size_t item_bytes) {
    *at = (*at + 63) & ~(size_t)63;
    void *p = base != NULL ? base + *at : NULL;
    *at += n * item_bytes;
    return p;
}

static size_t layout(char *base, struct step *s, const struct step_limits *l) {
    size_t at = sizeof *s;
    s->spans = carve(base, &at, l->max_spans, sizeof *s->spans);
    s->ids = carve(base, &at, l->max_rows, sizeof *s->ids);
    s->first_layers = carve(base, &at, l->max_rows, sizeof *s->first_layers);
    s->carry_rows = carve(base, &at, l->max_rows, sizeof *s->carry_rows);
    s->next_layers = carve(base, &at, l->max_rows, sizeof *s->next_layers);
    s->pages = carve(base, &at, l->max_pages, sizeof *s->pages);
    s->outputs = carve(base, &at, l->max_outputs, sizeof *s->outputs);
    s->copies = carve(base, &at, l->max_copies, sizeof *s->copies);
    s->slot_copies = carve(base, &at, l->max_slot_copies, sizeof *s->slot_copies);
    s->taps = carve(base, &at, l->max_taps, sizeof *s->taps);
    s->profiles = carve(base, &at, l->max_profiles, sizeof *s->profiles);
    s->exits = carve(base, &at, l->max_exits, sizeof *s->exits);
    s->looks = carve(base, &at, l->max_looks, sizeof *s->looks);
    s->gates = carve(base, &at, l->max_gates, sizeof *s->gates);
    s->gate_pages = carve(base, &at, l->max_gate_pages, sizeof *s->gate_pages);
    s->guesses = carve(base, &at, l->max_guesses, sizeof *s->guesses);
    return at;
}

size_t step_footprint(const struct step_limits *limits) {
    struct step s;
    return layout(NULL, &s, limits);
}

struct step *step_init(void *mem, const struct step_limits *limits) {
    CHECK(limits->max_profiles >= 1);
    struct step *s = mem;
    memset(s, 0, sizeof *s);
    s->limits = *limits;
    layout(mem, s, limits);
    return s;
}

void step_clear(struct step *s, uint32_t n_layers) {
    CHECK(n_layers <= PLAN_MAX_LAYERS);
    s->n_spans = s->n_rows = s->n_outputs = s->n_pages = s->n_copies = s->n_taps = 0;
    s->n_slot_copies = s->n_exits = s->n_gates = s->n_gate_pages = s->n_looks = 0;
    s->n_guesses = 0;
    s->epoch = 0;
    s->n_profiles = 1;
    memset(&s->profiles[0], 0, sizeof s->profiles[0]);
    for (uint32_t l = 0; l < n_layers; l++) s->profiles[0].layers[l / 64] |= UINT64_C(1) << l % 64;
    s->status = STATUS_OK;
    s->submit_ns = s->done_ns = 0;
}

struct span *step_add_span(struct step *s, enum span_kind kind, uint32_t slot,
                           uint32_t first_position, const uint32_t *ids, uint32_t n_tokens) {
    CHECK(s->n_spans < s->limits.max_spans && n_tokens >= 1);
    CHECK(n_tokens <= s->limits.max_rows - s->n_rows);
    struct span *p = &s->spans[s->n_spans++];
    memset(p, 0, sizeof *p);
    p->kind = kind;
    p->slot = slot;
    p->first_position = first_position;
    p->n_tokens = n_tokens;
    p->first_row = s->n_rows;
    p->exit = p->gate = p->next_id = STEP_NONE;
    for (int g = 0; g < PLAN_MAX_GROUPS; g++) p->block_table[g] = STEP_NONE;
    memcpy(s->ids + s->n_rows, ids, n_tokens * sizeof *ids);
    memset(s->first_layers + s->n_rows, 0, n_tokens * sizeof *s->first_layers);
    memset(s->carry_rows + s->n_rows, 0, n_tokens * sizeof *s->carry_rows);
    s->n_rows += n_tokens;
    return p;
}

struct output *step_add_output(struct step *s, uint32_t row) {
    CHECK(s->n_outputs < s->limits.max_outputs && row < s->n_rows);
    CHECK(s->n_outputs == 0 || s->outputs[s->n_outputs - 1].row <= row);
    struct output *o = &s->outputs[s->n_outputs++];
    memset(o, 0, sizeof *o);
    o->row = row;
    o->head = STEP_NONE;
    o->sample.target = STEP_NONE;
    o->sample.top_p = 1;
    return o;
}
