/* The report of `laconic diagnose`, for people and as JSON. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/diagnose.h"
#include "cmd/task_files.h"
#include "core/json_writer.h"

static const char *const ARMS[DIAGNOSE_ARMS] = {"A", "B", "control"};

/* ---- for people ---- */

static void print_distribution(const char *name, const struct distribution *d, double unit) {
    if (d->n == 0) return;
    printf("  %-26s %9.2f %9.2f %9.2f %9.2f   %5.2f", name, unit * d->p50, unit * d->p90,
           unit * d->p95, unit * d->p99, d->tail.value);
    if (!isnan(d->tail.low)) printf(" (%.2f-%.2f)", d->tail.low, d->tail.high);
    puts(d->tail.value > DIAGNOSE_TAIL ? "  TAIL" : "");
}

static void print_arm(const struct diagnose *d, uint32_t arm,
                      const struct diagnose_arm_figures *f) {
    printf("\n%s%s: %u answers", arm == DIAGNOSE_CONTROL ? "" : "setting ", ARMS[arm],
           f->seconds.n);
    if (arm == DIAGNOSE_CONTROL) {
        printf(" (A with other seeds)");
    } else {
        char *text = json_dumps(d->settings[arm], JSON_COMPACT | JSON_REAL_PRECISION(9));
        printf(" %s", text != NULL ? text : "");
        free(text);
    }
    if (f->n_failed > 0) printf("; %u FAILED, the first: %s", f->n_failed, f->why);
    printf("\n  %-26s %9s %9s %9s %9s   P95/P50\n", "ms", "P50", "P90", "P95", "P99");
    print_distribution("whole request", &f->seconds, 1000);
    print_distribution("first text", &f->first_s, 1000);
    print_distribution("a token, behind it", &f->token_s, 1000);
    print_distribution("from text to text", &f->gap_s, 1000);
    print_distribution("(tokens of the answer)", &f->tokens, 1);
}

static void print_share(const char *name, const struct diagnose_share *s) {
    printf("  %-26s %9.1f ms, %.1f tokens", name, s->total, s->tokens);
    if (s->n_known > 0)
        printf("; tokenise %.1f, queue %.1f, prefill %.1f, decode %.1f", s->tokenise, s->queue,
               s->prefill, s->decode);
    putchar('\n');
}

static void print_tail(const struct diagnose_figures *f) {
    const struct diagnose_share *slow = &f->slowest, *mid = &f->middle;
    if (slow->n == 0 || mid->n == 0) return;
    printf("\nwhat the slowest %u are made of (means)\n", slow->n);
    print_share("slowest", slow);
    print_share("between the quartiles", mid);
    if (mid->tokens > 0 && mid->total > 0)
        printf("  %.1f times the time for %.1f times the tokens\n", slow->total / mid->total,
               slow->tokens / mid->tokens);
    if (f->n_savings > 0) printf("\nwhat would have been faster, over all requests, each alone\n");
    for (uint32_t i = 0; i < f->n_savings; i++)
        printf("  %-26s %9.1f ms in %u requests\n", f->savings[i].what, f->savings[i].ms,
               f->savings[i].n);
}

static void print_interval(const char *name, struct interval v, double unit, const char *what) {
    printf("    %-34s %8.3f  (%.3f to %.3f)%s\n", name, unit * v.value, unit * v.low, unit * v.high,
           what);
}

static const char *verdict(struct interval v, double neutral) {
    return v.low > neutral ? "  more" : v.high < neutral ? "  less" : "  no difference shown";
}

static void print_comparison(const char *name, const struct diagnose_comparison *c) {
    printf("  %s against A, %u prompts\n", name, c->n);
    if (c->n == 0) return;
    print_interval("latency, median ratio", c->median_ratio, 1, verdict(c->median_ratio, 1));
    print_interval("latency, ratio of P95", c->p95_ratio, 1, verdict(c->p95_ratio, 1));
    print_interval("latency, mean difference, ms", c->difference_s, 1000,
                   verdict(c->difference_s, 0));
    print_interval("first text, median ratio", c->first_ratio, 1, verdict(c->first_ratio, 1));
    print_interval("tokens, mean difference", c->tokens, 1, verdict(c->tokens, 0));
    print_interval("agreement (1: same words)", c->agreement, 1, "");
    printf("    %-34s %8u\n", "identical answers", c->n_identical);
}

