// Attention whose scores are never stored: stream.cpp compiles stream.inc for every vector unit.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace foveate {

// A tensor (B, M, rows, last axis): entries of the last axis are next to each other, the other strides are given.
template <class T>
struct Strided {
  T* data;
  long example, head, row;
  T* at(long b, long m, long i) const { return data + b * example + m * head + i * row; }
};

// Queries (B, M, Q, E), keys (B, M / groups, N, E), values (B, M / groups, N, D).
// scores = cooling (query . key * scale + mask), weights = entmax of a row of scores with its alpha.
template <class T>
struct StreamInputs {
  long B, M, groups, Q, N, E, D;
  Strided<const T> query, key, value, alpha, cooling;  // one alpha, and one inverse temperature, per row
  const uint8_t* keep;  // (B, M, Q, N), true where a key counts, or null
  const T* bias;        // (B, M, Q, N), added to the scores, or null; keys at or below `lowest` do not count
  long mask_example, mask_head, mask_row, mask_key;
  double lowest, scale;
  bool causal;
  double dropout;  // fraction of the weights that are dropped, by a hash of seed, row and key
  uint32_t seed;
  int threads;
};

// Places and weights of the supports of some rows, one after the other.
template <class T>
struct Support {
  std::unique_ptr<int32_t[]> places;
  std::unique_ptr<T[]> weights;
  long count = 0;
};

template <class T>
struct StreamResult {
  T* context;        // (B, M, Q, D)
  T* state;          // (B, M, Q, 3): largest score, threshold below it, factor of the weights
  int32_t* counts;   // (B, M, Q) size of each support, -1 where it was not kept; or null
  double most;       // how many entries per row are kept on average over a block of rows
  std::vector<Support<T>>* kept;
};

template <class T>
struct StreamGradients {
  const T *gradient, *state;
  const int32_t* counts;
  const int32_t* places;
  const T *weights, *to_weights;  // to_weights: gradient to the weights that were kept, or null
  T *query, *key, *value;         // (B, M, Q, E), (B, M / groups, N, E), (B, M / groups, N, D)
  T *alpha, *cooling, *mask;      // (B, M, Q), (B, M, Q), and as the mask; or null
};

template <class T>
struct StreamKernels {
  bool (*forward)(const StreamInputs<T>&, const StreamResult<T>&);
  void (*backward)(const StreamInputs<T>&, const StreamGradients<T>&);
};

template <class T>
const StreamKernels<T>& stream_kernels();

}  // namespace foveate
