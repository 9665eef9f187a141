// page_seal.cu: the least and the largest key of every channel of pages that a row has completed
// (Tang et al., "Quest", 2024); a CTA a page.

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(params p) {
    dependents_launch();
    dependencies_wait();
    if (blockIdx.x >= p.count[0]) return;
    const u32 row = p.list[2 * blockIdx.x + 1];
    if (!(p.run[row >> 5] >> (row & 31) & 1)) return;
    const u64 page = p.list[2 * blockIdx.x];
    const u16 *k = (const u16 *)(p.kv + page * p.page_bytes);
    u16 *bounds = (u16 *)(p.bounds + page * p.bounds_bytes);
    for (int i = threadIdx.x; i < N_KV_HEADS * HEAD_DIM; i += THREADS) {
        const uint4 a = ((const uint4 *)(k + i * 16))[0], b = ((const uint4 *)(k + i * 16))[1];
        const u32 words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        float least = f16_low(words[0]), most = least;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float lo = f16_low(words[j]), hi = f16_high(words[j]);
            least = lo < least ? lo : least;
            least = hi < least ? hi : least;
            most = larger(lo, most);
            most = larger(hi, most);
        }
        const int head = i / HEAD_DIM, d = i - head * HEAD_DIM;
        bounds[(head * 2) * HEAD_DIM + d] = float_f16(least);
        bounds[(head * 2 + 1) * HEAD_DIM + d] = float_f16(most);
    }
}
