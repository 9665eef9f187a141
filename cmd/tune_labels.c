/* tune --labels: label heads from labelled texts, into a side-car. The states of every text are
 * kept in a work folder beside it, so that an interrupted run goes on where it stopped. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "cmd/label_rows.h"
#include "cmd/tune.h"
#include "core/buffer.h"
#include "core/clock.h"
#include "core/json_writer.h"
#include "models/label_train.h"
#include "models/sidecar.h"
#include "models/task_words.h"

enum {
    STEP_TEXTS = 16,
    STEP_ROWS = 2 * LABEL_MAX_TOKENS,
    FOLDS = 5,
    EPOCHS = 30,
    BUCKETS = 1 << 15,
    MAX_FEATURES_PER_ROW = TASK_MAX_FEATURES,
};
#define MAX_STATE_BYTES (UINT64_C(3) << 30)

struct labels {
    const struct config *config;
    struct engine *engine;
    struct tokenizer *tokenizer;
    struct label_rows rows;
    struct step *step;
    void *step_memory;
    struct engine_sequence sequences[STEP_TEXTS];
    uint32_t n_layers[LABEL_MAX_HEADS], n_taps; /* states after so many layers */
    struct token_list ids;
    float *taps;   /* [n_taps][STEP_ROWS, d_model] */
    float *states; /* [n_taps][n, d_model] */
    uint64_t *row_start;
    uint16_t *index;
    float *value;
    uint64_t n_features, cap_features;
    char *work;
    double states_s, learn_s;
};

static enum status no_memory(struct error *e) {
    return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the texts' states");
}

/* ---- states ---- */

static enum status choose_layers(struct labels *l, struct error *e) {
    const uint32_t n_layers = l->engine->plan->n_layers;
    const struct config_list *list = &l->config->label_layers;
    if (list->n > LABEL_MAX_HEADS)
        return error_set(e, STATUS_TOO_LARGE, "label-layers", "at most %d layers", LABEL_MAX_HEADS);
    for (uint32_t i = 0; i < list->n; i++) {
        const uint32_t layer = (uint32_t)list->values[i];
        if (layer > n_layers || (i > 0 && layer <= l->n_layers[i - 1]))
            return error_set(e, STATUS_INVALID, "label-layers",
                             "--label-layers: ascending layers of the model's %u are wanted",
                             n_layers);
        l->n_layers[l->n_taps++] = layer;
    }
    if (list->n > 0) return STATUS_OK;
    /* Labels are decided early: 1, 2, then every third; of deep models as many as fit. */
    const uint32_t every = 3 * (1 + n_layers / (3 * (LABEL_MAX_HEADS - 3)));
    for (uint32_t layer = 1; layer <= n_layers; layer++)
        if (layer <= 2 || layer % every == 0 || layer == n_layers) l->n_layers[l->n_taps++] = layer;
    return STATUS_OK;
}

static enum status open_engine(struct labels *l, struct error *e) {
    struct engine_options o = engine_defaults(l->config);
    o.n_ctx = LABEL_MAX_TOKENS;
    o.n_slots = STEP_TEXTS;
    o.n_pages = STEP_TEXTS * LABEL_MAX_TOKENS / KV_PAGE_TOKENS;
    o.limits = (struct step_limits){.max_spans = STEP_TEXTS,
                                    .max_rows = STEP_ROWS,
                                    .max_outputs = 1,
                                    .max_taps = STEP_TEXTS * LABEL_MAX_HEADS,
                                    .max_tap_rows = STEP_ROWS * LABEL_MAX_HEADS,
                                    .max_profiles = 1};
    enum status st = engine_open(&o, &l->engine, e);
    if (st != STATUS_OK) return st;
    st = tokenizer_load(model_gguf(l->engine->model), &l->tokenizer, e);
    if (st == STATUS_OK) st = choose_layers(l, e);
    for (uint32_t i = 0; st == STATUS_OK && i < STEP_TEXTS; i++)
        st = engine_sequence_open(l->engine, LABEL_MAX_TOKENS, &l->sequences[i], e);
    if (st == STATUS_OK &&
        posix_memalign(&l->step_memory, 64, step_footprint(&l->engine->limits)) != 0)
        st = no_memory(e);
    if (st == STATUS_OK) l->step = step_init(l->step_memory, &l->engine->limits);
    return st;
}

