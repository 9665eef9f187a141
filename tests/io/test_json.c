/* Request bodies as JSON: what is refused and why, long strings, every cut, random documents
 * compared with jansson's own reading of the whole text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "io/json_doc.h"
#include "tests/io/guard.h"

static uint32_t seed = 99;
static uint32_t draw(uint32_t n) {
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

static enum status read_text(const char *bytes, size_t n, struct error *e, struct json_doc *keep,
                             struct body *body) {
    static struct body own;
    struct body *b = body != NULL ? body : &own;
    body_clear(b);
    assert_true(body_append(b, bytes, n));
    struct json_doc d;
    const enum status s = json_doc_read(&d, b, NULL, e);
    if (keep != NULL)
        *keep = d;
    else
        json_doc_free(&d);
    if (body == NULL) body_clear(b);
    return s;
}

static const struct {
    const char *text;
    bool ok;
    const char *field;
} cases[] = {
    {"{}", true, ""},
    {" {\"a\" : [ 1 , 2.5e3 , true , false , null , \"x\" ] } \n", true, ""},
    {"{\"a\":\"\\u0000\\ud83d\\ude00\\/\\b\\f\\n\\r\\t\\\"\\\\\"}", true, ""},
    {"{\"a\":\"\xF4\x8F\xBF\xBF\xED\x9F\xBF\xEE\x80\x80\"}", true, ""},
    {"", false, ""},
    {"[]", false, ""},
    {"1", false, ""},
    {"null", false, ""},
    {"\"x\"", false, ""},
    {"{", false, ""},
    {"{}}", false, ""},
    {"{} x", false, ""},
    {"{}{}", false, ""},
    {"{\"a\":1,}", false, "a"},
    {"{\"a\":1,\"b\":[1,]}", false, "b"},
    {"{\"a\" 1}", false, "a"},
    {"{a:1}", false, ""},
    {"{'a':1}", false, ""},
    {"{\"a\":01}", false, "a"},
    {"{\"a\":1e999}", false, "a"},
    {"{\"a\":NaN}", false, "a"},
    {"{\"seed\":99999999999999999999}", false, "seed"},
    {"{\"a\":1,\"a\":2}", false, "a"},
    {"{\"x\":{\"a\":1,\"a\":2}}", false, "x"},
    {"{\"a\":\"\\ud800\"}", false, "a"},
    {"{\"a\":\"\\udc00\"}", false, "a"},
    {"{\"a\":\"\\ud800\\ud800\"}", false, "a"},
    {"{\"a\":\"\\ud800x\\udc00\"}", false, "a"},
    {"{\"a\":\"\\ud800\\n\"}", false, "a"},
    {"{\"\\ud800\":1}", false, ""},
    {"{\"a\":\"\\x41\"}", false, "a"},
    {"{\"a\":\"\\u12g4\"}", false, "a"},
    {"{\"a\":\"\x80\"}", false, "a"},
    {"{\"a\":\"\xC0\xAF\"}", false, "a"},
    {"{\"a\":\"\xE0\x80\x80\"}", false, "a"},
    {"{\"a\":\"\xED\xA0\x80\"}", false, "a"},
    {"{\"a\":\"\xF4\x90\x80\x80\"}", false, "a"},
    {"{\"a\":\"\xF0\x9F\x98\"}", false, "a"},
    {"{\"a\":\"tab\tin\"}", false, "a"},
    {"{\"a\":\"unended}", false, "a"},
    {"{\"\\u0000\":1}", false, "\\u0000"},
    {"\xEF\xBB\xBF{}", false, ""},
    {"{\"a\":1}\xFF", false, "a"},
};

static void test_rules(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error e = {0};
        const enum status s = read_text(cases[i].text, strlen(cases[i].text), &e, NULL, NULL);
        if ((s == STATUS_OK) != cases[i].ok)
            fail_msg("case %zu %s: %s", i, cases[i].text, e.message);
        if (s == STATUS_OK) continue;
        assert_int_equal(s, STATUS_INVALID);
        if (strcmp(e.field, cases[i].field) != 0)
            fail_msg("case %zu %s: field '%s' (%s)", i, cases[i].text, e.field, e.message);
        assert_true(strlen(e.message) > 10);
    }
    /* A NUL byte between values. */
    assert_int_equal(read_text("{}\0", 3, NULL, NULL, NULL), STATUS_INVALID);
}

