// matmul.cu: out = epilogue(W x) for a tile of rows; persistent over tiles of panels.

typedef matrix<FORMAT, N, K> M;
typedef splits<M, SPLIT_PAIRS> S;
#define SPLITS_IN_PART (VARIANT == VARIANT_WIDE ? 1 : S::count)

DEVICE bool row_runs(const u32 *run, u32 row) {
    return run[row >> 5] >> (row & 31) & 1;
}

#if EPILOGUE == OUT_QKV
// Output `o` (0 .. 7) of a panel and its partner o + 8: rotated, scaled, and put where they belong.
DEVICE void qkv_store(const params &p, int panel, int o, u32 row, float y0, float y1) {
    constexpr int panels_per_head = HEAD_DIM / 16;
    const int head = panel / panels_per_head, in_head = panel - head * panels_per_head;
    const u32 position = p.row_position[row];
    int d0 = in_head * 16 + o, d1 = d0 + 8;
    if (head < N_HEADS + N_KV_HEADS && in_head < ROPE_DIMS / 16) {
        const int i = in_head * 8 + o;
        d0 = ROPE == ROPE_HALVES ? i : 2 * i;
        d1 = ROPE == ROPE_HALVES ? i + ROPE_DIMS / 2 : 2 * i + 1;
        if (BIAS) {
            y0 = y0 + p.bias[head * HEAD_DIM + d0];
            y1 = y1 + p.bias[head * HEAD_DIM + d1];
        }
        const float2 cs = ((const float2 *)p.rope)[(u64)position * (ROPE_DIMS / 2) + i];
        const float a = y0, b = y1;
        y0 = fma(a, cs.x, b * -cs.y);
        y1 = fma(b, cs.x, a * cs.y);
    } else if (BIAS) {
        y0 = y0 + p.bias[head * HEAD_DIM + d0];
        y1 = y1 + p.bias[head * HEAD_DIM + d1];
    }
    if (head < N_HEADS) {
        float *q = (float *)p.out + (u64)row * p.out_stride + head * HEAD_DIM;
        q[d0] = y0 * ATTN_SCALE;
        q[d1] = y1 * ATTN_SCALE;
        return;
    }
    const u64 page = p.pages[p.row_pages[row] + position / 16];
    u16 *layer = (u16 *)(p.kv + page * p.page_bytes);
    const int at = position % 16;
    if (head < N_HEADS + N_KV_HEADS) {
        u16 *k = layer + (head - N_HEADS) * HEAD_DIM * 16 + at;
        k[d0 * 16] = float_f16(y0);
        k[d1 * 16] = float_f16(y1);
    } else {
        u16 *v = layer + N_KV_HEADS * HEAD_DIM * 16 +
                 ((head - N_HEADS - N_KV_HEADS) * 16 + at) * HEAD_DIM;
        v[d0] = float_f16(y0);
        v[d1] = float_f16(y1);
    }
}
#endif

