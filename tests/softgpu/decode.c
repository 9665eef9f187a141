#include "tests/softgpu/decode.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct constant {
    uint64_t bits;
    uint32_t bytes;
    int32_t place;
    struct constant *next;
};

/* A branch whose target is an instruction of the frame's function. */
struct patch {
    uint32_t op;
    uint32_t instruction;
    bool in_list; /* op is then a position in image.places */
    struct patch *next;
};

void decode_fail(struct decoder *d, enum status s, const char *fmt, ...) {
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    d->status = error_set(d->error, s, NULL, "PTX line %u: %s", d->in ? d->in->line : 0, text);
    longjmp(d->out, 1);
}

static void full_name(const struct decoder *d, char *out, size_t size) {
    size_t at = (size_t)snprintf(out, size, "%s", d->in->name);
    for (uint32_t i = 0; i < d->in->n_suffixes && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, ".%s", d->in->suffix[i]);
}

void decode_bad(struct decoder *d, const char *what) {
    char name[120];
    full_name(d, name, sizeof name);
    decode_fail(d, STATUS_UNSUPPORTED, "%s: %s", name, what);
}

void decode_need(struct decoder *d, uint32_t sm) {
    if (d->module->target >= sm) return;
    char name[120];
    full_name(d, name, sizeof name);
    decode_fail(d, STATUS_INVALID, "%s needs sm_%u, the module is for sm_%u", name, sm,
                d->module->target);
}

void *decode_take(struct decoder *d, size_t bytes) {
    void *p = bump_take(d->bump, bytes);
    if (!p) decode_fail(d, STATUS_NO_MEMORY, "no memory for %zu bytes", bytes);
    return p;
}

bool suffix_take(struct decoder *d, const char *s) {
    for (uint32_t i = 0; i < d->in->n_suffixes; i++) {
        if ((d->used >> i & 1) || strcmp(d->in->suffix[i], s)) continue;
        d->used |= 1u << i;
        return true;
    }
    return false;
}

enum ptx_type suffix_type_or(struct decoder *d, enum ptx_type none) {
    static const struct {
        const char *name;
        enum ptx_type type;
    } table[] = {
        {"pred", PTX_PRED},   {"b8", PTX_B8},       {"u8", PTX_U8},         {"s8", PTX_S8},
        {"b16", PTX_B16},     {"u16", PTX_U16},     {"s16", PTX_S16},       {"f16", PTX_F16},
        {"bf16", PTX_BF16},   {"b32", PTX_B32},     {"u32", PTX_U32},       {"s32", PTX_S32},
        {"f32", PTX_F32},     {"f16x2", PTX_F16X2}, {"bf16x2", PTX_BF16X2}, {"tf32", PTX_TF32},
        {"b64", PTX_B64},     {"u64", PTX_U64},     {"s64", PTX_S64},       {"f64", PTX_F64},
        {"f32x2", PTX_F32X2}, {"b128", PTX_B128},   {"e4m3x2", PTX_E4M3X2}, {"e5m2x2", PTX_E5M2X2},
    };
    for (uint32_t i = 0; i < d->in->n_suffixes; i++) {
        if (d->used >> i & 1) continue;
        for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
            if (strcmp(d->in->suffix[i], table[k].name) != 0) continue;
            d->used |= 1u << i;
            return table[k].type;
        }
    }
    return none;
}

enum ptx_type suffix_type(struct decoder *d) {
    const enum ptx_type t = suffix_type_or(d, PTX_NONE);
    if (t == PTX_NONE) decode_bad(d, "no type");
    return t;
}

void suffix_skip_hints(struct decoder *d) {
    static const char *const hints[] = {"ca", "cg", "cs", "cv", "lu", "wb", "wt", "nc", "unified"};
    for (uint32_t i = 0; i < d->in->n_suffixes; i++) {
        const char *s = d->in->suffix[i];
        bool hint = !strncmp(s, "L1::", 4) || !strncmp(s, "L2::", 4);
        for (size_t k = 0; k < sizeof hints / sizeof *hints; k++) hint |= !strcmp(s, hints[k]);
        if (hint) d->used |= 1u << i;
    }
}

