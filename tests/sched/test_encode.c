/* Embeddings by the language model: the same vectors whatever runs beside them and however their
 * texts are cut into steps; limits, and requests that end early. */
#include "tests/sched/fake.h"

#include "sched/encode.h"

enum { MOST = 12, LONGEST = 300, N_CTX = 256 };

enum { EMBED_CLIENT_MOST = MOST, EMBED_CLIENT_DIM = FAKE_D };
#include "tests/sched/embed_client.h"

static struct tokenizer *tokenizer;
static struct worker_pool *workers;
static char letters[MOST][LONGEST];
static struct text texts[MOST];

static int set_up(void **state) {
    (void)state;
    uint64_t seed = 11;
    tokenizer = fake_tokenizer();
    workers = fake_workers();
    for (uint32_t i = 0; i < MOST; i++) {
        const uint32_t n = i == 0 ? 1 : 1 + below(&seed, 150);
        for (uint32_t k = 0; k < n; k++) letters[i][k] = (char)('a' + below(&seed, 26));
        texts[i] = (struct text){letters[i], n};
    }
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    tokenizer_free(tokenizer);
    worker_pool_stop(workers);
    return 0;
}

static struct request embedding_of(const struct fake *f, uint32_t first, uint32_t n) {
    return (struct request){.kind = REQUEST_EMBEDDING,
                            .by_model = true,
                            .n = 1,
                            .inputs = texts + first,
                            .n_inputs = n,
                            .received_ns = f->clock_ns};
}

static void submit(struct fake *f, const struct request *r, struct client *k) {
    struct error e = {0};
    memset(k, 0, sizeof *k);
    k->generates = r->kind != REQUEST_EMBEDDING;
    must(sched_submit(f->sched, r, &sink, k, &k->handle, &e), &e);
}

static void run_until_idle(struct fake *f) {
    for (int i = 0; i < 1000000 && !sched_idle(f->sched); i++) {
        (void)sched_tick(f->sched);
        check_balance(f);
        f->clock_ns += 1000;
    }
    assert_true(sched_idle(f->sched));
}

/* By definition: the mean of the states, of length one. Returns the tokens. */
static uint32_t plain(const struct text *t, double *v) {
    struct token_list l = {0};
    struct error e = {0};
    must(tokenizer_encode(tokenizer, NULL, t->data, t->len, TOKENIZE_BOS, &l, &e), &e);
    uint64_t h = 0;
    double length = 0;
    memset(v, 0, FAKE_D * sizeof *v);
    for (size_t i = 0; i < l.n; i++) {
        float x[FAKE_D];
        h = fake_hash(h, l.ids[i]);
        fake_state(h, x);
        for (uint32_t d = 0; d < FAKE_D; d++) v[d] += (double)x[d] / (double)l.n;
    }
    for (uint32_t d = 0; d < FAKE_D; d++) length += v[d] * v[d];
    for (uint32_t d = 0; d < FAKE_D; d++) v[d] /= sqrt(length);
    const uint32_t n = (uint32_t)l.n;
    token_list_free(&l);
    return n;
}

static void check_vectors(const struct client *k, uint32_t first, uint32_t n) {
    uint32_t tokens = 0;
    assert_true(k->done && k->released && k->n_vectors == n);
    for (uint32_t i = 0; i < n; i++) {
        double want[FAKE_D];
        tokens += plain(&texts[first + i], want);
        for (uint32_t d = 0; d < FAKE_D; d++)
            assert_true(fabs(want[d] - (double)k->vectors[i][d]) < 1e-5);
    }
    assert_int_equal(k->usage.prompt_tokens, tokens);
    assert_int_equal(k->usage.completion_tokens, 0);
}

static struct fake *open_with(struct fake_config cfg) {
    struct fake *f = malloc(sizeof *f);
    assert_non_null(f);
    cfg.n_ctx = N_CTX;
    cfg.max_batch = 4;
    cfg.max_queue = 16;
    if (cfg.n_pages == 0) cfg.n_pages = 100;
    fake_open(f, &cfg, tokenizer, workers);
    return f;
}

static void close_it(struct fake *f) {
    fake_close(f);
    free(f);
}

