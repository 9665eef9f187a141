/* liveness.h: how many registers a function needs at once. liveness_most() is the most 32-bit
 * registers whose values are still wanted at one place (64-bit ones count twice, predicates not at
 * all); a lower bound of what an assembler allots, with no calls counted. 0 when memory is short.
 */
#ifndef LAC_TESTS_SOFTGPU_LIVENESS_H
#define LAC_TESTS_SOFTGPU_LIVENESS_H

#include "tests/softgpu/ptx.h"

uint32_t liveness_most(const struct ptx_function *f);

#endif
