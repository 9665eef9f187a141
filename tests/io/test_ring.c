/* Ring operations, the same on both backends. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "io/ring.h"

enum { MS = 1000 * 1000, SOCKETS = 8, BUFFERS = 4 };

static struct ring *open_ring(void **state) {
    const struct ring_config cfg = {
        .kind = *(enum ring_kind *)*state, .max_sockets = SOCKETS, .n_buffers = BUFFERS};
    struct ring *r;
    struct error e;
    assert_int_equal(ring_open(&cfg, &r, &e), STATUS_OK);
    return r;
}

/* The next event within 2 s. */
static struct ring_event next(struct ring *r) {
    struct ring_event ev;
    const uint64_t end = clock_now_ns() + UINT64_C(2000) * MS;
    while (!ring_next(r, &ev)) {
        assert_true(clock_now_ns() < end);
        ring_wait(r, 50 * MS);
    }
    return ev;
}

static bool quiet(struct ring *r, unsigned ms) {
    struct ring_event ev;
    const uint64_t end = clock_now_ns() + (uint64_t)ms * MS;
    while (clock_now_ns() < end) {
        ring_wait(r, 5 * MS);
        if (ring_next(r, &ev)) {
            fprintf(stderr, "unexpected event %d for %u\n", (int)ev.kind, ev.id);
            return false;
        }
    }
    return true;
}

static int listener(uint16_t *port) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &n), 0);
    *port = ntohs(at.sin_port);
    return fd;
}

static int dial(uint16_t port) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

/* A connected pair: ring's socket number, and our end. */
static uint32_t pair(struct ring *r, int *mine) {
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    *mine = fds[1];
    const uint32_t s = ring_attach(r, fds[0]);
    assert_int_not_equal(s, RING_NONE);
    return s;
}

static void test_accept_echo(void **state) {
    struct ring *r = open_ring(state);
    uint16_t port;
    const int l = listener(&port);
    struct error e;
    assert_int_equal(ring_listen(r, l, 0, &e), STATUS_OK);
    for (int round = 0; round < 3; round++) { /* more than once: accepting goes on */
        const int mine = dial(port);
        struct ring_event ev = next(r);
        assert_int_equal(ev.kind, RING_ACCEPTED);
        const uint32_t s = ring_attach(r, ev.result);
        assert_int_equal(send(mine, "hello", 5, 0), 5);
        ev = next(r);
        assert_int_equal(ev.kind, RING_RECEIVED);
        assert_int_equal(ev.id, s);
        assert_int_equal(ev.n, 5);
        assert_memory_equal(ev.data, "hello", 5);
        ring_send(r, s, ev.data, 5, UINT64_C(1000) * MS);
        const struct ring_event sent = next(r);
        assert_int_equal(sent.kind, RING_SENT);
        assert_int_equal(sent.result, 5);
        ring_release(r, &ev);
        char back[8];
        assert_int_equal(recv(mine, back, sizeof back, 0), 5);
        ring_shutdown(r, s);
        assert_int_equal(recv(mine, back, sizeof back, 0), 0);
        close(mine);
        ev = next(r);
        assert_int_equal(ev.kind, RING_RECEIVED);
        assert_int_equal(ev.n, 0);
        assert_true(ring_gone(r, s));
        ring_detach(r, s);
        ev = next(r);
        assert_int_equal(ev.kind, RING_CLOSED);
        assert_int_equal(ev.id, s);
    }
    ring_unlisten(r, 0);
    close(l);
    ring_close(r);
}

static void test_deadlines(void **state) {
    struct ring *r = open_ring(state);
    int a, b;
    const uint32_t x = pair(r, &a), y = pair(r, &b);
    const uint64_t start = clock_now_ns();
    ring_set_deadline(r, x, start + 60 * MS);
    ring_set_deadline(r, y, start + 20 * MS);
    struct ring_event ev = next(r);
    assert_int_equal(ev.kind, RING_EXPIRED);
    assert_int_equal(ev.id, y);
    assert_true(clock_now_ns() >= start + 20 * MS);
    ring_set_deadline(r, x, 0);
    assert_true(quiet(r, 80));
    ring_set_deadline(r, x, clock_now_ns() + MS);
    ev = next(r);
    assert_int_equal(ev.id, x);
    close(a);
    close(b);
    ring_close(r);
}

