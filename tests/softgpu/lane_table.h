/* lane_table.h: the table of handlers of one build; LANE_TABLE is its name. See lanes.h.
 */
#include "tests/softgpu/lane_matrix.h"

#define X(name) [LANE_##name] = lane_##name,
op_fn *const LANE_TABLE[LANE_OPS] = {LANE_LIST(X)};
#undef X
