/* Attention on the software device: one key block a CTA (decode) and walking tiles (prefill) give
 * the same bits, those of a plain C sum in the stated order up to the last division; positions that
 * were never written are never read. */
#include <math.h>

#include "core/math.h"
#include "core/tensor.h"
#include "tests/jit/kernel_rig.h"

enum { MAX_ROWS = 24, MAX_POSITION = 700, POOL = 160, SMS = 3 };

static struct rig rig_memory, *rig;

struct shape {
    uint32_t heads, kv, hd, window;
    float cap;
    bool gated;
};

/* Rows of sequences, their pages on host and device. */
struct scene {
    struct shape s;
    uint32_t n_rows, position[MAX_ROWS], row_pages[MAX_ROWS], n_pages;
    uint32_t pages[POOL];
    size_t page_halves; /* per page, one layer */
    uint16_t *kv;       /* [POOL][page_halves] */
    float *q;           /* [rows][heads * hd] */
    /* Of gated rows: entry = row (of one sequence: 0), with its pages per KV head. */
    struct attention_gate gates[MAX_ROWS];
    uint16_t masks[MAX_ROWS * 32 * 4];
    uint32_t mask_entry;
    uint64_t d_kv, d_q, d_run, d_position, d_row_pages, d_pages, d_masks, d_gates;
};
enum { MASK_STRIDE = 4, LAYER = 2 };

/* Some pages of each KV head before the recent one, as many for each; row 2 attends to everything,
 * row 3 in this layer too. */
static void choose(struct scene *c, uint32_t row) {
    struct attention_gate *g = &c->gates[row];
    const uint32_t own = c->position[row] / 16;
    g->entry = row;
    g->recent_page = own > 1 ? own - 1 : own;
    g->n_chosen = g->recent_page * 2 / 3;
    g->dense_layers = row == 3 ? LAYER + 1 : LAYER;
    for (uint32_t h = 0; h < c->s.kv; h++) {
        uint16_t *mask = &c->masks[row * c->mask_entry + h * MASK_STRIDE];
        for (uint32_t n = 0; n < g->n_chosen;) {
            const uint32_t page = (uint32_t)(rig_random(rig) % g->recent_page);
            if (mask[page / 16] >> page % 16 & 1) continue;
            mask[page / 16] |= (uint16_t)(1u << page % 16);
            n++;
        }
    }
    if (row == 2) g->entry = UINT32_MAX;
}

static uint16_t *page_of(struct scene *c, uint32_t row, uint32_t position) {
    return c->kv + c->pages[c->row_pages[row] + position / 16] * c->page_halves;
}

/* Fills pages of a sequence up to and including `last`, and only these positions. */
static void write_sequence(struct scene *c, uint32_t row, uint32_t last) {
    const struct shape *s = &c->s;
    for (uint32_t page = 0; page <= last / 16; page++) {
        uint16_t *host = page_of(c, row, page * 16);
        const uint32_t fill = page == last / 16 ? last % 16 + 1 : 16;
        for (size_t i = 0; i < c->page_halves; i++) host[i] = f32_to_f16(rig_normal(rig));
        const uint64_t to = c->d_kv + (uint64_t)(host - c->kv) * 2;
        if (fill == 16) {
            rig_write(rig, to, host, c->page_halves * 2);
            continue;
        }
        for (uint32_t i = 0; i < s->kv * s->hd; i++)
            rig_write(rig, to + i * 32, host + (size_t)i * 16, fill * 2);
        for (uint32_t h = 0; h < s->kv; h++) {
            const size_t at = (size_t)s->kv * s->hd * 16 + (size_t)h * 16 * s->hd;
            rig_write(rig, to + at * 2, host + at, (size_t)fill * s->hd * 2);
        }
    }
}

