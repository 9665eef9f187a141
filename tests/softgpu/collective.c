/* Operations that look across the lanes of a warp, and special registers. */
#include <math.h>
#include <string.h>

#include "tests/softgpu/half.h"
#include "tests/softgpu/run.h"

enum { SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_BFLY, SHUFFLE_IDX };
enum { VOTE_ALL, VOTE_ANY, VOTE_UNI, VOTE_BALLOT };
enum { REDUX_ADD, REDUX_MIN, REDUX_MAX, REDUX_AND, REDUX_OR, REDUX_XOR };

static void define_lanes(struct warp *w, int32_t place, uint32_t lanes, uint8_t poison) {
    if (!w->poison || place == NO_PLACE) return;
    uint8_t *p = poison_out(w, place);
    for (uint32_t m = lanes; m; m &= m - 1) p[first_lane(m)] = poison;
}
static void define_pred(struct warp *w, int32_t place, uint32_t lanes, bool undefined) {
    if (!w->poison || place == NO_PLACE) return;
    u32x *p = out_place(w, place + 4);
    *p = undefined ? *p | lanes : *p & ~lanes;
}
static bool any_poison(const struct warp *w, int32_t place, uint32_t lanes) {
    if (!w->poison) return false;
    const uint8_t *p = poison_in(w, place);
    uint8_t all = 0;
    for (uint32_t m = lanes; m; m &= m - 1) all |= p[first_lane(m)];
    return all & 15;
}

/* PTX ISA 9.7.9.6: c holds the clamp in bits 0-4 and the segment mask in bits 8-12. */
const struct op *op_shuffle(struct warp *w, const struct op *op) {
    const struct op *next;
    const uint32_t lanes = warp_sync(w, op, in_place(w, w->image->places[op->list]), &next);
    if (!lanes) return next;
    u32x from[LANES];
    uint8_t poison[LANES] = {0};
    memcpy(from, in_place(w, op->a), sizeof from);
    if (w->poison) memcpy(poison, poison_in(w, op->a), sizeof poison);
    const u32x *pb = in_place(w, op->b), *pc = in_place(w, op->c);
    u32x *d = out_place(w, op->d);
    uint32_t valid = 0;
    for (uint32_t m = lanes; m; m &= m - 1) {
        const uint32_t l = first_lane(m), b = pb[l] & 31, c = pc[l];
        const uint32_t clamp = c & 31, segment = c >> 8 & 31;
        const uint32_t most = (l & segment) | (clamp & ~segment), least = l & segment;
        uint32_t j;
        bool in;
        switch (op->kind) {
        case SHUFFLE_UP:
            j = l - b;
            in = (int32_t)j >= (int32_t)most;
            break;
        case SHUFFLE_DOWN:
            j = l + b;
            in = j <= most;
            break;
        case SHUFFLE_BFLY:
            j = l ^ b;
            in = j <= most;
            break;
        default:
            j = least | (b & ~segment);
            in = j <= most;
            break;
        }
        if (!in) j = l;
        valid |= (uint32_t)in << l;
        /* a lane that is not here has no defined value */
        const bool there = lanes >> j & 1;
        d[l] = from[j];
        if (w->poison) poison_out(w, op->d)[l] = there ? poison[j] : 0xff;
    }
    if (op->e != NO_PLACE) {
        pred_out(w, op->e, lanes, valid);
        define_pred(w, op->e, lanes, false);
    }
    return op + 1;
}

const struct op *op_vote(struct warp *w, const struct op *op) {
    const struct op *next;
    const uint32_t lanes = warp_sync(w, op, in_place(w, op->b), &next);
    if (!lanes) return next;
    const uint32_t p = (pred_in(w, op->a) ^ (op->flags & OP_NEGATE_A ? ~0u : 0)) & lanes;
    bool undefined = false;
    if (w->poison) undefined = ((const u32x *)in_place(w, op->a))[1] & lanes;
    if (op->kind == VOTE_BALLOT) {
        u32x *d = out_place(w, op->d);
        for (uint32_t m = lanes; m; m &= m - 1) d[first_lane(m)] = p;
        define_lanes(w, op->d, lanes, undefined ? 0xff : 0);
        return op + 1;
    }
    const bool yes = op->kind == VOTE_ALL   ? p == lanes
                     : op->kind == VOTE_ANY ? p != 0
                                            : p == lanes || p == 0;
    pred_out(w, op->d, lanes, yes ? ~0u : 0);
    define_pred(w, op->d, lanes, undefined);
    return op + 1;
}

