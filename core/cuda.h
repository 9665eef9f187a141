/* cuda.h: the CUDA driver as a table of functions, loaded with dlopen; nothing links to it.
 *
 * cuda_open loads libcuda.so.1 and asks its cuGetProcAddress, the one way in, for every entry in
 * the version that CUDA_ENTRY_LIST names; a driver that lacks one is refused as a whole (the
 * youngest entries are CUDA 12.3's, so R545 is the oldest driver). The declarations below are our
 * own, from the facts of the binary interface in NVIDIA's "CUDA Driver API" reference (13.0):
 * names of entries, values of enumerators, sizes and order of fields. Names are the reference's in
 * our spelling: cuGraphAddNode is cuda.graph_add_node, CUgraphNodeParams struct cu_node_params.
 *
 * Entries are called through the table and give an enum cu_result; CUDA_CALL turns that into a
 * status with the driver's name for it in the error:
 *     s = CUDA_CALL(cu, e, stream_synchronize, stream);
 * Status by result: OUT_OF_MEMORY is NO_MEMORY; NOT_READY is AGAIN; NO_BINARY_FOR_GPU,
 * UNSUPPORTED_PTX_VERSION, NOT_SUPPORTED and the like are UNSUPPORTED; INVALID_IMAGE, INVALID_PTX
 * and INVALID_SOURCE are CORRUPT; NOT_FOUND, FILE_NOT_FOUND and NO_DEVICE are NOT_FOUND; all others
 * are DEVICE. After a result for which cuda_is_lost holds, every later call of the process on that
 * context fails the same way: the device is refused until a restart.
 *
 * State: struct cuda is the caller's memory, filled by cuda_open and read-only afterwards. The
 * driver's own state (current context of a thread) is the driver's. Ownership: what an open,
 * create, alloc or load call gives is given back by its pair; closing the table does not do it.
 * Threads: as the driver: any, each with its own current context. Device addresses are uint64_t
 * (CUdeviceptr). Sizes are in bytes.
 */
#ifndef LAC_CORE_CUDA_H
#define LAC_CORE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

/* Handles; what they point to is the driver's. */
struct cu_context;
struct cu_module;
struct cu_function;
struct cu_kernel;
struct cu_stream;
struct cu_event;
struct cu_graph;
struct cu_graph_node;
struct cu_graph_exec;

/* X(code, value): CUresult, the ones that we or the software device name. */
#define CU_RESULT_LIST(X)                                                                          \
    X(CUDA_SUCCESS, 0)                                                                             \
    X(CUDA_ERROR_INVALID_VALUE, 1)                                                                 \
    X(CUDA_ERROR_OUT_OF_MEMORY, 2)                                                                 \
    X(CUDA_ERROR_NOT_INITIALIZED, 3)                                                               \
    X(CUDA_ERROR_DEINITIALIZED, 4)                                                                 \
    X(CUDA_ERROR_STUB_LIBRARY, 34)                                                                 \
    X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46)                                                           \
    X(CUDA_ERROR_NO_DEVICE, 100)                                                                   \
    X(CUDA_ERROR_INVALID_DEVICE, 101)                                                              \
    X(CUDA_ERROR_INVALID_IMAGE, 200)                                                               \
    X(CUDA_ERROR_INVALID_CONTEXT, 201)                                                             \
    X(CUDA_ERROR_MAP_FAILED, 205)                                                                  \
    X(CUDA_ERROR_ALREADY_MAPPED, 208)                                                              \
    X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209)                                                           \
    X(CUDA_ERROR_NOT_MAPPED, 211)                                                                  \
    X(CUDA_ERROR_ECC_UNCORRECTABLE, 214)                                                           \
    X(CUDA_ERROR_INVALID_PTX, 218)                                                                 \
    X(CUDA_ERROR_NVLINK_UNCORRECTABLE, 220)                                                        \
    X(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, 221)                                                      \
    X(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222)                                                     \
    X(CUDA_ERROR_JIT_COMPILATION_DISABLED, 223)                                                    \
    X(CUDA_ERROR_CONTAINED, 226)                                                                   \
    X(CUDA_ERROR_INVALID_SOURCE, 300)                                                              \
    X(CUDA_ERROR_FILE_NOT_FOUND, 301)                                                              \
    X(CUDA_ERROR_OPERATING_SYSTEM, 304)                                                            \
    X(CUDA_ERROR_INVALID_HANDLE, 400)                                                              \
    X(CUDA_ERROR_ILLEGAL_STATE, 401)                                                               \
    X(CUDA_ERROR_NOT_FOUND, 500)                                                                   \
    X(CUDA_ERROR_NOT_READY, 600)                                                                   \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, 700)                                                             \
    X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701)                                                     \
    X(CUDA_ERROR_LAUNCH_TIMEOUT, 702)                                                              \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709)                                                        \
    X(CUDA_ERROR_ASSERT, 710)                                                                      \
    X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712)                                              \
    X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713)                                                  \
    X(CUDA_ERROR_HARDWARE_STACK_ERROR, 714)                                                        \
    X(CUDA_ERROR_ILLEGAL_INSTRUCTION, 715)                                                         \
    X(CUDA_ERROR_MISALIGNED_ADDRESS, 716)                                                          \
    X(CUDA_ERROR_INVALID_ADDRESS_SPACE, 717)                                                       \
    X(CUDA_ERROR_INVALID_PC, 718)                                                                  \
    X(CUDA_ERROR_LAUNCH_FAILED, 719)                                                               \
    X(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, 720)                                                \
    X(CUDA_ERROR_NOT_PERMITTED, 800)                                                               \
    X(CUDA_ERROR_NOT_SUPPORTED, 801)                                                               \
    X(CUDA_ERROR_SYSTEM_NOT_READY, 802)                                                            \
    X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803)                                                      \
    X(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, 910)                                                   \
    X(CUDA_ERROR_INVALID_CLUSTER_SIZE, 912)                                                        \
    X(CUDA_ERROR_UNKNOWN, 999)

