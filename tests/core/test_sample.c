/* The sampler against an independent one that sorts everything, on random and awkward rows; and
 * every instruction set's loops against plain C, bit for bit. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/cpu/vector.h"
#include "core/math.h"
#include "core/rng.h"
#include "core/sample.h"

static uint32_t counter;
static double uniform(void) {
    return (double)(rng_draw(77, 0, counter++, RNG_TEST, 0) >> 11) * 0x1p-53;
}
static uint32_t below(uint32_t n) {
    return (uint32_t)(uniform() * n);
}

struct ranked {
    float z;
    uint32_t id;
    uint64_t mass;
};

static int by_rank(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (x->z != y->z) return x->z > y->z ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}
static int by_id(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    return x->id < y->id ? -1 : 1;
}

/* The token, from the text of core/sample.h with a full sort. */
static uint32_t sorted_sampler(const float *z, uint32_t n, uint32_t position,
                               const struct sample_spec *s) {
    struct ranked *r = malloc(n * sizeof *r);
    float *y = malloc(n * sizeof *y);
    memcpy(y, z, n * sizeof *y);
    for (uint32_t b = 0; b < s->n_biases; b++) {
        float *v = &y[s->biases[b].id];
        *v = (*v > 0 ? *v / s->biases[b].divisor : *v * s->biases[b].divisor) + s->biases[b].delta;
    }
    uint32_t m = 0;
    for (uint32_t i = 0; i < n; i++)
        if (s->allowed == NULL || (s->allowed[i / 64] >> i % 64 & 1))
            r[m++] = (struct ranked){y[i], i, 0};
    uint32_t token;
    if (m == 0) {
        for (uint32_t i = 0; i < n; i++) r[m++] = (struct ranked){z[i], i, 0};
        qsort(r, m, sizeof *r, by_rank);
        token = r[0].id;
        goto out;
    }
    qsort(r, m, sizeof *r, by_rank);
    token = r[0].id;
    if (!(s->temperature > 0)) goto out;
    for (uint32_t i = 0; i < m; i++)
        r[i].mass = (uint64_t)(math_expf((r[i].z - r[0].z) / s->temperature) * 0x1p40f);
    uint32_t kept = s->top_k > 0 && s->top_k < m ? s->top_k : m;
    if (s->top_p < 1) {
        unsigned __int128 left = 0, sum = 0;
        for (uint32_t i = 0; i < kept; i++) left += r[i].mass;
        unsigned __int128 target = left * (uint64_t)((double)s->top_p * 0x1p32) >> 32;
        if (target == 0) target = 1;
        uint32_t i = 0;
        while (i < kept && sum < target) sum += r[i++].mass;
        kept = i;
    }
    uint32_t last = 0;
    for (uint32_t i = 0; i < kept; i++)
        if ((double)r[i].mass >= floor((double)s->min_p * 0x1p40)) r[last++] = r[i];
    qsort(r, last, sizeof *r, by_id);
    uint64_t total = 0;
    for (uint32_t i = 0; i < last; i++) total += r[i].mass;
    uint64_t draw = (uint64_t)((unsigned __int128)rng_draw(s->seed, s->choice, position, s->purpose,
                                                           s->attempt) *
                                   total >>
                               64);
    uint32_t i = 0;
    while (draw >= r[i].mass) draw -= r[i++].mass;
    token = r[i].id;
out:
    free(r);
    free(y);
    return token;
}

static void row_new(float *z, uint32_t n, uint32_t kind) {
    const double size = kind == 0 ? 8 : kind == 1 ? 0.01 : kind == 2 ? 60 : 3;
    for (uint32_t i = 0; i < n; i++) {
        z[i] = (float)((uniform() + uniform() + uniform() - 1.5) * size);
        if (kind == 3) z[i] = (float)rint((double)z[i]); /* many ties */
        if (kind == 4) z[i] = -2;                        /* all equal */
        if (kind == 5) z[i] = i % 2 ? 0.0f : -0.0f;
    }
}

