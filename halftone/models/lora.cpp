#include "halftone/models/lora.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/io/json.h"
#include "halftone/io/model_hash.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/models/float_values.h"
#include "halftone/models/lora_keys.h"
#include "halftone/models/peft_settings.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

// What goes beyond this is no adapter, and overflows in what follows.
constexpr double kLargestValue = 1e12;

constexpr const char* kPeftFile = "adapter_model.safetensors";
constexpr const char* kPeftConfig = "adapter_config.json";
constexpr const char* kDiffusersFile = "pytorch_lora_weights.safetensors";

// The file of an adapter that may be given as the folder that PEFT or diffusers saved it in.
fs::path file_of(const fs::path& path) {
  if (!is_folder(path)) return path;
  for (const char* name : {kPeftFile, kDiffusersFile}) {
    if (path_exists(path / name)) return path / name;
  }
  throw Error(ErrorCode::kNotFound, path.string(), "holds neither {} nor {}", kPeftFile,
              kDiffusersFile);
}

// How much each module counts, where its file has no alphas of its own.
class Settings {
 public:
  Settings(const fs::path& given, const SafetensorsFile& file, const std::string& where) {
    const fs::path path = file_of(given), config = path.parent_path() / kPeftConfig;
    if (path.filename() == kPeftFile && (path != given || path_exists(config))) {
      settings_ = PeftSettings::parse(read_json_file(config), config.string());
      prefix_ = "base_model.model.";
      return;
    }
    const auto found = file.metadata().find("lora_adapter_metadata");
    if (found == file.metadata().end()) return;
    // One object for all components of a pipeline: {"transformer.r": 8, "text_encoder.r": 4}.
    const nlohmann::json json = parse_json(found->second, where);
    if (!json.is_object()) {
      throw Error(ErrorCode::kInvalidInput, where, "lora_adapter_metadata is not an object");
    }
    nlohmann::json own = nlohmann::json::object();
    for (const auto& [key, value] : json.items()) {
      if (key.starts_with("unet.")) prefix_ = "unet.";
    }
    for (const auto& [key, value] : json.items()) {
      if (key.starts_with(prefix_)) own[key.substr(prefix_.size())] = value;
    }
    if (!own.empty())
      settings_ = PeftSettings::parse(own, where, prefix_.substr(0, prefix_.size() - 1));
  }

  bool defined() const { return settings_.has_value(); }
  double scale(std::string_view path, int64_t rank) const {
    if (!settings_) return 1;  // alpha is the rank
    if (path.starts_with(prefix_)) path.remove_prefix(prefix_.size());
    return settings_->scale(std::string(path), rank);
  }

 private:
  std::optional<PeftSettings> settings_;
  std::string prefix_ = "transformer.";  // of modules, and of settings in the metadata
};

// A module of a file: where its tensors are.
struct Found {
  std::string path;  // in the table of targets
  const TensorEntry *down = nullptr, *up = nullptr, *alpha = nullptr;
};

// The rows of B that are for a target with this many.
Tensor rows_times(const Tensor& up, int64_t rows, const StoredRows& stored, double factor) {
  const int64_t rank = up.shape()[1];
  Tensor result = Tensor::empty(DType::kF32, {rows, rank});
  auto out = result.mutable_as<float>().begin();
  for (const auto& range : stored.ranges(rows)) {
    for (int64_t i = range.begin * rank; i < range.end * rank; ++i) {
      *out++ = static_cast<float>(double{up.as<float>()[i]} * factor);
    }
  }
  return result;
}

// Tools that train q, k and v apart and store them as one leave zeros in B where a rank is for
// another of them: such a rank is dropped, one being the least.
LoraAdapter::Module without_idle_ranks(const Tensor& down, const Tensor& up) {
  const int64_t rank = down.shape()[0], in = down.shape()[1], out = up.shape()[0];
  const auto a = down.as<float>(), b = up.as<float>();
  std::vector<int64_t> used;
  for (int64_t k = 0; k < rank; ++k) {
    int64_t row = 0;
    while (row < out && b[row * rank + k] == 0) ++row;
    if (row < out) used.push_back(k);
  }
  if (used.empty()) used.push_back(0);
  const auto kept = static_cast<int64_t>(used.size());
  if (kept == rank) return {down, up};
  LoraAdapter::Module less = {Tensor::empty(DType::kF32, {kept, in}),
                              Tensor::empty(DType::kF32, {out, kept})};
  const auto to_a = less.down.mutable_as<float>(), to_b = less.up.mutable_as<float>();
  for (int64_t k = 0; k < kept; ++k) {
    const int64_t from = used[static_cast<size_t>(k)];
    std::copy_n(a.begin() + from * in, in, to_a.begin() + k * in);
    for (int64_t row = 0; row < out; ++row) to_b[row * kept + k] = b[row * rank + from];
  }
  return less;
}

