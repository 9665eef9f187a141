#include "models/jinja_internal.h"

#include <string.h>

#define METHOD(name)                                                                               \
    static bool name(struct jinja_ctx *c, struct jinja_value *a, const struct jinja_args *args,    \
                     struct jinja_value *out)

/* ---- searching; all linear, whatever the needle ---- */

static uint32_t chars_before(const struct jinja_string *s, uint32_t byte) {
    uint32_t n = 0;
    if (s->n_chars == s->len) return byte;
    for (uint32_t i = 0; i < byte; i++) n += (s->data[i] & 0xC0) != 0x80;
    return n;
}

static uint32_t byte_of(struct jinja_string *s, int64_t ch) {
    uint32_t at = 0, cp;
    if (ch >= jinja_chars(s)) return s->len;
    if (s->n_chars == s->len) return (uint32_t)ch;
    while (ch-- > 0) at += jinja_utf8(s->data + at, &cp);
    return at;
}

/* Optional start and end of find, count, startswith ... as bytes; false in *inside: out of range.
 */
static bool bounds(struct jinja_ctx *c, struct jinja_string *s, const struct jinja_value *a,
                   uint32_t *from, uint32_t *to, bool *inside) {
    int64_t n = jinja_chars(s), b[2] = {0, n};
    for (int i = 0; i < 2; i++) {
        if (a[i].kind == JINJA_ABSENT || a[i].kind == JINJA_NONE) continue;
        if (!jinja_need_int(c, a[i], &b[i])) return false;
        if (b[i] < 0) b[i] = b[i] < -n ? 0 : b[i] + n;
    }
    *inside = b[0] <= n && b[0] <= b[1];
    if (b[1] > n) b[1] = n;
    *from = *inside ? byte_of(s, b[0]) : 0;
    *to = *inside ? byte_of(s, b[1]) : 0;
    return jinja_work(c, s->len / 64);
}

static bool str_find(struct jinja_ctx *c, struct jinja_value *a, bool last, bool must,
                     struct jinja_value *out) {
    struct jinja_string *s = a[0].u.s, *needle;
    uint32_t from, to, at = UINT32_MAX;
    bool inside;
    if (!jinja_need_str(c, a[1], &needle) || !bounds(c, s, a + 2, &from, &to, &inside))
        return false;
    if (inside && needle->len == 0) {
        at = last ? to : from;
    } else if (inside && last) {
        if (!jinja_rfind(c, s, from, to, needle, &at)) return false;
    } else if (inside) {
        at = jinja_find(s, from, to, needle);
    }
    if (at == UINT32_MAX && must) return jinja_fail(c, STATUS_TEMPLATE, "substring not found");
    *out = jinja_int(at == UINT32_MAX ? -1 : (int64_t)chars_before(s, at));
    return true;
}

METHOD(m_find) {
    (void)args;
    return str_find(c, a, false, false, out);
}
METHOD(m_rfind) {
    (void)args;
    return str_find(c, a, true, false, out);
}
METHOD(m_index) {
    (void)args;
    return str_find(c, a, false, true, out);
}
METHOD(m_rindex) {
    (void)args;
    return str_find(c, a, true, true, out);
}

METHOD(m_count) {
    struct jinja_string *s = a[0].u.s, *needle;
    uint32_t from, to;
    int64_t n = 0;
    bool inside;
    (void)args;
    if (!jinja_need_str(c, a[1], &needle) || !bounds(c, s, a + 2, &from, &to, &inside))
        return false;
    if (inside && needle->len == 0) {
        n = chars_before(s, to) - chars_before(s, from) + 1;
    } else if (inside) {
        for (uint32_t at; (at = jinja_find(s, from, to, needle)) != UINT32_MAX; n++) {
            from = at + needle->len;
        }
    }
    *out = jinja_int(n);
    return true;
}

