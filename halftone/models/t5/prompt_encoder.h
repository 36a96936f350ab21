// T5 as one of a family's text encoders: prompts are filled up, and what fills them is attended to.
#pragma once

#include "halftone/models/prompt_encoder.h"
#include "halftone/models/t5/text_encoder.h"

namespace halftone::t5 {

struct EncoderPlace {
  std::string folder, tokenizer;
  int64_t tokens = 512;
};
std::unique_ptr<PromptEncoder> make_encoder(const ModelFiles& files, const EncoderPlace& place,
                                            Config* config = nullptr);

}  // namespace halftone::t5
