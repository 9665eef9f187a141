// embed.cu: rows of the embedding as F32; a CTA a row. Quantised matrices are packed as for matmul
// (a tied head is the same bytes), F32, F16 and BF16 rows lie as stored.

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(params p) {
    dependents_launch();
    dependencies_wait();
    const u32 row = blockIdx.x;
    if (row >= p.count[0]) return;
    const u32 id = p.ids[row];
    float *x = p.x + (u64)row * K;
#if FORMAT == FORMAT_F32
    for (int i = threadIdx.x; i < K; i += THREADS)
        x[i] = ((const float *)p.weights)[(u64)id * K + i] * SCALE;
#elif FORMAT == FORMAT_F16
    for (int i = threadIdx.x; i < K; i += THREADS)
        x[i] = f16_float(((const u16 *)p.weights)[(u64)id * K + i]) * SCALE;
#elif FORMAT == FORMAT_BF16
    for (int i = threadIdx.x; i < K; i += THREADS)
        x[i] = __uint_as_float((u32)((const u16 *)p.weights)[(u64)id * K + i] << 16) * SCALE;
#else
    typedef matrix<FORMAT, N, K> M;
    const u8 *panel = p.weights + (u64)(id / 16) * M::panel_bytes;
    const int output = id & 15;
    // Eight weights a thread: word t of a block.
    for (int e = threadIdx.x; e < K / 8; e += THREADS) {
        const int block = e >> 2, t = e & 3;
        u32 q, q8 = 0, low2 = 0, high2 = 0, low, high, scale = 0;
        super_scales<M> s;
        load_super<M>(s, panel, block / 2, output);
        if constexpr (M::eight) {
            q = stream4(panel + block * 512 + output * 16 + t * 4);
            q8 = stream4(panel + block * 512 + 256 + output * 16 + t * 4);
        } else {
            q = stream4(panel + block * 256 + output * 16 + t * 4);
        }
        if constexpr (M::six) {
            const uint2 w = stream8(panel + M::kp * 8 + block * 128 + output * 8);
            low2 = w.x;
            high2 = w.y;
        }
        if constexpr (M::format == FORMAT_Q4_1)
            scale = stream4(panel + M::scales_at + block * 64 + output * 4);
        else if constexpr (!M::super)
            scale = stream2(panel + M::scales_at + block * 32 + output * 2);
        quads<M>(q, q8, low2, high2, t, low, high);
        const block_scales b = scales_of<M>(scale, s, block & 1, (block >> 1) & 3);
        const float dw1 = M::six ? b.dw1 : b.dw;
        float4 y0, y1;
        float *v0 = &y0.x, *v1 = &y1.x;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v0[i] = b.dw * (float)((int)(low << (24 - 8 * i)) >> 24);
            v1[i] = dw1 * (float)((int)(high << (24 - 8 * i)) >> 24);
            if (M::has_min) {
                v0[i] = v0[i] + b.mw;
                v1[i] = v1[i] + b.mw;
            }
            v0[i] = v0[i] * SCALE;
            v1[i] = v1[i] * SCALE;
        }
        ((float4 *)x)[block * 8 + t] = y0;
        ((float4 *)x)[block * 8 + 4 + t] = y1;
    }
#endif
}