enum op_round suffix_round(struct decoder *d) {
    if (suffix_take(d, "rn")) return ROUND_NEAREST;
    if (suffix_take(d, "rz")) return ROUND_ZERO;
    if (suffix_take(d, "rm")) return ROUND_DOWN;
    if (suffix_take(d, "rp")) return ROUND_UP;
    if (suffix_take(d, "rna")) return ROUND_AWAY;
    return ROUND_NEAREST;
}

enum op_scope suffix_scope(struct decoder *d, bool *found) {
    if (found) *found = true;
    if (suffix_take(d, "cta")) return SCOPE_CTA;
    if (suffix_take(d, "cluster")) return SCOPE_CLUSTER;
    if (suffix_take(d, "gpu") || suffix_take(d, "gl")) return SCOPE_GPU;
    if (suffix_take(d, "sys")) return SCOPE_SYS;
    if (found) *found = false;
    return SCOPE_GPU;
}

uint32_t suffix_vector(struct decoder *d) {
    return suffix_take(d, "v2") ? 2 : suffix_take(d, "v4") ? 4 : suffix_take(d, "v8") ? 8 : 1;
}

uint32_t suffix_float_flags(struct decoder *d) {
    uint32_t f = 0;
    if (suffix_take(d, "ftz")) f |= OP_FTZ;
    if (suffix_take(d, "sat")) f |= OP_SAT;
    if (suffix_take(d, "relu")) f |= OP_RELU;
    if (suffix_take(d, "NaN")) f |= OP_NAN;
    if (suffix_take(d, "xorsign")) f |= OP_XORSIGN;
    if (suffix_take(d, "abs")) f |= OP_ABS;
    return f;
}

enum op_compare suffix_compare(struct decoder *d, bool *is_unsigned) {
    static const struct {
        const char *name;
        enum op_compare compare;
        bool is_unsigned;
    } table[] = {
        {"eq", CMP_EQ, false},   {"ne", CMP_NE, false},   {"lt", CMP_LT, false},
        {"le", CMP_LE, false},   {"gt", CMP_GT, false},   {"ge", CMP_GE, false},
        {"lo", CMP_LT, true},    {"ls", CMP_LE, true},    {"hi", CMP_GT, true},
        {"hs", CMP_GE, true},    {"equ", CMP_EQU, false}, {"neu", CMP_NEU, false},
        {"ltu", CMP_LTU, false}, {"leu", CMP_LEU, false}, {"gtu", CMP_GTU, false},
        {"geu", CMP_GEU, false}, {"num", CMP_NUM, false}, {"nan", CMP_NAN, false},
    };
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        if (!suffix_take(d, table[k].name)) continue;
        *is_unsigned = table[k].is_unsigned;
        return table[k].compare;
    }
    decode_bad(d, "no comparison");
}

struct op *emit(struct decoder *d, op_fn *fn, enum exec_class class, enum op_rule rule) {
    struct image *m = d->image;
    struct op *ops = bump_grow(d->bump, m->ops, m->n_ops, &d->cap_ops, sizeof *ops);
    struct image_line *lines = bump_grow(d->bump, m->lines, m->n_ops, &d->cap_lines, sizeof *lines);
    if (!ops || !lines) decode_fail(d, STATUS_NO_MEMORY, "no memory for operations");
    m->ops = ops;
    m->lines = lines;
    struct op *o = &ops[m->n_ops];
    memset(o, 0, sizeof *o);
    o->fn = fn;
    o->e = NO_PLACE;
    o->guard = NO_PLACE;
    o->class = (uint8_t) class;
    o->rule = (uint8_t)rule;
    o->sets_wide = 4;
    o->index = m->n_ops;
    lines[m->n_ops] = d->in
                          ? (struct image_line){d->in->line, d->in->source_line, d->in->source_file}
                          : (struct image_line){d->function->line, 0, 0};
    m->n_ops++;
    return o;
}

