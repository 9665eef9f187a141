#include "sched/draw.h"

#include <string.h>

#include "core/check.h"

uint32_t draw_capacity(uint32_t n_ctx, uint32_t n_vocab) {
    const uint32_t most = n_ctx + REQUEST_MAX_LOGIT_BIAS;
    return most < n_vocab ? most : n_vocab;
}

size_t draw_footprint(uint32_t n_ctx, uint32_t n_vocab) {
    const size_t cap = draw_capacity(n_ctx, n_vocab);
    return cap * (sizeof(struct sample_bias) + sizeof(struct draw_use)) + 8;
}

void draw_init(struct draw *d, void *mem, uint32_t n_ctx, uint32_t n_vocab) {
    memset(d, 0, sizeof *d);
    d->cap = draw_capacity(n_ctx, n_vocab);
    d->uses = mem;
    d->biases = (struct sample_bias *)(void *)(d->uses + d->cap);
}

bool draw_wants_prompt_ids(const struct request *r) {
    return r->penalty_scope == PENALTY_SCOPE_OPENAI && (r->set & REQUEST_SET_REPETITION) &&
           r->repetition_penalty != 1;
}

uint32_t draw_distinct(const uint64_t *bitmap, uint32_t n_vocab, uint32_t *out) {
    uint32_t n = 0;
    for (uint32_t w = 0; w < (n_vocab + 63) / 64; w++)
        for (uint64_t bits = bitmap[w]; bits != 0; bits &= bits - 1)
            out[n++] = w * 64 + (uint32_t)__builtin_ctzll(bits);
    return n;
}

static void update(struct draw *d, uint32_t i) {
    const struct draw_use *u = &d->uses[i];
    d->biases[i].divisor = u->count > 0 || u->in_prompt ? d->repetition : 1;
    d->biases[i].delta =
        u->logit_bias - (u->count > 0 ? d->presence : 0) - d->frequency * (float)u->count;
}

