// What a run trains on: pictures and captions found, encoded, counted, and what is odd about them
// told.
#pragma once

#include <functional>
#include <optional>

#include "halftone/training/train.h"
#include "halftone/training/train_samples.h"

namespace halftone {

struct TrainData {
  std::vector<TrainExample> examples, held_out;
  Condition no_caption;  // where captions are dropped
  size_t pictures = 0, priors = 0;
  std::vector<SkippedFile> skipped;
  std::map<std::string, int64_t> sizes;  // pictures of each
  std::string hash;                      // of all of it but what is held out
  std::string held_out_hash;
  std::optional<TrainSamples> samples;  // where some are made on the way
};

// Where what happens is told.
struct TrainListener {
  std::function<void(const std::string&)> warn;
  const TrainSink& events;
};

// Pictures are brought to about this square: the model's own where none is given.
int64_t resolution_of(const TrainOptions& options, const LoadedModel& loaded);

// An Error that names the field where nothing can be used.
Dataset find_data(const char* field, const std::filesystem::path& folder,
                  const CaptionRules& rules);

// By the model's encoders. What is encoded is kept, whatever happens.
TrainData prepare_data(const TrainOptions& options, LoadedModel& loaded, const Dataset& data,
                       const Dataset& prior, const Dataset& held_out,
                       const TrainListener& listener);

// "style.safetensors" -> "style.cache"
std::filesystem::path beside(const std::filesystem::path& output, const char* extension);

}  // namespace halftone
