#include "jit/repack.h"

#include <string.h>

#include "core/check.h"
#include "jit/kernel.h"

enum { PANEL = KERNEL_PANEL_ROWS };

/* Where the planes of a panel are, in bytes; `unit` is blocks per unit of scales. */
struct panel_layout {
    size_t quant_bytes, high_at, scales_at, d_at, bytes;
    uint32_t n_blocks; /* padded */
    uint32_t unit;
};

static bool layout_of(enum tensor_type type, uint32_t k, struct panel_layout *l) {
    memset(l, 0, sizeof *l);
    const size_t blocks = ((size_t)k + 63) / 64 * 2;
    l->n_blocks = (uint32_t)blocks;
    l->unit = 1;
    size_t scale_bytes;
    switch (type) {
    case TENSOR_Q4_0:
        l->quant_bytes = 16;
        scale_bytes = 2;
        break;
    case TENSOR_Q4_1:
        l->quant_bytes = 16;
        scale_bytes = 4;
        break;
    case TENSOR_Q8_0:
        l->quant_bytes = 32;
        scale_bytes = 2;
        break;
    case TENSOR_Q4_K:
        l->quant_bytes = 16;
        l->unit = 8;
        scale_bytes = 16;
        break;
    case TENSOR_Q6_K:
        l->quant_bytes = 16;
        l->unit = 8;
        scale_bytes = 16;
        break;
    case TENSOR_F16:
    case TENSOR_BF16:
        l->quant_bytes = 64;
        scale_bytes = 0;
        break;
    default:
        return false;
    }
    if (k == 0 || k % (32 * l->unit) != 0) return false;
    const bool six = type == TENSOR_Q6_K;
    l->high_at = blocks * PANEL * l->quant_bytes;
    l->scales_at = l->high_at + (six ? blocks * PANEL * 8 : 0);
    l->d_at = l->scales_at + blocks / l->unit * PANEL * scale_bytes;
    l->bytes = l->d_at + (six ? blocks / l->unit * PANEL * 2 : 0);
    return true;
}

bool repack_supported(enum tensor_type type, uint32_t k) {
    struct panel_layout l;
    return layout_of(type, k, &l);
}

size_t repack_panel_bytes(enum tensor_type type, uint32_t k) {
    struct panel_layout l;
    return layout_of(type, k, &l) ? l.bytes : 0;
}

size_t repack_bytes(enum tensor_type type, uint32_t n, uint32_t k) {
    return ((size_t)n + PANEL - 1) / PANEL * repack_panel_bytes(type, k);
}

/* Nibbles of 32 weights as GGUF keeps them in a block of 32, from a super-block of Q4_K: there 64
 * weights share 32 bytes, the first 32 in the low nibbles. */
static void q4_k_block(const uint8_t *qs, uint32_t b, uint8_t out[16]) {
    const uint8_t *from = qs + b / 2 * 32;
    const int shift = b % 2 * 4;
    for (int i = 0; i < 16; i++)
        out[i] = (uint8_t)((from[i] >> shift & 15) | (from[i + 16] >> shift & 15) << 4);
}

/* Scale and min (6 bits each) of sub-block b from the 12 bytes of Q4_K. */
static void q4_k_scale(const uint8_t *s, uint32_t b, uint8_t *scale, uint8_t *min) {
    if (b < 4) {
        *scale = s[b] & 63;
        *min = s[b + 4] & 63;
    } else {
        *scale = (uint8_t)((s[b + 4] & 15) | (s[b - 4] >> 6) << 4);
        *min = (uint8_t)((s[b + 4] >> 4) | (s[b] >> 6) << 4);
    }
}

