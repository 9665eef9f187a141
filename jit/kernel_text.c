#include "jit/kernel_text.h"

#include "core/check.h"

/* The assembler finds the files through the compiler's -I. (the root of the tree). */
#define X(name)                                                                                    \
    __asm__(".section .rodata\n"                                                                   \
            "lac_kernel_" #name "_begin:\n"                                                        \
            ".incbin \"jit/kernels/" #name ".cu\"\n"                                               \
            "lac_kernel_" #name "_end:\n"                                                          \
            ".byte 0\n"                                                                            \
            ".previous\n");                                                                        \
    extern const char lac_kernel_##name##_begin[], lac_kernel_##name##_end[];
#define FAMILY(TAG, name, fields, params) X(name)
KERNEL_SHARED_TEXTS(X)
KERNEL_LIST(FAMILY)
#undef X
#undef FAMILY

const char *kernel_text(enum kernel_text which, size_t *bytes) {
    switch (which) {
#define X(name)                                                                                    \
    case KERNEL_TEXT_##name:                                                                       \
        *bytes = (size_t)(lac_kernel_##name##_end - lac_kernel_##name##_begin);                    \
        return lac_kernel_##name##_begin;
#define FAMILY(TAG, name, fields, params) X(name)
        KERNEL_SHARED_TEXTS(X)
        KERNEL_LIST(FAMILY)
#undef X
#undef FAMILY
    case KERNEL_TEXT_COUNT:
        break;
    }
    CHECK(false);
    return NULL;
}
