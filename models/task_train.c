#include "models/task_train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/math.h"
#include "core/rng.h"
#include "models/task_fit.h"
#include "models/task_model_impl.h"
#include "models/task_weights.h"

enum { MIN_CELL = 20 };

struct task_train_options task_train_defaults(void) {
    return (struct task_train_options){.epochs = 24,
                                       .rate = 0.4f,
                                       .cost = 4,
                                       .source_power = 0.5f,
                                       .dense_gain = 0.5f,
                                       .abstain_below = 0.5f,
                                       .seed = 1,
                                       .folds = 5,
                                       .leave_sources_out = true};
}

/* Everything that the training of one set needs, and what its validation found. */
struct trainer {
    const struct task_set *set;
    const struct task_train_options *o;
    struct task_matrix x;
    uint32_t k;
    /* [n] */
    uint32_t *row, *label;
    float *weight;
    uint32_t *fold;
    float *seen_logit, *unseen_logit; /* [n][k] */
    uint32_t done, total;
    struct task_scores unit[TASK_MAX_UNITS];
    uint32_t n_units;
};

static bool is_synthetic(const struct task_set *s, uint32_t source) {
    return strcmp(s->source[source], TASK_SYNTHETIC) == 0;
}

static bool report_progress(struct trainer *t, const char *phase) {
    return t->o->progress == NULL || t->o->progress(t->o->context, phase, t->done, t->total);
}

/* a^-p for a >= 1 */
static double inverse_power(double a, float p) {
    return math_exp(-(double)p * math_log(a));
}

void task_weigh(const struct task_set *s, const uint32_t *row, uint32_t n, float source_power,
                float *weight) {
    const size_t cells = (size_t)s->n_sources * TASK_MAX_LANGS * TASK_MAX_CLASSES;
    uint32_t *count = calloc(cells, sizeof *count);
    double mass[TASK_MAX_CLASSES] = {0};
    for (int pass = 0; pass < 3; pass++) {
        for (uint32_t i = 0; i < n; i++) {
            const struct task_row *r = &s->rows[row[i]];
            const size_t cell =
                ((size_t)r->source * TASK_MAX_LANGS + r->lang) * TASK_MAX_CLASSES + r->label;
            if (pass == 0) {
                if (count != NULL) count[cell]++;
            } else if (pass == 1) {
                const uint32_t c = count != NULL ? count[cell] : 1;
                weight[i] = (float)inverse_power(c > MIN_CELL ? c : MIN_CELL, source_power);
                mass[r->label] += (double)weight[i];
            } else {
                uint32_t present = 0;
                for (uint32_t c = 0; c < s->n_labels; c++) present += mass[c] > 0;
                weight[i] = (float)((double)weight[i] * n / (mass[r->label] * present));
            }
        }
    }
    free(count);
}

/* Trains on the n rows in t->row. */
static enum status fit_rows(struct trainer *t, uint32_t n, struct task_weights *w,
                            struct error *e) {
    for (uint32_t i = 0; i < n; i++) t->label[i] = t->set->rows[t->row[i]].label;
    task_weigh(t->set, t->row, n, t->o->source_power, t->weight);
    const struct task_fit_input in = {.x = &t->x,
                                      .dense_gain = t->o->dense_gain,
                                      .n_classes = t->k,
                                      .n = n,
                                      .row = t->row,
                                      .label = t->label,
                                      .weight = t->weight};
    const struct task_fit_options fit = {.epochs = t->o->epochs,
                                         .rate = t->o->rate,
                                         .l2 = 1 / (t->o->cost * (float)n),
                                         .seed = t->o->seed};
    return task_fit(&in, &fit, w, e);
}

/* ---- ablation ---- */

static const char *unit_name(uint32_t u, uint32_t n_fixed) {
    if (u < n_fixed) return task_dense_name(u);
    u -= n_fixed;
    if (u < task_words_n_categories()) return task_words_category(u);
    return task_block_name((enum task_block)(u - task_words_n_categories()));
}

