/* Copies that run beside the program: cp.async, cp.async.bulk, and the mbarriers that count them.
 *
 * A copy lands as late as the ISA allows: cp.async when its thread waits for its group, a bulk copy
 * or a copy tied to an mbarrier when somebody tests that mbarrier, a bulk store when its thread
 * waits for its bulk group. Until then the old bytes are there, and with tracking on, touching them
 * is a finding. Copies nobody waits for never land.
 *
 * An mbarrier's 64 bits, opaque to programs: phase in bit 63, bytes outstanding in bits 40-62
 * (offset by 2^22), expected arrivals in bits 20-39, pending arrivals in bits 0-19. */
#include "tests/softgpu/async.h"

#include <stdlib.h>
#include <string.h>

#include "tests/softgpu/run.h"

enum copy_kind { COPY_CP, COPY_ARRIVE, COPY_BULK_IN, COPY_BULK_OUT };

struct copy {
    const struct op *op;
    uint8_t kind, lane;
    uint16_t width;    /* COPY_CP: bytes written; the rest over source_bytes is zero */
    uint32_t bytes;    /* read */
    uint32_t group;    /* of its lane */
    uint64_t to, from; /* addresses: shared offset, global address, or the other way round */
    uint8_t *host_to, *host_from;
    uint32_t mbarrier; /* shared offset, or UINT32_MAX */
};

struct copy_queue {
    struct copy *items;
    uint32_t n, cap;
    uint32_t committed[LANES];      /* cp.async groups */
    uint32_t bulk_committed[LANES]; /* bulk groups */
};

enum { COUNT_BITS = 20, COUNT_MASK = (1 << COUNT_BITS) - 1, TX_ZERO = 1 << 22 };

void async_free(struct warp *w) {
    if (!w->copies) return;
    free(w->copies->items);
    free(w->copies);
    w->copies = NULL;
}

void async_reset(struct warp *w) {
    if (!w->copies) return;
    w->copies->n = 0;
    memset(w->copies->committed, 0, sizeof w->copies->committed);
    memset(w->copies->bulk_committed, 0, sizeof w->copies->bulk_committed);
}

static struct copy_queue *queue(struct warp *w) {
    if (!w->copies) w->copies = calloc(1, sizeof *w->copies);
    return w->copies;
}

static bool push(struct warp *w, const struct copy *c) {
    struct copy_queue *q = queue(w);
    if (q && q->n == q->cap) {
        const uint32_t cap = q->cap ? q->cap * 2 : 64;
        struct copy *items = realloc(q->items, cap * sizeof *items);
        if (!items) return false;
        q->items = items;
        q->cap = cap;
    }
    if (!q) return false;
    q->items[q->n++] = *c;
    return true;
}

static const struct op *out_of_memory(struct warp *w, const struct op *op) {
    w->block->launch->no_memory = true;
    return warp_abort(w, op);
}

static uint64_t get(const struct block *b, uint32_t at) {
    uint64_t v;
    memcpy(&v, b->shared + at, sizeof v);
    return v;
}
static void put(struct block *b, uint32_t at, uint64_t v) {
    memcpy(b->shared + at, &v, sizeof v);
}

static uint64_t pack(uint64_t phase, uint64_t tx, uint64_t expected, uint64_t pending) {
    return phase << 63 | tx << 40 | expected << COUNT_BITS | pending;
}

/* Arrivals and bytes are taken off; a phase that is complete gives way to the next. */
static void settle(struct warp *w, const struct op *op, uint32_t lane, uint32_t at,
                   uint32_t arrivals, int64_t tx, uint32_t drop) {
    const uint64_t v = get(w->block, at);
    uint64_t phase = v >> 63, expected = v >> COUNT_BITS & COUNT_MASK, pending = v & COUNT_MASK;
    int64_t bytes = (int64_t)(v >> 40 & 0x7fffff) + tx;
    if (arrivals > pending || drop > expected || bytes < 0 || bytes > 0x7fffff) {
        report(
            w, op, FINDING_MBARRIER, lane, at,
            "%u arrivals and %lld bytes at an mbarrier with %llu arrivals and %lld bytes to come",
            arrivals, (long long)tx, (unsigned long long)pending,
            (long long)(v >> 40 & 0x7fffff) - TX_ZERO);
        return;
    }
    pending -= arrivals;
    expected -= drop;
    if (pending == 0 && bytes == TX_ZERO) {
        phase ^= 1;
        pending = expected;
    }
    put(w->block, at, pack(phase, (uint64_t)bytes, expected, pending));
    made_progress(w->worker);
}

