/* backend.h: who computes a step. The loop thread is the only caller; a backend has at most one
 * step in flight (the scheduler prepares the next meanwhile).
 *
 * Life: footprint(cfg) -> init(mem, cfg) -> {publish, retire, submit, poll}* -> drain -> destroy.
 * publish() makes the heads of one policy epoch usable; steps name the epoch, so that requests
 * pinned to an older one go on with theirs until retire(). Epoch 0 has no heads and needs no
 * publishing. The heads stay the caller's and unchanged until retire() or destroy(); errors:
 * STATUS_UNSUPPORTED names a head that the backend cannot run (nothing is published then),
 * STATUS_NO_MEMORY.
 * submit() takes a filled step (core/step.h) and returns; poll() returns it when its outputs are
 * written, NULL before. The CPU backend computes inside submit(), with the calling thread as worker
 * 0; a GPU backend signals `event_fd`, which the loop's ring watches.
 * While it computes, the CPU backend calls `between(between_arg)` from the loop thread at least
 * every 100 microseconds or so (between tiles of work): the loop reaps its ring there, without
 * parsing and without calling the backend or the scheduler. Errors: a NaN in a row's logits marks
 * that output `bad`; a device failure sets step.status and makes later submits fail with
 * STATUS_DEVICE. submit() itself CHECKs the shape of the step.
 */
#ifndef LAC_CORE_BACKEND_H
#define LAC_CORE_BACKEND_H

#include "core/cpu_features.h"
#include "core/plan.h"
#include "core/status.h"
#include "core/step.h"

struct page_pool;
struct worker_pool;
struct heads; /* router, exit, label and shortlist heads of one policy epoch */

/* Numerics classes; part of the fingerprint and of the KV domain. */
enum activation_format {
    ACTIVATION_INT16, /* 16 bits per block of 32, as two int8 passes: the default */
    ACTIVATION_INT8,  /* one pass */
    ACTIVATION_F32,   /* --exact: weights dequantised, FP32 throughout */
};
enum kv_format { KV_F16, KV_Q8, KV_F32 };

struct backend_config {
    const struct plan *plan;
    struct page_pool *pages;
    struct worker_pool *workers;
    struct step_limits limits;
    uint32_t n_slots;
    uint32_t n_ctx; /* largest absolute position + 1 */
    enum cpu_isa isa;
    enum activation_format activations;
    enum kv_format kv;
    bool gates; /* keep what page choices need of the keys of every page (about 6 % of the KV) */
    void (*between)(void *arg); /* may be NULL */
    void *between_arg;
    /* Called now and then during init (repacking) with done in [0, 1]; may be NULL. */
    void (*progress)(void *arg, double done);
    void *progress_arg;
    int event_fd; /* -1 for the CPU backend */
};

struct backend;
struct backend_ops {
    const char *name;
    enum status (*publish)(struct backend *b, uint64_t epoch, const struct heads *heads,
                           struct error *e);
    void (*retire)(struct backend *b, uint64_t epoch); /* no step in flight names it */
    enum status (*submit)(struct backend *b, struct step *s);
    struct step *(*poll)(struct backend *b);
    void (*drain)(struct backend *b);
    void (*destroy)(struct backend *b);
};
/* The first member of every backend. */
struct backend {
    const struct backend_ops *ops;
};

static inline enum status backend_submit(struct backend *b, struct step *s) {
    return b->ops->submit(b, s);
}
static inline struct step *backend_poll(struct backend *b) {
    return b->ops->poll(b);
}

/* Bytes of one KV page of a group: n_layers x (K + V) of 16 positions.
 * F16, F32: elements; Q8: int8 elements, then one F16 scale per (position, head).
 * Per layer: K as [kv_head][head_dim][16] (lanes = positions; see ARCHITECTURE.md), then V as
 * [kv_head][16][head_dim]; under Q8 each followed by its scales [kv_head][16]. */
size_t kv_page_bytes(const struct kv_group *group, enum kv_format format);

#endif