static bool affix(struct jinja_ctx *c, struct jinja_value *a, bool end, struct jinja_value *out) {
    struct jinja_string *s = a[0].u.s;
    uint32_t from, to;
    bool inside, yes = false;
    struct jinja_list one = {.items = &a[1], .n = 1};
    const struct jinja_list *l = a[1].kind == JINJA_TUPLE ? a[1].u.list : &one;
    if (!bounds(c, s, a + 2, &from, &to, &inside)) return false;
    for (uint32_t i = 0; i < l->n && !yes; i++) {
        struct jinja_string *x;
        if (!jinja_need_str(c, l->items[i], &x)) return false;
        yes = inside && x->len <= to - from &&
              memcmp(s->data + (end ? to - x->len : from), x->data, x->len) == 0;
    }
    *out = jinja_bool(yes);
    return true;
}

METHOD(m_startswith) {
    (void)args;
    return affix(c, a, false, out);
}
METHOD(m_endswith) {
    (void)args;
    return affix(c, a, true, out);
}

METHOD(m_removeprefix) {
    struct jinja_string *s = a[0].u.s, *x;
    (void)args;
    if (!jinja_need_str(c, a[1], &x)) return false;
    bool has = x->len <= s->len && memcmp(s->data, x->data, x->len) == 0;
    return jinja_substr(c, s, has ? x->len : 0, s->len, out);
}

METHOD(m_removesuffix) {
    struct jinja_string *s = a[0].u.s, *x;
    (void)args;
    if (!jinja_need_str(c, a[1], &x)) return false;
    bool has = x->len <= s->len && memcmp(s->data + s->len - x->len, x->data, x->len) == 0;
    return jinja_substr(c, s, 0, has ? s->len - x->len : s->len, out);
}

/* ---- stripping, splitting, joining ---- */

METHOD(m_strip) {
    (void)args;
    return jinja_strip(c, a[0].u.s, a[1], true, true, out);
}
METHOD(m_lstrip) {
    (void)args;
    return jinja_strip(c, a[0].u.s, a[1], true, false, out);
}
METHOD(m_rstrip) {
    (void)args;
    return jinja_strip(c, a[0].u.s, a[1], false, true, out);
}

static void reverse(struct jinja_list *l) {
    for (uint32_t i = 0; i + i + 1 < l->n; i++) {
        struct jinja_value v = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = v;
    }
}

static bool split(struct jinja_ctx *c, struct jinja_value *a, bool from_right,
                  struct jinja_value *out) {
    struct jinja_string *s = a[0].u.s, *sep;
    struct jinja_value v;
    int64_t max = -1;
    if (a[2].kind != JINJA_ABSENT && !jinja_need_int(c, a[2], &max)) return false;
    if (!jinja_work(c, s->len / 16) || !jinja_list_new(c, JINJA_LIST, 0, &v)) return false;
    struct jinja_list *l = v.u.list;
    if (a[1].kind == JINJA_ABSENT || a[1].kind == JINJA_NONE) {
        if (!(from_right ? jinja_rsplit_space(c, s, max, l) : jinja_split_space(c, s, max, l)))
            return false;
    } else {
        if (!jinja_need_str(c, a[1], &sep)) return false;
        if (sep->len == 0) return jinja_fail(c, STATUS_TEMPLATE, "empty separator");
        uint32_t from = 0, to = s->len, at;
        while (max < 0 || l->n < max) {
            if (from_right) {
                if (!jinja_rfind(c, s, 0, to, sep, &at)) return false;
            } else {
                at = jinja_find(s, from, to, sep);
            }
            if (at == UINT32_MAX) break;
            if (!jinja_piece(c, l, s, from_right ? at + sep->len : from, from_right ? to : at))
                return false;
            if (from_right) {
                to = at;
            } else {
                from = at + sep->len;
            }
        }
        if (!jinja_piece(c, l, s, from, to)) return false;
    }
    if (from_right) reverse(l);
    *out = v;
    return true;
}

METHOD(m_split) {
    (void)args;
    return split(c, a, false, out);
}
METHOD(m_rsplit) {
    (void)args;
    return split(c, a, true, out);
}