/* Index of the first entry whose id is not smaller. */
static uint32_t lower_bound(const struct draw *d, uint32_t id) {
    uint32_t lo = 0, hi = d->n;
    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;
        if (d->biases[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void append(struct draw *d, uint32_t id, bool in_prompt, float logit_bias) {
    CHECK(d->n < d->cap);
    d->uses[d->n] = (struct draw_use){.in_prompt = in_prompt, .logit_bias = logit_bias};
    d->biases[d->n].id = id;
    update(d, d->n++);
}

static void count_up(struct draw *d, uint32_t id) {
    const uint32_t i = lower_bound(d, id);
    if (i == d->n || d->biases[i].id != id) {
        CHECK(d->n < d->cap);
        memmove(d->biases + i + 1, d->biases + i, (d->n - i) * sizeof *d->biases);
        memmove(d->uses + i + 1, d->uses + i, (d->n - i) * sizeof *d->uses);
        d->n++;
        d->uses[i] = (struct draw_use){0};
        d->biases[i].id = id;
    }
    d->uses[i].count++;
    update(d, i);
}

static void count_down(struct draw *d, uint32_t id) {
    const uint32_t i = lower_bound(d, id);
    CHECK(i < d->n && d->biases[i].id == id && d->uses[i].count > 0);
    if (--d->uses[i].count > 0 || d->uses[i].logit_bias != 0 || d->uses[i].in_prompt) {
        update(d, i);
        return;
    }
    d->n--;
    memmove(d->biases + i, d->biases + i + 1, (d->n - i) * sizeof *d->biases);
    memmove(d->uses + i, d->uses + i + 1, (d->n - i) * sizeof *d->uses);
}

void draw_start(struct draw *d, const struct request *r, uint64_t seed, uint32_t choice,
                const uint32_t *prompt, uint32_t n_prompt, const uint32_t *distinct,
                uint32_t n_distinct) {
    const uint32_t set = r->set;
    d->spec = (struct sample_spec){
        .seed = seed,
        .choice = choice,
        .purpose = RNG_SAMPLE,
        .target = STEP_NONE,
        .temperature = set & REQUEST_SET_TEMPERATURE ? r->temperature : 1,
        .top_k = set & REQUEST_SET_TOP_K ? r->top_k : 0,
        .top_p = set & REQUEST_SET_TOP_P ? r->top_p : 1,
        .min_p = set & REQUEST_SET_MIN_P ? r->min_p : 0,
    };
    if (r->regulate)
        d->spec.regulate = (set & REQUEST_SET_TEMPERATURE ? 0 : STEP_REGULATE_TEMPERATURE) |
                           (set & REQUEST_SET_TOP_P ? 0 : STEP_REGULATE_TOP_P);
    d->repetition = set & REQUEST_SET_REPETITION ? r->repetition_penalty : 1;
    d->presence = set & REQUEST_SET_PRESENCE ? r->presence_penalty : 0;
    d->frequency = set & REQUEST_SET_FREQUENCY ? r->frequency_penalty : 0;
    d->penalised = d->repetition != 1 || d->presence != 0 || d->frequency != 0;
    d->scope = r->penalty_scope;
    d->n = d->n_window = d->window_at = 0;
    if (!draw_wants_prompt_ids(r)) n_distinct = 0;
    /* Both lists ascend. */
    uint32_t a = 0, b = 0;
    while (a < n_distinct || b < r->n_logit_bias) {
        const uint32_t id_a = a < n_distinct ? distinct[a] : UINT32_MAX;
        const uint32_t id_b = b < r->n_logit_bias ? r->logit_bias[b].id : UINT32_MAX;
        const uint32_t id = id_a < id_b ? id_a : id_b;
        append(d, id, id_a == id, id_b == id ? r->logit_bias[b].bias : 0);
        a += id_a == id;
        b += id_b == id;
    }
    if (d->penalised && d->scope == PENALTY_SCOPE_LLAMACPP) {
        const uint32_t from = n_prompt > DRAW_WINDOW_TOKENS ? n_prompt - DRAW_WINDOW_TOKENS : 0;
        for (uint32_t i = from; i < n_prompt; i++) draw_accept(d, prompt[i]);
    }
}

void draw_accept(struct draw *d, uint32_t id) {
    if (!d->penalised) return;
    if (d->scope == PENALTY_SCOPE_LLAMACPP) {
        if (d->n_window == DRAW_WINDOW_TOKENS)
            count_down(d, d->window[d->window_at]);
        else
            d->n_window++;
        d->window[d->window_at] = id;
        d->window_at = (d->window_at + 1) % DRAW_WINDOW_TOKENS;
    }
    count_up(d, id);
}

void draw_withdraw(struct draw *d, uint32_t id, uint32_t before) {
    if (!d->penalised) return;
    count_down(d, id);
    if (d->scope != PENALTY_SCOPE_LLAMACPP) return;
    d->window_at = (d->window_at + DRAW_WINDOW_TOKENS - 1) % DRAW_WINDOW_TOKENS;
    if (before == UINT32_MAX) {
        d->n_window--;
        return;
    }
    d->window[d->window_at] = before;
    count_up(d, before);
}

void draw_copy(struct draw *ahead, const struct draw *d) {
    struct sample_bias *biases = ahead->biases;
    struct draw_use *uses = ahead->uses;
    CHECK(ahead->cap == d->cap);
    *ahead = *d;
    ahead->biases = biases;
    ahead->uses = uses;
    memcpy(biases, d->biases, d->n * sizeof *biases);
    memcpy(uses, d->uses, d->n * sizeof *uses);
}

struct sample_spec draw_spec(const struct draw *d) {
    struct sample_spec s = d->spec;
    s.biases = d->n > 0 ? d->biases : NULL;
    s.n_biases = d->n;
    return s;
}
