#include "io/json_doc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "io/json_quote.h"

enum { PIECE_BYTES = 4096 };

enum status json_doc_yield(struct json_doc *d) {
    return d->chore != NULL && chore_checkpoint(d->chore) ? STATUS_GONE : STATUS_OK;
}

static enum status scan_body(struct json_doc *d, struct error *e) {
    const char *bytes;
    size_t n;
    for (size_t at = 0; (n = body_at(d->body, at, &bytes)) != 0; at += n) {
        if (n > PIECE_BYTES) n = PIECE_BYTES;
        enum status s = json_scan_feed(&d->scan, bytes, n, e);
        if (s != STATUS_OK) return s;
        if (json_doc_yield(d) != STATUS_OK) return error_set(e, STATUS_GONE, NULL, "cancelled");
    }
    return json_scan_end(&d->scan, e);
}

struct source {
    struct json_doc *d;
    size_t at;
    bool cancelled;
};

static size_t read_condensed(void *to, size_t n, void *arg) {
    struct source *src = arg;
    if (json_doc_yield(src->d) != STATUS_OK) {
        src->cancelled = true;
        return (size_t)-1;
    }
    const size_t left = src->d->condensed.len - src->at;
    if (n > left) n = left;
    memcpy(to, src->d->condensed.data + src->at, n);
    src->at += n;
    return n;
}

