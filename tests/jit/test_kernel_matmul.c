/* Products on the software device: every variant, format and tile gives the bits of a plain C sum
 * in the order that jit/kernel.h states, from the CPU backend's own quantised rows and weights;
 * fused forms give the bits of their parts; and the checker finds nothing. */
#include <math.h>

#include "core/cpu/layout.h"
#include "core/cpu/vector.h"
#include "jit/repack.h"
#include "tests/jit/kernel_rig.h"

enum { ROWS = 37, ROWS_PADDED = 64, SMS = 3, OFF_ROW = 3 };

static struct rig rig_memory, *rig;

static bool is_half(enum tensor_type t) {
    return t == TENSOR_F16 || t == TENSOR_BF16;
}
static uint32_t planes_bits(enum tensor_type t, uint32_t bits) {
    return t == TENSOR_F16 ? KERNEL_PLANES_F16 : t == TENSOR_BF16 ? KERNEL_PLANES_BF16 : bits;
}

/* GGUF rows with scales of a sensible size. */
static uint8_t *random_weights(enum tensor_type type, uint32_t n, uint32_t k) {
    const struct tensor_format *f = tensor_format(type);
    const size_t bytes = tensor_row_bytes(f, k) * n;
    uint8_t *rows = malloc(bytes);
    if (is_half(type)) {
        for (size_t i = 0; i < bytes / 2; i++) {
            const float x = rig_normal(rig) * 0.05f;
            uint32_t bits;
            memcpy(&bits, &x, 4);
            const uint16_t h = type == TENSOR_F16 ? f32_to_f16(x) : (uint16_t)(bits >> 16);
            memcpy(rows + 2 * i, &h, 2);
        }
        return rows;
    }
    for (size_t i = 0; i < bytes; i++) rows[i] = (uint8_t)rig_random(rig);
    for (size_t b = 0; b < bytes; b += f->block_bytes) {
        const bool k_quant = type == TENSOR_Q4_K || type == TENSOR_Q6_K;
        const uint16_t d = f32_to_f16((k_quant ? 0.0002f : 0.01f) * (1 + rig_normal(rig) * 0.1f));
        const uint16_t m = f32_to_f16((k_quant ? 0.002f : -0.08f) * (1 + rig_normal(rig) * 0.1f));
        memcpy(rows + b + (type == TENSOR_Q6_K ? 208 : 0), &d, 2);
        if (type == TENSOR_Q4_1 || type == TENSOR_Q4_K) memcpy(rows + b + 2, &m, 2);
    }
    return rows;
}

struct matrix {
    enum tensor_type type;
    uint32_t n, k;
    uint8_t *rows; /* GGUF */
    struct tensor tensor;
    struct packed_matrix cpu;
    void *cpu_memory;
    uint64_t device;
};

/* order NULL: as they are. */
static void matrix_make(struct matrix *m, enum tensor_type type, uint32_t n, uint32_t k,
                        const uint32_t *order) {
    const size_t row_bytes = tensor_row_bytes(tensor_format(type), k);
    *m = (struct matrix){.type = type, .n = n, .k = k, .rows = random_weights(type, n, k)};
    m->tensor = (struct tensor){
        .type = type, .n_dims = 2, .dim = {k, n, 1, 1}, .bytes = row_bytes * n, .data = m->rows};
    m->cpu_memory = aligned_alloc(64, packed_matrix_bytes(type, n, k));
    packed_matrix_init(&m->cpu, type, n, k, m->cpu_memory);
    const struct weight w = {.t = &m->tensor, .n_rows = n};
    packed_matrix_pack(&m->cpu, &w, 0, 0, m->cpu.n_panels);
    const uint8_t **sources = malloc(n * sizeof *sources);
    for (uint32_t i = 0; i < n; i++)
        sources[i] = m->rows + (order != NULL ? order[i] : i) * row_bytes;
    uint8_t *packed = malloc(repack_bytes(type, n, k));
    repack_panels(type, n, k, sources, 0, (n + 15) / 16, packed);
    m->device = rig_put(rig, packed, repack_bytes(type, n, k));
    free(packed);
    free(sources);
}

static void matrix_free(struct matrix *m) {
    rig_free(rig, m->device);
    free(m->rows);
    free(m->cpu_memory);
}

