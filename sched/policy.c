#include "sched/policy.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "core/check.h"
#include "core/clock.h"

/* A model that one or more epochs share. */
struct held_model {
    struct task_model *model;
    uint64_t digest;
    uint32_t n_epochs;
};

struct epoch {
    struct policy_epoch shown; /* first: what callers hold */
    struct held_model *held;
    struct epoch *next;
    uint32_t n_pins;
};

struct policy {
    struct policy_config cfg;
    struct epoch *newest, *before; /* before: what a revert goes back to; NULL: nothing */
    struct epoch *epochs;          /* all that are still there */
    struct task_workspace *workspaces[POLICY_MAX_WORKSPACES];
    atomic_uint free_workspaces; /* bit i: workspace i is free */
};

struct policy_presets policy_default_presets(void) {
    return (struct policy_presets){
        .task = {[METRIC_TASK_DETERMINISTIC] = {0.2f, 0.8f, 1.5f},
                 [METRIC_TASK_OPEN] = {0.8f, 0.95f, 2.8f},
                 [METRIC_TASK_REASONING] = {0.5f, 0.9f, 2.1f},
                 [METRIC_TASK_CODE] = {0.2f, 0.95f, 2.1f},
                 [METRIC_TASK_CLASSIFY] = {0, 1, 2.1f},
                 [METRIC_TASK_QA] = {0.2f, 0.8f, 1.5f}},
        .middle = {0.5f, 0.9f, 2.1f},
    };
}

const char *policy_kind_name(enum policy_kind kind) {
    return kind == POLICY_ADAPTIVE ? "adaptive" : "exact";
}

const char *policy_by_name(enum policy_by by) {
    return by == POLICY_BY_CLIENT ? "client" : by == POLICY_BY_MODEL ? "model" : "nobody";
}

/* ---- epochs ---- */

static uint64_t hash_presets(const struct policy_presets *presets) {
    float v[3 * (METRIC_TASK_NONE + 1)];
    uint32_t n = 0;
    for (int t = 0; t < METRIC_TASK_NONE; t++) {
        v[n++] = presets->task[t].temperature;
        v[n++] = presets->task[t].top_p;
        v[n++] = presets->task[t].entropy_threshold;
    }
    v[n++] = presets->middle.temperature;
    v[n++] = presets->middle.top_p;
    v[n++] = presets->middle.entropy_threshold;
    return XXH3_64bits(v, sizeof v);
}

/* Only what can change an answer: under `exact` a task model cannot. */
static uint64_t policy_digest(const struct policy_config *cfg, uint64_t model_digest) {
    const struct policy_presets usual = policy_default_presets();
    const uint64_t presets = hash_presets(&cfg->presets);
    const bool adaptive = cfg->kind == POLICY_ADAPTIVE;
    if (!adaptive && presets == hash_presets(&usual)) return cfg->identity;
    const uint64_t parts[] = {cfg->identity, adaptive, adaptive ? model_digest : 0, presets};
    return XXH3_64bits(parts, sizeof parts);
}

static uint64_t fingerprint(const struct policy_config *cfg, const struct policy_epoch *epoch) {
    uint64_t parts[1 + POLICY_MAX_LABEL_SETS / 64] = {policy_digest(cfg, epoch->model_digest)},
                                               any = 0;
    for (uint32_t i = 0; i < POLICY_MAX_LABEL_SETS / 64; i++)
        any |= parts[1 + i] = epoch->full_depth[i];
    return any != 0 ? XXH3_64bits(parts, sizeof parts) : parts[0];
}

static enum status hold(struct task_model *model, struct held_model **out, struct error *e) {
    struct buffer bytes;
    buffer_init(&bytes, 2 * TASK_MODEL_MAX_BYTES);
    struct held_model *h = calloc(1, sizeof *h);
    enum status st = h != NULL ? task_model_write(model, &bytes, e)
                               : error_set(e, STATUS_NO_MEMORY, NULL, "no memory for an epoch");
    if (st == STATUS_OK) {
        *h = (struct held_model){.model = model, .digest = XXH3_64bits(bytes.data, bytes.len)};
        *out = h;
    } else {
        free(h);
        task_model_free(model);
    }
    buffer_free(&bytes);
    return st;
}

