#include "halftone/quantize/input_moments.h"

#include <algorithm>

#include "halftone/base/threads.h"
#include "halftone/kernels/device.h"
#include "halftone/numerics/bf16.h"

namespace halftone {
namespace {

void multiply_on_device(MatMulArgs args, const Kernels& kernels, Stream stream) {
  DeviceContext& device = *stream.device;
  const DeviceGuard guard(&device);
  const auto bytes = [](const Shape& shape) { return shape.numel() * int64_t{sizeof(float)}; };
  const auto up = [&](ConstView& view) {
    auto memory = device.allocate(bytes(view.shape), "moments of inputs");
    device.upload(memory->address(), {static_cast<const std::byte*>(view.data),
                                      static_cast<size_t>(bytes(view.shape))});
    view.data = memory->address();
    return memory;
  };
  const bool same = args.a.data == args.b.data;
  const auto a = up(args.a);
  const auto b = same ? a : up(args.b);
  args.b.data = b->address();
  const auto y = device.allocate(bytes(args.y.shape), "moments of inputs");
  auto* result = static_cast<std::byte*>(args.y.data);
  args.y.data = y->address();
  stream.workspace_bytes = kernels.matmul.workspace(args, stream);
  const auto workspace =
      device.allocate(std::max<int64_t>(stream.workspace_bytes, 1), "moments of inputs");
  stream.workspace = workspace->address();
  kernels.matmul.launch(args, stream);
  device.download({result, static_cast<size_t>(bytes(args.y.shape))}, y->address());
}

}  // namespace

void multiply_floats(MatMulArgs args, const Kernels& kernels, Stream stream) {
  if (stream.device != nullptr) return multiply_on_device(args, kernels, stream);
  constexpr uintptr_t kAlignment = 256;
  stream.workspace_bytes = kernels.matmul.workspace(args, stream);
  std::vector<std::byte> workspace(static_cast<size_t>(stream.workspace_bytes) + kAlignment);
  const auto start = reinterpret_cast<uintptr_t>(workspace.data());
  stream.workspace = workspace.data() + ((kAlignment - start % kAlignment) % kAlignment);
  kernels.matmul.launch(args, stream);
}

void InputMoments::add(const ConstView& x, const Kernels& kernels, Stream stream,
                       Scratch& scratch) {
  const int64_t cols = x.shape[-1], all = cols == 0 ? 0 : x.shape.numel() / cols;
  if (all == 0) return;
  if (size_ == 0) {
    size_ = cols;
    sums_.assign(static_cast<size_t>(cols * cols), 0.0f);
  }
  HT_ASSERT(size_ == cols);
  // Neighbouring tokens are alike: some of them, evenly spread, tell as much as all.
  const int64_t rows = std::min(all, kMostRows);
  if (static_cast<int64_t>(rows_.size()) / cols + rows > kMostCollected) {
    flush(kernels, stream, scratch);
  }
  rows_.reserve(static_cast<size_t>(kMostCollected * cols));  // and no more, as bytes() says
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t from = r * all / rows * cols;
    for (int64_t c = 0; c < cols; ++c) {
      rows_.push_back(x.dtype == DType::kF32
                          ? static_cast<const float*>(x.data)[from + c]
                          : to_float(static_cast<const bf16*>(x.data)[from + c]));
    }
  }
}

void InputMoments::flush(const Kernels& kernels, Stream stream, Scratch& scratch) {
  if (rows_.empty()) return;
  const int64_t rows = static_cast<int64_t>(rows_.size()) / size_;
  if (scratch.size() < sums_.size()) scratch.resize(sums_.size());
  MatMulArgs args;
  args.how = {true, false};
  args.a = args.b = {rows_.data(), DType::kF32, {rows, size_}};
  args.y = {scratch.data(), DType::kF32, {size_, size_}};
  multiply_floats(args, kernels, stream);
  parallel_for(stream.threads, size_, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * size_; i < end * size_; ++i) sums_[i] += scratch[i];
  });
  rows_ = {};  // gives its memory back
}

}  // namespace halftone