enum cu_result {
#define X(code, value) code = value,
    CU_RESULT_LIST(X)
#undef X
};

/* CUdevice_attribute. Clocks are in kHz, the bus width in bits. */
enum cu_device_attribute {
    CU_DEVICE_MAX_THREADS_PER_BLOCK = 1,
    CU_DEVICE_MAX_BLOCK_DIM_X = 2,
    CU_DEVICE_MAX_BLOCK_DIM_Y = 3,
    CU_DEVICE_MAX_BLOCK_DIM_Z = 4,
    CU_DEVICE_MAX_GRID_DIM_X = 5,
    CU_DEVICE_MAX_GRID_DIM_Y = 6,
    CU_DEVICE_MAX_GRID_DIM_Z = 7,
    CU_DEVICE_SHARED_BYTES_PER_BLOCK = 8,
    CU_DEVICE_CONSTANT_BYTES = 9,
    CU_DEVICE_WARP_SIZE = 10,
    CU_DEVICE_REGISTERS_PER_BLOCK = 12,
    CU_DEVICE_CLOCK_KHZ = 13,
    CU_DEVICE_SM_COUNT = 16,
    CU_DEVICE_INTEGRATED = 18,
    CU_DEVICE_CAN_MAP_HOST_MEMORY = 19,
    CU_DEVICE_CONCURRENT_KERNELS = 31,
    CU_DEVICE_ECC_ENABLED = 32,
    CU_DEVICE_PCI_BUS_ID = 33,
    CU_DEVICE_PCI_DEVICE_ID = 34,
    CU_DEVICE_MEMORY_CLOCK_KHZ = 36,
    CU_DEVICE_MEMORY_BUS_BITS = 37,
    CU_DEVICE_L2_BYTES = 38,
    CU_DEVICE_THREADS_PER_SM = 39,
    CU_DEVICE_ASYNC_ENGINES = 40,
    CU_DEVICE_UNIFIED_ADDRESSING = 41,
    CU_DEVICE_PCI_DOMAIN_ID = 50,
    CU_DEVICE_CC_MAJOR = 75,
    CU_DEVICE_CC_MINOR = 76,
    CU_DEVICE_STREAM_PRIORITIES = 78,
    CU_DEVICE_SHARED_BYTES_PER_SM = 81,
    CU_DEVICE_REGISTERS_PER_SM = 82,
    CU_DEVICE_COOPERATIVE_LAUNCH = 95,
    CU_DEVICE_SHARED_BYTES_PER_BLOCK_OPTIN = 97,
    CU_DEVICE_VIRTUAL_MEMORY = 102,
    CU_DEVICE_BLOCKS_PER_SM = 106,
    CU_DEVICE_RESERVED_SHARED_BYTES_PER_BLOCK = 111,
    CU_DEVICE_CLUSTER_LAUNCH = 120,
};

