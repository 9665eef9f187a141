/* The vector kernels: every instruction set against plain C bit for bit, over sizes with ragged
 * ends; and plain C against float64. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/cpu/vector.h"
#include "core/rng.h"

enum { MAX_N = 1600 };

static uint32_t counter;
static double uniform(void) {
    return (double)(rng_draw(31, 0, counter++, RNG_TEST, 0) >> 11) * 0x1p-53;
}
static uint32_t below(uint32_t n) {
    return (uint32_t)(uniform() * n);
}
static void fill(float *x, uint32_t n, double size) {
    for (uint32_t i = 0; i < n; i++) x[i] = (float)((2 * uniform() - 1) * size);
}

static const struct vector_kernels *scalar(void) {
    return vector_kernels(CPU_ISA_SCALAR);
}

/* Calls check(kernels) for every other set that this machine runs. */
static void for_each_set(void (*check)(const struct vector_kernels *k)) {
    struct cpu_features f;
    cpu_features_detect(&f);
    for (unsigned isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (isa == CPU_ISA_SCALAR) continue;
        if (!cpu_isa_supported(&f, (enum cpu_isa)isa) ||
            vector_kernels((enum cpu_isa)isa) == NULL) {
            printf("skip: %s does not run here\n", cpu_isa_name((enum cpu_isa)isa));
            continue;
        }
        check(vector_kernels((enum cpu_isa)isa));
    }
}

static void same(const char *what, const float *a, const float *b, uint32_t n) {
    if (memcmp(a, b, n * sizeof *a) == 0) return;
    uint32_t i = 0;
    while (memcmp(&a[i], &b[i], sizeof *a) == 0) i++;
    fail_msg("%s, n %u: element %u is %.9g, want %.9g", what, n, i, (double)a[i], (double)b[i]);
}

static void elementwise_equals_scalar(const struct vector_kernels *k) {
    static float x[MAX_N], y[MAX_N], w[MAX_N], a[MAX_N], b[MAX_N], c[MAX_N], s[MAX_N];
    for (int round = 0; round < 2000; round++) {
        const uint32_t n = 1 + below(round % 10 == 0 ? MAX_N - 1 : 70);
        const double size = round % 7 == 0 ? 1e4 : round % 7 == 1 ? 1e-20 : 5;
        fill(x, n, size), fill(y, n, size), fill(w, n, 2);
        if (round % 11 == 0) x[below(n)] = round % 2 ? INFINITY : 0;
        k->rms_norm(x, w, n, 1e-5f, a);
        scalar()->rms_norm(x, w, n, 1e-5f, b);
        if (round % 11 != 0) same("rms_norm", a, b, n);
        memcpy(a, x, sizeof a), memcpy(b, x, sizeof b);
        k->add_scaled(a, y, 0.7f, n), scalar()->add_scaled(b, y, 0.7f, n);
        same("add_scaled", a, b, n);
        k->scale(a, 1.3f, n), scalar()->scale(b, 1.3f, n);
        same("scale", a, b, n);
        k->softcap(a, 30, n), scalar()->softcap(b, 30, n);
        same("softcap", a, b, n);
        for (int act = 0; act < 2; act++) {
            if (round % 11 == 0) break;
            memcpy(a, x, sizeof a), memcpy(b, x, sizeof b);
            k->gated(a, y, n, (enum plan_activation)act);
            scalar()->gated(b, y, n, (enum plan_activation)act);
            same(act == PLAN_SILU ? "silu" : "gelu", a, b, n);
        }
        const uint32_t even = 2 * (1 + below(70));
        fill(x, even, 3), fill(c, even, 1), fill(s, even, 1);
        for (int style = 0; style < 2; style++) {
            memcpy(a, x, sizeof a), memcpy(b, x, sizeof b);
            k->rope(a, c, s, even, (enum rope_style)style);
            scalar()->rope(b, c, s, even, (enum rope_style)style);
            same(style == ROPE_ADJACENT ? "rope, adjacent" : "rope, halves", a, b, even);
        }
    }
}
static void elementwise_has_the_same_bits(void **state) {
    (void)state;
    for_each_set(elementwise_equals_scalar);
}

