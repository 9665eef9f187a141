/* outputs.c: the head, the sampler and the taps. */
#include <string.h>

#include "core/check.h"
#include "core/cpu/cpu_state.h"

static void head_norm_task(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    struct cpu_backend *b = arg;
    const struct plan *p = b->cfg.plan;
    const uint32_t d = p->d_model;
    for (uint32_t i = task * ROWS_PER_TASK; i < (task + 1) * ROWS_PER_TASK && i < b->head_n_rows;
         i++) {
        float *normed = b->normed + (size_t)i * d;
        b->vec->rms_norm(b->x + (size_t)b->head_row[i] * d, b->out_norm, d, p->norm_epsilon,
                         normed);
        if (reads_quantised(b, INPUT_HEAD, &b->head)) quantise_row(b, INPUT_HEAD, normed, d, i);
    }
}

static void head_task(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    struct cpu_backend *b = arg;
    const struct plan *p = b->cfg.plan;
    const struct matmul_job *j = &b->jobs[0];
    const struct job_range r = job_range(j, task);
    job_compute(b, j, r);
    if (p->logit_scale == 1 && !(p->logit_softcap > 0)) return;
    const uint32_t c0 = r.panel0 * PANEL_ROWS, n = j->matrix->n;
    const uint32_t c1 = r.panel1 * PANEL_ROWS < n ? r.panel1 * PANEL_ROWS : n;
    for (uint32_t i = r.row0; i < r.row1; i++) {
        float *z = j->out + i * j->out_stride + c0;
        if (p->logit_scale != 1) b->vec->scale(z, p->logit_scale, c1 - c0);
        if (p->logit_softcap > 0) b->vec->softcap(z, p->logit_softcap, c1 - c0);
    }
}

static void regulate(const struct cpu_backend *b, const float *state, struct sample_spec *spec) {
    float v[2];
    const struct regulation_head *h = labels_heads(b, b->step->epoch)->regulation;
    regulation_head_run(h, state, b->cfg.plan->d_model, v);
    if (spec->regulate & STEP_REGULATE_TEMPERATURE) spec->temperature = v[0];
    if (spec->regulate & STEP_REGULATE_TOP_P) spec->top_p = v[1];
}

/* Task t samples every n_samplers-th output, with a scratch of its own. */
static void sample_task(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    struct cpu_backend *b = arg;
    const uint32_t n_vocab = b->cfg.plan->n_vocab;
    for (uint32_t o = b->head_first_output + task; o < b->head_last_output; o += b->n_samplers) {
        struct output *out = &b->step->outputs[o];
        uint32_t i = 0;
        while (b->head_row[i] != out->row) i++;
        if (out->sample.regulate != 0)
            regulate(b, b->normed + (size_t)i * b->cfg.plan->d_model, &out->sample);
        sample_row(&b->vec->sample, b->logits + (size_t)i * n_vocab, n_vocab,
                   b->position[out->row] + 1, out,
                   b->sample_scratch + task * b->sample_scratch_bytes);
        out->cosine = __builtin_nanf("");
        out->layer = (uint16_t)b->n_run_layers[b->row_span[out->row]->profile];
    }
}

void outputs_run(struct cpu_backend *b) {
    const struct step *s = b->step;
    const uint32_t n_vocab = b->cfg.plan->n_vocab;
    for (uint32_t o = 0; o < s->n_outputs;) {
        b->head_first_output = o;
        b->head_n_rows = 0;
        for (; o < s->n_outputs; o++) {
            const uint32_t row = s->outputs[o].row;
            if (b->head_n_rows > 0 && b->head_row[b->head_n_rows - 1] == row) continue;
            if (b->head_n_rows == HEAD_ROWS) break;
            b->head_row[b->head_n_rows++] = row;
        }
        b->head_last_output = o;
        phase(b, head_norm_task, row_tasks(b->head_n_rows));
        products_begin(b);
        products_add(b, INPUT_HEAD, &b->head, b->normed, b->quantised, b->head_n_rows, b->head_bias,
                     b->logits, n_vocab);
        products_count(b, "head_task");
        phase(b, head_task, products_cut(b, 1));
        const uint32_t n = b->head_last_output - b->head_first_output;
        phase(b, sample_task, n < b->n_samplers ? n : b->n_samplers);
    }
}

/* The state of one row as the tap wants it; in `scratch` where it is not x itself. */
static const float *tapped_row(const struct cpu_backend *b, const struct tap *t, uint32_t row,
                               float *scratch) {
    const struct plan *p = b->cfg.plan;
    const float *x = b->x + (size_t)row * p->d_model;
    if (t->layer == p->n_layers) {
        b->vec->rms_norm(x, b->out_norm, p->d_model, p->norm_epsilon, scratch);
        x = scratch;
    }
    if (t->normalised) {
        b->vec->rms_norm(x, b->ones, p->d_model, p->norm_epsilon, scratch);
        x = scratch;
    }
    return x;
}

void taps_run(struct cpu_backend *b, uint32_t layer) {
    const struct step *s = b->step;
    const uint32_t d = b->cfg.plan->d_model;
    float *scratch = scratch_of(b, 0);
    for (uint32_t i = 0; i < s->n_taps; i++) {
        const struct tap *t = &s->taps[i];
        if (t->layer != layer) continue;
        const uint32_t first_page = b->position[t->first_row] / KV_PAGE_TOKENS;
        for (uint32_t r = t->first_row; r < t->first_row + t->n_rows; r++) {
            const float *x = tapped_row(b, t, r, scratch);
            const size_t at = t->mode == TAP_SUM ? b->position[r] / KV_PAGE_TOKENS - first_page
                                                 : r - t->first_row;
            if (t->mode == TAP_SUM)
                b->vec->add_scaled(t->out + at * d, x, 1, d);
            else
                memcpy(t->out + at * d, x, d * sizeof(float));
        }
    }
}
