// products.cu: sums of products, by dp4a for few rows and by mma for more, in the one order that
// jit/kernel.h states. Sums of a tile go to `part`: [panel][split][row][16 outputs], rows
// PART_STRIDE words apart, so that mma's fragments meet no bank twice.

#define PART_STRIDE 20

template <class M, int SPLIT_PAIRS_> struct splits {
    static constexpr int pairs = SPLIT_PAIRS_, count = CEIL_DIV(M::pairs, SPLIT_PAIRS_);
};

// Unsigned high nibbles stay where they are, as 16 u: one shift a block instead of one a word.
template <class M> DEVICE int dp4a_high(int weights, int x, int sum) {
    if constexpr (M::nibbles_high) {
        int d;
        asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(weights), "r"(x), "r"(sum));
        return d;
    } else {
        return __dp4a(weights, x, sum);
    }
}

// A row's bytes of a block: h, and the second pass l.
template <int BITS> struct row_block {
    int h[8], l[BITS == 16 ? 8 : 1];
};
template <class M, int BITS> DEVICE void load_row_block(row_block<BITS> &r, const u8 *x) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int4 a = ((const int4 *)x)[i];
        r.h[4 * i] = a.x, r.h[4 * i + 1] = a.y, r.h[4 * i + 2] = a.z, r.h[4 * i + 3] = a.w;
        if constexpr (BITS == 16) {
            const int4 b = ((const int4 *)(x + M::kp))[i];
            r.l[4 * i] = b.x, r.l[4 * i + 1] = b.y, r.l[4 * i + 2] = b.z, r.l[4 * i + 3] = b.w;
        }
    }
}

// Integer sum of a block: weights u (the quads of word t at 2 t and 2 t + 1) and a row's bytes. Q6_K's
// halves have scales of their own: `upper` is the sum of the second.
template <class M, int BITS>
DEVICE int dp4a_block(const int u[8], const row_block<BITS> &x, int &upper) {
    int high = 0;
#pragma unroll
    for (int t = 0; t < 4; t++) high = dp4a_high<M>(u[2 * t + 1], x.h[2 * t + 1], high);
    if constexpr (BITS == 16) {
        high <<= 8;
#pragma unroll
        for (int t = 0; t < 4; t++) high = dp4a_high<M>(u[2 * t + 1], x.l[2 * t + 1], high);
    }
    // One chain of sums: the high nibbles', brought down, then the low ones'.
    int sum = M::six ? 0 : M::nibbles_high ? high >> 4 : high;
    upper = high;
    if constexpr (BITS == 16) {
        int first = 0;
#pragma unroll
        for (int t = 0; t < 4; t++) first = __dp4a(u[2 * t], x.h[2 * t], first);
        sum += first << 8;
#pragma unroll
        for (int t = 0; t < 4; t++) sum = __dp4a(u[2 * t], x.l[2 * t], sum);
    } else {
#pragma unroll
        for (int t = 0; t < 4; t++) sum = __dp4a(u[2 * t], x.h[2 * t], sum);
    }
    return sum;
}

template <class M> DEVICE void unpack_pair(const pair<M> &w, int u[8]) {
    const u32 words[4] = {w.q.x, w.q.y, w.q.z, w.q.w};
    const u32 words8[4] = {w.q8.x, w.q8.y, w.q8.z, w.q8.w};
#pragma unroll
    for (int t = 0; t < 4; t++) {
        u32 low, high;
        quads<M>(words[t], words8[t], w.q2.x, w.q2.y, t, low, high);
        if (M::nibbles_high) high = words[t] & 0xf0f0f0f0u;
        u[2 * t] = (int)low;
        u[2 * t + 1] = (int)high;
    }
}

// Panels that a warp takes side by side, which share the row's bytes: where registers allow.
template <class M, int BITS, int ROWS, int T> struct side_by_side {
    static constexpr bool small = BITS == 8 && ROWS == 1 && !M::eight && !M::six;
    static constexpr int panels = small && T % 2 == 0 && M::panels % 2 == 0 ? 2 : 1;
};

