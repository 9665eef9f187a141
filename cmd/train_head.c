#include "cmd/train_head.h"

#include <stdlib.h>
#include <string.h>

#include "cmd/engine.h"
#include "models/chat_template.h"
#include "models/tokenizer.h"

enum { MAX_ROWS = 256, PREFIX_TOKENS = 256 };

struct states {
    struct engine *engine;
    struct tokenizer *tokenizer;
    struct token_list ids;
    size_t n_prefix; /* ids of the template before the user's text */
    uint32_t layer;  /* after this many layers */
    void *step_memory;
    struct step *step;
    float *rows; /* [MAX_ROWS, d_model] */
};

/* The template up to the user's text is the same for all rows. */
static enum status find_prefix(struct states *s, struct error *e) {
    static const char chat[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"text\"}]}";
    struct chat_template *t;
    enum status st = chat_template_load(model_gguf(s->engine->model), &t, e);
    if (st == STATUS_NOT_FOUND)
        return tokenizer_encode(s->tokenizer, NULL, "", 0, TOKENIZE_BOS, &s->ids, e);
    if (st != STATUS_OK) return st;
    const struct chat_input in = {.json = chat, .len = sizeof chat - 1};
    struct rendered r;
    st = chat_template_render(t, &in, NULL, &r, e);
    chat_template_free(t);
    if (st != STATUS_OK) return st;
    size_t before = 0;
    for (size_t i = 0; i < r.n_spans && !r.spans[i].from_user; i++) before = r.spans[i].end;
    st = tokenizer_encode(s->tokenizer, NULL, r.text, before, TOKENIZE_SPECIAL, &s->ids, e);
    rendered_free(&r);
    if (st == STATUS_OK && s->ids.n > PREFIX_TOKENS)
        st = error_set(e, STATUS_UNSUPPORTED, NULL, "the chat template begins with over %d tokens",
                       PREFIX_TOKENS);
    return st;
}

static enum status open_states(struct states *s, const struct config *c, struct error *e) {
    struct engine_options o = engine_defaults(c);
    o.path = c->head_model;
    o.isa_auto = true;
    o.huge_pages = true;
    o.n_ctx = PREFIX_TOKENS + TRAIN_HEAD_TOKENS;
    o.limits = (struct step_limits){.max_spans = 1,
                                    .max_rows = MAX_ROWS,
                                    .max_outputs = 1,
                                    .max_taps = 1,
                                    .max_tap_rows = MAX_ROWS,
                                    .max_profiles = 1};
    enum status st = engine_open(&o, &s->engine, e);
    if (st != STATUS_OK) return st;
    const struct plan *p = s->engine->plan;
    s->layer = c->head_layer ? c->head_layer : p->n_layers / 5 ? p->n_layers / 5 : 1;
    if (s->layer > p->n_layers || p->d_model > TASK_MAX_HEAD_DIM)
        return error_set(e, STATUS_INVALID, "--head-layer", "the model has %u layers of width %u",
                         p->n_layers, p->d_model);
    s->rows = malloc((size_t)MAX_ROWS * p->d_model * sizeof *s->rows);
    if (s->rows == NULL ||
        posix_memalign(&s->step_memory, 64, step_footprint(&s->engine->limits)) != 0)
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the states");
    s->step = step_init(s->step_memory, &s->engine->limits);
    st = tokenizer_load(model_gguf(s->engine->model), &s->tokenizer, e);
    if (st != STATUS_OK) return st;
    st = find_prefix(s, e);
    s->n_prefix = s->ids.n;
    return st;
}

static void close_states(struct states *s) {
    token_list_free(&s->ids);
    tokenizer_free(s->tokenizer);
    engine_close(s->engine);
    free(s->step_memory);
    free(s->rows);
}

/* Layers that nobody reads are left out. */
static void cut_profile(struct states *s) {
    for (uint32_t l = s->layer; l < s->engine->plan->n_layers; l++)
        s->step->profiles[0].layers[l / 64] &= ~(UINT64_C(1) << l % 64);
}

static enum status mean_state(struct states *s, const struct task_row *row, float *mean,
                              struct error *e) {
    const uint32_t d = s->engine->plan->d_model;
    s->ids.n = s->n_prefix;
    enum status st = tokenizer_encode(s->tokenizer, NULL, row->text, row->len, 0, &s->ids, e);
    if (st != STATUS_OK) return st;
    uint32_t n = (uint32_t)s->ids.n;
    if (n > s->n_prefix + TRAIN_HEAD_TOKENS) n = (uint32_t)s->n_prefix + TRAIN_HEAD_TOKENS;
    memset(mean, 0, d * sizeof *mean);
    if (n == 0) return STATUS_OK;
    struct engine_sequence seq;
    st = engine_sequence_open(s->engine, n, &seq, e);
    if (st != STATUS_OK) return st;
    uint32_t counted = 0;
    for (uint32_t at = 0, rows; st == STATUS_OK && at < n; at += rows) {
        rows = n - at < MAX_ROWS ? n - at : MAX_ROWS;
        step_clear(s->step, s->engine->plan->n_layers);
        cut_profile(s);
        engine_add_span(s->engine, s->step, SPAN_PREFILL, &seq, at, s->ids.ids + at, rows);
        s->step->taps[s->step->n_taps++] = (struct tap){.layer = s->layer - 1,
                                                        .n_rows = rows,
                                                        .mode = TAP_KEEP,
                                                        .normalised = true,
                                                        .out = s->rows};
        st = engine_run(s->engine, s->step, e);
        for (uint32_t r = 0; st == STATUS_OK && r < rows; r++) {
            if (at + r == 0 || at + r < s->n_prefix) continue;
            counted++;
            for (uint32_t i = 0; i < d; i++) mean[i] += s->rows[(size_t)r * d + i];
        }
    }
    engine_sequence_close(s->engine, &seq);
    for (uint32_t i = 0; counted > 0 && i < d; i++) mean[i] /= (float)counted;
    return st;
}

struct input {
    float *hidden, *first;
    uint32_t *label, *source;
};

static enum status fill(struct states *s, const struct task_set *set,
                        const struct task_train_options *o, const float *first,
                        const struct input *in, uint32_t *n, struct error *e) {
    const uint32_t d = s->engine->plan->d_model, k = set->n_labels;
    for (uint32_t r = 0; r < set->n; r++) {
        const struct task_row *row = &set->rows[r];
        if (r % 50 == 0 && o->progress != NULL && !o->progress(o->context, "states", r, set->n))
            return error_set(e, STATUS_GONE, NULL, "the training was stopped");
        const enum status st = mean_state(s, row, in->hidden + (size_t)*n * d, e);
        if (st != STATUS_OK) return st;
        memcpy(in->first + (size_t)*n * k, first + (size_t)r * k, k * sizeof *first);
        in->label[*n] = row->label;
        const bool synthetic = strcmp(set->source[row->source], TASK_SYNTHETIC) == 0;
        in->source[(*n)++] = synthetic ? TASK_HEAD_ALWAYS : row->source;
    }
    return STATUS_OK;
}

static enum status add_head(struct states *s, const struct task_set *set,
                            const struct task_train_options *o, const float *first,
                            struct task_model *m, struct task_scores *alone,
                            struct task_scores *both, struct error *e) {
    const size_t n = set->n ? set->n : 1, d = s->engine->plan->d_model;
    struct input in = {.hidden = malloc(n * d * sizeof *in.hidden),
                       .first = malloc(n * set->n_labels * sizeof *in.first),
                       .label = malloc(n * sizeof *in.label),
                       .source = malloc(n * sizeof *in.source)};
    uint32_t used = 0;
    enum status st = in.hidden && in.first && in.label && in.source
                         ? fill(s, set, o, first, &in, &used, e)
                         : error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the states");
    if (st == STATUS_OK && used == 0)
        st = error_set(e, STATUS_INVALID, NULL, "there are no rows for a head");
    if (st == STATUS_OK) {
        struct task_head_input head = {in.hidden,   in.label, in.source,      in.first, used,
                                       (uint32_t)d, s->layer, set->n_sources, {0, 0}};
        gguf_digest(model_gguf(s->engine->model), head.model);
        st = task_train_head(m, &head, o, alone, both, e);
    }
    free(in.hidden);
    free(in.first);
    free(in.label);
    free(in.source);
    return st;
}

enum status train_head(const struct config *c, const struct task_set *set,
                       const struct task_train_options *o, const float *first, struct task_model *m,
                       struct task_scores *alone, struct task_scores *both, struct error *e) {
    struct states s = {0};
    enum status st = open_states(&s, c, e);
    if (st == STATUS_OK) st = add_head(&s, set, o, first, m, alone, both, e);
    close_states(&s);
    return st;
}
