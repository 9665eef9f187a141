#include "core/cuda.h"

#include <dlfcn.h>
#include <string.h>

#include "core/check.h"

/* The binary interface: sizes and offsets of CUDA 13.0 on a 64-bit system. */
_Static_assert(sizeof(struct cu_launch_attribute) == 72, "CUlaunchAttribute");
_Static_assert(sizeof(struct cu_launch_config) == 56, "CUlaunchConfig");
_Static_assert(offsetof(struct cu_launch_config, attributes) == 40, "CUlaunchConfig.attrs");
_Static_assert(sizeof(struct cu_allocation) == 32, "CUmemAllocationProp");
_Static_assert(sizeof(struct cu_access) == 12, "CUmemAccessDesc");
_Static_assert(sizeof(struct cu_kernel_params) == 72, "CUDA_KERNEL_NODE_PARAMS_v3");
_Static_assert(sizeof(struct cu_copy_3d) == 200, "CUDA_MEMCPY3D");
_Static_assert(sizeof(struct cu_memcpy_params) == 216, "CUDA_MEMCPY_NODE_PARAMS");
_Static_assert(sizeof(struct cu_memset_params) == 48, "CUDA_MEMSET_NODE_PARAMS_v2");
_Static_assert(sizeof(struct cu_node_params) == 256, "CUgraphNodeParams");
_Static_assert(offsetof(struct cu_node_params, kernel) == 16, "CUgraphNodeParams.kernel");
_Static_assert(sizeof(struct cu_edge) == 8, "CUgraphEdgeData");

/* cuGetProcAddress_v2: the last argument says why there is none (CUDA 12.0). */
typedef enum cu_result get_proc_address(const char *symbol, void **out, int version, uint64_t flags,
                                        int *why);

static const char *own_name(enum cu_result r) {
    switch (r) {
#define X(code, value)                                                                             \
    case code:                                                                                     \
        return #code;
        CU_RESULT_LIST(X)
#undef X
    }
    return "CUDA error without a name";
}

const char *cuda_result_name(const struct cuda *cu, enum cu_result r) {
    const char *name = NULL;
    if (cu->get_error_name == NULL || cu->get_error_name(r, &name) != CUDA_SUCCESS ||
        name == NULL) {
        return own_name(r);
    }
    return name;
}

static enum status status_of(enum cu_result r) {
    switch (r) {
    case CUDA_SUCCESS:
        return STATUS_OK;
    case CUDA_ERROR_OUT_OF_MEMORY:
        return STATUS_NO_MEMORY;
    case CUDA_ERROR_NOT_READY:
        return STATUS_AGAIN;
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
    case CUDA_ERROR_JIT_COMPILATION_DISABLED:
    case CUDA_ERROR_NOT_SUPPORTED:
        return STATUS_UNSUPPORTED;
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_INVALID_SOURCE:
        return STATUS_CORRUPT;
    case CUDA_ERROR_NOT_FOUND:
    case CUDA_ERROR_FILE_NOT_FOUND:
    case CUDA_ERROR_NO_DEVICE:
        return STATUS_NOT_FOUND;
    default:
        return STATUS_DEVICE;
    }
}

bool cuda_is_lost(enum cu_result r) {
    switch (r) {
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_UNKNOWN:
        return true;
    default:
        return false;
    }
}

enum status cuda_status(const struct cuda *cu, enum cu_result r, const char *call,
                        struct error *e) {
    if (r == CUDA_SUCCESS) return STATUS_OK;
    const char *text = NULL;
    if (cu->get_error_string == NULL || cu->get_error_string(r, &text) != CUDA_SUCCESS) text = NULL;
    return error_set(e, status_of(r), NULL, "CUDA %s: %s (%d)%s%s", call, cuda_result_name(cu, r),
                     (int)r, text != NULL ? ": " : "", text != NULL ? text : "");
}

