#include "alloc/map.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/poison.h"
#include "core/check.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif

enum { POPULATE_CHUNK_BYTES = 4 * 1024 * 1024 };

static enum status refuse(struct error *e, const char *path, const char *what, int err) {
    return error_set(e, err == ENOENT ? STATUS_NOT_FOUND : STATUS_IO, NULL, "cannot %s %s: %s",
                     what, path, strerror(err));
}

static size_t page_bytes(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* What the last page holds behind the file: zeros, whose reading is a bug that only ASan can show.
 */
static size_t tail_bytes(const struct map *m) {
    return (page_bytes() - m->bytes % page_bytes()) % page_bytes();
}

/* The open file and its size. */
static enum status open_file(const char *path, int *out, size_t *bytes, struct error *e) {
    /* Without O_NONBLOCK a FIFO given as a model would hang here instead of being refused below. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return refuse(e, path, "open", errno);

    struct stat st;
    if (fstat(fd, &st) != 0) {
        const int err = errno;
        close(fd);
        return refuse(e, path, "stat", err);
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return error_set(e, STATUS_INVALID, NULL, "%s is not a regular file", path);
    }
    *out = fd;
    *bytes = (size_t)st.st_size;
    return STATUS_OK;
}

static enum status take(struct map *m, const char *path, void *data, size_t bytes, int err,
                        struct error *e) {
    if (data == MAP_FAILED) return refuse(e, path, "map", err);
    m->data = data;
    m->bytes = bytes;
    poison(m->data + m->bytes, tail_bytes(m));
    return STATUS_OK;
}

enum status map_open(const char *path, struct map *m, struct error *e) {
    *m = (struct map){0};
    int fd;
    size_t bytes;
    const enum status st = open_file(path, &fd, &bytes, e);
    if (st != STATUS_OK) return st;
    void *data = bytes > 0 ? mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    const int err = errno;
    close(fd);
    return bytes > 0 ? take(m, path, data, bytes, err, e) : STATUS_OK;
}

enum status map_read(const char *path, struct map *m, struct error *e) {
    *m = (struct map){0};
    int fd;
    size_t bytes;
    const enum status st = open_file(path, &fd, &bytes, e);
    if (st != STATUS_OK || bytes == 0) {
        if (st == STATUS_OK) close(fd);
        return st;
    }
    uint8_t *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int err = errno;
    for (size_t at = 0; (void *)data != MAP_FAILED && at < bytes;) {
        const ssize_t n = read(fd, data + at, bytes - at);
        if (n < 0 && errno == EINTR) continue;
        if (n > 0) {
            at += (size_t)n;
            continue;
        }
        err = n < 0 ? errno : EIO; /* it has become shorter */
        munmap(data, bytes);
        close(fd);
        return refuse(e, path, "read", err);
    }
    close(fd);
    return take(m, path, data, bytes, err, e);
}

void map_close(struct map *m) {
    if (m->data) {
        unpoison(m->data + m->bytes, tail_bytes(m));
        const int rc = munmap((void *)(uintptr_t)m->data, m->bytes);
        CHECK(rc == 0);
    }
    *m = (struct map){0};
}

static int advise_range(const struct map *m, size_t offset, size_t bytes, int advice) {
    const size_t start = offset / page_bytes() * page_bytes();
    return madvise((void *)(uintptr_t)(m->data + start), offset + bytes - start, advice);
}

void map_advise(const struct map *m, size_t offset, size_t bytes, enum map_advice advice) {
    static const int system_advice[] = {
        [MAP_ADVICE_NORMAL] = MADV_NORMAL,     [MAP_ADVICE_SEQUENTIAL] = MADV_SEQUENTIAL,
        [MAP_ADVICE_RANDOM] = MADV_RANDOM,     [MAP_ADVICE_WILLNEED] = MADV_WILLNEED,
        [MAP_ADVICE_DONTNEED] = MADV_DONTNEED,
    };
    CHECK(offset <= m->bytes && bytes <= m->bytes - offset);
    if (bytes == 0) return;
    (void)advise_range(m, offset, bytes, system_advice[advice]);
}

static void touch(const uint8_t *data, size_t bytes) {
    const size_t page = page_bytes();
    for (size_t i = 0; i < bytes; i += page) (void)*(const volatile uint8_t *)(data + i);
}

enum status map_populate(const struct map *m, map_progress *progress, void *context,
                         struct error *e) {
    for (size_t done = 0; done < m->bytes;) {
        const size_t left = m->bytes - done;
        const size_t n = left < POPULATE_CHUNK_BYTES ? left : POPULATE_CHUNK_BYTES;
        int rc;
        do {
            rc = advise_range(m, done, n, MADV_POPULATE_READ);
        } while (rc != 0 && errno == EINTR);
        if (rc != 0) {
            /* EINVAL: an older kernel. Anything else would be a SIGBUS if we touched the page. */
            if (errno != EINVAL) {
                return error_set(e, STATUS_IO, NULL, "cannot read the file at byte %zu: %s", done,
                                 strerror(errno));
            }
            touch(m->data + done, n);
        }
        done += n;
        if (progress && !progress(context, done, m->bytes)) {
            return error_set(e, STATUS_GONE, NULL, "stopped after %zu of %zu bytes", done,
                             m->bytes);
        }
    }
    return STATUS_OK;
}
