#include "alloc/heap.h"

#include <stddef.h>

#include <jemalloc/jemalloc.h>

const uint64_t *heap_allocated_bytes(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return NULL;
#else
    uint64_t *counter = NULL;
    size_t bytes = sizeof counter;
    return mallctl("thread.allocatedp", &counter, &bytes, NULL, 0) == 0 ? counter : NULL;
#endif
}
