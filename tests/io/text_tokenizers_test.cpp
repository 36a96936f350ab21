// Tokenizers of CLIP's and T5's kind, from every set of files that a folder may have, held to
// `transformers` and `tokenizers` (tools/golden/text_tokenizers.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "halftone/io/json.h"
#include "halftone/io/tokenizer.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::error_of;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

const fs::path kFolders = fs::path(HALFTONE_TEST_DATA) / "tokenizer";

const json& golden() {
  static const json kGolden = read_json_file(kFolders / "text_cases.json");
  return kGolden;
}

// The ids of a tokenizer; those of clip_g and t5_file are stored where they differ from another's.
Ids expected(const std::string& name, size_t text) {
  const json& ids = golden()["ids"];
  if (ids[name].is_array()) return ids[name][text].get<Ids>();
  const auto found = ids[name].find(std::to_string(text));
  return found != ids[name].end() ? found->get<Ids>()
                                  : expected(name == "clip_g" ? "clip" : "t5", text);
}

void expect_ids(const Tokenizer& tokenizer, const std::string& name) {
  const json& texts = golden()["texts"];
  ASSERT_GT(texts.size(), 300u);
  for (size_t i = 0; i < texts.size(); ++i) {
    ASSERT_EQ(tokenizer.encode(texts[i].get<std::string>()), expected(name, i))
        << name << ": " << texts[i].dump(-1, ' ', true);
  }
}

// Of folders, which say what fills texts up.
void expect_golden(const Tokenizer& tokenizer, const std::string& name) {
  expect_ids(tokenizer, name);
  const json& texts = golden()["texts"];
  const json& padded = golden()["padded"][name];
  for (size_t i = 0; i < padded.size(); ++i) {
    ASSERT_EQ(tokenizer.encode(texts[i].get<std::string>(), 12), padded[i].get<Ids>())
        << name << ": " << texts[i].dump(-1, ' ', true);
  }
}

class TextTokenizers : public testing::Test {
 protected:
  void copy(const char* file) { copy(file, fs::path(file).filename().string()); }
  void copy(const char* file, const std::string& name) {
    fs::copy_file(kFolders / file, folder_ / name, fs::copy_options::overwrite_existing);
  }
  void write(const char* name, const std::string& content) {
    test::write_file(folder_ / name, content);
  }
  void edit(const char* name, const std::function<void(json&)>& change) {
    json content = read_json_file(folder_ / name);
    change(content);
    write(name, content.dump());
  }
  std::string error() {
    return error_of([&] { load_tokenizer(folder_); });
  }
  void clip() {
    for (const char* file : {"clip/vocab.json", "clip/merges.txt", "clip/tokenizer_config.json"}) {
      copy(file);
    }
  }
  void t5() {
    for (const char* file : {"t5/spiece.model", "t5/tokenizer_config.json"}) copy(file);
  }

  test::TempDir dir_;
  const fs::path folder_ = dir_.path();
};

// tokenizer.json with the vocabulary, merges and tokens of the folder of CLIP's kind.
json whole_clip() {
  json file = {{"model",
                {{"type", "BPE"},
                 {"vocab", read_json_file(kFolders / "clip" / "vocab.json")},
                 {"merges", json::array()},
                 {"end_of_word_suffix", "</w>"},
                 {"continuing_subword_prefix", ""},
                 {"unk_token", "<|endoftext|>"},
                 {"fuse_unk", false}}}};
  std::ifstream merges(kFolders / "clip" / "merges.txt");
  std::string line;
  std::getline(merges, line);  // #version
  while (std::getline(merges, line)) file["model"]["merges"].push_back(line);
  const json& vocab = file["model"]["vocab"];
  const auto start = vocab["<|startoftext|>"], end = vocab["<|endoftext|>"];
  file["normalizer"] = json::parse(R"({"type": "Sequence", "normalizers": [{"type": "NFC"},
    {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "}, {"type": "Lowercase"}]})");
  file["pre_tokenizer"] = json::parse(R"({"type": "Sequence", "pretokenizers": [
    {"type": "Split", "behavior": "Removed", "invert": true, "pattern": {"Regex":
      "<\\|startoftext\\|>|<\\|endoftext\\|>|'s|'t|'re|'ve|'m|'ll|'d|[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+"}},
    {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]})");
  file["post_processor"] = {{"type", "RobertaProcessing"},
                            {"sep", {"<|endoftext|>", end}},
                            {"cls", {"<|startoftext|>", start}}};
  file["added_tokens"] = {{{"id", start}, {"content", "<|startoftext|>"}, {"normalized", true}},
                          {{"id", end}, {"content", "<|endoftext|>"}, {"normalized", false}}};
  return file;
}

