/* Loads and stores: from addresses to host memory, with bounds, rights and alignment checked. */
#include <string.h>

#include "tests/softgpu/run.h"

void access_addresses(const struct warp *w, const struct op *op, uint64_t address[LANES]) {
    const uint64_t offset = (uint64_t)op->imm;
    if (op->flags & OP_ADDRESS_32) {
        const u32x *a = in_place(w, op->a);
        for (uint32_t l = 0; l < LANES; l++) address[l] = (uint32_t)(a[l] + (uint32_t)offset);
    } else {
        const u64x *a = in_place(w, op->a);
        for (uint32_t l = 0; l < LANES; l++) address[l] = a[l] + offset;
    }
    if (w->exec == ~0u) return;
    /* idle lanes follow the first one, so that whole-warp shortcuts hold */
    const uint64_t first = address[first_lane(w->exec)];
    for (uint32_t l = 0; l < LANES; l++)
        if (!(w->exec >> l & 1)) address[l] = first;
}

uint64_t access_generic_space(uint64_t address, enum ptx_space *space) {
    *space = PTX_SPACE_GLOBAL;
    if (address - MEMORY_SHARED_BASE < MEMORY_SPACE_BYTES) {
        *space = PTX_SPACE_SHARED;
        return address - MEMORY_SHARED_BASE;
    }
    if (address - MEMORY_LOCAL_BASE < MEMORY_SPACE_BYTES) {
        *space = PTX_SPACE_LOCAL;
        return address - MEMORY_LOCAL_BASE;
    }
    if (address - MEMORY_PARAM_BASE < MEMORY_SPACE_BYTES) {
        *space = PTX_SPACE_PARAM;
        return address - MEMORY_PARAM_BASE;
    }
    return address;
}

static const char *verb(bool write) {
    return write ? "write" : "read";
}

static uint8_t *shared_lane(struct warp *w, const struct op *op, uint32_t lane, uint64_t address,
                            uint32_t bytes, bool write) {
    const struct launch *l = w->block->launch;
    const struct image_variable *near = NULL;
    for (uint32_t i = 0; i < l->n_shared; i++) {
        const struct image_variable *v = &l->shared[i];
        if (address >= v->base && address - v->base < v->size_bytes &&
            bytes <= v->size_bytes - (address - v->base))
            return w->block->shared + address;
        if (address >= v->base) near = v;
    }
    if (near)
        report(w, op, FINDING_OUT_OF_BOUNDS, lane, address,
               "%s of %u bytes of shared memory at %#llx, %llu bytes into %s of %llu bytes",
               verb(write), bytes, (unsigned long long)address,
               (unsigned long long)(address - near->base), near->name,
               (unsigned long long)near->size_bytes);
    else
        report(w, op, FINDING_OUT_OF_BOUNDS, lane, address,
               "%s of %u bytes of shared memory at %#llx, where nothing is", verb(write), bytes,
               (unsigned long long)address);
    return NULL;
}

static uint8_t *local_lane(struct warp *w, const struct op *op, uint32_t lane, uint64_t address,
                           uint32_t bytes, bool write) {
    const uint64_t at = address - LOCAL_FIRST, size = w->image->local_bytes;
    if (address >= LOCAL_FIRST && at < size && bytes <= size - at)
        return w->local + (size_t)lane * size + at;
    report(w, op, FINDING_OUT_OF_BOUNDS, lane, address,
           "%s of %u bytes of local memory at %#llx, of %llu bytes", verb(write), bytes,
           (unsigned long long)address, (unsigned long long)size);
    return NULL;
}

static uint8_t *param_lane(struct warp *w, const struct op *op, uint32_t lane, uint64_t address,
                           uint32_t bytes, bool write) {
    const struct launch *l = w->block->launch;
    const uint64_t size = l->request->params_bytes;
    if (!write && address < size && bytes <= size - address) return l->params + address;
    report(w, op, write ? FINDING_ACCESS_RIGHTS : FINDING_OUT_OF_BOUNDS, lane, address,
           "%s of %u bytes of kernel parameters at %llu, of %llu bytes", verb(write), bytes,
           (unsigned long long)address, (unsigned long long)size);
    return NULL;
}

