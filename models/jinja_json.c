#include "models/jinja_json.h"

#include <stdio.h>
#include <string.h>

static bool convert(struct jinja_ctx *c, const json_t *j, bool from_user, unsigned depth,
                    struct jinja_value *out) {
    if (depth > JINJA_MAX_NESTING) {
        return jinja_fail(c, STATUS_TOO_LARGE, "JSON nested more than %d deep", JINJA_MAX_NESTING);
    }
    if (!jinja_work(c, 1)) return false;
    *out = jinja_none();
    switch (json_typeof(j)) {
    case JSON_NULL:
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = jinja_bool(json_is_true(j));
        break;
    case JSON_INTEGER:
        *out = jinja_int(json_integer_value(j));
        break;
    case JSON_REAL:
        *out = jinja_float(json_real_value(j));
        break;
    case JSON_STRING:
        if (!jinja_str(c, json_string_value(j), json_string_length(j), from_user, out))
            return false;
        break;
    case JSON_ARRAY: {
        size_t n = json_array_size(j);
        if (n > UINT32_MAX / 64) return jinja_fail(c, STATUS_TOO_LARGE, "JSON array too long");
        if (!jinja_list_new(c, JINJA_LIST, (uint32_t)n, out)) return false;
        for (size_t i = 0; i < n; i++) {
            struct jinja_value v;
            if (!convert(c, json_array_get(j, i), from_user, depth + 1, &v)) return false;
            if (!jinja_list_append(c, out->u.list, v)) return false;
        }
        break;
    }
    case JSON_OBJECT: {
        if (!jinja_dict_new(c, out)) return false;
        const char *key;
        size_t n;
        json_t *item;
        json_object_keylen_foreach((json_t *)(uintptr_t)j, key, n, item) {
            struct jinja_value k, v;
            if (!jinja_str(c, key, n, from_user, &k)) return false;
            if (!convert(c, item, from_user, depth + 1, &v)) return false;
            if (!jinja_dict_set(c, out->u.dict, k, v)) return false;
        }
        break;
    }
    }
    out->from_user = from_user;
    return true;
}

bool jinja_from_json(struct jinja_ctx *c, const json_t *j, bool from_user,
                     struct jinja_value *out) {
    return convert(c, j, from_user, 0, out);
}

enum { PAUSE_BYTES = 16384 };

static bool is_too_deep(struct chore *chore, const char *text, size_t len) {
    unsigned depth = 0;
    bool in_string = false;
    size_t pause = PAUSE_BYTES;
    for (size_t i = 0; i < len; i++) {
        if (i >= pause) {
            if (chore != NULL) (void)chore_checkpoint(chore);
            pause = i + PAUSE_BYTES;
        }
        if (in_string) {
            if (text[i] == '\\') {
                i++;
            } else if (text[i] == '"') {
                in_string = false;
            }
        } else if (text[i] == '"') {
            in_string = true;
        } else if (text[i] == '[' || text[i] == '{') {
            if (++depth > JINJA_MAX_NESTING) return true;
        } else if ((text[i] == ']' || text[i] == '}') && depth) {
            depth--;
        }
    }
    return false;
}

struct reader {
    struct chore *chore;
    const char *text;
    size_t left;
};

/* The library asks for a KiB at a time: the place where a long text lets others run. A cancelled
 * chore reads as an end of the text, so the parser unwinds by itself. */
static size_t read_some(void *buffer, size_t cap, void *arg) {
    struct reader *r = arg;
    if (r->chore != NULL && chore_checkpoint(r->chore)) return 0;
    const size_t n = r->left < cap ? r->left : cap;
    memcpy(buffer, r->text, n);
    r->text += n;
    r->left -= n;
    return n;
}

json_t *jinja_json_load(struct chore *chore, const char *text, size_t len, json_error_t *e) {
    if (is_too_deep(chore, text, len)) {
        memset(e, 0, sizeof *e);
        snprintf(e->text, sizeof e->text, "nested more than %d deep", JINJA_MAX_NESTING);
        return NULL;
    }
    struct reader r = {chore, text, len};
    return json_load_callback(read_some, &r, JSON_DECODE_ANY | JSON_ALLOW_NUL, e);
}

bool jinja_from_json_text(struct jinja_ctx *c, const char *text, size_t len, bool from_user,
                          struct jinja_value *out) {
    json_error_t e;
    json_t *j = jinja_json_load(c->chore, text, len, &e);
    if (!j) return jinja_fail(c, STATUS_INVALID, "not JSON: %s (line %d)", e.text, e.line);
    bool ok = jinja_from_json(c, j, from_user, out);
    json_decref(j);
    return ok;
}
