#include "halftone/quantize/quantize_file.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/base/threads.h"
#include "halftone/io/conversion_notes.h"
#include "halftone/io/dialect.h"
#include "halftone/io/quantization_metadata.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/kernels/quantize.h"
#include "halftone/numerics/scale_rules.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

bool matches_any(const std::vector<std::string>& patterns, std::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return glob_match(pattern, name); });
}

bool is_weight_matrix(const TensorEntry& tensor) {
  const bool named = tensor.name.ends_with(".weight") || tensor.name == "weight";
  return named && tensor.shape.rank() == 2;
}

// Why a weight matrix is not to be converted; empty if it is.
std::string reason_to_keep(const TensorEntry& tensor, const FileQuantizeOptions& options) {
  Format format = options.format;
  if (options.chosen) {
    const auto found = options.chosen->find(tensor.name);
    if (found == options.chosen->end()) return "the recipe keeps it";
    format = found->second.format;
  }
  if (matches_any(options.exclude, tensor.name)) return "excluded";
  if (!options.include.empty() && !matches_any(options.include, tensor.name)) return "not included";
  if (!is_high_precision(tensor.dtype)) {
    return fmt::format("its dtype is {}, not F32, BF16 or F16", name_of(tensor.dtype));
  }
  if (tensor.byte_size() == 0) return "empty";
  if (format.span == ScaleSpan::kBlock && tensor.shape[1] % format.block != 0) {
    return fmt::format("its {} columns are no multiple of {}", tensor.shape[1], format.block);
  }
  return {};
}

// Squared sums of a row's values and of what rounding changed in them.
struct RowError {
  double error = 0, norm = 0;
};

// Both are multiplied by `unit` first, so that squares neither overflow nor vanish.
template <class T>
RowError row_error(const T* x, const float* y, int64_t n, float unit) {
  RowError sum;
  constexpr int64_t kLanes = 16, kRun = 1024;  // short float sums, added up in double
  for (int64_t start = 0; start < n; start += kRun) {
    const int64_t end = std::min(start + kRun, n);
    float error[kLanes] = {}, norm[kLanes] = {};
    int64_t i = start;
    for (; i + kLanes <= end; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const float value = to_float(x[i + lane]) * unit;
        const float difference = value - y[i + lane] * unit;
        error[lane] += difference * difference;
        norm[lane] += value * value;
      }
    }
    for (; i < end; ++i) {
      const double value = static_cast<double>(to_float(x[i])) * unit;
      const double difference = value - static_cast<double>(y[i]) * unit;
      sum.error += difference * difference;
      sum.norm += value * value;
    }
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      sum.error += error[lane];
      sum.norm += norm[lane];
    }
  }
  return sum;
}

// A power of two that brings values of this size near to 1, so that their squares are in range.
float unit_for(float largest) {
  if (!is_positive_finite(largest)) return 1.0f;  // all zero
  return std::ldexp(1.0f, std::clamp(-std::ilogb(largest), -126, 126));
}

// One row at a time, so that no full copy in float is made.
double relative_error(const Tensor& x, const QuantizedTensor& q, float largest,
                      const Kernels& kernels, Stream stream) {
  const float unit = unit_for(largest);
  const int64_t rows = x.shape()[0], cols = x.shape()[1];
  std::vector<RowError> errors(static_cast<size_t>(rows));
  parallel_for(stream.threads, rows, 16, [&](int64_t begin, int64_t end) {
    std::vector<float> y(static_cast<size_t>(cols));
    for (int64_t r = begin; r < end; ++r) {
      const Matrix row_view{y.data(), DType::kF32, 1, cols, cols};
      kernels.dequantize.launch(dequantize_args(q, r, row_view), {1});
      const std::byte* row = x.bytes().data() + r * cols * (bits_of(x.dtype()) / 8);
      errors[r] = x.dtype() == DType::kF32
                      ? row_error(reinterpret_cast<const float*>(row), y.data(), cols, unit)
                  : x.dtype() == DType::kBF16
                      ? row_error(reinterpret_cast<const bf16*>(row), y.data(), cols, unit)
                      : row_error(reinterpret_cast<const fp16*>(row), y.data(), cols, unit);
    }
  });
  RowError sum;
  for (const RowError& row : errors) {
    sum.error += row.error;
    sum.norm += row.norm;
  }
  return sum.norm > 0 ? std::sqrt(sum.error / sum.norm) : 0.0;
}

