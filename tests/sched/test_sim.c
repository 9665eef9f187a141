/* A seeded simulator: random requests, clients that stop reading, leave or are late, too few pages,
 * a backend that answers late, numbers that are not numbers; against a plain path that runs one
 * request alone with no pages, batches or caches. A failing seed is printed; LAC_SEED=N runs it
 * alone. */
#include <signal.h>
#include <unistd.h>

#include "sched/gate.h"
#include "sched/monitor.h"
#include "tests/sched/fake.h"
#include "tests/sched/policy_rig.h"

enum { MAX_REQUESTS = 24, MAX_PROMPT = 200, MAX_TEXT = 4096 };

/* ---- the plain path ---- */

struct told_choice {
    char text[MAX_TEXT];
    size_t n_text;
    size_t n_uncut; /* of the plain path: with the stop string that ended it */
    uint32_t lp_ids[512];
    float lps[512];
    uint32_t n_lps, n_uncut_lps;
    bool finished;
    enum finish_reason reason;
};

struct wanted {
    bool bad; /* ends with a number that is not one */
    uint32_t n_rollbacks, n_withdrawn, n_breakers;
    uint32_t completion_tokens;
    struct told_choice choices[REQUEST_MAX_CHOICES];
};

struct client {
    struct request r;
    uint32_t ids[MAX_PROMPT];
    struct logit_bias bias[4];
    char stops[3][8];
    request_handle handle;
    uint64_t arrives_ns;
    bool submitted, started, done, failed, released, left;
    uint64_t leaves_ns, sulks_until_ns;
    struct error error;
    struct request_usage usage;
    struct request_report report;
    struct told_choice got[REQUEST_MAX_CHOICES];
    struct wanted want;
    uint64_t *clock_ns, *random;
};

/* A score that often triggers: what is drawn says nothing, so any rule is as good. */
static const struct monitor_model fake_model = {
    .layer = 42,
    .d_model = FAKE_D,
    .calibrated = true,
    .rule = {.weights = {0, -0.3f, -0.5f, -0.5f, 0.5f, 0.7f},
             .threshold = 1.2f,
             .threshold_hot = 1.4f,
             .hold = 0.7f,
             .surprise = 3.2f,
             .entropy_mean = 2.4f,
             .entropy_deviation = 0.3f,
             .cosine_deviation = 0.5f,
             .clear_tokens = 5},
};

static bool is_eog(uint32_t id) {
    return id == FAKE_EOS;
}

static uint32_t count_in(const uint32_t *ids, uint32_t n, uint32_t id) {
    uint32_t c = 0;
    for (uint32_t i = 0; i < n; i++) c += ids[i] == id;
    return c;
}

/* Penalties from their definition, over the whole vocabulary. */
static uint32_t plain_biases(const struct request *r, const uint32_t *tokens, uint32_t n_prompt,
                             uint32_t n, struct sample_bias *out) {
    uint32_t n_out = 0;
    const float rep = r->set & REQUEST_SET_REPETITION ? r->repetition_penalty : 1;
    const float pres = r->set & REQUEST_SET_PRESENCE ? r->presence_penalty : 0;
    const float freq = r->set & REQUEST_SET_FREQUENCY ? r->frequency_penalty : 0;
    for (uint32_t id = 0; id < FAKE_VOCAB; id++) {
        uint32_t counted, repeated;
        if (r->penalty_scope == PENALTY_SCOPE_LLAMACPP) {
            const uint32_t from = n > 64 ? n - 64 : 0;
            counted = repeated = count_in(tokens + from, n - from, id);
        } else {
            counted = count_in(tokens + n_prompt, n - n_prompt, id);
            repeated = count_in(tokens, n, id);
        }
        float bias = 0;
        for (uint32_t i = 0; i < r->n_logit_bias; i++)
            if (r->logit_bias[i].id == id) bias = r->logit_bias[i].bias;
        const struct sample_bias b = {id, repeated > 0 ? rep : 1,
                                      bias - (counted > 0 ? pres : 0) - freq * (float)counted};
        if (b.divisor != 1 || b.delta != 0) out[n_out++] = b;
    }
    return n_out;
}

