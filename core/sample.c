#include "core/sample.h"

#include <float.h>
#include <string.h>

#include "core/check.h"
#include "core/math.h"

/* A member of the candidate set. Keys are unique and ordered as the sampler ranks: z descending, id
 * ascending. */
struct candidate {
    uint64_t key;
    uint64_t mass;
};

struct scratch {
    float *z;               /* [n_vocab] after bitmap and biases */
    uint64_t *mass;         /* [n_vocab] */
    uint32_t *ids;          /* [n_vocab] */
    struct candidate *all;  /* [n_vocab] ids ascending */
    struct candidate *work; /* [n_vocab] */
};

static size_t lay_out(void *base, uint32_t n_vocab, struct scratch *s) {
    const size_t n = (n_vocab + 15u) & ~(size_t)15;
    char *at = base;
    s->mass = (void *)at, at += n * sizeof *s->mass;
    s->all = (void *)at, at += n * sizeof *s->all;
    s->work = (void *)at, at += n * sizeof *s->work;
    s->z = (void *)at, at += n * sizeof *s->z;
    s->ids = (void *)at, at += n * sizeof *s->ids;
    return (size_t)(at - (char *)base);
}

size_t sample_scratch_bytes(uint32_t n_vocab) {
    struct scratch s;
    char base[1];
    return lay_out(base, n_vocab, &s);
}

/* Plain C versions of the loops. */

static float lanes_sum(float *a) {
    for (int half = 8; half >= 1; half /= 2)
        for (int i = 0; i < half; i++) a[i] = a[i] + a[i + half];
    return a[0];
}

static bool plain_maxima(const float *z, uint32_t n, uint32_t chunk, float *maxima) {
    bool finite = true;
    for (uint32_t c = 0; c < SAMPLE_CHUNKS; c++) maxima[c] = -__builtin_inff();
    for (uint32_t i = 0; i < n; i++) {
        if (!(z[i] >= -FLT_MAX && z[i] <= FLT_MAX)) finite = false;
        if (z[i] > maxima[i / chunk]) maxima[i / chunk] = z[i];
    }
    return finite;
}

static void plain_sums(const float *z, uint32_t n, float max, float *sum, float *weighted) {
    float s[16] = {0}, w[16] = {0};
    for (uint32_t i = 0; i < n; i++) {
        const float d = z[i] - max, e = math_expf(d);
        s[i % 16] = s[i % 16] + e;
        w[i % 16] = __builtin_fmaf(e, d, w[i % 16]);
    }
    *sum = lanes_sum(s);
    *weighted = lanes_sum(w);
}

static uint32_t plain_at_least(const float *z, uint32_t first, uint32_t last, float bound,
                               uint32_t *ids) {
    uint32_t n = 0;
    for (uint32_t i = first; i < last; i++)
        if (z[i] >= bound) ids[n++] = i;
    return n;
}

static void plain_masses(const float *z, uint32_t n, uint32_t chunk, float max, float temperature,
                         uint64_t *mass, uint64_t *chunk_mass) {
    for (uint32_t c = 0; c < SAMPLE_CHUNKS; c++) chunk_mass[c] = 0;
    for (uint32_t i = 0; i < n; i++) {
        mass[i] = (uint64_t)(math_expf((z[i] - max) / temperature) * 0x1p40f);
        chunk_mass[i / chunk] += mass[i];
    }
}

static const struct sample_kernels plain = {plain_maxima, plain_sums, plain_at_least, plain_masses};

