#include "halftone/models/lora.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "halftone/base/error.h"
#include "halftone/io/json.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/numerics/bf16.h"

namespace halftone {
namespace {

enum class Part { kDown, kUp, kAlpha };

struct Key {
  std::string path;
  Part part;
};

// What a key is called after its prefix, and which part it is; nothing for other keys.
std::optional<Key> split_suffix(std::string_view name) {
  constexpr std::pair<std::string_view, Part> kSuffixes[] = {
      {".lora_A.weight", Part::kDown},
      {".lora_B.weight", Part::kUp},
      {".lora_A.default.weight", Part::kDown},
      {".lora_B.default.weight", Part::kUp},
      {".lora_down.weight", Part::kDown},
      {".lora_up.weight", Part::kUp},
      {".lora.down.weight", Part::kDown},
      {".lora.up.weight", Part::kUp},
      {".alpha", Part::kAlpha}};
  for (const auto& [suffix, part] : kSuffixes) {
    if (name.ends_with(suffix)) {
      return Key{std::string(name.substr(0, name.size() - suffix.size())), part};
    }
  }
  return std::nullopt;
}

// A path as the file has it to the path in the table of targets; empty where there is none. Names
// with underscores instead of dots cannot be split, only looked up.
class PathTable {
 public:
  explicit PathTable(const LoraTargets& targets) : targets_(targets) {
    for (const auto& [path, list] : targets) {
      std::string flat = path;
      for (char& c : flat) c = c == '.' ? '_' : c;
      flat_.emplace(std::move(flat), path);
    }
  }

  std::string find(std::string_view path) const {
    for (const std::string_view prefix : {"lora_unet_", "lora_transformer_", "lycoris_"}) {
      if (!path.starts_with(prefix)) continue;
      const auto found = flat_.find(path.substr(prefix.size()));
      return found == flat_.end() ? "" : found->second;
    }
    for (const std::string_view prefix :
         {"base_model.model.", "transformer.", "model.diffusion_model.", "diffusion_model."}) {
      if (path.starts_with(prefix)) path.remove_prefix(prefix.size());
    }
    return targets_.contains(std::string(path)) ? std::string(path) : "";
  }

 private:
  const LoraTargets& targets_;
  std::map<std::string, std::string, std::less<>> flat_;
};

Tensor as_float(const Tensor& x) {
  Tensor out = Tensor::empty(DType::kF32, x.shape());
  auto values = out.mutable_as<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = x.dtype() == DType::kF32    ? x.as<float>()[i]
                : x.dtype() == DType::kBF16 ? to_float(x.as<bf16>()[i])
                                            : to_float(x.as<fp16>()[i]);
  }
  return out;
}

// alpha by module where PEFT's settings are in the file's metadata; otherwise alpha is the rank.
class PeftSettings {
 public:
  PeftSettings(const Metadata& metadata, const std::string& where) {
    const auto found = metadata.find("lora_adapter_metadata");
    if (found == metadata.end()) return;
    const nlohmann::json json = parse_json(found->second, where);
    if (!json.is_object()) return;
    for (const auto& [key, value] : json.items()) {
      const std::string name = key.substr(key.rfind('.') + 1);
      if (name == "lora_alpha" && value.is_number()) alpha_ = value.get<double>();
      if (name == "alpha_pattern" && value.is_object()) patterns_ = value;
      if (name == "use_rslora" && value == nlohmann::json(true)) root_ = true;
      if (name == "use_dora" && value == nlohmann::json(true)) {
        throw Error(ErrorCode::kUnsupported, where, "is a DoRA adapter, which is not supported");
      }
    }
  }

  double scale(const std::string& path, std::optional<double> own_alpha, int64_t rank) const {
    double alpha = own_alpha.value_or(alpha_.value_or(static_cast<double>(rank)));
    if (!own_alpha) {
      for (const auto& [pattern, value] : patterns_.items()) {
        const bool same = path == pattern || path.ends_with("." + pattern);
        if (same && value.is_number()) alpha = value.get<double>();
      }
    }
    return alpha / (root_ ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank));
  }

 private:
  std::optional<double> alpha_;
  nlohmann::json patterns_ = nlohmann::json::object();
  bool root_ = false;
};

struct Found {
  std::string path, down_key, up_key;
  Tensor down, up;
  std::optional<double> alpha;
};

Tensor rows_times(const Tensor& x, int64_t begin, int64_t end, double factor) {
  Tensor out = Tensor::empty(DType::kF32, {end - begin, x.shape()[1]});
  const auto from = x.as<float>().subspan(static_cast<size_t>(begin * x.shape()[1]));
  for (int64_t i = 0; i < out.numel(); ++i) {
    out.mutable_as<float>()[i] = static_cast<float>(double{from[i]} * factor);
  }
  return out;
}

bool all_finite(const Tensor& x) {
  for (const float v : x.as<float>()) {
    if (!std::isfinite(v)) return false;
  }
  return true;
}

}  // namespace

