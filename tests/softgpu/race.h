/* race.h: the state of happens-before checks; shared by race.c (who knows what) and race_cells.c
 * (what was accessed).
 *
 * Every thread has a clock that moves on whenever it releases. An access is (thread, clock). Thread
 * u comes after it if it is u's own, or if u knows the thread's, or its whole block's, accesses up
 * to that clock: through barriers of the block, bar.warp.sync, and release/acquire. Shuffles and
 * votes order nothing (they are no memory barriers). Clocks go on from launch to launch, so that
 * accesses of earlier launches are told by their clock.
 */
#ifndef LAC_TESTS_SOFTGPU_RACE_H
#define LAC_TESTS_SOFTGPU_RACE_H

#include "tests/softgpu/clock_set.h"
#include "tests/softgpu/run.h"

/* Readers of a cell beyond the first. */
struct race_reader {
    uint64_t warp; /* number in the grid; RACE_WHOLE_BLOCK | block: some threads of it */
    uint32_t lanes;
    uint32_t clock;
    uint32_t op;
    uint8_t bytes; /* which of the cell's four */
    bool strong;
};
#define RACE_WHOLE_BLOCK (UINT64_C(1) << 63)
#define RACE_WHOLE_GRID  UINT64_MAX

struct race_write_cell { /* of four bytes */
    uint64_t thread[4];
    uint32_t clock[4]; /* 0: never */
    uint32_t op[4];
    uint8_t strong[4]; /* 0, or 1 + scope */
};
struct race_read_cell {
    struct race_reader first; /* clock 0: none */
    struct race_reader *more;
    uint32_t n_more, cap_more;
};

struct race_thread {
    uint32_t clock;
    uint32_t block_until; /* clocks of the own block below this are known */
    uint32_t seen[LANES]; /* of the own warp's lanes */
    const struct clock_set *known;
    const struct clock_set *fenced[2]; /* what a relaxed write releases: 0 in the block, 1 beyond */
    const struct clock_set *pending[2]; /* what a fence acquires, likewise */
};

/* A location through which threads synchronise. */
struct race_location {
    uint64_t key;
    uint64_t block;
    const struct clock_set *released[2]; /* 0: to the own block only, 1: to all */
    struct race_location *next;
};

struct block_races {
    struct race_thread *threads;    /* [n_threads rounded up to warps] */
    struct race_write_cell *writes; /* [shared_bytes / 4] */
    struct race_read_cell *reads;
    uint32_t n_threads;
};

enum { RACE_LOCATIONS = 1024 };

struct races {
    struct launch *launch;
    struct clock_pool *pool; /* of the launch */
    struct bump *readers;    /* of the memory: lists that outlive the launch */
    uint32_t first, highest; /* clocks of this launch */
    uint32_t valid;          /* records below this are ordered before everything */
    struct race_location *locations[RACE_LOCATIONS];
};

/* What race_cells.c asks: did the access (thread of the grid, clock) happen before `lane` goes on?
 */
bool race_ordered(const struct warp *w, uint32_t lane, uint64_t thread, uint32_t clock);
bool race_ordered_block(const struct warp *w, uint32_t lane, uint64_t block, uint32_t clock);
uint32_t race_clock(const struct warp *w, uint32_t lane);

static inline uint64_t race_threads_per_block(const struct launch *l) {
    return (uint64_t)l->block_warps * LANES;
}

#endif
