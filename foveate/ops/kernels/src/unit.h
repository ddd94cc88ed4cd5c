// The vector units that the kernels are compiled for, and the one that this processor has.
#pragma once

namespace foveate {

enum class Unit { baseline, avx2, avx512 };

Unit unit();
const char* unit_name();

}  // namespace foveate
