#include "cmd/bench_kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/engine.h"
#include "cmd/service.h"
#include "cmd/usage.h"
#include "core/json_writer.h"
#include "jit/compiler.h"
#include "jit/cuda_backend.h"
#include "jit/kernel_bench.h"
#include "jit/kernel_set.h"
#include "models/model.h"

struct shape {
    uint32_t n, k; /* 0: any */
    struct config_list rows;
};

struct bench {
    const struct config *config;
    struct shape shape;
    struct log log;
    struct model *model;
    struct cuda cuda;
    struct cuda_device device;
    struct cu_context *context;
    struct cu_stream *stream;
    struct nvtx nvtx;
    struct kernel_device chip;
    struct store *store;
    struct pack *pack;
    struct compiler *compiler;
    struct worker_pool *workers;
    bool clock;
    double peak, copy; /* bytes a second; 0: not known */
    struct buffer out;
    struct json_writer json;
    uint32_t n_run;
};

/* "n=3072,k=576,b=1", any of them. */
static enum status parse_shape(const struct config *c, struct shape *s, struct error *e) {
    *s = (struct shape){.rows = c->bench_batch};
    const char *p = c->bench_shape;
    while (p != NULL && *p != '\0') {
        char key = *p, *end = NULL;
        const unsigned long v = p[1] == '=' ? strtoul(p + 2, &end, 10) : 0;
        const bool number = end != NULL && end > p + 2 && v > 0 && v <= 1u << 24;
        if (!number || (*end != ',' && *end != '\0') || strchr("nkb", key) == NULL ||
            (key == 'b' && v > KERNEL_SET_MAX_ROWS))
            return error_set(e, STATUS_INVALID, "--shape",
                             "--shape takes n=,k=,b= (b at most %d), not '%s'", KERNEL_SET_MAX_ROWS,
                             c->bench_shape);
        if (key == 'n') s->n = (uint32_t)v;
        if (key == 'k') s->k = (uint32_t)v;
        if (key == 'b') s->rows = (struct config_list){.n = 1, .values = {(int)v}};
        p = *end == ',' ? end + 1 : end;
    }
    for (uint32_t i = 0; i < s->rows.n; i++)
        if (s->rows.values[i] > KERNEL_SET_MAX_ROWS)
            return error_set(e, STATUS_INVALID, "--batch", "a kernel takes at most %d rows",
                             KERNEL_SET_MAX_ROWS);
    return STATUS_OK;
}

static bool known_family(const char *name) {
    for (int f = 0; f < KERNEL_FAMILY_COUNT; f++)
        if (strcmp(name, kernel_family_name((enum kernel_family)f)) == 0) return true;
    return strcmp(name, "all") == 0;
}

/* Of the family asked for, and of the shape in its name: lac_<family>_<format>_<n>_<k>_sm<cc>. */
static bool wanted(const struct bench *b, const struct kernel_use *u, char *name) {
    unsigned n = 0, k = 0;
    const char *family = kernel_family_name((enum kernel_family)u->spec.family);
    kernel_name(&u->spec, &u->config, &b->chip, name);
    const char *at = strstr(name, "_sm");
    for (int i = 0; i < 2; i++)
        while (at != NULL && *--at != '_') {
        }
    if (at == NULL || sscanf(at, "_%u_%u", &n, &k) != 2) return false;
    return (strcmp(b->config->bench_kernel, "all") == 0 ||
            strcmp(b->config->bench_kernel, family) == 0) &&
           (b->shape.n == 0 || b->shape.n == n) && (b->shape.k == 0 || b->shape.k == k);
}

static enum status open_device(struct bench *b, struct error *e) {
    const struct config *c = b->config;
    enum status s = cuda_open(&b->cuda, NULL, e);
    if (s == STATUS_OK) s = cuda_device_read(&b->cuda, 0, &b->device, e);
    if (s == STATUS_OK) s = cuda_context_open(&b->cuda, &b->device, &b->context, e);
    if (s == STATUS_OK)
        s = CUDA_CALL(&b->cuda, e, stream_create_with_priority, &b->stream, CU_STREAM_NON_BLOCKING,
                      0);
    if (s != STATUS_OK) return s;
    b->chip = cuda_kernel_device(&b->device);
    struct error ignored;
    (void)!nvtx_open(&b->nvtx, c->nvtx_injection, "laconic", &ignored);
    char folder[1024];
    const struct store_config store = {
        .folder = config_cache_dir(c, folder, sizeof folder) ? folder : NULL, .log = &b->log};
    const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    const struct worker_pool_config pool = {
        .n_workers = c->threads != 0 ? c->threads
                     : cpus > 0      ? (uint32_t)cpus
                                     : 1,
    };
    s = store_open(&store, &b->store, e);
    if (s == STATUS_OK && c->pack != NULL) s = pack_open(c->pack, &b->pack, e);
    if (s == STATUS_OK) s = worker_pool_start(&pool, &b->workers, e);
    if (s != STATUS_OK) return s;
    const struct compiler_config compiler = {
        .pack = b->pack,
        .store = b->store,
        .may_compile = c->jit,
        .nvrtc_path = c->nvrtc,
        .build = LACONIC_VERSION,
        .dump_folder = c->jit_dump,
        .log = &b->log,
        .cuda = &b->cuda,
        .context = b->context,
    };
    return compiler_open(&compiler, &b->compiler, e);
}

