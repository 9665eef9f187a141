#include "models/jinja_internal.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#define FILTER(name)                                                                               \
    static bool name(struct jinja_ctx *c, struct jinja_value *a, const struct jinja_args *args,    \
                     struct jinja_value *out)

/* ---- text ---- */

static bool cased(struct jinja_ctx *c, struct jinja_value v, enum jinja_case how,
                  struct jinja_value *out) {
    return jinja_to_string(c, v, &v) && jinja_change_case(c, v.u.s, how, out);
}

FILTER(f_upper) {
    (void)args;
    return cased(c, a[0], CASE_UPPER, out);
}
FILTER(f_lower) {
    (void)args;
    return cased(c, a[0], CASE_LOWER, out);
}
FILTER(f_title) {
    (void)args;
    return cased(c, a[0], CASE_JINJA_TITLE, out);
}
FILTER(f_capitalize) {
    (void)args;
    return cased(c, a[0], CASE_CAPITALIZE, out);
}
FILTER(f_string) {
    (void)args;
    return jinja_to_string(c, a[0], out);
}

FILTER(f_trim) {
    struct jinja_value s;
    (void)args;
    return jinja_to_string(c, a[0], &s) && jinja_strip(c, s.u.s, a[1], true, true, out);
}

FILTER(f_replace) {
    struct jinja_value s, old, with;
    int64_t count = -1;
    (void)args;
    if (a[3].kind != JINJA_ABSENT && a[3].kind != JINJA_NONE && !jinja_need_int(c, a[3], &count)) {
        return false;
    }
    return jinja_to_string(c, a[0], &s) && jinja_to_string(c, a[1], &old) &&
           jinja_to_string(c, a[2], &with) &&
           jinja_replace(c, s.u.s, old.u.s, with.u.s, count, out);
}

FILTER(f_escape) {
    struct jinja_value s;
    struct jinja_sb sb;
    (void)args;
    if (!jinja_to_string(c, a[0], &s)) return false;
    struct jinja_taint taint = {.s = s.u.s};
    jinja_sb_init(&sb, c);
    for (uint32_t i = 0; i < s.u.s->len; i++) {
        const char *p = &s.u.s->data[i];
        const char *with = *p == '&'    ? "&amp;"
                           : *p == '<'  ? "&lt;"
                           : *p == '>'  ? "&gt;"
                           : *p == '\'' ? "&#39;"
                           : *p == '"'  ? "&#34;"
                                        : NULL;
        if (!jinja_sb_put(&sb, with ? with : p, with ? strlen(with) : 1,
                          jinja_taint_at(&taint, i))) {
            return false;
        }
    }
    return jinja_sb_finish(&sb, out);
}

FILTER(f_indent) {
    struct jinja_value s, pad = a[1], lines;
    struct jinja_sb sb;
    int64_t width = 4;
    (void)args;
    struct jinja_string *text;
    if (!jinja_need_str(c, a[0], &text)) return false;
    if (pad.kind != JINJA_STRING) {
        if (pad.kind != JINJA_ABSENT && !jinja_need_int(c, pad, &width)) return false;
        jinja_sb_init(&sb, c);
        for (int64_t i = 0; i < width; i++) {
            if (!jinja_sb_put(&sb, " ", 1, false)) return false;
        }
        if (!jinja_sb_finish(&sb, &pad)) return false;
    }
    bool first = jinja_truth(a[2]), blank = jinja_truth(a[3]);
    if (!jinja_str(c, "\n", 1, false, &s) || !jinja_concat(c, text, s.u.s, &s) ||
        !jinja_splitlines(c, s.u.s, false, &lines)) {
        return false;
    }
    jinja_sb_init(&sb, c);
    for (uint32_t i = 0; i < lines.u.list->n; i++) {
        struct jinja_string *line = lines.u.list->items[i].u.s;
        bool indented = i == 0 ? first : blank || line->len;
        if (i && !jinja_sb_put(&sb, "\n", 1, false)) return false;
        if ((indented && !jinja_sb_str(&sb, pad.u.s)) || !jinja_sb_str(&sb, line)) return false;
    }
    return jinja_sb_finish(&sb, out);
}

