/* The whole HTTP side over real sockets, on both ring backends and both kinds of socket, with an
 * echoing scheduler behind it. */
#include "tests/io/harness.h"

#include <sys/stat.h>

#include "io/listen.h"

enum { KINDS = 2 };
static enum ring_kind kinds[KINDS] = {RING_URING, RING_EPOLL};

#define EACH_KIND(k) for (int k = 0; k < KINDS; k++)
/* The second backend stands in where io_uring is refused. */

static json_t *json_of(const struct reply *r) {
    json_error_t why;
    json_t *j = json_loadb(r->body, r->n, JSON_ALLOW_NUL, &why);
    if (j == NULL) fail_msg("not JSON (%s): %s", why.text, r->body);
    return j;
}

static void expect_error(const struct reply *r, int status, const char *param) {
    assert_int_equal(r->status, status);
    json_t *j = json_of(r);
    const json_t *error = json_object_get(j, "error");
    const char *message = json_string_value(json_object_get(error, "message"));
    const char *type = json_string_value(json_object_get(error, "type"));
    const char *p = json_string_value(json_object_get(error, "param"));
    assert_non_null(message);
    assert_non_null(type);
    assert_true(strlen(message) > 5);
    assert_string_equal(type, status < 500 ? "invalid_request_error" : "server_error");
    if (param != NULL) {
        assert_non_null(p);
        assert_string_equal(p, param);
    } else {
        assert_null(p);
    }
    json_decref(j);
}

/* ---- plain routes ---- */

static void test_routes(void **state) {
    (void)state;
    EACH_KIND(k) {
        struct harness *h = harness_start(kinds[k], NULL);
        struct reply r = call(h, "/health", NULL);
        assert_int_equal(r.status, 200);
        assert_string_equal(r.body, "{\"status\":\"ok\"}");
        reply_free(&r);
        r = call(h, "/health?x=1", NULL);
        assert_int_equal(r.status, 200);
        reply_free(&r);
        r = call(h, "/ready", NULL);
        assert_int_equal(r.status, 200);
        reply_free(&r);
        h->sched.ready = false;
        r = call(h, "/ready", NULL);
        assert_int_equal(r.status, 503);
        assert_non_null(strstr(r.head, "Retry-After:"));
        reply_free(&r);
        h->sched.ready = true;
        r = call(h, "/v1/models", NULL);
        json_t *j = json_of(&r);
        assert_string_equal(
            json_string_value(json_object_get(json_array_get(json_object_get(j, "data"), 0), "id")),
            "test-model");
        json_decref(j);
        reply_free(&r);
        static const char *const ids[] = {"/v1/models/test-model", "/v1/models/default",
                                          "/v1/models/test%2Dmodel"};
        for (int i = 0; i < 3; i++) {
            r = call(h, ids[i], NULL);
            assert_int_equal(r.status, 200);
            reply_free(&r);
        }
        r = call(h, "/v1/models/other", NULL);
        expect_error(&r, 404, "model");
        reply_free(&r);
        r = call(h, "/", NULL);
        assert_int_equal(r.status, 200);
        assert_non_null(strstr(r.head, "text/html"));
        assert_non_null(strstr(r.body, "</html>"));
        assert_null(strstr(r.body, "http://")); /* nothing from outside */
        assert_null(strstr(r.body, "https://"));
        reply_free(&r);
        r = call(h, "/metrics", NULL);
        assert_int_equal(r.status, 200);
        assert_non_null(strstr(r.body, "laconic_loop_gap_seconds"));
        assert_non_null(strstr(r.body, "laconic_http_response_total{code=\"200\"}"));
        reply_free(&r);
        r = call(h, "/nothing", NULL);
        expect_error(&r, 404, NULL);
        assert_true(r.keep_alive);
        reply_free(&r);
        r = call(h, "/v1/completions", NULL);
        expect_error(&r, 405, NULL);
        assert_non_null(strstr(r.head, "Allow: POST, OPTIONS"));
        reply_free(&r);
        harness_stop(h);
    }
}

