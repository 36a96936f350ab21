#include "halftone/training/parameters.h"

#include <cmath>
#include <cstring>

#include "halftone/base/error.h"
#include "halftone/training/train_graph.h"

namespace halftone {
namespace {

constexpr int64_t kAlignment = 64;  // values: kernels read weights in wide pieces

View view_of(const Tensor& x) {
  return {const_cast<std::byte*>(x.address()), x.dtype(), x.shape()};
}
ConstView const_view_of(const Tensor& x) { return {x.address(), x.dtype(), x.shape()}; }

}  // namespace

Parameters::Parameters(const std::map<std::string, Tensor>& initial, const Kernels& kernels,
                       Stream stream)
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
  const Tensor zeros = Tensor::zeros(DType::kF32, {count_});
  const std::pair<Tensor*, const Tensor*> all[] = {
      {&values_, &host}, {&gradients_, &zeros}, {&first_, &zeros}, {&second_, &zeros}};
  for (const auto& [to, from] : all) {
    *to = allocate("what is trained");
    auto* bytes = const_cast<std::byte*>(to->address());
    if (stream.device != nullptr) {
      stream.device->upload(bytes, from->bytes());
    } else {
      std::memcpy(bytes, from->address(), static_cast<size_t>(from->byte_size()));
    }
  }
  for (const auto& [name, place] : places_) weights_.emplace(name, slice(values_, name));
}

Tensor Parameters::allocate(const char* purpose) const {
  const int64_t bytes = count_ * static_cast<int64_t>(sizeof(float));
  const auto memory = stream_.device != nullptr ? stream_.device->allocate(bytes, purpose)
                                                : Storage::allocate(bytes);
  return {memory, 0, DType::kF32, {count_}};
}

Tensor Parameters::slice(const Tensor& all, const std::string& name) const {
  const Place& place = places_.at(name);
  return all.rows(place.begin, place.begin + place.shape.numel()).reshape(place.shape);
}

std::map<std::string, Tensor> Parameters::copies(const Tensor& all) const {
  const DeviceGuard guard(stream_.device);
  Tensor host = Tensor::empty(DType::kF32, {count_});
  if (stream_.device != nullptr) {
    stream_.device->download(host.mutable_bytes(), all.address());
  } else {
    std::memcpy(host.mutable_bytes().data(), all.address(), static_cast<size_t>(all.byte_size()));
  }
  std::map<std::string, Tensor> result;
  for (const auto& [name, place] : places_) result.emplace(name, slice(host, name));
  return result;
}

std::map<std::string, Tensor> Parameters::values() const { return copies(values_); }
std::map<std::string, Tensor> Parameters::gradients() const { return copies(gradients_); }

void Parameters::take_gradients(const Program& program, bool add) {
  const DeviceGuard guard(stream_.device);
  if (add && !more_.defined()) more_ = allocate("gradients");
  const Tensor& to = add ? more_ : gradients_;
  for (const auto& [name, place] : places_) {
    program.copy_output_rows(gradient_name(name), 0, slice(to, name));
  }
  if (!add) return;
  kernels_.binary.launch(
      {BinaryFunction::kAdd, const_view_of(gradients_), const_view_of(more_), view_of(gradients_)},
      stream_);
}

double Parameters::gradient_norm() {
  const DeviceGuard guard(stream_.device);
  if (!more_.defined()) more_ = allocate("gradients");
  if (!sum_.defined()) {
    constexpr int64_t kBytes = sizeof(float);
    const auto memory = stream_.device != nullptr ? stream_.device->allocate(kBytes, "a sum")
                                                  : Storage::allocate(kBytes);
    sum_ = Tensor(memory, 0, DType::kF32, {1});
  }
  const ConstView all = const_view_of(gradients_);
  kernels_.binary.launch({BinaryFunction::kMul, all, all, view_of(more_)}, stream_);
  kernels_.sum_to.launch({const_view_of(more_), view_of(sum_)}, stream_);
  float squares = 0;
  const std::span<std::byte> bytes(reinterpret_cast<std::byte*>(&squares), sizeof squares);
  if (stream_.device != nullptr) {
    stream_.device->download(bytes, sum_.address());
  } else {
    std::memcpy(bytes.data(), sum_.address(), bytes.size());
  }
  return std::sqrt(static_cast<double>(squares));
}

void Parameters::step(AdamWArgs how) {
  const DeviceGuard guard(stream_.device);
  how.gradients = const_view_of(gradients_);
  how.parameters = view_of(values_);
  how.first = view_of(first_);
  how.second = view_of(second_);
  kernels_.adamw.launch(how, stream_);
}

}  // namespace halftone
