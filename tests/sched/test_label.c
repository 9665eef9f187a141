/* Requests with labels among others, in random schedules: the answers of heads and of scoring are
 * those of a plain path over the same tokens; the others' answers are what they are alone; pages of
 * looked-at texts are never shared; what does not fit is refused by name. */
#include <signal.h>
#include <unistd.h>

#include "tests/sched/fake.h"
#include "tests/sched/policy_rig.h"

#include "models/label_text.h"
#include "models/task_words.h"
#include "sched/draft.h"
#include "sched/label.h"

enum { MAX_CLIENTS = 20, MAX_LABELS = 12, MAX_TEXT = 200, HEAD_TOKENS = 24, N_CTX = 600 };

static const char *const KNOWN[3] = {"abc", "bad", "cab"};

struct client {
    struct request r;
    struct text labels[MAX_LABELS];
    char names[MAX_LABELS][16], text[MAX_TEXT];
    uint32_t ids[32];
    uint64_t arrives_ns, leaves_ns;
    request_handle handle;
    bool submitted, started, finished, done, failed, released, left;
    struct error error;
    char got[4096];
    size_t n_got;
    uint32_t label, layer;
    float probability[MAX_LABELS];
    struct request_usage usage;
    bool late;
    /* wanted */
    bool bad;
    uint32_t want_label, want_layer;
    float want[MAX_LABELS];
};

static void on_started(void *user, uint64_t seed) {
    (void)seed;
    ((struct client *)user)->started = true;
}
static void on_delta(void *user, uint32_t choice, const char *bytes, size_t n,
                     const struct token_logprob *lps, uint32_t n_lps) {
    struct client *k = user;
    (void)lps;
    assert_true(choice == 0 && n_lps == 0 && k->started && !k->finished);
    assert_true(k->n_got + n <= sizeof k->got);
    memcpy(k->got + k->n_got, bytes, n);
    k->n_got += n;
}
static void on_finish(void *user, uint32_t choice, enum finish_reason reason) {
    struct client *k = user;
    assert_true(choice == 0 && !k->finished);
    assert_true(k->r.n_labels == 0 || reason == FINISH_STOP);
    k->finished = true;
}
static void on_tokens(void *user, const uint32_t *ids, size_t n) {
    (void)user, (void)ids, (void)n;
    fail();
}
static void on_done(void *user, const struct request_usage *usage,
                    const struct request_report *report) {
    struct client *k = user;
    assert_true(k->finished && !k->done && !k->failed);
    k->done = true;
    k->usage = *usage;
    k->late = report->deadline_missed;
    assert_true((report->label_probability != NULL) == (k->r.n_labels > 0));
    if (k->r.n_labels == 0) return;
    k->label = report->label;
    k->layer = report->exit_layer;
    memcpy(k->probability, report->label_probability, k->r.n_labels * sizeof(float));
}
static void on_failed(void *user, const struct error *e, uint32_t retry_after_s) {
    struct client *k = user;
    (void)retry_after_s;
    assert_true(!k->done && !k->failed);
    k->failed = true;
    k->error = *e;
}
static void on_release(void *user) {
    struct client *k = user;
    assert_true(!k->released && (k->done || k->failed || k->left));
    k->released = true;
    memset(k->text, 0xEE, sizeof k->text);
}
static bool on_writable(void *user) {
    (void)user;
    return true;
}
static const struct request_sink sink = {on_started, on_delta,  on_finish,  on_tokens,  NULL,
                                         on_done,    on_failed, on_release, on_writable};

/* ---- a set for the known labels ---- */

struct known {
    struct label_sets sets;
    struct label_set set;
    struct label_head list[2];
    uint32_t end[3];
    float bias[3], scale[3];
    int8_t weight[3];
};

