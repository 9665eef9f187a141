/* matmul_cases.h: the checks of the matmul kernels, without a test framework, so that test_matmul.c
 * runs them under cmocka and neon_main.c runs them in an emulator. A check prints what went wrong
 * and returns false.
 *
 * The oracle is float64 over tensor_dequantise of the original GGUF rows and activations quantised
 * here, from the definition; the scalar table is compared with it, and the others with scalar. */
#ifndef LAC_TESTS_CORE_MATMUL_CASES_H
#define LAC_TESTS_CORE_MATMUL_CASES_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/cpu/matmul.h"

enum blocks { BLOCKS_RANDOM, BLOCKS_ZERO, BLOCKS_SUBNORMAL, BLOCKS_LARGEST, BLOCKS_KINDS };

static const enum cpu_isa case_isas[] = {CPU_ISA_SCALAR, CPU_ISA_AVX2, CPU_ISA_AVXVNNI,
                                         CPU_ISA_AVX512, CPU_ISA_AMX,  CPU_ISA_NEON};
enum { N_CASE_ISAS = sizeof case_isas / sizeof case_isas[0] };

static uint64_t case_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static double case_uniform(uint64_t *state) {
    return (double)(case_random(state) >> 11) * 0x1p-53 * 2 - 1;
}

static void *case_alloc(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    if (!p) abort();
    memset(p, 0xa5, (bytes + 63) / 64 * 64);
    return p;
}

/* A half that stands for a scale in blocks of that kind. */
static uint16_t case_half(uint64_t *rng, enum blocks kind) {
    const uint16_t sign = (uint16_t)(case_random(rng) & 0x8000);
    switch (kind) {
    case BLOCKS_ZERO:
        return sign;
    case BLOCKS_SUBNORMAL:
        return (uint16_t)(sign | (case_random(rng) & 0x3ff));
    case BLOCKS_LARGEST:
        return sign | 0x7bff;
    default:
        return (uint16_t)(sign | (0x2000 + (case_random(rng) & 0x0fff)));
    }
}

/* Random codes, scales by kind. Byte positions of the scales: tensor.c. */
static void case_weights(enum tensor_type type, uint8_t *data, size_t n_weights, enum blocks kind,
                         uint64_t *rng) {
    const struct tensor_format *f = tensor_format(type);
    const size_t n_blocks = n_weights / f->block_weights;
    for (size_t b = 0; b < n_blocks; b++) {
        uint8_t *p = data + b * f->block_bytes;
        for (uint32_t i = 0; i < f->block_bytes; i++) {
            p[i] =
                kind == BLOCKS_LARGEST && case_random(rng) % 2 ? 0xff : (uint8_t)case_random(rng);
        }
        const uint16_t d = case_half(rng, kind), m = case_half(rng, kind);
        float value = (float)case_uniform(rng);
        if (kind == BLOCKS_ZERO) value = 0;
        if (kind == BLOCKS_SUBNORMAL) value *= 0x1p-130f;
        if (kind == BLOCKS_LARGEST) value = value < 0 ? -0x1p60f : 0x1p60f;
        uint32_t bits;
        memcpy(&bits, &value, 4);
        switch (type) {
        case TENSOR_F32:
            memcpy(p, &value, 4);
            break;
        case TENSOR_F16:
            memcpy(p, &d, 2);
            break;
        case TENSOR_BF16:
            p[0] = (uint8_t)(bits >> 16);
            p[1] = (uint8_t)(bits >> 24);
            break;
        case TENSOR_Q2_K:
            memcpy(p + 80, &d, 2);
            memcpy(p + 82, &m, 2);
            break;
        case TENSOR_Q3_K:
            memcpy(p + 108, &d, 2);
            break;
        case TENSOR_Q6_K:
            memcpy(p + 208, &d, 2);
            break;
        case TENSOR_MXFP4:
            p[0] = kind == BLOCKS_ZERO        ? 0
                   : kind == BLOCKS_SUBNORMAL ? (uint8_t)(case_random(rng) % 4)
                   : kind == BLOCKS_LARGEST   ? 180
                                              : (uint8_t)(108 + case_random(rng) % 18);
            break;
        default:
            memcpy(p, &d, 2);
            if (type == TENSOR_Q4_1 || type == TENSOR_Q5_1 || type == TENSOR_Q4_K ||
                type == TENSOR_Q5_K) {
                memcpy(p + 2, &m, 2);
            }
        }
    }
}

