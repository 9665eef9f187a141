/* jinja_internal.h: what the parts of the template engine share (models/jinja*.c only).
 *
 * Source text -> tokens (jinja_lex.c) -> nodes (jinja_parse.c) -> text (jinja_eval.c), with
 * filters, tests, methods and functions in tables (jinja_builtin.c, jinja_filter.c,
 * jinja_method.c). The grammar is Jinja2 3.1's, as its documentation and behaviour give it.
 */
#ifndef LAC_MODELS_JINJA_INTERNAL_H
#define LAC_MODELS_JINJA_INTERNAL_H

#include "models/jinja_value.h"

/* ---- memory ---- */

void *jinja_arena_take(struct jinja_ctx *c, struct jinja_arena *a, size_t bytes);

/* ---- tokens ---- */

enum jinja_token_kind {
    TOKEN_DATA,        /* template text */
    TOKEN_VAR_BEGIN,   /* {{ */
    TOKEN_VAR_END,     /* }} */
    TOKEN_BLOCK_BEGIN, /* {% */
    TOKEN_BLOCK_END,   /* %} */
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INT,
    TOKEN_FLOAT,
    TOKEN_OP, /* op[] */
    TOKEN_EOF,
};

struct jinja_token {
    enum jinja_token_kind kind;
    char op[3];
    uint32_t line;
    const char *text; /* NAME: the name; DATA, STRING: the bytes after escapes */
    uint32_t len;
    int64_t i;
    double f;
};

struct jinja_tokens {
    struct jinja_token *items;
    uint32_t n, cap;
};

/* Whole template at once; tokens live in c. trim_blocks and lstrip_blocks are on, and one newline
 * at the end of the source is dropped, as chat templates expect. */
bool jinja_lex(struct jinja_ctx *c, const char *text, size_t len, struct jinja_tokens *out);

/* ---- nodes ---- */

enum jinja_node_kind {
    /* expressions */
    NODE_CONST,
    NODE_NAME,
    NODE_LIST,   /* kids */
    NODE_TUPLE,  /* kids */
    NODE_DICT,   /* kids: key, value, key, value ... */
    NODE_ATTR,   /* a.name */
    NODE_ITEM,   /* a[b] */
    NODE_SLICE,  /* kids: start, stop, step, each maybe NULL; only as the b of NODE_ITEM */
    NODE_CALL,   /* a(args) */
    NODE_FILTER, /* a | id(args); a NULL: the text of a filter block */
    NODE_TEST,   /* a is id(args) */
    NODE_COND,   /* a if b else c (c may be NULL) */
    NODE_AND,    /* kids */
    NODE_OR,     /* kids */
    NODE_NOT,
    NODE_NEG,
    NODE_POS,
    NODE_BINARY,  /* a, then kids applied from left to right by ops[] */
    NODE_CONCAT,  /* a and kids, with ~ */
    NODE_COMPARE, /* a, then kids compared in turn by ops[] */
    /* statements */
    NODE_TEXT,         /* value is the text */
    NODE_OUTPUT,       /* a */
    NODE_IF,           /* a, body, other */
    NODE_FOR,          /* target a in b if c: body; other */
    NODE_SET,          /* a = b */
    NODE_SET_BLOCK,    /* a = text of body, through the filters of b */
    NODE_MACRO,        /* name, params, body */
    NODE_CALL_BLOCK,   /* b is the call; params, body make the caller */
    NODE_FILTER_BLOCK, /* b over the text of body */
    NODE_WITH,         /* kids: target, value, ...; body */
    NODE_SCOPE,        /* body alone: a generation block */
    NODE_BREAK,
    NODE_CONTINUE,
};

enum jinja_op {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN,
};

struct jinja_arg {
    struct jinja_string *name; /* NULL: positional */
    uint8_t stars;             /* 1: *value, 2: **value */
    struct jinja_node *value;
};

struct jinja_nodes {
    struct jinja_node **items;
    uint32_t n, cap;
};

