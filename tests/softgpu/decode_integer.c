/* Integer, bit, predicate, move and select instructions; PTX ISA 9.7.1, 9.7.2, 9.7.6 - 9.7.9. */
#include <string.h>

#include "tests/softgpu/decode.h"

static bool type_signed(enum ptx_type t) {
    return t == PTX_S8 || t == PTX_S16 || t == PTX_S32 || t == PTX_S64;
}

/* The member of a family for 16, 32 or 64 bits; the families are laid out alike. */
static enum lane_op of_width(struct decoder *d, enum lane_op op16, uint32_t bytes) {
    const int step = LANE_ADD_32 - LANE_ADD_16;
    if (bytes == 2) return op16;
    if (bytes == 4) return (enum lane_op)((int)op16 + step);
    if (bytes == 8) return (enum lane_op)((int)op16 + 2 * step);
    decode_bad(d, "no such width");
}

static struct op *emit_simple(struct decoder *d, enum lane_op fn, enum exec_class class,
                              enum op_rule rule, enum ptx_type td, enum ptx_type ta,
                              enum ptx_type tb, enum ptx_type tc) {
    const int32_t a = ta ? place_source(d, operand(d, 1), ta) : 0;
    const int32_t b = tb ? place_source(d, operand(d, 2), tb) : a;
    const int32_t c = tc ? place_source(d, operand(d, 3), tc) : a;
    const uint32_t count = 1u + (ta != 0) + (tb != 0) + (tc != 0);
    if (d->in->n_operands != count) decode_bad(d, "wrong number of operands");
    const uint32_t bytes = register_bytes(td);
    const int32_t at = place_target(d, operand(d, 0), bytes);
    struct op *o = emit_lane(d, fn, class, rule);
    o->d = at;
    o->a = a;
    o->b = b;
    o->c = c;
    o->type = (uint8_t)td;
    o->sets_wide = (uint8_t)bytes;
    return o;
}

static void binary(struct decoder *d, enum lane_op op16, enum exec_class class, enum op_rule rule) {
    const enum ptx_type t = suffix_type(d);
    emit_simple(d, of_width(d, op16, register_bytes(t)), class, rule, t, t, t, PTX_NONE);
}

static bool is_float(enum ptx_type t) {
    return t == PTX_F16 || t == PTX_BF16 || t == PTX_F32 || t == PTX_F16X2 || t == PTX_BF16X2 ||
           t == PTX_F64 || t == PTX_F32X2;
}

/* The float forms of add, sub, mul ... are in decode_float.c under the same names. */
static bool any_float(struct decoder *d) {
    const uint32_t used = d->used;
    const enum ptx_type t = suffix_type_or(d, PTX_NONE);
    d->used = used;
    return is_float(t);
}

static decode_fn *float_form(const char *name) {
    for (const struct decode_entry *e = decode_float; e->name; e++)
        if (!strcmp(e->name, name)) return e->fn;
    return NULL;
}
static bool took_float(struct decoder *d) {
    if (!any_float(d)) return false;
    decode_fn *fn = float_form(d->in->name);
    if (!fn) decode_bad(d, "no float form");
    fn(d);
    return true;
}

static void carry(struct decoder *d, enum lane_op op32, uint32_t in) {
    const uint32_t out = suffix_take(d, "cc") ? 2 : 0;
    const enum ptx_type t = suffix_type(d);
    const bool wide = register_bytes(t) == 8;
    struct op *o = emit_simple(d, wide ? (enum lane_op)(op32 + 1) : op32, EXEC_CLASS_INTEGER,
                               RULE_ALL, t, t, t, PTX_NONE);
    o->kind = (uint8_t)(in | out);
}

static void packed16(struct decoder *d, enum lane_op fn) {
    emit_simple(d, fn, EXEC_CLASS_INTEGER, RULE_HALVES, PTX_B32, PTX_B32, PTX_B32, PTX_NONE);
}

