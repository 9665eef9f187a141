/* serve: the loop. It owns the process: the server collects and frames, the scheduler decides. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "cmd/commands.h"
#include "cmd/service.h"
#include "cmd/usage.h"
#include "core/clock.h"
#include "io/server.h"

enum { DRAIN_SECONDS = 30, NS_PER_S = 1000000000 };

struct loop {
    struct service *service;
    struct server *server;
    bool warm, draining;
    atomic_bool serves; /* what is below stands, and is served */
    atomic_int stops;   /* SIGTERM and SIGINT received: one drains, a second cuts */
};

static void between_layers(void *arg) {
    struct loop *l = arg;
    if (l->server != NULL) server_reap(l->server);
}

static enum status submit(void *arg, const struct request *r, const struct request_sink *sink,
                          void *user, request_handle *out, struct error *e) {
    return sched_submit(((struct loop *)arg)->service->sched, r, sink, user, out, e);
}

static void cancel(void *arg, request_handle h) {
    sched_cancel(((struct loop *)arg)->service->sched, h);
}

static bool ready(void *arg) {
    const struct loop *l = arg;
    return l->warm && !l->draining && !engine_lost(l->service->engine);
}

static void refresh(void *arg) {
    service_refresh(((struct loop *)arg)->service);
}

static const char *fingerprint(void *arg) {
    return sched_fingerprint(((struct loop *)arg)->service->sched);
}

static enum status explain(void *arg, struct text id, struct buffer *out, struct error *e) {
    return sched_explain(((struct loop *)arg)->service->sched, id, out, e);
}

static enum status feedback(void *arg, const struct request_feedback *f, struct buffer *out,
                            struct error *e) {
    return sched_feedback(((struct loop *)arg)->service->sched, f, out, e);
}

static enum status policy(void *arg, enum io_policy_action action, struct buffer *out,
                          struct error *e) {
    const enum sched_policy_action what = action == IO_POLICY_PROMOTE  ? SCHED_POLICY_PROMOTE
                                          : action == IO_POLICY_REVERT ? SCHED_POLICY_REVERT
                                                                       : SCHED_POLICY_SHOW;
    return sched_policy(((struct loop *)arg)->service->sched, what, out, e);
}

/* A thread that does nothing but wait for signals, so that no handler interrupts the loop. */
static void *wait_for_signals(void *arg) {
    struct loop *l = arg;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    for (;;) {
        int signal_number;
        if (sigwait(&set, &signal_number) != 0) return NULL;
        /* Nobody is served yet, and loading may take long. */
        if (!atomic_load(&l->serves)) _exit(128 + signal_number);
        atomic_fetch_add(&l->stops, 1);
        server_wake(l->server);
    }
}

/* One answer before the ready line: it touches the weights, pages and scratch. */
struct warm_up {
    bool done;
};

static void warm_started(void *user, uint64_t seed) {
    (void)user, (void)seed;
}
static void warm_delta(void *user, uint32_t choice, const char *bytes, size_t n,
                       const struct token_logprob *lps, uint32_t n_lps) {
    (void)user, (void)choice, (void)bytes, (void)n, (void)lps, (void)n_lps;
}
static void warm_finish(void *user, uint32_t choice, enum finish_reason reason) {
    (void)user, (void)choice, (void)reason;
}
static void warm_tokens(void *user, const uint32_t *ids, size_t n) {
    (void)user, (void)ids, (void)n;
}
static void warm_done(void *user, const struct request_usage *usage,
                      const struct request_report *report) {
    (void)user, (void)usage, (void)report;
}
static void warm_failed(void *user, const struct error *e, uint32_t retry_after_s) {
    (void)user, (void)retry_after_s;
    fprintf(stderr, "laconic serve: the first answer failed: %s\n", e->message);
}
static void warm_release(void *user) {
    ((struct warm_up *)user)->done = true;
}
static bool warm_writable(void *user) {
    (void)user;
    return true;
}

static enum status warm_up(struct service *s, struct error *e) {
    static const struct request_sink sink = {warm_started, warm_delta,   warm_finish,
                                             warm_tokens,  NULL,         warm_done,
                                             warm_failed,  warm_release, warm_writable};
    const uint32_t id = 0; /* one: the shortest context has room for it and an answer */
    struct warm_up w = {0};
    const struct request r = {
        .kind = REQUEST_COMPLETION,
        .set = REQUEST_SET_MAX_TOKENS | REQUEST_SET_SEED | REQUEST_SET_TEMPERATURE,
        .ids = &id,
        .n_ids = 1,
        .n = 1,
        .max_tokens = 2,
        .top_p = 1,
        .repetition_penalty = 1,
        .ignore_eos = true,
        .received_ns = clock_now_ns(),
    };
    request_handle h;
    const enum status st = sched_submit(s->sched, &r, &sink, &w, &h, e);
    if (st != STATUS_OK) return st;
    while (!w.done) (void)sched_tick(s->sched);
    metric_init(s->metrics); /* what clients did not ask for does not count */
    metric_set(s->metrics, METRIC_POLICY_EPOCH, 0, policy_newest(s->policy)->number);
    return STATUS_OK;
}

