/* poison.h: telling ASan by hand which bytes may be touched. jemalloc's blocks are not seen by it,
 * so whoever cuts such a block marks what is out of bounds. Without ASan both calls are nothing and
 * POISON_RED_ZONE_BYTES is 0. Ranges start at a multiple of 8; sanitizer granularity is 8 bytes.
 */
#ifndef LAC_ALLOC_POISON_H
#define LAC_ALLOC_POISON_H

#include <stddef.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
enum { POISON_RED_ZONE_BYTES = 256 };
static inline void poison(const void *p, size_t bytes) {
    __asan_poison_memory_region(p, bytes);
}
static inline void unpoison(const void *p, size_t bytes) {
    __asan_unpoison_memory_region(p, bytes);
}
#else
enum { POISON_RED_ZONE_BYTES = 0 };
static inline void poison(const void *p, size_t bytes) {
    (void)p, (void)bytes;
}
static inline void unpoison(const void *p, size_t bytes) {
    (void)p, (void)bytes;
}
#endif

#endif
