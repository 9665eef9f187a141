/* gate.c: which pages a gated row attends to (core/step.h, struct gate_policy).
 *
 * What a page's keys are like is taken when its last position is written: per channel the mean and
 * the standard deviation. A query head's score of a page is the product with the means plus half of
 * the sum of |q| times the deviations: the mean key, and some of what may stand out. Least and
 * greatest values in their place, which bound every key's product (Quest: Tang et al. 2024,
 * arXiv:2406.10774), add up extremes of channels that no key has together, and lose more at equal
 * budgets (perf/results/2026-12-01-gate-rollback.md). A page's score is
 * the largest over the query heads of a KV head. Choices are kept per slot in a ring, by the group
 * of positions that they serve.
 */
#include <string.h>

#include "core/check.h"
#include "core/cpu/cpu_state.h"

/* The row's policy in the layer at hand, or NULL: it attends to everything. */
const struct gate_policy *gate_of(const struct cpu_backend *b, uint32_t row) {
    if (b->layer->plan->window > 0 || b->guessing) return NULL;
    const struct gate_policy *g = gate_policy_at(b->step, b->row_span[row], b->position[row]);
    return g == NULL || (uint32_t)(b->layer - b->layers) < g->dense_layers ? NULL : g;
}

uint64_t *gate_chosen(const struct cpu_backend *b, uint32_t slot, uint32_t choice_position) {
    const uint32_t layer = (uint32_t)(b->layer - b->layers);
    const size_t entry = gate_ring_index(slot, choice_position);
    CHECK(b->gate_at[entry] == choice_position + 1);
    return b->gate_bits + (entry * b->cfg.plan->n_layers + layer) * b->gate_heads * b->gate_words;
}

/* The same for every KV head: they choose from the same candidates. */
uint32_t gate_n_chosen(const struct cpu_backend *b, const uint64_t *chosen) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->gate_words; i++) n += (uint32_t)__builtin_popcountll(chosen[i]);
    return n;
}

/* Which choices this step makes: entered before any layer asks for them. */
void gate_prepare(struct cpu_backend *b) {
    const struct step *s = b->step;
    for (uint32_t i = 0; i < s->n_slot_copies; i++) {
        const struct slot_copy *c = &s->slot_copies[i];
        const size_t bits =
            (size_t)GATE_RING * b->cfg.plan->n_layers * b->gate_heads * b->gate_words;
        CHECK(c->from < b->cfg.n_slots && c->to < b->cfg.n_slots);
        if (b->gate_at == NULL) continue;
        memcpy(b->gate_bits + c->to * bits, b->gate_bits + c->from * bits, bits * sizeof(uint64_t));
        memcpy(b->gate_at + (size_t)c->to * GATE_RING, b->gate_at + (size_t)c->from * GATE_RING,
               GATE_RING * sizeof *b->gate_at);
    }
    for (struct gate_walk w = {0}; gate_next_choice(s, b->cfg.n_slots, &w);) {
        b->gate_at[gate_ring_index(w.span->slot, w.position)] = w.position + 1;
        /* Its query is wanted in the last layer too. */
        b->needed[w.row] = 1;
    }
}

static uint16_t *bounds_of(const struct cpu_backend *b, uint32_t page, uint32_t kv_head) {
    const struct layer_plan *l = b->layer->plan;
    const size_t head = (size_t)2 * l->head_dim;
    return (uint16_t *)(void *)(b->bounds[l->group] + page * b->bounds_page_bytes[l->group]) +
           ((size_t)l->group_layer * l->n_kv_heads + kv_head) * head;
}

static void bounds_task(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    struct cpu_backend *b = arg;
    const struct layer_plan *l = b->layer->plan;
    const struct kv_layout *kv = &b->layer->kv;
    const uint32_t row = b->gate_rows[task], position = b->position[row];
    const uint32_t at = b->row_span[row]->block_table[l->group] + position / KV_PAGE_TOKENS;
    const uint8_t *page = b->page_data[at] + l->group_layer * kv->layer_bytes;
    for (uint32_t h = 0; h < l->n_kv_heads; h++)
        b->vec->page_bounds(page + kv->k0 + h * kv->k_stride,
                            page + kv->k_scale0 + h * kv->scale_stride, b->cfg.kv, l->head_dim,
                            bounds_of(b, b->step->pages[at], h));
}

