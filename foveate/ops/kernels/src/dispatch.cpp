// The kernels are compiled once for every vector unit, from the same text in a namespace of its own. Everything of the
// standard library is included before, so that no function shared with other code is compiled for a newer unit.
#include "kernels.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "parallel.h"

namespace foveate {

namespace plain {
#define FOVEATE_BYTES 32
#define FOVEATE_UNIT "baseline"
#include "all.inc"
#undef FOVEATE_BYTES
#undef FOVEATE_UNIT
}  // namespace plain

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi,bmi2")
#endif
namespace avx2 {
#define FOVEATE_BYTES 32
#define FOVEATE_UNIT "avx2"
#include "all.inc"
#undef FOVEATE_BYTES
#undef FOVEATE_UNIT
}  // namespace avx2
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx2,fma,bmi,bmi2,avx512f,avx512vl,avx512dq,avx512bw,prefer-vector-width=512"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi,bmi2,avx512f,avx512vl,avx512dq,avx512bw,prefer-vector-width=512")
#endif
namespace avx512 {
#define FOVEATE_BYTES 64
#define FOVEATE_UNIT "avx512"
#include "all.inc"
#undef FOVEATE_BYTES
#undef FOVEATE_UNIT
}  // namespace avx512
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif

const Kernels& kernels() {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                               __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  static const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
  static const char* wanted = std::getenv("FOVEATE_UNIT");  // a lesser unit than there is, for tests
  const auto allows = [](const char* unit) { return !wanted || !std::strcmp(wanted, unit); };
  if (has_avx512 && allows("avx512")) return avx512::kTable;
  if (has_avx2 && allows("avx2")) return avx2::kTable;
#endif
  return plain::kTable;
}

}  // namespace foveate