static void decode_add(struct decoder *d) {
    if (took_float(d)) return;
    if (suffix_take(d, "u16x2") || suffix_take(d, "s16x2")) {
        decode_need(d, 90);
        packed16(d, LANE_ADD_U16X2);
    } else if (suffix_take(d, "sat")) {
        const enum ptx_type t = suffix_type(d);
        emit_simple(d, LANE_ADD_SAT_S32, EXEC_CLASS_INTEGER, RULE_ALL, t, PTX_S32, PTX_S32,
                    PTX_NONE);
    } else if (d->in->n_suffixes == 2) {
        carry(d, LANE_ADDC_32, 0);
    } else {
        binary(d, LANE_ADD_16, EXEC_CLASS_INTEGER, RULE_ALL);
    }
}
static void decode_sub(struct decoder *d) {
    if (took_float(d)) return;
    if (suffix_take(d, "sat")) {
        const enum ptx_type t = suffix_type(d);
        emit_simple(d, LANE_SUB_SAT_S32, EXEC_CLASS_INTEGER, RULE_ALL, t, PTX_S32, PTX_S32,
                    PTX_NONE);
    } else if (d->in->n_suffixes == 2) {
        carry(d, LANE_SUBC_32, 0);
    } else {
        binary(d, LANE_SUB_16, EXEC_CLASS_INTEGER, RULE_ALL);
    }
}
static void decode_addc(struct decoder *d) {
    carry(d, LANE_ADDC_32, 1);
}
static void decode_subc(struct decoder *d) {
    carry(d, LANE_SUBC_32, 1);
}

static void multiply(struct decoder *d, bool add) {
    if (took_float(d)) return;
    const bool wide = suffix_take(d, "wide"), hi = suffix_take(d, "hi");
    (void)suffix_take(d, "lo");
    const bool sat = suffix_take(d, "sat");
    const enum ptx_type t = suffix_type(d);
    const uint32_t bytes = register_bytes(t);
    const bool s = type_signed(t);
    if (wide) {
        static const enum lane_op table[2][2][2] = {
            {{LANE_MULWIDE_U16, LANE_MULWIDE_S16}, {LANE_MULWIDE_U32, LANE_MULWIDE_S32}},
            {{LANE_MADWIDE_U16, LANE_MADWIDE_S16}, {LANE_MADWIDE_U32, LANE_MADWIDE_S32}}};
        if (bytes != 2 && bytes != 4) decode_bad(d, "no such width");
        const enum ptx_type to = bytes == 2 ? PTX_B32 : PTX_B64;
        emit_simple(d, table[add][bytes == 4][s], EXEC_CLASS_INTEGER, RULE_ALL, to, t, t,
                    add ? to : PTX_NONE);
        return;
    }
    enum lane_op fn = add ? LANE_MAD_16 : LANE_MUL_16;
    if (hi)
        fn = add ? (s ? LANE_MADHI_S16 : LANE_MADHI_U16) : (s ? LANE_MULHI_S16 : LANE_MULHI_U16);
    fn = of_width(d, fn, bytes);
    if (sat) {
        if (!add || !hi || t != PTX_S32) decode_bad(d, ".sat is for mad.hi.s32");
        fn = LANE_MADHI_SAT_S32;
    }
    emit_simple(d, fn, EXEC_CLASS_INTEGER, RULE_ALL, t, t, t, add ? t : PTX_NONE);
}
static void decode_mul(struct decoder *d) {
    multiply(d, false);
}
static void multiply_carry(struct decoder *d, uint32_t in) {
    const uint32_t out = suffix_take(d, "cc") ? 2 : 0, hi = suffix_take(d, "hi") ? 4 : 0;
    (void)suffix_take(d, "lo");
    const enum ptx_type t = suffix_type(d);
    if (register_bytes(t) != 4) decode_bad(d, "no such width");
    struct op *o = emit_simple(d, LANE_MADC_32, EXEC_CLASS_INTEGER, RULE_ALL, t, t, t, t);
    o->kind = (uint8_t)(in | out | hi);
    o->flags = type_signed(t) ? OP_SIGNED : 0;
}
static void decode_madc(struct decoder *d) {
    multiply_carry(d, 1);
}
static void decode_mad(struct decoder *d) {
    for (uint32_t i = 0; i < d->in->n_suffixes; i++)
        if (!strcmp(d->in->suffix[i], "cc")) {
            multiply_carry(d, 0);
            return;
        }
    multiply(d, true);
}

