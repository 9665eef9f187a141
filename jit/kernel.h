/* kernel.h: the GPU kernels as data: spec -> config -> text -> launch geometry. No device, no
 * driver and no compiler is needed for any of it.
 *
 * A spec is one POD per family, defined by a field list below. The list alone decides the #defines
 * of the rendered text, the hash of the launch path (the bytes: every field is 4 bytes, no
 * padding), the text of the on-disk key and the row of a pack. Shapes and the SM count are
 * compile-time constants of a kernel, the batch is not: a kernel has a tile of rows
 * (config.tile_rows) and reads from device memory which rows run. A config is chosen by a cost
 * model from the spec and the device's table, on the CPU; nothing in it changes a bit of the result
 * (K splits come from the spec).
 *
 * Life: fill a spec -> kernel_config_choose -> kernel_render, kernel_key -> compile (jit/nvrtc.h,
 * with KERNEL_OPTIONS) -> kernel_launch says grid, block, shared bytes, bytes moved and FLOPs.
 *
 * THE BITS. Products of a quantised matrix: int32 sums are exact per block of 32 (16 for Q6_K);
 * acc = fmaf(dw * sx, (float)sum, acc), then fmaf(mw, sx * (float)sum of q, acc) where the format
 * has a minimum (core/cpu/matmul.h). Blocks are cut into splits of P pairs (kernel_split_pairs); a
 * split sums its even and its odd blocks apart, ascending, adds the two, and splits are added
 * ascending. Attention: absolute key blocks of 256 positions; scores by fmaf, dimensions ascending;
 * sums over positions in groups of 32, ascending; blocks merged ascending as
 * core/cpu/vector.h's attention_merge. (Of a gated row: blocks of the positions it attends to.)
 * Bounds and scores of pages: the bits of core/cpu/vector.h's page_bounds and page_score. No kernel
 * of a family departs from its order.
 *
 * Errors: kernel_config_choose: STATUS_UNSUPPORTED with the spec's text when no tile fits. Specs
 * come from the plan, after its checks: a shape the lists do not allow is a programmer's error.
 */
#ifndef LAC_JIT_KERNEL_H
#define LAC_JIT_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buffer.h"
#include "core/status.h"
#include "core/tensor.h"

/* Options of every compilation, besides the architecture. */
#define KERNEL_OPTIONS "--std=c++17 -lineinfo -fmad=false --diag-suppress=177"

enum {
    KERNEL_PANEL_ROWS = 16,  /* outputs of a panel of packed weights (jit/repack.h) */
    KERNEL_MAX_FEW_ROWS = 8, /* rows of the dp4a kernels */
    KERNEL_ATTENTION_BLOCK = 256,
    /* Blocks of a gated row: 1: of 256 positions that it attends to, side by side; 0: of 256
     * absolute positions, those of pages that were not chosen left out. Bits depend on it, nothing
     * else. */
    KERNEL_GATED_RUNS = 1,
    KERNEL_TOP = 20,
};

/* What a matmul reads: */
enum kernel_input {
    KERNEL_IN_PLANES, /* quantised rows in global memory (kernel_planes_bytes) */
    KERNEL_IN_NORM,   /* F32 rows: RMS norm and quantising in the prologue, into shared memory */
};
/* ... and does with its sums y (bias added first). */
enum kernel_epilogue {
    KERNEL_OUT_STORE,    /* out[row][n] = softcap(scale * y) */
    KERNEL_OUT_RESIDUAL, /* out[row][n] = fmaf(scale, y, out[row][n]) */
    KERNEL_OUT_GATED,    /* panels hold 8 gate and 8 up rows: out[row][n / 2] = act(gate) * up */
    KERNEL_OUT_GATED_PLANES, /* the same, quantised, for the next matmul */
    KERNEL_OUT_QKV,          /* panels hold rotary partners: rotate, scale q, write K and V */
};
enum kernel_rope { KERNEL_ROPE_NONE, KERNEL_ROPE_ADJACENT, KERNEL_ROPE_HALVES };
enum kernel_head_norm { KERNEL_NO_NORM, KERNEL_NORM_HEAD, KERNEL_NORM_WHOLE };

