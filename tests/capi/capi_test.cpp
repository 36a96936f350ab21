// The C API in hostile hands: nulls, wrong sizes, wrong values, cancelled runs, threads and
// signals. Pictures are held to those of the engine behind it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstring>
#include <limits>
#include <set>
#include <thread>

#include "halftone/engine/engine.h"
#include "halftone/halftone_c.h"
#include "halftone/io/png.h"
#include "halftone/io/safetensors_writer.h"
#include "tests/support/procedural.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_folder.h"

namespace halftone {
namespace {

using testing::HasSubstr;

constexpr const char* kModel = HALFTONE_MODELS "/emoji";

// The model that ships, loaded once.
class CApi : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_EQ(halftone_engine_create(&engine_), HALFTONE_OK);
    halftone_model_options options = usual_options();
    ASSERT_EQ(halftone_model_load(engine_, &options, &model_), HALFTONE_OK)
        << halftone_last_error();
  }
  static void TearDownTestSuite() {
    halftone_engine_free(engine_);  // before what came from it
    halftone_model_free(model_);
  }
  static halftone_model_options usual_options() {
    halftone_model_options options;
    EXPECT_EQ(halftone_model_options_init(&options, sizeof options), HALFTONE_OK);
    options.path = kModel;
    options.device = "cpu";
    options.threads = 2;
    return options;
  }
  static halftone_request small_request() {
    halftone_request request;
    EXPECT_EQ(halftone_request_init(model_, &request, sizeof request), HALFTONE_OK);
    request.prompt = "a red apple";
    request.width = request.height = 64;
    request.steps = 2;
    request.seed = 7;
    return request;
  }
  static std::vector<float> pixels_of(const halftone_result* result, size_t index = 0) {
    halftone_picture picture;
    EXPECT_EQ(halftone_result_picture(result, index, &picture, sizeof picture), HALFTONE_OK)
        << halftone_last_error();
    return {picture.pixels, picture.pixels + 3 * picture.width * picture.height};
  }
  static std::vector<float> draw(const halftone_request& request) {
    halftone_result* result = nullptr;
    EXPECT_EQ(halftone_generate(model_, &request, &result), HALFTONE_OK) << halftone_last_error();
    if (result == nullptr) return {};
    std::vector<float> pixels = pixels_of(result);
    halftone_result_free(result);
    return pixels;
  }
  // That it fails, and what it says of which field.
  static void expect_refused(const halftone_request& request, halftone_status status,
                             const char* field) {
    auto* result = reinterpret_cast<halftone_result*>(&engine_);
    EXPECT_EQ(halftone_generate(model_, &request, &result), status) << halftone_last_error();
    EXPECT_EQ(result, nullptr);
    EXPECT_STREQ(halftone_last_error_field(), field) << halftone_last_error();
    EXPECT_THAT(halftone_last_error(), HasSubstr(field));
  }

  static inline halftone_engine* engine_ = nullptr;
  static inline halftone_model* model_ = nullptr;
};

