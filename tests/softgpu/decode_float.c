/* Floating-point instructions and conversions; PTX ISA 9.7.3 - 9.7.5, 9.7.9.22. */
#include "tests/softgpu/decode.h"

struct shape { /* of one floating-point instruction */
    enum ptx_type type, type_a;
    enum op_round round;
    uint32_t flags;
    bool approx, full;
};

static struct shape read_shape(struct decoder *d) {
    struct shape s = {.type_a = PTX_NONE};
    s.approx = suffix_take(d, "approx");
    s.full = suffix_take(d, "full");
    s.round = suffix_round(d);
    s.flags = suffix_float_flags(d);
    s.type = suffix_type(d);
    return s;
}

static struct op *emit_float(struct decoder *d, enum lane_op fn, enum exec_class class,
                             const struct shape *s, uint32_t sources) {
    int32_t places[3] = {0, 0, 0};
    if (d->in->n_operands != sources + 1) decode_bad(d, "wrong number of operands");
    for (uint32_t i = 0; i < 3; i++)
        places[i] = i < sources ? place_source(d, operand(d, i + 1), s->type) : places[0];
    const uint32_t bytes = register_bytes(s->type);
    const int32_t at = place_target(d, operand(d, 0), bytes);
    const bool packed = s->type == PTX_F16X2 || s->type == PTX_BF16X2;
    struct op *o = emit_lane(d, fn, class, packed ? RULE_HALVES : RULE_ALL);
    o->d = at;
    o->a = places[0];
    o->b = places[1];
    o->c = places[2];
    o->type = (uint8_t)s->type;
    o->round = (uint8_t)s->round;
    o->flags = s->flags;
    o->n = (uint8_t)sources;
    o->sets_wide = (uint8_t)bytes;
    return o;
}

static bool half_type(enum ptx_type t) {
    return t == PTX_F16 || t == PTX_BF16 || t == PTX_F16X2 || t == PTX_BF16X2;
}

static void emit_half(struct decoder *d, enum half_kind kind, const struct shape *s,
                      uint32_t sources) {
    const bool bf16 = s->type == PTX_BF16 || s->type == PTX_BF16X2;
    decode_need(d, bf16 ? (kind <= HALF_MUL ? 90 : 80) : 53);
    struct op *o = emit_float(d, LANE_HALF, EXEC_CLASS_FLOAT, s, sources);
    o->kind = (uint8_t)kind;
}

/* add.f32.f16 and the like: the first type is the result's, the second that of a (and b). */
static bool mixed(struct decoder *d, struct shape *s, enum half_kind kind, uint32_t halves) {
    if (s->type != PTX_F32) return false;
    const enum ptx_type t = suffix_type_or(d, PTX_NONE);
    if (t == PTX_NONE) return false;
    if (t != PTX_F16 && t != PTX_BF16) decode_bad(d, "bad second type");
    decode_need(d, 100);
    const int32_t a = place_source(d, operand(d, 1), t);
    const int32_t b = halves == 2 ? place_source(d, operand(d, 2), t) : a;
    const int32_t c = place_source(d, operand(d, halves + 1), PTX_F32);
    const int32_t at = place_target(d, operand(d, 0), 4);
    struct op *o = emit_lane(d, LANE_HALF_MIXED, EXEC_CLASS_FLOAT, RULE_ALL);
    o->d = at;
    o->a = a;
    o->b = b;
    o->c = c;
    o->kind = (uint8_t)kind;
    o->type = PTX_F32;
    o->type_a = (uint8_t)t;
    o->round = (uint8_t)s->round;
    o->flags = s->flags;
    return true;
}

