#include "cmd/calibrate_monitor.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/calibrate_monitor_rule.h"
#include "cmd/engine.h"
#include "cmd/usage.h"
#include "core/buffer.h"
#include "core/check.h"
#include "core/json_writer.h"
#include "core/rng.h"
#include "models/chat_template.h"
#include "models/monitor_model.h"
#include "models/sidecar.h"
#include "models/tokenizer.h"
#include "models/user_tokens.h"
#include "sched/monitor.h"

enum {
    MAX_ANSWERS = 4096,
    MAX_FILE_BYTES = 1 << 28,
    RECORD_ROWS = 256,
    LEAST_TOKENS = 40, /* of an answer that a splice goes into, or is taken from */
    SPLICE_FROM = 20,  /* first place for a splice */
    SPLICE_TOKENS = 32,
    N_DRAWS = 4, /* ways to draw */
};

struct answer {
    uint32_t *ids; /* [n] */
    uint32_t n_prompt, n;
    struct token_range user;
    float *user_sum;        /* [d] */
    float *states;          /* [n - n_prompt, d]: the last one's is not computed */
    struct output *outputs; /* [n - n_prompt], that drew the answer's tokens */
};

struct calibration {
    const struct config *config;
    struct engine *engine;
    struct tokenizer *tokenizer;
    struct chat_template *chat_template;
    struct step *step;
    void *step_memory, *monitor_memory;
    float *states; /* [RECORD_ROWS, d] scratch */
    struct answer *answers;
    uint32_t n_answers;
    struct monitor_text *texts; /* [2 n_answers] */
    uint32_t n_texts;
    struct monitor monitor;
    struct monitor_model model;
    float *mean;
    uint64_t n_rows;
    struct monitor_scores scores;
};

static enum status no_memory(struct error *e) {
    return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the answers");
}

static void progress(const char *what, uint32_t done, uint32_t all) {
    if (!isatty(STDERR_FILENO)) return;
    fprintf(stderr, "\r%s %u of %u%s", what, done, all, done == all ? "\r\033[K" : "");
    fflush(stderr);
}

/* ---- prompts ---- */

static enum status encode_prompt(struct calibration *c, const char *prompt, struct answer *a,
                                 struct error *e) {
    struct token_list ids = {0};
    enum status st;
    if (c->chat_template == NULL) {
        st = tokenizer_encode(c->tokenizer, NULL, prompt, strlen(prompt), TOKENIZE_BOS, &ids, e);
        a->user = (struct token_range){0, (uint32_t)ids.n};
    } else {
        struct buffer chat;
        struct json_writer j;
        struct rendered text;
        buffer_init(&chat, 0);
        json_write_begin(&j, &chat);
        json_write_object(&j), json_write_key(&j, "messages"), json_write_array(&j);
        json_write_object(&j), json_write_key(&j, "role"), json_write_string(&j, "user");
        json_write_key(&j, "content"), json_write_string(&j, prompt);
        json_write_object_end(&j), json_write_array_end(&j), json_write_object_end(&j);
        const struct chat_input in = {.json = chat.data, .len = chat.len};
        st = chat_template_render(c->chat_template, &in, NULL, &text, e);
        if (st == STATUS_OK) {
            st = tokenizer_encode_spans(c->tokenizer, NULL, text.text, text.len, text.spans,
                                        text.n_spans, TOKENIZE_SPECIAL, &ids, e);
            if (st == STATUS_OK)
                a->user =
                    user_tokens(c->tokenizer, ids.ids, ids.n, text.len, text.spans, text.n_spans);
            rendered_free(&text);
        }
        buffer_free(&chat);
    }
    if (a->user.first == 0 && a->user.end > 0) a->user.first = 1;
    const uint32_t room = c->config->n_predict;
    if (st == STATUS_OK && ids.n > 0 && ids.n + room <= c->engine->n_ctx &&
        a->user.first < a->user.end) {
        a->ids = malloc((ids.n + room) * sizeof *a->ids);
        if (a->ids == NULL) st = no_memory(e);
        if (a->ids != NULL) memcpy(a->ids, ids.ids, ids.n * sizeof *a->ids);
        a->n = a->n_prompt = (uint32_t)ids.n;
    }
    token_list_free(&ids);
    return st;
}

