#include "io/chain.h"

#include <stdlib.h>
#include <string.h>

#include "core/check.h"

enum status chunk_pool_init(struct chunk_pool *p, size_t bytes, struct error *e) {
    memset(p, 0, sizeof *p);
    const size_t n = bytes / sizeof(struct chunk);
    CHECK(n > 0 && n < UINT32_MAX);
    p->chunks = malloc(n * sizeof *p->chunks);
    if (p->chunks == NULL)
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for %zu bytes of output", bytes);
    p->n_chunks = (uint32_t)n;
    return STATUS_OK;
}

void chunk_pool_free(struct chunk_pool *p) {
    CHECK(p->n_used == 0);
    free(p->chunks);
    memset(p, 0, sizeof *p);
}

static struct chunk *take(struct chunk_pool *p) {
    struct chunk *k = p->free;
    if (k != NULL)
        p->free = k->next;
    else if (p->n_fresh < p->n_chunks)
        k = &p->chunks[p->n_fresh++];
    else
        return NULL;
    p->n_used++;
    k->next = NULL;
    k->first = k->last = 0;
    return k;
}

static void give(struct chunk_pool *p, struct chunk *k) {
    k->next = p->free;
    p->free = k;
    CHECK(p->n_used > 0);
    p->n_used--;
}

static size_t chunks_needed(const struct chain *c, size_t n) {
    const size_t room = c->tail != NULL ? CHUNK_BYTES - c->tail->last : 0;
    return n > room ? (n - room + CHUNK_BYTES - 1) / CHUNK_BYTES : 0;
}

bool chain_append_spare(struct chain *c, struct chunk_pool *p, const void *bytes, size_t n) {
    const size_t need = chunks_needed(c, n);
    if (need > 0 && need + p->n_used > p->n_chunks - p->n_chunks / 8) return false;
    return chain_append(c, p, bytes, n);
}

bool chain_append(struct chain *c, struct chunk_pool *p, const void *bytes, size_t n) {
    if (chunks_needed(c, n) > p->n_chunks - p->n_used) return false;
    const char *from = bytes;
    c->bytes += n;
    while (n > 0) {
        if (c->tail == NULL || c->tail->last == CHUNK_BYTES) {
            struct chunk *k = take(p);
            if (c->tail != NULL)
                c->tail->next = k;
            else
                c->head = k;
            c->tail = k;
        }
        size_t take_n = CHUNK_BYTES - c->tail->last;
        if (take_n > n) take_n = n;
        memcpy(c->tail->data + c->tail->last, from, take_n);
        c->tail->last += (uint32_t)take_n;
        from += take_n;
        n -= take_n;
    }
    return true;
}

void chain_join(struct chain *c, struct chain *from) {
    if (from->head == NULL) return;
    if (c->tail != NULL)
        c->tail->next = from->head;
    else
        c->head = from->head;
    c->tail = from->tail;
    c->bytes += from->bytes;
    memset(from, 0, sizeof *from);
}

void chain_consume(struct chain *c, struct chunk_pool *p, size_t n) {
    CHECK(n <= c->bytes);
    c->bytes -= n;
    while (n > 0) {
        struct chunk *k = c->head;
        const size_t have = k->last - k->first;
        const size_t drop = n < have ? n : have;
        k->first += (uint32_t)drop;
        n -= drop;
        if (k->first != k->last) continue;
        c->head = k->next;
        if (c->head == NULL) c->tail = NULL;
        give(p, k);
    }
}

size_t chain_front(const struct chain *c, const char **out) {
    const struct chunk *k = c->head;
    if (k == NULL) return 0;
    *out = k->data + k->first;
    return k->last - k->first;
}

void chain_clear(struct chain *c, struct chunk_pool *p) {
    chain_consume(c, p, c->bytes);
    CHECK(c->head == NULL);
}
