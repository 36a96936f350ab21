// Files of adapters for tests of the server, as bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace halftone::test {

struct LoraTensor {
  std::string name;
  std::vector<int64_t> shape;
  float value = 0.01f;  // of every element
  std::string dtype = "F32";
};
std::string safetensors_bytes(const std::vector<LoraTensor>& tensors,
                              const std::string& metadata = "");

// A module of the model that comes with the program, and its weight's shape: [out, in].
struct LoraModule {
  std::string path;
  int64_t out = 0, in = 0;
};
LoraModule some_lora_module();
// An adapter of rank 2 for it.
std::string some_lora(float value = 0.01f);

}  // namespace halftone::test
