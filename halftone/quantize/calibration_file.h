// What an interrupted calibration had seen, as a file from which it goes on. The file lies in the
// user's folder, so that everything in it is checked before any of it is believed.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "halftone/quantize/calibrate.h"

namespace halftone {

// What a calibration's file must hold.
struct CalibrationLayout {
  std::string fingerprint;  // of model and options
  int prompts = 0, steps = 0;
  std::vector<std::pair<int, int>> points;  // prompt and step of each, in the order of the run
  Shape latents;
  std::map<std::string, int64_t> inputs;   // weight -> width of its input
  std::map<std::string, int64_t> moments;  // the same, of those whose moments are summed
};

struct CalibrationProgress {
  int done = 0;  // prompts
  std::map<std::string, InputRange> inputs;
  std::map<std::string, InputMoments> moments;
  std::vector<CalibrationPoint> points;
};

void write_calibration(const std::filesystem::path& path, const std::string& fingerprint, int done,
                       const Calibration& calibration);
// An Error that names the file and what does not fit.
CalibrationProgress read_calibration(const std::filesystem::path& path,
                                     const CalibrationLayout& layout);

// Losses that a search has measured, in the order in which it does: 0 to kNoNumber each.
inline constexpr double kNoNumber = 2;  // worse than any cosine
struct LossLayout {
  std::string fingerprint;
  size_t most = 0;
};
void write_losses(const std::filesystem::path& path, const std::string& fingerprint,
                  const std::vector<double>& losses);
std::vector<double> read_losses(const std::filesystem::path& path, const LossLayout& layout);

}  // namespace halftone
