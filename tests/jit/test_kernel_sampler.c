/* The sampler on the software device draws the tokens of core/sample.c, and reports what it
 * reports. */
#include <math.h>

#include "core/sample.h"
#include "tests/jit/kernel_rig.h"

enum { N_OUTPUTS = 24, N_ROWS = 4, SMS = 3, MAX_BIASES = 8 };

static struct rig rig_memory, *rig;

struct draw_case {
    struct output o;
    uint32_t logits_row, position;
    bool biased, masked;
};

static void fill_logits(float *z, uint32_t n, uint32_t row) {
    for (uint32_t i = 0; i < n; i++) {
        z[i] = rig_normal(rig) * (row == 1 ? 0.01f : 4.0f);
        /* Row 2: many ties; row 3: two values and a few high ones. */
        if (row == 2) z[i] = rintf(z[i]);
        if (row == 3) z[i] = rig_random(rig) % 97 == 0 ? 9.0f : -0.0f;
    }
}

static void close_to(const char *what, uint32_t i, float got, float expected) {
    if (fabsf(got - expected) > 2e-5f * fmaxf(1, fabsf(expected)))
        fail_msg("%s of output %u: %.9g, not %.9g", what, i, (double)got, (double)expected);
}

static void check(uint32_t n, uint32_t seed) {
    float *z = malloc(sizeof *z * N_ROWS * n);
    const uint32_t words = (n + 63) / 64;
    uint64_t *bitmap = malloc(sizeof *bitmap * words);
    struct sample_bias biases[MAX_BIASES];
    struct draw_case cases[N_OUTPUTS];
    struct kernel_sample specs[N_OUTPUTS];
    void *scratch = aligned_alloc(64, (sample_scratch_bytes(n) + 63) & ~(size_t)63);
    for (uint32_t r = 0; r < N_ROWS; r++) fill_logits(z + (size_t)r * n, n, r);
    for (uint32_t w = 0; w < words; w++) bitmap[w] = rig_random(rig) & rig_random(rig);
    if (n % 64 != 0) bitmap[words - 1] &= (UINT64_C(1) << n % 64) - 1;
    for (uint32_t i = 0; i < MAX_BIASES; i++)
        biases[i] = (struct sample_bias){i * (n / MAX_BIASES) + (uint32_t)(rig_random(rig) % 7),
                                         i % 2 ? 1.3f : 1, i % 3 ? 0 : 2.5f};
    for (uint32_t i = 0; i < N_OUTPUTS; i++) {
        struct draw_case *c = &cases[i];
        memset(c, 0, sizeof *c);
        c->logits_row = i % N_ROWS;
        c->position = 100 + i;
        c->biased = i % 5 == 1;
        c->masked = i % 7 == 2;
        struct sample_spec *s = &c->o.sample;
        s->seed = seed + i;
        s->target = i == 9 ? 5 : STEP_NONE;
        static const float temperatures[] = {0, 1, 0.7f, 0.2f, 1.5f, 3};
        s->temperature = temperatures[i % 6];
        s->top_k = i % 4 == 3 ? 1 + i * 3 : 0;
        s->top_p = i % 3 == 2 ? 0.3f + 0.02f * (float)i : 1;
        s->min_p = i % 8 == 5 ? 0.05f : 0;
        if (c->biased) s->biases = biases, s->n_biases = MAX_BIASES;
        if (c->masked) s->allowed = bitmap;
        specs[i] = (struct kernel_sample){
            .random = rng_draw(s->seed, s->choice, c->position, s->purpose, s->attempt),
            .logits_row = c->logits_row,
            .target = s->target,
            .temperature = s->temperature,
            .top_k = s->top_k,
            .top_p = s->top_p,
            .min_p = s->min_p,
            .bitmap = c->masked ? 0 : UINT32_MAX,
            .n_biases = s->n_biases};
    }
    struct kernel_spec spec = {.family = KERNEL_SAMPLER};
    spec.sampler.n = n;
    struct rig_kernel k;
    rig_choose(rig, &spec, N_OUTPUTS, false, &k);
    const uint32_t count = N_OUTPUTS;
    const uint64_t d_answers = rig_zeros(rig, sizeof(struct kernel_answer) * N_OUTPUTS);
    struct sampler_params p = {.logits = rig_put(rig, z, sizeof *z * N_ROWS * n),
                               .specs = rig_put(rig, specs, sizeof specs),
                               .count = rig_put(rig, &count, sizeof count),
                               .bitmaps = rig_put(rig, bitmap, sizeof *bitmap * words),
                               .biases = rig_put(rig, biases, sizeof biases),
                               .scratch =
                                   rig_alloc(rig, kernel_sampler_scratch_bytes(n) * N_OUTPUTS),
                               .answers = d_answers};
    rig_launch(rig, &k, &p);
    struct kernel_answer answers[N_OUTPUTS];
    rig_read(rig, answers, d_answers, sizeof answers);
    for (uint32_t i = 0; i < N_OUTPUTS; i++) {
        struct output *o = &cases[i].o;
        const struct kernel_answer *a = &answers[i];
        sample_row(NULL, z + (size_t)cases[i].logits_row * n, n, cases[i].position, o, scratch);
        assert_int_equal(a->bad, o->bad);
        if (a->token != o->token)
            fail_msg("output %u (temperature %g, k %u, p %g, min %g): token %u, not %u", i,
                     (double)o->sample.temperature, o->sample.top_k, (double)o->sample.top_p,
                     (double)o->sample.min_p, a->token, o->token);
        close_to("lse", i, a->lse, o->lse);
        close_to("logprob", i, a->logprob, o->logprob);
        close_to("entropy", i, a->entropy, o->entropy);
        for (uint32_t j = 0; j < STEP_TOP; j++) {
            assert_int_equal(a->top_id[j], o->top[j].id);
            assert_true(a->top_logit[j] == o->top[j].logit);
        }
    }
    /* A NaN or an infinity spoils its own outputs only. */
    z[n / 2] = seed % 2 ? NAN : INFINITY;
    rig_write(rig, p.logits, z, sizeof *z * n);
    rig_launch(rig, &k, &p);
    struct kernel_answer again[N_OUTPUTS];
    rig_read(rig, again, d_answers, sizeof again);
    for (uint32_t i = 0; i < N_OUTPUTS; i++) {
        assert_int_equal(again[i].bad, cases[i].logits_row == 0);
        if (cases[i].logits_row != 0) assert_memory_equal(&again[i], &answers[i], sizeof again[i]);
    }
    const uint64_t all[] = {d_answers, p.logits, p.specs, p.count, p.bitmaps, p.biases, p.scratch};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) rig_free(rig, all[i]);
    rig_unload(rig, &k);
    free(z);
    free(bitmap);
    free(scratch);
}

static void draws_the_reference_tokens(void **state) {
    (void)state;
    if (rig == NULL) skip();
    check(1000, 1);
    check(2051, 2);
}
static void tiny_vocabulary(void **state) {
    (void)state;
    if (rig == NULL) skip();
    check(64, 3);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_the_reference_tokens),
        cmocka_unit_test(tiny_vocabulary),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    static const char *const devices[] = {"A100", "RTX5090"};
    int failed = 0;
    for (unsigned i = 0; i < 2; i++) {
        rig = rig_open(&rig_memory, devices[i], SMS, i) ? &rig_memory : NULL;
        failed += cmocka_run_group_tests_name(devices[i], tests, NULL, NULL);
        if (rig == NULL) break;
        rig_close(rig);
    }
    return failed;
}