static struct kernel_bench bench_of(const struct bench *b, const struct kernel_use *u,
                                    struct cu_function *f) {
    const uint32_t rows = u != NULL ? u->n_rows : 1, depth = b->config->bench_depth;
    return (struct kernel_bench){.cuda = &b->cuda,
                                 .context = b->context,
                                 .stream = b->stream,
                                 .chip = &b->chip,
                                 .nvtx = &b->nvtx,
                                 .function = f,
                                 .use = u,
                                 .depth = depth + 1 >= rows ? depth : rows - 1,
                                 .launches = b->clock ? KERNEL_BENCH_LAUNCHES : 1,
                                 .reps = b->config->bench_reps,
                                 .graphs = b->config->graphs};
}

static void write_figure(struct json_writer *j, const char *key, bool known, double v) {
    json_write_key(j, key);
    if (known)
        json_write_double(j, v);
    else
        json_write_null(j);
}

static void report(struct bench *b, const char *name, const struct kernel_use *u,
                   const struct kernel_bench_result *r) {
    struct json_writer *j = &b->json;
    const double rate = r->timed && r->median_us > 0 ? (double)r->bytes / r->median_us * 1e6 : 0;
    if (!b->config->json) {
        printf("%-52s b%-3u", name, u->n_rows);
        if (r->timed)
            printf(" %9.2f us (least %.2f)  %7.1f GB/s  %5.1f %% of peak  %5.1f %% of copies",
                   r->median_us, r->min_us, rate / 1e9, b->peak > 0 ? 100 * rate / b->peak : 0,
                   b->copy > 0 ? 100 * rate / b->copy : 0);
        else
            printf(" no clock  %8.3f MB  %8.3f Mflop", (double)r->bytes / 1e6,
                   (double)r->flops / 1e6);
        putchar('\n');
        fflush(stdout);
        return;
    }
    json_write_object(j);
    json_write_key(j, "kernel"), json_write_string(j, name);
    json_write_key(j, "family");
    json_write_string(j, kernel_family_name((enum kernel_family)u->spec.family));
    json_write_key(j, "rows"), json_write_uint(j, u->n_rows);
    json_write_key(j, "bytes"), json_write_uint(j, r->bytes);
    json_write_key(j, "flops"), json_write_uint(j, r->flops);
    json_write_key(j, "grid"), json_write_uint(j, r->grid);
    json_write_key(j, "block"), json_write_uint(j, r->block);
    json_write_key(j, "shared_bytes"), json_write_uint(j, r->shared_bytes);
    json_write_key(j, "registers"), json_write_uint(j, r->registers);
    json_write_key(j, "launches"), json_write_uint(j, r->n_launches);
    write_figure(j, "min_us", r->timed, r->min_us);
    write_figure(j, "median_us", r->timed, r->median_us);
    write_figure(j, "host_us", r->timed, r->host_us);
    write_figure(j, "gb_per_s", r->timed, rate / 1e9);
    write_figure(j, "percent_of_peak", r->timed && b->peak > 0, 100 * rate / b->peak);
    write_figure(j, "percent_of_copy", r->timed && b->copy > 0, 100 * rate / b->copy);
    json_write_object_end(j);
}

