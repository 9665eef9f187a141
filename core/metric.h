/* metric.h: the numbers at /metrics, as one table, and their text form for Prometheus.
 *
 * Every metric has a fixed set of label values, so nothing here allocates and a scrape always shows
 * the same series. Times are kept in nanoseconds and shown in seconds; histograms show the bounds
 * of core/histogram.h, 100 us to 60 s. Requests reconcile: started = finished + aborted + failed +
 * running, always.
 * Threads: the loop thread only; plain cells, no locks.
 */
#ifndef LAC_CORE_METRIC_H
#define LAC_CORE_METRIC_H

#include <stdbool.h>
#include <stdint.h>

#include "core/buffer.h"
#include "core/histogram.h"

/* The format and encoding of metric_render's text, for the Content-Type field. */
#define METRIC_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* Label sets. X(code, value); the code is the label index for metric_add and its relatives. */
#define METRIC_OUTCOME_LIST(X)                                                                     \
    X(METRIC_FINISHED, "finished")                                                                 \
    X(METRIC_ABORTED, "aborted")                                                                   \
    X(METRIC_FAILED, "failed")
#define METRIC_TASK_LIST(X)                                                                        \
    X(METRIC_TASK_DETERMINISTIC, "deterministic")                                                  \
    X(METRIC_TASK_OPEN, "open")                                                                    \
    X(METRIC_TASK_REASONING, "reasoning")                                                          \
    X(METRIC_TASK_CODE, "code")                                                                    \
    X(METRIC_TASK_CLASSIFY, "classify")                                                            \
    X(METRIC_TASK_QA, "qa")                                                                        \
    X(METRIC_TASK_NONE, "none") /* no text to classify, or the task model was not sure */
#define METRIC_REASON_LIST(X)                                                                      \
    X(METRIC_SHED_FULL, "full")         /* the queue was full */                                   \
    X(METRIC_SHED_DEADLINE, "deadline") /* could not start in time */                              \
    X(METRIC_SHED_DRAINING, "draining") /* the server is shutting down */                          \
    X(METRIC_SHED_GONE, "gone")         /* the client left while it waited */
#define METRIC_STEP_LIST(X)                                                                        \
    X(METRIC_STEP_PREFILL, "prefill")                                                              \
    X(METRIC_STEP_DECODE, "decode")                                                                \
    X(METRIC_STEP_MIXED, "mixed")
#define METRIC_PAGE_LIST(X)                                                                        \
    X(METRIC_PAGES_FREE, "free")                                                                   \
    X(METRIC_PAGES_USED, "used")                                                                   \
    X(METRIC_PAGES_CACHED, "cached")                                                               \
    X(METRIC_PAGES_RESERVED, "reserved")
#define METRIC_DRAFT_LIST(X)                                                                       \
    X(METRIC_DRAFT_SUFFIX, "suffix")     /* an earlier place in prompt and answer */               \
    X(METRIC_DRAFT_NGRAM, "ngram")       /* earlier answers */                                     \
    X(METRIC_DRAFT_BLOCK, "draft-block") /* a learnt block on the last state */                    \
    X(METRIC_DRAFT_EXIT, "exit-block")   /* a learnt block after an early layer */
#define METRIC_DRAFT_OUTCOME_LIST(X)                                                               \
    X(METRIC_DRAFT_ACCEPTED, "accepted")                                                           \
    X(METRIC_DRAFT_REJECTED, "rejected")
#define METRIC_AUDIT_FORM_LIST(X) X(METRIC_AUDIT_LABEL, "label") /* answers of label heads */
#define METRIC_AUDIT_OUTCOME_LIST(X)                                                               \
    X(METRIC_AUDIT_AGREED, "agreed")                                                               \
    X(METRIC_AUDIT_DIFFERED, "differed")