static void known_make(struct known *k) {
    struct error e = {0};
    memset(k, 0, sizeof *k);
    struct text sorted[3];
    for (uint32_t i = 0; i < 3; i++) {
        sorted[i] = (struct text){KNOWN[i], 3};
        k->end[i] = 3 * (i + 1);
        k->bias[i] = 50.0f * (float)i;
        k->scale[i] = 1;
        k->weight[i] = (int8_t)(40 - 30 * (int)i);
    }
    struct label_heads *h = &k->set.heads;
    *h = (struct label_heads){.n_labels = 3,
                              .n_heads = 2,
                              .d_model = FAKE_D,
                              .max_tokens = HEAD_TOKENS,
                              .threshold = {0.5f, 0.5f},
                              .label_end = k->end,
                              .label_text = "abcbadcab",
                              .n_buckets = 1,
                              .text_bias = k->bias,
                              .text_scale = k->scale,
                              .text_weight = k->weight};
    for (uint32_t i = 0; i < 2; i++)
        h->heads[i] = k->list[i] = (struct label_head){.layer = 2 + 4 * i, .n_labels = 3};
    label_heads_key(sorted, 3, k->set.key);
    must(task_words_default(&k->sets.words, &e), &e);
    k->sets.sets = &k->set;
    k->sets.n = 1;
    k->sets.heads = (struct heads){.labels = k->list, .n_labels = 2, .d_model = FAKE_D};
}

/* ---- the plain path ---- */

static void plain_head(const struct fake *f, const struct known *known, struct client *k,
                       const uint32_t *order, uint32_t bad_every) {
    struct error e = {0};
    struct token_list tokens = {0};
    struct task_workspace *w;
    struct task_features features;
    float prior[3], p[3];
    uint32_t first;
    must(label_head_tokens(f->tokenizer, NULL, k->text, k->r.prompt.len, HEAD_TOKENS, &tokens,
                           &first, &e),
         &e);
    must(task_workspace_new(&w, &e), &e);
    task_features_extract(w, known->sets.words, k->text, k->r.prompt.len, &features);
    label_heads_prior(&known->set.heads, &features, prior);
    task_workspace_free(w);
    uint64_t h = 0;
    for (size_t i = 0; i < tokens.n; i++) h = fake_hash(h, tokens.ids[i]);
    k->want_layer = known->list[fake_label(h, 3, 2, prior, p)].layer;
    k->bad = bad_every > 0 && mix64(h) % bad_every == 0;
    for (uint32_t i = 0; i < 3; i++) k->want[order[i]] = p[i];
    token_list_free(&tokens);
}

static void plain_scores(const struct fake *f, struct client *k, const uint32_t *order,
                         uint32_t bad_every) {
    struct error e = {0};
    struct token_list tokens = {0};
    double score[MAX_LABELS], most = -1e300, mass = 0;
    float z[FAKE_VOCAB];
    const uint32_t n = k->r.n_labels;
    void *scratch = aligned_alloc(64, (sample_scratch_bytes(FAKE_VOCAB) + 63) / 64 * 64);
    must(label_question_tokens(f->tokenizer, NULL, NULL, k->labels, order, n, &k->r.prompt, &tokens,
                               &e),
         &e);
    uint64_t question = 0;
    for (size_t i = 0; i < tokens.n; i++) question = fake_hash(question, tokens.ids[i]);
    /* The prefill's own output must be a number too. */
    uint64_t before = 0;
    for (size_t i = 0; i + 1 < tokens.n; i++) before = fake_hash(before, tokens.ids[i]);
    k->bad = bad_every > 0 && mix64(before) % bad_every == 0;
    for (uint32_t i = 0; i < n; i++) {
        struct token_list answer = {0};
        uint64_t h = question;
        must(label_answer_tokens(f->tokenizer, NULL, &k->labels[order[i]], &answer, &e), &e);
        score[i] = 0;
        for (size_t a = 0; a < answer.n; a++) {
            struct output o = {.sample = {.target = answer.ids[a], .top_p = 1}};
            fake_logits(h, z, bad_every);
            sample_row(NULL, z, FAKE_VOCAB, (uint32_t)(tokens.n + a), &o, scratch);
            k->bad |= o.bad;
            score[i] += (double)o.logprob;
            h = fake_hash(h, answer.ids[a]);
        }
        token_list_free(&answer);
        most = score[i] > most ? score[i] : most;
    }
    for (uint32_t i = 0; i < n; i++) mass += exp(score[i] - most);
    for (uint32_t i = 0; i < n; i++) k->want[order[i]] = (float)(exp(score[i] - most) / mass);
    token_list_free(&tokens);
    free(scratch);
}