TEST_F(CApi, DrawsWhatTheEngineDraws) {
  halftone_request asked = small_request();
  asked.count = 3;
  asked.batch = 2;
  halftone_result* result = nullptr;
  ASSERT_EQ(halftone_generate(model_, &asked, &result), HALFTONE_OK) << halftone_last_error();
  halftone_result_info info;
  ASSERT_EQ(halftone_result_describe(result, &info, sizeof info), HALFTONE_OK);
  ASSERT_EQ(info.count, 3u);
  EXPECT_EQ(info.fallback_count, 0u);
  EXPECT_GT(info.denoise_seconds, 0);

  Engine engine;
  const LoadedModel loaded = engine.load({.path = kModel, .device = "cpu", .threads = 1});
  GenerateRequest request = loaded.request("a red apple");
  request.width = request.height = 64;
  request.steps = 2;
  request.seed = 7;
  request.count = 3;
  const GenerateResult expected = generate(*loaded.pipeline, request, [](const Progress&) {});
  const test::TempDir dir;
  for (size_t i = 0; i < 3; ++i) {
    halftone_picture picture;
    ASSERT_EQ(halftone_result_picture(result, i, &picture, sizeof picture), HALFTONE_OK);
    EXPECT_EQ(picture.width, 64);
    EXPECT_EQ(picture.height, 64);
    EXPECT_EQ(picture.seed, 7 + i);
    const auto image = expected.images[i].as<float>();
    EXPECT_EQ(std::memcmp(picture.pixels, image.data(), image.size_bytes()), 0);
    const auto rgb = to_rgb(expected.images[i]);
    EXPECT_EQ(std::memcmp(picture.rgb, rgb.data(), rgb.size()), 0);
    const Tensor latents =
        expected.latents.rows(static_cast<int64_t>(i), static_cast<int64_t>(i) + 1);
    ASSERT_EQ(picture.latent_rank, 4u);
    for (int d = 0; d < 4; ++d) EXPECT_EQ(picture.latent_shape[d], latents.shape()[d]);
    EXPECT_EQ(std::memcmp(picture.latents, latents.bytes().data(), latents.bytes().size()), 0);

    const std::string file = (dir / "picture.png").string();
    ASSERT_EQ(halftone_result_write_png(result, i, file.c_str()), HALFTONE_OK);
    const PngImage read = read_png(file);
    EXPECT_EQ(read.rgb, rgb);
    EXPECT_THAT(read.text, testing::Contains(testing::Pair("seed", std::to_string(7 + i))));
    EXPECT_THAT(read.text, testing::Contains(testing::Pair("prompt", "a red apple")));
  }
  halftone_picture picture;
  EXPECT_EQ(halftone_result_picture(result, 3, &picture, sizeof picture), HALFTONE_USAGE);
  EXPECT_EQ(halftone_result_write_png(result, 3, "x.png"), HALFTONE_USAGE);
  EXPECT_EQ(halftone_result_write_png(result, 0, nullptr), HALFTONE_USAGE);
  EXPECT_EQ(halftone_result_write_png(result, 0, ""), HALFTONE_USAGE);
  EXPECT_NE(halftone_result_write_png(result, 0, "/nowhere/x.png"), HALFTONE_OK);
  EXPECT_THAT(halftone_last_error(), HasSubstr("/nowhere"));
  halftone_result_free(result);
}

TEST_F(CApi, NullsAreErrors) {
  EXPECT_EQ(halftone_engine_create(nullptr), HALFTONE_USAGE);
  EXPECT_STREQ(halftone_last_error(), "engine: is NULL");
  halftone_model_options options = usual_options();
  halftone_request request = small_request();
  halftone_model* model = model_;
  halftone_result* result = nullptr;
  halftone_adapter* adapter = nullptr;
  halftone_memory memory;
  halftone_model_info info;
  halftone_result_info result_info;
  halftone_picture picture;
  EXPECT_EQ(halftone_model_options_init(nullptr, sizeof options), HALFTONE_USAGE);
  EXPECT_EQ(halftone_model_load(nullptr, &options, &model), HALFTONE_USAGE);
  EXPECT_EQ(model, nullptr);
  EXPECT_EQ(halftone_model_load(engine_, nullptr, &model), HALFTONE_USAGE);
  EXPECT_EQ(halftone_model_load(engine_, &options, nullptr), HALFTONE_USAGE);
  EXPECT_EQ(halftone_model_describe(nullptr, &info, sizeof info), HALFTONE_USAGE);
  EXPECT_EQ(halftone_model_describe(model_, nullptr, sizeof info), HALFTONE_USAGE);
  EXPECT_EQ(halftone_adapter_load(nullptr, "x", &adapter), HALFTONE_USAGE);
  EXPECT_EQ(halftone_adapter_load(model_, nullptr, &adapter), HALFTONE_USAGE);
  EXPECT_EQ(halftone_adapter_load(model_, "x", nullptr), HALFTONE_USAGE);
  EXPECT_EQ(halftone_request_init(nullptr, &request, sizeof request), HALFTONE_USAGE);
  EXPECT_EQ(halftone_request_init(model_, nullptr, sizeof request), HALFTONE_USAGE);
  EXPECT_EQ(halftone_plan(nullptr, &request, &memory, sizeof memory), HALFTONE_USAGE);
  EXPECT_EQ(halftone_plan(model_, nullptr, &memory, sizeof memory), HALFTONE_USAGE);
  EXPECT_EQ(halftone_plan(model_, &request, nullptr, sizeof memory), HALFTONE_USAGE);
  EXPECT_EQ(halftone_generate(nullptr, &request, &result), HALFTONE_USAGE);
  EXPECT_EQ(halftone_generate(model_, nullptr, &result), HALFTONE_USAGE);
  EXPECT_EQ(halftone_generate(model_, &request, nullptr), HALFTONE_USAGE);
  EXPECT_EQ(halftone_result_describe(nullptr, &result_info, sizeof result_info), HALFTONE_USAGE);
  EXPECT_EQ(halftone_result_picture(nullptr, 0, &picture, sizeof picture), HALFTONE_USAGE);
  EXPECT_EQ(halftone_result_write_png(nullptr, 0, "x.png"), HALFTONE_USAGE);
  halftone_engine_free(nullptr);
  halftone_model_free(nullptr);
  halftone_adapter_free(nullptr);
  halftone_result_free(nullptr);
}