/* Bits of a float in an order that unsigned integers share; -0 counts as 0. */
static uint32_t ordered(float f) {
    uint32_t bits;
    f = f + 0.0f;
    memcpy(&bits, &f, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static uint64_t key_of(float z, uint32_t id) {
    return (uint64_t)ordered(z) << 32 | (uint32_t)~id;
}
static uint32_t id_of(uint64_t key) {
    return ~(uint32_t)key;
}

/* Insert z of id into `top`, which holds n <= STEP_TOP entries; ids arrive ascending. */
static uint32_t insert_top(struct top_logit *top, uint32_t n, float z, uint32_t id) {
    if (n == STEP_TOP) {
        if (!(z > top[n - 1].logit)) return n;
        n--;
    }
    uint32_t at = n;
    for (; at > 0 && z > top[at - 1].logit; at--) top[at] = top[at - 1];
    top[at] = (struct top_logit){id, z};
    return n + 1;
}

/* The k-th largest of the chunks' maxima: at least k ids reach it, and few do. */
static float bound_for(const float *maxima, uint32_t k) {
    float sorted[SAMPLE_CHUNKS];
    for (uint32_t c = 0; c < SAMPLE_CHUNKS; c++) {
        uint32_t at = c;
        for (; at > 0 && maxima[c] > sorted[at - 1]; at--) sorted[at] = sorted[at - 1];
        sorted[at] = maxima[c];
    }
    return sorted[k - 1];
}

static void find_top(const struct sample_kernels *k, const float *z, uint32_t n, uint32_t chunk,
                     const float *maxima, uint32_t *ids, struct top_logit *top) {
    const float bound = bound_for(maxima, STEP_TOP);
    uint32_t n_top = 0;
    for (uint32_t c = 0; c < SAMPLE_CHUNKS && c * chunk < n; c++) {
        if (!(maxima[c] >= bound)) continue;
        const uint32_t last = n - c * chunk < chunk ? n : (c + 1) * chunk;
        const uint32_t hits = k->at_least(z, c * chunk, last, bound, ids);
        for (uint32_t i = 0; i < hits; i++) n_top = insert_top(top, n_top, z[ids[i]], ids[i]);
    }
    for (; n_top < STEP_TOP; n_top++) top[n_top] = (struct top_logit){STEP_NONE, -FLT_MAX};
}

static uint32_t arg_max(const struct sample_kernels *k, const float *z, uint32_t n, uint32_t chunk,
                        const float *maxima, float max, uint32_t *ids) {
    for (uint32_t c = 0; c * chunk < n; c++) {
        if (!(maxima[c] >= max)) continue;
        const uint32_t last = n - c * chunk < chunk ? n : (c + 1) * chunk;
        if (k->at_least(z, c * chunk, last, max, ids) > 0) return ids[0];
    }
    CHECK(false);
    return 0;
}

/* The least key of the shortest prefix (keys descending) whose count reaches `count`, or whose mass
 * reaches `mass`; 0 if the whole set does not. Reorders nothing in `all`; `work` is scratch. */
static uint64_t radix_cut(const struct candidate *all, uint32_t n, uint64_t least_key,
                          uint64_t count, uint64_t mass, struct candidate *work) {
    uint32_t m = 0;
    for (uint32_t i = 0; i < n; i++)
        if (all[i].key >= least_key) work[m++] = all[i];
    uint64_t key = 0, count_above = 0, mass_above = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        uint64_t bin_mass[256] = {0};
        uint32_t bin_count[256] = {0};
        for (uint32_t i = 0; i < m; i++) {
            const unsigned b = work[i].key >> shift & 255;
            bin_mass[b] += work[i].mass;
            bin_count[b] += 1;
        }
        int b = 255;
        for (; b >= 0; b--) {
            if (count_above + bin_count[b] >= count || mass_above + bin_mass[b] >= mass) break;
            count_above += bin_count[b];
            mass_above += bin_mass[b];
        }
        if (b < 0) return 0;
        key |= (uint64_t)b << shift;
        uint32_t kept = 0;
        for (uint32_t i = 0; i < m; i++)
            if ((work[i].key >> shift & 255) == (unsigned)b) work[kept++] = work[i];
        m = kept;
    }
    return key;
}

static uint64_t sum_from(const struct candidate *all, uint32_t n, uint64_t least_key) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += all[i].key >= least_key ? all[i].mass : 0;
    return sum;
}

static uint64_t top_p_target(uint64_t mass, float top_p) {
    const uint64_t share = (uint64_t)((double)top_p * 0x1p32);
    const uint64_t target = (uint64_t)((unsigned __int128)mass * share >> 32);
    return target > 0 ? target : 1;
}

static uint32_t draw(const struct sample_kernels *k, const struct sample_spec *spec, const float *z,
                     uint32_t n, uint32_t chunk, const float *maxima, float max, uint32_t position,
                     struct scratch *s) {
    uint64_t chunk_mass[SAMPLE_CHUNKS], total = 0;
    k->masses(z, n, chunk, max, spec->temperature, s->mass, chunk_mass);
    for (uint32_t c = 0; c < SAMPLE_CHUNKS; c++) total += chunk_mass[c];
    const uint64_t random =
        rng_draw(spec->seed, spec->choice, position, spec->purpose, spec->attempt);
    const bool by_k = spec->top_k > 0 && spec->top_k < n, by_p = spec->top_p < 1;
    if (!by_k && !by_p && !(spec->min_p > 0)) {
        uint64_t r = (uint64_t)((unsigned __int128)random * total >> 64);
        uint32_t c = 0;
        while (r >= chunk_mass[c]) r -= chunk_mass[c++];
        uint32_t i = c * chunk;
        while (r >= s->mass[i]) r -= s->mass[i++];
        return i;
    }
    const uint64_t least_mass = spec->min_p > 0 ? (uint64_t)((double)spec->min_p * 0x1p40) : 0;
    /* Candidates: ids within `span` of the maximum. A wider span is tried only when the cut lies
     * outside, which takes a very flat distribution. */
    uint32_t count = 0;
    uint64_t least_key = 0;
    for (float span = 8 * spec->temperature;; span = __builtin_inff()) {
        count = 0;
        for (uint32_t c = 0; c * chunk < n; c++) {
            if (!(maxima[c] >= max - span)) continue;
            const uint32_t last = n - c * chunk < chunk ? n : (c + 1) * chunk;
            const uint32_t hits = k->at_least(z, c * chunk, last, max - span, s->ids);
            for (uint32_t i = 0; i < hits; i++) {
                const uint32_t id = s->ids[i];
                if (s->mass[id] > 0)
                    s->all[count++] = (struct candidate){key_of(z[id], id), s->mass[id]};
            }
        }
        const bool everything = span > FLT_MAX;
        least_key = 0;
        uint64_t left = total;
        if (by_k) {
            least_key = radix_cut(s->all, count, 0, spec->top_k, UINT64_MAX, s->work);
            if (least_key == 0 && !everything) continue;
            left = sum_from(s->all, count, least_key);
        }
        if (by_p) {
            const uint64_t cut = radix_cut(s->all, count, least_key, UINT64_MAX,
                                           top_p_target(left, spec->top_p), s->work);
            if (cut == 0 && !everything) continue;
            least_key = cut > least_key ? cut : least_key;
        }
        /* Without k and p the masses alone decide; the span held all of them if it reaches min-p.
         */
        if (!by_k && !by_p && !everything && least_mass < UINT64_C(1) << 29) continue;
        break;
    }
    uint64_t kept = 0;
    for (uint32_t i = 0; i < count; i++)
        if (s->all[i].key >= least_key && s->all[i].mass >= least_mass) kept += s->all[i].mass;
    uint64_t r = (uint64_t)((unsigned __int128)random * kept >> 64);
    for (uint32_t i = 0; i < count; i++) {
        if (s->all[i].key < least_key || s->all[i].mass < least_mass) continue;
        if (r < s->all[i].mass) return id_of(s->all[i].key);
        r -= s->all[i].mass;
    }
    CHECK(false); /* the largest id has mass 2^40 and is always kept */
    return 0;
}

