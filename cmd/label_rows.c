#include "cmd/label_rows.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/usage.h"
#include "models/label_text.h"

enum { MAX_COLUMNS = 64, MAX_FILE_BYTES = 1 << 30 };

struct reader {
    char *at, *end;
    uint32_t line;
    const char *path;
    struct error *e;
};

static enum status bad(const struct reader *r, enum status s, const char *what) {
    return error_set(r->e, s, "labels", "%s, line %u: %s", r->path, r->line, what);
}

static bool at_line_end(const struct reader *r) {
    return r->at == r->end || *r->at == '\n' ||
           (*r->at == '\r' && r->at + 1 < r->end && r->at[1] == '\n');
}

static enum status read_quoted(struct reader *r, struct text *out) {
    char *to = ++r->at;
    out->data = to;
    for (;;) {
        if (r->at == r->end) return bad(r, STATUS_INVALID, "a quoted field does not end");
        if (*r->at == '"') {
            if (r->at + 1 == r->end || r->at[1] != '"') break;
            r->at++;
        }
        r->line += *r->at == '\n';
        *to++ = *r->at++;
    }
    out->len = (size_t)(to - out->data);
    r->at++;
    if (!at_line_end(r) && *r->at != ',')
        return bad(r, STATUS_INVALID, "text behind a quoted field");
    return STATUS_OK;
}

/* The fields of one line; those behind MAX_COLUMNS are refused. */
static enum status read_line(struct reader *r, struct text *fields, uint32_t *n) {
    for (*n = 0;; r->at++) {
        if (*n == MAX_COLUMNS) return bad(r, STATUS_TOO_LARGE, "too many columns");
        struct text *f = &fields[*n];
        if (r->at < r->end && *r->at == '"') {
            const enum status st = read_quoted(r, f);
            if (st != STATUS_OK) return st;
        } else {
            f->data = r->at;
            while (!at_line_end(r) && *r->at != ',') r->at++;
            f->len = (size_t)(r->at - f->data);
        }
        ++*n;
        if (at_line_end(r)) break;
    }
    if (r->at < r->end && *r->at == '\r') r->at++;
    if (r->at < r->end) r->at++;
    return STATUS_OK;
}

static bool is(const struct text *t, const char *s) {
    return t->len == strlen(s) && memcmp(t->data, s, t->len) == 0;
}

static enum status add_row(const struct reader *r, struct label_rows *rows, struct text text,
                           struct text label) {
    if (text.len == 0 || text.len > LABEL_ROW_BYTES)
        return bad(r, STATUS_INVALID, "a text has 1 to 65536 bytes");
    if (label.len == 0 || label.len > REQUEST_MAX_LABEL_BYTES)
        return bad(r, STATUS_INVALID, "a category has 1 to 128 bytes");
    if (rows->n == LABEL_MAX_ROWS) return bad(r, STATUS_TOO_LARGE, "too many rows");
    if (rows->n == rows->cap) {
        const uint32_t cap = rows->cap > 0 ? 2 * rows->cap : 1024;
        struct text *texts = realloc(rows->texts, cap * sizeof *texts);
        if (texts != NULL) rows->texts = texts;
        uint32_t *labels = realloc(rows->label, cap * sizeof *labels);
        if (labels != NULL) rows->label = labels;
        if (texts == NULL || labels == NULL) return bad(r, STATUS_NO_MEMORY, "out of memory");
        rows->cap = cap;
    }
    uint32_t i = 0;
    while (i < rows->n_labels && !(rows->labels[i].len == label.len &&
                                   memcmp(rows->labels[i].data, label.data, label.len) == 0))
        i++;
    if (i == REQUEST_MAX_LABELS) return bad(r, STATUS_TOO_LARGE, "more than 256 categories");
    if (i == rows->n_labels) rows->labels[rows->n_labels++] = label;
    rows->texts[rows->n] = text;
    rows->label[rows->n++] = i;
    return STATUS_OK;
}

static enum status read_rows(struct reader *r, struct label_rows *rows) {
    struct text fields[MAX_COLUMNS];
    uint32_t n, text = UINT32_MAX, category = UINT32_MAX;
    enum status st = read_line(r, fields, &n);
    for (uint32_t i = 0; st == STATUS_OK && i < n; i++) {
        if (is(&fields[i], "text")) text = i;
        if (is(&fields[i], "category")) category = i;
    }
    if (st == STATUS_OK && (text == UINT32_MAX || category == UINT32_MAX))
        return bad(r, STATUS_INVALID, "the columns text and category are wanted");
    while (st == STATUS_OK && r->at < r->end) {
        r->line++;
        st = read_line(r, fields, &n);
        if (st != STATUS_OK || (n == 1 && fields[0].len == 0)) continue;
        if (n <= text || n <= category) return bad(r, STATUS_INVALID, "a column is missing");
        st = add_row(r, rows, fields[text], fields[category]);
    }
    return st;
}

/* Labels in their sorted order, rows by it. */
static void sort_labels(struct label_rows *rows) {
    struct text sorted[REQUEST_MAX_LABELS];
    uint32_t order[REQUEST_MAX_LABELS], rank[REQUEST_MAX_LABELS];
    (void)label_sort(rows->labels, rows->n_labels, order);
    for (uint32_t i = 0; i < rows->n_labels; i++) {
        sorted[i] = rows->labels[order[i]];
        rank[order[i]] = i;
    }
    memcpy(rows->labels, sorted, rows->n_labels * sizeof *sorted);
    for (uint32_t i = 0; i < rows->n; i++) rows->label[i] = rank[rows->label[i]];
}

enum status label_rows_read(const char *path, struct label_rows *rows, struct error *e) {
    memset(rows, 0, sizeof *rows);
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        return error_set(e, STATUS_IO, "labels", "%s cannot be read: %s", path, strerror(errno));
    size_t len;
    enum status st = usage_read_all(f, MAX_FILE_BYTES, &rows->bytes, &len, e);
    fclose(f);
    if (st == STATUS_OK) {
        struct reader r = {
            .at = rows->bytes, .end = rows->bytes + len, .line = 1, .path = path, .e = e};
        if (len >= 3 && memcmp(r.at, "\xEF\xBB\xBF", 3) == 0) r.at += 3;
        st = read_rows(&r, rows);
    }
    if (st == STATUS_OK && rows->n_labels < 2)
        st = error_set(e, STATUS_INVALID, "labels",
                       "%s: rows of at least two categories are wanted", path);
    if (st == STATUS_OK)
        sort_labels(rows);
    else
        label_rows_free(rows);
    return st;
}

void label_rows_free(struct label_rows *rows) {
    free(rows->texts);
    free(rows->label);
    free(rows->bytes);
    memset(rows, 0, sizeof *rows);
}