TEST_F(CApi, CacheAndTextPrecisionAreTheEngines) {
  halftone_request asked = small_request();
  asked.steps = 6;
  const std::vector<float> exact = draw(asked);
  asked.cache = 0.5f;
  Engine engine;
  LoadedModel loaded = engine.load({.path = kModel, .device = "cpu", .threads = 1});
  GenerateRequest request = loaded.request("a red apple");
  request.width = request.height = 64;
  request.steps = 6;
  request.seed = 7;
  const auto expected = [&] {
    const Tensor image = generate(*loaded.pipeline, request, [](const Progress&) {}).images[0];
    const auto values = image.as<float>();
    return std::vector<float>(values.begin(), values.end());
  };
  EXPECT_EQ(expected(), exact);
  request.cache = 0.5f;
  EXPECT_EQ(draw(asked), expected());
  EXPECT_NE(draw(asked), exact);

  halftone_model_options options = usual_options();
  options.text_precision = "nvfp4";
  halftone_model* model = nullptr;
  ASSERT_EQ(halftone_model_load(engine_, &options, &model), HALFTONE_OK) << halftone_last_error();
  asked.cache = 0;
  halftone_result* result = nullptr;
  ASSERT_EQ(halftone_generate(model, &asked, &result), HALFTONE_OK) << halftone_last_error();
  loaded = engine.load({.path = kModel, .device = "cpu", .text_precision = "nvfp4", .threads = 1});
  request.cache = 0;
  EXPECT_EQ(pixels_of(result), expected());
  EXPECT_NE(pixels_of(result), exact);
  halftone_result_free(result);
  halftone_model_free(model);
  options.text_precision = "fp7";
  EXPECT_EQ(halftone_model_load(engine_, &options, &model), HALFTONE_USAGE);
  EXPECT_THAT(halftone_last_error(), HasSubstr("text_precision"));
}

TEST_F(CApi, StructsOfOtherAges) {
  // Of a newer program: unknown fields are fine while they are zero.
  struct Newer {
    halftone_request request;
    int64_t unknown = 5;
  } newer;
  static_assert(sizeof(Newer) == sizeof(halftone_request) + sizeof(int64_t));
  ASSERT_EQ(halftone_request_init(model_, &newer.request, sizeof newer), HALFTONE_OK);
  EXPECT_EQ(newer.unknown, 0);
  halftone_request now = small_request();
  const size_t size = newer.request.size;
  EXPECT_EQ(size, sizeof newer);
  newer.request = now;
  newer.request.size = size;
  EXPECT_EQ(draw(newer.request), draw(now));
  newer.unknown = 1;
  expect_refused(newer.request, HALFTONE_UNSUPPORTED, "request");
  // Of an older one, which ends before the adapters: nothing behind is touched or read.
  halftone_request old;
  std::memset(static_cast<void*>(&old), 0xAB, sizeof old);
  const size_t end = offsetof(halftone_request, adapter_count);
  ASSERT_EQ(halftone_request_init(model_, &old, end), HALFTONE_OK);
  EXPECT_EQ(reinterpret_cast<const unsigned char*>(&old)[end], 0xAB);
  old.prompt = now.prompt;
  old.width = old.height = 64;
  old.steps = 2;
  old.seed = 7;
  EXPECT_EQ(draw(old), draw(now));
  // Never initialized.
  for (const size_t wrong : {size_t{0}, size_t{8}, ~size_t{0}}) {
    now.size = wrong;
    expect_refused(now, HALFTONE_USAGE, "request");
  }
  EXPECT_EQ(halftone_request_init(model_, &now, 0), HALFTONE_USAGE);
}

