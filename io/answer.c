#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/json_writer.h"
#include "io/embeddings.h"
#include "io/json_quote.h"
#include "io/server_state.h"
#include "io/sse.h"

/* One event of a stream, or one append to a whole answer, holds at most this much. */
enum { PIECE_TEXT_BYTES = 16 * 1024, PIECE_TOKENS = 8, JOB_PIECE = 4096 };

static bool is_chat(const struct exchange *x) {
    return x->kind == REQUEST_CHAT;
}

static struct chunk_pool *pool_of(const struct exchange *x) {
    return &x->server->connections.chunks;
}

/* Most bytes of [s, s + n) up to limit that end with a whole UTF-8 sequence. */
static size_t cut_text(const char *s, size_t n, size_t limit) {
    if (n <= limit) return n;
    size_t at = limit;
    while (at > limit - 4 && ((unsigned char)s[at] & 0xC0) == 0x80) at--;
    return at;
}

void answer_free(struct exchange *x) {
    for (uint32_t i = 0; x->choices != NULL && i < x->n_choices; i++) {
        chain_clear(&x->choices[i].text, pool_of(x));
        for (int k = 0; k < 4; k++) chain_clear(&x->choices[i].lists[k], pool_of(x));
    }
    chain_clear(&x->content, pool_of(x));
}

/* ---- errors ---- */

static bool any_running(const struct exchange *x) {
    for (uint32_t i = 0; x->parts != NULL && i < x->request.n_prompts; i++)
        if (x->parts[i].submitted && !x->parts[i].done) return true;
    return false;
}

void answer_error(struct exchange *x, const struct error *e, uint32_t retry_after_s) {
    struct server *s = x->server;
    struct connection *c = x->connection;
    if (c == NULL) return;
    int status = openai_http_status(e);
    if (e->status == STATUS_DEADLINE && !x->started) status = 503;
    exchange_answered(x);
    answer_free(x); /* its memory may be what the error needs */
    if (x->begun) {
        buffer_clear(&s->scratch);
        sse_begin(&s->scratch);
        openai_write_error(&s->scratch, status, e);
        sse_end(&s->scratch);
        connection_write(c, s->scratch.data, s->scratch.len);
        connection_end(c);
    } else {
        server_reply_error(s, c, status, e, retry_after_s);
    }
    if (any_running(x)) exchange_cancel_later(x);
}

static void no_room(struct exchange *x) {
    struct error why = {0};
    error_set(&why, STATUS_FULL, NULL, "the answer is larger than the memory for answers");
    answer_error(x, &why, 1);
}

/* ---- pieces ---- */

static void event_begin(struct exchange *x, struct json_writer *j) {
    struct buffer *out = &x->server->scratch;
    buffer_clear(out);
    sse_begin(out);
    buffer_append(out, x->prefix.text, x->prefix.n);
    json_write_begin(j, out);
}

static void event_end(struct exchange *x) {
    struct buffer *out = &x->server->scratch;
    buffer_putc(out, '}');
    sse_end(out);
    if (out->full)
        no_room(x);
    else
        connection_write(x->connection, out->data, out->len);
}

/* "logprobs":{...} from the server's lists, or null. */
static void write_logprobs(struct exchange *x, struct json_writer *j, bool any) {
    const struct buffer *l = x->server->lists;
    json_write_key(j, "logprobs");
    if (!any) {
        json_write_null(j);
        return;
    }
    static const char *const names[4] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    json_write_object(j);
    for (int k = 0; k < (is_chat(x) ? 1 : 4); k++) {
        json_write_key(j, is_chat(x) ? "content" : names[k]);
        json_write_array(j);
        json_write_raw(j, l[k].data, l[k].len);
        json_write_array_end(j);
    }
    json_write_object_end(j);
}

struct piece {
    const char *text;
    size_t n;
    bool role, logprobs, last; /* last: with reason, and what else ends a choice */
    enum finish_reason reason;
    bool report;
};