struct op *emit_lane(struct decoder *d, enum lane_op fn, enum exec_class class, enum op_rule rule) {
    return emit(d, d->lanes[fn], class, rule);
}

void emit_join(struct decoder *d) {
    if (d->image->n_ops && d->image->ops[d->image->n_ops - 1].fn == op_join &&
        d->image->n_ops > d->frame->first_op)
        return;
    struct op *o = emit(d, op_join, EXEC_CLASS_COUNT, RULE_NONE);
    o->target = d->image->n_joins++;
}

uint32_t register_bytes(enum ptx_type t) {
    return t == PTX_PRED ? 0 : ptx_type_bytes(t);
}

const struct ptx_operand *operand(struct decoder *d, uint32_t i) {
    if (i >= d->in->n_operands) decode_bad(d, "too few operands");
    return &d->in->operand[i];
}

uint32_t operand_bytes(struct decoder *d, const struct ptx_operand *o) {
    if (o->kind != PTX_OPERAND_REGISTER) return 0;
    return register_bytes((enum ptx_type)d->function->register_type[o->reg]);
}

int32_t place_register(struct decoder *d, uint32_t reg) {
    return d->frame->registers[reg];
}

int32_t place_new(struct decoder *d, uint32_t bytes) {
    const uint32_t room = bytes == 16 ? 512 : bytes == 8 ? 256 : 128;
    const uint32_t at = d->registers_bytes;
    if (at > (1u << 28)) decode_fail(d, STATUS_TOO_LARGE, "too many registers");
    d->registers_bytes += room;
    return (int32_t)at;
}

int32_t place_bits(struct decoder *d, uint64_t bits, uint32_t bytes) {
    const uint32_t hash = (uint32_t)((bits * 0x9e3779b97f4a7c15u) >> 56);
    if (bytes <= 4) {
        bytes = bytes == 0 ? 0 : 4;
        bits &= 0xffffffffu;
    }
    for (struct constant *c = d->constants[hash]; c; c = c->next)
        if (c->bits == bits && c->bytes == bytes) return c->place;
    struct image *m = d->image;
    const uint32_t room = bytes == 16 ? 512 : bytes == 8 ? 256 : 128;
    size_t cap = d->cap_constants;
    if (m->constants_bytes + room > cap) {
        cap = cap ? cap * 2 : 8192;
        uint8_t *fresh = bump_take(d->bump, cap);
        if (!fresh) decode_fail(d, STATUS_NO_MEMORY, "no memory for constants");
        if (m->constants_bytes) memcpy(fresh, m->constants, m->constants_bytes);
        m->constants = fresh;
        d->cap_constants = cap;
    }
    uint8_t *at = m->constants + m->constants_bytes;
    if (bytes == 0) { /* a predicate: the same in all lanes, defined */
        const uint32_t all = bits ? ~0u : 0;
        memcpy(at, &all, 4);
    }
    for (uint32_t l = 0; bytes && l < LANES; l++) {
        if (bytes >= 8)
            memcpy(at + 8 * l, &bits, 8);
        else
            memcpy(at + 4 * l, &bits, 4);
    }
    struct constant *c = decode_take(d, sizeof *c);
    *c = (struct constant){bits, bytes, place_constant(m->constants_bytes), d->constants[hash]};
    d->constants[hash] = c;
    m->constants_bytes += room;
    return c->place;
}

