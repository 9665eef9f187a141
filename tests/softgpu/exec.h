/* exec.h: runs a kernel on the software device.
 *
 * program_create() turns a parsed module into compact operations and places its variables in device
 * memory (one program per module and context). exec_launch() runs one grid to its end and returns
 * findings and counters.
 *
 * Warps have 32 lanes. Each lane has its own place; lanes at the same place run together. Among
 * the groups of a diverged warp the one at the lowest address runs first (so that groups meet again
 * where control flow joins), with fairness: a group that loops is put back after a while, so lanes
 * that wait for each other inside a warp make progress (independent thread scheduling). `.sync`
 * operations wait for the lanes they name. Warps of a block, and resident blocks, take turns; a
 * seed other than 0 permutes the order of blocks and warps, the length of turns and the choice of
 * group. Results must not depend on it; tests run several seeds.
 * A block becomes resident only if fewer than SMs x occupancy are; blocks that all wait for memory
 * that nobody will change are reported (FINDING_DEADLOCK, or FINDING_CO_RESIDENCY when more blocks
 * would have to be resident), and the launch ends.
 *
 * Errors of exec_launch(): STATUS_INVALID (dimensions, parameter size, shared memory or threads
 * over the device's limits, a missing .maxntid bound kept), STATUS_NO_MEMORY, STATUS_DEVICE when
 * the launch was stopped (an access that has no memory behind it, trap, deadlock, no progress; the
 * finding says why). A finding that lets the kernel go on (undefined value, race, misaligned ...)
 * does not make the launch fail. Device memory then holds what was written so far.
 * Threads: one launch at a time per `struct memory`.
 */
#ifndef LAC_TESTS_SOFTGPU_EXEC_H
#define LAC_TESTS_SOFTGPU_EXEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "tests/softgpu/finding.h"
#include "tests/softgpu/memory.h"
#include "tests/softgpu/ptx.h"

struct program;
struct program_function;

struct exec_device {
    uint32_t compute_capability; /* 80 for 8.0 */
    uint32_t sm_count;
    uint32_t max_threads_per_block;
    uint32_t max_threads_per_sm;
    uint32_t max_blocks_per_sm;
    uint32_t registers_per_sm;
    uint32_t shared_per_sm_bytes;
    uint32_t shared_per_block_bytes;       /* without opt-in: 48 KiB */
    uint32_t shared_per_block_optin_bytes; /* the most a kernel may ask for */
    uint32_t shared_reserved_bytes;        /* per block, by the system: 1 KiB from sm_80 on */
};

/* Takes what it needs from `ptx` (which may be freed afterwards) and allocates the module's
 * variables in `memory`, which must outlive the program. STATUS_UNSUPPORTED names an instruction
 * that this device does not know, with its PTX line; STATUS_INVALID one that is malformed or newer
 * than `compute_capability` (0 = do not look). */
enum status program_create(const struct ptx_module *ptx, struct memory *memory,
                           uint32_t compute_capability, struct program **out,
                           struct error *e) LAC_MUST_USE;
void program_destroy(struct program *p); /* frees the variables' memory too */
/* The kernel of that name, or NULL. */
const struct program_function *program_find(const struct program *p, const char *name);
/* Address and size of a .global or .const variable; STATUS_NOT_FOUND. */
enum status program_variable(const struct program *p, const char *name, uint64_t *address,
                             uint64_t *size_bytes) LAC_MUST_USE;

struct program_info {
    const char *name;
    const struct ptx_param *params; /* [n_params] */
    uint32_t n_params;
    uint32_t params_bytes;
    uint32_t static_shared_bytes;
    uint32_t local_bytes;    /* per thread */
    uint32_t const_bytes;    /* of the module */
    uint32_t live_registers; /* most 32-bit registers live at once: an estimate of ptxas' count */
    uint32_t max_threads;    /* by .maxntid / .reqntid; 1024 if not stated */
    uint32_t cluster[3];     /* 0 = not stated */
    uint32_t ptx_version;    /* 90 for 9.0 */
    uint32_t target;         /* 80 */
};
void program_describe(const struct program_function *f, struct program_info *out);

/* Blocks that fit on one SM. `registers` per thread (0: program_info.live_registers is taken,
 * rounded up to 8, at least 16). */
uint32_t exec_occupancy(const struct exec_device *d, const struct program_function *f,
                        uint32_t block_threads, uint32_t dynamic_shared_bytes, uint32_t registers);

enum exec_check {
    EXEC_CHECK_BOUNDS, /* bounds, rights, alignment, barriers, deadlocks; several host threads */
    EXEC_CHECK_FULL,   /* and defined bits, races, async copies; one host thread; needs `track` */
};

/* Race checks between launches. Every launch owns an interval of clock values of its memory's
 * race shadow. A launch is ordered after all earlier ones except those the caller lists. */
struct exec_interval {
    uint64_t first, end;
};
enum { EXEC_MAX_UNORDERED = 8 };

