// rope_kv.cu: norms of heads, rotation, and K and V into their pages, for rows whose q, k and v are
// products already; a CTA a row, a warp a head at a time.

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(params p) {
    __shared__ __align__(16) float partial[2][WARPS];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    dependents_launch();
    dependencies_wait();
    const u32 row = blockIdx.x;
    if (!(p.run[row >> 5] >> (row & 31) & 1)) return;
    const float *qkv = p.qkv + (u64)row * ((N_HEADS + 2 * N_KV_HEADS) * HEAD_DIM);
    const u32 position = p.row_position[row];
    const float2 *rope = (const float2 *)p.rope + (u64)position * (ROPE_DIMS / 2);
    const u64 page = p.pages[p.row_pages[row] + position / 16];
    u16 *layer = (u16 *)(p.kv + page * p.page_bytes);
    const int at = position % 16;
    float whole[2] = {1.0f, 1.0f};
#if Q_NORM == NORM_WHOLE || K_NORM == NORM_WHOLE
    for (int which = 0; which < 2; which++) {
        const float *x = qkv + which * N_HEADS * HEAD_DIM;
        const int n = (which ? N_KV_HEADS : N_HEADS) * HEAD_DIM;
        float s = 0.0f;
        for (int i = threadIdx.x; i < n; i += THREADS) s = fma(x[i], x[i], s);
        s = warp_sum(s);
        if (lane == 0) partial[which][warp] = s;
    }
    block_sync();
    whole[0] = norm_factor(partial[0], (float)(N_HEADS * HEAD_DIM), EPSILON);
    whole[1] = norm_factor(partial[1], (float)(N_KV_HEADS * HEAD_DIM), EPSILON);
#endif
    for (int head = warp; head < N_HEADS + 2 * N_KV_HEADS; head += WARPS) {
        const float *x = qkv + head * HEAD_DIM;
        const bool is_q = head < N_HEADS, is_v = head >= N_HEADS + N_KV_HEADS;
        const int kind = is_q ? Q_NORM : is_v ? NO_NORM : K_NORM;
        const float *w = is_q ? p.q_norm : p.k_norm;
        float factor = 1.0f;
        if (kind == NORM_HEAD) {
            float s = 0.0f;
            for (int d = lane; d < HEAD_DIM; d += 32) s = fma(x[d], x[d], s);
            s = warp_sum(s);
            float root;
            asm("sqrt.rn.f32 %0, %1;" : "=f"(root) : "f"(divide(s, (float)HEAD_DIM) + EPSILON));
            factor = reciprocal(root);
        } else if (kind == NORM_WHOLE) {
            factor = whole[is_q ? 0 : 1];
            w += (is_q ? head : head - N_HEADS) * HEAD_DIM;
        }
        for (int d = lane; d < HEAD_DIM; d += 32) {
            float y = x[d];
            if (kind != NO_NORM) y = y * factor * w[d];
            if (!is_v && ROPE != ROPE_NONE && d < ROPE_DIMS) {
                const int half = ROPE_DIMS / 2;
                const bool second = ROPE == ROPE_HALVES ? d >= half : d & 1;
                const int other = ROPE == ROPE_HALVES ? (second ? d - half : d + half) : d ^ 1;
                const float2 cs = rope[ROPE == ROPE_HALVES ? (second ? other : d) : d / 2];
                float z = x[other];
                if (kind != NO_NORM) z = z * factor * w[other];
                y = fma(y, cs.x, z * (second ? cs.y : -cs.y));
            }
            if (is_q)
                p.q[(u64)row * (N_HEADS * HEAD_DIM) + head * HEAD_DIM + d] = y * ATTN_SCALE;
            else if (!is_v)
                layer[((head - N_HEADS) * HEAD_DIM + d) * 16 + at] = float_f16(y);
            else
                layer[N_KV_HEADS * HEAD_DIM * 16 +
                      ((head - N_HEADS - N_KV_HEADS) * 16 + at) * HEAD_DIM + d] = float_f16(y);
        }
    }
}
