// Fields of JSON from outside that have the wrong type: each is refused with a line that names
// file and field, whatever stands in it and whoever reads it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "halftone/io/checkpoint.h"
#include "halftone/io/config_reader.h"
#include "halftone/io/conversion_notes.h"
#include "halftone/io/dialect.h"
#include "halftone/io/dialect_markers.h"
#include "halftone/io/json.h"
#include "halftone/io/quantization_metadata.h"
#include "halftone/io/tokenizer.h"
#include "tests/support/errors.h"

namespace halftone {
namespace {

using nlohmann::json;
using test::error_of;
using testing::HasSubstr;

TEST(ConfigReader, NamesTheFieldAndTheWayToIt) {
  const json file = json::parse(
      R"({"a":{"b":[{"c":1},{"c":"x"}],"n":null},"big":18446744073709551615,"less":-1,"half":0.5,
          "huge":1e300,"list":[1,9223372036854775808]})");
  const ConfigReader read(file, "f.json");
  const auto objects = read.object("a").objects("b");
  ASSERT_EQ(objects.size(), 2u);
  EXPECT_EQ(objects[1].text("c"), "x");
  EXPECT_EQ(read.object("a").number("n", 7), 7);
  const auto failure = [](const auto& action) { return error_of(action); };
  EXPECT_EQ(failure([&] { objects[0].text("c"); }), "f.json: 'a.b[0].c' is not a string");
  EXPECT_EQ(failure([&] { read.object("a").object("n"); }), "f.json: 'a.n' is not an object");
  EXPECT_EQ(failure([&] { read.list("a"); }), "f.json: 'a' is not a list");
  EXPECT_EQ(failure([&] { read.object("a").text("none"); }), "f.json: 'a.none' is not a string");
  EXPECT_EQ(failure([&] { ConfigReader(json::array(), "f.json"); }),
            "f.json: is not a JSON object");
  // What is beyond int64 is not a negative number.
  EXPECT_EQ(failure([&] { read.integer("big", 0, -5, 5); }),
            "f.json: 'big' 18446744073709551615 is not in -5 .. 5");
  EXPECT_EQ(read.integer("less", 0, -5, 5), -1);
  EXPECT_THAT(failure([&] { read.integer("half", 0, 0, 5); }), HasSubstr("'half'"));
  EXPECT_THAT(failure([&] { read.integers("list", {}); }), HasSubstr("'list'"));
  EXPECT_THAT(failure([&] { read.real("huge"); }), HasSubstr("'huge' is beyond float"));
}

// ---- every parser, every field ------------------------------------------------------------------

struct Parser {
  const char* name;
  std::string good;
  std::function<void(const std::string& text)> parse;
};

std::string quantization() {
  Format floor = formats::mxfp8;
  floor.rounding = ExponentRounding::kFloor;
  return to_json({{"a.weight", {formats::nvfp4, {4, 64}}},
                  {"b.weight", {floor, {4, 64}}},
                  {"c.weight", {formats::fp8, {4, 64}}}});
}

std::string notes() {
  return notes_json({{"a.weight", {QuantizedEntry{formats::nvfp4, {3, 32}}, 0.5f, 0.25f, true}}});
}

// With few merges: the test below reads it more than a thousand times.
std::string tokenizer() {
  json file =
      read_json_file(std::filesystem::path(HALFTONE_TEST_DATA) / "tokenizer/tokenizer.json");
  json& merges = file["model"]["merges"];
  merges.erase(merges.begin() + 2, merges.end());
  return file.dump();
}

// The same of T5's kind.
std::string unigram() {
  json file = read_json_file(std::filesystem::path(HALFTONE_TEST_DATA) /
                             "tokenizer/t5_file/tokenizer.json");
  json& pieces = file["model"]["vocab"];
  pieces.erase(pieces.begin() + 8, pieces.end());
  return file.dump();
}

std::vector<Parser> parsers() {
  const auto torchao = [](const std::string& text) { parse_torchao_marker(text, "f.json"); };
  const std::string layers = R"({"layers":{"a":{"format":"nvfp4"},"b":{"format":"mxfp8"}}})";
  return {
      {"tokenizer", tokenizer(),
       [](const std::string& text) { Tokenizer::parse(parse_json(text, "f.json"), "f.json"); }},
      {"unigram", unigram(),
       [](const std::string& text) { Tokenizer::parse(parse_json(text, "f.json"), "f.json"); }},
      {"index", R"({"metadata":{"total_size":1},"weight_map":{"a":"x.safetensors","b":"d/y"}})",
       [](const std::string& text) { checkpoint_index(parse_json(text, "f.json"), "f.json"); }},
      {"quantization", quantization(),
       [](const std::string& text) { parse_quantization_metadata(text, "f.json"); }},
      {"notes", notes(), [](const std::string& text) { parse_conversion_notes(text, "f.json"); }},
      {"comfy marker", *comfy_marker_json(formats::nvfp4, true),
       [](const std::string& text) { parse_comfy_marker(text, "f.json"); }},
      {"comfy metadata", layers,
       [](const std::string& text) { parse_comfy_metadata(text, "f.json"); }},
      {"detection", layers,
       [](const std::string& text) {
         detect_dialect({}, {{kComfyMetadataKey, text}}, "f.json");
         detect_dialect({}, {{kQuantizationKey, text}}, "f.json");
       }},
      {"torchao nvfp4", torchao_marker_json(formats::nvfp4, {4, 64}, false, true), torchao},
      {"torchao mxfp8", torchao_marker_json(formats::mxfp8, {4, 64}, false, false), torchao},
      {"torchao fp8", torchao_marker_json(formats::fp8, {4, 64}, true, false), torchao},
  };
}

// Calls visit with the way to every value of the document; of long lists only to the first few.
void for_each_value(const json& value, const json::json_pointer& way,
                    const std::function<void(const json::json_pointer&)>& visit) {
  visit(way);
  if (!value.is_structured()) return;
  int left = value.size() > 20 ? 3 : 20;
  for (const auto& [key, inner] : value.items()) {
    if (left-- == 0) break;
    const auto next = value.is_array() ? way / std::stoul(key) : way / key;
    for_each_value(inner, next, visit);
  }
}

const std::vector<json>& wrong_values() {
  static const std::vector<json> kWrong = {nullptr,
                                           true,
                                           0,
                                           -1,
                                           1.5,
                                           1e300,
                                           uint64_t{18446744073709551615u},
                                           uint64_t{9223372036854775808u},
                                           INT64_MIN,
                                           "",
                                           "x",
                                           std::string("a\0b", 3),
                                           json::array(),
                                           json::object(),
                                           {{{"a", 1}}},
                                           json::array({nullptr, json::object()}),
                                           {{"type", 1}}};
  return kWrong;
}

TEST(WrongTypes, NoParserThrowsAnythingButAnErrorThatNamesTheFile) {
  for (const Parser& parser : parsers()) {
    const json good = json::parse(parser.good);
    if (std::string(parser.name) != "detection") {
      EXPECT_EQ(error_of([&] { parser.parse(parser.good); }), "(no error)") << parser.name;
    }
    int refused = 0;
    for_each_value(good, json::json_pointer(), [&](const json::json_pointer& way) {
      for (const json& wrong : wrong_values()) {
        json bad = good;
        bad[way] = wrong;
        const std::string message = error_of([&] { parser.parse(bad.dump()); });
        if (message == "(no error)") continue;
        ++refused;
        ASSERT_TRUE(message.starts_with("f.json: "))
            << parser.name << " " << way << ": " << message;
      }
    });
    EXPECT_GT(refused, 10) << parser.name;
  }
}

TEST(WrongTypes, TheTokenizerNamesTheField) {
  const json good =
      read_json_file(std::filesystem::path(HALFTONE_TEST_DATA) / "tokenizer/tokenizer.json");
  struct Field {
    const char* way;
    const char* named;
    std::vector<json> wrong;
  };
  const std::vector<json> not_text = {1, true, json::array(), json::object()};
  const std::vector<json> not_boolean = {1, "true", json::array(), json::object()};
  const std::vector<json> not_object = {1, "x", true, json::array()};
  const std::vector<json> not_list = {1, "x", true, json::object()};
  const std::vector<json> not_id = {nullptr, "x", -1, 0.5, uint64_t{18446744073709551615u}};
  const Field fields[] = {
      {"/model", "'model'", not_object},
      {"/model/type", "'model.type'", not_text},
      {"/model/vocab", "'model.vocab'", not_object},
      {"/model/vocab/a", "token 'a'", not_id},
      {"/model/merges", "'model.merges'", not_list},
      {"/model/merges/0", "merge 0", not_text},
      {"/model/byte_fallback", "'model.byte_fallback'", not_boolean},
      {"/model/fuse_unk", "'model.fuse_unk'", not_boolean},
      {"/model/ignore_merges", "'model.ignore_merges'", not_boolean},
      {"/model/dropout", "'model.dropout'", {"x", true, json::array()}},
      {"/model/dropout", "model.dropout", {0.5}},
      {"/model/end_of_word_suffix", "model.end_of_word_suffix", {1, true}},
      {"/model/unk_token", "'model.unk_token'", {1, true}},
      {"/model/unk_token", "unk_token 'none'", {"none"}},
      {"/post_processor", "'post_processor'", not_object},
      {"/post_processor/type", "'post_processor.type'", not_text},
      {"/model/continuing_subword_prefix", "model.continuing_subword_prefix", {1, "##"}},
      {"/normalizer", "'normalizer'", not_object},
      {"/normalizer/type", "'normalizer.type'", not_text},
      {"/pre_tokenizer", "'pre_tokenizer'", not_object},
      {"/pre_tokenizer/type", "'pre_tokenizer.type'", not_text},
      {"/pre_tokenizer/pretokenizers", "'pre_tokenizer.pretokenizers'", not_list},
      {"/pre_tokenizer/pretokenizers/0", "'pre_tokenizer.pretokenizers[0]'", not_object},
      {"/pre_tokenizer/pretokenizers/0/type", "pretokenizers[0].type'", not_text},
      {"/pre_tokenizer/pretokenizers/0/pattern", "pretokenizers[0].pattern'", not_object},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "pretokenizers[0].pattern.Regex'", not_text},
      {"/pre_tokenizer/pretokenizers/0/behavior", "pretokenizers[0].behavior'", not_text},
      {"/pre_tokenizer/pretokenizers/0/invert", "pretokenizers[0].invert'", not_boolean},
      {"/pre_tokenizer/pretokenizers/1/use_regex", "pretokenizers[1].use_regex'", not_boolean},
      {"/pre_tokenizer/pretokenizers/1/add_prefix_space", "pretokenizers[1].add_prefix_space'",
       not_boolean},
      {"/added_tokens", "'added_tokens'", not_list},
      {"/added_tokens/0", "'added_tokens[0]'", not_object},
      {"/added_tokens/0/content", "'added_tokens[0].content'", not_text},
      {"/added_tokens/0/id", "token '<|endoftext|>'", not_id},
      {"/added_tokens/0/lstrip", "'added_tokens[0].lstrip'", not_boolean},
      {"/added_tokens/0/rstrip", "'added_tokens[0].rstrip'", not_boolean},
      {"/added_tokens/0/single_word", "'added_tokens[0].single_word'", not_boolean},
      {"/added_tokens/0/normalized", "'added_tokens[0].normalized'", not_boolean},
  };
  for (const Field& field : fields) {
    for (const json& wrong : field.wrong) {
      json bad = good;
      bad[json::json_pointer(field.way)] = wrong;
      const std::string message = error_of([&] { Tokenizer::parse(bad, "t.json"); });
      EXPECT_TRUE(message.starts_with("t.json: ")) << field.way << " = " << wrong << message;
      EXPECT_THAT(message, HasSubstr(field.named)) << field.way << " = " << wrong;
    }
  }
}

}  // namespace
}  // namespace halftone