struct exec_launch {
    const struct program_function *function;
    uint32_t grid[3], block[3];
    uint32_t cluster[3]; /* 0 or 1 = none */
    uint32_t dynamic_shared_bytes;
    uint32_t max_dynamic_shared_bytes; /* the function's attribute; 0 = 48 KiB less static */
    const void *params;                /* [params_bytes] */
    size_t params_bytes;
    uint32_t registers; /* per thread, if known (0 = estimate), for occupancy */
    uint64_t seed;      /* 0 = natural order */
    enum exec_check check;
    uint32_t threads;          /* host threads, 0 = 1 */
    uint64_t max_instructions; /* warp instructions without progress, 0 = 200 million */
    bool count_memory;         /* sectors, bank conflicts, bytes per range */
    /* Launches that may still run when this one starts, and (second list) those that may still run
     * after griddepcontrol.wait. In plain stream order both are empty. A launch B that depends
     * programmatically on A: before its wait it may overlap A (A's interval) and, unless A's result
     * has waited_first, whatever A was unordered against before its wait; after its wait, what A
     * was unordered against, if A has not waited. */
    struct exec_interval unordered_before_wait[EXEC_MAX_UNORDERED];
    uint32_t n_unordered_before_wait;
    struct exec_interval unordered_after_wait[EXEC_MAX_UNORDERED];
    uint32_t n_unordered_after_wait;
};

/* X(code, name) */
#define EXEC_CLASS_LIST(X)                                                                         \
    X(EXEC_CLASS_MOVE, "move")       /* mov, cvta, selp, param loads */                            \
    X(EXEC_CLASS_INTEGER, "integer") /* add, mul, mad, min ... */                                  \
    X(EXEC_CLASS_LOGIC, "logic")     /* and, shl, prmt, lop3, bfe ... */                           \
    X(EXEC_CLASS_DOT, "dot")         /* dp4a, dp2a */                                              \
    X(EXEC_CLASS_FLOAT, "float")     /* 32 and 16 bit arithmetic */                                \
    X(EXEC_CLASS_DOUBLE, "double")   /* any float64 */                                             \
    X(EXEC_CLASS_SPECIAL, "special") /* rcp, sqrt, ex2, division ... */                            \
    X(EXEC_CLASS_CONVERT, "convert")                                                               \
    X(EXEC_CLASS_COMPARE, "compare") /* setp, set */                                               \
    X(EXEC_CLASS_CONTROL, "control") /* bra, call, ret, exit */                                    \
    X(EXEC_CLASS_WARP, "warp")       /* shfl, vote, match, redux */                                \
    X(EXEC_CLASS_MATRIX, "matrix")   /* mma */                                                     \
    X(EXEC_CLASS_LOAD_GLOBAL, "ld.global")                                                         \
    X(EXEC_CLASS_STORE_GLOBAL, "st.global")                                                        \
    X(EXEC_CLASS_LOAD_SHARED, "ld.shared") /* and ldmatrix */                                      \
    X(EXEC_CLASS_STORE_SHARED, "st.shared")                                                        \
    X(EXEC_CLASS_LOCAL, "local")                                                                   \
    X(EXEC_CLASS_ATOMIC, "atomic")                                                                 \
    X(EXEC_CLASS_ASYNC, "async")     /* cp.async, bulk copies, mbarrier */                         \
    X(EXEC_CLASS_BARRIER, "barrier") /* bar, membar, fence, griddepcontrol */

#define X(code, name) code,
enum exec_class { EXEC_CLASS_LIST(X) EXEC_CLASS_COUNT };
#undef X

struct exec_bytes {
    uint64_t base; /* of the range */
    char label[32];
    uint64_t loaded_bytes, stored_bytes; /* by active lanes */
};

struct exec_counters {
    uint64_t warp_instructions[EXEC_CLASS_COUNT]; /* issued */
    uint64_t lane_instructions[EXEC_CLASS_COUNT]; /* active lanes; guards do not subtract */
    uint64_t blocks;
    uint64_t warps;
    uint64_t barriers;                                    /* bar.sync passed, per block */
    uint64_t divergent_branches;                          /* warp branches whose lanes parted */
    uint64_t global_load_requests, global_store_requests; /* warp instructions */
    uint64_t global_load_sectors, global_store_sectors;   /* of 32 bytes, distinct per request */
    uint64_t global_load_needed, global_store_needed; /* ceil(distinct bytes / 32) per request */
    uint64_t shared_requests;   /* loads, stores, ldmatrix, async copies: warp instructions */
    uint64_t shared_wavefronts; /* passes that bank conflicts make of them */
    uint64_t shared_ideal;      /* passes without conflicts */
    uint64_t shared_degree[33]; /* [d]: requests whose worst pass had d-way conflict, 1..32 */
    uint32_t live_registers;
    uint32_t occupancy;      /* blocks per SM */
    uint32_t resident_limit; /* blocks */
    uint32_t resident_peak;
    struct exec_bytes *bytes; /* [n_bytes] by allocation, in order of address; heap */
    uint32_t n_bytes;
};

struct exec_result {
    struct exec_counters counters;
    bool waited;       /* every thread executed griddepcontrol.wait (or the grid is empty) */
    bool waited_first; /* each did so before any launch_dependents of its own */
    struct exec_interval interval; /* clock values of this launch, for later ones */
    uint64_t elapsed_ns;           /* of the host; says nothing about a GPU */
};

/* `findings` gets what is found. `result` is always filled as far as known; its heap part is freed
 * by exec_result_free(). `device` is copied. */
enum status exec_launch(const struct exec_device *device, struct memory *memory,
                        const struct exec_launch *launch, struct finding_list *findings,
                        struct exec_result *result, struct error *e) LAC_MUST_USE;
void exec_result_free(struct exec_result *r);
const char *exec_class_name(enum exec_class c);
/* The counters as text, one "name value" a line. */
void exec_counters_print(const struct exec_counters *c, FILE *out);

#endif
