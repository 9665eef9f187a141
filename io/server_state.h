/* server_state.h: the server's own structures. Private to io/server.c, io/route.c, io/exchange.c
 * and io/answer.c.
 *
 * An exchange is one API request between its arrival and the release of everything that the
 * scheduler was given for it: read (perhaps in a chore), submitted as one request per prompt (a
 * part), answered as the parts tell. It outlives its connection when the client leaves first.
 */
#ifndef LAC_IO_SERVER_STATE_H
#define LAC_IO_SERVER_STATE_H

#include "core/buffer.h"
#include "core/chore.h"
#include "core/metric.h"
#include "io/connection.h"
#include "io/openai.h"
#include "io/server.h"

struct exchange;

/* One request given to the scheduler. */
struct part {
    struct exchange *exchange;
    uint32_t index; /* of the prompt */
    request_handle handle;
    bool submitted, released;
    bool done; /* done or failed was told */
};

/* One choice of the answer. Whole answers gather here; streams keep only the counters. */
struct choice {
    struct chain text;     /* escaped */
    struct chain lists[4]; /* logprobs: tokens, logprobs, tops, offsets (chat: the first) */
    uint64_t text_offset;
    bool role_sent, has_logprobs, finished;
    enum finish_reason reason;
};

/* Work of an exchange that runs in slices. */
enum job { JOB_NONE, JOB_READ, JOB_WRITE_TOKENS, JOB_WRITE_TEXT, JOB_WRITE_EMBEDDINGS };

struct exchange {
    struct server *server;
    struct connection *connection; /* NULL: the client is gone, or has its whole answer */
    struct exchange *next;         /* in the queue of jobs */
    struct exchange *next_cancel;
    enum request_kind kind;
    struct openai_request request;
    struct body body;
    enum status read_status;
    struct error error;
    struct part *parts;     /* [request.n_prompts] */
    struct choice *choices; /* [n_prompts * n] */
    uint32_t n_choices, n_finished, n_done, n_unreleased;
    uint32_t last_choice; /* the one whose last piece waits for the report */
    uint32_t holds;       /* reasons not to free yet, besides unreleased parts */
    enum job job;
    bool started;   /* a part was admitted */
    bool begun;     /* a stream's head is sent */
    bool to_cancel; /* in server.to_cancel */
    char id[48];
    uint64_t received_ns;
    struct request_usage usage;
    struct request_report report;
    struct openai_prefix prefix;
    /* TOKENIZE, DETOKENIZE: what the scheduler told, and the answer made of it. */
    uint32_t *ids;
    size_t n_ids;
    char *bytes;
    size_t n_bytes;
    float *vectors; /* EMBEDDING: [n_inputs, dim], NULL before the first */
    uint32_t dim;
    struct chain content;
};

enum { SERVER_CHORES = 4, SERVER_SCRATCH_BYTES = 1024 * 1024, SERVER_LIST_BYTES = 256 * 1024 };

struct chore_slot {
    void *mem;
    struct chore *chore; /* NULL: free */
    struct exchange *exchange;
};

struct server {
    struct server_config cfg;
    struct ring *ring;
    struct connections connections;
    struct openai_identity who;
    char *model_name, *fingerprint, *uds;
    char *encoder_name; /* NULL: none */
    char url[320];
    char cors_headers[256]; /* header lines for every answer, or "" */
    uint64_t started_s;
    uint64_t next_id; /* part of answer ids */
    uint64_t id_salt;
    int listeners[2], wake_fd;
    bool draining;
    uint64_t last_visit_ns; /* 0: nothing to measure a gap from */
    uint32_t n_exchanges;
    struct exchange *queue, **queue_end; /* jobs that wait for a chore */
    struct chore_slot chores[SERVER_CHORES];
    struct exchange *to_cancel; /* their parts are to be cancelled */
    struct buffer scratch;      /* one piece of an answer */
    struct buffer lists[4];     /* logprobs of one piece */
    void *scratch_mem;
};

/* server.c */
void server_visit(struct server *s);
void server_count_reply(struct server *s, int http_status);
void server_reply_error(struct server *s, struct connection *c, int http_status,
                        const struct error *e, uint32_t retry_after_s);

/* route.c */
bool route_head(void *server, struct connection *c);
void route_request(void *server, struct connection *c);
void route_malformed(void *server, struct connection *c, int status, const char *text);
void route_gone(void *server, struct connection *c);

/* exchange.c */
void exchange_start(struct server *s, struct connection *c, enum request_kind kind);
void exchange_gone(struct exchange *x);
/* Frees it if nothing holds it. */
void exchange_let_go(struct exchange *x);
void exchange_run_jobs(struct server *s, uint64_t budget_ns);
bool exchange_has_jobs(const struct server *s);
void exchange_run_cancels(struct server *s);
void exchange_queue_job(struct exchange *x, enum job job);
void exchange_cancel_later(struct exchange *x);
/* The answer is complete as far as this exchange goes: lets go of the connection. */
void exchange_answered(struct exchange *x);

/* answer.c: what the scheduler calls, and the answers made of it */
extern const struct request_sink answer_sink;
void answer_error(struct exchange *x, const struct error *e, uint32_t retry_after_s);
void answer_job(struct exchange *x, struct chore *chore);
void answer_job_done(struct exchange *x);
/* Everything that an answer in the making holds. */
void answer_free(struct exchange *x);

#endif
