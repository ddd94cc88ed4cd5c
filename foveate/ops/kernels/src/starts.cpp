#include "starts.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "parallel.h"

namespace foveate {

namespace {

// One row's locations by falling weight; see _sort_locations in foveate/ops/starts.py.
template <class T>
struct Sorted {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  std::vector<std::pair<Bits, int32_t>> key, other;
  std::vector<T> x, y, w, far;
  explicit Sorted(long N)
      : key(size_t(N)), other(size_t(N)), x(size_t(N)), y(size_t(N)), w(size_t(N)), far(size_t(N)) {}

  // Returns whether the mean of the map lies on an axis or a diagonal of the image.
  bool set(const T* weights, const T* positions) {
    const size_t n = key.size();
    for (size_t i = 0; i < n; ++i) {
      const T negative = -(weights[i] + T(0));  // + 0: a negative zero is a zero
      Bits bits;
      std::memcpy(&bits, &negative, sizeof bits);
      // Numbers that are not positive have falling bits: inverted, the heaviest comes first.
      key[i] = {static_cast<Bits>(~bits), static_cast<int32_t>(i)};
    }
    sort();
    const bool mirrored = locate(weights, positions);
    bool measured = false;
    for (size_t first = 0, last; first < n; first = last) {
      for (last = first + 1; last < n && key[last].first == key[first].first;) ++last;
      if (last == first + 1) continue;
      if (!measured) measure(positions);
      measured = true;
      std::sort(key.begin() + long(first), key.begin() + long(last), [&](const auto& a, const auto& b) {
        const auto i = size_t(a.second), j = size_t(b.second);
        if (far[i] != far[j]) return far[i] < far[j];
        if (positions[2 * i + 1] != positions[2 * j + 1]) return positions[2 * i + 1] < positions[2 * j + 1];
        if (positions[2 * i] != positions[2 * j]) return positions[2 * i] < positions[2 * j];
        return i < j;
      });
    }
    for (size_t i = 0; i < n; ++i) {
      const auto at = size_t(key[i].second);
      x[i] = positions[2 * at];
      y[i] = positions[2 * at + 1];
      w[i] = weights[at];
    }
    return mirrored;
  }

 private:
  // By the key, a byte at a time from the lowest, each pass stable: hundreds of comparisons would be mispredicted. A byte
  // that all keys share, as the exponent often is, takes no pass.
  void sort() {
    constexpr int bytes = sizeof(Bits);
    const size_t n = key.size();
    uint32_t count[bytes][256] = {};
    for (const auto& k : key)
      for (int b = 0; b < bytes; ++b) ++count[b][(k.first >> (8 * b)) & 255];
    for (int b = 0; b < bytes; ++b) {
      const auto digit = [b](const auto& k) { return (k.first >> (8 * b)) & 255; };
      if (count[b][digit(key[0])] == n) continue;
      uint32_t place = 0;
      for (auto& c : count[b]) place += std::exchange(c, place);
      for (const auto& k : key) other[count[b][digit(k)]++] = k;
      std::swap(key, other);
    }
  }

  double mx = 0, my = 0;  // the mean of the map

  bool locate(const T* weights, const T* positions) {
    mx = my = 0;
    for (size_t i = 0; i < key.size(); ++i) {
      mx += static_cast<double>(weights[i] * positions[2 * i]);
      my += static_cast<double>(weights[i] * positions[2 * i + 1]);
    }
    constexpr double on = 1e-5;  // ON_AXIS of foveate/ops/starts.py
    return std::abs(mx - 0.5) < on || std::abs(my - 0.5) < on || std::abs(mx - my) < on || std::abs(mx + my - 1) < on;
  }