struct jinja_node {
    uint8_t kind;
    bool uses_varargs, uses_kwargs, uses_caller;
    uint16_t id; /* filter, test or method of that name; UINT16_MAX: none */
    uint32_t line;
    uint32_t symbol; /* NODE_NAME, NODE_MACRO */
    struct jinja_string *name;
    struct jinja_value value;
    struct jinja_node *a, *b, *c;
    struct jinja_nodes kids, body, other;
    uint8_t *ops;
    struct jinja_arg *args;
    uint32_t n_args;
    struct jinja_param *params;
    uint32_t n_params;
};

struct jinja_param {
    uint32_t symbol;
    struct jinja_string *name;
    struct jinja_node *fallback; /* NULL: undefined when not given */
};

/* Symbols of names the engine itself binds; the parser interns these first. */
enum { SYMBOL_LOOP, SYMBOL_CALLER, SYMBOL_VARARGS, SYMBOL_KWARGS, SYMBOL_FIRST_FREE };

struct jinja_template {
    struct jinja_ctx store; /* owns every node, constant and symbol */
    struct jinja_nodes body;
    struct jinja_string **symbols;
    uint32_t n_symbols, cap_symbols;
    struct jinja_dict *symbol_of; /* name -> int */
};

bool jinja_parse(struct jinja_template *t, const struct jinja_tokens *tokens);

enum { JINJA_MAX_DEPTH = 64 /* of blocks and expressions in a template, together */ };

/* ---- built-in names ---- */

struct jinja_args {
    struct jinja_value *pos;
    uint32_t n_pos;
    struct jinja_entry *kw; /* keys are strings */
    uint32_t n_kw;
};

enum { JINJA_MAX_PARAMS = 8 };

/* a[0] is the value on the left (filters, tests, methods), a[1..] the parameters in the order of
 * the table, ABSENT where not given. `args` are the arguments as they came. */
typedef bool jinja_builtin(struct jinja_ctx *c, struct jinja_value *a,
                           const struct jinja_args *args, struct jinja_value *out);

struct jinja_builtin_row {
    const char *name;
    const char *params; /* space-separated; "*" = takes anything, reads `args` */
    uint8_t required;
    uint16_t kinds; /* methods: bit per jinja_kind that has it */
    jinja_builtin *fn;
};

extern const struct jinja_builtin_row jinja_filters[], jinja_tests[], jinja_methods[],
    jinja_functions[];
enum { JINJA_NO_ID = 0xFFFF };
uint16_t jinja_find_row(const struct jinja_builtin_row *rows, const char *name, size_t n);
/* Binds and calls; `what` is "filter", "test" ... for messages. */
bool jinja_call_row(struct jinja_ctx *c, const struct jinja_builtin_row *row,
                    struct jinja_value self, const struct jinja_args *args,
                    struct jinja_value *out);
bool jinja_call_named(struct jinja_ctx *c, const struct jinja_builtin_row *rows, const char *what,
                      struct jinja_value name, struct jinja_value self,
                      const struct jinja_args *args, struct jinja_value *out);
/* 'name' lookup as a.name (methods first) and a[key] (items first); absent: undefined, not an
 * error. */
bool jinja_get_attr(struct jinja_ctx *c, struct jinja_value a, const struct jinja_string *name,
                    uint16_t method, struct jinja_value *out);
bool jinja_get_item(struct jinja_ctx *c, struct jinja_value a, struct jinja_value key,
                    struct jinja_value *out);
bool jinja_get_slice(struct jinja_ctx *c, struct jinja_value a, const struct jinja_value parts[3],
                     struct jinja_value *out);
/* jinja_eval.c: attributes of the loop variable, and of macros; false in *found when there is none.
 */
bool jinja_loop_attr(struct jinja_ctx *c, struct jinja_value loop, const struct jinja_string *name,
                     struct jinja_value *out, bool *found);
bool jinja_loop_changed(struct jinja_ctx *c, struct jinja_value loop, const struct jinja_args *args,
                        struct jinja_value *out);
