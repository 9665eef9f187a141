/* request.h: what a client asked for, and the calls by which its answer comes back. The seam
 * between io/ (which parses and checks types and fixed ranges) and sched/ (which checks what
 * depends on the model, and answers); cmd/ hands each side the other's functions.
 *
 * Memory: strings in a request point into memory that the request's maker owns and keeps unchanged
 * until `release` is called through the sink (once per accepted submit, always, and before it no
 * second time). Everything a sink receives is valid during the call only.
 */
#ifndef LAC_CORE_REQUEST_H
#define LAC_CORE_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/metric.h"
#include "core/status.h"
#include "core/step.h"

enum {
    REQUEST_MAX_STOPS = 16,
    REQUEST_MAX_STOP_BYTES = 512,
    REQUEST_MAX_CHOICES = 16,
    REQUEST_MAX_LOGIT_BIAS = 1024,
    REQUEST_MAX_TOP_LOGPROBS = STEP_TOP,
    REQUEST_MAX_GATE_PAGES = 1 << 20,
    REQUEST_MAX_LABELS = 256,
    REQUEST_MAX_LABEL_BYTES = 128,
    REQUEST_MAX_INPUTS = 2048,         /* texts of one EMBEDDING */
    REQUEST_USER_TEXT_BYTES = 8 << 10, /* of user_text, unless it is linted */
    REQUEST_LINT_BYTES = 32 << 10,     /* longest text that a request may have linted */
    REQUEST_DEFAULT_CHAT_TOKENS = 1024,
    REQUEST_DEFAULT_COMPLETION_TOKENS = 16,
    REQUEST_MAX_HELD = 32,     /* most tokens that a rollback may withdraw */
    REQUEST_MAX_ROLLBACKS = 8, /* of one answer */
    REQUEST_REPORT_ROLLBACKS = 16,
};

enum request_kind {
    REQUEST_CHAT,
    REQUEST_COMPLETION,
    REQUEST_TOKENIZE,
    REQUEST_DETOKENIZE,
    REQUEST_EMBEDDING,
};
enum penalty_scope { PENALTY_SCOPE_OPENAI, PENALTY_SCOPE_LLAMACPP };
/* Which rule takes drifting text back (sched/monitor.h). */
enum rollback_rule { ROLLBACK_OFF, ROLLBACK_AUTO, ROLLBACK_FIXED };
enum on_deadline { ON_DEADLINE_TRUNCATE, ON_DEADLINE_FAIL };
/* Which pages an answer attends to (sched/gate.h). */
enum request_gate {
    REQUEST_GATE_OFF,
    REQUEST_GATE_AUTO,
    REQUEST_GATE_SAFE,
    REQUEST_GATE_FAST,
    REQUEST_GATE_PAGES, /* gate_pages of them */
};

/* Which fields the client set itself; what is not set takes the default (later: the preset). */
enum request_field {
    REQUEST_SET_TEMPERATURE = 1 << 0,
    REQUEST_SET_TOP_P = 1 << 1,
    REQUEST_SET_TOP_K = 1 << 2,
    REQUEST_SET_MIN_P = 1 << 3,
    REQUEST_SET_MAX_TOKENS = 1 << 4,
    REQUEST_SET_SEED = 1 << 5,
    REQUEST_SET_REPETITION = 1 << 6,
    REQUEST_SET_PRESENCE = 1 << 7,
    REQUEST_SET_FREQUENCY = 1 << 8,
    REQUEST_SET_GATE = 1 << 16,
    REQUEST_SET_TASK_TYPE = 1 << 9,
    REQUEST_SET_ROLLBACK = 1 << 10,
    REQUEST_SET_ENTROPY_THRESHOLD = 1 << 11, /* rollback.entropy_threshold */
};

/* Thresholds are those of rule `fixed`; `auto` has its own, calibrated. */
struct rollback {
    enum rollback_rule rule;
    float entropy_threshold;    /* nats */
    float similarity_threshold; /* cosine */
    uint32_t window;            /* most tokens held back, 1 .. REQUEST_MAX_HELD */
    uint32_t max;               /* rollbacks of one answer, 0 .. REQUEST_MAX_ROLLBACKS */
};
#define ROLLBACK_DEFAULT                                                                           \
    {                                                                                              \
        .entropy_threshold = 2.1f, .similarity_threshold = 0.4f, .window = REQUEST_MAX_HELD,       \
        .max = 2                                                                                   \
    }

