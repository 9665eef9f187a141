#include "tests/softgpu/clock_set.h"

#include <string.h>

static struct clock_set *take(struct clock_pool *p, uint32_t n) {
    struct clock_set *s = bump_take(&p->bump, sizeof *s + n * sizeof *s->entry);
    if (!s) p->no_memory = true;
    return s;
}

const struct clock_set *clock_set_make(struct clock_pool *p, struct clock_entry *e, uint32_t n) {
    for (uint32_t i = 1; i < n; i++) {
        const struct clock_entry x = e[i];
        uint32_t k = i;
        for (; k > 0 && e[k - 1].key > x.key; k--) e[k] = e[k - 1];
        e[k] = x;
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (kept && e[kept - 1].key == e[i].key) {
            if (e[i].until > e[kept - 1].until) e[kept - 1].until = e[i].until;
        } else {
            e[kept++] = e[i];
        }
    }
    struct clock_set *s = take(p, kept);
    if (!s) return NULL;
    s->n = kept;
    memcpy(s->entry, e, kept * sizeof *e);
    return s;
}

static bool covers(const struct clock_set *a, const struct clock_set *b) {
    uint32_t i = 0;
    for (uint32_t k = 0; k < b->n; k++) {
        while (i < a->n && a->entry[i].key < b->entry[k].key) i++;
        if (i == a->n || a->entry[i].key != b->entry[k].key ||
            a->entry[i].until < b->entry[k].until)
            return false;
    }
    return true;
}

const struct clock_set *clock_set_join(struct clock_pool *p, const struct clock_set *a,
                                       const struct clock_set *b) {
    if (!a || a == b) return b;
    if (!b || covers(a, b)) return a;
    if (covers(b, a)) return b;
    struct clock_set *s = take(p, a->n + b->n);
    if (!s) return a->n > b->n ? a : b;
    uint32_t i = 0, k = 0, n = 0;
    while (i < a->n || k < b->n) {
        if (k == b->n || (i < a->n && a->entry[i].key < b->entry[k].key)) {
            s->entry[n++] = a->entry[i++];
        } else if (i == a->n || b->entry[k].key < a->entry[i].key) {
            s->entry[n++] = b->entry[k++];
        } else {
            s->entry[n] = a->entry[i];
            if (b->entry[k].until > s->entry[n].until) s->entry[n].until = b->entry[k].until;
            n++;
            i++;
            k++;
        }
    }
    s->n = n;
    return s;
}

uint32_t clock_set_get(const struct clock_set *s, uint64_t key) {
    if (!s) return 0;
    uint32_t low = 0, high = s->n;
    while (low < high) {
        const uint32_t mid = (low + high) / 2;
        if (s->entry[mid].key < key)
            low = mid + 1;
        else
            high = mid;
    }
    return low < s->n && s->entry[low].key == key ? s->entry[low].until : 0;
}
