// common.cu: what every kernel text starts with. Headerless: no include, no library.
// Every floating operation is one rounding in the order written (-fmad=false; fused where fma is
// written). No operation is approximate in its result: see reciprocal().

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE static __device__ __forceinline__
#define FULL 0xffffffffu
#define CEIL_DIV(a, b) (((a) + (b)-1) / (b))

DEVICE float fma(float a, float b, float c) {
    return __fmaf_rn(a, b, c);
}
DEVICE float larger(float a, float b) {
    return a > b ? a : b;
}

// Programmatic dependent launch: the next kernel may start and fetch its weights; nothing that an
// earlier kernel wrote is touched before dependencies_wait. Every thread of every kernel waits, even
// if it then has nothing to do, so that a kernel's end implies the end of all before it.
DEVICE void dependents_launch() {
#if DEPENDENT_LAUNCH
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
DEVICE void dependencies_wait() {
#if DEPENDENT_LAUNCH
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEVICE void prefetch_l2(const void *p) {
#if DEPENDENT_LAUNCH
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

// Weights are read once (ld.global.cs: evicted first), AT bytes behind p.
template <int AT = 0> DEVICE uint4 stream16(const u8 *p) {
    uint4 v;
    asm("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4 + %5];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(p), "n"(AT));
    return v;
}
template <int AT = 0> DEVICE uint2 stream8(const u8 *p) {
    uint2 v;
    asm("ld.global.cs.v2.u32 {%0, %1}, [%2 + %3];" : "=r"(v.x), "=r"(v.y) : "l"(p), "n"(AT));
    return v;
}
template <int AT = 0> DEVICE u32 stream4(const u8 *p) {
    u32 v;
    asm("ld.global.cs.u32 %0, [%1 + %2];" : "=r"(v) : "l"(p), "n"(AT));
    return v;
}
template <int AT = 0> DEVICE u32 stream2(const u8 *p) {
    u16 v;
    asm("ld.global.cs.u16 %0, [%1 + %2];" : "=h"(v) : "l"(p), "n"(AT));
    return v;
}

DEVICE float2 f16_pair(u32 bits) {
    float2 f;
    asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %2; cvt.f32.f16 %0, lo; cvt.f32.f16 %1, hi; }"
        : "=f"(f.x), "=f"(f.y)
        : "r"(bits));
    return f;
}
DEVICE float f16_low(u32 bits) {
    return f16_pair(bits).x;
}
DEVICE float f16_high(u32 bits) {
    return f16_pair(bits).y;
}
DEVICE float f16_float(u16 bits) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
    return f;
}
DEVICE u16 float_f16(float f) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}

// 1 / b to the last bit (but for a few b in a million), from an approximation good to 1 ulp and one
// Newton step; b normal, below 2^126.
DEVICE float reciprocal(float b) {
    float y;
    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(b));
    return fma(fma(-b, y, 1.0f), y, y);
}
// a / b rounded to nearest (Markstein 1990), y = reciprocal(b); a and the quotient are normal.
DEVICE float divide_by(float a, float b, float y) {
    const float q = a * y;
    return fma(fma(-b, q, a), y, q);
}
DEVICE float divide(float a, float b) {
    return divide_by(a, b, reciprocal(b));
}

// The bits of core/math.c's math_expf.
DEVICE float exp_f32(float x) {
    x = -104.0f > x ? -104.0f : x;
    x = 89.0f < x ? 89.0f : x;
    const float t = fma(x, 0x1.715476p+0f, 0x1.8p+23f);
    const float n = t - 0x1.8p+23f;
    float r = fma(n, -0x1.62e430p-1f, x);
    r = fma(n, 0x1.05c610p-29f, r);
    float p = fma(0x1.6a23d0p-10f, r, 0x1.123a20p-7f);
    p = fma(p, r, 0x1.5558f2p-5f);
    p = fma(p, r, 0x1.555492p-3f);
    p = fma(p, r, 0x1.fffffcp-2f);
    p = fma(p, r, 1.0f);
    p = fma(p, r, 1.0f);
    const int i = __float_as_int(t) - 0x4b400000, half = i >> 1;
    return p * __int_as_float((half + 127) << 23) * __int_as_float((i - half + 127) << 23);
}