FILTER(f_center) {
    struct jinja_value s[3] = {a[0], a[1], {.kind = JINJA_ABSENT}};
    uint16_t id = jinja_find_row(jinja_methods, "center", 6);
    if (s[1].kind == JINJA_ABSENT) s[1] = jinja_int(80);
    return jinja_to_string(c, a[0], &s[0]) && jinja_methods[id].fn(c, s, args, out);
}

FILTER(f_format) {
    struct jinja_value s, with;
    if (args->n_kw && args->n_pos) {
        return jinja_fail(c, STATUS_TEMPLATE,
                          "can't handle positional and keyword arguments at the same time");
    }
    if (!jinja_to_string(c, a[0], &s)) return false;
    if (args->n_kw) {
        if (!jinja_dict_new(c, &with)) return false;
        for (uint32_t i = 0; i < args->n_kw; i++) {
            if (!jinja_dict_set(c, with.u.dict, args->kw[i].key, args->kw[i].value)) return false;
        }
    } else {
        if (!jinja_list_new(c, JINJA_TUPLE, args->n_pos, &with)) return false;
        for (uint32_t i = 0; i < args->n_pos; i++) with.u.list->items[i] = args->pos[i];
        with.u.list->n = args->n_pos;
    }
    return jinja_percent(c, s.u.s, with, out);
}

FILTER(f_wordcount) {
    struct jinja_value s;
    int64_t n = 0;
    bool inside = false;
    (void)args;
    if (!jinja_to_string(c, a[0], &s)) return false;
    for (uint32_t i = 0, cp; i < s.u.s->len;) {
        i += jinja_utf8(s.u.s->data + i, &cp);
        bool word = cp == '_' || (cp >= '0' && cp <= '9') || jinja_is_alpha(cp);
        n += word && !inside;
        inside = word;
    }
    *out = jinja_int(n);
    return jinja_work(c, s.u.s->len / 16);
}

FILTER(f_truncate) {
    struct jinja_value s, end = a[3], cut;
    struct jinja_string *tail;
    int64_t length = 255, leeway = 5, n;
    (void)args;
    if (!jinja_length(c, a[0], &n)) return false;
    if (a[1].kind != JINJA_ABSENT && !jinja_need_int(c, a[1], &length)) return false;
    if (a[4].kind != JINJA_ABSENT && a[4].kind != JINJA_NONE && !jinja_need_int(c, a[4], &leeway)) {
        return false;
    }
    if (end.kind == JINJA_ABSENT && !jinja_str(c, "...", 3, false, &end)) return false;
    if (!jinja_need_str(c, end, &tail)) return false;
    if (length < jinja_chars(tail) || leeway < 0) {
        return jinja_fail(c, STATUS_TEMPLATE, "truncate: length is less than that of the end");
    }
    if (n <= length + leeway) {
        *out = a[0];
        return true;
    }
    struct jinja_string *text;
    if (!jinja_need_str(c, a[0], &text)) return false;
    s = a[0];
    struct jinja_value parts[3] = {jinja_none(), jinja_int(length - (int64_t)jinja_chars(tail)),
                                   jinja_none()};
    if (!jinja_get_slice(c, s, parts, &cut)) return false;
    if (!jinja_truth(a[2])) {
        uint32_t at = cut.u.s->len;
        while (at > 0 && cut.u.s->data[at - 1] != ' ') at--;
        if (at > 0 && !jinja_substr(c, cut.u.s, 0, at - 1, &cut)) return false;
    }
    return jinja_concat(c, cut.u.s, tail, out);
}

static bool quote(struct jinja_sb *sb, struct jinja_value v, bool query) {
    static const char hex[] = "0123456789ABCDEF";
    if (!jinja_to_string(sb->c, v, &v)) return false;
    struct jinja_taint taint = {.s = v.u.s};
    for (uint32_t i = 0; i < v.u.s->len; i++) {
        unsigned char ch = (unsigned char)v.u.s->data[i];
        char esc[3] = {'%', hex[ch >> 4], hex[ch & 15]};
        bool plain =
            (ch < 128 && isalnum(ch)) || (ch && strchr("_.-~", ch)) || (ch == '/' && !query);
        size_t n = plain || (query && ch == ' ') ? 1 : 3;
        if (n == 1) esc[0] = ch == ' ' ? '+' : (char)ch;
        if (!jinja_sb_put(sb, esc, n, jinja_taint_at(&taint, i))) return false;
    }
    return true;
}

