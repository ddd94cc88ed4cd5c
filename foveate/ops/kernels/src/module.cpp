// The functions that Python sees. They take addresses of contiguous tensors: foveate/ops/kernels/__init__.py, the only
// caller, has checked dtype, device and layout, and keeps the tensors alive during the call.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels.h"
#include "stream.h"
#include "unit.h"

namespace nb = nanobind;
using namespace foveate;

namespace {

template <class T>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// run(T{}) for T = double where the tensors are `wide`, and float otherwise, without Python's lock.
template <class Run>
auto by_size(bool wide, const Run& run) {
  nb::gil_scoped_release release;
  return wide ? run(double{}) : run(float{});
}

bool entmax_forward(bool wide, uintptr_t scores, uintptr_t weights, long rows, long n, double alpha, int threads) {
  return by_size(wide, [&](auto zero) {
    using T = decltype(zero);
    return row_kernels<T>().forward(at<T>(scores), at<T>(weights), rows, n, alpha, threads);
  });
}

void entmax_backward(bool wide, uintptr_t weights, uintptr_t gradient, uintptr_t result, long rows, long n,
                     double alpha, int threads) {
  by_size(wide, [&](auto zero) {
    using T = decltype(zero);
    row_kernels<T>().backward(at<T>(weights), at<T>(gradient), at<T>(result), rows, n, alpha, threads);
  });
}

// H x W cells when the count of pairs is negative.
Graph graph_of(uintptr_t pairs, long count, long H, long W) {
  const auto rows = static_cast<int32_t>(H), columns = static_cast<int32_t>(W);
  if (count < 0) return grid_graph(rows, columns);
  return edge_graph(rows * columns, at<const int64_t>(pairs), static_cast<int32_t>(count));
}

// What total variation is taken over: the graph, whether it is a chain, and which cells count.
struct Domain {
  bool chain;
  Graph graph;
  const uint8_t* keep;
};

Domain domain_of(uintptr_t pairs, long edges, long H, long W, uintptr_t mask) {
  return {edges < 0 && (H == 1 || W == 1), graph_of(pairs, edges, H, W), at<const uint8_t>(mask)};
}

bool tv_prox(bool wide, uintptr_t pairs, long edges, long H, long W, uintptr_t x, uintptr_t mask, uintptr_t value,
             uintptr_t labels, uintptr_t gap, long count, double smoothness, int threads) {
  return by_size(wide, [&](auto zero) {
    using T = decltype(zero);
    const auto [chain, graph, keep] = domain_of(pairs, edges, H, W, mask);
    return tv_kernels<T>().prox(graph, chain, at<T>(x), keep, at<T>(value), at<int64_t>(labels), at<double>(gap), count,
                                smoothness, threads);
  });
}

bool fused_forward(bool wide, uintptr_t pairs, long edges, long H, long W, uintptr_t scores, uintptr_t mask,
                   uintptr_t weights, uintptr_t labels, long count, double smoothness, int threads) {
  return by_size(wide, [&](auto zero) {
    using T = decltype(zero);
    const auto [chain, graph, keep] = domain_of(pairs, edges, H, W, mask);
    return tv_kernels<T>().forward(graph, chain, at<T>(scores), keep, at<T>(weights), at<int32_t>(labels), count,
                                   smoothness, threads);
  });
}

void fused_backward(bool wide, uintptr_t weights, uintptr_t labels, uintptr_t gradient, uintptr_t result, long count,
                    long n, int threads) {
  by_size(wide, [&](auto zero) {
    using T = decltype(zero);
    tv_kernels<T>().backward(at<T>(weights), at<const int32_t>(labels), at<T>(gradient), at<T>(result), count, n, threads);
  });
}

bool attend_forward(bool wide, uintptr_t weights, uintptr_t values, uintptr_t context, long B, long Q, long N, long D,
                    double most, int threads) {
  return by_size(wide, [&](auto zero) {
    using T = decltype(zero);
    return attend_kernels<T>().forward(at<T>(weights), at<T>(values), at<T>(context), B, Q, N, D, most, threads);
  });
}

void attend_backward(bool wide, uintptr_t weights, uintptr_t values, uintptr_t gradient, uintptr_t to_weights,
                     uintptr_t to_values, long B, long Q, long N, long D, int threads) {
  by_size(wide, [&](auto zero) {
    using T = decltype(zero);
    attend_kernels<T>().backward(at<T>(weights), at<T>(values), at<T>(gradient), at<T>(to_weights), at<T>(to_values), B,
                                 Q, N, D, threads);
  });
}

void chord_moments(uintptr_t semi, uintptr_t centre, uintptr_t nodes, uintptr_t weights, int count, uintptr_t moments,
                   long R, long J, int threads) {
  nb::gil_scoped_release release;
  chord_kernel()(at<double>(semi), at<double>(centre), at<double>(nodes), at<double>(weights), count,
                 at<double>(moments), R, J, threads);
}

// Addresses of weights, positions and floor, and the strides of the last two.
using Cells = std::tuple<uintptr_t, uintptr_t, uintptr_t, long, long>;

template <class T>
EmCells<T> cells_of(const Cells& c) {
  return {at<T>(std::get<0>(c)), at<T>(std::get<1>(c)), at<T>(std::get<2>(c)), std::get<3>(c), std::get<4>(c)};
}

void em_forward(bool wide, const Cells& cells, uintptr_t start, uintptr_t states, uintptr_t shares, uintptr_t likelihood,
                long B, long R, long K, long N, long iterations, int threads) {
  by_size(wide, [&](auto zero) {
    using T = decltype(zero);
    em_kernels<T>().forward(cells_of<T>(cells), at<T>(start), at<double>(states), at<T>(shares), at<T>(likelihood), B, R, K, N,
               iterations, threads);
  });
}

void em_backward(bool wide, const Cells& cells, uintptr_t states, uintptr_t shares, uintptr_t to_last,
                 uintptr_t to_likelihood, uintptr_t to_weights, uintptr_t to_start, long B, long R, long K, long N,
                 long iterations, int threads) {
  by_size(wide, [&](auto zero) {
    using T = decltype(zero);
    em_kernels<T>().backward(cells_of<T>(cells), at<double>(states), at<T>(shares), at<T>(to_last), at<T>(to_likelihood),
                at<T>(to_weights), at<T>(to_start), B, R, K, N, iterations, threads);
  });
}

// The plan is (components, restarts) of every kind of start.
using Plan = std::vector<std::pair<int64_t, int64_t>>;

struct Kinds {
  std::vector<int64_t> components, restarts;
  explicit Kinds(const Plan& plan) {
    for (const auto& [K, R] : plan) {
      components.push_back(K);
      restarts.push_back(R);
    }
  }
  StartPlan plan() const { return {components.data(), restarts.data(), static_cast<long>(components.size())}; }
};

bool spread(bool wide, uintptr_t weights, uintptr_t positions, long position_stride, uintptr_t draws, const Plan& plan,
            uintptr_t means, long B, long N, int threads) {
  const Kinds kinds(plan);
  return by_size(wide, [&](auto zero) {
    using T = decltype(zero);
    return spread_starts(at<T>(weights), at<T>(positions), position_stride, at<T>(draws), kinds.plan(), at<T>(means), B, N, threads);
  });
}

void em_choose(bool wide, const Cells& cells, uintptr_t means, long means_stride, const Plan& plan, double variance,
               double background, double penalty, uintptr_t begin, uintptr_t end, uintptr_t criterion,
               uintptr_t likelihood, long B, long N, long iterations, int threads) {
  const Kinds kinds(plan);
  by_size(wide, [&](auto zero) {
    using T = decltype(zero);
    const EmChoice<T> choice = {at<T>(means), means_stride, kinds.plan(), variance, background, penalty};
    em_kernels<T>().choose(cells_of<T>(cells), choice, at<T>(begin), at<T>(end), at<T>(criterion), at<T>(likelihood), B, N, iterations,
              threads);
  });
}

bool density_moments(bool wide, const Cells& cells, uintptr_t mask, uintptr_t mean, uintptr_t covariance, long B, long N,
                     int threads) {
  return by_size(wide, [&](auto zero) {
    using T = decltype(zero);
    return density_kernels<T>().moments(cells_of<T>(cells), at<uint8_t>(mask), at<T>(mean), at<T>(covariance), B, N, threads);
  });
}

bool density_sound(bool wide, uintptr_t mean, uintptr_t matrix, long R) {
  return by_size(wide, [&](auto zero) {
    using T = decltype(zero);
    return density_kernels<T>().sound(at<T>(mean), at<T>(matrix), R);
  });
}

void density_normal(bool wide, uintptr_t mean, uintptr_t covariance, uintptr_t centres, uintptr_t variance, uintptr_t out,
                    long R, long J, int threads) {
  by_size(wide, [&](auto zero) {
    using T = decltype(zero);
    density_kernels<T>().normal(at<T>(mean), at<T>(covariance), at<double>(centres), at<double>(variance), at<T>(out), R, J, threads);
  });
}

void density_paraboloid(bool wide, uintptr_t mean, uintptr_t covariance, uintptr_t centres, uintptr_t variance,
                        uintptr_t nodes, uintptr_t weights, int count, double thinnest, uintptr_t out, long R, long J,
                        int threads) {
  by_size(wide, [&](auto zero) {
    using T = decltype(zero);
    density_kernels<T>().paraboloid(at<T>(mean), at<double>(covariance), at<double>(centres), at<double>(variance), at<double>(nodes),
                       at<double>(weights), count, thinnest, at<T>(out), R, J, threads);
  });
}

// Address, strides of example, head and row.
using Rows = std::tuple<uintptr_t, long, long, long>;

// Everything that both directions of streaming attention take; see StreamInputs.
struct StreamCall {
  bool wide;
  std::vector<long> sizes;  // B, M, groups, Q, N, E, D
  Rows query, key, value, alpha, cooling;
  uintptr_t mask;
  bool boolean;
  std::vector<long> mask_strides;
  double lowest, scale;
  bool causal;
  double dropout;
  uint32_t seed;
  int threads;

