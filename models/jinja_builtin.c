#include "models/jinja_internal.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- rows: names to functions, arguments to parameters ---- */

uint16_t jinja_find_row(const struct jinja_builtin_row *rows, const char *name, size_t n) {
    for (uint16_t i = 0; rows[i].name; i++) {
        if (strlen(rows[i].name) == n && memcmp(rows[i].name, name, n) == 0) return i;
    }
    return JINJA_NO_ID;
}

/* Position of a keyword among the parameters; -1: none of them. */
static int find_param(const char *params, const struct jinja_string *name) {
    int at = 0;
    for (const char *p = params; *p; at++) {
        size_t n = strcspn(p, " ");
        if (n == name->len && memcmp(p, name->data, n) == 0) return at;
        p += n;
        p += *p == ' ';
    }
    return -1;
}

static uint32_t count_params(const char *params) {
    uint32_t n = *params != '\0';
    for (const char *p = params; *p; p++) n += *p == ' ';
    return n;
}

bool jinja_call_row(struct jinja_ctx *c, const struct jinja_builtin_row *row,
                    struct jinja_value self, const struct jinja_args *args,
                    struct jinja_value *out) {
    struct jinja_value a[1 + JINJA_MAX_PARAMS] = {self};
    if (!jinja_work(c, 1)) return false;
    if (strcmp(row->params, "*") == 0) return row->fn(c, a, args, out);
    uint32_t n = count_params(row->params);
    if (args->n_pos > n) {
        return jinja_fail(c, STATUS_TEMPLATE, "%s takes at most %u argument%s (%u given)",
                          row->name, n, n == 1 ? "" : "s", args->n_pos);
    }
    for (uint32_t i = 0; i < args->n_pos; i++) a[1 + i] = args->pos[i];
    for (uint32_t i = 0; i < args->n_kw; i++) {
        const struct jinja_string *key = args->kw[i].key.u.s;
        int at = find_param(row->params, key);
        if (at < 0 || a[1 + at].kind != JINJA_ABSENT) {
            return jinja_fail(c, STATUS_TEMPLATE, "%s got an unexpected keyword argument '%.*s'",
                              row->name, (int)(key->len > 60 ? 60 : key->len), key->data);
        }
        a[1 + at] = args->kw[i].value;
    }
    for (uint32_t i = 0; i < row->required; i++) {
        if (a[1 + i].kind == JINJA_ABSENT) {
            return jinja_fail(c, STATUS_TEMPLATE, "%s is missing an argument", row->name);
        }
    }
    return row->fn(c, a, args, out);
}

bool jinja_call_named(struct jinja_ctx *c, const struct jinja_builtin_row *rows, const char *what,
                      struct jinja_value name, struct jinja_value self,
                      const struct jinja_args *args, struct jinja_value *out) {
    struct jinja_string *s;
    if (!jinja_need_str(c, name, &s)) return false;
    uint16_t id = jinja_find_row(rows, s->data, s->len);
    if (id == JINJA_NO_ID) {
        return jinja_fail(c, STATUS_TEMPLATE, "No %s named '%.*s'.", what,
                          (int)(s->len > 60 ? 60 : s->len), s->data);
    }
    return jinja_call_row(c, &rows[id], self, args, out);
}

bool jinja_fail_undefined(struct jinja_ctx *c, struct jinja_value v) {
    return jinja_fail(c, STATUS_TEMPLATE, "%s", v.u.why);
}

bool jinja_need_str(struct jinja_ctx *c, struct jinja_value v, struct jinja_string **out) {
    *out = NULL;
    if (v.kind == JINJA_STRING) {
        *out = v.u.s;
        return true;
    }
    if (v.kind == JINJA_UNDEFINED) return jinja_fail_undefined(c, v);
    return jinja_fail(c, STATUS_TEMPLATE, "expected a string, got %s", jinja_type_name(v));
}

