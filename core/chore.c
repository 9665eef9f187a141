#include "core/chore.h"

#include <stdatomic.h>
#include <string.h>
#include <ucontext.h>

#include "core/check.h"
#include "core/clock.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#if __has_feature(thread_sanitizer) && !defined(__SANITIZE_THREAD__)
#define __SANITIZE_THREAD__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

/* A guard page would need a map of its own for each chore; a canary at the end that an overflow
 * reaches first is checked at every switch instead. */
enum { CANARY_WORDS = 16 };
static const uint64_t canary_word = UINT64_C(0x5ca1ab1e0ddba11c);

struct chore {
    ucontext_t self;
    ucontext_t *caller; /* on the stack of chore_run, valid while running */
    chore_fn *fn;
    void *arg;
    uint64_t deadline_ns;
    atomic_bool running;
    atomic_bool cancelled;
    atomic_bool done;
#ifdef __SANITIZE_ADDRESS__
    void *fake_stack;
    const void *caller_bottom;
    size_t caller_bytes;
#endif
#ifdef __SANITIZE_THREAD__
    void *fiber;
    void *caller_fiber;
#endif
    _Alignas(64) unsigned char stack[CHORE_STACK_BYTES];
};

/* The caller aligns to 16, the struct to 64: room to round up. */
size_t chore_footprint(void) {
    return sizeof(struct chore) + _Alignof(struct chore) - 16;
}

/* Into the chore, from chore_run. */
static void enter(struct chore *c) {
    ucontext_t caller;
    c->caller = &caller;
#ifdef __SANITIZE_ADDRESS__
    void *fake_stack = NULL;
    __sanitizer_start_switch_fiber(&fake_stack, c->stack, sizeof c->stack);
#endif
#ifdef __SANITIZE_THREAD__
    c->caller_fiber = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(c->fiber, 0);
#endif
    const int rc = swapcontext(&caller, &c->self);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(fake_stack, NULL, NULL);
#endif
    CHECK(rc == 0);
    c->caller = NULL;
}

/* Back to chore_run, from inside the chore. */
static void leave(struct chore *c, bool for_good) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(for_good ? NULL : &c->fake_stack, c->caller_bottom,
                                   c->caller_bytes);
#else
    (void)for_good;
#endif
#ifdef __SANITIZE_THREAD__
    __tsan_switch_to_fiber(c->caller_fiber, 0);
#endif
    const int rc = swapcontext(&c->self, c->caller);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(c->fake_stack, &c->caller_bottom, &c->caller_bytes);
#endif
    CHECK(rc == 0);
}

static void body(struct chore *c) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(NULL, &c->caller_bottom, &c->caller_bytes);
#endif
    c->fn(c, c->arg);
    atomic_store_explicit(&c->done, true, memory_order_release);
    leave(c, true);
    CHECK(false); /* chore_run never resumes a finished chore */
}

/* makecontext passes ints only, so the pointer travels as two halves. */
static void entry(unsigned high, unsigned low) {
    body((struct chore *)((uintptr_t)high << 32 | (uintptr_t)low));
}

static void set_canary(struct chore *c) {
    for (size_t i = 0; i < CANARY_WORDS; i++) {
        memcpy(c->stack + i * sizeof canary_word, &canary_word, sizeof canary_word);
    }
}

static bool canary_intact(const struct chore *c) {
    for (size_t i = 0; i < CANARY_WORDS; i++) {
        if (memcmp(c->stack + i * sizeof canary_word, &canary_word, sizeof canary_word) != 0) {
            return false;
        }
    }
    return true;
}

struct chore *chore_init(void *mem, chore_fn *fn, void *arg) {
    CHECK(mem && fn && (uintptr_t)mem % 16 == 0);
    const uintptr_t align = _Alignof(struct chore);
    struct chore *c = (struct chore *)(((uintptr_t)mem + align - 1) / align * align);
#ifdef __SANITIZE_ADDRESS__
    /* The memory may hold the red zones of a chore that was abandoned. */
    __asan_unpoison_memory_region(c, sizeof *c);
#endif
    memset(c, 0, offsetof(struct chore, stack));
    c->fn = fn;
    c->arg = arg;
    atomic_init(&c->running, false);
    atomic_init(&c->cancelled, false);
    atomic_init(&c->done, false);
    set_canary(c);

    const int rc = getcontext(&c->self);
    CHECK(rc == 0);
    c->self.uc_stack.ss_sp = c->stack;
    c->self.uc_stack.ss_size = sizeof c->stack;
    c->self.uc_link = NULL;
    const uintptr_t address = (uintptr_t)c;
    makecontext(&c->self, (void (*)(void))entry, 2, (unsigned)(address >> 32),
                (unsigned)(address & 0xffffffffu));
    return c;
}

bool chore_run(struct chore *c, uint64_t budget_ns) {
    if (chore_done(c)) return true;
    const bool was_running = atomic_exchange_explicit(&c->running, true, memory_order_acquire);
    CHECK(!was_running);
#ifdef __SANITIZE_THREAD__
    if (!c->fiber) c->fiber = __tsan_create_fiber(0);
#endif
    const uint64_t now = clock_now_ns();
    c->deadline_ns = budget_ns < UINT64_MAX - now ? now + budget_ns : UINT64_MAX;
    enter(c);
    CHECK(canary_intact(c)); /* otherwise CHORE_STACK_BYTES was too little */
    const bool done = chore_done(c);
    if (done) {
#ifdef __SANITIZE_ADDRESS__
        /* The frame of body() never returns, so nothing else clears its red zones. */
        __asan_unpoison_memory_region(c->stack, sizeof c->stack);
#endif
#ifdef __SANITIZE_THREAD__
        __tsan_destroy_fiber(c->fiber);
        c->fiber = NULL;
#endif
    }
    atomic_store_explicit(&c->running, false, memory_order_release);
    return done;
}

bool chore_checkpoint(struct chore *c) {
    if (!c) return false;
    if (atomic_load_explicit(&c->cancelled, memory_order_relaxed)) return true;
    if (clock_now_ns() < c->deadline_ns) return false;
    leave(c, false);
    return atomic_load_explicit(&c->cancelled, memory_order_relaxed);
}

void chore_cancel(struct chore *c) {
    atomic_store_explicit(&c->cancelled, true, memory_order_relaxed);
}

bool chore_done(const struct chore *c) {
    return atomic_load_explicit(&c->done, memory_order_acquire);
}
