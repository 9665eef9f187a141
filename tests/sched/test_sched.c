/* The scheduler's contract, one promise a test. */
#include <jemalloc/jemalloc.h>

#include "models/chat_template.h"
#include "sched/emit.h"
#include "tests/sched/fake.h"

struct client {
    struct request r;
    struct sched *sched;
    request_handle handle;
    uint64_t *clock_ns;
    char text[REQUEST_MAX_CHOICES][2048];
    size_t n_text[REQUEST_MAX_CHOICES];
    uint32_t lp_ids[2048], n_lps, n_finished, n_tokens, tokens[64];
    enum finish_reason reasons[REQUEST_MAX_CHOICES];
    bool started, done, failed, released, cancel_at_start, cancel_at_delta, paused;
    uint32_t n_calls_after;
    uint64_t started_ns, first_ns, done_ns;
    struct error error;
    struct request_usage usage;
    struct request_report report;
    struct client *submit_when_done;
    uint64_t seed;
};

static void submit(struct client *k);

static void calls(struct client *k) {
    if (k->done || k->failed) k->n_calls_after++;
}

static void on_started(void *user, uint64_t seed) {
    struct client *k = user;
    calls(k);
    k->started = true;
    k->started_ns = *k->clock_ns;
    k->seed = seed;
    if (k->cancel_at_start) sched_cancel(k->sched, k->handle), k->failed = true;
}

static void on_delta(void *user, uint32_t c, const char *bytes, size_t n,
                     const struct token_logprob *lps, uint32_t n_lps) {
    struct client *k = user;
    calls(k);
    if (k->first_ns == 0) k->first_ns = *k->clock_ns;
    assert_true(k->n_text[c] + n <= sizeof k->text[c]);
    if (n > 0) memcpy(k->text[c] + k->n_text[c], bytes, n);
    k->n_text[c] += n;
    for (uint32_t i = 0; i < n_lps; i++) k->lp_ids[k->n_lps++] = lps[i].id;
    if (k->cancel_at_delta) sched_cancel(k->sched, k->handle), k->failed = true;
}

static void on_finish(void *user, uint32_t c, enum finish_reason reason) {
    struct client *k = user;
    calls(k);
    k->reasons[c] = reason;
    k->n_finished++;
}

static void on_tokens(void *user, const uint32_t *ids, size_t n) {
    struct client *k = user;
    calls(k);
    assert_true(n <= 64);
    if (n > 0) memcpy(k->tokens, ids, n * sizeof *ids);
    k->n_tokens = (uint32_t)n;
}

static void on_done(void *user, const struct request_usage *usage,
                    const struct request_report *report) {
    struct client *k = user;
    calls(k);
    k->done = true;
    k->done_ns = *k->clock_ns;
    k->usage = *usage;
    k->report = *report;
    sched_cancel(k->sched, k->handle);
    if (k->submit_when_done != NULL) submit(k->submit_when_done);
}

static void on_failed(void *user, const struct error *e, uint32_t retry_after_s) {
    struct client *k = user;
    (void)retry_after_s;
    calls(k);
    k->failed = true;
    k->error = *e;
    sched_cancel(k->sched, k->handle); /* too late, but harmless */
}

static void on_release(void *user) {
    struct client *k = user;
    assert_false(k->released);
    k->released = true;
}

static bool on_writable(void *user) {
    return !((struct client *)user)->paused;
}

static const struct request_sink sink = {on_started, on_delta,  on_finish,  on_tokens,  NULL,
                                         on_done,    on_failed, on_release, on_writable};

/* ---- set-up ---- */

static struct tokenizer *tokenizer;
static struct worker_pool *workers;
static uint32_t many_ids[4096];

static struct fake *open_with(struct fake_config cfg) {
    struct fake *f = malloc(sizeof *f);
    if (cfg.n_ctx == 0) cfg.n_ctx = 256;
    if (cfg.max_batch == 0) cfg.max_batch = 4;
    if (cfg.max_queue == 0) cfg.max_queue = 8;
    if (cfg.n_pages == 0) cfg.n_pages = 100;
    fake_open(f, &cfg, tokenizer, workers);
    return f;
}

static void close_it(struct fake *f) {
    fake_close(f);
    free(f);
}

