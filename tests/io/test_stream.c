/* Answers: whole and streamed, their JSON, several choices and prompts, errors at every stage,
 * clients that read slowly or leave, long prompts, memory. */
#include "tests/io/harness.h"

enum { KINDS = 2 };
static enum ring_kind kinds[KINDS] = {RING_URING, RING_EPOLL};

#define EACH_KIND(k) for (int k = 0; k < KINDS; k++)

static json_t *parse(const char *s, size_t n) {
    json_error_t why;
    json_t *j = json_loadb(s, n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &why);
    if (j == NULL) fail_msg("not JSON (%s): %.*s", why.text, (int)n, s);
    return j;
}

static const json_t *at(const json_t *j, const char *path) {
    char key[64];
    while (*path != '\0' && j != NULL) {
        size_t n = strcspn(path, ".");
        memcpy(key, path, n);
        key[n] = '\0';
        j = json_is_array(j) ? json_array_get(j, strtoul(key, NULL, 10)) : json_object_get(j, key);
        path += n + (path[n] == '.');
    }
    return j;
}

static const char *str(const json_t *j, const char *path) {
    const char *s = json_string_value(at(j, path));
    return s != NULL ? s : "(none)";
}

/* What a stream said, put together again. */
struct told {
    char text[REQUEST_MAX_CHOICES][4096];
    const char *reason[REQUEST_MAX_CHOICES];
    int n_events, n_roles, n_laconic, n_usage, n_errors;
    bool done;
    json_t *last_choice, *usage, *error;
    json_t *all[2000];
};

static struct told *read_stream(const char *body) {
    struct told *t = calloc(1, sizeof *t);
    while (*body != '\0') {
        assert_int_equal(strncmp(body, "data: ", 6), 0);
        body += 6;
        const char *end = strstr(body, "\n\n");
        assert_non_null(end);
        assert_false(t->done);
        if (strncmp(body, "[DONE]", 6) == 0) {
            t->done = true;
        } else {
            json_t *j = parse(body, (size_t)(end - body));
            assert_true(t->n_events < 2000);
            t->all[t->n_events++] = j;
            if (json_object_get(j, "error") != NULL) {
                t->n_errors++;
                t->error = j;
            } else if (json_array_size(at(j, "choices")) == 0) {
                t->n_usage++;
                t->usage = j;
            } else {
                const json_t *c = at(j, "choices.0");
                const json_int_t i = json_integer_value(at(c, "index"));
                assert_true(i < REQUEST_MAX_CHOICES);
                assert_null(t->reason[i]);
                const json_t *text = at(c, "text") != NULL ? at(c, "text") : at(c, "delta.content");
                if (text != NULL) strcat(t->text[i], json_string_value(text));
                if (at(c, "delta.role") != NULL) t->n_roles++;
                if (json_is_string(at(c, "finish_reason"))) t->reason[i] = str(c, "finish_reason");
                if (at(j, "laconic") != NULL) t->n_laconic++;
                t->last_choice = j;
            }
        }
        body = end + 2;
    }
    return t;
}

static void told_free(struct told *t) {
    for (int i = 0; i < t->n_events; i++) json_decref(t->all[i]);
    free(t);
}

