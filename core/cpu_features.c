#include "core/cpu_features.h"

#include <stdio.h>
#include <string.h>

#include "core/check.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

static const char *const isa_names[CPU_ISA_COUNT] = {
#define X(code, name) [code] = name,
    CPU_ISA_LIST(X)
#undef X
};

const char *cpu_isa_name(enum cpu_isa isa) {
    CHECK((unsigned)isa < CPU_ISA_COUNT);
    return isa_names[isa];
}

bool cpu_isa_parse(const char *name, enum cpu_isa *out) {
    for (unsigned i = 0; i < CPU_ISA_COUNT; i++) {
        if (strcmp(name, isa_names[i]) == 0) {
            *out = (enum cpu_isa)i;
            return true;
        }
    }
    *out = CPU_ISA_SCALAR;
    return false;
}

bool cpu_isa_supported(const struct cpu_features *f, enum cpu_isa isa) {
    const bool avx2 = f->avx2 && f->fma && f->f16c;
    const bool avx512 =
        avx2 && f->avx512f && f->avx512bw && f->avx512vl && f->avx512dq && f->avx512_vnni;
    switch (isa) {
    case CPU_ISA_SCALAR:
        return true;
    case CPU_ISA_AVX2:
        return avx2;
    case CPU_ISA_AVXVNNI:
        return avx2 && f->avx_vnni;
    case CPU_ISA_AVX512:
        return avx512;
    case CPU_ISA_AMX:
        return avx512 && f->amx_tile && f->amx_int8;
    case CPU_ISA_NEON:
        return f->neon && f->neon_fp16 && f->neon_dotprod;
    case CPU_ISA_COUNT:
        break;
    }
    return false;
}

enum cpu_isa cpu_isa_best(const struct cpu_features *f) {
    unsigned isa = CPU_ISA_COUNT - 1;
    while (!cpu_isa_supported(f, (enum cpu_isa)isa)) isa--; /* ends at scalar */
    return (enum cpu_isa)isa;
}

#if defined(__x86_64__)

/* Bit numbers: Intel SDM volume 2, CPUID; volume 1, chapters 13 (XCR0) and 18 (AMX). */

struct cpuid {
    uint32_t eax, ebx, ecx, edx;
};

static struct cpuid cpuid(uint32_t leaf, uint32_t subleaf) {
    struct cpuid r = {0};
    if (!__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx)) r = (struct cpuid){0};
    return r;
}

static bool bit(uint32_t word, unsigned n) {
    return (word >> n & 1u) != 0;
}

static uint64_t xcr0(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool request_amx(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static void detect_instructions(struct cpu_features *f) {
    const struct cpuid one = cpuid(1, 0);
    if (!bit(one.ecx, 27)) return; /* OSXSAVE: without it XGETBV itself is an invalid instruction */
    const uint64_t saved = xcr0();
    const uint64_t avx_state = 0x6, avx512_state = 0xe6, amx_state = 0x60000;
    const struct cpuid seven = cpuid(7, 0);
    const struct cpuid seven_one = seven.eax >= 1 ? cpuid(7, 1) : (struct cpuid){0};

    if ((saved & avx_state) == avx_state && bit(one.ecx, 28)) {
        f->fma = bit(one.ecx, 12);
        f->f16c = bit(one.ecx, 29);
        f->avx2 = bit(seven.ebx, 5);
        f->avx_vnni = bit(seven_one.eax, 4);
    }
    if ((saved & avx512_state) == avx512_state && bit(seven.ebx, 16)) {
        f->avx512f = true;
        f->avx512dq = bit(seven.ebx, 17);
        f->avx512bw = bit(seven.ebx, 30);
        f->avx512vl = bit(seven.ebx, 31);
        f->avx512_vnni = bit(seven.ecx, 11);
        f->avx512_bf16 = bit(seven_one.eax, 5);
    }
    if ((saved & amx_state) == amx_state && bit(seven.edx, 24) && request_amx()) {
        f->amx_tile = true;
        f->amx_int8 = bit(seven.edx, 25);
        f->amx_bf16 = bit(seven.edx, 22);
    }
}

/* Leaf 4 (Intel) and 0x8000001d (AMD) list the caches in one format. */
static void detect_caches(struct cpu_features *f) {
    const uint32_t leaf = cpuid(4, 0).eax & 31 ? 4 : 0x8000001d;
    for (uint32_t i = 0; i < 16; i++) {
        const struct cpuid c = cpuid(leaf, i);
        const uint32_t type = c.eax & 31, level = c.eax >> 5 & 7;
        if (type == 0) break;
        if (type == 2) continue; /* instructions only */
        const uint64_t bytes = ((uint64_t)(c.ebx >> 22) + 1) * ((c.ebx >> 12 & 1023) + 1) *
                               ((c.ebx & 4095) + 1) * ((uint64_t)c.ecx + 1);
        if (level == 2) f->l2_bytes = bytes;
        if (level == 3) f->l3_bytes = bytes;
    }
}

static void detect_brand(struct cpu_features *f) {
    char text[49] = {0};
    if (cpuid(0x80000000, 0).eax < 0x80000004) return;
    for (uint32_t i = 0; i < 3; i++) {
        const struct cpuid c = cpuid(0x80000002 + i, 0);
        memcpy(text + 16 * i, &c, 16);
    }
    const char *start = text + strspn(text, " ");
    size_t n = strlen(start);
    while (n > 0 && start[n - 1] == ' ') n--;
    if (n) snprintf(f->brand, sizeof f->brand, "%.*s", (int)n, start);
}

static void detect(struct cpu_features *f) {
    detect_instructions(f);
    detect_caches(f);
    detect_brand(f);
}

#else

static bool read_line(const char *path, char *line, size_t cap) {
    FILE *file = fopen(path, "re");
    if (!file) return false;
    const bool ok = fgets(line, (int)cap, file) != NULL;
    fclose(file);
    return ok;
}

static void detect_caches(struct cpu_features *f) {
    for (unsigned i = 0; i < 8; i++) {
        char path[96], line[32];
        unsigned long long kib;
        unsigned level;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%u/level", i);
        if (!read_line(path, line, sizeof line) || sscanf(line, "%u", &level) != 1) break;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%u/size", i);
        if (!read_line(path, line, sizeof line) || sscanf(line, "%lluK", &kib) != 1) break;
        if (level == 2) f->l2_bytes = kib * 1024;
        if (level == 3) f->l3_bytes = kib * 1024;
    }
}

static void detect(struct cpu_features *f) {
    detect_caches(f);
#if defined(__aarch64__)
    /* Bit numbers: Linux, arch/arm64/include/uapi/asm/hwcap.h. */
    const unsigned long cap = getauxval(AT_HWCAP), cap2 = getauxval(AT_HWCAP2);
    f->neon = (cap >> 1 & 1) != 0;
    f->neon_fp16 = (cap >> 10 & 1) != 0;
    f->neon_dotprod = (cap >> 20 & 1) != 0;
    f->neon_i8mm = (cap2 >> 13 & 1) != 0;
    char line[32];
    unsigned long long midr;
    if (read_line("/sys/devices/system/cpu/cpu0/regs/identification/midr_el1", line, sizeof line) &&
        sscanf(line, "%llx", &midr) == 1) {
        snprintf(f->brand, sizeof f->brand, "ARM implementer 0x%02llx part 0x%03llx",
                 midr >> 24 & 0xff, midr >> 4 & 0xfff);
    }
#endif
}

#endif

void cpu_features_detect(struct cpu_features *f) {
    memset(f, 0, sizeof *f);
    snprintf(f->brand, sizeof f->brand, "unknown");
    detect(f);
}
