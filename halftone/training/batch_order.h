// Which examples go together, and when: every example once an epoch, in an order of its own in
// each, those of one size together. A function of the seed, so that a run goes on from any place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace halftone {

class BatchOrder {
 public:
  // Examples by the size that they have.
  BatchOrder(std::vector<std::string> sizes, int64_t batch, uint64_t seed);

  // Examples by their index. The last batch of a size is filled up with its own, so that a size has
  // one program.
  std::vector<size_t> next();

  // Where in the data a run is: `left` batches of this epoch, the first being 1, are to come.
  struct Position {
    int64_t epoch = 0, left = 0;
  };
  Position position() const { return {epoch_, static_cast<int64_t>(left_.size())}; }
  // An Error where an epoch has fewer batches.
  void seek(const Position& position);

 private:
  void begin_epoch();

  std::vector<std::string> sizes_;
  int64_t batch_;
  uint64_t seed_;
  int64_t epoch_ = 0;
  std::vector<std::vector<size_t>> left_;  // the next one last
};

}  // namespace halftone