static void stream_piece(struct exchange *x, uint32_t i, const struct piece *p) {
    struct json_writer j;
    event_begin(x, &j);
    json_write_array(&j);
    json_write_object(&j);
    json_write_key(&j, "index");
    json_write_uint(&j, i);
    if (is_chat(x)) {
        json_write_key(&j, "delta");
        json_write_object(&j);
        if (p->role) {
            json_write_key(&j, "role");
            json_write_string(&j, "assistant");
        }
        if (!p->last) {
            json_write_key(&j, "content");
            json_write_string_n(&j, p->text, p->n);
        }
        json_write_object_end(&j);
    } else {
        json_write_key(&j, "text");
        json_write_string_n(&j, p->text, p->n);
    }
    write_logprobs(x, &j, p->logprobs);
    json_write_key(&j, "finish_reason");
    if (p->last)
        json_write_string(&j, openai_finish_reason(p->reason));
    else
        json_write_null(&j);
    json_write_object_end(&j);
    json_write_array_end(&j);
    struct buffer *out = &x->server->scratch;
    if (x->request.include_usage) buffer_puts(out, ",\"usage\":null");
    if (p->report) {
        buffer_puts(out, ",\"laconic\":");
        json_write_begin(&j, out);
        openai_write_report(&j, &x->report, &x->request.base);
    }
    event_end(x);
}

static void gather_piece(struct exchange *x, uint32_t i, const struct piece *p) {
    struct server *s = x->server;
    struct choice *ch = &x->choices[i];
    buffer_clear(&s->scratch);
    json_quote_inner(&s->scratch, p->text, p->n);
    bool ok = !s->scratch.full &&
              chain_append_spare(&ch->text, pool_of(x), s->scratch.data, s->scratch.len);
    for (int k = 0; ok && p->logprobs && k < (is_chat(x) ? 1 : 4); k++)
        ok = chain_append_spare(&ch->lists[k], pool_of(x), s->lists[k].data, s->lists[k].len);
    if (!ok) no_room(x);
}

/* At most PIECE_TEXT_BYTES of text and PIECE_TOKENS tokens. */
static void one_piece(struct exchange *x, uint32_t i, const char *bytes, size_t n,
                      const struct token_logprob *lps, uint32_t n_lps) {
    struct server *s = x->server;
    struct choice *ch = &x->choices[i];
    struct piece p = {.text = bytes, .n = n, .logprobs = n_lps > 0};
    if (n_lps > 0) {
        for (int k = 0; k < 4; k++) buffer_clear(&s->lists[k]);
        const struct openai_lists to = {&s->lists[0], &s->lists[1], &s->lists[2], &s->lists[3]};
        /* Each event of a stream has lists of its own. */
        const bool first = x->request.stream || !ch->has_logprobs;
        openai_write_logprobs(&to, is_chat(x), first, x->request.base.top_logprobs, lps, n_lps,
                              &ch->text_offset);
        ch->has_logprobs = true;
        for (int k = 0; k < 4; k++) {
            if (!s->lists[k].full) continue;
            no_room(x);
            return;
        }
    }
    if (x->request.stream)
        stream_piece(x, i, &p);
    else
        gather_piece(x, i, &p);
}

/* ---- whole answers ---- */

static bool add(struct exchange *x, struct chain *to, const char *bytes, size_t n) {
    return chain_append_spare(to, pool_of(x), bytes, n);
}

static bool add_text(struct exchange *x, struct chain *to, const char *s) {
    return add(x, to, s, strlen(s));
}

static bool add_choice(struct exchange *x, struct chain *to, uint32_t i) {
    static const char *const names[4] = {"{\"tokens\":[", "],\"token_logprobs\":[",
                                         "],\"top_logprobs\":[", "],\"text_offset\":["};
    struct choice *ch = &x->choices[i];
    char text[160];
    snprintf(text, sizeof text, "%s{\"index\":%u,%s", i > 0 ? "," : "[", i,
             is_chat(x) ? "\"message\":{\"role\":\"assistant\",\"content\":\"" : "\"text\":\"");
    bool ok = add_text(x, to, text);
    chain_join(to, &ch->text);
    ok &= add_text(x, to, is_chat(x) ? "\",\"refusal\":null},\"logprobs\":" : "\",\"logprobs\":");
    if (!x->request.base.logprobs) {
        ok &= add_text(x, to, "null");
    } else if (is_chat(x)) {
        ok &= add_text(x, to, "{\"content\":[");
        chain_join(to, &ch->lists[0]);
        ok &= add_text(x, to, "]}");
    } else {
        for (int k = 0; k < 4; k++) {
            ok &= add_text(x, to, names[k]);
            chain_join(to, &ch->lists[k]);
        }
        ok &= add_text(x, to, "]}");
    }
    snprintf(text, sizeof text, ",\"finish_reason\":\"%s\"}", openai_finish_reason(ch->reason));
    return add_text(x, to, text) && ok;
}

