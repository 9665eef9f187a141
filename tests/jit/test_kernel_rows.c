/* The small kernels on the software device: embedding rows, rotation and pages, heads that end
 * rows, page copies, bounds, scores and choices, taps. */
#include <math.h>

#include "core/backend.h"
#include "core/cpu/vector.h"
#include "core/math.h"
#include "jit/repack.h"
#include "tests/jit/kernel_rig.h"

enum { SMS = 3, ROWS = 6, OFF_ROW = 2 };

static struct rig rig_memory, *rig;

static uint64_t run_words(void) {
    const uint32_t words[2] = {((1u << ROWS) - 1) & ~(1u << OFF_ROW), 0};
    return rig_put(rig, words, sizeof words);
}

static void launch(const struct kernel_spec *spec, uint32_t n_rows, void *params) {
    struct rig_kernel k;
    rig_choose(rig, spec, n_rows, false, &k);
    rig_launch(rig, &k, params);
    rig_unload(rig, &k);
}

static void embeddings(void **state) {
    (void)state;
    if (rig == NULL) skip();
    static const enum tensor_type types[] = {TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q8_0, TENSOR_Q4_K,
                                             TENSOR_Q6_K, TENSOR_F16,  TENSOR_BF16, TENSOR_F32};
    enum { N = 33, K = 256 };
    for (unsigned t = 0; t < sizeof types / sizeof *types; t++) {
        const struct tensor_format *f = tensor_format(types[t]);
        const size_t row_bytes = tensor_row_bytes(f, K);
        uint8_t *rows = malloc(row_bytes * N);
        for (size_t i = 0; i < row_bytes * N; i++) rows[i] = (uint8_t)rig_random(rig);
        /* Exponents in the middle: no NaN, no overflow. */
        if (f->block_weights == 1) {
            const size_t width = f->block_bytes;
            for (size_t i = width - 1; i < row_bytes * N; i += width)
                rows[i] = (uint8_t)((rows[i] & 0x83) | 0x38);
        } else {
            for (size_t i = 0; i < row_bytes * N; i += f->block_bytes) {
                const uint16_t d = f32_to_f16(rig_normal(rig) * 0.1f);
                memcpy(rows + i + (types[t] == TENSOR_Q6_K ? 208 : 0), &d, 2);
                if (types[t] == TENSOR_Q4_1 || types[t] == TENSOR_Q4_K) memcpy(rows + i + 2, &d, 2);
            }
        }
        const bool packed = f->block_weights > 1;
        const uint8_t *sources[N];
        for (uint32_t i = 0; i < N; i++) sources[i] = rows + i * row_bytes;
        const size_t bytes = packed ? repack_bytes(types[t], N, K) : row_bytes * N;
        uint8_t *image = malloc(bytes);
        if (packed)
            repack_panels(types[t], N, K, sources, 0, (N + 15) / 16, image);
        else
            memcpy(image, rows, bytes);
        const uint32_t ids[] = {0, 32, 16, 15, 7};
        const uint32_t count = 5;
        float x[5 * K], expected[K];
        struct kernel_spec spec = {.family = KERNEL_EMBED};
        spec.embed = (struct embed_spec){.format = types[t], .n = N, .k = K, .scale = 1.5f};
        struct embed_params p = {.weights = rig_put(rig, image, bytes),
                                 .ids = rig_put(rig, ids, sizeof ids),
                                 .count = rig_put(rig, &count, sizeof count),
                                 .x = rig_zeros(rig, sizeof x),
                                 .max_rows = 8};
        launch(&spec, 8, &p);
        rig_read(rig, x, p.x, sizeof x);
        for (uint32_t r = 0; r < count; r++) {
            tensor_dequantise(types[t], rows + ids[r] * row_bytes, expected, K);
            for (uint32_t i = 0; i < K; i++) {
                const float y = expected[i] * 1.5f;
                if (memcmp(&x[r * K + i], &y, 4) != 0)
                    fail_msg("%s row %u [%u]: %.9g, not %.9g", f->name, ids[r], i,
                             (double)x[r * K + i], (double)y);
            }
        }
        const uint64_t all[] = {p.weights, p.ids, p.count, p.x};
        for (unsigned i = 0; i < 4; i++) rig_free(rig, all[i]);
        free(rows);
        free(image);
    }
}

