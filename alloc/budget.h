/* budget.h: the memory plan, written before anything is taken, and what the machine allows.
 *
 * A plan is a list of named lines; sums saturate. The limit is the smaller of the machine's memory
 * and the limits of this process's control groups (versions 1 and 2, all ancestors).
 * Errors: budget_check gives STATUS_NO_MEMORY with one line that says what is needed, what there
 * is, and the largest line. Files in /proc and /sys that cannot be read mean "no limit known".
 */
#ifndef LAC_ALLOC_BUDGET_H
#define LAC_ALLOC_BUDGET_H

#include <stdint.h>
#include <stdio.h>

#include "core/status.h"

enum { BUDGET_MAX_LINES = 24, BUDGET_TEXT_BYTES = 24 };

struct budget_line {
    char name[40]; /* cut to fit */
    uint64_t bytes;
};

struct budget {
    uint32_t n_lines;
    struct budget_line lines[BUDGET_MAX_LINES];
    uint64_t total_bytes; /* UINT64_MAX: more than can be counted */
};

void budget_init(struct budget *b);
void budget_add(struct budget *b, const char *name, uint64_t bytes);

struct memory_limit {
    uint64_t physical_bytes;  /* UINT64_MAX if unknown */
    uint64_t available_bytes; /* what could be had now without swapping; UINT64_MAX if unknown */
    uint64_t cgroup_bytes;    /* UINT64_MAX if none */
    uint64_t limit_bytes;     /* the smaller of physical and cgroup */
};

/* root: "" for this machine; a folder that holds proc/ and sys/ for a test. */
void memory_limit_read(struct memory_limit *m, const char *root);

enum status budget_check(const struct budget *b, const struct memory_limit *m, struct error *e);

/* A table, one line each, then the total, then the limit if m is not NULL. */
void budget_print(const struct budget *b, const struct memory_limit *m, FILE *out);

/* "512 B", "1.5 KiB", "2.0 GiB"; returns text. */
const char *budget_format(uint64_t bytes, char text[BUDGET_TEXT_BYTES]);

#endif
