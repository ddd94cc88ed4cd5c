// The graph that total variation is taken over, prepared once for a call.
#pragma once

#include <cstdint>
#include <vector>

namespace foveate {

// Edges in an order in which neighbours in the list rarely share a node, and the edges at each node.
struct Graph {
  int32_t nodes = 0;
  std::vector<int32_t> near, far;           // ends of each edge
  std::vector<int32_t> first, other, edge;  // the edges at node i: entries first[i] .. first[i + 1]

  int32_t edges() const { return static_cast<int32_t>(near.size()); }
};

// H x W cells, four neighbours; cells in row order.
Graph grid_graph(int32_t H, int32_t W);
// Pairs of node numbers; loops from a node to itself are left out.
Graph edge_graph(int32_t nodes, const int64_t* pairs, int32_t count);

}  // namespace foveate
