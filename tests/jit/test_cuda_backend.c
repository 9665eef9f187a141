/* The CUDA backend on the software device, full checks: the CPU backend's numbers, the same bits
 * however a sequence was cut, batched, forked and rolled back, on devices of two generations and
 * under several schedules; and what happens when something goes wrong.
 */
#include "tests/jit/cuda_rig.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* The insides of both backends, which have tiles of their own. */
#define attention_tile cpu_attention_tile
#include "core/cpu/cpu_state.h"
#undef attention_tile
#include "jit/cuda_backend_state.h"
#include "jit/kernel_set.h"
#include "tests/core/nvtx_tool.h"

enum { N = 45, ROWS = 24 };

static const struct cuda_rig_options small = {
    .device = "A100", .n_sms = 2, .n_ctx = 64, .max_rows = ROWS, .max_spans = 8};

static const struct bits_scenario whole = {.name = "chunks of 20", .chunk = 20};

/* Worst and mean difference of reported logits and of lse, relative to the row's largest. Until a
 * rounding goes the other way (of a key to F16, of an activation to its integer) rows differ by
 * 1e-7; behind one they differ by what the numerics class itself is off by.
 */
static void compare_numbers(const char *name, const struct output *got, const struct output *want,
                            uint32_t n, double worst_bound, double mean_bound) {
    double worst = 0, sum = 0;
    uint32_t count = 0, tokens = 0;
    for (uint32_t p = 0; p < n; p++) {
        const struct output *a = &got[p], *b = &want[p];
        assert_false(a->bad);
        assert_int_equal(a->layer, b->layer);
        tokens += a->top[0].id == b->top[0].id;
        const double size = fabs((double)b->top[0].logit) + 1e-9;
        double row = fabs((double)a->lse - (double)b->lse) / size;
        for (uint32_t i = 0; i < STEP_TOP; i++) {
            uint32_t j = 0;
            while (j < STEP_TOP && a->top[j].id != b->top[i].id) j++;
            if (j == STEP_TOP) continue; /* at the edge of the list */
            const double d = fabs((double)a->top[j].logit - (double)b->top[i].logit) / size;
            row = d > row ? d : row;
            sum += d;
            count++;
        }
        worst = row > worst ? row : worst;
    }
    print_message(
        "%s: logits differ by %.2g of the largest (mean %.2g), %u of %u arg-maxes equal\n", name,
        worst, sum / count, tokens, n);
    assert_true(count > n * (STEP_TOP - 2));
    assert_true(worst < worst_bound && sum / count < mean_bound);
}

static void cpu_sequence(const struct toy *t, enum activation_format act, const uint32_t *ids,
                         uint32_t n, struct output *out) {
    struct bits_rig c;
    uint8_t seen[N];
    bits_open(&c, &t->plan, n + 8, CPU_ISA_SCALAR, 1, act, KV_F16);
    bits_sequence(&c, &whole, ids, n, out, seen);
    bits_close(&c);
}

/* Every kernel that the graphs launch is one that bake would have put into a pack. */
static void kernels_are_in_the_set(struct cuda_rig *r, enum activation_format act) {
    const struct kernel_device chip = cuda_kernel_device(&r->gpu.device);
    const struct kernel_set_options options = {.activation_bits = act == ACTIVATION_INT8 ? 8 : 16,
                                               .max_rows = KERNEL_SET_MAX_ROWS};
    struct kernel_set set;
    struct error e = {0};
    assert_int_equal(kernel_set_build(r->bits.plan, &chip, &options, &set, &e), STATUS_OK);
    uint64_t hash;
    uint32_t n = 0;
    for (; cuda_backend_kernel(r->bits.backend, n, &hash); n++) {
        bool found = false;
        for (uint32_t i = 0; i < set.n_uses; i++)
            found |= kernel_hash(&set.uses[i].spec, &set.uses[i].config, &chip) == hash;
        if (!found) fail_msg("kernel %u of the backend is not in the set", n);
    }
    assert_true(n > 10);
    kernel_set_free(&set);
}

/* Fewer buckets where only the chip and the schedule are another: every kernel takes a compiler. */
static const struct place {
    const char *device;
    uint32_t n_sms, seed, max_rows;
} places[] = {{"A100", 2, 0, ROWS}, {"RTX5090", 3, 1, 6}, {"A100", 2, 7, ROWS}};

