#include "models/jinja_value.h"

#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "models/jinja_internal.h"

int jinja_float_repr(double f, char out[40]) {
    if (isnan(f)) return snprintf(out, 40, "nan");
    if (isinf(f)) return snprintf(out, 40, f < 0 ? "-inf" : "inf");
    char text[40];
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, f);
        if (strtod(text, NULL) == f) break;
    }
    /* text is d.ddde+XX: Python writes exponents of -4 to 15 as plain decimals. */
    int exponent = atoi(strchr(text, 'e') + 1), n = 0, digits = 0;
    char mantissa[24] = {0};
    const char *p = text;
    if (*p == '-') out[n++] = *p++;
    for (; *p != 'e'; p++) {
        if (*p != '.') mantissa[digits++] = *p;
    }
    if (exponent < -4 || exponent >= 16) {
        out[n++] = mantissa[0];
        if (digits > 1) {
            out[n++] = '.';
            memcpy(out + n, mantissa + 1, (size_t)digits - 1);
            n += digits - 1;
        }
        return n + snprintf(out + n, (size_t)(40 - n), "e%c%02d", exponent < 0 ? '-' : '+',
                            abs(exponent));
    }
    if (exponent < 0) {
        out[n++] = '0';
        out[n++] = '.';
        for (int i = -1; i > exponent; i--) out[n++] = '0';
        memcpy(out + n, mantissa, (size_t)digits);
        n += digits;
    } else {
        for (int i = 0; i <= exponent || i < digits; i++) {
            if (i == exponent + 1) out[n++] = '.';
            out[n++] = i < digits ? mantissa[i] : '0';
        }
        if (digits <= exponent + 1) {
            out[n++] = '.';
            out[n++] = '0';
        }
    }
    out[n] = '\0';
    return n;
}

static bool put_int(struct jinja_sb *sb, int64_t i, bool from_user) {
    char text[24];
    int n = snprintf(text, sizeof text, "%lld", (long long)i);
    return jinja_sb_put(sb, text, (size_t)n, from_user);
}

static bool put_float(struct jinja_sb *sb, double f, bool from_user) {
    char text[40];
    int n = jinja_float_repr(f, text);
    return jinja_sb_put(sb, text, (size_t)n, from_user);
}

static bool put_cstr(struct jinja_sb *sb, const char *s, bool from_user) {
    return jinja_sb_put(sb, s, strlen(s), from_user);
}

/* ---- repr ---- */

