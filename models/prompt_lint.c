#include "models/prompt_lint.h"

#include <stdlib.h>
#include <string.h>

#include "models/prompt_lint_table.h"
#include "models/task_tokens.h"

static const struct {
    const char *name, *side[2];
} OPPOSITES[] = {
#define X(name, a, b) {name, {a, b}},
    LINT_OPPOSITES_LIST(X)
#undef X
};

enum {
    N_OPPOSITES = sizeof OPPOSITES / sizeof OPPOSITES[0],
    MAX_PHRASE = 6,
    SLOTS = 2048,
    /* what a phrase is; sides of opposites follow */
    IS_VAGUE = 1,
    IS_CONSTRAINT = 2,
    IS_IMPERATIVE = 4,
    IS_NEGATION = 8,
    IS_COMMON = 16,
    FIRST_SIDE = 32,
    DENIED_TOKENS = 4,
};
_Static_assert(N_OPPOSITES * 2 + 5 <= 32, "a side has one bit");

struct phrases {
    uint64_t hash[SLOTS];
    uint32_t what[SLOTS];
};

struct instruction {
    uint32_t start, end;  /* bytes */
    uint32_t first, last; /* tokens [first, last) */
    uint32_t what;
};

/* One check in the making. */
struct lint {
    const char *text;
    size_t len;
    const struct lint_options *o;
    struct lint_report *r;
    struct phrases *phrases;
    uint32_t *cps;
    struct task_token *tokens;
    uint32_t *what; /* [n] of the phrase that begins at the token, longest first */
    uint8_t *phrase_n;
    size_t n, n_cps;
    struct instruction instructions[LINT_MAX_INSTRUCTIONS];
};

struct lint_options lint_defaults(void) {
    return (struct lint_options){
        .conflict_cosine = 0.3f, .ambiguity_limit = 0.15f, .density_least = 0.5f};
}

const char *lint_kind_name(enum lint_kind k) {
    static const char *const names[] = {"conflict",      "opposites", "denied",     "vague",
                                        "unconstrained", "anchors",   "open-anchor"};
    return names[k];
}

static const char *suggestion(enum lint_kind k, bool chinese) {
    static const char *const english[] = {
        "These two instructions have little in common: keep one, or send them as two requests.",
        "These two instructions pull in opposite directions: say which one wins, or drop one.",
        "One asks for what the other forbids: say when each applies, or drop one.",
        "Say what you mean by it: a number, a name or an example.",
        "Say how long, in what form and for whom the answer should be.",
        "Keep the anchors that the answer cannot do without; five are enough.",
        "Close the anchor with </ANCHOR>.",
    };
    static const char *const in_chinese[] = {
        "这两条要求关系不大：保留一条，或分成两次请求。",
        "这两条要求互相矛盾：说明以哪条为准，或删去一条。",
        "一条要求的内容被另一条禁止：说明各自适用的情况，或删去一条。",
        "请说得具体些：给出数字、名称或例子。",
        "请说明回答的长度、格式和对象。",
        "只保留回答离不开的锚点，五个足够。",
        "请用 </ANCHOR> 结束该锚点。",
    };
    return (chinese ? in_chinese : english)[k];
}

/* ---- phrases ---- */

static void add_phrases(struct phrases *p, const char *list, uint32_t what) {
    while (*list != '\0') {
        enum { MAX_CPS = 64 };
        uint32_t cps[MAX_CPS];
        struct task_token tokens[MAX_CPS];
        size_t n_cps;
        const size_t bytes = strcspn(list, "|");
        const size_t n = task_tokenize(list, bytes, MAX_CPS, cps, &n_cps, tokens);
        uint64_t hash = 0;
        for (size_t i = 0; i < n; i++) hash = task_hash_add(hash, tokens[i].hash);
        size_t i = hash % SLOTS;
        while (p->hash[i] != 0 && p->hash[i] != hash) i = (i + 1) % SLOTS;
        p->hash[i] = hash;
        p->what[i] |= what;
        list += bytes + (list[bytes] == '|');
    }
}

