/* cpu_features.h: what this processor and this kernel let us use, asked at run time.
 *
 * A feature is true only when the processor has it and the operating system saves its registers
 * (XGETBV). AMX also needs the kernel's permission for the process, which cpu_features_detect asks
 * for (arch_prctl ARCH_REQ_XCOMP_PERM, Linux 5.16; threads inherit it); where it is refused the amx
 * fields are false. On other architectures every field of this one is false.
 */
#ifndef LAC_CORE_CPU_FEATURES_H
#define LAC_CORE_CPU_FEATURES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(code, name): the kernels' instruction sets, in rising order of preference on one architecture.
 */
#define CPU_ISA_LIST(X)                                                                            \
    X(CPU_ISA_SCALAR, "scalar")                                                                    \
    X(CPU_ISA_AVX2, "avx2")       /* AVX2, FMA, F16C */                                            \
    X(CPU_ISA_AVXVNNI, "avxvnni") /* and AVX-VNNI */                                               \
    X(CPU_ISA_AVX512, "avx512")   /* avx2 and AVX-512 F, BW, VL, DQ, VNNI */                       \
    X(CPU_ISA_AMX, "amx")         /* avx512 and AMX TILE, INT8 */                                  \
    X(CPU_ISA_NEON, "neon")       /* ARMv8.2 dot product and half floats */

enum cpu_isa {
#define X(code, name) code,
    CPU_ISA_LIST(X)
#undef X
        CPU_ISA_COUNT
};

struct cpu_features {
    bool avx2, fma, f16c, avx_vnni;
    bool avx512f, avx512bw, avx512vl, avx512dq, avx512_vnni, avx512_bf16;
    bool amx_tile, amx_int8, amx_bf16;
    bool neon, neon_fp16, neon_dotprod, neon_i8mm;
    char brand[64];    /* "unknown" if the processor does not say */
    uint64_t l2_bytes; /* of one core; 0 if unknown */
    uint64_t l3_bytes; /* as shared by the cores beside this one; 0 if unknown or none */
};

void cpu_features_detect(struct cpu_features *f);

const char *cpu_isa_name(enum cpu_isa isa);
/* By name; false (and *out CPU_ISA_SCALAR) for anything else, "auto" included. */
bool cpu_isa_parse(const char *name, enum cpu_isa *out);
/* Whether kernels built for `isa` can run here. Scalar always can. */
bool cpu_isa_supported(const struct cpu_features *f, enum cpu_isa isa);
/* The most preferred one that can. */
enum cpu_isa cpu_isa_best(const struct cpu_features *f);

#endif
