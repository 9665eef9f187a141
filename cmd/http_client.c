#include "cmd/http_client.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

struct address {
    char host[256], port[16];
    char path[sizeof((struct sockaddr_un *)0)->sun_path]; /* of a Unix socket, else "" */
};

static enum status read_url(const char *url, struct address *a, struct error *e) {
    memset(a, 0, sizeof *a);
    if (strncmp(url, "unix:", 5) == 0 && url[5] != '\0' && strlen(url + 5) < sizeof a->path) {
        snprintf(a->path, sizeof a->path, "%s", url + 5);
        return STATUS_OK;
    }
    const char *at = strncmp(url, "http://", 7) == 0 ? url + 7 : "";
    const bool literal = at[0] == '[';
    const size_t n = literal ? strcspn(at + 1, "]") : strcspn(at, ":/");
    const char *host = literal ? at + 1 : at, *rest = host + n;
    if (literal && *rest == ']') rest++;
    snprintf(a->port, sizeof a->port, "80");
    if (*rest == ':') {
        const size_t digits = strspn(rest + 1, "0123456789");
        if (digits > 0 && digits < 6)
            snprintf(a->port, sizeof a->port, "%.*s", (int)digits, rest + 1);
        rest += digits + 1;
    }
    if (n == 0 || n >= sizeof a->host || strcmp(rest, *rest == '/' ? "/" : "") != 0)
        return error_set(e, STATUS_INVALID, "URL",
                         "'%.100s' is neither http://HOST:PORT nor unix:PATH", url);
    snprintf(a->host, sizeof a->host, "%.*s", (int)n, host);
    return STATUS_OK;
}

static int connect_unix(const char *path) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&to, sizeof to) == 0) return fd;
    close(fd);
    return -1;
}

static int connect_tcp(const struct address *a) {
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    int fd = -1;
    if (getaddrinfo(a->host, a->port, &hints, &list) != 0) return -1;
    for (const struct addrinfo *i = list; i != NULL && fd < 0; i = i->ai_next) {
        fd = socket(i->ai_family, i->ai_socktype | SOCK_CLOEXEC, i->ai_protocol);
        if (fd < 0 || connect(fd, i->ai_addr, i->ai_addrlen) == 0) continue;
        close(fd);
        fd = -1;
    }
    freeaddrinfo(list);
    return fd;
}

static bool send_all(int fd, const char *text, size_t n) {
    while (n > 0) {
        const ssize_t sent = send(fd, text, n, MSG_NOSIGNAL);
        if (sent <= 0) return false;
        text += sent;
        n -= (size_t)sent;
    }
    return true;
}

/* Leaves the content in `out`. */
static enum status read_reply(int fd, int *http_status, struct buffer *out, struct error *e) {
    char piece[16 << 10];
    ssize_t n;
    while ((n = recv(fd, piece, sizeof piece, 0)) > 0) buffer_append(out, piece, (size_t)n);
    if (out->full) return error_set(e, STATUS_TOO_LARGE, NULL, "the server's answer is too large");
    const char *text = buffer_cstr(out);
    const char *body = n == 0 && text != NULL ? strstr(text, "\r\n\r\n") : NULL;
    if (body == NULL || sscanf(text, "HTTP/1.%*d %d", http_status) != 1)
        return error_set(e, STATUS_IO, NULL, "the server's answer is not whole");
    body += 4;
    const size_t left = out->len - (size_t)(body - out->data);
    memmove(out->data, body, left);
    out->len = left;
    return STATUS_OK;
}

enum status http_client_call(const char *url, const char *method, const char *path,
                             int *http_status, struct buffer *out, struct error *e) {
    struct address a;
    *http_status = 0;
    enum status st = read_url(url, &a, e);
    if (st != STATUS_OK) return st;
    const int fd = a.path[0] != '\0' ? connect_unix(a.path) : connect_tcp(&a);
    if (fd < 0) return error_set(e, STATUS_IO, NULL, "nobody answers at %.150s", url);
    const struct timeval most = {.tv_sec = HTTP_CLIENT_SECONDS};
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
    struct buffer head;
    buffer_init(&head, 0);
    buffer_printf(&head, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s\r\n", method,
                  path, strcmp(method, "POST") == 0 ? "Content-Length: 0\r\n" : "");
    if (head.full || !send_all(fd, head.data, head.len))
        st = error_set(e, STATUS_IO, NULL, "the server at %.150s does not take the request", url);
    buffer_free(&head);
    if (st == STATUS_OK) st = read_reply(fd, http_status, out, e);
    close(fd);
    return st;
}

enum status http_client_json(const char *url, const char *method, const char *path, json_t **out,
                             struct error *e) {
    struct buffer reply;
    int http_status;
    *out = NULL;
    buffer_init(&reply, HTTP_CLIENT_MAX_BYTES);
    enum status st = http_client_call(url, method, path, &http_status, &reply, e);
    json_t *root = st == STATUS_OK ? json_loadb(reply.data, reply.len, 0, NULL) : NULL;
    buffer_free(&reply);
    if (st != STATUS_OK) return st;
    const char *why = json_string_value(json_object_get(json_object_get(root, "error"), "message"));
    if (http_status != 200)
        st = error_set(e, http_status == 404 ? STATUS_NOT_FOUND : STATUS_IO, NULL, "%.200s",
                       why != NULL ? why : "the server refuses");
    else if (!json_is_object(root))
        st = error_set(e, STATUS_IO, NULL, "the server's answer is not JSON");
    if (st == STATUS_OK)
        *out = root;
    else
        json_decref(root);
    return st;
}
