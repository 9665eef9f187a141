#include "jit/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/check.h"
#include "core/clock.h"

enum {
    LAYOUT_VERSION = 1,
    ABANDONED_AFTER_S = 3600,
    DEFAULT_LIMIT_BYTES = 256 << 20,
    CODE_ALIGNMENT = 16,
    PATH_BYTES = 4096,
};

static const char MAGIC[4] = {'L', 'A', 'C', 'K'};

/* Little endian, as every machine this runs on. Then: text, compiler, zeros to a multiple of 16,
 * cubin, PTX. */
struct header {
    char magic[4];
    uint32_t version;
    uint64_t key[2]; /* XXH3-128 of text and compiler */
    uint64_t file_bytes;
    uint32_t text_bytes, compiler_bytes;
    uint64_t cubin_bytes, ptx_bytes;
    uint64_t compile_ns;
    uint64_t checksum[2]; /* XXH3-128 of the fields above and of all that follows the header */
};
_Static_assert(sizeof(struct header) == 80, "the file's layout");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file's byte order");

enum trouble { TROUBLE_FOLDER, TROUBLE_READ, TROUBLE_WRITE, TROUBLE_ASIDE, TROUBLE_COUNT };

struct store {
    char folder[PATH_BYTES / 2];
    uint64_t limit_bytes;
    const struct log *log;
    bool readable;
    atomic_bool writable;
    pthread_mutex_t lock; /* over said, and one trim at a time */
    bool said[TROUBLE_COUNT];
};

static void say_once(struct store *s, enum trouble kind, const char *text) {
    pthread_mutex_lock(&s->lock);
    const bool first = !s->said[kind];
    s->said[kind] = true;
    pthread_mutex_unlock(&s->lock);
    if (first) log_write(s->log, LOG_WARN, "kernel cache: %s", text);
}

static enum status make_folder(const char *folder, struct error *e) {
    char path[PATH_BYTES / 2];
    snprintf(path, sizeof path, "%s", folder);
    for (char *at = path + 1; *at != '\0'; at++) {
        if (*at != '/') continue;
        *at = '\0';
        (void)mkdir(path, 0700);
        *at = '/';
    }
    if (mkdir(path, 0700) == 0 || errno == EEXIST) return STATUS_OK;
    return error_set(e, STATUS_IO, "cache-dir", "cannot make %.150s: %s", folder, strerror(errno));
}

static enum status check_folder(const char *folder, struct error *e) {
    struct stat st;
    if (strlen(folder) >= PATH_BYTES / 2) {
        return error_set(e, STATUS_IO, "cache-dir", "the folder's name is too long");
    }
    if (stat(folder, &st) != 0) {
        const enum status s = make_folder(folder, e);
        if (s != STATUS_OK) return s;
        if (stat(folder, &st) != 0) {
            return error_set(e, STATUS_IO, "cache-dir", "cannot use %.150s: %s", folder,
                             strerror(errno));
        }
    }
    if (!S_ISDIR(st.st_mode)) {
        return error_set(e, STATUS_IO, "cache-dir", "%.150s is not a folder", folder);
    }
    if ((st.st_mode & S_IWOTH) != 0 || (st.st_uid != geteuid() && st.st_uid != 0)) {
        return error_set(e, STATUS_IO, "cache-dir", "others may write to %.150s, so it is not used",
                         folder);
    }
    return STATUS_OK;
}

static bool ends_with(const char *name, const char *tail) {
    const size_t n = strlen(name), t = strlen(tail);
    return n > t && strcmp(name + n - t, tail) == 0;
}

