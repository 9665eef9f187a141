/* Label heads: the reference arithmetic against float64; and spans that leave by them: the bits of
 * the reference over tapped states on every instruction set, with any workers, thresholds and
 * company, while the company's own outputs stay what they are alone. */
#include "tests/core/backend_bits.h"

#include "core/cpu/vector.h"
#include "core/heads.h"
#include "core/tensor.h"
#include "tests/core/toy_model.h"

enum { D = 64, LABELS = 7, N = 40, SPANS = 5, HEADS = 3 };

static uint32_t counter;
static float draw(double size) {
    return (float)((2 * uniform(&counter) - 1) * size);
}

struct set {
    float weight[HEADS][LABELS * D], bias[HEADS][LABELS], prior[LABELS];
    struct label_head list[HEADS];
    struct heads heads;
};

static void set_new(struct set *s, uint32_t d, uint32_t n_labels, double size) {
    for (uint32_t h = 0; h < HEADS; h++) {
        for (uint32_t i = 0; i < n_labels * d; i++) s->weight[h][i] = draw(size);
        for (uint32_t c = 0; c < n_labels; c++) s->bias[h][c] = draw(1);
        s->list[h] = (struct label_head){.layer = h + 1,
                                         .n_labels = n_labels,
                                         .scale = 0.5f + (float)uniform(&counter),
                                         .prior_scale = (float)uniform(&counter),
                                         .weight = s->weight[h],
                                         .bias = s->bias[h]};
    }
    for (uint32_t c = 0; c < n_labels; c++) s->prior[c] = draw(2);
    s->heads = (struct heads){.labels = s->list, .n_labels = HEADS, .d_model = d};
}

static void near(double got, double want, double size) {
    if (!(fabs(got - want) <= 1e-5 * size)) fail_msg("%.9g, want %.9g", got, want);
}

static void reference_is_right(void **state) {
    (void)state;
    struct set *s = malloc(sizeof *s);
    for (uint32_t round = 0; round < 300; round++) {
        const uint32_t d = 1 + (uint32_t)(uniform(&counter) * D);
        const uint32_t k = 1 + (uint32_t)(uniform(&counter) * LABELS);
        float mean[D] = {0}, S[LABELS] = {0}, p[LABELS];
        double exact_mean[D] = {0}, exact_S[LABELS] = {0}, z[LABELS], mass = 0, most = -1e300;
        const uint32_t rows = (uint32_t)(uniform(&counter) * 9);
        if (d > D || k > LABELS) continue;
        set_new(s, d, k, 1);
        for (uint32_t r = 0; r < rows; r++) {
            float row[D];
            for (uint32_t i = 0; i < d; i++) {
                row[i] = draw(3);
                exact_mean[i] += (double)row[i] / rows;
            }
            heads_mean_add(mean, row, d);
        }
        heads_mean_finish(mean, rows, d);
        for (uint32_t h = 0; h < HEADS; h++) {
            label_head_add(&s->list[h], mean, d, NULL, S);
            for (uint32_t c = 0; c < k; c++) {
                exact_S[c] += (double)s->bias[h][c];
                for (uint32_t i = 0; i < d; i++)
                    exact_S[c] += (double)s->weight[h][c * d + i] * exact_mean[i];
                near((double)S[c], exact_S[c], 50);
            }
        }
        const struct label_head *last = &s->list[HEADS - 1];
        const float confidence = label_head_probabilities(last, S, round % 3 ? s->prior : NULL, p);
        for (uint32_t c = 0; c < k; c++) {
            z[c] = (double)last->scale * exact_S[c] +
                   (round % 3 ? (double)last->prior_scale * (double)s->prior[c] : 0);
            most = z[c] > most ? z[c] : most;
        }
        for (uint32_t c = 0; c < k; c++) mass += exp(z[c] - most);
        double best = 0;
        for (uint32_t c = 0; c < k; c++) {
            near((double)p[c], exp(z[c] - most) / mass, 20);
            best = exp(z[c] - most) / mass > best ? exp(z[c] - most) / mass : best;
        }
        near((double)confidence, best, 20);
        S[k - 1] = NAN;
        assert_true(isnan(label_head_probabilities(last, S, NULL, p)));
        S[k - 1] = INFINITY;
        assert_true(isnan(label_head_probabilities(last, S, NULL, p)));
    }
    free(s);
}

