#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/json_writer.h"
#include "io/openai.h"

int openai_http_status(const struct error *e) {
    switch (e->status) {
    case STATUS_NOT_FOUND:
        return 404;
    case STATUS_FULL:
        return 503;
    case STATUS_DEADLINE:
        return 504;
    default:
        return status_class_of(e->status) == STATUS_CLASS_INPUT ? 400 : 500;
    }
}

/* OpenAI's `code` where it has one for the case. */
static const char *error_code(int http_status, const struct error *e) {
    switch (e->status) {
    case STATUS_CONTEXT_LENGTH:
        return "context_length_exceeded";
    case STATUS_UNSUPPORTED:
        return "unsupported_parameter";
    case STATUS_NOT_FOUND:
        return strcmp(e->field, "model") == 0 ? "model_not_found" : "not_found";
    case STATUS_DEADLINE:
        return "deadline_exceeded";
    case STATUS_FULL:
        return "overloaded";
    case STATUS_INVALID:
        return http_status == 400 && e->field[0] != '\0' ? "invalid_value" : NULL;
    default:
        return NULL;
    }
}

void openai_write_error(struct buffer *out, int http_status, const struct error *e) {
    struct json_writer j;
    json_write_begin(&j, out);
    json_write_object(&j);
    json_write_key(&j, "error");
    json_write_object(&j);
    json_write_key(&j, "message");
    json_write_string(&j, e->message);
    json_write_key(&j, "type");
    json_write_string(&j, http_status < 500 ? "invalid_request_error" : "server_error");
    json_write_key(&j, "param");
    if (e->field[0] != '\0')
        json_write_string(&j, e->field);
    else
        json_write_null(&j);
    json_write_key(&j, "code");
    const char *code = error_code(http_status, e);
    if (code != NULL)
        json_write_string(&j, code);
    else
        json_write_null(&j);
    json_write_object_end(&j);
    json_write_object_end(&j);
}

void openai_prefix(struct openai_prefix *p, enum request_kind kind, bool stream, const char *id,
                   uint64_t created_s, const struct openai_identity *who) {
    struct buffer b;
    struct json_writer j;
    buffer_init_fixed(&b, p->text, sizeof p->text);
    json_write_begin(&j, &b);
    json_write_object(&j);
    json_write_key(&j, "id");
    json_write_string(&j, id);
    json_write_key(&j, "object");
    if (kind != REQUEST_CHAT)
        json_write_string(&j, "text_completion");
    else
        json_write_string(&j, stream ? "chat.completion.chunk" : "chat.completion");
    json_write_key(&j, "created");
    json_write_uint(&j, created_s);
    json_write_key(&j, "model");
    json_write_string(&j, who->model);
    json_write_key(&j, "system_fingerprint");
    json_write_string(&j, who->fingerprint);
    json_write_key(&j, "choices");
    p->n = b.len;
}

/* What the reader sees of a token whose bytes are no text by themselves, and as a key: OpenAI's
 * completions write bytes:\x.. for them. */
static bool is_text(const char *s, size_t n) {
    const unsigned char *b = (const unsigned char *)s;
    for (size_t i = 0; i < n;) {
        const unsigned char c = b[i];
        size_t len = c < 0x80                ? 1
                     : c >= 0xC2 && c < 0xE0 ? 2
                     : c >= 0xE0 && c < 0xF0 ? 3
                     : c >= 0xF0 && c < 0xF5 ? 4
                                             : 0;
        if (c == 0 || len == 0 || len > n - i) return false;
        for (size_t k = 1; k < len; k++)
            if ((b[i + k] & 0xC0) != 0x80) return false;
        i += len;
    }
    return true;
}

enum { NAME_BYTES = 2048 };

/* NUL-terminated; over-long tokens are cut at a sequence's start. */
static void token_name(char name[NAME_BYTES], const char *bytes, size_t n) {
    if (is_text(bytes, n)) {
        if (n > NAME_BYTES - 1) {
            n = NAME_BYTES - 1;
            while (n > 0 && ((unsigned char)bytes[n] & 0xC0) == 0x80) n--;
        }
        memcpy(name, bytes, n);
        name[n] = '\0';
        return;
    }
    size_t at = (size_t)snprintf(name, NAME_BYTES, "bytes:");
    for (size_t i = 0; i < n && at + 5 < NAME_BYTES; i++)
        at += (size_t)snprintf(name + at, NAME_BYTES - at, "\\x%02x", (unsigned char)bytes[i]);
}

static void write_bytes(struct json_writer *j, const char *bytes, uint32_t n) {
    json_write_key(j, "bytes");
    json_write_array(j);
    for (uint32_t i = 0; i < n; i++) json_write_uint(j, (unsigned char)bytes[i]);
    json_write_array_end(j);
}

