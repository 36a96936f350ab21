// How far what text encoders give in one precision is from what they give in another.
#pragma once

#include <string>
#include <vector>

#include "halftone/engine/pipeline.h"
#include "halftone/engine/spread.h"

namespace halftone {

// Of one output of one encoder: the cosine of each token's states, or of a prompt's one vector,
// over all prompts.
struct TextParity {
  std::string encoder, output;  // "text_encoder_2", "states"
  Spread cosine;
};

// Of each prompt what its encoders gave, as Pipeline::encoder_results has it.
struct TextPair {
  const std::vector<NamedTensors>* reference;
  const std::vector<NamedTensors>* compared;
  std::vector<int64_t> tokens;  // of the prompt, per encoder: states behind them are not read
};
// Nothing where the encoders are not the same ones.
std::vector<TextParity> text_parity(const std::vector<std::string>& encoders,
                                    const std::vector<TextPair>& prompts);

// How many tokens of each encoder's states a denoiser may be given.
std::vector<int64_t> read_tokens(const Conditioner& conditioner, const std::string& prompt);

}  // namespace halftone
