/* plot.h: small diagrams as PNG files: panels with axes, curves, dots, bands, marks and labels.
 * ASCII texts only (other bytes show as '?').
 *
 * A canvas is plot_open(width, height) -> plot_axes for each panel -> what is drawn into it ->
 * plot_save. Coordinates of data are the panel's own; what leaves the panel is clipped, NaN and
 * infinite points are gaps.
 * Memory: the canvas is the caller's to close. Nothing else can fail: drawing on NULL does nothing,
 * and plot_save says STATUS_NO_MEMORY.
 */
#ifndef LAC_CMD_PLOT_H
#define LAC_CMD_PLOT_H

#include <stdint.h>

#include "core/status.h"

enum { PLOT_GLYPH_WIDTH = 6, PLOT_GLYPH_HEIGHT = 10 };

/* 0xRRGGBB, told apart in print and by colour-blind readers. */
enum plot_colour {
    PLOT_BLACK = 0x202020,
    PLOT_GREY = 0x9A9A9A,
    PLOT_PALE = 0xE4E4E4,
    PLOT_BLUE = 0x2166AC,
    PLOT_ORANGE = 0xD9730D,
    PLOT_ROSE = 0xF6D5DC,
};

struct plot; /* one picture */

struct plot_axes {
    struct plot *plot;
    int left, top, right, bottom; /* pixels, of the frame */
    double x0, x1, y0, y1;        /* data at left, right, bottom, top */
};

struct plot *plot_open(uint32_t width, uint32_t height);
void plot_close(struct plot *p); /* NULL: nothing */
LAC_MUST_USE enum status plot_save(const struct plot *p, const char *path, struct error *e);

void plot_text(struct plot *p, int x, int y, uint32_t colour, const char *text);

/* A frame inside the pixels (left, top)-(right, bottom), with round ticks and their numbers
 * outside it, a title above and the x axis's name below. x1 > x0, y1 > y0. */
struct plot_axes plot_axes(struct plot *p, int left, int top, int right, int bottom, double x0,
                           double x1, double y0, double y1, const char *title, const char *x_name);

void plot_curve(const struct plot_axes *a, uint32_t colour, const double *x, const double *y,
                uint32_t n);
void plot_dots(const struct plot_axes *a, uint32_t colour, const double *x, const double *y,
               uint32_t n);
void plot_line(const struct plot_axes *a, uint32_t colour, double x0, double y0, double x1,
               double y1);
/* The panel between two x; draw it first. */
void plot_band(const struct plot_axes *a, uint32_t colour, double x0, double x1);
/* A name for a colour, `row` lines below the frame's top, at its right. */
void plot_legend(const struct plot_axes *a, uint32_t colour, int row, const char *name);

/* The distance of round ticks (1, 2 or 5 times a power of ten) that gives at most `most`. */
double plot_tick(double range, int most);

#endif
