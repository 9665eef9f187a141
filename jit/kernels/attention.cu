// attention.cu: rows against their pages, by absolute key blocks of 256 positions. SPLIT: a CTA
// takes one block of one row, the last one merges the row. WALK: a CTA takes a tile of rows and
// walks the blocks. Both compute a block by the same sums (jit/kernel.h) and merge ascending.
// In a block, warp w has positions 32 w .. 32 w + 31. K of a page is [KV head][dim][16 positions],
// V [KV head][16 positions][dim], F16; q carries the attention scale.
// A gated row (jit/kernel.h, struct attention_gate) attends to chosen pages and to all from its recent
// one on. RUNS: these lie side by side, in order, and everything below counts in them: such a row's
// position is the number of positions before its own among them. Else they stay where they are, and a
// block has bits for those that count.

#define GROUP (N_HEADS / N_KV_HEADS)
#define QUERIES (TILE_ROWS * GROUP)
#define BLOCK 256
#define UNITS CEIL_DIV(HEAD_DIM, 64) // lanes hold two dimensions at a time
#define PER_WARP CEIL_DIV(QUERIES, WARPS)
#define LOWEST (-3.402823466e+38f)
#if VARIANT == VARIANT_SPLIT
#define SUM_FLOATS (WARPS * QUERIES * HEAD_DIM)
#else
#define SUM_FLOATS (QUERIES * HEAD_DIM)
#endif

#if GATED
struct gate {
    u32 entry, recent, n_chosen;
};
// False: the row attends to everything in this layer.
DEVICE bool gate_of(const params &p, u32 row, gate &g) {
    const uint4 v = ((const uint4 *)p.row_gates)[row];
    g = {v.x, v.y, v.z};
    return v.x != 0xffffffffu && p.layer >= v.w;
}
#endif

DEVICE int position_of(const params &p, u32 row) {
    const int position = p.row_position[row];
#if RUNS
    gate g;
    if (gate_of(p, row, g))
        return (int)(g.n_chosen + position / 16 - g.recent) * 16 + (position & 15);
#endif
    return position;
}

#if RUNS
// The physical pages of attended pages [first, first + n), n <= 16. One warp.
DEVICE void find_pages(const params &p, const gate &g, int kv_head, u32 first, u32 n,
                       const u32 *table, u32 *pages) {
    const u32 lane = threadIdx.x & 31;
    // An entry whose layer was never chosen for has no bits: something of the sequence is read then.
    if (lane < n) pages[lane] = table[g.recent];
    __syncwarp();
    const u16 *mask = p.masks + (u64)g.entry * p.mask_entry + kv_head * p.mask_stride;
    const u32 end = first + n < g.n_chosen ? first + n : g.n_chosen;
    u32 before = 0;
#pragma unroll 1
    for (u32 w0 = 0; first < end && w0 * 16 < g.recent && before < end; w0 += 32) {
        u32 bits = (w0 + lane) * 16 < g.recent ? mask[w0 + lane] : 0;
        u32 sum = __popc(bits);
        const u32 mine = sum;
#pragma unroll
        for (int d = 1; d < 32; d <<= 1) {
            const u32 other = __shfl_up_sync(FULL, sum, d);
            if (lane >= d) sum += other;
        }
        u32 at = before + sum - mine;
        for (; bits != 0; bits &= bits - 1, at++)
            if (at >= first && at < end)
                pages[at - first] = table[(w0 + lane) * 16 + __ffs(bits) - 1];
        __syncwarp();
        before += __shfl_sync(FULL, sum, 31);
    }
    if (lane < n && first + lane >= g.n_chosen)
        pages[lane] = table[g.recent + first + lane - g.n_chosen];
}
#endif

struct tile_rows {
    int lo[TILE_ROWS], hi[TILE_ROWS]; // visible positions of the block, empty when lo >= hi
    u32 pages[TILE_ROWS];             // 16 bits: pages attended to
};

DEVICE int first_visible(int position) {
    return WINDOW > 0 && position >= WINDOW ? position - WINDOW + 1 : 0;
}

