#include <stdio.h>
#include <string.h>

#include "core/json_writer.h"
#include "io/page.h"
#include "io/server_state.h"
#include "io/side_doors.h"

enum route {
    ROUTE_PAGE,
    ROUTE_HEALTH,
    ROUTE_READY,
    ROUTE_METRICS,
    ROUTE_MODELS,
    ROUTE_CHAT,
    ROUTE_COMPLETIONS,
    ROUTE_EMBEDDINGS,
    ROUTE_TOKENIZE,
    ROUTE_DETOKENIZE,
    ROUTE_FEEDBACK,
    ROUTE_POLICY,
    ROUTE_PROMOTE,
    ROUTE_REVERT,
    ROUTE_MODEL,   /* /v1/models/{id}: a prefix, as are those after it */
    ROUTE_REQUEST, /* /v1/requests/{id} */
    ROUTE_NONE,
};

static const struct {
    const char *path;
    bool post;
} routes[] = {
    [ROUTE_PAGE] = {"/", false},
    [ROUTE_HEALTH] = {"/health", false},
    [ROUTE_READY] = {"/ready", false},
    [ROUTE_METRICS] = {"/metrics", false},
    [ROUTE_MODELS] = {"/v1/models", false},
    [ROUTE_CHAT] = {"/v1/chat/completions", true},
    [ROUTE_COMPLETIONS] = {"/v1/completions", true},
    [ROUTE_EMBEDDINGS] = {"/v1/embeddings", true},
    [ROUTE_TOKENIZE] = {"/tokenize", true},
    [ROUTE_DETOKENIZE] = {"/detokenize", true},
    [ROUTE_FEEDBACK] = {"/v1/feedback", true},
    [ROUTE_POLICY] = {"/v1/policy", false},
    [ROUTE_PROMOTE] = {"/v1/policy/promote", true},
    [ROUTE_REVERT] = {"/v1/policy/revert", true},
    [ROUTE_MODEL] = {"/v1/models/", false},
    [ROUTE_REQUEST] = {"/v1/requests/", false},
};

static bool is_open(const struct io_service *service, int route) {
    switch (route) {
    case ROUTE_FEEDBACK:
        return service->feedback != NULL;
    case ROUTE_POLICY:
    case ROUTE_PROMOTE:
    case ROUTE_REVERT:
        return service->policy != NULL;
    case ROUTE_REQUEST:
        return service->explain != NULL;
    default:
        return true;
    }
}

static enum route find_route(const struct server *s, const char *path) {
    for (int i = 0; i < ROUTE_NONE; i++) {
        const size_t n = strlen(routes[i].path);
        const bool fits = i < ROUTE_MODEL
                              ? strcmp(path, routes[i].path) == 0
                              : strncmp(path, routes[i].path, n) == 0 && path[n] != '\0';
        if (fits && is_open(&s->cfg.service, i)) return (enum route)i;
    }
    return ROUTE_NONE;
}

/* What stands behind the prefix. */
static const char *rest_of(const struct connection *c, enum route r) {
    return c->http.head.path + strlen(routes[r].path);
}

static const char *allow(enum route r) {
    return routes[r].post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
}

static bool verb_fits(enum route r, enum http_verb verb) {
    return routes[r].post ? verb == HTTP_VERB_POST
                          : verb == HTTP_VERB_GET || verb == HTTP_VERB_HEAD;
}

static void reply_options(struct server *s, struct connection *c, const char *verbs) {
    char extra[512];
    int n = snprintf(extra, sizeof extra, "Allow: %s\r\n%s", verbs, s->cors_headers);
    if (s->cors_headers[0] != '\0')
        snprintf(extra + n, sizeof extra - (size_t)n,
                 "Access-Control-Allow-Methods: %s\r\n"
                 "Access-Control-Allow-Headers: authorization, content-type\r\n",
                 verbs);
    server_count_reply(s, 204);
    connection_reply_bytes(c, 204, NULL, NULL, 0, extra);
}

bool route_head(void *server, struct connection *c) {
    struct server *s = server;
    const struct http_head *head = &c->http.head;
    const enum route r = find_route(s, head->path);
    struct error why = {0};
    char extra[512];
    if (head->verb == HTTP_VERB_OPTIONS && strcmp(head->path, "*") == 0) {
        reply_options(s, c, "GET, HEAD, POST, OPTIONS"); /* of the server as a whole */
        return false;
    }
    if (r == ROUTE_NONE) {
        error_set(&why, STATUS_NOT_FOUND, NULL, "there is nothing at this address");
        server_reply_error(s, c, 404, &why, 0);
        return false;
    }
    if (verb_fits(r, head->verb)) return true;
    if (head->verb == HTTP_VERB_OPTIONS) {
        reply_options(s, c, allow(r));
        return false;
    }
    error_set(&why, STATUS_INVALID, NULL, "this address takes %s", allow(r));
    buffer_clear(&s->scratch);
    openai_write_error(&s->scratch, 405, &why);
    snprintf(extra, sizeof extra, "Allow: %s\r\n%s", allow(r), s->cors_headers);
    server_count_reply(s, 405);
    connection_reply_bytes(c, 405, "application/json", s->scratch.data, s->scratch.len, extra);
    return false;
}

static void reply_scratch(struct server *s, struct connection *c, int status, const char *type) {
    server_count_reply(s, status);
    connection_reply_bytes(c, status, type, s->scratch.data, s->scratch.len,
                           status == 503 ? "Retry-After: 1\r\n" : s->cors_headers);
}

static void reply_state(struct server *s, struct connection *c, int status, const char *state) {
    struct json_writer j;
    buffer_clear(&s->scratch);
    json_write_begin(&j, &s->scratch);
    json_write_object(&j);
    json_write_key(&j, "status");
    json_write_string(&j, state);
    json_write_object_end(&j);
    reply_scratch(s, c, status, "application/json");
}