uint64_t operand_address(struct decoder *d, const struct ptx_operand *o) {
    if (o->symbol_kind == PTX_SYMBOL_MODULE) {
        const struct ptx_variable *v = &d->module->variables[o->index];
        if (v->space == PTX_SPACE_SHARED) {
            for (uint32_t i = 0; i < d->image->n_shared; i++)
                if (!strcmp(d->image->shared[i].name, v->name))
                    return d->image->shared[i].base + o->bits;
        }
        return d->variable_addresses[o->index] + o->bits;
    }
    if (o->symbol_kind == PTX_SYMBOL_LOCAL) {
        const struct ptx_variable *v = &d->function->variables[o->index];
        if (v->space == PTX_SPACE_PARAM) decode_bad(d, "the address of a call's parameter");
        return d->frame->addresses[o->index] + o->bits;
    }
    if (!d->function->kernel) decode_bad(d, "the address of a function's parameter");
    return d->function->params[o->index].offset_bytes + o->bits;
}

static uint64_t immediate(struct decoder *d, const struct ptx_operand *o, enum ptx_type t) {
    const bool single = t == PTX_F32, wide = t == PTX_F64;
    if (o->kind == PTX_OPERAND_FLOAT64 && !wide) {
        if (!single) decode_bad(d, "a binary64 immediate");
        return float_bits((float)bits_double(o->bits));
    }
    if (o->kind == PTX_OPERAND_FLOAT32 && wide)
        return double_bits((double)bits_float((uint32_t)o->bits));
    if (o->kind == PTX_OPERAND_IMMEDIATE && single && d->in->name[0] != 'm')
        return float_bits((float)(int64_t)o->bits);
    const uint32_t bytes = ptx_type_bytes(t);
    return bytes >= 8 ? o->bits : o->bits & ((UINT64_C(1) << bytes * 8) - 1);
}

int32_t place_source_any(struct decoder *d, const struct ptx_operand *o, uint32_t bytes) {
    return place_source(d, o,
                        bytes == 8    ? PTX_B64
                        : bytes == 16 ? PTX_B128
                        : bytes == 2  ? PTX_B16
                                      : PTX_B32);
}

int32_t place_source(struct decoder *d, const struct ptx_operand *o, enum ptx_type t) {
    const uint32_t bytes = ptx_type_bytes(t);
    switch (o->kind) {
    case PTX_OPERAND_REGISTER: {
        const uint32_t have = operand_bytes(d, o);
        if (o->negated || o->reg2 != UINT32_MAX || have == 0) decode_bad(d, "bad source register");
        const uint32_t a = have < 4 ? 4 : have, b = bytes < 4 ? 4 : bytes;
        if (a != b) decode_bad(d, "a source register's size differs from the type");
        return place_register(d, o->reg);
    }
    case PTX_OPERAND_IMMEDIATE:
    case PTX_OPERAND_FLOAT32:
    case PTX_OPERAND_FLOAT64:
        return place_bits(d, immediate(d, o, t), bytes);
    case PTX_OPERAND_VARIABLE:
        return place_bits(d, operand_address(d, o), bytes);
    case PTX_OPERAND_SPECIAL: {
        const int32_t at = place_new(d, bytes);
        struct op *p = emit(d, op_special, EXEC_CLASS_MOVE, RULE_SPECIAL);
        p->d = at;
        p->kind = (uint8_t)o->special;
        p->width = (uint8_t)(bytes < 4 ? 4 : bytes);
        p->sets_wide = p->width;
        return at;
    }
    default:
        decode_bad(d, "bad source operand");
    }
}

int32_t place_target(struct decoder *d, const struct ptx_operand *o, uint32_t bytes) {
    if (o->kind == PTX_OPERAND_SINK) return place_new(d, bytes);
    if (o->kind != PTX_OPERAND_REGISTER || o->negated) decode_bad(d, "bad destination");
    const uint32_t have = operand_bytes(d, o);
    const uint32_t a = have < 4 ? 4 : have, b = bytes < 4 ? 4 : bytes;
    if (have == 0 || a != b) decode_bad(d, "a destination register's size differs from the type");
    return place_register(d, o->reg);
}

