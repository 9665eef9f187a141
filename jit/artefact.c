#include "jit/artefact.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/buffer.h"
#include "core/check.h"
#include "core/clock.h"

static bool is_name(const char *name) {
    const size_t n = strlen(name);
    return n > 0 && n < ARTEFACT_NAME_BYTES &&
           name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_")] == '\0';
}

static bool is_line(const char *s) {
    return strpbrk(s, "\r\n") == NULL;
}

void artefact_identify(const struct artefact_key *key, struct artefact_id *id) {
    CHECK(is_name(key->name) && is_line(key->build) && is_line(key->spec) && is_line(key->options));
    memset(id, 0, sizeof *id);
    snprintf(id->name, sizeof id->name, "%s", key->name);
    id->arch = key->arch;
    id->sm_count = key->sm_count;
    const XXH128_hash_t source = XXH3_128bits(key->source, strlen(key->source));
    struct buffer b;
    buffer_init_fixed(&b, id->text, sizeof id->text);
    buffer_printf(&b,
                  "kernel %s\nbuild %s\nsource %016" PRIx64 "%016" PRIx64
                  "\nspec %s\noptions %s\narch %u\nsms %u\n",
                  key->name, key->build, source.high64, source.low64, key->spec, key->options,
                  key->arch, key->sm_count);
    CHECK(!b.full);
    id->text_bytes = (uint32_t)b.len;
    const XXH128_hash_t digest = XXH3_128bits(id->text, id->text_bytes);
    id->digest[0] = digest.low64;
    id->digest[1] = digest.high64;
}

bool artefact_same(const struct artefact_id *id, const void *text, size_t text_bytes) {
    return text_bytes == id->text_bytes && memcmp(text, id->text, text_bytes) == 0;
}

bool artefact_field(const char *text, size_t text_bytes, const char *field, const char **value,
                    size_t *value_bytes) {
    const size_t n = strlen(field);
    const char *at = text, *end = text + text_bytes;
    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const size_t line = (size_t)((newline != NULL ? newline : end) - at);
        if (line > n && memcmp(at, field, n) == 0 && at[n] == ' ') {
            *value = at + n + 1;
            *value_bytes = line - n - 1;
            return true;
        }
        if (newline == NULL) break;
        at = newline + 1;
    }
    *value = NULL;
    *value_bytes = 0;
    return false;
}

bool artefact_plausible(const uint8_t *cubin, size_t cubin_bytes, const char *ptx,
                        size_t ptx_bytes) {
    static const uint8_t elf[] = {0x7f, 'E', 'L', 'F'};
    if (cubin_bytes < 64 || cubin_bytes > ARTEFACT_CODE_BYTES) return false;
    if (ptx_bytes < 2 || ptx_bytes > ARTEFACT_CODE_BYTES) return false;
    return memcmp(cubin, elf, sizeof elf) == 0 && memchr(ptx, 0, ptx_bytes) == ptx + ptx_bytes - 1;
}

void artefact_free(struct artefact *a) {
    free(a->memory);
    *a = (struct artefact){0};
}

static bool write_all(int fd, const uint8_t *data, size_t bytes) {
    while (bytes > 0) {
        const ssize_t n = write(fd, data, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        data += n;
        bytes -= (size_t)n;
    }
    return true;
}

static bool write_parts(int fd, const struct artefact_part *parts, size_t n_parts) {
    for (size_t i = 0; i < n_parts; i++) {
        if (!write_all(fd, parts[i].data, parts[i].bytes)) return false;
    }
    return true;
}

enum status artefact_publish(const char *path, unsigned mode, const struct artefact_part *parts,
                             size_t n_parts, struct error *e) {
    char temporary[4096];
    const char *slash = strrchr(path, '/');
    const size_t folder = slash != NULL ? (size_t)(slash - path) + 1 : 0;
    int fd = -1, err = EEXIST;
    while (fd < 0 && err == EEXIST) {
        const int n = snprintf(temporary, sizeof temporary, "%.*s.tmp-%d-%" PRIx64, (int)folder,
                               path, (int)getpid(), clock_now_ns());
        if (n < 0 || (size_t)n >= sizeof temporary) {
            return error_set(e, STATUS_IO, NULL, "cannot write %.150s: the path is too long", path);
        }
        fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        err = fd < 0 ? errno : 0;
    }
    if (fd >= 0) {
        /* Without the sync a power cut could leave the new name on an empty file. */
        if (!write_parts(fd, parts, n_parts) || fsync(fd) != 0) err = errno;
        if (close(fd) != 0 && err == 0) err = errno;
        if (err == 0 && rename(temporary, path) != 0) err = errno;
        if (err != 0) (void)unlink(temporary);
    }
    if (err == 0) return STATUS_OK;
    const bool full = err == ENOSPC || err == EDQUOT || err == EFBIG;
    return error_set(e, full ? STATUS_FULL : STATUS_IO, NULL, "cannot write %.150s: %s", path,
                     strerror(err));
}
