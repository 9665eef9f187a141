/* cpu_state.h: the CPU backend's memory, shared by its files and nobody else.
 *
 * A step runs phase by phase on the worker pool; within a phase tasks share nothing that is
 * written. Rows are handled in two numberings: `row`, as in the step (x, positions), and the
 * compact index `i` into `rows`, the rows that the current layer runs: those that run it whole
 * first (n_full), then those of which only K and V are wanted. Every activation buffer but x is
 * indexed by i.
 */
#ifndef LAC_CORE_CPU_CPU_STATE_H
#define LAC_CORE_CPU_CPU_STATE_H

#include <stdatomic.h>

#include "alloc/page_pool.h"
#include "core/cpu/cpu_backend.h"
#include "core/cpu/matmul.h"
#include "core/cpu/vector.h"
#include "core/gate_choice.h"
#include "core/heads.h"
#include "core/worker_pool.h"

enum {
    ROWS_PER_TASK = 8, /* of row-wise phases */
    HEAD_ROWS = 32,    /* logits kept at once */
    ATTENTION_TILE_ROWS = 16,
    PARTIAL_BYTES = 8 << 20, /* block results waiting to be merged, at most */
};

/* Heads that steps may name. */
enum { CPU_EPOCHS = 8 };
struct cpu_epoch {
    uint64_t epoch; /* 0: free */
    const struct heads *heads;
};

/* What a matrix reads. The numerics class gives each input its format. */
enum cpu_input { INPUT_ATTENTION, INPUT_O, INPUT_FFN, INPUT_DOWN, INPUT_HEAD, INPUT_COUNT };

/* One matrix and how its products are cut into tasks. */
struct matmul_job {
    const struct packed_matrix *matrix;
    struct activations x;
    const float *bias;
    float *out;
    size_t out_stride;
    uint32_t panels_per_task, rows_per_task, n_panel_tasks, first_task;
};

struct cpu_expert {
    struct packed_matrix gate, up, down;
};

struct cpu_layer {
    const struct layer_plan *plan;
    struct kv_layout kv;
    struct packed_matrix q, k, v, o, gate, up, down, router;
    struct cpu_expert *experts; /* [n_experts], or NULL */
    const float *attn_norm, *attn_post_norm, *ffn_norm, *ffn_post_norm, *q_norm, *k_norm;
    const float *q_bias, *k_bias, *v_bias, *o_bias;
    bool q_norm_whole, k_norm_whole; /* over all heads at once */
};

/* A block of the plan; its layer stands behind the model's in `layers`. */
struct cpu_block {
    const struct block_plan *plan; /* NULL: none of this kind */
    const struct cpu_layer *layer;
    struct packed_matrix in, head;
    const float *out_norm;
};

/* A span that is guessing: `row` of the step's rows holds its newest position. */
struct cpu_chain {
    struct span *span;
    uint32_t row;
    uint32_t id; /* the newest token: drawn, then guessed */
    float reach;
};

/* Consecutive rows of one span: compact indices [first, first + n). Gated rows of a tile share one
 * choice of pages. */
struct attention_tile {
    const uint64_t *chosen; /* [KV head][gate_words]: bit p, page p; NULL: all pages */
    uint32_t n_chosen;      /* of every KV head */
    uint32_t recent_page;   /* this page and all behind it are attended to besides */
    uint32_t first, n;
    uint32_t span;
    uint32_t block0,
        n_blocks;        /* blocks that any of its rows sees; absolute, if all pages are seen */
    uint32_t first_slot; /* of its partial results, when split */
    uint32_t first_task;
};

struct cpu_backend {
    struct backend base;
    struct backend_config cfg;
    const struct matmul_kernels *mul;
    const struct vector_kernels *vec;
    enum activation_format format[INPUT_COUNT];
    uint32_t n_workers;
    uint32_t ff_rows; /* rows of the feed-forward buffers: max_rows, times the experts used */

    struct cpu_layer *layers; /* [n_layers], then those of the blocks */
    struct cpu_block blocks[BLOCK_KIND_COUNT];
    struct packed_matrix head;
    bool tied;
    const float *out_norm, *head_bias;
    float *ones; /* [d_model]: the norm without weights */

