#include "graph.h"

#include <algorithm>
#include <stdexcept>

namespace foveate {

namespace {

void index_edges(Graph& graph) {
  const auto E = graph.near.size();
  graph.first.assign(static_cast<size_t>(graph.nodes) + 1, 0);
  for (size_t e = 0; e < E; ++e) {
    ++graph.first[static_cast<size_t>(graph.near[e]) + 1];
    ++graph.first[static_cast<size_t>(graph.far[e]) + 1];
  }
  for (size_t i = 0; i < static_cast<size_t>(graph.nodes); ++i) graph.first[i + 1] += graph.first[i];
  graph.other.resize(2 * E);
  graph.edge.resize(2 * E);
  std::vector<int32_t> next(graph.first.begin(), graph.first.end() - 1);
  for (size_t e = 0; e < E; ++e) {
    const auto i = static_cast<size_t>(graph.near[e]), j = static_cast<size_t>(graph.far[e]);
    auto put = [&](size_t from, size_t to) {
      const auto at = static_cast<size_t>(next[from]++);
      graph.other[at] = static_cast<int32_t>(to);
      graph.edge[at] = static_cast<int32_t>(e);
    };
    put(i, j);
    put(j, i);
  }
}

}  // namespace

Graph grid_graph(int32_t H, int32_t W) {
  Graph graph;
  graph.nodes = H * W;
  for (int32_t odd = 0; odd < 2; ++odd)
    for (int32_t r = 0; r < H; ++r)
      for (int32_t c = odd; c + 1 < W; c += 2) {
        graph.near.push_back(r * W + c);
        graph.far.push_back(r * W + c + 1);
      }
  for (int32_t odd = 0; odd < 2; ++odd)
    for (int32_t r = odd; r + 1 < H; r += 2)
      for (int32_t c = 0; c < W; ++c) {
        graph.near.push_back(r * W + c);
        graph.far.push_back(r * W + c + W);
      }
  index_edges(graph);
  return graph;
}

Graph edge_graph(int32_t nodes, const int64_t* pairs, int32_t count) {
  // Greedy colours: an edge takes the first one that neither of its ends has; the last colour takes all that is left.
  for (int64_t k = 0; k < 2 * int64_t{count}; ++k)
    if (pairs[k] < 0 || pairs[k] >= nodes) throw std::out_of_range("foveate: an edge names a node that is not there");
  std::vector<uint64_t> used(static_cast<size_t>(nodes), 0);
  std::vector<int32_t> colour(static_cast<size_t>(count), -1);
  int32_t most = 0;
  for (int32_t e = 0; e < count; ++e) {
    const auto i = static_cast<size_t>(pairs[2 * e]), j = static_cast<size_t>(pairs[2 * e + 1]);
    if (i == j) continue;
    const uint64_t open = ~(used[i] | used[j]);
    const int32_t c = open ? __builtin_ctzll(open) : 63;
    colour[static_cast<size_t>(e)] = c;
    used[i] |= uint64_t{1} << c;
    used[j] |= uint64_t{1} << c;
    most = std::max(most, c + 1);
  }
  std::vector<int32_t> start(static_cast<size_t>(most) + 1, 0);
  for (const int32_t c : colour)
    if (c >= 0) ++start[static_cast<size_t>(c) + 1];
  for (size_t c = 0; c < static_cast<size_t>(most); ++c) start[c + 1] += start[c];
  Graph graph;
  graph.nodes = nodes;
  graph.near.resize(static_cast<size_t>(start.back()));
  graph.far.resize(graph.near.size());
  for (int32_t e = 0; e < count; ++e) {
    const int32_t c = colour[static_cast<size_t>(e)];
    if (c < 0) continue;
    const auto at = static_cast<size_t>(start[static_cast<size_t>(c)]++);
    graph.near[at] = static_cast<int32_t>(pairs[2 * e]);
    graph.far[at] = static_cast<int32_t>(pairs[2 * e + 1]);
  }
  index_edges(graph);
  return graph;
}

}  // namespace foveate
