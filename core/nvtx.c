#include "core/nvtx.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { NVTX_VERSION = 3 };
enum { MODULE_CORE2 = 5 };
/* Entries of each module, the invalid one at 0 included (NvtxCallbackId...). */
static const unsigned n_entries[NVTX_MODULES] = {0, 16, 9, 15, 7, 16, 7};
enum { CORE2_PUSH = 4, CORE2_POP = 5, CORE2_CREATE_DOMAIN = 12, CORE2_DESTROY_DOMAIN = 14 };
enum { EXPORT_CALLBACKS = 1, EXPORT_VERSION = 3 };

struct nvtx_event {
    uint16_t version, bytes;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, n_payloads;
    uint64_t payload;
    int32_t message_type;
    const char *message;
};
_Static_assert(sizeof(struct nvtx_event) == 48, "nvtxEventAttributes_v2");
enum { PAYLOAD_U64 = 1, MESSAGE_ASCII = 1 };
static const int32_t payload_extension = (int32_t)0xdfbd0009u;

/* The payload extension. */
enum { EXTENSION_PAYLOAD = 2, EXTENSION_COMPATIBLE = 0x0104, EXTENSION_REGISTER_SCHEMA = 0 };
struct payload_data {
    uint64_t schema;
    size_t bytes;
    const void *data;
};
struct schema_entry {
    uint64_t flags, type;
    const char *name, *description;
    uint64_t detail, offset;
    const void *semantics, *reserved;
};
enum { ENTRY_U64 = 18 };
struct nvtx_schema {
    uint64_t fields; /* which of the following are set: bit 1 + index */
    const char *name;
    uint64_t type; /* 1: static */
    uint64_t flags;
    const struct schema_entry *entries;
    size_t n_entries, payload_bytes, align;
    uint64_t id;
    void *extension;
};
enum { FIELD_NAME = 2, FIELD_TYPE = 4, FIELD_ENTRIES = 16, FIELD_N_ENTRIES = 32, FIELD_BYTES = 64 };
struct work {
    uint64_t bytes, flops;
};
struct extension_segment {
    size_t id, n_slots;
    intptr_t *slots;
};
struct extension_module {
    uint16_t version, bytes, id, compatible;
    size_t n_segments;
    struct extension_segment *segments;
    intptr_t (*get_export)(uint32_t id);
    const void *info;
};
/* Sizes and alignments of C's types in the order of the entry types; the first says how many. */
static const struct {
    uint16_t bytes, align;
} type_info[28] = {
    {28, 4}, {1, 1},   {1, 1}, {2, 2}, {2, 2}, {4, 4}, {4, 4}, {8, 8}, {8, 8}, {8, 8},
    {8, 8},  {1, 1},   {1, 1}, {2, 2}, {2, 2}, {4, 4}, {4, 4}, {8, 8}, {8, 8}, {4, 4},
    {8, 8},  {16, 16}, {8, 8}, {8, 8}, {4, 4}, {1, 1}, {2, 2}, {4, 4},
};

/* The protocol calls us back without a context: whoever is attached, for the whole process. */
static struct nvtx *_Atomic attached;

static int get_module_table(int module, nvtx_function ****table, unsigned *n) {
    struct nvtx *x = atomic_load(&attached);
    if (x == NULL || module <= 0 || module >= NVTX_MODULES) return 0;
    if (table != NULL) *table = x->tables[module];
    if (n != NULL) *n = n_entries[module];
    return 1;
}

static void set_injection_version(uint32_t version) {
    (void)version;
}

static const void *get_export_table(uint32_t id) {
    static const struct {
        size_t bytes;
        int (*get_module_table)(int module, nvtx_function ****table, unsigned *n);
    } callbacks = {sizeof callbacks, get_module_table};
    static const struct {
        size_t bytes;
        uint32_t version, reserved;
        void (*set_injection_version)(uint32_t version);
    } version = {sizeof version, NVTX_VERSION, 0, set_injection_version};
    switch (id) {
    case EXPORT_CALLBACKS:
        return &callbacks;
    case EXPORT_VERSION:
        return &version;
    default:
        return NULL;
    }
}

/* Object and function pointers are of one kind here, as POSIX has it. */
static void take_function(void *to, const void *from) {
    memcpy(to, from, sizeof(void *));
}

static void take_symbol(void *library, const char *name, void *to) {
    void *p = dlsym(library, name);
    memcpy(to, &p, sizeof p);
}

static void attach_payloads(struct nvtx *n) {
    int (*initialize)(struct extension_module *);
    take_symbol(n->library, "InitializeInjectionNvtxExtension", &initialize);
    if (initialize == NULL) return;
    struct extension_segment segment = {0, NVTX_EXTENSION_SLOTS, n->extension};
    struct extension_module module = {
        NVTX_VERSION, sizeof module, EXTENSION_PAYLOAD, EXTENSION_COMPATIBLE, 1,
        &segment,     NULL,          type_info};
    if (initialize(&module) == 0) memset(n->extension, 0, sizeof n->extension);
}

typedef uint64_t register_schema(struct nvtx_domain *, const struct nvtx_schema *);