    /* activations */
    float *x;        /* [max_rows, d_model], by row */
    float *normed;   /* [max_rows, d_model] */
    float *q;        /* [max_rows, d_attention_max] */
    float *q_packed; /* [max_rows][n_kv_heads][head_dim][group]: scaled, as attention reads it */
    float *k, *v;    /* [max_rows, kv_max] */
    float *attended; /* [max_rows, d_attention_max] */
    float *state_m, *state_l;    /* [max_rows, n_heads]: running maximum and sum of attention */
    float *gate, *up;            /* [ff_rows, d_ff_max] */
    float *projected;            /* [ff_rows, d_model] */
    uint8_t *quantised;          /* [ff_rows] rows of the widest input */
    uint8_t *gathered;           /* the same, experts' rows; NULL without experts */
    float *gathered_f32;         /* [ff_rows, d_model], experts with F32 inputs */
    float *router_out;           /* [max_rows, n_experts_max] */
    uint32_t *expert_of;         /* [ff_rows] by (i, rank) */
    float *expert_weight;        /* [ff_rows] by (i, rank) */
    uint32_t *expert_slot;       /* [ff_rows] by (i, rank): row of the experts' buffers */
    uint32_t *expert_row;        /* [ff_rows] by that row: i */
    float *rope[PLAN_MAX_ROPES]; /* [max_rows][2][n_dims]: cosines, then signed sines */
    float *logits;               /* [HEAD_ROWS, n_vocab] */
    /* gates; NULL and 0 without cfg.gates */
    uint8_t
        *bounds[PLAN_MAX_GROUPS]; /* [page]: {least, greatest} F16 [layer][KV head][2][head_dim] */
    size_t bounds_page_bytes[PLAN_MAX_GROUPS];
    uint64_t *gate_bits;  /* [n_slots][GATE_RING][n_layers][gate_heads][gate_words] */
    uint32_t *gate_at;    /* [n_slots][GATE_RING]: position of the choice + 1; 0: none */
    uint8_t *gate_scores; /* [n_workers] of gate_score_bytes */
    size_t gate_score_bytes;
    uint32_t gate_heads, gate_words; /* most KV heads; words of a bitmap of pages */
    uint32_t *gate_rows;             /* [max_rows] of the phase at hand */
    uint32_t n_gate_rows;
    struct cpu_epoch epochs[CPU_EPOCHS];
    float *look_sum;     /* [max_looks][HEADS_MAX_LABELS] */
    uint32_t *look_rank; /* [max_looks]: heads that have looked */
    uint8_t *span_left;  /* [max_spans]: it has ended at a decision point */
    uint32_t look_layer; /* of the phase at hand */
    float *partial_acc, *partial_m, *partial_l;
    uint32_t n_partial, head_dim_max;
    /* blocks; NULL without */
    float *pair;       /* [max_rows, 2 d_model]: state and embedding, by i */
    uint32_t *next_id; /* [max_rows], by row: the token behind it, where it is known */
    struct cpu_chain chains[STEP_CHAINS];
    uint32_t n_chains;
    bool guessing; /* the blocks are at work: no page choices are made */

    uint8_t *worker_scratch; /* [n_workers] */
    size_t worker_scratch_bytes;
    uint8_t *sample_scratch; /* [n_samplers] */
    size_t sample_scratch_bytes;
    uint32_t n_samplers;

    /* the step in hand */
    struct step *step;
    struct step *finished;
    const struct span **row_span; /* [max_rows], by row */
    uint32_t *position;           /* [max_rows], by row */
    uint8_t *needed;              /* [max_rows], by row: somebody reads its last state */
    uint32_t *last_layer;         /* [max_profiles] */
    uint32_t *n_run_layers;       /* [max_profiles] */
    uint8_t **page_data;          /* [max_pages], beside step.pages */
    uint32_t *rows;               /* [max_rows] */
    uint32_t n_rows, n_full;
    uint32_t *row_tile; /* [max_rows], by i */
    struct attention_tile *tiles;
    uint32_t n_tiles;
    bool split;
    uint32_t pass; /* of the walk over blocks */
    uint32_t blocks_per_pass;
    uint32_t blocks_per_task, n_split_tasks; /* under `split` */
    const struct cpu_layer *layer;
    struct matmul_job *jobs; /* [max(8, 2 n_experts_max)] */
    uint32_t n_jobs;
    struct cpu_phases *phases; /* NULL: not counted */
    uint32_t head_first_output, head_last_output, head_n_rows;
    uint32_t head_row[HEAD_ROWS];
};

