/* program.h: what is behind exec.h's program: images of a module's kernels.
 */
#ifndef LAC_TESTS_SOFTGPU_PROGRAM_H
#define LAC_TESTS_SOFTGPU_PROGRAM_H

#include "tests/softgpu/bump.h"
#include "tests/softgpu/op.h"

struct program_function {
    struct image image;
    struct ptx_param *params;
    uint32_t n_params, params_bytes;
    uint32_t reqntid[3], maxntid[3], cluster[3];
    uint32_t ptx_version, target, const_bytes;
};

struct program_global {
    char *name;
    uint64_t address, size_bytes;
};

struct program {
    struct memory *memory;
    struct bump bump;
    struct program_function *functions; /* [n_functions] */
    uint32_t n_functions;
    struct program_global *globals; /* [n_globals] by module variable; address 0: in no memory */
    uint32_t n_globals;
};

#endif
