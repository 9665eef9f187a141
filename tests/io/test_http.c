/* The HTTP reader alone: every cut of the stream gives the same requests; bytes past the end of a
 * piece are never read; malformed input has its status. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "io/http.h"
#include "tests/io/guard.h"

enum { HEAD_BYTES = 64 * 1024 };

/* What was read, as text: "VERB path flags|body;" per request, then the error status if any. */
struct log {
    char text[8192];
    size_t n;
    size_t body_limit, body;
};

static void note(struct log *l, const char *s, size_t n) {
    assert_true(l->n + n < sizeof l->text);
    memcpy(l->text + l->n, s, n);
    l->n += n;
    l->text[l->n] = '\0';
}

static bool on_body(void *arg, const char *bytes, size_t n) {
    struct log *l = arg;
    l->body += n;
    if (l->body > l->body_limit) return false;
    note(l, bytes, n);
    return true;
}

static void note_head(struct log *l, const struct http_head *h) {
    static const char *const verbs[] = {"GET", "HEAD", "POST", "OPTIONS", "OTHER"};
    char s[256];
    const int n = snprintf(s, sizeof s, "%s %s%s%s%s%s%s %d|", verbs[h->verb], h->path,
                           h->http_1_0 ? " 1.0" : "", h->keep_alive ? " keep" : "",
                           h->expect_continue ? " expect" : "", h->chunked ? " chunked" : "",
                           h->has_body ? " body" : "", (int)h->content_bytes);
    note(l, s, (size_t)n);
}

static bool feed(struct http *h, struct log *l, const struct guard *g, const char *bytes,
                 size_t n) {
    const char *at = guard_copy(g, bytes, n);
    bool again = false;
    while (n > 0 || again) {
        size_t used;
        const enum http_result r = http_feed(h, at, n, &used);
        at += used;
        n -= used;
        again = r == HTTP_HEAD_DONE;
        if (again)
            note_head(l, &h->head);
        else if (r == HTTP_MESSAGE_DONE)
            note(l, ";", 1);
        else if (r == HTTP_BAD) {
            char s[32];
            note(l, s, (size_t)snprintf(s, sizeof s, "!%d", h->error_status));
            return false;
        } else
            assert_int_equal(n, 0);
    }
    return true;
}

/* The stream cut after `cut` bytes, or into pieces of `cut` bytes. */
static void read_stream(struct log *l, const struct guard *g, const char *bytes, size_t n,
                        size_t cut, bool repeat) {
    static struct http h;
    memset(l, 0, sizeof *l);
    l->body_limit = SIZE_MAX;
    http_init(&h, HEAD_BYTES, on_body, l);
    size_t at = 0;
    while (at < n) {
        size_t k = repeat || at == 0 ? cut : n - at;
        if (k == 0 || k > n - at) k = n - at;
        if (!feed(&h, l, g, bytes + at, k)) return;
        at += k;
    }
}

static const char stream[] =
    "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    "\r\nPOST /v1/completions?x=1#y HTTP/1.1\r\nhost: y\r\nContent-Length: 11\r\nX-Long: "
    "aaaa\r\n\r\nhello "
    "world"
    "POST /chunks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-Continue\r\n\r\n"
    "5;ext=1\r\nab\r\nc\r\n1\r\nd\r\n0\r\nTrailer: Expect\r\n\r\n"
    "HEAD http://example.org/a/b?q HTTP/1.1\r\nHost: example.org\r\n\r\n"
    "GET http://example.org?q=/x HTTP/1.1\r\nHost: example.org\r\n\r\n"
    "GET http://example.org HTTP/1.1\r\nHost: example.org\r\n\r\n"
    "GET / HTTP/1.0\r\nConnection: keep-alive\r\nExpect: 100-continue\r\n\r\n"
    "GET /up HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"
    "DELETE /d HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
    "GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
static const char wanted[] = "GET /health keep 0|;"
                             "POST /v1/completions keep body 11|hello world;"
                             "POST /chunks keep expect chunked body 0|ab\r\ncd;"
                             "HEAD /a/b keep 0|;"
                             "GET / keep 0|;"
                             "GET / keep 0|;"
                             "GET / 1.0 keep 0|;"
                             "GET /up keep 0|;"
                             "OPTIONS * keep 0|;"
                             "OTHER /d keep body 3|abc;"
                             "GET /last 0|;";