/* Runs a phase. */
#define phase(b, fn, n_tasks) phase_named(b, #fn, fn, n_tasks)
void phase_named(struct cpu_backend *b, const char *name, worker_fn *fn, uint32_t n_tasks);
/* The entry of that name, or NULL: nobody counts. */
struct cpu_phase *phase_count(struct cpu_backend *b, const char *name);
static inline uint32_t row_tasks(uint32_t n_rows) {
    return (n_rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK;
}
static inline void *scratch_of(struct cpu_backend *b, uint32_t worker) {
    return b->worker_scratch + worker * b->worker_scratch_bytes;
}

/* products.c: jobs are added, then run together; tasks of all of them form one phase. */
void products_begin(struct cpu_backend *b);
void products_add(struct cpu_backend *b, enum cpu_input in, const struct packed_matrix *m,
                  const float *f32, const uint8_t *quantised, uint32_t n_rows, const float *bias,
                  float *out, size_t out_stride);
/* How each job is cut: all of one phase are looked at together. Returns the number of tasks. */
uint32_t products_cut(struct cpu_backend *b, uint32_t n_jobs);
/* Panels a task, near `want`, with which the busiest worker has least to do when the first jobs,
 * whose panels cost the same, are handed out. Their rows_per_task are set. */
uint32_t products_even(const struct cpu_backend *b, uint32_t n_jobs, uint32_t want);
void products_run(struct cpu_backend *b);
/* Enters the work of the jobs at hand under that phase, where somebody counts. */
void products_count(struct cpu_backend *b, const char *name);
/* The part of job `j` that `task` is: sets the ranges and computes it. */
struct job_range {
    uint32_t row0, row1, panel0, panel1;
};
struct job_range job_range(const struct matmul_job *j, uint32_t task);
void job_compute(const struct cpu_backend *b, const struct matmul_job *j, struct job_range r);
/* Whether the matrix reads quantised rows; if so, a row of k of that input takes this many bytes.
 */
bool reads_quantised(const struct cpu_backend *b, enum cpu_input in, const struct packed_matrix *m);
size_t input_row_bytes(const struct cpu_backend *b, enum cpu_input in, uint32_t k);
/* x[k] into row i of b->quantised. */
void quantise_row(struct cpu_backend *b, enum cpu_input in, const float *x, uint32_t k, uint32_t i);

/* attention.c: o of rows [0, n_full) into `attended`, not yet divided by l where tiles were split;
 * attention_finish does that row by row. */
void attention_run(struct cpu_backend *b);
void attention_finish(struct cpu_backend *b, uint32_t i);

/* gate.c. gate_prepare: before the layers. gate_bounds: keys of the layer's rows are written.
 * gate_choose: their queries are there; enters the choices that attention_run looks up. */
void gate_prepare(struct cpu_backend *b);
void gate_bounds(struct cpu_backend *b);
void gate_choose(struct cpu_backend *b);
const struct gate_policy *gate_of(const struct cpu_backend *b, uint32_t row);
uint64_t *gate_chosen(const struct cpu_backend *b, uint32_t slot, uint32_t choice_position);
uint32_t gate_n_chosen(const struct cpu_backend *b, const uint64_t *chosen);

/* labels.c. labels_prepare: before the layers; labels_run: after each. */
enum status labels_publish(struct cpu_backend *b, uint64_t epoch, const struct heads *heads,
                           struct error *e);
void labels_retire(struct cpu_backend *b, uint64_t epoch);
const struct heads *labels_heads(const struct cpu_backend *b, uint64_t epoch); /* NULL: none */
void labels_prepare(struct cpu_backend *b);
void labels_run(struct cpu_backend *b, uint32_t layer);

/* experts.c: the feed-forward of a mixture layer: from normed, back into
 * normed [n_full, d_model]. */
void experts_run(struct cpu_backend *b);

/* layers.c. layer_run: b->layer over b->rows. */
void layers_begin(struct cpu_backend *b); /* embeddings and rotary tables */
void layers_run(struct cpu_backend *b);
void layer_run(struct cpu_backend *b);
void embed_row(const struct cpu_backend *b, uint32_t id, float *x);
void rope_rows(struct cpu_backend *b, uint32_t row); /* of the row's position */

/* draft_block.c. blocks_guess: after the outputs; x is used up. exit_block_keys: after that many
 * layers, the rows' states are there. */
bool blocks_take(const struct cpu_backend *b, const struct span *span);
void blocks_guess(struct cpu_backend *b);
void exit_block_keys(struct cpu_backend *b, uint32_t n_layers_run);

/* outputs.c: the head and the sampler; taps after a layer. */
void outputs_run(struct cpu_backend *b);
void taps_run(struct cpu_backend *b, uint32_t layer);

#endif
