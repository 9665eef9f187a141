/* The oracle: one output at a time, straight from the definition in matmul.h. */
#include "core/cpu/layout.h"

#include <math.h>
#include <string.h>

#include "core/check.h"

/* The bits of the largest magnitude: as integers they order like the magnitudes, and a NaN or an
 * infinity comes out at or above 0x7f800000 instead of being lost in comparisons. */
static uint32_t largest_magnitude_bits(const float *x) {
    uint32_t largest = 0;
    for (int i = 0; i < 32; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffffu;
        if (bits > largest) largest = bits;
    }
    return largest;
}

static void quantise_block(const float *x, float limit, int32_t q[32],
                           struct activation_sums *sums) {
    const uint32_t bits = largest_magnitude_bits(x);
    float amax;
    memcpy(&amax, &bits, sizeof amax);
    memset(q, 0, 32 * sizeof *q);
    *sums = (struct activation_sums){0};
    if (bits >= 0x7f800000u) {
        sums->scale = sums->scaled_sum = NAN;
        return;
    }
    if (amax < ACTIVATION_TINY) return;
    const float inverse = limit / amax;
    int32_t low = 0, high = 0;
    for (int i = 0; i < 16; i++) {
        q[i] = (int32_t)lrintf(x[i] * inverse);
        q[i + 16] = (int32_t)lrintf(x[i + 16] * inverse);
        low += q[i];
        high += q[i + 16];
    }
    sums->scale = amax / limit;
    sums->scaled_sum = sums->scale * (float)(low + high);
    sums->offset = -128 * (low + high);
    sums->offset_low = -128 * low;
}

static void quantise(const float *x, uint32_t k, enum activation_format format, void *dst) {
    if (format == ACTIVATION_F32) {
        memcpy(dst, x, k * sizeof *x);
        return;
    }
    CHECK(k % 32 == 0);
    const bool wide = format == ACTIVATION_INT16;
    int8_t *p = dst;
    for (uint32_t b = 0; b < k / 32; b++, p += activation_block_bytes(format)) {
        int32_t q[32];
        struct activation_sums sums;
        quantise_block(x + b * 32, wide ? ACTIVATION_INT16_MAX : ACTIVATION_INT8_MAX, q, &sums);
        for (int i = 0; i < 32; i++) {
            const int32_t hi = (q[i] + 128) >> 8;
            p[i] = (int8_t)(wide ? hi : q[i]);
            if (wide) p[i + 32] = (int8_t)(q[i] - 256 * hi);
        }
        memcpy(p + (wide ? 64 : 32), &sums, sizeof sums);
    }
}

static float dot_blocks(const struct matmul_tile *t, uint32_t lane, const int8_t *p, float acc) {
    const enum tensor_type type = t->m->type;
    const struct packed_layout l = packed_layout(type);
    const bool wide = t->format == ACTIVATION_INT16;
    const int32_t offset = 128 >> l.offset_shift;
    const int n_subs = l.halves ? 2 : 1;
    const int sub_weights = 32 / n_subs;
    for (uint32_t b = 0; b < t->m->k / 32; b++, p += activation_block_bytes(t->format)) {
        struct block32 w;
        float sx;
        packed_block_read(t->m, t->panel, lane, b, &w);
        const struct block32_scales scale = block32_scales(type, &w);
        memcpy(&sx, p + (wide ? 64 : 32), sizeof sx);
        for (int s = 0; s < n_subs; s++) {
            int32_t products = 0, sum = 0;
            for (int i = s * sub_weights; i < (s + 1) * sub_weights; i++) {
                const int32_t q = wide ? 256 * p[i] + p[i + 32] : p[i];
                products += (w.u[i] - offset) * q;
                sum += q;
            }
            acc = fmaf(scale.dw[s] * sx, scale.rest * (float)products, acc);
            if (l.has_min) acc = fmaf(scale.mw[s], sx * (float)sum, acc);
        }
    }
    return acc;
}

static float dot_floats(const struct matmul_tile *t, uint32_t lane, const float *x, float acc) {
    const uint32_t k = t->m->k;
    for (uint32_t b = 0; b * 32 < k; b++) {
        float w[32], p = 0;
        packed_block_floats(t->m, t->panel, lane, b, w);
        for (uint32_t i = 0; i < 32 && b * 32 + i < k; i++) p = fmaf(w[i], x[b * 32 + i], p);
        acc += p;
    }
    return acc;
}

static void tile(const struct matmul_tile *t) {
    for (uint32_t r = 0; r < t->n_rows; r++) {
        const void *x = t->x + r * t->row_bytes;
        for (uint32_t j = 0; j < t->n_valid; j++) {
            const float bias = t->bias ? t->bias[j] : 0;
            t->out[r * t->out_stride + j] =
                t->format == ACTIVATION_F32 ? dot_floats(t, j, x, bias) : dot_blocks(t, j, x, bias);
        }
    }
}

static void matmul(const struct packed_matrix *m, const struct activations *x, const float *bias,
                   uint32_t panel0, uint32_t panel1, float *out, size_t out_stride) {
    matmul_tiles(tile, m, x, bias, panel0, panel1, out, out_stride);
}

const struct matmul_kernels matmul_scalar = {
    .name = "scalar", .quantise = quantise, .matmul = matmul};