static void scene_make(struct scene *c, struct shape s, const uint32_t *positions, uint32_t n_rows,
                       bool one_sequence) {
    memset(c, 0, sizeof *c);
    c->s = s;
    c->n_rows = n_rows;
    c->page_halves = (size_t)2 * s.kv * s.hd * 16;
    c->kv = malloc(POOL * c->page_halves * 2);
    c->d_kv = rig_alloc(rig, POOL * c->page_halves * 2);
    c->q = malloc(sizeof(float) * n_rows * s.heads * s.hd);
    rig_normals(rig, c->q, (size_t)n_rows * s.heads * s.hd, 0.25f);
    for (uint32_t i = 0; i < POOL; i++) c->pages[i] = i * 37 % POOL;
    for (uint32_t r = 0; r < n_rows; r++) {
        c->position[r] = positions[r];
        c->row_pages[r] = one_sequence ? 0 : c->n_pages;
        if (one_sequence && r + 1 < n_rows) continue;
        c->n_pages += positions[r] / 16 + 1;
        assert_true(c->n_pages <= POOL);
        write_sequence(c, r, positions[r]);
    }
    c->mask_entry = s.kv * MASK_STRIDE + 3;
    for (uint32_t r = 0; r < n_rows; r++) {
        if (!one_sequence || r == 0)
            choose(c, r);
        else
            c->gates[r] = c->gates[0];
    }
    const uint32_t run = (1u << n_rows) - 1;
    uint32_t words[2] = {n_rows > 2 ? run & ~2u : run, 0};
    c->d_run = rig_put(rig, words, sizeof words);
    c->d_q = rig_put(rig, c->q, sizeof(float) * n_rows * s.heads * s.hd);
    c->d_position = rig_put(rig, c->position, sizeof(uint32_t) * n_rows);
    c->d_row_pages = rig_put(rig, c->row_pages, sizeof(uint32_t) * n_rows);
    c->d_pages = rig_put(rig, c->pages, sizeof c->pages);
    c->d_masks = rig_put(rig, c->masks, sizeof c->masks);
    c->d_gates = rig_put(rig, c->gates, sizeof c->gates);
}

static void scene_free(struct scene *c) {
    const uint64_t all[] = {c->d_kv,        c->d_q,     c->d_run,   c->d_position,
                            c->d_row_pages, c->d_pages, c->d_masks, c->d_gates};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) rig_free(rig, all[i]);
    free(c->kv);
    free(c->q);
}

static uint32_t first_visible(const struct scene *c, uint32_t r) {
    const uint32_t p = c->position[r], w = c->s.window;
    return w > 0 && p >= w ? p - w + 1 : 0;
}

static bool visible(const struct scene *c, uint32_t r, uint32_t kv_head, uint32_t p) {
    const struct attention_gate *g = &c->gates[r];
    if (p < first_visible(c, r) || p > c->position[r]) return false;
    if (!c->s.gated || g->entry == UINT32_MAX || g->dense_layers > LAYER) return true;
    const uint16_t *mask = &c->masks[g->entry * c->mask_entry + kv_head * MASK_STRIDE];
    return p / 16 >= g->recent_page || (mask[p / 256] >> (p % 256 / 16) & 1);
}

/* Where positions stand in the blocks of a row: itself, or side by side with those attended to. */
enum { NOWHERE = UINT32_MAX };
static uint32_t arrange(const struct scene *c, uint32_t r, uint32_t kv_head, uint32_t *order) {
    uint32_t n = 0;
    for (uint32_t p = 0; p <= c->position[r]; p++) {
        const bool on = visible(c, r, kv_head, p);
        if (on || !c->s.gated || !KERNEL_GATED_RUNS) order[n++] = on ? p : NOWHERE;
    }
    return n;
}

static float warp_sum(float *a) {
    for (int m = 16; m > 0; m >>= 1) {
        float b[32];
        for (int i = 0; i < 32; i++) b[i] = a[i] + a[i ^ m];
        memcpy(a, b, sizeof b);
    }
    return a[0];
}

