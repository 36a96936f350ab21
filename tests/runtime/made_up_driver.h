// A made-up NVIDIA driver: what made_up_driver.cpp, built as libcuda.so.1, tells of a machine. The
// program that loads the library by this name then sees these GPUs.
#pragma once

#include <cstddef>

namespace halftone::test {

struct MadeUpGpu {
  const char* name;
  int major, minor;
  size_t memory;
  bool answers = true;
};

struct MadeUpMachine {
  int start_error = 0;
  int version = 13000;
  int count = 0;
  MadeUpGpu gpus[8] = {};
};

}  // namespace halftone::test
