/* jinja_test.h: renders a template over JSON variables, for the tests of the template engine. */
#ifndef LAC_TESTS_JINJA_TEST_H
#define LAC_TESTS_JINJA_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "models/chat_template.h"
#include "models/jinja.h"

/* The text, or "!message" when compiling or rendering fails; for the caller to free. */
static inline char *render(const char *text, const char *json, bool variables,
                           const struct jinja_limits *limits, struct rendered *spans) {
    struct chat_template *t;
    struct rendered r = {0};
    struct error e = {0};
    char *out;
    enum status s = chat_template_compile(text, strlen(text), "<s>", "</s>", &t, &e);
    if (s == STATUS_OK) {
        struct chat_input in = {.json = json,
                                .len = strlen(json),
                                .variables = variables,
                                .now_s = 1753920000, /* 2025-07-31 */
                                .limits = limits};
        s = chat_template_render(t, &in, NULL, &r, &e);
        chat_template_free(t);
    }
    if (s != STATUS_OK) {
        assert_int_equal(s, e.status);
        assert_null(r.text);
        out = malloc(sizeof e.message + 1);
        assert_non_null(out);
        snprintf(out, sizeof e.message + 1, "!%s", e.message);
        return out;
    }
    out = strdup(r.text);
    if (spans) {
        *spans = r;
    } else {
        rendered_free(&r);
    }
    return out;
}

#endif
