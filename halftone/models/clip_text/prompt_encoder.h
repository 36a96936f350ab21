// CLIP as one of a family's text encoders.
#pragma once

#include "halftone/models/clip_text/text_encoder.h"
#include "halftone/models/prompt_encoder.h"

namespace halftone::clip_text {

// Which of a model's folders it is in, and what is asked of it. `states_before_last` are those that
// go into the last layer.
struct EncoderPlace {
  std::string folder, tokenizer;
  bool states_before_last = false;
  bool projected = false;
  // Where a file holds the encoder: what shapes do not tell, and whether its vector is projected
  // there, too.
  Config usual = clip_l();
  bool projected_in_file = true;
  bool pooled = true;                 // without the vector, layers after the states do not run
  std::string comfy_name = "clip_l";  // as files of adapters for ComfyUI call it
};
std::unique_ptr<PromptEncoder> make_encoder(const ModelFiles& files, const EncoderPlace& place,
                                            Config* config = nullptr);

}  // namespace halftone::clip_text
