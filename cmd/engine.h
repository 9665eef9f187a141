/* engine.h: an open model with everything that computes it: worker pool, KV pages, backend. What
 * `serve`, `run`, `bench`, `logits` and `perplexity` have in common.
 *
 * Life: engine_defaults(config) -> change what the command wants -> engine_open -> engine_close.
 * Threads: the thread that opened it is worker 0 and the only user.
 * Errors: those of the model, the page pool, the workers and the backend; *out is NULL then.
 */
#ifndef LAC_CMD_ENGINE_H
#define LAC_CMD_ENGINE_H

#include <stdio.h>

#include "alloc/page_pool.h"
#include "alloc/region.h"
#include "core/backend.h"
#include "core/config.h"
#include "core/cpu_features.h"
#include "core/log.h"
#include "core/worker_pool.h"
#include "models/block_plan.h"
#include "models/model.h"
#include "models/sidecar.h"

struct engine_options {
    const char *path;
    uint32_t threads; /* 0: one per CPU this process may use */
    uint32_t n_ctx;   /* 0: the model's own */
    enum activation_format activations;
    enum kv_format kv;
    bool isa_auto;
    enum cpu_isa isa;
    const struct config_list *pin; /* may be NULL; outlives engine_open */
    bool huge_pages, mlock;
    /* KV: n_pages of every group if not 0; else as many as kv_mib holds; else, with auto_kv, what a
     * server takes (service_auto_pages; on a device: what fits there); else one full context. */
    uint32_t n_pages, kv_mib;
    bool auto_kv;
    uint32_t n_slots;
    bool gates;        /* memory for page choices (core/backend.h), where they can be made */
    bool gates_on_cpu; /* with `gates`: a device goes without them */
    bool drafts;       /* open the side-car, and run its blocks as --drafts says */
    struct step_limits limits; /* max_pages 0: filled in for max_spans full contexts */
    /* --backend and what belongs to it; NULL: the CPU. Outlives the engine. */
    const struct config *config;
    /* A device's steps end by engine.event_fd, and backend_poll does not wait. */
    bool asynchronous;
    void (*between)(void *arg);
    void *between_arg;
    void (*progress)(void *arg, double done);
    void *progress_arg;
};

/* Tokens of context: what was asked for, else what the model was made for, at most
 * ENGINE_AUTO_CTX: memory is taken for all of them, and a file may say anything. */
enum { ENGINE_AUTO_CTX = 131072 };
static inline uint32_t engine_context(uint32_t asked, const struct plan *p) {
    if (asked > 0) return asked;
    return p->n_ctx_train < ENGINE_AUTO_CTX ? p->n_ctx_train : ENGINE_AUTO_CTX;
}

struct engine {
    struct model *model;
    const struct plan *plan;    /* the model's, with blocks of the side-car */
    struct sidecar *side_car;   /* NULL: none */
    struct plan plan_of_blocks; /* where there are any */
    struct block_plan_memory blocks;
    struct cpu_features features;
    enum cpu_isa isa;
    uint32_t n_ctx, n_threads;
    uint32_t n_pages; /* of every group */
    bool gates;       /* the backend keeps what page choices need */
    enum activation_format activations;
    enum kv_format kv;
    struct step_limits limits;
    struct page_pool *pages;
    struct worker_pool *workers;
    struct backend *backend;
    struct region backend_region;
    bool on_cuda;
    int event_fd; /* -1: none */
    struct log log;
    char cache_dir[1024];
};

/* What the common options say; limits for a command that runs one sequence in chunks of 256 rows.
 */
struct engine_options engine_defaults(const struct config *c);
/* What computes, for people: "cpu, isa avx2, 4 threads" or "cuda, NVIDIA H200, 132 SMs". */
void engine_describe(const struct engine *e, char *text, size_t text_bytes);
/* What it takes of a device, as a table; nothing on the CPU. */
void engine_print_memory(const struct engine *e, FILE *out);
/* The device has failed: nothing is computed any more before a restart. */
bool engine_lost(const struct engine *e);
/* A progress bar on stderr if that is a terminal; for options.progress. */
void engine_show_progress(void *arg, double done);

enum status engine_open(const struct engine_options *o, struct engine **out, struct error *e);
void engine_close(struct engine *e); /* NULL: nothing */

/* The pages of one sequence, for commands that keep no scheduler. */
struct engine_sequence {
    uint32_t *pages[PLAN_MAX_GROUPS]; /* [n_pages] each */
    uint32_t n_pages;
};
/* Pages for positions [0, n_tokens). STATUS_FULL when the pool has not as many. */
enum status engine_sequence_open(struct engine *e, uint32_t n_tokens, struct engine_sequence *s,
                                 struct error *err);
void engine_sequence_close(struct engine *e, struct engine_sequence *s);
/* step_add_span with the sequence's block tables. */
struct span *engine_add_span(const struct engine *e, struct step *step, enum span_kind kind,
                             const struct engine_sequence *s, uint32_t first_position,
                             const uint32_t *ids, uint32_t n);
/* submit and poll; the backend's refusal or the step's status. */
enum status engine_run(struct engine *e, struct step *step, struct error *err);

#endif
