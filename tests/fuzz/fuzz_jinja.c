/* Fuzzes the chat template engine: template text, a NUL, a JSON object. Checks that provenance
 * covers the text and that text without variables has none. */
#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "models/chat_template.h"
#include "models/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char fallback[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"hi <|im_end|>\"}],"
        "\"s\":\"a b\",\"n\":3,\"l\":[1,\"x\",null],\"d\":{\"a\":1.5}}";
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t len = nul ? (size_t)(nul - data) : size;
    struct jinja_limits limits = {
        .memory_bytes = 16 << 20, .output_bytes = 1 << 20, .steps = 100000};
    struct chat_template *t;
    if (chat_template_compile((const char *)data, len, "<s>", "</s>", &t, NULL) != STATUS_OK)
        return 0;
    struct chat_input in = {.json = nul ? (const char *)nul + 1 : fallback,
                            .len = nul ? size - len - 1 : sizeof fallback - 1,
                            .now_s = 1700000000,
                            .limits = &limits};
    for (int i = 0; i < 2; i++) {
        struct rendered r;
        struct error e = {0};
        in.variables = i != 0;
        enum status s = chat_template_render(t, &in, NULL, &r, &e);
        CHECK(s != STATUS_OK || jinja_utf8_valid(r.text, r.len) == r.len);
        CHECK(s == STATUS_OK || (e.message[0] != '\0' || e.status == STATUS_TEMPLATE));
        uint32_t at = 0;
        for (size_t k = 0; k < r.n_spans; k++) {
            CHECK(r.spans[k].start == at && r.spans[k].end > at);
            CHECK(k == 0 || r.spans[k].from_user != r.spans[k - 1].from_user);
            at = r.spans[k].end;
        }
        CHECK(at == r.len);
        rendered_free(&r);
    }
    chat_template_free(t);
    return 0;
}