/* Prompts that do not fit are left out. */
static enum status add_prompt(struct calibration *c, const char *line, size_t len, uint32_t number,
                              struct error *e) {
    json_t *row = json_loadb(line, len, 0, NULL);
    const char *text = json_string_value(json_object_get(row, "prompt"));
    if (text == NULL) text = json_string_value(json_object_get(row, "text"));
    enum status st = STATUS_OK;
    struct answer a = {0};
    if (text == NULL)
        st = error_set(e, STATUS_INVALID, "file", "line %u is no object with a prompt", number);
    else
        st = encode_prompt(c, text, &a, e);
    json_decref(row);
    if (st == STATUS_OK && a.ids != NULL) c->answers[c->n_answers++] = a;
    return st;
}

static enum status read_prompts(struct calibration *c, struct error *e) {
    FILE *f = fopen(c->config->file_path, "r");
    if (f == NULL)
        return error_set(e, STATUS_NOT_FOUND, "file", "%s cannot be opened", c->config->file_path);
    char *text;
    size_t len;
    enum status st = usage_read_all(f, MAX_FILE_BYTES, &text, &len, e);
    fclose(f);
    if (st != STATUS_OK) return st;
    uint32_t number = 0;
    for (size_t at = 0; at < len && st == STATUS_OK && c->n_answers < MAX_ANSWERS;) {
        const char *end = memchr(text + at, '\n', len - at);
        const size_t n = end != NULL ? (size_t)(end - text) - at : len - at;
        number++;
        if (n > 0) st = add_prompt(c, text + at, n, number, e);
        at += n + 1;
    }
    free(text);
    if (st == STATUS_OK && c->n_answers < 8)
        st = error_set(e, STATUS_INVALID, "file", "%s holds too few prompts that fit",
                       c->config->file_path);
    return st;
}

/* ---- answers ---- */

struct place {
    uint32_t answer, computed; /* answer UINT32_MAX: free */
    struct engine_sequence sequence;
};

/* DESIGN.md 5: qa, reasoning, open; and the API's own default. */
static void as_requests_draw(uint32_t answer, struct sample_spec *sample) {
    static const float temperatures[N_DRAWS] = {0.2f, 0.5f, MONITOR_COOL, MONITOR_HOT};
    static const float top_ps[N_DRAWS] = {0.8f, 0.9f, 0.95f, 1.0f};
    sample->temperature = temperatures[answer % N_DRAWS];
    sample->top_p = top_ps[answer % N_DRAWS];
}

static void add_place(struct calibration *c, struct place *p, uint32_t slot) {
    struct answer *a = &c->answers[p->answer];
    const uint32_t room = c->step->limits.max_rows - c->step->n_rows, left = a->n - p->computed;
    const uint32_t rows = left < room ? left : room;
    if (rows == 0) return;
    engine_add_span(c->engine, c->step, left == 1 ? SPAN_DECODE : SPAN_PREFILL, &p->sequence,
                    p->computed, a->ids + p->computed, rows)
        ->slot = slot;
    p->computed += rows;
    if (p->computed < a->n) return;
    struct sample_spec *sample = &step_add_output(c->step, c->step->n_rows - 1)->sample;
    sample->seed = p->answer;
    as_requests_draw(p->answer, sample);
}

