/* Request bodies: each field with bad and good values, and what the scheduler is given. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "io/openai.h"

static enum status parse(const char *text, enum request_kind kind, struct openai_request *r,
                         struct error *e) {
    static struct body b;
    body_clear(&b);
    assert_true(body_append(&b, text, strlen(text)));
    memset(e, 0, sizeof *e);
    const enum status s = openai_parse(r, kind, &b, "served", NULL, e);
    body_clear(&b); /* nothing may point into it */
    return s;
}

#define CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
#define COMP "{\"prompt\":\"hi\","

enum which { BOTH, CHAT_ONLY, COMP_ONLY };

/* One member, refused: by which status, naming which field (the member itself if NULL). */
static const struct {
    enum which which;
    const char *member;
    enum status status;
    const char *field;
} refused[] = {
    {BOTH, "\"temperature\":-1", STATUS_INVALID, "temperature"},
    {BOTH, "\"temperature\":2.01", STATUS_INVALID, "temperature"},
    {BOTH, "\"temperature\":\"hot\"", STATUS_INVALID, "temperature"},
    {BOTH, "\"temperature\":true", STATUS_INVALID, "temperature"},
    {BOTH, "\"temperature\":[1]", STATUS_INVALID, "temperature"},
    {BOTH, "\"top_p\":0", STATUS_INVALID, "top_p"},
    {BOTH, "\"top_p\":1.5", STATUS_INVALID, "top_p"},
    {BOTH, "\"top_p\":-0.1", STATUS_INVALID, "top_p"},
    {BOTH, "\"min_p\":1.1", STATUS_INVALID, "min_p"},
    {BOTH, "\"min_p\":-1", STATUS_INVALID, "min_p"},
    {BOTH, "\"top_k\":-2", STATUS_INVALID, "top_k"},
    {BOTH, "\"top_k\":1.5", STATUS_INVALID, "top_k"},
    {BOTH, "\"top_k\":99999999999", STATUS_INVALID, "top_k"},
    {BOTH, "\"repetition_penalty\":0", STATUS_INVALID, "repetition_penalty"},
    {BOTH, "\"repetition_penalty\":10.5", STATUS_INVALID, "repetition_penalty"},
    {BOTH, "\"presence_penalty\":9", STATUS_INVALID, "presence_penalty"},
    {BOTH, "\"presence_penalty\":-2.1", STATUS_INVALID, "presence_penalty"},
    {BOTH, "\"frequency_penalty\":\"1\"", STATUS_INVALID, "frequency_penalty"},
    {BOTH, "\"n\":0", STATUS_INVALID, "n"},
    {BOTH, "\"n\":17", STATUS_INVALID, "n"},
    {BOTH, "\"n\":\"1\"", STATUS_INVALID, "n"},
    {BOTH, "\"best_of\":2", STATUS_UNSUPPORTED, "best_of"},
    {BOTH, "\"n\":2,\"best_of\":1", STATUS_INVALID, "best_of"},
    {BOTH, "\"max_tokens\":-5", STATUS_INVALID, "max_tokens"},
    {BOTH, "\"max_tokens\":2147483648", STATUS_INVALID, "max_tokens"},
    {BOTH, "\"max_tokens\":0.5", STATUS_INVALID, "max_tokens"},
    {CHAT_ONLY, "\"max_completion_tokens\":-1", STATUS_INVALID, "max_completion_tokens"},
    {CHAT_ONLY, "\"max_tokens\":1,\"max_completion_tokens\":2", STATUS_INVALID,
     "max_completion_tokens"},
    {BOTH, "\"stop\":7", STATUS_INVALID, "stop"},
    {BOTH, "\"stop\":\"\"", STATUS_INVALID, "stop"},
    {BOTH, "\"stop\":[\"a\",1]", STATUS_INVALID, "stop"},
    {BOTH, "\"stop\":{\"a\":1}", STATUS_INVALID, "stop"},
    {BOTH,
     "\"stop\":[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\","
     "\"a\","
     "\"a\",\"a\",\"a\"]",
     STATUS_INVALID, "stop"},
    {BOTH, "\"seed\":\"x\"", STATUS_INVALID, "seed"},
    {BOTH, "\"seed\":1.5", STATUS_INVALID, "seed"},
    {BOTH, "\"seed\":9223372036854775808", STATUS_INVALID, "seed"},
    {BOTH, "\"logit_bias\":[1]", STATUS_INVALID, "logit_bias"},
    {BOTH, "\"logit_bias\":{\"x\":1}", STATUS_INVALID, "logit_bias"},
    {BOTH, "\"logit_bias\":{\"-1\":1}", STATUS_INVALID, "logit_bias"},
    {BOTH, "\"logit_bias\":{\"01\":1}", STATUS_INVALID, "logit_bias"},
    {BOTH, "\"logit_bias\":{\"99999999999\":1}", STATUS_INVALID, "logit_bias"},
    {BOTH, "\"logit_bias\":{\"1\":101}", STATUS_INVALID, "logit_bias"},
    {BOTH, "\"logit_bias\":{\"1\":\"x\"}", STATUS_INVALID, "logit_bias"},
    {CHAT_ONLY, "\"logprobs\":\"maybe\"", STATUS_INVALID, "logprobs"},
    {CHAT_ONLY, "\"logprobs\":1", STATUS_INVALID, "logprobs"},
    {CHAT_ONLY, "\"logprobs\":true,\"top_logprobs\":21", STATUS_INVALID, "top_logprobs"},
    {CHAT_ONLY, "\"logprobs\":true,\"top_logprobs\":1000000", STATUS_INVALID, "top_logprobs"},
    {CHAT_ONLY, "\"logprobs\":true,\"top_logprobs\":-1", STATUS_INVALID, "top_logprobs"},
    {CHAT_ONLY, "\"top_logprobs\":2", STATUS_INVALID, "top_logprobs"},
    {COMP_ONLY, "\"logprobs\":true", STATUS_INVALID, "logprobs"},
    {COMP_ONLY, "\"logprobs\":21", STATUS_INVALID, "logprobs"},
    {COMP_ONLY, "\"echo\":1", STATUS_INVALID, "echo"},
    {COMP_ONLY, "\"suffix\":\"x\"", STATUS_UNSUPPORTED, "suffix"},
    {BOTH, "\"stream\":\"yes\"", STATUS_INVALID, "stream"},
    {BOTH, "\"stream_options\":{\"include_usage\":true}", STATUS_INVALID, "stream_options"},
    {BOTH, "\"stream\":true,\"stream_options\":1", STATUS_INVALID, "stream_options"},
    {BOTH, "\"stream\":true,\"stream_options\":{\"include_usage\":1}", STATUS_INVALID,
     "stream_options.include_usage"},
    {BOTH, "\"user\":1", STATUS_INVALID, "user"},
    {BOTH, "\"ignore_eos\":1", STATUS_INVALID, "ignore_eos"},
    {BOTH, "\"model\":1", STATUS_INVALID, "model"},
    {BOTH, "\"model\":\"other\"", STATUS_NOT_FOUND, "model"},
    {BOTH, "\"model\":\"default\\u0000\"", STATUS_NOT_FOUND, "model"},
    {CHAT_ONLY, "\"tools\":[{\"type\":\"function\"}]", STATUS_UNSUPPORTED, "tools"},
    {CHAT_ONLY, "\"tools\":1", STATUS_INVALID, "tools"},
    {CHAT_ONLY, "\"tool_choice\":\"required\"", STATUS_UNSUPPORTED, "tool_choice"},
    {CHAT_ONLY, "\"tool_choice\":{\"type\":\"function\"}", STATUS_UNSUPPORTED, "tool_choice"},
    {CHAT_ONLY, "\"functions\":[]", STATUS_UNSUPPORTED, "functions"},
    {CHAT_ONLY, "\"response_format\":{\"type\":\"json_object\"}", STATUS_UNSUPPORTED,
     "response_format"},
    {CHAT_ONLY, "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}",
     STATUS_UNSUPPORTED, "response_format"},
    {CHAT_ONLY, "\"response_format\":\"text\"", STATUS_INVALID, "response_format"},
    {CHAT_ONLY, "\"audio\":{\"voice\":\"x\"}", STATUS_UNSUPPORTED, "audio"},
    {CHAT_ONLY, "\"modalities\":[\"text\",\"audio\"]", STATUS_UNSUPPORTED, "modalities"},
    {CHAT_ONLY, "\"guided_json\":{}", STATUS_UNSUPPORTED, "guided_json"},
    {CHAT_ONLY, "\"min_tokens\":3", STATUS_UNSUPPORTED, "min_tokens"},
    {CHAT_ONLY, "\"prediction\":{\"type\":\"content\"}", STATUS_UNSUPPORTED, "prediction"},
    {CHAT_ONLY, "\"chat_template_kwargs\":1", STATUS_INVALID, "chat_template_kwargs"},
    {CHAT_ONLY, "\"add_generation_prompt\":1", STATUS_INVALID, "add_generation_prompt"},
    {BOTH, "\"laconic\":1", STATUS_INVALID, "laconic"},
    {BOTH, "\"laconic\":{\"whatever\":1}", STATUS_INVALID, "laconic.whatever"},
    {BOTH, "\"laconic\":{\"whatever\":null}", STATUS_INVALID, "laconic.whatever"},
    {BOTH, "\"laconic\":{\"exit\":\"off\"}", STATUS_UNSUPPORTED, "laconic.exit"},
    {BOTH, "\"laconic\":{\"exit_risk\":0.1}", STATUS_UNSUPPORTED, "laconic.exit_risk"},
    {BOTH, "\"laconic\":{\"gate\":\"on\"}", STATUS_INVALID, "laconic.gate"},
    {BOTH, "\"laconic\":{\"gate\":[]}", STATUS_INVALID, "laconic.gate"},
    {BOTH, "\"laconic\":{\"gate\":{}}", STATUS_INVALID, "laconic.gate.budget"},
    {BOTH, "\"laconic\":{\"gate\":{\"budget\":0}}", STATUS_INVALID, "laconic.gate.budget"},
    {BOTH, "\"laconic\":{\"gate\":{\"budget\":1e9}}", STATUS_INVALID, "laconic.gate.budget"},
    {BOTH, "\"laconic\":{\"gate\":{\"budget\":true}}", STATUS_INVALID, "laconic.gate.budget"},
    {BOTH, "\"laconic\":{\"gate\":{\"budget\":9,\"x\":1}}", STATUS_INVALID, "laconic.gate.x"},
    {BOTH, "\"laconic\":{\"rollback\":true}", STATUS_INVALID, "laconic.rollback"},
    {BOTH, "\"laconic\":{\"rollback\":{\"x\":1}}", STATUS_INVALID, "laconic.rollback.x"},
    {BOTH, "\"laconic\":{\"rollback\":{\"rule\":\"on\"}}", STATUS_INVALID, "laconic.rollback.rule"},
    {BOTH, "\"laconic\":{\"rollback\":{\"rule\":1}}", STATUS_INVALID, "laconic.rollback.rule"},
    {BOTH, "\"laconic\":{\"rollback\":{\"window\":33}}", STATUS_INVALID, "laconic.rollback.window"},
    {BOTH, "\"laconic\":{\"rollback\":{\"window\":0}}", STATUS_INVALID, "laconic.rollback.window"},
    {BOTH, "\"laconic\":{\"rollback\":{\"max\":9}}", STATUS_INVALID, "laconic.rollback.max"},
    {BOTH, "\"laconic\":{\"rollback\":{\"max\":1.5}}", STATUS_INVALID, "laconic.rollback.max"},
    {BOTH, "\"laconic\":{\"rollback\":{\"rule\":\"fixed\",\"entropy_threshold\":-0.1}}",
     STATUS_INVALID, "laconic.rollback.entropy_threshold"},
    {BOTH, "\"laconic\":{\"rollback\":{\"rule\":\"fixed\",\"similarity_threshold\":1.1}}",
     STATUS_INVALID, "laconic.rollback.similarity_threshold"},
    {BOTH, "\"laconic\":{\"rollback\":{\"similarity_threshold\":0.1}}", STATUS_INVALID,
     "laconic.rollback"},
    {BOTH, "\"laconic\":{\"beam_width\":2}", STATUS_UNSUPPORTED, "laconic.beam_width"},
    {BOTH, "\"laconic\":{\"thinking_budget\":2}", STATUS_UNSUPPORTED, "laconic.thinking_budget"},
    {BOTH, "\"laconic\":{\"labels\":[]}", STATUS_INVALID, "laconic.labels"},
    {BOTH, "\"laconic\":{\"labels\":\"a\"}", STATUS_INVALID, "laconic.labels"},
    {BOTH, "\"laconic\":{\"labels\":[\"a\",\"\"]}", STATUS_INVALID, "laconic.labels[1]"},
    {BOTH, "\"laconic\":{\"labels\":[1]}", STATUS_INVALID, "laconic.labels[0]"},
    {BOTH, "\"laconic\":{\"labels\":[\"a\\u0000\"]}", STATUS_INVALID, "laconic.labels[0]"},
    {BOTH, "\"n\":2,\"laconic\":{\"labels\":[\"a\"]}", STATUS_INVALID, "n"},
    {BOTH, "\"laconic\":{\"lint\":1}", STATUS_INVALID, "laconic.lint"},
    {BOTH, "\"laconic\":{\"documents\":[]}", STATUS_UNSUPPORTED, "laconic.documents"},
    {BOTH, "\"laconic\":{\"task_type\":\"none\"}", STATUS_INVALID, "laconic.task_type"},
    {BOTH, "\"laconic\":{\"task_type\":\"Code\"}", STATUS_INVALID, "laconic.task_type"},
    {BOTH, "\"laconic\":{\"task_type\":1}", STATUS_INVALID, "laconic.task_type"},
    {BOTH, "\"laconic\":{\"deadline_ms\":0}", STATUS_INVALID, "laconic.deadline_ms"},
    {BOTH, "\"laconic\":{\"deadline_ms\":\"1\"}", STATUS_INVALID, "laconic.deadline_ms"},
    {BOTH, "\"laconic\":{\"on_deadline\":\"cry\"}", STATUS_INVALID, "laconic.on_deadline"},
    {BOTH, "\"laconic\":{\"priority\":1e10}", STATUS_INVALID, "laconic.priority"},
    {BOTH, "\"laconic\":{\"penalty_scope\":\"x\"}", STATUS_INVALID, "laconic.penalty_scope"},
    {BOTH, "\"laconic\":{\"explain\":1}", STATUS_INVALID, "laconic.explain"},
};

