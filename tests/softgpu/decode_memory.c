/* Instructions that touch memory or order accesses to it; PTX ISA 9.7.9, 9.7.13. */
#include <string.h>

#include "tests/softgpu/async.h"
#include "tests/softgpu/decode.h"

static enum ptx_space suffix_space(struct decoder *d) {
    static const struct {
        const char *name;
        enum ptx_space space;
    } table[] = {
        {"global", PTX_SPACE_GLOBAL},      {"shared", PTX_SPACE_SHARED},
        {"shared::cta", PTX_SPACE_SHARED}, {"local", PTX_SPACE_LOCAL},
        {"const", PTX_SPACE_CONST},        {"param", PTX_SPACE_PARAM},
        {"param::entry", PTX_SPACE_PARAM}, {"param::func", PTX_SPACE_PARAM},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (suffix_take(d, table[i].name)) return table[i].space;
    return PTX_SPACE_GENERIC;
}

static uint32_t order_flags(struct decoder *d, enum op_scope *scope, bool may_acquire,
                            bool may_release) {
    uint32_t flags = 0;
    if (suffix_take(d, "volatile")) {
        *scope = SCOPE_SYS;
        return OP_RELAXED;
    }
    (void)suffix_take(d, "weak");
    if (suffix_take(d, "mmio")) flags |= OP_RELAXED;
    if (suffix_take(d, "relaxed")) flags |= OP_RELAXED;
    if (suffix_take(d, "acquire")) flags |= OP_RELAXED | OP_ACQUIRE;
    if (suffix_take(d, "release")) flags |= OP_RELAXED | OP_RELEASE;
    if (suffix_take(d, "acq_rel")) flags |= OP_RELAXED | OP_ACQUIRE | OP_RELEASE;
    if (((flags & OP_ACQUIRE) && !may_acquire) || ((flags & OP_RELEASE) && !may_release))
        decode_bad(d, "bad memory order");
    bool found;
    const enum op_scope s = suffix_scope(d, &found);
    *scope = found ? s : SCOPE_GPU;
    return flags;
}

static enum exec_class load_class(enum ptx_space space, bool store) {
    if (space == PTX_SPACE_SHARED) return store ? EXEC_CLASS_STORE_SHARED : EXEC_CLASS_LOAD_SHARED;
    if (space == PTX_SPACE_LOCAL) return EXEC_CLASS_LOCAL;
    return store ? EXEC_CLASS_STORE_GLOBAL : EXEC_CLASS_LOAD_GLOBAL;
}

static bool sign_extends(enum ptx_type t) {
    return t == PTX_S8 || t == PTX_S16 || t == PTX_S32;
}

/* The registers of a vector operand (or a single one), all of one class. */
static uint32_t vector_places(struct decoder *d, const struct ptx_operand *o, uint32_t n,
                              enum ptx_type t, bool store, int32_t places[8]) {
    const struct ptx_operand *items = n == 1 ? o : o->elements;
    if (n > 1 && (o->kind != PTX_OPERAND_VECTOR || o->n_elements != n)) decode_bad(d, "bad vector");
    uint32_t bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t have = operand_bytes(d, &items[i]);
        if (have && (bytes && bytes != have)) decode_bad(d, "registers of different size");
        if (have) bytes = have;
    }
    if (bytes == 0) bytes = ptx_type_bytes(t) < 2 ? 2 : ptx_type_bytes(t);
    if (bytes < ptx_type_bytes(t)) decode_bad(d, "a register is too narrow for its type");
    for (uint32_t i = 0; i < n; i++) {
        if (store) {
            if (items[i].kind == PTX_OPERAND_SINK) decode_bad(d, "a store of nothing");
            places[i] = items[i].kind == PTX_OPERAND_REGISTER ? place_register(d, items[i].reg)
                                                              : place_source(d, &items[i], t);
            if (items[i].kind != PTX_OPERAND_REGISTER && bytes == 8 && ptx_type_bytes(t) < 8)
                decode_bad(d, "an immediate beside wider registers");
        } else {
            places[i] =
                items[i].kind == PTX_OPERAND_SINK ? NO_PLACE : place_target(d, &items[i], bytes);
        }
    }
    return bytes;
}