static void ablate_row(struct trainer *t, const struct task_model *m, const struct task_features *f,
                       const float *logit, uint32_t truth) {
    const uint32_t lists = task_words_n_categories(), n_fixed = task_n_dense() - 2 * lists;
    for (uint32_t u = 0; u < t->n_units; u++) {
        float z[TASK_MAX_CLASSES] = {0}, p[TASK_MAX_CLASSES];
        if (u < n_fixed) {
            for (uint32_t c = 0; c < t->k; c++) z[c] = f->dense[u] * m->dense[u][c];
        } else if (u < n_fixed + lists) {
            for (uint32_t d = n_fixed + 2 * (u - n_fixed), e = d + 2; d < e; d++)
                for (uint32_t c = 0; c < t->k; c++) z[c] += f->dense[d] * m->dense[d][c];
        } else {
            task_add_block(m, f, u - n_fixed - lists, z);
        }
        for (uint32_t c = 0; c < t->k; c++) z[c] = logit[c] - z[c];
        task_softmax(z, t->k, 1, p);
        task_scores_add(&t->unit[u], truth, p, 0);
    }
}

/* ---- validation ---- */

/* Trains on what `held` does not hold out, and scores the rest into logits. */
static enum status run_fold(struct trainer *t,
                            bool (*held)(const struct trainer *, uint32_t, uint32_t),
                            uint32_t which, float *logits, bool ablate, struct error *e) {
    uint32_t n = 0;
    for (uint32_t r = 0; r < t->set->n; r++)
        if (!held(t, r, which)) t->row[n++] = r;
    t->done++;
    if (n == 0 || n == t->set->n) return STATUS_OK;
    struct task_weights w;
    struct task_model *m = NULL;
    enum status st = fit_rows(t, n, &w, e);
    if (st != STATUS_OK) return st;
    st = task_model_new(t->k, &m, e);
    if (st == STATUS_OK) task_model_quantise(m, &w);
    task_weights_free(&w);
    if (st != STATUS_OK) return st;
    for (uint32_t r = 0; r < t->set->n; r++) {
        if (!held(t, r, which)) continue;
        struct task_features f;
        struct task_verdict v;
        task_matrix_row(&t->x, r, &f);
        task_model_classify_features(m, &f, false, &v);
        memcpy(logits + (size_t)r * t->k, v.logit, t->k * sizeof *logits);
        if (ablate) ablate_row(t, m, &f, v.logit, t->set->rows[r].label);
    }
    task_model_free(m);
    return STATUS_OK;
}

static bool held_by_fold(const struct trainer *t, uint32_t row, uint32_t fold) {
    return !is_synthetic(t->set, t->set->rows[row].source) && t->fold[row] == fold;
}

static bool held_by_source(const struct trainer *t, uint32_t row, uint32_t source) {
    return t->set->rows[row].source == source;
}

static enum status validate(struct trainer *t, struct error *e) {
    const struct task_set *s = t->set;
    for (uint32_t r = 0; r < s->n; r++)
        t->fold[r] =
            t->o->folds ? (uint32_t)(rng_draw(t->o->seed, 1, r, RNG_AUDIT, 0) % t->o->folds) : 0;
    for (uint32_t f = 0; f < t->o->folds; f++) {
        if (!report_progress(t, "seen sources")) return STATUS_GONE;
        const enum status st = run_fold(t, held_by_fold, f, t->seen_logit, true, e);
        if (st != STATUS_OK) return st;
    }
    for (uint32_t k = 0; t->o->leave_sources_out && k < s->n_sources; k++) {
        if (is_synthetic(s, k)) continue;
        if (!report_progress(t, "unseen sources")) return STATUS_GONE;
        const enum status st = run_fold(t, held_by_source, k, t->unseen_logit, false, e);
        if (st != STATUS_OK) return st;
    }
    return STATUS_OK;
}

static bool is_held(const float *logit) {
    return isfinite(logit[0]);
}

