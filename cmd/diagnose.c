/* diagnose: what a running server's latency is made of, where its answers wander, and whether
 * another setting is better. */
#include "cmd/diagnose.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/commands.h"
#include "cmd/http_client.h"
#include "cmd/usage.h"
#include "core/check.h"

enum { MAX_FILE_BYTES = 64 << 20, CONTROL_SEEDS = 1000000, WARM_UP_TOKENS = 8 };

static const char NAME[] = "diagnose";

/* ---- what to ask ---- */

static enum status read_settings(const char *option, const char *text, json_t **out,
                                 struct error *e) {
    json_error_t why;
    *out = json_loads(text, 0, &why);
    if (*out == NULL || !json_is_object(*out))
        return error_set(e, STATUS_INVALID, option, "%s wants a JSON object of request fields: %s",
                         option, *out == NULL ? why.text : "that is none");
    static const char *const ours[] = {"model", "messages", "stream", "n"};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (json_object_get(*out, ours[i]) != NULL)
            return error_set(e, STATUS_INVALID, option, "%s may not set \"%s\"", option, ours[i]);
    return STATUS_OK;
}

static enum status add_prompt(struct diagnose *d, const char *line, size_t len, uint32_t number,
                              struct error *e) {
    json_t *row = json_loadb(line, len, JSON_DECODE_ANY, NULL);
    const char *text = json_string_value(row);
    if (text == NULL) text = json_string_value(json_object_get(row, "prompt"));
    if (text == NULL) text = json_string_value(json_object_get(row, "text"));
    enum status st = STATUS_OK;
    if (text == NULL)
        st = error_set(e, STATUS_INVALID, "prompts",
                       "line %u is neither a string nor an object with a prompt", number);
    else if ((d->prompts[d->n] = strdup(text)) != NULL)
        d->n++;
    else
        st = error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the prompts");
    json_decref(row);
    return st;
}

static enum status read_prompts(struct diagnose *d, struct error *e) {
    const char *path = d->config->prompts_path;
    FILE *f = fopen(path, "r");
    if (f == NULL) return error_set(e, STATUS_NOT_FOUND, "prompts", "%s cannot be opened", path);
    char *text;
    size_t len;
    enum status st = usage_read_all(f, MAX_FILE_BYTES, &text, &len, e);
    fclose(f);
    if (st != STATUS_OK) return st;
    uint32_t number = 0;
    for (size_t at = 0; st == STATUS_OK && at < len && d->n < d->config->diagnose_requests;) {
        const char *end = memchr(text + at, '\n', len - at);
        const size_t n = end != NULL ? (size_t)(end - text) - at : len - at;
        number++;
        if (n > 0) st = add_prompt(d, text + at, n, number, e);
        at += n + 1;
    }
    free(text);
    if (st == STATUS_OK && d->n == 0)
        st = error_set(e, STATUS_INVALID, "prompts", "%s holds no prompt", path);
    return st;
}

