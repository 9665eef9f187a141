#include "tests/softgpu/finding.h"

#include <stdlib.h>
#include <string.h>

void finding_list_init(struct finding_list *l) {
    memset(l, 0, sizeof *l);
    pthread_mutex_init(&l->lock, NULL);
}

void finding_list_free(struct finding_list *l) {
    free(l->items);
    l->items = NULL;
    l->n = l->cap = 0;
    pthread_mutex_destroy(&l->lock);
}

void finding_list_clear(struct finding_list *l) {
    pthread_mutex_lock(&l->lock);
    l->n = 0;
    l->dropped = 0;
    pthread_mutex_unlock(&l->lock);
}

void finding_add(struct finding_list *l, const struct finding *f, const char *fmt, ...) {
    pthread_mutex_lock(&l->lock);
    for (uint32_t i = 0; i < l->n; i++) {
        struct finding *old = &l->items[i];
        if (old->kind != f->kind || old->ptx_line != f->ptx_line || strcmp(old->kernel, f->kernel))
            continue;
        old->count++;
        pthread_mutex_unlock(&l->lock);
        return;
    }
    if (l->n == l->cap && l->n < FINDING_LIMIT) {
        const uint32_t cap = l->cap ? l->cap * 2 : 16;
        struct finding *items = realloc(l->items, cap * sizeof *items);
        if (items) {
            l->items = items;
            l->cap = cap;
        }
    }
    if (l->n < l->cap && l->n < FINDING_LIMIT) {
        struct finding *new = &l->items[l->n++];
        *new = *f;
        new->count = 1;
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(new->text, sizeof new->text, fmt, ap);
        va_end(ap);
    } else {
        l->dropped++;
    }
    pthread_mutex_unlock(&l->lock);
}

uint64_t finding_count(const struct finding_list *l, enum finding_kind kind) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->items[i].kind == kind) n += l->items[i].count;
    return n;
}

uint64_t finding_total(const struct finding_list *l) {
    uint64_t n = l->dropped;
    for (uint32_t i = 0; i < l->n; i++) n += l->items[i].count;
    return n;
}

const char *finding_kind_name(enum finding_kind kind) {
#define X(code, name) name,
    static const char *const names[] = {FINDING_LIST(X)};
#undef X
    return kind < FINDING_KIND_COUNT ? names[kind] : "?";
}

void finding_print(const struct finding_list *l, FILE *out) {
    for (uint32_t i = 0; i < l->n; i++) {
        const struct finding *f = &l->items[i];
        fprintf(out,
                "%s: %s, PTX line %u, source line %u, block (%u,%u,%u) thread (%u,%u,%u): %s "
                "[%llu times]\n",
                finding_kind_name(f->kind), f->kernel, f->ptx_line, f->source_line, f->block[0],
                f->block[1], f->block[2], f->thread[0], f->thread[1], f->thread[2], f->text,
                (unsigned long long)f->count);
    }
    if (l->dropped) fprintf(out, "and %llu more\n", (unsigned long long)l->dropped);
}
