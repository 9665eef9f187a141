/* cuda_backend_gate.c: page choices (core/step.h, struct gate_policy; core/cpu/gate.c is the
 * reference). The device keeps bounds and choices; here is which entry serves which row. */
#include <string.h>

#include "core/check.h"
#include "jit/cuda_backend_state.h"

void cuda_gate_plan_bucket(const struct cuda_backend *b, struct cuda_bucket *k) {
    const uint32_t spans = b->cfg.limits.max_spans > 0 ? b->cfg.limits.max_spans : 1;
    const uint64_t choices = (uint64_t)spans * GATE_SPAN_CHOICES;
    const uint64_t seals = (uint64_t)spans + k->rows / KV_PAGE_TOKENS;
    k->max_choices = choices < k->rows ? (uint32_t)choices : k->rows;
    k->max_seals = seals < k->rows ? (uint32_t)seals : k->rows;
}

/* Sinks and anchors before the recent page, each once, and what the budget adds. */
static uint32_t count_chosen(struct cuda_backend *b, const struct step *s,
                             const struct gate_policy *g, uint32_t recent, uint32_t budget) {
    uint64_t *seen = b->gate_of.anchors;
    const uint32_t *anchors = s->gate_pages + g->first_anchor;
    uint32_t n = g->sink_pages < recent ? g->sink_pages : recent;
    for (uint32_t i = 0; i < g->n_anchors; i++) {
        const uint32_t page = anchors[i];
        if (page < g->sink_pages || page >= recent || (seen[page / 64] >> page % 64 & 1)) continue;
        seen[page / 64] |= UINT64_C(1) << page % 64;
        n++;
    }
    for (uint32_t i = 0; i < g->n_anchors; i++)
        if (anchors[i] < recent) seen[anchors[i] / 64] = 0;
    const uint32_t candidates = recent - n;
    return n + (budget < candidates ? budget : candidates);
}

static void copy_slots(struct cuda_backend *b, const struct step *s, struct cuda_block *k) {
    struct cuda_gate_entry *entries = b->gate_of.entries;
    for (uint32_t i = 0; i < s->n_slot_copies; i++) {
        const struct slot_copy *c = &s->slot_copies[i];
        CHECK(c->from < b->cfg.n_slots && c->to < b->cfg.n_slots);
        memcpy(entries + (size_t)c->to * GATE_RING, entries + (size_t)c->from * GATE_RING,
               GATE_RING * sizeof *entries);
        k->slot_copies[2 * i] = c->from;
        k->slot_copies[2 * i + 1] = c->to;
    }
    k->counts[CUDA_COUNT_SLOT_COPIES] = s->n_slot_copies;
}

/* Which choices this step makes: entered before any row looks one up. */
static void make_choices(struct cuda_backend *b, const struct step *s, struct cuda_block *k) {
    uint32_t n = 0;
    memcpy(k->anchors, s->gate_pages, s->n_gate_pages * sizeof *k->anchors);
    for (struct gate_walk w = {0}; gate_next_choice(s, b->cfg.n_slots, &w);) {
        const struct gate_policy *g = w.policy;
        const uint32_t recent = gate_recent_page(g, w.position);
        const uint32_t budget = gate_budget(g, w.position);
        const uint32_t entry = gate_ring_index(w.span->slot, w.position);
        b->gate_of.entries[entry] =
            (struct cuda_gate_entry){w.position + 1, recent, count_chosen(b, s, g, recent, budget)};
        CHECK(n < k->bucket->max_choices);
        k->choices[n++] = (struct page_choice){.row = w.row,
                                               .entry = entry,
                                               .sink_pages = g->sink_pages,
                                               .recent_page = recent,
                                               .budget_pages = budget,
                                               .first_anchor = g->first_anchor,
                                               .n_anchors = g->n_anchors,
                                               .dense_layers = g->dense_layers};
    }
    k->counts[CUDA_COUNT_CHOICES] = n;
}

static uint32_t look_up(const struct cuda_backend *b, const struct step *s, struct cuda_block *k) {
    uint32_t n_gated = 0;
    for (uint32_t i = 0; i < s->n_spans; i++) {
        const struct span *span = &s->spans[i];
        for (uint32_t r = 0; r < span->n_tokens; r++) {
            const uint32_t p = span->first_position + r;
            const struct gate_policy *g = gate_policy_at(s, span, p);
            struct attention_gate *out = &k->row_gates[span->first_row + r];
            *out = (struct attention_gate){.entry = UINT32_MAX};
            if (g == NULL) continue;
            const uint32_t at = gate_choice_position(g, p);
            const uint32_t entry = gate_ring_index(span->slot, at);
            const struct cuda_gate_entry *e = &b->gate_of.entries[entry];
            CHECK(e->at == at + 1);
            *out = (struct attention_gate){entry, e->recent_page, e->n_chosen, g->dense_layers};
            n_gated++;
        }
    }
    return n_gated;
}

/* Pages whose last position is written, of groups that have bounds. */
static uint32_t list_seals(const struct cuda_backend *b, const struct step *s,
                           struct cuda_block *k) {
    uint32_t most = 0;
    for (uint32_t g = 0; g < PLAN_MAX_GROUPS; g++) k->counts[CUDA_COUNT_SEALS + g] = 0;
    for (uint32_t g = 0; g < b->cfg.plan->n_groups; g++) {
        uint32_t n = 0, *list = k->seals + (size_t)g * k->bucket->max_seals * 2;
        if (b->gate_of.bounds_bytes[g] == 0) continue;
        for (uint32_t r = 0; r < s->n_rows; r++) {
            if (k->position[r] % KV_PAGE_TOKENS != KV_PAGE_TOKENS - 1) continue;
            CHECK(n < k->bucket->max_seals);
            list[2 * n] =
                k->pages[k->row_pages[g * k->bucket->rows + r] + k->position[r] / KV_PAGE_TOKENS];
            list[2 * n + 1] = r;
            n++;
        }
        k->counts[CUDA_COUNT_SEALS + g] = n;
        if (n > most) most = n;
    }
    return most;
}

enum cuda_gates cuda_gate_fill(struct cuda_backend *b, const struct step *s, struct cuda_block *k) {
    copy_slots(b, s, k);
    make_choices(b, s, k);
    const uint32_t n_gated = look_up(b, s, k), n_seals = list_seals(b, s, k);
    if (n_seals > 0 || k->counts[CUDA_COUNT_CHOICES] > 0 || s->n_slot_copies > 0)
        return CUDA_CHOOSING;
    return n_gated > 0 ? CUDA_GATED : CUDA_UNGATED;
}
