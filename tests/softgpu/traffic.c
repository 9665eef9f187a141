/* What a warp's request costs: sectors of 32 bytes in global memory, passes over the 32 banks of 4
 * bytes in shared memory. Accesses are aligned to their size, so two lanes read the same bytes or
 * none in common. */
#include "tests/softgpu/run.h"

static bool consecutive(const uint64_t address[LANES], uint32_t bytes) {
    uint64_t differs = 0;
    for (uint32_t l = 0; l < LANES; l++) differs |= address[l] ^ (address[0] + (uint64_t)l * bytes);
    return differs == 0;
}

static bool uniform(const uint64_t address[LANES]) {
    uint64_t differs = 0;
    for (uint32_t l = 0; l < LANES; l++) differs |= address[l] ^ address[0];
    return differs == 0;
}

/* Sorts and drops repetitions; returns how many are left. */
static uint32_t distinct(uint64_t *v, uint32_t n) {
    for (uint32_t i = 1; i < n; i++) {
        const uint64_t x = v[i];
        uint32_t k = i;
        for (; k > 0 && v[k - 1] > x; k--) v[k] = v[k - 1];
        v[k] = x;
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (i == 0 || v[i] != v[kept - 1]) v[kept++] = v[i];
    return kept;
}

void traffic_global(struct worker *k, const uint64_t address[LANES], uint32_t lanes, uint32_t bytes,
                    bool store) {
    uint64_t sectors, needed;
    if (lanes == ~0u && consecutive(address, bytes)) {
        sectors = ((address[0] + LANES * bytes - 1) >> 5) - (address[0] >> 5) + 1;
        needed = bytes; /* 32 lanes of so many bytes, in units of 32 */
    } else if (uniform(address)) {
        sectors = ((address[0] + bytes - 1) >> 5) - (address[0] >> 5) + 1;
        needed = 1;
    } else {
        uint64_t v[LANES];
        uint32_t n = 0;
        for (uint32_t m = lanes; m; m &= m - 1) v[n++] = address[first_lane(m)];
        n = distinct(v, n);
        needed = ((uint64_t)n * bytes + 31) / 32;
        for (uint32_t i = 0; i < n; i++) v[i] >>= 5;
        sectors = distinct(v, n);
    }
    struct exec_counters *c = &k->counters;
    if (store) {
        c->global_store_requests++;
        c->global_store_sectors += sectors;
        c->global_store_needed += needed;
    } else {
        c->global_load_requests++;
        c->global_load_sectors += sectors;
        c->global_load_needed += needed;
    }
}

/* The worst bank's number of different words. */
static uint32_t bank_degree(const uint64_t *address, uint32_t lanes, uint32_t bytes) {
    uint32_t seen[LANES][LANES];
    uint8_t n[LANES] = {0};
    uint32_t worst = 1;
    const uint32_t words = bytes > 4 ? bytes / 4 : 1;
    for (uint32_t m = lanes; m; m &= m - 1) {
        const uint32_t first = (uint32_t)(address[first_lane(m)] >> 2);
        for (uint32_t i = 0; i < words; i++) {
            const uint32_t word = first + i, bank = word % LANES;
            uint32_t at = 0;
            while (at < n[bank] && seen[bank][at] != word) at++;
            if (at < n[bank]) continue;
            seen[bank][n[bank]++] = word;
            if (n[bank] > worst) worst = n[bank];
        }
    }
    return worst;
}

void traffic_shared(struct worker *k, const uint64_t address[LANES], uint32_t lanes,
                    uint32_t bytes) {
    /* 8 bytes a lane go in two passes of 16 lanes, 16 bytes in four of 8 */
    const uint32_t passes = bytes > 4 ? bytes / 4 : 1, width = LANES / passes;
    uint32_t worst = 1, used = 0, wavefronts = 0;
    const bool easy =
        uniform(address) || (lanes == ~0u && consecutive(address, bytes) && bytes >= 4);
    for (uint32_t p = 0; p < passes; p++) {
        const uint32_t part = lanes & (width == LANES ? ~0u : ((1u << width) - 1) << p * width);
        if (!part) continue;
        used++;
        const uint32_t degree = easy ? 1 : bank_degree(address, part, bytes);
        wavefronts += degree;
        if (degree > worst) worst = degree;
    }
    struct exec_counters *c = &k->counters;
    c->shared_requests++;
    c->shared_ideal += used;
    c->shared_wavefronts += wavefronts;
    c->shared_degree[worst]++;
}
