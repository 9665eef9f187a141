#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/softgpu/driver.h"

enum { PAGE_BYTES = 4096 };

static enum cu_result result_of(enum status s) {
    switch (s) {
    case STATUS_OK:
        return CUDA_SUCCESS;
    case STATUS_NO_MEMORY:
        return CUDA_ERROR_OUT_OF_MEMORY;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static bool fits(uint64_t bytes) {
    const uint64_t used = memory_used_bytes(soft.memory);
    return bytes <= soft.faults.memory_bytes && used <= soft.faults.memory_bytes - bytes;
}

/* Copies and fills still to be run, or run and not waited for, that touch the range. */
static void check_in_flight(uint64_t base, uint64_t bytes, const char *call) {
    const struct work probe = {.kind = WORK_FILL,
                               .fill = {.dst = base, .width_bytes = 1, .count = bytes}};
    for (const struct work *o = soft.works; o != NULL; o = o->next) {
        if (o->observed_at != 0 || !work_conflicts(&probe, o)) continue;
        rule_broken(RULE_IN_FLIGHT, base,
                    "%s of %#llx while a %s that touches it has not been waited for", call,
                    (unsigned long long)base, o->kind == WORK_FILL ? "fill" : "copy");
        return;
    }
}

enum cu_result soft_mem_alloc(uint64_t *address, size_t bytes) {
    *address = 0;
    soft_lock();
    enum cu_result r = soft_enter("cuMemAlloc", true);
    if (r == CUDA_SUCCESS && !fits(bytes)) r = CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS) {
        r = result_of(memory_allocate(soft.memory, bytes, "cuMemAlloc", address, NULL));
    }
    soft_unlock();
    return r;
}

enum cu_result soft_mem_free(uint64_t address) {
    if (address == 0) return CUDA_SUCCESS;
    soft_run_lock();
    enum cu_result r = soft_enter("cuMemFree", true);
    if (r == CUDA_SUCCESS) {
        const struct memory_range *range = memory_find(soft.memory, address);
        if (range != NULL && range->base == address) {
            check_in_flight(address, range->size_bytes, "cuMemFree");
        }
        r = result_of(memory_free(soft.memory, address, NULL));
        if (r != CUDA_SUCCESS) {
            rule_broken(RULE_BAD_FREE, address, "cuMemFree(%#llx): nothing is allocated there",
                        (unsigned long long)address);
        }
    }
    soft_run_unlock();
    return r;
}

enum cu_result soft_mem_get_info(size_t *free_bytes, size_t *total_bytes) {
    soft_lock();
    const enum cu_result r = soft_enter("cuMemGetInfo", true);
    if (r == CUDA_SUCCESS) {
        *total_bytes = memory_total_bytes(soft.memory);
        *free_bytes = *total_bytes - memory_used_bytes(soft.memory);
    }
    soft_unlock();
    return r;
}

/* A page that faults on either side. */
enum cu_result soft_mem_host_alloc(void **out, size_t bytes, unsigned flags) {
    *out = NULL;
    soft_lock();
    enum cu_result r = soft_enter("cuMemHostAlloc", true);
    if (r == CUDA_SUCCESS && (bytes == 0 || bytes > SIZE_MAX / 2 || flags > 7)) {
        r = CUDA_ERROR_INVALID_VALUE;
    }
    if (r == CUDA_SUCCESS) {
        const size_t inside = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
        const size_t whole = inside + 2 * PAGE_BYTES;
        uint8_t *p =
            mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED || mprotect(p + PAGE_BYTES, inside, PROT_READ | PROT_WRITE) != 0 ||
            memory_host_register(soft.memory, p + PAGE_BYTES, bytes, NULL) != STATUS_OK) {
            if (p != MAP_FAILED) munmap(p, whole);
            r = CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            struct host_block *b = soft_alloc(sizeof *b);
            *b = (struct host_block){p + PAGE_BYTES, bytes, p, whole, soft.host_blocks};
            soft.host_blocks = b;
            *out = b->data;
        }
    }
    soft_unlock();
    return r;
}

