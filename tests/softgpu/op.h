/* op.h: compact operations, the form in which the software device runs a kernel.
 *
 * An image is one kernel with every device function it reaches, in one array of operations.
 * A place (int32_t) says where an operand lies: >= 0 is a byte offset into the warp's registers,
 * < 0 (bit 31 set) into the image's constants. A register holds 32 lanes side by side: 32-bit and
 * narrower ones as 32 x uint32_t (upper bits zero), 64-bit ones as 32 x uint64_t, 128-bit ones as
 * two 64-bit ones (low, high). A predicate is two uint32_t: one bit per lane, and one bit per lane
 * that is undefined. Each register has 32 poison bytes at offset/4 of the poison file: bit i set =
 * byte i of the lane is undefined.
 * An operation's handler does it for the lanes in warp.exec and returns the next operation, or NULL
 * to leave the interpreter (warp.stop says why, warp.resume where).
 */
#ifndef LAC_TESTS_SOFTGPU_OP_H
#define LAC_TESTS_SOFTGPU_OP_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/softgpu/exec.h"
#include "tests/softgpu/ptx.h"

struct warp;
struct op;
typedef const struct op *op_fn(struct warp *w, const struct op *op);

enum { LANES = 32, NO_PLACE = INT32_MAX };

/* How undefined bytes travel from a, b, c to d (undefined.c). */
enum op_rule {
    RULE_NONE,    /* the handler sees to it, or nothing to do */
    RULE_ALL,     /* d is defined where all of a, b, c are wholly defined */
    RULE_MOVE,    /* byte by byte from a */
    RULE_BITWISE, /* byte by byte from a, b, c */
    RULE_AND,     /* like BITWISE, but a defined zero byte decides */
    RULE_OR,      /* ... a defined 0xff byte */
    RULE_SHL,     /* a shifted by b */
    RULE_SHR,
    RULE_SAR,
    RULE_SELP, /* a or b by predicate c */
    RULE_PRMT,
    RULE_BFE,
    RULE_BFI,     /* a into b at c, length e */
    RULE_HALVES,  /* 16-bit halves apart */
    RULE_TO_PRED, /* predicate d (and e) from a, b and predicate c */
    RULE_PRED,    /* predicates throughout */
    RULE_CONVERT, /* integer conversion: width[0] source bytes, sign in flags */
    RULE_PACK,    /* list: n sources of equal width into d */
    RULE_UNPACK,  /* a into list: n destinations */
    RULE_SPECIAL, /* d is defined */
};

enum op_flag {
    OP_FTZ = 1 << 0,
    OP_SAT = 1 << 1,
    OP_RELU = 1 << 2,
    OP_NAN = 1 << 3,      /* min, max: NaN wins */
    OP_NEGATE_C = 1 << 4, /* predicate c is negated */
    OP_SIGNED = 1 << 5,
    OP_ALIGNED = 1 << 6, /* all lanes of the warp have to be here */
    OP_XORSIGN = 1 << 7,
    OP_ABS = 1 << 8,
    OP_SATFINITE = 1 << 9,
    OP_WIDE = 1 << 10,   /* d is a 64-bit register */
    OP_WIDE_A = 1 << 11, /* a is */
    OP_ACQUIRE = 1 << 12,
    OP_RELEASE = 1 << 13,
    OP_RELAXED = 1 << 14,   /* strong: relaxed, volatile, atomic */
    OP_NO_RETURN = 1 << 15, /* red */
    OP_TRANS = 1 << 16,
    OP_ADDRESS_32 = 1 << 17, /* a is a 32-bit register */
    OP_NEGATE_A = 1 << 18,
    OP_NEGATE_B = 1 << 19,
    OP_SIGNED_A = 1 << 22,
    OP_SIGNED_B = 1 << 23,
};

enum op_round { ROUND_NEAREST, ROUND_ZERO, ROUND_DOWN, ROUND_UP, ROUND_AWAY };
enum op_scope { SCOPE_CTA, SCOPE_CLUSTER, SCOPE_GPU, SCOPE_SYS };
enum op_compare {
    CMP_EQ,
    CMP_NE,
    CMP_LT,
    CMP_LE,
    CMP_GT,
    CMP_GE,
    CMP_EQU,
    CMP_NEU,
    CMP_LTU,
    CMP_LEU,
    CMP_GTU,
    CMP_GEU,
    CMP_NUM,
    CMP_NAN,
};
enum op_combine { COMBINE_NONE, COMBINE_AND, COMBINE_OR, COMBINE_XOR };

struct op {
    op_fn *fn;
    op_fn *inner; /* what a guarded operation does */
    int32_t d, a, b, c, e;
    int32_t guard;       /* predicate's place, or NO_PLACE */
    uint32_t guard_flip; /* ~0u for @!p */
    uint32_t flags;
    uint32_t list;   /* first of n further places in image.places */
    uint32_t index;  /* of this operation in the image */
    uint32_t target; /* of a branch, call, or the basic block of a join */
    int64_t imm;     /* address offset, or what the handler wants */
    uint8_t n;       /* elements of a vector, length of a list */
    uint8_t width;   /* bytes of an element in memory, or of a type */
    uint8_t type;    /* enum ptx_type, of the result */
    uint8_t type_a;  /* of the source, where it differs */
    uint8_t space;   /* enum ptx_space */
    uint8_t round;   /* enum op_round */
    uint8_t kind;    /* what the handler wants: comparison, atomic operation ... */
    uint8_t combine;
    uint8_t scope;
    uint8_t rule;
    uint8_t class;     /* enum exec_class */
    uint8_t sets_wide; /* poison of d: bytes of the destination register (4, 8, 16) */
};

struct image_variable {
    const char *name;
    uint64_t base; /* address in its space */
    uint64_t size_bytes;
    bool dynamic;
};

struct image_line {
    uint32_t ptx_line, source_line, source_file;
};

enum { SHARED_FIRST = 1024, LOCAL_FIRST = 256 };

struct image {
    char *name;
    struct op *ops;           /* [n_ops] */
    struct image_line *lines; /* [n_ops] */
    uint32_t n_ops, n_joins;
    uint32_t *join_ops;     /* [n_joins] the join operation of each basic block */
    uint32_t *join_classes; /* [n_joins][EXEC_CLASS_COUNT] operations of each class in it */
    int32_t *places;
    uint32_t n_places;
    uint8_t *constants; /* [constants_bytes], aligned to 64 */
    uint32_t constants_bytes;
    uint32_t registers_bytes;      /* of a warp, multiple of 128 */
    struct image_variable *shared; /* [n_shared] in order of address */
    uint32_t n_shared;
    uint32_t shared_end; /* end of static shared memory as addressed here, red zones included */
    uint32_t static_shared_bytes; /* as a GPU would lay it out */
    uint32_t local_bytes;
    uint32_t max_threads;
    uint32_t live_registers;
};

static inline int32_t place_constant(uint32_t offset) {
    return (int32_t)(offset | 0x80000000u);
}

#endif
