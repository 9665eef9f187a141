// page_choose.cu: which pages before the recent ones a row's query chooses (core/step.h, struct
// gate_policy): sinks, anchors, and the best of the others, ties to the lower page. A CTA a (choice,
// KV head). A page's score is the largest over the head's queries of the sum over channels of
// max(q low, q high), in 16 lanes: the bits of core/cpu/vector.h's page_score.

#define GROUP (N_HEADS / N_KV_HEADS)

DEVICE u64 rank_of(float score, u32 page) {
    const u32 bits = __float_as_uint(score + 0.0f);
    return (u64)(bits & 0x80000000u ? ~bits : bits | 0x80000000u) << 32 | (u32)~page;
}

// A warp two pages at a time.
DEVICE void score_pages(const params &p, const float *q, const u32 *pages, const u16 *masks, u32 first,
                        u32 end, int head, float *scores) {
    const int warp = threadIdx.x >> 5, half = threadIdx.x >> 4 & 1, lane = threadIdx.x & 15;
    for (u32 p0 = first + warp * 2; p0 < end; p0 += WARPS * 2) {
        const u32 page = p0 + half;
        const bool candidate = page < end && !(masks[page / 16] >> (page % 16) & 1);
        const u16 *low = 0;
        if (candidate)
            low = (const u16 *)(p.bounds + (u64)pages[page] * p.bounds_bytes) + head * 2 * HEAD_DIM;
        float best = __uint_as_float(0xff800000u);
#pragma unroll 1
        for (int g = 0; g < GROUP; g++) {
            float s = 0.0f;
            if (candidate) {
#pragma unroll
                for (int d = lane; d < HEAD_DIM; d += 16) {
                    const float x = q[g * HEAD_DIM + d];
                    s = s + larger(x * f16_float(low[d]), x * f16_float(low[HEAD_DIM + d]));
                }
            }
            __syncwarp();
#pragma unroll
            for (int m = 8; m > 0; m >>= 1) s = s + __shfl_xor_sync(FULL, s, m);
            best = s > best ? s : best; // a score that is no number is the worst
        }
        if (candidate && lane == 0) scores[page] = best;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) KERNEL_NAME(params p) {
    __shared__ u32 bins[256];
    __shared__ u64 prefix;
    __shared__ u32 above, candidates;
    __shared__ float q[GROUP * HEAD_DIM];
    dependents_launch();
    dependencies_wait();
    if (blockIdx.x >= p.count[0]) return;
    const u32 *choice = p.choices + blockIdx.x * 8, tid = threadIdx.x;
    const u32 row = choice[0], sinks = choice[2], end = choice[3], budget = choice[4];
    const u32 *anchors = p.anchors + choice[5], n_anchors = choice[6];
    const int head = blockIdx.y;
    if (p.layer < choice[7] || !(p.run[row >> 5] >> (row & 31) & 1)) return;
    u16 *masks = p.masks + (u64)choice[1] * p.mask_entry + head * p.mask_stride;
    float *scores = p.scores + ((u64)blockIdx.x * N_KV_HEADS + head) * p.score_stride;
    const u32 *pages = p.pages + p.row_pages[row];
    if (tid == 0) {
        prefix = 0;
        above = 0;
        candidates = 0;
    }
    for (int i = tid; i < GROUP * HEAD_DIM; i += THREADS)
        q[i] = p.q[(u64)row * (N_HEADS * HEAD_DIM) + head * GROUP * HEAD_DIM + i];
    // What is attended to in any case; a thread a word of 16 pages.
    for (u32 w = tid; w * 16 < end; w += THREADS) {
        u32 mask = 0;
        for (u32 i = 0; i < 16; i++)
            if (w * 16 + i < sinks && w * 16 + i < end) mask |= 1u << i;
        for (u32 a = 0; a < n_anchors; a++)
            if (anchors[a] / 16 == w && anchors[a] < end) mask |= 1u << (anchors[a] & 15);
        masks[w] = (u16)mask;
    }
    block_sync();
    for (u32 i = sinks + tid; i < end; i += THREADS)
        if (!(masks[i / 16] >> (i % 16) & 1)) atomicAdd(&candidates, 1u);
    if (budget > 0) score_pages(p, q, pages, masks, sinks, end, head, scores);
    block_sync();
    if (budget == 0 || candidates == 0) return;
    u64 least = 0;
    if (budget < candidates) {
#pragma unroll 1
        for (int shift = 56; shift >= 0; shift -= 8) {
            for (u32 i = tid; i < 256; i += THREADS) bins[i] = 0;
            block_sync();
            const u64 so_far = prefix;
            for (u32 i = sinks + tid; i < end; i += THREADS) {
                if (masks[i / 16] >> (i % 16) & 1) continue;
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
    for (u32 w = tid; w * 16 < end; w += THREADS) {
        u32 mask = masks[w];
        for (u32 i = 0; i < 16; i++) {
            const u32 page = w * 16 + i;
            if (page >= sinks && page < end && !(mask >> i & 1) && rank_of(scores[page], page) >= least)
                mask |= 1u << i;
        }
        masks[w] = (u16)mask;
    }
}
