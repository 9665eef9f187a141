// page_score.cu: how much a page could matter to a row: per KV head, the largest over its queries of
// the bound sum over channels of max(q least, q most). A CTA a (row, KV head), a warp a page.

#define GROUP (N_HEADS / N_KV_HEADS)

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(params p) {
    __shared__ float q[GROUP * HEAD_DIM];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    dependents_launch();
    dependencies_wait();
    const u32 row = blockIdx.x;
    const int head = blockIdx.y;
    if (!(p.run[row >> 5] >> (row & 31) & 1)) return;
    for (int i = threadIdx.x; i < GROUP * HEAD_DIM; i += THREADS)
        q[i] = p.q[(u64)row * (N_HEADS * HEAD_DIM) + head * GROUP * HEAD_DIM + i];
    block_sync();
    const u32 n_pages = p.row_position[row] / 16; // whole ones
    for (u32 page = warp; page < n_pages; page += WARPS) {
        const u64 id = p.pages[p.row_pages[row] + page];
        const u16 *least = (const u16 *)(p.bounds + id * p.bounds_bytes) + head * 2 * HEAD_DIM;
        const u16 *most = least + HEAD_DIM;
        float best = -3.402823466e+38f;
        for (int g = 0; g < GROUP; g++) {
            float s = 0.0f;
            for (int d = lane; d < HEAD_DIM; d += 32) {
                const float x = q[g * HEAD_DIM + d];
                s = s + larger(x * f16_float(least[d]), x * f16_float(most[d]));
            }
            best = larger(best, warp_sum(s));
        }
        if (lane == 0) p.scores[((u64)row * N_KV_HEADS + head) * p.score_stride + page] = best;
    }
}
