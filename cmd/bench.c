/* laconic bench: prefill and decode speed. Tokens are drawn from a fixed stream; decoding feeds
 * back the arg-max, so that the head and the sampler are in the figures.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/bench_kernel.h"
#include "cmd/commands.h"
#include "cmd/engine.h"
#include "cmd/usage.h"
#include "core/clock.h"
#include "core/cpu/cpu_backend.h"
#include "core/json_writer.h"
#include "core/rng.h"

struct bench {
    const struct config *c;
    struct engine *g;
    struct step *step;
    struct engine_sequence *seqs; /* [n_seqs] */
    uint32_t n_seqs;
    uint32_t *tokens; /* [max(batch)]: what each sequence decodes next */
    uint32_t *prompt; /* [n_prompt] */
    uint32_t n_prompt;
    double *rates; /* [reps] */
    struct json_writer *json;
    struct cpu_phases phases;
};

static uint32_t larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/* Positions [first, first + n) of sequence 0, in steps as a server would cut them. */
static enum status prefill(struct bench *b, uint32_t first, uint32_t n, struct error *e) {
    const uint32_t most = b->step->limits.max_rows;
    for (uint32_t at = 0; at < n; at += most) {
        const uint32_t rows = n - at < most ? n - at : most;
        step_clear(b->step, b->g->plan->n_layers);
        engine_add_span(b->g, b->step, SPAN_PREFILL, &b->seqs[0], first + at, b->prompt + at, rows);
        if (at + rows == n) step_add_output(b->step, rows - 1);
        const enum status s = engine_run(b->g, b->step, e);
        if (s != STATUS_OK) return s;
    }
    return STATUS_OK;
}