/* Where the first stop string to be complete starts; SIZE_MAX if none is. */
static size_t plain_stop(const struct request *r, const char *text, size_t n) {
    for (size_t end = 1; end <= n; end++) {
        size_t longest = 0;
        for (uint32_t s = 0; s < r->n_stops; s++) {
            const size_t len = r->stops[s].len;
            if (len > longest && len <= end && memcmp(text + end - len, r->stops[s].data, len) == 0)
                longest = len;
        }
        if (longest > 0) return end - longest;
    }
    return SIZE_MAX;
}

static const struct gate_config gates = {
    .bounds = true, .least_context = 40, .safe_pages = 2, .safe_share = 100};

/* From which position on an answer is gated, and how; UINT32_MAX: it is not. */
static uint32_t plain_gate(const struct request *r, uint32_t n_prompt, uint32_t *tag) {
    struct gate_policy g = {.first_position = 0, .budget_pages = 2, .budget_share = 100};
    if (!(r->set & REQUEST_SET_GATE) || r->gate == REQUEST_GATE_OFF) return UINT32_MAX;
    if (r->gate == REQUEST_GATE_FAST || r->gate == REQUEST_GATE_PAGES) g.budget_share = 0;
    if (r->gate == REQUEST_GATE_FAST) g.budget_pages = 10;
    if (r->gate == REQUEST_GATE_PAGES) g.budget_pages = r->gate_pages;
    *tag = fake_gate_tag(&g, 0);
    return r->gate == REQUEST_GATE_AUTO && n_prompt < 40 ? 40 : n_prompt;
}

/* Everything that the plain path knows of one choice. */
struct plain {
    const struct client *k;
    struct wanted *w;
    struct told_choice *t;
    struct detokenizer d;
    struct buffer text;
    size_t n_echo, cut, starts[512], ends[512];
    uint32_t tokens[1024], n, n_prompt, n_committed, n_scored;
    uint32_t gated, tag; /* from which position on, and how */
    bool over;
};

static uint64_t hash_of(const struct plain *a, uint32_t n) {
    uint64_t h = 0;
    for (uint32_t i = 0; i < n; i++)
        h = fake_hash(h, a->tokens[i] | (i >= a->gated ? a->tag << 12 : 0));
    return h;
}

static void plain_commit(struct plain *a, const struct output *o) {
    const struct request *r = &a->k->r;
    struct told_choice *t = a->t;
    a->n_committed++;
    a->w->completion_tokens++;
    if (is_eog(o->token) && !r->ignore_eos) {
        t->reason = FINISH_STOP;
        a->over = true;
        return;
    }
    a->starts[t->n_lps] = a->text.len;
    detokenizer_push(&a->d, o->token, &a->text);
    a->ends[t->n_lps] = a->text.len;
    if (r->logprobs) {
        t->lp_ids[t->n_lps] = o->token;
        t->lps[t->n_lps++] = o->logprob;
    }
    a->cut = plain_stop(r, a->text.data + a->n_echo, a->text.len - a->n_echo);
    a->over = a->cut != SIZE_MAX;
}

/* The sum of a prompt's states, page by page. */
static void plain_prompt(struct monitor *m, const struct plain *a, uint32_t n) {
    float total[FAKE_D] = {0}, x[FAKE_D];
    for (uint32_t first = 0; first < n; first += 16) {
        float sum[FAKE_D] = {0};
        for (uint32_t i = first > 0 ? first : 1; i < n && i < first + 16; i++) {
            fake_state(fake_monitored(hash_of(a, i + 1)), x);
            for (uint32_t d = 0; d < FAKE_D; d++) sum[d] += x[d];
        }
        for (uint32_t d = 0; d < FAKE_D; d++) total[d] += sum[d];
    }
    monitor_prompt(m, total, n - 1);
}