TEST_F(CApi, WrongModelsAreErrorsWithNames) {
  const auto refused = [](halftone_model_options options, halftone_status status,
                          const char* part) {
    halftone_model* model = nullptr;
    EXPECT_EQ(halftone_model_load(engine_, &options, &model), status) << halftone_last_error();
    EXPECT_EQ(model, nullptr);
    EXPECT_THAT(halftone_last_error(), HasSubstr(part));
  };
  halftone_model_options options = usual_options();
  options.path = "/nowhere";
  refused(options, HALFTONE_NOT_FOUND, "/nowhere");
  options = usual_options();
  options.precision = "fp7";
  refused(options, HALFTONE_USAGE, "precision");
  options = usual_options();
  for (const char* device : {"gpu", "", "cuda:", "cuda:-1", "cuda:99999999", "cuda:0x"}) {
    options.device = device;
    refused(options, HALFTONE_USAGE, "device");
  }
  options = usual_options();
  options.compile = "maybe";
  refused(options, HALFTONE_USAGE, "compile");
  options = usual_options();
  options.threads = -1;
  refused(options, HALFTONE_USAGE, "threads");
  options.threads = 1 << 30;
  refused(options, HALFTONE_USAGE, "threads");
  options = usual_options();
  options.threshold = std::nan("");
  refused(options, HALFTONE_USAGE, "threshold");
}

TEST_F(CApi, WrongRequestsAreErrorsThatNameTheField) {
  const auto refused = [](auto&& change, halftone_status status, const char* field) {
    halftone_request request = small_request();
    change(request);
    expect_refused(request, status, field);
  };
  refused([](auto& r) { r.prompt = nullptr; }, HALFTONE_USAGE, "prompt");
  refused([](auto& r) { r.width = 0; }, HALFTONE_USAGE, "width");
  refused([](auto& r) { r.height = std::numeric_limits<int64_t>::max(); }, HALFTONE_USAGE,
          "height");
  refused([](auto& r) { r.steps = 0; }, HALFTONE_USAGE, "steps");
  refused([](auto& r) { r.steps = -1; }, HALFTONE_USAGE, "steps");
  refused([](auto& r) { r.guidance = std::nanf(""); }, HALFTONE_USAGE, "guidance");
  refused([](auto& r) { r.count = 0; }, HALFTONE_USAGE, "count");
  refused([](auto& r) { r.batch = 0; }, HALFTONE_USAGE, "batch");
  refused([](auto& r) { r.batch = 65; }, HALFTONE_USAGE, "batch");  // also for one picture
  refused([](auto& r) { r.negative = "blur"; }, HALFTONE_USAGE, "negative");
  refused([](auto& r) { r.cache = std::nanf(""); }, HALFTONE_USAGE, "cache");
  refused([](auto& r) { r.true_cfg = 2; }, HALFTONE_USAGE, "true_cfg");  // not of this family
  refused([](auto& r) { r.skip_layers = "1,x"; }, HALFTONE_USAGE, "skip_layers");
  refused([](auto& r) { r.skip_layers = "1"; }, HALFTONE_USAGE, "skip_layers");  // nor these
  refused([](auto& r) { r.skip_layer_scale = 3; }, HALFTONE_USAGE, "skip_layer_scale");
  refused([](auto& r) { r.original_width = 64; }, HALFTONE_USAGE, "original_size");
  refused([](auto& r) { r.crop_top = 1; }, HALFTONE_USAGE, "crop");
  refused([](auto& r) { r.max_memory = -1; }, HALFTONE_USAGE, "max_memory");
  refused([](auto& r) { r.max_memory = 1; }, HALFTONE_OUT_OF_MEMORY, "max-memory");
  refused([](auto& r) { r.scheduler = "best"; }, HALFTONE_INVALID_INPUT, "scheduler");
  refused([](auto& r) { r.adapter_count = 1; }, HALFTONE_USAGE, "adapters");
  halftone_request request = small_request();
  request.prompt = "\xff\xfe";
  halftone_result* result = nullptr;
  EXPECT_EQ(halftone_generate(model_, &request, &result), HALFTONE_USAGE);
  EXPECT_EQ(draw(small_request()).size(), 3u * 64 * 64);  // as good as before
}

