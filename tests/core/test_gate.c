/* Page choices: the same bits however a sequence is cut, forked or rewritten; full attention when
 * the budget holds every page; the best pages by an independent score; and nothing read of pages
 * that were not chosen. */
#include "tests/core/backend_bits.h"

#include "core/cpu/cpu_state.h"
#include "tests/core/toy_model.h"

enum { N = 330, LONG_N = 700 }; /* over one, and over two key blocks */

static const struct gate_policy narrow = {.first_position = 100,
                                          .sink_pages = 1,
                                          .recent_pages = 2,
                                          .budget_pages = 3,
                                          .dense_layers = 1};

static void bits_do_not_depend_on_the_cut(void **state) {
    (void)state;
    for (int kind = TOY_LLAMA; kind <= TOY_MIXTURE; kind++) {
        struct toy *t = toy_new((enum toy_kind)kind);
        uint32_t ids[N];
        ids_new(t, ids, N);
        bits_everything(&t->plan, ids, N, ACTIVATION_INT16, kind == TOY_LLAMA ? KV_F16 : KV_Q8,
                        &narrow, kind == TOY_LLAMA ? 3 : 9);
        toy_free(t);
    }
    /* Runs of more than one block, of a budget that grows. */
    struct gate_policy wide = narrow;
    wide.budget_pages = 12;
    wide.budget_share = 300;
    wide.dense_layers = 0;
    struct toy *t = toy_new(TOY_LLAMA);
    uint32_t ids[N];
    ids_new(t, ids, N);
    bits_everything(&t->plan, ids, N, ACTIVATION_INT16, KV_F16, &wide, 5);
    toy_free(t);
}

/* Outputs of every position under a policy, token by token behind a dense prompt. */
static void run(struct toy *t, const struct gate_policy *gate, const uint32_t *ids, uint32_t n,
                struct output *out) {
    struct bits_rig r;
    uint8_t *seen = malloc(n);
    const struct bits_scenario sc = {.name = "by three", .chunk = 3};
    bits_open_gated(&r, &t->plan, n + 8, CPU_ISA_SCALAR, 1, ACTIVATION_INT16, KV_F16, gate);
    bits_sequence(&r, &sc, ids, n, out, seen);
    bits_close(&r);
    free(seen);
}

static void a_budget_for_all_pages_is_full_attention(void **state) {
    (void)state;
    struct toy *t = toy_new(TOY_LLAMA);
    uint32_t ids[N];
    ids_new(t, ids, N);
    struct output *dense = calloc(N, sizeof *dense), *gated = calloc(N, sizeof *gated);
    struct gate_policy wide = narrow;
    wide.budget_pages = 100;
    run(t, NULL, ids, N, dense);
    run(t, &wide, ids, N, gated);
    for (uint32_t p = 0; p < N; p++) assert_true(bits_equal(&dense[p], &gated[p]));
    /* And a narrow one is not, from where it begins. */
    run(t, &narrow, ids, N, gated);
    uint32_t other = 0;
    for (uint32_t p = 0; p < N; p++) {
        if (p < narrow.first_position) assert_true(bits_equal(&dense[p], &gated[p]));
        other += !bits_equal(&dense[p], &gated[p]);
    }
    assert_true(other > (N - narrow.first_position) / 2);
    free(dense);
    free(gated);
    toy_free(t);
}

static double score_of(const struct cpu_backend *b, const uint8_t *page, uint32_t kv_head,
                       const float *q) {
    const struct layer_plan *l = b->layer->plan;
    const struct kv_layout *kv = &b->layer->kv;
    const uint32_t group = l->n_heads / l->n_kv_heads, hd = l->head_dim;
    const uint16_t *k = (const uint16_t *)(const void *)(page + l->group_layer * kv->layer_bytes +
                                                         kv->k0 + kv_head * kv->k_stride);
    double best = -INFINITY;
    for (uint32_t g = 0; g < group; g++) {
        double sum = 0;
        for (uint32_t d = 0; d < hd; d++) {
            double mean = 0, variance = 0;
            for (uint32_t j = 0; j < KV_PAGE_TOKENS; j++)
                mean += (double)f16_to_f32(k[d * KV_PAGE_TOKENS + j]) / KV_PAGE_TOKENS;
            for (uint32_t j = 0; j < KV_PAGE_TOKENS; j++)
                variance +=
                    pow((double)f16_to_f32(k[d * KV_PAGE_TOKENS + j]) - mean, 2) / KV_PAGE_TOKENS;
            const double x = (double)q[(kv_head * group + g) * hd + d];
            const double half = 0.5 * sqrt(variance);
            sum += fmax(x * (double)f16_to_f32(f32_to_f16((float)(mean - half))),
                        x * (double)f16_to_f32(f32_to_f16((float)(mean + half))));
        }
        best = fmax(best, sum);
    }
    return best;
}

