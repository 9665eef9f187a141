#include "models/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/arch_list.h"

struct model {
    struct gguf *gguf;
    char *path;
    struct plan plan;
    struct layer_plan layers[PLAN_MAX_LAYERS];
    double inv_freq[PLAN_MAX_ROPES][512]; /* head size is at most 1024 */
};

static const struct arch ARCHES[] = {
#define X(name, build) {name, build},
    ARCH_LIST(X)
#undef X
};

const struct arch *arch_find(const char *name, size_t len) {
    for (size_t i = 0; i < sizeof ARCHES / sizeof ARCHES[0]; i++)
        if (strlen(ARCHES[i].name) == len && memcmp(ARCHES[i].name, name, len) == 0)
            return &ARCHES[i];
    return NULL;
}

const char *arch_names(void) {
#define X(name, build) " " name
    return &ARCH_LIST(X)[1];
#undef X
}

static enum status build(struct model *m, uint32_t n_ctx, struct error *e) {
    struct gguf_string name;
    if (!gguf_str(m->gguf, "general.architecture", &name))
        return error_set(e, STATUS_CORRUPT, "general.architecture",
                         "key general.architecture is missing or no string");
    const struct arch *arch = arch_find(name.data, name.len);
    if (arch == NULL)
        return error_set(e, STATUS_UNSUPPORTED, "general.architecture",
                         "architecture \"%.*s\" is not supported (these are: %s)",
                         (int)(name.len < 32 ? name.len : 32), name.data, arch_names());
    struct plan *p = &m->plan;
    p->layers = m->layers;
    struct arch_builder b = {.g = m->gguf, .plan = p, .n_ctx = n_ctx, .error = e};
    for (int i = 0; i < PLAN_MAX_ROPES; i++) b.inv_freq[i] = m->inv_freq[i];
    snprintf(b.prefix, sizeof b.prefix, "%s", arch->name);
    snprintf(p->architecture, sizeof p->architecture, "%s", arch->name);
    struct gguf_string title = {0};
    if (gguf_str(m->gguf, "general.name", &title))
        snprintf(p->name, sizeof p->name, "%.*s", (int)(title.len < 100 ? title.len : 100),
                 title.data);
    p->n_layers = arch_u32(&b, "block_count", 1, PLAN_MAX_LAYERS);
    if (b.n_ctx == 0) b.n_ctx = arch_u32_or(&b, "context_length", 1, 1 << 26, 1);
    if (b.status == STATUS_OK) arch->build(&b);
    if (b.status == STATUS_OK) arch_group(&b);
    if (b.status == STATUS_OK) arch_check_all_read(&b);
    return b.status;
}

enum status model_open(const char *path, uint32_t n_ctx, struct model **out, struct error *e) {
    *out = NULL;
    struct model *m = calloc(1, sizeof *m);
    if (m == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the model's plan");
    m->path = strdup(path);
    enum status s = m->path != NULL ? gguf_open(path, &m->gguf, e)
                                    : error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
    if (s == STATUS_OK) s = build(m, n_ctx, e);
    if (s != STATUS_OK) {
        model_close(m);
        return s;
    }
    *out = m;
    return STATUS_OK;
}

void model_close(struct model *m) {
    if (m == NULL) return;
    if (m->gguf != NULL) gguf_close(m->gguf);
    free(m->path);
    free(m);
}

const struct plan *model_plan(const struct model *m) {
    return &m->plan;
}
struct gguf *model_gguf(struct model *m) {
    return m->gguf;
}
const char *model_path(const struct model *m) {
    return m->path;
}