static uint64_t until(uint64_t deadline_ns) {
    if (deadline_ns == UINT64_MAX) return NS_PER_S;
    const uint64_t now = clock_now_ns();
    if (deadline_ns <= now) return 0;
    return deadline_ns - now < NS_PER_S ? deadline_ns - now : NS_PER_S;
}

/* Until a signal asks to stop, everything accepted is answered, and everything sent. */
static void run_loop(struct loop *l) {
    struct sched *sched = l->service->sched;
    bool work = false;
    uint64_t cut_ns = UINT64_MAX;
    for (;;) {
        const bool io_work =
            server_turn(l->server, work ? 0 : until(sched_next_deadline_ns(sched)));
        work = sched_tick(sched) || io_work;
        const int stops = atomic_load(&l->stops);
        if (stops > 0 && !l->draining) {
            l->draining = true;
            cut_ns = clock_now_ns() + (uint64_t)DRAIN_SECONDS * NS_PER_S;
            fprintf(stderr, "laconic serve: stopping; running answers finish\n");
            server_drain(l->server);
            sched_drain(sched);
        }
        if (!l->draining) continue;
        if (server_idle(l->server) && sched_idle(sched)) return;
        if (stops > 1 || clock_now_ns() > cut_ns) {
            server_abort(l->server);
            while (!sched_idle(sched)) (void)sched_tick(sched);
            return;
        }
    }
}

int cmd_serve(int argc, char **argv) {
    struct config c;
    int rc;
    if (!usage_parse(&c, argc, argv, &rc)) return rc;
    struct error e = {0};
    /* Every thread started from here on leaves these to the one that waits for them. */
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);

    struct loop l = {0};
    const struct service_options options = {.config = &c,
                                            .max_batch = c.max_batch,
                                            .max_queue = c.max_queue,
                                            .asynchronous = true,
                                            .between = between_layers,
                                            .between_arg = &l};
    pthread_t signals;
    if (pthread_create(&signals, NULL, wait_for_signals, &l) != 0) {
        fprintf(stderr, "laconic serve: no thread for signals\n");
        return 1;
    }
    if (service_open(&options, &l.service, &e) != STATUS_OK) return usage_fail("serve", &e);
    if (warm_up(l.service, &e) != STATUS_OK) {
        service_close(l.service);
        return usage_fail("serve", &e);
    }
    const struct server_config cfg = {
        .host = c.host,
        .port = (uint16_t)c.port,
        .uds = c.uds,
        .io = c.io == CONFIG_IO_AUTO    ? RING_AUTO
              : c.io == CONFIG_IO_URING ? RING_URING
                                        : RING_EPOLL,
        .limits = server_default_limits(),
        .model_name = l.service->name,
        .encoder_name = l.service->encoder != NULL ? encoder_name(l.service->encoder) : NULL,
        .fingerprint = sched_fingerprint(l.service->sched),
        .metrics = l.service->metrics,
        .service = {.arg = &l,
                    .submit = submit,
                    .cancel = cancel,
                    .ready = ready,
                    .refresh = refresh,
                    .fingerprint = fingerprint,
                    .explain = explain,
                    .feedback = feedback,
                    .policy = policy},
    };
    struct server *server;
    if (server_open(&cfg, &server, &e) != STATUS_OK) {
        service_close(l.service);
        return usage_fail("serve", &e);
    }
    const int device_fd = l.service->engine->event_fd;
    if (device_fd >= 0 && server_watch(server, device_fd, &e) != STATUS_OK) {
        server_close(server);
        service_close(l.service);
        return usage_fail("serve", &e);
    }
    l.server = server;
    const char *isa = cpu_isa_name(l.service->engine->isa);
    char computes[192];
    engine_describe(l.service->engine, computes, sizeof computes);
    metric_set_info(l.service->metrics, LACONIC_VERSION, l.service->name, isa,
                    l.service->engine->backend->ops->name, server_io_name(server));
    atomic_store(&l.serves, true);
    engine_print_memory(l.service->engine, stderr);
    l.warm = true;
    if (server_io_note(server)[0] != '\0')
        fprintf(stderr, "laconic serve: %s\n", server_io_note(server));
    printf("ready %s (%s; backend %s, io %s)\n", server_url(server), l.service->name, computes,
           server_io_name(server));
    fflush(stdout);

    run_loop(&l);

    pthread_cancel(signals);
    pthread_join(signals, NULL);
    l.server = NULL;
    server_close(server);
    service_close(l.service);
    return 0;
}
