#include "halftone/runtime/weights.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "halftone/base/error.h"

namespace halftone {
namespace {

constexpr int64_t kAlignment = 256;
int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

const Tensor* tensor_of(const Weight& weight) { return std::get_if<Tensor>(&weight); }
const QuantizedTensor* quantized_of(const Weight& weight) {
  return std::get_if<QuantizedTensor>(&weight);
}

// [O, C, kh, kw] as [O, kh, kw, C], of elements of so many bytes.
template <size_t kBytes>
void put_channels_last(const std::byte* from, const Shape& shape, std::byte* to) {
  const int64_t channels = shape[1], taps = shape[2] * shape[3];
  for (int64_t o = 0; o < shape[0]; ++o) {
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t tap = 0; tap < taps; ++tap) {
        std::memcpy(to + (tap * channels + c) * static_cast<int64_t>(kBytes), from, kBytes);
        from += kBytes;
      }
    }
    to += channels * taps * static_cast<int64_t>(kBytes);
  }
}

// Memory that is filled from its start: a device's, or the CPU's where that is null.
class Slab {
 public:
  Slab(std::shared_ptr<Storage> storage, DeviceContext* device, bool channels_last)
      : storage_(std::move(storage)), device_(device), channels_last_(channels_last) {}

  // Each at once after the one before.
  std::vector<Tensor> place(std::span<const Tensor* const> parts) {
    std::vector<Tensor> placed;
    for (const Tensor* part : parts) {
      std::byte* to = storage_->address() + offset_;
      const bool turned = channels_last_ && part->shape().rank() == 4 && size_of(*part) > 0;
      const Tensor from = turned && !part->channels_last() ? with_channels_last(*part) : *part;
      if (device_ != nullptr) {
        device_->upload(to, from.bytes());
      } else {
        std::copy(from.bytes().begin(), from.bytes().end(), to);
      }
      const Tensor there(storage_, offset_, part->dtype(), part->shape());
      placed.push_back(turned ? there.as_channels_last() : there);
      offset_ += part->byte_size();
    }
    offset_ = aligned(offset_);
    return placed;
  }
  Tensor place(const Tensor& tensor) {
    const Tensor* one = &tensor;
    return place({&one, 1})[0];
  }

 private:
  // Of elements that are turned; 0 of others.
  static int64_t size_of(const Tensor& x) {
    const int64_t bytes = bits_of(x.dtype()) / 8;
    return bytes == 2 || bytes == 4 ? bytes : 0;
  }
  // Nothing is read where there is no memory behind the device's addresses.
  Tensor with_channels_last(const Tensor& x) const {
    if (device_ != nullptr && !device_->holds()) return x;
    Tensor turned = Tensor::empty(x.dtype(), x.shape());
    const auto turn = size_of(x) == 2 ? put_channels_last<2> : put_channels_last<4>;
    turn(x.bytes().data(), x.shape(), turned.mutable_bytes().data());
    return turned;
  }

  std::shared_ptr<Storage> storage_;
  DeviceContext* device_;
  bool channels_last_;
  int64_t offset_ = 0;
};

int64_t slab_bytes(const Weight& weight) {
  if (const Tensor* tensor = tensor_of(weight)) return aligned(tensor->byte_size());
  const QuantizedTensor& q = *quantized_of(weight);
  return aligned(q.codes.byte_size()) + aligned(q.scales.byte_size()) +
         aligned(q.global_scale.byte_size());
}

void place(const Weights& weights, std::span<const std::string> names, Slab& slab,
           Weights& placed) {
  const auto part = [&](const auto& member) {
    std::vector<const Tensor*> tensors;
    for (const std::string& name : names) tensors.push_back(&member(weights.at(name)));
    return slab.place(tensors);
  };
  if (tensor_of(weights.at(names[0])) != nullptr) {
    const auto tensors = part([](const Weight& w) -> const Tensor& { return std::get<Tensor>(w); });
    for (size_t i = 0; i < names.size(); ++i) placed[names[i]] = tensors[i];
    return;
  }
  const auto codes = part([](const Weight& w) -> const Tensor& { return quantized_of(w)->codes; });
  const auto scales =
      part([](const Weight& w) -> const Tensor& { return quantized_of(w)->scales; });
  for (size_t i = 0; i < names.size(); ++i) {
    QuantizedTensor q = std::get<QuantizedTensor>(weights.at(names[i]));
    q.codes = codes[i];
    q.scales = scales[i];
    if (q.global_scale.defined()) q.global_scale = slab.place(q.global_scale);
    placed[names[i]] = std::move(q);
  }
}

// All of these, which are all of a stack or none of it.
void place_all(const Weights& weights, std::span<const WeightStack> stacks, Slab slab,
               Weights& placed) {
  for (const WeightStack& stack : stacks) {
    const auto there = std::count_if(stack.begin(), stack.end(), [&](const std::string& name) {
      return weights.contains(name);
    });
    if (there == 0) continue;
    HT_ASSERT(there == static_cast<std::ptrdiff_t>(stack.size()));
    for (const std::string& name : stack) HT_ASSERT(!placed.contains(name));
    place(weights, stack, slab, placed);
  }
  for (const auto& [name, weight] : weights) {
    if (!placed.contains(name)) place(weights, {&name, 1}, slab, placed);
  }
}

