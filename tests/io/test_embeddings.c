/* Bodies of /v1/embeddings: what is taken and what is refused. The answers are compared by
 * tests/e2e/test_embeddings.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "io/embeddings.h"

static enum status parse(const char *text, const char *encoder, struct openai_request *r,
                         struct error *e) {
    static struct body b;
    body_clear(&b);
    assert_true(body_append(&b, text, strlen(text)));
    memset(e, 0, sizeof *e);
    const enum status s = embeddings_parse(r, &b, "served", encoder, NULL, e);
    body_clear(&b); /* nothing may point into it */
    return s;
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *members;
        enum status status;
        const char *field;
    } list[] = {
        {"\"input\":\"x\"", STATUS_INVALID, "model"},
        {"\"input\":\"x\",\"model\":null", STATUS_INVALID, "model"},
        {"\"input\":\"x\",\"model\":1", STATUS_INVALID, "model"},
        {"\"input\":\"x\",\"model\":\"mini\"", STATUS_NOT_FOUND, "model"},
#define OK_MODEL "\"model\":\"minilm\","
        {OK_MODEL "\"user\":\"u\"", STATUS_INVALID, "input"},
        {OK_MODEL "\"input\":null", STATUS_INVALID, "input"},
        {OK_MODEL "\"input\":\"\"", STATUS_INVALID, "input"},
        {OK_MODEL "\"input\":[]", STATUS_INVALID, "input"},
        {OK_MODEL "\"input\":[\"a\",\"\"]", STATUS_INVALID, "input"},
        {OK_MODEL "\"input\":[\"a\",null]", STATUS_INVALID, "input"},
        {OK_MODEL "\"input\":{\"a\":1}", STATUS_INVALID, "input"},
        {OK_MODEL "\"input\":1.5", STATUS_INVALID, "input"},
        {OK_MODEL "\"input\":[1,2,3]", STATUS_UNSUPPORTED, "input"},
        {OK_MODEL "\"input\":[[1,2],[3]]", STATUS_UNSUPPORTED, "input"},
        {OK_MODEL "\"input\":[\"a\",7]", STATUS_UNSUPPORTED, "input"},
        {OK_MODEL "\"input\":\"\\ud800\"", STATUS_INVALID, "input"},
        {OK_MODEL "\"input\":\"x\",\"encoding_format\":\"f32\"", STATUS_INVALID, "encoding_format"},
        {OK_MODEL "\"input\":\"x\",\"encoding_format\":[]", STATUS_INVALID, "encoding_format"},
        {OK_MODEL "\"input\":\"x\",\"dimensions\":0", STATUS_INVALID, "dimensions"},
        {OK_MODEL "\"input\":\"x\",\"dimensions\":-3", STATUS_INVALID, "dimensions"},
        {OK_MODEL "\"input\":\"x\",\"dimensions\":4294967680", STATUS_INVALID, "dimensions"},
        {OK_MODEL "\"input\":\"x\",\"dimensions\":\"384\"", STATUS_INVALID, "dimensions"},
        {OK_MODEL "\"input\":\"x\",\"user\":{}", STATUS_INVALID, "user"},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        char body[512];
        struct openai_request r;
        struct error e;
        snprintf(body, sizeof body, "{%s}", list[i].members);
        const enum status s = parse(body, "minilm", &r, &e);
        openai_request_free(&r);
        if (s != list[i].status || strcmp(e.field, list[i].field) != 0)
            fail_msg("%s: %s, field %s", body, status_name(s), e.field);
    }
    struct openai_request r;
    struct error e;
    /* The language model needs no encoder. */
    static const char *const by_model[] = {"{\"model\":\"default\",\"input\":\"x\"}",
                                           "{\"model\":\"served\",\"input\":[\"x\"]}"};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(parse(by_model[i % 2], i < 2 ? NULL : "minilm", &r, &e), STATUS_OK);
        assert_true(r.base.by_model && r.base.n_inputs == 1);
        openai_request_free(&r);
    }
    assert_int_equal(parse("{\"model\":\"minilm\",\"input\":\"x\"}", "minilm", &r, &e), STATUS_OK);
    assert_false(r.base.by_model);
    openai_request_free(&r);
    assert_int_equal(parse("{\"model\":\"minilm\",\"input\":\"x\"}", NULL, &r, &e),
                     STATUS_NOT_FOUND);
    openai_request_free(&r);
    assert_int_equal(parse("{\"model\":\"minilm\"", "minilm", &r, &e), STATUS_INVALID);
    openai_request_free(&r);
}

static void test_taken(void **state) {
    (void)state;
    struct openai_request r;
    struct error e;
    assert_int_equal(
        parse("{\"model\":\"minilm\",\"input\":\"a\\u0000\\u00e9\"}", "minilm", &r, &e), STATUS_OK);
    assert_true(r.base.kind == REQUEST_EMBEDDING && r.base.n_inputs == 1 && r.n_prompts == 1);
    assert_true(!r.base64 && r.base.dimensions == 0);
    assert_int_equal(r.base.inputs[0].len, 4);
    assert_memory_equal(r.base.inputs[0].data, "a\0\xC3\xA9", 4);
    openai_request_free(&r);
    assert_int_equal(parse("{\"model\":\"served\",\"input\":[\"one\",\"two\"],\"dimensions\":384,"
                           "\"encoding_format\":\"base64\",\"user\":\"u\",\"other\":[1]}",
                           "served", &r, &e),
                     STATUS_OK); /* the encoder comes first when both have one name */
    assert_true(r.base64 && r.base.dimensions == 384 && r.base.n_inputs == 2);
    assert_memory_equal(r.base.inputs[1].data, "two", 3);
    openai_request_free(&r);
}

static void test_most_inputs(void **state) {
    (void)state;
    static char body[64 + 4 * (REQUEST_MAX_INPUTS + 1)];
    for (int more = 0; more < 2; more++) {
        struct openai_request r;
        struct error e;
        size_t at = (size_t)sprintf(body, "{\"model\":\"minilm\",\"input\":[");
        for (int i = 0; i < REQUEST_MAX_INPUTS + more; i++)
            at += (size_t)sprintf(body + at, "%s\"a\"", i > 0 ? "," : "");
        sprintf(body + at, "]}");
        assert_int_equal(parse(body, "minilm", &r, &e), more ? STATUS_TOO_LARGE : STATUS_OK);
        if (more)
            assert_string_equal(e.field, "input");
        else
            assert_int_equal(r.base.n_inputs, REQUEST_MAX_INPUTS);
        openai_request_free(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_taken),
        cmocka_unit_test(test_most_inputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
