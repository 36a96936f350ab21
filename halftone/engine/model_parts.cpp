#include "halftone/engine/model_parts.h"

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/engine/checks.h"
#include "halftone/io/config_reader.h"
#include "halftone/io/json.h"
#include "halftone/io/model_hash.h"
#include "halftone/tensor/storage.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

void check_fit(const ModelParts& parts) {
  const auto fail = [&](const std::string& reason) {
    throw Error(ErrorCode::kInvalidInput, parts.files.base.string(), "components do not fit: {}",
                reason);
  };
  const Denoiser& denoiser = *parts.denoiser;
  if (parts.conditioner->features() != denoiser.text_features()) {
    fail(fmt::format("text states of {} for a {} that takes {}", parts.conditioner->features(),
                     denoiser.folder(), denoiser.text_features()));
  }
  const VectorWidths given = parts.conditioner->vectors();
  for (const auto& [name, width] : denoiser.vectors()) {
    const auto found = given.find(name);
    if (found != given.end() && found->second == width) continue;
    fail(found == given.end() ? fmt::format("no vector '{}' for a {} that takes one of {}", name,
                                            denoiser.folder(), width)
                              : fmt::format("a vector '{}' of {} for a {} that takes one of {}",
                                            name, found->second, denoiser.folder(), width));
  }
  if (parts.codec->channels() != denoiser.channels()) {
    fail(fmt::format("a VAE of {} channels for a {} of {}", parts.codec->channels(),
                     denoiser.folder(), denoiser.channels()));
  }
}

// The small files of a model's folder, by their names there. How it is sampled is said with every
// request.
std::string hash_of_settings(const fs::path& base) {
  std::map<std::string, fs::path> found;
  std::error_code none;
  const auto add = [&](const fs::path& path, const std::string& name) {
    const auto kind = path.extension();
    if (kind != ".json" && kind != ".txt" && kind != ".model" && kind != ".jinja") return;
    if (!name.ends_with(".index.json") && fs::is_regular_file(path, none))
      found.emplace(name, path);
  };
  for (const auto& entry : fs::directory_iterator(base, none)) {
    const std::string name = entry.path().filename().string();
    if (name == "model_index.json") add(entry.path(), name);
    if (name == "scheduler" || !entry.is_directory(none)) continue;
    for (const auto& inner : fs::directory_iterator(entry.path(), none)) {
      add(inner.path(), name + "/" + inner.path().filename().string());
    }
  }
  std::string all;
  for (const auto& [name, path] : found) {
    all += name + "\n";
    if (fs::file_size(path, none) == 0) continue;
    const auto file = Storage::map_file(path);
    const auto bytes = file->bytes();
    all += text_hash({reinterpret_cast<const char*>(bytes.data()), bytes.size()}) + "\n";
  }
  return text_hash(all);
}

// What a model's folder recommends, over what its family usually takes.
Sampling read_recommended(const ModelParts& parts) {
  Sampling sampling = parts.sampling;
  const fs::path file = parts.files.base / "halftone.json";
  if (!path_exists(file)) return sampling;
  const auto json = read_json_file(file);
  const std::string where = file.string();
  const ConfigReader read(json, where);
  sampling.width = read.integer("width", sampling.width, 1, 65536);
  sampling.height = read.integer("height", sampling.height, 1, 65536);
  sampling.steps = static_cast<int>(read.integer("steps", sampling.steps, 1, kMostSteps));
  sampling.guidance = static_cast<float>(read.number("guidance", sampling.guidance, 0, 100));
  read.finish();
  try {
    check_guidance(sampling.guidance, sampling);
  } catch (const Error&) {
    read.fail("guidance", "is for a distilled model, which takes none");
  }
  if (!read.has("width") && !read.has("height")) return sampling;
  try {
    parts.latent_shape(sampling.width, sampling.height);
  } catch (const Error& error) {  // nobody asked for this size but the file
    throw Error(ErrorCode::kInvalidInput, where, "'width' and 'height': {}", error.message());
  }
  return sampling;
}

}  // namespace

ModelParts ModelParts::read(const FoundModel& found) {
  ModelParts parts;
  parts.family = found.family;
  parts.files = found.files;
  parts.denoiser = found.family->denoiser(found.files);
  parts.conditioner = found.family->conditioner(found.files);
  parts.codec = found.family->codec(found.files);
  parts.sampling = found.family->sampling(found.files);
  check_fit(parts);
  parts.recommended = read_recommended(parts);
  parts.settings_hash = hash_of_settings(parts.files.base);
  return parts;
}

int64_t ModelParts::size_multiple() const { return codec->scale() * denoiser->patch(); }

fs::path ModelParts::denoiser_path() const {
  return files.denoiser.empty() ? files.of(denoiser->folder()) : files.denoiser;
}

Shape ModelParts::latent_shape(int64_t width, int64_t height) const {
  const int64_t multiple = size_multiple();
  if (width < multiple || height < multiple || width % multiple != 0 || height % multiple != 0) {
    throw Error(ErrorCode::kUsage, "size",
                "{}x{} is not allowed: width and height must be multiples of {}", width, height,
                multiple);
  }
  const int64_t h = height / codec->scale(), w = width / codec->scale();
  const auto [rows, columns] = denoiser->most_patches();
  if (h / denoiser->patch() > rows || w / denoiser->patch() > columns) {
    throw Error(ErrorCode::kUsage, "size",
                "{}x{} is more than the {}x{} that {}/config.json has positions for", width, height,
                columns * multiple, rows * multiple, denoiser->folder());
  }
  return {1, denoiser->channels(), h, w};
}

AdaptedModel ModelParts::adapted() const {
  AdaptedModel all;
  all.denoiser = denoiser->lora_targets(*denoiser->build(denoiser->smallest_shape(), {}));
  for (size_t i = 0; i < conditioner->folders().size(); ++i) {
    all.encoders.push_back(conditioner->adapted(i));
  }
  return all;
}

}  // namespace halftone
