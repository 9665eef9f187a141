#include "jit/compiler.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/check.h"
#include "core/worker_pool.h"
#include "jit/compiler_state.h"

enum { STACK_BYTES = 16 << 20 }; /* of the idle thread: NVRTC recurses */

const char *compiler_origin_name(enum compiler_origin origin) {
    static const char *const names[] = {"pack", "cache", "compiled"};
    return names[origin];
}

static enum status make_dump_folder(const char *folder, struct error *e) {
    if (mkdir(folder, 0777) == 0 || errno == EEXIST) return STATUS_OK;
    return error_set(e, STATUS_IO, "jit-dump", "cannot make %.150s: %s", folder, strerror(errno));
}

enum status compiler_open(const struct compiler_config *cfg, struct compiler **out,
                          struct error *e) {
    *out = NULL;
    if (cfg->dump_folder != NULL) {
        const enum status s = make_dump_folder(cfg->dump_folder, e);
        if (s != STATUS_OK) return s;
    }
    struct compiler *c = calloc(1, sizeof *c);
    if (c == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the compiler");
    c->cfg = *cfg;
    c->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (c->event_fd < 0) {
        free(c);
        return error_set(e, STATUS_NO_MEMORY, NULL, "no eventfd: %s", strerror(errno));
    }
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->nvrtc_lock, NULL);
    pthread_cond_init(&c->wake, NULL);
    *out = c;
    return STATUS_OK;
}

