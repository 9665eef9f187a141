/* flight.h: what happened to each request, in a fixed ring of events per request slot.
 * Explanations, the journal, traces and metrics are all derived from it: one source of truth.
 *
 * A full ring overwrites its oldest events and counts them. For each kind the ring also keeps the
 * first and last time, the number of events and the sums of b and c, which nothing overwrites;
 * timings are made of those, so they hold however long an answer is. Events that say how an output
 * came to be (task, gate_policy, rollback, breaker, label, regulated, deadline,
 * choice_end) are kept besides, the first
 * FLIGHT_MAX_KEPT of them. Times are in nanoseconds of one monotonic clock, given by the caller (a
 * simulator has its own). Ownership: the caller gives flight_footprint bytes, 64-byte aligned.
 * Nothing allocates or fails; slots and kinds out of range are programmer errors. Threads: the loop
 * thread only.
 */
#ifndef LAC_CORE_FLIGHT_H
#define LAC_CORE_FLIGHT_H

#include <stddef.h>
#include <stdint.h>

/* X(code, name): the meaning of a, b, c; what is not named is 0. */
#define FLIGHT_LIST(X)                                                                             \
    X(FLIGHT_RECEIVED, "received")           /* first byte; c: connection */                       \
    X(FLIGHT_QUEUED, "queued")               /* accepted by sched_submit; b: queue depth */        \
    X(FLIGHT_TOKENISED, "tokenised")         /* b: prompt tokens; c: prompt bytes */               \
    X(FLIGHT_ADMITTED, "admitted")           /* b: pages reserved; c: policy epoch */              \
    X(FLIGHT_PREFIX_HIT, "prefix_hit")       /* b: tokens found in the cache */                    \
    X(FLIGHT_PREFILL_CHUNK, "prefill_chunk") /* a: choice; b: tokens; c: first position */         \
    X(FLIGHT_FIRST_TOKEN, "first_token")     /* a: choice; b: id */                                \
    /* a step in which the request had a part: a: spans of the step; b: its rows; c: its ns */     \
    X(FLIGHT_STEP_PREFILL, "step_prefill")                                                         \
    X(FLIGHT_STEP_DECODE, "step_decode")                                                           \
    X(FLIGHT_STEP_VERIFY, "step_verify") /* a decode with drafts behind it */                      \
    X(FLIGHT_TOKEN, "token")             /* a: choice; b: id; c: position */                       \
    X(FLIGHT_DRAFTED, "drafted")         /* a: source; b: tokens proposed; c: accepted */          \
    X(FLIGHT_GATE_POLICY, "gate_policy") /* a: trigger word; b: pages to choose; c: from */        \
    X(FLIGHT_GATE, "gate")               /* a: choice; b: pages attended to; c: of how many */     \
    X(FLIGHT_ROLLBACK, "rollback") /* a: choice; b: tokens withdrawn; c: see flight_rollback */    \
    X(FLIGHT_BREAKER, "breaker")   /* a: choice; b: rollbacks before; c: position */               \
    /* a: layers run, 0: all, scored as words; b: label; c: its probability in millionths */       \
    X(FLIGHT_LABEL, "label")                                                                       \
    /* temperature and top_p by the side-car's head; in thousandths, b: least and most top_p, 16   \
     * bits each, the least above; c: mean, least, most temperature, mean top_p, 16 bits each, the \
     * first below */                                                                              \
    X(FLIGHT_REGULATED, "regulated")                                                               \
    X(FLIGHT_AUDIT, "audit")       /* b: 1 if full depth would have answered another label */      \
    X(FLIGHT_DEADLINE, "deadline") /* the deadline ended the answer */                             \
    X(FLIGHT_COPY, "copy")         /* a page copied on write; b: page */                           \
    X(FLIGHT_PAUSED, "paused")     /* the client reads too slowly */                               \
    X(FLIGHT_RESUMED, "resumed")   /* c: ns of the pause */                                        \
    X(FLIGHT_TASK, "task") /* a: metric_task; b: probability in millionths; c: fields it set */    \
    X(FLIGHT_CHOICE_END, "choice_end") /* a: choice; b: finish reason; c: tokens */                \
    X(FLIGHT_FINISH, "finish")         /* all choices ended; b: completion tokens */               \
    X(FLIGHT_ABORT, "abort")           /* the client went away */                                  \
    X(FLIGHT_FAIL, "fail")             /* b: enum status */

#define X(code, name) code,
enum flight_kind { FLIGHT_LIST(X) FLIGHT_KIND_COUNT };
#undef X

struct flight_event {
    uint64_t t_ns;
    uint16_t kind;
    uint16_t a;
    uint32_t b;
    uint64_t c;
};

/* FLIGHT_ROLLBACK's c: where, and what the monitor saw there: entropy in nats, 0 .. 65; cosine, NaN
 * if there was none. Kept to a thousandth. */
struct flight_rollback {
    uint32_t position;
    float entropy, similarity;
};
uint64_t flight_rollback_pack(struct flight_rollback r);
struct flight_rollback flight_rollback_of(uint64_t c);

struct flight;

/* n_events: per slot, a power of two. */
size_t flight_footprint(uint32_t n_slots, uint32_t n_events);
struct flight *flight_init(void *mem, uint32_t n_slots, uint32_t n_events);

/* Empties the slot for its next request. */
void flight_clear(struct flight *f, uint32_t slot);
void flight_record(struct flight *f, uint32_t slot, uint64_t t_ns, enum flight_kind kind,
                   uint16_t a, uint32_t b, uint64_t c);

/* Events still held, oldest first: i in [0, flight_count). The pointer is good until the slot's
 * next record or clear. */
uint32_t flight_count(const struct flight *f, uint32_t slot);
const struct flight_event *flight_at(const struct flight *f, uint32_t slot, uint32_t i);
/* Events that were overwritten. */
uint64_t flight_dropped(const struct flight *f, uint32_t slot);

/* Decisions, oldest first: i in [0, flight_kept). */
enum { FLIGHT_MAX_KEPT = 48 };
uint32_t flight_kept(const struct flight *f, uint32_t slot);
const struct flight_event *flight_kept_at(const struct flight *f, uint32_t slot, uint32_t i);

/* All events of one kind since the clear, overwritten ones included. Times are 0 when n is. */
struct flight_total {
    uint64_t n, first_ns, last_ns, sum_b, sum_c;
};
struct flight_total flight_total(const struct flight *f, uint32_t slot, enum flight_kind kind);

/* 0 where an end of the interval has not happened. */
struct flight_timings {
    uint64_t tokenise_ns; /* queued to tokenised */
    uint64_t queue_ns;    /* received to admitted, without tokenise_ns */
    uint64_t prefill_ns;  /* admitted to the first token */
    uint64_t ttft_ns;     /* received to the first token */
    uint64_t decode_ns;   /* first token to the end, or to the last event so far */
    uint64_t total_ns;    /* received to the end, or to the last event so far */
    uint64_t n_steps;
    uint64_t prompt_tokens, prefix_hit_tokens, tokens;
};
struct flight_timings flight_timings(const struct flight *f, uint32_t slot);

const char *flight_kind_name(enum flight_kind kind);

#endif
