#include "io/side_doors.h"

#include <string.h>

#include "io/json_doc.h"

enum { MAX_ID_BYTES = 128 };

static void reply(struct server *s, struct connection *c, enum status st, const struct error *e) {
    if (st == STATUS_OK && s->scratch.full) {
        struct error full = {0};
        error_set(&full, STATUS_FULL, NULL, "the reply is larger than the memory for it");
        server_reply_error(s, c, 503, &full, 1);
        return;
    }
    if (st != STATUS_OK) {
        server_reply_error(s, c, openai_http_status(e), e, 0);
        return;
    }
    server_count_reply(s, 200);
    connection_reply_bytes(c, 200, "application/json", s->scratch.data, s->scratch.len,
                           s->cors_headers);
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* False when it does not fit, or holds what no id does. */
static bool decode(const char *from, char *to, size_t cap, size_t *n) {
    *n = 0;
    while (*from != '\0') {
        char c = *from++;
        if (c == '%' && hex_digit(from[0]) >= 0 && hex_digit(from[1]) >= 0) {
            c = (char)(hex_digit(from[0]) << 4 | hex_digit(from[1]));
            from += 2;
        }
        if (*n == cap || c <= ' ' || c > '~') return false;
        to[(*n)++] = c;
    }
    return true;
}

void side_door_explain(struct server *s, struct connection *c, const char *id) {
    char decoded[MAX_ID_BYTES];
    struct error e = {0};
    struct text t = {.data = decoded};
    enum status st = STATUS_OK;
    if (!decode(id, decoded, sizeof decoded, &t.len))
        st = error_set(&e, STATUS_NOT_FOUND, "id", "that is no request's id");
    buffer_clear(&s->scratch);
    if (st == STATUS_OK) st = s->cfg.service.explain(s->cfg.service.arg, t, &s->scratch, &e);
    reply(s, c, st, &e);
}

static enum status read_member(struct json_doc *d, struct bump *arena, const char *key,
                               const json_t *v, struct request_feedback *out, struct error *e) {
    if (json_is_null(v)) return STATUS_OK;
    if (strcmp(key, "accepted") == 0) {
        if (!json_is_boolean(v))
            return error_set(e, STATUS_INVALID, key, "accepted must be true or false");
        out->has_accepted = true;
        out->accepted = json_boolean_value(v);
        return STATUS_OK;
    }
    struct text *text = strcmp(key, "id") == 0      ? &out->id
                        : strcmp(key, "label") == 0 ? &out->label
                                                    : NULL;
    if (text == NULL) return error_set(e, STATUS_INVALID, key, "%.48s is not known", key);
    if (!json_is_string(v)) return error_set(e, STATUS_INVALID, key, "%s must be a string", key);
    return json_doc_text(d, v, arena, text, e);
}

static enum status read_feedback(struct json_doc *d, struct bump *arena,
                                 struct request_feedback *out, struct error *e) {
    const char *key;
    json_t *v;
    json_object_foreach(d->root, key, v) {
        const enum status st = read_member(d, arena, key, v, out, e);
        if (st != STATUS_OK) return st;
    }
    if (out->id.len == 0) return error_set(e, STATUS_INVALID, "id", "id must be given");
    return STATUS_OK;
}

void side_door_feedback(struct server *s, struct connection *c) {
    struct body body;
    struct json_doc doc = {0};
    struct bump arena = {0};
    struct request_feedback f = {0};
    struct error e = {0};
    connection_take_body(c, &body);
    enum status st = STATUS_OK;
    if (body.bytes > SIDE_DOOR_BODY_BYTES)
        st = error_set(&e, STATUS_TOO_LARGE, NULL, "feedback takes at most %d bytes",
                       SIDE_DOOR_BODY_BYTES);
    if (st == STATUS_OK) {
        st = json_doc_read(&doc, &body, NULL, &e);
        if (st == STATUS_OK) st = read_feedback(&doc, &arena, &f, &e);
        buffer_clear(&s->scratch);
        if (st == STATUS_OK) st = s->cfg.service.feedback(s->cfg.service.arg, &f, &s->scratch, &e);
        json_doc_free(&doc);
    }
    bump_free(&arena);
    connections_drop_body(&s->connections, &body);
    reply(s, c, st, &e);
}

void side_door_policy(struct server *s, struct connection *c, enum io_policy_action action) {
    struct error e = {0};
    if (action != IO_POLICY_SHOW && !c->local) {
        error_set(&e, STATUS_UNSUPPORTED, NULL,
                  "this is taken over the server's Unix socket only (--uds)");
        server_reply_error(s, c, 403, &e, 0);
        return;
    }
    buffer_clear(&s->scratch);
    const enum status st = s->cfg.service.policy(s->cfg.service.arg, action, &s->scratch, &e);
    reply(s, c, st, &e);
}