static void write_chat_token(struct buffer *out, uint32_t n_top, const struct token_logprob *lp) {
    struct json_writer j;
    json_write_begin(&j, out);
    json_write_object(&j);
    json_write_key(&j, "token");
    json_write_string_n(&j, lp->bytes, lp->n_bytes);
    json_write_key(&j, "logprob");
    json_write_float(&j, lp->logprob);
    write_bytes(&j, lp->bytes, lp->n_bytes);
    json_write_key(&j, "top_logprobs");
    json_write_array(&j);
    for (uint32_t i = 0; i < n_top && i < lp->n_top; i++) {
        json_write_object(&j);
        json_write_key(&j, "token");
        json_write_string_n(&j, lp->top[i].bytes, lp->top[i].n_bytes);
        json_write_key(&j, "logprob");
        json_write_float(&j, lp->top[i].logprob);
        write_bytes(&j, lp->top[i].bytes, lp->top[i].n_bytes);
        json_write_object_end(&j);
    }
    json_write_array_end(&j);
    if (!isnan(lp->entropy)) {
        json_write_key(&j, "entropy");
        json_write_float(&j, lp->entropy);
    }
    if (!isnan(lp->similarity)) {
        json_write_key(&j, "similarity");
        json_write_float(&j, lp->similarity);
    }
    json_write_object_end(&j);
}

static void write_completion_token(const struct openai_lists *to, uint32_t n_top,
                                   const struct token_logprob *lp, uint64_t *text_offset) {
    struct json_writer j;
    char name[NAME_BYTES];
    token_name(name, lp->bytes, lp->n_bytes);
    json_write_begin(&j, to->tokens);
    json_write_string(&j, name);
    json_write_begin(&j, to->logprobs);
    json_write_float(&j, lp->logprob);
    json_write_begin(&j, to->tops);
    if (n_top == 0 || lp->n_top == 0) {
        json_write_null(&j);
    } else {
        json_write_object(&j);
        for (uint32_t i = 0; i < n_top && i < lp->n_top; i++) {
            token_name(name, lp->top[i].bytes, lp->top[i].n_bytes);
            json_write_key(&j, name);
            json_write_float(&j, lp->top[i].logprob);
        }
        json_write_object_end(&j);
    }
    json_write_begin(&j, to->offsets);
    json_write_uint(&j, *text_offset);
    /* In code points: a token that ends one counts for it with its first byte. */
    for (uint32_t i = 0; i < lp->n_bytes; i++)
        *text_offset += ((unsigned char)lp->bytes[i] & 0xC0) != 0x80;
}

void openai_write_logprobs(const struct openai_lists *to, bool chat, bool first, uint32_t n_top,
                           const struct token_logprob *lps, uint32_t n, uint64_t *text_offset) {
    for (uint32_t i = 0; i < n; i++) {
        if (!first || i > 0) {
            buffer_putc(to->tokens, ',');
            if (!chat) {
                buffer_putc(to->logprobs, ',');
                buffer_putc(to->tops, ',');
                buffer_putc(to->offsets, ',');
            }
        }
        if (chat)
            write_chat_token(to->tokens, n_top, &lps[i]);
        else
            write_completion_token(to, n_top, &lps[i], text_offset);
    }
}

const char *openai_finish_reason(enum finish_reason reason) {
    switch (reason) {
    case FINISH_STOP:
        return "stop";
    case FINISH_LENGTH:
        return "length";
    case FINISH_ABORT:
        return "abort";
    case FINISH_ERROR:
        return "error";
    }
    return "stop";
}

void openai_write_usage(struct json_writer *j, const struct request_usage *usage) {
    json_write_object(j);
    json_write_key(j, "prompt_tokens");
    json_write_uint(j, usage->prompt_tokens);
    json_write_key(j, "completion_tokens");
    json_write_uint(j, usage->completion_tokens);
    json_write_key(j, "total_tokens");
    json_write_uint(j, (uint64_t)usage->prompt_tokens + usage->completion_tokens);
    json_write_key(j, "prompt_tokens_details");
    json_write_object(j);
    json_write_key(j, "cached_tokens");
    json_write_uint(j, usage->cached_tokens);
    json_write_object_end(j);
    json_write_object_end(j);
}

enum { MAX_ANCHORS = 5 }; /* more are worth a warning */

static double ms(uint64_t ns) {
    return (double)(ns / 1000) / 1000.0;
}

