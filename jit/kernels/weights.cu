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
    float unit, least_unit; // of scales; of minima, negative
};

// Where a lane finds a pair and its super-block; pairs that follow lie at constant distances.
template <class M> struct pair_at {
    const u8 *q, *q2, *scale, *super;
};
template <class M> DEVICE pair_at<M> locate_pair(const u8 *panel, int pair_index, int lane) {
    pair_at<M> at;
    const int half = (lane >> 4) * 512 + (lane & 15) * 16;
    at.q = panel + (M::eight ? pair_index * 1024 + half : pair_index * 512 + lane * 16);
    if constexpr (M::six) at.q2 = panel + M::kp * 8 + pair_index * 256 + lane * 8;
    if constexpr (M::super)
        at.super = panel + M::scales_at + pair_index / 4 * 256 + (lane & 15) * 16;
    if constexpr (M::six)
        at.scale = panel + M::scales_at + M::kp / 256 * 256 + pair_index / 4 * 32 + (lane & 15) * 2;
    if constexpr (!M::super)
        at.scale = panel + M::scales_at +
                   (M::format == FORMAT_Q4_1 ? pair_index * 128 + lane * 4
                                             : pair_index * 64 + lane * 2);
    return at;
}
template <class M, int COUNT> DEVICE void move_panels(pair_at<M> &at) {
    at.q += COUNT * M::panel_bytes;
    if constexpr (M::six) at.q2 += COUNT * M::panel_bytes;
    if constexpr (M::super) at.super += COUNT * M::panel_bytes;
    if constexpr (!M::super || M::six) at.scale += COUNT * M::panel_bytes;
}
template <class M, int COUNT> DEVICE void move_pairs(pair_at<M> &at) {
    at.q += COUNT * (M::eight ? 1024 : 512);
    if constexpr (M::six) at.q2 += COUNT * 256;
    if constexpr (M::super) at.super += COUNT / 4 * 256;
    if constexpr (M::six) at.scale += COUNT / 4 * 32;
    if constexpr (!M::super) at.scale += COUNT * (M::format == FORMAT_Q4_1 ? 128 : 64);
}
// Pair J behind `at`, AT bytes further (of a later panel), and COUNT of them, of which `left` exist.
template <class M, int AT, int J> DEVICE void load_pair(pair<M> &w, const pair_at<M> &at) {
    if constexpr (M::eight) {
        w.q = stream16<AT + J * 1024>(at.q);
        w.q8 = stream16<AT + J * 1024 + 256>(at.q);
    } else {
        w.q = stream16<AT + J * 512>(at.q);
    }
    if constexpr (M::six) w.q2 = stream8<AT + J * 256>(at.q2);
    if constexpr (M::format == FORMAT_Q4_1)
        w.scale = stream4<AT + J * 128>(at.scale);
    else if constexpr (!M::super)
        w.scale = stream2<AT + J * 64>(at.scale);
}
template <class M, int AT, int COUNT, bool WHOLE, int J = 0>
DEVICE void load_pairs(pair<M> w[COUNT], const pair_at<M> &at, int left) {
    if constexpr (J < COUNT) {
        if (WHOLE || J < left) load_pair<M, AT, J>(w[J], at);
        load_pairs<M, AT, COUNT, WHOLE, J + 1>(w, at, left);
    }
}
// The super-block of the pair at `at`.
template <class M, int AT> DEVICE void load_super_at(super_scales<M> &s, const pair_at<M> &at) {
    if constexpr (M::super) s.s = stream16<AT>(at.super);
    if constexpr (M::six) {
        s.unit = f16_float((u16)stream2<AT>(at.scale)) * 0.25f;
    } else if constexpr (M::super) {
        const float2 f = f16_pair(s.s.x);
        s.unit = f.x;
        s.least_unit = -f.y;
    }
}

template <class M>
DEVICE void load_super(super_scales<M> &s, const u8 *panel, int pair_index, int lane) {
    const pair_at<M> at = locate_pair<M>(panel, pair_index & ~3, lane & 15);
    load_super_at<M, 0>(s, at);
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

template <int FIRST, int COUNT> DEVICE u32 bits_of(u32 x) {
    u32 y;
    asm("bfe.u32 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "n"(FIRST), "n"(COUNT));
    return y;
}
// Field i of six bits.
DEVICE u32 six_bits(u32 x, int i) {
    return i == 0 ? x & 63u : i == 1 ? bits_of<6, 6>(x) : i == 2 ? bits_of<12, 6>(x) : bits_of<18, 6>(x);
}

// F32 scales of a block: products of stored scales, all exact. dw1 is for weights 16 .. 31 of Q6_K.
// `odd`: the block's parity; i: its pair in the super-block.
struct block_scales {
    float dw, dw1, mw;
};
template <class M>
DEVICE block_scales scales_of(u32 scale, const super_scales<M> &super, int odd, int i) {
    const uint4 s = super.s;
    block_scales b = {0.0f, 0.0f, 0.0f};
    if constexpr (M::format == FORMAT_Q4_1) {
        const float2 f = f16_pair(scale);
        b.dw = f.x;
        b.mw = f.y;
    } else if constexpr (M::format == FORMAT_Q4_0) {
        b.dw = f16_float((u16)scale) * 0.0625f;
    } else if constexpr (M::format == FORMAT_Q8_0) {
        b.dw = f16_float((u16)scale);
    } else if constexpr (M::format == FORMAT_Q4_K) {
        const u32 a = odd ? s.z : s.y, rest = s.w >> (16 * odd);
        const u32 least = i == 3   ? bits_of<24, 6>(a)
                          : i == 2 ? bits_of<12, 4>(rest) | (a >> 26 & 48u)
                                   : six_bits(rest, i);
        b.dw = super.unit * (float)six_bits(a, i);
        b.mw = super.least_unit * (float)least;
    } else {
        const u32 word = i == 0 ? s.x : i == 1 ? s.y : i == 2 ? s.z : s.w;
        const int at = 16 * odd;
        b.dw = super.unit * (float)((int)(word << (24 - at)) >> 24);
        b.dw1 = super.unit * (float)((int)(word << (16 - at)) >> 24);
    }
    return b;
}
