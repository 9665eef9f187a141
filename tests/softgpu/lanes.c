#include "tests/softgpu/lanes.h"

#include "tests/softgpu/run.h"

op_fn *const *lane_ops(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c"))
        return lanes_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c"))
        return lanes_avx2;
#endif
    return lanes_scalar;
}

static uint32_t combine(enum op_combine how, uint32_t a, uint32_t c) {
    switch (how) {
    case COMBINE_AND:
        return a & c;
    case COMBINE_OR:
        return a | c;
    case COMBINE_XOR:
        return a ^ c;
    default:
        return a;
    }
}

const struct op *lane_compared(struct warp *w, const struct op *op, uint32_t holds) {
    uint32_t c = 0;
    if (op->combine != COMBINE_NONE) c = pred_in(w, op->c) ^ (op->flags & OP_NEGATE_C ? ~0u : 0);
    const uint32_t r = combine((enum op_combine)op->combine, holds, c);
    if (op->n != 1) {
        if (op->e != NO_PLACE)
            pred_out(w, op->e, w->exec, combine((enum op_combine)op->combine, ~holds, c));
        if (op->d != NO_PLACE) pred_out(w, op->d, w->exec, r);
        return op + 1;
    }
    /* set: all ones, or 1.0 in the result's type */
    uint32_t one = ~0u;
    if (op->type == PTX_F32) one = 0x3f800000u;
    if (op->type == PTX_F16) one = 0x3c00;
    if (op->type == PTX_BF16) one = 0x3f80;
    if (op->type == PTX_U16 || op->type == PTX_S16) one = 0xffff;
    u32x *d = out_place(w, op->d);
    for (uint32_t l = 0; l < LANES; l++)
        if (w->exec >> l & 1) d[l] = r >> l & 1 ? one : 0;
    return op + 1;
}
