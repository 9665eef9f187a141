#include "models/block_plan.h"

#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "models/shortlist.h"

static const uint32_t SECTIONS[BLOCK_KIND_COUNT] = {
    [BLOCK_DRAFT] = SIDECAR_DRAFT_BLOCK,
    [BLOCK_EXIT] = SIDECAR_EXIT_BLOCKS,
};

static enum status view(struct learned_block *b, const struct sidecar_section *x,
                        enum block_kind kind, const struct plan *p, struct error *e) {
    const enum status st = learned_block_view(b, x->data, x->bytes, p, e);
    if (st != STATUS_OK) return st;
    const bool fits = kind == BLOCK_DRAFT ? b->n_inputs == 2 && b->after_layer == p->n_layers
                                          : b->n_inputs == 1 && b->after_layer < p->n_layers;
    if (!fits)
        return error_set(e, STATUS_CORRUPT, "block",
                         "side-car: the %s of %s is another kind of block",
                         sidecar_kind_name(x->kind), x->key);
    return STATUS_OK;
}

/* The rows of the output matrix that the list names, side by side. */
static enum status gather_head(const struct plan *p, const struct shortlist *list,
                               struct block_plan_memory *mem, struct error *e) {
    const struct tensor *from = p->head.t;
    const size_t row_bytes = tensor_row_bytes(tensor_format(from->type), from->dim[0]);
    mem->head_bytes = list->n_ids * row_bytes;
    mem->head_rows = malloc(mem->head_bytes);
    if (mem->head_rows == NULL)
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for a block's head");
    for (uint32_t i = 0; i < list->n_ids; i++)
        memcpy((uint8_t *)mem->head_rows + i * row_bytes,
               (const uint8_t *)from->data + (p->head.row0 + list->ids[i]) * row_bytes, row_bytes);
    mem->head = (struct tensor){.name = "block_head",
                                .type = from->type,
                                .n_dims = 2,
                                .dim = {from->dim[0], list->n_ids, 1, 1},
                                .bytes = mem->head_bytes,
                                .data = mem->head_rows};
    return STATUS_OK;
}

static struct weight whole(const struct learned_block *b, enum train_tensor t) {
    const struct tensor *x = &b->tensors[t];
    return (struct weight){x->dim[1] > 0 ? x : NULL, 0, (uint32_t)x->dim[1]};
}

static void fill(struct plan *p, enum block_kind kind, const struct shortlist *list,
                 const struct block_plan_memory *mem) {
    const struct learned_block *b = &mem->blocks[kind];
    const struct layer_plan *like = &p->layers[b->like_layer];
    struct block_plan *out = &p->blocks[kind];
    *out = (struct block_plan){
        .n_ids = list->n_ids,
        .ids = list->ids,
        .after_layer = b->after_layer,
        .in = whole(b, TRAIN_IN),
        .out_norm = &b->tensors[TRAIN_NORM3],
        .head = {&mem->head, 0, list->n_ids},
        .layer = {.group = (uint8_t)(p->n_groups - 1),
                  .group_layer = (uint16_t)p->groups[p->n_groups - 1].n_layers++,
                  .rope = like->rope,
                  .n_heads = like->n_heads,
                  .n_kv_heads = like->n_kv_heads,
                  .head_dim = like->head_dim,
                  .window = BLOCK_WINDOW,
                  .attn_scale = like->attn_scale,
                  .attn_norm = &b->tensors[TRAIN_NORM1],
                  .ffn_norm = &b->tensors[TRAIN_NORM2],
                  .q = whole(b, TRAIN_Q),
                  .k = whole(b, TRAIN_K),
                  .v = whole(b, TRAIN_V),
                  .o = whole(b, TRAIN_O),
                  .gate = whole(b, TRAIN_GATE),
                  .up = whole(b, TRAIN_UP),
                  .down = whole(b, TRAIN_DOWN),
                  .d_ff = like->d_ff,
                  .residual_scale = 1},
    };
}

static const struct sidecar_section *first_of(const struct sidecar *s, uint32_t kinds) {
    for (int k = 0; k < BLOCK_KIND_COUNT; k++) {
        const struct sidecar_section *x =
            kinds >> k & 1 ? sidecar_find(s, SECTIONS[k], NULL) : NULL;
        if (x != NULL) return x;
    }
    return NULL;
}

enum status block_plan_add(struct plan *p, const struct sidecar *s, uint32_t kinds,
                           struct block_plan_memory *mem, struct error *e) {
    memset(mem, 0, sizeof *mem);
    const struct sidecar_section *first = first_of(s, kinds);
    if (first == NULL) return STATUS_OK;
    const struct sidecar_section *ids = sidecar_find(s, SIDECAR_SHORTLIST, first->key);
    if (ids == NULL)
        return error_set(e, STATUS_NOT_FOUND, "shortlist",
                         "side-car: %s has a block but no shortlist", first->key);
    struct shortlist list;
    enum status st = shortlist_view(&list, ids->data, ids->bytes, p->n_vocab, e);
    bool has[BLOCK_KIND_COUNT] = {false};
    for (int k = 0; st == STATUS_OK && k < BLOCK_KIND_COUNT; k++) {
        const struct sidecar_section *x =
            kinds >> k & 1 ? sidecar_find(s, SECTIONS[k], first->key) : NULL;
        has[k] = x != NULL;
        if (has[k]) st = view(&mem->blocks[k], x, (enum block_kind)k, p, e);
    }
    const struct train_shape *a = &mem->blocks[BLOCK_DRAFT].shape,
                             *b = &mem->blocks[BLOCK_EXIT].shape;
    const struct train_shape *shape = has[BLOCK_DRAFT] ? a : b;
    if (st == STATUS_OK && has[BLOCK_DRAFT] && has[BLOCK_EXIT] &&
        (a->n_kv_heads != b->n_kv_heads || a->head_dim != b->head_dim))
        st = error_set(e, STATUS_UNSUPPORTED, "block", "side-car: blocks of different KV heads");
    if (st == STATUS_OK && p->n_groups == PLAN_MAX_GROUPS)
        st = error_set(e, STATUS_UNSUPPORTED, "block", "side-car: no KV group is left for blocks");
    if (st == STATUS_OK) st = gather_head(p, &list, mem, e);
    if (st != STATUS_OK) {
        block_plan_free(mem);
        return st;
    }
    p->groups[p->n_groups++] = (struct kv_group){
        .n_kv_heads = shape->n_kv_heads, .head_dim = shape->head_dim, .window = BLOCK_WINDOW};
    for (int k = 0; k < BLOCK_KIND_COUNT; k++)
        if (has[k]) fill(p, (enum block_kind)k, &list, mem);
    return STATUS_OK;
}

void block_plan_free(struct block_plan_memory *mem) {
    free(mem->head_rows);
    memset(mem, 0, sizeof *mem);
}
