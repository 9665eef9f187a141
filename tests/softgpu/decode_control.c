/* Control flow; PTX ISA 9.7.12, 9.7.18. */
#include "tests/softgpu/decode.h"

static void decode_bra(struct decoder *d) {
    (void)suffix_take(d, "uni"); /* a hint here; lanes that part anyway are handled */
    const struct ptx_operand *o = operand(d, 0);
    if (o->kind != PTX_OPERAND_LABEL) decode_bad(d, "a label was expected");
    emit(d, op_branch, EXEC_CLASS_CONTROL, RULE_NONE);
    patch_target(d, d->image->n_ops - 1, o->index);
}

static void decode_brx(struct decoder *d) {
    if (!suffix_take(d, "idx")) decode_bad(d, "only brx.idx is known here");
    (void)suffix_take(d, "uni");
    const struct ptx_operand *list = operand(d, 1);
    if (list->kind != PTX_OPERAND_TARGETS || !d->function->targets[list->index].labels)
        decode_bad(d, "a list of labels was expected");
    const struct ptx_targets *t = &d->function->targets[list->index];
    if (t->n > 255) decode_fail(d, STATUS_TOO_LARGE, "more than 255 branch targets");
    const int32_t a = place_source(d, operand(d, 0), PTX_B32);
    uint32_t first = d->image->n_places;
    for (uint32_t i = 0; i < t->n; i++) {
        const int32_t target = (int32_t)t->index[i];
        const uint32_t at = list_add(d, &target, 1);
        if (i == 0) first = at;
    }
    struct op *o = emit(d, op_branch_table, EXEC_CLASS_CONTROL, RULE_NONE);
    o->a = a;
    o->list = first;
    o->n = (uint8_t)t->n;
}

static int32_t call_area(struct decoder *d, const struct ptx_operand *o, uint32_t *bytes) {
    if (o->kind != PTX_OPERAND_VARIABLE || o->symbol_kind != PTX_SYMBOL_LOCAL ||
        d->function->variables[o->index].space != PTX_SPACE_PARAM)
        decode_bad(d, "an argument that is no .param variable");
    *bytes = (uint32_t)d->function->variables[o->index].size_bytes;
    return d->frame->variables[o->index];
}

static void copy_area(struct decoder *d, int32_t to, int32_t from, uint32_t bytes) {
    struct op *o = emit(d, op_copy_area, EXEC_CLASS_MOVE, RULE_NONE);
    o->d = to;
    o->a = from;
    o->imm = bytes;
    o->target = (bytes + 15) / 16 * 16;
}

static void decode_call(struct decoder *d) {
    (void)suffix_take(d, "uni");
    const struct ptx_operand *returns = NULL, *callee = NULL, *arguments = NULL;
    for (uint32_t i = 0; i < d->in->n_operands; i++) {
        const struct ptx_operand *o = operand(d, i);
        if (o->kind == PTX_OPERAND_FUNCTION && !callee)
            callee = o;
        else if (o->kind == PTX_OPERAND_PARAMS && !callee && !returns)
            returns = o;
        else if (o->kind == PTX_OPERAND_PARAMS && callee && !arguments)
            arguments = o;
        else
            decode_bad(d, "indirect calls are not known here");
    }
    if (!callee) decode_bad(d, "indirect calls are not known here");
    const struct ptx_function *f = &d->module->functions[callee->index];
    const struct frame *to = d->frames;
    while (to && to->index != callee->index) to = to->next;
    if (!to || f->kernel || (arguments ? arguments->n_elements : 0) != f->n_params ||
        (returns ? returns->n_elements : 0) != f->n_returns)
        decode_bad(d, "arguments do not fit the function");
    for (uint32_t i = 0; i < f->n_params; i++) {
        uint32_t bytes;
        const int32_t from = call_area(d, &arguments->elements[i], &bytes);
        if (bytes != f->params[i].size_bytes) decode_bad(d, "an argument's size differs");
        copy_area(d, to->params[i], from, bytes);
    }
    struct op *o = emit(d, op_call, EXEC_CLASS_CONTROL, RULE_NONE);
    o->target = callee->index;
    o->d = to->return_to;
    emit_join(d);
    for (uint32_t i = 0; i < f->n_returns; i++) {
        uint32_t bytes;
        const int32_t into = call_area(d, &returns->elements[i], &bytes);
        if (bytes != f->returns[i].size_bytes) decode_bad(d, "a result's size differs");
        copy_area(d, into, to->params[f->n_params + i], bytes);
    }
}

static void decode_ret(struct decoder *d) {
    (void)suffix_take(d, "uni");
    const int32_t a = d->frame->return_to;
    emit(d, d->function->kernel ? op_exit : op_return, EXEC_CLASS_CONTROL, RULE_NONE)->a = a;
}
static void decode_exit(struct decoder *d) {
    emit(d, op_exit, EXEC_CLASS_CONTROL, RULE_NONE);
}
static void decode_trap(struct decoder *d) {
    emit(d, op_trap, EXEC_CLASS_CONTROL, RULE_NONE);
}
static void decode_nop(struct decoder *d) {
    d->used = ~0u;
    emit(d, op_nop, EXEC_CLASS_CONTROL, RULE_NONE);
}

const struct decode_entry decode_control[] = {
    {"bra", decode_bra},   {"brx", decode_brx},     {"call", decode_call},
    {"ret", decode_ret},   {"exit", decode_exit},   {"trap", decode_trap},
    {"brkpt", decode_nop}, {"pmevent", decode_nop}, {"setmaxnreg", decode_nop},
    {NULL, NULL},
};