/* The version is for messages only. */
static int read_version(get_proc_address *get) {
    void *p = NULL;
    int why = 0, version = 0;
    enum cu_result (*read)(int *);
    if (get("cuDriverGetVersion", &p, 2020, 0, &why) != CUDA_SUCCESS || p == NULL) return 0;
    memcpy(&read, &p, sizeof p);
    return read(&version) == CUDA_SUCCESS ? version : 0;
}

static enum status resolve(struct cuda *cu, get_proc_address *get, struct error *e) {
    void *p;
    int why = 0;
#define X(field, symbol, version, args)                                                            \
    p = NULL;                                                                                      \
    if (get(symbol, &p, version, 0, &why) != CUDA_SUCCESS || p == NULL) {                          \
        return error_set(e, STATUS_UNSUPPORTED, NULL,                                              \
                         "the CUDA driver (%d.%d) has no %s of CUDA %d.%d: a newer one is needed", \
                         cu->driver_version / 1000, cu->driver_version % 1000 / 10, symbol,        \
                         (version) / 1000, (version) % 1000 / 10);                                 \
    }                                                                                              \
    memcpy(&cu->field, &p, sizeof p);
    CUDA_ENTRY_LIST(X)
#undef X
    return STATUS_OK;
}

enum status cuda_open(struct cuda *cu, const char *path, struct error *e) {
    memset(cu, 0, sizeof *cu);
    if (path == NULL) path = "libcuda.so.1";
    /* Never unloaded while the process lives (NODELETE): drivers leave threads and atexit handlers
     * behind. */
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) {
        return error_set(e, STATUS_NOT_FOUND, NULL, "no CUDA driver: %s", dlerror());
    }
    get_proc_address *get = NULL;
    void *p = dlsym(library, "cuGetProcAddress_v2");
    memcpy(&get, &p, sizeof p);
    enum status s = STATUS_OK;
    if (get == NULL) {
        s = error_set(e, STATUS_UNSUPPORTED, NULL,
                      "%s has no cuGetProcAddress of CUDA 12.0: a newer driver is needed", path);
    }
    if (s == STATUS_OK) {
        cu->driver_version = read_version(get);
        s = resolve(cu, get, e);
    }
    if (s == STATUS_OK) s = CUDA_CALL(cu, e, init, 0);
    int n = 0;
    if (s == STATUS_OK) s = CUDA_CALL(cu, e, device_get_count, &n);
    if (s == STATUS_OK && n == 0) {
        s = error_set(e, STATUS_NOT_FOUND, NULL, "the CUDA driver sees no device");
    }
    if (s != STATUS_OK) {
        dlclose(library);
        memset(cu, 0, sizeof *cu);
        return s;
    }
    cu->library = library;
    return STATUS_OK;
}

void cuda_close(struct cuda *cu) {
    if (cu->library != NULL) dlclose(cu->library);
    memset(cu, 0, sizeof *cu);
}

