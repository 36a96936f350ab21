#include "halftone/runtime/program.h"

#include <algorithm>
#include <chrono>

#include "halftone/base/error.h"
#include "halftone/runtime/launch.h"
#include "halftone/runtime/program_views.h"

namespace halftone {

namespace {

void tell_groups(const std::vector<size_t>& groups, const Program::GroupDone& done) {
  if (!done) return;
  for (const size_t group : groups) done(group);
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
    recordings_.clear();
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

void Program::launch_nodes(size_t begin, size_t end, BlockStream::Run* blocks) {
  for (size_t i = begin; i < end; ++i) {
    if (!plan_.runs[i]) continue;
    if (options_.cancelled && options_.cancelled()) {
      throw Error(ErrorCode::kCancelled, "", "interrupted");
    }
    if (blocks != nullptr) blocks->before(static_cast<int>(i));
    launch_one(graph_->nodes()[i]);
    if (blocks != nullptr) blocks->after(static_cast<int>(i));
  }
}

void Program::launch_all(const GroupDone& done) {
  std::optional<BlockStream::Run> blocks;
  if (blocks_) {
    blocks.emplace(*blocks_, memory_start_ - memory_.slots);
    blocks->begin();
  }
  size_t begin = 0;
  for (const Border& border : borders_) {
    launch_nodes(begin, border.end, blocks ? &*blocks : nullptr);
    begin = border.end;
    tell_groups(border.groups, done);
  }
  launch_nodes(begin, graph_->nodes().size(), blocks ? &*blocks : nullptr);
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
void Program::compute(const GroupDone& done) {
  if (!options_.record || device() == nullptr || timer_ || observer_.see || !warm_) {
    launch_all(done);
    warm_ = true;
    return;
  }
  try {
    if (recordings_.empty()) record_parts();
  } catch (const Error& error) {
    recordings_.clear();
    if (error.code() == ErrorCode::kCancelled) throw;
    options_.record = false;
    device()->note_fallback(
        fmt::format("launches are not recorded but made one by one: {}", error.what()));
    return launch_all(done);
  }
  replay(done);
}

// A recording ends with all the copies of streamed blocks that it began: then there is one alone.
void Program::record_parts() {
  if (blocks_ || borders_.empty()) {
    recordings_.push_back(device()->record([&] { launch_all({}); }));
    return;
  }
  size_t begin = 0;
  const size_t nodes = graph_->nodes().size();
  const auto record = [&](size_t end, bool last) {
    const auto launches = [this, begin, end, last] {
      launch_nodes(begin, end, nullptr);
      if (last) update_states();
    };
    const bool empty = begin == end && (!last || graph_->updates().empty());
    recordings_.push_back(empty ? nullptr : device()->record(launches));
    begin = end;
  };
  for (const Border& border : borders_) record(border.end, false);
  record(nodes, true);
}

void Program::replay(const GroupDone& done) {
  const bool in_parts = recordings_.size() > 1;
  for (size_t i = 0; i < recordings_.size(); ++i) {
    if (recordings_[i] != nullptr) recordings_[i]->replay();
    if (in_parts && i < borders_.size()) tell_groups(borders_[i].groups, done);
  }
  if (in_parts) return;
  for (const Border& border : borders_) tell_groups(border.groups, done);
}

// An output is there after its own node, whichever node's memory it lies in.
void Program::set_groups(const std::vector<std::vector<std::string>>& groups) {
  std::map<int, size_t> made_by;  // value -> node
  for (size_t i = 0; i < graph_->nodes().size(); ++i) {
    for (const int id : graph_->nodes()[i].outputs) made_by[id] = i;
  }
  std::map<size_t, std::vector<size_t>> at;
  for (size_t group = 0; group < groups.size(); ++group) {
    size_t end = 0;
    for (const std::string& name : groups[group]) {
      const auto node = made_by.find(find_value(graph_->outputs(), name, "output").id());
      if (node != made_by.end()) end = std::max(end, node->second + 1);
    }
    at[end].push_back(group);
  }
  borders_.clear();
  for (const auto& [end, there] : at) borders_.push_back({end, there});
  recordings_.clear();
}

std::vector<size_t> Program::order_of_groups() const {
  std::vector<size_t> order;
  for (const Border& border : borders_) {
    order.insert(order.end(), border.groups.begin(), border.groups.end());
  }
  return order;
}

void Program::run() { run_in_groups({}); }

void Program::run_in_groups(const GroupDone& done) {
  const DeviceGuard guard(device());
  prepare_memory();
  compute(done);
  for (const auto& [id, weight] : bound_) check_intact(weight);
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
    compute({});
    seconds.push_back(device()->mark());
  }
  return seconds;
}

}  // namespace halftone
