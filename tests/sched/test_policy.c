/* Policy epochs, decisions and presets; explanations of what the scheduler did; feedback, its
 * refusals, drift, and a candidate that is trained, promoted and taken back. */
#include "tests/sched/policy_rig.h"

#include <unistd.h>

#include <jansson.h>

#include "sched/explain.h"
#include "sched/feedback.h"

static struct text text_of(const char *s) {
    return (struct text){s, strlen(s)};
}

/* ---- epochs ---- */

static struct policy *open_with(enum policy_kind kind, struct policy_presets presets,
                                uint32_t model) {
    const struct policy_config cfg = {
        .kind = kind, .presets = presets, .identity = 77, .n_workspaces = 1};
    struct policy *p;
    struct error e = {0};
    must(policy_open(&cfg, rig_copy(model), &p, &e), &e);
    return p;
}

static void fingerprint_of(enum policy_kind kind, struct policy_presets presets, uint32_t model,
                           char out[POLICY_FINGERPRINT_BYTES]) {
    struct policy *p = open_with(kind, presets, model);
    memcpy(out, policy_newest(p)->fingerprint, POLICY_FINGERPRINT_BYTES);
    policy_close(p);
}

/* Equal sets have equal fingerprints; what cannot change an answer is not in them. */
static void test_fingerprints(void **state) {
    (void)state;
    struct policy_presets other = policy_default_presets();
    other.task[METRIC_TASK_CODE].top_p = 0.9f;
    char f[6][POLICY_FINGERPRINT_BYTES], again[POLICY_FINGERPRINT_BYTES];
    fingerprint_of(POLICY_EXACT, policy_default_presets(), 0, f[0]);
    fingerprint_of(POLICY_EXACT, other, 0, f[1]);
    fingerprint_of(POLICY_ADAPTIVE, policy_default_presets(), 0, f[2]);
    fingerprint_of(POLICY_ADAPTIVE, other, 0, f[3]);
    fingerprint_of(POLICY_ADAPTIVE, policy_default_presets(), 1, f[4]);
    fingerprint_of(POLICY_EXACT, policy_default_presets(), 1, f[5]);
    assert_string_equal(f[0], "lac-000000000000004d"); /* the identity alone */
    assert_string_equal(f[5], f[0]);
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < i; k++) assert_string_not_equal(f[i], f[k]);
    fingerprint_of(POLICY_ADAPTIVE, policy_default_presets(), 0, again);
    assert_string_equal(again, f[2]);
}

static void test_epochs(void **state) {
    (void)state;
    struct error e = {0};
    struct policy *p = open_with(POLICY_ADAPTIVE, policy_default_presets(), 0);
    const struct policy_epoch *first = policy_pin(p);
    assert_int_equal(first->number, 1);
    assert_false(policy_can_revert(p));
    assert_int_equal(policy_revert(p, &e), STATUS_NOT_FOUND);
    rig_publish(p, 1);
    const struct policy_epoch *second = policy_pin(p);
    assert_int_equal(second->number, 2);
    assert_string_not_equal(first->fingerprint, second->fingerprint);
    /* The first is as it was while somebody holds it. */
    struct policy_decision d;
    const struct request r = {.user_text = text_of("fetch w1 and w2")};
    policy_decide(p, second, &r, &d);
    assert_int_equal(d.task, METRIC_TASK_DETERMINISTIC);
    assert_int_equal(task_model_n_classes(first->model), 4);
    policy_decide(p, first, &r, &d);
    must(policy_revert(p, &e), &e);
    assert_int_equal(policy_newest(p)->number, 3);
    assert_string_equal(policy_newest(p)->fingerprint, first->fingerprint);
    must(policy_revert(p, &e), &e); /* and forward again */
    assert_string_equal(policy_newest(p)->fingerprint, second->fingerprint);
    /* What audits switched off stays off, whatever task model follows; a way back is still there.
     */
    const struct policy_epoch *whole = policy_pin(p);
    must(policy_full_depth(p, 3, &e), &e);
    must(policy_full_depth(p, 70, &e), &e);
    const struct policy_epoch *off = policy_newest(p);
    assert_true(policy_is_full_depth(off, 3) && policy_is_full_depth(off, 70));
    assert_false(policy_is_full_depth(off, 4) || policy_is_full_depth(whole, 3));
    assert_string_not_equal(off->fingerprint, whole->fingerprint);
    assert_true(off->model == whole->model);
    policy_unpin(p, whole);
    must(policy_revert(p, &e), &e);
    assert_true(policy_is_full_depth(policy_newest(p), 3));
    assert_string_not_equal(policy_newest(p)->fingerprint, first->fingerprint);
    assert_true(policy_newest(p)->model == first->model);
    for (uint32_t i = 0; i < 20; i++) rig_publish(p, i % 2);
    assert_true(policy_is_full_depth(policy_newest(p), 70));
    assert_int_equal(first->number, 1);
    policy_unpin(p, first);
    policy_unpin(p, second);
    policy_close(p);
}

