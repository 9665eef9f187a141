/* ptx.h: PTX text -> a module of functions, variables and instructions as written.
 *
 * ptx_parse() takes the text that NVRTC 13.0 emits (ISA 7.5 - 9.0, targets sm_75 - sm_121,
 * address size 64) or a hand-written file of the same grammar. It resolves names (scopes of { },
 * %r<N> ranges, labels, variables, parameters, callees) but gives no meaning to instructions;
 * softgpu/program.h does.
 * Errors: STATUS_INVALID for text that is not PTX or uses a directive that is not known here, with
 * the line in the error's message; STATUS_NO_MEMORY; STATUS_TOO_LARGE over a limit below.
 * The text may be hostile: every read is bounded, scopes nest at most PTX_MAX_DEPTH deep.
 * The module owns all it points to, keeps no pointer into the text, and is immutable after parsing:
 * many threads may read it.
 */
#ifndef LAC_TESTS_SOFTGPU_PTX_H
#define LAC_TESTS_SOFTGPU_PTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

enum {
    PTX_MAX_DEPTH = 32,
    PTX_MAX_SUFFIXES = 16,
    PTX_MAX_OPERANDS = 12,
    PTX_MAX_TEXT_BYTES = 64 << 20,
};

enum ptx_type {
    PTX_NONE,
    PTX_PRED,
    PTX_B8,
    PTX_U8,
    PTX_S8,
    PTX_B16,
    PTX_U16,
    PTX_S16,
    PTX_F16,
    PTX_BF16,
    PTX_B32,
    PTX_U32,
    PTX_S32,
    PTX_F32,
    PTX_F16X2,
    PTX_BF16X2,
    PTX_TF32,
    PTX_B64,
    PTX_U64,
    PTX_S64,
    PTX_F64,
    PTX_F32X2,
    PTX_B128,
    PTX_E4M3X2,
    PTX_E5M2X2,
};

enum ptx_space {
    PTX_SPACE_GENERIC,
    PTX_SPACE_GLOBAL,
    PTX_SPACE_SHARED,
    PTX_SPACE_LOCAL,
    PTX_SPACE_CONST,
    PTX_SPACE_PARAM,
};

/* A variable in memory: module scope (.global, .const, .shared) or function scope (.shared,
 * .local, .param of a call sequence). */
struct ptx_variable {
    char *name;
    enum ptx_space space;
    uint64_t size_bytes; /* 0: .extern .shared x[] (dynamic shared memory) */
    uint32_t align_bytes;
    bool external;          /* .extern */
    const uint8_t *initial; /* [size_bytes], or NULL = zero (global, const); owned by the module */
    struct ptx_fixup *fixups; /* [n_fixups] initialisers that hold another variable's address */
    uint32_t n_fixups;
    uint32_t line;
};

/* *(uint64_t *)(initial + offset_bytes) += address of `variable` (an index of the module). */
struct ptx_fixup {
    uint32_t offset_bytes;
    uint32_t variable;
};

struct ptx_param {
    char *name;
    uint32_t size_bytes;
    uint32_t align_bytes;
    uint32_t offset_bytes; /* in the kernel's parameter buffer: in order, each at its alignment */
};

enum ptx_operand_kind {
    PTX_OPERAND_REGISTER,  /* reg */
    PTX_OPERAND_IMMEDIATE, /* bits: integer two's complement in 64 bits */
    PTX_OPERAND_FLOAT32,   /* bits: IEEE single in the low 32 bits (0f...) */
    PTX_OPERAND_FLOAT64,   /* bits: IEEE double (0d..., or decimal) */
    PTX_OPERAND_VARIABLE,  /* index of symbol: its address + bits */
    PTX_OPERAND_ADDRESS,   /* [base + bits]; base by `base_kind`: register, variable or none */
    PTX_OPERAND_SPECIAL,   /* special register, `special` */
    PTX_OPERAND_LABEL,     /* target instruction index in `index` */
    PTX_OPERAND_FUNCTION,  /* index of module function */
    PTX_OPERAND_VECTOR,    /* {a, b, ...}: n_elements operands at `elements` */
    PTX_OPERAND_SINK,      /* _ */
    PTX_OPERAND_TARGETS,   /* branch or call target list / prototype: `index` of the function's */
    PTX_OPERAND_PARAMS,    /* parenthesised call list: elements */
};