METHOD(m_splitlines) {
    (void)args;
    return jinja_splitlines(c, a[0].u.s, jinja_truth(a[1]), out);
}

static bool partition(struct jinja_ctx *c, struct jinja_value *a, bool last,
                      struct jinja_value *out) {
    struct jinja_string *s = a[0].u.s, *sep;
    struct jinja_value v;
    uint32_t at, cut[4];
    if (!jinja_need_str(c, a[1], &sep) || !jinja_work(c, s->len / 64)) return false;
    if (sep->len == 0) return jinja_fail(c, STATUS_TEMPLATE, "empty separator");
    if (last) {
        if (!jinja_rfind(c, s, 0, s->len, sep, &at)) return false;
    } else {
        at = jinja_find(s, 0, s->len, sep);
    }
    bool found = at != UINT32_MAX;
    cut[0] = 0;
    cut[1] = found ? at : last ? 0 : s->len;
    cut[2] = found ? at + sep->len : cut[1];
    cut[3] = s->len;
    if (!jinja_list_new(c, JINJA_TUPLE, 3, &v)) return false;
    for (int i = 0; i < 3; i++) {
        if (!jinja_piece(c, v.u.list, s, cut[i], cut[i + 1])) return false;
    }
    *out = v;
    return true;
}

METHOD(m_partition) {
    (void)args;
    return partition(c, a, false, out);
}
METHOD(m_rpartition) {
    (void)args;
    return partition(c, a, true, out);
}

METHOD(m_join) {
    struct jinja_list *l;
    struct jinja_sb sb;
    (void)args;
    if (a[1].kind == JINJA_UNDEFINED) return jinja_fail_undefined(c, a[1]);
    if (!jinja_iterate(c, a[1], &l)) return false;
    jinja_sb_init(&sb, c);
    for (uint32_t i = 0; i < l->n; i++) {
        if (l->items[i].kind != JINJA_STRING) {
            return jinja_fail(c, STATUS_TEMPLATE,
                              "sequence item %u: expected str instance, %s found", i,
                              jinja_type_name(l->items[i]));
        }
        if ((i && !jinja_sb_str(&sb, a[0].u.s)) || !jinja_sb_str(&sb, l->items[i].u.s))
            return false;
    }
    return jinja_sb_finish(&sb, out);
}

METHOD(m_replace) {
    struct jinja_string *old, *with;
    int64_t count = -1;
    (void)args;
    if (!jinja_need_str(c, a[1], &old) || !jinja_need_str(c, a[2], &with)) return false;
    if (a[3].kind != JINJA_ABSENT && !jinja_need_int(c, a[3], &count)) return false;
    return jinja_replace(c, a[0].u.s, old, with, count, out);
}

/* ---- case and classes ---- */

METHOD(m_upper) {
    (void)args;
    return jinja_change_case(c, a[0].u.s, CASE_UPPER, out);
}
METHOD(m_lower) {
    (void)args;
    return jinja_change_case(c, a[0].u.s, CASE_LOWER, out);
}
METHOD(m_title) {
    (void)args;
    return jinja_change_case(c, a[0].u.s, CASE_TITLE, out);
}
METHOD(m_capitalize) {
    (void)args;
    return jinja_change_case(c, a[0].u.s, CASE_CAPITALIZE, out);
}
METHOD(m_swapcase) {
    (void)args;
    return jinja_change_case(c, a[0].u.s, CASE_SWAP, out);
}

enum class { CLASS_DIGIT, CLASS_ALPHA, CLASS_ALNUM, CLASS_SPACE, CLASS_ASCII };

static bool all_of(struct jinja_ctx *c, const struct jinja_string *s, enum class k,
                   struct jinja_value *out) {
    bool ok = s->len != 0 || k == CLASS_ASCII;
    for (uint32_t i = 0, cp; i < s->len && ok;) {
        i += jinja_utf8(s->data + i, &cp);
        bool digit = cp >= '0' && cp <= '9';
        ok = k == CLASS_DIGIT   ? digit
             : k == CLASS_ALPHA ? jinja_is_alpha(cp)
             : k == CLASS_ALNUM ? digit || jinja_is_alpha(cp)
             : k == CLASS_SPACE ? jinja_is_space(cp)
                                : cp < 128;
    }
    *out = jinja_bool(ok);
    return jinja_work(c, s->len / 16);
}

