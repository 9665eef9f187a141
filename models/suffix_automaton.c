#include "models/suffix_automaton.h"

#include <stdbool.h>
#include <string.h>

#include "core/check.h"

#define NONE UINT32_MAX

struct state {
    uint32_t len, link;
    uint32_t end;       /* one past the last token of its first occurrence */
    uint32_t first;     /* its transitions, the newest first */
    uint32_t preferred; /* the transition that was met last, as far as was looked */
    uint32_t n_next;
};

struct transition {
    uint32_t source, token, target;
    uint32_t next_of_state, next_of_bucket;
    uint32_t old_preferred; /* the source's before this one came */
};

/* What one append changed. */
struct undo {
    uint32_t last, n_states, n_transitions, n_redirected;
    uint32_t cloned, cloned_link; /* the state whose link went to a clone, or NONE */
    uint32_t preferring, preferred;
};

struct suffix_automaton {
    struct draft_source source;
    uint32_t max_tokens, n_tokens; /* followed */
    uint32_t n_beyond;             /* appended after it stopped following */
    uint32_t last, n_states, n_transitions, n_redirected;
    uint32_t bucket_mask;
    struct state *states;           /* [2 max_tokens + 2] */
    struct transition *transitions; /* [3 max_tokens + 4] */
    struct undo *undo;              /* [max_tokens] */
    uint32_t *redirected;           /* [2 max_tokens + 2] transitions that lead to clones */
    uint32_t *buckets;              /* [bucket_mask + 1] */
};

static uint32_t n_buckets(uint32_t max_tokens) {
    uint32_t n = 64;
    while (n < 2 * max_tokens) n *= 2;
    return n;
}

static size_t padded(size_t bytes) {
    return (bytes + 63) & ~(size_t)63;
}

size_t suffix_automaton_footprint(uint32_t max_tokens) {
    CHECK(max_tokens >= 1 && max_tokens <= SUFFIX_MAX_TOKENS);
    const size_t n = max_tokens;
    return padded(sizeof(struct suffix_automaton)) + padded((2 * n + 2) * sizeof(struct state)) +
           padded((3 * n + 4) * sizeof(struct transition)) + padded(n * sizeof(struct undo)) +
           padded((2 * n + 2) * sizeof(uint32_t)) +
           padded(n_buckets(max_tokens) * sizeof(uint32_t));
}

static uint32_t *bucket_of(const struct suffix_automaton *a, uint32_t state, uint32_t token) {
    uint64_t h = ((uint64_t)state << 32 | token) * 0x9e3779b97f4a7c15u;
    h ^= h >> 29;
    return &a->buckets[(h * 0xbf58476d1ce4e5b9u >> 32) & a->bucket_mask];
}

static uint32_t find(const struct suffix_automaton *a, uint32_t state, uint32_t token) {
    for (uint32_t t = *bucket_of(a, state, token); t != NONE; t = a->transitions[t].next_of_bucket)
        if (a->transitions[t].source == state && a->transitions[t].token == token) return t;
    return NONE;
}

static uint32_t add_transition(struct suffix_automaton *a, uint32_t source, uint32_t token,
                               uint32_t target) {
    CHECK(a->n_transitions < 3 * a->max_tokens + 4);
    const uint32_t i = a->n_transitions++;
    struct state *s = &a->states[source];
    uint32_t *bucket = bucket_of(a, source, token);
    a->transitions[i] = (struct transition){source, token, target, s->first, *bucket, s->preferred};
    *bucket = i;
    s->first = s->preferred = i;
    s->n_next++;
    return i;
}

static uint32_t add_state(struct suffix_automaton *a, uint32_t len, uint32_t link, uint32_t end) {
    CHECK(a->n_states < 2 * a->max_tokens + 2);
    a->states[a->n_states] = (struct state){len, link, end, NONE, NONE, 0};
    return a->n_states++;
}

