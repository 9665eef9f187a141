/* The penalty list against its definition, token by token; the cost model. */
#include "sched/cost.h"
#include "sched/draw.h"
#include "tests/sched/fake.h"

enum { N_CTX = 300, N_VOCAB = 120 };

static void check_list(const struct draw *d, const struct request *r, const uint32_t *tokens,
                       uint32_t n_prompt, uint32_t n) {
    const struct sample_spec got = draw_spec(d);
    uint32_t at = 0;
    for (uint32_t id = 0; id < N_VOCAB; id++) {
        uint32_t counted = 0, repeated = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (tokens[i] != id) continue;
            if (r->penalty_scope == PENALTY_SCOPE_LLAMACPP) {
                counted += i + 64 >= n;
                repeated = counted;
            } else {
                counted += i >= n_prompt;
                repeated++;
            }
        }
        float bias = 0;
        for (uint32_t i = 0; i < r->n_logit_bias; i++)
            if (r->logit_bias[i].id == id) bias = r->logit_bias[i].bias;
        const float divisor = repeated > 0 ? r->repetition_penalty : 1;
        const float delta =
            bias - (counted > 0 ? r->presence_penalty : 0) - r->frequency_penalty * (float)counted;
        if (at < got.n_biases && got.biases[at].id == id) {
            assert_true(got.biases[at].divisor == divisor && got.biases[at].delta == delta);
            at++;
        } else {
            assert_true(divisor == 1 && delta == 0);
        }
    }
    assert_int_equal(at, got.n_biases); /* ascending, each once, nothing else */
}

static void test_penalties(void **state) {
    (void)state;
    void *mem = aligned_alloc(64, (draw_footprint(N_CTX, N_VOCAB) + 63) / 64 * 64);
    for (uint64_t seed = 1; seed <= 300; seed++) {
        uint64_t x = mix64(seed);
        uint32_t tokens[N_CTX], distinct[N_VOCAB];
        const uint32_t n_prompt = 1 + below(&x, 150), ids = 1 + below(&x, N_VOCAB);
        struct logit_bias bias[6];
        struct request r = {
            .set = REQUEST_SET_REPETITION | REQUEST_SET_PRESENCE | REQUEST_SET_FREQUENCY,
            .repetition_penalty = below(&x, 2) ? 1 : 1.25f,
            .presence_penalty = below(&x, 2) ? 0 : 0.5f,
            .frequency_penalty = below(&x, 2) ? 0 : -0.3f,
            .penalty_scope = below(&x, 2) ? PENALTY_SCOPE_OPENAI : PENALTY_SCOPE_LLAMACPP,
            .logit_bias = bias};
        for (uint32_t id = below(&x, 20); id < N_VOCAB && r.n_logit_bias < 6;
             id += 1 + below(&x, 40))
            bias[r.n_logit_bias++] = (struct logit_bias){id, 2.5f};
        uint64_t bitmap[(N_VOCAB + 63) / 64] = {0};
        for (uint32_t i = 0; i < N_CTX; i++) tokens[i] = below(&x, ids);
        for (uint32_t i = 0; i < n_prompt; i++)
            bitmap[tokens[i] / 64] |= UINT64_C(1) << tokens[i] % 64;
        const uint32_t n_distinct = draw_distinct(bitmap, N_VOCAB, distinct);
        struct draw d;
        draw_init(&d, mem, N_CTX, N_VOCAB);
        draw_start(&d, &r, 1, 0, tokens, n_prompt, distinct, n_distinct);
        for (uint32_t n = n_prompt; n < N_CTX; n++) {
            check_list(&d, &r, tokens, n_prompt, n);
            draw_accept(&d, tokens[n]);
            if (below(&x, 40) > 0) continue;
            /* Some are taken back, and others come in their place. */
            const uint32_t back = n - below(&x, n - n_prompt + 1);
            for (uint32_t i = n + 1; i-- > back;) {
                draw_withdraw(&d, tokens[i], i >= 64 ? tokens[i - 64] : TOKEN_NONE);
                check_list(&d, &r, tokens, n_prompt, i);
            }
            for (uint32_t i = back; i <= n; i++) {
                tokens[i] = below(&x, ids);
                draw_accept(&d, tokens[i]);
            }
        }
        check_list(&d, &r, tokens, n_prompt, N_CTX);
    }
    free(mem);
}

static void test_defaults(void **state) {
    (void)state;
    void *mem = aligned_alloc(64, (draw_footprint(16, N_VOCAB) + 63) / 64 * 64);
    struct draw d;
    const uint32_t prompt[] = {3, 3, 5};
    /* Fields that were not set count for nothing, whatever they hold. */
    const struct request r = {.temperature = 0, .top_p = 0.1f, .repetition_penalty = 2, .top_k = 7};
    draw_init(&d, mem, 16, N_VOCAB);
    draw_start(&d, &r, 9, 4, prompt, 3, NULL, 0);
    draw_accept(&d, 3);
    const struct sample_spec s = draw_spec(&d);
    assert_true(s.temperature == 1 && s.top_p == 1 && s.top_k == 0 && s.min_p == 0);
    assert_true(s.seed == 9 && s.choice == 4 && s.n_biases == 0 && s.target == STEP_NONE);
    free(mem);
}

/* Learns a machine's costs, and keeps within a budget by them. */
static void test_cost(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        uint64_t x = mix64(seed);
        const double a = 1e5 + below(&x, 2000000), b = 1e4 + below(&x, 900000),
                     c = below(&x, 100000);
        struct cost_model m;
        cost_init(&m);
        for (int i = 0; i < 400; i++) {
            const struct cost_work w = {.rows = 1 + below(&x, 256),
                                        .positions = (uint64_t)w.rows * below(&x, 8192)};
            const double noise = 0.95 + below(&x, 100) / 1000.0;
            cost_learn(&m, w,
                       (uint64_t)((a + b * w.rows + c * (double)w.positions / 1024) * noise));
        }
        const struct cost_work w = {.rows = 8, .positions = 8 * 500};
        const uint32_t rows = cost_rows_within(&m, w, 1000, 100000, a + b * 200 + c * 200);
        const double real =
            a + b * (8 + rows) + c * (8 * 500 + rows * 1000.0 + rows * (rows - 1) / 2.0) / 1024;
        assert_true(rows > 0 && real < 1.3 * (a + b * 200 + c * 200));
        assert_true(real > 0.6 * (a + b * 200 + c * 200) || rows >= 100);
        assert_int_equal(cost_rows_within(&m, w, 0, 50, 1e15), 50);
        assert_int_equal(cost_rows_within(&m, w, 0, 50, 0), 0);
    }
}

/* A machine far from the prior, then one step of ten seconds. */
static void test_cost_far_off(void **state) {
    (void)state;
    struct cost_model m;
    cost_init(&m);
    uint64_t x = 5;
    for (int i = 0; i < 80; i++) {
        const struct cost_work w = {.rows = 1 + below(&x, 64), .positions = 0};
        cost_learn(&m, w, 200000000 + UINT64_C(50000000) * w.rows);
    }
    const struct cost_work w = {.rows = 32};
    assert_true(cost_ns(&m, w) > 1.5e9 && cost_ns(&m, w) < 2.1e9);
    cost_learn(&m, w, UINT64_C(100000000000));
    assert_true(cost_ns(&m, w) < 3e9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_cost),
        cmocka_unit_test(test_cost_far_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
