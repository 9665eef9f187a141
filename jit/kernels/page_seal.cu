// page_seal.cu: of every channel of pages that a row has completed, the mean of the keys less and
// plus half their standard deviation (core/cpu/vector.h, page_bounds); a CTA a page.

DEVICE float sum_of_16(const float *x) {
    float s[16];
#pragma unroll
    for (int j = 0; j < 16; j++) s[j] = x[j];
#pragma unroll
    for (int half = 8; half >= 1; half /= 2)
#pragma unroll
        for (int j = 0; j < half; j++) s[j] = s[j] + s[j + half];
    return s[0];
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(params p) {
    dependents_launch();
    dependencies_wait();
    if (blockIdx.x >= p.count[0]) return;
    const u32 row = p.list[2 * blockIdx.x + 1];
    if (!(p.run[row >> 5] >> (row & 31) & 1)) return;
    const u64 page = p.list[2 * blockIdx.x];
    const u16 *k = (const u16 *)(p.kv + page * p.page_bytes);
    u16 *bounds = (u16 *)(p.bounds + page * p.bounds_bytes);
    for (int i = threadIdx.x; i < N_KV_HEADS * HEAD_DIM; i += THREADS) {
        const uint4 a = ((const uint4 *)(k + i * 16))[0], b = ((const uint4 *)(k + i * 16))[1];
        const u32 words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        float x[16];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            x[2 * j] = f16_low(words[j]);
            x[2 * j + 1] = f16_high(words[j]);
        }
        const float mean = sum_of_16(x) * 0.0625f;
#pragma unroll
        for (int j = 0; j < 16; j++) x[j] = (x[j] - mean) * (x[j] - mean);
        float deviation;
        asm("sqrt.rn.f32 %0, %1;" : "=f"(deviation) : "f"(sum_of_16(x) * 0.0625f));
        const float half = 0.5f * deviation;
        const int head = i / HEAD_DIM, d = i - head * HEAD_DIM;
        bounds[(head * 2) * HEAD_DIM + d] = float_f16(mean - half);
        bounds[(head * 2 + 1) * HEAD_DIM + d] = float_f16(mean + half);
    }
}