// Whether a weight with this largest magnitude stays finite. Next to the largest float a
// power-of-two scale rounds up to what float does not hold.
bool can_hold(const Format& format, float largest) {
  return largest <= (format.scale == ScaleType::kE8M0 ? 448 * 0x1p119f : 0x1.fffffep127f);
}

// Names of weights that hold NaN or Inf. Found while converting, and then looked for everywhere,
// because the layout of the output depends on them.
using Names = std::set<std::string>;

class FileQuantizer {
 public:
  FileQuantizer(const SafetensorsFile& input, const FileQuantizeOptions& options,
                const Kernels& kernels, Stream stream, const ProgressFn& progress)
      : input_(input), options_(options), kernels_(kernels), stream_(stream), progress_(progress) {
    for (const TensorEntry& tensor : input.tensors()) add_entries(tensor);
  }

  FileQuantizeReport run(const fs::path& output) {
    check_not_quantized();
    plan({});
    if (!convert(output)) {  // met a weight that is not finite: rare, so the work starts over
      plan(not_finite());
      HT_ASSERT(convert(output));
    }
    return std::move(report_);
  }

 private:
  // Tensors as they are written, but for what is quantized: those of the file, or their parts.
  void add_entries(const TensorEntry& tensor) {
    const auto cut = options_.cuts.find(tensor.name);
    if (cut == options_.cuts.end()) {
      entries_.push_back(tensor);
      return;
    }
    int64_t first = 0;
    for (size_t i = 0; i < cut->second.size(); ++i) {
      const int64_t width = cut->second[i];
      TensorEntry part{cut_name(tensor.name, i), tensor.dtype, {tensor.shape[0], width}, 0, 0};
      part.end = part.shape.numel() * bits_of(tensor.dtype) / 8;
      if (input_.find(part.name) != nullptr) {
        throw Error(ErrorCode::kInvalidInput, input_.path().string(),
                    "tensor '{}' has the name that a part of '{}' would get", printable(part.name),
                    printable(tensor.name));
      }
      whole_of_[part.name] = {&tensor, first};
      entries_.push_back(std::move(part));
      first += width;
    }
    HT_ASSERT(first == tensor.shape[1]);
  }

  Tensor tensor_of(const TensorEntry& entry) const {
    const auto whole = whole_of_.find(entry.name);
    if (whole == whole_of_.end()) return input_.tensor(entry);
    const auto& [tensor, first] = whole->second;
    return columns_of(input_.tensor(*tensor), first, first + entry.shape[1]);
  }

  void check_not_quantized() const {
    std::vector<const TensorEntry*> entries;
    for (const TensorEntry& tensor : input_.tensors()) entries.push_back(&tensor);
    const auto report = detect_dialect(entries, input_.metadata(), input_.path().string());
    if (report.dialect != Dialect::kNone) {
      throw Error(ErrorCode::kInvalidInput, input_.path().string(),
                  "is quantized already ({}, {}); quantize the original", to_string(report.dialect),
                  printable(report.evidence));
    }
  }

  // Decides what becomes of every tensor.
  void plan(const Names& not_finite) {
    report_ = {};
    report_.file_bytes_before = input_.file_size();
    metadata_.clear();
    notes_.clear();
    bool any_weight = false;
    for (const TensorEntry& tensor : entries_) {
      if (is_weight_matrix(tensor)) {
        any_weight = true;
        std::string reason = reason_to_keep(tensor, options_);
        if (reason.empty() && not_finite.contains(tensor.name))
          reason = "holds NaN, Inf or what would become Inf";
        if (reason.empty()) {
          const WeightChoice how = choice_of(tensor.name);
          metadata_[tensor.name] = {how.format, tensor.shape};
          if (!how.activations) notes_[tensor.name].full_precision = true;
          continue;
        }
        report_.kept.push_back({tensor.name, reason});
      }
      ++report_.copied;
      report_.copied_bytes += tensor.byte_size();
    }
    std::sort(report_.kept.begin(), report_.kept.end(),
              [](const auto& a, const auto& b) { return natural_less(a.name, b.name); });
    find_unmatched_patterns();
    if (metadata_.empty() && !options_.chosen) nothing_to_convert(any_weight);
  }

