// The kernels by family: a table of functions for float and one for double, for the vector unit of this processor. A family
// is a file of kernels, compiled once for every unit by a translation unit of its own: rows.inc by rows.cpp and so on.
#pragma once

#include <cstdint>

#include "graph.h"
#include "starts.h"

namespace foveate {

// Rows of scores to weights; T is float or double.
template <class T>
struct RowKernels {
  // Weights of `rows` rows of `n` scores. Returns false when there is NaN among the scores.
  bool (*forward)(const T* scores, T* weights, long rows, long n, double alpha, int threads);
  // Gradient to the scores from the weights and the gradient to them.
  void (*backward)(const T* weights, const T* gradient, T* result, long rows, long n, double alpha, int threads);
};

// Total variation on a graph; a mask is one byte per score, or null. `chain`: the graph is a path in the order of its nodes.
// False when the scores are unsound (NaN, +inf where it has no meaning) or a solution has no certificate.
template <class T>
struct TvKernels {
  // The minimiser, the smallest node of each node's group, and the relative duality gap of each example.
  bool (*prox)(const Graph& graph, bool chain, const T* x, const uint8_t* mask, T* value, int64_t* labels, double* gap,
               long count, double smoothness, int threads);
  // Sparsemax of the minimiser; the labels are -1 where masked.
  bool (*forward)(const Graph& graph, bool chain, const T* scores, const uint8_t* mask, T* weights, int32_t* labels,
                  long count, double smoothness, int threads);
  void (*backward)(const T* weights, const int32_t* labels, const T* gradient, T* result, long count, long n,
                   int threads);
};

// Weighted sums of values (B, N, D) with weights (B, Q, N) that are mostly zero.
template <class T>
struct AttendKernels {
  bool (*forward)(const T* weights, const T* values, T* context, long B, long Q, long N, long D, double most, int threads);
  void (*backward)(const T* weights, const T* values, const T* gradient, T* to_weights, T* to_values, long B, long Q,
                   long N, long D, int threads);
};

// Weights (B, N) at positions (N, 2), with floors (4,): F twice, in the M step and in the likelihood. A stride of 0 means one
// for all rows.
template <class T>
struct EmCells {
  const T *weights, *positions, *floor;
  long position_stride, floor_stride;
};

// How to choose the number of components; kind g of the plan has g + 1 of them.
template <class T>
struct EmChoice {
  const T* means;  // (plan.means(), 2), once or for every row
  long means_stride;
  StartPlan plan;
  double variance, background, penalty;  // a background of weight 0 is none
};

// Weighted EM in the plane; see em.inc and em_choice.inc for the layouts.
template <class T>
struct EmKernels {
  void (*forward)(const EmCells<T>& cells, const T* start, double* states, T* shares, T* likelihood, long B, long R, long K,
                  long N, long iterations, int threads);
  void (*backward)(const EmCells<T>& cells, const double* states, const T* shares, const T* to_last, const T* to_likelihood,
                   T* to_weights, T* to_start, long B, long R, long K, long N, long iterations, int threads);
  void (*choose)(const EmCells<T>& cells, const EmChoice<T>& choice, T* begin, T* end, T* criterion, T* likelihood, long B,
                 long N, long iterations, int threads);
};

// Densities in the plane, without a gradient; see density.inc.
template <class T>
struct DensityKernels {
  bool (*moments)(const EmCells<T>& cells, const uint8_t* mask, T* mean, T* covariance, long B, long N, int threads);
  bool (*sound)(const T* mean, const T* matrix, long R);
  void (*normal)(const T* mean, const T* covariance, const double* centres, const double* variance, T* out, long R, long J,
                 int threads);
  void (*paraboloid)(const T* mean, const double* covariance, const double* centres, const double* variance, const double* nodes,
                     const double* weights, int count, double thinnest, T* out, long R, long J, int threads);
};

// Integrals (R, J, 6) of bumps over ellipses in double: half axes (R, 2), centres (R, J, 2), a rule of `count` nodes.
using ChordKernel = void (*)(const double* semi, const double* centre, const double* nodes, const double* weights,
                             int count, double* moments, long R, long J, int threads);

template <class T>
const RowKernels<T>& row_kernels();
template <class T>
const TvKernels<T>& tv_kernels();
template <class T>
const AttendKernels<T>& attend_kernels();
template <class T>
const EmKernels<T>& em_kernels();
template <class T>
const DensityKernels<T>& density_kernels();
ChordKernel chord_kernel();

}  // namespace foveate
