/* The way in (cuGetProcAddress), the device, the primary context, and softgpu.h's functions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "tests/softgpu/driver.h"

#define EXPORT __attribute__((visibility("default")))

/* CUdriverProcAddressQueryResult */
enum { PROC_FOUND = 0, PROC_UNKNOWN = 1, PROC_TOO_OLD = 2 };

EXPORT enum cu_result cuGetProcAddress_v2(const char *symbol, void **out, int version,
                                          uint64_t flags, int *why);

enum cu_result cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags,
                                   int *why) {
#define X(field, symbol_, version_, args) {symbol_, version_, (void (*)(void))soft_##field},
    static const struct {
        const char *symbol;
        int version;
        void (*function)(void);
    } entries[] = {CUDA_ENTRY_LIST(X)};
#undef X
    *out = NULL;
    int answer = PROC_UNKNOWN;
    soft_lock();
    const int driver = soft.driver_version;
    soft_unlock();
    if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        if (strcmp(symbol, entries[i].symbol) != 0) continue;
        /* Older forms of an entry have other arguments; they are not made here. */
        answer =
            version < entries[i].version || entries[i].version > driver ? PROC_TOO_OLD : PROC_FOUND;
        if (answer == PROC_FOUND) memcpy(out, &entries[i].function, sizeof *out);
        break;
    }
    if (why != NULL) *why = answer;
    return answer == PROC_FOUND ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

enum cu_result soft_get_error_name(enum cu_result r, const char **name) {
    switch (r) {
#define X(code, value)                                                                             \
    case code:                                                                                     \
        *name = #code;                                                                             \
        return CUDA_SUCCESS;
        CU_RESULT_LIST(X)
#undef X
    }
    *name = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

enum cu_result soft_get_error_string(enum cu_result r, const char **text) {
    switch (r) {
    case CUDA_ERROR_OUT_OF_MEMORY:
        *text = "out of memory";
        break;
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
        *text = "no kernel image is available for execution on the device";
        break;
    case CUDA_ERROR_ILLEGAL_ADDRESS:
        *text = "an illegal memory access was encountered";
        break;
    default:
        *text = "software device";
    }
    return CUDA_SUCCESS;
}

enum cu_result soft_init(unsigned flags) {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    soft_lock();
    soft.initialised = true;
    soft_unlock();
    return CUDA_SUCCESS;
}

enum cu_result soft_driver_get_version(int *version) {
    soft_lock();
    *version = soft.driver_version;
    soft_unlock();
    return CUDA_SUCCESS;
}

static enum cu_result device_call(int device, const char *call) {
    const enum cu_result r = soft_enter(call, false);
    return r == CUDA_SUCCESS && device != 0 ? CUDA_ERROR_INVALID_DEVICE : r;
}

enum cu_result soft_device_get_count(int *count) {
    soft_lock();
    const enum cu_result r = soft_enter("cuDeviceGetCount", false);
    if (r == CUDA_SUCCESS) *count = 1;
    soft_unlock();
    return r;
}

enum cu_result soft_device_get(int *device, int ordinal) {
    soft_lock();
    const enum cu_result r = device_call(ordinal, "cuDeviceGet");
    if (r == CUDA_SUCCESS) *device = 0;
    soft_unlock();
    return r;
}

enum cu_result soft_device_get_name(char *name, int bytes, int device) {
    soft_lock();
    enum cu_result r = device_call(device, "cuDeviceGetName");
    if (r == CUDA_SUCCESS && bytes <= 0) r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS) snprintf(name, (size_t)bytes, "%s (software)", soft.spec->name);
    soft_unlock();
    return r;
}

enum cu_result soft_device_get_uuid(struct cu_uuid *uuid, int device) {
    soft_lock();
    const enum cu_result r = device_call(device, "cuDeviceGetUuid");
    if (r == CUDA_SUCCESS) {
        const XXH128_hash_t h = XXH3_128bits(soft.spec->key, strlen(soft.spec->key));
        memcpy(uuid->bytes, &h, sizeof uuid->bytes);
    }
    soft_unlock();
    return r;
}

enum cu_result soft_device_total_mem(size_t *bytes, int device) {
    soft_lock();
    const enum cu_result r = device_call(device, "cuDeviceTotalMem");
    if (r == CUDA_SUCCESS) *bytes = soft.spec->total_bytes;
    soft_unlock();
    return r;
}

enum cu_result soft_device_get_attribute(int *value, enum cu_device_attribute a, int device) {
    soft_lock();
    enum cu_result r = device_call(device, "cuDeviceGetAttribute");
    if (r == CUDA_SUCCESS) r = device_attribute(soft.spec, &soft.device, (int)a, value);
    soft_unlock();
    return r;
}

