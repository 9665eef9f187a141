/* Chat templates: provenance of every byte, roles, prefill, shapes of content and arguments. */
#include <jansson.h>

#include "tests/models/jinja_test.h"

/* The text with the request's runs in [ ]. */
static char *marked(const char *text, const char *json, bool variables) {
    struct rendered r = {0};
    char *got = render(text, json, variables, NULL, &r);
    if (!r.text) return got;
    char *out = malloc(3 * r.len + 1), *p = out;
    uint32_t at = 0;
    assert_non_null(out);
    for (size_t i = 0; i < r.n_spans; i++) {
        assert_int_equal(r.spans[i].start, at);
        assert_true(r.spans[i].end > at);
        at = r.spans[i].end;
        if (r.spans[i].from_user) *p++ = '[';
        memcpy(p, r.text + r.spans[i].start, at - r.spans[i].start);
        p += at - r.spans[i].start;
        if (r.spans[i].from_user) *p++ = ']';
    }
    assert_int_equal(at, r.len);
    *p = '\0';
    rendered_free(&r);
    free(got);
    return out;
}

static void expect(const char *text, const char *json, bool variables, const char *want) {
    char *got = marked(text, json, variables);
    if (strcmp(got, want) != 0) fail_msg("%s\n  want %s\n  got  %s", text, want, got);
    free(got);
}

#define HI "{\"messages\":[{\"role\":\"user\",\"content\":\" Hi<x> \"}]}"

static void test_provenance(void **state) {
    (void)state;
    const char *j = "{\"s\":\"aXbXc\",\"n\":12,\"l\":[\"p\",\"q\"],\"d\":{\"k\":\"v\\n\"},\"u\":"
                    "\"\\u00e9\\u00df\"}";
    expect("<|{{ s }}|>", j, true, "<|[aXbXc]|>");
    expect("{{ '<' + s + '>' }}{{ '<' ~ n ~ '>' }}", j, true, "<[aXbXc]><[12]>");
    expect("{{ (' <' + s + '> ')|trim|upper }}", j, true, "<[AXBXC]>");
    expect("{{ s|replace('X', '-') }}{{ 'aXb'.replace('X', s[0]) }}", j, true, "[a]-[b]-[c]a[a]b");
    expect("{{ ('<' + s + '>')[1:3] }}{{ ('<' + s)[::-1] }}", j, true, "[aXcXbXa]<");
    expect("{{ l|join('+') }}{{ s.split('X')|join('|') }}", j, true, "[p]+[qa]|[b]|[c]");
    expect("{{ d|tojson }}{{ {'k': s}|tojson }}{{ [s] }}", j, true,
           "[{\"k\": \"v\\n\"}]{\"k\": \"[aXbXc]\"}['[aXbXc]']");
    expect("{{ '%s/%d' % (s, n) }}{{ '{}'.format(s) }}{{ s|e }}", j, true,
           "[aXbXc]/[12aXbXcaXbXc]");
    expect("{{ u|upper }}{{ s|length }}{{ n + 1 }}{{ s == 'a' }}", j, true,
           "[\xc3\x89SS]5[13]False");
    expect(
        "{% set q %}<{{ s }}>{% endset %}{{ q }}{% macro m(a) %}({{ a }}){% endmacro %}{{ m(s) }}",
        j, true, "<[aXbXc]>([aXbXc])");
    expect(
        "{% for k, v in d.items() %}{{ k }}={{ v|trim }}{% endfor %}{{ l|first }}{{ 'x'.join(l) }}",
        j, true, "[k]=[vpp]x[q]");
}

static void test_roles_and_tokens(void **state) {
    (void)state;
    const char *t = "{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>' + m.content "
                    "}}{% endfor %}{{ eos_token }}";
    expect(t, HI, false, "<s><|user|>[ Hi<x> ]</s>");
    expect(t, "{\"messages\":[{\"role\":\"im_end\",\"content\":\"x\"}]}", false,
           "<s><|[im_end]|>[x]</s>");
    expect("{{ bos_token }}{{ x }}", "{\"bos_token\":\"<b>\",\"x\":1}", true, "<b>[1]");
    expect("{{ bos_token }}{{ k }}",
           "{\"messages\":[{}],\"chat_template_kwargs\":{\"bos_token\":\"evil\",\"k\":\"v\"}}",
           false, "<s>[v]");
    expect("{{ add_generation_prompt }}{{ tools }}", HI, false, "TrueNone");
    expect("{{ raise_exception('Roles must alternate') }}", HI, false, "!Roles must alternate");
    expect("{{ 1 }}", "{\"messages\":[]}", false,
           "!messages must be a list of at least one message");
    expect("{{ 1 }}", "[]", false, "!the input must be a JSON object");
    expect("{{ 1 }}", "{", false, "!not JSON: string or '}' expected near end of file (line 1)");
}

static void test_prefill(void **state) {
    (void)state;
    const char *t = "{% for m in messages %}<{{ m.role }}>{{ m.content|trim }}<end>{% endfor %}{% "
                    "if add_generation_prompt %}<assistant>{% endif %}";
#define PREFILL(text)                                                                              \
    "{\"continue_final_message\":true,\"messages\":[{\"role\":\"user\",\"content\":\"The\"},{"     \
    "\"role\":\"assistant\",\"content\":\"" text "\"}]}"
    expect(t, PREFILL("The"), false, "<user>[The]<end><assistant>[The]");
    expect(t, PREFILL("a<end>"), false, "<user>[The]<end><assistant>[a<end>]");
    expect(t, PREFILL(" So "), false, "<user>[The]<end><assistant>[So]");
    expect("x{{ messages[0].content }}", PREFILL("gone"), false,
           "!the template does not print the final message, which therefore cannot be continued");
    expect("{{ messages[-1].content }}<end>", PREFILL("So "), false, "[So ]");
    expect(t, PREFILL("  "), false, "!continue_final_message needs a final message with text");
}

