// Skips as a whole, and says so, where there is no GPU.
#include <gtest/gtest.h>

#include <cstdio>

#include "halftone/runtime/devices.h"
#include "tests/support/backend.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const halftone::GpuList gpus = halftone::list_gpus();
  if (gpus.gpus.empty()) {
    std::printf("skipped: %s\n", gpus.note.c_str());
    return 77;
  }
  const int failed = RUN_ALL_TESTS();
  halftone::test::end_tested_device();
  return failed;
}