static void arithmetic(struct decoder *d, enum half_kind kind, uint32_t sources) {
    static const enum lane_op fast[] = {LANE_ADD_F32, LANE_SUB_F32, LANE_MUL_F32, LANE_FMA_F32};
    static const enum lane_op flushed[] = {LANE_ADD_FTZ_F32, LANE_SUB_FTZ_F32, LANE_MUL_FTZ_F32,
                                           LANE_FMA_FTZ_F32};
    static const enum lane_op any[] = {LANE_ADD_ANY_F32, LANE_SUB_ANY_F32, LANE_MUL_ANY_F32,
                                       LANE_FMA_ANY_F32};
    static const enum lane_op wide[] = {LANE_ADD_F64, LANE_SUB_F64, LANE_MUL_F64, LANE_FMA_F64};
    struct shape s = read_shape(d);
    if (kind != HALF_MUL && mixed(d, &s, kind, kind == HALF_FMA ? 2 : 1)) return;
    if (half_type(s.type)) {
        emit_half(d, kind, &s, sources);
    } else if (s.type == PTX_F32X2) {
        decode_need(d, 100);
        emit_float(d, LANE_F32X2, EXEC_CLASS_FLOAT, &s, sources)->kind = (uint8_t)kind;
    } else if (s.type == PTX_F64) {
        emit_float(d, wide[kind], EXEC_CLASS_DOUBLE, &s, sources);
    } else if (s.type == PTX_F32) {
        const enum lane_op *table = any;
        if (s.round == ROUND_NEAREST && !(s.flags & OP_SAT))
            table = s.flags & OP_FTZ ? flushed : fast;
        emit_float(d, table[kind], EXEC_CLASS_FLOAT, &s, sources);
    } else {
        decode_bad(d, "no such type");
    }
}
static void decode_add(struct decoder *d) {
    arithmetic(d, HALF_ADD, 2);
}
static void decode_sub(struct decoder *d) {
    arithmetic(d, HALF_SUB, 2);
}
static void decode_mul(struct decoder *d) {
    arithmetic(d, HALF_MUL, 2);
}
static void decode_fma(struct decoder *d) {
    arithmetic(d, HALF_FMA, 3);
}

static void sign_op(struct decoder *d, enum half_kind kind, enum lane_op f32, enum lane_op f64) {
    const bool ftz = suffix_take(d, "ftz");
    struct shape s = {.type = suffix_type(d), .flags = ftz ? OP_FTZ : 0};
    if (half_type(s.type))
        emit_half(d, kind, &s, 1);
    else
        emit_float(d, s.type == PTX_F64 ? f64 : f32,
                   s.type == PTX_F64 ? EXEC_CLASS_DOUBLE : EXEC_CLASS_FLOAT, &s, 1);
}
static void decode_neg(struct decoder *d) {
    sign_op(d, HALF_NEG, LANE_NEG_F32, LANE_NEG_F64);
}
static void decode_abs(struct decoder *d) {
    sign_op(d, HALF_ABS, LANE_ABS_F32, LANE_ABS_F64);
}

static void min_max(struct decoder *d, bool max) {
    const struct shape s = read_shape(d);
    const uint32_t sources = d->in->n_operands == 4 ? 3 : 2;
    if (sources == 3) decode_need(d, 100);
    if (s.flags & (OP_NAN | OP_XORSIGN)) decode_need(d, 80);
    if (half_type(s.type)) {
        decode_need(d, 80);
        emit_half(d, max ? HALF_MAX : HALF_MIN, &s, sources);
    } else if (s.type == PTX_F64) {
        emit_float(d, max ? LANE_MAX_F64 : LANE_MIN_F64, EXEC_CLASS_DOUBLE, &s, 2);
    } else {
        emit_float(d, max ? LANE_MAX_F32 : LANE_MIN_F32, EXEC_CLASS_FLOAT, &s, sources);
    }
}
static void decode_min(struct decoder *d) {
    min_max(d, false);
}
static void decode_max(struct decoder *d) {
    min_max(d, true);
}