static void test_send_times_out_and_moves(void **state) {
    struct ring *r = open_ring(state);
    int mine;
    const uint32_t s = pair(r, &mine);
    static char big[8 << 20];
    size_t sent = 0;
    int timeouts = 0;
    /* Nobody reads: sends go through until the kernel is full, then one must time out. */
    while (timeouts == 0) {
        ring_send(r, s, big, sizeof big, 30 * MS);
        const struct ring_event ev = next(r);
        assert_int_equal(ev.kind, RING_SENT);
        if (ev.result == -ETIMEDOUT)
            timeouts++;
        else {
            assert_true(ev.result > 0);
            sent += (size_t)ev.result;
        }
        assert_true(sent < 100 << 20);
    }
    /* And moves again when somebody does. */
    ring_send(r, s, big, 100000, UINT64_C(2000) * MS);
    struct ring_event ev;
    ring_wait(r, 0);
    assert_false(ring_next(r, &ev));
    static char sink[1 << 20];
    size_t got = 0;
    while (got < sent) {
        const ssize_t n = recv(mine, sink, sizeof sink, 0);
        assert_true(n > 0);
        got += (size_t)n;
        ring_wait(r, 0);
    }
    ev = next(r);
    assert_int_equal(ev.kind, RING_SENT);
    assert_true(ev.result > 0);
    close(mine);
    ring_close(r);
}

static void test_large_tcp_sends(void **state) {
    /* Long enough for zero copy where the backend has it; what arrives must be what was sent. */
    struct ring *r = open_ring(state);
    uint16_t port;
    const int l = listener(&port);
    struct error e;
    assert_int_equal(ring_listen(r, l, 1, &e), STATUS_OK);
    const int mine = dial(port);
    struct ring_event ev = next(r);
    assert_int_equal(ev.id, 1);
    const uint32_t s = ring_attach(r, ev.result);
    static unsigned char out[65536], in[65536];
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < sizeof out; i++) out[i] = (unsigned char)(i * 31 + (size_t)round);
        size_t sent = 0, got = 0;
        while (sent < sizeof out) {
            ring_send(r, s, out + sent, sizeof out - sent, UINT64_C(1000) * MS);
            ev = next(r);
            assert_int_equal(ev.kind, RING_SENT);
            assert_true(ev.result > 0);
            sent += (size_t)ev.result;
        }
        while (got < sizeof in) {
            const ssize_t n = recv(mine, in + got, sizeof in - got, 0);
            assert_true(n > 0);
            got += (size_t)n;
        }
        assert_memory_equal(in, out, sizeof in);
    }
    close(mine);
    close(l);
    ring_close(r);
}

static void test_broken_pipe(void **state) {
    struct ring *r = open_ring(state);
    int mine;
    const uint32_t s = pair(r, &mine);
    close(mine);
    struct ring_event ev = next(r);
    assert_int_equal(ev.kind, RING_RECEIVED);
    assert_int_equal(ev.n, 0);
    ring_send(r, s, "x", 1, UINT64_C(1000) * MS);
    ev = next(r);
    assert_int_equal(ev.kind, RING_SENT);
    assert_true(ev.result < 0);
    ring_close(r);
}

static void test_receiving_off(void **state) {
    struct ring *r = open_ring(state);
    int mine;
    const uint32_t s = pair(r, &mine);
    ring_wait(r, 0);
    ring_set_receiving(r, s, false);
    assert_true(quiet(r, 10));
    assert_int_equal(send(mine, "abc", 3, 0), 3);
    assert_true(quiet(r, 40)); /* the kernel holds it */
    ring_set_receiving(r, s, true);
    struct ring_event ev = next(r);
    assert_int_equal(ev.kind, RING_RECEIVED);
    assert_int_equal(ev.n, 3);
    ring_release(r, &ev);
    ring_set_receiving(r, s, false);
    assert_true(quiet(r, 10));
    close(mine); /* seen although nothing is received */
    ev = next(r);
    assert_int_equal(ev.kind, RING_RECEIVED);
    assert_int_equal(ev.n, 0);
    assert_true(ring_gone(r, s));
    ring_detach(r, s);
    assert_int_equal(next(r).kind, RING_CLOSED);
    assert_true(quiet(r, 20));
    ring_close(r);
}