static void elementwise_is_right(void **state) {
    (void)state;
    enum { N = 100 };
    float x[N], y[N], w[N], a[N];
    for (int round = 0; round < 200; round++) {
        fill(x, N, 6), fill(y, N, 2), fill(w, N, 2);
        double sum = 0;
        for (int i = 0; i < N; i++) sum += (double)x[i] * (double)x[i];
        scalar()->rms_norm(x, w, N, 1e-5f, a);
        for (int i = 0; i < N; i++) {
            const double want = (double)x[i] / sqrt(sum / N + 1e-5) * (double)w[i];
            assert_true(fabs((double)a[i] - want) <= 1e-6 * (1e-3 + fabs(want)));
        }
        for (int act = 0; act < 2; act++) {
            memcpy(a, x, sizeof a);
            scalar()->gated(a, y, N, (enum plan_activation)act);
            for (int i = 0; i < N; i++) {
                const double g = (double)x[i];
                const double f =
                    act == PLAN_SILU
                        ? g / (1 + exp(-g))
                        : 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
                assert_true(fabs((double)a[i] - f * (double)y[i]) < 5e-6);
            }
        }
        memcpy(a, x, sizeof a);
        scalar()->softcap(a, 4, N);
        for (int i = 0; i < N; i++)
            assert_true(fabs((double)a[i] - 4 * tanh((double)x[i] / 4)) < 2e-6);
    }
}

/* A key block with random pages and queries. */
struct block {
    uint32_t n_kv, hd, group, n_rows, kv_head;
    enum kv_format kv;
    struct kv_layout layout;
    uint8_t *pages[KV_BLOCK_TOKENS / KV_PAGE_TOKENS];
    float *k, *v; /* [256][n_kv * hd] */
    float *q;     /* [rows][hd][group] */
    float *acc, *m, *l, *scratch;
    struct attention_block t;
};

static void block_new(struct block *b, const struct vector_kernels *k, uint32_t seed) {
    counter = seed * 1000003u;
    memset(b, 0, sizeof *b);
    b->n_kv = 1 + below(3);
    b->hd = 16 * (1 + below(8));
    b->group = 1 + below(9);
    b->n_rows = 1 + below(ATTENTION_ROWS);
    b->kv = (enum kv_format)below(3);
    b->kv_head = below(b->n_kv);
    b->layout = kv_layout(b->n_kv, b->hd, b->kv);
    const uint32_t width = b->n_kv * b->hd;
    b->k = malloc(KV_BLOCK_TOKENS * width * sizeof(float));
    b->v = malloc(KV_BLOCK_TOKENS * width * sizeof(float));
    fill(b->k, KV_BLOCK_TOKENS * width, 2), fill(b->v, KV_BLOCK_TOKENS * width, 2);
    b->q = malloc(b->n_rows * b->hd * b->group * sizeof(float));
    fill(b->q, b->n_rows * b->hd * b->group, 4 / sqrt(b->hd));
    b->acc = malloc(b->n_rows * b->group * b->hd * sizeof(float));
    b->m = malloc(b->n_rows * b->group * sizeof(float));
    b->l = malloc(b->n_rows * b->group * sizeof(float));
    b->scratch = malloc(ATTENTION_ROWS * b->group * KV_BLOCK_TOKENS * sizeof(float));
    const uint32_t window = below(3) == 0 ? 1 + below(100) : 1000;
    const uint32_t end = b->n_rows + below(KV_BLOCK_TOKENS - b->n_rows + 1);
    b->t = (struct attention_block){
        .k_bytes = b->layout.k0 + b->kv_head * b->layout.k_stride,
        .v_bytes = b->layout.v0 + b->kv_head * b->layout.v_stride,
        .k_scale_bytes = b->layout.k_scale0 + b->kv_head * b->layout.scale_stride,
        .v_scale_bytes = b->layout.v_scale0 + b->kv_head * b->layout.scale_stride,
        .kv = b->kv,
        .head_dim = b->hd,
        .n_group = b->group,
        .n_rows = b->n_rows,
        .softcap = below(4) == 0 ? 10 : 0,
        .scratch = b->scratch};
    uint32_t written = 0;
    for (uint32_t r = 0; r < b->n_rows; r++) {
        const uint32_t hi = end - b->n_rows + r + 1;
        b->t.q[r] = b->q + r * b->hd * b->group;
        b->t.hi[r] = hi;
        b->t.lo[r] = hi > window ? hi - window : 0;
        b->t.acc[r] = b->acc + r * b->group * b->hd;
        b->t.m[r] = b->m + r * b->group;
        b->t.l[r] = b->l + r * b->group;
        written = hi;
    }
    for (uint32_t p = 0; p < KV_BLOCK_TOKENS / KV_PAGE_TOKENS; p++) {
        if (p * 16 >= written || (p + 1) * 16 <= b->t.lo[0]) continue;
        b->pages[p] = malloc(b->layout.layer_bytes);
        memset(b->pages[p], 0xff, b->layout.layer_bytes); /* NaN where nothing is written */
    }
    b->t.pages = (const uint8_t *const *)b->pages;
    for (uint32_t j = b->t.lo[0]; j < written; j++)
        k->kv_write(b->k + j * width, b->v + j * width, b->n_kv, b->hd, b->kv, j % 16,
                    b->pages[j / 16]);
    k->attention_block(&b->t);
}

