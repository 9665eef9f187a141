#include "models/task_default.h"

/* The assembler finds the file through the compiler's -I. (the root of the tree). */
__asm__(".section .rodata\n"
        ".balign 64\n"
        "lac_task_begin:\n"
        ".incbin \"assets/task.lact\"\n"
        "lac_task_end:\n"
        ".byte 0\n"
        ".previous\n");

extern const char lac_task_begin[], lac_task_end[];

const void *task_model_default_bytes(size_t *n) {
    *n = (size_t)(lac_task_end - lac_task_begin);
    return lac_task_begin;
}

enum status task_model_default(struct task_model **out, struct error *e) {
    return task_model_read(lac_task_begin, (size_t)(lac_task_end - lac_task_begin), out, e);
}