static void test_decisions(void **state) {
    (void)state;
    struct policy *adaptive = open_with(POLICY_ADAPTIVE, policy_default_presets(), 0);
    struct policy *exact = open_with(POLICY_EXACT, policy_default_presets(), 0);
    static const struct {
        const char *text;
        enum metric_task task;
    } clear[] = {{"Write a Python function that adds two numbers.", METRIC_TASK_CODE},
                 {"Write a poem about the sea in autumn.", METRIC_TASK_OPEN},
                 {"What is the capital of France?", METRIC_TASK_DETERMINISTIC},
                 {"小明有3个苹果，又买了5个，一共有几个？", METRIC_TASK_REASONING}};
    for (size_t i = 0; i < sizeof clear / sizeof *clear; i++) {
        struct policy_decision d;
        const struct rig_preset *want = rig_preset(metric_task_name(clear[i].task));
        struct request r = {.user_text = text_of(clear[i].text)};
        policy_decide(adaptive, policy_newest(adaptive), &r, &d);
        assert_int_equal(d.task, clear[i].task);
        assert_int_equal(d.by, POLICY_BY_MODEL);
        assert_non_null(d.verdict.reasons[0].feature);
        policy_apply(policy_newest(adaptive), &d, &r);
        assert_int_equal(r.set, REQUEST_SET_TEMPERATURE | REQUEST_SET_TOP_P);
        assert_true(r.temperature == want->temperature && r.top_p == want->top_p);
        /* What the client set wins. */
        r = (struct request){
            .user_text = text_of(clear[i].text), .set = REQUEST_SET_TOP_P, .top_p = 0.33f};
        policy_apply(policy_newest(adaptive), &d, &r);
        assert_int_equal(d.set, REQUEST_SET_TEMPERATURE);
        assert_true(r.temperature == want->temperature && r.top_p == 0.33f);
        /* Under `exact` nothing happens unasked. */
        r = (struct request){.user_text = text_of(clear[i].text), .temperature = 1, .top_p = 1};
        policy_decide(exact, policy_newest(exact), &r, &d);
        policy_apply(policy_newest(exact), &d, &r);
        assert_int_equal(d.task, clear[i].task);
        assert_true(r.set == 0 && d.set == 0 && r.temperature == 1 && r.top_p == 1);
        r.set = REQUEST_SET_TASK_TYPE;
        r.task_type = METRIC_TASK_CLASSIFY;
        policy_decide(exact, policy_newest(exact), &r, &d);
        policy_apply(policy_newest(exact), &d, &r);
        assert_int_equal(d.by, POLICY_BY_CLIENT);
        assert_true(r.temperature == 0 && (r.set & REQUEST_SET_TEMPERATURE));
    }
    /* No text, and text of no clear kind. */
    struct policy_decision d;
    struct request r = {0};
    policy_decide(adaptive, policy_newest(adaptive), &r, &d);
    assert_true(d.task == METRIC_TASK_NONE && !d.classified && d.by == POLICY_BY_NOBODY);
    policy_apply(policy_newest(adaptive), &d, &r);
    assert_true(r.temperature == 0.5f && r.top_p == 0.9f);

    /* The rollback monitor: under adaptive, where it was calibrated and nobody spoke of it. */
    const struct rollback nothing = ROLLBACK_DEFAULT;
    for (uint32_t i = 0; i < 16; i++) {
        r = (struct request){.kind = i & 1 ? REQUEST_CHAT : REQUEST_EMBEDDING, .rollback = nothing};
        if (i & 2) r.set = REQUEST_SET_ROLLBACK;
        policy_watch(policy_newest(i & 4 ? adaptive : exact), i & 8, &r);
        assert_int_equal(r.rollback.rule, i == 13 ? ROLLBACK_AUTO : ROLLBACK_OFF);
    }
    r = (struct request){.user_text = text_of(clear[0].text), .rollback = nothing};
    r.rollback.rule = ROLLBACK_FIXED;
    policy_decide(adaptive, policy_newest(adaptive), &r, &d);
    const float threshold = policy_newest(adaptive)->presets.task[d.task].entropy_threshold;
    policy_apply(policy_newest(adaptive), &d, &r);
    assert_true(r.rollback.entropy_threshold == threshold && threshold > 0);
    r.set = REQUEST_SET_ENTROPY_THRESHOLD;
    r.rollback.entropy_threshold = 4;
    policy_apply(policy_newest(adaptive), &d, &r);
    assert_true(r.rollback.entropy_threshold == 4);
    policy_close(adaptive);
    policy_close(exact);
}