static void count_bytes(struct worker *k, const struct memory_range *r, uint64_t bytes,
                        bool write) {
    if (r->index >= k->n_ranges) return;
    if (write)
        k->stored[r->index] += bytes;
    else
        k->loaded[r->index] += bytes;
}

static uint8_t *global_lane(struct warp *w, const struct op *op, uint32_t lane, uint64_t address,
                            uint32_t bytes, bool write) {
    const struct memory_range *r = memory_find(w->block->launch->memory, address);
    if (!r || bytes > r->size_bytes - (address - r->base) || !(write ? r->writable : r->readable)) {
        report_address(w, op, lane, address, bytes, verb(write));
        return NULL;
    }
    struct access_cache *c = &w->worker->cache[op->index];
    *c = (struct access_cache){.base = r->base,
                               .bytes = r->size_bytes,
                               .delta = (uint64_t)(uintptr_t)r->host - r->base,
                               .range = r,
                               .writable = r->writable && r->readable};
    count_bytes(w->worker, r, bytes, write);
    return r->host + (address - r->base);
}

static bool resolve_slowly(struct warp *w, const struct op *op, enum ptx_space space,
                           const uint64_t address[LANES], uint32_t bytes, bool write,
                           uint8_t *host[LANES]) {
    uint8_t *any = NULL;
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        enum ptx_space in = space;
        uint64_t at = address[l];
        if (at % bytes)
            report(w, op, FINDING_MISALIGNED, l, at,
                   "%s of %u bytes at %#llx, which is no multiple", verb(write), bytes,
                   (unsigned long long)at);
        if (space == PTX_SPACE_GENERIC) at = access_generic_space(at, &in);
        switch (in) {
        case PTX_SPACE_SHARED:
            host[l] = shared_lane(w, op, l, at, bytes, write);
            break;
        case PTX_SPACE_LOCAL:
            host[l] = local_lane(w, op, l, at, bytes, write);
            break;
        case PTX_SPACE_PARAM:
            host[l] = param_lane(w, op, l, at, bytes, write);
            break;
        default:
            host[l] = global_lane(w, op, l, at, bytes, write);
            break;
        }
        if (!host[l]) return false;
        any = host[l];
    }
    for (uint32_t l = 0; l < LANES; l++)
        if (!(w->exec >> l & 1)) host[l] = any;
    return true;
}

bool access_resolve(struct warp *w, const struct op *op, enum ptx_space space,
                    const uint64_t address[LANES], uint32_t bytes, bool write,
                    uint8_t *host[LANES]) {
    int64_t low = INT64_MAX, high = INT64_MIN;
    uint64_t bits = 0;
    for (uint32_t l = 0; l < LANES; l++) {
        const int64_t a = (int64_t)address[l];
        low = a < low ? a : low;
        high = a > high ? a : high;
        bits |= address[l];
    }
    if (bits % bytes == 0 && low >= 0) {
        const uint64_t end = (uint64_t)high + bytes;
        const struct access_cache *c = &w->worker->cache[op->index];
        if (space == PTX_SPACE_SHARED) {
            const struct launch *l = w->block->launch;
            for (uint32_t i = 0; i < l->n_shared; i++) {
                const struct image_variable *v = &l->shared[i];
                if ((uint64_t)low < v->base || end > v->base + v->size_bytes) continue;
                for (uint32_t k = 0; k < LANES; k++) host[k] = w->block->shared + address[k];
                return true;
            }
        } else if (space != PTX_SPACE_LOCAL && space != PTX_SPACE_PARAM &&
                   (uint64_t)low >= c->base && end <= c->base + c->bytes &&
                   (!write || c->writable)) {
            for (uint32_t k = 0; k < LANES; k++)
                host[k] = (uint8_t *)(uintptr_t)(address[k] + c->delta);
            count_bytes(w->worker, c->range, (uint64_t)__builtin_popcount(w->exec) * bytes, write);
            return true;
        }
    }
    return resolve_slowly(w, op, space, address, bytes, write, host);
}

