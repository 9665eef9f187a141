/* store.c: what comes back, and what happens to a folder that lies, fills up or is shared. */
#include "jit_test.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "jit/store.h"

static const char COMPILER[] = "nvrtc 13.0";

static struct store *open_store(const char *folder, uint64_t limit, const struct log *log) {
    struct store *s;
    struct error e = {0};
    const struct store_config cfg = {.folder = folder, .limit_bytes = limit, .log = log};
    assert_int_equal(store_open(&cfg, &s, &e), STATUS_OK);
    return s;
}

static void test_round_trip(void **state) {
    (void)state;
    char folder[64], path[512];
    folder_make(folder);
    struct log_capture l;
    log_capture_open(&l);
    struct store *s = open_store(folder, 0, &l.log);
    static const size_t sizes[][2] = {{64, 2}, {65, 3}, {1000, 777}, {300000, 100001}};
    for (unsigned i = 0; i < 4; i++) {
        struct artefact_id id;
        struct artefact a, b;
        struct error e = {0};
        make_id(&id, "lac_gemv_q4_1_576_1536_sm90", 90, 132 + i, "0.1.0");
        make_artefact(&a, COMPILER, i, sizes[i][0], sizes[i][1]);
        assert_int_equal(store_read(s, &id, COMPILER, &b, &e), STATUS_NOT_FOUND);
        assert_non_null(strstr(e.message, id.name));
        assert_int_equal(store_write(s, &id, &a, &e), STATUS_OK);
        assert_int_equal(store_read(s, &id, COMPILER, &b, &e), STATUS_OK);
        assert_artefacts_equal(&a, &b);
        artefact_free(&b);
        assert_int_equal(store_read(s, &id, NULL, &b, &e), STATUS_OK);
        artefact_free(&b);
        artefact_free(&a);
    }
    assert_int_equal(folder_count(folder, ".lack", path), 4);
    assert_non_null(strstr(path, "/lac_gemv_q4_1_576_1536_sm90-"));
    assert_int_equal(folder_count(folder, "", NULL), 4);
    assert_int_equal(log_capture_count(&l, "kernel cache"), 0);
    store_close(s);
    store_close(NULL);
    log_capture_close(&l);
    folder_remove(folder);
}

/* Everything in the key is in the digest. */
static void test_key(void **state) {
    (void)state;
    const struct artefact_key base = {"lac_a", "1", "text", "spec a=1", "-x", 90, 132};
    struct artefact_key others[7];
    for (int i = 0; i < 7; i++) others[i] = base;
    others[0].name = "lac_b";
    others[1].build = "2";
    others[2].source = "text ";
    others[3].spec = "spec a=2";
    others[4].options = "-x -y";
    others[5].arch = 80;
    others[6].sm_count = 108;
    struct artefact_id id, other;
    artefact_identify(&base, &id);
    artefact_identify(&base, &other);
    assert_memory_equal(&id, &other, sizeof id);
    for (int i = 0; i < 7; i++) {
        artefact_identify(&others[i], &other);
        assert_memory_not_equal(id.digest, other.digest, sizeof id.digest);
        assert_false(artefact_same(&id, other.text, other.text_bytes));
    }
    const char *value;
    size_t n;
    assert_true(artefact_field(id.text, id.text_bytes, "spec", &value, &n));
    assert_int_equal(n, 8);
    assert_memory_equal(value, "spec a=1", 8);
    assert_true(artefact_field(id.text, id.text_bytes, "sms", &value, &n));
    assert_memory_equal(value, "132", 3);
    assert_false(artefact_field(id.text, id.text_bytes, "spe", &value, &n));
    assert_false(artefact_field("", 0, "spec", &value, &n));
}