static void plain_draw(const struct plain *a, uint32_t c, const struct monitor *m,
                       uint32_t bad_every, struct output *o, void *scratch) {
    float z[FAKE_VOCAB];
    static struct sample_bias biases[FAKE_VOCAB]; /* the monitor looks at them after the draw */
    const struct request *r = &a->k->r;
    fake_logits(hash_of(a, a->n), z, bad_every);
    *o = (struct output){.sample = {.seed = r->seed,
                                    .choice = c,
                                    .purpose = RNG_SAMPLE,
                                    .target = STEP_NONE,
                                    .temperature = r->temperature,
                                    .top_k = r->set & REQUEST_SET_TOP_K ? r->top_k : 0,
                                    .top_p = r->set & REQUEST_SET_TOP_P ? r->top_p : 1,
                                    .min_p = r->set & REQUEST_SET_MIN_P ? r->min_p : 0}};
    o->sample.biases = biases;
    o->sample.n_biases = plain_biases(r, a->tokens, a->n_prompt, a->n, biases);
    o->sample.attempt = m->n_rollbacks;
    if (m->tripped && o->sample.temperature > 0.3f) o->sample.temperature = 0.3f;
    if (m->tripped && o->sample.top_p > 0.85f) o->sample.top_p = 0.85f;
    const uint32_t *ids, n = monitor_excluded(m, a->n, &ids);
    uint64_t allowed[(FAKE_VOCAB + 63) / 64];
    memset(allowed, 0xFF, sizeof allowed);
    for (uint32_t i = 0; i < n; i++) allowed[ids[i] / 64] &= ~(UINT64_C(1) << ids[i] % 64);
    if (n > 0) o->sample.allowed = allowed;
    sample_row(NULL, z, FAKE_VOCAB, a->n, o, scratch);
    o->sample.allowed = NULL;
}

static void plain_answer(struct plain *a, struct monitor *m, uint32_t c, uint32_t max,
                         uint32_t bad_every, void *scratch) {
    struct output drawn[512];
    while (!a->over && a->n - a->n_prompt < max) {
        struct output o;
        float x[FAKE_D];
        plain_draw(a, c, m, bad_every, &o, scratch);
        if (o.bad) {
            a->w->bad = true;
            return;
        }
        if (m->on && a->n > a->n_prompt) {
            fake_state(fake_monitored(hash_of(a, a->n)), x);
            monitor_state(m, a->n - 1, x);
        }
        drawn[a->n - a->n_prompt] = o;
        a->tokens[a->n++] = o.token;
        uint32_t commit = a->n;
        if (m->on) {
            const struct monitor_verdict v = monitor_draw(m, a->n - 1, &o);
            const bool ends = (is_eog(o.token) && !a->k->r.ignore_eos) || a->n - a->n_prompt == max;
            if (v.cut > 0) {
                a->w->n_rollbacks++;
                a->w->n_withdrawn += a->n - v.cut;
                a->n = v.cut;
                continue;
            }
            a->w->n_breakers += v.tripped;
            if (!ends) commit = v.commit;
        }
        while (!a->over && a->n_prompt + a->n_committed < commit)
            plain_commit(a, &drawn[a->n_committed]);
    }
}

static void plain_choice(const struct fake *f, const struct client *k, uint32_t c, uint32_t max,
                         uint32_t bad_every, struct wanted *w) {
    const struct request *r = &k->r;
    struct told_choice *t = &w->choices[c];
    struct plain a = {.k = k, .w = w, .t = t, .cut = SIZE_MAX};
    void *scratch = aligned_alloc(64, (sample_scratch_bytes(FAKE_VOCAB) + 63) / 64 * 64);
    for (size_t i = 0; i < r->n_ids; i++) a.tokens[a.n++] = r->ids[i];
    a.n_prompt = a.n;
    a.gated = UINT32_MAX;
    buffer_init(&a.text, 0);
    const bool continues = r->kind == REQUEST_COMPLETION && !r->echo;
    detokenizer_init(&a.d, f->tokenizer, continues ? DETOKENIZE_CONTINUES : 0);
    if (r->echo)
        for (uint32_t i = 0; i < a.n_prompt; i++) detokenizer_push(&a.d, a.tokens[i], &a.text);
    a.n_echo = a.text.len;
    t->finished = true;
    t->reason = FINISH_LENGTH;
    for (uint32_t i = 0; r->echo && r->logprobs && i < a.n_prompt && !w->bad; i++) {
        /* Rows are scored one by one, as far as they are not drawn from. */
        float z[FAKE_VOCAB];
        struct output o = {.sample = {.target = a.tokens[i], .top_p = 1}};
        if (i > 0) {
            fake_logits(hash_of(&a, i), z, bad_every);
            sample_row(NULL, z, FAKE_VOCAB, i, &o, scratch);
            if (o.bad) w->bad = true;
        }
        if (w->bad) break;
        t->lp_ids[t->n_lps] = a.tokens[i];
        t->lps[t->n_lps++] = i > 0 ? o.logprob : NAN;
    }
    a.n_scored = t->n_lps;
    a.gated = plain_gate(r, a.n_prompt, &a.tag);
    struct monitor m;
    void *memory = calloc(1, monitor_footprint(FAKE_D));
    monitor_init(&m, memory, FAKE_D);
    monitor_start(&m, &fake_model, &r->rollback, a.n_prompt);
    if (m.on) plain_prompt(&m, &a, a.n_prompt);
    if (!w->bad) plain_answer(&a, &m, c, max, bad_every, scratch);
    free(memory);
    free(scratch);
    if (!w->bad) {
        t->n_uncut = t->n_text = a.text.len;
        t->n_uncut_lps = t->n_lps;
        assert_true(a.text.len <= MAX_TEXT);
        if (a.text.len > 0) memcpy(t->text, a.text.data, a.text.len);
        if (a.cut != SIZE_MAX) {
            t->reason = FINISH_STOP;
            t->n_text = a.n_echo + a.cut;
            /* Tokens that the stop string swallowed whole are not reported. */
            while (t->n_lps > a.n_scored && a.starts[t->n_lps - 1] >= t->n_text &&
                   a.ends[t->n_lps - 1] > t->n_text)
                t->n_lps--;
        }
    }
    buffer_free(&a.text);
}

