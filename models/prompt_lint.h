/* prompt_lint.h: what is likely to go wrong with a prompt, before it is sent. English and Chinese.
 *
 *   contradiction_score: the lowest cosine of the sentence embeddings of two instructions; under
 * 0.3 is a conflict. This is the published measure, and it does not find contradictions: with
 *     all-MiniLM-L6-v2, of 8 pairs that contradict each other (be brief / write 2,000 words; only
 *     in French / never in French) it found none (cosines 0.33 to 0.64: they speak of one thing),
 *     and of 8 that go together it took 6 for conflicts (tests/models/test_prompt_lint.c). So it is
 *     reported as a hint, and what warns is a table of opposites (brief / detailed, JSON / prose)
 *     and a word denied in one instruction (within four tokens of "not", "never", ...) and asked
 * for in another. 1 without an encoder or with fewer than two instructions. ambiguity_ratio: vague
 * words over all words; over 0.15 warns. constraint_density: constraints (must, only, at least,
 * words, in JSON, ...) per 100 characters; under 0.5 asks for more. anchors:
 * <ANCHOR:NAME>...</ANCHOR>; more than 5 warn, as does one that is not closed.
 *
 * A word is a run of letters; two Han characters count as one word. An instruction is a sentence or
 * line with an imperative or a constraint. Limits: LINT_MAX_BYTES of text (STATUS_TOO_LARGE), the
 * first LINT_MAX_INSTRUCTIONS instructions are compared, LINT_MAX_FINDINGS findings kept. Any bytes
 * are fine. Spans are bytes of the text. STATUS_GONE: the chore was cancelled. Suggestions are
 * constant strings in the prompt's language.
 */
#ifndef LAC_MODELS_PROMPT_LINT_H
#define LAC_MODELS_PROMPT_LINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/chore.h"
#include "core/json_writer.h"
#include "core/status.h"
#include "models/encoder.h"

enum {
    LINT_MAX_BYTES = 256 << 10,
    LINT_MAX_INSTRUCTIONS = 32,
    LINT_MAX_FINDINGS = 64,
    LINT_MAX_ANCHORS = 5,
    LINT_SPAN_BYTES = 160, /* of a span's text, where a report is to stay small */
};

enum lint_kind {
    LINT_CONFLICT,      /* by embedding: score is the cosine */
    LINT_OPPOSITES,     /* by the table of opposites */
    LINT_DENIED,        /* one instruction denies a word that the other asks for */
    LINT_VAGUE,         /* one vague word; reported when ambiguity_ratio warns */
    LINT_UNCONSTRAINED, /* the whole prompt */
    LINT_ANCHORS,       /* the sixth anchor and on */
    LINT_OPEN_ANCHOR,   /* not closed */
};

struct lint_finding {
    enum lint_kind kind;
    bool warning; /* else a hint */
    uint32_t start, end;
    uint32_t other_start, other_end; /* the other side of a conflict; 0, 0: none */
    float score;
    const char *suggestion;
};

struct lint_options {
    const struct encoder *encoder; /* may be NULL */
    struct chore *chore;           /* in which the encoder yields; may be NULL */
    float conflict_cosine, ambiguity_limit, density_least;
};

struct lint_report {
    double contradiction_score, ambiguity_ratio, constraint_density;
    uint32_t n_chars, n_words, n_vague, n_constraints, n_instructions, n_anchors;
    bool chinese;  /* suggestions are in Chinese */
    bool embedded; /* contradiction_score was computed */
    bool warns;    /* a finding is a warning */
    uint32_t n_findings;
    struct lint_finding findings[LINT_MAX_FINDINGS];
};

struct lint_options lint_defaults(void);
const char *lint_kind_name(enum lint_kind k);

/* On failure *r is zeroed. */
LAC_MUST_USE enum status prompt_lint(const char *text, size_t len, const struct lint_options *o,
                                     struct lint_report *r, struct error *e);

/* {"contradiction_score", ..., "findings": [{"kind", "level", "span": {"start", "end", "text"},
 * ...}]}; a span's text is cut at `most` bytes, on a whole character. */
void prompt_lint_write(struct json_writer *j, const char *text, const struct lint_report *r,
                       size_t most);

#endif
