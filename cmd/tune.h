/* tune.h: the parts of `laconic tune`.
 *
 * Steps: answers (read, or generated on the spot) -> records (one pass of the full model over every
 * answer: its likeliest tokens at each position, hidden states where something is trained on them)
 * -> what is learnt from the records -> sections and report. The first two are kept in a work
 * folder beside the side-car, so that an interrupted run goes on where it stopped; the third is
 * a function of them. A run that was interrupted gives the bytes of one that was not.
 */
#ifndef LAC_CMD_TUNE_H
#define LAC_CMD_TUNE_H

#include "alloc/map.h"
#include "cmd/engine.h"
#include "core/config.h"
#include "models/chat_template.h"
#include "models/ngram_table.h"
#include "models/tokenizer.h"

enum { TUNE_TOP = STEP_TOP, TUNE_MAX_TAPS = 5 };

/* Prompt and answer as the model saw them. */
struct tune_answer {
    uint32_t *ids; /* [n] */
    uint32_t n_prompt, n, topic;
};

struct tune_topic {
    char *name;
    bool unseen; /* kept apart, to measure on */
};

struct tune_set {
    struct tune_answer *answers;
    uint32_t n_answers, cap_answers;
    struct tune_topic *topics;
    uint32_t n_topics, cap_topics;
    uint32_t n_left_out; /* too long for --ctx, or empty */
};

/* The likeliest tokens after one position, descending; ids of STEP_NONE have no probability. */
struct tune_record {
    uint32_t ids[TUNE_TOP];
    float probability[TUNE_TOP];
};

struct tune {
    const struct config *config;
    struct engine *engine;
    struct tokenizer *tokenizer;
    struct chat_template *chat_template;
    struct step *step;
    void *step_memory;
    char *work; /* the folder */
    struct tune_set set;
    uint32_t n_taps, tap_layers[TUNE_MAX_TAPS]; /* whose states the records hold */
    struct map records;
    uint64_t *record_offsets; /* [n_answers + 1] */
};

/* tune_answers.c */
enum status tune_read_answers(struct tune *t, struct error *e);
/* The prompts become answers that are not there yet; tune_generate finishes them. */
enum status tune_read_prompts(struct tune *t, struct error *e);
enum status tune_generate(struct tune *t, struct error *e);
/* Marks a fifth of the topics as unseen, at least one where there are two: those of lowest hash. */
enum status tune_split(struct tune_set *s, struct error *e);
void tune_set_free(struct tune_set *s);

/* tune_records.c */
enum status tune_record_all(struct tune *t, struct error *e);
/* The records of one answer: [n - n_prompt], for positions n_prompt ..., that is after tokens
 * n_prompt - 1 ...; and, per tap, the states of tokens 0 .. n - 2 as F16 [n - 1, d_model]. */
const struct tune_record *tune_records(const struct tune *t, uint32_t answer);
const uint16_t *tune_states(const struct tune *t, uint32_t answer, uint32_t tap);

/* tune_measure.c: what a source of drafts would have done on unseen topics. */
struct tune_draft_score {
    uint64_t positions, proposed, right; /* the first guess at every position */
    double tokens_per_step[2];           /* drafts of at most 4 and 8, all that are proposed */
};
/* table NULL: prompt lookup alone; lookup false: the table alone; else the surer of both. */
enum status tune_score_drafts(const struct tune *t, const struct ngram_table *table, bool lookup,
                              struct tune_draft_score *out, struct error *e);

/* tune_train.c: a draft block on the last layer's state, or an exit block after an early layer. */
struct tune_block {
    const char *name; /* of its checkpoint, in progress and report */
    bool draft;
    uint32_t tap; /* index into tap_layers */
    uint32_t after_layer, like_layer;
};
struct tune_block_score {
    uint64_t positions;
    double agreement;      /* its first guess is the model's likeliest token, on unseen topics */
    double agreement_seen; /* the same on as many answers that it has seen */
    double cross_entropy;  /* nats, with the model's distribution over the shortlist, unseen */
};
/* Trains on seen topics over the shortlist ids[n_ids]; seen: the shortlist of seen topics alone,
 * for the measurement. *section is malloc'ed. */
struct shortlist;
enum status tune_train_block(struct tune *t, const struct tune_block *spec, const uint32_t *ids,
                             uint32_t n_ids, const struct shortlist *seen, void **section,
                             size_t *n_bytes, struct tune_block_score *score, struct error *e);

struct tune_report {
    uint32_t n_seen, n_unseen, n_seen_topics, n_unseen_topics;
    uint64_t seen_tokens, unseen_tokens;
    double mass_held, coverage; /* of the shortlist on seen and unseen topics */
    uint64_t ngram_bytes;
    struct tune_draft_score ngram, lookup, both;
    struct tune_block_score draft_block, exit_block; /* positions 0: not trained */
    double answers_s, records_s, learn_s;
};

/* tune_report.c. times: for the screen; without them it is a function of the answers, and goes into
 * the file. */
struct buffer;
void tune_report_json(const struct tune *t, const struct tune_report *r, bool times,
                      struct buffer *out);
void tune_report_print(const struct tune *t, const struct tune_report *r);

/* tune_labels.c: `--labels`, all of it but the command line. */
enum status tune_labels(const struct config *c, struct error *e);

/* Progress on stderr, where that is a terminal. */
void tune_progress(const char *what, uint32_t done, uint32_t all);

#endif
