#include "halftone/graph/graph.h"

#include "halftone/base/error.h"

namespace halftone {
namespace {

// No machine has more. Sums of a few thousand values of this size, and rows of one times columns of
// another, do not overflow.
constexpr int64_t kMostBytes = int64_t{1} << 46;

void require_addressable(const ValueType& type, const std::string& name) {
  const auto bytes = type.shape.checked_bytes(type.quantized ? DType::kF32 : type.dtype);
  if (bytes && *bytes <= kMostBytes) return;
  throw Error(ErrorCode::kOutOfMemory, name.empty() ? "memory" : name,
              "a value of shape {} is larger than the memory of any machine", type.shape);
}

}  // namespace

Value Graph::new_value(const ValueType& type, Source source, const std::string& name) {
  require_addressable(type, name);
  ValueInfo info;
  info.type = type;
  info.source = source;
  info.name = name;
  values_.push_back(std::move(info));
  return {this, static_cast<int>(values_.size()) - 1};
}

Value Graph::input(const std::string& name, const ValueType& type) {
  HT_ASSERT(!inputs_.contains(name));
  return inputs_[name] = new_value(type, Source::kInput, name);
}

Value Graph::weight(const std::string& name, const ValueType& type) {
  const auto found = weights_.find(name);
  if (found != weights_.end()) {
    HT_ASSERT(found->second.type() == type);
    return found->second;
  }
  return weights_[name] = new_value(type, Source::kWeight, name);
}

Value Graph::stacked_weight(const std::vector<std::string>& parts, const ValueType& type) {
  HT_ASSERT(parts.size() > 1 && !weights_.contains(parts[0]));
  const Value value = weights_[parts[0]] = new_value(type, Source::kWeight, parts[0]);
  values_.back().parts = parts;
  return value;
}

Value Graph::constant(const std::string& name, const Tensor& tensor) {
  const Value value = new_value({tensor.shape(), tensor.dtype(), {}}, Source::kConstant, name);
  values_.back().constant = tensor;
  return value;
}

void Graph::output(const std::string& name, Value value) {
  HT_ASSERT(&value.graph() == this && !outputs_.contains(name));
  outputs_[name] = value;
}

bool adds_operand(const Node& node) {
  switch (node.op) {
    case Op::kLinear:
      return std::get<LinearAttributes>(node.attributes).adds;
    case Op::kMatMul:
      return std::get<MatMulAttributes>(node.attributes).adds;
    case Op::kLinearInputGrad:
      return std::get<LinearInputGradAttributes>(node.attributes).adds;
    case Op::kConv2d:
      return std::get<ConvAttributes>(node.attributes).adds;
    default:
      return false;
  }
}

std::vector<bool> Graph::results() const {
  std::vector<bool> looked_at(values_.size(), false);
  for (const auto* side : {&outputs_, &updates_}) {
    for (const auto& [name, value] : *side) looked_at[value.id()] = true;
  }
  return looked_at;
}

Value Graph::state(const std::string& name, const ValueType& type) {
  HT_ASSERT(!states_.contains(name) && !type.quantized);
  return states_[name] = new_value(type, Source::kState, name);
}

void Graph::update(Value state, Value next) {
  const std::string& name = info(state).name;
  HT_ASSERT(info(state).source == Source::kState && !updates_.contains(name));
  HT_ASSERT(info(next).source == Source::kNode && next.type() == state.type());
  updates_[name] = next;
}

std::vector<Value> Graph::add(Op op, std::span<const Value> inputs, const Attributes& attributes,
                              std::span<const ValueType> types) {
  Node node;
  node.op = op;
  node.attributes = attributes;
  node.region = region_;
  for (const Value& input : inputs) {
    HT_ASSERT(&input.graph() == this);
    node.inputs.push_back(input.id());
  }
  std::vector<Value> outputs;
  for (const ValueType& type : types) {
    outputs.push_back(new_value(type, Source::kNode, ""));
    values_.back().producer = static_cast<int>(nodes_.size());
    node.outputs.push_back(outputs.back().id());
  }
  nodes_.push_back(std::move(node));
  return outputs;
}

Value Graph::add(Op op, std::span<const Value> inputs, const Attributes& attributes,
                 const ValueType& type) {
  return add(op, inputs, attributes, std::span(&type, 1))[0];
}

Graph::RegionGuard Graph::region(const std::string& kind, const std::string& name) {
  const int previous = region_;
  region_ = static_cast<int>(regions_.size());
  regions_.push_back({kind, name, false, -1});
  return {*this, previous};
}

int Graph::add_region(const Region& region) {
  regions_.push_back(region);
  return static_cast<int>(regions_.size()) - 1;
}

Graph::RegionGuard Graph::enter_region(int index) {
  const int previous = region_;
  region_ = index;
  return {*this, previous};
}

}  // namespace halftone