/* One temperature for both kinds of held-out rows, each kind weighing the same. */
static enum status find_temperature(const struct trainer *t, float *temperature, struct error *e) {
    const uint32_t n = t->set->n, k = t->k;
    float *z = malloc(2 * (size_t)n * k * sizeof *z), *weight = malloc(2 * n * sizeof *weight);
    uint32_t *label = malloc(2 * n * sizeof *label);
    uint32_t used = 0, count[2] = {0};
    const bool ok = z && weight && label;
    for (int kind = 0; ok && kind < 2; kind++) {
        const float *from = kind ? t->unseen_logit : t->seen_logit;
        for (uint32_t r = 0; r < n; r++) {
            if (!is_held(from + (size_t)r * k)) continue;
            memcpy(z + (size_t)used * k, from + (size_t)r * k, k * sizeof *z);
            label[used] = t->set->rows[r].label;
            weight[used++] = (float)kind;
            count[kind]++;
        }
    }
    for (uint32_t i = 0; ok && i < used; i++) weight[i] = 1.0f / (float)count[weight[i] > 0];
    *temperature = ok && used > 0 ? task_fit_temperature(z, label, weight, used, k) : 1.0f;
    free(z);
    free(weight);
    free(label);
    return ok ? STATUS_OK : error_set(e, STATUS_NO_MEMORY, NULL, "no memory to calibrate");
}

static void score_kind(const struct trainer *t, float *logits, float temperature,
                       struct task_scores *all, struct task_scores *by_lang,
                       struct task_scores *by_source) {
    task_scores_init(all, t->k);
    for (uint32_t l = 0; l < TASK_MAX_LANGS; l++) task_scores_init(&by_lang[l], t->k);
    for (uint32_t s = 0; s < TASK_SET_MAX_SOURCES; s++) task_scores_init(&by_source[s], t->k);
    for (uint32_t r = 0; r < t->set->n; r++) {
        float *z = logits + (size_t)r * t->k, p[TASK_MAX_CLASSES];
        if (!is_held(z)) continue;
        const struct task_row *row = &t->set->rows[r];
        for (uint32_t c = 0; c < t->k; c++) z[c] /= temperature;
        task_softmax(z, t->k, 1, p);
        task_scores_add(all, row->label, p, t->o->abstain_below);
        task_scores_add(&by_lang[row->lang], row->label, p, t->o->abstain_below);
        task_scores_add(&by_source[row->source], row->label, p, t->o->abstain_below);
    }
}

static void make_report(struct trainer *t, float temperature, struct task_report *r) {
    r->n_rows = t->set->n;
    r->n_sources = t->set->n_sources;
    r->n_langs = t->set->n_langs;
    r->temperature = temperature;
    score_kind(t, t->seen_logit, temperature, &r->seen, r->seen_lang, r->seen_source);
    score_kind(t, t->unseen_logit, temperature, &r->unseen, r->unseen_lang, r->unseen_source);
    r->n_units = t->o->folds ? t->n_units : 0;
    const uint32_t n_fixed = task_n_dense() - 2 * task_words_n_categories();
    for (uint32_t u = 0; u < r->n_units; u++)
        r->ablation[u] =
            (struct task_ablation){unit_name(u, n_fixed), task_scores_macro_f1(&t->unit[u])};
    r->seen_logit = t->seen_logit;
    r->unseen_logit = t->unseen_logit;
    t->seen_logit = t->unseen_logit = NULL;
}

/* ---- the whole ---- */

static enum status check_set(const struct task_set *s, struct error *e) {
    uint32_t count[TASK_MAX_CLASSES] = {0};
    if (s->n_labels < 2)
        return error_set(e, STATUS_INVALID, "label", "training needs rows of two labels or more");
    for (uint32_t r = 0; r < s->n; r++) count[s->rows[r].label]++;
    for (uint32_t c = 0; c < s->n_labels; c++)
        if (count[c] == 0)
            return error_set(e, STATUS_INVALID, "label", "no row has the label %s", s->label[c]);
    return STATUS_OK;
}

static enum status trainer_init(struct trainer *t, const struct task_words *words,
                                struct error *e) {
    const uint32_t n = t->set->n;
    t->k = t->set->n_labels;
    const enum status st = task_matrix_build(t->set, words, &t->x, e);
    if (st != STATUS_OK) return st;
    t->row = malloc(n * sizeof *t->row);
    t->label = malloc(n * sizeof *t->label);
    t->weight = malloc(n * sizeof *t->weight);
    t->fold = malloc(n * sizeof *t->fold);
    t->seen_logit = malloc((size_t)n * t->k * sizeof *t->seen_logit);
    t->unseen_logit = malloc((size_t)n * t->k * sizeof *t->unseen_logit);
    if (!t->row || !t->label || !t->weight || !t->fold || !t->seen_logit || !t->unseen_logit)
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory to train");
    for (size_t i = 0; i < (size_t)n * t->k; i++) t->seen_logit[i] = t->unseen_logit[i] = NAN;
    t->n_units = task_n_dense() - task_words_n_categories() + TASK_N_BLOCKS;
    for (uint32_t u = 0; u < t->n_units; u++) task_scores_init(&t->unit[u], t->k);
    t->total = t->o->folds + (t->o->leave_sources_out ? t->set->n_sources : 0) + 1;
    return STATUS_OK;
}

