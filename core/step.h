/* step.h: what one pass of the model computes, as data. The scheduler fills a step, the backend
 * runs it without asking back, and writes the outputs into it.
 *
 * Shape: spans are runs of consecutive positions of one sequence; their tokens are the step's rows,
 * span after span. Everything is in flat arrays indexed by u32, with no pointers from span to span,
 * so a GPU backend copies the arrays into one pinned block that its graph reads; the graph depends
 * on bucketed counts only. The pointers there are (a sample spec's lists, a tap's destination) lead
 * to the host's memory. Spans of different kinds, profiles and sequences mix freely.
 *
 * Order inside a step: page copies and slot copies, then spans. A span's KV is written at its
 * positions before its rows attend; a row attends to positions <= its own. A position may be
 * written again by a later step (rollback, rejected draft): nothing after the last written position
 * is read. Two spans of one step never write the same page; a span may read pages that others read.
 *
 * Bits: an output is a function of (plan, numerics, the sequence's tokens, its profile, its sample
 * spec). It does not depend on what else is in the step, on how the sequence was cut into spans, on
 * the number of threads, or on the instruction set.
 *
 * Memory: the caller owns the step (step_footprint, step_init); arrays have the fixed capacities of
 * step_limits. Pointers inside a sample spec stay valid and unchanged from submit to completion.
 *
 * Depth. A row runs the layers of its profile from first_layers[row] on and leaves at the first
 * decision point whose threshold it passes (its span's exit policy). That is known on the device
 * only, so what an exited row still owes is data too: it goes on running layer l (with the same
 * bits as if it had never left) iff a later row of its span runs l, or the span says `pay`; its
 * output stays the one drawn where it left. next_layers[row] says where it stands after the step;
 * if that is not n_layers and its policy does not fill, its hidden state is kept in the slot's
 * carry row carry_rows[row], from which a later step resumes it (first_layers[row] =
 * next_layers[row]). Since the rows of a span ascend in position, a row that runs deeper than the
 * owed ones before it pays for them in the same layer, before its own attention reads their keys.
 *
 * Guesses. Where the plan has blocks (core/plan.h), every span of full depth that is not ENCODE has
 * the blocks' keys and values written for its rows, from block_from on and as long as the token
 * behind a row is known: it is the row's drawn token (an output without a target), else the span's
 * next token, else next_id. Behind the first row whose drawn token is not the span's next one
 * nothing is known. With max_guesses > 0 the block then goes on by itself from the last known token
 * and hands back the tokens it thinks will follow. What it writes for them (the blocks' pages,
 * under EXIT also the model's own) stands behind the span, where a later step writes again before
 * it reads: the block table must reach that far, and the pages must be the span's own.
 */
#ifndef LAC_CORE_STEP_H
#define LAC_CORE_STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/check.h"
#include "core/plan.h"
#include "core/rng.h"
#include "core/status.h"

enum {
    STEP_TOP = 20,         /* best ids reported with every output */
    STEP_CARRY_ROWS = 8,   /* hidden states kept per slot: the most a sequence may owe */
    STEP_GATE_REFRESH = 5, /* page choices are made at positions divisible by it */
    STEP_GATE_KEPT = 80,   /* positions whose choices a slot keeps; more than may be withdrawn */
    STEP_GATE_ROWS = 64,   /* most rows of a span at or behind its gate's first_position */
    STEP_GUESSES = 8,      /* most guesses of a span */
    STEP_CHAINS = 32,      /* most spans of a step that guess; later ones get none */
};
#define STEP_NONE UINT32_MAX
enum step_regulate { STEP_REGULATE_TEMPERATURE = 1, STEP_REGULATE_TOP_P = 2 };

/* All kinds compute the same thing; the kind names the purpose, for metrics and explanations.
 * SETTLE resumes rows whose first layers were computed by an earlier step. */
enum span_kind {
    SPAN_PREFILL,
    SPAN_DECODE,
    SPAN_VERIFY,
    SPAN_SETTLE,
    SPAN_ENCODE,
    SPAN_KIND_COUNT
};

/* Which layers a row runs, and where it may stop. Profile 0 of every step is full depth. */
struct depth_profile {
    uint64_t layers[PLAN_MAX_LAYERS / 64];          /* bit l: layer l runs */
    uint64_t decision_points[PLAN_MAX_LAYERS / 64]; /* bit l: may end after layer l */
};