METHOD(m_isdigit) {
    (void)args;
    return all_of(c, a[0].u.s, CLASS_DIGIT, out);
}
METHOD(m_isalpha) {
    (void)args;
    return all_of(c, a[0].u.s, CLASS_ALPHA, out);
}
METHOD(m_isalnum) {
    (void)args;
    return all_of(c, a[0].u.s, CLASS_ALNUM, out);
}
METHOD(m_isspace) {
    (void)args;
    return all_of(c, a[0].u.s, CLASS_SPACE, out);
}
METHOD(m_isascii) {
    (void)args;
    return all_of(c, a[0].u.s, CLASS_ASCII, out);
}

METHOD(m_isupper) {
    uint16_t id = jinja_find_row(jinja_tests, "upper", 5);
    return jinja_tests[id].fn(c, a, args, out);
}

METHOD(m_islower) {
    uint16_t id = jinja_find_row(jinja_tests, "lower", 5);
    return jinja_tests[id].fn(c, a, args, out);
}

/* ---- padding ---- */

static bool fill(struct jinja_sb *sb, const struct jinja_string *with, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (!jinja_sb_str(sb, with)) return false;
    }
    return true;
}

static bool justify(struct jinja_ctx *c, struct jinja_value *a, int side, struct jinja_value *out) {
    struct jinja_string *s = a[0].u.s, *with;
    struct jinja_value space = a[2];
    struct jinja_sb sb;
    int64_t width;
    if (space.kind == JINJA_ABSENT && !jinja_str(c, " ", 1, false, &space)) return false;
    if (!jinja_need_int(c, a[1], &width) || !jinja_need_str(c, space, &with)) return false;
    if (jinja_chars(with) != 1) {
        return jinja_fail(c, STATUS_TEMPLATE,
                          "The fill character must be exactly one character long");
    }
    int64_t pad = width - (int64_t)jinja_chars(s), left = 0;
    if (pad < 0) pad = 0;
    if (side > 0) left = pad;
    if (side == 0) left = pad / 2 + (pad & width & 1);
    jinja_sb_init(&sb, c);
    return fill(&sb, with, left) && jinja_sb_str(&sb, s) && fill(&sb, with, pad - left) &&
           jinja_sb_finish(&sb, out);
}

METHOD(m_ljust) {
    (void)args;
    return justify(c, a, -1, out);
}
METHOD(m_rjust) {
    (void)args;
    return justify(c, a, 1, out);
}
METHOD(m_center) {
    (void)args;
    return justify(c, a, 0, out);
}

METHOD(m_zfill) {
    struct jinja_string *s = a[0].u.s;
    struct jinja_value zero;
    struct jinja_sb sb;
    int64_t width;
    (void)args;
    if (!jinja_need_int(c, a[1], &width) || !jinja_str(c, "0", 1, false, &zero)) return false;
    uint32_t sign = s->len && (s->data[0] == '-' || s->data[0] == '+');
    jinja_sb_init(&sb, c);
    return jinja_sb_sub(&sb, s, 0, sign) && fill(&sb, zero.u.s, width - (int64_t)jinja_chars(s)) &&
           jinja_sb_sub(&sb, s, sign, s->len) && jinja_sb_finish(&sb, out);
}

/* ---- str.format: {} {0} {name} {a.b} {a[0]}, !r, !s; format specs are refused ---- */