/* The scanner reads no byte past its piece, and every cut gives the same condensed text. */
static void test_every_cut(void **state) {
    (void)state;
    struct guard g = guard_open();
    char text[1200];
    char longer[600];
    memset(longer, 'y', sizeof longer);
    memcpy(longer + 300, "\\ud83d\\ude00\xF0\x9F\x98\x80\\u00e9", 22);
    const int n = snprintf(
        text, sizeof text,
        "{\"model\":\"m\",\"k\\u0041\":[1,{\"x\":\"%.500s\"}],\"z\":\"a\\u0000b\"}", longer);
    char whole[2048] = "";
    for (int cut = 0; cut <= n; cut++) {
        struct buffer out;
        struct json_scan s;
        buffer_init(&out, 0);
        json_scan_init(&s, &out);
        assert_int_equal(json_scan_feed(&s, guard_copy(&g, text, (size_t)cut), (size_t)cut, NULL),
                         STATUS_OK);
        assert_int_equal(json_scan_feed(&s, guard_copy(&g, text + cut, (size_t)(n - cut)),
                                        (size_t)(n - cut), NULL),
                         STATUS_OK);
        assert_int_equal(json_scan_end(&s, NULL), STATUS_OK);
        assert_int_equal(s.n_longs, 2);
        assert_int_equal(s.longs[0].bytes, 500);
        assert_memory_equal(text + s.longs[0].at, longer, 500);
        assert_int_equal(s.longs[1].bytes, 8);
        if (cut == 0) memcpy(whole, buffer_cstr(&out), out.len + 1);
        assert_string_equal(buffer_cstr(&out), whole);
        json_scan_free(&s);
        buffer_free(&out);
    }
    assert_string_equal(
        whole, "{\"model\":\"m\",\"k\\u0041\":[1,{\"x\":\"\\u00000\"}],\"z\":\"\\u00001\"}");
    guard_close(&g);
}

static void test_limits(void **state) {
    (void)state;
    const size_t cap = 4 << 20;
    char *text = malloc(cap);
    struct error e;
    /* Nesting: the object and 63 lists pass, 64 do not. */
    for (int over = 0; over < 2; over++) {
        const size_t deep = JSON_MAX_DEPTH - 1 + (size_t)over;
        size_t n = (size_t)sprintf(text, "{\"deep\":");
        for (size_t i = 0; i < deep; i++) text[n++] = '[';
        for (size_t i = 0; i < deep; i++) text[n++] = ']';
        text[n++] = '}';
        assert_int_equal(read_text(text, n, &e, NULL, NULL), over ? STATUS_INVALID : STATUS_OK);
    }
    assert_string_equal(e.field, "deep");
    memset(text, '[', 100000);
    assert_int_equal(read_text(text, 100000, &e, NULL, NULL), STATUS_INVALID);
    /* Values. */
    for (int over = 0; over < 2; over++) {
        size_t n = (size_t)sprintf(text, "{\"ids\":[1");
        /* The object and the list count too. */
        for (int i = 0; i < JSON_MAX_VALUES - 2 + over; i++)
            n += (size_t)sprintf(text + n, ",%d", i % 10);
        n += (size_t)sprintf(text + n, "]}");
        assert_int_equal(read_text(text, n, &e, NULL, NULL), over ? STATUS_INVALID : STATUS_OK);
    }
    assert_string_equal(e.field, "ids");
    /* Members of one object. */
    for (int over = 0; over < 2; over++) {
        size_t n = (size_t)sprintf(text, "{\"o\":{\"k\":1");
        for (int i = 1; i < JSON_MAX_MEMBERS + over; i++)
            n += (size_t)sprintf(text + n, ",\"%d\":1", i);
        n += (size_t)sprintf(text + n, "}}");
        assert_int_equal(read_text(text, n, &e, NULL, NULL), over ? STATUS_INVALID : STATUS_OK);
    }
    assert_string_equal(e.field, "o");
    /* Numbers: strtod would walk through megabytes of digits. */
    for (int over = 0; over < 2; over++) {
        size_t n = (size_t)sprintf(text, "{\"x\":0.");
        for (int i = 0; i < JSON_WORD_BYTES - 2 + over; i++) text[n++] = '5';
        text[n++] = '}';
        assert_int_equal(read_text(text, n, &e, NULL, NULL), over ? STATUS_INVALID : STATUS_OK);
    }
    /* Keys. */
    for (int over = 0; over < 2; over++) {
        char key[JSON_KEY_BYTES + 2];
        memset(key, 'k', sizeof key);
        const size_t n = (size_t)sprintf(text, "{\"%.*s\":1}", JSON_KEY_BYTES + over, key);
        assert_int_equal(read_text(text, n, &e, NULL, NULL), over ? STATUS_INVALID : STATUS_OK);
    }
    free(text);
}

