/* memory.h: the address space of the software device.
 *
 * Device addresses are numbers, not host pointers: the window starts at MEMORY_WINDOW, which no
 * host program maps, so a host dereference faults. Every allocation or mapping owns whole granules
 * of 2 MiB with at least one unowned granule behind it; what lies in a granule outside of the
 * range is its red zone. An allocation's base is aligned to 256 bytes and deliberately to no more
 * (cuMemAlloc promises no more). Addresses are never used twice; freed ranges are remembered, so
 * that a later access is told apart from a wild one.
 * With `track` on, each range has one defined bit per byte (set by writes of the device, by
 * memory_write/copy/fill and memory_set_defined), and remembers reads and writes for race checks.
 * Host ranges (pinned or registered) keep their host address as device address (UVA), count as
 * defined, and are not tracked.
 * The windows of shared and local memory and of kernel parameters in generic addresses are
 * constants here; only exec knows what is in them.
 *
 * Threads: memory_find() may run concurrently with everything except the release of the range it
 * finds. Calls that change the map lock it. The caller sees to it that no launch is running that
 * may touch a range which is freed, unmapped or unregistered (the driver synchronises first, as
 * cuMemFree does).
 * Errors: STATUS_NO_MEMORY (over the device's size, or the host's), STATUS_NOT_FOUND (no such
 * range), STATUS_INVALID (misaligned, overlapping, outside). Nothing changes on error.
 */
#ifndef LAC_TESTS_SOFTGPU_MEMORY_H
#define LAC_TESTS_SOFTGPU_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#define MEMORY_WINDOW       UINT64_C(0x0a02000000)
#define MEMORY_WINDOW_BYTES (UINT64_C(1) << 43)
#define MEMORY_GRANULE      (UINT64_C(2) << 20)    /* also of VMM sizes and addresses */
#define MEMORY_SHARED_BASE  UINT64_C(0x0100000000) /* generic window of shared memory */
#define MEMORY_LOCAL_BASE   UINT64_C(0x0200000000)
#define MEMORY_PARAM_BASE   UINT64_C(0x0300000000)
#define MEMORY_SPACE_BYTES  UINT64_C(0x0100000000) /* size of each of the three */

enum memory_kind {
    MEMORY_ALLOCATION, /* cuMemAlloc, module variables */
    MEMORY_MAPPING,    /* VMM: physical memory at a reserved address */
    MEMORY_HOST,       /* pinned or registered host memory */
};

enum memory_state { MEMORY_LIVE, MEMORY_FREED };

struct memory_access; /* race shadow of 4096 bytes; race.c knows what is in it */

/* A contiguous range of device addresses backed by one piece of host memory. */
struct memory_range {
    uint64_t base;
    uint64_t size_bytes;
    uint8_t *host;                /* host address of `base`; NULL once freed */
    uint8_t *defined;             /* bit i of the range: byte i is defined; NULL = all are */
    struct memory_access **pages; /* [2 * ceil(size / 4096)], lazily; NULL = off */
    enum memory_kind kind;
    enum memory_state state;
    bool readable, writable;
    uint32_t index;    /* of the range, never used twice; counters go by it */
    uint64_t sequence; /* allocation number, for messages */
    char label[32];
    uint64_t loaded_bytes, stored_bytes; /* by kernels, since the range was made */
    struct memory_block *block;          /* of a mapping */
};

struct memory;
struct memory_block; /* physical memory: cuMemCreate */

struct memory_config {
    uint64_t size_bytes; /* of the device; allocations and blocks count against it */
    bool track;          /* defined bits and race shadow, for EXEC_CHECK_FULL */
    uint64_t seed;       /* moves bases by multiples of 256 bytes */
};

enum status memory_create(const struct memory_config *cfg, struct memory **out,
                          struct error *e) LAC_MUST_USE;
void memory_destroy(struct memory *m);
uint64_t memory_total_bytes(const struct memory *m);
uint64_t memory_used_bytes(struct memory *m);

