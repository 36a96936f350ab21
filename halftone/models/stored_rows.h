// Which rows of a file's tensor are those of a weight, where files keep several weights in one
// tensor or in another order. The same description serves weights and adapters of them.
#pragma once

#include <cstdint>
#include <vector>

#include "halftone/base/error.h"

namespace halftone {

struct StoredRows {
  // The weight is `span` of `parts` equal parts, from the one with this index on.
  int part = 0, parts = 1, span = 1;
  // And the halves of these rows stand in the other order: (shift, scale) for (scale, shift).
  bool swapped_halves = false;

  bool is_whole() const { return parts == 1 && !swapped_halves; }
  // Whether a weight can have this many rows.
  bool fits(int64_t rows) const { return rows % span == 0 && !(swapped_halves && rows % 2 != 0); }
  // Of the file's tensor, from those of the weight.
  int64_t in_file(int64_t rows) const { return rows / span * parts; }

  struct Range {
    int64_t begin, end;  // rows of the file's tensor
  };
  // That make up the weight, in its order.
  std::vector<Range> ranges(int64_t rows) const {
    HT_ASSERT(fits(rows));
    const int64_t begin = rows / span * part, end = begin + rows;
    if (!swapped_halves) return {{begin, end}};
    const int64_t middle = begin + rows / 2;
    return {{middle, end}, {begin, middle}};
  }
};

}  // namespace halftone