struct span {
    enum span_kind kind;
    uint32_t slot;           /* the choice: selects what the backend keeps of a sequence */
    uint32_t first_position; /* absolute position of its first token */
    uint32_t n_tokens;       /* >= 1 */
    uint32_t first_row;      /* index of its first token among the step's rows */
    /* Per layer group: block_table[group] is the index, in step.pages, of the page that holds
     * position 0; page i holds positions [16 i, 16 i + 16). Pages that no row of this span can see
     * (before the window) may be PAGE_NONE. */
    uint32_t block_table[PLAN_MAX_GROUPS];
    uint32_t n_pages; /* entries per group */
    uint32_t profile; /* index into step.profiles */
    uint32_t exit;    /* index into step.exits, or STEP_NONE */
    uint32_t gate;    /* index into step.gates, or STEP_NONE: full attention */
    bool pay;         /* rows that exited run on to the end of their profile */
    /* Guesses. least_reach: none behind one that leaves less than this probability that it and all
     * before it are right. guesses[i] follows the token behind the last known row. */
    uint32_t next_id;      /* the token behind the span's last one, or STEP_NONE */
    uint32_t block_from;   /* blocks need no keys of the span's tokens before this one */
    enum block_kind block; /* who guesses */
    uint32_t max_guesses;  /* at most STEP_GUESSES; 0: nobody */
    float least_reach;
    uint32_t n_guesses, first_guess; /* answered: in step.guesses */
};

/* A guessed token and its probability, given that those before it are right. */
struct guess {
    uint32_t id;
    float probability;
};

/* May a row end early: thresholds by decision point, compared in FP32. */
struct exit_policy {
    uint32_t head; /* first of the epoch's heads (backend publish); later ones follow by rank */
    float threshold[32]; /* by rank of the decision point */
    bool filled;         /* K and V of skipped layers come from fitted maps (else they are owed) */
};

/* A span that is only to be classified. Its exit policy names the first of the label heads
 * (core/heads.h), its profile runs to the layer of the last of them, and the heads' layers are its
 * decision points: after each the next head looks at the mean over the message's rows, and at the
 * first whose confidence reaches the threshold, or at the last, the span ends, all rows together.
 * It owes nothing; of its pages the layers behind are not written, so nothing may be built on them.
 * The whole message is one span. An audited one runs on to the last head, whose likeliest label is
 * told beside; what it answers otherwise is the same. */
struct label_look {
    uint32_t span;              /* index among the step's spans */
    uint32_t first_row, n_rows; /* the message, rows of that span; none: its mean is 0 */
    const float *prior;         /* [n_labels], or NULL; caller's */
    bool audit;
    /* answered */
    float *probability; /* [n_labels], caller's */
    uint16_t layer;     /* the layers that the answer took */
    bool early;         /* it was given before the last head */
    bool bad;           /* not finite: nothing else here may be used */
    /* early and audited: the last head's likeliest (ties to the lower); STEP_NONE: not finite */
    uint32_t last_label;
};

/* Which pages a row attends to in layers >= dense_layers without a window, from first_position on
 * (rows before it attend to everything). A choice is made per layer and KV head with the query of
 * one position and serves the positions after it: position p uses that of c = max(first_position,
 * p - p % STEP_GATE_REFRESH). Always: the first sink_pages (>= 1) of the sequence, the anchors, the
 * page of c with the recent_pages - 1 before it, and all pages behind. The others are candidates
 * (they are whole by then, sealed or not): the gate_budget best by score, ties to the lower page.
 * Choices are kept in the slot by position, STEP_GATE_KEPT positions back, so verifying k tokens
 * chooses what decoding them would, and a rollback within that finds them again. */
struct gate_policy {
    uint32_t first_position;
    uint32_t sink_pages, recent_pages;
    uint32_t first_anchor, n_anchors; /* range in step.gate_pages (page indices of the sequence) */
    /* Pages to choose: budget_pages, and budget_share of every 1,024 pages there are at c; together
     * budget_least at least. */
    uint32_t budget_pages, budget_share, budget_least;
    uint32_t dense_layers; /* first layers with full attention */
};

static inline uint32_t gate_choice_position(const struct gate_policy *g, uint32_t position) {
    const uint32_t at = position - position % STEP_GATE_REFRESH;
    return at > g->first_position ? at : g->first_position;
}
/* The first page of the recent window of a choice. */
static inline uint32_t gate_recent_page(const struct gate_policy *g, uint32_t choice_position) {
    const uint32_t own = choice_position / KV_PAGE_TOKENS;
    return own + 1 > g->recent_pages ? own + 1 - g->recent_pages : 0;
}
static inline uint32_t gate_budget(const struct gate_policy *g, uint32_t choice_position) {
    const uint64_t there = choice_position / KV_PAGE_TOKENS + 1;
    const uint32_t pages = g->budget_pages + (uint32_t)(there * g->budget_share / 1024);
    return pages > g->budget_least ? pages : g->budget_least;
}

struct sample_bias {
    uint32_t id;
    float divisor; /* a positive logit is divided by it, a negative one multiplied; 1 = none */
    float delta;   /* then added */
};

/* How one token is drawn from a row's logits. Order: allowed, bias, temperature, top-k, top-p,
 * min-p, inverse-CDF draw in id order over fixed-point masses (core/sample.h says exactly). */