/* ---- random documents ---- */

static size_t put_string(char *to, uint32_t max) {
    size_t n = 0;
    to[n++] = '"';
    const uint32_t k = draw(8) == 0 ? draw(max) : draw(12);
    for (uint32_t i = 0; i < k; i++) {
        switch (draw(8)) {
        case 0:
            n += (size_t)sprintf(to + n, "\\n");
            break;
        case 1:
            n += (size_t)sprintf(to + n, "\\u%04x", draw(0xD800));
            break;
        case 2:
            n += (size_t)sprintf(to + n, "\\u%04X\\u%04x", 0xD800 + draw(0x400),
                                 0xDC00 + draw(0x400));
            break;
        case 3:
            n += (size_t)sprintf(to + n, "\xE6\x9D\xB1");
            break;
        case 4:
            n += (size_t)sprintf(to + n, "\xF0\x9F\xA6\x99");
            break;
        case 5:
            n += (size_t)sprintf(to + n, "\\/\\\\\\\"");
            break;
        default:
            to[n++] = (char)('a' + draw(26));
            break;
        }
    }
    to[n++] = '"';
    return n;
}

static size_t put_value(char *to, unsigned depth) {
    size_t n = 0;
    switch (draw(depth > 4 ? 5 : 8)) {
    case 0:
        return (size_t)sprintf(to, "%d", (int)draw(100000) - 50000);
    case 1:
        return (size_t)sprintf(to, "%.17g", (double)draw(100000) / 7.0);
    case 2:
        return (size_t)sprintf(to, "%s", draw(2) ? "true" : "null");
    case 3:
    case 4:
        return put_string(to, 400);
    case 5:
    case 6:
        to[n++] = '[';
        for (uint32_t i = 0, k = draw(5); i < k; i++) {
            if (i > 0) to[n++] = ',';
            n += put_value(to + n, depth + 1);
        }
        to[n++] = ']';
        return n;
    default:
        to[n++] = '{';
        for (uint32_t i = 0, k = draw(5); i < k; i++) {
            n += (size_t)sprintf(to + n, "%s\"key%u\" : ", i > 0 ? ", " : "", i);
            n += put_value(to + n, depth + 1);
        }
        to[n++] = '}';
        return n;
    }
}

/* Every string of the document, read through it, against the same string in jansson's tree. */
static void compare_strings(struct json_doc *d, const json_t *mine, const json_t *whole,
                            struct bump *arena) {
    assert_int_equal(json_typeof(mine), json_typeof(whole));
    if (json_is_string(whole)) {
        struct text t;
        assert_int_equal(json_doc_text(d, mine, arena, &t, NULL), STATUS_OK);
        assert_int_equal(t.len, json_string_length(whole));
        assert_memory_equal(t.data, json_string_value(whole), t.len);
        assert_true(json_doc_text_bytes(d, mine) >= t.len);
    } else if (json_is_array(whole)) {
        for (size_t i = 0; i < json_array_size(whole); i++)
            compare_strings(d, json_array_get(mine, i), json_array_get(whole, i), arena);
    } else if (json_is_object(whole)) {
        const char *key;
        json_t *v;
        json_object_foreach((json_t *)(uintptr_t)whole, key, v)
            compare_strings(d, json_object_get(mine, key), v, arena);
    }
}