static void test_stale(void **state) {
    (void)state;
    char folder[64], path[512], second[512];
    folder_make(folder);
    struct store *s = open_store(folder, 0, NULL);
    struct artefact_id id, other;
    struct artefact a, b;
    struct error e = {0};
    make_id(&id, "lac_x", 90, 132, "0.1.0");
    make_id(&other, "lac_x", 90, 114, "0.1.0");
    make_artefact(&a, COMPILER, 1, 500, 100);
    assert_int_equal(store_write(s, &id, &a, &e), STATUS_OK);

    /* Another compiler's: not taken, and replaced in place. */
    assert_int_equal(store_read(s, &id, "nvrtc 13.1", &b, &e), STATUS_AGAIN);
    assert_non_null(strstr(e.message, "compiler"));
    assert_null(b.cubin);
    artefact_free(&a);
    make_artefact(&a, "nvrtc 13.1", 2, 600, 100);
    assert_int_equal(store_write(s, &id, &a, &e), STATUS_OK);
    assert_int_equal(folder_count(folder, "", path), 1);
    assert_int_equal(store_read(s, &id, "nvrtc 13.1", &b, &e), STATUS_OK);
    assert_artefacts_equal(&a, &b);
    artefact_free(&b);

    /* A whole artefact under another's name. */
    assert_int_equal(store_write(s, &other, &a, &e), STATUS_OK);
    char first[512];
    snprintf(first, sizeof first, "%s", path);
    assert_int_equal(folder_count(folder, ".lack", second), 2);
    if (strcmp(first, second) == 0) {
        DIR *d = opendir(folder);
        for (const struct dirent *entry; (entry = readdir(d)) != NULL;) {
            snprintf(second, sizeof second, "%s/%s", folder, entry->d_name);
            if (entry->d_name[0] != '.' && strcmp(first, second) != 0) break;
        }
        closedir(d);
    }
    size_t bytes;
    uint8_t *data = file_read(second, &bytes);
    file_write(first, data, bytes);
    free(data);
    assert_int_equal(store_read(s, &id, NULL, &b, &e), STATUS_AGAIN);
    assert_non_null(strstr(e.message, "another kernel"));
    assert_int_equal(folder_count(folder, ".bad", NULL), 0);
    artefact_free(&a);
    store_close(s);
    folder_remove(folder);
}

/* Every byte flipped, every length cut, tails, other files in its place: never taken. */
static void test_corrupt(void **state) {
    (void)state;
    char folder[64], path[512], bad[520];
    folder_make(folder);
    struct log_capture l;
    log_capture_open(&l);
    struct store *s = open_store(folder, 0, &l.log);
    struct artefact_id id;
    struct artefact a, b;
    struct error e = {0};
    make_id(&id, "lac_x", 90, 132, "0.1.0");
    make_artefact(&a, COMPILER, 3, 130, 61);
    assert_int_equal(store_write(s, &id, &a, &e), STATUS_OK);
    assert_int_equal(folder_count(folder, ".lack", path), 1);
    snprintf(bad, sizeof bad, "%s.bad", path);
    size_t bytes;
    uint8_t *whole = file_read(path, &bytes);
    int n_corrupt = 0, n_stale = 0;
    for (size_t i = 0; i < bytes; i++) {
        for (unsigned bit = 0; bit < 8; bit += 7) {
            whole[i] ^= (uint8_t)(1u << bit);
            file_write(path, whole, bytes);
            whole[i] ^= (uint8_t)(1u << bit);
            const enum status status = store_read(s, &id, COMPILER, &b, &e);
            assert_null(b.memory);
            if (status == STATUS_CORRUPT) {
                n_corrupt++;
                assert_int_equal(access(path, F_OK), -1);
                assert_int_equal(unlink(bad), 0);
            } else {
                assert_int_equal(status, STATUS_AGAIN);
                n_stale++;
            }
        }
    }
    assert_int_equal(n_stale, 8); /* the four bytes of the layout's version */
    assert_int_equal(n_corrupt, 2 * bytes - 8);
    assert_int_equal(log_capture_count(&l, "is corrupt"), n_corrupt);
    for (size_t n = 0; n < bytes; n++) {
        file_write(path, whole, n);
        assert_int_equal(store_read(s, &id, COMPILER, &b, &e), STATUS_CORRUPT);
        assert_int_equal(unlink(bad), 0);
    }
    uint8_t *longer = calloc(1, bytes + 16);
    memcpy(longer, whole, bytes);
    file_write(path, longer, bytes + 16);
    assert_int_equal(store_read(s, &id, COMPILER, &b, &e), STATUS_CORRUPT);

    /* It is aside: the next look finds nothing, the next write heals. */
    assert_int_equal(store_read(s, &id, COMPILER, &b, &e), STATUS_NOT_FOUND);
    assert_int_equal(access(bad, F_OK), 0);
    assert_int_equal(store_write(s, &id, &a, &e), STATUS_OK);
    assert_int_equal(store_read(s, &id, COMPILER, &b, &e), STATUS_OK);
    assert_artefacts_equal(&a, &b);
    artefact_free(&b);

    store_quarantine(s, &id, "the driver refuses it");
    assert_int_equal(store_read(s, &id, COMPILER, &b, &e), STATUS_NOT_FOUND);

    /* Not files at all. */
    assert_int_equal(symlink(bad, path), 0);
    assert_int_equal(store_read(s, &id, COMPILER, &b, &e), STATUS_NOT_FOUND);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(store_read(s, &id, COMPILER, &b, &e), STATUS_CORRUPT);
    free(longer);
    free(whole);
    artefact_free(&a);
    store_close(s);
    log_capture_close(&l);
    folder_remove(folder);
}

