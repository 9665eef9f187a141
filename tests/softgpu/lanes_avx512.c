#pragma GCC optimize("O3")
#define LANE_TABLE lanes_avx512
#include "tests/softgpu/lane_table.h"
