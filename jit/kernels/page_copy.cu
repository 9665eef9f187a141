// page_copy.cu: whole KV pages (or their bounds, or a slot's choices), before a step's spans; a CTA a
// piece of one at a time.

#if PAGE_BYTES
#define BYTES ((u64)PAGE_BYTES)
#else
#define BYTES p.bytes
#endif
#define PIECE 16384

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) KERNEL_NAME(params p) {
    dependents_launch();
    dependencies_wait();
    const u32 n = p.count[0], pieces = (u32)((BYTES + PIECE - 1) / PIECE);
    u32 piece = blockIdx.x; // counted from the copy at hand on
    for (u32 copy = 0; copy < n; copy++, piece -= pieces) {
        const u8 *from = p.kv + p.copies[2 * copy] * BYTES;
        u8 *to = p.kv + p.copies[2 * copy + 1] * BYTES;
        for (; piece < pieces; piece += gridDim.x) {
            const u64 first = (u64)piece * PIECE;
            const u64 end = first + PIECE < BYTES ? first + PIECE : BYTES;
            for (u64 at = first + threadIdx.x * 16; at < end; at += THREADS * 16)
                *(uint4 *)(to + at) = *(const uint4 *)(from + at);
        }
    }
}