/* Weight i (0 .. 31) of block b of a Q6_K super-block, 0 .. 63. */
static uint8_t q6_k_weight(const uint8_t *super, uint32_t b, uint32_t i) {
    const uint32_t half = b / 4, quarter = b % 4;
    const uint8_t low = super[half * 64 + quarter % 2 * 32 + i];
    const uint8_t high = super[128 + half * 32 + i];
    const int nibble = quarter < 2 ? low & 15 : low >> 4;
    return (uint8_t)(nibble | (high >> (2 * quarter) & 3) << 4);
}

static void pack_q6_k(const struct panel_layout *l, const uint8_t *super, uint32_t u, uint32_t row,
                      uint8_t *panel) {
    for (uint32_t b = 0; b < 8; b++) {
        uint8_t *q = panel + ((size_t)(u * 8 + b) * PANEL + row) * 16;
        uint8_t *high = panel + l->high_at + ((size_t)(u * 8 + b) * PANEL + row) * 8;
        memset(high, 0, 8);
        for (uint32_t i = 0; i < 32; i++) {
            const unsigned w = q6_k_weight(super, b, i), at = i % 16;
            if (i < 16)
                q[at] = w & 15;
            else
                q[at] = (uint8_t)(q[at] | (w & 15) << 4);
            const unsigned top = (w >> 4) ^ 2;
            uint8_t *byte = &high[i / 16 * 4 + at % 4];
            *byte = (uint8_t)(*byte | top << (2 * (at / 4)));
        }
    }
    memcpy(panel + l->scales_at + ((size_t)u * PANEL + row) * 16, super + 192, 16);
    memcpy(panel + l->d_at + ((size_t)u * PANEL + row) * 2, super + 208, 2);
}

/* Where the 6 bits of sub-block b are among the 128 of its super-block: even and odd blocks have a
 * word each for their scales and the last min; the other mins share the last word, but for two
 * bits. */
static unsigned q4_k_scale_at(uint32_t b) {
    return 32 + 32 * (b % 2) + 6 * (b / 2);
}
static unsigned q4_k_min_at(uint32_t b) {
    return b / 2 == 3 ? 32 + 32 * (b % 2) + 24 : 96 + 16 * (b % 2) + 6 * (b / 2);
}
static void put_bits(uint8_t *s, unsigned at, unsigned n, unsigned value) {
    for (unsigned i = 0; i < n; i++)
        s[(at + i) / 8] = (uint8_t)(s[(at + i) / 8] | (value >> i & 1) << (at + i) % 8);
}
static unsigned get_bits(const uint8_t *s, unsigned at, unsigned n) {
    unsigned value = 0;
    for (unsigned i = 0; i < n; i++) value |= ((unsigned)s[(at + i) / 8] >> (at + i) % 8 & 1u) << i;
    return value;
}

static void pack_q4_k(const struct panel_layout *l, const uint8_t *super, uint32_t u, uint32_t row,
                      uint8_t *panel) {
    uint8_t *s = panel + l->scales_at + ((size_t)u * PANEL + row) * 16;
    memset(s, 0, 16);
    memcpy(s, super, 4);
    for (uint32_t b = 0; b < 8; b++) {
        uint8_t scale, min;
        q4_k_block(super + 16, b, panel + ((size_t)(u * 8 + b) * PANEL + row) * 16);
        q4_k_scale(super + 4, b, &scale, &min);
        put_bits(s, q4_k_scale_at(b), 6, scale);
        put_bits(s, q4_k_min_at(b), b / 2 == 2 ? 4 : 6, min & (b / 2 == 2 ? 15 : 63));
        if (b / 2 == 2) put_bits(s, 32 + 32 * (b % 2) + 30, 2, min >> 4);
    }
}

/* GGUF bytes of the 32 or 256 weights that are packed at once. */
static size_t unit_bytes(enum tensor_type type, const struct panel_layout *l) {
    return tensor_row_bytes(tensor_format(type), 32 * l->unit);
}