// `part` of panels [panel0, panel0 + TILE_PANELS) and rows [row0, row0 + TILE_ROWS) to where it goes.
DEVICE void epilogue(const params &p, int panel0, u32 row0, const float *part) {
    const int tid = threadIdx.x;
#if EPILOGUE == OUT_STORE || EPILOGUE == OUT_RESIDUAL
    for (int e = tid; e < TILE_PANELS * TILE_ROWS * 16; e += THREADS) {
        const int o = e & 15, r = (e >> 4) % TILE_ROWS, t = (e >> 4) / TILE_ROWS;
        const int output = (panel0 + t) * 16 + o;
        if (output >= N || !row_runs(p.run, row0 + r)) continue;
        float y = split_sum<SPLITS_IN_PART, TILE_ROWS>(part, t, r, o);
        if (BIAS) y = y + p.bias[output];
        float *out = (float *)p.out + (u64)(row0 + r) * p.out_stride + output;
#if EPILOGUE == OUT_RESIDUAL
        *out = fma(SCALE, y, *out);
#else
        if (SCALED) y = y * SCALE;
        if (CAPPED) y = soft_cap(y, SOFTCAP);
        *out = y;
#endif
    }
#else
    // Pairs of outputs o, o + 8 of a panel.
#if EPILOGUE == OUT_GATED_PLANES
    __shared__ float h[TILE_ROWS][32];
#endif
    for (int e = tid; e < TILE_PANELS * TILE_ROWS * 8; e += THREADS) {
        const int o = e & 7, r = (e >> 3) % TILE_ROWS, t = (e >> 3) / TILE_ROWS;
        const bool on = panel0 + t < M::panels && row_runs(p.run, row0 + r);
#if EPILOGUE != OUT_GATED_PLANES
        if (!on) continue;
#endif
        float y0 = 0.0f, y1 = 0.0f;
        if (on) {
            y0 = split_sum<SPLITS_IN_PART, TILE_ROWS>(part, t, r, o);
            y1 = split_sum<SPLITS_IN_PART, TILE_ROWS>(part, t, r, o + 8);
        }
#if EPILOGUE == OUT_QKV
        qkv_store(p, panel0 + t, o, row0 + r, y0, y1);
#elif EPILOGUE == OUT_GATED
        ((float *)p.out)[(u64)(row0 + r) * p.out_stride + (panel0 + t) * 8 + o] =
            gated(y0, y1, GELU);
#else
        h[r][t * 8 + o] = gated(y0, y1, GELU);
#endif
    }
#if EPILOGUE == OUT_GATED_PLANES
    block_sync();
    if (tid < CEIL_DIV(TILE_ROWS * 8, 32) * 32) {
        const int r = tid >> 3, quad = tid & 7;
        const bool on = r < TILE_ROWS && row_runs(p.run, row0 + r);
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (on) v = *(const float4 *)&h[r][quad * 4];
        quantise_block<ACTIVATION_BITS>(
            v, p.out + (u64)(row0 + r) * PLANES_BYTES(N / 2, ACTIVATION_BITS), N / 2,
            panel0 * 2 + quad, on);
    }
#endif
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) KERNEL_NAME(params p) {
    __shared__ float part[TILE_PANELS * SPLITS_IN_PART * TILE_ROWS * PART_STRIDE];
    extern __shared__ __align__(16) u8 shared_planes[];
    dependents_launch();
    weights_prefetch<M, S>(p.weights, blockIdx.x * TILE_PANELS);
    dependencies_wait();
    const u32 row0 = blockIdx.y * TILE_ROWS;
    // Words of `run` that hold the tile's rows: at most two, a tile is 1, 2, 4, 8, 16, 32 or 64.
    u32 mask = p.run[row0 >> 5];
#if TILE_ROWS == 64
    mask |= p.run[(row0 >> 5) + 1];
#elif TILE_ROWS < 32
    mask = mask >> (row0 & 31) & ((1u << TILE_ROWS) - 1);
#endif
    if (mask == 0) return;
#if INPUT == IN_NORM
    norm_rows<K, ACTIVATION_BITS, TILE_ROWS>(p.x + (u64)row0 * K, p.norm, mask, EPSILON,
                                             shared_planes);
    const u8 *planes = shared_planes;
#else
    const u8 *planes = p.planes + (u64)row0 * PLANES_BYTES(K, ACTIVATION_BITS);
#endif
#pragma unroll 1
    for (int panel0 = blockIdx.x * TILE_PANELS; panel0 < M::panels;
         panel0 += gridDim.x * TILE_PANELS) {
#if VARIANT == VARIANT_DP4A
        dp4a_tile<M, S, ACTIVATION_BITS, TILE_ROWS, TILE_PANELS>(p.weights, planes, panel0, part);
#elif VARIANT == VARIANT_WIDE
        mma_tile_panels<M, S, ACTIVATION_BITS, TILE_ROWS / 8>(p.weights, planes, panel0, part);
#else
        mma_tile_split<M, S, ACTIVATION_BITS, TILE_ROWS / 8, TILE_PANELS>(p.weights, planes, panel0,
                                                                          part);
#endif
        block_sync();
        epilogue(p, panel0, row0, part);
        block_sync();
    }
}
