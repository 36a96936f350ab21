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
  sources_.push_back(
      {input, table_width, interleaved, table_width > 0 ? sources_.size() : array_for(input)});
  return sources_.size() - 1;
}

size_t FusedWriter::array_for(int input) const {
  const auto& piece = how_.inputs[input];
  const auto fits_beside = [&](const Source& s) {
    const auto& other = how_.inputs[s.input];
    return other.at >= 0 && other.source == RowSource::kPerRow &&
           types_[s.input] == types_[input] &&
           (other.at + other.length <= piece.at || piece.at + piece.length <= other.at);
  };
  if (piece.at < 0 || piece.source != RowSource::kPerRow) return sources_.size();
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (sources_[i].array != i) continue;
    const bool fits = std::all_of(sources_.begin(), sources_.end(),
                                  [&](const Source& s) { return s.array != i || fits_beside(s); });
    if (fits) return i;
  }
  return sources_.size();
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
  if (sources_[i].array != i) return "";
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
  return each_vector(fmt::format("{7}raw{8}[v] = {6}<{1}, {2}>(from{0} + {3} * {4}LL + {5});", i,
                                 type_name(types_[sources_[i].input]), input_width(i), row,
                                 input.stride, column(i), how, own, sources_[i].array));
}

std::string FusedWriter::unpack(size_t i) const {
  if (sources_[i].array != i) return "";
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
  const size_t array = sources_[source].array;
  if ((per_row ? !prefetch_ : !keep_) && read_.insert(array).second) {
    if (!per_row) {
      body_ += declare_values(source) + fetch(source, kind == RowSource::kShared ? "0" : "item");
    }
    body_ += unpack(array);
  }
  return fmt::format("in{}", array);
}

}  // namespace halftone::cuda