static void expect_refused(size_t i, const char *text, enum request_kind kind) {
    struct openai_request r;
    struct error e;
    const enum status s = parse(text, kind, &r, &e);
    openai_request_free(&r);
    if (s != refused[i].status || strcmp(e.field, refused[i].field) != 0)
        fail_msg("%s: status %s, field '%s' (%s)", text, status_name(s), e.field, e.message);
    /* A person must find the field in the message too. */
    if (strcmp(e.field, "model") != 0) assert_non_null(strstr(e.message, e.field));
}

static void test_refused(void **state) {
    (void)state;
    char text[1024];
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (refused[i].which != COMP_ONLY) {
            snprintf(text, sizeof text, CHAT "%s}", refused[i].member);
            expect_refused(i, text, REQUEST_CHAT);
        }
        if (refused[i].which != CHAT_ONLY) {
            snprintf(text, sizeof text, COMP "%s}", refused[i].member);
            expect_refused(i, text, REQUEST_COMPLETION);
        }
    }
}

/* The same members with null count as absent, and values at the edge are taken. */
static void test_taken(void **state) {
    (void)state;
    static const char *const members[] = {
        "\"temperature\":0",
        "\"temperature\":2",
        "\"top_p\":1",
        "\"top_p\":1e-300",
        "\"min_p\":0",
        "\"top_k\":-1",
        "\"top_k\":0",
        "\"top_k\":40.0",
        "\"repetition_penalty\":10",
        "\"presence_penalty\":-2",
        "\"frequency_penalty\":2",
        "\"n\":16",
        "\"n\":2,\"best_of\":2",
        "\"max_tokens\":0",
        "\"max_tokens\":2147483647",
        "\"stop\":[]",
        "\"stop\":\"a\"",
        "\"stop\":[\"a\",\"b\"]",
        "\"seed\":-9223372036854775808",
        "\"seed\":9223372036854775807",
        "\"logit_bias\":{}",
        "\"logit_bias\":{\"0\":-100,\"5\":100}",
        "\"stream\":true",
        "\"stream\":true,\"stream_options\":{}",
        "\"user\":\"u\"",
        "\"model\":\"served\"",
        "\"model\":\"default\"",
        "\"tools\":[]",
        "\"tool_choice\":\"none\"",
        "\"tool_choice\":\"auto\"",
        "\"response_format\":{\"type\":\"text\"}",
        "\"modalities\":[\"text\"]",
        "\"parallel_tool_calls\":false",
        "\"whatever\":{\"x\":[1,2]}",
        "\"metadata\":{}",
        "\"store\":true",
        "\"laconic\":{}",
        "\"laconic\":{\"deadline_ms\":5,\"on_deadline\":\"fail\",\"priority\":-3,"
        "\"penalty_scope\":\"llamacpp\",\"explain\":true,\"task_type\":\"auto\"}",
        "\"laconic\":{\"deadline_ms\":null,\"explain\":null}",
        "\"laconic\":{\"task_type\":\"qa\",\"lint\":true}",
        "\"temperature\":null,\"top_p\":null,\"n\":null,\"stop\":null,\"seed\":null,\"tools\":null,"
        "\"logit_bias\":null,\"stream\":null,\"response_format\":null,\"laconic\":null,\"model\":"
        "null",
    };
    char text[1024];
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        for (int chat = 0; chat < 2; chat++) {
            struct openai_request r;
            struct error e;
            snprintf(text, sizeof text, "%s%s}", chat ? CHAT : COMP, members[i]);
            if (parse(text, chat ? REQUEST_CHAT : REQUEST_COMPLETION, &r, &e) != STATUS_OK)
                fail_msg("%s: %s", text, e.message);
            openai_request_free(&r);
        }
    }
}