/* Quotes and punctuation belong to whoever made the container around them. */
static bool repr_str(struct jinja_sb *sb, const struct jinja_string *s, bool from_user) {
    bool has_single = memchr(s->data, '\'', s->len) != NULL;
    char quote = has_single && !memchr(s->data, '"', s->len) ? '"' : '\'';
    struct jinja_taint taint = {.s = s};
    if (!jinja_sb_put(sb, &quote, 1, from_user)) return false;
    for (uint32_t i = 0, len; i < s->len; i += len) {
        uint32_t cp, plain = i;
        char esc[16];
        while (plain < s->len && s->data[plain] >= 32 && s->data[plain] < 127 &&
               s->data[plain] != quote && s->data[plain] != '\\') {
            plain++;
        }
        if (plain > i) {
            if (!jinja_sb_sub(sb, s, i, plain)) return false;
            len = plain - i;
            continue;
        }
        len = jinja_utf8(s->data + i, &cp);
        bool user = jinja_taint_at(&taint, i);
        if (cp == (uint32_t)quote || cp == '\\') {
            snprintf(esc, sizeof esc, "\\%c", (char)cp);
        } else if (cp == '\n' || cp == '\r' || cp == '\t') {
            snprintf(esc, sizeof esc, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
        } else if (cp >= 127 && jinja_is_printable(cp)) {
            if (!jinja_sb_put(sb, s->data + i, len, user)) return false;
            continue;
        } else {
            snprintf(esc, sizeof esc,
                     cp < 0x100     ? "\\x%02x"
                     : cp < 0x10000 ? "\\u%04x"
                                    : "\\U%08x",
                     cp);
        }
        if (!put_cstr(sb, esc, user)) return false;
    }
    return jinja_sb_put(sb, &quote, 1, from_user);
}

static bool repr(struct jinja_sb *sb, struct jinja_value v, bool in_user, unsigned depth);

static bool repr_list(struct jinja_sb *sb, struct jinja_value v, const char *open,
                      const char *close, unsigned depth) {
    const struct jinja_list *l = v.u.list;
    if (!put_cstr(sb, open, v.from_user)) return false;
    for (uint32_t i = 0; i < l->n; i++) {
        if (i && !put_cstr(sb, ", ", v.from_user)) return false;
        if (!repr(sb, l->items[i], v.from_user, depth + 1)) return false;
    }
    if (v.kind == JINJA_TUPLE && l->n == 1 && !put_cstr(sb, ",", v.from_user)) return false;
    return put_cstr(sb, close, v.from_user);
}

static bool repr_dict(struct jinja_sb *sb, struct jinja_value v, unsigned depth) {
    const struct jinja_dict *d = v.u.dict;
    if (!put_cstr(sb, "{", v.from_user)) return false;
    for (uint32_t i = 0; i < d->n; i++) {
        if (i && !put_cstr(sb, ", ", v.from_user)) return false;
        if (!repr(sb, d->entries[i].key, v.from_user, depth + 1)) return false;
        if (!put_cstr(sb, ": ", v.from_user)) return false;
        if (!repr(sb, d->entries[i].value, v.from_user, depth + 1)) return false;
    }
    return put_cstr(sb, "}", v.from_user);
}

static bool repr(struct jinja_sb *sb, struct jinja_value v, bool in_user, unsigned depth) {
    static const char *const views[] = {"dict_keys([", "dict_values([", "dict_items(["};
    char text[100];
    if (depth > JINJA_MAX_NESTING) {
        return jinja_fail(sb->c, STATUS_TOO_LARGE, "value nested too deeply to print");
    }
    if (!jinja_work(sb->c, 1)) return false;
    switch ((enum jinja_kind)v.kind) {
    case JINJA_ABSENT:
    case JINJA_UNDEFINED:
        return put_cstr(sb, "Undefined", false);
    case JINJA_NONE:
        return put_cstr(sb, "None", v.from_user);
    case JINJA_BOOL:
        return put_cstr(sb, v.u.b ? "True" : "False", v.from_user);
    case JINJA_INT:
        return put_int(sb, v.u.i, v.from_user);
    case JINJA_FLOAT:
        return put_float(sb, v.u.f, v.from_user);
    case JINJA_STRING:
        return repr_str(sb, v.u.s, in_user);
    case JINJA_LIST:
        return repr_list(sb, v, "[", "]", depth);
    case JINJA_TUPLE:
        return repr_list(sb, v, "(", ")", depth);
    case JINJA_VIEW:
        return repr_list(sb, v, views[v.u.list->view], "])", depth);
    case JINJA_DICT:
        return repr_dict(sb, v, depth);
    case JINJA_NAMESPACE:
        return put_cstr(sb, "<Namespace ", false) && repr_dict(sb, v, depth) &&
               put_cstr(sb, ">", false);
    case JINJA_RANGE: {
        const struct jinja_range *r = v.u.range;
        int n = snprintf(text, sizeof text, "range(%lld, %lld", (long long)r->start,
                         (long long)r->stop);
        if (r->step != 1) {
            n += snprintf(text + n, sizeof text - (size_t)n, ", %lld", (long long)r->step);
        }
        return jinja_sb_put(sb, text, (size_t)n, v.from_user) && put_cstr(sb, ")", v.from_user);
    }
    default:
        snprintf(text, sizeof text, "<%s object>", jinja_type_name(v));
        return put_cstr(sb, text, false);
    }
}

bool jinja_repr(struct jinja_sb *sb, struct jinja_value v) {
    return repr(sb, v, false, 0);
}

bool jinja_sb_value(struct jinja_sb *sb, struct jinja_value v) {
    if (v.kind == JINJA_STRING) return jinja_sb_str(sb, v.u.s);
    if (v.kind == JINJA_UNDEFINED) return true;
    return repr(sb, v, false, 0);
}

bool jinja_to_string(struct jinja_ctx *c, struct jinja_value v, struct jinja_value *out) {
    if (v.kind == JINJA_STRING) {
        *out = v;
        return true;
    }
    struct jinja_sb sb;
    jinja_sb_init(&sb, c);
    return jinja_sb_value(&sb, v) && jinja_sb_finish(&sb, out);
}

/* ---- JSON ---- */

struct json_writer {
    struct jinja_sb *sb;
    const struct jinja_json_style *style;
    struct jinja_string *item, *key; /* separators */
    bool pretty;
};

static bool json_str(struct json_writer *w, const struct jinja_string *s, bool from_user) {
    struct jinja_taint taint = {.s = s};
    if (!jinja_sb_put(w->sb, "\"", 1, from_user)) return false;
    for (uint32_t i = 0, len; i < s->len; i += len) {
        static const char named[] = "\"\\\n\r\t\f\b", letters[] = "\"\\nrtfb";
        uint32_t cp, plain = i;
        char esc[16];
        while (plain < s->len && (unsigned char)s->data[plain] >= 32 && s->data[plain] != '"' &&
               s->data[plain] != '\\' &&
               (!w->style->ensure_ascii || (unsigned char)s->data[plain] < 127)) {
            plain++;
        }
        if (plain > i) {
            if (!jinja_sb_sub(w->sb, s, i, plain)) return false;
            len = plain - i;
            continue;
        }
        len = jinja_utf8(s->data + i, &cp);
        bool user = jinja_taint_at(&taint, i);
        const char *p = cp && cp < 128 ? strchr(named, (int)cp) : NULL;
        if (p) {
            snprintf(esc, sizeof esc, "\\%c", letters[p - named]);
        } else if (cp < 0x10000) {
            snprintf(esc, sizeof esc, "\\u%04x", cp);
        } else {
            snprintf(esc, sizeof esc, "\\u%04x\\u%04x", 0xD7C0 + (cp >> 10), 0xDC00 + (cp & 0x3FF));
        }
        if (!put_cstr(w->sb, esc, user)) return false;
    }
    return jinja_sb_put(w->sb, "\"", 1, from_user);
}

static bool json_newline(struct json_writer *w, unsigned depth, bool from_user) {
    if (!w->pretty) return true;
    if (!jinja_sb_put(w->sb, "\n", 1, from_user)) return false;
    for (unsigned i = 0; i < depth; i++) {
        struct jinja_value in = w->style->indent;
        if (in.kind == JINJA_STRING) {
            if (!jinja_sb_str(w->sb, in.u.s)) return false;
            continue;
        }
        for (int64_t k = 0; k < jinja_as_int(in); k++) {
            if (!jinja_work(w->sb->c, 1) || !jinja_sb_put(w->sb, " ", 1, from_user)) return false;
        }
    }
    return true;
}

static bool json_number(struct json_writer *w, struct jinja_value v) {
    if (v.kind == JINJA_BOOL) return put_cstr(w->sb, v.u.b ? "true" : "false", v.from_user);
    if (v.kind == JINJA_INT) return put_int(w->sb, v.u.i, v.from_user);
    if (isnan(v.u.f)) return put_cstr(w->sb, "NaN", v.from_user);
    if (isinf(v.u.f)) return put_cstr(w->sb, v.u.f < 0 ? "-Infinity" : "Infinity", v.from_user);
    return put_float(w->sb, v.u.f, v.from_user);
}

static bool json_key(struct json_writer *w, struct jinja_value k, bool in_user) {
    if (k.kind == JINJA_STRING) return json_str(w, k.u.s, in_user);
    if (!jinja_is_number(k) && k.kind != JINJA_NONE) {
        return jinja_fail(w->sb->c, STATUS_TEMPLATE,
                          "keys must be str, int, float, bool or None, not %s", jinja_type_name(k));
    }
    return jinja_sb_put(w->sb, "\"", 1, in_user) &&
           (k.kind == JINJA_NONE ? put_cstr(w->sb, "null", k.from_user) : json_number(w, k)) &&
           jinja_sb_put(w->sb, "\"", 1, in_user);
}

/* The dict's entries in key order. */
static bool sorted_entries(struct jinja_ctx *c, const struct jinja_dict *d,
                           struct jinja_entry **out) {
    struct jinja_value keys, places;
    if (!jinja_list_new(c, JINJA_LIST, d->n, &keys) ||
        !jinja_list_new(c, JINJA_LIST, d->n, &places)) {
        return false;
    }
    *out = jinja_alloc(c, (d->n + 1) * sizeof **out);
    if (!*out) return false;
    for (uint32_t i = 0; i < d->n; i++) {
        keys.u.list->items[i] = d->entries[i].key;
        places.u.list->items[i] = jinja_int(i);
    }
    if (!jinja_sort(c, places.u.list->items, keys.u.list->items, d->n, false)) return false;
    for (uint32_t i = 0; i < d->n; i++) (*out)[i] = d->entries[places.u.list->items[i].u.i];
    return true;
}

static bool json_value(struct json_writer *w, struct jinja_value v, bool in_user, unsigned depth) {
    struct jinja_sb *sb = w->sb;
    if (depth > JINJA_MAX_NESTING) {
        return jinja_fail(sb->c, STATUS_TOO_LARGE, "value nested too deeply for tojson");
    }
    if (!jinja_work(sb->c, 1)) return false;
    switch ((enum jinja_kind)v.kind) {
    case JINJA_NONE:
        return put_cstr(sb, "null", v.from_user);
    case JINJA_BOOL:
    case JINJA_INT:
    case JINJA_FLOAT:
        return json_number(w, v);
    case JINJA_STRING:
        return json_str(w, v.u.s, in_user);
    case JINJA_LIST:
    case JINJA_TUPLE: {
        const struct jinja_list *l = v.u.list;
        if (l->n == 0) return put_cstr(sb, "[]", v.from_user);
        if (!put_cstr(sb, "[", v.from_user)) return false;
        for (uint32_t i = 0; i < l->n; i++) {
            if (i && !jinja_sb_put(sb, w->item->data, w->item->len, v.from_user)) return false;
            if (!json_newline(w, depth + 1, v.from_user)) return false;
            if (!json_value(w, l->items[i], v.from_user, depth + 1)) return false;
        }
        return json_newline(w, depth, v.from_user) && put_cstr(sb, "]", v.from_user);
    }
    case JINJA_DICT: {
        const struct jinja_dict *d = v.u.dict;
        struct jinja_entry *entries = d->entries;
        if (d->n == 0) return put_cstr(sb, "{}", v.from_user);
        if (w->style->sort_keys && !sorted_entries(sb->c, d, &entries)) return false;
        if (!put_cstr(sb, "{", v.from_user)) return false;
        for (uint32_t i = 0; i < d->n; i++) {
            if (i && !jinja_sb_put(sb, w->item->data, w->item->len, v.from_user)) return false;
            if (!json_newline(w, depth + 1, v.from_user)) return false;
            if (!json_key(w, entries[i].key, v.from_user)) return false;
            if (!jinja_sb_put(sb, w->key->data, w->key->len, v.from_user)) return false;
            if (!json_value(w, entries[i].value, v.from_user, depth + 1)) return false;
        }
        return json_newline(w, depth, v.from_user) && put_cstr(sb, "}", v.from_user);
    }
    default:
        return jinja_fail(sb->c, STATUS_TEMPLATE, "Object of type %s is not JSON serializable",
                          jinja_type_name(v));
    }
}

bool jinja_to_json(struct jinja_sb *sb, struct jinja_value v,
                   const struct jinja_json_style *style) {
    struct json_writer w = {.sb = sb, .style = style};
    struct jinja_value item, key;
    w.pretty = style->indent.kind == JINJA_STRING || style->indent.kind == JINJA_INT ||
               style->indent.kind == JINJA_BOOL;
    if (!w.pretty && style->indent.kind != JINJA_NONE && style->indent.kind != JINJA_ABSENT) {
        return jinja_fail(sb->c, STATUS_TEMPLATE, "tojson: indent must be a number or a string");
    }
    if (style->separators.kind == JINJA_LIST || style->separators.kind == JINJA_TUPLE) {
        const struct jinja_list *l = style->separators.u.list;
        if (l->n != 2 || l->items[0].kind != JINJA_STRING || l->items[1].kind != JINJA_STRING) {
            return jinja_fail(sb->c, STATUS_TEMPLATE, "tojson: separators must be two strings");
        }
        item = l->items[0];
        key = l->items[1];
    } else if (!jinja_str(sb->c, ", ", w.pretty ? 1 : 2, false, &item) ||
               !jinja_str(sb->c, ": ", 2, false, &key)) {
        return false;
    }
    w.item = item.u.s;
    w.key = key.u.s;
    return json_value(&w, v, false, 0);
}

/* ---- s % args ---- */

struct spec {
    bool left, zero, plus, space, alt;
    int64_t width, precision; /* precision -1: none */
    char type;
};

static bool pad(struct jinja_sb *sb, const struct spec *f, const struct jinja_string *s) {
    int64_t fill = f->width - (int64_t)jinja_chars((struct jinja_string *)(uintptr_t)s);
    for (int64_t i = 0; !f->left && i < fill; i++) {
        if (!jinja_work(sb->c, 1) || !jinja_sb_put(sb, " ", 1, false)) return false;
    }
    if (!jinja_sb_str(sb, s)) return false;
    for (int64_t i = 0; f->left && i < fill; i++) {
        if (!jinja_work(sb->c, 1) || !jinja_sb_put(sb, " ", 1, false)) return false;
    }
    return true;
}

static bool percent_number(struct jinja_sb *sb, const struct spec *f, struct jinja_value v) {
    char c_fmt[32], text[512];
    int n = 0;
    bool real = strchr("eEfFgG", f->type) != NULL;
    if (!jinja_is_number(v) ||
        (f->type != 'd' && f->type != 'i' && f->type != 'u' && !real && v.kind == JINJA_FLOAT)) {
        return jinja_fail(sb->c, STATUS_TEMPLATE, "%%%c format: a number is required, not %s",
                          f->type, jinja_type_name(v));
    }
    if (f->width > 400 || f->precision > 60) {
        return jinja_fail(sb->c, STATUS_TOO_LARGE, "number format too wide");
    }
    c_fmt[n++] = '%';
    if (f->left) c_fmt[n++] = '-';
    if (f->zero) c_fmt[n++] = '0';
    if (f->plus) c_fmt[n++] = '+';
    if (f->space) c_fmt[n++] = ' ';
    if (f->alt) c_fmt[n++] = '#';
    snprintf(c_fmt + n, sizeof c_fmt - (size_t)n, "*.*%s%c", real ? "" : "ll",
             f->type == 'u' || f->type == 'i' ? 'd' : f->type);
    int width = (int)f->width, precision = (int)f->precision;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (real) {
        n = snprintf(text, sizeof text, c_fmt, width, precision, jinja_as_double(v));
    } else {
        if (v.kind == JINJA_FLOAT && !(fabs(v.u.f) < 9e18)) {
            return jinja_fail(sb->c, STATUS_TEMPLATE, "integer overflow");
        }
        long long i = v.kind == JINJA_FLOAT ? (long long)v.u.f : (long long)jinja_as_int(v);
        if (i < 0 && strchr("xXo", f->type)) {
            return jinja_fail(sb->c, STATUS_TEMPLATE, "negative number in a hex or octal format");
        }
        n = snprintf(text, sizeof text, c_fmt, width, precision, i);
    }
#pragma GCC diagnostic pop
    if (n < 0 || n >= (int)sizeof text) {
        return jinja_fail(sb->c, STATUS_TOO_LARGE, "number format too wide");
    }
    return jinja_sb_put(sb, text, (size_t)n, v.from_user);
}

static bool percent_one(struct jinja_sb *sb, const struct spec *f, struct jinja_value v) {
    struct jinja_value text;
    struct jinja_sb one;
    switch (f->type) {
    case 's':
    case 'r':
    case 'a':
        jinja_sb_init(&one, sb->c);
        if (!(f->type == 's' ? jinja_sb_value(&one, v) : jinja_repr(&one, v)) ||
            !jinja_sb_finish(&one, &text)) {
            return false;
        }
        if (f->precision >= 0 && f->precision < jinja_chars(text.u.s)) {
            struct jinja_value parts[3] = {jinja_none(), jinja_int(f->precision), jinja_none()};
            if (!jinja_get_slice(sb->c, text, parts, &text)) return false;
        }
        return pad(sb, f, text.u.s);
    case 'c':
        if (v.kind == JINJA_STRING && jinja_chars(v.u.s) == 1) return pad(sb, f, v.u.s);
        return jinja_fail(sb->c, STATUS_TEMPLATE, "%%c requires one character");
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        return percent_number(sb, f, v);
    default:
        return jinja_fail(sb->c, STATUS_TEMPLATE, "unsupported format character '%c'",
                          f->type >= 32 && f->type < 127 ? f->type : '?');
    }
}

bool jinja_percent(struct jinja_ctx *c, const struct jinja_string *s, struct jinja_value args,
                   struct jinja_value *out) {
    struct jinja_sb sb;
    struct jinja_list one = {.items = &args, .n = 1};
    const struct jinja_list *l = args.kind == JINJA_TUPLE ? args.u.list : &one;
    uint32_t used = 0, i = 0;
    bool named = false;
    jinja_sb_init(&sb, c);
    while (i < s->len) {
        const char *p = memchr(s->data + i, '%', s->len - i);
        uint32_t at = p ? (uint32_t)(p - s->data) : s->len;
        if (!jinja_sb_sub(&sb, s, i, at)) return false;
        i = at + 1;
        if (!p) break;
        if (i < s->len && s->data[i] == '%') {
            if (!jinja_sb_sub(&sb, s, i, i + 1)) return false;
            i++;
            continue;
        }
        struct spec f = {.precision = -1};
        struct jinja_value v = jinja_none();
        bool have = false;
        if (i < s->len && s->data[i] == '(') {
            const char *end = memchr(s->data + i, ')', s->len - i);
            if (!end || args.kind != JINJA_DICT) {
                return jinja_fail(c, STATUS_TEMPLATE, "format requires a mapping");
            }
            const struct jinja_value *item =
                jinja_dict_get_n(args.u.dict, s->data + i + 1, (size_t)(end - (s->data + i + 1)));
            if (!item) return jinja_fail(c, STATUS_TEMPLATE, "a key of the format is not there");
            v = *item;
            have = named = true;
            i = (uint32_t)(end - s->data) + 1;
        }
        for (; i < s->len && strchr("-0+ #", s->data[i]) && s->data[i]; i++) {
            f.left |= s->data[i] == '-';
            f.zero |= s->data[i] == '0';
            f.plus |= s->data[i] == '+';
            f.space |= s->data[i] == ' ';
            f.alt |= s->data[i] == '#';
        }
        for (; i < s->len && s->data[i] >= '0' && s->data[i] <= '9' && f.width < 100000000; i++) {
            f.width = f.width * 10 + (s->data[i] - '0');
        }
        if (i < s->len && s->data[i] == '.') {
            f.precision = 0;
            for (i++;
                 i < s->len && s->data[i] >= '0' && s->data[i] <= '9' && f.precision < 100000000;
                 i++) {
                f.precision = f.precision * 10 + (s->data[i] - '0');
            }
        }
        if (i >= s->len) return jinja_fail(c, STATUS_TEMPLATE, "incomplete format");
        f.type = s->data[i++];
        if (!have) {
            if (used >= l->n) {
                return jinja_fail(c, STATUS_TEMPLATE, "not enough arguments for format string");
            }
            v = l->items[used++];
        }
        if (!percent_one(&sb, &f, v)) return false;
    }
    if (!named && used < l->n && args.kind != JINJA_DICT && args.kind != JINJA_LIST &&
        args.kind != JINJA_RANGE && args.kind != JINJA_UNDEFINED) {
        return jinja_fail(c, STATUS_TEMPLATE,
                          "not all arguments converted during string formatting");
    }
    return jinja_sb_finish(&sb, out);
}