static void multiply24(struct decoder *d, bool add) {
    const bool hi = suffix_take(d, "hi");
    (void)suffix_take(d, "lo");
    const enum ptx_type t = suffix_type(d);
    static const enum lane_op table[2][2][2] = {
        {{LANE_MUL24_LO_U, LANE_MUL24_LO_S}, {LANE_MUL24_HI_U, LANE_MUL24_HI_S}},
        {{LANE_MAD24_LO_U, LANE_MAD24_LO_S}, {LANE_MAD24_HI_U, LANE_MAD24_HI_S}}};
    emit_simple(d, table[add][hi][type_signed(t)], EXEC_CLASS_INTEGER, RULE_ALL, t, PTX_B32,
                PTX_B32, add ? PTX_B32 : PTX_NONE);
}
static void decode_mul24(struct decoder *d) {
    multiply24(d, false);
}
static void decode_mad24(struct decoder *d) {
    multiply24(d, true);
}

static void decode_sad(struct decoder *d) {
    const enum ptx_type t = suffix_type(d);
    emit_simple(d, of_width(d, type_signed(t) ? LANE_SAD_S16 : LANE_SAD_U16, register_bytes(t)),
                EXEC_CLASS_INTEGER, RULE_ALL, t, t, t, t);
}
static void decode_div(struct decoder *d) {
    if (took_float(d)) return;
    const enum ptx_type t = suffix_type(d);
    emit_simple(d, of_width(d, type_signed(t) ? LANE_DIV_S16 : LANE_DIV_U16, register_bytes(t)),
                EXEC_CLASS_SPECIAL, RULE_ALL, t, t, t, PTX_NONE);
}
static void decode_rem(struct decoder *d) {
    const enum ptx_type t = suffix_type(d);
    emit_simple(d, of_width(d, type_signed(t) ? LANE_REM_S16 : LANE_REM_U16, register_bytes(t)),
                EXEC_CLASS_SPECIAL, RULE_ALL, t, t, t, PTX_NONE);
}
static void unary(struct decoder *d, enum lane_op op16) {
    if (took_float(d)) return;
    const enum ptx_type t = suffix_type(d);
    emit_simple(d, of_width(d, op16, register_bytes(t)), EXEC_CLASS_INTEGER, RULE_ALL, t, t,
                PTX_NONE, PTX_NONE);
}
static void decode_abs(struct decoder *d) {
    unary(d, LANE_ABS_16);
}
static void decode_neg(struct decoder *d) {
    unary(d, LANE_NEG_16);
}

static void min_max(struct decoder *d, bool max) {
    if (took_float(d)) return;
    if (suffix_take(d, "s16x2")) {
        packed16(d, max ? LANE_MAX_S16X2 : LANE_MIN_S16X2);
        return;
    }
    if (suffix_take(d, "u16x2")) {
        packed16(d, max ? LANE_MAX_U16X2 : LANE_MIN_U16X2);
        return;
    }
    const bool relu = suffix_take(d, "relu");
    const enum ptx_type t = suffix_type(d);
    enum lane_op fn = max ? (type_signed(t) ? LANE_MAX_S16 : LANE_MAX_U16)
                          : (type_signed(t) ? LANE_MIN_S16 : LANE_MIN_U16);
    fn = of_width(d, fn, register_bytes(t));
    if (relu) {
        if (t != PTX_S32) decode_bad(d, ".relu is for .s32");
        fn = max ? LANE_MAX_RELU_S32 : LANE_MIN_RELU_S32;
    }
    emit_simple(d, fn, EXEC_CLASS_INTEGER, RULE_ALL, t, t, t, PTX_NONE);
}
static void decode_min(struct decoder *d) {
    min_max(d, false);
}
static void decode_max(struct decoder *d) {
    min_max(d, true);
}

