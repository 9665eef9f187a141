/* drift: whether a log of queries has moved away from its beginning. The rows are classified, and
 * three series (confidence, norm of the features, share of unseen terms; a fourth if the rows carry
 * "embedding_norm") and the classes are watched, over all rows and within each language. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "cmd/commands.h"
#include "cmd/task_files.h"
#include "cmd/usage.h"
#include "models/drift_watch.h"

static const char NAME[] = "drift";

enum { MAX_LINE_BYTES = 4 << 20 };

static const char *const SERIES_NAMES[] = {"confidence", "feature_norm", "unseen",
                                           "embedding_norm"};

struct watcher {
    const struct config *c;
    const struct task_model *model;
    struct task_workspace *w;
    bool started;
    struct drift_watch watch;
    struct task_scores scores; /* of the labelled rows */
};

static enum status start(struct watcher *k, bool with_norm, struct error *e) {
    struct drift_options o = drift_defaults(with_norm ? 4 : 3, task_model_n_classes(k->model));
    o.reference_rows = k->c->drift_reference;
    o.window_rows = k->c->drift_window;
    o.step_rows = k->c->drift_step;
    o.false_alarms = (double)k->c->false_alarms;
    k->started = true;
    return drift_watch_open(&k->watch, &o, e);
}

static enum status add_row(struct watcher *k, const json_t *row, struct error *e) {
    const json_t *text = json_object_get(row, "text");
    if (text == NULL) text = json_object_get(row, "prompt");
    if (!json_is_string(text))
        return error_set(e, STATUS_INVALID, NULL, "there is no string \"text\"");
    const json_t *norm = json_object_get(row, "embedding_norm");
    if (!k->started) {
        const enum status st = start(k, json_is_number(norm), e);
        if (st != STATUS_OK) return st;
    }
    if (k->watch.o.n_series == 4 && !json_is_number(norm))
        return error_set(e, STATUS_INVALID, NULL, "there is no number \"embedding_norm\"");
    struct task_verdict v;
    task_model_classify(k->model, k->w, json_string_value(text), json_string_length(text), &v);
    struct drift_row d = {
        .class = v.class, .value = {v.confidence, v.norm, v.unseen}, .right = DRIFT_UNKNOWN};
    if (k->watch.o.n_series == 4) d.value[3] = (float)json_number_value(norm);
    const char *label = json_string_value(json_object_get(row, "label"));
    const int truth = label ? task_model_class(k->model, label) : -1;
    if (truth >= 0) {
        d.right = (uint32_t)truth == v.class ? DRIFT_RIGHT : DRIFT_WRONG;
        task_scores_add(&k->scores, (uint32_t)truth, v.probability,
                        task_model_abstain_below(k->model));
    }
    const char *lang = json_string_value(json_object_get(row, "lang"));
    const bool chinese = lang ? strncmp(lang, "zh", 2) == 0 : v.han > 0.3f;
    (void)drift_watch_add(&k->watch, &d, chinese);
    return STATUS_OK;
}

static enum status read_rows(struct watcher *k, const char *path, struct error *e) {
    FILE *f = fopen(path, "rb");
    if (f == NULL) return error_set(e, STATUS_IO, NULL, "%s cannot be opened", path);
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    enum status st = STATUS_OK;
    for (size_t number = 1; st == STATUS_OK && (n = getline(&line, &cap, f)) > 0; number++) {
        if (line[strspn(line, " \t\r\n")] == '\0') continue;
        struct error why = {0};
        json_error_t where;
        json_t *row = n > MAX_LINE_BYTES ? NULL : json_loadb(line, (size_t)n, 0, &where);
        st = json_is_object(row) ? add_row(k, row, &why)
                                 : error_set(&why, STATUS_INVALID, NULL, "not a JSON object");
        json_decref(row);
        if (st != STATUS_OK)
            st = error_set(e, st, NULL, "%s:%zu: %.180s", path, number, why.message);
    }
    if (st == STATUS_OK && ferror(f)) st = error_set(e, STATUS_IO, NULL, "%s cannot be read", path);
    free(line);
    fclose(f);
    if (st == STATUS_OK && !k->watch.of[0].compared)
        st = error_set(e, STATUS_INVALID, NULL,
                       "%s has %" PRIu64 " rows; a comparison needs %" PRIu32
                       " of reference and %" PRIu32 " of window",
                       path, k->watch.rows, k->c->drift_reference, k->c->drift_window);
    return st;
}

/* ---- the report ---- */

static const char *series_name(const struct watcher *k, int by) {
    return by >= (int)k->watch.o.n_series ? "classes" : SERIES_NAMES[by];
}

static void write_number(struct json_writer *j, const char *key, double v) {
    json_write_key(j, key);
    json_write_double(j, v);
}