static void write_tail(struct exchange *x, bool report) {
    struct buffer *out = &x->server->scratch;
    struct json_writer j;
    buffer_puts(out, ",\"usage\":");
    json_write_begin(&j, out);
    openai_write_usage(&j, &x->usage);
    if (!report) return;
    buffer_puts(out, ",\"laconic\":");
    json_write_begin(&j, out);
    openai_write_report(&j, &x->report, &x->request.base);
}

static void reply_whole(struct exchange *x) {
    struct server *s = x->server;
    struct connection *c = x->connection;
    struct chain *to = &x->content;
    bool ok = add(x, to, x->prefix.text, x->prefix.n);
    for (uint32_t i = 0; i < x->n_choices; i++) ok &= add_choice(x, to, i);
    buffer_clear(&s->scratch);
    buffer_putc(&s->scratch, ']');
    write_tail(x, true);
    buffer_putc(&s->scratch, '}');
    ok &= add(x, to, s->scratch.data, s->scratch.len);
    if (!ok) {
        no_room(x);
        return;
    }
    exchange_answered(x);
    server_count_reply(s, 200);
    connection_reply(c, 200, "application/json", to, s->cors_headers);
}

static void end_stream(struct exchange *x) {
    struct server *s = x->server;
    struct connection *c = x->connection;
    struct piece p = {
        .text = "", .last = true, .report = true, .reason = x->choices[x->last_choice].reason};
    stream_piece(x, x->last_choice, &p);
    if (x->request.include_usage && x->connection != NULL) {
        struct json_writer j;
        event_begin(x, &j);
        json_write_array(&j);
        json_write_array_end(&j);
        write_tail(x, false);
        event_end(x);
    }
    if (x->connection == NULL) return; /* there was no room for it */
    buffer_clear(&s->scratch);
    sse_data(&s->scratch, "[DONE]", 6);
    connection_write(c, s->scratch.data, s->scratch.len);
    exchange_answered(x);
    connection_end(c);
}

/* ---- the sink ---- */

static void on_started(void *user, uint64_t seed) {
    struct part *p = user;
    struct exchange *x = p->exchange;
    x->started = true;
    x->report.seed = seed;
    if (x->connection == NULL || !x->request.stream) return;
    if (!x->begun) {
        char extra[512];
        snprintf(extra, sizeof extra, "%s%s", SSE_HEADERS, x->server->cors_headers);
        connection_begin(x->connection, SSE_CONTENT_TYPE, extra);
        server_count_reply(x->server, 200);
        x->begun = true;
    }
    if (!is_chat(x)) return;
    for (uint32_t i = 0; i < x->request.base.n && x->connection != NULL; i++) {
        const struct piece role = {.text = "", .role = true};
        stream_piece(x, p->index * x->request.base.n + i, &role);
    }
}

/* Long answers of TOKENIZE and DETOKENIZE are kept, and written in slices when all is known. */
static void keep_bytes(struct exchange *x, const char *bytes, size_t n) {
    if (n == 0) return;
    char *more = realloc(x->bytes, x->n_bytes + n + 1);
    if (more == NULL) {
        no_room(x);
        return;
    }
    memcpy(more + x->n_bytes, bytes, n);
    x->bytes = more;
    x->n_bytes += n;
}

static void on_delta(void *user, uint32_t choice, const char *bytes, size_t n,
                     const struct token_logprob *lps, uint32_t n_lps) {
    struct part *p = user;
    struct exchange *x = p->exchange;
    if (x->connection == NULL) return;
    if (x->kind == REQUEST_DETOKENIZE) {
        keep_bytes(x, bytes, n);
        return;
    }
    CHECK(choice < x->request.base.n);
    if (!x->request.base.logprobs) n_lps = 0;
    while ((n > 0 || n_lps > 0) && x->connection != NULL) {
        const size_t text = cut_text(bytes, n, PIECE_TEXT_BYTES);
        const uint32_t tokens = n_lps < PIECE_TOKENS ? n_lps : PIECE_TOKENS;
        one_piece(x, p->index * x->request.base.n + choice, bytes, text, lps, tokens);
        bytes += text;
        n -= text;
        if (tokens > 0) lps += tokens;
        n_lps -= tokens;
    }
}

