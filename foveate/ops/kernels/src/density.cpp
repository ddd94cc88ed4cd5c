#include "kernels.h"
#include "system.h"

namespace foveate {

#define FOVEATE_KERNELS "density.inc"
#include "every_unit.inc"

template <class T>
const DensityKernels<T>& density_kernels() {
  return FOVEATE_FOR_UNIT(density_table<T>);
}
template const DensityKernels<float>& density_kernels();
template const DensityKernels<double>& density_kernels();

ChordKernel chord_kernel() { return FOVEATE_FOR_UNIT(chord_moments); }

}  // namespace foveate
