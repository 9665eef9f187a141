#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/softgpu/driver.h"

struct soft soft = {.run = PTHREAD_MUTEX_INITIALIZER,
                    .lock = PTHREAD_MUTEX_INITIALIZER,
                    .wake = PTHREAD_COND_INITIALIZER};

static _Thread_local void *current;
static _Thread_local uint64_t current_generation;
static _Thread_local bool in_callback;

static void fail(const char *what, const char *text) {
    fprintf(stderr, "softgpu: %s: %s\n", what, text);
    abort();
}

static uint64_t number(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    if (text == NULL || text[0] == '\0') return otherwise;
    char *end;
    const unsigned long long v = strtoull(text, &end, 10);
    if (*end != '\0') fail(name, text);
    return v;
}

static void make_memory(void) {
    const struct memory_config cfg = {.size_bytes = soft.spec->total_bytes,
                                      .track = soft.check == EXEC_CHECK_FULL,
                                      .seed = soft.seed};
    struct error e = {0};
    if (memory_create(&cfg, &soft.memory, &e) != STATUS_OK) fail("no memory", e.message);
    soft.streams = soft_alloc(sizeof *soft.streams);
    soft.streams->legacy = true;
}

static void read_settings(void) {
    const char *key = getenv("SOFTGPU_DEVICE");
    soft.spec = device_spec_find(key != NULL && key[0] != '\0' ? key : "H100");
    if (soft.spec == NULL) fail("SOFTGPU_DEVICE is not known", key);
    soft.device = device_exec(soft.spec, (uint32_t)number("SOFTGPU_SMS", 0));
    soft.driver_version = (int)number("SOFTGPU_DRIVER", 13000);
    soft.seed = number("SOFTGPU_SEED", 0);
    soft.count_memory = number("SOFTGPU_COUNT", 1) != 0;
    const char *check = getenv("SOFTGPU_CHECK");
    if (check == NULL || check[0] == '\0' || strcmp(check, "full") == 0) {
        soft.check = EXEC_CHECK_FULL;
    } else if (strcmp(check, "bounds") == 0) {
        soft.check = EXEC_CHECK_BOUNDS;
    } else {
        fail("SOFTGPU_CHECK is neither full nor bounds", check);
    }
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    soft.threads = (uint32_t)number("SOFTGPU_THREADS", cores > 0 ? (uint64_t)cores : 1);
    if (soft.check == EXEC_CHECK_FULL) soft.threads = 1;
    const char *report = getenv("SOFTGPU_REPORT");
    snprintf(soft.report, sizeof soft.report, "%s", report != NULL ? report : "");
    const char *faults = getenv("SOFTGPU_FAIL");
    if (!fault_parse(faults != NULL ? faults : "", &soft.faults)) fail("SOFTGPU_FAIL", faults);
    finding_list_init(&soft.findings);
    make_memory();
    soft.ready = true;
}

void soft_lock(void) {
    pthread_mutex_lock(&soft.lock);
    if (!soft.ready) read_settings();
}

void soft_unlock(void) {
    pthread_mutex_unlock(&soft.lock);
}

void soft_run_lock(void) {
    pthread_mutex_lock(&soft.run);
    soft_lock();
}

void soft_run_unlock(void) {
    soft_unlock();
    pthread_mutex_unlock(&soft.run);
}

void soft_in_callback(bool inside) {
    in_callback = inside;
}

