#include "halftone/runtime/program.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "halftone/base/error.h"
#include "halftone/base/threads.h"
#include "halftone/runtime/launch.h"

namespace halftone {
namespace {

// What tells a weight from what the graph expects; empty if nothing does.
std::string mismatch(const Weight& weight, const ValueType& type) {
  if (shape_of(weight) != type.shape) {
    return fmt::format("has shape {} instead of {}", shape_of(weight), type.shape);
  }
  const auto* quantized = std::get_if<QuantizedTensor>(&weight);
  if (quantized == nullptr && type.quantized) {
    return fmt::format("is not quantized to {}", type.quantized->name);
  }
  if (quantized == nullptr && !is_high_precision(std::get<Tensor>(weight).dtype()) &&
      std::get<Tensor>(weight).dtype() != DType::kF64) {
    return fmt::format("is stored as {}, which is not computed with",
                       name_of(std::get<Tensor>(weight).dtype()));
  }
  if (quantized != nullptr && (!type.quantized || quantized->format != *type.quantized)) {
    return fmt::format("is {} instead of {}", quantized->format.name,
                       type.quantized ? type.quantized->name : "high precision");
  }
  return {};
}

bool is_on_host(const Weight& weight) {
  const auto* quantized = std::get_if<QuantizedTensor>(&weight);
  const Tensor& stored = quantized != nullptr ? quantized->codes : std::get<Tensor>(weight);
  return stored.byte_size() > 0 && stored.device() == Device{};
}

ConstView view_of(const Weight& weight) {
  if (const auto* tensor = std::get_if<Tensor>(&weight)) {
    return {tensor->address(), tensor->dtype(), tensor->shape()};
  }
  const auto& q = std::get<QuantizedTensor>(weight);
  ConstView view{q.codes.address(), DType::kF32, q.shape, &q.format, q.scales.address()};
  if (q.format.global_scale) {
    view.global_scale = reinterpret_cast<const float*>(q.global_scale.address());
  }
  return view;
}

// A view of a value whose bytes start at data.
View view_at(const ValueType& type, std::byte* data) {
  View view{data, type.dtype, type.shape};
  if (!type.quantized) return view;
  const int64_t cols = type.shape[-1], rows = cols == 0 ? 0 : type.shape.numel() / cols;
  const int64_t items = type.items();
  const QuantizedLayout layout = quantized_layout(*type.quantized, rows, cols, items);
  view.format = &*type.quantized;
  view.scales = data + layout.scales;
  view.global_scale = reinterpret_cast<float*>(data + layout.global_scale);
  view.rows_per_scale = items == 0 || type.quantized->static_scale ? 0 : rows / items;
  return view;
}

ConstView constant(const View& v) {
  return {v.data, v.dtype, v.shape, v.format, v.scales, v.global_scale, v.rows_per_scale};
}

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

}  // namespace

std::byte* Arena::reserve(int64_t bytes, DeviceContext* device) {
  bytes = std::max(bytes, expected_);
  if (!memory_ || bytes > static_cast<int64_t>(memory_->size())) {
    memory_ = nullptr;  // before the new one, not beside it
    memory_ = device != nullptr ? device->allocate(bytes, "values while running")
                                : Storage::allocate(bytes);
  }
  return memory_->address();
}

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
  for (const auto& [name, value] : graph_->weights()) {
    const ValueInfo& info = graph_->info(value);
    const std::optional<Weight> weight = find(name, info);
    if (!weight) {
      complain(name, info.parts.empty() ? "is missing" : "does not lie together with others");
    } else if (const std::string why = mismatch(*weight, value.type()); !why.empty()) {
      complain(name, why);
    } else if (device() != nullptr && is_on_host(*weight) && host_block_of(*weight) == nullptr) {
      complain(name, "is in the CPU's memory");
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

Value Program::find_value(const std::map<std::string, Value>& among, const std::string& name,
                          const char* kind) const {
  const auto found = among.find(name);
  if (found != among.end()) return found->second;
  throw Error(ErrorCode::kInvalidInput, name, "the graph has no such {}", kind);
}

// On a device: into memory there that stays the same.
void Program::put(int id, const Tensor& tensor) {
  const ValueInfo& info = graph_->values()[id];
  const char* kind = info.source == Source::kState ? "state" : "input";
  if (tensor.shape() != info.type.shape || tensor.dtype() != info.type.dtype) {
    throw Error(ErrorCode::kInvalidInput, info.name, "{} is {} {} instead of {} {}", kind,
                name_of(tensor.dtype()), tensor.shape(), name_of(info.type.dtype), info.type.shape);
  }
  if (device() == nullptr && info.source != Source::kState) {
    HT_ASSERT(tensor.device() == Device{});
    bound_[id] = tensor;
    return;
  }
  copy_in(own_memory(id), tensor);
}

// Of an input, constant or state, where the program runs.
std::byte* Program::own_memory(int id) {
  Tensor& own = resident_[id];
  if (!own.defined()) {
    const ValueInfo& info = graph_->values()[id];
    const int64_t bytes = info.type.shape.checked_bytes(info.type.dtype).value();
    const auto memory =
        device() != nullptr ? device()->allocate(bytes, info.name) : Storage::allocate(bytes);
    own = Tensor(memory, 0, info.type.dtype, info.type.shape);
  }
  bound_[id] = own;
  return const_cast<std::byte*>(own.address());
}

void Program::copy_in(std::byte* to, const Tensor& from) const {
  if (device() == nullptr) {
    if (from.byte_size() > 0) {
      std::memcpy(to, from.address(), static_cast<size_t>(from.byte_size()));
    }
  } else if (from.device() == Device{}) {
    device()->upload(to, from.bytes());
  } else {
    HT_ASSERT(from.device() == device()->device());
    device()->copy(to, from.address(), from.byte_size());
  }
}

void Program::set_input_rows(const std::string& name, int64_t first, const Tensor& rows) {
  const DeviceGuard guard(device());
  const Value input = find_value(graph_->inputs(), name, "input");
  HT_ASSERT(rows.dtype() == input.dtype() && rows.shape().rank() == input.rank() &&
            first + rows.shape()[0] <= input.dim(0));
  const int64_t row_bytes = input.shape().checked_bytes(input.dtype()).value() / input.dim(0);
  HT_ASSERT(rows.byte_size() == row_bytes * rows.shape()[0]);
  copy_in(own_memory(input.id()) + first * row_bytes, rows);
}

void Program::copy_output_rows(const std::string& name, int64_t first, const Tensor& to) const {
  const DeviceGuard guard(device());
  const OutputRow from = output_row(name, first);
  HT_ASSERT(to.dtype() == from.dtype && first + to.shape()[0] <= from.rows);
  HT_ASSERT(to.byte_size() == from.bytes * to.shape()[0]);
  HT_ASSERT(device() == nullptr || to.device() == device()->device());
  copy_here(const_cast<std::byte*>(to.address()), from.data, to.byte_size());
}

void Program::hand_over_row(const std::string& output, int64_t from, Program& other,
                            const std::string& input, int64_t to) const {
  const DeviceGuard guard(device());
  const OutputRow row = output_row(output, from);
  const Value into = other.find_value(other.graph_->inputs(), input, "input");
  HT_ASSERT(other.device() == device() && row.dtype == into.dtype() && from < row.rows &&
            to < into.dim(0));
  const int64_t bytes = into.shape().checked_bytes(into.dtype()).value() / into.dim(0);
  HT_ASSERT(bytes == row.bytes);
  copy_here(other.own_memory(into.id()) + to * bytes, row.data, bytes);
}

Program::OutputRow Program::output_row(const std::string& name, int64_t index) const {
  const Value output = find_value(graph_->outputs(), name, "output");
  const ConstView from = const_view(output.id());
  const int64_t rows = from.shape[0];
  const int64_t bytes = from.shape.checked_bytes(from.dtype).value() / rows;
  return {static_cast<const std::byte*>(from.data) + index * bytes, from.dtype, rows, bytes};
}

// Within the memory where programs run.
void Program::copy_here(std::byte* to, const std::byte* from, int64_t bytes) const {
  if (device() != nullptr) {
    device()->copy(to, from, bytes);
  } else if (bytes > 0) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

void Program::set_input(const std::string& name, const Tensor& tensor) {
  const DeviceGuard guard(device());
  put(find_value(graph_->inputs(), name, "input").id(), tensor);
}

void Program::set_state(const std::string& name, const Tensor& tensor) {
  const DeviceGuard guard(device());
  put(find_value(graph_->states(), name, "state").id(), tensor);
}

Tensor Program::state(const std::string& name) {
  const DeviceGuard guard(device());
  prepare_states();
  return read(find_value(graph_->states(), name, "state").id());
}

void Program::prepare_states() {
  for (const auto& [name, value] : graph_->states()) {
    if (bound_.contains(value.id())) continue;
    put(value.id(), Tensor::zeros(value.dtype(), value.shape()));
  }
}

// The arena, which begins with the slots of streamed blocks, and, on a device, constants there.
// Recordings hold their addresses.
void Program::prepare_memory() {
  for (const auto& [name, value] : graph_->inputs()) {
    if (!bound_.contains(value.id())) {
      throw Error(ErrorCode::kInvalidInput, name, "input is missing");
    }
  }
  prepare_states();
  const std::byte* before = memory_start_;
  memory_start_ = arena_->reserve(memory_.in_arena(), device()) + memory_.slots;
  options_.stream.workspace = memory_start_ + memory_.arena;
  options_.stream.workspace_bytes = memory_.workspace;
  if (device() == nullptr) return;
  if (memory_start_ != before) {
    recording_ = nullptr;
    warm_ = false;
  }
  for (const auto& [id, weight] : bound_) {
    if (graph_->values()[id].source != Source::kConstant || resident_.contains(id)) continue;
    put(id, Tensor(std::get<Tensor>(weight)));
  }
}

ConstView Program::const_view(int id) const {
  const auto bound = bound_.find(plan_.storage[id]);
  ConstView result = bound == bound_.end() ? constant(view(id)) : view_of(bound->second);
  if (blocks_) blocks_->move_to_slot(plan_.storage[id], result);
  result.shape = graph_->values()[id].type.shape;  // a reshape's own; the dtype is what is stored
  result.token_stride = plan_.token_stride[id];
  return result;
}

View Program::view(int id) const {
  const ValueType& type = graph_->values()[id].type;
  if (plan_.offset[id] == MemoryPlan::kOutside) return {nullptr, type.dtype, type.shape};
  return view_at(type, memory_start_ + plan_.offset[id]);
}

void Program::launch_all() {
  std::optional<BlockStream::Run> blocks;
  if (blocks_) {
    blocks.emplace(*blocks_, memory_start_ - memory_.slots);
    blocks->begin();
  }
  for (size_t i = 0; i < graph_->nodes().size(); ++i) {
    if (!plan_.runs[i]) continue;
    if (options_.cancelled && options_.cancelled()) {
      throw Error(ErrorCode::kCancelled, "", "interrupted");
    }
    if (blocks) blocks->before(static_cast<int>(i));
    launch_one(graph_->nodes()[i]);
    if (blocks) blocks->after(static_cast<int>(i));
  }
  update_states();
}

void Program::launch_one(const Node& node) {
  std::vector<ConstView> in;
  std::vector<View> out;
  for (const int id : node.inputs) in.push_back(const_view(id));
  for (const int id : node.outputs) out.push_back(view(id));
  if (observer_.see && node.op == Op::kLinear) observe(node, in[0]);
  const auto run = [&] { launch(node, in, out, *options_.kernels, options_.stream); };
  if (!timer_) {
    run();
  } else if (device() != nullptr) {
    timer_(node, device()->time(run));
  } else {
    const auto start = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    timer_(node, took.count());
  }
}

void Program::observe(const Node& node, const ConstView& input) {
  const std::string& weight = graph_->values()[node.inputs[1]].name;
  if (observer_.wants && !observer_.wants(weight)) return;
  if (input.format != nullptr) {
    throw Error(ErrorCode::kUnsupported, weight, "reads what is quantized already");
  }
  ConstView seen = input;
  if (device() != nullptr) {
    const auto bytes = static_cast<size_t>(input.shape.checked_bytes(input.dtype).value());
    // Kept: fresh memory would cost more than the copy.
    if (!observed_ || observed_->size() < bytes) {
      observed_ = Storage::allocate(static_cast<int64_t>(bytes));
    }
    const auto to = observed_->mutable_bytes().first(bytes);
    device()->download(to, static_cast<const std::byte*>(input.data));
    seen.data = to.data();
  }
  observer_.see(weight, seen);
}

// After everything that reads them.
void Program::update_states() {
  for (const auto& [name, next] : graph_->updates()) {
    const int id = graph_->states().at(name).id();
    const Tensor& own = resident_.at(id);
    const ConstView from = const_view(next.id());
    const View to{const_cast<std::byte*>(own.address()), own.dtype(), own.shape()};
    Node copy;
    copy.op = Op::kCast;
    launch(copy, {&from, 1}, {&to, 1}, *options_.kernels, options_.stream);
  }
}

// The first run chooses algorithms, which cannot be recorded; the second is recorded.
void Program::compute() {
  if (!options_.record || device() == nullptr || timer_ || observer_.see || !warm_) {
    launch_all();
    warm_ = true;
    return;
  }
  try {
    if (!recording_) recording_ = device()->record([&] { launch_all(); });
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCancelled) throw;
    options_.record = false;
    device()->note_fallback(
        fmt::format("launches are not recorded but made one by one: {}", error.what()));
    return launch_all();
  }
  recording_->replay();
}

Tensor Program::read(int id) const {
  HT_ASSERT(!graph_->values()[id].type.quantized);
  const ConstView from = const_view(id);
  Tensor result = Tensor::empty(from.dtype, from.shape);
  const auto* bytes = static_cast<const std::byte*>(from.data);
  if (device() != nullptr) {
    device()->download(result.mutable_bytes(), bytes);
  } else if (result.byte_size() > 0) {
    std::memcpy(result.mutable_bytes().data(), bytes, result.mutable_bytes().size());
  }
  return result;
}

void Program::run() {
  const DeviceGuard guard(device());
  prepare_memory();
  compute();
  for (const auto& [id, weight] : bound_) check_intact(weight);
}

Tensor Program::output(const std::string& name) const {
  const DeviceGuard guard(device());
  return read(find_value(graph_->outputs(), name, "output").id());
}

Tensor Program::device_output(const std::string& name) const {
  if (device() == nullptr) return output(name);
  const DeviceGuard guard(device());
  const ConstView from = const_view(find_value(graph_->outputs(), name, "output").id());
  const int64_t bytes = from.shape.checked_bytes(from.dtype).value();
  Tensor result(device()->allocate(bytes, name), 0, from.dtype, from.shape);
  device()->copy(const_cast<std::byte*>(result.address()), static_cast<const std::byte*>(from.data),
                 bytes);
  return result;
}

std::map<std::string, Tensor> Program::run(const std::map<std::string, Tensor>& inputs) {
  const DeviceGuard guard(device());
  for (const auto& [name, value] : graph_->inputs()) {
    const auto found = inputs.find(name);
    if (found != inputs.end()) put(value.id(), found->second);
  }
  run();
  std::map<std::string, Tensor> results;
  for (const auto& [name, value] : graph_->outputs()) results.emplace(name, read(value.id()));
  if (device() == nullptr) {  // what was given is not held any longer
    for (const auto& [name, tensor] : inputs) {
      const auto found = graph_->inputs().find(name);
      if (found != graph_->inputs().end()) bound_.erase(found->second.id());
    }
  }
  return results;
}

std::vector<double> Program::device_seconds(int runs) {
  HT_ASSERT(device() != nullptr && memory_start_ != nullptr);
  const DeviceGuard guard(device());
  std::vector<double> seconds;
  device()->mark();
  for (int i = 0; i < runs; ++i) {
    compute();
    seconds.push_back(device()->mark());
  }
  return seconds;
}

}  // namespace halftone