static float *state_of(const struct labels *l, uint32_t tap, uint32_t row) {
    return l->states + ((size_t)tap * l->rows.n + row) * l->engine->plan->d_model;
}

/* One text into the step; false when it must wait for the next. */
struct text_span_of {
    uint32_t first_row, first_token, n;
};

static enum status add_text(struct labels *l, uint32_t row, struct text_span_of *s, bool *fits,
                            struct error *e) {
    const struct text *text = &l->rows.texts[row];
    const uint32_t d = l->engine->plan->d_model;
    struct step *step = l->step;
    l->ids.n = 0;
    *fits = true;
    const enum status st = label_head_tokens(l->tokenizer, NULL, text->data, text->len,
                                             LABEL_MAX_TOKENS, &l->ids, &s->first_token, e);
    if (st != STATUS_OK) return st;
    s->n = (uint32_t)l->ids.n;
    *fits = step->n_spans < STEP_TEXTS && s->n <= STEP_ROWS - step->n_rows;
    if (!*fits) return STATUS_OK;
    s->first_row = step->n_rows;
    const uint32_t i = step->n_spans;
    engine_add_span(l->engine, step, SPAN_ENCODE, &l->sequences[i], 0, l->ids.ids, s->n)->slot = i;
    for (uint32_t k = 0; k < l->n_taps; k++)
        step->taps[step->n_taps++] =
            (struct tap){.layer = l->n_layers[k] - 1,
                         .first_row = s->first_row,
                         .n_rows = s->n,
                         .mode = TAP_KEEP,
                         .normalised = true,
                         .out = l->taps + ((size_t)k * STEP_ROWS + s->first_row) * d};
    return STATUS_OK;
}

/* As many texts as fit into one step, from *next on. */
static enum status run_step(struct labels *l, uint32_t *next, struct error *e) {
    const struct plan *p = l->engine->plan;
    const uint32_t d = p->d_model, first = *next;
    struct text_span_of spans[STEP_TEXTS];
    enum status st = STATUS_OK;
    step_clear(l->step, p->n_layers);
    for (uint32_t layer = l->n_layers[l->n_taps - 1]; layer < p->n_layers; layer++)
        l->step->profiles[0].layers[layer / 64] &= ~(UINT64_C(1) << layer % 64);
    bool fits = true;
    while (st == STATUS_OK && *next < l->rows.n && l->step->n_spans < STEP_TEXTS) {
        st = add_text(l, *next, &spans[*next - first], &fits, e);
        if (!fits) break;
        ++*next;
    }
    if (st == STATUS_OK) st = engine_run(l->engine, l->step, e);
    for (uint32_t i = first; st == STATUS_OK && i < *next; i++) {
        const struct text_span_of *s = &spans[i - first];
        for (uint32_t k = 0; k < l->n_taps; k++) {
            float *mean = state_of(l, k, i);
            memset(mean, 0, d * sizeof *mean);
            for (uint32_t r = s->first_token; r < s->n; r++)
                heads_mean_add(mean, l->taps + ((size_t)k * STEP_ROWS + s->first_row + r) * d, d);
            heads_mean_finish(mean, s->n - s->first_token, d);
        }
    }
    return st;
}

/* ---- the work folder: "states" holds, row by row, every tap's mean and XXH3-64 of them ---- */

