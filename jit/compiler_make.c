#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "jit/compiler_state.h"

/* NULL: there is none, and *e says why. */
static struct nvrtc *open_nvrtc(struct compiler *c, struct error *e) {
    pthread_mutex_lock(&c->nvrtc_lock);
    if (!c->nvrtc_tried) {
        c->nvrtc_tried = true;
        (void)nvrtc_open(c->cfg.nvrtc_path, &c->nvrtc, &c->nvrtc_error);
    }
    struct nvrtc *n = c->nvrtc;
    *e = c->nvrtc_error;
    pthread_mutex_unlock(&c->nvrtc_lock);
    return n;
}

static enum status compile(struct compiler *c, struct nvrtc *n, struct compiler_entry *x,
                           struct error *e) {
    struct compiled *k = &x->kernel;
    const struct nvrtc_job job = {
        .source = x->source,
        .name = k->id.name,
        .file_name = x->file_name,
        .options = x->options,
        .arch = k->id.arch,
        .cancel = &c->cancel,
    };
    struct nvrtc_output made;
    const enum status s = nvrtc_compile(n, &job, &made, e);
    if (s != STATUS_OK) {
        /* The first line is in the error; the rest is for whoever works on the kernel. */
        if (s == STATUS_INVALID && made.log != NULL) {
            log_write(c->cfg.log, LOG_ERROR, "%s: %s", k->id.name, made.log);
        }
        nvrtc_output_free(&made);
        return s;
    }
    uint8_t *memory = malloc(made.cubin_bytes + made.ptx_bytes);
    if (memory != NULL) {
        memcpy(memory, made.cubin, made.cubin_bytes);
        memcpy(memory + made.cubin_bytes, made.ptx, made.ptx_bytes);
        k->artefact = (struct artefact){
            .compile_ns = made.compile_ns,
            .cubin = memory,
            .cubin_bytes = made.cubin_bytes,
            .ptx = (const char *)memory + made.cubin_bytes,
            .ptx_bytes = made.ptx_bytes,
            .memory = memory,
        };
        snprintf(k->artefact.compiler, sizeof k->artefact.compiler, "%s", nvrtc_version(n));
        k->origin = COMPILER_FROM_SOURCE;
    }
    nvrtc_output_free(&made);
    if (memory == NULL) return error_set(e, STATUS_NO_MEMORY, "jit", "no memory for a kernel");
    if (!artefact_plausible(k->artefact.cubin, k->artefact.cubin_bytes, k->artefact.ptx,
                            k->artefact.ptx_bytes)) {
        artefact_free(&k->artefact);
        return error_set(e, STATUS_DEVICE, "jit", "NVRTC made no kernel of %.100s", k->id.name);
    }
    /* What the store cannot keep it has said; the kernel is here all the same. */
    if (c->cfg.store != NULL) (void)store_write(c->cfg.store, &k->id, &k->artefact, NULL);
    return STATUS_OK;
}

static enum status refuse(const struct compiler *c, const struct compiled *k,
                          const struct error *pack, const struct error *nvrtc, struct error *e) {
    const char *spec;
    size_t spec_bytes;
    if (!artefact_field(k->id.text, k->id.text_bytes, "spec", &spec, &spec_bytes)) spec = "";
    const int shown = (int)(spec_bytes < 80 ? spec_bytes : 80);
    if (pack->message[0] != '\0')
        return error_set(e, STATUS_NOT_FOUND, "pack", "%s", pack->message);
    if (!c->cfg.may_compile) {
        return error_set(e, STATUS_NOT_FOUND, "jit",
                         "--jit off, and %.60s for sm_%u with %u SMs is not in the kernel cache "
                         "(%.*s)",
                         k->id.name, k->id.arch, k->id.sm_count, shown, spec);
    }
    return error_set(e, STATUS_NOT_FOUND, "jit",
                     "cannot compile %.60s: %.130s (--nvrtc says where it is; a pack needs none)",
                     k->id.name, nvrtc->message);
}

/* skip_store: what it holds has just been refused. */
static enum status obtain(struct compiler *c, struct compiler_entry *x, bool skip_store,
                          struct error *e) {
    struct compiled *k = &x->kernel;
    struct error from_pack = {0}, from_nvrtc = {0};
    if (c->cfg.pack != NULL && !skip_store) {
        if (pack_find(c->cfg.pack, &k->id, &k->artefact, &from_pack) == STATUS_OK) {
            k->origin = COMPILER_FROM_PACK;
            return STATUS_OK;
        }
    }
    struct nvrtc *n = c->cfg.may_compile ? open_nvrtc(c, &from_nvrtc) : NULL;
    if (c->cfg.store != NULL && !skip_store) {
        const char *version = n != NULL ? nvrtc_version(n) : NULL;
        if (store_read(c->cfg.store, &k->id, version, &k->artefact, NULL) == STATUS_OK) {
            k->origin = COMPILER_FROM_STORE;
            return STATUS_OK;
        }
    }
    if (n == NULL) return refuse(c, k, &from_pack, &from_nvrtc, e);
    if (from_pack.message[0] != '\0' && !atomic_exchange(&c->pack_said, true)) {
        log_write(c->cfg.log, LOG_WARN, "%s; compiling instead", from_pack.message);
    }
    return compile(c, n, x, e);
}

