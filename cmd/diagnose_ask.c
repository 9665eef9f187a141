#include "cmd/diagnose_ask.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/http_client.h"
#include "core/check.h"
#include "core/clock.h"

enum { MAX_LINE_BYTES = 4 << 20, TOP = 20 };

struct stream {
    struct diagnose_answer *answer;
    struct buffer line; /* what has come in of the next event */
    uint64_t start_ns, first_ns, last_ns;
    uint32_t n_texts;
    int status;
};

void diagnose_list_add(struct diagnose_list *l, double v) {
    if (l->n == l->cap) {
        l->cap = l->cap > 0 ? 2 * l->cap : 64;
        l->v = realloc(l->v, l->cap * sizeof *l->v);
        CHECK(l->v != NULL);
    }
    l->v[l->n++] = v;
}

static double seconds(uint64_t from, uint64_t to) {
    return (double)(to - from) / 1e9;
}

/* ---- the request ---- */

static void set_default(json_t *o, const char *key, json_t *value) {
    if (json_object_get(o, key) == NULL)
        json_object_set_new(o, key, value);
    else
        json_decref(value);
}

/* The rule that watches and never withdraws: no cosine is under -1. */
static json_t *watch(void) {
    return json_pack("{s:s, s:f, s:i}", "rule", "fixed", "entropy_threshold", 20.0,
                     "similarity_threshold", -1);
}

static void ask_for_trace(json_t *body, bool laconic) {
    json_object_set_new(body, "logprobs", json_true());
    json_object_set_new(body, "top_logprobs", json_integer(laconic ? 0 : TOP));
    if (!laconic) return;
    set_default(body, "laconic", json_object());
    json_t *own = json_object_get(body, "laconic");
    json_object_set_new(own, "explain", json_true());
    set_default(own, "rollback", watch());
}

static char *body_of(const struct diagnose_ask *q) {
    json_t *body = q->settings != NULL ? json_deep_copy(q->settings) : json_object();
    json_object_set_new(body, "model", json_string(q->model));
    json_object_set_new(body, "messages",
                        json_pack("[{s:s, s:s}]", "role", "user", "content", q->prompt));
    json_object_set_new(body, "stream", json_true());
    json_object_set_new(body, "stream_options", json_pack("{s:b}", "include_usage", 1));
    set_default(body, "seed", json_integer((json_int_t)q->seed));
    if (json_object_get(body, "max_completion_tokens") == NULL)
        set_default(body, "max_tokens", json_integer(q->max_tokens));
    if (q->trace) ask_for_trace(body, q->laconic);
    char *text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    CHECK(text != NULL);
    return text;
}

/* ---- the reply ---- */

/* Nats of the best ones and of the rest as one lump. */
static double estimated_entropy(const json_t *top) {
    double mass = 0, sum = 0;
    size_t i;
    json_t *t;
    json_array_foreach(top, i, t) {
        const double logprob = json_number_value(json_object_get(t, "logprob"));
        mass += exp(logprob);
        sum -= exp(logprob) * logprob;
    }
    if (mass < 1 - 1e-6) sum -= (1 - mass) * log(1 - mass);
    return json_array_size(top) > 0 ? sum : NAN;
}