const struct op *op_match(struct warp *w, const struct op *op) {
    const struct op *next;
    const uint32_t lanes = warp_sync(w, op, in_place(w, op->b), &next);
    if (!lanes) return next;
    uint64_t v[LANES];
    for (uint32_t l = 0; l < LANES; l++)
        v[l] = op->flags & OP_WIDE_A ? ((const u64x *)in_place(w, op->a))[l]
                                     : ((const u32x *)in_place(w, op->a))[l];
    u32x *d = out_place(w, op->d);
    const bool undefined = any_poison(w, op->a, lanes);
    uint32_t all = ~0u;
    for (uint32_t m = lanes; m; m &= m - 1) {
        uint32_t same = 0;
        for (uint32_t n = lanes; n; n &= n - 1)
            if (v[first_lane(n)] == v[first_lane(m)]) same |= 1u << first_lane(n);
        if (op->kind == 1) same = same == lanes ? lanes : 0;
        all &= same == lanes ? ~0u : 0;
        d[first_lane(m)] = same;
    }
    define_lanes(w, op->d, lanes, undefined ? 0xff : 0);
    if (op->e != NO_PLACE) {
        pred_out(w, op->e, lanes, all);
        define_pred(w, op->e, lanes, undefined);
    }
    return op + 1;
}

static uint32_t reduce_float(const struct op *op, uint32_t a, uint32_t b) {
    const bool max = op->kind == REDUX_MAX;
    float x = bits_float(a), y = bits_float(b);
    if (op->flags & OP_ABS) {
        x = fabsf(x);
        y = fabsf(y);
    }
    if (x != x || y != y)
        return (op->flags & OP_NAN) || (x != x && y != y) ? 0x7fffffffu
                                                          : float_bits(x != x ? y : x);
    if (x == y) return float_bits((signbit(x) != 0) != max ? x : y);
    return float_bits((x < y) != max ? x : y);
}

const struct op *op_redux(struct warp *w, const struct op *op) {
    const struct op *next;
    const uint32_t lanes = warp_sync(w, op, in_place(w, op->b), &next);
    if (!lanes) return next;
    const u32x *a = in_place(w, op->a);
    uint32_t r = a[first_lane(lanes)];
    if (op->type == PTX_F32 && (lanes & (lanes - 1)) == 0) r = reduce_float(op, r, r);
    for (uint32_t m = lanes & (lanes - 1); m; m &= m - 1) {
        const uint32_t v = a[first_lane(m)];
        const bool is_signed = op->type == PTX_S32;
        if (op->type == PTX_F32) {
            r = reduce_float(op, r, v);
            continue;
        }
        switch (op->kind) {
        case REDUX_ADD:
            r += v;
            break;
        case REDUX_MIN:
            r = (is_signed ? (int32_t)v < (int32_t)r : v < r) ? v : r;
            break;
        case REDUX_MAX:
            r = (is_signed ? (int32_t)v > (int32_t)r : v > r) ? v : r;
            break;
        case REDUX_AND:
            r &= v;
            break;
        case REDUX_OR:
            r |= v;
            break;
        default:
            r ^= v;
            break;
        }
    }
    const bool undefined = any_poison(w, op->a, lanes);
    u32x *d = out_place(w, op->d);
    for (uint32_t m = lanes; m; m &= m - 1) d[first_lane(m)] = r;
    define_lanes(w, op->d, lanes, undefined ? 0xff : 0);
    return op + 1;
}

const struct op *op_activemask(struct warp *w, const struct op *op) {
    u32x *d = out_place(w, op->d);
    for (uint32_t m = w->exec; m; m &= m - 1) d[first_lane(m)] = w->exec;
    return op + 1;
}

const struct op *op_elect(struct warp *w, const struct op *op) {
    const struct op *next;
    const uint32_t lanes = warp_sync(w, op, in_place(w, op->b), &next);
    if (!lanes) return next;
    const uint32_t leader = first_lane(lanes);
    u32x *d = out_place(w, op->d);
    for (uint32_t m = lanes; m; m &= m - 1) d[first_lane(m)] = leader;
    define_lanes(w, op->d, lanes, 0);
    if (op->e != NO_PLACE) {
        pred_out(w, op->e, lanes, 1u << leader);
        define_pred(w, op->e, lanes, false);
    }
    return op + 1;
}

const struct op *op_griddep_wait(struct warp *w, const struct op *op) {
    w->waited |= w->exec;
    if (w->poison) races_grid_wait(w, w->exec);
    return op + 1;
}

const struct op *op_griddep_launch(struct warp *w, const struct op *op) {
    w->launched_early |= w->exec & ~w->waited;
    return op + 1;
}

