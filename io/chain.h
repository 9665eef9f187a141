/* chain.h: byte queues made of fixed chunks from one pool, planned at start.
 *
 * A chain grows at its end and is consumed at its front; a chunk at the front may be handed to the
 * kernel while more is appended, because chunks never move. Two chains join without copying.
 * When the pool is empty an append fails and leaves the chain as it was.
 * Ownership: chunks belong to the pool; a chain must be cleared before the pool goes.
 */
#ifndef LAC_IO_CHAIN_H
#define LAC_IO_CHAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

enum { CHUNK_BYTES = 16 * 1024 };

struct chunk {
    struct chunk *next;
    uint32_t first, last; /* [first, last) of data holds bytes */
    char data[CHUNK_BYTES];
};

struct chunk_pool {
    struct chunk *chunks; /* [n_chunks] */
    struct chunk *free;
    uint32_t n_chunks, n_fresh, n_used;
};

struct chain {
    struct chunk *head, *tail;
    size_t bytes;
};

/* Memory is touched as it is first used, so a generous pool costs address space only. */
enum status chunk_pool_init(struct chunk_pool *p, size_t bytes, struct error *e);
void chunk_pool_free(struct chunk_pool *p);

bool chain_append(struct chain *c, struct chunk_pool *p, const void *bytes, size_t n);
/* The same, but leaves an eighth of the pool free: for what may grow large, so that short answers
 * (that there is no room, for one) can always be given. */
bool chain_append_spare(struct chain *c, struct chunk_pool *p, const void *bytes, size_t n);
/* Moves all of `from` to the end of c. */
void chain_join(struct chain *c, struct chain *from);
/* Drops n bytes (<= bytes) from the front. */
void chain_consume(struct chain *c, struct chunk_pool *p, size_t n);
/* The first contiguous run of bytes; 0 if empty. */
size_t chain_front(const struct chain *c, const char **out);
void chain_clear(struct chain *c, struct chunk_pool *p);

#endif
