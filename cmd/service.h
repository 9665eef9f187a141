/* service.h: an engine with a tokenizer, a chat template and a scheduler: all that answers
 * requests. What `serve` and `run` have in common; `run` is a server with one client and no socket.
 *
 * Life: service_open -> sched_submit / sched_tick -> service_close (the scheduler must be idle).
 * Memory: the plan (alloc/budget.h) is checked before anything large is taken.
 */
#ifndef LAC_CMD_SERVICE_H
#define LAC_CMD_SERVICE_H

#include <stdio.h>

#include "cmd/engine.h"
#include "core/metric.h"
#include "models/chat_template.h"
#include "models/encoder.h"
#include "models/label_heads.h"
#include "models/monitor_model.h"
#include "models/regulation.h"
#include "models/ngram_table.h"
#include "models/sidecar.h"
#include "models/tokenizer.h"
#include "sched/gate.h"
#include "cmd/policy_file.h"
#include "core/log.h"
#include "sched/policy.h"
#include "sched/sched.h"

#define LACONIC_VERSION "0.1.0"

struct service_options {
    const struct config *config;
    uint32_t max_batch, max_queue;
    bool asynchronous; /* as engine_options: the caller's loop watches engine.event_fd */
    void (*between)(void *arg);
    void *between_arg;
};

struct service {
    struct engine *engine;
    struct tokenizer *tokenizer;
    struct chat_template *chat_template; /* NULL: the model has none */
    struct encoder *encoder;             /* NULL: not asked for */
    struct metrics *metrics;
    struct region flight_region;
    struct flight *flight;
    struct policy_file policy_file; /* --config */
    struct policy *policy;
    struct log log; /* stderr */
    struct sched *sched;
    char name[128]; /* the served model's name: the file's, without its suffix */
    struct monitor_model monitor;
    struct ngram_table ngrams; /* the side-car's, if it has one */
    struct gate_config gate;
    struct regulation regulation;
    struct label_sets labels; /* its label heads */
    uint64_t epoch;           /* that the backend knows them by; 0: it has none */
};

/* The steps a server of that many slots makes; max_pages is left to the engine. */
struct step_limits service_limits(uint32_t max_batch);
/* KV pages (of every group) in the host's memory when nobody chose: every slot's full context, but
 * no more than 1 GiB and a quarter of the machine; one full context at least. */
uint32_t service_auto_pages(const struct engine_options *o, const struct plan *p, uint32_t n_ctx);

enum status service_open(const struct service_options *o, struct service **out, struct error *e);
void service_close(struct service *s); /* NULL: nothing */

/* The numbers that are read rather than counted: memory. */
void service_refresh(struct service *s);

#endif
