#include <algorithm>
#include <numeric>

#include "halftone/graph/catalogue.h"
#include "halftone/graph/ops.h"

namespace halftone {
namespace {

int axis_of(const char* op, Value x, int axis) {
  const int positive = axis < 0 ? axis + x.rank() : axis;
  require(positive >= 0 && positive < x.rank(), "{}: no axis {} in shape {}", op, axis, x.shape());
  return positive;
}

Shape with_dim(const Shape& shape, int axis, int64_t size) {
  std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
  dims[axis] = size;
  return Shape(dims);
}

bool broadcasts_to(const Shape& from, const Shape& to) {
  if (from.rank() > to.rank()) return false;
  for (int i = 1; i <= from.rank(); ++i) {
    if (from[-i] != to[-i] && from[-i] != 1) return false;
  }
  return true;
}

}  // namespace

Value sum_to(Value x, const Shape& shape) {
  if (x.shape() == shape) return x;
  require(broadcasts_to(shape, x.shape()), "sum_to: {} cannot be summed to {}", x.shape(), shape);
  return x.graph().add(Op::kSumTo, {x}, {}, {shape, x.dtype(), {}});
}
Gradients sum_to_gradient(const GradientContext& c) {
  return {broadcast_to(c.dy, c.inputs[0].shape())};
}

Value broadcast_to(Value x, const Shape& shape) {
  if (x.shape() == shape) return x;
  require(broadcasts_to(x.shape(), shape), "broadcast: {} does not broadcast to {}", x.shape(),
          shape);
  return x.graph().add(Op::kBroadcast, {x}, {}, {shape, x.dtype(), {}});
}
Gradients broadcast_gradient(const GradientContext& c) {
  return {sum_to(c.dy, c.inputs[0].shape())};
}

Value reshape(Value x, const Shape& shape) {
  if (x.shape() == shape) return x;
  require(x.shape().numel() == shape.numel(), "reshape: {} has not as many values as {}", x.shape(),
          shape);
  return x.graph().add(Op::kReshape, {x}, {}, {shape, x.dtype(), {}});
}
Gradients reshape_gradient(const GradientContext& c) {
  return {reshape(c.dy, c.inputs[0].shape())};
}

Value permute(Value x, std::vector<int> order) {
  std::vector<int> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  std::vector<int> all(static_cast<size_t>(x.rank()));
  std::iota(all.begin(), all.end(), 0);
  require(sorted == all, "permute: [{}] is no order of the dimensions of {}",
          fmt::join(order, ", "), x.shape());
  std::vector<int64_t> dims;
  for (const int from : order) dims.push_back(x.dim(from));
  return x.graph().add(Op::kPermute, {x}, PermuteAttributes{std::move(order)},
                       {Shape(dims), x.dtype(), {}});
}
Gradients permute_gradient(const GradientContext& c) {
  const auto& order = std::get<PermuteAttributes>(c.attributes).order;
  std::vector<int> inverse(order.size());
  for (size_t i = 0; i < order.size(); ++i) inverse[order[i]] = static_cast<int>(i);
  return {permute(c.dy, inverse)};
}

Value concat(std::span<const Value> parts, int axis) {
  require(!parts.empty(), "concat: nothing to join");
  axis = axis_of("concat", parts[0], axis);
  int64_t size = 0;
  for (const Value& part : parts) {
    require(part.rank() == parts[0].rank() && part.dtype() == parts[0].dtype() &&
                with_dim(part.shape(), axis, 0) == with_dim(parts[0].shape(), axis, 0),
            "concat: {} and {} differ beyond axis {}", parts[0].shape(), part.shape(), axis);
    size += part.dim(axis);
  }
  const ValueType type{with_dim(parts[0].shape(), axis, size), parts[0].dtype(), {}};
  return parts[0].graph().add(Op::kConcat, parts, AxisAttributes{axis, 0, 0}, type);
}
Gradients concat_gradient(const GradientContext& c) {
  const int axis = std::get<AxisAttributes>(c.attributes).axis;
  Gradients gradients;
  int64_t begin = 0;
  for (const Value& part : c.inputs) {
    gradients.emplace_back(slice(c.dy, axis, begin, begin + part.dim(axis)));
    begin += part.dim(axis);
  }
  return gradients;
}

Value slice(Value x, int axis, int64_t begin, int64_t end) {
  axis = axis_of("slice", x, axis);
  require(0 <= begin && begin <= end && end <= x.dim(axis), "slice: [{}, {}) of axis {} of {}",
          begin, end, axis, x.shape());
  if (begin == 0 && end == x.dim(axis)) return x;
  return x.graph().add(Op::kSlice, {x}, AxisAttributes{axis, begin, end},
                       {with_dim(x.shape(), axis, end - begin), x.dtype(), {}});
}

Value pad(Value x, int axis, int64_t before, int64_t after) {
  axis = axis_of("pad", x, axis);
  require(before >= 0 && after >= 0, "pad: {} before and {} after", before, after);
  if (before == 0 && after == 0) return x;
  return x.graph().add(Op::kPad, {x}, AxisAttributes{axis, before, after},
                       {with_dim(x.shape(), axis, x.dim(axis) + before + after), x.dtype(), {}});
}
Gradients pad_gradient(const GradientContext& c) {
  const auto& a = std::get<AxisAttributes>(c.attributes);
  return {slice(c.dy, a.axis, a.begin, a.begin + c.inputs[0].dim(a.axis))};
}

std::vector<Value> split(Value x, int parts, int axis) {
  axis = axis_of("split", x, axis);
  require(x.dim(axis) % parts == 0, "split: {} parts of axis {} of {}", parts, axis, x.shape());
  const int64_t size = x.dim(axis) / parts;
  std::vector<Value> out;
  for (int i = 0; i < parts; ++i) out.push_back(slice(x, axis, i * size, (i + 1) * size));
  return out;
}

}  // namespace halftone