static void test_values(void **state) {
    (void)state;
    struct openai_request r;
    struct error e;
    assert_int_equal(
        parse(COMP "\"n\":3,\"temperature\":0.25,\"top_p\":0.5,\"top_k\":7,\"min_p\":0.1,"
                   "\"repetition_penalty\":1.5,\"presence_penalty\":-1,"
                   "\"frequency_penalty\":0.5,\"seed\":-2,\"max_tokens\":9,\"echo\":true,"
                   "\"stop\":[\"\\u0000x\",\"\xE6\x9D\xB1\"],\"logprobs\":4,\"stream\":true,"
                   "\"logit_bias\":{\"9\":1,\"10\":-2.5,\"2\":3},"
                   "\"stream_options\":{\"include_usage\":true},"
                   "\"laconic\":{\"deadline_ms\":250,\"on_deadline\":\"fail\","
                   "\"priority\":5,\"penalty_scope\":\"llamacpp\",\"explain\":true}}",
              REQUEST_COMPLETION, &r, &e),
        STATUS_OK);
    const struct request *q = &r.base;
    assert_int_equal(q->set, REQUEST_SET_TEMPERATURE | REQUEST_SET_TOP_P | REQUEST_SET_TOP_K |
                                 REQUEST_SET_MIN_P | REQUEST_SET_MAX_TOKENS | REQUEST_SET_SEED |
                                 REQUEST_SET_REPETITION | REQUEST_SET_PRESENCE |
                                 REQUEST_SET_FREQUENCY);
    assert_int_equal(q->n, 3);
    assert_true(q->temperature == 0.25f && q->top_p == 0.5f && q->top_k == 7 && q->min_p == 0.1f);
    assert_true(q->repetition_penalty == 1.5f && q->presence_penalty == -1 &&
                q->frequency_penalty == 0.5f);
    assert_true(q->seed == UINT64_MAX - 1);
    assert_int_equal(q->max_tokens, 9);
    assert_true(q->echo && q->logprobs && q->explain && r.stream && r.include_usage);
    assert_int_equal(q->top_logprobs, 4);
    assert_int_equal(q->n_stops, 2);
    assert_int_equal(q->stops[0].len, 2);
    assert_memory_equal(q->stops[0].data, "\0x", 2);
    assert_memory_equal(q->stops[1].data, "\xE6\x9D\xB1", 3);
    assert_int_equal(q->n_logit_bias, 3);
    assert_int_equal(q->logit_bias[0].id, 2);
    assert_int_equal(q->logit_bias[1].id, 9);
    assert_int_equal(q->logit_bias[2].id, 10);
    assert_true(q->logit_bias[2].bias == -2.5f);
    assert_int_equal(q->deadline_ms, 250);
    assert_int_equal(q->on_deadline, ON_DEADLINE_FAIL);
    assert_int_equal(q->priority, 5);
    assert_int_equal(q->penalty_scope, PENALTY_SCOPE_LLAMACPP);
    openai_request_free(&r);
    /* Defaults are OpenAI's. */
    assert_int_equal(parse(CHAT "\"user\":\"u\"}", REQUEST_CHAT, &r, &e), STATUS_OK);
    assert_int_equal(r.base.set, 0);
    assert_true(r.base.temperature == 1 && r.base.top_p == 1 && r.base.repetition_penalty == 1);
    assert_int_equal(r.base.n, 1);
    openai_request_free(&r);
}

