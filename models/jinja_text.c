/* Text operations that filters and methods share; all keep provenance. */
#include "models/jinja_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* First or last place of `needle` in s[from, to); UINT32_MAX: nowhere. Empty needles are found at
 * the border. */
uint32_t jinja_find(const struct jinja_string *s, uint32_t from, uint32_t to,
                    const struct jinja_string *needle) {
    if (needle->len == 0) return from;
    const char *p = memmem(s->data + from, to - from, needle->data, needle->len);
    return p ? (uint32_t)(p - s->data) : UINT32_MAX;
}

bool jinja_rfind(struct jinja_ctx *c, const struct jinja_string *s, uint32_t from, uint32_t to,
                 const struct jinja_string *needle, uint32_t *out) {
    uint32_t n = needle->len;
    *out = UINT32_MAX;
    if (n > to - from) return true;
    if (n <= 32) {
        for (uint32_t i = to - n + 1; i-- > from && *out == UINT32_MAX;) {
            if (memcmp(s->data + i, needle->data, n) == 0) *out = i;
        }
        return true;
    }
    /* Long needles: both reversed, so that the forward search's bound holds. */
    char *mirror = jinja_alloc(c, (size_t)(to - from) + n);
    if (!mirror) return false;
    for (uint32_t i = 0; i < to - from; i++) mirror[i] = s->data[to - 1 - i];
    char *mirrored = mirror + (to - from);
    for (uint32_t i = 0; i < n; i++) mirrored[i] = needle->data[n - 1 - i];
    const char *p = memmem(mirror, to - from, mirrored, n);
    if (p) *out = to - (uint32_t)(p - mirror) - n;
    return true;
}

static bool in_set(const struct jinja_string *chars, const char *p, unsigned len, uint32_t cp) {
    if (!chars) return jinja_is_space(cp);
    return memmem(chars->data, chars->len, p, len) != NULL;
}

bool jinja_strip(struct jinja_ctx *c, const struct jinja_string *s, struct jinja_value which,
                 bool left, bool right, struct jinja_value *out) {
    struct jinja_string *chars = NULL;
    uint32_t from = 0, to = s->len, cp;
    if (which.kind != JINJA_ABSENT && which.kind != JINJA_NONE &&
        !jinja_need_str(c, which, &chars)) {
        return false;
    }
    uint64_t cost = 1 + (chars ? chars->len / 64 : 0);
    while (left && from < to) {
        unsigned len = jinja_utf8(s->data + from, &cp);
        if (!in_set(chars, s->data + from, len, cp)) break;
        if (chars && !jinja_work(c, cost)) return false;
        from += len;
    }
    while (right && to > from) {
        uint32_t p = to - 1;
        while ((s->data[p] & 0xC0) == 0x80) p--;
        jinja_utf8(s->data + p, &cp);
        if (!in_set(chars, s->data + p, to - p, cp)) break;
        if (chars && !jinja_work(c, cost)) return false;
        to = p;
    }
    return jinja_work(c, (s->len - (to - from)) / 16) && jinja_substr(c, s, from, to, out);
}

bool jinja_piece(struct jinja_ctx *c, struct jinja_list *l, const struct jinja_string *s,
                 uint32_t from, uint32_t to) {
    struct jinja_value v;
    return jinja_work(c, 1) && jinja_substr(c, s, from, to, &v) && jinja_list_append(c, l, v);
}

bool jinja_split_space(struct jinja_ctx *c, const struct jinja_string *s, int64_t max,
                       struct jinja_list *l) {
    uint32_t at = 0, cp;
    for (;;) {
        while (at < s->len) {
            unsigned len = jinja_utf8(s->data + at, &cp);
            if (!jinja_is_space(cp)) break;
            at += len;
        }
        if (at >= s->len) return true;
        /* The rest keeps the blanks at its end, as in Python. */
        if (max >= 0 && l->n >= max) return jinja_piece(c, l, s, at, s->len);
        uint32_t from = at;
        while (at < s->len) {
            unsigned len = jinja_utf8(s->data + at, &cp);
            if (jinja_is_space(cp)) break;
            at += len;
        }
        if (!jinja_piece(c, l, s, from, at)) return false;
    }
}

bool jinja_rsplit_space(struct jinja_ctx *c, const struct jinja_string *s, int64_t max,
                        struct jinja_list *l) {
    struct jinja_value rest, word;
    if (!jinja_strip(c, s, jinja_none(), false, true, &rest)) return false;
    while (rest.u.s->len) {
        if (max >= 0 && l->n >= max) return jinja_list_append(c, l, rest);
        uint32_t p = rest.u.s->len, cp;
        while (p > 0) {
            uint32_t q = p - 1;
            while ((rest.u.s->data[q] & 0xC0) == 0x80) q--;
            jinja_utf8(rest.u.s->data + q, &cp);
            if (jinja_is_space(cp)) break;
            p = q;
        }
        if (!jinja_substr(c, rest.u.s, p, rest.u.s->len, &word) || !jinja_list_append(c, l, word) ||
            !jinja_substr(c, rest.u.s, 0, p, &rest) ||
            !jinja_strip(c, rest.u.s, jinja_none(), false, true, &rest)) {
            return false;
        }
    }
    return true;
}

