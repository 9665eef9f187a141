/* png.h: writes a picture as PNG (W3C, "Portable Network Graphics Specification", third edition):
 * 8-bit RGB, no interlacing, one IDAT deflated by zlib.
 *
 * rgb: [height, width, 3], row-major, top row first. Errors: STATUS_IO (path), STATUS_NO_MEMORY; no
 * file is left behind then. Callers: cmd/plot.c.
 */
#ifndef LAC_CMD_PNG_H
#define LAC_CMD_PNG_H

#include <stdint.h>

#include "core/status.h"

enum { PNG_MAX_SIDE = 16384 };

LAC_MUST_USE enum status png_write(const char *path, const uint8_t *rgb, uint32_t width,
                                   uint32_t height, struct error *e);

#endif
