#include "halftone/models/families.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/text.h"
#include "halftone/io/json.h"
#include "halftone/models/flux1/family.h"
#include "halftone/models/flux2/family.h"
#include "halftone/models/folder.h"
#include "halftone/models/sd3/family.h"
#include "halftone/models/sdxl/family.h"
#include "halftone/models/single_file_names.h"
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
      sdxl::family(),
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

const Family& family_of_file(const Checkpoint& file) {
  for (const Family& family : families()) {
    if (family.is_denoiser(file)) return check_runs(family, file.path());
  }
  refuse(file.path(), "is not a known family by the names of its tensors");
}

// What tensors of the part begin with in the file; nothing where it holds none.
std::optional<std::string> prefix_of(const Family::PartOfFile& part, const Checkpoint& file) {
  for (const std::string_view within : part.within) {
    if (any_name(file, [&](std::string_view name) { return name.starts_with(within); })) {
      return std::string(within);
    }
  }
  return std::nullopt;
}

[[noreturn]] void refuse_without_base(const Family& family, const Checkpoint& file) {
  const auto& parts = family.parts_of_file;
  const bool whole = !parts.empty() && std::ranges::all_of(parts, [&](const auto& part) {
    return part.optional || prefix_of(part, file);
  });
  if (!whole) {
    throw Error(ErrorCode::kUsage, "base",
                "is needed with a single file: a folder in diffusers layout for tokenizer, text "
                "encoder, VAE and scheduler");
  }
  std::string folders;
  for (const Family::PartOfFile& part : parts) {
    if (part.tokenizer.empty() || !prefix_of(part, file)) continue;
    folders += (folders.empty() ? "" : ", ") + std::string(part.tokenizer);
  }
  throw Error(ErrorCode::kUsage, "base",
              "is needed: '{}' holds a whole {} model but its tokenizers; give a folder that has "
              "{}",
              printable(file.path().string()), family.title, folders);
}

// Whether the folder's model_index.json says that its model does without this part.
bool is_left_out(const fs::path& base, std::string_view part) {
  const fs::path index = base / "model_index.json";
  if (!path_exists(index)) return false;
  const auto content = read_json_file(index);
  const auto found = content.find(part);
  return found != content.end() && *found == nlohmann::json{nullptr, nullptr};
}

// The base's own weights before those of the file.
void find_part(const Family::PartOfFile& part, const Checkpoint& file, ModelFiles& files) {
  const fs::path folder = files.of(part.folder);
  if (is_folder(folder) && Checkpoint::is_checkpoint_folder(folder)) return;
  if (part.optional && is_left_out(files.base, part.folder)) return;
  const std::string where = printable(file.path().string());
  const auto within = prefix_of(part, file);
  if (!within && part.optional) return;
  if (!within) {
    throw Error(ErrorCode::kNotFound, files.base.string(),
                "there is no {}: neither in '{}' nor in '{}', whose tensors would begin with {}",
                part.folder, printable(folder.string()), where, fmt::join(part.within, " or "));
  }
  if (!part.tokenizer.empty() && !path_exists(files.of(part.tokenizer))) {
    throw Error(ErrorCode::kNotFound, files.base.string(),
                "has no {}, which the {} in '{}' needs: files hold no tokenizers", part.tokenizer,
                part.folder, where);
  }
  files.in_file.emplace(part.folder, *within);
}

// An encoder under another name would be left out without a word: by "text_encoders.NAME.", beside
// whose "transformer." tools keep a scale that nothing here reads.
void check_encoders(const Family& family, const Checkpoint& file) {
  constexpr std::string_view kEncoders = "text_encoders.";
  const auto name_of_encoder = [&](std::string_view name) {
    return name.substr(0, name.find('.', kEncoders.size()) + 1);
  };
  for (const Checkpoint::Item& item : file.items()) {
    const std::string_view name = item.entry->name;
    if (!name.starts_with(kEncoders)) continue;
    const bool known = std::ranges::any_of(family.parts_of_file, [&](const auto& part) {
      return std::ranges::any_of(part.within, [&](std::string_view within) {
        return name_of_encoder(within) == name_of_encoder(name);
      });
    });
    if (known) continue;
    throw Error(ErrorCode::kInvalidInput, file.path().string(), "'{}' is of no encoder of {}",
                printable(name), family.title);
  }
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
  const Checkpoint file = Checkpoint::open(path);
  const Family& family = family_of_file(file);
  if (base.empty()) refuse_without_base(family, file);
  // A file that holds the rest asks for no more than tokenizers.
  const bool is_model = path_exists(base / "model_index.json");
  if (!path_exists(base) || is_model || family.parts_of_file.empty()) {
    const Family& around = family_of_folder(base);
    if (&around != &family) {
      throw Error(ErrorCode::kUsage, "base", "'{}' is a {} model, and '{}' a {} one",
                  printable(base.string()), around.title, printable(path.string()), family.title);
    }
  }
  ModelFiles files{base, path};
  if (!family.parts_of_file.empty()) check_encoders(family, file);
  for (const Family::PartOfFile& part : family.parts_of_file) find_part(part, file, files);
  return {&family, std::move(files)};
}

const Family* whole_model_in(const Checkpoint& file) {
  const auto families_of_all = families();
  const auto found = std::ranges::find_if(families_of_all, [&](const Family& family) {
    return family.is_denoiser(file) &&
           std::ranges::any_of(family.parts_of_file,
                               [&](const auto& part) { return prefix_of(part, file).has_value(); });
  });
  return found == families_of_all.end() ? nullptr : &*found;
}

}  // namespace halftone
