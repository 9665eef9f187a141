#include <stdlib.h>
#include <string.h>

#include "tests/softgpu/driver.h"

struct work *work_new(enum work_kind kind) {
    struct work *o = soft_alloc(sizeof *o);
    o->kind = kind;
    o->references = 1;
    return o;
}

void work_retain(struct work *o) {
    o->references++;
}

/* A chain of thousands of operations must not be freed by recursion. */
void work_release(struct work *o) {
    struct work *free_list = NULL;
    if (o == NULL || --o->references != 0) return;
    o->walk = NULL;
    free_list = o;
    while (free_list != NULL) {
        struct work *f = free_list;
        free_list = f->walk;
        for (uint32_t i = 0; i < f->n_after; i++) {
            struct work *a = f->after[i].work;
            if (--a->references != 0) continue;
            a->walk = free_list;
            free_list = a;
        }
        free(f->after);
        if (f->kind == WORK_KERNEL) free(f->kernel.params);
        free(f);
    }
}

void work_add_edge(struct work *o, struct work *after, bool programmatic) {
    if (after == NULL || after->observed_at != 0) return;
    o->after = soft_grow(o->after, &o->cap_after, o->n_after, sizeof *o->after);
    o->after[o->n_after++] = (struct work_edge){after, programmatic};
    work_retain(after);
}

void work_enqueue(struct work *o) {
    o->enqueued_at = ++soft.clock;
    o->previous = soft.works_last;
    if (soft.works_last != NULL)
        soft.works_last->next = o;
    else
        soft.works = o;
    soft.works_last = o;
    work_retain(o);
    soft.n_pending++;
}

void stream_push(struct stream *s, struct work *o, bool programmatic) {
    struct work *tail = s->tail;
    /* Any other work between the two kernels makes it a full dependence. */
    work_add_edge(o, tail,
                  programmatic && tail != NULL && tail->kind == WORK_KERNEL && s->n_waits == 0);
    for (uint32_t i = 0; i < s->n_waits; i++) {
        work_add_edge(o, s->waits[i].work, false);
        work_release(s->waits[i].work);
    }
    s->n_waits = 0;
    for (struct stream *t = soft.streams; t != NULL; t = t->next) {
        if (t == s || !(s->legacy ? t->blocking : s->blocking && t->legacy)) continue;
        work_add_edge(o, t->tail, false);
    }
    work_enqueue(o);
    work_retain(o);
    work_release(s->tail);
    s->tail = o;
}

struct stream *stream_get(const void *handle, const char *call) {
    /* NULL and 1 (CU_STREAM_LEGACY) are the default stream. */
    if ((uintptr_t)handle <= 1) return soft.streams;
    return handle_get(HANDLE_STREAM, handle, call);
}

static bool is_ready(const struct work *o) {
    for (uint32_t i = 0; i < o->n_after; i++) {
        if (!o->after[i].work->done) return false;
    }
    return !o->done;
}

/* Under seed 0 only what the target needs runs, in the order in which it was enqueued. Other seeds
 * choose among all that may run, and now and then run what nobody waits for. */
static struct work *choose(struct work *target) {
    const uint64_t mark = order_mark_needed(target);
    const bool others = soft_draw() % 4 == 1;
    uint64_t n = 0;
    struct work *chosen = NULL;
    for (struct work *o = soft.works; o != NULL; o = o->next) {
        if (o->done || !(others || o->mark_need == mark) || !is_ready(o)) continue;
        if (soft.seed == 0) return o;
        if (soft_draw() % ++n == 0) chosen = o;
    }
    return chosen;
}

static void run_one(struct work *o) {
    work_retain(o);
    execute(o);
    o->done = true;
    soft.n_pending--;
    soft.executed[o->kind]++;
    if (o->kind == WORK_HOST && soft.lost == CUDA_SUCCESS) work_observe(o);
    work_release(o);
}

void work_run_until(struct work *o) {
    while (!o->done) run_one(choose(o));
}

void work_run_some(struct work *o) {
    uint64_t n = soft.seed == 0 ? 1 : soft_draw() % 4;
    while (n-- > 0 && !o->done) run_one(choose(o));
}

/* An operation may leave the list when no pending one was enqueued before the host knew of it: such
 * a pending one still has to be told that the two are not ordered. */
static void sweep(void) {
    uint64_t oldest = UINT64_MAX;
    for (const struct work *o = soft.works; o != NULL; o = o->next) {
        if (!o->done) {
            oldest = o->enqueued_at;
            break;
        }
    }
    for (struct work *o = soft.works, *next; o != NULL; o = next) {
        next = o->next;
        if (!o->done || o->observed_at == 0 || o->observed_at > oldest) continue;
        if (o->previous != NULL)
            o->previous->next = o->next;
        else
            soft.works = o->next;
        if (o->next != NULL)
            o->next->previous = o->previous;
        else
            soft.works_last = o->previous;
        work_release(o);
    }
}

void work_observe(struct work *o) {
    if (o->observed_at != 0) return;
    const uint64_t mark = order_mark_needed(o);
    const uint64_t now = ++soft.clock;
    for (struct work *x = soft.works; x != NULL; x = x->next) {
        if (x->mark_need != mark || x->observed_at != 0) continue;
        if (x->kind == WORK_COPY && x->copy.src_host != NULL) {
            copy_check_source(x, "between its copy and the wait for it");
        }
        x->observed_at = now;
    }
    o->observed_at = now;
    sweep();
}

void work_drop_all(void) {
    for (struct work *o = soft.works, *next; o != NULL; o = next) {
        next = o->next;
        work_release(o);
    }
    soft.works = soft.works_last = NULL;
    soft.n_pending = 0;
}
