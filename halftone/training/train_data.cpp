#include "halftone/training/train_data.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/runtime/devices.h"
#include "halftone/training/examples.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_data(const char* field, const fs::path& folder,
                              const std::vector<SkippedFile>& skipped) {
  const std::string name = printable(folder.string());
  if (skipped.empty()) {
    throw Error(ErrorCode::kInvalidInput, field,
                "'{}' holds no picture (.png, .jpg, .jpeg or .webp)", name);
  }
  throw Error(ErrorCode::kInvalidInput, field,
              "nothing is left of '{}': {} files are skipped, the first because '{}' {}", name,
              skipped.size(), printable(skipped[0].file), skipped[0].why);
}

// Large pictures need more memory to be encoded than to be trained on.
void check_encoding_fits(const LoadedModel& loaded, const Dataset& data, const ExampleMaker& maker,
                         int64_t limit) {
  std::vector<std::string> captions;
  for (const DataItem& item : data.items) captions.push_back(item.caption);
  ModelMemory memory = loaded.pipeline->plan_encoding(maker.largest_picture(), captions);
  if (loaded.context == nullptr) {
    memory.process = std::max<int64_t>(0, anonymous_memory() - memory.owned_weights);
  }
  try {
    check_memory(loaded, memory, limit);
  } catch (const Error& error) {  // what training takes is known when everything is encoded
    throw Error(error.code(), error.where(),
                "{}; that is to encode pictures, and to train may take more", error.message());
  }
}

void tell_oddities(const TrainData& made, int64_t enlarged, int64_t batch,
                   const TrainListener& listener) {
  if (!made.skipped.empty()) {
    listener.warn(fmt::format("{} files are skipped; the first: {}: {}", made.skipped.size(),
                              printable(made.skipped[0].file), made.skipped[0].why));
  }
  if (enlarged > 0) {
    listener.warn(fmt::format("{} pictures are smaller than what they are trained at, and enlarged",
                              enlarged));
  }
  const auto few =
      std::ranges::count_if(made.sizes, [&](const auto& size) { return size.second < batch; });
  if (few > 0) {
    listener.warn(
        fmt::format("{} of {} sizes have fewer pictures than a batch of {}, which holds some of "
                    "them twice",
                    few, made.sizes.size(), batch));
  }
}

// A loss on what is learned by heart says nothing.
void tell_shared(const std::map<std::string, std::string>& held_out,
                 const std::map<std::string, std::string>& trained, const TrainListener& listener) {
  size_t count = 0;
  std::string first;
  for (const auto& [hash, picture] : held_out) {
    if (!trained.contains(hash)) continue;
    if (count++ == 0 || natural_less(picture, first)) first = picture;
  }
  if (count == 0) return;
  listener.warn(fmt::format("held-out: {} of {} pictures are trained on, too; the first: {}", count,
                            held_out.size(), printable(first)));
}

}  // namespace

fs::path beside(const fs::path& output, const char* extension) {
  fs::path path = output;
  return path.replace_extension(extension);
}

int64_t resolution_of(const TrainOptions& options, const LoadedModel& loaded) {
  if (options.resolution > 0) return options.resolution;
  return std::min(loaded.sampling.width, loaded.sampling.height);
}

Dataset find_data(const char* field, const fs::path& folder, const CaptionRules& rules) {
  Dataset found;
  try {
    found = find_pictures(folder, rules);
  } catch (const Error& error) {
    throw Error(error.code(), field, "'{}' {}", printable(folder.string()), error.message());
  }
  if (found.items.empty()) refuse_data(field, folder, found.skipped);
  return found;
}

TrainData prepare_data(const TrainOptions& options, LoadedModel& loaded, const Dataset& data,
                       const Dataset& prior, const Dataset& held_out,
                       const TrainListener& listener) {
  const int64_t resolution = resolution_of(options, loaded);
  const fs::path folder = options.cache.empty() ? beside(options.output, ".cache") : options.cache;
  make_folder(folder);
  ExampleCache cache(folder);
  const bool ids = options.rules.train_text;
  ExampleMaker maker(*loaded.pipeline, cache, resolution, ids);
  const auto tell = [&](const Preparing& at) { listener.events(at); };
  check_encoding_fits(loaded, data, maker, options.max_memory);
  maker.add(data, 1, tell);
  TrainData made;
  made.pictures = maker.so_far().examples.size();
  if (made.pictures == 0) refuse_data("data", options.data, maker.so_far().skipped);
  if (!prior.items.empty()) maker.add(prior, static_cast<float>(options.prior_weight), tell);
  if (options.rules.caption_dropout > 0) made.no_caption = maker.text("");
  PreparedExamples prepared = maker.finish();
  made.priors = prepared.examples.size() - made.pictures;
  made.skipped = std::move(prepared.skipped);
  made.sizes = std::move(prepared.sizes);
  made.hash = std::move(prepared.hash);
  made.examples = std::move(prepared.examples);
  if (!held_out.items.empty()) {  // no part of what the run follows from
    ExampleMaker apart(*loaded.pipeline, cache, resolution, ids);
    apart.add(held_out, 1, tell);
    PreparedExamples kept = apart.finish();
    if (kept.examples.empty()) refuse_data("held-out", options.held_out.data, kept.skipped);
    tell_shared(kept.files, prepared.files, listener);
    made.held_out = std::move(kept.examples);
    made.held_out_hash = std::move(kept.hash);
    made.skipped.insert(made.skipped.end(), kept.skipped.begin(), kept.skipped.end());
  }
  tell_oddities(made, prepared.enlarged, options.rules.batch, listener);
  if (cache.damaged() > 0) {
    listener.warn(fmt::format("{} files in {} were damaged, and made again", cache.damaged(),
                              printable(folder.string())));
  }
  if (options.samples.every == 0) return made;
  made.samples.emplace(options.samples, beside(options.output, ".samples"), resolution);
  made.samples->encode_prompts(data, maker);
  return made;
}

}  // namespace halftone
