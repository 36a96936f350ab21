// Runs the program as a user does: a process, its output and its exit code.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/io/safetensors_writer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensors.h"

namespace halftone::test {

namespace fs = std::filesystem;

// Where the build reads no recipes and no --config, for which it needs toml++.
#if defined(HALFTONE_TOML)
#define HT_NEEDS_TOML() static_cast<void>(0)
#else
#define HT_NEEDS_TOML() GTEST_SKIP() << "this build has no toml++"
#endif

struct Result {
  int code;
  std::string out, err;
};

// Commands that run a model do so on the CPU, unless the arguments name a device: what a test
// expects must not depend on the machine that it runs on.
inline std::vector<std::string> on_cpu(std::vector<std::string> arguments) {
  constexpr std::string_view kRunModels[] = {"compare", "generate", "quantize", "sheet", "train"};
  const bool runs = !arguments.empty() && std::ranges::count(kRunModels, arguments[0]) > 0;
  const bool named = std::ranges::any_of(arguments, [](const std::string& argument) {
    return argument == "--device" || argument.starts_with("--device=");
  });
  if (runs && !named) arguments.insert(arguments.begin() + 1, {"--device", "cpu"});
  return arguments;
}

// For `prepare`: a machine without a GPU, whatever there is.
inline void hide_gpus() { ::setenv("CUDA_VISIBLE_DEVICES", "", 1); }

class Cli : public testing::Test {
 protected:
  // `prepare` runs in the process before the program does: limits, for instance.
  Result run(
      const std::vector<std::string>& arguments, const std::function<void()>& prepare = [] {}) {
    return finished(start(arguments, dir_ / "stdout.txt", dir_ / "stderr.txt", prepare));
  }
  // What a process has printed to these files.
  Result finished(pid_t child) {
    int status = 0;
    ::waitpid(child, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status),
            read_file(dir_ / "stdout.txt"), read_file(dir_ / "stderr.txt")};
  }

  static pid_t start(
      const std::vector<std::string>& given, const fs::path& out, const fs::path& err,
      const std::function<void()>& prepare = [] {}) {
    return start_program(HALFTONE_PROGRAM, on_cpu(given), out, err, prepare);
  }
  static pid_t start_program(const char* program, const std::vector<std::string>& arguments,
                             const fs::path& out, const fs::path& err,
                             const std::function<void()>& prepare) {
    const pid_t child = ::fork();
    if (child != 0) return child;
    std::vector<char*> argv = {const_cast<char*>(program)};
    for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
    ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
    prepare();
    ::execv(program, argv.data());
    ::_exit(127);
  }

  std::string write_model() {
    const fs::path path = dir_ / "model.safetensors";
    write_safetensors(path,
                      {{"a.weight", bf16_tensor({32, 64}, gaussians(1, 32 * 64))},
                       {"a.bias", f32_tensor({32}, gaussians(2, 32))}},
                      {{"format", "pt"}});
    return path.string();
  }
  std::string path(const std::string& name) const { return (dir_ / name).string(); }

  TempDir dir_;
};

// One line that says what is wrong, and nothing on stdout.
inline void expect_one_line(const Result& result, int code, const std::string& reason) {
  EXPECT_EQ(result.code, code) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_THAT(result.err, testing::StartsWith("halftone"));
  EXPECT_THAT(result.err, testing::HasSubstr(reason));
}

}  // namespace halftone::test
