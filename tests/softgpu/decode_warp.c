/* Warp-wide instructions, barriers, mma; PTX ISA 9.7.9.8 - 9.7.15. */
#include <string.h>

#include "tests/softgpu/decode.h"
#include "tests/softgpu/matrix.h"

enum { SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_BFLY, SHUFFLE_IDX };
enum { VOTE_ALL, VOTE_ANY, VOTE_UNI, VOTE_BALLOT };
enum { REDUX_ADD, REDUX_MIN, REDUX_MAX, REDUX_AND, REDUX_OR, REDUX_XOR };
enum { BARRIER_SYNC, BARRIER_ARRIVE, BARRIER_POPC, BARRIER_AND, BARRIER_OR };

static int choose(struct decoder *d, const char *const *names, int n) {
    for (int i = 0; i < n; i++)
        if (suffix_take(d, names[i])) return i;
    decode_bad(d, "no mode");
}

/* d or d|p */
static void pair(struct decoder *d, uint32_t bytes, int32_t *value, int32_t *pred) {
    const struct ptx_operand *o = operand(d, 0);
    *pred = NO_PLACE;
    if (o->reg2 != UINT32_MAX) {
        if (d->function->register_type[o->reg2] != PTX_PRED) decode_bad(d, "bad predicate");
        *pred = place_register(d, o->reg2);
    }
    struct ptx_operand first = *o;
    first.reg2 = UINT32_MAX;
    *value = place_target(d, &first, bytes);
}

static void decode_shfl(struct decoder *d) {
    static const char *const modes[] = {"up", "down", "bfly", "idx"};
    if (!suffix_take(d, "sync")) decode_bad(d, "only .sync is known here");
    const int mode = choose(d, modes, 4);
    const enum ptx_type t = suffix_type(d);
    int32_t at, pred;
    const int32_t a = place_source(d, operand(d, 1), t),
                  b = place_source(d, operand(d, 2), PTX_B32);
    const int32_t c = place_source(d, operand(d, 3), PTX_B32);
    const int32_t mask = place_source(d, operand(d, 4), PTX_B32);
    pair(d, 4, &at, &pred);
    struct op *o = emit(d, op_shuffle, EXEC_CLASS_WARP, RULE_NONE);
    const int32_t places[] = {mask};
    o->d = at;
    o->e = pred;
    o->a = a;
    o->b = b;
    o->c = c;
    o->list = list_add(d, places, 1);
    o->kind = (uint8_t)mode;
}

static void decode_vote(struct decoder *d) {
    static const char *const modes[] = {"all", "any", "uni", "ballot"};
    if (!suffix_take(d, "sync")) decode_bad(d, "only .sync is known here");
    const int mode = choose(d, modes, 4);
    const enum ptx_type t = suffix_type(d);
    bool negated = false;
    const int32_t a = place_pred(d, operand(d, 1), &negated);
    const int32_t mask = place_source(d, operand(d, 2), PTX_B32);
    const int32_t at =
        t == PTX_PRED ? place_pred(d, operand(d, 0), NULL) : place_target(d, operand(d, 0), 4);
    struct op *o = emit(d, op_vote, EXEC_CLASS_WARP, RULE_NONE);
    o->d = at;
    o->a = a;
    o->b = mask;
    o->kind = (uint8_t)mode;
    o->flags = negated ? OP_NEGATE_A : 0;
}

static void decode_match(struct decoder *d) {
    static const char *const modes[] = {"any", "all"};
    decode_need(d, 70);
    const int mode = choose(d, modes, 2);
    if (!suffix_take(d, "sync")) decode_bad(d, "only .sync is known here");
    const enum ptx_type t = suffix_type(d);
    int32_t at, pred;
    const int32_t a = place_source(d, operand(d, 1), t);
    const int32_t mask = place_source(d, operand(d, 2), PTX_B32);
    pair(d, 4, &at, &pred);
    struct op *o = emit(d, op_match, EXEC_CLASS_WARP, RULE_NONE);
    o->d = at;
    o->e = pred;
    o->a = a;
    o->b = mask;
    o->kind = (uint8_t)mode;
    o->flags = register_bytes(t) == 8 ? OP_WIDE_A : 0;
}

