/* calibrate.h: the parts of `laconic calibrate`.
 *
 * Gate (--gate): for each document and context, the last --tokens positions are computed twice
 * behind the same dense prompt: attending to everything, and under each budget, token by token as
 * the document goes on (teacher-forced). Compared are the whole distributions (KL to full
 * attention), the document's own next token (delta NLL) and the arg-maxes. Then a decode step of
 * one sequence is timed under both, in turn. The safe budget is a line over the context: the
 * smallest measured budgets whose KL, at the upper end of its 95 % interval over documents, is
 * within --kl.
 */
#ifndef LAC_CMD_CALIBRATE_H
#define LAC_CMD_CALIBRATE_H

#include "cmd/engine.h"
#include "core/config.h"
#include "models/gate_section.h"
#include "models/tokenizer.h"

struct calibrate_document {
    uint32_t *ids;
    uint32_t n;
};

struct calibrate {
    const struct config *config;
    struct engine *engine;
    struct step *step;
    void *step_memory;
    struct calibrate_document *documents;
    uint32_t n_documents;
};

/* STATUS_INVALID when no document is long enough for a context. */
enum status calibrate_gate(struct calibrate *c, struct gate_section *out, struct error *e);

#endif