/* A request for `max` tokens behind n ids, greedy, never ending by itself. */
static struct client *client_of(struct fake *f, uint32_t first, uint32_t n, uint32_t max) {
    struct client *k = calloc(1, sizeof *k);
    k->sched = f->sched;
    k->clock_ns = &f->clock_ns;
    k->r = (struct request){.kind = REQUEST_COMPLETION,
                            .set = REQUEST_SET_MAX_TOKENS | REQUEST_SET_TEMPERATURE,
                            .ids = many_ids + first,
                            .n_ids = n,
                            .n = 1,
                            .max_tokens = max,
                            .ignore_eos = true,
                            .received_ns = f->clock_ns};
    return k;
}

static void submit(struct client *k) {
    struct error e = {0};
    must(sched_submit(k->sched, &k->r, &sink, k, &k->handle, &e), &e);
}

static void tick(struct fake *f) {
    sched_tick(f->sched);
    check_balance(f);
}

static void run_until_released(struct fake *f, const struct client *k) {
    for (uint32_t i = 0; !k->released; i++) {
        assert_true(i < 20000);
        tick(f);
        f->clock_ns += 1000;
    }
    assert_int_equal(k->n_calls_after, 0);
}

static struct client *run_one(struct fake *f, struct client *k) {
    submit(k);
    run_until_released(f, k);
    return k;
}

static uint64_t shed(const struct fake *f, enum metric_reason reason) {
    return metric_count(f->metrics, METRIC_SHED, reason);
}

/* ---- tests ---- */

static void test_refusals(void **state) {
    (void)state;
    struct fake *f = open_with((struct fake_config){.n_ctx = 128, .n_pages = 12});
    static const uint32_t high[] = {1, FAKE_VOCAB};
    static const struct logit_bias bias[] = {{5, 1}, {FAKE_VOCAB, 1}};
    struct {
        const char *field;
        enum status status;
        void (*change)(struct request *r);
    } cases[6] = {{"n", STATUS_INVALID, NULL},
                  {"prompt", STATUS_INVALID, NULL},
                  {"logit_bias", STATUS_INVALID, NULL},
                  {"prompt", STATUS_CONTEXT_LENGTH, NULL},
                  {"max_tokens", STATUS_TOO_LARGE, NULL},
                  {"messages", STATUS_UNSUPPORTED, NULL}};
    for (int i = 0; i < 6; i++) {
        struct client *k = client_of(f, 0, 20, 4);
        if (i == 0) k->r.n = 5;
        if (i == 1) k->r.ids = high, k->r.n_ids = 2;
        if (i == 2) k->r.logit_bias = bias, k->r.n_logit_bias = 2;
        if (i == 3) k->r.n_ids = 128;
        if (i == 4) k->r.n = 3, k->r.max_tokens = 100;
        if (i == 5) k->r.kind = REQUEST_CHAT, k->r.chat_json = (struct text){"{}", 2};
        run_one(f, k);
        assert_true(k->failed && !k->started);
        assert_int_equal(k->error.status, cases[i].status);
        assert_string_equal(k->error.field, cases[i].field);
        assert_int_equal(metric_count(f->metrics, METRIC_REJECTED, 0), (uint64_t)i + 1);
        free(k);
    }
    /* The longest prompt that leaves room for one token. */
    struct client *k = run_one(f, client_of(f, 0, 127, 100));
    assert_true(k->done);
    assert_int_equal(k->usage.completion_tokens, 1);
    assert_int_equal(k->reasons[0], FINISH_LENGTH);
    free(k);
    close_it(f);
}

static void test_text_prompts(void **state) {
    (void)state;
    struct fake *f = open_with((struct fake_config){0});
    struct client *k = client_of(f, 0, 0, 3);
    k->r.ids = NULL;
    run_one(f, k); /* nothing at all: the model's bos */
    assert_true(k->done);
    assert_int_equal(k->usage.prompt_tokens, 1);
    assert_int_equal(f->backend.seen[FAKE_BOS], 1);
    free(k);
    memset(f->backend.seen, 0, sizeof f->backend.seen);
    k = client_of(f, 0, 0, 1);
    k->r.ids = NULL;
    k->r.prompt = (struct text){"ab<eos>", 7};
    run_one(f, k); /* control tokens in a prompt's text are text: bos, ab, < e o s > */
    assert_int_equal(k->usage.prompt_tokens, 7);
    assert_int_equal(f->backend.seen[FAKE_EOS], 0);
    free(k);
    close_it(f);
}

