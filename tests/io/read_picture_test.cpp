// Pictures of every kind, as Pillow shows them (tools/golden/pictures.py).
#include "halftone/io/read_picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "halftone/io/exif.h"
#include "halftone/io/resample.h"
#include "halftone/io/safetensors_file.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace halftone {
namespace {

using test::error_of;
using testing::HasSubstr;
namespace fs = std::filesystem;

const fs::path kPictures = fs::path(HALFTONE_TEST_DATA) / "pictures";

int largest_difference(const RgbImage& image, const Tensor& expected) {
  const auto values = expected.as<uint8_t>();
  EXPECT_EQ(values.size(), image.rgb.size());
  int largest = 0;
  for (size_t i = 0; i < std::min(values.size(), image.rgb.size()); ++i) {
    largest = std::max(largest, std::abs(values[i] - image.rgb[i]));
  }
  return largest;
}

TEST(ReadPicture, IsWhatPillowShows) {
  const SafetensorsFile expected(kPictures / "expected.safetensors");
  int seen = 0;
  for (const auto& file : fs::directory_iterator(kPictures)) {
    if (!is_picture_name(file.path())) continue;
    SCOPED_TRACE(file.path().filename().string());
    const RgbImage image = read_picture(file.path());
    const Tensor wanted = expected.tensor(file.path().filename().string());
    EXPECT_EQ(image.height, wanted.shape()[0]);
    EXPECT_EQ(image.width, wanted.shape()[1]);
    // JPEG decoders may round differently.
    EXPECT_LE(largest_difference(image, wanted), file.path().extension() == ".jpg" ? 2 : 1);
    ++seen;
  }
  EXPECT_EQ(seen, 17);
}

TEST(ReadPicture, FilesThatAreNoneAreRefused) {
  const test::TempDir dir;
  const auto refused = [&](const char* source, size_t bytes) {
    const std::string whole = test::read_file(kPictures / source);
    test::write_file(dir / "cut", whole.substr(0, bytes));
    return error_of([&] { read_picture(dir / "cut"); });
  };
  for (const char* name : {"alpha.png", "plain.webp", "turned6.jpg"}) {
    const auto whole = static_cast<size_t>(fs::file_size(kPictures / name));
    for (const size_t bytes : {size_t{0}, size_t{3}, size_t{12}, whole / 2, whole - 20}) {
      EXPECT_THAT(refused(name, bytes), HasSubstr("cut: ")) << name << " " << bytes;
    }
  }
  EXPECT_THAT(error_of([&] { read_picture(dir / "nothing.png"); }), HasSubstr("nothing.png"));
  test::write_file(dir / "text.png", "hello");
  EXPECT_THAT(error_of([&] { read_picture(dir / "text.png"); }),
              HasSubstr("is neither a PNG, a JPEG nor a WebP"));
}

// Every byte of the block that says it, changed in every way: no crash, and one of the eight.
TEST(ExifOrientation, SurvivesAnything) {
  std::string jpeg = test::read_file(kPictures / "turned6.jpg");
  const auto of = [](const std::string& text) {
    return exif_orientation(std::as_bytes(std::span(text)));
  };
  EXPECT_EQ(of(jpeg), 6);
  for (size_t i = 0; i < 120 && i < jpeg.size(); ++i) {
    const char kept = jpeg[i];
    for (int value = 0; value < 256; ++value) {
      jpeg[i] = static_cast<char>(value);
      const int orientation = of(jpeg);
      ASSERT_TRUE(orientation >= 1 && orientation <= 8);
    }
    jpeg[i] = kept;
    ASSERT_GE(of(jpeg.substr(0, i)), 1);
  }
}

TEST(ResizeToFill, IsPillowsLanczosOfTheMiddle) {
  const SafetensorsFile expected(kPictures / "expected.safetensors");
  const RgbImage image = read_picture(kPictures / "plain.png");
  for (const char* name : {"smaller", "larger", "tall", "same"}) {
    const Tensor wanted = expected.tensor(std::string("resize.") + name);
    const int64_t height = wanted.shape()[0], width = wanted.shape()[1];
    const Tensor made = resize_to_fill(image, width, height);
    double largest = 0;
    for (int64_t i = 0; i < height * width; ++i) {
      for (int64_t c = 0; c < 3; ++c) {
        const double ours = (made.as<float>()[c * height * width + i] + 1) * 127.5;
        largest = std::max(largest, std::abs(ours - wanted.as<uint8_t>()[3 * i + c]));
      }
    }
    EXPECT_LE(largest, 1.5) << name;  // Pillow rounds twice on the way
  }
}

}  // namespace
}  // namespace halftone
