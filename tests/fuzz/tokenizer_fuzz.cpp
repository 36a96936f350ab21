// Any JSON is a tokenizer or an Error; a tokenizer turns any UTF-8 text into ids of its vocabulary.
#include <cstdint>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/io/json.h"
#include "halftone/io/tokenizer.h"

namespace halftone {
namespace {

using nlohmann::json;

// A tokenizer.json with a token for every byte and one merge.
json smallest() {
  json vocab = json::object();
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    const int character = itself ? byte : next++;
    std::string token(1, static_cast<char>(character));
    if (character >= 0x80) {  // two bytes of UTF-8
      token = {static_cast<char>(0xC0 | character >> 6),
               static_cast<char>(0x80 | (character & 63))};
    }
    vocab[token] = byte;
  }
  vocab["ab"] = 256;
  json file = json::parse(R"({
    "model": {"type": "BPE", "merges": [["a", "b"]]},
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "\\p{L}+|\\s"}, "behavior": "Isolated"},
      {"type": "ByteLevel", "use_regex": false, "add_prefix_space": false}]},
    "added_tokens": [{"id": 257, "content": "<|im_end|>"}]})");
  file["model"]["vocab"] = std::move(vocab);
  return file;
}

void check(const json& file) {
  try {
    const auto tokenizer = Tokenizer::parse(file, "fuzz");
    for (const int32_t id : tokenizer.encode("a \n'S <|im_end|> \xC3\xA9 1")) {
      HT_ASSERT(id >= 0 && id < tokenizer.vocab_size());
    }
  } catch (const Error&) {
  }
}

}  // namespace
}  // namespace halftone

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halftone;
  static const json kWhole = smallest();
  json input;
  try {
    input = parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const Error&) {
    return 0;
  }
  check(input);
  if (!input.is_object()) return 0;
  // The input as a change of a good file: mutations reach the fields, instead of failing at the
  // first one that is missing.
  json changed = kWhole;
  changed.merge_patch(input);
  check(changed);
  return 0;
}
