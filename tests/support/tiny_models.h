// A tiny model of every family that runs, for tests that hold for all of them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace halftone::test {

struct TinyModel {
  std::string family;  // as the table of families has it
  void (*write)(const std::filesystem::path& folder);
  int64_t width, height;  // of a small picture
  float guidance;         // that is on
  std::string adapted;    // a linear that adapters may change, as diffusers names it
  int64_t in, out;        // of that linear
  // The network reads guidance, and two predictions have a strength of their own.
  bool reads_guidance = false;
  std::string unread = {};    // a linear's weight whose results nothing reads, as we name it
  std::string constant = {};  // a weight that is never trained
  // So many times as much as in others, a rounding that turns changes what it predicts.
  double sensitivity = 1;
};
const std::vector<TinyModel>& tiny_models();
// The same; under sanitizers one, in which they find what they would find in the next.
std::vector<TinyModel> few_tiny_models();

}  // namespace halftone::test
