/* instruction_table.h: PTX instructions, each with its meaning written a second time from the PTX
 * ISA.
 *
 * X(result, ulps, instruction, expression). The instruction works on registers a b c (suffix h: 16
 * bits, w: 32, d: 64, f: binary32, g: binary64; p, q: predicates) and leaves its result in r with
 * the suffix named first. The expression sees the operands as ah bh ch, aw bw cw, ad bd cd, af bf
 * cf, ag bg cg, signed as sh_a ... by the macros of test_instructions.c; `ulps` is how far a
 * binary32 result may be off (0: equal bits, NaN equal to NaN).
 */
/* clang-format off */
#define INSTRUCTION_LIST(X)                                                                        \
    X(w, 0, "add.s32 rw, aw, bw;", aw + bw)                                                        \
    X(h, 0, "add.u16 rh, ah, bh;", ah + bh)                                                        \
    X(d, 0, "add.u64 rd, ad, bd;", ad + bd)                                                        \
    X(w, 0, "add.sat.s32 rw, aw, bw;", clamp32((int64_t)SW(aw) + SW(bw)))                          \
    X(w, 0, "sub.sat.s32 rw, aw, bw;", clamp32((int64_t)SW(aw) - SW(bw)))                          \
    X(w, 0, "sub.u32 rw, aw, bw;", aw - bw)                                                        \
    X(d, 0, "sub.s64 rd, ad, bd;", ad - bd)                                                        \
    X(h, 0, "sub.s16 rh, ah, bh;", ah - bh)                                                        \
    X(d, 0, "add.cc.u32 xw, aw, bw; addc.u32 yw, aw, cw; mov.b64 rd, {xw, yw};", (uint32_t)(aw + bw) | (uint64_t)(uint32_t)(aw + cw + (aw + bw < aw)) << 32) \
    X(d, 0, "sub.cc.u32 xw, aw, bw; subc.u32 yw, aw, cw; mov.b64 rd, {xw, yw};", (uint32_t)(aw - bw) | (uint64_t)(uint32_t)(aw - cw - (aw < bw)) << 32) \
    X(d, 0, "mad.lo.cc.u32 xw, aw, bw, cw; madc.hi.u32 yw, aw, bw, 0; mov.b64 rd, {xw, yw};", (uint64_t)aw * bw + cw) \
    X(w, 0, "mul.lo.u32 rw, aw, bw;", aw * bw)                                                     \
    X(w, 0, "mul.hi.u32 rw, aw, bw;", (uint64_t)aw * bw >> 32)                                     \
    X(w, 0, "mul.hi.s32 rw, aw, bw;", (uint64_t)((int64_t)SW(aw) * SW(bw)) >> 32)                  \
    X(d, 0, "mul.wide.u32 rd, aw, bw;", (uint64_t)aw * bw)                                         \
    X(d, 0, "mul.wide.s32 rd, aw, bw;", (uint64_t)((int64_t)SW(aw) * SW(bw)))                      \
    X(w, 0, "mul.wide.s16 rw, ah, bh;", (uint32_t)(SH(ah) * SH(bh)))                               \
    X(w, 0, "mul.wide.u16 rw, ah, bh;", (uint32_t)ah * bh)                                         \
    X(h, 0, "mul.hi.u16 rh, ah, bh;", (uint32_t)ah * bh >> 16)                                     \
    X(h, 0, "mul.hi.s16 rh, ah, bh;", (uint32_t)(SH(ah) * SH(bh)) >> 16)                           \
    X(h, 0, "mul.lo.s16 rh, ah, bh;", (uint32_t)ah * bh)                                           \
    X(d, 0, "mul.lo.s64 rd, ad, bd;", ad * bd)                                                     \
    X(d, 0, "mul.hi.u64 rd, ad, bd;", high64(ad, bd))                                              \
    X(d, 0, "mul.hi.s64 rd, ad, bd;", high64(ad, bd) - (ad >> 63 ? bd : 0) - (bd >> 63 ? ad : 0))  \
    X(w, 0, "mad.lo.s32 rw, aw, bw, cw;", aw * bw + cw)                                            \
    X(h, 0, "mad.lo.u16 rh, ah, bh, ch;", (uint32_t)ah * bh + ch)                                  \
    X(d, 0, "mad.lo.u64 rd, ad, bd, cd;", ad * bd + cd)                                            \
    X(w, 0, "mad.hi.u32 rw, aw, bw, cw;", ((uint64_t)aw * bw >> 32) + cw)                          \
    X(d, 0, "mad.wide.s32 rd, aw, bw, cd;", (uint64_t)((int64_t)SW(aw) * SW(bw)) + cd)             \
    X(d, 0, "mad.wide.u32 rd, aw, bw, cd;", (uint64_t)aw * bw + cd)                                \
    X(w, 0, "mul24.lo.s32 rw, aw, bw;", (uint32_t)(S24(aw) * S24(bw)))                             \
    X(w, 0, "mul24.hi.u32 rw, aw, bw;", (uint64_t)(aw & 0xffffff) * (bw & 0xffffff) >> 16)         \
    X(w, 0, "mad24.lo.u32 rw, aw, bw, cw;", (uint64_t)(aw & 0xffffff) * (bw & 0xffffff) + cw)      \
    X(w, 0, "div.u32 rw, aw, bw;", bw ? aw / bw : 0xffffffffu)                                     \
    X(w, 0, "div.s32 rw, aw, bw;", bw ? (uint32_t)((int64_t)SW(aw) / SW(bw)) : 0xffffffffu)        \
    X(w, 0, "rem.u32 rw, aw, bw;", bw ? aw % bw : aw)                                              \
    X(w, 0, "rem.s32 rw, aw, bw;", bw ? (uint32_t)((int64_t)SW(aw) % SW(bw)) : aw)                 \
    X(h, 0, "div.u16 rh, ah, bh;", bh ? ah / bh : 0xffff)                                          \
    X(d, 0, "div.u64 rd, ad, bd;", bd ? ad / bd : ~0ull)                                           \
    X(d, 0, "rem.u64 rd, ad, bd;", bd ? ad % bd : ad)                                              \
    X(w, 0, "abs.s32 rw, aw;", SW(aw) < 0 ? 0 - aw : aw)                                           \
    X(d, 0, "abs.s64 rd, ad;", ad >> 63 ? 0 - ad : ad)                                             \
    X(w, 0, "neg.s32 rw, aw;", 0 - aw)                                                             \
    X(h, 0, "neg.s16 rh, ah;", 0u - ah)                                                            \
    X(w, 0, "min.s32 rw, aw, bw;", SW(aw) < SW(bw) ? aw : bw)                                      \
    X(w, 0, "max.u32 rw, aw, bw;", aw > bw ? aw : bw)                                              \
    X(h, 0, "min.u16 rh, ah, bh;", ah < bh ? ah : bh)                                              \
    X(h, 0, "max.s16 rh, ah, bh;", SH(ah) > SH(bh) ? ah : bh)                                      \
    X(d, 0, "max.s64 rd, ad, bd;", (int64_t)ad > (int64_t)bd ? ad : bd)                            \
    X(w, 0, "max.relu.s32 rw, aw, bw;", SW(aw) < 0 && SW(bw) < 0 ? 0 : SW(aw) > SW(bw) ? aw : bw)  \
    X(w, 0, "min.s16x2 rw, aw, bw;", pair(SH(aw) < SH(bw) ? aw : bw, SH(aw >> 16) < SH(bw >> 16) ? aw >> 16 : bw >> 16)) \
    X(w, 0, "max.u16x2 rw, aw, bw;", pair((aw & 0xffff) > (bw & 0xffff) ? aw : bw, aw >> 16 > bw >> 16 ? aw >> 16 : bw >> 16)) \
    X(w, 0, "add.u16x2 rw, aw, bw;", pair(aw + bw, (aw >> 16) + (bw >> 16)))                       \
    X(w, 0, "sad.u32 rw, aw, bw, cw;", cw + (aw > bw ? aw - bw : bw - aw))                         \
    X(w, 0, "sad.s32 rw, aw, bw, cw;", cw + (SW(aw) > SW(bw) ? aw - bw : bw - aw))                 \
    X(w, 0, "and.b32 rw, aw, bw;", aw & bw)                                                        \
    X(h, 0, "or.b16 rh, ah, bh;", ah | bh)                                                         \
    X(d, 0, "xor.b64 rd, ad, bd;", ad ^ bd)                                                        \
    X(h, 0, "not.b16 rh, ah;", ~ah)                                                                \
    X(w, 0, "cnot.b32 rw, aw;", aw == 0)                                                           \
    X(w, 0, "shl.b32 rw, aw, sw;", sw > 31 ? 0 : aw << sw)                                         \
    X(h, 0, "shl.b16 rh, ah, sw;", sw > 15 ? 0 : (uint32_t)ah << sw)                               \
    X(w, 0, "shr.u32 rw, aw, sw;", sw > 31 ? 0 : aw >> sw)                                         \
    X(w, 0, "shr.s32 rw, aw, sw;", floor_shift(SW(aw), sw))                                        \
    X(h, 0, "shr.s16 rh, ah, sw;", floor_shift(SH(ah), sw))                                        \
    X(d, 0, "shl.b64 rd, ad, sw;", sw > 63 ? 0 : ad << sw)                                         \
    X(d, 0, "shr.s64 rd, ad, sw;", floor_shift((int64_t)ad, sw))                                   \
    X(d, 0, "shr.u64 rd, ad, sw;", sw > 63 ? 0 : ad >> sw)                                         \
    X(w, 0, "shf.l.wrap.b32 rw, aw, bw, cw;", cw & 31 ? bw << (cw & 31) | aw >> (32 - (cw & 31)) : bw) \
    X(w, 0, "shf.r.wrap.b32 rw, aw, bw, cw;", cw & 31 ? bw << (32 - (cw & 31)) | aw >> (cw & 31) : aw) \
    X(w, 0, "shf.l.clamp.b32 rw, aw, bw, sw;", sw > 31 ? aw : sw ? bw << sw | aw >> (32 - sw) : bw) \
    X(w, 0, "shf.r.clamp.b32 rw, aw, bw, sw;", sw > 31 ? bw : sw ? bw << (32 - sw) | aw >> sw : aw) \
    X(w, 0, "lop3.b32 rw, aw, bw, cw, 0xe8;", (aw & bw) | (aw & cw) | (bw & cw))                   \
    X(w, 0, "lop3.b32 rw, aw, bw, cw, 0x96;", aw ^ bw ^ cw)                                        \
    X(w, 0, "lop3.b32 rw, aw, bw, cw, 0xca;", (aw & bw) | (~aw & cw))                              \
    X(w, 0, "lop3.b32 rw, aw, bw, cw, 0x1b;", lop3(aw, bw, cw, 0x1b))                              \
    X(w, 0, "prmt.b32 rw, aw, bw, cw;", permute(aw, bw, cw))                                       \
    X(w, 0, "prmt.b32.f4e rw, aw, bw, cw;", (uint32_t)(((uint64_t)bw << 32 | aw) >> 8 * (cw & 3))) \
    X(w, 0, "prmt.b32.rc8 rw, aw, bw, cw;", (aw >> 8 * (cw & 3) & 0xff) * 0x01010101u)             \
    X(w, 0, "bfe.u32 rw, aw, bw, cw;", extract(aw, bw & 255, cw & 255, 32, 0))                     \
    X(w, 0, "bfe.s32 rw, aw, sw, uw;", extract(aw, sw, uw, 32, 1))                                 \
    X(w, 0, "bfe.u32 rw, aw, sw, uw;", extract(aw, sw, uw, 32, 0))                                 \
    X(d, 0, "bfe.s64 rd, ad, sw, uw;", extract(ad, sw, uw, 64, 1))                                 \
    X(w, 0, "bfi.b32 rw, aw, bw, sw, uw;", insert(aw, bw, sw, uw, 32))                             \
    X(d, 0, "bfi.b64 rd, ad, bd, sw, uw;", insert(ad, bd, sw, uw, 64))                             \
    X(w, 0, "bfind.u32 rw, aw;", top_bit(aw))                                                      \
    X(w, 0, "bfind.s32 rw, aw;", top_bit(SW(aw) < 0 ? ~aw : aw))                                   \
    X(w, 0, "bfind.shiftamt.u32 rw, aw;", aw ? 31 - top_bit(aw) : ~0u)                             \
    X(w, 0, "bfind.u64 rw, ad;", top_bit(ad))                                                      \
    X(w, 0, "clz.b32 rw, aw;", 31 - top_bit(aw))                                                   \
    X(w, 0, "clz.b64 rw, ad;", 63 - top_bit(ad))                                                   \
    X(w, 0, "popc.b32 rw, aw;", ones(aw))                                                          \
    X(w, 0, "popc.b64 rw, ad;", ones(ad))                                                          \
    X(w, 0, "brev.b32 rw, aw;", reverse(aw, 32))                                                   \
    X(d, 0, "brev.b64 rd, ad;", reverse(ad, 64))                                                   \
    X(w, 0, "szext.wrap.s32 rw, aw, sw;", extract(aw, 0, sw & 31, 32, 1))                          \
    X(w, 0, "szext.clamp.u32 rw, aw, sw;", extract(aw, 0, sw > 32 ? 32 : sw, 32, 0))               \
    X(w, 0, "bmsk.clamp.b32 rw, sw, uw;", insert(~0ull, 0, sw > 32 ? 32 : sw, uw > 32 ? 32 : uw, 32)) \
    X(w, 0, "dp4a.s32.s32 rw, aw, bw, cw;", dot4(aw, bw, cw, 1, 1))                                \
    X(w, 0, "dp4a.u32.u32 rw, aw, bw, cw;", dot4(aw, bw, cw, 0, 0))                                \
    X(w, 0, "dp4a.u32.s32 rw, aw, bw, cw;", dot4(aw, bw, cw, 0, 1))                                \
    X(w, 0, "dp4a.s32.u32 rw, aw, bw, cw;", dot4(aw, bw, cw, 1, 0))                                \
    X(w, 0, "dp2a.lo.s32.s32 rw, aw, bw, cw;", cw + (uint32_t)(SH(aw) * SB(bw)) + (uint32_t)(SH(aw >> 16) * SB(bw >> 8))) \
    X(w, 0, "dp2a.hi.u32.u32 rw, aw, bw, cw;", cw + (aw & 0xffff) * (bw >> 16 & 0xff) + (aw >> 16) * (bw >> 24)) \
    X(w, 0, "setp.lt.s32 p, aw, bw; selp.b32 rw, aw, cw, p;", SW(aw) < SW(bw) ? aw : cw)           \
    X(w, 0, "setp.hi.u32 p, aw, bw; selp.b32 rw, 1, 0, p;", aw > bw)                               \
    X(w, 0, "setp.ls.u32 p, aw, bw; selp.b32 rw, 1, 0, p;", aw <= bw)                              \
    X(w, 0, "setp.ge.s64 p, ad, bd; selp.b32 rw, 1, 0, p;", (int64_t)ad >= (int64_t)bd)            \
    X(w, 0, "setp.gt.u16 p, ah, bh; selp.b32 rw, 1, 0, p;", ah > bh)                               \
    X(w, 0, "setp.le.s16 p, ah, bh; selp.b32 rw, 1, 0, p;", SH(ah) <= SH(bh))                      \
    X(w, 0, "setp.eq.b32 p, aw, bw; selp.b32 rw, 1, 0, !p;", aw != bw)                             \
    X(w, 0, "setp.ne.s32 q, cw, 0; setp.lt.and.s32 p|q, aw, bw, q; selp.b32 xw, 1, 0, p; selp.b32 yw, 2, 0, q; or.b32 rw, xw, yw;", cw ? (SW(aw) < SW(bw) ? 1 : 2) : 0) \
    X(w, 0, "setp.lt.f32 p, af, bf; selp.b32 rw, 1, 0, p;", af < bf)                               \
    X(w, 0, "setp.ne.f32 p, af, bf; selp.b32 rw, 1, 0, p;", af < bf || af > bf)                    \
    X(w, 0, "setp.equ.f32 p, af, bf; selp.b32 rw, 1, 0, p;", !(af < bf || af > bf))                \
    X(w, 0, "setp.leu.f32 p, af, bf; selp.b32 rw, 1, 0, p;", !(af > bf))                           \
    X(w, 0, "setp.neu.f32 p, af, bf; selp.b32 rw, 1, 0, p;", !(af == bf))                          \
    X(w, 0, "setp.num.f32 p, af, bf; selp.b32 rw, 1, 0, p;", af == af && bf == bf)                 \
    X(w, 0, "setp.nan.f32 p, af, bf; selp.b32 rw, 1, 0, p;", af != af || bf != bf)                 \
    X(w, 0, "setp.ge.ftz.f32 p, af, bf; selp.b32 rw, 1, 0, p;", flush(af) >= flush(bf))            \
    X(w, 0, "setp.gtu.f64 p, ag, bg; selp.b32 rw, 1, 0, p;", !(ag <= bg))                          \
    X(w, 0, "set.lt.u32.s32 rw, aw, bw;", SW(aw) < SW(bw) ? ~0u : 0)                               \
    X(w, 0, "set.gt.f32.f32 rf, af, bf; mov.b32 rw, rf;", af > bf ? 0x3f800000u : 0)               \
    X(w, 0, "setp.lt.s32 p, aw, 0; setp.lt.s32 q, bw, 0; and.pred p, p, !q; selp.b32 rw, 1, 0, p;", SW(aw) < 0 && SW(bw) >= 0) \
    X(w, 0, "setp.lt.s32 p, aw, 0; setp.lt.s32 q, bw, 0; xor.pred p, p, q; not.pred p, p; selp.b32 rw, 1, 0, p;", (SW(aw) < 0) == (SW(bw) < 0)) \
    X(w, 0, "slct.b32.s32 rw, aw, bw, cw;", SW(cw) >= 0 ? aw : bw)                                 \
    X(w, 0, "slct.u32.f32 rw, aw, bw, cf;", cf >= 0 ? aw : bw)                                     \
    X(d, 0, "selp.b64 rd, ad, bd, 1;", ad)                                                         \
    X(d, 0, "mov.b64 rd, {aw, bw};", aw | (uint64_t)bw << 32)                                      \
    X(w, 0, "mov.b64 {xw, rw}, ad;", ad >> 32)                                                     \
    X(w, 0, "mov.b32 {xh, rh}, aw; mov.b32 rw, {rh, xh};", aw >> 16 | aw << 16)                    \
    X(d, 0, "mov.b64 rd, {ah, bh, ch, ah};", ah | (uint64_t)bh << 16 | (uint64_t)ch << 32 | (uint64_t)ah << 48) \
    X(w, 0, "cvt.u32.u8 rw, aw;", aw & 0xff)                                                       \
    X(w, 0, "cvt.s32.s8 rw, aw;", SB(aw))                                                          \
    X(w, 0, "cvt.s32.s16 rw, ah;", SH(ah))                                                         \
    X(w, 0, "cvt.u32.u16 rw, ah;", ah)                                                             \
    X(h, 0, "cvt.u16.u32 rh, aw;", aw)                                                             \
    X(h, 0, "cvt.s16.s8 rh, aw;", SB(aw))                                                          \
    X(d, 0, "cvt.s64.s32 rd, aw;", (int64_t)SW(aw))                                                \
    X(d, 0, "cvt.u64.u32 rd, aw;", aw)                                                             \
    X(w, 0, "cvt.u32.u64 rw, ad;", ad)                                                             \
    X(d, 0, "cvt.s64.s8 rd, aw;", (int64_t)SB(aw))                                                 \
    X(w, 0, "cvt.sat.s8.s32 rw, aw;", SW(aw) > 127 ? 127 : SW(aw) < -128 ? -128 : SW(aw))          \
    X(w, 0, "cvt.sat.u8.s32 rw, aw;", SW(aw) > 255 ? 255 : SW(aw) < 0 ? 0 : SW(aw))                \
    X(w, 0, "cvt.sat.u32.s64 rw, ad;", (int64_t)ad < 0 ? 0 : ad > 0xffffffffu ? 0xffffffffu : ad)  \
    X(w, 0, "cvt.pack.sat.s8.s32.b32 rw, aw, bw, cw;", (uint32_t)(clampto(SW(bw), -128, 127) & 0xff) | (uint32_t)(clampto(SW(aw), -128, 127) & 0xff) << 8 | cw << 16) \
    X(w, 0, "cvt.pack.sat.s16.s32 rw, aw, bw;", pair((uint32_t)clampto(SW(bw), -32768, 32767), (uint32_t)clampto(SW(aw), -32768, 32767))) \
    X(f, 0, "cvt.rn.f32.s32 rf, aw;", bits_of((float)SW(aw)))                                      \
    X(f, 0, "cvt.rn.f32.u32 rf, aw;", bits_of((float)aw))                                          \
    X(f, 0, "cvt.rz.f32.u32 rf, aw;", bits_of(toward_zero((double)aw)))                            \
    X(f, 0, "cvt.rn.f32.u64 rf, ad;", bits_of((float)ad))                                          \
    X(f, 0, "cvt.rn.f32.s64 rf, ad;", bits_of((float)(int64_t)ad))                                 \
    X(d, 0, "cvt.rn.f64.s64 rg, ad; mov.b64 rd, rg;", bits_of64((double)(int64_t)ad))              \
    X(w, 0, "cvt.rzi.s32.f32 rw, af;", float_to_int(trunc((double)af), -0x1p31, 0x1p31 - 1))       \
    X(w, 0, "cvt.rni.s32.f32 rw, af;", float_to_int(half_even((double)af), -0x1p31, 0x1p31 - 1))   \
    X(w, 0, "cvt.rmi.s32.f32 rw, af;", float_to_int(floor((double)af), -0x1p31, 0x1p31 - 1))       \
    X(w, 0, "cvt.rpi.u32.f32 rw, af;", float_to_int(ceil((double)af), 0, 0x1p32 - 1))              \
    X(w, 0, "cvt.rzi.u8.f32 rw, af;", float_to_int(trunc((double)af), 0, 255))                     \
    X(w, 0, "cvt.rni.s8.f32 rw, af;", float_to_int(half_even((double)af), -128, 127))              \
    X(f, 0, "cvt.rni.f32.f32 rf, af;", bits_of((float)half_even((double)af)))                      \
    X(f, 0, "cvt.rmi.f32.f32 rf, af;", bits_of(floorf(af)))                                        \
    X(f, 0, "cvt.sat.f32.f32 rf, af;", bits_of(af > 0 ? (af < 1 ? af : 1) : 0))                    \
    X(f, 0, "cvt.ftz.f32.f32 rf, af;", bits_of(flush(af)))                                         \
    X(f, 0, "cvt.rn.f32.f64 rf, ag;", bits_of((float)ag))                                          \
    X(d, 0, "cvt.f64.f32 rg, af; mov.b64 rd, rg;", bits_of64((double)af))                          \
    X(f, 0, "cvt.f32.f16 rf, ah;", bits_of((float)half_value(ah, 5, 10)))                          \
    X(f, 0, "cvt.f32.bf16 rf, ah;", bits_of((float)half_value(ah, 8, 7)))                          \
    X(h, 0, "cvt.rn.f16.f32 rh, af;", half_bits((double)af, 5, 10, 0))                             \
    X(h, 0, "cvt.rz.f16.f32 rh, af;", half_bits((double)af, 5, 10, 1))                             \
    X(h, 0, "cvt.rn.bf16.f32 rh, af;", half_bits((double)af, 8, 7, 0))                             \
    X(h, 0, "cvt.rn.f16.f64 rh, ag;", half_bits(ag, 5, 10, 0))                                     \
    X(h, 0, "cvt.rn.relu.f16.f32 rh, af;", half_bits(af > 0 || af != af ? (double)af : 0.0, 5, 10, 0)) \
    X(h, 0, "cvt.rn.f16.s32 rh, aw;", half_bits((double)SW(aw), 5, 10, 0))                         \
    X(w, 0, "cvt.rni.s32.f16 rw, ah;", float_to_int(half_even(half_value(ah, 5, 10)), -0x1p31, 0x1p31 - 1)) \
    X(w, 0, "cvt.rn.f16x2.f32 rw, af, bf;", pair(half_bits((double)bf, 5, 10, 0), half_bits((double)af, 5, 10, 0))) \
    X(w, 0, "cvt.rn.bf16x2.f32 rw, af, bf;", pair(half_bits((double)bf, 8, 7, 0), half_bits((double)af, 8, 7, 0))) \
    X(w, 0, "cvt.rn.satfinite.e4m3x2.f32 rh, af, bf; cvt.rn.f16x2.e4m3x2 rw, rh;", pair(half_bits(e4m3((double)bf), 5, 10, 0), half_bits(e4m3((double)af), 5, 10, 0))) \
    X(f, 0, "add.f32 rf, af, bf;", bits_of(af + bf))                                               \
    X(f, 0, "sub.rn.f32 rf, af, bf;", bits_of(af - bf))                                            \
    X(f, 0, "mul.f32 rf, af, bf;", bits_of(af * bf))                                               \
    X(f, 0, "add.ftz.f32 rf, af, bf;", bits_of(flush(flush(af) + flush(bf))))                      \
    X(f, 0, "mul.ftz.f32 rf, af, bf;", bits_of(flush(flush(af) * flush(bf))))                      \
    X(f, 0, "add.rz.f32 rf, af, bf;", bits_of(rounded_sum(af, bf, 0)))                             \
    X(f, 0, "add.rm.f32 rf, af, bf;", bits_of(rounded_sum(af, bf, -1)))                            \
    X(f, 0, "mul.rp.f32 rf, af, bf;", bits_of(rounded_product(af, bf, 1)))                         \
    X(f, 0, "mul.rz.f32 rf, af, bf;", bits_of(rounded_product(af, bf, 0)))                         \
    X(f, 0, "add.sat.f32 rf, af, bf;", bits_of(af + bf > 0 ? (af + bf < 1 ? af + bf : 1) : 0))     \
    X(f, 0, "fma.rn.f32 rf, af, bf, cf;", bits_of(exact_fma(af, bf, cf)))                          \
    X(f, 0, "fma.rn.ftz.f32 rf, af, bf, cf;", bits_of(flush(exact_fma(flush(af), flush(bf), flush(cf))))) \
    X(f, 0, "mad.rn.f32 rf, af, bf, cf;", bits_of(exact_fma(af, bf, cf)))                          \
    X(f, 0, "div.rn.f32 rf, af, bf;", bits_of(af / bf))                                            \
    X(f, 0, "div.full.f32 rf, af, bf;", bits_of(af / bf))                                          \
    X(f, 2, "div.approx.f32 rf, af, bf;", fabsf(bf) >= 0x1p126f && fabsf(bf) <= FLT_MAX ? (af != af || isinf(af) ? 0x7fffffffu : 0) : bits_of(af / bf)) \
    X(f, 0, "rcp.rn.f32 rf, af;", bits_of(1 / af))                                                 \
    X(f, 1, "rcp.approx.ftz.f32 rf, af;", bits_of(flush(1 / flush(af))))                           \
    X(f, 0, "sqrt.rn.f32 rf, af;", bits_of(sqrtf(af)))                                             \
    X(f, 2, "rsqrt.approx.f32 rf, af;", bits_of((float)(1 / sqrt((double)af))))                    \
    X(f, 2, "ex2.approx.ftz.f32 rf, af;", bits_of(flush(exp2f(flush(af)))))                        \
    X(f, 2, "lg2.approx.f32 rf, af;", bits_of(log2f(af)))                                          \
    X(f, 2, "tanh.approx.f32 rf, af;", bits_of(tanhf(af)))                                         \
    X(f, 0, "neg.f32 rf, af;", bits_of(-af))                                                       \
    X(f, 0, "abs.f32 rf, af;", bits_of(fabsf(af)))                                                 \
    X(f, 0, "min.f32 rf, af, bf;", bits_of(minimum(af, bf, 1)))                                    \
    X(f, 0, "max.f32 rf, af, bf;", bits_of(minimum(af, bf, -1)))                                   \
    X(f, 0, "max.NaN.f32 rf, af, bf;", af != af || bf != bf ? 0x7fffffffu : bits_of(minimum(af, bf, -1))) \
    X(f, 0, "min.xorsign.abs.f32 rf, af, bf;", af != af && bf != bf ? 0x7fffffffu : (bits_of(minimum(fabsf(af), fabsf(bf), 1)) | ((bits_of(af) ^ bits_of(bf)) & 0x80000000u))) \
    X(f, 0, "max.f32 rf, af, bf, cf;", bits_of(minimum(minimum(af, bf, -1), cf, -1)))              \
    X(f, 0, "copysign.f32 rf, af, bf;", bits_of(copysignf(bf, af)))                                \
    X(w, 0, "testp.finite.f32 p, af; selp.b32 rw, 1, 0, p;", isfinite(af) != 0)                    \
    X(w, 0, "testp.subnormal.f32 p, af; selp.b32 rw, 1, 0, p;", af != 0 && fabsf(af) < FLT_MIN)    \
    X(d, 0, "add.f64 rg, ag, bg; mov.b64 rd, rg;", bits_of64(ag + bg))                             \
    X(d, 0, "fma.rn.f64 rg, ag, bg, cg; mov.b64 rd, rg;", bits_of64(fma(ag, bg, cg)))              \
    X(d, 0, "div.rn.f64 rg, ag, bg; mov.b64 rd, rg;", bits_of64(ag / bg))                          \
    X(d, 0, "sqrt.rn.f64 rg, ag; mov.b64 rd, rg;", bits_of64(sqrt(ag)))                            \
    X(h, 0, "add.f16 rh, ah, bh;", half_bits(half_value(ah, 5, 10) + half_value(bh, 5, 10), 5, 10, 0)) \
    X(h, 0, "mul.bf16 rh, ah, bh;", half_bits(half_value(ah, 8, 7) * half_value(bh, 8, 7), 8, 7, 0)) \
    X(h, 0, "fma.rn.f16 rh, ah, bh, ch;", half_bits(fma(half_value(ah, 5, 10), half_value(bh, 5, 10), half_value(ch, 5, 10)), 5, 10, 0)) \
    X(w, 0, "add.f16x2 rw, aw, bw;", pair(half_bits(half_value(aw & 0xffff, 5, 10) + half_value(bw & 0xffff, 5, 10), 5, 10, 0), half_bits(half_value(aw >> 16, 5, 10) + half_value(bw >> 16, 5, 10), 5, 10, 0))) \
    X(w, 0, "fma.rn.bf16x2 rw, aw, bw, cw;", pair(half_bits(fma(half_value(aw & 0xffff, 8, 7), half_value(bw & 0xffff, 8, 7), half_value(cw & 0xffff, 8, 7)), 8, 7, 0), half_bits(fma(half_value(aw >> 16, 8, 7), half_value(bw >> 16, 8, 7), half_value(cw >> 16, 8, 7)), 8, 7, 0))) \
    X(h, 0, "neg.f16 rh, ah;", ah ^ 0x8000u)                                                       \
    X(w, 0, "setp.lt.f16 p, ah, bh; selp.b32 rw, 1, 0, p;", half_value(ah, 5, 10) < half_value(bh, 5, 10)) \
    X(f, 0, "fma.rn.f32.f16 rf, ah, bh, cf;", bits_of(exact_fma((float)half_value(ah, 5, 10), (float)half_value(bh, 5, 10), cf))) \
    X(d, 0, "mov.b64 xd, {af, bf}; mov.b64 yd, {bf, cf}; fma.rn.f32x2 zd, xd, yd, xd; mov.b64 {xw, yw}, zd; mov.b64 rd, {xw, yw};", no_nan(exact_fma(af, bf, af)) | (uint64_t)no_nan(exact_fma(bf, cf, bf)) << 32) \
    X(d, 0, "mov.b64 xd, {af, bf}; mov.b64 yd, {bf, cf}; add.rz.f32x2 rd, xd, yd;", no_nan(rounded_sum(af, bf, 0)) | (uint64_t)no_nan(rounded_sum(bf, cf, 0)) << 32) \
    X(w, 0, "isspacep.shared p, ad; selp.b32 rw, 1, 0, p;", ad >> 32 == 1)                         \
    X(w, 0, "{ .reg .pred k; .reg .b32 t; setp.eq.u32 k, aw, bw; mov.u32 t, aw; @k add.u32 t, t, 1; @!k sub.u32 t, t, bw; mov.u32 rw, t; }", aw == bw ? aw + 1 : aw - bw)
/* clang-format on */
