// What was measured of a quantized model, written into its file: so that whoever runs it knows how
// far it is from the original, and which original that was.
#pragma once

#include <optional>
#include <string>

#include "halftone/engine/spread.h"
#include "halftone/io/safetensors_header.h"

namespace halftone {

inline constexpr const char* kCertificateKey = "halftone.certificate";

struct Certificate {
  std::string model_hash;   // of the original's files, headers and data: XXH3-128
  std::string recipe_hash;  // of the recipe's text without this: XXH3-128
  std::string reference;    // the precision that it was compared with
  std::string precision;    // what it runs in: "fp8", "bf16 and fp8"
  int pictures = 0, steps = 0;
  // Prompts that neither calibration nor a search had seen, and whose they are: the program's
  // "own", "given" by the user, or empty in files that are older than this.
  int prompts = 0;
  std::string prompts_from;
  Spread velocity_cosine, ssim;
  double velocity_error = 0;  // mean

  // Predictions of a broken model are no numbers, and then neither is what was measured.
  bool finite() const;
  // The mean cosine of predictions counts.
  bool meets(double threshold) const { return velocity_cosine.mean >= threshold; }
};

std::string to_json(const Certificate& certificate);
// An Error that names `where` for what is no certificate.
Certificate parse_certificate(std::string_view text, const std::string& where);
// Of a file's metadata, where there is one.
std::optional<Certificate> certificate_in(const Metadata& metadata, const std::string& where);

}  // namespace halftone