// acc[panel][row] += COUNT pairs from `at` on, of which `left` exist; x and sx: the
// first row's bytes and scales of the lane's block of pair 0.
template <class M, int BITS, int ROWS, int P, int COUNT, bool WHOLE>
DEVICE void dp4a_pairs(const pair_at<M> &at, const u8 *x, const u8 *sx, int left, int odd,
                       float acc[P][ROWS]) {
    constexpr int stride = PLANES_BYTES(M::k, BITS);
    pair<M> w[P][COUNT];
    super_scales<M> super[P];
    load_super_at<M, 0>(super[0], at);
    load_pairs<M, 0, COUNT, WHOLE>(w[0], at, left);
    if constexpr (P == 2) {
        load_super_at<M, M::panel_bytes>(super[1], at);
        load_pairs<M, M::panel_bytes, COUNT, WHOLE>(w[1], at, left);
    }
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        if (!WHOLE && j >= left) break;
        int u[P][8];
        block_scales b[P];
#pragma unroll
        for (int p = 0; p < P; p++) {
            unpack_pair<M>(w[p][j], u[p]);
            b[p] = scales_of<M>(w[p][j].scale, super[p], odd, j & 3);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            row_block<BITS> block;
            load_row_block<M, BITS>(block, x + j * 64 + r * stride);
            const float2 s = *(const float2 *)(sx + j * 16 + r * stride);
#pragma unroll
            for (int p = 0; p < P; p++) {
                int upper;
                const int sum = dp4a_block<M, BITS>(u[p], block, upper);
                float a = fma(b[p].dw * s.x, (float)sum, acc[p][r]);
                if constexpr (M::six) a = fma(b[p].dw1 * s.x, (float)upper, a);
                if constexpr (M::has_min) a = fma(b[p].mw, s.y, a);
                acc[p][r] = a;
            }
        }
    }
}
// Panels [panel0, panel0 + T) by eight warps, warp = split, lane = 16 parity + output; a sum is even
// + odd.
template <class M, class S, int BITS, int ROWS, int T>
DEVICE void dp4a_tile(const u8 *weights, const u8 *planes, int panel0, float *part) {
    constexpr int side = side_by_side<M, BITS, ROWS, T>::panels;
    constexpr int wish = side == 2 || M::eight ? 2 : 4; // pairs of a panel in flight
    constexpr int batch = M::super ? 4 : S::pairs % wish == 0 || S::pairs > wish ? wish : S::pairs;
    // No split has a rest: no look at its end inside a batch.
    constexpr bool whole = S::pairs % batch == 0 && M::pairs % S::pairs == 0;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, odd = lane >> 4;
    if (warp >= S::count) return;
    const int first = warp * S::pairs;
    const int end = first + S::pairs < M::pairs ? first + S::pairs : M::pairs;
    pair_at<M> at = locate_pair<M>(weights + (u64)panel0 * M::panel_bytes, first, lane);
    // Opaque, so that it is computed once.
    int block_bytes = first * 64 + odd * 32;
    asm volatile("" : "+r"(block_bytes));
#pragma unroll 1
    for (int t = 0; t < T && panel0 + t < M::panels; t += side) {
        const u8 *x = planes + block_bytes;
        const u8 *sx = planes + PLANES_SCALES(M::k, BITS) + (block_bytes >> 2);
        float acc[side][ROWS];
#pragma unroll
        for (int p = 0; p < side; p++)
#pragma unroll
            for (int r = 0; r < ROWS; r++) acc[p][r] = 0.0f;
#pragma unroll 1
        for (int p = first; p < end; p += batch) {
            dp4a_pairs<M, BITS, ROWS, side, batch, whole>(at, x, sx, end - p, odd, acc);
            move_pairs<M, batch>(at);
            x += batch * 64;
            sx += batch * 16;
        }
#pragma unroll
        for (int p = 0; p < side; p++)
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                acc[p][r] = acc[p][r] + __shfl_xor_sync(FULL, acc[p][r], 16);
                if (lane < 16)
                    part[(((t + p) * S::count + warp) * ROWS + r) * PART_STRIDE + lane] = acc[p][r];
            }
        if constexpr (whole) {
            move_pairs<M, -S::pairs>(at);
            move_panels<M, side>(at);
        } else {
            at = locate_pair<M>(weights + (u64)(panel0 + t + side) * M::panel_bytes, first, lane);
        }
    }
}