void host_block_free(struct host_block *b) {
    if (b->mapping != NULL) munmap(b->mapping, b->mapping_bytes);
    free(b);
}

static enum cu_result host_end(void *p, bool ours, const char *call) {
    soft_run_lock();
    enum cu_result r = soft_enter(call, true);
    if (r == CUDA_SUCCESS) {
        struct host_block **b = &soft.host_blocks;
        while (*b != NULL && ((*b)->data != p || ((*b)->mapping != NULL) != ours)) b = &(*b)->next;
        if (*b == NULL) {
            rule_broken(RULE_BAD_FREE, (uintptr_t)p, "%s(%p): no such host memory", call, p);
            r = ours ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
        } else {
            struct host_block *gone = *b;
            check_in_flight((uintptr_t)p, gone->bytes, call);
            r = result_of(memory_host_unregister(soft.memory, p, NULL));
            *b = gone->next;
            host_block_free(gone);
        }
    }
    soft_run_unlock();
    return r;
}

enum cu_result soft_mem_free_host(void *p) {
    return host_end(p, true, "cuMemFreeHost");
}

enum cu_result soft_mem_host_register(void *p, size_t bytes, unsigned flags) {
    soft_lock();
    enum cu_result r = soft_enter("cuMemHostRegister", true);
    if (r == CUDA_SUCCESS && (p == NULL || bytes == 0 || (flags & ~11u) != 0)) {
        r = CUDA_ERROR_INVALID_VALUE;
    }
    if (r == CUDA_SUCCESS) {
        if (memory_host_register(soft.memory, p, bytes, NULL) != STATUS_OK) {
            r = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
        } else {
            struct host_block *b = soft_alloc(sizeof *b);
            *b = (struct host_block){.data = p, .bytes = bytes, .next = soft.host_blocks};
            soft.host_blocks = b;
        }
    }
    soft_unlock();
    return r;
}

enum cu_result soft_mem_host_unregister(void *p) {
    return host_end(p, false, "cuMemHostUnregister");
}

enum cu_result soft_mem_host_get_device_pointer(uint64_t *address, void *host, unsigned flags) {
    *address = 0;
    soft_lock();
    enum cu_result r = soft_enter("cuMemHostGetDevicePointer", true);
    if (r == CUDA_SUCCESS) {
        const struct memory_range *range = memory_find(soft.memory, (uintptr_t)host);
        if (flags != 0 || range == NULL || range->kind != MEMORY_HOST)
            r = CUDA_ERROR_INVALID_VALUE;
        else
            *address = (uintptr_t)host;
    }
    soft_unlock();
    return r;
}

static bool is_ours(const struct cu_allocation *a) {
    return a->type == CU_ALLOCATION_PINNED && a->location.type == CU_LOCATION_DEVICE &&
           a->location.id == 0;
}

enum cu_result soft_mem_get_allocation_granularity(size_t *bytes, const struct cu_allocation *a,
                                                   enum cu_flag which) {
    soft_lock();
    enum cu_result r = soft_enter("cuMemGetAllocationGranularity", false);
    if (r == CUDA_SUCCESS && (!is_ours(a) || which > CU_GRANULARITY_RECOMMENDED)) {
        r = CUDA_ERROR_INVALID_VALUE;
    }
    if (r == CUDA_SUCCESS) *bytes = MEMORY_GRANULE;
    soft_unlock();
    return r;
}

enum cu_result soft_mem_address_reserve(uint64_t *address, size_t bytes, size_t alignment,
                                        uint64_t wish, unsigned long long flags) {
    *address = 0;
    (void)wish; /* a wish only */
    soft_lock();
    enum cu_result r = soft_enter("cuMemAddressReserve", true);
    if (r == CUDA_SUCCESS && flags != 0) r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS) {
        r = result_of(memory_reserve(soft.memory, bytes,
                                     alignment != 0 ? alignment : MEMORY_GRANULE, address, NULL));
    }
    soft_unlock();
    return r;
}

