#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "core/check.h"
#include "core/clock.h"
#include "io/embeddings.h"
#include "io/server_state.h"

static void free_exchange(struct exchange *x) {
    struct server *s = x->server;
    connections_drop_body(&s->connections, &x->body);
    answer_free(x);
    free(x->ids);
    free(x->bytes);
    free(x->vectors);
    openai_request_free(&x->request);
    free(x);
    CHECK(s->n_exchanges > 0);
    s->n_exchanges--;
}

void exchange_let_go(struct exchange *x) {
    if (x->connection == NULL && x->holds == 0 && x->n_unreleased == 0) free_exchange(x);
}

void exchange_answered(struct exchange *x) {
    struct connection *c = x->connection;
    if (c == NULL) return;
    CHECK(c->exchange == x);
    c->exchange = NULL;
    x->connection = NULL;
}

/* ---- cancelling ---- */

void exchange_cancel_later(struct exchange *x) {
    if (x->to_cancel) return;
    x->to_cancel = true;
    x->holds++;
    x->next_cancel = x->server->to_cancel;
    x->server->to_cancel = x;
}

static void cancel_parts(struct exchange *x) {
    struct server *s = x->server;
    for (uint32_t i = 0; x->parts != NULL && i < x->request.n_prompts; i++) {
        struct part *p = &x->parts[i];
        if (!p->submitted || p->released || p->done) continue;
        p->done = true;
        s->cfg.service.cancel(s->cfg.service.arg, p->handle);
    }
}

void exchange_run_cancels(struct server *s) {
    while (s->to_cancel != NULL) {
        struct exchange *x = s->to_cancel;
        s->to_cancel = x->next_cancel;
        x->to_cancel = false;
        cancel_parts(x);
        x->holds--;
        exchange_let_go(x);
    }
}

void exchange_gone(struct exchange *x) {
    exchange_answered(x);
    x->holds++;
    cancel_parts(x);
    for (int i = 0; i < SERVER_CHORES; i++)
        if (x->server->chores[i].exchange == x) chore_cancel(x->server->chores[i].chore);
    x->holds--;
    exchange_let_go(x);
}

/* ---- from the body to the scheduler ---- */

static bool plan_answer(struct exchange *x) {
    const uint32_t n_parts = x->request.n_prompts;
    const size_t parts = n_parts * sizeof *x->parts;
    x->n_choices = n_parts * x->request.base.n;
    x->parts = bump_take(&x->request.arena, parts);
    x->choices = bump_take(&x->request.arena, x->n_choices * sizeof *x->choices);
    if (x->parts == NULL || x->choices == NULL) {
        x->parts = NULL;
        x->choices = NULL;
        return false;
    }
    memset(x->parts, 0, parts);
    memset(x->choices, 0, x->n_choices * sizeof *x->choices);
    struct server *s = x->server;
    /* Whoever knows an id may ask for its explanation, so one must not tell the next. */
    uint64_t secret = s->id_salt;
    (void)!getrandom(&secret, sizeof secret, GRND_NONBLOCK);
    snprintf(x->id, sizeof x->id, "%s-%016llx%06llx", x->kind == REQUEST_CHAT ? "chatcmpl" : "cmpl",
             (unsigned long long)secret, (unsigned long long)s->next_id++);
    struct openai_identity who = s->who;
    const struct io_service *service = &s->cfg.service;
    if (service->fingerprint != NULL) who.fingerprint = service->fingerprint(service->arg);
    openai_prefix(&x->prefix, x->kind, x->request.stream, x->id, clock_wall_s(), &who);
    return true;
}

static void submit(struct exchange *x) {
    struct server *s = x->server;
    struct error why = {0};
    if (!plan_answer(x)) {
        error_set(&why, STATUS_NO_MEMORY, NULL, "no memory for the answer");
        answer_error(x, &why, 1);
        return;
    }
    x->holds++;
    for (uint32_t i = 0; i < x->request.n_prompts; i++) {
        struct part *p = &x->parts[i];
        struct request r = x->request.base;
        r.received_ns = x->received_ns;
        if (x->kind == REQUEST_CHAT || x->kind == REQUEST_COMPLETION)
            r.id = (struct text){x->id, strlen(x->id)};
        if (x->request.prompts != NULL) {
            r.prompt = r.user_text = x->request.prompts[i].text;
            r.ids = x->request.prompts[i].ids;
            r.n_ids = x->request.prompts[i].n_ids;
        }
        p->exchange = x;
        p->index = i;
        const enum status st =
            s->cfg.service.submit(s->cfg.service.arg, &r, &answer_sink, p, &p->handle, &why);
        if (st != STATUS_OK) {
            why.status = st;
            answer_error(x, &why, 1);
            break;
        }
        p->submitted = true;
        x->n_unreleased++;
    }
    x->holds--;
    exchange_let_go(x);
}

