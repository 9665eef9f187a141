// ffn.cu: a dense feed-forward in one launch. Few rows (IN_NORM): every CTA norms and quantises them
// for itself; gate and up, their product quantised; all CTAs meet; down and the residual. More rows
// (IN_PLANES): the norm is spread over the CTAs, which meet after it; and at the end they may meet once
// more and norm the rows for the next layer. The grid is resident as a whole (jit/kernel_config.c).

typedef matrix<FORMAT, 2 * N, K> G;
typedef splits<G, SPLIT_PAIRS> GS;
typedef matrix<DOWN_FORMAT, K, N> D;
typedef splits<D, DOWN_SPLIT_PAIRS> DS;
#if VARIANT == VARIANT_WIDE
#define G_SPLITS 1
#define D_SPLITS 1
#define DOWN_PANELS TILE_PANELS
#else
#define G_SPLITS GS::count
#define D_SPLITS DS::count
#define DOWN_PANELS 1
#endif
#define PART_FLOATS                                                                                \
    ((TILE_PANELS * G_SPLITS > DOWN_PANELS * D_SPLITS ? TILE_PANELS * G_SPLITS                     \
                                                      : DOWN_PANELS * D_SPLITS) *                  \
     TILE_ROWS * PART_STRIDE)

DEVICE void grid_barrier(u32 *barrier) {
    block_sync();
    if (threadIdx.x == 0) {
        u32 generation, arrived;
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                     : "=r"(generation)
                     : "l"(barrier + 1)
                     : "memory");
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                     : "=r"(arrived)
                     : "l"(barrier)
                     : "memory");
        if (arrived == gridDim.x - 1) {
            asm volatile("st.relaxed.gpu.global.u32 [%0], 0;" ::"l"(barrier) : "memory");
            asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(barrier + 1),
                         "r"(generation + 1)
                         : "memory");
        } else {
            u32 now;
            do {
                asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                             : "=r"(now)
                             : "l"(barrier + 1)
                             : "memory");
            } while (now == generation);
        }
    }
    block_sync();
}

template <class X, class S, int T>
DEVICE void tile_sums(const u8 *weights, const u8 *planes, int panel0, float *part) {
#if VARIANT == VARIANT_DP4A
    dp4a_tile<X, S, ACTIVATION_BITS, TILE_ROWS, T>(weights, planes, panel0, part);
#elif VARIANT == VARIANT_WIDE
    mma_tile_panels<X, S, ACTIVATION_BITS, TILE_ROWS / 8>(weights, planes, panel0, part);
#else
    mma_tile_split<X, S, ACTIVATION_BITS, TILE_ROWS / 8, T>(weights, planes, panel0, part);
#endif
}

DEVICE bool row_runs(const u32 *run, u32 row) {
    return run[row >> 5] >> (row & 31) & 1;
}

// Rows of `run` normed into planes, a row a CTA.
template <int BITS>
DEVICE void norm_spread(const float *x, const float *norm, const u32 *run, u32 rows, u8 *planes) {
    __shared__ __align__(16) float warps[NORM_THREADS / 32];
    const int tid = threadIdx.x;
    for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
        if (!row_runs(run, row)) continue;
        const float4 *at = (const float4 *)(x + (u64)row * K);
        const float s = norm_partial(at, K / 4, tid);
        block_sync();
        if ((tid & 31) == 0) warps[tid >> 5] = s;
        block_sync();
        row_planes<K, BITS, true>(at, (const float4 *)norm, norm_factor(warps, (float)K, EPSILON),
                                  planes + (u64)row * PLANES_BYTES(K, BITS));
    }
}

// act(gate) * up of a tile, quantised into h. The products take the place of the gates in `part`.
DEVICE void store_gated(const params &p, int panel0, u32 row0, float *part) {
    const int tid = threadIdx.x;
    for (int e = tid; e < TILE_PANELS * TILE_ROWS * 8; e += THREADS) {
        const int o = e & 7, r = (e >> 3) % TILE_ROWS, t = (e >> 3) / TILE_ROWS;
        float y = 0.0f;
        if (panel0 + t < G::panels && row_runs(p.run, row0 + r))
            y = gated(split_sum<G_SPLITS, TILE_ROWS>(part, t, r, o),
                      split_sum<G_SPLITS, TILE_ROWS>(part, t, r, o + 8), GELU);
        part[(t * G_SPLITS * TILE_ROWS + r) * PART_STRIDE + o] = y;
    }
    block_sync();
    // Four panels give a block of 32, eight lanes one row of it.
    for (int e = tid; e < CEIL_DIV(TILE_PANELS * TILE_ROWS * 2, 32) * 32; e += THREADS) {
        const int quad = e & 7, r = (e >> 3) % TILE_ROWS, block = (e >> 3) / TILE_ROWS;
        const int t = block * 4 + quad / 2;
        const bool on = t < TILE_PANELS && panel0 + block * 4 < G::panels && row_runs(p.run, row0 + r);
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (on)
            v = *(const float4 *)&part[(t * G_SPLITS * TILE_ROWS + r) * PART_STRIDE + (quad & 1) * 4];
        quantise_block<ACTIVATION_BITS>(v, p.h + (u64)(row0 + r) * PLANES_BYTES(N, ACTIVATION_BITS),
                                        N, panel0 * 2 + block * 8 + quad, on);
    }
}

