/* sched.h: the scheduler: owns every request, every KV page and every decision. One loop thread
 * calls everything here. No call blocks; sched_tick does a bounded amount of work.
 *
 * Life of a request: submit (bounded queue; a chore renders and tokenises) -> validated against the
 * model -> admission, earliest deadline first (slot taken, pages for prompt + n x max_tokens
 * reserved)
 * -> prefix cache -> prefill chunks -> decode -> commit -> stop strings -> sink. See
 * ARCHITECTURE.md.
 */
#ifndef LAC_SCHED_SCHED_H
#define LAC_SCHED_SCHED_H

#include "core/backend.h"
#include "core/request.h"
#include "core/status.h"

struct sched;
struct model;     /* models/model.h */
struct tokenizer; /* models/tokenizer.h */
struct chat_template;
struct encoder; /* models/encoder.h */
struct metrics;
struct flight;
struct ngram_table;   /* models/ngram_table.h */
struct gate_config;   /* sched/gate.h */
struct label_sets;    /* models/label_heads.h */
struct monitor_model; /* models/monitor_model.h */
struct policy;        /* sched/policy.h */
struct log;           /* core/log.h */
struct buffer;        /* core/buffer.h */

/* When and from what the task model may be trained anew (sched/feedback.h). */
struct sched_adapt {
    uint32_t rows, drift_reference, drift_window;
    const char *replay_path, *validation_path; /* outlive the scheduler */
    bool auto_promote;
};

enum { SCHED_POLICY_WORKSPACES = 16 };

struct sched_config {
    const struct plan *plan;
    const struct tokenizer *tokenizer;
    const struct chat_template *chat_template; /* NULL: the model has none; chat is then refused */
    const struct encoder *encoder;             /* NULL: none; EMBEDDING is then refused */
    struct backend *backend;
    struct page_pool *pages;
    struct worker_pool *workers; /* runs the chores */
    struct metrics *metrics;
    struct flight *flight; /* max_batch slots; events before admission are entered at admission */
    struct step_limits limits; /* the backend's; see sched/batch.h for the least that is needed */
    uint32_t n_ctx;
    uint32_t max_batch; /* choices that run at once; a request takes n of them */
    uint32_t max_queue; /* waiting requests, tokenised or not */
    bool prefix_cache;
    uint32_t drafts; /* sources of lossless drafts (sched/draft.h): bit per enum metric_draft */
    const struct ngram_table *ngrams; /* the deployment's, or NULL */
    const struct gate_config *gate;   /* which pages answers attend to; outlives it. NULL: all */
    /* Tasks, presets, explanations and feedback; NULL: none of it. It has workspaces for
     * SCHED_POLICY_WORKSPACES, or for the workers if they are fewer. */
    struct policy *policy;
    struct sched_adapt adapt;
    const struct log *log;               /* NULL: silent */
    bool regulates;                      /* the epoch's heads have one for regulation */
    const struct monitor_model *monitor; /* what it knows of the model; NULL: nothing; copied */
    uint64_t
        prefill_budget_ns;   /* time a step may spend on prefill beside running decodes; 0: 10 ms */
    uint64_t chore_slice_ns; /* longest run of a chore without a look at the ring; 0: 200 us */
    const uint64_t *heap_bytes; /* alloc/heap.h: counted between first and last token; or NULL */
    const struct label_sets *labels; /* models/label_heads.h, or NULL: labels are scored */
    uint64_t epoch;                  /* that the backend knows the sets' heads by; 0: none */
    uint64_t kv_domain;              /* hash of model, numerics, KV format */
    uint64_t (*now_ns)(void *arg);   /* the clock (a simulator's in tests) */
    void *now_arg;
};

/* STATUS_INVALID names the option or step limit at fault. All memory that running requests use is
 * taken here. */
enum status sched_open(const struct sched_config *cfg, struct sched **out, struct error *e);
/* Requests still there are dropped: release is called, nothing else. */
void sched_close(struct sched *s);

/* Takes the request into the queue; copies the struct, not what it points to. On STATUS_FULL (queue
 * full, or draining: then the error says so) nothing was taken and the sink is not called. */
enum status sched_submit(struct sched *s, const struct request *r, const struct request_sink *sink,
                         void *user, request_handle *out, struct error *e);
/* The client went away: stops before the next step; no more calls but release (at once or in the
 * next tick). Unknown or finished handles are ignored. May be called inside a sink's calls, as may
 * sched_submit. */
void sched_cancel(struct sched *s, request_handle h);

/* One turn: chores for their budget, admission, one step submitted and, when it is done, its tokens
 * handed out. Returns true if there is more to do now, false if only new events can make work. */
bool sched_tick(struct sched *s);

/* The time of the next deadline that needs a tick, 0 if a cancelled request waits for one,
 * UINT64_MAX if none. */
uint64_t sched_next_deadline_ns(const struct sched *s);

/* ---- the policy, for a server's side doors. Without a policy: STATUS_UNSUPPORTED. ---- */

/* The fingerprint of the epoch that a request submitted now would pin; NULL without a policy. */
const char *sched_fingerprint(const struct sched *s);
/* Why the requests of that id were answered as they were (sched/explain.h), running ones included:
 * {"id", "prompts": [...]} appended to `out`. STATUS_NOT_FOUND: not among the newest. */
enum status sched_explain(struct sched *s, struct text id, struct buffer *out, struct error *e);
/* Feedback taken in (sched/feedback.h); the reply is appended to `out`. */
enum status sched_feedback(struct sched *s, const struct request_feedback *f, struct buffer *out,
                           struct error *e);
/* Shows the policy as JSON, after publishing the candidate or going back. */
enum sched_policy_action { SCHED_POLICY_SHOW, SCHED_POLICY_PROMOTE, SCHED_POLICY_REVERT };
enum status sched_policy(struct sched *s, enum sched_policy_action action, struct buffer *out,
                         struct error *e);

void sched_drain(struct sched *s); /* refuse new requests; running ones finish */
bool sched_idle(const struct sched *s);

struct sched_stats {
    uint32_t running, queued;
    uint64_t prefix_pages;
};
struct sched_stats sched_stats(const struct sched *s);

#endif
