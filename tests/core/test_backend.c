/* The CPU backend on random tiny plans: the same bits everywhere (backend_bits.h), and the right
 * numbers (a plain float64 forward pass of the plan, written from core/plan.h).
 */
#include "tests/core/backend_bits.h"

#include <math.h>

#include "core/cpu/cpu_state.h"
#include "core/rng.h"
#include "tests/core/toy_model.h"

/* The float64 forward pass. */

static void product(const struct weight *w, uint32_t expert, const double *x,
                    const struct tensor *bias, uint32_t bias0, double *out) {
    const uint32_t k = (uint32_t)w->t->dim[0];
    const struct tensor_format *f = tensor_format(w->t->type);
    float row[256];
    for (uint32_t j = 0; j < w->n_rows; j++) {
        const uint64_t r = expert * w->t->dim[1] + w->row0 + j;
        tensor_dequantise(w->t->type, (const uint8_t *)w->t->data + r * tensor_row_bytes(f, k), row,
                          k);
        out[j] = bias != NULL ? (double)((const float *)bias->data)[bias0 + j] : 0;
        for (uint32_t i = 0; i < k; i++) out[j] += (double)row[i] * x[i];
    }
}

static void norm(const struct tensor *w, uint32_t n, double epsilon, const double *x, double *out) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += x[i] * x[i];
    const double r = 1 / sqrt(sum / n + epsilon);
    for (uint32_t i = 0; i < n; i++) out[i] = x[i] * r * (double)((const float *)w->data)[i];
}

static void head_norm(const struct tensor *w, uint32_t heads, uint32_t hd, double epsilon,
                      double *x) {
    if (w == NULL) return;
    if (w->dim[0] != hd) {
        norm(w, heads * hd, epsilon, x, x);
        return;
    }
    for (uint32_t h = 0; h < heads; h++) norm(w, hd, epsilon, x + h * hd, x + h * hd);
}

static void turn(const struct rope_plan *r, double *x, double position) {
    for (uint32_t i = 0; i < r->n_dims / 2; i++) {
        const uint32_t a = r->style == ROPE_ADJACENT ? 2 * i : i;
        const uint32_t b = r->style == ROPE_ADJACENT ? 2 * i + 1 : i + r->n_dims / 2;
        const double c = cos(position * r->inv_freq[i]) * (double)r->mscale;
        const double s = sin(position * r->inv_freq[i]) * (double)r->mscale;
        const double xa = x[a], xb = x[b];
        x[a] = xa * c - xb * s;
        x[b] = xb * c + xa * s;
    }
}

static double activate(enum plan_activation a, double g) {
    if (a == PLAN_SILU) return g / (1 + exp(-g));
    return 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
}

static void feed_forward(const struct plan *p, const struct layer_plan *l, const double *f,
                         uint32_t expert, double *out) {
    double gate[256], up[256];
    product(&l->gate, expert, f, NULL, 0, gate);
    product(&l->up, expert, f, NULL, 0, up);
    for (uint32_t i = 0; i < l->d_ff; i++) gate[i] = activate(p->activation, gate[i]) * up[i];
    product(&l->down, expert, gate, NULL, 0, out);
}

static void mixture(const struct plan *p, const struct layer_plan *l, const double *f,
                    double *out) {
    double score[16], sum = 0, kept = 0, weight[16] = {0}, one[256];
    const struct weight router = {l->router, 0, l->n_experts};
    product(&router, 0, f, NULL, 0, score);
    for (uint32_t e = 0; e < l->n_experts; e++) sum += score[e] = exp(score[e]);
    for (uint32_t r = 0; r < l->n_experts_used; r++) {
        uint32_t best = 0;
        for (uint32_t e = 1; e < l->n_experts; e++)
            if (score[e] > score[best]) best = e;
        kept += weight[best] = score[best] / sum;
        score[best] = 0;
    }
    memset(out, 0, p->d_model * sizeof *out);
    for (uint32_t e = 0; e < l->n_experts; e++) {
        if (weight[e] == 0) continue;
        feed_forward(p, l, f, e, one);
        for (uint32_t i = 0; i < p->d_model; i++)
            out[i] += one[i] * weight[e] / (l->renormalise_experts ? kept : 1);
    }
}