struct text {
    const char *data; /* UTF-8 (io has checked), not NUL-terminated */
    size_t len;
};

struct logit_bias {
    uint32_t id;
    float bias; /* -100 .. 100 */
};

struct request {
    enum request_kind kind;
    uint32_t set;   /* enum request_field bits */
    struct text id; /* by which the client may ask for the explanation; "": it cannot */

    /* CHAT: the JSON text of an object {messages, tools, tool_choice, documents,
     * add_generation_prompt, continue_final_message, chat_template_kwargs}, as far as given; it is
     * the input of the template. COMPLETION, TOKENIZE: `prompt` (text), or `ids` when the client
     * sent token ids. DETOKENIZE: `ids`. With labels `prompt` is what is to be classified: the last
     * user message of a chat, else the prompt's text. */
    struct text chat_json;
    struct text prompt;
    const uint32_t *ids;
    size_t n_ids;
    bool special; /* TOKENIZE: special tokens in the text are recognised */
    bool add_bos; /* TOKENIZE: add the model's own */

    /* EMBEDDING */
    bool by_model;             /* by the language model; else by the encoder */
    const struct text *inputs; /* [n_inputs], 1 .. REQUEST_MAX_INPUTS */
    uint32_t n_inputs;
    uint32_t dimensions; /* that the client wants; 0: whatever there are */

    /* Classify instead of answering: distinct (sched checks), 1 to
     * REQUEST_MAX_LABEL_BYTES bytes each, none of them 0; n is 1. */
    const struct text *labels; /* [n_labels], 0 .. REQUEST_MAX_LABELS */
    uint32_t n_labels;

    uint32_t n;          /* choices, 1 .. REQUEST_MAX_CHOICES */
    uint32_t max_tokens; /* meaningful when SET_MAX_TOKENS; may be 0 */
    float temperature, top_p, min_p;
    uint32_t top_k;
    float repetition_penalty, presence_penalty, frequency_penalty;
    enum penalty_scope penalty_scope;
    uint64_t seed;
    const struct logit_bias *logit_bias; /* ids ascending, each once */
    uint32_t n_logit_bias;
    struct text stops[REQUEST_MAX_STOPS];
    uint32_t n_stops;
    bool logprobs;         /* report the logprob of every token */
    uint32_t top_logprobs; /* and this many alternatives, 0 .. REQUEST_MAX_TOP_LOGPROBS */
    bool echo;             /* COMPLETION: the prompt's text (and logprobs) come first */
    bool ignore_eos;
    bool explain;
    enum request_gate gate; /* meaningful when SET_GATE */
    uint32_t gate_pages;    /* 1 .. REQUEST_MAX_GATE_PAGES */
    struct rollback rollback;
    bool regulate; /* temperature and top_p, where unset, by the side-car's head */

    /* Task policy. `user_text` is what the user wrote last: the first REQUEST_USER_TEXT_BYTES of it
     * at least, under `lint` all of it; "" where there is no text. */
    enum metric_task task_type; /* meaningful when SET_TASK_TYPE: decided by the client */
    struct text user_text;
    bool lint; /* report on user_text: request_report.lint */

    uint64_t deadline_ms; /* from received_ns; 0 = none */
    enum on_deadline on_deadline;
    int32_t priority;     /* higher first among equal deadlines */
    uint64_t received_ns; /* first byte of the request */
};

enum finish_reason { FINISH_STOP, FINISH_LENGTH, FINISH_ABORT, FINISH_ERROR };

struct token_logprob {
    uint32_t id;
    /* Under `explain`, else NaN: nats of the raw distribution; and how far the answer is on its
     * topic (sched/monitor.h), where it is monitored. */
    float entropy, similarity;
    float
        logprob; /* natural log, raw distribution; NaN: not predicted (an echoed prompt's first) */
    const char *bytes;
    uint32_t n_bytes;
    uint32_t n_top;
    struct {
        uint32_t id;
        float logprob;
        const char *bytes;
        uint32_t n_bytes;
    } top[STEP_TOP];
};

