// The list of GPUs, from a made-up driver. An executable of its own: a real driver, once loaded,
// stays for good.
#include "halftone/runtime/devices.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/made_up_driver.h"

namespace halftone {
namespace {

class MadeUpDriver : public testing::Test {
 protected:
  // Whoever asks for libcuda.so.1 from now on is given the one that is already loaded.
  void SetUp() override {
    // Libraries of a build with CUDA may have brought the real one, which cannot be replaced.
    if (void* real = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)) {
      ::dlclose(real);
      if (::dlsym(real, "made_up_machine") == nullptr) GTEST_SKIP() << "the real driver is loaded";
    }
    library_ = ::dlopen(HALFTONE_MADE_UP_DRIVER, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << ::dlerror();
    machine_ = static_cast<test::MadeUpMachine*>(::dlsym(library_, "made_up_machine"));
    ASSERT_NE(machine_, nullptr);
    *machine_ = {};
  }
  void TearDown() override {
    if (library_ != nullptr) ::dlclose(library_);
  }

  void* library_ = nullptr;
  test::MadeUpMachine* machine_ = nullptr;
};

TEST_F(MadeUpDriver, DifferentGpusAreListedAndJudgedApart) {
  machine_->count = 3;
  machine_->gpus[0] = {"A100", 8, 0, size_t{40} << 30};
  machine_->gpus[1] = {"broken", 9, 0, 1, /*answers=*/false};
  machine_->gpus[2] = {"B200", 10, 0, size_t{180} << 30};
  const GpuList list = list_gpus();
  EXPECT_EQ(list.driver, "13.0");
  EXPECT_EQ(list.note, "");
  ASSERT_EQ(list.gpus.size(), 2u);
  const DeviceInfo &first = list.gpus[0], &second = list.gpus[1];
  EXPECT_EQ(first.device.str(), "cuda:0");
  EXPECT_EQ(first.name, "A100");
  EXPECT_EQ(first.capability(), 80);
  EXPECT_EQ(first.memory_bytes, int64_t{40} << 30);
  EXPECT_EQ(second.device.str(), "cuda:2");  // as CUDA numbers it, whoever does not answer
  EXPECT_EQ(second.name, "B200");
  EXPECT_EQ(second.capability(), 100);
  EXPECT_EQ(second.memory_bytes, int64_t{180} << 30);
  EXPECT_EQ(format_support(first, formats::nvfp4).support, Support::kEmulated);
  EXPECT_EQ(format_support(second, formats::nvfp4).support, Support::kNative);
}

TEST_F(MadeUpDriver, WithoutGpusTheReasonIsTold) {
  machine_->version = 12040;
  const GpuList none = list_gpus();
  EXPECT_TRUE(none.gpus.empty());
  EXPECT_EQ(none.driver, "12.4");
  EXPECT_EQ(none.note, "the NVIDIA driver lists no GPU");
  machine_->start_error = 100;
  machine_->count = 1;
  machine_->gpus[0] = {"A100", 8, 0, 1};
  const GpuList broken = list_gpus();
  EXPECT_TRUE(broken.gpus.empty());
  EXPECT_EQ(broken.note, "the NVIDIA driver did not start (error 100)");
}

}  // namespace
}  // namespace halftone