struct matmul_case {
    struct tensor tensor;
    struct weight weight;
    struct packed_matrix packed;
    uint32_t n, k, n_rows;
    float *x;    /* [n_rows, k] */
    float *w;    /* [n, k] dequantised from the GGUF rows */
    float *bias; /* [n] */
    void *data, *mem;
};

/* A slice of rows out of the middle of a tensor with two experts, the second one packed. */
static struct matmul_case case_make(enum tensor_type type, uint32_t n, uint32_t k, uint32_t n_rows,
                                    enum blocks kind, uint64_t seed) {
    uint64_t rng = seed;
    const uint32_t row0 = 3, total = n + 5;
    struct matmul_case c = {.n = n, .k = k, .n_rows = n_rows};
    const uint64_t row_bytes = tensor_row_bytes(tensor_format(type), k);
    c.data = case_alloc(2 * total * row_bytes);
    case_weights(type, c.data, (size_t)2 * total * k, kind, &rng);
    c.tensor = (struct tensor){.type = type,
                               .n_dims = 3,
                               .dim = {k, total, 2, 1},
                               .bytes = 2 * total * row_bytes,
                               .data = c.data};
    c.weight = (struct weight){.t = &c.tensor, .row0 = row0, .n_rows = n};
    c.mem = case_alloc(packed_matrix_bytes(type, n, k));
    packed_matrix_init(&c.packed, type, n, k, c.mem);
    const uint32_t middle = c.packed.n_panels / 2;
    packed_matrix_pack(&c.packed, &c.weight, 1, middle, c.packed.n_panels);
    packed_matrix_pack(&c.packed, &c.weight, 1, 0, middle);
    c.w = case_alloc((size_t)n * k * sizeof(float));
    for (uint32_t j = 0; j < n; j++) {
        tensor_dequantise(type, (const uint8_t *)c.data + (total + row0 + j) * row_bytes,
                          c.w + (size_t)j * k, k);
    }
    c.x = case_alloc((size_t)n_rows * k * sizeof(float));
    for (size_t i = 0; i < (size_t)n_rows * k; i++) {
        /* Blocks of different sizes, with outliers, some blocks zero. */
        const double size = i / 32 % 7 == 3 ? 0 : i / 32 % 5 == 1 ? 1e-3 : 1;
        const double v = case_uniform(&rng);
        c.x[i] = (float)(size * (case_random(&rng) % 50 == 0 ? 20 * v : v));
    }
    c.bias = case_alloc(n * sizeof(float));
    for (uint32_t j = 0; j < n; j++) c.bias[j] = (float)case_uniform(&rng);
    return c;
}

static void case_free(struct matmul_case *c) {
    free(c->data);
    free(c->mem);
    free(c->w);
    free(c->x);
    free(c->bias);
}

/* [n_rows, n + 3]; the three columns behind n must stay as they were. */
static float *case_run_by(const struct matmul_kernels *kernels, const struct matmul_case *c,
                          enum activation_format format, const float *bias, uint32_t task_panels,
                          uint32_t task_rows) {
    const size_t row_bytes = activation_row_bytes(format, c->k);
    const size_t stride = c->n + 3;
    uint8_t *acts = case_alloc(c->n_rows * row_bytes);
    float *out = case_alloc(c->n_rows * stride * sizeof(float));
    for (uint32_t r = 0; r < c->n_rows; r++) {
        kernels->quantise(c->x + (size_t)r * c->k, c->k, format, acts + r * row_bytes);
    }
    for (uint32_t r = 0; r < c->n_rows; r += task_rows) {
        const uint32_t rows = c->n_rows - r < task_rows ? c->n_rows - r : task_rows;
        const struct activations x = {format, rows, row_bytes, acts + r * row_bytes};
        for (uint32_t p = 0; p < c->packed.n_panels; p += task_panels) {
            const uint32_t left = c->packed.n_panels - p;
            kernels->matmul(&c->packed, &x, bias, p, p + (left < task_panels ? left : task_panels),
                            out + r * stride, stride);
        }
    }
    free(acts);
    return out;
}

static float *case_run(const struct matmul_case *c, enum cpu_isa isa, enum activation_format format,
                       const float *bias, uint32_t task_panels, uint32_t task_rows) {
    return case_run_by(matmul_kernels(isa), c, format, bias, task_panels, task_rows);
}

