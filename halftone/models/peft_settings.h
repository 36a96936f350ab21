// What PEFT's LoraConfig says about an adapter: adapter_config.json beside the file, or what
// diffusers keeps of it in the file's metadata.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace halftone {

class PeftSettings {
 public:
  // Fields that ask for anything but a plain low-rank product are Errors that name them. `path`
  // is how errors call the object where it is not the whole file.
  static PeftSettings parse(const nlohmann::json& json, const std::string& where,
                            const std::string& path = {});

  // What the product of the two matrices is multiplied with. `module` is the path of the module in
  // the model that PEFT adapted. One that the settings leave out, or give another rank, is an
  // Error.
  double scale(const std::string& module, int64_t rank) const;

 private:
  // Numbers by patterns of module names, over one for all.
  using Patterns = std::vector<std::pair<std::string, double>>;
  double value_for(const std::string& module, const char* name, const Patterns& patterns,
                   double usual) const;
  bool is_among(const std::string& module, const nlohmann::json& modules) const;

  std::string where_;
  double rank_ = 8, alpha_ = 8;
  bool root_ = false;  // alpha is divided by the rank's square root instead
  Patterns ranks_, alphas_;
  nlohmann::json targets_, excluded_;  // null, a list of names, or a regular expression
};

}  // namespace halftone