static void plain_path(const struct fake *f, struct client *k, uint32_t n_ctx, uint32_t bad_every) {
    const uint32_t left = n_ctx - (uint32_t)k->r.n_ids;
    const uint32_t max = k->r.max_tokens < left ? k->r.max_tokens : left;
    for (uint32_t c = 0; c < k->r.n; c++) plain_choice(f, k, c, max, bad_every, &k->want);
}

/* ---- the client's side of the sink ---- */

static void on_started(void *user, uint64_t seed) {
    struct client *k = user;
    assert_false(k->started || k->released || k->left);
    assert_true(!(k->r.set & REQUEST_SET_SEED) || seed == k->r.seed);
    k->started = true;
}

static void on_delta(void *user, uint32_t choice, const char *bytes, size_t n,
                     const struct token_logprob *lps, uint32_t n_lps) {
    struct client *k = user;
    struct told_choice *t = &k->got[choice];
    assert_true(k->started && !k->left && !k->done && !k->failed && !t->finished);
    assert_true(choice < k->r.n && t->n_text + n <= MAX_TEXT && (n > 0 || n_lps > 0));
    assert_true(n == 0 || ((uint8_t)bytes[0] & 0xC0) != 0x80); /* starts with a character */
    if (n > 0) memcpy(t->text + t->n_text, bytes, n);
    t->n_text += n;
    assert_true(n_lps == 0 || k->r.logprobs);
    for (uint32_t i = 0; i < n_lps; i++) {
        t->lp_ids[t->n_lps] = lps[i].id;
        t->lps[t->n_lps++] = lps[i].logprob;
        assert_true(isnan(lps[i].logprob) || lps[i].n_top == k->r.top_logprobs);
    }
}

static void on_finish(void *user, uint32_t choice, enum finish_reason reason) {
    struct client *k = user;
    assert_true(k->started && !k->left && !k->got[choice].finished);
    k->got[choice].finished = true;
    k->got[choice].reason = reason;
}

static void on_tokens(void *user, const uint32_t *ids, size_t n) {
    (void)user, (void)ids, (void)n;
    fail();
}

static void on_done(void *user, const struct request_usage *usage,
                    const struct request_report *report) {
    struct client *k = user;
    assert_false(k->done || k->failed || k->released || k->left);
    for (uint32_t c = 0; c < k->r.n; c++) assert_true(k->got[c].finished);
    k->done = true;
    k->usage = *usage;
    k->report = *report;
}

static void on_failed(void *user, const struct error *e, uint32_t retry_after_s) {
    struct client *k = user;
    (void)retry_after_s;
    assert_false(k->done || k->failed || k->released || k->left);
    k->failed = true;
    k->error = *e;
}

static void on_release(void *user) {
    struct client *k = user;
    assert_false(k->released);
    assert_true(k->done || k->failed || k->left);
    k->released = true;
    /* The request's memory may go now: nothing may read it any more. */
    memset(k->ids, 0xEE, sizeof k->ids);
    memset(k->stops, 0xEE, sizeof k->stops);
}

static bool on_writable(void *user) {
    struct client *k = user;
    if (*k->clock_ns >= k->sulks_until_ns && below(k->random, 20) == 0)
        k->sulks_until_ns = *k->clock_ns + below(k->random, 20000000);
    return *k->clock_ns >= k->sulks_until_ns;
}

