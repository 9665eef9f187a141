/* cuda_backend_state.h: the inside of the CUDA backend, shared by its files and nobody else.
 *
 *   cuda_backend.c         opening, submitting, results
 *   cuda_backend_load.c    device memory: weights, KV pages, activations
 *   cuda_backend_graph.c   a plan as a line of kernels; kernels wanted; graphs
 *   cuda_backend_block.c   a step as the block that a graph reads
 *   cuda_backend_gate.c    page choices: what is kept of them, and their part of the block
 */
#ifndef LAC_JIT_CUDA_BACKEND_STATE_H
#define LAC_JIT_CUDA_BACKEND_STATE_H

#include <stdatomic.h>

#include "alloc/device_memory.h"
#include "core/gate_choice.h"
#include "core/nvtx.h"
#include "jit/compiler.h"
#include "jit/cuda_backend.h"
#include "jit/kernel_set.h"

enum {
    CUDA_HEAD_ROWS = 64,   /* outputs of one pass of head and sampler */
    CUDA_SHORT_SPAN = 8,   /* rows of a span that still go block by block */
    CUDA_MAX_BUCKETS = 20, /* 1, 2, 4, ... */
    CUDA_PARTIAL_BYTES = 256 << 20,
    CUDA_PINNED_LIST_BYTES = 16 << 20,
};

enum cuda_phase { CUDA_DECODE, CUDA_PREFILL, CUDA_PHASES };
/* Page choices in a step: none; rows attend to choices made before; choices and bounds are made. */
enum cuda_gates { CUDA_UNGATED, CUDA_GATED, CUDA_CHOOSING, CUDA_GATES };

/* A matrix on the device with what its products are. spec.matmul.input is decided per bucket. */
struct cuda_product {
    struct kernel_spec spec;
    uint64_t weights, bias; /* addresses; bias 0: none */
};

struct cuda_layer {
    bool qkv_at_once; /* one product that also rotates and writes K and V */
    uint32_t n_parts; /* else products of equal formats, into rows of q, k and v */
    struct cuda_product part[3];
    uint32_t part_at[3]; /* first element of the row */
    struct cuda_product o, gate, down;
    struct kernel_spec rope_kv, attention;
    bool attended_f32; /* attention cannot quantise what it gives: the norm kernel does */
    uint64_t attn_norm, attn_post_norm, ffn_norm, ffn_post_norm, q_norm, k_norm; /* 0: none */
    uint64_t kv;            /* of this layer in page 0 */
    uint64_t bounds, masks; /* the same, of key bounds; of page choices in entry 0 */
    uint64_t rope;
    uint32_t group;
};

/* Where things are in the block of a bucket, bytes from its start. */
struct cuda_block_layout {
    uint32_t counts, ids, position, row_pages, run, full, items, tiles, head_rows, head_run,
        samples, pages, copies, taps;
    uint32_t plain_bytes;                                     /* without what follows */
    uint32_t row_gates, seals, choices, anchors, slot_copies; /* with cfg.gates */
    uint32_t gated_bytes;                                     /* without copies and taps */
    uint32_t bytes;
};

/* Indices into the block's counts. */
enum {
    CUDA_COUNT_ROWS,
    CUDA_COUNT_TILES,
    CUDA_COUNT_ITEMS,                                       /* per group */
    CUDA_COUNT_COPIES = CUDA_COUNT_ITEMS + PLAN_MAX_GROUPS, /* per group */
    CUDA_COUNT_SEALS = CUDA_COUNT_COPIES + PLAN_MAX_GROUPS, /* per group */
    CUDA_COUNT_CHOICES = CUDA_COUNT_SEALS + PLAN_MAX_GROUPS,
    CUDA_COUNT_SLOT_COPIES,
    CUDA_COUNT_HEADS, /* per pass: rows, outputs */
};

struct cuda_bucket {
    uint32_t rows;      /* and outputs */
    uint32_t run_words; /* of a bitmap of rows */
    uint32_t max_items, max_pages, n_passes, max_seals, max_choices;
    struct cuda_block_layout at;
    struct cu_graph_exec *graph[CUDA_PHASES][2][CUDA_GATES]; /* [with copies and taps] */
    uint64_t bytes[CUDA_PHASES], flops[CUDA_PHASES];         /* that a full bucket moves and does */
};

/* A choice that a slot keeps; its pages are on the device. */
struct cuda_gate_entry {
    uint32_t at;                    /* its position + 1; 0: none */
    uint32_t recent_page, n_chosen; /* pages before the recent one */
};

/* Page choices (cfg.gates); zero without. */
struct cuda_gate {
    uint64_t bounds[PLAN_MAX_GROUPS]; /* page 0 */
    uint64_t bounds_bytes[PLAN_MAX_GROUPS];
    uint64_t masks, scores;
    uint32_t mask_stride, mask_entry; /* u16 of a (layer, KV head), of an entry */
    uint32_t score_stride;
    uint64_t slot_bytes;             /* masks of a slot */
    struct cuda_gate_entry *entries; /* [n_slots][GATE_RING] */
    uint64_t *anchors;               /* bitmap of pages, scratch */
};