enum cu_result soft_device_primary_ctx_retain(struct cu_context **out, int device) {
    *out = NULL;
    soft_lock();
    const enum cu_result r = device_call(device, "cuDevicePrimaryCtxRetain");
    if (r == CUDA_SUCCESS) {
        if (soft.context_references++ == 0) soft.context = handle_new(HANDLE_CONTEXT, &soft);
        *out = soft.context;
    }
    soft_unlock();
    return r;
}

enum cu_result soft_device_primary_ctx_release(int device) {
    soft_run_lock();
    /* Also of a lost device: that is how a program ends. */
    enum cu_result r = !soft.initialised              ? CUDA_ERROR_NOT_INITIALIZED
                       : device != 0                  ? CUDA_ERROR_INVALID_DEVICE
                       : soft.context_references == 0 ? CUDA_ERROR_INVALID_CONTEXT
                                                      : CUDA_SUCCESS;
    if (r == CUDA_SUCCESS && --soft.context_references == 0) soft_context_end();
    soft_run_unlock();
    return r;
}

enum cu_result soft_device_primary_ctx_set_flags(int device, unsigned flags) {
    soft_lock();
    enum cu_result r = device_call(device, "cuDevicePrimaryCtxSetFlags");
    if (r == CUDA_SUCCESS && flags > 0xff) r = CUDA_ERROR_INVALID_VALUE;
    soft_unlock();
    return r;
}

enum cu_result soft_ctx_set_current(struct cu_context *context) {
    soft_lock();
    enum cu_result r = soft_enter("cuCtxSetCurrent", false);
    if (r == CUDA_SUCCESS && context != NULL &&
        handle_get(HANDLE_CONTEXT, context, "cuCtxSetCurrent") == NULL) {
        r = CUDA_ERROR_INVALID_CONTEXT;
    }
    if (r == CUDA_SUCCESS) soft_set_current(context);
    soft_unlock();
    return r;
}

enum cu_result soft_ctx_get_current(struct cu_context **out) {
    soft_lock();
    const enum cu_result r = soft_enter("cuCtxGetCurrent", false);
    *out = r == CUDA_SUCCESS ? soft_current() : NULL;
    soft_unlock();
    return r;
}

enum cu_result soft_ctx_get_stream_priority_range(int *least, int *greatest) {
    soft_lock();
    const enum cu_result r = soft_enter("cuCtxGetStreamPriorityRange", true);
    *least = 0;
    *greatest = r == CUDA_SUCCESS ? -5 : 0;
    soft_unlock();
    return r;
}

EXPORT uint64_t softgpu_findings_count(int kind) {
    soft_lock();
    const uint64_t n = kind < 0 ? finding_total(&soft.findings)
                                : finding_count(&soft.findings, (enum finding_kind)kind);
    soft_unlock();
    return n;
}

EXPORT uint64_t softgpu_rule_count(enum host_rule rule) {
    soft_lock();
    const uint64_t n = (unsigned)rule < HOST_RULE_COUNT ? soft.rules[rule] : 0;
    soft_unlock();
    return n;
}

EXPORT int softgpu_finding(uint32_t i, struct finding *out) {
    soft_lock();
    const bool there = i < soft.findings.n;
    if (there) *out = soft.findings.items[i];
    soft_unlock();
    return there;
}

EXPORT void softgpu_findings_clear(void) {
    soft_run_lock();
    finding_list_clear(&soft.findings);
    memset(soft.rules, 0, sizeof soft.rules);
    soft_run_unlock();
}

EXPORT uint64_t softgpu_pending(void) {
    soft_lock();
    const uint64_t n = soft.n_pending;
    soft_unlock();
    return n;
}

EXPORT int softgpu_fail(const char *faults) {
    struct faults f;
    if (!fault_parse(faults, &f)) return 0;
    soft_lock();
    soft.faults = f;
    soft_unlock();
    return 1;
}

EXPORT int softgpu_report(const char *path) {
    soft_run_lock();
    const bool ok = report_write(path);
    soft_run_unlock();
    return ok;
}

EXPORT void softgpu_reset(void) {
    soft_run_lock();
    soft_reset();
    soft_run_unlock();
}

__attribute__((destructor)) static void at_exit(void) {
    /* A thread may be stopped in the middle of something: then there is no report. */
    if (!soft.ready || soft.report[0] == '\0' || pthread_mutex_trylock(&soft.run) != 0) return;
    if (pthread_mutex_trylock(&soft.lock) == 0) {
        if (!report_write(soft.report)) fprintf(stderr, "softgpu: cannot write %s\n", soft.report);
        pthread_mutex_unlock(&soft.lock);
    }
    pthread_mutex_unlock(&soft.run);
}