static bool same_float(float a, float b) {
    if (isnan(a) && isnan(b)) return true;
    return memcmp(&a, &b, sizeof a) == 0;
}

static bool case_same(const struct matmul_case *c, const float *a, const float *b,
                      const char *what) {
    for (uint32_t r = 0; r < c->n_rows; r++) {
        for (uint32_t j = 0; j < c->n + 3; j++) {
            const size_t i = r * (size_t)(c->n + 3) + j;
            if (same_float(a[i], b[i])) continue;
            printf("# %s %s n=%u k=%u rows=%u: [%u][%u] %a and %a\n",
                   tensor_format(c->tensor.type)->name, what, c->n, c->k, c->n_rows, r, j,
                   (double)a[i], (double)b[i]);
            return false;
        }
    }
    return true;
}

static bool isa_runs(enum cpu_isa isa) {
    struct cpu_features features;
    cpu_features_detect(&features);
    return matmul_kernels(isa) && (isa == CPU_ISA_AMX ? cpu_isa_supported(&features, CPU_ISA_AVX512)
                                                      : cpu_isa_supported(&features, isa));
}

static const char *const format_names[] = {"int16", "int8", "f32"};

/* Every row count, with and without bias, on one shape: isa against scalar. */
static bool check_isa_shape(enum cpu_isa isa, enum tensor_type type, uint32_t n, uint32_t k,
                            enum blocks kind, uint32_t min_rows, uint32_t max_rows) {
    static const uint32_t rows[] = {1, 2, 3, 7, 8, 17, 39, 64, 70};
    bool ok = true;
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i] < min_rows || rows[i] > max_rows) continue;
        struct matmul_case c = case_make(type, n, k, rows[i], kind, 1000 * type + rows[i] + k);
        for (int f = 0; f < 3; f++) {
            const enum activation_format format = (enum activation_format)f;
            if (matmul_activation_format(type, format) != format) continue;
            const float *bias = i % 2 ? c.bias : NULL;
            float *want = case_run(&c, CPU_ISA_SCALAR, format, bias, UINT32_MAX, UINT32_MAX);
            float *got = case_run(&c, isa, format, bias, UINT32_MAX, UINT32_MAX);
            char what[64];
            snprintf(what, sizeof what, "%s %s kind %d", cpu_isa_name(isa), format_names[f], kind);
            ok = case_same(&c, got, want, what) && ok;
            free(want);
            free(got);
        }
        case_free(&c);
    }
    return ok;
}

static uint32_t type_k(enum tensor_type type, uint32_t blocks) {
    const uint32_t block = tensor_format(type)->block_weights;
    /* F32, F16, BF16 take any k: 1, then lengths with a short last block. */
    if (block == 1) return blocks == 1 ? 1 : blocks * 32 - 5;
    return block * blocks;
}

/* One instruction set, one type: equal to scalar bit for bit. */
static bool check_isa(enum cpu_isa isa, enum tensor_type type) {
    bool ok = true;
    const bool super = tensor_format(type)->block_weights == 256;
    ok = check_isa_shape(isa, type, 37, type_k(type, super ? 2 : 3), BLOCKS_RANDOM, 1, 64) && ok;
    /* Many rows: an odd panel behind pairs, the last one cut; several segments of blocks. */
    ok = check_isa_shape(isa, type, 69, type_k(type, super ? 4 : 29), BLOCKS_RANDOM, 39, 70) && ok;
    ok = check_isa_shape(isa, type, 16, type_k(type, 1), BLOCKS_RANDOM, 1, 8) && ok;
    ok = check_isa_shape(isa, type, 1, type_k(type, super ? 3 : 18), BLOCKS_RANDOM, 1, 8) && ok;
    for (int kind = 1; kind < BLOCKS_KINDS; kind++) {
        ok = check_isa_shape(isa, type, 19, type_k(type, 2), (enum blocks)kind, 1, 8) && ok;
        ok = check_isa_shape(isa, type, 32, type_k(type, 1), (enum blocks)kind, 39, 39) && ok;
    }
    return ok;
}