static const struct {
    const char *messages;
    const char *field; /* NULL: taken, and the text below is what the template gets */
    const char *chat;
} messages[] = {
    {"[]", "messages", NULL},
    {"{}", "messages", NULL},
    {"null", "messages", NULL},
    {"[1]", "messages[0]", NULL},
    {"[{\"content\":\"x\"}]", "messages[0].role", NULL},
    {"[{\"role\":\"king\",\"content\":\"x\"}]", "messages[0].role", NULL},
    {"[{\"role\":\"user\"}]", "messages[0].content", NULL},
    {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":3}]",
     "messages[1].content", NULL},
    {"[{\"role\":\"user\",\"content\":[]}]", "messages[0].content", NULL},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]", "messages[0].content[0].type",
     NULL},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content[0]", NULL},
    {"[{\"role\":\"user\",\"content\":\"x\",\"name\":1}]", "messages[0].name", NULL},
    {"[{\"role\":\"user\",\"content\":\"x\",\"tool_calls\":[{}]}]", "messages[0].tool_calls", NULL},
    {"[{\"role\":\"assistant\",\"tool_calls\":[1]}]", "messages[0].tool_calls", NULL},
    {"[{\"role\":\"tool\",\"content\":\"x\",\"tool_call_id\":1}]", "messages[0].tool_call_id",
     NULL},
    {"[{\"role\":\"system\",\"content\":\"\\u00e9\\n\"}, {\"role\":\"user\",\"content\":\"b\"}]",
     NULL,
     "{\"messages\":[{\"role\":\"system\",\"content\":\"\xC3\xA9\\n\"},{\"role\":\"user\","
     "\"content\":"
     "\"b\"}]}"},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\","
     "\"text\":"
     "\"b\"}],\"name\":\"n\"}]",
     NULL, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\\nb\",\"name\":\"n\"}]}"},
    {"[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"x\":1.0}]},"
     "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"r\"}]",
     NULL,
     "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"x\":"
     "1.0}]"
     "},{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"r\"}]}"},
};

