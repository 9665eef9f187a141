/* inspect: what a model file is, what will run, and how much memory it takes. */
#include <stdlib.h>
#include <string.h>

#include "cmd/commands.h"
#include "cmd/engine.h"
#include "cmd/inspect_sidecar.h"
#include "cmd/inspect_pack.h"
#include "cmd/inspect_memory.h"
#include "cmd/side_car.h"
#include "cmd/usage.h"
#include "core/backend.h"
#include "core/buffer.h"
#include "core/json_writer.h"
#include "jit/pack.h"
#include "models/block_plan.h"
#include "models/chat_template.h"
#include "models/model.h"
#include "models/sidecar.h"
#include "models/tokenizer.h"

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

/* Memory with the side-car's blocks, as `serve` would run them. */
static enum status try_memory(const struct config *c, struct model *m,
                              struct inspect_memory *memory, struct error *e) {
    struct plan plan = *model_plan(m);
    struct block_plan_memory blocks = {0};
    struct sidecar *side_car;
    enum status s = side_car_open(c, model_gguf(m), &side_car, e);
    uint32_t kinds = 0;
    if (s == STATUS_OK) s = side_car_block_kinds(c, side_car, &plan, &kinds, e);
    if (s == STATUS_OK && kinds != 0) s = block_plan_add(&plan, side_car, kinds, &blocks, e);
    if (s == STATUS_OK) s = inspect_memory(c, &plan, memory, e);
    memory->serve_bytes += blocks.head_bytes;
    block_plan_free(&blocks);
    sidecar_close(side_car);
    return s;
}

/* All that `serve` and `run` would open, one after the other; the first refusal is the answer. */
static enum status try_all(const struct config *c, struct model **m, struct inspect_memory *memory,
                           bool *chat, struct error *e) {
    *chat = false;
    *memory = (struct inspect_memory){0};
    enum status s = model_open(c->model, c->n_ctx, m, e);
    if (s == STATUS_OK) s = try_memory(c, *m, memory, e);
    struct tokenizer *tokenizer = NULL;
    if (s == STATUS_OK) s = tokenizer_load(model_gguf(*m), &tokenizer, e);
    if (s == STATUS_OK && tokenizer_n_vocab(tokenizer) > model_plan(*m)->n_vocab)
        s = error_set(e, STATUS_CORRUPT, "tokenizer.ggml.tokens",
                      "the tokenizer has %u tokens, the model %u", tokenizer_n_vocab(tokenizer),
                      model_plan(*m)->n_vocab);
    tokenizer_free(tokenizer);
    if (s != STATUS_OK) return s;
    struct chat_template *template = NULL;
    s = chat_template_load(model_gguf(*m), &template, e);
    chat_template_free(template);
    *chat = s == STATUS_OK;
    return s == STATUS_NOT_FOUND ? STATUS_OK : s;
}

static void write_device(struct json_writer *j, const struct inspect_memory *m) {
    const struct cuda_backend_plan *d = &m->device;
    json_write_key(j, "device"), json_write_object(j);
    json_write_key(j, "runs"), json_write_bool(j, m->on_device);
    if (!m->on_device) json_write_key(j, "reason"), json_write_string(j, m->why.message);
    if (d->budget.n_lines > 0) {
        json_write_key(j, "name"), json_write_string(j, d->device);
        json_write_key(j, "sms"), json_write_uint(j, d->n_sms);
        json_write_key(j, "compute_capability"), json_write_uint(j, d->cc);
        json_write_key(j, "lines"), json_write_object(j);
        for (uint32_t i = 0; i < d->budget.n_lines; i++)
            json_write_key(j, d->budget.lines[i].name),
                json_write_uint(j, d->budget.lines[i].bytes);
        json_write_object_end(j);
        json_write_key(j, "total_bytes"), json_write_uint(j, d->budget.total_bytes);
        json_write_key(j, "limit_bytes"), json_write_uint(j, d->limit.limit_bytes);
        json_write_key(j, "pinned_bytes"), json_write_uint(j, d->pinned_bytes);
        json_write_key(j, "kv_pages"), json_write_uint(j, d->n_pages);
        json_write_key(j, "graphs"), json_write_uint(j, d->n_graphs);
        json_write_key(j, "layer_kernels"), json_write_object(j);
        json_write_key(j, "decode"), json_write_uint(j, d->decode_layer_kernels);
        json_write_key(j, "prefill"), json_write_uint(j, d->prefill_layer_kernels);
        json_write_object_end(j);
    }
    json_write_object_end(j);
}

