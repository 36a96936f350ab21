// Pictures of an adapter on its way, through the file that others would load.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "halftone/engine/engine.h"
#include "halftone/training/dataset.h"
#include "halftone/training/examples.h"
#include "halftone/training/train.h"
#include "halftone/training/trainer.h"

namespace halftone {

class TrainSamples {
 public:
  // Pictures go to `folder`; they are squares of the resolution where no size is given.
  TrainSamples(const SampleOptions& options, std::filesystem::path folder, int64_t resolution)
      : options_(options), folder_(std::move(folder)), resolution_(resolution) {}

  // While there are encoders: the prompts, or the first captions of the data where none are given.
  void encode_prompts(const Dataset& data, ExampleMaker& maker);
  // What a pipeline without encoders has to know.
  void tell(Pipeline& pipeline) const;
  ModelMemory plan(const LoadedModel& loaded) const;
  size_t count() const { return options_.prompts.size(); }  // at a time
  // One picture of each prompt, with an adapter or without.
  using MadeFn = std::function<void(const SampleMade&)>;
  void make(LoadedModel& loaded, const TrainedLora& adapter, const std::string& model_hash,
            int64_t step, const MadeFn& made) const;
  void make(LoadedModel& loaded, const std::string& model_hash, int64_t step,
            const MadeFn& made) const;

 private:
  GenerateRequest request(const LoadedModel& loaded, const std::string& prompt) const;

  SampleOptions options_;
  std::filesystem::path folder_;
  int64_t resolution_;
  std::map<std::string, Condition> known_;  // by prompt
};

// A folder that may be there already; an Error that names it where it cannot be made.
void make_folder(const std::filesystem::path& folder);

}  // namespace halftone
