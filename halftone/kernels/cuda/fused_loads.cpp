// Brings inputs of a chain into registers: which there are, where they lie, when they are read.
#include <algorithm>

#include "halftone/kernels/cuda/fused_writer.h"

namespace halftone::cuda {

const char* FusedWriter::type_name(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "fp16";
    default:
      return "float";
  }
}

size_t FusedWriter::source_of(int input, int64_t table_width, RopeLayout layout) {
  const bool interleaved = layout == RopeLayout::kInterleaved;
  for (size_t i = 0; i < sources_.size(); ++i) {
    const Source& s = sources_[i];
    if (s.input == input && s.table_width == table_width &&
        (table_width == 0 || s.interleaved == interleaved)) {
      return i;
    }
  }
  sources_.push_back({input, table_width, interleaved});
  return sources_.size() - 1;
}

int64_t FusedWriter::input_width(size_t i) const {
  return is_half_table(i) ? std::max<int64_t>(wide_ / 2, 1) : wide_;
}

std::string FusedWriter::declare_pointer(size_t i) const {
  return fmt::format(
      "  const {0}* const from{1} = static_cast<const {0}*>(p.inputs[{3}]) + {2}LL;\n",
      type_name(types_[sources_[i].input]), i, input_of(i).begin, sources_[i].input);
}

std::string FusedWriter::declare_values(size_t i) const {
  return fmt::format(
      "  Pack<{0}, {2}> raw{1}[kVectors] = {{}}; float in{1}[kVectors][{2}] = {{}};\n",
      type_name(types_[sources_[i].input]), i, input_width(i));
}

std::string FusedWriter::column(size_t i) const {
  if (const int64_t width = sources_[i].table_width; width > 0) {
    return is_half_table(i) ? fmt::format("c % {} / 2", width) : fmt::format("c % {}", width / 2);
  }
  if (input_of(i).at >= 0) return fmt::format("c - {}", input_of(i).at);
  return input_of(i).length == length_ ? "c" : fmt::format("c % {}", input_of(i).length);
}

std::string FusedWriter::each_vector(const std::string& what) const {
  return fmt::format(
      "  #pragma unroll\n  for (int v = 0; v < kVectors; ++v) {{ const int c = first + v * "
      "(kThreads * kWide); {}{} }}\n",
      exact() ? "(void)c; " : "if (c < kLength) ", what);
}

std::string FusedWriter::fetch(size_t i, const std::string& row) const {
  const char* how = input_of(i).source == RowSource::kPerRow ? "load_once"
                    : keep_                                  ? "load_shared"
                                                             : "load_again";
  // A piece fills some columns; the others stay as they were declared, zero.
  const auto& input = input_of(i);
  const std::string own =
      input.at < 0 ? "" : fmt::format("if (c >= {} && c < {}) ", input.at, input.at + input.length);
  return each_vector(fmt::format("{7}raw{0}[v] = {6}<{1}, {2}>(from{0} + {3} * {4}LL + {5});", i,
                                 type_name(types_[sources_[i].input]), input_width(i), row,
                                 input.stride, column(i), how, own));
}

std::string FusedWriter::unpack(size_t i) {
  return fmt::format(
      "  #pragma unroll\n  for (int v = 0; v < kVectors; ++v) unpack(raw{0}[v], in{0}[v]);\n", i);
}

std::string FusedWriter::write_items() const {
  std::string text;
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (input_of(i).source == RowSource::kPerItem) text += fetch(i, "item") + unpack(i);
  }
  if (text.empty()) return text;
  constexpr const char* kItem = "static_cast<int>(static_cast<unsigned>(row) / per_item)";
  if (!keep_) return fmt::format("  item = {};\n", kItem);
  return fmt::format("  if (const int own = {}; own != item) {{\n  item = own;\n{}  }}\n", kItem,
                     text);
}

std::string FusedWriter::operand(const RowStep& step, int k) {
  const int slot = step.operands[k], inputs = static_cast<int>(how_.inputs.size());
  if (slot >= inputs) return fmt::format("step{}", slot - inputs);
  const bool table = step.function == RowFunction::kRope && k > 0;
  const size_t source = source_of(slot, table ? step.width : 0, step.rope.layout);
  const RowSource kind = input_of(source).source;
  const bool per_row = kind == RowSource::kPerRow;
  if ((per_row ? !prefetch_ : !keep_) && read_.insert(source).second) {
    if (!per_row) {
      body_ += declare_values(source) + fetch(source, kind == RowSource::kShared ? "0" : "item");
    }
    body_ += unpack(source);
  }
  return fmt::format("in{}", source);
}

}  // namespace halftone::cuda
