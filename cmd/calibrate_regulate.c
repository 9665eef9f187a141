#include "cmd/calibrate_regulate.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/diagnose_stats.h"
#include "cmd/usage.h"
#include "cmd/vocabulary.h"
#include "core/json_writer.h"
#include "models/chat_template.h"
#include "models/regulation.h"
#include "models/tokenizer.h"

enum { MAX_ROWS = 24576, CHUNK = 128, LEAST_TEXTS = 40, MAX_FILE_BYTES = 1 << 28 };
enum { PART_LEARN, PART_STOP, PART_APART };

struct regulate {
    const struct config *config;
    struct engine *engine;
    struct tokenizer *tokenizer;
    struct chat_template *chat_template; /* NULL: the model has none */
    struct step *step;
    void *step_memory;
    struct vocabulary vocabulary;
    uint32_t n_rows, n_texts;
    struct regulation_row *rows; /* [MAX_ROWS] */
    float *states;               /* [MAX_ROWS, d_model] */
    uint8_t *part;               /* [MAX_ROWS] */
    float *weight;               /* [2, d_model] */
    float *logits;               /* [CHUNK, n_vocab] */
    struct regulation_head head;
};

/* What a setting does on the texts that were kept apart. */
struct outcome {
    double T, top_p;   /* means */
    double likelihood; /* of a token, nats */
    double inside;     /* share of tokens in the nucleus with a hard edge */
};
struct result {
    uint32_t n_texts, n_tokens;          /* kept apart */
    struct outcome plain, fixed, head;   /* T 1 and top_p 1; the best pair; the head */
    double low_T, high_T, low_p, high_p; /* the head's, 5 % and 95 % */
    struct interval gain;                /* the head's likelihood over the best pair's, a token */
};

static enum status no_memory(struct error *e) {
    return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the texts");
}

static void progress(const char *what, uint32_t done, uint32_t all) {
    if (!isatty(STDERR_FILENO)) return;
    fprintf(stderr, "\r%s %u of %u%s", what, done, all, done == all ? "\r\033[K" : "");
    fflush(stderr);
}

/* ---- texts ---- */

static enum status encode_chat(struct regulate *g, const json_t *prompt, struct token_list *ids,
                               struct error *e) {
    json_t *chat = json_pack("{s:[{s:s, s:O}]}", "messages", "role", "user", "content", prompt);
    char *json = json_dumps(chat, JSON_COMPACT);
    json_decref(chat);
    if (json == NULL) return no_memory(e);
    struct rendered text;
    const struct chat_input in = {.json = json, .len = strlen(json)};
    enum status st = chat_template_render(g->chat_template, &in, NULL, &text, e);
    if (st == STATUS_OK) {
        st = tokenizer_encode_spans(g->tokenizer, NULL, text.text, text.len, text.spans,
                                    text.n_spans, TOKENIZE_SPECIAL, ids, e);
        rendered_free(&text);
    }
    free(json);
    return st;
}

/* A text's tokens, the first `*n_given` of which are not scored. */
static enum status encode_text(struct regulate *g, const json_t *row, struct token_list *ids,
                               uint32_t *n_given, uint32_t number, struct error *e) {
    const json_t *prompt = json_object_get(row, "prompt"), *answer = json_object_get(row, "answer");
    const bool pair = json_is_string(prompt) && json_is_string(answer);
    const json_t *text = pair ? answer : json_object_get(row, "text");
    if (!pair && text == NULL) text = json_object_get(row, "document");
    if (!json_is_string(text))
        return error_set(e, STATUS_INVALID, "file",
                         "line %u has neither a prompt and an answer nor a text", number);
    enum status st = STATUS_OK;
    if (pair && g->chat_template != NULL)
        st = encode_chat(g, prompt, ids, e);
    else if (pair)
        st = tokenizer_encode(g->tokenizer, NULL, json_string_value(prompt),
                              json_string_length(prompt), TOKENIZE_BOS, ids, e);
    *n_given = pair ? (uint32_t)ids->n : 1;
    if (st == STATUS_OK)
        st = tokenizer_encode(g->tokenizer, NULL, json_string_value(text), json_string_length(text),
                              pair ? 0 : TOKENIZE_BOS, ids, e);
    return st;
}

