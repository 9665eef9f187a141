/* Learnt blocks on the CPU backend: guesses equal to what the training library's forward pass gives
 * (an oracle of its own kernels, in FP32), the same bits on every instruction set and however the
 * tokens were cut, and outputs that do not know of them. Hostile side-cars are refused. */
#include "tests/core/backend_bits.h"

#include <unistd.h>

#include "models/block_plan.h"
#include "models/shortlist.h"
#include "tests/core/toy_model.h"

enum { N = 48, N_IDS = 120, LEN = 40, AHEAD = STEP_GUESSES };

struct world {
    struct toy *toy;
    struct plan plan; /* with both blocks */
    struct sidecar *side_car;
    struct block_plan_memory memory;
    char path[64];
    uint32_t list[N_IDS], ids[N];
};

static float *random_weights(struct toy *t, const struct train_shape *s) {
    float *w = malloc(train_tensor_offset(s, TRAIN_TENSORS) * sizeof *w);
    assert_non_null(w);
    for (int i = 0; i < TRAIN_TENSORS; i++) {
        uint32_t rows, columns;
        train_tensor_shape(s, (enum train_tensor)i, &rows, &columns);
        float *to = w + train_tensor_offset(s, (enum train_tensor)i);
        const double size = rows > 1 ? 2 / sqrt(columns) : 0.3, centre = rows > 1 ? 0 : 1;
        for (size_t k = 0; k < (size_t)rows * columns; k++)
            to[k] = (float)(centre + size * (2 * uniform(&t->counter) - 1));
    }
    return w;
}

static struct toy *plain_toy(void) {
    struct toy *t = toy_new(TOY_LLAMA);
    for (uint32_t i = 0; i < t->plan.n_layers; i++) {
        struct layer_plan *l = &t->layers[i];
        l->q_bias = l->k_bias = l->v_bias = l->o_bias = NULL;
    }
    return t;
}

static void make_section(struct toy *t, uint32_t inputs, uint32_t after, uint32_t like,
                         struct sidecar_section *out) {
    struct error e = {0};
    struct train_shape shape;
    assert_int_equal(learned_block_shape(&t->plan, like, inputs, &shape, &e), STATUS_OK);
    float *w = random_weights(t, &shape);
    void *bytes;
    assert_int_equal(learned_block_write(&shape, w, after, like, 0.5f, &bytes, &out->bytes, &e),
                     STATUS_OK);
    out->data = bytes;
    free(w);
}

/* Sections: draft block, exit block, shortlist. */
static void make_sections(struct world *w, struct sidecar_section s[3]) {
    struct error e = {0};
    void *bytes;
    for (uint32_t i = 0; i < N_IDS; i++) w->list[i] = 2 * i + (i > 60);
    memset(s, 0, 3 * sizeof *s);
    make_section(w->toy, 2, 3, 2, &s[0]);
    make_section(w->toy, 1, 1, 1, &s[1]);
    assert_int_equal(
        shortlist_write(w->list, N_IDS, w->toy->plan.n_vocab, 0, &bytes, &s[2].bytes, &e),
        STATUS_OK);
    s[2].data = bytes;
    s[0].kind = SIDECAR_DRAFT_BLOCK;
    s[1].kind = SIDECAR_EXIT_BLOCKS;
    s[2].kind = SIDECAR_SHORTLIST;
    for (int i = 0; i < 3; i++) {
        s[i].version = 1;
        strcpy(s[i].key, "toy");
    }
}

static void free_sections(struct sidecar_section s[3]) {
    for (int i = 0; i < 3; i++) free((void *)(uintptr_t)s[i].data);
}

static void open_world(struct world *w) {
    memset(w, 0, sizeof *w);
    w->toy = plain_toy();
    struct sidecar_section s[3];
    make_sections(w, s);
    snprintf(w->path, sizeof w->path, "/tmp/lac-blocks-%d.lacs", (int)getpid());
    const uint64_t model[2] = {1, 2};
    struct error e = {0};
    assert_int_equal(sidecar_write(w->path, model, s, 3, &e), STATUS_OK);
    free_sections(s);
    assert_int_equal(sidecar_open(w->path, model, &w->side_car, &e), STATUS_OK);
    w->plan = w->toy->plan;
    if (block_plan_add(&w->plan, w->side_car, 3, &w->memory, &e) != STATUS_OK)
        fail_msg("%s", e.message);
    assert_int_equal(w->plan.n_groups, w->toy->plan.n_groups + 1);
    assert_int_equal(w->plan.groups[w->plan.n_groups - 1].n_layers, 2);
    ids_new(w->toy, w->ids, N);
}