static void logic(struct decoder *d, enum lane_op op16, enum lane_op predicate, enum op_rule rule) {
    const enum ptx_type t = suffix_type(d);
    if (t != PTX_PRED) {
        emit_simple(d, of_width(d, op16, register_bytes(t)), EXEC_CLASS_LOGIC, rule, t, t, t,
                    PTX_NONE);
        return;
    }
    bool na = false, nb = false;
    const int32_t a = place_pred(d, operand(d, 1), &na), b = place_pred(d, operand(d, 2), &nb);
    const int32_t at = place_pred(d, operand(d, 0), NULL);
    struct op *o = emit_lane(d, predicate, EXEC_CLASS_LOGIC, RULE_PRED);
    o->d = at;
    o->a = a;
    o->b = b;
    o->flags = (na ? OP_NEGATE_A : 0) | (nb ? OP_NEGATE_B : 0);
    o->kind = predicate == LANE_AND_PRED  ? COMBINE_AND
              : predicate == LANE_OR_PRED ? COMBINE_OR
                                          : COMBINE_NONE;
}
static void decode_and(struct decoder *d) {
    logic(d, LANE_AND_16, LANE_AND_PRED, RULE_AND);
}
static void decode_or(struct decoder *d) {
    logic(d, LANE_OR_16, LANE_OR_PRED, RULE_OR);
}
static void decode_xor(struct decoder *d) {
    logic(d, LANE_XOR_16, LANE_XOR_PRED, RULE_BITWISE);
}

static void move_pred(struct decoder *d, enum lane_op fn) {
    bool negated = false;
    const int32_t a = place_pred(d, operand(d, 1), &negated);
    const int32_t at = place_pred(d, operand(d, 0), NULL);
    struct op *o = emit_lane(d, fn, EXEC_CLASS_LOGIC, RULE_PRED);
    o->d = at;
    o->a = o->b = a;
    o->flags = negated ? OP_NEGATE_A : 0;
}
static void decode_not(struct decoder *d) {
    const enum ptx_type t = suffix_type(d);
    if (t == PTX_PRED) {
        move_pred(d, LANE_NOT_PRED);
        return;
    }
    emit_simple(d, of_width(d, LANE_NOT_16, register_bytes(t)), EXEC_CLASS_LOGIC, RULE_MOVE, t, t,
                PTX_NONE, PTX_NONE);
}
static void decode_cnot(struct decoder *d) {
    const enum ptx_type t = suffix_type(d);
    emit_simple(d, of_width(d, LANE_CNOT_16, register_bytes(t)), EXEC_CLASS_LOGIC, RULE_ALL, t, t,
                PTX_NONE, PTX_NONE);
}

static void shift(struct decoder *d, bool left) {
    const enum ptx_type t = suffix_type(d);
    const enum lane_op fn = left ? LANE_SHL_16 : type_signed(t) ? LANE_SHR_S16 : LANE_SHR_U16;
    struct op *o = emit_simple(d, of_width(d, fn, register_bytes(t)), EXEC_CLASS_LOGIC,
                               left             ? RULE_SHL
                               : type_signed(t) ? RULE_SAR
                                                : RULE_SHR,
                               t, t, PTX_B32, PTX_NONE);
    o->width = (uint8_t)register_bytes(t);
}
static void decode_shl(struct decoder *d) {
    shift(d, true);
}
static void decode_shr(struct decoder *d) {
    shift(d, false);
}

