/* layers.c: from token ids to the last hidden states, phase by phase. A dense layer of few rows has
 * five phases that need the workers (q k v; attention; o; gate and up; down); the row-wise work
 * between them is then one task, which worker 0 does while the others spin. */
#include <string.h>

#include "core/check.h"
#include "core/cpu/cpu_state.h"
#include "core/math.h"

/* Rows of a step for which the lines of K and V are asked for ahead: those fit the caches. */
enum { PREFETCH_ROWS = 64 };

struct row_range {
    uint32_t first, last;
};

static struct row_range rows_of_task(uint32_t task, uint32_t n_rows) {
    const uint32_t first = task * ROWS_PER_TASK;
    const uint32_t left = n_rows - first;
    return (struct row_range){first, first + (left < ROWS_PER_TASK ? left : ROWS_PER_TASK)};
}

static bool runs(const struct cpu_backend *b, uint32_t profile, uint32_t layer) {
    return b->step->profiles[profile].layers[layer / 64] >> layer % 64 & 1;
}

/* Embedding and rotary tables. */

static void rope_row(const struct rope_plan *rope, uint32_t position, float *out) {
    const uint32_t n = rope->n_dims, half = n / 2;
    float *c = out, *s = out + n;
    for (uint32_t i = 0; i < half; i++) {
        double sine, cosine;
        math_sincos((double)position * rope->inv_freq[i], &sine, &cosine);
        const float cf = (float)(cosine * (double)rope->mscale);
        const float sf = (float)(sine * (double)rope->mscale);
        const uint32_t first = rope->style == ROPE_ADJACENT ? 2 * i : i;
        const uint32_t second = rope->style == ROPE_ADJACENT ? 2 * i + 1 : i + half;
        c[first] = c[second] = cf;
        s[first] = -sf;
        s[second] = sf;
    }
}

void rope_rows(struct cpu_backend *b, uint32_t row) {
    const struct plan *p = b->cfg.plan;
    for (uint32_t r = 0; r < p->n_ropes; r++)
        rope_row(&p->ropes[r], b->position[row], b->rope[r] + (size_t)row * 2 * p->ropes[r].n_dims);
}

void embed_row(const struct cpu_backend *b, uint32_t id, float *x) {
    const struct plan *p = b->cfg.plan;
    if (b->tied) {
        packed_matrix_row(&b->head, id, x);
    } else {
        const size_t row_bytes = tensor_row_bytes(tensor_format(p->embed->type), p->d_model);
        tensor_dequantise(p->embed->type, (const uint8_t *)p->embed->data + id * row_bytes, x,
                          p->d_model);
    }
    if (p->embed_scale != 1) b->vec->scale(x, p->embed_scale, p->d_model);
}

static void begin_task(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    struct cpu_backend *b = arg;
    const uint32_t d = b->cfg.plan->d_model;
    const struct row_range range = rows_of_task(task, b->step->n_rows);
    for (uint32_t row = range.first; row < range.last; row++) {
        embed_row(b, b->step->ids[row], b->x + (size_t)row * d);
        rope_rows(b, row);
    }
}

void layers_begin(struct cpu_backend *b) {
    phase(b, begin_task, row_tasks(b->step->n_rows));
}

/* Rows of the layer in compact order. */

static void choose_rows(struct cpu_backend *b, uint32_t layer) {
    const struct step *s = b->step;
    b->n_full = b->n_rows = 0;
    for (int want_full = 1; want_full >= 0; want_full--) {
        for (uint32_t i = 0; i < s->n_spans; i++) {
            const struct span *span = &s->spans[i];
            if (!runs(b, span->profile, layer) || b->span_left[i]) continue;
            const bool last = b->last_layer[span->profile] == layer;
            for (uint32_t r = span->first_row; r < span->first_row + span->n_tokens; r++)
                if ((!last || b->needed[r]) == want_full) b->rows[b->n_rows++] = r;
        }
        if (want_full) b->n_full = b->n_rows;
    }
}

/* Attention. */