static void plain_label(const struct fake *f, const struct known *known, struct client *k,
                        bool heads, uint32_t bad_every) {
    uint32_t order[MAX_LABELS];
    const uint32_t n = k->r.n_labels;
    assert_true(label_sort(k->labels, n, order));
    bool match = heads && n == 3;
    for (uint32_t i = 0; match && i < 3; i++)
        match = k->labels[order[i]].len == 3 && memcmp(k->labels[order[i]].data, KNOWN[i], 3) == 0;
    if (match)
        plain_head(f, known, k, order, bad_every);
    else
        plain_scores(f, k, order, bad_every);
    uint32_t best = 0;
    for (uint32_t i = 0; i < n; i++)
        if (k->want[order[i]] > k->want[order[best]]) best = i;
    k->want_label = order[best];
}

/* ---- random requests ---- */

static void make_labels(struct client *k, uint64_t *x) {
    struct request *r = &k->r;
    const bool known = below(x, 2) == 0;
    r->n_labels = known ? 3 : 1 + below(x, MAX_LABELS);
    const uint32_t turn = below(x, 3);
    for (uint32_t i = 0; i < r->n_labels; i++) {
        if (known)
            memcpy(k->names[i], KNOWN[(i + turn) % 3], 4);
        else
            snprintf(k->names[i], sizeof k->names[i], "%.*s%u", (int)below(x, 8), "stopbada",
                     i * 7 % 12);
        k->labels[i] = (struct text){k->names[i], strlen(k->names[i])};
    }
    r->labels = k->labels;
    const uint32_t n = below(x, 5) == 0 ? 0 : below(x, MAX_TEXT);
    for (uint32_t i = 0; i < n; i++) k->text[i] = "ab c\nde"[below(x, 7)];
    r->prompt = (struct text){k->text, n};
}

static void make_client(struct client *k, const struct fake *f, uint64_t *x) {
    memset(k, 0, sizeof *k);
    struct request *r = &k->r;
    r->kind = REQUEST_COMPLETION;
    r->n = 1;
    r->top_p = r->repetition_penalty = 1;
    k->arrives_ns = f->clock_ns + below(x, 40000000);
    r->received_ns = k->arrives_ns;
    k->leaves_ns = below(x, 8) == 0 ? k->arrives_ns + below(x, 30000000) : UINT64_MAX;
    if (below(x, 8) == 0) {
        r->deadline_ms = 1 + below(x, 40);
        r->on_deadline = below(x, 2) ? ON_DEADLINE_TRUNCATE : ON_DEADLINE_FAIL;
    }
    if (below(x, 2) == 0) {
        make_labels(k, x);
        return;
    }
    r->set = REQUEST_SET_MAX_TOKENS | REQUEST_SET_SEED | REQUEST_SET_TEMPERATURE;
    r->temperature = 0.7f;
    r->seed = rnd(x);
    r->max_tokens = 1 + below(x, 40);
    r->n_ids = 1 + below(x, 31);
    const uint64_t family = below(x, 3);
    for (uint32_t i = 0; i < r->n_ids; i++)
        k->ids[i] = (uint32_t)(mix64(family * 100 + i) % FAKE_TOKENS);
    r->ids = k->ids;
}

