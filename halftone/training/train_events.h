// What a run tells while it goes on. Values: a terminal, a file of JSON lines and a server show the
// same ones.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "halftone/engine/precision.h"
#include "halftone/runtime/side_sums.h"
#include "halftone/training/dataset.h"

namespace halftone {

struct Preparing {
  std::string stage;  // "pictures", "captions"
  int64_t done = 0, total = 0;
};

struct TrainModelLoaded {
  std::string path, family;
  Choice precision, backward, compile, device;
  std::map<std::string, int> formats;                     // format -> base linears stored in it
  std::vector<std::pair<std::string, std::string>> kept;  // weight, why it stays as it is
  std::string mode;                                       // lora, full or qat
  int64_t parts = 0, parameters = 0;                      // adapters or weights, and their values
  int64_t planned_bytes = 0;                              // the most that the run will hold
  int processes = 1;                                      // that train together
  Choice sums;  // of their gradients: nccl, or host, which is the CPU's memory
};

struct TrainProgress {
  int64_t step = 0, total = 0;
  double loss = 0, average_loss = 0, learning_rate = 0, gradient_norm = 0;
  double samples_per_second = 0;  // of this run, without its first step
  int64_t peak_bytes = 0;
  double seconds_left = 0;
  std::optional<SumSeconds> sums;  // of the step's gradients, where there are other processes
};

// Of pictures that are not trained on.
struct HeldOutLoss {
  int64_t step = 0;  // 0: before the first
  double loss = 0;
};

// How gradients agree with those of a base in high precision.
struct GradientsChecked {
  double mean = 0, worst = 0;  // cosines
  std::string worst_weight;
};

struct TrainWarning {
  std::string message;
};

struct CheckpointSaved {
  int64_t step = 0;
  std::string path;
};

struct SampleMade {
  int64_t step = 0;
  std::string path, prompt;
};

struct TrainComplete {
  std::string path;
  int64_t step = 0;
  double loss = 0, seconds = 0;         // the mean of the last tenth
  std::string report;                   // a page; empty: none
  std::optional<SumSeconds> sums = {};  // of the run, where there are other processes
};

using TrainEvent =
    std::variant<Preparing, TrainModelLoaded, TrainProgress, TrainWarning, CheckpointSaved,
                 SampleMade, HeldOutLoss, GradientsChecked, TrainComplete>;
using TrainSink = std::function<void(const TrainEvent&)>;

}  // namespace halftone
