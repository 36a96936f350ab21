#include "halftone/training/parameters.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "halftone/base/error.h"
#include "halftone/kernels/adamw.h"
#include "halftone/tensor/float_values.h"
#include "halftone/training/train_graph.h"

namespace halftone {
namespace {

constexpr int64_t kAlignment = 64;  // values: kernels read weights in wide pieces
int64_t padded(int64_t values) { return (values + kAlignment - 1) / kAlignment * kAlignment; }

View view_of(const Tensor& x) {
  if (!x.defined()) return {};
  return {const_cast<std::byte*>(x.address()), x.dtype(), x.shape()};
}
ConstView const_view_of(const Tensor& x) { return {x.address(), x.dtype(), x.shape()}; }

}  // namespace

Parameters::Parameters(const std::map<std::string, Tensor>& initial,
                       const ParameterOptions& options, const Kernels& kernels, Stream stream)
    : kernels_(kernels), stream_(stream), summing_(stream) {
  for (const auto& [name, tensor] : initial) {
    places_[name] = {count_, tensor.shape()};
    count_ += padded(tensor.numel());
  }
  const DeviceGuard guard(stream.device);
  values_ = zeros(options.small_values ? DType::kBF16 : DType::kF32, count_);
  gradients_ = zeros(DType::kF32, count_);
  const DType moments = options.small_moments ? DType::kF8E4M3 : DType::kF32;
  first_ = zeros(moments, count_);
  second_ = zeros(moments, count_);
  if (options.small_moments) {
    const int64_t blocks = (count_ + kMomentBlock - 1) / kMomentBlock;
    first_scales_ = zeros(DType::kF32, blocks);
    second_scales_ = zeros(DType::kF32, blocks);
  }
  if (options.average) average_ = zeros(DType::kF32, count_);
  // All of it is there from the beginning, so that what a run takes is known.
  more_ = zeros(DType::kF32, count_);
  sum_ = zeros(DType::kF32, 1);
  const SumToArgs sum{const_view_of(more_), view_of(sum_)};
  summing_.workspace_bytes = kernels_.sum_to.workspace(sum, stream_);
  scratch_ = zeros(DType::kF32, summing_.workspace_bytes / 4 + 1);
  summing_.workspace = static_cast<std::byte*>(view_of(scratch_).data);
  // One by one: those that are stored in 16 bits are never all there in 32.
  for (const auto& [name, tensor] : initial) {
    HT_ASSERT(is_high_precision(tensor.dtype()));
    const Tensor wide = as_f32(tensor);
    put(slice(values_, name), options.small_values ? as_bf16(wide) : wide);
    if (options.average) put(slice(average_, name), wide);
    weights_.emplace(name, slice(values_, name));
  }
}

Tensor Parameters::allocate(DType dtype, int64_t count) const {
  const int64_t bytes = count * (bits_of(dtype) / 8);
  const auto memory = stream_.device != nullptr ? stream_.device->allocate(bytes, "what is trained")
                                                : Storage::allocate(bytes);
  return {memory, 0, dtype, {count}};
}

Tensor Parameters::zeros(DType dtype, int64_t count) const {
  const Tensor made = allocate(dtype, count);
  constexpr int64_t kPiece = 1 << 20;
  const Tensor nothing = Tensor::zeros(dtype, {std::min(count, kPiece)});
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t end = std::min(count, begin + kPiece);
    put(made.rows(begin, end), nothing.rows(0, end - begin));
  }
  return made;
}

void Parameters::put(const Tensor& to, const Tensor& from) const {
  auto* bytes = const_cast<std::byte*>(to.address());
  if (stream_.device != nullptr) {
    stream_.device->upload(bytes, from.bytes());
  } else {
    std::memcpy(bytes, from.address(), static_cast<size_t>(from.byte_size()));
  }
}

void Parameters::copy(const Tensor& to, const Tensor& from) const {
  const int64_t bytes = std::min(to.byte_size(), from.byte_size());
  std::byte* const target = const_cast<std::byte*>(to.address());
  if (stream_.device != nullptr) {
    stream_.device->copy(target, from.address(), bytes);
  } else {
    std::memcpy(target, from.address(), static_cast<size_t>(bytes));
  }
}

Tensor Parameters::fetch(const Tensor& from) const {
  Tensor host = Tensor::empty(from.dtype(), from.shape());
  if (stream_.device != nullptr) {
    stream_.device->download(host.mutable_bytes(), from.address());
  } else {
    std::memcpy(host.mutable_bytes().data(), from.address(), static_cast<size_t>(from.byte_size()));
  }
  return host;
}

Tensor Parameters::on_host(const Tensor& from) const {
  return stream_.device != nullptr ? fetch(from) : from;
}

int64_t Parameters::bytes() const {
  int64_t sum = 0;
  for (const auto& [name, tensor] : buffers()) sum += tensor.byte_size();
  for (const Tensor* more : {&gradients_, &more_, &sum_, &scratch_}) sum += more->byte_size();
  return sum;
}

Tensor Parameters::slice(const Tensor& all, const std::string& name) const {
  const Place& place = places_.at(name);
  return all.rows(place.begin, place.begin + place.shape.numel()).reshape(place.shape);
}