static void on_finish(void *user, uint32_t choice, enum finish_reason reason) {
    struct part *p = user;
    struct exchange *x = p->exchange;
    if (x->connection == NULL) return;
    CHECK(choice < x->request.base.n);
    const uint32_t i = p->index * x->request.base.n + choice;
    CHECK(!x->choices[i].finished);
    x->choices[i].finished = true;
    x->choices[i].reason = reason;
    x->last_choice = i;
    x->n_finished++;
    /* The last one's waits for the report, which stands in the last piece that has a choice. */
    if (!x->request.stream || x->n_finished == x->n_choices) return;
    const struct piece last = {.text = "", .last = true, .reason = reason};
    stream_piece(x, i, &last);
}

static void on_tokens(void *user, const uint32_t *ids, size_t n) {
    struct part *p = user;
    struct exchange *x = p->exchange;
    if (x->connection == NULL) return;
    x->ids = malloc((n + 1) * sizeof *x->ids);
    if (x->ids == NULL) {
        no_room(x);
        return;
    }
    if (n > 0) memcpy(x->ids, ids, n * sizeof *ids);
    x->n_ids = n;
}

static void on_embedding(void *user, uint32_t index, const float *v, uint32_t dim) {
    struct part *p = user;
    struct exchange *x = p->exchange;
    if (x->connection != NULL && !embeddings_keep(x, index, v, dim)) no_room(x);
}

static void add_rollbacks(struct exchange *x, const struct part *p,
                          const struct request_report *report) {
    const uint32_t first_choice = (uint32_t)(p - x->parts) * x->request.base.n;
    for (uint32_t i = 0; i < report->n_rollbacks && i < REQUEST_REPORT_ROLLBACKS; i++) {
        const uint32_t at = x->report.n_rollbacks + i;
        if (at >= REQUEST_REPORT_ROLLBACKS) break;
        x->report.rollbacks[at] = report->rollbacks[i];
        x->report.rollbacks[at].choice += first_choice;
    }
    x->report.n_rollbacks += report->n_rollbacks;
    x->report.n_withdrawn += report->n_withdrawn;
    x->report.n_breakers += report->n_breakers;
}

/* Means over all prompts' tokens. */
static void add_regulation(struct request_report *to, const struct request_report *report) {
    if (report->n_regulated == 0) return;
    to->n_regulated += report->n_regulated;
    const float share = (float)report->n_regulated / (float)to->n_regulated;
    to->temperature += (report->temperature - to->temperature) * share;
    to->top_p += (report->top_p - to->top_p) * share;
}

static void on_done(void *user, const struct request_usage *usage,
                    const struct request_report *report) {
    struct part *p = user;
    struct exchange *x = p->exchange;
    if (p->done) return;
    p->done = true;
    if (x->connection == NULL) return;
    if (usage != NULL) {
        x->usage.prompt_tokens += usage->prompt_tokens;
        x->usage.completion_tokens += usage->completion_tokens;
        x->usage.cached_tokens += usage->cached_tokens;
    }
    if (report != NULL) {
        x->report.seed = report->seed;
        x->report.deadline_missed |= report->deadline_missed;
        x->report.task = report->task;
        x->report.lint = report->lint;
        x->report.drafted += report->drafted;
        x->report.accepted += report->accepted;
        x->report.gate_attended += report->gate_attended;
        x->report.gate_there += report->gate_there;
        if (report->n_anchors > x->report.n_anchors) x->report.n_anchors = report->n_anchors;
        if (report->label_probability != NULL) {
            memcpy(x->request.label_probability, report->label_probability,
                   x->request.base.n_labels * sizeof(float));
            x->report.label_probability = x->request.label_probability;
            x->report.label = report->label;
            x->report.exit_layer = report->exit_layer;
        }
        add_rollbacks(x, p, report);
        add_regulation(&x->report, report);
        if (report->queue_ns > x->report.queue_ns) x->report.queue_ns = report->queue_ns;
        if (report->prefill_ns > x->report.prefill_ns) x->report.prefill_ns = report->prefill_ns;
        if (report->decode_ns > x->report.decode_ns) x->report.decode_ns = report->decode_ns;
    }
    if (++x->n_done < x->request.n_prompts) return;
    if (x->kind == REQUEST_TOKENIZE)
        exchange_queue_job(x, JOB_WRITE_TOKENS);
    else if (x->kind == REQUEST_DETOKENIZE)
        exchange_queue_job(x, JOB_WRITE_TEXT);
    else if (x->kind == REQUEST_EMBEDDING)
        exchange_queue_job(x, JOB_WRITE_EMBEDDINGS);
    else if (x->request.stream)
        end_stream(x);
    else
        reply_whole(x);
}

