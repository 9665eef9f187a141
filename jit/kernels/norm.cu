// norm.cu: a row's residual, norm and quantising; a CTA a row.

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(params p) {
    __shared__ __align__(16) float warps[2][NORM_THREADS / 32];
    const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
    dependents_launch();
    dependencies_wait();
    const u32 out_row = blockIdx.x;
    u32 row = out_row;
    if (p.row_list) {
        if (out_row >= p.count[0]) return;
        row = p.row_list[out_row];
    }
    if (!(p.run[row >> 5] >> (row & 31) & 1)) return;
    float4 *x = (float4 *)(p.x + (u64)row * K);
#if ADD
    const float4 *y = (const float4 *)(p.y + (u64)row * K);
#if POST_NORM
    const float post = norm_partial(y, K / 4, tid);
    if (lane == 0) warps[0][warp] = post;
    block_sync();
    const float post_factor = norm_factor(warps[0], (float)K, EPSILON);
#endif
    for (int i = tid; i < K / 4; i += NORM_THREADS) {
        float4 a = y[i], b = x[i];
#if POST_NORM
        const float4 w = ((const float4 *)p.post_norm)[i];
        a = make_float4(a.x * post_factor * w.x, a.y * post_factor * w.y, a.z * post_factor * w.z,
                        a.w * post_factor * w.w);
#endif
        b = make_float4(fma(SCALE, a.x, b.x), fma(SCALE, a.y, b.y), fma(SCALE, a.z, b.z),
                        fma(SCALE, a.w, b.w));
        x[i] = b;
    }
#endif
    if (p.out == 0) return;
#if NORM
    const float s = norm_partial(x, K / 4, tid);
    if (lane == 0) warps[1][warp] = s;
    block_sync();
    const float factor = norm_factor(warps[1], (float)K, EPSILON);
#endif
#if ACTIVATION_BITS
#if !NORM
    const float factor = 1.0f;
#endif
    row_planes<K, ACTIVATION_BITS, NORM>(
        x, (const float4 *)p.norm, factor,
        p.out + (u64)out_row * PLANES_BYTES(K, ACTIVATION_BITS));
#else
    for (int i = tid; i < K / 4; i += NORM_THREADS) {
        float4 v = x[i];
#if NORM
        const float4 w = ((const float4 *)p.norm)[i];
        v = make_float4(v.x * factor * w.x, v.y * factor * w.y, v.z * factor * w.z,
                        v.w * factor * w.w);
#endif
        ((float4 *)p.out)[(u64)out_row * (K / 4) + i] = v;
    }
#endif
}