static bool format_field(struct jinja_ctx *c, const struct jinja_string *s, uint32_t from,
                         uint32_t to, const struct jinja_args *args, uint32_t *next,
                         struct jinja_value *out) {
    uint32_t at = from;
    bool digits = true;
    while (at < to && s->data[at] != '.' && s->data[at] != '[') {
        digits &= s->data[at] >= '0' && s->data[at] <= '9';
        at++;
    }
    if (digits) {
        uint64_t i = 0;
        for (uint32_t k = from; k < at && i < 1000000; k++)
            i = i * 10 + (uint64_t)(s->data[k] - '0');
        if (at == from) i = (*next)++;
        if (i >= args->n_pos) {
            return jinja_fail(c, STATUS_TEMPLATE,
                              "Replacement index %llu out of range for positional args tuple",
                              (unsigned long long)i);
        }
        *out = args->pos[i];
    } else {
        bool found = false;
        for (uint32_t i = 0; i < args->n_kw && !found; i++) {
            const struct jinja_string *k = args->kw[i].key.u.s;
            found = k->len == at - from && memcmp(k->data, s->data + from, k->len) == 0;
            if (found) *out = args->kw[i].value;
        }
        if (!found) return jinja_fail(c, STATUS_TEMPLATE, "format: a named argument is missing");
    }
    while (at < to) {
        bool item = s->data[at++] == '[';
        uint32_t start = at;
        while (at < to && (item ? s->data[at] != ']' : s->data[at] != '.' && s->data[at] != '['))
            at++;
        struct jinja_value key;
        if (!jinja_substr(c, s, start, at, &key)) return false;
        if (item) {
            int64_t i = 0;
            bool number = at > start;
            for (uint32_t k = start; k < at && number; k++) {
                number = s->data[k] >= '0' && s->data[k] <= '9' && i < 100000000;
                if (number) i = i * 10 + (s->data[k] - '0');
            }
            if (at < to) at++;
            if (number) key = jinja_int(i);
            if (!jinja_get_item(c, *out, key, out)) return false;
        } else if (!jinja_get_attr(c, *out, key.u.s,
                                   jinja_find_row(jinja_methods, key.u.s->data, key.u.s->len),
                                   out)) {
            return false;
        }
        if (out->kind == JINJA_UNDEFINED) return jinja_fail_undefined(c, *out);
    }
    return true;
}

METHOD(m_format) {
    const struct jinja_string *s = a[0].u.s;
    struct jinja_sb sb;
    uint32_t next = 0;
    jinja_sb_init(&sb, c);
    for (uint32_t i = 0; i < s->len;) {
        char ch = s->data[i];
        if ((ch == '{' || ch == '}') && i + 1 < s->len && s->data[i + 1] == ch) {
            if (!jinja_sb_sub(&sb, s, i, i + 1)) return false;
            i += 2;
        } else if (ch == '{') {
            const char *end = memchr(s->data + i, '}', s->len - i);
            if (!end) return jinja_fail(c, STATUS_TEMPLATE, "expected '}' before end of string");
            uint32_t stop = (uint32_t)(end - s->data), name_end = stop;
            bool as_repr = stop - i > 2 && s->data[stop - 2] == '!' && s->data[stop - 1] == 'r';
            bool as_str = stop - i > 2 && s->data[stop - 2] == '!' && s->data[stop - 1] == 's';
            if (as_repr || as_str) name_end -= 2;
            if (memchr(s->data + i, ':', stop - i)) {
                return jinja_fail(c, STATUS_TEMPLATE, "format specifications are not supported");
            }
            struct jinja_value v;
            if (!format_field(c, s, i + 1, name_end, args, &next, &v)) return false;
            if (!(as_repr ? jinja_repr(&sb, v) : jinja_sb_value(&sb, v))) return false;
            i = stop + 1;
        } else if (ch == '}') {
            return jinja_fail(c, STATUS_TEMPLATE, "Single '}' encountered in format string");
        } else {
            uint32_t from = i;
            while (i < s->len && s->data[i] != '{' && s->data[i] != '}') i++;
            if (!jinja_sb_sub(&sb, s, from, i)) return false;
        }
    }
    return jinja_sb_finish(&sb, out);
}

/* ---- dict ---- */

METHOD(d_get) {
    (void)args;
    const struct jinja_value *v = jinja_dict_get(a[0].u.dict, a[1]);
    (void)c;
    *out = v ? *v : a[2].kind == JINJA_ABSENT ? jinja_none() : a[2];
    return true;
}

