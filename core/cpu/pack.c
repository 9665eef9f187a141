#include "core/cpu/layout.h"

#include <string.h>

#include "core/check.h"

static uint16_t load_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint32_t load_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static float power_of_two(int exponent) { /* -126 .. 127 */
    const uint32_t bits = (uint32_t)(exponent + 127) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void store_u16(uint8_t *p, uint16_t v) {
    memcpy(p, &v, sizeof v);
}

static uint32_t blocks_of(uint32_t k) {
    return k / 32 + (k % 32 != 0);
}

bool packed_supported(enum tensor_type type, uint32_t k) {
    return (unsigned)type < TENSOR_TYPE_COUNT && k > 0 &&
           k % tensor_format(type)->block_weights == 0;
}

static size_t panel_bytes_of(enum tensor_type type, uint32_t k) {
    size_t bytes;
    if (tensor_is_float(type)) {
        bytes = (size_t)k * PANEL_ROWS * tensor_format(type)->block_bytes;
    } else {
        bytes =
            packed_scale_plane_bytes(type, k) + (size_t)k / 32 * packed_layout(type).quant_bytes;
    }
    return (bytes + 63) & ~(size_t)63;
}

static uint32_t panels_of(uint32_t n) {
    return n / PANEL_ROWS + (n % PANEL_ROWS != 0);
}

size_t packed_matrix_bytes(enum tensor_type type, uint32_t n, uint32_t k) {
    if (!packed_supported(type, k)) return 0;
    return panel_bytes_of(type, k) * panels_of(n);
}

void packed_matrix_init(struct packed_matrix *m, enum tensor_type type, uint32_t n, uint32_t k,
                        void *mem) {
    CHECK(packed_supported(type, k) && n > 0 && (uintptr_t)mem % 64 == 0);
    *m = (struct packed_matrix){.type = type,
                                .n = n,
                                .k = k,
                                .n_panels = panels_of(n),
                                .panel_bytes = panel_bytes_of(type, k),
                                .data = mem};
}

/* The 6-bit pairs of Q4_K and Q5_K (tensor.c has the layout). */
static void source_scale_and_min(const uint8_t *s, uint32_t g, uint8_t *scale, uint8_t *min) {
    if (g < 4) {
        *scale = s[g] & 63;
        *min = s[g + 4] & 63;
    } else {
        *scale = (uint8_t)((s[g + 4] & 15) | (s[g - 4] >> 6) << 4);
        *min = (uint8_t)(s[g + 4] >> 4 | (s[g] >> 6) << 4);
    }
}

static void source_nibbles(const uint8_t *qs, uint8_t *u) {
    for (int i = 0; i < 16; i++) {
        u[i] = qs[i] & 15;
        u[i + 16] = qs[i] >> 4;
    }
}

/* Block `b` of a row in GGUF order; u holds codes, not yet table values. */
static void source_read(enum tensor_type type, const uint8_t *row, uint32_t b,
                        struct block32 *out) {
    const struct tensor_format *f = tensor_format(type);
    const uint32_t g = b % (f->block_weights / 32); /* block inside a super-block */
    const uint8_t *s = row + (size_t)(b / (f->block_weights / 32)) * f->block_bytes;
    uint8_t *u = out->u;

    *out = (struct block32){0};
    switch (type) {
    case TENSOR_Q4_0:
    case TENSOR_IQ4_NL:
        out->d = load_u16(s);
        source_nibbles(s + 2, u);
        break;
    case TENSOR_Q4_1:
        out->d = load_u16(s);
        out->m = load_u16(s + 2);
        source_nibbles(s + 4, u);
        break;
    case TENSOR_Q5_0:
    case TENSOR_Q5_1: {
        const uint8_t *high = s + (type == TENSOR_Q5_1 ? 4 : 2);
        out->d = load_u16(s);
        if (type == TENSOR_Q5_1) out->m = load_u16(s + 2);
        source_nibbles(high + 4, u);
        for (int i = 0; i < 32; i++) u[i] |= (uint8_t)((load_u32(high) >> i & 1u) << 4);
        break;
    }
    case TENSOR_Q8_0:
        out->d = load_u16(s);
        for (int i = 0; i < 32; i++) u[i] = (uint8_t)(s[2 + i] ^ 0x80);
        break;
    case TENSOR_MXFP4:
        out->d = s[0];
        source_nibbles(s + 1, u);
        break;
    case TENSOR_Q2_K:
        out->d = load_u16(s + 80);
        out->m = load_u16(s + 82);
        for (uint32_t h = 0; h < 2; h++) {
            out->sc[h] = s[2 * g + h] & 15;
            out->mn[h] = s[2 * g + h] >> 4;
        }
        for (uint32_t i = 0; i < 32; i++) u[i] = s[16 + g / 4 * 32 + i] >> (2 * (g % 4)) & 3;
        break;
    case TENSOR_Q3_K:
        out->d = load_u16(s + 108);
        for (uint32_t h = 0; h < 2; h++) {
            const uint32_t j = 2 * g + h;
            const int low4 = s[96 + j % 8] >> (4 * (j / 8)) & 15;
            const int top2 = s[104 + j % 4] >> (2 * (j / 4)) & 3;
            out->sc[h] = (uint8_t)(low4 | top2 << 4);
        }
        for (uint32_t i = 0; i < 32; i++) {
            u[i] = (uint8_t)((s[32 + g / 4 * 32 + i] >> (2 * (g % 4)) & 3) | (s[i] >> g & 1) << 2);
        }
        break;
    case TENSOR_Q4_K:
    case TENSOR_Q5_K: {
        const uint8_t *qs = s + (type == TENSOR_Q5_K ? 48 : 16) + g / 2 * 32;
        out->d = load_u16(s);
        out->m = load_u16(s + 2);
        source_scale_and_min(s + 4, g, &out->sc[0], &out->mn[0]);
        for (uint32_t i = 0; i < 32; i++) {
            u[i] = qs[i] >> (4 * (g % 2)) & 15;
            if (type == TENSOR_Q5_K) u[i] |= (uint8_t)((s[16 + i] >> g & 1) << 4);
        }
        break;
    }
    case TENSOR_Q6_K:
        out->d = load_u16(s + 208);
        out->sc[0] = s[192 + 2 * g];
        out->sc[1] = s[192 + 2 * g + 1];
        for (uint32_t i = 0; i < 32; i++) {
            const uint32_t w = g * 32 + i;
            const int low4 = s[w / 128 * 64 + w % 64] >> (4 * (w / 64 % 2)) & 15;
            const int top2 = s[128 + w / 128 * 32 + i] >> (2 * (g % 4)) & 3;
            u[i] = (uint8_t)(low4 | top2 << 4);
        }
        break;
    case TENSOR_IQ4_XS: {
        const unsigned heads = load_u16(s + 2);
        out->d = load_u16(s);
        out->sc[0] = (uint8_t)((s[4 + g / 2] >> (4 * (g % 2)) & 15) | (heads >> (2 * g) & 3u) << 4);
        source_nibbles(s + 8 + g * 16, u);
        break;
    }
    case TENSOR_F32:
    case TENSOR_F16:
    case TENSOR_BF16:
    case TENSOR_TYPE_COUNT:
        CHECK(!"a block format");
    }
}

/* A quad of weights is one 32-bit word, in u and in the vectors (byte i is weight i), so bits of
 * four weights move at once. */
static uint32_t bits_of_quads(const uint32_t u[8], int first, int last, int from, uint32_t mask,
                              int to_bits) {
    uint32_t word = 0;
    for (int t = first; t < last; t++) word |= (u[t] >> from & mask) << ((t - first) * to_bits);
    return word;
}

static void store_u32(uint8_t *p, uint32_t v) {
    memcpy(p, &v, sizeof v);
}

static void write_quads(enum tensor_type type, uint8_t *q, const uint32_t u[8]) {
    const uint32_t one = 0x01010101u, two = 0x03030303u, four = 0x0f0f0f0fu;
    switch (type) {
    case TENSOR_Q8_0:
        for (int t = 0; t < 8; t++) store_u32(q + 64 * t, u[t]);
        break;
    case TENSOR_Q2_K:
    case TENSOR_Q3_K:
        store_u32(q, bits_of_quads(u, 0, 4, 0, two, 2));
        store_u32(q + 64, bits_of_quads(u, 4, 8, 0, two, 2));
        if (type == TENSOR_Q3_K) store_u32(q + 128, bits_of_quads(u, 0, 8, 2, one, 1));
        break;
    default:
        for (int t = 0; t < 4; t++) {
            store_u32(q + 64 * t, (u[t] & four) | (u[t + 4] & four) << 4);
        }
        if (type == TENSOR_Q5_0 || type == TENSOR_Q5_1 || type == TENSOR_Q5_K) {
            store_u32(q + 256, bits_of_quads(u, 0, 8, 4, one, 1));
        } else if (type == TENSOR_Q6_K) {
            store_u32(q + 256, bits_of_quads(u, 0, 4, 4, two, 2));
            store_u32(q + 320, bits_of_quads(u, 4, 8, 4, two, 2));
        }
    }
}

/* Scales that share a byte with another block's are or-ed in: the panel was zeroed. */
static void packed_block_write(enum tensor_type type, uint8_t *q, uint8_t *s, uint32_t g,
                               uint32_t row, const struct block32 *in) {
    uint32_t u[8];
    memcpy(u, in->u, sizeof u);
    write_quads(type, q + 4 * row, u);
    if (type == TENSOR_MXFP4) {
        s[row] = (uint8_t)in->d;
        return;
    }
    store_u16(s + 2 * row, in->d);
    if (packed_layout(type).has_min) store_u16(s + 32 + 2 * row, in->m);
    const int sc0 = in->sc[0], sc1 = in->sc[1], mn0 = in->mn[0], mn1 = in->mn[1];
    switch (type) {
    case TENSOR_Q4_K:
    case TENSOR_Q5_K:
        s[64 + 16 * g + row] = (uint8_t)((sc0 & 15) | (mn0 & 15) << 4);
        s[192 + g / 2 * 16 + row] |= (uint8_t)((sc0 >> 4 | (mn0 >> 4) << 2) << (4 * (g % 2)));
        break;
    case TENSOR_Q2_K:
        s[64 + 32 * g + row] = (uint8_t)(sc0 | mn0 << 4);
        s[64 + 32 * g + 16 + row] = (uint8_t)(sc1 | mn1 << 4);
        break;
    case TENSOR_Q3_K:
        s[32 + 16 * g + row] = (uint8_t)((sc0 & 15) | (sc1 & 15) << 4);
        s[160 + g / 2 * 16 + row] |= (uint8_t)((sc0 >> 4 | (sc1 >> 4) << 2) << (4 * (g % 2)));
        break;
    case TENSOR_Q6_K:
        s[32 + 32 * g + row] = (uint8_t)sc0;
        s[32 + 32 * g + 16 + row] = (uint8_t)sc1;
        break;
    case TENSOR_IQ4_XS:
        s[32 + g / 2 * 16 + row] |= (uint8_t)((sc0 & 15) << (4 * (g % 2)));
        s[96 + g / 4 * 16 + row] |= (uint8_t)((sc0 >> 4) << (2 * (g % 4)));
        break;
    default:
        break;
    }
}

void packed_block_read(const struct packed_matrix *m, uint32_t panel, uint32_t row, uint32_t b,
                       struct block32 *out) {
    static const uint8_t iq4[16] = {IQ4_TABLE};
    static const uint8_t mxfp4[16] = {MXFP4_TABLE};
    const enum tensor_type type = m->type;
    const struct packed_layout l = packed_layout(type);
    const uint32_t g = b % l.unit_blocks;
    const uint8_t *base = packed_panel(m, panel);
    const uint8_t *s = base + (size_t)(b / l.unit_blocks) * l.scale_bytes + row;
    const uint8_t *q =
        base + packed_scale_plane_bytes(type, m->k) + (size_t)b * l.quant_bytes + 4 * row;

    *out = (struct block32){0};
    for (int w = 0; w < 32; w++) {
        const int t = w / 4;
        const uint8_t *p = q + w % 4;
        int u;
        if (type == TENSOR_Q8_0) {
            u = p[64 * t];
        } else if (type == TENSOR_Q2_K || type == TENSOR_Q3_K) {
            u = p[t / 4 * 64] >> (2 * (t % 4)) & 3;
            if (type == TENSOR_Q3_K) u |= (p[128] >> t & 1) << 2;
        } else {
            u = p[t % 4 * 64] >> (4 * (t / 4)) & 15;
            if (l.quant_bytes == 320) u |= (p[256] >> t & 1) << 4;
            if (l.quant_bytes == 384) u |= (p[256 + t / 4 * 64] >> (2 * (t % 4)) & 3) << 4;
        }
        if (type == TENSOR_IQ4_NL || type == TENSOR_IQ4_XS) u = iq4[u];
        if (type == TENSOR_MXFP4) u = mxfp4[u];
        out->u[w] = (uint8_t)u;
    }
    if (type == TENSOR_MXFP4) {
        out->d = s[0];
        return;
    }
    out->d = load_u16(s + row);
    if (l.has_min) out->m = load_u16(s + 32 + row);
    int head;
    switch (type) {
    case TENSOR_Q4_K:
    case TENSOR_Q5_K:
        head = s[192 + g / 2 * 16] >> (4 * (g % 2));
        out->sc[0] = (uint8_t)((s[64 + 16 * g] & 15) | (head & 3) << 4);
        out->mn[0] = (uint8_t)(s[64 + 16 * g] >> 4 | (head >> 2 & 3) << 4);
        break;
    case TENSOR_Q2_K:
        for (uint32_t h = 0; h < 2; h++) {
            out->sc[h] = s[64 + 32 * g + 16 * h] & 15;
            out->mn[h] = s[64 + 32 * g + 16 * h] >> 4;
        }
        break;
    case TENSOR_Q3_K:
        head = s[160 + g / 2 * 16] >> (4 * (g % 2));
        out->sc[0] = (uint8_t)((s[32 + 16 * g] & 15) | (head & 3) << 4);
        out->sc[1] = (uint8_t)(s[32 + 16 * g] >> 4 | (head >> 2 & 3) << 4);
        break;
    case TENSOR_Q6_K:
        out->sc[0] = s[32 + 32 * g];
        out->sc[1] = s[32 + 32 * g + 16];
        break;
    case TENSOR_IQ4_XS:
        out->sc[0] = (uint8_t)((s[32 + g / 2 * 16] >> (4 * (g % 2)) & 15) |
                               (s[96 + g / 4 * 16] >> (2 * (g % 4)) & 3) << 4);
        break;
    default:
        break;
    }
}

struct block32_scales block32_scales(enum tensor_type type, const struct block32 *block) {
    struct block32_scales s = {.rest = 1};
    const float d = f16_to_f32(block->d);
    const float m = f16_to_f32(block->m);
    for (int h = 0; h < 2; h++) {
        s.dw[h] = d;
        s.mw[h] = m;
        switch (type) {
        case TENSOR_Q2_K:
        case TENSOR_Q4_K:
        case TENSOR_Q5_K:
            s.dw[h] = d * (float)block->sc[h];
            s.mw[h] = -(m * (float)block->mn[h]);
            break;
        case TENSOR_Q3_K:
        case TENSOR_IQ4_XS:
            s.dw[h] = d * (float)(block->sc[h] - 32);
            break;
        case TENSOR_Q6_K:
            s.dw[h] = d * (float)(int8_t)block->sc[h];
            break;
        case TENSOR_MXFP4:
            s.dw[h] = power_of_two(block->d < MXFP4_SPLIT ? MXFP4_SPLIT - 128 : block->d - 128);
            s.rest = power_of_two(block->d < MXFP4_SPLIT ? block->d - MXFP4_SPLIT : 0);
            break;
        default:
            break;
        }
    }
    return s;
}

void packed_block_floats(const struct packed_matrix *m, uint32_t panel, uint32_t row, uint32_t b,
                         float *dst) {
    const uint32_t n = m->k - 32 * b < 32 ? m->k - 32 * b : 32;
    if (tensor_is_float(m->type)) {
        const size_t element_bytes = tensor_format(m->type)->block_bytes;
        const uint8_t *p =
            packed_panel(m, panel) + ((size_t)b * 32 * PANEL_ROWS + row) * element_bytes;
        for (uint32_t i = 0; i < n; i++, p += PANEL_ROWS * element_bytes) {
            tensor_dequantise(m->type, p, dst + i, 1);
        }
        return;
    }
    const struct packed_layout l = packed_layout(m->type);
    const int offset = 128 >> l.offset_shift;
    struct block32 block;
    packed_block_read(m, panel, row, b, &block);
    const struct block32_scales s = block32_scales(m->type, &block);
    for (int i = 0; i < 32; i++) {
        const int h = l.halves ? i / 16 : 0;
        const float w = s.dw[h] * (s.rest * (float)(block.u[i] - offset));
        dst[i] = l.has_min ? w + s.mw[h] : w;
    }
}

void packed_matrix_row(const struct packed_matrix *m, uint32_t row, float *dst) {
    CHECK(row < m->n);
    for (uint32_t b = 0; b < blocks_of(m->k); b++) {
        packed_block_floats(m, row / PANEL_ROWS, row % PANEL_ROWS, b, dst + (size_t)b * 32);
    }
}

static void pack_float_row(const struct packed_matrix *m, uint8_t *panel, uint32_t row,
                           const uint8_t *src) {
    const size_t element_bytes = tensor_format(m->type)->block_bytes;
    if (element_bytes == 4) {
        for (size_t i = 0; i < m->k; i++) memcpy(panel + (i * 16 + row) * 4, src + i * 4, 4);
    } else {
        for (size_t i = 0; i < m->k; i++) memcpy(panel + (i * 16 + row) * 2, src + i * 2, 2);
    }
}

/* The commonest formats keep their nibbles or bytes in quads already: only whole words move. */
static bool pack_words_row(const struct packed_matrix *m, uint8_t *panel, uint32_t row,
                           const uint8_t *src) {
    const struct packed_layout l = packed_layout(m->type);
    const bool bytes = m->type == TENSOR_Q8_0;
    const size_t head = m->type == TENSOR_Q4_1 ? 4 : 2;
    if (!bytes && m->type != TENSOR_Q4_0 && m->type != TENSOR_Q4_1 && m->type != TENSOR_IQ4_NL) {
        return false;
    }
    const uint32_t flip = bytes ? 0x80808080u : 0;
    const size_t n_words = bytes ? 8 : 4;
    uint8_t *s = panel + 2 * row;
    uint8_t *q = panel + packed_scale_plane_bytes(m->type, m->k) + 4 * row;
    for (uint32_t b = 0; b < m->k / 32; b++) {
        memcpy(s, src, 2);
        if (head == 4) memcpy(s + 32, src + 2, 2);
        for (size_t w = 0; w < n_words; w++) {
            const uint32_t v = load_u32(src + head + 4 * w) ^ flip;
            memcpy(q + 64 * w, &v, 4);
        }
        src += head + 4 * n_words;
        q += l.quant_bytes;
        s += l.scale_bytes;
    }
    return true;
}

static void pack_row(const struct packed_matrix *m, uint8_t *panel, uint32_t row,
                     const uint8_t *src) {
    if (tensor_is_float(m->type)) {
        pack_float_row(m, panel, row, src);
        return;
    }
    if (pack_words_row(m, panel, row, src)) return;
    const struct packed_layout l = packed_layout(m->type);
    uint8_t *quants = panel + packed_scale_plane_bytes(m->type, m->k);
    for (uint32_t b = 0; b < m->k / 32; b++) {
        struct block32 block;
        source_read(m->type, src, b, &block);
        packed_block_write(m->type, quants + (size_t)b * l.quant_bytes,
                           panel + (size_t)(b / l.unit_blocks) * l.scale_bytes, b % l.unit_blocks,
                           row, &block);
    }
}

void packed_matrix_pack(const struct packed_matrix *m, const struct weight *w, uint32_t expert,
                        uint32_t panel0, uint32_t panel1) {
    const struct tensor *t = w->t;
    CHECK(t->type == m->type && t->dim[0] == m->k && w->n_rows == m->n);
    CHECK(w->row0 + (uint64_t)w->n_rows <= t->dim[1] && expert < t->dim[2]);
    CHECK(panel0 <= panel1 && panel1 <= m->n_panels);
    const uint64_t row_bytes = tensor_row_bytes(tensor_format(t->type), m->k);
    const uint8_t *src = (const uint8_t *)t->data + (expert * t->dim[1] + w->row0) * row_bytes;
    for (uint32_t p = panel0; p < panel1; p++) {
        uint8_t *panel = m->data + (size_t)p * m->panel_bytes;
        memset(panel, 0, m->panel_bytes);
        for (uint32_t r = 0; r < PANEL_ROWS && p * PANEL_ROWS + r < m->n; r++) {
            pack_row(m, panel, r, src + (uint64_t)(p * PANEL_ROWS + r) * row_bytes);
        }
    }
}
