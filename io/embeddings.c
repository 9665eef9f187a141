#include "io/embeddings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/json_writer.h"
#include "io/json_doc.h"
#include "io/server_state.h"

enum {
    FLOATS_PER_PIECE = 192, /* a multiple of three: base64 then needs no padding in between */
    PIECE_BYTES = FLOATS_PER_PIECE * 16,
};

/* ---- the request ---- */

/* The member, NULL if absent or null. */
static json_t *get(const struct json_doc *d, const char *field) {
    json_t *v = json_object_get(d->root, field);
    return v != NULL && json_is_null(v) ? NULL : v;
}

static enum status parse_model(const struct json_doc *d, struct openai_request *r,
                               const char *model_name, const char *encoder_name, struct error *e) {
    const json_t *v = get(d, "model");
    if (!json_is_string(v))
        return error_set(e, STATUS_INVALID, "model",
                         "model must be a string: the encoder's or the served model's name");
    if (encoder_name != NULL && json_doc_equals(d, v, encoder_name)) return STATUS_OK;
    r->base.by_model = json_doc_equals(d, v, model_name) || json_doc_equals(d, v, "default");
    if (r->base.by_model) return STATUS_OK;
    return error_set(e, STATUS_NOT_FOUND, "model", "the model does not exist here; see /v1/models");
}

static enum status parse_options(const struct json_doc *d, struct openai_request *r,
                                 struct error *e) {
    const json_t *v = get(d, "encoding_format");
    if (v != NULL) {
        r->base64 = json_is_string(v) && json_doc_equals(d, v, "base64");
        if (!json_is_string(v) || (!r->base64 && !json_doc_equals(d, v, "float")))
            return error_set(e, STATUS_INVALID, "encoding_format",
                             "encoding_format must be \"float\" or \"base64\"");
    }
    v = get(d, "dimensions");
    if (v != NULL) {
        const int64_t n = json_is_integer(v) ? json_integer_value(v) : 0;
        if (n < 1 || n > INT32_MAX)
            return error_set(e, STATUS_INVALID, "dimensions",
                             "dimensions must be an integer of at least 1");
        r->base.dimensions = (uint32_t)n;
    }
    v = get(d, "user");
    if (v != NULL && !json_is_string(v))
        return error_set(e, STATUS_INVALID, "user", "user must be a string");
    return STATUS_OK;
}

static enum status take_text(struct json_doc *d, const json_t *v, struct openai_request *r,
                             struct text *out, struct error *e) {
    if (json_is_integer(v) || json_is_array(v))
        return error_set(e, STATUS_UNSUPPORTED, "input",
                         "input must be text; token ids are not taken");
    if (!json_is_string(v))
        return error_set(e, STATUS_INVALID, "input", "input must be a string or a list of strings");
    const enum status st = json_doc_text(d, v, &r->arena, out, e);
    if (st == STATUS_OK && out->len == 0)
        return error_set(e, STATUS_INVALID, "input", "input must not be an empty string");
    return st;
}

