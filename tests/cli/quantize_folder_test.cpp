// The folder that `halftone quantize --model` writes: from links, under kills, beside other files.
#include <signal.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "halftone/io/checkpoint.h"
#include "halftone/io/safetensors_writer.h"
#include "tests/cli/process.h"
#include "tests/support/tiny_zimage.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Cli;
using test::expect_one_line;
using test::Result;

class CliQuantizeFolder : public Cli {
 protected:
  void SetUp() override {
    const fs::path data = HALFTONE_TEST_DATA;
    const SafetensorsFile fixture(data / "zimage" / "pipeline_guided.safetensors");
    test::write_zimage_folder(dir_ / "model", json::parse(fixture.metadata().at("case")),
                              data / "tokenizer" / "tokenizer.json");
  }
  Result quantize(const std::string& model, const std::string& out,
                  std::initializer_list<std::string> more = {"--format", "fp8-tensor"}) {
    std::vector<std::string> all = {"quantize", "--model", path(model), "-o", path(out)};
    all.insert(all.end(), more);
    return run(all);
  }
  bool runs(const std::string& model) {
    return run({"generate", "x", "--model", path(model), "--size", "24x16", "--steps", "1",
                "--precision", "stored", "-o", path("x.png")})
               .code == 0;
  }
  std::vector<std::string> files_below(const std::string& folder) const {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(dir_ / folder)) {
      EXPECT_FALSE(entry.is_symlink()) << entry.path();
      if (entry.is_regular_file()) {
        found.push_back(entry.path().lexically_relative(dir_ / folder).string());
      }
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  // Everything in the test's folder but what commands print and this.
  std::vector<std::string> besides(const std::vector<std::string>& known) const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(dir_.path())) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("std") && name != "x.png" &&
          std::find(known.begin(), known.end(), name) == known.end()) {
        found.push_back(name);
      }
    }
    return found;
  }
};

// As hubs cache models: every file is a link to a blob elsewhere.
TEST_F(CliQuantizeFolder, LinksAreFollowedAndNothingOutsideIsTouched) {
  ASSERT_EQ(quantize("model", "plain").code, 0);
  fs::create_directories(dir_ / "blobs");
  fs::create_directories(dir_ / "snapshot");
  int count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(dir_ / "model")) {
    const fs::path relative = entry.path().lexically_relative(dir_ / "model");
    if (*relative.begin() == "tokenizer") continue;
    if (entry.is_directory()) {
      fs::create_directories(dir_ / "snapshot" / relative);
      continue;
    }
    const fs::path blob = dir_ / "blobs" / std::to_string(count++);
    fs::copy_file(entry.path(), blob);
    fs::create_symlink(blob, dir_ / "snapshot" / relative);
  }
  fs::create_directory_symlink(dir_ / "model/tokenizer", dir_ / "snapshot/tokenizer");
  test::write_file(dir_ / "outside.txt", "mine");
  fs::create_symlink("../outside.txt", dir_ / "snapshot/notes.txt");
  const Result result = quantize("snapshot", "out");
  ASSERT_EQ(result.code, 0) << result.err;
  auto expected = files_below("plain");
  expected.push_back("notes.txt");
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(files_below("out"), expected);
  EXPECT_EQ(test::read_file(dir_ / "outside.txt"), "mine");
  EXPECT_EQ(test::read_file(dir_ / "out/notes.txt"), "mine");
  EXPECT_TRUE(runs("out"));

  fs::create_directory_symlink("..", dir_ / "snapshot/vae/round");
  expect_one_line(quantize("snapshot", "again"), 1, "round");
  fs::remove(dir_ / "snapshot/vae/round");
  fs::create_symlink("nowhere", dir_ / "snapshot/dangling");
  expect_one_line(quantize("snapshot", "again"), 1, "dangling: is a link to nothing");
  EXPECT_EQ(besides({"model", "plain", "blobs", "snapshot", "outside.txt", "out"}),
            std::vector<std::string>());
}

TEST_F(CliQuantizeFolder, AComponentThatShrankBeforeItIsCopiedIsNotDelivered) {
  const fs::path text = dir_ / "model/text_encoder/model.safetensors";
  for (int i = 0; i < 8; ++i) {
    const auto size = fs::file_size(text);
    const std::string bytes = test::read_file(text);
    const pid_t child =
        start({"quantize", "--model", path("model"), "--format", "fp8", "-o", path("out")},
              dir_ / "stdout.txt", dir_ / "stderr.txt");
    std::this_thread::sleep_for(std::chrono::milliseconds(30 + 12 * i));
    fs::resize_file(text, size / 2);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) == 0) {  // it was done before
      EXPECT_EQ(fs::file_size(dir_ / "out/text_encoder/model.safetensors"), size);
    }
    test::write_file(text, bytes);
  }
}