enum ptx_special {
    PTX_SREG_TID_X,
    PTX_SREG_TID_Y,
    PTX_SREG_TID_Z,
    PTX_SREG_NTID_X,
    PTX_SREG_NTID_Y,
    PTX_SREG_NTID_Z,
    PTX_SREG_CTAID_X,
    PTX_SREG_CTAID_Y,
    PTX_SREG_CTAID_Z,
    PTX_SREG_NCTAID_X,
    PTX_SREG_NCTAID_Y,
    PTX_SREG_NCTAID_Z,
    PTX_SREG_LANEID,
    PTX_SREG_WARPID,
    PTX_SREG_NWARPID,
    PTX_SREG_SMID,
    PTX_SREG_NSMID,
    PTX_SREG_GRIDID,
    PTX_SREG_LANEMASK_EQ,
    PTX_SREG_LANEMASK_LE,
    PTX_SREG_LANEMASK_LT,
    PTX_SREG_LANEMASK_GE,
    PTX_SREG_LANEMASK_GT,
    PTX_SREG_CLOCK,
    PTX_SREG_CLOCK_HI,
    PTX_SREG_CLOCK64,
    PTX_SREG_GLOBALTIMER,
    PTX_SREG_GLOBALTIMER_LO,
    PTX_SREG_GLOBALTIMER_HI,
    PTX_SREG_DYNAMIC_SMEM_SIZE,
    PTX_SREG_TOTAL_SMEM_SIZE,
    PTX_SREG_CLUSTERID_X,
    PTX_SREG_CLUSTERID_Y,
    PTX_SREG_CLUSTERID_Z,
    PTX_SREG_NCLUSTERID_X,
    PTX_SREG_NCLUSTERID_Y,
    PTX_SREG_NCLUSTERID_Z,
    PTX_SREG_CLUSTER_CTAID_X,
    PTX_SREG_CLUSTER_CTAID_Y,
    PTX_SREG_CLUSTER_CTAID_Z,
    PTX_SREG_CLUSTER_NCTAID_X,
    PTX_SREG_CLUSTER_NCTAID_Y,
    PTX_SREG_CLUSTER_NCTAID_Z,
    PTX_SREG_CLUSTER_CTARANK,
    PTX_SREG_CLUSTER_NCTARANK,
    PTX_SREG_IS_EXPLICIT_CLUSTER,
    PTX_SREG_COUNT,
};

enum ptx_symbol_kind { PTX_SYMBOL_NONE, PTX_SYMBOL_PARAM, PTX_SYMBOL_LOCAL, PTX_SYMBOL_MODULE };

struct ptx_operand {
    enum ptx_operand_kind kind;
    enum ptx_operand_kind base_kind;  /* of ADDRESS: REGISTER, VARIABLE or IMMEDIATE */
    enum ptx_symbol_kind symbol_kind; /* of VARIABLE (and ADDRESS on one): which table */
    bool negated;                     /* !p */
    uint32_t reg;                     /* REGISTER, ADDRESS base: index of function's registers */
    uint32_t reg2;                    /* REGISTER written p|q: q; else UINT32_MAX */
    uint32_t index;                   /* VARIABLE, LABEL, FUNCTION, TARGETS */
    enum ptx_special special;
    uint64_t bits;                /* immediate, float bits, or offset */
    struct ptx_operand *elements; /* VECTOR, PARAMS */
    uint32_t n_elements;
};

struct ptx_instruction {
    char *name;                           /* the part before the first dot: "ld" */
    const char *suffix[PTX_MAX_SUFFIXES]; /* the parts behind dots, in order, without the dot */
    uint32_t n_suffixes;
    struct ptx_operand operand[PTX_MAX_OPERANDS];
    uint32_t n_operands;
    bool guarded; /* @p or @!p */
    bool guard_negated;
    uint32_t guard; /* register */
    uint32_t line;  /* of the PTX text, from 1 */
    uint32_t source_line;
    uint32_t source_file;
};

/* A list behind .branchtargets (labels) or .calltargets (functions); a .callprototype has none. */
struct ptx_targets {
    uint32_t *index; /* [n] */
    uint32_t n;
    bool labels;
};

struct ptx_function {
    char *name;
    bool kernel;              /* .entry */
    bool defined;             /* has a body */
    struct ptx_param *params; /* [n_params] */
    uint32_t n_params;
    uint32_t params_bytes;     /* of a kernel's parameter buffer */
    struct ptx_param *returns; /* [n_returns] of a .func */
    uint32_t n_returns;
    uint32_t maxntid[3]; /* 0 = not stated */
    uint32_t reqntid[3];
    uint32_t minnctapersm;
    uint32_t maxnreg;
    uint32_t cluster[3];    /* .reqnctapercluster; 0 = not stated */
    uint8_t *register_type; /* [n_registers] enum ptx_type as declared */
    char **register_name;   /* [n_registers] */
    uint32_t n_registers;
    struct ptx_variable *variables; /* [n_variables] .shared, .local and call parameters */
    uint32_t n_variables;
    struct ptx_instruction *instructions; /* [n_instructions] */
    uint32_t n_instructions;
    bool *is_target;             /* [n_instructions + 1] a label stands before it */
    struct ptx_targets *targets; /* [n_targets] */
    uint32_t n_targets;
    uint32_t line;
};

struct ptx_module {
    uint32_t version_major, version_minor;
    uint32_t target; /* 80 for sm_80; sm_90a: 90 with target_suffix 'a' */
    char target_suffix;
    struct ptx_function *functions; /* [n_functions] */
    uint32_t n_functions;
    struct ptx_variable *variables; /* [n_variables] .global, .const, .shared at module scope */
    uint32_t n_variables;
    char **files; /* [n_files] by .file index, NULL where none */
    uint32_t n_files;
    void *memory; /* where all of it lies */
};

enum status ptx_parse(const char *text, size_t text_bytes, struct ptx_module **out,
                      struct error *e) LAC_MUST_USE;
void ptx_free(struct ptx_module *m);

/* The entry of that name, or NULL. */
const struct ptx_function *ptx_find_kernel(const struct ptx_module *m, const char *name);
uint32_t ptx_type_bytes(enum ptx_type t);

#endif
