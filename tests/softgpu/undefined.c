/* How undefined bytes travel through registers (op.h: poison), and where using one is a finding: as
 * the guard of an operation, as a branch's index, in an address, in what is stored to global
 * memory. Arithmetic on undefined values is none by itself. */
#include <string.h>

#include "tests/softgpu/run.h"

static uint64_t expand(uint32_t p) { /* a byte of ones for each bit */
    uint64_t m = 0;
    for (uint32_t i = 0; i < 8; i++)
        if (p >> i & 1) m |= UINT64_C(0xff) << 8 * i;
    return m;
}
static uint8_t contract(uint64_t m) {
    uint32_t p = 0;
    for (uint32_t i = 0; i < 8; i++)
        if (m >> 8 * i & 0xff) p |= 1u << i;
    return (uint8_t)p;
}
static uint32_t mask_of(uint32_t bytes) {
    return bytes >= 8 ? 0xff : (1u << bytes) - 1;
}

void undefined_use(struct warp *w, const struct op *op, int32_t place, uint32_t lanes,
                   uint8_t bytes, const char *what) {
    const uint8_t *p = poison_in(w, place);
    for (uint32_t m = lanes; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        if (!(p[l] & mask_of(bytes))) continue;
        report(w, op, FINDING_UNDEFINED, l, 0, "an undefined value is used as %s", what);
        return;
    }
}

/* Poison of the low `bytes` bytes of a, b and c together. */
static uint32_t any_of(const struct warp *w, const struct op *op, uint32_t l) {
    uint32_t p = poison_in(w, op->a)[l] | poison_in(w, op->b)[l];
    if (op->c != NO_PLACE) p |= poison_in(w, op->c)[l];
    return p;
}

static uint64_t value(const struct warp *w, int32_t place, uint32_t bytes, uint32_t l) {
    return bytes == 8 ? ((const u64x *)in_place(w, place))[l]
                      : ((const u32x *)in_place(w, place))[l];
}

static void set(struct warp *w, const struct op *op, uint32_t l, uint32_t p) {
    uint8_t *d = poison_out(w, op->d);
    d[l] = (uint8_t)(p & mask_of(op->sets_wide));
    if (op->sets_wide == 16) d[64 + l] = (uint8_t)(p ? 0xff : 0);
}

static uint32_t shifted(const struct warp *w, const struct op *op, uint32_t l) {
    const uint32_t bits = op->width * 8u, n = ((const u32x *)in_place(w, op->b))[l];
    if (poison_in(w, op->b)[l] & 15) return 0xff;
    const uint64_t m = expand(poison_in(w, op->a)[l] & mask_of(op->width));
    if (op->rule == RULE_SHL) return n < bits ? contract(m << n) : 0;
    if (op->rule == RULE_SHR) return n < bits ? contract(m >> n) : 0;
    const uint64_t top = m >> (bits - 1) & 1;
    const uint32_t by = n < bits ? n : bits - 1;
    uint64_t r = m >> by;
    if (top && by) r |= ~UINT64_C(0) << (bits - by);
    return contract(r);
}

static uint32_t permuted(const struct warp *w, const struct op *op, uint32_t l) {
    if (poison_in(w, op->c)[l] & 15) return 15;
    const uint32_t s = ((const u32x *)in_place(w, op->c))[l];
    const uint32_t from = (poison_in(w, op->a)[l] & 15u) | (poison_in(w, op->b)[l] & 15u) << 4;
    uint32_t p = 0;
    for (uint32_t i = 0; i < 4; i++) p |= (from >> (s >> 4 * i & 7) & 1) << i;
    return p;
}

static uint32_t field(const struct warp *w, const struct op *op, uint32_t l) {
    if ((poison_in(w, op->b)[l] | poison_in(w, op->c)[l]) & 15) return 0xff;
    const uint32_t pos = ((const u32x *)in_place(w, op->b))[l] & 255;
    const uint32_t len = ((const u32x *)in_place(w, op->c))[l] & 255, bits = op->width * 8u;
    const uint64_t m = expand(poison_in(w, op->a)[l] & mask_of(op->width));
    uint64_t r = pos < 64 ? m >> pos : 0;
    if (len < 64) r &= (UINT64_C(1) << len) - 1;
    if ((op->flags & OP_SIGNED) && len) {
        const uint32_t top = pos + len - 1 < bits - 1 ? pos + len - 1 : bits - 1;
        if (m >> top & 1) r |= len < 64 ? ~UINT64_C(0) << len : 0;
    }
    return contract(r);
}