/* What one query head takes from the pages `bits` and those behind, in float64, against what the
 * backend computed for the step's only row. */
static void attends_to(const struct bits_rig *r, const uint64_t *bits, uint32_t position,
                       uint32_t recent, uint32_t head) {
    const struct cpu_backend *b = (const struct cpu_backend *)r->backend;
    const struct layer_plan *l = b->layer->plan;
    const struct kv_layout *kv = &b->layer->kv;
    const uint32_t hd = l->head_dim, kv_head = head / (l->n_heads / l->n_kv_heads);
    double weights = 0, sums[256] = {0};
    for (uint32_t p = 0; p <= position; p++) {
        const uint32_t page = p / KV_PAGE_TOKENS, j = p % KV_PAGE_TOKENS;
        if (page < recent && !(bits[page / 64] >> page % 64 & 1)) continue;
        const uint8_t *data = (const uint8_t *)page_pool_data(r->pages, 0, r->table[0][0][page]) +
                              l->group_layer * kv->layer_bytes;
        const uint16_t *k =
            (const uint16_t *)(const void *)(data + kv->k0 + kv_head * kv->k_stride);
        const uint16_t *v =
            (const uint16_t *)(const void *)(data + kv->v0 + kv_head * kv->v_stride);
        double score = 0;
        for (uint32_t d = 0; d < hd; d++)
            score += (double)b->q[head * hd + d] * (double)f16_to_f32(k[d * KV_PAGE_TOKENS + j]);
        const double e = exp(score * (double)l->attn_scale);
        weights += e;
        for (uint32_t d = 0; d < hd; d++) sums[d] += e * (double)f16_to_f32(v[j * hd + d]);
    }
    for (uint32_t d = 0; d < hd; d++)
        if (fabs(sums[d] / weights - (double)b->attended[head * hd + d]) > 1e-4)
            fail_msg("position %u, head %u: %g, not %g", position, head,
                     (double)b->attended[head * hd + d], sums[d] / weights);
}

/* In the last layer, whose queries are still there after the step. */
static void best_pages(uint32_t budget, uint32_t threads) {
    struct toy *t = toy_new(TOY_LLAMA);
    uint32_t ids[LONG_N], checked = 0;
    ids_new(t, ids, LONG_N);
    struct bits_rig r;
    struct gate_policy wanted = narrow;
    wanted.budget_pages = budget;
    bits_open_gated(&r, &t->plan, LONG_N, CPU_ISA_SCALAR, threads, ACTIVATION_INT16, KV_F16,
                    &wanted);
    const struct cpu_backend *b = (const struct cpu_backend *)r.backend;
    for (uint32_t p = 0; p < LONG_N; p++) {
        bits_begin(&r);
        bits_span(&r, 0, p, ids + p, 1);
        step_add_output(r.step, 0);
        bits_run(&r);
        if (p < narrow.first_position) continue;
        const uint32_t choice = gate_choice_position(&wanted, p);
        for (uint32_t h = 0; h < b->layer->plan->n_heads; h++)
            attends_to(&r,
                       gate_chosen(b, 0, choice) +
                           h / (b->layer->plan->n_heads / b->layer->plan->n_kv_heads) *
                               b->gate_words,
                       p, gate_recent_page(&wanted, choice), h);
        if (choice != p) continue;
        const uint32_t recent = p / KV_PAGE_TOKENS + 1 - narrow.recent_pages;
        for (uint32_t h = 0; h < b->layer->plan->n_kv_heads; h++) {
            const uint64_t *bits = gate_chosen(b, 0, p) + h * b->gate_words;
            double worst_in = INFINITY, best_out = -INFINITY;
            uint32_t n = 0;
            assert_true(bits[0] & 1); /* the sink */
            for (uint32_t i = narrow.sink_pages; i < recent; i++) {
                const double s = score_of(b, page_pool_data(r.pages, 0, r.table[0][0][i]), h, b->q);
                const bool in = bits[i / 64] >> i % 64 & 1;
                n += in;
                if (in)
                    worst_in = fmin(worst_in, s);
                else
                    best_out = fmax(best_out, s);
            }
            const uint32_t candidates = recent - narrow.sink_pages;
            assert_int_equal(n, candidates < budget ? candidates : budget);
            /* Halves near a tie round the other way, now and then. */
            assert_true(worst_in > best_out - 1e-3 * fabs(best_out));
            checked += best_out > -INFINITY;
        }
    }
    assert_true(checked > 100);
    bits_close(&r);
    toy_free(t);
}

static void the_best_pages_are_chosen(void **state) {
    (void)state;
    best_pages(3, 1);
    best_pages(20, 1); /* more than one block of pages */
    best_pages(20, 2); /* and these apart */
}