bool jinja_need_int(struct jinja_ctx *c, struct jinja_value v, int64_t *out) {
    *out = 0;
    if (v.kind == JINJA_INT || v.kind == JINJA_BOOL) {
        *out = jinja_as_int(v);
        return true;
    }
    if (v.kind == JINJA_UNDEFINED) return jinja_fail_undefined(c, v);
    return jinja_fail(c, STATUS_TEMPLATE, "'%s' object cannot be interpreted as an integer",
                      jinja_type_name(v));
}

/* ---- functions ---- */

static bool fn_range(struct jinja_ctx *c, struct jinja_value *a, const struct jinja_args *args,
                     struct jinja_value *out) {
    int64_t v[3] = {0, 0, 1};
    (void)a;
    if (args->n_kw || args->n_pos < 1 || args->n_pos > 3) {
        return jinja_fail(c, STATUS_TEMPLATE, "range expects 1 to 3 arguments");
    }
    for (uint32_t i = 0; i < args->n_pos; i++) {
        if (!jinja_need_int(c, args->pos[i], &v[args->n_pos == 1 ? 1 : i])) return false;
    }
    if (v[2] == 0) return jinja_fail(c, STATUS_TEMPLATE, "range() arg 3 must not be zero");
    struct jinja_range *r = jinja_alloc(c, sizeof *r);
    if (!r) return false;
    /* Bounds that make the arithmetic below safe; nothing longer could be walked anyway. */
    for (int i = 0; i < 3; i++) {
        if (v[i] > INT64_MAX / 4 || v[i] < INT64_MIN / 4) return jinja_overflow(c);
    }
    int64_t span = v[2] > 0 ? v[1] - v[0] : v[0] - v[1], step = v[2] > 0 ? v[2] : -v[2];
    *r = (struct jinja_range){v[0], v[1], v[2], span <= 0 ? 0 : (span - 1) / step + 1};
    *out = (struct jinja_value){.kind = JINJA_RANGE, .u.range = r};
    return true;
}

static bool fn_dict(struct jinja_ctx *c, struct jinja_value *a, const struct jinja_args *args,
                    struct jinja_value *out) {
    struct jinja_value r;
    (void)a;
    if (args->n_pos > 1) return jinja_fail(c, STATUS_TEMPLATE, "dict expected at most 1 argument");
    if (!jinja_dict_new(c, &r)) return false;
    if (args->n_pos && args->pos[0].kind == JINJA_DICT) {
        const struct jinja_dict *d = args->pos[0].u.dict;
        for (uint32_t i = 0; i < d->n; i++) {
            if (!jinja_dict_set(c, r.u.dict, d->entries[i].key, d->entries[i].value)) return false;
        }
    } else if (args->n_pos) {
        struct jinja_list *l, *pair;
        if (!jinja_iterate(c, args->pos[0], &l)) return false;
        for (uint32_t i = 0; i < l->n; i++) {
            if (!jinja_iterate(c, l->items[i], &pair)) return false;
            if (pair->n != 2) {
                return jinja_fail(c, STATUS_TEMPLATE, "dict() needs pairs of a key and a value");
            }
            if (!jinja_dict_set(c, r.u.dict, pair->items[0], pair->items[1])) return false;
        }
    }
    for (uint32_t i = 0; i < args->n_kw; i++) {
        if (!jinja_dict_set(c, r.u.dict, args->kw[i].key, args->kw[i].value)) return false;
    }
    *out = r;
    return true;
}

static bool fn_namespace(struct jinja_ctx *c, struct jinja_value *a, const struct jinja_args *args,
                         struct jinja_value *out) {
    if (!fn_dict(c, a, args, out)) return false;
    out->kind = JINJA_NAMESPACE;
    return true;
}

static bool fn_raise(struct jinja_ctx *c, struct jinja_value *a, const struct jinja_args *args,
                     struct jinja_value *out) {
    struct jinja_value text;
    (void)args;
    (void)out;
    if (!jinja_to_string(c, a[1], &text)) return false;
    return jinja_fail(c, STATUS_TEMPLATE, "%.*s", (int)text.u.s->len, text.u.s->data);
}

