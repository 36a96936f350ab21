#include "halftone/quantize/recipe_file.h"

#include "halftone/base/error.h"
#include "halftone/tensor/storage.h"

namespace halftone {
namespace {

// A basic string: quotes, backslashes and control characters (DEL is one) are escaped, and any
// other text stands as it is, as long as it is UTF-8.
std::string toml_string(std::string_view text) {
  if (!is_valid_utf8(text)) {
    throw Error(ErrorCode::kInvalidInput, "recipe", "'{}' is not UTF-8", printable(text));
  }
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string toml_list(const std::vector<std::string>& prompts) {
  std::string out = "prompts = [\n";
  for (const std::string& prompt : prompts) out += "  " + toml_string(prompt) + ",\n";
  return out + "]\n";
}

}  // namespace

std::string to_toml(const RecipeFile& file) {
  const QuantizeRecipe& r = file.recipe;
  std::string out =
      "# Formats of a model's linears. Use it again: halftone quantize --model DIR --recipe FILE\n";
  out += fmt::format("version = {}\nfamily = {}\n", kRecipeVersion, toml_string(file.family));
  out +=
      fmt::format("format = {}  # of what no [[layer]] below names\n", toml_string(r.format.name));
  out += fmt::format("rounding = \"{}\"\n",
                     file.rounding == Rounding::kNearest ? "nearest" : "compensated");
  for (const std::string& pattern : file.cuts)
    out += fmt::format("\n[[cut]]\nmatch = {}\n", toml_string(pattern));
  for (const std::string& pattern : r.include)
    out += fmt::format("\n[[select]]\nmatch = {}\n", toml_string(pattern));
  for (const auto& [pattern, reason] : r.keep) {
    out += fmt::format("\n[[keep]]\nmatch = {}\nreason = {}\n", toml_string(pattern),
                       toml_string(reason));
  }
  for (const auto& rule : r.rules) {
    out += fmt::format("\n[[layer]]\nmatch = {}\nformat = {}\n", toml_string(rule.pattern),
                       toml_string(rule.format.name));
    if (rule.format.quantized() && !rule.activations) {
      out += fmt::format("inputs = \"{}\"\n", "high-precision");
    }
  }
  if (!r.input_scales.empty()) {
    out +=
        "\n# Calibrated: the largest magnitude, divided by what the format holds.\n"
        "[input_scales]\n";
    for (const auto& [weight, scale] : r.input_scales) {
      out += fmt::format("{} = {:.9e}\n", toml_string(weight), scale);
    }
  }
  if (file.calibrated) {
    const auto& c = *file.calibrated;
    out += fmt::format("\n[calibration]\nwidth = {}\nheight = {}\nsteps = {}\nseed = {}\n", c.width,
                       c.height, c.steps, c.seed);
    if (c.guidance) out += fmt::format("guidance = {}\n", *c.guidance);
    if (!c.scheduler.empty()) out += fmt::format("scheduler = {}\n", toml_string(c.scheduler));
    out += toml_list(c.prompts);
  }
  if (!file.certified.empty()) {
    out += "\n# What the certificate is measured on; calibration and search have not seen it.\n";
    out += "[certificate]\n" + toml_list(file.certified);
  }
  if (!file.origin.empty()) {
    out += "\n# How this came about.\n[origin]\n";
    for (const auto& [key, value] : file.origin)
      out += fmt::format("{} = {}\n", key, toml_string(value));
  }
  return out;
}

RecipeFile read_recipe(const std::filesystem::path& path) {
  const auto storage = Storage::map_file(path);
  const auto bytes = storage->bytes();
  return parse_recipe({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

}  // namespace halftone
