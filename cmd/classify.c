/* classify: what kind of task a text is, by the task model. */
#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "cmd/commands.h"
#include "cmd/task_files.h"
#include "cmd/usage.h"

static const char NAME[] = "classify";
enum { MAX_TEXT_BYTES = 64 << 20 };

static void write_verdict(struct json_writer *j, const struct task_model *m,
                          const struct task_verdict *v) {
    json_write_object(j);
    json_write_key(j, "task_type");
    json_write_string(j, task_model_label(m, v->class));
    json_write_key(j, "abstained");
    json_write_bool(j, v->abstained);
    json_write_key(j, "confidence");
    json_write_float(j, v->confidence);
    json_write_key(j, "probabilities");
    json_write_object(j);
    for (uint32_t c = 0; c < task_model_n_classes(m); c++) {
        json_write_key(j, task_model_label(m, c));
        json_write_float(j, v->probability[c]);
    }
    json_write_object_end(j);
    json_write_key(j, "unseen");
    json_write_float(j, v->unseen);
    json_write_key(j, "reasons");
    json_write_array(j);
    for (uint32_t i = 0; i < TASK_N_REASONS && v->reasons[i].feature != NULL; i++) {
        json_write_object(j);
        json_write_key(j, "feature");
        json_write_string(j, v->reasons[i].feature);
        json_write_key(j, "score");
        json_write_float(j, v->reasons[i].score);
        json_write_object_end(j);
    }
    json_write_array_end(j);
    json_write_object_end(j);
}

static enum status classify(const struct config *c, const struct task_model *m,
                            struct task_workspace *w, const char *text, size_t len,
                            struct error *e) {
    struct task_features f;
    struct task_verdict v;
    task_features_extract(w, task_model_words(m), text, len, &f);
    task_model_classify_features(m, &f, true, &v);
    struct buffer b;
    buffer_init(&b, 0);
    if (c->json || c->json_lines) {
        struct json_writer j;
        json_write_begin(&j, &b);
        write_verdict(&j, m, &v);
    } else {
        buffer_printf(&b, "%s %.3f%s", task_model_label(m, v.class), (double)v.confidence,
                      v.abstained ? " (abstains)" : "");
    }
    return task_files_print(&b, e);
}

/* A line is a JSON string or an object with "text". */
static enum status lines(const struct config *c, const struct task_model *m,
                         struct task_workspace *w, struct error *e) {
    char *line = NULL;
    size_t cap = 0, number = 0;
    ssize_t n;
    enum status st = STATUS_OK;
    while (st == STATUS_OK && (n = getline(&line, &cap, stdin)) > 0) {
        json_error_t why;
        json_t *row = json_loadb(line, (size_t)n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
        const json_t *text = json_is_object(row) ? json_object_get(row, "text") : row;
        number++;
        st = json_is_string(text)
                 ? classify(c, m, w, json_string_value(text), json_string_length(text), e)
                 : error_set(e, STATUS_INVALID, NULL,
                             "line %zu is neither a JSON string nor an object with \"text\"",
                             number);
        json_decref(row);
    }
    free(line);
    return st;
}

static enum status whole(const struct config *c, const struct task_model *m,
                         struct task_workspace *w, struct error *e) {
    char *text;
    size_t len;
    enum status st = usage_read_all(stdin, MAX_TEXT_BYTES, &text, &len, e);
    if (st == STATUS_OK) st = classify(c, m, w, text, len, e);
    free(text);
    return st;
}

int cmd_classify(int argc, char **argv) {
    struct config c;
    int rc;
    if (!usage_parse(&c, argc, argv, &rc)) return rc;
    struct error e = {0};
    struct task_model *m = NULL;
    struct task_workspace *w = NULL;
    enum status st = task_files_model(&c, &m, &e);
    if (st == STATUS_OK) st = task_workspace_new(&w, &e);
    if (st == STATUS_OK) st = c.json_lines ? lines(&c, m, w, &e) : whole(&c, m, w, &e);
    task_workspace_free(w);
    task_model_free(m);
    return st == STATUS_OK ? 0 : usage_fail(NAME, &e);
}