static void count_access(struct warp *w, const struct op *op, const uint64_t address[LANES],
                         uint32_t bytes, bool store) {
    if (!w->block->launch->count_memory) return;
    enum ptx_space space = (enum ptx_space)op->space;
    if (space == PTX_SPACE_GENERIC)
        (void)access_generic_space(address[first_lane(w->exec)], &space);
    if (space == PTX_SPACE_SHARED)
        traffic_shared(w->worker, address, w->exec, bytes);
    else if (space == PTX_SPACE_GLOBAL || space == PTX_SPACE_CONST)
        traffic_global(w->worker, address, w->exec, bytes, store);
}

static uint64_t read_element(const uint8_t *p, uint32_t width, bool strong) {
    uint64_t v = 0;
    if (strong && (uintptr_t)p % width == 0) {
        switch (width) {
        case 1:
            return __atomic_load_n(p, __ATOMIC_ACQUIRE);
        case 2:
            return __atomic_load_n((const uint16_t *)(const void *)p, __ATOMIC_ACQUIRE);
        case 4:
            return __atomic_load_n((const u32x *)(const void *)p, __ATOMIC_ACQUIRE);
        case 8:
            return __atomic_load_n((const u64x *)(const void *)p, __ATOMIC_ACQUIRE);
        default:
            break;
        }
    }
    memcpy(&v, p, width);
    return v;
}

static void write_element(uint8_t *p, uint64_t v, uint32_t width, bool strong) {
    if (strong && (uintptr_t)p % width == 0) {
        switch (width) {
        case 1:
            __atomic_store_n(p, (uint8_t)v, __ATOMIC_RELEASE);
            return;
        case 2:
            __atomic_store_n((uint16_t *)(void *)p, (uint16_t)v, __ATOMIC_RELEASE);
            return;
        case 4:
            __atomic_store_n((u32x *)(void *)p, (uint32_t)v, __ATOMIC_RELEASE);
            return;
        case 8:
            __atomic_store_n((u64x *)(void *)p, v, __ATOMIC_RELEASE);
            return;
        default:
            break;
        }
    }
    memcpy(p, &v, width);
}

static uint64_t sign_extended(uint64_t v, uint32_t width) {
    const uint32_t n = 64 - 8 * width;
    return (uint64_t)((int64_t)(v << n) >> n);
}

/* Element e of each lane, at host[l] + e * width, into register `place`. */
static void move_in(struct warp *w, const struct op *op, int32_t place, uint32_t e,
                    uint8_t *const host[LANES]) {
    const uint32_t width = op->width, exec = w->exec;
    const bool strong = op->flags & OP_RELAXED;
    if (width == 16) {
        u64x *d = out_place(w, place);
        for (uint32_t m = exec; m; m &= m - 1) {
            const uint32_t l = first_lane(m);
            memcpy(&d[l], host[l] + 16 * e, 8);
            memcpy(&d[LANES + l], host[l] + 16 * e + 8, 8);
        }
        return;
    }
    if (width == 4 && !(op->flags & OP_WIDE) && !strong) {
        u32x *d = out_place(w, place);
        if (exec == ~0u) {
            for (uint32_t l = 0; l < LANES; l++) memcpy(&d[l], host[l] + 4 * e, 4);
        } else {
            for (uint32_t m = exec; m; m &= m - 1)
                memcpy(&d[first_lane(m)], host[first_lane(m)] + 4 * e, 4);
        }
        return;
    }
    if (width == 8 && !strong) {
        u64x *d = out_place(w, place);
        for (uint32_t m = exec; m; m &= m - 1)
            memcpy(&d[first_lane(m)], host[first_lane(m)] + 8 * e, 8);
        return;
    }
    for (uint32_t m = exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        uint64_t v = read_element(host[l] + width * e, width, strong);
        if (op->flags & OP_SIGNED) v = sign_extended(v, width);
        if (op->flags & OP_WIDE)
            ((u64x *)out_place(w, place))[l] = v;
        else
            ((u32x *)out_place(w, place))[l] = op->sets_wide == 2 ? (uint16_t)v : (uint32_t)v;
    }
}

