#include "models/jinja_internal.h"

#include <stdio.h>
#include <string.h>

struct parser {
    struct jinja_template *t;
    struct jinja_ctx *c;
    const struct jinja_token *tok;
    unsigned depth;
    unsigned loops;              /* for bodies around the current place */
    struct jinja_node *function; /* the macro or call block being read */
};

static struct jinja_node *parse_expr(struct parser *p);
static struct jinja_node *parse_unary(struct parser *p, bool with_filter);
static bool parse_body(struct parser *p, struct jinja_nodes *out, const char *const *ends);

static void *fail(struct parser *p, const char *why, const char *what) {
    jinja_fail(p->c, STATUS_TEMPLATE, "template line %u: %s%s", p->tok->line, why, what);
    return NULL;
}

static void describe(const struct jinja_token *t, char out[48]) {
    switch (t->kind) {
    case TOKEN_NAME:
        snprintf(out, 48, "'%.*s'", t->len > 40 ? 40 : (int)t->len, t->text);
        break;
    case TOKEN_OP:
        snprintf(out, 48, "'%s'", t->op);
        break;
    case TOKEN_STRING:
        snprintf(out, 48, "a string");
        break;
    case TOKEN_INT:
    case TOKEN_FLOAT:
        snprintf(out, 48, "a number");
        break;
    case TOKEN_EOF:
        snprintf(out, 48, "the end of the template");
        break;
    case TOKEN_DATA:
        snprintf(out, 48, "text");
        break;
    default:
        snprintf(out, 48, "the end of the tag");
        break;
    }
}

static void *unexpected(struct parser *p, const char *wanted) {
    char got[48], why[160];
    describe(p->tok, got);
    snprintf(why, sizeof why, "expected %s, got ", wanted);
    return fail(p, why, got);
}

static struct jinja_node *node(struct parser *p, enum jinja_node_kind kind) {
    struct jinja_node *n = jinja_alloc(p->c, sizeof *n);
    if (!n) return NULL;
    n->kind = (uint8_t)kind;
    n->line = p->tok->line;
    n->id = JINJA_NO_ID;
    return n;
}

static bool add(struct parser *p, struct jinja_nodes *l, struct jinja_node *n) {
    if (p->c->failed) return false;
    if (l->n == l->cap) {
        uint32_t cap = l->cap ? l->cap * 2 : 4;
        struct jinja_node **items = jinja_alloc(p->c, cap * sizeof(struct jinja_node *));
        if (!items) return false;
        if (l->n) memcpy(items, l->items, l->n * sizeof(struct jinja_node *));
        l->items = items;
        l->cap = cap;
    }
    l->items[l->n++] = n;
    return true;
}

static bool deeper(struct parser *p) {
    if (++p->depth <= JINJA_MAX_DEPTH) return true;
    return jinja_fail(p->c, STATUS_TOO_LARGE, "template line %u: nested more than %d deep",
                      p->tok->line, JINJA_MAX_DEPTH);
}

static bool is_op(const struct jinja_token *t, const char *op) {
    return t->kind == TOKEN_OP && strcmp(t->op, op) == 0;
}

static bool is_name(const struct jinja_token *t, const char *name) {
    return t->kind == TOKEN_NAME && t->len == strlen(name) && memcmp(t->text, name, t->len) == 0;
}

static bool skip_op(struct parser *p, const char *op) {
    if (!is_op(p->tok, op)) return false;
    p->tok++;
    return true;
}

static bool skip_name(struct parser *p, const char *name) {
    if (!is_name(p->tok, name)) return false;
    p->tok++;
    return true;
}

static bool need_op(struct parser *p, const char *op) {
    if (p->c->failed) return false;
    if (skip_op(p, op)) return true;
    char want[8];
    snprintf(want, sizeof want, "'%s'", op);
    unexpected(p, want);
    return false;
}

static struct jinja_string *name_string(struct parser *p, const struct jinja_token *t) {
    struct jinja_value v;
    if (!jinja_str(p->c, t->text, t->len, false, &v)) return NULL;
    jinja_chars(v.u.s);
    return v.u.s;
}