/* ---- rows ---- */

static void gather_tile(void *arg, const float *logits, uint32_t first, uint32_t n) {
    const struct regulate *g = arg;
    for (uint32_t r = 0; r < CHUNK; r++)
        memcpy(g->logits + (size_t)r * g->engine->plan->n_vocab + first,
               logits + (size_t)r * VOCABULARY_TILE, n * sizeof *logits);
}

static void fill_row(const struct regulate *g, uint32_t r, uint32_t target,
                     struct regulation_row *row) {
    const uint32_t n = g->engine->plan->n_vocab;
    const float *z = g->logits + (size_t)r * n;
    float max = z[0];
    for (uint32_t i = 1; i < n; i++) max = z[i] > max ? z[i] : max;
    *row = (struct regulation_row){.target = max - z[target], .text = g->n_texts};
    for (uint32_t i = 0; i < n; i++) regulation_row_add(row, max - z[i]);
    regulation_row_finish(row);
}

/* The states of n tokens from position `at` on; those from `scored` on become rows. */
static enum status run_chunk(struct regulate *g, const struct engine_sequence *q,
                             const uint32_t *ids, uint32_t at, uint32_t n, uint32_t scored,
                             struct error *e) {
    const uint32_t d = g->engine->plan->d_model;
    const uint32_t skip = scored > at ? (scored - at < n ? scored - at : n) : 0, kept = n - skip;
    step_clear(g->step, g->engine->plan->n_layers);
    engine_add_span(g->engine, g->step, SPAN_PREFILL, q, at, ids + at, n);
    float *states = g->states + (size_t)g->n_rows * d;
    if (kept > 0)
        g->step->taps[g->step->n_taps++] = (struct tap){.layer = g->engine->plan->n_layers,
                                                        .first_row = skip,
                                                        .n_rows = kept,
                                                        .mode = TAP_KEEP,
                                                        .out = states};
    const enum status st = engine_run(g->engine, g->step, e);
    if (st != STATUS_OK || kept == 0) return st;
    for (size_t i = 0; i < (size_t)kept * d; i++)
        if (!isfinite(states[i]))
            return error_set(e, STATUS_BAD_NUMBER, NULL, "a state is not finite");
    vocabulary_walk(&g->vocabulary, states, kept, gather_tile, g);
    static const uint8_t parts[20] = {0, 0, 2, 0, 1, 0, 0, 2, 0, 0, 1, 0, 2, 0, 0, 2, 0, 1, 0, 2};
    for (uint32_t r = 0; r < kept; r++) {
        fill_row(g, r, ids[at + skip + r + 1], &g->rows[g->n_rows + r]);
        g->part[g->n_rows + r] = parts[g->n_texts % 20];
    }
    g->n_rows += kept;
    return STATUS_OK;
}

/* Rows of one text, as many as -n says; texts that do not fit are left out. */
static enum status add_text(struct regulate *g, const struct token_list *ids, uint32_t n_given,
                            struct error *e) {
    if (n_given == 0) n_given = 1;
    if (ids->n <= n_given || n_given >= g->engine->n_ctx) return STATUS_OK;
    uint64_t n = n_given + (uint64_t)g->config->n_predict;
    if (n > ids->n) n = ids->n;
    if (n > g->engine->n_ctx) n = g->engine->n_ctx;
    if (g->n_rows + n - n_given > MAX_ROWS) return STATUS_OK;
    struct engine_sequence q;
    const uint32_t rows = (uint32_t)n - 1; /* the last token only has to be foretold */
    enum status st = engine_sequence_open(g->engine, rows, &q, e);
    for (uint32_t at = 0; st == STATUS_OK && at < rows; at += CHUNK) {
        const uint32_t some = rows - at < CHUNK ? rows - at : CHUNK;
        st = run_chunk(g, &q, ids->ids, at, some, n_given - 1, e);
    }
    engine_sequence_close(g->engine, &q);
    g->n_texts++;
    return st;
}

static enum status add_line(struct regulate *g, const char *line, size_t len, uint32_t number,
                            struct error *e) {
    json_t *row = json_loadb(line, len, 0, NULL);
    struct token_list ids = {0};
    uint32_t n_given = 0;
    enum status st = encode_text(g, row, &ids, &n_given, number, e);
    if (st == STATUS_OK) st = add_text(g, &ids, n_given, e);
    token_list_free(&ids);
    json_decref(row);
    return st;
}

