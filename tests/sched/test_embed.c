/* Embeddings through the scheduler: the encoder's vectors in order, whatever runs beside them; what
 * is refused; and requests that are cancelled, late or fail. */
#include "tests/sched/fake.h"

#include "models/encoder.h"
#include "tests/models/tiny_encoder.h"

enum { MOST = 40 };

enum { EMBED_CLIENT_MOST = MOST, EMBED_CLIENT_DIM = TINY_D };
#include "tests/sched/embed_client.h"

static struct tokenizer *tokenizer;
static struct worker_pool *workers;
static struct tiny_encoder tiny;
static struct encoder *encoder;
static struct text texts[MOST];

static int set_up(void **state) {
    (void)state;
    static char memory[MOST][128];
    tokenizer = fake_tokenizer();
    workers = fake_workers();
    tiny_make(&tiny, 12);
    tiny_folder(&tiny);
    tiny_weights(&tiny, "F32", "");
    struct error e = {0};
    must(encoder_open(tiny.dir, &encoder, &e), &e);
    for (uint32_t i = 0; i < MOST; i++) {
        const uint32_t n = 1 + i * 13 % 38;
        for (uint32_t w = 0; w < n; w++) {
            memory[i][2 * w] = (char)('a' + (i * 5 + w * w) % 25);
            memory[i][2 * w + 1] = ' ';
        }
        texts[i] = (struct text){memory[i], 2 * n};
    }
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    encoder_close(encoder);
    tiny_free(&tiny);
    tokenizer_free(tokenizer);
    worker_pool_stop(workers);
    return 0;
}

static struct fake *open_with(struct fake_config cfg, const struct encoder *enc) {
    struct fake *f = malloc(sizeof *f);
    assert_non_null(f);
    cfg.n_ctx = 256;
    cfg.max_batch = 4;
    cfg.max_queue = 8;
    cfg.n_pages = 100;
    cfg.encoder = enc;
    fake_open(f, &cfg, tokenizer, workers);
    return f;
}

static void close_it(struct fake *f) {
    fake_close(f);
    free(f);
}

static struct request request_of(const struct fake *f, uint32_t first, uint32_t n) {
    return (struct request){.kind = REQUEST_EMBEDDING,
                            .n = 1,
                            .inputs = texts + first,
                            .n_inputs = n,
                            .received_ns = f->clock_ns};
}