/* ---- the scheduler behind it ---- */

struct teller {
    bool done, failed, released;
    struct request_report report;
    char lint[4096];
    struct error error;
};

static void on_started(void *user, uint64_t seed) {
    (void)user, (void)seed;
}
static void on_delta(void *user, uint32_t choice, const char *bytes, size_t n,
                     const struct token_logprob *lps, uint32_t n_lps) {
    (void)user, (void)choice, (void)bytes, (void)n, (void)lps, (void)n_lps;
}
static void on_finish(void *user, uint32_t choice, enum finish_reason reason) {
    (void)user, (void)choice, (void)reason;
}
static void on_tokens(void *user, const uint32_t *ids, size_t n) {
    (void)user, (void)ids, (void)n;
}
static void on_done(void *user, const struct request_usage *usage,
                    const struct request_report *report) {
    struct teller *t = user;
    (void)usage;
    t->done = true;
    t->report = *report;
    snprintf(t->lint, sizeof t->lint, "%.*s", (int)report->lint.len,
             report->lint.len > 0 ? report->lint.data : "");
}
static void on_failed(void *user, const struct error *e, uint32_t retry_after_s) {
    struct teller *t = user;
    (void)retry_after_s;
    t->failed = true;
    t->error = *e;
}
static void on_release(void *user) {
    ((struct teller *)user)->released = true;
}
static bool on_writable(void *user) {
    (void)user;
    return true;
}
static const struct request_sink sink = {on_started, on_delta,  on_finish,  on_tokens,  NULL,
                                         on_done,    on_failed, on_release, on_writable};

struct rig {
    struct fake f;
    struct tokenizer *tokenizer;
    struct worker_pool *workers;
    struct policy *policy;
    uint32_t n_asked;
};

static void rig_start(struct rig *g, enum policy_kind kind, const struct sched_adapt *adapt) {
    struct fake_config cfg = {
        .n_ctx = 128, .max_batch = 2, .max_queue = 8, .n_pages = 40, .drafts = 1 /* suffix */};
    memset(g, 0, sizeof *g);
    g->tokenizer = fake_tokenizer();
    g->workers = fake_workers();
    g->policy = cfg.policy = rig_policy(kind);
    if (adapt != NULL) cfg.adapt = *adapt;
    fake_open(&g->f, &cfg, g->tokenizer, g->workers);
}

static void rig_stop(struct rig *g) {
    fake_close(&g->f);
    policy_close(g->policy);
    worker_pool_stop(g->workers);
    tokenizer_free(g->tokenizer);
}