TEST_F(TextTokenizers, ClipFromVocabularyAndMerges) {
  const auto tokenizer = load_tokenizer(kFolders / "clip");
  expect_golden(tokenizer, "clip");
  EXPECT_EQ(tokenizer.pad(), tokenizer.find("<|endoftext|>"));
  EXPECT_EQ(tokenizer.max_length(), 77);
  EXPECT_EQ(tokenizer.vocab_size(), *tokenizer.find("<|endoftext|>") + 1);
}

TEST_F(TextTokenizers, ClipOfOlderFilesThatFillUpWithAnExclamationMark) {
  clip();
  for (const char* file : {"clip_g/tokenizer_config.json", "clip_g/special_tokens_map.json"}) {
    copy(file);
  }
  const auto tokenizer = load_tokenizer(folder_);
  expect_golden(tokenizer, "clip_g");
  EXPECT_EQ(tokenizer.pad(), 0);
}

TEST_F(TextTokenizers, ClipFromTokenizerJson) {
  const json file = whole_clip();
  expect_ids(Tokenizer::parse(file, "t.json"), "clip");  // by itself it says the same
  write("tokenizer.json", file.dump());
  copy("clip/tokenizer_config.json");
  expect_golden(load_tokenizer(folder_), "clip");
}

TEST_F(TextTokenizers, ClipWithoutSettingsIsKnownByItsFiles) {
  copy("clip/vocab.json");
  copy("clip/merges.txt");
  const auto tokenizer = load_tokenizer(folder_);
  EXPECT_EQ(tokenizer.encode("a red fox"), load_tokenizer(kFolders / "clip").encode("a red fox"));
  EXPECT_EQ(tokenizer.pad(), tokenizer.find("<|endoftext|>"));
}

TEST_F(TextTokenizers, T5FromASentencepieceModel) {
  const auto tokenizer = load_tokenizer(kFolders / "t5");
  expect_golden(tokenizer, "t5");
  EXPECT_EQ(tokenizer.pad(), 0);
  EXPECT_EQ(tokenizer.max_length(), 512);
  EXPECT_EQ(tokenizer.find("<extra_id_0>"), tokenizer.vocab_size() - 1);
  t5();
  fs::rename(folder_ / "spiece.model", folder_ / "tokenizer.model");
  expect_golden(load_tokenizer(folder_), "t5");
}

TEST_F(TextTokenizers, T5FromTokenizerJson) {
  expect_ids(Tokenizer::load(kFolders / "t5_file" / "tokenizer.json"), "t5_file");
  // Its class has steps of its own, whatever the file says.
  copy("t5_file/tokenizer.json");
  copy("t5/tokenizer_config.json");
  expect_golden(load_tokenizer(folder_), "t5");
  const auto file = Tokenizer::load(kFolders / "t5_file" / "tokenizer.json");
  EXPECT_NE(load_tokenizer(folder_).encode("a\xC2\x85z"), file.encode("a\xC2\x85z"));
}

TEST_F(TextTokenizers, OtherClassesAreWhatTheirFileSays) {
  copy("tokenizer.json");
  const auto alone = load_tokenizer(folder_);
  EXPECT_FALSE(alone.pad().has_value());
  write("tokenizer_config.json",
        R"({"tokenizer_class": "Qwen2Tokenizer", "model_max_length": 131072,
    "pad_token": "<|endoftext|>", "eos_token": "<|im_end|>", "add_prefix_space": false})");
  const auto tokenizer = load_tokenizer(folder_);
  const std::string text = "user\nA red apple's <|im_end|> 12";
  EXPECT_EQ(tokenizer.encode(text), alone.encode(text));
  EXPECT_EQ(tokenizer.encode(text), Tokenizer::load(folder_ / "tokenizer.json").encode(text));
  EXPECT_EQ(tokenizer.pad(), tokenizer.find("<|endoftext|>"));
  EXPECT_EQ(tokenizer.encode(text, 40).back(), tokenizer.find("<|endoftext|>"));
  EXPECT_EQ(tokenizer.max_length(), 131072);
}

TEST_F(TextTokenizers, UnigramWithBytesForWhatNoPieceCovers) {
  expect_ids(Tokenizer::load(kFolders / "t5_bytes" / "tokenizer.json"), "t5_bytes");
}