static enum status answer_step(struct calibration *c, struct place *places, uint32_t n_places,
                               uint32_t *n_done, struct error *e) {
    uint32_t owner[256];
    step_clear(c->step, c->engine->plan->n_layers);
    for (uint32_t i = 0; i < n_places; i++) {
        const uint32_t before = c->step->n_outputs;
        if (places[i].answer != UINT32_MAX) add_place(c, &places[i], i);
        if (c->step->n_outputs > before) owner[before] = i;
    }
    const enum status st = engine_run(c->engine, c->step, e);
    for (uint32_t o = 0; st == STATUS_OK && o < c->step->n_outputs; o++) {
        struct place *p = &places[owner[o]];
        struct answer *a = &c->answers[p->answer];
        const uint32_t id = c->step->outputs[o].token;
        a->ids[a->n++] = id;
        if (!tokenizer_is_eog(c->tokenizer, id) && a->n - a->n_prompt < c->config->n_predict)
            continue;
        engine_sequence_close(c->engine, &p->sequence);
        p->answer = UINT32_MAX;
        ++*n_done;
    }
    return st;
}

static enum status answer_all(struct calibration *c, struct error *e) {
    const uint32_t n_places = c->config->tune_batch;
    CHECK(n_places <= 256);
    struct place *places = calloc(n_places, sizeof *places);
    if (places == NULL) return no_memory(e);
    for (uint32_t i = 0; i < n_places; i++) places[i].answer = UINT32_MAX;
    enum status st = STATUS_OK;
    uint32_t n_done = 0, next = 0;
    while (st == STATUS_OK && n_done < c->n_answers) {
        for (uint32_t i = 0; st == STATUS_OK && i < n_places && next < c->n_answers; i++) {
            if (places[i].answer != UINT32_MAX) continue;
            st = engine_sequence_open(c->engine, c->answers[next].n + c->config->n_predict,
                                      &places[i].sequence, e);
            if (st == STATUS_OK) places[i].answer = next++;
            places[i].computed = 0;
        }
        if (st == STATUS_OK) st = answer_step(c, places, n_places, &n_done, e);
        progress("answers", n_done, c->n_answers);
    }
    for (uint32_t i = 0; i < n_places; i++)
        if (places[i].answer != UINT32_MAX) engine_sequence_close(c->engine, &places[i].sequence);
    free(places);
    return st;
}

/* ---- records ---- */

static void keep_rows(struct calibration *c, struct answer *a, uint32_t at, uint32_t rows) {
    const uint32_t d = c->model.d_model;
    for (uint32_t r = 0; r < rows; r++) {
        const float *state = c->states + (size_t)r * d;
        const uint32_t position = at + r;
        if (position >= a->user.first && position < a->user.end)
            for (uint32_t i = 0; i < d; i++) a->user_sum[i] = a->user_sum[i] + state[i];
        if (position >= a->n_prompt)
            memcpy(a->states + (size_t)(position - a->n_prompt) * d, state, d * sizeof *state);
    }
    for (uint32_t o = 0; o < c->step->n_outputs; o++)
        a->outputs[at + c->step->outputs[o].row + 1 - a->n_prompt] = c->step->outputs[o];
}

/* Reads a text as it stands. */
static enum status record(struct calibration *c, uint32_t index, struct answer *a,
                          struct error *e) {
    const uint32_t d = c->model.d_model, n_answer = a->n - a->n_prompt;
    a->user_sum = calloc(d, sizeof *a->user_sum);
    a->states = calloc((size_t)n_answer * d, sizeof *a->states);
    a->outputs = calloc(n_answer, sizeof *a->outputs);
    if (a->user_sum == NULL || a->states == NULL || a->outputs == NULL) return no_memory(e);
    struct engine_sequence seq;
    enum status st = engine_sequence_open(c->engine, a->n - 1, &seq, e);
    for (uint32_t at = 0, rows; st == STATUS_OK && at < a->n - 1; at += rows) {
        rows = a->n - 1 - at < RECORD_ROWS ? a->n - 1 - at : RECORD_ROWS;
        step_clear(c->step, c->engine->plan->n_layers);
        engine_add_span(c->engine, c->step, SPAN_PREFILL, &seq, at, a->ids + at, rows);
        for (uint32_t r = 0; r < rows; r++)
            if (at + r + 1 >= a->n_prompt) {
                struct sample_spec *sample = &step_add_output(c->step, r)->sample;
                as_requests_draw(index, sample);
                sample->target = a->ids[at + r + 1];
            }
        c->step->taps[c->step->n_taps++] = (struct tap){.layer = c->model.layer - 1,
                                                        .n_rows = rows,
                                                        .mode = TAP_KEEP,
                                                        .normalised = true,
                                                        .out = c->states};
        st = engine_run(c->engine, c->step, e);
        if (st == STATUS_OK) keep_rows(c, a, at, rows);
    }
    engine_sequence_close(c->engine, &seq);
    for (uint32_t i = 0; st == STATUS_OK && i < n_answer; i++)
        if (a->outputs[i].bad) st = error_set(e, STATUS_BAD_NUMBER, NULL, "a logit is not finite");
    return st;
}

