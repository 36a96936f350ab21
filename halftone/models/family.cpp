#include "halftone/models/family.h"

#include <fmt/format.h>

namespace halftone {

std::string DenoiserShape::str() const {
  return fmt::format("{} x {} + {}{}", rows, latents, text_tokens, ragged ? " ragged" : "");
}

DenoiserShape Denoiser::smallest_shape() const {
  const int64_t one = 1;
  return shape({channels(), patch(), patch()}, {&one, 1});
}

}  // namespace halftone
