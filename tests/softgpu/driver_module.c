#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/softgpu/driver.h"

/* PTX ISA reference, release notes: the newest PTX that the driver of a CUDA version takes. */
static uint32_t newest_ptx(void) {
    static const struct {
        int driver;
        uint32_t isa;
    } history[] = {{13000, 90}, {12090, 88}, {12080, 87}, {12070, 86}, {12050, 85},
                   {12040, 84}, {12030, 83}, {12020, 82}, {12010, 81}, {12000, 80}};
    for (size_t i = 0; i < sizeof history / sizeof history[0]; i++) {
        if (soft.driver_version >= history[i].driver) return history[i].isa;
    }
    return 75;
}

static enum cu_result check_target(const struct ptx_module *m, struct error *e) {
    const uint32_t cc = soft.device.compute_capability;
    const uint32_t isa = 10 * m->version_major + m->version_minor;
    if (isa > newest_ptx()) {
        error_set(e, STATUS_UNSUPPORTED, NULL, "PTX ISA %u.%u is newer than this driver's %u.%u",
                  m->version_major, m->version_minor, newest_ptx() / 10, newest_ptx() % 10);
        return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    }
    const bool ok = m->target_suffix == 'a'   ? m->target == cc
                    : m->target_suffix == 'f' ? m->target / 10 == cc / 10 && m->target <= cc
                                              : m->target <= cc;
    if (ok) return CUDA_SUCCESS;
    error_set(e, STATUS_UNSUPPORTED, NULL, "PTX for sm_%u%c does not run on sm_%u", m->target,
              m->target_suffix != '\0' ? m->target_suffix : ' ', cc);
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

static enum cu_result load(const void *image, struct module **out, struct error *e) {
    static const uint8_t elf[4] = {0x7f, 'E', 'L', 'F'}, fat[4] = {0x50, 0xed, 0x55, 0xba};
    uint8_t magic[4] = {0};
    if (!host_read(magic, image, sizeof magic)) return CUDA_ERROR_INVALID_VALUE;
    if (memcmp(magic, elf, 4) == 0 || memcmp(magic, fat, 4) == 0) {
        error_set(e, STATUS_UNSUPPORTED, NULL, "machine code; the software device takes PTX only");
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    const size_t bytes = strnlen(image, PTX_MAX_TEXT_BYTES);
    struct ptx_module *ptx = NULL;
    enum status s = ptx_parse(image, bytes, &ptx, e);
    if (s == STATUS_NO_MEMORY) return CUDA_ERROR_OUT_OF_MEMORY;
    if (s != STATUS_OK) return CUDA_ERROR_INVALID_PTX;
    enum cu_result r = check_target(ptx, e);
    struct program *program = NULL;
    if (r == CUDA_SUCCESS) {
        s = program_create(ptx, soft.memory, soft.device.compute_capability, &program, e);
        if (s == STATUS_NO_MEMORY)
            r = CUDA_ERROR_OUT_OF_MEMORY;
        else if (s != STATUS_OK)
            r = CUDA_ERROR_INVALID_PTX;
    }
    ptx_free(ptx);
    if (r != CUDA_SUCCESS) return r;
    *out = soft_alloc(sizeof **out);
    (*out)->program = program;
    return CUDA_SUCCESS;
}

enum cu_result soft_module_load_data_ex(struct cu_module **out, const void *image, unsigned n,
                                        enum cu_jit_option *options, void **values) {
    *out = NULL;
    soft_run_lock();
    enum cu_result r = soft_enter("cuModuleLoadDataEx", true);
    struct error e = {0};
    struct module *m = NULL;
    if (r == CUDA_SUCCESS) r = load(image, &m, &e);
    if (r == CUDA_SUCCESS) *out = handle_new(HANDLE_MODULE, m);
    char *log = NULL;
    size_t log_bytes = 0;
    for (unsigned i = 0; i < n; i++) {
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER) log = values[i];
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
            log_bytes = (unsigned)(uintptr_t)values[i];
            values[i] = (void *)(uintptr_t)strlen(e.message);
        }
    }
    if (log != NULL && log_bytes > 0 && r != CUDA_SUCCESS) {
        snprintf(log, log_bytes, "%s", e.message);
    }
    soft_run_unlock();
    return r;
}

