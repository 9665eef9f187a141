/* label_rows.h: labelled texts from a CSV file (RFC 4180) for `laconic tune --labels`.
 *
 * The first line names the columns; `text` and `category` are read, others are not. Fields may be
 * quoted; quoted ones may hold commas, line ends and doubled quotes. Lines end in LF or CRLF; blank
 * ones are skipped. Texts have 1 to LABEL_ROW_BYTES bytes, labels 1 to REQUEST_MAX_LABEL_BYTES.
 *
 * Errors name the line: STATUS_INVALID, STATUS_TOO_LARGE (over LABEL_MAX_ROWS rows or
 * REQUEST_MAX_LABELS labels, or the file over 1 GiB), STATUS_IO, STATUS_NO_MEMORY; *r is zeroed.
 */
#ifndef LAC_CMD_LABEL_ROWS_H
#define LAC_CMD_LABEL_ROWS_H

#include "core/request.h"
#include "core/status.h"

enum { LABEL_MAX_ROWS = 1 << 18, LABEL_ROW_BYTES = 1 << 16 };

struct label_rows {
    uint32_t n, cap, n_labels;
    struct text *texts;                     /* [n], in `bytes` */
    uint32_t *label;                        /* [n] index into labels */
    struct text labels[REQUEST_MAX_LABELS]; /* sorted bytewise */
    char *bytes;                            /* the file, fields unquoted in place */
};

LAC_MUST_USE enum status label_rows_read(const char *path, struct label_rows *r, struct error *e);
void label_rows_free(struct label_rows *r);

#endif