/* All scenarios on the first device, some on the others. */
static void every_cut(enum toy_kind kind, enum activation_format act, double worst, double mean) {
    static const struct bits_scenario scenarios[] = {
        {.name = "token by token", .chunk = 1, .only_last = true},
        {.name = "chunks of 3, with 3 others", .chunk = 3, .others = 3},
        {.name = "chunks of 9, last rows", .chunk = 9, .only_last = true},
        {.name = "chunks of 16, rewritten", .chunk = 16, .rewrite = true},
        {.name = "forked at 37, with others", .chunk = 5, .fork_at = 37, .others = 3},
        {.name = "others of another profile", .chunk = 6, .others = 3, .other_profile = true},
    };
    const unsigned n_scenarios = sizeof scenarios / sizeof *scenarios;
    const unsigned n_places = kind == TOY_LLAMA ? 3 : 1;
    struct toy *t = toy_new(kind);
    uint32_t ids[N];
    struct output want[N], cpu[N];
    uint8_t seen[N];
    ids_new(t, ids, N);
    cpu_sequence(t, act, ids, N, cpu);
    for (unsigned d = 0; d < n_places; d++) {
        struct cuda_rig r;
        struct cuda_rig_options o = small;
        o.device = places[d].device;
        o.n_sms = places[d].n_sms;
        o.seed = places[d].seed;
        o.max_rows = places[d].max_rows;
        o.activations = act;
        cuda_rig_open(&r, &t->plan, &o);
        if (d == 0) {
            bits_sequence(&r.bits, &whole, ids, N, want, seen);
            compare_numbers(kind == TOY_LLAMA ? "llama" : "gemma", want, cpu, N, worst, mean);
        }
        for (unsigned i = 0; i < n_scenarios; i++)
            if (d == 0 || (d == 1 && scenarios[i].chunk + scenarios[i].others <= 6) ||
                (d == 2 && i % 2 == 0))
                bits_compare(&r.bits, &scenarios[i], o.device, ids, N, want);
        if (d == 0) kernels_are_in_the_set(&r, act);
        cuda_rig_close(&r);
    }
    toy_free(t);
}

static void llama_has_the_same_bits(void **state) {
    (void)state;
    if (cuda_rig_possible()) every_cut(TOY_LLAMA, ACTIVATION_INT16, 1e-3, 1e-4);
}

static void gemma_has_the_same_bits(void **state) {
    (void)state;
    if (cuda_rig_possible()) every_cut(TOY_GEMMA, ACTIVATION_INT8, 0.02, 2e-3);
}

/* More than one key block: tiles that walk, blocks that merge, windows that have left a block. */
static void long_context(enum toy_kind kind, const char *device, uint32_t max_rows,
                         enum activation_format act, double worst, double mean) {
    enum { LONG = 300, TAIL = 12, START = LONG - TAIL };
    const struct bits_scenario prompt = {.name = "prompt", .chunk = max_rows, .only_last = true};
    static const uint32_t cuts[] = {1, 4, 12};
    struct toy *t = toy_new(kind);
    struct cuda_rig r;
    struct cuda_rig_options o = small;
    uint32_t ids[LONG];
    uint8_t seen[LONG];
    static struct output out[LONG];
    struct output want[TAIL], cpu[TAIL];
    ids_new(t, ids, LONG);
    struct bits_rig c;
    bits_open(&c, &t->plan, LONG + 8, CPU_ISA_SCALAR, 1, act, KV_F16);
    bits_sequence(&c, &(struct bits_scenario){.name = "cpu", .chunk = 100}, ids, LONG, out, seen);
    memcpy(cpu, out + START, sizeof cpu);
    bits_close(&c);
    o.device = device;
    o.n_ctx = LONG + 8;
    o.max_rows = max_rows;
    o.activations = act;
    cuda_rig_open(&r, &t->plan, &o);
    bits_sequence(&r.bits, &prompt, ids, LONG, out, seen);
    for (unsigned i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        for (uint32_t at = START; at < LONG; at += cuts[i]) {
            bits_begin(&r.bits);
            struct span *s = bits_span(&r.bits, 0, at, ids + at, cuts[i]);
            s->kind = cuts[i] > 1 ? SPAN_VERIFY : SPAN_DECODE;
            for (uint32_t j = 0; j < cuts[i]; j++) step_add_output(r.bits.step, j);
            bits_run(&r.bits);
            for (uint32_t j = 0; j < cuts[i]; j++) {
                struct output *got = &r.bits.step->outputs[j], *w = &want[at - START + j];
                if (i == 0) *w = *got;
                if (!bits_equal(got, w)) fail_msg("cut of %u: position %u", cuts[i], at + j);
            }
        }
    }
    compare_numbers(device, want, cpu, TAIL, worst, mean);
    cuda_rig_close(&r);
    toy_free(t);
}

