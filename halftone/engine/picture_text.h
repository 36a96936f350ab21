// What a picture's file says of how it was made.
#pragma once

#include <string>
#include <vector>

#include "halftone/engine/engine.h"
#include "halftone/io/png.h"

namespace halftone {

// Of picture `index` of a request; the hash is Model::hash, which reads all files. The entry
// "settings" is a fingerprint of the schedule, the adapters' weights and given noise.
PngText picture_text(const LoadedModel& loaded, const GenerateRequest& request,
                     const std::string& model_hash, int index);

// The same with what came out beside the picture: where steps may be reused, those that were.
PngText told_picture_text(PngText text, const GenerateRequest& request,
                          const std::vector<int>& reused);
// Whether an entry says what came out, rather than what was asked.
bool is_outcome(const std::string& entry);
// The steps that a picture's file says were reused.
std::vector<int> reused_steps(const PngText& text);

}  // namespace halftone
