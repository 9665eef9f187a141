/* What must have ended before what. Walks over the edges with explicit work lists (work.walk). */
#include "tests/softgpu/driver.h"

uint64_t order_mark_needed(struct work *o) {
    const uint64_t mark = ++soft.walks;
    o->mark_need = mark;
    o->walk = NULL;
    for (struct work *list = o; list != NULL;) {
        struct work *x = list;
        list = x->walk;
        for (uint32_t i = 0; i < x->n_after; i++) {
            struct work *a = x->after[i].work;
            if (a->mark_need == mark) continue;
            a->mark_need = mark;
            a->walk = list;
            list = a;
        }
    }
    return mark;
}

/* A kernel with a programmatic edge to P starts when all of P's blocks have triggered or ended, so
 * what had ended for P then has ended for it: when every thread of P passed griddepcontrol.wait
 * before triggering, what had ended at P's wait; else only what had ended when P started. P itself
 * has ended at the kernel's own wait. At the end of an operation that never waited, its own
 * predecessors may still run. */
static bool wait_level(const struct work *p, bool programmatic) {
    return programmatic ? p->waited_first : p->waited;
}

static struct work *visit(struct work *x, bool wait, uint64_t mark, struct work *list) {
    uint64_t *seen = wait ? &x->mark_wait : &x->mark_start;
    if (*seen == mark) return list;
    const bool queued = x->mark_wait == mark || x->mark_start == mark;
    *seen = mark;
    /* Already on the list (its other level was asked for): it is expanded there again. */
    if (queued && x->walk != NULL) return list;
    x->walk = list != NULL ? list : x; /* x: end of the list */
    return x;
}

uint64_t order_mark_complete(struct work *o, bool after_wait) {
    const uint64_t mark = ++soft.walks;
    struct work *list = visit(o, after_wait, mark, NULL);
    while (list != NULL) {
        struct work *x = list;
        list = x->walk != x ? x->walk : NULL;
        x->walk = NULL;
        const bool wait = x->mark_wait == mark;
        for (uint32_t i = 0; i < x->n_after; i++) {
            struct work *a = x->after[i].work;
            const bool starts_early = x->after[i].programmatic && !wait;
            if (!starts_early) a->mark_complete = mark;
            list = visit(a, wait_level(a, starts_early), mark, list);
        }
    }
    return mark;
}

bool order_is_complete(const struct work *x, const struct work *before, uint64_t mark) {
    if (x->mark_complete == mark) return true;
    return x->observed_at != 0 && x->observed_at <= before->enqueued_at;
}
