#include "halftone/training/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halftone/training/batch_order.h"
#include "halftone/training/buckets.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::write_file;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

class FindPictures : public testing::Test {
 protected:
  // Name and caption of each.
  std::vector<std::pair<std::string, std::string>> found(const CaptionRules& rules = {}) {
    const Dataset data = find_pictures(dir_.path(), rules);
    skipped_ = data.skipped;
    std::vector<std::pair<std::string, std::string>> all;
    for (const DataItem& item : data.items) {
      all.emplace_back(item.picture.lexically_relative(dir_.path()).string(), item.caption);
    }
    return all;
  }
  void picture(const std::string& name) const {
    fs::create_directories((dir_ / name).parent_path());
    write_file(dir_ / name, "x");
  }

  const test::TempDir dir_;
  std::vector<SkippedFile> skipped_;
};

TEST_F(FindPictures, CaptionsLieBesideThem) {
  for (const char* name : {"b.JPG", "a.png", "sub/c.webp", ".hidden.png", ".git/d.png"}) {
    picture(name);
  }
  write_file(dir_ / "a.txt", "\xEF\xBB\xBF  a cat \r\n on a mat\n");
  write_file(dir_ / "b.txt", "a dog");
  write_file(dir_ / "sub/c.txt", "");
  EXPECT_THAT(found(), ElementsAre(Pair("a.png", "a cat on a mat"), Pair("b.JPG", "a dog"),
                                   Pair("sub/c.webp", "")));
  EXPECT_THAT(skipped_, testing::IsEmpty());
  EXPECT_THAT(found({"", "zwx"}),
              ElementsAre(Pair("a.png", "zwx, a cat on a mat"), Pair("b.JPG", "zwx, a dog"),
                          Pair("sub/c.webp", "zwx")));
}

TEST_F(FindPictures, CaptionsInALine) {
  for (const char* name : {"a.png", "sub/b.png", "c.png"}) picture(name);
  write_file(dir_ / "c.txt", "from its own file");
  write_file(dir_ / "metadata.jsonl",
             "{\"file_name\": \"a.png\", \"text\": \"one\"}\n\n"
             "{\"image\": \"sub/b.png\", \"caption\": \"two\", \"more\": 3}\n"
             "{\"file_name\": \"a.png\", \"text\": \"again\"}\n"
             "not json\n"
             "{\"file_name\": \"c.png\"}\n"
             "{\"file_name\": \"gone.png\", \"text\": \"x\"}\n");
  EXPECT_THAT(found(), ElementsAre(Pair("a.png", "one"), Pair("c.png", "from its own file"),
                                   Pair("sub/b.png", "two")));
  std::string why;
  for (const SkippedFile& file : skipped_) {
    why += file.file.substr(file.file.rfind('/') + 1) + " " + file.why + "\n";
  }
  EXPECT_EQ(why,
            "metadata.jsonl:4 'a.png' has a caption already\n"
            "metadata.jsonl:5 is no JSON object\n"
            "metadata.jsonl:6 has no \"text\"\n"
            "metadata.jsonl:7 there is no picture 'gone.png'\n");
}

TEST_F(FindPictures, WhatIsMissingIsNamed) {
  picture("a.png");
  picture("b.png");
  write_file(dir_ / "b.txt", "\xFF\xFE");
  write_file(dir_ / "c.txt", "of nothing");
  EXPECT_THAT(found(), testing::IsEmpty());
  ASSERT_EQ(skipped_.size(), 3u);
  EXPECT_THAT(skipped_[0].why, HasSubstr("has no caption: neither a.txt"));
  EXPECT_EQ(skipped_[1].why, "is not UTF-8");
  EXPECT_EQ(skipped_[2].why, "is a caption without a picture");
  EXPECT_THAT(found({"a thing", ""}), ElementsAre(Pair("a.png", "a thing")));
  EXPECT_THAT(error_of([&] { find_pictures(dir_ / "nowhere", {}); }),
              HasSubstr("there is no such folder"));
  EXPECT_THAT(error_of([&] { find_pictures(dir_ / "a.png", {}); }), HasSubstr("is no folder"));
}

TEST(Buckets, AreOfOneAreaAndHoldEveryShape) {
  for (const auto& [resolution, multiple] : {std::pair{1024, 16}, {512, 32}, {64, 16}, {16, 16}}) {
    const auto sizes = bucket_sizes(resolution, multiple);
    for (const PictureSize& size : sizes) {
      EXPECT_EQ(size.width % multiple, 0);
      EXPECT_EQ(size.height % multiple, 0);
      EXPECT_LE(size.width * size.height, resolution * resolution);
      EXPECT_LE(std::max(size.width, size.height), 2 * std::min(size.width, size.height));
    }
    const PictureSize square{resolution, resolution};
    EXPECT_EQ(nearest_bucket(sizes, 3000, 3000), square);
    EXPECT_EQ(nearest_bucket(sizes, 1, 1), square);
  }
  const auto sizes = bucket_sizes(1024, 16);
  EXPECT_EQ(nearest_bucket(sizes, 1920, 1080), (PictureSize{1344, 768}));
  EXPECT_EQ(nearest_bucket(sizes, 1080, 1920), (PictureSize{768, 1344}));
  EXPECT_EQ(nearest_bucket(sizes, 100000, 1), sizes.back());
  EXPECT_THAT(error_of([] { bucket_sizes(1000, 16); }),
              HasSubstr("resolution: 1000 is no multiple"));
}

TEST(BatchOrder, EveryExampleOnceAnEpochAndFromAnyPlace) {
  const std::vector<std::string> sizes = {"a", "b", "a", "a", "b", "a", "a"};
  BatchOrder order(sizes, 2, 9);
  std::vector<std::vector<size_t>> batches;
  std::vector<BatchOrder::Position> positions;
  for (int i = 0; i < 12; ++i) {
    positions.push_back(order.position());
    batches.push_back(order.next());
  }
  for (int epoch = 0; epoch < 3;
       ++epoch) {  // of four batches: 3 of a, one of them filled up, 1 of b
    std::set<size_t> seen;
    for (int i = 0; i < 4; ++i) {
      const auto& batch = batches[static_cast<size_t>(4 * epoch + i)];
      EXPECT_EQ(batch.size(), 2u);
      EXPECT_EQ(sizes[batch[0]], sizes[batch[1]]);
      seen.insert(batch.begin(), batch.end());
    }
    EXPECT_EQ(seen.size(), sizes.size());
  }
  EXPECT_NE(std::vector(batches.begin(), batches.begin() + 4),
            std::vector(batches.begin() + 4, batches.begin() + 8));
  for (size_t i = 0; i < positions.size(); ++i) {
    BatchOrder again(sizes, 2, 9);
    again.seek(positions[i]);
    for (size_t j = i; j < batches.size(); ++j) EXPECT_EQ(again.next(), batches[j]);
  }
  EXPECT_THAT(error_of([&] { order.seek({2, 5}); }), HasSubstr("an epoch has 4 batches, not 5"));
}

}  // namespace
}  // namespace halftone