static void rotation(void **state) {
    (void)state;
    if (rig == NULL) skip();
    enum { H = 4, KV = 2, HD = 64, N = (H + 2 * KV) * HD, PAGES = 4 };
    for (uint32_t form = 0; form < 4; form++) {
        const uint32_t rope = form % 2 ? KERNEL_ROPE_ADJACENT : KERNEL_ROPE_HALVES;
        const uint32_t rd = form == 3 ? 32 : HD;
        const uint32_t norm = form == 0   ? KERNEL_NO_NORM
                              : form == 2 ? KERNEL_NORM_WHOLE
                                          : KERNEL_NORM_HEAD;
        float qkv[ROWS * N], w[H * HD], table[64 * HD], q[ROWS * H * HD];
        uint16_t kv[PAGES * 2 * KV * HD * 16];
        rig_normals(rig, qkv, ROWS * N, 1);
        rig_normals(rig, w, H * HD, 1);
        for (uint32_t i = 0; i < 64 * rd / 2; i++) {
            table[2 * i] = cosf((float)i * 0.21f);
            table[2 * i + 1] = sinf((float)i * 0.21f);
        }
        const uint32_t position[ROWS] = {0, 17, 3, 40, 63, 31}, row_pages[ROWS] = {0};
        const uint32_t pages[PAGES] = {2, 0, 3, 1};
        struct kernel_spec spec = {.family = KERNEL_ROPE_KV};
        spec.rope_kv = (struct rope_kv_spec){.n_heads = H,
                                             .n_kv_heads = KV,
                                             .head_dim = HD,
                                             .rope = rope,
                                             .rope_dims = rd,
                                             .q_norm = norm,
                                             .k_norm = norm,
                                             .epsilon = 1e-5f,
                                             .attn_scale = 0.125f};
        struct rope_kv_params p = {.qkv = rig_put(rig, qkv, sizeof qkv),
                                   .q_norm = rig_put(rig, w, sizeof w),
                                   .k_norm = rig_put(rig, w, sizeof w),
                                   .q = rig_zeros(rig, sizeof q),
                                   .run = run_words(),
                                   .row_position = rig_put(rig, position, sizeof position),
                                   .row_pages = rig_put(rig, row_pages, sizeof row_pages),
                                   .pages = rig_put(rig, pages, sizeof pages),
                                   .kv = rig_zeros(rig, sizeof kv),
                                   .page_bytes = sizeof kv / PAGES,
                                   .rope = rig_put(rig, table, sizeof table),
                                   .max_rows = ROWS};
        launch(&spec, ROWS, &p);
        rig_read(rig, q, p.q, sizeof q);
        rig_read(rig, kv, p.kv, sizeof kv);
        for (uint32_t r = 0; r < ROWS; r++) {
            if (r == OFF_ROW) {
                for (uint32_t i = 0; i < H * HD; i++) assert_true(q[r * H * HD + i] == 0);
                continue;
            }
            double whole[2] = {0, 0};
            for (uint32_t i = 0; i < (H + KV) * HD; i++)
                whole[i >= H * HD] += (double)qkv[r * N + i] * (double)qkv[r * N + i];
            for (uint32_t head = 0; head < H + 2 * KV; head++) {
                const float *x = qkv + r * N + head * HD;
                double y[HD], sum = 0, factor = 1;
                for (uint32_t d = 0; d < HD; d++) sum += (double)x[d] * (double)x[d];
                if (norm == KERNEL_NORM_HEAD) factor = 1 / sqrt(sum / HD + 1e-5);
                if (norm == KERNEL_NORM_WHOLE)
                    factor = 1 / sqrt(whole[head >= H] / ((head < H ? H : KV) * HD) + 1e-5);
                const uint32_t w0 = norm != KERNEL_NORM_WHOLE ? 0
                                    : head < H                ? head * HD
                                                              : (head - H) * HD;
                for (uint32_t d = 0; d < HD; d++)
                    y[d] = norm == KERNEL_NO_NORM || head >= H + KV
                               ? (double)x[d]
                               : (double)x[d] * factor * (double)w[w0 + d];
                const float *cs = table + position[r] * rd;
                for (uint32_t i = 0; head < H + KV && i < rd / 2; i++) {
                    const uint32_t d0 = rope == KERNEL_ROPE_HALVES ? i : 2 * i;
                    const uint32_t d1 = rope == KERNEL_ROPE_HALVES ? i + rd / 2 : 2 * i + 1;
                    const double a = y[d0], b = y[d1];
                    y[d0] = a * (double)cs[2 * i] - b * (double)cs[2 * i + 1];
                    y[d1] = b * (double)cs[2 * i] + a * (double)cs[2 * i + 1];
                }
                const uint16_t *page = kv + pages[position[r] / 16] * (sizeof kv / PAGES / 2);
                for (uint32_t d = 0; d < HD; d++) {
                    double got;
                    if (head < H)
                        got = (double)q[(r * H + head) * HD + d] * 8;
                    else if (head < H + KV)
                        got =
                            (double)f16_to_f32(page[((head - H) * HD + d) * 16 + position[r] % 16]);
                    else
                        got = (double)f16_to_f32(
                            page[KV * HD * 16 + ((head - H - KV) * 16 + position[r] % 16) * HD +
                                 d]);
                    const double most = head < H ? 3e-6 : 6e-4 * fabs(y[d]) + 1e-6;
                    if (fabs(got - y[d]) > most)
                        fail_msg("form %u row %u head %u [%u]: %g, not %g", form, r, head, d, got,
                                 y[d]);
                }
            }
        }
        const uint64_t all[] = {p.qkv,          p.q_norm,    p.k_norm, p.q,  p.run,
                                p.row_position, p.row_pages, p.pages,  p.kv, p.rope};
        for (unsigned i = 0; i < sizeof all / sizeof *all; i++) rig_free(rig, all[i]);
    }
}

