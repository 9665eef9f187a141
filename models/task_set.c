#include "models/task_set.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "models/task_model_impl.h"
#include "models/unicode.h"

void task_set_init(struct task_set *s) {
    memset(s, 0, sizeof *s);
}

void task_set_free(struct task_set *s) {
    for (uint32_t i = 0; i < s->n; i++) free(s->rows[i].text);
    free(s->rows);
    memset(s, 0, sizeof *s);
}

void task_set_use_labels(struct task_set *s, const struct task_model *m) {
    s->n_labels = task_model_n_classes(m);
    for (uint32_t c = 0; c < s->n_labels; c++)
        snprintf(s->label[c], sizeof s->label[c], "%s", task_model_label(m, c));
}

/* The index of the name in names[n][width], added if there is room and it may be; else -1. */
static int find_or_add(char *names, size_t width, uint32_t *n, uint32_t room, const char *name,
                       bool fixed) {
    for (uint32_t i = 0; i < *n; i++)
        if (strcmp(names + i * width, name) == 0) return (int)i;
    if (fixed || *n == room) return -1;
    snprintf(names + *n * width, width, "%s", name);
    return (int)(*n)++;
}

static bool is_label(const char *s) {
    const size_t n = strlen(s);
    if (n == 0 || n > TASK_MAX_LABEL_BYTES) return false;
    return s[strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789-_")] == '\0';
}

/* Bytes of the first TASK_MAX_CHARS code points. */
static size_t kept_bytes(const char *text, size_t len) {
    size_t at = 0;
    for (int i = 0; i < TASK_MAX_CHARS && at < len; i++) {
        uint32_t cp;
        at += utf8_decode(text + at, len - at, &cp);
    }
    return at;
}

static bool grow(struct task_set *s) {
    if (s->n < s->room) return true;
    const uint32_t room = s->room ? 2 * s->room : 1024;
    struct task_row *rows = realloc(s->rows, room * sizeof *rows);
    if (rows == NULL) return false;
    s->rows = rows;
    s->room = room;
    return true;
}

enum status task_set_add(struct task_set *s, const char *text, size_t len, const char *label,
                         const char *source, const char *lang, bool fixed, struct error *e) {
    if (s->n == TASK_SET_MAX_ROWS)
        return error_set(e, STATUS_TOO_LARGE, NULL, "over %d rows", TASK_SET_MAX_ROWS);
    if (!is_label(label))
        return error_set(e, STATUS_INVALID, "label",
                         "a label has 1 to %d of the characters a-z, 0-9, '-' and '_', not '%.40s'",
                         TASK_MAX_LABEL_BYTES, label);
    char key[TASK_MAX_SOURCE_BYTES + 1];
    snprintf(key, sizeof key, "%.*s", source ? (int)strcspn(source, ":+") : 1,
             source ? source : "?");
    const int l =
        find_or_add(s->label[0], sizeof s->label[0], &s->n_labels, TASK_MAX_CLASSES, label, fixed);
    if (l < 0)
        return error_set(e, STATUS_INVALID, "label",
                         fixed ? "the model has no label '%s'"
                               : "'%s' is a label too many: a model has at most six",
                         label);
    const int k = find_or_add(s->source[0], sizeof s->source[0], &s->n_sources,
                              TASK_SET_MAX_SOURCES, key, false);
    if (k < 0)
        return error_set(e, STATUS_TOO_LARGE, "source", "over %d sources", TASK_SET_MAX_SOURCES);
    int g = find_or_add(s->lang[0], sizeof s->lang[0], &s->n_langs, TASK_MAX_LANGS,
                        lang ? lang : "?", false);
    if (g < 0) g = TASK_MAX_LANGS - 1;
    const size_t kept = kept_bytes(text, len);
    char *copy = malloc(kept + 1);
    if (copy == NULL || !grow(s)) {
        free(copy);
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the rows");
    }
    memcpy(copy, text, kept);
    copy[kept] = '\0';
    s->rows[s->n++] =
        (struct task_row){copy, (uint32_t)kept, (uint32_t)l, (uint32_t)k, (uint32_t)g};
    return STATUS_OK;
}

static enum status add_line(struct task_set *s, const char *line, size_t len, bool fixed,
                            struct error *e) {
    json_error_t why;
    json_t *row = json_loadb(line, len, JSON_ALLOW_NUL, &why);
    if (row == NULL) return error_set(e, STATUS_INVALID, NULL, "not JSON: %s", why.text);
    const json_t *text = json_object_get(row, "text");
    if (text == NULL) text = json_object_get(row, "prompt");
    const char *label = json_string_value(json_object_get(row, "label"));
    enum status st;
    if (!json_is_string(text) || label == NULL)
        st = error_set(e, STATUS_INVALID, NULL, "a row needs the strings \"text\" and \"label\"");
    else
        st = task_set_add(s, json_string_value(text), json_string_length(text), label,
                          json_string_value(json_object_get(row, "source")),
                          json_string_value(json_object_get(row, "lang")), fixed, e);
    json_decref(row);
    return st;
}

static enum status load_lines(struct task_set *s, FILE *f, const char *path, bool fixed,
                              struct error *e) {
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    enum status st = STATUS_OK;
    for (size_t number = 1; st == STATUS_OK && (n = getline(&line, &cap, f)) > 0; number++) {
        if (line[strspn(line, " \t\r\n")] == '\0') continue;
        struct error why = {0};
        if (n > TASK_MAX_LINE_BYTES)
            st = error_set(&why, STATUS_TOO_LARGE, NULL, "a line over %d bytes",
                           TASK_MAX_LINE_BYTES);
        else
            st = add_line(s, line, (size_t)n, fixed, &why);
        if (st != STATUS_OK)
            st = error_set(e, st, why.field, "%s:%zu: %.180s", path, number, why.message);
    }
    free(line);
    if (st == STATUS_OK && ferror(f))
        st = error_set(e, STATUS_IO, NULL, "%s: cannot be read", path);
    return st;
}

enum status task_set_load(struct task_set *s, const char *path, bool fixed, struct error *e) {
    FILE *f = fopen(path, "rb");
    if (f == NULL) return error_set(e, STATUS_IO, NULL, "%s: cannot be opened", path);
    const enum status st = load_lines(s, f, path, fixed, e);
    fclose(f);
    return st;
}

void task_matrix_free(struct task_matrix *m) {
    free(m->dense);
    free(m->row_start);
    free(m->block_end);
    free(m->index);
    free(m->value);
    free(m->seen);
    memset(m, 0, sizeof *m);
}

static bool matrix_room(struct task_matrix *m, uint64_t used, uint32_t more) {
    if (used + more <= m->room) return true;
    const uint64_t room = 2 * (m->room + more);
    uint16_t *index = realloc(m->index, room * sizeof *index);
    if (index != NULL) m->index = index;
    float *value = realloc(m->value, room * sizeof *value);
    if (value != NULL) m->value = value;
    if (index == NULL || value == NULL) return false;
    m->room = room;
    return true;
}

static bool matrix_rows(const struct task_set *s, const struct task_words *words,
                        struct task_workspace *w, struct task_matrix *m) {
    uint64_t used = 0;
    for (uint32_t r = 0; r < s->n; r++) {
        struct task_features f;
        task_features_extract(w, words, s->rows[r].text, s->rows[r].len, &f);
        if (!matrix_room(m, used, f.n)) return false;
        memcpy(m->dense + (size_t)r * m->n_dense, f.dense, m->n_dense * sizeof *m->dense);
        memcpy(m->index + used, f.index, f.n * sizeof *m->index);
        memcpy(m->value + used, f.value, f.n * sizeof *m->value);
        for (uint32_t b = 0; b < TASK_N_BLOCKS; b++)
            m->block_end[(size_t)r * TASK_N_BLOCKS + b] = f.block_start[b + 1];
        for (uint32_t i = 0; i < f.n_terms; i++) {
            const uint32_t bit = task_seen_bit(f.terms[i]);
            m->seen[bit / 8] |= (uint8_t)(1u << bit % 8);
        }
        used += f.n;
        m->row_start[r + 1] = used;
    }
    return true;
}

enum status task_matrix_build(const struct task_set *s, const struct task_words *words,
                              struct task_matrix *m, struct error *e) {
    const size_t n = s->n ? s->n : 1;
    *m = (struct task_matrix){.n = s->n, .n_dense = task_n_dense()};
    struct task_workspace *w = NULL;
    m->dense = calloc(n * m->n_dense, sizeof *m->dense);
    m->row_start = calloc(n + 1, sizeof *m->row_start);
    m->block_end = calloc(n * TASK_N_BLOCKS, sizeof *m->block_end);
    m->seen = calloc(1, TASK_SEEN_BYTES);
    const bool ok = m->dense && m->row_start && m->block_end && m->seen &&
                    task_workspace_new(&w, e) == STATUS_OK && matrix_rows(s, words, w, m);
    task_workspace_free(w);
    if (ok) return STATUS_OK;
    task_matrix_free(m);
    return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the features");
}