/* Numbers the names, so that variables are found by comparing integers. */
static bool intern(struct parser *p, struct jinja_string *name, uint32_t *symbol) {
    struct jinja_template *t = p->t;
    struct jinja_value key = {.kind = JINJA_STRING, .u.s = name};
    struct jinja_value *found = jinja_dict_get(t->symbol_of, key);
    if (found) {
        *symbol = (uint32_t)found->u.i;
        return true;
    }
    if (t->n_symbols == t->cap_symbols) {
        uint32_t cap = t->cap_symbols ? t->cap_symbols * 2 : 32;
        struct jinja_string **s = jinja_alloc(p->c, cap * sizeof(struct jinja_string *));
        if (!s) return false;
        if (t->n_symbols) memcpy(s, t->symbols, t->n_symbols * sizeof(struct jinja_string *));
        t->symbols = s;
        t->cap_symbols = cap;
    }
    *symbol = t->n_symbols;
    t->symbols[t->n_symbols++] = name;
    return jinja_dict_set(p->c, t->symbol_of, key, jinja_int(*symbol));
}

static struct jinja_node *parse_name(struct parser *p, const char *wanted) {
    if (p->tok->kind != TOKEN_NAME) return unexpected(p, wanted);
    struct jinja_node *n = node(p, NODE_NAME);
    if (!n) return NULL;
    n->name = name_string(p, p->tok++);
    if (!n->name || !intern(p, n->name, &n->symbol)) return NULL;
    if (p->function) {
        p->function->uses_varargs |= n->symbol == SYMBOL_VARARGS;
        p->function->uses_kwargs |= n->symbol == SYMBOL_KWARGS;
        p->function->uses_caller |= n->symbol == SYMBOL_CALLER;
    }
    return n;
}

static bool is_tuple_end(struct parser *p, bool stops_at_in) {
    const struct jinja_token *t = p->tok;
    return t->kind == TOKEN_VAR_END || t->kind == TOKEN_BLOCK_END || is_op(t, ")") ||
           (stops_at_in && is_name(t, "in"));
}

/* One expression, or several with commas as a tuple. `parens`: () is an empty tuple. */
static struct jinja_node *parse_tuple(struct parser *p, bool parens,
                                      struct jinja_node *(*one)(struct parser *),
                                      bool stops_at_in) {
    struct jinja_node *tuple = NULL, *first = NULL;
    struct jinja_nodes items = {0};
    bool is_tuple = false;
    for (;;) {
        if (items.n && !need_op(p, ",")) return NULL;
        if (is_tuple_end(p, stops_at_in)) break;
        struct jinja_node *n = one(p);
        if (!n || !add(p, &items, n)) return NULL;
        if (!is_op(p->tok, ",")) break;
        is_tuple = true;
    }
    if (!is_tuple) {
        if (items.n) first = items.items[0];
        if (first) return first;
        if (!parens) return unexpected(p, "an expression");
    }
    tuple = node(p, NODE_TUPLE);
    if (tuple) tuple->kids = items;
    return tuple;
}

static bool parse_items(struct parser *p, struct jinja_node *n, const char *end, bool pairs) {
    while (!is_op(p->tok, end)) {
        if (n->kids.n && !need_op(p, ",")) return false;
        if (is_op(p->tok, end)) break;
        struct jinja_node *item = parse_expr(p);
        if (!item || !add(p, &n->kids, item)) return false;
        if (!pairs) continue;
        if (!need_op(p, ":") || !(item = parse_expr(p)) || !add(p, &n->kids, item)) return false;
    }
    return need_op(p, end);
}

static struct jinja_node *constant(struct parser *p, struct jinja_value v) {
    struct jinja_node *n = node(p, NODE_CONST);
    if (n) n->value = v;
    return n;
}

static struct jinja_node *parse_strings(struct parser *p) {
    struct jinja_sb sb;
    struct jinja_value v;
    jinja_sb_init(&sb, p->c);
    for (; p->tok->kind == TOKEN_STRING; p->tok++) {
        if (!jinja_sb_put(&sb, p->tok->text, p->tok->len, false)) return NULL;
    }
    if (!jinja_sb_finish(&sb, &v)) return NULL;
    jinja_chars(v.u.s);
    return constant(p, v);
}

