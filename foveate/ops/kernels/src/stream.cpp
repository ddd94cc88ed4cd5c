#include "stream.h"

#include "kernels.h"
#include "system.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace foveate {

#define FOVEATE_KERNELS "stream.inc"
#include "every_unit.inc"

template <class T>
const StreamKernels<T>& stream_kernels() {
  return FOVEATE_FOR_UNIT(stream_table<T>);
}
template const StreamKernels<float>& stream_kernels();
template const StreamKernels<double>& stream_kernels();

}  // namespace foveate
