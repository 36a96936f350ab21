// How models are kept in less memory than everything resident takes: the same pictures, and no more
// memory than was planned, for every family.
#include "halftone/engine/arrange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "halftone/runtime/block_plan.h"
#include "tests/support/errors.h"
#include "tests/support/fake_device.h"
#include "tests/support/load_pipeline.h"
#include "tests/support/run_graph.h"
#include "tests/support/silent.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_models.h"

namespace halftone {
namespace {

using test::error_of;
using test::floats;
using test::relative_error;
using testing::HasSubstr;

class EveryKept : public testing::TestWithParam<test::TinyModel> {
 protected:
  EveryKept() { GetParam().write(folder_); }

  GenerateRequest request(const std::string& prompt = "two dogs") const {
    GenerateRequest r;
    r.prompt = prompt;
    r.width = GetParam().width;
    r.height = GetParam().height;
    r.steps = 1;
    r.seed = 7;
    (GetParam().reads_guidance ? r.true_cfg : r.guidance) = GetParam().guidance;
    return r;
  }
  LoadOptions on(test::FakeDevice& device, bool bare) const {
    LoadOptions options;
    options.kernels = &cpu_kernels();
    options.stream = {1, &device};
    options.bare = bare;
    return options;
  }
  static std::vector<float> latents(Pipeline& pipeline, const GenerateRequest& request) {
    return floats(generate(pipeline, request, test::silent).latents);
  }