static struct jinja_node *parse_primary(struct parser *p) {
    const struct jinja_token *t = p->tok;
    struct jinja_node *n;
    switch (t->kind) {
    case TOKEN_NAME:
        if (is_name(t, "true") || is_name(t, "True") || is_name(t, "false") ||
            is_name(t, "False")) {
            p->tok++;
            return constant(p, jinja_bool(t->text[0] == 't' || t->text[0] == 'T'));
        }
        if (is_name(t, "none") || is_name(t, "None")) {
            p->tok++;
            return constant(p, jinja_none());
        }
        return parse_name(p, "a name");
    case TOKEN_STRING:
        return parse_strings(p);
    case TOKEN_INT:
        p->tok++;
        return constant(p, jinja_int(t->i));
    case TOKEN_FLOAT:
        p->tok++;
        return constant(p, jinja_float(t->f));
    case TOKEN_OP:
        if (skip_op(p, "(")) {
            n = parse_tuple(p, true, parse_expr, false);
            return n && need_op(p, ")") ? n : NULL;
        }
        if (is_op(t, "[") || is_op(t, "{")) {
            bool list = t->op[0] == '[';
            p->tok++;
            n = node(p, list ? NODE_LIST : NODE_DICT);
            return n && parse_items(p, n, list ? "]" : "}", !list) ? n : NULL;
        }
        break;
    default:
        break;
    }
    return unexpected(p, "an expression");
}

static bool parse_args(struct parser *p, struct jinja_node *call) {
    uint32_t cap = 0;
    unsigned stage = 0; /* 0 positional, 1 keywords, 2 after *x, 3 after **x */
    if (!need_op(p, "(")) return false;
    while (!is_op(p->tok, ")")) {
        if (call->n_args && !need_op(p, ",")) return false;
        if (is_op(p->tok, ")")) break;
        struct jinja_arg a = {0};
        unsigned at = 0;
        if (skip_op(p, "*")) {
            a.stars = 1;
            at = 2;
        } else if (skip_op(p, "**")) {
            a.stars = 2;
            at = 3;
        } else if (p->tok->kind == TOKEN_NAME && is_op(p->tok + 1, "=")) {
            a.name = name_string(p, p->tok);
            p->tok += 2;
            at = 1;
        }
        bool order_ok = at == 0   ? stage == 0
                        : at == 1 ? stage <= 2
                        : at == 2 ? stage < 2
                                  : stage < 3;
        if (!order_ok) return fail(p, "invalid order of arguments in a call", "") != NULL;
        if (at > stage) stage = at;
        a.value = parse_expr(p);
        if (!a.value) return false;
        if (call->n_args == cap) {
            cap = cap ? cap * 2 : 4;
            struct jinja_arg *args = jinja_alloc(p->c, cap * sizeof *args);
            if (!args) return false;
            if (call->n_args) memcpy(args, call->args, call->n_args * sizeof *args);
            call->args = args;
        }
        call->args[call->n_args++] = a;
    }
    return need_op(p, ")");
}

/* start:stop:step or an index. */
static struct jinja_node *parse_subscribed(struct parser *p) {
    struct jinja_node *parts[3] = {NULL, NULL, NULL};
    if (!is_op(p->tok, ":")) {
        parts[0] = parse_expr(p);
        if (!parts[0] || !is_op(p->tok, ":")) return parts[0];
    }
    struct jinja_node *s = node(p, NODE_SLICE);
    if (!s) return NULL;
    for (int i = 1; i < 3; i++) {
        if (!skip_op(p, ":")) break;
        if (is_op(p->tok, ":") || is_op(p->tok, "]") || is_op(p->tok, ",")) continue;
        parts[i] = parse_expr(p);
        if (!parts[i]) return NULL;
    }
    for (int i = 0; i < 3; i++) {
        if (!add(p, &s->kids, parts[i])) return NULL;
    }
    return s;
}

