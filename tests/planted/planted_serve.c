/* laconic serve with drifts planted into what the CPU backend computes, for tests of the rollback
 * monitor. The product has no way to plant one: this program is the product's own archives linked
 * with --wrap=cpu_backend_init, and a backend in between.
 *
 * usage: planted_serve [serve] MODEL [options]; the environment's LAC_PLANT names a file of lines
 *   SEED POSITION force ID ID ...          the draws at POSITION, POSITION + 1, ... give these ids
 *   SEED POSITION force-always ID ID ...   the same, also when they are drawn again
 *   SEED POSITION bias LENGTH AMOUNT ID ... for LENGTH draws these ids' logits are raised by AMOUNT
 * and is read anew for every step. A plant acts on draws of requests with that seed, choice 0, and,
 * but for force-always, attempt 0: what is drawn again after a rollback is the model's own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/commands.h"
#include "core/backend.h"
#include "core/check.h"
#include "core/cpu/cpu_backend.h"

enum { MAX_PLANTS = 4096, MAX_IDS = 256, MAX_LISTS = 1 << 16, MAX_OUTPUTS = 4096 };

struct plant {
    uint64_t seed;
    uint32_t position, n, n_ids;
    float amount; /* 0: the ids are forced */
    bool always;
    uint32_t ids[MAX_IDS];
};

struct planted {
    struct backend base;
    struct backend *real;
    struct plant *plants;
    uint32_t n_plants;
    struct sample_bias *lists; /* merged lists of a step */
    struct sample_spec *specs; /* [MAX_OUTPUTS]: as the scheduler made them */
};

static void read_plants(struct planted *p) {
    const char *path = getenv("LAC_PLANT");
    FILE *f = path != NULL ? fopen(path, "r") : NULL;
    char line[8192];
    p->n_plants = 0;
    if (f == NULL) return;
    while (p->n_plants < MAX_PLANTS && fgets(line, sizeof line, f) != NULL) {
        struct plant *k = &p->plants[p->n_plants];
        char kind[16];
        int at = 0, more = 0;
        *k = (struct plant){0};
        unsigned long long seed;
        if (sscanf(line, "%llu %u %15s %n", &seed, &k->position, kind, &at) < 3) continue;
        k->seed = seed;
        if (strcmp(kind, "bias") == 0) {
            if (sscanf(line + at, "%u %f %n", &k->n, &k->amount, &more) < 2) continue;
            at += more;
        }
        while (k->n_ids < MAX_IDS && sscanf(line + at, "%u %n", &k->ids[k->n_ids], &more) == 1) {
            k->n_ids++;
            at += more;
        }
        if (strncmp(kind, "force", 5) == 0) k->n = k->n_ids;
        k->always = strcmp(kind, "force-always") == 0;
        p->n_plants++;
    }
    fclose(f);
}

/* The plant for a draw, or NULL. */
static const struct plant *plant_of(struct planted *p, const struct step *s, const struct output *o,
                                    uint32_t *at) {
    const struct sample_spec *spec = &o->sample;
    if (spec->choice != 0 || spec->target != STEP_NONE) return NULL;
    uint32_t i = 0;
    while (o->row >= s->spans[i].first_row + s->spans[i].n_tokens) i++;
    const uint32_t position = s->spans[i].first_position + (o->row - s->spans[i].first_row) + 1;
    for (uint32_t k = 0; k < p->n_plants; k++) {
        const struct plant *t = &p->plants[k];
        if (t->seed != spec->seed || (spec->attempt != 0 && !t->always) || position < t->position ||
            position >= t->position + t->n)
            continue;
        *at = position - t->position;
        return t;
    }
    return NULL;
}

static void raise_logits(const struct plant *t, struct sample_spec *spec, struct sample_bias *out) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < spec->n_biases; i++) out[n++] = spec->biases[i];
    for (uint32_t k = 0; k < t->n_ids; k++) {
        uint32_t at = 0;
        while (at < n && out[at].id < t->ids[k]) at++;
        if (at == n || out[at].id != t->ids[k]) {
            memmove(out + at + 1, out + at, (n - at) * sizeof *out);
            out[at] = (struct sample_bias){.id = t->ids[k], .divisor = 1};
            n++;
        }
        out[at].delta += t->amount;
    }
    spec->biases = out;
    spec->n_biases = n;
}

