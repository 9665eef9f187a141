/* experts.c: the feed-forward of a mixture layer. Rows are gathered by expert, so that an expert's
 * weights are read once for all its rows; a row's result does not depend on the company. */
#include <string.h>

#include "core/check.h"
#include "core/cpu/cpu_state.h"
#include "core/math.h"

/* Softmax over the router's logits and its largest `used` (ties to the lower expert), in plain F32:
 * ascending sums. */
static void choose(const struct layer_plan *l, float *p, uint32_t *expert, float *weight) {
    const uint32_t n = l->n_experts, used = l->n_experts_used;
    float max = p[0], sum = 0;
    for (uint32_t e = 1; e < n; e++) max = p[e] > max ? p[e] : max;
    for (uint32_t e = 0; e < n; e++) sum += p[e] = math_expf(p[e] - max);
    for (uint32_t e = 0; e < n; e++) p[e] /= sum;
    float kept = 0;
    for (uint32_t r = 0; r < used; r++) {
        uint32_t best = 0;
        for (uint32_t e = 1; e < n; e++)
            if (p[e] > p[best]) best = e;
        expert[r] = best;
        weight[r] = p[best];
        kept += p[best];
        p[best] = -1;
    }
    for (uint32_t r = 0; l->renormalise_experts && r < used; r++) weight[r] /= kept;
}

/* expert_slot and expert_row: a stable counting sort of (i, rank) by expert. */
static void sort_rows(struct cpu_backend *b, uint32_t *count) {
    const struct layer_plan *l = b->layer->plan;
    const uint32_t n = b->n_full * l->n_experts_used;
    uint32_t first[1024];
    memset(count, 0, l->n_experts * sizeof *count);
    for (uint32_t j = 0; j < n; j++) count[b->expert_of[j]]++;
    uint32_t at = 0;
    for (uint32_t e = 0; e < l->n_experts; e++) first[e] = at, at += count[e];
    for (uint32_t j = 0; j < n; j++) {
        const uint32_t slot = first[b->expert_of[j]]++;
        b->expert_slot[j] = slot;
        b->expert_row[slot] = j / l->n_experts_used;
    }
}

static void gather_task(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    struct cpu_backend *b = arg;
    const uint32_t d = b->cfg.plan->d_model, used = b->layer->plan->n_experts_used;
    const struct cpu_expert *e = &b->layer->experts[0];
    const size_t row_bytes = input_row_bytes(b, INPUT_FFN, d);
    for (uint32_t slot = task * ROWS_PER_TASK;
         slot < (task + 1) * ROWS_PER_TASK && slot < b->n_full * used; slot++) {
        const uint32_t i = b->expert_row[slot];
        if (reads_quantised(b, INPUT_FFN, &e->gate) || reads_quantised(b, INPUT_FFN, &e->up))
            memcpy(b->gathered + slot * row_bytes, b->quantised + i * row_bytes, row_bytes);
        if (!reads_quantised(b, INPUT_FFN, &e->gate) || !reads_quantised(b, INPUT_FFN, &e->up))
            memcpy(b->gathered_f32 + (size_t)slot * d, b->normed + (size_t)i * d,
                   d * sizeof(float));
    }
}

static void gated_task(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    struct cpu_backend *b = arg;
    const uint32_t n = b->layer->plan->d_ff, used = b->layer->plan->n_experts_used;
    for (uint32_t slot = task * ROWS_PER_TASK;
         slot < (task + 1) * ROWS_PER_TASK && slot < b->n_full * used; slot++) {
        float *gate = b->gate + (size_t)slot * n;
        b->vec->gated(gate, b->up + (size_t)slot * n, n, b->cfg.plan->activation);
        if (reads_quantised(b, INPUT_DOWN, &b->layer->experts[0].down))
            quantise_row(b, INPUT_DOWN, gate, n, slot);
    }
}

/* o_i = sum over ranks of weight * down; into `normed`, whose rows are no longer wanted. */
static void combine_task(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    struct cpu_backend *b = arg;
    const uint32_t d = b->cfg.plan->d_model, used = b->layer->plan->n_experts_used;
    for (uint32_t i = task * ROWS_PER_TASK; i < (task + 1) * ROWS_PER_TASK && i < b->n_full; i++) {
        float *out = b->normed + (size_t)i * d;
        memset(out, 0, d * sizeof *out);
        for (uint32_t r = 0; r < used; r++)
            b->vec->add_scaled(out, b->projected + (size_t)b->expert_slot[i * used + r] * d,
                               b->expert_weight[i * used + r], d);
    }
}

void experts_run(struct cpu_backend *b) {
    const struct cpu_layer *l = b->layer;
    const struct layer_plan *lp = l->plan;
    const uint32_t n = b->n_full, used = lp->n_experts_used, d = b->cfg.plan->d_model;
    const uint32_t d_ff = lp->d_ff;
    products_begin(b);
    products_add(b, INPUT_FFN, &l->router, b->normed, b->quantised, n, NULL, b->router_out,
                 lp->n_experts);
    products_run(b);
    for (uint32_t i = 0; i < n; i++)
        choose(lp, b->router_out + (size_t)i * lp->n_experts, b->expert_of + (size_t)i * used,
               b->expert_weight + (size_t)i * used);
    uint32_t count[1024];
    sort_rows(b, count);
    phase(b, gather_task, row_tasks(n * used));
    const size_t in_bytes = input_row_bytes(b, INPUT_FFN, d);
    products_begin(b);
    for (uint32_t e = 0, slot = 0; e < lp->n_experts; slot += count[e++]) {
        const float *f32 = b->gathered_f32 + (size_t)slot * d;
        const uint8_t *quantised = b->gathered + slot * in_bytes;
        products_add(b, INPUT_FFN, &l->experts[e].gate, f32, quantised, count[e], NULL,
                     b->gate + (size_t)slot * d_ff, d_ff);
        products_add(b, INPUT_FFN, &l->experts[e].up, f32, quantised, count[e], NULL,
                     b->up + (size_t)slot * d_ff, d_ff);
    }
    products_run(b);
    phase(b, gated_task, row_tasks(n * used));
    const size_t down_bytes = input_row_bytes(b, INPUT_DOWN, d_ff);
    products_begin(b);
    for (uint32_t e = 0, slot = 0; e < lp->n_experts; slot += count[e++])
        products_add(b, INPUT_DOWN, &l->experts[e].down, b->gate + (size_t)slot * d_ff,
                     b->quantised + slot * down_bytes, count[e], NULL,
                     b->projected + (size_t)slot * d, d);
    products_run(b);
    phase(b, combine_task, row_tasks(n));
}
