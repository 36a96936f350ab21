// For builds without toml++: recipes are written, and reading one is an Error.
#include "halftone/base/error.h"
#include "halftone/quantize/recipe_file.h"

namespace halftone {

RecipeFile parse_recipe(std::string_view, const std::string& where) {
  throw Error(ErrorCode::kUnsupported, where, "this build has no toml++ to read recipes with");
}

}  // namespace halftone
