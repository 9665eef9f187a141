/* What the few-row kernels cost on the software device: lane instructions per weight, bytes of
 * weights against the floor, sectors against those needed, bank conflicts. LAC_COUNTERS=FILE keeps
 * the table (perf/results). */
#include "jit/repack.h"
#include "tests/jit/kernel_rig.h"

enum { SMS = 4 };

static struct rig rig_memory, *rig;
static FILE *table;

static const char *const classes[] = {"move",    "integer",   "logic",     "dot",       "float",
                                      "special", "convert",   "compare",   "control",   "warp",
                                      "matrix",  "ld.global", "st.global", "ld.shared", "st.shared",
                                      "local",   "atomic",    "async",     "barrier"};

static uint64_t lane_instructions(const char *kernel) {
    uint64_t sum = 0;
    char name[32];
    for (unsigned i = 0; i < sizeof classes / sizeof *classes; i++) {
        snprintf(name, sizeof name, "lane.%s", classes[i]);
        sum += rig->g.counter(kernel, name);
    }
    return sum;
}

struct shape {
    enum tensor_type format;
    uint32_t n, k, n_rows, bits;
    enum kernel_input input;
    double most_instructions; /* per weight; 0: shown only */
};

static void measure(const struct shape *s) {
    struct kernel_spec spec = {.family = KERNEL_MATMUL};
    spec.matmul = (struct matmul_spec){.format = s->format,
                                       .n = s->n,
                                       .k = s->k,
                                       .activation_bits = s->bits,
                                       .input = s->input,
                                       .epilogue = KERNEL_OUT_STORE,
                                       .epsilon = 1e-5f,
                                       .scale = 1};
    struct rig_kernel kernel;
    rig_choose(rig, &spec, s->n_rows, false, &kernel);
    const size_t weights = repack_bytes(s->format, s->n, s->k);
    const size_t planes = kernel_planes_bytes(s->k, s->bits) * 64;
    const uint32_t run[2] = {(1u << s->n_rows) - 1, 0};
    float *x = malloc(sizeof *x * s->n_rows * s->k);
    rig_normals(rig, x, (size_t)s->n_rows * s->k, 1);
    struct matmul_params p = {.weights = rig_zeros(rig, weights),
                              .planes = rig_zeros(rig, planes),
                              .x = rig_put(rig, x, sizeof *x * s->n_rows * s->k),
                              .norm = rig_put(rig, x, sizeof *x * s->k),
                              .out = rig_zeros(rig, sizeof *x * s->n_rows * s->n),
                              .run = rig_put(rig, run, sizeof run),
                              .out_stride = s->n,
                              .max_rows = s->n_rows};
    rig_launch(rig, &kernel, &p);
    const double n_weights = (double)s->n * s->k;
    const double instructions = (double)lane_instructions(kernel.name) / n_weights;
    const uint64_t n_sectors = rig->g.counter(kernel.name, "global_load_sectors");
    const double sectors =
        (double)n_sectors / (double)rig->g.counter(kernel.name, "global_load_needed");
    /* Sectors and the floor are looked at with the norm inside: rows read from global memory are
     * broadcast, which those counts do not tell from weights. With the norm inside, whatever is not
     * rows and norm is weights (and a few words). */
    const bool inside = s->input == KERNEL_IN_NORM;
    const uint64_t rows_bytes = (uint64_t)kernel.geometry.grid[0] * s->n_rows * s->k * 12;
    const double floor = inside ? (double)(n_sectors * 32 - rows_bytes) / (double)weights : 0;
    const uint64_t conflict = rig->g.counter(kernel.name, "shared_worst_conflict");
    char line[256], of_floor[16] = "";
    if (inside) snprintf(of_floor, sizeof of_floor, "%.3f", floor);
    snprintf(line, sizeof line, "| %s | %u | %u | %.2f | %s | %.3f | %u |", kernel.name, s->n_rows,
             s->bits, instructions, of_floor, sectors, (unsigned)conflict);
    print_message("%s\n", line);
    if (table != NULL) fprintf(table, "%s\n", line);
    if (s->most_instructions > 0) assert_true(instructions <= s->most_instructions);
    assert_true(floor <= 1.02 + 0.01 * (s->k < 1024));
    assert_true(conflict <= 2);
    if (s->input == KERNEL_IN_NORM) assert_true(sectors <= 1.001);
    const uint64_t all[] = {p.weights, p.planes, p.x, p.norm, p.out, p.run};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) rig_free(rig, all[i]);
    rig_unload(rig, &kernel);
    free(x);
}

static void few_rows(void **state) {
    (void)state;
    if (rig == NULL) skip();
    /* Four panels a CTA, as a gate and up of an 8B model has on a large chip. */
    static const struct shape shapes[] = {
        {TENSOR_Q4_0, 768, 4096, 1, 16, KERNEL_IN_NORM, 2.5},
        {TENSOR_Q4_1, 768, 4096, 1, 16, KERNEL_IN_NORM, 2.5},
        {TENSOR_Q4_K, 768, 4096, 1, 16, KERNEL_IN_NORM, 2.5},
        {TENSOR_Q4_1, 768, 4096, 1, 16, KERNEL_IN_PLANES, 2.5},
        {TENSOR_Q4_0, 768, 4096, 1, 8, KERNEL_IN_PLANES, 1.5},
        {TENSOR_Q4_1, 768, 4096, 1, 8, KERNEL_IN_PLANES, 1.5},
        {TENSOR_Q4_K, 768, 4096, 1, 8, KERNEL_IN_PLANES, 1.5},
        {TENSOR_Q4_0, 768, 4096, 1, 8, KERNEL_IN_NORM, 1.5},
        {TENSOR_Q4_1, 768, 4096, 1, 8, KERNEL_IN_NORM, 1.5},
        {TENSOR_Q4_K, 768, 4096, 1, 8, KERNEL_IN_NORM, 1.5},
        {TENSOR_Q6_K, 768, 4096, 1, 16, KERNEL_IN_NORM, 0},
        {TENSOR_Q8_0, 768, 4096, 1, 16, KERNEL_IN_NORM, 0},
        {TENSOR_Q4_1, 768, 4096, 2, 16, KERNEL_IN_NORM, 0},
        {TENSOR_Q4_1, 768, 4096, 8, 16, KERNEL_IN_NORM, 0},
        {TENSOR_Q4_1, 768, 4096, 16, 16, KERNEL_IN_PLANES, 0},
        /* The default model's. */
        {TENSOR_Q4_1, 960, 576, 1, 16, KERNEL_IN_NORM, 0},
        {TENSOR_Q8_0, 4096, 576, 1, 16, KERNEL_IN_PLANES, 0},
    };
    for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++) measure(&shapes[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(few_rows)};
    const char *path = getenv("LAC_COUNTERS");
    if (path != NULL && (table = fopen(path, "w")) == NULL) return 1;
    rig = rig_open(&rig_memory, "A100", SMS, 0) ? &rig_memory : NULL;
    const char *head =
        "| kernel | rows | bits | lane instructions a weight | weight bytes / floor | "
        "sectors / needed | worst bank conflict |";
    print_message("%s\n", head);
    if (table != NULL) fprintf(table, "%s\n|---|---|---|---|---|---|---|\n", head);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (table != NULL) fclose(table);
    if (rig != NULL) rig_close(rig);
    return failed;
}