static const struct request_sink sink = {on_started, on_delta,  on_finish,  on_tokens,  NULL,
                                         on_done,    on_failed, on_release, on_writable};

/* ---- one run ---- */

static void make_client(struct client *k, struct fake *f, uint64_t *x, uint32_t n_ctx,
                        uint32_t max_batch, bool calm) {
    static const char *const stop_texts[] = {"ab",   "ba",   "aab",      "abca", "d\xC3\xA9",
                                             "stop", "\n\n", "\xC3\xA9", "cabc", "bb"};
    memset(k, 0, sizeof *k);
    k->clock_ns = &f->clock_ns;
    k->random = x;
    struct request *r = &k->r;
    r->kind = REQUEST_COMPLETION;
    uint32_t n_prompt = 1 + below(x, n_ctx - 2);
    if (n_prompt > MAX_PROMPT) n_prompt = MAX_PROMPT;
    /* A few families of prompts that share their beginnings. */
    uint64_t family = below(x, 3);
    const uint32_t common = below(x, n_prompt + 1);
    for (uint32_t i = 0; i < n_prompt; i++) {
        if (i == common) family = rnd(x);
        k->ids[i] = (uint32_t)(mix64(family * 1000 + i) % FAKE_TOKENS);
    }
    r->ids = k->ids;
    r->n_ids = n_prompt;
    r->n = below(x, 3) == 0 ? 1 + below(x, max_batch) : 1;
    r->set = REQUEST_SET_MAX_TOKENS | REQUEST_SET_SEED | REQUEST_SET_TEMPERATURE;
    r->max_tokens = below(x, 12) == 0 ? 0 : 1 + below(x, below(x, 4) == 0 ? n_ctx : 24);
    r->temperature = below(x, 3) == 0 ? 0 : 0.7f;
    r->seed = rnd(x);
    if (below(x, 4) == 0) r->set |= REQUEST_SET_TOP_K, r->top_k = 1 + below(x, 20);
    if (below(x, 4) == 0) r->set |= REQUEST_SET_TOP_P, r->top_p = 0.8f;
    if (below(x, 4) == 0) r->set |= REQUEST_SET_MIN_P, r->min_p = 0.1f;
    if (below(x, 4) == 0) r->set |= REQUEST_SET_REPETITION, r->repetition_penalty = 1.3f;
    if (below(x, 4) == 0) r->set |= REQUEST_SET_PRESENCE, r->presence_penalty = 0.5f;
    if (below(x, 4) == 0) r->set |= REQUEST_SET_FREQUENCY, r->frequency_penalty = 0.4f;
    r->penalty_scope = below(x, 2) ? PENALTY_SCOPE_OPENAI : PENALTY_SCOPE_LLAMACPP;
    r->logit_bias = k->bias;
    for (uint32_t id = below(x, 99); id < FAKE_VOCAB && r->n_logit_bias < below(x, 5) % 4; id += 37)
        k->bias[r->n_logit_bias++] = (struct logit_bias){id, (float)below(x, 20) - 10};
    r->n_stops = below(x, 3);
    for (uint32_t i = 0; i < r->n_stops; i++) {
        const char *s = stop_texts[below(x, sizeof stop_texts / sizeof *stop_texts)];
        memcpy(k->stops[i], s, strlen(s));
        r->stops[i] = (struct text){k->stops[i], strlen(s)};
    }
    r->logprobs = below(x, 3) == 0;
    r->top_logprobs = r->logprobs ? below(x, 6) : 0;
    r->echo = below(x, 6) == 0;
    r->ignore_eos = below(x, 4) == 0;
    r->priority = (int32_t)below(x, 3);
    if (below(x, 2) == 0) {
        r->set |= REQUEST_SET_GATE;
        r->gate = (enum request_gate)below(x, REQUEST_GATE_PAGES + 1);
        r->gate_pages = 1 + below(x, 3);
    }
    r->rollback = (struct rollback)ROLLBACK_DEFAULT;
    if (below(x, 2) == 0) {
        r->rollback.rule = below(x, 3) == 0 ? ROLLBACK_FIXED : ROLLBACK_AUTO;
        r->rollback.entropy_threshold = 2.2f;
        r->rollback.similarity_threshold = 0.6f;
        r->rollback.window = 1 + below(x, REQUEST_MAX_HELD);
        r->rollback.max = below(x, 4);
        r->set |= REQUEST_SET_ROLLBACK | REQUEST_SET_ENTROPY_THRESHOLD;
    }
    k->arrives_ns = f->clock_ns + below(x, 60000000);
    r->received_ns = k->arrives_ns;
    k->leaves_ns = !calm && below(x, 5) == 0 ? k->arrives_ns + below(x, 40000000) : UINT64_MAX;
    if (!calm && below(x, 5) == 0) {
        r->deadline_ms = 1 + below(x, 60);
        r->on_deadline = below(x, 2) ? ON_DEADLINE_TRUNCATE : ON_DEADLINE_FAIL;
    }
}

