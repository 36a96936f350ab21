#include "halftone/models/weights.h"

#include <cmath>
#include <unordered_set>

#include "halftone/base/error.h"
#include "halftone/io/dialect.h"
#include "halftone/io/quantization_metadata.h"
#include "halftone/kernels/quantize.h"

namespace halftone {
namespace {

// "3 missing: 'a', 'b', 'c'", cut after a few names.
std::string list(const char* what, const std::vector<std::string>& names) {
  constexpr size_t kMost = 8;
  std::string out = fmt::format("{} {}: ", names.size(), what);
  for (size_t i = 0; i < std::min(kMost, names.size()); ++i) {
    out += (i > 0 ? ", " : "") + names[i];
  }
  if (names.size() > kMost) out += ", ...";
  return out;
}

// What the file says about its quantized tensors. Other tools' ways of saying it are not read yet.
QuantizationMetadata quantized_in(const Checkpoint& checkpoint) {
  const std::string where = checkpoint.path().string();
  const Metadata metadata = checkpoint.metadata();
  if (const auto found = metadata.find(kQuantizationKey); found != metadata.end()) {
    return parse_quantization_metadata(found->second, where);
  }
  std::vector<const TensorEntry*> entries;
  for (const Checkpoint::Item& item : checkpoint.items()) entries.push_back(item.entry);
  const DialectReport report = detect_dialect(entries, metadata, where);
  if (report.dialect != Dialect::kNone) {
    throw Error(ErrorCode::kUnsupported, where,
                "holds quantized weights as {} writes them ('{}'); only what 'halftone quantize' "
                "writes can be run",
                to_string(report.dialect), printable(report.evidence));
  }
  return {};
}

Tensor row_part(const Tensor& x, const StoredAs& stored) {
  if (stored.parts == 1) return x;
  const int64_t rows = x.shape()[0] / stored.parts;
  return x.rows(rows * stored.part, rows * (stored.part + 1));
}

QuantizedTensor row_part(QuantizedTensor q, const StoredAs& stored) {
  if (stored.parts == 1) return q;
  q.shape = {q.shape[0] / stored.parts, q.shape[1]};
  q.codes = row_part(q.codes, stored);
  if (q.format.span != ScaleSpan::kTensor) q.scales = row_part(q.scales, stored);
  return q;
}

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const WeightNames& names)
      : checkpoint_(checkpoint), names_(names), quantized_(quantized_in(checkpoint)) {}

  void load(const std::string& name, const Shape& shape) {
    if (weights_.contains(name)) return;
    const StoredAs stored = names_.stored_as ? names_.stored_as(name) : StoredAs{name};
    const Checkpoint::Item* item = checkpoint_.find(stored.name);
    if (item == nullptr) {
      missing_.push_back("'" + printable(stored.name) + "'");
      return;
    }
    used_.insert(stored.name);
    const auto quantized = quantized_.find(stored.name);
    const bool is_quantized = quantized != quantized_.end();
    const Shape& whole = is_quantized ? quantized->second.shape : item->entry->shape;
    const bool known = is_quantized || is_high_precision(item->entry->dtype);
    const Shape expected = in_file(shape, stored.parts);
    if (whole != expected || !known) {
      misshaped_.push_back(fmt::format("'{}' is {} {} instead of {}", printable(stored.name),
                                       name_of(item->entry->dtype), whole, expected));
      return;
    }
    if (!is_quantized) {
      weights_.emplace(name, row_part(item->file->tensor(*item->entry), stored));
      return;
    }
    weights_.emplace(name,
                     row_part(load_quantized(checkpoint_, stored.name, quantized->second), stored));
    used_.insert(scale_name(stored.name));
    used_.insert(global_scale_name(stored.name));
  }

