#include <algorithm>

#include "halftone/quantize/recipe_file.h"

#define TOML_EXCEPTIONS 1
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include "halftone/base/error.h"
#include "halftone/diffusion/scheduler.h"
#include "halftone/numerics/scale_rules.h"

namespace halftone {
namespace {

constexpr std::string_view kHighPrecision = "high-precision";

class RecipeReader {
 public:
  explicit RecipeReader(const std::string& where) : where_(where) {}

  [[noreturn]] void fail(const toml::node& at, const std::string& reason) const {
    throw Error(ErrorCode::kInvalidInput, where_, "line {}: {}", at.source().begin.line, reason);
  }

  const toml::node& at(const toml::table& table, std::string_view key) const {
    const toml::node* node = table.get(key);
    if (node == nullptr) fail(table, fmt::format("'{}' is missing", key));
    return *node;
  }

  void check_keys(const toml::table& table, std::initializer_list<std::string_view> known) const {
    for (const auto& [key, value] : table) {
      if (std::find(known.begin(), known.end(), key.str()) == known.end()) {
        fail(value, fmt::format("unknown key '{}'", printable(key.str())));
      }
    }
  }

  std::string text(const toml::table& table, std::string_view key) const {
    const toml::node& node = at(table, key);
    if (!node.is_string()) fail(node, fmt::format("'{}' is not a string", key));
    return **node.as_string();
  }
  std::string text(const toml::table& table, std::string_view key, std::string_view usual) const {
    return table.contains(key) ? text(table, key) : std::string(usual);
  }

  Format format(const toml::table& table) const {
    const std::string name = text(table, "format");
    const auto found = find_format(name);
    const bool known = found && (found->quantized() || *found == formats::bf16);
    if (!known) fail(*table.get("format"), fmt::format("'{}' is no format", printable(name)));
    return *found;
  }

  bool activations(const toml::table& table) const {
    const std::string inputs = text(table, "inputs", "format");
    if (inputs != "format" && inputs != kHighPrecision) {
      fail(*table.get("inputs"),
           fmt::format("'inputs' is neither \"format\" nor \"{}\"", kHighPrecision));
    }
    return inputs == "format";
  }

  RecipeFile::Calibrated calibrated(const toml::table& table) const {
    check_keys(table, {"width", "height", "steps", "seed", "guidance", "scheduler", "prompts"});
    const auto number = [&](std::string_view key, int64_t least, int64_t most) {
      const toml::node& node = at(table, key);
      const auto* value = node.as_integer();
      if (value == nullptr || **value < least || **value > most) {
        fail(node, fmt::format("'{}' is not a whole number from {} to {}", key, least, most));
      }
      return **value;
    };
    RecipeFile::Calibrated c;
    c.width = number("width", 1, 65536);
    c.height = number("height", 1, 65536);
    c.steps = number("steps", 1, 1000);
    c.seed = number("seed", 0, INT64_MAX);
    if (const toml::node* node = table.get("guidance"); node != nullptr) {
      const auto value = node->value<double>();
      if (!node->is_number() || !(*value >= 0 && *value <= 100)) {
        fail(*node, "'guidance' is not a number from 0 to 100");
      }
      c.guidance = static_cast<float>(*value);
    }
    if (const toml::node* node = table.get("scheduler"); node != nullptr) {
      const auto name = node->value<std::string>();
      const auto is_name = [&](const SchedulerChoice& choice) { return choice.name == *name; };
      if (!name || std::ranges::none_of(scheduler_choices(), is_name)) {
        fail(*node, "'scheduler' is not the name of one");
      }
      c.scheduler = *name;
    }
    c.prompts = prompts(table);
    return c;
  }

  std::vector<std::string> prompts(const toml::table& table) const {
    const toml::node& node = at(table, "prompts");
    if (!node.is_array()) fail(node, "'prompts' is not a list");
    std::vector<std::string> found;
    for (const toml::node& prompt : *node.as_array()) {
      if (!prompt.is_string()) fail(prompt, "one of 'prompts' is not a string");
      found.push_back(**prompt.as_string());
    }
    if (found.empty()) fail(node, "'prompts' is empty");
    return found;
  }

