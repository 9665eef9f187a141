#include "models/jinja_internal.h"

#include <ctype.h>
#include <string.h>

/* attribute "a.b.0", or a number, of a value. */
bool jinja_attribute(struct jinja_ctx *c, struct jinja_value v, struct jinja_value path,
                     struct jinja_value fallback, struct jinja_value *out) {
    if (path.kind == JINJA_INT) return jinja_get_item(c, v, path, out);
    struct jinja_string *s;
    if (!jinja_need_str(c, path, &s)) return false;
    *out = v;
    for (uint32_t at = 0; at <= s->len;) {
        const char *dot = memchr(s->data + at, '.', s->len - at);
        uint32_t end = dot ? (uint32_t)(dot - s->data) : s->len;
        struct jinja_value key;
        int64_t i = 0;
        bool number = end > at && end - at < 10;
        for (uint32_t k = at; k < end && number; k++) {
            number = isdigit((unsigned char)s->data[k]) != 0;
            if (number) i = i * 10 + (s->data[k] - '0');
        }
        if (number) {
            key = jinja_int(i);
        } else if (!jinja_substr(c, s, at, end, &key)) {
            return false;
        }
        if (!jinja_get_item(c, *out, key, out)) return false;
        if (out->kind == JINJA_UNDEFINED && fallback.kind != JINJA_ABSENT) *out = fallback;
        at = end + 1;
    }
    return true;
}

/* Sort key: the item or its jinja_attribute(s), strings in lower case unless case matters. */
bool jinja_key_of(struct jinja_ctx *c, struct jinja_value item, struct jinja_value path,
                  bool case_sensitive, struct jinja_value fallback, struct jinja_value *out) {
    *out = item;
    if (path.kind != JINJA_ABSENT && path.kind != JINJA_NONE &&
        !jinja_attribute(c, item, path, fallback, out)) {
        return false;
    }
    if (out->kind != JINJA_STRING || case_sensitive) return true;
    return jinja_change_case(c, out->u.s, CASE_LOWER, out);
}

/* Items reordered by keys; stable, n log n comparisons. */
bool jinja_sort(struct jinja_ctx *c, struct jinja_value *items, const struct jinja_value *keys,
                uint32_t n, bool reverse) {
    uint32_t *order = jinja_alloc(c, (2 * (size_t)n + 1) * sizeof *order);
    struct jinja_value *sorted = jinja_alloc(c, ((size_t)n + 1) * sizeof *sorted);
    if (!order || !sorted) return false;
    uint32_t *from = order, *to = order + n;
    for (uint32_t i = 0; i < n; i++) from[i] = i;
    for (uint32_t width = 1; width < n; width *= 2) {
        for (uint32_t lo = 0; lo < n; lo += 2 * width) {
            uint32_t mid = lo + width < n ? lo + width : n, hi = mid + width < n ? mid + width : n;
            for (uint32_t i = lo, j = mid, k = lo; k < hi; k++) {
                bool take_left = j >= hi;
                if (!take_left && i < mid) {
                    int r;
                    if (!jinja_compare(c, keys[from[j]], keys[from[i]], "<", &r)) return false;
                    take_left = reverse ? r != 1 : r != -1;
                }
                to[k] = take_left && i < mid ? from[i++] : from[j++];
            }
        }
        uint32_t *swap = from;
        from = to;
        to = swap;
    }
    for (uint32_t i = 0; i < n; i++) sorted[i] = items[from[i]];
    if (n) memcpy(items, sorted, n * sizeof *items);
    return true;
}

/* `multi`: the path may name several attributes with commas, and keys are lists of their values. */
bool jinja_sorted(struct jinja_ctx *c, struct jinja_value v, struct jinja_value path, bool multi,
                  bool case_sensitive, bool reverse, struct jinja_value fallback,
                  struct jinja_value *out) {
    struct jinja_list *l, one = {.items = &path, .n = 1}, *paths = &one;
    struct jinja_value keys, r, parts[3] = {path, {.kind = JINJA_ABSENT}, {.kind = JINJA_ABSENT}};
    if (!jinja_iterate(c, v, &l) || !jinja_list_new(c, JINJA_LIST, l->n, &r) ||
        !jinja_list_new(c, JINJA_LIST, l->n, &keys)) {
        return false;
    }
    if (multi && path.kind == JINJA_STRING) {
        uint16_t id = jinja_find_row(jinja_methods, "split", 5);
        struct jinja_value split;
        if (!jinja_str(c, ",", 1, false, &parts[1])) return false;
        if (!jinja_methods[id].fn(c, parts, NULL, &split)) return false;
        paths = split.u.list;
    }
    for (uint32_t i = 0; i < l->n; i++) {
        struct jinja_value *key = &keys.u.list->items[i];
        r.u.list->items[i] = l->items[i];
        if (!multi) {
            if (!jinja_key_of(c, l->items[i], path, case_sensitive, fallback, key)) return false;
            continue;
        }
        if (!jinja_list_new(c, JINJA_LIST, paths->n, key)) return false;
        for (uint32_t k = 0; k < paths->n; k++) {
            if (!jinja_key_of(c, l->items[i], paths->items[k], case_sensitive, fallback,
                              &key->u.list->items[k])) {
                return false;
            }
        }
        key->u.list->n = paths->n;
    }
    if (!jinja_sort(c, r.u.list->items, keys.u.list->items, l->n, reverse)) return false;
    r.u.list->n = l->n;
    *out = r;
    return true;
}