static enum status read_texts(struct regulate *g, struct error *e) {
    const char *path = g->config->file_path;
    FILE *f = fopen(path, "r");
    if (f == NULL) return error_set(e, STATUS_NOT_FOUND, "file", "%s cannot be opened", path);
    char *text;
    size_t len;
    enum status st = usage_read_all(f, MAX_FILE_BYTES, &text, &len, e);
    fclose(f);
    if (st != STATUS_OK) return st;
    uint32_t number = 0;
    for (size_t at = 0; at < len && st == STATUS_OK && g->n_rows < MAX_ROWS - 512;) {
        const char *end = memchr(text + at, '\n', len - at);
        const size_t n = end != NULL ? (size_t)(end - text) - at : len - at;
        number++;
        if (n > 0) st = add_line(g, text + at, n, number, e);
        progress("tokens", g->n_rows, MAX_ROWS);
        at += n + 1;
    }
    if (isatty(STDERR_FILENO)) fputs("\r\033[K", stderr);
    free(text);
    if (st == STATUS_OK && g->n_texts < LEAST_TEXTS)
        st = error_set(e, STATUS_INVALID, "file", "%s holds %u texts that fit; %d are needed", path,
                       g->n_texts, LEAST_TEXTS);
    return st;
}

/* ---- what it is worth ---- */

/* The setting of a row: the pair, or the head's. */
struct setting {
    const struct regulate *g;
    bool by_head;
    double T, top_p;
};

static void say(const struct setting *s, uint32_t row, double *T, double *top_p) {
    *T = s->T, *top_p = s->top_p;
    if (!s->by_head) return;
    const uint32_t d = s->g->engine->plan->d_model;
    float v[2];
    regulation_head_run(&s->g->head, s->g->states + (size_t)row * d, d, v);
    *T = (double)v[0], *top_p = (double)v[1];
}

/* On the part kept apart; by_text[n_texts] (NULL: not wanted) gets the sums. */
static struct outcome try(const struct setting *s, double *by_text) {
    const struct regulate *g = s->g;
    struct outcome o = {0};
    uint32_t n = 0;
    for (uint32_t r = 0; r < g->n_rows; r++) {
        if (g->part[r] != PART_APART) continue;
        double T, top_p;
        say(s, r, &T, &top_p);
        const double l = regulation_likelihood(&g->rows[r], T, top_p, NULL);
        if (by_text != NULL) by_text[g->rows[r].text] += l;
        o.likelihood += l;
        o.inside += regulation_inside(&g->rows[r], T, top_p);
        o.T += T, o.top_p += top_p;
        n++;
    }
    o.likelihood /= n, o.inside /= n, o.T /= n, o.top_p /= n;
    return o;
}

static struct setting best_pair(const struct regulate *g) {
    struct setting best = {.g = g};
    double most = -INFINITY;
    for (uint32_t i = 0; i < REGULATION_GRID; i++) {
        struct setting s = {.g = g};
        regulation_grid(i, &s.T, &s.top_p);
        const double l = try(&s, NULL).likelihood;
        if (l > most) most = l, best = s;
        progress("pairs", i + 1, REGULATION_GRID);
    }
    return best;
}

/* The middle nine tenths of what the head says. */
static void find_ranges(const struct regulate *g, struct result *r, double *work) {
    const struct setting s = {.g = g, .by_head = true};
    for (int k = 0; k < 2; k++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < g->n_rows; i++) {
            double v[2];
            if (g->part[i] != PART_APART) continue;
            say(&s, i, &v[0], &v[1]);
            work[n++] = v[k];
        }
        sort_numbers(work, n);
        *(k == 0 ? &r->low_T : &r->low_p) = quantile(work, n, 0.05);
        *(k == 0 ? &r->high_T : &r->high_p) = quantile(work, n, 0.95);
    }
}