/* The order of jit/kernel.h, one head of one row. */
static void oracle(struct scene *c, uint32_t r, uint32_t head, float *out) {
    const struct shape *s = &c->s;
    const uint32_t kv_head = head / (s->heads / s->kv), hd = s->hd;
    const float *q = c->q + ((size_t)r * s->heads + head) * hd;
    float m = -3.402823466e+38f, l = 0, acc[256] = {0};
    uint32_t order[1024];
    for (uint32_t i = 0; i < 1024; i++) order[i] = NOWHERE;
    const uint32_t n = arrange(c, r, kv_head, order);
    for (uint32_t b = first_visible(c, r) / 256; b * 256 < n; b++) {
        float score[256], e[256], top = -3.402823466e+38f, sum = 0, total[256];
        for (uint32_t i = 0; i < 256; i++) {
            const uint32_t p = order[b * 256 + i];
            if (p == NOWHERE) continue;
            const uint16_t *k = page_of(c, r, p) + kv_head * hd * 16 + p % 16;
            score[i] = 0;
            for (uint32_t d = 0; d < hd; d++)
                score[i] = fmaf(q[d], f16_to_f32(k[d * 16]), score[i]);
            if (s->cap > 0) score[i] = s->cap * tanhf(score[i] / s->cap);
            top = score[i] > top ? score[i] : top;
        }
        for (uint32_t group = 0; group < 8; group++) {
            float lanes[32], sub[256] = {0};
            for (uint32_t i = 0; i < 32; i++) {
                const uint32_t at = group * 32 + i, p = order[b * 256 + at];
                e[at] = lanes[i] = p != NOWHERE ? math_expf(score[at] - top) : 0;
                if (p == NOWHERE) continue;
                const uint16_t *v =
                    page_of(c, r, p) + s->kv * hd * 16 + (kv_head * 16 + p % 16) * hd;
                for (uint32_t d = 0; d < hd; d++) sub[d] = fmaf(e[at], f16_to_f32(v[d]), sub[d]);
            }
            const float lane_total = warp_sum(lanes);
            sum = group == 0 ? lane_total : sum + lane_total;
            for (uint32_t d = 0; d < hd; d++) total[d] = group == 0 ? sub[d] : total[d] + sub[d];
        }
        const float merged = m > top ? m : top;
        const float a = math_expf(m - merged), x = math_expf(top - merged);
        l = fmaf(l, a, sum * x);
        for (uint32_t d = 0; d < hd; d++) acc[d] = fmaf(acc[d], a, total[d] * x);
        m = merged;
    }
    for (uint32_t d = 0; d < hd; d++) out[d] = acc[d] * (1.0f / l);
}

/* float64, no blocks: what all of it is for. */
static void exact(struct scene *c, uint32_t r, uint32_t head, double *out) {
    const struct shape *s = &c->s;
    const uint32_t kv_head = head / (s->heads / s->kv), hd = s->hd;
    const float *q = c->q + ((size_t)r * s->heads + head) * hd;
    double l = 0;
    memset(out, 0, hd * sizeof *out);
    for (uint32_t p = 0; p <= c->position[r]; p++) {
        if (!visible(c, r, kv_head, p)) continue;
        const uint16_t *k = page_of(c, r, p) + kv_head * hd * 16 + p % 16;
        const uint16_t *v = page_of(c, r, p) + s->kv * hd * 16 + (kv_head * 16 + p % 16) * hd;
        double score = 0;
        for (uint32_t d = 0; d < hd; d++) score += (double)q[d] * (double)f16_to_f32(k[d * 16]);
        if (s->cap > 0) score = (double)s->cap * tanh(score / (double)s->cap);
        const double e = exp(score);
        l += e;
        for (uint32_t d = 0; d < hd; d++) out[d] += e * (double)f16_to_f32(v[d]);
    }
    for (uint32_t d = 0; d < hd; d++) out[d] /= l;
}

