#include "core/metric.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/check.h"
#include "core/clock.h"

enum metric_kind { KIND_COUNTER, KIND_GAUGE, KIND_HISTOGRAM };
enum metric_labels {
    LABELS_PLAIN,
    LABELS_OUTCOME_TASK,
    LABELS_TASK,
    LABELS_REASON,
    LABELS_STEP,
    LABELS_PAGE,
    LABELS_CODE,
    LABELS_DRAFT,
    LABELS_AUDIT,
    LABELS_INFO,
};

struct metric_row {
    const char *name, *help;
    enum metric_kind kind;
    enum metric_labels labels;
    uint32_t n_labels;
    int cell, time;
};

static const struct metric_row rows[METRIC_COUNT] = {
#define X(code, kind_, name_, labels_, help_)                                                      \
    [code] = {.name = name_,                                                                       \
              .help = help_,                                                                       \
              .kind = KIND_##kind_,                                                                \
              .labels = LABELS_##labels_,                                                          \
              .n_labels = METRIC_N_##labels_,                                                      \
              .cell = code##_FIRST_CELL,                                                           \
              .time = code##_FIRST_TIME},
    METRIC_LIST(X)
#undef X
};

#define X(code, value) value,
static const char *const outcomes[] = {METRIC_OUTCOME_LIST(X)};
static const char *const tasks[] = {METRIC_TASK_LIST(X)};
static const char *const reasons[] = {METRIC_REASON_LIST(X)};
static const char *const steps[] = {METRIC_STEP_LIST(X)};
static const char *const pages[] = {METRIC_PAGE_LIST(X)};
static const char *const codes[] = {METRIC_CODE_LIST(X)};
static const char *const drafts[] = {METRIC_DRAFT_LIST(X)};
static const char *const draft_outcomes[] = {METRIC_DRAFT_OUTCOME_LIST(X)};
static const char *const audit_forms[] = {METRIC_AUDIT_FORM_LIST(X)};
static const char *const audit_outcomes[] = {METRIC_AUDIT_OUTCOME_LIST(X)};
#undef X

void metric_init(struct metrics *m) {
    memset(m, 0, sizeof *m);
    for (int i = 0; i < METRIC_TIMES; i++) histogram_init(&m->times[i]);
    metric_set(m, METRIC_START_TIME, 0, (double)clock_wall_s());
    metric_set(m, METRIC_BUILD_INFO, 0, 1);
    metric_set(m, METRIC_TASK_ACCURACY, 0, NAN);
    metric_set(m, METRIC_DRIFT_P, 0, NAN);
}

void metric_set_info(struct metrics *m, const char *version, const char *model, const char *isa,
                     const char *backend, const char *io) {
    snprintf(m->info.version, sizeof m->info.version, "%s", version);
    snprintf(m->info.model, sizeof m->info.model, "%s", model);
    snprintf(m->info.isa, sizeof m->info.isa, "%s", isa);
    snprintf(m->info.backend, sizeof m->info.backend, "%s", backend);
    snprintf(m->info.io, sizeof m->info.io, "%s", io);
}

static const struct metric_row *row_of(enum metric id, enum metric_kind kind, uint32_t label) {
    CHECK((unsigned)id < METRIC_COUNT);
    const struct metric_row *row = &rows[id];
    CHECK(row->kind == kind && label < row->n_labels);
    return row;
}

void metric_add(struct metrics *m, enum metric id, uint32_t label, uint64_t n) {
    m->cells[(uint32_t)row_of(id, KIND_COUNTER, label)->cell + label].count += n;
}

void metric_set(struct metrics *m, enum metric id, uint32_t label, double value) {
    m->cells[(uint32_t)row_of(id, KIND_GAUGE, label)->cell + label].value = value;
}

void metric_time(struct metrics *m, enum metric id, uint32_t label, uint64_t ns) {
    histogram_add(&m->times[(uint32_t)row_of(id, KIND_HISTOGRAM, label)->time + label], ns);
}

uint64_t metric_count(const struct metrics *m, enum metric id, uint32_t label) {
    return m->cells[(uint32_t)row_of(id, KIND_COUNTER, label)->cell + label].count;
}

double metric_value(const struct metrics *m, enum metric id, uint32_t label) {
    return m->cells[(uint32_t)row_of(id, KIND_GAUGE, label)->cell + label].value;
}

const struct histogram *metric_times(const struct metrics *m, enum metric id, uint32_t label) {
    return &m->times[(uint32_t)row_of(id, KIND_HISTOGRAM, label)->time + label];
}

enum metric_code metric_code_of(int http_status) {
    for (int i = 0; i < METRIC_CODE_OTHER; i++) {
        if (atoi(codes[i]) == http_status) return (enum metric_code)i;
    }
    return METRIC_CODE_OTHER;
}

const char *metric_task_name(enum metric_task task) {
    CHECK((unsigned)task < METRIC_TASK_COUNT);
    return tasks[task];
}

bool metric_task_find(const char *name, size_t n, enum metric_task *out) {
    for (int i = 0; i < METRIC_TASK_NONE; i++) {
        if (strlen(tasks[i]) != n || memcmp(tasks[i], name, n) != 0) continue;
        *out = (enum metric_task)i;
        return true;
    }
    *out = METRIC_TASK_NONE;
    return false;
}

void metric_read_process(struct metrics *m) {
    char text[128];
    const int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return;
    text[n] = '\0';
    unsigned long total_pages, resident_pages;
    if (sscanf(text, "%lu %lu", &total_pages, &resident_pages) != 2) return;
    metric_set(m, METRIC_RESIDENT_MEMORY, 0,
               (double)resident_pages * (double)sysconf(_SC_PAGESIZE));
}

/* Bytes of the UTF-8 sequence at s, or 0 when there is none (RFC 3629). */
static size_t utf8_sequence(const char *text) {
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80) return 1;
    size_t n;
    unsigned char least = 0x80, most = 0xbf; /* of the second byte */
    if (s[0] >= 0xc2 && s[0] <= 0xdf)
        n = 2;
    else if (s[0] >= 0xe0 && s[0] <= 0xef)
        n = 3;
    else if (s[0] >= 0xf0 && s[0] <= 0xf4)
        n = 4;
    else
        return 0;
    if (s[0] == 0xe0) least = 0xa0;
    if (s[0] == 0xed) most = 0x9f;
    if (s[0] == 0xf0) least = 0x90;
    if (s[0] == 0xf4) most = 0x8f;
    if (s[1] < least || s[1] > most) return 0;
    for (size_t i = 2; i < n; i++) {
        if (s[i] < 0x80 || s[i] > 0xbf) return 0;
    }
    return n;
}

