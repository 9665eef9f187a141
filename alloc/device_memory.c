#include "alloc/device_memory.h"

#include <string.h>

#include "core/check.h"

static struct cu_allocation on_device(int ordinal) {
    return (struct cu_allocation){.type = CU_ALLOCATION_PINNED,
                                  .location = {.type = CU_LOCATION_DEVICE, .id = ordinal}};
}

/* UINT64_MAX when there is no such multiple. */
static uint64_t round_up(uint64_t v, uint64_t unit) {
    const uint64_t over = v % unit;
    if (over == 0) return v;
    return v > UINT64_MAX - (unit - over) ? UINT64_MAX : v + (unit - over);
}

static bool is_power_of_two(uint64_t v) {
    return v != 0 && (v & (v - 1)) == 0;
}

enum status device_memory_granularity(const struct cuda *cu, const struct cuda_device *d,
                                      uint64_t *bytes, struct error *e) {
    *bytes = 0;
    if (!d->virtual_memory) {
        return error_set(e, STATUS_UNSUPPORTED, NULL,
                         "%s has no virtual memory management (cuMemMap)", d->name);
    }
    const struct cu_allocation a = on_device(d->ordinal);
    size_t unit = 0;
    const enum status s =
        CUDA_CALL(cu, e, mem_get_allocation_granularity, &unit, &a, CU_GRANULARITY_RECOMMENDED);
    if (s != STATUS_OK) return s;
    if (!is_power_of_two(unit)) {
        return error_set(e, STATUS_DEVICE, NULL, "a granularity of %zu bytes makes no sense", unit);
    }
    *bytes = unit;
    return STATUS_OK;
}

void device_memory_plan(struct budget *b, const char *name, uint64_t bytes,
                        uint64_t granularity_bytes) {
    budget_add(b, name, round_up(bytes, granularity_bytes));
}

enum status device_memory_limit(const struct cuda *cu, struct memory_limit *m, struct error *e) {
    memset(m, 0, sizeof *m);
    size_t free_bytes = 0, total_bytes = 0;
    const enum status s = CUDA_CALL(cu, e, mem_get_info, &free_bytes, &total_bytes);
    if (s != STATUS_OK) return s;
    m->physical_bytes = total_bytes;
    m->available_bytes = free_bytes;
    m->cgroup_bytes = UINT64_MAX;
    m->limit_bytes = free_bytes - free_bytes / 16;
    return STATUS_OK;
}

enum status device_memory_open(struct device_memory *m, const struct cuda *cu,
                               const struct cuda_device *d, const char *name,
                               uint64_t reserve_bytes, struct error *e) {
    memset(m, 0, sizeof *m);
    uint64_t unit;
    enum status s = device_memory_granularity(cu, d, &unit, e);
    if (s != STATUS_OK) return s;
    const uint64_t whole = round_up(reserve_bytes, unit);
    if (reserve_bytes == 0 || whole == UINT64_MAX) {
        return error_set(e, STATUS_INVALID, NULL, "%s: %llu bytes cannot be reserved", name,
                         (unsigned long long)reserve_bytes);
    }
    uint64_t base = 0;
    s = CUDA_CALL(cu, e, mem_address_reserve, &base, whole, unit, 0, 0);
    if (s != STATUS_OK) return s;
    *m = (struct device_memory){.cuda = cu,
                                .name = name,
                                .device = d->ordinal,
                                .base = base,
                                .granularity_bytes = unit,
                                .reserved_bytes = whole};
    return STATUS_OK;
}

static enum status map_step(struct device_memory *m, uint64_t bytes, struct error *e) {
    const struct cuda *cu = m->cuda;
    const struct cu_allocation a = on_device(m->device);
    const uint64_t at = m->base + m->mapped_bytes;
    uint64_t handle = 0;
    enum status s = CUDA_CALL(cu, e, mem_create, &handle, bytes, &a, 0);
    if (s != STATUS_OK) return s;
    s = CUDA_CALL(cu, e, mem_map, at, bytes, 0, handle, 0);
    /* The mapping keeps the memory; the handle has done its work either way. */
    const enum status released = CUDA_CALL(cu, s == STATUS_OK ? e : NULL, mem_release, handle);
    if (s != STATUS_OK) return s;
    const struct cu_access access = {.location = a.location, .flags = CU_ACCESS_READ_WRITE};
    s = released;
    if (s == STATUS_OK) s = CUDA_CALL(cu, e, mem_set_access, at, bytes, &access, 1);
    if (s != STATUS_OK) {
        (void)cu->mem_unmap(at, bytes);
        return s;
    }
    m->step_bytes[m->n_steps++] = bytes;
    m->mapped_bytes += bytes;
    return STATUS_OK;
}

enum status device_memory_grow(struct device_memory *m, uint64_t bytes, struct error *e) {
    CHECK(m->base != 0 && !m->frozen);
    if (bytes <= m->mapped_bytes) return STATUS_OK;
    if (bytes > m->reserved_bytes) {
        return error_set(e, STATUS_NO_MEMORY, NULL,
                         "%s: %llu bytes of device memory are needed, %llu were planned", m->name,
                         (unsigned long long)bytes, (unsigned long long)m->reserved_bytes);
    }
    if (m->n_steps == DEVICE_MEMORY_MAX_STEPS) {
        return error_set(e, STATUS_NO_MEMORY, NULL, "%s has grown %d times already", m->name,
                         DEVICE_MEMORY_MAX_STEPS);
    }
    struct error cause = {0};
    const enum status s =
        map_step(m, round_up(bytes - m->mapped_bytes, m->granularity_bytes), &cause);
    if (s == STATUS_OK) return STATUS_OK;
    char need[BUDGET_TEXT_BYTES], have[BUDGET_TEXT_BYTES];
    return error_set(e, s, NULL, "%s cannot grow from %s to %s of device memory: %s", m->name,
                     budget_format(m->mapped_bytes, have), budget_format(bytes, need),
                     cause.message);
}