/* Activations, as activation_bits: integers for quantised weights; for F16 and BF16 weights a high
 * and a low half of each value, over a power of two per block of 32. bits / 8 is bytes a value. */
enum kernel_planes {
    KERNEL_PLANES_INT8 = 8,
    KERNEL_PLANES_INT16 = 16, /* two int8 passes */
    KERNEL_PLANES_F16 = 32,
    KERNEL_PLANES_BF16 = 33,
};

/* Field lists. U: uint32_t; F: float; T: enum tensor_type. 0 where a field does not apply. */
#define MATMUL_FIELDS(U, F, T)                                                                     \
    T(format)                                                                                      \
    U(n)                                                                                           \
    U(k)                                                                                           \
    U(activation_bits)                                                                             \
    U(input)                                                                                       \
    U(epilogue)                                                                                    \
    U(bias)                                                                                        \
    F(epsilon)                                                                                     \
    F(scale)                                                                                       \
    F(softcap) U(gelu) U(n_heads) U(n_kv_heads) U(head_dim) U(rope) U(rope_dims) F(attn_scale)
/* A whole dense feed-forward: norm, gate, up, activation, down, residual. input: KERNEL_IN_NORM (at
 * most 16 rows): every CTA norms its rows for itself; KERNEL_IN_PLANES: each row is normed by one
 * CTA, and all CTAs meet. next_bits: 0, or the norm before the next layer's q, k and v is done here
 * too, into planes of so many bits. */
#define FFN_FIELDS(U, F, T)                                                                        \
    T(format)                                                                                      \
    U(n) U(k) T(down_format) U(activation_bits) U(gelu) U(input) U(next_bits) F(epsilon) F(scale)
/* One row: x = fmaf(scale, post_norm ? norm(y) : y, x) if add; then norm (or a copy) of x, into
 * planes (bits 16, 8) or F32 (bits 0). */
#define NORM_FIELDS(U, F, T)  U(k) U(add) U(post_norm) U(norm) U(activation_bits) F(epsilon) F(scale)
#define EMBED_FIELDS(U, F, T) T(format) U(n) U(k) F(scale)
#define ROPE_KV_FIELDS(U, F, T)                                                                    \
    U(n_heads)                                                                                     \
    U(n_kv_heads) U(head_dim) U(rope) U(rope_dims) U(q_norm) U(k_norm) F(epsilon) F(attn_scale)
/* gated: rows may attend to chosen pages only; activation_bits: planes out, or 0 for F32. */
#define ATTENTION_FIELDS(U, F, T)                                                                  \
    U(n_heads) U(n_kv_heads) U(head_dim) U(window) U(gated) U(activation_bits) F(softcap)
#define SAMPLER_FIELDS(U, F, T) U(n)
/* scores[row][n] = sigmoid(w x + b) in F32; with `decide` a row whose score reaches its threshold
 * runs no later layer. */
#define HEADS_FIELDS(U, F, T) U(n) U(k) U(norm) U(decide) F(epsilon)
/* page_bytes 0: the parameter says how many. */
#define PAGE_COPY_FIELDS(U, F, T)   U(page_bytes)
#define PAGE_SEAL_FIELDS(U, F, T)   U(n_kv_heads) U(head_dim)
#define PAGE_CHOOSE_FIELDS(U, F, T) U(n_heads) U(n_kv_heads) U(head_dim)
/* Hidden states handed back: rows kept, or their mean. */
#define TAP_FIELDS(U, F, T) U(k) U(mean)

/* Parameters, passed by value. X(type in C, type in CUDA, name); addresses are uint64_t in C.
 *   run: the layer's bitmap of rows, an even number of words [ceil(max_rows / 64) * 2]; exit flags
 * clear bits of it; a launch whose rows are all off returns at once;
 *   row_list: 0, or [count[0]] indices of the rows to take instead of 0, 1, 2, ...;
 *   planes: rows of kernel_planes_bytes; row_position [max_rows]; row_pages [max_rows]: index in
 * `pages` of the page of position 0, of the layer's group; pages: page ids; kv: address of the
 * layer's part of page 0; page_bytes: from page to page; rope: {cos, sin} F32 [n_ctx][rope_dims /
 * 2] of pair i at a position (mscale included). */
