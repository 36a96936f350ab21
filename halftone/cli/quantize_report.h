// What halftone quantize --model did, as text and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "halftone/quantize/certificate.h"
#include "halftone/quantize/quantize_file.h"
#include "halftone/quantize/search.h"

namespace halftone::cli {

struct ModelQuantizeResult {
  std::string model, output, hash;  // paths, and the original's hash
  QuantizeRecipe recipe;
  FileQuantizeReport files;
  std::vector<QuantizeReport::Kept> kept;
  std::vector<std::string> not_finite;  // weights whose inputs are not
  std::optional<SearchResult> found;
  size_t points = 0;  // predictions that the search was measured on
  std::optional<Certificate> certificate;
  double seconds = 0;
};

nlohmann::ordered_json to_json(const ModelQuantizeResult& result);
void print_text(const ModelQuantizeResult& result);

}  // namespace halftone::cli
