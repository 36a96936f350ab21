#include <algorithm>

#include "halftone/quantize/recipe_file.h"

#define TOML_EXCEPTIONS 1
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include "halftone/base/error.h"

namespace halftone {
namespace {

constexpr std::string_view kHighPrecision = "high-precision";

class Reader {
 public:
  explicit Reader(const std::string& where) : where_(where) {}

  [[noreturn]] void fail(const toml::node& at, const std::string& reason) const {
    throw Error(ErrorCode::kInvalidInput, where_, "line {}: {}", at.source().begin.line, reason);
  }

  void check_keys(const toml::table& table, std::initializer_list<std::string_view> known) const {
    for (const auto& [key, value] : table) {
      if (std::find(known.begin(), known.end(), key.str()) == known.end()) {
        fail(value, fmt::format("unknown key '{}'", printable(std::string(key.str()))));
      }
    }
  }

  std::string text(const toml::table& table, std::string_view key) const {
    const toml::node* node = table.get(key);
    if (node == nullptr) fail(table, fmt::format("'{}' is missing", key));
    if (!node->is_string()) fail(*node, fmt::format("'{}' is not a string", key));
    return **node->as_string();
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
    check_keys(table, {"width", "height", "steps", "seed", "prompts"});
    const auto number = [&](std::string_view key, int64_t least, int64_t most) {
      const toml::node* node = table.get(key);
      if (node == nullptr) fail(table, fmt::format("'{}' is missing", key));
      const auto value = node->value<int64_t>();
      if (!value || *value < least || *value > most) {
        fail(*node, fmt::format("'{}' is not a number from {} to {}", key, least, most));
      }
      return *value;
    };
    RecipeFile::Calibrated c;
    c.width = number("width", 1, 65536);
    c.height = number("height", 1, 65536);
    c.steps = number("steps", 1, 1000);
    c.seed = number("seed", 0, INT64_MAX);
    const toml::node* prompts = table.get("prompts");
    if (prompts == nullptr || !prompts->is_array()) fail(table, "'prompts' is not a list");
    for (const toml::node& prompt : *prompts->as_array()) {
      if (!prompt.is_string()) fail(prompt, "a prompt is not a string");
      c.prompts.push_back(**prompt.as_string());
    }
    if (c.prompts.empty()) fail(*prompts, "there is no prompt");
    return c;
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
                std::string(error.description()));
  }
  const Reader read(where);
  read.check_keys(root, {"version", "family", "format", "rounding", "select", "keep", "layer",
                         "input_scales", "calibration", "origin"});
  const auto version = root["version"].value<int64_t>();
  if (version != kRecipeVersion) {
    throw Error(ErrorCode::kUnsupported, where, "is not a recipe of version {}", kRecipeVersion);
  }
  RecipeFile file;
  file.family = read.text(root, "family");
  file.recipe.format = read.format(root);
  const std::string rounding = read.text(root, "rounding", "nearest");
  if (rounding != "nearest" && rounding != "compensated") {
    read.fail(*root.get("rounding"), "'rounding' is neither \"nearest\" nor \"compensated\"");
  }
  file.rounding = rounding == "nearest" ? Rounding::kNearest : Rounding::kCompensated;
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
  if (const toml::node* scales = root.get("input_scales")) {
    if (!scales->is_table()) read.fail(*scales, "'input_scales' is not a table");
    for (const auto& [weight, value] : *scales->as_table()) {
      const auto scale = value.value<double>();
      if (!scale || !(*scale > 0) || !(*scale < 1e38)) read.fail(value, "a scale is not positive");
      file.recipe.input_scales[std::string(weight.str())] = static_cast<float>(*scale);
    }
  }
  if (const toml::node* node = root.get("calibration")) {
    if (!node->is_table()) read.fail(*node, "'calibration' is not a table");
    file.calibrated = read.calibrated(*node->as_table());
  }
  return file;
}

}  // namespace halftone
