#include "core/cpu/layout.h"

#include "core/check.h"
#include "core/clock.h"

const struct matmul_kernels *matmul_kernels(enum cpu_isa isa) {
    switch (isa) {
    case CPU_ISA_SCALAR:
        return &matmul_scalar;
#if defined(__x86_64__)
    case CPU_ISA_AVX2:
        return &matmul_avx2;
    case CPU_ISA_AVXVNNI:
        return &matmul_avxvnni;
    case CPU_ISA_AVX512:
        return &matmul_avx512;
    case CPU_ISA_AMX: {
        struct cpu_features f;
        cpu_features_detect(&f);
        return cpu_isa_supported(&f, CPU_ISA_AMX) && matmul_tiles_work() ? &matmul_amx
                                                                         : &matmul_avx512;
    }
#elif defined(__aarch64__)
    case CPU_ISA_NEON:
        return &matmul_neon;
#endif
    default:
        return NULL;
    }
}

enum activation_format matmul_activation_format(enum tensor_type type,
                                                enum activation_format class) {
    return tensor_is_float(type) ? ACTIVATION_F32 : class;
}

size_t activation_row_bytes(enum activation_format format, uint32_t k) {
    if (format == ACTIVATION_F32) return ((size_t)k * sizeof(float) + 63) & ~(size_t)63;
    CHECK(k % 32 == 0);
    return ((size_t)k / 32 * activation_block_bytes(format) + 63) & ~(size_t)63;
}

/* Weights that stay in a core's second-level cache while row tiles pass over them. */
enum { CHUNK_BYTES = 256 * 1024, TILE_ROWS = 8 };

void matmul_tiles(matmul_tile_fn *tile, const struct packed_matrix *m, const struct activations *x,
                  const float *bias, uint32_t panel0, uint32_t panel1, float *out,
                  size_t out_stride) {
    CHECK(panel0 <= panel1 && panel1 <= m->n_panels && out_stride >= m->n);
    CHECK(matmul_activation_format(m->type, x->format) == x->format);
    CHECK(x->row_bytes % (x->format == ACTIVATION_F32 ? 4 : 16) == 0);
    struct matmul_tile t = {
        .m = m, .row_bytes = x->row_bytes, .format = x->format, .out_stride = out_stride};
    /* Few rows: every row group while the panel is in the first-level cache. Many: eight rows stay
     * there and a chunk of panels passes over them. */
    uint32_t chunk = 1;
    if (x->n_rows > 2 * TILE_ROWS) {
        const size_t panels = CHUNK_BYTES / m->panel_bytes;
        chunk = panels < 1 ? 1 : (uint32_t)panels;
    }
    for (uint32_t c0 = panel0; c0 < panel1; c0 += chunk) {
        const uint32_t c1 = panel1 - c0 < chunk ? panel1 : c0 + chunk;
        for (uint32_t r = 0; r < x->n_rows; r += t.n_rows) {
            const uint32_t left = x->n_rows - r;
            t.n_rows = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
            t.x = (const uint8_t *)x->data + r * x->row_bytes;
            for (t.panel = c0; t.panel < c1; t.panel++) {
                const uint32_t j = t.panel * PANEL_ROWS;
                t.bias = bias ? bias + j : NULL;
                t.out = out + r * out_stride + j;
                t.n_valid = m->n - j < PANEL_ROWS ? m->n - j : PANEL_ROWS;
                tile(&t);
            }
        }
    }
}

struct matmul_task matmul_task_size(const struct packed_matrix *m, enum activation_format format,
                                    uint32_t n_rows) {
    /* Bytes per ns that a core reads, and multiply-adds per ns of the AVX-512 kernels: rough is
     * enough, for a task may take 20 to 80 microseconds. */
    const double read = 16, target_ns = 40e3;
    const double mac = format == ACTIVATION_INT16 ? 100 : format == ACTIVATION_INT8 ? 180 : 40;
    const double row_ns = (double)m->k * PANEL_ROWS / mac;
    const uint32_t most = (n_rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    uint32_t rows = most < 64 ? most : 64;
    while (rows > TILE_ROWS && rows * row_ns > target_ns) rows -= TILE_ROWS;
    const double panel_ns = (double)m->panel_bytes / read + rows * row_ns;
    const double panels = target_ns / panel_ns;
    struct matmul_task task = {.panels = panels < 1 ? 1 : (uint32_t)panels, .rows = rows};
    if (task.panels > m->n_panels) task.panels = m->n_panels;
    return task;
}

double matmul_dot_rate(enum cpu_isa isa, enum activation_format format) {
    enum { RUNS = 100, ROUNDS = 4000 };
    const struct matmul_kernels *k = matmul_kernels(isa);
    double best = 0;
    for (int r = 0; k != NULL && k->dots != NULL && r < RUNS; r++) {
        const uint64_t start_ns = clock_now_ns();
        const uint64_t done = k->dots(format, ROUNDS);
        const double rate = (double)done / ((double)(clock_now_ns() - start_ns) * 1e-9);
        best = rate > best ? rate : best;
    }
    return best;
}
