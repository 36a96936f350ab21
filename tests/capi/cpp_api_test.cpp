// The C++ header on top of the C API, without any other header of Halftone.
#include <gtest/gtest.h>
#include <halftone/halftone.h>

#include <thread>

namespace {

halftone::Model load() {
  const halftone::Engine engine;
  return engine.load({.path = HALFTONE_MODELS "/emoji", .device = "cpu", .threads = 2});
}

halftone::Request small(const halftone::Model& model) {
  halftone::Request request = model.request("a red apple");
  request.width = request.height = 64;
  request.steps = 2;
  return request;
}

TEST(CppApi, DrawsAndDescribes) {
  const halftone::Model model = load();
  EXPECT_EQ(model.info().precision, "fp32");
  EXPECT_EQ(model.request("x").width, 128);
  EXPECT_GT(model.plan(small(model)).peak, 0);
  halftone::Request request = small(model);
  request.count = 2;
  request.seed = 3;
  const std::vector<halftone::Picture> pictures = model.generate(request);
  ASSERT_EQ(pictures.size(), 2u);
  EXPECT_EQ(pictures[1].seed(), 4u);
  EXPECT_EQ(pictures[1].rgb().size(), 3u * 64 * 64);
  EXPECT_EQ(pictures[1].pixels().size(), 3u * 64 * 64);
  EXPECT_EQ(pictures[1].latents().size(), 16u * 8 * 8);
  request.seed = 4;
  request.count = 1;
  const std::vector<halftone::Picture> again = model.generate(request);
  EXPECT_TRUE(
      std::equal(again[0].pixels().begin(), again[0].pixels().end(), pictures[1].pixels().begin()));
}

TEST(CppApi, ErrorsAndCallbacks) {
  const halftone::Model model = load();
  halftone::Request request = small(model);
  struct Mine {};
  EXPECT_THROW(model.generate(request, [](const halftone_progress&) -> bool { throw Mine(); }),
               Mine);
  try {
    model.generate(request, [](const halftone_progress& now) { return now.step < 1; });
    FAIL() << "was not cancelled";
  } catch (const halftone::Error& error) {
    EXPECT_EQ(error.status(), HALFTONE_CANCELLED);
  }
  request.steps = 0;
  try {
    model.generate(request);
    FAIL() << "no steps are possible";
  } catch (const halftone::Error& error) {
    EXPECT_EQ(error.status(), HALFTONE_USAGE);
    EXPECT_EQ(error.field(), "steps");
  }
  const auto refused = [&](halftone::Request wrong, const char* field, const char* reason) {
    try {
      model.generate(wrong);
      FAIL() << field;
    } catch (const halftone::Error& error) {
      EXPECT_EQ(error.status(), HALFTONE_USAGE);
      EXPECT_EQ(error.field(), field);
      EXPECT_NE(std::string(error.what()).find(field + std::string(reason)), std::string::npos)
          << error.what();
    }
  };
  const std::string cut("an apple\0 in a tree", 19), latin = "caf\xE9";
  halftone::Request texts = small(model);
  texts.prompt = cut;
  refused(texts, "prompt", ": holds a NUL byte");
  texts.prompt = latin;
  refused(texts, "prompt", ": 'caf\\xe9' is not UTF-8");
  texts = small(model);
  texts.guidance = 2;
  texts.negative = cut;
  refused(texts, "negative", ": holds a NUL byte");
  texts.negative = latin;
  refused(texts, "negative", ": 'caf\\xe9' is not UTF-8");
  texts.negative = std::string(100000, 'a');
  refused(texts, "negative", ": 100000 bytes are more");
  EXPECT_THROW(model.adapter(cut), halftone::Error);
  EXPECT_THROW(model.adapter("/nowhere"), halftone::Error);
  EXPECT_THROW(halftone::Model().generate(request), halftone::Error);  // never loaded
  EXPECT_THROW(halftone::Picture().write_png("x.png"), halftone::Error);
  EXPECT_TRUE(halftone::Picture().latents().empty());
  request = small(model);
  request.adapters = {{halftone::Adapter(), 1.0f}};
  EXPECT_THROW(model.generate(request), halftone::Error);
}

}  // namespace
