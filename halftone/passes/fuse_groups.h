// Inside of the fuse pass: which nodes become one chain of row operations. fuse.cpp writes them.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "halftone/graph/graph.h"
#include "halftone/kernels/fused_args.h"

namespace halftone {

// A value as rows: one per token of [B, T, ...].
struct RowShape {
  int64_t items = 0, rows_per_item = 0, length = 0;

  static std::optional<RowShape> of(const Shape& shape) {
    if (shape.rank() < 3 || shape.numel() == 0) return std::nullopt;
    return RowShape{shape[0], shape[1], shape.numel() / (shape[0] * shape[1])};
  }
  bool same_rows(const RowShape& other) const {
    return items == other.items && rows_per_item == other.rows_per_item;
  }
};

// The step that an operation becomes; nothing where it cannot be one.
std::optional<RowFunction> row_function(Op op);

// How an operand lies against rows of this shape; nothing where it does not.
std::optional<FusedRowsAttributes::Input> as_input(const Shape& shape, const RowShape& rows);

// What a value is columns of: itself mostly, or what it was cut from.
struct RowColumns {
  int value = -1;
  int64_t begin = 0, stride = 0;  // a stride of 0 where it is itself
};
RowColumns columns_of(const Graph& graph, int value);

struct FuseGroup {
  RowShape rows;
  std::vector<int> nodes;     // in the graph's order; none where another group has taken them in
  std::vector<int> inputs;    // values from outside
  std::map<int, int64_t> at;  // of nodes that lead to a piece of a concat: its first column
  bool whole_rows = false;    // something in it depends on all of a row
};

struct FuseGroups {
  std::vector<FuseGroup> groups;
  std::vector<int> group_of;  // of nodes; -1 where there is none
};
FuseGroups find_fuse_groups(const Graph& graph, const FusedLimits& limits);

}  // namespace halftone