  // Squared distance of every location from the mean of the map.
  void measure(const T* positions) {
    for (size_t i = 0; i < key.size(); ++i) {
      const T dx = positions[2 * i] - T(mx), dy = positions[2 * i + 1] - T(my);
      far[i] = dx * dx + dy * dy;
    }
  }
};

// What a restart draws from: the distance of every location to the nearest mean so far, and running sums.
template <class T>
struct Draw {
  std::vector<T> nearest, mass;
  explicit Draw(long N) : nearest(size_t(N)), mass(nearest) {}
};

// Running sums of weight * nearest, rounded as in torch. Every addition waits for the one before: those of two
// restarts side by side take no longer than those of one.
template <int count, class T>
void accumulate(const Sorted<T>& s, Draw<T>* draws) {
  double total[count] = {};
  for (size_t i = 0; i < s.w.size(); ++i)
    for (int c = 0; c < count; ++c) {
      total[c] += static_cast<double>(s.w[i] * draws[c].nearest[i]);
      draws[c].mass[i] = T(total[c]);
    }
}

// The location drawn by u from running sums of its probabilities, up to a factor.
template <class T>
size_t drawn(const std::vector<T>& mass, T u) {
  const T bound = u * T(1 - 1e-6) * mass.back();
  return std::min(static_cast<size_t>(std::upper_bound(mass.begin(), mass.end(), bound) - mass.begin()), mass.size() - 1);
}

template <class T>
size_t heaviest(const Sorted<T>& s, const std::vector<T>& nearest) {
  T most = -1;
  for (size_t i = 0; i < nearest.size(); ++i) most = std::max(most, s.w[i] * nearest[i]);
  for (size_t i = 0; i < nearest.size(); ++i)
    if (s.w[i] * nearest[i] == most) return i;
  return 0;
}

template <class T>
void approach(const Sorted<T>& s, size_t at, bool first, std::vector<T>& nearest) {
  const T cx = s.x[at], cy = s.y[at];
  for (size_t i = 0; i < nearest.size(); ++i) {
    const T dx = s.x[i] - cx, dy = s.y[i] - cy, distance2 = dx * dx + dy * dy;
    nearest[i] = first ? distance2 : std::min(nearest[i], distance2);
  }
}

}  // namespace

template <class T>
bool spread_starts(const T* weights, const T* positions, long position_stride, const T* draws, const StartPlan& plan,
                   T* means, long B, long N, int threads) {
  const long total = plan.means();
  std::atomic<bool> mirrored{false};
  const long largest = *std::max_element(plan.components, plan.components + plan.groups);
  in_parallel(B, static_cast<double>(N * (total + 20)) * 1.5, threads, [&](long begin, long end) {
    Sorted<T> s(N);
    Draw<T> whole(N), pair[2] = {Draw<T>(N), Draw<T>(N)};
    std::vector<T>& nearest = pair[0].nearest;
    std::fill(whole.nearest.begin(), whole.nearest.end(), T(1));
    std::vector<size_t> greedy(static_cast<size_t>(largest));
    for (long b = begin; b < end; ++b) {
      if (s.set(weights + b * N, positions + b * position_stride)) mirrored = true;
      accumulate<1>(s, &whole);  // what the first component of every restart is drawn from
      for (size_t k = 0; k < greedy.size(); ++k) {  // the first restart of a kind begins as that of the largest kind
        greedy[k] = heaviest(s, k ? nearest : whole.nearest);
        if (k + 1 < greedy.size()) approach(s, greedy[k], k == 0, nearest);
      }
      T* to = means + b * total * 2;
      const T* u = draws;
      const auto put = [&](long place, size_t at) {
        to[2 * place] = s.x[at];
        to[2 * place + 1] = s.y[at];
      };
      for (long g = 0; g < plan.groups; ++g) {
        const long restarts = plan.restarts[g], K = plan.components[g];
        for (long k = 0; k < K; ++k) put(k, greedy[size_t(k)]);
        for (long r = 1; r < restarts; r += 2) {
          const long both = std::min(2L, restarts - r);
          for (long k = 0; k < K; ++k) {
            if (k && both == 2) accumulate<2>(s, pair);
            if (k && both == 1) accumulate<1>(s, pair);
            for (long c = 0; c < both; ++c) {
              const long place = (r + c) * K + k;
              const size_t at = drawn(k ? pair[c].mass : whole.mass, u[place]);
              if (k + 1 < K) approach(s, at, k == 0, pair[c].nearest);
              put(place, at);
            }
          }
        }
        u += restarts * K;
        to += 2 * restarts * K;
      }
    }
  });
  return mirrored;
}

template bool spread_starts<float>(const float*, const float*, long, const float*, const StartPlan&, float*, long, long, int);
template bool spread_starts<double>(const double*, const double*, long, const double*, const StartPlan&, double*, long, long, int);

}  // namespace foveate
