#include "kernels.h"
#include "system.h"

namespace foveate {

#define FOVEATE_KERNELS "em_choice.inc"
#include "every_unit.inc"

template <class T>
const EmKernels<T>& em_kernels() {
  return FOVEATE_FOR_UNIT(em_table<T>);
}
template const EmKernels<float>& em_kernels();
template const EmKernels<double>& em_kernels();

}  // namespace foveate
