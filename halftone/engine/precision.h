// Which precision a model runs in: what was asked for, what the device and the file allow, and why.
#pragma once

#include <string>

#include "halftone/engine/model.h"
#include "halftone/runtime/capability.h"

namespace halftone {

// What was asked for, what ran, how (native, emulated, fallback), and why.
struct Choice {
  std::string asked, used, how, why;
};

// Whether weights that are quantized in their file run so under "auto", and why or why not.
struct StoredChoice {
  bool as_stored = false;
  std::string why;
};
StoredChoice choose_stored(const Checkpoint& file, const DeviceInfo& device, double threshold);

// What the loader is asked for.
void set_precision(const std::string& asked, const DeviceInfo& device, LoadOptions& load);

// The same for the text encoders: "auto", or the name of a format.
void set_text_precision(const std::string& asked, LoadOptions& load);

// What became of it.
Choice chosen_text_precision(const std::string& asked, const DeviceInfo& device,
                             const Model& model);
Choice chosen_precision(const std::string& asked, const DeviceInfo& device,
                        const LoadReport& report, const StoredChoice& stored);

// "nvfp4", or "fp8 and nvfp4": of a load report.
std::string format_names(const std::map<std::string, int>& formats);

}  // namespace halftone