static void close_world(struct world *w) {
    sidecar_close(w->side_car);
    block_plan_free(&w->memory);
    unlink(w->path);
    toy_free(w->toy);
}

/* ---- one run of a sequence ---- */

static void rig_open(struct bits_rig *r, const struct plan *p, enum cpu_isa isa, uint32_t threads,
                     bool exact) {
    bits_open(r, p, N + LEN, isa, threads, exact ? ACTIVATION_F32 : ACTIVATION_INT16,
              exact ? KV_F32 : KV_F16);
}

static struct span *add(struct bits_rig *r, uint32_t seq, uint32_t at, const uint32_t *ids,
                        uint32_t n, uint32_t ahead) {
    struct span *s = step_add_span(r->step, n > 1 ? SPAN_VERIFY : SPAN_DECODE, seq, at, ids, n);
    s->n_pages = (at + n + ahead + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    for (uint32_t g = 0; g < r->plan->n_groups; g++) {
        s->block_table[g] = r->step->n_pages;
        for (uint32_t p = 0; p < s->n_pages; p++) {
            uint32_t *page = &r->table[seq][g][p];
            if (*page == PAGE_NONE) *page = bits_take(r, g);
            r->step->pages[r->step->n_pages++] = *page;
        }
    }
    return s;
}

static struct output *draw(struct bits_rig *r, uint32_t row) {
    struct output *o = step_add_output(r->step, row);
    o->sample.temperature = 0.8f;
    o->sample.seed = 7;
    return o;
}

struct chain {
    uint32_t token; /* drawn behind the ids */
    uint32_t n;
    struct guess guesses[STEP_GUESSES];
};

/* ids[0 .. LEN) in chunks; before the last token rows that turn out wrong, with a chain behind
 * them; then the last token, whose chain is the answer. `others` sequences decode and guess beside.
 */
static void run(struct bits_rig *r, const struct world *w, enum block_kind kind, uint32_t chunk,
                uint32_t block_from, bool wrong, uint32_t others, struct chain *out) {
    for (uint32_t at = 0, n; at + 1 < LEN; at += n) {
        n = LEN - 1 - at < chunk ? LEN - 1 - at : chunk;
        bits_begin(r);
        struct span *s = add(r, 0, at, w->ids + at, n, 0);
        s->next_id = w->ids[at + n];
        s->block_from = at + n <= block_from ? n : at < block_from ? block_from - at : 0;
        bits_run(r);
    }
    if (wrong) {
        uint32_t ids[4] = {w->ids[LEN - 1], 3, 5, 8};
        bits_begin(r);
        struct span *s = add(r, 0, LEN - 1, ids, 4, AHEAD);
        s->block = kind;
        s->max_guesses = AHEAD;
        for (uint32_t i = 0; i < 4; i++) draw(r, i);
        bits_run(r);
        assert_true(s->n_guesses > 0);
    }
    bits_begin(r);
    for (uint32_t o = 0; o < others; o++) {
        const uint32_t id = o * 17 % w->plan.n_vocab;
        struct span *s = add(r, 1 + o, 0, &id, 1, AHEAD);
        s->block = o % 3 == 0 ? BLOCK_EXIT : BLOCK_DRAFT;
        s->max_guesses = o % (AHEAD + 1);
        s->least_reach = 0.001f * (float)o;
        draw(r, s->first_row);
    }
    struct span *s = add(r, 0, LEN - 1, w->ids + LEN - 1, 1, AHEAD);
    s->block = kind;
    s->max_guesses = AHEAD;
    const struct output *o = draw(r, s->first_row);
    bits_run(r);
    out->token = o->token;
    out->n = s->n_guesses;
    memcpy(out->guesses, r->step->guesses + s->first_guess, s->n_guesses * sizeof *out->guesses);
}

/* ---- the oracle ---- */

static void row_of(const struct weight *m, uint32_t row, uint32_t k, float *to) {
    const size_t bytes = tensor_row_bytes(tensor_format(m->t->type), k);
    tensor_dequantise(m->t->type, (const uint8_t *)m->t->data + (m->row0 + row) * bytes, to, k);
}

/* States of ids[0 .. n) behind `layer`, by the model without blocks. */
static void states_of(const struct world *w, const uint32_t *ids, uint32_t n, uint32_t layer,
                      float *out) {
    struct bits_rig r;
    rig_open(&r, &w->toy->plan, CPU_ISA_SCALAR, 1, true);
    bits_begin(&r);
    add(&r, 0, 0, ids, n, 0);
    r.step->taps[r.step->n_taps++] =
        (struct tap){.layer = layer, .n_rows = n, .mode = TAP_KEEP, .out = out};
    bits_run(&r);
    bits_close(&r);
}

/* The guess behind rows in[n], and the block's y of the last. */
static void reference(const struct world *w, enum block_kind kind, const float *in, uint32_t n,
                      float *head, double *logits, float *y) {
    const struct learned_block *b = &w->memory.blocks[kind];
    struct train_shape shape = b->shape;
    shape.n_shortlist = N_IDS;
    struct error e = {0};
    struct train_block *t;
    assert_int_equal(train_block_open(&shape, head, CPU_ISA_SCALAR, NULL, N + LEN, 1, &t, &e),
                     STATUS_OK);
    learned_block_weights(b, train_block_weights(t));
    uint32_t position[N + LEN];
    for (uint32_t i = 0; i < n; i++) position[i] = i;
    const uint32_t first[2] = {0, n};
    const struct train_target target = {.row = n - 1};
    const struct train_batch batch = {in, n, 1, first, position, &target, 1};
    struct train_loss loss = {0};
    train_block_run(t, &batch, 0, false, &loss);
    const uint32_t d = shape.d;
    memcpy(y, train_block_output(t) + (size_t)(n - 1) * d, d * sizeof *y);
    for (uint32_t i = 0; i < N_IDS; i++) {
        logits[i] = 0;
        for (uint32_t k = 0; k < d; k++) logits[i] += (double)head[i * d + k] * (double)y[k];
    }
    train_block_close(t);
}

static void follows_the_training_library(void **state) {
    (void)state;
    struct world w;
    open_world(&w);
    const uint32_t d = w.plan.d_model;
    static float in[(N + LEN) * 128], states[(N + LEN) * 64], head[N_IDS * 64], y[64];
    static double logits[N_IDS];
    for (uint32_t i = 0; i < N_IDS; i++) row_of(&w.plan.head, w.list[i], d, head + i * d);
    const struct weight embed = {w.plan.embed, 0, w.plan.n_vocab};
    for (int kind = 0; kind < BLOCK_KIND_COUNT; kind++) {
        struct bits_rig r;
        struct chain c;
        rig_open(&r, &w.plan, CPU_ISA_SCALAR, 1, true);
        run(&r, &w, (enum block_kind)kind, 7, 0, true, 0, &c);
        bits_close(&r);
        assert_int_equal(c.n, STEP_GUESSES);
        uint32_t ids[N + LEN];
        memcpy(ids, w.ids, LEN * sizeof *ids);
        ids[LEN] = c.token;
        for (uint32_t i = 0; i < c.n; i++) {
            const uint32_t n = kind == BLOCK_DRAFT ? LEN + i : LEN + 1 + i;
            if (kind == BLOCK_EXIT) {
                states_of(&w, ids, n, w.plan.blocks[kind].after_layer - 1, in);
            } else {
                if (i == 0) states_of(&w, ids, LEN, w.plan.n_layers, states);
                if (i > 0) memcpy(states + (n - 1) * d, y, d * sizeof *y);
                for (uint32_t k = 0; k < n; k++) {
                    memcpy(in + k * 2 * d, states + k * d, d * sizeof *in);
                    row_of(&embed, ids[k + 1], d, in + k * 2 * d + d);
                }
            }
            reference(&w, (enum block_kind)kind, in, n, head, logits, y);
            uint32_t best = 0, rank = 0;
            double sum = 0;
            for (uint32_t k = 0; k < N_IDS; k++) {
                if (logits[k] > logits[best]) best = k;
                if (w.list[k] == c.guesses[i].id) rank = k;
            }
            for (uint32_t k = 0; k < N_IDS; k++) sum += exp(logits[k] - logits[best]);
            assert_int_equal(w.list[rank], c.guesses[i].id);
            assert_true(logits[best] - logits[rank] < 1e-3);
            if (fabs(1 / sum - (double)c.guesses[i].probability) > 1e-3)
                fail_msg("kind %d, guess %u: %g, the library says %g", kind, i,
                         (double)c.guesses[i].probability, 1 / sum);
            ids[LEN + 1 + i] = c.guesses[i].id;
        }
    }
    close_world(&w);
}

static void has_the_same_bits(void **state) {
    (void)state;
    struct world w;
    open_world(&w);
    struct cpu_features f;
    cpu_features_detect(&f);
    for (int kind = 0; kind < BLOCK_KIND_COUNT; kind++) {
        struct chain want = {0};
        for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
            if (!cpu_isa_supported(&f, (enum cpu_isa)isa)) continue;
            for (uint32_t cut = 0; cut < 4; cut++) {
                static const uint32_t chunks[] = {LEN, 1, 5, 16}, others[] = {0, 3, 20, 1};
                struct bits_rig r;
                struct chain c = {0};
                rig_open(&r, &w.plan, (enum cpu_isa)isa, 1 + cut % 2, false);
                run(&r, &w, (enum block_kind)kind, chunks[cut], 0, cut % 2 == 1, others[cut], &c);
                bits_close(&r);
                if (want.n == 0) want = c;
                assert_int_equal(c.n, STEP_GUESSES);
                if (memcmp(&c, &want, sizeof c) != 0)
                    fail_msg("kind %d, %s, cut %u", kind, cpu_isa_name((enum cpu_isa)isa), cut);
            }
        }
    }
    close_world(&w);
}

