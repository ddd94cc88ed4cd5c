// The standard library for the kernels, before any of them is compiled for a newer vector unit than the baseline.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "parallel.h"
#include "unit.h"