static enum status work_seed(const struct labels *l, uint64_t *seed, struct error *e) {
    XXH3_state_t *state = XXH3_createState();
    if (state == NULL) return no_memory(e);
    uint64_t parts[4 + LABEL_MAX_HEADS] = {0};
    gguf_digest(model_gguf(l->engine->model), parts);
    parts[2] = (uint64_t)l->config->activations << 32 | (uint64_t)l->config->kv;
    parts[3] = LABEL_TEMPLATE;
    for (uint32_t i = 0; i < l->n_taps; i++) parts[4 + i] = l->n_layers[i];
    XXH_errorcode rc = XXH3_64bits_reset(state);
    rc |= XXH3_64bits_update(state, parts, sizeof parts);
    for (uint32_t i = 0; i < l->rows.n; i++) {
        const uint64_t len = l->rows.texts[i].len;
        rc |= XXH3_64bits_update(state, &len, sizeof len);
        rc |= XXH3_64bits_update(state, l->rows.texts[i].data, len);
    }
    *seed = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return rc == XXH_OK ? STATUS_OK : no_memory(e);
}

static enum status cannot_write(const struct labels *l, struct error *e) {
    return error_set(e, STATUS_IO, "o", "%s cannot be written: %s", l->work, strerror(errno));
}

/* Rows of the file that are whole; what is behind them is cut off. */
static enum status resume(struct labels *l, FILE *f, uint64_t seed, float *record, uint32_t *n,
                          struct error *e) {
    const uint32_t d = l->engine->plan->d_model;
    const size_t floats = (size_t)l->n_taps * d;
    uint64_t hash;
    *n = 0;
    while (*n < l->rows.n && fread(record, sizeof *record, floats, f) == floats &&
           fread(&hash, sizeof hash, 1, f) == 1 &&
           hash == XXH3_64bits_withSeed(record, floats * sizeof *record, seed + *n)) {
        for (uint32_t k = 0; k < l->n_taps; k++)
            memcpy(state_of(l, k, *n), record + (size_t)k * d, d * sizeof *record);
        ++*n;
    }
    const uint64_t bytes = *n * (floats * sizeof *record + sizeof hash);
    if (fflush(f) != 0 || ftruncate(fileno(f), (off_t)bytes) != 0 || fseek(f, 0, SEEK_END) != 0)
        return cannot_write(l, e);
    return STATUS_OK;
}

static enum status write_states(struct labels *l, FILE *f, uint64_t seed, float *record,
                                uint32_t first, uint32_t last, struct error *e) {
    const uint32_t d = l->engine->plan->d_model;
    const size_t floats = (size_t)l->n_taps * d;
    for (uint32_t i = first; i < last; i++) {
        for (uint32_t k = 0; k < l->n_taps; k++)
            memcpy(record + (size_t)k * d, state_of(l, k, i), d * sizeof *record);
        const uint64_t hash = XXH3_64bits_withSeed(record, floats * sizeof *record, seed + i);
        if (fwrite(record, sizeof *record, floats, f) != floats ||
            fwrite(&hash, sizeof hash, 1, f) != 1)
            return cannot_write(l, e);
    }
    return fflush(f) == 0 ? STATUS_OK : cannot_write(l, e);
}

static enum status find_states(struct labels *l, struct error *e) {
    const size_t d = l->engine->plan->d_model, wide = l->n_taps * d;
    const uint64_t bytes = (uint64_t)l->rows.n * wide * sizeof(float);
    if (bytes > MAX_STATE_BYTES)
        return error_set(e, STATUS_TOO_LARGE, "labels",
                         "%u rows need %llu MiB of states; fewer rows or --label-layers", l->rows.n,
                         (unsigned long long)(bytes >> 20));
    l->states = malloc(bytes);
    l->taps = malloc(STEP_ROWS * wide * sizeof *l->taps);
    float *record = malloc(wide * sizeof *record);
    char path[4096];
    uint64_t seed = 0;
    enum status st =
        l->states != NULL && l->taps != NULL && record != NULL ? STATUS_OK : no_memory(e);
    if (st == STATUS_OK) st = work_seed(l, &seed, e);
    if (st == STATUS_OK && mkdir(l->work, 0755) != 0 && errno != EEXIST) st = cannot_write(l, e);
    snprintf(path, sizeof path, "%s/states", l->work);
    FILE *f = st == STATUS_OK ? fopen(path, "ab+") : NULL;
    if (st == STATUS_OK && f == NULL) st = cannot_write(l, e);
    uint32_t done = 0;
    if (st == STATUS_OK) rewind(f);
    if (st == STATUS_OK) st = resume(l, f, seed, record, &done, e);
    while (st == STATUS_OK && done < l->rows.n) {
        const uint32_t first = done;
        st = run_step(l, &done, e);
        if (st == STATUS_OK) st = write_states(l, f, seed, record, first, done, e);
        tune_progress("states", done, l->rows.n);
    }
    if (f != NULL) fclose(f);
    free(record);
    return st;
}

