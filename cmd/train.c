/* train: a task model from labelled texts, or a candidate that corrects an old one. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/commands.h"
#include "cmd/task_files.h"
#include "cmd/train_head.h"
#include "cmd/usage.h"
#include "core/clock.h"
#include "models/task_train.h"

static const char NAME[] = "train";

struct train {
    const struct config *c;
    struct task_train_options o;
    struct task_words *words;
    struct task_set rows, replay, check;
    struct task_model *old, *new;
    struct task_report *report;
    struct task_scores check_old, check_new, check_lang[TASK_MAX_LANGS];
    struct task_scores head, both; /* unseen sources: the second look alone, and with the first */
    double seconds;
};

static bool show_progress(void *context, const char *phase, uint32_t done, uint32_t total) {
    (void)context;
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r%s: %" PRIu32 " of %" PRIu32 "%s", phase, done, total,
                done == total ? "\n" : "  ");
    return true;
}

static enum status load(struct train *t, struct error *e) {
    const struct config *c = t->c;
    enum status st = task_files_words(c, &t->words, e);
    if (st == STATUS_OK && c->adapt_path != NULL) {
        st = task_model_open(c->adapt_path, &t->old, e);
        if (st != STATUS_OK) return st;
        task_set_use_labels(&t->rows, t->old);
        task_set_use_labels(&t->replay, t->old);
    }
    const bool fixed = t->old != NULL;
    for (uint32_t i = 0; st == STATUS_OK && i < c->n_positional; i++)
        st = task_set_load(&t->rows, c->positional[i], fixed, e);
    if (st == STATUS_OK && c->replay_path != NULL)
        st = task_set_load(&t->replay, c->replay_path, fixed, e);
    return st;
}

static enum status train(struct train *t, struct error *e) {
    const uint64_t start = clock_now_ns();
    t->o.progress = show_progress;
    enum status st =
        t->old ? task_adapt(t->old, &t->rows, t->replay.n ? &t->replay : NULL, &t->o, &t->new, e)
               : task_train(&t->rows, t->words, &t->o, &t->new, t->report, e);
    if (st == STATUS_OK && t->c->head_model != NULL)
        st = train_head(t->c, &t->rows, &t->o, t->report->unseen_logit, t->new, &t->head, &t->both,
                        e);
    t->seconds = (double)(clock_now_ns() - start) / 1e9;
    return st;
}

static enum status check(struct train *t, struct error *e) {
    if (t->c->check_path == NULL) return STATUS_OK;
    task_set_use_labels(&t->check, t->new);
    enum status st = task_set_load(&t->check, t->c->check_path, true, e);
    if (st == STATUS_OK) st = task_test(t->new, &t->check, &t->check_new, t->check_lang, e);
    if (st == STATUS_OK && t->old) st = task_test(t->old, &t->check, &t->check_old, NULL, e);
    return st;
}

/* What the file itself says of its making. */
static enum status note(struct train *t, struct error *e) {
    struct buffer b;
    struct json_writer j;
    buffer_init(&b, TASK_MAX_NOTES_BYTES);
    json_write_begin(&j, &b);
    json_write_object(&j);
    json_write_key(&j, "rows");
    json_write_uint(&j, t->rows.n);
    if (t->report->seen.n > 0) {
        json_write_key(&j, "seen_sources");
        task_files_scores(&j, &t->report->seen);
        json_write_key(&j, "unseen_sources");
        task_files_scores(&j, &t->report->unseen);
        if (t->both.n > 0) {
            json_write_key(&j, "unseen_sources_both_looks");
            task_files_scores(&j, &t->both);
        }
    }
    json_write_object_end(&j);
    const char *text = buffer_cstr(&b);
    if (text != NULL) task_model_set_notes(t->new, text);
    buffer_free(&b);
    return text ? STATUS_OK : error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the notes");
}

/* ---- the report ---- */