/* The clone's list keeps the order of the original's: it is filled newest first, then turned. */
static uint32_t clone_state(struct suffix_automaton *a, uint32_t of, uint32_t len) {
    const struct state from = a->states[of];
    const uint32_t clone = add_state(a, len, from.link, from.end);
    uint32_t preferred = NONE;
    for (uint32_t t = from.first; t != NONE; t = a->transitions[t].next_of_state) {
        const uint32_t copy =
            add_transition(a, clone, a->transitions[t].token, a->transitions[t].target);
        if (t == from.preferred) preferred = copy;
    }
    uint32_t turned = NONE;
    for (uint32_t t = a->states[clone].first; t != NONE;) {
        const uint32_t next = a->transitions[t].next_of_state;
        a->transitions[t].next_of_state = turned;
        turned = t;
        t = next;
    }
    a->states[clone].first = turned;
    a->states[clone].preferred = preferred;
    return clone;
}

static void extend(struct suffix_automaton *a, uint32_t token) {
    struct undo *u = &a->undo[a->n_tokens++];
    *u = (struct undo){a->last, a->n_states, a->n_transitions, a->n_redirected, NONE, NONE,
                       NONE,    NONE};
    const uint32_t cur = add_state(a, a->n_tokens, 0, a->n_tokens);
    uint32_t p = a->last, t = NONE;
    while (p != NONE && (t = find(a, p, token)) == NONE) {
        add_transition(a, p, token, cur);
        p = a->states[p].link;
    }
    if (p != NONE) {
        u->preferring = p;
        u->preferred = a->states[p].preferred;
        a->states[p].preferred = t;
        const uint32_t q = a->transitions[t].target;
        uint32_t link = q;
        if (a->states[q].len != a->states[p].len + 1) {
            link = clone_state(a, q, a->states[p].len + 1);
            u->cloned = q;
            u->cloned_link = a->states[q].link;
            while (p != NONE && (t = find(a, p, token)) != NONE && a->transitions[t].target == q) {
                CHECK(a->n_redirected < 2 * a->max_tokens + 2);
                a->redirected[a->n_redirected++] = t;
                a->transitions[t].target = link;
                p = a->states[p].link;
            }
            a->states[q].link = link;
        }
        a->states[cur].link = link;
    }
    a->last = cur;
}

static void take_back(struct suffix_automaton *a) {
    const struct undo *u = &a->undo[--a->n_tokens];
    while (a->n_redirected > u->n_redirected)
        a->transitions[a->redirected[--a->n_redirected]].target = u->cloned;
    if (u->cloned != NONE) a->states[u->cloned].link = u->cloned_link;
    if (u->preferring != NONE) a->states[u->preferring].preferred = u->preferred;
    while (a->n_transitions > u->n_transitions) {
        const struct transition *t = &a->transitions[--a->n_transitions];
        *bucket_of(a, t->source, t->token) = t->next_of_bucket;
        if (t->source >= u->n_states) continue; /* its state goes as well */
        struct state *s = &a->states[t->source];
        s->first = t->next_of_state;
        s->preferred = t->old_preferred;
        s->n_next--;
    }
    a->n_states = u->n_states;
    a->last = u->last;
}

static void source_propose(const struct draft_source *s, const uint32_t *context,
                           uint32_t n_context, uint32_t max, struct draft_proposal *out) {
    const struct suffix_automaton *a = (const struct suffix_automaton *)s;
    (void)context;
    CHECK(n_context == suffix_automaton_length(a));
    suffix_automaton_propose(a, max, out);
}

static void source_append(struct draft_source *s, const uint32_t *ids, uint32_t n) {
    suffix_automaton_append((struct suffix_automaton *)s, ids, n);
}

static void source_cut(struct draft_source *s, uint32_t n_tokens) {
    suffix_automaton_cut((struct suffix_automaton *)s, n_tokens);
}

static const struct draft_source_ops OPS = {"suffix", source_propose, source_append, source_cut};