static void decode_shf(struct decoder *d) {
    const bool left = suffix_take(d, "l");
    if (!left && !suffix_take(d, "r")) decode_bad(d, "no direction");
    const bool wrap = suffix_take(d, "wrap");
    if (!wrap && !suffix_take(d, "clamp")) decode_bad(d, "no mode");
    const enum ptx_type t = suffix_type(d);
    emit_simple(d,
                left ? (wrap ? LANE_SHF_L_WRAP : LANE_SHF_L_CLAMP)
                     : (wrap ? LANE_SHF_R_WRAP : LANE_SHF_R_CLAMP),
                EXEC_CLASS_LOGIC, RULE_ALL, t, PTX_B32, PTX_B32, PTX_B32);
}

static void decode_lop3(struct decoder *d) {
    const enum ptx_type t = suffix_type(d);
    const struct ptx_operand *table = operand(d, 4);
    if (d->in->n_operands != 5 || table->kind != PTX_OPERAND_IMMEDIATE || table->bits > 255)
        decode_bad(d, "bad operands");
    const int32_t a = place_source(d, operand(d, 1), t), b = place_source(d, operand(d, 2), t);
    const int32_t c = place_source(d, operand(d, 3), t), at = place_target(d, operand(d, 0), 4);
    struct op *o = emit_lane(d, LANE_LOP3, EXEC_CLASS_LOGIC, RULE_BITWISE);
    o->d = at;
    o->a = a;
    o->b = b;
    o->c = c;
    o->kind = (uint8_t)table->bits;
    o->n = 3;
}

static void decode_prmt(struct decoder *d) {
    static const char *const modes[] = {"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"};
    int mode = -1;
    for (int i = 0; i < 6; i++)
        if (suffix_take(d, modes[i])) mode = i;
    const enum ptx_type t = suffix_type(d);
    struct op *o = emit_simple(d, mode < 0 ? LANE_PRMT : LANE_PRMT_MODE, EXEC_CLASS_LOGIC,
                               mode < 0 ? RULE_PRMT : RULE_ALL, t, PTX_B32, PTX_B32, PTX_B32);
    if (mode >= 0) o->kind = (uint8_t)mode;
}

static void decode_bfe(struct decoder *d) {
    const enum ptx_type t = suffix_type(d);
    const bool s = type_signed(t), wide = register_bytes(t) == 8;
    struct op *o =
        emit_simple(d, wide ? (s ? LANE_BFE_S64 : LANE_BFE_U64) : (s ? LANE_BFE_S32 : LANE_BFE_U32),
                    EXEC_CLASS_LOGIC, RULE_BFE, t, t, PTX_B32, PTX_B32);
    o->flags = s ? OP_SIGNED : 0;
    o->width = (uint8_t)register_bytes(t);
}
static void decode_bfi(struct decoder *d) {
    const enum ptx_type t = suffix_type(d);
    const int32_t a = place_source(d, operand(d, 1), t), b = place_source(d, operand(d, 2), t);
    const int32_t c = place_source(d, operand(d, 3), PTX_B32);
    const int32_t e = place_source(d, operand(d, 4), PTX_B32);
    const uint32_t bytes = register_bytes(t);
    const int32_t at = place_target(d, operand(d, 0), bytes);
    struct op *o = emit_lane(d, bytes == 8 ? LANE_BFI_64 : LANE_BFI_32, EXEC_CLASS_LOGIC, RULE_BFI);
    o->d = at;
    o->a = a;
    o->b = b;
    o->c = c;
    o->e = e;
    o->width = o->sets_wide = (uint8_t)bytes;
}
static void decode_bfind(struct decoder *d) {
    const bool amount = suffix_take(d, "shiftamt");
    const enum ptx_type t = suffix_type(d);
    const bool s = type_signed(t), wide = register_bytes(t) == 8;
    struct op *o = emit_simple(
        d, wide ? (s ? LANE_BFIND_S64 : LANE_BFIND_U64) : (s ? LANE_BFIND_S32 : LANE_BFIND_U32),
        EXEC_CLASS_LOGIC, RULE_ALL, PTX_B32, t, PTX_NONE, PTX_NONE);
    o->kind = amount;
}
static void count(struct decoder *d, enum lane_op narrow) {
    const enum ptx_type t = suffix_type(d);
    emit_simple(d, register_bytes(t) == 8 ? (enum lane_op)(narrow + 1) : narrow, EXEC_CLASS_LOGIC,
                RULE_ALL, PTX_B32, t, PTX_NONE, PTX_NONE);
}
static void decode_clz(struct decoder *d) {
    count(d, LANE_CLZ_32);
}
static void decode_popc(struct decoder *d) {
    count(d, LANE_POPC_32);
}
static void decode_brev(struct decoder *d) {
    const enum ptx_type t = suffix_type(d);
    emit_simple(d, register_bytes(t) == 8 ? LANE_BREV_64 : LANE_BREV_32, EXEC_CLASS_LOGIC, RULE_ALL,
                t, t, PTX_NONE, PTX_NONE);
}
static bool wrap_mode(struct decoder *d) {
    const bool wrap = suffix_take(d, "wrap");
    if (!wrap && !suffix_take(d, "clamp")) decode_bad(d, "no mode");
    return wrap;
}
static void decode_szext(struct decoder *d) {
    const bool wrap = wrap_mode(d);
    const enum ptx_type t = suffix_type(d);
    emit_simple(d, type_signed(t) ? LANE_SZEXT_S : LANE_SZEXT_U, EXEC_CLASS_LOGIC, RULE_ALL, t, t,
                PTX_B32, PTX_NONE)
        ->kind = wrap;
}
static void decode_bmsk(struct decoder *d) {
    const bool wrap = wrap_mode(d);
    const enum ptx_type t = suffix_type(d);
    emit_simple(d, LANE_BMSK, EXEC_CLASS_LOGIC, RULE_ALL, t, t, PTX_B32, PTX_NONE)->kind = wrap;
}
static void decode_fns(struct decoder *d) {
    const enum ptx_type t = suffix_type(d);
    emit_simple(d, LANE_FNS, EXEC_CLASS_LOGIC, RULE_ALL, t, PTX_B32, PTX_B32, PTX_B32);
}

