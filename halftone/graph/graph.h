// A static graph of operations: what a model builds, passes rewrite and the runtime runs.
// Nodes are kept in the order in which they were added, which is an order they can run in.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/graph/attributes.h"
#include "halftone/numerics/format.h"
#include "halftone/tensor/tensor.h"

namespace halftone {

class Graph;

// Parts of a value that have a scale of their own where a scale spans rows: items of the batch,
// which is the first dimension.
inline int64_t batch_items(const Shape& shape) { return shape.rank() < 2 ? 1 : shape[0]; }

// What a value is: its shape and element type, and the format when it is quantized. A quantized
// value is one value: codes, scales and, in NVFP4, the global scale.
struct ValueType {
  Shape shape;
  DType dtype = DType::kF32;        // F32, BF16 or I32
  std::optional<Format> quantized;  // then dtype is what it dequantizes to
  bool whole = false;               // quantized as one item, as weights are, whatever its shape

  int64_t items() const { return whole ? 1 : batch_items(shape); }  // that have scales of their own
  bool operator==(const ValueType& other) const {
    return shape == other.shape && dtype == other.dtype && quantized == other.quantized &&
           whole == other.whole;
  }
};

// A handle to a value of a graph. Cheap to copy; dies with the graph.
class Value {
 public:
  Value() = default;
  Value(Graph* graph, int id) : graph_(graph), id_(id) {}

  Graph& graph() const { return *graph_; }
  int id() const { return id_; }
  const ValueType& type() const;
  const Shape& shape() const { return type().shape; }
  DType dtype() const { return type().dtype; }
  int64_t dim(int i) const { return shape()[i]; }
  int rank() const { return shape().rank(); }

  bool operator==(const Value&) const = default;

 private:
  Graph* graph_ = nullptr;
  int id_ = -1;
};

// Where a value comes from.
enum class Source : uint8_t {
  kNode,      // computed
  kInput,     // given at each run
  kWeight,    // found by name in the weights
  kConstant,  // held by the graph
  kState,     // kept from one run to the next, which may change it
};

struct ValueInfo {
  ValueType type;
  Source source = Source::kNode;
  std::string name;  // of an input, weight, constant or state; otherwise empty
  // Of a weight that stands for several: their names, in the order in which their rows follow each
  // other. Its own name is that of the first.
  std::vector<std::string> parts;
  Tensor constant;
  int producer = -1;  // index of the node
};

struct Node {
  Op op = Op::kReshape;
  Attributes attributes;
  std::vector<int> inputs;
  std::vector<int> outputs;
  int region = -1;  // index into Graph::regions, -1 outside of any
};

// Whether the node's last operand is added to its product, in place where nobody else needs it
// (a convolution never adds in place).
bool adds_operand(const Node& node);

// An instance of a repeated block, such as one transformer layer. Nodes of regions with the same
// kind are the same computation on other weights.
struct Region {
  std::string kind;       // "block"
  std::string name;       // "layers.3"
  bool gradient = false;  // of what belongs to region `forward`, or to none
  int forward = -1;
};

class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  Value input(const std::string& name, const ValueType& type);
  Value weight(const std::string& name, const ValueType& type);  // the same name, the same value
  // Several weights, one after the other along their first dimension. None of them is a weight of
  // this graph by itself.
  Value stacked_weight(const std::vector<std::string>& parts, const ValueType& type);
  Value constant(const std::string& name, const Tensor& tensor);
  void output(const std::string& name, Value value);
  // A value that a Program keeps between runs, zeros before the first one; `update` says what it is
  // after a run. What reads it sees the value from before.
  Value state(const std::string& name, const ValueType& type);
  void update(Value state, Value next);

  Value add(Op op, std::span<const Value> inputs, const Attributes& attributes,
            const ValueType& type);
  std::vector<Value> add(Op op, std::span<const Value> inputs, const Attributes& attributes,
                         std::span<const ValueType> types);
  Value add(Op op, std::initializer_list<Value> inputs, const Attributes& attributes,
            const ValueType& type) {
    return add(op, std::span(inputs.begin(), inputs.size()), attributes, type);
  }

  // Nodes added until the guard goes belong to this region.
  class RegionGuard {
   public:
    RegionGuard(Graph& graph, int previous) : graph_(graph), previous_(previous) {}
    ~RegionGuard() { graph_.region_ = previous_; }
    RegionGuard(const RegionGuard&) = delete;
    RegionGuard& operator=(const RegionGuard&) = delete;

   private:
    Graph& graph_;
    int previous_;
  };
  [[nodiscard]] RegionGuard region(const std::string& kind, const std::string& name);

  int add_region(const Region& region);

  // For passes that copy a graph: all regions at once, then one by its index.
  void set_regions(const std::vector<Region>& regions) { regions_ = regions; }
  [[nodiscard]] RegionGuard enter_region(int index);

  const std::deque<Node>& nodes() const { return nodes_; }
  const std::vector<Region>& regions() const { return regions_; }
  const std::deque<ValueInfo>& values() const { return values_; }
  const ValueInfo& info(Value value) const { return values_[value.id()]; }
  const std::map<std::string, Value>& outputs() const { return outputs_; }
  const std::map<std::string, Value>& inputs() const { return inputs_; }
  const std::map<std::string, Value>& weights() const { return weights_; }
  const std::map<std::string, Value>& states() const { return states_; }
  const std::map<std::string, Value>& updates() const { return updates_; }  // by the state's name
  Value value(int id) { return {this, id}; }
  // Values that are looked at after a run: outputs, and what states become.
  std::vector<bool> results() const;

 private:
  friend class RegionGuard;
  Value new_value(const ValueType& type, Source source, const std::string& name);

  // Growing leaves references in place: builders hold shapes of values while they add others.
  std::deque<Node> nodes_;
  std::deque<ValueInfo> values_;
  std::vector<Region> regions_;
  std::map<std::string, Value> inputs_, weights_, outputs_, states_, updates_;
  int region_ = -1;
};

inline const ValueType& Value::type() const { return graph_->info(*this).type; }

}  // namespace halftone
