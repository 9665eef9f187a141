/* The template language: what each construct prints, and how it fails. Expected texts are Python
 * jinja2's; compare_jinja.py compares random ones. */
#include "tests/models/jinja_test.h"

static const char vars[] =
    "{\"s\":\" Ab c \",\"n\":7,\"f\":2.5,\"t\":true,\"x\":null,\"l\":[3,1,2],\"w\":\"h\\u00e9llo "
    "\\u65e5\\u672c\","
    "\"d\":{\"b\":2,\"a\":[1,\"q'\"]},\"rows\":[{\"r\":\"u\",\"k\":1},{\"r\":\"v\",\"k\":2},{\"r\":"
    "\"u\",\"k\":3}]}";

struct example {
    const char *text, *want; /* a want that starts with ! is (the start of) the error */
};

static void check(const struct example *e, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char *got = render(e[i].text, vars, true, NULL, NULL);
        bool same = e[i].want[0] == '!' ? strncmp(got, e[i].want, strlen(e[i].want)) == 0
                                        : strcmp(got, e[i].want) == 0;
        if (!same) fail_msg("%s\n  want %s\n  got  %s", e[i].text, e[i].want, got);
        free(got);
    }
}
#define CHECK_EXAMPLES(...)                                                                        \
    const struct example examples[] = {__VA_ARGS__};                                               \
    check(examples, sizeof examples / sizeof *examples)

static void test_whitespace(void **state) {
    (void)state;
    CHECK_EXAMPLES({"a\n", "a"}, {"a\n\n", "a\n"}, {"a\r\nb\rc", "a\nb\nc"},
                   {"  {% if t %}\n  x\n  {% endif %}\ny", "  x\ny"},
                   {"  {%+ if t %}x{% endif %}", "  x"}, {"a {{- n -}} b", "a7b"},
                   {"{% if t +%}\nx{% endif %}", "\nx"}, {"a\n {# c #}\nb", "a\nb"},
                   {"a {#- c -#} b", "ab"}, {"{% raw %}{{ x }}{% endraw %}", "{{ x }}"},
                   {"a {%- raw -%} {%x {% endraw %}\nb", "a{%x b"}, {"x {{ n }}\ny", "x 7\ny"},
                   {"\t{{ n }}", "\t7"}, {"{# {{ #}z", "z"});
}

static void test_expressions(void **state) {
    (void)state;
    CHECK_EXAMPLES(
        {"{{ 1 + 2 * 3 - 4 }} {{ 7 // -2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 3 ** 2 }}",
         "3 -4 2 3.5 64"},
        {"{{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1e16 }} {{ 1e15 }} {{ 0.1 + 0.2 }} {{ 1e-5 }}",
         "3.0 0.5 1e+16 1000000000000000.0 0.30000000000000004 1e-05"},
        {"{{ 'a' ~ 1 ~ none ~ true }}", "a1NoneTrue"},
        {"{{ 'a' 'b' }}{{ \"\\x41\\u00e9\\n\\q\" }}", "abA\xc3\xa9\n\\q"},
        {"{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 2 in l }} {{ 9 not in l }} {{ 'b' in d }}",
         "True False True True True"},
        {"{{ not t and x or 'z' }} {{ x or l }} {{ 'p' if x else 'q' }}[{{ 'p' if x }}]",
         "z [3, 1, 2] q[]"},
        {"{{ l[-1] }} {{ l[::-1] }} {{ w[1:-1] }} {{ w[::2] }} {{ w|length }}",
         "2 [2, 1, 3] \xc3\xa9llo \xe6\x97\xa5 hlo\xe6\x97\xa5 8"},
        {"{{ d.a[1] }} {{ d['b'] }} {{ d }} {{ (1,) }} {{ {1: 'x'} }}",
         "q' 2 {'b': 2, 'a': [1, \"q'\"]} (1,) {1: 'x'}"},
        {"{{ d.zz }}[{{ nope }}]", "[]"}, {"{{ nope.x }}", "!'nope' is undefined"},
        {"{{ d.zz.y }}", "!'dict object' has no attribute 'zz'"},
        {"{{ d.items()|list }}", "[('b', 2), ('a', [1, \"q'\"])]"},
        {"{{ 1 == 1.0 == true }} {{ 'a' == 1 }} {{ {1: 2}[true] }}", "True False 2"},
        {"{{ [1] + [2] }} {{ 'ab' * 2 }} {{ (1, 2) + (3,) }}", "[1, 2] abab (1, 2, 3)"},
        {"{{ '%s-%05.1f-%r' % ('a', f, 'b') }}", "a-002.5-'b'"},
        {"{{ 1 + 'a' }}", "!unsupported operand type(s) for +"},
        {"{{ 'a' + 1 }}", "!can only concatenate str"},
        {"{{ 1 // 0 }}", "!integer division or modulo by zero"},
        {"{{ 9223372036854775807 + 1 }}", "!integer overflow"},
        {"{{ range(5)[1:4]|list }} {{ range(3) }}", "[1, 2, 3] range(0, 3)"},
        {"{{ 'a' % range(3) }} {{ 'b' % [1] }} {{ 'c' % {} }}", "a b c"},
        {"{{ '%s' is even }} {{ '%d' is odd }}", "False False"},
        {"{{ -n|abs }} {{ +n }} {{ 0x1f }} {{ 1_000 }}", "7 7 31 1000"});
}