static void remove_work(const struct labels *l) {
    char path[4096];
    snprintf(path, sizeof path, "%s/states", l->work);
    unlink(path);
    rmdir(l->work);
}

/* ---- features ---- */

static enum status add_features(struct labels *l, const struct task_features *f, struct error *e) {
    const uint32_t n = f->block_start[TASK_CHARACTERS + 1];
    if (l->n_features + n > l->cap_features) {
        const uint64_t cap = 2 * l->cap_features + MAX_FEATURES_PER_ROW;
        uint16_t *index = realloc(l->index, cap * sizeof *index);
        if (index != NULL) l->index = index;
        float *value = realloc(l->value, cap * sizeof *value);
        if (value != NULL) l->value = value;
        if (index == NULL || value == NULL) return no_memory(e);
        l->cap_features = cap;
    }
    memcpy(l->index + l->n_features, f->index, n * sizeof *f->index);
    memcpy(l->value + l->n_features, f->value, n * sizeof *f->value);
    l->n_features += n;
    return STATUS_OK;
}

static enum status find_features(struct labels *l, struct error *e) {
    struct task_workspace *w = NULL;
    struct task_words *words = NULL;
    struct task_features f;
    l->row_start = malloc((l->rows.n + 1) * sizeof *l->row_start);
    enum status st = l->row_start != NULL ? task_workspace_new(&w, e) : no_memory(e);
    if (st == STATUS_OK) st = task_words_default(&words, e);
    for (uint32_t i = 0; st == STATUS_OK && i < l->rows.n; i++) {
        l->row_start[i] = l->n_features;
        task_features_extract(w, words, l->rows.texts[i].data, l->rows.texts[i].len, &f);
        st = add_features(l, &f, e);
    }
    if (st == STATUS_OK) l->row_start[l->rows.n] = l->n_features;
    task_workspace_free(w);
    task_words_free(words);
    return st;
}

/* ---- section and report ---- */

