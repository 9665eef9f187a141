/* answer.h: a request's sink, which falls silent when the request is cancelled. */
#ifndef LAC_SCHED_ANSWER_H
#define LAC_SCHED_ANSWER_H

#include "core/request.h"

struct answer {
    struct request_sink sink;
    void *user;
    bool silent; /* cancelled, failed or done: nothing but release is called any more */
};

static inline void answer_started(struct answer *a, uint64_t seed) {
    if (!a->silent) a->sink.started(a->user, seed);
}

static inline void answer_delta(struct answer *a, uint32_t choice, const char *bytes, size_t n,
                                const struct token_logprob *lps, uint32_t n_lps) {
    if (!a->silent) a->sink.delta(a->user, choice, bytes, n, lps, n_lps);
}

static inline void answer_finish(struct answer *a, uint32_t choice, enum finish_reason reason) {
    if (!a->silent) a->sink.finish(a->user, choice, reason);
}

static inline void answer_tokens(struct answer *a, const uint32_t *ids, size_t n) {
    if (!a->silent) a->sink.tokens(a->user, ids, n);
}

static inline void answer_done(struct answer *a, const struct request_usage *usage,
                               const struct request_report *report) {
    if (a->silent) return;
    a->silent = true; /* first: the call may cancel */
    a->sink.done(a->user, usage, report);
}

static inline void answer_failed(struct answer *a, const struct error *e, uint32_t retry_after_s) {
    if (a->silent) return;
    a->silent = true;
    a->sink.failed(a->user, e, retry_after_s);
}

#endif
