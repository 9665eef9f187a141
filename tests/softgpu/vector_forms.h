/* vector_forms.h: PTX forms whose results are recorded on a real GPU and replayed on the software
 * device (tests/jit/record_vectors.c, tests/softgpu/test_vectors.c): those of instruction_table.h,
 * and the others that our kernels have. Loads, stores and branches need no vectors: every recorded
 * kernel goes through them.
 *
 * A scalar form reads registers of a, b and c as instruction_table.h says and leaves its result in
 * r. A warp's form reads a0 ... a15 of each lane and leaves r0 ... r7; a barrier waits for all 32.
 *
 * A file of vectors is text: "# ..." lines say where it is from; "form S <result> <ulps> <text>"
 * and then "a b c r" in hexadecimal, or "form W 0 <ulps> <text>" and then 32 lines, one a lane, of
 * 16 words in and 8 out; "form ... " followed by "refused" where the chip has no such instruction.
 */
#ifndef LAC_TESTS_SOFTGPU_VECTOR_FORMS_H
#define LAC_TESTS_SOFTGPU_VECTOR_FORMS_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "tests/softgpu/instruction_table.h"

/* clang-format off */
#define SCALAR_FORM_LIST(X)                                                                        \
    X(f, 0, "add.rn.f32 rf, af, bf;")                                                              \
    X(f, 0, "mul.rn.f32 rf, af, bf;")                                                              \
    X(f, 1, "rcp.approx.f32 rf, af;")                                                              \
    X(w, 0, "max.s32 rw, aw, bw;")                                                                 \
    X(w, 0, "min.u32 rw, aw, bw;")                                                                 \
    X(d, 0, "max.u64 rd, ad, bd;")                                                                 \
    X(d, 0, "min.u64 rd, ad, bd;")                                                                 \
    X(w, 0, "sub.s32 rw, aw, bw;")                                                                 \
    X(w, 0, "mul.lo.s32 rw, aw, bw;")                                                              \
    X(h, 0, "and.b16 rh, ah, bh;")                                                                 \
    X(h, 0, "shr.u16 rh, ah, sw;")                                                                 \
    X(d, 0, "not.b64 rd, ad;")                                                                     \
    X(d, 0, "cvt.rzi.u64.f32 rd, af;")                                                             \
    X(f, 0, "selp.f32 rf, af, bf, 0;")                                                             \
    X(w, 0, "setp.geu.f32 p, af, bf; selp.u32 rw, 1, 0, p;")                                       \
    X(w, 0, "setp.ltu.f32 p, af, bf; selp.u32 rw, 1, 0, p;")                                       \
    X(w, 0, "setp.gt.u64 p, ad, bd; selp.u32 rw, 1, 0, p;")                                        \
    X(w, 0, "setp.lt.u64 p, ad, bd; selp.u32 rw, 1, 0, p;")
#define WARP_FORM_LIST(X)                                                                          \
    X(0, "shfl.sync.bfly.b32 r0, a0, 16, 31, -1; shfl.sync.bfly.b32 r1, a0, 1, 31, -1; shfl.sync.idx.b32 r2, a0, 7, 31, -1; shfl.sync.up.b32 r3|p, a0, 4, 0, -1; selp.b32 r4, 1, 0, p;") \
    X(0, "and.b32 t0, a0, 1; setp.ne.u32 p, t0, 0; vote.sync.ballot.b32 r0, p, -1;")               \
    X(0, "mov.u32 t1, smem; mov.u32 t0, %tid.x; setp.eq.u32 p, t0, 0; @p st.shared.u32 [t1], 0; @p st.shared.u64 [t1+8], 0; bar.sync 0; and.b32 t2, a0, 255; atom.shared.add.u32 r1, [t1], t2; mov.u32 r1, 0; cvt.u64.u32 x0, a1; atom.shared.add.u64 x1, [t1+8], x0; bar.sync 0; ld.shared.u32 r0, [t1]; ld.shared.v2.u32 {r2, r3}, [t1+8];") \
    X(0, "and.b32 t0, a0, 4; setp.ne.u32 p, t0, 0; bar.red.and.pred q, 0, p; selp.u32 r0, 1, 0, q;") \
    X(0, "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {r0, r1, r2, r3}, {a0, a1, a2, a3}, {a4, a5}, {a6, a7, a8, a9};") \
    X(0, "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {r0, r1}, {a0}, {a1}, {a2, a3};")         \
    X(8, "and.b32 a0, a0, 0xbfffbfff; and.b32 a1, a1, 0xbfffbfff; and.b32 a2, a2, 0xbfffbfff; and.b32 a3, a3, 0xbfffbfff; and.b32 a4, a4, 0xbfffbfff; and.b32 a5, a5, 0xbfffbfff; mov.u32 t0, 0; mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {r0, r1, r2, r3}, {a0, a1, a2, a3}, {a4, a5}, {t0, t0, t0, t0};") \
    X(8, "and.b32 a0, a0, 0xbfffbfff; and.b32 a1, a1, 0xbfffbfff; and.b32 a4, a4, 0xbfffbfff; mov.u32 t0, 0; mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {r0, r1, r2, r3}, {a0, a1}, {a4}, {t0, t0, t0, t0};") \
    X(8, "and.b32 a0, a0, 0x3fff3fff; and.b32 a1, a1, 0x3fff3fff; and.b32 a2, a2, 0x3fff3fff; and.b32 a3, a3, 0x3fff3fff; and.b32 a4, a4, 0x3fff3fff; and.b32 a5, a5, 0x3fff3fff; mov.u32 t0, 0; mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {r0, r1, r2, r3}, {a0, a1, a2, a3}, {a4, a5}, {t0, t0, t0, t0};")