FILTER(f_urlencode) {
    struct jinja_sb sb;
    struct jinja_list *l, *pair;
    (void)args;
    jinja_sb_init(&sb, c);
    if (a[0].kind == JINJA_DICT) {
        for (uint32_t i = 0; i < a[0].u.dict->n; i++) {
            const struct jinja_entry *e = &a[0].u.dict->entries[i];
            if ((i && !jinja_sb_puts(&sb, "&")) || !quote(&sb, e->key, true) ||
                !jinja_sb_puts(&sb, "=") || !quote(&sb, e->value, true)) {
                return false;
            }
        }
    } else if (a[0].kind == JINJA_LIST || a[0].kind == JINJA_TUPLE || a[0].kind == JINJA_VIEW ||
               a[0].kind == JINJA_GENERATOR) {
        if (!jinja_iterate(c, a[0], &l)) return false;
        for (uint32_t i = 0; i < l->n; i++) {
            if (!jinja_iterate(c, l->items[i], &pair)) return false;
            if (pair->n != 2) return jinja_fail(c, STATUS_TEMPLATE, "urlencode needs pairs");
            if ((i && !jinja_sb_puts(&sb, "&")) || !quote(&sb, pair->items[0], true) ||
                !jinja_sb_puts(&sb, "=") || !quote(&sb, pair->items[1], true)) {
                return false;
            }
        }
    } else if (!quote(&sb, a[0], false)) {
        return false;
    }
    return jinja_sb_finish(&sb, out);
}

FILTER(f_tojson) {
    struct jinja_json_style style = {.indent = a[2],
                                     .separators = a[3],
                                     .ensure_ascii = jinja_truth(a[1]),
                                     .sort_keys = jinja_truth(a[4])};
    struct jinja_sb sb;
    (void)args;
    jinja_sb_init(&sb, c);
    return jinja_to_json(&sb, a[0], &style) && jinja_sb_finish(&sb, out);
}

FILTER(f_join) {
    struct jinja_list *l;
    struct jinja_sb sb;
    struct jinja_value sep = a[1];
    (void)args;
    if (sep.kind != JINJA_ABSENT && !jinja_to_string(c, sep, &sep)) return false;
    if (a[2].kind != JINJA_ABSENT && a[2].kind != JINJA_NONE) {
        struct jinja_args map = {.kw = (struct jinja_entry[]){{.value = a[2]}}, .n_kw = 1};
        if (!jinja_str(c, "attribute", 9, false, &map.kw[0].key)) return false;
        uint16_t id = jinja_find_row(jinja_filters, "map", 3);
        if (!jinja_call_row(c, &jinja_filters[id], a[0], &map, &a[0])) return false;
    }
    if (!jinja_iterate(c, a[0], &l)) return false;
    jinja_sb_init(&sb, c);
    for (uint32_t i = 0; i < l->n; i++) {
        if (!jinja_work(c, 1)) return false;
        if ((i && sep.kind == JINJA_STRING && !jinja_sb_str(&sb, sep.u.s)) ||
            !jinja_sb_value(&sb, l->items[i])) {
            return false;
        }
    }
    return jinja_sb_finish(&sb, out);
}

FILTER(f_default) {
    (void)args;
    if (a[0].kind == JINJA_UNDEFINED || (jinja_truth(a[2]) && !jinja_truth(a[0]))) {
        if (a[1].kind == JINJA_ABSENT) return jinja_str(c, "", 0, false, out);
        *out = a[1];
    } else {
        *out = a[0];
    }
    return true;
}

FILTER(f_attr) {
    struct jinja_string *name;
    (void)args;
    if (!jinja_need_str(c, a[1], &name)) return false;
    if (a[0].kind == JINJA_DICT) {
        uint16_t id = jinja_find_row(jinja_methods, name->data, name->len);
        if (id == JINJA_NO_ID) {
            *out = jinja_undefined("'dict object' has no such attribute");
            return true;
        }
    }
    return jinja_get_attr(c, a[0], name, jinja_find_row(jinja_methods, name->data, name->len), out);
}

/* ---- numbers ---- */

