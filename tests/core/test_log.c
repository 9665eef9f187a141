/* log.c: levels, one line per call whatever the text holds, cutting. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/log.h"

/* What one call prints; static storage. */
static const char *printed(enum log_level context, enum log_level level, const char *text) {
    static char out[4096];
    memset(out, 0, sizeof out);
    FILE *file = fmemopen(out, sizeof out, "w");
    assert_non_null(file);
    const struct log l = {file, context};
    log_write(&l, level, "%s", text);
    fclose(file);
    return out;
}

static void test_line(void **state) {
    (void)state;
    const char *line = printed(LOG_INFO, LOG_WARN, "disk at 90 %");
    /* 2026-01-31T12:00:00.000Z warn disk at 90 % */
    assert_int_equal(line[4], '-');
    assert_int_equal(line[10], 'T');
    assert_int_equal(line[19], '.');
    assert_string_equal(line + 23, "Z warn disk at 90 %\n");
}

static void test_levels(void **state) {
    (void)state;
    for (unsigned context = LOG_DEBUG; context <= LOG_OFF; context++) {
        for (unsigned level = LOG_DEBUG; level <= LOG_OFF; level++) {
            const char *line = printed((enum log_level)context, (enum log_level)level, "x");
            assert_int_equal(line[0] != '\0', level >= context && level != LOG_OFF);
        }
    }
    log_write(NULL, LOG_ERROR, "nobody listens");
    enum log_level level;
    assert_true(log_level_parse("error", &level));
    assert_int_equal(level, LOG_ERROR);
    assert_string_equal(log_level_name(level), "error");
    assert_false(log_level_parse("loud", &level));
    assert_int_equal(level, LOG_INFO);
}

static void test_no_forged_lines(void **state) {
    (void)state;
    const char *line = printed(LOG_INFO, LOG_INFO, "a\nb\r\x1b[31m\x7f");
    assert_string_equal(line + 23, "Z info a\\x0ab\\x0d\\x1b[31m\\x7f\n");
}

static void test_cut(void **state) {
    (void)state;
    static char text[5000];
    for (size_t n = 900; n < sizeof text - 1; n += 1 + n / 50) {
        memset(text, 'x', n);
        text[n] = '\0';
        text[n / 2] = '\n';
        const char *line = printed(LOG_INFO, LOG_INFO, text);
        const size_t len = strlen(line);
        assert_in_range(len, 900, LOG_LINE_BYTES);
        assert_ptr_equal(strchr(line, '\n'), line + len - 1);
        if (n > LOG_LINE_BYTES) assert_memory_equal(line + len - 4, "...\n", 4);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_no_forged_lines),
        cmocka_unit_test(test_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
