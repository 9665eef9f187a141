/* Fuzzes request bodies: the scan, the document and each API's fields. What we take, jansson takes
 * too, and what we write of it is the same document. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "io/json_doc.h"
#include "io/openai.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void compare(struct json_doc *d, const char *bytes, size_t n) {
    json_error_t why;
    json_t *whole = json_loadb(bytes, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    CHECK(whole != NULL);
    struct buffer out;
    buffer_init(&out, 0);
    CHECK(json_doc_write(d, d->root, &out) == STATUS_OK && !out.full);
    json_t *again = json_loadb(out.data, out.len, JSON_ALLOW_NUL, &why);
    CHECK(again != NULL && json_equal(whole, again));
    json_decref(again);
    json_decref(whole);
    buffer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct body body;
    if (size > 1 << 18 || !body_append(&body, (const char *)data, size)) return 0;
    struct json_doc d;
    struct error e = {0};
    const enum status s = json_doc_read(&d, &body, NULL, &e);
    if (s == STATUS_OK)
        compare(&d, (const char *)data, size);
    else
        CHECK(e.status == s && e.message[0] != '\0');
    json_doc_free(&d);
    for (int kind = REQUEST_CHAT; kind <= REQUEST_DETOKENIZE; kind++) {
        struct openai_request r;
        e = (struct error){0};
        const enum status st = openai_parse(&r, (enum request_kind)kind, &body, "model", NULL, &e);
        if (st == STATUS_OK) {
            CHECK(r.base.n >= 1 && r.base.n <= REQUEST_MAX_CHOICES);
            CHECK(r.base.temperature >= 0 && r.base.temperature <= 2);
            CHECK(r.base.n_stops <= REQUEST_MAX_STOPS);
            CHECK(kind != REQUEST_CHAT || r.base.chat_json.len > 0);
            for (uint32_t i = 1; i < r.base.n_logit_bias; i++)
                CHECK(r.base.logit_bias[i - 1].id < r.base.logit_bias[i].id);
        } else {
            CHECK(e.status == st && e.message[0] != '\0');
        }
        openai_request_free(&r);
    }
    body_clear(&body);
    return 0;
}