static bool view(struct jinja_ctx *c, const struct jinja_value *a, enum jinja_view which,
                 struct jinja_value *out) {
    const struct jinja_dict *d = a[0].u.dict;
    struct jinja_value v;
    if (!jinja_work(c, d->n / 4) || !jinja_list_new(c, JINJA_VIEW, d->n, &v)) return false;
    v.from_user = a[0].from_user;
    v.u.list->view = which;
    for (uint32_t i = 0; i < d->n; i++) {
        struct jinja_value *item = &v.u.list->items[i];
        if (which == JINJA_VIEW_ITEMS) {
            if (!jinja_list_new(c, JINJA_TUPLE, 2, item)) return false;
            item->from_user = a[0].from_user;
            item->u.list->items[0] = d->entries[i].key;
            item->u.list->items[1] = d->entries[i].value;
            item->u.list->n = 2;
        } else {
            *item = which == JINJA_VIEW_KEYS ? d->entries[i].key : d->entries[i].value;
        }
    }
    v.u.list->n = d->n;
    *out = v;
    return true;
}

METHOD(d_items) {
    (void)args;
    return view(c, a, JINJA_VIEW_ITEMS, out);
}
METHOD(d_keys) {
    (void)args;
    return view(c, a, JINJA_VIEW_KEYS, out);
}
METHOD(d_values) {
    (void)args;
    return view(c, a, JINJA_VIEW_VALUES, out);
}

METHOD(d_update) {
    struct jinja_value more;
    uint16_t id = jinja_find_row(jinja_functions, "dict", 4);
    if (!jinja_functions[id].fn(c, a, args, &more)) return false;
    for (uint32_t i = 0; i < more.u.dict->n; i++) {
        const struct jinja_entry *e = &more.u.dict->entries[i];
        if (!jinja_dict_set(c, a[0].u.dict, e->key, e->value)) return false;
    }
    *out = jinja_none();
    return true;
}

METHOD(d_pop) {
    (void)args;
    const struct jinja_value *v = jinja_dict_get(a[0].u.dict, a[1]);
    if (!v && a[2].kind == JINJA_ABSENT) return jinja_fail(c, STATUS_TEMPLATE, "pop: no such key");
    *out = v ? *v : a[2];
    if (v) jinja_dict_remove(a[0].u.dict, v);
    return jinja_work(c, a[0].u.dict->n / 4);
}

METHOD(d_setdefault) {
    (void)args;
    const struct jinja_value *v = jinja_dict_get(a[0].u.dict, a[1]);
    *out = v ? *v : a[2].kind == JINJA_ABSENT ? jinja_none() : a[2];
    return v || jinja_dict_set(c, a[0].u.dict, a[1], *out);
}

METHOD(d_copy) {
    struct jinja_args one = {.pos = a, .n_pos = 1};
    (void)args;
    uint16_t id = jinja_find_row(jinja_functions, "dict", 4);
    bool from_user = a[0].from_user;
    if (!jinja_functions[id].fn(c, a, &one, out)) return false;
    out->from_user = from_user;
    return true;
}

/* ---- list ---- */

METHOD(l_append) {
    (void)args;
    *out = jinja_none();
    return jinja_list_append(c, a[0].u.list, a[1]);
}

METHOD(l_extend) {
    struct jinja_list *more;
    (void)args;
    if (!jinja_iterate(c, a[1], &more)) return false;
    uint32_t n = more->n;
    for (uint32_t i = 0; i < n; i++) {
        if (!jinja_work(c, 1) || !jinja_list_append(c, a[0].u.list, more->items[i])) return false;
    }
    *out = jinja_none();
    return true;
}

