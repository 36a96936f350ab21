// A recipe as a file, TOML: which linears get which format, and how that was found out. Every run
// of `halftone quantize --model` writes one, and reads one to do the same again.
#pragma once

#include <filesystem>
#include <string>

#include "halftone/passes/quantize.h"

namespace halftone {

inline constexpr int64_t kRecipeVersion = 1;

// Compensated: see compensate.h.
enum class Rounding : uint8_t { kNearest, kCompensated };

struct RecipeFile {
  std::string family;
  QuantizeRecipe recipe;
  Rounding rounding = Rounding::kNearest;
  // Weights that are cut by what their input is put together of; patterns. The parts have names of
  // their own in everything else.
  std::vector<std::string> cuts = {};
  // What calibration ran on, so that it can be done again.
  struct Calibrated {
    std::vector<std::string> prompts;
    int64_t width = 0, height = 0, steps = 0, seed = 0;
    std::optional<float> guidance = {};  // none, as in older files: the model's own
    std::string scheduler = {};          // as in scheduler_choices(); empty: the model's own
  };
  std::optional<Calibrated> calibrated;
  // Prompts that a certificate is measured on: neither calibration nor a search has seen them.
  std::vector<std::string> certified;
  // How the rules came about, for people; not read back.
  std::vector<std::pair<std::string, std::string>> origin;
};

std::string to_toml(const RecipeFile& file);
// Unknown keys, formats and types that do not fit are Errors that name `where` and the line.
RecipeFile parse_recipe(std::string_view text, const std::string& where);
RecipeFile read_recipe(const std::filesystem::path& path);

}  // namespace halftone
