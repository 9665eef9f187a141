/* driver.h: the inside of the software driver, shared by tests/softgpu/driver_*.c.
 *
 * The CUDA driver API has no context argument, so there is one `struct soft` for the library.
 * Handles are numbers (kind and index), never pointers; an index is not used twice, so a stale
 * handle is recognised.
 *
 * Operations. Whatever the API calls asynchronous becomes a `struct work` with edges to the
 * operations it must follow (the stream's last one, events waited for, graph edges). Nothing runs
 * until somebody waits; then the target's ancestors run, in a seeded order. An operation is
 * "observed" once the host has learned that it is done (a synchronise, a query that answered
 * success, a host function behind it); only then may its host buffers be reused.
 *
 * Locks: `run` is held by whoever executes operations or changes the memory map, one at a time;
 * `lock` guards all the rest and is given up while a kernel or a host function runs. Order: run,
 * then lock.
 */
#ifndef LAC_TESTS_SOFTGPU_DRIVER_H
#define LAC_TESTS_SOFTGPU_DRIVER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/cuda.h"
#include "tests/softgpu/exec.h"
#include "tests/softgpu/finding.h"
#include "tests/softgpu/memory.h"
#include "tests/softgpu/ptx.h"
#include "tests/softgpu/softgpu.h"

/* Figures of one product; those of its compute capability are in driver_device.c too. */
struct device_spec {
    const char *key; /* SOFTGPU_DEVICE */
    const char *name;
    uint32_t cc, n_sms;
    uint32_t l2_bytes;
    uint32_t clock_khz;
    uint32_t bus_bits;
    uint64_t bandwidth_bytes; /* per second */
    uint64_t total_bytes;
};
const struct device_spec *device_spec_find(const char *key); /* NULL: unknown */
/* n_sms 0: the product's. */
struct exec_device device_exec(const struct device_spec *d, uint32_t n_sms);
/* CUDA_ERROR_INVALID_VALUE for an attribute that is not modelled. */
enum cu_result device_attribute(const struct device_spec *d, const struct exec_device *x,
                                int attribute, int *value);

enum handle_kind {
    HANDLE_CONTEXT = 1,
    HANDLE_MODULE,
    HANDLE_FUNCTION,
    HANDLE_STREAM,
    HANDLE_EVENT,
    HANDLE_GRAPH,
    HANDLE_NODE,
    HANDLE_EXEC,
    HANDLE_BLOCK,
};

struct module;
struct function {
    struct module *module;
    const struct program_function *code;
    struct program_info info;
    uint32_t max_dynamic_bytes; /* attribute 8 */
    bool non_portable_cluster;
    void *handle;
};
struct module {
    struct program *program;
    struct function **functions; /* [n] those asked for */
    uint32_t n_functions, cap_functions;
    bool unloaded;
    struct module *next_unloaded; /* soft.unloaded */
};

enum work_kind { WORK_KERNEL, WORK_COPY, WORK_FILL, WORK_HOST, WORK_RECORD, WORK_JOIN };

struct kernel_op {
    struct function *function;
    uint32_t grid[3], block[3], cluster[3];
    uint32_t dynamic_bytes;
    uint8_t *params; /* owned */
    size_t params_bytes;
    bool cooperative;
};
struct copy_op { /* exactly one address of each end */
    uint8_t *dst_host;
    const uint8_t *src_host;
    uint64_t dst_device, src_device;
    uint64_t bytes;
    uint64_t source_hash; /* of src_host when it was enqueued */
};
struct fill_op {
    uint64_t dst;
    uint32_t value, width_bytes;
    uint64_t count;
};
struct host_op {
    cu_host_function *function;
    void *arg;
};