/* A cubin is for one architecture; PTX is for any chip at least as new. */
static enum status load(const struct compiler *c, struct compiled *k, struct error *e) {
    const struct cuda *cu = c->cfg.cuda;
    char log[1024];
    enum status s = CUDA_CALL(cu, e, ctx_set_current, c->cfg.context);
    if (s != STATUS_OK) return s;
    k->from_ptx = false;
    s = cuda_module_load(cu, k->artefact.cubin, log, sizeof log, &k->module, e);
    if (s == STATUS_UNSUPPORTED) {
        k->from_ptx = true;
        s = cuda_module_load(cu, k->artefact.ptx, log, sizeof log, &k->module, e);
    }
    if (s != STATUS_OK) return s;
    s = CUDA_CALL(cu, e, module_get_function, &k->function, k->module, k->id.name);
    if (s == STATUS_OK) return s;
    (void)cu->module_unload(k->module);
    k->module = NULL;
    k->function = NULL;
    /* Some other kernel's module. */
    return s == STATUS_NOT_FOUND ? STATUS_CORRUPT : s;
}

static void dump_file(struct compiler *c, const struct compiler_entry *x, const char *kind,
                      const void *data, size_t bytes) {
    char path[4096];
    struct error e = {0};
    const int n = snprintf(path, sizeof path, "%s/%s.%s", c->cfg.dump_folder, x->file_name, kind);
    enum status s = STATUS_IO;
    if (n > 0 && (size_t)n < sizeof path) {
        s = artefact_publish(path, 0666, &(struct artefact_part){data, bytes}, 1, &e);
    }
    if (s != STATUS_OK && !atomic_exchange(&c->dump_said, true)) {
        log_write(c->cfg.log, LOG_WARN, "--jit-dump: %s", e.message);
    }
}

static void dump(struct compiler *c, const struct compiler_entry *x) {
    const struct compiled *k = &x->kernel;
    dump_file(c, x, "cu", x->source, strlen(x->source));
    dump_file(c, x, "ptx", k->artefact.ptx, k->artefact.ptx_bytes - 1);
    dump_file(c, x, "cubin", k->artefact.cubin, k->artefact.cubin_bytes);
}

static enum status obtain_and_load(struct compiler *c, struct compiler_entry *x, struct error *e) {
    struct compiled *k = &x->kernel;
    enum status s = obtain(c, x, false, e);
    if (s != STATUS_OK || c->cfg.cuda == NULL) return s;
    s = load(c, k, e);
    /* Its checksum was right, so it was stored wrong, or for a driver that is no longer here. */
    if (s == STATUS_CORRUPT && k->origin == COMPILER_FROM_STORE) {
        store_quarantine(c->cfg.store, &k->id, "the driver refuses it");
        artefact_free(&k->artefact);
        s = obtain(c, x, true, e);
        if (s == STATUS_OK) s = load(c, k, e);
    }
    if (s == STATUS_CORRUPT) {
        char why[sizeof e->message];
        snprintf(why, sizeof why, "%s", e->message);
        return error_set(e, s, "jit", "the driver refuses %.80s (from the %s): %.120s", k->id.name,
                         compiler_origin_name(k->origin), why);
    }
    return s;
}

void compiler_make(struct compiler *c, struct compiler_entry *x) {
    struct compiled *k = &x->kernel;
    const uint64_t start_ns = clock_now_ns();
    k->error = (struct error){0};
    k->status = obtain_and_load(c, x, &k->error);
    if (k->status == STATUS_OK) {
        k->took_ns = clock_now_ns() - start_ns;
        if (c->cfg.dump_folder != NULL) dump(c, x);
        if (c->cfg.cuda != NULL && !c->cfg.keep_code) artefact_free(&k->artefact);
        /* Never compiled again; hundreds of kernels' texts are megabytes. */
        free(x->source);
        x->source = NULL;
    } else {
        k->error.status = k->status;
        compiler_release(c, k);
    }
}

void compiler_release(struct compiler *c, struct compiled *k) {
    if (k->module != NULL) {
        /* From a thread that may never have used the device. */
        (void)c->cfg.cuda->ctx_set_current(c->cfg.context);
        (void)c->cfg.cuda->module_unload(k->module);
    }
    k->module = NULL;
    k->function = NULL;
    artefact_free(&k->artefact);
}
