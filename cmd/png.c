#include "cmd/png.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "core/check.h"

static void put_u32(uint8_t out[4], uint32_t v) {
    for (int i = 0; i < 4; i++) out[i] = (uint8_t)(v >> (24 - 8 * i));
}

static bool write_chunk(FILE *f, const char type[4], const uint8_t *data, uint32_t n) {
    uint8_t length[4], sum[4];
    put_u32(length, n);
    uLong crc = crc32(0, (const Bytef *)type, 4);
    if (n > 0) crc = crc32(crc, data, n);
    put_u32(sum, (uint32_t)crc);
    return fwrite(length, 4, 1, f) == 1 && fwrite(type, 4, 1, f) == 1 &&
           (n == 0 || fwrite(data, n, 1, f) == 1) && fwrite(sum, 4, 1, f) == 1;
}

/* Each line with the filter in front: Up (2), which leaves zeros where a plot does not change. */
static uint8_t *filtered(const uint8_t *rgb, size_t width_bytes, uint32_t height) {
    uint8_t *lines = malloc((width_bytes + 1) * height);
    for (uint32_t y = 0; lines != NULL && y < height; y++) {
        uint8_t *line = lines + (width_bytes + 1) * y;
        const uint8_t *now = rgb + width_bytes * y;
        line[0] = 2;
        for (size_t i = 0; i < width_bytes; i++)
            line[1 + i] = (uint8_t)(now[i] - (y > 0 ? now[i - width_bytes] : 0));
    }
    return lines;
}

static bool write_all(FILE *f, uint32_t width, uint32_t height, const uint8_t *data, uLong n) {
    static const uint8_t magic[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
    uint8_t head[13] = {0};
    put_u32(head, width);
    put_u32(head + 4, height);
    head[8] = 8; /* bits */
    head[9] = 2; /* RGB */
    return fwrite(magic, sizeof magic, 1, f) == 1 && write_chunk(f, "IHDR", head, sizeof head) &&
           write_chunk(f, "IDAT", data, (uint32_t)n) && write_chunk(f, "IEND", NULL, 0);
}

enum status png_write(const char *path, const uint8_t *rgb, uint32_t width, uint32_t height,
                      struct error *e) {
    CHECK(width >= 1 && width <= PNG_MAX_SIDE && height >= 1 && height <= PNG_MAX_SIDE);
    const size_t width_bytes = 3 * (size_t)width;
    const uLong raw_bytes = (uLong)(width_bytes + 1) * height;
    uLong n = compressBound(raw_bytes);
    uint8_t *lines = filtered(rgb, width_bytes, height), *data = malloc(n);
    if (lines == NULL || data == NULL || compress2(data, &n, lines, raw_bytes, 9) != Z_OK) {
        free(lines);
        free(data);
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the picture %s", path);
    }
    FILE *f = fopen(path, "wb");
    bool good = f != NULL && write_all(f, width, height, data, n);
    if (f != NULL && fclose(f) != 0) good = false;
    if (f != NULL && !good) (void)remove(path);
    free(lines);
    free(data);
    return good ? STATUS_OK : error_set(e, STATUS_IO, NULL, "%s cannot be written", path);
}