static void run_attention(struct scene *c, bool walk, uint32_t bits, void *out, size_t out_bytes) {
    const struct shape *s = &c->s;
    struct kernel_spec spec = {.family = KERNEL_ATTENTION};
    spec.attention = (struct attention_spec){.n_heads = s->heads,
                                             .n_kv_heads = s->kv,
                                             .head_dim = s->hd,
                                             .window = s->window,
                                             .gated = s->gated,
                                             .activation_bits = bits,
                                             .softcap = s->cap};
    struct rig_kernel k;
    rig_choose(rig, &spec, walk ? 64 : 1, walk, &k);
    struct attention_item items[MAX_ROWS * 4];
    struct attention_tile tiles[MAX_ROWS];
    uint32_t n = 0;
    for (uint32_t r = 0; r < c->n_rows && !walk; r++) {
        const uint32_t first = first_visible(c, r) / 256, last = c->position[r] / 256, from = n;
        for (uint32_t b = first; b <= last; b++)
            items[n++] = (struct attention_item){r, b, from, last - first + 1};
    }
    for (uint32_t r = 0; r < c->n_rows && walk;) {
        uint32_t end = r + 1;
        while (end < c->n_rows && end - r < k.config.tile_rows &&
               c->row_pages[end] == c->row_pages[r] && c->gates[end].entry == c->gates[r].entry)
            end++;
        tiles[n++] = (struct attention_tile){r, end - r};
        r = end;
    }
    const size_t heads = (size_t)n * s->heads;
    const uint64_t d_items =
        walk ? rig_put(rig, tiles, n * sizeof *tiles) : rig_put(rig, items, n * sizeof *items);
    const uint64_t d_count = rig_put(rig, &n, sizeof n);
    const uint64_t partial = rig_alloc(rig, heads * s->hd * 4), ml = rig_alloc(rig, heads * 8);
    const uint64_t tickets = rig_zeros(rig, sizeof(uint32_t) * c->n_rows * s->kv);
    const uint64_t d_out = rig_zeros(rig, out_bytes);
    struct attention_params p = {.q = c->d_q,
                                 .kv = c->d_kv,
                                 .page_bytes = c->page_halves * 2,
                                 .run = c->d_run,
                                 .row_position = c->d_position,
                                 .row_pages = c->d_row_pages,
                                 .pages = c->d_pages,
                                 .items = d_items,
                                 .count = d_count,
                                 .masks = c->d_masks,
                                 .row_gates = c->d_gates,
                                 .partial = partial,
                                 .partial_ml = ml,
                                 .tickets = tickets,
                                 .out = d_out,
                                 .mask_stride = MASK_STRIDE,
                                 .mask_entry = c->mask_entry,
                                 .layer = LAYER};
    rig_launch(rig, &k, &p);
    /* Again: tickets must be ready for the next launch. */
    if (!walk && bits == 0) rig_launch(rig, &k, &p);
    rig_read(rig, out, d_out, out_bytes);
    assert_true(rig->g.counter(k.name, "shared_worst_conflict") <= 2);
    const uint64_t all[] = {d_items, d_count, partial, ml, tickets, d_out};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) rig_free(rig, all[i]);
    rig_unload(rig, &k);
}

static void check(struct shape s, const uint32_t *positions, uint32_t n_rows, bool one_sequence) {
    struct scene c;
    scene_make(&c, s, positions, n_rows, one_sequence);
    const size_t n = (size_t)s.heads * s.hd, bytes = sizeof(float) * n_rows * n;
    float *split = malloc(bytes), *walk = malloc(bytes), *row = malloc(sizeof(float) * s.hd);
    double *truth = malloc(sizeof(double) * s.hd);
    run_attention(&c, false, 0, split, bytes);
    run_attention(&c, true, 0, walk, bytes);
    assert_memory_equal(split, walk, bytes);
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t h = 0; h < s.heads; h++) {
            const float *got = split + r * n + h * s.hd;
            if (n_rows > 2 && r == 1) {
                /* Does not run: untouched. */
                for (uint32_t d = 0; d < s.hd; d++) assert_true(got[d] == 0);
                continue;
            }
            oracle(&c, r, h, row);
            exact(&c, r, h, truth);
            for (uint32_t d = 0; d < s.hd; d++) {
                /* Without a cap only the last reciprocal may differ, by one unit. */
                const double most = s.cap > 0 ? 1e-5 : 1.5e-7 * fabs((double)row[d]) + 1e-30;
                if (fabs((double)got[d] - (double)row[d]) > most ||
                    fabs((double)got[d] - truth[d]) > 1e-5)
                    fail_msg("row %u at %u, head %u, [%u]: %.9g, not %.9g (%.9g)", r, c.position[r],
                             h, d, (double)got[d], (double)row[d], truth[d]);
            }
        }
    /* Planes out: the norm kernel's quantising of the F32 result. */
    if (s.hd == 64) {
        const size_t planes = kernel_planes_bytes((uint32_t)n, 16), all = planes * n_rows;
        uint8_t *a = malloc(all), *b = malloc(all), *expected = malloc(all);
        run_attention(&c, false, 16, a, all);
        run_attention(&c, true, 16, b, all);
        assert_memory_equal(a, b, all);
        struct kernel_spec spec = {.family = KERNEL_NORM};
        spec.norm = (struct norm_spec){.k = (uint32_t)n, .activation_bits = 16, .scale = 1};
        struct rig_kernel k;
        rig_choose(rig, &spec, n_rows, false, &k);
        const uint64_t x = rig_put(rig, split, bytes), out = rig_zeros(rig, all);
        struct norm_params p = {.x = x, .out = out, .run = c.d_run, .max_rows = n_rows};
        rig_launch(rig, &k, &p);
        rig_read(rig, expected, out, all);
        for (uint32_t r = 0; r < n_rows; r++)
            if (r != 1 || n_rows <= 2)
                assert_memory_equal(a + r * planes, expected + r * planes, planes);
        rig_free(rig, x);
        rig_free(rig, out);
        rig_unload(rig, &k);
        free(a);
        free(b);
        free(expected);
    }
    free(split);
    free(walk);
    free(row);
    free(truth);
    scene_free(&c);
}

