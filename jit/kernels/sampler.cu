// sampler.cu: core/sample.h on the device: a CTA an output. Sums of masses are integers and cuts are
// by radix, so nothing depends on an order; lse and entropy are sums in the threads' fixed order.

#define LOWEST (-3.402823466e+38f)
#define NONE 0xffffffffu
#define INFINITE (__int_as_float(0x7f800000))
#define WARPS_RANGE (CEIL_DIV(N, WARPS * 32) * 32) // ids of a warp, in id order

struct spec {
    u64 random;
    u32 logits_row, target;
    float temperature;
    u32 top_k;
    float top_p, min_p;
    u32 bitmap, first_bias, n_biases, reserved0;
};
struct answer {
    u32 token;
    float logprob, lse, entropy;
    u32 bad;
    u32 top_id[TOP];
    float top_logit[TOP];
    u32 reserved0[3];
};
struct shared_state {
    u64 bin_mass[256];
    u32 bin_count[256];
    u64 words[WARPS];
    float floats[2][WARPS];
    u64 top[TOP];
    u64 result, prefix, mass_above;
    u32 count_above, n, found;
};

DEVICE u64 shuffle_xor(u64 x, int m) {
    const u32 lo = __shfl_xor_sync(FULL, (u32)x, m), hi = __shfl_xor_sync(FULL, (u32)(x >> 32), m);
    return (u64)hi << 32 | lo;
}
DEVICE u64 shuffle_up(u64 x, int n) {
    const u32 lo = __shfl_up_sync(FULL, (u32)x, n), hi = __shfl_up_sync(FULL, (u32)(x >> 32), n);
    return (u64)hi << 32 | lo;
}

// Larger keys rank first: z descending, id ascending; -0 counts as 0.
DEVICE u64 key_of(float z, u32 id) {
    const u32 bits = __float_as_uint(z + 0.0f);
    const u32 ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (u64)ordered << 32 | (u32)~id;
}
DEVICE u32 id_of(u64 key) {
    return ~(u32)key;
}

// Over the CTA; every thread gets the result.
DEVICE u64 block_max(u64 x, shared_state &s) {
#pragma unroll
    for (int m = 16; m > 0; m >>= 1) {
        const u64 y = shuffle_xor(x, m);
        x = y > x ? y : x;
    }
    block_sync();
    if ((threadIdx.x & 31) == 0) s.words[threadIdx.x >> 5] = x;
    block_sync();
    x = s.words[0];
    for (int w = 1; w < WARPS; w++) x = s.words[w] > x ? s.words[w] : x;
    return x;
}
DEVICE u64 block_sum(u64 x, shared_state &s) {
#pragma unroll
    for (int m = 16; m > 0; m >>= 1) x += shuffle_xor(x, m);
    block_sync();
    if ((threadIdx.x & 31) == 0) s.words[threadIdx.x >> 5] = x;
    block_sync();
    x = 0;
    for (int w = 0; w < WARPS; w++) x += s.words[w];
    return x;
}

// floor(exp((z - max) / temperature) * 2^40); y is the temperature's reciprocal.
DEVICE u64 mass_of(float z, float max, float temperature, float y) {
    const float d = z - max;
    if (!(d * y > -110.0f)) return 0;
    return __float2ull_rz(exp_f32(divide_by(d, temperature, y)) * 0x1p40f);
}