/* What a process that died while writing left behind. The age spares those being written now. */
static void remove_abandoned(const struct store *s) {
    DIR *d = opendir(s->folder);
    if (d == NULL) return;
    const time_t now = (time_t)clock_wall_s();
    for (const struct dirent *entry; (entry = readdir(d)) != NULL;) {
        struct stat st;
        if (strncmp(entry->d_name, ".tmp-", 5) != 0) continue;
        if (fstatat(dirfd(d), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) continue;
        if (S_ISREG(st.st_mode) && now - st.st_mtime > ABANDONED_AFTER_S) {
            (void)unlinkat(dirfd(d), entry->d_name, 0);
        }
    }
    closedir(d);
}

enum status store_open(const struct store_config *cfg, struct store **out, struct error *e) {
    *out = NULL;
    struct store *s = calloc(1, sizeof *s);
    if (s == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the kernel cache");
    s->limit_bytes = cfg->limit_bytes != 0 ? cfg->limit_bytes : DEFAULT_LIMIT_BYTES;
    s->log = cfg->log;
    pthread_mutex_init(&s->lock, NULL);
    *out = s;
    if (cfg->folder == NULL) return STATUS_OK;
    struct error why = {0};
    if (check_folder(cfg->folder, &why) != STATUS_OK) {
        char text[sizeof why.message + 64];
        snprintf(text, sizeof text, "%s; kernels are kept in memory only", why.message);
        say_once(s, TROUBLE_FOLDER, text);
        return STATUS_OK;
    }
    snprintf(s->folder, sizeof s->folder, "%s", cfg->folder);
    s->readable = true;
    atomic_store(&s->writable, true);
    remove_abandoned(s);
    return STATUS_OK;
}

void store_close(struct store *s) {
    if (s == NULL) return;
    pthread_mutex_destroy(&s->lock);
    free(s);
}

bool store_is_writable(const struct store *s) {
    return atomic_load(&s->writable);
}

static void path_of(const struct store *s, const struct artefact_id *id, char path[PATH_BYTES]) {
    snprintf(path, PATH_BYTES, "%s/%s-%016" PRIx64 "%016" PRIx64 ".lack", s->folder, id->name,
             id->digest[1], id->digest[0]);
}

static void digest_key(const struct artefact_id *id, const char *compiler, uint64_t key[2]) {
    XXH3_state_t *x = XXH3_createState();
    CHECK(x != NULL);
    XXH3_128bits_reset(x);
    XXH3_128bits_update(x, id->text, id->text_bytes);
    XXH3_128bits_update(x, compiler, strlen(compiler));
    const XXH128_hash_t h = XXH3_128bits_digest(x);
    XXH3_freeState(x);
    key[0] = h.low64;
    key[1] = h.high64;
}

static void checksum(const struct header *h, const struct artefact_part *parts, size_t n_parts,
                     uint64_t sum[2]) {
    XXH3_state_t *x = XXH3_createState();
    CHECK(x != NULL);
    XXH3_128bits_reset(x);
    XXH3_128bits_update(x, h, offsetof(struct header, checksum));
    for (size_t i = 0; i < n_parts; i++) XXH3_128bits_update(x, parts[i].data, parts[i].bytes);
    const XXH128_hash_t digest = XXH3_128bits_digest(x);
    XXH3_freeState(x);
    sum[0] = digest.low64;
    sum[1] = digest.high64;
}

static uint64_t align_up(uint64_t n) {
    return (n + CODE_ALIGNMENT - 1) / CODE_ALIGNMENT * CODE_ALIGNMENT;
}

/* The whole file on the heap: a map would fault if somebody cut the file short. NULL with errno 0:
 * not a file that could be an artefact. */
static uint8_t *read_file(int fd, size_t *bytes) {
    struct stat st;
    errno = 0;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) return NULL;
    const uint64_t most =
        sizeof(struct header) + ARTEFACT_TEXT_BYTES + 4096 + 2 * (uint64_t)ARTEFACT_CODE_BYTES;
    if (st.st_size < (off_t)sizeof(struct header) || (uint64_t)st.st_size > most) return NULL;
    *bytes = (size_t)st.st_size;
    uint8_t *data = malloc(*bytes);
    if (data == NULL) return NULL;
    for (size_t done = 0; done < *bytes;) {
        const ssize_t n = read(fd, data + done, *bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            free(data);
            return NULL;
        }
        done += (size_t)n;
    }
    return data;
}

/* The artefact inside the bytes of a file, which it points into; a reason when there is none. */
static enum status parse(const uint8_t *data, size_t bytes, const struct artefact_id *id,
                         const char *compiler, struct artefact *out, const char **reason) {
    struct header h;
    memcpy(&h, data, sizeof h);
    *reason = "it does not begin as one";
    if (memcmp(h.magic, MAGIC, sizeof h.magic) != 0) return STATUS_CORRUPT;
    *reason = "it has another layout";
    if (h.version != LAYOUT_VERSION) return STATUS_AGAIN;
    *reason = "its sizes do not fit";
    if (h.file_bytes != bytes || h.text_bytes > ARTEFACT_TEXT_BYTES ||
        h.compiler_bytes >= ARTEFACT_COMPILER_BYTES || h.cubin_bytes > ARTEFACT_CODE_BYTES ||
        h.ptx_bytes > ARTEFACT_CODE_BYTES) {
        return STATUS_CORRUPT;
    }
    const uint64_t compiler_at = sizeof h + h.text_bytes;
    const uint64_t cubin_at = align_up(compiler_at + h.compiler_bytes);
    if (cubin_at + h.cubin_bytes + h.ptx_bytes != bytes) return STATUS_CORRUPT;
    *reason = "its checksum is wrong";
    uint64_t sum[2], key[2];
    checksum(&h, &(struct artefact_part){data + sizeof h, bytes - sizeof h}, 1, sum);
    if (memcmp(sum, h.checksum, sizeof sum) != 0) return STATUS_CORRUPT;

    *reason = "it holds another kernel";
    if (!artefact_same(id, data + sizeof h, h.text_bytes)) return STATUS_AGAIN;
    memcpy(out->compiler, data + compiler_at, h.compiler_bytes);
    *reason = "another compiler made it";
    if (compiler != NULL && strcmp(compiler, out->compiler) != 0) return STATUS_AGAIN;
    *reason = "its key is wrong";
    digest_key(id, out->compiler, key);
    if (memcmp(key, h.key, sizeof key) != 0) return STATUS_CORRUPT;
    out->compile_ns = h.compile_ns;
    out->cubin = data + cubin_at;
    out->cubin_bytes = h.cubin_bytes;
    out->ptx = (const char *)out->cubin + h.cubin_bytes;
    out->ptx_bytes = h.ptx_bytes;
    *reason = "it holds no kernel";
    return artefact_plausible(out->cubin, out->cubin_bytes, out->ptx, out->ptx_bytes)
               ? STATUS_OK
               : STATUS_CORRUPT;
}

/* `fd` is the file found bad, or -1: by now another process may have put a good one in its place.
 */
static void set_aside(struct store *s, const char *path, int fd, const char *reason) {
    char aside[PATH_BYTES + 8], text[PATH_BYTES / 4];
    struct stat seen, now;
    if (fd >= 0 && (fstat(fd, &seen) != 0 || stat(path, &now) != 0 || seen.st_ino != now.st_ino)) {
        return;
    }
    snprintf(aside, sizeof aside, "%s.bad", path);
    if (rename(path, aside) == 0) {
        log_write(s->log, LOG_WARN, "kernel cache: %s is corrupt (%s); kept as %s.bad", path,
                  reason, strrchr(path, '/') + 1);
        return;
    }
    snprintf(text, sizeof text, "%.600s is corrupt (%s) and cannot be set aside: %s", path, reason,
             strerror(errno));
    say_once(s, TROUBLE_ASIDE, text);
}

enum status store_read(struct store *s, const struct artefact_id *id, const char *compiler,
                       struct artefact *out, struct error *e) {
    *out = (struct artefact){0};
    if (!s->readable) return error_set(e, STATUS_NOT_FOUND, NULL, "there is no kernel cache");
    char path[PATH_BYTES];
    path_of(s, id, path);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        const int err = errno;
        char text[PATH_BYTES / 4];
        snprintf(text, sizeof text, "cannot open %.600s: %s", path, strerror(err));
        if (err != ENOENT) say_once(s, TROUBLE_READ, text);
        return error_set(e, STATUS_NOT_FOUND, NULL, "%s is not in the kernel cache", id->name);
    }
    size_t bytes = 0;
    const char *reason = "it is cut short";
    struct artefact a = {0};
    uint8_t *data = read_file(fd, &bytes);
    const int err = errno;
    enum status status = STATUS_CORRUPT;
    if (data != NULL) {
        status = parse(data, bytes, id, compiler, &a, &reason);
    } else if (err != 0) {
        status =
            error_set(e, STATUS_NOT_FOUND, NULL, "cannot read %.150s: %s", path, strerror(err));
        say_once(s, TROUBLE_READ, "a kernel cannot be read from it");
    }
    if (status == STATUS_OK) {
        /* The mark of use that trimming goes by; on a read-only disk there is no trimming. */
        (void)futimens(fd,
                       (const struct timespec[2]){{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}});
        a.memory = data;
        *out = a;
    } else {
        free(data);
        if (status == STATUS_CORRUPT) set_aside(s, path, fd, reason);
        if (status != STATUS_NOT_FOUND) {
            error_set(e, status, NULL, "%s in the kernel cache is of no use: %s", id->name, reason);
        }
    }
    close(fd);
    return status;
}