static void fill_phrases(struct phrases *p) {
    add_phrases(p, LINT_VAGUE_WORDS, IS_VAGUE);
    add_phrases(p, LINT_CONSTRAINT_WORDS, IS_CONSTRAINT);
    add_phrases(p, LINT_IMPERATIVE_WORDS, IS_IMPERATIVE);
    add_phrases(p, LINT_NEGATIONS, IS_NEGATION);
    add_phrases(p, LINT_COMMON_WORDS, IS_COMMON);
    for (uint32_t i = 0; i < N_OPPOSITES; i++)
        for (uint32_t side = 0; side < 2; side++)
            add_phrases(p, OPPOSITES[i].side[side], (uint32_t)FIRST_SIDE << (2 * i + side));
}

static uint32_t find_phrase(const struct phrases *p, uint64_t hash) {
    for (size_t i = hash % SLOTS; p->hash[i] != 0; i = (i + 1) % SLOTS)
        if (p->hash[i] == hash) return p->what[i];
    return 0;
}

/* The longest phrase wins and its words are used up: "do not explain" is no "explain". */
static void find_phrases(struct lint *l) {
    for (size_t i = 0; i < l->n;) {
        uint64_t h = 0;
        size_t longest = 0;
        for (size_t k = 0; k < MAX_PHRASE && i + k < l->n; k++) {
            h = task_hash_add(h, l->tokens[i + k].hash);
            const uint32_t what = find_phrase(l->phrases, h);
            if (what == 0) continue;
            longest = k + 1;
            l->what[i] = what;
        }
        l->phrase_n[i] = (uint8_t)longest;
        i += longest ? longest : 1;
    }
}

/* ---- findings ---- */

static void add_finding(struct lint *l, struct lint_finding f) {
    struct lint_report *r = l->r;
    r->warns |= f.warning;
    f.suggestion = suggestion(f.kind, r->chinese);
    if (r->n_findings < LINT_MAX_FINDINGS) r->findings[r->n_findings++] = f;
}

static bool is_sign(const struct lint *l, size_t i, const char *signs) {
    const uint32_t c = l->cps[l->tokens[i].first_cp];
    return l->tokens[i].kind == TASK_TOKEN_SIGN && c < 128 && strchr(signs, (int)c) != NULL;
}

static void count_words(struct lint *l) {
    uint32_t han = 0, words = 0, vague_han = 0, vague = 0;
    for (size_t i = 0; i < l->n; i++) {
        const bool is_han = l->tokens[i].kind == TASK_TOKEN_HAN;
        han += is_han;
        words += l->tokens[i].kind == TASK_TOKEN_WORD || l->tokens[i].kind == TASK_TOKEN_NUMBER;
        /* A side of the opposites (brief, formal, as JSON) constrains too. */
        l->r->n_constraints +=
            (l->what[i] & ~(uint32_t)(IS_VAGUE | IS_IMPERATIVE | IS_NEGATION | IS_COMMON)) != 0;
        if ((l->what[i] & IS_VAGUE) == 0) continue;
        if (is_han)
            vague_han += l->phrase_n[i];
        else
            vague += l->phrase_n[i];
    }
    l->r->chinese = han > 2 * words;
    l->r->n_words = words + (han + 1) / 2;
    l->r->n_vague = vague + (vague_han + 1) / 2;
    if (l->r->n_words > 0) l->r->ambiguity_ratio = (double)l->r->n_vague / l->r->n_words;
    if (l->n_cps > 0) l->r->constraint_density = 100.0 * l->r->n_constraints / (double)l->n_cps;
}

static void report_vague(struct lint *l) {
    if (l->r->ambiguity_ratio <= (double)l->o->ambiguity_limit) return;
    for (size_t i = 0; i < l->n; i++) {
        if ((l->what[i] & IS_VAGUE) == 0) continue;
        add_finding(l, (struct lint_finding){.kind = LINT_VAGUE,
                                             .warning = true,
                                             .start = l->tokens[i].start,
                                             .end = l->tokens[i + l->phrase_n[i] - 1].end});
    }
}

static void report_density(struct lint *l) {
    if (l->n == 0 || l->r->constraint_density >= (double)l->o->density_least) return;
    add_finding(l, (struct lint_finding){.kind = LINT_UNCONSTRAINED, .end = (uint32_t)l->len});
}