// Asks L2 for what this warp reads of its first panel, before anything else is known.
template <class M, class S> DEVICE void weights_prefetch(const u8 *weights, int panel0) {
#if DEPENDENT_LAUNCH
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (panel0 >= M::panels) return;
    const u8 *panel = weights + (u64)panel0 * M::panel_bytes;
    const int lines = CEIL_DIV(M::panel_bytes, 128);
    for (int i = warp * 32 + lane; i < lines; i += 256) prefetch_l2(panel + i * 128);
#endif
}

// Sum over the splits, ascending.
template <int SPLITS, int ROWS>
DEVICE float split_sum(const float *part, int t, int row, int output) {
    const float *at = part + (t * SPLITS * ROWS + row) * PART_STRIDE + output;
    float s = at[0];
#pragma unroll
    for (int i = 1; i < SPLITS; i++) s = s + at[i * ROWS * PART_STRIDE];
    return s;
}

// D += A B, int32, on a block of 32 (16 with HALF): A 16 outputs x k, B k x 8 rows.
template <bool HALF>
DEVICE void mma_s8(int c[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if TURING
#define MMA_8816(c0, c1, a, b)                                                                     \
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"            \
        : "+r"(c0), "+r"(c1)                                                                       \
        : "r"(a), "r"(b))
    MMA_8816(c[0], c[1], a0, b0);
    MMA_8816(c[2], c[3], a1, b0);
    if constexpr (!HALF) {
        MMA_8816(c[0], c[1], a2, b1);
        MMA_8816(c[2], c[3], a3, b1);
    }
#else
    if constexpr (HALF)
        asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
            "{%0, %1, %2, %3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a0), "r"(a1), "r"(b0));
    else
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
}

// What a lane of mma needs of one block: words t of outputs g and g + 8, and their scales.
template <class M> struct mma_block {
    u32 q[2], q8[2], scale[2];
    uint2 q2[2];
};
template <class M> DEVICE void mma_load(mma_block<M> &w, const u8 *panel, int block, int g, int t) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int output = g + 8 * i;
        if constexpr (M::eight) {
            const u8 *at = panel + block * 512 + output * 16 + t * 4;
            w.q[i] = stream4(at);
            w.q8[i] = stream4(at + 256);
        } else {
            w.q[i] = stream4(panel + block * 256 + output * 16 + t * 4);
        }
        if constexpr (M::six)
            w.q2[i] = stream8(panel + M::kp * 8 + block * 128 + output * 8);
        if constexpr (M::format == FORMAT_Q4_1)
            w.scale[i] = stream4(panel + M::scales_at + block * 64 + output * 4);
        else if constexpr (!M::super)
            w.scale[i] = stream2(panel + M::scales_at + block * 32 + output * 2);
    }
}