static void every_set_has_the_dot_of_the_reference(void **state) {
    (void)state;
    struct cpu_features f;
    float a[300], b[300];
    cpu_features_detect(&f);
    for (unsigned isa = 0; isa < CPU_ISA_COUNT; isa++) {
        const struct vector_kernels *k = vector_kernels((enum cpu_isa)isa);
        if (k == NULL || !cpu_isa_supported(&f, (enum cpu_isa)isa)) continue;
        for (uint32_t n = 0; n < 300; n++) {
            for (uint32_t i = 0; i < n; i++) a[i] = draw(3), b[i] = draw(3);
            const float x = k->dot(a, b, n), y = heads_dot(a, b, n);
            assert_memory_equal(&x, &y, sizeof x);
        }
    }
}

/* ---- what FP16 decisions would cost ---- */

enum { WIDE = 576, TEXTS = 4000 }; /* states of the default model's width */

static float half(float x) {
    return f16_to_f32(f32_to_f16(x));
}

/* A head's scores with every sum and product rounded to FP16. */
static void add_in_half(const struct label_head *h, const float *mean, float *S) {
    for (uint32_t c = 0; c < h->n_labels; c++) {
        float lane[16] = {0}; /* as the reference sums, so that only the rounding differs */
        for (uint32_t i = 0; i < WIDE; i++)
            lane[i % 16] = half(lane[i % 16] + half(half(h->weight[c * WIDE + i]) * half(mean[i])));
        for (uint32_t n = 8; n >= 1; n /= 2)
            for (uint32_t i = 0; i < n; i++) lane[i] = half(lane[i] + lane[i + n]);
        S[c] = half(S[c] + half(half(h->bias[c]) + lane[0]));
    }
}

static double confidence_exact(const struct label_head *h, const double *S) {
    double most = -1e300, mass = 0;
    for (uint32_t c = 0; c < h->n_labels; c++) most = S[c] > most ? S[c] : most;
    for (uint32_t c = 0; c < h->n_labels; c++) mass += exp((double)h->scale * (S[c] - most));
    return 1 / mass;
}

/* The same texts through three heads, where each decision is made in float64, in FP32 (what is
 * built) and in FP16: how many leave at another layer than in float64. */
static void half_precision_decides_otherwise(void **state) {
    (void)state;
    static float weight[HEADS][LABELS * WIDE], bias[HEADS][LABELS], mean[HEADS][WIDE];
    struct label_head heads[HEADS];
    for (uint32_t h = 0; h < HEADS; h++) {
        for (uint32_t i = 0; i < LABELS * WIDE; i++) weight[h][i] = draw(0.15);
        for (uint32_t c = 0; c < LABELS; c++) bias[h][c] = draw(1);
        heads[h] = (struct label_head){
            .n_labels = LABELS, .scale = 2, .weight = weight[h], .bias = bias[h]};
    }
    uint32_t wrong_single = 0, wrong_half = 0, early = 0;
    for (uint32_t t = 0; t < TEXTS; t++) {
        double exact[LABELS] = {0};
        float single[LABELS] = {0}, rounded[LABELS] = {0}, p[LABELS];
        uint32_t left[3] = {HEADS, HEADS, HEADS};
        for (uint32_t h = 0; h < HEADS; h++) {
            for (uint32_t i = 0; i < WIDE; i++) mean[h][i] = draw(1);
            for (uint32_t c = 0; c < LABELS; c++) {
                double sum = (double)bias[h][c];
                for (uint32_t i = 0; i < WIDE; i++)
                    sum += (double)weight[h][c * WIDE + i] * (double)mean[h][i];
                exact[c] += sum;
            }
            label_head_add(&heads[h], mean[h], WIDE, NULL, single);
            add_in_half(&heads[h], mean[h], rounded);
            const bool sure[3] = {confidence_exact(&heads[h], exact) >= 0.7,
                                  label_head_probabilities(&heads[h], single, NULL, p) >= 0.7f,
                                  half(label_head_probabilities(&heads[h], rounded, NULL, p)) >=
                                      half(0.7f)};
            for (uint32_t k = 0; k < 3; k++)
                if (sure[k] && left[k] == HEADS) left[k] = h;
        }
        early += left[0] < HEADS;
        wrong_single += left[1] != left[0];
        wrong_half += left[2] != left[0];
    }
    print_message("# of %u texts, %u early: FP32 leaves elsewhere %u times, FP16 %u times\n",
                  (unsigned)TEXTS, early, wrong_single, wrong_half);
    assert_true(early > TEXTS / 4 && early < TEXTS);
    assert_true(wrong_single <= 1 && wrong_half >= 4);
}

/* ---- spans ---- */

struct answer {
    float p[LABELS];
    uint32_t layer, last_label; /* STEP_NONE: it was not audited, or not early */
};