// Tensors of one storage that follow each other, as one.
std::optional<Tensor> join(std::span<const Tensor* const> parts) {
  Tensor all = *parts[0];
  for (const Tensor* part : parts.subspan(1)) {
    const auto both = all.followed_by(*part);
    if (!both) return std::nullopt;
    all = *both;
  }
  return all;
}

std::optional<Weight> joined_tensors(std::span<const Weight* const> weights) {
  std::vector<const Tensor*> parts;
  for (const Weight* weight : weights) parts.push_back(tensor_of(*weight));
  const auto all = join(parts);
  return all ? std::optional<Weight>(*all) : std::nullopt;
}

// A scale for a whole tensor cannot be joined: there would be several.
std::optional<Weight> joined_quantized(std::span<const Weight* const> weights) {
  std::vector<const Tensor*> codes, scales;
  QuantizedTensor result = *quantized_of(*weights[0]);
  if (result.format.span == ScaleSpan::kTensor || result.format.global_scale) return std::nullopt;
  int64_t rows = 0;
  for (const Weight* weight : weights) {
    const QuantizedTensor& q = *quantized_of(*weight);
    if (q.axis != 1) return std::nullopt;
    codes.push_back(&q.codes);
    scales.push_back(&q.scales);
    rows += q.shape[0];
  }
  const auto all_codes = join(codes), all_scales = join(scales);
  if (!all_codes || !all_scales) return std::nullopt;
  result.shape = {rows, result.shape[1]};
  result.codes = *all_codes;
  result.scales = *all_scales;
  return result;
}

}  // namespace

const Shape& shape_of(const Weight& weight) {
  const QuantizedTensor* quantized = quantized_of(weight);
  return quantized != nullptr ? quantized->shape : std::get<Tensor>(weight).shape();
}

int64_t byte_size_of(const Weight& weight) {
  return std::visit([](const auto& w) { return w.byte_size(); }, weight);
}

void check_intact(const Weight& weight) {
  if (const Tensor* tensor = tensor_of(weight)) return tensor->check_intact();
  quantized_of(weight)->codes.check_intact();
  quantized_of(weight)->scales.check_intact();
}

bool are_stored_alike(const Weight& a, const Weight& b) {
  const QuantizedTensor *x = quantized_of(a), *y = quantized_of(b);
  if ((x == nullptr) != (y == nullptr)) return false;
  return x != nullptr ? x->format == y->format : tensor_of(a)->dtype() == tensor_of(b)->dtype();
}

const HostBlock* host_block_of(const Weight& weight) {
  const QuantizedTensor* quantized = quantized_of(weight);
  const Tensor& stored = quantized != nullptr ? quantized->codes : *tensor_of(weight);
  const auto* block = dynamic_cast<const HostBlock*>(stored.storage());
  if (quantized != nullptr && block != nullptr) {
    for (const Tensor* part : {&quantized->scales, &quantized->global_scale}) {
      HT_ASSERT(!part->defined() || part->storage() == block);
    }
  }
  return block;
}

std::vector<int64_t> placed_bytes(const Weights& weights, std::span<const WeightBlock> blocks) {
  std::vector<int64_t> bytes;
  for (const WeightBlock& block : blocks) {
    bytes.push_back(0);
    for (const std::string& name : block.weights) {
      const auto found = weights.find(name);
      if (found != weights.end()) bytes.back() += slab_bytes(found->second);
    }
  }
  return bytes;
}

Weights to_device(const Weights& weights, std::span<const WeightStack> stacks,
                  DeviceContext& device, std::span<const WeightBlock> streamed) {
  const DeviceGuard guard(&device);
  Weights placed;
  const std::vector<int64_t> sizes = placed_bytes(weights, streamed);
  const int64_t on_host = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  std::shared_ptr<Storage> pinned;
  if (on_host > 0) pinned = device.allocate_pinned(on_host, "blocks that are streamed");
  int64_t at = 0;
  for (size_t i = 0; i < streamed.size(); ++i) {
    const WeightBlock& block = streamed[i];
    Weights own;
    for (const std::string& name : block.weights) {
      if (const auto found = weights.find(name); found != weights.end()) own.insert(*found);
    }
    if (own.empty()) continue;
    const auto memory = std::make_shared<HostBlock>(block.name, pinned, at, sizes[i]);
    Slab slab(memory, device.holds() ? nullptr : &device, device.channels_last());
    place_all(own, stacks, std::move(slab), placed);
    at += sizes[i];
  }
  Weights rest;
  int64_t bytes = 0;
  for (const auto& [name, weight] : weights) {
    if (placed.contains(name)) continue;
    rest.emplace(name, weight);
    bytes += slab_bytes(weight);
  }
  Slab slab(device.allocate(bytes, "weights"), &device, device.channels_last());
  place_all(rest, stacks, std::move(slab), placed);
  return placed;
}

std::optional<Weight> stacked(const Weights& weights, const WeightStack& stack) {
  std::vector<const Weight*> parts;
  for (const std::string& name : stack) {
    const auto found = weights.find(name);
    if (found == weights.end() || (!parts.empty() && !are_stored_alike(*parts[0], found->second))) {
      return std::nullopt;
    }
    parts.push_back(&found->second);
  }
  return tensor_of(*parts[0]) != nullptr ? joined_tensors(parts) : joined_quantized(parts);
}

}  // namespace halftone