static void decode_redux(struct decoder *d) {
    static const char *const modes[] = {"add", "min", "max", "and", "or", "xor"};
    decode_need(d, 80);
    if (!suffix_take(d, "sync")) decode_bad(d, "no .sync");
    const int mode = choose(d, modes, 6);
    const uint32_t flags = suffix_float_flags(d);
    const enum ptx_type t = suffix_type(d);
    if (t == PTX_F32) decode_need(d, 100);
    const int32_t a = place_source(d, operand(d, 1), t);
    const int32_t mask = place_source(d, operand(d, 2), PTX_B32);
    const int32_t at = place_target(d, operand(d, 0), 4);
    struct op *o = emit(d, op_redux, EXEC_CLASS_WARP, RULE_NONE);
    o->d = at;
    o->a = a;
    o->b = mask;
    o->kind = (uint8_t)mode;
    o->type = (uint8_t)t;
    o->flags = flags;
}

static void decode_activemask(struct decoder *d) {
    (void)suffix_type(d);
    const int32_t at = place_target(d, operand(d, 0), 4);
    emit(d, op_activemask, EXEC_CLASS_WARP, RULE_SPECIAL)->d = at;
}

static void decode_elect(struct decoder *d) {
    decode_need(d, 90);
    if (!suffix_take(d, "sync")) decode_bad(d, "no .sync");
    int32_t at, pred;
    const int32_t mask = place_source(d, operand(d, 1), PTX_B32);
    pair(d, 4, &at, &pred);
    struct op *o = emit(d, op_elect, EXEC_CLASS_WARP, RULE_NONE);
    o->d = at;
    o->e = pred;
    o->b = mask;
}

/* bar.sync, bar.arrive, bar.red, bar.warp.sync, and the same as barrier{.cta} */
static void decode_bar(struct decoder *d) {
    bool aligned = !strcmp(d->in->name, "bar");
    if (suffix_take(d, "warp")) {
        if (!suffix_take(d, "sync")) decode_bad(d, "no .sync");
        const int32_t mask = place_source(d, operand(d, 0), PTX_B32);
        emit(d, op_warp_barrier, EXEC_CLASS_BARRIER, RULE_NONE)->b = mask;
        return;
    }
    if (suffix_take(d, "cluster")) decode_bad(d, "clusters are not known here");
    (void)suffix_take(d, "cta");
    int kind = -1;
    if (suffix_take(d, "sync"))
        kind = BARRIER_SYNC;
    else if (suffix_take(d, "arrive"))
        kind = BARRIER_ARRIVE;
    else if (suffix_take(d, "red"))
        kind = suffix_take(d, "popc")  ? BARRIER_POPC
               : suffix_take(d, "and") ? BARRIER_AND
               : suffix_take(d, "or")  ? BARRIER_OR
                                       : -1;
    if (kind < 0) decode_bad(d, "no mode");
    aligned |= suffix_take(d, "aligned");
    const bool red = kind >= BARRIER_POPC;
    int32_t at = NO_PLACE, c = NO_PLACE;
    bool negated = false;
    uint32_t i = 0;
    if (red) {
        const enum ptx_type t = suffix_type(d);
        at = t == PTX_PRED ? place_pred(d, operand(d, 0), NULL) : place_target(d, operand(d, 0), 4);
        i = 1;
    }
    const uint32_t last = d->in->n_operands - (red ? 1 : 0);
    const int32_t number = place_source(d, operand(d, i++), PTX_B32);
    const int32_t threads = i < last ? place_source(d, operand(d, i++), PTX_B32) : NO_PLACE;
    if (red) c = place_pred(d, operand(d, i++), &negated);
    if (i != d->in->n_operands) decode_bad(d, "wrong number of operands");
    if (kind == BARRIER_ARRIVE && threads == NO_PLACE) decode_bad(d, "arrive needs a thread count");
    struct op *o = emit(d, op_barrier, EXEC_CLASS_BARRIER, RULE_NONE);
    o->d = at;
    o->a = number;
    o->b = threads;
    o->c = c;
    o->kind = (uint8_t)kind;
    o->flags = (aligned ? OP_ALIGNED : 0) | (negated ? OP_NEGATE_C : 0);
}

static void decode_griddep(struct decoder *d) {
    decode_need(d, 90);
    if (suffix_take(d, "wait"))
        emit(d, op_griddep_wait, EXEC_CLASS_BARRIER, RULE_NONE);
    else if (suffix_take(d, "launch_dependents"))
        emit(d, op_griddep_launch, EXEC_CLASS_BARRIER, RULE_NONE);
    else
        decode_bad(d, "no action");
}

static void decode_nanosleep(struct decoder *d) {
    (void)suffix_type(d);
    (void)place_source(d, operand(d, 0), PTX_B32);
    emit(d, op_sleep, EXEC_CLASS_CONTROL, RULE_NONE);
}

