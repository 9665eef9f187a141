/* Hostile templates: every limit is an error of its own; the stack stays small; cancelling works.
 */
#include <pthread.h>

#include "tests/models/jinja_test.h"

#ifdef __SANITIZE_ADDRESS__
enum { STACK_BYTES = 640 * 1024 };
#else
enum { STACK_BYTES = 160 * 1024 };
#endif

static const struct jinja_limits small = {
    .memory_bytes = 4 << 20, .output_bytes = 10000, .steps = 1000000};

static void expect(const char *text, const char *want) {
    char *got = render(text, "{\"s\":\"abc\"}", true, &small, NULL);
    if (!strstr(got, want)) fail_msg("%.200s\n  want %s\n  got  %.300s", text, want, got);
    free(got);
}

static void test_limits(void **state) {
    (void)state;
    expect("{% for i in range(1000000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}",
           "more than");
    expect("{% for i in range(900000) %}{% endfor %}", "memory");
    expect("{% set x = namespace(v='a') %}{% for i in range(60) %}{% set x.v = x.v + x.v %}{% "
           "endfor %}",
           "memory");
    expect("{{ 'a' * 1000000000000 }}", "more than");
    expect("{{ [0] * 1000000000 }}", "memory");
    expect("{{ '%99999999s' % s }}", "more than");
    expect("{{ s.ljust(99999999) }}", "more than");
    expect("{% for i in range(3000) %}0123456789{% endfor %}", "output is over 10000 bytes");
    expect("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recurses too deeply");
    expect("{% macro m(a) %}{% for i in [1] %}{% if a %}{{ m(a)|upper }}{% endif %}{% endfor %}{% "
           "endmacro %}{{ m(1) }}",
           "recurses too deeply");
    expect("{% set l = [] %}{% set _ = l.append(l) %}{{ l }}", "nested too deeply");
    expect("{% set l = [] %}{% set _ = l.append(l) %}{{ l|tojson }}", "nested too deeply");
    expect("{% set l = [] %}{% set m = [] %}{% set _ = l.append(l) %}{% set _ = m.append(m) %}{{ l "
           "== m }}",
           "nested too deeply");
    expect("{{ range(99999999)|list }}", "range of more than");
    expect("{% set l = [1] %}{% for i in l %}{% set _ = l.append(1) %}{% endfor %}", "more than");
    char big[300];
    memset(big, '(', sizeof big);
    memcpy(big, "{{ ", 3);
    big[sizeof big - 1] = '\0';
    expect(big, "too many brackets");
    memset(big + 3, '-', sizeof big - 4);
    memcpy(big + 200, "1 }}", 5);
    expect(big, "nested more than 64 deep");
    memset(big, '[', sizeof big - 1);
    char *got = render("x", big, true, NULL, NULL);
    assert_non_null(strstr(got, "nested more than 100 deep"));
    free(got);
    char *huge = malloc(JINJA_MAX_TEMPLATE_BYTES + 2);
    memset(huge, 'x', JINJA_MAX_TEMPLATE_BYTES + 1);
    huge[JINJA_MAX_TEMPLATE_BYTES + 1] = '\0';
    expect(huge, "the template is over");
    free(huge);
}

/* What is linear in Python is linear here: a million steps of appending to one string. */
static void test_appending_is_linear(void **state) {
    (void)state;
    struct jinja_limits l = {.memory_bytes = 64 << 20, .output_bytes = 1 << 20, .steps = 2000000};
    char *got = render("{% set n = namespace(v='') %}{% for i in range(20000) %}{% set n.v = n.v + "
                       "'0123456789' + s %}{% endfor %}{{ n.v|length }}",
                       "{\"s\":\"ab\"}", true, &l, NULL);
    assert_string_equal(got, "240000");
    free(got);
}

struct deep {
    const char *text;
    char *got;
};