int32_t place_pred(struct decoder *d, const struct ptx_operand *o, bool *negated) {
    if (negated) *negated = o->negated;
    if (o->kind == PTX_OPERAND_IMMEDIATE) return place_bits(d, o->bits != 0, 0);
    if (o->kind != PTX_OPERAND_REGISTER || d->function->register_type[o->reg] != PTX_PRED ||
        (o->negated && !negated))
        decode_bad(d, "a predicate was expected");
    return place_register(d, o->reg);
}

uint32_t list_add(struct decoder *d, const int32_t *places, uint32_t n) {
    struct image *m = d->image;
    const uint32_t first = m->n_places;
    for (uint32_t i = 0; i < n; i++) {
        int32_t *p = bump_grow(d->bump, m->places, m->n_places, &d->cap_places, sizeof *p);
        if (!p) decode_fail(d, STATUS_NO_MEMORY, "no memory for operands");
        m->places = p;
        p[m->n_places++] = places[i];
    }
    return first;
}

struct address operand_memory(struct decoder *d, const struct ptx_operand *o) {
    if (o->kind != PTX_OPERAND_ADDRESS) decode_bad(d, "an address was expected");
    if (o->base_kind == PTX_OPERAND_REGISTER) {
        const uint32_t bytes = register_bytes((enum ptx_type)d->function->register_type[o->reg]);
        if (bytes != 4 && bytes != 8) decode_bad(d, "bad address register");
        return (struct address){place_register(d, o->reg), (int64_t)o->bits, bytes == 4};
    }
    if (o->base_kind == PTX_OPERAND_VARIABLE)
        return (struct address){place_bits(d, operand_address(d, o) - o->bits, 8), (int64_t)o->bits,
                                false};
    return (struct address){place_bits(d, 0, 8), (int64_t)o->bits, false};
}

void patch_target(struct decoder *d, uint32_t op, uint32_t instruction) {
    struct patch *p = decode_take(d, sizeof *p);
    *p = (struct patch){op, instruction, false, d->patches};
    d->patches = p;
}

static void decode_instruction(struct decoder *d) {
    static const struct decode_entry *const tables[] = {decode_integer, decode_float, decode_memory,
                                                        decode_warp, decode_control};
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const struct decode_entry *e = tables[t]; e->name; e++) {
            if (strcmp(e->name, d->in->name) != 0) continue;
            d->used = 0;
            d->first_of_instruction = d->image->n_ops;
            e->fn(d);
            for (uint32_t i = 0; i < d->in->n_suffixes; i++)
                if (!(d->used >> i & 1)) {
                    char what[80];
                    snprintf(what, sizeof what, ".%s is not known here", d->in->suffix[i]);
                    decode_bad(d, what);
                }
            return;
        }
    decode_bad(d, "not an instruction that is known here");
}

static void guard_operations(struct decoder *d) {
    if (!d->in->guarded) return;
    if (d->function->register_type[d->in->guard] != PTX_PRED)
        decode_bad(d, "the guard is no predicate");
    for (uint32_t i = d->first_of_instruction; i < d->image->n_ops; i++) {
        struct op *o = &d->image->ops[i];
        if (o->fn == op_join) continue;
        o->inner = o->fn;
        o->fn = op_guarded;
        o->guard = place_register(d, d->in->guard);
        o->guard_flip = d->in->guard_negated ? ~0u : 0;
    }
}

