#include "cmd/inspect_pack.h"

#include <stdlib.h>
#include <string.h>

#include "cmd/usage.h"
#include "core/buffer.h"
#include "core/json_writer.h"
#include "jit/pack.h"

struct line {
    const char *data;
    size_t bytes;
};

static int by_target_and_name(const void *a, const void *b) {
    const struct pack_row *x = a, *y = b;
    if (x->arch != y->arch) return x->arch < y->arch ? -1 : 1;
    if (x->sm_count != y->sm_count) return x->sm_count < y->sm_count ? -1 : 1;
    const size_t n = x->text_bytes < y->text_bytes ? x->text_bytes : y->text_bytes;
    return memcmp(x->text, y->text, n);
}

static struct line field(const struct pack_row *row, const char *name) {
    struct line l;
    (void)artefact_field(row->text, row->text_bytes, name, &l.data, &l.bytes);
    return l.data != NULL ? l : (struct line){"", 0};
}

static void write_json(const struct pack *p, const struct pack_row *rows, struct buffer *out) {
    struct json_writer j;
    json_write_begin(&j, out);
    json_write_object(&j);
    json_write_key(&j, "file_bytes"), json_write_uint(&j, pack_file_bytes(p));
    json_write_key(&j, "kernels"), json_write_array(&j);
    for (uint32_t i = 0; i < pack_n_rows(p); i++) {
        static const char *const fields[] = {"kernel", "build", "source", "spec", "options"};
        const struct pack_row row = rows[i];
        json_write_object(&j);
        for (size_t f = 0; f < sizeof fields / sizeof fields[0]; f++) {
            const struct line l = field(&row, fields[f]);
            json_write_key(&j, fields[f]), json_write_string_n(&j, l.data, l.bytes);
        }
        json_write_key(&j, "arch"), json_write_uint(&j, row.arch);
        json_write_key(&j, "sms"), json_write_uint(&j, row.sm_count);
        json_write_key(&j, "compiler"), json_write_string(&j, row.artefact.compiler);
        json_write_key(&j, "cubin_bytes"), json_write_uint(&j, row.artefact.cubin_bytes);
        json_write_key(&j, "ptx_bytes"), json_write_uint(&j, row.artefact.ptx_bytes);
        json_write_object_end(&j);
    }
    json_write_array_end(&j);
    json_write_object_end(&j);
    buffer_putc(out, '\n');
}

/* What a file says is printed without its control characters. */
static void put_clean(struct buffer *out, struct line l) {
    for (size_t i = 0; i < l.bytes; i++) {
        const unsigned char byte = (unsigned char)l.data[i];
        buffer_putc(out, byte < 0x20 || byte == 0x7f ? '?' : (char)byte);
    }
}

static void write_text(const struct config *c, const struct pack *p, const struct pack_row *rows,
                       struct buffer *out) {
    char targets[1024];
    pack_targets(p, targets, sizeof targets);
    buffer_printf(out, "file      %s, %.1f MB, a pack of %u kernels\nfor       %s\n", c->model,
                  (double)pack_file_bytes(p) / 1e6, pack_n_rows(p),
                  targets[0] != '\0' ? targets : "nothing");
    for (uint32_t i = 0; i < pack_n_rows(p); i++) {
        const struct pack_row row = rows[i];
        buffer_printf(out, "  sm_%u x %u  %6.1f kB cubin %6.1f kB PTX  ", row.arch, row.sm_count,
                      (double)row.artefact.cubin_bytes / 1e3, (double)row.artefact.ptx_bytes / 1e3);
        put_clean(out, field(&row, "kernel"));
        buffer_puts(out, "  (");
        put_clean(out, (struct line){row.artefact.compiler, strlen(row.artefact.compiler)});
        buffer_puts(out, ", build ");
        put_clean(out, field(&row, "build"));
        buffer_puts(out, ")\n");
    }
}

int inspect_pack(const struct config *c) {
    struct error e = {0};
    struct pack *p;
    if (pack_open(c->model, &p, &e) != STATUS_OK) return usage_fail("inspect", &e);
    const uint32_t n = pack_n_rows(p);
    struct pack_row *rows = calloc(n + 1, sizeof *rows);
    if (rows == NULL) {
        pack_close(p);
        error_set(&e, STATUS_NO_MEMORY, NULL, "no memory to list the pack");
        return usage_fail("inspect", &e);
    }
    for (uint32_t i = 0; i < n; i++) pack_row_at(p, i, &rows[i]);
    qsort(rows, n, sizeof *rows, by_target_and_name);
    struct buffer out;
    buffer_init(&out, 0);
    if (c->json)
        write_json(p, rows, &out);
    else
        write_text(c, p, rows, &out);
    fwrite(out.data, 1, out.len, stdout);
    buffer_free(&out);
    free(rows);
    pack_close(p);
    return 0;
}
