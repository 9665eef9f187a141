/* The cost model: tiles, occupancy and grids from the spec and the device's table. It is arithmetic
 * on the CPU and decides only speed. */
#include <string.h>

#include "core/check.h"
#include "jit/kernel.h"
#include "jit/repack.h"

static const struct named_device {
    const char *name;
    struct kernel_device device;
} devices[] = {
    /* Limits: CUDA C++ Programming Guide, "Compute Capabilities"; SM counts and L2: data sheets. */
    {"T4", {75, 40, 64 << 10, 64 << 10, 65536, 1024, 16, 4 << 20, 0}},
    {"A100", {80, 108, 163 << 10, 164 << 10, 65536, 2048, 32, 40 << 20, 0}},
    {"RTX 3090", {86, 82, 99 << 10, 100 << 10, 65536, 1536, 16, 6 << 20, 0}},
    {"Orin", {87, 16, 163 << 10, 164 << 10, 65536, 1536, 16, 4 << 20, 0}},
    {"L4", {89, 58, 99 << 10, 100 << 10, 65536, 1536, 24, 48 << 20, 0}},
    {"L40S", {89, 142, 99 << 10, 100 << 10, 65536, 1536, 24, 96 << 20, 0}},
    {"RTX 4090", {89, 128, 99 << 10, 100 << 10, 65536, 1536, 24, 72 << 20, 0}},
    {"H100", {90, 132, 227 << 10, 228 << 10, 65536, 2048, 32, 50 << 20, 1}},
    {"H200", {90, 132, 227 << 10, 228 << 10, 65536, 2048, 32, 60 << 20, 1}},
    {"B200", {100, 148, 227 << 10, 228 << 10, 65536, 2048, 32, 126 << 20, 1}},
    {"Thor", {110, 20, 227 << 10, 228 << 10, 65536, 1536, 24, 32 << 20, 1}},
    {"RTX 5090", {120, 170, 99 << 10, 100 << 10, 65536, 1536, 24, 96 << 20, 1}},
    {"Spark", {121, 48, 99 << 10, 100 << 10, 65536, 1536, 24, 24 << 20, 1}},
};

const struct kernel_device *kernel_device_at(uint32_t i, const char **name) {
    if (i >= sizeof devices / sizeof *devices) return NULL;
    *name = devices[i].name;
    return &devices[i].device;
}