static void pack_block(enum tensor_type type, const struct panel_layout *l, const uint8_t *block,
                       uint32_t u, uint32_t row, uint8_t *panel) {
    const size_t at = (size_t)u * PANEL + row;
    switch (type) {
    case TENSOR_Q4_0:
        for (int i = 0; i < 16; i++) panel[at * 16 + (size_t)i] = block[2 + i] ^ 0x88;
        memcpy(panel + l->scales_at + at * 2, block, 2);
        break;
    case TENSOR_Q4_1:
        memcpy(panel + at * 16, block + 4, 16);
        memcpy(panel + l->scales_at + at * 4, block, 4);
        break;
    case TENSOR_Q8_0:
        for (size_t half = 0; half < 2; half++)
            memcpy(panel + ((size_t)u * 2 + half) * PANEL * 16 + row * 16, block + 2 + half * 16,
                   16);
        memcpy(panel + l->scales_at + at * 2, block, 2);
        break;
    case TENSOR_Q4_K:
        pack_q4_k(l, block, u, row, panel);
        break;
    case TENSOR_Q6_K:
        pack_q6_k(l, block, u, row, panel);
        break;
    case TENSOR_F16:
    case TENSOR_BF16:
        memcpy(panel + at * 64, block, 64);
        break;
    default:
        CHECK(false);
    }
}

void repack_panels(enum tensor_type type, uint32_t n, uint32_t k, const uint8_t *const *rows,
                   uint32_t panel0, uint32_t panel1, uint8_t *dst) {
    struct panel_layout l;
    CHECK(layout_of(type, k, &l));
    const size_t source_bytes = unit_bytes(type, &l);
    const uint32_t units = k / (32 * l.unit);
    for (uint32_t p = panel0; p < panel1; p++) {
        uint8_t *panel = dst + p * l.bytes;
        memset(panel, 0, l.bytes);
        for (uint32_t row = 0; row < PANEL && p * PANEL + row < n; row++) {
            const uint8_t *source = rows[p * PANEL + row];
            for (uint32_t u = 0; source != NULL && u < units; u++)
                pack_block(type, &l, source + u * source_bytes, u, row, panel);
        }
    }
}

/* Back to a GGUF block, whose reference dequantiser then decides the bits. */

