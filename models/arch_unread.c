#include <stdlib.h>
#include <string.h>

#include "models/arch.h"

enum {
    PLAN_TENSORS = 4,   /* embeddings, output norm, head and its bias */
    LAYER_TENSORS = 18, /* six norms, seven matrices, four biases, the router */
};

static int compare_pointers(const void *a, const void *b) {
    const uintptr_t x = (uintptr_t) * (const struct tensor *const *)a;
    const uintptr_t y = (uintptr_t) * (const struct tensor *const *)b;
    return (x > y) - (x < y);
}

static size_t list_read(const struct plan *p, const struct tensor **read) {
    size_t n = 0;
    read[n++] = p->embed;
    read[n++] = p->out_norm;
    read[n++] = p->head.t;
    read[n++] = p->head_bias;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        const struct layer_plan *y = &p->layers[l];
        const struct tensor *const all[LAYER_TENSORS] = {
            y->attn_norm, y->attn_post_norm,
            y->ffn_norm,  y->ffn_post_norm,
            y->q_norm,    y->k_norm,
            y->q.t,       y->k.t,
            y->v.t,       y->o.t,
            y->gate.t,    y->up.t,
            y->down.t,    y->q_bias,
            y->k_bias,    y->v_bias,
            y->o_bias,    y->router,
        };
        memcpy(read + n, all, sizeof all);
        n += LAYER_TENSORS;
    }
    qsort(read, n, sizeof *read, compare_pointers);
    return n;
}

static bool starts_with(const char *name, const char *prefix) {
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* Tables of rotary factors end up in the plan as numbers; a vision tower beside the text model is
 * not asked. */
static bool may_stay_unread(const char *name) {
    return starts_with(name, "rope_") || starts_with(name, "v.") || starts_with(name, "mm.");
}

void arch_check_all_read(struct arch_builder *b) {
    const struct tensor **read =
        malloc((PLAN_TENSORS + (size_t)b->plan->n_layers * LAYER_TENSORS) * sizeof *read);
    if (read == NULL) {
        arch_fail(b, STATUS_NO_MEMORY, NULL, "no memory for the list of tensors");
        return;
    }
    const size_t n = list_read(b->plan, read);
    for (size_t i = 0; i < gguf_n_tensors(b->g); i++) {
        const struct tensor *t = gguf_tensor(b->g, i);
        if (may_stay_unread(t->name) ||
            bsearch(&t, read, n, sizeof *read, compare_pointers) != NULL)
            continue;
        arch_fail(b, STATUS_UNSUPPORTED, t->name,
                  "tensor %s is no part of the %s architecture as supported here", t->name,
                  b->prefix);
        break;
    }
    free(read);
}