static void test_whole_answers(void **state) {
    (void)state;
    EACH_KIND(k) {
        struct harness *h = harness_start(kinds[k], NULL);
        struct reply r =
            call(h, "/v1/completions",
                 "{\"prompt\":\"hello \\\"world\\\"\",\"n\":2,\"seed\":-5,\"logprobs\":2}");
        assert_int_equal(r.status, 200);
        json_t *j = parse(r.body, r.n);
        assert_string_equal(str(j, "object"), "text_completion");
        assert_string_equal(str(j, "model"), "test-model");
        assert_string_equal(str(j, "system_fingerprint"), "fp_test");
        assert_true(json_integer_value(at(j, "created")) > 1500000000);
        assert_int_equal(json_array_size(at(j, "choices")), 2);
        assert_string_equal(str(j, "choices.1.text"), "hello \"world\"");
        assert_string_equal(str(j, "choices.1.finish_reason"), "stop");
        assert_int_equal(json_integer_value(at(j, "choices.1.index")), 1);
        assert_int_equal(json_array_size(at(j, "choices.0.logprobs.tokens")), 3);
        assert_string_equal(str(j, "choices.0.logprobs.tokens.0"), "hello");
        assert_int_equal(json_integer_value(at(j, "choices.0.logprobs.text_offset.2")), 10);
        assert_true(json_real_value(at(j, "choices.0.logprobs.token_logprobs.0")) == -0.5);
        assert_int_equal(json_object_size(at(j, "choices.0.logprobs.top_logprobs.0")), 2);
        assert_int_equal(json_integer_value(at(j, "usage.prompt_tokens")), 13);
        assert_int_equal(json_integer_value(at(j, "usage.completion_tokens")), 6);
        assert_int_equal(json_integer_value(at(j, "usage.total_tokens")), 19);
        assert_int_equal(json_integer_value(at(j, "usage.prompt_tokens_details.cached_tokens")), 1);
        assert_int_equal(json_integer_value(at(j, "laconic.seed")), -5);
        assert_null(at(j, "laconic.timings"));
        json_decref(j);
        reply_free(&r);
        r = call(
            h, "/v1/chat/completions",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"\xE4\xB8\x9C\"}],\"logprobs\":true,"
            "\"top_logprobs\":2,\"max_tokens\":1,\"laconic\":{\"explain\":true}}");
        j = parse(r.body, r.n);
        assert_string_equal(str(j, "object"), "chat.completion");
        assert_int_equal(strncmp(str(j, "id"), "chatcmpl-", 9), 0);
        assert_string_equal(str(j, "choices.0.message.role"), "assistant");
        assert_string_equal(str(j, "choices.0.message.content"), "{\"mes");
        assert_string_equal(str(j, "choices.0.finish_reason"), "length");
        assert_string_equal(str(j, "choices.0.logprobs.content.0.token"), "{\"mes");
        assert_int_equal(json_integer_value(at(j, "choices.0.logprobs.content.0.bytes.0")), '{');
        assert_int_equal(json_array_size(at(j, "choices.0.logprobs.content.0.top_logprobs")), 2);
        /* Half a character has bytes, and a replacement for text. */
        assert_string_equal(str(j, "choices.0.logprobs.content.0.top_logprobs.1.token"),
                            "\xEF\xBF\xBD\xEF\xBF\xBD");
        assert_int_equal(
            json_integer_value(at(j, "choices.0.logprobs.content.0.top_logprobs.1.bytes.1")), 0xB8);
        assert_int_equal(json_integer_value(at(j, "laconic.seed")), 77);
        assert_non_null(at(j, "laconic.timings.queue_ms"));
        json_decref(j);
        reply_free(&r);
        r = call(h, "/v1/completions", "{\"prompt\":\"abc\",\"max_tokens\":0}");
        j = parse(r.body, r.n);
        assert_string_equal(str(j, "choices.0.text"), "");
        assert_string_equal(str(j, "choices.0.finish_reason"), "length");
        assert_true(json_is_null(at(j, "choices.0.logprobs")));
        json_decref(j);
        reply_free(&r);
        harness_stop(h);
    }
}