static void decode_function(struct decoder *d, struct frame *frame) {
    d->frame = frame;
    d->function = frame->function;
    d->patches = NULL;
    d->in = NULL;
    frame->first_op = d->image->n_ops;
    emit_join(d);
    for (uint32_t i = 0; i < d->function->n_instructions; i++) {
        d->in = &d->function->instructions[i];
        if (d->function->is_target[i]) emit_join(d);
        /* a label's operation is the join before it */
        frame->op_of[i] = d->image->n_ops - (d->function->is_target[i] || i == 0);
        decode_instruction(d);
        guard_operations(d);
        const struct op *last = &d->image->ops[d->image->n_ops - 1];
        op_fn *did = last->inner ? last->inner : last->fn;
        if (did == op_branch || did == op_branch_table || did == op_return || did == op_exit)
            emit_join(d);
    }
    d->in = NULL;
    if (d->function->is_target[d->function->n_instructions]) emit_join(d);
    frame->op_of[d->function->n_instructions] =
        d->image->ops[d->image->n_ops - 1].fn == op_join ? d->image->n_ops - 1 : d->image->n_ops;
    /* A body that runs off its end returns. */
    struct op *end =
        emit(d, d->function->kernel ? op_exit : op_return, EXEC_CLASS_CONTROL, RULE_NONE);
    end->a = frame->return_to;
    for (const struct patch *p = d->patches; p; p = p->next)
        d->image->ops[p->op].target = frame->op_of[p->instruction];
    for (uint32_t i = frame->first_op; i < d->image->n_ops; i++) {
        const struct op *o = &d->image->ops[i];
        if (o->fn != op_branch_table && o->inner != op_branch_table) continue;
        for (uint32_t k = 0; k < o->n; k++) {
            int32_t *at = &d->image->places[o->list + k];
            *at = (int32_t)frame->op_of[*at];
        }
    }
}

static uint32_t align_up(uint32_t v, uint32_t a) {
    return (v + a - 1) / a * a;
}

static void add_shared(struct decoder *d, const struct ptx_variable *v, size_t *cap,
                       uint32_t *real_bytes) {
    struct image *m = d->image;
    for (uint32_t i = 0; i < m->n_shared; i++)
        if (!strcmp(m->shared[i].name, v->name)) return;
    if (v->size_bytes > 1u << 20) decode_fail(d, STATUS_TOO_LARGE, "%s is too large", v->name);
    struct image_variable *s = bump_grow(d->bump, m->shared, m->n_shared, cap, sizeof *s);
    if (!s) decode_fail(d, STATUS_NO_MEMORY, "no memory for variables");
    m->shared = s;
    /* 128 bytes of red zone at least, and the banks stay where they would be */
    const uint32_t align = v->align_bytes > 128 ? v->align_bytes : 128;
    const uint32_t base = align_up(m->shared_end, align);
    s[m->n_shared++] =
        (struct image_variable){v->name, base, v->size_bytes, v->external && v->size_bytes == 0};
    m->shared_end = base + (uint32_t)v->size_bytes + 128;
    *real_bytes = align_up(*real_bytes, v->align_bytes) + (uint32_t)v->size_bytes;
}

static bool uses_variable(const struct ptx_operand *o, uint32_t module_variable) {
    if ((o->kind == PTX_OPERAND_VARIABLE ||
         (o->kind == PTX_OPERAND_ADDRESS && o->base_kind == PTX_OPERAND_VARIABLE)) &&
        o->symbol_kind == PTX_SYMBOL_MODULE && o->index == module_variable)
        return true;
    for (uint32_t i = 0; i < o->n_elements; i++)
        if (uses_variable(&o->elements[i], module_variable)) return true;
    return false;
}

static bool frame_uses(const struct frame *f, uint32_t module_variable) {
    for (uint32_t i = 0; i < f->function->n_instructions; i++)
        for (uint32_t k = 0; k < f->function->instructions[i].n_operands; k++)
            if (uses_variable(&f->function->instructions[i].operand[k], module_variable))
                return true;
    return false;
}

