/* heap.h: what the general heap has given this thread so far.
 *
 * heap_allocated_bytes() returns the address of a counter of bytes ever allocated by the calling
 * thread (jemalloc's thread.allocatedp); reading it costs a load. NULL where another allocator
 * stands in for jemalloc (under ASan and TSan).
 */
#ifndef LAC_ALLOC_HEAP_H
#define LAC_ALLOC_HEAP_H

#include <stdint.h>

const uint64_t *heap_allocated_bytes(void);

#endif