void module_free(struct module *m) {
    if (m->program != NULL) program_destroy(m->program);
    for (uint32_t i = 0; i < m->n_functions; i++) free(m->functions[i]);
    free(m->functions);
    free(m);
}

static struct work *pending_kernel_of(const struct module *m) {
    for (struct work *o = soft.works; o != NULL; o = o->next) {
        if (!o->done && o->kind == WORK_KERNEL && o->kernel.function->module == m) return o;
    }
    return NULL;
}

enum cu_result soft_module_unload(struct cu_module *module) {
    soft_run_lock();
    enum cu_result r = soft_enter("cuModuleUnload", true);
    struct module *m =
        r == CUDA_SUCCESS ? handle_get(HANDLE_MODULE, module, "cuModuleUnload") : NULL;
    if (r == CUDA_SUCCESS && m == NULL) r = CUDA_ERROR_INVALID_HANDLE;
    if (r == CUDA_SUCCESS) {
        for (struct work *o; (o = pending_kernel_of(m)) != NULL; work_run_until(o)) {
            rule_broken(RULE_IN_FLIGHT, 0, "cuModuleUnload while %s has not been waited for",
                        o->kernel.function->info.name);
        }
        /* Graphs may still name its functions: those records stay until the context ends. */
        program_destroy(m->program);
        m->program = NULL;
        m->unloaded = true;
        for (uint32_t i = 0; i < m->n_functions; i++) handle_end(m->functions[i]->handle);
        handle_end(module);
        m->next_unloaded = soft.unloaded;
        soft.unloaded = m;
    }
    soft_run_unlock();
    return r;
}

static struct function *function_make(struct module *m, const struct program_function *code) {
    for (uint32_t i = 0; i < m->n_functions; i++) {
        if (m->functions[i]->code == code) return m->functions[i];
    }
    struct function *f = soft_alloc(sizeof *f);
    f->module = m;
    f->code = code;
    program_describe(code, &f->info);
    const uint32_t limit = soft.device.shared_per_block_bytes;
    f->max_dynamic_bytes =
        f->info.static_shared_bytes < limit ? limit - f->info.static_shared_bytes : 0;
    f->handle = handle_new(HANDLE_FUNCTION, f);
    m->functions = soft_grow(m->functions, &m->cap_functions, m->n_functions, sizeof f);
    m->functions[m->n_functions++] = f;
    return f;
}

enum cu_result soft_module_get_function(struct cu_function **out, struct cu_module *module,
                                        const char *name) {
    *out = NULL;
    soft_lock();
    enum cu_result r = soft_enter("cuModuleGetFunction", true);
    if (r == CUDA_SUCCESS) {
        struct module *m = handle_get(HANDLE_MODULE, module, "cuModuleGetFunction");
        const struct program_function *code = m != NULL ? program_find(m->program, name) : NULL;
        if (m == NULL)
            r = CUDA_ERROR_INVALID_HANDLE;
        else if (code == NULL)
            r = CUDA_ERROR_NOT_FOUND;
        else
            *out = function_make(m, code)->handle;
    }
    soft_unlock();
    return r;
}

enum cu_result soft_module_get_global(uint64_t *address, size_t *bytes, struct cu_module *module,
                                      const char *name) {
    soft_lock();
    enum cu_result r = soft_enter("cuModuleGetGlobal", true);
    if (r == CUDA_SUCCESS) {
        struct module *m = handle_get(HANDLE_MODULE, module, "cuModuleGetGlobal");
        uint64_t at = 0, size = 0;
        if (m == NULL)
            r = CUDA_ERROR_INVALID_HANDLE;
        else if (program_variable(m->program, name, &at, &size) != STATUS_OK) {
            r = CUDA_ERROR_NOT_FOUND;
        }
        if (address != NULL) *address = at;
        if (bytes != NULL) *bytes = size;
    }
    soft_unlock();
    return r;
}

/* ptxas is not there to say: the most registers that live at once, rounded up to 8 as the hardware
 * allocates them, at least 16 and at most 255. */
static int register_model(const struct function *f) {
    const uint32_t r = (f->info.live_registers + 7) / 8 * 8;
    return (int)(r < 16 ? 16 : r > 255 ? 255 : r);
}