TEST_F(CliQuantizeFolder, TheOutputMustLieBesideTheModel) {
  expect_one_line(quantize("model", "model/out"), 2, "one within the other");
  expect_one_line(quantize("model", "model"), 2, "the output is the input");
  fs::create_directory(dir_ / "around");
  fs::rename(dir_ / "model", dir_ / "around/model");
  test::write_file(dir_ / "around/recipe.toml", "");
  expect_one_line(quantize("around/model", "around"), 2, "one within the other");
  EXPECT_FALSE(fs::exists(dir_ / "around/model/out"));
  fs::create_directory_symlink("around/model", dir_ / "link");
  expect_one_line(quantize("link", "around/model/out"), 2, "one within the other");
}

TEST_F(CliQuantizeFolder, AFolderOfOtherThingsIsNotReplaced) {
  fs::create_directory(dir_ / "mine");
  test::write_file(dir_ / "mine/thesis.tex", "years of work");
  expect_one_line(quantize("model", "mine"), 1, "with other things in it");
  EXPECT_EQ(files_below("mine"), std::vector<std::string>{"thesis.tex"});
}

TEST_F(CliQuantizeFolder, EveryDialectIsWholeOrRefusedBeforeTheWork) {
  expect_one_line(quantize("model", "out", {"--format", "fp8", "--dialect", "comfyui"}), 1,
                  "--dialect");
  EXPECT_EQ(besides({"model"}), std::vector<std::string>());
  for (const char* dialect : {"comfyui", "modelopt", "compressed-tensors", "torchao"}) {
    const Result result =
        quantize("model", "out", {"--format", "fp8-tensor", "--dialect", dialect});
    if (result.code != 0) {
      EXPECT_THAT(result.err, testing::HasSubstr("--dialect: fp8-tensor cannot be written"));
      continue;
    }
    EXPECT_TRUE(runs("out")) << dialect;
    EXPECT_EQ(besides({"model", "out"}), std::vector<std::string>());
  }
  EXPECT_TRUE(fs::exists(dir_ / "out"));
  // A file of the name that was once used on the way is someone's.
  const std::string file = write_model();
  test::write_file(dir_ / "q.safetensors.halftone", "mine");
  ASSERT_EQ(run({"quantize", file, "--format", "nvfp4", "--dialect", "comfyui", "-o",
                 path("q.safetensors")})
                .code,
            0);
  EXPECT_EQ(test::read_file(dir_ / "q.safetensors.halftone"), "mine");
}

TEST_F(CliQuantizeFolder, KillsLeaveAnEarlierOutputOrACompleteOne) {
  ASSERT_EQ(quantize("model", "out", {"--format", "mxfp8"}).code, 0);
  const auto format_of = [&] {
    const json report = json::parse(run({"inspect", path("out/transformer"), "--json"}).out);
    return report["quantization"]["layers"].begin().key();
  };
  ASSERT_EQ(format_of(), "mxfp8");
  std::string now = "mxfp8";
  for (int i = 0; i < 14; ++i) {
    const std::string next = now == "mxfp8" ? "fp8" : "mxfp8";
    const pid_t child = start({"quantize", "--model", path("model"), "--format", next, "-o",
                               path("out"), "--threads", "1"},
                              dir_ / "stdout.txt", dir_ / "stderr.txt");
    std::this_thread::sleep_for(std::chrono::milliseconds(25 + 11 * i));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    const std::string found = format_of();
    EXPECT_TRUE(found == now || found == next) << found;
    now = found;
    EXPECT_TRUE(runs("out")) << i;
  }
  // Nothing of the killed runs is left after one that ends.
  ASSERT_EQ(quantize("model", "out").code, 0);
  EXPECT_EQ(besides({"model", "out"}), std::vector<std::string>());
}

// A VAE and text encoders are read in high precision alone.
TEST_F(CliQuantizeFolder, OfAWholeModelInAFileItIsSaidWhatToConvert) {
  const std::string denoiser = "model.diffusion_model.";
  Tensor matrix = Tensor::empty(DType::kF32, {32, 32});
  std::ranges::fill(matrix.mutable_as<float>(), 0.5f);
  Tensor norm = Tensor::empty(DType::kF32, {32});
  std::ranges::fill(norm.mutable_as<float>(), 1.0f);
  const std::vector<std::pair<std::string, Tensor>> own = {
      {denoiser + "double_blocks.0.img_attn.norm.key_norm.scale", norm},
      {denoiser + "double_blocks.0.img_attn.qkv.weight", matrix}};
  auto all = own;
  all.emplace_back("vae.decoder.mid.attn_1.q.weight", matrix);
  write_safetensors(path("whole.safetensors"), all);
  const auto convert = [&](const std::string& file, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"quantize", path(file), "--format", "fp8", "-o", path("out")};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  };
  expect_one_line(convert("whole.safetensors"), 2, "--include: is needed: ");
  EXPECT_FALSE(fs::exists(path("out")));
  const Result chosen = convert("whole.safetensors", {"--include", denoiser + "*", "--json"});
  ASSERT_EQ(chosen.code, 0) << chosen.err;
  EXPECT_EQ(json::parse(chosen.out)["converted"].size(), 1u);
  // A denoiser alone is converted as it is.
  write_safetensors(path("own.safetensors"), own);
  EXPECT_EQ(convert("own.safetensors").code, 0);
}

}  // namespace
}  // namespace halftone
