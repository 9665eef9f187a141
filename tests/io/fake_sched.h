/* fake_sched.h: a scheduler for the tests of io/: it echoes. A completion's answer is its prompt, a
 * chat's answer is the JSON text that the scheduler was given, five bytes a token; what the prompt
 * begins with can ask for more:
 *   "fail:"     refused before it starts (context length)
 *   "late:"     fails after the first token
 *   "deadline:" passes its deadline in the queue
 *   "endless:"  goes on until it is cancelled
 */
#ifndef LAC_TESTS_IO_FAKE_SCHED_H
#define LAC_TESTS_IO_FAKE_SCHED_H

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <jemalloc/jemalloc.h>

#include "core/check.h"
#include "core/request.h"

enum { FAKE_MAX = 512, FAKE_TOKEN_BYTES = 5 };

struct fake_request {
    bool live, started, cancelled;
    struct request r;
    const struct request_sink *sink;
    void *user;
    request_handle handle;
    size_t at[REQUEST_MAX_CHOICES];
    uint32_t n_tokens[REQUEST_MAX_CHOICES];
    bool ended[REQUEST_MAX_CHOICES];
    uint64_t allocated; /* by the loop's thread when it started */
};

struct fake_sched {
    struct fake_request slots[FAKE_MAX];
    request_handle next;
    uint32_t max_live;
    /* read by the test's thread */
    atomic_uint live, submitted, cancelled, released, paused, tokens;
    atomic_bool ready;
    atomic_ulong allocated; /* bytes that the loop's thread took from the heap between the first and
                             * the last token of requests that nothing else ran beside */
};

/* Bytes that this thread ever took from the heap (jemalloc's own count; stands still under a
 * sanitizer, which brings its own heap). */
static inline uint64_t fake_heap_bytes(void) {
    uint64_t n = 0;
    size_t size = sizeof n;
    return mallctl("thread.allocated", &n, &size, NULL, 0) == 0 ? n : 0;
}

static inline enum status fake_submit(void *arg, const struct request *r,
                                      const struct request_sink *sink, void *user,
                                      request_handle *out, struct error *e) {
    struct fake_sched *f = arg;
    for (int i = 0; i < FAKE_MAX && f->live < f->max_live; i++) {
        struct fake_request *q = &f->slots[i];
        if (q->live) continue;
        memset(q, 0, sizeof *q);
        q->live = true;
        q->r = *r;
        q->sink = sink;
        q->user = user;
        *out = q->handle = ++f->next * FAKE_MAX + (unsigned)i;
        f->live++;
        f->submitted++;
        return STATUS_OK;
    }
    return error_set(e, STATUS_FULL, NULL, "the queue is full");
}

static inline void fake_release(struct fake_sched *f, struct fake_request *q) {
    q->live = false;
    f->live--;
    f->released++;
    q->sink->release(q->user);
}

static inline void fake_cancel(void *arg, request_handle h) {
    struct fake_sched *f = arg;
    struct fake_request *q = &f->slots[h % FAKE_MAX];
    if (!q->live || q->handle != h) return;
    q->cancelled = true; /* released in the next tick */
    f->cancelled++;
}

static inline bool fake_ready(void *arg) {
    return ((struct fake_sched *)arg)->ready;
}

static inline bool fake_says(struct text t, const char *what) {
    return t.len >= strlen(what) && memcmp(t.data, what, strlen(what)) == 0;
}

static inline void fake_fail(struct fake_sched *f, struct fake_request *q, enum status s,
                             const char *field, const char *message) {
    struct error e = {0};
    error_set(&e, s, field, "%s", message);
    q->sink->failed(q->user, &e, s == STATUS_DEADLINE ? 3 : 0);
    fake_release(f, q);
}

static inline void fake_done(struct fake_sched *f, struct fake_request *q) {
    struct request_usage usage = {.prompt_tokens = (uint32_t)q->r.prompt.len, .cached_tokens = 1};
    for (uint32_t c = 0; c < q->r.n; c++) usage.completion_tokens += q->n_tokens[c];
    struct request_report report = {.seed = q->r.set & REQUEST_SET_SEED ? q->r.seed : 77};
    q->sink->done(q->user, &usage, &report);
    if (q->started && f->live == 1) f->allocated += fake_heap_bytes() - q->allocated;
    fake_release(f, q);
}