static void test_shapes(void **state) {
    (void)state;
    const char *text_only = "{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}";
    const char *parts_only = "{% for m in messages %}{% for p in m.content %}{{ '(' + p['text'] + "
                             "')' }}{% endfor %}{% endfor %}";
    const char *parts = "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\","
                        "\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]}";
    expect(text_only, parts, false, "<[a\nb]>");
    expect(parts_only, parts, false, "([a])([b])");
    expect(parts_only, HI, false, "([ Hi<x> ])");
    const char *call = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":"
                       "\"assistant\",\"content\":\"\",\"tool_calls\":[{\"type\":\"function\","
                       "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}}]}]}";
    expect("{% for m in messages if m.tool_calls %}{{ m.tool_calls[0].function.arguments|tojson "
           "}}{% endfor %}",
           call, false, "[{\"a\": 1}]");
    expect("{% for m in messages if m.tool_calls %}{{ '~' + m.tool_calls[0].function.arguments "
           "}}{% endfor %}",
           call, false, "~[{\"a\": 1}]");
}

/* Whatever the template does with it, a marker that only the request knows never shows up as the
 * template's own text. */
static void test_marker_stays_marked(void **state) {
    (void)state;
    static const char *const ops[] = {"{{ s }}",
                                      "{{ s|upper|lower }}",
                                      "{{ '<' ~ s ~ '>' }}",
                                      "{{ [s, 1]|tojson }}",
                                      "{{ {'a': s} }}",
                                      "{{ s.split('q')|join('<') }}",
                                      "{{ s|replace('q', '') }}",
                                      "{{ ('<' * 3 + s + '>')[2:] }}",
                                      "{{ '%9s' % s }}",
                                      "{{ s|indent(2, true) }}",
                                      "{{ s.strip('q') }}",
                                      "{{ s.center(30) }}",
                                      "{% filter trim %} {{ s }} {% endfilter %}",
                                      "{{ [s]|map('trim')|join }}",
                                      "{{ s.partition('q')|join }}",
                                      "{{ s|list|join }}",
                                      "{{ s|batch(2)|map('join')|join }}",
                                      "{{ s|title }}"};
    for (uint64_t round = 0; round < 500; round++) {
        char text[800] = "", json[200];
        uint64_t x = (round + 1) * 0x9E3779B97F4A7C15u;
        for (int i = 0; i < 4; i++) strcat(text, ops[(x >> (8 * i)) % (sizeof ops / sizeof *ops)]);
        snprintf(json, sizeof json, "{\"s\":\"%szz%szz\"}", x & 1 ? "q " : "",
                 x & 2 ? " \\u00e9q" : "");
        struct rendered r = {0};
        char *got = render(text, json, true, NULL, &r);
        assert_non_null(r.text);
        for (size_t i = 0; i < r.n_spans; i++) {
            for (uint32_t k = r.spans[i].start; k < r.spans[i].end; k++) {
                bool z = r.text[k] == 'z' || r.text[k] == 'Z';
                if (z && !r.spans[i].from_user)
                    fail_msg("round %d: %s -> %s", (int)round, text, got);
                if (r.text[k] == '<' && r.spans[i].from_user)
                    fail_msg("round %d: %s -> %s", (int)round, text, got);
            }
        }
        free(got);
        rendered_free(&r);
    }
}

/* The cases of public model cards, when they are beside the repository. */
static void test_model_cards(void **state) {
    (void)state;
    const char *shared = getenv("LAC_SHARED");
    char path[4096];
    snprintf(path, sizeof path, "%s/data/templates/cases.json", shared ? shared : "../shared");
    json_t *cases = json_load_file(path, 0, NULL), *c;
    size_t i, n = 0;
    if (!cases) {
        printf("skip: %s is not here\n", path);
        return;
    }
    json_array_foreach(cases, i, c) {
        char text[JINJA_MAX_TEMPLATE_BYTES / 8];
        const char *want = json_string_value(json_object_get(c, "expected"));
        const char *error = json_string_value(json_object_get(c, "error"));
        if (want && strstr(want, "2026")) continue;
        snprintf(path, sizeof path, "%s/data/templates/%s", shared ? shared : "../shared",
                 json_string_value(json_object_get(c, "template")));
        FILE *f = fopen(path, "rb");
        assert_non_null(f);
        text[fread(text, 1, sizeof text - 1, f)] = '\0';
        fclose(f);
        char *in = json_dumps(json_object_get(c, "input"), 0);
        char *got = render(text, in, true, NULL, NULL);
        if (want ? strcmp(got, want) != 0 : strcmp(got + 1, strchr(error, ':') + 2) != 0) {
            fail_msg("%s: want %s\ngot %s", path, want ? want : error, got);
        }
        free(in);
        free(got);
        n++;
    }
    assert_true(n > 0);
    json_decref(cases);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_provenance),
        cmocka_unit_test(test_roles_and_tokens),
        cmocka_unit_test(test_prefill),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_marker_stays_marked),
        cmocka_unit_test(test_model_cards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
