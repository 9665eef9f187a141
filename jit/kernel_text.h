/* kernel_text.h: the CUDA C texts of jit/kernels, as they stand in the binary. */
#ifndef LAC_JIT_KERNEL_TEXT_H
#define LAC_JIT_KERNEL_TEXT_H

#include <stddef.h>

#include "jit/kernel.h"

/* X(name): texts that families share; a family's own is named like it. */
#define KERNEL_SHARED_TEXTS(X) X(common) X(weights) X(products)

enum kernel_text {
#define X(name) KERNEL_TEXT_##name,
    KERNEL_SHARED_TEXTS(X)
#undef X
#define X(TAG, name, fields, params) KERNEL_TEXT_##name,
        KERNEL_LIST(X)
#undef X
            KERNEL_TEXT_COUNT
};

/* Not NUL-terminated. */
const char *kernel_text(enum kernel_text which, size_t *bytes);

#endif
