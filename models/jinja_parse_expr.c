#include "models/jinja_parser.h"

#include <stdio.h>
#include <string.h>

static struct jinja_node *parse_unary(struct jinja_parser *p, bool with_filter);

struct jinja_node *jinja_parse_name(struct jinja_parser *p, const char *wanted) {
    if (p->tok->kind != TOKEN_NAME) return jinja_parser_unexpected(p, wanted);
    struct jinja_node *n = jinja_parser_node(p, NODE_NAME);
    if (!n) return NULL;
    n->name = jinja_parser_name_string(p, p->tok++);
    if (!n->name || !jinja_parser_intern(p, n->name, &n->symbol)) return NULL;
    if (p->function) {
        p->function->uses_varargs |= n->symbol == SYMBOL_VARARGS;
        p->function->uses_kwargs |= n->symbol == SYMBOL_KWARGS;
        p->function->uses_caller |= n->symbol == SYMBOL_CALLER;
    }
    return n;
}

static bool is_tuple_end(struct jinja_parser *p, bool stops_at_in) {
    const struct jinja_token *t = p->tok;
    return t->kind == TOKEN_VAR_END || t->kind == TOKEN_BLOCK_END || jinja_parser_is_op(t, ")") ||
           (stops_at_in && jinja_parser_is_name(t, "in"));
}

/* One expression, or several with commas as a tuple. `parens`: () is an empty tuple. */
struct jinja_node *jinja_parse_tuple(struct jinja_parser *p, bool parens,
                                     struct jinja_node *(*one)(struct jinja_parser *),
                                     bool stops_at_in) {
    struct jinja_node *tuple = NULL, *first = NULL;
    struct jinja_nodes items = {0};
    bool is_tuple = false;
    for (;;) {
        if (items.n && !jinja_parser_need_op(p, ",")) return NULL;
        if (is_tuple_end(p, stops_at_in)) break;
        struct jinja_node *n = one(p);
        if (!n || !jinja_parser_add(p, &items, n)) return NULL;
        if (!jinja_parser_is_op(p->tok, ",")) break;
        is_tuple = true;
    }
    if (!is_tuple) {
        if (items.n) first = items.items[0];
        if (first) return first;
        if (!parens) return jinja_parser_unexpected(p, "an expression");
    }
    tuple = jinja_parser_node(p, NODE_TUPLE);
    if (tuple) tuple->kids = items;
    return tuple;
}

static bool parse_items(struct jinja_parser *p, struct jinja_node *n, const char *end, bool pairs) {
    while (!jinja_parser_is_op(p->tok, end)) {
        if (n->kids.n && !jinja_parser_need_op(p, ",")) return false;
        if (jinja_parser_is_op(p->tok, end)) break;
        struct jinja_node *item = jinja_parse_expr(p);
        if (!item || !jinja_parser_add(p, &n->kids, item)) return false;
        if (!pairs) continue;
        if (!jinja_parser_need_op(p, ":") || !(item = jinja_parse_expr(p)) ||
            !jinja_parser_add(p, &n->kids, item))
            return false;
    }
    return jinja_parser_need_op(p, end);
}

static struct jinja_node *constant(struct jinja_parser *p, struct jinja_value v) {
    struct jinja_node *n = jinja_parser_node(p, NODE_CONST);
    if (n) n->value = v;
    return n;
}