struct cuda_backend {
    struct backend base;
    struct backend_config cfg;
    struct cuda_backend_options options;
    struct cuda cuda;
    struct cuda_device device;
    struct cu_context *context;
    struct cu_stream *stream;
    struct kernel_device chip;
    struct nvtx nvtx;
    struct pack *pack;
    struct store *store;
    struct compiler *compiler;
    uint32_t bits; /* of activations behind q, k and v */

    struct device_memory weights_memory, kv_memory, gate_memory, scratch_memory;
    struct pinned_memory pinned;
    uint64_t weights_bytes, kv_bytes, gate_bytes, scratch_bytes; /* of the device */
    struct budget budget;
    uint64_t kernel_bytes, graph_bytes;
    uint32_t layer_kernels[CUDA_PHASES]; /* of the layer with most, without copies and taps */

    struct cuda_layer *layers; /* [n_layers] */
    uint64_t embed;
    struct cuda_product head;
    float *host_norm;              /* the output norm as F32, for taps; NULL: none */
    uint64_t out_norm;             /* 0: none */
    uint64_t rope[PLAN_MAX_ROPES]; /* {cos, sin} [n_ctx][n_dims / 2] */
    uint64_t kv[PLAN_MAX_GROUPS];  /* page 0 */
    uint64_t page_bytes[PLAN_MAX_GROUPS];
    uint32_t n_pages[PLAN_MAX_GROUPS]; /* capacity */
    struct cuda_gate gate_of;

    /* activations */
    uint32_t max_rows; /* of the largest bucket */
    uint64_t block, x, q, qkv, attended, y, gate, planes, h, logits, sampler_scratch, answers;
    uint64_t partial, partial_ml, tickets, barrier;

    /* pinned: host and device address */
    uint8_t *host_block;
    struct kernel_answer *host_answers;
    uint64_t *host_bitmaps;
    uint32_t *host_biases;
    float *host_taps; /* [max_tap_rows][d_model] */
    uint64_t bitmaps, biases, taps;
    uint32_t max_bitmaps, max_biases, max_tap_rows, max_taps, max_copies;

    uint32_t n_buckets, n_graphs;
    struct cuda_bucket buckets[CUDA_MAX_BUCKETS];
    uint32_t tile_rows; /* of prefill's tiles: what every layer's kernel takes */
    uint64_t *hashes;   /* of the kernels used */
    uint32_t n_hashes, room_hashes;

    /* the step in hand */
    struct step *step, *finished;
    const struct cuda_bucket *bucket;
    uint32_t *row_span;   /* [max_rows] */
    uint8_t *needed;      /* [max_rows] */
    uint32_t *last_layer; /* [max_profiles] */
    uint16_t *n_run_layers;
    atomic_bool done; /* by the host function */
    atomic_ullong done_ns;
    bool lost;
};

/* cuda_backend_load.c, in the order of calls: layouts of buckets and their blocks, max_rows and the
 * limits; sizes and the budget, with made-up addresses; memory, addresses and contents. */
void cuda_plan_buckets(struct cuda_backend *b);
void cuda_plan_memory(struct cuda_backend *b, uint64_t granularity_bytes); /* n_pages is set */
uint64_t cuda_pinned_bytes(const struct cuda_backend *b);
enum status cuda_load(struct cuda_backend *b, struct error *e);

/* cuda_backend_graph.c; cuda_describe writes the specs of every product, without addresses. */
void cuda_describe(struct cuda_backend *b);
enum status cuda_request_kernels(struct cuda_backend *b, struct error *e);
/* What a full bucket moves and does, and the kernels of a layer. */
enum status cuda_count_work(struct cuda_backend *b, struct error *e);
enum status cuda_build_graphs(struct cuda_backend *b, struct error *e);
/* The step in the block, kernel by kernel (options.no_graphs). */
enum status cuda_launch_step(struct cuda_backend *b, enum cuda_phase phase, bool extras,
                             enum cuda_gates gates, struct error *e);

/* cuda_backend_block.c: fills the block and chooses bucket, phase and graph. UNSUPPORTED, FULL: see
 * cuda_backend.h. */
enum status cuda_block_fill(struct cuda_backend *b, struct step *s, enum cuda_phase *phase,
                            bool *extras, enum cuda_gates *gates);
/* The block of the step in hand, by parts. */
struct cuda_block {
    const struct cuda_bucket *bucket;
    uint32_t *counts, *ids, *position, *row_pages, *run, *full, *tiles, *head_rows, *head_run,
        *pages, *copies, *taps, *seals, *anchors, *slot_copies;
    struct attention_item *items;
    struct attention_gate *row_gates;
    struct page_choice *choices;
    struct kernel_sample *samples;
};
/* cuda_backend_gate.c. Sizes of a bucket's parts; the walk over memory; what a step chooses, keeps
 * and looks up, after rows and pages are in the block. */
void cuda_gate_plan_bucket(const struct cuda_backend *b, struct cuda_bucket *k);
enum cuda_gates cuda_gate_fill(struct cuda_backend *b, const struct step *s, struct cuda_block *k);
/* What the device answered, into the step. */
void cuda_block_read(struct cuda_backend *b, struct step *s);

#endif