static void forget(struct answer *a) {
    free(a->user_sum);
    free(a->states);
    free(a->outputs);
    a->user_sum = a->states = NULL;
    a->outputs = NULL;
}

/* Shows the text to a monitor. Returns the draw at which it triggered, UINT32_MAX if it did not;
 * draws (NULL: not wanted) gets what it saw. */
static uint32_t show(struct calibration *c, const struct answer *a, enum rollback_rule rule,
                     struct monitor_draw_record *draws) {
    const uint32_t d = c->model.d_model;
    struct rollback how = ROLLBACK_DEFAULT;
    how.rule = rule;
    how.max = 0; /* the first trigger trips the breaker, and withdraws nothing */
    monitor_start(&c->monitor, &c->model, &how, a->n_prompt);
    monitor_prompt(&c->monitor, a->user_sum, a->user.end - a->user.first);
    for (uint32_t i = 0; i < a->n - a->n_prompt; i++) {
        struct output o = a->outputs[i];
        const struct monitor_verdict v = monitor_draw(&c->monitor, a->n_prompt + i, &o);
        const struct monitor_point *p = &c->monitor.points[(a->n_prompt + i) % MONITOR_POINTS];
        if (draws != NULL) {
            draws[i].has_cosine = !isnan(p->cosine);
            draws[i].surprise = p->surprise;
            memcpy(draws[i].features, p->features, sizeof draws[i].features);
        }
        if (v.tripped) return i;
        monitor_state(&c->monitor, a->n_prompt + i, a->states + (size_t)i * d);
    }
    return UINT32_MAX;
}

/* The means, and what is usual before an answer has shown its own. */
static void find_means(struct calibration *c) {
    const uint32_t d = c->model.d_model;
    double *sum = calloc(d, sizeof *sum), entropy = 0, squares = 0;
    uint64_t n_entropies = 0;
    CHECK(sum != NULL);
    for (uint32_t i = 0; i < c->n_answers; i++) {
        const struct answer *a = &c->answers[i];
        for (uint32_t k = 0; k < d; k++) sum[k] += (double)a->user_sum[k];
        for (uint32_t r = 0; r + 1 < a->n - a->n_prompt; r++)
            for (uint32_t k = 0; k < d; k++) sum[k] += (double)a->states[(size_t)r * d + k];
        c->n_rows += a->user.end - a->user.first + (a->n - a->n_prompt - 1);
        for (uint32_t r = 0; r < a->n - a->n_prompt; r++) {
            entropy += (double)a->outputs[r].entropy;
            squares += (double)a->outputs[r].entropy * (double)a->outputs[r].entropy;
            n_entropies++;
        }
    }
    for (uint32_t k = 0; k < d; k++) c->mean[k] = (float)(sum[k] / (double)c->n_rows);
    free(sum);
    struct monitor_rule *r = &c->model.rule;
    const double mean = entropy / (double)n_entropies;
    r->entropy_mean = (float)mean;
    r->entropy_deviation = (float)sqrt(squares / (double)n_entropies - mean * mean + 1e-6);
    c->model.mean = c->mean;
    double cosine = 0, cosine_squares = 0;
    uint64_t n = 0;
    struct monitor_draw_record *draws = calloc(c->config->n_predict, sizeof *draws);
    CHECK(draws != NULL);
    r->cosine_deviation = 1;
    r->threshold = r->threshold_hot = r->hold = r->surprise = __builtin_inff();
    r->clear_tokens = MONITOR_CLEAR_TOKENS;
    for (uint32_t i = 0; i < c->n_answers; i++) {
        (void)show(c, &c->answers[i], ROLLBACK_AUTO, draws);
        for (uint32_t k = 0; k < c->answers[i].n - c->answers[i].n_prompt; k++) {
            if (!draws[k].has_cosine) continue;
            cosine += (double)draws[k].features[1];
            cosine_squares += (double)draws[k].features[1] * (double)draws[k].features[1];
            n++;
        }
    }
    free(draws);
    const double m = n > 0 ? cosine / (double)n : 0;
    r->cosine_mean = (float)m;
    r->cosine_deviation = n > 0 ? (float)sqrt(cosine_squares / (double)n - m * m + 1e-6) : 1;
}

