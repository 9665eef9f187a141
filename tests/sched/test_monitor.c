/* The monitor's numbers against their definition in double, what it holds and withdraws, and what a
 * rollback costs. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "core/clock.h"
#include "core/rng.h"
#include "sched/monitor.h"

enum { D = 52, N_PROMPT = 37, MAX = 300 };

static uint64_t counter;
static float uniform(void) {
    return (float)(rng_draw(7, 0, (uint32_t)counter++, RNG_TEST, 0) >> 40) / 0x1p24f;
}

static float mean[D], user_sum[D], states[MAX][D];
static float entropies[MAX], logprobs[MAX];

static struct monitor_model model = {
    .d_model = D,
    .layer = 1,
    .mean = mean,
    .calibrated = true,
    .rule = {.weights = {0.1f, 0.2f, -0.3f, 0.4f, 0.5f, 0.6f},
             .threshold = FLT_MAX,
             .threshold_hot = FLT_MAX,
             .hold = FLT_MAX,
             .surprise = FLT_MAX,
             .entropy_mean = 1.5f,
             .entropy_deviation = 0.7f,
             .cosine_mean = 0.3f,
             .cosine_deviation = 0.2f,
             .clear_tokens = 6},
};

static struct monitor *start(enum rollback_rule rule, uint32_t window, uint32_t max) {
    static struct monitor m;
    static void *memory;
    free(memory);
    memory = calloc(1, monitor_footprint(D));
    monitor_init(&m, memory, D);
    struct rollback how = ROLLBACK_DEFAULT;
    how.rule = rule;
    how.window = window;
    how.max = max;
    monitor_start(&m, &model, &how, N_PROMPT);
    monitor_prompt(&m, user_sum, 20);
    return &m;
}

static void make(void) {
    for (uint32_t i = 0; i < D; i++)
        mean[i] = uniform() - 0.5f, user_sum[i] = 20 * (uniform() - 0.3f);
    for (uint32_t k = 0; k < MAX; k++) {
        entropies[k] = 3 * uniform();
        logprobs[k] = -4 * uniform();
        for (uint32_t i = 0; i < D; i++) states[k][i] = 2 * uniform() - 1 + user_sum[i] / 40;
    }
}

/* A made-up distribution of 40 ids, of which the last 20 are equally likely. */
static double probability(uint32_t k, uint32_t id) {
    double p[40], all = 0;
    for (uint32_t i = 0; i < 40; i++) {
        p[i] = exp(-(double)(i < 20 ? i : 20) * (0.1 + 0.05 * (k % 7)));
        all += p[i];
    }
    return p[id] / all;
}

static struct output drawn(uint32_t k) {
    struct output o = {.token = k,
                       .entropy = entropies[k],
                       .logprob = logprobs[k],
                       .sample = {.temperature = 0.3f + 0.1f * (float)(k % 9), .top_p = 1}};
    for (uint32_t i = 0; i < STEP_TOP; i++)
        o.top[i] = (struct top_logit){i, (float)log(probability(k, i))};
    return o;
}

/* Draw k of the answer, behind the states of the k tokens before it. */
static struct monitor_verdict draw(struct monitor *m, uint32_t k, struct output *o) {
    if (k > 0) monitor_state(m, N_PROMPT + k - 1, states[k - 1]);
    *o = drawn(k);
    return monitor_draw(m, N_PROMPT + k, o);
}

/* ---- the definition ---- */

static double length(const double *v) {
    double s = 0;
    for (uint32_t i = 0; i < D; i++) s += v[i] * v[i];
    return sqrt(s);
}

static double cosine_of(uint32_t k) {
    double prompt[D], now[D], before[D], reference[D], dot = 0;
    if (k < MONITOR_LEAST) return NAN;
    const uint32_t from = k < 16 ? 0 : k - 16, blocks = k / 16 > 0 ? k / 16 - 1 : 0;
    for (uint32_t i = 0; i < D; i++) {
        prompt[i] = (double)user_sum[i] / 20 - (double)mean[i];
        now[i] = before[i] = 0;
        for (uint32_t r = from; r < k; r++) now[i] += (double)states[r][i] / (k - from);
        for (uint32_t r = 0; r < 16 * blocks; r++)
            before[i] += (double)states[r][i] / (16 * blocks);
        now[i] -= (double)mean[i];
        before[i] -= (double)mean[i];
    }
    const double p = length(prompt), b = length(before);
    for (uint32_t i = 0; i < D; i++) {
        reference[i] = prompt[i] / p + (blocks > 0 ? before[i] / b : 0);
        dot += reference[i] * now[i];
    }
    return dot / (length(reference) * length(now));
}