static void test_buffers_run_out(void **state) {
    struct ring *r = open_ring(state);
    int mine[2];
    uint32_t s[2];
    for (int i = 0; i < 2; i++) s[i] = pair(r, &mine[i]);
    /* More than the buffers hold, on both; every byte must come, in order, as buffers return. */
    enum { TOTAL = 12 * RING_BUFFER_BYTES };
    static char data[TOTAL];
    for (size_t i = 0; i < TOTAL; i++) data[i] = (char)(i % 251);
    size_t put[2] = {0}, got[2] = {0};
    for (int i = 0; i < 2; i++) assert_int_equal(fcntl(mine[i], F_SETFL, O_NONBLOCK), 0);
    struct ring_event held[BUFFERS];
    int n_held = 0;
    while (got[0] < TOTAL || got[1] < TOTAL) {
        for (int i = 0; i < 2; i++) {
            const ssize_t n = send(mine[i], data + put[i], TOTAL - put[i], 0);
            if (n > 0) put[i] += (size_t)n;
        }
        ring_wait(r, 5 * MS);
        struct ring_event ev;
        while (ring_next(r, &ev)) {
            assert_int_equal(ev.kind, RING_RECEIVED);
            assert_true(ev.n > 0);
            const int i = ev.id == s[1];
            assert_memory_equal(ev.data, data + got[i], ev.n);
            got[i] += ev.n;
            held[n_held++] = ev;
            assert_true(n_held <= BUFFERS);
        }
        if (n_held == BUFFERS || got[0] == put[0]) {
            for (int i = 0; i < n_held; i++) ring_release(r, &held[i]);
            n_held = 0;
        }
    }
    for (int i = 0; i < n_held; i++) ring_release(r, &held[i]);
    for (int i = 0; i < 2; i++) close(mine[i]);
    ring_close(r);
}

static void test_eof_after_starving(void **state) {
    /* Bytes that no buffer was free for must come before the end does. */
    struct ring *r = open_ring(state);
    int mine;
    const uint32_t s = pair(r, &mine);
    enum { TOTAL = (BUFFERS + 2) * RING_BUFFER_BYTES };
    static char data[TOTAL];
    assert_int_equal(send(mine, data, TOTAL, 0), TOTAL);
    close(mine);
    struct ring_event held[BUFFERS];
    for (int i = 0; i < BUFFERS; i++) {
        held[i] = next(r);
        assert_true(held[i].n > 0);
    }
    assert_true(quiet(r, 20));
    size_t got = 0;
    for (int i = 0; i < BUFFERS; i++) {
        got += held[i].n;
        ring_release(r, &held[i]);
    }
    for (;;) {
        const struct ring_event ev = next(r);
        assert_int_equal(ev.kind, RING_RECEIVED);
        if (ev.n == 0) break;
        got += ev.n;
        ring_release(r, &ev);
    }
    assert_int_equal(got, TOTAL);
    ring_detach(r, s);
    ring_close(r);
}

static void test_detach_drops_events(void **state) {
    struct ring *r = open_ring(state);
    int mine;
    uint32_t s = pair(r, &mine);
    assert_int_equal(send(mine, "abc", 3, 0), 3);
    static char big[4 << 20];
    ring_send(r, s, big, sizeof big, UINT64_C(5000) * MS);
    ring_wait(r, 20 * MS);
    ring_set_deadline(r, s, clock_now_ns());
    (void)ring_reap(r, 20000);
    ring_detach(r, s);
    const struct ring_event ev = next(r);
    assert_int_equal(ev.kind, RING_CLOSED);
    assert_int_equal(ev.id, s);
    assert_true(quiet(r, 20));
    close(mine);
    /* All numbers are free: as many sockets fit as before, and no more. */
    int fds[SOCKETS];
    for (int i = 0; i < SOCKETS; i++) (void)pair(r, &fds[i]);
    int more[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, more), 0);
    assert_int_equal(ring_attach(r, more[0]), RING_NONE);
    for (int i = 0; i < SOCKETS; i++) close(fds[i]);
    close(more[0]);
    close(more[1]);
    ring_close(r);
}

