/* shaped_model.c: writes a GGUF whose tensors are a hole: a llama of given shape, weights all zero,
 * that takes no room on disk. For measuring what depends on shapes only (tests/gpu_check.sh).
 *
 * usage: shaped_model OUT.gguf LAYERS WIDTH FEED_FORWARD HEADS KV_HEADS VOCABULARY
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { U32 = 4, F32 = 6, STRING = 8, TYPE_F32 = 0, TYPE_Q4_1 = 3, TYPE_Q8_0 = 8, ALIGN = 32 };

static FILE *out;
static uint64_t data_bytes;

static void put(uint64_t v, size_t bytes) {
    fwrite(&v, bytes, 1, out);
}
static void put_string(const char *s) {
    put(strlen(s), 8);
    fwrite(s, 1, strlen(s), out);
}
static void put_u32(const char *key, uint32_t v) {
    put_string(key);
    put(U32, 4);
    put(v, 4);
}

/* Offsets follow each other; a block of 32 weights is 20 (Q4_1), 34 (Q8_0) or 128 bytes. */
static void put_tensor(const char *name, uint32_t type, uint64_t k, uint64_t n) {
    const uint64_t block = type == TYPE_Q4_1 ? 20 : type == TYPE_Q8_0 ? 34 : 128;
    put_string(name);
    put(n > 0 ? 2 : 1, 4);
    put(k, 8);
    if (n > 0) put(n, 8);
    put(type, 4);
    put(data_bytes, 8);
    data_bytes += (k / 32 * block * (n > 0 ? n : 1) + ALIGN - 1) / ALIGN * ALIGN;
}

int main(int argc, char **argv) {
    uint32_t v[6];
    if (argc != 8) {
        fprintf(stderr, "usage: %s OUT.gguf LAYERS WIDTH FEED_FORWARD HEADS KV_HEADS VOCABULARY\n",
                argv[0]);
        return 2;
    }
    for (int i = 0; i < 6; i++) v[i] = (uint32_t)strtoul(argv[2 + i], NULL, 10);
    const uint32_t layers = v[0], d = v[1], ff = v[2], heads = v[3], kv_heads = v[4], vocab = v[5];
    if (layers == 0 || heads == 0 || kv_heads == 0 || d % (32 * heads) != 0 || ff % 32 != 0 ||
        heads % kv_heads != 0 || (out = fopen(argv[1], "wb")) == NULL) {
        fprintf(stderr, "%s: not such a shape, or not there\n", argv[0]);
        return 1;
    }
    const uint32_t kv = d / heads * kv_heads;
    fwrite("GGUF", 1, 4, out);
    put(3, 4);
    put(2 + 9 * (uint64_t)layers, 8);
    put(11, 8);
    put_string("general.architecture");
    put(STRING, 4);
    put_string("llama");
    put_u32("general.alignment", ALIGN);
    put_u32("llama.block_count", layers);
    put_u32("llama.context_length", 8192);
    put_u32("llama.embedding_length", d);
    put_u32("llama.feed_forward_length", ff);
    put_u32("llama.attention.head_count", heads);
    put_u32("llama.attention.head_count_kv", kv_heads);
    put_u32("llama.vocab_size", vocab);
    put_u32("llama.rope.dimension_count", d / heads);
    put_string("llama.attention.layer_norm_rms_epsilon");
    put(F32, 4);
    const float epsilon = 1e-5f;
    fwrite(&epsilon, sizeof epsilon, 1, out);
    put_tensor("token_embd.weight", TYPE_Q8_0, d, vocab);
    for (uint32_t i = 0; i < layers; i++) {
        const struct {
            const char *name;
            uint32_t type, k, n;
        } t[9] = {{"attn_norm", TYPE_F32, d, 0},    {"attn_q", TYPE_Q4_1, d, d},
                  {"attn_k", TYPE_Q4_1, d, kv},     {"attn_v", TYPE_Q4_1, d, kv},
                  {"attn_output", TYPE_Q4_1, d, d}, {"ffn_norm", TYPE_F32, d, 0},
                  {"ffn_gate", TYPE_Q4_1, d, ff},   {"ffn_up", TYPE_Q4_1, d, ff},
                  {"ffn_down", TYPE_Q4_1, ff, d}};
        for (int k = 0; k < 9; k++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%u.%s.weight", i, t[k].name);
            put_tensor(name, t[k].type, t[k].k, t[k].n);
        }
    }
    put_tensor("output_norm.weight", TYPE_F32, d, 0);
    const uint64_t header = ((uint64_t)ftell(out) + ALIGN - 1) / ALIGN * ALIGN;
    const int failed =
        fflush(out) != 0 || ftruncate(fileno(out), (off_t)(header + data_bytes)) != 0;
    return fclose(out) != 0 || failed;
}