/* What the user wrote last, whatever stands around it; its beginning, or all of it for lint. */
static void test_user_text(void **state) {
    (void)state;
    static const struct {
        const char *messages, *text;
    } cases[] = {
        {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},"
         "{\"role\":\"user\",\"content\":\"c\\u00e9\"},{\"role\":\"tool\",\"content\":\"d\"}]",
         "c\xC3\xA9"},
        {"[{\"role\":\"system\",\"content\":\"a\"}]", ""},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}]", "a"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
         "{\"type\":\"text\",\"text\":\"b\"}]}]",
         "a\nb"},
    };
    struct openai_request r;
    struct error e;
    static char text[200 * 1024];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text, "{\"messages\":%s}", cases[i].messages);
        assert_int_equal(parse(text, REQUEST_CHAT, &r, &e), STATUS_OK);
        assert_int_equal(r.base.user_text.len, strlen(cases[i].text));
        assert_memory_equal(r.base.user_text.data, cases[i].text, strlen(cases[i].text));
        openai_request_free(&r);
    }
    /* Characters of one to four bytes, as they are and escaped, in one text and in two parts. */
    static const char *const units[] = {"x", "\xC3\xA9", "\xE6\x9D\xB1", "\xF0\x9F\x98\x80",
                                        "\\uD83D\\uDE00"};
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        for (int parts = 0; parts < 2; parts++) {
            for (int lint = 0; lint < 2; lint++) {
                size_t n = (size_t)snprintf(
                    text, sizeof text,
                    "{\"laconic\":{\"lint\":%s},\"messages\":[{\"role\":\"user\","
                    "\"content\":%s\"",
                    lint ? "true" : "false",
                    parts ? "[{\"type\":\"text\",\"text\":\"p\"},{\"type\":\"text\",\"text\":"
                          : "");
                const uint32_t times = 9000;
                for (uint32_t k = 0; k < times; k++)
                    n += (size_t)snprintf(text + n, sizeof text - n, "%s", units[u]);
                snprintf(text + n, sizeof text - n, "\"%s}]}", parts ? "}]" : "");
                const size_t each = strlen(units[u]) > 4 ? 4 : strlen(units[u]);
                const enum status s = parse(text, REQUEST_CHAT, &r, &e);
                if (lint && each * times > REQUEST_LINT_BYTES) {
                    assert_int_equal(s, STATUS_TOO_LARGE);
                    assert_string_equal(e.field, "laconic.lint");
                    openai_request_free(&r);
                    continue;
                }
                assert_int_equal(s, STATUS_OK);
                const struct text got = r.base.user_text;
                const size_t before = parts ? 2 : 0;
                const size_t most = REQUEST_USER_TEXT_BYTES - before;
                const size_t want = lint ? each * times : most / each * each;
                assert_int_equal(got.len, before + want);
                for (size_t k = 0; k < want; k += each)
                    assert_memory_equal(got.data + before + k,
                                        u == 4 ? "\xF0\x9F\x98\x80" : units[u], each);
                openai_request_free(&r);
            }
        }
    }
}