static void dot(struct decoder *d, bool two) {
    const bool hi = two && suffix_take(d, "hi");
    if (two && !hi && !suffix_take(d, "lo")) decode_bad(d, "no half");
    const enum ptx_type ta = suffix_type(d), tb = suffix_type(d);
    struct op *o = emit_simple(d, two ? LANE_DP2A : LANE_DP4A, EXEC_CLASS_DOT, RULE_ALL, PTX_B32,
                               PTX_B32, PTX_B32, PTX_B32);
    o->flags = (ta == PTX_S32 ? OP_SIGNED_A : 0) | (tb == PTX_S32 ? OP_SIGNED_B : 0);
    o->kind = hi;
}
static void decode_dp4a(struct decoder *d) {
    dot(d, false);
}
static void decode_dp2a(struct decoder *d) {
    dot(d, true);
}

static void move_vector(struct decoder *d, enum ptx_type t) {
    const struct ptx_operand *to = operand(d, 0), *from = operand(d, 1);
    const bool pack = from->kind == PTX_OPERAND_VECTOR;
    const struct ptx_operand *vector = pack ? from : to;
    const uint32_t n = vector->n_elements, whole = register_bytes(t);
    if (n < 2 || n > 4 || whole % n || (pack && to->kind == PTX_OPERAND_VECTOR))
        decode_bad(d, "bad vector");
    const uint32_t bytes = whole / n;
    int32_t places[4];
    for (uint32_t i = 0; i < n; i++) {
        const struct ptx_operand *x = &vector->elements[i];
        if (pack) {
            places[i] = place_source_any(d, x, bytes < 2 ? 2 : bytes);
        } else if (x->kind == PTX_OPERAND_SINK) {
            places[i] = NO_PLACE;
        } else {
            places[i] = place_target(d, x, bytes < 2 ? 2 : bytes);
        }
    }
    const uint32_t list = list_add(d, places, n);
    const int32_t other = pack ? place_target(d, to, whole) : place_source_any(d, from, whole);
    struct op *o = emit_lane(d, pack ? LANE_PACK : LANE_UNPACK, EXEC_CLASS_MOVE,
                             pack ? RULE_PACK : RULE_UNPACK);
    o->list = list;
    o->n = (uint8_t)n;
    o->width = (uint8_t)bytes;
    if (pack) {
        o->d = other;
        o->sets_wide = (uint8_t)whole;
        o->flags = whole == 8 ? OP_WIDE : 0;
    } else {
        o->a = other;
        o->imm = whole;
        o->flags = whole >= 8 ? OP_WIDE_A : 0;
    }
}