// Natural logarithm of a normal x, good to about 2 ulp: 2 atanh(s), s = (m - 1) / (m + 1), with m in
// [sqrt(1/2), sqrt(2)); after Cody and Waite (1980).
DEVICE float log_f32(float x) {
    const int bits = __float_as_int(x), shifted = bits - 0x3f3504f3;
    const int k = shifted >> 23;
    const float m = __int_as_float((shifted & 0x007fffff) + 0x3f3504f3);
    const float f = m - 1.0f, s = divide(f, m + 1.0f), z = s * s;
    float p = fma(0.2222222222f, z, 0.2857142857f);
    p = fma(p, z, 0.4f);
    p = fma(p, z, 0.6666666667f);
    const float n = (float)k;
    const float tail = fma(s * z, p, fma(n, -2.12194440e-4f, s + s - f));
    return fma(n, 0.693359375f, f + tail);
}

// cap * tanh(x / cap)
DEVICE float soft_cap(float x, float cap) {
    float y = divide(x, cap);
    y = -20.0f > y ? -20.0f : y;
    y = 20.0f < y ? 20.0f : y;
    const float e = exp_f32(y + y);
    return cap * divide(e - 1.0f, e + 1.0f);
}

// act(gate) * up: g / (1 + e^-g), or GELU by tanh as g / (1 + e^(-2 u)). The bound keeps the
// denominator where divide holds; beyond it the quotient is below 2^-90.
DEVICE float gated(float g, float up, int gelu) {
    float e;
    if (gelu) {
        const float cubic = fma((g * g) * 0.044715f, g, g);
        e = exp_f32(cubic * -1.5957691216057308f);
    } else {
        e = exp_f32(0.0f - g);
    }
    const float d = 1.0f + e;
    return divide(g, d < 0x1p100f ? d : 0x1p100f) * up;
}

// All threads of the CTA. Lanes that parted meet first: the barrier is one for whole warps.
DEVICE void block_sync() {
    __syncwarp();
    __syncthreads();
}

DEVICE float warp_sum(float x) {
#pragma unroll
    for (int m = 16; m > 0; m >>= 1) x = x + __shfl_xor_sync(FULL, x, m);
    return x;
}

// Activations are quantised by blocks of 32 into planes (jit/kernel.h). In a block, bytes 8 t ..
// 8 t + 3 are the values 4 t .. 4 t + 3 and the next four the values 16 + 4 t ..: a word of 4-bit
// weights meets 8 adjacent bytes, and so does a lane of mma's B operand.
#define PLANES_KP(k) (((k) + 63) / 64 * 64)
#define PLANES_SCALES(k, bits) (PLANES_KP(k) * ((bits) / 8))
// Rows are 32 bytes more than a multiple of 128 apart: four of them meet all banks once.
#define PLANES_BYTES(k, bits) ((PLANES_SCALES(k, bits) + PLANES_KP(k) / 4 + 95) / 128 * 128 + 32)