/* logits [n][n_vocab] */
static void forward(const struct plan *p, const uint32_t *ids, uint32_t n, double *logits) {
    const uint32_t d = p->d_model;
    double *x = calloc((size_t)n * d, sizeof *x);
    double *k = calloc((size_t)n * 256, sizeof *k), *v = calloc((size_t)n * 256, sizeof *v);
    double *s = calloc(n, sizeof *s);
    const struct tensor_format *f = tensor_format(p->embed->type);
    for (uint32_t t = 0; t < n; t++) {
        float row[256];
        tensor_dequantise(p->embed->type,
                          (const uint8_t *)p->embed->data + ids[t] * tensor_row_bytes(f, d), row,
                          d);
        for (uint32_t i = 0; i < d; i++) x[t * d + i] = (double)row[i] * (double)p->embed_scale;
    }
    for (uint32_t layer = 0; layer < p->n_layers; layer++) {
        const struct layer_plan *l = &p->layers[layer];
        const uint32_t hd = l->head_dim, group = l->n_heads / l->n_kv_heads;
        const double epsilon = (double)p->norm_epsilon;
        for (uint32_t t = 0; t < n; t++) {
            double a[256], q[256], o[256] = {0}, y[256], *xt = x + t * d;
            norm(l->attn_norm, d, epsilon, xt, a);
            product(&l->q, 0, a, l->q_bias, l->q_bias0, q);
            product(&l->k, 0, a, l->k_bias, l->k_bias0, k + t * 256);
            product(&l->v, 0, a, l->v_bias, l->v_bias0, v + t * 256);
            head_norm(l->q_norm, l->n_heads, hd, epsilon, q);
            head_norm(l->k_norm, l->n_kv_heads, hd, epsilon, k + t * 256);
            if (l->rope != PLAN_NO_ROPE) {
                for (uint32_t h = 0; h < l->n_heads; h++) turn(&p->ropes[l->rope], q + h * hd, t);
                for (uint32_t h = 0; h < l->n_kv_heads; h++)
                    turn(&p->ropes[l->rope], k + t * 256 + h * hd, t);
            }
            const uint32_t first = l->window > 0 && t + 1 > l->window ? t + 1 - l->window : 0;
            for (uint32_t h = 0; h < l->n_heads; h++) {
                double sum = 0;
                for (uint32_t j = first; j <= t; j++) {
                    double z = 0;
                    for (uint32_t i = 0; i < hd; i++)
                        z += q[h * hd + i] * k[j * 256 + h / group * hd + i];
                    z *= (double)l->attn_scale;
                    if (l->attn_softcap > 0)
                        z = (double)l->attn_softcap * tanh(z / (double)l->attn_softcap);
                    sum += s[j] = exp(z);
                }
                for (uint32_t j = first; j <= t; j++)
                    for (uint32_t i = 0; i < hd; i++)
                        o[h * hd + i] += s[j] / sum * v[j * 256 + h / group * hd + i];
            }
            product(&l->o, 0, o, l->o_bias, 0, y);
            if (l->attn_post_norm != NULL) norm(l->attn_post_norm, d, epsilon, y, y);
            for (uint32_t i = 0; i < d; i++) xt[i] += (double)l->residual_scale * y[i];
            norm(l->ffn_norm, d, epsilon, xt, a);
            if (l->n_experts > 0)
                mixture(p, l, a, y);
            else
                feed_forward(p, l, a, 0, y);
            if (l->ffn_post_norm != NULL) norm(l->ffn_post_norm, d, epsilon, y, y);
            for (uint32_t i = 0; i < d; i++) xt[i] += (double)l->residual_scale * y[i];
        }
    }
    for (uint32_t t = 0; t < n; t++) {
        double a[256], *z = logits + (size_t)t * p->n_vocab;
        norm(p->out_norm, d, (double)p->norm_epsilon, x + t * d, a);
        product(&p->head, 0, a, NULL, 0, z);
        for (uint32_t i = 0; i < p->n_vocab; i++) {
            z[i] *= (double)p->logit_scale;
            if (p->logit_softcap > 0)
                z[i] = (double)p->logit_softcap * tanh(z[i] / (double)p->logit_softcap);
        }
    }
    free(x), free(k), free(v), free(s);
}