static bool fn_strftime_now(struct jinja_ctx *c, struct jinja_value *a,
                            const struct jinja_args *args, struct jinja_value *out) {
    struct jinja_string *s;
    char format[128], text[512];
    (void)args;
    if (!jinja_need_str(c, a[1], &s)) return false;
    if (s->len >= sizeof format || memchr(s->data, '\0', s->len)) {
        return jinja_fail(c, STATUS_TEMPLATE, "strftime_now: the format is too long");
    }
    memcpy(format, s->data, s->len);
    format[s->len] = '\0';
    time_t now = (time_t)c->now_s;
    struct tm tm;
    memset(&tm, 0, sizeof tm);
    gmtime_r(&now, &tm);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t n = s->len ? strftime(text, sizeof text, format, &tm) : 0;
#pragma GCC diagnostic pop
    return jinja_str(c, text, jinja_utf8_valid(text, n), s->n_spans != 0, out);
}

static bool fn_cycler(struct jinja_ctx *c, struct jinja_value *a, const struct jinja_args *args,
                      struct jinja_value *out) {
    (void)a;
    if (!args->n_pos || args->n_kw) {
        return jinja_fail(c, STATUS_TEMPLATE, "at least one item has to be provided");
    }
    if (!jinja_list_new(c, JINJA_CYCLER, args->n_pos, out)) return false;
    memcpy(out->u.list->items, args->pos, args->n_pos * sizeof *args->pos);
    out->u.list->n = args->n_pos;
    return true;
}

static bool fn_joiner(struct jinja_ctx *c, struct jinja_value *a, const struct jinja_args *args,
                      struct jinja_value *out) {
    struct jinja_value sep = a[1];
    (void)args;
    if (sep.kind == JINJA_ABSENT && !jinja_str(c, ", ", 2, false, &sep)) return false;
    return jinja_list_new(c, JINJA_JOINER, 1, out) && jinja_list_append(c, out->u.list, sep);
}

const struct jinja_builtin_row jinja_functions[] = {
    {"range", "*", 0, 0, fn_range},
    {"namespace", "*", 0, 0, fn_namespace},
    {"dict", "*", 0, 0, fn_dict},
    {"raise_exception", "message", 1, 0, fn_raise},
    {"strftime_now", "format", 1, 0, fn_strftime_now},
    {"cycler", "*", 0, 0, fn_cycler},
    {"joiner", "sep", 0, 0, fn_joiner},
    {NULL, NULL, 0, 0, NULL},
};

/* ---- tests ---- */

#define TEST(name)                                                                                 \
    static bool name(struct jinja_ctx *c, struct jinja_value *a, const struct jinja_args *args,    \
                     struct jinja_value *out)
#define IGNORE (void)c, (void)args

TEST(is_defined) {
    IGNORE;
    *out = jinja_bool(a[0].kind != JINJA_UNDEFINED);
    return true;
}
TEST(is_undefined) {
    IGNORE;
    *out = jinja_bool(a[0].kind == JINJA_UNDEFINED);
    return true;
}
TEST(is_none) {
    IGNORE;
    *out = jinja_bool(a[0].kind == JINJA_NONE);
    return true;
}
TEST(is_string) {
    IGNORE;
    *out = jinja_bool(a[0].kind == JINJA_STRING);
    return true;
}
TEST(is_mapping) {
    IGNORE;
    *out = jinja_bool(a[0].kind == JINJA_DICT);
    return true;
}
TEST(is_number) {
    IGNORE;
    *out = jinja_bool(jinja_is_number(a[0]));
    return true;
}
TEST(is_integer) {
    IGNORE;
    *out = jinja_bool(a[0].kind == JINJA_INT);
    return true;
}
TEST(is_float) {
    IGNORE;
    *out = jinja_bool(a[0].kind == JINJA_FLOAT);
    return true;
}
TEST(is_boolean) {
    IGNORE;
    *out = jinja_bool(a[0].kind == JINJA_BOOL);
    return true;
}
TEST(is_true) {
    IGNORE;
    *out = jinja_bool(a[0].kind == JINJA_BOOL && a[0].u.b);
    return true;
}
TEST(is_false) {
    IGNORE;
    *out = jinja_bool(a[0].kind == JINJA_BOOL && !a[0].u.b);
    return true;
}
TEST(is_escaped) {
    IGNORE;
    (void)a;
    *out = jinja_bool(false);
    return true;
}

