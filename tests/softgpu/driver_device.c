#include <string.h>

#include "tests/softgpu/driver.h"

/* Published figures: NVIDIA's data sheets of T4, A100 (40 GB, SXM), L4, L40S, H100 (SXM), H200 and
 * B200 (HGX), and the architecture papers of Turing, Ada and Blackwell for the GeForce cards and
 * the L2 caches. Clocks are the boost clocks; bandwidth is the sheet's, from which the memory clock
 * follows (two transfers a cycle over the bus). B200 counts the memory that is usable (180 GB). */
#define GB  UINT64_C(1000000000)
#define MIB (UINT32_C(1) << 20)
static const struct device_spec specs[] = {
    {"T4", "Tesla T4", 75, 40, 4 * MIB, 1590000, 256, 320 * GB, 16 * GB},
    {"A100", "NVIDIA A100-SXM4-40GB", 80, 108, 40 * MIB, 1410000, 5120, 1555 * GB, 40 * GB},
    {"L4", "NVIDIA L4", 89, 58, 48 * MIB, 2040000, 192, 300 * GB, 24 * GB},
    {"L40S", "NVIDIA L40S", 89, 142, 96 * MIB, 2520000, 384, 864 * GB, 48 * GB},
    {"RTX4090", "NVIDIA GeForce RTX 4090", 89, 128, 72 * MIB, 2520000, 384, 1008 * GB, 24 * GB},
    {"RTX5090", "NVIDIA GeForce RTX 5090", 120, 170, 96 * MIB, 2407000, 512, 1792 * GB, 32 * GB},
    {"H100", "NVIDIA H100 80GB HBM3", 90, 132, 50 * MIB, 1980000, 5120, 3350 * GB, 80 * GB},
    {"H200", "NVIDIA H200", 90, 132, 50 * MIB, 1980000, 6144, 4800 * GB, 141 * GB},
    {"B200", "NVIDIA B200", 100, 148, 126 * MIB, 1965000, 8192, 8000 * GB, 180 * GB},
};

/* "Technical Specifications per Compute Capability", CUDA C++ Programming Guide 13.0. Sizes in
 * KiB. All have 65,536 registers per SM and per block and 1,024 threads per block. */
static const struct {
    uint32_t cc, threads, blocks, shared_sm, shared_optin, reserved;
} capabilities[] = {
    {75, 1024, 16, 64, 64, 0},   {80, 2048, 32, 164, 163, 1},  {89, 1536, 24, 100, 99, 1},
    {90, 2048, 32, 228, 227, 1}, {100, 2048, 32, 228, 227, 1}, {120, 1536, 24, 100, 99, 1},
};

const struct device_spec *device_spec_find(const char *key) {
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        if (strcmp(specs[i].key, key) == 0) return &specs[i];
    }
    return NULL;
}

struct exec_device device_exec(const struct device_spec *d, uint32_t n_sms) {
    struct exec_device x = {.compute_capability = d->cc,
                            .sm_count = n_sms != 0 && n_sms <= d->n_sms ? n_sms : d->n_sms,
                            .max_threads_per_block = 1024,
                            .registers_per_sm = 65536,
                            .shared_per_block_bytes = 48 << 10};
    for (size_t i = 0; i < sizeof capabilities / sizeof capabilities[0]; i++) {
        if (capabilities[i].cc != d->cc) continue;
        x.max_threads_per_sm = capabilities[i].threads;
        x.max_blocks_per_sm = capabilities[i].blocks;
        x.shared_per_sm_bytes = capabilities[i].shared_sm << 10;
        x.shared_per_block_optin_bytes = capabilities[i].shared_optin << 10;
        x.shared_reserved_bytes = capabilities[i].reserved << 10;
    }
    return x;
}

enum cu_result device_attribute(const struct device_spec *d, const struct exec_device *x,
                                int attribute, int *value) {
    uint64_t v = 0;
    switch (attribute) {
    case CU_DEVICE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_MAX_BLOCK_DIM_Y:
        v = x->max_threads_per_block;
        break;
    case CU_DEVICE_MAX_BLOCK_DIM_Z:
        v = 64;
        break;
    case CU_DEVICE_MAX_GRID_DIM_X:
        v = INT32_MAX;
        break;
    case CU_DEVICE_MAX_GRID_DIM_Y:
    case CU_DEVICE_MAX_GRID_DIM_Z:
        v = 65535;
        break;
    case CU_DEVICE_SHARED_BYTES_PER_BLOCK:
        v = x->shared_per_block_bytes;
        break;
    case CU_DEVICE_CONSTANT_BYTES:
        v = 65536;
        break;
    case CU_DEVICE_WARP_SIZE:
        v = 32;
        break;
    case CU_DEVICE_REGISTERS_PER_BLOCK:
    case CU_DEVICE_REGISTERS_PER_SM:
        v = x->registers_per_sm;
        break;
    case CU_DEVICE_CLOCK_KHZ:
        v = d->clock_khz;
        break;
    case CU_DEVICE_SM_COUNT:
        v = x->sm_count;
        break;
    case CU_DEVICE_INTEGRATED:
    case CU_DEVICE_ECC_ENABLED:
    case CU_DEVICE_PCI_DOMAIN_ID:
    case CU_DEVICE_PCI_DEVICE_ID:
        v = 0;
        break;
    case CU_DEVICE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_CONCURRENT_KERNELS:
    case CU_DEVICE_PCI_BUS_ID:
    case CU_DEVICE_UNIFIED_ADDRESSING:
    case CU_DEVICE_STREAM_PRIORITIES:
    case CU_DEVICE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_VIRTUAL_MEMORY:
        v = 1;
        break;
    case CU_DEVICE_ASYNC_ENGINES:
        v = 2;
        break;
    case CU_DEVICE_MEMORY_CLOCK_KHZ:
        v = d->bandwidth_bytes / (2 * (d->bus_bits / 8)) / 1000;
        break;
    case CU_DEVICE_MEMORY_BUS_BITS:
        v = d->bus_bits;
        break;
    case CU_DEVICE_L2_BYTES:
        v = d->l2_bytes;
        break;
    case CU_DEVICE_THREADS_PER_SM:
        v = x->max_threads_per_sm;
        break;
    case CU_DEVICE_CC_MAJOR:
        v = x->compute_capability / 10;
        break;
    case CU_DEVICE_CC_MINOR:
        v = x->compute_capability % 10;
        break;
    case CU_DEVICE_SHARED_BYTES_PER_SM:
        v = x->shared_per_sm_bytes;
        break;
    case CU_DEVICE_SHARED_BYTES_PER_BLOCK_OPTIN:
        v = x->shared_per_block_optin_bytes;
        break;
    case CU_DEVICE_BLOCKS_PER_SM:
        v = x->max_blocks_per_sm;
        break;
    case CU_DEVICE_RESERVED_SHARED_BYTES_PER_BLOCK:
        v = x->shared_reserved_bytes;
        break;
    case CU_DEVICE_CLUSTER_LAUNCH:
        v = x->compute_capability >= 90;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    *value = (int)v;
    return CUDA_SUCCESS;
}