static uint32_t inserted(const struct warp *w, const struct op *op, uint32_t l) {
    if ((poison_in(w, op->c)[l] | poison_in(w, op->e)[l]) & 15) return 0xff;
    const uint32_t pos = ((const u32x *)in_place(w, op->c))[l] & 255;
    const uint32_t len = ((const u32x *)in_place(w, op->e))[l] & 255;
    const uint64_t a = expand(poison_in(w, op->a)[l]), b = expand(poison_in(w, op->b)[l]);
    if (pos > 63 || len == 0) return contract(b);
    const uint64_t mask = (len < 64 ? (UINT64_C(1) << len) - 1 : ~UINT64_C(0)) << pos;
    return contract((b & ~mask) | (a << pos & mask));
}

/* Byte by byte; for and (or) a defined byte of zeros (ones) on one side makes the result defined.
 */
static uint32_t decided(const struct warp *w, const struct op *op, uint32_t l, bool ones) {
    const uint32_t pa = poison_in(w, op->a)[l], pb = poison_in(w, op->b)[l];
    if (!(pa | pb)) return 0;
    const uint32_t bytes = op->sets_wide == 8 ? 8 : 4;
    const uint64_t a = value(w, op->a, bytes, l), b = value(w, op->b, bytes, l);
    uint32_t p = pa | pb;
    for (uint32_t i = 0; i < bytes; i++) {
        const uint64_t want = ones ? 0xff : 0;
        if ((!(pa >> i & 1) && (a >> 8 * i & 0xff) == want) ||
            (!(pb >> i & 1) && (b >> 8 * i & 0xff) == want))
            p &= ~(1u << i);
    }
    return p;
}

static uint32_t converted(const struct warp *w, const struct op *op, uint32_t l) {
    const uint32_t to = ptx_type_bytes((enum ptx_type)op->type);
    const uint32_t width = op->width < to ? op->width : to;
    const uint32_t a = poison_in(w, op->a)[l];
    if (op->flags & OP_SAT) return a & mask_of(op->width) ? 0xff : 0;
    uint32_t p = a & mask_of(width);
    if ((op->flags & OP_SIGNED) && (p >> (width - 1) & 1)) p |= 0xffu << width;
    return p;
}

static void packed(struct warp *w, const struct op *op, uint32_t l) {
    const int32_t *list = w->image->places + op->list;
    uint32_t p = 0;
    for (uint32_t i = 0; i < op->n; i++) {
        const uint32_t part = poison_in(w, list[i])[l] & mask_of(op->width);
        if (op->width == 8)
            poison_out(w, op->d)[64 * i + l] = (uint8_t)part;
        else
            p |= part << i * op->width;
    }
    if (op->width == 8) return;
    uint8_t *d = poison_out(w, op->d);
    d[l] = (uint8_t)p;
    if (op->sets_wide == 16) d[64 + l] = (uint8_t)(p >> 8);
}

static void unpacked(struct warp *w, const struct op *op, uint32_t l) {
    const int32_t *list = w->image->places + op->list;
    uint32_t p = poison_in(w, op->a)[l];
    if (op->imm == 16 && op->a >= 0) p |= (uint32_t)poison_in(w, op->a)[64 + l] << 8;
    for (uint32_t i = 0; i < op->n; i++)
        if (list[i] != NO_PLACE)
            poison_out(w, list[i])[l] = (uint8_t)(p >> i * op->width & mask_of(op->width));
}

static uint32_t pred_poison(const struct warp *w, int32_t place) {
    return ((const u32x *)in_place(w, place))[1];
}

static void set_pred_poison(struct warp *w, int32_t place, uint32_t lanes, uint32_t bits) {
    if (place == NO_PLACE) return;
    u32x *p = out_place(w, place + 4);
    *p = (*p & ~lanes) | (bits & lanes);
}

static void to_pred(struct warp *w, const struct op *op, uint32_t lanes) {
    const uint32_t bytes = op->type_a ? ptx_type_bytes((enum ptx_type)op->type_a) : 8;
    uint32_t bits = op->combine != COMBINE_NONE ? pred_poison(w, op->c) : 0;
    for (uint32_t l = 0; l < LANES; l++)
        if ((poison_in(w, op->a)[l] | poison_in(w, op->b)[l]) & mask_of(bytes)) bits |= 1u << l;
    if (op->n == 1) {
        for (uint32_t m = lanes; m; m &= m - 1)
            set(w, op, first_lane(m), bits >> first_lane(m) & 1 ? 0xff : 0);
        return;
    }
    set_pred_poison(w, op->d, lanes, bits);
    set_pred_poison(w, op->e, lanes, bits);
}

