#include "sched/chores.h"

#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/chore.h"

enum status chores_open(struct chores *c, const struct chores_config *cfg, struct error *e) {
    CHECK(cfg->n >= 1 && cfg->n <= CHORES_MAX);
    memset(c, 0, sizeof *c);
    c->cfg = *cfg;
    const size_t bytes = (chore_footprint() + 63) & ~(size_t)63;
    c->memory = aligned_alloc(64, cfg->n * bytes);
    if (c->memory == NULL)
        return error_set(e, STATUS_NO_MEMORY, NULL, "out of memory for the stacks of chores");
    for (uint32_t i = 0; i < cfg->n; i++) c->places[i].mem = (char *)c->memory + i * bytes;
    return STATUS_OK;
}

void chores_start(struct chores *c, uint32_t name, const struct request *r,
                  const struct policy_epoch *epoch, struct embed_job *embed) {
    CHECK(chores_room(c));
    struct chore_place *p = c->places;
    while (p->chore != NULL) p++;
    p->name = name;
    p->work = (struct prepare){.model = c->cfg.model, .request = r, .epoch = epoch, .embed = embed};
    p->chore = chore_init(p->mem, prepare_run, &p->work);
    c->n_active++;
}

uint32_t chores_name(const struct chores *c, uint32_t i) {
    return c->places[i].chore != NULL ? c->places[i].name : CHORES_NONE;
}

void chores_cancel(struct chores *c, uint32_t name) {
    for (uint32_t i = 0; i < c->cfg.n; i++)
        if (chores_name(c, i) == name) chore_cancel(c->places[i].chore);
}

static void run_one(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    struct chores *c = arg;
    (void)chore_run(c->places[c->turn[task]].chore, c->cfg.slice_ns);
}

void chores_round(struct chores *c) {
    const uint32_t most = worker_pool_size(c->cfg.workers);
    uint32_t n = 0;
    for (uint32_t k = 0; k < c->cfg.n && n < most; k++) {
        const uint32_t i = (c->next + k) % c->cfg.n;
        const struct chore *chore = c->places[i].chore;
        if (chore != NULL && !chore_done(chore)) c->turn[n++] = i;
    }
    if (n == 0) return;
    worker_pool_run(c->cfg.workers, run_one, c, n);
    c->next = (c->turn[n - 1] + 1) % c->cfg.n;
}

bool chores_take(struct chores *c, uint32_t *name, struct prepared *out) {
    for (uint32_t i = 0; i < c->cfg.n && c->n_active > 0; i++) {
        struct chore_place *p = &c->places[i];
        if (p->chore == NULL || !chore_done(p->chore)) continue;
        *name = p->name;
        *out = p->work.out;
        p->chore = NULL;
        c->n_active--;
        return true;
    }
    return false;
}

void chores_close(struct chores *c) {
    uint32_t name;
    struct prepared out;
    for (uint32_t i = 0; i < c->cfg.n; i++)
        if (c->places[i].chore != NULL) chore_cancel(c->places[i].chore);
    while (c->n_active > 0) {
        chores_round(c);
        while (chores_take(c, &name, &out)) prepared_free(&out);
    }
    free(c->memory);
    memset(c, 0, sizeof *c);
}