#define MATMUL_PARAMS(X)                                                                           \
    X(uint64_t, const unsigned char *, weights)                                                    \
    X(uint64_t, const float *, bias)                                                               \
    X(uint64_t, const unsigned char *, planes)                                                     \
    X(uint64_t, const float *, x)                                                                  \
    X(uint64_t, const float *, norm)                                                               \
    X(uint64_t, unsigned char *, out)                                                              \
    X(uint64_t, const unsigned int *, run)                                                         \
    X(uint64_t, const unsigned int *, row_position)                                                \
    X(uint64_t, const unsigned int *, row_pages)                                                   \
    X(uint64_t, const unsigned int *, pages)                                                       \
    X(uint64_t, unsigned char *, kv)                                                               \
    X(uint64_t, unsigned long long, page_bytes)                                                    \
    X(uint64_t, const float *, rope)                                                               \
    X(uint32_t, unsigned int, out_stride) /* elements from row to row */                           \
    X(uint32_t, unsigned int, max_rows)
/* h: planes of d_ff for max_rows rows; barrier: 2 words, zero before the first launch. planes: with
 * KERNEL_IN_PLANES, of the normed rows, written here; with next_bits, in the end of those of
 * next_run normed by next_norm. */
#define FFN_PARAMS(X)                                                                              \
    X(uint64_t, const unsigned char *, weights)                                                    \
    X(uint64_t, const unsigned char *, down_weights)                                               \
    X(uint64_t, const float *, norm)                                                               \
    X(uint64_t, float *, x)                                                                        \
    X(uint64_t, unsigned char *, h)                                                                \
    X(uint64_t, unsigned char *, planes)                                                           \
    X(uint64_t, const float *, next_norm)                                                          \
    X(uint64_t, const unsigned int *, run)                                                         \
    X(uint64_t, const unsigned int *, next_run)                                                    \
    X(uint64_t, unsigned int *, barrier)                                                           \
    X(uint32_t, unsigned int, max_rows)                                                            \
    X(uint32_t, unsigned int, reserved0)
#define NORM_PARAMS(X)                                                                             \
    X(uint64_t, float *, x)                                                                        \
    X(uint64_t, const float *, y)                                                                  \
    X(uint64_t, const float *, post_norm)                                                          \
    X(uint64_t, const float *, norm)                                                               \
    X(uint64_t, unsigned char *, out)                                                              \
    X(uint64_t, const unsigned int *, run)                                                         \
    X(uint64_t, const unsigned int *, row_list) /* out rows stay 0, 1, 2, ... */                   \
    X(uint64_t, const unsigned int *, count)                                                       \
    X(uint32_t, unsigned int, max_rows)                                                            \
    X(uint32_t, unsigned int, reserved0)
#define EMBED_PARAMS(X)                                                                            \
    X(uint64_t, const unsigned char *, weights)                                                    \
    X(uint64_t, const unsigned int *, ids)                                                         \
    X(uint64_t, const unsigned int *, count)                                                       \
    X(uint64_t, float *, x)                                                                        \
    X(uint32_t, unsigned int, max_rows)                                                            \
    X(uint32_t, unsigned int, reserved0)
#define ROPE_KV_PARAMS(X)                                                                          \
    X(uint64_t, const float *, qkv)                                                                \
    X(uint64_t, const float *, q_norm)                                                             \
    X(uint64_t, const float *, k_norm)                                                             \
    X(uint64_t, float *, q)                                                                        \
    X(uint64_t, const unsigned int *, run)                                                         \
    X(uint64_t, const unsigned int *, row_position)                                                \
    X(uint64_t, const unsigned int *, row_pages)                                                   \
    X(uint64_t, const unsigned int *, pages)                                                       \
    X(uint64_t, unsigned char *, kv)                                                               \
    X(uint64_t, unsigned long long, page_bytes)                                                    \
    X(uint64_t, const float *, rope)                                                               \
    X(uint32_t, unsigned int, max_rows)                                                            \
    X(uint32_t, unsigned int, reserved0)
