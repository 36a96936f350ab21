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
  bool reads_guidance =
      false;  // the network does, and two predictions have a strength of their own
};
const std::vector<TinyModel>& tiny_models();

}  // namespace halftone::test
