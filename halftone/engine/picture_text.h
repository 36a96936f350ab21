// What a picture's file says of how it was made.
#pragma once

#include "halftone/engine/engine.h"
#include "halftone/io/png.h"

namespace halftone {

// Of picture `index` of a request; the hash is Model::hash, which reads all files. The entry
// "settings" is a fingerprint of the schedule, the adapters' weights and given noise.
PngText picture_text(const LoadedModel& loaded, const GenerateRequest& request,
                     const std::string& model_hash, int index);

}  // namespace halftone