// Scores of all queries with the lane's position, their softmax against the block's maximum: e, and
// per query m and the sums of the warps.
DEVICE void block_scores(const u8 *kv, u64 page_bytes, const u32 *pages, int n_pages, int kv_head,
                         const tile_rows &rows, const float *q, float *e, float *warp_max,
                         float *warp_sums, float *m) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int at = warp * 32 + lane, in_page = at & 15;
    bool any = false;
#pragma unroll
    for (int r = 0; r < TILE_ROWS; r++)
        any |= at >= rows.lo[r] && at < rows.hi[r] && (rows.pages[r] >> (at >> 4) & 1);
    float s[QUERIES];
#pragma unroll
    for (int i = 0; i < QUERIES; i++) s[i] = 0.0f;
    if (any) {
        const u16 *k = (const u16 *)(kv + pages[at >> 4] * page_bytes) +
                       kv_head * HEAD_DIM * 16 + in_page;
#pragma unroll 1
        for (int d0 = 0; d0 < HEAD_DIM; d0 += 16) {
            float key[16];
#pragma unroll
            for (int i = 0; i < 16; i++) key[i] = f16_float(k[(d0 + i) * 16]);
#pragma unroll
            for (int i = 0; i < QUERIES; i++) {
#pragma unroll
                for (int j = 0; j < 16; j += 4) {
                    const float4 v = *(const float4 *)(q + i * HEAD_DIM + d0 + j);
                    s[i] = fma(v.x, key[j], s[i]);
                    s[i] = fma(v.y, key[j + 1], s[i]);
                    s[i] = fma(v.z, key[j + 2], s[i]);
                    s[i] = fma(v.w, key[j + 3], s[i]);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < QUERIES; i++) {
        const int r = i / GROUP;
        const bool on =
            at >= rows.lo[r] && at < rows.hi[r] && (rows.pages[r] >> (at >> 4) & 1);
        if (CAPPED) s[i] = soft_cap(s[i], SOFTCAP);
        s[i] = on ? s[i] : LOWEST;
        float top = s[i];
#pragma unroll
        for (int x = 16; x > 0; x >>= 1) top = larger(top, __shfl_xor_sync(FULL, top, x));
        if (lane == 0) warp_max[warp * QUERIES + i] = top;
    }
    block_sync();
#pragma unroll
    for (int i = 0; i < QUERIES; i++) {
        float top = warp_max[i];
#pragma unroll
        for (int w = 1; w < WARPS; w++) top = larger(top, warp_max[w * QUERIES + i]);
        const float x = s[i] == LOWEST ? 0.0f : exp_f32(s[i] - top);
        e[i * BLOCK + at] = x;
        const float sum = warp_sum(x);
        if (lane == 0) warp_sums[warp * QUERIES + i] = sum;
        if (threadIdx.x == 0) m[i] = top;
    }
    block_sync();
}

DEVICE float group_total(const float *warp_sums, int query) {
    float l = warp_sums[query];
#pragma unroll
    for (int w = 1; w < WARPS; w++) l = l + warp_sums[w * QUERIES + query];
    return l;
}

// sum[i][u]: of queries [q0, q0 + NQ), over the 32 positions of `group`, ascending. Positions
// outside [lo, hi) are not read; those that some query does not see have e = 0 there.
template <int NQ>
DEVICE void group_values(const u8 *kv, u64 page_bytes, const u32 *pages, int kv_head, int group,
                         int lo, int hi, u32 any_pages, const float *e, int q0,
                         float2 sum[NQ][UNITS]) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < NQ; i++)
#pragma unroll
        for (int u = 0; u < UNITS; u++) sum[i][u] = make_float2(0.0f, 0.0f);
#pragma unroll 1
    for (int at = group * 32; at < group * 32 + 32; at += 4) {
        if (at + 4 <= lo || at >= hi || !(any_pages >> (at >> 4) & 1)) continue;
        const u16 *v = (const u16 *)(kv + pages[at >> 4] * page_bytes) +
                       N_KV_HEADS * HEAD_DIM * 16 + (kv_head * 16 + (at & 15)) * HEAD_DIM;
        float2 value[4][UNITS];
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                value[j][u] = make_float2(0.0f, 0.0f);
                const int d = (u * 32 + lane) * 2;
                if (at + j >= lo && at + j < hi && (HEAD_DIM % 64 == 0 || d < HEAD_DIM)) {
                    const u32 bits = *(const u32 *)(v + j * HEAD_DIM + d);
                    value[j][u] = make_float2(f16_low(bits), f16_high(bits));
                }
            }
#pragma unroll
        for (int i = 0; i < NQ; i++) {
            if (QUERIES % NQ != 0 && q0 + i >= QUERIES) break;
            const float4 w = *(const float4 *)(e + (q0 + i) * BLOCK + at);
            const float weight[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int u = 0; u < UNITS; u++) {
                    sum[i][u].x = fma(weight[j], value[j][u].x, sum[i][u].x);
                    sum[i][u].y = fma(weight[j], value[j][u].y, sum[i][u].y);
                }
        }
    }
}