  WeightChoice choice_of(const std::string& name) const {
    return options_.chosen ? options_.chosen->at(name)
                           : WeightChoice{options_.format, true, std::nullopt};
  }

  void find_unmatched_patterns() {
    for (const auto* patterns : {&options_.include, &options_.exclude}) {
      for (const std::string& pattern : *patterns) {
        const auto matches = [&](const TensorEntry& tensor) {
          return is_weight_matrix(tensor) && glob_match(pattern, tensor.name);
        };
        if (std::none_of(input_.tensors().begin(), input_.tensors().end(), matches)) {
          report_.unmatched_patterns.push_back(pattern);
        }
      }
    }
  }

  [[noreturn]] void nothing_to_convert(bool any_weight) const {
    const std::string file = input_.path().string();
    if (!any_weight) {
      throw Error(ErrorCode::kInvalidInput, file, "has no 2-D tensor called *.weight to quantize");
    }
    throw Error(ErrorCode::kInvalidInput, file,
                "nothing to convert: all {} weights are kept ('{}': {})", report_.kept.size(),
                printable(report_.kept[0].name), report_.kept[0].reason);
  }

  std::vector<TensorSpec> output_tensors() const {
    std::vector<TensorSpec> specs;
    const auto add_scale = [&](const std::string& name, DType dtype, const Shape& shape) {
      if (input_.find(name) != nullptr) {
        throw Error(ErrorCode::kInvalidInput, input_.path().string(),
                    "tensor '{}' has the name that a scale would get", printable(name));
      }
      specs.push_back({name, dtype, shape});
    };
    for (const TensorEntry& tensor : entries_) {
      const auto found = metadata_.find(tensor.name);
      if (found == metadata_.end()) {
        specs.push_back({tensor.name, tensor.dtype, tensor.shape});
        continue;
      }
      const Format& f = found->second.format;
      const int64_t rows = tensor.shape[0], cols = tensor.shape[1];
      specs.push_back({tensor.name, code_dtype(f), {rows, f.code_bytes(cols)}});
      add_scale(scale_name(tensor.name), scale_dtype(f), scale_shape(f, rows, cols));
      if (f.global_scale) add_scale(global_scale_name(tensor.name), DType::kF32, {1});
      if (choice_of(tensor.name).input_scale) {
        add_scale(input_scale_name(tensor.name), DType::kF32, {1});
      }
    }
    return specs;
  }

  // False if a weight turned out not to be finite; then nothing is left behind.
  bool convert(const fs::path& output) {
    Metadata metadata = input_.metadata();
    if (!metadata_.empty()) metadata[kQuantizationKey] = to_json(metadata_);
    if (!notes_.empty()) metadata[kNotesKey] = notes_json(notes_);
    for (const auto& [key, value] : options_.metadata) metadata[key] = value;
    SafetensorsWriter writer(output, output_tensors(), metadata);
    int64_t done = 0, total = 0;
    std::vector<const TensorEntry*> order;
    for (const TensorEntry& tensor : entries_) {
      order.push_back(&tensor);
      total += tensor.byte_size();
    }
    std::sort(order.begin(), order.end(),
              [](const auto* a, const auto* b) { return natural_less(a->name, b->name); });
    for (const TensorEntry* tensor : order) {
      progress_({tensor->name, done, total});
      if (metadata_.contains(tensor->name)) {
        if (!convert_tensor(*tensor, writer)) return false;
      } else {
        copy_tensor(*tensor, writer, {tensor->name, done, total});
      }
      done += tensor->byte_size();
    }
    progress_({"syncing", done, total});
    input_.check_intact();
    writer.finish();
    report_.file_bytes_after = writer.file_size();
    return true;
  }