/* Split (decode): items [count[0]] of struct attention_item, each one key block of one row.
 * partial: per item and head [head_dim] F32, then m, l [item][head][2]; tickets [max_rows *
 * n_kv_heads], zero before the first launch. Walk (prefill, verify): items of struct
 * attention_tile, whose rows share their choice.
 * Gated: row_gates: struct attention_gate by row; masks of this layer: u16 at [entry * mask_entry +
 * KV head * mask_stride + b], bit i: page 16 b + i was chosen; only pages before the recent one are
 * looked up. A gated row has fewer blocks than its items say (KERNEL_GATED_RUNS): blocks behind the
 * last do nothing. */
#define ATTENTION_PARAMS(X)                                                                        \
    X(uint64_t, const float *, q)                                                                  \
    X(uint64_t, const unsigned char *, kv)                                                         \
    X(uint64_t, unsigned long long, page_bytes)                                                    \
    X(uint64_t, const unsigned int *, run)                                                         \
    X(uint64_t, const unsigned int *, row_position)                                                \
    X(uint64_t, const unsigned int *, row_pages)                                                   \
    X(uint64_t, const unsigned int *, pages)                                                       \
    X(uint64_t, const unsigned int *, items)                                                       \
    X(uint64_t, const unsigned int *, count)                                                       \
    X(uint64_t, const unsigned short *, masks)                                                     \
    X(uint64_t, const unsigned int *, row_gates)                                                   \
    X(uint64_t, float *, partial)                                                                  \
    X(uint64_t, float *, partial_ml)                                                               \
    X(uint64_t, unsigned int *, tickets)                                                           \
    X(uint64_t, unsigned char *, out)                                                              \
    X(uint32_t, unsigned int, mask_stride)                                                         \
    X(uint32_t, unsigned int, mask_entry)                                                          \
    X(uint32_t, unsigned int, layer)                                                               \
    X(uint32_t, unsigned int, reserved0)
/* specs: struct kernel_sample [count[0]]; logits row of output o: specs[o].logits_row. scratch:
 * kernel_sampler_scratch_bytes per output. answers: struct kernel_answer. */
#define SAMPLER_PARAMS(X)                                                                          \
    X(uint64_t, const float *, logits)                                                             \
    X(uint64_t, const unsigned int *, specs)                                                       \
    X(uint64_t, const unsigned int *, count)                                                       \
    X(uint64_t, const unsigned long long *, bitmaps) /* [ceil(n / 64)] each */                     \
    X(uint64_t, const unsigned int *, biases)        /* {id, divisor, delta} */                    \
    X(uint64_t, unsigned char *, scratch)                                                          \
    X(uint64_t, unsigned int *, answers)
/* weights [n][k] F32, bias [n]; thresholds [max_rows]; run: bitmaps of all layers, run_stride words
 * apart; layer: the one just computed; exit_layer [max_rows]. */
#define HEADS_PARAMS(X)                                                                            \
    X(uint64_t, const float *, x)                                                                  \
    X(uint64_t, const float *, norm)                                                               \
    X(uint64_t, const float *, weights)                                                            \
    X(uint64_t, const float *, bias)                                                               \
    X(uint64_t, float *, scores)                                                                   \
    X(uint64_t, const float *, thresholds)                                                         \
    X(uint64_t, unsigned int *, run)                                                               \
    X(uint64_t, unsigned int *, exit_layer)                                                        \
    X(uint32_t, unsigned int, run_stride)                                                          \
    X(uint32_t, unsigned int, layer)                                                               \
    X(uint32_t, unsigned int, n_layers)                                                            \
    X(uint32_t, unsigned int, max_rows)
/* copies: {from, to} indices of blocks of `bytes` (a multiple of 16; page_bytes if that is set). */
#define PAGE_COPY_PARAMS(X)                                                                        \
    X(uint64_t, unsigned char *, kv)                                                               \
    X(uint64_t, const unsigned int *, copies)                                                      \
    X(uint64_t, const unsigned int *, count)                                                       \
    X(uint64_t, unsigned long long, bytes)
