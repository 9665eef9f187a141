#pragma GCC optimize("O3")
#define LANE_TABLE lanes_avx2
#include "tests/softgpu/lane_table.h"
