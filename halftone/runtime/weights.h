// Weights of a model by name, in the CPU's memory or a device's.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "halftone/kernels/device.h"
#include "halftone/passes/blocks.h"
#include "halftone/passes/merge.h"
#include "halftone/tensor/quantized_tensor.h"

namespace halftone {

// A weight as it is stored, in high precision or quantized along its rows.
using Weight = std::variant<Tensor, QuantizedTensor>;
const Shape& shape_of(const Weight& weight);
int64_t byte_size_of(const Weight& weight);
void check_intact(const Weight& weight);                  // as Storage::check_intact
bool are_stored_alike(const Weight& a, const Weight& b);  // in one dtype or format
// Shared by all programs of a model.
using Weights = std::map<std::string, Weight>;

// The CPU's memory with the weights of a block, which a Program on a device copies there in one
// piece whenever it needs them.
class HostBlock final : public Storage {
 public:
  HostBlock(std::string name, const std::shared_ptr<Storage>& memory, int64_t offset, int64_t bytes)
      : Storage(memory->address() + offset, static_cast<size_t>(bytes), /*mapped=*/false),
        name_(std::move(name)),
        memory_(memory) {}
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::shared_ptr<Storage> memory_;
};
// The block that this weight lies in; null where it is in none.
const HostBlock* host_block_of(const Weight& weight);

// These weights in a device's memory, in one piece. Those of one stack follow each other there.
// Blocks of `streamed` stay in the CPU's memory, pinned, each as a HostBlock; no stack has weights
// both in one of them and elsewhere. Kernels of convolutions, which are what has four dimensions,
// lie with their channels last where the device asks for that.
Weights to_device(const Weights& weights, std::span<const WeightStack> stacks,
                  DeviceContext& device, std::span<const WeightBlock> streamed = {});

// Bytes of the weights of each of these blocks as they lie there.
std::vector<int64_t> placed_bytes(const Weights& weights, std::span<const WeightBlock> blocks);

// Several weights as one; nothing where one is missing or they do not follow each other in memory.
std::optional<Weight> stacked(const Weights& weights, const WeightStack& stack);

}  // namespace halftone