static void check_prefix(const struct told_choice *got, const struct told_choice *want,
                         bool all_of_it, bool truncated) {
    /* A truncated answer shows the beginning of a stop string that was not completed in time. */
    const size_t n = got->n_text;
    assert_true(n <= (truncated ? want->n_uncut : want->n_text));
    assert_memory_equal(got->text, want->text, n);
    assert_true(got->n_lps <= (truncated ? want->n_uncut_lps : want->n_lps));
    for (uint32_t i = 0; i < got->n_lps; i++) {
        assert_int_equal(got->lp_ids[i], want->lp_ids[i]);
        assert_true(isnan(want->lps[i]) ? isnan(got->lps[i]) : got->lps[i] == want->lps[i]);
    }
    if (!all_of_it) return;
    assert_int_equal(got->n_text, want->n_text);
    assert_int_equal(got->reason, want->reason);
    assert_int_equal(got->n_lps, want->n_lps);
}

static void check_client(const struct client *k, bool refused_for_pages) {
    assert_true(k->released);
    if (k->failed && k->error.status == STATUS_TOO_LARGE) {
        assert_true(refused_for_pages);
        return;
    }
    const bool late =
        (k->failed && k->error.status == STATUS_DEADLINE) || (k->done && k->report.deadline_missed);
    if (late) assert_true(k->r.deadline_ms > 0);
    const bool whole = k->done && !late;
    if (whole) assert_false(k->want.bad);
    if (k->failed && !late) {
        if (!k->want.bad) fail_msg("%s: %s", status_name(k->error.status), k->error.message);
        assert_int_equal(k->error.status, STATUS_BAD_NUMBER);
    }
    if (!k->want.bad)
        for (uint32_t c = 0; c < k->r.n; c++)
            check_prefix(&k->got[c], &k->want.choices[c], whole, late);
    if (whole) {
        assert_int_equal(k->usage.prompt_tokens, k->r.n_ids);
        assert_int_equal(k->usage.completion_tokens, k->want.completion_tokens);
        assert_int_equal(k->report.n_rollbacks, k->want.n_rollbacks);
        assert_int_equal(k->report.n_withdrawn, k->want.n_withdrawn);
        assert_int_equal(k->report.n_breakers, k->want.n_breakers);
    }
}

/* The same request again, later: what the first was answered is then a draft. */
static void repeat_client(struct client *k, const struct client *first, struct fake *f,
                          uint64_t *x) {
    memset(k, 0, sizeof *k);
    k->clock_ns = &f->clock_ns;
    k->random = x;
    k->r = first->r;
    k->r.deadline_ms = 0;
    memcpy(k->ids, first->ids, sizeof k->ids);
    memcpy(k->bias, first->bias, sizeof k->bias);
    memcpy(k->stops, first->stops, sizeof k->stops);
    k->r.ids = k->ids;
    k->r.logit_bias = k->bias;
    for (uint32_t i = 0; i < k->r.n_stops; i++) k->r.stops[i].data = k->stops[i];
    k->arrives_ns = first->arrives_ns + below(x, 60000000);
    k->r.received_ns = k->arrives_ns;
    k->leaves_ns = UINT64_MAX;
}

/* Texts whose tasks are clear to the built-in task model, and one that is not. */
static const char *const user_texts[] = {
    "Write a Python function that adds two numbers.",
    "Write a poem about the sea in autumn.",
    "Tom has 3 apples and buys 5 more. How many apples does he have now?",
    "What is the capital of France?",
    "hm",
    "",
};