static void move_out(struct warp *w, const struct op *op, int32_t place, uint32_t e,
                     uint8_t *const host[LANES]) {
    const uint32_t width = op->width;
    const bool strong = op->flags & OP_RELAXED;
    if (width == 16) {
        const u64x *s = in_place(w, place);
        for (uint32_t m = w->exec; m; m &= m - 1) {
            const uint32_t l = first_lane(m);
            memcpy(host[l] + 16 * e, &s[l], 8);
            memcpy(host[l] + 16 * e + 8, &s[LANES + l], 8);
        }
        return;
    }
    if (width == 4 && !(op->flags & OP_WIDE) && !strong) {
        const u32x *s = in_place(w, place);
        for (uint32_t m = w->exec; m; m &= m - 1)
            memcpy(host[first_lane(m)] + 4 * e, &s[first_lane(m)], 4);
        return;
    }
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        const uint64_t v = op->flags & OP_WIDE ? ((const u64x *)in_place(w, place))[l]
                                               : ((const u32x *)in_place(w, place))[l];
        write_element(host[l] + width * e, v, width, strong);
    }
}

/* The poison of a register's lane from that of `width` bytes of memory. */
static uint8_t register_poison(const struct op *op, uint32_t bits) {
    const uint32_t width = op->width;
    uint32_t p = bits & ((1u << width) - 1);
    if ((op->flags & OP_SIGNED) && (p >> (width - 1) & 1)) p |= 0xffu << width;
    return (uint8_t)p;
}

static void poison_in_registers(struct warp *w, const struct op *op, const uint32_t poison[LANES]) {
    const int32_t *list = w->image->places + op->list;
    for (uint32_t e = 0; e < op->n; e++) {
        if (list[e] == NO_PLACE) continue;
        uint8_t *p = poison_out(w, list[e]);
        for (uint32_t m = w->exec; m; m &= m - 1) {
            const uint32_t l = first_lane(m);
            if (op->width == 16) {
                p[l] = (uint8_t)(poison[l] >> 16 * e);
                p[64 + l] = (uint8_t)(poison[l] >> (16 * e + 8));
            } else {
                p[l] = register_poison(op, poison[l] >> op->width * e);
            }
        }
    }
}

static void poison_of_registers(struct warp *w, const struct op *op, uint32_t poison[LANES]) {
    const int32_t *list = w->image->places + op->list;
    memset(poison, 0, LANES * sizeof *poison);
    for (uint32_t e = 0; e < op->n; e++) {
        const uint8_t *p = poison_in(w, list[e]);
        const uint32_t width = op->width == 16 ? 8 : op->width;
        for (uint32_t l = 0; l < LANES; l++) {
            poison[l] |= (p[l] & ((1u << width) - 1)) << op->width * e;
            if (op->width == 16 && list[e] >= 0) poison[l] |= (uint32_t)p[64 + l] << (16 * e + 8);
        }
    }
}

const struct op *op_load(struct warp *w, const struct op *op) {
    uint64_t address[LANES];
    uint8_t *host[LANES];
    const uint32_t bytes = (uint32_t)op->n * op->width;
    const enum ptx_space space = (enum ptx_space)op->space;
    access_addresses(w, op, address);
    if (!access_resolve(w, op, space, address, bytes, false, host)) return warp_abort(w, op);
    count_access(w, op, address, bytes, false);
    if (w->poison) {
        uint32_t poison[LANES];
        track_read(w, op, space, address, bytes, poison);
        poison_in_registers(w, op, poison);
    }
    if (op->n == 1) {
        if (op->d != NO_PLACE) move_in(w, op, op->d, 0, host);
        return op + 1;
    }
    const int32_t *list = w->image->places + op->list;
    for (uint32_t e = 0; e < op->n; e++)
        if (list[e] != NO_PLACE) move_in(w, op, list[e], e, host);
    return op + 1;
}

const struct op *op_store(struct warp *w, const struct op *op) {
    uint64_t address[LANES];
    uint8_t *host[LANES];
    const uint32_t bytes = (uint32_t)op->n * op->width;
    const enum ptx_space space = (enum ptx_space)op->space;
    access_addresses(w, op, address);
    if (!access_resolve(w, op, space, address, bytes, true, host)) return warp_abort(w, op);
    count_access(w, op, address, bytes, true);
    if (w->poison) {
        uint32_t poison[LANES];
        poison_of_registers(w, op, poison);
        track_write(w, op, space, address, bytes, poison);
    }
    const int32_t *list = w->image->places + op->list;
    for (uint32_t e = 0; e < op->n; e++) move_out(w, op, list[e], e, host);
    made_progress(w->worker);
    return op + 1;
}

