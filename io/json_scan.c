#include "io/json_scan.h"

#include <stdlib.h>
#include <string.h>

enum state { OUTSIDE, INSIDE, ESCAPE, HEX };

void json_scan_init(struct json_scan *s, struct buffer *out) {
    memset(s, 0, sizeof *s);
    s->out = out;
}

void json_scan_free(struct json_scan *s) {
    free(s->longs);
    s->longs = NULL;
    s->n_longs = s->cap_longs = 0;
}

const char *json_scan_field(const struct json_scan *s, size_t at) {
    const char *name = "";
    for (uint32_t i = 0; i < s->n_fields && s->fields[i].at <= at; i++) name = s->fields[i].name;
    return name;
}

static enum status bad(const struct json_scan *s, struct error *e, const char *what) {
    const char *field = json_scan_field(s, s->out->len);
    return error_set(e, STATUS_INVALID, field, "the body is not valid JSON%s%s: %s at byte %zu",
                     field[0] != '\0' ? ", in " : "", field, what, s->at);
}

static enum status too_much(const struct json_scan *s, struct error *e, const char *what,
                            int limit) {
    const char *field = json_scan_field(s, s->out->len);
    return error_set(e, STATUS_INVALID, field, "the body has %s%s%s (the limit is %d)", what,
                     field[0] != '\0' ? " in " : "", field, limit);
}

static bool in_object(const struct json_scan *s) {
    return s->depth > 0 && (s->objects >> (s->depth - 1) & 1);
}

static enum status count_value(struct json_scan *s, struct error *e) {
    if (++s->n_values > JSON_MAX_VALUES) return too_much(s, e, "too many values", JSON_MAX_VALUES);
    return STATUS_OK;
}

static enum status outside(struct json_scan *s, char c, struct error *e) {
    const bool word = c != '\0' && strchr(" \t\n\r,:[]{}\"", c) == NULL;
    s->word = word ? s->word + 1 : 0;
    if (s->word > JSON_WORD_BYTES) return too_much(s, e, "too long a number", JSON_WORD_BYTES);
    switch (c) {
    case '"':
        s->state = INSIDE;
        s->key = s->expect_key;
        s->taken_out = s->has_nul = false;
        s->string_at = s->at + 1;
        s->string_out = s->out->len;
        s->surrogate = 0;
        break;
    case '{':
    case '[':
        if (s->depth == JSON_MAX_DEPTH) return too_much(s, e, "too deep a nesting", JSON_MAX_DEPTH);
        s->depth++;
        s->members[s->depth] = 0;
        s->objects &= ~(UINT64_C(1) << (s->depth - 1));
        if (c == '{') s->objects |= UINT64_C(1) << (s->depth - 1);
        s->expect_key = c == '{';
        buffer_putc(s->out, c);
        return count_value(s, e);
    case '}':
    case ']':
        if (s->depth == 0) return bad(s, e, "a bracket too many");
        s->depth--;
        s->expect_key = false;
        break;
    case ',':
        s->expect_key = in_object(s);
        if (s->expect_key && ++s->members[s->depth] >= JSON_MAX_MEMBERS)
            return too_much(s, e, "an object with too many members", JSON_MAX_MEMBERS);
        buffer_putc(s->out, c);
        return count_value(s, e);
    case ':':
        s->expect_key = false;
        break;
    case '\0':
        return bad(s, e, "a NUL byte");
    default:
        break;
    }
    buffer_putc(s->out, c);
    return STATUS_OK;
}

static enum status add_long(struct json_scan *s, struct error *e) {
    if (s->n_longs == s->cap_longs) {
        const uint32_t cap = s->cap_longs != 0 ? 2 * s->cap_longs : 16;
        struct json_long *longs = realloc(s->longs, cap * sizeof *longs);
        if (longs == NULL)
            return error_set(e, STATUS_NO_MEMORY, NULL, "no memory to read the body");
        s->longs = longs;
        s->cap_longs = cap;
    }
    s->longs[s->n_longs] = (struct json_long){s->string_at, s->at - s->string_at};
    s->out->len = s->string_out;
    buffer_printf(s->out, "\"\\u0000%u\"", s->n_longs++);
    return STATUS_OK;
}

static enum status string_end(struct json_scan *s, struct error *e) {
    if (s->surrogate != 0) return bad(s, e, "a lone surrogate");
    s->state = OUTSIDE;
    if (s->key) {
        if (s->depth == 1 && s->n_fields < JSON_MAX_FIELDS) {
            const char *name = s->out->data + s->string_out + 1;
            size_t n = s->out->full ? 0 : s->out->len - s->string_out - 1;
            if (n >= sizeof s->fields[0].name) n = sizeof s->fields[0].name - 1;
            memcpy(s->fields[s->n_fields].name, name, n);
            s->fields[s->n_fields].name[n] = '\0';
            s->fields[s->n_fields++].at = s->string_out;
        }
        s->expect_key = false;
    } else if (s->taken_out || s->has_nul) {
        return add_long(s, e);
    }
    buffer_putc(s->out, '"');
    return STATUS_OK;
}