enum status cuda_device_read(const struct cuda *cu, int ordinal, struct cuda_device *out,
                             struct error *e) {
    memset(out, 0, sizeof *out);
    int n = 0;
    enum status s = CUDA_CALL(cu, e, device_get_count, &n);
    if (s == STATUS_OK && (ordinal < 0 || ordinal >= n)) {
        s = error_set(e, STATUS_INVALID, NULL, "there is no CUDA device %d (there are %d)", ordinal,
                      n);
    }
    struct cuda_device d = {.ordinal = ordinal};
    size_t total = 0;
    if (s == STATUS_OK) s = CUDA_CALL(cu, e, device_get, &d.handle, ordinal);
    if (s == STATUS_OK) {
        s = CUDA_CALL(cu, e, device_get_name, d.name, (int)sizeof d.name - 1, d.handle);
    }
    if (s == STATUS_OK) s = CUDA_CALL(cu, e, device_get_uuid, &d.uuid, d.handle);
    if (s == STATUS_OK) s = CUDA_CALL(cu, e, device_total_mem, &total, d.handle);
    int major = 0, minor = 0, virtual_memory = 0, cooperative = 0, cluster = 0;
    uint32_t none[1];
    const struct {
        enum cu_device_attribute attribute;
        int *flag;
        uint32_t *number;
    } wanted[] = {
        {CU_DEVICE_CC_MAJOR, &major, none},
        {CU_DEVICE_CC_MINOR, &minor, none},
        {CU_DEVICE_VIRTUAL_MEMORY, &virtual_memory, none},
        {CU_DEVICE_COOPERATIVE_LAUNCH, &cooperative, none},
        {CU_DEVICE_CLUSTER_LAUNCH, &cluster, none},
        {CU_DEVICE_SM_COUNT, NULL, &d.n_sms},
        {CU_DEVICE_THREADS_PER_SM, NULL, &d.threads_per_sm},
        {CU_DEVICE_BLOCKS_PER_SM, NULL, &d.blocks_per_sm},
        {CU_DEVICE_REGISTERS_PER_SM, NULL, &d.registers_per_sm},
        {CU_DEVICE_REGISTERS_PER_BLOCK, NULL, &d.registers_per_block},
        {CU_DEVICE_SHARED_BYTES_PER_SM, NULL, &d.shared_bytes_per_sm},
        {CU_DEVICE_SHARED_BYTES_PER_BLOCK, NULL, &d.shared_bytes_per_block},
        {CU_DEVICE_SHARED_BYTES_PER_BLOCK_OPTIN, NULL, &d.shared_bytes_per_block_optin},
        {CU_DEVICE_RESERVED_SHARED_BYTES_PER_BLOCK, NULL, &d.reserved_shared_bytes_per_block},
        {CU_DEVICE_L2_BYTES, NULL, &d.l2_bytes},
        {CU_DEVICE_CLOCK_KHZ, NULL, &d.clock_khz},
        {CU_DEVICE_MEMORY_CLOCK_KHZ, NULL, &d.memory_clock_khz},
        {CU_DEVICE_MEMORY_BUS_BITS, NULL, &d.memory_bus_bits},
    };
    for (size_t i = 0; s == STATUS_OK && i < sizeof wanted / sizeof wanted[0]; i++) {
        int value = 0;
        s = CUDA_CALL(cu, e, device_get_attribute, &value, wanted[i].attribute, d.handle);
        if (wanted[i].flag != NULL)
            *wanted[i].flag = value;
        else
            *wanted[i].number = value > 0 ? (uint32_t)value : 0;
    }
    if (s == STATUS_OK && (d.n_sms == 0 || major <= 0 || minor < 0 || minor > 9)) {
        s = error_set(e, STATUS_DEVICE, NULL, "CUDA device %d describes itself wrongly", ordinal);
    }
    if (s != STATUS_OK) return s;
    d.cc = (uint32_t)(10 * major + minor);
    d.total_bytes = total;
    d.virtual_memory = virtual_memory != 0;
    d.cooperative_launch = cooperative != 0;
    d.cluster_launch = cluster != 0;
    *out = d;
    return STATUS_OK;
}

enum status cuda_context_open(const struct cuda *cu, const struct cuda_device *d,
                              struct cu_context **out, struct error *e) {
    *out = NULL;
    struct cu_context *context = NULL;
    enum status s = CUDA_CALL(cu, e, device_primary_ctx_retain, &context, d->handle);
    if (s != STATUS_OK) return s;
    s = CUDA_CALL(cu, e, ctx_set_current, context);
    if (s != STATUS_OK) {
        (void)cu->device_primary_ctx_release(d->handle);
        return s;
    }
    *out = context;
    return STATUS_OK;
}

void cuda_context_close(const struct cuda *cu, const struct cuda_device *d) {
    (void)cu->device_primary_ctx_release(d->handle);
}

