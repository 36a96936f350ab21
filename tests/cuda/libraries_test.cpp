// CUDA's libraries are opened when they are needed, and not before.
#include "halftone/kernels/cuda/libraries.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace halftone::cuda {
namespace {

bool in_memory(const std::string& library) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(library) != std::string::npos) return true;
  }
  return false;
}

TEST(CudaLibraries, AreOpenedAtTheFirstCall) {
  ASSERT_FALSE(in_memory("libcublasLt")) << "the program would need it to start";
  EXPECT_GE(cudnn().cudnnGetVersion(), 90000U);
  EXPECT_GE(cublaslt().cublasLtGetVersion(), 130000U);
  int major = 0, minor = 0;
  ASSERT_EQ(nvrtc().nvrtcVersion(&major, &minor), NVRTC_SUCCESS);
  EXPECT_GE(major, 13);
  for (const char* library : {"libcublasLt", "libcudnn", "libnvrtc"}) {
    EXPECT_TRUE(in_memory(library)) << library;
  }
}

}  // namespace
}  // namespace halftone::cuda