static void test_several_prompts(void **state) {
    (void)state;
    EACH_KIND(k) {
        struct harness *h = harness_start(kinds[k], NULL);
        const char *body =
            "{\"prompt\":[\"first prompt\",\"2nd\",\"the third and longest\"],\"n\":2%s}";
        static const char *const want[6] = {
            "first prompt", "first prompt",          "2nd",
            "2nd",          "the third and longest", "the third and longest"};
        char text[300];
        snprintf(text, sizeof text, body, "");
        struct reply r = call(h, "/v1/completions", text);
        json_t *j = parse(r.body, r.n);
        for (unsigned i = 0; i < 6; i++) {
            char path[32];
            snprintf(path, sizeof path, "choices.%u.index", i);
            assert_int_equal(json_integer_value(at(j, path)), i);
            snprintf(path, sizeof path, "choices.%u.text", i);
            assert_string_equal(str(j, path), want[i]);
        }
        assert_int_equal(json_integer_value(at(j, "usage.prompt_tokens")), 12 + 3 + 21);
        json_decref(j);
        reply_free(&r);
        snprintf(text, sizeof text, body,
                 ",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
        r = call(h, "/v1/completions", text);
        struct told *t = read_stream(r.body);
        for (int i = 0; i < 6; i++) {
            assert_string_equal(t->text[i], want[i]);
            assert_string_equal(t->reason[i], "stop");
        }
        assert_true(t->done);
        assert_int_equal(t->n_laconic, 1);
        assert_int_equal(t->n_usage, 1);
        assert_non_null(at(t->last_choice, "laconic.seed"));
        assert_int_equal(json_integer_value(at(t->usage, "usage.prompt_tokens")), 36);
        told_free(t);
        reply_free(&r);
        /* One of them fails: one error, the others are cancelled. */
        r = call(h, "/v1/completions", "{\"prompt\":[\"endless:\",\"fail:\",\"endless:\"]}");
        assert_int_equal(r.status, 400);
        j = parse(r.body, r.n);
        assert_string_equal(str(j, "error.code"), "context_length_exceeded");
        json_decref(j);
        reply_free(&r);
        assert_true(wait_quiet(h));
        assert_int_equal(h->sched.cancelled, 2);
        harness_stop(h);
    }
}

static void test_streams(void **state) {
    (void)state;
    EACH_KIND(k) {
        struct harness *h = harness_start(kinds[k], NULL);
        for (int usage = 0; usage < 2; usage++) {
            char text[300];
            snprintf(
                text, sizeof text,
                "{\"messages\":[{\"role\":\"user\",\"content\":\"\xF0\x9F\xA6\x99 hi\"}],\"n\":3,"
                "\"stream\":true,\"logprobs\":true%s}",
                usage ? ",\"stream_options\":{\"include_usage\":true}" : "");
            struct client c = client_open(h, usage);
            client_post(&c, "/v1/chat/completions", text, strlen(text));
            struct reply r = client_reply(&c, false, NULL);
            assert_int_equal(r.status, 200);
            assert_non_null(strstr(r.head, "text/event-stream"));
            assert_true(r.keep_alive);
            struct told *t = read_stream(r.body);
            assert_int_equal(t->n_roles, 3);
            assert_string_equal(str(t->all[0], "choices.0.delta.role"), "assistant");
            for (int i = 0; i < 3; i++)
                assert_string_equal(t->text[i], "{\"messages\":[{\"role\":\"user\",\"content\":"
                                                "\"\xF0\x9F\xA6\x99 hi\"}]}");
            assert_true(t->done);
            assert_int_equal(t->n_laconic, 1);
            assert_int_equal(json_integer_value(at(t->last_choice, "laconic.seed")), 77);
            assert_int_equal(t->n_usage, usage);
            assert_true(json_is_null(at(t->all[0], "usage")) == usage);
            assert_int_equal(json_array_size(at(t->all[3], "choices.0.logprobs.content")), 1);
            const char *id = str(t->all[0], "id");
            for (int i = 0; i < t->n_events; i++) assert_string_equal(str(t->all[i], "id"), id);
            told_free(t);
            reply_free(&r);
            /* The connection goes on. */
            client_post(&c, "/v1/completions", "{\"prompt\":\"x\"}", 14);
            r = client_reply(&c, false, NULL);
            assert_int_equal(r.status, 200);
            reply_free(&r);
            client_close(&c);
        }
        harness_stop(h);
    }
}

static void test_errors(void **state) {
    (void)state;
    EACH_KIND(k) {
        struct harness *h = harness_start(kinds[k], NULL);
        for (int stream = 0; stream < 2; stream++) {
            char text[200];
            static const struct {
                const char *prompt;
                int status;
                const char *head, *code;
            } cases[] = {{"fail:", 400, "application/json", "context_length_exceeded"},
                         {"deadline:", 503, "Retry-After: 3", "deadline_exceeded"}};
            for (int i = 0; i < 2; i++) {
                snprintf(text, sizeof text, "{\"prompt\":\"%s\",\"stream\":%s}", cases[i].prompt,
                         stream ? "true" : "false");
                struct reply r = call(h, "/v1/completions", text);
                assert_int_equal(r.status, cases[i].status); /* nothing was streamed yet */
                assert_non_null(strstr(r.head, cases[i].head));
                json_t *j = parse(r.body, r.n);
                assert_string_equal(str(j, "error.code"), cases[i].code);
                json_decref(j);
                reply_free(&r);
            }
        }
        struct reply r = call(h, "/v1/completions", "{\"prompt\":\"late: x\"}");
        assert_int_equal(r.status, 500);
        reply_free(&r);
        struct client c = client_open(h, false);
        const char *late = "{\"prompt\":\"late: x\",\"stream\":true}";
        client_post(&c, "/v1/completions", late, strlen(late));
        r = client_reply(&c, false, NULL);
        assert_int_equal(r.status, 200);
        struct told *t = read_stream(r.body);
        assert_int_equal(t->n_errors, 1);
        assert_string_equal(str(t->error, "error.type"), "server_error");
        assert_false(t->done);
        told_free(t);
        reply_free(&r);
        client_post(&c, "/v1/completions", "{\"prompt\":\"x\"}", 14);
        r = client_reply(&c, false, NULL);
        assert_int_equal(r.status, 200);
        reply_free(&r);
        client_close(&c);
        /* A full queue. */
        h->sched.max_live = 0;
        r = call(h, "/v1/completions", "{\"prompt\":\"x\",\"stream\":true}");
        assert_int_equal(r.status, 503);
        assert_non_null(strstr(r.head, "Retry-After: "));
        reply_free(&r);
        r = call(h, "/v1/completions", "{\"prompt\":[\"x\",\"y\"]}");
        assert_int_equal(r.status, 503);
        reply_free(&r);
        h->sched.max_live = FAKE_MAX;
        r = call(h, "/v1/completions", "{\"prompt\":7}");
        assert_int_equal(r.status, 400);
        reply_free(&r);
        assert_int_equal(metric_count(&h->metrics, METRIC_REJECTED, 0), 1);
        harness_stop(h);
    }
}

static void test_tokenize(void **state) {
    (void)state;
    EACH_KIND(k) {
        struct harness *h = harness_start(kinds[k], NULL);
        struct reply r = call(h, "/tokenize", "{\"content\":\"aB\xC3\xA9\"}");
        assert_string_equal(r.body, "{\"tokens\":[97,66,195,169],\"count\":4}");
        reply_free(&r);
        r = call(h, "/tokenize", "{\"content\":\"\"}");
        assert_string_equal(r.body, "{\"tokens\":[],\"count\":0}");
        reply_free(&r);
        r = call(h, "/detokenize", "{\"tokens\":[34,97,195,169,255,10]}");
        assert_string_equal(r.body, "{\"content\":\"\\\"a\xC3\xA9\xEF\xBF\xBD\\n\"}");
        reply_free(&r);
        r = call(h, "/detokenize", "{\"tokens\":[]}");
        assert_string_equal(r.body, "{\"content\":\"\"}");
        reply_free(&r);
        /* Long: written in slices. */
        const size_t n = 300000;
        char *body = malloc(n + 64);
        size_t at_ = (size_t)sprintf(body, "{\"content\":\"");
        memset(body + at_, 'a', n);
        strcpy(body + at_ + n, "\"}");
        r = call(h, "/tokenize", body);
        json_t *j = parse(r.body, r.n);
        assert_int_equal(json_array_size(at(j, "tokens")), n);
        assert_int_equal(json_integer_value(at(j, "tokens.299999")), 'a');
        json_decref(j);
        reply_free(&r);
        free(body);
        harness_stop(h);
    }
}

static void test_slow_reader_pauses(void **state) {
    (void)state;
    EACH_KIND(k) {
        struct harness *h = harness_start(kinds[k], NULL);
        struct client c = client_open(h, false);
        const char *endless = "{\"prompt\":\"endless: x\",\"stream\":true,\"logprobs\":20}";
        client_post(&c, "/v1/completions", endless, strlen(endless));
        /* Unread, it is paused; the tokens stand still; others are served. */
        for (int i = 0; i < 500 && h->sched.paused == 0; i++) wait_ms(10);
        assert_true(h->sched.paused > 0);
        wait_ms(50);
        const unsigned before = h->sched.tokens;
        assert_true(alive(h));
        wait_ms(50);
        assert_int_equal(h->sched.tokens, before);
        /* Read, it goes on. */
        char sink[65536];
        size_t got = 0;
        while (h->sched.tokens == before && got < 64u << 20) {
            const ssize_t n = recv(c.fd, sink, sizeof sink, 0);
            assert_true(n > 0);
            got += (size_t)n;
        }
        assert_true(h->sched.tokens > before);
        client_close(&c);
        assert_true(wait_quiet(h));
        assert_int_equal(h->sched.cancelled, 1);
        harness_stop(h);
    }
}

static void quick_writes(struct server_config *cfg) {
    cfg->limits.write_ns = 200 * 1000 * 1000;
}

static void test_stuck_reader_is_cut(void **state) {
    (void)state;
    EACH_KIND(k) {
        struct harness *h = harness_start(kinds[k], quick_writes);
        struct client c = client_open(h, k);
        const char *endless = "{\"prompt\":\"endless: x\",\"stream\":true,\"logprobs\":20}";
        client_post(&c, "/v1/completions", endless, strlen(endless));
        for (int i = 0; i < 500 && h->sched.paused == 0; i++) wait_ms(10);
        assert_true(wait_quiet(h));
        assert_int_equal(h->sched.cancelled, 1);
        client_close(&c);
        assert_true(alive(h));
        harness_stop(h);
    }
}

static void test_clients_that_leave(void **state) {
    (void)state;
    EACH_KIND(k) {
        struct harness *h = harness_start(kinds[k], NULL);
        static const char *const bodies[] = {
            "{\"prompt\":\"endless: x\",\"stream\":true}", "{\"prompt\":\"endless: x\"}",
            "{\"prompt\":[\"endless: x\",\"endless: y\"],\"n\":4,\"stream\":true}"};
        for (int i = 0; i < 90; i++) {
            struct client c = client_open(h, i % 2);
            const char *b = bodies[i % 3];
            client_post(&c, "/v1/completions", b, strlen(b));
            if (i % 3 != 1)
                assert_true(client_more(&c));
            else
                while (h->sched.live == 0) wait_ms(1);
            if (i % 4 == 0) { /* a reset instead of a close */
                const struct linger l = {1, 0};
                setsockopt(c.fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
            }
            client_close(&c);
            if (i % 3 == 1) assert_true(wait_quiet(h));
        }
        assert_true(wait_quiet(h));
        assert_int_equal(h->sched.cancelled, h->sched.submitted);
        for (int i = 0; i < 300 && !h->idle; i++) wait_ms(10);
        assert_true(h->idle); /* no exchange and no connection is left */
        harness_stop(h);
    }
}

static void test_long_prompts_leave_the_loop_free(void **state) {
    (void)state;
    const size_t n = 1 << 20;
    char *body = malloc(2 * n + 200);
    EACH_KIND(k) {
        struct harness *h = harness_start(kinds[k], NULL);
        size_t len = (size_t)sprintf(body, "{\"prompt\":\"");
        for (size_t i = 0; i < n; i++) body[len++] = i % 61 == 0 ? '\\' : i % 61 == 1 ? 'n' : 'x';
        len += (size_t)sprintf(body + len, "\",\"max_tokens\":2}");
        for (int i = 0; i < 20; i++) {
            struct client c = client_open(h, i % 2);
            client_post(&c, "/v1/completions", body, len);
            struct reply r = client_reply(&c, false, NULL);
            assert_int_equal(r.status, 200);
            reply_free(&r);
            client_close(&c);
        }
        /* One that leaves while its prompt is being read. */
        struct client c = client_open(h, false);
        client_post(&c, "/v1/completions", body, len);
        client_close(&c);
        assert_true(wait_quiet(h));
        const struct histogram *gap = metric_times(&h->metrics, METRIC_LOOP_GAP, 0);
        printf(
            "# %s: loop gap with 1 MB prompts: p50 %.0f us, p99.9 %.0f us, most %.0f us of %llu\n",
            k == 0 ? "io_uring" : "epoll", (double)histogram_quantile_ns(gap, 0.5) / 1e3,
            (double)histogram_quantile_ns(gap, 0.999) / 1e3, (double)gap->max_ns / 1e3,
            (unsigned long long)gap->count);
        /* p99.9 is for an idle machine (perf/); here, where others may run, most must keep to it.
         */
        assert_true(histogram_quantile_ns(gap, 0.95) <= 1000 * 1000);
        harness_stop(h);
    }
    free(body);
}

static void test_no_heap_while_answering(void **state) {
    (void)state;
    if (fake_heap_bytes() == 0) {
        printf("skip: another heap than jemalloc's stands in\n");
        skip();
    }
    EACH_KIND(k) {
        struct harness *h = harness_start(kinds[k], NULL);
        struct client c = client_open(h, false);
        for (int i = 0; i < 60; i++) {
            char text[300];
            snprintf(text, sizeof text,
                     "{\"prompt\":\"0123456789012345678901234567890123456789\",\"n\":%d,\"stream\":"
                     "%s%s}",
                     1 + i % 4, i % 2 ? "true" : "false", i % 3 ? ",\"logprobs\":5" : "");
            client_post(&c, "/v1/completions", text, strlen(text));
            struct reply r = client_reply(&c, false, NULL);
            assert_int_equal(r.status, 200);
            reply_free(&r);
        }
        client_close(&c);
        assert_int_equal(h->sched.released, 60);
        assert_int_equal(h->sched.allocated, 0);
        harness_stop(h);
    }
}

static void test_drain(void **state) {
    (void)state;
    EACH_KIND(k) {
        struct harness *h = harness_start(kinds[k], NULL);
        h->tick_us = 2000;
        struct client idle = client_open(h, false), busy = client_open(h, false);
        const char *get = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
        client_send(idle.fd, get, strlen(get));
        struct reply r = client_reply(&idle, false, NULL);
        assert_true(r.keep_alive);
        reply_free(&r);
        char text[600];
        snprintf(
            text, sizeof text, "{\"prompt\":\"%.*s\",\"max_tokens\":100,\"stream\":true}", 400,
            "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234"
            "5678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
            "012345678901234567890123456789012345678901234567890123456789012345678901234567890123"
            "4");
        client_post(&busy, "/v1/completions", text, strlen(text));
        assert_true(client_more(&busy)); /* it runs */
        h->drain = true;
        r = client_reply(&idle, false, NULL);
        assert_int_equal(r.status, 0);
        assert_true(r.closed);
        reply_free(&r);
        struct client late = client_open(h, false);
        const char *ready = "GET /ready HTTP/1.1\r\nHost: x\r\n\r\n";
        client_send(late.fd, ready, strlen(ready));
        r = client_reply(&late, false, NULL);
        assert_int_equal(r.status, 503);
        reply_free(&r);
        client_close(&late);
        r = client_reply(&busy, false, NULL);
        struct told *t = read_stream(r.body);
        assert_true(t->done);
        told_free(t);
        reply_free(&r);
        r = client_reply(&busy, false, NULL);
        assert_true(r.closed);
        reply_free(&r);
        client_close(&idle);
        client_close(&busy);
        for (int i = 0; i < 300 && !h->idle; i++) wait_ms(10);
        assert_true(h->idle);
        harness_stop(h);
    }
}

static void little_output(struct server_config *cfg) {
    cfg->limits.output_bytes = 40 * sizeof(struct chunk);
}

static void test_output_memory_runs_out(void **state) {
    (void)state;
    EACH_KIND(k) {
        struct harness *h = harness_start(kinds[k], little_output);
        struct reply r = call(h, "/v1/completions",
                              "{\"prompt\":\"endless: x\",\"logprobs\":20,\"max_tokens\":1000000}");
        assert_int_equal(r.status, 503);
        reply_free(&r);
        assert_true(wait_quiet(h));
        r = call(h, "/v1/completions", "{\"prompt\":\"abc\"}");
        assert_int_equal(r.status, 200);
        reply_free(&r);
        harness_stop(h);
    }
}

static void test_crowd(void **state) {
    (void)state;
    enum { N = 64 };
    EACH_KIND(k) {
        struct harness *h = harness_start(kinds[k], NULL);
        struct client c[N];
        char text[200];
        for (int i = 0; i < N; i++) {
            c[i] = client_open(h, i % 2);
            const int n =
                snprintf(text, sizeof text,
                         "{\"prompt\":\"stream number %d of a crowd\",\"stream\":true}", i);
            client_post(&c[i], "/v1/completions", text, (size_t)n);
        }
        for (int i = 0; i < N; i++) {
            struct reply r = client_reply(&c[i], false, NULL);
            struct told *t = read_stream(r.body);
            snprintf(text, sizeof text, "stream number %d of a crowd", i);
            assert_string_equal(t->text[0], text);
            assert_true(t->done);
            told_free(t);
            reply_free(&r);
            client_close(&c[i]);
        }
        harness_stop(h);
    }
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
        cmocka_unit_test(test_whole_answers),
        cmocka_unit_test(test_several_prompts),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_tokenize),
        cmocka_unit_test(test_slow_reader_pauses),
        cmocka_unit_test(test_stuck_reader_is_cut),
        cmocka_unit_test(test_clients_that_leave),
        cmocka_unit_test(test_long_prompts_leave_the_loop_free),
        cmocka_unit_test(test_no_heap_while_answering),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_output_memory_runs_out),
        cmocka_unit_test(test_crowd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