static void lay_out_shared(struct decoder *d) {
    size_t cap = 0;
    uint32_t bytes = 0;
    d->image->shared_end = SHARED_FIRST;
    for (const struct frame *f = d->frames; f; f = f->next)
        for (uint32_t i = 0; i < f->function->n_variables; i++)
            if (f->function->variables[i].space == PTX_SPACE_SHARED)
                add_shared(d, &f->function->variables[i], &cap, &bytes);
    for (int dynamic = 0; dynamic < 2; dynamic++) /* dynamic shared memory comes last */
        for (uint32_t i = 0; i < d->module->n_variables; i++) {
            const struct ptx_variable *v = &d->module->variables[i];
            if (v->space != PTX_SPACE_SHARED || (v->external && v->size_bytes == 0) != dynamic)
                continue;
            for (const struct frame *f = d->frames; f; f = f->next)
                if (frame_uses(f, i)) {
                    add_shared(d, v, &cap, &bytes);
                    break;
                }
        }
    /* several names of the dynamic part are the same memory */
    uint64_t base = 0;
    for (uint32_t i = 0; i < d->image->n_shared; i++) {
        struct image_variable *v = &d->image->shared[i];
        if (!v->dynamic) continue;
        if (base == 0) base = v->base;
        v->base = base;
        d->image->shared_end = (uint32_t)base;
    }
    d->image->static_shared_bytes = bytes;
}

static void lay_out_frame(struct decoder *d, struct frame *f) {
    const struct ptx_function *fn = f->function;
    d->frame = f;
    d->function = fn;
    f->registers = decode_take(d, (fn->n_registers + 1u) * sizeof *f->registers);
    f->params = decode_take(d, (fn->n_params + fn->n_returns + 1u) * sizeof *f->params);
    f->variables = decode_take(d, (fn->n_variables + 1u) * sizeof *f->variables);
    f->addresses = decode_take(d, (fn->n_variables + 1u) * sizeof *f->addresses);
    f->op_of = decode_take(d, (fn->n_instructions + 1u) * sizeof *f->op_of);
    for (uint32_t i = 0; i < fn->n_registers; i++) {
        const enum ptx_type t = (enum ptx_type)fn->register_type[i];
        if (t == PTX_PRED) { /* eight bytes are enough */
            f->registers[i] = (int32_t)d->registers_bytes;
            d->registers_bytes += 8;
        }
    }
    d->registers_bytes = align_up(d->registers_bytes, 128);
    for (uint32_t i = 0; i < fn->n_registers; i++)
        if (fn->register_type[i] != PTX_PRED)
            f->registers[i] = place_new(d, register_bytes((enum ptx_type)fn->register_type[i]));
    for (uint32_t i = 0; !fn->kernel && i < fn->n_params + fn->n_returns; i++) {
        const struct ptx_param *p =
            i < fn->n_params ? &fn->params[i] : &fn->returns[i - fn->n_params];
        f->params[i] = (int32_t)d->registers_bytes;
        d->registers_bytes += align_up(align_up(p->size_bytes, 16) * LANES, 128);
    }
    f->return_to = fn->kernel ? NO_PLACE : place_new(d, 4);
    for (uint32_t i = 0; i < fn->n_variables; i++) {
        const struct ptx_variable *v = &fn->variables[i];
        f->variables[i] = NO_PLACE;
        if (v->size_bytes > 1u << 20) decode_fail(d, STATUS_TOO_LARGE, "%s is too large", v->name);
        if (v->space == PTX_SPACE_PARAM) {
            f->variables[i] = (int32_t)d->registers_bytes;
            d->registers_bytes += align_up(align_up((uint32_t)v->size_bytes, 16) * LANES, 128);
        } else if (v->space == PTX_SPACE_LOCAL) {
            const uint32_t at =
                align_up(d->image->local_bytes, v->align_bytes > 16 ? v->align_bytes : 16);
            f->addresses[i] = LOCAL_FIRST + at;
            d->image->local_bytes = at + (uint32_t)v->size_bytes;
        } else if (v->space == PTX_SPACE_SHARED) {
            for (uint32_t k = 0; k < d->image->n_shared; k++)
                if (!strcmp(d->image->shared[k].name, v->name))
                    f->addresses[i] = d->image->shared[k].base;
        }
        if (d->registers_bytes > 1u << 28) decode_fail(d, STATUS_TOO_LARGE, "too many registers");
    }
}

