/* run.h: the state of a launch while it runs; shared by the files of the interpreter.
 */
#ifndef LAC_TESTS_SOFTGPU_RUN_H
#define LAC_TESTS_SOFTGPU_RUN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "core/check.h"
#include "tests/softgpu/exec.h"
#include "tests/softgpu/memory.h"
#include "tests/softgpu/op.h"

/* Lane types: a register is read as whatever the operation's type says. */
typedef uint32_t u32x __attribute__((may_alias));
typedef int32_t s32x __attribute__((may_alias));
typedef uint64_t u64x __attribute__((may_alias));
typedef int64_t s64x __attribute__((may_alias));
typedef float f32x __attribute__((may_alias));
typedef double f64x __attribute__((may_alias));

enum warp_stop {
    STOP_NONE,
    STOP_YIELD, /* its turn is over */
    STOP_WAIT,  /* every group waits for lanes or a barrier */
    STOP_SPIN,  /* in the same state as before: waits for memory to change */
    STOP_EXIT,  /* all lanes have ended */
    STOP_ABORT, /* the launch ends */
};

enum group_state {
    GROUP_READY,
    GROUP_SYNC,     /* waits for lanes at a .sync operation */
    GROUP_BARRIER,  /* waits at a barrier of the block */
    GROUP_CONVERGE, /* at an aligned operation: waits until no other group of the warp can run */
};

/* Lanes of a warp that are at the same operation. */
struct group {
    uint32_t mask;
    enum group_state state;
    uint32_t wait_mask; /* GROUP_SYNC: the lanes it waits for */
    uint32_t barrier;   /* GROUP_BARRIER: its number */
    const struct op *pc;
};

struct copy_queue; /* async.c */

struct warp {
    uint8_t *regs;
    const uint8_t *consts;
    uint32_t exec;   /* lanes the current operation is for */
    uint32_t active; /* lanes of the current group */
    int64_t fuel;    /* operations until the turn ends */
    uint8_t *poison; /* NULL: no tracking */
    struct block *block;
    struct worker *worker;
    const struct image *image;
    uint32_t exited; /* lanes that have ended, or never were */
    uint32_t index;  /* in the block */
    uint32_t carry;  /* the condition code, a bit per lane */
    uint32_t n_groups;
    struct group groups[LANES]; /* besides the current one, in no order */
    const struct op *resume;
    enum warp_stop stop;
    bool converged; /* the current group has waited as GROUP_CONVERGE */
    uint32_t grace; /* joins for which the current group is not put back */
    uint64_t rng;
    uint64_t executed;      /* operations, roughly: the clock */
    uint64_t spin_progress; /* progress when it was found to spin */
    const struct op *watch; /* the join at which a spinning warp is looked for */
    uint32_t watch_tries;
    uint8_t *watch_regs; /* [registers_bytes] */
    uint32_t watch_lanes;
    uint8_t *local;        /* [LANES][local_bytes] */
    uint8_t *local_poison; /* [LANES][local_bytes] a byte each, or NULL */
    struct copy_queue *copies;
    uint32_t waited;         /* lanes that executed griddepcontrol.wait */
    uint32_t launched_early; /* lanes that let dependents go before they waited */
};

enum { MAX_BARRIERS = 16 };

struct barrier {
    uint32_t arrived;        /* threads */
    uint32_t expected;       /* 0: all threads that live */
    uint32_t popc, all, any; /* of bar.red's predicate */
    const struct op *first;  /* who came first */
    uint32_t waiting;
    const struct clock_set *released; /* race.c: what those who came have done */
    bool partial;                     /* somebody came without waiting */
};

enum block_state { BLOCK_READY, BLOCK_PARKED, BLOCK_DONE };

struct block_races; /* race.c */

struct block {
    struct launch *launch;
    uint32_t id[3];
    uint64_t linear; /* number in the grid */
    uint32_t n_warps, n_threads, live_warps;
    uint32_t ended_threads;
    struct warp *warps;      /* [n_warps] */
    uint8_t *shared;         /* [shared_bytes], addressed from 0; below SHARED_FIRST nothing lies */
    uint8_t *shared_poison;  /* a byte (0 or 1) per byte, or NULL */
    uint8_t *shared_pending; /* a byte per byte: async copies under way, or NULL */
    uint32_t shared_bytes;
    uint32_t next_warp;
    struct barrier barriers[MAX_BARRIERS];
    struct block_races *races;
    uint64_t parked_progress;
    struct block *next;
    uint64_t rng;
    void *memory;
};