static void report_anchors(struct lint *l) {
    static const char open[] = "<ANCHOR:", close[] = "</ANCHOR>";
    for (size_t at = 0; at < l->len;) {
        const char *a = memmem(l->text + at, l->len - at, open, sizeof open - 1);
        if (a == NULL) return;
        const size_t start = (size_t)(a - l->text), inner = start + sizeof open - 1;
        const char *next = memmem(l->text + inner, l->len - inner, open, sizeof open - 1);
        const char *c = memmem(l->text + inner, l->len - inner, close, sizeof close - 1);
        const bool closed = c != NULL && (next == NULL || c < next);
        const size_t end = closed ? (size_t)(c - l->text) + sizeof close - 1 : inner;
        l->r->n_anchors++;
        if (!closed || l->r->n_anchors > LINT_MAX_ANCHORS)
            add_finding(l, (struct lint_finding){.kind = closed ? LINT_ANCHORS : LINT_OPEN_ANCHOR,
                                                 .warning = true,
                                                 .start = (uint32_t)start,
                                                 .end = (uint32_t)end});
        at = end;
    }
}

/* ---- instructions ---- */

static void end_instruction(struct lint *l, size_t first, size_t last) {
    struct instruction in = {0};
    uint32_t words = 0;
    while (first < last && l->tokens[first].kind == TASK_TOKEN_SIGN) first++;
    if (first == last) return;
    for (size_t i = first; i < last; i++) {
        in.what |= l->what[i];
        words += l->tokens[i].kind == TASK_TOKEN_WORD || l->tokens[i].kind == TASK_TOKEN_HAN;
    }
    if (words < 2 || (in.what & ~(uint32_t)(IS_VAGUE | IS_COMMON)) == 0) return;
    in.first = (uint32_t)first;
    in.last = (uint32_t)last;
    in.start = l->tokens[first].start;
    in.end = l->tokens[last - 1].end;
    if (l->r->n_instructions < LINT_MAX_INSTRUCTIONS) l->instructions[l->r->n_instructions] = in;
    l->r->n_instructions++;
}

static void find_instructions(struct lint *l) {
    size_t first = 0;
    for (size_t i = 0; i < l->n; i++) {
        const bool ends = l->tokens[i].kind == TASK_TOKEN_BREAK || is_sign(l, i, ".!?;");
        if (!ends) continue;
        end_instruction(l, first, i);
        first = i + 1;
    }
    end_instruction(l, first, l->n);
}

static uint32_t compared(const struct lint *l) {
    const uint32_t n = l->r->n_instructions;
    return n < LINT_MAX_INSTRUCTIONS ? n : LINT_MAX_INSTRUCTIONS;
}

/* A low cosine is a hint: measured, it is as likely between instructions that go together. */
static void conflict(struct lint *l, enum lint_kind kind, uint32_t i, uint32_t j, float score) {
    const struct instruction *a = &l->instructions[i], *b = &l->instructions[j];
    add_finding(l, (struct lint_finding){.kind = kind,
                                         .warning = kind != LINT_CONFLICT,
                                         .start = a->start,
                                         .end = a->end,
                                         .other_start = b->start,
                                         .other_end = b->end,
                                         .score = score});
}

static void report_opposites(struct lint *l) {
    for (uint32_t k = 0; k < N_OPPOSITES; k++) {
        const uint32_t side[2] = {(uint32_t)FIRST_SIDE << 2 * k,
                                  (uint32_t)FIRST_SIDE << (2 * k + 1)};
        for (uint32_t i = 0; i < compared(l); i++)
            for (uint32_t j = i; j < compared(l); j++) {
                const uint32_t a = l->instructions[i].what, b = l->instructions[j].what;
                const bool against =
                    ((a & side[0]) && (b & side[1])) || ((a & side[1]) && (b & side[0]));
                if (against) conflict(l, LINT_OPPOSITES, i, j, 0);
            }
    }
}

/* What token i speaks of: a word without its plural s, or a pair of Han characters; 0: nothing. */
static uint64_t topic(const struct lint *l, size_t i) {
    const struct task_token *t = &l->tokens[i];
    if (t->kind == TASK_TOKEN_HAN)
        return i + 1 < l->n && t[1].kind == TASK_TOKEN_HAN ? task_hash_add(t->hash, t[1].hash) : 0;
    if (t->kind != TASK_TOKEN_WORD || t->n_cp < 3) return 0;
    if (l->what[i] & (uint32_t)(IS_COMMON | IS_IMPERATIVE | IS_NEGATION)) return 0;
    const uint32_t *c = l->cps + t->first_cp;
    const uint32_t n = t->n_cp > 3 && c[t->n_cp - 1] == 's' ? t->n_cp - 1 : t->n_cp;
    uint64_t h = 1;
    for (uint32_t k = 0; k < n; k++) h = task_hash_add(h, c[k]);
    return h;
}