static const uint32_t mixed[] = {0, 3, 15, 16, 17, 255, 256, 300, 530};
static uint32_t run_of[MAX_ROWS];

static void sequences_of_mixed_length(void **state) {
    (void)state;
    if (rig == NULL) skip();
    check((struct shape){9, 3, 64, 0, 0, false}, mixed, 9, false);
}
static void one_prompt(void **state) {
    (void)state;
    if (rig == NULL) skip();
    for (uint32_t r = 0; r < 13; r++) run_of[r] = 246 + r;
    check((struct shape){9, 3, 64, 0, 0, false}, run_of, 13, true);
}
static void window_and_cap(void **state) {
    (void)state;
    if (rig == NULL) skip();
    for (uint32_t r = 0; r < 6; r++) run_of[r] = 509 + r;
    check((struct shape){2, 1, 256, 300, 50, false}, run_of, 6, true);
    check((struct shape){4, 4, 96, 33, 0, false}, mixed, 8, false);
}
static void page_masks(void **state) {
    (void)state;
    if (rig == NULL) skip();
    check((struct shape){8, 2, 64, 0, 0, true}, mixed, 9, false);
    for (uint32_t r = 0; r < 5; r++) run_of[r] = 600 + r;
    check((struct shape){4, 1, 128, 0, 0, true}, run_of, 5, true);
}
static void one_row(void **state) {
    (void)state;
    if (rig == NULL) skip();
    const uint32_t position = 31;
    check((struct shape){16, 1, 64, 0, 0, false}, &position, 1, false);
    check((struct shape){5, 1, 80, 0, 0, false}, &position, 1, false);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_of_mixed_length),
        cmocka_unit_test(one_prompt),
        cmocka_unit_test(window_and_cap),
        cmocka_unit_test(page_masks),
        cmocka_unit_test(one_row),
    };
    const struct CMUnitTest few[] = {cmocka_unit_test(one_row)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    static const char *const devices[] = {"A100", "RTX5090", "T4"};
    const char *setting = getenv("LONG");
    const bool all = setting != NULL && strcmp(setting, "1") == 0;
    int failed = 0;
    for (unsigned i = 0; i < (all ? 3 : 2); i++) {
        /* The seed orders blocks, warps and turns. */
        rig = rig_open(&rig_memory, devices[i], SMS, i) ? &rig_memory : NULL;
        failed += i == 0 || all ? cmocka_run_group_tests_name(devices[i], tests, NULL, NULL)
                                : cmocka_run_group_tests_name(devices[i], few, NULL, NULL);
        if (rig == NULL) break;
        rig_close(rig);
    }
    return failed;
}