static void test_statements(void **state) {
    (void)state;
    CHECK_EXAMPLES(
        {"{% for i in l if i > 1 %}{{ loop.index }}{{ i }}{{ ',' if not loop.last }}{% endfor %}",
         "13,22"},
        {"{% for k, v in d.items() %}{{ k }}{% else %}none{% endfor %}{% for i in [] %}{% else "
         "%}e{% endfor %}",
         "bae"},
        {"{% for i in l %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {{ loop.revindex }}{{ "
         "loop.cycle('a','b') }};{% endfor %}",
         "<3>1 3a;3<1>2 2b;1<2> 1a;"},
        {"{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 4 %}{% break "
         "%}{% endif %}{{ i }}{% endfor %}",
         "0134"},
        {"{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c %}x{{ a }}{% endset %}{{ c }}{% set e | "
         "upper %}y{% endset %}{{ e }}",
         "12x1Y"},
        {"{% set v = 0 %}{% for i in l %}{% set v = i %}{% endfor %}{{ v }}", "0"},
        {"{% set ns = namespace(v=0) %}{% for i in l %}{% set ns.v = ns.v + i %}{% endfor %}{{ "
         "ns.v }}",
         "6"},
        {"{% if x %}1{% elif n == 7 %}2{% else %}3{% endif %}", "2"},
        {"{% macro m(a, b=a) %}[{{ a }}{{ b }}{{ varargs }}{{ kwargs }}]{% endmacro %}{{ m(1) }}{{ "
         "m(1, 2, 3, z=4) }}",
         "[11(){}][12(3,){'z': 4}]"},
        {"{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
         "!macro 'm' takes not more than 1 argument(s)"},
        {"{% macro m() %}<{{ caller(5) }}>{% endmacro %}{% call(q) m() %}{{ q }}{% endcall %}",
         "<5>"},
        {"{% filter upper | trim %} a {% endfilter %}{% with q = 3 %}{{ q }}{% endwith %}{{ q }}",
         "A3"},
        {"{% generation %}g{% endgeneration %}", "g"},
        {"{{ raise_exception('no ' ~ n) }}", "!no 7"},
        {"{{ strftime_now('%d %b %Y') }}", "31 Jul 2025"},
        {"{% set d.b = 1 %}", "!cannot assign attribute on non-namespace"},
        {"{% for a, b in [[1, 2, 3]] %}{% endfor %}", "!too many values to unpack"});
}

static void test_filters(void **state) {
    (void)state;
    CHECK_EXAMPLES(
        {"{{ s|trim }}|{{ s|upper|trim }}|{{ 'a-b c'|title }}|{{ 'ABC'|capitalize }}",
         "Ab c|AB C|A-B C|Abc"},
        {"{{ d|tojson }} {{ [1.0, none, true, 'e\\n\"']|tojson }}",
         "{\"b\": 2, \"a\": [1, \"q'\"]} [1.0, null, true, \"e\\n\\\"\"]"},
        {"{{ {'b': [1], 'a': {}}|tojson(indent=2, sort_keys=true) }}",
         "{\n  \"a\": {},\n  \"b\": [\n    1\n  ]\n}"},
        {"{{ w|tojson }} {{ w|tojson(ensure_ascii=true) }}",
         "\"h\xc3\xa9llo \xe6\x97\xa5\xe6\x9c\xac\" \"h\\u00e9llo \\u65e5\\u672c\""},
        {"{{ l|sort }} {{ l|sort(reverse=true) }} {{ l|sum }} {{ l|min }} {{ l|join('-') }} {{ "
         "l|first }} {{ l|last }}",
         "[1, 2, 3] [3, 2, 1] 6 1 3-1-2 3 2"},
        {"{{ rows|selectattr('r', 'equalto', 'u')|map(attribute='k')|list }} {{ "
         "rows|rejectattr('r', 'eq', 'u')|list|length }}",
         "[1, 3] 1"},
        {"{% for g in rows|groupby('r') %}{{ g.grouper }}{{ g.list|length }}{% endfor %}", "u2v1"},
        {"{{ nope|default('z') }} {{ ''|d('y', true) }} {{ '42x'|int(5) }} {{ '42.9'|int }} {{ "
         "2.5|round }} {{ 2.567|round(2) }}",
         "z y 5 42 2.0 2.57"},
        {"{{ l|batch(2)|list }} {{ 'aXbX'|replace('X', '.', 1) }} {{ [1, 1, 2]|unique|list }} {{ "
         "d|dictsort }}",
         "[[3, 1], [2]] a.bX [1, 2] [('a', [1, \"q'\"]), ('b', 2)]"},
        {"{{ 'a\nb'|indent(2) }} {{ '<&>'|e }} {{ 'a b/c'|urlencode }} {{ 'a bb'|wordcount }} {{ "
         "l|map('string')|join }}",
         "a\n  b &lt;&amp;&gt; a%20b/c 2 312"},
        {"{{ 1|nope }}", "!template line 1: no filter named 'nope'"},
        {"\n{{ 1 is nope }}", "!template line 2: no test named 'nope'"},
        {"{{ 'x'|length(1) }}", "!length takes at most 0 arguments"});
}