/* Bounds the worst error of a logit among the best, or with `mean` the mean one: a rounded router
 * may choose another expert at a near tie, which is right and far off. */
static void close_to_float64(enum toy_kind kind, enum activation_format act, enum kv_format kv,
                             bool mean, double bound) {
    enum { N = 300 };
    struct toy *t = toy_new(kind);
    uint32_t ids[N];
    ids_new(t, ids, N);
    double *want = calloc((size_t)N * t->plan.n_vocab, sizeof *want);
    forward(&t->plan, ids, N, want);
    struct cpu_features f;
    cpu_features_detect(&f);
    struct bits_rig r;
    bits_open(&r, &t->plan, N, cpu_isa_best(&f), 2, act, kv);
    static struct output out[N];
    static uint8_t seen[N];
    const struct bits_scenario sc = {.name = "whole", .chunk = 70};
    bits_sequence(&r, &sc, ids, N, out, seen);
    double worst = 0, sum = 0;
    for (uint32_t p = 0; p < N; p++)
        for (int i = 0; i < STEP_TOP; i++) {
            const double delta =
                fabs((double)out[p].top[i].logit - want[p * t->plan.n_vocab + out[p].top[i].id]);
            worst = delta > worst ? delta : worst;
            sum += delta / (N * STEP_TOP);
        }
    printf("plan %d, activations %d, kv %d: |d logit| mean %.2g, worst %.2g\n", kind, act, kv, sum,
           worst);
    assert_true((mean ? sum : worst) < bound);
    bits_close(&r);
    free(want);
    toy_free(t);
}

static void matches_float64(void **state) {
    (void)state;
    for (int kind = TOY_LLAMA; kind <= TOY_MIXTURE; kind++) {
        close_to_float64((enum toy_kind)kind, ACTIVATION_F32, KV_F32, false, 1e-4);
        close_to_float64((enum toy_kind)kind, ACTIVATION_INT16, KV_F16, true, 2e-3);
        close_to_float64((enum toy_kind)kind, ACTIVATION_INT16, KV_Q8, true, 5e-2);
    }
}

static void same_bits(enum toy_kind kind, enum activation_format act, enum kv_format kv) {
    enum { N = 300 };
    struct toy *t = toy_new(kind);
    uint32_t ids[N];
    ids_new(t, ids, N);
    bits_everything(&t->plan, ids, N, act, kv, NULL, kind != TOY_LLAMA || kv != KV_F16 ? 4 : 1);
    toy_free(t);
}

static void llama_has_the_same_bits(void **state) {
    (void)state;
    same_bits(TOY_LLAMA, ACTIVATION_INT16, KV_F16);
    same_bits(TOY_LLAMA, ACTIVATION_F32, KV_F32);
    same_bits(TOY_LLAMA, ACTIVATION_INT8, KV_Q8);
}

static void gemma_has_the_same_bits(void **state) {
    (void)state;
    same_bits(TOY_GEMMA, ACTIVATION_INT16, KV_F16);
    same_bits(TOY_GEMMA, ACTIVATION_INT8, KV_Q8);
}

static void mixture_has_the_same_bits(void **state) {
    (void)state;
    same_bits(TOY_MIXTURE, ACTIVATION_INT16, KV_F16);
    same_bits(TOY_MIXTURE, ACTIVATION_F32, KV_F32);
}

/* Taps hand back the same states whole or row by row; the mean is the mean; after the last layer
 * plus the output norm, the head gives the logits. */