static void mark_pending(struct block *b, uint32_t at, uint32_t bytes, int by) {
    for (uint32_t i = 0; i < bytes; i++)
        b->shared_pending[at + i] = (uint8_t)(b->shared_pending[at + i] + by);
}

static void land(struct warp *w, const struct copy *c) {
    struct block *b = w->block;
    if (c->kind == COPY_ARRIVE) {
        if (w->poison) races_release(w, c->lane, c->mbarrier, true, true, true, SCOPE_CTA);
        settle(w, c->op, c->lane, c->mbarrier, 1, 0, 0);
        return;
    }
    const uint32_t written = c->kind == COPY_CP ? c->width : c->bytes;
    if (w->poison) {
        const bool in = c->kind != COPY_BULK_OUT;
        if (in) mark_pending(b, (uint32_t)c->to, written, -1);
        for (uint32_t i = 0; i < written; i += 16) {
            const uint32_t n = written - i < 16 ? written - i : 16;
            const uint32_t have = i >= c->bytes ? 0 : c->bytes - i < n ? c->bytes - i : n;
            uint32_t poison = 0;
            if (have)
                poison = track_read_lane(w, c->op, in ? PTX_SPACE_GLOBAL : PTX_SPACE_SHARED,
                                         c->lane, c->from + i, have);
            track_write_lane(w, c->op, in ? PTX_SPACE_SHARED : PTX_SPACE_GLOBAL, c->lane, c->to + i,
                             n, poison);
        }
    }
    memcpy(c->host_to, c->host_from, c->bytes);
    if (written > c->bytes) memset(c->host_to + c->bytes, 0, written - c->bytes);
    made_progress(w->worker);
    if (c->kind != COPY_BULK_IN) return;
    if (w->poison) races_release(w, c->lane, c->mbarrier, true, true, true, SCOPE_CTA);
    settle(w, c->op, c->lane, c->mbarrier, 0, -(int64_t)c->bytes, 0);
}

/* The copies of `lanes` whose group is among the `keep` youngest committed ones (or later) stay. */
static void land_groups(struct warp *w, uint32_t lanes, bool bulk, int64_t keep) {
    struct copy_queue *q = w->copies;
    if (!q) return;
    uint32_t left = 0;
    for (uint32_t i = 0; i < q->n; i++) {
        const struct copy c = q->items[i];
        const bool kind = bulk ? c.kind == COPY_BULK_OUT : c.kind == COPY_CP;
        const uint32_t committed = (bulk ? q->bulk_committed : q->committed)[c.lane];
        const bool due = kind && (lanes >> c.lane & 1) &&
                         (keep < 0 || (int64_t)c.group < (int64_t)committed - keep);
        if (due)
            land(w, &c);
        else
            q->items[left++] = c;
    }
    q->n = left;
}

/* Everything of the block that is tied to this mbarrier. A copy before a tied arrival is tied too.
 */
static void land_mbarrier(struct block *b, uint32_t at) {
    for (uint32_t k = 0; k < b->n_warps; k++) {
        struct warp *w = &b->warps[k];
        struct copy_queue *q = w->copies;
        if (!q || q->n == 0) continue;
        uint32_t before[LANES] = {0}; /* copies of a lane up to its last tied arrival */
        for (uint32_t i = 0; i < q->n; i++)
            if (q->items[i].kind == COPY_ARRIVE && q->items[i].mbarrier == at)
                before[q->items[i].lane] = i + 1;
        uint32_t left = 0;
        for (uint32_t i = 0; i < q->n; i++) {
            const struct copy c = q->items[i];
            const bool due = c.kind == COPY_BULK_IN
                                 ? c.mbarrier == at
                                 : c.kind != COPY_BULK_OUT && i < before[c.lane] &&
                                       (c.kind == COPY_CP || c.mbarrier == at);
            if (due)
                land(w, &c);
            else
                q->items[left++] = c;
        }
        q->n = left;
    }
}