static void spec_new(struct sample_spec *s, uint32_t n, uint64_t *allowed,
                     struct sample_bias *biases) {
    memset(s, 0, sizeof *s);
    s->seed = rng_draw(1, 1, counter, RNG_TEST, 0);
    s->choice = below(3);
    s->target = STEP_NONE;
    s->temperature = below(5) == 0 ? 0 : (float)(0.05 + uniform() * 2);
    s->top_k = below(2) ? 1 + below(below(2) ? 10 : n + 5) : 0;
    s->top_p = below(2) ? (float)uniform() : 1;
    s->min_p = below(3) == 0 ? (float)(uniform() * uniform()) : 0;
    if (below(3) == 0) {
        const uint32_t share = below(4);
        for (uint32_t w = 0; w < (n + 63) / 64; w++) {
            allowed[w] = share == 3 ? UINT64_MAX : 0;
            if (share == 3) continue;
            for (uint32_t i = 0; i < 64; i++)
                if (share > 0 && below(share == 1 ? 2 : 200) == 0) allowed[w] |= UINT64_C(1) << i;
        }
        s->allowed = allowed;
    }
    if (below(2)) {
        uint32_t id = below(5);
        for (; s->n_biases < 20 && id < n; id += 1 + below(n / 10 + 1))
            biases[s->n_biases++] = (struct sample_bias){
                id, below(2) ? 1 : (float)(0.5 + uniform() * 2),
                below(2) ? 0 : (float)((uniform() - 0.5) * (below(4) ? 4 : 200))};
        s->biases = biases;
    }
}

static bool outputs_equal(const struct output *a, const struct output *b) {
    return a->token == b->token && a->bad == b->bad && memcmp(&a->logprob, &b->logprob, 4) == 0 &&
           memcmp(&a->lse, &b->lse, 4) == 0 && memcmp(&a->entropy, &b->entropy, 4) == 0 &&
           memcmp(a->top, b->top, sizeof a->top) == 0;
}

static void agrees_with_a_full_sort(void **state) {
    (void)state;
    static const uint32_t sizes[] = {1, 7, 20, 64, 333, 1024, 5000};
    struct cpu_features f;
    cpu_features_detect(&f);
    float *z = malloc(5000 * sizeof *z);
    void *scratch = aligned_alloc(64, (sample_scratch_bytes(5000) + 63) & ~(size_t)63);
    uint64_t allowed[80];
    struct sample_bias biases[20];
    for (uint32_t round = 0; round < 6000; round++) {
        const uint32_t n = sizes[below(7)];
        row_new(z, n, below(6));
        struct output o = {0};
        spec_new(&o.sample, n, allowed, biases);
        const uint32_t position = below(9999);
        sample_row(NULL, z, n, position, &o, scratch);
        const uint32_t want = sorted_sampler(z, n, position, &o.sample);
        if (o.token != want) fail_msg("round %u, n %u: token %u, want %u", round, n, o.token, want);
        for (unsigned isa = 0; isa < CPU_ISA_COUNT; isa++) {
            if (!cpu_isa_supported(&f, (enum cpu_isa)isa)) continue;
            struct output p = {.sample = o.sample};
            sample_row(&vector_kernels((enum cpu_isa)isa)->sample, z, n, position, &p, scratch);
            if (!outputs_equal(&o, &p))
                fail_msg("round %u, n %u: %s differs", round, n, cpu_isa_name((enum cpu_isa)isa));
        }
    }
    free(z);
    free(scratch);
}