  template <class T>
  StreamInputs<T> inputs() const {
    const auto rows = [](const Rows& r) {
      return Strided<const T>{at<const T>(std::get<0>(r)), std::get<1>(r), std::get<2>(r), std::get<3>(r)};
    };
    const auto& n = sizes;
    return {n[0], n[1], n[2], n[3], n[4], n[5], n[6], rows(query), rows(key), rows(value), rows(alpha), rows(cooling),
            boolean ? at<const uint8_t>(mask) : nullptr, boolean ? nullptr : at<const T>(mask), mask_strides[0],
            mask_strides[1], mask_strides[2], mask_strides[3], lowest, scale, causal, dropout, seed, threads};
  }
};

// Supports that wait until tensors of their size have been made.
template <class T>
using Supports = std::vector<Support<T>>;

template <class T>
nb::object stream_forward_of(const StreamCall& call, uintptr_t context, uintptr_t state, uintptr_t counts, double most) {
  auto kept = std::make_unique<Supports<T>>();
  bool sound;
  long total = 0;
  {
    nb::gil_scoped_release release;
    sound = stream_kernels<T>().forward(
        call.inputs<T>(), {at<T>(context), at<T>(state), at<int32_t>(counts), most, counts ? kept.get() : nullptr});
    for (const auto& part : *kept) total += part.count;
  }
  if (!sound) return nb::none();
  nb::capsule owner(kept.release(), [](void* p) noexcept { delete static_cast<Supports<T>*>(p); });
  return nb::make_tuple(total, owner);
}

nb::object stream_forward(const StreamCall& call, uintptr_t context, uintptr_t state, uintptr_t counts, double most) {
  return call.wide ? stream_forward_of<double>(call, context, state, counts, most)
                   : stream_forward_of<float>(call, context, state, counts, most);
}

void stream_supports(bool wide, const nb::capsule& owner, uintptr_t places, uintptr_t weights) {
  void* kept = owner.data();
  by_size(wide, [&](auto zero) {
    using T = decltype(zero);
    auto* place = at<int32_t>(places);
    T* weight = at<T>(weights);
    for (auto& part : *static_cast<Supports<T>*>(kept)) {
      place = std::copy_n(part.places.get(), part.count, place);
      weight = std::copy_n(part.weights.get(), part.count, weight);
      part = {};  // at once, so that there are never two copies of all
    }
  });
}

// gradient, state, counts, places, weights, to_weights; then the gradients to query, key, value, alpha, cooling, mask.
void stream_backward(const StreamCall& call, const std::vector<uintptr_t>& from, const std::vector<uintptr_t>& to) {
  by_size(call.wide, [&](auto zero) {
    using T = decltype(zero);
    stream_kernels<T>().backward(
        call.inputs<T>(), {at<T>(from[0]), at<T>(from[1]), at<int32_t>(from[2]), at<int32_t>(from[3]), at<T>(from[4]),
                           at<T>(from[5]), at<T>(to[0]), at<T>(to[1]), at<T>(to[2]), at<T>(to[3]), at<T>(to[4]), at<T>(to[5])});
  });
}

}  // namespace