const struct op *op_cp_async(struct warp *w, const struct op *op) {
    uint64_t from[LANES], to[LANES];
    uint8_t *host_from[LANES], *host_to[LANES];
    const int32_t *list = w->image->places + op->list;
    struct op target = *op; /* the destination's address, for the same machinery */
    target.a = list[0];
    target.imm = list[1];
    target.flags = list[2] ? OP_ADDRESS_32 : 0;
    access_addresses(w, &target, to);
    if (!access_resolve(w, op, PTX_SPACE_SHARED, to, op->width, true, host_to))
        return warp_abort(w, op);
    const uint32_t whole = w->exec, ignored = op->e == NO_PLACE ? 0 : pred_in(w, op->e);
    const u32x *sizes = in_place(w, op->b);
    uint32_t reading = 0;
    for (uint32_t m = whole & ~ignored; m; m &= m - 1)
        if (sizes[first_lane(m)]) reading |= 1u << first_lane(m);
    if (w->poison) {
        undefined_use(w, op, list[0], whole, list[2] ? 4 : 8, "an address");
        undefined_use(w, op, op->a, reading, 8, "an address");
        undefined_use(w, op, op->b, whole, 4, "a size");
    }
    if (reading) {
        w->exec = reading;
        access_addresses(w, op, from);
        const bool good =
            access_resolve(w, op, PTX_SPACE_GLOBAL, from, op->width, false, host_from);
        if (good && w->block->launch->count_memory)
            traffic_global(w->worker, from, reading, op->width, false);
        w->exec = whole;
        if (!good) return warp_abort(w, op);
    }
    if (w->block->launch->count_memory) traffic_shared(w->worker, to, whole, op->width);
    for (uint32_t m = whole; m; m &= m - 1) {
        const uint32_t l = first_lane(m), size = reading >> l & 1 ? sizes[l] : 0;
        if (size > op->width) {
            report(w, op, FINDING_OUT_OF_BOUNDS, l, from[l], "a copy of %u bytes reads %u",
                   op->width, size);
            return warp_abort(w, op);
        }
        const struct copy c = {.op = op,
                               .kind = COPY_CP,
                               .lane = (uint8_t)l,
                               .width = op->width,
                               .bytes = size,
                               .group = queue(w) ? w->copies->committed[l] : 0,
                               .to = to[l],
                               .from = size ? from[l] : 0,
                               .host_to = host_to[l],
                               .host_from = size ? host_from[l] : host_to[l],
                               .mbarrier = UINT32_MAX};
        if (!push(w, &c)) return out_of_memory(w, op);
        if (!w->poison) continue;
        mark_pending(w->block, (uint32_t)to[l], op->width, 1);
        if (size) (void)track_read_lane(w, op, PTX_SPACE_GLOBAL, l, from[l], size);
    }
    return op + 1;
}

const struct op *op_cp_async_commit(struct warp *w, const struct op *op) {
    struct copy_queue *q = queue(w);
    if (!q) return out_of_memory(w, op);
    for (uint32_t m = w->exec; m; m &= m - 1) q->committed[first_lane(m)]++;
    return op + 1;
}

const struct op *op_cp_async_wait(struct warp *w, const struct op *op) {
    land_groups(w, w->exec, false, op->imm);
    return op + 1;
}

const struct op *op_bulk_commit(struct warp *w, const struct op *op) {
    struct copy_queue *q = queue(w);
    if (!q) return out_of_memory(w, op);
    for (uint32_t m = w->exec; m; m &= m - 1) q->bulk_committed[first_lane(m)]++;
    return op + 1;
}