static void test_tokenize_detokenize(void **state) {
    (void)state;
    struct fake *f = open_with((struct fake_config){0});
    struct client *k = client_of(f, 0, 0, 0);
    k->r.kind = REQUEST_TOKENIZE;
    k->r.ids = NULL;
    k->r.prompt = (struct text){"ab<eos>", 7};
    run_one(f, k);
    assert_true(k->done && !k->started);
    assert_int_equal(k->n_tokens, 6);
    assert_int_equal(k->tokens[0], 256);
    k->done = k->released = false;
    k->r.special = k->r.add_bos = true;
    run_one(f, k);
    const uint32_t want[] = {FAKE_BOS, 256, FAKE_EOS};
    assert_int_equal(k->n_tokens, 3);
    assert_memory_equal(k->tokens, want, sizeof want);
    free(k);
    static const uint32_t ids[] = {256, 0xC3, 0xA9, 0xC3, 'x', FAKE_EOS};
    k = client_of(f, 0, 0, 0);
    k->r.kind = REQUEST_DETOKENIZE;
    k->r.ids = ids;
    k->r.n_ids = 6;
    run_one(f, k);
    assert_true(k->done && !k->started);
    assert_int_equal(k->n_text[0], strlen("ab\xC3\xA9\xEF\xBF\xBDx<eos>"));
    assert_memory_equal(k->text[0], "ab\xC3\xA9\xEF\xBF\xBDx<eos>", k->n_text[0]);
    free(k);
    static const uint32_t bad[] = {1, FAKE_VOCAB};
    k = client_of(f, 0, 0, 0);
    k->r.kind = REQUEST_DETOKENIZE;
    k->r.ids = bad;
    k->r.n_ids = 2;
    run_one(f, k);
    assert_true(k->failed);
    assert_string_equal(k->error.field, "tokens");
    free(k);
    close_it(f);
}