static void decode_div(struct decoder *d) {
    const struct shape s = read_shape(d);
    if (s.type == PTX_F64)
        emit_float(d, LANE_DIV_F64, EXEC_CLASS_DOUBLE, &s, 2);
    else
        emit_float(d, s.approx ? LANE_DIV_APPROX_F32 : LANE_DIV_ANY_F32, EXEC_CLASS_SPECIAL, &s, 2);
}
static void decode_rcp(struct decoder *d) {
    const struct shape s = read_shape(d);
    if (s.type == PTX_F64)
        emit_float(d, s.approx ? LANE_RCP_APPROX_F64 : LANE_RCP_F64, EXEC_CLASS_DOUBLE, &s, 1);
    else
        emit_float(d, LANE_RCP_ANY_F32, EXEC_CLASS_SPECIAL, &s, 1);
}
static void decode_sqrt(struct decoder *d) {
    const struct shape s = read_shape(d);
    if (s.type == PTX_F64)
        emit_float(d, LANE_SQRT_F64, EXEC_CLASS_DOUBLE, &s, 1);
    else
        emit_float(d, LANE_SQRT_ANY_F32, EXEC_CLASS_SPECIAL, &s, 1);
}
static void decode_rsqrt(struct decoder *d) {
    const struct shape s = read_shape(d);
    if (s.type == PTX_F64)
        emit_float(d, LANE_RSQRT_F64, EXEC_CLASS_DOUBLE, &s, 1);
    else
        emit_float(d, LANE_RSQRT_F32, EXEC_CLASS_SPECIAL, &s, 1);
}
static void special(struct decoder *d, enum lane_op fn, int half) {
    const struct shape s = read_shape(d);
    if (half >= 0 && half_type(s.type)) {
        decode_need(d, s.type == PTX_F16 || s.type == PTX_F16X2 ? 75 : 90);
        emit_half(d, (enum half_kind)half, &s, 1);
        return;
    }
    if (s.type != PTX_F32) decode_bad(d, "no such type");
    emit_float(d, fn, EXEC_CLASS_SPECIAL, &s, 1);
}
static void decode_ex2(struct decoder *d) {
    special(d, LANE_EX2_F32, HALF_EX2);
}
static void decode_lg2(struct decoder *d) {
    special(d, LANE_LG2_F32, -1);
}
static void decode_sin(struct decoder *d) {
    special(d, LANE_SIN_F32, -1);
}
static void decode_cos(struct decoder *d) {
    special(d, LANE_COS_F32, -1);
}
static void decode_tanh(struct decoder *d) {
    decode_need(d, 75);
    special(d, LANE_TANH_F32, HALF_TANH);
}
static void decode_copysign(struct decoder *d) {
    const struct shape s = {.type = suffix_type(d)};
    emit_float(d, s.type == PTX_F64 ? LANE_COPYSIGN_F64 : LANE_COPYSIGN_F32, EXEC_CLASS_FLOAT, &s,
               2);
}
static void decode_testp(struct decoder *d) {
    static const char *const kinds[] = {"finite",     "infinite", "number",
                                        "notanumber", "normal",   "subnormal"};
    int kind = -1;
    for (int i = 0; i < 6; i++)
        if (suffix_take(d, kinds[i])) kind = i;
    const enum ptx_type t = suffix_type(d);
    if (kind < 0) decode_bad(d, "no test");
    const int32_t a = place_source(d, operand(d, 1), t);
    const int32_t at = place_pred(d, operand(d, 0), NULL);
    struct op *o = emit_lane(d, t == PTX_F64 ? LANE_TESTP_F64 : LANE_TESTP_F32, EXEC_CLASS_COMPARE,
                             RULE_TO_PRED);
    o->d = at;
    o->a = o->b = a;
    o->kind = (uint8_t)kind;
}

static bool is_integer(enum ptx_type t) {
    return (t >= PTX_B8 && t <= PTX_S16) || (t >= PTX_B32 && t <= PTX_S32) ||
           (t >= PTX_B64 && t <= PTX_S64);
}
static bool is_packed(enum ptx_type t) {
    return t == PTX_F16X2 || t == PTX_BF16X2 || t == PTX_E4M3X2 || t == PTX_E5M2X2;
}

static enum lane_op integer_conversion(enum ptx_type to, enum ptx_type from, uint32_t bytes,
                                       bool wide_a) {
    const bool wide = bytes == 8;
    const uint32_t bits_to = ptx_type_bytes(to) * 8, bits_from = ptx_type_bytes(from) * 8;
    const bool sign = from == PTX_S8 || from == PTX_S16 || from == PTX_S32 || from == PTX_S64;
    if (wide && !wide_a && bits_from == 32 && bits_to == 64)
        return sign ? LANE_CVT_S64_S32 : LANE_CVT_U64_U32;
    if (!wide && wide_a && bits_from == 64 && bits_to == 32) return LANE_CVT_U32_U64;
    if (!wide && !wide_a && bits_to == 32) {
        if (bits_from == 8) return sign ? LANE_CVT_S32_S8 : LANE_CVT_U32_U8;
        if (bits_from == 16) return sign ? LANE_CVT_S32_S16 : LANE_CVT_U32_U16;
        return LANE_MOV_32;
    }
    /* a 16-bit register keeps the low half, whatever the sign */
    if (bytes == 2 && bits_to == 16 && !wide_a && bits_from >= 16) return LANE_CVT_U32_U16;
    if (bytes == 2 && bits_to == 16 && bits_from == 8 && !sign) return LANE_CVT_U32_U8;
    return LANE_CVT_INT;
}