struct kept_file {
    char name[ARTEFACT_NAME_BYTES + 64];
    uint64_t bytes;
    struct timespec used;
};

static int by_use(const void *a, const void *b) {
    const struct timespec *x = &((const struct kept_file *)a)->used;
    const struct timespec *y = &((const struct kept_file *)b)->used;
    if (x->tv_sec != y->tv_sec) return x->tv_sec < y->tv_sec ? -1 : 1;
    return x->tv_nsec < y->tv_nsec ? -1 : x->tv_nsec > y->tv_nsec;
}

/* All processes that share the folder trim it, so the files are counted afresh each time. */
static void trim(struct store *s) {
    DIR *d = opendir(s->folder);
    if (d == NULL) return;
    struct kept_file *files = NULL;
    size_t n = 0, room = 0;
    uint64_t total = 0;
    for (const struct dirent *entry; (entry = readdir(d)) != NULL;) {
        struct stat st;
        if (!ends_with(entry->d_name, ".lack") && !ends_with(entry->d_name, ".lack.bad")) continue;
        if (strlen(entry->d_name) >= sizeof files->name) continue;
        if (fstatat(dirfd(d), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) continue;
        if (n == room) {
            room = room == 0 ? 256 : room * 2;
            struct kept_file *more = realloc(files, room * sizeof *files);
            if (more == NULL) break;
            files = more;
        }
        files[n].bytes = (uint64_t)st.st_size;
        files[n].used = st.st_mtim;
        memcpy(files[n].name, entry->d_name, strlen(entry->d_name) + 1);
        total += files[n++].bytes;
    }
    if (total > s->limit_bytes) {
        qsort(files, n, sizeof *files, by_use);
        for (size_t i = 0; i < n && total > s->limit_bytes; i++) {
            if (unlinkat(dirfd(d), files[i].name, 0) == 0 || errno == ENOENT) {
                total -= files[i].bytes;
            }
        }
    }
    free(files);
    closedir(d);
}

enum status store_write(struct store *s, const struct artefact_id *id, const struct artefact *a,
                        struct error *e) {
    CHECK(artefact_plausible(a->cubin, a->cubin_bytes, a->ptx, a->ptx_bytes));
    if (!atomic_load(&s->writable)) {
        return error_set(e, STATUS_IO, NULL, "the kernel cache keeps nothing new");
    }
    static const uint8_t zeros[CODE_ALIGNMENT];
    struct header h = {
        .version = LAYOUT_VERSION,
        .text_bytes = id->text_bytes,
        .compiler_bytes = (uint32_t)strlen(a->compiler),
        .cubin_bytes = a->cubin_bytes,
        .ptx_bytes = a->ptx_bytes,
        .compile_ns = a->compile_ns,
    };
    memcpy(h.magic, MAGIC, sizeof h.magic);
    const uint64_t code_at = sizeof h + h.text_bytes + h.compiler_bytes;
    const struct artefact_part parts[] = {
        {&h, sizeof h},
        {id->text, h.text_bytes},
        {a->compiler, h.compiler_bytes},
        {zeros, (size_t)(align_up(code_at) - code_at)},
        {a->cubin, a->cubin_bytes},
        {a->ptx, a->ptx_bytes},
    };
    const size_t n_parts = sizeof parts / sizeof parts[0];
    for (size_t i = 0; i < n_parts; i++) h.file_bytes += parts[i].bytes;
    digest_key(id, a->compiler, h.key);
    checksum(&h, parts + 1, n_parts - 1, h.checksum);

    char path[PATH_BYTES];
    path_of(s, id, path);
    struct error why = {0};
    const enum status status = artefact_publish(path, 0600, parts, n_parts, &why);
    if (status != STATUS_OK) {
        char text[sizeof why.message + 64];
        snprintf(text, sizeof text, "%s; new kernels are kept in memory only", why.message);
        say_once(s, TROUBLE_WRITE, text);
        atomic_store(&s->writable, false);
        return error_set(e, status, NULL, "%s", why.message);
    }
    pthread_mutex_lock(&s->lock);
    trim(s);
    pthread_mutex_unlock(&s->lock);
    return STATUS_OK;
}

void store_quarantine(struct store *s, const struct artefact_id *id, const char *reason) {
    char path[PATH_BYTES];
    if (!s->readable) return;
    path_of(s, id, path);
    set_aside(s, path, -1, reason);
}
