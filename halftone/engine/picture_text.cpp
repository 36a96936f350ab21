#include "halftone/engine/picture_text.h"

#include <fmt/format.h>

#include <filesystem>

#include "halftone/base/version.h"

namespace halftone {

PngText picture_text(const LoadedModel& loaded, const GenerateRequest& request,
                     const std::string& model_hash, int index) {
  PngText text = {{"Software", std::string("halftone ") + version()},
                  {"prompt", request.prompt},
                  {"negative", request.negative},
                  {"seed", std::to_string(request.seed + static_cast<uint64_t>(index))},
                  {"steps", std::to_string(request.steps)},
                  {"guidance", fmt::format("{}", request.guidance)},
                  {"precision_asked", loaded.precision.asked},
                  {"precision_used", loaded.precision.used},
                  {"model_hash", model_hash}};
  if (request.true_cfg > 0) text.emplace_back("true_cfg", fmt::format("{}", request.true_cfg));
  for (const AdapterChoice& choice : request.adapters) {
    const std::filesystem::path file = choice.adapter->lora().report().file;
    text.emplace_back("lora", fmt::format("{}:{}", file.filename().string(), choice.strength));
  }
  return text;
}

}  // namespace halftone