FILTER(f_int) {
    char text[128];
    int64_t base = 10, i = 0;
    double f = 0;
    bool ok = false;
    (void)args;
    *out = a[1].kind == JINJA_ABSENT ? jinja_int(0) : a[1];
    if (a[2].kind != JINJA_ABSENT && !jinja_need_int(c, a[2], &base)) return false;
    if (base < 2 || base > 36) return jinja_fail(c, STATUS_TEMPLATE, "int() base must be 2 to 36");
    bool from_user = a[0].from_user;
    if (a[0].kind == JINJA_STRING) {
        from_user = a[0].u.s->n_spans != 0;
        if (!jinja_number_text(a[0].u.s, text)) return true;
        ok = jinja_parse_int(text, base, &i);
        if (!ok && !jinja_parse_float(text, &f)) return true;
    } else if (a[0].kind == JINJA_FLOAT) {
        f = a[0].u.f;
        if (isinf(f)) return jinja_fail(c, STATUS_TEMPLATE, "cannot convert infinity to integer");
    } else if (a[0].kind == JINJA_INT || a[0].kind == JINJA_BOOL) {
        i = jinja_as_int(a[0]);
        ok = true;
    } else {
        if (a[0].kind == JINJA_UNDEFINED) return jinja_fail_undefined(c, a[0]);
        return true;
    }
    if (!ok) {
        if (isnan(f) || isinf(f)) return true;
        if (!(fabs(f) < 9.2e18))
            return jinja_fail(c, STATUS_TEMPLATE, "integer overflow (64 bits)");
        i = (int64_t)f;
    }
    *out = jinja_int(i);
    out->from_user = from_user;
    return true;
}

FILTER(f_float) {
    char text[128];
    double f = 0;
    (void)args;
    *out = a[1].kind == JINJA_ABSENT ? jinja_float(0) : a[1];
    bool from_user = a[0].from_user;
    if (a[0].kind == JINJA_STRING) {
        from_user = a[0].u.s->n_spans != 0;
        if (!jinja_number_text(a[0].u.s, text) || !jinja_parse_float(text, &f)) return true;
    } else if (jinja_is_number(a[0])) {
        f = jinja_as_double(a[0]);
    } else {
        if (a[0].kind == JINJA_UNDEFINED) return jinja_fail_undefined(c, a[0]);
        return true;
    }
    *out = jinja_float(f);
    out->from_user = from_user;
    return true;
}

static bool need_number(struct jinja_ctx *c, struct jinja_value v) {
    if (jinja_is_number(v)) return true;
    if (v.kind == JINJA_UNDEFINED) return jinja_fail_undefined(c, v);
    return jinja_fail(c, STATUS_TEMPLATE, "expected a number, got %s", jinja_type_name(v));
}

FILTER(f_abs) {
    (void)args;
    if (!need_number(c, a[0])) return false;
    if (a[0].kind == JINJA_FLOAT) {
        *out = jinja_float(fabs(a[0].u.f));
    } else {
        int64_t i = jinja_as_int(a[0]);
        if (i == INT64_MIN) return jinja_fail(c, STATUS_TEMPLATE, "integer overflow (64 bits)");
        *out = jinja_int(i < 0 ? -i : i);
    }
    out->from_user = a[0].from_user;
    return true;
}

FILTER(f_round) {
    int64_t digits = 0;
    (void)args;
    if (!need_number(c, a[0])) return false;
    if (a[1].kind != JINJA_ABSENT && !jinja_need_int(c, a[1], &digits)) return false;
    bool from_user = a[0].from_user,
         common = a[2].kind == JINJA_ABSENT || jinja_is_str(a[2], "common");
    if (!common && !jinja_is_str(a[2], "ceil") && !jinja_is_str(a[2], "floor")) {
        return jinja_fail(c, STATUS_TEMPLATE, "method must be common, ceil or floor");
    }
    if (digits > 300) digits = 300;
    if (digits < -300) digits = -300;
    double v = jinja_as_double(a[0]), scale = pow(10, (double)(digits < 0 ? -digits : digits));
    if (!common) {
        double x = digits < 0 ? v / scale : v * scale;
        x = jinja_is_str(a[2], "ceil") ? ceil(x) : floor(x);
        *out = jinja_float(digits < 0 ? x * scale : x / scale);
    } else if (a[0].kind != JINJA_FLOAT) {
        int64_t i = jinja_as_int(a[0]);
        if (digits < 0) {
            /* To the nearest multiple, ties to the even one. */
            if (digits < -18) {
                i = 0;
            } else {
                int64_t m = (int64_t)scale, r = i % m, q = i / m;
                if (r < 0) {
                    r += m;
                    q--;
                }
                if (r > m - r || (r == m - r && (q & 1))) q++;
                if (__builtin_mul_overflow(q, m, &i)) {
                    return jinja_fail(c, STATUS_TEMPLATE, "integer overflow (64 bits)");
                }
            }
        }
        *out = jinja_int(i);
    } else if (digits >= 0 && isfinite(v)) {
        char text[700];
        snprintf(text, sizeof text, "%.*f", (int)digits, v);
        *out = jinja_float(strtod(text, NULL));
    } else {
        *out = jinja_float(isfinite(v) ? nearbyint(v / scale) * scale : v);
    }
    out->from_user = from_user;
    return true;
}