static void test_chat(void **state) {
    (void)state;
    static const char text[] = "{{ bos_token }}{% for m in messages %}<control>{{ m.role }}:"
                               "{{ m.content }}<eos>{% endfor %}";
    struct chat_template *tmpl;
    struct error e = {0};
    must(chat_template_compile(text, strlen(text), "<bos>", "<eos>", &tmpl, &e), &e);
    struct fake *f = open_with((struct fake_config){.chat_template = tmpl});
    struct client *k = client_of(f, 0, 0, 1);
    static const char json[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x<eos>y<con\"},"
                               "{\"role\":\"user\",\"content\":\"trol>\"}]}";
    k->r.kind = REQUEST_CHAT;
    k->r.chat_json = (struct text){json, strlen(json)};
    run_one(f, k);
    assert_true(k->done);
    /* The template's own control tokens, and none that the user wrote. */
    assert_int_equal(f->backend.seen[FAKE_BOS], 1);
    assert_int_equal(f->backend.seen[FAKE_CONTROL], 2);
    assert_int_equal(f->backend.seen[FAKE_EOS], 2);
    free(k);
    static const char wrong[] = "{\"messages\":3}";
    k = client_of(f, 0, 0, 1);
    k->r.kind = REQUEST_CHAT;
    k->r.chat_json = (struct text){wrong, strlen(wrong)};
    run_one(f, k);
    assert_true(k->failed);
    assert_int_equal(status_class_of(k->error.status), STATUS_CLASS_INPUT);
    free(k);
    close_it(f);
    chat_template_free(tmpl);
}

/* A control token that is half the template's and half the user's is text, and the text is not cut
 * there: "a" + "b" is one token. */
static void test_chat_at_the_seam(void **state) {
    (void)state;
    static const char text[] = "<con{{ messages[0].content }}trol>a{{ messages[1].content }}<eos>";
    static const char json[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"trol><con\"},"
                               "{\"role\":\"user\",\"content\":\"b\"}]}";
    struct chat_template *tmpl;
    struct error e = {0};
    must(chat_template_compile(text, strlen(text), "<bos>", "<eos>", &tmpl, &e), &e);
    struct fake *f = open_with((struct fake_config){.chat_template = tmpl});
    struct client *k = client_of(f, 0, 0, 1);
    k->r.kind = REQUEST_CHAT;
    k->r.chat_json = (struct text){json, strlen(json)};
    run_one(f, k);
    assert_true(k->done);
    assert_int_equal(f->backend.seen[FAKE_BOS],
                     1); /* the model's own, which the template left out */
    assert_int_equal(f->backend.seen[FAKE_CONTROL], 0);
    assert_int_equal(f->backend.seen[FAKE_EOS], 1);
    assert_int_equal(f->backend.seen[256], 1);
    assert_int_equal(k->usage.prompt_tokens, 1 + 18 + 1 + 1);
    free(k);
    close_it(f);
    chat_template_free(tmpl);
}

static void test_full_and_draining(void **state) {
    (void)state;
    struct fake *f = open_with((struct fake_config){.max_batch = 1, .max_queue = 2});
    struct client *k[5];
    struct error e;
    for (int i = 0; i < 5; i++) k[i] = client_of(f, 0, 20, 10);
    submit(k[0]);
    tick(f);
    submit(k[1]);
    submit(k[2]);
    assert_int_equal(sched_submit(f->sched, &k[3]->r, &sink, k[3], &k[3]->handle, &e), STATUS_FULL);
    assert_int_equal(k[3]->handle, REQUEST_HANDLE_NONE);
    assert_int_equal(shed(f, METRIC_SHED_FULL), 1);
    sched_drain(f->sched);
    assert_int_equal(sched_submit(f->sched, &k[4]->r, &sink, k[4], &k[4]->handle, &e), STATUS_FULL);
    assert_non_null(strstr(e.message, "shutting down"));
    assert_int_equal(shed(f, METRIC_SHED_DRAINING), 1);
    assert_false(sched_idle(f->sched));
    for (int i = 0; i < 3; i++) {
        run_until_released(f, k[i]);
        assert_true(k[i]->done);
    }
    assert_true(sched_idle(f->sched));
    for (int i = 0; i < 5; i++) free(k[i]);
    close_it(f);
}

static void test_order_of_service(void **state) {
    (void)state;
    struct fake *f = open_with((struct fake_config){.max_batch = 1});
    struct client *k[5];
    for (int i = 0; i < 5; i++) k[i] = client_of(f, 0, 20, 10);
    k[2]->r.priority = 3;
    k[3]->r.deadline_ms = 1000000;
    k[4]->r.deadline_ms = 500000;
    submit(k[0]);
    tick(f);
    for (int i = 1; i < 5; i++) submit(k[i]);
    assert_true(sched_next_deadline_ns(f->sched) == k[4]->r.received_ns + 500000000000);
    for (int i = 1; i < 5; i++) run_until_released(f, k[i]);
    assert_true(k[0]->started_ns < k[4]->started_ns && k[4]->started_ns < k[3]->started_ns);
    assert_true(k[3]->started_ns < k[2]->started_ns && k[2]->started_ns < k[1]->started_ns);
    for (int i = 0; i < 5; i++) free(k[i]);
    close_it(f);
}

static void test_deadlines(void **state) {
    (void)state;
    struct fake *f = open_with((struct fake_config){.max_batch = 1});
    struct client *k[3];
    for (int i = 0; i < 3; i++) k[i] = client_of(f, 0, 20, 200);
    k[0]->r.deadline_ms = 30;
    k[1]->r.deadline_ms = 20; /* waits behind 0 and does not start */
    k[2]->r.deadline_ms = 60;
    k[2]->r.on_deadline = ON_DEADLINE_FAIL;
    submit(k[0]);
    tick(f);
    submit(k[1]);
    submit(k[2]);
    for (int i = 0; i < 3; i++) run_until_released(f, k[i]);
    assert_true(k[0]->done && k[0]->report.deadline_missed && k[0]->n_text[0] > 0);
    assert_int_equal(k[0]->reasons[0], FINISH_LENGTH);
    assert_true(k[0]->usage.completion_tokens < 200);
    assert_true(k[0]->done_ns < k[0]->r.received_ns + 32000000);
    assert_true(k[1]->failed && !k[1]->started);
    assert_int_equal(k[1]->error.status, STATUS_DEADLINE);
    assert_int_equal(shed(f, METRIC_SHED_DEADLINE), 1);
    assert_true(k[2]->failed && k[2]->started);
    assert_int_equal(k[2]->error.status, STATUS_DEADLINE);
    assert_int_equal(metric_count(f->metrics, METRIC_DEADLINE_MISSED, 0), 2);
    for (int i = 0; i < 3; i++) free(k[i]);
    close_it(f);
}

static void test_device_failures(void **state) {
    (void)state;
    for (int way = 0; way < 3; way++) {
        struct fake *f = open_with((struct fake_config){.polls_late = way == 2 ? 2 : 0});
        struct client *a = client_of(f, 0, 40, 50), *b = client_of(f, 100, 40, 50);
        submit(a);
        submit(b);
        for (int i = 0; i < 12; i++) tick(f);
        assert_true(a->started && b->started && !a->released);
        f->backend.fail_submit = way == 0;
        f->backend.fail_step = way != 0;
        run_until_released(f, a);
        run_until_released(f, b);
        assert_int_equal(a->error.status, STATUS_DEVICE);
        assert_int_equal(b->error.status, STATUS_DEVICE);
        assert_int_equal(status_class_of(b->error.status), STATUS_CLASS_DEVICE);
        /* Nothing that they computed is found again. */
        f->backend.fail_submit = f->backend.fail_step = false;
        struct client *c = run_one(f, client_of(f, 0, 40, 2));
        assert_true(c->done);
        assert_int_equal(c->usage.cached_tokens, 0);
        free(a);
        free(b);
        free(c);
        close_it(f);
    }
}

static void test_not_a_number(void **state) {
    (void)state;
    uint32_t failed = 0, whole = 0;
    struct fake *f = open_with((struct fake_config){.bad_every = 40, .n_pages = 1000});
    for (uint32_t i = 0; i < 60; i++) {
        struct client *k = run_one(f, client_of(f, i * 50, 40, 30));
        const bool bad = k->failed;
        if (bad) assert_int_equal(k->error.status, STATUS_BAD_NUMBER);
        failed += bad;
        whole += k->done;
        free(k);
        if (!bad) continue;
        /* The same prompt again finds nothing cached. */
        k = run_one(f, client_of(f, i * 50, 40, 1));
        assert_int_equal(k->usage.cached_tokens, 0);
        free(k);
    }
    assert_true(failed > 5 && whole > 5);
    close_it(f);
}

static void test_cancel_inside_calls(void **state) {
    (void)state;
    for (int way = 0; way < 4; way++) {
        struct fake *f = open_with((struct fake_config){.polls_late = way % 2 ? 3 : 0});
        struct client *k = client_of(f, 0, 40, 50);
        k->cancel_at_start = way < 2;
        k->cancel_at_delta = way >= 2;
        k->r.n = 2;
        run_one(f, k);
        assert_true(k->started && !k->done);
        assert_int_equal(k->n_finished, 0);
        assert_int_equal(metric_count(f->metrics, METRIC_REQUEST,
                                      metric_outcome_task(METRIC_ABORTED, METRIC_TASK_NONE)),
                         1);
        sched_cancel(f->sched, k->handle);
        free(k);
        close_it(f);
    }
}

static void test_cancel_inside_text(void **state) {
    (void)state;
    struct fake *f = open_with((struct fake_config){0});
    struct client *k = client_of(f, 0, 10, 0);
    k->r.kind = REQUEST_DETOKENIZE;
    k->cancel_at_delta = true;
    run_one(f, k);
    assert_false(k->done);
    assert_int_equal(sched_stats(f->sched).queued, 0);
    free(k);
    close_it(f);
}

static void test_gone_while_waiting(void **state) {
    (void)state;
    struct fake *f = open_with((struct fake_config){.max_batch = 1});
    struct client *k[3];
    for (int i = 0; i < 3; i++) k[i] = client_of(f, 0, 20, 30);
    submit(k[0]);
    submit(k[1]);
    tick(f);
    submit(k[2]);
    sched_cancel(f->sched, k[1]->handle); /* tokenised */
    sched_cancel(f->sched, k[2]->handle); /* not yet */
    assert_int_equal(sched_next_deadline_ns(f->sched), 0);
    tick(f);
    assert_true(k[1]->released && k[2]->released && !k[1]->started && !k[2]->failed);
    assert_int_equal(shed(f, METRIC_SHED_GONE), 2);
    run_until_released(f, k[0]);
    assert_true(k[0]->done);
    for (int i = 0; i < 3; i++) free(k[i]);
    close_it(f);
}

static void test_submit_inside_done(void **state) {
    (void)state;
    struct fake *f = open_with((struct fake_config){.max_batch = 1, .max_queue = 1});
    struct client *k[4];
    for (int i = 0; i < 4; i++) k[i] = client_of(f, (uint32_t)i, 20, 5);
    for (int i = 0; i < 3; i++) k[i]->submit_when_done = k[i + 1];
    submit(k[0]);
    for (int i = 0; i < 4; i++) run_until_released(f, k[i]);
    assert_true(k[3]->done);
    for (int i = 0; i < 4; i++) free(k[i]);
    close_it(f);
}

static void test_prefix_and_fork(void **state) {
    (void)state;
    struct fake *f = open_with((struct fake_config){0});
    struct client *a = run_one(f, client_of(f, 0, 40, 20));
    assert_int_equal(a->usage.cached_tokens, 0);
    struct client *b = run_one(f, client_of(f, 0, 40, 20));
    assert_int_equal(b->usage.cached_tokens, 32);
    assert_int_equal(a->n_text[0], b->n_text[0]);
    assert_memory_equal(a->text[0], b->text[0], a->n_text[0]);
    /* Whole pages only: of 32 tokens the last page is computed again for the last row. */
    struct client *c = run_one(f, client_of(f, 0, 32, 1));
    assert_int_equal(c->usage.cached_tokens, 16);
    const uint64_t rows = f->backend.n_rows, copies = f->backend.n_copies;
    struct client *d = client_of(f, 0, 40, 20);
    d->r.n = 3;
    run_one(f, d);
    assert_int_equal(d->n_finished, 3);
    assert_int_equal(d->usage.cached_tokens, 32);
    assert_int_equal(f->backend.n_rows - rows, 8 + 3 * 19);          /* the prompt once */
    assert_int_equal(f->backend.n_copies - copies, 2 * FAKE_GROUPS); /* its half page twice */
    for (int i = 0; i < 3; i++) {                                    /* greedy: all alike */
        assert_int_equal(d->n_text[i], a->n_text[0]);
        assert_memory_equal(d->text[i], a->text[0], a->n_text[0]);
    }
    free(a);
    free(b);
    free(c);
    free(d);
    close_it(f);
}

static void test_pause(void **state) {
    (void)state;
    struct fake *f = open_with((struct fake_config){0});
    struct client *a = client_of(f, 0, 20, 40), *b = client_of(f, 200, 20, 40);
    submit(a);
    submit(b);
    for (int i = 0; i < 4; i++) tick(f);
    a->paused = true;
    const size_t n = a->n_text[0];
    run_until_released(f, b);
    assert_true(b->done && !a->done);
    assert_int_equal(a->n_text[0], n);
    assert_false(sched_tick(f->sched)); /* nothing to do until something happens */
    a->paused = false;
    run_until_released(f, a);
    assert_true(a->done);
    free(a);
    free(b);
    close_it(f);
}

/* A long prompt beside running decodes: no step much over the budget; the short prompt behind it is
 * not kept waiting for all of it. */
static void test_prefill_beside_decodes(void **state) {
    (void)state;
    struct fake *f = open_with((struct fake_config){
        .n_ctx = 2048, .n_pages = 600, .max_rows = 512, .prefill_budget_ns = 3000000});
    struct client *teach = run_one(f, client_of(f, 3000, 1000, 30)); /* what a row costs */
    struct client *decode = client_of(f, 0, 10, 900), *longer = client_of(f, 1000, 1500, 5),
                  *shorter = client_of(f, 500, 40, 5);
    submit(decode);
    for (int i = 0; i < 40; i++) tick(f);
    f->backend.most_rows = 0;
    submit(longer);
    for (int i = 0; i < 3; i++) tick(f);
    submit(shorter);
    run_until_released(f, shorter);
    assert_true(shorter->done && !longer->done && longer->n_text[0] == 0);
    run_until_released(f, longer);
    assert_true(longer->done);
    /* 3 ms are 30 rows of the fake backend. */
    assert_true(f->backend.most_rows > 16 && f->backend.most_rows < 48);
    assert_true(f->backend.n_mixed > 30);
    run_until_released(f, decode);
    free(teach);
    free(decode);
    free(longer);
    free(shorter);
    close_it(f);
}

/* Tokenising a large text is cut into slices: another request decodes meanwhile. */
static void test_large_prompt_text(void **state) {
    (void)state;
    enum { BYTES = 1 << 20 };
    struct fake *f = open_with((struct fake_config){
        .chore_slice_ns = 100000, .prefill_budget_ns = 200000, .n_ctx = 2048, .n_pages = 200});
    struct client *a = client_of(f, 0, 20, 1000), *b = client_of(f, 0, 0, 5);
    char *text = malloc(BYTES);
    for (int i = 0; i < BYTES; i++) text[i] = "abcd efg"[i * 7 % 8];
    b->r.ids = NULL;
    b->r.prompt = (struct text){text, BYTES};
    submit(a);
    for (int i = 0; i < 3; i++) tick(f);
    const size_t before = a->n_text[0];
    submit(b);
    for (int i = 0; i < 3; i++) tick(f);
    assert_false(b->released);
    assert_true(a->n_text[0] > before);
    run_until_released(f, b);
    assert_int_equal(b->error.status, STATUS_CONTEXT_LENGTH);
    /* One more, left while a chore has it. */
    b->released = b->failed = false;
    submit(b);
    tick(f);
    sched_cancel(f->sched, b->handle);
    run_until_released(f, b);
    assert_false(b->failed);
    assert_int_equal(shed(f, METRIC_SHED_GONE), 1);
    sched_cancel(f->sched, a->handle);
    run_until_released(f, a);
    free(text);
    free(a);
    free(b);
    close_it(f);
}

static void test_close_with_work(void **state) {
    (void)state;
    for (int way = 0; way < 4; way++) {
        struct fake *f =
            open_with((struct fake_config){.max_batch = 2, .polls_late = way % 2 ? 4 : 0});
        struct client *k[5];
        for (int i = 0; i < 5; i++) submit(k[i] = client_of(f, 0, 100, 50));
        for (int i = 0; i < way * 3; i++) tick(f);
        close_it(f);
        for (int i = 0; i < 5; i++) {
            assert_true(k[i]->released);
            free(k[i]);
        }
    }
}

static void test_seeds(void **state) {
    (void)state;
    struct fake *f = open_with((struct fake_config){0});
    struct client *a = run_one(f, client_of(f, 0, 20, 5)), *b = client_of(f, 0, 20, 5);
    assert_true(a->seed != 0 && a->seed < UINT64_C(1) << 53 && a->report.seed == a->seed);
    b->r.set |= REQUEST_SET_SEED;
    b->r.seed = UINT64_MAX;
    run_one(f, b);
    assert_true(b->seed == UINT64_MAX && b->report.seed == UINT64_MAX);
    free(a);
    free(b);
    a = run_one(f, client_of(f, 0, 20, 5)), b = run_one(f, client_of(f, 0, 20, 5));
    assert_true(a->seed != b->seed);
    free(a);
    free(b);
    close_it(f);
}

/* Between first and last token nothing comes from the general heap. */
static void test_no_allocation(void **state) {
    (void)state;
    uint64_t *allocated = NULL;
    size_t size = sizeof allocated;
    if (mallctl("thread.allocatedp", &allocated, &size, NULL, 0) != 0) {
        print_message("skip: no jemalloc statistics under this build\n");
        return;
    }
    struct fake *f = open_with((struct fake_config){.n_pages = 200});
    struct client *k[4];
    for (int i = 0; i < 4; i++) {
        k[i] = client_of(f, 0, 40, 150);
        k[i]->r.set |= REQUEST_SET_REPETITION | REQUEST_SET_FREQUENCY;
        k[i]->r.repetition_penalty = 1.1f;
        k[i]->r.frequency_penalty = 0.2f;
        k[i]->r.logprobs = true;
        k[i]->r.top_logprobs = 5;
        k[i]->r.stops[0] = (struct text){"never, ever", 11};
        k[i]->r.n_stops = 1;
        submit(k[i]);
    }
    while (k[3]->n_text[0] == 0) tick(f);
    const uint64_t before = *allocated;
    uint32_t ticks = 0;
    for (; !k[0]->released; ticks++) sched_tick(f->sched);
    assert_true(ticks > 100);
    assert_true(*allocated == before);
    for (int i = 0; i < 4; i++) run_until_released(f, k[i]), free(k[i]);
    close_it(f);
}

/* More tokens without text behind a half stop string than can be held. */
static void test_emit_overflow(void **state) {
    (void)state;
    enum { N = EMIT_HELD_TOKENS + 500 };
    struct emit_scratch scratch;
    struct error e = {0};
    must(emit_scratch_open(&scratch, tokenizer, &e), &e);
    void *mem = malloc(emit_footprint());
    struct client k = {.clock_ns = &(uint64_t){1}};
    struct answer a = {.sink = sink, .user = &k};
    struct request r = {.kind = REQUEST_COMPLETION, .logprobs = true};
    const struct text stop = {"xyz", 3};
    static struct stop_set set;
    stop_set_init(&set, &stop, 1);
    struct emit m;
    emit_init(&m, mem);
    emit_start(&m, tokenizer, &r, 0, &set);
    struct output o = {.token = 'w'};
    assert_false(emit_token(&m, &scratch, &a, &o));
    o.token = 'x';
    assert_false(emit_token(&m, &scratch, &a, &o));
    assert_int_equal(k.n_text[0], 1);
    assert_int_equal(k.n_lps, 1);
    o.token = FAKE_CONTROL;
    for (int i = 0; i < N; i++) assert_false(emit_token(&m, &scratch, &a, &o));
    assert_int_equal(k.n_text[0], 1); /* the x is still held */
    o.token = 'y';
    assert_false(emit_token(&m, &scratch, &a, &o));
    o.token = 'w';
    assert_false(emit_token(&m, &scratch, &a, &o));
    assert_int_equal(k.n_text[0], 4);
    assert_memory_equal(k.text[0], "wxyw", 4);
    assert_int_equal(k.n_lps, N + 4);
    assert_true(k.lp_ids[0] == 'w' && k.lp_ids[1] == 'x' && k.lp_ids[2] == FAKE_CONTROL);
    assert_true(k.lp_ids[N + 2] == 'y' && k.lp_ids[N + 3] == 'w');
    emit_scratch_close(&scratch);
    free(mem);
}

static void test_open_refuses(void **state) {
    (void)state;
    struct fake *f = open_with((struct fake_config){0});
    struct sched_config cfg = {.plan = &f->plan,
                               .tokenizer = tokenizer,
                               .backend = &f->backend.base,
                               .pages = f->pages,
                               .workers = workers,
                               .metrics = f->metrics,
                               .n_ctx = 128,
                               .max_batch = 4,
                               .max_queue = 4,
                               .prefix_cache = true,
                               .now_ns = fake_now,
                               .now_arg = &f->clock_ns};
    cfg.limits = (struct step_limits){.max_spans = 4,
                                      .max_rows = 4,
                                      .max_outputs = 3,
                                      .max_pages = 64,
                                      .max_copies = 8,
                                      .max_profiles = 1,
                                      .max_taps = 2};
    struct sched *s;
    struct error e = {0};
    assert_int_equal(sched_open(&cfg, &s, &e), STATUS_INVALID);
    assert_string_equal(e.field, "max_outputs");
    assert_null(s);
    cfg.max_batch = 0;
    assert_int_equal(sched_open(&cfg, &s, &e), STATUS_INVALID);
    close_it(f);
}

int main(void) {
    tokenizer = fake_tokenizer();
    workers = fake_workers();
    for (uint32_t i = 0; i < sizeof many_ids / sizeof *many_ids; i++)
        many_ids[i] = (uint32_t)(mix64(i) % FAKE_BOS);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_text_prompts),
        cmocka_unit_test(test_tokenize_detokenize),
        cmocka_unit_test(test_chat),
        cmocka_unit_test(test_chat_at_the_seam),
        cmocka_unit_test(test_full_and_draining),
        cmocka_unit_test(test_order_of_service),
        cmocka_unit_test(test_deadlines),
        cmocka_unit_test(test_device_failures),
        cmocka_unit_test(test_not_a_number),
        cmocka_unit_test(test_cancel_inside_calls),
        cmocka_unit_test(test_cancel_inside_text),
        cmocka_unit_test(test_gone_while_waiting),
        cmocka_unit_test(test_submit_inside_done),
        cmocka_unit_test(test_prefix_and_fork),
        cmocka_unit_test(test_pause),
        cmocka_unit_test(test_prefill_beside_decodes),
        cmocka_unit_test(test_large_prompt_text),
        cmocka_unit_test(test_close_with_work),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_no_allocation),
        cmocka_unit_test(test_emit_overflow),
        cmocka_unit_test(test_open_refuses),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    worker_pool_stop(workers);
    tokenizer_free(tokenizer);
    return failed;
}
