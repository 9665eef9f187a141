#include <stdlib.h>
#include <string.h>

#include "tests/softgpu/driver.h"

/* cuLaunchKernel's `extra`: a list of tags and values that ends in 0. */
enum { EXTRA_END = 0, EXTRA_BUFFER = 1, EXTRA_SIZE = 2 };

static enum cu_result take_params(struct kernel_op *k, void **params, void **extra,
                                  const char *call) {
    const struct program_info *info = &k->function->info;
    k->params_bytes = info->params_bytes;
    k->params = soft_alloc(info->params_bytes);
    if (extra != NULL) {
        const void *buffer = NULL;
        size_t bytes = 0;
        for (void **x = extra; (uintptr_t)*x != EXTRA_END; x += 2) {
            if ((uintptr_t)*x == EXTRA_BUFFER)
                buffer = x[1];
            else if ((uintptr_t)*x == EXTRA_SIZE)
                bytes = *(const size_t *)x[1];
            else
                return CUDA_ERROR_INVALID_VALUE;
        }
        if (params != NULL || buffer == NULL || bytes != info->params_bytes ||
            !host_read(k->params, buffer, bytes)) {
            rule_broken(RULE_PARAMETERS, 0, "%s: %s takes %u bytes of parameters, %zu were given",
                        call, info->name, info->params_bytes, bytes);
            return CUDA_ERROR_INVALID_VALUE;
        }
        return CUDA_SUCCESS;
    }
    for (uint32_t i = 0; i < info->n_params; i++) {
        const struct ptx_param *p = &info->params[i];
        void *from = NULL;
        if (params == NULL || !host_read(&from, &params[i], sizeof from) || from == NULL ||
            !host_read(k->params + p->offset_bytes, from, p->size_bytes)) {
            rule_broken(RULE_PARAMETERS, (uintptr_t)from,
                        "%s: %s takes %u parameters; number %u (%u bytes) cannot be read", call,
                        info->name, info->n_params, i, p->size_bytes);
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

static enum cu_result check_shape(const struct kernel_op *k, const char *call) {
    const struct program_info *info = &k->function->info;
    const uint64_t threads = (uint64_t)k->block[0] * k->block[1] * k->block[2];
    bool ok = k->grid[0] >= 1 && k->grid[0] <= INT32_MAX && k->grid[1] >= 1 &&
              k->grid[1] <= 65535 && k->grid[2] >= 1 && k->grid[2] <= 65535;
    ok = ok && k->block[0] >= 1 && k->block[0] <= 1024 && k->block[1] >= 1 && k->block[1] <= 1024 &&
         k->block[2] >= 1 && k->block[2] <= 64;
    if (!ok || threads > soft.device.max_threads_per_block) {
        rule_broken(RULE_LAUNCH_BOUNDS, 0, "%s: %s with a grid of %u,%u,%u and blocks of %u,%u,%u",
                    call, info->name, k->grid[0], k->grid[1], k->grid[2], k->block[0], k->block[1],
                    k->block[2]);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (threads > info->max_threads) {
        rule_broken(RULE_LAUNCH_BOUNDS, 0, "%s: %s was compiled for %u threads, %llu are launched",
                    call, info->name, info->max_threads, (unsigned long long)threads);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (k->dynamic_bytes > k->function->max_dynamic_bytes) {
        rule_broken(RULE_SHARED_MEMORY, 0,
                    "%s: %s with %u bytes of dynamic shared memory, its limit is %u (attribute %d)",
                    call, info->name, k->dynamic_bytes, k->function->max_dynamic_bytes,
                    CU_FUNCTION_MAX_DYNAMIC_SHARED_BYTES);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (exec_occupancy(&soft.device, k->function->code, (uint32_t)threads, k->dynamic_bytes, 0) ==
        0) {
        rule_broken(RULE_LAUNCH_BOUNDS, 0, "%s: not one block of %s fits on an SM (%u registers)",
                    call, info->name, info->live_registers);
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    }
    return CUDA_SUCCESS;
}

enum cu_result kernel_prepare(struct kernel_op *out, struct function *f, const uint32_t grid[3],
                              const uint32_t block[3], uint32_t shared_bytes, void **params,
                              void **extra, const char *call) {
    memset(out, 0, sizeof *out);
    if (f->module->unloaded) {
        rule_broken(RULE_DEAD_HANDLE, 0, "%s: the module of %s was unloaded", call, f->info.name);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (fault_due(&soft.faults.launch)) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    out->function = f;
    memcpy(out->grid, grid, sizeof out->grid);
    memcpy(out->block, block, sizeof out->block);
    memcpy(out->cluster, f->info.cluster, sizeof out->cluster);
    out->dynamic_bytes = shared_bytes;
    enum cu_result r = check_shape(out, call);
    if (r == CUDA_SUCCESS) r = take_params(out, params, extra, call);
    if (r != CUDA_SUCCESS) {
        free(out->params);
        memset(out, 0, sizeof *out);
    }
    return r;
}

enum cu_result kernel_check_cluster(const struct kernel_op *k, const char *call) {
    const uint32_t most = k->function->non_portable_cluster ? 16 : 8;
    if (k->cooperative) {
        const uint64_t blocks = (uint64_t)k->grid[0] * k->grid[1] * k->grid[2];
        const uint32_t fit =
            exec_occupancy(&soft.device, k->function->code, k->block[0] * k->block[1] * k->block[2],
                           k->dynamic_bytes, 0);
        if (blocks > (uint64_t)fit * soft.device.sm_count) {
            rule_broken(RULE_LAUNCH_BOUNDS, 0, "%s: a cooperative grid of %llu blocks, %llu fit",
                        call, (unsigned long long)blocks,
                        (unsigned long long)fit * soft.device.sm_count);
            return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
        }
    }
    if (k->cluster[0] == 0) return CUDA_SUCCESS;
    bool ok = soft.device.compute_capability >= 90 && k->cluster[1] != 0 && k->cluster[2] != 0 &&
              (uint64_t)k->cluster[0] * k->cluster[1] * k->cluster[2] <= most;
    for (int i = 0; ok && i < 3; i++) ok = k->grid[i] % k->cluster[i] == 0;
    if (ok) return CUDA_SUCCESS;
    rule_broken(RULE_LAUNCH_BOUNDS, 0, "%s: clusters of %u,%u,%u in a grid of %u,%u,%u", call,
                k->cluster[0], k->cluster[1], k->cluster[2], k->grid[0], k->grid[1], k->grid[2]);
    return CUDA_ERROR_INVALID_CLUSTER_SIZE;
}

enum cu_result soft_launch_kernel_ex(const struct cu_launch_config *config,
                                     struct cu_function *function, void **params, void **extra) {
    static const char call[] = "cuLaunchKernelEx";
    soft_lock();
    enum cu_result r = soft_enter(call, true);
    struct function *f = NULL;
    struct stream *s = NULL;
    if (r == CUDA_SUCCESS) {
        f = handle_get(HANDLE_FUNCTION, function, call);
        s = stream_get(config->stream, call);
        if (f == NULL || s == NULL) r = CUDA_ERROR_INVALID_HANDLE;
    }
    struct kernel_op k = {0};
    if (r == CUDA_SUCCESS) {
        const uint32_t grid[3] = {config->grid_x, config->grid_y, config->grid_z};
        const uint32_t block[3] = {config->block_x, config->block_y, config->block_z};
        r = kernel_prepare(&k, f, grid, block, config->shared_bytes, params, extra, call);
    }
    bool programmatic = false;
    for (unsigned i = 0; r == CUDA_SUCCESS && i < config->n_attributes; i++) {
        const struct cu_launch_attribute *a = &config->attributes[i];
        switch (a->id) {
        case 0: /* CU_LAUNCH_ATTRIBUTE_IGNORE */
        case CU_LAUNCH_PRIORITY:
            break;
        case CU_LAUNCH_COOPERATIVE:
            k.cooperative = a->value.cooperative != 0;
            break;
        case CU_LAUNCH_CLUSTER_DIMENSION:
            k.cluster[0] = a->value.cluster.x;
            k.cluster[1] = a->value.cluster.y;
            k.cluster[2] = a->value.cluster.z;
            break;
        case CU_LAUNCH_PROGRAMMATIC_SERIALIZATION:
            programmatic = a->value.programmatic_serialization != 0;
            if (programmatic && soft.device.compute_capability < 90) {
                rule_broken(RULE_DEPENDENT_LAUNCH, 0, "%s: %s on compute capability %u.%u", call,
                            f->info.name, soft.device.compute_capability / 10,
                            soft.device.compute_capability % 10);
                r = CUDA_ERROR_NOT_SUPPORTED;
            }
            break;
        default:
            r = CUDA_ERROR_INVALID_VALUE;
        }
    }
    if (r == CUDA_SUCCESS) r = kernel_check_cluster(&k, call);
    if (r == CUDA_SUCCESS) {
        struct work *o = work_new(WORK_KERNEL);
        o->kernel = k;
        stream_push(s, o, programmatic);
        work_release(o);
    } else {
        free(k.params);
    }
    soft_unlock();
    return r;
}

static bool device_range(uint64_t address, uint64_t bytes) {
    while (bytes > 0) {
        const struct memory_range *r = memory_find(soft.memory, address);
        if (r == NULL) return false;
        const uint64_t n = r->base + r->size_bytes - address;
        if (n >= bytes) return true;
        address += n;
        bytes -= n;
    }
    return true;
}

enum cu_result copy_prepare(struct copy_op *c, const char *call) {
    const uint64_t device[2] = {c->dst_device, c->src_device};
    for (int i = 0; i < 2; i++) {
        if (device[i] == 0 || device_range(device[i], c->bytes)) continue;
        rule_broken(RULE_COPY_RANGE, device[i], "%s: %llu bytes at %#llx are not all allocated",
                    call, (unsigned long long)c->bytes, (unsigned long long)device[i]);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (c->src_host != NULL && !host_hash(c->src_host, c->bytes, &c->source_hash)) {
        rule_broken(RULE_COPY_RANGE, (uintptr_t)c->src_host,
                    "%s: the host source of %llu bytes cannot be read", call,
                    (unsigned long long)c->bytes);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

enum cu_result copy_submit(const struct copy_op *c, struct stream *s) {
    struct work *o = work_new(WORK_COPY);
    o->copy = *c;
    stream_push(s, o, false);
    if (c->dst_host != NULL) copy_spoil_destination(o);
    work_release(o);
    return CUDA_SUCCESS;
}

static enum cu_result copy_call(struct copy_op c, struct cu_stream *stream, const char *call) {
    soft_lock();
    enum cu_result r = soft_enter(call, true);
    struct stream *s = r == CUDA_SUCCESS ? stream_get(stream, call) : NULL;
    if (r == CUDA_SUCCESS && s == NULL) r = CUDA_ERROR_INVALID_HANDLE;
    if (r == CUDA_SUCCESS && c.bytes > 0) {
        r = copy_prepare(&c, call);
        if (r == CUDA_SUCCESS) r = copy_submit(&c, s);
    }
    soft_unlock();
    return r;
}

enum cu_result soft_memcpy_htod_async(uint64_t dst, const void *src, size_t bytes,
                                      struct cu_stream *stream) {
    if (bytes > 0 && (src == NULL || dst == 0)) return CUDA_ERROR_INVALID_VALUE;
    return copy_call((struct copy_op){.dst_device = dst, .src_host = src, .bytes = bytes}, stream,
                     "cuMemcpyHtoDAsync");
}

enum cu_result soft_memcpy_dtoh_async(void *dst, uint64_t src, size_t bytes,
                                      struct cu_stream *stream) {
    if (bytes > 0 && (src == 0 || dst == NULL)) return CUDA_ERROR_INVALID_VALUE;
    return copy_call((struct copy_op){.dst_host = dst, .src_device = src, .bytes = bytes}, stream,
                     "cuMemcpyDtoHAsync");
}

enum cu_result soft_memcpy_dtod_async(uint64_t dst, uint64_t src, size_t bytes,
                                      struct cu_stream *stream) {
    if (bytes > 0 && (src == 0 || dst == 0)) return CUDA_ERROR_INVALID_VALUE;
    return copy_call((struct copy_op){.dst_device = dst, .src_device = src, .bytes = bytes}, stream,
                     "cuMemcpyDtoDAsync");
}

static enum cu_result fill_call(struct fill_op fill, struct cu_stream *stream, const char *call) {
    soft_lock();
    enum cu_result r = soft_enter(call, true);
    struct stream *s = r == CUDA_SUCCESS ? stream_get(stream, call) : NULL;
    if (r == CUDA_SUCCESS && s == NULL) r = CUDA_ERROR_INVALID_HANDLE;
    if (r == CUDA_SUCCESS && fill.count > 0) {
        if (fill.dst % fill.width_bytes != 0 ||
            !device_range(fill.dst, fill.count * fill.width_bytes)) {
            rule_broken(RULE_COPY_RANGE, fill.dst, "%s: %llu elements of %u at %#llx", call,
                        (unsigned long long)fill.count, fill.width_bytes,
                        (unsigned long long)fill.dst);
            r = CUDA_ERROR_INVALID_VALUE;
        } else {
            struct work *o = work_new(WORK_FILL);
            o->fill = fill;
            stream_push(s, o, false);
            work_release(o);
        }
    }
    soft_unlock();
    return r;
}

enum cu_result soft_memset_d8_async(uint64_t dst, unsigned char value, size_t n,
                                    struct cu_stream *stream) {
    return fill_call((struct fill_op){dst, value, 1, n}, stream, "cuMemsetD8Async");
}

enum cu_result soft_memset_d32_async(uint64_t dst, unsigned value, size_t n,
                                     struct cu_stream *stream) {
    return fill_call((struct fill_op){dst, value, 4, n}, stream, "cuMemsetD32Async");
}