/* The logits after biases and bitmap; z itself when there are none. */
static const float *constrain(const struct sample_spec *spec, const float *z, uint32_t n,
                              float *out) {
    if (spec->allowed == NULL && spec->n_biases == 0) return z;
    memcpy(out, z, n * sizeof *z);
    for (uint32_t i = 0; i < spec->n_biases; i++) {
        const struct sample_bias *b = &spec->biases[i];
        CHECK(b->id < n);
        const float raw = out[b->id];
        const float y = (raw > 0 ? raw / b->divisor : raw * b->divisor) + b->delta;
        out[b->id] = y > FLT_MAX ? FLT_MAX : y < -FLT_MAX ? -FLT_MAX : y;
    }
    if (spec->allowed != NULL) {
        for (uint32_t w = 0; w * 64 < n; w++) {
            if (spec->allowed[w] == UINT64_MAX) continue;
            const uint32_t last = n - w * 64 < 64 ? n : w * 64 + 64;
            for (uint32_t i = w * 64; i < last; i++)
                if ((spec->allowed[w] >> i % 64 & 1) == 0) out[i] = -__builtin_inff();
        }
    }
    return out;
}

void sample_row(const struct sample_kernels *kernels, const float *z, uint32_t n_vocab,
                uint32_t position, struct output *o, void *scratch) {
    const struct sample_kernels *k = kernels != NULL ? kernels : &plain;
    const struct sample_spec *spec = &o->sample;
    /* Chunks are whole groups of 16, so that a chunk's lanes are the ids' lanes. */
    const uint32_t chunk = ((n_vocab + SAMPLE_CHUNKS - 1) / SAMPLE_CHUNKS + 15) / 16 * 16;
    struct scratch s;
    lay_out(scratch, n_vocab, &s);
    CHECK(n_vocab > 0 && spec->temperature >= 0);
    CHECK(spec->target == STEP_NONE || spec->target < n_vocab);

    float maxima[SAMPLE_CHUNKS];
    o->bad = !k->maxima(z, n_vocab, chunk, maxima);
    if (o->bad) {
        o->token = 0;
        o->logprob = o->lse = o->entropy = 0;
        memset(o->top, 0, sizeof o->top);
        return;
    }
    find_top(k, z, n_vocab, chunk, maxima, s.ids, o->top);
    const float max = o->top[0].logit;
    float sum, weighted;
    k->sums(z, n_vocab, max, &sum, &weighted);
    const float log_sum = math_logf(sum);
    o->lse = max + log_sum;
    o->entropy = log_sum - weighted / sum;

    if (spec->target != STEP_NONE) {
        o->token = spec->target;
    } else {
        const float *y = constrain(spec, z, n_vocab, s.z);
        float top = max;
        if (y != z) {
            k->maxima(y, n_vocab, chunk, maxima);
            top = -__builtin_inff();
            for (uint32_t c = 0; c < SAMPLE_CHUNKS; c++) top = maxima[c] > top ? maxima[c] : top;
        }
        if (!(top >= -FLT_MAX))
            o->token = o->top[0].id;
        else if (spec->temperature > 0)
            o->token = draw(k, spec, y, n_vocab, chunk, maxima, top, position, &s);
        else if (y == z)
            o->token = o->top[0].id;
        else
            o->token = arg_max(k, y, n_vocab, chunk, maxima, top, s.ids);
    }
    o->logprob = z[o->token] - o->lse;
}