/* ld.param and st.param on named parameters: of the kernel, of this function, or of a call. */
static bool parameter(struct decoder *d, const struct ptx_operand *o, uint32_t bytes, int32_t *area,
                      uint32_t *stride) {
    if (o->kind != PTX_OPERAND_ADDRESS || o->base_kind != PTX_OPERAND_VARIABLE) return false;
    uint32_t size;
    if (o->symbol_kind == PTX_SYMBOL_LOCAL) {
        const struct ptx_variable *v = &d->function->variables[o->index];
        if (v->space != PTX_SPACE_PARAM) return false;
        *area = d->frame->variables[o->index];
        size = (uint32_t)v->size_bytes;
    } else if (o->symbol_kind == PTX_SYMBOL_PARAM) {
        const struct ptx_function *f = d->function;
        const struct ptx_param *p =
            o->index < f->n_params ? &f->params[o->index] : &f->returns[o->index - f->n_params];
        *area = f->kernel ? NO_PLACE : d->frame->params[o->index];
        size = p->size_bytes;
    } else {
        return false;
    }
    if (o->bits > size || bytes > size - o->bits) decode_bad(d, "outside of the parameter");
    *stride = (size + 15) / 16 * 16;
    return true;
}

static void memory_access(struct decoder *d, bool store) {
    suffix_skip_hints(d);
    enum op_scope scope;
    const uint32_t flags = order_flags(d, &scope, !store, store);
    const enum ptx_space space = suffix_space(d);
    const uint32_t n = suffix_vector(d);
    const enum ptx_type t = suffix_type(d);
    const uint32_t width = ptx_type_bytes(t);
    if (width == 0 || n * width > 32 || t == PTX_PRED) decode_bad(d, "bad type");
    if (n * width == 32) decode_need(d, 100);
    const struct ptx_operand *value = operand(d, store ? 1 : 0),
                             *memory = operand(d, store ? 0 : 1);
    if (d->in->n_operands < 2 || d->in->n_operands > 3) decode_bad(d, "wrong number of operands");
    int32_t places[8], area;
    uint32_t stride;
    const uint32_t bytes = vector_places(d, value, n, t, store, places);
    const uint32_t list = list_add(d, places, n);
    struct op *o;
    if (space == PTX_SPACE_PARAM && parameter(d, memory, n * width, &area, &stride)) {
        if (store && area == NO_PLACE) decode_bad(d, "a store to a kernel's parameter");
        o = emit(d, store ? op_store_param : op_load_param, EXEC_CLASS_MOVE, RULE_NONE);
        o->a = area;
        o->target = stride;
        o->imm = (int64_t)memory->bits;
        if (area == NO_PLACE) o->imm += d->function->params[memory->index].offset_bytes;
    } else {
        if (space == PTX_SPACE_PARAM && (store || !d->function->kernel))
            decode_bad(d, "bad parameter");
        const struct address a = operand_memory(d, memory);
        o = emit(d, store ? op_store : op_load, load_class(space, store), RULE_NONE);
        o->a = a.place;
        o->imm = a.offset;
        o->flags = a.narrow ? OP_ADDRESS_32 : 0;
        if (store && space == PTX_SPACE_CONST) decode_bad(d, "a store to constant memory");
    }
    o->flags |= flags | (sign_extends(t) ? OP_SIGNED : 0) | (bytes == 8 ? OP_WIDE : 0);
    o->d = places[0];
    o->list = list;
    o->n = (uint8_t)n;
    o->width = (uint8_t)width;
    o->type = (uint8_t)t;
    o->space = (uint8_t)space;
    o->scope = (uint8_t)scope;
    o->sets_wide = (uint8_t)bytes;
}
static void decode_ld(struct decoder *d) {
    memory_access(d, false);
}
static void decode_st(struct decoder *d) {
    memory_access(d, true);
}