static struct jinja_node *parse_subscript(struct parser *p, struct jinja_node *of) {
    if (skip_op(p, ".")) {
        if (p->tok->kind == TOKEN_INT) {
            struct jinja_node *n = node(p, NODE_ITEM);
            if (!n) return NULL;
            n->a = of;
            n->b = constant(p, jinja_int(p->tok->i));
            p->tok++;
            return n->b ? n : NULL;
        }
        if (p->tok->kind != TOKEN_NAME) return unexpected(p, "a name or a number");
        struct jinja_node *n = node(p, NODE_ATTR);
        if (!n) return NULL;
        n->a = of;
        n->id = jinja_find_row(jinja_methods, p->tok->text, p->tok->len);
        n->name = name_string(p, p->tok++);
        return n->name ? n : NULL;
    }
    p->tok++; /* [ */
    struct jinja_node *n = node(p, NODE_ITEM);
    struct jinja_nodes keys = {0};
    if (!n) return NULL;
    n->a = of;
    while (!is_op(p->tok, "]")) {
        if (keys.n && !need_op(p, ",")) return NULL;
        struct jinja_node *key = parse_subscribed(p);
        if (!key || !add(p, &keys, key)) return NULL;
    }
    p->tok++;
    if (keys.n == 1) {
        n->b = keys.items[0];
        return n;
    }
    for (uint32_t i = 0; i < keys.n; i++) {
        if (keys.items[i]->kind == NODE_SLICE) return fail(p, "a slice cannot be in a tuple", "");
    }
    n->b = node(p, NODE_TUPLE);
    if (n->b) n->b->kids = keys;
    return n->b ? n : NULL;
}

static struct jinja_node *parse_call(struct parser *p, struct jinja_node *f) {
    struct jinja_node *n = node(p, NODE_CALL);
    if (!n) return NULL;
    n->a = f;
    return parse_args(p, n) ? n : NULL;
}

/* Dotted name of a filter or test. */
static bool parse_row(struct parser *p, struct jinja_node *n, const struct jinja_builtin_row *rows,
                      const char *what) {
    if (p->tok->kind != TOKEN_NAME) return unexpected(p, what) != NULL;
    n->id = jinja_find_row(rows, p->tok->text, p->tok->len);
    if (n->id == JINJA_NO_ID || is_op(p->tok + 1, ".")) {
        char why[64], got[48];
        describe(p->tok, got);
        snprintf(why, sizeof why, "no %s named ", what);
        return fail(p, why, got) != NULL;
    }
    p->tok++;
    return true;
}

static struct jinja_node *parse_filter(struct parser *p, struct jinja_node *of) {
    struct jinja_node *n = node(p, NODE_FILTER);
    if (!n || !parse_row(p, n, jinja_filters, "filter")) return NULL;
    n->a = of;
    return !is_op(p->tok, "(") || parse_args(p, n) ? n : NULL;
}

static struct jinja_node *parse_postfix(struct parser *p, struct jinja_node *n) {
    while (n) {
        if (is_op(p->tok, ".") || is_op(p->tok, "[")) {
            n = parse_subscript(p, n);
        } else if (is_op(p->tok, "(")) {
            n = parse_call(p, n);
        } else {
            break;
        }
    }
    return n;
}

static struct jinja_node *parse_test(struct parser *p, struct jinja_node *of) {
    p->tok++; /* is */
    bool negated = skip_name(p, "not");
    struct jinja_node *n = node(p, NODE_TEST);
    if (!n) return NULL;
    n->a = of;
    /* `in` is an operator elsewhere and a test here. */
    if (!parse_row(p, n, jinja_tests, "test")) return NULL;
    const struct jinja_token *t = p->tok;
    if (is_op(t, "(")) {
        if (!parse_args(p, n)) return NULL;
    } else if ((t->kind == TOKEN_NAME && !is_name(t, "else") && !is_name(t, "or") &&
                !is_name(t, "and")) ||
               t->kind == TOKEN_STRING || t->kind == TOKEN_INT || t->kind == TOKEN_FLOAT ||
               is_op(t, "[") || is_op(t, "{")) {
        if (is_name(t, "is")) return fail(p, "tests cannot be chained with is", "");
        n->args = jinja_alloc(p->c, sizeof *n->args);
        if (!n->args) return NULL;
        n->args[0].value = parse_postfix(p, parse_primary(p));
        n->n_args = 1;
        if (!n->args[0].value) return NULL;
    }
    if (!negated) return n;
    struct jinja_node *not_n = node(p, NODE_NOT);
    if (not_n) not_n->a = n;
    return not_n;
}

