#include "cmd/inspect_sidecar.h"

#include <string.h>

#include "cmd/usage.h"
#include "core/buffer.h"
#include "core/json_writer.h"
#include "models/sidecar.h"

static void write_json(const struct sidecar *s, const char *model, struct buffer *out) {
    struct json_writer j;
    json_write_begin(&j, out);
    json_write_object(&j);
    json_write_key(&j, "file_bytes"), json_write_uint(&j, sidecar_file_bytes(s));
    json_write_key(&j, "model"), json_write_string(&j, model);
    json_write_key(&j, "sections"), json_write_array(&j);
    for (uint32_t i = 0; i < sidecar_n_sections(s); i++) {
        const struct sidecar_section *x = sidecar_section(s, i);
        const char *name = sidecar_kind_name(x->kind);
        json_write_object(&j);
        json_write_key(&j, "kind"), json_write_uint(&j, x->kind);
        json_write_key(&j, "name");
        if (name != NULL)
            json_write_string(&j, name);
        else
            json_write_null(&j);
        json_write_key(&j, "key"), json_write_string(&j, x->key);
        json_write_key(&j, "version"), json_write_uint(&j, x->version);
        json_write_key(&j, "bytes"), json_write_uint(&j, x->bytes);
        json_write_object_end(&j);
    }
    json_write_array_end(&j);
    json_write_object_end(&j);
    buffer_putc(out, '\n');
}

static void write_text(const struct sidecar *s, const char *path, const char *model,
                       struct buffer *out) {
    buffer_printf(out, "side-car      %s, %.2f MB, %u sections, all checksums hold\n", path,
                  (double)sidecar_file_bytes(s) / 1e6, sidecar_n_sections(s));
    buffer_printf(out, "made for      %s\n", model);
    for (uint32_t i = 0; i < sidecar_n_sections(s); i++) {
        const struct sidecar_section *x = sidecar_section(s, i);
        const char *name = sidecar_kind_name(x->kind);
        buffer_printf(out, "  %-12s  %-20s  version %u, %.3f MB%s\n", name != NULL ? name : "?",
                      x->key, x->version, (double)x->bytes / 1e6,
                      name != NULL ? "" : " (unknown to this build, skipped)");
    }
    for (uint32_t i = 0; i < sidecar_n_sections(s); i++) {
        const struct sidecar_section *x = sidecar_section(s, i);
        if (x->kind != SIDECAR_REPORT) continue;
        buffer_printf(out, "report of %s: ", x->key);
        /* One line of JSON; whatever else a file may hold is not sent to a terminal. */
        for (size_t b = 0; b < x->bytes; b++) {
            const char c = ((const char *)x->data)[b];
            if (c >= ' ' && c <= '~') buffer_putc(out, c);
        }
        buffer_putc(out, '\n');
    }
}

int inspect_sidecar(const struct config *c) {
    struct error e = {0};
    struct sidecar *s;
    if (sidecar_open(c->model, NULL, &s, &e) != STATUS_OK) return usage_fail("inspect", &e);
    uint64_t digest[2];
    sidecar_model(s, digest);
    char model[40];
    snprintf(model, sizeof model, "%016llx%016llx", (unsigned long long)digest[1],
             (unsigned long long)digest[0]);
    struct buffer out;
    buffer_init(&out, 0);
    if (c->json)
        write_json(s, model, &out);
    else
        write_text(s, c->model, model, &out);
    fwrite(out.data, 1, out.len, stdout);
    buffer_free(&out);
    sidecar_close(s);
    return ferror(stdout) != 0 ? 1 : 0;
}
