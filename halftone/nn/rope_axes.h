// Rotation angles of tokens that have a position on each of several axes: a part of every head
// turns with each axis.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "halftone/tensor/tensor.h"

namespace halftone::nn {

// How a model that was trained had its angles before their sine and cosine.
enum class AnglePrecision { kFloat32, kFloat64 };

class RopeAxes {
 public:
  // `dims` are even and add up to the head's.
  RopeAxes(double theta, std::span<const int64_t> dims, AnglePrecision precision);

  int64_t size() const { return static_cast<int64_t>(pairs_.size()); }  // head_dim / 2
  size_t axes() const { return axes_; }
  // size() values each: frequencies in float64, results rounded to float.
  void write(std::span<const int64_t> position, float* cosine, float* sine) const;

 private:
  struct Pair {
    size_t axis;
    double frequency;
  };
  std::vector<Pair> pairs_;
  AnglePrecision precision_;
  size_t axes_;
};

// "rope.cosine" and "rope.sine", [rows, tokens, size()]: every row has tokens at these positions,
// [tokens, axes].
std::map<std::string, Tensor> rope_tables(const RopeAxes& angles,
                                          std::span<const int64_t> positions, int64_t rows);

}  // namespace halftone::nn
