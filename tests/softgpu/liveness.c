#include "tests/softgpu/liveness.h"

#include <stdlib.h>
#include <string.h>

struct flow {
    const struct ptx_function *f;
    uint32_t words;
    uint64_t *in; /* [n_instructions + 1][words] live before it */
};

static void set(uint64_t *bits, uint32_t reg) {
    bits[reg / 64] |= UINT64_C(1) << reg % 64;
}
static void clear(uint64_t *bits, uint32_t reg) {
    bits[reg / 64] &= ~(UINT64_C(1) << reg % 64);
}

static void use(uint64_t *bits, const struct ptx_operand *o) {
    if (o->kind == PTX_OPERAND_REGISTER ||
        (o->kind == PTX_OPERAND_ADDRESS && o->base_kind == PTX_OPERAND_REGISTER))
        set(bits, o->reg);
    for (uint32_t i = 0; i < o->n_elements; i++) use(bits, &o->elements[i]);
}

static void define(uint64_t *bits, const struct ptx_operand *o) {
    if (o->kind == PTX_OPERAND_REGISTER) clear(bits, o->reg);
    if (o->reg2 != UINT32_MAX && o->kind != PTX_OPERAND_ADDRESS) clear(bits, o->reg2);
    for (uint32_t i = 0; i < o->n_elements; i++) define(bits, &o->elements[i]);
}

/* Is the first operand written? (An address in its place is read.) */
static bool has_target(const struct ptx_instruction *in) {
    static const char *const none[] = {"bra",  "brx",  "nanosleep", "setmaxnreg",
                                       "trap", "exit", "ret"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (!strcmp(in->name, none[i])) return false;
    if (!strcmp(in->name, "bar") || !strcmp(in->name, "barrier")) {
        for (uint32_t i = 0; i < in->n_suffixes; i++)
            if (!strcmp(in->suffix[i], "red")) return true;
        return false;
    }
    return in->n_operands > 0 && in->operand[0].kind != PTX_OPERAND_ADDRESS;
}

static bool ends(const struct ptx_instruction *in) {
    if (in->guarded) return false;
    return !strcmp(in->name, "bra") || !strcmp(in->name, "brx") || !strcmp(in->name, "ret") ||
           !strcmp(in->name, "exit") || !strcmp(in->name, "trap");
}

static void join(struct flow *w, uint64_t *out, uint32_t target) {
    const uint64_t *in = w->in + (size_t)target * w->words;
    for (uint32_t i = 0; i < w->words; i++) out[i] |= in[i];
}

static bool step(struct flow *w, uint32_t i, uint64_t *live) {
    const struct ptx_instruction *in = &w->f->instructions[i];
    memset(live, 0, w->words * sizeof *live);
    if (!ends(in)) join(w, live, i + 1);
    for (uint32_t k = 0; k < in->n_operands; k++) {
        const struct ptx_operand *o = &in->operand[k];
        if (o->kind == PTX_OPERAND_LABEL) join(w, live, o->index);
        if (o->kind != PTX_OPERAND_TARGETS || !w->f->targets[o->index].labels) continue;
        for (uint32_t t = 0; t < w->f->targets[o->index].n; t++)
            join(w, live, w->f->targets[o->index].index[t]);
    }
    const bool target = has_target(in);
    if (target && !in->guarded) define(live, &in->operand[0]);
    for (uint32_t k = target ? 1 : 0; k < in->n_operands; k++) use(live, &in->operand[k]);
    if (in->guarded) set(live, in->guard);
    uint64_t *old = w->in + (size_t)i * w->words;
    const bool changed = memcmp(old, live, w->words * sizeof *live) != 0;
    memcpy(old, live, w->words * sizeof *live);
    return changed;
}

uint32_t liveness_most(const struct ptx_function *f) {
    struct flow w = {.f = f, .words = f->n_registers / 64 + 1};
    w.in = calloc(((size_t)f->n_instructions + 1) * w.words, sizeof *w.in);
    uint64_t *live = calloc(w.words, sizeof *live);
    uint32_t most = 0;
    for (bool changed = w.in && live; changed;) {
        changed = false;
        for (uint32_t i = f->n_instructions; i-- > 0;) changed |= step(&w, i, live);
    }
    for (uint32_t i = 0; w.in && live && i < f->n_instructions; i++) {
        uint32_t n = 0;
        for (uint32_t word = 0; word < w.words; word++)
            for (uint64_t bits = w.in [(size_t)i * w.words + word]; bits; bits &= bits - 1) {
                const uint32_t r = word * 64 + (uint32_t)__builtin_ctzll(bits);
                const enum ptx_type t = (enum ptx_type)f->register_type[r];
                n += t == PTX_PRED ? 0 : (ptx_type_bytes(t) + 3) / 4;
            }
        if (n > most) most = n;
    }
    free(w.in);
    free(live);
    return most;
}