static struct jinja_node *parse_strings(struct jinja_parser *p) {
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

static struct jinja_node *parse_primary(struct jinja_parser *p) {
    const struct jinja_token *t = p->tok;
    struct jinja_node *n;
    switch (t->kind) {
    case TOKEN_NAME:
        if (jinja_parser_is_name(t, "true") || jinja_parser_is_name(t, "True") ||
            jinja_parser_is_name(t, "false") || jinja_parser_is_name(t, "False")) {
            p->tok++;
            return constant(p, jinja_bool(t->text[0] == 't' || t->text[0] == 'T'));
        }
        if (jinja_parser_is_name(t, "none") || jinja_parser_is_name(t, "None")) {
            p->tok++;
            return constant(p, jinja_none());
        }
        return jinja_parse_name(p, "a name");
    case TOKEN_STRING:
        return parse_strings(p);
    case TOKEN_INT:
        p->tok++;
        return constant(p, jinja_int(t->i));
    case TOKEN_FLOAT:
        p->tok++;
        return constant(p, jinja_float(t->f));
    case TOKEN_OP:
        if (jinja_parser_skip_op(p, "(")) {
            n = jinja_parse_tuple(p, true, jinja_parse_expr, false);
            return n && jinja_parser_need_op(p, ")") ? n : NULL;
        }
        if (jinja_parser_is_op(t, "[") || jinja_parser_is_op(t, "{")) {
            bool list = t->op[0] == '[';
            p->tok++;
            n = jinja_parser_node(p, list ? NODE_LIST : NODE_DICT);
            return n && parse_items(p, n, list ? "]" : "}", !list) ? n : NULL;
        }
        break;
    default:
        break;
    }
    return jinja_parser_unexpected(p, "an expression");
}

static bool parse_args(struct jinja_parser *p, struct jinja_node *call) {
    uint32_t cap = 0;
    unsigned stage = 0; /* 0 positional, 1 keywords, 2 after *x, 3 after **x */
    if (!jinja_parser_need_op(p, "(")) return false;
    while (!jinja_parser_is_op(p->tok, ")")) {
        if (call->n_args && !jinja_parser_need_op(p, ",")) return false;
        if (jinja_parser_is_op(p->tok, ")")) break;
        struct jinja_arg a = {0};
        unsigned at = 0;
        if (jinja_parser_skip_op(p, "*")) {
            a.stars = 1;
            at = 2;
        } else if (jinja_parser_skip_op(p, "**")) {
            a.stars = 2;
            at = 3;
        } else if (p->tok->kind == TOKEN_NAME && jinja_parser_is_op(p->tok + 1, "=")) {
            a.name = jinja_parser_name_string(p, p->tok);
            p->tok += 2;
            at = 1;
        }
        bool order_ok = at == 0   ? stage == 0
                        : at == 1 ? stage <= 2
                        : at == 2 ? stage < 2
                                  : stage < 3;
        if (!order_ok)
            return jinja_parser_fail(p, "invalid order of arguments in a call", "") != NULL;
        if (at > stage) stage = at;
        a.value = jinja_parse_expr(p);
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
    return jinja_parser_need_op(p, ")");
}

/* start:stop:step or an index. */
static struct jinja_node *parse_subscribed(struct jinja_parser *p) {
    struct jinja_node *parts[3] = {NULL, NULL, NULL};
    if (!jinja_parser_is_op(p->tok, ":")) {
        parts[0] = jinja_parse_expr(p);
        if (!parts[0] || !jinja_parser_is_op(p->tok, ":")) return parts[0];
    }
    struct jinja_node *s = jinja_parser_node(p, NODE_SLICE);
    if (!s) return NULL;
    for (int i = 1; i < 3; i++) {
        if (!jinja_parser_skip_op(p, ":")) break;
        if (jinja_parser_is_op(p->tok, ":") || jinja_parser_is_op(p->tok, "]") ||
            jinja_parser_is_op(p->tok, ","))
            continue;
        parts[i] = jinja_parse_expr(p);
        if (!parts[i]) return NULL;
    }
    for (int i = 0; i < 3; i++) {
        if (!jinja_parser_add(p, &s->kids, parts[i])) return NULL;
    }
    return s;
}

static struct jinja_node *parse_subscript(struct jinja_parser *p, struct jinja_node *of) {
    if (jinja_parser_skip_op(p, ".")) {
        if (p->tok->kind == TOKEN_INT) {
            struct jinja_node *n = jinja_parser_node(p, NODE_ITEM);
            if (!n) return NULL;
            n->a = of;
            n->b = constant(p, jinja_int(p->tok->i));
            p->tok++;
            return n->b ? n : NULL;
        }
        if (p->tok->kind != TOKEN_NAME) return jinja_parser_unexpected(p, "a name or a number");
        struct jinja_node *n = jinja_parser_node(p, NODE_ATTR);
        if (!n) return NULL;
        n->a = of;
        n->id = jinja_find_row(jinja_methods, p->tok->text, p->tok->len);
        n->name = jinja_parser_name_string(p, p->tok++);
        return n->name ? n : NULL;
    }
    p->tok++; /* [ */
    struct jinja_node *n = jinja_parser_node(p, NODE_ITEM);
    struct jinja_nodes keys = {0};
    if (!n) return NULL;
    n->a = of;
    while (!jinja_parser_is_op(p->tok, "]")) {
        if (keys.n && !jinja_parser_need_op(p, ",")) return NULL;
        struct jinja_node *key = parse_subscribed(p);
        if (!key || !jinja_parser_add(p, &keys, key)) return NULL;
    }
    p->tok++;
    if (keys.n == 1) {
        n->b = keys.items[0];
        return n;
    }
    for (uint32_t i = 0; i < keys.n; i++) {
        if (keys.items[i]->kind == NODE_SLICE)
            return jinja_parser_fail(p, "a slice cannot be in a tuple", "");
    }
    n->b = jinja_parser_node(p, NODE_TUPLE);
    if (n->b) n->b->kids = keys;
    return n->b ? n : NULL;
}

static struct jinja_node *parse_call(struct jinja_parser *p, struct jinja_node *f) {
    struct jinja_node *n = jinja_parser_node(p, NODE_CALL);
    if (!n) return NULL;
    n->a = f;
    return parse_args(p, n) ? n : NULL;
}

/* Dotted name of a filter or test. */
static bool parse_row(struct jinja_parser *p, struct jinja_node *n,
                      const struct jinja_builtin_row *rows, const char *what) {
    if (p->tok->kind != TOKEN_NAME) return jinja_parser_unexpected(p, what) != NULL;
    n->id = jinja_find_row(rows, p->tok->text, p->tok->len);
    if (n->id == JINJA_NO_ID || jinja_parser_is_op(p->tok + 1, ".")) {
        char why[64], got[48];
        jinja_parser_describe(p->tok, got);
        snprintf(why, sizeof why, "no %s named ", what);
        return jinja_parser_fail(p, why, got) != NULL;
    }
    p->tok++;
    return true;
}

struct jinja_node *jinja_parse_filter(struct jinja_parser *p, struct jinja_node *of) {
    struct jinja_node *n = jinja_parser_node(p, NODE_FILTER);
    if (!n || !parse_row(p, n, jinja_filters, "filter")) return NULL;
    n->a = of;
    return !jinja_parser_is_op(p->tok, "(") || parse_args(p, n) ? n : NULL;
}

static struct jinja_node *parse_postfix(struct jinja_parser *p, struct jinja_node *n) {
    while (n) {
        if (jinja_parser_is_op(p->tok, ".") || jinja_parser_is_op(p->tok, "[")) {
            n = parse_subscript(p, n);
        } else if (jinja_parser_is_op(p->tok, "(")) {
            n = parse_call(p, n);
        } else {
            break;
        }
    }
    return n;
}

static struct jinja_node *parse_test(struct jinja_parser *p, struct jinja_node *of) {
    p->tok++; /* is */
    bool negated = jinja_parser_skip_name(p, "not");
    struct jinja_node *n = jinja_parser_node(p, NODE_TEST);
    if (!n) return NULL;
    n->a = of;
    /* `in` is an operator elsewhere and a test here. */
    if (!parse_row(p, n, jinja_tests, "test")) return NULL;
    const struct jinja_token *t = p->tok;
    if (jinja_parser_is_op(t, "(")) {
        if (!parse_args(p, n)) return NULL;
    } else if ((t->kind == TOKEN_NAME && !jinja_parser_is_name(t, "else") &&
                !jinja_parser_is_name(t, "or") && !jinja_parser_is_name(t, "and")) ||
               t->kind == TOKEN_STRING || t->kind == TOKEN_INT || t->kind == TOKEN_FLOAT ||
               jinja_parser_is_op(t, "[") || jinja_parser_is_op(t, "{")) {
        if (jinja_parser_is_name(t, "is"))
            return jinja_parser_fail(p, "tests cannot be chained with is", "");
        n->args = jinja_alloc(p->c, sizeof *n->args);
        if (!n->args) return NULL;
        n->args[0].value = parse_postfix(p, parse_primary(p));
        n->n_args = 1;
        if (!n->args[0].value) return NULL;
    }
    if (!negated) return n;
    struct jinja_node *not_n = jinja_parser_node(p, NODE_NOT);
    if (not_n) not_n->a = n;
    return not_n;
}

static struct jinja_node *parse_unary(struct jinja_parser *p, bool with_filter) {
    struct jinja_node *n;
    if (!jinja_parser_deeper(p)) return NULL;
    if (jinja_parser_is_op(p->tok, "-") || jinja_parser_is_op(p->tok, "+")) {
        n = jinja_parser_node(p, p->tok->op[0] == '-' ? NODE_NEG : NODE_POS);
        p->tok++;
        if (!n || !(n->a = parse_unary(p, false))) return NULL;
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    while (n && with_filter) {
        if (jinja_parser_skip_op(p, "|")) {
            n = jinja_parse_filter(p, n);
        } else if (jinja_parser_is_name(p->tok, "is")) {
            n = parse_test(p, n);
        } else if (jinja_parser_is_op(p->tok, "(")) {
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

static bool add_operand(struct jinja_parser *p, struct jinja_node *n, enum jinja_op op,
                        struct jinja_node *right) {
    uint32_t had = n->kids.n, cap = n->kids.cap;
    if (!jinja_parser_add(p, &n->kids, right)) return false;
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
static struct jinja_node *parse_binary(struct jinja_parser *p, unsigned min_level) {
    struct jinja_node *left = parse_unary(p, true), *chain = NULL;
    unsigned level, chain_level = 0;
    enum jinja_op op;
    while (left && binary_op(p->tok, &level, &op) && level >= min_level) {
        if (!chain || chain_level != level) {
            chain = jinja_parser_node(p, level == 2 ? NODE_CONCAT : NODE_BINARY);
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

static bool compare_op(struct jinja_parser *p, enum jinja_op *op) {
    static const struct {
        char text[3];
        uint8_t op;
    } table[] = {{"==", OP_EQ}, {"!=", OP_NE}, {"<", OP_LT},
                 {"<=", OP_LE}, {">", OP_GT},  {">=", OP_GE}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (!jinja_parser_skip_op(p, table[i].text)) continue;
        *op = (enum jinja_op)table[i].op;
        return true;
    }
    if (jinja_parser_is_name(p->tok, "not") && jinja_parser_is_name(p->tok + 1, "in")) {
        p->tok += 2;
        *op = OP_NOT_IN;
        return true;
    }
    *op = OP_IN;
    return jinja_parser_skip_name(p, "in");
}

static struct jinja_node *parse_compare(struct jinja_parser *p) {
    uint32_t nots = 0;
    while (jinja_parser_skip_name(p, "not")) nots++;
    struct jinja_node *n = parse_binary(p, 1), *cmp = NULL;
    enum jinja_op op;
    while (n && compare_op(p, &op)) {
        if (!cmp) {
            cmp = jinja_parser_node(p, NODE_COMPARE);
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
        struct jinja_node *not_n = jinja_parser_node(p, NODE_NOT);
        if (not_n) not_n->a = n;
        n = not_n;
    }
    return n;
}

/* `and` binds tighter than `or`; chains are flat (kids), so their length costs no depth. */
static struct jinja_node *parse_logic(struct jinja_parser *p, bool is_or) {
    struct jinja_node *n = is_or ? parse_logic(p, false) : parse_compare(p), *chain = NULL;
    while (n && jinja_parser_skip_name(p, is_or ? "or" : "and")) {
        if (!chain) {
            chain = jinja_parser_node(p, is_or ? NODE_OR : NODE_AND);
            if (!chain || !jinja_parser_add(p, &chain->kids, n)) return NULL;
            n = chain;
        }
        struct jinja_node *right = is_or ? parse_logic(p, false) : parse_compare(p);
        if (!right || !jinja_parser_add(p, &chain->kids, right)) return NULL;
    }
    return n;
}

struct jinja_node *jinja_parse_or(struct jinja_parser *p) {
    return parse_logic(p, true);
}

struct jinja_node *jinja_parse_expr(struct jinja_parser *p) {
    if (!jinja_parser_deeper(p)) return NULL;
    struct jinja_node *n = jinja_parse_or(p);
    unsigned chained = 0;
    while (n && jinja_parser_skip_name(p, "if")) {
        if (++chained > JINJA_MAX_DEPTH)
            return jinja_parser_fail(p, "too many inline ifs in a row", "");
        struct jinja_node *cond = jinja_parser_node(p, NODE_COND);
        if (!cond) return NULL;
        cond->b = n;
        cond->a = jinja_parse_or(p);
        if (!cond->a) return NULL;
        if (jinja_parser_skip_name(p, "else") && !(cond->c = jinja_parse_expr(p))) return NULL;
        n = cond;
    }
    p->depth--;
    return n;
}