/* Rows as planes, from the CPU backend's quantiser. */
static void planes_of(const float *x, uint32_t n_rows, uint32_t k, uint32_t bits, uint8_t *planes) {
    const size_t stride = kernel_planes_bytes(k, bits), kp = (k + 63) / 64 * 64;
    memset(planes, 0, stride * ROWS_PADDED);
    if (bits >= KERNEL_PLANES_F16) {
        for (uint32_t r = 0; r < n_rows; r++)
            for (uint32_t b = 0; b < k / 32; b++) {
                float top = 0, scale;
                for (uint32_t i = 0; i < 32; i++)
                    top = fmaxf(top, fabsf(x[(size_t)r * k + b * 32 + i]));
                int e;
                frexpf(top, &e);
                scale = ldexpf(1, e - 1);
                for (uint32_t i = 0; i < 32; i++) {
                    const float y = x[(size_t)r * k + b * 32 + i] / scale;
                    uint16_t *to = (uint16_t *)(void *)(planes + r * stride) + b * 32 + i;
                    uint16_t hi, lo;
                    if (bits == KERNEL_PLANES_F16) {
                        hi = f32_to_f16(y);
                        lo = f32_to_f16(y - f16_to_f32(hi));
                    } else {
                        uint32_t u;
                        memcpy(&u, &y, 4);
                        hi = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
                        const float rest = y - bf16_to_f32(hi);
                        memcpy(&u, &rest, 4);
                        lo = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
                    }
                    to[0] = hi;
                    to[kp] = lo;
                }
                memcpy(planes + r * stride + kp * 4 + b * 8, &scale, 4);
            }
        return;
    }
    const enum activation_format format = bits == 16 ? ACTIVATION_INT16 : ACTIVATION_INT8;
    uint8_t *row = aligned_alloc(64, activation_row_bytes(format, k));
    for (uint32_t r = 0; r < n_rows; r++) {
        matmul_kernels(CPU_ISA_SCALAR)->quantise(x + (size_t)r * k, k, format, row);
        uint8_t *to = planes + r * stride;
        for (uint32_t b = 0; b < k / 32; b++) {
            const uint8_t *block = row + b * activation_block_bytes(format);
            for (uint32_t i = 0; i < 32; i++) {
                const uint32_t at = b * 32 + i % 16 / 4 * 8 + i / 16 * 4 + i % 4;
                to[at] = block[i];
                if (bits == 16) to[kp + at] = block[32 + i];
            }
            memcpy(to + kp * (bits / 8) + b * 8, block + bits * 4, 8);
        }
    }
    free(row);
}

/* The oracle: one output of one row of planes. */
static float product(const struct matrix *m, const uint8_t *planes, uint32_t bits, uint32_t row,
                     uint32_t output) {
    const uint32_t k = m->k, pairs = (k + 63) / 64;
    const uint32_t split = kernel_split_pairs(m->type, k);
    const size_t kp = (size_t)pairs * 64;
    const uint8_t *p = planes + row * kernel_planes_bytes(k, bits);
    const struct packed_layout layout = packed_layout(m->type);
    const int offset = is_half(m->type) ? 0 : 128 >> layout.offset_shift;
    float total = 0;
    for (uint32_t s = 0; s * split < pairs; s++) {
        float sum[2] = {0, 0};
        for (uint32_t b = s * split * 2; b < (s + 1) * split * 2 && b * 32 < k; b++) {
            float *acc = &sum[b % 2], sx[2];
            memcpy(sx, p + kp * (bits / 8) + b * 8, 8);
            if (is_half(m->type)) {
                double exact = 0;
                float w[32];
                packed_block_floats(&m->cpu, output / 16, output % 16, b, w);
                for (uint32_t half = 0; half < 2; half++)
                    for (uint32_t i = 0; i < 32; i++) {
                        uint16_t h;
                        memcpy(&h, p + (half * kp + b * 32 + i) * 2, 2);
                        const float x = bits == KERNEL_PLANES_F16 ? f16_to_f32(h) : bf16_to_f32(h);
                        exact += (double)w[i] * (double)x;
                    }
                *acc = fmaf(sx[0], (float)exact, *acc);
                continue;
            }
            struct block32 w;
            packed_block_read(&m->cpu, output / 16, output % 16, b, &w);
            const struct block32_scales scale = block32_scales(m->type, &w);
            const uint32_t n_subs = layout.halves ? 2 : 1;
            for (uint32_t sub = 0; sub < n_subs; sub++) {
                int32_t dot = 0;
                for (uint32_t i = sub * 32 / n_subs; i < (sub + 1) * 32 / n_subs; i++) {
                    const uint32_t at = b * 32 + i % 16 / 4 * 8 + i / 16 * 4 + i % 4;
                    int32_t q = (int8_t)p[at];
                    if (bits == 16) q = 256 * q + (int8_t)p[kp + at];
                    dot += (w.u[i] - offset) * q;
                }
                *acc = fmaf(scale.dw[sub] * sx[0], (float)dot, *acc);
            }
            if (layout.has_min) *acc = fmaf(scale.mw[0], sx[1], *acc);
        }
        total = s == 0 ? sum[0] + sum[1] : total + (sum[0] + sum[1]);
    }
    return total;
}

static void same(const char *name, const float *got, const float *expected, size_t n, bool exact) {
    double scale = 0;
    for (size_t i = 0; i < n; i++) scale = fmax(scale, fabs((double)expected[i]));
    for (size_t i = 0; i < n; i++) {
        const bool ok = exact ? memcmp(&got[i], &expected[i], 4) == 0
                              : fabs((double)got[i] - (double)expected[i]) <= 2e-6 * scale;
        if (!ok)
            fail_msg("%s: [%zu] is %.9g, not %.9g", name, i, (double)got[i], (double)expected[i]);
    }
}