/* bounds: of this layer in page 0, per page id {min, max} F16 [n_kv_heads][2][head_dim],
 * bounds_bytes apart; list: {page id, row} of pages whose last position the row wrote. */
#define PAGE_SEAL_PARAMS(X)                                                                        \
    X(uint64_t, const unsigned char *, kv)                                                         \
    X(uint64_t, unsigned long long, page_bytes)                                                    \
    X(uint64_t, unsigned char *, bounds)                                                           \
    X(uint64_t, unsigned long long, bounds_bytes)                                                  \
    X(uint64_t, const unsigned int *, list)                                                        \
    X(uint64_t, const unsigned int *, count)                                                       \
    X(uint64_t, const unsigned int *, run)
/* choices [count[0]] of struct page_choice; anchors: page indices; bounds as above; masks as for
 * attention; scores [choice][n_kv_heads][score_stride] F32, scratch. */
#define PAGE_CHOOSE_PARAMS(X)                                                                      \
    X(uint64_t, const float *, q)                                                                  \
    X(uint64_t, const unsigned char *, bounds)                                                     \
    X(uint64_t, unsigned long long, bounds_bytes)                                                  \
    X(uint64_t, const unsigned int *, choices)                                                     \
    X(uint64_t, const unsigned int *, count)                                                       \
    X(uint64_t, const unsigned int *, anchors)                                                     \
    X(uint64_t, const unsigned int *, run)                                                         \
    X(uint64_t, const unsigned int *, row_pages)                                                   \
    X(uint64_t, const unsigned int *, pages)                                                       \
    X(uint64_t, float *, scores)                                                                   \
    X(uint64_t, unsigned short *, masks)                                                           \
    X(uint32_t, unsigned int, score_stride)                                                        \
    X(uint32_t, unsigned int, mask_stride)                                                         \
    X(uint32_t, unsigned int, mask_entry)                                                          \
    X(uint32_t, unsigned int, layer)
/* taps: {first_row, n_rows, first row of `out`}. */
#define TAP_PARAMS(X)                                                                              \
    X(uint64_t, const float *, x)                                                                  \
    X(uint64_t, const unsigned int *, taps)                                                        \
    X(uint64_t, const unsigned int *, count)                                                       \
    X(uint64_t, float *, out)

/* X(TAG, name, fields, params): the families. The text of a family is jit/kernels/<name>.cu. */
#define KERNEL_LIST(X)                                                                             \
    X(MATMUL, matmul, MATMUL_FIELDS, MATMUL_PARAMS)                                                \
    X(FFN, ffn, FFN_FIELDS, FFN_PARAMS)                                                            \
    X(NORM, norm, NORM_FIELDS, NORM_PARAMS)                                                        \
    X(EMBED, embed, EMBED_FIELDS, EMBED_PARAMS)                                                    \
    X(ROPE_KV, rope_kv, ROPE_KV_FIELDS, ROPE_KV_PARAMS)                                            \
    X(ATTENTION, attention, ATTENTION_FIELDS, ATTENTION_PARAMS)                                    \
    X(SAMPLER, sampler, SAMPLER_FIELDS, SAMPLER_PARAMS)                                            \
    X(HEADS, heads, HEADS_FIELDS, HEADS_PARAMS)                                                    \
    X(PAGE_COPY, page_copy, PAGE_COPY_FIELDS, PAGE_COPY_PARAMS)                                    \
    X(PAGE_SEAL, page_seal, PAGE_SEAL_FIELDS, PAGE_SEAL_PARAMS)                                    \
    X(PAGE_CHOOSE, page_choose, PAGE_CHOOSE_FIELDS, PAGE_CHOOSE_PARAMS)                            \
    X(TAP, tap, TAP_FIELDS, TAP_PARAMS)

enum kernel_family {
#define X(TAG, name, fields, params) KERNEL_##TAG,
    KERNEL_LIST(X)
#undef X
        KERNEL_FAMILY_COUNT
};