enum cu_result soft_enter(const char *call, bool context) {
    if (!soft.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (in_callback) {
        rule_broken(RULE_CALLBACK, 0, "%s was called from a host function", call);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    if (soft.lost != CUDA_SUCCESS) return soft.lost;
    if (!context) return CUDA_SUCCESS;
    if (soft_current() == NULL) {
        rule_broken(RULE_NO_CONTEXT, 0, "%s: the calling thread has no current context", call);
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return CUDA_SUCCESS;
}

void soft_set_current(void *context) {
    current = context;
    current_generation = soft.context_generation;
}

void *soft_current(void) {
    return current_generation == soft.context_generation ? current : NULL;
}

static void object_free(const struct handle_entry *h) {
    if (h->object == NULL) return;
    if (h->kind == HANDLE_MODULE) module_free(h->object);
    if (h->kind == HANDLE_EVENT) event_free(h->object);
    if (h->kind == HANDLE_GRAPH) graph_free(h->object);
    if (h->kind == HANDLE_EXEC) graph_exec_free(h->object);
    if (h->kind == HANDLE_BLOCK) memory_block_release(soft.memory, h->object);
}

static void drop_all(void) {
    for (uint32_t i = 0; i < soft.n_handles; i++) {
        object_free(&soft.handles[i]);
        soft.handles[i].object = NULL;
    }
    work_drop_all();
    for (struct stream *s = soft.streams, *next; s != NULL; s = next) {
        next = s->next;
        stream_free(s);
    }
    for (struct module *m = soft.unloaded, *next; m != NULL; m = next) {
        next = m->next_unloaded;
        module_free(m);
    }
    for (struct host_block *b = soft.host_blocks, *next; b != NULL; b = next) {
        next = b->next;
        host_block_free(b);
    }
    memory_destroy(soft.memory);
    soft.streams = NULL;
    soft.unloaded = NULL;
    soft.host_blocks = NULL;
    soft.memory = NULL;
    soft.context = NULL;
    soft.context_references = 0;
    soft.context_generation++;
}

void soft_context_end(void) {
    if (soft.n_pending > 0 && soft.lost == CUDA_SUCCESS) {
        rule_broken(RULE_IN_FLIGHT, 0,
                    "the context was released with %llu operations that nobody waited for",
                    (unsigned long long)soft.n_pending);
    }
    drop_all();
    make_memory();
}

void soft_reset(void) {
    drop_all();
    finding_list_free(&soft.findings);
    stats_free();
    free(soft.handles);
    soft.handles = NULL;
    soft.n_handles = soft.cap_handles = 0;
    memset(soft.rules, 0, sizeof soft.rules);
    memset(soft.executed, 0, sizeof soft.executed);
    soft.lost = CUDA_SUCCESS;
    soft.clock = soft.walks = soft.draws = 0;
    soft.initialised = false;
    read_settings();
}

void *soft_alloc(size_t bytes) {
    void *p = calloc(1, bytes != 0 ? bytes : 1);
    if (p == NULL) fail("calloc", "no memory");
    return p;
}

void *soft_grow(void *items, uint32_t *cap, uint32_t n, size_t item_bytes) {
    if (n < *cap) return items;
    const uint32_t more = *cap != 0 ? 2 * *cap : 8;
    items = realloc(items, more * item_bytes);
    if (items == NULL) fail("realloc", "no memory");
    *cap = more;
    return items;
}

/* splitmix64 (Vigna): one number after another. */
uint64_t soft_draw(void) {
    if (soft.seed == 0) return 0;
    uint64_t x = soft.seed + ++soft.draws * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* A handle is 0x5f in its highest byte, the kind, then index + 1: no pointer looks like this. */
enum { HANDLE_TAG = 0x5f };

void *handle_new(enum handle_kind kind, void *object) {
    soft.handles = soft_grow(soft.handles, &soft.cap_handles, soft.n_handles, sizeof *soft.handles);
    soft.handles[soft.n_handles++] = (struct handle_entry){(uint8_t)kind, object};
    return (void *)((uintptr_t)HANDLE_TAG << 56 | (uintptr_t)kind << 48 | soft.n_handles);
}

static struct handle_entry *handle_entry(const void *handle) {
    const uintptr_t v = (uintptr_t)handle;
    const uint64_t index = v & ((UINT64_C(1) << 48) - 1);
    if (v >> 56 != HANDLE_TAG || index == 0 || index > soft.n_handles) return NULL;
    struct handle_entry *h = &soft.handles[index - 1];
    return (v >> 48 & 255) == h->kind ? h : NULL;
}

void *handle_get(enum handle_kind kind, const void *handle, const char *call) {
    struct handle_entry *h = handle_entry(handle);
    if (h != NULL && h->kind == kind && h->object != NULL) return h->object;
    rule_broken(RULE_DEAD_HANDLE, (uintptr_t)handle, "%s: the handle %s", call,
                h == NULL         ? "is not one of this driver"
                : h->kind != kind ? "is of another kind"
                                  : "was destroyed before");
    return NULL;
}

void handle_end(const void *handle) {
    struct handle_entry *h = handle_entry(handle);
    if (h != NULL) h->object = NULL;
}

void rule_broken(enum host_rule rule, uint64_t address, const char *fmt, ...) {
    static const char *const names[] = {
#define X(code, name) name,
        HOST_RULE_LIST(X)
#undef X
    };
    char text[FINDING_TEXT_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    struct finding f = {.kind = rule == RULE_UNDEFINED_COPY ? FINDING_UNDEFINED : FINDING_HOST,
                        .address = address};
    snprintf(f.kernel, sizeof f.kernel, "%s", names[rule]);
    finding_add(&soft.findings, &f, "%s", text);
    soft.rules[rule]++;
}

bool fault_due(uint64_t *countdown) {
    return *countdown != 0 && --*countdown == 0;
}

bool fault_parse(const char *text, struct faults *out) {
    struct faults f = {.memory_bytes = UINT64_MAX};
    while (text[0] != '\0') {
        const size_t n = strcspn(text, ",");
        const char *value = memchr(text, '=', n);
        if (value == NULL) return false;
        const size_t key = (size_t)(value++ - text);
        const size_t value_bytes = n - key - 1;
        if (key == 9 && memcmp(text, "lost-file", 9) == 0) {
            if (value_bytes == 0 || value_bytes >= sizeof f.lost_file) return false;
            memcpy(f.lost_file, value, value_bytes);
        } else {
            char *end;
            const unsigned long long v = strtoull(value, &end, 10);
            if (value_bytes == 0 || end != value + value_bytes) return false;
            if (key == 6 && memcmp(text, "launch", 6) == 0)
                f.launch = v;
            else if (key == 4 && memcmp(text, "lost", 4) == 0)
                f.lost = v;
            else if (key == 6 && memcmp(text, "memory", 6) == 0)
                f.memory_bytes = v;
            else if (key == 7 && memcmp(text, "corrupt", 7) == 0)
                f.corrupt = v;
            else
                return false;
        }
        text += n + (text[n] == ',');
    }
    *out = f;
    return true;
}