TEST_F(TextTokenizers, CutTextsKeepWhatStandsAroundThem) {
  const auto tokenizer = load_tokenizer(kFolders / "clip");
  std::string text;
  for (int i = 0; i < 200; ++i) text += "red ";
  const Ids ids = tokenizer.encode(text, 77);
  ASSERT_EQ(ids.size(), 77u);
  EXPECT_EQ(ids.front(), tokenizer.find("<|startoftext|>"));
  EXPECT_EQ(ids.back(), tokenizer.find("<|endoftext|>"));
  EXPECT_EQ(ids[75], ids[1]);
  EXPECT_EQ(tokenizer.encode(text, 2), (Ids{ids.front(), ids.back()}));
  EXPECT_THAT(error_of([&] { tokenizer.encode(text, 1); }), HasSubstr("1 tokens are too few"));
  const auto byte_level = Tokenizer::load(kFolders / "tokenizer.json");
  EXPECT_EQ(byte_level.encode(text, 5).size(), 5u);
  EXPECT_THAT(error_of([&] { byte_level.encode("a", 5); }), HasSubstr("no token that fills"));
}

TEST_F(TextTokenizers, LongTextsAreNotQuadratic) {
  constexpr size_t kBytes = 1 << 20;
  for (const char* name : {"clip", "t5"}) {
    const auto tokenizer = load_tokenizer(kFolders / name);
    // Marks of falling classes are what putting them in order takes longest for.
    for (const char* letter : {"a", "1", " ", "x ", "<", "\xCC\x81\xCC\x96", "\xEF\xB7\xBA"}) {
      std::string text;
      while (text.size() < kBytes / 4) text += letter;
      EXPECT_GE(tokenizer.encode(text).size(), 1u) << name << letter;
    }
    EXPECT_GT(tokenizer.encode(std::string(kBytes, 'a')).size(), 1000u) << name;
    EXPECT_EQ(tokenizer.encode(std::string(kBytes, 'a'), 77).size(), 77u);
    EXPECT_EQ(error_of([&] { tokenizer.encode("a\xff"); }), "text: is not valid UTF-8");
    EXPECT_EQ(error_of([&] { tokenizer.encode("\xed\xa0\x80"); }), "text: is not valid UTF-8");
  }
}

TEST_F(TextTokenizers, WhatIsMissingIsNamed) {
  EXPECT_THAT(error(), HasSubstr("has no tokenizer.json"));
  clip();
  fs::remove(folder_ / "merges.txt");
  EXPECT_THAT(error(), HasSubstr("vocab.json with merges.txt, which a CLIPTokenizer is read from"));
  t5();
  fs::remove(folder_ / "spiece.model");
  EXPECT_THAT(error(), HasSubstr("no spiece.model, which a T5Tokenizer is read from"));
  edit("tokenizer_config.json", [](json& f) { f["tokenizer_class"] = "Qwen2Tokenizer"; });
  EXPECT_THAT(error(), HasSubstr("has no tokenizer.json, which a Qwen2Tokenizer is read from"));
}

TEST_F(TextTokenizers, SettingsThatAskForSomethingElseAreNamed) {
  clip();
  EXPECT_EQ(error(), "(no error)");
  const auto with = [&](const std::function<void(json&)>& change) {
    copy("clip/tokenizer_config.json");
    edit("tokenizer_config.json", change);
    const std::string message = error();
    EXPECT_THAT(message, HasSubstr("tokenizer_config.json: "));
    return message;
  };
  EXPECT_THAT(with([](json& f) { f["do_lower_case"] = false; }), HasSubstr("'do_lower_case'"));
  EXPECT_THAT(with([](json& f) { f["padding_side"] = "left"; }), HasSubstr("'padding_side'"));
  EXPECT_THAT(with([](json& f) { f["add_eos_token"] = false; }), HasSubstr("'add_eos_token'"));
  EXPECT_THAT(with([](json& f) { f["model_max_length"] = -1; }), HasSubstr("'model_max_length'"));
  EXPECT_THAT(with([](json& f) { f["unheard_of"] = 1; }), HasSubstr("'unheard_of' is not known"));
  EXPECT_THAT(with([](json& f) { f["pad_token"] = "<none>"; }),
              HasSubstr("'pad_token' has a token"));
  EXPECT_THAT(with([](json& f) { f["pad_token"] = 7; }), HasSubstr("'pad_token' is not a token"));
  EXPECT_THAT(with([](json& f) { f["tokenizer_class"] = 7; }), HasSubstr("'tokenizer_class'"));
  EXPECT_THAT(with([](json& f) { f["added_tokens_decoder"]["x"] = json::object(); }),
              HasSubstr("'added_tokens_decoder.x' is not the id of a token"));
  EXPECT_THAT(
      with([](json& f) { f["added_tokens_decoder"]["3"] = {{"content", "<|endoftext|>"}}; }),
      HasSubstr("'added_tokens_decoder' has '<|endoftext|>' as 3"));
  // T5's newer files say its unknown piece a second time.
  t5();
  edit("tokenizer_config.json", [](json& f) { f["unk_id"] = 2; });
  expect_golden(load_tokenizer(folder_), "t5");
  edit("tokenizer_config.json", [](json& f) { f["unk_id"] = 3; });
  EXPECT_THAT(error(), HasSubstr("tokenizer_config.json: 'unk_id'"));
  clip();
  // 1e30 is how a tokenizer without a length is written.
  copy("clip/tokenizer_config.json");
  edit("tokenizer_config.json", [](json& f) { f["model_max_length"] = 1e30; });
  EXPECT_FALSE(load_tokenizer(folder_).max_length().has_value());
}

