/* embed_client.h: a client that keeps the vectors it is sent and checks the order of the calls.
 * Before it: tests/sched/fake.h; EMBED_CLIENT_MOST (vectors) and EMBED_CLIENT_DIM are defined. */
#ifndef LAC_TESTS_SCHED_EMBED_CLIENT_H
#define LAC_TESTS_SCHED_EMBED_CLIENT_H

struct client {
    const struct request *r;
    bool generates; /* an answer of text, beside embeddings of others */
    float vectors[EMBED_CLIENT_MOST][EMBED_CLIENT_DIM];
    uint32_t n_vectors, n_bytes;
    bool done, failed, released;
    struct request_usage usage;
    struct error error;
    request_handle handle;
};

static void on_started(void *user, uint64_t seed) {
    (void)seed;
    assert_true(((struct client *)user)->generates);
}
static void on_delta(void *user, uint32_t choice, const char *bytes, size_t n,
                     const struct token_logprob *lps, uint32_t n_lps) {
    struct client *k = user;
    (void)choice, (void)bytes, (void)lps, (void)n_lps;
    assert_true(k->generates);
    k->n_bytes += (uint32_t)n;
}
static void on_finish(void *user, uint32_t choice, enum finish_reason reason) {
    (void)choice, (void)reason;
    assert_true(((struct client *)user)->generates);
}
static void on_tokens(void *user, const uint32_t *ids, size_t n) {
    (void)user, (void)ids, (void)n;
    fail();
}
static void on_embedding(void *user, uint32_t index, const float *v, uint32_t dim) {
    struct client *k = user;
    assert_true(!k->done && !k->failed && !k->released && !k->generates);
    assert_true(index == k->n_vectors && index < EMBED_CLIENT_MOST && dim == EMBED_CLIENT_DIM);
    memcpy(k->vectors[k->n_vectors++], v, sizeof k->vectors[0]);
}
static void on_done(void *user, const struct request_usage *usage,
                    const struct request_report *report) {
    struct client *k = user;
    (void)report;
    assert_true(!k->done && !k->failed && !k->released);
    k->done = true;
    k->usage = *usage;
}
static void on_failed(void *user, const struct error *e, uint32_t retry_after_s) {
    struct client *k = user;
    (void)retry_after_s;
    assert_true(!k->done && !k->failed && !k->released);
    k->failed = true;
    k->error = *e;
}
static void on_release(void *user) {
    struct client *k = user;
    assert_false(k->released);
    k->released = true;
}
static bool on_writable(void *user) {
    (void)user;
    return true;
}

static const struct request_sink sink = {
    .started = on_started,
    .delta = on_delta,
    .finish = on_finish,
    .tokens = on_tokens,
    .embedding = on_embedding,
    .done = on_done,
    .failed = on_failed,
    .release = on_release,
    .writable = on_writable,
};

#endif
