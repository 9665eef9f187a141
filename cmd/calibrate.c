/* laconic calibrate: what a lossy mechanism costs, measured on documents, into the side-car. */
#include "cmd/calibrate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "cmd/calibrate_monitor.h"
#include "cmd/calibrate_regulate.h"
#include "cmd/commands.h"
#include "cmd/usage.h"
#include "core/json_writer.h"
#include "models/sidecar.h"

enum { MAX_DOCUMENTS = 65536, MAX_FILE_BYTES = 1 << 30 };

static enum status add_document(struct calibrate *c, const struct tokenizer *t, const char *text,
                                size_t len, struct error *e) {
    struct token_list ids = {0};
    struct calibrate_document *all = NULL;
    if (c->n_documents < MAX_DOCUMENTS)
        all = realloc(c->documents, (c->n_documents + 1) * sizeof *all);
    if (all == NULL) return error_set(e, STATUS_NO_MEMORY, "file", "no memory for the documents");
    c->documents = all;
    const enum status st = tokenizer_encode(t, NULL, text, len, TOKENIZE_BOS, &ids, e);
    if (st == STATUS_OK)
        all[c->n_documents++] = (struct calibrate_document){ids.ids, (uint32_t)ids.n};
    const struct token_list rest = {.scratch = ids.scratch};
    if (st == STATUS_OK) ids = rest;
    token_list_free(&ids);
    return st;
}

static enum status add_line(struct calibrate *c, const struct tokenizer *t, const char *line,
                            size_t len, uint32_t number, struct error *e) {
    json_t *row = json_loadb(line, len, 0, NULL);
    const json_t *text = json_object_get(row, "document");
    if (text == NULL) text = json_object_get(row, "text");
    enum status st = STATUS_OK;
    if (!json_is_string(text))
        st = error_set(e, STATUS_INVALID, "file", "line %u is no object with a document", number);
    else
        st = add_document(c, t, json_string_value(text), json_string_length(text), e);
    json_decref(row);
    return st;
}

static enum status read_documents(struct calibrate *c, struct error *e) {
    const char *path = c->config->file_path;
    FILE *f = fopen(path, "r");
    if (f == NULL) return error_set(e, STATUS_NOT_FOUND, "file", "%s cannot be opened", path);
    char *text;
    size_t len;
    enum status st = usage_read_all(f, MAX_FILE_BYTES, &text, &len, e);
    fclose(f);
    if (st != STATUS_OK) return st;
    struct tokenizer *t;
    st = tokenizer_load(model_gguf(c->engine->model), &t, e);
    const size_t n = strlen(path);
    const bool lines = n > 6 && strcmp(path + n - 6, ".jsonl") == 0;
    if (st == STATUS_OK && !lines) st = add_document(c, t, text, len, e);
    uint32_t number = 0;
    for (size_t at = 0; lines && at < len && st == STATUS_OK;) {
        const char *end = memchr(text + at, '\n', len - at);
        const size_t line = end != NULL ? (size_t)(end - text) - at : len - at;
        number++;
        if (line > 0) st = add_line(c, t, text + at, line, number, e);
        at += line + 1;
    }
    tokenizer_free(t);
    free(text);
    return st;
}

static void print_json(const struct gate_section *g) {
    struct buffer b;
    struct json_writer j;
    buffer_init(&b, 0);
    json_write_begin(&j, &b);
    json_write_object(&j);
    json_write_key(&j, "least_context"), json_write_uint(&j, g->least_context);
    json_write_key(&j, "safe_pages"), json_write_uint(&j, g->safe_pages);
    json_write_key(&j, "safe_share"), json_write_double(&j, (double)g->safe_share / 1024);
    json_write_key(&j, "kl_limit"), json_write_float(&j, g->kl_limit);
    json_write_key(&j, "rows"), json_write_array(&j);
    for (uint32_t i = 0; i < g->n_rows; i++) {
        const struct gate_row *r = &g->rows[i];
        json_write_object(&j);
        json_write_key(&j, "context"), json_write_uint(&j, r->context);
        json_write_key(&j, "budget"), json_write_uint(&j, r->budget);
        json_write_key(&j, "positions"), json_write_uint(&j, r->n_positions);
        json_write_key(&j, "kl"), json_write_float(&j, r->kl);
        json_write_key(&j, "kl_upper"), json_write_float(&j, r->kl_upper);
        json_write_key(&j, "delta_nll"), json_write_float(&j, r->delta_nll);
        json_write_key(&j, "delta_nll_error"), json_write_float(&j, r->delta_nll_error);
        json_write_key(&j, "agreement"), json_write_float(&j, r->agreement);
        json_write_key(&j, "step"), json_write_float(&j, r->step);
        json_write_object_end(&j);
    }
    json_write_array_end(&j);
    json_write_object_end(&j);
    printf("%.*s\n", (int)b.len, b.data);
    buffer_free(&b);
}

