/* What operators do to values: attributes, items, slices, arithmetic. */
#include "models/jinja_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- attributes and items ---- */

static bool absent(struct jinja_ctx *c, struct jinja_value a, struct jinja_value key,
                   struct jinja_value *out) {
    char why[200];
    const char *type = a.kind == JINJA_NONE ? "None" : jinja_type_name(a);
    const char *object = a.kind == JINJA_NONE ? "" : " object";
    if (key.kind == JINJA_STRING) {
        const struct jinja_string *s = key.u.s;
        snprintf(why, sizeof why, "'%s%s' has no attribute '%.*s'", type, object,
                 (int)(s->len > 80 ? 80 : s->len), s->data);
    } else if (key.kind == JINJA_INT) {
        snprintf(why, sizeof why, "%s%s has no element %lld", type, object, (long long)key.u.i);
    } else {
        snprintf(why, sizeof why, "%s%s has no such element", type, object);
    }
    char *kept = jinja_strdup(c, why, strlen(why));
    *out = jinja_undefined(kept);
    return kept != NULL;
}

/* Attributes proper, not items. */
static bool find_attr(struct jinja_ctx *c, struct jinja_value a, const struct jinja_string *name,
                      uint16_t method, struct jinja_value *out, bool *found) {
    struct jinja_value n = {.kind = JINJA_STRING, .u.s = (struct jinja_string *)(uintptr_t)name};
    *found = false;
    if (a.kind == JINJA_LOOP) {
        if (!jinja_loop_attr(c, a, name, out, found)) return false;
        if (*found) return true;
    } else if (a.kind == JINJA_NAMESPACE) {
        const struct jinja_value *v = jinja_dict_get(a.u.dict, n);
        if (v) *out = *v;
        *found = v != NULL;
        return true;
    } else if (a.kind == JINJA_TUPLE && a.u.list->group) {
        *found = jinja_is_str(n, "grouper") || jinja_is_str(n, "list");
        if (*found) *out = a.u.list->items[jinja_is_str(n, "list")];
        if (*found) return true;
    } else if (a.kind == JINJA_CYCLER && jinja_is_str(n, "current")) {
        *found = true;
        *out = a.u.list->items[a.u.list->at];
        return true;
    }
    if (method == JINJA_NO_ID || a.kind < JINJA_STRING) return true;
    /* Several rows may share a name, each for its own kinds. */
    for (; jinja_methods[method].name; method++) {
        const struct jinja_builtin_row *row = &jinja_methods[method];
        if (strlen(row->name) != name->len || memcmp(row->name, name->data, name->len) != 0)
            continue;
        if (!(row->kinds >> (a.kind - JINJA_STRING) & 1)) continue;
        struct jinja_method *m = jinja_alloc(c, sizeof *m);
        if (!m) return false;
        m->self = a;
        m->id = method;
        *out = (struct jinja_value){.kind = JINJA_METHOD, .u.method = m};
        *found = true;
        return true;
    }
    return true;
}

bool jinja_get_attr(struct jinja_ctx *c, struct jinja_value a, const struct jinja_string *name,
                    uint16_t method, struct jinja_value *out) {
    struct jinja_value key = {.kind = JINJA_STRING, .u.s = (struct jinja_string *)(uintptr_t)name};
    struct jinja_value result;
    bool found;
    if (a.kind == JINJA_UNDEFINED) return jinja_fail_undefined(c, a);
    if (!find_attr(c, a, name, method, &result, &found)) return false;
    if (!found && a.kind == JINJA_DICT) {
        const struct jinja_value *v = jinja_dict_get(a.u.dict, key);
        found = v != NULL;
        if (v) result = *v;
    }
    if (!found) return absent(c, a, key, out);
    *out = result;
    return true;
}