static enum status keep_text(struct calibration *c, const struct answer *a, uint32_t answer,
                             uint32_t drift, struct error *e) {
    struct monitor_text *t = &c->texts[c->n_texts];
    *t = (struct monitor_text){.n = a->n - a->n_prompt,
                               .drift = drift,
                               .hot = answer % N_DRAWS == N_DRAWS - 1,
                               .half = answer / N_DRAWS % 2};
    t->draws = calloc(t->n, sizeof *t->draws);
    if (t->draws == NULL) return no_memory(e);
    c->n_texts++;
    (void)show(c, a, ROLLBACK_AUTO, t->draws);
    const uint32_t at = show(c, a, ROLLBACK_FIXED, NULL);
    t->fixed_caught = drift == UINT32_MAX
                          ? at != UINT32_MAX
                          : at != UINT32_MAX && at >= drift && at < drift + MONITOR_CAUGHT_WITHIN;
    return STATUS_OK;
}

static uint32_t below(uint32_t answer, uint32_t what, uint32_t n) {
    return (uint32_t)(rng_draw(1, answer, what, RNG_SEED, 0) % n);
}

/* Answer i up to a place of its own, then another's from its beginning on. */
static enum status splice(struct calibration *c, uint32_t i, struct error *e) {
    const struct answer *a = &c->answers[i], *b = a;
    const uint32_t n = a->n - a->n_prompt;
    if (n < LEAST_TOKENS) return STATUS_OK;
    for (uint32_t tries = 0; tries < 64 && b == a; tries++) {
        const struct answer *x = &c->answers[below(i, 1 + tries, c->n_answers)];
        if (x->n - x->n_prompt >= LEAST_TOKENS) b = x;
    }
    if (b == a) return STATUS_OK;
    const uint32_t at = SPLICE_FROM + below(i, 0, n - SPLICE_FROM);
    struct answer s = {.n_prompt = a->n_prompt, .user = a->user, .n = a->n_prompt + at};
    s.ids = malloc((s.n + SPLICE_TOKENS) * sizeof *s.ids);
    if (s.ids == NULL) return no_memory(e);
    memcpy(s.ids, a->ids, s.n * sizeof *s.ids);
    memcpy(s.ids + s.n, b->ids + b->n_prompt, SPLICE_TOKENS * sizeof *s.ids);
    s.n += SPLICE_TOKENS;
    enum status st = record(c, i, &s, e);
    if (st == STATUS_OK) st = keep_text(c, &s, i, at, e);
    forget(&s);
    free(s.ids);
    return st;
}

/* ---- the command ---- */

