/* device_memory.h: memory of a CUDA device by its virtual memory management, and pinned memory of
 * the host that it can reach. Both are planned, taken at start-up, then frozen.
 *
 * A device_memory is one range of device addresses, reserved at once; physical memory is mapped
 * under it from its start on as it grows, in steps of the device's granularity (2 MiB on the chips
 * we know), so addresses never move and a KV pool can grow without copying. Inside, blocks are
 * handed out one behind the other and are given back together. A pinned_memory is one block of
 * page-locked host memory; its device address is the host's or another, as the driver says.
 * Contents are undefined until written.
 *
 * Limits: DEVICE_MEMORY_MAX_STEPS growths. Alignments are powers of two up to the granularity.
 * Errors: NO_MEMORY (the device has no more; over what was reserved), UNSUPPORTED (a device without
 * virtual memory management), DEVICE. On failure outputs are zeroed and what was mapped stays as it
 * was. Growing or taking after the freeze is a programmer's error (CHECK).
 * Accounting: device_memory_plan adds a line to a budget in the size that will really be taken;
 * device_memory_limit says what to check it against.
 * Ownership: open takes, close gives back; the caller sees to it that the device has finished all
 * work that touches it. The calling thread has the device's context current. Threads: one at a
 * time.
 */
#ifndef LAC_ALLOC_DEVICE_MEMORY_H
#define LAC_ALLOC_DEVICE_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/budget.h"
#include "core/cuda.h"

enum { DEVICE_MEMORY_MAX_STEPS = 256, DEVICE_MEMORY_ALIGN = 256 };

struct device_memory {
    const struct cuda *cuda;
    const char *name; /* for messages; not owned */
    int device;       /* ordinal */
    bool frozen;
    uint64_t base;              /* the first address; 0: not open */
    uint64_t granularity_bytes; /* of growth */
    uint64_t reserved_bytes;    /* addresses */
    uint64_t mapped_bytes;      /* physical memory, from base on */
    uint64_t used_bytes;        /* handed out */
    uint32_t n_steps;
    uint64_t step_bytes[DEVICE_MEMORY_MAX_STEPS];
};

enum status device_memory_granularity(const struct cuda *cu, const struct cuda_device *d,
                                      uint64_t *bytes, struct error *e);
/* A line for what `bytes` will take of the device (rounded up to the granularity). */
void device_memory_plan(struct budget *b, const char *name, uint64_t bytes,
                        uint64_t granularity_bytes);
/* What the device has in all, what is free now, and 15/16 of that as the limit: the rest is the
 * driver's (modules, local memory, other processes' growth). cgroup_bytes is UINT64_MAX. */
enum status device_memory_limit(const struct cuda *cu, struct memory_limit *m, struct error *e);

/* reserve_bytes: the most that it may ever grow to. Nothing is mapped yet. */
enum status device_memory_open(struct device_memory *m, const struct cuda *cu,
                               const struct cuda_device *d, const char *name,
                               uint64_t reserve_bytes, struct error *e);
/* Makes at least the first `bytes` of the range usable; no more than one step is mapped. */
enum status device_memory_grow(struct device_memory *m, uint64_t bytes, struct error *e);
/* The next `bytes`, growing if need be. align 0: DEVICE_MEMORY_ALIGN. */
enum status device_memory_take(struct device_memory *m, uint64_t bytes, uint64_t align,
                               uint64_t *address, struct error *e);
void device_memory_freeze(struct device_memory *m);
void device_memory_close(struct device_memory *m); /* of a zeroed one: nothing */

struct pinned_memory {
    const struct cuda *cuda;
    const char *name;
    bool frozen;
    uint8_t *host; /* NULL: not open; aligned to a page */
    uint64_t device;
    uint64_t bytes, used_bytes;
};

/* write_combined: fast for the host to write in order and for the device to read, very slow for the
 * host to read. */
enum status pinned_memory_open(struct pinned_memory *p, const struct cuda *cu, const char *name,
                               uint64_t bytes, bool write_combined, struct error *e);
/* The next `bytes`; NO_MEMORY when they are not there. align 0: 64. `address`, the device's name
 * for them, may be NULL. */
enum status pinned_memory_take(struct pinned_memory *p, uint64_t bytes, uint64_t align, void **host,
                               uint64_t *address, struct error *e);
void pinned_memory_freeze(struct pinned_memory *p);
void pinned_memory_close(struct pinned_memory *p); /* of a zeroed one: nothing */

/* Copies host memory of any kind to the device through two halves of a pinned staging block
 * (staging_bytes >= 2, of pinned memory), one being filled while the other is copied. The copies
 * are done when it returns. For loading, not for steps. */
enum status device_memory_upload(const struct cuda *cu, uint64_t dst, const void *src,
                                 uint64_t bytes, void *staging, uint64_t staging_bytes,
                                 struct cu_stream *stream, struct error *e);

#endif
