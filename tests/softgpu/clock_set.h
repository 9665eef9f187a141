/* clock_set.h: sparse vector clocks. A set says of threads and of whole blocks up to which clock
 * value (exclusive) their accesses are known to have happened before. Sets are immutable and live
 * in a bump; NULL is the empty set. Keys: a thread's number, or CLOCK_BLOCK | a block's number. Out
 * of memory is remembered in the pool and answered with the larger input (races may be reported
 * that are none; the launch fails with STATUS_NO_MEMORY).
 */
#ifndef LAC_TESTS_SOFTGPU_CLOCK_SET_H
#define LAC_TESTS_SOFTGPU_CLOCK_SET_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/softgpu/bump.h"

#define CLOCK_BLOCK (UINT64_C(1) << 63)

struct clock_entry {
    uint64_t key;
    uint32_t until; /* clocks below this are known */
};
struct clock_set {
    uint32_t n;
    struct clock_entry entry[]; /* by key */
};
struct clock_pool {
    struct bump bump;
    bool no_memory;
};

/* `entries` need not be sorted; equal keys keep the larger clock. */
const struct clock_set *clock_set_make(struct clock_pool *p, struct clock_entry *entries,
                                       uint32_t n);
const struct clock_set *clock_set_join(struct clock_pool *p, const struct clock_set *a,
                                       const struct clock_set *b);
uint32_t clock_set_get(const struct clock_set *s, uint64_t key); /* 0 if nothing is known */

#endif