TEST(is_iterable) {
    IGNORE;
    *out = jinja_bool(
        a[0].kind == JINJA_UNDEFINED || a[0].kind == JINJA_LOOP ||
        (a[0].kind >= JINJA_STRING && a[0].kind <= JINJA_RANGE && a[0].kind != JINJA_NAMESPACE));
    return true;
}

/* What has a length and can be indexed. */
TEST(is_sequence) {
    IGNORE;
    *out = jinja_bool(a[0].kind == JINJA_UNDEFINED || a[0].kind == JINJA_STRING ||
                      a[0].kind == JINJA_LIST || a[0].kind == JINJA_TUPLE ||
                      a[0].kind == JINJA_DICT || a[0].kind == JINJA_RANGE);
    return true;
}

TEST(is_callable) {
    IGNORE;
    *out = jinja_bool(a[0].kind >= JINJA_LOOP || a[0].kind == JINJA_UNDEFINED);
    return true;
}

TEST(is_eq) {
    bool same;
    (void)args;
    if (!jinja_equal(c, a[0], a[1], &same)) return false;
    *out = jinja_bool(same);
    return true;
}

TEST(is_ne) {
    bool same;
    (void)args;
    if (!jinja_equal(c, a[0], a[1], &same)) return false;
    *out = jinja_bool(!same);
    return true;
}

TEST(is_lt) {
    int r;
    (void)args;
    if (!jinja_compare(c, a[0], a[1], "<", &r)) return false;
    *out = jinja_bool(r == -1);
    return true;
}

TEST(is_le) {
    int r;
    (void)args;
    if (!jinja_compare(c, a[0], a[1], "<=", &r)) return false;
    *out = jinja_bool(r == -1 || r == 0);
    return true;
}

TEST(is_gt) {
    int r;
    (void)args;
    if (!jinja_compare(c, a[0], a[1], ">", &r)) return false;
    *out = jinja_bool(r == 1);
    return true;
}

TEST(is_ge) {
    int r;
    (void)args;
    if (!jinja_compare(c, a[0], a[1], ">=", &r)) return false;
    *out = jinja_bool(r == 1 || r == 0);
    return true;
}

TEST(is_in) {
    bool yes;
    (void)args;
    if (!jinja_contains(c, a[1], a[0], &yes)) return false;
    *out = jinja_bool(yes);
    return true;
}

static bool divisible(struct jinja_ctx *c, struct jinja_value v, struct jinja_value by,
                      int64_t rest, struct jinja_value *out) {
    struct jinja_value r;
    bool same;
    /* Jinja asks for v % by, which formats where v is a string. */
    const bool formats = v.kind == JINJA_STRING;
    if (!formats && !jinja_is_number(v)) {
        if (v.kind == JINJA_UNDEFINED) return jinja_fail_undefined(c, v);
        return jinja_fail(c, STATUS_TEMPLATE, "expected a number, got %s", jinja_type_name(v));
    }
    if (!(formats ? jinja_percent(c, v.u.s, by, &r) : jinja_arith(c, OP_MOD, v, by, &r)) ||
        !jinja_equal(c, r, jinja_int(rest), &same)) {
        return false;
    }
    *out = jinja_bool(same);
    return true;
}

TEST(is_odd) {
    (void)args;
    return divisible(c, a[0], jinja_int(2), 1, out);
}
TEST(is_even) {
    (void)args;
    return divisible(c, a[0], jinja_int(2), 0, out);
}
TEST(is_divisibleby) {
    (void)args;
    return divisible(c, a[0], a[1], 0, out);
}

