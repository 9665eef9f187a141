/* compiler.h: kernels asked for by key, handed back as loaded functions.
 *
 * A kernel comes from the first of these that has it: the pack, the store, the compiler. What was
 * compiled is put into the store. The compiler (110 MB of library) is opened when the pack leaves
 * something to ask for. A stale or corrupt artefact in the store is compiled again and replaced,
 * also when only the driver finds out that its cubin is none. With a device, the cubin is loaded;
 * if the driver has no use for it on this chip, the PTX is.
 *
 * Life: compiler_open -> compiler_request* -> compiler_run (all at once, on the workers, before the
 * server is ready) -> compiler_start (one SCHED_IDLE thread) -> {compiler_request; event_fd becomes
 * readable; compiler_poll}* -> compiler_close, which stops a compilation half-way and unloads all.
 * Threads: one owner calls everything here. `progress` is called from whichever thread finished a
 * kernel, one call at a time, and must not call the compiler. compiler_find is for the launch path:
 * one probe of a table, no lock.
 *
 * Errors, per kernel: STATUS_NOT_FOUND (neither pack nor store has it and nothing may or can
 * compile it: the message names the kernel and says why), STATUS_INVALID (does not compile),
 * STATUS_UNSUPPORTED (not for this chip), STATUS_DEVICE, STATUS_NO_MEMORY. Of compiler_open also
 * STATUS_IO: the folder to dump to cannot be made. compiler_request: STATUS_FULL over
 * COMPILER_MAX_KERNELS, STATUS_INVALID when another kernel has this hash.
 * A kernel that failed may be asked for again.
 *
 * Names need not be unique: a kernel's files in the dump, and its text in the line tables that a
 * profiler reads, are called NAME-XXXXXXXX (from the digest of its key) .cu, .ptx, .cubin.
 */
#ifndef LAC_JIT_COMPILER_H
#define LAC_JIT_COMPILER_H

#include "core/cuda.h"
#include "core/log.h"
#include "core/status.h"
#include "jit/artefact.h"
#include "jit/pack.h"
#include "jit/store.h"

struct worker_pool;
struct compiler;

enum { COMPILER_MAX_KERNELS = 4096 };

enum compiler_origin {
    COMPILER_FROM_PACK,
    COMPILER_FROM_STORE,
    COMPILER_FROM_SOURCE,
};

struct compiler_request {
    const char *name; /* of the kernel and of its function */
    const char *spec; /* one line */
    const char *source;
    const char *options; /* without the architecture */
    uint32_t arch, sm_count;
    uint64_t hash; /* of the spec's bytes: what compiler_find takes */
};

struct compiled {
    struct artefact_id id;
    uint64_t hash;
    enum compiler_origin origin;
    enum status status; /* what follows is zero unless STATUS_OK */
    struct error error;
    uint64_t took_ns;         /* to compile, if compiled now; else to read */
    bool from_ptx;            /* the driver made the code from the PTX */
    struct artefact artefact; /* empty once loaded, unless keep_code */
    struct cu_module *module;
    struct cu_function *function;
};

struct compiler_progress {
    const struct compiled *kernel;
    uint32_t n_done, n_total; /* since the queue was last empty */
};

struct compiler_config {
    const struct pack *pack; /* NULL: none */
    struct store *store;     /* NULL: none */
    bool may_compile;        /* --jit on */
    const char *nvrtc_path;  /* as nvrtc_open; NULL searches */
    const char *build;       /* of this program, for the keys */
    const char *dump_folder; /* NULL, or where texts, PTX and cubins are written */
    const struct log *log;   /* may be NULL */
    const struct cuda *cuda; /* NULL: kernels are made, not loaded */
    struct cu_context *context;
    bool keep_code; /* keep artefacts after loading; always when there is no device */
    void (*progress)(void *arg, const struct compiler_progress *p); /* may be NULL */
    void *progress_arg;
};

/* The strings and objects of the configuration outlive the compiler; a request's are copied. */
enum status compiler_open(const struct compiler_config *cfg, struct compiler **out,
                          struct error *e);
void compiler_close(struct compiler *c); /* NULL: nothing */

/* Asking for what is known or under way already is free. */
enum status compiler_request(struct compiler *c, const struct compiler_request *r, struct error *e);
/* Makes everything asked for, on the workers (NULL: in this thread), and returns when all is done:
 * with the first failure in the order of requests, if there is one. Not after compiler_start. */
enum status compiler_run(struct compiler *c, struct worker_pool *workers, struct error *e);

enum status compiler_start(struct compiler *c, struct error *e);
int compiler_event_fd(const struct compiler *c);
/* The next kernel that the idle thread finished, well or badly; NULL when there is none. From then
 * on compiler_find knows it. */
const struct compiled *compiler_poll(struct compiler *c);

/* The loaded kernel, or NULL. */
const struct compiled *compiler_find(const struct compiler *c, uint64_t hash);
/* In the order they were asked for, whatever became of them; NULL past the end. */
const struct compiled *compiler_at(const struct compiler *c, uint32_t i);

const char *compiler_origin_name(enum compiler_origin origin);

#endif