/* One byte between quotes that is part of the text as sent. */
static enum status keep(struct json_scan *s, char c, struct error *e) {
    if (s->taken_out) return STATUS_OK;
    const size_t n = s->at - s->string_at;
    if (s->key) {
        if (n >= JSON_KEY_BYTES) return too_much(s, e, "too long a key", JSON_KEY_BYTES);
    } else if (n >= JSON_LONG_BYTES) {
        s->taken_out = true;
        return STATUS_OK;
    }
    buffer_putc(s->out, c);
    return STATUS_OK;
}

/* Bounds of the next continuation byte: no overlong forms, no surrogates, nothing above U+10FFFF
 * (Unicode, table 3-7). */
static bool utf8_lead(struct json_scan *s, unsigned char c) {
    s->utf8_low = 0x80;
    s->utf8_high = 0xBF;
    if (c >= 0xC2 && c <= 0xDF)
        s->utf8_left = 1;
    else if (c >= 0xE0 && c <= 0xEF)
        s->utf8_left = 2;
    else if (c >= 0xF0 && c <= 0xF4)
        s->utf8_left = 3;
    else
        return false;
    if (c == 0xE0) s->utf8_low = 0xA0;
    if (c == 0xED) s->utf8_high = 0x9F;
    if (c == 0xF0) s->utf8_low = 0x90;
    if (c == 0xF4) s->utf8_high = 0x8F;
    return true;
}

static enum status inside(struct json_scan *s, char ch, struct error *e) {
    const unsigned char c = (unsigned char)ch;
    if (s->utf8_left != 0) {
        if (c < s->utf8_low || c > s->utf8_high) return bad(s, e, "bytes that are not UTF-8");
        s->utf8_left--;
        s->utf8_low = 0x80;
        s->utf8_high = 0xBF;
        return keep(s, ch, e);
    }
    if (c == '\\') {
        s->state = ESCAPE;
        return keep(s, ch, e);
    }
    if (c == '"') return string_end(s, e);
    if (s->surrogate != 0) return bad(s, e, "a lone surrogate");
    if (c < 0x20) return bad(s, e, "a control character in a string");
    if (c >= 0x80 && !utf8_lead(s, c)) return bad(s, e, "bytes that are not UTF-8");
    return keep(s, ch, e);
}

static enum status escape(struct json_scan *s, char c, struct error *e) {
    if (c == 'u') {
        s->state = HEX;
        s->hex = 0;
        s->hex_left = 4;
        return keep(s, c, e);
    }
    if (s->surrogate != 0) return bad(s, e, "a lone surrogate");
    if (c == '\0' || strchr("\"\\/bfnrt", c) == NULL) return bad(s, e, "an unknown escape");
    s->state = INSIDE;
    return keep(s, c, e);
}

static enum status hex(struct json_scan *s, char c, struct error *e) {
    uint32_t digit;
    if (c >= '0' && c <= '9')
        digit = (uint32_t)(c - '0');
    else if (c >= 'a' && c <= 'f')
        digit = (uint32_t)(c - 'a') + 10;
    else if (c >= 'A' && c <= 'F')
        digit = (uint32_t)(c - 'A') + 10;
    else
        return bad(s, e, "an unknown escape");
    s->hex = s->hex << 4 | digit;
    if (--s->hex_left == 0) {
        const bool low = s->hex >= 0xDC00 && s->hex <= 0xDFFF;
        if (low != (s->surrogate != 0)) return bad(s, e, "a lone surrogate");
        s->surrogate = s->hex >= 0xD800 && s->hex <= 0xDBFF ? s->hex : 0;
        if (s->hex == 0) s->has_nul = true;
        s->state = INSIDE;
    }
    return keep(s, c, e);
}

/* The plain bytes at the start of the piece, which need no look at each other. */
static size_t plain_run(const struct json_scan *s, const char *bytes, size_t n) {
    if (s->state != INSIDE || !s->taken_out || s->utf8_left != 0 || s->surrogate != 0) return 0;
    size_t i = 0;
    for (; i < n; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        if (c < 0x20 || c >= 0x80 || c == '"' || c == '\\') break;
    }
    return i;
}

enum status json_scan_feed(struct json_scan *s, const char *bytes, size_t n, struct error *e) {
    for (size_t i = 0; i < n; i++) {
        const size_t run = plain_run(s, bytes + i, n - i);
        i += run;
        s->at += run;
        if (i == n) break;
        enum status st = STATUS_OK;
        switch ((enum state)s->state) {
        case OUTSIDE:
            st = outside(s, bytes[i], e);
            break;
        case INSIDE:
            st = inside(s, bytes[i], e);
            break;
        case ESCAPE:
            st = escape(s, bytes[i], e);
            break;
        case HEX:
            st = hex(s, bytes[i], e);
            break;
        }
        if (st != STATUS_OK) return st;
        s->at++;
    }
    if (s->out->full) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory to read the body");
    return STATUS_OK;
}

enum status json_scan_end(struct json_scan *s, struct error *e) {
    if (s->state != OUTSIDE || s->depth != 0) return bad(s, e, "it ends too early");
    if (s->n_values == 0) return bad(s, e, "it is not an object");
    return STATUS_OK;
}