/* struct matmul_spec, struct matmul_params, ... */
#define KERNEL_U(name)              uint32_t name;
#define KERNEL_F(name)              float name;
#define KERNEL_PARAM(c, cuda, name) c name;
#define X(TAG, name, fields, params)                                                               \
    struct name##_spec {                                                                           \
        fields(KERNEL_U, KERNEL_F, KERNEL_U)                                                       \
    };                                                                                             \
    struct name##_params {                                                                         \
        params(KERNEL_PARAM)                                                                       \
    };
KERNEL_LIST(X)
#undef X

/* Zero it first: unused bytes count in the hash. */
struct kernel_spec {
    uint32_t family; /* enum kernel_family */
    union {
#define X(TAG, name, fields, params) struct name##_spec name;
        KERNEL_LIST(X)
#undef X
    };
};

/* Device tables that the kernels read. */
struct attention_item {
    uint32_t row, block, first, count; /* index of the row's first item, and how many it has */
};
struct attention_tile {
    uint32_t first_row, n_rows; /* consecutive rows of one span, at most config.tile_rows */
};
/* What a row attends to in layers from dense_layers on: chosen pages of `entry` (n_chosen, all
 * before recent_page), then all from recent_page on. entry UINT32_MAX: everything. */
struct attention_gate {
    uint32_t entry, recent_page, n_chosen, dense_layers;
};
/* The choice that a row's query makes (core/step.h, struct gate_policy). */
struct page_choice {
    uint32_t row, entry, sink_pages, recent_page, budget_pages, first_anchor, n_anchors,
        dense_layers;
};
struct kernel_sample {
    uint64_t random; /* rng_draw at the output's coordinates */
    uint32_t logits_row;
    uint32_t target; /* UINT32_MAX: draw */
    float temperature;
    uint32_t top_k;
    float top_p, min_p;
    uint32_t bitmap; /* index of the bitmap, or UINT32_MAX */
    uint32_t first_bias, n_biases;
    uint32_t reserved0;
};
struct kernel_answer {
    uint32_t token;
    float logprob, lse, entropy;
    uint32_t bad;
    uint32_t top_id[KERNEL_TOP];
    float top_logit[KERNEL_TOP];
    uint32_t reserved0[3];
};

/* The chip, or the part of it that the context owns: a MIG slice or green context counts as itself.
 * shared_per_block is the opt-in limit. */
struct kernel_device {
    uint32_t cc; /* 10 major + minor: 75 ... 121 */
    uint32_t n_sms;
    uint32_t shared_per_block, shared_per_sm; /* bytes */
    uint32_t registers_per_sm;                /* 32-bit */
    uint32_t threads_per_sm, blocks_per_sm;
    uint32_t l2_bytes;
    uint32_t dependent_launch; /* 1: griddepcontrol (programmatic dependent launch) is used */
};

/* How the device's table says a chip is; NULL if the name is unknown. "T4", "A100", "L4", "L40S",
 * "RTX 4090", "RTX 5090", "H100", "H200", "B200". */
const struct kernel_device *kernel_device_find(const char *name);
/* The i-th of the table with its name; NULL past the end. */
const struct kernel_device *kernel_device_at(uint32_t i, const char **name);

enum kernel_variant {
    KERNEL_PLAIN,
    KERNEL_DP4A,  /* matmul, ffn: at most 8 rows */
    KERNEL_MMA,   /* matmul, ffn: m16n8k32.s8 (m8n8k16.s8 on sm_75), a warp a split of K */
    KERNEL_WIDE,  /* matmul, ffn: the same, a warp a panel of outputs: prefill */
    KERNEL_SPLIT, /* attention, one key block a CTA, last one merges */
    KERNEL_WALK,  /* attention, a tile of rows walks its key blocks */
};
#define CONFIG_FIELDS(U)                                                                           \
    U(variant)                                                                                     \
    U(tile_rows)     /* rows of a tile: a bucket of the batch */                                   \
    U(tile_panels)   /* panels of 16 outputs that a CTA takes at once */                           \
    U(warps)         /* of a CTA */                                                                \
    U(blocks_per_sm) /* CTAs that shall be resident on an SM */                                    \
    U(grid)          /* CTAs of a persistent kernel; 0: kernel_launch says */                      \
    U(shared_bytes)  /* dynamic */