#define METRIC_CODE_LIST(X)                                                                        \
    X(METRIC_CODE_200, "200")                                                                      \
    X(METRIC_CODE_204, "204")                                                                      \
    X(METRIC_CODE_400, "400")                                                                      \
    X(METRIC_CODE_401, "401")                                                                      \
    X(METRIC_CODE_403, "403")                                                                      \
    X(METRIC_CODE_404, "404")                                                                      \
    X(METRIC_CODE_405, "405")                                                                      \
    X(METRIC_CODE_408, "408")                                                                      \
    X(METRIC_CODE_411, "411")                                                                      \
    X(METRIC_CODE_413, "413")                                                                      \
    X(METRIC_CODE_414, "414")                                                                      \
    X(METRIC_CODE_415, "415")                                                                      \
    X(METRIC_CODE_417, "417")                                                                      \
    X(METRIC_CODE_429, "429")                                                                      \
    X(METRIC_CODE_431, "431")                                                                      \
    X(METRIC_CODE_500, "500")                                                                      \
    X(METRIC_CODE_501, "501")                                                                      \
    X(METRIC_CODE_503, "503")                                                                      \
    X(METRIC_CODE_504, "504")                                                                      \
    X(METRIC_CODE_505, "505")                                                                      \
    X(METRIC_CODE_OTHER, "other")

#define X(code, value) code,
enum metric_outcome { METRIC_OUTCOME_LIST(X) METRIC_OUTCOME_COUNT };
enum metric_task { METRIC_TASK_LIST(X) METRIC_TASK_COUNT };
enum metric_reason { METRIC_REASON_LIST(X) METRIC_REASON_COUNT };
enum metric_step { METRIC_STEP_LIST(X) METRIC_STEP_COUNT };
enum metric_page { METRIC_PAGE_LIST(X) METRIC_PAGE_COUNT };
enum metric_code { METRIC_CODE_LIST(X) METRIC_CODE_COUNT };
enum metric_draft { METRIC_DRAFT_LIST(X) METRIC_DRAFT_COUNT };
enum metric_draft_outcome { METRIC_DRAFT_OUTCOME_LIST(X) METRIC_DRAFT_OUTCOME_COUNT };
enum metric_audit_form { METRIC_AUDIT_FORM_LIST(X) METRIC_AUDIT_FORM_COUNT };
enum metric_audit_outcome { METRIC_AUDIT_OUTCOME_LIST(X) METRIC_AUDIT_OUTCOME_COUNT };
#undef X

/* Series per label set. */
enum {
    METRIC_N_PLAIN = 1,
    METRIC_N_OUTCOME_TASK = METRIC_OUTCOME_COUNT * METRIC_TASK_COUNT,
    METRIC_N_REASON = METRIC_REASON_COUNT,
    METRIC_N_STEP = METRIC_STEP_COUNT,
    METRIC_N_PAGE = METRIC_PAGE_COUNT,
    METRIC_N_CODE = METRIC_CODE_COUNT,
    METRIC_N_DRAFT = METRIC_DRAFT_COUNT * METRIC_DRAFT_OUTCOME_COUNT,
    METRIC_N_TASK = METRIC_TASK_COUNT,
    METRIC_N_AUDIT = METRIC_AUDIT_FORM_COUNT * METRIC_TASK_COUNT * METRIC_AUDIT_OUTCOME_COUNT,
    METRIC_N_INFO = 1,
};