struct variant {
    uint32_t variant, tile_rows, tile_panels, n_rows;
};
static const struct variant variants[] = {
    {KERNEL_DP4A, 1, 1, 1}, {KERNEL_DP4A, 2, 2, 2},    {KERNEL_DP4A, 4, 1, 4},
    {KERNEL_DP4A, 8, 4, 7}, {KERNEL_MMA, 8, 1, 5},     {KERNEL_MMA, 8, 4, 8},
    {KERNEL_MMA, 16, 1, 9}, {KERNEL_MMA, 32, 2, ROWS}, {KERNEL_WIDE, 64, 8, ROWS},
};

static uint64_t run_bits(uint32_t n_rows) {
    uint32_t words[2] = {0, 0};
    for (uint32_t r = 0; r < n_rows; r++)
        if (r != OFF_ROW) words[r / 32] |= 1u << r % 32;
    return rig_put(rig, words, sizeof words);
}

/* Every variant against the oracle, through the residual epilogue; a row that does not run keeps
 * what it had. */
static void check_format(enum tensor_type type, uint32_t n, uint32_t k, uint32_t int_bits,
                         uint32_t first_variant, uint32_t step) {
    const uint32_t bits = planes_bits(type, int_bits);
    const float scale = 0.7f;
    struct matrix m;
    matrix_make(&m, type, n, k, NULL);
    float *x = malloc(sizeof *x * ROWS * k), *out = malloc(sizeof *out * ROWS * n);
    float *before = malloc(sizeof *out * ROWS * n), *expected = malloc(sizeof *out * ROWS * n);
    uint8_t *planes = malloc(kernel_planes_bytes(k, bits) * ROWS_PADDED);
    rig_normals(rig, x, (size_t)ROWS * k, 1);
    rig_normals(rig, before, (size_t)ROWS * n, 1);
    planes_of(x, ROWS, k, bits, planes);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t j = 0; j < n; j++) {
            const float *b = &before[(size_t)r * n + j];
            expected[(size_t)r * n + j] =
                r == OFF_ROW ? *b : fmaf(scale, product(&m, planes, bits, r, j), *b);
        }
    const uint64_t planes_at = rig_put(rig, planes, kernel_planes_bytes(k, bits) * ROWS_PADDED);
    float *first = NULL;
    for (unsigned v = first_variant; v < sizeof variants / sizeof *variants; v += step) {
        const struct variant *c = &variants[v];
        if (is_half(type) && c->variant == KERNEL_DP4A) continue;
        struct kernel_spec spec = {.family = KERNEL_MATMUL};
        spec.matmul = (struct matmul_spec){.format = type,
                                           .n = n,
                                           .k = k,
                                           .activation_bits = bits,
                                           .epilogue = KERNEL_OUT_RESIDUAL,
                                           .scale = scale};
        const struct kernel_config config = {.variant = c->variant,
                                             .tile_rows = c->tile_rows,
                                             .tile_panels = c->tile_panels,
                                             .warps = 8,
                                             .blocks_per_sm = 1,
                                             .grid = 2};
        struct rig_kernel kernel;
        rig_compile(rig, &spec, &config, c->n_rows, &kernel);
        const uint64_t out_at = rig_put(rig, before, sizeof *before * c->n_rows * n);
        const uint64_t run = run_bits(c->n_rows);
        struct matmul_params p = {.weights = m.device,
                                  .planes = planes_at,
                                  .out = out_at,
                                  .run = run,
                                  .out_stride = n,
                                  .max_rows = c->n_rows};
        rig_launch(rig, &kernel, &p);
        rig_read(rig, out, out_at, sizeof *out * c->n_rows * n);
        same(kernel.name, out, expected, (size_t)c->n_rows * n, !is_half(type));
        if (is_half(type)) {
            /* Not the oracle's bits (a tensor core rounds as it likes), but each other's. */
            if (first == NULL) {
                first = malloc(sizeof *first * ROWS * n);
                memcpy(first, out, sizeof *first * c->n_rows * n);
            }
            same(kernel.name, out, first, (size_t)(c->n_rows < 5 ? c->n_rows : 5) * n, true);
        }
        rig_free(rig, out_at);
        rig_free(rig, run);
        rig_unload(rig, &kernel);
    }
    free(first);
    rig_free(rig, planes_at);
    matrix_free(&m);
    free(x);
    free(out);
    free(before);
    free(expected);
    free(planes);
}

