#include "models/label_text.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/json_writer.h"
#include "models/chat_template.h"

static int compare_text(const struct text *a, const struct text *b) {
    const size_t n = a->len < b->len ? a->len : b->len;
    const int c = n > 0 ? memcmp(a->data, b->data, n) : 0;
    return c != 0 ? c : (a->len > b->len) - (a->len < b->len);
}

bool label_sort(const struct text *labels, uint32_t n, uint32_t *order) {
    /* Insertion into a short list; REQUEST_MAX_LABELS of them take microseconds. */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;
        for (; at > 0 && compare_text(&labels[order[at - 1]], &labels[i]) > 0; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    for (uint32_t i = 1; i < n; i++)
        if (compare_text(&labels[order[i - 1]], &labels[order[i]]) == 0) return false;
    return true;
}

static enum status append(struct token_list *l, uint32_t id, struct error *e) {
    if (l->n == l->cap) {
        const size_t cap = l->cap + 64;
        uint32_t *ids = realloc(l->ids, cap * sizeof *ids);
        if (ids == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "out of memory");
        l->ids = ids;
        l->cap = cap;
    }
    l->ids[l->n++] = id;
    return STATUS_OK;
}

static uint32_t begin_token(const struct tokenizer *t) {
    const uint32_t bos = tokenizer_bos(t);
    return bos != TOKEN_NONE ? bos : tokenizer_eos(t);
}

enum status label_head_tokens(const struct tokenizer *t, struct chore *c, const char *text,
                              size_t len, uint32_t max_tokens, struct token_list *out,
                              uint32_t *first, struct error *e) {
    const size_t start = out->n;
    const uint32_t begin = begin_token(t);
    *first = 0;
    enum status st = begin != TOKEN_NONE ? append(out, begin, e) : STATUS_OK;
    const size_t before = out->n;
    if (st == STATUS_OK) st = tokenizer_encode(t, c, text, len, 0, out, e);
    if (st == STATUS_OK && out->n == start)
        st = error_set(e, STATUS_INVALID, "laconic.labels", "there is no text to be classified");
    if (st != STATUS_OK) return st;
    if (out->n - start > max_tokens) out->n = start + max_tokens;
    /* Position 0 is left out: whatever stands there holds the attention that nothing else does. */
    *first = (uint32_t)(before > start ? before - start : 1);
    if (*first > out->n - start) *first = (uint32_t)(out->n - start);
    return STATUS_OK;
}

static void write_question(struct buffer *b, const struct text *labels, const uint32_t *order,
                           uint32_t n, const struct text *text) {
    buffer_puts(b, "Which one of these labels fits the text best? Answer with the label alone.\n\n"
                   "Labels:\n");
    for (uint32_t i = 0; i < n; i++) {
        buffer_append(b, labels[order[i]].data, labels[order[i]].len);
        buffer_putc(b, '\n');
    }
    buffer_puts(b, "\nText: ");
    buffer_append(b, text->data, text->len);
}

static enum status render(const struct chat_template *chat, struct chore *c,
                          const struct buffer *question, struct rendered *out, struct error *e) {
    struct buffer json;
    struct json_writer j;
    buffer_init(&json, 0);
    json_write_begin(&j, &json);
    json_write_object(&j);
    json_write_key(&j, "messages");
    json_write_array(&j);
    json_write_object(&j);
    json_write_key(&j, "role");
    json_write_string(&j, "user");
    json_write_key(&j, "content");
    json_write_string_n(&j, question->data, question->len);
    json_write_object_end(&j);
    json_write_array_end(&j);
    json_write_object_end(&j);
    const struct chat_input in = {
        .json = json.data, .len = json.len, .now_s = (int64_t)clock_wall_s()};
    const enum status st =
        json.full ? error_set(e, STATUS_TOO_LARGE, "laconic.labels", "text and labels are too long")
                  : chat_template_render(chat, &in, c, out, e);
    buffer_free(&json);
    return st;
}

enum status label_question_tokens(const struct tokenizer *t, const struct chat_template *chat,
                                  struct chore *c, const struct text *labels, const uint32_t *order,
                                  uint32_t n, const struct text *text, struct token_list *out,
                                  struct error *e) {
    struct buffer question;
    buffer_init(&question, 0);
    write_question(&question, labels, order, n, text);
    enum status st = STATUS_OK;
    if (chat == NULL) buffer_puts(&question, "\nLabel:");
    if (question.full) {
        st = error_set(e, STATUS_TOO_LARGE, "laconic.labels", "text and labels are too long");
    } else if (chat == NULL) {
        st = tokenizer_encode(t, c, question.data, question.len, TOKENIZE_BOS, out, e);
    } else {
        struct rendered r;
        st = render(chat, c, &question, &r, e);
        if (st == STATUS_OK) {
            const uint32_t bos = tokenizer_bos(t);
            const size_t before = out->n;
            if (tokenizer_adds_bos(t) && bos != TOKEN_NONE) st = append(out, bos, e);
            const size_t at = out->n;
            if (st == STATUS_OK)
                st = tokenizer_encode_spans(t, c, r.text, r.len, r.spans, r.n_spans,
                                            TOKENIZE_SPECIAL, out, e);
            /* The template usually writes the begin token itself. */
            if (st == STATUS_OK && at > before && out->n > at && out->ids[at] == bos) {
                memmove(out->ids + before, out->ids + at, (out->n - at) * sizeof *out->ids);
                out->n -= at - before;
            }
            rendered_free(&r);
        }
    }
    buffer_free(&question);
    return st;
}

enum status label_answer_tokens(const struct tokenizer *t, const struct chat_template *chat,
                                const struct text *label, struct token_list *out, struct error *e) {
    if (chat != NULL) {
        uint32_t end = tokenizer_eot(t);
        if (end == TOKEN_NONE) end = tokenizer_eos(t);
        enum status st = tokenizer_encode(t, NULL, label->data, label->len, 0, out, e);
        if (st == STATUS_OK && end != TOKEN_NONE) st = append(out, end, e);
        return st;
    }
    char text[REQUEST_MAX_LABEL_BYTES + 2];
    if (label->len > REQUEST_MAX_LABEL_BYTES)
        return error_set(e, STATUS_TOO_LARGE, "laconic.labels", "a label is too long");
    text[0] = ' ';
    memcpy(text + 1, label->data, label->len);
    text[label->len + 1] = '\n';
    return tokenizer_encode(t, NULL, text, label->len + 2, 0, out, e);
}
