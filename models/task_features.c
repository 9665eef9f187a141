#include "models/task_features.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/math.h"
#include "models/task_tokens.h"
#include "models/task_words_table.h"

enum dense {
    DENSE_LENGTH,
    DENSE_WORDS,
    DENSE_QUESTION_MARKS,
    DENSE_ENDS_WITH_QUESTION,
    DENSE_DIGITS,
    DENSE_NUMBERS,
    DENSE_NO_NUMBER,
    DENSE_LINES,
    DENSE_CODE_MARKS,
    DENSE_IDENTIFIERS,
    DENSE_HAN,
    DENSE_UPPER,
    DENSE_MATH_MARKS,
    DENSE_CHOICES,
    DENSE_SENTENCES,
    DENSE_SENTENCE_LENGTH,
    DENSE_QUOTES,
    DENSE_LOWER_START,
    DENSE_COLONS,
    DENSE_NO_CATEGORY,
    DENSE_FIXED,
};

static const char *const DENSE_NAMES[DENSE_FIXED] = {
    "length",     "words",   "question-marks", "ends-with-question", "digits", "numbers",
    "no-number",  "lines",   "code-marks",     "identifiers",        "han",    "upper-case",
    "math-marks", "choices", "sentences",      "sentence-length",    "quotes", "lower-case-start",
    "colons",     "no-list",
};

_Static_assert((int)DENSE_FIXED <= TASK_MAX_DENSE - 2 * TASK_MAX_CATEGORIES, "room for the lists");

struct task_workspace {
    uint32_t cps[TASK_MAX_CHARS];
    struct task_token tokens[TASK_MAX_CHARS];
    uint32_t lists[TASK_MAX_CHARS]; /* the word lists that a phrase over token i is in */
    uint64_t shape[TASK_MAX_CHARS]; /* what stands for token i in the shapes */
    uint64_t terms[TASK_MAX_CHARS];
    uint16_t count[TASK_N_BUCKETS]; /* all 0 between blocks */
    uint16_t index[TASK_MAX_FEATURES];
    float value[TASK_MAX_FEATURES];
};

/* One extraction in the making. */
struct maker {
    struct task_workspace *w;
    struct task_features *f;
    size_t n_tokens, n_cps;
    double squares; /* of all weights so far */
};

uint32_t task_n_dense(void) {
    return DENSE_FIXED + 2 * task_words_n_categories();
}

const char *task_block_name(enum task_block b) {
    static const char *const names[] = {"words", "characters", "places", "shapes"};
    return names[b];
}