static void test_every_cut(void **state) {
    (void)state;
    struct guard g = guard_open();
    static struct log l;
    const size_t n = sizeof stream - 1;
    for (size_t cut = 0; cut <= n; cut++) {
        read_stream(&l, &g, stream, n, cut, false);
        assert_string_equal(l.text, wanted);
    }
    for (size_t cut = 1; cut < 40; cut++) {
        read_stream(&l, &g, stream, n, cut, true);
        assert_string_equal(l.text, wanted);
    }
    guard_close(&g);
}

static const struct {
    const char *bytes;
    const char *want;
} malformed[] = {
    {"\x16\x03\x01\x02\x00", "!400"}, /* TLS */
    {"GET\r\n\r\n", "!400"},
    {"BREW / HTTP/1.1\r\nHost: x\r\n\r\n", "!400"},
    {"GET / HTTP/1.1\r\n\r\n", "!400"},
    {"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", "!400"},
    {"GET / HTTP/2.0\r\nHost: x\r\n\r\n", "!505"},
    {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "!400"},
    {"GET / HTTP/1.1\r\nHost: x\r\nExpect: the-unexpected\r\n\r\n", "!417"},
    {"GET http:///v1/models HTTP/1.1\r\nHost: x\r\n\r\n", "!400"},
    {"GET http://?/v1/models HTTP/1.1\r\nHost: x\r\n\r\n", "!400"},
    {"GET http:// HTTP/1.1\r\nHost: x\r\n\r\n", "!400"},
    {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "!400"},
    {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: "
     "chunked\r\n\r\n0\r\n\r\n",
     "!400"},
    {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", "!400"},
    {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n", "!400"},
    {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "!501"},
    {"POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nab", "!415"},
    {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
     "POST / keep chunked body 0|!400"},
    {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
     "POST / keep chunked body 0|!400"},
    {"GET / HTTP/1.1\r\nHost: x\r\nBad Name: y\r\n\r\n", "!400"},
    {"GET / HTTP/1.1\r\nHost: x\r\nBad: \x01\r\n\r\n", "!400"},
    {"GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n", "!400"},
};

static void test_malformed(void **state) {
    (void)state;
    struct guard g = guard_open();
    static struct log l;
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
        const size_t n = strlen(malformed[i].bytes);
        for (size_t cut = 0; cut < n; cut++) {
            read_stream(&l, &g, malformed[i].bytes, n, cut, false);
            if (strcmp(l.text, malformed[i].want) != 0)
                fail_msg("case %zu cut %zu: %s, wanted %s", i, cut, l.text, malformed[i].want);
        }
    }
    guard_close(&g);
}

static void test_limits(void **state) {
    (void)state;
    struct guard g = guard_open();
    static struct log l;
    static char big[200000];
    /* A head just within the limit passes; one byte more does not. */
    for (int over = 0; over < 2; over++) {
        memset(big, 'a', sizeof big);
        const char *start = "GET / HTTP/1.1\r\nHost: x\r\nX: ";
        memcpy(big, start, strlen(start));
        const size_t n = HEAD_BYTES + (size_t)over;
        memcpy(big + n - 4, "\r\n\r\n", 4);
        read_stream(&l, &g, big, n, 1000, true);
        assert_string_equal(l.text, over ? "!431" : "GET / keep 0|;");
    }
    /* Endless blank lines are a head that never comes. */
    memset(big, '\n', sizeof big);
    read_stream(&l, &g, big, sizeof big, 5000, true);
    assert_string_equal(l.text, "!431");
    /* The target has its own limit. */
    memset(big, 'a', sizeof big);
    memcpy(big, "GET /", 5);
    read_stream(&l, &g, big, 3000, 100, true);
    assert_string_equal(l.text, "!414");
    /* A chunk extension without end. */
    const char *head = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;";
    memset(big, 'x', sizeof big);
    memcpy(big, head, strlen(head));
    read_stream(&l, &g, big, sizeof big, 4000, true);
    assert_string_equal(l.text, "POST / keep chunked body 0|!400");
    guard_close(&g);
}

static void test_body_refused(void **state) {
    (void)state;
    struct guard g = guard_open();
    static struct log l;
    static struct http h;
    const char *s = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
                    "chunked\r\n\r\n4\r\nabcd\r\n4\r\nefgh\r\n";
    memset(&l, 0, sizeof l);
    l.body_limit = 6;
    http_init(&h, HEAD_BYTES, on_body, &l);
    assert_false(feed(&h, &l, &g, s, strlen(s)));
    assert_string_equal(l.text, "POST / keep chunked body 0|abcd!413");
    /* It stays bad. */
    size_t used;
    assert_int_equal(http_feed(&h, "GET", 3, &used), HTTP_BAD);
    assert_int_equal(used, 0);
    guard_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_cut),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_body_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