/* Where K and V of a row go: its page, this layer. */
static uint8_t *kv_of_row(const struct cpu_backend *b, uint32_t row) {
    const struct layer_plan *l = b->layer->plan;
    const uint32_t first = b->row_span[row]->block_table[l->group];
    return b->page_data[first + b->position[row] / KV_PAGE_TOKENS] +
           l->group_layer * b->layer->kv.layer_bytes;
}

/* Asks for the lines that rotate_and_write_task will write: a decode has not touched them since its
 * last step, and every line of K holds a part of each position. They come during the products. */
static void prefetch_kv(const struct cpu_backend *b, uint32_t row) {
    const struct layer_plan *l = b->layer->plan;
    const struct kv_layout *kv = &b->layer->kv;
    uint8_t *layer = kv_of_row(b, row);
    const size_t v_bytes = kv->v_stride / KV_PAGE_TOKENS;
    for (uint32_t h = 0; h < l->n_kv_heads; h++) {
        uint8_t *k = layer + kv->k0 + h * kv->k_stride;
        for (size_t at = 0; at < kv->k_stride; at += 64) __builtin_prefetch(k + at, 1);
        uint8_t *v =
            layer + kv->v0 + h * kv->v_stride + b->position[row] % KV_PAGE_TOKENS * v_bytes;
        for (size_t at = 0; at < v_bytes; at += 64) __builtin_prefetch(v + at, 1);
    }
}

static void attn_norm_task(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    struct cpu_backend *b = arg;
    const struct cpu_layer *l = b->layer;
    const uint32_t d = b->cfg.plan->d_model;
    const bool quantised = reads_quantised(b, INPUT_ATTENTION, &l->q) ||
                           reads_quantised(b, INPUT_ATTENTION, &l->k) ||
                           reads_quantised(b, INPUT_ATTENTION, &l->v);
    const struct row_range range = rows_of_task(task, b->n_rows);
    for (uint32_t i = range.first; i < range.last; i++) {
        const float *x = b->x + (size_t)b->rows[i] * d;
        float *normed = b->normed + (size_t)i * d;
        if (b->n_rows <= PREFETCH_ROWS) prefetch_kv(b, b->rows[i]);
        if (l->attn_norm != NULL)
            b->vec->rms_norm(x, l->attn_norm, d, b->cfg.plan->norm_epsilon, normed);
        else
            memcpy(normed, x, d * sizeof *x);
        if (quantised) quantise_row(b, INPUT_ATTENTION, normed, d, i);
    }
}

static void head_norms(const struct cpu_backend *b, float *x, const float *w, bool whole,
                       uint32_t n_heads, uint32_t head_dim) {
    const float epsilon = b->cfg.plan->norm_epsilon;
    if (w == NULL) return;
    if (whole) {
        b->vec->rms_norm(x, w, n_heads * head_dim, epsilon, x);
        return;
    }
    for (uint32_t h = 0; h < n_heads; h++)
        b->vec->rms_norm(x + h * head_dim, w, head_dim, epsilon, x + h * head_dim);
}

/* q of one row as attention reads it: scaled, the heads of a KV head side by side per dimension. */
static void pack_query(const struct layer_plan *l, const float *q, float *out) {
    const uint32_t group = l->n_heads / l->n_kv_heads, hd = l->head_dim;
    for (uint32_t h = 0; h < l->n_heads; h++) {
        float *to = out + (size_t)(h / group) * group * hd + h % group;
        for (uint32_t d = 0; d < hd; d++) to[d * group] = q[h * hd + d] * l->attn_scale;
    }
}

