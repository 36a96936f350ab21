#include "halftone/models/lora.h"

#include <algorithm>
#include <cmath>
#include <optional>

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

struct Found {
  std::string path;  // in the table of targets
  std::string down_key, up_key;
  Tensor down, up;
  std::optional<double> alpha;
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

// Infinite where a value is no number.
double largest(const Tensor& x) {
  double most = 0;
  for (const float v : x.as<float>()) {
    most = std::max(most, std::isfinite(v) ? std::abs(double{v}) : HUGE_VAL);
  }
  return most;
}

// The tensors of a file by module, each path as the file has it.
class ModuleReader {
 public:
  ModuleReader(const SafetensorsFile& file, const LoraTargets& targets, std::string where)
      : file_(file), paths_(targets), where_(std::move(where)) {
    for (const TensorEntry& entry : file.tensors()) read(entry);
    for (const auto& [name, module] : modules_) {
      if (module.down.defined() && module.up.defined()) continue;
      throw Error(ErrorCode::kInvalidInput, where_, "module '{}' has no {}", printable(name),
                  module.down.defined() ? "lora_B (lora_up)" : "lora_A (lora_down)");
    }
  }

  const std::map<std::string, Found>& modules() const { return modules_; }
  std::vector<std::string>& unmatched() { return unmatched_; }

  [[noreturn]] void fail(const std::string& key, const std::string& reason) const {
    throw Error(ErrorCode::kInvalidInput, where_, "tensor '{}' {}", printable(key), reason);
  }

 private:
  void read(const TensorEntry& entry) {
    const auto key = split_lora_key(entry.name);
    if (!key && !is_for_another_component(entry.name)) refuse(entry.name);
    const std::string known = key ? paths_.find(key->path) : "";
    if (known.empty()) {
      unmatched_.push_back(entry.name);
      return;
    }
    if (!is_high_precision(entry.dtype)) fail(entry.name, "is not F32, BF16 or F16");
    Tensor values = Tensor::empty(DType::kF32, entry.shape);
    const auto floats = float_values(file_.tensor(entry));
    std::copy(floats.begin(), floats.end(), values.mutable_as<float>().begin());
    if (!std::isfinite(largest(values))) fail(entry.name, "holds NaN or Inf");
    Found& module = modules_[key->path];
    module.path = known;
    if (key->part == LoraPart::kAlpha) {
      if (values.numel() != 1) fail(entry.name, "is not one number");
      module.alpha = values.as<float>()[0];
      return;
    }
    if (values.shape().rank() != 2) fail(entry.name, "is not a matrix");
    const bool down = key->part == LoraPart::kDown;
    std::string& name = down ? module.down_key : module.up_key;
    if (!name.empty()) fail(entry.name, fmt::format("is '{}' a second time", printable(name)));
    name = entry.name;
    (down ? module.down : module.up) = values;
  }

  // To leave such a tensor out would change what the others stand for.
  [[noreturn]] void refuse(const std::string& name) const {
    const std::string_view kind = other_adapter_kind(name);
    throw Error(ErrorCode::kUnsupported, where_, "tensor '{}' is {}, which is not supported",
                printable(name),
                kind.empty() ? "no part of a low-rank adapter"
                             : fmt::format("part of an adapter of another kind: {}", kind));
  }

  const SafetensorsFile& file_;
  const LoraPaths paths_;
  const std::string where_;
  std::map<std::string, Found> modules_;
  std::vector<std::string> unmatched_;
};

}  // namespace

LoraAdapter LoraAdapter::load(const std::filesystem::path& path, const LoraTargets& targets) {
  const fs::path file_path = file_of(path);
  const SafetensorsFile file(file_path);
  const std::string where = file_path.string();
  const Settings settings(path, file, where);
  ModuleReader reader(file, targets, where);
  LoraAdapter adapter;
  adapter.report_.file = where;
  const auto said = [&](const char* key) {
    const auto found = file.metadata().find(key);
    return found == file.metadata().end() ? std::string() : found->second;
  };
  adapter.report_.base = said("halftone.base");
  adapter.report_.base_precision = said("halftone.base_precision");
  adapter.report_.unmatched = std::move(reader.unmatched());
  for (const auto& [name, module] : reader.modules()) {
    const int64_t rank = module.down.shape()[0];
    if (rank < 1) reader.fail(module.down_key, "is of rank 0");
    if (module.alpha && settings.defined()) {
      throw Error(ErrorCode::kInvalidInput, where,
                  "module '{}' has an alpha, and PEFT's settings have another", printable(name));
    }
    const double scale =
        module.alpha ? *module.alpha / static_cast<double>(rank) : settings.scale(name, rank);
    for (const LoraTarget& target : targets.at(module.path)) {
      const int64_t out = target.shape[0];
      if (module.down.shape() != Shape{rank, target.shape[1]}) {
        reader.fail(module.down_key, fmt::format("is {} instead of [rank, {}]", module.down.shape(),
                                                 target.shape[1]));
      }
      const Shape expected{target.rows.in_file(out), rank};
      if (!target.rows.fits(out) || module.up.shape() != expected) {
        reader.fail(module.up_key, fmt::format("is {} instead of {}", module.up.shape(), expected));
      }
      // Some files hold q, k and v twice, apart and as one: the first one counts.
      if (adapter.modules_.contains(target.weight)) {
        adapter.report_.unmatched.push_back(
            fmt::format("{} (a second time for {})", module.up_key, target.weight));
        continue;
      }
      const Tensor up = rows_times(module.up, out, target.rows, scale);
      adapter.add(name, target.weight, {module.down, up});
    }
  }
  if (adapter.modules_.empty()) {
    throw Error(ErrorCode::kInvalidInput, where, "no tensor matches a linear of the model{}",
                adapter.report_.unmatched.empty()
                    ? ""
                    : fmt::format(": '{}', ...", printable(adapter.report_.unmatched[0])));
  }
  adapter.report_.matched = static_cast<int>(adapter.modules_.size());
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