static void heads(void **state) {
    (void)state;
    if (rig == NULL) skip();
    enum { K = 96, N = 11, LAYERS = 5, LAYER = 1, WORDS = 2 };
    float x[ROWS * K], norm[K], w[N * K], bias[N], threshold[ROWS], scores[ROWS * N];
    uint32_t run[LAYERS * WORDS], after[LAYERS * WORDS], exit_layer[ROWS];
    rig_normals(rig, x, ROWS * K, 1);
    rig_normals(rig, norm, K, 1);
    rig_normals(rig, w, N * K, 0.1f);
    rig_normals(rig, bias, N, 1);
    for (uint32_t r = 0; r < ROWS; r++) threshold[r] = r % 2 ? 2.0f : 0.0f;
    for (uint32_t l = 0; l < LAYERS; l++) {
        run[l * WORDS] = ((1u << ROWS) - 1) & ~(1u << OFF_ROW);
        run[l * WORDS + 1] = 0;
    }
    struct kernel_spec spec = {.family = KERNEL_HEADS};
    spec.heads = (struct heads_spec){.n = N, .k = K, .norm = 1, .decide = 1, .epsilon = 1e-5f};
    struct heads_params p = {.x = rig_put(rig, x, sizeof x),
                             .norm = rig_put(rig, norm, sizeof norm),
                             .weights = rig_put(rig, w, sizeof w),
                             .bias = rig_put(rig, bias, sizeof bias),
                             .scores = rig_zeros(rig, sizeof scores),
                             .thresholds = rig_put(rig, threshold, sizeof threshold),
                             .run = rig_put(rig, run, sizeof run),
                             .exit_layer = rig_zeros(rig, sizeof exit_layer),
                             .run_stride = WORDS,
                             .layer = LAYER,
                             .n_layers = LAYERS,
                             .max_rows = ROWS};
    launch(&spec, ROWS, &p);
    rig_read(rig, scores, p.scores, sizeof scores);
    rig_read(rig, after, p.run, sizeof after);
    rig_read(rig, exit_layer, p.exit_layer, sizeof exit_layer);
    uint32_t gone = 0;
    for (uint32_t r = 0; r < ROWS; r++) {
        if (r == OFF_ROW) continue;
        double sum = 0;
        for (uint32_t i = 0; i < K; i++) sum += (double)x[r * K + i] * (double)x[r * K + i];
        const double factor = 1 / sqrt(sum / K + 1e-5);
        for (uint32_t n = 0; n < N; n++) {
            double y = (double)bias[n];
            for (uint32_t i = 0; i < K; i++)
                y += (double)x[r * K + i] * factor * (double)norm[i] * (double)w[n * K + i];
            assert_true(fabs((double)scores[r * N + n] - 1 / (1 + exp(-y))) < 1e-5);
        }
        if (threshold[r] < 1) gone |= 1u << r;
        assert_int_equal(exit_layer[r], threshold[r] < 1 ? LAYER : 0);
    }
    for (uint32_t l = 0; l < LAYERS; l++)
        assert_int_equal(after[l * WORDS], run[l * WORDS] & (l > LAYER ? ~gone : ~0u));
    const uint64_t all[] = {p.x,      p.norm,       p.weights, p.bias,
                            p.scores, p.thresholds, p.run,     p.exit_layer};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) rig_free(rig, all[i]);
}

