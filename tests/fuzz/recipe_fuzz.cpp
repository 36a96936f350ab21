// Any text is a recipe or an Error; and what was read can be written and read again, the same.
#include <cstdint>

#include "halftone/base/error.h"
#include "halftone/quantize/recipe_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halftone;
  RecipeFile file;
  try {
    file = parse_recipe({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const Error&) {
    return 0;
  }
  for (const auto& [weight, scale] : file.recipe.input_scales) HT_ASSERT(is_positive_finite(scale));
  const std::string text = to_toml(file);
  const RecipeFile again = parse_recipe(text, "again");
  HT_ASSERT(to_toml(again) == text);
  HT_ASSERT(again.recipe.input_scales == file.recipe.input_scales);
  HT_ASSERT(again.certified == file.certified);
  HT_ASSERT(again.calibrated.has_value() == file.calibrated.has_value());
  if (file.calibrated) HT_ASSERT(again.calibrated->prompts == file.calibrated->prompts);
  return 0;
}