static bool is_line_end(uint32_t cp) {
    return (cp >= 10 && cp <= 13) || (cp >= 28 && cp <= 30) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

bool jinja_splitlines(struct jinja_ctx *c, const struct jinja_string *s, bool keep,
                      struct jinja_value *out) {
    uint32_t from = 0, at = 0, cp;
    if (!jinja_work(c, s->len / 16) || !jinja_list_new(c, JINJA_LIST, 0, out)) return false;
    while (at < s->len) {
        uint32_t end = at;
        at += jinja_utf8(s->data + at, &cp);
        if (!is_line_end(cp)) continue;
        if (cp == '\r' && at < s->len && s->data[at] == '\n') at++;
        if (!jinja_piece(c, out->u.list, s, from, keep ? at : end)) return false;
        from = at;
    }
    return from == s->len || jinja_piece(c, out->u.list, s, from, s->len);
}

bool jinja_replace(struct jinja_ctx *c, const struct jinja_string *s,
                   const struct jinja_string *old, const struct jinja_string *with, int64_t count,
                   struct jinja_value *out) {
    struct jinja_sb sb;
    uint32_t from = 0;
    jinja_sb_init(&sb, c);
    if (!jinja_work(c, s->len / 64)) return false;
    for (int64_t done = 0; count < 0 || done < count; done++) {
        if (old->len == 0) {
            uint32_t cp, len = from < s->len ? jinja_utf8(s->data + from, &cp) : 0;
            if (!jinja_sb_str(&sb, with) || !jinja_sb_sub(&sb, s, from, from + len)) return false;
            if (len == 0) break;
            from += len;
            continue;
        }
        uint32_t at = jinja_find(s, from, s->len, old);
        if (at == UINT32_MAX) break;
        if (!jinja_work(c, 1) || !jinja_sb_sub(&sb, s, from, at) || !jinja_sb_str(&sb, with)) {
            return false;
        }
        from = at + old->len;
    }
    return jinja_sb_sub(&sb, s, from, s->len) && jinja_sb_finish(&sb, out);
}

static bool title_border(uint32_t cp) {
    return jinja_is_space(cp) || cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<';
}

bool jinja_change_case(struct jinja_ctx *c, const struct jinja_string *s, enum jinja_case how,
                       struct jinja_value *out) {
    struct jinja_sb sb;
    struct jinja_taint taint = {.s = s};
    bool word_start = true;
    jinja_sb_init(&sb, c);
    for (uint32_t i = 0, len, cp; i < s->len; i += len) {
        char utf8[4];
        len = jinja_utf8(s->data + i, &cp);
        bool upper = how == CASE_UPPER || (how > CASE_LOWER && word_start);
        if (how == CASE_SWAP) upper = jinja_upper_cp(cp) != cp;
        if (how == CASE_CAPITALIZE) word_start = false;
        if (how == CASE_TITLE) {
            word_start = jinja_upper_cp(cp) == cp && jinja_lower_cp(cp) == cp;
        } else if (how == CASE_JINJA_TITLE) {
            word_start = title_border(cp);
        }
        bool user = jinja_taint_at(&taint, i);
        if (cp == 0xDF && upper) { /* the one letter in common use that grows */
            if (!jinja_sb_put(&sb, how == CASE_UPPER || how == CASE_SWAP ? "SS" : "Ss", 2, user)) {
                return false;
            }
            continue;
        }
        cp = upper ? jinja_upper_cp(cp) : jinja_lower_cp(cp);
        if (!jinja_sb_put(&sb, utf8, jinja_utf8_put(cp, utf8), user)) return false;
    }
    return jinja_sb_finish(&sb, out);
}

/* Python's int() and float() of text: blanks around, underscores between digits. */
bool jinja_number_text(const struct jinja_string *s, char text[128]) {
    size_t n = 0;
    uint32_t from = 0, to = s->len;
    while (from < to && isspace((unsigned char)s->data[from])) from++;
    while (to > from && isspace((unsigned char)s->data[to - 1])) to--;
    for (uint32_t i = from; i < to; i++) {
        if (s->data[i] == '_') {
            if (i == from || i + 1 == to || !isalnum((unsigned char)s->data[i - 1]) ||
                !isalnum((unsigned char)s->data[i + 1])) {
                return false;
            }
            continue;
        }
        if (n + 1 >= 128 || !strchr("0123456789+-.eExXabcdfABCDFoOinftyINFTY", s->data[i]) ||
            !s->data[i]) {
            return false;
        }
        text[n++] = s->data[i];
    }
    text[n] = '\0';
    return n > 0;
}

bool jinja_parse_int(const char *t, int64_t base, int64_t *out) {
    bool negative = *t == '-';
    uint64_t r = 0;
    if (*t == '-' || *t == '+') t++;
    if (t[0] == '0' && ((base == 16 && (t[1] | 32) == 'x') || (base == 8 && (t[1] | 32) == 'o') ||
                        (base == 2 && (t[1] | 32) == 'b'))) {
        t += 2;
    }
    if (!*t) return false;
    for (; *t; t++) {
        int d = isdigit((unsigned char)*t)   ? *t - '0'
                : isalpha((unsigned char)*t) ? (*t | 32) - 'a' + 10
                                             : 99;
        if (d >= base || r > (uint64_t)(INT64_MAX - d) / (uint64_t)base) return false;
        r = r * (uint64_t)base + (uint64_t)d;
    }
    *out = negative ? -(int64_t)r : (int64_t)r;
    return true;
}

bool jinja_parse_float(const char *t, double *out) {
    char *end;
    if (strpbrk(t, "xXpP")) return false; /* strtod takes hex, Python does not */
    *out = strtod(t, &end);
    return end != t && !*end;
}