static void run_clients(struct fake *f, struct client *clients, uint32_t n, uint64_t *x) {
    for (uint32_t turn = 0;; turn++) {
        assert_true(turn < 200000);
        bool waiting = false;
        for (uint32_t i = 0; i < n; i++) {
            struct client *k = &clients[i];
            struct error e;
            if (!k->submitted && k->arrives_ns <= f->clock_ns) {
                k->submitted = sched_submit(f->sched, &k->r, &sink, k, &k->handle, &e) == STATUS_OK;
                if (!k->submitted) k->arrives_ns += 1000000;
            }
            if (k->submitted && !k->left && !k->released && k->leaves_ns <= f->clock_ns) {
                if (!k->done && !k->failed) k->left = true;
                sched_cancel(f->sched, k->handle);
            }
            waiting |= !k->released;
        }
        if (!waiting) break;
        const bool more = sched_tick(f->sched);
        check_balance(f);
        if (!more) f->clock_ns += 50000 + below(x, 500000);
    }
}

/* What a request is answered with nobody beside it. */
static void run_alone(const struct client *k, struct client *out, struct tokenizer *t,
                      struct worker_pool *workers, uint32_t bad_every) {
    static struct fake f;
    const struct fake_config cfg = {.n_ctx = N_CTX,
                                    .max_batch = 1,
                                    .max_queue = 2,
                                    .n_pages = 100,
                                    .bad_every = bad_every,
                                    .no_prefix_cache = true};
    fake_open(&f, &cfg, t, workers);
    memset(out, 0, sizeof *out);
    out->r = k->r;
    memcpy(out->ids, k->ids, sizeof k->ids);
    out->r.ids = out->ids;
    out->r.deadline_ms = 0;
    out->leaves_ns = UINT64_MAX;
    uint64_t x = 1;
    run_clients(&f, out, 1, &x);
    fake_close(&f);
}

static uint64_t totals[5]; /* by heads, by scores, others, failed, left */

static void check_label(const struct client *k) {
    if (k->failed) {
        assert_true(k->error.status == STATUS_DEADLINE || k->bad);
        if (k->error.status == STATUS_DEADLINE) assert_true(k->r.deadline_ms > 0);
        totals[3]++;
        return;
    }
    assert_false(k->bad || k->late);
    assert_int_equal(k->label, k->want_label);
    assert_int_equal(k->layer, k->want_layer);
    assert_int_equal(k->usage.completion_tokens, 0);
    assert_true(k->usage.prompt_tokens > 0);
    assert_int_equal(k->n_got, k->labels[k->label].len);
    assert_memory_equal(k->got, k->labels[k->label].data, k->n_got);
    float sum = 0;
    for (uint32_t i = 0; i < k->r.n_labels; i++) {
        sum += k->probability[i];
        if (k->want_layer > 0)
            assert_memory_equal(&k->probability[i], &k->want[i], sizeof(float));
        else
            assert_true(fabsf(k->probability[i] - k->want[i]) < 1e-6f);
    }
    assert_true(fabsf(sum - 1) < 1e-4f);
    totals[k->layer == 0]++;
}

static void run_seed(struct tokenizer *t, struct worker_pool *workers, const struct known *known,
                     uint64_t seed) {
    uint64_t x = mix64(seed);
    const bool heads = below(&x, 4) != 0;
    struct fake_config cfg = {
        .n_ctx = N_CTX,
        .max_batch = 1 + below(&x, 8),
        .max_queue = 4 + below(&x, 30),
        .n_pages = 48 + below(&x, 90),
        .polls_late = below(&x, 2) ? 0 : 1 + below(&x, 4),
        .bad_every = below(&x, 4) == 0 ? 400 : 0,
        .max_rows = 32 + below(&x, 100),
        .no_prefix_cache = below(&x, 4) == 0,
        .drafts = below(&x, 2) == 0 ? DRAFT_BIT(SUFFIX) : 0,
        .draft_outputs = 16 + below(&x, 64),
        .prefill_budget_ns = 100000 + below(&x, 8000000),
        .labels = heads ? &known->sets : NULL,
    };
    static struct fake f;
    fake_open(&f, &cfg, t, workers);
    const uint32_t n = 1 + below(&x, MAX_CLIENTS);
    struct client *clients = calloc(n, sizeof *clients);
    for (uint32_t i = 0; i < n; i++) {
        make_client(&clients[i], &f, &x);
        if (clients[i].r.n_labels > 0) plain_label(&f, known, &clients[i], heads, cfg.bad_every);
    }
    run_clients(&f, clients, n, &x);
    assert_true(sched_idle(f.sched));
    for (uint32_t i = 0; i < n; i++) {
        struct client *k = &clients[i];
        totals[4] += k->left;
        if (k->left) continue;
        if (k->r.n_labels > 0) {
            check_label(k);
        } else if (k->done && !k->late) {
            struct client alone;
            run_alone(k, &alone, t, workers, cfg.bad_every);
            assert_true(alone.done);
            assert_int_equal(alone.n_got, k->n_got);
            assert_memory_equal(alone.got, k->got, k->n_got);
            totals[2]++;
        }
    }
    fake_close(&f);
    free(clients);
}

