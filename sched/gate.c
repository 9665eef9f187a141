#include "sched/gate.h"

#include <string.h>

#include "core/check.h"

static uint32_t pages_of(uint32_t n_tokens) {
    return n_tokens / KV_PAGE_TOKENS + (n_tokens % KV_PAGE_TOKENS != 0);
}

enum request_gate gate_mode(const struct gate_config *cfg, const struct request *r) {
    if (r->set & REQUEST_SET_GATE) return r->gate;
    return cfg->unasked ? REQUEST_GATE_AUTO : REQUEST_GATE_OFF;
}

size_t gate_footprint(uint32_t n_ctx) {
    return pages_of(n_ctx) * sizeof(uint32_t);
}

void gate_init(struct gate *g, void *mem) {
    memset(g, 0, sizeof *g);
    g->pages = mem;
}

static void set_budget(struct gate_policy *p, const struct gate_config *cfg,
                       const struct request *r, enum request_gate mode, bool trigger) {
    if (mode == REQUEST_GATE_PAGES) {
        p->budget_pages = r->gate_pages;
        return;
    }
    p->budget_pages = mode == REQUEST_GATE_FAST ? GATE_FAST_PAGES : cfg->safe_pages;
    p->budget_share = mode == REQUEST_GATE_FAST ? 0 : cfg->safe_share;
    if (trigger) p->budget_least = GATE_TRIGGER_PAGES;
}

void gate_start(struct gate *g, const struct gate_config *cfg, const struct request *r,
                const struct gate_prompt *prompt, uint32_t n_prompt) {
    const enum request_gate mode = gate_mode(cfg, r);
    uint32_t *pages = g->pages;
    memset(g, 0, sizeof *g);
    g->pages = pages;
    g->n_anchors = prompt->n_anchors;
    g->on = mode != REQUEST_GATE_OFF && cfg->bounds && !prompt->recall;
    if (!g->on) return;
    g->policy = (struct gate_policy){
        .first_position = n_prompt,
        .sink_pages = GATE_SINK_PAGES,
        .recent_pages = GATE_RECENT_PAGES,
        .n_anchors = prompt->n_pages,
        .dense_layers = GATE_DENSE_LAYERS,
    };
    if (mode == REQUEST_GATE_AUTO && n_prompt < cfg->least_context)
        g->policy.first_position = cfg->least_context;
    set_budget(&g->policy, cfg, r, mode, prompt->trigger);
    if (prompt->n_pages > 0) memcpy(pages, prompt->pages, prompt->n_pages * sizeof *pages);
}

void gate_span(const struct gate *g, struct step *s, struct span *span) {
    const uint32_t n = g->policy.n_anchors;
    if (!g->on || span->first_position + span->n_tokens <= g->policy.first_position) return;
    CHECK(s->n_gates < s->limits.max_gates && n <= s->limits.max_gate_pages - s->n_gate_pages);
    span->gate = s->n_gates++;
    s->gates[span->gate] = g->policy;
    s->gates[span->gate].first_anchor = s->n_gate_pages;
    memcpy(s->gate_pages + s->n_gate_pages, g->pages, n * sizeof *g->pages);
    s->n_gate_pages += n;
}

/* Anchored pages before `page`. */
static uint32_t anchors_below(const struct gate *g, uint32_t page) {
    uint32_t lo = 0, hi = g->policy.n_anchors;
    while (lo < hi) {
        const uint32_t middle = (lo + hi) / 2;
        if (g->pages[middle] < page)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

uint32_t gate_attended(const struct gate *g, uint32_t position) {
    const uint32_t own = position / KV_PAGE_TOKENS;
    if (!g->on || position < g->policy.first_position) return own + 1;
    const uint32_t choice = gate_choice_position(&g->policy, position);
    const uint32_t recent = gate_recent_page(&g->policy, choice);
    const uint32_t sinks = g->policy.sink_pages < recent ? g->policy.sink_pages : recent;
    const uint32_t fixed = sinks + anchors_below(g, recent) - anchors_below(g, sinks);
    const uint32_t left = recent - fixed, budget = gate_budget(&g->policy, choice);
    return fixed + (budget < left ? budget : left) + (own + 1 - recent);
}

void gate_count(struct gate *g, uint32_t position) {
    if (!g->on || position < g->policy.first_position) return;
    g->n_rows++;
    g->n_kept += gate_choice_position(&g->policy, position) != position;
    g->n_attended += gate_attended(g, position);
    g->n_there += position / KV_PAGE_TOKENS + 1;
}