// SDXL, which is told of sizes, and for which no negative prompt is another than an empty one.
TEST_F(CApi, TellsOfSizesAndOfEmptyNegativePrompts) {
  const test::TempDir dir;
  test::write_tiny_folder(dir / "model", "sdxl", "base");
  const std::string folder = dir / "model";
  halftone_model_options options = usual_options();
  options.path = folder.c_str();
  halftone_model* model = nullptr;
  ASSERT_EQ(halftone_model_load(engine_, &options, &model), HALFTONE_OK) << halftone_last_error();
  Engine engine;
  const LoadedModel loaded = engine.load({.path = folder, .device = "cpu", .threads = 1});
  std::set<std::vector<float>> seen;
  const auto expect_alike = [&](const OriginalPicture& original, const char* negative) {
    halftone_request asked;
    ASSERT_EQ(halftone_request_init(model, &asked, sizeof asked), HALFTONE_OK);
    asked.prompt = "a red apple";
    asked.width = asked.height = 16;
    asked.steps = 1;
    asked.original_width = original.width;
    asked.original_height = original.height;
    asked.crop_left = original.left;
    asked.crop_top = original.top;
    asked.negative = negative;
    GenerateRequest request = loaded.request("a red apple");
    request.width = request.height = 16;
    request.steps = 1;
    request.original = original;
    if (negative != nullptr) request.negative = negative;
    halftone_result* result = nullptr;
    ASSERT_EQ(halftone_generate(model, &asked, &result), HALFTONE_OK) << halftone_last_error();
    const Tensor image = generate(*loaded.pipeline, request, [](const Progress&) {}).images[0];
    const std::vector<float> expected(image.as<float>().begin(), image.as<float>().end());
    EXPECT_EQ(pixels_of(result), expected);
    EXPECT_TRUE(seen.insert(expected).second);
    halftone_result_free(result);
  };
  expect_alike({}, nullptr);
  expect_alike({}, "");
  expect_alike({64, 40, 0, 0}, nullptr);
  expect_alike({64, 40, 24, 16}, nullptr);
  halftone_model_free(model);
}

// Ends a run at a call.
struct Stop {
  int calls = 0, last = 0;
  std::vector<std::string> stages;
  static int at_last(void* user, const halftone_progress* progress) {
    auto& self = *static_cast<Stop*>(user);
    if (self.stages.empty() || self.stages.back() != progress->stage) {
      self.stages.emplace_back(progress->stage);
    }
    EXPECT_LE(progress->step, progress->steps);
    return ++self.calls == self.last ? 1 : 0;
  }
};

TEST_F(CApi, CancelledAnywhereAndThenAsGoodAsBefore) {
  const std::vector<float> expected = draw(small_request());
  halftone_request request = small_request();
  request.progress = Stop::at_last;
  Stop never;
  request.user = &never;
  EXPECT_EQ(draw(request), expected);
  EXPECT_THAT(never.stages, testing::ElementsAre("text", "denoising", "decoding", "done"));
  for (int last = 1; last <= 5; ++last) {
    Stop stop{0, last, {}};
    request.user = &stop;
    halftone_result* result = nullptr;
    EXPECT_EQ(halftone_generate(model_, &request, &result), HALFTONE_CANCELLED);
    EXPECT_EQ(result, nullptr);
    EXPECT_EQ(stop.calls, last);  // it is not asked again
    EXPECT_EQ(draw(small_request()), expected);
  }
}

TEST_F(CApi, CancelledInTheMiddleOfAStep) {
  halftone_request request = small_request();
  request.width = request.height = 1024;  // a step of many tenths of a second
  request.steps = 1;
  struct Calls {
    int denoising = 0;
    static int second(void* user, const halftone_progress* now) {
      return std::string(now->stage) == "denoising" && ++static_cast<Calls*>(user)->denoising == 2;
    }
  } calls;
  request.progress = Calls::second;
  request.user = &calls;
  halftone_result* result = nullptr;
  EXPECT_EQ(halftone_generate(model_, &request, &result), HALFTONE_CANCELLED);
  EXPECT_EQ(calls.denoising, 2);
  EXPECT_EQ(draw(small_request()).size(), 3u * 64 * 64);
}

TEST_F(CApi, AnExceptionOfACallbackIsAnError) {
  halftone_request request = small_request();
  request.progress = [](void*, const halftone_progress*) -> int { throw 5; };
  halftone_result* result = nullptr;
  EXPECT_EQ(halftone_generate(model_, &request, &result), HALFTONE_INTERNAL);
  EXPECT_EQ(result, nullptr);
}