static enum lane_op conversion(struct decoder *d, enum ptx_type to, enum ptx_type from,
                               bool integral, enum op_round round, uint32_t flags, uint32_t bytes,
                               bool wide_a) {
    const bool wide = bytes == 8;
    const bool small_to = half_type(to) || to == PTX_TF32, small_from = half_type(from);
    if (is_integer(to) && is_integer(from))
        return flags & OP_SAT ? LANE_CVT_INT : integer_conversion(to, from, bytes, wide_a);
    if (is_integer(from)) {
        if (small_to) return LANE_CVT_HALF_INT;
        if (to == PTX_F64) return LANE_CVT_F64_INT;
        const bool plain = round == ROUND_NEAREST && !(flags & OP_SAT) && !wide_a;
        if (plain && from == PTX_S32) return LANE_CVT_F32_S32;
        if (plain && from == PTX_U32) return LANE_CVT_F32_U32;
        return LANE_CVT_F32_INT;
    }
    if (is_integer(to)) {
        if (small_from) return LANE_CVT_INT_HALF;
        if (from == PTX_F64) return LANE_CVT_INT_F64;
        return to == PTX_S32 && round == ROUND_ZERO && !wide && !(flags & OP_FTZ)
                   ? LANE_CVT_S32_F32
                   : LANE_CVT_INT_F32;
    }
    if (from == PTX_F32 && to == PTX_F32) return LANE_CVT_F32_F32;
    if (from == PTX_F64 && to == PTX_F64) return LANE_CVT_F64_F64;
    if (from == PTX_F64 && to == PTX_F32) return LANE_CVT_F32_F64;
    if (from == PTX_F32 && to == PTX_F64) return LANE_CVT_F64_F32;
    if (!flags && !integral && round == ROUND_NEAREST) {
        if (from == PTX_F16 && to == PTX_F32) return LANE_CVT_F32_F16;
        if (from == PTX_BF16 && to == PTX_F32) return LANE_CVT_F32_BF16;
        if (from == PTX_F32 && to == PTX_F16) return LANE_CVT_F16_F32;
        if (from == PTX_F32 && to == PTX_BF16) return LANE_CVT_BF16_F32;
    }
    if ((small_to || to == PTX_F32 || to == PTX_F64) &&
        (small_from || from == PTX_F32 || from == PTX_F64))
        return LANE_CVT_SMALL;
    decode_bad(d, "no such conversion");
}

static void convert_packed(struct decoder *d, enum op_round round, uint32_t flags, enum ptx_type to,
                           enum ptx_type from) {
    const bool two = from == PTX_F32;
    const bool eight =
        to == PTX_E4M3X2 || to == PTX_E5M2X2 || from == PTX_E4M3X2 || from == PTX_E5M2X2;
    decode_need(d, eight ? 89 : 80);
    if (d->in->n_operands != (two ? 3u : 2u) || (!two && !is_packed(from)))
        decode_bad(d, "bad operands");
    const int32_t a = place_source(d, operand(d, 1), two ? PTX_F32 : from);
    const int32_t b = two ? place_source(d, operand(d, 2), PTX_F32) : a;
    const int32_t at = place_target(d, operand(d, 0), ptx_type_bytes(to));
    struct op *o = emit_lane(d, LANE_CVT_PACK2, EXEC_CLASS_CONVERT, RULE_ALL);
    o->d = at;
    o->a = a;
    o->b = o->c = b;
    o->type = (uint8_t)to;
    o->type_a = (uint8_t)from;
    o->round = (uint8_t)round;
    o->flags = flags;
    o->n = two ? 2 : 1;
}

