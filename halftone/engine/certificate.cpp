#include "halftone/engine/certificate.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/io/config_reader.h"
#include "halftone/io/json.h"

namespace halftone {
namespace {

constexpr int kVersion = 1;

nlohmann::ordered_json spread_json(const Spread& s) {
  return {{"mean", s.mean}, {"median", s.median}, {"p5", s.tail}, {"worst", s.worst}};
}

Spread spread(const ConfigReader& read) {
  return {read.number("mean"), read.number("median"), read.number("p5"), read.number("worst")};
}

// How many pictures or steps; a certificate without them certifies nothing.
int count(const ConfigReader& read, const char* field) {
  constexpr int kMost = 1 << 20;
  if (!read.has(field)) read.fail(field, "is missing");
  return static_cast<int>(read.integer(field, 0, 0, kMost));
}

}  // namespace

bool Certificate::finite() const {
  const auto numbers = [](const Spread& s) {
    return std::isfinite(s.mean) && std::isfinite(s.median) && std::isfinite(s.tail) &&
           std::isfinite(s.worst);
  };
  return numbers(velocity_cosine) && numbers(ssim) && std::isfinite(velocity_error);
}

std::string to_json(const Certificate& c) {
  const nlohmann::ordered_json json = {{"version", kVersion},
                                       {"model_hash", c.model_hash},
                                       {"recipe_hash", c.recipe_hash},
                                       {"reference", c.reference},
                                       {"precision", c.precision},
                                       {"pictures", c.pictures},
                                       {"steps", c.steps},
                                       {"prompts", c.prompts},
                                       {"prompts_from", c.prompts_from},
                                       {"velocity_cosine", spread_json(c.velocity_cosine)},
                                       {"velocity_error", c.velocity_error},
                                       {"ssim", spread_json(c.ssim)}};
  return json.dump();
}

Certificate parse_certificate(std::string_view text, const std::string& where) {
  const nlohmann::json json = parse_json(text, where);
  if (!json.is_object() || json.value("version", nlohmann::json()) != nlohmann::json(kVersion)) {
    throw Error(ErrorCode::kUnsupported, where, "the certificate is not of version {}", kVersion);
  }
  const ConfigReader read(json, where);
  Certificate c;
  c.model_hash = read.text("model_hash");
  c.recipe_hash = read.text("recipe_hash");
  c.reference = read.text("reference");
  c.precision = read.text("precision");
  c.pictures = count(read, "pictures");
  c.steps = count(read, "steps");
  if (read.has("prompts")) {
    c.prompts = count(read, "prompts");
    c.prompts_from = read.text("prompts_from");
  }
  c.velocity_cosine = spread(read.object("velocity_cosine"));
  c.velocity_error = read.number("velocity_error");
  c.ssim = spread(read.object("ssim"));
  return c;
}

std::optional<Certificate> certificate_in(const Metadata& metadata, const std::string& where) {
  const auto found = metadata.find(kCertificateKey);
  if (found == metadata.end()) return std::nullopt;
  return parse_certificate(found->second, where + ": metadata " + kCertificateKey);
}

}  // namespace halftone