/* ---- sequences ---- */

static bool generator(struct jinja_ctx *c, struct jinja_value *out) {
    return jinja_list_new(c, JINJA_GENERATOR, 0, out);
}

FILTER(f_length) {
    int64_t n;
    (void)args;
    if (!jinja_length(c, a[0], &n)) return false;
    *out = jinja_int(n);
    return true;
}

FILTER(f_list) {
    struct jinja_list *l;
    struct jinja_value v;
    (void)args;
    if (!jinja_iterate(c, a[0], &l) || !jinja_list_new(c, JINJA_LIST, l->n, &v)) return false;
    for (uint32_t i = 0; i < l->n; i++) v.u.list->items[i] = l->items[i];
    v.u.list->n = l->n;
    v.from_user = a[0].from_user;
    *out = v;
    return jinja_work(c, l->n / 4);
}

FILTER(f_first) {
    struct jinja_list *l;
    (void)args;
    if (a[0].kind == JINJA_GENERATOR && a[0].u.list->at < a[0].u.list->n) {
        *out = a[0].u.list->items[a[0].u.list->at++];
        return true;
    }
    if (!jinja_iterate(c, a[0], &l)) return false;
    *out = l->n ? l->items[0] : jinja_undefined("No first item, sequence was empty.");
    return true;
}

FILTER(f_last) {
    struct jinja_list *l;
    (void)args;
    if (a[0].kind == JINJA_GENERATOR) {
        return jinja_fail(c, STATUS_TEMPLATE, "'generator' object is not reversible");
    }
    if (!jinja_iterate(c, a[0], &l)) return false;
    *out = l->n ? l->items[l->n - 1] : jinja_undefined("No last item, sequence was empty.");
    return true;
}

FILTER(f_reverse) {
    struct jinja_list *l;
    (void)args;
    if (a[0].kind == JINJA_STRING) {
        struct jinja_value parts[3] = {jinja_none(), jinja_none(), jinja_int(-1)};
        return jinja_get_slice(c, a[0], parts, out);
    }
    if (!jinja_iterate(c, a[0], &l) || !generator(c, out)) return false;
    for (uint32_t i = l->n; i-- > 0;) {
        if (!jinja_list_append(c, out->u.list, l->items[i])) return false;
    }
    return jinja_work(c, l->n / 4);
}

FILTER(f_items) {
    (void)args;
    if (a[0].kind == JINJA_UNDEFINED) return generator(c, out);
    if (a[0].kind != JINJA_DICT) {
        return jinja_fail(c, STATUS_TEMPLATE, "Can only get item pairs from a mapping.");
    }
    uint16_t id = jinja_find_row(jinja_methods, "items", 5);
    if (!jinja_methods[id].fn(c, a, args, out)) return false;
    out->kind = JINJA_GENERATOR;
    return true;
}

FILTER(f_sort) {
    struct jinja_value no = {.kind = JINJA_ABSENT};
    (void)args;
    return jinja_sorted(c, a[0], a[3], true, jinja_truth(a[2]), jinja_truth(a[1]), no, out);
}