static void rotate_and_write_task(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    struct cpu_backend *b = arg;
    const struct plan *p = b->cfg.plan;
    const struct cpu_layer *cl = b->layer;
    const struct layer_plan *l = cl->plan;
    const uint32_t hd = l->head_dim, nq = l->n_heads * hd, nk = l->n_kv_heads * hd;
    const struct row_range range = rows_of_task(task, b->n_rows);
    for (uint32_t i = range.first; i < range.last; i++) {
        const uint32_t row = b->rows[i], position = b->position[row];
        float *k = b->k + (size_t)i * nk, *v = b->v + (size_t)i * nk;
        float *q = i < b->n_full ? b->q + (size_t)i * nq : NULL;
        head_norms(b, k, cl->k_norm, cl->k_norm_whole, l->n_kv_heads, hd);
        if (q != NULL) head_norms(b, q, cl->q_norm, cl->q_norm_whole, l->n_heads, hd);
        if (l->rope != PLAN_NO_ROPE) {
            const struct rope_plan *rope = &p->ropes[l->rope];
            const float *c = b->rope[l->rope] + (size_t)row * 2 * rope->n_dims;
            const float *s = c + rope->n_dims;
            for (uint32_t h = 0; h < l->n_kv_heads; h++)
                b->vec->rope(k + h * hd, c, s, rope->n_dims, rope->style);
            for (uint32_t h = 0; q != NULL && h < l->n_heads; h++)
                b->vec->rope(q + h * hd, c, s, rope->n_dims, rope->style);
        }
        if (q != NULL) pack_query(l, q, b->q_packed + (size_t)i * p->d_attention_max);
        b->vec->kv_write(k, v, l->n_kv_heads, hd, b->cfg.kv, position % KV_PAGE_TOKENS,
                         kv_of_row(b, row));
    }
}

static void attended_task(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    struct cpu_backend *b = arg;
    const struct layer_plan *l = b->layer->plan;
    const uint32_t n = l->n_heads * l->head_dim;
    const struct row_range range = rows_of_task(task, b->n_full);
    for (uint32_t i = range.first; i < range.last; i++) {
        attention_finish(b, i);
        if (reads_quantised(b, INPUT_O, &b->layer->o))
            quantise_row(b, INPUT_O, b->attended + (size_t)i * n, n, i);
    }
}

/* x += o, then the norm of what the feed-forward reads. */
static void ffn_norm_task(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    struct cpu_backend *b = arg;
    const struct cpu_layer *l = b->layer;
    const uint32_t d = b->cfg.plan->d_model;
    const float epsilon = b->cfg.plan->norm_epsilon;
    const struct packed_matrix *gate = l->experts != NULL ? &l->experts[0].gate : &l->gate;
    const struct packed_matrix *up = l->experts != NULL ? &l->experts[0].up : &l->up;
    const bool quantised = reads_quantised(b, INPUT_FFN, gate) || reads_quantised(b, INPUT_FFN, up);
    const struct row_range range = rows_of_task(task, b->n_full);
    for (uint32_t i = range.first; i < range.last; i++) {
        float *x = b->x + (size_t)b->rows[i] * d, *normed = b->normed + (size_t)i * d;
        float *o = b->projected + (size_t)i * d;
        if (l->attn_post_norm != NULL) b->vec->rms_norm(o, l->attn_post_norm, d, epsilon, o);
        b->vec->add_scaled(x, o, l->plan->residual_scale, d);
        if (l->ffn_norm != NULL)
            b->vec->rms_norm(x, l->ffn_norm, d, epsilon, normed);
        else
            memcpy(normed, x, d * sizeof *x);
        if (quantised) quantise_row(b, INPUT_FFN, normed, d, i);
    }
}

/* Feed-forward. */

/* A range of gate, the same range of up, and their product, while all are in cache. */
static void gate_task(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    struct cpu_backend *b = arg;
    const struct matmul_job *gate = &b->jobs[0], *up = &b->jobs[1];
    const struct job_range r = job_range(gate, task);
    job_compute(b, gate, r);
    job_compute(b, up, r);
    const uint32_t c0 = r.panel0 * PANEL_ROWS, n = gate->matrix->n;
    const uint32_t c1 = r.panel1 * PANEL_ROWS < n ? r.panel1 * PANEL_ROWS : n;
    for (uint32_t i = r.row0; i < r.row1; i++)
        b->vec->gated(gate->out + i * gate->out_stride + c0, up->out + i * up->out_stride + c0,
                      c1 - c0, b->cfg.plan->activation);
}

static void gated_quantise_task(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    struct cpu_backend *b = arg;
    const uint32_t n = b->layer->plan->d_ff;
    const struct row_range range = rows_of_task(task, b->n_full);
    for (uint32_t i = range.first; i < range.last; i++)
        quantise_row(b, INPUT_DOWN, b->gate + (size_t)i * n, n, i);
}

