#include "halftone/training/train_samples.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/engine/picture_text.h"
#include "halftone/io/png.h"

namespace halftone {

namespace fs = std::filesystem;

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw Error(ErrorCode::kIo, folder.string(), "{}", error.message());
}

void TrainSamples::encode_prompts(const Dataset& data, ExampleMaker& maker) {
  constexpr size_t kUsual = 4;
  std::vector<std::string>& prompts = options_.prompts;
  const bool given = !prompts.empty();
  for (size_t i = 0; !given && i < data.items.size() && prompts.size() < kUsual; ++i) {
    const std::string& caption = data.items[i].caption;
    if (std::find(prompts.begin(), prompts.end(), caption) == prompts.end()) {
      prompts.push_back(caption);
    }
  }
  for (const std::string& prompt : prompts) {
    try {
      Condition text = maker.text(prompt);
      if (maker.encodes()) known_[prompt] = std::move(text);
    } catch (const Error& error) {
      throw Error(error.code(), "sample-prompt", "{}", error.message());
    }
  }
  if (maker.encodes()) known_[""] = maker.text("");
}

void TrainSamples::tell(Pipeline& pipeline) const {
  for (const auto& [prompt, condition] : known_) pipeline.remember(prompt, condition);
}

GenerateRequest TrainSamples::request(const LoadedModel& loaded, const std::string& prompt) const {
  GenerateRequest request = loaded.request(prompt);
  request.width = options_.width > 0 ? options_.width : resolution_;
  request.height = options_.height > 0 ? options_.height : resolution_;
  if (options_.steps > 0) request.steps = options_.steps;
  request.seed = options_.seed;
  return request;
}

ModelMemory TrainSamples::plan(const LoadedModel& loaded) const {
  return plan_generate(*loaded.pipeline, request(loaded, options_.prompts[0]));
}

void TrainSamples::make(LoadedModel& loaded, const TrainedLora& adapter,
                        const std::string& model_hash, int64_t step, const MadeFn& made) const {
  make_folder(folder_);
  const fs::path file = folder_ / ".adapter.safetensors";
  write_lora(file, adapter, LoraNaming::kDiffusers, DType::kF32, {});
  loaded.adapters = {{loaded.model->load_adapter(file.string()), 1}};
  std::error_code ignored;
  fs::remove(file, ignored);
  make(loaded, model_hash, step, made);
  loaded.adapters.clear();
}

void TrainSamples::make(LoadedModel& loaded, const std::string& model_hash, int64_t step,
                        const MadeFn& made) const {
  make_folder(folder_);
  int index = 0;
  for (const std::string& prompt : options_.prompts) {
    const GenerateRequest asked = request(loaded, prompt);
    const GenerateResult result = generate(*loaded.pipeline, asked, [](const Progress&) {});
    const fs::path picture = folder_ / fmt::format("step-{:06}-{}.png", step, ++index);
    write_png(picture, result.images[0], picture_text(loaded, asked, model_hash, 0));
    made({step, picture.string(), prompt});
  }
}

}  // namespace halftone