static struct jinja_node *parse_unary(struct parser *p, bool with_filter) {
    struct jinja_node *n;
    if (!deeper(p)) return NULL;
    if (is_op(p->tok, "-") || is_op(p->tok, "+")) {
        n = node(p, p->tok->op[0] == '-' ? NODE_NEG : NODE_POS);
        p->tok++;
        if (!n || !(n->a = parse_unary(p, false))) return NULL;
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    while (n && with_filter) {
        if (skip_op(p, "|")) {
            n = parse_filter(p, n);
        } else if (is_name(p->tok, "is")) {
            n = parse_test(p, n);
        } else if (is_op(p->tok, "(")) {
            n = parse_call(p, n);
        } else {
            break;
        }
    }
    p->depth--;
    return n;
}

/* Binary operators from loosest to tightest: + -, ~, * / // %, **; all associate to the left. */
static bool binary_op(const struct jinja_token *t, unsigned *level, enum jinja_op *op) {
    static const struct {
        char text[3];
        uint8_t level, op;
    } table[] = {{"+", 1, OP_ADD}, {"-", 1, OP_SUB},       {"~", 2, 0},      {"*", 3, OP_MUL},
                 {"/", 3, OP_DIV}, {"//", 3, OP_FLOORDIV}, {"%", 3, OP_MOD}, {"**", 4, OP_POW}};
    if (t->kind != TOKEN_OP) return false;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strcmp(table[i].text, t->op) != 0) continue;
        *level = table[i].level;
        *op = (enum jinja_op)table[i].op;
        return true;
    }
    return false;
}

static bool add_operand(struct parser *p, struct jinja_node *n, enum jinja_op op,
                        struct jinja_node *right) {
    uint32_t had = n->kids.n, cap = n->kids.cap;
    if (!add(p, &n->kids, right)) return false;
    if (n->kids.cap != cap) {
        uint8_t *ops = jinja_alloc(p->c, n->kids.cap);
        if (!ops) return false;
        if (had) memcpy(ops, n->ops, had);
        n->ops = ops;
    }
    n->ops[had] = (uint8_t)op;
    return true;
}

/* Chains of one level are one node, so that their length costs no depth. */
static struct jinja_node *parse_binary(struct parser *p, unsigned min_level) {
    struct jinja_node *left = parse_unary(p, true), *chain = NULL;
    unsigned level, chain_level = 0;
    enum jinja_op op;
    while (left && binary_op(p->tok, &level, &op) && level >= min_level) {
        if (!chain || chain_level != level) {
            chain = node(p, level == 2 ? NODE_CONCAT : NODE_BINARY);
            if (!chain) return NULL;
            chain->a = left;
            chain_level = level;
            left = chain;
        }
        p->tok++;
        struct jinja_node *right = parse_binary(p, level + 1);
        if (!right || !add_operand(p, chain, op, right)) return NULL;
    }
    return left;
}

static bool compare_op(struct parser *p, enum jinja_op *op) {
    static const struct {
        char text[3];
        uint8_t op;
    } table[] = {{"==", OP_EQ}, {"!=", OP_NE}, {"<", OP_LT},
                 {"<=", OP_LE}, {">", OP_GT},  {">=", OP_GE}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (!skip_op(p, table[i].text)) continue;
        *op = (enum jinja_op)table[i].op;
        return true;
    }
    if (is_name(p->tok, "not") && is_name(p->tok + 1, "in")) {
        p->tok += 2;
        *op = OP_NOT_IN;
        return true;
    }
    *op = OP_IN;
    return skip_name(p, "in");
}

static struct jinja_node *parse_compare(struct parser *p) {
    uint32_t nots = 0;
    while (skip_name(p, "not")) nots++;
    struct jinja_node *n = parse_binary(p, 1), *cmp = NULL;
    enum jinja_op op;
    while (n && compare_op(p, &op)) {
        if (!cmp) {
            cmp = node(p, NODE_COMPARE);
            if (!cmp) return NULL;
            cmp->a = n;
            n = cmp;
        }
        struct jinja_node *right = parse_binary(p, 1);
        if (!right || !add_operand(p, cmp, op, right)) return NULL;
    }
    /* An even number of nots still makes a bool. */
    if (nots > 2) nots = 2 - (nots & 1);
    for (; n && nots; nots--) {
        struct jinja_node *not_n = node(p, NODE_NOT);
        if (not_n) not_n->a = n;
        n = not_n;
    }
    return n;
}

