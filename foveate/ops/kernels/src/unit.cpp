#include "unit.h"

#include <cstdlib>
#include <cstring>

namespace foveate {

Unit unit() {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                               __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  static const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
  static const char* wanted = std::getenv("FOVEATE_UNIT");  // a lesser unit than there is, for tests
  const auto allows = [](const char* name) { return !wanted || !std::strcmp(wanted, name); };
  static const Unit found = has_avx512 && allows("avx512") ? Unit::avx512 : has_avx2 && allows("avx2") ? Unit::avx2 : Unit::baseline;
  return found;
#else
  return Unit::baseline;
#endif
}

const char* unit_name() {
  switch (unit()) {
    case Unit::avx512: return "avx512";
    case Unit::avx2: return "avx2";
    default: return "baseline";
  }
}

}  // namespace foveate