int64_t jinja_loop_index0(struct jinja_value loop);
bool jinja_arith(struct jinja_ctx *c, enum jinja_op op, struct jinja_value a, struct jinja_value b,
                 struct jinja_value *out);
/* Fails with the message of an undefined value. */
bool jinja_fail_undefined(struct jinja_ctx *c, struct jinja_value v);

/* Fails with "integer overflow". */
bool jinja_overflow(struct jinja_ctx *c);
/* A string or integer argument; fails naming the type when it is something else. */
bool jinja_need_str(struct jinja_ctx *c, struct jinja_value v, struct jinja_string **out);
bool jinja_need_int(struct jinja_ctx *c, struct jinja_value v, int64_t *out);

/* Text operations (jinja_text.c). Places are byte offsets; UINT32_MAX: nowhere. */
uint32_t jinja_find(const struct jinja_string *s, uint32_t from, uint32_t to,
                    const struct jinja_string *needle);
bool jinja_rfind(struct jinja_ctx *c, const struct jinja_string *s, uint32_t from, uint32_t to,
                 const struct jinja_string *needle, uint32_t *out);
/* Appends a part of s to a list. */
bool jinja_piece(struct jinja_ctx *c, struct jinja_list *l, const struct jinja_string *s,
                 uint32_t from, uint32_t to);
bool jinja_strip(struct jinja_ctx *c, const struct jinja_string *s, struct jinja_value chars,
                 bool left, bool right, struct jinja_value *out);
/* At blanks, at most `max` times (negative: no limit); from the right the pieces come last to
 * first. */
bool jinja_split_space(struct jinja_ctx *c, const struct jinja_string *s, int64_t max,
                       struct jinja_list *l);
bool jinja_rsplit_space(struct jinja_ctx *c, const struct jinja_string *s, int64_t max,
                        struct jinja_list *l);
bool jinja_splitlines(struct jinja_ctx *c, const struct jinja_string *s, bool keep,
                      struct jinja_value *out);
bool jinja_replace(struct jinja_ctx *c, const struct jinja_string *s,
                   const struct jinja_string *old, const struct jinja_string *with, int64_t count,
                   struct jinja_value *out);
enum jinja_case {
    CASE_UPPER,
    CASE_LOWER,
    CASE_TITLE,
    CASE_CAPITALIZE,
    CASE_JINJA_TITLE,
    CASE_SWAP
};
bool jinja_change_case(struct jinja_ctx *c, const struct jinja_string *s, enum jinja_case how,
                       struct jinja_value *out);
/* A number's characters without blanks and underscores; false: it is no number. Then its value. */
bool jinja_number_text(const struct jinja_string *s, char text[128]);
bool jinja_parse_int(const char *t, int64_t base, int64_t *out);
bool jinja_parse_float(const char *t, double *out);

/* Keys and order (jinja_sort.c). `path`: "a.b.0" or a number; `fallback` (ABSENT: none) for what
 * has no such attribute. */
bool jinja_attribute(struct jinja_ctx *c, struct jinja_value v, struct jinja_value path,
                     struct jinja_value fallback, struct jinja_value *out);
bool jinja_key_of(struct jinja_ctx *c, struct jinja_value item, struct jinja_value path,
                  bool case_sensitive, struct jinja_value fallback, struct jinja_value *out);
bool jinja_sort(struct jinja_ctx *c, struct jinja_value *items, const struct jinja_value *keys,
                uint32_t n, bool reverse);
bool jinja_sorted(struct jinja_ctx *c, struct jinja_value v, struct jinja_value path, bool multi,
                  bool case_sensitive, bool reverse, struct jinja_value fallback,
                  struct jinja_value *out);

/* Unicode facts (jinja_unicode.c, generated). */
uint32_t jinja_upper_cp(uint32_t cp);
uint32_t jinja_lower_cp(uint32_t cp);
bool jinja_is_alpha(uint32_t cp);
bool jinja_is_printable(uint32_t cp);

#endif