/* `and` binds tighter than `or`; chains are flat (kids), so their length costs no depth. */
static struct jinja_node *parse_logic(struct parser *p, bool is_or) {
    struct jinja_node *n = is_or ? parse_logic(p, false) : parse_compare(p), *chain = NULL;
    while (n && skip_name(p, is_or ? "or" : "and")) {
        if (!chain) {
            chain = node(p, is_or ? NODE_OR : NODE_AND);
            if (!chain || !add(p, &chain->kids, n)) return NULL;
            n = chain;
        }
        struct jinja_node *right = is_or ? parse_logic(p, false) : parse_compare(p);
        if (!right || !add(p, &chain->kids, right)) return NULL;
    }
    return n;
}

static struct jinja_node *parse_or(struct parser *p) {
    return parse_logic(p, true);
}

static struct jinja_node *parse_expr(struct parser *p) {
    if (!deeper(p)) return NULL;
    struct jinja_node *n = parse_or(p);
    unsigned chained = 0;
    while (n && skip_name(p, "if")) {
        if (++chained > JINJA_MAX_DEPTH) return fail(p, "too many inline ifs in a row", "");
        struct jinja_node *cond = node(p, NODE_COND);
        if (!cond) return NULL;
        cond->b = n;
        cond->a = parse_or(p);
        if (!cond->a) return NULL;
        if (skip_name(p, "else") && !(cond->c = parse_expr(p))) return NULL;
        n = cond;
    }
    p->depth--;
    return n;
}

/* ---- statements ---- */

static struct jinja_node *target_one(struct parser *p) {
    if (skip_op(p, "(")) {
        if (!deeper(p)) return NULL;
        struct jinja_node *n = parse_tuple(p, true, target_one, true);
        p->depth--;
        return n && need_op(p, ")") ? n : NULL;
    }
    if (is_name(p->tok, "true") || is_name(p->tok, "false") || is_name(p->tok, "none") ||
        is_name(p->tok, "True") || is_name(p->tok, "False") || is_name(p->tok, "None")) {
        return fail(p, "cannot assign to a constant", "");
    }
    struct jinja_node *n = parse_name(p, "a name to assign to");
    if (n && skip_op(p, ".")) {
        struct jinja_node *attr = node(p, NODE_ATTR);
        if (!attr) return NULL;
        if (p->tok->kind != TOKEN_NAME) return unexpected(p, "a name");
        attr->a = n;
        attr->name = name_string(p, p->tok++);
        n = attr->name ? attr : NULL;
    }
    return n;
}

static bool end_of_tag(struct parser *p) {
    if (p->c->failed) return false;
    if (p->tok->kind != TOKEN_BLOCK_END) return unexpected(p, "'%}'") != NULL;
    p->tok++;
    return true;
}

/* After the body's end word: the rest of that tag. */
static bool body_to(struct parser *p, struct jinja_nodes *out, const char *end) {
    const char *ends[] = {end, NULL};
    if (!parse_body(p, out, ends)) return false;
    p->tok++; /* the word */
    return end_of_tag(p);
}

static struct jinja_node *parse_for(struct parser *p) {
    static const char *const ends[] = {"endfor", "else", NULL};
    struct jinja_node *n = node(p, NODE_FOR);
    if (!n) return NULL;
    n->a = parse_tuple(p, false, target_one, true);
    if (!n->a) return NULL;
    if (!skip_name(p, "in")) return unexpected(p, "'in'");
    n->b = parse_tuple(p, false, parse_or, false);
    if (!n->b) return NULL;
    if (is_name(p->tok, "recursive")) return fail(p, "recursive loops are not supported", "");
    if (skip_name(p, "if") && !(n->c = parse_expr(p))) return NULL;
    if (is_name(p->tok, "recursive")) return fail(p, "recursive loops are not supported", "");
    if (!end_of_tag(p)) return NULL;
    p->loops++;
    bool ok = parse_body(p, &n->body, ends);
    p->loops--;
    if (!ok) return NULL;
    bool has_else = is_name(p->tok, "else");
    p->tok++;
    if (!end_of_tag(p)) return NULL;
    return !has_else || body_to(p, &n->other, "endfor") ? n : NULL;
}