static void atomic(struct decoder *d, bool reduce) {
    static const char *const names[] = {"and", "or",  "xor", "cas", "exch",
                                        "add", "inc", "dec", "min", "max"};
    suffix_skip_hints(d);
    enum op_scope scope;
    const uint32_t flags = order_flags(d, &scope, true, true) | OP_RELAXED;
    const enum ptx_space space = suffix_space(d);
    int kind = -1;
    for (int i = 0; i < 10; i++)
        if (suffix_take(d, names[i])) kind = i;
    (void)suffix_take(d, "noftz");
    const enum ptx_type t = suffix_type(d);
    const uint32_t bytes = ptx_type_bytes(t);
    if (kind < 0 || bytes < 2 || bytes > 8 ||
        (space != PTX_SPACE_GENERIC && space != PTX_SPACE_GLOBAL && space != PTX_SPACE_SHARED))
        decode_bad(d, "no such atomic operation");
    const uint32_t first = reduce ? 0 : 1;
    const struct address a = operand_memory(d, operand(d, first));
    const int32_t b = place_source(d, operand(d, first + 1), t);
    const int32_t c = kind == ATOMIC_CAS ? place_source(d, operand(d, first + 2), t) : b;
    const int32_t at = reduce ? NO_PLACE : place_target(d, operand(d, 0), bytes);
    struct op *o = emit(d, op_atomic, EXEC_CLASS_ATOMIC, RULE_NONE);
    o->a = a.place;
    o->imm = a.offset;
    o->b = b;
    o->c = c;
    o->d = at;
    o->flags = flags | (a.narrow ? OP_ADDRESS_32 : 0) | (reduce ? OP_NO_RETURN : 0) |
               (bytes == 8 ? OP_WIDE : 0);
    o->kind = (uint8_t)kind;
    o->type = (uint8_t)t;
    o->width = (uint8_t)bytes;
    o->space = (uint8_t)space;
    o->scope = (uint8_t)scope;
    o->sets_wide = (uint8_t)bytes;
}
static void decode_atom(struct decoder *d) {
    atomic(d, false);
}
static void decode_red(struct decoder *d) {
    atomic(d, true);
}

static void decode_membar(struct decoder *d) {
    bool found;
    const enum op_scope scope = suffix_scope(d, &found);
    if (!found) decode_bad(d, "no scope");
    struct op *o = emit(d, op_fence, EXEC_CLASS_BARRIER, RULE_NONE);
    o->scope = (uint8_t)scope;
}
static void decode_fence(struct decoder *d) {
    /* Proxy fences order kinds of access that are one kind here. */
    for (uint32_t i = 0; i < d->in->n_suffixes; i++)
        if (!strncmp(d->in->suffix[i], "proxy", 5) ||
            !strncmp(d->in->suffix[i], "mbarrier_init", 13)) {
            d->used = ~0u;
            emit(d, op_nop, EXEC_CLASS_BARRIER, RULE_NONE);
            return;
        }
    static const char *const orders[] = {"sc", "acq_rel", "acquire", "release"};
    for (int i = 0; i < 4; i++) (void)suffix_take(d, orders[i]);
    decode_membar(d);
}

static void decode_cvta(struct decoder *d) {
    const bool to = suffix_take(d, "to");
    enum ptx_space space = suffix_space(d);
    if (space == PTX_SPACE_GENERIC && suffix_take(d, "shared::cluster")) space = PTX_SPACE_SHARED;
    const enum ptx_type t = suffix_type(d);
    if (ptx_type_bytes(t) != 8 || space == PTX_SPACE_GENERIC) decode_bad(d, "bad type or space");
    const int32_t a = place_source(d, operand(d, 1), PTX_B64);
    const uint64_t base = space == PTX_SPACE_SHARED  ? MEMORY_SHARED_BASE
                          : space == PTX_SPACE_LOCAL ? MEMORY_LOCAL_BASE
                          : space == PTX_SPACE_PARAM ? MEMORY_PARAM_BASE
                                                     : 0;
    const int32_t b = place_bits(d, base, 8);
    const int32_t at = place_target(d, operand(d, 0), 8);
    struct op *o = emit_lane(d,
                             base == 0 ? LANE_MOV_64
                             : to      ? LANE_SUB_64
                                       : LANE_ADD_64,
                             EXEC_CLASS_MOVE, base == 0 ? RULE_MOVE : RULE_ALL);
    o->d = at;
    o->a = a;
    o->b = o->c = b;
    o->sets_wide = 8;
}

