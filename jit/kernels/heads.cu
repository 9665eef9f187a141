// heads.cu: linear heads with a sigmoid, FP32, on the hidden states after a layer; a CTA a row, a
// warp an output at a time. With DECIDE, a row whose first score reaches its threshold runs no later
// layer.

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(params p) {
    __shared__ __align__(16) float warps[NORM_THREADS / 32];
    const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
    dependents_launch();
    dependencies_wait();
    const u32 row = blockIdx.x;
    if (!(p.run[p.layer * p.run_stride + (row >> 5)] >> (row & 31) & 1)) return;
    const float4 *x = (const float4 *)(p.x + (u64)row * K);
    float factor = 1.0f;
#if NORM
    const float s = norm_partial(x, K / 4, tid);
    if (lane == 0) warps[warp] = s;
    block_sync();
    factor = norm_factor(warps, (float)K, EPSILON);
#endif
    for (int n = warp; n < N; n += WARPS) {
        const float4 *w = (const float4 *)(p.weights + (u64)n * K);
        float sum = 0.0f;
        for (int i = lane; i < K / 4; i += 32) {
            float4 a = x[i];
            const float4 b = w[i];
#if NORM
            const float4 g = ((const float4 *)p.norm)[i];
            a = make_float4(a.x * factor * g.x, a.y * factor * g.y, a.z * factor * g.z,
                            a.w * factor * g.w);
#endif
            sum = fma(a.x, b.x, sum);
            sum = fma(a.y, b.y, sum);
            sum = fma(a.z, b.z, sum);
            sum = fma(a.w, b.w, sum);
        }
        sum = warp_sum(sum) + p.bias[n];
        const float e = exp_f32(0.0f - sum);
        const float score = reciprocal(1.0f + (e < 0x1p100f ? e : 0x1p100f));
        if (lane == 0) p.scores[(u64)row * N + n] = score;
#if DECIDE
        if (lane == 0 && n == 0 && score >= p.thresholds[row]) {
            p.exit_layer[row] = p.layer;
            for (u32 l = p.layer + 1; l < p.n_layers; l++)
                atomicAnd(&p.run[l * p.run_stride + (row >> 5)], ~(1u << (row & 31)));
        }
#endif
    }
}