/* Positions that the block's window does not reach need no keys: the pages hold NaNs there. */
static void only_the_window_is_read(void **state) {
    (void)state;
    struct world w;
    open_world(&w);
    w.plan.groups[w.plan.n_groups - 1].window = 16;
    for (int kind = 0; kind < BLOCK_KIND_COUNT; kind++) {
        w.plan.blocks[kind].layer.window = 16;
        struct chain all, end, less;
        for (int i = 0; i < 3; i++) {
            static const uint32_t from[] = {0, LEN - 16, LEN - 8};
            struct bits_rig r;
            rig_open(&r, &w.plan, CPU_ISA_SCALAR, 1, false);
            run(&r, &w, (enum block_kind)kind, 9, from[i], false, 0,
                i == 0   ? &all
                : i == 1 ? &end
                         : &less);
            bits_close(&r);
        }
        assert_int_equal(all.n, STEP_GUESSES);
        assert_memory_equal(&all, &end, sizeof all);
        assert_int_equal(less.n, 0); /* a NaN is read, and nothing comes of it */
        assert_int_equal(less.token, all.token);
    }
    close_world(&w);
}

/* The model's own outputs are those of the plan without blocks. */
static void outputs_do_not_know(void **state) {
    (void)state;
    struct world w;
    open_world(&w);
    struct output with[LEN], without[LEN];
    for (int blocks = 0; blocks < 2; blocks++) {
        struct bits_rig r;
        rig_open(&r, blocks ? &w.plan : &w.toy->plan, CPU_ISA_SCALAR, 1, false);
        for (uint32_t at = 0; at < LEN; at++) {
            bits_begin(&r);
            struct span *s = add(&r, 0, at, w.ids + at, 1, blocks ? AHEAD : 0);
            s->block = at % 2 ? BLOCK_DRAFT : BLOCK_EXIT;
            if (blocks) s->max_guesses = at % (AHEAD + 1);
            const struct output *o = draw(&r, 0);
            bits_run(&r);
            (blocks ? with : without)[at] = *o;
        }
        bits_close(&r);
    }
    for (uint32_t i = 0; i < LEN; i++) assert_true(bits_equal(&with[i], &without[i]));
    close_world(&w);
}

