/* gate_section.h: the side-car's section on page choices (sched/gate.h): from which context on they
 * pay, and which budget was measured to keep the answer's distribution.
 *
 * Format, little endian: a header of 32 bytes {magic u32 "GATE", version u32, n_rows u32,
 * least_context u32: tokens, safe_pages u32, safe_share u32: as in struct gate_policy, kl_limit
 * f32: nats, zero u32}, then n_rows rows of 36 bytes, what was measured: {context u32: tokens,
 * budget u32: pages, n_positions u32, kl f32: mean over positions, nats, to full attention,
 * kl_upper f32: upper end of its 95 % interval over documents, delta_nll f32: nats, delta_nll_error
 * f32: its standard error over documents, agreement f32: share of equal arg-maxes, step f32: time
 * of a decode step of one sequence, full attention being 1; 0: not measured}.
 *
 * Hostile input: gate_section_read checks sizes and ranges: STATUS_CORRUPT, and
 * STATUS_UNSUPPORTED for a newer version. Ownership: *out is the caller's; rows are copied.
 */
#ifndef LAC_MODELS_GATE_SECTION_H
#define LAC_MODELS_GATE_SECTION_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

enum { GATE_SECTION_MAX_ROWS = 256, GATE_SECTION_MAX_PAGES = 1 << 20 };

struct gate_row {
    uint32_t context, budget, n_positions;
    float kl, kl_upper, delta_nll, delta_nll_error, agreement, step;
};

struct gate_section {
    uint32_t least_context, safe_pages, safe_share;
    float kl_limit;
    uint32_t n_rows;
    struct gate_row rows[GATE_SECTION_MAX_ROWS];
};

enum status gate_section_read(struct gate_section *out, const void *bytes, size_t n,
                              struct error *e) LAC_MUST_USE;
size_t gate_section_bytes(const struct gate_section *g);
void gate_section_write(const struct gate_section *g, void *out);

#endif
