/* inspect: what a model file is, what will run, and how much memory it takes. */
#include <stdlib.h>
#include <string.h>

#include "cmd/commands.h"
#include "cmd/usage.h"
#include "core/backend.h"
#include "core/buffer.h"
#include "core/json_writer.h"
#include "models/model.h"

struct type_sum {
    uint32_t tensors;
    uint64_t bytes, weights;
};

static void sum_types(const struct gguf *g, struct type_sum sums[TENSOR_TYPE_COUNT]) {
    memset(sums, 0, TENSOR_TYPE_COUNT * sizeof *sums);
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct tensor *t = gguf_tensor(g, i);
        struct type_sum *s = &sums[t->type];
        s->tensors++;
        s->bytes += t->bytes;
        s->weights += t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3];
    }
}

static uint64_t kv_bytes(const struct plan *p, enum kv_format format, uint32_t positions) {
    uint64_t bytes = 0;
    const uint64_t pages = (positions + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    for (uint32_t g = 0; g < p->n_groups; g++)
        bytes += pages * kv_page_bytes(&p->groups[g], format);
    return bytes;
}

int cmd_inspect(int argc, char **argv) {
    struct config c;
    int rc;
    if (!usage_parse(&c, argc, argv, &rc)) return rc;
    struct error e = {0};
    struct gguf *g;
    if (gguf_open(c.model, &g, &e) != STATUS_OK) return usage_fail("inspect", &e);
    struct type_sum sums[TENSOR_TYPE_COUNT];
    sum_types(g, sums);
    uint64_t weights = 0, bytes = 0;
    for (int t = 0; t < TENSOR_TYPE_COUNT; t++) {
        weights += sums[t].weights;
        bytes += sums[t].bytes;
    }

    struct model *m = NULL;
    const bool runs = model_open(c.model, c.n_ctx, &m, &e) == STATUS_OK;
    const struct plan *p = runs ? model_plan(m) : NULL;
    const uint32_t n_ctx = !runs ? 0 : c.n_ctx != 0 ? c.n_ctx : p->n_ctx_train;

    struct buffer out;
    buffer_init(&out, 16 << 20);
    if (c.json) {
        struct json_writer j;
        json_write_begin(&j, &out);
        json_write_object(&j);
        json_write_key(&j, "file_bytes"), json_write_uint(&j, gguf_file_bytes(g));
        json_write_key(&j, "runs"), json_write_bool(&j, runs);
        if (!runs) json_write_key(&j, "reason"), json_write_string(&j, e.message);
        json_write_key(&j, "weights"), json_write_uint(&j, weights);
        json_write_key(&j, "weight_bytes"), json_write_uint(&j, bytes);
        json_write_key(&j, "types"), json_write_object(&j);
        for (int t = 0; t < TENSOR_TYPE_COUNT; t++) {
            if (sums[t].tensors == 0) continue;
            json_write_key(&j, tensor_format((enum tensor_type)t)->name), json_write_object(&j);
            json_write_key(&j, "tensors"), json_write_uint(&j, sums[t].tensors);
            json_write_key(&j, "bytes"), json_write_uint(&j, sums[t].bytes);
            json_write_object_end(&j);
        }
        json_write_object_end(&j);
        if (runs) {
            json_write_key(&j, "architecture"), json_write_string(&j, p->architecture);
            json_write_key(&j, "name"), json_write_string(&j, p->name);
            json_write_key(&j, "layers"), json_write_uint(&j, p->n_layers);
            json_write_key(&j, "d_model"), json_write_uint(&j, p->d_model);
            json_write_key(&j, "vocabulary"), json_write_uint(&j, p->n_vocab);
            json_write_key(&j, "context"), json_write_uint(&j, n_ctx);
            json_write_key(&j, "kv_groups"), json_write_array(&j);
            for (uint32_t i = 0; i < p->n_groups; i++) {
                json_write_object(&j);
                json_write_key(&j, "layers"), json_write_uint(&j, p->groups[i].n_layers);
                json_write_key(&j, "kv_heads"), json_write_uint(&j, p->groups[i].n_kv_heads);
                json_write_key(&j, "head_dim"), json_write_uint(&j, p->groups[i].head_dim);
                json_write_key(&j, "window"), json_write_uint(&j, p->groups[i].window);
                json_write_object_end(&j);
            }
            json_write_array_end(&j);
            json_write_key(&j, "kv_bytes_f16"), json_write_uint(&j, kv_bytes(p, KV_F16, n_ctx));
            json_write_key(&j, "kv_bytes_q8"), json_write_uint(&j, kv_bytes(p, KV_Q8, n_ctx));
        }
        json_write_key(&j, "keys"), json_write_object(&j);
        for (size_t i = 0; i < gguf_n_keys(g); i++) {
            enum gguf_type type;
            const struct gguf_string k = gguf_key(g, i, &type);
            char name[128], text[256];
            snprintf(name, sizeof name, "%.*s", (int)(k.len < 127 ? k.len : 127), k.data);
            gguf_value_text(g, i, text, sizeof text);
            json_write_key(&j, name), json_write_string(&j, text);
        }
        json_write_object_end(&j);
        json_write_object_end(&j);
        buffer_putc(&out, '\n');
    } else {
        buffer_printf(&out, "file          %s, %.1f MB, %zu tensors, %zu keys\n", c.model,
                      (double)gguf_file_bytes(g) / 1e6, gguf_n_tensors(g), gguf_n_keys(g));
        buffer_printf(&out, "weights       %.1f million, %.2f bits each:", (double)weights / 1e6,
                      weights != 0 ? 8.0 * (double)bytes / (double)weights : 0.0);
        for (int t = 0; t < TENSOR_TYPE_COUNT; t++)
            if (sums[t].tensors != 0)
                buffer_printf(&out, "  %u x %s", sums[t].tensors,
                              tensor_format((enum tensor_type)t)->name);
        buffer_putc(&out, '\n');
        if (runs) {
            buffer_printf(&out, "model         %s (%s): %u layers, width %u, vocabulary %u\n",
                          p->name, p->architecture, p->n_layers, p->d_model, p->n_vocab);
            for (uint32_t i = 0; i < p->n_groups; i++) {
                const struct kv_group *y = &p->groups[i];
                buffer_printf(&out, "KV group %u    %u layers, %u KV heads of %u", i, y->n_layers,
                              y->n_kv_heads, y->head_dim);
                if (y->window != 0) buffer_printf(&out, ", window %u", y->window);
                buffer_putc(&out, '\n');
            }
            buffer_printf(&out,
                          "runs          yes, on the CPU\n"
                          "memory        %.1f MB packed weights; KV of one sequence of %u: %.1f MB "
                          "as f16, %.1f MB as q8\n",
                          (double)bytes / 1e6, n_ctx, (double)kv_bytes(p, KV_F16, n_ctx) / 1e6,
                          (double)kv_bytes(p, KV_Q8, n_ctx) / 1e6);
        } else {
            buffer_printf(&out, "runs          no: %s\n", e.message);
        }
        for (size_t i = 0; i < gguf_n_keys(g); i++) {
            enum gguf_type type;
            const struct gguf_string k = gguf_key(g, i, &type);
            char text[100];
            gguf_value_text(g, i, text, sizeof text);
            for (char *s = text; *s != '\0'; s++)
                if (*s == '\n') *s = ' ';
            buffer_printf(&out, "  %.*s = %s\n", (int)(k.len < 100 ? k.len : 100), k.data, text);
        }
    }
    fwrite(out.data, 1, out.len, stdout);
    buffer_free(&out);
    model_close(m);
    gguf_close(g);
    return 0;
}
