#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include <xxhash.h>

#include "tests/softgpu/driver.h"

enum { CHUNK_BYTES = 1 << 20 };

/* Through the kernel: a buffer that its owner has unmapped is an answer, not a fault. */
static bool host_move(void *own, void *theirs, size_t bytes, bool write) {
    uint8_t *a = own, *b = theirs;
    while (bytes > 0) {
        const struct iovec local = {a, bytes}, remote = {b, bytes};
        const ssize_t n = write ? process_vm_writev(getpid(), &local, 1, &remote, 1, 0)
                                : process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
        if (n < 0 && (errno == ENOSYS || errno == EPERM)) {
            /* A sandbox forbids it: trust the address. */
            memcpy(write ? b : a, write ? a : b, bytes);
            return true;
        }
        if (n <= 0) return false;
        a += n;
        b += n;
        bytes -= (size_t)n;
    }
    return true;
}

bool host_read(void *dst, const void *src, size_t bytes) {
    return host_move(dst, (void *)(uintptr_t)src, bytes, false);
}

bool host_write(void *dst, const void *src, size_t bytes) {
    return host_move((void *)(uintptr_t)src, dst, bytes, true);
}

bool host_hash(const void *src, uint64_t bytes, uint64_t *out) {
    uint8_t *chunk = soft_alloc(CHUNK_BYTES);
    XXH3_state_t *state = XXH3_createState();
    bool ok = state != NULL && XXH3_64bits_reset(state) == XXH_OK;
    for (uint64_t at = 0; ok && at < bytes;) {
        const size_t n = bytes - at < CHUNK_BYTES ? (size_t)(bytes - at) : CHUNK_BYTES;
        ok = host_read(chunk, (const uint8_t *)src + at, n);
        if (ok) (void)XXH3_64bits_update(state, chunk, n);
        at += n;
    }
    *out = ok ? XXH3_64bits_digest(state) : 0;
    XXH3_freeState(state);
    free(chunk);
    return ok;
}

void copy_check_source(const struct work *o, const char *when) {
    uint64_t hash = 0;
    const bool there = host_hash(o->copy.src_host, o->copy.bytes, &hash);
    if (there && hash == o->copy.source_hash) return;
    rule_broken(RULE_SOURCE_CHANGED, (uintptr_t)o->copy.src_host,
                "the %llu bytes at %p, source of a copy to the device, %s %s",
                (unsigned long long)o->copy.bytes, (const void *)o->copy.src_host,
                there ? "were changed" : "were unmapped", when);
}

void copy_spoil_destination(const struct work *o) {
    const struct copy_op *c = &o->copy;
    for (const struct work *x = soft.works; x != NULL; x = x->next) {
        if (x->done || x->kind != WORK_COPY || x->copy.src_host == NULL) continue;
        /* Somebody still has to read from there, in order. */
        if (x->copy.src_host < c->dst_host + c->bytes &&
            c->dst_host < x->copy.src_host + x->copy.bytes) {
            return;
        }
    }
    uint8_t *chunk = soft_alloc(CHUNK_BYTES);
    memset(chunk, 0xdb, CHUNK_BYTES);
    for (uint64_t at = 0; at < c->bytes;) {
        const size_t n = c->bytes - at < CHUNK_BYTES ? (size_t)(c->bytes - at) : CHUNK_BYTES;
        if (!host_write(c->dst_host + at, chunk, n)) break;
        at += n;
    }
    free(chunk);
}

static void lose(enum cu_result r) {
    if (soft.lost == CUDA_SUCCESS) soft.lost = r;
}