  Weights finish() {
    std::vector<std::string> unexpected;
    for (const Checkpoint::Item& item : checkpoint_.items()) {
      if (!used_.contains(item.entry->name) && !is_known_unused(item.entry->name)) {
        unexpected.push_back("'" + printable(item.entry->name) + "'");
      }
    }
    std::string problems;
    const auto add = [&](const char* what, const std::vector<std::string>& names) {
      if (!names.empty()) problems += (problems.empty() ? "" : "; ") + list(what, names);
    };
    add("missing", missing_);
    add("mis-shaped", misshaped_);
    add("unexpected", unexpected);
    if (!problems.empty()) {
      throw Error(ErrorCode::kInvalidInput, checkpoint_.path().string(), "tensors do not fit: {}",
                  problems);
    }
    return std::move(weights_);
  }

 private:
  static Shape in_file(const Shape& shape, int parts) {
    std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
    dims[0] *= parts;
    return Shape(dims);
  }
  // A quantized tensor that is not used has scales that are not used either.
  bool is_known_unused(const std::string& name) const {
    if (!names_.known_unused) return false;
    for (const char* suffix : {"_scale_2", "_scale", ""}) {
      if (name.ends_with(suffix) &&
          names_.known_unused(name.substr(0, name.size() - std::string_view(suffix).size()))) {
        return true;
      }
    }
    return false;
  }

  const Checkpoint& checkpoint_;
  const WeightNames& names_;
  QuantizationMetadata quantized_;
  Weights weights_;
  std::unordered_set<std::string> used_;
  std::vector<std::string> missing_, misshaped_;
};

bool all_finite(const Weight& weight, const Kernels& kernels, Stream stream) {
  const auto finite = [&](const Tensor& x) {
    const Tensor row = x.reshape({1, x.numel()});
    return std::isfinite(amax(kernels, row, stream));
  };
  if (const auto* tensor = std::get_if<Tensor>(&weight)) return finite(*tensor);
  const auto& q = std::get<QuantizedTensor>(weight);
  // Scales of 8 bits: E8M0's NaN is 0xFF, E4M3's 0x7F and 0xFF. The same for codes of E4M3.
  const auto has_byte = [](const Tensor& x, int mask, int value) {
    bool found = false;
    for (const std::byte b : x.bytes()) found |= (std::to_integer<int>(b) & mask) == value;
    return found;
  };
  if (q.format.scale == ScaleType::kF32 && !finite(q.scales)) return false;
  if (q.format.scale == ScaleType::kE8M0 && has_byte(q.scales, 0xFF, 0xFF)) return false;
  if (q.format.scale == ScaleType::kE4M3 && has_byte(q.scales, 0x7F, 0x7F)) return false;
  if (q.format.global_scale && !finite(q.global_scale)) return false;
  if (q.format.element == ElementType::kE4M3) return !has_byte(q.codes, 0x7F, 0x7F);
  return q.format.element != ElementType::kE5M2 || !has_byte(q.codes, 0x7C, 0x7C);
}

}  // namespace

Weights load_weights(const Checkpoint& checkpoint, std::span<const std::shared_ptr<Graph>> graphs,
                     const WeightNames& names) {
  Loader loader(checkpoint, names);
  for (const auto& graph : graphs) {
    for (const auto& [name, value] : graph->weights()) loader.load(name, value.shape());
  }
  return loader.finish();
}

void check_finite(const Weights& weights, const std::string& where, const Kernels& kernels,
                  Stream stream) {
  for (const auto& [name, weight] : weights) {
    if (!all_finite(weight, kernels, stream)) {
      throw Error(ErrorCode::kInvalidInput, where, "tensor '{}' holds NaN or Inf", printable(name));
    }
  }
}

std::map<std::string, Format> quantized_formats(const Weights& weights) {
  std::map<std::string, Format> formats;
  for (const auto& [name, weight] : weights) {
    if (const auto* q = std::get_if<QuantizedTensor>(&weight)) formats.emplace(name, q->format);
  }
  return formats;
}

void quantize_weights(Weights& weights, const QuantizeReport& report, const Kernels& kernels,
                      Stream stream) {
  for (const auto& linear : report.converted) {
    Weight& weight = weights.at(linear.weight);
    const auto* tensor = std::get_if<Tensor>(&weight);
    if (tensor != nullptr) weight = quantize(kernels, *tensor, linear.format, {}, stream);
  }
}

}  // namespace halftone
