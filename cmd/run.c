/* run: one answer on stdout, as it is generated: a server with one client and no socket. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "cmd/commands.h"
#include "cmd/service.h"
#include "cmd/usage.h"
#include "core/clock.h"
#include "core/json_writer.h"

struct run {
    struct error error;
    struct request_usage usage;
    struct request_report report;
    uint64_t first_ns;
    bool released;
};

static void on_started(void *user, uint64_t seed) {
    (void)user, (void)seed;
}

static void on_delta(void *user, uint32_t choice, const char *bytes, size_t n,
                     const struct token_logprob *lps, uint32_t n_lps) {
    (void)choice, (void)lps, (void)n_lps;
    struct run *r = user;
    if (r->first_ns == 0) r->first_ns = clock_now_ns();
    fwrite(bytes, 1, n, stdout);
    fflush(stdout);
}

static void on_finish(void *user, uint32_t choice, enum finish_reason reason) {
    (void)user, (void)choice, (void)reason;
}
static void on_tokens(void *user, const uint32_t *ids, size_t n) {
    (void)user, (void)ids, (void)n;
}
static void on_done(void *user, const struct request_usage *usage,
                    const struct request_report *report) {
    struct run *r = user;
    r->usage = *usage;
    r->report = *report;
}
static void on_failed(void *user, const struct error *e, uint32_t retry_after_s) {
    (void)retry_after_s;
    ((struct run *)user)->error = *e;
}
static void on_release(void *user) {
    ((struct run *)user)->released = true;
}
static bool on_writable(void *user) {
    (void)user;
    return true;
}

static uint64_t draw_seed(void) {
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) seed = clock_now_ns();
    return seed >> 12; /* a number that JSON readers keep exactly */
}

int cmd_run(int argc, char **argv) {
    struct config c;
    int rc;
    if (!usage_parse(&c, argc, argv, &rc)) return rc;
    struct error e = {0};
    if (usage_check_utf8("-p: the prompt", c.prompt, strlen(c.prompt), &e) != STATUS_OK)
        return usage_fail("run", &e);
    const struct service_options options = {.config = &c, .max_batch = 1, .max_queue = 1};
    struct service *s;
    if (service_open(&options, &s, &e) != STATUS_OK) return usage_fail("run", &e);

    struct buffer chat;
    buffer_init(&chat, 0);
    struct json_writer j;
    json_write_begin(&j, &chat);
    json_write_object(&j);
    json_write_key(&j, "messages"), json_write_array(&j), json_write_object(&j);
    json_write_key(&j, "role"), json_write_string(&j, "user");
    json_write_key(&j, "content"), json_write_string(&j, c.prompt);
    json_write_object_end(&j), json_write_array_end(&j), json_write_object_end(&j);

    static const struct request_sink sink = {on_started, on_delta,  on_finish,  on_tokens,  NULL,
                                             on_done,    on_failed, on_release, on_writable};
    struct run r = {0};
    uint32_t set = REQUEST_SET_TEMPERATURE | REQUEST_SET_TOP_P;
    if (c.task_type != CONFIG_TASK_AUTO) {
        set = REQUEST_SET_TASK_TYPE;
        if (config_given(&c, "--temp")) set |= REQUEST_SET_TEMPERATURE;
        if (config_given(&c, "--top-p")) set |= REQUEST_SET_TOP_P;
    }
    const uint64_t t0 = clock_now_ns();
    const struct request request = {
        .kind = c.raw ? REQUEST_COMPLETION : REQUEST_CHAT,
        .set = set | REQUEST_SET_TOP_K | REQUEST_SET_MAX_TOKENS | REQUEST_SET_SEED,
        .chat_json = {chat.data, chat.len},
        .prompt = {c.prompt, strlen(c.prompt)},
        .user_text = {c.prompt, strlen(c.prompt)},
        .task_type = c.task_type != CONFIG_TASK_AUTO ? (enum metric_task)(c.task_type - 1)
                                                     : METRIC_TASK_NONE,
        .n = 1,
        .max_tokens = c.n_predict,
        .temperature = c.temperature,
        .top_p = c.top_p,
        .top_k = c.top_k,
        .repetition_penalty = 1,
        .seed = c.seed_given ? c.seed : draw_seed(),
        .received_ns = t0,
    };
    request_handle h;
    enum status st = sched_submit(s->sched, &request, &sink, &r, &h, &e);
    while (st == STATUS_OK && !r.released) (void)sched_tick(s->sched);
    if (st == STATUS_OK) st = r.error.status;
    if (st == STATUS_OK && isatty(STDOUT_FILENO)) putchar('\n');
    if (st == STATUS_OK && c.stats) {
        const double prefill = (double)(r.first_ns - t0) * 1e-9;
        const double decode = (double)(clock_now_ns() - r.first_ns) * 1e-9;
        const uint32_t n = r.usage.completion_tokens;
        fprintf(
            stderr,
            "prompt %u tokens (%u cached), first token after %.1f ms; %u tokens, %.1f tokens/s; "
            "seed %llu; %s, %u threads\n",
            r.usage.prompt_tokens, r.usage.cached_tokens, prefill * 1e3, n,
            n > 1 && decode > 0 ? (n - 1) / decode : 0.0, (unsigned long long)r.report.seed,
            cpu_isa_name(s->engine->isa), s->engine->n_threads);
    }
    if (st != STATUS_OK)
        rc = usage_fail("run", r.error.status != STATUS_OK ? &r.error : &e);
    else
        rc = ferror(stdout) != 0 ? 1 : 0;
    buffer_free(&chat);
    service_close(s);
    return rc;
}