// Infinite where a value is no number.
double largest(const Tensor& x) {
  double most = 0;
  for (const float v : x.as<float>()) {
    most = std::max(most, std::isfinite(v) ? std::abs(double{v}) : HUGE_VAL);
  }
  return most;
}

// What one module of a file does to one linear.
struct Change {
  std::string module;
  const TensorEntry *down, *up;
  const LoraTarget* target;
  double scale;
};

// A file against what a model has to be adapted: everything that can be wrong with it is wrong
// here, but for the numbers in its matrices, which are not read.
class AdapterFile {
 public:
  AdapterFile(const fs::path& path, const LoraTargets& targets)
      : file_(file_of(path)),
        where_(file_.path().string()),
        settings_(path, file_, where_),
        paths_(targets) {
    for (const TensorEntry& entry : file_.tensors()) read(entry);
    for (const auto& [name, module] : modules_) {
      if (module.down != nullptr && module.up != nullptr) continue;
      throw Error(ErrorCode::kInvalidInput, where_, "module '{}' has no {}", printable(name),
                  module.down != nullptr ? "lora_B (lora_up)" : "lora_A (lora_down)");
    }
    for (const auto& [name, module] : modules_) match(name, module, targets.at(module.path));
    if (!changes_.empty()) return;
    throw Error(ErrorCode::kInvalidInput, where_, "no tensor matches a linear of the model{}",
                unmatched_.empty() ? "" : fmt::format(": '{}', ...", printable(unmatched_[0])));
  }

  const std::vector<Change>& changes() const { return changes_; }

  LoraReport report() const {
    LoraReport report;
    report.file = where_;
    const auto said = [&](const char* key) {
      const auto found = file_.metadata().find(key);
      return found == file_.metadata().end() ? std::string() : found->second;
    };
    report.base = said("halftone.base");
    report.base_precision = said("halftone.base_precision");
    report.matched = static_cast<int>(changes_.size());
    report.unmatched = unmatched_;
    return report;
  }

  // F32, of the same shape.
  Tensor values(const TensorEntry& entry) const {
    Tensor values = Tensor::empty(DType::kF32, entry.shape);
    const auto floats = float_values(file_.tensor(entry));
    std::copy(floats.begin(), floats.end(), values.mutable_as<float>().begin());
    if (!std::isfinite(largest(values))) fail(entry, "holds NaN or Inf");
    return values;
  }

 private:
  [[noreturn]] void fail(const TensorEntry& entry, const std::string& reason) const {
    throw Error(ErrorCode::kInvalidInput, where_, "tensor '{}' {}", printable(entry.name), reason);
  }

  void read(const TensorEntry& entry) {
    const auto key = split_lora_key(entry.name);
    if (!key && !is_for_another_component(entry.name)) {
      check_does_nothing(file_, entry, where_);
      unmatched_.push_back(entry.name + " (all zeros)");
      return;
    }
    const std::string known = key ? paths_.find(key->path) : "";
    if (known.empty()) {
      const Shape& shape = entry.shape;
      if (key && shape.rank() == 4 && !is_for_another_component(entry.name)) {
        throw Error(ErrorCode::kUnsupported, where_,
                    "tensor '{}' adapts a convolution (LoCon), which is not supported",
                    printable(entry.name));
      }
      unmatched_.push_back(entry.name);
      return;
    }
    if (!is_high_precision(entry.dtype)) fail(entry, "is not F32, BF16 or F16");
    Found& module = modules_[key->path];
    module.path = known;
    if (key->part == LoraPart::kAlpha) {
      if (entry.shape.numel() != 1) fail(entry, "is not one number");
      module.alpha = &entry;
      return;
    }
    if (entry.shape.rank() != 2) fail(entry, "is not a matrix");
    const TensorEntry*& half = key->part == LoraPart::kDown ? module.down : module.up;
    if (half != nullptr) fail(entry, fmt::format("is '{}' a second time", printable(half->name)));
    half = &entry;
  }

  void match(const std::string& name, const Found& module, const std::vector<LoraTarget>& targets) {
    const Shape &down = module.down->shape, &up = module.up->shape;
    const int64_t rank = down[0];
    if (rank < 1) fail(*module.down, "is of rank 0");
    if (module.alpha != nullptr && settings_.defined()) {
      throw Error(ErrorCode::kInvalidInput, where_,
                  "module '{}' has an alpha, and PEFT's settings have another", printable(name));
    }
    const double scale = module.alpha != nullptr ? double{values(*module.alpha).as<float>()[0]} /
                                                       static_cast<double>(rank)
                                                 : settings_.scale(name, rank);
    for (const LoraTarget& target : targets) {
      const int64_t out = target.shape[0];
      if (down != Shape{rank, target.shape[1]}) {
        const int64_t in = target.shape[1];
        const bool wider = down[1] > in && down[1] % in == 0;
        fail(*module.down, fmt::format("is {} instead of [rank, {}]{}", down, in,
                                       wider ? "; adapters for control, which widen a model's "
                                               "input, are not supported"
                                             : ""));
      }
      const Shape expected{target.rows.in_file(out), rank};
      if (!target.rows.fits(out) || up != expected) {
        fail(*module.up, fmt::format("is {} instead of {}", up, expected));
      }
      // Some files hold q, k and v twice, apart and as one: the first one counts.
      if (!taken_.insert(target.weight).second) {
        unmatched_.push_back(
            fmt::format("{} (a second time for {})", module.up->name, target.weight));
        continue;
      }
      changes_.push_back({name, module.down, module.up, &target, scale});
    }
  }