static void read_body(struct exchange *x, struct chore *chore) {
    if (x->kind == REQUEST_EMBEDDING) {
        x->read_status = embeddings_parse(&x->request, &x->body, x->server->model_name,
                                          x->server->encoder_name, chore, &x->error);
        return;
    }
    x->read_status =
        openai_parse(&x->request, x->kind, &x->body, x->server->model_name, chore, &x->error);
}

static void read_done(struct exchange *x) {
    connections_drop_body(&x->server->connections, &x->body);
    if (x->connection == NULL) {
        exchange_let_go(x);
        return;
    }
    if (x->read_status == STATUS_OK) {
        submit(x);
        return;
    }
    x->error.status = x->read_status;
    if (x->server->cfg.metrics != NULL && openai_http_status(&x->error) < 500 &&
        (x->kind == REQUEST_CHAT || x->kind == REQUEST_COMPLETION))
        metric_add(x->server->cfg.metrics, METRIC_REJECTED, 0, 1);
    answer_error(x, &x->error, 0);
    exchange_let_go(x);
}

void exchange_start(struct server *s, struct connection *c, enum request_kind kind) {
    struct exchange *x = calloc(1, sizeof *x);
    if (x == NULL) {
        struct error why = {0};
        error_set(&why, STATUS_NO_MEMORY, NULL, "no memory for the request");
        server_reply_error(s, c, 503, &why, 1);
        return;
    }
    x->server = s;
    x->connection = c;
    x->kind = kind;
    x->received_ns = c->received_ns;
    connection_take_body(c, &x->body);
    c->exchange = x;
    s->n_exchanges++;
    if (x->body.bytes > SERVER_CHORE_BYTES) {
        exchange_queue_job(x, JOB_READ);
        return;
    }
    read_body(x, NULL);
    read_done(x);
}

/* ---- jobs ---- */

void exchange_queue_job(struct exchange *x, enum job job) {
    struct server *s = x->server;
    CHECK(x->job == JOB_NONE);
    x->job = job;
    x->holds++;
    x->next = NULL;
    *s->queue_end = x;
    s->queue_end = &x->next;
}

bool exchange_has_jobs(const struct server *s) {
    if (s->queue != NULL) return true;
    for (int i = 0; i < SERVER_CHORES; i++)
        if (s->chores[i].chore != NULL) return true;
    return false;
}

static void run_job(struct chore *chore, void *arg) {
    struct exchange *x = arg;
    if (x->job == JOB_READ)
        read_body(x, chore);
    else
        answer_job(x, chore);
}

static void job_done(struct exchange *x) {
    const enum job job = x->job;
    x->job = JOB_NONE;
    x->holds--;
    if (job == JOB_READ)
        read_done(x);
    else
        answer_job_done(x);
}

static void fill_slots(struct server *s) {
    for (int i = 0; i < SERVER_CHORES && s->queue != NULL; i++) {
        struct chore_slot *slot = &s->chores[i];
        if (slot->chore != NULL) continue;
        struct exchange *x = s->queue;
        s->queue = x->next;
        if (s->queue == NULL) s->queue_end = &s->queue;
        slot->exchange = x;
        slot->chore = chore_init(slot->mem, run_job, x);
        if (x->connection == NULL) chore_cancel(slot->chore); /* gone while it waited */
    }
}

enum { SLICE_NS = 50 * 1000 };

void exchange_run_jobs(struct server *s, uint64_t budget_ns) {
    const uint64_t start = clock_now_ns();
    fill_slots(s);
    bool left = true;
    while (left && clock_now_ns() - start < budget_ns) {
        left = false;
        for (int i = 0; i < SERVER_CHORES && clock_now_ns() - start < budget_ns; i++) {
            struct chore_slot *slot = &s->chores[i];
            if (slot->chore == NULL) continue;
            left = true;
            if (!chore_run(slot->chore, SLICE_NS)) continue;
            struct exchange *x = slot->exchange;
            slot->chore = NULL;
            slot->exchange = NULL;
            job_done(x);
            fill_slots(s);
        }
    }
}
