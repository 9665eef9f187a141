/* Renders the metrics and reads them back with a small parser of the text exposition format, which
 * insists on its rules: HELP and TYPE once and first, one group per family, no series twice,
 * buckets rising to +Inf which equals _count, label values escaped. */
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/metric.h"

enum { MAX_SAMPLES = 1000, MAX_FAMILIES = 64, NAME_BYTES = 80, LABEL_BYTES = 700 };

struct sample {
    char family[NAME_BYTES], name[NAME_BYTES], labels[LABEL_BYTES]; /* labels as written */
    double value;
};

struct page {
    struct sample *samples;
    int n_samples;
    char families[MAX_FAMILIES][NAME_BYTES];
    char kinds[MAX_FAMILIES][16];
    int n_families;
};

static const char *take_name(const char *s, char *out) {
    size_t n = 0;
    assert_true(isalpha((unsigned char)*s) || *s == '_' || *s == ':');
    while (isalnum((unsigned char)*s) || *s == '_' || *s == ':') {
        assert_true(n + 1 < NAME_BYTES);
        out[n++] = *s++;
    }
    out[n] = '\0';
    return s;
}

/* After '{'; checks names, quotes and escapes, copies the text. */
static const char *take_labels(const char *s, char *out) {
    const char *start = s;
    while (*s != '}') {
        char name[NAME_BYTES];
        s = take_name(s, name);
        assert_int_equal(*s++, '=');
        assert_int_equal(*s++, '"');
        while (*s != '"') {
            assert_true(*s != '\0' && *s != '\n');
            if (*s == '\\') {
                s++;
                assert_true(*s == '\\' || *s == '"' || *s == 'n');
            }
            s++;
        }
        s++;
        assert_true(*s == ',' || *s == '}');
        if (*s == ',') s++;
    }
    const size_t n = (size_t)(s - start);
    assert_true(n < LABEL_BYTES);
    memcpy(out, start, n);
    out[n] = '\0';
    return s + 1;
}

static bool belongs(const char *name, const char *family, const char *kind) {
    const size_t n = strlen(family);
    if (strncmp(name, family, n) != 0) return false;
    const char *suffix = name + n;
    if (strcmp(kind, "histogram") != 0) return *suffix == '\0';
    return strcmp(suffix, "_bucket") == 0 || strcmp(suffix, "_sum") == 0 ||
           strcmp(suffix, "_count") == 0;
}

static void read_comment(struct page *p, const char *line) {
    char word[NAME_BYTES], name[NAME_BYTES];
    int at = 0;
    assert_int_equal(sscanf(line, "# %79s %79s %n", word, name, &at), 2);
    assert_true(line[at] != '\0');
    if (strcmp(word, "HELP") == 0) {
        for (int i = 0; i < p->n_families; i++) assert_string_not_equal(p->families[i], name);
        assert_true(p->n_families < MAX_FAMILIES);
        strcpy(p->families[p->n_families], name);
        p->kinds[p->n_families++][0] = '\0';
        return;
    }
    assert_string_equal(word, "TYPE");
    assert_string_equal(p->families[p->n_families - 1], name);
    char *kind = p->kinds[p->n_families - 1];
    assert_int_equal(kind[0], '\0');
    snprintf(kind, 16, "%s", line + at);
    assert_true(strcmp(kind, "counter") == 0 || strcmp(kind, "gauge") == 0 ||
                strcmp(kind, "histogram") == 0);
    if (strcmp(kind, "counter") == 0) {
        assert_true(strlen(name) > 6 && strcmp(name + strlen(name) - 6, "_total") == 0);
    }
}

static void read_sample(struct page *p, const char *line) {
    assert_true(p->n_samples < MAX_SAMPLES);
    struct sample *s = &p->samples[p->n_samples];
    const char *at = take_name(line, s->name);
    s->labels[0] = '\0';
    if (*at == '{') at = take_labels(at + 1, s->labels);
    assert_int_equal(*at, ' ');
    char *end;
    s->value = strtod(at + 1, &end);
    assert_true(end != at + 1 && *end == '\0');
    assert_true(p->n_families > 0);
    const char *family = p->families[p->n_families - 1];
    if (!belongs(s->name, family, p->kinds[p->n_families - 1])) {
        fail_msg("%s stands in the group of %s", s->name, family);
    }
    strcpy(s->family, family);
    for (int i = 0; i < p->n_samples; i++) {
        if (strcmp(p->samples[i].name, s->name) == 0 &&
            strcmp(p->samples[i].labels, s->labels) == 0) {
            fail_msg("%s{%s} stands twice", s->name, s->labels);
        }
    }
    p->n_samples++;
}

