/* store.h: compiled kernels kept on disk between runs, one file each.
 *
 * A file is NAME-DIGEST.lack, DIGEST being that of the key's text (artefact.h); it holds a header
 * with a checksum over every other byte, the full text of the key, the compiler's name, the cubin
 * and the PTX. The header's own key is the XXH3-128 of text and compiler together: everything that
 * can change the code. Files appear by rename only, so several processes may share a folder, and
 * one that dies half-way leaves a temporary file that store_open removes an hour later.
 *
 * Nothing that happens to the folder stops the program: the store says what is wrong in the log,
 * once for each kind, and goes on from memory.
 *   missing          STATUS_NOT_FOUND; also whenever the folder cannot be used
 *   stale            STATUS_AGAIN: an older layout, another compiler, another key under this name;
 *                    the next store_write replaces it
 *   corrupt          STATUS_CORRUPT: the file is renamed to NAME-DIGEST.lack.bad for whoever wants
 * to look, and so is never read again unwritable, full store_write fails (STATUS_IO, STATUS_FULL),
 * and the store writes no more A folder that others may write to is not used: its files run on the
 * GPU with this process's memory. The folder is made when it is not there (its parent must be), for
 * the owner alone. The sum of file sizes stays under limit_bytes: the least recently used files go
 * first, by modification time, which a read renews. Threads: any number may read and write at once.
 */
#ifndef LAC_JIT_STORE_H
#define LAC_JIT_STORE_H

#include "core/log.h"
#include "core/status.h"
#include "jit/artefact.h"

struct store;

struct store_config {
    const char *folder;    /* NULL: nothing is kept */
    uint64_t limit_bytes;  /* 0: 256 MiB */
    const struct log *log; /* may be NULL; outlives the store */
};

/* Errors: STATUS_NO_MEMORY only. */
enum status store_open(const struct store_config *cfg, struct store **out, struct error *e);
void store_close(struct store *s); /* NULL: nothing */

/* False once it keeps nothing new. */
bool store_is_writable(const struct store *s);

/* compiler: the one at hand, whose version must have made the artefact; NULL takes any. */
enum status store_read(struct store *s, const struct artefact_id *id, const char *compiler,
                       struct artefact *out, struct error *e);
enum status store_write(struct store *s, const struct artefact_id *id, const struct artefact *a,
                        struct error *e);
/* For an artefact whose bytes are whole, but which the driver refuses: aside, as if corrupt. */
void store_quarantine(struct store *s, const struct artefact_id *id, const char *reason);

#endif