static void between_preds(struct warp *w, const struct op *op, uint32_t lanes) {
    const uint32_t pa = pred_poison(w, op->a), pb = pred_poison(w, op->b);
    const uint32_t a = pred_in(w, op->a) ^ (op->flags & OP_NEGATE_A ? ~0u : 0);
    const uint32_t b = pred_in(w, op->b) ^ (op->flags & OP_NEGATE_B ? ~0u : 0);
    uint32_t bits = pa | pb;
    if (op->kind == COMBINE_AND) bits &= ~((~pa & ~a) | (~pb & ~b));
    if (op->kind == COMBINE_OR) bits &= ~((~pa & a) | (~pb & b));
    set_pred_poison(w, op->d, lanes, bits);
}

static uint32_t selected(const struct warp *w, const struct op *op, uint32_t l) {
    if (pred_poison(w, op->c) >> l & 1) return 0xff;
    const uint32_t p = pred_in(w, op->c) ^ (op->flags & OP_NEGATE_C ? ~0u : 0);
    return poison_in(w, p >> l & 1 ? op->a : op->b)[l];
}

static uint32_t halves(const struct warp *w, const struct op *op, uint32_t l) {
    const uint32_t p = any_of(w, op, l);
    return (p & 3 ? 3 : 0) | (p & 12 ? 12 : 0);
}

static void step_lane(struct warp *w, const struct op *op, uint32_t l) {
    switch ((enum op_rule)op->rule) {
    case RULE_ALL: {
        const uint32_t p = any_of(w, op, l);
        set(w, op, l, p ? 0xff : 0);
        return;
    }
    case RULE_MOVE:
        set(w, op, l, poison_in(w, op->a)[l]);
        return;
    case RULE_BITWISE:
        set(w, op, l, any_of(w, op, l));
        return;
    case RULE_AND:
        set(w, op, l, decided(w, op, l, false));
        return;
    case RULE_OR:
        set(w, op, l, decided(w, op, l, true));
        return;
    case RULE_SHL:
    case RULE_SHR:
    case RULE_SAR:
        set(w, op, l, shifted(w, op, l));
        return;
    case RULE_SELP:
        set(w, op, l, selected(w, op, l));
        return;
    case RULE_PRMT:
        set(w, op, l, permuted(w, op, l));
        return;
    case RULE_BFE:
        set(w, op, l, field(w, op, l));
        return;
    case RULE_BFI:
        set(w, op, l, inserted(w, op, l));
        return;
    case RULE_HALVES:
        set(w, op, l, halves(w, op, l));
        return;
    case RULE_CONVERT:
        set(w, op, l, converted(w, op, l));
        return;
    case RULE_PACK:
        packed(w, op, l);
        return;
    case RULE_UNPACK:
        unpacked(w, op, l);
        return;
    case RULE_SPECIAL:
        set(w, op, l, 0);
        return;
    default:
        return;
    }
}

static bool clean(const struct warp *w, int32_t place) {
    uint64_t p[4];
    memcpy(p, poison_in(w, place), sizeof p);
    return (p[0] | p[1] | p[2] | p[3]) == 0;
}

/* The common case, in one go: all sources are defined in all lanes, so the result is. */
static bool all_defined(struct warp *w, const struct op *op, uint32_t lanes) {
    const bool plain = (op->rule >= RULE_ALL && op->rule <= RULE_SAR) ||
                       (op->rule >= RULE_PRMT && op->rule <= RULE_HALVES) ||
                       op->rule == RULE_CONVERT;
    if (!plain || op->sets_wide == 16 || !clean(w, op->a) || !clean(w, op->b) ||
        (op->c != NO_PLACE && !clean(w, op->c)) || (op->rule == RULE_BFI && !clean(w, op->e)))
        return false;
    uint8_t *d = poison_out(w, op->d);
    if (lanes == ~0u) memset(d, 0, LANES);
    for (uint32_t m = lanes == ~0u ? 0 : lanes; m; m &= m - 1) d[first_lane(m)] = 0;
    return true;
}

void undefined_step(struct warp *w, const struct op *op) {
    uint32_t lanes = w->exec;
    op_fn *fn = op->fn;
    if (op->guard != NO_PLACE) {
        fn = op->inner;
        const uint32_t bad = pred_poison(w, op->guard) & lanes;
        if (bad)
            report(w, op, FINDING_UNDEFINED, first_lane(bad), 0, "an undefined value decides %s",
                   fn == op_branch ? "a branch" : "whether an operation is done");
        lanes &= pred_in(w, op->guard) ^ op->guard_flip;
    }
    if (fn == op_branch_table) undefined_use(w, op, op->a, lanes, 4, "a branch's index");
    if (op->rule == RULE_NONE) return;
    if (op->rule == RULE_TO_PRED) {
        to_pred(w, op, lanes);
        return;
    }
    if (op->rule == RULE_PRED) {
        between_preds(w, op, lanes);
        return;
    }
    if (all_defined(w, op, lanes)) return;
    for (uint32_t m = lanes; m; m &= m - 1) step_lane(w, op, first_lane(m));
}