static volatile uint64_t running_seed; /* 0: none */

static void random_schedules(void **state) {
    (void)state;
    struct tokenizer *t = fake_tokenizer();
    struct worker_pool *workers = fake_workers();
    struct known known;
    known_make(&known);
    const char *one = getenv("LAC_SEED");
    const uint64_t from = one != NULL ? strtoull(one, NULL, 0) : 1;
    const uint64_t n = one != NULL ? 1 : 150;
    for (uint64_t seed = from; seed < from + n; seed++) {
        running_seed = seed;
        run_seed(t, workers, &known, seed);
    }
    running_seed = 0;
    printf("# by heads %llu, by scores %llu, others %llu, failed %llu, left %llu\n",
           (unsigned long long)totals[0], (unsigned long long)totals[1],
           (unsigned long long)totals[2], (unsigned long long)totals[3],
           (unsigned long long)totals[4]);
    if (one == NULL) assert_true(totals[0] > n && totals[1] > n && totals[2] > n);
    task_words_free(known.sets.words);
    worker_pool_stop(workers);
    tokenizer_free(t);
}

/* ---- audits ---- */

/* Serves n texts with known labels, one after the other; returns how many were answered early. */
static uint32_t serve_texts(struct fake *f, uint64_t *x, uint32_t n) {
    uint32_t early = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct client k = {.r = {.kind = REQUEST_COMPLETION, .n = 1, .n_labels = 3},
                           .leaves_ns = UINT64_MAX};
        k.r.labels = k.labels;
        for (uint32_t c = 0; c < 3; c++) k.labels[c] = (struct text){KNOWN[c], 3};
        for (uint32_t c = 0; c < 40; c++) k.text[c] = "ab c\nde"[below(x, 7)];
        k.r.prompt = (struct text){k.text, 40};
        run_clients(f, &k, 1, x);
        assert_true(k.done);
        early += k.layer < 6;
    }
    return early;
}

static uint64_t n_audits(const struct fake *f, enum metric_audit_outcome outcome) {
    uint64_t n = 0;
    for (int task = 0; task < METRIC_TASK_COUNT; task++)
        n += metric_count(f->metrics, METRIC_AUDIT,
                          metric_audit(METRIC_AUDIT_LABEL, (enum metric_task)task, outcome));
    return n;
}

