// Any files of a folder of CLIP's kind are a tokenizer or an Error. The input is merges.txt, and
// after a NUL each what changes in vocab.json, tokenizer_config.json and special_tokens_map.json.
#include <cstdint>
#include <nlohmann/json.hpp>

#include "halftone/io/json.h"
#include "halftone/io/tokenizer_settings.h"
#include "tests/fuzz/fuzz_texts.h"

namespace halftone {
namespace {

using nlohmann::json;

// A token for every byte, within a word and at its end, one merge of each, and the special ones.
json smallest_vocab() {
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
    vocab[token + "</w>"] = 256 + byte;
  }
  vocab["ab"] = 512;
  vocab["ab</w>"] = 513;
  vocab["<|startoftext|>"] = 514;
  vocab["<|endoftext|>"] = 515;
  return vocab;
}

// The good document with the changes that the text holds; the text itself where it is no JSON.
std::string changed(json good, std::string_view text) {
  if (text.empty()) return good.dump();
  try {
    good.merge_patch(parse_json(text, "fuzz"));
    return good.dump();
  } catch (const Error&) {
    return std::string(text);
  }
}

}  // namespace
}  // namespace halftone

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halftone;
  static const json kVocab = smallest_vocab();
  static const json kConfig = {{"tokenizer_class", "CLIPTokenizer"}, {"model_max_length", 77}};
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const auto part = [&] {
    const size_t end = std::min(rest.find('\0'), rest.size());
    const std::string_view taken = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return taken;
  };
  TokenizerFiles files{"fuzz", {}};
  files.content["merges.txt"] = part();
  files.content["vocab.json"] = changed(kVocab, part());
  files.content["tokenizer_config.json"] = changed(kConfig, part());
  const std::string_view special = part();
  if (!special.empty()) files.content["special_tokens_map.json"] = special;
  try {
    encode_hard_texts(make_tokenizer(files));
  } catch (const Error&) {
  }
  return 0;
}