// D += A B on 16 values of k, FP32 sums of F16 or BF16 products.
template <bool BRAIN>
DEVICE void mma_half(float c[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if TURING
#define MMA_1688(a, b, x)                                                                          \
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "       \
        "{%0, %1, %2, %3};"                                                                        \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                           \
        : "r"(a), "r"(b), "r"(x))
    MMA_1688(a0, a1, b0);
    MMA_1688(a2, a3, b1);
#else
    if constexpr (BRAIN)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, "
            "%7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
}

// mma_split for F16 and BF16 weights: a lane has eight neighbouring values of k of outputs g and
// g + 8; activations are a high and a low half per value, scaled by a power of two per block.
template <class M, int NT>
DEVICE void mma_split_half(const u8 *panel, const u8 *planes, int first, int last, int lane,
                           float sum[NT][4], float odd_sum[NT][4]) {
    constexpr int stride = PLANES_BYTES(M::k, 32), batch = NT >= 4 ? 1 : 2;
    const int g = lane >> 2, t = lane & 3;
#pragma unroll 1
    for (int p0 = first; p0 < last; p0 += batch) {
        uint4 w[batch][2][2];
#pragma unroll
        for (int j = 0; j < batch; j++) {
            if (p0 + j >= last) break;
#pragma unroll
            for (int odd = 0; odd < 2; odd++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    w[j][odd][i] = stream16(panel + ((p0 + j) * 2 + odd) * 1024 + (g + 8 * i) * 64 +
                                            t * 16);
        }
#pragma unroll
        for (int j = 0; j < batch; j++) {
            if (p0 + j >= last) break;
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
                const int block = (p0 + j) * 2 + odd;
                const uint4 a = w[j][odd][0], b = w[j][odd][1];
                const u8 *x = planes + g * stride + block * 64 + t * 16;
                const u8 *sx = planes + 2 * t * stride + PLANES_SCALES(M::k, 32) + block * 8;
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    const uint4 high = *(const uint4 *)(x + n * 8 * stride);
                    const uint4 low = *(const uint4 *)(x + n * 8 * stride + M::kp * 2);
                    const float x0 = *(const float *)(sx + n * 8 * stride);
                    const float x1 = *(const float *)(sx + (n * 8 + 1) * stride);
                    float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                    mma_half<M::brain>(c, a.x, b.x, a.y, b.y, high.x, high.y);
                    mma_half<M::brain>(c, a.z, b.z, a.w, b.w, high.z, high.w);
                    mma_half<M::brain>(c, a.x, b.x, a.y, b.y, low.x, low.y);
                    mma_half<M::brain>(c, a.z, b.z, a.w, b.w, low.z, low.w);
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        float &acc = odd ? odd_sum[n][i] : sum[n][i];
                        acc = fma(i & 1 ? x1 : x0, c[i], acc);
                    }
                }
            }
        }
    }
}

// acc += one block of 16 outputs x 8 NT rows.
template <class M, int BITS, int NT>
DEVICE void mma_block_products(const mma_block<M> &b, const super_scales<M> super[2], int block,
                               const u8 *planes, int lane, float acc[NT][4]) {
    constexpr int stride = PLANES_BYTES(M::k, BITS);
    const int g = lane >> 2, t = lane & 3, in_super = M::super ? (block >> 1) & 3 : 0;
    u32 a[4];
    quads<M>(b.q[0], b.q8[0], b.q2[0].x, b.q2[0].y, t, a[0], a[2]);
    quads<M>(b.q[1], b.q8[1], b.q2[1].x, b.q2[1].y, t, a[1], a[3]);
    const block_scales s0 = scales_of<M>(b.scale[0], super[0], block & 1, in_super);
    const block_scales s1 = scales_of<M>(b.scale[1], super[1], block & 1, in_super);
    const u8 *x = planes + g * stride + block * 32 + t * 8;
    const u8 *sx = planes + 2 * t * stride + PLANES_SCALES(M::k, BITS) + block * 8;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const uint2 high = *(const uint2 *)(x + n * 8 * stride);
        const float2 x0 = *(const float2 *)(sx + n * 8 * stride);
        const float2 x1 = *(const float2 *)(sx + (n * 8 + 1) * stride);
        int c[4] = {0, 0, 0, 0}, c1[4] = {0, 0, 0, 0};
        if constexpr (M::six) {
            mma_s8<true>(c, a[0], a[1], 0, 0, high.x, 0);
            mma_s8<true>(c1, a[2], a[3], 0, 0, high.y, 0);
        } else {
            mma_s8<false>(c, a[0], a[1], a[2], a[3], high.x, high.y);
        }
        if constexpr (BITS == 16) {
            const uint2 low = *(const uint2 *)(x + n * 8 * stride + M::kp);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                c[i] <<= 8;
                c1[i] <<= 8;
            }
            if constexpr (M::six) {
                mma_s8<true>(c, a[0], a[1], 0, 0, low.x, 0);
                mma_s8<true>(c1, a[2], a[3], 0, 0, low.y, 0);
            } else {
                mma_s8<false>(c, a[0], a[1], a[2], a[3], low.x, low.y);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const block_scales &s = i < 2 ? s0 : s1;
            const float2 xs = i & 1 ? x1 : x0;
            acc[n][i] = fma(s.dw * xs.x, (float)c[i], acc[n][i]);
            if constexpr (M::six) acc[n][i] = fma(s.dw1 * xs.x, (float)c1[i], acc[n][i]);
            if constexpr (M::has_min) acc[n][i] = fma(s.mw, xs.y, acc[n][i]);
        }
    }
}