/* Pages: copied, sealed with their bounds, chosen by them; as the CPU's kernels do it. */
enum { PAGE_H = 6, PAGE_KV = 2, PAGE_HD = 64, PAGES = 24, GROUP = PAGE_H / PAGE_KV };
enum { PAGE_HALVES = 2 * PAGE_KV * PAGE_HD * 16, BOUNDS_HALVES = PAGE_KV * 2 * PAGE_HD };

static void copies(uint16_t *kv, uint64_t d_kv, bool fixed) {
    const uint32_t list[] = {0, 23, 5, 22}, n = 2;
    struct kernel_spec spec = {.family = KERNEL_PAGE_COPY};
    spec.page_copy.page_bytes = fixed ? PAGE_HALVES * 2 : 0;
    struct page_copy_params p = {.kv = d_kv,
                                 .copies = rig_put(rig, list, sizeof list),
                                 .count = rig_put(rig, &n, sizeof n),
                                 .bytes = PAGE_HALVES * 2};
    launch(&spec, 2, &p);
    for (uint32_t i = 0; i < n; i++)
        memcpy(kv + list[2 * i + 1] * PAGE_HALVES, kv + list[2 * i] * PAGE_HALVES, PAGE_HALVES * 2);
    uint16_t *after = malloc(PAGES * PAGE_HALVES * 2);
    rig_read(rig, after, d_kv, PAGES * PAGE_HALVES * 2);
    assert_memory_equal(after, kv, PAGES * PAGE_HALVES * 2);
    free(after);
    rig_free(rig, p.copies);
    rig_free(rig, p.count);
}