/* What the policy does to a request that was submitted while `m` was the newest model. */
static void apply_policy(struct request *r, const struct task_model *m, bool adaptive) {
    if (adaptive && !(r->set & REQUEST_SET_ROLLBACK) && r->n_labels == 0)
        r->rollback.rule = ROLLBACK_AUTO;
    const bool asked = (r->set & REQUEST_SET_TASK_TYPE) != 0;
    if (!adaptive && !asked) {
        if (!(r->set & REQUEST_SET_TEMPERATURE)) r->temperature = 1;
        return;
    }
    const char *task = asked ? metric_task_name(r->task_type) : rig_task(m, r->user_text);
    const struct rig_preset *p = rig_preset(task);
    if (!(r->set & REQUEST_SET_TEMPERATURE)) r->temperature = p->temperature;
    if (!(r->set & REQUEST_SET_TOP_P)) r->top_p = p->top_p;
    r->set |= REQUEST_SET_TEMPERATURE | REQUEST_SET_TOP_P;
}

/* whole, late, failed, left, copies, hits, drafted, accepted, presets, with gated rows, rollbacks,
 * breakers, hits of monitored prompts, guesses of blocks */
static uint64_t totals[14];

static void run_seed(struct tokenizer *t, struct worker_pool *workers, uint64_t seed) {
    uint64_t x = mix64(seed);
    const uint32_t n_ctx = 32 + below(&x, 224);
    const bool calm = below(&x, 3) == 0;
    struct fake_config cfg = {
        .n_ctx = n_ctx,
        .max_batch = 1 + below(&x, 8),
        .max_queue = 4 + below(&x, 30),
        .n_pages = 8 + below(&x, 90),
        .polls_late = below(&x, 2) ? 0 : 1 + below(&x, 4),
        .bad_every = below(&x, 4) == 0 ? 200 : 0,
        .max_rows = 8 + below(&x, 100),
        .no_prefix_cache = below(&x, 4) == 0,
        .drafts = below(&x, 16),
        .draft_outputs = below(&x, 64),
        /* Where a step costs much beside its rows, blocks pay. */
        .step_ns = below(&x, 2) ? 300000 : 2000000,
        .prefill_budget_ns = 100000 + below(&x, 8000000),
        .gate = &gates,
        .monitor = &fake_model,
    };
    if (cfg.max_rows < cfg.max_batch) cfg.max_rows = cfg.max_batch;
    static struct fake f;
    const bool with_policy = below(&x, 8) == 0, adaptive = below(&x, 4) > 0;
    uint32_t model = 0;
    if (with_policy) cfg.policy = rig_policy(adaptive ? POLICY_ADAPTIVE : POLICY_EXACT);
    fake_open(&f, &cfg, t, workers);
    const uint32_t n = 1 + below(&x, MAX_REQUESTS);
    struct client *clients = calloc(n, sizeof *clients);
    bool any_full = false;
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0 && below(&x, 3) == 0)
            repeat_client(&clients[i], &clients[below(&x, i)], &f, &x);
        else
            make_client(&clients[i], &f, &x, n_ctx, cfg.max_batch, calm);
        if (!with_policy) {
            plain_path(&f, &clients[i], n_ctx, cfg.bad_every);
            continue;
        }
        struct request *r = &clients[i].r;
        const char *text = user_texts[below(&x, sizeof user_texts / sizeof *user_texts)];
        r->user_text = (struct text){text, strlen(text)};
        if (below(&x, 3) == 0)
            r->set |= REQUEST_SET_TASK_TYPE, r->task_type = (enum metric_task)below(&x, 6);
        if (below(&x, 2) == 0) r->set &= ~(uint32_t)REQUEST_SET_TEMPERATURE;
    }
    for (uint32_t turn = 0;; turn++) {
        assert_true(turn < 200000);
        bool waiting = false;
        for (uint32_t i = 0; i < n; i++) {
            struct client *k = &clients[i];
            struct error e;
            if (!k->submitted && k->arrives_ns <= f.clock_ns) {
                const enum status st = sched_submit(f.sched, &k->r, &sink, k, &k->handle, &e);
                if (st == STATUS_OK && with_policy) {
                    /* Of the epoch that is the newest now, whatever comes later. */
                    const uint32_t before = k->r.set;
                    apply_policy(&k->r, rig_model(model), adaptive);
                    totals[8] += k->r.set != before;
                    plain_path(&f, k, n_ctx, cfg.bad_every);
                }
                if (st == STATUS_OK)
                    k->submitted = true;
                else
                    any_full = true, k->arrives_ns += 1000000, assert_int_equal(st, STATUS_FULL);
            }
            if (k->submitted && !k->left && !k->released && k->leaves_ns <= f.clock_ns) {
                if (!k->done && !k->failed) k->left = true;
                sched_cancel(f.sched, k->handle);
                sched_cancel(f.sched, k->handle);
            }
            waiting |= !k->released;
        }
        if (!waiting) break;
        if (with_policy && below(&x, 40) == 0) rig_publish(cfg.policy, model ^= 1);
        const bool more = sched_tick(f.sched);
        check_balance(&f);
        if (!more) f.clock_ns += 50000 + below(&x, 500000);
    }
    (void)any_full;
    assert_true(sched_idle(f.sched));
    sched_cancel(f.sched, clients[0].handle); /* long gone */
    for (uint32_t i = 0; i < n; i++) {
        const struct client *k = &clients[i];
        const uint32_t left = n_ctx - (uint32_t)k->r.n_ids;
        const uint32_t max = k->r.max_tokens < left ? k->r.max_tokens : left;
        const uint32_t whole_pages = (uint32_t)k->r.n_ids / 16;
        const uint32_t each = ((uint32_t)k->r.n_ids + max + 15) / 16;
        check_client(k, k->r.n * each - (k->r.n - 1) * whole_pages > cfg.n_pages);
        totals[0] += k->done && !k->report.deadline_missed;
        totals[1] += k->done && k->report.deadline_missed;
        totals[2] += k->failed;
        totals[3] += k->left;
        totals[5] += k->usage.cached_tokens;
        totals[6] += k->report.drafted;
        totals[7] += k->report.accepted;
        totals[9] += k->report.gate_there > 0;
        totals[10] += k->report.n_rollbacks;
        totals[11] += k->report.n_breakers;
        if (k->r.rollback.rule != ROLLBACK_OFF) totals[12] += k->usage.cached_tokens;
        assert_true(k->report.accepted <= k->report.drafted);
        assert_true(k->report.gate_attended <= k->report.gate_there);
    }
    totals[4] += f.backend.n_copies;
    totals[13] += f.backend.n_guesses;
    fake_close(&f);
    policy_close(cfg.policy);
    free(clients);
}

