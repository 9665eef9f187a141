#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/json_quote.h"
#include "io/openai_parse.h"

static bool bad_message(struct parse *p, size_t i, const char *part, const char *what) {
    char field[96];
    snprintf(field, sizeof field, "messages[%zu]%s%s", i, part[0] != '\0' ? "." : "", part);
    return parse_invalid(p, field, what);
}

static bool check_parts(struct parse *p, size_t i, const json_t *parts) {
    char name[40];
    if (json_array_size(parts) == 0)
        return bad_message(p, i, "content", "must have at least one part");
    for (size_t k = 0; k < json_array_size(parts); k++) {
        const json_t *part = json_array_get(parts, k);
        const json_t *type = json_is_object(part) ? json_object_get(part, "type") : NULL;
        const json_t *text = json_is_object(part) ? json_object_get(part, "text") : NULL;
        if (json_doc_yield(&p->doc) != STATUS_OK)
            return parse_fail(p, STATUS_GONE, NULL, "cancelled");
        snprintf(name, sizeof name, "content[%zu]", k);
        if (!json_is_string(type)) return bad_message(p, i, name, "must be an object with a type");
        if (!json_doc_equals(&p->doc, type, "text")) {
            char field[80];
            snprintf(field, sizeof field, "messages[%zu].content[%zu].type", i, k);
            return parse_unsupported(p, field);
        }
        if (!json_is_string(text)) return bad_message(p, i, name, "must have a text");
    }
    return true;
}

static bool check_message(struct parse *p, size_t i, const json_t *m) {
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    if (!json_is_object(m)) return bad_message(p, i, "", "must be an object");
    const json_t *role = json_object_get(m, "role");
    bool known = false, assistant = false;
    for (size_t k = 0; json_is_string(role) && k < sizeof roles / sizeof *roles; k++)
        known |= json_doc_equals(&p->doc, role, roles[k]);
    if (!known)
        return bad_message(p, i, "role",
                           "must be system, developer, user, assistant, tool or function");
    assistant = json_doc_equals(&p->doc, role, "assistant");
    const json_t *calls = json_object_get(m, "tool_calls");
    if (calls != NULL && !json_is_null(calls)) {
        if (!json_is_array(calls)) return bad_message(p, i, "tool_calls", "must be a list");
        if (!assistant) return bad_message(p, i, "tool_calls", "is for the assistant only");
        for (size_t k = 0; k < json_array_size(calls); k++)
            if (!json_is_object(json_array_get(calls, k)))
                return bad_message(p, i, "tool_calls", "must be a list of objects");
    }
    static const char *const strings[] = {"name", "tool_call_id", "reasoning_content", "refusal"};
    for (size_t k = 0; k < sizeof strings / sizeof *strings; k++) {
        const json_t *v = json_object_get(m, strings[k]);
        if (v != NULL && !json_is_null(v) && !json_is_string(v))
            return bad_message(p, i, strings[k], "must be a string");
    }
    const json_t *content = json_object_get(m, "content");
    if (content == NULL || json_is_null(content))
        return assistant || bad_message(p, i, "content", "must be given");
    if (json_is_array(content)) return check_parts(p, i, content);
    return json_is_string(content) ||
           bad_message(p, i, "content", "must be a string or a list of text parts");
}

static enum status write_parts(struct parse *p, const json_t *parts, struct buffer *out) {
    buffer_putc(out, '"');
    for (size_t k = 0; k < json_array_size(parts); k++) {
        if (k > 0) buffer_puts(out, "\\n");
        const json_t *text = json_object_get(json_array_get(parts, k), "text");
        if (json_doc_write_inner(&p->doc, text, out) != STATUS_OK) return STATUS_GONE;
    }
    buffer_putc(out, '"');
    return STATUS_OK;
}

static enum status write_message(struct parse *p, const json_t *m, struct buffer *out) {
    const char *key;
    json_t *value;
    bool first = true;
    buffer_putc(out, '{');
    json_object_foreach((json_t *)(uintptr_t)m, key, value) {
        if (!first) buffer_putc(out, ',');
        first = false;
        json_quote(out, key, strlen(key));
        buffer_putc(out, ':');
        const enum status s = strcmp(key, "content") == 0 && json_is_array(value)
                                  ? write_parts(p, value, out)
                                  : json_doc_write(&p->doc, value, out);
        if (s != STATUS_OK) return s;
    }
    buffer_putc(out, '}');
    return STATUS_OK;
}

static enum status write_chat(struct parse *p, const json_t *messages, struct buffer *out) {
    buffer_puts(out, "{\"messages\":[");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        if (i > 0) buffer_putc(out, ',');
        if (write_message(p, json_array_get(messages, i), out) != STATUS_OK) return STATUS_GONE;
    }
    buffer_putc(out, ']');
    static const char *const more[] = {"add_generation_prompt", "continue_final_message",
                                       "chat_template_kwargs", "documents"};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        const json_t *v = parse_get(p, more[i]);
        if (v == NULL) continue;
        buffer_printf(out, ",\"%s\":", more[i]);
        if (json_doc_write(&p->doc, v, out) != STATUS_OK) return STATUS_GONE;
    }
    buffer_putc(out, '}');
    return STATUS_OK;
}

