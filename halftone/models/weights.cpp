#include "halftone/models/weights.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "halftone/base/error.h"
#include "halftone/io/stored_weights.h"
#include "halftone/kernels/quantize.h"
#include "halftone/numerics/minifloat.h"

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

// The rows of a weight out of those of the tensor that holds it: a view where they lie together.
Tensor take_rows(const Tensor& x, int64_t rows, const StoredRows& stored) {
  if (stored.is_whole()) return x;
  const auto ranges = stored.ranges(rows);
  if (ranges.size() == 1) return x.rows(ranges[0].begin, ranges[0].end);
  std::vector<int64_t> dims(x.shape().dims().begin(), x.shape().dims().end());
  dims[0] = rows;
  Tensor result = Tensor::empty(x.dtype(), Shape(dims));
  auto out = result.mutable_bytes().begin();
  for (const auto& range : ranges) {
    const Tensor part = x.rows(range.begin, range.end);
    out = std::copy(part.bytes().begin(), part.bytes().end(), out);
  }
  return result;
}

QuantizedTensor take_rows(QuantizedTensor q, int64_t rows, const StoredRows& stored) {
  if (stored.is_whole()) return q;
  q.shape = {rows, q.shape[1]};
  q.codes = take_rows(q.codes, rows, stored);
  if (q.format.span != ScaleSpan::kTensor) q.scales = take_rows(q.scales, rows, stored);
  return q;
}

// E4M3 and E5M2 without a scale are values like any other: BF16 holds each of them.
Tensor widened(const Tensor& x) {
  Tensor y = Tensor::empty(DType::kBF16, x.shape());
  const auto codes = x.as<uint8_t>();
  const auto out = y.mutable_as<bf16>();
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = to_bf16(x.dtype() == DType::kF8E4M3 ? decode<E4M3>(codes[i]) : decode<E5M2>(codes[i]));
  }
  return y;
}
bool is_fp8(DType dtype) { return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2; }

Tensor transposed(const Tensor& x) {
  const int64_t rows = x.shape()[0], cols = x.shape()[1];
  const auto size = static_cast<size_t>(bits_of(x.dtype()) / 8);
  Tensor y = Tensor::empty(x.dtype(), {cols, rows});
  const std::byte* from = x.bytes().data();
  std::byte* to = y.mutable_bytes().data();
  for (int64_t c = 0; c < cols; ++c) {
    for (int64_t r = 0; r < rows; ++r, to += size) {
      std::copy_n(from + static_cast<size_t>(r * cols + c) * size, size, to);
    }
  }
  return y;
}