static struct teller ask(struct rig *g, struct request *r) {
    static const uint32_t few[] = {'a', 'b', 'c', 'a', 'b'};
    struct teller t = {0};
    struct error e = {0};
    request_handle h;
    r->kind = REQUEST_COMPLETION;
    if (r->ids == NULL) r->ids = few, r->n_ids = 5;
    r->n = r->n == 0 ? 1 : r->n;
    r->set |= REQUEST_SET_MAX_TOKENS | REQUEST_SET_SEED;
    if (r->max_tokens == 0) r->max_tokens = 2;
    r->seed = g->n_asked++;
    r->received_ns = g->f.clock_ns;
    must(sched_submit(g->f.sched, r, &sink, &t, &h, &e), &e);
    while (!t.released)
        if (!sched_tick(g->f.sched)) g->f.clock_ns += 100000;
    return t;
}

static struct teller ask_text(struct rig *g, const char *id, const char *text) {
    struct request r = {.id = text_of(id), .user_text = text_of(text)};
    return ask(g, &r);
}

static json_t *read_json(struct buffer *b) {
    json_t *j = json_loadb(b->data, b->len, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(j);
    buffer_free(b);
    return j;
}

static json_t *explain(struct rig *g, const char *id) {
    struct buffer b;
    struct error e;
    buffer_init(&b, 0);
    assert_int_equal(sched_explain(g->f.sched, text_of(id), &b, &e), STATUS_OK);
    return read_json(&b);
}

static const json_t *at(const json_t *j, const char *path) {
    char word[64];
    while (*path != '\0' && j != NULL) {
        const size_t n = strcspn(path, ".");
        snprintf(word, sizeof word, "%.*s", (int)n, path);
        j = json_is_array(j) ? json_array_get(j, (size_t)atoi(word)) : json_object_get(j, word);
        path += path[n] == '.' ? n + 1 : n;
    }
    return j;
}

static long long whole(const json_t *j, const char *path) {
    assert_true(json_is_integer(at(j, path)));
    return json_integer_value(at(j, path));
}

static const char *word(const json_t *j, const char *path) {
    assert_non_null(json_string_value(at(j, path)));
    return json_string_value(at(j, path));
}

static void test_explained(void **state) {
    (void)state;
    struct rig g;
    struct error e;
    struct buffer b;
    rig_start(&g, POLICY_ADAPTIVE, NULL);
    const struct teller t = ask_text(&g, "first", "Write a poem about the sea in autumn.");
    assert_int_equal(t.report.task, METRIC_TASK_OPEN);
    json_t *j = explain(&g, "first");
    assert_int_equal(json_array_size(at(j, "prompts")), 1);
    const json_t *p = at(j, "prompts.0");
    assert_string_equal(word(p, "state"), "finished");
    assert_string_equal(word(p, "task.type"), "open");
    assert_string_equal(word(p, "decisions.0.what"), "preset");
    assert_true(fabs(json_number_value(at(p, "decisions.0.set.temperature")) - 0.8) < 1e-6);
    assert_true(fabs(json_number_value(at(p, "sampling.top_p")) - 0.95) < 1e-6);
    assert_int_equal(whole(p, "epoch"), 1);
    assert_string_equal(word(p, "system_fingerprint"), sched_fingerprint(g.f.sched));
    assert_int_equal(whole(p, "tokens.prompt"), 5);
    const long long n = whole(p, "tokens.completion");
    assert_true(n == 1 || n == 2);
    assert_int_equal(whole(p, "events.token"), n);
    assert_int_equal(whole(p, "steps.prefill.n"), 1);
    json_decref(j);
    assert_int_equal(metric_count(g.f.metrics, METRIC_REQUEST,
                                  metric_outcome_task(METRIC_FINISHED, METRIC_TASK_OPEN)),
                     1);
    /* Choices, and two prompts of one id. */
    struct request r = {.id = text_of("second"), .n = 2, .max_tokens = 9};
    (void)ask(&g, &r);
    r = (struct request){.id = text_of("second"), .max_tokens = 9};
    (void)ask(&g, &r);
    j = explain(&g, "second");
    assert_int_equal(json_array_size(at(j, "prompts")), 2);
    assert_int_equal(json_array_size(at(j, "prompts.0.finish_reasons")), 2);
    assert_string_equal(word(j, "prompts.0.task.type"), "none");
    assert_string_equal(word(j, "prompts.0.decisions.0.preset"), "middle");
    /* A step of two choices is one step. */
    assert_true(whole(j, "prompts.0.steps.decode.n") + whole(j, "prompts.0.steps.verify.n") <= 8);
    json_decref(j);
    buffer_init(&b, 0);
    assert_int_equal(sched_explain(g.f.sched, text_of("third"), &b, &e), STATUS_NOT_FOUND);
    assert_int_equal(sched_explain(g.f.sched, text_of(""), &b, &e), STATUS_NOT_FOUND);
    assert_int_equal(b.len, 0);
    buffer_free(&b);
    /* The newest thousand. */
    for (int i = 0; i < EXPLAIN_RECORDS; i++) {
        char id[16];
        snprintf(id, sizeof id, "r%d", i);
        r = (struct request){.id = text_of(id), .max_tokens = 1};
        (void)ask(&g, &r);
        if (i == EXPLAIN_RECORDS - 3) json_decref(explain(&g, "second"));
    }
    buffer_init(&b, 0);
    assert_int_equal(sched_explain(g.f.sched, text_of("second"), &b, &e), STATUS_NOT_FOUND);
    buffer_free(&b);
    json_decref(explain(&g, "r0"));
    json_decref(explain(&g, "r999"));
    rig_stop(&g);
}

/* What the flight record says of rollbacks and clocks, however much came after. */
static void test_decisions_explained(void **state) {
    (void)state;
    void *mem = aligned_alloc(64, (flight_footprint(1, 16) + 63) / 64 * 64);
    struct flight *f = flight_init(mem, 1, 16);
    const struct request r = {.id = text_of("x"), .n = 2};
    const struct explain_what what = {.request = &r};
    static struct explain_record record;
    struct json_writer w;
    struct buffer b;
    flight_record(f, 0, 5, FLIGHT_ROLLBACK, 1, 6,
                  flight_rollback_pack((struct flight_rollback){42, 3.25f, 0.125f}));
    for (uint32_t i = 0; i < 100; i++) flight_record(f, 0, 6 + i, FLIGHT_TOKEN, 0, 1, i);
    flight_record(f, 0, 200, FLIGHT_DEADLINE, 0, 0, 0);
    flight_record(f, 0, 201, FLIGHT_CHOICE_END, 1, FINISH_LENGTH, 3);
    explain_fill(&record, f, 0, &what);
    buffer_init(&b, 0);
    json_write_begin(&w, &b);
    explain_write(&w, &record);
    json_t *j = read_json(&b);
    assert_string_equal(word(j, "decisions.0.what"), "rollback");
    assert_int_equal(whole(j, "decisions.0.position"), 42);
    assert_int_equal(whole(j, "decisions.0.tokens"), 6);
    assert_int_equal(whole(j, "decisions.0.choice"), 1);
    assert_true(fabs(json_number_value(at(j, "decisions.0.entropy")) - 3.25) < 1e-6);
    assert_true(fabs(json_number_value(at(j, "decisions.0.similarity")) - 0.125) < 1e-6);
    assert_string_equal(word(j, "decisions.1.what"), "deadline");
    assert_true(json_is_null(at(j, "finish_reasons.0")));
    assert_string_equal(word(j, "finish_reasons.1"), "length");
    assert_string_equal(word(j, "state"), "running");
    json_decref(j);
    free(mem);
}

/* What a cached prompt is said to save is what it saves when it is cached. */
static void test_saving_comes_true(void **state) {
    (void)state;
    struct rig g;
    uint32_t ids[64];
    for (uint32_t i = 0; i < 64; i++) ids[i] = 'a' + i * 7 % 26;
    rig_start(&g, POLICY_EXACT, NULL);
    struct request r = {.id = text_of("first"), .ids = ids, .n_ids = 64, .max_tokens = 3};
    (void)ask(&g, &r);
    r = (struct request){.id = text_of("again"), .ids = ids, .n_ids = 64, .max_tokens = 3};
    (void)ask(&g, &r);
    json_t *first = explain(&g, "first"), *again = explain(&g, "again");
    const double before = json_number_value(at(first, "prompts.0.cost_ms.prefill"));
    const double after = json_number_value(at(again, "prompts.0.cost_ms.prefill"));
    assert_int_equal(whole(again, "prompts.0.tokens.cached"), 48);
    const json_t *faster = at(first, "prompts.0.faster"), *s;
    double said = 0;
    for (size_t i = 0; (s = json_array_get(faster, i)) != NULL; i++)
        if (strcmp(word(s, "what"), "prefix_cache") == 0)
            said = json_number_value(json_object_get(s, "saved_ms"));
    assert_true(before > after && fabs(said - (before - after)) < 0.1 * (before - after));
    assert_string_equal(word(again, "prompts.0.saved_by.0.what"), "prefix_cache");
    json_decref(first);
    json_decref(again);
    rig_stop(&g);
}

static void test_lint(void **state) {
    (void)state;
    struct rig g;
    rig_start(&g, POLICY_EXACT, NULL);
    struct request r = {.id = text_of("x"),
                        .user_text =
                            text_of("Answer in JSON only. Write plain prose without JSON."),
                        .lint = true};
    struct teller t = ask(&g, &r);
    json_t *j = json_loads(t.lint, 0, NULL);
    assert_true(json_is_true(at(j, "warns")));
    json_decref(j);
    r = (struct request){.lint = true};
    t = ask(&g, &r);
    assert_true(t.failed && t.error.status == STATUS_INVALID);
    assert_string_equal(t.error.field, "laconic.lint");
    r = (struct request){.user_text = text_of("Be brief.")};
    t = ask(&g, &r);
    assert_true(t.done && t.lint[0] == '\0');
    rig_stop(&g);
}

/* ---- feedback ---- */

static enum status tell(struct rig *g, const char *id, const char *label, int accepted,
                        struct error *e) {
    struct buffer b;
    buffer_init(&b, 0);
    const struct request_feedback f = {.id = text_of(id),
                                       .label = text_of(label),
                                       .has_accepted = accepted >= 0,
                                       .accepted = accepted == 1};
    const enum status st = sched_feedback(g->f.sched, &f, &b, e);
    if (st == STATUS_OK) json_decref(read_json(&b));
    if (st != STATUS_OK) buffer_free(&b);
    return st;
}

static json_t *policy(struct rig *g, enum sched_policy_action action) {
    struct buffer b;
    struct error e;
    buffer_init(&b, 0);
    must(sched_policy(g->f.sched, action, &b, &e), &e);
    return read_json(&b);
}

static void test_feedback(void **state) {
    (void)state;
    struct rig g;
    struct error e;
    rig_start(&g, POLICY_EXACT, NULL);
    assert_true(isnan(metric_value(g.f.metrics, METRIC_TASK_ACCURACY, 0)));
    (void)ask_text(&g, "a", "Write a poem about the sea in autumn.");
    (void)ask_text(&g, "b", "What is the capital of France?");
    assert_int_equal(tell(&g, "none", "open", -1, &e), STATUS_NOT_FOUND);
    assert_int_equal(tell(&g, "a", "", -1, &e), STATUS_INVALID);
    assert_int_equal(tell(&g, "a", "qa", -1, &e), STATUS_INVALID);
    assert_int_equal(tell(&g, "a", "opennnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn", -1, &e),
                     STATUS_INVALID);
    assert_int_equal(metric_count(g.f.metrics, METRIC_FEEDBACK, 0), 0);
    must(tell(&g, "a", "open", 1, &e), &e);
    assert_int_equal(tell(&g, "a", "open", -1, &e), STATUS_INVALID);
    must(tell(&g, "a", "", 0, &e), &e);
    must(tell(&g, "b", "code", -1, &e), &e);
    assert_true(metric_value(g.f.metrics, METRIC_TASK_ACCURACY, 0) == 0.5);
    json_t *j = policy(&g, SCHED_POLICY_SHOW);
    assert_int_equal(whole(j, "feedback.labels"), 2);
    assert_int_equal(whole(j, "feedback.of_this_epoch.rows"), 2);
    /* rows: code, open, deterministic, reasoning */
    assert_int_equal(whole(j, "feedback.of_this_epoch.confusion.1.1"), 1);
    assert_int_equal(whole(j, "feedback.of_this_epoch.confusion.0.2"), 1);
    assert_int_equal(whole(j, "feedback.accepted.open.yes"), 1);
    assert_int_equal(whole(j, "feedback.accepted.open.no"), 1);
    json_decref(j);
    rig_stop(&g);
}

/* Traffic of the small model's kind, then of another: the words for the same tasks change. */
static void serve_rows(struct rig *g, uint32_t from, uint32_t n, const char *const verbs[2]) {
    static const char *const labels[2] = {"deterministic", "open"};
    struct error e;
    for (uint32_t i = from; i < from + n; i++) {
        char id[16], text[96];
        snprintf(id, sizeof id, "q%u", i);
        snprintf(text, sizeof text, "%s w%u and w%u", verbs[i % 2], i * 7 % 31, i * 5 % 37);
        struct request r = {.id = text_of(id), .user_text = text_of(text), .max_tokens = 1};
        (void)ask(g, &r);
        must(tell(g, id, labels[i % 2], -1, &e), &e);
    }
}

static void run_drift(bool auto_promote) {
    static const char *const before[2] = {"fetch", "compose"}, *const after[2] = {"compose it as",
                                                                                  "obtain for me"};
    const struct sched_adapt adapt = {
        .rows = 40, .drift_reference = 100, .drift_window = 40, .auto_promote = auto_promote};
    struct rig g;
    struct error e;
    struct buffer b;
    rig_start(&g, POLICY_ADAPTIVE, &adapt);
    rig_publish(g.policy, 1);
    /* A new scheduler begins with the small model's epoch. */
    fake_close(&g.f);
    struct fake_config cfg = {.n_ctx = 128,
                              .max_batch = 2,
                              .max_queue = 8,
                              .n_pages = 40,
                              .policy = g.policy,
                              .adapt = adapt};
    fake_open(&g.f, &cfg, g.tokenizer, g.workers);
    serve_rows(&g, 0, 160, before);
    json_t *j = policy(&g, SCHED_POLICY_SHOW);
    assert_true(json_is_false(at(j, "drift.alarm")) && json_is_null(at(j, "candidate")));
    assert_true(json_number_value(at(j, "feedback.of_this_epoch.accuracy")) > 0.99);
    json_decref(j);
    buffer_init(&b, 0);
    assert_int_equal(sched_policy(g.f.sched, SCHED_POLICY_PROMOTE, &b, &e), STATUS_NOT_FOUND);
    buffer_free(&b);
    uint32_t n = 160;
    const uint32_t epoch = policy_newest(g.policy)->number;
    for (bool trains = false; !trains; n += 10) {
        assert_true(n < 400);
        serve_rows(&g, n, 10, after);
        j = policy(&g, SCHED_POLICY_SHOW);
        trains = json_is_object(at(j, "candidate"));
        json_decref(j);
    }
    assert_true(auto_promote || metric_value(g.f.metrics, METRIC_DRIFT_ALARM, 0) == 1);
    for (bool ends = false; !ends;) {
        (void)sched_tick(g.f.sched);
        j = policy(&g, SCHED_POLICY_SHOW);
        ends = strcmp(word(j, "candidate.state"), "training") != 0;
        if (!ends) json_decref(j);
        usleep(2000);
    }
    assert_true(json_is_true(at(j, "candidate.better")));
    assert_true(json_number_value(at(j, "candidate.on_fresh_rows.candidate.accuracy")) >
                json_number_value(at(j, "candidate.on_fresh_rows.now.accuracy")));
    assert_string_equal(word(j, "candidate.state"), auto_promote ? "promoted" : "waits");
    json_decref(j);
    if (!auto_promote) {
        assert_int_equal(policy_newest(g.policy)->number, epoch);
        json_decref(policy(&g, SCHED_POLICY_PROMOTE));
    }
    assert_int_equal(policy_newest(g.policy)->number, epoch + 1);
    assert_true(metric_value(g.f.metrics, METRIC_POLICY_EPOCH, 0) == epoch + 1);
    assert_true(metric_value(g.f.metrics, METRIC_DRIFT_ALARM, 0) == 0);
    serve_rows(&g, n, 40, after);
    j = policy(&g, SCHED_POLICY_SHOW);
    assert_true(json_number_value(at(j, "feedback.of_this_epoch.accuracy")) > 0.9);
    json_decref(j);
    json_decref(policy(&g, SCHED_POLICY_REVERT));
    assert_int_equal(policy_newest(g.policy)->number, epoch + 2);
    serve_rows(&g, n + 40, 20, before);
    j = policy(&g, SCHED_POLICY_SHOW);
    assert_true(json_number_value(at(j, "feedback.of_this_epoch.accuracy")) > 0.99);
    json_decref(j);
    rig_stop(&g);
}

static void test_drift_and_promotion(void **state) {
    (void)state;
    run_drift(false);
    run_drift(true);
}

/* Real queries through the scheduler: the row at which the alarm is raised, -1 if none is. */
static int alarm_row(const char *path) {
    struct rig g;
    char *line = NULL;
    size_t room = 0;
    int row = 0, alarm = -1;
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    rig_start(&g, POLICY_EXACT, NULL);
    for (ssize_t n; alarm < 0 && (n = getline(&line, &room, f)) > 0; row++) {
        json_t *j = json_loadb(line, (size_t)n, 0, NULL);
        struct request r = {.user_text = text_of(word(j, "text")), .max_tokens = 1};
        (void)ask(&g, &r);
        json_decref(j);
        if (metric_value(g.f.metrics, METRIC_DRIFT_ALARM, 0) == 1) alarm = row;
    }
    assert_true(row > 400);
    rig_stop(&g);
    free(line);
    fclose(f);
    return alarm;
}

static void test_real_drift(void **state) {
    (void)state;
    const char *shared = getenv("LAC_SHARED");
    char path[2][512];
    snprintf(path[0], sizeof path[0], "%s/data/drift/abrupt.jsonl", shared != NULL ? shared : "");
    snprintf(path[1], sizeof path[1], "%s/data/drift/control_nodrift.jsonl",
             shared != NULL ? shared : "");
    if (shared == NULL || access(path[0], R_OK) != 0) {
        printf("skip: LAC_SHARED has no data/drift\n");
        return;
    }
    const int abrupt = alarm_row(path[0]), control = alarm_row(path[1]);
    printf("# served in order: abrupt (from row 600) alarms at row %d, control at %d\n", abrupt,
           control);
    assert_true(abrupt >= 600 && abrupt < 750);
    assert_int_equal(control, -1);
}

/* Without a policy the side doors are shut. */
static void test_no_policy(void **state) {
    (void)state;
    struct fake f;
    struct tokenizer *t = fake_tokenizer();
    struct worker_pool *workers = fake_workers();
    const struct fake_config cfg = {.n_ctx = 64, .max_batch = 1, .max_queue = 1, .n_pages = 8};
    const struct request_feedback feedback = {.id = text_of("x")};
    struct buffer b;
    struct error e;
    fake_open(&f, &cfg, t, workers);
    buffer_init(&b, 0);
    assert_null(sched_fingerprint(f.sched));
    assert_int_equal(sched_explain(f.sched, text_of("x"), &b, &e), STATUS_UNSUPPORTED);
    assert_int_equal(sched_feedback(f.sched, &feedback, &b, &e), STATUS_UNSUPPORTED);
    assert_int_equal(sched_policy(f.sched, SCHED_POLICY_SHOW, &b, &e), STATUS_UNSUPPORTED);
    buffer_free(&b);
    fake_close(&f);
    worker_pool_stop(workers);
    tokenizer_free(t);
}

static int end(void **state) {
    (void)state;
    rig_close();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fingerprints),
        cmocka_unit_test(test_epochs),
        cmocka_unit_test(test_decisions),
        cmocka_unit_test(test_explained),
        cmocka_unit_test(test_decisions_explained),
        cmocka_unit_test(test_saving_comes_true),
        cmocka_unit_test(test_lint),
        cmocka_unit_test(test_feedback),
        cmocka_unit_test(test_drift_and_promotion),
        cmocka_unit_test(test_real_drift),
        cmocka_unit_test(test_no_policy),
    };
    return cmocka_run_group_tests(tests, NULL, end);
}
