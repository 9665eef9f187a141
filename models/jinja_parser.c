#include "models/jinja_parser.h"

#include <stdio.h>
#include <string.h>

void *jinja_parser_fail(struct jinja_parser *p, const char *why, const char *what) {
    jinja_fail(p->c, STATUS_TEMPLATE, "template line %u: %s%s", p->tok->line, why, what);
    return NULL;
}

void jinja_parser_describe(const struct jinja_token *t, char out[48]) {
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

void *jinja_parser_unexpected(struct jinja_parser *p, const char *wanted) {
    char got[48], why[160];
    jinja_parser_describe(p->tok, got);
    snprintf(why, sizeof why, "expected %s, got ", wanted);
    return jinja_parser_fail(p, why, got);
}

struct jinja_node *jinja_parser_node(struct jinja_parser *p, enum jinja_node_kind kind) {
    struct jinja_node *n = jinja_alloc(p->c, sizeof *n);
    if (!n) return NULL;
    n->kind = (uint8_t)kind;
    n->line = p->tok->line;
    n->id = JINJA_NO_ID;
    return n;
}

bool jinja_parser_add(struct jinja_parser *p, struct jinja_nodes *l, struct jinja_node *n) {
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

bool jinja_parser_deeper(struct jinja_parser *p) {
    if (++p->depth <= JINJA_MAX_DEPTH) return true;
    return jinja_fail(p->c, STATUS_TOO_LARGE, "template line %u: nested more than %d deep",
                      p->tok->line, JINJA_MAX_DEPTH);
}

bool jinja_parser_is_op(const struct jinja_token *t, const char *op) {
    return t->kind == TOKEN_OP && strcmp(t->op, op) == 0;
}

bool jinja_parser_is_name(const struct jinja_token *t, const char *name) {
    return t->kind == TOKEN_NAME && t->len == strlen(name) && memcmp(t->text, name, t->len) == 0;
}

bool jinja_parser_skip_op(struct jinja_parser *p, const char *op) {
    if (!jinja_parser_is_op(p->tok, op)) return false;
    p->tok++;
    return true;
}

bool jinja_parser_skip_name(struct jinja_parser *p, const char *name) {
    if (!jinja_parser_is_name(p->tok, name)) return false;
    p->tok++;
    return true;
}

bool jinja_parser_need_op(struct jinja_parser *p, const char *op) {
    if (p->c->failed) return false;
    if (jinja_parser_skip_op(p, op)) return true;
    char want[8];
    snprintf(want, sizeof want, "'%s'", op);
    jinja_parser_unexpected(p, want);
    return false;
}

struct jinja_string *jinja_parser_name_string(struct jinja_parser *p, const struct jinja_token *t) {
    struct jinja_value v;
    if (!jinja_str(p->c, t->text, t->len, false, &v)) return NULL;
    jinja_chars(v.u.s);
    return v.u.s;
}

/* Numbers the names, so that variables are found by comparing integers. */
bool jinja_parser_intern(struct jinja_parser *p, struct jinja_string *name, uint32_t *symbol) {
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
