// page_choose.cu: the pages a row attends to: those it always does, and the best of the others by
// score, ties to the lower page; a CTA a (row, KV head). By radix over ordered scores, then pages.

#define NONE 0xffffffffu

DEVICE u64 rank_of(float score, u32 page) {
    const u32 bits = __float_as_uint(score + 0.0f);
    return (u64)(bits & 0x80000000u ? ~bits : bits | 0x80000000u) << 32 | (u32)~page;
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(params p) {
    __shared__ u32 bins[256];
    __shared__ u64 prefix;
    __shared__ u32 above, candidates;
    dependents_launch();
    dependencies_wait();
    const u32 row = blockIdx.x, tid = threadIdx.x;
    if (!(p.run[row >> 5] >> (row & 31) & 1)) return;
    const u64 at = (u64)row * N_KV_HEADS + blockIdx.y;
    const u32 n_whole = p.row_position[row] / 16, budget = p.budget[row];
    const u32 n_blocks = p.row_position[row] / 256 + 1;
    const u16 *always = p.always + (u64)row * p.mask_stride;
    const float *scores = p.scores + at * p.score_stride;
    u16 *masks = p.masks + at * p.mask_stride;
    if (tid == 0) {
        prefix = 0;
        above = 0;
        candidates = 0;
    }
    block_sync();
    for (u32 i = tid; i < n_whole; i += THREADS)
        if (!(always[i / 16] >> (i % 16) & 1)) atomicAdd(&candidates, 1u);
    block_sync();
    u64 least = 0;
    if (budget == 0) {
        least = ~0ull;
    } else if (budget < candidates) {
#pragma unroll 1
        for (int shift = 56; shift >= 0; shift -= 8) {
            for (u32 i = tid; i < 256; i += THREADS) bins[i] = 0;
            block_sync();
            const u64 so_far = prefix;
            for (u32 i = tid; i < n_whole; i += THREADS) {
                if (always[i / 16] >> (i % 16) & 1) continue;
                const u64 rank = rank_of(scores[i], i);
                if (shift < 56 && rank >> (shift + 8) != so_far) continue;
                atomicAdd(&bins[(u32)(rank >> shift) & 255u], 1u);
            }
            block_sync();
            if (tid == 0) {
                int bin = 255;
                u32 n = above;
                while (n + bins[bin] < budget) n += bins[bin--];
                prefix = so_far << 8 | (u32)bin;
                above = n;
            }
            block_sync();
        }
        least = prefix;
    }
    // A thread a block of 16 pages.
    for (u32 b = tid; b < n_blocks; b += THREADS) {
        u32 mask = always[b];
        for (u32 i = 0; i < 16; i++) {
            const u32 page = b * 16 + i;
            if (page < n_whole && !(mask >> i & 1) && rank_of(scores[page], page) >= least)
                mask |= 1u << i;
        }
        masks[b] = (u16)mask;
    }
}
