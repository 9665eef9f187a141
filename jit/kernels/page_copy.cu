// page_copy.cu: whole KV pages, before a step's spans.

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(params p) {
    dependents_launch();
    dependencies_wait();
    const u32 n = p.count[0];
    for (u32 i = blockIdx.x; i < n; i += gridDim.x) {
        const u64 from = p.copies[2 * i], to = p.copies[2 * i + 1];
        const uint4 *a = (const uint4 *)(p.kv + from * PAGE_BYTES);
        uint4 *b = (uint4 *)(p.kv + to * PAGE_BYTES);
        for (u32 j = threadIdx.x; j < PAGE_BYTES / 16; j += THREADS) b[j] = a[j];
    }
}
