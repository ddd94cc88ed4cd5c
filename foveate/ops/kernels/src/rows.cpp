#include "kernels.h"
#include "system.h"

namespace foveate {

#define FOVEATE_KERNELS "rows.inc"
#include "every_unit.inc"

template <class T>
const RowKernels<T>& row_kernels() {
  return FOVEATE_FOR_UNIT(row_table<T>);
}
template const RowKernels<float>& row_kernels();
template const RowKernels<double>& row_kernels();

}  // namespace foveate