enum status device_memory_take(struct device_memory *m, uint64_t bytes, uint64_t align,
                               uint64_t *address, struct error *e) {
    CHECK(m->base != 0 && !m->frozen && bytes > 0);
    *address = 0;
    if (align == 0) align = DEVICE_MEMORY_ALIGN;
    CHECK(is_power_of_two(align) && align <= m->granularity_bytes);
    const uint64_t from = round_up(m->used_bytes, align);
    if (bytes > m->reserved_bytes || from > m->reserved_bytes - bytes) {
        return error_set(e, STATUS_NO_MEMORY, NULL,
                         "%s: %llu bytes more are needed, %llu of the plan are left", m->name,
                         (unsigned long long)bytes,
                         (unsigned long long)(m->reserved_bytes - m->used_bytes));
    }
    const enum status s = device_memory_grow(m, from + bytes, e);
    if (s != STATUS_OK) return s;
    m->used_bytes = from + bytes;
    *address = m->base + from;
    return STATUS_OK;
}

void device_memory_freeze(struct device_memory *m) {
    m->frozen = true;
}

void device_memory_close(struct device_memory *m) {
    uint64_t at = m->base;
    for (uint32_t i = 0; i < m->n_steps; i++) {
        (void)m->cuda->mem_unmap(at, m->step_bytes[i]);
        at += m->step_bytes[i];
    }
    if (m->base != 0) (void)m->cuda->mem_address_free(m->base, m->reserved_bytes);
    memset(m, 0, sizeof *m);
}

enum status pinned_memory_open(struct pinned_memory *p, const struct cuda *cu, const char *name,
                               uint64_t bytes, bool write_combined, struct error *e) {
    memset(p, 0, sizeof *p);
    CHECK(bytes > 0);
    void *host = NULL;
    uint64_t device = 0;
    const unsigned flags = CU_HOST_ALLOC_PORTABLE | CU_HOST_ALLOC_DEVICE_MAP |
                           (write_combined ? CU_HOST_ALLOC_WRITE_COMBINED : 0u);
    enum status s = CUDA_CALL(cu, e, mem_host_alloc, &host, bytes, flags);
    if (s != STATUS_OK) return s;
    s = CUDA_CALL(cu, e, mem_host_get_device_pointer, &device, host, 0);
    if (s != STATUS_OK) {
        (void)cu->mem_free_host(host);
        return s;
    }
    *p = (struct pinned_memory){
        .cuda = cu, .name = name, .host = host, .device = device, .bytes = bytes};
    return STATUS_OK;
}

enum status pinned_memory_take(struct pinned_memory *p, uint64_t bytes, uint64_t align, void **host,
                               uint64_t *address, struct error *e) {
    CHECK(p->host != NULL && !p->frozen && bytes > 0);
    *host = NULL;
    if (address != NULL) *address = 0;
    if (align == 0) align = 64;
    CHECK(is_power_of_two(align) && align <= 4096);
    const uint64_t from = round_up(p->used_bytes, align);
    if (bytes > p->bytes || from > p->bytes - bytes) {
        return error_set(
            e, STATUS_NO_MEMORY, NULL,
            "%s: %llu bytes more of pinned memory are needed, %llu of the plan are left", p->name,
            (unsigned long long)bytes, (unsigned long long)(p->bytes - p->used_bytes));
    }
    p->used_bytes = from + bytes;
    *host = p->host + from;
    if (address != NULL) *address = p->device + from;
    return STATUS_OK;
}

void pinned_memory_freeze(struct pinned_memory *p) {
    p->frozen = true;
}

void pinned_memory_close(struct pinned_memory *p) {
    if (p->host != NULL) (void)p->cuda->mem_free_host(p->host);
    memset(p, 0, sizeof *p);
}

enum status device_memory_upload(const struct cuda *cu, uint64_t dst, const void *src,
                                 uint64_t bytes, void *staging, uint64_t staging_bytes,
                                 struct cu_stream *stream, struct error *e) {
    CHECK(staging_bytes >= 2);
    const uint64_t half = staging_bytes / 2;
    struct cu_event *copied[2] = {NULL, NULL};
    enum status s = CUDA_CALL(cu, e, event_create, &copied[0], CU_EVENT_DISABLE_TIMING);
    if (s == STATUS_OK) s = CUDA_CALL(cu, e, event_create, &copied[1], CU_EVENT_DISABLE_TIMING);
    for (uint64_t at = 0, i = 0; s == STATUS_OK && at < bytes; i++) {
        const uint64_t n = bytes - at < half ? bytes - at : half;
        uint8_t *half_data = (uint8_t *)staging + (i & 1) * half;
        /* An event that was never recorded does not wait. */
        s = CUDA_CALL(cu, e, event_synchronize, copied[i & 1]);
        if (s != STATUS_OK) break;
        memcpy(half_data, (const uint8_t *)src + at, n);
        s = CUDA_CALL(cu, e, memcpy_htod_async, dst + at, half_data, n, stream);
        if (s == STATUS_OK) s = CUDA_CALL(cu, e, event_record, copied[i & 1], stream);
        at += n;
    }
    /* Also after a failure: the staging block must be the caller's again. */
    const enum status ended = CUDA_CALL(cu, s == STATUS_OK ? e : NULL, stream_synchronize, stream);
    for (int i = 0; i < 2; i++) {
        if (copied[i] != NULL) (void)cu->event_destroy(copied[i]);
    }
    return s != STATUS_OK ? s : ended;
}