static void many_key_blocks_have_the_same_bits(void **state) {
    (void)state;
    if (!cuda_rig_possible()) return;
    long_context(TOY_LLAMA, "H100", 12, ACTIVATION_INT16, 1e-3, 2e-4);
    long_context(TOY_GEMMA, "A100", ROWS, ACTIVATION_INT8, 0.03, 3e-3);
}

/* Every choice that slot 0 made, in every layer and KV head, is the CPU's. */
static void compare_choices(struct cuda_rig *r, struct bits_rig *c, const struct gate_policy *gate,
                            uint32_t n) {
    struct cuda_backend *g = (struct cuda_backend *)r->bits.backend;
    struct cpu_backend *b = (struct cpu_backend *)c->backend;
    uint32_t n_chosen = 0;
    for (uint32_t p = gate->first_position; p < n; p++) {
        if (gate_choice_position(gate, p) != p) continue;
        const uint32_t entry = p / STEP_GATE_REFRESH % GATE_RING;
        const uint32_t recent = gate_recent_page(gate, p);
        assert_int_equal(g->gate_of.entries[entry].at, p + 1);
        assert_int_equal(g->gate_of.entries[entry].recent_page, recent);
        for (uint32_t layer = gate->dense_layers; layer < r->bits.plan->n_layers; layer++)
            for (uint32_t h = 0; h < r->bits.plan->layers[layer].n_kv_heads; h++) {
                uint16_t mask[64];
                const uint64_t from =
                    g->layers[layer].masks +
                    ((uint64_t)entry * g->gate_of.mask_entry + h * g->gate_of.mask_stride) *
                        sizeof *mask;
                assert_int_equal(g->cuda.memcpy_dtoh_async(
                                     mask, from, g->gate_of.mask_stride * sizeof *mask, g->stream),
                                 CUDA_SUCCESS);
                assert_int_equal(g->cuda.stream_synchronize(g->stream), CUDA_SUCCESS);
                b->layer = &b->layers[layer];
                const uint64_t *want = gate_chosen(b, 0, p) + h * b->gate_words;
                for (uint32_t page = 0; page < recent; page++) {
                    const bool chosen = mask[page / 16] >> page % 16 & 1;
                    if (chosen != (want[page / 64] >> page % 64 & 1))
                        fail_msg("choice at %u, layer %u, head %u: page %u", p, layer, h, page);
                    n_chosen += chosen;
                }
            }
    }
    assert_true(n_chosen > 100);
}

/* Page choices: the CPU's numbers and the CPU's pages, the same bits however the sequence was cut,
 * forked or rewritten.
 */
