/* page.h: the status page, io/page.html, as it stands in the binary. */
#ifndef LAC_IO_PAGE_H
#define LAC_IO_PAGE_H

#include <stddef.h>

const char *page_html(size_t *bytes);

#endif