  // Within what a float scale and its reciprocal can be.
  float scale(std::string_view weight, const toml::node& node) const {
    const auto value = node.is_number() ? node.value<double>() : std::nullopt;
    if (!value || !(*value >= kMinScale && *value <= 1 / kMinScale)) {
      fail(node, fmt::format("'input_scales' of '{}' is not a number from {:.3g} to {:.3g}",
                             printable(weight), kMinScale, 1 / kMinScale));
    }
    return static_cast<float>(*value);
  }

  // [name]; null where there is none.
  const toml::table* section(const toml::table& root, std::string_view name) const {
    const toml::node* node = root.get(name);
    if (node == nullptr) return nullptr;
    if (!node->is_table()) fail(*node, fmt::format("'{}' is not a table", name));
    return node->as_table();
  }

  // Tables of [[name]].
  template <class Fn>
  void each(const toml::table& root, std::string_view name, const Fn& fn) const {
    const toml::node* node = root.get(name);
    if (node == nullptr) return;
    if (!node->is_array()) fail(*node, fmt::format("'{}' is not [[{}]]", name, name));
    for (const toml::node& entry : *node->as_array()) {
      if (!entry.is_table()) fail(entry, fmt::format("'{}' is not [[{}]]", name, name));
      fn(*entry.as_table());
    }
  }

 private:
  const std::string& where_;
};

}  // namespace

RecipeFile parse_recipe(std::string_view text, const std::string& where) {
  toml::table root;
  try {
    root = toml::parse(text, where);
  } catch (const toml::parse_error& error) {
    throw Error(ErrorCode::kInvalidInput, where, "line {}: {}", error.source().begin.line,
                printable(error.description()));
  }
  const RecipeReader read(where);
  read.check_keys(root, {"version", "family", "format", "rounding", "cut", "select", "keep",
                         "layer", "input_scales", "calibration", "certificate", "origin"});
  const auto* version = root["version"].as_integer();
  if (version == nullptr || **version != kRecipeVersion) {
    throw Error(ErrorCode::kUnsupported, where,
                "is not a recipe of version {0}: 'version' is not {0}", kRecipeVersion);
  }
  RecipeFile file;
  file.family = read.text(root, "family");
  file.recipe.format = read.format(root);
  const std::string rounding = read.text(root, "rounding", "nearest");
  if (rounding != "nearest" && rounding != "compensated") {
    read.fail(*root.get("rounding"), "'rounding' is neither \"nearest\" nor \"compensated\"");
  }
  file.rounding = rounding == "nearest" ? Rounding::kNearest : Rounding::kCompensated;
  read.each(root, "cut", [&](const toml::table& t) {
    read.check_keys(t, {"match"});
    file.cuts.push_back(read.text(t, "match"));
  });
  read.each(root, "select", [&](const toml::table& t) {
    read.check_keys(t, {"match"});
    file.recipe.include.push_back(read.text(t, "match"));
  });
  read.each(root, "keep", [&](const toml::table& t) {
    read.check_keys(t, {"match", "reason"});
    file.recipe.keep.push_back(
        {read.text(t, "match"), read.text(t, "reason", "the recipe says so")});
  });
  read.each(root, "layer", [&](const toml::table& t) {
    read.check_keys(t, {"match", "format", "inputs"});
    file.recipe.rules.push_back({read.text(t, "match"), read.format(t), read.activations(t)});
  });
  if (const toml::table* scales = read.section(root, "input_scales")) {
    for (const auto& [weight, value] : *scales) {
      file.recipe.input_scales[std::string(weight.str())] = read.scale(weight.str(), value);
    }
  }
  if (const toml::table* table = read.section(root, "calibration")) {
    file.calibrated = read.calibrated(*table);
  }
  if (const toml::table* table = read.section(root, "certificate")) {
    read.check_keys(*table, {"prompts"});
    file.certified = read.prompts(*table);
  }
  read.section(root, "origin");  // for people, whatever it holds
  return file;
}

}  // namespace halftone
