#include "halftone/training/parameters.h"

#include <cmath>
#include <cstring>

#include "halftone/base/error.h"
#include "halftone/kernels/adamw.h"
#include "halftone/tensor/float_values.h"
#include "halftone/training/train_graph.h"

namespace halftone {
namespace {

constexpr int64_t kAlignment = 64;  // values: kernels read weights in wide pieces

View view_of(const Tensor& x) {
  if (!x.defined()) return {};
  return {const_cast<std::byte*>(x.address()), x.dtype(), x.shape()};
}
ConstView const_view_of(const Tensor& x) { return {x.address(), x.dtype(), x.shape()}; }

}  // namespace

Parameters::Parameters(const std::map<std::string, Tensor>& initial,
                       const ParameterOptions& options, const Kernels& kernels, Stream stream)
    : kernels_(kernels), stream_(stream) {
  for (const auto& [name, tensor] : initial) {
    HT_ASSERT(tensor.dtype() == DType::kF32);
    places_[name] = {count_, tensor.shape()};
    count_ += (tensor.numel() + kAlignment - 1) / kAlignment * kAlignment;
  }
  Tensor host = Tensor::zeros(DType::kF32, {count_});
  for (const auto& [name, tensor] : initial) {
    const auto from = tensor.as<float>();
    std::copy(from.begin(), from.end(), host.mutable_as<float>().begin() + places_.at(name).begin);
  }
  const DeviceGuard guard(stream.device);
  const auto zeros = [&](DType dtype, int64_t count) {
    const Tensor made = allocate(dtype, count);
    put(made, Tensor::zeros(dtype, {count}));
    return made;
  };
  values_ = allocate(options.small_values ? DType::kBF16 : DType::kF32, count_);
  put(values_, options.small_values ? as_bf16(host) : host);
  gradients_ = zeros(DType::kF32, count_);
  const DType moments = options.small_moments ? DType::kF8E4M3 : DType::kF32;
  first_ = zeros(moments, count_);
  second_ = zeros(moments, count_);
  if (options.small_moments) {
    const int64_t blocks = (count_ + kMomentBlock - 1) / kMomentBlock;
    first_scales_ = zeros(DType::kF32, blocks);
    second_scales_ = zeros(DType::kF32, blocks);
  }
  if (options.average) {
    average_ = allocate(DType::kF32, count_);
    put(average_, host);
  }
  for (const auto& [name, place] : places_) weights_.emplace(name, slice(values_, name));
}

Tensor Parameters::allocate(DType dtype, int64_t count) const {
  const int64_t bytes = count * (bits_of(dtype) / 8);
  const auto memory = stream_.device != nullptr ? stream_.device->allocate(bytes, "what is trained")
                                                : Storage::allocate(bytes);
  return {memory, 0, dtype, {count}};
}

void Parameters::put(const Tensor& to, const Tensor& from) const {
  auto* bytes = const_cast<std::byte*>(to.address());
  if (stream_.device != nullptr) {
    stream_.device->upload(bytes, from.bytes());
  } else {
    std::memcpy(bytes, from.address(), static_cast<size_t>(from.byte_size()));
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

int64_t Parameters::bytes() const {
  int64_t sum = 0;
  for (const auto& [name, tensor] : buffers()) sum += tensor.byte_size();
  // Gradients, and those on their way to them.
  return sum + 2 * gradients_.byte_size();
}

Tensor Parameters::slice(const Tensor& all, const std::string& name) const {
  const Place& place = places_.at(name);
  return all.rows(place.begin, place.begin + place.shape.numel()).reshape(place.shape);
}

std::map<std::string, Tensor> Parameters::copies(const Tensor& all) const {
  const DeviceGuard guard(stream_.device);
  const Tensor host = as_f32(fetch(all));
  std::map<std::string, Tensor> result;
  for (const auto& [name, place] : places_) result.emplace(name, slice(host, name));
  return result;
}

std::map<std::string, Tensor> Parameters::values() const { return copies(values_); }
std::map<std::string, Tensor> Parameters::averages() const {
  return copies(average_.defined() ? average_ : values_);
}
std::map<std::string, Tensor> Parameters::gradients() const { return copies(gradients_); }

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
  for (const auto& [name, tensor] : buffers()) copy.emplace(name, fetch(tensor));
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

void Parameters::take_gradients(const Program& program, bool add) {
  const DeviceGuard guard(stream_.device);
  if (add && !more_.defined()) more_ = allocate(DType::kF32, count_);
  const Tensor& to = add ? more_ : gradients_;
  for (const auto& [name, place] : places_) {
    const Tensor part = slice(to, name);
    if (program.graph().outputs().contains(gradient_name(name))) {
      program.copy_output_rows(gradient_name(name), 0, part);
    } else {
      kernels_.fill.launch({0, view_of(part)}, stream_);
    }
  }
  if (!add) return;
  kernels_.binary.launch(
      {BinaryFunction::kAdd, const_view_of(gradients_), const_view_of(more_), view_of(gradients_)},
      stream_);
}

void Parameters::sum_gradients(Collective& processes, const Collective::Stop& stop) {
  if (processes.size() == 1) return;
  const DeviceGuard guard(stream_.device);
  Tensor host = fetch(gradients_);
  processes.sum(host.mutable_as<float>(), stop);
  put(gradients_, host);
}

double Parameters::gradient_norm() {
  const DeviceGuard guard(stream_.device);
  if (!more_.defined()) more_ = allocate(DType::kF32, count_);
  if (!sum_.defined()) sum_ = allocate(DType::kF32, 1);
  const ConstView all = const_view_of(gradients_);
  kernels_.binary.launch({BinaryFunction::kMul, all, all, view_of(more_)}, stream_);
  const SumToArgs sum{const_view_of(more_), view_of(sum_)};
  Stream stream = stream_;
  stream.workspace_bytes = kernels_.sum_to.workspace(sum, stream_);
  if (!scratch_.defined()) scratch_ = allocate(DType::kF32, stream.workspace_bytes / 4 + 1);
  stream.workspace = static_cast<std::byte*>(view_of(scratch_).data);
  kernels_.sum_to.launch(sum, stream);
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
