#include "sched/monitor.h"

#include <math.h>
#include <string.h>

#include "core/check.h"
#include "core/math.h"

enum { FIXED_ROW = 3, PRIOR_DRAWS = 8, PRIOR_COSINES = 4 };
static const float BREAKER_TEMPERATURE = 0.3f, BREAKER_TOP_P = 0.85f;

size_t monitor_footprint(uint32_t d_model) {
    return MONITOR_STATES * sizeof(struct output) + MONITOR_POINTS * sizeof(struct monitor_point) +
           ((size_t)MONITOR_STATES + 2 * MONITOR_BLOCKS + 1) * d_model * sizeof(float);
}

void monitor_init(struct monitor *m, void *mem, uint32_t d_model) {
    memset(m, 0, sizeof *m);
    m->held = mem;
    m->points = (struct monitor_point *)(void *)(m->held + MONITOR_STATES);
    m->prompt = (float *)(void *)(m->points + MONITOR_POINTS);
    m->states = m->prompt + d_model;
    m->blocks = m->states + (size_t)MONITOR_STATES * d_model;
    m->references = m->blocks + (size_t)MONITOR_BLOCKS * d_model;
}

void monitor_start(struct monitor *m, const struct monitor_model *model, const struct rollback *how,
                   uint32_t n_prompt) {
    m->on = how->rule != ROLLBACK_OFF;
    m->tripped = false;
    m->how = *how;
    m->model = model;
    m->n_prompt = m->n_committed = m->n_drawn = n_prompt;
    m->n_rollbacks = m->n_excluded = m->cut = 0;
    m->prompt_norm = 0;
}

/* ---- similarity ---- */

/* 16 lanes and one tree, so that the sum is the same however it is compiled. */
static float dot(const float *a, const float *b, uint32_t n) {
    float lane[16] = {0};
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (uint32_t k = 0; k < 16; k++) lane[k] = lane[k] + a[i + k] * b[i + k];
    for (; i < n; i++) lane[i % 16] = lane[i % 16] + a[i] * b[i];
    for (int half = 8; half >= 1; half /= 2)
        for (int k = 0; k < half; k++) lane[k] = lane[k] + lane[k + half];
    return lane[0];
}

void monitor_prompt(struct monitor *m, const float *sum, uint32_t n) {
    const struct monitor_model *k = m->model;
    m->prompt_norm = 0;
    if (n == 0) return;
    for (uint32_t i = 0; i < k->d_model; i++)
        m->prompt[i] = sum[i] / (float)n - (k->mean != NULL ? k->mean[i] : 0);
    m->prompt_norm = sqrtf(dot(m->prompt, m->prompt, k->d_model));
    if (!isfinite(m->prompt_norm)) m->prompt_norm = 0;
}

void monitor_copy_prompt(struct monitor *m, const struct monitor *from) {
    memcpy(m->prompt, from->prompt, m->model->d_model * sizeof *m->prompt);
    m->prompt_norm = from->prompt_norm;
}

void monitor_state(struct monitor *m, uint32_t position, const float *state) {
    const uint32_t d = m->model->d_model;
    memcpy(m->states + (size_t)(position % MONITOR_STATES) * d, state, d * sizeof *state);
}

/* Whole blocks of the answer before the window that ends at `position`. */
static uint32_t blocks_before(const struct monitor *m, uint32_t position) {
    const uint32_t n = (position - m->n_prompt) / MONITOR_WINDOW;
    return n > 0 ? n - 1 : 0;
}

/* The block that has just left the window joins the sum of those before it, and the reference is
 * made anew. After a rollback the same rows give the same bits. */