enum status cuda_module_load(const struct cuda *cu, const void *image, char *log, size_t log_bytes,
                             struct cu_module **out, struct error *e) {
    *out = NULL;
    char own[1024];
    if (log == NULL || log_bytes == 0) {
        log = own;
        log_bytes = sizeof own;
    }
    if (log_bytes > UINT32_MAX) log_bytes = UINT32_MAX;
    memset(log, 0, log_bytes);
    enum cu_jit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    /* A number is passed as the pointer itself. */
    void *values[] = {log, (void *)(uintptr_t)(log_bytes - 1)};
    struct cu_module *module = NULL;
    const enum cu_result r = cu->module_load_data_ex(&module, image, 2, options, values);
    if (r == CUDA_SUCCESS) {
        log[0] = '\0';
        *out = module;
        return STATUS_OK;
    }
    const enum status s = cuda_status(cu, r, "module_load_data_ex", e);
    if (log[0] != '\0') {
        error_set(e, s, NULL, "CUDA module_load_data_ex: %s: %.*s", cuda_result_name(cu, r),
                  (int)strcspn(log, "\n"), log);
    }
    return s;
}

enum { MAX_ATTRIBUTES = 3 };

static unsigned launch_attributes(const struct cuda_launch *l,
                                  struct cu_launch_attribute out[MAX_ATTRIBUTES]) {
    unsigned n = 0;
    memset(out, 0, MAX_ATTRIBUTES * sizeof *out);
    if (l->cluster[0] != 0) {
        out[n].id = CU_LAUNCH_CLUSTER_DIMENSION;
        out[n].value.cluster.x = l->cluster[0];
        out[n].value.cluster.y = l->cluster[1];
        out[n++].value.cluster.z = l->cluster[2];
    }
    if (l->cooperative) {
        out[n].id = CU_LAUNCH_COOPERATIVE;
        out[n++].value.cooperative = 1;
    }
    if (l->dependent) {
        out[n].id = CU_LAUNCH_PROGRAMMATIC_SERIALIZATION;
        out[n++].value.programmatic_serialization = 1;
    }
    return n;
}

enum status cuda_launch(const struct cuda *cu, struct cu_function *f, const struct cuda_launch *l,
                        void **params, struct cu_stream *stream, struct error *e) {
    struct cu_launch_attribute attributes[MAX_ATTRIBUTES];
    const struct cu_launch_config config = {.grid_x = l->grid[0],
                                            .grid_y = l->grid[1],
                                            .grid_z = l->grid[2],
                                            .block_x = l->block[0],
                                            .block_y = l->block[1],
                                            .block_z = l->block[2],
                                            .shared_bytes = l->shared_bytes,
                                            .stream = stream,
                                            .attributes = attributes,
                                            .n_attributes = launch_attributes(l, attributes)};
    return CUDA_CALL(cu, e, launch_kernel_ex, &config, f, params, NULL);
}

static enum status add_node(const struct cuda *cu, struct cu_graph *g,
                            struct cu_node_params *params, const struct cuda_after *after,
                            uint32_t n_after, struct cu_graph_node **out, struct error *e) {
    CHECK(n_after <= CUDA_MAX_AFTER);
    struct cu_graph_node *nodes[CUDA_MAX_AFTER] = {NULL};
    struct cu_edge edges[CUDA_MAX_AFTER];
    memset(edges, 0, sizeof edges);
    bool programmatic = false;
    for (uint32_t i = 0; i < n_after; i++) {
        nodes[i] = after[i].node;
        if (!after[i].programmatic) continue;
        programmatic = true;
        edges[i].from_port = CU_EDGE_PORT_PROGRAMMATIC;
        edges[i].type = CU_EDGE_TYPE_PROGRAMMATIC;
    }
    *out = NULL;
    return CUDA_CALL(cu, e, graph_add_node, out, g, n_after > 0 ? nodes : NULL,
                     programmatic ? edges : NULL, n_after, params);
}

static struct cu_kernel_params kernel_params(struct cu_function *f, const struct cuda_launch *l,
                                             void **params) {
    return (struct cu_kernel_params){.function = f,
                                     .grid_x = l->grid[0],
                                     .grid_y = l->grid[1],
                                     .grid_z = l->grid[2],
                                     .block_x = l->block[0],
                                     .block_y = l->block[1],
                                     .block_z = l->block[2],
                                     .shared_bytes = l->shared_bytes,
                                     .params = params};
}

