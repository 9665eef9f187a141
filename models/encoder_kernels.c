#include "models/encoder_kernels.h"

const struct encoder_kernels *encoder_kernels_for(enum cpu_isa isa) {
    switch (isa) {
#if defined(__x86_64__)
    case CPU_ISA_AVX2:
    case CPU_ISA_AVXVNNI:
        return &encoder_kernels_avx2;
    case CPU_ISA_AVX512:
    case CPU_ISA_AMX:
        return &encoder_kernels_avx512;
#elif defined(__aarch64__)
    case CPU_ISA_NEON:
        return &encoder_kernels_neon;
#endif
    default:
        return &encoder_kernels_scalar;
    }
}
