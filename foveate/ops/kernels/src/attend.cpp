#include "kernels.h"
#include "system.h"

namespace foveate {

#define FOVEATE_KERNELS "attend.inc"
#include "every_unit.inc"

template <class T>
const AttendKernels<T>& attend_kernels() {
  return FOVEATE_FOR_UNIT(attend_table<T>);
}
template const AttendKernels<float>& attend_kernels();
template const AttendKernels<double>& attend_kernels();

}  // namespace foveate