static void test_reap_notes_the_gone(void **state) {
    struct ring *r = open_ring(state);
    int mine;
    const uint32_t s = pair(r, &mine);
    ring_wait(r, 0);
    /* Reaping collects and does not dispatch: the news waits, but the note is there. */
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 200; i++) {
        const uint64_t start = clock_now_ns();
        assert_int_equal(ring_reap(r, 20 * 1000), 0);
        const uint64_t took = clock_now_ns() - start;
        if (took < best) best = took;
    }
    assert_true(best < 20 * 1000);
    assert_false(ring_gone(r, s));
    assert_int_equal(send(mine, "abc", 3, 0), 3);
    close(mine);
    uint32_t pending = 0;
    const uint64_t end = clock_now_ns() + UINT64_C(1000) * MS;
    while (!ring_gone(r, s) && clock_now_ns() < end) pending = ring_reap(r, 20 * 1000);
    assert_true(ring_gone(r, s));
    assert_int_equal(pending, 2);
    assert_int_equal(next(r).n, 3);
    assert_int_equal(next(r).n, 0);
    ring_close(r);
}

static void test_watch(void **state) {
    struct ring *r = open_ring(state);
    const int fd = eventfd(0, EFD_NONBLOCK);
    struct error e;
    assert_int_equal(ring_watch(r, fd, 2, &e), STATUS_OK);
    for (int i = 0; i < 3; i++) {
        const uint64_t one = 1;
        assert_int_equal(write(fd, &one, sizeof one), sizeof one);
        assert_int_equal(write(fd, &one, sizeof one), sizeof one);
        const struct ring_event ev = next(r);
        assert_int_equal(ev.kind, RING_WOKEN);
        assert_int_equal(ev.id, 2);
        assert_true(quiet(r, 10));
    }
    close(fd);
    ring_close(r);
}

static void test_auto_names_what_it_took(void **state) {
    (void)state;
    const struct ring_config cfg = {.kind = RING_AUTO, .max_sockets = 2, .n_buffers = 2};
    struct ring *r;
    assert_int_equal(ring_open(&cfg, &r, NULL), STATUS_OK);
    if (strcmp(ring_name(r), "io_uring") == 0)
        assert_string_equal(ring_note(r), "");
    else
        assert_true(strlen(ring_note(r)) > 0);
    ring_close(r);
}

/* In a process where io_uring_setup is refused as containers do it. */
static int refused_child(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog prog = {.len = sizeof code / sizeof *code, .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return 77;
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) != 0) return 77;
    struct ring_config cfg = {.kind = RING_URING, .max_sockets = 2, .n_buffers = 2};
    struct ring *r;
    struct error e = {0};
    if (ring_open(&cfg, &r, &e) != STATUS_UNSUPPORTED || r != NULL) return 1;
    if (strstr(e.message, "refused") == NULL) return 2;
    cfg.kind = RING_AUTO;
    if (ring_open(&cfg, &r, &e) != STATUS_OK) return 3;
    if (strcmp(ring_name(r), "epoll") != 0 || strstr(ring_note(r), "refused") == NULL) return 4;
    ring_close(r);
    return 0;
}

static void test_falls_back_when_refused(void **state) {
    (void)state;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) _exit(refused_child());
    int status;
    pid_t got;
    do got = waitpid(pid, &status, 0);
    while (got < 0 && errno == EINTR);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        printf("skip: no seccomp filter can be set here\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

#define BOTH(f)                                                                                    \
    {#f " (io_uring)", f, NULL, NULL, &uring}, {                                                   \
#f " (epoll)", f, NULL, NULL, &epoll                                                       \
    }

int main(void) {
    static enum ring_kind uring = RING_URING, epoll = RING_EPOLL;
    const struct ring_config cfg = {.kind = RING_URING, .max_sockets = 2, .n_buffers = 2};
    struct ring *r;
    struct error e;
    if (ring_open(&cfg, &r, &e) != STATUS_OK) {
        printf("skip: io_uring: %s\n", e.message);
        uring = RING_EPOLL;
    } else {
        ring_close(r);
    }
    const struct CMUnitTest tests[] = {
        BOTH(test_accept_echo),
        BOTH(test_deadlines),
        BOTH(test_send_times_out_and_moves),
        BOTH(test_large_tcp_sends),
        BOTH(test_broken_pipe),
        BOTH(test_receiving_off),
        BOTH(test_buffers_run_out),
        BOTH(test_eof_after_starving),
        BOTH(test_detach_drops_events),
        BOTH(test_reap_notes_the_gone),
        BOTH(test_watch),
        cmocka_unit_test(test_auto_names_what_it_took),
        cmocka_unit_test(test_falls_back_when_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
