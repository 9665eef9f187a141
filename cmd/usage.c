#include "cmd/usage.h"

#include <stdlib.h>
#include <string.h>

#include "core/buffer.h"
#include "models/unicode.h"

bool usage_parse(struct config *c, int argc, char **argv, int *exit_status) {
    struct error e = {0};
    if (config_parse(c, argv[0], argc - 1, argv + 1, &e) != STATUS_OK) {
        fprintf(stderr, "laconic %s: %s\n(laconic %s --help lists the options)\n", argv[0],
                e.message, argv[0]);
        *exit_status = 2;
        return false;
    }
    if (c->help) {
        config_print_help(stdout, argv[0]);
        *exit_status = 0;
        return false;
    }
    return true;
}

void usage_clean(char *text) {
    for (char *c = text; *c != '\0'; c++)
        if (((unsigned char)*c < 0x20 && *c != '\n') || *c == 0x7f) *c = '?';
}

void usage_reason(const struct error *e, char *text, size_t cap) {
    /* Names out of a file have dots in them; options and request fields do not. */
    const bool named = strchr(e->field, '.') == NULL || strstr(e->message, e->field) != NULL;
    snprintf(text, cap, "%s%s%s", named ? "" : e->field, named ? "" : ": ", e->message);
    usage_clean(text);
}

int usage_fail(const char *command, const struct error *e) {
    char reason[sizeof e->field + sizeof e->message + 2];
    usage_reason(e, reason, sizeof reason);
    fprintf(stderr, "laconic %s: %s\n", command, reason);
    return 1;
}

enum status usage_read_all(FILE *in, size_t max_bytes, char **text, size_t *len, struct error *e) {
    struct buffer b;
    buffer_init(&b, max_bytes + 1);
    char chunk[16384];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, in)) > 0) buffer_append(&b, chunk, n);
    const bool broken = ferror(in) != 0;
    const char *s = buffer_cstr(&b);
    *text = NULL;
    *len = 0;
    if (broken || b.full || s == NULL) {
        buffer_free(&b);
        return broken
                   ? error_set(e, STATUS_IO, NULL, "the input cannot be read")
                   : error_set(e, STATUS_TOO_LARGE, NULL, "the input is over %zu bytes", max_bytes);
    }
    *text = b.data;
    *len = b.len;
    return STATUS_OK;
}

enum status usage_check_utf8(const char *what, const char *text, size_t len, struct error *e) {
    uint32_t cp;
    for (size_t i = 0; i < len;) {
        const size_t n = utf8_decode(text + i, len - i, &cp);
        if (cp == UTF8_INVALID)
            return error_set(e, STATUS_INVALID, NULL, "%s is not UTF-8 at byte %zu", what, i);
        i += n;
    }
    return STATUS_OK;
}
