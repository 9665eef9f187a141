/* pack_layout.h: the bytes of a pack, between its reader and its writer. Little endian. */
#ifndef LAC_JIT_PACK_LAYOUT_H
#define LAC_JIT_PACK_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

enum { PACK_LAYOUT_VERSION = 1, PACK_ALIGNMENT = 64 };

static const char PACK_MAGIC[4] = {'L', 'A', 'C', 'P'};

struct pack_header {
    char magic[4];
    uint32_t version;
    uint32_t n_rows;
    uint32_t reserved0; /* 0 */
    uint64_t file_bytes;
    uint64_t reserved1[2];     /* 0 */
    uint64_t body_checksum[2]; /* XXH3-128 of everything behind the header */
    uint64_t header_checksum;  /* XXH3-64 of the fields above */
};

struct pack_table_row {
    uint64_t digest[2]; /* XXH3-128 of the text */
    uint32_t arch, sm_count;
    uint64_t text_offset, compiler_offset, cubin_offset, ptx_offset;
    uint32_t text_bytes, compiler_bytes; /* the compiler's name has no NUL */
    uint32_t cubin_bytes, ptx_bytes;     /* the PTX ends in one */
    uint64_t reserved0[3];               /* 0 */
};

_Static_assert(sizeof(struct pack_header) == 64, "the file's layout");
_Static_assert(sizeof(struct pack_table_row) == 96, "the file's layout");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file's byte order");

#endif
