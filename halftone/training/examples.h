// Pictures and captions as a denoiser takes them: each through its encoder once, and kept on disk.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "halftone/engine/pipeline.h"
#include "halftone/training/buckets.h"
#include "halftone/training/dataset.h"
#include "halftone/training/example_cache.h"
#include "halftone/training/train_events.h"
#include "halftone/training/trainer.h"

namespace halftone {

struct PreparedExamples {
  std::vector<TrainExample> examples;
  std::vector<SkippedFile> skipped;      // pictures that cannot be read, captions too long
  std::map<std::string, int64_t> sizes;  // pictures of each size, "64x64"
  int64_t enlarged = 0;                  // pictures that are smaller than what they are brought to
  std::string hash;                      // of pictures, captions and sizes
  std::map<std::string, std::string> files;  // pictures by the hash of their bytes
};

class ExampleMaker {
 public:
  // With `ids`, captions are not encoded: encoders are trained, too.
  ExampleMaker(Pipeline& pipeline, ExampleCache& cache, int64_t resolution, bool ids = false);

  // [1, 3, H, W] of the size that takes the most memory.
  Shape largest_picture() const;
  bool encodes() const { return !ids_; }
  // A caption's condition.
  Condition text(const std::string& caption);
  // Adds these, with this weight of their loss.
  void add(const Dataset& data, float weight, const std::function<void(const Preparing&)>& events);
  const PreparedExamples& so_far() const { return made_; }  // but for the hash
  PreparedExamples finish() const;

 private:
  struct Made {
    TrainExample example;
    std::string size, file, hash;  // of the file, and with the size
    bool enlarged = false;
  };
  Made make(const DataItem& item, float weight);

  Pipeline& pipeline_;
  ExampleCache& cache_;
  bool ids_;
  std::vector<PictureSize> buckets_;
  std::string text_source_, picture_source_;  // what a cached file follows from besides its own
  std::string all_;                           // what the hash is of
  PreparedExamples made_;
};

}  // namespace halftone