/* The activation that the kernels see, from the definition, as float64. */
static void oracle_quantise(const float *x, uint32_t k, enum activation_format format,
                            double *out) {
    for (uint32_t i = 0; i < k; i++) out[i] = (double)x[i];
    if (format == ACTIVATION_F32) return;
    const float limit = format == ACTIVATION_INT16 ? 32512.0f : 127.0f;
    for (uint32_t b = 0; b < k; b += 32) {
        float amax = 0;
        for (uint32_t i = 0; i < 32; i++) amax = fmaxf(amax, fabsf(x[b + i]));
        const float inverse = amax > 0 ? limit / amax : 0, scale = amax / limit;
        for (uint32_t i = 0; i < 32; i++) {
            out[b + i] = (double)scale * nearbyint((double)(x[b + i] * inverse));
        }
    }
}

/* Scalar against float64, relative to |row of W| * |x| (and the bias, where one is added): over the
 * same quantised activations, and over the unquantised ones. */
static bool check_accuracy(enum tensor_type type, enum blocks kind) {
    bool ok = true;
    struct matmul_case c = case_make(type, 21, type_k(type, 8), 5, kind, 77 + type);
    double *xq = case_alloc(c.k * sizeof(double));
    for (uint32_t i = 0; i < c.k; i++) { /* small and large activations under every kind of scale */
        c.x[(size_t)3 * c.k + i] *= 0x1p-80f;
        c.x[(size_t)4 * c.k + i] *= 0x1p40f;
    }
    for (int f = 0; f < 6; f++) {
        const enum activation_format format = (enum activation_format)(f / 2);
        const float *biases = f % 2 ? c.bias : NULL;
        if (matmul_activation_format(type, format) != format) continue;
        float *out = case_run(&c, CPU_ISA_SCALAR, format, biases, UINT32_MAX, UINT32_MAX);
        double worst_same = 0, worst_float = 0;
        for (uint32_t r = 0; r < c.n_rows; r++) {
            oracle_quantise(c.x + (size_t)r * c.k, c.k, format, xq);
            for (uint32_t j = 0; j < c.n; j++) {
                double same = 0, real = 0, ww = 0, xx = 0;
                for (uint32_t i = 0; i < c.k; i++) {
                    const double w = (double)c.w[(size_t)j * c.k + i];
                    const double x = (double)c.x[(size_t)r * c.k + i];
                    same += w * xq[i];
                    real += w * x;
                    ww += w * w;
                    xx += x * x;
                }
                const double bias = biases ? (double)biases[j] : 0;
                const double got = (double)out[r * (size_t)(c.n + 3) + j];
                /* Subnormal sums are exact to their last bit, no better. */
                const double last_bit = c.k * 0x1p-149;
                const double norm = fmax(sqrt(ww * xx) + fabs(bias), 0x1p-149);
                worst_same = fmax(worst_same, (fabs(got - bias - same) - last_bit) / norm);
                worst_float = fmax(worst_float, (fabs(got - bias - real) - last_bit) / norm);
                if (!isfinite(got)) worst_same = 1;
            }
        }
        const double limit_float = format == ACTIVATION_INT8 ? 2e-2 : 1e-4;
        if (!(worst_same <= (format == ACTIVATION_F32 ? 2e-6 : 1e-5)) ||
            !(worst_float <= limit_float)) {
            printf("# %s %s kind %d: off by %g (same activations), %g (float64)\n",
                   tensor_format(type)->name, format_names[format], kind, worst_same, worst_float);
            ok = false;
        }
        if (getenv("LAC_SHOW") != NULL)
            printf("# %s %s%s blocks %d: %.1e over the same activations, %.1e over float64\n",
                   tensor_format(type)->name, format_names[format], biases ? " bias" : "", kind,
                   worst_same, worst_float);
        free(out);
    }
    free(xq);
    case_free(&c);
    return ok;
}

/* packed_matrix_row gives the bits of tensor_dequantise. */
static bool check_rows(enum tensor_type type) {
    bool ok = true;
    for (int kind = 0; kind < BLOCKS_KINDS; kind++) {
        struct matmul_case c = case_make(type, 21, type_k(type, 3), 1, (enum blocks)kind, 5 + type);
        float *row = case_alloc(c.k * sizeof(float));
        for (uint32_t j = 0; j < c.n && ok; j++) {
            packed_matrix_row(&c.packed, j, row);
            if (memcmp(row, c.w + (size_t)j * c.k, c.k * sizeof(float)) != 0) {
                printf("# %s: row %u differs\n", tensor_format(type)->name, j);
                ok = false;
            }
        }
        free(row);
        case_free(&c);
    }
    return ok;
}