static struct jinja_node *parse_if(struct parser *p) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct jinja_node *first = node(p, NODE_IF), *n = first;
    for (;;) {
        if (!n) return NULL;
        n->a = parse_tuple(p, false, parse_or, false);
        if (!n->a || !end_of_tag(p) || !parse_body(p, &n->body, ends)) return NULL;
        if (!skip_name(p, "elif")) break;
        /* The chain is walked in a loop by c, never by recursion. */
        n->c = node(p, NODE_IF);
        n = n->c;
    }
    bool has_else = is_name(p->tok, "else");
    p->tok++;
    if (!end_of_tag(p)) return NULL;
    return !has_else || body_to(p, &n->other, "endif") ? first : NULL;
}

static struct jinja_node *parse_set(struct parser *p) {
    struct jinja_node *n = node(p, NODE_SET);
    if (!n) return NULL;
    n->a = parse_tuple(p, false, target_one, false);
    if (!n->a) return NULL;
    if (skip_op(p, "=")) {
        n->b = parse_tuple(p, false, parse_expr, false);
        return n->b && end_of_tag(p) ? n : NULL;
    }
    n->kind = NODE_SET_BLOCK;
    while (skip_op(p, "|")) {
        n->b = parse_filter(p, n->b);
        if (!n->b) return NULL;
    }
    return end_of_tag(p) && body_to(p, &n->body, "endset") ? n : NULL;
}

static bool parse_params(struct parser *p, struct jinja_node *n) {
    uint32_t cap = 0;
    bool had_fallback = false;
    if (!need_op(p, "(")) return false;
    while (!is_op(p->tok, ")")) {
        if (n->n_params && !need_op(p, ",")) return false;
        struct jinja_node *name = parse_name(p, "a parameter name");
        if (!name) return false;
        struct jinja_param param = {.symbol = name->symbol, .name = name->name};
        if (skip_op(p, "=")) {
            param.fallback = parse_expr(p);
            if (!param.fallback) return false;
            had_fallback = true;
        } else if (had_fallback) {
            return fail(p, "a parameter without a default follows one with a default", "") != NULL;
        }
        if (n->n_params == cap) {
            cap = cap ? cap * 2 : 4;
            struct jinja_param *params = jinja_alloc(p->c, cap * sizeof *params);
            if (!params) return false;
            if (n->n_params) memcpy(params, n->params, n->n_params * sizeof *params);
            n->params = params;
        }
        n->params[n->n_params++] = param;
    }
    return need_op(p, ")");
}

/* A macro, or a call block, whose body is the macro `caller`. */
static struct jinja_node *parse_macro(struct parser *p, bool call) {
    struct jinja_node *n = node(p, call ? NODE_CALL_BLOCK : NODE_MACRO), *outer = p->function;
    if (!n) return NULL;
    unsigned loops = p->loops;
    if (call) {
        if (is_op(p->tok, "(") && !parse_params(p, n)) return NULL;
        n->b = parse_expr(p);
        if (!n->b) return NULL;
        if (n->b->kind != NODE_CALL) return fail(p, "expected a call", "");
        n->name = p->t->symbols[SYMBOL_CALLER];
    } else {
        struct jinja_node *name = parse_name(p, "a macro name");
        if (!name) return NULL;
        n->name = name->name;
        n->symbol = name->symbol;
        p->function = n;
        if (!parse_params(p, n)) return NULL;
    }
    p->function = n;
    p->loops = 0;
    if (!end_of_tag(p) || !body_to(p, &n->body, call ? "endcall" : "endmacro")) return NULL;
    p->loops = loops;
    p->function = outer;
    return n;
}

static struct jinja_node *parse_filter_block(struct parser *p) {
    struct jinja_node *n = node(p, NODE_FILTER_BLOCK);
    if (!n) return NULL;
    do {
        n->b = parse_filter(p, n->b);
        if (!n->b) return NULL;
    } while (skip_op(p, "|"));
    return end_of_tag(p) && body_to(p, &n->body, "endfilter") ? n : NULL;
}