const struct op *op_bulk_wait(struct warp *w, const struct op *op) {
    land_groups(w, w->exec, true, op->imm);
    return op + 1;
}

/* One address operand of a bulk copy, of one lane; generic addresses are brought to their space. */
static uint64_t bulk_address(const struct warp *w, const struct op *op, uint32_t i, uint32_t lane) {
    const int32_t *list = w->image->places + op->list;
    const uint64_t offset = (uint64_t)(int64_t)list[3 + i];
    if (list[6 + i]) return ((const u32x *)in_place(w, list[i]))[lane] + (uint32_t)offset;
    return ((const u64x *)in_place(w, list[i]))[lane] + offset;
}

const struct op *op_bulk_copy(struct warp *w, const struct op *op) {
    const uint32_t whole = w->exec;
    const bool in = op->kind == BULK_TO_SHARED;
    for (uint32_t m = whole; m; m &= m - 1) {
        const uint32_t l = first_lane(m), bytes = ((const u32x *)in_place(w, op->c))[l];
        const uint64_t to = bulk_address(w, op, 0, l), from = bulk_address(w, op, 1, l);
        const uint64_t bar = in ? bulk_address(w, op, 2, l) : 0;
        if (bytes == 0 || bytes % 16 || to % 16 || from % 16) {
            report(w, op, FINDING_MISALIGNED, l, to % 16 ? to : from,
                   "a bulk copy of %u bytes from %#llx to %#llx: all must be multiples of 16",
                   bytes, (unsigned long long)from, (unsigned long long)to);
            return warp_abort(w, op);
        }
        uint8_t *first_to = NULL, *first_from = NULL;
        w->exec = 1u << l;
        for (uint32_t i = 0; i < bytes; i += 16) {
            uint64_t a[LANES], b[LANES];
            uint8_t *host_a[LANES], *host_b[LANES];
            for (uint32_t k = 0; k < LANES; k++) {
                a[k] = to + i;
                b[k] = from + i;
            }
            if (!access_resolve(w, op, in ? PTX_SPACE_SHARED : PTX_SPACE_GLOBAL, a, 16, true,
                                host_a) ||
                !access_resolve(w, op, in ? PTX_SPACE_GLOBAL : PTX_SPACE_SHARED, b, 16, false,
                                host_b))
                return warp_abort(w, op);
            if (i == 0) {
                first_to = host_a[l];
                first_from = host_b[l];
            } else if (host_a[l] != first_to + i || host_b[l] != first_from + i) {
                report(w, op, FINDING_OUT_OF_BOUNDS, l, in ? from + i : to + i,
                       "a bulk copy crosses from one allocation into another");
                return warp_abort(w, op);
            }
        }
        w->exec = whole;
        const struct copy c = {.op = op,
                               .kind = in ? COPY_BULK_IN : COPY_BULK_OUT,
                               .lane = (uint8_t)l,
                               .bytes = bytes,
                               .group = queue(w) ? w->copies->bulk_committed[l] : 0,
                               .to = to,
                               .from = from,
                               .host_to = first_to,
                               .host_from = first_from,
                               .mbarrier = (uint32_t)bar};
        if (!push(w, &c)) return out_of_memory(w, op);
        if (w->poison && in) mark_pending(w->block, (uint32_t)to, bytes, 1);
    }
    return op + 1;
}

static bool valid(struct warp *w, const struct op *op, uint32_t lane, uint32_t at) {
    const uint64_t v = get(w->block, at);
    const bool undefined = w->poison && w->block->shared_poison[at];
    if (!undefined && (v >> COUNT_BITS & COUNT_MASK)) return true;
    report(w, op, FINDING_MBARRIER, lane, at, "an mbarrier that is not initialised");
    return false;
}

static void store_state(struct warp *w, const struct op *op, uint32_t lane, uint64_t state) {
    if (op->d == NO_PLACE) return;
    ((u64x *)out_place(w, op->d))[lane] = state;
    if (w->poison) poison_out(w, op->d)[lane] = 0;
}