static void let_go(struct held_model *h) {
    if (h->n_epochs > 0) return;
    task_model_free(h->model);
    free(h);
}

static void drop_unused(struct policy *p) {
    for (struct epoch **at = &p->epochs; *at != NULL;) {
        struct epoch *x = *at;
        if (x->n_pins > 0 || x == p->newest || x == p->before) {
            at = &x->next;
            continue;
        }
        *at = x->next;
        x->held->n_epochs--;
        let_go(x->held);
        free(x);
    }
}

/* full_depth NULL: none. Nothing has changed if there is no memory. */
static enum status publish(struct policy *p, struct held_model *h, const uint64_t *full_depth,
                           struct error *e) {
    struct epoch *x = calloc(1, sizeof *x);
    if (x == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for an epoch");
    x->held = h;
    h->n_epochs++;
    x->shown = (struct policy_epoch){
        .number = p->newest != NULL ? p->newest->shown.number + 1 : 1,
        .kind = p->cfg.kind,
        .presets = p->cfg.presets,
        .model = h->model,
        .model_digest = h->digest,
    };
    if (full_depth != NULL) memcpy(x->shown.full_depth, full_depth, sizeof x->shown.full_depth);
    for (uint32_t c = 0; c < TASK_MAX_CLASSES; c++) {
        const char *label = task_model_label(h->model, c);
        x->shown.task_of[c] = METRIC_TASK_NONE;
        if (label != NULL) (void)metric_task_find(label, strlen(label), &x->shown.task_of[c]);
    }
    snprintf(x->shown.fingerprint, sizeof x->shown.fingerprint, "lac-%016llx",
             (unsigned long long)fingerprint(&p->cfg, &x->shown));
    x->next = p->epochs;
    p->epochs = x;
    if (p->newest == NULL || p->newest->held != h) p->before = p->newest;
    p->newest = x;
    drop_unused(p);
    return STATUS_OK;
}

enum status policy_publish(struct policy *p, struct task_model *model, struct error *e) {
    struct held_model *h;
    enum status st = hold(model, &h, e);
    if (st != STATUS_OK) return st;
    st = publish(p, h, p->newest != NULL ? p->newest->shown.full_depth : NULL, e);
    let_go(h);
    return st;
}

bool policy_can_revert(const struct policy *p) {
    return p->before != NULL;
}

enum status policy_revert(struct policy *p, struct error *e) {
    if (p->before == NULL)
        return error_set(e, STATUS_NOT_FOUND, NULL, "no task model was replaced");
    return publish(p, p->before->held, p->newest->shown.full_depth, e);
}

enum status policy_full_depth(struct policy *p, uint32_t label_set, struct error *e) {
    CHECK(label_set < POLICY_MAX_LABEL_SETS);
    uint64_t full_depth[POLICY_MAX_LABEL_SETS / 64];
    memcpy(full_depth, p->newest->shown.full_depth, sizeof full_depth);
    full_depth[label_set / 64] |= UINT64_C(1) << label_set % 64;
    return publish(p, p->newest->held, full_depth, e);
}

const struct policy_epoch *policy_newest(const struct policy *p) {
    return &p->newest->shown;
}

const struct policy_epoch *policy_pin(struct policy *p) {
    p->newest->n_pins++;
    return &p->newest->shown;
}

void policy_unpin(struct policy *p, const struct policy_epoch *epoch) {
    struct epoch *x = p->epochs;
    while (x != NULL && &x->shown != epoch) x = x->next;
    CHECK(x != NULL && x->n_pins > 0);
    x->n_pins--;
    if (x->n_pins == 0) drop_unused(p);
}

enum status policy_open(const struct policy_config *cfg, struct task_model *model,
                        struct policy **out, struct error *e) {
    CHECK(cfg->n_workspaces >= 1 && cfg->n_workspaces <= POLICY_MAX_WORKSPACES);
    *out = NULL;
    struct policy *p = calloc(1, sizeof *p);
    enum status st = STATUS_OK;
    if (p == NULL) {
        task_model_free(model);
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the policy");
    }
    p->cfg = *cfg;
    st = policy_publish(p, model, e);
    for (uint32_t i = 0; i < cfg->n_workspaces && st == STATUS_OK; i++)
        st = task_workspace_new(&p->workspaces[i], e);
    atomic_init(&p->free_workspaces,
                cfg->n_workspaces == 32 ? UINT32_MAX : (1u << cfg->n_workspaces) - 1);
    if (st == STATUS_OK)
        *out = p;
    else
        policy_close(p);
    return st;
}

void policy_close(struct policy *p) {
    if (p == NULL) return;
    p->newest = p->before = NULL;
    for (struct epoch *x = p->epochs; x != NULL; x = x->next) CHECK(x->n_pins == 0);
    drop_unused(p);
    for (uint32_t i = 0; i < p->cfg.n_workspaces; i++) task_workspace_free(p->workspaces[i]);
    free(p);
}

/* ---- the task of a prompt ---- */

static uint32_t take_workspace(struct policy *p) {
    unsigned all = atomic_load(&p->free_workspaces);
    for (;;) {
        CHECK(all != 0); /* there is one for everybody who may ask at once */
        const uint32_t i = (uint32_t)__builtin_ctz(all);
        if (atomic_compare_exchange_weak(&p->free_workspaces, &all, all & ~(1u << i))) return i;
    }
}

static void classify(struct policy *p, const struct policy_epoch *epoch, struct text text,
                     struct task_verdict *out) {
    const uint32_t i = take_workspace(p);
    struct task_features f;
    task_features_extract(p->workspaces[i], task_model_words(epoch->model), text.data, text.len,
                          &f);
    task_model_classify_features(epoch->model, &f, true, out);
    atomic_fetch_or(&p->free_workspaces, 1u << i);
}

void policy_decide(struct policy *p, const struct policy_epoch *epoch, const struct request *r,
                   struct policy_decision *out) {
    *out = (struct policy_decision){.task = METRIC_TASK_NONE};
    if (r->user_text.len > 0) {
        const uint64_t start = clock_now_ns();
        classify(p, epoch, r->user_text, &out->verdict);
        out->classify_ns = clock_now_ns() - start;
        out->classified = true;
    }
    if (r->set & REQUEST_SET_TASK_TYPE) {
        out->task = r->task_type;
        out->by = POLICY_BY_CLIENT;
    } else if (out->classified && !out->verdict.abstained) {
        out->task = epoch->task_of[out->verdict.class];
        out->by = POLICY_BY_MODEL;
    }
}

void policy_watch(const struct policy_epoch *epoch, bool calibrated, struct request *r) {
    const bool answers = r->kind == REQUEST_CHAT || r->kind == REQUEST_COMPLETION;
    if (epoch->kind != POLICY_ADAPTIVE || !calibrated || !answers || r->n_labels > 0) return;
    if (!(r->set & REQUEST_SET_ROLLBACK)) r->rollback.rule = ROLLBACK_AUTO;
}

void policy_apply(const struct policy_epoch *epoch, struct policy_decision *d, struct request *r) {
    d->set = 0;
    if (epoch->kind == POLICY_EXACT && d->by != POLICY_BY_CLIENT) return;
    const struct policy_preset *preset =
        d->task == METRIC_TASK_NONE ? &epoch->presets.middle : &epoch->presets.task[d->task];
    /* A regulated answer's temperature and top_p come token by token. */
    uint32_t names = r->regulate ? 0 : (uint32_t)(REQUEST_SET_TEMPERATURE | REQUEST_SET_TOP_P);
    if (r->rollback.rule == ROLLBACK_FIXED) names |= REQUEST_SET_ENTROPY_THRESHOLD;
    d->set = names & ~r->set;
    d->temperature = preset->temperature;
    d->top_p = preset->top_p;
    d->entropy_threshold = preset->entropy_threshold;
    if (d->set & REQUEST_SET_TEMPERATURE) r->temperature = preset->temperature;
    if (d->set & REQUEST_SET_TOP_P) r->top_p = preset->top_p;
    if (d->set & REQUEST_SET_ENTROPY_THRESHOLD)
        r->rollback.entropy_threshold = preset->entropy_threshold;
    r->set |= d->set;
}
