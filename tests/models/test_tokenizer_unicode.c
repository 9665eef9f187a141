/* The Unicode table against PCRE2's own data and against its generator; UTF-8 against its
 * definition. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "models/unicode.h"

static const char *const names[UNICODE_CATEGORY_COUNT] = {
    "Cn", "Cc", "Cf", "Co", "Cs", "Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl",
    "No", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl", "Zp", "Zs"};

static pcre2_code *compile(const char *expr) {
    int why;
    size_t where;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)expr, PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &why, &where, NULL);
    assert_non_null(re);
    return re;
}

static bool matches(const pcre2_code *re, pcre2_match_data *m, uint32_t cp) {
    char text[4];
    size_t len = utf8_encode(cp, text);
    return pcre2_match(re, (PCRE2_SPTR)text, len, 0, 0, m, NULL) == 1;
}

static void test_categories_as_pcre2(void **state) {
    (void)state;
    char version[32];
    pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
    if (strcmp(version, unicode_version()) != 0) {
        printf("skip: PCRE2 has Unicode %s, the table %s\n", version, unicode_version());
        skip();
    }
    pcre2_code *re[UNICODE_CATEGORY_COUNT];
    for (size_t i = 0; i < UNICODE_CATEGORY_COUNT; i++) {
        char expr[16];
        snprintf(expr, sizeof expr, "\\p{%s}", names[i]);
        re[i] = compile(expr);
    }
    pcre2_code *han = compile("\\p{sc:Han}"), *space = compile("\\s");
    pcre2_match_data *m = pcre2_match_data_create(1, NULL);
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        if (cp == 0xD800) {
            for (; cp < 0xE000; cp++) assert_int_equal(unicode_category(cp), UNICODE_CS);
        }
        if (!matches(re[unicode_category(cp)], m, cp))
            fail_msg("U+%04X is not %s", cp, names[unicode_category(cp)]);
        /* U+180E was white space before Unicode 6.3; PCRE2 keeps it so. */
        if (matches(space, m, cp) != unicode_is_space(cp) && cp != 0x180E)
            fail_msg("U+%04X: white space", cp);
        if (matches(han, m, cp) != unicode_is_han(cp)) fail_msg("U+%04X: Han", cp);
    }
    for (size_t i = 0; i < UNICODE_CATEGORY_COUNT; i++) pcre2_code_free(re[i]);
    pcre2_code_free(han);
    pcre2_code_free(space);
    pcre2_match_data_free(m);
}

/* Run from the root of the repository, as the test runner does. */
static void test_table_is_what_its_generator_writes(void **state) {
    (void)state;
    char ask[160];
    snprintf(ask, sizeof ask,
             "python3 -c 'import unicodedata as u,sys;sys.exit(u.unidata_version!=\"%s\")' "
             "2>/dev/null",
             unicode_version());
    if (system(ask) != 0) {
        printf("skip: no python3 with Unicode %s\n", unicode_version());
        skip();
    }
    assert_int_equal(system("python3 models/unicode_gen.py | cmp - models/unicode_table.h"), 0);
}

static void test_case_and_base(void **state) {
    (void)state;
    assert_int_equal(unicode_lower('A'), 'a');
    assert_int_equal(unicode_lower('z'), 'z');
    assert_int_equal(unicode_lower(0xC9), 0xE9);
    assert_int_equal(unicode_lower(0x1E9E), 0xDF);
    assert_int_equal(unicode_lower(0x10400), 0x10428);
    assert_int_equal(unicode_lower(0x110000), 0x110000);
    uint32_t out[3];
    assert_int_equal(unicode_base(0xE9, out), 1);
    assert_int_equal(out[0], 'e');
    assert_int_equal(unicode_base(0x1EAD, out), 1); /* a, circumflex, dot below */
    assert_int_equal(out[0], 'a');
    assert_int_equal(unicode_base(0x301, out), 0);
    assert_int_equal(unicode_base(0xAC01, out), 3);
    assert_int_equal(out[0], 0x1100);
    assert_int_equal(out[1], 0x1161);
    assert_int_equal(out[2], 0x11A8);
    assert_int_equal(unicode_base(0xAC00, out), 2);
    assert_int_equal(unicode_base(0x4E2D, out), 1);
    assert_int_equal(out[0], 0x4E2D);
}

static void test_utf8(void **state) {
    (void)state;
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        if (cp == 0xD800) cp = 0xE000;
        char text[4];
        uint32_t got;
        size_t len = utf8_encode(cp, text);
        assert_int_equal(utf8_decode(text, len, &got), len);
        assert_int_equal(got, cp);
        for (size_t cut = 1; cut < len; cut++) {
            assert_int_equal(utf8_decode(text, cut, &got), 1);
            assert_int_equal(got, UTF8_INVALID);
        }
    }
    static const char *const bad[] = {
        "\x80",         "\xC0\x80",         "\xC1\xBF",         "\xE0\x9F\xBF",
        "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80",
        "\xFF",         "\xE2\x28\xA1",     "\xE2\x82\x28"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint32_t got;
        assert_int_equal(utf8_decode(bad[i], strlen(bad[i]), &got), 1);
        assert_int_equal(got, UTF8_INVALID);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_categories_as_pcre2),
        cmocka_unit_test(test_table_is_what_its_generator_writes),
        cmocka_unit_test(test_case_and_base),
        cmocka_unit_test(test_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