/* The memory of a parameter: the kernel's, the same for all lanes, or an area of the registers. */
static uint8_t *param_base(struct warp *w, const struct op *op, uint32_t lane) {
    if (op->a == NO_PLACE) return w->block->launch->params + op->imm;
    return (uint8_t *)out_place(w, op->a) + (size_t)lane * op->target + op->imm;
}

static uint32_t area_poison(const struct warp *w, int32_t area, uint32_t at, uint32_t bytes) {
    uint32_t bits = 0;
    for (uint32_t i = 0; i < bytes; i++) {
        const uint32_t byte = (uint32_t)area + at + i;
        bits |= (uint32_t)(w->poison[byte / 4] >> byte % 4 & 1) << i;
    }
    return bits;
}

static void set_area_poison(struct warp *w, int32_t area, uint32_t at, uint32_t bytes,
                            uint32_t bits) {
    for (uint32_t i = 0; i < bytes; i++) {
        const uint32_t byte = (uint32_t)area + at + i;
        uint8_t *p = &w->poison[byte / 4];
        *p = (uint8_t)((*p & ~(1u << byte % 4)) | (bits >> i & 1) << byte % 4);
    }
}

const struct op *op_load_param(struct warp *w, const struct op *op) {
    uint8_t *host[LANES];
    for (uint32_t l = 0; l < LANES; l++) host[l] = param_base(w, op, l);
    const int32_t *list = w->image->places + op->list;
    if (w->poison) {
        uint32_t poison[LANES] = {0};
        const uint32_t bytes = (uint32_t)op->n * op->width;
        for (uint32_t l = 0; l < LANES && op->a != NO_PLACE; l++)
            poison[l] = area_poison(w, op->a, l * op->target + (uint32_t)op->imm, bytes);
        poison_in_registers(w, op, poison);
    }
    for (uint32_t e = 0; e < op->n; e++)
        if (list[e] != NO_PLACE) move_in(w, op, list[e], e, host);
    return op + 1;
}

const struct op *op_store_param(struct warp *w, const struct op *op) {
    uint8_t *host[LANES];
    for (uint32_t l = 0; l < LANES; l++) host[l] = param_base(w, op, l);
    const int32_t *list = w->image->places + op->list;
    if (w->poison) {
        uint32_t poison[LANES];
        poison_of_registers(w, op, poison);
        for (uint32_t m = w->exec; m; m &= m - 1) {
            const uint32_t l = first_lane(m);
            set_area_poison(w, op->a, l * op->target + (uint32_t)op->imm,
                            (uint32_t)op->n * op->width, poison[l]);
        }
    }
    for (uint32_t e = 0; e < op->n; e++) move_out(w, op, list[e], e, host);
    return op + 1;
}

/* An argument from the caller's area to the callee's, or a result back. */
const struct op *op_copy_area(struct warp *w, const struct op *op) {
    const uint32_t bytes = (uint32_t)op->imm, stride = op->target;
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t at = first_lane(m) * stride;
        memcpy((uint8_t *)out_place(w, op->d) + at, (const uint8_t *)in_place(w, op->a) + at,
               bytes);
        for (uint32_t i = 0; w->poison && i < bytes; i += 16) {
            const uint32_t n = bytes - i < 16 ? bytes - i : 16;
            set_area_poison(w, op->d, at + i, n, area_poison(w, op->a, at + i, n));
        }
    }
    return op + 1;
}

const struct op *op_isspacep(struct warp *w, const struct op *op) {
    const u64x *a = in_place(w, op->a);
    uint32_t r = 0;
    for (uint32_t l = 0; l < LANES; l++) {
        enum ptx_space space;
        (void)access_generic_space(a[l], &space);
        r |= (uint32_t)(space == op->space) << l;
    }
    pred_out(w, op->d, w->exec, r);
    return op + 1;
}

const struct op *op_fence(struct warp *w, const struct op *op) {
    /* a fence that the thread sanitizer understands: all of them are one chain */
    atomic_fetch_add(&w->block->launch->fences, 1);
    for (uint32_t m = w->poison ? w->exec : 0; m; m &= m - 1)
        races_fence(w, first_lane(m), (enum op_scope)op->scope);
    return op + 1;
}

