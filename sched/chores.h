/* chores.h: the chores that prepare requests: a bounded number at once, each with a stack of its
 * own, run in slices on the worker pool, taking turns, so that a large prompt delays neither the
 * running decodes nor the small prompts beside it.
 *
 * Memory: stacks are taken at open. Requests are named by u32; several chores may work for one
 * name (an embeddings request's).
 * Threads: the loop thread calls; chores run on any worker, only inside chores_round().
 */
#ifndef LAC_SCHED_CHORES_H
#define LAC_SCHED_CHORES_H

#include "core/worker_pool.h"
#include "sched/prepare.h"

enum { CHORES_MAX = 16 };
#define CHORES_NONE UINT32_MAX

struct chores_config {
    struct worker_pool *workers;
    const struct prepare_model *model;
    uint32_t n; /* at once; at most CHORES_MAX */
    uint64_t slice_ns;
};

struct chore_place {
    void *mem;
    struct chore *chore; /* NULL: free */
    struct prepare work;
    uint32_t name;
};

struct chores {
    struct chores_config cfg;
    struct chore_place places[CHORES_MAX];
    uint32_t turn[CHORES_MAX]; /* places that run in this round */
    uint32_t n_active, next;
    void *memory;
};

enum status chores_open(struct chores *c, const struct chores_config *cfg, struct error *e);
/* Cancels what is left and waits until it has unwound. */
void chores_close(struct chores *c);

static inline bool chores_room(const struct chores *c) {
    return c->n_active < c->cfg.n;
}
/* There must be room. `epoch`: NULL without a policy. `embed`: for REQUEST_EMBEDDING, else NULL.
 * The request stays unchanged until chores_take() gives its name back, for each start once. */
void chores_start(struct chores *c, uint32_t name, const struct request *r,
                  const struct policy_epoch *epoch, struct embed_job *embed);
/* All of that name; they unwind in later rounds and are then taken like any other. */
void chores_cancel(struct chores *c, uint32_t name);
/* One slice for as many chores as there are workers. */
void chores_round(struct chores *c);
/* One that is done: its name and result, which the caller then owns. False if none is. */
bool chores_take(struct chores *c, uint32_t *name, struct prepared *out);
/* The name in place i (0 .. CHORES_MAX - 1), or CHORES_NONE. */
uint32_t chores_name(const struct chores *c, uint32_t i);

#endif