FILTER(f_dictsort) {
    struct jinja_value pairs, no = {.kind = JINJA_ABSENT};
    int64_t at = 0;
    (void)args;
    if (a[2].kind != JINJA_ABSENT && !jinja_is_str(a[2], "key")) {
        if (!jinja_is_str(a[2], "value")) {
            return jinja_fail(c, STATUS_TEMPLATE,
                              "You can only sort by either \"key\" or \"value\"");
        }
        at = 1;
    }
    if (a[0].kind != JINJA_DICT) {
        if (a[0].kind == JINJA_UNDEFINED) return jinja_fail_undefined(c, a[0]);
        return jinja_fail(c, STATUS_TEMPLATE, "'%s object' has no attribute 'items'",
                          jinja_type_name(a[0]));
    }
    uint16_t id = jinja_find_row(jinja_methods, "items", 5);
    return jinja_methods[id].fn(c, a, args, &pairs) &&
           jinja_sorted(c, pairs, jinja_int(at), false, jinja_truth(a[1]), jinja_truth(a[3]), no,
                        out);
}

FILTER(f_unique) {
    struct jinja_list *l;
    struct jinja_value seen, key, r, no = {.kind = JINJA_ABSENT};
    (void)args;
    if (!jinja_iterate(c, a[0], &l) || !generator(c, &r) || !jinja_dict_new(c, &seen)) return false;
    for (uint32_t i = 0; i < l->n; i++) {
        if (!jinja_work(c, 1) || !jinja_key_of(c, l->items[i], a[2], jinja_truth(a[1]), no, &key)) {
            return false;
        }
        if (jinja_dict_get(seen.u.dict, key)) continue;
        if (!jinja_dict_set(c, seen.u.dict, key, jinja_none()) ||
            !jinja_list_append(c, r.u.list, l->items[i])) {
            return false;
        }
    }
    *out = r;
    return true;
}

static bool extreme(struct jinja_ctx *c, struct jinja_value *a, int sign, struct jinja_value *out) {
    struct jinja_list *l;
    struct jinja_value best = {0}, key, no = {.kind = JINJA_ABSENT};
    if (!jinja_iterate(c, a[0], &l)) return false;
    *out = jinja_undefined("No aggregated item, sequence was empty.");
    for (uint32_t i = 0; i < l->n; i++) {
        int r;
        if (!jinja_key_of(c, l->items[i], a[2], jinja_truth(a[1]), no, &key)) return false;
        if (i && !jinja_compare(c, key, best, sign < 0 ? "<" : ">", &r)) return false;
        if (i && r != sign) continue;
        best = key;
        *out = l->items[i];
    }
    return true;
}

FILTER(f_min) {
    (void)args;
    return extreme(c, a, -1, out);
}
FILTER(f_max) {
    (void)args;
    return extreme(c, a, 1, out);
}

FILTER(f_sum) {
    struct jinja_list *l;
    struct jinja_value r = a[2].kind == JINJA_ABSENT ? jinja_int(0) : a[2],
                       no = {.kind = JINJA_ABSENT};
    (void)args;
    if (!jinja_iterate(c, a[0], &l)) return false;
    if (r.kind == JINJA_STRING) {
        return jinja_fail(c, STATUS_TEMPLATE, "sum() can't sum strings [use ''.join(seq) instead]");
    }
    for (uint32_t i = 0; i < l->n; i++) {
        struct jinja_value v = l->items[i];
        if (a[1].kind != JINJA_ABSENT && a[1].kind != JINJA_NONE &&
            !jinja_attribute(c, v, a[1], no, &v)) {
            return false;
        }
        if (!jinja_work(c, 1) || !jinja_arith(c, OP_ADD, r, v, &r)) return false;
    }
    *out = r;
    return true;
}

FILTER(f_batch) {
    struct jinja_list *l;
    struct jinja_value r, row = {0};
    int64_t n;
    (void)args;
    if (!jinja_need_int(c, a[1], &n) || !jinja_iterate(c, a[0], &l) || !generator(c, &r))
        return false;
    for (uint32_t i = 0; i < l->n; i++) {
        if (i == 0 || (int64_t)row.u.list->n == n) {
            if (!jinja_list_new(c, JINJA_LIST, 0, &row) || !jinja_list_append(c, r.u.list, row)) {
                return false;
            }
        }
        if (!jinja_work(c, 1) || !jinja_list_append(c, row.u.list, l->items[i])) return false;
    }
    bool fill = a[2].kind != JINJA_ABSENT && a[2].kind != JINJA_NONE;
    while (l->n && fill && (int64_t)row.u.list->n < n) {
        if (!jinja_work(c, 1) || !jinja_list_append(c, row.u.list, a[2])) return false;
    }
    *out = r;
    return true;
}