static void write_report(const struct calibration *c, struct buffer *out) {
    static const char *const names[MONITOR_FEATURES] = {"cosine_z", "cosine", "slope", "entropy_z",
                                                        "odds"};
    const struct monitor_rule *r = &c->model.rule;
    struct json_writer j;
    json_write_begin(&j, out);
    json_write_object(&j);
    json_write_key(&j, "layer"), json_write_uint(&j, c->model.layer);
    json_write_key(&j, "normal_answers"), json_write_uint(&j, c->scores.n_normal);
    json_write_key(&j, "planted_drifts"), json_write_uint(&j, c->scores.n_drifts);
    json_write_key(&j, "false_alarms"), json_write_double(&j, c->scores.false_alarms);
    json_write_key(&j, "caught_within_24"), json_write_double(&j, c->scores.caught);
    json_write_key(&j, "false_alarms_hot"), json_write_double(&j, c->scores.false_alarms_hot);
    json_write_key(&j, "caught_within_24_hot"), json_write_double(&j, c->scores.caught_hot);
    json_write_key(&j, "median_delay"), json_write_double(&j, c->scores.median_delay);
    json_write_key(&j, "held_draws"), json_write_double(&j, c->scores.held);
    json_write_key(&j, "published_false_alarms"),
        json_write_double(&j, c->scores.fixed_false_alarms);
    json_write_key(&j, "published_caught_within_24"), json_write_double(&j, c->scores.fixed_caught);
    json_write_key(&j, "weights"), json_write_object(&j);
    json_write_key(&j, "bias"), json_write_float(&j, r->weights[0]);
    for (uint32_t k = 0; k < MONITOR_FEATURES; k++)
        json_write_key(&j, names[k]), json_write_float(&j, r->weights[k + 1]);
    json_write_object_end(&j);
    json_write_key(&j, "threshold"), json_write_float(&j, r->threshold);
    json_write_key(&j, "threshold_hot"), json_write_float(&j, r->threshold_hot);
    json_write_key(&j, "hold"), json_write_float(&j, r->hold);
    json_write_key(&j, "surprise"), json_write_float(&j, r->surprise);
    json_write_object_end(&j);
}

static void print_report(const struct calibration *c) {
    printf("%u normal answers, %u planted drifts, states after layer %u (each half judged by the "
           "other's fit)\n",
           c->scores.n_normal, c->scores.n_drifts, c->model.layer);
    printf("rule auto:      %5.1f %% of drifts caught within %d tokens (median %.0f), %5.1f %% of "
           "normal answers touched\n",
           100 * c->scores.caught, MONITOR_CAUGHT_WITHIN, c->scores.median_delay,
           100 * c->scores.false_alarms);
    printf("                at temperature 1 alone: %.1f %% and %.1f %%\n",
           100 * c->scores.caught_hot, 100 * c->scores.false_alarms_hot);
    printf("                after %.1f %% of normal draws some token waits, at most %d draws\n",
           100 * c->scores.held, MONITOR_CLEAR_TOKENS);
    printf("published rule: %5.1f %% of drifts caught within %d tokens,            %5.1f %% of "
           "normal answers touched\n",
           100 * c->scores.fixed_caught, MONITOR_CAUGHT_WITHIN, 100 * c->scores.fixed_false_alarms);
}

static enum status write_sections(struct calibration *c, struct buffer *report, struct error *e) {
    static const uint32_t kinds[] = {SIDECAR_MONITOR, SIDECAR_CALIBRATION};
    struct sidecar_section sections[2];
    uint64_t digest[2];
    c->model.report = report->data;
    c->model.report_bytes = report->len;
    enum status st = monitor_model_write(&c->model, c->n_rows, sections, e);
    if (st != STATUS_OK) return st;
    gguf_digest(model_gguf(c->engine->model), digest);
    st = sidecar_update(c->config->out_path, digest, kinds, 2, MONITOR_KEY, sections, 2, e);
    for (int i = 0; i < 2; i++) free((void *)(uintptr_t)sections[i].data);
    return st;
}

