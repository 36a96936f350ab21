#include "halftone/models/families.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/text.h"
#include "halftone/models/flux1/family.h"
#include "halftone/models/flux2/family.h"
#include "halftone/models/folder.h"
#include "halftone/models/sd3/family.h"
#include "halftone/models/zimage/family.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

// Whether a tensor has this name, perhaps behind the prefix of files that hold whole models.
bool has_tensor(const Checkpoint& file, std::string_view name) {
  return std::any_of(file.items().begin(), file.items().end(), [&](const Checkpoint::Item& item) {
    std::string_view found = item.entry->name;
    for (const std::string_view prefix : {"model.diffusion_model.", "diffusion_model."}) {
      if (found.starts_with(prefix)) found.remove_prefix(prefix.size());
    }
    return found == name;
  });
}
template <class... Names>
bool has_all(const Checkpoint& file, Names... names) {
  return (has_tensor(file, names) && ...);
}

// Families that are told by their marks and cannot be run yet.
std::vector<Family> make_table() {
  return {
      zimage::family(),
      flux2::family(),
      flux1::family(),
      sd3::family(),
      {"sdxl",
       "SDXL",
       {"StableDiffusionXLPipeline", "StableDiffusionXLImg2ImgPipeline"},
       [](const Checkpoint& f) {
         return has_tensor(f, "label_emb.0.0.weight") ||
                has_tensor(f, "add_embedding.linear_1.weight");
       }},
      {"stable-audio-3",
       "Stable Audio 3",
       {"StableAudio3Pipeline"},
       [](const Checkpoint& f) {
         return has_tensor(f, "transformer.memory_tokens") ||
                has_tensor(f, "model.model.transformer.memory_tokens") ||
                has_tensor(f, "memory_tokens");
       }},
      {"wan",
       "Wan",
       {"WanPipeline", "WanImageToVideoPipeline", "WanVideoToVideoPipeline"},
       [](const Checkpoint& f) {
         return has_all(f, "patch_embedding.weight", "blocks.0.cross_attn.q.weight") ||
                has_tensor(f, "condition_embedder.time_proj.weight");
       }},
      {"qwen-image",
       "Qwen-Image",
       {"QwenImagePipeline", "QwenImageEditPipeline"},
       [](const Checkpoint& f) {
         return has_all(f, "txt_norm.weight", "transformer_blocks.0.img_mod.1.weight");
       }},
      {"ltx",
       "LTX-Video",
       {"LTXPipeline", "LTX2Pipeline", "LTXImageToVideoPipeline"},
       [](const Checkpoint& f) {
         return has_all(f, "scale_shift_table", "transformer_blocks.0.scale_shift_table");
       }},
  };
}

std::string names_of(bool (*which)(const Family&)) {
  std::string names;
  for (const Family& family : families()) {
    if (which(family)) names += (names.empty() ? "" : ", ") + std::string(family.title);
  }
  return names;
}

[[noreturn]] void refuse(const fs::path& path, const std::string& why) {
  throw Error(ErrorCode::kUnsupported, path.string(), "{}; families that run are {}", why,
              names_of([](const Family& family) { return family.runs(); }));
}

const Family& check_runs(const Family& family, const fs::path& path) {
  if (!family.runs()) {
    refuse(path, fmt::format("is a {} model, which cannot be run yet", family.title));
  }
  return family;
}

const Family& family_of_folder(const fs::path& folder) {
  if (!path_exists(folder)) throw Error(ErrorCode::kNotFound, folder.string(), "no such folder");
  if (!path_exists(folder / "model_index.json")) {
    throw Error(ErrorCode::kNotFound, folder.string(),
                "has no model_index.json, which a model folder in diffusers layout has");
  }
  const auto pipeline = pipeline_of(folder);
  if (!pipeline) {
    refuse(folder, "is not a known family: model_index.json names no pipeline ('_class_name')");
  }
  for (const Family& family : families()) {
    const auto& names = family.pipelines;
    if (std::find(names.begin(), names.end(), *pipeline) != names.end()) {
      return check_runs(family, folder);
    }
  }
  refuse(folder,
         fmt::format("is not a known family: model_index.json names {}", printable(*pipeline)));
}

const Family& family_of_file(const fs::path& path) {
  const Checkpoint file = Checkpoint::open(path);
  for (const Family& family : families()) {
    if (family.is_denoiser(file)) return check_runs(family, path);
  }
  refuse(path, "is not a known family by the names of its tensors");
}

}  // namespace

std::span<const Family> families() {
  static const std::vector<Family> kTable = make_table();
  return kTable;
}

FoundModel find_model(const fs::path& path, const fs::path& base) {
  if (!path_exists(path)) {
    throw Error(ErrorCode::kNotFound, path.string(),
                "no such model: there is no such folder or file");
  }
  if (is_folder(path)) {
    if (!base.empty()) {
      throw Error(ErrorCode::kUsage, "base", "is for a model that is a single file");
    }
    return {&family_of_folder(path), {path, {}}};
  }
  const Family& family = family_of_file(path);
  if (base.empty()) {
    throw Error(ErrorCode::kUsage, "base",
                "is needed with a single file: a folder in diffusers layout for tokenizer, text "
                "encoder, VAE and scheduler");
  }
  const Family& around = family_of_folder(base);
  if (&around != &family) {
    throw Error(ErrorCode::kUsage, "base", "'{}' is a {} model, and '{}' a {} one",
                printable(base.string()), around.title, printable(path.string()), family.title);
  }
  return {&family, {base, path}};
}

}  // namespace halftone