static void taps_hand_back_states(void **state) {
    (void)state;
    enum { N = 21 };
    struct toy *t = toy_new(TOY_LLAMA);
    const uint32_t d = t->plan.d_model;
    uint32_t ids[N];
    ids_new(t, ids, N);
    float *keep = calloc(N * d, sizeof *keep), *row = calloc(N * d, sizeof *row);
    float sums[2 * 64] = {0}, parts[2 * 64] = {0}, unit[64], last[64];
    struct bits_rig r;
    bits_open(&r, &t->plan, 64, CPU_ISA_SCALAR, 2, ACTIVATION_INT16, KV_F16);
    bits_begin(&r);
    bits_span(&r, 0, 0, ids, N);
    r.step->n_taps = 4;
    r.step->taps[0] = (struct tap){1, 0, N, TAP_KEEP, false, keep};
    r.step->taps[1] = (struct tap){1, 1, N - 1, TAP_SUM, false, sums};
    r.step->taps[2] = (struct tap){t->plan.n_layers, N - 1, 1, TAP_KEEP, false, last};
    r.step->taps[3] = (struct tap){1, 3, 1, TAP_KEEP, true, unit};
    step_add_output(r.step, N - 1);
    bits_run(&r);
    const float top = r.step->outputs[0].top[0].logit;
    const uint32_t top_id = r.step->outputs[0].top[0].id;
    for (uint32_t i = 0; i < N; i++) {
        bits_begin(&r);
        bits_span(&r, 1, i, ids + i, 1);
        r.step->n_taps = i == 0 ? 1 : 2;
        r.step->taps[0] = (struct tap){1, 0, 1, TAP_KEEP, false, row + i * d};
        r.step->taps[1] = (struct tap){1, 0, 1, TAP_SUM, false, parts + i / KV_PAGE_TOKENS * d};
        bits_run(&r);
    }
    assert_memory_equal(keep, row, N * d * sizeof *keep);
    /* A page's sum does not depend on how its rows came. */
    assert_memory_equal(sums, parts, sizeof sums);
    double z = 0, square = 0;
    float w[64];
    for (uint32_t j = 0; j < d; j++) square += (double)keep[3 * d + j] * (double)keep[3 * d + j];
    tensor_dequantise(t->plan.embed->type, (const uint8_t *)t->plan.embed->data + top_id * 68, w,
                      d);
    for (uint32_t i = 0; i < d; i++) {
        double sum = 0;
        for (uint32_t j = 1; j < N; j++) sum += (double)keep[j * d + i];
        assert_true(fabs(sum - (double)sums[i] - (double)sums[d + i]) < 1e-4);
        const double root = sqrt(square / d + (double)t->plan.norm_epsilon);
        assert_true(fabs((double)keep[3 * d + i] / root - (double)unit[i]) < 1e-5);
        z += (double)w[i] * (double)last[i];
    }
    assert_true(fabs(z - (double)top) < 1e-2);
    bits_close(&r);
    free(keep);
    free(row);
    toy_free(t);
}

/* In the last layer a prompt's rows give their keys and values only: their states stay what they
 * were before it, but for rows that an output or a tap reads. */
static void what_nobody_reads_is_not_computed(void **state) {
    (void)state;
    enum { N = 37 };
    struct toy *t = toy_new(TOY_LLAMA);
    const uint32_t d = t->plan.d_model, last = t->plan.n_layers - 1;
    uint32_t ids[N];
    float before[N * 64], tapped[64];
    struct bits_rig r;
    ids_new(t, ids, N);
    bits_open(&r, &t->plan, 64, CPU_ISA_SCALAR, 2, ACTIVATION_INT16, KV_F16);
    const struct cpu_backend *b = (const struct cpu_backend *)r.backend;
    bits_begin(&r);
    bits_span(&r, 0, 0, ids, N);
    r.step->n_taps = 2;
    r.step->taps[0] = (struct tap){last - 1, 0, N, TAP_KEEP, false, before};
    r.step->taps[1] = (struct tap){last + 1, 7, 1, TAP_KEEP, false, tapped};
    step_add_output(r.step, N - 1);
    bits_run(&r);
    assert_int_equal(b->n_full, 2);
    for (uint32_t i = 0; i < N; i++) {
        const bool read = i == 7 || i == N - 1;
        const bool same = memcmp(b->x + i * d, before + i * d, d * sizeof *before) == 0;
        if (same == read) fail_msg("row %u %s", i, same ? "was not computed" : "was computed");
    }
    /* A chunk in the middle of a prompt: nobody reads any. */
    bits_begin(&r);
    bits_span(&r, 1, 0, ids, N);
    bits_run(&r);
    assert_int_equal(b->n_full, 0);
    bits_close(&r);
    toy_free(t);
}

