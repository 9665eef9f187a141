/* atom and red: one lane after the other, in an order the seed chooses. */
#include <string.h>

#include "tests/softgpu/async.h"
#include "tests/softgpu/half.h"
#include "tests/softgpu/run.h"

static uint64_t float_add(const struct op *op, uint64_t old, uint64_t b) {
    switch ((enum ptx_type)op->type) {
    case PTX_F32: {
        const float r = bits_float((uint32_t)old) + bits_float((uint32_t)b);
        return r != r ? 0x7fffffffu : float_bits(r);
    }
    case PTX_F64:
        return double_bits(bits_double(old) + bits_double(b));
    case PTX_F16:
    case PTX_BF16: {
        const enum small_format f = op->type == PTX_F16 ? SMALL_F16 : SMALL_BF16;
        return small_encode(
            f, small_decode(f, (uint32_t)old & 0xffff) + small_decode(f, (uint32_t)b & 0xffff),
            ROUND_NEAREST, false);
    }
    default: {
        const enum small_format f = op->type == PTX_F16X2 ? SMALL_F16 : SMALL_BF16;
        uint64_t r = 0;
        for (uint32_t i = 0; i < 2; i++)
            r |= (uint64_t)small_encode(f,
                                        small_decode(f, (uint32_t)(old >> 16 * i) & 0xffff) +
                                            small_decode(f, (uint32_t)(b >> 16 * i) & 0xffff),
                                        ROUND_NEAREST, false)
                 << 16 * i;
        return r;
    }
    }
}

static bool is_float(uint32_t t) {
    return t == PTX_F16 || t == PTX_BF16 || t == PTX_F16X2 || t == PTX_BF16X2 || t == PTX_F32 ||
           t == PTX_F64;
}

static uint64_t combine(const struct op *op, uint64_t old, uint64_t b, uint64_t c) {
    const bool wide = op->width == 8, is_signed = op->type == PTX_S32 || op->type == PTX_S64;
    const int64_t so = wide ? (int64_t)old : (int32_t)old, sb = wide ? (int64_t)b : (int32_t)b;
    switch ((enum atomic_kind)op->kind) {
    case ATOMIC_AND:
        return old & b;
    case ATOMIC_OR:
        return old | b;
    case ATOMIC_XOR:
        return old ^ b;
    case ATOMIC_CAS:
        return old == b ? c : old;
    case ATOMIC_EXCH:
        return b;
    case ATOMIC_ADD:
        return is_float(op->type) ? float_add(op, old, b) : old + b;
    case ATOMIC_INC:
        return old >= b ? 0 : old + 1;
    case ATOMIC_DEC:
        return old == 0 || old > b ? b : old - 1;
    case ATOMIC_MIN:
        return is_signed ? (so < sb ? old : b) : (old < b ? old : b);
    default:
        return is_signed ? (so > sb ? old : b) : (old > b ? old : b);
    }
}

static uint64_t update_16(uint8_t *p, const struct op *op, uint64_t b, uint64_t c, bool *changed) {
    uint16_t *at = (uint16_t *)(void *)p;
    uint16_t old = __atomic_load_n(at, __ATOMIC_SEQ_CST), new;
    do new = (uint16_t)combine(op, old, b, c);
    while (!__atomic_compare_exchange_n(at, &old, new, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    *changed = old != new;
    return old;
}
static uint64_t update_32(uint8_t *p, const struct op *op, uint64_t b, uint64_t c, bool *changed) {
    u32x *at = (u32x *)(void *)p;
    uint32_t old = __atomic_load_n(at, __ATOMIC_SEQ_CST), new;
    do new = (uint32_t)combine(op, old, b, c);
    while (!__atomic_compare_exchange_n(at, &old, new, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    *changed = old != new;
    return old;
}
static uint64_t update_64(uint8_t *p, const struct op *op, uint64_t b, uint64_t c, bool *changed) {
    u64x *at = (u64x *)(void *)p;
    uint64_t old = __atomic_load_n(at, __ATOMIC_SEQ_CST), new;
    do new = combine(op, old, b, c);
    while (!__atomic_compare_exchange_n(at, &old, new, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    *changed = old != new;
    return old;
}

static uint64_t lane_value(const struct warp *w, const struct op *op, int32_t place, uint32_t l) {
    if (op->flags & OP_WIDE) return ((const u64x *)in_place(w, place))[l];
    const uint32_t v = ((const u32x *)in_place(w, place))[l];
    return op->width == 2 ? v & 0xffff : v;
}

const struct op *op_atomic(struct warp *w, const struct op *op) {
    uint64_t address[LANES];
    uint8_t *host[LANES];
    const enum ptx_space space = (enum ptx_space)op->space;
    access_addresses(w, op, address);
    if (!access_resolve(w, op, space, address, op->width, true, host)) return warp_abort(w, op);
    for (uint32_t m = w->exec; m; m &= m - 1)
        if ((uintptr_t)host[first_lane(m)] % op->width) return warp_abort(w, op); /* reported */
    if (w->poison) {
        uint32_t poison[LANES];
        for (uint32_t l = 0; l < LANES; l++)
            poison[l] = (uint32_t)poison_in(w, op->b)[l] | poison_in(w, op->c)[l];
        track_atomic(w, op, space, address, op->width, poison);
        if (op->d != NO_PLACE)
            for (uint32_t m = w->exec; m; m &= m - 1)
                poison_out(w, op->d)[first_lane(m)] = (uint8_t)poison[first_lane(m)];
    }
    const uint32_t turn =
        w->block->launch->request->seed ? (uint32_t)(next_random(&w->rng) % LANES) : 0;
    bool any = false;
    for (uint32_t i = 0; i < LANES; i++) {
        const uint32_t l = (i + turn) % LANES;
        if (!(w->exec >> l & 1)) continue;
        const uint64_t b = lane_value(w, op, op->b, l), c = lane_value(w, op, op->c, l);
        bool changed;
        const uint64_t old = op->width == 2   ? update_16(host[l], op, b, c, &changed)
                             : op->width == 4 ? update_32(host[l], op, b, c, &changed)
                                              : update_64(host[l], op, b, c, &changed);
        any |= changed;
        if (op->d == NO_PLACE) continue;
        if (op->flags & OP_WIDE)
            ((u64x *)out_place(w, op->d))[l] = old;
        else
            ((u32x *)out_place(w, op->d))[l] = (uint32_t)old;
    }
    if (any) made_progress(w->worker);
    return op + 1;
}