struct kernel_config {
    CONFIG_FIELDS(KERNEL_U)
};

/* What the compiler made of a kernel, once known: registers per thread, static shared bytes. */
struct kernel_usage {
    uint32_t registers, shared_static_bytes;
};

struct kernel_geometry {
    uint32_t grid[3], block, shared_bytes;
    uint64_t bytes, flops; /* that the launch must move and do, at least: for NVTX and rooflines */
};

/* n_rows: the most rows the launch will have (the batch bucket). usage may be NULL. walk: attention
 * as KERNEL_WALK (sequences bring several rows) instead of KERNEL_SPLIT; no other family reads it.
 */
enum status kernel_config_choose(const struct kernel_spec *spec, const struct kernel_device *device,
                                 uint32_t n_rows, bool walk, const struct kernel_usage *usage,
                                 struct kernel_config *out, struct error *e);
/* CTAs of this kernel that fit on one SM. */
uint32_t kernel_occupancy(const struct kernel_device *device, const struct kernel_config *config,
                          const struct kernel_usage *usage);
/* usage: what the driver says of the loaded kernel; it narrows the grid of persistent kernels to
 * what is resident (NULL: as planned). KERNEL_FFN meets at a grid barrier and must be given it. */
void kernel_launch(const struct kernel_spec *spec, const struct kernel_config *config,
                   const struct kernel_device *device, const struct kernel_usage *usage,
                   uint32_t n_rows, struct kernel_geometry *out);

/* lac_<family>_<format>_<n>_<k>_sm<cc>, and what else tells it apart: the symbol of the kernel. */
enum { KERNEL_NAME_BYTES = 128, KERNEL_KEY_BYTES = 1024 };
void kernel_name(const struct kernel_spec *spec, const struct kernel_config *config,
                 const struct kernel_device *device, char out[KERNEL_NAME_BYTES]);
/* Launch path: equal specs, configs and devices have equal hashes (FNV-1a over the fields). */
uint64_t kernel_hash(const struct kernel_spec *spec, const struct kernel_config *config,
                     const struct kernel_device *device);
/* One line of text, every field by name: "matmul format=Q4_1 n=576 ... | variant=1 ... | sm=90
 * sms=132 ...". With the compiler's version and the digest of the rendered text it is the on-disk
 * key. */
void kernel_key(const struct kernel_spec *spec, const struct kernel_config *config,
                const struct kernel_device *device, char out[KERNEL_KEY_BYTES]);
/* The CUDA C text, one __global__ function called kernel_name(). Appends to `out`. */
void kernel_render(const struct kernel_spec *spec, const struct kernel_config *config,
                   const struct kernel_device *device, struct buffer *out);
/* Bytes of the parameter struct of a family. */
size_t kernel_params_bytes(enum kernel_family family);
const char *kernel_family_name(enum kernel_family family);

/* Pairs of blocks (64 weights) in a split of K: from the format and k alone. */
uint32_t kernel_split_pairs(enum tensor_type format, uint32_t k);
/* Quantised activations of one row of k, in global or shared memory: int8 hi [kp], int8 lo [kp]
 * (one plane for 8 bits; F16 or BF16 for those), then {scale, scale * sum of q} F32 [kp / 32]; kp
 * is k rounded up to 64. Kernels read whole tiles of rows: rows up to the next multiple of 64
 * exist, and every byte was written once (zeros at the start). */
size_t kernel_planes_bytes(uint32_t k, uint32_t activation_bits);
/* Key bounds of a page: layers x heads x {least, greatest} F16. */
size_t kernel_bounds_bytes(uint32_t n_layers, uint32_t n_kv_heads, uint32_t head_dim);
/* Scratch of the sampler, per output. */
size_t kernel_sampler_scratch_bytes(uint32_t n);

#endif