static uint64_t special_value(const struct warp *w, const struct op *op, uint32_t l,
                              const uint32_t tid[3]) {
    const struct exec_launch *r = w->block->launch->request;
    const struct block *b = w->block;
    uint32_t cluster[3];
    for (int i = 0; i < 3; i++) cluster[i] = r->cluster[i] ? r->cluster[i] : 1;
    const uint32_t s = op->kind;
    if (s <= PTX_SREG_TID_Z) return tid[s - PTX_SREG_TID_X];
    if (s <= PTX_SREG_NTID_Z) return r->block[s - PTX_SREG_NTID_X];
    if (s <= PTX_SREG_CTAID_Z) return b->id[s - PTX_SREG_CTAID_X];
    if (s <= PTX_SREG_NCTAID_Z) return r->grid[s - PTX_SREG_NCTAID_X];
    if (s >= PTX_SREG_CLUSTERID_X && s <= PTX_SREG_CLUSTERID_Z)
        return b->id[s - PTX_SREG_CLUSTERID_X] / cluster[s - PTX_SREG_CLUSTERID_X];
    if (s >= PTX_SREG_NCLUSTERID_X && s <= PTX_SREG_NCLUSTERID_Z)
        return r->grid[s - PTX_SREG_NCLUSTERID_X] / cluster[s - PTX_SREG_NCLUSTERID_X];
    if (s >= PTX_SREG_CLUSTER_CTAID_X && s <= PTX_SREG_CLUSTER_CTAID_Z)
        return b->id[s - PTX_SREG_CLUSTER_CTAID_X] % cluster[s - PTX_SREG_CLUSTER_CTAID_X];
    if (s >= PTX_SREG_CLUSTER_NCTAID_X && s <= PTX_SREG_CLUSTER_NCTAID_Z)
        return cluster[s - PTX_SREG_CLUSTER_NCTAID_X];
    switch ((enum ptx_special)s) {
    case PTX_SREG_LANEID:
        return l;
    case PTX_SREG_WARPID:
        return w->index;
    case PTX_SREG_NWARPID:
        return b->n_warps;
    case PTX_SREG_SMID:
        return b->linear % b->launch->device->sm_count;
    case PTX_SREG_NSMID:
        return b->launch->device->sm_count;
    case PTX_SREG_LANEMASK_EQ:
        return 1u << l;
    case PTX_SREG_LANEMASK_LT:
        return (1u << l) - 1;
    case PTX_SREG_LANEMASK_LE:
        return (2u << l) - 1;
    case PTX_SREG_LANEMASK_GT:
        return ~((2u << l) - 1);
    case PTX_SREG_LANEMASK_GE:
        return ~((1u << l) - 1);
    case PTX_SREG_CLOCK:
    case PTX_SREG_CLOCK64:
    case PTX_SREG_GLOBALTIMER:
    case PTX_SREG_GLOBALTIMER_LO:
        return w->executed;
    case PTX_SREG_CLOCK_HI:
    case PTX_SREG_GLOBALTIMER_HI:
        return w->executed >> 32;
    case PTX_SREG_DYNAMIC_SMEM_SIZE:
        return r->dynamic_shared_bytes;
    case PTX_SREG_TOTAL_SMEM_SIZE:
        return r->dynamic_shared_bytes + w->image->static_shared_bytes;
    case PTX_SREG_CLUSTER_CTARANK:
        return b->id[0] % cluster[0] +
               cluster[0] * (b->id[1] % cluster[1] + cluster[1] * (b->id[2] % cluster[2]));
    case PTX_SREG_CLUSTER_NCTARANK:
        return (uint64_t)cluster[0] * cluster[1] * cluster[2];
    case PTX_SREG_IS_EXPLICIT_CLUSTER:
        return r->cluster[0] != 0;
    default:
        return 0; /* %gridid */
    }
}

const struct op *op_special(struct warp *w, const struct op *op) {
    const uint32_t *n = w->block->launch->request->block;
    const uint32_t first = w->index * LANES;
    uint32_t tid[3] = {first % n[0], first / n[0] % n[1], first / n[0] / n[1]};
    for (uint32_t l = 0; l < LANES; l++) {
        if (w->exec >> l & 1) {
            const uint64_t v = special_value(w, op, l, tid);
            if (op->width == 8)
                ((u64x *)out_place(w, op->d))[l] = v;
            else
                ((u32x *)out_place(w, op->d))[l] = (uint32_t)v;
        }
        if (++tid[0] == n[0]) {
            tid[0] = 0;
            if (++tid[1] == n[1]) {
                tid[1] = 0;
                tid[2]++;
            }
        }
    }
    return op + 1;
}
