/* explain.h: why a request's answer is what it is, and what its time went to: a record per request,
 * made from its flight record and its policy decision when it ends, kept in a ring of the newest.
 *
 * A client names a request by the id that its answer carried; several prompts of one completion
 * share an id. Ids are hard to guess; whoever knows one may read the record.
 * The beginnings of the user's texts are kept beside (EXPLAIN_TEXT_BYTES in all), so that labelled
 * feedback can become training rows; a text may be gone before its record is.
 *
 * Memory: all of it is taken by explain_open; about 2.5 KB a record. Nothing else allocates.
 * Threads: the loop thread only.
 */
#ifndef LAC_SCHED_EXPLAIN_H
#define LAC_SCHED_EXPLAIN_H

#include "core/flight.h"
#include "core/json_writer.h"
#include "core/metric.h"
#include "core/request.h"
#include "sched/policy.h"

enum {
    EXPLAIN_RECORDS = 1000,
    EXPLAIN_ID_BYTES = 48,
    EXPLAIN_TEXT_BYTES = 4 << 20,
    EXPLAIN_TEXT_MAX = 4 * TASK_MAX_CHARS, /* of one request */
};

struct explain_record {
    char id[EXPLAIN_ID_BYTES]; /* "": empty */
    bool running;
    enum metric_outcome outcome; /* unless it runs */
    uint64_t seed;
    float temperature, top_p; /* as drawn with */
    uint32_t top_k, n_choices, n_labels;
    enum finish_reason reasons[REQUEST_MAX_CHOICES]; /* of choices that have ended */
    bool ended[REQUEST_MAX_CHOICES];
    uint32_t epoch;
    enum policy_kind policy;
    char fingerprint[POLICY_FINGERPRINT_BYTES];
    struct policy_decision decision;
    char labels[TASK_MAX_CLASSES][TASK_MAX_LABEL_BYTES + 1]; /* of the model's classes */
    struct flight_timings timings;
    struct flight_total totals[FLIGHT_KIND_COUNT];
    uint64_t least_decode_ns; /* the quickest that the flight record still held; 0: none */
    uint32_t n_kept;
    struct flight_event kept[FLIGHT_MAX_KEPT];
    bool labelled;    /* feedback told its task */
    uint64_t text_at; /* private, as is text_len */
    uint32_t text_len;
};

/* The request that a slot of the flight record is of. */
struct explain_what {
    const struct request *request; /* after presets */
    const struct policy_decision *decision;
    const struct policy_epoch *epoch;
    uint64_t seed;
};

struct explain;

LAC_MUST_USE enum status explain_open(uint32_t n_records, struct explain **out, struct error *e);
void explain_close(struct explain *x); /* NULL: nothing */

/* The record as of now, without its text. */
void explain_fill(struct explain_record *r, const struct flight *f, uint32_t slot,
                  const struct explain_what *w);
/* The request has ended. One without an id is not kept. */
void explain_keep(struct explain *x, const struct flight *f, uint32_t slot,
                  const struct explain_what *w, enum metric_outcome outcome);

/* The nth record (from 0, oldest first) of that id; NULL: there are no more. Good until the next
 * explain_keep. */
const struct explain_record *explain_find(const struct explain *x, struct text id, uint32_t nth);
/* The text's beginning; "" when it is gone. */
struct text explain_text(const struct explain *x, const struct explain_record *r);

void explain_mark_labelled(struct explain *x, const struct explain_record *r);

/* One JSON object, about 3 KB. */
void explain_write(struct json_writer *j, const struct explain_record *r);

#endif