/* Row r of matrix i is 16 bytes at the address in lane 8 i + r. Lane t holds the row t / 4, columns
 * 2 (t % 4) and the next; with .trans, rows and columns change places. */
static bool matrix_rows(struct warp *w, const struct op *op, bool write, uint64_t address[LANES],
                        uint8_t *host[LANES]) {
    const uint32_t whole = w->exec;
    access_addresses(w, op, address);
    w->exec = op->n == 4 ? ~0u : (1u << 8 * op->n) - 1;
    const bool good = access_resolve(w, op, (enum ptx_space)op->space, address, 16, write, host);
    if (good && w->block->launch->count_memory)
        for (uint32_t i = 0; i < op->n; i++) traffic_shared(w->worker, address, 0xffu << 8 * i, 16);
    w->exec = whole;
    return good;
}

static uint32_t matrix_lanes(struct warp *w, const struct op *op, const struct op **next) {
    static const u32x all[LANES] = {[0 ... LANES - 1] = ~0u};
    const uint32_t lanes = warp_sync(w, op, all, next);
    if (lanes && lanes != ~0u) {
        report(w, op, FINDING_WARP_SYNC, first_lane(lanes), 0,
               "only lanes %08x run an operation of the whole warp", lanes);
        *next = warp_abort(w, op);
        return 0;
    }
    return lanes;
}

const struct op *op_ldmatrix(struct warp *w, const struct op *op) {
    const struct op *next;
    if (!matrix_lanes(w, op, &next)) return next;
    uint64_t address[LANES];
    uint8_t *host[LANES];
    uint32_t poison[LANES] = {0};
    if (!matrix_rows(w, op, false, address, host)) return warp_abort(w, op);
    const int32_t *list = w->image->places + op->list;
    if (w->poison) {
        w->exec = op->n == 4 ? ~0u : (1u << 8 * op->n) - 1;
        track_read(w, op, (enum ptx_space)op->space, address, 16, poison);
        w->exec = ~0u;
    }
    for (uint32_t i = 0; i < op->n; i++) {
        u32x *d = out_place(w, list[i]);
        for (uint32_t t = 0; t < LANES; t++) {
            uint16_t v[2];
            uint32_t p = 0;
            for (uint32_t k = 0; k < 2; k++) {
                const uint32_t row = op->flags & OP_TRANS ? 2 * (t % 4) + k : t / 4;
                const uint32_t column = op->flags & OP_TRANS ? t / 4 : 2 * (t % 4) + k;
                memcpy(&v[k], host[8 * i + row] + 2 * column, 2);
                p |= (poison[8 * i + row] >> 2 * column & 3) << 2 * k;
            }
            d[t] = v[0] | (uint32_t)v[1] << 16;
            if (w->poison) poison_out(w, list[i])[t] = (uint8_t)p;
        }
    }
    return op + 1;
}

const struct op *op_stmatrix(struct warp *w, const struct op *op) {
    const struct op *next;
    if (!matrix_lanes(w, op, &next)) return next;
    uint64_t address[LANES];
    uint8_t *host[LANES];
    uint32_t poison[LANES] = {0};
    if (!matrix_rows(w, op, true, address, host)) return warp_abort(w, op);
    const int32_t *list = w->image->places + op->list;
    for (uint32_t i = 0; i < op->n; i++) {
        const u32x *s = in_place(w, list[i]);
        for (uint32_t t = 0; t < LANES; t++)
            for (uint32_t k = 0; k < 2; k++) {
                const uint32_t row = op->flags & OP_TRANS ? 2 * (t % 4) + k : t / 4;
                const uint32_t column = op->flags & OP_TRANS ? t / 4 : 2 * (t % 4) + k;
                const uint16_t v = (uint16_t)(s[t] >> 16 * k);
                memcpy(host[8 * i + row] + 2 * column, &v, 2);
                if (w->poison)
                    poison[8 * i + row] |= ((uint32_t)poison_in(w, list[i])[t] >> 2 * k & 3u)
                                           << 2 * column;
            }
    }
    if (w->poison) {
        w->exec = op->n == 4 ? ~0u : (1u << 8 * op->n) - 1;
        track_write(w, op, (enum ptx_space)op->space, address, 16, poison);
        w->exec = ~0u;
    }
    made_progress(w->worker);
    return op + 1;
}