enum cu_result soft_func_get_attribute(int *value, enum cu_function_attribute attribute,
                                       struct cu_function *function) {
    soft_lock();
    enum cu_result r = soft_enter("cuFuncGetAttribute", true);
    const struct function *f = NULL;
    if (r == CUDA_SUCCESS) {
        f = handle_get(HANDLE_FUNCTION, function, "cuFuncGetAttribute");
        if (f == NULL) r = CUDA_ERROR_INVALID_HANDLE;
    }
    if (f != NULL) {
        switch (attribute) {
        case CU_FUNCTION_MAX_THREADS_PER_BLOCK:
            *value = (int)f->info.max_threads;
            break;
        case CU_FUNCTION_SHARED_BYTES:
            *value = (int)f->info.static_shared_bytes;
            break;
        case CU_FUNCTION_CONSTANT_BYTES:
            *value = (int)f->info.const_bytes;
            break;
        case CU_FUNCTION_LOCAL_BYTES:
            *value = (int)f->info.local_bytes;
            break;
        case CU_FUNCTION_REGISTERS:
            *value = register_model(f);
            break;
        case CU_FUNCTION_PTX_VERSION:
        case CU_FUNCTION_BINARY_VERSION:
            *value = (int)f->info.target;
            break;
        case CU_FUNCTION_MAX_DYNAMIC_SHARED_BYTES:
            *value = (int)f->max_dynamic_bytes;
            break;
        case CU_FUNCTION_SHARED_CARVEOUT:
            *value = -1;
            break;
        case CU_FUNCTION_NON_PORTABLE_CLUSTER:
            *value = f->non_portable_cluster;
            break;
        default:
            r = CUDA_ERROR_INVALID_VALUE;
        }
    }
    soft_unlock();
    return r;
}

enum cu_result soft_func_set_attribute(struct cu_function *function,
                                       enum cu_function_attribute attribute, int value) {
    soft_lock();
    enum cu_result r = soft_enter("cuFuncSetAttribute", true);
    struct function *f = NULL;
    if (r == CUDA_SUCCESS) {
        f = handle_get(HANDLE_FUNCTION, function, "cuFuncSetAttribute");
        if (f == NULL) r = CUDA_ERROR_INVALID_HANDLE;
    }
    if (f != NULL) {
        const uint32_t most = soft.device.shared_per_block_optin_bytes;
        switch (attribute) {
        case CU_FUNCTION_MAX_DYNAMIC_SHARED_BYTES:
            if (value < 0 || (uint32_t)value + f->info.static_shared_bytes > most) {
                rule_broken(RULE_SHARED_MEMORY, 0,
                            "%s: %d bytes of dynamic and %u of static shared memory; a block of "
                            "this device has %u",
                            f->info.name, value, f->info.static_shared_bytes, most);
                r = CUDA_ERROR_INVALID_VALUE;
            } else {
                f->max_dynamic_bytes = (uint32_t)value;
            }
            break;
        case CU_FUNCTION_SHARED_CARVEOUT:
            if (value < -1 || value > 100) r = CUDA_ERROR_INVALID_VALUE;
            break;
        case CU_FUNCTION_NON_PORTABLE_CLUSTER:
            f->non_portable_cluster = value != 0;
            break;
        default:
            r = CUDA_ERROR_INVALID_VALUE;
        }
    }
    soft_unlock();
    return r;
}

enum cu_result soft_occupancy_max_active_blocks_per_multiprocessor(int *blocks,
                                                                   struct cu_function *function,
                                                                   int block_threads,
                                                                   size_t dynamic_shared_bytes) {
    static const char call[] = "cuOccupancyMaxActiveBlocksPerMultiprocessor";
    *blocks = 0;
    soft_lock();
    enum cu_result r = soft_enter(call, true);
    if (r == CUDA_SUCCESS) {
        const struct function *f = handle_get(HANDLE_FUNCTION, function, call);
        if (f == NULL)
            r = CUDA_ERROR_INVALID_HANDLE;
        else if (block_threads <= 0 || dynamic_shared_bytes > UINT32_MAX) {
            r = CUDA_ERROR_INVALID_VALUE;
        } else {
            *blocks =
                (int)exec_occupancy(&soft.device, f->code, (uint32_t)block_threads,
                                    (uint32_t)dynamic_shared_bytes, (uint32_t)register_model(f));
        }
    }
    soft_unlock();
    return r;
}