/* CUfunction_attribute */
enum cu_function_attribute {
    CU_FUNCTION_MAX_THREADS_PER_BLOCK = 0,
    CU_FUNCTION_SHARED_BYTES = 1, /* static */
    CU_FUNCTION_CONSTANT_BYTES = 2,
    CU_FUNCTION_LOCAL_BYTES = 3, /* per thread */
    CU_FUNCTION_REGISTERS = 4,
    CU_FUNCTION_PTX_VERSION = 5,
    CU_FUNCTION_BINARY_VERSION = 6,
    CU_FUNCTION_MAX_DYNAMIC_SHARED_BYTES = 8, /* may be set */
    CU_FUNCTION_SHARED_CARVEOUT = 9,          /* may be set: percent, -1 the default */
    CU_FUNCTION_NON_PORTABLE_CLUSTER = 14,    /* may be set */
};

/* CUjit_option */
enum cu_jit_option {
    CU_JIT_INFO_LOG_BUFFER = 3,
    CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES = 4,
    CU_JIT_ERROR_LOG_BUFFER = 5,
    CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
    CU_JIT_GENERATE_LINE_INFO = 13,
};

enum cu_flag {
    CU_CONTEXT_SCHED_SPIN = 0x01,
    CU_CONTEXT_SCHED_BLOCKING_SYNC = 0x04,
    CU_STREAM_NON_BLOCKING = 0x01, /* does not wait for the legacy default stream (handle NULL) */
    CU_EVENT_DEFAULT = 0x00,
    CU_EVENT_BLOCKING_SYNC = 0x01,
    CU_EVENT_DISABLE_TIMING = 0x02,
    CU_HOST_ALLOC_PORTABLE = 0x01,
    CU_HOST_ALLOC_DEVICE_MAP = 0x02,
    CU_HOST_ALLOC_WRITE_COMBINED = 0x04,
    CU_HOST_REGISTER_PORTABLE = 0x01,
    CU_HOST_REGISTER_DEVICE_MAP = 0x02,
    CU_HOST_REGISTER_READ_ONLY = 0x08,
    CU_GRANULARITY_MINIMUM = 0x00,
    CU_GRANULARITY_RECOMMENDED = 0x01,
    CU_GRAPH_INSTANTIATE_UPLOAD = 0x02,
};

struct cu_uuid {
    unsigned char bytes[16];
};

/* CUlaunchAttribute: id, 4 bytes of nothing, then 64 bytes of which each id reads its own. */
enum cu_launch_attribute_id {
    CU_LAUNCH_COOPERATIVE = 2,
    CU_LAUNCH_CLUSTER_DIMENSION = 4,
    CU_LAUNCH_PROGRAMMATIC_SERIALIZATION = 6,
    CU_LAUNCH_PRIORITY = 8,
};
union cu_launch_value {
    char bytes[64];
    int cooperative;
    struct {
        unsigned x, y, z;
    } cluster;
    int programmatic_serialization;
    int priority;
    void *align;
};
struct cu_launch_attribute {
    int id; /* enum cu_launch_attribute_id */
    char pad[4];
    union cu_launch_value value;
};
/* CUlaunchConfig */
struct cu_launch_config {
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_bytes;
    struct cu_stream *stream;
    struct cu_launch_attribute *attributes;
    unsigned n_attributes;
};

