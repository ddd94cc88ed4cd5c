// Spread starts of EM. They decide between locations, so every operation is rounded as in torch: starts.cpp is compiled
// without fused multiply-adds, which would break ties between locations that mirror each other.
#pragma once

#include <cstdint>

namespace foveate {

// Starts of `groups` kinds: kind g has restarts[g] starts of components[g] means each.
struct StartPlan {
  const int64_t* components;
  const int64_t* restarts;
  long groups;
  long means() const {
    long total = 0;
    for (long g = 0; g < groups; ++g) total += components[g] * restarts[g];
    return total;
  }
};

// means (B, plan.means(), 2): kinds, restarts and components in this order, as are the uniform numbers `draws`. True where
// a row may be its own image in a mirror: its mean lies on an axis or a diagonal of the image.
template <class T>
bool spread_starts(const T* weights, const T* positions, long position_stride, const T* draws, const StartPlan& plan,
                   T* means, long B, long N, int threads);

}  // namespace foveate
