// Weights that calibration has rounded, as a file: what their moments were needed for, so that
// these can be dropped, and what an interrupted run goes on with. The file lies in the user's
// folder: everything in it is checked before any of it is believed.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "halftone/tensor/quantized_tensor.h"

namespace halftone {

// By weight and name of the format.
using RoundedWeights = std::map<std::pair<std::string, std::string>, QuantizedTensor>;

// What such files may hold.
struct RoundedLayout {
  std::string fingerprint;  // of model and options
  struct Weight {
    Shape shape;
    std::vector<Format> formats;
  };
  std::map<std::string, Weight> weights;
};

void write_rounded(const std::filesystem::path& path, const std::string& fingerprint,
                   const RoundedWeights& weights);
// Some of the layout's weights. Codes stay in the file, which is mapped. An Error that names the
// file and what does not fit.
RoundedWeights read_rounded(const std::filesystem::path& path, const RoundedLayout& layout);

}  // namespace halftone