static void write_by_name(struct json_writer *j, const char *names, size_t width, uint32_t n,
                          const struct task_scores *s) {
    json_write_object(j);
    for (uint32_t i = 0; i < n; i++) {
        if (s[i].n == 0) continue;
        json_write_key(j, names + i * width);
        task_files_scores(j, &s[i]);
    }
    json_write_object_end(j);
}

static void write_kind(struct json_writer *j, const struct task_set *s, const char *kind,
                       const struct task_scores *all, const struct task_scores *lang,
                       const struct task_scores *source) {
    if (all->n == 0) return;
    json_write_key(j, kind);
    json_write_object(j);
    json_write_key(j, "all");
    task_files_scores(j, all);
    json_write_key(j, "by_language");
    write_by_name(j, s->lang[0], sizeof s->lang[0], s->n_langs, lang);
    json_write_key(j, "by_source");
    write_by_name(j, s->source[0], sizeof s->source[0], s->n_sources, source);
    json_write_object_end(j);
}

static void write_ablation(struct json_writer *j, const struct task_report *r) {
    if (r->n_units == 0) return;
    json_write_key(j, "macro_f1_lost_without");
    json_write_object(j);
    const double whole = task_scores_macro_f1(&r->seen);
    for (uint32_t u = 0; u < r->n_units; u++) {
        json_write_key(j, r->ablation[u].unit);
        json_write_double(j, whole - r->ablation[u].macro_f1);
    }
    json_write_object_end(j);
}

static void write_report(struct json_writer *j, const struct train *t) {
    json_write_object(j);
    json_write_key(j, "rows");
    json_write_uint(j, t->rows.n);
    json_write_key(j, "seconds");
    json_write_double(j, t->seconds);
    json_write_key(j, "labels");
    json_write_array(j);
    for (uint32_t c = 0; c < task_model_n_classes(t->new); c++)
        json_write_string(j, task_model_label(t->new, c));
    json_write_array_end(j);
    if (t->old == NULL) {
        const struct task_report *r = t->report;
        json_write_key(j, "temperature");
        json_write_float(j, r->temperature);
        write_kind(j, &t->rows, "seen_sources", &r->seen, r->seen_lang, r->seen_source);
        write_kind(j, &t->rows, "unseen_sources", &r->unseen, r->unseen_lang, r->unseen_source);
        write_ablation(j, r);
        if (t->both.n > 0) {
            json_write_key(j, "unseen_sources_head_alone");
            task_files_scores(j, &t->head);
            json_write_key(j, "unseen_sources_both_looks");
            task_files_scores(j, &t->both);
        }
    }
    if (t->check.n > 0) {
        json_write_key(j, "check");
        task_files_scores(j, &t->check_new);
        json_write_key(j, "check_by_language");
        write_by_name(j, t->check.lang[0], sizeof t->check.lang[0], t->check.n_langs,
                      t->check_lang);
        if (t->old != NULL) {
            json_write_key(j, "check_old_model");
            task_files_scores(j, &t->check_old);
        }
    }
    json_write_object_end(j);
}

static void print_line(const char *what, const struct task_scores *s) {
    if (s->n == 0) return;
    printf("%-28s %7" PRIu32 " rows  accuracy %.4f  macro-F1 %.4f  ECE %.4f  abstains %.1f %%\n",
           what, s->n, task_scores_accuracy(s), task_scores_macro_f1(s), task_scores_ece(s),
           100.0 * s->abstained / s->n);
}

static void print_labels(const struct train *t, const char *kind, const struct task_scores *lang) {
    for (uint32_t l = 0; l < t->rows.n_langs; l++)
        for (uint32_t c = 0; c < t->rows.n_labels; c++) {
            uint32_t n = 0;
            for (uint32_t a = 0; a < t->rows.n_labels; a++) n += lang[l].confusion[c][a];
            if (n > 0)
                printf("  %s %s %-20s %7" PRIu32 " rows  recall %.3f\n", kind, t->rows.lang[l],
                       t->rows.label[c], n, task_scores_recall(&lang[l], c));
        }
}

