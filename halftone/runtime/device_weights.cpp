// Weights on their way to a device.
#include "halftone/base/error.h"
#include "halftone/runtime/program.h"

namespace halftone {
namespace {

constexpr int64_t kAlignment = 256;
int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

using Parts = std::vector<const Weight*>;

std::vector<std::string> split_names(const std::string& merged) {
  std::vector<std::string> names;
  for (size_t at = 0; at <= merged.size();) {
    const size_t end = std::min(merged.find('|', at), merged.size());
    names.push_back(merged.substr(at, end - at));
    at = end + 1;
  }
  return names;
}

// One tensor that holds those of all parts, one after the other along the first dimension.
class Slab {
 public:
  Slab(std::shared_ptr<Storage> storage, DeviceContext& device)
      : storage_(std::move(storage)), device_(device) {}

  Tensor stack(std::span<const Tensor* const> parts) {
    const Tensor& first = *parts[0];
    std::vector<int64_t> dims(first.shape().dims().begin(), first.shape().dims().end());
    int64_t bytes = 0;
    for (const Tensor* part : parts) {
      HT_ASSERT(part->dtype() == first.dtype());
      device_.upload(storage_->address() + offset_ + bytes, part->bytes());
      bytes += part->byte_size();
      if (part != &first) dims[0] += part->shape()[0];
    }
    Tensor result(storage_, offset_, first.dtype(), Shape(dims));
    offset_ += aligned(bytes);
    return result;
  }
  Tensor copy(const Tensor& tensor) {
    const Tensor* one = &tensor;
    return stack({&one, 1});
  }

 private:
  std::shared_ptr<Storage> storage_;
  DeviceContext& device_;
  int64_t offset_ = 0;
};

int64_t slab_bytes(const Weight& weight) {
  if (const auto* tensor = std::get_if<Tensor>(&weight)) return aligned(tensor->byte_size());
  const auto& q = std::get<QuantizedTensor>(weight);
  return aligned(q.codes.byte_size()) + aligned(q.scales.byte_size()) +
         aligned(q.global_scale.byte_size());
}

Weight stacked(const Parts& parts, Slab& slab) {
  std::vector<const Tensor*> tensors;
  if (std::holds_alternative<Tensor>(*parts[0])) {
    for (const Weight* part : parts) tensors.push_back(&std::get<Tensor>(*part));
    return slab.stack(tensors);
  }
  QuantizedTensor result = std::get<QuantizedTensor>(*parts[0]);
  std::vector<const Tensor*> scales;
  int64_t rows = 0;
  for (const Weight* part : parts) {
    const auto& q = std::get<QuantizedTensor>(*part);
    HT_ASSERT(q.axis == 1 && q.format == result.format);
    HT_ASSERT(parts.size() == 1 || (q.format.span != ScaleSpan::kTensor && !q.format.global_scale));
    tensors.push_back(&q.codes);
    scales.push_back(&q.scales);
    rows += q.shape[0];
  }
  result.shape = {rows, result.shape[1]};
  result.codes = slab.stack(tensors);
  result.scales = slab.stack(scales);
  if (result.global_scale.defined()) result.global_scale = slab.copy(result.global_scale);
  return result;
}

}  // namespace

Weights to_device(const Weights& weights, const std::vector<std::string>& merged,
                  DeviceContext& device) {
  std::map<std::string, Parts> wanted;
  std::map<std::string, bool> taken;
  for (const std::string& name : merged) {
    for (const std::string& part : split_names(name)) {
      wanted[name].push_back(&weights.at(part));
      taken[part] = true;
    }
  }
  for (const auto& [name, weight] : weights) {
    if (!taken.contains(name)) wanted[name] = {&weight};
  }
  int64_t bytes = 0;
  for (const auto& [name, weight] : weights) bytes += slab_bytes(weight);
  Slab slab(device.allocate(bytes, "weights"), device);
  Weights result;
  for (const auto& [name, parts] : wanted) result.emplace(name, stacked(parts, slab));
  return result;
}

}  // namespace halftone