static uint64_t seals(const struct vector_kernels *cpu, const uint16_t *kv, uint64_t d_kv,
                      uint64_t run, uint16_t *bounds) {
    uint32_t list[2 * PAGES];
    const uint32_t n = PAGES;
    uint16_t want[BOUNDS_HALVES];
    for (uint32_t i = 0; i < PAGES; i++) {
        list[2 * i] = (i * 5 + 1) % PAGES;
        list[2 * i + 1] = i == 7 ? OFF_ROW : 0;
    }
    struct kernel_spec spec = {.family = KERNEL_PAGE_SEAL};
    spec.page_seal = (struct page_seal_spec){.n_kv_heads = PAGE_KV, .head_dim = PAGE_HD};
    struct page_seal_params p = {.kv = d_kv,
                                 .page_bytes = PAGE_HALVES * 2,
                                 .bounds = rig_zeros(rig, PAGES * BOUNDS_HALVES * 2),
                                 .bounds_bytes = BOUNDS_HALVES * 2,
                                 .list = rig_put(rig, list, sizeof list),
                                 .count = rig_put(rig, &n, sizeof n),
                                 .run = run};
    launch(&spec, PAGES, &p);
    rig_read(rig, bounds, p.bounds, PAGES * BOUNDS_HALVES * 2);
    for (uint32_t i = 0; i < PAGES; i++) {
        const uint32_t page = list[2 * i];
        for (uint32_t h = 0; h < PAGE_KV; h++)
            cpu->page_bounds((const uint8_t *)(kv + page * PAGE_HALVES + h * PAGE_HD * 16), NULL,
                             KV_F16, PAGE_HD, want + h * 2 * PAGE_HD);
        if (list[2 * i + 1] == OFF_ROW) memset(want, 0, sizeof want);
        for (uint32_t j = 0; j < BOUNDS_HALVES; j++)
            assert_true(f16_to_f32(bounds[page * BOUNDS_HALVES + j]) == f16_to_f32(want[j]));
    }
    rig_free(rig, p.list);
    rig_free(rig, p.count);
    return p.bounds;
}

static void pages(void **state) {
    (void)state;
    if (rig == NULL) skip();
    enum { CHOICES = 5, STRIDE = 32, MASKS = 2, ENTRY = PAGE_KV * MASKS + 1, DENSE = 3 };
    const struct vector_kernels *cpu = vector_kernels(CPU_ISA_SCALAR);
    uint16_t *kv = malloc(PAGES * PAGE_HALVES * 2), *bounds = malloc(PAGES * BOUNDS_HALVES * 2);
    for (size_t i = 0; i < PAGES * PAGE_HALVES; i++) kv[i] = f32_to_f16(rig_normal(rig));
    const uint64_t d_kv = rig_put(rig, kv, PAGES * PAGE_HALVES * 2), run = run_words();
    copies(kv, d_kv, true);
    copies(kv, d_kv, false);
    const uint64_t d_bounds = seals(cpu, kv, d_kv, run, bounds);

    float q[ROWS * PAGE_H * PAGE_HD];
    uint32_t row_pages[ROWS] = {0}, table[PAGES];
    rig_normals(rig, q, ROWS * PAGE_H * PAGE_HD, 1);
    /* Pages 22 and 23 are copies of 5 and 0: equal scores. */
    for (uint32_t i = 0; i < PAGES; i++) table[i] = (i * 7 + 3) % PAGES;
    const uint32_t anchors[] = {99, 4, 9, 4, 17, 1, 30};
    const struct page_choice choices[CHOICES] = {
        {0, 4, 1, 22, 5, 1, 4, 0}, {1, 2, 2, 20, 1, 3, 0, DENSE}, {3, 0, 1, 3, 8, 1, 6, 1},
        {4, 1, 3, 2, 1, 0, 0, 0},  {5, 3, 1, 21, 0, 2, 2, DENSE},
    };
    const uint32_t count = CHOICES;
    uint16_t masks[6 * ENTRY];
    struct kernel_spec spec = {.family = KERNEL_PAGE_CHOOSE};
    spec.page_choose =
        (struct page_choose_spec){.n_heads = PAGE_H, .n_kv_heads = PAGE_KV, .head_dim = PAGE_HD};
    struct page_choose_params p = {.q = rig_put(rig, q, sizeof q),
                                   .bounds = d_bounds,
                                   .bounds_bytes = BOUNDS_HALVES * 2,
                                   .choices = rig_put(rig, choices, sizeof choices),
                                   .count = rig_put(rig, &count, sizeof count),
                                   .anchors = rig_put(rig, anchors, sizeof anchors),
                                   .run = run,
                                   .row_pages = rig_put(rig, row_pages, sizeof row_pages),
                                   .pages = rig_put(rig, table, sizeof table),
                                   .scores =
                                       rig_alloc(rig, sizeof(float) * CHOICES * PAGE_KV * STRIDE),
                                   .masks = rig_zeros(rig, sizeof masks),
                                   .score_stride = STRIDE,
                                   .mask_stride = MASKS,
                                   .mask_entry = ENTRY,
                                   .layer = DENSE - 1};
    for (int turn = 0; turn < 2; turn++, p.layer++) {
        launch(&spec, 8, &p);
        rig_read(rig, masks, p.masks, sizeof masks);
        for (uint32_t i = 0; i < CHOICES; i++)
            for (uint32_t h = 0; h < PAGE_KV; h++) {
                const struct page_choice *c = &choices[i];
                const uint16_t *got = masks + c->entry * ENTRY + h * MASKS;
                float score[PAGES];
                bool always[PAGES];
                for (uint32_t page = 0; page < PAGES; page++) {
                    always[page] = page < c->sink_pages;
                    for (uint32_t a = 0; a < c->n_anchors; a++)
                        always[page] |= anchors[c->first_anchor + a] == page;
                    score[page] =
                        cpu->page_score(q + (c->row * PAGE_H + h * GROUP) * PAGE_HD, GROUP, PAGE_HD,
                                        bounds + table[page] * BOUNDS_HALVES + h * 2 * PAGE_HD);
                }
                for (uint32_t page = 0; page < PAGES; page++) {
                    uint32_t better = 0;
                    for (uint32_t o = 0; o < c->recent_page; o++)
                        better += !always[o] &&
                                  (score[o] > score[page] || (score[o] == score[page] && o < page));
                    const bool want = page < c->recent_page && c->dense_layers <= p.layer &&
                                      (always[page] || better < c->budget_pages);
                    if ((got[page / 16] >> page % 16 & 1) != want)
                        fail_msg("choice %u head %u: page %u", i, h, page);
                }
            }
    }
    const uint64_t all[] = {d_kv,      d_bounds, run,         p.q,      p.choices, p.count,
                            p.anchors, p.pages,  p.row_pages, p.scores, p.masks};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) rig_free(rig, all[i]);
    free(kv);
    free(bounds);
}