static double number_or_nan(const json_t *v) {
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static void take_trace(struct diagnose_answer *a, const json_t *tokens) {
    size_t i;
    json_t *t;
    json_array_foreach(tokens, i, t) {
        const json_t *entropy = json_object_get(t, "entropy");
        if (json_is_number(entropy)) a->exact = true;
        diagnose_list_add(&a->entropy, json_is_number(entropy)
                                           ? json_number_value(entropy)
                                           : estimated_entropy(json_object_get(t, "top_logprobs")));
        diagnose_list_add(&a->similarity, number_or_nan(json_object_get(t, "similarity")));
    }
}

static void take_text(struct stream *s, const char *text, size_t n, uint64_t now) {
    struct diagnose_answer *a = s->answer;
    buffer_append(&a->text, text, n);
    if (s->n_texts++ == 0)
        s->first_ns = now;
    else
        diagnose_list_add(&a->gaps, seconds(s->last_ns, now));
    s->last_ns = now;
}

static void fail(struct diagnose_answer *a, const char *why) {
    if (a->failed) return;
    a->failed = true;
    snprintf(a->why, sizeof a->why, "%.159s", why);
}

static void take_event(struct stream *s, const char *data, size_t n, uint64_t now) {
    struct diagnose_answer *a = s->answer;
    if (n == 6 && memcmp(data, "[DONE]", 6) == 0) return;
    json_t *o = json_loadb(data, n, 0, NULL);
    if (!json_is_object(o)) fail(a, "an event of the stream is not JSON");
    if (json_object_get(o, "error") != NULL) fail(a, http_client_reason(o));
    const char *id = json_string_value(json_object_get(o, "id"));
    if (id != NULL && a->id[0] == '\0') snprintf(a->id, sizeof a->id, "%s", id);
    if (json_is_object(json_object_get(o, "laconic"))) a->laconic = true;
    const json_t *choice = json_array_get(json_object_get(o, "choices"), 0);
    const json_t *text = json_object_get(json_object_get(choice, "delta"), "content");
    if (json_string_length(text) > 0)
        take_text(s, json_string_value(text), json_string_length(text), now);
    take_trace(a, json_object_get(json_object_get(choice, "logprobs"), "content"));
    const json_t *usage = json_object_get(o, "usage");
    if (json_is_object(usage)) {
        a->prompt_tokens = (uint32_t)json_integer_value(json_object_get(usage, "prompt_tokens"));
        a->tokens = (uint32_t)json_integer_value(json_object_get(usage, "completion_tokens"));
    }
    json_decref(o);
}

/* Whole lines; an event's data is one line with all servers of this kind. */
static void take_lines(struct stream *s, uint64_t now) {
    size_t at = 0;
    const char *end;
    while ((end = memchr(s->line.data + at, '\n', s->line.len - at)) != NULL) {
        const char *line = s->line.data + at;
        size_t n = (size_t)(end - line);
        at += n + 1;
        if (n > 0 && line[n - 1] == '\r') n--;
        if (n < 5 || memcmp(line, "data:", 5) != 0) continue;
        const size_t skip = n > 5 && line[5] == ' ' ? 6 : 5;
        take_event(s, line + skip, n - skip, now);
    }
    memmove(s->line.data, s->line.data + at, s->line.len - at);
    s->line.len -= at;
}

static void take_piece(void *user, int http_status, const char *bytes, size_t n) {
    struct stream *s = user;
    buffer_append(&s->line, bytes, n);
    if (http_status == 200 && s->line.len > 0) take_lines(s, clock_now_ns());
}

void diagnose_ask(const struct diagnose_ask *q, struct diagnose_answer *out) {
    *out = (struct diagnose_answer){.token_s = NAN};
    struct stream s = {.answer = out};
    struct error e = {0};
    char *body = body_of(q);
    buffer_init(&s.line, MAX_LINE_BYTES);
    buffer_init(&out->text, 0);
    const struct http_client_request call = {.url = q->url,
                                             .method = "POST",
                                             .path = "/v1/chat/completions",
                                             .body = body,
                                             .seconds = DIAGNOSE_SILENCE_S};
    s.start_ns = clock_now_ns();
    if (http_client_stream(&call, take_piece, &s, &s.status, &e) != STATUS_OK) {
        fail(out, e.message);
    } else if (s.status != 200) {
        json_t *why = json_loadb(s.line.data, s.line.len, 0, NULL);
        fail(out, http_client_reason(why));
        json_decref(why);
    } else if (s.line.full) {
        fail(out, "an event of the stream is too large");
    }
    const uint64_t end = clock_now_ns();
    out->seconds = seconds(s.start_ns, end);
    out->first_s = s.n_texts > 0 ? seconds(s.start_ns, s.first_ns) : out->seconds;
    if (out->tokens == 0) out->tokens = s.n_texts; /* no usage: a text, a token */
    if (s.n_texts > 1 && out->tokens > 1)
        out->token_s = seconds(s.first_ns, s.last_ns) / (out->tokens - 1);
    buffer_free(&s.line);
    free(body);
}

void diagnose_answer_free(struct diagnose_answer *a) {
    buffer_free(&a->text);
    free(a->gaps.v);
    free(a->entropy.v);
    free(a->similarity.v);
    json_decref(a->cost.faster);
    *a = (struct diagnose_answer){0};
}

void diagnose_explain(const char *url, struct diagnose_answer *a) {
    char path[DIAGNOSE_ID_BYTES + 16];
    struct error e = {0};
    json_t *root = NULL;
    snprintf(path, sizeof path, "/v1/requests/%s", a->id);
    if (a->id[strspn(a->id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")] !=
            '\0' ||
        http_client_json(url, "GET", path, &root, &e) != STATUS_OK)
        return;
    const json_t *p = json_array_get(json_object_get(root, "prompts"), 0);
    const json_t *cost = json_object_get(p, "cost_ms");
    a->cost = (struct diagnose_cost){
        .known = json_is_object(cost),
        .tokenise = json_number_value(json_object_get(cost, "tokenise")),
        .queue = json_number_value(json_object_get(cost, "queue")),
        .prefill = json_number_value(json_object_get(cost, "prefill")),
        .decode = json_number_value(json_object_get(cost, "decode")),
        .faster = json_incref(json_object_get(p, "faster")),
    };
    json_decref(root);
}
