#include "tests/softgpu/program.h"

#include <stdlib.h>
#include <string.h>

#include "tests/softgpu/decode.h"
#include "tests/softgpu/liveness.h"

static enum status no_memory(struct error *e) {
    return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for a program");
}

static enum status place_variables(struct program *p, const struct ptx_module *m,
                                   uint64_t *addresses, struct error *e) {
    p->globals = bump_take(&p->bump, (m->n_variables + 1u) * sizeof *p->globals);
    if (!p->globals) return no_memory(e);
    for (uint32_t i = 0; i < m->n_variables; i++) {
        const struct ptx_variable *v = &m->variables[i];
        struct program_global *g = &p->globals[i];
        p->n_globals = i + 1;
        g->name = bump_string(&p->bump, v->name, strlen(v->name));
        if (!g->name) return no_memory(e);
        if (v->space != PTX_SPACE_GLOBAL && v->space != PTX_SPACE_CONST) continue;
        if (v->external)
            return error_set(e, STATUS_INVALID, NULL, "PTX line %u: %s is not defined", v->line,
                             v->name);
        g->size_bytes = v->size_bytes;
        enum status s =
            memory_allocate(p->memory, v->size_bytes ? v->size_bytes : 1, v->name, &g->address, e);
        if (s == STATUS_OK && v->initial)
            s = memory_write(p->memory, g->address, v->initial, v->size_bytes, e);
        else if (s == STATUS_OK)
            s = memory_fill(p->memory, g->address, 0, 1, v->size_bytes, e);
        if (s != STATUS_OK) return s;
        addresses[i] = g->address;
    }
    for (uint32_t i = 0; i < m->n_variables; i++)
        for (uint32_t k = 0; k < m->variables[i].n_fixups; k++) {
            const struct ptx_fixup *f = &m->variables[i].fixups[k];
            uint64_t value;
            memcpy(&value, m->variables[i].initial + f->offset_bytes, sizeof value);
            value += addresses[f->variable];
            const enum status s =
                memory_write(p->memory, addresses[i] + f->offset_bytes, &value, sizeof value, e);
            if (s != STATUS_OK) return s;
        }
    return STATUS_OK;
}

static enum status add_kernel(struct program *p, const struct ptx_module *m, uint32_t index,
                              const uint64_t *addresses, struct error *e) {
    const struct ptx_function *k = &m->functions[index];
    struct program_function *f = &p->functions[p->n_functions];
    const enum status s = decode_image(m, index, addresses, &f->image, &p->bump, e);
    if (s != STATUS_OK) return s;
    f->image.max_threads = 1024;
    if (k->maxntid[0]) f->image.max_threads = k->maxntid[0] * k->maxntid[1] * k->maxntid[2];
    if (k->reqntid[0]) f->image.max_threads = k->reqntid[0] * k->reqntid[1] * k->reqntid[2];
    f->image.live_registers = liveness_most(k);
    f->params = bump_take(&p->bump, (k->n_params + 1u) * sizeof *f->params);
    if (!f->params) return no_memory(e);
    for (uint32_t i = 0; i < k->n_params; i++) {
        f->params[i] = k->params[i];
        f->params[i].name = bump_string(&p->bump, k->params[i].name, strlen(k->params[i].name));
        if (!f->params[i].name) return no_memory(e);
    }
    f->n_params = k->n_params;
    f->params_bytes = k->params_bytes;
    memcpy(f->reqntid, k->reqntid, sizeof f->reqntid);
    memcpy(f->maxntid, k->maxntid, sizeof f->maxntid);
    memcpy(f->cluster, k->cluster, sizeof f->cluster);
    f->ptx_version = m->version_major * 10 + m->version_minor;
    f->target = m->target;
    for (uint32_t i = 0; i < m->n_variables; i++)
        if (m->variables[i].space == PTX_SPACE_CONST)
            f->const_bytes += (uint32_t)m->variables[i].size_bytes;
    /* names are kept apart from the module, which may be freed */
    for (uint32_t i = 0; i < f->image.n_shared; i++) {
        const char *name = f->image.shared[i].name;
        f->image.shared[i].name = bump_string(&p->bump, name, strlen(name));
        if (!f->image.shared[i].name) return no_memory(e);
    }
    p->n_functions++;
    return STATUS_OK;
}

enum status program_create(const struct ptx_module *ptx, struct memory *memory,
                           uint32_t compute_capability, struct program **out, struct error *e) {
    *out = NULL;
    const bool specific = ptx->target_suffix == 'a' || ptx->target_suffix == 'f';
    if (compute_capability &&
        (specific ? ptx->target != compute_capability : ptx->target > compute_capability))
        return error_set(e, STATUS_INVALID, NULL, "PTX for sm_%u on a device of sm_%u", ptx->target,
                         compute_capability);
    struct program *p = calloc(1, sizeof *p);
    uint64_t *addresses = calloc(ptx->n_variables + 1u, sizeof *addresses);
    if (!p || !addresses) {
        free(p);
        free(addresses);
        return no_memory(e);
    }
    p->memory = memory;
    p->functions = bump_take(&p->bump, (ptx->n_functions + 1u) * sizeof *p->functions);
    enum status s = p->functions ? place_variables(p, ptx, addresses, e) : no_memory(e);
    for (uint32_t i = 0; s == STATUS_OK && i < ptx->n_functions; i++)
        if (ptx->functions[i].kernel && ptx->functions[i].defined)
            s = add_kernel(p, ptx, i, addresses, e);
    free(addresses);
    if (s != STATUS_OK) {
        program_destroy(p);
        return s;
    }
    *out = p;
    return STATUS_OK;
}

void program_destroy(struct program *p) {
    if (!p) return;
    for (uint32_t i = 0; i < p->n_globals; i++) {
        struct error e;
        if (!p->globals[i].address) continue;
        const enum status s = memory_free(p->memory, p->globals[i].address, &e);
        CHECK(s == STATUS_OK);
    }
    bump_free(&p->bump);
    free(p);
}

const struct program_function *program_find(const struct program *p, const char *name) {
    for (uint32_t i = 0; i < p->n_functions; i++)
        if (!strcmp(p->functions[i].image.name, name)) return &p->functions[i];
    return NULL;
}

enum status program_variable(const struct program *p, const char *name, uint64_t *address,
                             uint64_t *size_bytes) {
    *address = *size_bytes = 0;
    for (uint32_t i = 0; i < p->n_globals; i++) {
        if (!p->globals[i].address || strcmp(p->globals[i].name, name) != 0) continue;
        *address = p->globals[i].address;
        *size_bytes = p->globals[i].size_bytes;
        return STATUS_OK;
    }
    return STATUS_NOT_FOUND;
}

void program_describe(const struct program_function *f, struct program_info *out) {
    *out = (struct program_info){
        .name = f->image.name,
        .params = f->params,
        .n_params = f->n_params,
        .params_bytes = f->params_bytes,
        .static_shared_bytes = f->image.static_shared_bytes,
        .local_bytes = f->image.local_bytes,
        .const_bytes = f->const_bytes,
        .live_registers = f->image.live_registers,
        .max_threads = f->image.max_threads,
        .cluster = {f->cluster[0], f->cluster[1], f->cluster[2]},
        .ptx_version = f->ptx_version,
        .target = f->target,
    };
}
