/* inspect_pack.h: what `inspect` says of a pack: its targets, its kernels and what made them.
 *
 * Returns the exit status of the command: 1, with a line on stderr, for a pack that is refused.
 */
#ifndef LAC_CMD_INSPECT_PACK_H
#define LAC_CMD_INSPECT_PACK_H

#include "core/config.h"

int inspect_pack(const struct config *c);

#endif