/* Where an operation's last access went. */
struct access_cache {
    uint64_t base, bytes; /* addresses [base, base + bytes) are good */
    uint64_t delta;       /* host = address + delta */
    const struct memory_range *range;
    bool writable;
};

struct worker {
    struct launch *launch;
    struct access_cache *cache; /* [n_ops] */
    uint64_t *join_count;       /* [n_joins] */
    uint64_t *join_lanes;
    struct exec_counters counters;
    uint64_t *loaded, *stored; /* [n_ranges] by range index */
    uint32_t n_ranges;
    _Atomic uint64_t progress; /* writes that changed memory; only this worker adds */
    pthread_t thread;
    struct block *spare; /* memory of an ended block, for the next */
};

struct launch {
    const struct exec_launch *request;
    const struct exec_device *device;
    struct memory *memory;
    const struct image *image;
    struct finding_list *findings;
    struct races *races; /* NULL: no tracking */
    uint8_t *params;
    uint32_t shared_bytes; /* of a block, as addressed here */
    uint32_t block_threads, block_warps;
    uint64_t grid_blocks;
    bool track, count_memory;
    uint32_t turn;                 /* operations of a warp's turn */
    struct image_variable *shared; /* [n_shared] with the dynamic one's size filled in */
    uint32_t n_shared;
    /* under the lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t started, ended;
    uint64_t resident, resident_limit, resident_peak;
    struct block *ready, *ready_tail;
    uint32_t busy; /* workers that run a block */
    struct worker *workers;
    uint32_t n_workers;
    _Atomic bool abort;
    _Atomic uint64_t fences;
    _Atomic uint64_t idle_instructions; /* since the last progress */
    _Atomic uint64_t idle_progress;
    uint64_t order_rng;
    uint64_t stride; /* of the order of blocks: i -> (i * stride + shift) mod grid_blocks */
    uint64_t shift;
    uint64_t not_waited, early; /* lanes that ended without wait, or let go before it */
    bool no_memory;
};

