#include <string.h>

#include "tests/softgpu/run.h"

static void pending_copy(struct warp *w, const struct op *op, uint32_t lane, uint32_t address,
                         uint32_t bytes, const char *what) {
    const uint8_t *p = w->block->shared_pending + address;
    for (uint32_t i = 0; i < bytes; i++) {
        if (!p[i]) continue;
        report(w, op, FINDING_ASYNC_COPY, lane, address + i,
               "%s of shared memory at %u, where an async copy has not been waited for", what,
               address + i);
        return;
    }
}

static uint32_t bytes_poison(const uint8_t *p, uint32_t bytes) {
    uint32_t bits = 0;
    for (uint32_t i = 0; i < bytes; i++) bits |= (uint32_t)(p[i] != 0) << i;
    return bits;
}
static void set_bytes_poison(uint8_t *p, uint32_t bytes, uint32_t bits) {
    for (uint32_t i = 0; i < bytes; i++) p[i] = bits >> i & 1;
}

static uint32_t undefined_bits(const struct memory_range *r, uint64_t at, uint32_t bytes) {
    if (!r->defined) return 0;
    uint64_t word;
    memcpy(&word, r->defined + at / 8, sizeof word); /* 16 bytes of slack behind the bits */
    const uint32_t bits = (uint32_t)(~word >> at % 8);
    return bytes >= 32 ? bits : bits & ((1u << bytes) - 1);
}
static void set_defined(const struct memory_range *r, uint64_t at, uint32_t bytes,
                        uint32_t poison) {
    if (!r->defined) return;
    uint64_t word;
    const uint64_t all = bytes >= 32 ? 0xffffffffu : (UINT64_C(1) << bytes) - 1;
    memcpy(&word, r->defined + at / 8, sizeof word);
    word = (word & ~(all << at % 8)) | (~(uint64_t)poison & all) << at % 8;
    memcpy(r->defined + at / 8, &word, sizeof word);
}

static uint8_t *local_poison(struct warp *w, uint32_t lane, uint64_t address) {
    return w->local_poison + (size_t)lane * w->image->local_bytes + (address - LOCAL_FIRST);
}

static uint64_t in_space(enum ptx_space *space, uint64_t address) {
    return *space == PTX_SPACE_GENERIC ? access_generic_space(address, space) : address;
}

uint32_t track_read_lane(struct warp *w, const struct op *op, enum ptx_space space, uint32_t lane,
                         uint64_t address, uint32_t bytes) {
    const uint64_t at = in_space(&space, address);
    if (space == PTX_SPACE_SHARED) {
        pending_copy(w, op, lane, (uint32_t)at, bytes, "a read");
        races_shared(w, op, lane, (uint32_t)at, bytes, ACCESS_READ);
        return bytes_poison(w->block->shared_poison + at, bytes);
    }
    if (space == PTX_SPACE_LOCAL) return bytes_poison(local_poison(w, lane, at), bytes);
    if (space == PTX_SPACE_PARAM) return 0;
    const struct memory_range *r = memory_find(w->block->launch->memory, at);
    if (!r) return 0;
    races_global(w, op, lane, r, at, bytes, ACCESS_READ);
    return undefined_bits(r, at - r->base, bytes);
}

static void write_lane(struct warp *w, const struct op *op, enum ptx_space space, uint32_t lane,
                       uint64_t address, uint32_t bytes, uint32_t poison, enum access_kind kind) {
    const uint64_t at = in_space(&space, address);
    if (space == PTX_SPACE_SHARED) {
        pending_copy(w, op, lane, (uint32_t)at, bytes, "a write");
        races_shared(w, op, lane, (uint32_t)at, bytes, kind);
        set_bytes_poison(w->block->shared_poison + at, bytes, poison);
        return;
    }
    if (space == PTX_SPACE_LOCAL) {
        set_bytes_poison(local_poison(w, lane, at), bytes, poison);
        return;
    }
    const struct memory_range *r = memory_find(w->block->launch->memory, at);
    if (!r) return;
    if (poison)
        report(w, op, FINDING_UNDEFINED, lane, at,
               "undefined bytes (mask %x) are written to global memory at %#llx", poison,
               (unsigned long long)at);
    races_global(w, op, lane, r, at, bytes, kind);
    set_defined(r, at - r->base, bytes, poison);
}

void track_write_lane(struct warp *w, const struct op *op, enum ptx_space space, uint32_t lane,
                      uint64_t address, uint32_t bytes, uint32_t poison) {
    write_lane(w, op, space, lane, address, bytes, poison, ACCESS_WRITE);
}

static void use_address(struct warp *w, const struct op *op) {
    undefined_use(w, op, op->a, w->exec, op->flags & OP_ADDRESS_32 ? 4 : 8, "an address");
}

void track_read(struct warp *w, const struct op *op, enum ptx_space space,
                const uint64_t address[LANES], uint32_t bytes, uint32_t poison[LANES]) {
    memset(poison, 0, LANES * sizeof *poison);
    use_address(w, op);
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        poison[l] = track_read_lane(w, op, space, l, address[l], bytes);
        if (!(op->flags & OP_RELAXED)) continue;
        enum ptx_space in = space;
        const uint64_t at = in_space(&in, address[l]);
        if (in == PTX_SPACE_SHARED || in == PTX_SPACE_GLOBAL)
            races_acquire(w, l, at, in == PTX_SPACE_SHARED, (op->flags & OP_ACQUIRE) != 0,
                          (enum op_scope)op->scope);
    }
}

void track_write(struct warp *w, const struct op *op, enum ptx_space space,
                 const uint64_t address[LANES], uint32_t bytes, const uint32_t poison[LANES]) {
    use_address(w, op);
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        track_write_lane(w, op, space, l, address[l], bytes, poison[l]);
        if (!(op->flags & OP_RELAXED)) continue;
        enum ptx_space in = space;
        const uint64_t at = in_space(&in, address[l]);
        if (in == PTX_SPACE_SHARED || in == PTX_SPACE_GLOBAL)
            races_release(w, l, at, in == PTX_SPACE_SHARED, (op->flags & OP_RELEASE) != 0, false,
                          (enum op_scope)op->scope);
    }
}

void track_atomic(struct warp *w, const struct op *op, enum ptx_space space,
                  const uint64_t address[LANES], uint32_t bytes, uint32_t poison[LANES]) {
    use_address(w, op);
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        enum ptx_space in = space;
        const uint64_t at = in_space(&in, address[l]);
        uint32_t old = 0;
        if (in == PTX_SPACE_SHARED) {
            old = bytes_poison(w->block->shared_poison + at, bytes);
        } else if (in == PTX_SPACE_GLOBAL) {
            const struct memory_range *r = memory_find(w->block->launch->memory, at);
            if (r) old = undefined_bits(r, at - r->base, bytes);
        }
        const uint32_t mask = bytes >= 8 ? 0xff : (1u << bytes) - 1;
        uint32_t new = poison[l] & mask;
        if (old) new |= mask; /* what comes out of an undefined value is undefined */
        races_acquire(w, l, at, in == PTX_SPACE_SHARED, (op->flags & OP_ACQUIRE) != 0,
                      (enum op_scope)op->scope);
        write_lane(w, op, in, l, at, bytes, new, ACCESS_ATOMIC);
        races_release(w, l, at, in == PTX_SPACE_SHARED, (op->flags & OP_RELEASE) != 0, true,
                      (enum op_scope)op->scope);
        poison[l] = old;
    }
}