struct work;
struct work_edge {
    struct work *work; /* a reference */
    bool programmatic;
};
struct work {
    enum work_kind kind;
    uint32_t references;
    uint64_t enqueued_at, observed_at; /* soft.clock; 0: not yet */
    bool done;
    struct work *next, *previous; /* soft.works, in order of enqueueing */
    struct work_edge *after;      /* [n_after] */
    uint32_t n_after, cap_after;
    union {
        struct kernel_op kernel;
        struct copy_op copy;
        struct fill_op fill;
        struct host_op host;
    };
    /* of a kernel that ran */
    struct exec_interval interval;
    bool waited, waited_first;
    /* scratch of the walks in driver_order.c */
    uint64_t mark_start, mark_wait, mark_complete, mark_need;
    struct work *walk;
};

struct stream {
    bool legacy, blocking;
    struct work *tail;       /* a reference, or NULL */
    struct work_edge *waits; /* [n_waits] edges of the next operation */
    uint32_t n_waits, cap_waits;
    struct stream *next; /* soft.streams */
    void *handle;
};
struct event {
    struct work *record; /* a reference, or NULL: never recorded */
    bool timing;
};

struct kernel_stats {
    char name[FINDING_NAME_BYTES];
    uint64_t launches;
    uint64_t elapsed_ns;
    struct exec_counters sum; /* bytes: by label, merged */
    struct kernel_stats *next;
};

struct faults {
    uint64_t launch, lost, corrupt; /* countdowns; 0: none */
    uint64_t memory_bytes;          /* UINT64_MAX: none */
    char lost_file[256];
};

struct handle_entry {
    uint8_t kind;
    void *object; /* NULL: destroyed */
};
struct host_block { /* cuMemHostAlloc and cuMemHostRegister */
    uint8_t *data;
    uint64_t bytes;
    void *mapping; /* NULL: registered, not ours */
    uint64_t mapping_bytes;
    struct host_block *next;
};

struct soft {
    pthread_mutex_t run, lock;
    pthread_cond_t wake; /* for the thread that runs host functions */
    bool ready;          /* settings were read */
    bool initialised;    /* cuInit */
    /* settings */
    const struct device_spec *spec;
    struct exec_device device;
    int driver_version;
    uint64_t seed;
    enum exec_check check;
    uint32_t threads;
    bool count_memory;
    char report[512];
    /* state */
    struct faults faults;
    enum cu_result lost; /* CUDA_SUCCESS: not */
    struct memory *memory;
    struct finding_list findings;
    uint64_t rules[HOST_RULE_COUNT];
    uint64_t clock, walks, draws;
    struct handle_entry *handles;
    uint32_t n_handles, cap_handles;
    uint32_t context_references;
    uint64_t context_generation;
    void *context;
    struct work *works, *works_last;
    uint64_t n_pending;
    struct stream *streams; /* legacy first */
    struct host_block *host_blocks;
    struct module *unloaded;
    struct kernel_stats *stats;
    uint64_t executed[WORK_JOIN + 1];
    bool worker_started;
};
extern struct soft soft;

/* driver_state.c */
void soft_lock(void); /* reads the settings the first time */
void soft_unlock(void);
/* Both locks, in order. */
void soft_run_lock(void);
void soft_run_unlock(void);
/* Whether the caller may go on: initialised, not lost and, if `context`, with a current context
 * and outside of a host function. lock is held. */
enum cu_result soft_enter(const char *call, bool context);
void soft_set_current(void *context); /* of this thread */
void *soft_current(void);
void soft_context_end(void);    /* the last reference is gone: memory and handles go */
void soft_reset(void);          /* run and lock are held */
void *soft_alloc(size_t bytes); /* zeroed; ends the process when there is none */
void *soft_grow(void *items, uint32_t *cap, uint32_t n, size_t item_bytes);
uint64_t soft_draw(void); /* the next of the seeded numbers; 0 under seed 0 */
void soft_in_callback(bool inside);
void *handle_new(enum handle_kind kind, void *object);
/* NULL, and a finding, when it is not a live handle of that kind. */
void *handle_get(enum handle_kind kind, const void *handle, const char *call);
void handle_end(const void *handle);
void rule_broken(enum host_rule rule, uint64_t address, const char *fmt, ...) LAC_PRINTF(3, 4);
/* lock is held. Counts down and says whether this one fails. */
bool fault_due(uint64_t *countdown);
bool fault_parse(const char *text, struct faults *out);

