// What halftone quantize --model did, as text and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "halftone/engine/certificate.h"
#include "halftone/quantize/quantize_file.h"
#include "halftone/quantize/search.h"

namespace halftone::cli {

// A cosine that was asked for, and what became of it.
struct BudgetOutcome {
  double asked = 0, reached = 0;
  bool certified = false;  // reached by the certificate; otherwise on the search's own prompts

  bool met() const { return reached >= asked; }
};
std::string to_text(const BudgetOutcome& budget);  // one line

struct ModelQuantizeResult {
  std::string model, output, hash;  // paths, and the original's hash
  QuantizeRecipe recipe;
  FileQuantizeReport files;
  std::vector<QuantizeReport::Kept> kept;
  std::vector<std::string> not_finite;  // weights whose inputs are not
  std::optional<SearchResult> found;
  size_t points = 0;  // predictions that the search was measured on
  std::optional<BudgetOutcome> budget;
  std::optional<Certificate> certificate;
  std::string uncertified;  // why there is none, although it was measured
  double seconds = 0;
};

nlohmann::ordered_json to_json(const ModelQuantizeResult& result);
void print_text(const ModelQuantizeResult& result);

}  // namespace halftone::cli
