// Which process makes which pictures, and which of them together.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace halftone {

struct OfflineWork {
  size_t picture = 0;
  std::string kind;  // those of one kind can share forwards
  int steps = 0;
  double cost = 0;  // in any unit
};

// Batches of up to `batch` pictures of one kind for each process, by the work alone: everyone who
// asks comes to the same answer. The dearest batch goes first, to whoever has the least to do; then
// each makes its own kind by kind, in the order of the pictures.
using OfflineBatches = std::vector<std::vector<size_t>>;
std::vector<OfflineBatches> share_out(std::vector<OfflineWork> work, int processes, int batch);

}  // namespace halftone