static void report_json(const struct labels *l, const struct label_heads *h,
                        const struct label_scores *s) {
    struct buffer text;
    struct json_writer j;
    buffer_init(&text, 0);
    json_write_begin(&j, &text);
    json_write_object(&j);
    json_write_key(&j, "rows"), json_write_uint(&j, l->rows.n);
    json_write_key(&j, "labels"), json_write_uint(&j, h->n_labels);
    json_write_key(&j, "measured_on"), json_write_uint(&j, h->figures.n_rows);
    json_write_key(&j, "threshold"), json_write_float(&j, h->threshold[0]);
    json_write_key(&j, "last_layer"), json_write_uint(&j, h->heads[h->n_heads - 1].layer);
    json_write_key(&j, "accuracy"), json_write_float(&j, h->figures.accuracy);
    json_write_key(&j, "accuracy_low"), json_write_float(&j, h->figures.accuracy_low);
    json_write_key(&j, "mean_layer"), json_write_float(&j, h->figures.mean_layer);
    json_write_key(&j, "first_share"), json_write_float(&j, h->figures.first_share);
    json_write_key(&j, "early_differs"), json_write_float(&j, h->figures.early_differs);
    json_write_key(&j, "text_accuracy"), json_write_float(&j, s->text);
    json_write_key(&j, "layers"), json_write_array(&j);
    for (uint32_t i = 0; i < l->n_taps; i++) {
        json_write_object(&j);
        json_write_key(&j, "layer"), json_write_uint(&j, l->n_layers[i]);
        json_write_key(&j, "state_accuracy"), json_write_float(&j, s->state[i]);
        json_write_key(&j, "combined_accuracy"), json_write_float(&j, s->combined[i]);
        json_write_key(&j, "scale"), json_write_float(&j, h->heads[i].scale);
        json_write_key(&j, "prior_scale"), json_write_float(&j, h->heads[i].prior_scale);
        json_write_object_end(&j);
    }
    json_write_array_end(&j);
    json_write_key(&j, "seconds"), json_write_object(&j);
    json_write_key(&j, "states"), json_write_double(&j, l->states_s);
    json_write_key(&j, "learning"), json_write_double(&j, l->learn_s);
    json_write_object_end(&j);
    json_write_object_end(&j);
    buffer_putc(&text, '\n');
    fwrite(text.data, 1, text.len, stdout);
    buffer_free(&text);
}

static void report_print(const struct labels *l, const struct label_heads *h,
                         const struct label_scores *s) {
    printf("%u texts, %u labels; measured on %u that nothing was chosen on\n", l->rows.n,
           h->n_labels, h->figures.n_rows);
    printf("  words and letters alone: %5.1f %% right\n", 100 * (double)s->text);
    for (uint32_t i = 0; i < l->n_taps; i++)
        printf(
            "  after layer %3u: head alone %5.1f %%, with those before it and the text %5.1f %%\n",
            l->n_layers[i], 100 * (double)s->state[i], 100 * (double)s->combined[i]);
    printf("answers at confidence %.3g, at the latest after layer %u: %.1f %% right (at least %.1f "
           "%% at 95 %% confidence) at %.2f layers of %u; %.0f %% after the first\n",
           (double)h->threshold[0], h->heads[h->n_heads - 1].layer,
           100 * (double)h->figures.accuracy, 100 * (double)h->figures.accuracy_low,
           (double)h->figures.mean_layer, l->engine->plan->n_layers,
           100 * (double)h->figures.first_share);
    if (h->figures.early_differs > 0)
        printf(
            "of those before the last head, it would have said another label of at most %.1f %%: "
            "audits hold the server to that\n",
            100 * (double)h->figures.early_differs);
    printf("%s: written in %.0f s (states %.0f s, learning %.0f s)\n", l->config->out_path,
           l->states_s + l->learn_s, l->states_s, l->learn_s);
}

static enum status write_section(const struct labels *l, struct label_heads *h, struct error *e) {
    static const uint32_t KIND = SIDECAR_LABEL_HEADS;
    uint32_t ends[REQUEST_MAX_LABELS], end = 0;
    char names[REQUEST_MAX_LABELS * REQUEST_MAX_LABEL_BYTES];
    for (uint32_t i = 0; i < l->rows.n_labels; i++) {
        memcpy(names + end, l->rows.labels[i].data, l->rows.labels[i].len);
        ends[i] = end += (uint32_t)l->rows.labels[i].len;
    }
    h->label_end = ends;
    h->label_text = names;
    h->max_tokens = LABEL_MAX_TOKENS;
    struct sidecar_section section = {.kind = KIND, .version = sidecar_kind_version(KIND)};
    label_heads_key(l->rows.labels, l->rows.n_labels, section.key);
    void *bytes;
    enum status st = label_heads_write(h, l->engine->plan->n_layers, &bytes, &section.bytes, e);
    if (st != STATUS_OK) return st;
    section.data = bytes;
    uint64_t model[2];
    gguf_digest(model_gguf(l->engine->model), model);
    st = sidecar_update(l->config->out_path, model, &KIND, 1, section.key, &section, 1, e);
    free(bytes);
    return st;
}