const struct op *op_mbarrier(struct warp *w, const struct op *op) {
    const enum mbarrier_kind kind = (enum mbarrier_kind)op->kind;
    const u32x *count = in_place(w, op->b);
    const u64x *state = in_place(w, op->b);
    if (kind == MBARRIER_PENDING) {
        for (uint32_t m = w->exec; m; m &= m - 1) {
            const uint32_t l = first_lane(m);
            ((u32x *)out_place(w, op->d))[l] = (uint32_t)(state[l] & COUNT_MASK);
            if (w->poison) poison_out(w, op->d)[l] = poison_in(w, op->b)[l] ? 0xff : 0;
        }
        return op + 1;
    }
    uint64_t address[LANES];
    uint8_t *host[LANES];
    access_addresses(w, op, address);
    if (!access_resolve(w, op, (enum ptx_space)op->space, address, 8, true, host))
        return warp_abort(w, op);
    uint32_t done = 0;
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        const uint64_t offset = (uint64_t)(host[l] - w->block->shared);
        if (offset >= w->block->shared_bytes) {
            report(w, op, FINDING_MBARRIER, l, address[l], "an mbarrier outside of shared memory");
            return warp_abort(w, op);
        }
        const uint32_t at = (uint32_t)offset;
        if (kind == MBARRIER_INIT) {
            if (count[l] == 0 || count[l] > COUNT_MASK)
                report(w, op, FINDING_MBARRIER, l, at, "an mbarrier for %u arrivals", count[l]);
            if (w->poison) track_write_lane(w, op, PTX_SPACE_SHARED, l, at, 8, 0);
            put(w->block, at, pack(0, TX_ZERO, count[l], count[l]));
            made_progress(w->worker);
            continue;
        }
        if (!valid(w, op, l, at)) return warp_abort(w, op);
        const uint64_t v = get(w->block, at);
        const bool test = kind >= MBARRIER_TEST && kind <= MBARRIER_TRY_PARITY;
        if (w->poison && !test && kind != MBARRIER_EXPECT && kind != MBARRIER_INVAL)
            races_release(w, l, at, true, true, true, SCOPE_CTA);
        switch (kind) {
        case MBARRIER_INVAL:
            put(w->block, at, 0);
            break;
        case MBARRIER_ARRIVE:
            store_state(w, op, l, v);
            settle(w, op, l, at, count[l], 0, 0);
            break;
        case MBARRIER_ARRIVE_DROP:
            store_state(w, op, l, v);
            settle(w, op, l, at, count[l], 0, count[l]);
            break;
        case MBARRIER_ARRIVE_EXPECT:
            store_state(w, op, l, v);
            settle(w, op, l, at, 0, count[l], 0);
            settle(w, op, l, at, 1, 0, 0);
            break;
        case MBARRIER_EXPECT:
            settle(w, op, l, at, 0, count[l], 0);
            break;
        case MBARRIER_COPIES:
        case MBARRIER_COPIES_NOINC: {
            if (kind == MBARRIER_COPIES) put(w->block, at, v + 1);
            const struct copy c = {
                .op = op, .kind = COPY_ARRIVE, .lane = (uint8_t)l, .mbarrier = at};
            if (!push(w, &c)) return out_of_memory(w, op);
            break;
        }
        default: {
            land_mbarrier(w->block, at);
            const uint64_t phase = get(w->block, at) >> 63;
            const bool parity = kind == MBARRIER_TEST_PARITY || kind == MBARRIER_TRY_PARITY;
            const bool over = phase != (parity ? count[l] & 1 : state[l] >> 63);
            done |= (uint32_t)over << l;
            if (over && w->poison) races_acquire(w, l, at, true, true, SCOPE_CTA);
            break;
        }
        }
    }
    if (kind >= MBARRIER_TEST && kind <= MBARRIER_TRY_PARITY) {
        pred_out(w, op->d, w->exec, done);
        if (w->poison) *(u32x *)out_place(w, op->d + 4) &= ~w->exec;
        if (done != w->exec && w->fuel > 0) w->fuel = 0; /* let others come first */
    }
    return op + 1;
}