const struct kernel_device *kernel_device_find(const char *name) {
    for (uint32_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (strcmp(devices[i].name, name) == 0) return &devices[i].device;
    return NULL;
}

static uint32_t smaller(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}
static uint32_t ceil_div(uint32_t a, uint32_t b) {
    return (a + b - 1) / b;
}

uint32_t kernel_occupancy(const struct kernel_device *device, const struct kernel_config *config,
                          const struct kernel_usage *usage) {
    const uint32_t threads = config->warps * 32;
    uint32_t fit = smaller(device->threads_per_sm / threads, device->blocks_per_sm);
    /* Registers are handed out by the warp, in units of 8 a thread; 1 KB of every block's shared
     * memory is the system's. */
    if (usage != NULL) {
        const uint32_t per_thread = (usage->registers + 7) / 8 * 8;
        if (per_thread > 0) fit = smaller(fit, device->registers_per_sm / (per_thread * threads));
        const uint32_t shared = config->shared_bytes + usage->shared_static_bytes + 1024;
        fit = smaller(fit, device->shared_per_sm / shared);
    } else {
        fit = smaller(fit, config->blocks_per_sm);
    }
    return fit;
}

/* CTAs of a persistent kernel over `tiles`: as few as give the same number of waves. */
static uint32_t persistent_grid(uint32_t tiles, uint32_t resident) {
    const uint32_t waves = ceil_div(tiles, resident > 0 ? resident : 1);
    return ceil_div(tiles, waves > 0 ? waves : 1);
}

static uint32_t bucket_of(uint32_t n_rows) {
    uint32_t r = 1;
    while (r < n_rows && r < 64) r *= 2;
    return r;
}

/* Static shared bytes of a matmul: the sums of a tile, and what its epilogue keeps. */
static uint32_t part_bytes(uint32_t panels, uint32_t splits, uint32_t rows) {
    return panels * splits * rows * 20 * 4; /* PART_STRIDE */
}

enum { SHARED_STATIC_MOST = 48 << 10, NORM_STATIC = 64 * 8 * 4, SHARED_SYSTEM = 1024 };

static uint32_t splits_of(enum tensor_type format, uint32_t k) {
    return ceil_div(ceil_div(k, 64), kernel_split_pairs(format, k));
}

/* How many CTAs of 256 threads shall share an SM, by the registers that a variant needs. */
static uint32_t wished_blocks(uint32_t variant, enum tensor_type format, uint32_t rows) {
    if (variant == KERNEL_WIDE) return 1;
    if (variant == KERNEL_MMA && rows > 16) return 1;
    if (variant == KERNEL_MMA) return rows > 8 || format == TENSOR_Q6_K ? 2 : 3;
    return rows > 1 ? 2 : 3;
}

/* Room for the CTAs wished for, given what one takes; at least one must fit. */
static bool fit_shared(const struct kernel_device *device, struct kernel_config *c,
                       uint32_t static_bytes) {
    const uint32_t each = c->shared_bytes + static_bytes;
    if (static_bytes > SHARED_STATIC_MOST || each > device->shared_per_block) return false;
    c->blocks_per_sm = smaller(c->blocks_per_sm, device->shared_per_sm / (each + SHARED_SYSTEM));
    c->blocks_per_sm = smaller(c->blocks_per_sm, device->threads_per_sm / (c->warps * 32));
    return c->blocks_per_sm > 0;
}

static bool is_half(uint32_t format) {
    return format == TENSOR_F16 || format == TENSOR_BF16;
}

static uint32_t matmul_variant(uint32_t format, uint32_t rows) {
    /* A pair of blocks of 16 outputs costs dp4a about 30 + 28 rows instructions of a warp, mma 90
     * and 45 for every further 8 rows. */
    if (rows <= 2 && !is_half(format)) return KERNEL_DP4A;
    return rows <= 32 ? KERNEL_MMA : KERNEL_WIDE;
}

/* Panels of a tile: the barriers and the epilogue of a tile cost about 0.3 of a panel, larger tiles
 * leave CTAs idle in the last wave. */
static uint32_t matmul_panels(uint32_t panels, uint32_t resident, uint32_t splits, uint32_t rows) {
    uint32_t best = 1, least = UINT32_MAX;
    for (uint32_t t = 1; t <= 4; t *= 2) {
        const uint32_t cost = ceil_div(ceil_div(panels, t), resident) * (10 * t + 3);
        if (cost < least && part_bytes(t, splits, rows) <= 20 << 10) {
            least = cost;
            best = t;
        }
    }
    return best;
}

static enum status choose_matmul(const struct matmul_spec *m, const struct kernel_device *device,
                                 uint32_t n_rows, const struct kernel_usage *usage,
                                 struct kernel_config *c, struct error *e) {
    const enum tensor_type format = (enum tensor_type)m->format;
    const uint32_t panels = ceil_div(m->n, KERNEL_PANEL_ROWS), splits = splits_of(format, m->k);
    const bool planes_out = m->epilogue == KERNEL_OUT_GATED_PLANES;
    if (m->format == TENSOR_BF16 && device->cc < 80)
        return error_set(e, STATUS_UNSUPPORTED, "matmul", "no BF16 below compute capability 8.0");
    c->warps = 8;
    c->tile_rows = bucket_of(n_rows);
    c->variant = matmul_variant(m->format, c->tile_rows);
    if (c->variant == KERNEL_MMA && c->tile_rows < 8) c->tile_rows = 8;
    c->tile_panels = 1;
    if (planes_out) c->tile_panels = 4;
    if (c->variant == KERNEL_WIDE) c->tile_panels = 8;
    c->blocks_per_sm = wished_blocks(c->variant, format, c->tile_rows);
    if (c->variant != KERNEL_WIDE && !planes_out)
        c->tile_panels =
            matmul_panels(panels, device->n_sms * c->blocks_per_sm, splits, c->tile_rows);
    uint32_t fixed =
        part_bytes(c->tile_panels, c->variant == KERNEL_WIDE ? 1 : splits, c->tile_rows);
    if (planes_out) fixed += c->tile_rows * 128;
    if (m->input == KERNEL_IN_NORM) {
        fixed += c->tile_rows * 32;
        c->shared_bytes = c->tile_rows * (uint32_t)kernel_planes_bytes(m->k, m->activation_bits);
    }
    if (!fit_shared(device, c, fixed) || (m->input == KERNEL_IN_NORM && c->variant == KERNEL_WIDE))
        return error_set(e, STATUS_UNSUPPORTED, "matmul",
                         "no tile of %u rows x %u inputs fits (epilogue %u, input %u)", n_rows,
                         m->k, m->epilogue, m->input);
    const uint32_t resident =
        device->n_sms * (usage != NULL ? kernel_occupancy(device, c, usage) : c->blocks_per_sm);
    c->grid = persistent_grid(ceil_div(panels, c->tile_panels), resident);
    return STATUS_OK;
}

static enum status choose_ffn(const struct ffn_spec *m, const struct kernel_device *device,
                              uint32_t n_rows, const struct kernel_usage *usage,
                              struct kernel_config *c, struct error *e) {
    const uint32_t splits = splits_of((enum tensor_type)m->format, m->k);
    const uint32_t down_splits = splits_of((enum tensor_type)m->down_format, m->n);
    c->warps = 8;
    c->tile_rows = bucket_of(n_rows);
    c->variant = matmul_variant(m->format, c->tile_rows);
    if (c->variant == KERNEL_MMA && c->tile_rows < 8) c->tile_rows = 8;
    /* Many rows: all splits of a panel in a warp, for the sums of eight panels leave no room. */
    const bool many = m->input == KERNEL_IN_PLANES;
    if (many) c->variant = KERNEL_WIDE;
    if (many && c->tile_rows < 32) c->tile_rows = 32;
    c->tile_panels = many ? 8 : 4;
    c->blocks_per_sm = wished_blocks(c->variant, (enum tensor_type)m->format, c->tile_rows);
    /* Six bits, and the compiler for other than 8.x and 9.x, need more than the 80 registers that
     * three CTAs leave. */
    const bool large = m->down_format == TENSOR_Q6_K || device->cc < 80 || device->cc > 90;
    if (large && c->blocks_per_sm > 2) c->blocks_per_sm = 2;
    c->shared_bytes =
        many ? 0 : c->tile_rows * (uint32_t)kernel_planes_bytes(m->k, m->activation_bits);
    uint32_t fixed = part_bytes(c->tile_panels, many ? 1 : splits, c->tile_rows);
    if (!many && part_bytes(1, down_splits, c->tile_rows) > fixed)
        fixed = part_bytes(1, down_splits, c->tile_rows);
    fixed += many ? 64 : c->tile_rows * 32;
    /* Planes of one kind between the phases. */
    const bool mixed = is_half(m->format) != is_half(m->down_format);
    if (mixed || (m->format == TENSOR_BF16 && device->cc < 80) ||
        (!many && (n_rows > 16 || m->next_bits != 0)) || !fit_shared(device, c, fixed))
        return error_set(e, STATUS_UNSUPPORTED, "ffn", "no tile of %u rows x %u inputs fits",
                         n_rows, m->k);
    /* All CTAs wait for each other: never more than are resident. */
    uint32_t resident = c->blocks_per_sm;
    if (usage != NULL) resident = smaller(resident, kernel_occupancy(device, c, usage));
    if (resident == 0)
        return error_set(e, STATUS_UNSUPPORTED, "ffn", "no CTA of this kernel fits on an SM");
    const uint32_t gate_tiles = ceil_div(m->n, 32), down_tiles = ceil_div(m->k, 16);
    const uint32_t most = gate_tiles > down_tiles ? gate_tiles : down_tiles;
    /* Many rows are one kernel for all buckets from 64 on. */
    c->grid = many ? device->n_sms * resident : smaller(most, device->n_sms * resident);
    return STATUS_OK;
}

static enum status choose_attention(const struct attention_spec *a,
                                    const struct kernel_device *device, bool walk,
                                    const struct kernel_usage *usage, struct kernel_config *c,
                                    struct error *e) {
    const uint32_t group = a->n_heads / a->n_kv_heads;
    CHECK(!a->gated || a->window == 0);
    c->warps = 8;
    c->variant = walk ? KERNEL_WALK : KERNEL_SPLIT;
    /* Queries (rows x heads of a group) share the keys they load; more than 32 do not fit in
     * registers. */
    c->tile_rows = 1;
    if (walk)
        while (c->tile_rows * 2 * group <= (a->head_dim > 128 ? 16 : 32) && c->tile_rows < 16)
            c->tile_rows *= 2;
    for (;; c->tile_rows /= 2) {
        const uint32_t queries = c->tile_rows * group;
        const uint32_t padded = (queries + 3) / 4 * 4;
        /* q, e, group sums (split) or running sums (walk), maxima. */
        const uint32_t floats = a->head_dim * padded + KERNEL_ATTENTION_BLOCK * padded +
                                (walk ? queries * a->head_dim : 8 * queries * a->head_dim) +
                                24 * padded;
        c->shared_bytes = floats * 4;
        c->blocks_per_sm = queries > 16 || (walk && queries > 8) ? 1 : 2;
        if (fit_shared(device, c, 256)) break;
        if (c->tile_rows == 1)
            return error_set(e, STATUS_UNSUPPORTED, "attention",
                             "%u heads of %u over %u KV heads do not fit in shared memory",
                             a->n_heads, a->head_dim, a->n_kv_heads);
    }
    const uint32_t resident = usage != NULL ? kernel_occupancy(device, c, usage) : c->blocks_per_sm;
    c->grid = device->n_sms * resident;
    return STATUS_OK;
}

enum status kernel_config_choose(const struct kernel_spec *spec, const struct kernel_device *device,
                                 uint32_t n_rows, bool walk, const struct kernel_usage *usage,
                                 struct kernel_config *out, struct error *e) {
    struct kernel_config c = {.variant = KERNEL_PLAIN, .warps = 8, .blocks_per_sm = 2};
    enum status s = STATUS_OK;
    CHECK(n_rows > 0 && device->n_sms > 0);
    memset(out, 0, sizeof *out);
    switch ((enum kernel_family)spec->family) {
    case KERNEL_MATMUL:
        s = choose_matmul(&spec->matmul, device, n_rows, usage, &c, e);
        break;
    case KERNEL_FFN:
        s = choose_ffn(&spec->ffn, device, n_rows, usage, &c, e);
        break;
    case KERNEL_ATTENTION:
        s = choose_attention(&spec->attention, device, walk, usage, &c, e);
        break;
    case KERNEL_SAMPLER:
        c.warps = 16;
        c.blocks_per_sm = 1;
        break;
    case KERNEL_PAGE_COPY:
        c.grid = device->n_sms * 2;
        break;
    case KERNEL_NORM:
    case KERNEL_EMBED:
    case KERNEL_ROPE_KV:
    case KERNEL_HEADS:
    case KERNEL_PAGE_SEAL:
    case KERNEL_PAGE_CHOOSE:
    case KERNEL_TAP:
        break;
    case KERNEL_FAMILY_COUNT:
        CHECK(false);
    }
    if (s == STATUS_OK) *out = c;
    return s;
}

/* Geometry, and the least that a launch must move and do. */

static uint64_t weight_bytes(uint32_t format, uint32_t n, uint32_t k) {
    return repack_bytes((enum tensor_type)format, n, k);
}

void kernel_launch(const struct kernel_spec *spec, const struct kernel_config *config,
                   const struct kernel_device *device, const struct kernel_usage *usage,
                   uint32_t n_rows, struct kernel_geometry *out) {
    uint32_t grid = config->grid > 0 ? config->grid : n_rows;
    if (config->grid > 0 && usage != NULL) {
        const uint32_t fit = kernel_occupancy(device, config, usage);
        CHECK(fit > 0);
        grid = smaller(grid, device->n_sms * fit);
    }
    struct kernel_geometry g = {
        .grid = {grid, 1, 1}, .block = config->warps * 32, .shared_bytes = config->shared_bytes};
    const uint64_t rows = n_rows;
    switch ((enum kernel_family)spec->family) {
    case KERNEL_MATMUL: {
        const struct matmul_spec *m = &spec->matmul;
        g.grid[1] = ceil_div(n_rows, config->tile_rows);
        g.bytes = weight_bytes(m->format, m->n, m->k) + rows * (m->k * 4 + m->n * 4);
        g.flops = 2 * rows * m->n * m->k;
        break;
    }
    case KERNEL_FFN: {
        const struct ffn_spec *m = &spec->ffn;
        g.bytes = weight_bytes(m->format, 2 * m->n, m->k) +
                  weight_bytes(m->down_format, m->k, m->n) + rows * m->k * 8;
        g.flops = 6 * rows * m->n * m->k;
        break;
    }
    case KERNEL_NORM:
        g.bytes = rows * spec->norm.k * 8;
        g.flops = 4 * rows * spec->norm.k;
        break;
    case KERNEL_EMBED:
        g.bytes = rows * spec->embed.k * 5;
        break;
    case KERNEL_ROPE_KV: {
        const struct rope_kv_spec *r = &spec->rope_kv;
        g.bytes = rows * (r->n_heads * 8 + r->n_kv_heads * 12) * r->head_dim;
        g.flops = rows * 4 * (r->n_heads + r->n_kv_heads) * r->head_dim;
        break;
    }
    case KERNEL_ATTENTION:
        /* Keys and values depend on the positions, which the caller knows: of one block each. */
        g.bytes = rows * 4 * spec->attention.n_kv_heads * spec->attention.head_dim *
                  KERNEL_ATTENTION_BLOCK;
        g.flops =
            rows * 4 * spec->attention.n_heads * spec->attention.head_dim * KERNEL_ATTENTION_BLOCK;
        break;
    case KERNEL_SAMPLER:
        g.bytes = rows * spec->sampler.n * 4;
        break;
    case KERNEL_HEADS:
        g.bytes = (rows + spec->heads.n) * spec->heads.k * 4;
        g.flops = 2 * rows * spec->heads.n * spec->heads.k;
        break;
    case KERNEL_PAGE_COPY:
        g.bytes = 2 * rows * spec->page_copy.page_bytes;
        break;
    case KERNEL_PAGE_SEAL:
        g.bytes = rows * spec->page_seal.n_kv_heads * spec->page_seal.head_dim * 36;
        break;
    case KERNEL_PAGE_CHOOSE:
        /* How many pages there are depends on the positions, which the caller knows: of one. */
        g.grid[1] = spec->page_choose.n_kv_heads;
        g.bytes = rows * spec->page_choose.n_kv_heads * spec->page_choose.head_dim * 4;
        g.flops = rows * spec->page_choose.n_heads * spec->page_choose.head_dim * 4;
        break;
    case KERNEL_TAP:
        g.bytes = rows * spec->tap.k * 8;
        break;
    case KERNEL_FAMILY_COUNT:
        CHECK(false);
    }
    *out = g;
}