static enum status planted_submit(struct backend *b, struct step *s) {
    struct planted *p = (struct planted *)b;
    uint32_t used = 0, at;
    read_plants(p);
    CHECK(s->n_outputs <= MAX_OUTPUTS);
    for (uint32_t i = 0; i < s->n_outputs; i++) p->specs[i] = s->outputs[i].sample;
    for (uint32_t i = 0; i < s->n_outputs; i++) {
        const struct plant *t = plant_of(p, s, &s->outputs[i], &at);
        if (t == NULL || t->amount == 0) continue;
        CHECK(used + s->outputs[i].sample.n_biases + t->n_ids <= MAX_LISTS);
        raise_logits(t, &s->outputs[i].sample, p->lists + used);
        used += s->outputs[i].sample.n_biases;
    }
    return p->real->ops->submit(p->real, s);
}

static struct step *planted_poll(struct backend *b) {
    struct planted *p = (struct planted *)b;
    struct step *s = p->real->ops->poll(p->real);
    for (uint32_t i = 0; s != NULL && i < s->n_outputs; i++) {
        struct output *o = &s->outputs[i];
        uint32_t at;
        o->sample = p->specs[i];
        const struct plant *t = plant_of(p, s, o, &at);
        if (t == NULL || t->amount != 0 || o->bad) continue;
        o->token = t->ids[at];
        /* What a sampler that drew it would have said; of the 20 best or just below them. */
        float logit = o->top[STEP_TOP - 1].logit - 1;
        for (uint32_t k = 0; k < STEP_TOP; k++)
            if (o->top[k].id == o->token) logit = o->top[k].logit;
        o->logprob = logit - o->lse;
    }
    return s;
}

static enum status planted_publish(struct backend *b, uint64_t epoch, const struct heads *heads,
                                   struct error *e) {
    struct backend *real = ((struct planted *)b)->real;
    return real->ops->publish(real, epoch, heads, e);
}
static void planted_retire(struct backend *b, uint64_t epoch) {
    ((struct planted *)b)->real->ops->retire(((struct planted *)b)->real, epoch);
}
static void planted_drain(struct backend *b) {
    ((struct planted *)b)->real->ops->drain(((struct planted *)b)->real);
}
static void planted_destroy(struct backend *b) {
    struct planted *p = (struct planted *)b;
    p->real->ops->destroy(p->real);
    free(p->plants);
    free(p->lists);
    free(p->specs);
    free(p);
}

static const struct backend_ops planted_ops = {.name = "cpu",
                                               .publish = planted_publish,
                                               .retire = planted_retire,
                                               .submit = planted_submit,
                                               .poll = planted_poll,
                                               .drain = planted_drain,
                                               .destroy = planted_destroy};

enum status __real_cpu_backend_init(void *mem, const struct backend_config *cfg,
                                    struct backend **out, struct error *e);
enum status __wrap_cpu_backend_init(void *mem, const struct backend_config *cfg,
                                    struct backend **out, struct error *e);
enum status __wrap_cpu_backend_init(void *mem, const struct backend_config *cfg,
                                    struct backend **out, struct error *e) {
    struct planted *p = calloc(1, sizeof *p);
    CHECK(p != NULL);
    p->base.ops = &planted_ops;
    p->plants = calloc(MAX_PLANTS, sizeof *p->plants);
    p->lists = calloc(MAX_LISTS, sizeof *p->lists);
    p->specs = calloc(MAX_OUTPUTS, sizeof *p->specs);
    CHECK(p->plants != NULL && p->lists != NULL && p->specs != NULL);
    const enum status st = __real_cpu_backend_init(mem, cfg, &p->real, e);
    *out = st == STATUS_OK ? &p->base : NULL;
    if (st != STATUS_OK) free(p);
    return st;
}

int main(int argc, char **argv) {
    char serve[] = "serve";
    CHECK(argc >= 2);
    if (strcmp(argv[1], serve) == 0) return cmd_serve(argc - 1, argv + 1);
    argv[0] = serve;
    return cmd_serve(argc, argv);
}