static void test_messages(void **state) {
    (void)state;
    char text[1024];
    struct openai_request r;
    struct error e;
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        snprintf(text, sizeof text, "{\"messages\":%s}", messages[i].messages);
        const enum status s = parse(text, REQUEST_CHAT, &r, &e);
        if (messages[i].field != NULL) {
            if (s == STATUS_OK || strcmp(e.field, messages[i].field) != 0)
                fail_msg("%s: field '%s' (%s)", text, e.field, e.message);
        } else {
            if (s != STATUS_OK) fail_msg("%s: %s", text, e.message);
            assert_int_equal(r.base.chat_json.len, strlen(messages[i].chat));
            assert_memory_equal(r.base.chat_json.data, messages[i].chat, r.base.chat_json.len);
        }
        openai_request_free(&r);
    }
    assert_int_equal(parse("{}", REQUEST_CHAT, &r, &e), STATUS_INVALID);
    assert_string_equal(e.field, "messages");
    openai_request_free(&r);
    assert_int_equal(parse(CHAT
                           "\"add_generation_prompt\":false,\"chat_template_kwargs\":{\"a\":[]},"
                           "\"documents\":[{\"t\":1}]}",
                           REQUEST_CHAT, &r, &e),
                     STATUS_OK);
    const char *want = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
                       "\"add_generation_prompt\":false,\"chat_template_kwargs\":{\"a\":[]},"
                       "\"documents\":[{\"t\":1}]}";
    assert_int_equal(r.base.chat_json.len, strlen(want));
    assert_memory_equal(r.base.chat_json.data, want, strlen(want));
    openai_request_free(&r);
}