/* X(code, COUNTER|GAUGE|HISTOGRAM, name, label set, help) */
#define METRIC_LIST(X)                                                                             \
    X(METRIC_REQUEST_STARTED, COUNTER, "laconic_request_started_total", PLAIN,                     \
      "Requests admitted: a slot taken and pages reserved.")                                       \
    X(METRIC_REQUEST, COUNTER, "laconic_request_total", OUTCOME_TASK,                              \
      "Requests that ended after they had started.")                                               \
    X(METRIC_SHED, COUNTER, "laconic_shed_total", REASON,                                          \
      "Requests that ended before they could start.")                                              \
    X(METRIC_REJECTED, COUNTER, "laconic_rejected_total", PLAIN,                                   \
      "Requests refused as wrong (4xx) before they could start.")                                  \
    X(METRIC_TIME_TO_FIRST_TOKEN, HISTOGRAM, "laconic_time_to_first_token_seconds", PLAIN,         \
      "From the first byte received to the first token committed.")                                \
    X(METRIC_INTER_TOKEN, HISTOGRAM, "laconic_inter_token_seconds", PLAIN,                         \
      "Between two tokens committed to one answer.")                                               \
    X(METRIC_REQUEST_TIME, HISTOGRAM, "laconic_request_seconds", PLAIN,                            \
      "From the first byte received to the end of the answer.")                                    \
    X(METRIC_STEP_TIME, HISTOGRAM, "laconic_step_seconds", STEP, "One step of the backend.")       \
    X(METRIC_LOOP_GAP, HISTOGRAM, "laconic_loop_gap_seconds", PLAIN,                               \
      "Time between two looks at the ring while there was work.")                                  \
    X(METRIC_QUEUE_DEPTH, GAUGE, "laconic_queue_depth", PLAIN, "Requests that wait to start.")     \
    X(METRIC_RUNNING, GAUGE, "laconic_running", PLAIN, "Requests that have started, not ended.")   \
    X(METRIC_KV_PAGES, GAUGE, "laconic_kv_pages", PAGE,                                            \
      "KV pages: free (of them reserved), used by sequences, cached for reuse.")                   \
    X(METRIC_PREFIX_HIT_TOKENS, COUNTER, "laconic_prefix_hit_tokens_total", PLAIN,                 \
      "Prompt tokens found in the prefix cache.")                                                  \
    X(METRIC_PROMPT_TOKENS, COUNTER, "laconic_prompt_tokens_total", PLAIN,                         \
      "Prompt tokens of started requests.")                                                        \
    X(METRIC_COMPLETION_TOKENS, COUNTER, "laconic_completion_tokens_total", PLAIN,                 \
      "Tokens committed to answers.")                                                              \
    X(METRIC_DRAFT_TOKENS, COUNTER, "laconic_draft_tokens_total", DRAFT,                           \
      "Tokens proposed by a source and verified.")                                                 \
    X(METRIC_EXIT_LAYER, HISTOGRAM, "laconic_exit_layer", PLAIN,                                   \
      "Layers after which a request with label heads had its answer.")                             \
    X(METRIC_AUDIT, COUNTER, "laconic_audit_total", AUDIT,                                         \
      "Early answers that were compared with those of full depth.")                                \
    X(METRIC_EXIT_OFF, GAUGE, "laconic_exit_off", PLAIN,                                           \
      "Sets of label heads that audits have switched to full depth.")                              \
    X(METRIC_MASK_HIT_RATE, GAUGE, "laconic_dynamic_mask_hit_rate", PLAIN,                         \
      "Share of gated positions that an earlier choice of pages served.")                          \
    X(METRIC_ROLLBACK_COUNT, COUNTER, "laconic_rollback_count_total", TASK,                        \
      "Times that an answer left its topic and was taken back.")                                   \
    X(METRIC_DEADLINE_MISSED, COUNTER, "laconic_deadline_missed_total", PLAIN,                     \
      "Answers that their deadline ended.")                                                        \
    X(METRIC_TASK_TIME, HISTOGRAM, "laconic_task_classification_seconds", PLAIN,                   \
      "Telling the task of a prompt, at admission.")                                               \
    X(METRIC_TASK_ACCURACY, GAUGE, "laconic_task_classification_accuracy", PLAIN,                  \
      "Share of labelled feedback whose task was told right; NaN before the first label.")         \
    X(METRIC_FEEDBACK, COUNTER, "laconic_feedback_total", PLAIN, "Feedback taken in.")             \
    X(METRIC_DRIFT_ALARM, GAUGE, "laconic_task_drift_alarm", PLAIN,                                \
      "1 while served prompts are no longer what they were when the policy epoch began.")          \
    X(METRIC_DRIFT_P, GAUGE, "laconic_task_drift_p", PLAIN,                                        \
      "Least p-value of the newest comparison of served prompts with the epoch's first.")          \
    X(METRIC_POLICY_EPOCH, GAUGE, "laconic_policy_epoch", PLAIN, "The newest policy epoch.")       \
    X(METRIC_DECODE_HEAP, COUNTER, "laconic_decode_heap_bytes_total", PLAIN,                       \
      "General-heap bytes the loop took between a request's first and last token.")                \
    X(METRIC_CONNECTIONS, GAUGE, "laconic_connections", PLAIN, "Open client connections.")         \
    X(METRIC_HTTP_RESPONSE, COUNTER, "laconic_http_response_total", CODE, "Responses by status.")  \
    X(METRIC_BUILD_INFO, GAUGE, "laconic_build_info", INFO, "What runs here; always 1.")           \
    X(METRIC_START_TIME, GAUGE, "process_start_time_seconds", PLAIN,                               \
      "When the process started, in Unix seconds.")                                                \
    X(METRIC_RESIDENT_MEMORY, GAUGE, "process_resident_memory_bytes", PLAIN, "Resident memory.")