static void trainer_free(struct trainer *t) {
    task_matrix_free(&t->x);
    free(t->row);
    free(t->label);
    free(t->weight);
    free(t->fold);
    free(t->seen_logit);
    free(t->unseen_logit);
}

static enum status copy_words(const struct task_words *words, struct task_words **out,
                              struct error *e) {
    struct buffer b;
    buffer_init(&b, TASK_MAX_WORDS_BYTES);
    task_words_write(words, &b);
    const enum status st = b.full ? error_set(e, STATUS_NO_MEMORY, NULL, "no memory for word lists")
                                  : task_words_parse(b.data, b.len, out, e);
    buffer_free(&b);
    return st;
}

static enum status final_model(struct trainer *t, const struct task_words *words, float temperature,
                               struct task_model **out, struct error *e) {
    struct task_weights w;
    for (uint32_t r = 0; r < t->set->n; r++) t->row[r] = r;
    t->done++;
    if (!report_progress(t, "all rows")) return STATUS_GONE;
    enum status st = fit_rows(t, t->set->n, &w, e);
    if (st != STATUS_OK) return st;
    struct task_model *m;
    st = task_model_new(t->k, &m, e);
    if (st == STATUS_OK) {
        task_model_quantise(m, &w);
        memcpy(m->label, t->set->label, sizeof m->label);
        memcpy(m->seen, t->x.seen, TASK_SEEN_BYTES);
        m->temperature = temperature;
        m->abstain_below = t->o->abstain_below;
        st = copy_words(words, &m->words, e);
        if (st == STATUS_OK)
            *out = m;
        else
            task_model_free(m);
    }
    task_weights_free(&w);
    return st;
}

enum status task_train(const struct task_set *set, const struct task_words *words,
                       const struct task_train_options *o, struct task_model **out,
                       struct task_report *report, struct error *e) {
    *out = NULL;
    if (report != NULL) memset(report, 0, sizeof *report);
    enum status st = check_set(set, e);
    if (st != STATUS_OK) return st;
    struct trainer *t = calloc(1, sizeof *t);
    if (t == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory to train");
    t->set = set;
    t->o = o;
    float temperature = 1;
    st = trainer_init(t, words, e);
    if (st == STATUS_OK) st = validate(t, e);
    if (st == STATUS_OK) st = find_temperature(t, &temperature, e);
    if (st == STATUS_OK) st = final_model(t, words, temperature, out, e);
    if (st == STATUS_OK && report != NULL) make_report(t, temperature, report);
    if (st == STATUS_GONE) st = error_set(e, st, NULL, "the training was stopped");
    trainer_free(t);
    free(t);
    return st;
}

void task_report_free(struct task_report *r) {
    free(r->seen_logit);
    free(r->unseen_logit);
    r->seen_logit = r->unseen_logit = NULL;
}

enum status task_test(const struct task_model *m, const struct task_set *set,
                      struct task_scores *all, struct task_scores *lang, struct error *e) {
    task_scores_init(all, m->n_classes);
    for (uint32_t l = 0; lang != NULL && l < TASK_MAX_LANGS; l++)
        task_scores_init(&lang[l], m->n_classes);
    struct task_workspace *w;
    const enum status st = task_workspace_new(&w, e);
    if (st != STATUS_OK) return st;
    for (uint32_t r = 0; r < set->n; r++) {
        const struct task_row *row = &set->rows[r];
        struct task_verdict v;
        task_model_classify(m, w, row->text, row->len, &v);
        task_scores_add(all, row->label, v.probability, m->abstain_below);
        if (lang != NULL)
            task_scores_add(&lang[row->lang], row->label, v.probability, m->abstain_below);
    }
    task_workspace_free(w);
    return STATUS_OK;
}