/* The functions reached from `index`, callees behind callers. `path` finds recursion. */
static void collect(struct decoder *d, uint32_t index, uint8_t *seen) {
    const struct ptx_function *f = &d->module->functions[index];
    if (seen[index] == 1) decode_fail(d, STATUS_UNSUPPORTED, "recursion through %s", f->name);
    if (seen[index]) return;
    if (!f->defined) decode_fail(d, STATUS_INVALID, "%s has no body", f->name);
    seen[index] = 1;
    struct frame *frame = decode_take(d, sizeof *frame);
    frame->function = f;
    frame->index = index;
    struct frame **end = &d->frames;
    while (*end) end = &(*end)->next;
    *end = frame;
    for (uint32_t i = 0; i < f->n_instructions; i++) {
        const struct ptx_instruction *in = &f->instructions[i];
        if (strcmp(in->name, "call") != 0) continue;
        for (uint32_t k = 0; k < in->n_operands; k++) {
            if (in->operand[k].kind != PTX_OPERAND_FUNCTION) continue;
            d->in = in;
            collect(d, in->operand[k].index, seen);
        }
    }
    d->in = NULL;
    seen[index] = 2;
}

/* How many operations of each class a basic block has, so that the block alone is counted. */
static void count_blocks(struct decoder *d) {
    struct image *m = d->image;
    m->join_ops = decode_take(d, (m->n_joins + 1u) * sizeof *m->join_ops);
    m->join_classes = decode_take(d, (m->n_joins + 1u) * EXEC_CLASS_COUNT * sizeof(uint32_t));
    uint32_t block = 0;
    struct op *join = NULL;
    for (uint32_t i = 0; i < m->n_ops; i++) {
        struct op *o = &m->ops[i];
        if (o->fn == op_join) {
            block = o->target;
            m->join_ops[block] = i;
            join = o;
        } else if (o->class < EXEC_CLASS_COUNT) {
            m->join_classes[block * EXEC_CLASS_COUNT + o->class]++;
            if (join) join->imm++;
        }
    }
}

enum status decode_image(const struct ptx_module *m, uint32_t kernel, const uint64_t *addresses,
                         struct image *image, struct bump *bump, struct error *e) {
    struct decoder *d = calloc(1, sizeof *d);
    if (!d) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory to decode");
    d->module = m;
    d->variable_addresses = addresses;
    d->image = image;
    d->bump = bump;
    d->lanes = lane_ops();
    d->error = e;
    d->function = &m->functions[kernel];
    if (setjmp(d->out)) {
        const enum status s = d->status;
        free(d);
        return s;
    }
    image->name = bump_string(bump, d->function->name, strlen(d->function->name));
    uint8_t *seen = decode_take(d, m->n_functions);
    collect(d, kernel, seen);
    lay_out_shared(d);
    for (struct frame *f = d->frames; f; f = f->next) lay_out_frame(d, f);
    for (struct frame *f = d->frames; f; f = f->next) decode_function(d, f);
    /* calls hold the callee's index until all are placed */
    for (uint32_t i = 0; i < image->n_ops; i++) {
        struct op *o = &image->ops[i];
        if (o->fn != op_call && o->inner != op_call) continue;
        for (const struct frame *f = d->frames; f; f = f->next)
            if (f->index == o->target) {
                o->target = f->first_op;
                break;
            }
    }
    count_blocks(d);
    /* constants are read 64 bytes at a time by the widest instructions */
    uint8_t *constants = decode_take(d, image->constants_bytes + 64u);
    uint8_t *aligned = constants + (64 - (uintptr_t)constants % 64) % 64;
    if (image->constants_bytes) memcpy(aligned, image->constants, image->constants_bytes);
    image->constants = aligned;
    image->registers_bytes = align_up(d->registers_bytes + 128, 128);
    image->local_bytes = align_up(image->local_bytes, 16);
    free(d);
    return STATUS_OK;
}
