/* What a source of drafts would have done on the topics that were kept apart. */
#include <stdlib.h>
#include <string.h>

#include "cmd/tune.h"
#include "models/suffix_automaton.h"

struct sources {
    struct ngram_source ngram;
    bool table, lookup;
    struct suffix_automaton *suffix;
};

static void propose(const struct sources *s, const uint32_t *ids, uint32_t n, uint32_t max,
                    struct draft_proposal *out) {
    struct draft_proposal other = {0};
    out->n = 0;
    if (s->table) draft_propose(&s->ngram.source, ids, n, max, out);
    if (s->lookup) draft_propose(suffix_automaton_source(s->suffix), ids, n, max, &other);
    if (other.n > 0 && (out->n == 0 || other.confidence[0] > out->confidence[0])) *out = other;
}

static void first_guesses(const struct sources *s, const struct tune_answer *a,
                          struct tune_draft_score *out) {
    struct draft_proposal p;
    if (s->lookup) {
        suffix_automaton_clear(s->suffix);
        suffix_automaton_append(s->suffix, a->ids, a->n_prompt);
    }
    for (uint32_t i = a->n_prompt; i < a->n; i++) {
        propose(s, a->ids, i, 1, &p);
        out->positions++;
        out->proposed += p.n > 0;
        out->right += p.n > 0 && p.ids[0] == a->ids[i];
        if (s->lookup) suffix_automaton_append(s->suffix, &a->ids[i], 1);
    }
}

/* Steps of plain verification: each gives what was accepted and one token more. */
static uint64_t count_steps(const struct sources *s, const struct tune_answer *a, uint32_t max) {
    struct draft_proposal p;
    uint64_t steps = 0;
    if (s->lookup) {
        suffix_automaton_clear(s->suffix);
        suffix_automaton_append(s->suffix, a->ids, a->n_prompt);
    }
    for (uint32_t i = a->n_prompt; i < a->n;) {
        propose(s, a->ids, i, max, &p);
        uint32_t n = 0;
        while (n < p.n && i + n < a->n && p.ids[n] == a->ids[i + n]) n++;
        n = i + n < a->n ? n + 1 : n;
        if (s->lookup) suffix_automaton_append(s->suffix, a->ids + i, n);
        i += n;
        steps++;
    }
    return steps;
}

enum status tune_score_drafts(const struct tune *t, const struct ngram_table *table, bool lookup,
                              struct tune_draft_score *out, struct error *e) {
    memset(out, 0, sizeof *out);
    void *mem = NULL;
    struct sources s = {.table = table != NULL, .lookup = lookup};
    ngram_source_init(&s.ngram, table, NULL, t->engine->plan->n_vocab);
    if (lookup) {
        mem = aligned_alloc(64, suffix_automaton_footprint(t->engine->n_ctx));
        if (mem == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
        s.suffix = suffix_automaton_init(mem, t->engine->n_ctx);
    }
    static const uint32_t MOST[2] = {4, 8};
    uint64_t steps[2] = {0};
    for (uint32_t i = 0; i < t->set.n_answers; i++) {
        const struct tune_answer *a = &t->set.answers[i];
        if (!t->set.topics[a->topic].unseen) continue;
        first_guesses(&s, a, out);
        for (int k = 0; k < 2; k++) steps[k] += count_steps(&s, a, MOST[k]);
    }
    for (int k = 0; k < 2; k++)
        out->tokens_per_step[k] = steps[k] > 0 ? (double)out->positions / (double)steps[k] : 0;
    free(mem);
    return STATUS_OK;
}
