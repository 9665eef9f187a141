#include "core/gate_choice.h"

static void check_span(const struct step *s, const struct span *span, uint32_t n_slots) {
    CHECK(span->gate < s->n_gates && span->slot < n_slots);
    const struct gate_policy *g = &s->gates[span->gate];
    CHECK(g->sink_pages >= 1 && g->recent_pages >= 1);
    CHECK(g->first_anchor + g->n_anchors <= s->n_gate_pages);
    const uint32_t end = span->first_position + span->n_tokens;
    CHECK(end <= g->first_position || span->n_tokens <= STEP_GATE_ROWS ||
          end - g->first_position <= STEP_GATE_ROWS);
}

bool gate_next_choice(const struct step *s, uint32_t n_slots, struct gate_walk *w) {
    for (; w->next_span < s->n_spans; w->next_span++, w->next_position = 0) {
        const struct span *span = &s->spans[w->next_span];
        if (span->gate == STEP_NONE) continue;
        if (w->next_position == 0) {
            check_span(s, span, n_slots);
            w->next_position = span->first_position;
        }
        const struct gate_policy *g = &s->gates[span->gate];
        const uint32_t end = span->first_position + span->n_tokens;
        uint32_t p = w->next_position > g->first_position ? w->next_position : g->first_position;
        while (p < end && gate_choice_position(g, p) != p) p++;
        if (p >= end) continue;
        w->span = span;
        w->policy = g;
        w->position = p;
        w->row = span->first_row + p - span->first_position;
        w->next_position = p + 1;
        return true;
    }
    return false;
}
