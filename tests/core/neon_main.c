/* The matmul checks without a test framework: what run_neon.sh runs in an emulator. */
#include "tests/core/matmul_cases.h"

static int passed, failed;

static void report(bool ok, const char *what, enum tensor_type type) {
    if (ok) {
        passed++;
    } else {
        failed++;
        printf("FAIL %s %s\n", what, tensor_format(type)->name);
    }
}

int main(void) {
    if (!isa_runs(CPU_ISA_NEON)) {
        printf("skip: neon kernels: this processor lacks the instructions\n");
        return 0;
    }
    for (int t = 0; t < TENSOR_TYPE_COUNT; t++) {
        const enum tensor_type type = (enum tensor_type)t;
        report(check_isa(CPU_ISA_NEON, type), "equal to scalar", type);
        report(check_accuracy(type, BLOCKS_RANDOM), "accuracy", type);
        report(check_rows(type), "rows", type);
        report(check_size(type), "size", type);
        for (int f = 0; f < 3; f++) {
            const enum activation_format format = (enum activation_format)f;
            if (matmul_activation_format(type, format) != format) continue;
            report(check_split(CPU_ISA_NEON, type, format), "split", type);
            report(check_hostile_rows(CPU_ISA_NEON, type, format), "hostile rows", type);
        }
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