static double z_of(double x, double n, double sum, double squares, double prior, double m0,
                   double d0) {
    const double mu = (sum + prior * m0) / (n + prior);
    const double var = (squares + prior * (m0 * m0 + d0 * d0)) / (n + prior) - mu * mu;
    return (x - mu) / sqrt(var > 1e-4 ? var : 1e-4);
}

static void features_of(uint32_t k, double f[MONITOR_FEATURES]) {
    double n = 0, s = 0, q = 0;
    for (uint32_t i = 0; k >= MONITOR_SLOPE && i <= k - MONITOR_SLOPE; i++) {
        const double c = cosine_of(i);
        if (!isnan(c)) n++, s += c, q += c * c;
    }
    f[1] = cosine_of(k);
    f[0] = z_of(f[1], n, s, q, 4, 0.3, 0.2);
    f[2] = n > 0 ? f[1] - cosine_of(k - MONITOR_SLOPE) : 0;
    f[3] = f[4] = 0;
    const uint32_t from = k < 15 ? 0 : k - 15;
    for (uint32_t i = from; i <= k; i++) {
        double es = 0, eq = 0;
        for (uint32_t j = 0; j < i; j++) {
            es += (double)entropies[j];
            eq += (double)entropies[j] * (double)entropies[j];
        }
        f[3] += z_of((double)entropies[i], i, es, eq, 8, 1.5, 0.7) / (k - from + 1);
        const struct output o = drawn(i);
        f[4] += (double)monitor_odds(&o) / (k - from + 1);
    }
}

static void test_numbers(void **state) {
    (void)state;
    for (int round = 0; round < 3; round++) {
        make();
        struct monitor *m = start(ROLLBACK_AUTO, 32, 2);
        for (uint32_t k = 0; k < 150; k++) {
            struct output o;
            const struct monitor_verdict v = draw(m, k, &o);
            assert_int_equal(v.commit, N_PROMPT + k + 1); /* nothing is suspicious */
            const double c = cosine_of(k);
            assert_int_equal(isnan(c), isnan(o.cosine));
            if (isnan(c)) continue;
            assert_true(fabs((double)o.cosine - c) < 1e-5);
            double f[MONITOR_FEATURES], score = 0.1;
            features_of(k, f);
            const struct monitor_point *p = &m->points[(N_PROMPT + k) % MONITOR_POINTS];
            for (uint32_t i = 0; i < MONITOR_FEATURES; i++) {
                assert_true(fabs((double)p->features[i] - f[i]) < 1e-3 * (1 + fabs(f[i])));
                score += (double)model.rule.weights[i + 1] * f[i];
            }
            assert_true(fabs((double)p->score - score) < 1e-2);
        }
    }
}

/* Suspicious tokens hold what follows, for so long and no longer; a trigger cuts to the first. */
static void test_odds(void **state) {
    (void)state;
    for (uint32_t k = 0; k < 63; k++) {
        for (uint32_t cut = 0; cut < 2; cut++) {
            struct output o = drawn(k);
            const double t = (double)o.sample.temperature;
            double entropy = 0, all = 0, mass = 0, mean_of = 0, squares = 0, q[40];
            for (uint32_t i = 0; i < 40; i++) {
                entropy -= probability(k, i) * log(probability(k, i));
                q[i] = pow(probability(k, i), 1 / t);
                all += q[i];
            }
            o.sample.top_p = cut ? 0.3f : 1;
            for (uint32_t i = 0; i < 40 && (!cut || mass < 0.3 * all); i++) {
                const double x = -log(probability(k, i));
                mass += q[i], mean_of += q[i] * x, squares += q[i] * x * x;
            }
            mean_of /= mass;
            o.entropy = (float)entropy;
            o.logprob = (float)log(probability(k, 25));
            const double z =
                (-(double)o.logprob - mean_of) / sqrt(squares / mass - mean_of * mean_of + 0.25);
            assert_true(fabs((double)monitor_odds(&o) - (z > 8 ? 8 : z)) < 1e-3);
            /* The likeliest token of a greedy draw is what was to be expected. */
            o.sample.temperature = 0;
            o.logprob = o.top[0].logit - o.lse;
            assert_true(fabsf(monitor_odds(&o)) < 1e-6f);
            o.logprob = -1e30f;
            assert_true(monitor_odds(&o) == MONITOR_ODDS_MOST);
            const struct sample_bias own = {.id = o.token, .divisor = 1, .delta = 5};
            o.sample.biases = &own;
            o.sample.n_biases = 1;
            assert_true(monitor_odds(&o) == 0);
        }
    }
}