static void test_no_folder(void **state) {
    (void)state;
    char folder[64], path[128];
    folder_make(folder);
    struct artefact_id id;
    struct artefact a, b;
    struct error e = {0};
    make_id(&id, "lac_x", 90, 132, "0.1.0");
    make_artefact(&a, COMPILER, 4, 200, 50);

    struct store *s = open_store(NULL, 0, NULL);
    assert_false(store_is_writable(s));
    assert_int_equal(store_read(s, &id, COMPILER, &b, &e), STATUS_NOT_FOUND);
    assert_int_equal(store_write(s, &id, &a, &e), STATUS_IO);
    store_quarantine(s, &id, "x");
    store_close(s);

    /* Made as needed, for the owner alone. */
    snprintf(path, sizeof path, "%s/a/b/c", folder);
    s = open_store(path, 0, NULL);
    assert_int_equal(store_write(s, &id, &a, &e), STATUS_OK);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    store_close(s);

    /* A file in its place, and a folder that anybody may write to: said, not used. */
    static const char *const words[] = {"not a folder", "others may write"};
    for (int i = 0; i < 2; i++) {
        struct log_capture l;
        log_capture_open(&l);
        snprintf(path, sizeof path, "%s/%d", folder, i);
        if (i == 0) {
            file_write(path, "x", 1);
        } else {
            assert_int_equal(mkdir(path, 0777), 0);
            assert_int_equal(chmod(path, 0777), 0);
        }
        s = open_store(path, 0, &l.log);
        assert_false(store_is_writable(s));
        for (int k = 0; k < 3; k++) {
            assert_int_equal(store_read(s, &id, COMPILER, &b, &e), STATUS_NOT_FOUND);
            assert_int_equal(store_write(s, &id, &a, &e), STATUS_IO);
        }
        assert_int_equal(log_capture_count(&l, words[i]), 1);
        assert_int_equal(log_capture_count(&l, "in memory only"), 1);
        store_close(s);
        log_capture_close(&l);
    }
    artefact_free(&a);
    folder_remove(folder);
}

/* Runs in a child, so that limits and identities stay there. Exit status 0 passes, 77 skips. */
static int in_child(int (*run)(const char *folder), const char *folder) {
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) _exit(run(folder));
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* Writing fails with `expected`, is said once, and the artefacts from before are still read. */
static int check_full(const char *folder, enum status expected, const char *word) {
    struct log_capture l;
    log_capture_open(&l);
    struct store *s;
    const struct store_config cfg = {.folder = folder, .log = &l.log};
    EXPECT(store_open(&cfg, &s, NULL) == STATUS_OK);
    struct artefact_id small, id;
    struct artefact a, big, b;
    make_id(&small, "lac_small", 90, 132, "0.1.0");
    make_id(&id, "lac_big", 90, 132, "0.1.0");
    make_artefact(&a, COMPILER, 5, 100, 20);
    make_artefact(&big, COMPILER, 6, 3 << 20, 1000);
    struct error e = {0};
    for (int i = 0; i < 3; i++) {
        const enum status status = store_write(s, &id, &big, &e);
        EXPECT(status == (i == 0 ? expected : STATUS_IO));
        EXPECT(store_read(s, &id, COMPILER, &b, &e) == STATUS_NOT_FOUND);
    }
    EXPECT(!store_is_writable(s));
    EXPECT(log_capture_count(&l, word) == 1);
    EXPECT(log_capture_count(&l, "in memory only") == 1);
    EXPECT(folder_count(folder, ".lack", NULL) == 1);
    EXPECT(folder_count(folder, "", NULL) == 1); /* no temporary file either */
    EXPECT(store_read(s, &small, COMPILER, &b, &e) == STATUS_OK);
    EXPECT(b.cubin_bytes == a.cubin_bytes);
    artefact_free(&b);
    artefact_free(&a);
    artefact_free(&big);
    store_close(s);
    log_capture_close(&l);
    return 0;
}