static void q4_1(void **state) {
    (void)state;
    if (rig == NULL) skip();
    check_format(TENSOR_Q4_1, 40, 576, 16, 0, 1);
    check_format(TENSOR_Q4_1, 17, 96, 16, 0, 2);
    check_format(TENSOR_Q4_1, 32, 192, 8, 0, 3);
}
static void q4_0(void **state) {
    (void)state;
    if (rig == NULL) skip();
    check_format(TENSOR_Q4_0, 24, 352, 16, 0, 2);
    check_format(TENSOR_Q4_0, 24, 64, 8, 1, 3);
}
static void q8_0(void **state) {
    (void)state;
    if (rig == NULL) skip();
    check_format(TENSOR_Q8_0, 24, 608, 16, 0, 2);
    check_format(TENSOR_Q8_0, 40, 160, 8, 1, 3);
}
static void k_quants(void **state) {
    (void)state;
    if (rig == NULL) skip();
    check_format(TENSOR_Q4_K, 24, 2304, 16, 0, 2);
    check_format(TENSOR_Q4_K, 17, 256, 8, 1, 3);
    check_format(TENSOR_Q6_K, 24, 2304, 16, 1, 2);
    check_format(TENSOR_Q6_K, 17, 512, 8, 0, 4);
}
static void halves(void **state) {
    (void)state;
    if (rig == NULL) skip();
    check_format(TENSOR_F16, 24, 288, 16, 4, 1);
    if (rig->device.cc >= 80) check_format(TENSOR_BF16, 24, 96, 16, 4, 2);
}

/* What follows compares fused forms with their parts, at the default model's row length. */
enum { D = 576, FF = 192, HEADS = 3, KV = 1, HD = 64, N_QKV = (HEADS + 2 * KV) * HD, FEW = 5 };

static void launch_matmul(const struct matmul_spec *m, uint32_t n_rows, struct matmul_params *p) {
    struct kernel_spec spec = {.family = KERNEL_MATMUL};
    spec.matmul = *m;
    struct rig_kernel k;
    rig_choose(rig, &spec, n_rows, false, &k);
    rig_launch(rig, &k, p);
    rig_unload(rig, &k);
}

static void launch_norm(const struct norm_spec *n, uint32_t n_rows, struct norm_params *p) {
    struct kernel_spec spec = {.family = KERNEL_NORM};
    spec.norm = *n;
    struct rig_kernel k;
    rig_choose(rig, &spec, n_rows, false, &k);
    rig_launch(rig, &k, p);
    rig_unload(rig, &k);
}

/* The norm kernel's planes: each value within half a step of the float64 norm, and scales exact. */
static void norm_quantises(void **state) {
    (void)state;
    if (rig == NULL) skip();
    static const uint32_t ks[] = {576, 1184, 96};
    for (unsigned c = 0; c < 3; c++) {
        const uint32_t k = ks[c];
        const size_t bytes = kernel_planes_bytes(k, 16), kp = (k + 63) / 64 * 64;
        float *x = malloc(sizeof *x * FEW * k), *y = malloc(sizeof *x * FEW * k);
        float *w = malloc(sizeof *w * k), *after = malloc(sizeof *x * FEW * k);
        uint8_t *planes = malloc(bytes * FEW), *plain = malloc(bytes * ROWS_PADDED);
        rig_normals(rig, x, (size_t)FEW * k, 3);
        rig_normals(rig, y, (size_t)FEW * k, 3);
        rig_normals(rig, w, k, 1);
        const uint64_t x_at = rig_put(rig, x, sizeof *x * FEW * k);
        const uint64_t y_at = rig_put(rig, y, sizeof *y * FEW * k);
        const uint64_t w_at = rig_put(rig, w, sizeof *w * k);
        const uint64_t out = rig_zeros(rig, bytes * FEW), run = run_bits(FEW);
        struct norm_params p = {.x = x_at,
                                .y = y_at,
                                .post_norm = w_at,
                                .norm = w_at,
                                .out = out,
                                .run = run,
                                .max_rows = FEW};
        struct norm_spec n = {.k = k,
                              .add = 1,
                              .post_norm = c == 1,
                              .norm = 1,
                              .activation_bits = 16,
                              .epsilon = 1e-5f,
                              .scale = 0.5f};
        launch_norm(&n, FEW, &p);
        rig_read(rig, planes, out, bytes * FEW);
        rig_read(rig, after, x_at, sizeof *after * FEW * k);
        for (uint32_t r = 0; r < FEW; r++) {
            double sum = 0, post = 0;
            const float *row = x + (size_t)r * k, *yr = y + (size_t)r * k;
            double *v = malloc(sizeof *v * k);
            for (uint32_t i = 0; i < k; i++) post += (double)yr[i] * (double)yr[i];
            post = c == 1 ? 1 / sqrt(post / k + 1e-5) : 1;
            for (uint32_t i = 0; i < k; i++) {
                const double a = (double)yr[i] * post * (c == 1 ? (double)w[i] : 1);
                v[i] = r == OFF_ROW ? (double)row[i] : (double)row[i] + 0.5 * a;
                assert_true(fabs((double)after[(size_t)r * k + i] - v[i]) < 1e-5);
                sum += v[i] * v[i];
            }
            const double factor = 1 / sqrt(sum / k + 1e-5);
            for (uint32_t b = 0; b < k / 32 && r != OFF_ROW; b++) {
                float sx[2];
                int32_t total = 0;
                memcpy(sx, planes + r * bytes + kp * 2 + b * 8, 8);
                for (uint32_t i = 0; i < 32; i++) {
                    const size_t at = r * bytes + b * 32 + i % 16 / 4 * 8 + i / 16 * 4 + i % 4;
                    const int32_t q = 256 * (int8_t)planes[at] + (int8_t)planes[at + kp];
                    const double exact = v[b * 32 + i] * factor * (double)w[b * 32 + i];
                    assert_true(fabs(q * (double)sx[0] - exact) <=
                                0.51 * (double)sx[0] + 3e-6 * fabs(exact));
                    total += q;
                }
                assert_true(sx[1] == sx[0] * (float)total);
            }
            free(v);
        }
        /* Quantising alone has the CPU backend's bits. */
        struct norm_spec q = {.k = k, .activation_bits = 16, .scale = 1};
        p.x = y_at;
        launch_norm(&q, FEW, &p);
        rig_read(rig, planes, out, bytes * FEW);
        planes_of(y, FEW, k, 16, plain);
        for (uint32_t r = 0; r < FEW; r++)
            if (r != OFF_ROW) assert_memory_equal(planes + r * bytes, plain + r * bytes, bytes);
        const uint64_t all[] = {x_at, y_at, w_at, out, run};
        for (unsigned i = 0; i < 5; i++) rig_free(rig, all[i]);
        free(x);
        free(y);
        free(w);
        free(after);
        free(planes);
        free(plain);
    }
}