/* A file with fewer prompts gives fewer requests; the built-in ones come round again. */
static enum status get_prompts(struct diagnose *d, struct error *e) {
    const uint32_t most = d->config->diagnose_requests;
    d->prompts = calloc(most, sizeof *d->prompts);
    if (d->prompts == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
    if (d->config->prompts_path != NULL) return read_prompts(d, e);
    while (d->n < most) {
        d->prompts[d->n] = diagnose_prompt(d->n);
        d->n++;
    }
    return STATUS_OK;
}

/* What the server calls its first model, and whether it is Laconic. */
static enum status look_at_server(struct diagnose *d, struct error *e) {
    json_t *models;
    const enum status st = http_client_json(d->url, "GET", "/v1/models", &models, e);
    if (st != STATUS_OK) return st;
    const char *id = json_string_value(
        json_object_get(json_array_get(json_object_get(models, "data"), 0), "id"));
    snprintf(d->model, sizeof d->model, "%s", id != NULL ? id : "default");
    json_decref(models);
    const struct diagnose_ask q = {
        .url = d->url, .model = d->model, .prompt = "Hello.", .max_tokens = WARM_UP_TOKENS};
    struct diagnose_answer a;
    diagnose_ask(&q, &a);
    const bool failed = a.failed;
    if (failed) (void)error_set(e, STATUS_IO, NULL, "%s", a.why);
    d->laconic = a.laconic;
    diagnose_answer_free(&a);
    return failed ? STATUS_IO : STATUS_OK;
}

/* ---- asking ---- */

/* What the clients share. */
struct round {
    struct diagnose *d;
    bool traces;
    atomic_uint next, done;
};

static void progress(const struct round *r, uint32_t done) {
    if (!isatty(STDERR_FILENO)) return;
    fprintf(stderr, "\r%s %u of %u%s", r->traces ? "traces" : "prompts", done, r->d->n,
            done == r->d->n ? "\r\033[K" : "");
    fflush(stderr);
}

static struct diagnose_ask question(const struct diagnose *d, uint32_t i, enum diagnose_arm arm) {
    const uint64_t seed = d->config->seed_given ? d->config->seed : 1;
    return (struct diagnose_ask){.url = d->url,
                                 .model = d->model,
                                 .prompt = d->prompts[i],
                                 .settings = d->settings[arm == DIAGNOSE_B],
                                 .max_tokens = d->config->n_predict,
                                 .seed = seed + i + (arm == DIAGNOSE_CONTROL ? CONTROL_SEEDS : 0),
                                 .laconic = d->laconic};
}

static void ask_prompt(struct diagnose *d, uint32_t i) {
    for (uint32_t k = 0; k < d->n_arms; k++) {
        const enum diagnose_arm arm = (enum diagnose_arm)((i + k) % d->n_arms);
        const struct diagnose_ask q = question(d, i, arm);
        struct diagnose_answer *a = &d->answers[arm][i];
        diagnose_ask(&q, a);
        if (d->laconic && !a->failed) diagnose_explain(d->url, a);
    }
}

static void ask_trace(struct diagnose *d, uint32_t i) {
    struct diagnose_ask q = question(d, i, DIAGNOSE_A);
    q.trace = true;
    diagnose_ask(&q, &d->traces[i]);
}

static void *client(void *arg) {
    struct round *r = arg;
    for (uint32_t i; (i = atomic_fetch_add(&r->next, 1)) < r->d->n;) {
        if (r->traces)
            ask_trace(r->d, i);
        else
            ask_prompt(r->d, i);
        progress(r, atomic_fetch_add(&r->done, 1) + 1);
    }
    return NULL;
}

static enum status ask_all(struct diagnose *d, bool traces, struct error *e) {
    struct round r = {.d = d, .traces = traces};
    pthread_t threads[256];
    const uint32_t n = d->config->diagnose_clients;
    CHECK(n >= 1 && n <= sizeof threads / sizeof *threads);
    uint32_t started = 0;
    while (started < n && pthread_create(&threads[started], NULL, client, &r) == 0) started++;
    for (uint32_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
    if (started < n) return error_set(e, STATUS_NO_MEMORY, NULL, "no thread for a client");
    return STATUS_OK;
}

/* ---- the command ---- */

static enum status measure(struct diagnose *d, struct error *e) {
    d->n_arms = d->settings[1] != NULL ? DIAGNOSE_ARMS : 1;
    for (uint32_t arm = 0; arm < d->n_arms; arm++) {
        d->answers[arm] = calloc(d->n, sizeof *d->answers[arm]);
        if (d->answers[arm] == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
    }
    enum status st = look_at_server(d, e);
    if (st == STATUS_OK) st = ask_all(d, false, e);
    if (st != STATUS_OK || d->config->no_traces) return st;
    d->traces = calloc(d->n, sizeof *d->traces);
    if (d->traces == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
    return ask_all(d, true, e);
}

static void forget(struct diagnose *d) {
    for (uint32_t i = 0; i < d->n; i++) {
        for (uint32_t arm = 0; arm < d->n_arms; arm++)
            if (d->answers[arm] != NULL) diagnose_answer_free(&d->answers[arm][i]);
        if (d->traces != NULL) diagnose_answer_free(&d->traces[i]);
        free(d->prompts[i]);
    }
    for (uint32_t arm = 0; arm < DIAGNOSE_ARMS; arm++) free(d->answers[arm]);
    free(d->traces);
    free(d->prompts);
    json_decref(d->settings[0]);
    json_decref(d->settings[1]);
}

static enum status tell(const struct diagnose *d, struct error *e) {
    struct diagnose_figures *f = calloc(1, sizeof *f);
    if (f == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
    diagnose_figures(d, f);
    enum status st = STATUS_OK;
    const struct diagnose_arm_figures *a = &f->arms[DIAGNOSE_A];
    if (a->seconds.n == 0) st = error_set(e, STATUS_IO, NULL, "every request failed: %s", a->why);
    if (st == STATUS_OK && d->config->plots_path != NULL)
        st = diagnose_plot(d, f, d->config->plots_path, e);
    if (st == STATUS_OK && d->config->json) st = diagnose_print_json(d, f, e);
    if (st == STATUS_OK && !d->config->json) diagnose_print(d, f);
    free(f);
    return st;
}

int cmd_diagnose(int argc, char **argv) {
    struct config c;
    struct error e = {0};
    int rc;
    if (!usage_parse(&c, argc, argv, &rc)) return rc;
    struct diagnose d = {.config = &c, .url = c.positional[0]};
    enum status st = read_settings("--a", c.settings_a, &d.settings[0], &e);
    if (st == STATUS_OK && c.settings_b != NULL)
        st = read_settings("--b", c.settings_b, &d.settings[1], &e);
    const bool bad_usage = st != STATUS_OK;
    if (st == STATUS_OK) st = get_prompts(&d, &e);
    if (st == STATUS_OK) st = measure(&d, &e);
    if (st == STATUS_OK) st = tell(&d, &e);
    forget(&d);
    if (st == STATUS_OK) return ferror(stdout) != 0;
    (void)usage_fail(NAME, &e);
    return bad_usage ? 2 : 1;
}