std::map<std::string, Tensor> Parameters::slices(const Tensor& all) const {
  std::map<std::string, Tensor> result;
  for (const auto& [name, place] : places_) result.emplace(name, slice(all, name));
  return result;
}

std::map<std::string, Tensor> Parameters::values() const {
  const DeviceGuard guard(stream_.device);
  return slices(as_f32(fetch(values_)));
}
std::map<std::string, Tensor> Parameters::averages() const {
  const DeviceGuard guard(stream_.device);
  return slices(on_host(average_.defined() ? average_ : values_));
}
std::map<std::string, Tensor> Parameters::gradients() const {
  const DeviceGuard guard(stream_.device);
  return slices(fetch(gradients_));
}

void Parameters::set_gradients_aside() {
  const DeviceGuard guard(stream_.device);
  copy(more_, gradients_);
}

Parameters::GradientPair Parameters::gradient_pair() const {
  const DeviceGuard guard(stream_.device);
  return {slices(on_host(more_)), slices(on_host(gradients_))};
}

std::map<std::string, Tensor> Parameters::buffers() const {
  std::map<std::string, Tensor> all = {{"values", values_}, {"first", first_}, {"second", second_}};
  if (first_scales_.defined()) {
    all.emplace("first_scales", first_scales_);
    all.emplace("second_scales", second_scales_);
  }
  if (average_.defined()) all.emplace("average", average_);
  return all;
}

std::map<std::string, Tensor> Parameters::state() const {
  const DeviceGuard guard(stream_.device);
  std::map<std::string, Tensor> copy;
  for (const auto& [name, tensor] : buffers()) copy.emplace(name, on_host(tensor));
  return copy;
}

void Parameters::restore(const std::map<std::string, Tensor>& state) {
  const DeviceGuard guard(stream_.device);
  const auto all = buffers();
  for (const auto& [name, tensor] : all) {
    const auto found = state.find(name);
    if (found == state.end() || found->second.dtype() != tensor.dtype() ||
        found->second.shape() != tensor.shape()) {
      throw Error(ErrorCode::kInvalidInput, name, "is not of what is trained here");
    }
  }
  for (const auto& [name, tensor] : all) put(tensor, state.at(name));
}

void Parameters::show_average() {
  if (!average_.defined()) return;
  const DeviceGuard guard(stream_.device);
  copy(more_, values_);
  CopyArgs args;
  args.rank = 1;
  args.dims[0] = count_;
  args.x_strides[0] = args.y_strides[0] = 1;
  args.x = average_.address();
  args.y = view_of(values_).data;
  args.y_dtype = values_.dtype();
  kernels_.copy.launch(args, stream_);
}

void Parameters::show_values() {
  if (!average_.defined()) return;
  const DeviceGuard guard(stream_.device);
  copy(values_, more_);
}

std::vector<Parameters::Bucket> Parameters::buckets(int64_t values) const {
  std::vector<Bucket> all;
  for (const auto& [name, place] : places_) {
    if (all.empty() || all.back().count() >= values) all.push_back({place.begin, place.begin, {}});
    all.back().weights.push_back(name);
    all.back().end = place.begin + padded(place.shape.numel());
  }
  return all;
}

void Parameters::take_gradients(const Program& program, bool add) {
  for (const Bucket& bucket : buckets(count_)) take_gradients(program, bucket, add);
}

void Parameters::take_gradients(const Program& program, const Bucket& bucket, bool add) {
  const DeviceGuard guard(stream_.device);
  const Tensor& to = add ? more_ : gradients_;
  for (const std::string& name : bucket.weights) {
    const Tensor part = slice(to, name);
    if (program.gives(gradient_name(name))) {
      program.copy_output_rows(gradient_name(name), 0, part);
    } else {
      kernels_.fill.launch({0, view_of(part)}, stream_);
    }
  }
  if (!add) return;
  const Tensor sum = gradients_.rows(bucket.begin, bucket.end);
  kernels_.binary.launch({BinaryFunction::kAdd, const_view_of(sum),
                          const_view_of(more_.rows(bucket.begin, bucket.end)), view_of(sum)},
                         stream_);
}

std::span<float> Parameters::gradients_of(const Bucket& bucket) {
  return {static_cast<float*>(view_of(gradients_.rows(bucket.begin, bucket.end)).data),
          static_cast<size_t>(bucket.count())};
}

double Parameters::gradient_norm() {
  const DeviceGuard guard(stream_.device);
  const ConstView all = const_view_of(gradients_);
  kernels_.binary.launch({BinaryFunction::kMul, all, all, view_of(more_)}, stream_);
  kernels_.sum_to.launch({const_view_of(more_), view_of(sum_)}, summing_);
  return std::sqrt(static_cast<double>(fetch(sum_).as<float>()[0]));
}

void Parameters::step(AdamWArgs how) {
  const DeviceGuard guard(stream_.device);
  how.gradients = const_view_of(gradients_);
  how.parameters = view_of(values_);
  how.first = view_of(first_);
  how.second = view_of(second_);
  how.first_scales = view_of(first_scales_);
  how.second_scales = view_of(second_scales_);
  how.average = view_of(average_);
  kernels_.adamw.launch(how, stream_);
}

}  // namespace halftone
