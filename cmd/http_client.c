#include "cmd/http_client.h"

#include <llhttp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
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

/* A reply as it is read. llhttp (io/http.h uses it too) takes chunks and lengths apart. */
struct reading {
    http_client_piece *piece;
    void *user;
    bool over;
};

static int on_body(llhttp_t *parser, const char *bytes, size_t n) {
    struct reading *r = parser->data;
    r->piece(r->user, parser->status_code, bytes, n);
    return 0;
}

static int on_over(llhttp_t *parser) {
    ((struct reading *)parser->data)->over = true;
    return HPE_PAUSED;
}

static enum status read_reply(int fd, struct reading *r, int *http_status, struct error *e) {
    llhttp_settings_t settings;
    llhttp_settings_init(&settings);
    settings.on_body = on_body;
    settings.on_message_complete = on_over;
    llhttp_t parser;
    llhttp_init(&parser, HTTP_RESPONSE, &settings);
    parser.data = r;
    char piece[16 << 10];
    ssize_t n = 0;
    enum llhttp_errno why = HPE_OK;
    while (!r->over && why == HPE_OK && (n = recv(fd, piece, sizeof piece, 0)) > 0)
        why = llhttp_execute(&parser, piece, (size_t)n);
    /* A reply without a length ends where the connection does. */
    if (!r->over && why == HPE_OK && n == 0) (void)llhttp_finish(&parser);
    if (!r->over) return error_set(e, STATUS_IO, NULL, "the server's answer is not whole");
    *http_status = parser.status_code;
    return STATUS_OK;
}

static int open_connection(const struct address *a, uint32_t seconds) {
    const int fd = a->path[0] != '\0' ? connect_unix(a->path) : connect_tcp(a);
    if (fd < 0) return fd;
    const struct timeval most = {.tv_sec = seconds};
    const int now = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &now, sizeof now);
    return fd;
}

static bool send_request(int fd, const struct http_client_request *q) {
    struct buffer text;
    const bool post = strcmp(q->method, "POST") == 0;
    buffer_init(&text, 0);
    buffer_printf(&text, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n", q->method,
                  q->path);
    if (q->body != NULL) buffer_puts(&text, "Content-Type: application/json\r\n");
    if (post)
        buffer_printf(&text, "Content-Length: %zu\r\n", q->body != NULL ? strlen(q->body) : 0);
    buffer_puts(&text, "\r\n");
    if (q->body != NULL) buffer_puts(&text, q->body);
    const bool sent = !text.full && send_all(fd, text.data, text.len);
    buffer_free(&text);
    return sent;
}

enum status http_client_stream(const struct http_client_request *q, http_client_piece *piece,
                               void *user, int *http_status, struct error *e) {
    struct address a;
    *http_status = 0;
    enum status st = read_url(q->url, &a, e);
    if (st != STATUS_OK) return st;
    const int fd = open_connection(&a, q->seconds > 0 ? q->seconds : HTTP_CLIENT_SECONDS);
    if (fd < 0) return error_set(e, STATUS_IO, NULL, "nobody answers at %.150s", q->url);
    struct reading r = {.piece = piece, .user = user};
    if (send_request(fd, q))
        st = read_reply(fd, &r, http_status, e);
    else
        st =
            error_set(e, STATUS_IO, NULL, "the server at %.150s does not take the request", q->url);
    close(fd);
    return st;
}

static void keep_piece(void *user, int http_status, const char *bytes, size_t n) {
    (void)http_status;
    buffer_append(user, bytes, n);
}

const char *http_client_reason(const json_t *reply) {
    const char *why =
        json_string_value(json_object_get(json_object_get(reply, "error"), "message"));
    return why != NULL ? why : "the server refuses";
}

enum status http_client_json(const char *url, const char *method, const char *path, json_t **out,
                             struct error *e) {
    const struct http_client_request q = {.url = url, .method = method, .path = path};
    struct buffer reply;
    int http_status;
    *out = NULL;
    buffer_init(&reply, HTTP_CLIENT_MAX_BYTES);
    enum status st = http_client_stream(&q, keep_piece, &reply, &http_status, e);
    if (st == STATUS_OK && reply.full)
        st = error_set(e, STATUS_TOO_LARGE, NULL, "the server's answer is too large");
    json_t *root = st == STATUS_OK ? json_loadb(reply.data, reply.len, 0, NULL) : NULL;
    buffer_free(&reply);
    if (st != STATUS_OK) return st;
    if (http_status != 200)
        st = error_set(e, http_status == 404 ? STATUS_NOT_FOUND : STATUS_IO, NULL, "%.200s",
                       http_client_reason(root));
    else if (!json_is_object(root))
        st = error_set(e, STATUS_IO, NULL, "the server's answer is not JSON");
    if (st == STATUS_OK)
        *out = root;
    else
        json_decref(root);
    return st;
}
