// Any change of a tokenizer.json of T5's kind is a tokenizer or an Error, by itself and by the
// steps of its class.
#include <cstdint>
#include <nlohmann/json.hpp>

#include "halftone/io/json.h"
#include "halftone/io/tokenizer_settings.h"
#include "tests/fuzz/fuzz_texts.h"

namespace halftone {
namespace {

using nlohmann::json;

json smallest() {
  return json::parse(R"({
    "model": {"type": "Unigram", "unk_id": 2, "vocab": [["<pad>", 0], ["</s>", 0], ["<unk>", 0],
      ["\u2581", -2], ["a", -3.5], ["b", -4], ["ab", -5], ["\u2581ab", -6.25], ["<0x01>", -7]]},
    "normalizer": {"type": "Sequence", "normalizers": [
      {"type": "Strip", "strip_left": false, "strip_right": true},
      {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"}]},
    "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}],
      "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}},
    "added_tokens": [{"id": 1, "content": "</s>", "lstrip": true, "rstrip": true}]})");
}

void check(const std::string& file, bool by_class) {
  TokenizerFiles files{"fuzz", {{"tokenizer.json", file}}};
  if (by_class) files.content["tokenizer_config.json"] = R"({"tokenizer_class": "T5Tokenizer"})";
  try {
    encode_hard_texts(make_tokenizer(files));
  } catch (const Error&) {
  }
}

}  // namespace
}  // namespace halftone

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halftone;
  static const json kWhole = smallest();
  const std::string text(reinterpret_cast<const char*>(data), size);
  check(text, false);
  try {
    json changed = kWhole;
    changed.merge_patch(parse_json(text, "fuzz"));
    check(changed.dump(), false);
    check(changed.dump(), true);
  } catch (const Error&) {
  }
  return 0;
}
