/* ptx_parser.h: what the files of the PTX parser share; ptx.h is the way in.
 *
 * Every parse_* function either returns or leaves by longjmp to ptx_parse() with the error set.
 */
#ifndef LAC_TESTS_SOFTGPU_PTX_PARSER_H
#define LAC_TESTS_SOFTGPU_PTX_PARSER_H

#include <setjmp.h>

#include "tests/softgpu/bump.h"
#include "tests/softgpu/ptx.h"
#include "tests/softgpu/ptx_lexer.h"

enum ptx_name_kind {
    PTX_NAME_REGISTER, /* index: register */
    PTX_NAME_RANGE,    /* name is a prefix; index .. index + count - 1 */
    PTX_NAME_VARIABLE, /* index: of function's variables */
    PTX_NAME_TARGETS,  /* index: of function's targets */
};

/* A name of a function's scope. */
struct ptx_name {
    const char *text;
    size_t len;
    enum ptx_name_kind kind;
    uint32_t index, count;
    struct ptx_name *next; /* in its bucket */
    uint32_t depth;
};

struct ptx_label {
    const char *text;
    size_t len;
    uint32_t scope;
    uint32_t instruction;
};

/* A use of a label, to be resolved when the function ends. */
struct ptx_label_use {
    const char *text;
    size_t len;
    uint32_t scope;
    uint32_t line;
    uint32_t instruction, operand; /* or, if instruction is UINT32_MAX: targets / position */
};

enum { PTX_BUCKETS = 1024 };

struct ptx_parser {
    struct ptx_lexer lexer;
    struct ptx_token token; /* the next one, not yet taken */
    struct ptx_module *module;
    struct bump *bump;
    struct error *error;
    enum status status;
    jmp_buf out;
    size_t cap_functions, cap_variables, cap_files;
    /* of the function being parsed */
    struct ptx_function *function;
    struct ptx_name *buckets[PTX_BUCKETS];
    uint32_t depth, scope, n_scopes;
    uint32_t *scope_parent;
    struct ptx_label *labels;
    struct ptx_label_use *label_uses;
    uint32_t n_labels, n_label_uses;
    uint32_t source_line, source_file;
    size_t cap_scopes, cap_labels, cap_label_uses, cap_registers, cap_names, cap_locals,
        cap_instructions, cap_targets;
};

_Noreturn void parse_fail(struct ptx_parser *p, enum status s, const char *fmt, ...)
    LAC_PRINTF(3, 4);
void *parse_take(struct ptx_parser *p, size_t bytes);
void *parse_grow(struct ptx_parser *p, void *items, size_t n, size_t *cap, size_t item_bytes);
char *parse_string(struct ptx_parser *p, const struct ptx_token *t);
void parse_advance(struct ptx_parser *p);
bool parse_accept(struct ptx_parser *p, char punct);
void parse_expect(struct ptx_parser *p, char punct);
uint64_t parse_integer(struct ptx_parser *p); /* with an optional minus */

/* After ".reg", ".global" and so on was taken: [.align N] .type name [dims] {= init}, up to and
 * with the semicolon, unless `parameter` (then up to a comma or parenthesis). */
void parse_variable(struct ptx_parser *p, enum ptx_space space, bool external, bool parameter,
                    struct ptx_variable *out);
bool parse_type(const struct ptx_token *t, enum ptx_type *out);
bool parse_space(const struct ptx_token *t, enum ptx_space *out);
void parse_loc(struct ptx_parser *p);
void parse_file(struct ptx_parser *p);
void parse_section(struct ptx_parser *p);
void parse_pragma(struct ptx_parser *p);

/* The braces of a function's body, the first of which was taken. */
void parse_body(struct ptx_parser *p);

#endif
