#pragma GCC optimize("O3")
#define LANE_TABLE lanes_scalar
#include "tests/softgpu/lane_table.h"