static void on_failed(void *user, const struct error *e, uint32_t retry_after_s) {
    struct part *p = user;
    if (p->done) return;
    p->done = true;
    answer_error(p->exchange, e, retry_after_s);
}

static void on_release(void *user) {
    struct part *p = user;
    struct exchange *x = p->exchange;
    CHECK(!p->released && x->n_unreleased > 0);
    p->released = true;
    x->n_unreleased--;
    exchange_let_go(x);
}

static bool on_writable(void *user) {
    const struct part *p = user;
    const struct exchange *x = p->exchange;
    if (x->connection == NULL) return false;
    if (x->request.stream) return connection_writable(x->connection);
    return !ring_gone(x->server->ring, x->connection->socket);
}

const struct request_sink answer_sink = {
    .started = on_started,
    .delta = on_delta,
    .finish = on_finish,
    .tokens = on_tokens,
    .embedding = on_embedding,
    .done = on_done,
    .failed = on_failed,
    .release = on_release,
    .writable = on_writable,
};

/* ---- slices: token lists and texts ---- */

static bool write_tokens(struct exchange *x, struct chore *chore) {
    char text[JOB_PIECE];
    size_t n = 0;
    bool ok = add_text(x, &x->content, "{\"tokens\":[");
    for (size_t i = 0; ok && i < x->n_ids; i++) {
        n += (size_t)snprintf(text + n, sizeof text - n, i > 0 ? ",%u" : "%u", x->ids[i]);
        if (n < sizeof text - 16) continue;
        ok = add(x, &x->content, text, n);
        n = 0;
        if (chore_checkpoint(chore)) return false;
    }
    ok = ok && add(x, &x->content, text, n);
    snprintf(text, sizeof text, "],\"count\":%zu}", x->n_ids);
    return ok && add_text(x, &x->content, text);
}

static bool write_text(struct exchange *x, struct chore *chore) {
    char mem[6 * JOB_PIECE + 16];
    struct buffer b;
    bool ok = add_text(x, &x->content, "{\"content\":\"");
    for (size_t at = 0; ok && at < x->n_bytes;) {
        const size_t n = cut_text(x->bytes + at, x->n_bytes - at, JOB_PIECE);
        buffer_init_fixed(&b, mem, sizeof mem);
        json_quote_inner(&b, x->bytes + at, n);
        ok = !b.full && add(x, &x->content, b.data, b.len);
        at += n;
        if (chore_checkpoint(chore)) return false;
    }
    return ok && add_text(x, &x->content, "\"}");
}

void answer_job(struct exchange *x, struct chore *chore) {
    const bool ok = x->job == JOB_WRITE_TOKENS ? write_tokens(x, chore)
                    : x->job == JOB_WRITE_TEXT ? write_text(x, chore)
                                               : embeddings_write(x, chore);
    x->read_status = ok ? STATUS_OK : STATUS_FULL;
}

void answer_job_done(struct exchange *x) {
    struct connection *c = x->connection;
    if (c != NULL && x->read_status != STATUS_OK) {
        no_room(x);
    } else if (c != NULL) {
        exchange_answered(x);
        server_count_reply(x->server, 200);
        connection_reply(c, 200, "application/json", &x->content, x->server->cors_headers);
    }
    exchange_let_go(x);
}
