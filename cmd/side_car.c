#include "cmd/side_car.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/plan.h"
#include "models/learned_block.h"
#include "models/sidecar_default.h"

enum status side_car_open(const struct config *c, struct gguf *g, struct sidecar **out,
                          struct error *e) {
    char beside[4096];
    const char *path = c->side_car;
    *out = NULL;
    if (path != NULL && strcmp(path, "off") == 0) return STATUS_OK;
    const size_t n = strlen(c->model);
    if (path == NULL && n > 5 && strcmp(c->model + n - 5, ".gguf") == 0 && n < sizeof beside) {
        snprintf(beside, sizeof beside, "%.*s.lacs", (int)(n - 5), c->model);
        if (access(beside, F_OK) == 0) path = beside;
    }
    uint64_t digest[2];
    gguf_digest(g, digest);
    return path != NULL ? sidecar_open(path, digest, out, e) : sidecar_default(digest, out, e);
}

/* Its keys are written for every token, asked or not, which is 2 to 4 % of a step. A block that was
 * right at 0.40 of the tokens brought less than that beside a table of answers. */
#define LEAST_AGREEMENT 0.5f

enum status side_car_block_kinds(const struct config *c, const struct sidecar *s,
                                 const struct plan *p, uint32_t *kinds, struct error *e) {
    static const struct {
        uint32_t kind, source, section;
    } BLOCKS[] = {{BLOCK_DRAFT, METRIC_DRAFT_BLOCK, SIDECAR_DRAFT_BLOCK},
                  {BLOCK_EXIT, METRIC_DRAFT_EXIT, SIDECAR_EXIT_BLOCKS}};
    const bool chosen = c->drafts == CONFIG_DRAFTS_AUTO;
    *kinds = 0;
    for (size_t i = 0; i < sizeof BLOCKS / sizeof *BLOCKS; i++) {
        const struct sidecar_section *x =
            s != NULL ? sidecar_find(s, BLOCKS[i].section, NULL) : NULL;
        if ((c->drafts >> BLOCKS[i].source & 1) == 0) continue;
        if (x == NULL && chosen) continue;
        if (x == NULL)
            return error_set(e, STATUS_NOT_FOUND, "drafts", "--drafts %s: the side-car has none",
                             sidecar_kind_name(BLOCKS[i].section));
        struct learned_block b;
        const enum status st = learned_block_view(&b, x->data, x->bytes, p, e);
        if (st != STATUS_OK) return st;
        if (chosen && (*kinds != 0 || b.agreement < LEAST_AGREEMENT)) continue;
        *kinds |= UINT32_C(1) << BLOCKS[i].kind;
    }
    return STATUS_OK;
}