static void print_traces(const struct diagnose *d, const struct diagnose_figures *f) {
    if (d->traces == NULL) return;
    printf("\ntraces of A: %u answers, %llu tokens", f->n_traced, (unsigned long long)f->n_tokens);
    if (f->trace_why != NULL) printf("; %u without: %s", d->n - f->n_traced, f->trace_why);
    if (f->n_traced == 0) {
        putchar('\n');
        return;
    }
    printf("\n  entropy %.2f nats on average%s", f->entropy,
           f->n_exact == f->n_traced ? "" : " (of the 20 best and one lump: at most the whole)");
    if (isnan(f->similarity))
        printf("; similarity: the server does not tell\n");
    else
        printf("; similarity to the prompt %.2f\n", f->similarity);
    printf("  same text as in the timed request: %u of %u\n", f->n_same, f->n_traced);
    printf("  divergent stretches (%d tokens or more, entropy over %.1f%s): %u, %.1f %% of the "
           "tokens\n",
           DIAGNOSE_WINDOW, DIAGNOSE_ENTROPY, isnan(f->similarity) ? "" : ", similarity under 0.3",
           f->n_stretches,
           f->n_tokens > 0 ? 100.0 * (double)f->n_divergent / (double)f->n_tokens : 0);
    for (uint32_t i = 0; i < f->n_stretches && i < 5; i++) {
        const struct diagnose_stretch *s = &f->stretches[i];
        printf("    prompt %u, tokens %u to %u: entropy %.2f", s->prompt, s->at.from, s->at.to,
               s->at.entropy);
        if (!isnan(s->at.similarity)) printf(", similarity %.2f", s->at.similarity);
        putchar('\n');
    }
}

void diagnose_print(const struct diagnose *d, const struct diagnose_figures *f) {
    printf("%s, model %s%s: %u prompts, %u at a time, at most %u tokens\n", d->url, d->model,
           d->laconic ? ", Laconic" : "", d->n, d->config->diagnose_clients, d->config->n_predict);
    for (uint32_t arm = 0; arm < d->n_arms; arm++) print_arm(d, arm, &f->arms[arm]);
    print_tail(f);
    if (d->n_arms > 1) {
        printf("\nA and B, pair by pair, with 95 %% intervals\n");
        print_comparison("B", &f->b);
        print_comparison("control", &f->control);
    }
    print_traces(d, f);
}

/* ---- as JSON ---- */

static void key_double(struct json_writer *j, const char *key, double v) {
    json_write_key(j, key);
    json_write_double(j, v);
}

static void key_uint(struct json_writer *j, const char *key, uint64_t v) {
    json_write_key(j, key);
    json_write_uint(j, v);
}

static void key_object(struct json_writer *j, const char *key) {
    json_write_key(j, key);
    json_write_object(j);
}

static void key_interval(struct json_writer *j, const char *key, struct interval v) {
    key_object(j, key);
    key_double(j, "value", v.value);
    key_double(j, "low", v.low);
    key_double(j, "high", v.high);
    json_write_object_end(j);
}

static void key_distribution(struct json_writer *j, const char *key, const struct distribution *d) {
    key_object(j, key);
    key_uint(j, "n", d->n);
    if (d->n > 0) {
        key_double(j, "mean", d->mean);
        key_double(j, "min", d->least);
        key_double(j, "p50", d->p50);
        key_double(j, "p90", d->p90);
        key_double(j, "p95", d->p95);
        key_double(j, "p99", d->p99);
        key_double(j, "max", d->most);
        key_interval(j, "tail_ratio", d->tail);
        json_write_key(j, "tail_signal");
        json_write_bool(j, d->tail.value > DIAGNOSE_TAIL);
    }
    json_write_object_end(j);
}

static void key_comparison(struct json_writer *j, const char *key,
                           const struct diagnose_comparison *c) {
    key_object(j, key);
    key_uint(j, "prompts", c->n);
    key_uint(j, "identical", c->n_identical);
    key_interval(j, "latency_median_ratio", c->median_ratio);
    key_interval(j, "latency_p95_ratio", c->p95_ratio);
    key_interval(j, "latency_mean_difference_seconds", c->difference_s);
    key_interval(j, "first_text_median_ratio", c->first_ratio);
    key_interval(j, "tokens_mean_difference", c->tokens);
    key_interval(j, "agreement", c->agreement);
    json_write_object_end(j);
}

static void key_share(struct json_writer *j, const char *key, const struct diagnose_share *s) {
    key_object(j, key);
    key_uint(j, "n", s->n);
    key_double(j, "total_ms", s->total);
    key_double(j, "tokens", s->tokens);
    if (s->n_known > 0) {
        key_double(j, "tokenise_ms", s->tokenise);
        key_double(j, "queue_ms", s->queue);
        key_double(j, "prefill_ms", s->prefill);
        key_double(j, "decode_ms", s->decode);
    }
    json_write_object_end(j);
}