/* A label's value may hold anything in UTF-8, with \ " and newline escaped. A model's name comes
 * from a file, so other bytes become question marks. */
static void render_label(struct buffer *out, const char *name, const char *value, bool first) {
    if (!first) buffer_putc(out, ',');
    buffer_puts(out, name);
    buffer_puts(out, "=\"");
    while (*value != '\0') {
        const size_t n = utf8_sequence(value);
        if (n == 0)
            buffer_putc(out, '?');
        else if (*value == '\\')
            buffer_puts(out, "\\\\");
        else if (*value == '"')
            buffer_puts(out, "\\\"");
        else if (*value == '\n')
            buffer_puts(out, "\\n");
        else
            buffer_append(out, value, n);
        value += n != 0 ? n : 1;
    }
    buffer_putc(out, '"');
}

/* The labels of one series, without braces; true when there are any. */
static bool render_labels(const struct metrics *m, struct buffer *out, enum metric_labels labels,
                          uint32_t i) {
    switch (labels) {
    case LABELS_PLAIN:
        return false;
    case LABELS_OUTCOME_TASK:
        render_label(out, "outcome", outcomes[i / METRIC_TASK_COUNT], true);
        render_label(out, "task", tasks[i % METRIC_TASK_COUNT], false);
        return true;
    case LABELS_REASON:
        render_label(out, "reason", reasons[i], true);
        return true;
    case LABELS_STEP:
        render_label(out, "kind", steps[i], true);
        return true;
    case LABELS_PAGE:
        render_label(out, "state", pages[i], true);
        return true;
    case LABELS_CODE:
        render_label(out, "code", codes[i], true);
        return true;
    case LABELS_TASK:
        render_label(out, "task", tasks[i], true);
        return true;
    case LABELS_DRAFT:
        render_label(out, "source", drafts[i / METRIC_DRAFT_OUTCOME_COUNT], true);
        render_label(out, "outcome", draft_outcomes[i % METRIC_DRAFT_OUTCOME_COUNT], false);
        return true;
    case LABELS_AUDIT:
        render_label(out, "form", audit_forms[i / (METRIC_AUDIT_OUTCOME_COUNT * METRIC_TASK_COUNT)],
                     true);
        render_label(out, "task", tasks[i / METRIC_AUDIT_OUTCOME_COUNT % METRIC_TASK_COUNT], false);
        render_label(out, "outcome", audit_outcomes[i % METRIC_AUDIT_OUTCOME_COUNT], false);
        return true;
    case LABELS_INFO:
        render_label(out, "version", m->info.version, true);
        render_label(out, "model", m->info.model, false);
        render_label(out, "isa", m->info.isa, false);
        render_label(out, "backend", m->info.backend, false);
        render_label(out, "io", m->info.io, false);
        return true;
    }
    return false;
}