// Names of weights that linears multiply with: what may stay quantized.
std::unordered_set<std::string> linear_weights(std::span<const std::shared_ptr<Graph>> graphs) {
  std::unordered_set<std::string> names;
  for (const auto& graph : graphs) {
    for (const Node& node : graph->nodes()) {
      if (node.op == Op::kLinear) names.insert(graph->values()[node.inputs[1]].name);
    }
  }
  return names;
}

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, std::span<const std::shared_ptr<Graph>> graphs,
         const WeightNames& names)
      : checkpoint_(checkpoint),
        names_(names),
        linears_(linear_weights(graphs)),
        stored_(read_stored_weights(checkpoint)) {}

  void load(const std::string& name, const Shape& shape) {
    if (weights_.contains(name)) return;
    const StoredAs as = names_.stored_as ? names_.stored_as(name) : StoredAs{name};
    if (!as.rows.fits(shape[0])) {
      misshaped_.push_back(fmt::format("'{}' cannot hold {} rows", printable(as.name), shape[0]));
      return;
    }
    const Shape expected = as.transposed ? Shape{shape[1], shape[0]}
                           : as.kernel   ? Shape{shape[0], shape[1], 1, 1}
                                         : in_file(shape, as.rows);
    const StoredWeight* weight = stored_.find(as.name);
    if (weight != nullptr && (as.transposed || as.kernel) && !weight->scales.empty()) {
      used_.insert(as.name);  // scales are of other dimensions
      misshaped_.push_back(fmt::format("'{}' has scales, and lies {}", printable(as.name),
                                       as.kernel ? "as a kernel" : "transposed"));
      return;
    }
    if (weight != nullptr && !as.transposed && !as.kernel) {
      load_quantized(name, shape, as, *weight);
      return;
    }
    const Checkpoint::Item* item = checkpoint_.find(as.name);
    if (item == nullptr) {
      missing_.push_back("'" + printable(as.name) + "'");
      return;
    }
    used_.insert(as.name);
    const DType dtype = item->entry->dtype;
    if (item->entry->shape != expected || !(is_high_precision(dtype) || is_fp8(dtype))) {
      add_misshaped(as.name, dtype, item->entry->shape, expected);
      return;
    }
    const Tensor stored = item->file->tensor(*item->entry);
    const Tensor tensor = is_fp8(dtype) ? widened(stored) : stored;
    weights_.emplace(name, as.transposed ? transposed(tensor)
                           : as.kernel   ? tensor.reshape(shape)
                                         : take_rows(tensor, shape[0], as.rows));
  }

  Weights finish() {
    std::vector<std::string> unexpected;
    for (const Checkpoint::Item& item : checkpoint_.items()) {
      if (!is_used(item.entry->name)) {
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

  std::map<std::string, float>& input_scales() { return input_scales_; }
  std::set<std::string>& full_precision() { return full_precision_; }

 private:
  static Shape in_file(const Shape& shape, const StoredRows& rows) {
    std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
    dims[0] = rows.in_file(dims[0]);
    return Shape(dims);
  }

  void add_misshaped(const std::string& name, DType dtype, const Shape& shape,
                     const Shape& expected) {
    misshaped_.push_back(fmt::format("'{}' is {} {} instead of {}", printable(name), name_of(dtype),
                                     shape, expected));
  }

  void load_quantized(const std::string& name, const Shape& shape, const StoredAs& as,
                      const StoredWeight& weight) {
    const Shape expected = in_file(shape, as.rows);
    used_.insert(as.name);
    if (!could_be(weight, expected)) {
      const DType dtype = checkpoint_.find(weight.codes)->entry->dtype;
      add_misshaped(weight.codes, dtype, weight.shape, expected);
      return;
    }
    if (weight.scales.empty() && !linears_.contains(name)) {
      weights_.emplace(name,
                       take_rows(widened(checkpoint_.tensor(weight.codes)), shape[0], as.rows));
      return;
    }
    // Parts of one tensor share what had to be made of it.
    auto [whole, fresh] = whole_.try_emplace(as.name);
    if (fresh) whole->second = load_stored(checkpoint_, weight, expected);
    weights_.emplace(name, take_rows(whole->second, shape[0], as.rows));
    if (weight.input_scale) input_scales_.emplace(name, *weight.input_scale);
    if (weight.full_precision) full_precision_.insert(name);
  }

  // A part is used with its weight, and not missed where that is known to be of no use.
  bool is_used(const std::string& name) const {
    const auto unused = [&](const std::string& n) {
      return names_.known_unused && names_.known_unused(n);
    };
    if (used_.contains(name) || unused(name)) return true;
    const auto part = stored_.consumed.find(name);
    if (part == stored_.consumed.end()) return false;
    const std::string& weight = part->second;
    return weight.empty() || used_.contains(weight) || unused(weight);
  }

  const Checkpoint& checkpoint_;
  const WeightNames& names_;
  const std::unordered_set<std::string> linears_;
  const StoredWeights stored_;
  Weights weights_;
  std::map<std::string, QuantizedTensor> whole_;
  std::map<std::string, float> input_scales_;
  std::set<std::string> full_precision_;
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
                     const WeightNames& names, std::map<std::string, float>* input_scales,
                     std::set<std::string>* full_precision) {
  Loader loader(checkpoint, graphs, names);
  for (const auto& graph : graphs) {
    for (const auto& [name, value] : graph->weights()) loader.load(name, value.shape());
  }
  Weights weights = loader.finish();
  if (input_scales != nullptr) *input_scales = std::move(loader.input_scales());
  if (full_precision != nullptr) *full_precision = std::move(loader.full_precision());
  return weights;
}

void check_finite(const Weights& weights, const std::string& where, const Kernels& kernels,
                  Stream stream) {
  for (const auto& [name, weight] : weights) {
    if (!all_finite(weight, kernels, stream)) {
      throw Error(ErrorCode::kInvalidInput, where, "tensor '{}' holds NaN or Inf", printable(name));
    }
  }
}

std::map<std::string, QuantizeRecipe::Stored> quantized_formats(const Weights& weights) {
  std::map<std::string, QuantizeRecipe::Stored> formats;
  for (const auto& [name, weight] : weights) {
    if (const auto* q = std::get_if<QuantizedTensor>(&weight)) formats[name] = {q->format};
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