struct suffix_automaton *suffix_automaton_init(void *mem, uint32_t max_tokens) {
    CHECK(((uintptr_t)mem & 63) == 0);
    const size_t n = max_tokens, buckets = n_buckets(max_tokens);
    struct suffix_automaton *a = mem;
    *a = (struct suffix_automaton){.source.ops = &OPS, .max_tokens = max_tokens};
    uint8_t *at = (uint8_t *)mem + padded(sizeof *a);
    a->states = (struct state *)at, at += padded((2 * n + 2) * sizeof *a->states);
    a->transitions = (struct transition *)at, at += padded((3 * n + 4) * sizeof *a->transitions);
    a->undo = (struct undo *)at, at += padded(n * sizeof *a->undo);
    a->redirected = (uint32_t *)at, at += padded((2 * n + 2) * sizeof *a->redirected);
    a->buckets = (uint32_t *)at, at += padded(buckets * sizeof *a->buckets);
    CHECK((size_t)(at - (uint8_t *)mem) == suffix_automaton_footprint(max_tokens));
    a->bucket_mask = (uint32_t)buckets - 1;
    memset(a->buckets, 0xff, buckets * sizeof *a->buckets);
    add_state(a, 0, NONE, 0);
    return a;
}

void suffix_automaton_clear(struct suffix_automaton *a) {
    for (uint32_t i = 0; i < a->n_transitions; i++)
        *bucket_of(a, a->transitions[i].source, a->transitions[i].token) = NONE;
    a->n_tokens = a->n_beyond = a->last = 0;
    a->n_states = a->n_transitions = a->n_redirected = 0;
    add_state(a, 0, NONE, 0);
}

struct draft_source *suffix_automaton_source(struct suffix_automaton *a) {
    return &a->source;
}

void suffix_automaton_append(struct suffix_automaton *a, const uint32_t *ids, uint32_t n) {
    CHECK(n <= UINT32_MAX - suffix_automaton_length(a));
    for (uint32_t i = 0; i < n; i++) {
        if (a->n_beyond > 0 || a->n_tokens == a->max_tokens)
            a->n_beyond++;
        else
            extend(a, ids[i]);
    }
}

void suffix_automaton_cut(struct suffix_automaton *a, uint32_t n_tokens) {
    CHECK(n_tokens <= suffix_automaton_length(a));
    a->n_beyond = n_tokens > a->n_tokens ? n_tokens - a->n_tokens : 0;
    while (a->n_tokens > n_tokens) take_back(a);
}

uint32_t suffix_automaton_length(const struct suffix_automaton *a) {
    return a->n_tokens + a->n_beyond;
}

uint32_t suffix_automaton_match(const struct suffix_automaton *a, uint32_t *end) {
    *end = 0;
    if (a->n_beyond > 0 || a->n_tokens == 0) return 0;
    const struct state *s = &a->states[a->states[a->last].link];
    *end = s->end;
    return s->len;
}

/* How often the token after a match of that length is right, where only one ever followed: priors
 * of the shape that copying text shows; the scheduler's measured acceptance corrects them. */
static float match_confidence(uint32_t length) {
    static const float BY_LENGTH[] = {0.05f, 0.3f, 0.5f, 0.62f, 0.7f, 0.76f, 0.8f, 0.84f, 0.87f};
    return length < 9 ? BY_LENGTH[length] : length < 16 ? 0.9f : 0.94f;
}

void suffix_automaton_propose(const struct suffix_automaton *a, uint32_t max,
                              struct draft_proposal *out) {
    memset(out, 0, sizeof *out);
    if (a->n_beyond > 0 || a->n_tokens == 0) return;
    if (max > DRAFT_MAX_TOKENS) max = DRAFT_MAX_TOKENS;
    uint32_t at = a->states[a->last].link, length = a->states[at].len;
    while (out->n < max && length > 0) {
        const struct state *s = &a->states[at];
        if (s->n_next == 0) {
            at = s->link;
            length = a->states[at].len;
            continue;
        }
        const struct transition *t = &a->transitions[s->preferred];
        out->ids[out->n] = t->token;
        out->confidence[out->n++] = match_confidence(length) * 2 / (float)(1 + s->n_next);
        at = t->target;
        length++;
    }
}
