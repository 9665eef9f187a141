#include "models/gate_section.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/check.h"

enum { MAGIC = 0x45544147, VERSION = 2 };

struct header {
    uint32_t magic, version, n_rows, least_context, safe_pages, safe_share;
    float kl_limit;
    uint32_t zero;
};
_Static_assert(sizeof(struct header) == 32 && sizeof(struct gate_row) == 36, "the file's layout");

static bool row_is_sane(const struct gate_row *r) {
    return isfinite(r->kl) && isfinite(r->kl_upper) && isfinite(r->delta_nll) &&
           isfinite(r->delta_nll_error) && r->delta_nll_error >= 0 && r->agreement >= 0 &&
           r->agreement <= 1 && isfinite(r->step) && r->step >= 0 &&
           r->budget <= GATE_SECTION_MAX_PAGES;
}

enum status gate_section_read(struct gate_section *out, const void *bytes, size_t n,
                              struct error *e) {
    struct header h = {0};
    memset(out, 0, sizeof *out);
    if (n >= sizeof h) memcpy(&h, bytes, sizeof h);
    if (h.magic != MAGIC || h.n_rows > GATE_SECTION_MAX_ROWS ||
        n != sizeof h + h.n_rows * sizeof(struct gate_row) ||
        h.safe_pages > GATE_SECTION_MAX_PAGES || h.safe_share > 1024 || !isfinite(h.kl_limit) ||
        h.kl_limit < 0)
        return error_set(e, STATUS_CORRUPT, "gate", "the gate section makes no sense");
    if (h.version != VERSION)
        return error_set(e, STATUS_UNSUPPORTED, "gate",
                         "the gate section has version %u; this build reads %d", h.version,
                         VERSION);
    out->least_context = h.least_context;
    out->safe_pages = h.safe_pages;
    out->safe_share = h.safe_share;
    out->kl_limit = h.kl_limit;
    memcpy(out->rows, (const char *)bytes + sizeof h, h.n_rows * sizeof *out->rows);
    for (uint32_t i = 0; i < h.n_rows; i++)
        if (!row_is_sane(&out->rows[i]))
            return error_set(e, STATUS_CORRUPT, "gate",
                             "row %u of the gate section is no measurement", i);
    out->n_rows = h.n_rows;
    return STATUS_OK;
}

size_t gate_section_bytes(const struct gate_section *g) {
    return sizeof(struct header) + g->n_rows * sizeof *g->rows;
}

void gate_section_write(const struct gate_section *g, void *out) {
    CHECK(g->n_rows <= GATE_SECTION_MAX_ROWS && g->safe_share <= 1024);
    const struct header h = {.magic = MAGIC,
                             .version = VERSION,
                             .n_rows = g->n_rows,
                             .least_context = g->least_context,
                             .safe_pages = g->safe_pages,
                             .safe_share = g->safe_share,
                             .kl_limit = g->kl_limit};
    memcpy(out, &h, sizeof h);
    memcpy((char *)out + sizeof h, g->rows, g->n_rows * sizeof *g->rows);
}