static void put_small(const char *folder) {
    struct artefact_id id;
    struct artefact a;
    struct store *s = open_store(folder, 0, NULL);
    make_id(&id, "lac_small", 90, 132, "0.1.0");
    make_artefact(&a, COMPILER, 5, 100, 20);
    assert_int_equal(store_write(s, &id, &a, NULL), STATUS_OK);
    artefact_free(&a);
    store_close(s);
}

static int run_size_limit(const char *folder) {
    const struct rlimit limit = {1 << 20, 1 << 20};
    signal(SIGXFSZ, SIG_IGN);
    EXPECT(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    return check_full(folder, STATUS_FULL, "File too large");
}

static int run_full_disk(const char *folder) {
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", folder, "tmpfs", 0, "size=1m,mode=700") != 0) {
        return 77;
    }
    put_small(folder);
    return check_full(folder, STATUS_FULL, "No space left");
}

static int run_unwritable(const char *folder) {
    if (geteuid() == 0 && seteuid(65534) != 0) return 77;
    return check_full(folder, STATUS_IO, "Permission denied");
}

static void test_full(void **state) {
    (void)state;
    static int (*const runs[])(const char *folder) = {run_size_limit, run_full_disk,
                                                      run_unwritable};
    static const char *const names[] = {"size limit", "full disk", "read-only folder"};
    for (int i = 0; i < 3; i++) {
        char folder[64];
        folder_make(folder);
        if (i != 1) put_small(folder);
        if (i == 2) {
            /* root would be let in, so the folder is root's and the child somebody else */
            assert_int_equal(chmod(folder, geteuid() == 0 ? 0755 : 0500), 0);
            char path[512];
            assert_int_equal(folder_count(folder, ".lack", path), 1);
            assert_int_equal(chmod(path, 0644), 0);
        }
        const int rc = in_child(runs[i], folder);
        if (rc == 77) {
            printf("skip: %s: this process may not arrange one\n", names[i]);
        } else if (rc != 0) {
            fail_msg("%s: %d", names[i], rc);
        }
        assert_int_equal(chmod(folder, 0700), 0);
        folder_remove(folder);
    }
}

/* Several processes write and read the same four keys; a reader sees a whole artefact or none. */
static int run_shared(const char *folder) {
    struct store *s;
    const struct store_config cfg = {.folder = folder};
    EXPECT(store_open(&cfg, &s, NULL) == STATUS_OK);
    unsigned random = (unsigned)getpid();
    for (int i = 0; i < 150; i++) {
        random = random * 1664525 + 1013904223;
        struct artefact_id id;
        struct artefact a, b;
        make_id(&id, "lac_x", 90, 100 + random / 65536 % 4, "0.1.0");
        /* Everybody's sizes differ, so that mixed halves would show. */
        make_artefact(&a, COMPILER, (unsigned)getpid() % 16, 20000 + random / 1024 % 999, 300);
        EXPECT(store_write(s, &id, &a, NULL) == STATUS_OK);
        artefact_free(&a);
        const enum status status = store_read(s, &id, COMPILER, &b, NULL);
        EXPECT(status == STATUS_OK);
        for (size_t k = 4; k < b.cubin_bytes; k++) {
            const unsigned seed = (unsigned)(b.compile_ns - 1000);
            EXPECT(b.cubin[k] == (uint8_t)(k * 31 + seed * 7 + k / 251));
        }
        artefact_free(&b);
    }
    store_close(s);
    return 0;
}

static void test_shared(void **state) {
    (void)state;
    char folder[64];
    folder_make(folder);
    pid_t pids[4];
    for (int i = 0; i < 4; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) _exit(run_shared(folder));
    }
    for (int i = 0; i < 4; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(folder_count(folder, "", NULL), 4);
    folder_remove(folder);
}

