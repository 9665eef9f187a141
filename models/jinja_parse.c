#include "models/jinja_parser.h"

#include <string.h>

static bool parse_body(struct jinja_parser *p, struct jinja_nodes *out, const char *const *ends);

static struct jinja_node *target_one(struct jinja_parser *p) {
    if (jinja_parser_skip_op(p, "(")) {
        if (!jinja_parser_deeper(p)) return NULL;
        struct jinja_node *n = jinja_parse_tuple(p, true, target_one, true);
        p->depth--;
        return n && jinja_parser_need_op(p, ")") ? n : NULL;
    }
    if (jinja_parser_is_name(p->tok, "true") || jinja_parser_is_name(p->tok, "false") ||
        jinja_parser_is_name(p->tok, "none") || jinja_parser_is_name(p->tok, "True") ||
        jinja_parser_is_name(p->tok, "False") || jinja_parser_is_name(p->tok, "None")) {
        return jinja_parser_fail(p, "cannot assign to a constant", "");
    }
    struct jinja_node *n = jinja_parse_name(p, "a name to assign to");
    if (n && jinja_parser_skip_op(p, ".")) {
        struct jinja_node *attr = jinja_parser_node(p, NODE_ATTR);
        if (!attr) return NULL;
        if (p->tok->kind != TOKEN_NAME) return jinja_parser_unexpected(p, "a name");
        attr->a = n;
        attr->name = jinja_parser_name_string(p, p->tok++);
        n = attr->name ? attr : NULL;
    }
    return n;
}

static bool end_of_tag(struct jinja_parser *p) {
    if (p->c->failed) return false;
    if (p->tok->kind != TOKEN_BLOCK_END) return jinja_parser_unexpected(p, "'%}'") != NULL;
    p->tok++;
    return true;
}

/* After the body's end word: the rest of that tag. */
static bool body_to(struct jinja_parser *p, struct jinja_nodes *out, const char *end) {
    const char *ends[] = {end, NULL};
    if (!parse_body(p, out, ends)) return false;
    p->tok++; /* the word */
    return end_of_tag(p);
}

static struct jinja_node *parse_for(struct jinja_parser *p) {
    static const char *const ends[] = {"endfor", "else", NULL};
    struct jinja_node *n = jinja_parser_node(p, NODE_FOR);
    if (!n) return NULL;
    n->a = jinja_parse_tuple(p, false, target_one, true);
    if (!n->a) return NULL;
    if (!jinja_parser_skip_name(p, "in")) return jinja_parser_unexpected(p, "'in'");
    n->b = jinja_parse_tuple(p, false, jinja_parse_or, false);
    if (!n->b) return NULL;
    if (jinja_parser_is_name(p->tok, "recursive"))
        return jinja_parser_fail(p, "recursive loops are not supported", "");
    if (jinja_parser_skip_name(p, "if") && !(n->c = jinja_parse_expr(p))) return NULL;
    if (jinja_parser_is_name(p->tok, "recursive"))
        return jinja_parser_fail(p, "recursive loops are not supported", "");
    if (!end_of_tag(p)) return NULL;
    p->loops++;
    bool ok = parse_body(p, &n->body, ends);
    p->loops--;
    if (!ok) return NULL;
    bool has_else = jinja_parser_is_name(p->tok, "else");
    p->tok++;
    if (!end_of_tag(p)) return NULL;
    return !has_else || body_to(p, &n->other, "endfor") ? n : NULL;
}

static struct jinja_node *parse_if(struct jinja_parser *p) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct jinja_node *first = jinja_parser_node(p, NODE_IF), *n = first;
    for (;;) {
        if (!n) return NULL;
        n->a = jinja_parse_tuple(p, false, jinja_parse_or, false);
        if (!n->a || !end_of_tag(p) || !parse_body(p, &n->body, ends)) return NULL;
        if (!jinja_parser_skip_name(p, "elif")) break;
        /* The chain is walked in a loop by c, never by recursion. */
        n->c = jinja_parser_node(p, NODE_IF);
        n = n->c;
    }
    bool has_else = jinja_parser_is_name(p->tok, "else");
    p->tok++;
    if (!end_of_tag(p)) return NULL;
    return !has_else || body_to(p, &n->other, "endif") ? first : NULL;
}