void gate_bounds(struct cpu_backend *b) {
    if (b->bounds[b->layer->plan->group] == NULL) return;
    b->n_gate_rows = 0;
    for (uint32_t i = 0; i < b->n_rows; i++)
        if (b->position[b->rows[i]] % KV_PAGE_TOKENS == KV_PAGE_TOKENS - 1)
            b->gate_rows[b->n_gate_rows++] = b->rows[i];
    phase(b, bounds_task, b->n_gate_rows);
}

/* The k-th largest of x[n] (1 <= k <= n), which is reordered. */
static float kth_largest(float *x, uint32_t n, uint32_t k) {
    uint32_t lo = 0, hi = n;
    for (;;) {
        const float pivot = x[lo + (hi - lo) / 2];
        uint32_t i = lo, j = hi, above = lo;
        /* [lo, above) larger, [above, i) equal, [j, hi) smaller */
        while (i < j) {
            const float v = x[i];
            if (v > pivot) {
                x[i++] = x[above];
                x[above++] = v;
            } else if (v < pivot) {
                x[i] = x[--j];
                x[j] = v;
            } else {
                i++;
            }
        }
        if (k <= above - lo) {
            hi = above;
        } else if (k <= i - lo) {
            return pivot;
        } else {
            k -= i - lo;
            lo = i;
        }
    }
}

static void choose_task(void *arg, uint32_t task, uint32_t worker) {
    struct cpu_backend *b = arg;
    const struct layer_plan *l = b->layer->plan;
    const uint32_t i = b->gate_rows[task / l->n_kv_heads], kv_head = task % l->n_kv_heads;
    const uint32_t row = b->rows[i], position = b->position[row];
    const struct span *span = b->row_span[row];
    const struct gate_policy *g = &b->step->gates[span->gate];
    const uint32_t group = l->n_heads / l->n_kv_heads, recent = gate_recent_page(g, position);
    uint64_t *bits = gate_chosen(b, span->slot, position) + (size_t)kv_head * b->gate_words;
    float *score = (float *)(void *)(b->gate_scores + (size_t)worker * b->gate_score_bytes);
    float *sorted = score + b->gate_words * 64;
    memset(bits, 0, b->gate_words * sizeof *bits);
    for (uint32_t p = 0; p < g->sink_pages && p < recent; p++)
        bits[p / 64] |= UINT64_C(1) << p % 64;
    for (uint32_t a = 0; a < g->n_anchors; a++) {
        const uint32_t p = b->step->gate_pages[g->first_anchor + a];
        if (p < recent) bits[p / 64] |= UINT64_C(1) << p % 64;
    }
    const float *q = b->q + ((size_t)i * l->n_heads + kv_head * group) * l->head_dim;
    const uint32_t *pages = b->step->pages + span->block_table[l->group];
    uint32_t n = 0;
    for (uint32_t p = g->sink_pages; p < recent; p++) {
        /* Bounds of one head lie far apart: see vector_kernels.h. */
        if (p + ATTENTION_AHEAD < recent) {
            const char *next = (const char *)bounds_of(b, pages[p + ATTENTION_AHEAD], kv_head);
            for (size_t at = 0; at < 2 * l->head_dim * sizeof(uint16_t); at += 64)
                __builtin_prefetch(next + at);
        }
        if (bits[p / 64] >> p % 64 & 1) continue;
        score[p] = b->vec->page_score(q, group, l->head_dim, bounds_of(b, pages[p], kv_head));
        if (!(score[p] == score[p])) score[p] = -__builtin_inff();
        sorted[n++] = score[p];
    }
    const uint32_t budget = gate_budget(g, position);
    if (n == 0 || budget == 0) return;
    uint32_t left = budget < n ? budget : n;
    const float least = kth_largest(sorted, n, left);
    /* Pages above the least first, then ties from the lowest page on. */
    for (int ties = 0; ties < 2; ties++) {
        for (uint32_t p = g->sink_pages; p < recent && left > 0; p++) {
            const uint64_t bit = UINT64_C(1) << p % 64;
            if (bits[p / 64] & bit) continue;
            if (ties ? score[p] != least : !(score[p] > least)) continue;
            bits[p / 64] |= bit;
            left--;
        }
    }
}

void gate_choose(struct cpu_backend *b) {
    b->n_gate_rows = 0;
    for (uint32_t i = 0; i < b->n_full; i++) {
        const uint32_t row = b->rows[i];
        const struct gate_policy *g = gate_of(b, row);
        if (g != NULL && gate_choice_position(g, b->position[row]) == b->position[row])
            b->gate_rows[b->n_gate_rows++] = i;
    }
    phase(b, choose_task, b->n_gate_rows * b->layer->plan->n_kv_heads);
}