static void read_page(struct page *p, const struct metrics *m) {
    struct buffer text;
    buffer_init(&text, 0);
    metric_render(m, &text);
    assert_false(text.full);
    assert_true(text.len < 64 * 1024);
    assert_int_equal(text.data[text.len - 1], '\n');
    char *s = (char *)(uintptr_t)buffer_cstr(&text);
    memset(p, 0, sizeof *p);
    p->samples = calloc(MAX_SAMPLES, sizeof *p->samples);
    assert_non_null(p->samples);
    while (*s != '\0') {
        char *end = strchr(s, '\n');
        assert_non_null(end);
        *end = '\0';
        assert_true(s[0] != '\0');
        if (s[0] == '#')
            read_comment(p, s);
        else
            read_sample(p, s);
        s = end + 1;
    }
    buffer_free(&text);
}

static double value_of(const struct page *p, const char *name, const char *labels) {
    for (int i = 0; i < p->n_samples; i++) {
        if (strcmp(p->samples[i].name, name) == 0 && strcmp(p->samples[i].labels, labels) == 0) {
            return p->samples[i].value;
        }
    }
    fail_msg("no sample %s{%s}", name, labels);
    return 0;
}

/* Each histogram series: le rises, counts never fall, +Inf last and equal to _count. */
static void check_histograms(const struct page *p) {
    for (int i = 0; i < p->n_samples; i++) {
        const struct sample *s = &p->samples[i];
        const char *le = strstr(s->labels, "le=\"");
        if (le == NULL) continue;
        const double bound = strtod(le + 4, NULL);
        if (strncmp(le, "le=\"+Inf\"", 9) == 0) {
            char name[NAME_BYTES], labels[LABEL_BYTES];
            snprintf(name, sizeof name, "%s", s->family);
            strncat(name, "_count", sizeof name - strlen(name) - 1);
            snprintf(labels, sizeof labels, "%s", s->labels);
            char *cut = strstr(labels, "le=");
            if (cut != labels) cut--;
            *cut = '\0';
            assert_true(value_of(p, name, labels) == s->value);
            continue;
        }
        const struct sample *next = &p->samples[i + 1];
        const char *next_le = strstr(next->labels, "le=\"");
        assert_non_null(next_le);
        assert_string_equal(next->name, s->name);
        assert_true(strtod(next_le + 4, NULL) > bound);
        assert_true(next->value >= s->value);
    }
}

static void test_empty(void **state) {
    (void)state;
    struct metrics *m = malloc(sizeof *m);
    metric_init(m);
    struct page p;
    read_page(&p, m);
    check_histograms(&p);
    assert_int_equal(p.n_families, METRIC_COUNT);
    static const char *const wanted[] = {"laconic_request_started_total",
                                         "laconic_request_total",
                                         "laconic_shed_total",
                                         "laconic_rejected_total",
                                         "laconic_time_to_first_token_seconds",
                                         "laconic_inter_token_seconds",
                                         "laconic_request_seconds",
                                         "laconic_step_seconds",
                                         "laconic_loop_gap_seconds",
                                         "laconic_queue_depth",
                                         "laconic_running",
                                         "laconic_kv_pages",
                                         "laconic_prefix_hit_tokens_total",
                                         "laconic_prompt_tokens_total",
                                         "laconic_completion_tokens_total",
                                         "laconic_draft_tokens_total",
                                         "laconic_exit_layer",
                                         "laconic_audit_total",
                                         "laconic_exit_off",
                                         "laconic_dynamic_mask_hit_rate",
                                         "laconic_rollback_count_total",
                                         "laconic_deadline_missed_total",
                                         "laconic_task_classification_seconds",
                                         "laconic_task_classification_accuracy",
                                         "laconic_feedback_total",
                                         "laconic_task_drift_alarm",
                                         "laconic_task_drift_p",
                                         "laconic_policy_epoch",
                                         "laconic_decode_heap_bytes_total",
                                         "laconic_connections",
                                         "laconic_http_response_total",
                                         "laconic_build_info",
                                         "process_start_time_seconds",
                                         "process_resident_memory_bytes"};
    assert_int_equal(sizeof wanted / sizeof wanted[0], METRIC_COUNT);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        bool found = false;
        for (int k = 0; k < p.n_families; k++) found |= strcmp(p.families[k], wanted[i]) == 0;
        if (!found) fail_msg("no %s", wanted[i]);
    }
    assert_true(value_of(&p, "laconic_request_total", "outcome=\"aborted\",task=\"none\"") == 0);
    assert_true(value_of(&p, "laconic_step_seconds_bucket", "kind=\"mixed\",le=\"+Inf\"") == 0);
    assert_true(value_of(&p, "process_start_time_seconds", "") > 1.6e9);
    free(p.samples);
    free(m);
}

