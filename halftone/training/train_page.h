// A run as a page: how the loss went, what the adapter drew on its way, how fast, in what memory.
#pragma once

#include <string>

#include "halftone/training/train.h"

namespace halftone {

// One HTML file with everything in it. Samples are read from their files.
std::string train_page(const TrainResult& result, const TrainOptions& options);

}  // namespace halftone