static void make_schema(struct nvtx *n, register_schema *reg) {
    static const struct schema_entry entries[] = {
        {.type = ENTRY_U64, .name = "bytes", .offset = offsetof(struct work, bytes)},
        {.type = ENTRY_U64, .name = "flops", .offset = offsetof(struct work, flops)},
    };
    static const struct nvtx_schema schema = {
        .fields = FIELD_NAME | FIELD_TYPE | FIELD_ENTRIES | FIELD_N_ENTRIES | FIELD_BYTES,
        .name = "work",
        .type = 1,
        .entries = entries,
        .n_entries = sizeof entries / sizeof entries[0],
        .payload_bytes = sizeof(struct work),
    };
    if (reg != NULL) n->schema = reg(n->domain, &schema);
}

typedef struct nvtx_domain *create_domain(const char *name);

static enum status attach(struct nvtx *n, const char *injection, const char *domain,
                          struct error *e) {
    n->library = dlopen(injection, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (n->library == NULL) {
        return error_set(e, STATUS_NOT_FOUND, NULL, "NVTX injection: %s", dlerror());
    }
    int (*initialize)(const void *(*)(uint32_t));
    take_symbol(n->library, "InitializeInjectionNvtx2", &initialize);
    if (initialize == NULL) {
        return error_set(e, STATUS_INVALID, NULL, "%s is no NVTX injection library", injection);
    }
    struct nvtx *nobody = NULL;
    if (!atomic_compare_exchange_strong(&attached, &nobody, n)) {
        return error_set(e, STATUS_FULL, NULL, "an NVTX injection library is attached already");
    }
    n->attached = true;
    for (int m = 1; m < NVTX_MODULES; m++) {
        for (unsigned i = 1; i < n_entries[m]; i++) n->tables[m][i] = &n->functions[m][i];
    }
    if (initialize(get_export_table) == 0) {
        return error_set(e, STATUS_INVALID, NULL, "%s refuses to attach", injection);
    }
    create_domain *create;
    take_function(&create, &n->functions[MODULE_CORE2][CORE2_CREATE_DOMAIN]);
    take_function(&n->push, &n->functions[MODULE_CORE2][CORE2_PUSH]);
    take_function(&n->pop, &n->functions[MODULE_CORE2][CORE2_POP]);
    /* A tool may leave out what it does not show; ranges need both ends. */
    if (n->push == NULL || n->pop == NULL) n->push = NULL;
    if (n->push == NULL) return STATUS_OK;
    if (create != NULL) n->domain = create(domain);
    attach_payloads(n);
    register_schema *reg;
    take_function(&reg, &n->extension[EXTENSION_REGISTER_SCHEMA]);
    make_schema(n, reg);
    return STATUS_OK;
}

static void use_library(struct nvtx *n, const char *domain) {
    static const char *const names[] = {"libnvtx3interop.so.1", "libnvToolsExt.so.1"};
    for (size_t i = 0; n->library == NULL && i < sizeof names / sizeof names[0]; i++) {
        n->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    }
    if (n->library == NULL) return;
    create_domain *create;
    take_symbol(n->library, "nvtxDomainCreateA", &create);
    take_symbol(n->library, "nvtxDomainRangePushEx", &n->push);
    take_symbol(n->library, "nvtxDomainRangePop", &n->pop);
    if (create == NULL || n->push == NULL || n->pop == NULL) {
        n->push = NULL;
        return;
    }
    n->domain = create(domain);
    register_schema *reg;
    take_symbol(n->library, "nvtxPayloadSchemaRegister", &reg);
    make_schema(n, reg);
}

enum status nvtx_open(struct nvtx *n, const char *injection, const char *domain, struct error *e) {
    memset(n, 0, sizeof *n);
    if (injection == NULL) {
        use_library(n, domain);
        return STATUS_OK;
    }
    const enum status s = attach(n, injection, domain, e);
    if (s != STATUS_OK) nvtx_close(n);
    return s;
}

void nvtx_close(struct nvtx *n) {
    if (n->attached) {
        void (*destroy)(struct nvtx_domain *);
        take_function(&destroy, &n->functions[MODULE_CORE2][CORE2_DESTROY_DOMAIN]);
        if (destroy != NULL && n->domain != NULL) destroy(n->domain);
        atomic_store(&attached, NULL);
    }
    if (n->library != NULL) dlclose(n->library);
    memset(n, 0, sizeof *n);
}

void nvtx_push_event(const struct nvtx *n, const char *name, uint64_t bytes, uint64_t flops) {
    char text[NVTX_NAME_BYTES];
    const struct work work = {bytes, flops};
    const struct payload_data payload = {n->schema, sizeof work, &work};
    struct nvtx_event event = {.version = NVTX_VERSION,
                               .bytes = sizeof event,
                               .message_type = MESSAGE_ASCII,
                               .message = text};
    if (n->schema != 0) {
        event.payload_type = payload_extension;
        event.n_payloads = 1;
        event.payload = (uintptr_t)&payload;
        snprintf(text, sizeof text, "%s", name);
    } else {
        event.payload_type = PAYLOAD_U64;
        event.payload = bytes;
        if (flops == 0)
            snprintf(text, sizeof text, "%s", name);
        else
            snprintf(text, sizeof text, "%s (%llu flops)", name, (unsigned long long)flops);
    }
    (void)n->push(n->domain, &event);
}