static enum status open_all(struct calibration *c, struct error *e) {
    const struct config *cfg = c->config;
    struct engine_options o = engine_defaults(cfg);
    o.n_ctx = 1024;
    o.n_slots = cfg->tune_batch;
    o.n_pages = cfg->tune_batch * (o.n_ctx / KV_PAGE_TOKENS + 1);
    o.limits = (struct step_limits){.max_spans = cfg->tune_batch,
                                    .max_rows = RECORD_ROWS,
                                    .max_outputs = RECORD_ROWS,
                                    .max_taps = 1,
                                    .max_tap_rows = RECORD_ROWS,
                                    .max_profiles = 1};
    enum status st = engine_open(&o, &c->engine, e);
    if (st != STATUS_OK) return st;
    const struct gguf *g = model_gguf(c->engine->model);
    st = tokenizer_load(g, &c->tokenizer, e);
    if (st == STATUS_OK) {
        st = chat_template_load(g, &c->chat_template, e);
        if (st == STATUS_NOT_FOUND) st = STATUS_OK; /* prompts are continued as they stand */
    }
    if (st != STATUS_OK) return st;
    const struct plan *p = c->engine->plan;
    c->model = monitor_model_plain(p->n_layers, p->d_model);
    c->answers = calloc(MAX_ANSWERS, sizeof *c->answers);
    c->texts = calloc(2 * MAX_ANSWERS, sizeof *c->texts);
    c->mean = calloc(p->d_model, sizeof *c->mean);
    c->states = calloc((size_t)RECORD_ROWS * p->d_model, sizeof *c->states);
    c->monitor_memory = calloc(1, monitor_footprint(p->d_model));
    if (posix_memalign(&c->step_memory, 64, step_footprint(&c->engine->limits)) != 0)
        c->step_memory = NULL;
    if (c->answers == NULL || c->texts == NULL || c->mean == NULL || c->states == NULL ||
        c->monitor_memory == NULL || c->step_memory == NULL)
        return no_memory(e);
    c->step = step_init(c->step_memory, &c->engine->limits);
    monitor_init(&c->monitor, c->monitor_memory, p->d_model);
    return STATUS_OK;
}

static void close_all(struct calibration *c) {
    for (uint32_t i = 0; i < c->n_texts; i++) free(c->texts[i].draws);
    for (uint32_t i = 0; i < c->n_answers; i++) {
        forget(&c->answers[i]);
        free(c->answers[i].ids);
    }
    free(c->texts);
    free(c->answers);
    free(c->mean);
    free(c->states);
    free(c->monitor_memory);
    free(c->step_memory);
    chat_template_free(c->chat_template);
    tokenizer_free(c->tokenizer);
    engine_close(c->engine);
}

static enum status learn(struct calibration *c, struct error *e) {
    enum status st = read_prompts(c, e);
    if (st == STATUS_OK) st = answer_all(c, e);
    for (uint32_t i = 0; st == STATUS_OK && i < c->n_answers; i++) {
        st = record(c, i, &c->answers[i], e);
        progress("normal answers", i + 1, c->n_answers);
    }
    if (st != STATUS_OK) return st;
    find_means(c);
    for (uint32_t i = 0; st == STATUS_OK && i < c->n_answers; i++) {
        st = keep_text(c, &c->answers[i], i, UINT32_MAX, e);
        if (st == STATUS_OK) st = splice(c, i, e);
        forget(&c->answers[i]);
        progress("planted drifts", i + 1, c->n_answers);
    }
    return st == STATUS_OK ? monitor_rule_fit(c->texts, c->n_texts, &c->model.rule, &c->scores, e)
                           : st;
}

int calibrate_monitor(const struct config *config) {
    struct calibration c = {.config = config};
    struct error e = {0};
    struct buffer report;
    buffer_init(&report, 0);
    enum status st = open_all(&c, &e);
    if (st == STATUS_OK) st = learn(&c, &e);
    if (st == STATUS_OK) write_report(&c, &report);
    if (st == STATUS_OK && config->out_path != NULL) st = write_sections(&c, &report, &e);
    if (st == STATUS_OK && config->json)
        printf("%.*s\n", (int)report.len, report.data);
    else if (st == STATUS_OK)
        print_report(&c);
    buffer_free(&report);
    close_all(&c);
    return st == STATUS_OK ? 0 : usage_fail("calibrate", &e);
}