static void test_prompts(void **state) {
    (void)state;
    struct openai_request r;
    struct error e;
    static const char *const bad[] = {"{}",
                                      "{\"prompt\":null}",
                                      "{\"prompt\":1}",
                                      "{\"prompt\":[]}",
                                      "{\"prompt\":[[]]}",
                                      "{\"prompt\":[1,\"a\"]}",
                                      "{\"prompt\":[-1]}",
                                      "{\"prompt\":[1.5]}",
                                      "{\"prompt\":[[1],[\"a\"]]}",
                                      "{\"prompt\":[{}]}",
                                      "{\"prompt\":[true]}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(parse(bad[i], REQUEST_COMPLETION, &r, &e), STATUS_INVALID);
        assert_string_equal(e.field, "prompt");
        openai_request_free(&r);
    }
    assert_int_equal(parse("{\"prompt\":\"\"}", REQUEST_COMPLETION, &r, &e), STATUS_OK);
    assert_int_equal(r.n_prompts, 1);
    assert_int_equal(r.prompts[0].text.len, 0);
    openai_request_free(&r);
    assert_int_equal(parse("{\"prompt\":[1,2,3]}", REQUEST_COMPLETION, &r, &e), STATUS_OK);
    assert_int_equal(r.n_prompts, 1);
    assert_int_equal(r.prompts[0].n_ids, 3);
    assert_int_equal(r.prompts[0].ids[2], 3);
    openai_request_free(&r);
    assert_int_equal(parse("{\"prompt\":[\"a\",[7,8],\"bc\"]}", REQUEST_COMPLETION, &r, &e),
                     STATUS_OK);
    assert_int_equal(r.n_prompts, 3);
    assert_int_equal(r.prompts[1].ids[1], 8);
    assert_memory_equal(r.prompts[2].text.data, "bc", 2);
    assert_true(r.base.set & REQUEST_SET_SEED); /* one for all */
    openai_request_free(&r);
    char text[4096];
    size_t n = (size_t)sprintf(text, "{\"n\":16,\"prompt\":[\"a\"");
    for (int i = 0; i < 8; i++) n += (size_t)sprintf(text + n, ",\"a\"");
    sprintf(text + n, "]}");
    assert_int_equal(parse(text, REQUEST_COMPLETION, &r, &e), STATUS_INVALID);
    assert_string_equal(e.field, "prompt");
    openai_request_free(&r);
}

