// What is wrong with quantizing a model by itself, said before any work. Errors name the field.
#pragma once

#include "halftone/quantize/quantize_model.h"

namespace halftone {

void check(const QuantizeModelOptions& options);

// The output beside the model, neither in it nor around it: one would be copied into the other.
void check_apart(const std::filesystem::path& output, const std::string& model);

// Empty if weights of this format have a place in the dialect, otherwise why not.
std::string why_not_held(Dialect dialect, const Format& format);
// An Error that names both where they have none.
void check_dialect_holds(Dialect dialect, const Format& format);

inline constexpr const char* kRecipeName = "recipe.toml";  // in every folder that is written

}  // namespace halftone