static void print_text(const struct gate_section *g) {
    printf("%8s %7s %9s %8s %10s %10s %8s %9s %6s\n", "context", "budget", "positions", "KL",
           "KL, upper", "delta NLL", "+-", "agreement", "step");
    for (uint32_t i = 0; i < g->n_rows; i++) {
        const struct gate_row *r = &g->rows[i];
        printf("%8u %7u %9u %8.4f %10.4f %+10.4f %8.4f %9.3f %6.2f\n", r->context, r->budget,
               r->n_positions, (double)r->kl, (double)r->kl_upper, (double)r->delta_nll,
               (double)r->delta_nll_error * 1.96, (double)r->agreement, (double)r->step);
    }
    printf("safe: %u pages and %.1f %% of those there are (KL within %.4g)", g->safe_pages,
           100.0 * g->safe_share / 1024, (double)g->kl_limit);
    if (g->least_context == UINT32_MAX)
        printf("; it pays at no context measured\n");
    else
        printf("; it pays from %u tokens on\n", g->least_context);
}

static enum status write_section(struct calibrate *c, const struct gate_section *g,
                                 struct error *e) {
    static const uint32_t kinds[] = {SIDECAR_GATE};
    uint64_t digest[2];
    gguf_digest(model_gguf(c->engine->model), digest);
    const size_t bytes = gate_section_bytes(g);
    void *data = malloc(bytes);
    if (data == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
    gate_section_write(g, data);
    const struct sidecar_section section = {.kind = SIDECAR_GATE,
                                            .version = sidecar_kind_version(SIDECAR_GATE),
                                            .key = "default",
                                            .data = data,
                                            .bytes = bytes};
    const enum status st =
        sidecar_update(c->config->out_path, digest, kinds, 1, section.key, &section, 1, e);
    free(data);
    return st;
}

static enum status check_lists(const struct config *c, struct error *e) {
    const struct config_list *lists[] = {&c->gate_contexts, &c->gate_budgets};
    for (unsigned k = 0; k < 2; k++)
        for (uint32_t i = 1; i < lists[k]->n; i++)
            if (lists[k]->values[i] <= lists[k]->values[i - 1])
                return error_set(e, STATUS_INVALID, k == 0 ? "contexts" : "budgets",
                                 "the numbers must ascend");
    if ((uint64_t)lists[0]->n * lists[1]->n > GATE_SECTION_MAX_ROWS)
        return error_set(e, STATUS_INVALID, "budgets", "at most %d pairs of context and budget",
                         GATE_SECTION_MAX_ROWS);
    if (!c->calibrate_gate)
        return error_set(e, STATUS_INVALID, "gate",
                         "say what to calibrate: --gate, --monitor or --regulate");
    return STATUS_OK;
}

int cmd_calibrate(int argc, char **argv) {
    struct config config;
    struct error e = {0};
    int exit_status;
    if (!usage_parse(&config, argc, argv, &exit_status)) return exit_status;
    if (config.calibrate_monitor) return calibrate_monitor(&config);
    if (config.calibrate_regulate) return calibrate_regulate(&config);
    struct calibrate c = {.config = &config};
    if (check_lists(&config, &e) != STATUS_OK) {
        (void)usage_fail("calibrate", &e);
        return 2;
    }
    struct engine_options o = engine_defaults(&config);
    o.n_ctx = (uint32_t)config.gate_contexts.values[config.gate_contexts.n - 1];
    o.gates = o.gates_on_cpu = true;
    o.limits.max_taps = 1;
    struct gate_section section;
    enum status st = engine_open(&o, &c.engine, &e);
    if (st == STATUS_OK && !c.engine->gates)
        st = error_set(&e, STATUS_UNSUPPORTED, "backend", "page choices need --backend cpu");
    if (st == STATUS_OK &&
        posix_memalign(&c.step_memory, 64, step_footprint(&c.engine->limits)) != 0)
        st = error_set(&e, STATUS_NO_MEMORY, NULL, "no memory");
    if (st == STATUS_OK) {
        c.step = step_init(c.step_memory, &c.engine->limits);
        st = read_documents(&c, &e);
    }
    if (st == STATUS_OK) st = calibrate_gate(&c, &section, &e);
    if (st == STATUS_OK && config.out_path != NULL) st = write_section(&c, &section, &e);
    if (st == STATUS_OK && config.json)
        print_json(&section);
    else if (st == STATUS_OK)
        print_text(&section);
    for (uint32_t i = 0; i < c.n_documents; i++) free(c.documents[i].ids);
    free(c.documents);
    free(c.step_memory);
    engine_close(c.engine);
    return st == STATUS_OK ? 0 : usage_fail("calibrate", &e);
}
