/* The addresses beside the API over real sockets: what is handed on, what is refused, and by which
 * socket the policy may be changed. */
#include "tests/io/harness.h"

static enum status fake_explain(void *arg, struct text id, struct buffer *out, struct error *e) {
    (void)arg;
    if (id.len == 0 || id.data[0] == '!')
        return error_set(e, STATUS_NOT_FOUND, "id", "there is none of that id");
    buffer_printf(out, "{\"id\":\"%.*s\"}", (int)id.len, id.data);
    return STATUS_OK;
}

static enum status fake_feedback(void *arg, const struct request_feedback *f, struct buffer *out,
                                 struct error *e) {
    (void)arg;
    if (f->label.len == 0 && !f->has_accepted)
        return error_set(e, STATUS_INVALID, "label", "label or accepted must be given");
    buffer_printf(out, "{\"id\":\"%.*s\",\"label\":\"%.*s\",\"accepted\":%d}", (int)f->id.len,
                  f->id.data, (int)f->label.len, f->label.len > 0 ? f->label.data : "",
                  f->has_accepted ? f->accepted : -1);
    return STATUS_OK;
}

static enum status fake_policy(void *arg, enum io_policy_action action, struct buffer *out,
                               struct error *e) {
    (void)arg;
    if (action == IO_POLICY_REVERT)
        return error_set(e, STATUS_NOT_FOUND, NULL, "no task model was replaced");
    buffer_printf(out, "{\"action\":%d}", (int)action);
    return STATUS_OK;
}

static const char *fake_fingerprint(void *arg) {
    return ((struct fake_sched *)arg)->submitted % 2 == 0 ? "fp_even" : "fp_odd";
}

static void open_doors(struct server_config *cfg) {
    cfg->service.explain = fake_explain;
    cfg->service.feedback = fake_feedback;
    cfg->service.policy = fake_policy;
    cfg->service.fingerprint = fake_fingerprint;
}

static struct reply ask(const struct harness *h, bool uds, const char *method, const char *path,
                        const char *body) {
    char text[24 * 1024];
    struct client c = client_open(h, uds);
    const int n = snprintf(text, sizeof text,
                           "%s %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                           "Content-Length: %zu\r\n\r\n%s",
                           method, path, strlen(body), body);
    assert_true(n > 0 && (size_t)n < sizeof text);
    client_send(c.fd, text, (size_t)n);
    struct reply r = client_reply(&c, false, NULL);
    client_close(&c);
    return r;
}

static void expect(const struct harness *h, bool uds, const char *method, const char *path,
                   const char *body, int status, const char *part) {
    struct reply r = ask(h, uds, method, path, body);
    if (r.status != status || strstr(r.body, part) == NULL)
        fail_msg("%s %s %s: %d %s", method, path, body, r.status, r.body);
    reply_free(&r);
}

static void test_doors(void **state) {
    (void)state;
    struct harness *h = harness_start(RING_EPOLL, open_doors);
    expect(h, false, "GET", "/v1/requests/chatcmpl-1", "", 200, "{\"id\":\"chatcmpl-1\"}");
    expect(h, false, "GET", "/v1/requests/chat%63mpl%2D1?x=1", "", 200, "{\"id\":\"chatcmpl-1\"}");
    expect(h, false, "GET", "/v1/requests/%21", "", 404, "\"param\":\"id\"");
    expect(h, false, "GET", "/v1/requests/", "", 404, "error");
    expect(h, false, "GET", "/v1/requests/%00", "", 404, "error");
    expect(h, false, "GET", "/v1/requests/a%20b", "", 404, "error");
    expect(h, false, "POST", "/v1/requests/x", "", 405, "GET");
    char longer[400] = "/v1/requests/";
    memset(longer + strlen(longer), 'x', 300);
    expect(h, false, "GET", longer, "", 404, "error");

    const char *to = "/v1/feedback";
    expect(h, false, "POST", to, "{\"id\":\"a\",\"label\":\"open\",\"accepted\":false}", 200,
           "{\"id\":\"a\",\"label\":\"open\",\"accepted\":0}");
    expect(h, false, "POST", to, "{\"id\":\"a\",\"label\":null,\"accepted\":true}", 200,
           "\"accepted\":1");
    expect(h, false, "POST", to, "{\"id\":\"a\"}", 400, "\"param\":\"label\"");
    static const struct {
        const char *body, *param;
    } wrong[] = {
        {"", "null"},
        {"[]", "null"},
        {"{", "null"},
        {"{}", "\"id\""},
        {"{\"id\":1}", "\"id\""},
        {"{\"id\":\"\"}", "\"id\""},
        {"{\"id\":\"a\",\"label\":[]}", "\"label\""},
        {"{\"id\":\"a\",\"accepted\":\"yes\"}", "\"accepted\""},
        {"{\"id\":\"a\",\"rating\":5}", "\"rating\""},
        {"{\"id\":\"a\",\"id\":\"b\"}", "\"id\""},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char part[64];
        snprintf(part, sizeof part, "\"param\":%s", wrong[i].param);
        expect(h, false, "POST", to, wrong[i].body, 400, part);
    }
    static char large[20 * 1024];
    snprintf(large, sizeof large, "{\"id\":\"%0*d\",\"accepted\":true}", 18000, 0);
    expect(h, false, "POST", to, large, 400, "16384");
    expect(h, false, "GET", to, "", 405, "POST");

    expect(h, false, "GET", "/v1/policy", "", 200, "{\"action\":0}");
    expect(h, false, "POST", "/v1/policy/promote", "", 403, "Unix");
    expect(h, false, "POST", "/v1/policy/revert", "", 403, "Unix");
    expect(h, true, "POST", "/v1/policy/promote", "", 200, "{\"action\":1}");
    expect(h, true, "POST", "/v1/policy/revert", "", 404, "replaced");
    expect(h, true, "GET", "/v1/policy/promote", "", 405, "POST");

    const char *body = "{\"prompt\":\"x\",\"max_tokens\":1}";
    const bool even = h->sched.submitted % 2 == 0;
    expect(h, false, "POST", "/v1/completions", body, 200, even ? "fp_even" : "fp_odd");
    expect(h, false, "POST", "/v1/completions", body, 200, even ? "fp_odd" : "fp_even");
    harness_stop(h);
}

static void test_shut(void **state) {
    (void)state;
    struct harness *h = harness_start(RING_EPOLL, NULL);
    expect(h, false, "GET", "/v1/requests/a", "", 404, "nothing at this address");
    expect(h, false, "POST", "/v1/feedback", "{}", 404, "nothing at this address");
    expect(h, false, "GET", "/v1/policy", "", 404, "nothing at this address");
    expect(h, true, "POST", "/v1/policy/promote", "", 404, "nothing at this address");
    harness_stop(h);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_doors), cmocka_unit_test(test_shut)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