// The least key of the shortest prefix, keys descending and at least `least`, whose count reaches
// `count` or whose mass reaches `mass`; 0 if the whole list does not. The list: n ids.
DEVICE u64 radix_cut(const float *z, const u64 *masses, const u32 *ids, u32 n, u64 least, u64 count,
                     u64 mass, shared_state &s) {
    const int tid = threadIdx.x, lane = tid & 31;
    block_sync();
    if (tid == 0) {
        s.prefix = 0;
        s.count_above = 0;
        s.mass_above = 0;
    }
#pragma unroll 1
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (int i = tid; i < 256; i += THREADS) {
            s.bin_mass[i] = 0;
            s.bin_count[i] = 0;
        }
        block_sync();
        const u64 prefix = s.prefix;
        for (u32 i = tid; i < n; i += THREADS) {
            const u64 key = key_of(z[ids[i]], ids[i]);
            if (key < least || (shift < 56 && key >> (shift + 8) != prefix)) continue;
            const u32 bin = (u32)(key >> shift) & 255u;
            atomicAdd(&s.bin_count[bin], 1u);
            if (masses) atomicAdd(&s.bin_mass[bin], masses[ids[i]]);
        }
        block_sync();
        // One warp walks the bins from above, eight a lane.
        if (tid < 32) {
            u32 own_count = 0;
            u64 own_mass = 0;
            for (int j = 0; j < 8; j++) {
                own_count += s.bin_count[255 - lane * 8 - j];
                own_mass += s.bin_mass[255 - lane * 8 - j];
            }
            u32 counts = own_count;
            u64 sum = own_mass;
#pragma unroll
            for (int m = 1; m < 32; m <<= 1) {
                const u32 c = __shfl_up_sync(FULL, counts, m);
                const u64 x = shuffle_up(sum, m);
                if (lane >= m) {
                    counts += c;
                    sum += x;
                }
            }
            u64 above_count = s.count_above + (u64)(counts - own_count);
            u64 above_mass = s.mass_above + (sum - own_mass);
            __syncwarp();
            const bool reaches =
                above_count + own_count >= count || above_mass + own_mass >= mass;
            const u32 which = __ballot_sync(FULL, reaches);
            if (which == 0) {
                if (lane == 0) s.found = 0;
            } else if (lane == __ffs(which) - 1) {
                int bin = 255 - lane * 8;
                while (!(above_count + s.bin_count[bin] >= count ||
                         above_mass + s.bin_mass[bin] >= mass)) {
                    above_count += s.bin_count[bin];
                    above_mass += s.bin_mass[bin];
                    bin--;
                }
                s.prefix = prefix << 8 | (u32)bin;
                s.count_above = (u32)above_count;
                s.mass_above = above_mass;
                s.found = 1;
            }
        }
        block_sync();
        if (!s.found) return 0;
    }
    return s.prefix;
}

// Ids with z >= bound (and a mass, if masses are given) into ids[], in no order.
DEVICE u32 gather(const float *z, const u64 *masses, float bound, u32 *ids, shared_state &s) {
    block_sync();
    if (threadIdx.x == 0) s.n = 0;
    block_sync();
    for (u32 i = threadIdx.x; i < N; i += THREADS) {
        if (!(z[i] >= bound) || (masses && masses[i] == 0)) continue;
        ids[atomicAdd(&s.n, 1u)] = i;
    }
    block_sync();
    return s.n;
}

// The 20 best of raw z. Each thread's own maximum bounds them from below: at least 20 ids reach the
// 20th of those.
DEVICE void find_top(const float *z, u32 *ids, const float *maxima, u32 *index, shared_state &s) {
    index[threadIdx.x] = threadIdx.x;
    block_sync();
    const int most = N < TOP ? N : TOP;
    const u64 bound_key = radix_cut(maxima, 0, index, THREADS, 0, most, ~0ull, s);
    const float bound = maxima[id_of(bound_key)];
    const u32 n = gather(z, 0, bound, ids, s);
    const u64 least = radix_cut(z, 0, ids, n, 0, most, ~0ull, s);
    if (threadIdx.x == 0) s.n = 0;
    block_sync();
    for (u32 i = threadIdx.x; i < n; i += THREADS) {
        const u64 key = key_of(z[ids[i]], ids[i]);
        if (key >= least) s.top[atomicAdd(&s.n, 1u)] = key;
    }
    block_sync();
    if (threadIdx.x == 0) s.n = most;
    block_sync();
}

// The first id, ascending, whose running mass exceeds r, over ids with key >= least and mass >=
// least_mass. A warp has a range of ids; range_mass are their sums.
DEVICE u32 pick(const float *z, const u64 *masses, u64 least, u64 least_mass, u64 random,
                shared_state &s) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const u32 first = warp * WARPS_RANGE;
    const u32 last = first + WARPS_RANGE < N ? first + WARPS_RANGE : N;
    u64 sum = 0;
    for (u32 i = first + lane; i < last; i += 32)
        if (masses[i] >= least_mass && key_of(z[i], i) >= least) sum += masses[i];