static enum status parse_input(struct json_doc *d, struct openai_request *r, struct error *e) {
    const json_t *v = get(d, "input");
    if (v == NULL) return error_set(e, STATUS_INVALID, "input", "input must be given");
    const bool list = json_is_array(v);
    const size_t n = list ? json_array_size(v) : 1;
    if (n == 0) return error_set(e, STATUS_INVALID, "input", "input must not be empty");
    if (list && json_is_integer(json_array_get(v, 0)))
        return take_text(d, json_array_get(v, 0), r, NULL, e);
    if (n > REQUEST_MAX_INPUTS)
        return error_set(e, STATUS_TOO_LARGE, "input", "input must have at most %d texts",
                         REQUEST_MAX_INPUTS);
    struct text *texts = bump_take(&r->arena, n * sizeof *texts);
    if (texts == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory to read the body");
    for (size_t i = 0; i < n; i++) {
        if (json_doc_yield(d) != STATUS_OK) return error_set(e, STATUS_GONE, NULL, "cancelled");
        const enum status st = take_text(d, list ? json_array_get(v, i) : v, r, &texts[i], e);
        if (st != STATUS_OK) return st;
    }
    r->base.inputs = texts;
    r->base.n_inputs = (uint32_t)n;
    return STATUS_OK;
}

enum status embeddings_parse(struct openai_request *r, const struct body *body,
                             const char *model_name, const char *encoder_name, struct chore *chore,
                             struct error *e) {
    memset(r, 0, sizeof *r);
    r->base.kind = REQUEST_EMBEDDING;
    r->base.n = 1;
    r->n_prompts = 1;
    struct json_doc d = {0};
    enum status st = json_doc_read(&d, body, chore, e);
    if (st == STATUS_OK) st = parse_model(&d, r, model_name, encoder_name, e);
    if (st == STATUS_OK) st = parse_options(&d, r, e);
    if (st == STATUS_OK) st = parse_input(&d, r, e);
    json_doc_free(&d);
    return st;
}

/* ---- the answer ---- */

bool embeddings_keep(struct exchange *x, uint32_t index, const float *v, uint32_t dim) {
    CHECK(index < x->request.base.n_inputs && (x->vectors == NULL || dim == x->dim));
    if (x->vectors == NULL) x->vectors = malloc((size_t)x->request.base.n_inputs * dim * sizeof *v);
    if (x->vectors == NULL) return false;
    x->dim = dim;
    memcpy(x->vectors + (size_t)index * dim, v, dim * sizeof *v);
    return true;
}

static bool add(struct exchange *x, const char *bytes, size_t n) {
    return chain_append_spare(&x->content, &x->server->connections.chunks, bytes, n);
}

static bool add_text(struct exchange *x, const char *text) {
    return add(x, text, strlen(text));
}

/* Nine digits give each F32 back exactly. */
static size_t write_numbers(char *out, const float *v, uint32_t n, bool first) {
    size_t at = 0;
    for (uint32_t i = 0; i < n; i++)
        at += (size_t)snprintf(out + at, 24, first && i == 0 ? "%.9g" : ",%.9g", (double)v[i]);
    return at;
}

/* RFC 4648, of the bytes of n floats. */
static size_t write_base64(char *out, const float *v, uint32_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint8_t bytes[4 * FLOATS_PER_PIECE + 2] = {0};
    const size_t n_bytes = 4 * (size_t)n;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &v[i], sizeof bits);
        for (size_t k = 0; k < 4; k++) bytes[4 * i + k] = (uint8_t)(bits >> 8 * k);
    }
    size_t at = 0;
    for (size_t i = 0; i < n_bytes; i += 3) {
        const uint32_t word = (uint32_t)bytes[i] << 16 | (uint32_t)bytes[i + 1] << 8 | bytes[i + 2];
        const size_t left = n_bytes - i;
        out[at++] = digits[word >> 18];
        out[at++] = digits[word >> 12 & 63];
        out[at++] = left > 1 ? digits[word >> 6 & 63] : '=';
        out[at++] = left > 2 ? digits[word & 63] : '=';
    }
    return at;
}

static bool write_vector(struct exchange *x, const float *v) {
    char piece[PIECE_BYTES];
    bool ok = true;
    for (uint32_t i = 0; ok && i < x->dim; i += FLOATS_PER_PIECE) {
        const uint32_t n = x->dim - i < FLOATS_PER_PIECE ? x->dim - i : FLOATS_PER_PIECE;
        ok = add(x, piece,
                 x->request.base64 ? write_base64(piece, v + i, n)
                                   : write_numbers(piece, v + i, n, i == 0));
    }
    return ok;
}

static bool write_tail(struct exchange *x) {
    char mem[2048];
    struct buffer b;
    struct json_writer j;
    buffer_init_fixed(&b, mem, sizeof mem);
    buffer_puts(&b, "],\"model\":");
    json_write_begin(&j, &b);
    json_write_string(&j,
                      x->request.base.by_model ? x->server->model_name : x->server->encoder_name);
    buffer_printf(&b, ",\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u}}",
                  x->usage.prompt_tokens, x->usage.prompt_tokens);
    CHECK(!b.full);
    return add(x, b.data, b.len);
}

bool embeddings_write(struct exchange *x, struct chore *chore) {
    const bool base64 = x->request.base64;
    bool ok = add_text(x, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; ok && i < x->request.base.n_inputs; i++) {
        char head[96];
        snprintf(head, sizeof head, "%s{\"object\":\"embedding\",\"index\":%u,\"embedding\":%c",
                 i > 0 ? "," : "", i, base64 ? '"' : '[');
        ok = add_text(x, head) && write_vector(x, x->vectors + (size_t)i * x->dim) &&
             add_text(x, base64 ? "\"}" : "]}");
        if (chore_checkpoint(chore)) return false;
    }
    return ok && write_tail(x);
}
