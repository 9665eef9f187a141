#include "io/listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 1024 };

static int try_address(const struct addrinfo *a) {
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    const int on = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) return fd;
    const int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static uint16_t bound_port(int fd) {
    struct sockaddr_storage at;
    socklen_t n = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &n) != 0) return 0;
    if (at.ss_family == AF_INET6) return ntohs(((struct sockaddr_in6 *)&at)->sin6_port);
    return ntohs(((struct sockaddr_in *)&at)->sin_port);
}

enum status listen_tcp(const char *host, uint16_t port, int *fd, char *url, size_t url_bytes,
                       struct error *e) {
    *fd = -1;
    url[0] = '\0';
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    const int rc = getaddrinfo(host, service, &hints, &list);
    if (rc != 0)
        return error_set(e, STATUS_INVALID, "host", "cannot resolve %s: %s", host,
                         gai_strerror(rc));
    int why = 0;
    for (const struct addrinfo *a = list; a != NULL && *fd < 0; a = a->ai_next) {
        *fd = try_address(a);
        if (*fd < 0) why = errno;
    }
    freeaddrinfo(list);
    if (*fd < 0)
        return error_set(e, STATUS_IO, "port", "cannot listen on %s port %u: %s%s", host, port,
                         strerror(why), why == EADDRINUSE ? " (--port N takes another)" : "");
    const bool v6 = strchr(host, ':') != NULL;
    snprintf(url, url_bytes, "http://%s%s%s:%u", v6 ? "[" : "", host, v6 ? "]" : "",
             bound_port(*fd));
    return STATUS_OK;
}

/* Is somebody listening there? */
static bool in_use(const struct sockaddr_un *at) {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return true;
    const bool used = connect(fd, (const struct sockaddr *)at, sizeof *at) == 0 || errno == EAGAIN;
    close(fd);
    return used;
}

enum status listen_unix(const char *path, uint32_t mode, int *fd, struct error *e) {
    *fd = -1;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof at.sun_path)
        return error_set(e, STATUS_INVALID, "uds", "the path has more than %zu bytes",
                         sizeof at.sun_path - 1);
    strcpy(at.sun_path, path);
    struct stat st;
    if (lstat(path, &st) == 0) {
        if (!S_ISSOCK(st.st_mode))
            return error_set(e, STATUS_INVALID, "uds", "%s exists and is not a socket", path);
        if (in_use(&at))
            return error_set(e, STATUS_IO, "uds", "another process listens on %s", path);
        (void)unlink(path);
    }
    const int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    /* Nobody connects before listen(), so the mode is in place by then. */
    if (s >= 0 && bind(s, (struct sockaddr *)&at, sizeof at) == 0 &&
        chmod(path, mode != 0 ? (mode_t)mode : 0600) == 0 && listen(s, BACKLOG) == 0) {
        *fd = s;
        return STATUS_OK;
    }
    const int why = errno;
    if (s >= 0) close(s);
    return error_set(e, STATUS_IO, "uds", "cannot listen on %s: %s", path, strerror(why));
}