static void page_choices_have_the_same_bits(void **state) {
    (void)state;
    enum { LONG = 112 };
    static const struct gate_policy narrow = {.first_position = 44,
                                              .sink_pages = 1,
                                              .recent_pages = 1,
                                              .budget_pages = 1,
                                              .dense_layers = 1};
    static const struct bits_scenario scenarios[] = {
        {.name = "token by token", .chunk = 1, .only_last = true},
        {.name = "chunks of 3, with 3 others", .chunk = 3, .others = 3},
        {.name = "chunks of 16, rewritten", .chunk = 16, .rewrite = true, .only_last = true},
        {.name = "forked at 69", .chunk = 9, .fork_at = 69, .only_last = true},
    };
    if (!cuda_rig_possible()) return;
    struct toy *t = toy_new(TOY_LLAMA);
    uint32_t ids[LONG];
    uint8_t seen[LONG];
    static struct output want[LONG], cpu[LONG], dense[LONG];
    ids_new(t, ids, LONG);
    struct bits_rig c;
    for (int gated = 0; gated < 2; gated++) {
        bits_open_gated(&c, &t->plan, LONG + 8, CPU_ISA_SCALAR, 1, ACTIVATION_INT16, KV_F16,
                        gated ? &narrow : NULL);
        bits_sequence(&c, &whole, ids, LONG, gated ? cpu : dense, seen);
        if (!gated) bits_close(&c);
    }
    struct cuda_rig r;
    struct cuda_rig_options o = small;
    o.n_ctx = LONG + 8;
    o.gate = &narrow;
    cuda_rig_open(&r, &t->plan, &o);
    bits_sequence(&r.bits, &whole, ids, LONG, want, seen);
    compare_numbers("page choices", want, cpu, LONG, 1e-3, 1e-4);
    compare_choices(&r, &c, &narrow, LONG);
    bits_close(&c);
    uint32_t other = 0;
    for (uint32_t p = 0; p < LONG; p++)
        other += fabsf(cpu[p].lse - dense[p].lse) > 1e-3f * fabsf(dense[p].lse);
    assert_true(other > 10); /* the choice matters */
    for (unsigned i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        bits_compare(&r.bits, &scenarios[i], "gated", ids, LONG, want);
    struct cuda_backend_info info;
    cuda_backend_info(r.bits.backend, &info);
    assert_int_equal(info.budget.n_lines, 4);
    kernels_are_in_the_set(&r, ACTIVATION_INT16);
    cuda_rig_close(&r);
    toy_free(t);
}

/* Taps, sampling, profiles; then what is refused, on one backend. */

static void taps_hand_back_states(struct cuda_rig *r, const struct toy *t) {
    enum { ROWS_OF_TAP = 21 };
    const uint32_t d = t->plan.d_model, n_layers = t->plan.n_layers;
    uint32_t ids[ROWS_OF_TAP];
    float keep[2][ROWS_OF_TAP * 64], last[2][64], unit[2][64], sums[2][2 * 64] = {{0}};
    float parts[2 * 64] = {0};
    ids_new(t, ids, ROWS_OF_TAP);
    struct bits_rig c, *both[2] = {&r->bits, &c};
    bits_open(&c, &t->plan, 64, CPU_ISA_SCALAR, 1, ACTIVATION_INT16, KV_F16);
    for (int k = 0; k < 2; k++) {
        bits_begin(both[k]);
        bits_span(both[k], 0, 0, ids, ROWS_OF_TAP);
        both[k]->step->n_taps = 4;
        both[k]->step->taps[0] = (struct tap){1, 0, ROWS_OF_TAP, TAP_KEEP, false, keep[k]};
        both[k]->step->taps[1] = (struct tap){1, 1, ROWS_OF_TAP - 1, TAP_SUM, false, sums[k]};
        both[k]->step->taps[2] =
            (struct tap){n_layers, ROWS_OF_TAP - 1, 1, TAP_KEEP, false, last[k]};
        both[k]->step->taps[3] = (struct tap){1, 3, 1, TAP_KEEP, true, unit[k]};
        step_add_output(both[k]->step, ROWS_OF_TAP - 1);
        bits_run(both[k]);
    }
    bits_close(&c);
    for (uint32_t i = 0; i < ROWS_OF_TAP * d; i++)
        assert_true(fabsf(keep[0][i] - keep[1][i]) < 2e-3f);
    for (uint32_t i = 0; i < d; i++) {
        assert_true(fabsf(last[0][i] - last[1][i]) < 2e-3f);
        assert_true(fabsf(unit[0][i] - unit[1][i]) < 2e-3f);
        assert_true(fabsf(sums[0][i] - sums[1][i]) < 2e-2f);
    }
    /* Row by row: the same states, and a page's sum does not depend on how its rows came. */
    for (uint32_t i = 0; i < ROWS_OF_TAP; i++) {
        float row[64];
        bits_begin(&r->bits);
        bits_span(&r->bits, 1, i, ids + i, 1);
        r->bits.step->n_taps = i == 0 ? 1 : 2;
        r->bits.step->taps[0] = (struct tap){1, 0, 1, TAP_KEEP, false, row};
        r->bits.step->taps[1] =
            (struct tap){1, 0, 1, TAP_SUM, false, parts + i / KV_PAGE_TOKENS * d};
        bits_run(&r->bits);
        assert_memory_equal(row, keep[0] + i * d, d * sizeof *row);
    }
    assert_memory_equal(parts, sums[0], sizeof parts);
}

static void a_skipped_layer_is_the_identity(struct cuda_rig *r, const struct toy *t) {
    const uint32_t ids[3] = {5, 6, 7}, d = t->plan.d_model;
    float before[3 * 64], after[3 * 64];
    bits_begin(&r->bits);
    r->bits.step->profiles[1].layers[0] = 1; /* only layer 0 */
    bits_span(&r->bits, 0, 0, ids, 3)->profile = 1;
    r->bits.step->n_taps = 2;
    r->bits.step->taps[0] = (struct tap){0, 0, 3, TAP_KEEP, false, before};
    r->bits.step->taps[1] = (struct tap){2, 0, 3, TAP_KEEP, false, after};
    step_add_output(r->bits.step, 2);
    bits_run(&r->bits);
    assert_memory_equal(before, after, 3 * d * sizeof *before);
    assert_int_equal(r->bits.step->outputs[0].layer, 1);
    assert_int_equal(r->bits.step->next_layers[2], t->plan.n_layers);
}

static void sampling_is_as_asked(struct cuda_rig *r, const struct toy *t) {
    const uint32_t ids[2] = {9, 8}, n_vocab = t->plan.n_vocab;
    uint64_t allowed[6] = {0};
    allowed[200 / 64] |= UINT64_C(1) << 200 % 64;
    allowed[0] = 1 << 3;
    bits_begin(&r->bits);
    bits_span(&r->bits, 0, 0, ids, 2);
    struct output *o[6];
    for (int i = 0; i < 6; i++) o[i] = step_add_output(r->bits.step, 1);
    const struct sample_bias up[2] = {{17, 1, 0}, {330, 2, 1e4f}};
    o[1]->sample.allowed = allowed;
    o[2]->sample.biases = up;
    o[2]->sample.n_biases = 2;
    o[3]->sample.target = 17;
    o[4]->sample.temperature = 0.7f;
    o[4]->sample.top_k = 1;
    o[5]->sample.biases = up;
    o[5]->sample.n_biases = 2;
    o[5]->sample.allowed = allowed;
    bits_run(&r->bits);
    const struct output *a = r->bits.step->outputs;
    assert_int_equal(a[0].token, a[0].top[0].id);
    assert_true(a[1].token == 3 || a[1].token == 200);
    assert_int_equal(a[2].token, 330);
    assert_int_equal(a[3].token, 17);
    assert_int_equal(a[4].token, a[0].token);
    assert_int_equal(a[5].token, a[1].token);
    for (int i = 1; i < 6; i++) {
        assert_memory_equal(a[i].top, a[0].top, sizeof a[0].top);
        assert_true(a[i].lse == a[0].lse && a[i].entropy == a[0].entropy);
    }
    assert_true(n_vocab > 330 && a[0].logprob == a[0].top[0].logit - a[0].lse);
}

static void later_features_are_refused(struct cuda_rig *r) {
    r->log.level = LOG_OFF;
    const uint32_t id = 1;
    struct sample_bias many[8] = {{0}};
    for (int which = 0; which < 6; which++) {
        bits_begin(&r->bits);
        struct span *s = bits_span(&r->bits, 0, 0, &id, 1);
        struct output *o = step_add_output(r->bits.step, 0);
        if (which == 0) s->exit = 0;
        if (which == 1) s->gate = 0;
        if (which == 2) r->bits.step->first_layers[0] = 1;
        if (which == 3) r->bits.step->epoch = 1;
        if (which == 4) o->head = 0;
        if (which == 5) {
            o->sample.biases = many;
            o->sample.n_biases = UINT32_MAX;
        }
        const enum status want = which == 5 ? STATUS_FULL : STATUS_UNSUPPORTED;
        assert_int_equal(backend_submit(r->bits.backend, r->bits.step), want);
        assert_null(backend_poll(r->bits.backend));
    }
}

static void one_backend_does_it_all(void **state) {
    (void)state;
    if (!cuda_rig_possible()) return;
    struct toy *t = toy_new(TOY_LLAMA);
    struct cuda_rig r;
    cuda_rig_open(&r, &t->plan, &small);
    taps_hand_back_states(&r, t);
    a_skipped_layer_is_the_identity(&r, t);
    sampling_is_as_asked(&r, t);
    later_features_are_refused(&r);
    struct cuda_backend_info info;
    cuda_backend_info(r.bits.backend, &info);
    if (!softgpu_on_hardware()) {
        assert_int_equal(info.cc, 80);
        assert_int_equal(info.n_sms, small.n_sms);
    }
    assert_int_equal(info.budget.n_lines, 3);
    assert_true(info.n_kernels > 10 && info.n_graphs >= 8 && info.pinned_bytes > 0);
    /* This toy rotates 12 dimensions and its groups of heads fill no block of 32: two kernels more
     * than a plain layer's four. */
    assert_int_equal(info.decode_layer_kernels, 6);
    assert_int_equal(info.prefill_layer_kernels, 7);
    cuda_rig_close(&r);
    toy_free(t);
}

/* Rows enough for the feed-forward that also norms for the next layer. Rows that leave out a layer
 * get that norm all the same: the same bits as alone. */
static void a_skip_among_many_rows(void **state) {
    (void)state;
    if (!cuda_rig_possible()) return;
    enum { OTHERS = 38 };
    static const struct cuda_rig_options many_rows = {
        .device = "A100", .n_sms = 2, .n_ctx = 64, .max_rows = 64, .max_spans = 8};
    struct toy *t = toy_new(TOY_LLAMA);
    struct cuda_rig r;
    struct output alone[2] = {0};
    uint32_t ids[OTHERS];
    for (uint32_t i = 0; i < OTHERS; i++) ids[i] = 3 + i * 5 % 300;
    cuda_rig_open(&r, &t->plan, &many_rows);
    for (int many = 0; many < 2; many++) {
        for (int skip = 0; skip < 2; skip++) {
            bits_begin(&r.bits);
            if (skip) r.bits.step->profiles[1].layers[0] = 5; /* without layer 1 */
            if (many) bits_span(&r.bits, 2, 0, ids, OTHERS);
            struct span *s = bits_span(&r.bits, (uint32_t)skip, 0, ids, 3);
            s->profile = skip ? 1 : 0;
            struct output *o = step_add_output(r.bits.step, s->first_row + 2);
            bits_run(&r.bits);
            assert_int_equal(o->layer, skip ? 2 : 3);
            if (!many) alone[skip] = *o;
            assert_memory_equal(alone[skip].top, o->top, sizeof o->top);
            assert_true(alone[skip].lse == o->lse);
        }
    }
    assert_true(alone[0].lse != alone[1].lse);
    cuda_rig_close(&r);
    toy_free(t);
}

static void numbers_that_are_none_are_marked(void **state) {
    (void)state;
    if (!cuda_rig_possible()) return;
    struct toy *t = toy_new(TOY_LLAMA);
    ((float *)t->blocks[t->plan.layers[1].ffn_norm - t->tensors])[3] = NAN;
    const uint32_t ids[2] = {1, 2};
    struct cuda_rig r;
    cuda_rig_open(&r, &t->plan, &small);
    bits_begin(&r.bits);
    bits_span(&r.bits, 0, 0, ids, 2);
    step_add_output(r.bits.step, 1);
    bits_run(&r.bits);
    assert_true(r.bits.step->outputs[0].bad);
    cuda_rig_close(&r);
    toy_free(t);
}

/* The step says so, and nothing is accepted from then on. */
static void a_lost_device_is_refused(void **state) {
    (void)state;
    if (softgpu_on_hardware()) skip();
    if (!cuda_rig_possible()) return;
    struct toy *t = toy_new(TOY_LLAMA);
    const uint32_t id = 1;
    struct cuda_rig r;
    cuda_rig_open(&r, &t->plan, &small);
    r.log.level = LOG_OFF;
    assert_int_equal(r.gpu.faults("lost=4"), 1);
    for (int i = 0; i < 2; i++) {
        bits_begin(&r.bits);
        bits_span(&r.bits, 0, 0, &id, 1);
        step_add_output(r.bits.step, 0);
        const enum status s = backend_submit(r.bits.backend, r.bits.step);
        if (i == 0) {
            assert_int_equal(s, STATUS_OK);
            assert_ptr_equal(backend_poll(r.bits.backend), r.bits.step);
        } else {
            assert_int_equal(s, STATUS_DEVICE);
            assert_null(backend_poll(r.bits.backend));
        }
        assert_int_equal(r.bits.step->status, STATUS_DEVICE);
    }
    r.bits.backend->ops->destroy(r.bits.backend);
    r.bits.backend = NULL;
    r.gpu.findings_clear();
    cuda_rig_close(&r);
    toy_free(t);
}

/* Without graphs every kernel is launched on its own, inside a range with its work; the bits are
 * the graphs'. */
static void every_kernel_is_a_range(void **state) {
    (void)state;
    if (!cuda_rig_possible()) return;
    struct toy *t = toy_new(TOY_LLAMA);
    struct tool_log *log = nvtx_tool(TOOL_STRUCTURES);
    const uint32_t id = 1;
    struct output with_graphs = {0};
    for (int graphs = 1; graphs >= 0; graphs--) {
        struct cuda_rig r;
        struct cuda_rig_options o = small;
        o.max_rows = 1;
        o.max_spans = 1;
        o.no_graphs = !graphs;
        o.nvtx = graphs ? NULL : nvtx_tool_path();
        cuda_rig_open(&r, &t->plan, &o);
        log->n = 0;
        bits_begin(&r.bits);
        bits_span(&r.bits, 0, 0, &id, 1);
        step_add_output(r.bits.step, 0);
        bits_run(&r.bits);
        if (graphs) with_graphs = r.bits.step->outputs[0];
        assert_true(bits_equal(&with_graphs, &r.bits.step->outputs[0]));
        struct cuda_backend_info info;
        cuda_backend_info(r.bits.backend, &info);
        assert_int_equal(info.n_graphs > 0, graphs);
        cuda_rig_close(&r);
    }
    /* The step, copies and layers around kernels; every one has its bytes, and products their
     * operations; a range's work is that of those inside it. */
    uint32_t depth = 0, kernels = 0, layers = 0;
    uint64_t inside = 0;
    assert_true(log->n > 20 && log->n < TOOL_LOG);
    for (int i = 0; i < log->n; i++) {
        const struct tool_event *e = &log->events[i];
        if (!e->push) {
            depth--;
            continue;
        }
        assert_true(e->structured && e->bytes > 0);
        if (i == 0) assert_string_equal(e->name, "decode");
        if (i > 0) assert_true(depth >= 1);
        if (strncmp(e->name, "layer ", 6) == 0) {
            layers++;
            inside = e->bytes;
        }
        if (strncmp(e->name, "lac_", 4) == 0) {
            kernels++;
            if (depth == 2 && inside > 0) assert_true(e->bytes <= inside);
            if (strstr(e->name, "matmul") != NULL) assert_true(e->flops > 0);
        }
        depth++;
    }
    assert_int_equal(depth, 0);
    assert_int_equal(layers, t->plan.n_layers);
    /* Embedding; q k v, attention, o, feed-forward of each layer; norm, head, sampler. */
    assert_true(kernels >= 4 + 4 * t->plan.n_layers && kernels <= 4 + 8 * t->plan.n_layers);
    toy_free(t);
}

/* The descriptor becomes readable when the results are there, and nobody had to wait for them. */
static void the_end_of_a_step_is_signalled(void **state) {
    (void)state;
    if (!cuda_rig_possible()) return;
    struct toy *t = toy_new(TOY_LLAMA);
    const uint32_t id = 1;
    struct cuda_rig r;
    struct cuda_rig_options o = small;
    o.event_fd = eventfd(0, EFD_NONBLOCK);
    cuda_rig_open(&r, &t->plan, &o);
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t n = 0;
        struct pollfd p = {.fd = o.event_fd, .events = POLLIN};
        bits_begin(&r.bits);
        bits_span(&r.bits, 0, i, &id, 1);
        step_add_output(r.bits.step, 0);
        assert_null(backend_poll(r.bits.backend));
        assert_int_equal(backend_submit(r.bits.backend, r.bits.step), STATUS_OK);
        if (i == 2) { /* drained, it is there without a signal having been seen */
            r.bits.backend->ops->drain(r.bits.backend);
            assert_ptr_equal(backend_poll(r.bits.backend), r.bits.step);
            break;
        }
        assert_int_equal(poll(&p, 1, 20000), 1);
        assert_int_equal(read(o.event_fd, &n, sizeof n), sizeof n);
        assert_int_equal(n, 1);
        assert_ptr_equal(backend_poll(r.bits.backend), r.bits.step);
        assert_int_equal(r.bits.step->status, STATUS_OK);
        assert_true(r.bits.step->done_ns >= r.bits.step->submit_ns);
        assert_null(backend_poll(r.bits.backend));
    }
    cuda_rig_close(&r);
    close(o.event_fd);
    toy_free(t);
}

