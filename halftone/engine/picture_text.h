// What a picture's file says of how it was made.
#pragma once

#include "halftone/engine/engine.h"
#include "halftone/io/png.h"

namespace halftone {

// Of picture `index` of a request; the hash is Model::hash, which reads all files.
PngText picture_text(const LoadedModel& loaded, const GenerateRequest& request,
                     const std::string& model_hash, int index);

}  // namespace halftone