static void test_vectors(void **state) {
    (void)state;
    static struct client k[6], first[6], chat;
    static const uint32_t rows[] = {64, 5, 17, 33};
    for (uint32_t round = 0; round < 8; round++) {
        struct fake *f = open_with((struct fake_config){
            .max_rows = rows[round % 4], .polls_late = round % 3, .prefill_budget_ns = 3000000});
        struct request r[6];
        const struct request talk = {.kind = REQUEST_COMPLETION,
                                     .n = 2,
                                     .set = REQUEST_SET_MAX_TOKENS,
                                     .max_tokens = 60,
                                     .prompt = texts[7],
                                     .ignore_eos = true,
                                     .received_ns = f->clock_ns};
        if (round >= 4) submit(f, &talk, &chat);
        for (uint32_t i = 0; i < 6; i++) {
            r[i] = embedding_of(f, i, MOST - i);
            submit(f, &r[i], &k[i]);
        }
        run_until_idle(f);
        for (uint32_t i = 0; i < 6; i++) {
            check_vectors(&k[i], i, MOST - i);
            if (round == 0) first[i] = k[i];
            assert_memory_equal(k[i].vectors, first[i].vectors, sizeof first[i].vectors);
        }
        assert_true(round < 4 || (chat.done && chat.n_bytes > 0));
        close_it(f);
    }
}

static void test_refused(void **state) {
    (void)state;
    static char long_text[4 * N_CTX];
    static struct client k;
    struct text with_long[2] = {texts[0], {long_text, sizeof long_text}};
    memset(long_text, 'x', sizeof long_text);
    struct fake *f = open_with((struct fake_config){0});
    struct request r = embedding_of(f, 0, 2);
    r.inputs = with_long;
    submit(f, &r, &k);
    run_until_idle(f);
    assert_true(k.failed && k.released && k.n_vectors == 0);
    assert_true(k.error.status == STATUS_CONTEXT_LENGTH && strcmp(k.error.field, "input") == 0);
    r = embedding_of(f, 0, 2);
    r.dimensions = FAKE_D + 1;
    submit(f, &r, &k);
    run_until_idle(f);
    assert_true(k.failed && strcmp(k.error.field, "dimensions") == 0);
    close_it(f);
}

/* Few pages: requests wait for each other; a client leaves, a deadline passes, the device fails. */
static void test_ends_early(void **state) {
    (void)state;
    static struct client k[5];
    for (uint32_t round = 0; round < 40; round++) {
        struct fake *f =
            open_with((struct fake_config){.n_pages = 17, .max_rows = 16, .polls_late = round % 2});
        struct request r[5];
        for (uint32_t i = 0; i < 5; i++) {
            r[i] = embedding_of(f, 0, MOST);
            if (i == 2) r[i].deadline_ms = 1 + round;
            submit(f, &r[i], &k[i]);
        }
        for (uint32_t t = 0; t < 3 * round; t++) {
            (void)sched_tick(f->sched);
            f->clock_ns += 100000;
        }
        sched_cancel(f->sched, k[1].handle);
        if (round % 8 == 7) f->backend.fail_step = true;
        run_until_idle(f);
        for (uint32_t i = 0; i < 5; i++) {
            assert_true(k[i].released);
            if (k[i].done) check_vectors(&k[i], 0, MOST);
            assert_true(k[i].done || k[i].failed || i == 1);
        }
        if (round % 8 != 7) assert_true(k[0].done && k[3].done && k[4].done);
        close_it(f);
    }
}

static void test_no_vector(void **state) {
    (void)state;
    float memory[2 * FAKE_D], sums[FAKE_D] = {1, NAN, 0, 0};
    const uint32_t id = 5, end = 1;
    struct encode c;
    encode_init(&c, memory, FAKE_D);
    encode_start(&c, &id, &end, 1);
    encode_after(&c, 0, 1, sums);
    assert_false(encode_finish(&c));
    encode_start(&c, &id, &end, 1);
    assert_false(encode_finish(&c)); /* a sum of zero has no direction */
    assert_false(encode_next(&c));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_ends_early),
        cmocka_unit_test(test_no_vector),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