/* A step of `n_looks` texts among `n_decodes` decodes; answers and outputs. */
static void run(struct bits_rig *r, const struct set *s, const uint32_t *ids, const uint32_t *first,
                const uint32_t *len, uint32_t n_looks, uint32_t n_decodes, float threshold,
                bool audit, struct answer *answers, struct output *outputs) {
    struct step *step = r->step;
    step_clear(step, r->plan->n_layers);
    step->epoch = 9;
    step->profiles[1] = step->profiles[0];
    for (uint32_t h = 0; h < HEADS; h++)
        step->profiles[1].decision_points[0] |= UINT64_C(1) << (s->list[h].layer - 1);
    step->n_profiles = 2;
    step->exits[0] = (struct exit_policy){.head = 0};
    for (uint32_t h = 0; h < HEADS; h++) step->exits[0].threshold[h] = threshold;
    step->n_exits = 1;
    for (uint32_t i = 0; i < n_looks || i < n_decodes; i++) {
        if (i < n_looks) {
            struct span *p = bits_span(r, i, 0, ids + first[i], len[i]);
            p->kind = SPAN_ENCODE;
            p->exit = 0;
            p->profile = 1;
            step->looks[step->n_looks++] =
                (struct label_look){.span = step->n_spans - 1,
                                    .first_row = p->first_row + (len[i] > 1 ? 1 : 0),
                                    .n_rows = len[i] > 1 ? len[i] - 1 : i % 2,
                                    .prior = i % 2 ? s->prior : NULL,
                                    .audit = audit,
                                    .probability = answers[i].p};
        }
        if (i < n_decodes) {
            struct span *p = bits_span(r, 20 + i, 0, ids + i, 3);
            step_add_output(step, p->first_row + 2);
        }
    }
    bits_run(r);
    for (uint32_t i = 0; i < n_looks; i++) {
        assert_false(step->looks[i].bad);
        answers[i].layer = step->looks[i].layer;
        answers[i].last_label = step->looks[i].last_label;
        assert_int_equal(step->looks[i].early, answers[i].layer < HEADS);
    }
    memcpy(outputs, step->outputs, step->n_outputs * sizeof *outputs);
}

/* The reference over states that taps hand back. */
static void expect(struct bits_rig *r, const struct set *s, const uint32_t *ids, uint32_t first,
                   uint32_t len, uint32_t which, float threshold, struct answer *a) {
    static float rows[HEADS][N * D];
    struct step *step = r->step;
    step_clear(step, r->plan->n_layers);
    bits_span(r, which, 0, ids + first, len);
    for (uint32_t h = 0; h < HEADS; h++)
        step->taps[step->n_taps++] = (struct tap){
            .layer = h, .n_rows = len, .mode = TAP_KEEP, .normalised = true, .out = rows[h]};
    bits_run(r);
    float S[LABELS] = {0};
    const uint32_t from = len > 1 ? 1 : 0, n = len > 1 ? len - 1 : which % 2;
    for (uint32_t h = 0; h < HEADS; h++) {
        float mean[D] = {0};
        for (uint32_t i = from; i < from + n; i++) heads_mean_add(mean, rows[h] + i * D, D);
        heads_mean_finish(mean, n, D);
        label_head_add(&s->list[h], mean, D, NULL, S);
        a->layer = h + 1;
        if (label_head_probabilities(&s->list[h], S, which % 2 ? s->prior : NULL, a->p) >=
            threshold)
            return;
    }
}

static uint32_t likeliest(const float *p) {
    uint32_t best = 0;
    for (uint32_t c = 1; c < LABELS; c++)
        if (p[c] > p[best]) best = c;
    return best;
}

static void open_rig(struct bits_rig *r, struct toy *t, enum cpu_isa isa, uint32_t threads) {
    bits_open(r, &t->plan, 64, isa, threads, ACTIVATION_INT16, KV_F16);
}

