/* sidecar_impl.h: the layout of a side-car, shared by its reader and its writer. */
#ifndef LAC_MODELS_SIDECAR_IMPL_H
#define LAC_MODELS_SIDECAR_IMPL_H

#include "models/sidecar.h"

#define SIDECAR_MAGIC "LACSIDE1"

struct sidecar_header {
    char magic[8];
    uint32_t version, n_sections;
    uint64_t model[2];
    uint64_t file_bytes;
    uint64_t hash[2];
    uint64_t zero;
};
_Static_assert(sizeof(struct sidecar_header) == 64, "the header is 64 bytes");

struct sidecar_entry {
    uint32_t kind, version;
    char key[SIDECAR_KEY_BYTES];
    uint64_t offset, length;
    uint64_t hash[2];
};
_Static_assert(sizeof(struct sidecar_entry) == 80, "a table entry is 80 bytes");

/* Order of sections: by kind, then key. */
int sidecar_compare(uint32_t kind_a, const char *key_a, uint32_t kind_b, const char *key_b);
void sidecar_hash_header(const struct sidecar_header *h, const struct sidecar_entry *entries,
                         uint64_t hash[2]);
void sidecar_hash_bytes(const void *data, size_t n, uint64_t hash[2]);

#endif
