// What goes into a Program and comes out of it: inputs, outputs and states, whole or by rows.
#include <cstring>

#include "halftone/base/error.h"
#include "halftone/runtime/program.h"
#include "halftone/runtime/program_views.h"

namespace halftone {

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

}  // namespace halftone
