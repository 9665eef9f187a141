/* map.h: a file mapped read-only into memory.
 *
 * Limits: regular files (and memfds) only; an empty file maps to {NULL, 0}. The map is private and
 * read-only: a write through it faults. It does not follow the file: truncating the file while it
 * is mapped makes later reads fault (SIGBUS), so model files are replaced by rename, never in
 * place. Ownership: the bytes belong to the map and live until map_close. Errors: on failure *m is
 * zeroed and the error names the path and the system's reason. Threads: an open map may be read and
 * advised by any thread.
 */
#ifndef LAC_ALLOC_MAP_H
#define LAC_ALLOC_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

struct map {
    const uint8_t *data;
    size_t bytes;
};

enum map_advice {
    MAP_ADVICE_NORMAL,
    MAP_ADVICE_SEQUENTIAL, /* read ahead far, drop behind */
    MAP_ADVICE_RANDOM,     /* no read-ahead */
    MAP_ADVICE_WILLNEED,   /* start reading now */
    MAP_ADVICE_DONTNEED,   /* this process is done with the range; the page cache may keep it */
};

enum status map_open(const char *path, struct map *m, struct error *e);
/* The same bytes, copied: nothing that happens to the file afterwards is seen. For files that are
 * read as long as the process lives. */
enum status map_read(const char *path, struct map *m, struct error *e);
void map_close(struct map *m); /* of a zeroed map: nothing */

/* A hint for the pages that [offset, offset + bytes) touches, which must lie inside the map. A
 * kernel that does not know the hint ignores it. */
void map_advise(const struct map *m, size_t offset, size_t bytes, enum map_advice advice);

/* Called after each chunk with the bytes present so far; returning false stops. */
typedef bool map_progress(void *context, size_t done_bytes, size_t total_bytes);

/* Bring every page of the map into memory and into this process's page table, in chunks. `progress`
 * may be NULL. Returns STATUS_OK, STATUS_GONE when the callback stopped it, or STATUS_IO when a
 * page could not be read. */
enum status map_populate(const struct map *m, map_progress *progress, void *context,
                         struct error *e);

#endif
