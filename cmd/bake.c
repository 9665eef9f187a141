/* bake: compiles a model's GPU kernels ahead, for given chips, into a pack. No GPU is needed. */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/commands.h"
#include "cmd/service.h"
#include "cmd/usage.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/worker_pool.h"
#include "jit/compiler.h"
#include "jit/kernel_set.h"
#include "models/model.h"

struct bake {
    const struct config *config;
    const struct plan *plan;
    struct log log;
    struct store *store;
    struct worker_pool *workers;
    struct pack_writer *writer;
    uint32_t arch, sm_count; /* being compiled */
    bool show;
};

static void on_progress(void *arg, const struct compiler_progress *p) {
    const struct bake *b = arg;
    if (!b->show) return;
    fprintf(stderr, "\r\033[Ksm_%u x %u  %u/%u  %s %.0f ms", b->arch, b->sm_count, p->n_done,
            p->n_total, p->kernel->id.name, (double)p->kernel->took_ns * 1e-6);
    if (p->n_done == p->n_total) fputs("\r\033[K", stderr);
    fflush(stderr);
}

/* The table's chip of that capability, with the SM count asked for. */
static enum status find_device(uint32_t arch, uint32_t sm_count, struct kernel_device *out,
                               struct error *e) {
    char known[160] = "";
    const char *name;
    const struct kernel_device *d;
    for (uint32_t i = 0; (d = kernel_device_at(i, &name)) != NULL; i++) {
        if (d->cc == arch) {
            *out = *d;
            if (sm_count != 0) out->n_sms = sm_count;
            return STATUS_OK;
        }
        char one[16];
        snprintf(one, sizeof one, "%s%u", known[0] != '\0' ? ", " : "", d->cc);
        if (strstr(known, one) == NULL) strncat(known, one, sizeof known - strlen(known) - 1);
    }
    return error_set(e, STATUS_UNSUPPORTED, "arch", "--arch %u is not known; there are %s", arch,
                     known);
}

static enum status add_to_pack(struct bake *b, const struct compiler *c, struct error *e) {
    uint32_t n[3] = {0};
    uint64_t compile_ns = 0;
    const struct compiled *k;
    for (uint32_t i = 0; (k = compiler_at(c, i)) != NULL; i++) {
        const enum status s = pack_writer_add(b->writer, &k->id, &k->artefact, e);
        if (s != STATUS_OK) return s;
        n[k->origin]++;
        if (k->origin == COMPILER_FROM_SOURCE) compile_ns += k->took_ns;
    }
    printf("sm_%u x %u SMs: %u kernels, %u compiled (%.1f s of compiler time), %u from the cache\n",
           b->arch, b->sm_count, n[COMPILER_FROM_SOURCE] + n[COMPILER_FROM_STORE],
           n[COMPILER_FROM_SOURCE], (double)compile_ns * 1e-9, n[COMPILER_FROM_STORE]);
    fflush(stdout);
    return STATUS_OK;
}

static enum status bake_target(struct bake *b, uint32_t arch, uint32_t sm_count, struct error *e) {
    struct kernel_device device;
    struct kernel_set set = {0};
    struct compiler *c = NULL;
    enum status s = find_device(arch, sm_count, &device, e);
    if (s != STATUS_OK) return s;
    b->arch = arch;
    b->sm_count = device.n_sms;
    const struct kernel_set_options options = {
        .activation_bits = b->config->activations == ACTIVATION_INT8 ? 8 : 16,
        .max_rows = KERNEL_SET_MAX_ROWS,
    };
    const struct compiler_config cfg = {
        .store = b->store,
        .may_compile = true,
        .nvrtc_path = b->config->nvrtc,
        .build = LACONIC_VERSION,
        .dump_folder = b->config->jit_dump,
        .log = &b->log,
        .progress = on_progress,
        .progress_arg = b,
    };
    s = kernel_set_build(b->plan, &device, &options, &set, e);
    if (s == STATUS_OK) s = compiler_open(&cfg, &c, e);
    if (s == STATUS_OK) s = kernel_set_request_all(c, &set, e);
    if (s == STATUS_OK) s = compiler_run(c, b->workers, e);
    if (s == STATUS_OK) s = add_to_pack(b, c, e);
    compiler_close(c);
    kernel_set_free(&set);
    return s;
}

static enum status bake_all(struct bake *b, struct error *e) {
    const struct config *c = b->config;
    for (uint32_t i = 0; i < c->bake_arch.n; i++) {
        const uint32_t arch = (uint32_t)c->bake_arch.values[i];
        const uint32_t n = c->bake_sms.n > 0 ? c->bake_sms.n : 1;
        for (uint32_t k = 0; k < n; k++) {
            const uint32_t sms = c->bake_sms.n > 0 ? (uint32_t)c->bake_sms.values[k] : 0;
            const enum status s = bake_target(b, arch, sms, e);
            if (s != STATUS_OK) return s;
        }
    }
    return pack_writer_save(b->writer, c->out_path, e);
}

/* Said now, not after minutes of compiling. */
static enum status check_out_path(const char *path, struct error *e) {
    char folder[1024];
    const char *slash = strrchr(path, '/');
    const int n = slash == NULL
                      ? snprintf(folder, sizeof folder, ".")
                      : snprintf(folder, sizeof folder, "%.*s/", (int)(slash - path), path);
    if (n > 0 && (size_t)n < sizeof folder && access(folder, W_OK | X_OK) == 0) return STATUS_OK;
    return error_set(e, STATUS_IO, "-o", "cannot write %.150s: %s", path, strerror(errno));
}

static enum status open_tools(struct bake *b, struct error *e) {
    cpu_set_t set;
    CPU_ZERO(&set);
    const int cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    char folder[1024];
    const struct store_config store = {
        .folder = config_cache_dir(b->config, folder, sizeof folder) ? folder : NULL,
        .log = &b->log,
    };
    const struct worker_pool_config pool = {
        .n_workers = b->config->threads != 0 ? b->config->threads : (uint32_t)cpus,
    };
    enum status s = store_open(&store, &b->store, e);
    if (s == STATUS_OK) s = worker_pool_start(&pool, &b->workers, e);
    if (s == STATUS_OK) s = pack_writer_open(&b->writer, e);
    return s;
}

int cmd_bake(int argc, char **argv) {
    struct config c;
    int rc;
    if (!usage_parse(&c, argc, argv, &rc)) return rc;
    struct error e = {0};
    struct model *m = NULL;
    struct bake b = {.config = &c,
                     .log = {.out = stderr, .level = LOG_WARN},
                     .show = isatty(STDERR_FILENO) == 1};
    const uint64_t start_ns = clock_now_ns();
    enum status s = check_out_path(c.out_path, &e);
    if (s == STATUS_OK) s = model_open(c.model, 0, &m, &e);
    if (s == STATUS_OK) {
        b.plan = model_plan(m);
        s = open_tools(&b, &e);
    }
    if (s == STATUS_OK) s = bake_all(&b, &e);
    if (s == STATUS_OK) {
        printf("%s written in %.1f s; laconic inspect %s lists it\n", c.out_path,
               (double)(clock_now_ns() - start_ns) * 1e-9, c.out_path);
    }
    pack_writer_close(b.writer);
    if (b.workers != NULL) worker_pool_stop(b.workers);
    store_close(b.store);
    model_close(m);
    return s == STATUS_OK ? 0 : usage_fail("bake", &e);
}
