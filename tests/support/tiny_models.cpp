#include "tests/support/tiny_models.h"

#include <nlohmann/json.hpp>

#include "halftone/io/json.h"
#include "halftone/io/safetensors_file.h"
#include "tests/support/data.h"
#include "tests/support/sanitizers.h"
#include "tests/support/tiny_flux2.h"
#include "tests/support/tiny_folder.h"
#include "tests/support/tiny_zimage.h"

namespace halftone::test {
namespace {

namespace fs = std::filesystem;

const fs::path kTokenizer = kData / "tokenizer" / "tokenizer.json";

nlohmann::json case_of(const fs::path& file) {
  return parse_json(SafetensorsFile(kData / file).metadata().at("case"), "fixture");
}

}  // namespace

const std::vector<TinyModel>& tiny_models() {
  static const std::vector<TinyModel> kModels = {
      {"z-image",
       [](const fs::path& folder) {
         write_zimage_folder(folder, case_of("zimage/pipeline_guided.safetensors"), kTokenizer);
       },
       32, 24, 3.0f, "transformer.layers.0.attention.to_q", 96, 96},
      {"flux.2-klein",
       [](const fs::path& folder) {
         write_flux2_folder(folder, case_of("flux2/pipeline_base.safetensors"), kTokenizer);
       },
       32, 16, 4.0f, "transformer.transformer_blocks.0.attn.to_q", 32, 32},
      {"flux.1",
       [](const fs::path& folder) {
         write_tiny_folder(folder, case_of("flux1/pipeline_dev.safetensors"));
       },
       32, 16, 2.5f, "transformer.transformer_blocks.0.attn.to_q", 32, 32, true},
      {"sdxl",
       [](const fs::path& folder) {
         write_tiny_folder(folder, case_of("sdxl/pipeline_base.safetensors"));
       },
       32,
       16,
       5.0f,
       "unet.down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q",
       32,
       32,
       false,
       {},
       {},
       10},
      {"sd3",
       [](const fs::path& folder) {
         write_tiny_folder(folder, case_of("sd3/pipeline_large.safetensors"));
       },
       32, 16, 4.0f, "transformer.transformer_blocks.1.attn.to_q", 32, 32, false,
       "transformer_blocks.2.attn.add_q_proj.weight", "pos_embed.pos_embed"},
  };
  return kModels;
}

std::vector<TinyModel> few_tiny_models() {
  std::vector<TinyModel> models = tiny_models();
  if (kSanitized) models.erase(models.begin(), models.end() - 1);
  return models;
}

}  // namespace halftone::test