static void print_confusion(const struct train *t, const struct task_scores *s) {
    printf("confusion on unseen sources (rows: truth)\n");
    for (uint32_t c = 0; c < t->rows.n_labels; c++) {
        printf("  %-20s", t->rows.label[c]);
        for (uint32_t a = 0; a < t->rows.n_labels; a++) printf(" %6" PRIu32, s->confusion[c][a]);
        putchar('\n');
    }
}

static void print_ablation(const struct task_report *r) {
    const double whole = task_scores_macro_f1(&r->seen);
    printf("macro-F1 lost without (0.0005 and more)\n");
    for (uint32_t u = 0; u < r->n_units; u++)
        if (whole - r->ablation[u].macro_f1 >= 0.0005)
            printf("  %-20s %.4f\n", r->ablation[u].unit, whole - r->ablation[u].macro_f1);
}

static void print_report(const struct train *t) {
    printf("%" PRIu32 " rows, %.1f s\n", t->rows.n, t->seconds);
    if (t->old == NULL && t->report->seen.n > 0) {
        const struct task_report *r = t->report;
        print_line("seen sources", &r->seen);
        print_line("unseen sources", &r->unseen);
        print_line("unseen, second look alone", &t->head);
        print_line("unseen, both looks", &t->both);
        for (uint32_t s = 0; s < t->rows.n_sources; s++)
            if (r->unseen_source[s].n > 0)
                printf("  unseen %-24s %7" PRIu32 " rows  accuracy %.3f\n", t->rows.source[s],
                       r->unseen_source[s].n, task_scores_accuracy(&r->unseen_source[s]));
        print_labels(t, "seen", r->seen_lang);
        print_labels(t, "unseen", r->unseen_lang);
        print_confusion(t, &r->unseen);
        print_ablation(r);
    }
    if (t->old != NULL) print_line("check, old model", &t->check_old);
    print_line("check", &t->check_new);
}

static enum status report(const struct train *t, struct error *e) {
    if (!t->c->json) {
        print_report(t);
        return STATUS_OK;
    }
    struct buffer b;
    struct json_writer j;
    buffer_init(&b, 0);
    json_write_begin(&j, &b);
    write_report(&j, t);
    return task_files_print(&b, e);
}

int cmd_train(int argc, char **argv) {
    struct config c;
    int rc;
    if (!usage_parse(&c, argc, argv, &rc)) return rc;
    if (c.replay_path != NULL && c.adapt_path == NULL) {
        fprintf(stderr, "laconic train: --replay goes with --adapt\n");
        return 2;
    }
    if (c.head_model != NULL && (c.adapt_path != NULL || c.no_validation)) {
        fprintf(stderr, "laconic train: --head goes with neither --adapt nor --no-validation\n");
        return 2;
    }
    struct error e = {0};
    struct train t = {.c = &c, .o = task_train_defaults()};
    t.o.epochs = c.train_epochs;
    t.o.abstain_below = c.abstain_below;
    t.o.cost = c.train_cost > 0 ? c.train_cost : c.adapt_path ? TASK_ADAPT_COST : t.o.cost;
    if (c.seed_given) t.o.seed = c.seed;
    if (c.no_validation) t.o.folds = 0, t.o.leave_sources_out = false;
    t.report = calloc(1, sizeof *t.report);
    enum status st = t.report ? STATUS_OK : error_set(&e, STATUS_NO_MEMORY, NULL, "no memory");
    if (st == STATUS_OK) st = load(&t, &e);
    if (st == STATUS_OK) st = train(&t, &e);
    if (st == STATUS_OK) st = check(&t, &e);
    if (st == STATUS_OK && t.old == NULL) st = note(&t, &e);
    if (st == STATUS_OK) st = task_model_save(t.new, c.out_path, &e);
    if (st == STATUS_OK) st = report(&t, &e);
    if (t.report != NULL) task_report_free(t.report);
    free(t.report);
    task_model_free(t.old);
    task_model_free(t.new);
    task_words_free(t.words);
    task_set_free(&t.rows);
    task_set_free(&t.replay);
    task_set_free(&t.check);
    return st == STATUS_OK ? 0 : usage_fail(NAME, &e);
}