/* A chain ends where it was told to, where its pages end, and where a number is none. */
static void chains_end(void **state) {
    (void)state;
    struct world w;
    open_world(&w);
    struct bits_rig r;
    rig_open(&r, &w.plan, CPU_ISA_SCALAR, 1, false);
    for (int kind = 0; kind < BLOCK_KIND_COUNT; kind++) {
        for (uint32_t end = 0; end < 3; end++) {
            bits_begin(&r);
            struct span *s =
                add(&r, 0, 0, w.ids, 14, 0); /* one page: positions 14 and 15 are left */
            s->block = (enum block_kind)kind;
            s->max_guesses = end == 1 ? 1 : AHEAD;
            s->least_reach = end == 2 ? 1 : 0;
            draw(&r, 13);
            bits_run(&r);
            const uint32_t room = kind == BLOCK_DRAFT ? 3 : 2;
            assert_int_equal(s->n_guesses, end == 0 ? room : 1);
        }
        /* Nobody may guess behind a row whose token is not known. */
        bits_begin(&r);
        struct span *s = add(&r, 0, 0, w.ids, 4, AHEAD);
        s->block = (enum block_kind)kind;
        s->max_guesses = AHEAD;
        bits_run(&r);
        assert_true(s->n_guesses > 0); /* behind the third row */
        bits_begin(&r);
        s = add(&r, 0, 0, w.ids, 1, AHEAD);
        s->block = (enum block_kind)kind;
        s->max_guesses = AHEAD;
        bits_run(&r);
        assert_int_equal(s->n_guesses, 0);
    }
    bits_close(&r);
    close_world(&w);
}