static struct jinja_node *parse_with(struct parser *p) {
    struct jinja_node *n = node(p, NODE_WITH);
    if (!n) return NULL;
    while (p->tok->kind != TOKEN_BLOCK_END) {
        if (n->kids.n && !need_op(p, ",")) return NULL;
        struct jinja_node *target = target_one(p);
        if (!target || !add(p, &n->kids, target) || !need_op(p, "=")) return NULL;
        struct jinja_node *value = parse_expr(p);
        if (!value || !add(p, &n->kids, value)) return NULL;
    }
    return end_of_tag(p) && body_to(p, &n->body, "endwith") ? n : NULL;
}

static struct jinja_node *parse_statement(struct parser *p) {
    struct jinja_node *n = NULL;
    if (p->tok->kind != TOKEN_NAME) return unexpected(p, "a tag name");
    if (skip_name(p, "for")) return parse_for(p);
    if (skip_name(p, "if")) return parse_if(p);
    if (skip_name(p, "set")) return parse_set(p);
    if (skip_name(p, "macro")) return parse_macro(p, false);
    if (skip_name(p, "call")) return parse_macro(p, true);
    if (skip_name(p, "filter")) return parse_filter_block(p);
    if (skip_name(p, "with")) return parse_with(p);
    if (skip_name(p, "generation")) {
        n = node(p, NODE_SCOPE);
        return n && end_of_tag(p) && body_to(p, &n->body, "endgeneration") ? n : NULL;
    }
    if (is_name(p->tok, "break") || is_name(p->tok, "continue")) {
        if (!p->loops) return fail(p, "break or continue outside a loop", "");
        n = node(p, is_name(p->tok, "break") ? NODE_BREAK : NODE_CONTINUE);
        p->tok++;
        return n && end_of_tag(p) ? n : NULL;
    }
    char got[48];
    describe(p->tok, got);
    return fail(p, "unknown tag ", got);
}

/* Up to a tag whose name is in `ends` (left as the next token), or to the end when `ends` is NULL.
 */
static bool parse_body(struct parser *p, struct jinja_nodes *out, const char *const *ends) {
    if (!deeper(p)) return false;
    for (;;) {
        struct jinja_node *n;
        const struct jinja_token *t = p->tok;
        if (t->kind == TOKEN_DATA) {
            n = node(p, NODE_TEXT);
            if (!n || !jinja_str(p->c, t->text, t->len, false, &n->value)) return false;
            jinja_chars(n->value.u.s);
            p->tok++;
        } else if (t->kind == TOKEN_VAR_BEGIN) {
            p->tok++;
            n = node(p, NODE_OUTPUT);
            if (!n || !(n->a = parse_tuple(p, false, parse_expr, false))) return false;
            if (p->tok->kind != TOKEN_VAR_END) return unexpected(p, "'}}'") != NULL;
            p->tok++;
        } else if (t->kind == TOKEN_BLOCK_BEGIN) {
            p->tok++;
            for (const char *const *e = ends; e && *e; e++) {
                if (!is_name(p->tok, *e)) continue;
                p->depth--;
                return true;
            }
            n = parse_statement(p);
        } else if (ends) {
            return unexpected(p, ends[0]) != NULL;
        } else {
            p->depth--;
            return true;
        }
        if (!n || !add(p, out, n)) return false;
    }
}

bool jinja_parse(struct jinja_template *t, const struct jinja_tokens *tokens) {
    static const char *const own[] = {"loop", "caller", "varargs", "kwargs"};
    struct parser p = {.t = t, .c = &t->store, .tok = tokens->items};
    struct jinja_value v;
    if (!jinja_dict_new(&t->store, &v)) return false;
    t->symbol_of = v.u.dict;
    for (uint32_t i = 0; i < SYMBOL_FIRST_FREE; i++) {
        uint32_t symbol;
        if (!jinja_str(&t->store, own[i], strlen(own[i]), false, &v) ||
            !intern(&p, v.u.s, &symbol)) {
            return false;
        }
    }
    return parse_body(&p, &t->body, NULL);
}