static void write_labels(struct json_writer *j, const struct request_report *report,
                         const struct request *r) {
    json_write_key(j, "label");
    json_write_string_n(j, r->labels[report->label].data, r->labels[report->label].len);
    json_write_key(j, "label_probabilities");
    json_write_object(j);
    for (uint32_t i = 0; i < r->n_labels; i++) {
        char label[REQUEST_MAX_LABEL_BYTES + 1];
        memcpy(label, r->labels[i].data, r->labels[i].len);
        label[r->labels[i].len] = '\0';
        json_write_key(j, label);
        json_write_float(j, report->label_probability[i]);
    }
    json_write_object_end(j);
}

/* What was taken back: where, how much, and what spoke for it. */
static void write_rollbacks(struct json_writer *j, const struct request_report *report) {
    if (report->n_rollbacks == 0 && report->n_breakers == 0) return;
    json_write_key(j, "withdrawn_tokens");
    json_write_uint(j, report->n_withdrawn);
    json_write_key(j, "breakers");
    json_write_uint(j, report->n_breakers);
    json_write_key(j, "rollback_events");
    json_write_array(j);
    for (uint32_t i = 0; i < report->n_rollbacks && i < REQUEST_REPORT_ROLLBACKS; i++) {
        const struct rollback_event *e = &report->rollbacks[i];
        json_write_object(j);
        json_write_key(j, "choice");
        json_write_uint(j, e->choice);
        json_write_key(j, "position");
        json_write_uint(j, e->at);
        json_write_key(j, "withdrawn");
        json_write_uint(j, e->withdrawn);
        json_write_key(j, "entropy");
        json_write_float(j, e->entropy);
        json_write_key(j, "similarity");
        json_write_float(j, e->similarity);
        json_write_object_end(j);
    }
    json_write_array_end(j);
}

void openai_write_report(struct json_writer *j, const struct request_report *report,
                         const struct request *r) {
    json_write_object(j);
    json_write_key(j, "seed");
    json_write_int(j, (int64_t)report->seed);
    if (report->deadline_missed) {
        json_write_key(j, "deadline_missed");
        json_write_bool(j, true);
    }
    if (report->n_anchors > MAX_ANCHORS) {
        char text[96];
        snprintf(text, sizeof text, "%u anchors: more than %d leave little to choose",
                 report->n_anchors, MAX_ANCHORS);
        json_write_key(j, "warnings");
        json_write_array(j);
        json_write_string(j, text);
        json_write_array_end(j);
    }
    if (report->lint.len > 0) {
        json_write_key(j, "lint");
        json_write_raw(j, report->lint.data, report->lint.len);
    }
    if (report->label_probability != NULL) write_labels(j, report, r);
    if (r->explain) {
        if (report->label_probability != NULL) {
            json_write_key(j, "labels_by");
            json_write_string(j, report->exit_layer > 0 ? "head" : "zero-shot");
        }
        if (report->exit_layer > 0) {
            json_write_key(j, "exit_layer");
            json_write_uint(j, report->exit_layer);
        }
        json_write_key(j, "task_type");
        json_write_string(j, metric_task_name(report->task));
        const struct {
            const char *key;
            uint32_t n;
        } counts[] = {{"exits", report->exit_layer > 0},
                      {"rollbacks", report->n_rollbacks},
                      {"drafted", report->drafted},
                      {"accepted", report->accepted}};
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            json_write_key(j, counts[i].key);
            json_write_uint(j, counts[i].n);
        }
        if (report->gate_there > 0) {
            json_write_key(j, "gate");
            json_write_object(j);
            json_write_key(j, "pages_attended");
            json_write_uint(j, report->gate_attended);
            json_write_key(j, "pages_there");
            json_write_uint(j, report->gate_there);
            json_write_key(j, "anchors");
            json_write_uint(j, report->n_anchors);
            json_write_object_end(j);
        }
        if (report->n_regulated > 0) {
            json_write_key(j, "regulation");
            json_write_object(j);
            json_write_key(j, "tokens");
            json_write_uint(j, report->n_regulated);
            json_write_key(j, "temperature");
            json_write_float(j, report->temperature);
            json_write_key(j, "top_p");
            json_write_float(j, report->top_p);
            json_write_object_end(j);
        }
        write_rollbacks(j, report);
        json_write_key(j, "timings");
        json_write_object(j);
        json_write_key(j, "queue_ms");
        json_write_double(j, ms(report->queue_ns));
        json_write_key(j, "prefill_ms");
        json_write_double(j, ms(report->prefill_ns));
        json_write_key(j, "decode_ms");
        json_write_double(j, ms(report->decode_ns));
        json_write_object_end(j);
    }
    json_write_object_end(j);
}