#pragma unroll
    for (int m = 16; m > 0; m >>= 1) sum += shuffle_xor(sum, m);
    block_sync();
    if (lane == 0) s.words[warp] = sum;
    block_sync();
    u64 total = 0;
    for (int w = 0; w < WARPS; w++) total += s.words[w];
    u64 r = __umul64hi(random, total);
    int owner = 0;
    while (owner < WARPS - 1 && r >= s.words[owner]) r -= s.words[owner++];
    if (warp == owner) {
#pragma unroll 1
        for (u32 i0 = first; i0 < last; i0 += 32) {
            const u32 i = i0 + lane;
            u64 own = 0;
            if (i < last && masses[i] >= least_mass && key_of(z[i], i) >= least) own = masses[i];
            u64 running = own;
#pragma unroll
            for (int m = 1; m < 32; m <<= 1) {
                const u64 x = shuffle_up(running, m);
                if (lane >= m) running += x;
            }
            const u32 which = __ballot_sync(FULL, running > r);
            if (which != 0) {
                if (lane == __ffs(which) - 1) s.result = i;
                break;
            }
            const u32 lo = __shfl_sync(FULL, (u32)running, 31);
            const u32 hi = __shfl_sync(FULL, (u32)(running >> 32), 31);
            r -= (u64)hi << 32 | lo;
        }
    }
    block_sync();
    return (u32)s.result;
}

