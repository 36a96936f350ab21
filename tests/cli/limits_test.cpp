// The program where the system gives it little: it says so in a line and ends, never by a signal.
#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "tests/cli/process.h"
#include "tests/support/sanitizers.h"
#include "tests/support/tiny_zimage.h"

namespace halftone {
namespace {

using test::Result;

class CliLimits : public test::Cli {
 protected:
  void SetUp() override {
#if defined(HALFTONE_SANITIZED)
    GTEST_SKIP() << "a sanitizer needs the whole address space";
#endif
    const std::filesystem::path data = HALFTONE_TEST_DATA;
    const auto description = test::one_layer_zimage();
    test::write_zimage_folder(dir_ / "model", description, data / "tokenizer" / "tokenizer.json");
  }

  // The least address space that the program can be loaded in, in MiB: builds with CUDA map large
  // libraries.
  int64_t least_to_load() {
    int64_t mebibytes = 30;
    while (mebibytes < 8192 && run({"--version"}, limit_to(mebibytes)).code != 0) mebibytes += 15;
    return mebibytes;
  }
  // 0 is as much as there is.
  static std::function<void()> limit_to(int64_t mebibytes) {
    return [mebibytes] {
      if (mebibytes == 0) return;
      const auto bytes = static_cast<rlim_t>(mebibytes) << 20;
      const rlimit limit{bytes, bytes};
      ::setrlimit(RLIMIT_AS, &limit);
    };
  }
  Result generate_within(int64_t mebibytes, std::initializer_list<std::string> more) {
    std::vector<std::string> arguments = {"generate", "a", "--model", path("model"),
                                          "--steps",  "1", "-o",      path("out.png")};
    arguments.insert(arguments.end(), more);
    return run(arguments, limit_to(mebibytes));
  }
};

TEST_F(CliLimits, LittleAddressSpaceIsAnErrorAndNeverASignal) {
  int refused = 0, done = 0;
  const int64_t least = least_to_load();
  for (const char* precision : {"fp32", "nvfp4"}) {
    for (int64_t mebibytes = least + 30; mebibytes <= least + 270; mebibytes += 15) {
      const Result result = generate_within(
          mebibytes, {"--size", "128x128", "--threads", "4", "--precision", precision});
      EXPECT_TRUE(result.code == 0 || result.code == 1 || result.code == 127)  // 127: not loaded
          << mebibytes << " MiB, " << precision << ": " << result.code << " " << result.err;
      if (result.code == 1) {
        EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
        EXPECT_THAT(result.err, testing::StartsWith("halftone")) << mebibytes;
        EXPECT_THAT(result.err, testing::Not(testing::HasSubstr("internal"))) << mebibytes;
      }
      (result.code == 0 ? done : refused) += 1;
    }
  }
  EXPECT_GT(refused, 2);  // or the test proves nothing
  EXPECT_GT(done, 2);
}

TEST_F(CliLimits, ThreadsThatCannotBeStartedAreToldAndDoneWithout) {
  const Result result =
      generate_within(least_to_load() + 640, {"--size", "32x32", "--threads", "128"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err + result.out, testing::ContainsRegex("[0-9]+ threads instead of 128"));
}

TEST_F(CliLimits, PicturesBeyondAnyMemoryAreRefused) {
  // As large as the rotation tables of the configuration allow.
  const auto config =
      nlohmann::json::parse(test::read_file(dir_ / "model" / "transformer" / "config.json"));
  auto larger = config;
  larger["axes_lens"] = {512, 32768, 32768};
  test::write_file(dir_ / "model" / "transformer" / "config.json", larger.dump());
  for (const char* size : {"65536x65536", "65536x16", "16x65536", "46344x46344", "32768x32768"}) {
    const Result result = generate_within(0, {"--size", size, "--max-memory", "256MiB"});
    test::expect_one_line(result, 1, "");
  }
}

}  // namespace
}  // namespace halftone