static struct jinja_node *parse_set(struct jinja_parser *p) {
    struct jinja_node *n = jinja_parser_node(p, NODE_SET);
    if (!n) return NULL;
    n->a = jinja_parse_tuple(p, false, target_one, false);
    if (!n->a) return NULL;
    if (jinja_parser_skip_op(p, "=")) {
        n->b = jinja_parse_tuple(p, false, jinja_parse_expr, false);
        return n->b && end_of_tag(p) ? n : NULL;
    }
    n->kind = NODE_SET_BLOCK;
    while (jinja_parser_skip_op(p, "|")) {
        n->b = jinja_parse_filter(p, n->b);
        if (!n->b) return NULL;
    }
    return end_of_tag(p) && body_to(p, &n->body, "endset") ? n : NULL;
}

static bool parse_params(struct jinja_parser *p, struct jinja_node *n) {
    uint32_t cap = 0;
    bool had_fallback = false;
    if (!jinja_parser_need_op(p, "(")) return false;
    while (!jinja_parser_is_op(p->tok, ")")) {
        if (n->n_params && !jinja_parser_need_op(p, ",")) return false;
        struct jinja_node *name = jinja_parse_name(p, "a parameter name");
        if (!name) return false;
        struct jinja_param param = {.symbol = name->symbol, .name = name->name};
        if (jinja_parser_skip_op(p, "=")) {
            param.fallback = jinja_parse_expr(p);
            if (!param.fallback) return false;
            had_fallback = true;
        } else if (had_fallback) {
            return jinja_parser_fail(p, "a parameter without a default follows one with a default",
                                     "") != NULL;
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
    return jinja_parser_need_op(p, ")");
}

/* A macro, or a call block, whose body is the macro `caller`. */
static struct jinja_node *parse_macro(struct jinja_parser *p, bool call) {
    struct jinja_node *n = jinja_parser_node(p, call ? NODE_CALL_BLOCK : NODE_MACRO),
                      *outer = p->function;
    if (!n) return NULL;
    unsigned loops = p->loops;
    if (call) {
        if (jinja_parser_is_op(p->tok, "(") && !parse_params(p, n)) return NULL;
        n->b = jinja_parse_expr(p);
        if (!n->b) return NULL;
        if (n->b->kind != NODE_CALL) return jinja_parser_fail(p, "expected a call", "");
        n->name = p->t->symbols[SYMBOL_CALLER];
    } else {
        struct jinja_node *name = jinja_parse_name(p, "a macro name");
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

static struct jinja_node *parse_filter_block(struct jinja_parser *p) {
    struct jinja_node *n = jinja_parser_node(p, NODE_FILTER_BLOCK);
    if (!n) return NULL;
    do {
        n->b = jinja_parse_filter(p, n->b);
        if (!n->b) return NULL;
    } while (jinja_parser_skip_op(p, "|"));
    return end_of_tag(p) && body_to(p, &n->body, "endfilter") ? n : NULL;
}

static struct jinja_node *parse_with(struct jinja_parser *p) {
    struct jinja_node *n = jinja_parser_node(p, NODE_WITH);
    if (!n) return NULL;
    while (p->tok->kind != TOKEN_BLOCK_END) {
        if (n->kids.n && !jinja_parser_need_op(p, ",")) return NULL;
        struct jinja_node *target = target_one(p);
        if (!target || !jinja_parser_add(p, &n->kids, target) || !jinja_parser_need_op(p, "="))
            return NULL;
        struct jinja_node *value = jinja_parse_expr(p);
        if (!value || !jinja_parser_add(p, &n->kids, value)) return NULL;
    }
    return end_of_tag(p) && body_to(p, &n->body, "endwith") ? n : NULL;
}

static struct jinja_node *parse_statement(struct jinja_parser *p) {
    struct jinja_node *n = NULL;
    if (p->tok->kind != TOKEN_NAME) return jinja_parser_unexpected(p, "a tag name");
    if (jinja_parser_skip_name(p, "for")) return parse_for(p);
    if (jinja_parser_skip_name(p, "if")) return parse_if(p);
    if (jinja_parser_skip_name(p, "set")) return parse_set(p);
    if (jinja_parser_skip_name(p, "macro")) return parse_macro(p, false);
    if (jinja_parser_skip_name(p, "call")) return parse_macro(p, true);
    if (jinja_parser_skip_name(p, "filter")) return parse_filter_block(p);
    if (jinja_parser_skip_name(p, "with")) return parse_with(p);
    if (jinja_parser_skip_name(p, "generation")) {
        n = jinja_parser_node(p, NODE_SCOPE);
        return n && end_of_tag(p) && body_to(p, &n->body, "endgeneration") ? n : NULL;
    }
    if (jinja_parser_is_name(p->tok, "break") || jinja_parser_is_name(p->tok, "continue")) {
        if (!p->loops) return jinja_parser_fail(p, "break or continue outside a loop", "");
        n = jinja_parser_node(p,
                              jinja_parser_is_name(p->tok, "break") ? NODE_BREAK : NODE_CONTINUE);
        p->tok++;
        return n && end_of_tag(p) ? n : NULL;
    }
    char got[48];
    jinja_parser_describe(p->tok, got);
    return jinja_parser_fail(p, "unknown tag ", got);
}

/* Up to a tag whose name is in `ends` (left as the next token), or to the end when `ends` is NULL.
 */
static bool parse_body(struct jinja_parser *p, struct jinja_nodes *out, const char *const *ends) {
    if (!jinja_parser_deeper(p)) return false;
    for (;;) {
        struct jinja_node *n;
        const struct jinja_token *t = p->tok;
        if (t->kind == TOKEN_DATA) {
            n = jinja_parser_node(p, NODE_TEXT);
            if (!n || !jinja_str(p->c, t->text, t->len, false, &n->value)) return false;
            jinja_chars(n->value.u.s);
            p->tok++;
        } else if (t->kind == TOKEN_VAR_BEGIN) {
            p->tok++;
            n = jinja_parser_node(p, NODE_OUTPUT);
            if (!n || !(n->a = jinja_parse_tuple(p, false, jinja_parse_expr, false))) return false;
            if (p->tok->kind != TOKEN_VAR_END) return jinja_parser_unexpected(p, "'}}'") != NULL;
            p->tok++;
        } else if (t->kind == TOKEN_BLOCK_BEGIN) {
            p->tok++;
            for (const char *const *e = ends; e && *e; e++) {
                if (!jinja_parser_is_name(p->tok, *e)) continue;
                p->depth--;
                return true;
            }
            n = parse_statement(p);
        } else if (ends) {
            return jinja_parser_unexpected(p, ends[0]) != NULL;
        } else {
            p->depth--;
            return true;
        }
        if (!n || !jinja_parser_add(p, out, n)) return false;
    }
}

bool jinja_parse(struct jinja_template *t, const struct jinja_tokens *tokens) {
    static const char *const own[] = {"loop", "caller", "varargs", "kwargs"};
    struct jinja_parser p = {.t = t, .c = &t->store, .tok = tokens->items};
    struct jinja_value v;
    if (!jinja_dict_new(&t->store, &v)) return false;
    t->symbol_of = v.u.dict;
    for (uint32_t i = 0; i < SYMBOL_FIRST_FREE; i++) {
        uint32_t symbol;
        if (!jinja_str(&t->store, own[i], strlen(own[i]), false, &v) ||
            !jinja_parser_intern(&p, v.u.s, &symbol)) {
            return false;
        }
    }
    return parse_body(&p, &t->body, NULL);
}