static void reply_ready(struct server *s, struct connection *c) {
    if (s->draining)
        reply_state(s, c, 503, "draining");
    else if (!s->cfg.service.ready(s->cfg.service.arg))
        reply_state(s, c, 503, "starting");
    else
        reply_state(s, c, 200, "ready");
}

static void reply_metrics(struct server *s, struct connection *c) {
    struct metrics *m = s->cfg.metrics;
    buffer_clear(&s->scratch);
    if (m != NULL) {
        if (s->cfg.service.refresh != NULL) s->cfg.service.refresh(s->cfg.service.arg);
        metric_set(m, METRIC_CONNECTIONS, 0, s->connections.n_open);
        metric_read_process(m);
        metric_render(m, &s->scratch);
    }
    reply_scratch(s, c, 200, METRIC_CONTENT_TYPE);
}

static void write_model(struct server *s, struct json_writer *j, const char *name) {
    json_write_object(j);
    json_write_key(j, "id");
    json_write_string(j, name);
    json_write_key(j, "object");
    json_write_string(j, "model");
    json_write_key(j, "created");
    json_write_uint(j, s->started_s);
    json_write_key(j, "owned_by");
    json_write_string(j, "laconic");
    json_write_object_end(j);
}

static void reply_models(struct server *s, struct connection *c) {
    struct json_writer j;
    buffer_clear(&s->scratch);
    json_write_begin(&j, &s->scratch);
    json_write_object(&j);
    json_write_key(&j, "object");
    json_write_string(&j, "list");
    json_write_key(&j, "data");
    json_write_array(&j);
    write_model(s, &j, s->model_name);
    if (s->encoder_name != NULL) write_model(s, &j, s->encoder_name);
    json_write_array_end(&j);
    json_write_object_end(&j);
    reply_scratch(s, c, 200, "application/json");
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Does the percent-encoded text say `name`? */
static bool decodes_to(const char *encoded, const char *name) {
    while (*encoded != '\0') {
        char c = *encoded++;
        if (c == '%' && hex_digit(encoded[0]) >= 0 && hex_digit(encoded[1]) >= 0) {
            c = (char)(hex_digit(encoded[0]) << 4 | hex_digit(encoded[1]));
            encoded += 2;
        }
        if (*name == '\0' || c != *name++) return false;
    }
    return *name == '\0';
}

static void reply_model(struct server *s, struct connection *c) {
    const char *id = rest_of(c, ROUTE_MODEL);
    const bool encoder = s->encoder_name != NULL && decodes_to(id, s->encoder_name);
    if (!encoder && !decodes_to(id, s->model_name) && !decodes_to(id, "default")) {
        struct error why = {0};
        error_set(&why, STATUS_NOT_FOUND, "model", "the model does not exist here; see /v1/models");
        server_reply_error(s, c, 404, &why, 0);
        return;
    }
    struct json_writer j;
    buffer_clear(&s->scratch);
    json_write_begin(&j, &s->scratch);
    write_model(s, &j, encoder ? s->encoder_name : s->model_name);
    reply_scratch(s, c, 200, "application/json");
}

static void reply_page(struct server *s, struct connection *c) {
    size_t n;
    const char *html = page_html(&n);
    server_count_reply(s, 200);
    connection_reply_bytes(
        c, 200, "text/html; charset=utf-8", html, n,
        "Cache-Control: no-cache\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        "Content-Security-Policy: default-src 'none'; connect-src 'self'; "
        "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\r\n");
}

void route_request(void *server, struct connection *c) {
    struct server *s = server;
    switch (find_route(s, c->http.head.path)) {
    case ROUTE_PAGE:
        reply_page(s, c);
        break;
    case ROUTE_HEALTH:
        reply_state(s, c, 200, "ok");
        break;
    case ROUTE_READY:
        reply_ready(s, c);
        break;
    case ROUTE_METRICS:
        reply_metrics(s, c);
        break;
    case ROUTE_MODELS:
        reply_models(s, c);
        break;
    case ROUTE_MODEL:
        reply_model(s, c);
        break;
    case ROUTE_CHAT:
        exchange_start(s, c, REQUEST_CHAT);
        break;
    case ROUTE_COMPLETIONS:
        exchange_start(s, c, REQUEST_COMPLETION);
        break;
    case ROUTE_EMBEDDINGS:
        exchange_start(s, c, REQUEST_EMBEDDING);
        break;
    case ROUTE_TOKENIZE:
        exchange_start(s, c, REQUEST_TOKENIZE);
        break;
    case ROUTE_DETOKENIZE:
        exchange_start(s, c, REQUEST_DETOKENIZE);
        break;
    case ROUTE_FEEDBACK:
        side_door_feedback(s, c);
        break;
    case ROUTE_POLICY:
        side_door_policy(s, c, IO_POLICY_SHOW);
        break;
    case ROUTE_PROMOTE:
        side_door_policy(s, c, IO_POLICY_PROMOTE);
        break;
    case ROUTE_REVERT:
        side_door_policy(s, c, IO_POLICY_REVERT);
        break;
    case ROUTE_REQUEST:
        side_door_explain(s, c, rest_of(c, ROUTE_REQUEST));
        break;
    case ROUTE_NONE:
        break; /* refused at its head */
    }
}

void route_malformed(void *server, struct connection *c, int status, const char *text) {
    struct error why = {0};
    error_set(&why, STATUS_INVALID, NULL, "%s", text);
    server_reply_error(server, c, status, &why, status == 503 ? 1 : 0);
}

void route_gone(void *server, struct connection *c) {
    (void)server;
    if (c->exchange != NULL) exchange_gone(c->exchange);
}