static enum status judge(const struct regulate *g, struct result *r, struct error *e) {
    *r = (struct result){0};
    double *fixed = calloc(2 * (size_t)g->n_texts, sizeof *fixed), *own = fixed + g->n_texts;
    double *work = calloc(g->n_rows, sizeof *work);
    if (fixed == NULL || work == NULL) {
        free(fixed);
        free(work);
        return no_memory(e);
    }
    const struct setting pair = best_pair(g);
    r->plain = try(&(struct setting){.g = g, .T = 1, .top_p = 1}, NULL);
    r->fixed = try(&pair, fixed);
    r->head = try(&(struct setting){.g = g, .by_head = true}, own);
    bool *seen = calloc(g->n_texts, sizeof *seen);
    for (uint32_t i = 0; seen != NULL && i < g->n_rows; i++)
        if (g->part[i] == PART_APART) seen[g->rows[i].text] = true, r->n_tokens++;
    for (uint32_t i = 0; seen != NULL && i < g->n_texts; i++)
        if (seen[i]) work[r->n_texts++] = own[i] - fixed[i];
    /* A text counts by its tokens: the mean over texts is that over tokens. */
    for (uint32_t i = 0; i < r->n_texts; i++) work[i] *= (double)r->n_texts / r->n_tokens;
    if (r->n_texts > 0) {
        r->gain = mean_interval(work, r->n_texts);
        find_ranges(g, r, work);
    }
    free(seen);
    free(fixed);
    free(work);
    return r->n_texts > 0 ? STATUS_OK : no_memory(e);
}

/* ---- the report ---- */

static void key_double(struct json_writer *j, const char *key, double v) {
    json_write_key(j, key);
    json_write_double(j, v);
}

static void key_outcome(struct json_writer *j, const char *key, const struct outcome *o) {
    json_write_key(j, key);
    json_write_object(j);
    key_double(j, "temperature", o->T);
    key_double(j, "top_p", o->top_p);
    key_double(j, "log_likelihood", o->likelihood);
    key_double(j, "inside_nucleus", o->inside);
    json_write_object_end(j);
}

static void write_report(struct buffer *b, const struct regulate *g, const struct result *r) {
    struct json_writer j;
    json_write_begin(&j, b);
    json_write_object(&j);
    json_write_key(&j, "texts"), json_write_uint(&j, g->n_texts);
    json_write_key(&j, "tokens"), json_write_uint(&j, g->n_rows);
    json_write_key(&j, "texts_kept_apart"), json_write_uint(&j, r->n_texts);
    json_write_key(&j, "tokens_kept_apart"), json_write_uint(&j, r->n_tokens);
    key_outcome(&j, "plain", &r->plain);
    key_outcome(&j, "best_fixed_pair", &r->fixed);
    key_outcome(&j, "head", &r->head);
    key_double(&j, "temperature_5_percent", r->low_T);
    key_double(&j, "temperature_95_percent", r->high_T);
    key_double(&j, "top_p_5_percent", r->low_p);
    key_double(&j, "top_p_95_percent", r->high_p);
    key_double(&j, "gain", r->gain.value);
    key_double(&j, "gain_low", r->gain.low);
    key_double(&j, "gain_high", r->gain.high);
    json_write_object_end(&j);
}

static void print_outcome(const char *name, const struct outcome *o) {
    printf("%-22s %11.3f %7.3f %16.4f %14.4f\n", name, o->T, o->top_p, o->likelihood, o->inside);
}

static void print_text(const struct regulate *g, const struct result *r) {
    printf("%u texts, %u tokens; kept apart %u texts, %u tokens\n", g->n_texts, g->n_rows,
           r->n_texts, r->n_tokens);
    printf("%-22s %11s %7s %16s %14s\n", "", "temperature", "top_p", "likelihood, nats",
           "inside nucleus");
    print_outcome("1 and 1", &r->plain);
    print_outcome("best fixed pair", &r->fixed);
    print_outcome("the head, on average", &r->head);
    printf("the head says temperatures of %.2f to %.2f and top_p of %.2f to %.2f (5 and 95 %%)\n",
           r->low_T, r->high_T, r->low_p, r->high_p);
    printf("gain over the best fixed pair: %+.4f nats a token (%+.4f to %+.4f)\n", r->gain.value,
           r->gain.low, r->gain.high);
}