static void budgets_grow_with_the_context(void **state) {
    (void)state;
    struct gate_policy g = {.budget_pages = 3};
    assert_int_equal(gate_budget(&g, 16000), 3);
    g.budget_share = 256;
    assert_int_equal(gate_budget(&g, 0), 3);
    assert_int_equal(gate_budget(&g, 16 * 1024 - 1), 3 + 256);
    assert_int_equal(gate_budget(&g, 16 * 7), 3 + 2);
    g.budget_least = 10;
    assert_int_equal(gate_budget(&g, 16 * 7), 10);
    assert_int_equal(gate_budget(&g, UINT32_MAX), 3 + (1u << 28) / 4);
}

/* Values that nobody chose may be anything; of those chosen each matters. */
static void only_chosen_pages_are_read(void **state) {
    (void)state;
    struct toy *t = toy_new(TOY_LLAMA);
    uint32_t ids[N];
    ids_new(t, ids, N);
    struct gate_policy gate = narrow;
    gate.dense_layers = 0;
    gate.first_position = N - 1;
    struct bits_rig r;
    bits_open_gated(&r, &t->plan, N, CPU_ISA_SCALAR, 1, ACTIVATION_INT16, KV_F16, &gate);
    struct cpu_backend *b = (struct cpu_backend *)r.backend;
    for (uint32_t p = 0; p < N; p++) {
        bits_begin(&r);
        bits_span(&r, 0, p, ids + p, 1);
        step_add_output(r.step, 0);
        bits_run(&r);
    }
    const struct output want = r.step->outputs[0];
    const uint32_t own = (N - 1) / KV_PAGE_TOKENS, recent = own + 1 - gate.recent_pages;
    uint32_t read = 0, unread = 0;
    for (uint32_t page = 1; page < recent; page++) {
        /* Spoil the values of this page in every layer and head that did not choose it. */
        uint8_t *data = page_pool_data(r.pages, 0, r.table[0][0][page]);
        bool chosen = false;
        for (uint32_t layer = 0; layer < t->plan.n_layers; layer++) {
            b->layer = &b->layers[layer];
            const struct kv_layout *kv = &b->layer->kv;
            for (uint32_t h = 0; h < 2; h++) {
                const uint64_t *bits = gate_chosen(b, 0, N - 1) + h * b->gate_words;
                if (bits[page / 64] >> page % 64 & 1) {
                    chosen = true;
                    continue;
                }
                memset(data + b->layer->plan->group_layer * kv->layer_bytes + kv->v0 +
                           h * kv->v_stride,
                       0xff, kv->v_stride);
            }
        }
        read += chosen;
        unread += !chosen;
    }
    assert_true(read > 0 && unread > 0);
    bits_begin(&r);
    bits_span(&r, 0, N - 1, ids + N - 1, 1);
    step_add_output(r.step, 0);
    bits_run(&r);
    assert_true(bits_equal(&want, &r.step->outputs[0]));
    bits_close(&r);
    toy_free(t);
}

static void anchors_are_always_attended_to(void **state) {
    (void)state;
    struct toy *t = toy_new(TOY_LLAMA);
    uint32_t ids[N];
    ids_new(t, ids, N);
    struct gate_policy gate = narrow;
    gate.budget_pages = 0;
    gate.n_anchors = 2;
    struct bits_rig r;
    bits_open_gated(&r, &t->plan, N, CPU_ISA_SCALAR, 1, ACTIVATION_INT16, KV_F16, &gate);
    const struct cpu_backend *b = (const struct cpu_backend *)r.backend;
    r.limits.max_gate_pages = 2;
    free(r.step_mem);
    r.step_mem = aligned_alloc(64, (step_footprint(&r.limits) + 63) & ~(size_t)63);
    r.step = step_init(r.step_mem, &r.limits);
    for (uint32_t p = 0; p < N; p++) {
        bits_begin(&r);
        r.step->gate_pages[0] = 3;
        r.step->gate_pages[1] = 5;
        r.step->n_gate_pages = 2;
        bits_span(&r, 0, p, ids + p, 1);
        step_add_output(r.step, 0);
        bits_run(&r);
    }
    for (uint32_t h = 0; h < 2; h++)
        assert_true(gate_chosen(b, 0, N - N % STEP_GATE_REFRESH - 5)[h * b->gate_words] == 0x29);
    bits_close(&r);
    toy_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_do_not_depend_on_the_cut),
        cmocka_unit_test(a_budget_for_all_pages_is_full_attention),
        cmocka_unit_test(the_best_pages_are_chosen),
        cmocka_unit_test(budgets_grow_with_the_context),
        cmocka_unit_test(only_chosen_pages_are_read),
        cmocka_unit_test(anchors_are_always_attended_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