static const struct {
    const char *shape;
    enum ptx_type a; /* U8 stands for both signs */
    enum matrix_kind kind;
    uint32_t sm;
    uint8_t n_d, n_a, n_b; /* registers of 32 bits; d with 16-bit results has half as many */
} shapes[] = {
    {"m16n8k32", PTX_U8, MATRIX_S8_K32, 80, 4, 4, 2},
    {"m16n8k16", PTX_U8, MATRIX_S8_K16, 80, 4, 2, 1},
    {"m8n8k16", PTX_U8, MATRIX_S8_M8, 75, 2, 1, 1},
    {"m16n8k16", PTX_F16, MATRIX_F16_K16, 80, 4, 4, 2},
    {"m16n8k8", PTX_F16, MATRIX_F16_K8, 75, 4, 2, 1},
    {"m16n8k16", PTX_BF16, MATRIX_BF16_K16, 80, 4, 4, 2},
    {"m16n8k8", PTX_BF16, MATRIX_BF16_K8, 80, 4, 2, 1},
    {"m16n8k8", PTX_TF32, MATRIX_TF32_K8, 80, 4, 4, 2},
    {"m16n8k4", PTX_TF32, MATRIX_TF32_K4, 80, 4, 2, 1},
};

static uint32_t fragment(struct decoder *d, uint32_t i, uint32_t n, bool target, int32_t *places) {
    const struct ptx_operand *o = operand(d, i);
    const struct ptx_operand *items = o->kind == PTX_OPERAND_VECTOR ? o->elements : o;
    const uint32_t have = o->kind == PTX_OPERAND_VECTOR ? o->n_elements : 1;
    if (have != n) decode_bad(d, "a fragment has the wrong number of registers");
    for (uint32_t k = 0; k < n; k++)
        places[k] = target ? place_target(d, &items[k], 4) : place_source(d, &items[k], PTX_B32);
    return n;
}

static void decode_mma(struct decoder *d) {
    if (!suffix_take(d, "sync") || !suffix_take(d, "aligned")) decode_bad(d, "not .sync.aligned");
    const uint32_t before = d->used;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        d->used = before;
        if (!suffix_take(d, shapes[i].shape) || !suffix_take(d, "row") || !suffix_take(d, "col"))
            continue;
        const uint32_t flags = suffix_take(d, "satfinite") ? OP_SAT : 0;
        /* types are written d, a, b, c */
        enum ptx_type t[4];
        for (int k = 0; k < 4; k++) t[k] = suffix_type_or(d, PTX_NONE);
        const bool bytes = t[1] == PTX_U8 || t[1] == PTX_S8;
        if (bytes ? shapes[i].a != PTX_U8 || (t[2] != PTX_U8 && t[2] != PTX_S8)
                  : shapes[i].a != t[1] || t[2] != t[1])
            continue;
        const bool half_d = t[0] == PTX_F16;
        const bool good = bytes ? t[0] == PTX_S32 && t[3] == PTX_S32
                                : (t[0] == PTX_F32 || (half_d && t[1] == PTX_F16)) && t[3] == t[0];
        if (!good) continue;
        decode_need(d, shapes[i].sm);
        int32_t places[16];
        uint32_t n = 0;
        const uint32_t n_d = half_d ? shapes[i].n_d / 2u : shapes[i].n_d;
        n += fragment(d, 0, n_d, true, places + n);
        n += fragment(d, 1, shapes[i].n_a, false, places + n);
        n += fragment(d, 2, shapes[i].n_b, false, places + n);
        n += fragment(d, 3, n_d, false, places + n);
        const uint32_t list = list_add(d, places, n);
        struct op *o = emit_lane(d, LANE_MMA, EXEC_CLASS_MATRIX, RULE_NONE);
        o->kind = (uint8_t)shapes[i].kind;
        o->list = list;
        o->n = (uint8_t)n;
        o->type = (uint8_t)t[0];
        o->flags = flags | OP_ALIGNED | (t[1] == PTX_S8 ? OP_SIGNED_A : 0) |
                   (t[2] == PTX_S8 ? OP_SIGNED_B : 0);
        return;
    }
    decode_bad(d, "a shape or type that is not known here");
}

const struct decode_entry decode_warp[] = {
    {"shfl", decode_shfl},
    {"vote", decode_vote},
    {"match", decode_match},
    {"redux", decode_redux},
    {"activemask", decode_activemask},
    {"elect", decode_elect},
    {"bar", decode_bar},
    {"barrier", decode_bar},
    {"griddepcontrol", decode_griddep},
    {"nanosleep", decode_nanosleep},
    {"mma", decode_mma},
    {NULL, NULL},
};