/* What a context's end takes with it; run and lock are held. */
struct graph;
struct graph_exec;
void graph_free(struct graph *g);
void graph_exec_free(struct graph_exec *x);
void stream_free(struct stream *s);
void event_free(struct event *e);
void host_block_free(struct host_block *b);
void module_free(struct module *m);

/* driver_work.c: lock is held */
struct work *work_new(enum work_kind kind);
void work_retain(struct work *o);
void work_release(struct work *o);
/* No edge when the host already knows that `after` is done. */
void work_add_edge(struct work *o, struct work *after, bool programmatic);
/* Into soft.works. Called once the edges are known. */
void work_enqueue(struct work *o);
/* The stream's order: edges to what is ahead of it; it becomes the stream's last. programmatic:
 * the edge to a kernel right ahead is. */
void stream_push(struct stream *s, struct work *o, bool programmatic);
struct stream *stream_get(const void *handle, const char *call); /* NULL: not a stream */
/* lock and run are held: executes until `o` is done. */
void work_run_until(struct work *o);
/* Executes a few that are ready and that `o` needs. */
void work_run_some(struct work *o);
/* The host knows that `o`, and all before it, are done. */
void work_observe(struct work *o);
void work_drop_all(void);

/* driver_order.c: lock is held */
/* Marks what `o` needs (itself included) with the returned walk number (work.mark_need). */
uint64_t order_mark_needed(struct work *o);
/* Marks (work.mark_complete) what has ended for certain when `o` starts or, `after_wait`, passes
 * griddepcontrol.wait. */
uint64_t order_mark_complete(struct work *o, bool after_wait);
bool order_is_complete(const struct work *x, const struct work *before, uint64_t mark);

/* driver_execute.c: run and lock are held */
void execute(struct work *o);
bool host_read(void *dst, const void *src, size_t bytes);  /* false: not mapped */
bool host_write(void *dst, const void *src, size_t bytes); /* false: not mapped */
/* XXH3 of host memory; false: not mapped. */
bool host_hash(const void *src, uint64_t bytes, uint64_t *out);
void copy_check_source(const struct work *o, const char *when);
/* The destination holds a pattern until the copy runs. */
void copy_spoil_destination(const struct work *o);

/* driver_stream.c: a host function was enqueued. lock is held */
void worker_wake(void);

/* driver_launch.c: checks a launch and makes its operation (not enqueued). lock is held. */
enum cu_result kernel_prepare(struct kernel_op *out, struct function *f, const uint32_t grid[3],
                              const uint32_t block[3], uint32_t shared_bytes, void **params,
                              void **extra, const char *call);
enum cu_result kernel_check_cluster(const struct kernel_op *k, const char *call);
enum cu_result copy_prepare(struct copy_op *c, const char *call);
enum cu_result copy_submit(const struct copy_op *c, struct stream *s);

/* driver_overlap.c: run and lock are held */
/* Whether two operations with known ranges touch the same bytes, one of them writing. */
bool work_conflicts(const struct work *a, const struct work *b);
void overlap_check_copy(struct work *o);
/* Around a kernel; what the first gives the second takes. */
struct overlap;
struct overlap *overlap_before_kernel(struct work *kernel);
void overlap_after_kernel(struct work *kernel, struct overlap *v);

/* driver_report.c */
struct kernel_stats *stats_of(const char *kernel);
void stats_add(struct kernel_stats *s, const struct exec_result *r);
void stats_free(void);
bool report_write(const char *path);

/* What the table hands out: every entry of core/cuda.h under a name of our own. */
#define X(field, symbol, version, args) enum cu_result soft_##field args;
CUDA_ENTRY_LIST(X)
#undef X

#endif