LoraAdapter LoraAdapter::load(const std::filesystem::path& path, const LoraTargets& targets) {
  const SafetensorsFile file(path);
  const std::string where = path.string();
  const PathTable table(targets);
  const PeftSettings settings(file.metadata(), where);
  const auto fail = [&](const std::string& key, const std::string& reason) {
    throw Error(ErrorCode::kInvalidInput, where, "tensor '{}' {}", printable(key), reason);
  };
  LoraAdapter adapter;
  adapter.report_.file = where;
  std::map<std::string, Found> found;  // by the path as the file has it
  for (const TensorEntry& entry : file.tensors()) {
    const auto key = split_suffix(entry.name);
    const std::string known = key ? table.find(key->path) : "";
    if (known.empty()) {
      adapter.report_.unmatched.push_back(entry.name);
      continue;
    }
    if (!is_high_precision(entry.dtype)) fail(entry.name, "is not F32, BF16 or F16");
    const Tensor values = as_float(file.tensor(entry));
    if (!all_finite(values)) fail(entry.name, "holds NaN or Inf");
    Found& module = found[key->path];
    module.path = known;
    if (key->part == Part::kAlpha) {
      if (values.numel() != 1) fail(entry.name, "is not one number");
      module.alpha = values.as<float>()[0];
      continue;
    }
    if (values.shape().rank() != 2) fail(entry.name, "is not a matrix");
    (key->part == Part::kDown ? module.down : module.up) = values;
    (key->part == Part::kDown ? module.down_key : module.up_key) = entry.name;
  }
  for (const auto& [name, module] : found) {
    if (!module.down.defined() || !module.up.defined()) {
      const bool up = module.down.defined();
      throw Error(ErrorCode::kInvalidInput, where, "module '{}' has no {}", printable(name),
                  up ? "lora_B (lora_up)" : "lora_A (lora_down)");
    }
    const int64_t rank = module.down.shape()[0];
    const double scale = settings.scale(module.path, module.alpha, rank);
    adapter.rank_ = std::max(adapter.rank_, rank);
    for (const LoraTarget& target : targets.at(module.path)) {
      const int64_t out = target.shape[0];
      if (module.down.shape() != Shape{rank, target.shape[1]} || rank < 1) {
        fail(module.down_key,
             fmt::format("is {} instead of [rank, {}]", module.down.shape(), target.shape[1]));
      }
      if (module.up.shape() != Shape{out * target.parts, rank}) {
        fail(module.up_key, fmt::format("is {} instead of {}", module.up.shape(),
                                        Shape{out * target.parts, rank}));
      }
      // Some files hold q, k and v twice, apart and as one: the first one counts.
      if (adapter.modules_.contains(target.weight)) {
        adapter.report_.unmatched.push_back(
            fmt::format("{} (a second time for {})", module.up_key, target.weight));
        continue;
      }
      adapter.modules_.emplace(target.weight,
                               Module{module.down, rows_times(module.up, out * target.part,
                                                              out * (target.part + 1), scale)});
    }
  }
  if (adapter.modules_.empty()) {
    throw Error(ErrorCode::kInvalidInput, where, "no tensor matches a linear of the model{}",
                adapter.report_.unmatched.empty()
                    ? ""
                    : fmt::format(": '{}', ...", printable(adapter.report_.unmatched[0])));
  }
  adapter.report_.matched = static_cast<int>(adapter.modules_.size());
  return adapter;
}

LoraStack::LoraStack(std::vector<LoraAdapter> adapters) : adapters_(std::move(adapters)) {
  for (const LoraAdapter& adapter : adapters_) {
    sites_.rank += adapter.rank();
    for (const auto& [weight, module] : adapter.modules()) sites_.weights.insert(weight);
  }
}

Weights LoraStack::weights() const {
  Weights weights;
  for (const std::string& weight : sites_.weights) {
    Tensor down, up;
    int64_t first = 0;
    for (const LoraAdapter& adapter : adapters_) {
      const auto found = adapter.modules().find(weight);
      if (found != adapter.modules().end()) {
        const LoraAdapter::Module& module = found->second;
        const int64_t rank = module.down.shape()[0], in = module.down.shape()[1];
        const int64_t out = module.up.shape()[0];
        if (!down.defined()) {
          down = Tensor::zeros(DType::kF32, {sites_.rank, in});
          up = Tensor::zeros(DType::kF32, {out, sites_.rank});
        }
        const auto from_down = module.down.as<float>(), from_up = module.up.as<float>();
        std::copy(from_down.begin(), from_down.end(),
                  down.mutable_as<float>().begin() + first * in);
        for (int64_t r = 0; r < out; ++r) {
          std::copy_n(from_up.begin() + r * rank, rank,
                      up.mutable_as<float>().begin() + r * sites_.rank + first);
        }
      }
      first += adapter.rank();
    }
    weights.emplace(lora_down_name(weight), down);
    weights.emplace(lora_up_name(weight), up);
  }
  return weights;
}

Tensor LoraStack::strengths(int64_t batch, std::span<const float> per_adapter) const {
  HT_ASSERT(per_adapter.size() == adapters_.size());
  Tensor out = Tensor::empty(DType::kF32, {batch, sites_.rank});
  auto values = out.mutable_as<float>().begin();
  for (int64_t b = 0; b < batch; ++b) {
    for (size_t i = 0; i < adapters_.size(); ++i) {
      values = std::fill_n(values, adapters_[i].rank(), per_adapter[i]);
    }
  }
  return out;
}

}  // namespace halftone