static void test_tests_and_methods(void **state) {
    (void)state;
    CHECK_EXAMPLES(
        {"{{ ' a b c '.split(none, 1) }} {{ ' a b c '.rsplit(none, 1) }}",
         "['a', 'b c '] [' a b', 'c']"},
        {"{{ n is defined }}{{ q is defined }}{{ x is none }}{{ s is string }}{{ d is mapping }}{{ "
         "l is iterable }}{{ n is number }}{{ t is boolean }}",
         "TrueFalseTrueTrueTrueTrueTrueTrue"},
        {"{{ n is odd }}{{ n is divisibleby 7 }}{{ n is in [7] }}{{ n is not eq 7 }}{{ range is "
         "callable }}{{ t is sameas true }}",
         "TrueTrueTrueFalseTrueTrue"},
        {"{{ 'a,b'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.rsplit(',', 1) }} {{ "
         "'x=1'.partition('=') }}",
         "['a', 'b'] ['a', 'b'] ['a,b', 'c'] ('x', '=', '1')"},
        {"{{ '</think>a</think>b'.split('</think>')[-1].lstrip('\\n') }} {{ 'abc'.startswith(('x', "
         "'a')) }} {{ w.find('\xe6\x97\xa5') }} {{ 'ab'.replace('', '-') }}",
         "b True 6 -a-b-"},
        {"{{ d.get('q', 1) }} {{ d.keys()|list }} {{ d.pop('b') }} {{ d }} {% set _ = l.append(9) "
         "%}{{ l }}",
         "1 ['b', 'a'] 2 {'a': [1, \"q'\"]} [3, 1, 2, 9]"},
        {"{{ '{} {0!r} {k}'.format('v', k=1) }}", "v 'v' 1"},
        {"{{ '{:>3}'.format(1) }}", "!format specifications are not supported"},
        {"{{ {'items': 1}.items() | list }} {{ {'items': 1}['items'] }}", "[('items', 1)] 1"},
        {"{{ n() }}", "!'int' object is not callable"});
}

static void test_syntax_errors(void **state) {
    (void)state;
    CHECK_EXAMPLES({"{{ ", "!template line 1: '{{' without '}}'"},
                   {"{% if x %}", "!template line 1: expected elif, got the end"},
                   {"{% endif %}", "!template line 1: unknown tag 'endif'"},
                   {"{{ 'a }}", "!template line 1: string without an end"},
                   {"{{ (1] }}", "!template line 1: unexpected closing bracket"},
                   {"{% break %}", "!template line 1: break or continue outside"},
                   {"{{ 1 2 }}", "!template line 1: expected '}}', got a number"},
                   {"{% set 1 = 2 %}", "!template line 1: expected a name to assign to"},
                   {"{% include 'x' %}", "!template line 1: unknown tag 'include'"},
                   {"{# x", "!template line 1: missing end of comment"},
                   {"\xff", "!template is not UTF-8"},
                   {"{{ 1 is is }}", "!template line 1: no test named 'is'"});
}

/* The upper-case table is what its generator writes, where Python has the same Unicode version. */
static void test_upper_table(void **state) {
    (void)state;
    char want[256], got[256];
    FILE *table = fopen("models/jinja_upper_table.h", "r");
    FILE *made = popen("python3 models/jinja_unicode_gen.py", "r");
    assert_non_null(table);
    assert_non_null(made);
    bool same =
        fgets(want, sizeof want, table) && fgets(got, sizeof got, made) && !strcmp(want, got);
    if (!same) printf("skip: python3 with the table's Unicode version is not here\n");
    while (same && fgets(want, sizeof want, table)) {
        assert_non_null(fgets(got, sizeof got, made));
        assert_string_equal(got, want);
    }
    while (fgets(got, sizeof got, made)) assert_false(same);
    fclose(table);
    pclose(made);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whitespace),        cmocka_unit_test(test_expressions),
        cmocka_unit_test(test_statements),        cmocka_unit_test(test_filters),
        cmocka_unit_test(test_tests_and_methods), cmocka_unit_test(test_syntax_errors),
        cmocka_unit_test(test_upper_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