/* `name{labels} `, with le as the last label if it is not NULL. */
static void render_series(const struct metrics *m, struct buffer *out, const struct metric_row *row,
                          const char *suffix, uint32_t label, const char *le) {
    buffer_puts(out, row->name);
    buffer_puts(out, suffix);
    if (row->labels != LABELS_PLAIN || le != NULL) {
        buffer_putc(out, '{');
        const bool any = render_labels(m, out, row->labels, label);
        if (le != NULL) render_label(out, "le", le, !any);
        buffer_putc(out, '}');
    }
    buffer_putc(out, ' ');
}

static void render_histogram(const struct metrics *m, struct buffer *out,
                             const struct metric_row *row, uint32_t label) {
    const struct histogram *h = &m->times[(uint32_t)row->time + label];
    uint64_t counts[HISTOGRAM_BOUNDS];
    histogram_cumulative(h, counts);
    for (size_t i = 0; i < HISTOGRAM_BOUNDS; i++) {
        char le[32];
        snprintf(le, sizeof le, "%g", (double)histogram_bound_ns(i) / 1e9);
        render_series(m, out, row, "_bucket", label, le);
        buffer_printf(out, "%llu\n", (unsigned long long)counts[i]);
    }
    render_series(m, out, row, "_bucket", label, "+Inf");
    buffer_printf(out, "%llu\n", (unsigned long long)h->count);
    render_series(m, out, row, "_sum", label, NULL);
    buffer_printf(out, "%llu.%09llu\n", (unsigned long long)(h->sum_ns / 1000000000u),
                  (unsigned long long)(h->sum_ns % 1000000000u));
    render_series(m, out, row, "_count", label, NULL);
    buffer_printf(out, "%llu\n", (unsigned long long)h->count);
}

static void render_gauge(struct buffer *out, double v) {
    if (isnan(v))
        buffer_puts(out, "NaN\n");
    else if (isinf(v))
        buffer_puts(out, v > 0 ? "+Inf\n" : "-Inf\n");
    else
        buffer_printf(out, "%.17g\n", v);
}

void metric_render(const struct metrics *m, struct buffer *out) {
    static const char *const kinds[] = {
        [KIND_COUNTER] = "counter", [KIND_GAUGE] = "gauge", [KIND_HISTOGRAM] = "histogram"};
    for (int id = 0; id < METRIC_COUNT; id++) {
        const struct metric_row *row = &rows[id];
        buffer_printf(out, "# HELP %s %s\n# TYPE %s %s\n", row->name, row->help, row->name,
                      kinds[row->kind]);
        for (uint32_t i = 0; i < row->n_labels; i++) {
            if (row->kind == KIND_HISTOGRAM) {
                render_histogram(m, out, row, i);
                continue;
            }
            render_series(m, out, row, "", i, NULL);
            if (row->kind == KIND_GAUGE)
                render_gauge(out, m->cells[(uint32_t)row->cell + i].value);
            else {
                const uint64_t count = m->cells[(uint32_t)row->cell + i].count;
                buffer_printf(out, "%llu\n", (unsigned long long)count);
            }
        }
    }
}