static void decode_mov(struct decoder *d) {
    const enum ptx_type t = suffix_type(d);
    if (d->in->n_operands != 2) decode_bad(d, "wrong number of operands");
    if (operand(d, 0)->kind == PTX_OPERAND_VECTOR || operand(d, 1)->kind == PTX_OPERAND_VECTOR) {
        move_vector(d, t);
        return;
    }
    if (t == PTX_PRED) {
        move_pred(d, LANE_MOV_PRED);
        return;
    }
    const uint32_t bytes = register_bytes(t);
    const struct ptx_operand *from = operand(d, 1);
    const int32_t at = place_target(d, operand(d, 0), bytes);
    if (from->kind == PTX_OPERAND_SPECIAL) {
        struct op *o = emit(d, op_special, EXEC_CLASS_MOVE, RULE_SPECIAL);
        o->d = at;
        o->kind = (uint8_t)from->special;
        o->width = o->sets_wide = (uint8_t)(bytes < 4 ? 4 : bytes);
        return;
    }
    const int32_t a = place_source(d, from, t);
    if (bytes == 16) {
        const int32_t yes = place_bits(d, 1, 0);
        struct op *o = emit_lane(d, LANE_SELP_128, EXEC_CLASS_MOVE, RULE_ALL);
        o->d = at;
        o->a = o->b = a;
        o->c = yes;
        o->sets_wide = 16;
        return;
    }
    struct op *o = emit_lane(d, of_width(d, LANE_MOV_16, bytes), EXEC_CLASS_MOVE, RULE_MOVE);
    o->d = at;
    o->a = o->b = o->c = a;
    o->sets_wide = (uint8_t)bytes;
}

static void decode_selp(struct decoder *d) {
    const enum ptx_type t = suffix_type(d);
    bool negated = false;
    const int32_t a = place_source(d, operand(d, 1), t), b = place_source(d, operand(d, 2), t);
    const int32_t c = place_pred(d, operand(d, 3), &negated);
    const uint32_t bytes = register_bytes(t);
    const int32_t at = place_target(d, operand(d, 0), bytes);
    struct op *o = emit_lane(d, of_width(d, LANE_SELP_16, bytes), EXEC_CLASS_MOVE, RULE_SELP);
    o->d = at;
    o->a = a;
    o->b = b;
    o->c = c;
    o->flags = negated ? OP_NEGATE_C : 0;
    o->sets_wide = (uint8_t)bytes;
}
static void decode_slct(struct decoder *d) {
    const uint32_t flags = suffix_float_flags(d);
    const enum ptx_type t = suffix_type(d), tc = suffix_type(d);
    const enum lane_op fn = tc == PTX_F32 ? LANE_SLCT_F16 : LANE_SLCT_S16;
    struct op *o =
        emit_simple(d, of_width(d, fn, register_bytes(t)), EXEC_CLASS_MOVE, RULE_ALL, t, t, t, tc);
    o->flags |= flags;
}