static void test_random_documents(void **state) {
    (void)state;
    static char text[1 << 20];
    static struct body body;
    for (int round = 0; round < 1500; round++) {
        size_t n = 0;
        text[n++] = '{';
        for (uint32_t i = 0, k = draw(6); i < k; i++) {
            n += (size_t)sprintf(text + n, "%s\"f%u\":", i > 0 ? "," : "", i);
            n += put_value(text + n, 0);
        }
        text[n++] = '}';
        json_error_t why;
        json_t *whole = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
        if (whole == NULL) fail_msg("jansson: %s in %.*s", why.text, (int)n, text);
        struct json_doc d;
        struct error e = {0};
        if (read_text(text, n, &e, &d, &body) != STATUS_OK)
            fail_msg("round %d: %s in %.*s", round, e.message, (int)n, text);
        struct bump arena = {0};
        compare_strings(&d, d.root, whole, &arena);
        /* Written out, it is the same document. */
        struct buffer out;
        buffer_init(&out, 0);
        assert_int_equal(json_doc_write(&d, d.root, &out), STATUS_OK);
        json_t *again = json_loadb(out.data, out.len, JSON_ALLOW_NUL, &why);
        assert_non_null(again);
        if (!json_equal(again, whole)) fail_msg("round %d: %.*s", round, (int)n, text);
        json_decref(again);
        buffer_free(&out);
        bump_free(&arena);
        json_doc_free(&d);
        json_decref(whole);
    }
    body_clear(&body);
}

/* One flipped byte must never crash, and never pass where jansson refuses. */
static void test_random_damage(void **state) {
    (void)state;
    static char text[1 << 20];
    static struct body body;
    for (int round = 0; round < 4000; round++) {
        size_t n = (size_t)sprintf(text, "{\"f\":");
        n += put_value(text + n, 2);
        text[n++] = '}';
        text[draw((uint32_t)n)] = (char)draw(256);
        if (draw(4) == 0) n = draw((uint32_t)n);
        json_error_t why;
        json_t *whole = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
        const bool good = json_is_object(whole);
        struct json_doc d;
        struct error e = {0};
        const bool mine = read_text(text, n, &e, &d, &body) == STATUS_OK;
        if (mine != good)
            fail_msg("round %d: jansson says %d, we %d (%s) of %.*s", round, good, mine, e.message,
                     (int)n, text);
        json_doc_free(&d);
        json_decref(whole);
    }
    body_clear(&body);
}

/* ---- in slices ---- */

struct sliced {
    struct body body;
    struct json_doc doc;
    enum status status;
    size_t chars;
};

static void read_sliced(struct chore *c, void *arg) {
    struct sliced *s = arg;
    s->status = json_doc_read(&s->doc, &s->body, c, NULL);
    struct bump arena = {0};
    struct text t;
    if (s->status == STATUS_OK) {
        s->status = json_doc_text(&s->doc, json_object_get(s->doc.root, "text"), &arena, &t, NULL);
        s->chars = t.len;
    }
    bump_free(&arena);
    json_doc_free(&s->doc);
}

static void test_slices(void **state) {
    (void)state;
    static struct sliced s;
    body_append(&s.body, "{\"ids\":[1", 9);
    for (int i = 0; i < 50000; i++) body_append(&s.body, ",12", 3);
    body_append(&s.body, "],\"text\":\"", 10);
    for (int i = 0; i < 100000; i++) body_append(&s.body, "abcdefgh\\n", 10);
    body_append(&s.body, "\"}", 2);
    void *mem = aligned_alloc(64, (chore_footprint() + 63) / 64 * 64);
    for (int cancel = 0; cancel < 2; cancel++) {
        struct chore *c = chore_init(mem, read_sliced, &s);
        unsigned slices = 0, over = 0;
        for (bool done = false; !done; slices++) {
            const uint64_t start = clock_now_ns();
            done = chore_run(c, 50 * 1000);
            if (clock_now_ns() - start > 200 * 1000) over++;
            if (cancel && slices == 3) chore_cancel(c);
        }
        if (cancel) {
            assert_int_equal(s.status, STATUS_GONE);
        } else {
            assert_int_equal(s.status, STATUS_OK);
            assert_int_equal(s.chars, 900000);
            assert_true(slices > 10);
            /* Nearly all: the machine may take the processor away now and then. */
            printf("# %u slices of 50 us, %u took more than 200 us\n", slices, over);
            assert_true(over <= slices / 20 + 2);
        }
    }
    free(mem);
    body_clear(&s.body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),         cmocka_unit_test(test_every_cut),
        cmocka_unit_test(test_limits),        cmocka_unit_test(test_random_documents),
        cmocka_unit_test(test_random_damage), cmocka_unit_test(test_slices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
