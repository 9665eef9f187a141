/* gguf_file.h: one GGUF file, parsed and checked: its keys, and its tensors in file order.
 *
 * models/gguf.h joins the files of a split model and is what the rest of the project uses. The
 * limits and the treatment of hostile input are stated there. Everything points into the map; the
 * tables beside it are owned by the struct and freed by gguf_file_close. On failure *f is zeroed,
 * and the error's field is the key or tensor at fault.
 */
#ifndef LAC_MODELS_GGUF_FILE_H
#define LAC_MODELS_GGUF_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/map.h"
#include "models/gguf.h"

enum {
    GGUF_MAX_KEYS = 65536,
    GGUF_MAX_TENSORS = 65536,
    GGUF_MAX_KEY_BYTES = 65535,       /* the specification's limit */
    GGUF_MAX_ARRAY_STRINGS = 1 << 24, /* of all arrays in one file: bounds the index to 64 MiB */
};

struct gguf_entry {
    struct gguf_string key;
    enum gguf_type type;
    enum gguf_type element; /* of an array */
    size_t n;               /* elements of an array; 1 otherwise */
    const uint8_t *value;   /* first element, or the scalar; a string's length comes first */
    uint32_t *starts;       /* string arrays: byte offset of each element from `value`; owned */
};

struct gguf_file {
    struct map map;
    size_t n_keys;
    struct gguf_entry *keys; /* owned */
    uint32_t *by_key;        /* key numbers in the order of their names; owned */
    size_t n_tensors;
    struct tensor *tensors; /* owned */
    const uint8_t *infos;   /* the tensor infos as they stand in the file */
    size_t infos_bytes;
    const uint8_t *data; /* from the start of the data section to the end of its last tensor */
    size_t data_bytes;
};

enum status gguf_file_open(const char *path, struct gguf_file *f, struct error *e);
void gguf_file_close(struct gguf_file *f);

/* NULL if absent. */
const struct gguf_entry *gguf_file_find(const struct gguf_file *f, const char *key);
/* The scalar or element i (< n) of an integer type, as 64 bits; *negative is set for a signed value
 * below zero. False if the elements are not integers. */
bool gguf_entry_integer(const struct gguf_entry *k, size_t i, uint64_t *bits, bool *negative);
/* Bytes of one element of a scalar type; 0 for strings and arrays. */
size_t gguf_type_bytes(enum gguf_type type);

/* Set an error whose field is a name out of a file: cut, and with unprintable bytes replaced. */
enum status gguf_error(struct error *e, enum status s, struct gguf_string name, const char *fmt,
                       ...) LAC_PRINTF(4, 5);

#endif