enum status task_workspace_new(struct task_workspace **out, struct error *e) {
    *out = calloc(1, sizeof **out);
    if (*out == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for task features");
    return STATUS_OK;
}

void task_workspace_free(struct task_workspace *w) {
    free(w);
}

/* ---- hashed features ---- */

static uint64_t seeded(uint64_t kind, uint64_t hash) {
    return task_hash_add(kind + 1, hash);
}

static void emit(struct maker *m, uint64_t hash) {
    const uint16_t i = (uint16_t)(hash >> (64 - TASK_HASH_BITS));
    if (m->w->count[i]++ != 0) return;
    CHECK(m->f->n < TASK_MAX_FEATURES);
    m->w->index[m->f->n++] = i;
}

static void close_block(struct maker *m, enum task_block b) {
    struct task_features *f = m->f;
    const uint32_t first = f->block_start[b];
    float squares = 0;
    for (uint32_t k = first; k < f->n; k++) {
        const uint16_t i = m->w->index[k];
        const uint16_t count = m->w->count[i];
        m->w->count[i] = 0;
        const float v = count == 1 ? 1.0f : 1.0f + math_logf((float)count);
        m->w->value[k] = v;
        squares += v * v;
    }
    if (squares > 0) {
        const float scale = 1.0f / sqrtf(squares);
        for (uint32_t k = first; k < f->n; k++) m->w->value[k] *= scale;
    }
    m->squares += (double)squares;
    f->block_start[b + 1] = f->n;
}

static bool is_sign(const struct maker *m, size_t i, const char *signs) {
    const struct task_token *t = &m->w->tokens[i];
    if (t->kind != TASK_TOKEN_SIGN) return false;
    const uint32_t c = m->w->cps[t->first_cp];
    return c < 128 && c != 0 && strchr(signs, (int)c) != NULL;
}

static void words(struct maker *m) {
    const struct task_token *t = m->w->tokens;
    for (size_t i = 0; i < m->n_tokens; i++) {
        const uint64_t one = seeded(0, t[i].hash);
        emit(m, one);
        if (i + 1 >= m->n_tokens) continue;
        const uint64_t two = task_hash_add(one, t[i + 1].hash);
        emit(m, two);
        if (i + 2 >= m->n_tokens) continue;
        emit(m, task_hash_add(two, t[i + 2].hash));
        emit(m, task_hash_add(seeded(1, t[i].hash), t[i + 2].hash));
    }
}

static void characters(struct maker *m) {
    for (size_t i = 0; i < m->n_tokens; i++) {
        const struct task_token *t = &m->w->tokens[i];
        if (t->kind != TASK_TOKEN_WORD) continue;
        const uint32_t *cps = m->w->cps + t->first_cp;
        /* A mark before the first and after the last letter. */
        const size_t n = (size_t)t->n_cp + 2;
        for (size_t a = 0; a < n; a++) {
            uint64_t h = seeded(2, 0);
            for (size_t k = 0; k < 5 && a + k < n; k++) {
                const size_t at = a + k;
                h = task_hash_add(h, at == 0 || at == n - 1 ? ' ' : cps[at - 1]);
                if (k >= 2) emit(m, h);
            }
        }
    }
}

/* Up to three tokens from `from` on, as one, two and three. */
static void run_of(struct maker *m, uint64_t kind, size_t from, int step) {
    uint64_t h = seeded(kind, 0);
    size_t i = from;
    for (int k = 0; k < 3 && i < m->n_tokens; k++, i += (size_t)(ptrdiff_t)step) {
        h = task_hash_add(h, m->w->tokens[i].hash);
        emit(m, h);
        emit(m, task_hash_add(seeded(kind + 1, (uint64_t)k), m->w->shape[i]));
    }
}

static bool ends_sentence(const struct maker *m, size_t i) {
    return m->w->tokens[i].kind == TASK_TOKEN_BREAK || is_sign(m, i, ".?!;");
}

static void places(struct maker *m) {
    run_of(m, 10, 0, 1);
    size_t last = m->n_tokens;
    while (last > 0 && (ends_sentence(m, last - 1) || is_sign(m, last - 1, "\"')"))) last--;
    if (last > 0) run_of(m, 12, last - 1, -1);
    if (m->n_tokens > 0) emit(m, seeded(14, m->w->tokens[m->n_tokens - 1].hash));
    size_t begin = 0;
    for (size_t i = 0; i < m->n_tokens; i++) {
        if (!ends_sentence(m, i)) continue;
        if (i + 1 < last) {
            begin = i + 1;
            run_of(m, 16, begin, 1);
        }
    }
    /* What the last sentence says, whatever the text before it is about. */
    run_of(m, 18, begin, 1);
    for (size_t i = begin; i < last && i < begin + 60; i++)
        emit(m, seeded(20, m->w->tokens[i].hash));
    const uint32_t length = m->f->n_chars;
    uint32_t bucket = 0;
    while (bucket < 12 && (8u << bucket) < length) bucket++;
    emit(m, seeded(21, bucket << 1 | (m->f->han > 0.3f)));
    emit(m, seeded(22, (uint64_t)(m->f->dense[DENSE_NUMBERS] * 8) << 1 | (m->f->han > 0.3f)));
    const uint64_t question = m->f->dense[DENSE_ENDS_WITH_QUESTION] > 0;
    emit(m, seeded(23, question << 5 | bucket));
}

static void shapes(struct maker *m) {
    const uint64_t *s = m->w->shape;
    for (size_t i = 0; i < m->n_tokens; i++) {
        uint64_t h = seeded(30, s[i]);
        emit(m, h);
        for (size_t k = 1; k < 4 && i + k < m->n_tokens; k++) {
            h = task_hash_add(h, s[i + k]);
            emit(m, h);
        }
    }
}

/* ---- measures ---- */

static void find_lists(struct maker *m, const struct task_words *words_) {
    struct task_workspace *w = m->w;
    memset(w->lists, 0, m->n_tokens * sizeof w->lists[0]);
    for (size_t i = 0; i < m->n_tokens; i++) {
        uint64_t h = 0;
        for (size_t k = 0; k < TASK_PHRASE_TOKENS && i + k < m->n_tokens; k++) {
            h = task_hash_add(h, w->tokens[i + k].hash);
            const uint32_t found = task_words_find(words_, h);
            for (size_t a = 0; found != 0 && a <= k; a++) w->lists[i + a] |= found;
        }
    }
}

static void find_shapes(struct maker *m) {
    for (size_t i = 0; i < m->n_tokens; i++) {
        const struct task_token *t = &m->w->tokens[i];
        uint64_t s = (uint64_t)t->kind << 40 | m->w->lists[i];
        if (t->kind == TASK_TOKEN_SIGN || t->kind == TASK_TOKEN_NUMBER) s = t->hash;
        if (t->kind == TASK_TOKEN_WORD) s |= (uint64_t)(t->flags & TASK_TOKEN_IDENTIFIER) << 48;
        m->w->shape[i] = s;
    }
}

static float capped(double x) {
    return x >= 1 ? 1.0f : (float)x;
}

static void count_marks(struct maker *m, double *sum) {
    const struct task_token *t = m->w->tokens;
    for (size_t i = 0; i < m->n_tokens; i++) {
        switch ((enum task_token_kind)t[i].kind) {
        case TASK_TOKEN_NUMBER:
            sum[DENSE_NUMBERS] += 1;
            sum[DENSE_DIGITS] += t[i].n_cp;
            break;
        case TASK_TOKEN_WORD:
            sum[DENSE_WORDS] += 1;
            sum[DENSE_IDENTIFIERS] += (t[i].flags & TASK_TOKEN_IDENTIFIER) != 0;
            sum[DENSE_UPPER] += (t[i].flags & TASK_TOKEN_UPPER) != 0;
            break;
        case TASK_TOKEN_HAN:
            sum[DENSE_WORDS] += 0.5;
            sum[DENSE_HAN] += 1;
            break;
        case TASK_TOKEN_BREAK:
            sum[DENSE_LINES] += 1;
            break;
        case TASK_TOKEN_SIGN:
            sum[DENSE_QUESTION_MARKS] += is_sign(m, i, "?");
            sum[DENSE_CODE_MARKS] += is_sign(m, i, "{}[]();=<>_#`/&|");
            sum[DENSE_MATH_MARKS] += is_sign(m, i, "+*=^$\\/%<>-");
            sum[DENSE_QUOTES] += is_sign(m, i, "\"'");
            sum[DENSE_COLONS] += is_sign(m, i, ":");
            break;
        }
        /* "A." or "B)" at the beginning of a line */
        const bool line_start = i == 0 || t[i - 1].kind == TASK_TOKEN_BREAK;
        sum[DENSE_CHOICES] += line_start && i + 1 < m->n_tokens && t[i].n_cp == 1 &&
                              t[i].kind == TASK_TOKEN_WORD && is_sign(m, i + 1, ".):");
        sum[DENSE_SENTENCES] += ends_sentence(m, i);
    }
}

static void measures(struct maker *m) {
    double sum[DENSE_FIXED] = {0};
    count_marks(m, sum);
    float *d = m->f->dense;
    const double chars = m->n_cps > 0 ? (double)m->n_cps : 1;
    const double tokens = m->n_tokens > 0 ? (double)m->n_tokens : 1;
    const double terms = sum[DENSE_WORDS] > 0 ? sum[DENSE_WORDS] : 1;
    const double letters = sum[DENSE_HAN] + 4 * (terms - 0.5 * sum[DENSE_HAN]);
    m->f->han = (float)(sum[DENSE_HAN] / (letters > 0 ? letters : 1));
    d[DENSE_LENGTH] = capped(math_log(1 + chars) / 8);
    d[DENSE_WORDS] = capped(math_log(1 + terms) / 6);
    d[DENSE_QUESTION_MARKS] = capped(sum[DENSE_QUESTION_MARKS] / 3);
    d[DENSE_DIGITS] = capped(4 * sum[DENSE_DIGITS] / chars);
    d[DENSE_NUMBERS] = capped(sum[DENSE_NUMBERS] / 8);
    d[DENSE_NO_NUMBER] = sum[DENSE_NUMBERS] > 0 ? 0.0f : 1.0f;
    d[DENSE_LINES] = capped(sum[DENSE_LINES] / 10);
    d[DENSE_CODE_MARKS] = capped(4 * sum[DENSE_CODE_MARKS] / tokens);
    d[DENSE_IDENTIFIERS] = capped(sum[DENSE_IDENTIFIERS] / 4);
    d[DENSE_HAN] = m->f->han;
    d[DENSE_UPPER] = capped(sum[DENSE_UPPER] / terms);
    d[DENSE_MATH_MARKS] = capped(4 * sum[DENSE_MATH_MARKS] / tokens);
    d[DENSE_CHOICES] = capped(sum[DENSE_CHOICES] / 4);
    d[DENSE_SENTENCES] = capped(sum[DENSE_SENTENCES] / 8);
    d[DENSE_SENTENCE_LENGTH] = capped(terms / (1 + sum[DENSE_SENTENCES]) / 40);
    d[DENSE_QUOTES] = capped(sum[DENSE_QUOTES] / 6);
    d[DENSE_COLONS] = capped(sum[DENSE_COLONS] / 4);
    const struct task_token *t = m->w->tokens;
    if (m->n_tokens > 0) {
        d[DENSE_LOWER_START] = t[0].kind == TASK_TOKEN_WORD && !(t[0].flags & TASK_TOKEN_UPPER);
        d[DENSE_ENDS_WITH_QUESTION] = is_sign(m, m->n_tokens - 1, "?");
    }
}

static void list_measures(struct maker *m) {
    const uint32_t n_lists = task_words_n_categories();
    uint32_t counts[TASK_MAX_CATEGORIES] = {0};
    uint32_t none = 0;
    for (size_t i = 0; i < m->n_tokens; i++) {
        uint32_t mask = m->w->lists[i];
        none += mask == 0;
        for (; mask != 0; mask &= mask - 1) counts[__builtin_ctz(mask)]++;
    }
    float *d = m->f->dense;
    const double tokens = m->n_tokens > 0 ? (double)m->n_tokens : 1;
    d[DENSE_NO_CATEGORY] = capped(none / tokens);
    for (uint32_t c = 0; c < n_lists; c++) {
        d[DENSE_FIXED + 2 * c] = capped(4 * counts[c] / tokens);
        d[DENSE_FIXED + 2 * c + 1] = counts[c] > 0 ? 1.0f : 0.0f;
    }
}

static void find_terms(struct maker *m) {
    const struct task_token *t = m->w->tokens;
    uint32_t n = 0;
    for (size_t i = 0; i < m->n_tokens; i++) {
        const bool pair =
            i + 1 < m->n_tokens && t[i].kind == TASK_TOKEN_HAN && t[i + 1].kind == TASK_TOKEN_HAN;
        if (pair) m->w->terms[n++] = task_hash_add(t[i].hash, t[i + 1].hash);
        if (t[i].kind == TASK_TOKEN_WORD) m->w->terms[n++] = t[i].hash;
    }
    m->f->n_terms = n;
    m->f->terms = m->w->terms;
}

void task_features_extract(struct task_workspace *w, const struct task_words *lists,
                           const char *text, size_t len, struct task_features *out) {
    struct maker m = {.w = w, .f = out};
    memset(out, 0, sizeof *out);
    m.n_tokens = task_tokenize(text, len, TASK_MAX_CHARS, w->cps, &m.n_cps, w->tokens);
    out->n_chars = (uint32_t)m.n_cps;
    find_lists(&m, lists);
    find_shapes(&m);
    measures(&m);
    list_measures(&m);
    find_terms(&m);
    words(&m);
    close_block(&m, TASK_WORDS);
    characters(&m);
    close_block(&m, TASK_CHARACTERS);
    places(&m);
    close_block(&m, TASK_PLACES);
    shapes(&m);
    close_block(&m, TASK_SHAPES);
    out->index = w->index;
    out->value = w->value;
    out->norm = (float)sqrt(m.squares);
}

const char *task_dense_name(uint32_t i) {
    static const char *const shares[TASK_MAX_CATEGORIES] = {
#define X(name, words) name "-share",
        TASK_WORDS_LIST(X)
#undef X
    };
    static const char *const presence[TASK_MAX_CATEGORIES] = {
#define X(name, words) name "-any",
        TASK_WORDS_LIST(X)
#undef X
    };
    if (i < DENSE_FIXED) return DENSE_NAMES[i];
    if (i >= task_n_dense()) return NULL;
    return ((i - DENSE_FIXED) % 2 ? presence : shares)[(i - DENSE_FIXED) / 2];
}
