/* Fuzzes the HTTP reader: the first byte says where the stream is cut; cut or whole, it must tell
 * the same, and use no byte twice. */
#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "io/http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What was read, as a running hash. */
struct told {
    uint64_t hash;
    size_t body;
};

static void tell(struct told *t, const void *bytes, size_t n) {
    const unsigned char *p = bytes;
    for (size_t i = 0; i < n; i++) t->hash = (t->hash ^ p[i]) * UINT64_C(1099511628211);
}

static bool on_body(void *arg, const char *bytes, size_t n) {
    struct told *t = arg;
    t->body += n;
    tell(t, bytes, n);
    return t->body < 4096;
}

/* False after an error. */
static bool feed(struct http *h, struct told *t, const uint8_t *data, size_t n) {
    /* A copy of exactly n bytes: reading past it is seen. */
    char *copy = malloc(n != 0 ? n : 1);
    CHECK(copy != NULL);
    if (n > 0) memcpy(copy, data, n);
    size_t at = 0;
    bool again = false, good = true;
    while (good && (at < n || again)) {
        size_t used;
        const enum http_result r = http_feed(h, copy + at, n - at, &used);
        CHECK(used <= n - at);
        at += used;
        again = r == HTTP_HEAD_DONE;
        if (again) {
            CHECK(h->head.has_body == (h->head.chunked || h->head.content_bytes > 0));
            tell(t, h->head.path, strlen(h->head.path));
            tell(t, &h->head.verb, sizeof h->head.verb);
            tell(t, &h->head.content_bytes, sizeof h->head.content_bytes);
            tell(t, &h->head.keep_alive, 1);
        } else if (r == HTTP_MESSAGE_DONE) {
            tell(t, ";", 1);
            t->body = 0;
        } else if (r == HTTP_BAD) {
            CHECK(h->error_status >= 400 && h->error_text != NULL);
            tell(t, &h->error_status, sizeof h->error_status);
            good = false;
        } else {
            CHECK(at == n);
        }
    }
    free(copy);
    return good;
}

/* What was read; after an error only which. */
static uint64_t read_all(const uint8_t *data, size_t size, size_t cut) {
    static struct http h;
    struct told t = {.hash = UINT64_C(14695981039346656037)};
    http_init(&h, 1024, on_body, &t);
    if (feed(&h, &t, data, cut) && feed(&h, &t, data + cut, size - cut)) return t.hash;
    return (uint64_t)h.error_status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2 || size > 4000) return 0;
    const size_t cut = data[0] % size;
    CHECK(read_all(data + 1, size - 1, size - 1) == read_all(data + 1, size - 1, cut));
    return 0;
}
