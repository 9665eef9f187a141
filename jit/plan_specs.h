/* plan_specs.h: a plan's kernels as specs. The one place where a plan becomes specs: the list of
 * what is compiled or baked (jit/kernel_set.h) and the backend's graphs both read it, so that what
 * is looked up is what was made.
 *
 * Nothing here depends on a device, except the two decisions at the end: whether a product takes
 * the norm before it, and whether a feed-forward is one kernel. Both follow from the spec, the
 * device's table and the bucket of rows.
 * bits: of the activations behind q, k and v (16, or 8: the int8 class); q, k and v keep 16. The
 * plan was checked (kernel_set_build): every format has kernels.
 */
#ifndef LAC_JIT_PLAN_SPECS_H
#define LAC_JIT_PLAN_SPECS_H

#include "core/plan.h"
#include "jit/kernel.h"

struct layer_specs {
    bool qkv_at_once;           /* one product that also rotates and writes K and V */
    uint32_t n_parts;           /* else a product for each run of equal formats of q, k and v */
    struct kernel_spec part[3]; /* .matmul.input as KERNEL_IN_PLANES, as in all products here */
    uint32_t part_at[3];        /* first element in the row of q, k and v */
    struct kernel_spec rope_kv; /* without qkv_at_once */
    struct kernel_spec attention;
    bool attended_f32; /* attention cannot quantise what it gives: a norm kernel does */
    struct kernel_spec o, gate, down;
};
void layer_specs_make(const struct plan *p, uint32_t layer, uint32_t bits, struct layer_specs *out);

/* Zeroed: unused bytes count in a spec's hash. */
struct kernel_spec spec_new(enum kernel_family family);
struct kernel_spec spec_embed(const struct plan *p);
struct kernel_spec spec_head(const struct plan *p, uint32_t bits);
struct kernel_spec spec_sampler(const struct plan *p);
struct kernel_spec spec_tap(const struct plan *p);
struct kernel_spec spec_copy(uint64_t bytes); /* of whole pages or slots, by index */
struct kernel_spec spec_seal(const struct kv_group *group);
/* group: one without a window. */
struct kernel_spec spec_choose(const struct plan *p, uint32_t group);

struct norm_shape {
    uint32_t k, planes; /* planes 0: F32 out, or none */
    bool add, post_norm, norm;
    float scale; /* of what is added */
};
struct kernel_spec spec_first_norm(const struct plan *p, uint32_t bits);
struct kernel_spec spec_norm(const struct plan *p, const struct norm_shape *shape);

/* How a product gets its input when its rows are F32. True: norm and quantising are in its
 * prologue. False: it reads planes, and *before is the kernel that writes them. */
bool spec_take_norm(const struct plan *p, const struct kernel_device *device, uint32_t rows,
                    bool has_norm, struct kernel_spec *product, struct kernel_spec *before);
/* Whether norm, gate, up, down and residual of a layer are one kernel for as many rows; next_bits
 * is set where it leaves the normed rows of the next layer's q, k and v. */
bool spec_feed_forward(const struct plan *p, const struct kernel_device *device, uint32_t layer,
                       uint32_t bits, uint32_t rows, struct kernel_spec *out);
/* Whether the layer before (of the first: a norm behind the embedding, spec_first_norm) leaves the
 * planes that this layer's q, k and v read. */
bool spec_rows_ready(const struct plan *p, const struct kernel_device *device, uint32_t layer,
                     uint32_t bits, uint32_t rows);

#endif