static void reports_are_right(void **state) {
    (void)state;
    enum { N = 3000 };
    static float z[N];
    void *scratch = aligned_alloc(64, (sample_scratch_bytes(N) + 63) & ~(size_t)63);
    for (uint32_t kind = 0; kind < 6; kind++) {
        row_new(z, N, kind);
        struct output o = {.sample = {.target = 17, .top_p = 1}};
        sample_row(NULL, z, N, 0, &o, scratch);
        struct ranked r[N];
        double max = -1e30, sum = 0, entropy = 0;
        for (uint32_t i = 0; i < N; i++) {
            max = fmax(max, (double)z[i]);
            r[i] = (struct ranked){z[i], i, 0};
        }
        for (uint32_t i = 0; i < N; i++) sum += exp((double)z[i] - max);
        for (uint32_t i = 0; i < N; i++) {
            const double p = exp((double)z[i] - max) / sum;
            if (p > 0) entropy -= p * log(p);
        }
        assert_true(fabs((double)o.lse - (max + log(sum))) < 2e-5);
        assert_true(fabs((double)o.entropy - entropy) < 2e-5 * fmax(1, entropy));
        assert_int_equal(o.token, 17);
        assert_true(o.logprob == z[17] - o.lse);
        qsort(r, N, sizeof *r, by_rank);
        for (int i = 0; i < STEP_TOP; i++) {
            assert_int_equal(o.top[i].id, r[i].id);
            assert_true(o.top[i].logit == r[i].z);
        }
    }
    static const float awkward[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        row_new(z, N, 0);
        z[below(N)] = awkward[i];
        for (unsigned isa = 0; isa < CPU_ISA_COUNT; isa++) {
            struct cpu_features f;
            cpu_features_detect(&f);
            if (!cpu_isa_supported(&f, (enum cpu_isa)isa)) continue;
            struct output o = {.sample = {.target = STEP_NONE, .top_p = 1}};
            sample_row(&vector_kernels((enum cpu_isa)isa)->sample, z, N, 0, &o, scratch);
            assert_true(o.bad);
        }
    }
    free(scratch);
}

/* The frequencies of many draws are the probabilities (chi-squared). */
static void draws_follow_the_masses(void **state) {
    (void)state;
    enum { N = 8, DRAWS = 40000 };
    const float z[N] = {0, 1, -1, 0.5f, 2, -3, 0, 1.5f};
    double p[N], sum = 0, chi = 0;
    uint32_t seen[N] = {0};
    void *scratch = aligned_alloc(64, (sample_scratch_bytes(N) + 63) & ~(size_t)63);
    for (int i = 0; i < N; i++) sum += p[i] = exp((double)z[i] / 0.7);
    for (uint32_t i = 0; i < DRAWS; i++) {
        struct output o = {
            .sample = {.seed = 4, .target = STEP_NONE, .temperature = 0.7f, .top_p = 1}};
        sample_row(NULL, z, N, i, &o, scratch);
        seen[o.token]++;
    }
    for (int i = 0; i < N; i++) {
        const double want = p[i] / sum * DRAWS;
        chi += (seen[i] - want) * (seen[i] - want) / want;
    }
    printf("chi-squared of %d draws, 7 degrees: %.2f\n", DRAWS, chi);
    assert_true(chi < 24.3); /* 1 in 1,000 */
    free(scratch);
}

static void times_are_printed(void **state) {
    (void)state;
    enum { N = 49152 };
    float *z = malloc(N * sizeof *z);
    void *scratch = aligned_alloc(64, (sample_scratch_bytes(N) + 63) & ~(size_t)63);
    row_new(z, N, 0);
    struct cpu_features f;
    cpu_features_detect(&f);
    for (unsigned isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!cpu_isa_supported(&f, (enum cpu_isa)isa)) continue;
        static const struct sample_spec specs[] = {
            {.target = STEP_NONE, .top_p = 1},
            {.target = STEP_NONE, .top_p = 1, .temperature = 1},
            {.target = STEP_NONE, .top_p = 0.95f, .top_k = 40, .temperature = 0.8f},
            {.target = STEP_NONE, .top_p = 0.95f, .temperature = 1},
        };
        printf("%-8s", cpu_isa_name((enum cpu_isa)isa));
        for (int s = 0; s < 4; s++) {
            uint64_t best = UINT64_MAX;
            for (uint32_t r = 0; r < 30; r++) {
                struct output o = {.sample = specs[s]};
                const uint64_t t0 = clock_now_ns();
                sample_row(&vector_kernels((enum cpu_isa)isa)->sample, z, N, r, &o, scratch);
                const uint64_t t = clock_now_ns() - t0;
                if (t < best) best = t;
            }
            printf(" %s %.1f us",
                   s == 0   ? "arg-max"
                   : s == 1 ? "plain"
                   : s == 2 ? "k, p"
                            : "p",
                   (double)best * 1e-3);
        }
        printf("\n");
    }
    free(z);
    free(scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_a_full_sort),
        cmocka_unit_test(reports_are_right),
        cmocka_unit_test(draws_follow_the_masses),
        cmocka_unit_test(times_are_printed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