static void refuse(struct world *w, const struct sidecar_section *s, uint32_t n, enum status want) {
    const uint64_t model[2] = {1, 2};
    struct error e = {0};
    struct sidecar *side_car;
    struct block_plan_memory memory;
    struct plan p = w->toy->plan, before = p;
    assert_int_equal(sidecar_write(w->path, model, s, n, &e), STATUS_OK);
    assert_int_equal(sidecar_open(w->path, model, &side_car, &e), STATUS_OK);
    const enum status st = block_plan_add(&p, side_car, 3, &memory, &e);
    if (st != want) fail_msg("%s, not %s: %s", status_name(st), status_name(want), e.message);
    assert_memory_equal(&p, &before, sizeof p);
    block_plan_free(&memory);
    sidecar_close(side_car);
}

static void hostile_sections_are_refused(void **state) {
    (void)state;
    struct world w;
    open_world(&w);
    struct sidecar_section s[3], one[3];
    make_sections(&w, s);
    refuse(&w, s, 2, STATUS_NOT_FOUND); /* no shortlist */
    memcpy(one, s, sizeof one);
    one[0].data = s[1].data, one[0].bytes = s[1].bytes; /* an exit block for a draft block */
    refuse(&w, one, 3, STATUS_CORRUPT);
    memcpy(one, s, sizeof one);
    one[1].data = s[0].data, one[1].bytes = s[0].bytes;
    refuse(&w, one, 3, STATUS_CORRUPT);
    memcpy(one, s, sizeof one);
    one[2].bytes -= 4; /* an id short */
    refuse(&w, one, 3, STATUS_CORRUPT);
    one[2] = s[2];
    one[0].bytes -= 64;
    refuse(&w, one, 3, STATUS_CORRUPT);
    w.toy->plan.n_groups = PLAN_MAX_GROUPS;
    refuse(&w, s, 3, STATUS_UNSUPPORTED);
    w.toy->plan.n_groups = 1;
    refuse(&w, s + 2, 1, STATUS_OK); /* a list alone gives no block */
    free_sections(s);
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_the_training_library),
        cmocka_unit_test(has_the_same_bits),
        cmocka_unit_test(only_the_window_is_read),
        cmocka_unit_test(outputs_do_not_know),
        cmocka_unit_test(chains_end),
        cmocka_unit_test(hostile_sections_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
