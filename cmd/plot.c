#include "cmd/plot.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/plot_font.h"
#include "cmd/png.h"
#include "core/check.h"

enum { TICKS = 6, DOT = 2 };

struct plot {
    int width, height;
    uint8_t *rgb; /* [height, width, 3] */
};

struct plot *plot_open(uint32_t width, uint32_t height) {
    CHECK(width >= 1 && width <= PNG_MAX_SIDE && height >= 1 && height <= PNG_MAX_SIDE);
    struct plot *p = malloc(sizeof *p);
    const size_t bytes = 3 * (size_t)width * height;
    if (p != NULL) *p = (struct plot){(int)width, (int)height, malloc(bytes)};
    if (p == NULL || p->rgb == NULL) {
        free(p);
        return NULL;
    }
    memset(p->rgb, 0xFF, bytes);
    return p;
}

void plot_close(struct plot *p) {
    if (p == NULL) return;
    free(p->rgb);
    free(p);
}

enum status plot_save(const struct plot *p, const char *path, struct error *e) {
    if (p == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for %s", path);
    return png_write(path, p->rgb, (uint32_t)p->width, (uint32_t)p->height, e);
}

static void dot(struct plot *p, int x, int y, uint32_t colour) {
    if (p == NULL || x < 0 || y < 0 || x >= p->width || y >= p->height) return;
    uint8_t *at = p->rgb + 3 * ((size_t)y * (size_t)p->width + (size_t)x);
    at[0] = (uint8_t)(colour >> 16);
    at[1] = (uint8_t)(colour >> 8);
    at[2] = (uint8_t)colour;
}

static void fill(struct plot *p, int left, int top, int right, int bottom, uint32_t colour) {
    for (int y = top; y <= bottom; y++)
        for (int x = left; x <= right; x++) dot(p, x, y, colour);
}

/* ---- texts ---- */

static void glyph(struct plot *p, int x, int y, uint32_t colour, char c) {
    if (c < ' ' || c > '~') c = '?';
    const unsigned index = (unsigned)(c - ' ');
    for (int row = 0; row < FONT_ROWS; row++) {
        const char *line = FONT[index / FONT_BAND][row] + 6 * (index % FONT_BAND);
        for (int k = 0; k < FONT_COLUMNS; k++)
            if (line[k] == '#') dot(p, x + k, y + row, colour);
    }
}

void plot_text(struct plot *p, int x, int y, uint32_t colour, const char *text) {
    for (; *text != '\0'; text++) {
        if (((unsigned char)*text & 0xC0) == 0x80) continue; /* one '?' for each character */
        glyph(p, x, y, colour, *text);
        x += PLOT_GLYPH_WIDTH;
    }
}

static int text_width(const char *text) {
    return (int)strlen(text) * PLOT_GLYPH_WIDTH;
}

/* ---- axes ---- */

double plot_tick(double range, int most) {
    CHECK(range > 0 && most > 0);
    double step = pow(10, floor(log10(range / most)));
    static const double times[] = {2, 2.5, 2};
    for (int i = 0; range / step > most; i = (i + 1) % 3) step *= times[i];
    return step;
}

static double pixel_x(const struct plot_axes *a, double x) {
    return a->left + (x - a->x0) / (a->x1 - a->x0) * (a->right - a->left);
}

static double pixel_y(const struct plot_axes *a, double y) {
    return a->bottom - (y - a->y0) / (a->y1 - a->y0) * (a->bottom - a->top);
}

static void ticks(const struct plot_axes *a, bool of_x) {
    const double from = of_x ? a->x0 : a->y0, to = of_x ? a->x1 : a->y1;
    const double step = plot_tick(to - from, TICKS);
    for (double k = ceil(from / step - 1e-9); k * step <= to + 1e-9 * step; k++) {
        char text[32];
        snprintf(text, sizeof text, "%.6g", fabs(k) < 0.5 ? 0 : k * step);
        if (of_x) {
            const int x = (int)lround(pixel_x(a, k * step));
            fill(a->plot, x, a->top, x, a->bottom, PLOT_PALE);
            plot_text(a->plot, x - text_width(text) / 2, a->bottom + 5, PLOT_BLACK, text);
        } else {
            const int y = (int)lround(pixel_y(a, k * step));
            fill(a->plot, a->left, y, a->right, y, PLOT_PALE);
            plot_text(a->plot, a->left - 4 - text_width(text), y - 3, PLOT_BLACK, text);
        }
    }
}

struct plot_axes plot_axes(struct plot *p, int left, int top, int right, int bottom, double x0,
                           double x1, double y0, double y1, const char *title, const char *x_name) {
    CHECK(right > left && bottom > top && x1 > x0 && y1 > y0);
    const struct plot_axes a = {p, left, top, right, bottom, x0, x1, y0, y1};
    ticks(&a, true);
    ticks(&a, false);
    fill(p, left, top, left, bottom, PLOT_GREY);
    fill(p, right, top, right, bottom, PLOT_GREY);
    fill(p, left, top, right, top, PLOT_GREY);
    fill(p, left, bottom, right, bottom, PLOT_GREY);
    plot_text(p, left, top - PLOT_GLYPH_HEIGHT - 3, PLOT_BLACK, title);
    plot_text(p, (left + right - text_width(x_name)) / 2, bottom + 18, PLOT_BLACK, x_name);
    return a;
}

/* ---- data ---- */

static void dot_inside(const struct plot_axes *a, int x, int y, uint32_t colour) {
    if (x > a->left && x < a->right && y > a->top && y < a->bottom) dot(a->plot, x, y, colour);
}

/* The part of [*from, *to], a line's parameter in [0, 1], where at + t * by lies between the two
 * (Liang and Barsky, "A New Concept and Method for Line Clipping", 1984). */
static bool clip(double at, double by, double least, double most, double *from, double *to) {
    if (by == 0) return at >= least && at <= most;
    double in = (least - at) / by, out = (most - at) / by;
    if (in > out) {
        const double t = in;
        in = out;
        out = t;
    }
    if (in > *from) *from = in;
    if (out < *to) *to = out;
    return *from <= *to;
}

void plot_line(const struct plot_axes *a, uint32_t colour, double x0, double y0, double x1,
               double y1) {
    if (!isfinite(x0) || !isfinite(y0) || !isfinite(x1) || !isfinite(y1)) return;
    const double x = pixel_x(a, x0), y = pixel_y(a, y0);
    const double dx = pixel_x(a, x1) - x, dy = pixel_y(a, y1) - y;
    double from = 0, to = 1;
    if (!clip(x, dx, a->left, a->right, &from, &to) || !clip(y, dy, a->top, a->bottom, &from, &to))
        return;
    const double length = fmax(fabs(dx), fabs(dy)) * (to - from);
    const int n = length > 1 ? (int)length + 1 : 1;
    for (int i = 0; i <= n; i++) {
        const double t = from + (to - from) * i / n;
        dot_inside(a, (int)lround(x + t * dx), (int)lround(y + t * dy), colour);
    }
}

void plot_curve(const struct plot_axes *a, uint32_t colour, const double *x, const double *y,
                uint32_t n) {
    for (uint32_t i = 1; i < n; i++) plot_line(a, colour, x[i - 1], y[i - 1], x[i], y[i]);
}

void plot_dots(const struct plot_axes *a, uint32_t colour, const double *x, const double *y,
               uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (!(x[i] >= a->x0 && x[i] <= a->x1 && y[i] >= a->y0 && y[i] <= a->y1)) continue;
        const int px = (int)lround(pixel_x(a, x[i])), py = (int)lround(pixel_y(a, y[i]));
        for (int k = -DOT; k <= DOT; k++)
            for (int l = -DOT; l <= DOT; l++)
                if (k * k + l * l <= DOT * DOT) dot_inside(a, px + k, py + l, colour);
    }
}

void plot_band(const struct plot_axes *a, uint32_t colour, double x0, double x1) {
    const double left = fmax(pixel_x(a, x0), a->left + 1);
    const double right = fmin(pixel_x(a, x1), a->right - 1);
    if (left <= right)
        fill(a->plot, (int)lround(left), a->top + 1, (int)lround(right), a->bottom - 1, colour);
}

void plot_legend(const struct plot_axes *a, uint32_t colour, int row, const char *name) {
    const int x = a->right - text_width(name) - 6, y = a->top + 6 + row * (PLOT_GLYPH_HEIGHT + 2);
    fill(a->plot, x - 16, y + 2, x - 5, y + 4, colour);
    plot_text(a->plot, x, y, PLOT_BLACK, name);
}
