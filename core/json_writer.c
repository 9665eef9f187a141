#include "core/json_writer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"

void json_write_begin(struct json_writer *j, struct buffer *out) {
    memset(j, 0, sizeof *j);
    j->out = out;
}

/* What comes before a value: a comma unless it is the first item or follows its key. */
static void lead(struct json_writer *j) {
    if (j->after_key) {
        j->after_key = false;
        return;
    }
    const uint64_t bit = UINT64_C(1) << j->depth;
    if (j->has_item & bit) buffer_putc(j->out, ',');
    j->has_item |= bit;
}

static void open(struct json_writer *j, char c) {
    lead(j);
    buffer_putc(j->out, c);
    CHECK(j->depth < 63);
    j->depth++;
    j->has_item &= ~(UINT64_C(1) << j->depth);
}

static void close(struct json_writer *j, char c) {
    CHECK(j->depth > 0);
    j->depth--;
    buffer_putc(j->out, c);
}

void json_write_object(struct json_writer *j) {
    open(j, '{');
}
void json_write_object_end(struct json_writer *j) {
    close(j, '}');
}
void json_write_array(struct json_writer *j) {
    open(j, '[');
}
void json_write_array_end(struct json_writer *j) {
    close(j, ']');
}

/* Length of the well-formed UTF-8 sequence at s (at most n bytes), or 0. */
static size_t utf8_sequence(const unsigned char *s, size_t n) {
    const unsigned char c = s[0];
    size_t len;
    uint32_t cp;
    if (c < 0x80) return 1;
    if (c >= 0xC2 && c <= 0xDF)
        len = 2, cp = c & 0x1Fu;
    else if (c >= 0xE0 && c <= 0xEF)
        len = 3, cp = c & 0x0Fu;
    else if (c >= 0xF0 && c <= 0xF4)
        len = 4, cp = c & 0x07u;
    else
        return 0;
    if (len > n) return 0;
    for (size_t i = 1; i < len; i++) {
        if ((s[i] & 0xC0) != 0x80) return 0;
        cp = cp << 6 | (s[i] & 0x3Fu);
    }
    if ((len == 3 && cp < 0x800) || (len == 4 && (cp < 0x10000 || cp > 0x10FFFF))) return 0;
    if (cp >= 0xD800 && cp <= 0xDFFF) return 0;
    return len;
}

static void quoted(struct json_writer *j, const char *text, size_t n) {
    const unsigned char *s = (const unsigned char *)text;
    buffer_putc(j->out, '"');
    size_t plain = 0, i = 0;
    while (i < n) {
        const unsigned char c = s[i];
        if (c >= 0x20 && c != '"' && c != '\\' && c < 0x80) {
            i++;
            continue;
        }
        const size_t len = c >= 0x80 ? utf8_sequence(s + i, n - i) : 0;
        if (len != 0) {
            i += len;
            continue;
        }
        buffer_append(j->out, text + plain, i - plain);
        switch (c) {
        case '"':
            buffer_puts(j->out, "\\\"");
            break;
        case '\\':
            buffer_puts(j->out, "\\\\");
            break;
        case '\n':
            buffer_puts(j->out, "\\n");
            break;
        case '\r':
            buffer_puts(j->out, "\\r");
            break;
        case '\t':
            buffer_puts(j->out, "\\t");
            break;
        default:
            if (c < 0x20)
                buffer_printf(j->out, "\\u%04x", c);
            else
                buffer_puts(j->out, "\xEF\xBF\xBD");
        }
        plain = ++i;
    }
    buffer_append(j->out, text + plain, n - plain);
    buffer_putc(j->out, '"');
}

void json_write_key(struct json_writer *j, const char *key) {
    lead(j);
    quoted(j, key, strlen(key));
    buffer_putc(j->out, ':');
    j->after_key = true;
}

void json_write_string(struct json_writer *j, const char *s) {
    json_write_string_n(j, s, strlen(s));
}

void json_write_string_n(struct json_writer *j, const char *s, size_t n) {
    lead(j);
    quoted(j, s, n);
}

void json_write_int(struct json_writer *j, int64_t v) {
    lead(j);
    buffer_printf(j->out, "%lld", (long long)v);
}

void json_write_uint(struct json_writer *j, uint64_t v) {
    lead(j);
    buffer_printf(j->out, "%llu", (unsigned long long)v);
}

void json_write_float(struct json_writer *j, float v) {
    lead(j);
    if (!isfinite(v)) {
        buffer_puts(j->out, "null");
        return;
    }
    char s[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(s, sizeof s, "%.*g", digits, (double)v);
        if (strtof(s, NULL) == v) break;
    }
    buffer_puts(j->out, s);
}

void json_write_double(struct json_writer *j, double v) {
    lead(j);
    if (!isfinite(v)) {
        buffer_puts(j->out, "null");
        return;
    }
    char s[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(s, sizeof s, "%.*g", digits, v);
        if (strtod(s, NULL) == v) break;
    }
    buffer_puts(j->out, s);
}

void json_write_bool(struct json_writer *j, bool v) {
    lead(j);
    buffer_puts(j->out, v ? "true" : "false");
}

void json_write_null(struct json_writer *j) {
    lead(j);
    buffer_puts(j->out, "null");
}

void json_write_raw(struct json_writer *j, const char *text, size_t n) {
    lead(j);
    buffer_append(j->out, text, n);
}