static void opening_says_what_is_missing(void **state) {
    (void)state;
    if (softgpu_on_hardware()) skip();
    for (int which = 0; which < 6; which++) {
        struct toy *t = toy_new(which == 0 ? TOY_MIXTURE : TOY_LLAMA);
        struct cuda_rig r;
        struct backend_config cfg;
        struct error e = {0};
        cuda_rig_prepare(&r, &t->plan, &small, &cfg);
        struct cuda_backend_options o = cuda_rig_backend(&r);
        enum status want = STATUS_UNSUPPORTED;
        if (which == 1) cfg.activations = ACTIVATION_F32;
        if (which == 2) cfg.kv = KV_Q8;
        if (which == 3) o.driver = "no-such-library.so.1";
        if (which == 4) o.cache_dir = NULL, o.may_compile = false;
        if (which >= 3) want = STATUS_NOT_FOUND;
        if (which == 5) {
            assert_int_equal(r.gpu.faults("memory=4194304"), 1);
            want = STATUS_NO_MEMORY;
            if (!cuda_rig_possible()) want = STATUS_NOT_FOUND;
        }
        if (which < 4) assert_int_equal(cuda_backend_probe(&cfg, &o, &e), want);
        assert_int_equal(cuda_backend_open(&cfg, &o, &r.bits.backend, &e), want);
        assert_null(r.bits.backend);
        assert_true(e.message[0] != '\0');
        print_message("%s\n", e.message);
        cuda_rig_close(&r);
        toy_free(t);
    }
}