static void add_block(struct monitor *m, uint32_t position) {
    const struct monitor_model *k = m->model;
    const uint32_t d = k->d_model, n = blocks_before(m, position);
    float *sum = m->blocks + (size_t)(n % MONITOR_BLOCKS) * d;
    float *reference = m->references + (size_t)(n % MONITOR_BLOCKS) * d;
    if (n == 0) {
        memset(sum, 0, d * sizeof *sum);
        for (uint32_t i = 0; i < d; i++) reference[i] = m->prompt[i] / m->prompt_norm;
        return;
    }
    memcpy(sum, m->blocks + (size_t)((n - 1) % MONITOR_BLOCKS) * d, d * sizeof *sum);
    for (uint32_t r = position - 2 * MONITOR_WINDOW; r < position - MONITOR_WINDOW; r++) {
        const float *s = m->states + (size_t)(r % MONITOR_STATES) * d;
        for (uint32_t i = 0; i < d; i++) sum[i] = sum[i] + s[i];
    }
    const float rows = (float)(n * MONITOR_WINDOW);
    for (uint32_t i = 0; i < d; i++)
        reference[i] = sum[i] / rows - (k->mean != NULL ? k->mean[i] : 0);
    const float norm = sqrtf(dot(reference, reference, d));
    for (uint32_t i = 0; i < d; i++)
        reference[i] =
            m->prompt[i] / m->prompt_norm + (norm > 0 && isfinite(norm) ? reference[i] / norm : 0);
}

/* Of the answer's tokens before `position`; NaN while there are too few. */
static float cosine_before(struct monitor *m, uint32_t position) {
    const struct monitor_model *k = m->model;
    const uint32_t there = position - m->n_prompt;
    const uint32_t n = there < MONITOR_WINDOW ? there : MONITOR_WINDOW;
    float with = 0, square = 0, reference_square = 0;
    if (!(m->prompt_norm > 0)) return __builtin_nanf("");
    if (there % MONITOR_WINDOW == 0) add_block(m, position);
    if (n < MONITOR_LEAST) return __builtin_nanf("");
    const float *reference =
        m->references + (size_t)(blocks_before(m, position) % MONITOR_BLOCKS) * k->d_model;
    /* A few channels at a time, each summed over the rows in order. */
    for (uint32_t i = 0; i < k->d_model; i += 16) {
        const uint32_t w = k->d_model - i < 16 ? k->d_model - i : 16;
        float x[16] = {0};
        for (uint32_t r = position - n; r < position; r++) {
            const float *s = m->states + (size_t)(r % MONITOR_STATES) * k->d_model + i;
            for (uint32_t c = 0; c < w; c++) x[c] = x[c] + s[c];
        }
        for (uint32_t c = 0; c < w; c++)
            x[c] = x[c] / (float)n - (k->mean != NULL ? k->mean[i + c] : 0);
        with = with + dot(x, reference + i, w);
        square = square + dot(x, x, w);
        reference_square = reference_square + dot(reference + i, reference + i, w);
    }
    const float norm = sqrtf(square) * sqrtf(reference_square);
    return norm > 0 && isfinite(norm) ? with / norm : __builtin_nanf("");
}

/* ---- rules ---- */

static struct monitor_point *point(const struct monitor *m, uint32_t position) {
    return &m->points[position % MONITOR_POINTS];
}

/* x in deviations from the n values with these sums, drawn towards `prior` values of a mean and a
 * deviation. */
static float z_value(double x, double n, double sum, double squares, double prior, float mean0,
                     float deviation0) {
    const double m0 = (double)mean0, d0 = (double)deviation0;
    const double mean = (sum + prior * m0) / (n + prior);
    const double square = (squares + prior * (m0 * m0 + d0 * d0)) / (n + prior);
    const double variance = square - mean * mean;
    return (float)((x - mean) / sqrt(variance > 1e-4 ? variance : 1e-4));
}

