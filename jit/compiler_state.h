/* compiler_state.h: the inside of a compiler, shared by the queue (compiler.c) and the making of
 * one kernel (compiler_make.c).
 */
#ifndef LAC_JIT_COMPILER_STATE_H
#define LAC_JIT_COMPILER_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "jit/compiler.h"
#include "jit/nvrtc.h"

enum { COMPILER_TABLE_SIZE = 2 * COMPILER_MAX_KERNELS }; /* a power of two: half full at most */

enum compiler_entry_state {
    COMPILER_QUEUED,
    COMPILER_RUNNING,
    COMPILER_FINISHED, /* the owner has not seen it yet */
    COMPILER_KNOWN,
};

struct compiler_entry {
    struct compiled kernel;
    char *source, *options;                   /* source is NULL once the kernel is made */
    char file_name[ARTEFACT_NAME_BYTES + 16]; /* of its text, in line tables and dumps */
    enum compiler_entry_state state;
};

struct compiler {
    struct compiler_config cfg;
    struct compiler_entry *entries[COMPILER_MAX_KERNELS];
    uint32_t n_entries;
    const struct compiled
        *table[COMPILER_TABLE_SIZE]; /* by hash; linear probing; the owner's alone */

    pthread_mutex_t lock; /* over states, counts and `next` */
    pthread_cond_t wake;
    uint32_t next;            /* entries before this one are not queued */
    uint32_t n_done, n_total; /* since the queue was last empty */
    bool stop;
    bool started;
    pthread_t idle;
    int event_fd;
    atomic_bool cancel;

    pthread_mutex_t nvrtc_lock;
    struct nvrtc *nvrtc;
    bool nvrtc_tried;
    struct error nvrtc_error;
    atomic_bool dump_said, pack_said;
};

/* Pack, store or compiler; then the dump, then the driver. Fills the entry's kernel: everything but
 * id and hash. From any thread, one entry per thread. */
void compiler_make(struct compiler *c, struct compiler_entry *x);
/* Gives back what a kernel holds. */
void compiler_release(struct compiler *c, struct compiled *k);

#endif