  bool convert_tensor(const TensorEntry& entry, SafetensorsWriter& writer) {
    const Tensor x = tensor_of(entry);
    const float largest = amax(kernels_, x, stream_);
    if (!can_hold(choice_of(entry.name).format, largest)) return false;
    const WeightChoice how = choice_of(entry.name);
    const QuantizedTensor q = options_.quantizer ? options_.quantizer(entry.name, x, how.format)
                                                 : quantize(kernels_, x, how.format, {}, stream_);
    writer.write(entry.name, q.codes.bytes());
    writer.write(scale_name(entry.name), q.scales.bytes());
    if (how.input_scale) {
      writer.write(input_scale_name(entry.name), std::as_bytes(std::span(&*how.input_scale, 1)));
    }
    if (how.format.global_scale) {
      writer.write(global_scale_name(entry.name), q.global_scale.bytes());
    }
    report_.converted.push_back({entry.name, std::string(how.format.name), entry.shape,
                                 entry.byte_size(), q.byte_size(),
                                 relative_error(x, q, largest, kernels_, stream_)});
    return true;
  }

  void copy_tensor(const TensorEntry& entry, SafetensorsWriter& writer, Progress progress) const {
    Tensor part;  // holds the bytes of one
    if (whole_of_.contains(entry.name)) part = tensor_of(entry);
    auto bytes = whole_of_.contains(entry.name) ? part.bytes() : input_.bytes(entry);
    constexpr size_t kChunk = 16 << 20;  // short enough to cancel
    while (!bytes.empty()) {
      const auto chunk = bytes.first(std::min(kChunk, bytes.size()));
      writer.write(entry.name, chunk);
      bytes = bytes.subspan(chunk.size());
      progress.done += static_cast<int64_t>(chunk.size());
      progress_(progress);
    }
  }

  Names not_finite() const {
    Names names;
    for (const TensorEntry& entry : entries_) {
      const auto chosen = metadata_.find(entry.name);
      if (chosen == metadata_.end()) continue;
      progress_({entry.name, 0, 1});
      const float largest = amax(kernels_, tensor_of(entry), stream_);
      if (!can_hold(chosen->second.format, largest)) names.insert(entry.name);
    }
    return names;
  }

  const SafetensorsFile& input_;
  const FileQuantizeOptions& options_;
  const Kernels& kernels_;
  Stream stream_;
  const ProgressFn& progress_;
  std::vector<TensorEntry> entries_;
  // Of parts: the tensor that they are of, and their first column.
  std::map<std::string, std::pair<const TensorEntry*, int64_t>> whole_of_;
  QuantizationMetadata metadata_;  // what is converted
  ConversionNotes notes_;          // of weights whose inputs stay in high precision
  FileQuantizeReport report_;
};

}  // namespace

int64_t FileQuantizeReport::converted_bytes_before() const {
  int64_t sum = 0;
  for (const Converted& tensor : converted) sum += tensor.bytes_before;
  return sum;
}

int64_t FileQuantizeReport::converted_bytes_after() const {
  int64_t sum = 0;
  for (const Converted& tensor : converted) sum += tensor.bytes_after;
  return sum;
}

double FileQuantizeReport::mean_error() const {
  double sum = 0;
  for (const Converted& tensor : converted) sum += tensor.relative_error;
  return converted.empty() ? 0 : sum / static_cast<double>(converted.size());
}

const FileQuantizeReport::Converted* FileQuantizeReport::worst() const {
  const auto found = std::max_element(
      converted.begin(), converted.end(),
      [](const auto& a, const auto& b) { return a.relative_error < b.relative_error; });
  return found == converted.end() ? nullptr : &*found;
}

FileQuantizeReport quantize_file(const fs::path& input, const fs::path& output,
                                 const FileQuantizeOptions& options, const Kernels& kernels,
                                 Stream stream, const ProgressFn& progress) {
  std::error_code ignored;
  if (fs::equivalent(input, output, ignored)) {
    throw Error(ErrorCode::kUsage, output.string(), "the output is the input; name another file");
  }
  const SafetensorsFile file(input);
  return FileQuantizer(file, options, kernels, stream, progress).run(output);
}

}  // namespace halftone