static void test_head_and_options(void **state) {
    (void)state;
    EACH_KIND(k) {
        struct harness *h = harness_start(kinds[k], NULL);
        struct client c = client_open(h, false);
        const char *s = "HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n"
                        "OPTIONS /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n"
                        "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"
                        "HEAD /nothing HTTP/1.1\r\nHost: x\r\n\r\n"
                        "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
        client_send(c.fd, s, strlen(s));
        struct reply r = client_reply(&c, true, NULL);
        assert_int_equal(r.status, 200);
        assert_non_null(strstr(r.head, "Content-Length: 15\r\n"));
        reply_free(&r);
        r = client_reply(&c, false, NULL);
        assert_int_equal(r.status, 204);
        assert_null(strstr(r.head, "Access-Control"));
        reply_free(&r);
        r = client_reply(&c, false, NULL);
        assert_int_equal(r.status, 204);
        assert_non_null(strstr(r.head, "Allow: GET, HEAD, POST, OPTIONS\r\n"));
        reply_free(&r);
        r = client_reply(&c, true, NULL);
        assert_int_equal(r.status, 404);
        reply_free(&r);
        r = client_reply(&c, false, NULL);
        assert_int_equal(r.status, 200);
        assert_string_equal(r.body, "{\"status\":\"ok\"}");
        reply_free(&r);
        client_close(&c);
        harness_stop(h);
    }
}

static void allow_all(struct server_config *cfg) {
    cfg->cors_origin = "*";
}

static void test_cors(void **state) {
    (void)state;
    struct harness *h = harness_start(RING_EPOLL, allow_all);
    struct client c = client_open(h, false);
    const char *s = "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: http://a\r\n\r\n"
                    "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n";
    client_send(c.fd, s, strlen(s));
    struct reply r = client_reply(&c, false, NULL);
    assert_non_null(strstr(r.head, "Access-Control-Allow-Methods: POST"));
    reply_free(&r);
    r = client_reply(&c, false, NULL);
    assert_non_null(strstr(r.head, "Access-Control-Allow-Origin: *"));
    reply_free(&r);
    client_close(&c);
    harness_stop(h);
}

/* ---- the stream of requests ---- */

static void test_pipelining(void **state) {
    (void)state;
    EACH_KIND(k) {
        struct harness *h = harness_start(kinds[k], NULL);
        for (int uds = 0; uds < 2; uds++) {
            struct client c = client_open(h, uds);
            /* Answers in order, though the first takes the longest. */
            const char *slow = "{\"prompt\":\"0123456789012345678901234567890123456789\"}";
            client_post(&c, "/v1/completions", slow, strlen(slow));
            for (int i = 0; i < 20; i++) {
                char body[64];
                const int n = snprintf(body, sizeof body, "{\"prompt\":\"number %d\"}", i);
                client_post(&c, "/v1/completions", body, (size_t)n);
                const char *get = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
                client_send(c.fd, get, strlen(get));
            }
            struct reply r = client_reply(&c, false, NULL);
            assert_non_null(strstr(r.body, "\"text\":\"0123"));
            reply_free(&r);
            for (int i = 0; i < 20; i++) {
                char want[64];
                snprintf(want, sizeof want, "\"text\":\"number %d\"", i);
                r = client_reply(&c, false, NULL);
                assert_non_null(strstr(r.body, want));
                reply_free(&r);
                r = client_reply(&c, false, NULL);
                assert_string_equal(r.body, "{\"status\":\"ok\"}");
                reply_free(&r);
            }
            client_close(&c);
        }
        harness_stop(h);
    }
}

