/* Copies and fills that nothing orders with each other, or with a kernel. The bytes of a copy are
 * known; those of a kernel are not, so while one runs that is not ordered with a copy, the copy's
 * destination counts as undefined (reading it is a finding of the checker; what became defined was
 * written), and the copy's source must not change. */
#include <stdlib.h>
#include <string.h>

#include "tests/softgpu/driver.h"

struct span {
    uint64_t base, bytes;
    bool write;
};

static uint32_t spans_of(const struct work *o, struct span out[2]) {
    if (o->kind == WORK_FILL) {
        out[0] = (struct span){o->fill.dst, o->fill.count * o->fill.width_bytes, true};
        return 1;
    }
    if (o->kind != WORK_COPY) return 0;
    const struct copy_op *c = &o->copy;
    out[0] =
        (struct span){c->dst_host != NULL ? (uintptr_t)c->dst_host : c->dst_device, c->bytes, true};
    out[1] = (struct span){c->src_host != NULL ? (uintptr_t)c->src_host : c->src_device, c->bytes,
                           false};
    return 2;
}

bool work_conflicts(const struct work *a, const struct work *b) {
    struct span x[2], y[2];
    const uint32_t n = spans_of(a, x), m = spans_of(b, y);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < m; k++) {
            if ((x[i].write || y[k].write) && x[i].base < y[k].base + y[k].bytes &&
                y[k].base < x[i].base + x[i].bytes) {
                return true;
            }
        }
    }
    return false;
}

void overlap_check_copy(struct work *o) {
    const uint64_t mark = order_mark_complete(o, true);
    for (const struct work *x = soft.works; x != NULL; x = x->next) {
        if (x == o || !x->done || order_is_complete(x, o, mark) || !work_conflicts(x, o)) continue;
        struct span s[2] = {{0}};
        (void)spans_of(o, s);
        rule_broken(RULE_OVERLAP, s[0].base,
                    "a %s and a %s that nothing orders touch the same bytes at %#llx",
                    x->kind == WORK_FILL ? "fill" : "copy", o->kind == WORK_FILL ? "fill" : "copy",
                    (unsigned long long)s[0].base);
        return;
    }
}

/* A copy that may run while the kernel does. */
struct exposed {
    struct work *work;    /* a reference */
    struct span dst, src; /* on the device; 0 bytes: none */
    uint8_t *defined;     /* [dst.bytes] a byte each, as they were */
    uint8_t *source;      /* [src.bytes] */
};
struct overlap {
    uint32_t n, cap;
    struct exposed *items;
};

/* A range that has no bits (the host's) is passed over. */
static void each_defined(const struct span *s, void (*fn)(uint8_t *byte, uint8_t bit, uint8_t *own),
                         uint8_t *own) {
    for (uint64_t i = 0; i < s->bytes;) {
        const struct memory_range *r = memory_find(soft.memory, s->base + i);
        if (r == NULL) return;
        const uint64_t end = r->base + r->size_bytes - s->base;
        for (; i < s->bytes && i < end; i++) {
            const uint64_t at = s->base + i - r->base;
            if (r->defined != NULL) fn(&r->defined[at / 8], (uint8_t)(1u << at % 8), &own[i]);
        }
    }
}

static void hide(uint8_t *byte, uint8_t bit, uint8_t *own) {
    *own = (*byte & bit) != 0;
    *byte &= (uint8_t)~bit;
}

enum { BYTE_WAS_DEFINED = 1, BYTE_WAS_WRITTEN = 2 };

static void show(uint8_t *byte, uint8_t bit, uint8_t *own) {
    if ((*byte & bit) != 0)
        *own |= BYTE_WAS_WRITTEN;
    else if (*own & BYTE_WAS_DEFINED)
        *byte |= bit;
}

static void expose(struct overlap *v, struct work *x) {
    struct span s[2] = {{0}};
    (void)spans_of(x, s);
    struct exposed e = {.work = x};
    if (x->kind == WORK_FILL || x->copy.dst_host == NULL) e.dst = s[0];
    if (x->kind == WORK_COPY && x->copy.src_host == NULL) e.src = s[1];
    e.defined = soft_alloc(e.dst.bytes);
    each_defined(&e.dst, hide, e.defined);
    e.source = soft_alloc(e.src.bytes);
    if (e.src.bytes > 0 &&
        memory_read(soft.memory, e.source, e.src.base, e.src.bytes, NULL, NULL) != STATUS_OK) {
        e.src.bytes = 0;
    }
    v->items = soft_grow(v->items, &v->cap, v->n, sizeof *v->items);
    v->items[v->n++] = e;
    work_retain(x);
}

struct overlap *overlap_before_kernel(struct work *kernel) {
    struct overlap *v = soft_alloc(sizeof *v);
    if (soft.check != EXEC_CHECK_FULL) return v;
    const uint64_t complete = order_mark_complete(kernel, true);
    for (struct work *x = soft.works; x != NULL; x = x->next) {
        if (x->kind != WORK_COPY && x->kind != WORK_FILL) continue;
        if (x->done) {
            if (order_is_complete(x, kernel, complete)) continue;
        } else {
            const uint64_t needed = order_mark_needed(x);
            if (kernel->mark_need == needed) continue;
        }
        expose(v, x);
    }
    return v;
}

void overlap_after_kernel(struct work *kernel, struct overlap *v) {
    uint8_t *now = NULL;
    for (uint32_t i = v->n; i-- > 0;) { /* the last hidden is shown first */
        struct exposed *e = &v->items[i];
        each_defined(&e->dst, show, e->defined);
        uint64_t at = 0;
        for (uint64_t k = 0; k < e->dst.bytes && at == 0; k++) {
            if (e->defined[k] & BYTE_WAS_WRITTEN) at = e->dst.base + k;
        }
        now = soft_alloc(e->src.bytes);
        if (at == 0 && e->src.bytes > 0 &&
            memory_read(soft.memory, now, e->src.base, e->src.bytes, NULL, NULL) == STATUS_OK &&
            memcmp(now, e->source, e->src.bytes) != 0) {
            at = e->src.base;
        }
        if (at != 0) {
            rule_broken(RULE_OVERLAP, at,
                        "%s writes at %#llx, where a %s that nothing orders with "
                        "it reads or writes",
                        kernel->kernel.function->info.name, (unsigned long long)at,
                        e->work->kind == WORK_FILL ? "fill" : "copy");
        }
        free(now);
        free(e->defined);
        free(e->source);
        work_release(e->work);
    }
    free(v->items);
    free(v);
}
