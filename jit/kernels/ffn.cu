// ffn.cu: a dense feed-forward for few rows in one launch: norm and quantise, gate and up, their
// product quantised; all CTAs meet; down and the residual. The grid is resident as a whole
// (jit/kernel_config.c).

typedef matrix<FORMAT, 2 * N, K> G;
typedef splits<G, SPLIT_PAIRS> GS;
typedef matrix<DOWN_FORMAT, K, N> D;
typedef splits<D, DOWN_SPLIT_PAIRS> DS;
#define PART_FLOATS                                                                                \
    ((TILE_PANELS * GS::count > DS::count ? TILE_PANELS * GS::count : DS::count) * TILE_ROWS * PART_STRIDE)

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
#else
    mma_tile_split<X, S, ACTIVATION_BITS, TILE_ROWS / 8, T>(weights, planes, panel0, part);
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) KERNEL_NAME(params p) {
    __shared__ float part[PART_FLOATS];
    __shared__ __align__(16) float h[TILE_ROWS][32];
    extern __shared__ __align__(16) u8 planes[];
    const int tid = threadIdx.x;
    dependents_launch();
    weights_prefetch<G, GS>(p.weights, blockIdx.x * TILE_PANELS);
    dependencies_wait();
    u32 mask = p.run[0];
#if TILE_ROWS < 32
    mask &= (1u << TILE_ROWS) - 1;
#endif
    if (mask == 0) return;
    norm_rows<K, ACTIVATION_BITS, TILE_ROWS>(p.x, p.norm, mask, EPSILON, planes);
#pragma unroll 1
    for (int panel0 = blockIdx.x * TILE_PANELS; panel0 < G::panels;
         panel0 += gridDim.x * TILE_PANELS) {
        tile_sums<G, GS, TILE_PANELS>(p.weights, planes, panel0, part);
        block_sync();
        for (int e = tid; e < TILE_PANELS * TILE_ROWS * 8; e += THREADS) {
            const int o = e & 7, r = (e >> 3) % TILE_ROWS, t = (e >> 3) / TILE_ROWS;
            float y = 0.0f;
            if (panel0 + t < G::panels && (mask >> r & 1))
                y = gated(split_sum<GS::count, TILE_ROWS>(part, t, r, o),
                          split_sum<GS::count, TILE_ROWS>(part, t, r, o + 8), GELU);
            h[r][t * 8 + o] = y;
        }
        block_sync();
        if (tid < CEIL_DIV(TILE_ROWS * 8, 32) * 32) {
            const int r = tid >> 3, quad = tid & 7;
            const bool on = r < TILE_ROWS && (mask >> r & 1);
            float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (on) v = *(const float4 *)&h[r][quad * 4];
            quantise_block<ACTIVATION_BITS>(v, p.h + (u64)r * PLANES_BYTES(N, ACTIVATION_BITS), N,
                                            panel0 * 2 + quad, on);
        }
        block_sync();
    }
    weights_prefetch<D, DS>(p.down_weights, blockIdx.x);
    grid_barrier(p.barrier);
#pragma unroll 1
    for (int panel = blockIdx.x; panel < D::panels; panel += gridDim.x) {
        tile_sums<D, DS, 1>(p.down_weights, p.h, panel, part);
        block_sync();
        for (int e = tid; e < TILE_ROWS * 16; e += THREADS) {
            const int o = e & 15, r = e >> 4, output = panel * 16 + o;
            if (output >= K || !(mask >> r & 1)) continue;
            float *x = p.x + (u64)r * K + output;
            *x = fma(SCALE, split_sum<DS::count, TILE_ROWS>(part, 0, r, o), *x);
        }
        block_sync();
    }
}