NB_MODULE(_native, m) {
  m.attr("interface") = 8;  // INTERFACE of foveate/ops/kernels/__init__.py: one more for every change of a signature
  m.def("unit", &unit_name);
  m.def("entmax_forward", &entmax_forward);
  m.def("entmax_backward", &entmax_backward);
  m.def("tv_prox", &tv_prox);
  m.def("fused_forward", &fused_forward);
  m.def("fused_backward", &fused_backward);
  m.def("attend_forward", &attend_forward);
  m.def("attend_backward", &attend_backward);
  nb::class_<StreamCall>(m, "StreamCall")
      .def(nb::init<bool, std::vector<long>, Rows, Rows, Rows, Rows, Rows, uintptr_t, bool, std::vector<long>, double,
                    double, bool, double, uint32_t, int>());
  m.def("stream_forward", &stream_forward);
  m.def("stream_supports", &stream_supports);
  m.def("stream_backward", &stream_backward);
  m.def("chord_moments", &chord_moments);
  m.def("em_forward", &em_forward);
  m.def("em_backward", &em_backward);
  m.def("spread_starts", &spread);
  m.def("em_choose", &em_choose);
  m.def("density_moments", &density_moments);
  m.def("density_sound", &density_sound);
  m.def("density_normal", &density_normal);
  m.def("density_paraboloid", &density_paraboloid);
}