static void compare(struct decoder *d, bool set) {
    bool is_unsigned;
    const enum op_compare cmp = suffix_compare(d, &is_unsigned);
    const enum op_combine combine = suffix_take(d, "and")   ? COMBINE_AND
                                    : suffix_take(d, "or")  ? COMBINE_OR
                                    : suffix_take(d, "xor") ? COMBINE_XOR
                                                            : COMBINE_NONE;
    const uint32_t flags = suffix_float_flags(d);
    const enum ptx_type td = set ? suffix_type(d) : PTX_PRED;
    const enum ptx_type t = suffix_type(d);
    const uint32_t bytes = register_bytes(t);
    enum lane_op fn;
    if (t == PTX_F32)
        fn = LANE_SETP_F32;
    else if (t == PTX_F64)
        fn = LANE_SETP_F64;
    else if (is_float(t))
        fn = LANE_SETP_HALF;
    else if (cmp >= CMP_EQU)
        decode_bad(d, "an unordered comparison of integers");
    else
        fn = of_width(d, type_signed(t) && !is_unsigned ? LANE_SETP_S16 : LANE_SETP_U16, bytes);
    const int32_t a = place_source(d, operand(d, 1), t), b = place_source(d, operand(d, 2), t);
    bool negated = false;
    int32_t c = NO_PLACE, e = NO_PLACE, at;
    if (combine != COMBINE_NONE) c = place_pred(d, operand(d, 3), &negated);
    if (d->in->n_operands != (combine != COMBINE_NONE ? 4u : 3u))
        decode_bad(d, "wrong number of operands");
    const struct ptx_operand *to = operand(d, 0);
    if (set) {
        at = place_target(d, to, register_bytes(td));
    } else {
        if (to->reg2 != UINT32_MAX) {
            if (d->function->register_type[to->reg2] != PTX_PRED) decode_bad(d, "bad predicate");
            e = place_register(d, to->reg2);
        }
        at = NO_PLACE;
        if (to->kind == PTX_OPERAND_REGISTER) {
            if (d->function->register_type[to->reg] != PTX_PRED) decode_bad(d, "bad predicate");
            at = place_register(d, to->reg);
        } else if (to->kind != PTX_OPERAND_SINK) {
            decode_bad(d, "bad destination");
        }
    }
    struct op *o = emit_lane(d, fn, EXEC_CLASS_COMPARE, set ? RULE_ALL : RULE_TO_PRED);
    o->d = at;
    o->a = a;
    o->b = b;
    o->c = c;
    o->e = e;
    o->kind = (uint8_t)cmp;
    o->combine = (uint8_t)combine;
    o->flags = flags | (negated ? OP_NEGATE_C : 0);
    o->type = (uint8_t)td;
    o->type_a = (uint8_t)t;
    o->n = set ? 1 : 0;
    if (set && combine != COMBINE_NONE) o->rule = RULE_TO_PRED;
}
static void decode_setp(struct decoder *d) {
    compare(d, false);
}
static void decode_set(struct decoder *d) {
    compare(d, true);
}

const struct decode_entry decode_integer[] = {
    {"add", decode_add},     {"sub", decode_sub},   {"addc", decode_addc}, {"subc", decode_subc},
    {"madc", decode_madc},   {"mul", decode_mul},   {"mad", decode_mad},   {"mul24", decode_mul24},
    {"mad24", decode_mad24}, {"sad", decode_sad},   {"div", decode_div},   {"rem", decode_rem},
    {"abs", decode_abs},     {"neg", decode_neg},   {"min", decode_min},   {"max", decode_max},
    {"and", decode_and},     {"or", decode_or},     {"xor", decode_xor},   {"not", decode_not},
    {"cnot", decode_cnot},   {"shl", decode_shl},   {"shr", decode_shr},   {"shf", decode_shf},
    {"lop3", decode_lop3},   {"prmt", decode_prmt}, {"bfe", decode_bfe},   {"bfi", decode_bfi},
    {"bfind", decode_bfind}, {"clz", decode_clz},   {"popc", decode_popc}, {"brev", decode_brev},
    {"szext", decode_szext}, {"bmsk", decode_bmsk}, {"fns", decode_fns},   {"dp4a", decode_dp4a},
    {"dp2a", decode_dp2a},   {"mov", decode_mov},   {"selp", decode_selp}, {"slct", decode_slct},
    {"setp", decode_setp},   {"set", decode_set},   {NULL, NULL},
};
