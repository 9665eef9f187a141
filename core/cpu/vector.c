#include "core/cpu/vector.h"

extern const struct vector_kernels vector_kernels_scalar, vector_kernels_avx2,
    vector_kernels_avx512, vector_kernels_neon;

const struct vector_kernels *vector_kernels(enum cpu_isa isa) {
    switch (isa) {
    case CPU_ISA_SCALAR:
        return &vector_kernels_scalar;
#if defined(__x86_64__)
    case CPU_ISA_AVX2:
    case CPU_ISA_AVXVNNI:
        return &vector_kernels_avx2;
    case CPU_ISA_AVX512:
    case CPU_ISA_AMX:
        return &vector_kernels_avx512;
#elif defined(__aarch64__)
    case CPU_ISA_NEON:
        return &vector_kernels_neon;
#endif
    default:
        return NULL;
    }
}

struct kv_layout kv_layout(uint32_t n_kv_heads, uint32_t head_dim, enum kv_format kv) {
    const size_t element_bytes = kv == KV_F32 ? 4 : kv == KV_F16 ? 2 : 1;
    const size_t head_bytes = (size_t)head_dim * KV_PAGE_TOKENS * element_bytes;
    const size_t scale_bytes = kv == KV_Q8 ? KV_PAGE_TOKENS * sizeof(uint16_t) : 0;
    struct kv_layout l = {
        .k_stride = head_bytes, .v_stride = head_bytes, .scale_stride = scale_bytes};
    size_t at = 0;
    l.k0 = at, at += n_kv_heads * head_bytes;
    l.k_scale0 = at, at += n_kv_heads * scale_bytes;
    l.v0 = at, at += n_kv_heads * head_bytes;
    l.v_scale0 = at, at += n_kv_heads * scale_bytes;
    l.layer_bytes = at;
    return l;
}

size_t kv_page_bytes(const struct kv_group *group, enum kv_format format) {
    return group->n_layers * kv_layout(group->n_kv_heads, group->head_dim, format).layer_bytes;
}