/* CUmemLocation, CUmemAllocationProp, CUmemAccessDesc */
enum { CU_LOCATION_DEVICE = 1, CU_ALLOCATION_PINNED = 1, CU_ACCESS_READ_WRITE = 3 };
struct cu_location {
    int type; /* CU_LOCATION_DEVICE */
    int id;   /* ordinal */
};
struct cu_allocation {
    int type; /* CU_ALLOCATION_PINNED */
    int handle_types;
    struct cu_location location;
    void *win32;
    struct {
        unsigned char compression, gpu_direct_rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};
struct cu_access {
    struct cu_location location;
    int flags; /* CU_ACCESS_READ_WRITE */
};

/* CUgraphNodeParams and what it holds: the _v2 forms, whose union CUDA 12.2 froze at 232 bytes. */
enum cu_node_type {
    CU_NODE_KERNEL = 0,
    CU_NODE_MEMCPY = 1,
    CU_NODE_MEMSET = 2,
    CU_NODE_HOST = 3,
    CU_NODE_EMPTY = 5,
};
struct cu_kernel_params {
    struct cu_function *function;
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_bytes;
    void **params; /* one pointer per parameter; the values are copied by the call */
    void **extra;
    struct cu_kernel *kernel;   /* NULL: function says which */
    struct cu_context *context; /* NULL: the current one */
};
enum cu_memory_type { CU_MEMORY_HOST = 1, CU_MEMORY_DEVICE = 2, CU_MEMORY_UNIFIED = 4 };
/* CUDA_MEMCPY3D; a flat copy has height and depth 1 and width in bytes. */
struct cu_copy_3d {
    size_t src_x_bytes, src_y, src_z, src_lod;
    int src_type; /* enum cu_memory_type */
    const void *src_host;
    uint64_t src_device;
    void *src_array, *reserved0;
    size_t src_pitch_bytes, src_height;
    size_t dst_x_bytes, dst_y, dst_z, dst_lod;
    int dst_type;
    void *dst_host;
    uint64_t dst_device;
    void *dst_array, *reserved1;
    size_t dst_pitch_bytes, dst_height;
    size_t width_bytes, height, depth;
};
struct cu_memcpy_params {
    int flags, reserved;
    struct cu_context *context;
    struct cu_copy_3d copy;
};
struct cu_memset_params {
    uint64_t dst;
    size_t pitch_bytes; /* of no meaning when height is 1 */
    unsigned value;
    unsigned element_bytes; /* 1, 2 or 4 */
    size_t width, height;   /* elements, rows */
    struct cu_context *context;
};
/* CUhostFn: must not call the driver. Runs on a thread of the driver's. Is not called once the
 * context is lost: whoever waits for one also asks (stream_query) now and then. */
typedef void cu_host_function(void *arg);
struct cu_host_params {
    cu_host_function *function;
    void *arg;
};
struct cu_node_params {
    int type; /* enum cu_node_type */
    int reserved0[3];
    union {
        long long reserved1[29];
        struct cu_kernel_params kernel;
        struct cu_memcpy_params memcpy;
        struct cu_memset_params memset;
        struct cu_host_params host;
    };
    long long reserved2;
};
/* CUgraphEdgeData; all zero is a full dependency. */
enum { CU_EDGE_PORT_PROGRAMMATIC = 1, CU_EDGE_TYPE_PROGRAMMATIC = 1 };
struct cu_edge {
    unsigned char from_port, to_port, type, reserved[5];
};

/* X(field, symbol, version asked for (1000 major + 10 minor), arguments) */
#define CUDA_ENTRY_LIST(X)                                                                         \
    X(get_error_name, "cuGetErrorName", 6000, (enum cu_result, const char **name))                 \
    X(get_error_string, "cuGetErrorString", 6000, (enum cu_result, const char **text))             \
    X(init, "cuInit", 2000, (unsigned flags))                                                      \
    X(driver_get_version, "cuDriverGetVersion", 2020, (int *version))                              \
    X(device_get_count, "cuDeviceGetCount", 2000, (int *count))                                    \
    X(device_get, "cuDeviceGet", 2000, (int *device, int ordinal))                                 \
    X(device_get_name, "cuDeviceGetName", 2000, (char *name, int bytes, int device))               \
    X(device_get_uuid, "cuDeviceGetUuid", 11040, (struct cu_uuid * uuid, int device))              \
    X(device_total_mem, "cuDeviceTotalMem", 3020, (size_t * bytes, int device))                    \
    X(device_get_attribute, "cuDeviceGetAttribute", 2000,                                          \
      (int *value, enum cu_device_attribute, int device))                                          \
    X(device_primary_ctx_retain, "cuDevicePrimaryCtxRetain", 7000,                                 \
      (struct cu_context * *out, int device))                                                      \
    X(device_primary_ctx_release, "cuDevicePrimaryCtxRelease", 11000, (int device))                \
    X(device_primary_ctx_set_flags, "cuDevicePrimaryCtxSetFlags", 11000,                           \
      (int device, unsigned flags))                                                                \
    X(ctx_set_current, "cuCtxSetCurrent", 4000, (struct cu_context *))                             \
    X(ctx_get_current, "cuCtxGetCurrent", 4000, (struct cu_context * *out))                        \
    X(ctx_synchronize, "cuCtxSynchronize", 2000, (void))                                           \
    X(ctx_get_stream_priority_range, "cuCtxGetStreamPriorityRange", 5050,                          \
      (int *least, int *greatest))                                                                 \
    X(module_load_data_ex, "cuModuleLoadDataEx", 2010,                                             \
      (struct cu_module * *out, const void *image, unsigned n, enum cu_jit_option *options,        \
       void **values))                                                                             \
    X(module_unload, "cuModuleUnload", 2000, (struct cu_module *))                                 \
    X(module_get_function, "cuModuleGetFunction", 2000,                                            \
      (struct cu_function * *out, struct cu_module *, const char *name))                           \
    X(module_get_global, "cuModuleGetGlobal", 3020,                                                \
      (uint64_t * address, size_t * bytes, struct cu_module *, const char *name))                  \
    X(func_get_attribute, "cuFuncGetAttribute", 2020,                                              \
      (int *value, enum cu_function_attribute, struct cu_function *))                              \
    X(func_set_attribute, "cuFuncSetAttribute", 9000,                                              \
      (struct cu_function *, enum cu_function_attribute, int value))                               \
    X(occupancy_max_active_blocks_per_multiprocessor,                                              \
      "cuOccupancyMaxActiveBlocksPerMultiprocessor", 6050,                                         \
      (int *blocks, struct cu_function *, int block_threads, size_t dynamic_shared_bytes))         \
    X(launch_kernel_ex, "cuLaunchKernelEx", 11060,                                                 \
      (const struct cu_launch_config *, struct cu_function *, void **params, void **extra))        \
    X(launch_host_func, "cuLaunchHostFunc", 10000,                                                 \
      (struct cu_stream *, cu_host_function *, void *arg))                                         \
    X(stream_create_with_priority, "cuStreamCreateWithPriority", 5050,                             \
      (struct cu_stream * *out, unsigned flags, int priority))                                     \
    X(stream_destroy, "cuStreamDestroy", 4000, (struct cu_stream *))                               \
    X(stream_query, "cuStreamQuery", 2000, (struct cu_stream *))                                   \
    X(stream_synchronize, "cuStreamSynchronize", 2000, (struct cu_stream *))                       \
    X(stream_wait_event, "cuStreamWaitEvent", 3020,                                                \
      (struct cu_stream *, struct cu_event *, unsigned flags))                                     \
    X(event_create, "cuEventCreate", 2000, (struct cu_event * *out, unsigned flags))               \
    X(event_destroy, "cuEventDestroy", 4000, (struct cu_event *))                                  \
    X(event_record, "cuEventRecord", 2000, (struct cu_event *, struct cu_stream *))                \
    X(event_query, "cuEventQuery", 2000, (struct cu_event *))                                      \
    X(event_synchronize, "cuEventSynchronize", 2000, (struct cu_event *))                          \
    X(event_elapsed_time, "cuEventElapsedTime", 2000,                                              \
      (float *milliseconds, struct cu_event *start, struct cu_event *end))                         \
    X(memcpy_htod_async, "cuMemcpyHtoDAsync", 3020,                                                \
      (uint64_t dst, const void *src, size_t bytes, struct cu_stream *))                           \
    X(memcpy_dtoh_async, "cuMemcpyDtoHAsync", 3020,                                                \
      (void *dst, uint64_t src, size_t bytes, struct cu_stream *))                                 \
    X(memcpy_dtod_async, "cuMemcpyDtoDAsync", 3020,                                                \
      (uint64_t dst, uint64_t src, size_t bytes, struct cu_stream *))                              \
    X(memset_d8_async, "cuMemsetD8Async", 3020,                                                    \
      (uint64_t dst, unsigned char value, size_t n, struct cu_stream *))                           \
    X(memset_d32_async, "cuMemsetD32Async", 3020,                                                  \
      (uint64_t dst, unsigned value, size_t n, struct cu_stream *))                                \
    X(mem_alloc, "cuMemAlloc", 3020, (uint64_t * address, size_t bytes))                           \
    X(mem_free, "cuMemFree", 3020, (uint64_t address))                                             \
    X(mem_get_info, "cuMemGetInfo", 3020, (size_t * free_bytes, size_t * total_bytes))             \
    X(mem_host_alloc, "cuMemHostAlloc", 2020, (void **out, size_t bytes, unsigned flags))          \
    X(mem_free_host, "cuMemFreeHost", 2000, (void *))                                              \
    X(mem_host_register, "cuMemHostRegister", 6050, (void *, size_t bytes, unsigned flags))        \
    X(mem_host_unregister, "cuMemHostUnregister", 4000, (void *))                                  \
    X(mem_host_get_device_pointer, "cuMemHostGetDevicePointer", 3020,                              \
      (uint64_t * address, void *host, unsigned flags))                                            \
    X(mem_get_allocation_granularity, "cuMemGetAllocationGranularity", 10020,                      \
      (size_t * bytes, const struct cu_allocation *, enum cu_flag which))                          \
    X(mem_address_reserve, "cuMemAddressReserve", 10020,                                           \
      (uint64_t * address, size_t bytes, size_t alignment, uint64_t wish,                          \
       unsigned long long flags))                                                                  \
    X(mem_address_free, "cuMemAddressFree", 10020, (uint64_t address, size_t bytes))               \
    X(mem_create, "cuMemCreate", 10020,                                                            \
      (uint64_t * handle, size_t bytes, const struct cu_allocation *, unsigned long long flags))   \
    X(mem_release, "cuMemRelease", 10020, (uint64_t handle))                                       \
    X(mem_map, "cuMemMap", 10020,                                                                  \
      (uint64_t address, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags))  \
    X(mem_unmap, "cuMemUnmap", 10020, (uint64_t address, size_t bytes))                            \
    X(mem_set_access, "cuMemSetAccess", 10020,                                                     \
      (uint64_t address, size_t bytes, const struct cu_access *, size_t n))                        \
    X(graph_create, "cuGraphCreate", 10000, (struct cu_graph * *out, unsigned flags))              \
    X(graph_destroy, "cuGraphDestroy", 10000, (struct cu_graph *))                                 \
    X(graph_add_node, "cuGraphAddNode", 12030,                                                     \
      (struct cu_graph_node * *out, struct cu_graph *, struct cu_graph_node *const *after,         \
       const struct cu_edge *edges, size_t n_after, struct cu_node_params *))                      \
    X(graph_kernel_node_set_attribute, "cuGraphKernelNodeSetAttribute", 11000,                     \
      (struct cu_graph_node *, enum cu_launch_attribute_id, const union cu_launch_value *))        \
    X(graph_instantiate, "cuGraphInstantiateWithFlags", 11040,                                     \
      (struct cu_graph_exec * *out, struct cu_graph *, unsigned long long flags))                  \
    X(graph_upload, "cuGraphUpload", 11010, (struct cu_graph_exec *, struct cu_stream *))          \
    X(graph_launch, "cuGraphLaunch", 10000, (struct cu_graph_exec *, struct cu_stream *))          \
    X(graph_exec_destroy, "cuGraphExecDestroy", 10000, (struct cu_graph_exec *))                   \
    X(graph_exec_kernel_node_set_params, "cuGraphExecKernelNodeSetParams", 12000,                  \
      (struct cu_graph_exec *, struct cu_graph_node *, const struct cu_kernel_params *))

struct cuda {
    void *library;
    int driver_version; /* 1000 major + 10 minor: the newest CUDA that this driver knows */
#define X(field, symbol, version, args) enum cu_result(*field) args;
    CUDA_ENTRY_LIST(X)
#undef X
};

/* path NULL: "libcuda.so.1", found as dlopen finds it. Loads, resolves and initialises.
 * Errors: NOT_FOUND (no library, or no device), UNSUPPORTED (an entry is missing: the error names
 * it and the driver's version), DEVICE. */
enum status cuda_open(struct cuda *cu, const char *path, struct error *e);
void cuda_close(struct cuda *cu); /* of a zeroed table: nothing */

#define CUDA_CALL(cu, e, entry, ...) cuda_status((cu), (cu)->entry(__VA_ARGS__), #entry, (e))
/* STATUS_OK for CUDA_SUCCESS. `call` names the entry in the message. */
enum status cuda_status(const struct cuda *cu, enum cu_result r, const char *call, struct error *e);
/* Whether the context is unusable after this result. */
bool cuda_is_lost(enum cu_result r);
const char *cuda_result_name(const struct cuda *cu, enum cu_result r);

struct cuda_device {
    int ordinal;
    int handle;
    char name[128];
    struct cu_uuid uuid;
    uint32_t cc; /* 10 major + minor: 75, 80, ..., 120 */
    uint32_t n_sms;
    uint32_t threads_per_sm, blocks_per_sm, registers_per_sm, registers_per_block;
    uint32_t shared_bytes_per_sm, shared_bytes_per_block, shared_bytes_per_block_optin;
    uint32_t reserved_shared_bytes_per_block; /* the system's own, part of each block's take */
    uint32_t l2_bytes;
    uint32_t clock_khz, memory_clock_khz, memory_bus_bits;
    uint64_t total_bytes;
    bool virtual_memory, cooperative_launch, cluster_launch;
};
/* Errors: INVALID (no such ordinal), DEVICE. */
enum status cuda_device_read(const struct cuda *cu, int ordinal, struct cuda_device *out,
                             struct error *e);

/* The device's primary context, retained and made current on the calling thread. */
enum status cuda_context_open(const struct cuda *cu, const struct cuda_device *d,
                              struct cu_context **out, struct error *e);
void cuda_context_close(const struct cuda *cu, const struct cuda_device *d);

/* `image` is a cubin, or PTX that ends in a NUL. On failure log (which may be NULL) holds what the
 * driver's compiler said, cut to log_bytes, and e its first line; on success log is "". Errors:
 * UNSUPPORTED when the image is not for this chip, CORRUPT when it is not an image. */
enum status cuda_module_load(const struct cuda *cu, const void *image, char *log, size_t log_bytes,
                             struct cu_module **out, struct error *e);

struct cuda_launch {
    uint32_t grid[3], block[3];
    uint32_t shared_bytes; /* dynamic */
    uint32_t cluster[3];   /* cluster[0] == 0: no clusters */
    /* Programmatic dependent launch: may start before the work ahead of it in the stream has ended,
     * as far as its griddepcontrol.wait. In a graph, struct cuda_after says so instead. */
    bool dependent;
    bool cooperative;
};
/* params: one pointer per kernel parameter, each to a value of the parameter's size; read before
 * the call returns. */
enum status cuda_launch(const struct cuda *cu, struct cu_function *f, const struct cuda_launch *l,
                        void **params, struct cu_stream *stream, struct error *e);

/* Nodes of a graph that is built by hand. A node runs after the n_after nodes named; programmatic:
 * both are kernels, and it may start when all blocks of the other have triggered
 * (griddepcontrol.launch_dependents) or ended. n_after <= CUDA_MAX_AFTER. */
enum { CUDA_MAX_AFTER = 16 };
struct cuda_after {
    struct cu_graph_node *node;
    bool programmatic;
};
enum status cuda_graph_add_kernel(const struct cuda *cu, struct cu_graph *g, struct cu_function *f,
                                  const struct cuda_launch *l, void **params,
                                  const struct cuda_after *after, uint32_t n_after,
                                  struct cu_graph_node **out, struct error *e);
/* bytes (at most INT32_MAX) from src to dst; host memory should be pinned. Exactly one address of
 * each end is set. */
struct cuda_copy {
    void *dst_host;
    uint64_t dst_device;
    const void *src_host;
    uint64_t src_device;
    size_t bytes;
};
enum status cuda_graph_add_copy(const struct cuda *cu, struct cu_graph *g,
                                struct cu_context *context, const struct cuda_copy *copy,
                                const struct cuda_after *after, uint32_t n_after,
                                struct cu_graph_node **out, struct error *e);
/* Fill bytes (a multiple of 4, at most 4 x UINT32_MAX) at dst with a 32-bit value. */
enum status cuda_graph_add_fill(const struct cuda *cu, struct cu_graph *g,
                                struct cu_context *context, uint64_t dst, uint32_t value,
                                size_t bytes, const struct cuda_after *after, uint32_t n_after,
                                struct cu_graph_node **out, struct error *e);
enum status cuda_graph_add_host(const struct cuda *cu, struct cu_graph *g, cu_host_function *f,
                                void *arg, const struct cuda_after *after, uint32_t n_after,
                                struct cu_graph_node **out, struct error *e);
/* New parameters for a kernel node of an instantiated graph; grid and block may change too. Takes
 * effect at the next launch. */
enum status cuda_graph_set_kernel(const struct cuda *cu, struct cu_graph_exec *x,
                                  struct cu_graph_node *node, struct cu_function *f,
                                  const struct cuda_launch *l, void **params, struct error *e);

#endif