/* Gives every sequence the pages that sequence 0 has for the depth. */
static enum status copy_depth(struct bench *b, struct error *e) {
    const uint32_t n = (b->c->bench_depth + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    for (uint32_t i = 1; i < b->n_seqs && n > 0; i++) {
        step_clear(b->step, b->g->plan->n_layers);
        for (uint32_t group = 0; group < b->g->plan->n_groups; group++)
            for (uint32_t p = 0; p < n; p++)
                b->step->copies[b->step->n_copies++] = (struct page_copy){
                    group, b->seqs[0].pages[group][p], b->seqs[i].pages[group][p]};
        const enum status s = engine_run(b->g, b->step, e);
        if (s != STATUS_OK) return s;
    }
    return STATUS_OK;
}

static enum status decode(struct bench *b, uint32_t batch, uint32_t n, struct error *e) {
    for (uint32_t i = 0; i < batch; i++) b->tokens[i] = b->prompt[i % b->n_prompt];
    for (uint32_t t = 0; t < n; t++) {
        step_clear(b->step, b->g->plan->n_layers);
        if (b->c->bench_gate > 0) {
            b->step->gates[0] = (struct gate_policy){
                .first_position = b->c->bench_depth,
                .sink_pages = 1,
                .recent_pages = 4,
                .budget_pages = b->c->bench_gate,
                .dense_layers = 2,
            };
            b->step->n_gates = 1;
        }
        for (uint32_t i = 0; i < batch; i++) {
            struct span *span = engine_add_span(b->g, b->step, SPAN_DECODE, &b->seqs[i],
                                                b->c->bench_depth + t, &b->tokens[i], 1);
            span->slot = i;
            if (b->c->bench_gate > 0) span->gate = 0;
            step_add_output(b->step, i);
        }
        const enum status s = engine_run(b->g, b->step, e);
        if (s != STATUS_OK) return s;
        for (uint32_t i = 0; i < batch; i++) b->tokens[i] = b->step->outputs[i].token;
    }
    return STATUS_OK;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void report(struct bench *b, const char *name) {
    const uint32_t reps = b->c->bench_reps;
    qsort(b->rates, reps, sizeof *b->rates, by_value);
    const double median = (b->rates[(reps - 1) / 2] + b->rates[reps / 2]) / 2;
    if (!b->c->json) {
        printf("%-20s %10.2f tokens/s  (%.2f .. %.2f)\n", name, median, b->rates[0],
               b->rates[reps - 1]);
        fflush(stdout);
        return;
    }
    json_write_object(b->json);
    json_write_key(b->json, "test");
    json_write_string(b->json, name);
    json_write_key(b->json, "tokens_per_s");
    json_write_object(b->json);
    json_write_key(b->json, "min");
    json_write_double(b->json, b->rates[0]);
    json_write_key(b->json, "median");
    json_write_double(b->json, median);
    json_write_key(b->json, "max");
    json_write_double(b->json, b->rates[reps - 1]);
    json_write_object_end(b->json);
    json_write_object_end(b->json);
}

/* The second figure takes every whole run of a phase for as short as its shortest: what is left
 * when another process took the CPU now and then. */
static void report_phases(const struct bench *b) {
    const struct cpu_phases *p = &b->phases;
    const struct cpu_phase *step = NULL;
    for (uint32_t i = 0; i < p->n; i++)
        if (strcmp(p->of[i].name, "step") == 0) step = &p->of[i];
    if (step == NULL) return;
    const double steps = (double)step->runs;
    double least = 0, between_ns = (double)step->ns;
    fprintf(stderr, "  %-22s %10s %10s %6s %8s %8s\n", "phase", "us/step", "least", "runs", "GB/s",
            "Gmac/s");
    for (uint32_t i = 0; i < p->n; i++) {
        const struct cpu_phase *f = &p->of[i];
        const double least_ns = (double)f->whole_runs * (double)f->least_ns;
        fprintf(stderr, "  %-22s %10.1f %10.1f %6.0f", f->name, (double)f->ns / steps / 1e3,
                least_ns / steps / 1e3, (double)f->runs / steps);
        if (f->multiply_adds > 0)
            fprintf(stderr, " %8.2f %8.1f", f->weight_bytes / least_ns,
                    f->multiply_adds / least_ns);
        fputc('\n', stderr);
        if (f == step) continue;
        least += least_ns;
        between_ns -= (double)f->ns;
    }
    fprintf(stderr, "  %-22s %10.1f\n", "between phases", between_ns / steps / 1e3);
    fprintf(stderr, "  %-22s %10s %10.1f\n", "sum of least", "", least / steps / 1e3);
}

/* batch 0: prefill. */
static enum status run_test(struct bench *b, uint32_t batch, struct error *e) {
    return batch == 0 ? prefill(b, b->c->bench_depth, b->c->bench_prompt, e)
                      : decode(b, batch, b->c->bench_gen, e);
}

static enum status one_test(struct bench *b, uint32_t batch, struct error *e) {
    const struct config *c = b->c;
    char name[64], depth[24] = "";
    if (c->bench_depth > 0) snprintf(depth, sizeof depth, "@d%u", c->bench_depth);
    if (batch == 0)
        snprintf(name, sizeof name, "pp%u%s", c->bench_prompt, depth);
    else
        snprintf(name, sizeof name, "tg%u@b%u%s", c->bench_gen, batch, depth);
    /* The first run is not measured: it touches memory for the first time. */
    enum status s = run_test(b, batch, e);
    const bool counts = c->stats && strcmp(b->g->backend->ops->name, "cpu") == 0;
    b->phases.n = 0;
    if (counts) cpu_backend_set_phases(b->g->backend, &b->phases);
    for (uint32_t r = 0; r < c->bench_reps && s == STATUS_OK; r++) {
        const uint64_t t0 = clock_now_ns();
        s = run_test(b, batch, e);
        const double seconds = (double)(clock_now_ns() - t0) * 1e-9;
        b->rates[r] = (batch == 0 ? c->bench_prompt : (double)c->bench_gen * batch) / seconds;
    }
    if (s == STATUS_OK) report(b, name);
    if (s == STATUS_OK && counts) report_phases(b);
    return s;
}

static enum status all_tests(struct bench *b, struct error *e) {
    const struct config *c = b->c;
    enum status s = STATUS_OK;
    for (uint32_t i = 0; i < b->n_seqs && s == STATUS_OK; i++)
        s = engine_sequence_open(b->g, b->g->n_ctx, &b->seqs[i], e);
    if (s == STATUS_OK && c->bench_depth > 0) s = prefill(b, 0, c->bench_depth, e);
    if (s == STATUS_OK) s = copy_depth(b, e);
    if (s == STATUS_OK && c->bench_prompt > 0) s = one_test(b, 0, e);
    for (uint32_t i = 0; i < c->bench_batch.n && c->bench_gen > 0 && s == STATUS_OK; i++)
        s = one_test(b, (uint32_t)c->bench_batch.values[i], e);
    for (uint32_t i = 0; i < b->n_seqs; i++)
        if (b->seqs[i].n_pages > 0) engine_sequence_close(b->g, &b->seqs[i]);
    return s;
}

int cmd_bench(int argc, char **argv) {
    struct config c;
    struct error e = {0};
    int exit_status;
    if (!usage_parse(&c, argc, argv, &exit_status)) return exit_status;
    if (c.bench_kernel != NULL) return bench_kernel(&c);
    struct bench b = {.c = &c, .n_seqs = 1};
    for (uint32_t i = 0; i < c.bench_batch.n && c.bench_gen > 0; i++)
        b.n_seqs = larger(b.n_seqs, (uint32_t)c.bench_batch.values[i]);
    struct engine_options o = engine_defaults(&c);
    const uint32_t needed = c.bench_depth + larger(larger(c.bench_prompt, c.bench_gen), 1);
    if (o.n_ctx == 0) o.n_ctx = needed;
    if (o.n_ctx < needed) {
        error_set(&e, STATUS_INVALID, "ctx", "the tests need a context of %u tokens", needed);
        return usage_fail("bench", &e);
    }
    const uint32_t pages = (o.n_ctx + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    o.n_pages = b.n_seqs * pages;
    o.limits.max_spans = b.n_seqs;
    o.limits.max_rows = larger(o.limits.max_rows, b.n_seqs);
    o.limits.max_outputs = b.n_seqs;
    o.limits.max_copies = PLAN_MAX_GROUPS * pages;
    o.limits.max_gates = 1;
    o.n_slots = b.n_seqs;
    o.gates = c.bench_gate > 0;

    b.n_prompt = larger(needed, 32);
    b.seqs = calloc(b.n_seqs, sizeof *b.seqs);
    b.tokens = calloc(b.n_seqs, sizeof *b.tokens);
    b.prompt = calloc(b.n_prompt, sizeof *b.prompt);
    b.rates = calloc(c.bench_reps, sizeof *b.rates);
    void *mem = NULL;
    struct buffer out;
    struct json_writer j;
    buffer_init(&out, 0);
    json_write_begin(&j, &out);
    b.json = &j;
    enum status s = STATUS_OK;
    if (b.seqs == NULL || b.tokens == NULL || b.prompt == NULL || b.rates == NULL)
        s = error_set(&e, STATUS_NO_MEMORY, NULL, "no memory");
    if (s == STATUS_OK) s = engine_open(&o, &b.g, &e);
    if (s == STATUS_OK && posix_memalign(&mem, 64, step_footprint(&b.g->limits)) != 0)
        s = error_set(&e, STATUS_NO_MEMORY, NULL, "no memory");
    if (s == STATUS_OK) {
        b.step = step_init(mem, &b.g->limits);
        for (uint32_t i = 0; i < b.n_prompt; i++)
            b.prompt[i] = (uint32_t)(rng_draw(1, 0, i, RNG_TEST, 0) % b.g->plan->n_vocab);
        json_write_array(&j);
        s = all_tests(&b, &e);
        json_write_array_end(&j);
    }
    if (s == STATUS_OK && c.json) printf("%.*s\n", (int)out.len, out.data);
    buffer_free(&out);
    engine_close(b.g);
    free(mem);
    free(b.seqs);
    free(b.tokens);
    free(b.prompt);
    free(b.rates);
    return s == STATUS_OK ? 0 : usage_fail("bench", &e);
}
