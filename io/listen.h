/* listen.h: listening sockets. */
#ifndef LAC_IO_LISTEN_H
#define LAC_IO_LISTEN_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

/* The first address that the host name has and that can be bound. url: "http://host:port" with the
 * port in use. The descriptor is the caller's. */
enum status listen_tcp(const char *host, uint16_t port, int *fd, char *url, size_t url_bytes,
                       struct error *e);
/* A socket file that nobody listens on any more is replaced; anything else at the path is an error.
 */
enum status listen_unix(const char *path, uint32_t mode, int *fd, struct error *e);

#endif
