/* kernels: what each matrix kernel of this machine reaches, one thread, weights in memory.
 *
 *   kernels [--isa NAME] [--type NAME] [--format int16|int8] [--shape NxK] [--rows N] [--ms N]
 *
 * For each set, type, class, shape and row count: the least time of many calls, bytes of weights
 * and multiply-adds a second, and the share of the machine's limit, the later of two walls: reading
 * the weights at the bandwidth measured here, and the dot instructions of the class at the rate
 * measured here (`dots` of the table). Weights pass through a buffer larger than the caches where
 * fewer than 8 rows meet them, as they do in a decode; else one matrix is used again and again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/cpu/matmul.h"

enum { READ_BYTES = 96 << 20, MAX_ROWS = 512 };

static double read_rate(const uint64_t *data) {
    uint64_t best = UINT64_MAX, sum = 0;
    for (int r = 0; r < 8; r++) {
        const uint64_t t0 = clock_now_ns();
        uint64_t s[8] = {0};
        for (size_t i = 0; i < READ_BYTES / 8; i += 8)
            for (size_t k = 0; k < 8; k++) s[k] += data[i + k];
        for (size_t k = 0; k < 8; k++) sum += s[k];
        const uint64_t t = clock_now_ns() - t0;
        best = t < best ? t : best;
    }
    volatile uint64_t keep = sum;
    (void)keep;
    return (double)READ_BYTES / (double)best;
}

struct run {
    const struct matmul_kernels *kernels;
    enum tensor_type type;
    enum activation_format format;
    uint32_t n, k, rows;
    double read, dots[2], ms;
    uint8_t *weights;
    float *x, *out;
    uint8_t *acts;
};

static void measure(const struct run *r) {
    struct packed_matrix m;
    const size_t bytes = packed_matrix_bytes(r->type, r->n, r->k);
    const size_t copies = r->rows < 8 && bytes < READ_BYTES ? READ_BYTES / bytes : 1;
    const size_t row_bytes = activation_row_bytes(r->format, r->k);
    for (uint32_t i = 0; i < r->rows; i++)
        r->kernels->quantise(r->x + (size_t)i * r->k, r->k, r->format, r->acts + i * row_bytes);
    const struct activations x = {r->format, r->rows, row_bytes, r->acts};
    packed_matrix_init(&m, r->type, r->n, r->k, r->weights);
    const struct matmul_task task = matmul_task_size(&m, r->format, r->rows);
    uint64_t best = UINT64_MAX;
    const uint64_t start = clock_now_ns();
    for (size_t call = 0;; call++) {
        packed_matrix_init(&m, r->type, r->n, r->k, r->weights + call % copies * bytes);
        const uint64_t t0 = clock_now_ns();
        for (uint32_t i = 0; i < r->rows; i += task.rows) {
            struct activations part = x;
            part.n_rows = r->rows - i < task.rows ? r->rows - i : task.rows;
            part.data = r->acts + i * row_bytes;
            for (uint32_t p = 0; p < m.n_panels; p += task.panels)
                r->kernels->matmul(&m, &part, NULL, p,
                                   m.n_panels - p < task.panels ? m.n_panels : p + task.panels,
                                   r->out + (size_t)i * r->n, r->n);
        }
        const uint64_t t = clock_now_ns() - t0;
        best = t < best ? t : best;
        if (call >= 5 && (double)(clock_now_ns() - start) > r->ms * 1e6) break;
    }
    const double macs = (double)r->n * r->k * r->rows, ns = (double)best;
    const double by_bytes = (double)bytes / r->read, by_dots = macs / r->dots[r->format];
    const double wall = by_bytes > by_dots && copies > 1 ? by_bytes : by_dots;
    printf("%-8s %-7s %-6s %6u x %-5u %4u rows %10.1f us %7.1f GB/s %8.1f Gmac/s %4.0f %% of %s\n",
           r->kernels->name, tensor_format(r->type)->name,
           r->format == ACTIVATION_INT16 ? "int16" : "int8", r->n, r->k, r->rows, ns / 1e3,
           (double)bytes / ns, macs / ns, 100 * wall / ns,
           wall == by_dots ? "dots" : "read bandwidth");
    fflush(stdout);
}

static uint8_t *take(size_t bytes) {
    uint8_t *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    if (p == NULL) {
        fprintf(stderr, "kernels: no memory\n");
        exit(1);
    }
    return p;
}

int main(int argc, char **argv) {
    const char *isa_name = NULL, *type_name = "Q4_1", *format_name = NULL, *shape = NULL;
    uint32_t only_rows = 0;
    double ms = 100;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (value != NULL && strcmp(argv[i], "--isa") == 0)
            isa_name = value;
        else if (value != NULL && strcmp(argv[i], "--type") == 0)
            type_name = value;
        else if (value != NULL && strcmp(argv[i], "--format") == 0)
            format_name = value;
        else if (value != NULL && strcmp(argv[i], "--shape") == 0)
            shape = value;
        else if (value != NULL && strcmp(argv[i], "--rows") == 0)
            only_rows = (uint32_t)atoi(value);
        else if (value != NULL && strcmp(argv[i], "--ms") == 0)
            ms = atof(value);
        else {
            fprintf(stderr, "usage: kernels [--isa NAME] [--type NAME|all] [--format int16|int8] "
                            "[--shape NxK] [--rows N] [--ms N]\n");
            return 2;
        }
        i++;
    }
    if (only_rows > MAX_ROWS) {
        fprintf(stderr, "kernels: at most %d rows\n", MAX_ROWS);
        return 2;
    }
    struct cpu_features f;
    cpu_features_detect(&f);
    /* The matrices of the default model: q and o, k and v, gate and up, down; a slice of its head.
     */
    uint32_t shapes[5][2] = {{576, 576}, {192, 576}, {1536, 576}, {576, 1536}, {4096, 576}};
    unsigned n_shapes = 5;
    if (shape != NULL) {
        n_shapes = 1;
        if (sscanf(shape, "%ux%u", &shapes[0][0], &shapes[0][1]) != 2) return 2;
    }
    uint32_t widest = 0;
    size_t most = 0;
    for (unsigned s = 0; s < n_shapes; s++) {
        widest = shapes[s][1] > widest ? shapes[s][1] : widest;
        const size_t out = (size_t)shapes[s][0] * MAX_ROWS;
        most = out > most ? out : most;
    }
    struct run r = {.ms = ms};
    r.weights = take(READ_BYTES);
    uint32_t z = 1;
    for (size_t i = 0; i < READ_BYTES; i++)
        r.weights[i] = (uint8_t)((z = z * 1664525 + 1013904223) >> 24) & 0x3f;
    r.x = (float *)(void *)take((size_t)MAX_ROWS * widest * sizeof(float));
    r.acts = take(MAX_ROWS * activation_row_bytes(ACTIVATION_INT16, widest));
    r.out = (float *)(void *)take(most * sizeof(float));
    for (size_t i = 0; i < (size_t)MAX_ROWS * widest; i++)
        r.x[i] = (float)((z = z * 1664525 + 1013904223) >> 8) * 0x1p-24f - 0.5f;
    r.read = read_rate((const uint64_t *)(void *)r.weights);
    printf("%s: reads %.1f GB/s with one thread\n", f.brand, r.read);

    static const uint32_t rows[] = {1, 2, 4, 8, 16, 32, 64, 512};
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        const enum cpu_isa set = (enum cpu_isa)isa;
        if (isa_name != NULL ? strcmp(isa_name, cpu_isa_name(set)) != 0 : set == CPU_ISA_SCALAR)
            continue;
        r.kernels = matmul_kernels(set);
        if (r.kernels == NULL || !cpu_isa_supported(&f, set)) continue;
        for (int i = 0; i < 2; i++)
            r.dots[i] = matmul_dot_rate(set, (enum activation_format)i) * 1e-9;
        printf("%s: %.0f G multiply-adds/s in dot instructions, int16; %.0f, int8\n",
               cpu_isa_name(set), r.dots[0], r.dots[1]);
        for (int type = 0; type < TENSOR_TYPE_COUNT; type++) {
            r.type = (enum tensor_type)type;
            if (strcmp(type_name, "all") != 0 &&
                strcmp(type_name, tensor_format(r.type)->name) != 0)
                continue;
            for (int format = 0; format < 2; format++) {
                r.format = (enum activation_format)format;
                if (matmul_activation_format(r.type, r.format) != r.format) continue;
                if (format_name != NULL &&
                    strcmp(format_name, format == ACTIVATION_INT16 ? "int16" : "int8") != 0)
                    continue;
                for (unsigned s = 0; s < n_shapes; s++) {
                    r.n = shapes[s][0];
                    r.k = shapes[s][1];
                    if (!packed_supported(r.type, r.k)) continue;
                    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
                        r.rows = rows[i];
                        if (only_rows == 0 || only_rows == r.rows) measure(&r);
                    }
                    if (only_rows != 0 && (only_rows & (only_rows - 1)) != 0)
                        r.rows = only_rows, measure(&r);
                }
            }
        }
    }
    return 0;
}
