// The functions that Python sees. They take addresses of contiguous tensors: foveate/ops/kernels/__init__.py, the only
// caller, has checked dtype, device and layout, and keeps the tensors alive during the call.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels.h"
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

bool em_weights(bool wide, uintptr_t weights, uintptr_t mask, uintptr_t unit, uintptr_t filled, long B, long N, int threads) {
  return by_size(wide, [&](auto zero) {
    using T = decltype(zero);
    return em_kernels<T>().weights(at<T>(weights), at<uint8_t>(mask), at<T>(unit), at<uint8_t>(filled), B, N, threads);
  });
}

template <class T>
void exponentials(const T* logarithms, T* result, long count) {
  for (long i = 0; i < count; ++i) result[i] = std::exp(logarithms[i]);
}

void exponential(bool wide, uintptr_t logarithms, uintptr_t result, long count) {
  if (wide)
    exponentials(at<double>(logarithms), at<double>(result), count);
  else
    exponentials(at<float>(logarithms), at<float>(result), count);
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

void spread(bool wide, uintptr_t weights, uintptr_t positions, long position_stride, uintptr_t draws, const Plan& plan,
            uintptr_t means, long B, long N, int threads) {
  const Kinds kinds(plan);
  by_size(wide, [&](auto zero) {
    using T = decltype(zero);
    spread_starts(at<T>(weights), at<T>(positions), position_stride, at<T>(draws), kinds.plan(), at<T>(means), B, N, threads);
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

}  // namespace

NB_MODULE(_native, m) {
  m.attr("interface") = 5;  // INTERFACE of foveate/ops/kernels/__init__.py: one more for every change of a signature
  m.def("unit", &unit_name);
  m.def("entmax_forward", &entmax_forward);
  m.def("entmax_backward", &entmax_backward);
  m.def("tv_prox", &tv_prox);
  m.def("fused_forward", &fused_forward);
  m.def("fused_backward", &fused_backward);
  m.def("attend_forward", &attend_forward);
  m.def("attend_backward", &attend_backward);
  m.def("chord_moments", &chord_moments);
  m.def("exponential", &exponential);
  m.def("em_weights", &em_weights);
  m.def("em_forward", &em_forward);
  m.def("em_backward", &em_backward);
  m.def("spread_starts", &spread);
  m.def("em_choose", &em_choose);
  m.def("density_moments", &density_moments);
  m.def("density_sound", &density_sound);
  m.def("density_normal", &density_normal);
  m.def("density_paraboloid", &density_paraboloid);
}