TEST_F(TextTokenizers, DamagedVocabulariesAreNamed) {
  clip();
  edit("vocab.json", [](json& f) { f["a"] = -1; });
  EXPECT_THAT(error(), HasSubstr("vocab.json: token 'a' has no id"));
  edit("vocab.json", [](json& f) { f = json::array(); });
  EXPECT_THAT(error(), HasSubstr("vocab.json: is not a JSON object"));
  copy("clip/vocab.json");
  edit("vocab.json", [](json& f) { f.erase("<|endoftext|>"); });
  EXPECT_THAT(error(), HasSubstr("vocab.json: unk_token '<|endoftext|>' is not in the vocabulary"));
  copy("clip/vocab.json");
  for (const char* line : {"a", "a b c", "", "zz qq", "\xff b"}) {
    write("merges.txt", std::string("#version: 0.2\n") + line + "\n");
    EXPECT_THAT(error(), HasSubstr("merges.txt: ")) << line;
  }
  write("merges.txt", "#version: 0.2\r\na n\r\n");
  EXPECT_EQ(error(), "(no error)");
}

TEST_F(TextTokenizers, WhatUnigramFilesMayNotSayIsNamed) {
  const json good = read_json_file(kFolders / "t5_file" / "tokenizer.json");
  const auto with = [&](const std::function<void(json&)>& change) {
    json file = good;
    change(file);
    return error_of([&] { Tokenizer::parse(file, "t.json").encode("a\xEF\xAC\x81 \xE2\x91\xA0"); });
  };
  const auto charsmap = [&](const std::string& text) {
    return with([&](json& f) { f["normalizer"]["normalizers"][0]["precompiled_charsmap"] = text; });
  };
  EXPECT_EQ(with([](json&) {}), "(no error)");
  EXPECT_THAT(charsmap("AAA"), HasSubstr("t.json: normalizer.precompiled_charsmap is not base64"));
  EXPECT_THAT(charsmap("AA=A"), HasSubstr("is not base64"));
  EXPECT_THAT(charsmap(""), HasSubstr("0 bytes do not hold a trie"));
  EXPECT_THAT(charsmap("////fw=="), HasSubstr("4 bytes do not hold a trie"));
  EXPECT_THAT(with([](json& f) { f["model"]["vocab"][3] = {"x"}; }), HasSubstr("'model.vocab[3]'"));
  EXPECT_THAT(with([](json& f) { f["model"]["vocab"] = json::array(); }), HasSubstr("no pieces"));
  EXPECT_THAT(with([](json& f) { f["model"]["vocab"][3][0] = std::string(2000, 'a'); }),
              HasSubstr("piece 3 ('aaaa"));
  EXPECT_THAT(with([](json& f) { f["model"]["unk_id"] = 100000; }), HasSubstr("unk_id 100000"));
  EXPECT_THAT(with([](json& f) {
                f["model"]["unk_id"] = nullptr;
                f["model"]["vocab"] = json::array({json::array({"b", -1.0})});
              }),
              HasSubstr("and unk_id is not set"));
  EXPECT_THAT(with([](json& f) { f["pre_tokenizer"]["prepend_scheme"] = "last"; }),
              HasSubstr("'pre_tokenizer.prepend_scheme' is not known"));
  EXPECT_THAT(with([](json& f) { f["pre_tokenizer"]["replacement"] = "ab"; }),
              HasSubstr("'pre_tokenizer.replacement' is not one character"));
  EXPECT_THAT(with([](json& f) { f["post_processor"]["type"] = "Other"; }),
              HasSubstr("post_processor Other"));
  EXPECT_THAT(with([](json& f) { f["post_processor"]["special_tokens"] = json::object(); }),
              HasSubstr("'post_processor.special_tokens.</s>'"));
  EXPECT_THAT(
      with([](json& f) { f["normalizer"]["normalizers"][2]["content"] = std::string(999, 'a'); }),
      HasSubstr("content' of 999 bytes is too long"));
  // Steps that together would make very much of little.
  EXPECT_THAT(with([](json& f) {
                const json twice = {
                    {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
                f["normalizer"]["normalizers"] = json(40, twice);
              }),
              HasSubstr("normalizer: "));
}

}  // namespace
}  // namespace halftone