static void test_hold_and_cut(void **state) {
    (void)state;
    make();
    struct monitor_model usual = model;
    model.rule.surprise = 10;
    for (uint32_t window = 3; window <= 32; window += 29) {
        struct monitor *m = start(ROLLBACK_AUTO, window, 2);
        struct output o;
        uint32_t last = 0;
        for (uint32_t k = 0; k < 60; k++) {
            if (k == 20 || k == 23) logprobs[k] = -11;
            const struct monitor_verdict v = draw(m, k, &o);
            if (k == 20 || k == 23) last = k;
            const uint32_t clear = model.rule.clear_tokens;
            uint32_t held = k + 1;
            if (k >= 20 && k - 20 < clear) held = 20;
            if (k >= 23 && k - 20 >= clear && k - 23 < clear) held = 23;
            if (k + 1 > window && held < k + 1 - window) held = k + 1 - window;
            (void)last;
            assert_int_equal(v.commit,
                             N_PROMPT + (k >= 20 && window < 32 ? v.commit - N_PROMPT : held));
            assert_true(v.commit <= N_PROMPT + k + 1 && v.commit + window >= N_PROMPT + k + 1);
            assert_int_equal(v.cut, 0);
        }
    }
    /* The same, with a score that comes to the threshold three draws later. */
    struct monitor *m = start(ROLLBACK_AUTO, 32, 1);
    struct output o;
    struct monitor_verdict v = {0};
    for (uint32_t k = 0; k < 24; k++) {
        if (k == 23) model.rule.threshold = model.rule.threshold_hot = -FLT_MAX;
        v = draw(m, k, &o);
    }
    assert_int_equal(v.cut, N_PROMPT + 20);
    const uint32_t *ids;
    assert_int_equal(monitor_excluded(m, N_PROMPT + 20, &ids), 1);
    assert_int_equal(ids[0], 20);
    assert_int_equal(monitor_excluded(m, N_PROMPT + 21, &ids), 0);
    struct sample_spec spec = {.temperature = 0.8f, .top_p = 1};
    monitor_spec(m, &spec);
    assert_int_equal(spec.attempt, 1);
    assert_true(spec.temperature == 0.8f);
    /* One more than `max`: the breaker, and nothing is withdrawn. */
    v = draw(m, 20, &o);
    assert_true(v.tripped && v.cut == 0 && v.commit == N_PROMPT + 21 && !m->on);
    spec.regulate = STEP_REGULATE_TEMPERATURE | STEP_REGULATE_TOP_P;
    monitor_spec(m, &spec);
    assert_int_equal(spec.regulate, 0);
    assert_true(spec.temperature == 0.3f && spec.top_p == 0.85f);
    spec = (struct sample_spec){.temperature = 0, .top_p = 0.5f};
    monitor_spec(m, &spec);
    assert_true(spec.temperature == 0 && spec.top_p == 0.5f);
    model = usual;
}

/* What is drawn again after a rollback is scored as if it had been drawn at first. */
static void test_rollback_leaves_no_trace(void **state) {
    (void)state;
    make();
    struct monitor_model usual = model;
    static struct monitor_point plain[MAX];
    struct output o;
    struct monitor *m = start(ROLLBACK_AUTO, 32, 8);
    for (uint32_t k = 0; k < 200; k++) {
        (void)draw(m, k, &o);
        plain[k] = m->points[(N_PROMPT + k) % MONITOR_POINTS];
    }
    m = start(ROLLBACK_AUTO, 32, 8);
    model.rule.surprise = 1e-9f; /* everything is held */
    model.rule.hold = -FLT_MAX;
    uint32_t n_cuts = 0;
    for (uint32_t k = 0; k < 200;) {
        /* Other text, up to 32 tokens of it, and back. */
        model.rule.threshold = model.rule.threshold_hot = FLT_MAX;
        const struct monitor_verdict v = draw(m, k, &o);
        assert_int_equal(v.cut, 0);
        assert_memory_equal(plain[k].features, m->points[(N_PROMPT + k) % MONITOR_POINTS].features,
                            sizeof plain[k].features);
        k++;
        if (n_cuts < 8 && k > 10 && k % 23 == 0) {
            float other[D];
            for (uint32_t i = 0; i < D; i++) other[i] = 5 * uniform();
            for (uint32_t x = 0; x < 9; x++) {
                struct output wild = drawn(x);
                wild.token = 1000 + x, wild.entropy = 9, wild.logprob = -20;
                monitor_state(m, N_PROMPT + k - 1 + x, x == 0 ? states[k - 1] : other);
                if (x == 8) model.rule.threshold = model.rule.threshold_hot = -FLT_MAX;
                const struct monitor_verdict w = monitor_draw(m, N_PROMPT + k + x, &wild);
                if (x < 8) continue;
                assert_true(w.cut > N_PROMPT);
                k = w.cut - N_PROMPT;
                n_cuts++;
            }
        }
    }
    assert_true(n_cuts >= 4);
    model = usual;
}