// Whether some row of a tile runs.
DEVICE bool tile_runs(const params &p, u32 row0) {
    u32 mask = p.run[row0 >> 5];
#if TILE_ROWS == 64
    mask |= p.run[(row0 >> 5) + 1];
#elif TILE_ROWS < 32
    mask = mask >> (row0 & 31) & ((1u << TILE_ROWS) - 1);
#endif
    return mask != 0;
}

// Tiles of panels, for each tile of rows.
template <class X, int T> struct tiles {
    static constexpr int of_panels = CEIL_DIV(X::panels, T);
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) KERNEL_NAME(params p) {
    __shared__ __align__(16) float part[PART_FLOATS];
    const int tid = threadIdx.x;
    dependents_launch();
    weights_prefetch<G, GS>(p.weights, blockIdx.x * TILE_PANELS);
    dependencies_wait();
#if INPUT == IN_NORM
    extern __shared__ __align__(16) u8 normed[];
    constexpr int row_tiles = 1;
    u32 mask = p.run[0];
#if TILE_ROWS < 32
    mask &= (1u << TILE_ROWS) - 1;
#endif
    if (mask == 0) return;
    norm_rows<K, ACTIVATION_BITS, TILE_ROWS>(p.x, p.norm, mask, EPSILON, normed);
#else
    const u8 *normed = p.planes;
    const int row_tiles = CEIL_DIV((int)p.max_rows, TILE_ROWS);
    bool any = false;
    for (int t = 0; t < row_tiles; t++) any |= tile_runs(p, t * TILE_ROWS);
    if (any) {
    norm_spread<ACTIVATION_BITS>(p.x, p.norm, p.run, p.max_rows, p.planes);
    grid_barrier(p.barrier);
#endif
#pragma unroll 1
    for (int tile = blockIdx.x; tile < tiles<G, TILE_PANELS>::of_panels * row_tiles;
         tile += gridDim.x) {
        const int row_tile = tile / tiles<G, TILE_PANELS>::of_panels;
        const int panel0 = (tile - row_tile * tiles<G, TILE_PANELS>::of_panels) * TILE_PANELS;
        const u32 row0 = row_tile * TILE_ROWS;
        if (!tile_runs(p, row0)) continue;
        tile_sums<G, GS, TILE_PANELS>(
            p.weights, normed + (u64)row0 * PLANES_BYTES(K, ACTIVATION_BITS), panel0, part);
        block_sync();
        store_gated(p, panel0, row0, part);
        block_sync();
    }
    weights_prefetch<D, DS>(p.down_weights, blockIdx.x);
    grid_barrier(p.barrier);
#pragma unroll 1
    for (int tile = blockIdx.x; tile < tiles<D, DOWN_PANELS>::of_panels * row_tiles;
         tile += gridDim.x) {
        const int row_tile = tile / tiles<D, DOWN_PANELS>::of_panels;
        const int panel0 = (tile - row_tile * tiles<D, DOWN_PANELS>::of_panels) * DOWN_PANELS;
        const u32 row0 = row_tile * TILE_ROWS;
        if (!tile_runs(p, row0)) continue;
        tile_sums<D, DS, DOWN_PANELS>(
            p.down_weights, p.h + (u64)row0 * PLANES_BYTES(N, ACTIVATION_BITS), panel0, part);
        block_sync();
        for (int e = tid; e < DOWN_PANELS * TILE_ROWS * 16; e += THREADS) {
            const int o = e & 15, r = (e >> 4) % TILE_ROWS, t = (e >> 4) / TILE_ROWS;
            const int output = (panel0 + t) * 16 + o;
            if (output >= K || !row_runs(p.run, row0 + r)) continue;
            float *x = p.x + (u64)(row0 + r) * K + output;
            *x = fma(SCALE, split_sum<D_SPLITS, TILE_ROWS>(part, t, r, o), *x);
        }
        block_sync();
    }
#if INPUT == IN_PLANES
    if (NEXT_BITS) grid_barrier(p.barrier);
    }
#if NEXT_BITS
    norm_spread<NEXT_BITS>(p.x, p.next_norm, p.next_run, p.max_rows, p.planes);
#endif
#endif
}
