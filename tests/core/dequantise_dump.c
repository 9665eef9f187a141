/* dequantise_dump TYPE: blocks of that type on stdin, F32 weights on stdout. A test tool for
 * tests/models/compare_dequantise.py; exit 2 on bad usage, 1 on a torn block or a failed write. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "core/tensor.h"

int main(int argc, char **argv) {
    unsigned type = 0;
    while (type < TENSOR_TYPE_COUNT &&
           (argc != 2 || strcmp(argv[1], tensor_format((enum tensor_type)type)->name) != 0)) {
        type++;
    }
    if (type == TENSOR_TYPE_COUNT) {
        fprintf(stderr, "usage: dequantise_dump TYPE\n");
        return 2;
    }
    const struct tensor_format *f = tensor_format((enum tensor_type)type);
    uint8_t block[256];
    float weights[256];
    size_t got;
    while ((got = fread(block, 1, f->block_bytes, stdin)) == f->block_bytes) {
        tensor_dequantise((enum tensor_type)type, block, weights, f->block_weights);
        if (fwrite(weights, sizeof weights[0], f->block_weights, stdout) != f->block_weights)
            return 1;
    }
    return got == 0 && !ferror(stdin) && fflush(stdout) == 0 ? 0 : 1;
}