enum status cuda_graph_add_kernel(const struct cuda *cu, struct cu_graph *g, struct cu_function *f,
                                  const struct cuda_launch *l, void **params,
                                  const struct cuda_after *after, uint32_t n_after,
                                  struct cu_graph_node **out, struct error *e) {
    struct cu_node_params p;
    memset(&p, 0, sizeof p);
    p.type = CU_NODE_KERNEL;
    p.kernel = kernel_params(f, l, params);
    enum status s = add_node(cu, g, &p, after, n_after, out, e);
    struct cuda_launch own = *l;
    own.dependent = false; /* the edges say it */
    struct cu_launch_attribute attributes[MAX_ATTRIBUTES];
    const unsigned n = launch_attributes(&own, attributes);
    for (unsigned i = 0; s == STATUS_OK && i < n; i++) {
        s = CUDA_CALL(cu, e, graph_kernel_node_set_attribute, *out,
                      (enum cu_launch_attribute_id)attributes[i].id, &attributes[i].value);
    }
    if (s != STATUS_OK) *out = NULL;
    return s;
}

enum status cuda_graph_add_copy(const struct cuda *cu, struct cu_graph *g,
                                struct cu_context *context, const struct cuda_copy *copy,
                                const struct cuda_after *after, uint32_t n_after,
                                struct cu_graph_node **out, struct error *e) {
    CHECK((copy->dst_host != NULL) != (copy->dst_device != 0));
    CHECK((copy->src_host != NULL) != (copy->src_device != 0));
    CHECK(copy->bytes <= INT32_MAX); /* the largest pitch */
    struct cu_node_params p;
    memset(&p, 0, sizeof p);
    p.type = CU_NODE_MEMCPY;
    p.memcpy.context = context;
    p.memcpy.copy =
        (struct cu_copy_3d){.src_type = copy->src_host ? CU_MEMORY_HOST : CU_MEMORY_DEVICE,
                            .src_host = copy->src_host,
                            .src_device = copy->src_device,
                            .src_pitch_bytes = copy->bytes,
                            .src_height = 1,
                            .dst_type = copy->dst_host ? CU_MEMORY_HOST : CU_MEMORY_DEVICE,
                            .dst_host = copy->dst_host,
                            .dst_device = copy->dst_device,
                            .dst_pitch_bytes = copy->bytes,
                            .dst_height = 1,
                            .width_bytes = copy->bytes,
                            .height = 1,
                            .depth = 1};
    return add_node(cu, g, &p, after, n_after, out, e);
}

enum status cuda_graph_add_fill(const struct cuda *cu, struct cu_graph *g,
                                struct cu_context *context, uint64_t dst, uint32_t value,
                                size_t bytes, const struct cuda_after *after, uint32_t n_after,
                                struct cu_graph_node **out, struct error *e) {
    CHECK(bytes % 4 == 0 && bytes / 4 <= UINT32_MAX);
    struct cu_node_params p;
    memset(&p, 0, sizeof p);
    p.type = CU_NODE_MEMSET;
    p.memset = (struct cu_memset_params){.dst = dst,
                                         .value = value,
                                         .element_bytes = 4,
                                         .width = bytes / 4,
                                         .height = 1,
                                         .context = context};
    return add_node(cu, g, &p, after, n_after, out, e);
}

enum status cuda_graph_add_host(const struct cuda *cu, struct cu_graph *g, cu_host_function *f,
                                void *arg, const struct cuda_after *after, uint32_t n_after,
                                struct cu_graph_node **out, struct error *e) {
    struct cu_node_params p;
    memset(&p, 0, sizeof p);
    p.type = CU_NODE_HOST;
    p.host = (struct cu_host_params){.function = f, .arg = arg};
    return add_node(cu, g, &p, after, n_after, out, e);
}

enum status cuda_graph_set_kernel(const struct cuda *cu, struct cu_graph_exec *x,
                                  struct cu_graph_node *node, struct cu_function *f,
                                  const struct cuda_launch *l, void **params, struct error *e) {
    const struct cu_kernel_params p = kernel_params(f, l, params);
    return CUDA_CALL(cu, e, graph_exec_kernel_node_set_params, x, node, &p);
}