/* Killed at any moment: what is there is whole, and what was begun goes away in time. */
static void test_killed(void **state) {
    (void)state;
    char folder[64];
    folder_make(folder);
    struct artefact_id id;
    make_id(&id, "lac_x", 90, 132, "0.1.0");
    int n_left = 0;
    for (int round = 0; round < 25; round++) {
        const pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            struct artefact a;
            make_artefact(&a, COMPILER, (unsigned)round, 400000, 1000);
            struct store *s;
            const struct store_config cfg = {.folder = folder};
            if (store_open(&cfg, &s, NULL) != STATUS_OK) _exit(1);
            for (;;) (void)store_write(s, &id, &a, NULL);
        }
        usleep((useconds_t)(2000 + round * 1337 % 9000));
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        struct store *s = open_store(folder, 0, NULL);
        struct artefact b;
        const enum status status = store_read(s, &id, COMPILER, &b, NULL);
        assert_true(status == STATUS_OK || status == STATUS_NOT_FOUND);
        artefact_free(&b);
        store_close(s);
    }
    assert_int_equal(folder_count(folder, ".bad", NULL), 0);
    n_left = folder_count(folder, "", NULL) - folder_count(folder, ".lack", NULL);
    if (n_left == 0) { /* always caught between two writes: make one */
        char path[128];
        snprintf(path, sizeof path, "%s/.tmp-1-1", folder);
        file_write(path, "half", 4);
        n_left = 1;
    }
    store_close(open_store(folder, 0, NULL));
    assert_int_equal(folder_count(folder, "", NULL) - folder_count(folder, ".lack", NULL), n_left);
    DIR *d = opendir(folder);
    for (const struct dirent *entry; (entry = readdir(d)) != NULL;) {
        if (strncmp(entry->d_name, ".tmp-", 5) != 0) continue;
        const struct timespec old[2] = {{.tv_sec = time(NULL) - 4000},
                                        {.tv_sec = time(NULL) - 4000}};
        assert_int_equal(utimensat(dirfd(d), entry->d_name, old, 0), 0);
    }
    closedir(d);
    store_close(open_store(folder, 0, NULL));
    assert_int_equal(folder_count(folder, "", NULL), folder_count(folder, ".lack", NULL));
    folder_remove(folder);
}

static void test_trim(void **state) {
    (void)state;
    char folder[64], path[512];
    folder_make(folder);
    enum { KEPT = 5, FILE_BYTES = 10000 };
    struct store *s = open_store(folder, KEPT * FILE_BYTES + FILE_BYTES / 2, NULL);
    struct artefact_id id;
    struct artefact a, b;
    struct error e = {0};
    make_artefact(&a, COMPILER, 1, 9500, 200); /* and the header, the key */
    for (uint32_t i = 0; i < 12; i++) {
        make_id(&id, "lac_x", 90, i, "0.1.0");
        assert_int_equal(store_write(s, &id, &a, &e), STATUS_OK);
        /* Older by the second than those to come; kernel 0 stays in use. */
        DIR *d = opendir(folder);
        for (const struct dirent *entry; (entry = readdir(d)) != NULL;) {
            struct stat st;
            if (entry->d_name[0] == '.') continue;
            assert_int_equal(fstatat(dirfd(d), entry->d_name, &st, 0), 0);
            const struct timespec older[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = st.st_mtime - 1}};
            assert_int_equal(utimensat(dirfd(d), entry->d_name, older, 0), 0);
        }
        closedir(d);
        make_id(&id, "lac_x", 90, 0, "0.1.0");
        assert_int_equal(store_read(s, &id, COMPILER, &b, &e), STATUS_OK);
        artefact_free(&b);
    }
    assert_int_equal(folder_count(folder, ".lack", path), KEPT);
    for (uint32_t i = 0; i < 12; i++) {
        make_id(&id, "lac_x", 90, i, "0.1.0");
        const bool kept = store_read(s, &id, COMPILER, &b, &e) == STATUS_OK;
        assert_int_equal(kept, i == 0 || i > 12 - KEPT);
        artefact_free(&b);
    }
    /* Those set aside count and go too; other people's files do not. */
    make_id(&id, "lac_x", 90, 0, "0.1.0");
    store_quarantine(s, &id, "test");
    snprintf(path, sizeof path, "%s/notes.txt", folder);
    file_write(path, "x", 1);
    for (uint32_t i = 20; i < 30; i++) {
        make_id(&id, "lac_x", 90, i, "0.1.0");
        assert_int_equal(store_write(s, &id, &a, &e), STATUS_OK);
    }
    assert_int_equal(folder_count(folder, "", NULL), KEPT + 1);
    assert_int_equal(folder_count(folder, ".txt", NULL), 1);
    artefact_free(&a);
    store_close(s);
    folder_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_key),
        cmocka_unit_test(test_stale),      cmocka_unit_test(test_corrupt),
        cmocka_unit_test(test_no_folder),  cmocka_unit_test(test_full),
        cmocka_unit_test(test_shared),     cmocka_unit_test(test_killed),
        cmocka_unit_test(test_trim),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
