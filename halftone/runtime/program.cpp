#include "halftone/runtime/program.h"

#include <cstring>

#include "halftone/base/error.h"
#include "halftone/runtime/launch.h"

namespace halftone {

Program::Program(std::shared_ptr<const Graph> graph, const Weights& weights, const Kernels& kernels,
                 Stream stream)
    : graph_(std::move(graph)), kernels_(kernels), stream_(stream), plan_(plan_memory(*graph_)) {
  bind_weights(weights);
  memory_.arena = plan_.arena_bytes;
  arena_ = Tensor::empty(DType::kU8, {plan_.arena_bytes});
}

void Program::bind_weights(const Weights& weights) {
  std::string problems;
  const auto complain = [&](const std::string& problem) {
    problems += (problems.empty() ? "" : "; ") + problem;
  };
  for (const auto& [name, value] : graph_->weights()) {
    const auto found = weights.find(name);
    if (found == weights.end()) {
      complain(fmt::format("'{}' is missing", printable(name)));
    } else if (found->second.shape() != value.shape()) {
      complain(fmt::format("'{}' has shape {} instead of {}", printable(name),
                           found->second.shape(), value.shape()));
    } else {
      bound_[value.id()] = found->second;
      memory_.weights += found->second.byte_size();
    }
  }
  if (!problems.empty()) throw Error(ErrorCode::kInvalidInput, "weights", "{}", problems);
  for (size_t id = 0; id < graph_->values().size(); ++id) {
    const ValueInfo& info = graph_->values()[id];
    if (info.source == Source::kConstant) bound_[static_cast<int>(id)] = info.constant;
  }
}

std::map<std::string, Tensor> Program::run(const std::map<std::string, Tensor>& inputs) {
  std::map<int, Tensor> given;
  for (const auto& [name, value] : graph_->inputs()) {
    const auto found = inputs.find(name);
    if (found == inputs.end()) throw Error(ErrorCode::kInvalidInput, name, "input is missing");
    if (found->second.shape() != value.shape() || found->second.dtype() != value.dtype()) {
      throw Error(ErrorCode::kInvalidInput, name, "input is {} {} instead of {} {}",
                  name_of(found->second.dtype()), found->second.shape(), name_of(value.dtype()),
                  value.shape());
    }
    given[value.id()] = found->second;
  }

  std::byte* arena = arena_.mutable_bytes().data();
  const auto read_view = [&](int id) -> ConstView {
    const ValueInfo& info = graph_->values()[id];
    const int source = plan_.storage[id];
    const auto bound = bound_.find(source);
    const auto input = given.find(source);
    const void* data = bound != bound_.end()  ? bound->second.bytes().data()
                       : input != given.end() ? input->second.bytes().data()
                                              : arena + plan_.offset[id];
    // A weight is read in the dtype it is stored in.
    const DType dtype = bound != bound_.end() ? bound->second.dtype() : info.type.dtype;
    return {data, dtype, info.type.shape};
  };

  std::vector<ConstView> in;
  std::vector<View> out;
  for (size_t i = 0; i < graph_->nodes().size(); ++i) {
    const Node& node = graph_->nodes()[i];
    if (!plan_.used[i] || node.op == Op::kReshape) continue;
    in.clear();
    out.clear();
    for (const int id : node.inputs) in.push_back(read_view(id));
    for (const int id : node.outputs) {
      const ValueType& type = graph_->values()[id].type;
      out.push_back({arena + plan_.offset[id], type.dtype, type.shape});
    }
    launch(node, in, out, kernels_, stream_);
  }

  std::map<std::string, Tensor> results;
  for (const auto& [name, value] : graph_->outputs()) {
    const ConstView view = read_view(value.id());
    Tensor result = Tensor::empty(view.dtype, view.shape);
    if (result.byte_size() > 0) {
      std::memcpy(result.mutable_bytes().data(), view.data, result.mutable_bytes().size());
    }
    results.emplace(name, std::move(result));
  }
  return results;
}

}  // namespace halftone