bool jinja_get_item(struct jinja_ctx *c, struct jinja_value a, struct jinja_value key,
                    struct jinja_value *out) {
    int64_t i, n;
    if (a.kind == JINJA_UNDEFINED) return jinja_fail_undefined(c, a);
    if (a.kind == JINJA_DICT) {
        const struct jinja_value *v = jinja_dict_get(a.u.dict, key);
        if (v) {
            *out = *v;
            return true;
        }
    } else if ((key.kind == JINJA_INT || key.kind == JINJA_BOOL) &&
               (a.kind == JINJA_LIST || a.kind == JINJA_TUPLE || a.kind == JINJA_STRING ||
                a.kind == JINJA_RANGE)) {
        if (!jinja_length(c, a, &n)) return false;
        i = jinja_as_int(key);
        if (i < 0) i += n;
        if (i < 0 || i >= n) return absent(c, a, key, out);
        if (a.kind == JINJA_RANGE) {
            *out = jinja_int(a.u.range->start + i * a.u.range->step);
            return true;
        }
        if (a.kind != JINJA_STRING) {
            *out = a.u.list->items[i];
            return true;
        }
        struct jinja_value parts[3] = {jinja_int(i), jinja_int(i + 1), jinja_none()};
        return jinja_get_slice(c, a, parts, out);
    }
    if (key.kind == JINJA_STRING) {
        uint16_t method = jinja_find_row(jinja_methods, key.u.s->data, key.u.s->len);
        bool found;
        struct jinja_value result;
        if (!find_attr(c, a, key.u.s, method, &result, &found)) return false;
        if (found) {
            *out = result;
            return true;
        }
    }
    return absent(c, a, key, out);
}

bool jinja_overflow(struct jinja_ctx *c) {
    return jinja_fail(c, STATUS_TEMPLATE, "integer overflow (64 bits)");
}

/* Python's clamping of slice bounds. */
static bool slice_bounds(struct jinja_ctx *c, const struct jinja_value parts[3], int64_t n,
                         int64_t *from, int64_t *to, int64_t *step) {
    *step = 1;
    if (parts[2].kind != JINJA_NONE && !jinja_need_int(c, parts[2], step)) return false;
    if (*step == 0) return jinja_fail(c, STATUS_TEMPLATE, "slice step cannot be zero");
    int64_t low = *step > 0 ? 0 : -1, high = *step > 0 ? n : n - 1;
    int64_t *bound[2] = {from, to};
    *from = *step > 0 ? low : high;
    *to = *step > 0 ? high : low;
    for (int k = 0; k < 2; k++) {
        int64_t i;
        if (parts[k].kind == JINJA_NONE) continue;
        if (!jinja_need_int(c, parts[k], &i)) return false;
        if (i < 0) i = i < -n ? low : i + n;
        *bound[k] = i < low ? low : i > high ? high : i;
    }
    return true;
}

static bool slice_string(struct jinja_ctx *c, struct jinja_string *s, int64_t from, int64_t to,
                         int64_t step, struct jinja_value *out) {
    uint32_t n = jinja_chars(s);
    if (!jinja_work(c, s->len / 64)) return false;
    if (step == 1) {
        if (to < from) to = from;
        uint32_t a = 0, b;
        if (n == s->len) {
            a = (uint32_t)from;
            b = (uint32_t)to;
        } else {
            uint32_t cp;
            for (int64_t i = 0; i < from; i++) a += jinja_utf8(s->data + a, &cp);
            b = a;
            for (int64_t i = from; i < to; i++) b += jinja_utf8(s->data + b, &cp);
        }
        return jinja_substr(c, s, a, b, out);
    }
    struct jinja_sb sb;
    struct jinja_list *l;
    jinja_sb_init(&sb, c);
    if (!jinja_iterate(c, (struct jinja_value){.kind = JINJA_STRING, .u.s = s}, &l)) return false;
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step) {
        if (!jinja_sb_str(&sb, l->items[i].u.s)) return false;
        if (step > 0 ? i > to - step : i < to - step) break;
    }
    return jinja_sb_finish(&sb, out);
}

