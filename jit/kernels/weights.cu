// weights.cu: packed weights (jit/repack.h) as the matmul and ffn kernels read them.
// A panel is 16 outputs; blocks are 32 weights; two blocks, an even and an odd one, are a pair, and
// a warp reads a pair at once: lane = 16 (block & 1) + output.

template <int FORMAT_, int N_, int K_> struct matrix {
    static constexpr int format = FORMAT_, n = N_, k = K_;
    static constexpr int kp = PLANES_KP(K_), pairs = kp / 64, panels = CEIL_DIV(N_, 16);
    static constexpr bool eight = format == FORMAT_Q8_0, six = format == FORMAT_Q6_K;
    static constexpr bool super = format == FORMAT_Q4_K || format == FORMAT_Q6_K;
    static constexpr bool has_min = format == FORMAT_Q4_1 || format == FORMAT_Q4_K;
    static constexpr bool nibbles_high = has_min; // unsigned nibbles: dp4a takes the high ones as 16 u
    static constexpr bool brain = format == FORMAT_BF16, half = brain || format == FORMAT_F16;
    static constexpr int quant_bytes = kp * (half ? 32 : eight ? 16 : six ? 12 : 8);
    static constexpr int scales_at = six ? kp * 12 : quant_bytes;
    static constexpr int scale_bytes = half    ? 0
                                       : super ? kp / 256 * (six ? 288 : 256)
                                             : kp / 32 * (format == FORMAT_Q4_1 ? 64 : 32);
    static constexpr int panel_bytes = quant_bytes + scale_bytes;
};

// Registers of one pair.
template <class M> struct pair {
    uint4 q;
    uint4 q8; // Q8_0: weights 16 .. 31
    uint2 q2; // Q6_K: upper two bits
    u32 scale;
};
// Scales of four pairs of a super-block.
template <class M> struct super_scales {
    uint4 s;
    u32 d;
};

// Where a lane finds a pair; pairs that follow lie at constant distances.
template <class M> struct pair_at {
    const u8 *q, *q2, *scale;
};
template <class M> DEVICE pair_at<M> locate_pair(const u8 *panel, int pair_index, int lane) {
    pair_at<M> at;
    const int half = (lane >> 4) * 512 + (lane & 15) * 16;
    at.q = panel + (M::eight ? pair_index * 1024 + half : pair_index * 512 + lane * 16);
    if constexpr (M::six) at.q2 = panel + M::kp * 8 + pair_index * 256 + lane * 8;
    if constexpr (!M::super)
        at.scale = panel + M::scales_at +
                   (M::format == FORMAT_Q4_1 ? pair_index * 128 + lane * 4
                                             : pair_index * 64 + lane * 2);
    return at;
}
template <class M> DEVICE void load_pair(pair<M> &w, const pair_at<M> &at, int j) {
    if constexpr (M::eight) {
        w.q = stream16(at.q + j * 1024);
        w.q8 = stream16(at.q + j * 1024 + 256);
    } else {
        w.q = stream16(at.q + j * 512);
    }
    if constexpr (M::six) w.q2 = stream8(at.q2 + j * 256);
    if constexpr (M::format == FORMAT_Q4_1)
        w.scale = stream4(at.scale + j * 128);
    else if constexpr (!M::super)
        w.scale = stream2(at.scale + j * 64);
}

template <class M>
DEVICE void load_super(super_scales<M> &s, const u8 *panel, int pair_index, int lane) {
    if constexpr (M::super) {
        const int block = pair_index / 4, output = lane & 15;
        s.s = stream16(panel + M::scales_at + block * 256 + output * 16);
        if constexpr (M::six)
            s.d = stream2(panel + M::scales_at + M::kp / 256 * 256 + block * 32 + output * 2);
    }
}

// Low and high quad of word t of a block: bytes that dp4a and mma multiply with the planes' bytes
// 8 t .. 8 t + 7. Signed formats come as 16 u (Q4_0) or 4 u (Q6_K), so that the sign is in place.
template <class M>
DEVICE void quads(u32 q, u32 q8, u32 low2, u32 high2, int t, u32 &low, u32 &high) {
    if constexpr (M::eight) {
        low = q;
        high = q8;
    } else if constexpr (M::format == FORMAT_Q4_0) {
        low = (q << 4) & 0xf0f0f0f0u;
        high = q & 0xf0f0f0f0u;
    } else if constexpr (M::six) {
        low = ((q << 2) & 0x3c3c3c3cu) | ((low2 << (6 - 2 * t)) & 0xc0c0c0c0u);
        high = ((q >> 2) & 0x3c3c3c3cu) | ((high2 << (6 - 2 * t)) & 0xc0c0c0c0u);
    } else {
        low = q & 0x0f0f0f0fu;
        high = (q >> 4) & 0x0f0f0f0fu;
    }
}

// F32 scales of a block: products of stored scales, all exact. dw1 is for weights 16 .. 31 of Q6_K.
// `odd`: the block's parity; i: its pair in the super-block.
struct block_scales {
    float dw, dw1, mw;
};
template <class M>
DEVICE block_scales scales_of(u32 scale, const uint4 &s, u32 d, int odd, int i) {
    block_scales b = {0.0f, 0.0f, 0.0f};
    if constexpr (M::format == FORMAT_Q4_1) {
        b.dw = f16_low(scale);
        b.mw = f16_high(scale);
    } else if constexpr (M::format == FORMAT_Q4_0) {
        b.dw = f16_low(scale) * 0.0625f;
    } else if constexpr (M::format == FORMAT_Q8_0) {
        b.dw = f16_low(scale);
    } else if constexpr (M::format == FORMAT_Q4_K) {
        const u32 a = odd ? s.z : s.y, rest = s.w >> (16 * odd);
        const u32 least = i == 3   ? a >> 24 & 63u
                          : i == 2 ? (rest >> 12 & 15u) | (a >> 30) << 4
                                   : rest >> (6 * i) & 63u;
        b.dw = f16_low(s.x) * (float)(int)(a >> (6 * i) & 63u);
        b.mw = f16_high(s.x) * (float)-(int)least;
    } else {
        const u32 word = i == 0 ? s.x : i == 1 ? s.y : i == 2 ? s.z : s.w;
        const int at = 16 * odd;
        const float unit = f16_low(d) * 0.25f;
        b.dw = unit * (float)((int)(word << (24 - at)) >> 24);
        b.dw1 = unit * (float)((int)(word << (16 - at)) >> 24);
    }
    return b;
}