METHOD(l_insert) {
    struct jinja_list *l = a[0].u.list;
    int64_t at, n = l->n;
    (void)args;
    if (!jinja_need_int(c, a[1], &at) || !jinja_list_append(c, l, a[2])) return false;
    if (at < 0) at = at < -n ? 0 : at + n;
    if (at > n) at = n;
    memmove(&l->items[at + 1], &l->items[at], (size_t)(n - at) * sizeof *l->items);
    l->items[at] = a[2];
    *out = jinja_none();
    return jinja_work(c, (uint64_t)n / 16);
}

METHOD(l_pop) {
    struct jinja_list *l = a[0].u.list;
    int64_t at = -1, n = l->n;
    (void)args;
    if (a[1].kind != JINJA_ABSENT && !jinja_need_int(c, a[1], &at)) return false;
    if (n == 0) return jinja_fail(c, STATUS_TEMPLATE, "pop from empty list");
    if (at < 0) at += n;
    if (at < 0 || at >= n) return jinja_fail(c, STATUS_TEMPLATE, "pop index out of range");
    *out = l->items[at];
    memmove(&l->items[at], &l->items[at + 1], (size_t)(n - at - 1) * sizeof *l->items);
    l->n--;
    return jinja_work(c, (uint64_t)n / 16);
}

METHOD(l_remove) {
    struct jinja_list *l = a[0].u.list;
    (void)args;
    for (uint32_t i = 0; i < l->n; i++) {
        bool same;
        if (!jinja_equal(c, l->items[i], a[1], &same)) return false;
        if (!same) continue;
        memmove(&l->items[i], &l->items[i + 1], (l->n - i - 1) * sizeof *l->items);
        l->n--;
        *out = jinja_none();
        return true;
    }
    return jinja_fail(c, STATUS_TEMPLATE, "list.remove(x): x not in list");
}

METHOD(l_index) {
    const struct jinja_list *l = a[0].u.list;
    int64_t b[2] = {0, l->n};
    (void)args;
    for (int i = 0; i < 2; i++) {
        if (a[2 + i].kind != JINJA_ABSENT && !jinja_need_int(c, a[2 + i], &b[i])) return false;
        if (b[i] < 0) b[i] += l->n;
        if (b[i] < 0) b[i] = 0;
    }
    for (int64_t i = b[0]; i < b[1] && i < l->n; i++) {
        bool same;
        if (!jinja_equal(c, l->items[i], a[1], &same)) return false;
        if (!same) continue;
        *out = jinja_int(i);
        return true;
    }
    return jinja_fail(c, STATUS_TEMPLATE, "value is not in %s", jinja_type_name(a[0]));
}

METHOD(l_count) {
    int64_t n = 0;
    (void)args;
    for (uint32_t i = 0; i < a[0].u.list->n; i++) {
        bool same;
        if (!jinja_equal(c, a[0].u.list->items[i], a[1], &same)) return false;
        n += same;
    }
    *out = jinja_int(n);
    return true;
}

METHOD(l_reverse) {
    (void)args;
    reverse(a[0].u.list);
    *out = jinja_none();
    return jinja_work(c, a[0].u.list->n / 16);
}

METHOD(l_copy) {
    struct jinja_value parts[3] = {jinja_none(), jinja_none(), jinja_none()};
    (void)args;
    return jinja_get_slice(c, a[0], parts, out);
}

METHOD(l_clear) {
    (void)args;
    (void)c;
    if (a[0].kind == JINJA_DICT) {
        memset(a[0].u.dict, 0, sizeof *a[0].u.dict);
    } else {
        a[0].u.list->n = 0;
    }
    *out = jinja_none();
    return true;
}

/* ---- loop and cycler ---- */

METHOD(loop_cycle) {
    if (!args->n_pos) return jinja_fail(c, STATUS_TEMPLATE, "no items for cycling given");
    *out = args->pos[jinja_loop_index0(a[0]) % args->n_pos];
    return true;
}

METHOD(loop_changed) {
    return jinja_loop_changed(c, a[0], args, out);
}

METHOD(cycler_next) {
    struct jinja_list *l = a[0].u.list;
    (void)args;
    (void)c;
    *out = l->items[l->at];
    l->at = (l->at + 1) % l->n;
    return true;
}