static void convert_pack_int(struct decoder *d) {
    (void)suffix_take(d, "sat");
    const enum ptx_type to = suffix_type(d), from = suffix_type(d);
    const bool third = suffix_take(d, "b32");
    if (from != PTX_S32 || !is_integer(to) || d->in->n_operands != (third ? 4u : 3u))
        decode_bad(d, "bad operands");
    const int32_t a = place_source(d, operand(d, 1), PTX_S32),
                  b = place_source(d, operand(d, 2), PTX_S32);
    const int32_t c = third ? place_source(d, operand(d, 3), PTX_B32) : a;
    const int32_t at = place_target(d, operand(d, 0), 4);
    struct op *o = emit_lane(d, LANE_CVT_PACK_INT, EXEC_CLASS_CONVERT, RULE_ALL);
    o->d = at;
    o->a = a;
    o->b = b;
    o->c = c;
    o->type = (uint8_t)to;
    o->n = third ? 3 : 2;
}

static void decode_cvt(struct decoder *d) {
    if (suffix_take(d, "pack")) {
        convert_pack_int(d);
        return;
    }
    static const char *const integral_names[] = {"rni", "rzi", "rmi", "rpi"};
    bool integral = false;
    enum op_round round = ROUND_NEAREST;
    for (int i = 0; i < 4; i++)
        if (suffix_take(d, integral_names[i])) {
            integral = true;
            round = (enum op_round)i;
        }
    if (!integral) round = suffix_round(d);
    uint32_t flags = suffix_float_flags(d);
    if (suffix_take(d, "satfinite")) flags |= OP_SATFINITE;
    const enum ptx_type to = suffix_type(d), from = suffix_type(d);
    if (is_packed(to) || is_packed(from)) {
        convert_packed(d, round, flags, to, from);
        return;
    }
    if (d->in->n_operands != 2) decode_bad(d, "wrong number of operands");
    if (to == PTX_BF16 && from == PTX_F32) decode_need(d, 80);
    if (to == PTX_TF32) decode_need(d, 80);
    /* registers may be wider than the types */
    const struct ptx_operand *target = operand(d, 0), *source = operand(d, 1);
    const uint32_t bytes =
        target->kind == PTX_OPERAND_SINK ? ptx_type_bytes(to) : operand_bytes(d, target);
    const uint32_t have =
        source->kind == PTX_OPERAND_REGISTER ? operand_bytes(d, source) : register_bytes(from);
    if (bytes == 0 || bytes > 8 || have > 8 || bytes < ptx_type_bytes(to) ||
        have < ptx_type_bytes(from))
        decode_bad(d, "a register is too narrow for its type");
    const bool wide = bytes == 8, wide_a = have == 8;
    const enum lane_op fn = conversion(d, to, from, integral, round, flags, bytes, wide_a);
    const int32_t a = source->kind == PTX_OPERAND_REGISTER ? place_register(d, source->reg)
                                                           : place_source(d, source, from);
    const int32_t at = place_target(d, target, bytes);
    const bool integers = is_integer(to) && is_integer(from);
    const bool sign = from == PTX_S8 || from == PTX_S16 || from == PTX_S32 || from == PTX_S64;
    struct op *o = emit_lane(d, fn, EXEC_CLASS_CONVERT, integers ? RULE_CONVERT : RULE_ALL);
    o->d = at;
    o->a = o->b = o->c = a;
    o->type = (uint8_t)to;
    o->type_a = (uint8_t)from;
    o->round = (uint8_t)round;
    o->kind = integral;
    o->flags = flags | (wide ? OP_WIDE : 0) | (wide_a ? OP_WIDE_A : 0) | (sign ? OP_SIGNED : 0);
    o->width = (uint8_t)ptx_type_bytes(from);
    o->sets_wide = (uint8_t)bytes;
    if (to == PTX_F64 || from == PTX_F64) o->class = EXEC_CLASS_DOUBLE;
}

const struct decode_entry decode_float[] = {
    {"add", decode_add},           {"sub", decode_sub},
    {"mul", decode_mul},           {"fma", decode_fma},
    {"mad", decode_fma},           {"neg", decode_neg},
    {"abs", decode_abs},           {"min", decode_min},
    {"max", decode_max},           {"div", decode_div},
    {"rcp", decode_rcp},           {"sqrt", decode_sqrt},
    {"rsqrt", decode_rsqrt},       {"ex2", decode_ex2},
    {"lg2", decode_lg2},           {"sin", decode_sin},
    {"cos", decode_cos},           {"tanh", decode_tanh},
    {"copysign", decode_copysign}, {"testp", decode_testp},
    {"cvt", decode_cvt},           {NULL, NULL},
};