static void decode_isspacep(struct decoder *d) {
    const enum ptx_space space = suffix_space(d);
    const int32_t a = place_source(d, operand(d, 1), PTX_B64);
    const int32_t at = place_pred(d, operand(d, 0), NULL);
    struct op *o = emit(d, op_isspacep, EXEC_CLASS_COMPARE, RULE_TO_PRED);
    o->d = at;
    o->a = o->b = a;
    o->space = (uint8_t)space;
}

/* Hints: their addresses are not even looked at. */
static void decode_hint(struct decoder *d) {
    d->used = ~0u;
    emit(d, op_nop, EXEC_CLASS_LOAD_GLOBAL, RULE_NONE);
}
static void decode_createpolicy(struct decoder *d) {
    d->used = ~0u;
    const int32_t zero = place_bits(d, 0, 8), at = place_target(d, operand(d, 0), 8);
    struct op *o = emit_lane(d, LANE_MOV_64, EXEC_CLASS_MOVE, RULE_MOVE);
    o->d = at;
    o->a = o->b = o->c = zero;
    o->sets_wide = 8;
}

static void matrix_access(struct decoder *d, bool store) {
    decode_need(d, store ? 90 : 75);
    if (!suffix_take(d, "sync") || !suffix_take(d, "aligned") || !suffix_take(d, "m8n8"))
        decode_bad(d, "only .sync.aligned.m8n8 is known here");
    const uint32_t n = suffix_take(d, "x1")   ? 1
                       : suffix_take(d, "x2") ? 2
                       : suffix_take(d, "x4") ? 4
                                              : 0;
    const bool trans = suffix_take(d, "trans");
    const enum ptx_space space = suffix_space(d);
    if (n == 0 || suffix_type(d) != PTX_B16) decode_bad(d, "bad shape");
    const struct ptx_operand *value = operand(d, store ? 1 : 0);
    const struct ptx_operand *items = value;
    uint32_t have = 1;
    if (value->kind == PTX_OPERAND_VECTOR) {
        items = value->elements;
        have = value->n_elements;
    }
    if (have != n) decode_bad(d, "bad vector");
    int32_t places[4];
    for (uint32_t i = 0; i < n; i++)
        places[i] = store ? place_source(d, &items[i], PTX_B32) : place_target(d, &items[i], 4);
    const uint32_t list = list_add(d, places, n);
    const struct address a = operand_memory(d, operand(d, store ? 0 : 1));
    struct op *o = emit(d, store ? op_stmatrix : op_ldmatrix,
                        store ? EXEC_CLASS_STORE_SHARED : EXEC_CLASS_LOAD_SHARED, RULE_NONE);
    o->a = a.place;
    o->imm = a.offset;
    o->list = list;
    o->n = (uint8_t)n;
    o->flags = (a.narrow ? OP_ADDRESS_32 : 0) | (trans ? OP_TRANS : 0) | OP_ALIGNED;
    o->space = (uint8_t)(space == PTX_SPACE_GENERIC ? PTX_SPACE_GENERIC : PTX_SPACE_SHARED);
}
static void decode_ldmatrix(struct decoder *d) {
    matrix_access(d, false);
}
static void decode_stmatrix(struct decoder *d) {
    matrix_access(d, true);
}

static bool cp_async_bulk(struct decoder *d) {
    if (!suffix_take(d, "bulk")) return false;
    decode_need(d, 90);
    suffix_skip_hints(d);
    if (suffix_take(d, "commit_group")) {
        emit(d, op_bulk_commit, EXEC_CLASS_ASYNC, RULE_NONE);
        return true;
    }
    if (suffix_take(d, "wait_group")) {
        (void)suffix_take(d, "read");
        emit(d, op_bulk_wait, EXEC_CLASS_ASYNC, RULE_NONE)->imm = (int64_t)operand(d, 0)->bits;
        return true;
    }
    enum bulk_kind kind = BULK_TO_SHARED;
    if (suffix_take(d, "prefetch")) {
        kind = BULK_PREFETCH;
        (void)suffix_take(d, "L2");
        d->used = ~0u;
    } else if (d->in->n_suffixes > 2 && !strcmp(d->in->suffix[2], "global")) {
        kind = BULK_TO_GLOBAL;
        if (!suffix_take(d, "bulk_group")) decode_bad(d, "only .bulk_group is known here");
    } else if (!suffix_take(d, "mbarrier::complete_tx::bytes")) {
        decode_bad(d, "only mbarrier completion is known here");
    }
    (void)suffix_take(d, "global");
    (void)(suffix_take(d, "shared::cluster") || suffix_take(d, "shared::cta"));
    if (kind == BULK_PREFETCH) {
        emit(d, op_nop, EXEC_CLASS_ASYNC, RULE_NONE);
        return true;
    }
    const struct address to = operand_memory(d, operand(d, 0)),
                         from = operand_memory(d, operand(d, 1));
    const int32_t size = place_source(d, operand(d, 2), PTX_B32);
    struct address bar = {.place = size};
    if (kind == BULK_TO_SHARED) bar = operand_memory(d, operand(d, 3));
    struct op *o = emit(d, op_bulk_copy, EXEC_CLASS_ASYNC, RULE_NONE);
    const int32_t places[] = {to.place,           from.place,           bar.place,
                              (int32_t)to.offset, (int32_t)from.offset, (int32_t)bar.offset,
                              to.narrow,          from.narrow,          bar.narrow};
    o->kind = (uint8_t)kind;
    o->c = size;
    o->list = list_add(d, places, 9);
    return true;
}