/* As many pages as the device holds, and no more than asked; the plan is what opening then takes.
 */
static void a_plan_fits_the_device(void **state) {
    (void)state;
    struct toy *t = toy_new(TOY_LLAMA);
    struct cuda_rig r;
    struct backend_config cfg;
    struct cuda_backend_plan p, all;
    struct error e = {0};
    cuda_rig_prepare(&r, &t->plan, &small, &cfg);
    const struct cuda_backend_options o = cuda_rig_backend(&r);
    assert_int_equal(cuda_backend_plan(&cfg, &o, 0, 777, &p, &e), STATUS_OK);
    assert_int_equal(p.n_pages, 777);
    assert_int_equal(cuda_backend_plan(&cfg, &o, 5, 777, &p, &e), STATUS_OK);
    assert_int_equal(p.n_pages, 5);
    assert_int_equal(p.budget.n_lines, 3);
    assert_true(p.n_graphs > 0 && p.pinned_bytes > 0);
    for (int gates = 0; gates < 2; gates++) {
        cfg.gates = gates;
        assert_int_equal(cuda_backend_plan(&cfg, &o, 0, UINT32_MAX, &all, &e), STATUS_OK);
        assert_true(all.budget.total_bytes <= all.limit.limit_bytes);
        /* A further 1 % would not fit. */
        assert_int_equal(cuda_backend_plan(&cfg, &o, all.n_pages + all.n_pages / 100, 0, &p, &e),
                         STATUS_OK);
        assert_true(p.budget.total_bytes > p.limit.limit_bytes);
    }
    cuda_rig_close(&r);
    toy_free(t);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_says_what_is_missing),
        cmocka_unit_test(a_plan_fits_the_device),
        cmocka_unit_test(one_backend_does_it_all),
        cmocka_unit_test(a_skip_among_many_rows),
        cmocka_unit_test(llama_has_the_same_bits),
        cmocka_unit_test(gemma_has_the_same_bits),
        cmocka_unit_test(many_key_blocks_have_the_same_bits),
        cmocka_unit_test(page_choices_have_the_same_bits),
        cmocka_unit_test(numbers_that_are_none_are_marked),
        cmocka_unit_test(a_lost_device_is_refused),
        cmocka_unit_test(the_end_of_a_step_is_signalled),
        cmocka_unit_test(every_kernel_is_a_range),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