/* The content of the last user message; NULL if there is none. */
static const json_t *last_user_content(struct parse *p, const json_t *messages) {
    for (size_t i = json_array_size(messages); i-- > 0;) {
        const json_t *m = json_array_get(messages, i);
        if (json_doc_equals(&p->doc, json_object_get(m, "role"), "user"))
            return json_object_get(m, "content");
    }
    return NULL;
}

/* What is to be classified: the text of the last user message, its parts joined by line feeds. */
static void take_last_user(struct parse *p, const json_t *messages) {
    const json_t *content = last_user_content(p, messages);
    if (content == NULL) {
        parse_invalid(p, "messages", "must have a user's message to classify");
        return;
    }
    const bool list = json_is_array(content);
    const size_t n = list ? json_array_size(content) : 1;
    struct text *parts = bump_take(&p->out->arena, n * sizeof *parts);
    size_t bytes = n;
    for (size_t i = 0; parts != NULL && i < n; i++) {
        const json_t *v = list ? json_object_get(json_array_get(content, i), "text") : content;
        const enum status s = json_doc_text(&p->doc, v, &p->out->arena, &parts[i], p->e);
        if (s != STATUS_OK) {
            p->status = s;
            return;
        }
        bytes += parts[i].len;
    }
    char *text = parts != NULL ? bump_take(&p->out->arena, bytes) : NULL;
    if (text == NULL) {
        parse_no_memory(p);
        return;
    }
    p->r->prompt = (struct text){text, bytes - 1};
    for (size_t i = 0; i < n; i++) {
        if (i > 0) *text++ = '\n';
        if (parts[i].len > 0) memcpy(text, parts[i].data, parts[i].len);
        text += parts[i].len;
    }
}

/* What the user wrote last: the beginning of it, or all of it where it is to be linted. */
static void take_user_text(struct parse *p, const json_t *messages) {
    enum { LONGEST = 4 }; /* bytes of one character */
    const size_t most = p->r->lint ? REQUEST_LINT_BYTES + LONGEST : REQUEST_USER_TEXT_BYTES;
    const json_t *content = last_user_content(p, messages);
    if (content == NULL) return;
    const size_t n_parts = json_is_array(content) ? json_array_size(content) : 1;
    struct text *out = &p->r->user_text;
    enum status s = STATUS_OK;
    if (n_parts == 1) {
        if (json_is_array(content)) content = json_object_get(json_array_get(content, 0), "text");
        s = json_doc_text_head(&p->doc, content, &p->out->arena, most, out, p->e);
    } else {
        char *to = bump_take(&p->out->arena, most + 1);
        if (to == NULL) s = error_set(p->e, STATUS_NO_MEMORY, NULL, "no memory to read the body");
        for (size_t k = 0; s == STATUS_OK && k < n_parts && out->len < most; k++) {
            struct text part;
            const json_t *text = json_object_get(json_array_get(content, k), "text");
            if (k > 0) to[out->len++] = '\n';
            s = json_doc_text_head(&p->doc, text, &p->out->arena, most - out->len, &part, p->e);
            if (s == STATUS_OK && part.len > 0) memcpy(to + out->len, part.data, part.len);
            out->len += part.len;
        }
        out->data = to;
    }
    if (s != STATUS_OK)
        p->status = s;
    else if (p->r->lint && out->len > REQUEST_LINT_BYTES)
        parse_fail(p, STATUS_TOO_LARGE, "laconic.lint", parse_lint_limit);
}

void parse_chat(struct parse *p) {
    const json_t *messages = parse_get(p, "messages");
    if (p->status != STATUS_OK) return;
    if (!json_is_array(messages) || json_array_size(messages) == 0) {
        parse_invalid(p, "messages", "must be a list of at least one message");
        return;
    }
    for (size_t i = 0; i < json_array_size(messages); i++) {
        if (json_doc_yield(&p->doc) != STATUS_OK) parse_fail(p, STATUS_GONE, NULL, "cancelled");
        if (p->status != STATUS_OK || !check_message(p, i, json_array_get(messages, i))) return;
    }
    bool ignored;
    parse_get_bool(p, "add_generation_prompt", &ignored);
    parse_get_bool(p, "continue_final_message", &ignored);
    const json_t *v = parse_get(p, "chat_template_kwargs");
    if (v != NULL && !json_is_object(v))
        parse_invalid(p, "chat_template_kwargs", "must be an object");
    v = parse_get(p, "documents");
    if (v != NULL && !json_is_array(v)) parse_invalid(p, "documents", "must be a list");
    if (p->status != STATUS_OK) return;
    take_user_text(p, messages);
    if (p->status != STATUS_OK) return;
    struct buffer *out = &p->out->chat;
    buffer_init(out, 8 * (size_t)BODY_MAX_BYTES);
    /* Room for all of it at once: growing would copy what may be megabytes. */
    out->cap = p->doc.body->bytes + 1024;
    out->data = malloc(out->cap);
    if (out->data == NULL) {
        out->cap = 0;
        parse_no_memory(p);
        return;
    }
    const enum status s = write_chat(p, messages, out);
    if (s != STATUS_OK)
        parse_fail(p, s, NULL, "cancelled");
    else if (out->full)
        parse_no_memory(p);
    p->r->chat_json = (struct text){out->data, out->len};
    if (p->r->n_labels > 0 && p->status == STATUS_OK) take_last_user(p, messages);
}