static void print_device(struct buffer *out, const struct inspect_memory *m) {
    const struct cuda_backend_plan *d = &m->device;
    char text[BUDGET_TEXT_BYTES];
    buffer_printf(out, "GPU           %s%s%s\n", d->device, d->device[0] != '\0' ? ": " : "",
                  m->on_device ? "serve takes of it" : m->why.message);
    for (uint32_t i = 0; i < d->budget.n_lines; i++)
        buffer_printf(out, "  %-30s %12s\n", d->budget.lines[i].name,
                      budget_format(d->budget.lines[i].bytes, text));
    if (d->budget.n_lines == 0) return;
    buffer_printf(out, "  %-30s %12s", "total", budget_format(d->budget.total_bytes, text));
    buffer_printf(out, " of %s\n", budget_format(d->limit.limit_bytes, text));
    buffer_printf(out, "  %-30s %12s\n", "steps (host, pinned)",
                  budget_format(d->pinned_bytes, text));
    buffer_printf(out,
                  "  %u graphs and the kernels besides, as the driver needs: serve prints them\n"
                  "  %u kernels a layer in a decode step, %u in prefill, at any number of rows\n",
                  d->n_graphs, d->decode_layer_kernels, d->prefill_layer_kernels);
}

int cmd_inspect(int argc, char **argv) {
    struct config c;
    int rc;
    if (!usage_parse(&c, argc, argv, &rc)) return rc;
    if (pack_is(c.model)) return inspect_pack(&c);
    if (sidecar_is(c.model)) return inspect_sidecar(&c);
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
    struct inspect_memory memory;
    bool chat;
    const bool runs = try_all(&c, &m, &memory, &chat, &e) == STATUS_OK;
    char reason[sizeof e.field + sizeof e.message + 2];
    usage_reason(&e, reason, sizeof reason);
    const struct plan *p = m != NULL ? model_plan(m) : NULL;
    const uint32_t n_ctx = p == NULL ? 0 : engine_context(c.n_ctx, p);

    struct buffer out;
    buffer_init(&out, 16 << 20);
    if (c.json) {
        struct json_writer j;
        json_write_begin(&j, &out);
        json_write_object(&j);
        json_write_key(&j, "file_bytes"), json_write_uint(&j, gguf_file_bytes(g));
        json_write_key(&j, "runs"), json_write_bool(&j, runs);
        if (!runs) json_write_key(&j, "reason"), json_write_string(&j, reason);
        if (runs) json_write_key(&j, "chat"), json_write_bool(&j, chat);
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
        if (p != NULL) {
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
        if (runs) {
            json_write_key(&j, "memory"), json_write_object(&j);
            json_write_key(&j, "batch"), json_write_uint(&j, memory.batch);
            json_write_key(&j, "backend_bytes"), json_write_uint(&j, memory.backend_bytes);
            json_write_key(&j, "step_bytes"), json_write_uint(&j, memory.step_bytes);
            json_write_key(&j, "kv_sequence_bytes"), json_write_uint(&j, memory.kv_sequence_bytes);
            json_write_key(&j, "kv_batch_bytes"), json_write_uint(&j, memory.kv_batch_bytes);
            json_write_key(&j, "serve_kv_bytes"), json_write_uint(&j, memory.serve_kv_bytes);
            json_write_key(&j, "serve_bytes"), json_write_uint(&j, memory.serve_bytes);
            json_write_object_end(&j);
            if (memory.has_device) write_device(&j, &memory);
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
        if (p != NULL) {
            buffer_printf(&out, "model         %s (%s): %u layers, width %u, vocabulary %u\n",
                          p->name, p->architecture, p->n_layers, p->d_model, p->n_vocab);
            for (uint32_t i = 0; i < p->n_groups; i++) {
                const struct kv_group *y = &p->groups[i];
                buffer_printf(&out, "KV group %u    %u layers, %u KV heads of %u", i, y->n_layers,
                              y->n_kv_heads, y->head_dim);
                if (y->window != 0) buffer_printf(&out, ", window %u", y->window);
                buffer_putc(&out, '\n');
            }
        }
        if (runs) {
            buffer_printf(
                &out,
                "runs          yes, on the CPU%s\n"
                "memory        %.1f MB packed weights and scratch; KV of a sequence of %u: "
                "%.1f MB as f16, %.1f MB as q8; of %u as asked: %.1f MB\n"
                "serve         %.1f MB with the %.1f MB of KV that %s\n",
                chat ? "" : ", without chat: the file has no chat template",
                (double)(memory.backend_bytes + memory.step_bytes) / 1e6, n_ctx,
                (double)kv_bytes(p, KV_F16, n_ctx) / 1e6, (double)kv_bytes(p, KV_Q8, n_ctx) / 1e6,
                memory.batch, (double)memory.kv_batch_bytes / 1e6, (double)memory.serve_bytes / 1e6,
                (double)memory.serve_kv_bytes / 1e6,
                c.kv_mib != 0 ? "--kv-mib gives it" : "it takes without --kv-mib");
            if (memory.has_device) print_device(&out, &memory);
        } else {
            buffer_printf(&out, "runs          no: %s\n", reason);
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
    if (buffer_cstr(&out) != NULL && !c.json) usage_clean(out.data);
    fwrite(out.data, 1, out.len, stdout);
    buffer_free(&out);
    model_close(m);
    gguf_close(g);
    return 0;
}