/* A set that promises at most 5 %, and differs in `per_mille` of its early answers. */
static void run_audits(struct known *known, uint32_t per_mille, bool want_off) {
    struct tokenizer *t = fake_tokenizer();
    struct worker_pool *workers = fake_workers();
    struct policy *policy = rig_policy(POLICY_EXACT);
    static struct fake f;
    known->set.heads.figures.early_differs = 0.05f;
    const struct fake_config cfg = {.n_ctx = N_CTX,
                                    .max_batch = 2,
                                    .max_queue = 4,
                                    .n_pages = 40,
                                    .max_rows = 64,
                                    .labels = &known->sets,
                                    .policy = policy};
    fake_open(&f, &cfg, t, workers);
    f.backend.differ_per_mille = per_mille;
    uint64_t x = 7;
    char before[POLICY_FINGERPRINT_BYTES];
    snprintf(before, sizeof before, "%s", sched_fingerprint(f.sched));
    uint32_t early = 0;
    while (early < 500 && metric_value(f.metrics, METRIC_EXIT_OFF, 0) == 0)
        early += serve_texts(&f, &x, 1);
    const uint64_t agreed = n_audits(&f, METRIC_AUDIT_AGREED);
    const uint64_t differed = n_audits(&f, METRIC_AUDIT_DIFFERED);
    printf("# %u of 1,000 differ: %llu agreed, %llu differed of %u early answers\n", per_mille,
           (unsigned long long)agreed, (unsigned long long)differed, early);
    if (want_off) {
        assert_true(agreed + differed == early); /* all, until 250 agree */
        assert_int_equal(serve_texts(&f, &x, 50), 0);
        assert_string_not_equal(sched_fingerprint(f.sched), before);
        assert_int_equal(policy_newest(policy)->number, 2);
    } else {
        /* 2 % of those after the first 250. */
        assert_true(agreed >= 250 && agreed + differed < early && agreed < 280);
        assert_string_equal(sched_fingerprint(f.sched), before);
    }
    assert_int_equal(metric_times(f.metrics, METRIC_EXIT_LAYER, 0)->count > early, 1);
    fake_close(&f);
    policy_close(policy);
    worker_pool_stop(workers);
    tokenizer_free(t);
}

static void audits(void **state) {
    (void)state;
    struct known known;
    known_make(&known);
    run_audits(&known, 500, true);
    run_audits(&known, 150, true);
    run_audits(&known, 25, false);
    task_words_free(known.sets.words);
    rig_close();
}

/* ---- refusals ---- */

static void expect_refusal(struct fake *f, struct client *k, enum status status) {
    uint64_t x = 1;
    k->leaves_ns = UINT64_MAX;
    run_clients(f, k, 1, &x);
    assert_true(k->failed && !k->started);
    assert_int_equal(k->error.status, status);
    assert_string_equal(k->error.field, "laconic.labels");
}

static void refusals(void **state) {
    (void)state;
    struct tokenizer *t = fake_tokenizer();
    struct worker_pool *workers = fake_workers();
    static struct fake f;
    const struct fake_config cfg = {.n_ctx = 200,
                                    .max_batch = 2,
                                    .max_queue = 4,
                                    .n_pages = 20,
                                    .max_rows = 40,
                                    .draft_outputs = 40};
    fake_open(&f, &cfg, t, workers);
    static char words[130];
    memset(words, 'a', sizeof words);
    struct text labels[3] = {{"one", 3}, {"two", 3}, {"one", 3}};
    struct client k = {.r = {.kind = REQUEST_COMPLETION, .n = 1, .labels = labels, .n_labels = 3}};
    k.r.prompt = (struct text){"text", 4};
    expect_refusal(&f, &k, STATUS_INVALID); /* twice the same */
    labels[2] = (struct text){words, 128};
    struct client long_label = {.r = k.r};
    expect_refusal(&f, &long_label, STATUS_TOO_LARGE);
    labels[2] = (struct text){"three", 5};
    struct client long_text = {.r = k.r};
    long_text.r.prompt = (struct text){words, 130};
    expect_refusal(&f, &long_text, STATUS_CONTEXT_LENGTH);
    fake_close(&f);
    worker_pool_stop(workers);
    tokenizer_free(t);
}

static int say_seed(void **state) {
    (void)state;
    if (running_seed != 0)
        fprintf(stderr, "failing seed: LAC_SEED=%llu\n", (unsigned long long)running_seed);
    return 0;
}

/* A CHECK aborts. */
static void on_abort(int sig) {
    (void)sig;
    say_seed(NULL);
    _exit(1);
}

int main(void) {
    signal(SIGABRT, on_abort);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(random_schedules, say_seed),
        cmocka_unit_test(audits),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