/* Cutting the work into tasks, or asking for a row alone, does not change a bit. */
static bool check_split(enum cpu_isa isa, enum tensor_type type, enum activation_format format) {
    struct matmul_case c = case_make(type, 70, type_k(type, 2), 13, BLOCKS_RANDOM, 9 + type);
    float *whole = case_run(&c, isa, format, c.bias, UINT32_MAX, UINT32_MAX);
    bool ok = true;
    for (uint32_t panels = 1; panels <= 3; panels += 2) {
        for (uint32_t rows = 1; rows <= 9; rows += 4) {
            float *cut = case_run(&c, isa, format, c.bias, panels, rows);
            ok = case_same(&c, cut, whole, "cut into tasks") && ok;
            free(cut);
        }
    }
    for (uint32_t r = 0; r < c.n_rows; r++) {
        uint32_t tail[3];
        memcpy(tail, whole + r * (size_t)(c.n + 3) + c.n, sizeof tail);
        if (tail[0] != 0xa5a5a5a5u || tail[1] != tail[0] || tail[2] != tail[0]) {
            printf("# %s: wrote behind output n\n", tensor_format(type)->name);
            ok = false;
        }
    }
    free(whole);
    case_free(&c);
    return ok;
}

/* NaN and infinity in a row make all its outputs not finite, leave the other rows alone, and tiny
 * or huge values stay what they are. */
static bool check_hostile_rows(enum cpu_isa isa, enum tensor_type type,
                               enum activation_format format) {
    struct matmul_case c = case_make(type, 18, type_k(type, 3), 9, BLOCKS_RANDOM, 31 + type);
    float *clean = case_run(&c, isa, format, NULL, UINT32_MAX, UINT32_MAX);
    float *row = c.x;
    row[1 * c.k + c.k / 2] = NAN;
    row[2 * c.k + 1] = INFINITY;
    row[3 * c.k + c.k - 1] = -INFINITY;
    for (uint32_t i = 0; i < c.k; i++) {
        row[4 * c.k + i] = 0;
        row[5 * c.k + i] = 0x1p-140f;
        row[6 * c.k + i] = (i % 2 ? -0x1p-98f : 0x1p-98f);
        row[7 * c.k + i] = i % 2 ? -0x1p100f : 0x1p100f;
    }
    float *got = case_run(&c, isa, format, NULL, UINT32_MAX, UINT32_MAX);
    float *want = case_run(&c, CPU_ISA_SCALAR, format, NULL, UINT32_MAX, UINT32_MAX);
    bool ok = case_same(&c, got, want, "hostile rows");
    for (uint32_t r = 0; r < c.n_rows; r++) {
        for (uint32_t j = 0; j < c.n; j++) {
            const size_t i = r * (size_t)(c.n + 3) + j;
            bool good;
            if (r == 0 || r == 8) {
                good = same_float(got[i], clean[i]);
            } else if (r < 4) {
                good = format == ACTIVATION_F32 ? !isfinite(got[i]) : isnan(got[i]);
            } else if (r == 4) {
                good = got[i] == 0;
            } else if (r == 5) {
                good = fabsf(got[i]) < 1e-35f;
            } else {
                good = isfinite(got[i]);
            }
            if (!good) {
                printf("# %s %s %s: row %u output %u is %g\n", cpu_isa_name(isa),
                       tensor_format(type)->name, format_names[format], r, j, (double)got[i]);
                ok = false;
                break;
            }
        }
    }
    free(clean);
    free(got);
    free(want);
    case_free(&c);
    return ok;
}

/* No more memory than GGUF takes, where n is a multiple of 16. */
static bool check_size(enum tensor_type type) {
    for (uint32_t blocks = 2; blocks <= 20; blocks += 6) {
        const uint32_t k = tensor_format(type)->block_weights * blocks * 16;
        const double raw = (double)(tensor_row_bytes(tensor_format(type), k) * 48);
        const double packed = (double)packed_matrix_bytes(type, 48, k);
        if (packed < raw || packed > raw * 1.01) {
            printf("# %s k=%u: %g bytes for %g\n", tensor_format(type)->name, k, packed, raw);
            return false;
        }
    }
    return true;
}

#endif