static void write_arms(struct json_writer *j, const struct diagnose *d,
                       const struct diagnose_figures *f) {
    key_object(j, "arms");
    for (uint32_t arm = 0; arm < d->n_arms; arm++) {
        const struct diagnose_arm_figures *a = &f->arms[arm];
        key_object(j, ARMS[arm]);
        char *text =
            json_dumps(d->settings[arm == DIAGNOSE_B], JSON_COMPACT | JSON_REAL_PRECISION(9));
        if (text != NULL) {
            json_write_key(j, "settings");
            json_write_raw(j, text, strlen(text));
            free(text);
        }
        key_uint(j, "failed", a->n_failed);
        key_distribution(j, "request_seconds", &a->seconds);
        key_distribution(j, "first_text_seconds", &a->first_s);
        key_distribution(j, "token_seconds", &a->token_s);
        key_distribution(j, "gap_seconds", &a->gap_s);
        key_distribution(j, "tokens", &a->tokens);
        json_write_object_end(j);
    }
    json_write_object_end(j);
}

static void key_numbers(struct json_writer *j, const char *key, const struct diagnose_list *l) {
    json_write_key(j, key);
    json_write_array(j);
    for (uint32_t i = 0; i < l->n; i++) json_write_float(j, (float)l->v[i]);
    json_write_array_end(j);
}

static void write_stretches(struct json_writer *j, const struct diagnose_answer *t) {
    struct stretch found[DIAGNOSE_MAX_STRETCHES];
    const uint32_t n =
        find_stretches(t->entropy.v, t->similarity.v, t->entropy.n, found, DIAGNOSE_MAX_STRETCHES);
    json_write_key(j, "divergent");
    json_write_array(j);
    for (uint32_t i = 0; i < n && i < DIAGNOSE_MAX_STRETCHES; i++) {
        json_write_object(j);
        key_uint(j, "from", found[i].from);
        key_uint(j, "to", found[i].to);
        key_double(j, "entropy", found[i].entropy);
        key_double(j, "similarity", found[i].similarity);
        json_write_object_end(j);
    }
    json_write_array_end(j);
}

static void write_traces(struct json_writer *j, const struct diagnose *d,
                         const struct diagnose_figures *f) {
    key_object(j, "traces");
    key_uint(j, "answers", f->n_traced);
    key_uint(j, "same_text", f->n_same);
    json_write_key(j, "exact");
    json_write_bool(j, f->n_traced > 0 && f->n_exact == f->n_traced);
    key_uint(j, "tokens", f->n_tokens);
    key_uint(j, "divergent_tokens", f->n_divergent);
    key_uint(j, "divergent_stretches", f->n_stretches);
    key_double(j, "entropy", f->entropy);
    key_double(j, "similarity", f->similarity);
    json_write_key(j, "rows");
    json_write_array(j);
    for (uint32_t i = 0; i < d->n; i++) {
        const struct diagnose_answer *t = &d->traces[i];
        if (t->failed || t->entropy.n == 0) continue;
        json_write_object(j);
        key_uint(j, "prompt", i);
        key_numbers(j, "entropy", &t->entropy);
        key_numbers(j, "similarity", &t->similarity);
        write_stretches(j, t);
        json_write_object_end(j);
    }
    json_write_array_end(j);
    json_write_object_end(j);
}

static void write_tail(struct json_writer *j, const struct diagnose_figures *f) {
    key_object(j, "tail");
    key_share(j, "slowest", &f->slowest);
    key_share(j, "middle", &f->middle);
    json_write_key(j, "faster");
    json_write_array(j);
    for (uint32_t i = 0; i < f->n_savings; i++) {
        json_write_object(j);
        json_write_key(j, "what"), json_write_string(j, f->savings[i].what);
        key_uint(j, "requests", f->savings[i].n);
        key_double(j, "saved_ms", f->savings[i].ms);
        json_write_object_end(j);
    }
    json_write_array_end(j);
    json_write_object_end(j);
}

enum status diagnose_print_json(const struct diagnose *d, const struct diagnose_figures *f,
                                struct error *e) {
    struct buffer b;
    struct json_writer j;
    buffer_init(&b, 0);
    json_write_begin(&j, &b);
    json_write_object(&j);
    json_write_key(&j, "model"), json_write_string(&j, d->model);
    json_write_key(&j, "laconic"), json_write_bool(&j, d->laconic);
    key_uint(&j, "prompts", d->n);
    key_uint(&j, "clients", d->config->diagnose_clients);
    write_arms(&j, d, f);
    write_tail(&j, f);
    if (d->n_arms > 1) {
        key_comparison(&j, "b_against_a", &f->b);
        key_comparison(&j, "control_against_a", &f->control);
    }
    if (d->traces != NULL) write_traces(&j, d, f);
    json_write_object_end(&j);
    return task_files_print(&b, e);
}