// BITS 32 and 33 are F16 and BF16 planes, values in their order: a high and a low half of each value
// over a power of two, which is the block's scale.
DEVICE u16 float_bf16(float f) {
    u16 h;
#if TURING
    const u32 bits = __float_as_uint(f);
    h = (u16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
#else
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
#endif
    return h;
}

// V values of a lane. V = 4: quad `at` of the row, eight neighbouring lanes holding a block. V = 8: the
// quads (at & 3) and (at & 3) + 4 of block at >> 2, four lanes holding a block. All lanes of the warp
// take part; `valid` lanes write.
template <int V> DEVICE int first_quad(int at) {
    return V == 8 ? (at >> 2) * 8 + (at & 3) : at;
}
// The largest exponent and fraction among the block's values.
template <int V> DEVICE u32 block_top(const float v[V]) {
    u32 top = 0;
#pragma unroll
    for (int i = 0; i < V; i++) {
        u32 b;
        asm("and.b32 %0, %1, 0x7fffffff;" : "=r"(b) : "f"(v[i]));
        top = b > top ? b : top;
    }
#pragma unroll
    for (int m = 1; m < 32 / V; m <<= 1) {
        const u32 b = __shfl_xor_sync(FULL, top, m);
        top = b > top ? b : top;
    }
    return top;
}
template <int BITS, int V>
DEVICE void quantise_halves(const float v[V], u8 *planes, int k, int at, bool valid) {
    const u32 top = block_top<V>(v);
    const int quad = first_quad<V>(at);
    if (!valid) return;
    const u32 exponent = top >> 23;
    const bool bad = exponent == 255, tiny = exponent < 27;
    const float scale = __uint_as_float(exponent << 23);
    const float inverse = bad || tiny ? 0.0f : __uint_as_float((254 - exponent) << 23);
#pragma unroll
    for (int i = 0; i < V; i += 4) {
        u32 high[4], low[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float y = bad ? 0.0f : v[i + j] * inverse;
            if (BITS == 32) {
                high[j] = float_f16(y);
                low[j] = float_f16(y - f16_float((u16)high[j]));
            } else {
                high[j] = float_bf16(y);
                low[j] = float_bf16(y - __uint_as_float(high[j] << 16));
            }
        }
        ((uint2 *)planes)[quad + i] = make_uint2(high[0] | high[1] << 16, high[2] | high[3] << 16);
        ((uint2 *)(planes + PLANES_KP(k) * 2))[quad + i] =
            make_uint2(low[0] | low[1] << 16, low[2] | low[3] << 16);
    }
    if ((quad & 7) == 0)
        ((float2 *)(planes + PLANES_SCALES(k, BITS)))[quad >> 3] =
            make_float2(bad ? __uint_as_float(0x7fffffffu) : tiny ? 0.0f : scale, 0.0f);
}

DEVICE u32 pack_bytes(const int q[4], int add, u32 byte) {
    return __byte_perm(__byte_perm(q[0] + add, q[1] + add, byte),
                       __byte_perm(q[2] + add, q[3] + add, byte), 0x5410);
}

template <int BITS, int V>
DEVICE void quantise(const float v[V], u8 *planes, int k, int at, bool valid) {
    if constexpr (BITS > 16) {
        quantise_halves<BITS, V>(v, planes, k, at, valid);
    } else {
        const float limit = BITS == 16 ? 32512.0f : 127.0f;
        const float inverse_limit = BITS == 16 ? (float)(1.0 / 32512.0) : (float)(1.0 / 127.0);
        const u32 top = block_top<V>(v), least = 0x0d800000u; // 2^-100
        // Neither NaN, infinite nor tiny; else q = 0: no finite value times 0 is anything else, and
        // NaN becomes the integer 0.
        const bool plain = top - least < 0x7f800000u - least;
        const float amax = plain ? __uint_as_float(top) : 1.0f;
        const float inverse = divide(plain ? limit : 0.0f, amax);
        int q[V], sum = 0;
#pragma unroll
        for (int i = 0; i < V; i++) q[i] = __float2int_rn(v[i] * inverse);
        u32 high[V / 4], low[V / 4];
#pragma unroll
        for (int i = 0; i < V / 4; i++) {
            low[i] = pack_bytes(q + 4 * i, 0, 0x0040);
            if (BITS == 16) high[i] = pack_bytes(q + 4 * i, 128, 0x0051);
        }
        if (BITS == 16) {
#pragma unroll
            for (int i = 0; i < V / 4; i++) sum = __dp4a((int)high[i], 0x01010101, sum);
            sum <<= 8;
        }
#pragma unroll
        for (int i = 0; i < V / 4; i++) sum = __dp4a((int)low[i], 0x01010101, sum);
#pragma unroll
        for (int m = 1; m < 32 / V; m <<= 1) sum += __shfl_xor_sync(FULL, sum, m);
        if (!valid) return;
        const int block = at / (32 / V), in_block = at & (32 / V - 1);
        if constexpr (V == 8) {
            if (BITS == 16)
                ((uint2 *)planes)[at] = make_uint2(high[0], high[1]);
            ((uint2 *)(planes + (BITS == 16 ? PLANES_KP(k) : 0)))[at] = make_uint2(low[0], low[1]);
        } else {
            const int word = block * 8 + (in_block & 3) * 2 + (in_block >> 2);
            if (BITS == 16) ((u32 *)planes)[word] = high[0];
            ((u32 *)(planes + (BITS == 16 ? PLANES_KP(k) : 0)))[word] = low[0];
        }
        if (in_block == 0) {
            const float scale = divide_by(amax, limit, inverse_limit);
            const float odd = top >= 0x7f800000u ? __uint_as_float(0x7fffffffu) : 0.0f;
            ((float2 *)(planes + PLANES_SCALES(k, BITS)))[block] =
                make_float2(plain ? scale : odd, plain ? scale * (float)sum : odd);
        }
    }
}
template <int BITS>
DEVICE void quantise_block(float4 v, u8 *planes, int k, int quad, bool valid) {
    const float x[4] = {v.x, v.y, v.z, v.w};
    quantise<BITS, 4>(x, planes, k, quad, valid);
}

// Zero blocks behind k, where k is an odd number of blocks. One warp.
template <int BITS>
DEVICE void planes_pad(u8 *planes, int k, int lane) {
    if (PLANES_KP(k) == k) return;
    constexpr int width = BITS > 16 ? 2 : 1; // bytes of a value in a plane
    if (lane < 8 * width) {
        ((u32 *)(planes + k * width))[lane] = 0;
        if (BITS >= 16) ((u32 *)(planes + (PLANES_KP(k) + k) * width))[lane] = 0;
    }
    if (lane == 31)
        ((float2 *)(planes + PLANES_SCALES(k, BITS)))[k / 32] = make_float2(0.0f, 0.0f);
}

// Root mean square of rows by 256 threads: thread t takes the quads t, t + 256, ...; then a
// butterfly of each warp, then the warps ascending. The same for every kernel that norms. `warps` is
// 16-byte aligned.
#define NORM_THREADS 256
DEVICE float norm_partial(const float4 *x, int quads, int tid) {
    const int rest = quads % NORM_THREADS;
    float s = 0.0f;
#pragma unroll 4
    for (int i0 = 0; i0 < quads - rest + (rest > 0 ? NORM_THREADS : 0); i0 += NORM_THREADS) {
        if (rest > 0 && i0 + NORM_THREADS > quads && tid >= rest) break;
        const float4 v = x[i0 + tid];
        s = fma(v.x, v.x, s);
        s = fma(v.y, v.y, s);
        s = fma(v.z, v.z, s);
        s = fma(v.w, v.w, s);
    }
    return warp_sum(s);
}
// All of a row, by 256 threads; times factor * w if NORMED.
template <int KX, int BITS, bool NORMED>
DEVICE void row_planes(const float4 *x, const float4 *w, float factor, u8 *out) {
    const int tid = threadIdx.x;
    for (int i0 = 0; i0 < KX / 4; i0 += NORM_THREADS) {
        const int i = i0 + tid;
        const bool valid = i < KX / 4;
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (valid) v = x[i];
        if (NORMED && valid) {
            const float4 b = w[i];
            v = make_float4(v.x * factor * b.x, v.y * factor * b.y, v.z * factor * b.z,
                            v.w * factor * b.w);
        }
        quantise_block<BITS>(v, out, KX, i, valid);
    }
    if (tid < 32) planes_pad<BITS>(out, KX, tid);
}
DEVICE float norm_factor(const float *warps, float n, float epsilon) {
    const float4 a = ((const float4 *)warps)[0], b = ((const float4 *)warps)[1];
    const float s = ((((((a.x + a.y) + a.z) + a.w) + b.x) + b.y) + b.z) + b.w;
    float root;
    asm("sqrt.rn.f32 %0, %1;" : "=f"(root) : "f"(divide_by(s, n, 1.0f / n) + epsilon));
    return reciprocal(root);
}
