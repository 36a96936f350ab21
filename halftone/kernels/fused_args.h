// The contract of fused row operations: a chain of steps that is applied to one row after the
// other, a row being what belongs to one token. Every step rounds to the dtype that its result has
// in the unfused graph, so that both give the same bits.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "halftone/kernels/op_args.h"

namespace halftone {

enum class RowFunction : uint8_t {
  kAdd,
  kMul,
  kAffine,
  kUnary,
  kSiluMul,
  kCast,
  kRmsNorm,      // x, weight
  kLayerNorm,    // x
  kRmsNormGrad,  // dy, x, weight; the gradient of x
  kRope,         // x, cosine, sine
  kConcat,       // two pieces of a row, side by side
  kQuantize,     // x; its result is an output and no later step's operand
};

constexpr std::string_view name_of(RowFunction function) {
  switch (function) {
    case RowFunction::kAdd:
      return "add";
    case RowFunction::kMul:
      return "mul";
    case RowFunction::kAffine:
      return "affine";
    case RowFunction::kUnary:
      return "unary";
    case RowFunction::kSiluMul:
      return "silu-mul";
    case RowFunction::kCast:
      return "cast";
    case RowFunction::kRmsNorm:
      return "rms-norm";
    case RowFunction::kLayerNorm:
      return "layer-norm";
    case RowFunction::kRmsNormGrad:
      return "rms-norm-grad";
    case RowFunction::kRope:
      return "rope";
    case RowFunction::kConcat:
      return "concat";
    case RowFunction::kQuantize:
      return "quantize";
  }
  return "";
}

// How an input lies against the rows.
enum class RowSource : uint8_t {
  kPerRow,   // a row of its own for each
  kPerItem,  // one for all rows of an item of the batch
  kShared,   // one for all rows
};

struct RowStep {
  RowFunction function = RowFunction::kAdd;
  std::array<int, 3> operands{};  // inputs, then results of earlier steps
  int64_t length = 0;             // of the result
  int64_t width = 0;              // last dimension: what a norm spans, the size of a head
  DType dtype = DType::kF32;      // of the result
  int output = -1;                // which output it is; -1 where no one outside needs it

  AffineAttributes affine;
  UnaryAttributes unary;
  NormAttributes norm;
  RopeAttributes rope;
  int64_t split = 0;             // kConcat: the length of its first piece
  std::optional<Format> format;  // kQuantize: scaled by row or block, or with a static scale
  float static_scale = 0;
};

// Steps have the length of a row, but for those that lead to a piece of a concat.
struct FusedRowsAttributes {
  int64_t rows = 0;
  int64_t rows_per_item = 0;
  struct Input {
    RowSource source = RowSource::kPerRow;
    int64_t length = 0;  // values of one row
    // Where they are columns of something wider: the first one, and the values from one row to the
    // next.
    int64_t begin = 0, stride = 0;
    // Where it becomes part of a piece of a concat: the first column that it fills of the row.
    int64_t at = -1;
  };
  std::vector<Input> inputs;
  std::vector<RowStep> steps;

  int64_t length() const {  // of a row
    int64_t longest = 0;
    for (const RowStep& step : steps) longest = std::max(longest, step.length);
    return longest;
  }
};

// How long a chain a backend takes.
struct FusedLimits {
  size_t steps = 16, inputs = 24;
  // Inputs with a row for each row, of chains whose threads hold a whole row at a time: more of
  // them than registers can hold are slower than two chains.
  size_t whole_rows = 24;
};

struct FusedRowsArgs {
  const FusedRowsAttributes* how = nullptr;
  std::span<const ConstView> inputs;
  std::span<const View> outputs;
};

}  // namespace halftone