float monitor_odds(const struct output *o) {
    const struct sample_spec *spec = &o->sample;
    for (uint32_t i = 0; i < spec->n_biases; i++)
        if (spec->biases[i].id == o->token) return 0;
    const float sharper = spec->temperature > 0 ? 1 / spec->temperature - 1 : 0;
    double weight[STEP_TOP + 1], surprise[STEP_TOP + 1], rest = 1,
                                                         rest_entropy = (double)o->entropy;
    uint32_t n = 0;
    for (; n < STEP_TOP && o->top[n].id != STEP_NONE; n++) {
        surprise[n] = (double)(o->lse - o->top[n].logit);
        const double p = math_exp(-surprise[n]);
        weight[n] = p * math_exp(-(surprise[n] - surprise[0]) * (double)sharper);
        rest -= p;
        rest_entropy -= p * surprise[n];
    }
    if (n == 0) return 0;
    if (rest > 1e-6 && rest_entropy > 0) {
        surprise[n] = rest_entropy / rest;
        weight[n] = rest * math_exp(-(surprise[n] - surprise[0]) * (double)sharper);
        n++;
    }
    double all = 0, mass = 0, mean = 0, squares = 0;
    for (uint32_t i = 0; i < n; i++) all += weight[i];
    if (spec->temperature == 0) n = 1;
    for (uint32_t i = 0; i < n && (i == 0 || mass < (double)spec->top_p * all); i++) {
        mass += weight[i];
        mean += weight[i] * surprise[i];
        squares += weight[i] * surprise[i] * surprise[i];
    }
    mean /= mass;
    const double variance = squares / mass - mean * mean;
    const double z = (-(double)o->logprob - mean) / sqrt((variance > 0 ? variance : 0) + 0.25);
    if (!(z < (double)MONITOR_ODDS_MOST)) return MONITOR_ODDS_MOST;
    return z > -(double)MONITOR_ODDS_MOST ? (float)z : -MONITOR_ODDS_MOST;
}

static void fill_features(const struct monitor *m, uint32_t position, struct monitor_point *p) {
    const struct monitor_rule *r = &m->model->rule;
    static const struct monitor_point nothing;
    const uint32_t there = position - m->n_prompt + 1;
    const struct monitor_point *then =
        there > MONITOR_SLOPE ? point(m, position - MONITOR_SLOPE) : &nothing;
    float z = 0, odds = 0;
    const uint32_t n = there < MONITOR_WINDOW ? there : MONITOR_WINDOW;
    for (uint32_t i = 0; i < n; i++) {
        z = z + point(m, position - i)->z;
        odds = odds + point(m, position - i)->odds;
    }
    p->features[0] =
        z_value((double)p->cosine, then->n_cosines, then->cosines, then->cosines_squared,
                PRIOR_COSINES, r->cosine_mean, r->cosine_deviation);
    p->features[1] = p->cosine;
    p->features[2] = then->n_cosines > 0 ? p->cosine - then->cosine : 0;
    p->features[3] = z / (float)n;
    p->features[4] = odds / (float)n;
    p->score = r->weights[0];
    for (uint32_t i = 0; i < MONITOR_FEATURES; i++)
        p->score = p->score + r->weights[i + 1] * p->features[i];
}

static bool fixed_suspicious(const struct monitor *m, const struct monitor_point *before,
                             const struct monitor_point *p) {
    double limit = (double)m->how.entropy_threshold;
    if (before->n_entropies > 0) {
        const double n = before->n_entropies, mean = before->entropies / n;
        const double variance = before->entropies_squared / n - mean * mean;
        const double own = mean + 2 * sqrt(variance > 0 ? variance : 0);
        if (own > limit) limit = own;
    }
    return (double)p->entropy > limit && p->cosine < m->how.similarity_threshold;
}

/* The first held token, which is n_drawn when none is. */
static uint32_t first_held(const struct monitor *m, uint32_t committed) {
    const uint32_t n = m->n_drawn;
    uint32_t at = committed;
    if (n > m->how.window && at < n - m->how.window) at = n - m->how.window;
    if (m->how.rule == ROLLBACK_FIXED) {
        /* Only a run that reaches the end can still become one of three. */
        uint32_t run = n;
        while (run > at && n - run < FIXED_ROW && point(m, run - 1)->suspicious) run--;
        return run;
    }
    const struct monitor_rule *r = &m->model->rule;
    const bool doubted = point(m, n - 1)->score >= r->hold;
    for (; at < n; at++)
        if (point(m, at)->suspicious && (doubted || n - at <= r->clear_tokens)) break;
    return at;
}

