// halftone bench folder: models of random weights, as a user makes them.
#include <fstream>
#include <nlohmann/json.hpp>

#include "halftone/io/safetensors_file.h"
#include "tests/cli/process.h"
#include "tests/support/tiny_models.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::expect_one_line;
using test::Result;
using testing::HasSubstr;

class CliBenchFolder : public test::Cli {};

TEST_F(CliBenchFolder, AFolderOfRandomWeightsRunsAndIsQuantized) {
  std::ofstream(path("prompts.txt")) << "a red circle\ntwo squares\na line\na blue dot\n";
  const Result made =
      run({"bench", "folder", "--dim", "384", "--layers", "1", "-o", path("random")});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("1 blocks of width 384"));
  const Result result = run({"quantize", "--model", path("random"), "--format", "fp8",
                             "--calibrate", path("prompts.txt"), "--size", "64x64", "--steps", "2",
                             "--certify", "1", "-o", path("out"), "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const json report = json::parse(result.out);
  EXPECT_EQ(report["formats"]["fp8"]["weights"], 35);  // five blocks of seven
  EXPECT_EQ(report["not_finite"].size(), 0u);
  EXPECT_GT(report["certificate"]["velocity_cosine"]["mean"].get<double>(), 0.9);
  // What someone else wrote is not written over.
  fs::create_directories(path("model"));
  std::ofstream(path("model/weights")) << "x";
  expect_one_line(run({"bench", "folder", "-o", path("model")}), 1, "with other things in it");
}

TEST_F(CliBenchFolder, AFolderLikeAnotherHasItsPartsAndRuns) {
  for (const test::TinyModel& tiny : test::few_tiny_models()) {
    SCOPED_TRACE(tiny.family);
    const fs::path like = dir_ / tiny.family / "like", made = dir_ / tiny.family / "made";
    tiny.write(like);
    const Result result = run({"bench", "folder", "--like", like.string(), "-o", made.string()});
    ASSERT_EQ(result.code, 0) << result.err;
    // Weights that are used are drawn anew, in bf16; a VAE that is there is taken.
    for (const auto& file : fs::recursive_directory_iterator(made)) {
      if (file.path().extension() != ".safetensors") continue;
      const fs::path original = like / fs::relative(file.path(), made);
      if (file.path().parent_path().filename() == "vae") {
        EXPECT_EQ(test::read_file(file.path()), test::read_file(original));
        continue;
      }
      const SafetensorsFile before(original), after(file.path());
      EXPECT_GT(after.tensors().size(), 10u);
      for (const auto& tensor : after.tensors()) {
        EXPECT_EQ(tensor.dtype, DType::kBF16);
        EXPECT_EQ(tensor.shape, before.find(tensor.name)->shape) << tensor.name;
      }
    }
    const std::string size = std::to_string(tiny.width) + "x" + std::to_string(tiny.height);
    const Result picture = run({"generate", "a fox", "--model", made.string(), "--size", size,
                                "--steps", "1", "-o", path("like.png")});
    EXPECT_EQ(picture.code, 0) << picture.err;
  }
  expect_one_line(run({"bench", "folder", "--like", path("nowhere"), "-o", path("x")}), 2,
                  "--like: Directory does not exist");
  // Without one it is random too.
  const test::TinyModel& tiny = test::tiny_models().front();
  tiny.write(path("bare"));
  fs::remove(path("bare/vae/diffusion_pytorch_model.safetensors"));
  ASSERT_EQ(run({"bench", "folder", "--like", path("bare"), "-o", path("vae")}).code, 0);
  EXPECT_GT(fs::file_size(path("vae/vae/diffusion_pytorch_model.safetensors")), 1000);
  fs::create_directories(path("empty"));
  expect_one_line(run({"bench", "folder", "--like", path("empty"), "-o", path("x")}), 1, "empty");
  EXPECT_FALSE(fs::exists(path("x")));
}

}  // namespace
}  // namespace halftone