struct sample_spec {
    uint64_t seed;
    uint32_t choice;  /* index among n */
    uint32_t attempt; /* 0, then 1, 2, ... after rollbacks of this position */
    enum rng_purpose purpose;
    uint32_t target;   /* report this id's logprob and return it as the token; STEP_NONE: draw */
    float temperature; /* 0: arg-max, ties to the lower id */
    uint32_t top_k;    /* 0 or >= n_vocab: off */
    float top_p;       /* >= 1: off */
    /* enum step_regulate bits: the epoch's regulation head (core/heads.h) says temperature or top_p
     * from the row's state, and the backend writes it here. */
    uint32_t regulate;
    float min_p;                      /* 0: off */
    const uint64_t *allowed;          /* [ceil(n_vocab / 64)], or NULL: all */
    const struct sample_bias *biases; /* [n_biases], ids ascending, each at most once */
    uint32_t n_biases;
};

struct top_logit {
    uint32_t id;
    float logit;
};

/* One drawn token. Several outputs may name the same row (n choices after one prompt). */
struct output {
    /* asked */
    uint32_t row; /* the step's row whose logits are used; the token stands at its position + 1 */
    /* Whose logits: STEP_NONE the model's own head, else one of the epoch's heads. A row that left
     * at a decision point uses its exit's head. first_layers[row] == n_layers: this head alone,
     * over the row's carried state. */
    uint32_t head;
    struct sample_spec sample;
    /* answered; logprob, lse, top and entropy are those of the raw logits */
    uint32_t token;
    float logprob;                  /* natural log, of `token` */
    float lse;                      /* log-sum-exp of the logits */
    float entropy;                  /* nats */
    float cosine;                   /* with the prompt embedding: NaN from a backend; the
                                       scheduler's monitor fills it in from its tap */
    uint16_t layer;                 /* layers that the row ran */
    bool bad;                       /* a logit was not finite: nothing else here may be used */
    struct top_logit top[STEP_TOP]; /* logits descending, ties to the lower id */
};

/* Hidden states after a layer, handed back as F32. SUM adds the rows, in order, to the sums of
 * their pages, so that what is summed up does not depend on how a prompt was cut into spans; the
 * caller zeroes a page's sum before its first position. */
enum tap_mode { TAP_KEEP, TAP_SUM };
struct tap {
    uint32_t layer;             /* after this layer; n_layers: after the output norm */
    uint32_t first_row, n_rows; /* of one span */
    enum tap_mode mode;
    bool normalised; /* each row is divided by its root mean square (plan's epsilon) first */
    float *out;      /* KEEP: [n_rows, d_model]; SUM: [pages the rows touch, d_model]. Caller's */
};

struct page_copy {
    uint32_t group, from, to;
};

/* A forked choice takes over what the backend keeps of the other: carry rows, page choices, the
 * monitor's last states. */
struct slot_copy {
    uint32_t from, to;
};

struct step_limits {
    uint32_t max_spans, max_rows, max_outputs, max_pages, max_copies, max_taps;
    uint32_t max_slot_copies, max_profiles, max_exits, max_gates, max_gate_pages, max_looks;
    /* Over all outputs of a step, and rows over all taps: a device backend sizes its block by them.
     */
    uint32_t max_biases, max_bitmaps, max_tap_rows;
    uint32_t max_guesses; /* over all spans */
};

struct step {
    struct step_limits limits;
    uint32_t n_spans, n_rows, n_outputs, n_pages, n_copies, n_taps;
    uint32_t n_slot_copies, n_profiles, n_exits, n_gates, n_gate_pages, n_looks;
    uint64_t epoch; /* whose heads are meant */
    struct span *spans;
    uint32_t *ids;          /* [n_rows] */
    uint16_t *first_layers; /* [n_rows] 0: from the embedding of ids; else from carry_rows */
    uint8_t *carry_rows;    /* [n_rows] of the span's slot: read (first_layers > 0), and written */
    uint32_t *pages;        /* block tables */
    struct output *outputs; /* rows ascending */
    struct page_copy *copies;
    struct slot_copy *slot_copies;
    struct tap *taps;
    struct depth_profile *profiles;
    struct exit_policy *exits;
    struct label_look *looks; /* at most one per span */
    struct gate_policy *gates;
    uint32_t *gate_pages;
    /* answered */
    uint32_t n_guesses;
    struct guess *guesses; /* those of one span stand together */
    uint16_t *next_layers; /* [n_rows] the layer that the row runs next; n_layers: none */
    enum status status;    /* STATUS_DEVICE: no output may be used, pages written are suspect */
    uint64_t submit_ns, done_ns;
};

size_t step_footprint(const struct step_limits *limits);
struct step *step_init(void *mem, const struct step_limits *limits);
/* Empty again, with profile 0 = all n_layers. */
void step_clear(struct step *s, uint32_t n_layers);
/* Appends a zeroed span with STEP_NONE fields and its rows; CHECKs the limits. ids are copied. */
struct span *step_add_span(struct step *s, enum span_kind kind, uint32_t slot,
                           uint32_t first_position, const uint32_t *ids, uint32_t n_tokens);
/* Appends an output of the full head with purpose RNG_SAMPLE, arg-max, no target. */
struct output *step_add_output(struct step *s, uint32_t row);

#endif