static void decode_cp(struct decoder *d) {
    if (!suffix_take(d, "async")) decode_bad(d, "only cp.async is known here");
    if (cp_async_bulk(d)) return;
    decode_need(d, 80);
    if (suffix_take(d, "commit_group")) {
        emit(d, op_cp_async_commit, EXEC_CLASS_ASYNC, RULE_NONE);
        return;
    }
    if (suffix_take(d, "wait_all")) {
        emit(d, op_cp_async_wait, EXEC_CLASS_ASYNC, RULE_NONE)->imm = -1;
        return;
    }
    if (suffix_take(d, "wait_group")) {
        const struct ptx_operand *n = operand(d, 0);
        if (n->kind != PTX_OPERAND_IMMEDIATE) decode_bad(d, "the number of groups is no constant");
        emit(d, op_cp_async_wait, EXEC_CLASS_ASYNC, RULE_NONE)->imm = (int64_t)n->bits;
        return;
    }
    if (suffix_take(d, "mbarrier")) {
        if (!suffix_take(d, "arrive")) decode_bad(d, "what about the mbarrier?");
        const bool noinc = suffix_take(d, "noinc");
        const enum ptx_space space = suffix_space(d);
        (void)suffix_type(d);
        const struct address a = operand_memory(d, operand(d, 0));
        struct op *o = emit(d, op_mbarrier, EXEC_CLASS_ASYNC, RULE_NONE);
        o->a = a.place;
        o->imm = a.offset;
        o->flags = a.narrow ? OP_ADDRESS_32 : 0;
        o->space = (uint8_t)space;
        o->kind = noinc ? MBARRIER_COPIES_NOINC : MBARRIER_COPIES;
        return;
    }
    suffix_skip_hints(d);
    const bool to_shared = suffix_take(d, "shared") || suffix_take(d, "shared::cta");
    if (!to_shared || !suffix_take(d, "global")) decode_bad(d, "bad spaces");
    const struct address to = operand_memory(d, operand(d, 0)),
                         from = operand_memory(d, operand(d, 1));
    const struct ptx_operand *size = operand(d, 2);
    if (size->kind != PTX_OPERAND_IMMEDIATE ||
        (size->bits != 4 && size->bits != 8 && size->bits != 16))
        decode_bad(d, "bad size");
    /* the fourth operand: bytes to read, or a predicate that says to read none */
    int32_t source_bytes = place_bits(d, size->bits, 4), ignore = NO_PLACE;
    if (d->in->n_operands > 3) {
        const struct ptx_operand *o = operand(d, 3);
        const uint32_t bytes = operand_bytes(d, o);
        if (o->kind == PTX_OPERAND_REGISTER && bytes == 0)
            ignore = place_pred(d, o, NULL);
        else if (o->kind != PTX_OPERAND_REGISTER || bytes != 8)
            source_bytes = place_source(d, o, PTX_B32);
    }
    struct op *o = emit(d, op_cp_async, EXEC_CLASS_ASYNC, RULE_NONE);
    const int32_t places[] = {to.place, (int32_t)to.offset, to.narrow};
    o->list = list_add(d, places, 3);
    o->a = from.place;
    o->imm = from.offset;
    o->flags = from.narrow ? OP_ADDRESS_32 : 0;
    o->b = source_bytes;
    o->e = ignore;
    o->width = (uint8_t)size->bits;
    o->space = PTX_SPACE_GLOBAL;
}

