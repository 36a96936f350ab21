// How a run trains: its rules, as values.
#pragma once

#include <string>
#include <vector>

#include "halftone/kernels/op_args.h"
#include "halftone/passes/recompute.h"
#include "halftone/training/objective.h"

namespace halftone {

enum class RateShape : uint8_t { kConstant, kCosine };

// An adapter; the weights of the denoiser; or these so that they lose less by being quantized.
enum class TrainMode : uint8_t { kLora, kFull, kQat };
std::string to_string(TrainMode mode);

struct TrainRules {
  TrainMode mode = TrainMode::kLora;
  bool teacher = false;  // targets are what the weights predict before they are rounded and trained
  int64_t steps = 1000, batch = 1, accumulate = 1;  // steps of the optimizer, each of this many
                                                    // batches
  int64_t rank = 16;
  float alpha = 16;
  std::vector<std::string> targets;  // patterns of weights; empty: every linear of the blocks, or
                                     // every weight
  AdamWArgs optimizer;               // its rate is the highest one
  RateShape rate = RateShape::kConstant;
  int64_t warmup = 0;          // steps in which the rate rises
  double clip = 1;             // of the gradient's norm; 0: none
  SigmaDraw sigmas;            // for velocity models
  double min_snr = 0;          // for the others; 0: off
  bool train_text = false;     // mode lora: adapters of text encoders, too
  double caption_dropout = 0;  // share of examples that are shown without their caption
  float dropout = 0;           // share of what adapters read that is zero
  bool small_moments = false;  // of the optimizer, in 8 bits
  bool small_weights = false;  // modes full and qat: in BF16, rounded by chance, without F32 ones
  bool fp8_gradients = false;  // of outputs of linears whose weights are quantized, in E5M2
  bool fp8_weight_gradients = false;  // modes full and qat: products of E5M2 and E4M3
  Recompute recompute = Recompute::kRows;
  double average = 0;  // decay of a running mean of the adapters, which is then the result
  bool check_gradients = false;  // early on, against those of a base in high precision
  bool overlap = true;  // several processes sum gradients while others are still being computed
  int64_t bucket = 0;   // values that are summed at a time, about; 0: what suits
  uint64_t seed = 0;
};

}  // namespace halftone
