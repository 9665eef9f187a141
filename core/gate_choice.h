/* gate_choice.h: which choices of pages a step makes, and where a backend keeps them (core/step.h,
 * struct gate_policy). Both backends go through a step by it.
 *
 * A slot keeps its last choices in a ring of GATE_RING entries, by the group of positions that they
 * serve; what an entry holds is the backend's. Nothing is allocated or can fail; a step that breaks
 * the contract is a programmer's error and CHECKed.
 */
#ifndef LAC_CORE_GATE_CHOICE_H
#define LAC_CORE_GATE_CHOICE_H

#include "core/step.h"

enum {
    GATE_RING = (STEP_GATE_KEPT + STEP_GATE_ROWS) / STEP_GATE_REFRESH + 2,
    GATE_SPAN_CHOICES = STEP_GATE_ROWS / STEP_GATE_REFRESH + 2, /* most in a span of a step */
};

/* Among the entries of all slots, [n_slots][GATE_RING]. */
static inline uint32_t gate_ring_index(uint32_t slot, uint32_t choice_position) {
    return slot * GATE_RING + choice_position / STEP_GATE_REFRESH % GATE_RING;
}

/* The policy under which a position of the span attends, or NULL: it attends to everything. */
static inline const struct gate_policy *gate_policy_at(const struct step *s,
                                                       const struct span *span, uint32_t position) {
    if (span->gate == STEP_NONE) return NULL;
    const struct gate_policy *g = &s->gates[span->gate];
    return position < g->first_position ? NULL : g;
}

/* One choice after another, spans in order, positions ascending:
 *     for (struct gate_walk w = {0}; gate_next_choice(s, n_slots, &w);) */
struct gate_walk {
    uint32_t next_span, next_position; /* where to go on */
    /* The choice at hand: made with the query of the step's row `row`, at `position`. */
    const struct span *span;
    const struct gate_policy *policy;
    uint32_t position, row;
};
bool gate_next_choice(const struct step *s, uint32_t n_slots, struct gate_walk *w);

#endif