/* q, k, v: the fused kernel (norm in, rotation and pages out) against plain products of the same
 * planes and the rotation in C. */
static void qkv(void **state) {
    (void)state;
    if (rig == NULL) skip();
    static const uint32_t row_counts[] = {1, FEW, 12};
    for (unsigned c = 0; c < 3; c++) {
        const uint32_t n_rows = row_counts[c];
        const uint32_t rope = c == 1 ? KERNEL_ROPE_ADJACENT : KERNEL_ROPE_HALVES;
        const uint32_t rd = c == 2 ? 32 : HD;
        uint32_t order[N_QKV];
        repack_order_qkv(HEADS, KV, HD, rope, rd, order);
        struct matrix m;
        matrix_make(&m, TENSOR_Q4_1, N_QKV, D, order);
        const size_t planes_bytes = kernel_planes_bytes(D, 16);
        float x[12 * D], w[D], bias[N_QKV], table[64 * HD];
        rig_normals(rig, x, 12 * D, 1);
        rig_normals(rig, w, D, 1);
        rig_normals(rig, bias, N_QKV, 1);
        for (uint32_t i = 0; i < 64 * rd / 2; i++) {
            table[2 * i] = cosf((float)i * 0.37f);
            table[2 * i + 1] = sinf((float)i * 0.37f);
        }
        uint32_t position[12], row_pages[12], pages[12];
        for (uint32_t r = 0; r < 12; r++) {
            position[r] = (r * 7 + 3) % 64;
            row_pages[r] = 0;
            pages[r] = 5 - r % 4; /* of positions 16 r ..: pages 5, 4, 3, 2 */
        }
        /* Rows may share a page, never a position of it. */
        const size_t page_bytes = 2 * (size_t)KV * HD * 16 * 2;
        const uint64_t x_at = rig_put(rig, x, sizeof x), w_at = rig_put(rig, w, sizeof w);
        const uint64_t run = run_bits(n_rows), planes = rig_zeros(rig, planes_bytes * ROWS_PADDED);
        const uint64_t q_at = rig_zeros(rig, sizeof(float) * 12 * HEADS * HD);
        const uint64_t kv_at = rig_zeros(rig, page_bytes * 6);
        const uint64_t bias_at = rig_put(rig, bias, sizeof bias);
        struct matmul_params p = {.weights = m.device,
                                  .bias = bias_at,
                                  .x = x_at,
                                  .norm = w_at,
                                  .out = q_at,
                                  .run = run,
                                  .row_position = rig_put(rig, position, sizeof position),
                                  .row_pages = rig_put(rig, row_pages, sizeof row_pages),
                                  .pages = rig_put(rig, pages, sizeof pages),
                                  .kv = kv_at,
                                  .page_bytes = page_bytes,
                                  .rope = rig_put(rig, table, sizeof table),
                                  .out_stride = HEADS * HD,
                                  .max_rows = n_rows};
        struct matmul_spec spec = {.format = TENSOR_Q4_1,
                                   .n = N_QKV,
                                   .k = D,
                                   .activation_bits = 16,
                                   .input = KERNEL_IN_NORM,
                                   .epilogue = KERNEL_OUT_QKV,
                                   .bias = 1,
                                   .epsilon = 1e-5f,
                                   .scale = 1,
                                   .n_heads = HEADS,
                                   .n_kv_heads = KV,
                                   .head_dim = HD,
                                   .rope = rope,
                                   .rope_dims = rd,
                                   .attn_scale = 0.125f};
        launch_matmul(&spec, n_rows, &p);
        float q[12 * HEADS * HD];
        uint16_t kv[6 * 2 * KV * HD * 16];
        rig_read(rig, q, q_at, sizeof q);
        rig_read(rig, kv, kv_at, sizeof kv);
        struct norm_params np = {
            .x = x_at, .norm = w_at, .out = planes, .run = run, .max_rows = n_rows};
        const struct norm_spec ns = {
            .k = D, .norm = 1, .activation_bits = 16, .epsilon = 1e-5f, .scale = 1};
        launch_norm(&ns, n_rows, &np);
        uint8_t *rows = malloc(planes_bytes * ROWS_PADDED);
        rig_read(rig, rows, planes, planes_bytes * ROWS_PADDED);
        for (uint32_t r = 0; r < n_rows; r++) {
            if (r == OFF_ROW) continue;
            for (uint32_t head = 0; head < HEADS + 2 * KV; head++) {
                float y[HD];
                for (uint32_t d = 0; d < HD; d++)
                    y[d] = product(&m, rows, 16, r, head * HD + d) + bias[head * HD + d];
                const float *cs = table + position[r] * rd;
                for (uint32_t i = 0; head < HEADS + KV && i < rd / 2; i++) {
                    const uint32_t d0 = rope == KERNEL_ROPE_HALVES ? i : 2 * i;
                    const uint32_t d1 = rope == KERNEL_ROPE_HALVES ? i + rd / 2 : 2 * i + 1;
                    const float a = y[d0], b = y[d1];
                    y[d0] = fmaf(a, cs[2 * i], b * -cs[2 * i + 1]);
                    y[d1] = fmaf(b, cs[2 * i], a * cs[2 * i + 1]);
                }
                const uint16_t *page = kv + pages[position[r] / 16] * page_bytes / 2;
                for (uint32_t d = 0; d < HD; d++) {
                    if (head < HEADS) {
                        const float expected = y[d] * 0.125f;
                        assert_memory_equal(&q[(r * HEADS + head) * HD + d], &expected, 4);
                    } else if (head < HEADS + KV) {
                        const uint32_t at = ((head - HEADS) * HD + d) * 16 + position[r] % 16;
                        assert_int_equal(page[at], f32_to_f16(y[d]));
                    } else {
                        const uint32_t v = KV * HD * 16;
                        const uint32_t at =
                            v + ((head - HEADS - KV) * 16 + position[r] % 16) * HD + d;
                        assert_int_equal(page[at], f32_to_f16(y[d]));
                    }
                }
            }
        }
        free(rows);
        const uint64_t all[] = {x_at,    w_at,           run,         planes,  q_at,  kv_at,
                                bias_at, p.row_position, p.row_pages, p.pages, p.rope};
        for (unsigned i = 0; i < sizeof all / sizeof *all; i++) rig_free(rig, all[i]);
        matrix_free(&m);
    }
}

