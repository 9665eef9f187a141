#include "tests/core/nvtx_tool.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static struct tool_log log_;
static int domain_object;

EXPORT struct tool_log *nvtx_tool_log(void);
struct tool_log *nvtx_tool_log(void) {
    return &log_;
}

/* Offsets of nvtxEventAttributes_t: payload type at 16, reserved 20, payload 24, message type 32,
 * message 40; of nvtxPayloadData_t: schema 0, size 8, data 16. */
static uint64_t u64_at(const void *p, size_t offset) {
    uint64_t v;
    memcpy(&v, (const char *)p + offset, sizeof v);
    return v;
}
static uint32_t u32_at(const void *p, size_t offset) {
    uint32_t v;
    memcpy(&v, (const char *)p + offset, sizeof v);
    return v;
}

static uint64_t offset_of_bytes, offset_of_flops;

/* nvtxPayloadSchemaAttr_t: entries at 32, their number at 40; nvtxPayloadSchemaEntry_t of 64 bytes:
 * type 8, name 16, offset 40. */
static uint64_t register_schema(void *domain, const void *attributes) {
    (void)domain;
    const char *entries = (const char *)(uintptr_t)u64_at(attributes, 32);
    const uint64_t n = u64_at(attributes, 40);
    uint64_t found = 0;
    for (uint64_t i = 0; i < n; i++) {
        const char *entry = entries + 64 * i;
        const char *name = (const char *)(uintptr_t)u64_at(entry, 16);
        if (u64_at(entry, 8) != 18) return 0; /* uint64 */
        if (strcmp(name, "bytes") == 0)
            offset_of_bytes = u64_at(entry, 40);
        else if (strcmp(name, "flops") == 0)
            offset_of_flops = u64_at(entry, 40);
        else
            return 0;
        found++;
    }
    return found == 2 && u64_at(attributes, 48) == 16 ? 0x100000001 : 0;
}

static int push(void *domain, const void *event) {
    if (log_.n == TOOL_LOG) return -1;
    struct tool_event *e = &log_.events[log_.n++];
    memset(e, 0, sizeof *e);
    e->push = 1;
    e->domain_matches = domain == &domain_object;
    if (u32_at(event, 0) != (48u << 16 | 3u) || u32_at(event, 32) != 1) return -1;
    snprintf(e->name, sizeof e->name, "%s", (const char *)(uintptr_t)u64_at(event, 40));
    if (u32_at(event, 16) == 0xdfbd0009u && u32_at(event, 20) == 1) {
        const char *data = (const char *)(uintptr_t)u64_at(event, 24);
        if (u64_at(data, 0) != 0x100000001 || u64_at(data, 8) != 16) return -1;
        const char *fields = (const char *)(uintptr_t)u64_at(data, 16);
        e->structured = 1;
        e->bytes = u64_at(fields, offset_of_bytes);
        e->flops = u64_at(fields, offset_of_flops);
    } else if (u32_at(event, 16) == 1) {
        e->payload = u64_at(event, 24);
    }
    return 0;
}

static int pop(void *domain) {
    if (log_.n == TOOL_LOG) return -1;
    struct tool_event *e = &log_.events[log_.n++];
    memset(e, 0, sizeof *e);
    e->domain_matches = domain == &domain_object;
    return 0;
}

static void *create_domain(const char *name) {
    snprintf(log_.domain, sizeof log_.domain, "%s", name);
    return &domain_object;
}

static void destroy_domain(void *domain) {
    log_.domain_destroyed = domain == &domain_object;
}

struct callbacks {
    size_t bytes;
    int (*get_module_table)(int module, void (****table)(void), unsigned *n);
};

EXPORT int InitializeInjectionNvtx2(const void *(*get_export_table)(uint32_t));
int InitializeInjectionNvtx2(const void *(*get_export_table)(uint32_t)) {
    if (log_.mode == TOOL_REFUSES) return 0;
    const void *version = get_export_table(3);
    log_.version = (int)u32_at(version, 8);
    const struct callbacks *c = get_export_table(1);
    if (c->bytes < sizeof *c) return 0;
    void (***table)(void);
    unsigned n = 0;
    /* As tools do, all modules are asked for. */
    static const unsigned expected[] = {0, 16, 9, 15, 7, 16, 7};
    if (c->get_module_table(0, &table, &n) != 0 || c->get_module_table(7, &table, &n) != 0) {
        return 0;
    }
    for (int m = 1; m <= 6; m++) {
        if (c->get_module_table(m, &table, &n) != 1 || n != expected[m]) return 0;
        for (unsigned i = 1; i < n; i++) {
            if (table[i] == NULL) return 0;
        }
    }
    if (c->get_module_table(5, &table, &n) != 1) return 0;
    if (log_.mode == TOOL_DEAF) return 1;
    *table[4] = (void (*)(void))push;
    *table[5] = (void (*)(void))pop;
    *table[12] = (void (*)(void))create_domain;
    *table[14] = (void (*)(void))destroy_domain;
    return 1;
}

/* nvtxExtModuleInfo_t: module id at 4, segments at 16; a segment: slots 8, pointer 16. */
EXPORT int InitializeInjectionNvtxExtension(const void *module);
int InitializeInjectionNvtxExtension(const void *module) {
    if (log_.mode != TOOL_STRUCTURES || u32_at(module, 4) != (0x0104u << 16 | 2u)) return 0;
    const char *segment = (const char *)(uintptr_t)u64_at(module, 16);
    if (u64_at(module, 8) != 1 || u64_at(segment, 8) < 13) return 0;
    intptr_t *slots = (intptr_t *)(uintptr_t)u64_at(segment, 16);
    slots[0] = (intptr_t)register_schema;
    return 1;
}