static void ffn_add_task(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    struct cpu_backend *b = arg;
    const struct cpu_layer *l = b->layer;
    const uint32_t d = b->cfg.plan->d_model;
    const struct row_range range = rows_of_task(task, b->n_full);
    for (uint32_t i = range.first; i < range.last; i++) {
        float *o = (l->experts != NULL ? b->normed : b->projected) + (size_t)i * d;
        if (l->ffn_post_norm != NULL)
            b->vec->rms_norm(o, l->ffn_post_norm, d, b->cfg.plan->norm_epsilon, o);
        b->vec->add_scaled(b->x + (size_t)b->rows[i] * d, o, l->plan->residual_scale, d);
    }
}

static void dense_run(struct cpu_backend *b) {
    const struct cpu_layer *l = b->layer;
    const uint32_t n = b->n_full, d_ff = l->plan->d_ff;
    products_begin(b);
    products_add(b, INPUT_FFN, &l->gate, b->normed, b->quantised, n, NULL, b->gate, d_ff);
    products_add(b, INPUT_FFN, &l->up, b->normed, b->quantised, n, NULL, b->up, d_ff);
    products_cut(b, 2);
    products_count(b, "gate_task");
    /* Half as many panels a task: each does two matrices. */
    struct matmul_job *gate = &b->jobs[0];
    const uint32_t n_row_tasks = (n + gate->rows_per_task - 1) / gate->rows_per_task;
    gate->panels_per_task = products_even(b, 1, (gate->panels_per_task + 1) / 2);
    gate->n_panel_tasks = (l->gate.n_panels + gate->panels_per_task - 1) / gate->panels_per_task;
    phase(b, gate_task, gate->n_panel_tasks * n_row_tasks);
    if (reads_quantised(b, INPUT_DOWN, &l->down)) phase(b, gated_quantise_task, row_tasks(n));
    products_begin(b);
    products_add(b, INPUT_DOWN, &l->down, b->gate, b->quantised, n, NULL, b->projected,
                 b->cfg.plan->d_model);
    products_run(b);
}

void layer_run(struct cpu_backend *b) {
    const struct cpu_layer *l = b->layer;
    const struct plan *p = b->cfg.plan;
    const struct layer_plan *lp = l->plan;
    const uint32_t nq = lp->n_heads * lp->head_dim, nk = lp->n_kv_heads * lp->head_dim;
    phase(b, attn_norm_task, row_tasks(b->n_rows));
    products_begin(b);
    products_add(b, INPUT_ATTENTION, &l->q, b->normed, b->quantised, b->n_full, l->q_bias, b->q,
                 nq);
    products_add(b, INPUT_ATTENTION, &l->k, b->normed, b->quantised, b->n_rows, l->k_bias, b->k,
                 nk);
    products_add(b, INPUT_ATTENTION, &l->v, b->normed, b->quantised, b->n_rows, l->v_bias, b->v,
                 nk);
    products_run(b);
    phase(b, rotate_and_write_task, row_tasks(b->n_rows));
    gate_bounds(b);
    if (b->n_full == 0) return;
    gate_choose(b);
    attention_run(b);
    phase(b, attended_task, row_tasks(b->n_full));
    products_begin(b);
    products_add(b, INPUT_O, &l->o, b->attended, b->quantised, b->n_full, l->o_bias, b->projected,
                 p->d_model);
    products_run(b);
    phase(b, ffn_norm_task, row_tasks(b->n_full));
    if (l->experts != NULL)
        experts_run(b);
    else
        dense_run(b);
    phase(b, ffn_add_task, row_tasks(b->n_full));
}

void layers_run(struct cpu_backend *b) {
    for (uint32_t layer = 0; layer < b->cfg.plan->n_layers; layer++) {
        b->layer = &b->layers[layer];
        choose_rows(b, layer);
        if (b->n_rows > 0) layer_run(b);
        exit_block_keys(b, layer + 1);
        taps_run(b, layer);
        labels_run(b, layer);
    }
}