// Rows [0, n) of `o` [row][GROUP * HEAD_DIM] to the output.
DEVICE void store_rows(const params &p, const float *o, u32 row0, int n, u32 mask, int kv_head) {
#if ACTIVATION_BITS
    const int quads = GROUP * HEAD_DIM / 4;
    for (int i0 = 0; i0 < n * quads; i0 += THREADS) {
        const int i = i0 + threadIdx.x, r = i / quads;
        const bool on = i < n * quads && (mask >> r & 1);
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (on) v = ((const float4 *)o)[i];
        const int k = N_HEADS * HEAD_DIM;
        u8 *planes = p.out + (u64)(row0 + r) * PLANES_BYTES(k, ACTIVATION_BITS);
        quantise_block<ACTIVATION_BITS>(v, planes, k, kv_head * quads + i - r * quads, on);
    }
    const int k = N_HEADS * HEAD_DIM;
    if (kv_head == N_KV_HEADS - 1 && threadIdx.x < 32)
        for (int r = 0; r < n; r++)
            if (mask >> r & 1)
                planes_pad<ACTIVATION_BITS>(
                    p.out + (u64)(row0 + r) * PLANES_BYTES(k, ACTIVATION_BITS), k, threadIdx.x);
#else
    for (int i = threadIdx.x; i < n * GROUP * HEAD_DIM; i += THREADS) {
        const int r = i / (GROUP * HEAD_DIM);
        if (mask >> r & 1)
            ((float *)p.out)[(u64)(row0 + r) * (N_HEADS * HEAD_DIM) + kv_head * GROUP * HEAD_DIM +
                             i - r * GROUP * HEAD_DIM] = o[i];
    }
#endif
}