static inline const void *in_place(const struct warp *w, int32_t place) {
    return (place >= 0 ? w->regs : w->consts) + (place & 0x7fffffff);
}
static inline void *out_place(const struct warp *w, int32_t place) {
    return w->regs + place;
}
static inline uint32_t pred_in(const struct warp *w, int32_t place) {
    return *(const u32x *)in_place(w, place);
}
static inline void pred_out(const struct warp *w, int32_t place, uint32_t lanes, uint32_t bits) {
    u32x *p = out_place(w, place);
    *p = (*p & ~lanes) | (bits & lanes);
}
/* Poison of a register; constants have none. */
static inline const uint8_t *poison_in(const struct warp *w, int32_t place) {
    static const uint8_t none[128];
    return place >= 0 ? w->poison + place / 4 : none;
}
static inline uint8_t *poison_out(const struct warp *w, int32_t place) {
    return w->poison + place / 4;
}
static inline uint32_t first_lane(uint32_t mask) {
    return (uint32_t)__builtin_ctz(mask);
}
static inline uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static inline void made_progress(struct worker *k) {
    atomic_store_explicit(&k->progress,
                          atomic_load_explicit(&k->progress, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

/* warp.c */
void warp_start(struct warp *w);
void warp_run(struct warp *w); /* until w->stop */
op_fn op_guarded, op_join, op_branch, op_branch_table, op_call, op_return, op_exit, op_trap, op_nop,
    op_warp_barrier, op_sleep;
/* For a .sync operation with the lanes it names in each lane of `mask`: the lanes that are all
 * here, or 0 if some lanes must wait (then *next says how to go on). */
uint32_t warp_sync(struct warp *w, const struct op *op, const u32x *mask, const struct op **next);
/* The current group (or its lanes `exec`) goes to sleep at `pc`; returns how to go on. */
const struct op *warp_block_group(struct warp *w, const struct op *pc, enum group_state state,
                                  uint32_t wait_mask, uint32_t barrier);
const struct op *warp_next_group(struct warp *w);
void warp_recheck(struct warp *w); /* lanes have ended: may others go on? */
const struct op *warp_abort(struct warp *w, const struct op *op);

/* block.c */
bool block_start(struct worker *k, struct block *b, uint64_t number); /* false: no memory */
struct block *block_create(struct launch *l);
void block_destroy(struct block *b);
enum block_state block_run(struct worker *k, struct block *b);
void block_lanes_ended(struct warp *w, uint32_t lanes);
op_fn op_barrier;

/* report.c */
void report(struct warp *w, const struct op *op, enum finding_kind kind, uint32_t lane,
            uint64_t address, const char *fmt, ...) LAC_PRINTF(6, 7);
void report_address(struct warp *w, const struct op *op, uint32_t lane, uint64_t address,
                    uint32_t bytes, const char *what);
void lane_thread(const struct warp *w, uint32_t lane, uint32_t out[3]);

/* access.c */
op_fn op_load, op_store, op_load_param, op_store_param, op_copy_area, op_prefetch, op_fence,
    op_ldmatrix, op_stmatrix, op_isspacep, op_cvta;
/* Host addresses of [address, +bytes) for the lanes in w->exec; false: reported, launch ends.
 * `space` GENERIC decides by address. */
bool access_resolve(struct warp *w, const struct op *op, enum ptx_space space,
                    const uint64_t address[LANES], uint32_t bytes, bool write,
                    uint8_t *host[LANES]);
void access_addresses(const struct warp *w, const struct op *op, uint64_t address[LANES]);
uint64_t access_generic_space(uint64_t address, enum ptx_space *space); /* offset in it */

/* track.c: defined bits and races of one access of the lanes in w->exec. poison[lane]: bit i = byte
 * i of what was read, or is to be written, is undefined. */
void track_read(struct warp *w, const struct op *op, enum ptx_space space,
                const uint64_t address[LANES], uint32_t bytes, uint32_t poison[LANES]);
void track_write(struct warp *w, const struct op *op, enum ptx_space space,
                 const uint64_t address[LANES], uint32_t bytes, const uint32_t poison[LANES]);
/* An atomic update; poison is that of the new value's bytes and becomes that of the old one's. */
void track_atomic(struct warp *w, const struct op *op, enum ptx_space space,
                  const uint64_t address[LANES], uint32_t bytes, uint32_t poison[LANES]);
/* Of a single lane, which need not be in w->exec: a copy that lands. */
uint32_t track_read_lane(struct warp *w, const struct op *op, enum ptx_space space, uint32_t lane,
                         uint64_t address, uint32_t bytes);
void track_write_lane(struct warp *w, const struct op *op, enum ptx_space space, uint32_t lane,
                      uint64_t address, uint32_t bytes, uint32_t poison);

/* traffic.c */
void traffic_global(struct worker *k, const uint64_t address[LANES], uint32_t lanes, uint32_t bytes,
                    bool store);
void traffic_shared(struct worker *k, const uint64_t address[LANES], uint32_t lanes,
                    uint32_t bytes);

/* atomics.c, async.c, collective.c */
op_fn op_atomic;
op_fn op_cp_async, op_cp_async_commit, op_cp_async_wait, op_mbarrier, op_bulk_copy, op_bulk_commit,
    op_bulk_wait;
void async_free(struct warp *w);
void async_reset(struct warp *w); /* forgets the copies of the block before */
op_fn op_shuffle, op_vote, op_match, op_redux, op_activemask, op_elect;
op_fn op_griddep_wait, op_griddep_launch;
op_fn op_special;

/* undefined.c: before an operation runs. */
void undefined_step(struct warp *w, const struct op *op);
/* Reports the lanes whose value is used as `what` though undefined. */
void undefined_use(struct warp *w, const struct op *op, int32_t place, uint32_t lanes,
                   uint8_t bytes, const char *what);

/* race.c */
enum access_kind { ACCESS_READ, ACCESS_WRITE, ACCESS_ATOMIC };
struct races *races_create(struct launch *l);
void races_finish(struct launch *l, struct exec_interval *interval);
bool races_block_start(struct block *b);
void races_block_end(struct block *b);
/* One lane reads or writes [address, +bytes) of global (range) or shared memory. */
void races_global(struct warp *w, const struct op *op, uint32_t lane,
                  const struct memory_range *range, uint64_t address, uint32_t bytes,
                  enum access_kind kind);
void races_shared(struct warp *w, const struct op *op, uint32_t lane, uint32_t address,
                  uint32_t bytes, enum access_kind kind);
void races_warp_sync(struct warp *w, uint32_t lanes);
void races_barrier_arrive(struct warp *w, struct barrier *bar, uint32_t lanes, bool waits);
void races_barrier_leave(struct block *b, struct barrier *bar, uint32_t number);
void races_fence(struct warp *w, uint32_t lane, enum op_scope scope);
/* A strong write (after it) or read (before its value is used) at `address`, for release/acquire.
 */
void races_release(struct warp *w, uint32_t lane, uint64_t address, bool shared, bool release,
                   bool rmw, enum op_scope scope);
void races_acquire(struct warp *w, uint32_t lane, uint64_t address, bool shared, bool acquire,
                   enum op_scope scope);
void races_grid_wait(struct warp *w, uint32_t lanes);

#endif