/* The whole feed-forward in one launch, against its four parts. */
static void feed_forward(void **state) {
    (void)state;
    if (rig == NULL) skip();
    static const struct {
        enum tensor_type gate, down;
        uint32_t n_rows, d, bits;
    } forms[] = {{TENSOR_Q4_1, TENSOR_Q4_1, 1, D, 16},
                 {TENSOR_Q4_1, TENSOR_Q4_1, 2, D, 8},
                 {TENSOR_Q4_0, TENSOR_Q8_0, FEW, 96, 16},
                 {TENSOR_Q4_1, TENSOR_Q4_1, 12, D, 16},
                 {TENSOR_Q4_1, TENSOR_Q8_0, 20, D, 16}, /* the norms spread over the CTAs */
                 {TENSOR_Q4_0, TENSOR_Q4_1, ROWS, D, 8},
                 {TENSOR_F16, TENSOR_F16, FEW, 96, KERNEL_PLANES_F16}};
    for (unsigned f = 0; f < sizeof forms / sizeof *forms; f++) {
        const uint32_t n_rows = forms[f].n_rows, d = forms[f].d, bits = forms[f].bits;
        uint32_t order[2 * FF];
        repack_order_gated(FF, order);
        struct matrix gate, down;
        matrix_make(&gate, forms[f].gate, 2 * FF, d, order);
        matrix_make(&down, forms[f].down, d, FF, NULL);
        float *x = malloc(sizeof *x * n_rows * d), *w = malloc(sizeof *w * d);
        float *fused = malloc(sizeof *x * n_rows * d), *parts = malloc(sizeof *x * n_rows * d);
        rig_normals(rig, x, (size_t)n_rows * d, 1);
        rig_normals(rig, w, d, 1);
        const uint64_t x0 = rig_put(rig, x, sizeof *x * n_rows * d);
        const uint64_t x1 = rig_put(rig, x, sizeof *x * n_rows * d);
        const uint64_t w_at = rig_put(rig, w, sizeof *w * d), run = run_bits(n_rows);
        const uint64_t h_planes = rig_zeros(rig, kernel_planes_bytes(FF, bits) * ROWS_PADDED);
        const uint64_t x_planes = rig_zeros(rig, kernel_planes_bytes(d, bits) * ROWS_PADDED);
        const uint64_t h = rig_zeros(rig, sizeof(float) * n_rows * FF);
        const uint64_t barrier = rig_zeros(rig, 8);
        const size_t next_bytes = kernel_planes_bytes(d, 16) * ROWS_PADDED;
        const uint64_t normed = rig_zeros(rig, next_bytes), next = rig_zeros(rig, next_bytes);
        uint32_t next_words[2] = {~0u >> 3, (1u << (ROWS - 32)) - 1}; /* other rows than run */
        if (n_rows <= 32) next_words[0] = 0x55555555u & ((1u << (n_rows - 1)) * 2 - 1);
        if (n_rows <= 32) next_words[1] = 0;
        const uint64_t next_run = rig_put(rig, next_words, sizeof next_words);
        const bool many = n_rows > 16;
        struct kernel_spec spec = {.family = KERNEL_FFN};
        spec.ffn = (struct ffn_spec){.format = forms[f].gate,
                                     .n = FF,
                                     .k = d,
                                     .down_format = forms[f].down,
                                     .activation_bits = bits,
                                     .gelu = f == 1,
                                     .input = many ? KERNEL_IN_PLANES : KERNEL_IN_NORM,
                                     .next_bits = many ? 16 : 0,
                                     .epsilon = 1e-5f,
                                     .scale = 1.25f};
        struct rig_kernel k;
        rig_choose(rig, &spec, n_rows, false, &k);
        struct ffn_params p = {.weights = gate.device,
                               .down_weights = down.device,
                               .norm = w_at,
                               .x = x0,
                               .h = h_planes,
                               .planes = normed,
                               .next_norm = w_at,
                               .run = run,
                               .next_run = next_run,
                               .barrier = barrier,
                               .max_rows = n_rows};
        /* Twice: the barrier must be ready for the next launch. */
        rig_launch(rig, &k, &p);
        rig_launch(rig, &k, &p);
        rig_unload(rig, &k);
        rig_read(rig, fused, x0, sizeof *x * n_rows * d);
        for (int pass = 0; pass < 2; pass++) {
            struct norm_params np = {
                .x = x1, .norm = w_at, .out = x_planes, .run = run, .max_rows = n_rows};
            struct norm_spec ns = {
                .k = d, .norm = 1, .activation_bits = bits, .epsilon = 1e-5f, .scale = 1};
            launch_norm(&ns, n_rows, &np);
            struct matmul_spec ms = {.format = forms[f].gate,
                                     .n = 2 * FF,
                                     .k = d,
                                     .activation_bits = bits,
                                     .epilogue = KERNEL_OUT_GATED,
                                     .gelu = f == 1,
                                     .scale = 1};
            struct matmul_params mp = {.weights = gate.device,
                                       .planes = x_planes,
                                       .out = h,
                                       .run = run,
                                       .out_stride = FF,
                                       .max_rows = n_rows};
            launch_matmul(&ms, n_rows, &mp);
            if (pass == 0 && !many) {
                /* The same planes whether the product's epilogue quantises or a kernel does. */
                ms.epilogue = KERNEL_OUT_GATED_PLANES;
                mp.out = h_planes;
                launch_matmul(&ms, n_rows, &mp);
            } else {
                np = (struct norm_params){.x = h, .out = h_planes, .run = run, .max_rows = n_rows};
                ns = (struct norm_spec){.k = FF, .activation_bits = bits, .scale = 1};
                launch_norm(&ns, n_rows, &np);
            }
            ms = (struct matmul_spec){.format = forms[f].down,
                                      .n = d,
                                      .k = FF,
                                      .activation_bits = bits,
                                      .epilogue = KERNEL_OUT_RESIDUAL,
                                      .scale = 1.25f};
            mp = (struct matmul_params){.weights = down.device,
                                        .planes = h_planes,
                                        .out = x1,
                                        .run = run,
                                        .out_stride = d,
                                        .max_rows = n_rows};
            launch_matmul(&ms, n_rows, &mp);
        }
        rig_read(rig, parts, x1, sizeof *x * n_rows * d);
        same("ffn", fused, parts, (size_t)n_rows * d, true);
        assert_true(memcmp(fused, x, sizeof *x * d) != 0);
        if (many) {
            /* What it leaves for the next layer is what the norm kernel makes of the same rows. */
            struct norm_params np = {
                .x = x1, .norm = w_at, .out = next, .run = next_run, .max_rows = n_rows};
            const struct norm_spec ns = {
                .k = d, .norm = 1, .activation_bits = 16, .epsilon = 1e-5f, .scale = 1};
            launch_norm(&ns, n_rows, &np);
            const size_t row_bytes = kernel_planes_bytes(d, 16), written = (d + 63) / 64 * 144;
            uint8_t *a = malloc(next_bytes), *b = malloc(next_bytes);
            rig_read(rig, a, normed, next_bytes);
            rig_read(rig, b, next, next_bytes);
            for (uint32_t r = 0; r < n_rows; r++)
                if (next_words[r / 32] >> r % 32 & 1)
                    assert_memory_equal(a + r * row_bytes, b + r * row_bytes, written);
            free(a);
            free(b);
        }
        /* Against float64 on the first row: the class's error, not more. */
        const uint64_t all[] = {x0, x1,      w_at,   run,  h_planes, x_planes,
                                h,  barrier, normed, next, next_run};
        for (unsigned i = 0; i < sizeof all / sizeof *all; i++) rig_free(rig, all[i]);
        matrix_free(&gate);
        matrix_free(&down);
        free(x);
        free(w);
        free(fused);
        free(parts);
    }
}