static void test_published_rule(void **state) {
    (void)state;
    make();
    for (uint32_t k = 0; k < MAX; k++) entropies[k] = 1 + 0.1f * uniform();
    for (uint32_t k = 30; k < 33; k++) entropies[k] = 4;
    entropies[20] = entropies[21] = 4; /* two are not three */
    struct monitor *m = start(ROLLBACK_FIXED, 32, 2);
    m->how.similarity_threshold = 1;
    struct output o;
    for (uint32_t k = 0; k < 33; k++) {
        const struct monitor_verdict v = draw(m, k, &o);
        const bool first = k == 20 || k == 30, second = k == 21 || k == 31;
        assert_int_equal(v.cut, k == 32 ? N_PROMPT + 30 : 0);
        if (k < 32) assert_int_equal(v.commit, N_PROMPT + k + 1 - first - 2 * second);
    }
    m = start(ROLLBACK_FIXED, 32, 2);
    m->how.similarity_threshold = -1;
    for (uint32_t k = 0; k < 60; k++) assert_int_equal(draw(m, k, &o).cut, 0);
}

static void test_nothing_to_compare_with(void **state) {
    (void)state;
    make();
    struct monitor *m = start(ROLLBACK_AUTO, 32, 2);
    monitor_prompt(m, user_sum, 0);
    struct monitor_model usual = model;
    model.rule.threshold = model.rule.threshold_hot = -FLT_MAX;
    for (uint32_t k = 0; k < 80; k++) {
        struct output o;
        assert_int_equal(draw(m, k, &o).cut, 0);
        assert_true(isnan(o.cosine));
    }
    model = usual;
}

/* The bookkeeping of one draw and of one rollback, at the width of a real model. */
static void test_cost(void **state) {
    (void)state;
    enum { WIDE = 576, ROUNDS = 400 };
    static float wide_mean[WIDE], sum[WIDE], row[WIDE];
    struct monitor_model wide = model;
    wide.d_model = WIDE;
    wide.mean = wide_mean;
    for (uint32_t i = 0; i < WIDE; i++) sum[i] = uniform(), row[i] = uniform();
    struct monitor m;
    void *memory = calloc(1, monitor_footprint(WIDE));
    monitor_init(&m, memory, WIDE);
    const struct rollback how = {.rule = ROLLBACK_AUTO, .window = 32, .max = 8};
    uint64_t least = UINT64_MAX, least_cut = UINT64_MAX;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        monitor_start(&m, &wide, &how, N_PROMPT);
        monitor_prompt(&m, sum, 9);
        for (uint32_t k = 0; k < 64; k++) {
            struct output o = {.entropy = 1, .logprob = -1};
            wide.rule.threshold = wide.rule.threshold_hot = k == 63 ? -FLT_MAX : FLT_MAX;
            wide.rule.surprise = k > 40 ? 0.1f : FLT_MAX;
            const uint64_t from = clock_now_ns();
            if (k > 0) monitor_state(&m, N_PROMPT + k - 1, row);
            const struct monitor_verdict v = monitor_draw(&m, N_PROMPT + k, &o);
            const uint64_t ns = clock_now_ns() - from;
            assert_true((v.cut != 0) == (k == 63));
            if (k == 62 && ns < least) least = ns;
            if (k == 63 && ns < least_cut) least_cut = ns;
        }
    }
    printf("# one draw %.1f us, one rollback %.1f us (least of %d, %d channels)\n",
           (double)least * 1e-3, (double)least_cut * 1e-3, ROUNDS, WIDE);
    const char *v = getenv("V");
    if (v == NULL || strcmp(v, "release") == 0) assert_true(least_cut < 50000 && least < 50000);
    free(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),        cmocka_unit_test(test_odds),
        cmocka_unit_test(test_hold_and_cut),   cmocka_unit_test(test_rollback_leaves_no_trace),
        cmocka_unit_test(test_published_rule), cmocka_unit_test(test_nothing_to_compare_with),
        cmocka_unit_test(test_cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