static void taps(void **state) {
    (void)state;
    if (rig == NULL) skip();
    enum { K = 100, X_ROWS = 9 };
    float x[X_ROWS * K], out[8 * K];
    rig_normals(rig, x, X_ROWS * K, 1);
    const uint32_t list[] = {2, 3, 0, 8, 1, 5}, count = 2;
    for (uint32_t mean = 0; mean < 2; mean++) {
        struct kernel_spec spec = {.family = KERNEL_TAP};
        spec.tap = (struct tap_spec){.k = K, .mean = mean};
        struct tap_params p = {.x = rig_put(rig, x, sizeof x),
                               .taps = rig_put(rig, list, sizeof list),
                               .count = rig_put(rig, &count, sizeof count),
                               .out = rig_zeros(rig, sizeof out)};
        launch(&spec, 4, &p);
        rig_read(rig, out, p.out, sizeof out);
        for (uint32_t i = 0; i < K; i++) {
            if (mean) {
                const double m =
                    ((double)x[2 * K + i] + (double)x[3 * K + i] + (double)x[4 * K + i]) / 3;
                assert_true(fabs((double)out[i] - m) < 1e-6);
            } else {
                for (uint32_t r = 0; r < 3; r++) assert_true(out[r * K + i] == x[(2 + r) * K + i]);
            }
            assert_true(out[5 * K + i] == x[8 * K + i]);
        }
        const uint64_t all[] = {p.x, p.taps, p.count, p.out};
        for (unsigned i = 0; i < 4; i++) rig_free(rig, all[i]);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embeddings), cmocka_unit_test(rotation), cmocka_unit_test(heads),
        cmocka_unit_test(pages),      cmocka_unit_test(taps),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    static const char *const devices[] = {"T4", "RTX5090"};
    int failed = 0;
    for (unsigned i = 0; i < 2; i++) {
        rig = rig_open(&rig_memory, devices[i], SMS, i) ? &rig_memory : NULL;
        failed += cmocka_run_group_tests_name(devices[i], tests, NULL, NULL);
        if (rig == NULL) break;
        rig_close(rig);
    }
    return failed;
}
