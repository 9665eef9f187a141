/* A model file of any bytes, as `serve` opens it: architecture and plan at two context lengths, the
 * tokenizer built from the file's keys and asked, the chat template compiled and rendered. What was
 * accepted is also read: every tensor of the plan, every rotary frequency. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/check.h"
#include "models/chat_template.h"
#include "models/model.h"
#include "models/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* A refusal is one line and says so. */
static void check_refusal(enum status s, const struct error *e) {
    CHECK(e->status == s && e->message[0] != '\0' && strchr(e->message, '\n') == NULL);
}

static void check_plan(const struct plan *p) {
    CHECK(p->n_layers > 0 && p->n_groups > 0 && p->n_groups <= PLAN_MAX_GROUPS);
    CHECK(p->embed->dim[0] == p->d_model && p->embed->dim[1] == p->n_vocab);
    volatile uint8_t sum = 0;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        const struct layer_plan *y = &p->layers[l];
        CHECK(y->group < p->n_groups && (y->rope == PLAN_NO_ROPE || y->rope < p->n_ropes));
        CHECK(y->n_heads % y->n_kv_heads == 0 && y->n_experts_used <= y->n_experts);
        const struct weight all[] = {y->q, y->k, y->v, y->o, y->gate, y->up, y->down};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
            CHECK(all[i].t != NULL && all[i].row0 + all[i].n_rows <= all[i].t->dim[1]);
            const uint8_t *bytes = all[i].t->data;
            sum = (uint8_t)(sum + bytes[0] + bytes[all[i].t->bytes - 1]);
        }
    }
    for (uint32_t r = 0; r < p->n_ropes; r++)
        for (uint32_t i = 0; i < p->ropes[r].n_dims / 2; i++)
            CHECK(!isnan(p->ropes[r].inv_freq[i]));
}

static void ask_tokenizer(const struct gguf *g) {
    struct tokenizer *t;
    struct error e = {0};
    const enum status s = tokenizer_load(g, &t, &e);
    if (s != STATUS_OK) {
        check_refusal(s, &e);
        return;
    }
    static const char text[] = "ab <0x0A> \xe4\xbd\xa0 <|end|>\n1";
    struct token_list ids = {0};
    const enum status done =
        tokenizer_encode(t, NULL, text, sizeof text - 1, TOKENIZE_BOS, &ids, NULL);
    CHECK(done == STATUS_OK || ids.n == 0);
    for (size_t i = 0; i < ids.n; i++) CHECK(ids.ids[i] < tokenizer_n_vocab(t));
    token_list_free(&ids);
    tokenizer_free(t);
}

static void ask_template(const struct gguf *g) {
    struct chat_template *t;
    struct error e = {0};
    enum status s = chat_template_load(g, &t, &e);
    if (s == STATUS_OK) {
        static const char json[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
        const struct chat_input in = {.json = json, .len = sizeof json - 1};
        struct rendered r;
        s = chat_template_render(t, &in, NULL, &r, &e);
        rendered_free(&r);
        chat_template_free(t);
    }
    if (s != STATUS_OK) CHECK(e.status == s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    char path[64];
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    for (uint32_t n_ctx = 0; n_ctx <= 64; n_ctx += 64) {
        struct model *m;
        struct error e = {0};
        const enum status s = model_open(path, n_ctx, &m, &e);
        if (s == STATUS_OK) {
            check_plan(model_plan(m));
        } else {
            check_refusal(s, &e);
        }
        model_close(m);
    }
    struct gguf *g;
    if (gguf_open(path, &g, NULL) == STATUS_OK) {
        ask_tokenizer(g);
        ask_template(g);
        gguf_close(g);
    }
    close(fd);
    return 0;
}