FILTER(f_slice) {
    struct jinja_list *l;
    struct jinja_value r, row;
    int64_t n;
    (void)args;
    if (!jinja_need_int(c, a[1], &n) || !jinja_iterate(c, a[0], &l) || !generator(c, &r))
        return false;
    if (n == 0) return jinja_fail(c, STATUS_TEMPLATE, "integer division or modulo by zero");
    int64_t per = l->n / n, more = l->n % n, at = 0;
    for (int64_t s = 0; s < n; s++) {
        int64_t take = per + (s < more);
        if (!jinja_work(c, 1) || !jinja_list_new(c, JINJA_LIST, 0, &row)) return false;
        for (int64_t k = 0; k < take; k++) {
            if (!jinja_list_append(c, row.u.list, l->items[at++])) return false;
        }
        bool fill = a[2].kind != JINJA_ABSENT && a[2].kind != JINJA_NONE && s >= more;
        if ((fill && !jinja_list_append(c, row.u.list, a[2])) ||
            !jinja_list_append(c, r.u.list, row)) {
            return false;
        }
    }
    *out = r;
    return true;
}

FILTER(f_groupby) {
    struct jinja_value sorted, r, last = {0};
    struct jinja_list *group = NULL;
    bool cased_keys = jinja_truth(a[3]);
    (void)args;
    if (!jinja_sorted(c, a[0], a[1], false, cased_keys, false, a[2], &sorted) ||
        !jinja_list_new(c, JINJA_LIST, 0, &r)) {
        return false;
    }
    for (uint32_t i = 0; i < sorted.u.list->n; i++) {
        struct jinja_value item = sorted.u.list->items[i], key, shown, pair, members;
        bool same = false;
        if (!jinja_key_of(c, item, a[1], cased_keys, a[2], &key) ||
            (group && !jinja_equal(c, key, last, &same))) {
            return false;
        }
        if (!group || !same) {
            if (!jinja_key_of(c, item, a[1], true, a[2], &shown) ||
                !jinja_list_new(c, JINJA_TUPLE, 2, &pair) ||
                !jinja_list_new(c, JINJA_LIST, 0, &members) ||
                !jinja_list_append(c, pair.u.list, shown) ||
                !jinja_list_append(c, pair.u.list, members) ||
                !jinja_list_append(c, r.u.list, pair)) {
                return false;
            }
            pair.u.list->group = true;
            group = members.u.list;
            last = key;
        }
        if (!jinja_list_append(c, group, item)) return false;
    }
    *out = r;
    return true;
}

FILTER(f_map) {
    struct jinja_list *l;
    struct jinja_value r;
    if (!jinja_truth(a[0])) return generator(c, out); /* whatever it is */
    if (!jinja_iterate(c, a[0], &l) || !generator(c, &r)) return false;
    struct jinja_value path = {.kind = JINJA_ABSENT}, fallback = {.kind = JINJA_ABSENT};
    struct jinja_args rest = *args;
    if (args->n_pos == 0) {
        for (uint32_t i = 0; i < args->n_kw; i++) {
            if (jinja_is_str(args->kw[i].key, "attribute")) {
                path = args->kw[i].value;
            } else if (jinja_is_str(args->kw[i].key, "default")) {
                fallback = args->kw[i].value;
            } else {
                return jinja_fail(c, STATUS_TEMPLATE, "map: unexpected keyword argument");
            }
        }
        if (path.kind == JINJA_ABSENT) {
            return jinja_fail(c, STATUS_TEMPLATE, "map requires a filter argument");
        }
    } else {
        rest.pos++;
        rest.n_pos--;
    }
    for (uint32_t i = 0; i < l->n; i++) {
        struct jinja_value v;
        if (!jinja_work(c, 1)) return false;
        if (path.kind != JINJA_ABSENT ? !jinja_attribute(c, l->items[i], path, fallback, &v)
                                      : !jinja_call_named(c, jinja_filters, "filter", args->pos[0],
                                                          l->items[i], &rest, &v)) {
            return false;
        }
        if (!jinja_list_append(c, r.u.list, v)) return false;
    }
    *out = r;
    return true;
}

