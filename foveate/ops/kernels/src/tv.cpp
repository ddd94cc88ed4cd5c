#include "kernels.h"
#include "system.h"

namespace foveate {

#define FOVEATE_KERNELS "tv.inc"
#include "every_unit.inc"

template <class T>
const TvKernels<T>& tv_kernels() {
  return FOVEATE_FOR_UNIT(tv_table<T>);
}
template const TvKernels<float>& tv_kernels();
template const TvKernels<double>& tv_kernels();

}  // namespace foveate