TEST_F(CApi, ACallbackMayDrawToo) {
  static std::vector<float> inner;
  halftone_request request = small_request();
  request.progress = [](void*, const halftone_progress*) {
    if (inner.empty()) inner = draw(small_request());
    return 0;
  };
  EXPECT_EQ(draw(request), draw(small_request()));
  EXPECT_EQ(inner, draw(small_request()));
}

TEST_F(CApi, ThreadsShareAModelAndHaveErrorsOfTheirOwn) {
  const std::vector<float> expected = draw(small_request());
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 3; ++i) {
        halftone_request request = small_request();
        EXPECT_EQ(draw(request), expected);
        request.steps = -100 - t;
        halftone_result* result = nullptr;
        EXPECT_EQ(halftone_generate(model_, &request, &result), HALFTONE_USAGE);
        std::this_thread::yield();
        EXPECT_THAT(halftone_last_error(), HasSubstr(std::to_string(-100 - t)));
      }
    });
  }
  threads.emplace_back([&] {  // and one loads meanwhile
    halftone_model_options options = usual_options();
    halftone_model* other = nullptr;
    EXPECT_EQ(halftone_model_load(engine_, &options, &other), HALFTONE_OK);
    halftone_model_free(other);
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(draw(small_request()), expected);
}

TEST_F(CApi, ResultsOutliveModelsAndEngines) {
  halftone_engine* engine = nullptr;
  halftone_model* model = nullptr;
  halftone_result* result = nullptr;
  ASSERT_EQ(halftone_engine_create(&engine), HALFTONE_OK);
  const halftone_model_options options = usual_options();
  ASSERT_EQ(halftone_model_load(engine, &options, &model), HALFTONE_OK);
  halftone_engine_free(engine);
  const halftone_request request = small_request();
  ASSERT_EQ(halftone_generate(model, &request, &result), HALFTONE_OK);
  halftone_model_free(model);
  EXPECT_EQ(pixels_of(result), draw(request));
  const test::TempDir dir;
  EXPECT_EQ(halftone_result_write_png(result, 0, (dir / "x.png").c_str()), HALFTONE_OK);
  halftone_result_free(result);
}

// An adapter of one linear.
void write_adapter(const std::filesystem::path& path, const char* name) {
  const std::string module = "layers.0.attention.to_q";
  const Tensor down = test::procedural_uniform(name, {4, 384}, 0.3f);
  const Tensor up = test::procedural_uniform("up", {384, 4}, 0.3f);
  const TensorSpec specs[] = {{module + ".lora_A.weight", DType::kF32, {4, 384}},
                              {module + ".lora_B.weight", DType::kF32, {384, 4}}};
  SafetensorsWriter writer(path, specs, {});
  writer.write(specs[0].name, down.bytes());
  writer.write(specs[1].name, up.bytes());
  writer.finish();
}

TEST_F(CApi, AdaptersWithStrengths) {
  const test::TempDir dir;
  halftone_request request = small_request();
  const std::vector<float> plain = draw(request);
  std::vector<std::vector<float>> pictures;
  for (const char* name : {"a", "b", "c", "d"}) {
    write_adapter(dir / name, name);
    halftone_adapter* adapter = nullptr;
    ASSERT_EQ(halftone_adapter_load(model_, (dir / name).c_str(), &adapter), HALFTONE_OK)
        << halftone_last_error();
    float strength = 1;
    request.adapter_count = 1;
    request.adapters = &adapter;
    request.strengths = &strength;
    const std::vector<float> adapted = draw(request);
    EXPECT_NE(adapted, plain);
    for (const auto& other : pictures) EXPECT_NE(adapted, other);
    pictures.push_back(adapted);
    request.strengths = nullptr;
    EXPECT_EQ(draw(request), adapted);
    request.strengths = &strength;
    strength = 0.5f;
    EXPECT_NE(draw(request), adapted);
    strength = std::numeric_limits<float>::infinity();
    expect_refused(request, HALFTONE_USAGE, "strengths");
    strength = 1e30f;
    halftone_result* result = nullptr;
    EXPECT_EQ(halftone_generate(model_, &request, &result), HALFTONE_INVALID_INPUT);
    halftone_adapter_free(adapter);
  }
  halftone_adapter* none = nullptr;
  EXPECT_EQ(halftone_adapter_load(model_, "/nowhere.safetensors", &none), HALFTONE_NOT_FOUND);
  request.adapters = &none;
  expect_refused(request, HALFTONE_USAGE, "adapters");

  halftone_model_options options = usual_options();
  halftone_model* other = nullptr;
  ASSERT_EQ(halftone_model_load(engine_, &options, &other), HALFTONE_OK);
  halftone_adapter* foreign = nullptr;
  ASSERT_EQ(halftone_adapter_load(other, (dir / "a").c_str(), &foreign), HALFTONE_OK);
  halftone_model_free(other);
  request.adapters = &foreign;
  expect_refused(request, HALFTONE_USAGE, "adapters");
  halftone_adapter_free(foreign);
}

// Programs are found by the addresses of their adapters: none may be another's while they are kept.
TEST_F(CApi, AnAdaptersAddressIsItsOwnWhileAProgramIsKept) {
  const test::TempDir dir;
  write_adapter(dir / "a", "a");
  Engine engine;
  const LoadedModel loaded = engine.load({.path = kModel, .device = "cpu", .threads = 1});
  std::weak_ptr<const Adapter> seen;
  {
    GenerateRequest request = loaded.request("x");
    request.width = request.height = 64;
    request.steps = 1;
    request.adapters = {{loaded.model->load_adapter((dir / "a").string()), 1.0f}};
    seen = request.adapters[0].adapter;
    generate(*loaded.pipeline, request, [](const Progress&) {});
  }
  EXPECT_FALSE(seen.expired());
}

TEST_F(CApi, PlansAndDescribes) {
  halftone_request request = small_request();
  halftone_memory small, large;
  ASSERT_EQ(halftone_plan(model_, &request, &small, sizeof small), HALFTONE_OK);
  request.width = 256;
  ASSERT_EQ(halftone_plan(model_, &request, &large, sizeof large), HALFTONE_OK);
  EXPECT_GT(small.peak, 0);
  EXPECT_EQ(small.peak, small.weights + small.values + small.scratch);
  EXPECT_GT(large.values, small.values);
  EXPECT_EQ(large.weights_in_files, small.weights_in_files);
  request.max_memory = large.peak - 1;
  expect_refused(request, HALFTONE_OUT_OF_MEMORY, "max-memory");
  request.max_memory = large.peak;
  EXPECT_EQ(draw(request).size(), 3u * 256 * 64);

  halftone_model_info info;
  ASSERT_EQ(halftone_model_describe(model_, &info, sizeof info), HALFTONE_OK);
  EXPECT_STREQ(info.path, kModel);
  EXPECT_STREQ(info.family, "z-image");
  EXPECT_STREQ(info.precision, "fp32");
  EXPECT_STREQ(info.device, "cpu");
  EXPECT_EQ(info.fallback_count, 0u);
  EXPECT_STREQ(halftone_status_name(static_cast<halftone_status>(99)), "unknown");
}

std::atomic<int> alarms = 0, elsewhere = 0;
pid_t program_thread = 0;
void on_alarm(int) { ++(::gettid() == program_thread ? alarms : elsewhere); }

TEST_F(CApi, HandlersOfTheProgramRunBetweenKernels) {
  const std::vector<float> expected = draw(small_request());
  program_thread = ::gettid();
  struct sigaction action{}, before{};
  action.sa_handler = on_alarm;
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(::sigaction(SIGALRM, &action, &before), 0);
  const itimerval every{{0, 500}, {0, 500}}, off{};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &every, nullptr), 0);
  halftone_request request = small_request();
  static int in_callback, before_callback, most;
  in_callback = before_callback = most = 0;
  request.progress = [](void*, const halftone_progress*) {
    const int seen = alarms;
    if (in_callback > 0) most = std::max(most, seen - before_callback);
    while (alarms == seen) ::usleep(100);  // handlers do run here
    ++in_callback;
    before_callback = alarms;
    return 0;
  };
  const std::vector<float> drawn = draw(request);
  ::setitimer(ITIMER_REAL, &off, nullptr);
  ::sigaction(SIGALRM, &before, nullptr);
  EXPECT_EQ(drawn, expected);
  EXPECT_GE(in_callback, 5);
  EXPECT_LE(most, 8);  // the one that waited, and few on the way out; dozens where none is held
  EXPECT_EQ(elsewhere, 0);
  sigset_t mask;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  EXPECT_EQ(sigismember(&mask, SIGALRM), 0);
}

}  // namespace
}  // namespace halftone