/* act(gate) * up and the soft cap against float64. */
static void activations(void **state) {
    (void)state;
    if (rig == NULL) skip();
    enum { K = 64, N = 64 };
    for (uint32_t gelu = 0; gelu < 2; gelu++) {
        uint32_t order[2 * N];
        repack_order_gated(N, order);
        struct matrix m, plain;
        matrix_make(&m, TENSOR_Q8_0, 2 * N, K, order);
        matrix_make(&plain, TENSOR_Q8_0, N, K, NULL);
        float x[2 * K], out[2 * N];
        rig_normals(rig, x, K, 40);
        rig_normals(rig, x + K, K, 1);
        uint8_t *planes = malloc(kernel_planes_bytes(K, 16) * ROWS_PADDED);
        planes_of(x, 2, K, 16, planes);
        const uint64_t planes_at = rig_put(rig, planes, kernel_planes_bytes(K, 16) * ROWS_PADDED);
        const uint64_t out_at = rig_zeros(rig, sizeof out), run = run_bits(2);
        struct matmul_spec spec = {.format = TENSOR_Q8_0,
                                   .n = 2 * N,
                                   .k = K,
                                   .activation_bits = 16,
                                   .epilogue = KERNEL_OUT_GATED,
                                   .gelu = gelu,
                                   .scale = 1};
        struct matmul_params p = {.weights = m.device,
                                  .planes = planes_at,
                                  .out = out_at,
                                  .run = run,
                                  .out_stride = N,
                                  .max_rows = 2};
        launch_matmul(&spec, 2, &p);
        rig_read(rig, out, out_at, sizeof out);
        for (uint32_t r = 0; r < 2; r++)
            for (uint32_t i = 0; i < N; i++) {
                const double g = (double)product(&m, planes, 16, r, i);
                const double up = (double)product(&m, planes, 16, r, N + i);
                const double u = 0.7978845608028654 * (g + 0.044715 * g * g * g);
                const double act = gelu ? 0.5 * g * (1 + tanh(u)) : g / (1 + exp(-g));
                const double error = fabs((double)out[r * N + i] - act * up);
                if (error > 2e-6 * fabs(act * up) + 1e-6)
                    fail_msg("act(%g) * %g is %g", g, up, (double)out[r * N + i]);
            }
        spec = (struct matmul_spec){.format = TENSOR_Q8_0,
                                    .n = N,
                                    .k = K,
                                    .activation_bits = 16,
                                    .scale = 0.25f,
                                    .softcap = 30};
        p.weights = plain.device;
        launch_matmul(&spec, 2, &p);
        rig_read(rig, out, out_at, sizeof out);
        for (uint32_t r = 0; r < 2; r++)
            for (uint32_t i = 0; i < N; i++) {
                const double y = (double)product(&plain, planes, 16, r, i) * 0.25;
                assert_true(fabs((double)out[r * N + i] - 30 * tanh(y / 30)) < 3e-5);
            }
        rig_free(rig, planes_at);
        rig_free(rig, out_at);
        rig_free(rig, run);
        matrix_free(&m);
        matrix_free(&plain);
        free(planes);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(q4_1),        cmocka_unit_test(q4_0),
        cmocka_unit_test(q8_0),        cmocka_unit_test(k_quants),
        cmocka_unit_test(halves),      cmocka_unit_test(norm_quantises),
        cmocka_unit_test(qkv),         cmocka_unit_test(feed_forward),
        cmocka_unit_test(activations),
    };
    const struct CMUnitTest few[] = {cmocka_unit_test(q4_1), cmocka_unit_test(qkv),
                                     cmocka_unit_test(feed_forward)};
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
