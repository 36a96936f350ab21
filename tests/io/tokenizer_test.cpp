#include "halftone/io/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "halftone/io/json.h"
#include "tests/support/errors.h"

namespace halftone {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::filesystem::path kTokenizers = std::filesystem::path(HALFTONE_TEST_DATA) / "tokenizer";

TEST(Tokenizer, EqualsTheTokenizersPackageOnHardText) {
  const json cases = read_json_file(kTokenizers / "cases.json");
  ASSERT_GT(cases.size(), 400u);
  for (const char* file : {"tokenizer.json", "tokenizer_old.json"}) {
    const auto tokenizer = Tokenizer::load(kTokenizers / file);
    for (const auto& item : cases) {
      const auto text = item[0].get<std::string>();
      ASSERT_EQ(tokenizer.encode(text), item[1].get<std::vector<int32_t>>()) << json(text).dump();
    }
  }
}

TEST(Tokenizer, AddedTokensAreFound) {
  const auto tokenizer = Tokenizer::load(kTokenizers / "tokenizer.json");
  EXPECT_EQ(tokenizer.find("<|im_end|>"), tokenizer.encode("<|im_end|>")[0]);
  EXPECT_FALSE(tokenizer.find("<|nope|>").has_value());
  EXPECT_EQ(tokenizer.vocab_size(), 476);
}

TEST(Tokenizer, LongWordsAreNotQuadratic) {
  const auto tokenizer = Tokenizer::load(kTokenizers / "tokenizer.json");
  EXPECT_GT(tokenizer.encode(std::string(300000, 'a')).size(), 1000u);
  EXPECT_EQ(tokenizer.encode(std::string(300000, '1')).size(), 300000u);
  EXPECT_GT(tokenizer.encode(std::string(300000, ' ') + "x").size(), 1000u);
}

TEST(Tokenizer, TextThatIsNotUtf8IsRefused) {
  const auto tokenizer = Tokenizer::load(kTokenizers / "tokenizer.json");
  EXPECT_EQ(test::error_of([&] { tokenizer.encode("a\xff"); }), "text: is not valid UTF-8");
}

TEST(Tokenizer, WhatIsNotSupportedIsNamed) {
  const json good = read_json_file(kTokenizers / "tokenizer.json");
  const auto with = [&](const auto& change) {
    json file = good;
    change(file);
    return test::error_of([&] { Tokenizer::parse(file, "t.json"); });
  };
  EXPECT_EQ(with([](json&) {}), "(no error)");
  EXPECT_EQ(with([](json& f) { f["model"]["type"] = "WordPiece"; }),
            "t.json: model WordPiece is not one that is supported");
  EXPECT_EQ(with([](json& f) { f["normalizer"]["type"] = "NFKC"; }),
            "t.json: normalizer NFKC is not one that is supported");
  EXPECT_THAT(with([](json& f) { f["pre_tokenizer"] = nullptr; }), HasSubstr("pre_tokenizer"));
  EXPECT_THAT(
      with([](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "("; }),
      HasSubstr("bad regular expression"));
  EXPECT_THAT(with([](json& f) { f["added_tokens"][0]["single_word"] = true; }),
              HasSubstr("'<|endoftext|>' with single_word"));
  EXPECT_THAT(with([](json& f) { f["model"]["merges"].push_back({"zz", "qq"}); }),
              HasSubstr("('zz' 'qq')"));
  EXPECT_THAT(with([](json& f) { f["model"]["vocab"].erase("a"); }),
              HasSubstr("no token for byte 97"));
  EXPECT_THAT(with([](json& f) { f["model"]["vocab"]["a"] = -1; }),
              HasSubstr("token 'a' has no id"));
  EXPECT_THAT(with([](json& f) { f = json::array(); }), HasSubstr("t.json"));
}

TEST(Tokenizer, APatternThatGivesUpIsAnErrorInsteadOfOtherTokens) {
  json file = read_json_file(kTokenizers / "tokenizer.json");
  json& pattern = file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"];
  pattern = "(*NO_JIT)(*LIMIT_MATCH=100)(?:a|aa)+b";
  const auto tokenizer = Tokenizer::parse(file, "t.json");
  EXPECT_EQ(tokenizer.encode("x").size(), 1u);
  EXPECT_THAT(test::error_of([&] { tokenizer.encode(std::string(50, 'a') + "cb"); }),
              HasSubstr("t.json: pre_tokenizer: the regular expression gives up on this text"));
  pattern = "\\C";  // would cut characters in two
  EXPECT_THAT(test::error_of([&] { Tokenizer::parse(file, "t.json"); }),
              HasSubstr("bad regular expression"));
}

TEST(Tokenizer, ThreadsShareOne) {
  const auto tokenizer = Tokenizer::load(kTokenizers / "tokenizer.json");
  std::vector<std::string> texts(4);
  for (size_t i = 0; i < texts.size(); ++i) {
    for (int word = 0; word < 2000; ++word) {
      texts[i] += std::string(1 + word % (3 + i), static_cast<char>('a' + i)) + " , 12 ";
    }
  }
  std::vector<std::vector<int32_t>> alone, together(texts.size());
  for (const std::string& text : texts) alone.push_back(tokenizer.encode(text));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < texts.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 5; ++round) together[i] = tokenizer.encode(texts[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(together, alone);
}

}  // namespace
}  // namespace halftone