static void block_free(struct block *b) {
    for (int p = 0; p < KV_BLOCK_TOKENS / KV_PAGE_TOKENS; p++) free(b->pages[p]);
    free(b->k), free(b->v), free(b->q), free(b->acc), free(b->m), free(b->l), free(b->scratch);
}

static void attention_equals_scalar(const struct vector_kernels *k) {
    for (uint32_t seed = 1; seed < 400; seed++) {
        struct block a, b;
        block_new(&a, k, seed);
        block_new(&b, scalar(), seed);
        for (int p = 0; p < KV_BLOCK_TOKENS / KV_PAGE_TOKENS; p++)
            if (a.pages[p] != NULL)
                assert_memory_equal(a.pages[p], b.pages[p], a.layout.layer_bytes);
        same("m", a.m, b.m, a.n_rows * a.group);
        same("l", a.l, b.l, a.n_rows * a.group);
        same("acc", a.acc, b.acc, a.n_rows * a.group * a.hd);
        float m0 = 0.5f, l0 = 3, m1 = 0.5f, l1 = 3, x[128], y[128];
        fill(x, a.hd, 3);
        memcpy(y, x, sizeof y);
        k->attention_merge(&m0, &l0, x, a.m[0], a.l[0], a.acc, a.hd);
        scalar()->attention_merge(&m1, &l1, y, b.m[0], b.l[0], b.acc, b.hd);
        same("merged", x, y, a.hd);
        assert_true(m0 == m1 && l0 == l1);
        block_free(&a);
        block_free(&b);
    }
}
static void attention_has_the_same_bits(void **state) {
    (void)state;
    for_each_set(attention_equals_scalar);
}

static void attention_is_right(void **state) {
    (void)state;
    for (uint32_t seed = 1000; seed < 1200; seed++) {
        struct block b;
        block_new(&b, scalar(), seed);
        const uint32_t width = b.n_kv * b.hd;
        const double bound = b.kv == KV_F32 ? 2e-5 : b.kv == KV_F16 ? 1e-2 : 0.2;
        for (uint32_t r = 0; r < b.n_rows; r++) {
            for (uint32_t g = 0; g < b.group; g++) {
                double s[KV_BLOCK_TOKENS], sum = 0;
                for (uint32_t j = b.t.lo[r]; j < b.t.hi[r]; j++) {
                    s[j] = 0;
                    for (uint32_t d = 0; d < b.hd; d++)
                        s[j] += (double)b.t.q[r][d * b.group + g] *
                                (double)b.k[j * width + b.kv_head * b.hd + d];
                    if (b.t.softcap > 0) s[j] = 10 * tanh(s[j] / 10);
                    sum += s[j] = exp(s[j]);
                }
                for (uint32_t d = 0; d < b.hd; d++) {
                    double want = 0;
                    for (uint32_t j = b.t.lo[r]; j < b.t.hi[r]; j++)
                        want += s[j] / sum * (double)b.v[j * width + b.kv_head * b.hd + d];
                    const double got = (double)b.t.acc[r][g * b.hd + d] / (double)b.t.l[r][g];
                    if (fabs(got - want) > bound)
                        fail_msg("seed %u, kv %d: %.7g, want %.7g", seed, b.kv, got, want);
                }
            }
        }
        block_free(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elementwise_is_right),
        cmocka_unit_test(elementwise_has_the_same_bits),
        cmocka_unit_test(attention_is_right),
        cmocka_unit_test(attention_has_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