  const SafetensorsFile file_;
  const std::string where_;
  const Settings settings_;
  const LoraPaths paths_;
  std::map<std::string, Found> modules_;  // each path as the file has it
  std::set<std::string> taken_;           // weights
  std::vector<Change> changes_;
  std::vector<std::string> unmatched_;
};

}  // namespace

LoraReport LoraAdapter::examine(const fs::path& path, const LoraTargets& targets) {
  return AdapterFile(path, targets).report();
}

LoraAdapter LoraAdapter::load(const fs::path& path, const LoraTargets& targets) {
  const AdapterFile file(path, targets);
  LoraAdapter adapter;
  adapter.report_ = file.report();
  const TensorEntry* last = nullptr;
  Tensor down, up;
  for (const Change& change : file.changes()) {
    if (change.down != last) {  // A serves all linears of a module
      down = file.values(*change.down);
      up = file.values(*change.up);
      last = change.down;
    }
    const LoraTarget& target = *change.target;
    const Tensor rows = rows_times(up, target.shape[0], target.rows, change.scale);
    adapter.add(change.module, target.weight,
                target.rows.parts > 1 ? without_idle_ranks(down, rows) : Module{down, rows});
  }
  std::string modules;
  for (const auto& [weight, module] : adapter.modules_) {
    modules += weight;
    for (const Tensor* factor : {&module.down, &module.up}) {
      const auto bytes = factor->bytes();
      modules += " " + text_hash({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    }
  }
  adapter.report_.hash = text_hash(modules);
  return adapter;
}

void LoraAdapter::add(const std::string& name, const std::string& weight, Module module) {
  const int64_t rank = module.down.shape()[0];
  const double down = largest(module.down), up = largest(module.up);
  // Each of the three is computed on the way.
  for (const double value : {down, up, down * up * static_cast<double>(rank)}) {
    if (value <= largest_value_) continue;
    largest_value_ = value;
    largest_module_ = name;
  }
  rank_ = std::max(rank_, rank);
  modules_.emplace(weight, std::move(module));
}

void LoraAdapter::check_strength(float strength) const {
  if (std::max(1.0, std::abs(double{strength})) * largest_value_ <= kLargestValue) return;
  throw Error(ErrorCode::kInvalidInput, report_.file,
              "module '{}' has values of up to {:.3g}, which at strength {} is beyond {:g}: is the "
              "adapter damaged, or the strength a mistake?",
              printable(largest_module_), largest_value_, strength, kLargestValue);
}

LoraSites LoraAdapter::sites() const {
  LoraSites sites;
  sites.rank = rank_;
  for (const auto& [weight, module] : modules_) sites.weights.insert(weight);
  return sites;
}

Weights LoraAdapter::weights(size_t slot) const {
  Weights weights;
  for (const auto& [weight, module] : modules_) {
    const int64_t rank = module.down.shape()[0], in = module.down.shape()[1];
    const int64_t out = module.up.shape()[0];
    Tensor down = module.down, up = module.up;
    if (rank < rank_) {  // filled up with zeros
      down = Tensor::zeros(DType::kF32, {rank_, in});
      up = Tensor::zeros(DType::kF32, {out, rank_});
      const auto from_down = module.down.as<float>(), from_up = module.up.as<float>();
      std::copy(from_down.begin(), from_down.end(), down.mutable_as<float>().begin());
      for (int64_t r = 0; r < out; ++r) {
        std::copy_n(from_up.begin() + r * rank, rank, up.mutable_as<float>().begin() + r * rank_);
      }
    }
    weights.emplace(lora_down_name(weight, slot), down);
    weights.emplace(lora_up_name(weight, slot), up);
  }
  return weights;
}

Tensor LoraAdapter::strengths(std::span<const float> per_row) const {
  Tensor out = Tensor::empty(DType::kF32, {static_cast<int64_t>(per_row.size()), rank_});
  auto values = out.mutable_as<float>().begin();
  for (const float strength : per_row) values = std::fill_n(values, rank_, strength);
  return out;
}

}  // namespace halftone
