/* decode.h: PTX instructions -> operations; shared by the decode_*.c files. program_create() is the
 * way in. Every function here either returns or leaves by decode_fail().
 */
#ifndef LAC_TESTS_SOFTGPU_DECODE_H
#define LAC_TESTS_SOFTGPU_DECODE_H

#include <setjmp.h>

#include "tests/softgpu/bump.h"
#include "tests/softgpu/half.h"
#include "tests/softgpu/lanes.h"
#include "tests/softgpu/op.h"
#include "tests/softgpu/run.h"

/* What the image needs to know of one function in it. */
struct frame {
    const struct ptx_function *function;
    uint32_t index;      /* in the module */
    int32_t *registers;  /* places */
    int32_t *params;     /* areas of a device function's parameters, then of its returns */
    int32_t *variables;  /* [n_variables] areas of call parameters; NO_PLACE for others */
    uint64_t *addresses; /* [n_variables] of shared and local ones */
    int32_t return_to;   /* where each lane goes on after it */
    uint32_t first_op;
    uint32_t *op_of; /* [n_instructions + 1] */
    struct frame *next;
};

struct decoder {
    const struct ptx_module *module;
    const uint64_t *variable_addresses; /* [module->n_variables] global and const */
    struct bump *bump;                  /* of the image */
    struct image *image;
    op_fn *const *lanes;
    struct frame *frames;
    struct frame *frame;
    const struct ptx_function *function;
    const struct ptx_instruction *in;
    uint32_t used; /* suffixes that were understood */
    uint32_t first_of_instruction;
    uint32_t shared_target; /* sm of the module */
    size_t cap_ops, cap_lines, cap_places, cap_constants;
    struct constant *constants[256];
    struct patch *patches;
    uint32_t registers_bytes;
    struct error *error;
    enum status status;
    jmp_buf out;
};

_Noreturn void decode_fail(struct decoder *d, enum status s, const char *fmt, ...) LAC_PRINTF(3, 4);
void *decode_take(struct decoder *d, size_t bytes);
/* "bad operands" and the like, with the instruction's name. */
_Noreturn void decode_bad(struct decoder *d, const char *what);
void decode_need(struct decoder *d, uint32_t sm); /* the instruction came with that target */

/* Suffixes. take: is it there (and is it understood from now on)? */
bool suffix_take(struct decoder *d, const char *s);
enum ptx_type suffix_type(struct decoder *d); /* the next type; fails if none */
enum ptx_type suffix_type_or(struct decoder *d, enum ptx_type none);
void suffix_skip_hints(struct decoder *d);     /* cache operators and eviction hints */
enum op_round suffix_round(struct decoder *d); /* .rn .rz .rm .rp .rna, default nearest */
enum op_scope suffix_scope(struct decoder *d, bool *found);
uint32_t suffix_vector(struct decoder *d);      /* .v2 .v4 .v8, else 1 */
uint32_t suffix_float_flags(struct decoder *d); /* ftz sat relu NaN xorsign abs */
enum op_compare suffix_compare(struct decoder *d, bool *is_unsigned);

/* A new operation at the end of the image; valid until the next emit. */
struct op *emit(struct decoder *d, op_fn *fn, enum exec_class class, enum op_rule rule);
struct op *emit_lane(struct decoder *d, enum lane_op fn, enum exec_class class, enum op_rule rule);
void emit_join(struct decoder *d);

/* Operands. */
uint32_t register_bytes(enum ptx_type t); /* 0 predicate, 2, 4, 8, 16: of the register class */
uint32_t operand_bytes(struct decoder *d, const struct ptx_operand *o); /* of a register; else 0 */
const struct ptx_operand *operand(struct decoder *d, uint32_t i);
int32_t place_register(struct decoder *d, uint32_t reg);
int32_t place_new(struct decoder *d, uint32_t bytes); /* a scratch register */
int32_t place_bits(struct decoder *d, uint64_t bits, uint32_t bytes);
int32_t place_source(struct decoder *d, const struct ptx_operand *o, enum ptx_type t);
int32_t place_source_any(struct decoder *d, const struct ptx_operand *o, uint32_t bytes);
int32_t place_target(struct decoder *d, const struct ptx_operand *o, uint32_t bytes);
int32_t place_pred(struct decoder *d, const struct ptx_operand *o, bool *negated);
uint32_t list_add(struct decoder *d, const int32_t *places, uint32_t n);
/* The value of a variable operand, an address in its space. */
uint64_t operand_address(struct decoder *d, const struct ptx_operand *o);
/* [base + offset] into op->a, op->imm and OP_ADDRESS_32. `i` is the emitted operation's index. */
struct address {
    int32_t place;
    int64_t offset;
    bool narrow;
};
struct address operand_memory(struct decoder *d, const struct ptx_operand *o);
void patch_target(struct decoder *d, uint32_t op, uint32_t instruction);

typedef void decode_fn(struct decoder *d);
struct decode_entry {
    const char *name;
    decode_fn *fn;
};
extern const struct decode_entry decode_integer[], decode_float[], decode_memory[], decode_warp[],
    decode_control[]; /* each ends with a NULL name */

enum status decode_image(const struct ptx_module *m, uint32_t kernel, const uint64_t *addresses,
                         struct image *image, struct bump *bump, struct error *e) LAC_MUST_USE;

#endif
