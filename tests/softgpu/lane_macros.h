/* lane_macros.h: how a handler goes over the lanes. Included by lanes_<isa>.c only, once for each
 * instruction set; everything in it and in lane_integer.h, lane_float.h, lane_convert.h and
 * lane_matrix.h is static.
 */
#ifndef LAC_TESTS_SOFTGPU_LANE_MACROS_H
#define LAC_TESTS_SOFTGPU_LANE_MACROS_H

#include <fenv.h>
#include <math.h>
#include <string.h>

#include "tests/softgpu/half.h"
#include "tests/softgpu/lanes.h"
#include "tests/softgpu/run.h"

/* No lane looks at another lane's register, so source and destination may be the same one. */
#define EACH_LANE _Pragma("GCC ivdep") for (uint32_t l = 0; l < LANES; l++)

/* d = EXPR of a, b, c for every lane in w->exec. */
#define LANE_OP(NAME, SD, SA, SB, SC, EXPR)                                                        \
    static const struct op *lane_##NAME(struct warp *w, const struct op *op) {                     \
        SD *d = out_place(w, op->d);                                                               \
        const SA *pa = in_place(w, op->a);                                                         \
        const SB *pb = in_place(w, op->b);                                                         \
        const SC *pc = in_place(w, op->c);                                                         \
        const uint32_t m = w->exec;                                                                \
        if (m == ~0u) {                                                                            \
            EACH_LANE {                                                                            \
                const SA a = pa[l];                                                                \
                const SB b = pb[l];                                                                \
                const SC c = pc[l];                                                                \
                (void)a, (void)b, (void)c;                                                         \
                d[l] = (SD)(EXPR);                                                                 \
            }                                                                                      \
        } else {                                                                                   \
            EACH_LANE {                                                                            \
                const SA a = pa[l];                                                                \
                const SB b = pb[l];                                                                \
                const SC c = pc[l];                                                                \
                (void)a, (void)b, (void)c;                                                         \
                const SD r = (SD)(EXPR);                                                           \
                d[l] = m >> l & 1 ? r : d[l];                                                      \
            }                                                                                      \
        }                                                                                          \
        return op + 1;                                                                             \
    }

/* The same lane by lane, for what does not vectorise: EXPR sees op and l too. */
#define LANE_SLOW(NAME, SD, SA, SB, SC, EXPR)                                                      \
    static const struct op *lane_##NAME(struct warp *w, const struct op *op) {                     \
        SD *d = out_place(w, op->d);                                                               \
        const SA *pa = in_place(w, op->a);                                                         \
        const SB *pb = in_place(w, op->b);                                                         \
        const SC *pc = in_place(w, op->c);                                                         \
        for (uint32_t m = w->exec; m; m &= m - 1) {                                                \
            const uint32_t l = first_lane(m);                                                      \
            const SA a = pa[l];                                                                    \
            const SB b = pb[l];                                                                    \
            const SC c = pc[l];                                                                    \
            (void)a, (void)b, (void)c;                                                             \
            d[l] = (SD)(EXPR);                                                                     \
        }                                                                                          \
        return op + 1;                                                                             \
    }

/* The lanes for which a comparison (or, EXPR = the condition) holds. */
#define LANE_MASK(R, EXPR)                                                                         \
    do {                                                                                           \
        uint32_t bits_ = 0;                                                                        \
        for (uint32_t l = 0; l < LANES; l++) bits_ |= (uint32_t)((EXPR) != 0) << l;                \
        R = bits_;                                                                                 \
    } while (0)

#endif