static void submit(struct fake *f, const struct request *r, struct client *k) {
    struct error e = {0};
    memset(k, 0, sizeof *k);
    k->r = r;
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

static void check_vectors(const struct client *k) {
    uint32_t all = 0;
    assert_true(k->done && k->released && k->n_vectors == k->r->n_inputs);
    for (uint32_t i = 0; i < k->n_vectors; i++) {
        float want[TINY_D];
        uint32_t n_tokens;
        struct error e = {0};
        const struct text *t = &k->r->inputs[i];
        must(encoder_encode(encoder, NULL, t->data, t->len, want, &n_tokens, &e), &e);
        assert_memory_equal(k->vectors[i], want, sizeof want);
        all += n_tokens;
    }
    assert_int_equal(k->usage.prompt_tokens, all);
    assert_int_equal(k->usage.completion_tokens, 0);
}

static void test_vectors(void **state) {
    (void)state;
    static struct client k[8];
    struct request r[8];
    /* In whole texts, and in the thinnest slices; one request alone, and a full queue. */
    for (uint32_t round = 0; round < 4; round++) {
        struct fake *f = open_with(
            (struct fake_config){.chore_slice_ns = round % 2 ? 1 : 0, .prefill_budget_ns = 1000},
            encoder);
        const uint32_t n = round < 2 ? 1 : 8;
        for (uint32_t i = 0; i < n; i++) {
            r[i] = request_of(f, i, i == 3 ? 1 : MOST - 8);
            r[i].dimensions = i % 2 ? TINY_D : 0;
            submit(f, &r[i], &k[i]);
        }
        run_until_idle(f);
        for (uint32_t i = 0; i < n; i++) check_vectors(&k[i]);
        close_it(f);
    }
}

static void test_refused(void **state) {
    (void)state;
    static struct client k;
    struct fake *f = open_with((struct fake_config){0}, NULL);
    struct request r = request_of(f, 0, 3);
    struct error e = {0};
    request_handle h = 7;
    for (int i = 0; i < 50; i++) { /* each time it must give back what it took */
        assert_int_equal(sched_submit(f->sched, &r, &sink, &k, &h, &e), STATUS_UNSUPPORTED);
        assert_string_equal(e.field, "model");
        assert_true(h == REQUEST_HANDLE_NONE && sched_idle(f->sched));
    }
    close_it(f);
    f = open_with((struct fake_config){0}, encoder);
    r.dimensions = TINY_D + 1;
    for (int i = 0; i < 50; i++) {
        assert_int_equal(sched_submit(f->sched, &r, &sink, &k, &h, &e), STATUS_INVALID);
        assert_string_equal(e.field, "dimensions");
    }
    r.dimensions = TINY_D;
    submit(f, &r, &k);
    run_until_idle(f);
    check_vectors(&k);
    close_it(f);
}

static void test_cancelled(void **state) {
    (void)state;
    static struct client k[3];
    struct fake *f =
        open_with((struct fake_config){.chore_slice_ns = 1, .prefill_budget_ns = 1}, encoder);
    for (int ticks = 0; ticks < 60; ticks += 1 + ticks / 2) {
        struct request r[3];
        for (int i = 0; i < 3; i++) {
            r[i] = request_of(f, (uint32_t)i, MOST - 3);
            submit(f, &r[i], &k[i]);
        }
        for (int i = 0; i < ticks; i++) (void)sched_tick(f->sched);
        sched_cancel(f->sched, k[1].handle);
        run_until_idle(f);
        assert_true(k[1].released && !k[1].done && !k[1].failed && k[1].n_vectors == 0);
        check_vectors(&k[0]);
        check_vectors(&k[2]);
    }
    /* Dropped at work: closing unwinds the chores and releases. */
    const struct request last = request_of(f, 0, MOST);
    submit(f, &last, &k[0]);
    (void)sched_tick(f->sched);
    close_it(f);
    assert_true(k[0].released && !k[0].done);
}

static void test_late(void **state) {
    (void)state;
    static struct client k;
    struct fake *f =
        open_with((struct fake_config){.chore_slice_ns = 1, .prefill_budget_ns = 1}, encoder);
    for (int ticks = 0; ticks < 9; ticks += 4) {
        struct request r = request_of(f, 0, MOST);
        r.deadline_ms = 5;
        submit(f, &r, &k);
        for (int i = 0; i < ticks; i++) (void)sched_tick(f->sched);
        assert_true(sched_next_deadline_ns(f->sched) <= f->clock_ns + 5000000);
        f->clock_ns += 6000000;
        run_until_idle(f);
        assert_true(k.failed && k.released && k.n_vectors == 0);
        assert_int_equal(k.error.status, STATUS_DEADLINE);
    }
    close_it(f);
}

static void test_fails_once(void **state) {
    (void)state;
    static struct client k;
    struct tiny_encoder broken;
    struct encoder *enc;
    struct error e = {0};
    tiny_make(&broken, 13);
    tiny_folder(&broken);
    broken.t[4].w[0] = NAN;
    tiny_weights(&broken, "F32", "");
    must(encoder_open(broken.dir, &enc, &e), &e);
    struct fake *f = open_with((struct fake_config){.chore_slice_ns = 1}, enc);
    const struct request r = request_of(f, 0, MOST);
    submit(f, &r, &k);
    run_until_idle(f);
    assert_true(k.failed && k.released && k.n_vectors == 0);
    assert_int_equal(k.error.status, STATUS_BAD_NUMBER);
    close_it(f);
    encoder_close(enc);
    tiny_free(&broken);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),    cmocka_unit_test(test_refused),
        cmocka_unit_test(test_cancelled),  cmocka_unit_test(test_late),
        cmocka_unit_test(test_fails_once),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