METHOD(cycler_reset) {
    (void)args;
    (void)c;
    a[0].u.list->at = 0;
    *out = jinja_none();
    return true;
}

enum {
    S = 1,
    L = 1 << (JINJA_LIST - JINJA_STRING),
    T = 1 << (JINJA_TUPLE - JINJA_STRING),
    D = 1 << (JINJA_DICT - JINJA_STRING),
    LOOP = 1 << (JINJA_LOOP - JINJA_STRING),
    CYCLER = 1 << (JINJA_CYCLER - JINJA_STRING),
};

const struct jinja_builtin_row jinja_methods[] = {
    {"strip", "chars", 0, S, m_strip},
    {"lstrip", "chars", 0, S, m_lstrip},
    {"rstrip", "chars", 0, S, m_rstrip},
    {"split", "sep maxsplit", 0, S, m_split},
    {"rsplit", "sep maxsplit", 0, S, m_rsplit},
    {"splitlines", "keepends", 0, S, m_splitlines},
    {"startswith", "prefix start end", 1, S, m_startswith},
    {"endswith", "suffix start end", 1, S, m_endswith},
    {"removeprefix", "prefix", 1, S, m_removeprefix},
    {"removesuffix", "suffix", 1, S, m_removesuffix},
    {"replace", "old new count", 2, S, m_replace},
    {"upper", "", 0, S, m_upper},
    {"lower", "", 0, S, m_lower},
    {"title", "", 0, S, m_title},
    {"capitalize", "", 0, S, m_capitalize},
    {"swapcase", "", 0, S, m_swapcase},
    {"find", "sub start end", 1, S, m_find},
    {"rfind", "sub start end", 1, S, m_rfind},
    {"index", "sub start end", 1, S, m_index},
    {"rindex", "sub start end", 1, S, m_rindex},
    {"count", "sub start end", 1, S, m_count},
    {"join", "iterable", 1, S, m_join},
    {"format", "*", 0, S, m_format},
    {"partition", "sep", 1, S, m_partition},
    {"rpartition", "sep", 1, S, m_rpartition},
    {"isdigit", "", 0, S, m_isdigit},
    {"isdecimal", "", 0, S, m_isdigit},
    {"isnumeric", "", 0, S, m_isdigit},
    {"isalpha", "", 0, S, m_isalpha},
    {"isalnum", "", 0, S, m_isalnum},
    {"isspace", "", 0, S, m_isspace},
    {"isascii", "", 0, S, m_isascii},
    {"isupper", "", 0, S, m_isupper},
    {"islower", "", 0, S, m_islower},
    {"ljust", "width fillchar", 1, S, m_ljust},
    {"rjust", "width fillchar", 1, S, m_rjust},
    {"center", "width fillchar", 1, S, m_center},
    {"zfill", "width", 1, S, m_zfill},
    {"get", "key default", 1, D, d_get},
    {"items", "", 0, D, d_items},
    {"keys", "", 0, D, d_keys},
    {"values", "", 0, D, d_values},
    {"update", "*", 0, D, d_update},
    {"pop", "key default", 1, D, d_pop},
    {"setdefault", "key default", 1, D, d_setdefault},
    {"copy", "", 0, D, d_copy},
    {"clear", "", 0, D | L, l_clear},
    {"append", "object", 1, L, l_append},
    {"extend", "iterable", 1, L, l_extend},
    {"insert", "index object", 2, L, l_insert},
    {"pop", "index", 0, L, l_pop},
    {"remove", "value", 1, L, l_remove},
    {"index", "value start stop", 1, L | T, l_index},
    {"count", "value", 1, L | T, l_count},
    {"reverse", "", 0, L, l_reverse},
    {"copy", "", 0, L, l_copy},
    {"cycle", "*", 0, LOOP, loop_cycle},
    {"changed", "*", 0, LOOP, loop_changed},
    {"next", "", 0, CYCLER, cycler_next},
    {"reset", "", 0, CYCLER, cycler_reset},
    {NULL, NULL, 0, 0, NULL},
};