// From masses to a token (core/sample.h, 5 and 6).
DEVICE u32 draw(const spec &a, const float *z, float max, u64 *masses, u32 *ids, shared_state &s) {
    const float y = reciprocal(a.temperature);
    u64 own = 0;
    for (u32 i = threadIdx.x; i < N; i += THREADS) {
        const u64 m = mass_of(z[i], max, a.temperature, y);
        masses[i] = m;
        own += m;
    }
    const u64 total = block_sum(own, s);
    const u64 least_mass = a.min_p > 0.0f ? __float2ull_rz(a.min_p * 0x1p40f) : 1;
    const bool by_k = a.top_k > 0 && a.top_k < N, by_p = a.top_p < 1.0f;
    u64 least = 0;
    if (by_k || by_p) {
        // Candidates first within a span of the maximum, then, for a very flat row, all.
        float bound = max - 8.0f * a.temperature;
        for (int all = 0; all < 2; all++, bound = -INFINITE) {
            const u32 n = gather(z, masses, bound, ids, s);
            least = 0;
            u64 left = total;
            if (by_k) {
                least = radix_cut(z, masses, ids, n, 0, a.top_k, ~0ull, s);
                if (least == 0 && !all) continue;
                u64 sum = 0;
                for (u32 i = threadIdx.x; i < n; i += THREADS)
                    if (key_of(z[ids[i]], ids[i]) >= least) sum += masses[ids[i]];
                left = block_sum(sum, s);
            }
            if (by_p) {
                const u64 share = __float2ull_rz(a.top_p * 0x1p32f);
                u64 target = (left >> 32) * share + ((left & 0xffffffffull) * share >> 32);
                target = target > 0 ? target : 1;
                const u64 cut = radix_cut(z, masses, ids, n, least, ~0ull, target, s);
                if (cut == 0 && !all) continue;
                least = cut > least ? cut : least;
            }
            break;
        }
    }
    return pick(z, masses, least, least_mass > 0 ? least_mass : 1, a.random, s);
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(params p) {
    __shared__ shared_state s;
    __shared__ float maxima[THREADS];
    __shared__ u32 index[THREADS];
    const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
    dependents_launch();
    dependencies_wait();
    if (blockIdx.x >= p.count[0]) return;
    const spec a = ((const spec *)p.specs)[blockIdx.x];
    answer *out = (answer *)p.answers + blockIdx.x;
    const float *z = p.logits + (u64)a.logits_row * N;
    u64 *masses = (u64 *)(p.scratch + (u64)blockIdx.x * (CEIL_DIV(N, 4) * 64));
    float *changed = (float *)(masses + CEIL_DIV(N, 4) * 4);
    u32 *ids = (u32 *)(changed + CEIL_DIV(N, 4) * 4);

    // Ids rise within a thread, so that the first of equal logits is its best.
    float own = -INFINITE;
    u32 own_id = tid;
    int finite = 1;
#pragma unroll 8
    for (u32 i = tid; i < N; i += THREADS) {
        const float x = z[i];
        finite &= x >= LOWEST && x <= -LOWEST;
        own_id = x > own ? i : own_id;
        own = larger(x, own);
    }
    maxima[tid] = own;
    __syncwarp();
    if (!__syncthreads_and(finite)) {
        if (tid == 0) {
            out->token = 0;
            out->logprob = out->lse = out->entropy = 0.0f;
            out->bad = 1;
            for (int i = 0; i < 3; i++) out->reserved0[i] = 0;
        }
        if (tid < TOP) {
            out->top_id[tid] = 0;
            out->top_logit[tid] = 0.0f;
        }
        return;
    }
    const u64 best = block_max(own_id < N ? key_of(own, own_id) : 0, s);
    const float max = z[id_of(best)];
    find_top(z, ids, maxima, index, s);
    if (tid < TOP) {
        out->top_id[tid] = NONE;
        out->top_logit[tid] = LOWEST;
    }
    block_sync();
    if (tid < s.n) {
        int rank = 0;
        for (u32 i = 0; i < s.n; i++) rank += s.top[i] > s.top[tid];
        out->top_id[rank] = id_of(s.top[tid]);
        out->top_logit[rank] = z[id_of(s.top[tid])];
    }

    float sum = 0.0f, weighted = 0.0f;
#pragma unroll 4
    for (u32 i = tid; i < N; i += THREADS) {
        const float d = z[i] - max, e = exp_f32(d);
        sum = sum + e;
        weighted = fma(e, d, weighted);
    }
    sum = warp_sum(sum);
    weighted = warp_sum(weighted);
    if (lane == 0) {
        s.floats[0][warp] = sum;
        s.floats[1][warp] = weighted;
    }

    // Biases and the bitmap, on a copy.
    const float *y = z;
    if (a.bitmap != NONE || a.n_biases > 0) {
        const u64 *allowed = p.bitmaps + (u64)a.bitmap * CEIL_DIV(N, 64);
        for (u32 i = tid; i < N; i += THREADS) changed[i] = z[i];
        block_sync();
        for (u32 i = tid; i < a.n_biases; i += THREADS) {
            const u32 *b = p.biases + (u64)(a.first_bias + i) * 3;
            const float divisor = __uint_as_float(b[1]), raw = changed[b[0]];
            const float x = (raw > 0.0f ? divide(raw, divisor) : raw * divisor) +
                            __uint_as_float(b[2]);
            changed[b[0]] = x > -LOWEST ? -LOWEST : x < LOWEST ? LOWEST : x;
        }
        block_sync();
        if (a.bitmap != NONE)
            for (u32 i = tid; i < N; i += THREADS)
                if (!(allowed[i / 64] >> (i % 64) & 1)) changed[i] = -INFINITE;
        block_sync();
        y = changed;
    }
    block_sync();
    u32 token = a.target;
    if (token == NONE) {
        u64 first = best;
        if (y != z) {
            first = 0;
            for (u32 i = tid; i < N; i += THREADS) {
                const u64 key = key_of(y[i], i);
                first = key > first ? key : first;
            }
            first = block_max(first, s);
        }
        const float top = y[id_of(first)];
        if (!(top >= LOWEST))
            token = id_of(best);
        else if (a.temperature > 0.0f)
            token = draw(a, y, top, masses, ids, s);
        else
            token = id_of(first);
    }
    if (tid == 0) {
        sum = s.floats[0][0];
        weighted = s.floats[1][0];
        for (int w = 1; w < WARPS; w++) {
            sum = sum + s.floats[0][w];
            weighted = weighted + s.floats[1][w];
        }
        const float log_sum = log_f32(sum);
        out->token = token;
        out->lse = max + log_sum;
        out->entropy = log_sum - divide(weighted, sum);
        out->logprob = z[token] - (max + log_sum);
        out->bad = 0;
        for (int i = 0; i < 3; i++) out->reserved0[i] = 0;
    }
}