static void run_copy(struct work *o) {
    const struct copy_op *c = &o->copy;
    struct error e = {0};
    enum status s = STATUS_OK;
    uint64_t undefined = 0;
    if (c->src_host != NULL) copy_check_source(o, "before the copy ran");
    if (c->src_host == NULL && c->dst_host == NULL) {
        s = memory_copy(soft.memory, c->dst_device, c->src_device, c->bytes, &e);
    } else {
        const bool corrupt = c->dst_host != NULL && fault_due(&soft.faults.corrupt);
        uint8_t *chunk = soft_alloc(CHUNK_BYTES);
        for (uint64_t at = 0; s == STATUS_OK && at < c->bytes;) {
            const size_t n = c->bytes - at < CHUNK_BYTES ? (size_t)(c->bytes - at) : CHUNK_BYTES;
            uint64_t undefined_here = 0;
            if (c->src_host != NULL) {
                if (!host_read(chunk, c->src_host + at, n)) break; /* reported above */
            } else {
                s = memory_read(soft.memory, chunk, c->src_device + at, n, &undefined_here, &e);
            }
            undefined += undefined_here;
            if (corrupt) memset(chunk, 0xff, n);
            if (s == STATUS_OK && c->dst_host == NULL) {
                s = memory_write(soft.memory, c->dst_device + at, chunk, n, &e);
            } else if (s == STATUS_OK && !host_write(c->dst_host + at, chunk, n)) {
                s = error_set(&e, STATUS_NOT_FOUND, NULL, "the host destination is not mapped");
            }
            at += n;
        }
        free(chunk);
    }
    if (undefined > 0 && soft.check == EXEC_CHECK_FULL) {
        rule_broken(RULE_UNDEFINED_COPY, c->src_device,
                    "a copy to the host of %llu bytes at %#llx read %llu bytes that nobody wrote",
                    (unsigned long long)c->bytes, (unsigned long long)c->src_device,
                    (unsigned long long)undefined);
    }
    if (s == STATUS_OK) return;
    rule_broken(RULE_COPY_RANGE, c->dst_host != NULL ? c->src_device : c->dst_device,
                "a copy of %llu bytes failed when it ran: %s", (unsigned long long)c->bytes,
                e.message);
    lose(CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void run_fill(struct work *o) {
    struct error e = {0};
    if (memory_fill(soft.memory, o->fill.dst, o->fill.value, o->fill.width_bytes, o->fill.count,
                    &e) == STATUS_OK) {
        return;
    }
    rule_broken(RULE_COPY_RANGE, o->fill.dst, "a fill failed when it ran: %s", e.message);
    lose(CUDA_ERROR_ILLEGAL_ADDRESS);
}

/* Launches that ran before and may, on a device, still be running. */
static uint32_t list_unordered(struct work *o, bool after_wait,
                               struct exec_interval out[EXEC_MAX_UNORDERED]) {
    const uint64_t mark = order_mark_complete(o, after_wait);
    uint32_t n = 0;
    for (const struct work *x = soft.works_last; x != NULL && n < EXEC_MAX_UNORDERED;
         x = x->previous) {
        if (x->kind != WORK_KERNEL || !x->done || x->interval.end == x->interval.first) continue;
        if (!order_is_complete(x, o, mark)) out[n++] = x->interval;
    }
    return n;
}

/* What a device would report for the finding that stopped the launch. */
static enum cu_result result_of_stop(uint32_t first) {
    for (uint32_t i = soft.findings.n; i-- > first;) {
        switch (soft.findings.items[i].kind) {
        case FINDING_MISALIGNED:
            return CUDA_ERROR_MISALIGNED_ADDRESS;
        case FINDING_OUT_OF_BOUNDS:
        case FINDING_FREED:
        case FINDING_UNMAPPED:
        case FINDING_ACCESS_RIGHTS:
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        case FINDING_DEADLOCK:
        case FINDING_CO_RESIDENCY:
        case FINDING_HANG:
            return CUDA_ERROR_LAUNCH_TIMEOUT;
        default:
            break;
        }
    }
    return CUDA_ERROR_LAUNCH_FAILED;
}

static void run_kernel(struct work *o) {
    const struct kernel_op *k = &o->kernel;
    if (fault_due(&soft.faults.lost)) {
        lose(CUDA_ERROR_LAUNCH_FAILED);
        return;
    }
    struct exec_launch l = {.function = k->function->code,
                            .dynamic_shared_bytes = k->dynamic_bytes,
                            .max_dynamic_shared_bytes = k->function->max_dynamic_bytes,
                            .params = k->params,
                            .params_bytes = k->params_bytes,
                            .seed = soft.seed == 0 ? 0 : soft_draw() | 1,
                            .check = soft.check,
                            .threads = soft.threads,
                            .count_memory = soft.count_memory};
    memcpy(l.grid, k->grid, sizeof l.grid);
    memcpy(l.block, k->block, sizeof l.block);
    memcpy(l.cluster, k->cluster, sizeof l.cluster);
    l.n_unordered_before_wait = list_unordered(o, false, l.unordered_before_wait);
    l.n_unordered_after_wait = list_unordered(o, true, l.unordered_after_wait);
    const uint32_t first = soft.findings.n;
    struct overlap *overlap = overlap_before_kernel(o);
    struct exec_result r;
    struct error e = {0};
    /* `run` keeps the map and the module as they are. */
    soft_unlock();
    const enum status s = exec_launch(&soft.device, soft.memory, &l, &soft.findings, &r, &e);
    soft_lock();
    o->interval = r.interval;
    o->waited = r.waited;
    o->waited_first = r.waited_first;
    stats_add(stats_of(k->function->info.name), &r);
    exec_result_free(&r);
    overlap_after_kernel(o, overlap);
    if (s == STATUS_OK) return;
    if (s != STATUS_DEVICE) {
        rule_broken(RULE_LAUNCH_BOUNDS, 0, "%s could not be run: %s", k->function->info.name,
                    e.message);
    }
    lose(result_of_stop(first));
}

static void run_host(struct work *o) {
    const struct host_op h = o->host;
    soft_in_callback(true);
    soft_unlock();
    h.function(h.arg);
    soft_lock();
    soft_in_callback(false);
}

void execute(struct work *o) {
    if (soft.faults.lost_file[0] != '\0' && access(soft.faults.lost_file, F_OK) == 0) {
        lose(CUDA_ERROR_LAUNCH_FAILED);
    }
    /* A lost device finishes nothing; its host functions are not called (cuLaunchHostFunc). */
    if (soft.lost != CUDA_SUCCESS) return;
    switch (o->kind) {
    case WORK_KERNEL:
        run_kernel(o);
        break;
    case WORK_COPY:
        overlap_check_copy(o);
        run_copy(o);
        break;
    case WORK_FILL:
        overlap_check_copy(o);
        run_fill(o);
        break;
    case WORK_HOST:
        /* It tells the host that all before it is done. */
        for (uint32_t i = 0; i < o->n_after; i++) work_observe(o->after[i].work);
        run_host(o);
        break;
    case WORK_RECORD:
    case WORK_JOIN:
        break;
    }
}