static void decode_mbarrier(struct decoder *d) {
    decode_need(d, 80);
    enum mbarrier_kind kind;
    const bool expect = suffix_take(d, "expect_tx");
    if (suffix_take(d, "init"))
        kind = MBARRIER_INIT;
    else if (suffix_take(d, "inval"))
        kind = MBARRIER_INVAL;
    else if (suffix_take(d, "arrive"))
        kind = expect ? MBARRIER_ARRIVE_EXPECT : MBARRIER_ARRIVE;
    else if (suffix_take(d, "arrive_drop"))
        kind = MBARRIER_ARRIVE_DROP;
    else if (suffix_take(d, "test_wait"))
        kind = MBARRIER_TEST;
    else if (suffix_take(d, "try_wait"))
        kind = MBARRIER_TRY;
    else if (suffix_take(d, "pending_count"))
        kind = MBARRIER_PENDING;
    else if (expect)
        kind = MBARRIER_EXPECT;
    else
        decode_bad(d, "not known here");
    if (expect || kind == MBARRIER_TRY) decode_need(d, 90);
    if (suffix_take(d, "parity"))
        kind = kind == MBARRIER_TRY ? MBARRIER_TRY_PARITY : MBARRIER_TEST_PARITY;
    static const char *const orders[] = {"acquire", "release", "relaxed", "cta", "noComplete"};
    for (int i = 0; i < 5; i++) (void)suffix_take(d, orders[i]);
    const enum ptx_space space = suffix_space(d);
    (void)suffix_type(d);
    const bool test = kind >= MBARRIER_TEST && kind <= MBARRIER_TRY_PARITY;
    const bool value = test || kind == MBARRIER_PENDING ||
                       ((kind == MBARRIER_ARRIVE || kind == MBARRIER_ARRIVE_DROP ||
                         kind == MBARRIER_ARRIVE_EXPECT) &&
                        operand(d, 0)->kind != PTX_OPERAND_ADDRESS);
    int32_t at = NO_PLACE;
    uint32_t i = 0;
    if (value) {
        const struct ptx_operand *to = operand(d, i++);
        if (test)
            at = place_pred(d, to, NULL);
        else if (to->kind != PTX_OPERAND_SINK)
            at = place_target(d, to, kind == MBARRIER_PENDING ? 4 : 8);
    }
    struct address a = {0};
    if (kind != MBARRIER_PENDING) a = operand_memory(d, operand(d, i++));
    int32_t b = place_bits(d, 1, 4);
    if (i < d->in->n_operands) {
        const bool state =
            kind == MBARRIER_TEST || kind == MBARRIER_TRY || kind == MBARRIER_PENDING;
        b = place_source(d, operand(d, i), state ? PTX_B64 : PTX_B32);
    }
    struct op *o = emit(d, op_mbarrier, EXEC_CLASS_ASYNC, RULE_NONE);
    o->a = a.place;
    o->imm = a.offset;
    o->b = b;
    o->d = at;
    o->flags = a.narrow ? OP_ADDRESS_32 : 0;
    o->space = (uint8_t)space;
    o->kind = (uint8_t)kind;
    o->width = 8;
}

const struct decode_entry decode_memory[] = {
    {"ld", decode_ld},
    {"ldu", decode_ld},
    {"st", decode_st},
    {"atom", decode_atom},
    {"red", decode_red},
    {"membar", decode_membar},
    {"fence", decode_fence},
    {"cvta", decode_cvta},
    {"isspacep", decode_isspacep},
    {"prefetch", decode_hint},
    {"prefetchu", decode_hint},
    {"applypriority", decode_hint},
    {"discard", decode_hint},
    {"createpolicy", decode_createpolicy},
    {"ldmatrix", decode_ldmatrix},
    {"stmatrix", decode_stmatrix},
    {"cp", decode_cp},
    {"mbarrier", decode_mbarrier},
    {NULL, NULL},
};