static inline void fake_token(struct fake_request *q, uint32_t c, struct text t) {
    size_t n = t.len - q->at[c];
    if (n > FAKE_TOKEN_BYTES) n = FAKE_TOKEN_BYTES;
    while (q->at[c] + n < t.len && ((unsigned char)t.data[q->at[c] + n] & 0xC0) == 0x80) n++;
    const char *bytes = t.data + q->at[c];
    struct token_logprob lp = {.id = q->n_tokens[c],
                               .logprob = -0.5f,
                               .entropy = __builtin_nanf(""),
                               .similarity = __builtin_nanf(""),
                               .bytes = bytes,
                               .n_bytes = (uint32_t)n,
                               .n_top = q->r.top_logprobs};
    for (uint32_t i = 0; i < lp.n_top; i++) {
        lp.top[i].id = i;
        lp.top[i].logprob = -0.5f - (float)i;
        lp.top[i].bytes = i == 0 ? bytes : "\xE4\xB8";
        lp.top[i].n_bytes = i == 0 ? (uint32_t)n : 2;
    }
    q->at[c] += n;
    q->n_tokens[c]++;
    q->sink->delta(q->user, c, bytes, n, &lp, 1);
}

/* One step of one request. */
static inline void fake_step(struct fake_sched *f, struct fake_request *q) {
    if (q->cancelled) {
        fake_release(f, q);
        return;
    }
    if (q->r.kind == REQUEST_TOKENIZE) {
        uint32_t *ids = calloc(q->r.prompt.len + 1, sizeof *ids);
        for (size_t i = 0; i < q->r.prompt.len; i++) ids[i] = (unsigned char)q->r.prompt.data[i];
        q->sink->tokens(q->user, ids, q->r.prompt.len);
        free(ids);
        fake_done(f, q);
        return;
    }
    if (q->r.kind == REQUEST_DETOKENIZE) {
        char *bytes = malloc(q->r.n_ids + 1);
        for (size_t i = 0; i < q->r.n_ids; i++) bytes[i] = (char)q->r.ids[i];
        q->sink->delta(q->user, 0, bytes, q->r.n_ids, NULL, 0);
        free(bytes);
        fake_done(f, q);
        return;
    }
    const struct text t = q->r.kind == REQUEST_CHAT ? q->r.chat_json : q->r.prompt;
    if (!q->started) {
        if (fake_says(t, "fail:")) {
            fake_fail(f, q, STATUS_CONTEXT_LENGTH, "prompt", "the prompt is too long");
            return;
        }
        if (fake_says(t, "deadline:")) {
            fake_fail(f, q, STATUS_DEADLINE, NULL, "passed in the queue");
            return;
        }
        q->started = true;
        q->allocated = fake_heap_bytes();
        q->sink->started(q->user, q->r.set & REQUEST_SET_SEED ? q->r.seed : 77);
        return;
    }
    if (!q->sink->writable(q->user)) {
        f->paused++;
        return;
    }
    const bool endless = fake_says(t, "endless:");
    const uint32_t limit = q->r.set & REQUEST_SET_MAX_TOKENS ? q->r.max_tokens
                           : q->r.kind == REQUEST_CHAT       ? UINT32_MAX
                                                             : 16;
    bool all = true;
    for (uint32_t c = 0; c < q->r.n; c++) {
        if (q->ended[c]) continue;
        if (endless && q->at[c] == t.len) q->at[c] = 0;
        if (q->at[c] < t.len && (endless || q->n_tokens[c] < limit)) {
            fake_token(q, c, t);
            f->tokens++;
            if (fake_says(t, "late:")) {
                fake_fail(f, q, STATUS_DEVICE, NULL, "the device failed");
                return;
            }
            all = false;
            continue;
        }
        q->ended[c] = true;
        q->sink->finish(q->user, c, q->at[c] < t.len ? FINISH_LENGTH : FINISH_STOP);
    }
    if (all) fake_done(f, q);
}

static inline bool fake_tick(struct fake_sched *f) {
    for (int i = 0; i < FAKE_MAX && f->live > 0; i++)
        if (f->slots[i].live) fake_step(f, &f->slots[i]);
    return f->live > 0;
}

#endif