static enum status write_section(const struct regulate *g, const char *report, struct error *e) {
    static const uint32_t kinds[] = {SIDECAR_REGULATION};
    uint64_t digest[2];
    struct sidecar_section section;
    gguf_digest(model_gguf(g->engine->model), digest);
    enum status st = regulation_write(&g->head, g->engine->plan->d_model, report, &section, e);
    if (st != STATUS_OK) return st;
    st = sidecar_update(g->config->out_path, digest, kinds, 1, section.key, &section, 1, e);
    free((void *)(uintptr_t)section.data);
    return st;
}

static enum status tell(const struct regulate *g, struct error *e) {
    struct result r;
    enum status st = judge(g, &r, e);
    if (st != STATUS_OK) return st;
    struct buffer b;
    buffer_init(&b, 0);
    write_report(&b, g, &r);
    const char *report = buffer_cstr(&b);
    if (report == NULL) st = no_memory(e);
    if (st == STATUS_OK && g->config->json)
        puts(report);
    else if (st == STATUS_OK)
        print_text(g, &r);
    if (st == STATUS_OK && !(r.gain.low > 0))
        st = error_set(e, STATUS_INVALID, NULL,
                       "the head is no better than the fixed pair of temperature %.1f and top_p "
                       "%.2f: nothing was written",
                       r.fixed.T, r.fixed.top_p);
    if (st == STATUS_OK && g->config->out_path != NULL) st = write_section(g, report, e);
    buffer_free(&b);
    return st;
}

/* ---- the command ---- */

static enum status open_all(struct regulate *g, struct error *e) {
    struct engine_options o = engine_defaults(g->config);
    o.n_ctx = 2048;
    o.limits.max_taps = 1;
    enum status st = engine_open(&o, &g->engine, e);
    if (st != STATUS_OK) return st;
    const struct plan *p = g->engine->plan;
    st = tokenizer_load(model_gguf(g->engine->model), &g->tokenizer, e);
    if (st == STATUS_OK) {
        st = chat_template_load(model_gguf(g->engine->model), &g->chat_template, e);
        if (st == STATUS_NOT_FOUND) st = STATUS_OK;
    }
    if (st == STATUS_OK) st = vocabulary_open(&g->vocabulary, g->engine, CHUNK, e);
    if (st != STATUS_OK) return st;
    g->rows = malloc(MAX_ROWS * sizeof *g->rows);
    g->states = malloc((size_t)MAX_ROWS * p->d_model * sizeof *g->states);
    g->part = malloc(MAX_ROWS);
    g->weight = malloc(2 * (size_t)p->d_model * sizeof *g->weight);
    g->logits = malloc((size_t)CHUNK * p->n_vocab * sizeof *g->logits);
    if (g->logits == NULL || g->rows == NULL || g->states == NULL || g->part == NULL ||
        g->weight == NULL ||
        posix_memalign(&g->step_memory, 64, step_footprint(&g->engine->limits)) != 0)
        return no_memory(e);
    g->step = step_init(g->step_memory, &g->engine->limits);
    return STATUS_OK;
}

static void close_all(struct regulate *g) {
    free(g->rows);
    free(g->states);
    free(g->part);
    free(g->weight);
    free(g->logits);
    free(g->step_memory);
    vocabulary_close(&g->vocabulary);
    chat_template_free(g->chat_template);
    tokenizer_free(g->tokenizer);
    engine_close(g->engine);
}

static void fit_progress(void *arg, uint32_t done, uint32_t all) {
    (void)arg;
    progress("passes", done, all);
}

int calibrate_regulate(const struct config *config) {
    struct error e = {0};
    struct regulate g = {.config = config};
    enum status st = open_all(&g, &e);
    if (st == STATUS_OK) st = read_texts(&g, &e);
    if (st == STATUS_OK) {
        const struct regulation_fit fit = {.d_model = g.engine->plan->d_model,
                                           .n_rows = g.n_rows,
                                           .rows = g.rows,
                                           .states = g.states,
                                           .part = g.part,
                                           .progress = fit_progress};
        st = regulation_fit(&fit, &g.head, g.weight, &e);
        if (isatty(STDERR_FILENO)) fputs("\r\033[K", stderr);
    }
    if (st == STATUS_OK) st = tell(&g, &e);
    close_all(&g);
    return st == STATUS_OK ? 0 : usage_fail("calibrate", &e);
}
