/* finding.h: what the checker found, as records.
 *
 * One record per (kind, kernel, PTX line): the first occurrence is described, later ones only add
 * to `count`. The order is that of first occurrence. A list holds at most FINDING_LIMIT records;
 * further distinct ones add to `dropped`. Adding is thread-safe; reading is for when no launch
 * runs.
 */
#ifndef LAC_TESTS_SOFTGPU_FINDING_H
#define LAC_TESTS_SOFTGPU_FINDING_H

#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include "core/status.h"

/* X(code, name) */
#define FINDING_LIST(X)                                                                            \
    X(FINDING_OUT_OF_BOUNDS, "out of bounds")                                                      \
    X(FINDING_FREED, "freed memory")                                                               \
    X(FINDING_UNMAPPED, "unmapped address")                                                        \
    X(FINDING_ACCESS_RIGHTS, "access rights")                                                      \
    X(FINDING_MISALIGNED, "misaligned")                                                            \
    X(FINDING_UNDEFINED, "undefined value")                                                        \
    X(FINDING_RACE, "race")                                                                        \
    X(FINDING_ASYNC_COPY, "async copy not waited for")                                             \
    X(FINDING_BARRIER, "divergent barrier")                                                        \
    X(FINDING_WARP_SYNC, "bad warp sync mask")                                                     \
    X(FINDING_DEADLOCK, "deadlock")                                                                \
    X(FINDING_CO_RESIDENCY, "co-residency")                                                        \
    X(FINDING_HANG, "no progress")                                                                 \
    X(FINDING_MBARRIER, "mbarrier misuse")                                                         \
    X(FINDING_TRAP, "trap")                                                                        \
    X(FINDING_HOST, "host misuse")

#define X(code, name) code,
enum finding_kind { FINDING_LIST(X) FINDING_KIND_COUNT };
#undef X

enum { FINDING_LIMIT = 256, FINDING_TEXT_BYTES = 320, FINDING_NAME_BYTES = 128 };

struct finding {
    enum finding_kind kind;
    char kernel[FINDING_NAME_BYTES];
    uint32_t ptx_line;    /* line of the PTX text, from 1; 0 = not at an instruction */
    uint32_t source_line; /* by .loc (-lineinfo); 0 = unknown */
    uint32_t source_file; /* .file index of that line */
    uint64_t address;     /* at fault, or 0 */
    uint32_t block[3];
    uint32_t thread[3];
    uint64_t count;                /* occurrences, >= 1 */
    char text[FINDING_TEXT_BYTES]; /* one sentence for a person, no newline */
};

struct finding_list {
    pthread_mutex_t lock;
    struct finding *items; /* [n] */
    uint32_t n;
    uint32_t cap;
    uint64_t dropped;
};

void finding_list_init(struct finding_list *l);
void finding_list_free(struct finding_list *l);
void finding_list_clear(struct finding_list *l);
/* Adds `f` with `text` formatted from fmt; f->count is ignored. */
void finding_add(struct finding_list *l, const struct finding *f, const char *fmt, ...)
    LAC_PRINTF(3, 4);
/* Occurrences of one kind, and of all. */
uint64_t finding_count(const struct finding_list *l, enum finding_kind kind);
uint64_t finding_total(const struct finding_list *l);
const char *finding_kind_name(enum finding_kind kind);
/* One line each. */
void finding_print(const struct finding_list *l, FILE *out);

#endif