  test::TempDir dir_;
  std::filesystem::path folder_ = dir_ / "model";
};
INSTANTIATE_TEST_SUITE_P(, EveryKept, testing::ValuesIn(test::few_tiny_models()),
                         [](const auto& tested) {
                           std::string name = tested.param.family;
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

// A plan of what is not placed yet says what the plan of what is says.
TEST_P(EveryKept, PlansOfImaginedMemoryAreThoseOfRealMemory) {
  for (const bool on_device : {false, true}) {
    for (const auto& format : {std::optional<Format>(), std::optional(formats::fp8)}) {
      SCOPED_TRACE(fmt::format("{} {}", on_device, format.has_value()));
      test::FakeDevice real_device, bare_device;
      LoadOptions real = on(real_device, false), bare = on(bare_device, true);
      for (LoadOptions* options : {&real, &bare}) {
        options->text_format = options->format = format;
        if (!on_device) options->stream.device = nullptr;
      }
      const ModelMemory a = plan_generate(*test::load_pipeline(folder_, real), request());
      const auto later = test::load_pipeline(folder_, bare);
      EXPECT_EQ(*bare_device.held, 0);
      const ModelMemory b = plan_generate(*later, request());
      EXPECT_EQ(*bare_device.held, 0);
      EXPECT_EQ(a.owned_weights, b.owned_weights);
      EXPECT_EQ(a.file_weights, b.file_weights);
      EXPECT_EQ(a.running(), b.running());
      EXPECT_GT(a.peak(), 0);
    }
  }
}

// Encoders and the rest take turns: never both, and no more than the larger of them.
TEST_P(EveryKept, TurnsHoldNoMoreThanTheLargerPart) {
  test::FakeDevice resident_device, device;
  const auto resident = test::load_pipeline(folder_, on(resident_device, false));
  const GenerateRequest r = request();
  const auto exact = latents(*resident, r);
  const int64_t all = plan_generate(*resident, r).peak();

  const auto pipeline = test::load_pipeline(folder_, on(device, true));
  pipeline->take_turns();
  const auto planned = static_cast<double>(plan_generate(*pipeline, r).peak());
  EXPECT_EQ(*device.held, 0);
  EXPECT_LT(planned, static_cast<double>(all));
  EXPECT_EQ(latents(*pipeline, r), exact);
  EXPECT_NEAR(static_cast<double>(device.most_held), planned, 0.01 * planned + (64 << 10));
  EXPECT_LT(device.most_held, resident_device.most_held);
  EXPECT_TRUE(pipeline->placed().picture);
  EXPECT_FALSE(pipeline->placed().text);

  // Prompts that are remembered need no encoders; another one brings them back.
  const int64_t held = *device.held;
  pipeline->encode("two dogs");
  EXPECT_EQ(*device.held, held);
  const GenerateRequest other = request("a red apple");
  EXPECT_EQ(latents(*pipeline, other), latents(*resident, other));
  EXPECT_EQ(latents(*pipeline, r), exact);
  EXPECT_NEAR(static_cast<double>(device.most_held), planned, 0.01 * planned + (64 << 10));
}

// What somebody else uses stays where it is.
TEST_P(EveryKept, TurnsTakeNothingAwayFromOthers) {
  test::FakeDevice device;
  const auto first = test::load_pipeline(folder_, on(device, false));
  Pipeline second(first->shared_model());
  const auto exact = latents(*first, request());
  const Model& shared = first->model();
  second.take_turns();
  EXPECT_EQ(latents(second, request()), exact);
  EXPECT_EQ(latents(*first, request("a red apple")), latents(second, request("a red apple")));
  EXPECT_TRUE(shared.placed().text && shared.placed().picture);
  EXPECT_EQ(&first->model(), &shared);
}

// On a CPU what is converted is what is owned, and goes with its turn.
TEST_P(EveryKept, ConvertedEncodersAreConvertedAgain) {
  LoadOptions options;
  options.kernels = &cpu_kernels();
  options.stream = {1};
  options.text_format = formats::fp8;
  const auto resident = test::load_pipeline(folder_, options);
  const GenerateRequest r = request();
  const auto exact = latents(*resident, r);
  options.bare = true;
  const auto pipeline = test::load_pipeline(folder_, options);
  pipeline->take_turns();
  EXPECT_EQ(latents(*pipeline, r), exact);
  EXPECT_FALSE(pipeline->placed().text);
  const GenerateRequest other = request("a red apple");
  EXPECT_EQ(latents(*pipeline, other), latents(*resident, other));
  const PhaseMemory phases = plan_generate_phases(*pipeline, r);
  EXPECT_EQ(phases.picture.owned_weights, 0);
  EXPECT_EQ(phases.text.owned_weights, plan_generate(*resident, r).owned_weights);
  EXPECT_GT(phases.text.owned_weights, 0);
}

// Norms over all positions, and attention, see a tile where they saw the picture: this is no
// equality, and the bound is what was measured, with some room.
TEST_P(EveryKept, TilesAreNearTheWholeAndNeedLess) {
  LoadOptions options;
  options.kernels = &cpu_kernels();
  options.stream = {1};
  const auto pipeline = test::load_pipeline(folder_, options);
  const int64_t scale = pipeline->model().codec().scale();
  GenerateRequest r = request();
  const Denoiser& denoiser = pipeline->model().denoiser();
  const int64_t patches = std::min<int64_t>(8, denoiser.most_patches()[0]);
  r.width = r.height = patches * scale * denoiser.patch();
  const Shape latents = pipeline->model().latent_shape(r.width, r.height);
  const Tensor noise = seeded_noise(latents, 3);
  const Tensor whole = pipeline->decode(noise);
  const int64_t needed = plan_generate_phases(*pipeline, r).decoding.shared;
  const TileSize tile{latents[2] / 2, latents[2] / 4};
  pipeline->set_tiles(tile);
  const Tensor tiled = pipeline->decode(noise);
  EXPECT_EQ(floats(pipeline->decode(noise)), floats(tiled));
  const double error = relative_error(floats(tiled), floats(whole));
  RecordProperty("relative_error", std::to_string(error));
  EXPECT_GT(error, 0);
  EXPECT_LT(error, 0.4);
  const int64_t in_tiles = plan_generate_phases(*pipeline, r).decoding.shared;
  EXPECT_LT(in_tiles, needed);
  // One that is no larger than a tile is not cut.
  pipeline->set_tiles(TileSize{latents[2], 1});
  EXPECT_EQ(floats(pipeline->decode(noise)), floats(whole));
}

class Arrange : public testing::Test {
 protected:
  Arrange() { test::tiny_models()[0].write(folder_); }

  LoadedModel load(const std::string& text = "auto") {
    ModelSpec spec;
    spec.path = folder_.string();
    spec.device = "cpu";
    spec.precision = "nvfp4";
    spec.text_precision = text;
    spec.bare = true;
    return engine_.load(spec);
  }
  static GenerateRequest request(const LoadedModel& loaded) {
    GenerateRequest r = loaded.request("two dogs");
    r.width = 32;
    r.height = 24;
    r.steps = 2;
    return r;
  }

  test::TempDir dir_;
  std::filesystem::path folder_ = dir_ / "model";
  Engine engine_;
};

TEST_F(Arrange, EverythingIsResidentWhereItFits) {
  LoadedModel loaded = load("fp8");
  const ArrangedMemory kept = arrange(loaded, request(loaded), {});
  EXPECT_EQ(kept.choice.chosen.rung, Rung::kResident);
  EXPECT_EQ(kept.line(), "");
  EXPECT_FALSE(kept.limited);
  EXPECT_EQ(kept.memory.peak(), kept.choice.chosen.peak);
  EXPECT_TRUE(loaded.model->placed().text && loaded.model->placed().picture);
  EXPECT_FALSE(loaded.pipeline->takes_turns());
  const auto json = memory_plan_json(kept);
  EXPECT_EQ(json["rung"], "resident");
  EXPECT_EQ(json["text_precision"], "fp8");
  EXPECT_EQ(json["parts"]["text_encoders"].size(), 1u);
  EXPECT_EQ(json["arrangements"].size(), 2u);
}

// On a device, where all that is held is known to the byte: for the limit of each arrangement that
// arrangement or a better one is taken, and its memory is not exceeded.
TEST_P(EveryKept, EveryArrangementHoldsItsPlan) {
  GenerateRequest r = request();
  const auto load = [&](const std::shared_ptr<test::FakeDevice>& device) {
    LoadedModel loaded;
    loaded.context = device;
    loaded.device_info.device = device->device();
    loaded.model = Model::load(find_model(folder_), on(*device, true));
    loaded.text_precision = chosen_text_precision("auto", loaded.device_info, *loaded.model);
    loaded.stream_blocks = {"auto", "off", "native", ""};
    loaded.pipeline = loaded.make_pipeline();
    return loaded;
  };
  const auto probe = std::make_shared<test::FakeDevice>();
  LoadedModel first = load(probe);
  const ArrangedMemory all = arrange(first, r, {.limit = int64_t{1} << 40});
  EXPECT_EQ(all.choice.chosen.rung, Rung::kResident);
  const auto exact = latents(*first.pipeline, r);
  std::set<Rung> rungs;
  for (const Arrangement& one : arrangements(all.needs)) {
    SCOPED_TRACE(one.peak);
    const auto device = std::make_shared<test::FakeDevice>();
    LoadedModel loaded = load(device);
    const ArrangedMemory kept = arrange(loaded, r, {.limit = one.peak});
    rungs.insert(kept.choice.chosen.rung);
    EXPECT_LE(kept.choice.chosen.peak, one.peak);
    EXPECT_EQ(kept.memory.peak(), kept.choice.chosen.peak);
    const auto made = latents(*loaded.pipeline, r);
    const auto planned = static_cast<double>(kept.choice.chosen.peak);
    EXPECT_NEAR(static_cast<double>(device->most_held), planned, 0.01 * planned + (64 << 10));
    EXPECT_EQ(kept.line().empty(), kept.choice.chosen.rung == Rung::kResident);
    const LadderNeeds::Text& text = kept.needs.texts[kept.choice.chosen.text];
    EXPECT_EQ(loaded.stream_blocks.used != "off", kept.choice.chosen.streamed);
    EXPECT_EQ(kept.memory.streamed_weights > 0, kept.choice.chosen.streamed || text.streamed);
    const bool small_text = text.precision != kept.needs.texts[0].precision;
    EXPECT_EQ(loaded.tells_text_precision(), small_text);
    EXPECT_EQ(made == exact, !small_text);
    if (small_text) {
      EXPECT_LT(relative_error(made, exact), 0.5);
      EXPECT_EQ(loaded.text_precision.used, "fp8");
      EXPECT_THAT(kept.line(), HasSubstr("their weights in fp8: with everything resident "));
    }
  }
  EXPECT_TRUE(rungs.contains(Rung::kTurns));
  // Blocks are streamed where that needs less than all that comes before it: not where most of the
  // memory is a table of tokens.
  int64_t least_of[2] = {INT64_MAX, INT64_MAX};
  for (const Arrangement& one : arrangements(all.needs)) {
    int64_t& peak = least_of[one.streamed || all.needs.texts[one.text].streamed ? 1 : 0];
    peak = std::min(peak, one.peak);
  }
  EXPECT_EQ(rungs.contains(Rung::kStreamed) || rungs.contains(Rung::kStreamedText),
            least_of[1] < least_of[0]);
  EXPECT_LT(least_of[1], INT64_MAX);
  // Between all blocks and none there are as few as leave the limit, where others need less.
  const BlockPlan every = stream_blocks(first.model->denoiser_part().block_bytes(), kAllBlocks);
  for (int64_t more : {int64_t{0}, every.slots / 2, every.slots}) {
    const auto device = std::make_shared<test::FakeDevice>();
    LoadedModel loaded = load(device);
    Arrangement least = climb(all.needs, 0).chosen;
    const ArrangedMemory kept = arrange(loaded, r, {.limit = least.peak + more});
    EXPECT_LE(kept.memory.peak(), least.peak + more);
    latents(*loaded.pipeline, r);
    EXPECT_LE(device->most_held, least.peak + more + (64 << 10));
  }

  // In tiles, of a picture that is larger than one, where the model has positions for it.
  GenerateRequest wide = r;
  wide.width = 640;
  if (error_of([&] { first.model->latent_shape(wide.width, wide.height); }) == "(no error)") {
    int64_t most[2];
    for (const TileChoice tiles : {TileChoice::kOff, TileChoice::kOn}) {
      const auto device = std::make_shared<test::FakeDevice>();
      LoadedModel loaded = load(device);
      const ArrangedMemory kept =
          arrange(loaded, wide, {.limit = int64_t{1} << 40, .tiles = tiles});
      EXPECT_EQ(kept.choice.chosen.tiles, tiles == TileChoice::kOn);
      EXPECT_EQ(kept.choice.chosen.rung, Rung::kResident);  // it was asked for
      EXPECT_EQ(kept.memory.peak(), kept.choice.chosen.peak);
      generate(*loaded.pipeline, wide, test::silent);
      const auto planned = static_cast<double>(kept.choice.chosen.peak);
      EXPECT_NEAR(static_cast<double>(device->most_held), planned, 0.01 * planned + (64 << 10));
      most[tiles == TileChoice::kOn ? 1 : 0] = device->most_held;
    }
    EXPECT_LT(most[1], most[0]);
  }
  EXPECT_THAT(error_of([&] {
                LoadedModel loaded = load(std::make_shared<test::FakeDevice>());
                arrange(loaded, r, {.limit = climb(all.needs, 0).chosen.peak - 1});
              }),
              HasSubstr("max-memory: "));
}

TEST_F(Arrange, WhatFitsNowhereIsRefusedInOneLine) {
  LoadedModel loaded = load();
  const std::string error =
      error_of([&] { arrange(loaded, request(loaded), {.limit = 10 << 10}); });
  EXPECT_THAT(error, HasSubstr("max-memory: "));
  EXPECT_THAT(error, HasSubstr("are needed at least ("));
  EXPECT_THAT(error, HasSubstr("and 10.0 KiB are allowed; a smaller size or batch needs less"));
  // What was asked for and costs memory is named.
  GenerateRequest more = request(loaded);
  more.cache = 0.1f;
  EXPECT_THAT(error_of([&] { arrange(loaded, more, {.limit = 10 << 10}); }),
              HasSubstr("; a smaller size or batch or a run without a step cache needs less"));
}

}  // namespace
}  // namespace halftone