// One split of one panel for 8 NT rows; even and odd blocks apart, then added.
// sum[n][0, 1]: output g, rows 8 n + 2 t, 8 n + 2 t + 1; sum[n][2, 3]: output g + 8.
template <class M, int BITS, int NT>
DEVICE void mma_split(const u8 *panel, const u8 *planes, int first, int last, int lane,
                      float sum[NT][4]) {
    const int g = lane >> 2, t = lane & 3;
    float odd_sum[NT][4];
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) sum[n][i] = odd_sum[n][i] = 0.0f;
    if constexpr (M::half) {
        mma_split_half<M, NT>(panel, planes, first, last, lane, sum, odd_sum);
    } else if constexpr (NT >= 4) {
        // Many rows a pair: the next pair's weights arrive meanwhile.
        mma_block<M> w[2], next[2];
        super_scales<M> super[2];
        if (first < last) {
            mma_load<M>(next[0], panel, first * 2, g, t);
            mma_load<M>(next[1], panel, first * 2 + 1, g, t);
        }
#pragma unroll 1
        for (int p = first; p < last; p++) {
            w[0] = next[0];
            w[1] = next[1];
            load_super<M>(super[0], panel, p, g);
            load_super<M>(super[1], panel, p, g + 8);
            if (p + 1 < last) {
                mma_load<M>(next[0], panel, p * 2 + 2, g, t);
                mma_load<M>(next[1], panel, p * 2 + 3, g, t);
            }
            mma_block_products<M, BITS, NT>(w[0], super, p * 2, planes, lane, sum);
            mma_block_products<M, BITS, NT>(w[1], super, p * 2 + 1, planes, lane, odd_sum);
        }
    } else {
        constexpr int batch = M::super ? 4 : 2;
#pragma unroll 1
        for (int p0 = first; p0 < last; p0 += batch) {
            mma_block<M> w[batch][2];
            super_scales<M> super[2];
            load_super<M>(super[0], panel, p0, g);
            load_super<M>(super[1], panel, p0, g + 8);
#pragma unroll
            for (int j = 0; j < batch; j++) {
                if (p0 + j >= last) break;
                mma_load<M>(w[j][0], panel, (p0 + j) * 2, g, t);
                mma_load<M>(w[j][1], panel, (p0 + j) * 2 + 1, g, t);
            }
#pragma unroll
            for (int j = 0; j < batch; j++) {
                if (p0 + j >= last) break;
                const int block = (p0 + j) * 2;
                mma_block_products<M, BITS, NT>(w[j][0], super, block, planes, lane, sum);
                mma_block_products<M, BITS, NT>(w[j][1], super, block + 1, planes, lane, odd_sum);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) sum[n][i] = sum[n][i] + odd_sum[n][i];
}

// To `part`, or, as the next split, on top of what this lane put there.
template <int NT> DEVICE void mma_store(const float sum[NT][4], int lane, bool add, float *part) {
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *at = &part[(n * 8 + 2 * t + (i & 1)) * PART_STRIDE + g + 8 * (i >> 1)];
            *at = add ? *at + sum[n][i] : sum[n][i];
        }
}