static void test_values(void **state) {
    (void)state;
    struct metrics *m = malloc(sizeof *m);
    metric_init(m);
    metric_set_info(m, "1.0", "a \"quoted\" \\ model\nname \xe4\xb8\xad \xff\xc3", "avx2", "cpu",
                    "epoll");
    metric_add(m, METRIC_REQUEST_STARTED, 0, 3);
    metric_add(m, METRIC_REQUEST, metric_outcome_task(METRIC_FAILED, METRIC_TASK_CODE), 2);
    metric_add(m, METRIC_REQUEST, metric_outcome_task(METRIC_FAILED, METRIC_TASK_CODE), 1);
    metric_add(m, METRIC_HTTP_RESPONSE, metric_code_of(404), 1);
    metric_add(m, METRIC_HTTP_RESPONSE, metric_code_of(418), 5);
    metric_add(m, METRIC_PROMPT_TOKENS, 0, UINT64_MAX);
    metric_set(m, METRIC_KV_PAGES, METRIC_PAGES_CACHED, 17);
    metric_time(m, METRIC_STEP_TIME, METRIC_STEP_DECODE, 100000); /* exactly 100 us */
    metric_time(m, METRIC_STEP_TIME, METRIC_STEP_DECODE, 100001);
    metric_time(m, METRIC_STEP_TIME, METRIC_STEP_DECODE, 70000000000); /* 70 s */
    metric_read_process(m);

    struct page p;
    read_page(&p, m);
    check_histograms(&p);
    assert_true(value_of(&p, "laconic_request_started_total", "") == 3);
    assert_true(value_of(&p, "laconic_request_total", "outcome=\"failed\",task=\"code\"") == 3);
    assert_true(value_of(&p, "laconic_http_response_total", "code=\"404\"") == 1);
    assert_true(value_of(&p, "laconic_http_response_total", "code=\"other\"") == 5);
    assert_true(value_of(&p, "laconic_prompt_tokens_total", "") == 0x1p64);
    assert_true(value_of(&p, "laconic_kv_pages", "state=\"cached\"") == 17);
    const char *bucket = "laconic_step_seconds_bucket";
    assert_true(value_of(&p, bucket, "kind=\"decode\",le=\"0.0001\"") == 1);
    assert_true(value_of(&p, bucket, "kind=\"decode\",le=\"0.0002\"") == 2);
    assert_true(value_of(&p, bucket, "kind=\"decode\",le=\"60\"") == 2);
    assert_true(value_of(&p, bucket, "kind=\"decode\",le=\"+Inf\"") == 3);
    assert_true(value_of(&p, bucket, "kind=\"prefill\",le=\"+Inf\"") == 0);
    assert_true(value_of(&p, "laconic_step_seconds_sum", "kind=\"decode\"") == 70.000200001);
    assert_true(value_of(&p, "laconic_build_info",
                         "version=\"1.0\",model=\"a \\\"quoted\\\" \\\\ model\\nname \xe4\xb8\xad "
                         "??\",isa=\"avx2\",backend=\"cpu\",io=\"epoll\"") == 1);
    assert_true(value_of(&p, "process_resident_memory_bytes", "") > 100000);

    assert_int_equal(metric_count(m, METRIC_REQUEST_STARTED, 0), 3);
    assert_true(metric_value(m, METRIC_KV_PAGES, METRIC_PAGES_CACHED) == 17);
    assert_int_equal(metric_times(m, METRIC_STEP_TIME, METRIC_STEP_DECODE)->count, 3);
    free(p.samples);
    free(m);
}

/* Every series has a cell of its own. */
static void test_no_shared_cells(void **state) {
    (void)state;
    struct metrics *m = malloc(sizeof *m);
    metric_init(m);
    static const struct {
        enum metric id;
        int kind;
        uint32_t n;
    } rows[] = {
#define COUNTER                           0
#define GAUGE                             1
#define HISTOGRAM                         2
#define X(code, kind, name, labels, help) {code, kind, METRIC_N_##labels},
        METRIC_LIST(X)
#undef X
    };
    uint64_t next = 1;
    for (size_t i = 0; i < METRIC_COUNT; i++) {
        for (uint32_t k = 0; k < rows[i].n; k++, next++) {
            if (rows[i].kind == 0)
                metric_add(m, rows[i].id, k, next);
            else if (rows[i].kind == 1)
                metric_set(m, rows[i].id, k, (double)next);
            else
                metric_time(m, rows[i].id, k, next);
        }
    }
    next = 1;
    for (size_t i = 0; i < METRIC_COUNT; i++) {
        for (uint32_t k = 0; k < rows[i].n; k++, next++) {
            if (rows[i].kind == 0)
                assert_int_equal(metric_count(m, rows[i].id, k), next);
            else if (rows[i].kind == 1) {
                assert_true(metric_value(m, rows[i].id, k) == (double)next);
            } else {
                assert_int_equal(metric_times(m, rows[i].id, k)->sum_ns, next);
            }
        }
    }
    free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_no_shared_cells),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
