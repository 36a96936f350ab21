#include "halftone/training/train_graph.h"

#include "halftone/base/error.h"
#include "halftone/graph/ops.h"
#include "halftone/passes/autodiff.h"

namespace halftone {

std::string gradient_name(const std::string& weight) { return "gradient of " + weight; }

void add_loss(Graph& graph, std::span<const std::string> trained) {
  const Value sample = cast(graph.outputs().at("sample"), DType::kF32);
  const int64_t rows = sample.dim(0);
  const auto made = graph.outputs().find("target");
  const Value target =
      made != graph.outputs().end() ? made->second : graph.input("target", sample.type());
  const Value by_row = graph.input("loss_weight", {{rows}, DType::kF32, {}});
  std::vector<int64_t> dims(static_cast<size_t>(sample.rank()), 1);
  dims[0] = rows;
  const Value difference = sample - target;
  const Value squares = difference * difference * reshape(by_row, Shape(dims));
  const Value loss =
      affine(sum_to(squares, {1}), 1.0f / static_cast<float>(sample.shape().numel()), 0);
  std::vector<Value> wrt;
  for (const std::string& name : trained) {
    const auto found = graph.weights().find(name);
    if (found == graph.weights().end()) {
      throw Error(ErrorCode::kInvalidInput, name, "is to be trained, and the model has no such");
    }
    wrt.push_back(found->second);
  }
  const std::vector<Value> gradients = differentiate(loss, wrt);
  graph.output("loss", loss);
  for (size_t i = 0; i < trained.size(); ++i) {
    graph.output(gradient_name(trained[i]), gradients[i]);
  }
}

}  // namespace halftone
