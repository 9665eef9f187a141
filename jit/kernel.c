#include "jit/kernel.h"

#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "jit/kernel_text.h"

/* One description of a field, made from the lists: where it is and how it is written. */
enum field_kind { FIELD_U, FIELD_F, FIELD_T };
struct field {
    const char *name;
    enum field_kind kind;
};

#define FIELD_OF_U(name) {#name, FIELD_U},
#define FIELD_OF_F(name) {#name, FIELD_F},
#define FIELD_OF_T(name) {#name, FIELD_T},
#define X(TAG, name, fields, params)                                                               \
    static const struct field name##_fields[] = {fields(FIELD_OF_U, FIELD_OF_F, FIELD_OF_T)};      \
    _Static_assert(sizeof(struct name##_spec) == 4 * sizeof name##_fields / sizeof(struct field),  \
                   "every field is 4 bytes, no padding");
KERNEL_LIST(X)
#undef X
static const struct field config_fields[] = {CONFIG_FIELDS(FIELD_OF_U)};
_Static_assert(sizeof(struct kernel_config) == 4 * sizeof config_fields / sizeof(struct field),
               "every field is 4 bytes, no padding");

#define PARAM_TEXT(c, cuda, name) "    " #cuda " " #name ";\n"
static const struct family {
    const char *name;
    const struct field *fields;
    uint32_t n_fields;
    uint32_t params_bytes;
    const char *params_text;
    enum kernel_text text;
} families[KERNEL_FAMILY_COUNT] = {
#define X(TAG, name, fields, params)                                                               \
    [KERNEL_##TAG] = {#name,                                                                       \
                      name##_fields,                                                               \
                      sizeof name##_fields / sizeof(struct field),                                 \
                      sizeof(struct name##_params),                                                \
                      params(PARAM_TEXT),                                                          \
                      KERNEL_TEXT_##name},
    KERNEL_LIST(X)
#undef X
};

static const struct family *family_of(const struct kernel_spec *spec) {
    CHECK(spec->family < KERNEL_FAMILY_COUNT);
    return &families[spec->family];
}

/* The i-th field of a POD: its four bytes. */
static uint32_t word_of(const void *pod, uint32_t i) {
    uint32_t bits;
    memcpy(&bits, (const char *)pod + 4 * i, sizeof bits);
    return bits;
}

const char *kernel_family_name(enum kernel_family family) {
    CHECK((unsigned)family < KERNEL_FAMILY_COUNT);
    return families[family].name;
}

size_t kernel_params_bytes(enum kernel_family family) {
    CHECK((unsigned)family < KERNEL_FAMILY_COUNT);
    return families[family].params_bytes;
}

uint32_t kernel_split_pairs(enum tensor_type format, uint32_t k) {
    const uint32_t unit = format == TENSOR_Q4_K || format == TENSOR_Q6_K ? 4 : 1;
    const uint32_t pairs = (k + 63) / 64, eighth = (pairs + 7) / 8;
    return (eighth + unit - 1) / unit * unit;
}

size_t kernel_planes_bytes(uint32_t k, uint32_t activation_bits) {
    const size_t kp = ((size_t)k + 63) / 64 * 64;
    /* Rows lie 32 bytes more than a multiple of 128 apart, for the banks of shared memory. */
    return (kp * (activation_bits / 8) + kp / 4 + 95) / 128 * 128 + 32;
}

size_t kernel_bounds_bytes(uint32_t n_layers, uint32_t n_kv_heads, uint32_t head_dim) {
    return (size_t)n_layers * n_kv_heads * 2 * head_dim * sizeof(uint16_t);
}

/* Masses (u64), changed logits (F32), ids (u32), each rounded up to a multiple of 4 entries. */
size_t kernel_sampler_scratch_bytes(uint32_t n) {
    return ((size_t)n + 3) / 4 * 64;
}

static uint64_t fnv(uint64_t h, const void *data, size_t bytes) {
    const uint8_t *p = data;
    for (size_t i = 0; i < bytes; i++) h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h;
}

uint64_t kernel_hash(const struct kernel_spec *spec, const struct kernel_config *config,
                     const struct kernel_device *device) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    h = fnv(h, &spec->family, sizeof spec->family);
    h = fnv(h, &spec->matmul, 4 * (size_t)family_of(spec)->n_fields);
    h = fnv(h, config, sizeof *config);
    h = fnv(h, &device->cc, sizeof device->cc);
    h = fnv(h, &device->n_sms, sizeof device->n_sms);
    return fnv(h, &device->dependent_launch, sizeof device->dependent_launch);
}

/* "name=value": floats by their bits, so that the text is exact. */
static size_t put_field(char *out, size_t room, const struct field *f, uint32_t bits) {
    int n = 0;
    switch (f->kind) {
    case FIELD_U:
        n = snprintf(out, room, " %s=%u", f->name, bits);
        break;
    case FIELD_F:
        n = snprintf(out, room, " %s=0x%08x", f->name, bits);
        break;
    case FIELD_T:
        n = snprintf(out, room, " %s=%s", f->name, tensor_format((enum tensor_type)bits)->name);
        break;
    }
    CHECK(n > 0 && (size_t)n < room);
    return (size_t)n;
}

void kernel_key(const struct kernel_spec *spec, const struct kernel_config *config,
                const struct kernel_device *device, char out[KERNEL_KEY_BYTES]) {
    const struct family *f = family_of(spec);
    size_t at = (size_t)snprintf(out, KERNEL_KEY_BYTES, "%s", f->name);
    for (uint32_t i = 0; i < f->n_fields; i++)
        at += put_field(out + at, KERNEL_KEY_BYTES - at, &f->fields[i], word_of(&spec->matmul, i));
    at += (size_t)snprintf(out + at, KERNEL_KEY_BYTES - at, " |");
    for (uint32_t i = 0; i < sizeof config_fields / sizeof *config_fields; i++)
        at += put_field(out + at, KERNEL_KEY_BYTES - at, &config_fields[i], word_of(config, i));
    const int n = snprintf(out + at, KERNEL_KEY_BYTES - at, " | sm=%u sms=%u dependent_launch=%u",
                           device->cc, device->n_sms, device->dependent_launch);
    CHECK(n > 0 && (size_t)n < KERNEL_KEY_BYTES - at);
}

/* What a profiler shows: the format and the shape, or what stands for a shape in the family. */
void kernel_name(const struct kernel_spec *spec, const struct kernel_config *config,
                 const struct kernel_device *device, char out[KERNEL_NAME_BYTES]) {
    const char *format = "f32";
    uint32_t n = 0, k = 0;
    static const char *const epilogues[] = {"", "_residual", "_gated", "_gatedq", "_qkv"};
    static const char *const variants[] = {"", "_dp4a", "_mma", "_wide", "_split", "_walk"};
    const char *epilogue = "", *input = "", *bits = "";
    switch ((enum kernel_family)spec->family) {
    case KERNEL_MATMUL:
        format = tensor_format((enum tensor_type)spec->matmul.format)->name;
        n = spec->matmul.n;
        k = spec->matmul.k;
        CHECK(spec->matmul.epilogue < sizeof epilogues / sizeof *epilogues);
        epilogue = epilogues[spec->matmul.epilogue];
        input = spec->matmul.input == KERNEL_IN_NORM ? "_norm" : "";
        bits = spec->matmul.activation_bits == KERNEL_PLANES_INT8 ? "_a8" : "";
        break;
    case KERNEL_FFN:
        format = tensor_format((enum tensor_type)spec->ffn.format)->name;
        n = spec->ffn.n;
        k = spec->ffn.k;
        bits = spec->ffn.activation_bits == KERNEL_PLANES_INT8 ? "_a8" : "";
        epilogue = spec->ffn.next_bits != 0 ? "_next" : "";
        break;
    case KERNEL_NORM:
        n = k = spec->norm.k;
        break;
    case KERNEL_EMBED:
        format = tensor_format((enum tensor_type)spec->embed.format)->name;
        n = spec->embed.n;
        k = spec->embed.k;
        break;
    case KERNEL_ROPE_KV:
        format = "f16";
        n = spec->rope_kv.n_heads;
        k = spec->rope_kv.head_dim;
        break;
    case KERNEL_ATTENTION:
        format = "f16";
        n = spec->attention.n_heads;
        k = spec->attention.head_dim;
        input = spec->attention.gated ? "_chosen" : "";
        break;
    case KERNEL_SAMPLER:
        n = spec->sampler.n;
        break;
    case KERNEL_HEADS:
        n = spec->heads.n;
        k = spec->heads.k;
        break;
    case KERNEL_PAGE_COPY:
        format = "u8";
        n = spec->page_copy.page_bytes;
        break;
    case KERNEL_PAGE_SEAL:
        format = "f16";
        n = spec->page_seal.n_kv_heads;
        k = spec->page_seal.head_dim;
        break;
    case KERNEL_PAGE_CHOOSE:
        format = "f16";
        n = spec->page_choose.n_heads;
        k = spec->page_choose.head_dim;
        break;
    case KERNEL_TAP:
        n = k = spec->tap.k;
        break;
    case KERNEL_FAMILY_COUNT:
        CHECK(false);
    }
    CHECK(config->variant < sizeof variants / sizeof *variants);
    char rows[16] = "";
    if (config->tile_rows > 0) snprintf(rows, sizeof rows, "_r%u", config->tile_rows);
    const int bytes =
        snprintf(out, KERNEL_NAME_BYTES, "lac_%s_%s_%u_%u_sm%u%s%s%s%s%s", family_of(spec)->name,
                 format, n, k, device->cc, bits, input, epilogue, variants[config->variant], rows);
    CHECK(bytes > 0 && bytes < KERNEL_NAME_BYTES);
    for (char *c = out; *c != '\0'; c++)
        if (*c >= 'A' && *c <= 'Z') *c = (char)(*c - 'A' + 'a');
}

/* The text. */

static void put_define(struct buffer *out, const struct field *f, uint32_t bits) {
    char upper[64];
    size_t i = 0;
    for (; f->name[i] != '\0'; i++) {
        const char c = f->name[i];
        CHECK(i + 1 < sizeof upper);
        upper[i] = (char)(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
    }
    upper[i] = '\0';
    switch (f->kind) {
    case FIELD_U:
        buffer_printf(out, "#define %s %u\n", upper, bits);
        break;
    case FIELD_F:
        buffer_printf(out, "#define %s __uint_as_float(0x%08xu)\n", upper, bits);
        break;
    case FIELD_T:
        buffer_printf(out, "#define %s FORMAT_%s\n", upper,
                      tensor_format((enum tensor_type)bits)->name);
        break;
    }
}

/* Names that the texts share with jit/kernel.h. */
static const struct constant {
    const char *name;
    uint32_t value;
} constants[] = {
    {"IN_PLANES", KERNEL_IN_PLANES},
    {"IN_NORM", KERNEL_IN_NORM},
    {"OUT_STORE", KERNEL_OUT_STORE},
    {"OUT_RESIDUAL", KERNEL_OUT_RESIDUAL},
    {"OUT_GATED", KERNEL_OUT_GATED},
    {"OUT_GATED_PLANES", KERNEL_OUT_GATED_PLANES},
    {"OUT_QKV", KERNEL_OUT_QKV},
    {"ROPE_NONE", KERNEL_ROPE_NONE},
    {"ROPE_ADJACENT", KERNEL_ROPE_ADJACENT},
    {"ROPE_HALVES", KERNEL_ROPE_HALVES},
    {"NO_NORM", KERNEL_NO_NORM},
    {"NORM_HEAD", KERNEL_NORM_HEAD},
    {"NORM_WHOLE", KERNEL_NORM_WHOLE},
    {"VARIANT_DP4A", KERNEL_DP4A},
    {"VARIANT_MMA", KERNEL_MMA},
    {"VARIANT_WIDE", KERNEL_WIDE},
    {"VARIANT_SPLIT", KERNEL_SPLIT},
    {"VARIANT_WALK", KERNEL_WALK},
    {"TOP", KERNEL_TOP},
};

static void put_text(struct buffer *out, enum kernel_text which) {
    size_t bytes;
    const char *text = kernel_text(which, &bytes);
    buffer_append(out, text, bytes);
}

void kernel_render(const struct kernel_spec *spec, const struct kernel_config *config,
                   const struct kernel_device *device, struct buffer *out) {
    const struct family *f = family_of(spec);
    char line[KERNEL_KEY_BYTES];
    kernel_key(spec, config, device, line);
    buffer_printf(out, "// %s\n", line);
    for (unsigned t = 0; t < TENSOR_TYPE_COUNT; t++)
        buffer_printf(out, "#define FORMAT_%s %u\n", tensor_format((enum tensor_type)t)->name, t);
    for (unsigned i = 0; i < sizeof constants / sizeof *constants; i++)
        buffer_printf(out, "#define %s %u\n", constants[i].name, constants[i].value);
    for (uint32_t i = 0; i < f->n_fields; i++)
        put_define(out, &f->fields[i], word_of(&spec->matmul, i));
    for (uint32_t i = 0; i < sizeof config_fields / sizeof *config_fields; i++)
        put_define(out, &config_fields[i], word_of(config, i));
    buffer_printf(out, "#define THREADS (WARPS * 32)\n#define N_SMS %u\n#define TURING %d\n",
                  device->n_sms, device->cc < 80);
    buffer_printf(out, "#define DEPENDENT_LAUNCH %d\n",
                  device->dependent_launch && device->cc >= 90);
    if (spec->family == KERNEL_MATMUL) {
        const struct matmul_spec *m = &spec->matmul;
        buffer_printf(out, "#define SPLIT_PAIRS %u\n#define SCALED %d\n#define CAPPED %d\n",
                      kernel_split_pairs((enum tensor_type)m->format, m->k), m->scale != 1,
                      m->softcap > 0);
    } else if (spec->family == KERNEL_FFN) {
        const struct ffn_spec *m = &spec->ffn;
        buffer_printf(out, "#define SPLIT_PAIRS %u\n#define DOWN_SPLIT_PAIRS %u\n",
                      kernel_split_pairs((enum tensor_type)m->format, m->k),
                      kernel_split_pairs((enum tensor_type)m->down_format, m->n));
    } else if (spec->family == KERNEL_ATTENTION) {
        buffer_printf(out, "#define CAPPED %d\n#define RUNS %d\n", spec->attention.softcap > 0,
                      KERNEL_GATED_RUNS && spec->attention.gated);
    }
    char name[KERNEL_NAME_BYTES];
    kernel_name(spec, config, device, name);
    buffer_printf(out, "#define KERNEL_NAME %s\n", name);
    put_text(out, KERNEL_TEXT_common);
    buffer_printf(out, "struct params {\n%s};\n", f->params_text);
    if (spec->family == KERNEL_MATMUL || spec->family == KERNEL_FFN) {
        put_text(out, KERNEL_TEXT_weights);
        put_text(out, KERNEL_TEXT_products);
    } else if (spec->family == KERNEL_EMBED) {
        put_text(out, KERNEL_TEXT_weights);
    }
    put_text(out, f->text);
}