#if VARIANT == VARIANT_SPLIT
// Blocks of a row, ascending: running maxima first, so that the factors of all blocks are computed
// at once; the same bits as merging one after the other.
#define MERGE_CHUNK (BLOCK / 4)
DEVICE void merge_row(const params &p, uint4 item, u32 n_blocks, int kv_head, float *scratch,
                      float *o, float *state) {
    float *block_m = scratch, *top = block_m + MERGE_CHUNK * GROUP;
    float *a = top + MERGE_CHUNK * GROUP, *b = a + MERGE_CHUNK * GROUP;
    float *m = state, *l = state + GROUP;
    const int tid = threadIdx.x;
    block_sync();
    for (int i = tid; i < GROUP * HEAD_DIM; i += THREADS) o[i] = 0.0f;
    if (tid < GROUP) {
        m[tid] = LOWEST;
        l[tid] = 0.0f;
    }
    for (u32 c0 = 0; c0 < n_blocks; c0 += MERGE_CHUNK) {
        const int n = n_blocks - c0 < MERGE_CHUNK ? n_blocks - c0 : MERGE_CHUNK;
        const u64 first = (u64)(item.z + c0) * N_HEADS + kv_head * GROUP;
        block_sync();
        for (int i = tid; i < n * GROUP; i += THREADS) {
            const u64 at = first + (u64)(i / GROUP) * N_HEADS + i % GROUP;
            block_m[i] = p.partial_ml[at * 2];
        }
        block_sync();
        if (tid < GROUP) {
            float running = m[tid];
            for (int c = 0; c < n; c++) {
                running = larger(running, block_m[c * GROUP + tid]);
                top[c * GROUP + tid] = running;
            }
        }
        block_sync();
        for (int i = tid; i < n * GROUP; i += THREADS) {
            const float before = i < GROUP ? m[i] : top[i - GROUP];
            a[i] = exp_f32(before - top[i]);
            b[i] = exp_f32(block_m[i] - top[i]);
        }
        block_sync();
        if (tid < GROUP) {
            for (int c = 0; c < n; c++) {
                const float block_l = p.partial_ml[(first + (u64)c * N_HEADS + tid) * 2 + 1];
                l[tid] = fma(l[tid], a[c * GROUP + tid], block_l * b[c * GROUP + tid]);
            }
            m[tid] = top[(n - 1) * GROUP + tid];
        }
        for (int i = tid; i < GROUP * HEAD_DIM; i += THREADS) {
            const int g = i / HEAD_DIM;
            float acc = o[i];
#pragma unroll 4
            for (int c = 0; c < n; c++)
                acc = fma(acc, a[c * GROUP + g],
                          p.partial[(first + (u64)c * N_HEADS) * HEAD_DIM + i] * b[c * GROUP + g]);
            o[i] = acc;
        }
    }
    block_sync();
    for (int i = tid; i < GROUP * HEAD_DIM; i += THREADS)
        o[i] = o[i] * reciprocal(l[i / HEAD_DIM]);
    block_sync();
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) KERNEL_NAME(params p) {
    extern __shared__ __align__(16) float shared[];
    float *q = shared;                        // [QUERIES][HEAD_DIM]
    float *e = q + QUERIES * HEAD_DIM;        // [QUERIES][BLOCK]
    float *sums = e + QUERIES * BLOCK;        // SPLIT: [WARPS][QUERIES][HEAD_DIM]; WALK: out rows
    float *warp_max = sums + SUM_FLOATS;      // [WARPS][QUERIES]
    float *warp_sums = warp_max + WARPS * QUERIES;
    float *m = warp_sums + WARPS * QUERIES;   // [QUERIES]
    float *state = m + QUERIES;               // [2][QUERIES]
    __shared__ u32 pages[BLOCK / 16];
    const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
    dependents_launch();
    dependencies_wait();
    const u32 n_work = p.count[0] * N_KV_HEADS;
#pragma unroll 1
    for (u32 work = blockIdx.x; work < n_work; work += gridDim.x) {
        const u32 index = work / N_KV_HEADS;
        const int kv_head = work - index * N_KV_HEADS;
#if VARIANT == VARIANT_SPLIT
        const uint4 item = ((const uint4 *)p.items)[index];
        const u32 row0 = item.x;
        const int n_rows = 1;
#else
        const uint2 item = ((const uint2 *)p.items)[index];
        const u32 row0 = item.x;
        const int n_rows = item.y;
#endif
        u32 mask = 0;
        int top_position = 0, low_block = 1 << 30;
        for (int r = 0; r < n_rows; r++) {
            const u32 row = row0 + r;
            if (!(p.run[row >> 5] >> (row & 31) & 1)) continue;
            mask |= 1u << r;
            const int position = position_of(p, row), low = first_visible(position) / BLOCK;
            top_position = position > top_position ? position : top_position;
            low_block = low < low_block ? low : low_block;
        }
        if (mask == 0) continue;
        const int any_row = __ffs(mask) - 1;
#if VARIANT == VARIANT_SPLIT
        u32 n_blocks = item.w;
#endif
#if RUNS
        gate g;
        const bool gated = gate_of(p, row0 + any_row, g);
#if VARIANT == VARIANT_SPLIT
        if (gated) n_blocks = top_position / BLOCK + 1;
        if (index - item.z >= n_blocks) continue;
#endif
#endif
        block_sync();
        for (int i = tid; i < QUERIES * HEAD_DIM; i += THREADS) {
            const int r = i / (GROUP * HEAD_DIM), from = i - r * GROUP * HEAD_DIM;
            q[i] = mask >> r & 1 ? p.q[(u64)(row0 + r) * (N_HEADS * HEAD_DIM) +
                                       kv_head * GROUP * HEAD_DIM + from]
                                 : 0.0f;
        }
        const u32 table = p.row_pages[row0 + any_row];
#if VARIANT == VARIANT_SPLIT
        const int block0 = item.y, block1 = item.y;
#else
        const int block0 = low_block, block1 = top_position / BLOCK;
        float2 acc[PER_WARP][UNITS];
        float run_m[PER_WARP], run_l[PER_WARP];
#pragma unroll
        for (int i = 0; i < PER_WARP; i++) {
            run_m[i] = LOWEST;
            run_l[i] = 0.0f;
#pragma unroll
            for (int u = 0; u < UNITS; u++) acc[i][u] = make_float2(0.0f, 0.0f);
        }
#endif
#pragma unroll 1
        for (int block = block0; block <= block1; block++) {
            const int start = block * BLOCK;
            const int n_pages = top_position / 16 - start / 16 + 1;
            tile_rows rows;
            int lo = BLOCK, hi = 0;
            u32 any_pages = 0;
#pragma unroll
            for (int r = 0; r < TILE_ROWS; r++) {
                rows.lo[r] = rows.hi[r] = 0;
                rows.pages[r] = 0;
                if (!(mask >> r & 1)) continue;
                const int position = position_of(p, row0 + r);
                const int first = first_visible(position) - start, last = position - start + 1;
                rows.lo[r] = first > 0 ? first : 0;
                rows.hi[r] = last < BLOCK ? last : BLOCK;
                rows.pages[r] = 0xffffu;
#if GATED && !RUNS
                gate g;
                if (gate_of(p, row0 + r, g)) {
                    const int recent = (int)g.recent - block * 16;
                    rows.pages[r] = recent <= 0 ? 0xffffu : recent < 16 ? 0xffffu << recent : 0;
                    if (recent > 0)
                        rows.pages[r] |= p.masks[(u64)g.entry * p.mask_entry +
                                                 kv_head * p.mask_stride + block];
                    rows.pages[r] &= 0xffffu;
                }
#endif
                if (rows.lo[r] >= rows.hi[r]) continue;
                lo = rows.lo[r] < lo ? rows.lo[r] : lo;
                hi = rows.hi[r] > hi ? rows.hi[r] : hi;
                any_pages |= rows.pages[r];
            }
            block_sync();
#if RUNS
            if (gated && warp == 0)
                find_pages(p, g, kv_head, start / 16, n_pages < 16 ? n_pages : 16, p.pages + table,
                           pages);
            if (!gated)
#endif
            if (tid < BLOCK / 16 && tid < n_pages && tid * 16 + 16 > lo && tid * 16 < hi)
                pages[tid] = p.pages[table + start / 16 + tid];
            block_sync();
            block_scores(p.kv, p.page_bytes, pages, n_pages, kv_head, rows, q, e, warp_max,
                         warp_sums, m);
#if VARIANT == VARIANT_SPLIT
            // Four queries at a time keep the sums in registers.
#pragma unroll 1
            for (int q0 = 0; q0 < QUERIES; q0 += 4) {
                float2 sum[4][UNITS];
                group_values<4>(p.kv, p.page_bytes, pages, kv_head, warp, lo, hi, any_pages, e, q0,
                                sum);
#pragma unroll
                for (int i = 0; i < 4 && q0 + i < QUERIES; i++)
#pragma unroll
                    for (int u = 0; u < UNITS; u++) {
                        const int d = (u * 32 + lane) * 2;
                        if (HEAD_DIM % 64 == 0 || d < HEAD_DIM)
                            *(float2 *)(sums + (warp * QUERIES + q0 + i) * HEAD_DIM + d) =
                                sum[i][u];
                    }
            }
            block_sync();
            const bool alone = n_blocks == 1;
            for (int i = tid; i < QUERIES * HEAD_DIM; i += THREADS) {
                float total = sums[i];
#pragma unroll
                for (int w = 1; w < WARPS; w++) total = total + sums[w * QUERIES * HEAD_DIM + i];
                // Each thread writes what only it has read.
                if (alone)
                    sums[i] = total * reciprocal(group_total(warp_sums, i / HEAD_DIM));
                else
                    p.partial[((u64)index * N_HEADS + kv_head * GROUP) * HEAD_DIM + i] = total;
            }
            if (!alone && tid < QUERIES) {
                float *ml = p.partial_ml + ((u64)index * N_HEADS + kv_head * GROUP + tid) * 2;
                ml[0] = m[tid];
                ml[1] = group_total(warp_sums, tid);
            }
            block_sync();
            bool mine = alone;
            if (!alone) {
                __shared__ u32 arrived;
                if (tid == 0) {
                    u32 *ticket = p.tickets + (u64)row0 * N_KV_HEADS + kv_head;
                    u32 before;
                    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                                 : "=r"(before)
                                 : "l"(ticket)
                                 : "memory");
                    arrived = before;
                    if (before == n_blocks - 1)
                        asm volatile("st.relaxed.gpu.global.u32 [%0], 0;" ::"l"(ticket) : "memory");
                }
                block_sync();
                mine = arrived == n_blocks - 1;
                if (mine) merge_row(p, item, n_blocks, kv_head, e, sums, state);
            }
            if (mine) store_rows(p, sums, row0, 1, 1, kv_head);
#else
            const int q0 = warp * PER_WARP;
            float2 total[PER_WARP][UNITS];
#pragma unroll 1
            for (int group = 0; group < WARPS; group++) {
                float2 sum[PER_WARP][UNITS];
                group_values<PER_WARP>(p.kv, p.page_bytes, pages, kv_head, group, lo, hi, any_pages,
                                       e, q0 < QUERIES ? q0 : 0, sum);
#pragma unroll
                for (int i = 0; i < PER_WARP; i++)
#pragma unroll
                    for (int u = 0; u < UNITS; u++) {
                        total[i][u].x = group == 0 ? sum[i][u].x : total[i][u].x + sum[i][u].x;
                        total[i][u].y = group == 0 ? sum[i][u].y : total[i][u].y + sum[i][u].y;
                    }
            }
#pragma unroll
            for (int i = 0; i < PER_WARP; i++) {
                if (q0 + i >= QUERIES) break;
                const float block_m = m[q0 + i], block_l = group_total(warp_sums, q0 + i);
                const float top = larger(run_m[i], block_m);
                const float a = exp_f32(run_m[i] - top), b = exp_f32(block_m - top);
#pragma unroll
                for (int u = 0; u < UNITS; u++) {
                    acc[i][u].x = fma(acc[i][u].x, a, total[i][u].x * b);
                    acc[i][u].y = fma(acc[i][u].y, a, total[i][u].y * b);
                }
                run_l[i] = fma(run_l[i], a, block_l * b);
                run_m[i] = top;
            }
#endif
        }
#if VARIANT == VARIANT_WALK
#pragma unroll
        for (int i = 0; i < PER_WARP; i++) {
            const int query = warp * PER_WARP + i;
            if (query >= QUERIES || !(mask >> (query / GROUP) & 1)) continue;
            const float y = reciprocal(run_l[i]);
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                const int d = (u * 32 + lane) * 2;
                if (HEAD_DIM % 64 == 0 || d < HEAD_DIM)
                    *(float2 *)(sums + query * HEAD_DIM + d) =
                        make_float2(acc[i][u].x * y, acc[i][u].y * y);
            }
        }
        block_sync();
        store_rows(p, sums, row0, n_rows, mask, kv_head);
#endif
    }
}