static bool is_case(struct jinja_ctx *c, struct jinja_value v, bool upper,
                    struct jinja_value *out) {
    struct jinja_value s;
    bool cased = false, ok = true;
    if (!jinja_to_string(c, v, &s) || !jinja_work(c, s.u.s->len / 16)) return false;
    for (uint32_t i = 0, cp; i < s.u.s->len && ok;) {
        i += jinja_utf8(s.u.s->data + i, &cp);
        bool is_up = jinja_lower_cp(cp) != cp, is_low = jinja_upper_cp(cp) != cp;
        cased |= is_up || is_low;
        ok = upper ? !is_low : !is_up;
    }
    *out = jinja_bool(cased && ok);
    return true;
}

TEST(is_upper) {
    (void)args;
    return is_case(c, a[0], true, out);
}
TEST(is_lower) {
    (void)args;
    return is_case(c, a[0], false, out);
}

TEST(is_sameas) {
    bool same = a[0].kind == a[1].kind;
    (void)args;
    if (same && a[0].kind >= JINJA_LIST) {
        same = a[0].kind == JINJA_FUNCTION ? a[0].id == a[1].id : a[0].u.list == a[1].u.list;
    } else if (same && !jinja_equal(c, a[0], a[1], &same)) {
        return false;
    }
    *out = jinja_bool(same);
    return true;
}

static bool named(struct jinja_ctx *c, const struct jinja_builtin_row *rows,
                  struct jinja_value name, struct jinja_value *out) {
    struct jinja_string *s;
    if (!jinja_need_str(c, name, &s)) return false;
    *out = jinja_bool(jinja_find_row(rows, s->data, s->len) != JINJA_NO_ID);
    return true;
}

TEST(is_filter) {
    (void)args;
    return named(c, jinja_filters, a[0], out);
}
TEST(is_test) {
    (void)args;
    return named(c, jinja_tests, a[0], out);
}

const struct jinja_builtin_row jinja_tests[] = {
    {"defined", "", 0, 0, is_defined},
    {"undefined", "", 0, 0, is_undefined},
    {"none", "", 0, 0, is_none},
    {"string", "", 0, 0, is_string},
    {"mapping", "", 0, 0, is_mapping},
    {"iterable", "", 0, 0, is_iterable},
    {"sequence", "", 0, 0, is_sequence},
    {"number", "", 0, 0, is_number},
    {"integer", "", 0, 0, is_integer},
    {"float", "", 0, 0, is_float},
    {"boolean", "", 0, 0, is_boolean},
    {"true", "", 0, 0, is_true},
    {"false", "", 0, 0, is_false},
    {"callable", "", 0, 0, is_callable},
    {"escaped", "", 0, 0, is_escaped},
    {"equalto", "other", 1, 0, is_eq},
    {"eq", "other", 1, 0, is_eq},
    {"==", "other", 1, 0, is_eq},
    {"ne", "other", 1, 0, is_ne},
    {"!=", "other", 1, 0, is_ne},
    {"lt", "other", 1, 0, is_lt},
    {"lessthan", "other", 1, 0, is_lt},
    {"<", "other", 1, 0, is_lt},
    {"le", "other", 1, 0, is_le},
    {"<=", "other", 1, 0, is_le},
    {"gt", "other", 1, 0, is_gt},
    {"greaterthan", "other", 1, 0, is_gt},
    {">", "other", 1, 0, is_gt},
    {"ge", "other", 1, 0, is_ge},
    {">=", "other", 1, 0, is_ge},
    {"in", "seq", 1, 0, is_in},
    {"odd", "", 0, 0, is_odd},
    {"even", "", 0, 0, is_even},
    {"divisibleby", "num", 1, 0, is_divisibleby},
    {"upper", "", 0, 0, is_upper},
    {"lower", "", 0, 0, is_lower},
    {"sameas", "other", 1, 0, is_sameas},
    {"filter", "", 0, 0, is_filter},
    {"test", "", 0, 0, is_test},
    {NULL, NULL, 0, 0, NULL},
};