// Warp = split of each of T panels.
template <class M, class S, int BITS, int NT, int T>
DEVICE void mma_tile_split(const u8 *weights, const u8 *planes, int panel0, float *part) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (warp >= S::count) return;
    const int first = warp * S::pairs;
    const int last = first + S::pairs < M::pairs ? first + S::pairs : M::pairs;
#pragma unroll 1
    for (int t = 0; t < T && panel0 + t < M::panels; t++) {
        float sum[NT][4];
        mma_split<M, BITS, NT>(weights + (u64)(panel0 + t) * M::panel_bytes, planes, first, last,
                               lane, sum);
        mma_store<NT>(sum, lane, false, part + (t * S::count + warp) * NT * 8 * PART_STRIDE);
    }
}

// Warp = panel, all splits one after the other; part has one split.
template <class M, class S, int BITS, int NT>
DEVICE void mma_tile_panels(const u8 *weights, const u8 *planes, int panel0, float *part) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (panel0 + warp >= M::panels) return;
    const u8 *panel = weights + (u64)(panel0 + warp) * M::panel_bytes;
#pragma unroll 1
    for (int split = 0; split < S::count; split++) {
        const int first = split * S::pairs;
        const int last = first + S::pairs < M::pairs ? first + S::pairs : M::pairs;
        float sum[NT][4];
        mma_split<M, BITS, NT>(panel, planes, first, last, lane, sum);
        mma_store<NT>(sum, lane, split > 0, part + warp * NT * 8 * PART_STRIDE);
    }
}

// The prologue of KERNEL_IN_NORM: rows of x (those in `mask`, others as zeros), normed and quantised
// into shared planes. All 256 threads.
template <int KX, int BITS, int ROWS>
DEVICE void norm_rows(const float *x, const float *norm, u32 mask, float epsilon, u8 *planes) {
    __shared__ __align__(16) float warps[ROWS][NORM_THREADS / 32];
    constexpr bool whole = KX / 8 % NORM_THREADS == 0;
    const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
#pragma unroll 1
    for (int r = 0; r < ROWS; r++) {
        if (ROWS > 1 && !(mask >> r & 1)) continue;
        const float s = norm_partial((const float4 *)(x + r * KX), KX / 4, tid);
        if (lane == 0) warps[r][warp] = s;
    }
    block_sync();
#pragma unroll 1
    for (int r = 0; r < ROWS; r++) {
        // With one row the mask is not empty.
        const bool on = ROWS == 1 || (mask >> r & 1);
        const float factor = on ? norm_factor(warps[r], (float)KX, epsilon) : 0.0f;
        u8 *row = planes + r * PLANES_BYTES(KX, BITS);
        for (int i0 = 0; i0 < KX / 8; i0 += NORM_THREADS) {
            const int i = i0 + tid, quad = first_quad<8>(i);
            const bool valid = whole || i < KX / 8;
            float v[8];
            // Whole warps beyond the row have no block to share.
            if (!whole && i0 + (tid & ~31) >= KX / 8) break;
            if (valid && on) {
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const float4 a = ((const float4 *)(x + r * KX))[quad + 4 * j];
                    const float4 w = ((const float4 *)norm)[quad + 4 * j];
                    v[4 * j] = a.x * factor * w.x;
                    v[4 * j + 1] = a.y * factor * w.y;
                    v[4 * j + 2] = a.z * factor * w.z;
                    v[4 * j + 3] = a.w * factor * w.w;
                }
            } else {
#pragma unroll
                for (int j = 0; j < 8; j++) v[j] = 0.0f;
            }
            quantise<BITS, 8>(v, row, KX, i, valid);
        }
        if (warp == 0) planes_pad<BITS>(row, KX, lane);
    }
    block_sync();
}