/* clang-format on */

struct vector_form {
    char kind; /* S or W */
    char result;
    uint32_t ulps;
    const char *text;
};
#define TABLE_ROW(result, ulps, text, expression) {'S', #result[0], ulps, text},
#define SCALAR_ROW(result, ulps, text)            {'S', #result[0], ulps, text},
#define WARP_ROW(ulps, text)                      {'W', '0', ulps, text},
static const struct vector_form vector_forms[] = {
    INSTRUCTION_LIST(TABLE_ROW) SCALAR_FORM_LIST(SCALAR_ROW) WARP_FORM_LIST(WARP_ROW)};
enum {
    VECTOR_FORMS = sizeof vector_forms / sizeof *vector_forms,
    VECTOR_SETS = 24,      /* operands of a scalar form */
    VECTOR_LOOSE_ULPS = 8, /* from here on: a relative bound on a sum */
    VECTOR_LANE_IN = 16,
    VECTOR_LANE_OUT = 8,
    VECTOR_TEXT_BYTES = 8192,
};

/* One kernel "k"(in, out): a thread an operand set, or a warp. version and target as PTX has them.
 */
static inline void vector_kernel(const struct vector_form *f, const char *version, uint32_t target,
                                 char text[VECTOR_TEXT_BYTES]) {
    const char *to_rd = f->result == 'w'   ? "cvt.u64.u32 rd, rw;"
                        : f->result == 'h' ? "cvt.u64.u16 rd, rh;"
                        : f->result == 'f' ? "mov.b32 rw, rf; cvt.u64.u32 rd, rw;"
                        : f->result == 'g' ? "mov.b64 rd, rg;"
                                           : "";
    int n = snprintf(text, VECTOR_TEXT_BYTES,
                     ".version %s\n.target sm_%u\n.address_size 64\n"
                     ".visible .entry k(.param .u64 pin, .param .u64 pout)\n{\n"
                     ".reg .pred p, q, out, off; .reg .b16 ah, bh, ch, rh, xh, h<8>; "
                     ".reg .b32 aw, bw, cw, rw, xw, yw, sw, uw, tid, a<16>, r<8>, t<8>; "
                     ".reg .f32 af, bf, cf, rf; .reg .f64 ag, bg, cg, rg; "
                     ".reg .b64 ad, bd, cd, rd, xd, yd, zd, i0, o0, x0, x1;\n"
                     ".shared .align 16 .b8 smem[4096];\n"
                     "ld.param.u64 i0, [pin]; ld.param.u64 o0, [pout]; mov.u32 tid, %%tid.x;\n",
                     version, target);
    char *at = text + n;
    size_t room = VECTOR_TEXT_BYTES - (size_t)n;
    if (f->kind == 'S')
        snprintf(at, room,
                 "mad.wide.u32 i0, tid, 24, i0; mad.wide.u32 o0, tid, 8, o0;\n"
                 "ld.global.u64 ad, [i0]; ld.global.u64 bd, [i0+8]; ld.global.u64 cd, [i0+16];\n"
                 "cvt.u32.u64 aw, ad; cvt.u32.u64 bw, bd; cvt.u32.u64 cw, cd; cvt.u16.u32 ah, aw; "
                 "cvt.u16.u32 bh, bw; cvt.u16.u32 ch, cw;\n"
                 "mov.b32 af, aw; mov.b32 bf, bw; mov.b32 cf, cw; mov.b64 ag, ad; mov.b64 bg, bd; "
                 "mov.b64 cg, cd;\n"
                 "rem.u32 sw, bw, 80; rem.u32 uw, cw, 80; mov.u64 rd, 0; mov.u32 rw, 0; "
                 "mov.u16 rh, 0; mov.f32 rf, 0f00000000;\n"
                 "%s\n%s\nst.global.u64 [o0], rd;\nret;\n}\n",
                 f->text, to_rd);
    else
        snprintf(at, room,
                 "mad.wide.u32 i0, tid, 64, i0; mad.wide.u32 o0, tid, 32, o0;\n"
                 "ld.global.v4.u32 {a0, a1, a2, a3}, [i0]; "
                 "ld.global.v4.u32 {a4, a5, a6, a7}, [i0+16];\n"
                 "ld.global.v4.u32 {a8, a9, a10, a11}, [i0+32]; "
                 "ld.global.v4.u32 {a12, a13, a14, a15}, [i0+48];\n"
                 "mov.u32 r0, 0; mov.u32 r1, 0; mov.u32 r2, 0; mov.u32 r3, 0; mov.u32 r4, 0; "
                 "mov.u32 r5, 0; mov.u32 r6, 0; mov.u32 r7, 0;\n%s\n"
                 "st.global.v4.u32 [o0], {r0, r1, r2, r3}; "
                 "st.global.v4.u32 [o0+16], {r4, r5, r6, r7};\nret;\n}\n",
                 f->text);
}

static inline uint64_t vector_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Awkward values among random ones. */
static inline uint64_t vector_operand(uint64_t *state) {
    static const uint64_t words[] = {0,          1,          0xffffffff, 0x80000000, 0x7fffffff,
                                     0x3f800000, 0xbf800000, 0x7f800000, 0xff800000, 0x7fc00000,
                                     0x00000001, 0x007fffff, 0x00800000, 0x7f7fffff, 0x40200000};
    const uint64_t r = vector_random(state);
    if (r % 4 == 0) return words[r / 4 % 15] << 32 | words[r / 64 % 15];
    if (r % 4 == 1) return (r & 0xffffffff00000000u) | ((r % 40 + 107) << 23 | (r >> 9 & 0x7fffff));
    if (r % 4 == 2) return r / 4 % 100;
    return r;
}

#endif
