/* inspect_sidecar.h: `laconic inspect F.lacs`: the sections of a side-car, checked. */
#ifndef LAC_CMD_INSPECT_SIDECAR_H
#define LAC_CMD_INSPECT_SIDECAR_H

#include "core/config.h"

/* Prints c->model, which is a side-car, as text or JSON; returns the exit status. */
int inspect_sidecar(const struct config *c);

#endif
