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

// How much each module counts, where its file has no alphas of its own. `encoder` is a text
// encoder's folder; empty: of the denoiser.
class Settings {
 public:
  Settings(const fs::path& given, const SafetensorsFile& file, const std::string& encoder) {
    const std::string where = file.path().string();
    if (!encoder.empty()) prefix_ = encoder + ".";
    const fs::path path = file_of(given), config = path.parent_path() / kPeftConfig;
    if (path.filename() == kPeftFile && (path != given || path_exists(config))) {
      if (!encoder.empty()) return;  // one network's
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
      if (encoder.empty() && key.starts_with("unet.")) prefix_ = "unet.";
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
  AdaptedPart part;
  std::string path;  // in the part's table of targets
  const TensorEntry *down = nullptr, *up = nullptr, *alpha = nullptr;
};

// Numbers of a linear and of a convolution of single pixels are the same.
bool are_alike(const Shape& a, const Shape& b) {
  const auto matrix = [](const Shape& s) {
    return s.rank() == 4 && s[2] == 1 && s[3] == 1 ? Shape{s[0], s[1]} : s;
  };
  return matrix(a) == matrix(b);
}

// A of a target, and B as it is stored for one.
Shape down_shape(const Shape& target, int64_t rank) {
  if (target.rank() == 2) return {rank, target[1]};
  return {rank, target[1], target[2], target[3]};
}
Shape up_shape(const Shape& target, int64_t rows, int64_t rank) {
  return target.rank() == 2 ? Shape{rows, rank} : Shape{rows, rank, 1, 1};
}
// "[rank, 640, 3, 3]"
std::string down_text(const Shape& target) {
  std::string text = "[rank";
  for (int i = 1; i < target.rank(); ++i) text += fmt::format(", {}", target[i]);
  return text + "]";
}

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
  const int64_t rank = down.shape()[0], in = down.numel() / rank, out = up.shape()[0];
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

// What one module of a file does to one weight.
struct Change {
  std::string module;
  AdaptedPart part;
  const TensorEntry *down, *up;
  const LoraTarget* target;
  double scale;
};

// A file against what a model has to be adapted: everything that can be wrong with it is wrong
// here, but for the numbers in its matrices, which are not read.
class AdapterFile {
 public:
  AdapterFile(const fs::path& path, const AdaptedModel& model)
      : file_(file_of(path)), where_(file_.path().string()) {
    add_part(
        {kDenoiserPart, model.denoiser, denoiser_paths(model.denoiser), Settings(path, file_, "")});
    for (size_t i = 0; i < model.encoders.size(); ++i) {
      const AdaptedModel::Encoder& encoder = model.encoders[i];
      add_part({i, encoder.targets, encoder_paths(encoder), Settings(path, file_, encoder.folder)});
    }
    for (const TensorEntry& entry : file_.tensors()) read(entry);
    for (const auto& [name, module] : modules_) {
      if (module.down != nullptr && module.up != nullptr) continue;
      throw Error(ErrorCode::kInvalidInput, where_, "module '{}' has no {}", printable(name),
                  module.down != nullptr ? "lora_B (lora_up)" : "lora_A (lora_down)");
    }
    for (const auto& [name, module] : modules_) match(name, module);
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
    const Part* part = key ? part_of(key->path) : nullptr;
    if (!key && !is_for_applied_encoder(entry.name) && is_for_another_component(entry.name)) {
      unmatched_.push_back(entry.name);
      return;
    }
    if (!key) {
      check_does_nothing(file_, entry, where_);
      unmatched_.push_back(entry.name + " (all zeros)");
      return;
    }
    if (part == nullptr) {
      unmatched_.push_back(entry.name);
      return;
    }
    if (!is_high_precision(entry.dtype)) fail(entry, "is not F32, BF16 or F16");
    Found& module = modules_[key->path];
    module.part = part->which;
    module.path = part->paths.find(key->path);
    if (key->part == LoraPart::kAlpha) {
      if (entry.shape.numel() != 1) fail(entry, "is not one number");
      module.alpha = &entry;
      return;
    }
    if (entry.shape.rank() != 2 && entry.shape.rank() != 4) {
      fail(entry, "is neither a matrix nor a convolution's kernel");
    }
    const TensorEntry*& half = key->part == LoraPart::kDown ? module.down : module.up;
    if (half != nullptr) fail(entry, fmt::format("is '{}' a second time", printable(half->name)));
    half = &entry;
  }

  void match(const std::string& name, const Found& module) {
    const Part& part = part_at(module.part);
    const std::vector<LoraTarget>& targets = part.targets.at(module.path);
    const Settings& settings = part.settings;
    const Shape &down = module.down->shape, &up = module.up->shape;
    const int64_t rank = down[0];
    if (rank < 1) fail(*module.down, "is of rank 0");
    if (module.alpha != nullptr && settings.defined()) {
      throw Error(ErrorCode::kInvalidInput, where_,
                  "module '{}' has an alpha, and PEFT's settings have another", printable(name));
    }
    const double scale = module.alpha != nullptr ? double{values(*module.alpha).as<float>()[0]} /
                                                       static_cast<double>(rank)
                                                 : settings.scale(name, rank);
    for (const LoraTarget& target : targets) {
      const int64_t out = target.shape[0];
      if (!are_alike(down, down_shape(target.shape, rank))) {
        const int64_t in = target.shape[1];
        const bool wider = down.rank() == 2 && down[1] > in && down[1] % in == 0;
        fail(*module.down, fmt::format("is {} instead of {}{}", down, down_text(target.shape),
                                       wider ? "; adapters for control, which widen a model's "
                                               "input, are not supported"
                                             : ""));
      }
      const Shape expected = up_shape(target.shape, target.rows.in_file(out), rank);
      if (!target.rows.fits(out) || !are_alike(up, expected)) {
        fail(*module.up, fmt::format("is {} instead of {}", up, expected));
      }
      // Some files hold q, k and v twice, apart and as one: the first one counts.
      if (!taken_.insert({module.part, target.weight}).second) {
        unmatched_.push_back(
            fmt::format("{} (a second time for {})", module.up->name, target.weight));
        continue;
      }
      changes_.push_back({name, module.part, module.down, module.up, &target, scale});
    }
  }

  struct Part {
    AdaptedPart which;
    const LoraTargets& targets;
    LoraPaths paths;
    Settings settings;
  };
  void add_part(Part part) { parts_.push_back(std::move(part)); }
  const Part& part_at(AdaptedPart which) const {
    return *std::ranges::find_if(parts_, [&](const Part& part) { return part.which == which; });
  }
  // Which a module of this path is of; null: none.
  const Part* part_of(const std::string& path) const {
    const auto found = std::ranges::find_if(
        parts_, [&](const Part& part) { return !part.paths.find(path).empty(); });
    return found == parts_.end() ? nullptr : &*found;
  }
  // Whether a tensor that is no part of a low-rank product says something of an encoder whose
  // adapters are applied.
  bool is_for_applied_encoder(const std::string& name) const {
    return std::ranges::any_of(parts_, [&](const Part& part) { return part.paths.leads(name); });
  }

  const SafetensorsFile file_;
  const std::string where_;
  std::vector<Part> parts_;
  std::map<std::string, Found> modules_;                 // each path as the file has it
  std::set<std::pair<AdaptedPart, std::string>> taken_;  // weights
  std::vector<Change> changes_;
  std::vector<std::string> unmatched_;
};

}  // namespace

LoraReport LoraAdapter::examine(const fs::path& path, const AdaptedModel& model) {
  return AdapterFile(path, model).report();
}

LoraAdapter LoraAdapter::load(const fs::path& path, const AdaptedModel& model) {
  const AdapterFile file(path, model);
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
    Module module = target.rows.parts > 1 ? without_idle_ranks(down, rows) : Module{down, rows};
    const int64_t rank = module.down.shape()[0];
    module.down = module.down.reshape(down_shape(target.shape, rank));
    module.up = module.up.reshape(up_shape(target.shape, target.shape[0], rank));
    adapter.add(change.module, change.part, target.weight, std::move(module));
  }
  std::string modules;
  const auto hash_all = [&](const Changes& changes) {
    for (const auto& [weight, module] : changes.modules) {
      modules += weight;
      for (const Tensor* factor : {&module.down, &module.up}) {
        const auto bytes = factor->bytes();
        modules += " " + text_hash({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
      }
    }
  };
  hash_all(adapter.denoiser_);
  for (const auto& [encoder, changes] : adapter.encoders_) {
    modules += fmt::format(" encoder {} ", encoder);
    hash_all(changes);
  }
  adapter.report_.hash = text_hash(modules);
  return adapter;
}

const LoraAdapter::Changes& LoraAdapter::changes(AdaptedPart part) const {
  static const Changes kNone;
  if (!part) return denoiser_;
  const auto found = encoders_.find(*part);
  return found == encoders_.end() ? kNone : found->second;
}

void LoraAdapter::add(const std::string& name, AdaptedPart part, const std::string& weight,
                      Module module) {
  const int64_t rank = module.down.shape()[0];
  const double down = largest(module.down), up = largest(module.up);
  // Each of the three is computed on the way.
  for (const double value : {down, up, down * up * static_cast<double>(rank)}) {
    if (value <= largest_value_) continue;
    largest_value_ = value;
    largest_module_ = name;
  }
  Changes& changes = part ? encoders_[*part] : denoiser_;
  changes.rank = std::max(changes.rank, rank);
  changes.modules.emplace(weight, std::move(module));
}

void LoraAdapter::check_strength(float strength) const {
  if (std::max(1.0, std::abs(double{strength})) * largest_value_ <= kLargestValue) return;
  throw Error(ErrorCode::kInvalidInput, report_.file,
              "module '{}' has values of up to {:.3g}, which at strength {} is beyond {:g}: is the "
              "adapter damaged, or the strength a mistake?",
              printable(largest_module_), largest_value_, strength, kLargestValue);
}

LoraSites LoraAdapter::sites(AdaptedPart part) const {
  LoraSites sites;
  sites.rank = rank(part);
  for (const auto& [weight, module] : modules(part)) sites.weights.insert(weight);
  return sites;
}

Weights LoraAdapter::weights(size_t slot, AdaptedPart part) const {
  Weights weights;
  const int64_t all = rank(part);
  for (const auto& [weight, module] : modules(part)) {
    const int64_t rank = module.down.shape()[0], out = module.up.shape()[0];
    Tensor down = module.down, up = module.up;
    if (rank < all) {  // filled up with zeros
      down = Tensor::zeros(DType::kF32, down_shape(module.down.shape(), all));
      up = Tensor::zeros(DType::kF32, up_shape(module.down.shape(), out, all));
      const auto from_down = module.down.as<float>(), from_up = module.up.as<float>();
      std::copy(from_down.begin(), from_down.end(), down.mutable_as<float>().begin());
      for (int64_t r = 0; r < out; ++r) {
        std::copy_n(from_up.begin() + r * rank, rank, up.mutable_as<float>().begin() + r * all);
      }
    }
    weights.emplace(lora_down_name(weight, slot), down);
    weights.emplace(lora_up_name(weight, slot), up);
  }
  return weights;
}

Tensor LoraAdapter::strengths(std::span<const float> per_row, AdaptedPart part) const {
  const int64_t all = rank(part);
  Tensor out = Tensor::empty(DType::kF32, {static_cast<int64_t>(per_row.size()), all});
  auto values = out.mutable_as<float>().begin();
  for (const float strength : per_row) values = std::fill_n(values, all, strength);
  return out;
}

}  // namespace halftone