static enum status check_rows(const struct labels *l, struct error *e) {
    uint32_t count[REQUEST_MAX_LABELS] = {0};
    for (uint32_t i = 0; i < l->rows.n; i++) count[l->rows.label[i]]++;
    for (uint32_t c = 0; c < l->rows.n_labels; c++)
        if (count[c] < 2)
            return error_set(e, STATUS_INVALID, "labels", "%.*s has one row; two are the least",
                             (int)l->rows.labels[c].len, l->rows.labels[c].data);
    return STATUS_OK;
}

/* A file that could not be written in the end is refused before the work is done. */
static enum status check_output(const struct labels *l, struct error *e) {
    if (access(l->config->out_path, F_OK) != 0) return STATUS_OK;
    uint64_t model[2];
    gguf_digest(model_gguf(l->engine->model), model);
    struct sidecar *old;
    const enum status st = sidecar_open(l->config->out_path, model, &old, e);
    sidecar_close(old);
    return st;
}

static enum status learn(struct labels *l, struct error *e) {
    const uint64_t t0 = clock_now_ns();
    enum status st = find_states(l, e);
    if (st == STATUS_OK) st = find_features(l, e);
    if (st != STATUS_OK) return st;
    const uint64_t t1 = clock_now_ns();
    const struct label_input in = {.n = l->rows.n,
                                   .n_labels = l->rows.n_labels,
                                   .d = l->engine->plan->d_model,
                                   .n_taps = l->n_taps,
                                   .layers = l->n_layers,
                                   .states = l->states,
                                   .label = l->rows.label,
                                   .row_start = l->row_start,
                                   .index = l->index,
                                   .value = l->value};
    const struct label_options options = {.folds = FOLDS,
                                          .epochs = EPOCHS,
                                          .n_buckets = BUCKETS,
                                          .seed = 1,
                                          .isa = l->engine->isa,
                                          .workers = l->engine->workers};
    struct label_heads heads;
    struct label_scores scores;
    void *memory;
    st = label_train(&in, &options, &heads, &scores, &memory, e);
    const uint64_t t2 = clock_now_ns();
    l->states_s = (double)(t1 - t0) * 1e-9;
    l->learn_s = (double)(t2 - t1) * 1e-9;
    if (st == STATUS_OK) st = write_section(l, &heads, e);
    if (st == STATUS_OK && l->config->json) report_json(l, &heads, &scores);
    if (st == STATUS_OK && !l->config->json) report_print(l, &heads, &scores);
    free(memory);
    return st;
}

static void close_labels(struct labels *l) {
    for (uint32_t i = 0; l->engine != NULL && i < STEP_TEXTS; i++)
        engine_sequence_close(l->engine, &l->sequences[i]);
    free(l->states);
    free(l->taps);
    free(l->row_start);
    free(l->index);
    free(l->value);
    free(l->step_memory);
    free(l->work);
    token_list_free(&l->ids);
    tokenizer_free(l->tokenizer);
    engine_close(l->engine);
    label_rows_free(&l->rows);
}

enum status tune_labels(const struct config *c, struct error *e) {
    struct labels *l = calloc(1, sizeof *l);
    if (l == NULL) return no_memory(e);
    l->config = c;
    enum status st = label_rows_read(c->labels_path, &l->rows, e);
    if (st == STATUS_OK) st = check_rows(l, e);
    if (st == STATUS_OK && asprintf(&l->work, "%s.labels.work", c->out_path) < 0) {
        l->work = NULL;
        st = no_memory(e);
    }
    if (st == STATUS_OK) st = open_engine(l, e);
    if (st == STATUS_OK) st = check_output(l, e);
    if (st == STATUS_OK) st = learn(l, e);
    if (st == STATUS_OK) remove_work(l);
    close_labels(l);
    free(l);
    return st;
}