enum status json_doc_read(struct json_doc *d, const struct body *body, struct chore *chore,
                          struct error *e) {
    memset(d, 0, sizeof *d);
    d->body = body;
    d->chore = chore;
    buffer_init(&d->condensed, 2 * (size_t)BODY_MAX_BYTES);
    /* Room for all at once, touched as it is used: growing would copy. */
    d->condensed.data = malloc(body->bytes + 256);
    if (d->condensed.data != NULL) d->condensed.cap = body->bytes + 256;
    json_scan_init(&d->scan, &d->condensed);
    enum status s = scan_body(d, e);
    if (s != STATUS_OK) return s;
    struct source src = {.d = d};
    json_error_t why;
    d->root =
        json_load_callback(read_condensed, &src, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (src.cancelled) return error_set(e, STATUS_GONE, NULL, "cancelled");
    /* Where the heap ends, jansson may fail without a word. */
    if (d->root == NULL &&
        (json_error_code(&why) == json_error_out_of_memory || why.text[0] == '\0'))
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory to read the body");
    if (d->root == NULL) {
        const size_t at = why.position > 0 ? (size_t)why.position - 1 : 0;
        char text[120];
        /* What jansson quotes of the source may be anything: one printable line of it. */
        size_t n = 0;
        for (; why.text[n] != '\0' && n < sizeof text - 1; n++) {
            const char c = why.text[n];
            text[n] = c >= 0x20 && c < 0x7F ? c : '?';
        }
        text[n] = '\0';
        const char *field = json_scan_field(&d->scan, at);
        return error_set(e, STATUS_INVALID, field, "the body is not valid JSON%s%s: %s",
                         field[0] != '\0' ? ", in " : "", field, text);
    }
    if (!json_is_object(d->root))
        return error_set(e, STATUS_INVALID, NULL, "the body must be a JSON object");
    return STATUS_OK;
}

/* Frees a tree value by value, so that no single free takes long; the depth is bounded. */
static void let_go(struct json_doc *d, json_t *value) {
    if (value->refcount == 1) {
        if (json_is_array(value)) {
            for (size_t n = json_array_size(value); n > 0; n--) {
                json_t *last = json_incref(json_array_get(value, n - 1));
                (void)json_array_remove(value, n - 1);
                let_go(d, last);
            }
        } else if (json_is_object(value)) {
            const char *key;
            json_t *member;
            void *next;
            json_object_foreach_safe(value, next, key, member) {
                json_incref(member);
                (void)json_object_del(value, key);
                let_go(d, member);
            }
        }
        (void)json_doc_yield(d);
    }
    json_decref(value);
}

void json_doc_free(struct json_doc *d) {
    if (d->root != NULL) let_go(d, d->root);
    json_scan_free(&d->scan);
    buffer_free(&d->condensed);
    memset(d, 0, sizeof *d);
}

/* The source of a string that was taken out, or NULL. */
static const struct json_long *long_of(const struct json_doc *d, const json_t *string) {
    const char *s = json_string_value(string);
    if (json_string_length(string) < 2 || s[0] != '\0') return NULL;
    const unsigned long i = strtoul(s + 1, NULL, 10);
    CHECK(i < d->scan.n_longs);
    return &d->scan.longs[i];
}

bool json_doc_equals(const struct json_doc *d, const json_t *string, const char *text) {
    if (long_of(d, string) != NULL) return false;
    const size_t n = json_string_length(string);
    return n == strlen(text) && memcmp(json_string_value(string), text, n) == 0;
}

size_t json_doc_text_bytes(const struct json_doc *d, const json_t *string) {
    const struct json_long *l = long_of(d, string);
    return l != NULL ? l->bytes : json_string_length(string);
}

/* Undoes the escapes of a checked string, byte by byte, across pieces. */
struct unescape {
    uint8_t state; /* 0 plain, 1 after a backslash, 2.. hex digits so far + 2 */
    uint32_t hex, high;
    char *to;
};

static void put_utf8(struct unescape *u, uint32_t cp) {
    if (cp < 0x80) {
        *u->to++ = (char)cp;
    } else if (cp < 0x800) {
        *u->to++ = (char)(0xC0 | cp >> 6);
        *u->to++ = (char)(0x80 | (cp & 0x3F));
    } else if (cp < 0x10000) {
        *u->to++ = (char)(0xE0 | cp >> 12);
        *u->to++ = (char)(0x80 | (cp >> 6 & 0x3F));
        *u->to++ = (char)(0x80 | (cp & 0x3F));
    } else {
        *u->to++ = (char)(0xF0 | cp >> 18);
        *u->to++ = (char)(0x80 | (cp >> 12 & 0x3F));
        *u->to++ = (char)(0x80 | (cp >> 6 & 0x3F));
        *u->to++ = (char)(0x80 | (cp & 0x3F));
    }
}

static void unescape_byte(struct unescape *u, char c) {
    if (u->state == 0) {
        if (c == '\\')
            u->state = 1;
        else
            *u->to++ = c;
        return;
    }
    if (u->state == 1) {
        u->state = 0;
        switch (c) {
        case 'b':
            *u->to++ = '\b';
            break;
        case 'f':
            *u->to++ = '\f';
            break;
        case 'n':
            *u->to++ = '\n';
            break;
        case 'r':
            *u->to++ = '\r';
            break;
        case 't':
            *u->to++ = '\t';
            break;
        case 'u':
            u->state = 2, u->hex = 0;
            break;
        default:
            *u->to++ = c;
            break;
        }
        return;
    }
    const uint32_t digit = (uint32_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    u->hex = u->hex << 4 | digit;
    if (++u->state < 6) return;
    u->state = 0;
    if (u->hex >= 0xD800 && u->hex <= 0xDBFF)
        u->high = u->hex;
    else if (u->hex >= 0xDC00 && u->hex <= 0xDFFF)
        put_utf8(u, 0x10000 + ((u->high - 0xD800) << 10) + (u->hex - 0xDC00));
    else
        put_utf8(u, u->hex);
}

enum status json_doc_text(struct json_doc *d, const json_t *string, struct bump *arena,
                          struct text *out, struct error *e) {
    return json_doc_text_head(d, string, arena, SIZE_MAX, out, e);
}

static size_t cut(const char *text, size_t n, size_t most) {
    if (n <= most) return n;
    while (most > 0 && ((unsigned char)text[most] & 0xC0) == 0x80) most--;
    return most;
}

enum status json_doc_text_head(struct json_doc *d, const json_t *string, struct bump *arena,
                               size_t most, struct text *out, struct error *e) {
    enum { LONGEST = 4 }; /* bytes of one character */
    const struct json_long *l = long_of(d, string);
    size_t bytes = json_doc_text_bytes(d, string);
    const char *short_text = l == NULL ? json_string_value(string) : NULL;
    if (l == NULL)
        bytes = cut(short_text, bytes, most);
    else if (bytes > LONGEST && most < bytes - LONGEST)
        bytes = most + LONGEST;
    char *to = bump_take(arena, bytes + 1);
    *out = (struct text){0};
    if (to == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory to read the body");
    if (l == NULL) {
        memcpy(to, short_text, bytes);
        *out = (struct text){to, bytes};
        return STATUS_OK;
    }
    struct unescape u = {.to = to};
    const char *from;
    for (size_t done = 0; done < l->bytes && (size_t)(u.to - to) <= most;) {
        size_t n = body_at(d->body, l->at + done, &from);
        if (n > l->bytes - done) n = l->bytes - done;
        if (n > PIECE_BYTES) n = PIECE_BYTES;
        for (size_t i = 0; i < n && (size_t)(u.to - to) <= most; i++) unescape_byte(&u, from[i]);
        done += n;
        if (json_doc_yield(d) != STATUS_OK) return error_set(e, STATUS_GONE, NULL, "cancelled");
    }
    *out = (struct text){to, cut(to, (size_t)(u.to - to), most)};
    return STATUS_OK;
}

enum status json_doc_write_inner(struct json_doc *d, const json_t *string, struct buffer *out) {
    const struct json_long *l = long_of(d, string);
    if (l == NULL) {
        json_quote_inner(out, json_string_value(string), json_string_length(string));
        return STATUS_OK;
    }
    const char *from;
    for (size_t done = 0; done < l->bytes;) {
        size_t n = body_at(d->body, l->at + done, &from);
        if (n > l->bytes - done) n = l->bytes - done;
        if (n > PIECE_BYTES) n = PIECE_BYTES;
        buffer_append(out, from, n);
        done += n;
        if (json_doc_yield(d) != STATUS_OK) return STATUS_GONE;
    }
    return STATUS_OK;
}

static void write_real(double v, struct buffer *out) {
    char s[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(s, sizeof s, "%.*g", digits, v);
        if (strtod(s, NULL) == v) break;
    }
    buffer_puts(out, s);
    /* A real stays one: 1.0 must not come back as the integer 1. */
    if (strpbrk(s, ".e") == NULL) buffer_puts(out, ".0");
}

static enum status write_members(struct json_doc *d, const json_t *object, struct buffer *out) {
    const char *key;
    json_t *value;
    bool first = true;
    buffer_putc(out, '{');
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        if (!first) buffer_putc(out, ',');
        first = false;
        json_quote(out, key, strlen(key));
        buffer_putc(out, ':');
        if (json_doc_write(d, value, out) != STATUS_OK) return STATUS_GONE;
    }
    buffer_putc(out, '}');
    return STATUS_OK;
}

enum status json_doc_write(struct json_doc *d, const json_t *value, struct buffer *out) {
    enum status s = json_doc_yield(d);
    if (s != STATUS_OK) return s;
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return write_members(d, value, out);
    case JSON_ARRAY:
        buffer_putc(out, '[');
        for (size_t i = 0; i < json_array_size(value); i++) {
            if (i > 0) buffer_putc(out, ',');
            s = json_doc_write(d, json_array_get(value, i), out);
            if (s != STATUS_OK) return s;
        }
        buffer_putc(out, ']');
        break;
    case JSON_STRING:
        buffer_putc(out, '"');
        s = json_doc_write_inner(d, value, out);
        buffer_putc(out, '"');
        break;
    case JSON_INTEGER:
        buffer_printf(out, "%lld", (long long)json_integer_value(value));
        break;
    case JSON_REAL:
        write_real(json_real_value(value), out);
        break;
    case JSON_TRUE:
        buffer_puts(out, "true");
        break;
    case JSON_FALSE:
        buffer_puts(out, "false");
        break;
    case JSON_NULL:
        buffer_puts(out, "null");
        break;
    }
    return s;
}