#define X(code, kind, name, labels, help) code,
enum metric { METRIC_LIST(X) METRIC_COUNT };
#undef X

/* Where a metric's series start among all cells of its sort: an empty range for the other sort. */
#define METRIC_CELLS_COUNTER(n)   (n)
#define METRIC_CELLS_GAUGE(n)     (n)
#define METRIC_CELLS_HISTOGRAM(n) 0
#define METRIC_TIMES_COUNTER(n)   0
#define METRIC_TIMES_GAUGE(n)     0
#define METRIC_TIMES_HISTOGRAM(n) (n)
#define X(code, kind, name, labels, help)                                                          \
    code##_FIRST_CELL,                                                                             \
        code##_LAST_CELL = code##_FIRST_CELL + METRIC_CELLS_##kind(METRIC_N_##labels) - 1,
enum { METRIC_LIST(X) METRIC_CELLS };
#undef X
#define X(code, kind, name, labels, help)                                                          \
    code##_FIRST_TIME,                                                                             \
        code##_LAST_TIME = code##_FIRST_TIME + METRIC_TIMES_##kind(METRIC_N_##labels) - 1,
enum { METRIC_LIST(X) METRIC_TIMES };
#undef X

/* Labels of laconic_build_info; cut to fit. */
struct metric_info {
    char version[64], model[128], isa[32], backend[32], io[32];
};

struct metrics {
    union {
        uint64_t count; /* counters */
        double value;   /* gauges */
    } cells[METRIC_CELLS];
    struct histogram times[METRIC_TIMES];
    struct metric_info info;
};

/* Everything zero, the start time now. */
void metric_init(struct metrics *m);
void metric_set_info(struct metrics *m, const char *version, const char *model, const char *isa,
                     const char *backend, const char *io);

/* `label` is the index in the metric's label set; 0 for PLAIN. Wrong sorts and labels are CHECKed.
 */
void metric_add(struct metrics *m, enum metric id, uint32_t label, uint64_t n);
void metric_set(struct metrics *m, enum metric id, uint32_t label, double value);
void metric_time(struct metrics *m, enum metric id, uint32_t label, uint64_t ns);
/* A layer in a histogram: shown as that number, among the bounds of the times. */
static inline void metric_layer(struct metrics *m, enum metric id, uint32_t label, uint32_t layer) {
    metric_time(m, id, label, layer * UINT64_C(1000000000));
}

static inline uint32_t metric_outcome_task(enum metric_outcome outcome, enum metric_task task) {
    return (uint32_t)outcome * METRIC_TASK_COUNT + (uint32_t)task;
}
static inline uint32_t metric_draft_outcome(enum metric_draft source,
                                            enum metric_draft_outcome outcome) {
    return (uint32_t)source * METRIC_DRAFT_OUTCOME_COUNT + (uint32_t)outcome;
}
static inline uint32_t metric_audit(enum metric_audit_form form, enum metric_task task,
                                    enum metric_audit_outcome outcome) {
    return ((uint32_t)form * METRIC_TASK_COUNT + (uint32_t)task) * METRIC_AUDIT_OUTCOME_COUNT +
           (uint32_t)outcome;
}
enum metric_code metric_code_of(int http_status);
const char *metric_task_name(enum metric_task task);
/* A task's name, n bytes; false (and *out METRIC_TASK_NONE) if there is none, "none" included. */
bool metric_task_find(const char *name, size_t n, enum metric_task *out);

uint64_t metric_count(const struct metrics *m, enum metric id, uint32_t label);
double metric_value(const struct metrics *m, enum metric id, uint32_t label);
const struct histogram *metric_times(const struct metrics *m, enum metric id, uint32_t label);

/* Reads the resident memory from /proc; leaves it as it was where that cannot be read. */
void metric_read_process(struct metrics *m);

/* Appends the text exposition, about 20 KiB. */
void metric_render(const struct metrics *m, struct buffer *out);

#endif