static void *run_deep(void *arg) {
    struct deep *d = arg;
    struct chat_template *t;
    struct rendered r = {0};
    struct error e = {0};
    if (chat_template_compile(d->text, strlen(d->text), NULL, NULL, &t, &e) != STATUS_OK) {
        d->got = strdup(e.message);
        return NULL;
    }
    struct chat_input in = {.json = "{}", .len = 2, .variables = true};
    enum status s = chat_template_render(t, &in, NULL, &r, &e);
    d->got = s == STATUS_OK ? strdup("ok") : strdup(e.message);
    rendered_free(&r);
    chat_template_free(t);
    return NULL;
}

static void test_stack(void **state) {
    (void)state;
    static const char *const texts[] = {
        "{% macro m(a, b=1) %}{{ m(m(a)) }}{% endmacro %}{{ m(1) }}",
        "{% macro m(a) %}{% filter upper %}{% for i in [1] %}{{ [{'a': m(a) if 1 else "
        "2}]|map('upper')|list }}{% endfor %}{% endfilter %}{% endmacro %}{{ m(1) }}",
        "{% macro c() %}{{ caller() }}{% endmacro %}{% macro m() %}{% call c() %}{{ m() }}{% "
        "endcall %}{% endmacro %}{{ m() }}",
        "{% macro m(a) %}{% set x %}{% with y = 1 %}{{ 1 + 2 * -(m(a) ~ 'x')[1:2] }}{% endwith "
        "%}{% endset %}{% endmacro %}{{ m(1) }}",
        "{% set l = [] %}{% set _ = l.append({'a': l}) %}{{ l|tojson(sort_keys=true) }}",
        "{% set l = [] %}{% set _ = l.append((l, l)) %}{{ [l, l]|sort }}{{ l }}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct deep d = {.text = texts[i]};
        pthread_attr_t a;
        pthread_t th;
        pthread_attr_init(&a);
        assert_int_equal(pthread_attr_setstacksize(&a, STACK_BYTES), 0);
        assert_int_equal(pthread_create(&th, &a, run_deep, &d), 0);
        pthread_join(th, NULL);
        pthread_attr_destroy(&a);
        if (!strstr(d.got, "deep")) fail_msg("%s: %s", texts[i], d.got);
        free(d.got);
    }
}

struct job {
    struct chat_template *t;
    enum status status;
    unsigned long slices;
    char *text;
};

static void run_job(struct chore *c, void *arg) {
    struct job *j = arg;
    struct rendered r;
    struct chat_input in = {.json = "{\"n\":3000}", .len = 10, .variables = true};
    j->status = chat_template_render(j->t, &in, c, &r, NULL);
    if (j->status == STATUS_OK) j->text = strdup(r.text);
    rendered_free(&r);
}

static void test_chore(void **state) {
    (void)state;
    const char *text = "{% set s = namespace(v=0) %}{% for i in range(n) %}{% set s.v = s.v + i "
                       "%}{% endfor %}{{ s.v }}";
    for (int cancel = 0; cancel < 2; cancel++) {
        struct job j = {.status = STATUS_COUNT};
        assert_int_equal(chat_template_compile(text, strlen(text), NULL, NULL, &j.t, NULL),
                         STATUS_OK);
        void *mem = aligned_alloc(16, (chore_footprint() + 15) & ~(size_t)15);
        struct chore *c = chore_init(mem, run_job, &j);
        while (!chore_run(c, 1)) {
            j.slices++;
            if (cancel && j.slices == 3) chore_cancel(c);
        }
        assert_true(chore_done(c));
        assert_int_equal(j.status, cancel ? STATUS_GONE : STATUS_OK);
        if (!cancel) {
            assert_string_equal(j.text, "4498500");
            assert_true(j.slices > 20);
        }
        free(j.text);
        free(mem);
        chat_template_free(j.t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_appending_is_linear),
        cmocka_unit_test(test_stack),
        cmocka_unit_test(test_chore),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
