/* jinja_parser.h: what the two halves of the Jinja parser share: the place in the tokens, and the
 * small steps over them. Expressions are read by jinja_parse_expr.c, tags and bodies by
 * jinja_parse.c; jinja_internal.h says what they make.
 *
 * Errors: the first one is kept in the context (jinja_fail) with the template's line; functions
 * return NULL or false then, and the caller does the same. Nesting is capped at JINJA_MAX_DEPTH.
 * Memory: the template's arena; nothing is freed alone.
 */
#ifndef LAC_MODELS_JINJA_PARSER_H
#define LAC_MODELS_JINJA_PARSER_H

#include "models/jinja_internal.h"

struct jinja_parser {
    struct jinja_template *t;
    struct jinja_ctx *c;
    const struct jinja_token *tok;
    unsigned depth;
    unsigned loops;              /* for bodies around the current place */
    struct jinja_node *function; /* the macro or call block being read */
};

/* "template line N: WHY WHAT"; NULL, so that it can be returned from functions that make nodes. */
void *jinja_parser_fail(struct jinja_parser *p, const char *why, const char *what);
/* The same with "expected WANTED, got" and the current token. */
void *jinja_parser_unexpected(struct jinja_parser *p, const char *wanted);
/* What a token is, for a message. */
void jinja_parser_describe(const struct jinja_token *t, char out[48]);
/* A node of the current line. */
struct jinja_node *jinja_parser_node(struct jinja_parser *p, enum jinja_node_kind kind);
bool jinja_parser_add(struct jinja_parser *p, struct jinja_nodes *l, struct jinja_node *n);
/* One level down; the caller goes up again (p->depth--). */
bool jinja_parser_deeper(struct jinja_parser *p);

bool jinja_parser_is_op(const struct jinja_token *t, const char *op);
bool jinja_parser_is_name(const struct jinja_token *t, const char *name);
/* Past the token if it is that one. */
bool jinja_parser_skip_op(struct jinja_parser *p, const char *op);
bool jinja_parser_skip_name(struct jinja_parser *p, const char *name);
/* Past the token, or an error. */
bool jinja_parser_need_op(struct jinja_parser *p, const char *op);

/* A name as a string value, and as the number of a variable. */
struct jinja_string *jinja_parser_name_string(struct jinja_parser *p, const struct jinja_token *t);
bool jinja_parser_intern(struct jinja_parser *p, struct jinja_string *name, uint32_t *symbol);

/* Past an expression, a list of them with commas (a tuple if there is one), a name, or a filter
 * behind `of`. */
struct jinja_node *jinja_parse_expr(struct jinja_parser *p);
/* The same without a condition ("a if b else c"), as the list of a for stands before its if. */
struct jinja_node *jinja_parse_or(struct jinja_parser *p);
struct jinja_node *jinja_parse_tuple(struct jinja_parser *p, bool parens,
                                     struct jinja_node *(*one)(struct jinja_parser *),
                                     bool stops_at_in);
struct jinja_node *jinja_parse_name(struct jinja_parser *p, const char *wanted);
struct jinja_node *jinja_parse_filter(struct jinja_parser *p, struct jinja_node *of);

#endif