static void spans_leave_as_the_reference_says(void **state) {
    (void)state;
    struct cpu_features f;
    cpu_features_detect(&f);
    struct set *s = malloc(sizeof *s);
    set_new(s, D, LABELS, 0.15);
    const float thresholds[] = {0, 0.3f, 0.5f, 0.8f, 2};
    uint32_t seen[HEADS + 1] = {0};
    for (int kind = TOY_LLAMA; kind <= TOY_MIXTURE; kind++) {
        struct toy *t = toy_new((enum toy_kind)kind);
        uint32_t ids[SPANS * N], first[SPANS], len[SPANS];
        ids_new(t, ids, SPANS * N);
        for (uint32_t i = 0; i < SPANS; i++) {
            first[i] = i * N;
            len[i] = i == 3 ? 1 : 2 + (uint32_t)(uniform(&counter) * (N - 2));
        }
        for (unsigned isa = 0; isa < CPU_ISA_COUNT; isa++) {
            if (!cpu_isa_supported(&f, (enum cpu_isa)isa) ||
                vector_kernels((enum cpu_isa)isa) == NULL)
                continue;
            for (uint32_t threads = 1; threads <= 2; threads++) {
                struct bits_rig r;
                struct error e = {0};
                struct answer want[SPANS], got[SPANS];
                struct output alone[SPANS], beside[SPANS];
                open_rig(&r, t, (enum cpu_isa)isa, threads);
                assert_int_equal(r.backend->ops->publish(r.backend, 9, &s->heads, &e), STATUS_OK);
                run(&r, s, ids, first, len, 0, SPANS, 0, false, got, alone);
                for (size_t h = 0; h < sizeof thresholds / sizeof *thresholds; h++) {
                    for (uint32_t i = 0; i < SPANS; i++)
                        expect(&r, s, ids, first[i], len[i], i, thresholds[h], &want[i]);
                    for (uint32_t i = 0; i < SPANS; i++) {
                        struct answer last;
                        expect(&r, s, ids, first[i], len[i], i, 2, &last);
                        want[i].last_label = want[i].layer < HEADS ? likeliest(last.p) : STEP_NONE;
                    }
                    for (uint32_t n = 1; n <= SPANS; n++) {
                        const bool audit = n % 2;
                        run(&r, s, ids, first, len, n, SPANS - n % 3, thresholds[h], audit, got,
                            beside);
                        for (uint32_t i = 0; i < n; i++) {
                            assert_int_equal(got[i].layer, want[i].layer);
                            assert_memory_equal(got[i].p, want[i].p, sizeof want[i].p);
                            assert_int_equal(got[i].last_label,
                                             audit ? want[i].last_label : STEP_NONE);
                            seen[want[i].layer]++;
                        }
                        for (uint32_t i = 0; i < SPANS - n % 3; i++)
                            assert_true(bits_equal(&alone[i], &beside[i]));
                    }
                }
                bits_close(&r);
            }
        }
        toy_free(t);
    }
    for (uint32_t h = 1; h <= HEADS; h++) assert_true(seen[h] > 10);
    free(s);
}

static void refusals(void **state) {
    (void)state;
    struct toy *t = toy_new(TOY_LLAMA);
    struct set *s = malloc(sizeof *s);
    struct bits_rig r;
    struct error e = {0};
    open_rig(&r, t, CPU_ISA_SCALAR, 1);
    set_new(s, D, LABELS, 0.1);
    s->heads.d_model = D - 1;
    assert_int_equal(r.backend->ops->publish(r.backend, 9, &s->heads, &e), STATUS_UNSUPPORTED);
    s->heads.d_model = D;
    s->list[2].layer = 4;
    assert_int_equal(r.backend->ops->publish(r.backend, 9, &s->heads, &e), STATUS_UNSUPPORTED);
    s->list[2].layer = 3;
    s->list[1].n_labels = HEADS_MAX_LABELS + 1;
    assert_int_equal(r.backend->ops->publish(r.backend, 9, &s->heads, &e), STATUS_UNSUPPORTED);
    s->list[1].n_labels = LABELS;
    /* An epoch that is not there, before and after it was. */
    const uint32_t id = 1;
    for (int round = 0; round < 3; round++) {
        step_clear(r.step, t->plan.n_layers);
        r.step->epoch = 9;
        bits_span(&r, 0, 0, &id, 1);
        assert_int_equal(backend_submit(r.backend, r.step),
                         round == 1 ? STATUS_OK : STATUS_UNSUPPORTED);
        assert_true((backend_poll(r.backend) != NULL) == (round == 1));
        if (round == 0)
            assert_int_equal(r.backend->ops->publish(r.backend, 9, &s->heads, &e), STATUS_OK);
        else
            r.backend->ops->retire(r.backend, 9);
    }
    /* No more epochs than there are places. */
    uint64_t epoch = 1;
    while (r.backend->ops->publish(r.backend, epoch, &s->heads, &e) == STATUS_OK) epoch++;
    assert_true(epoch > 2 && epoch < 100);
    r.backend->ops->retire(r.backend, 1);
    assert_int_equal(r.backend->ops->publish(r.backend, 1000, &s->heads, &e), STATUS_OK);
    bits_close(&r);
    free(s);
    toy_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_is_right),
        cmocka_unit_test(every_set_has_the_dot_of_the_reference),
        cmocka_unit_test(half_precision_decides_otherwise),
        cmocka_unit_test(spans_leave_as_the_reference_says),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
