#include "halftone/models/peft_settings.h"

#include <algorithm>
#include <cmath>

#include "halftone/io/config_reader.h"
#include "halftone/io/regular_expression.h"

namespace halftone {
namespace {

using nlohmann::json;

constexpr int64_t kMostRank = 1 << 20;
constexpr double kMostAlpha = 1e6;

// As PEFT matches a pattern: the end of the name, from a dot on or all of it.
bool matches_end(const std::string& pattern, const std::string& name, const std::string& where) {
  const bool plain = std::all_of(pattern.begin(), pattern.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.';
  });
  if (!plain) return full_match("(.*\\.)?(" + pattern + ")", name, where);
  // A name that is no more than that needs no engine, but its dots stand for anything.
  if (pattern.size() > name.size()) return false;
  const std::string_view end = std::string_view(name).substr(name.size() - pattern.size());
  const bool whole = end.size() == name.size() || name[name.size() - end.size() - 1] == '.';
  return whole && std::equal(pattern.begin(), pattern.end(), end.begin(),
                             [](char p, char c) { return p == '.' || p == c; });
}

std::vector<std::pair<std::string, double>> read_patterns(const ConfigReader& read,
                                                          const char* name, double least,
                                                          double most) {
  std::vector<std::pair<std::string, double>> patterns;
  if (!read.has(name)) return patterns;
  if (!read.field(name).is_object()) read.fail(name, "is not an object");
  for (const auto& [pattern, value] : read.field(name).items()) {
    if (!value.is_number() || !(value >= least && value <= most)) {
      read.fail(name,
                fmt::format("has for '{}' no number in {} .. {}", printable(pattern), least, most));
    }
    patterns.emplace_back(pattern, value.get<double>());
  }
  return patterns;
}

json read_modules(const ConfigReader& read, const char* name) {
  if (!read.has(name)) return nullptr;
  const json& modules = read.field(name);
  const bool names = modules.is_array() && std::all_of(modules.begin(), modules.end(),
                                                       [](const json& m) { return m.is_string(); });
  if (!names && !modules.is_string()) read.fail(name, "is neither names nor a pattern of them");
  return modules.empty() ? json(nullptr) : modules;
}

}  // namespace

PeftSettings PeftSettings::parse(const json& json, const std::string& where,
                                 const std::string& path) {
  const ConfigReader read(json, where, path);
  PeftSettings s;
  s.where_ = where;
  read.must_be("peft_type", "LORA");
  s.rank_ = static_cast<double>(read.integer("r", 8, 1, kMostRank));
  s.alpha_ = read.number("lora_alpha", 8, -kMostAlpha, kMostAlpha);
  s.root_ = read.boolean("use_rslora", false);
  s.ranks_ = read_patterns(read, "rank_pattern", 1, kMostRank);
  s.alphas_ = read_patterns(read, "alpha_pattern", -kMostAlpha, kMostAlpha);
  s.targets_ = read_modules(read, "target_modules");
  s.excluded_ = read_modules(read, "exclude_modules");
  read.must_be("bias", "none");
  // Others change the model's own weights, which are not in the file.
  read.must_be_one_of("init_lora_weights", {true, false, "gaussian", "orthogonal", "eva"});
  read.must_be_empty({"alora_invocation_tokens",
                      "arrow_config",
                      "corda_config",
                      "fan_in_fan_out",
                      "kasa_config",
                      "layer_replication",
                      "layers_pattern",
                      "layers_to_transform",
                      "loftq_config",
                      "lora_bias",
                      "lora_ga_config",
                      "megatron_config",
                      "modules_to_save",
                      "monteclora_config",
                      "target_parameters",
                      "trainable_token_indices",
                      "use_bdlora",
                      "use_dora",
                      "use_qalora",
                      "velora_config"});
  // About training, about PEFT itself, and about an initialization that the file is past.
  read.ignore({"auto_mapping", "base_model_name_or_path", "ensure_weight_tying", "eva_config",
               "inference_mode", "lora_dropout", "megatron_core", "parent_library", "peft_version",
               "qalora_group_size", "revision", "runtime_config", "task_type"});
  read.finish();
  return s;
}

double PeftSettings::value_for(const std::string& module, const char* name,
                               const Patterns& patterns, double usual) const {
  const std::pair<std::string, double>* chosen = nullptr;
  for (const auto& candidate : patterns) {
    if (!matches_end(candidate.first, module, where_)) continue;
    // PEFT takes the first in the order of the file, which is lost here.
    if (chosen != nullptr && chosen->second != candidate.second) {
      throw Error(ErrorCode::kUnsupported, where_,
                  "'{}' has two values for module '{}': '{}', '{}'", name, printable(module),
                  printable(chosen->first), printable(candidate.first));
    }
    chosen = &candidate;
  }
  return chosen != nullptr ? chosen->second : usual;
}

bool PeftSettings::is_among(const std::string& module, const json& modules) const {
  if (modules == "all-linear") return true;
  if (modules.is_string()) return full_match(modules.get<std::string>(), module, where_);
  return std::any_of(modules.begin(), modules.end(), [&](const json& entry) {
    const auto& name = entry.get_ref<const std::string&>();
    return module == name || module.ends_with("." + name);
  });
}

double PeftSettings::scale(const std::string& module, int64_t rank) const {
  const bool left_out = !targets_.is_null() && !is_among(module, targets_);
  if (left_out || (!excluded_.is_null() && is_among(module, excluded_))) {
    throw Error(ErrorCode::kInvalidInput, where_, "'{}' leaves out module '{}', which has tensors",
                left_out ? "target_modules" : "exclude_modules", printable(module));
  }
  const double said = value_for(module, "rank_pattern", ranks_, rank_);
  if (said != static_cast<double>(rank)) {
    throw Error(ErrorCode::kInvalidInput, where_,
                "module '{}' has tensors of rank {}, and 'r' or 'rank_pattern' says {}",
                printable(module), rank, said);
  }
  const double alpha = value_for(module, "alpha_pattern", alphas_, alpha_);
  return alpha / (root_ ? std::sqrt(said) : said);
}

}  // namespace halftone