static void a_skipped_layer_is_the_identity(void **state) {
    (void)state;
    struct toy *t = toy_new(TOY_LLAMA);
    const uint32_t ids[3] = {5, 6, 7}, d = t->plan.d_model;
    float before[3 * 64], after[3 * 64];
    struct bits_rig r;
    bits_open(&r, &t->plan, 64, CPU_ISA_SCALAR, 1, ACTIVATION_INT16, KV_F16);
    bits_begin(&r);
    r.step->profiles[1].layers[0] = 1; /* only layer 0 */
    bits_span(&r, 0, 0, ids, 3)->profile = 1;
    r.step->n_taps = 2;
    r.step->taps[0] = (struct tap){0, 0, 3, TAP_KEEP, false, before};
    r.step->taps[1] = (struct tap){2, 0, 3, TAP_KEEP, false, after};
    step_add_output(r.step, 2);
    bits_run(&r);
    assert_memory_equal(before, after, 3 * d * sizeof *before);
    assert_int_equal(r.step->outputs[0].layer, 1);
    bits_close(&r);
    toy_free(t);
}

static void later_features_are_refused(void **state) {
    (void)state;
    struct toy *t = toy_new(TOY_LLAMA);
    const uint32_t id = 1;
    struct bits_rig r;
    bits_open(&r, &t->plan, 64, CPU_ISA_SCALAR, 1, ACTIVATION_INT16, KV_F16);
    for (int which = 0; which < 5; which++) {
        bits_begin(&r);
        struct span *s = bits_span(&r, 0, 0, &id, 1);
        if (which == 0) s->exit = 0;
        if (which == 1) s->gate = 0;
        if (which == 2) r.step->first_layers[0] = 1;
        if (which == 3) r.step->epoch = 1;
        if (which == 4) step_add_output(r.step, 0)->head = 0;
        assert_int_equal(backend_submit(r.backend, r.step), STATUS_UNSUPPORTED);
        assert_null(backend_poll(r.backend));
    }
    bits_close(&r);
    toy_free(t);
}

static void numbers_that_are_none_are_marked(void **state) {
    (void)state;
    struct toy *t = toy_new(TOY_LLAMA);
    const uint32_t d = t->plan.d_model;
    ((float *)t->blocks[t->plan.layers[1].ffn_norm - t->tensors])[3] = NAN;
    const uint32_t ids[2] = {1, 2};
    struct bits_rig r;
    bits_open(&r, &t->plan, 64, CPU_ISA_SCALAR, 1, ACTIVATION_INT16, KV_F16);
    bits_begin(&r);
    bits_span(&r, 0, 0, ids, 2);
    step_add_output(r.step, 1);
    bits_run(&r);
    assert_true(r.step->outputs[0].bad);
    assert_true(d > 3);
    bits_close(&r);
    toy_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_float64),
        cmocka_unit_test(llama_has_the_same_bits),
        cmocka_unit_test(gemma_has_the_same_bits),
        cmocka_unit_test(mixture_has_the_same_bits),
        cmocka_unit_test(taps_hand_back_states),
        cmocka_unit_test(what_nobody_reads_is_not_computed),
        cmocka_unit_test(a_skipped_layer_is_the_identity),
        cmocka_unit_test(later_features_are_refused),
        cmocka_unit_test(numbers_that_are_none_are_marked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