/* Every kernel of the family that a step of `rows` rows launches. */
static enum status bench_rows(struct bench *b, uint32_t rows, struct error *e) {
    const struct kernel_set_options options = {
        .activation_bits = b->config->activations == ACTIVATION_INT8 ? 8 : 16,
        .min_rows = rows,
        .max_rows = rows,
    };
    struct kernel_set set = {0};
    char name[KERNEL_NAME_BYTES];
    enum status s = kernel_set_build(model_plan(b->model), &b->chip, &options, &set, e);
    for (uint32_t i = 0; i < set.n_uses && s == STATUS_OK; i++)
        if (wanted(b, &set.uses[i], name))
            s = kernel_set_request(b->compiler, &b->chip, &set.uses[i], e);
    if (s == STATUS_OK) s = compiler_run(b->compiler, b->workers, e);
    for (uint32_t i = 0; i < set.n_uses && s == STATUS_OK; i++) {
        const struct kernel_use *u = &set.uses[i];
        struct kernel_bench_result r;
        if (!wanted(b, u, name)) continue;
        const struct compiled *k =
            compiler_find(b->compiler, kernel_hash(&u->spec, &u->config, &b->chip));
        const struct kernel_bench one = bench_of(b, u, k->function);
        s = kernel_bench_run(&one, &r, e);
        if (s == STATUS_OK) report(b, name, u, &r);
        b->n_run++;
    }
    kernel_set_free(&set);
    return s;
}

static enum status run_all(struct bench *b, struct error *e) {
    struct json_writer *j = &b->json;
    struct kernel_bench k = bench_of(b, NULL, NULL);
    enum status s = kernel_bench_clock(&k, &b->clock, e);
    b->peak = 2e3 * b->device.memory_clock_khz * b->device.memory_bus_bits / 8;
    if (s == STATUS_OK && b->clock) s = kernel_bench_copy(&k, &b->copy, e);
    if (s != STATUS_OK) return s;
    json_write_object(j);
    json_write_key(j, "device"), json_write_string(j, b->device.name);
    json_write_key(j, "compute_capability"), json_write_uint(j, b->device.cc);
    json_write_key(j, "sms"), json_write_uint(j, b->device.n_sms);
    json_write_key(j, "graphs"), json_write_bool(j, b->config->graphs);
    json_write_key(j, "depth"), json_write_uint(j, b->config->bench_depth);
    write_figure(j, "peak_gb_per_s", b->peak > 0, b->peak / 1e9);
    write_figure(j, "copy_gb_per_s", b->clock, b->copy / 1e9);
    json_write_key(j, "kernels"), json_write_array(j);
    if (!b->config->json && !b->clock)
        printf("%s has no clock: launches are made and counted, not timed\n", b->device.name);
    for (uint32_t i = 0; i < b->shape.rows.n && s == STATUS_OK; i++)
        s = bench_rows(b, (uint32_t)b->shape.rows.values[i], e);
    json_write_array_end(j);
    json_write_object_end(j);
    if (s == STATUS_OK && b->n_run == 0)
        return error_set(e, STATUS_NOT_FOUND, "--kernel",
                         "the model takes no %s kernel of that shape", b->config->bench_kernel);
    return s;
}

static void close_all(struct bench *b) {
    compiler_close(b->compiler);
    store_close(b->store);
    pack_close(b->pack);
    if (b->workers != NULL) worker_pool_stop(b->workers);
    if (b->stream != NULL) (void)b->cuda.stream_destroy(b->stream);
    if (b->context != NULL) cuda_context_close(&b->cuda, &b->device);
    cuda_close(&b->cuda);
    nvtx_close(&b->nvtx);
    model_close(b->model);
    buffer_free(&b->out);
}

int bench_kernel(const struct config *c) {
    struct error e = {0};
    struct bench b = {.config = c, .log = {.out = stderr, .level = LOG_WARN}};
    buffer_init(&b.out, 0);
    json_write_begin(&b.json, &b.out);
    enum status s = parse_shape(c, &b.shape, &e);
    if (s == STATUS_OK && !known_family(c->bench_kernel)) {
        char all[256] = "all";
        for (int f = 0; f < KERNEL_FAMILY_COUNT; f++) {
            strncat(all, ", ", sizeof all - strlen(all) - 1);
            strncat(all, kernel_family_name((enum kernel_family)f), sizeof all - strlen(all) - 1);
        }
        s = error_set(&e, STATUS_INVALID, "--kernel", "there is no kernel family %s; there are %s",
                      c->bench_kernel, all);
    }
    if (s == STATUS_OK) s = model_open(c->model, c->n_ctx, &b.model, &e);
    if (s == STATUS_OK) s = open_device(&b, &e);
    if (s == STATUS_OK) s = run_all(&b, &e);
    if (s == STATUS_OK && c->json) printf("%.*s\n", (int)b.out.len, b.out.data);
    close_all(&b);
    return s == STATUS_OK ? 0 : usage_fail("bench", &e);
}
