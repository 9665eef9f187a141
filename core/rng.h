/* rng.h: counter-based random numbers, Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As
 * Easy as 1, 2, 3", SC 2011). A draw is a pure function of its coordinates; there is no state, so a
 * position draws the same number whatever ran beside it or before it.
 */
#ifndef LAC_CORE_RNG_H
#define LAC_CORE_RNG_H

#include <stdint.h>

enum rng_purpose {
    RNG_SAMPLE = 0, /* the token draw */
    RNG_AUDIT = 1,  /* whether this position is audited */
    RNG_SEED = 2,   /* a seed for a request that brought none */
    RNG_TEST = 3,
};

/* 64 uniform bits at (seed, choice, position, purpose, attempt). */
uint64_t rng_draw(uint64_t seed, uint32_t choice, uint32_t position, enum rng_purpose purpose,
                  uint32_t attempt);

#endif