static void unpack_block(enum tensor_type type, const struct panel_layout *l, const uint8_t *panel,
                         uint32_t u, uint32_t row, uint8_t *block) {
    const size_t at = (size_t)u * PANEL + row;
    memset(block, 0, unit_bytes(type, l));
    switch (type) {
    case TENSOR_Q4_0:
        memcpy(block, panel + l->scales_at + at * 2, 2);
        for (int i = 0; i < 16; i++) block[2 + i] = panel[at * 16 + (size_t)i] ^ 0x88;
        break;
    case TENSOR_Q4_1:
        memcpy(block, panel + l->scales_at + at * 4, 4);
        memcpy(block + 4, panel + at * 16, 16);
        break;
    case TENSOR_Q8_0:
        memcpy(block, panel + l->scales_at + at * 2, 2);
        for (size_t half = 0; half < 2; half++)
            memcpy(block + 2 + half * 16, panel + ((size_t)u * 2 + half) * PANEL * 16 + row * 16,
                   16);
        break;
    case TENSOR_Q4_K: {
        const uint8_t *s = panel + l->scales_at + at * 16;
        memcpy(block, s, 4);
        for (uint32_t b = 0; b < 8; b++) {
            const uint8_t *q = panel + ((size_t)(u * 8 + b) * PANEL + row) * 16;
            for (uint32_t i = 0; i < 32; i++) {
                const unsigned w = i < 16 ? q[i] & 15u : q[i - 16] >> 4;
                uint8_t *byte = &block[16 + b / 2 * 32 + i];
                *byte = (uint8_t)(*byte | w << (b % 2 * 4));
            }
            const unsigned scale = get_bits(s, q4_k_scale_at(b), 6);
            unsigned min = get_bits(s, q4_k_min_at(b), b / 2 == 2 ? 4 : 6);
            if (b / 2 == 2) min |= get_bits(s, 32 + 32 * (b % 2) + 30, 2) << 4;
            uint8_t *sc = block + 4;
            if (b < 4) {
                sc[b] = (uint8_t)(sc[b] | scale);
                sc[b + 4] = (uint8_t)(sc[b + 4] | min);
            } else {
                sc[b + 4] = (uint8_t)((scale & 15) | (min & 15) << 4);
                sc[b - 4] = (uint8_t)(sc[b - 4] | (scale >> 4) << 6);
                sc[b] = (uint8_t)(sc[b] | (min >> 4) << 6);
            }
        }
        break;
    }
    case TENSOR_Q6_K:
        for (uint32_t b = 0; b < 8; b++) {
            const uint8_t *q = panel + ((size_t)(u * 8 + b) * PANEL + row) * 16;
            const uint8_t *high = panel + l->high_at + ((size_t)(u * 8 + b) * PANEL + row) * 8;
            const uint32_t half = b / 4, quarter = b % 4;
            for (uint32_t i = 0; i < 32; i++) {
                const uint32_t in16 = i % 16;
                const unsigned low = i < 16 ? q[in16] & 15u : q[in16] >> 4;
                const unsigned top =
                    ((unsigned)high[i / 16 * 4 + in16 % 4] >> (2 * (in16 / 4)) & 3u) ^ 2u;
                uint8_t *to = &block[half * 64 + quarter % 2 * 32 + i];
                *to = (uint8_t)(*to | low << (quarter < 2 ? 0 : 4));
                uint8_t *hi = &block[128 + half * 32 + i];
                *hi = (uint8_t)(*hi | top << (2 * quarter));
            }
        }
        memcpy(block + 192, panel + l->scales_at + at * 16, 16);
        memcpy(block + 208, panel + l->d_at + at * 2, 2);
        break;
    case TENSOR_F16:
    case TENSOR_BF16:
        memcpy(block, panel + at * 64, 64);
        break;
    default:
        CHECK(false);
    }
}

void repack_row(enum tensor_type type, uint32_t k, const uint8_t *packed, uint32_t row,
                float *out) {
    struct panel_layout l;
    CHECK(layout_of(type, k, &l));
    const uint8_t *panel = packed + row / PANEL * l.bytes;
    uint8_t block[256];
    const uint32_t weights = 32 * l.unit;
    for (uint32_t u = 0; u < k / weights; u++) {
        unpack_block(type, &l, panel, u, row % PANEL, block);
        tensor_dequantise(type, block, out + (size_t)u * weights, weights);
    }
}

void repack_order_gated(uint32_t d_ff, uint32_t *order) {
    CHECK(d_ff % 8 == 0);
    for (uint32_t i = 0; i < d_ff; i++) {
        order[i / 8 * 16 + i % 8] = i;
        order[i / 8 * 16 + 8 + i % 8] = d_ff + i;
    }
}

void repack_order_qkv(uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim, uint32_t rope,
                      uint32_t rope_dims, uint32_t *order) {
    CHECK(head_dim % 16 == 0 && rope_dims % 16 == 0 && rope_dims <= head_dim);
    for (uint32_t head = 0; head < n_heads + 2 * n_kv_heads; head++) {
        const uint32_t base = head * head_dim;
        const uint32_t turned =
            head < n_heads + n_kv_heads && rope != KERNEL_ROPE_NONE ? rope_dims : 0;
        for (uint32_t o = 0; o < head_dim; o++) {
            uint32_t d = o;
            if (o < turned) {
                const uint32_t pair = o / 16 * 8 + o % 8, second = o % 16 / 8;
                d = rope == KERNEL_ROPE_HALVES ? pair + second * (rope_dims / 2)
                                               : 2 * pair + second;
            }
            order[base + o] = base + d;
        }
    }
}