/* Contents are undefined and filled with 0xcb. `label` (cut to 31 bytes, may be NULL) names the
 * range in findings. size 0 is STATUS_INVALID. */
enum status memory_allocate(struct memory *m, uint64_t size_bytes, const char *label,
                            uint64_t *address, struct error *e) LAC_MUST_USE;
enum status memory_free(struct memory *m, uint64_t address, struct error *e) LAC_MUST_USE;

/* VMM. Sizes and addresses are multiples of MEMORY_GRANULE (CUDA's: of the granularity). */
enum status memory_reserve(struct memory *m, uint64_t size_bytes, uint64_t alignment,
                           uint64_t *address, struct error *e) LAC_MUST_USE;
enum status memory_unreserve(struct memory *m, uint64_t address, uint64_t size_bytes,
                             struct error *e) LAC_MUST_USE; /* nothing may be mapped in it */
enum status memory_block_create(struct memory *m, uint64_t size_bytes, struct memory_block **out,
                                struct error *e) LAC_MUST_USE;
void memory_block_release(struct memory *m, struct memory_block *b); /* lives on while mapped */
uint64_t memory_block_bytes(const struct memory_block *b);
/* Maps all of `b` (offset 0) at `address`; neither readable nor writable until set_access. */
enum status memory_map(struct memory *m, uint64_t address, struct memory_block *b,
                       struct error *e) LAC_MUST_USE;
/* [address, address + size) must be whole mappings. */
enum status memory_unmap(struct memory *m, uint64_t address, uint64_t size_bytes,
                         struct error *e) LAC_MUST_USE;
enum status memory_set_access(struct memory *m, uint64_t address, uint64_t size_bytes,
                              bool readable, bool writable, struct error *e) LAC_MUST_USE;

/* Host memory the device may reach at its host address. */
enum status memory_host_register(struct memory *m, void *host, uint64_t size_bytes,
                                 struct error *e) LAC_MUST_USE;
enum status memory_host_unregister(struct memory *m, void *host, struct error *e) LAC_MUST_USE;

/* The range that holds `address`, or NULL. */
const struct memory_range *memory_find(const struct memory *m, uint64_t address);
/* The range, live or freed, whose granules hold `address` (its red zone counts), or NULL. */
const struct memory_range *memory_near(const struct memory *m, uint64_t address);
/* Calls `fn` for every live range in order of address. */
void memory_each(struct memory *m, void (*fn)(void *arg, const struct memory_range *r), void *arg);

/* What race checks keep from launch to launch: `state`, freed by `release` with the memory. */
struct memory_races {
    void *state;
    void (*release)(void *state);
};
struct memory_races *memory_races(struct memory *m);

/* Copies for the driver: every byte must lie in live ranges (STATUS_NOT_FOUND else, and nothing is
 * copied). memory_read reports in *undefined_bytes (may be NULL) how many bytes it read that nobody
 * wrote; memory_copy carries defined bits along. Ranges may be crossed. */
enum status memory_write(struct memory *m, uint64_t to, const void *from, uint64_t size_bytes,
                         struct error *e) LAC_MUST_USE;
enum status memory_read(struct memory *m, void *to, uint64_t from, uint64_t size_bytes,
                        uint64_t *undefined_bytes, struct error *e) LAC_MUST_USE;
enum status memory_copy(struct memory *m, uint64_t to, uint64_t from, uint64_t size_bytes,
                        struct error *e) LAC_MUST_USE;
/* `count` elements of `width_bytes` (1, 2 or 4). */
enum status memory_fill(struct memory *m, uint64_t to, uint32_t value, uint32_t width_bytes,
                        uint64_t count, struct error *e) LAC_MUST_USE;
enum status memory_set_defined(struct memory *m, uint64_t address, uint64_t size_bytes,
                               bool defined, struct error *e) LAC_MUST_USE;

#endif