enum cu_result soft_mem_address_free(uint64_t address, size_t bytes) {
    soft_run_lock();
    enum cu_result r = soft_enter("cuMemAddressFree", true);
    if (r == CUDA_SUCCESS) {
        struct error e = {0};
        r = result_of(memory_unreserve(soft.memory, address, bytes, &e));
        if (r != CUDA_SUCCESS) {
            rule_broken(RULE_BAD_FREE, address, "cuMemAddressFree(%#llx, %zu): %s",
                        (unsigned long long)address, bytes, e.message);
        }
    }
    soft_run_unlock();
    return r;
}

enum cu_result soft_mem_create(uint64_t *handle, size_t bytes, const struct cu_allocation *a,
                               unsigned long long flags) {
    *handle = 0;
    soft_lock();
    enum cu_result r = soft_enter("cuMemCreate", true);
    if (r == CUDA_SUCCESS && (!is_ours(a) || flags != 0)) r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS && !fits(bytes)) r = CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS) {
        struct memory_block *b = NULL;
        r = result_of(memory_block_create(soft.memory, bytes, &b, NULL));
        if (r == CUDA_SUCCESS) *handle = (uintptr_t)handle_new(HANDLE_BLOCK, b);
    }
    soft_unlock();
    return r;
}

enum cu_result soft_mem_release(uint64_t handle) {
    soft_lock();
    enum cu_result r = soft_enter("cuMemRelease", true);
    if (r == CUDA_SUCCESS) {
        struct memory_block *b = handle_get(HANDLE_BLOCK, (void *)handle, "cuMemRelease");
        if (b == NULL) {
            r = CUDA_ERROR_INVALID_VALUE;
        } else {
            memory_block_release(soft.memory, b);
            handle_end((void *)handle);
        }
    }
    soft_unlock();
    return r;
}

enum cu_result soft_mem_map(uint64_t address, size_t bytes, size_t offset, uint64_t handle,
                            unsigned long long flags) {
    soft_run_lock();
    enum cu_result r = soft_enter("cuMemMap", true);
    if (r == CUDA_SUCCESS) {
        struct memory_block *b = handle_get(HANDLE_BLOCK, (void *)handle, "cuMemMap");
        /* As the driver today: whole blocks only (offset must be 0, says the reference). */
        if (b == NULL || offset != 0 || flags != 0 || bytes != memory_block_bytes(b)) {
            r = CUDA_ERROR_INVALID_VALUE;
        } else {
            r = result_of(memory_map(soft.memory, address, b, NULL));
        }
    }
    soft_run_unlock();
    return r;
}

enum cu_result soft_mem_unmap(uint64_t address, size_t bytes) {
    soft_run_lock();
    enum cu_result r = soft_enter("cuMemUnmap", true);
    if (r == CUDA_SUCCESS) {
        check_in_flight(address, bytes, "cuMemUnmap");
        r = result_of(memory_unmap(soft.memory, address, bytes, NULL));
        if (r != CUDA_SUCCESS) {
            rule_broken(RULE_BAD_FREE, address, "cuMemUnmap(%#llx, %zu): not whole mappings",
                        (unsigned long long)address, bytes);
        }
    }
    soft_run_unlock();
    return r;
}

enum cu_result soft_mem_set_access(uint64_t address, size_t bytes, const struct cu_access *access,
                                   size_t n) {
    soft_run_lock();
    enum cu_result r = soft_enter("cuMemSetAccess", true);
    for (size_t i = 0; r == CUDA_SUCCESS && i < n; i++) {
        if (access[i].location.type != CU_LOCATION_DEVICE || access[i].location.id != 0) {
            r = CUDA_ERROR_INVALID_DEVICE;
            break;
        }
        r = result_of(memory_set_access(soft.memory, address, bytes, (access[i].flags & 1) != 0,
                                        access[i].flags == 3, NULL));
    }
    soft_run_unlock();
    return r;
}