/* select, reject, selectattr, rejectattr: the first argument (an attribute), then a test. */
static bool choose(struct jinja_ctx *c, struct jinja_value *a, const struct jinja_args *args,
                   bool by_attribute, bool want, struct jinja_value *out) {
    struct jinja_list *l;
    struct jinja_value r, no = {.kind = JINJA_ABSENT};
    uint32_t used = by_attribute ? 1 : 0;
    if (!jinja_truth(a[0])) return generator(c, out); /* whatever it is */
    if (args->n_pos < used) {
        return jinja_fail(c, STATUS_TEMPLATE, "Missing parameter for attribute name");
    }
    bool has_test = args->n_pos > used;
    struct jinja_args rest = *args;
    if (args->n_pos) rest.pos += used + has_test;
    rest.n_pos -= used + has_test;
    if (!jinja_iterate(c, a[0], &l) || !generator(c, &r)) return false;
    for (uint32_t i = 0; i < l->n; i++) {
        struct jinja_value v = l->items[i];
        if (!jinja_work(c, 1)) return false;
        if (by_attribute && !jinja_attribute(c, v, args->pos[0], no, &v)) return false;
        if (has_test && !jinja_call_named(c, jinja_tests, "test", args->pos[used], v, &rest, &v)) {
            return false;
        }
        if (jinja_truth(v) == want && !jinja_list_append(c, r.u.list, l->items[i])) return false;
    }
    *out = r;
    return true;
}

FILTER(f_select) {
    return choose(c, a, args, false, true, out);
}
FILTER(f_reject) {
    return choose(c, a, args, false, false, out);
}
FILTER(f_selectattr) {
    return choose(c, a, args, true, true, out);
}
FILTER(f_rejectattr) {
    return choose(c, a, args, true, false, out);
}

const struct jinja_builtin_row jinja_filters[] = {
    {"tojson", "ensure_ascii indent separators sort_keys", 0, 0, f_tojson},
    {"trim", "chars", 0, 0, f_trim},
    {"length", "", 0, 0, f_length},
    {"count", "", 0, 0, f_length},
    {"default", "default_value boolean", 0, 0, f_default},
    {"d", "default_value boolean", 0, 0, f_default},
    {"join", "d attribute", 0, 0, f_join},
    {"upper", "", 0, 0, f_upper},
    {"lower", "", 0, 0, f_lower},
    {"title", "", 0, 0, f_title},
    {"capitalize", "", 0, 0, f_capitalize},
    {"replace", "old new count", 2, 0, f_replace},
    {"string", "", 0, 0, f_string},
    {"list", "", 0, 0, f_list},
    {"items", "", 0, 0, f_items},
    {"first", "", 0, 0, f_first},
    {"last", "", 0, 0, f_last},
    {"reverse", "", 0, 0, f_reverse},
    {"map", "*", 0, 0, f_map},
    {"select", "*", 0, 0, f_select},
    {"reject", "*", 0, 0, f_reject},
    {"selectattr", "*", 0, 0, f_selectattr},
    {"rejectattr", "*", 0, 0, f_rejectattr},
    {"sort", "reverse case_sensitive attribute", 0, 0, f_sort},
    {"dictsort", "case_sensitive by reverse", 0, 0, f_dictsort},
    {"unique", "case_sensitive attribute", 0, 0, f_unique},
    {"min", "case_sensitive attribute", 0, 0, f_min},
    {"max", "case_sensitive attribute", 0, 0, f_max},
    {"sum", "attribute start", 0, 0, f_sum},
    {"batch", "linecount fill_with", 1, 0, f_batch},
    {"slice", "slices fill_with", 1, 0, f_slice},
    {"groupby", "attribute default case_sensitive", 1, 0, f_groupby},
    {"int", "default base", 0, 0, f_int},
    {"float", "default", 0, 0, f_float},
    {"abs", "", 0, 0, f_abs},
    {"round", "precision method", 0, 0, f_round},
    {"indent", "width first blank", 0, 0, f_indent},
    {"center", "width", 0, 0, f_center},
    {"format", "*", 0, 0, f_format},
    {"wordcount", "", 0, 0, f_wordcount},
    {"truncate", "length killwords end leeway", 0, 0, f_truncate},
    {"escape", "", 0, 0, f_escape},
    {"e", "", 0, 0, f_escape},
    {"forceescape", "", 0, 0, f_escape},
    {"safe", "", 0, 0, f_string},
    {"urlencode", "", 0, 0, f_urlencode},
    {"attr", "name", 1, 0, f_attr},
    {NULL, NULL, 0, 0, NULL},
};