static void test_tokenize(void **state) {
    (void)state;
    struct openai_request r;
    struct error e;
    assert_int_equal(parse("{\"content\":\"a\\u0000\",\"prompt\":\"b\",\"add_special\":true}",
                           REQUEST_TOKENIZE, &r, &e),
                     STATUS_OK);
    assert_int_equal(r.base.prompt.len, 2);
    assert_true(r.base.add_bos && !r.base.special);
    openai_request_free(&r);
    assert_int_equal(parse("{\"prompt\":\"b\",\"parse_special\":true}", REQUEST_TOKENIZE, &r, &e),
                     STATUS_OK);
    assert_true(r.base.special);
    openai_request_free(&r);
    assert_int_equal(parse("{}", REQUEST_TOKENIZE, &r, &e), STATUS_INVALID);
    assert_string_equal(e.field, "content");
    openai_request_free(&r);
    assert_int_equal(parse("{\"content\":1}", REQUEST_TOKENIZE, &r, &e), STATUS_INVALID);
    openai_request_free(&r);
    assert_int_equal(parse("{\"tokens\":[1,2]}", REQUEST_DETOKENIZE, &r, &e), STATUS_OK);
    assert_int_equal(r.base.n_ids, 2);
    openai_request_free(&r);
    assert_int_equal(parse("{\"tokens\":[]}", REQUEST_DETOKENIZE, &r, &e), STATUS_OK);
    openai_request_free(&r);
    assert_int_equal(parse("{\"tokens\":\"1\"}", REQUEST_DETOKENIZE, &r, &e), STATUS_INVALID);
    assert_string_equal(e.field, "tokens");
    openai_request_free(&r);
}

static void test_http_statuses(void **state) {
    (void)state;
    static const struct {
        enum status status;
        int http;
    } want[] = {{STATUS_INVALID, 400},  {STATUS_UNSUPPORTED, 400}, {STATUS_CONTEXT_LENGTH, 400},
                {STATUS_TEMPLATE, 400}, {STATUS_TOO_LARGE, 400},   {STATUS_NOT_FOUND, 404},
                {STATUS_FULL, 503},     {STATUS_DEADLINE, 504},    {STATUS_DEVICE, 500},
                {STATUS_NO_MEMORY, 500}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const struct error e = {.status = want[i].status};
        assert_int_equal(openai_http_status(&e), want[i].http);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),  cmocka_unit_test(test_taken),
        cmocka_unit_test(test_values),   cmocka_unit_test(test_user_text),
        cmocka_unit_test(test_messages), cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_tokenize), cmocka_unit_test(test_http_statuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