static void write_result(struct json_writer *j, const struct watcher *k,
                         const struct drift_result *r) {
    json_write_object(j);
    json_write_key(j, "series");
    json_write_object(j);
    for (uint32_t s = 0; s < k->watch.o.n_series; s++) {
        json_write_key(j, SERIES_NAMES[s]);
        json_write_object(j);
        write_number(j, "ks", r->ks[s]);
        write_number(j, "p", r->ks_p[s]);
        write_number(j, "mean_before", r->mean_before[s]);
        write_number(j, "mean_now", r->mean_now[s]);
        json_write_object_end(j);
    }
    json_write_object_end(j);
    write_number(j, "psi", r->psi);
    write_number(j, "psi_p", r->psi_p);
    if (r->labelled_now > 0) {
        write_number(j, "accuracy_before", r->accuracy_before);
        write_number(j, "accuracy_now", r->accuracy_now);
        write_number(j, "accuracy_p", r->accuracy_p);
    }
    json_write_key(j, "alarm_by");
    if (r->alarm)
        json_write_string(j, series_name(k, r->alarm_by));
    else
        json_write_null(j);
    json_write_object_end(j);
}

static void write_watch(struct json_writer *j, const struct watcher *k,
                        const struct drift_watched *w) {
    json_write_object(j);
    json_write_key(j, "alarm_row");
    if (w->alarmed)
        json_write_uint(j, w->alarm_row);
    else
        json_write_null(j);
    if (w->alarmed) {
        json_write_key(j, "at_alarm");
        write_result(j, k, &w->first_alarm);
    }
    json_write_key(j, "at_end");
    write_result(j, k, &w->last);
    json_write_object_end(j);
}

static bool retrain(const struct watcher *k) {
    for (uint32_t i = 0; i < DRIFT_WATCHES; i++)
        if (k->watch.of[i].alarmed && k->watch.of[i].last.falling) return true;
    return false;
}

static void write_report(struct json_writer *j, const struct watcher *k) {
    json_write_object(j);
    json_write_key(j, "rows");
    json_write_uint(j, k->watch.rows);
    json_write_key(j, "alarm");
    json_write_bool(j, drift_watch_alarmed(&k->watch));
    json_write_key(j, "retrain");
    json_write_bool(j, retrain(k));
    write_number(j, "false_alarms_per_1000_rows", k->watch.o.false_alarms);
    write_number(j, "p_threshold", k->watch.of[0].last.threshold);
    json_write_key(j, "monitors");
    json_write_object(j);
    for (uint32_t i = 0; i < DRIFT_WATCHES; i++) {
        if (!k->watch.of[i].compared) continue;
        json_write_key(j, drift_watch_name(i));
        write_watch(j, k, &k->watch.of[i]);
    }
    json_write_object_end(j);
    if (k->scores.n > 0) {
        json_write_key(j, "labelled");
        task_files_scores(j, &k->scores);
    }
    json_write_object_end(j);
}

static void print_watch(const struct watcher *k, uint32_t which) {
    const struct drift_watched *w = &k->watch.of[which];
    if (!w->compared) {
        printf("%-4s too few rows\n", drift_watch_name(which));
        return;
    }
    const struct drift_result *r = w->alarmed ? &w->first_alarm : &w->last;
    printf("%-4s ", drift_watch_name(which));
    if (w->alarmed)
        printf("ALARM at row %" PRIu64 " by %s (p %.2g)", w->alarm_row, series_name(k, r->alarm_by),
               r->p_least);
    else
        printf("no alarm (least p at the end %.2g)", r->p_least);
    putchar('\n');
    for (uint32_t s = 0; s < k->watch.o.n_series; s++)
        printf("       %-15s KS %.3f  p %-9.2g mean %.4g -> %.4g\n", SERIES_NAMES[s], r->ks[s],
               r->ks_p[s], r->mean_before[s], r->mean_now[s]);
    printf("       %-15s PSI %.3f  p %.2g\n", "classes", r->psi, r->psi_p);
    if (r->labelled_now > 0)
        printf("       %-15s %.3f -> %.3f  p %.2g\n", "accuracy", r->accuracy_before,
               r->accuracy_now, r->accuracy_p);
}

static enum status report(const struct watcher *k, struct error *e) {
    if (k->c->json) {
        struct buffer b;
        struct json_writer j;
        buffer_init(&b, 0);
        json_write_begin(&j, &b);
        write_report(&j, k);
        return task_files_print(&b, e);
    }
    printf("%" PRIu64 " rows; at most %g false alarms in 1,000 rows (p below %.2g)\n",
           k->watch.rows, k->watch.o.false_alarms, k->watch.of[0].last.threshold);
    for (uint32_t i = 0; i < DRIFT_WATCHES; i++) print_watch(k, i);
    if (retrain(k))
        printf("drift and falling accuracy: train a candidate (laconic train --adapt)\n");
    return STATUS_OK;
}

int cmd_drift(int argc, char **argv) {
    struct config c;
    int rc;
    if (!usage_parse(&c, argc, argv, &rc)) return rc;
    struct error e = {0};
    struct task_model *m = NULL;
    struct watcher k = {.c = &c};
    enum status st = task_files_model(&c, &m, &e);
    if (st == STATUS_OK) st = task_workspace_new(&k.w, &e);
    if (st == STATUS_OK) {
        k.model = m;
        task_scores_init(&k.scores, task_model_n_classes(m));
        st = read_rows(&k, c.positional[0], &e);
    }
    if (st == STATUS_OK) st = report(&k, &e);
    drift_watch_close(&k.watch);
    task_workspace_free(k.w);
    task_model_free(m);
    return st == STATUS_OK ? 0 : usage_fail(NAME, &e);
}