static void exclude(struct monitor *m, uint32_t cut, uint32_t id) {
    if (cut != m->cut) m->n_excluded = 0;
    m->cut = cut;
    uint32_t i = m->n_excluded++;
    CHECK(i < REQUEST_MAX_ROLLBACKS);
    for (; i > 0 && m->excluded[i - 1] > id; i--) m->excluded[i] = m->excluded[i - 1];
    m->excluded[i] = id;
}

static struct monitor_verdict trigger(struct monitor *m, uint32_t held) {
    struct monitor_verdict v = {0};
    if (m->n_rollbacks == m->how.max) {
        m->tripped = true;
        m->on = false;
        v.tripped = true;
        v.commit = m->n_drawn;
        return v;
    }
    v.cut = held;
    m->n_rollbacks++;
    exclude(m, v.cut, monitor_held(m, v.cut)->token);
    m->n_drawn = v.cut;
    return v;
}

/* An answer drawn at random leaves its topic by itself, now and then. */
static float threshold_at(const struct monitor_rule *r, float temperature) {
    const float share = (temperature - MONITOR_COOL) / (MONITOR_HOT - MONITOR_COOL);
    if (!(share > 0)) return r->threshold;
    return share < 1 ? r->threshold + share * (r->threshold_hot - r->threshold) : r->threshold_hot;
}

struct monitor_verdict monitor_draw(struct monitor *m, uint32_t position, struct output *o) {
    CHECK(m->on && position == m->n_drawn);
    static const struct monitor_point nothing;
    const struct monitor_point before = position > m->n_prompt ? *point(m, position - 1) : nothing;
    struct monitor_point *p = point(m, position);
    *p = before;
    p->surprise = -o->logprob;
    p->entropy = o->entropy;
    p->cosine = o->cosine = cosine_before(m, position);
    p->score = -__builtin_inff();
    bool triggered = false;
    if (m->how.rule == ROLLBACK_AUTO) {
        const struct monitor_rule *r = &m->model->rule;
        p->z =
            z_value((double)o->entropy, before.n_entropies, before.entropies,
                    before.entropies_squared, PRIOR_DRAWS, r->entropy_mean, r->entropy_deviation);
        p->odds = monitor_odds(o);
        if (!isnan(p->cosine)) fill_features(m, position, p);
        p->suspicious = p->score >= r->hold || p->surprise >= r->surprise;
        triggered = p->score >= threshold_at(r, o->sample.temperature);
    } else {
        p->suspicious = fixed_suspicious(m, &before, p);
        triggered = p->suspicious && before.suspicious && position - m->n_prompt >= FIXED_ROW &&
                    point(m, position - 2)->suspicious;
    }
    if (position == m->n_prompt) p->suspicious = false;
    p->n_entropies++;
    p->entropies += (double)o->entropy;
    p->entropies_squared += (double)o->entropy * (double)o->entropy;
    if (!isnan(p->cosine)) {
        p->n_cosines++;
        p->cosines += (double)p->cosine;
        p->cosines_squared += (double)p->cosine * (double)p->cosine;
    }
    m->held[position % MONITOR_STATES] = *o;
    m->n_drawn++;
    const uint32_t held = first_held(m, m->n_committed);
    struct monitor_verdict v = {.commit = held};
    if (triggered && held < m->n_drawn) v = trigger(m, held);
    if (v.commit > m->n_committed) m->n_committed = v.commit;
    return v;
}

const struct output *monitor_held(const struct monitor *m, uint32_t position) {
    return &m->held[position % MONITOR_STATES];
}

void monitor_spec(const struct monitor *m, struct sample_spec *spec) {
    spec->attempt = m->n_rollbacks;
    if (!m->tripped) return;
    spec->regulate = 0;
    if (spec->temperature > BREAKER_TEMPERATURE) spec->temperature = BREAKER_TEMPERATURE;
    if (spec->top_p > BREAKER_TOP_P) spec->top_p = BREAKER_TOP_P;
}