static volatile uint64_t running_seed; /* 0: none */

static void test_random_schedules(void **state) {
    (void)state;
    struct tokenizer *t = fake_tokenizer();
    struct worker_pool *workers = fake_workers();
    const char *one = getenv("LAC_SEED");
    const char *many = getenv("LAC_SEEDS");
    const char *slow = getenv("LONG");
    const bool is_long = slow != NULL && strcmp(slow, "1") == 0;
    const uint64_t from = one != NULL ? strtoull(one, NULL, 0) : 1;
    const uint64_t n = one != NULL    ? 1
                       : many != NULL ? strtoull(many, NULL, 0)
                       : is_long      ? 10000
                                      : 2000;
    for (uint64_t seed = from; seed < from + n; seed++) {
        running_seed = seed;
        run_seed(t, workers, seed);
    }
    running_seed = 0;
    printf("# whole %llu, late %llu, failed %llu, left %llu, page copies %llu, cached tokens %llu, "
           "drafted %llu, accepted %llu, preset %llu, gated %llu, rollbacks %llu, breakers %llu, "
           "cached tokens of monitored prompts %llu, blocks' guesses %llu\n",
           (unsigned long long)totals[0], (unsigned long long)totals[1],
           (unsigned long long)totals[2], (unsigned long long)totals[3],
           (unsigned long long)totals[4], (unsigned long long)totals[5],
           (unsigned long long)totals[6], (unsigned long long)totals[7],
           (unsigned long long)totals[8], (unsigned long long)totals[9],
           (unsigned long long)totals[10], (unsigned long long)totals[11],
           (unsigned long long)totals[12], (unsigned long long)totals[13]);
    assert_true(totals[13] > n);
    assert_true(n < 100 || totals[8] > n / 4);
    assert_true(totals[9] > n && totals[10] > n / 4 && totals[11] > n / 8 && totals[12] > n);
    assert_true(totals[7] > n && totals[6] > totals[7]);
    worker_pool_stop(workers);
    tokenizer_free(t);
    rig_close();
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
        cmocka_unit_test_teardown(test_random_schedules, say_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