/* Whether `b` speaks of `what` without denying it. */
static bool asks_for(const struct lint *l, const struct instruction *b, uint64_t what) {
    for (size_t i = b->first; i < b->last; i++) {
        if (l->what[i] & (uint32_t)IS_NEGATION) return false;
        if (topic(l, i) == what) return true;
    }
    return false;
}

static bool denies(const struct lint *l, const struct instruction *a, const struct instruction *b) {
    for (size_t i = a->first; i < a->last; i++) {
        if ((l->what[i] & (uint32_t)IS_NEGATION) == 0) continue;
        const size_t begin = i + l->phrase_n[i];
        for (size_t k = begin; k < a->last && k < begin + DENIED_TOKENS; k++) {
            const uint64_t what = topic(l, k);
            if (what != 0 && asks_for(l, b, what)) return true;
        }
    }
    return false;
}

static void report_denied(struct lint *l) {
    for (uint32_t i = 0; i < compared(l); i++)
        for (uint32_t j = i + 1; j < compared(l); j++) {
            const struct instruction *a = &l->instructions[i], *b = &l->instructions[j];
            if (denies(l, a, b) || denies(l, b, a)) conflict(l, LINT_DENIED, i, j, 0);
        }
}

static float dot(const float *a, const float *b, uint32_t n) {
    float sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static enum status report_conflicts(struct lint *l, struct error *e) {
    const struct encoder *enc = l->o->encoder;
    const uint32_t n = compared(l);
    if (enc == NULL || n < 2) return STATUS_OK;
    const uint32_t dim = encoder_dim(enc);
    float *v = calloc((size_t)n * dim, sizeof *v);
    if (v == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for embeddings");
    enum status st = STATUS_OK;
    for (uint32_t i = 0; i < n && st == STATUS_OK; i++) {
        uint32_t tokens;
        const struct instruction *in = &l->instructions[i];
        st = encoder_encode(enc, l->o->chore, l->text + in->start, in->end - in->start,
                            v + (size_t)i * dim, &tokens, e);
    }
    for (uint32_t i = 0; i < n && st == STATUS_OK; i++)
        for (uint32_t j = i + 1; j < n; j++) {
            const float cosine = dot(v + (size_t)i * dim, v + (size_t)j * dim, dim);
            if ((double)cosine < l->r->contradiction_score)
                l->r->contradiction_score = (double)cosine;
            if (cosine < l->o->conflict_cosine) conflict(l, LINT_CONFLICT, i, j, cosine);
        }
    l->r->embedded = st == STATUS_OK;
    free(v);
    return st;
}

static enum status run(struct lint *l, struct error *e) {
    fill_phrases(l->phrases);
    l->n = task_tokenize(l->text, l->len, l->len, l->cps, &l->n_cps, l->tokens);
    find_phrases(l);
    l->r->n_chars = (uint32_t)l->n_cps;
    l->r->contradiction_score = 1;
    count_words(l);
    find_instructions(l);
    report_opposites(l);
    report_denied(l);
    const enum status st = report_conflicts(l, e);
    report_anchors(l);
    report_density(l);
    report_vague(l);
    return st;
}

enum status prompt_lint(const char *text, size_t len, const struct lint_options *o,
                        struct lint_report *r, struct error *e) {
    memset(r, 0, sizeof *r);
    if (len > LINT_MAX_BYTES)
        return error_set(e, STATUS_TOO_LARGE, NULL, "the prompt is over %d bytes", LINT_MAX_BYTES);
    struct lint l = {.text = text, .len = len, .o = o, .r = r};
    l.phrases = calloc(1, sizeof *l.phrases);
    l.cps = calloc(len + 1, sizeof *l.cps);
    l.tokens = calloc(len + 1, sizeof *l.tokens);
    l.what = calloc(len + 1, sizeof *l.what);
    l.phrase_n = calloc(len + 1, sizeof *l.phrase_n);
    enum status st = l.phrases && l.cps && l.tokens && l.what && l.phrase_n
                         ? run(&l, e)
                         : error_set(e, STATUS_NO_MEMORY, NULL, "no memory to read the prompt");
    if (st != STATUS_OK) memset(r, 0, sizeof *r);
    free(l.phrases);
    free(l.cps);
    free(l.tokens);
    free(l.what);
    free(l.phrase_n);
    return st;
}
