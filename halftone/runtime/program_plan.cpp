// A Program made ready: weights bound, memory planned, kernels prepared.
#include <algorithm>
#include <set>

#include "halftone/base/error.h"
#include "halftone/base/threads.h"
#include "halftone/runtime/launch.h"
#include "halftone/runtime/program.h"
#include "halftone/runtime/program_views.h"

namespace halftone {
namespace {

// Calls visit(node, inputs, outputs) for every node that runs, with views of which only shapes and
// dtypes count; those of inputs that are not there have null data.
template <class Visit>
void for_each_launch(const Graph& graph, const MemoryPlan& plan, const std::map<int, Weight>& bound,
                     const Visit& visit) {
  std::byte somewhere{};
  const auto view = [&](int id) {
    const auto found = bound.find(plan.storage[id]);
    const ValueType& type = graph.values()[id].type;
    ConstView result =
        found != bound.end() ? view_of(found->second) : constant(view_at(type, &somewhere));
    result.shape = type.shape;
    result.token_stride = plan.token_stride[id];
    return result;
  };
  std::vector<ConstView> in;
  std::vector<View> out;
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& node = graph.nodes()[i];
    if (!plan.runs[i]) continue;
    in.clear();
    out.clear();
    for (const int id : node.inputs) in.push_back(view(id));
    for (const int id : node.outputs) {
      const bool is_left_out = plan.offset[id] == MemoryPlan::kOutside;
      out.push_back(view_at(graph.values()[id].type, is_left_out ? nullptr : &somewhere));
    }
    visit(node, in, out);
  }
}

// The most scratch memory of any node, and notes about slow ones.
void plan_launches(const Graph& graph, const MemoryPlan& plan, const ProgramOptions& options,
                   const std::map<int, Weight>& bound, MemoryUse& memory,
                   std::vector<std::string>& notes) {
  for_each_launch(graph, plan, bound, [&](const Node& node, const auto& in, const auto& out) {
    const LaunchPlan launch = plan_launch(node, in, out, *options.kernels, options.stream);
    memory.workspace = std::max(memory.workspace, launch.workspace);
    memory.library = std::max(memory.library, launch.library);
    const bool known = std::find(notes.begin(), notes.end(), launch.note) != notes.end();
    if (!launch.note.empty() && !known) notes.push_back(launch.note);
  });
}

// What kernels want compiled, by as many threads as there are.
void prepare_launches(const Graph& graph, const MemoryPlan& plan, const ProgramOptions& options,
                      const std::map<int, Weight>& bound) {
  PreparationList work;
  for_each_launch(graph, plan, bound, [&](const Node& node, const auto& in, const auto& out) {
    prepare_launch(node, in, out, *options.kernels, options.stream, work);
  });
  const auto count = static_cast<int64_t>(work.size());
  parallel_for(options.stream.threads, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      try {
        work[static_cast<size_t>(i)]();
      } catch (const Error&) {  // tried again and said where it is needed
      }
    }
  });
}

// Weights that something reads besides convolutions, as their kernels.
std::set<int> read_otherwise(const Graph& graph) {
  std::set<int> found;
  for (const Node& node : graph.nodes()) {
    const bool convolves = node.op == Op::kConv2d || node.op == Op::kConv2dInputGrad;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!convolves || i != 1) found.insert(node.inputs[i]);
    }
  }
  return found;
}

}  // namespace

Program::Program(std::shared_ptr<const Graph> graph, const Weights& weights,
                 const ProgramOptions& options, std::shared_ptr<Arena> arena)
    : graph_(std::move(graph)),
      options_(options),
      plan_(plan_memory(*graph_, options.kernels->strided_attention)),
      arena_(std::move(arena)) {
  const DeviceGuard guard(device());
  bind_weights(weights);
  memory_.arena = plan_.arena_bytes;
  if (memory_.streamed > 0) {
    blocks_ = std::make_unique<BlockStream>(*graph_, plan_, bound_, *device());
    memory_.slots = blocks_->bytes();
  }
  if (!options_.plan_only) prepare_launches(*graph_, plan_, options_, bound_);
  plan_launches(*graph_, plan_, options_, bound_, memory_, notes_);
  for (const auto* side : {&graph_->inputs(), &graph_->outputs()}) {
    for (const auto& [name, value] : *side) {
      memory_.borders += value.shape().checked_bytes(value.dtype()).value();
    }
  }
  const auto stays = [&](int id) {
    const ValueType& type = graph_->values()[id].type;
    memory_.resident += type.shape.checked_bytes(type.dtype).value();
  };
  for (const auto& [name, value] : graph_->inputs()) stays(value.id());
  for (size_t id = 0; id < graph_->values().size(); ++id) {
    if (graph_->values()[id].source == Source::kConstant) stays(static_cast<int>(id));
  }
  for (const auto& [name, value] : graph_->states()) {
    memory_.states += value.shape().checked_bytes(value.dtype()).value();
  }
  for (const auto& [name, next] : graph_->updates()) {  // all are read before any is written
    HT_ASSERT(graph_->values()[plan_.storage[next.id()]].source != Source::kState);
  }
}

void Program::bind_weights(const Weights& weights) {
  std::string problems;
  const auto complain = [&](const std::string& name, const std::string& problem) {
    problems += fmt::format("{}'{}' {}", problems.empty() ? "" : "; ", printable(name), problem);
  };
  const auto find = [&](const std::string& name, const ValueInfo& info) -> std::optional<Weight> {
    if (!info.parts.empty()) return stacked(weights, info.parts);
    const auto found = weights.find(name);
    return found == weights.end() ? std::nullopt : std::optional(found->second);
  };
  const std::set<int> in_order = read_otherwise(*graph_);
  const auto lies_otherwise = [&](const Weight& weight, int id) {
    const auto* tensor = std::get_if<Tensor>(&weight);
    return tensor != nullptr && tensor->channels_last() && in_order.contains(id);
  };
  for (const auto& [name, value] : graph_->weights()) {
    const ValueInfo& info = graph_->info(value);
    const std::optional<Weight> weight = find(name, info);
    if (!weight) {
      complain(name, info.parts.empty() ? "is missing" : "does not lie together with others");
    } else if (const std::string why = mismatch(*weight, value.type()); !why.empty()) {
      complain(name, why);
    } else if (device() != nullptr && is_on_host(*weight) && host_block_of(*weight) == nullptr) {
      complain(name, "is in the CPU's memory");
    } else if (lies_otherwise(*weight, value.id())) {
      complain(name, "lies as convolutions read it, and something else reads it too");
    } else {
      bound_[value.id()] = *weight;
      const bool streams = device() != nullptr && is_on_host(*weight);
      (streams ? memory_.streamed : memory_.weights) += byte_size_of(*weight);
    }
  }
  if (!problems.empty()) throw Error(ErrorCode::kInvalidInput, "weights", "{}", problems);
  for (size_t id = 0; id < graph_->values().size(); ++id) {
    const ValueInfo& info = graph_->values()[id];
    if (info.source == Source::kConstant) bound_[static_cast<int>(id)] = info.constant;
  }
}

}  // namespace halftone