static void test_many_pipelined_and_unread(void **state) {
    (void)state;
    EACH_KIND(k) {
        struct harness *h = harness_start(kinds[k], NULL);
        /* Far more answers than may wait: the server must stop reading, not grow, and go on later.
         */
        struct client c = client_open(h, false);
        struct timeval tv = {.tv_usec = 200000};
        setsockopt(c.fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
        const char *get = "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n";
        int sent = 0;
        static char many[1 << 16];
        const size_t each = strlen(get), count = sizeof many / each;
        for (size_t i = 0; i < count; i++) memcpy(many + i * each, get, each);
        size_t part = 0;
        for (; sent < 400; sent++) {
            size_t at = 0;
            while (at < count * each) {
                const ssize_t n = send(c.fd, many + at, count * each - at, MSG_NOSIGNAL);
                if (n <= 0) break;
                at += (size_t)n;
            }
            part = at;
            if (at < count * each) break;
        }
        assert_true(sent < 400); /* it pushed back */
        assert_true(alive(h));
        const size_t whole = (size_t)sent * count + part / each;
        for (size_t i = 0; i < whole; i++) {
            struct reply r = client_reply(&c, false, NULL);
            assert_int_equal(r.status, 200);
            reply_free(&r);
        }
        client_close(&c);
        harness_stop(h);
    }
}

static void test_cut_at_every_byte(void **state) {
    (void)state;
    static const char request[] =
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        "8\r\n{\"prompt\r\n3;x=y\r\n\":\"\r\na\r\nhey\\u00e9\"\r\n1\r\n}\r\n0\r\n\r\n";
    EACH_KIND(k) {
        struct harness *h = harness_start(kinds[k], NULL);
        for (size_t cut = 1; cut < sizeof request - 1; cut++) {
            struct client c = client_open(h, cut % 2);
            const int on = 1;
            setsockopt(c.fd, IPPROTO_TCP, 1 /* TCP_NODELAY */, &on, sizeof on);
            client_send(c.fd, request, cut);
            sched_yield();
            if (cut % 8 == 0) wait_ms(1);
            client_send(c.fd, request + cut, sizeof request - 1 - cut);
            struct reply r = client_reply(&c, false, NULL);
            assert_int_equal(r.status, 200);
            assert_non_null(strstr(r.body, "\"text\":\"hey\xC3\xA9\""));
            reply_free(&r);
            client_close(&c);
        }
        harness_stop(h);
    }
}

static void test_expect(void **state) {
    (void)state;
    EACH_KIND(k) {
        struct harness *h = harness_start(kinds[k], NULL);
        struct client c = client_open(h, false);
        const char *head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                           "Content-Length: 15\r\n\r\n";
        client_send(c.fd, head, strlen(head));
        while (c.n < 25) assert_true(client_more(&c));
        assert_string_equal(c.buf, "HTTP/1.1 100 Continue\r\n\r\n");
        client_send(c.fd, "{\"prompt\":\"abc\"}", 16);
        int n = 0;
        struct reply r = client_reply(&c, false, &n);
        assert_int_equal(n, 1);
        assert_int_equal(r.status, 400); /* 15 of 16 bytes */
        reply_free(&r);
        client_close(&c);
        /* Refused: no 100, and the body that may come is nobody's request. */
        c = client_open(h, false);
        const char *wrong = "POST /nothing HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                            "Content-Length: 34\r\n\r\n"
                            "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
        client_send(c.fd, wrong, strlen(wrong));
        n = 0;
        r = client_reply(&c, false, &n);
        assert_int_equal(n, 0);
        expect_error(&r, 404, NULL);
        assert_false(r.keep_alive);
        reply_free(&r);
        r = client_reply(&c, false, NULL);
        assert_int_equal(r.status, 0);
        assert_true(r.closed);
        reply_free(&r);
        client_close(&c);
        harness_stop(h);
    }
}

static void test_refused_bodies(void **state) {
    (void)state;
    EACH_KIND(k) {
        struct harness *h = harness_start(kinds[k], NULL);
        struct client c = client_open(h, false);
        const char *small = "POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 34\r\n\r\n"
                            "GET /never HTTP/1.1\r\nHost: x\r\n\r\n.."
                            "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
        client_send(c.fd, small, strlen(small));
        struct reply r = client_reply(&c, false, NULL);
        expect_error(&r, 404, NULL);
        reply_free(&r);
        r = client_reply(&c, false, NULL);
        assert_int_equal(r.status, 200);
        assert_string_equal(r.body, "{\"status\":\"ok\"}");
        reply_free(&r);
        client_close(&c);
        /* A long one: answered at once, then closed, and the answer survives what is still sent. */
        c = client_open(h, false);
        const char *head = "POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n";
        client_send(c.fd, head, strlen(head));
        static char junk[100000];
        for (int i = 0; i < 10; i++) client_send(c.fd, junk, sizeof junk);
        r = client_reply(&c, false, NULL);
        expect_error(&r, 404, NULL);
        assert_false(r.keep_alive);
        reply_free(&r);
        client_close(&c);
        assert_true(alive(h));
        harness_stop(h);
    }
}

static void test_limits(void **state) {
    (void)state;
    static char big[300000];
    memset(big, 'a', sizeof big);
    EACH_KIND(k) {
        struct harness *h = harness_start(kinds[k], NULL);
        struct client c = client_open(h, false);
        const char *s = "GET /health HTTP/1.1\r\nHost: x\r\nX-Big: ";
        client_send(c.fd, s, strlen(s));
        client_send(c.fd, big, sizeof big);
        struct reply r = client_reply(&c, false, NULL);
        expect_error(&r, 431, NULL);
        assert_false(r.keep_alive);
        reply_free(&r);
        client_close(&c);
        static const char *const sized[] = {"Content-Length: 99999999999",
                                            "Content-Length: 16777217"};
        for (int i = 0; i < 2; i++) {
            c = client_open(h, false);
            char head[200];
            const int n =
                snprintf(head, sizeof head,
                         "POST /v1/completions HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n{", sized[i]);
            client_send(c.fd, head, (size_t)n);
            r = client_reply(&c, false, NULL);
            expect_error(&r, 413, NULL);
            reply_free(&r);
            client_close(&c);
        }
        /* Chunks without end. */
        c = client_open(h, false);
        s = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        client_send(c.fd, s, strlen(s));
        bool open = true;
        for (int i = 0; i < 80 && open; i++)
            open = client_send(c.fd, "40000\r\n", 7) && client_send(c.fd, big, 0x40000) &&
                   client_send(c.fd, "\r\n", 2);
        r = client_reply(&c, false, NULL);
        expect_error(&r, 413, NULL);
        reply_free(&r);
        client_close(&c);
        c = client_open(h, false);
        client_send(c.fd, "hello\r\n\r\n", 9);
        r = client_reply(&c, false, NULL);
        expect_error(&r, 400, NULL);
        assert_false(r.keep_alive);
        reply_free(&r);
        r = client_reply(&c, false, NULL);
        assert_true(r.closed);
        reply_free(&r);
        client_close(&c);
        assert_true(alive(h));
        harness_stop(h);
    }
}

static void short_times(struct server_config *cfg) {
    cfg->limits.head_ns = 150 * 1000 * 1000;
    cfg->limits.body_ns = 150 * 1000 * 1000;
    cfg->limits.idle_ns = 300 * 1000 * 1000;
    cfg->limits.write_ns = 300 * 1000 * 1000;
    cfg->limits.linger_ns = 100 * 1000 * 1000;
}

static void test_slow_clients(void **state) {
    (void)state;
    EACH_KIND(k) {
        struct harness *h = harness_start(kinds[k], short_times);
        struct client head = client_open(h, false), body = client_open(h, true),
                      idle = client_open(h, false), silent = client_open(h, false);
        const char *s = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Le";
        client_send(head.fd, s, strlen(s));
        s = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{";
        client_send(body.fd, s, strlen(s));
        s = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
        client_send(idle.fd, s, strlen(s));
        struct reply r = client_reply(&idle, false, NULL);
        assert_int_equal(r.status, 200);
        reply_free(&r);
        r = client_reply(&head, false, NULL);
        expect_error(&r, 408, NULL);
        reply_free(&r);
        r = client_reply(&body, false, NULL);
        expect_error(&r, 408, NULL);
        reply_free(&r);
        struct client *quiet[] = {&idle, &silent};
        for (int i = 0; i < 2; i++) {
            r = client_reply(quiet[i], false, NULL);
            assert_int_equal(r.status, 0);
            assert_true(r.closed);
            reply_free(&r);
        }
        assert_true(alive(h));
        client_close(&head);
        client_close(&body);
        client_close(&idle);
        client_close(&silent);
        harness_stop(h);
    }
}

static void few_connections(struct server_config *cfg) {
    cfg->limits.max_connections = 4;
}

static void test_connection_limit(void **state) {
    (void)state;
    EACH_KIND(k) {
        struct harness *h = harness_start(kinds[k], few_connections);
        struct client c[4];
        const char *get = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
        for (int i = 0; i < 4; i++) {
            c[i] = client_open(h, i % 2);
            client_send(c[i].fd, get, strlen(get));
            struct reply r = client_reply(&c[i], false, NULL);
            assert_int_equal(r.status, 200);
            reply_free(&r);
        }
        struct client more = client_open(h, false);
        struct reply r = client_reply(&more, false, NULL);
        assert_int_equal(r.status, 503);
        reply_free(&r);
        client_close(&more);
        for (int i = 0; i < 4; i++) client_close(&c[i]);
        for (int i = 0; i < 100 && !alive(h); i++) wait_ms(10);
        assert_true(alive(h));
        harness_stop(h);
    }
}

static void test_http_1_0(void **state) {
    (void)state;
    EACH_KIND(k) {
        struct harness *h = harness_start(kinds[k], NULL);
        struct client c = client_open(h, false);
        const char *s = "POST /v1/completions HTTP/1.0\r\nContent-Length: 32\r\n\r\n"
                        "{\"prompt\":\"abcdef\",\"stream\":true}";
        client_send(c.fd, s, strlen(s) - 1);
        struct reply r = client_reply(&c, false, NULL);
        assert_int_equal(r.status, 400); /* cut by one byte */
        reply_free(&r);
        client_close(&c);
        c = client_open(h, false);
        s = "POST /v1/completions HTTP/1.0\r\nContent-Length: 33\r\n\r\n"
            "{\"prompt\":\"abcdef\",\"stream\":true}";
        client_send(c.fd, s, strlen(s));
        r = client_reply(&c, false, NULL);
        assert_int_equal(r.status, 200);
        assert_null(strstr(r.head, "chunked"));
        assert_true(r.closed);
        assert_non_null(strstr(r.body, "\"text\":\"abcde\""));
        assert_non_null(strstr(r.body, "data: [DONE]\n\n"));
        reply_free(&r);
        client_close(&c);
        harness_stop(h);
    }
}

static void test_listening(void **state) {
    (void)state;
    struct error e = {0};
    int a, b;
    char url[128];
    assert_int_equal(listen_tcp("127.0.0.1", 0, &a, url, sizeof url, &e), STATUS_OK);
    unsigned port;
    assert_int_equal(sscanf(url, "http://127.0.0.1:%u", &port), 1);
    assert_true(port > 0);
    assert_int_equal(listen_tcp("127.0.0.1", (uint16_t)port, &b, url, sizeof url, &e), STATUS_IO);
    assert_int_equal(b, -1);
    assert_string_equal(e.field, "port");
    close(a);
    assert_int_equal(listen_tcp("no such host", 0, &a, url, sizeof url, &e), STATUS_INVALID);
    if (listen_tcp("::1", 0, &a, url, sizeof url, &e) == STATUS_OK) {
        assert_int_equal(strncmp(url, "http://[::1]:", 13), 0);
        close(a);
    } else {
        printf("skip: IPv6: %s\n", e.message);
    }
    /* Unix: a live socket stays, a dead one is replaced, anything else is not touched. */
    char path[100];
    snprintf(path, sizeof path, "/tmp/laconic-listen-%d", (int)getpid());
    assert_int_equal(listen_unix(path, 0640, &a, &e), STATUS_OK);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    assert_int_equal(listen_unix(path, 0, &b, &e), STATUS_IO);
    close(a);
    assert_int_equal(listen_unix(path, 0, &b, &e), STATUS_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    close(b);
    unlink(path);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(listen_unix(path, 0, &b, &e), STATUS_INVALID);
    assert_int_equal(stat(path, &st), 0);
    unlink(path);
    char longer[300];
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    assert_int_equal(listen_unix(longer, 0, &b, &e), STATUS_INVALID);
}

int main(void) {
    const struct ring_config cfg = {.kind = RING_URING, .max_sockets = 2, .n_buffers = 2};
    struct ring *r;
    struct error e;
    if (ring_open(&cfg, &r, &e) != STATUS_OK) {
        printf("skip: io_uring: %s\n", e.message);
        kinds[0] = RING_EPOLL;
    } else {
        ring_close(r);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_routes),
        cmocka_unit_test(test_head_and_options),
        cmocka_unit_test(test_cors),
        cmocka_unit_test(test_pipelining),
        cmocka_unit_test(test_many_pipelined_and_unread),
        cmocka_unit_test(test_cut_at_every_byte),
        cmocka_unit_test(test_expect),
        cmocka_unit_test(test_refused_bodies),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_slow_clients),
        cmocka_unit_test(test_connection_limit),
        cmocka_unit_test(test_http_1_0),
        cmocka_unit_test(test_listening),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