struct request_usage {
    uint32_t prompt_tokens, completion_tokens, cached_tokens;
};

/* Text that was taken back: `withdrawn` tokens from the answer's token `at` on (0 is its first),
 * with entropy (nats) and cosine (NaN: none yet) at the draw that decided it. */
struct rollback_event {
    uint32_t choice, at, withdrawn;
    float entropy, similarity;
};

/* What a request tells at its end, beside usage. */
struct request_report {
    uint64_t seed;
    bool deadline_missed;
    uint32_t drafted, accepted;               /* tokens proposed, and of them right */
    uint64_t queue_ns, prefill_ns, decode_ns; /* for `explain` and metrics */
    /* Page choices: pages that gated rows attended to, of those there were (0: none was gated). */
    uint64_t gate_attended, gate_there;
    uint32_t n_anchors;             /* markers in the prompt */
    uint32_t n_regulated;           /* tokens whose sampling the side-car's head said, and */
    float temperature, top_p;       /* what it said, on average */
    const float *label_probability; /* [n_labels] as the request lists them, or NULL */
    uint32_t label;                 /* the answer's index */
    uint32_t exit_layer;            /* layers run; 0: all, label tokens were scored */
    enum metric_task task;          /* METRIC_TASK_NONE: undecided */
    struct text lint;               /* JSON, "" unless asked for */
    /* Of all choices: how often text was taken back, its tokens (which no client saw), choices
     * whose breaker tripped, and the first rollbacks, in order. */
    uint32_t n_rollbacks, n_withdrawn, n_breakers;
    struct rollback_event rollbacks[REQUEST_REPORT_ROLLBACKS]; /* [min(n_rollbacks, that)] */
};

/* What a client says of an answer it had. */
struct request_feedback {
    struct text id, label;       /* label: the task it was; "": not said */
    bool has_accepted, accepted; /* was the answer of use */
};

/* Names a submitted request: slot or queue entry plus generation, never reused while valid. */
typedef uint64_t request_handle;
enum { REQUEST_HANDLE_NONE = 0 };

/* The answer, in this order: for REQUEST_CHAT and REQUEST_COMPLETION started, then delta and finish
 * per choice (finish is the choice's last), then done; or failed at any point instead of what is
 * left. For TOKENIZE: tokens, done. For DETOKENIZE: one delta, done. For EMBEDDING: embedding per
 * input in rising order, done. After done or failed: release.
 * All calls come from the loop thread, inside sched_tick() or sched_cancel(), never inside
 * sched_submit(). `user` is what was given to submit. */
struct request_sink {
    /* Admitted: from now on the client gets 200. `seed` is the one in use. */
    void (*started)(void *user, uint64_t seed);
    /* Committed text of one choice: whole UTF-8 sequences, stop strings never shown; `lps` are the
     * tokens behind it, in order (a delta may have text and no token, or a token and no text). */
    void (*delta)(void *user, uint32_t choice, const char *bytes, size_t n,
                  const struct token_logprob *lps, uint32_t n_lps);
    void (*finish)(void *user, uint32_t choice, enum finish_reason reason);
    void (*tokens)(void *user, const uint32_t *ids, size_t n);
    /* v[dim], all finite. NULL where no EMBEDDING is submitted. */
    void (*embedding)(void *user, uint32_t index, const float *v, uint32_t dim);
    void (*done)(void *user, const struct request_usage *usage,
                 const struct request_report *report);
    /* field "" if none. STATUS_FULL, STATUS_DEADLINE (shed): 503 with Retry-After; input class:
     * 400; ON_DEADLINE_FAIL: STATUS_DEADLINE after start: 504 or an SSE error; others: 500. */
    void (*failed)(void *user, const struct error *e, uint32_t retry_after_s);
    void (*release)(void *user);
    /* May this request produce more now? false while the client does not read fast enough: its
     * decoding pauses (its bytes do not change). */
    bool (*writable)(void *user);
};

#endif