void compiler_close(struct compiler *c) {
    if (c == NULL) return;
    if (c->started) {
        pthread_mutex_lock(&c->lock);
        c->stop = true;
        pthread_cond_signal(&c->wake);
        pthread_mutex_unlock(&c->lock);
        atomic_store(&c->cancel, true);
        pthread_join(c->idle, NULL);
    }
    for (uint32_t i = 0; i < c->n_entries; i++) {
        compiler_release(c, &c->entries[i]->kernel);
        free(c->entries[i]->source);
        free(c->entries[i]->options);
        free(c->entries[i]);
    }
    nvrtc_close(c->nvrtc);
    close(c->event_fd);
    pthread_cond_destroy(&c->wake);
    pthread_mutex_destroy(&c->nvrtc_lock);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* The entry's place in the table, or the empty one where it would be. */
static uint32_t probe(const struct compiler *c, uint64_t hash) {
    uint32_t i = (uint32_t)(hash ^ hash >> 32) % COMPILER_TABLE_SIZE;
    while (c->table[i] != NULL && c->table[i]->hash != hash) i = (i + 1) % COMPILER_TABLE_SIZE;
    return i;
}

const struct compiled *compiler_find(const struct compiler *c, uint64_t hash) {
    return c->table[probe(c, hash)];
}

const struct compiled *compiler_at(const struct compiler *c, uint32_t i) {
    return i < c->n_entries ? &c->entries[i]->kernel : NULL;
}

int compiler_event_fd(const struct compiler *c) {
    return c->event_fd;
}

/* Rare, and over a few hundred kernels, so no second table. */
static enum status find_request(const struct compiler *c, const struct compiler_request *r,
                                const struct artefact_id *id, struct compiler_entry **out,
                                struct error *e) {
    *out = NULL;
    for (uint32_t i = 0; i < c->n_entries; i++) {
        struct compiler_entry *x = c->entries[i];
        const struct artefact_id *own = &x->kernel.id;
        const bool same = artefact_same(id, own->text, own->text_bytes);
        if (same && x->kernel.hash == r->hash) {
            *out = x;
            return STATUS_OK;
        }
        if (x->kernel.hash == r->hash) {
            return error_set(e, STATUS_INVALID, "jit", "%.100s and %.100s have one hash", own->name,
                             id->name);
        }
    }
    return STATUS_OK;
}

static void enqueue(struct compiler *c, struct compiler_entry *x, uint32_t index) {
    pthread_mutex_lock(&c->lock);
    if (c->n_done == c->n_total) c->n_done = c->n_total = 0;
    c->n_total++;
    x->state = COMPILER_QUEUED;
    if (index < c->next) c->next = index;
    c->n_entries += index == c->n_entries;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
}

enum status compiler_request(struct compiler *c, const struct compiler_request *r,
                             struct error *e) {
    struct artefact_id id;
    const struct artefact_key key = {
        .name = r->name,
        .build = c->cfg.build,
        .source = r->source,
        .spec = r->spec,
        .options = r->options,
        .arch = r->arch,
        .sm_count = r->sm_count,
    };
    artefact_identify(&key, &id);
    struct compiler_entry *x;
    const enum status s = find_request(c, r, &id, &x, e);
    if (s != STATUS_OK) return s;
    if (x != NULL) {
        pthread_mutex_lock(&c->lock);
        const bool again = x->state == COMPILER_KNOWN && x->kernel.status != STATUS_OK;
        pthread_mutex_unlock(&c->lock);
        uint32_t index = 0;
        while (c->entries[index] != x) index++;
        if (again) enqueue(c, x, index);
        return STATUS_OK;
    }
    if (c->n_entries == COMPILER_MAX_KERNELS) {
        return error_set(e, STATUS_FULL, "jit", "more than %d kernels", COMPILER_MAX_KERNELS);
    }
    x = calloc(1, sizeof *x);
    if (x != NULL) {
        x->source = strdup(r->source);
        x->options = strdup(r->options);
    }
    if (x == NULL || x->source == NULL || x->options == NULL) {
        if (x != NULL) {
            free(x->source);
            free(x->options);
        }
        free(x);
        return error_set(e, STATUS_NO_MEMORY, "jit", "no memory for a kernel");
    }
    x->kernel.id = id;
    x->kernel.hash = r->hash;
    snprintf(x->file_name, sizeof x->file_name, "%s-%08x", id.name, (uint32_t)(id.digest[1] >> 32));
    c->entries[c->n_entries] = x;
    enqueue(c, x, c->n_entries);
    return STATUS_OK;
}

/* Under the lock: the first that waits, or NULL. */
static struct compiler_entry *take(struct compiler *c) {
    for (; c->next < c->n_entries; c->next++) {
        struct compiler_entry *x = c->entries[c->next];
        if (x->state != COMPILER_QUEUED) continue;
        x->state = COMPILER_RUNNING;
        return x;
    }
    return NULL;
}

static void finish(struct compiler *c, struct compiler_entry *x) {
    pthread_mutex_lock(&c->lock);
    x->state = COMPILER_FINISHED;
    c->n_done++;
    const struct compiler_progress p = {
        .kernel = &x->kernel, .n_done = c->n_done, .n_total = c->n_total};
    if (c->cfg.progress != NULL) c->cfg.progress(c->cfg.progress_arg, &p);
    pthread_mutex_unlock(&c->lock);
}

static void run_one(void *arg, uint32_t task, uint32_t worker) {
    (void)task, (void)worker;
    struct compiler *c = arg;
    pthread_mutex_lock(&c->lock);
    struct compiler_entry *x = take(c);
    pthread_mutex_unlock(&c->lock);
    if (x == NULL) return;
    compiler_make(c, x);
    finish(c, x);
}

/* The owner takes note of a finished kernel. */
static void note(struct compiler *c, struct compiler_entry *x) {
    x->state = COMPILER_KNOWN;
    if (x->kernel.status == STATUS_OK) c->table[probe(c, x->kernel.hash)] = &x->kernel;
}

enum status compiler_run(struct compiler *c, struct worker_pool *workers, struct error *e) {
    CHECK(!c->started);
    uint32_t n_queued = 0;
    for (uint32_t i = 0; i < c->n_entries; i++) {
        n_queued += c->entries[i]->state == COMPILER_QUEUED;
    }
    if (workers != NULL) {
        worker_pool_run(workers, run_one, c, n_queued);
    } else {
        for (uint32_t i = 0; i < n_queued; i++) run_one(c, i, 0);
    }
    enum status first = STATUS_OK;
    for (uint32_t i = 0; i < c->n_entries; i++) {
        struct compiler_entry *x = c->entries[i];
        if (x->state != COMPILER_FINISHED) continue;
        note(c, x);
        if (x->kernel.status == STATUS_OK || first != STATUS_OK) continue;
        first = x->kernel.status;
        if (e != NULL) *e = x->kernel.error;
    }
    return first;
}

static void *idle_main(void *arg) {
    struct compiler *c = arg;
    const struct sched_param zero = {0};
    /* Where it is not allowed the thread competes with the others; nothing else changes. */
    (void)pthread_setschedparam(pthread_self(), SCHED_IDLE, &zero);
    pthread_mutex_lock(&c->lock);
    while (!c->stop) {
        struct compiler_entry *x = take(c);
        if (x == NULL) {
            pthread_cond_wait(&c->wake, &c->lock);
            continue;
        }
        pthread_mutex_unlock(&c->lock);
        compiler_make(c, x);
        finish(c, x);
        const uint64_t one = 1;
        const ssize_t n = write(c->event_fd, &one, sizeof one);
        CHECK(n == (ssize_t)sizeof one || errno == EAGAIN);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

enum status compiler_start(struct compiler *c, struct error *e) {
    CHECK(!c->started);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    const int rc = pthread_create(&c->idle, &attr, idle_main, c);
    pthread_attr_destroy(&attr);
    if (rc != 0) {
        return error_set(e, STATUS_NO_MEMORY, "jit", "no thread to compile in: %s", strerror(rc));
    }
    c->started = true;
    return STATUS_OK;
}

const struct compiled *compiler_poll(struct compiler *c) {
    struct compiler_entry *found = NULL;
    uint64_t count;
    /* Before looking: what finishes from here on signals anew. */
    const ssize_t n = read(c->event_fd, &count, sizeof count);
    CHECK(n == (ssize_t)sizeof count || errno == EAGAIN || errno == EINTR);
    uint32_t left = 0;
    pthread_mutex_lock(&c->lock);
    for (uint32_t i = 0; i < c->n_entries; i++) {
        if (c->entries[i]->state != COMPILER_FINISHED) continue;
        if (found == NULL) found = c->entries[i];
        left++;
    }
    if (found != NULL) note(c, found);
    pthread_mutex_unlock(&c->lock);
    if (found == NULL) return NULL;
    if (left > 1) {
        /* An owner that polls once per event must hear of the rest. */
        const uint64_t one = 1;
        const ssize_t written = write(c->event_fd, &one, sizeof one);
        CHECK(written == (ssize_t)sizeof one || errno == EAGAIN);
    }
    return &found->kernel;
}