bool jinja_get_slice(struct jinja_ctx *c, struct jinja_value a, const struct jinja_value parts[3],
                     struct jinja_value *out) {
    int64_t n, from, to, step;
    struct jinja_list *l;
    if (a.kind == JINJA_UNDEFINED) return jinja_fail_undefined(c, a);
    if (a.kind != JINJA_STRING && a.kind != JINJA_LIST && a.kind != JINJA_TUPLE &&
        a.kind != JINJA_RANGE) {
        return absent(c, a, jinja_none(), out);
    }
    if (!jinja_length(c, a, &n) || !slice_bounds(c, parts, n, &from, &to, &step)) return false;
    if (a.kind == JINJA_STRING) return slice_string(c, a.u.s, from, to, step, out);
    if (a.kind == JINJA_RANGE) {
        const struct jinja_range *r = a.u.range;
        struct jinja_range *s = jinja_alloc(c, sizeof *s);
        int64_t span = step > 0 ? to - from : from - to, stride;
        if (!s) return false;
        if (__builtin_mul_overflow(r->step, step, &stride)) return jinja_overflow(c);
        *s = (struct jinja_range){r->start + from * r->step, r->start + to * r->step, stride,
                                  span <= 0 ? 0 : (span - 1) / (step > 0 ? step : -step) + 1};
        *out = (struct jinja_value){.kind = JINJA_RANGE, .u.range = s};
        return true;
    }
    if (!jinja_iterate(c, a, &l)) return false;
    enum jinja_kind kind = a.kind == JINJA_TUPLE ? JINJA_TUPLE : JINJA_LIST;
    if (!jinja_list_new(c, kind, 0, out)) return false;
    out->from_user = a.from_user;
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step) {
        if (!jinja_work(c, 1) || !jinja_list_append(c, out->u.list, l->items[i])) return false;
        if (step > 0 ? i > to - step : i < to - step) break;
    }
    return true;
}

/* ---- arithmetic ---- */

static bool arith_int(struct jinja_ctx *c, enum jinja_op op, int64_t a, int64_t b,
                      struct jinja_value *out) {
    int64_t r = 0;
    bool over = false;
    switch (op) {
    case OP_ADD:
        over = __builtin_add_overflow(a, b, &r);
        break;
    case OP_SUB:
        over = __builtin_sub_overflow(a, b, &r);
        break;
    case OP_MUL:
        over = __builtin_mul_overflow(a, b, &r);
        break;
    case OP_DIV:
        if (b == 0) return jinja_fail(c, STATUS_TEMPLATE, "division by zero");
        *out = jinja_float((double)a / (double)b);
        return true;
    case OP_FLOORDIV:
    case OP_MOD:
        if (b == 0) return jinja_fail(c, STATUS_TEMPLATE, "integer division or modulo by zero");
        if (b == -1) {
            over = op == OP_FLOORDIV && __builtin_sub_overflow((int64_t)0, a, &r);
            break;
        }
        r = op == OP_MOD ? a % b : a / b;
        if (op == OP_MOD && r != 0 && (r < 0) != (b < 0)) r += b;
        if (op == OP_FLOORDIV && a % b != 0 && (a < 0) != (b < 0)) r--;
        break;
    default:
        if (b < 0) {
            if (a == 0) {
                return jinja_fail(c, STATUS_TEMPLATE, "0.0 cannot be raised to a negative power");
            }
            *out = jinja_float(pow((double)a, (double)b));
            return true;
        }
        r = 1;
        for (int64_t base = a; b && !over; b >>= 1) {
            if (b & 1) over |= __builtin_mul_overflow(r, base, &r);
            if (b > 1) over |= __builtin_mul_overflow(base, base, &base);
        }
        break;
    }
    if (over) return jinja_overflow(c);
    *out = jinja_int(r);
    return true;
}

static bool arith_float(struct jinja_ctx *c, enum jinja_op op, double a, double b,
                        struct jinja_value *out) {
    double r;
    switch (op) {
    case OP_ADD:
        r = a + b;
        break;
    case OP_SUB:
        r = a - b;
        break;
    case OP_MUL:
        r = a * b;
        break;
    case OP_POW:
        if (a == 0 && b < 0) {
            return jinja_fail(c, STATUS_TEMPLATE, "0.0 cannot be raised to a negative power");
        }
        if (a < 0 && b != floor(b)) {
            return jinja_fail(c, STATUS_TEMPLATE, "complex numbers are not supported");
        }
        r = pow(a, b);
        if (isinf(r) && isfinite(a) && isfinite(b)) {
            return jinja_fail(c, STATUS_TEMPLATE, "Numerical result out of range");
        }
        break;
    default:
        if (b == 0) return jinja_fail(c, STATUS_TEMPLATE, "float division by zero");
        if (op == OP_DIV) {
            r = a / b;
            break;
        }
        r = fmod(a, b);
        if (op == OP_MOD) {
            if (r != 0 && (r < 0) != (b < 0)) r += b;
            if (r == 0) r = copysign(0, b);
            break;
        }
        {
            double div = (a - r) / b;
            if (r != 0 && (r < 0) != (b < 0)) div -= 1;
            r = div != 0 ? floor(div) + (div - floor(div) > 0.5) : copysign(0, a / b);
        }
        break;
    }
    *out = jinja_float(r);
    return true;
}

