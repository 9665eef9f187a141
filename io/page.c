#include "io/page.h"

/* The assembler finds the file through the compiler's -I. (the root of the tree). */
__asm__(".section .rodata\n"
        "lac_page_begin:\n"
        ".incbin \"io/page.html\"\n"
        "lac_page_end:\n"
        ".byte 0\n"
        ".previous\n");

extern const char lac_page_begin[], lac_page_end[];

const char *page_html(size_t *bytes) {
    *bytes = (size_t)(lac_page_end - lac_page_begin);
    return lac_page_begin;
}