static bool repeat(struct jinja_ctx *c, struct jinja_value a, int64_t n, struct jinja_value *out) {
    if (n < 0) n = 0;
    if (a.kind == JINJA_STRING) {
        struct jinja_sb sb;
        jinja_sb_init(&sb, c);
        for (int64_t i = 0; i < n && a.u.s->len; i++) {
            if (!jinja_work(c, 1) || !jinja_sb_str(&sb, a.u.s)) return false;
        }
        return jinja_sb_finish(&sb, out);
    }
    struct jinja_value r;
    if (!jinja_list_new(c, (enum jinja_kind)a.kind, 0, &r)) return false;
    for (int64_t i = 0; i < n && a.u.list->n; i++) {
        for (uint32_t k = 0; k < a.u.list->n; k++) {
            if (!jinja_work(c, 1) || !jinja_list_append(c, r.u.list, a.u.list->items[k])) {
                return false;
            }
        }
    }
    *out = r;
    return true;
}

bool jinja_arith(struct jinja_ctx *c, enum jinja_op op, struct jinja_value a, struct jinja_value b,
                 struct jinja_value *out) {
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};
    bool a_seq = a.kind == JINJA_LIST || a.kind == JINJA_TUPLE || a.kind == JINJA_STRING;
    bool b_seq = b.kind == JINJA_LIST || b.kind == JINJA_TUPLE || b.kind == JINJA_STRING;
    if (op == OP_MOD && a.kind == JINJA_STRING) return jinja_percent(c, a.u.s, b, out);
    if (a.kind == JINJA_UNDEFINED) return jinja_fail_undefined(c, a);
    if (b.kind == JINJA_UNDEFINED) return jinja_fail_undefined(c, b);
    if (jinja_is_number(a) && jinja_is_number(b)) {
        bool from_user = a.from_user || b.from_user;
        bool ok = a.kind == JINJA_FLOAT || b.kind == JINJA_FLOAT
                      ? arith_float(c, op, jinja_as_double(a), jinja_as_double(b), out)
                      : arith_int(c, op, jinja_as_int(a), jinja_as_int(b), out);
        out->from_user = from_user;
        return ok;
    }
    if (op == OP_ADD && a.kind == JINJA_STRING && b.kind == JINJA_STRING) {
        return jinja_concat(c, a.u.s, b.u.s, out);
    }
    if (op == OP_ADD && a_seq && a.kind == b.kind) {
        struct jinja_value r;
        const struct jinja_list *x = a.u.list, *y = b.u.list;
        if (!jinja_work(c, (x->n + (uint64_t)y->n) / 4)) return false;
        if (!jinja_list_new(c, (enum jinja_kind)a.kind, x->n + y->n, &r)) return false;
        for (uint32_t i = 0; i < x->n; i++) r.u.list->items[i] = x->items[i];
        for (uint32_t i = 0; i < y->n; i++) r.u.list->items[x->n + i] = y->items[i];
        r.u.list->n = x->n + y->n;
        r.from_user = a.from_user && b.from_user;
        *out = r;
        return true;
    }
    if (op == OP_MUL && a_seq && (b.kind == JINJA_INT || b.kind == JINJA_BOOL)) {
        return repeat(c, a, jinja_as_int(b), out);
    }
    if (op == OP_MUL && b_seq && (a.kind == JINJA_INT || a.kind == JINJA_BOOL)) {
        return repeat(c, b, jinja_as_int(a), out);
    }
    if (op == OP_ADD && a.kind == JINJA_STRING) {
        return jinja_fail(c, STATUS_TEMPLATE, "can only concatenate str (not \"%s\") to str",
                          jinja_type_name(b));
    }
    return jinja_fail(c, STATUS_TEMPLATE, "unsupported operand type(s) for %s: '%s' and '%s'",
                      names[op], jinja_type_name(a), jinja_type_name(b));
}
